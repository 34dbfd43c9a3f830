//! Pieces on the tape: to_local, from_local, map_local.

use crate::common::{Bench, LAYOUTS, SHAPE, on, on_mesh, small, table};
use shard_autograd::{
    AutogradError, GradAs, GradCheck, Recorder, Result, gradcheck, gradgradcheck, gradient_layout,
    recompute,
};
use shard_comm::{CommError, ErrorClass};
use shard_ops::elementwise::{add, mul, mul_scalar};
use shard_ops::reduce::sum;
use shard_ops::{Exec, OpError, Value};
use shard_redistribute::{Array, RedistributeError};
use shard_spec::{DeviceMesh, Layout};

fn all(b: &Bench, x: &Value) -> Value {
    let dims: Vec<usize> = (0..x.ndim()).collect();
    sum(&b.rec, x, &dims, false).unwrap()
}

fn slope(b: &Bench, loss: &Value, x: &Value) -> Value {
    let gradients = b.rec.backward(loss, None).unwrap();
    gradients.get(x).unwrap().unwrap()
}

/// A value of ones on this rank's own mesh that no tape knows.
fn ones(b: &Bench, shape: &[usize]) -> Value {
    let own = b.cx.own();
    Value::new(Array::from_fn(&own, &Layout::replicated(own.mesh(), shape), |_| 1.0).unwrap())
}

#[test]
fn a_piece_is_the_buffer_itself_and_comes_back() {
    for &(mesh, text) in LAYOUTS {
        on_mesh(mesh, |b| {
            let x = b.leaf(SHAPE, text, small);
            let (piece, moved) = b.moved(|| b.rec.to_local(&x, GradAs::Replicate).unwrap());
            assert_eq!((moved.bytes, moved.messages), (0, 0));
            let (whole, part) = (x.array().buffer().unwrap(), piece.array().buffer().unwrap());
            assert!(whole.ptr_eq(part));
            assert_eq!(piece.shape(), &x.array().local_shape()[..]);
            assert_eq!(piece.layout().mesh().ranks(), [b.rank()]);
            let (back, moved) = b.moved(|| b.rec.from_local(&piece, &b.cx, x.layout()).unwrap());
            assert_eq!(moved.bytes, 0);
            assert_eq!(back.layout(), x.layout());
            assert_eq!(b.full(&back), b.full(&x), "{mesh:?} {text}");
        });
    }
}

#[test]
fn gradients_go_through_pieces_by_the_law() {
    for &(mesh, text) in LAYOUTS {
        on_mesh(mesh, |b| {
            let x = b.leaf(SHAPE, text, small);
            let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
            // Linear, because a piece of a partial value is a term.
            let tripled = mul_scalar(&b.rec, &piece, 3.0).unwrap();
            let y = b.rec.from_local(&tripled, &b.cx, x.layout()).unwrap();
            let weights = b.value(SHAPE, "R R"[..2 * mesh.len() - 1].trim(), |i| {
                small(i) + 9.0
            });
            let loss = all(b, &mul(&b.rec, &y, &weights).unwrap());
            let dx = slope(b, &loss, &x);
            assert_eq!(dx.layout(), &gradient_layout(x.layout()), "{mesh:?} {text}");
            let expected = table(SHAPE, |i| 3.0 * (small(i) + 9.0));
            assert_eq!(b.full(&dx), expected, "{mesh:?} {text}");
        });
    }
}

#[test]
fn pieces_are_differentiable_twice() {
    let layouts: &[(&[usize], &str)] =
        &[(&[3], "S(0)[4,0,1]"), (&[3], "R"), (&[2, 2], "S(0)[4,1] R")];
    for &(mesh, text) in layouts {
        on_mesh(mesh, |b| {
            let x = b.value(SHAPE, text, |i| 0.3 * small(i) + 1.0);
            let cube = |rec: &Recorder, v: &[Value]| {
                let piece = rec.to_local(&v[0], GradAs::Replicate)?;
                let cube = mul(rec, &mul(rec, &piece, &piece)?, &piece)?;
                Ok(vec![rec.from_local(&cube, &b.cx, v[0].layout())?])
            };
            let inputs = [x];
            gradcheck(&b.rec, &cube, &inputs, GradCheck::default()).unwrap();
            gradgradcheck(&b.rec, &cube, &inputs, GradCheck::default()).unwrap();
        });
    }
}

#[test]
fn copies_used_differently_sum_their_gradients() {
    for ranks in 1..5 {
        on_mesh(&[ranks], |b| {
            // Rank r's own loss is (r + 1) x.
            let x = b.leaf(&[3], "R", small);
            let piece = b.rec.to_local(&x, GradAs::Partial).unwrap();
            let loss = all(
                b,
                &mul_scalar(&b.rec, &piece, (b.rank() + 1) as f64).unwrap(),
            );
            let gradients = b.rec.backward(&loss, None).unwrap();
            assert_eq!(gradients.unreduced(), 1);
            let dx = gradients.get(&x).unwrap().unwrap();
            assert_eq!(dx.layout(), x.layout());
            assert_eq!(b.full(&dx), vec![(ranks * (ranks + 1) / 2) as f64; 3]);
            // Copies used alike: nothing is summed.
            let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
            let loss = all(b, &mul_scalar(&b.rec, &piece, 7.0).unwrap());
            let gradients = b.rec.backward(&loss, None).unwrap();
            assert_eq!(gradients.unreduced(), 0);
            assert_eq!(b.full(&gradients.get(&x).unwrap().unwrap()), [7.0; 3]);
        });
    }
}

#[test]
fn only_axes_that_replicate_are_summed() {
    on_mesh(&[2, 3], |b| {
        let x = b.leaf(&[5], "S(0)[1,4] R", small);
        let factor = [1.0, 10.0, 100.0][b.cx.coords().unwrap()[1]];
        let piece = b.rec.to_local(&x, GradAs::Partial).unwrap();
        let loss = all(b, &mul_scalar(&b.rec, &piece, factor).unwrap());
        let dx = slope(b, &loss, &x);
        assert_eq!((dx.layout(), b.full(&dx)), (x.layout(), vec![111.0; 5]));
    });
}

#[test]
fn the_whole_with_either_gradient() {
    // Conformance case 26.
    for (grad, factor) in [(GradAs::Replicate, 1.0), (GradAs::Partial, 4.0)] {
        on_mesh(&[4], |b| {
            let x = b.leaf(&[5], "S(0)", |i| i[0] as f64);
            let whole = b.rec.full_tensor(&x, grad).unwrap();
            assert!(whole.layout().is_replicated());
            let loss = all(b, &mul(&b.rec, &whole, &whole).unwrap());
            let dx = slope(b, &loss, &x);
            assert_eq!(dx.layout(), x.layout());
            assert_eq!(b.full(&dx), table(&[5], |i| 2.0 * factor * i[0] as f64));
        });
    }
}

#[test]
fn terms_made_by_hand_each_get_the_whole_gradient() {
    on_mesh(&[4], |b| {
        let x = b.leaf(&[3], "P(sum)", small);
        let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
        let y = b.rec.from_local(&piece, &b.cx, x.layout()).unwrap();
        let loss = all(b, &b.rec.full_tensor(&y, GradAs::Replicate).unwrap());
        assert_eq!(b.full(&slope(b, &loss, &x)), [1.0; 3]);
    });
}

/// Products and sums of pieces of a shard and of copies, as a shard, a copy and a sum.
fn mixed(b: &Bench, values: &[Value]) -> Result<Vec<Value>> {
    let [x, w] = values else {
        unreachable!("two inputs")
    };
    let axes = b.cx.mesh().ndim();
    let rest = " R".repeat(axes - 1);
    let rows = b.layout(&[5, 3], &format!("S(0){rest}"));
    let copy = b.layout(&[3], &format!("R{rest}"));
    let term = b.layout(&[3], &format!("P(sum){rest}"));
    b.rec.map_local(
        &[x, w],
        &[&rows, &copy],
        &[&rows, &copy, &term],
        |tape, pieces| {
            let [x, w] = pieces else {
                unreachable!("two inputs")
            };
            let scaled = mul(tape, x, w)?;
            Ok(vec![
                mul(tape, &scaled, x)?,
                mul(tape, w, &mul(tape, w, w)?)?,
                sum(tape, &mul(tape, &scaled, w)?, &[0], false)?,
            ])
        },
    )
}

#[test]
fn map_local_has_the_gradients_of_the_global_function() {
    let layouts: &[(&[usize], &str, &str)] = &[
        (&[1], "S(0)", "R"),
        (&[3], "S(0)[4,0,1]", "R"),
        (&[3], "S(0)", "S(0)[0,3,0]"),
        (&[3], "R", "P(sum)"),
        (&[7], "S(0)", "R"),
        (&[2, 2], "S(0)[1,4] R", "R R"),
        (&[2, 2], "S(1) S(0)", "P(sum) R"),
    ];
    for &(mesh, left, right) in layouts {
        on_mesh(mesh, |b| {
            let x = b.value(SHAPE, left, |i| 0.3 * small(i) + 1.0);
            let w = b.value(&[3], right, |i| 0.2 * small(i) - 1.0);
            let found = b.rec.no_grad(|| mixed(b, &[x.clone(), w.clone()])).unwrap();
            let (px, pw) = (b.full(&x), b.full(&w));
            let expected: Vec<f64> = (0..15).map(|i| px[i] * pw[i % 3] * px[i]).collect();
            assert_eq!(b.full(&found[0]), expected);
            let inputs = [x, w];
            let report =
                gradcheck(&b.rec, &|_, v| mixed(b, v), &inputs, GradCheck::default()).unwrap();
            assert_eq!(report.compared, 18, "{mesh:?} {left} {right}");
            let second = GradCheck {
                samples: 8,
                ..GradCheck::default()
            };
            gradgradcheck(&b.rec, &|_, v| mixed(b, v), &inputs, second).unwrap();
        });
    }
}

/// Rows are squared and weighed on the ranks that have some. Ranks that have none compute nothing at all.
fn skips_empty(b: &Bench, values: &[Value]) -> Result<Vec<Value>> {
    let [x, w] = values else {
        unreachable!("two inputs")
    };
    let copy = Layout::replicated(b.cx.mesh(), w.shape());
    // The input is moved, so that the pieces' gradients have to move as well.
    let rows = b.layout(x.shape(), "S(0)[0,1,4]");
    b.rec
        .map_local(&[x, w], &[&rows, &copy], &[&rows], |tape, pieces| {
            let [x, w] = pieces else {
                unreachable!("two inputs")
            };
            if x.array().local_shape()[0] < 2 {
                return Ok(vec![ones(b, x.shape())]);
            }
            Ok(vec![mul(tape, &mul(tape, x, x)?, w)?])
        })
}

#[test]
fn ranks_may_use_their_pieces_differently() {
    on_mesh(&[3], |b| {
        let x = b.value(SHAPE, "S(0)[4,0,1]", |i| 0.3 * small(i) + 1.0);
        let w = b.value(&[3], "R", |i| 0.2 * small(i) - 1.0);
        let inputs = [x, w];
        gradcheck(
            &b.rec,
            &|_, v| skips_empty(b, v),
            &inputs,
            GradCheck::default(),
        )
        .unwrap();
        gradgradcheck(
            &b.rec,
            &|_, v| skips_empty(b, v),
            &inputs,
            GradCheck::default(),
        )
        .unwrap();
        // The same, in a function that runs again for its derivative.
        let leaves: Vec<Value> = (inputs.iter())
            .map(|v| b.rec.leaf(v.array().clone()).unwrap())
            .collect();
        let refs: Vec<&Value> = leaves.iter().collect();
        let plain = skips_empty(b, &leaves).unwrap();
        let again = {
            let cx = b.cx.clone();
            recompute(&b.rec, &refs, move |rec, v| {
                let inner = Bench {
                    cx: cx.clone(),
                    rec: rec.clone(),
                };
                skips_empty(&inner, v)
            })
            .unwrap()
        };
        for leaf in &leaves {
            let expected = b.full(&slope(b, &all(b, &plain[0]), leaf));
            assert_eq!(b.full(&slope(b, &all(b, &again[0]), leaf)), expected);
        }
    });
}

#[test]
fn the_derivative_of_a_hand_written_function_moves_like_any_other() {
    on_mesh(&[3], |b| {
        // The inputs are moved to where f wants them, and their gradients are moved back.
        let x = b.leaf(SHAPE, "S(1)", small);
        let rows = b.layout(SHAPE, "S(0)[2,0,3]");
        let y = b
            .rec
            .map_local(&[&x], &[&rows], &[&rows], |tape, p| {
                Ok(vec![mul(tape, &p[0], &p[0])?])
            })
            .unwrap();
        let dx = slope(b, &all(b, &y[0]), &x);
        assert_eq!(dx.layout(), x.layout());
        assert_eq!(b.full(&dx), table(SHAPE, |i| 2.0 * small(i)));
    });
}

#[test]
fn a_captured_parameter_has_its_gradient() {
    on_mesh(&[3], |b| {
        let x = b.value(SHAPE, "S(0)[4,0,1]", small);
        let w = b.leaf(&[3], "R", |_| 2.0);
        let rows = x.layout().clone();
        let y = b
            .rec
            .map_local(&[&x], &[&rows], &[&rows], |tape, p| {
                Ok(vec![mul(
                    tape,
                    &p[0],
                    &tape.to_local(&w, GradAs::Partial)?,
                )?])
            })
            .unwrap();
        let expected: Vec<f64> = (0..3)
            .map(|j| (0..5).map(|i| small(&[i, j])).sum())
            .collect();
        assert_eq!(b.full(&slope(b, &all(b, &y[0]), &w)), expected);
    });
}

#[test]
fn integers_pass_and_are_not_tracked() {
    on_mesh(&[2], |b| {
        let layout = b.layout(&[3], "S(0)");
        let ids = Value::new(Array::from_fn(&b.cx, &layout, |i| i[0] as i64).unwrap());
        let x = b.leaf(&[3], "S(0)", small);
        let found = b
            .rec
            .map_local(
                &[&x, &ids],
                &[&layout, &layout],
                &[&layout, &layout],
                |_, p| Ok(p.to_vec()),
            )
            .unwrap();
        assert!(b.rec.is_tracked(&found[0]) && !b.rec.is_tracked(&found[1]));
        assert_eq!(
            found[1].array().to_vec::<i64>().unwrap(),
            ids.array().to_vec::<i64>().unwrap()
        );
    });
}

#[test]
fn a_rank_off_the_mesh_passes_through() {
    let mesh = DeviceMesh::with_ranks(&[2], vec![2, 0]).unwrap();
    let slopes = on(3, &mesh, |b| {
        let x = b.leaf(&[5], "S(0)[3,2]", small);
        let layout = x.layout().clone();
        let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
        let y = mul(&b.rec, &piece, &piece).unwrap();
        let y = b.rec.from_local(&y, &b.cx, &layout).unwrap();
        let read = |_: &_, p: &[Value]| -> Result<Vec<Value>> {
            // Reading is for members.
            let numbers: Vec<f64> = p[0].array().to_vec()?;
            assert!(b.cx.is_member());
            let doubled: Vec<f64> = numbers.iter().map(|v| 2.0 * v).collect();
            let buffer = b.cx.device().upload_slice(&doubled)?;
            let cx = p[0].array().cx();
            Ok(vec![Value::new(Array::from_parts(
                cx,
                p[0].layout(),
                Some(buffer),
                p[0].dtype(),
            )?)])
        };
        let doubled = b
            .rec
            .map_local(&[&y.detach()], &[&layout], &[&layout], read)
            .unwrap();
        let z = mul(&b.rec, &y, &doubled[0]).unwrap();
        let dx = slope(b, &all(b, &z), &x);
        if b.cx.is_member() {
            assert_eq!(b.full(&dx), table(&[5], |i| 4.0 * small(i).powi(3)));
            return true;
        }
        assert_eq!(
            (piece.shape(), piece.array().buffer().is_some()),
            (&[3][..], false)
        );
        assert_eq!(dx.layout(), x.layout());
        let error = piece.array().to_vec::<f64>().unwrap_err();
        assert!(
            matches!(error, RedistributeError::NotMember { rank: 1, .. }),
            "{error}"
        );
        false
    });
    assert_eq!(slopes, [true, false, true]);
}

fn agreed(error: &AutogradError) -> (usize, String) {
    assert_eq!(error.class(), ErrorClass::Agreed, "{error}");
    match error {
        AutogradError::Comm(CommError::Agreed(e)) => (e.rank, format!("{e}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_piece_that_does_not_fit_is_everyones_error() {
    on_mesh(&[3], |b| {
        let x = b.leaf(&[6], "S(0)", small);
        let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
        let sizes = b.layout(&[6], "S(0)[2,3,1]");
        let error = b.rec.from_local(&piece, &b.cx, &sizes).unwrap_err();
        let (rank, text) = agreed(&error);
        assert_eq!(rank, 1);
        assert!(
            text.contains("piece 0 of shape [3]") && text.contains("got [2]"),
            "{text}"
        );
        // A value of the whole mesh is not a piece; here one rank passes it.
        let wrong = if b.rank() == 2 { &x } else { &piece };
        let error = b.rec.from_local(wrong, &b.cx, x.layout()).unwrap_err();
        assert_eq!(agreed(&error).0, 2);
        // The function fails on one rank, or gives too few results.
        let layout = x.layout();
        let error = b
            .rec
            .map_local(&[&x], &[layout], &[layout], |_, p| match b.rank() {
                1 => Err(AutogradError::external(
                    "no such table",
                    ErrorClass::Failure,
                )),
                _ => Ok(p.to_vec()),
            });
        let (rank, text) = agreed(&error.unwrap_err());
        assert_eq!(rank, 1);
        assert!(text.contains("no such table"), "{text}");
        let error = b.rec.map_local(&[&x], &[layout], &[layout], |_, p| {
            Ok(p[..usize::from(b.rank() != 2)].to_vec())
        });
        assert_eq!(agreed(&error.unwrap_err()).0, 2);
        // The group still works.
        let y = b.rec.from_local(&piece, &b.cx, layout).unwrap();
        assert_eq!(b.full(&y), b.full(&x));
    });
}

#[test]
fn pieces_of_different_origin_are_found_out() {
    on_mesh(&[3], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
        let other = if b.rank() == 1 { piece.detach() } else { piece };
        let error = b.rec.from_local(&other, &b.cx, x.layout()).unwrap_err();
        assert!(
            matches!(error, AutogradError::Comm(CommError::Mismatch(_))),
            "{error:?}"
        );
    });
}

#[test]
fn what_makes_no_sense_is_everyones_error() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[4], "S(0)", small);
        let layout = x.layout();
        let own = b.cx.own();
        let elsewhere = Layout::replicated(own.mesh(), &[4]);
        let error = b.rec.from_local(&x, &b.cx, &elsewhere).unwrap_err();
        assert!(matches!(
            error,
            AutogradError::Redistribute(RedistributeError::OtherMesh { .. })
        ));
        let keep = |_: &_, p: &[Value]| Ok(p.to_vec());
        let error = b
            .rec
            .map_local(&[&x], &[layout], &[&elsewhere], keep)
            .unwrap_err();
        assert!(matches!(
            error,
            AutogradError::Redistribute(RedistributeError::OtherMesh { .. })
        ));
        let error = b.rec.map_local(&[], &[], &[layout], keep).unwrap_err();
        assert!(matches!(error, AutogradError::Count { got: 0, .. }));
        let error = b.rec.map_local(&[&x], &[], &[layout], keep).unwrap_err();
        assert!(matches!(error, AutogradError::Count { expected: 1, .. }));
        let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
        let error = b
            .rec
            .map_local(&[&x, &piece], &[layout, layout], &[layout], keep)
            .unwrap_err();
        assert!(matches!(
            error,
            AutogradError::Op(OpError::Meshes { operand: 1, .. })
        ));
        // No rank knows whose piece is the greatest. Without a derivative it is a value like any other.
        let greatest = b.layout(&[2], "P(max)");
        let error = b.rec.from_local(&piece, &b.cx, &greatest).unwrap_err();
        assert!(
            matches!(error, AutogradError::Reduction { piece: 0, .. }),
            "{error:?}"
        );
        let max = b.rec.from_local(&piece.detach(), &b.cx, &greatest).unwrap();
        let expected: Vec<f64> = (0..2).map(|i| small(&[i]).max(small(&[i + 2]))).collect();
        assert_eq!(b.full(&max), expected);
    });
}

#[test]
fn ops_on_pieces_stay_on_the_rank() {
    on_mesh(&[4], |b| {
        let x = b.leaf(&[9, 2], "S(0)", small);
        let piece = b.rec.to_local(&x, GradAs::Replicate).unwrap();
        let (y, moved) = b.moved(|| {
            let mean = sum(&b.rec, &piece, &[0], true).unwrap();
            let y = add(&b.rec, &piece, &mean).unwrap();
            b.rec
                .redistribute(&y, &Layout::replicated(y.layout().mesh(), y.shape()))
                .unwrap()
        });
        assert_eq!((moved.bytes, moved.messages), (0, 0));
        let y = b.rec.from_local(&y, &b.cx, x.layout()).unwrap();
        // Each element once, and once more for every row of its piece.
        let rows = x.array().local_shape()[0] as f64;
        let dx = slope(b, &all(b, &y), &x);
        assert_eq!(
            dx.array().to_vec::<f64>().unwrap(),
            vec![1.0 + rows; rows as usize * 2]
        );
    });
}

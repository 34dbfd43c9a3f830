//! The gradient law: which layout gradients have, and how often they are summed.

use crate::common::{Bench, LAYOUTS, SHAPE, on, on_mesh, small, table};
use shard_autograd::{AutogradError, Recorder, gradient_layout};
use shard_ops::elementwise::{add, maximum, mul, mul_scalar};
use shard_ops::matmul::matmul;
use shard_ops::reduce::sum;
use shard_ops::{
    Cotangents, Engine, EngineOptions, Exec, Grads, HostCall, Linearity, Meta, Op, OpError, Rule,
    Saved, Value, key_of,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout, ReduceOp};
use std::rc::Rc;
use std::sync::Arc;

fn all(b: &Bench, x: &Value) -> Value {
    sum(&b.rec, x, &[0, 1], false).unwrap()
}

#[test]
fn gradients_have_the_layout_of_their_value() {
    for &(mesh, text) in LAYOUTS {
        on_mesh(mesh, |b| {
            let x = b.leaf(SHAPE, text, small);
            let loss = all(b, &mul(&b.rec, &x, &x).unwrap());
            let gradients = b.rec.backward(&loss, None).unwrap();
            let dx = gradients.get(&x).unwrap().unwrap();
            assert_eq!(dx.layout(), &gradient_layout(x.layout()), "{mesh:?} {text}");
            assert_eq!(
                b.full(&dx),
                table(SHAPE, |i| 2.0 * small(i)),
                "{mesh:?} {text}"
            );
            assert!(!b.rec.is_tracked(&dx));
        });
    }
}

#[test]
fn redistribution_gives_back_the_gradient_whatever_the_layouts() {
    for &(mesh, from) in LAYOUTS {
        for &(_, to) in LAYOUTS
            .iter()
            .filter(|(m, to)| *m == mesh && !to.contains('P'))
        {
            on_mesh(mesh, |b| {
                let x = b.leaf(SHAPE, from, small);
                let moved = b.rec.redistribute(&x, &b.layout(SHAPE, to)).unwrap();
                let weights = b.value(SHAPE, to, |i| small(i) + 10.0);
                let loss = all(b, &mul(&b.rec, &moved, &weights).unwrap());
                let dx = b
                    .rec
                    .backward(&loss, None)
                    .unwrap()
                    .get(&x)
                    .unwrap()
                    .unwrap();
                assert_eq!(
                    dx.layout(),
                    &gradient_layout(x.layout()),
                    "{mesh:?} {from} to {to}"
                );
                assert_eq!(
                    b.full(&dx),
                    table(SHAPE, |i| small(i) + 10.0),
                    "{mesh:?} {from} to {to}"
                );
            });
        }
    }
}

#[test]
fn a_partial_loss_counts_as_its_value() {
    on_mesh(&[4], |b| {
        let x = b.leaf(SHAPE, "S(0)[1,0,2,2]", small);
        let loss = all(b, &mul(&b.rec, &x, &x).unwrap());
        assert!(loss.layout().is_partial());
        let gradients = b.rec.backward(&loss, None).unwrap();
        assert_eq!(
            b.full(&gradients.get(&x).unwrap().unwrap()),
            table(SHAPE, |i| 2.0 * small(i))
        );
        // A seed of another layout, itself a sum over ranks.
        let seed = b.value(&[], "P(sum)", |_| 3.0);
        let gradients = b.rec.backward(&loss, Some(&seed)).unwrap();
        assert_eq!(
            b.full(&gradients.get(&x).unwrap().unwrap()),
            table(SHAPE, |i| 6.0 * small(i))
        );
        // Conformance case 26: the sum over a partial leaf has ones for a gradient, counted once.
        let p = b.leaf(SHAPE, "P(sum)", small);
        let whole = b
            .rec
            .redistribute(&p, &Layout::replicated(b.cx.mesh(), SHAPE))
            .unwrap();
        let gradients = b.rec.backward(&all(b, &whole), None).unwrap();
        let dp = gradients.get(&p).unwrap().unwrap();
        assert_eq!(
            (dp.layout().is_replicated(), b.full(&dp)),
            (true, vec![1.0; 15])
        );
    });
}

#[test]
fn cotangents_of_different_labels_are_aligned_before_they_are_added() {
    on_mesh(&[3], |b| {
        let w = b.leaf(&[4, 2], "R", small);
        let x = b.value(&[5, 4], "S(0)[0,4,1]", small);
        // A use whose cotangent is partial, one whose cotangent is sharded, one replicated, one more partial.
        let by_rows = sum(&b.rec, &matmul(&b.rec, &x, &w).unwrap(), &[0, 1], false).unwrap();
        let split = b
            .rec
            .redistribute(&w, &b.layout(&[4, 2], "S(0)[1,0,3]"))
            .unwrap();
        let split = sum(
            &b.rec,
            &mul(&b.rec, &split, &split).unwrap(),
            &[0, 1],
            false,
        )
        .unwrap();
        let whole = sum(
            &b.rec,
            &mul_scalar(&b.rec, &w, 5.0).unwrap(),
            &[0, 1],
            false,
        )
        .unwrap();
        let again = mul_scalar(&b.rec, &by_rows, 2.0).unwrap();
        let replicated = Layout::replicated(b.cx.mesh(), &[]);
        let mut loss = whole;
        for term in [by_rows, split, again] {
            loss = add(
                &b.rec,
                &loss,
                &b.rec.redistribute(&term, &replicated).unwrap(),
            )
            .unwrap();
        }
        let dw = b
            .rec
            .backward(&loss, None)
            .unwrap()
            .get(&w)
            .unwrap()
            .unwrap();
        assert!(dw.layout().is_replicated());
        let column = |k: usize| (0..5).map(|i| small(&[i, k])).sum::<f64>();
        assert_eq!(
            b.full(&dw),
            table(&[4, 2], |i| 3.0 * column(i[0]) + 2.0 * small(i) + 5.0)
        );
    });
}

#[test]
fn sums_over_ranks_are_taken_once_and_together() {
    for early in [false, true] {
        on_mesh(&[4], |b| {
            b.rec.set_bucket_bytes(if early { 64 } else { usize::MAX });
            let x = b.value(&[6, 4], "S(0)[3,0,1,2]", small);
            let weights: Vec<Value> = (0..3).map(|n| b.leaf(&[4, 2 + n], "R", small)).collect();
            let mut terms = Vec::new();
            for w in &weights {
                terms.push(sum(&b.rec, &matmul(&b.rec, &x, w).unwrap(), &[0, 1], false).unwrap());
            }
            let loss = add(
                &b.rec,
                &add(&b.rec, &terms[0], &terms[1]).unwrap(),
                &terms[2],
            )
            .unwrap();
            let (gradients, moved) = b.moved(|| b.rec.backward(&loss, None).unwrap());
            // At most two are in flight at once, so the third waited for the first.
            assert_eq!(gradients.unreduced(), if early { 2 } else { 3 });
            if !early {
                assert_eq!(
                    (moved.rounds, moved.bytes),
                    (0, 0),
                    "nothing is summed before it is read: {moved:?}"
                );
            }
            let (_, rest) = b.moved(|| gradients.reduce().unwrap());
            if early {
                // A bucket of 64 bytes is full after each of the three, and none is reduced again.
                assert_eq!(
                    (moved.rounds + rest.rounds, moved.bytes + rest.bytes),
                    (3, 3 * 36 * 8)
                );
            } else {
                // 36 numbers in one reduction, small enough for one round: each rank reads all numbers of the others.
                assert_eq!((rest.rounds, rest.bytes), (1, 3 * 36 * 8), "{rest:?}");
            }
            assert_eq!(gradients.unreduced(), 0);
            let (_, moved) = b.moved(|| {
                for w in &weights {
                    let dw = gradients.get(w).unwrap().unwrap();
                    let column = |k: usize| (0..6).map(|i| small(&[i, k])).sum::<f64>();
                    assert_eq!(
                        dw.array().to_vec::<f64>().unwrap(),
                        table(w.shape(), |i| column(i[0]))
                    );
                }
            });
            assert_eq!(moved.rounds, 0, "gradients are reduced once");
        });
    }
}

#[test]
fn a_sum_that_an_op_takes_first_is_taken_once() {
    let element = |i: &[usize]| small(i) / 3.0;
    on_mesh(&[4], |b| {
        let x = b.leaf(&[8, 6], "P(sum)", element);
        let c = b.value(&[8, 6], "P(sum)", |i| 1.0 - element(i));
        let whole = b.layout(&[8, 6], "R");
        let (_, once) = b.moved(|| b.rec.inner().redistribute(&x, &whole).unwrap());
        type Map<'a> = &'a dyn Fn() -> Value;
        type Slope = fn(f64) -> f64;
        let maps: [(u64, Map<'_>, Slope); 2] = [
            (1, &|| maximum(&b.rec, &x, &x).unwrap(), |_| 1.0),
            (2, &|| maximum(&b.rec, &x, &c).unwrap(), |x| {
                f64::from(u8::from(x > 0.5))
            }),
        ];
        for (sums, map, slope) in maps {
            let (y, forward) = b.moved(map);
            let loss = all(b, &y);
            let (gradients, backward) = b.moved(|| b.rec.backward(&loss, None).unwrap());
            assert_eq!((forward.bytes, backward.bytes), (sums * once.bytes, 0));
            let dx = gradients.get(&x).unwrap().unwrap();
            assert_eq!(b.full(&dx), table(&[8, 6], |i| slope(element(i))));
        }
        // Where moves have to be said, so has this one.
        let explicit_moves = true;
        let options = EngineOptions {
            explicit_moves,
            ..Default::default()
        };
        let strict = Recorder::new(Engine::new(options));
        let x = strict.leaf(x.array().clone()).unwrap();
        let error = maximum(&strict, &x, &x).unwrap_err();
        assert!(matches!(error, OpError::ImplicitMove { .. }), "{error}");
    });
}

#[test]
fn sums_over_different_axes_become_one() {
    on_mesh(&[2, 2], |b| {
        let w = b.leaf(&[3, 2], "R R", small);
        let x = b.value(&[5, 3], "S(0)[4,1] R", small);
        let y = b.value(&[5, 3], "R S(0)[0,5]", small);
        let total = |x: &Value| all(b, &matmul(&b.rec, x, &w).unwrap());
        let loss = add(&b.rec, &total(&x), &total(&y)).unwrap();
        let (gradients, moved) = b.moved(|| b.rec.backward(&loss, None).unwrap());
        assert_eq!((moved.rounds, gradients.unreduced()), (0, 1));
        let (dw, moved) = b.moved(|| gradients.get(&w).unwrap().unwrap());
        assert_eq!(
            (moved.rounds, moved.bytes),
            (1, 3 * 6 * 8),
            "one reduction over both axes"
        );
        let column = |k: usize| (0..5).map(|i| small(&[i, k])).sum::<f64>();
        assert_eq!(b.full(&dw), table(&[3, 2], |i| 2.0 * column(i[0])));
    });
}

#[test]
fn the_gradient_of_a_gathered_shard_is_reduce_scattered() {
    on_mesh(&[4], |b| {
        let w = b.leaf(&[8, 2], "S(0)", small);
        let x = b.value(&[8, 8], "S(0)", small);
        let whole = b
            .rec
            .redistribute(&w, &Layout::replicated(b.cx.mesh(), &[8, 2]))
            .unwrap();
        let loss = all(b, &matmul(&b.rec, &x, &whole).unwrap());
        let (gradients, moved) = b.moved(|| b.rec.backward(&loss, None).unwrap());
        let (dw, rest) = b.moved(|| gradients.get(&w).unwrap().unwrap());
        // Each rank receives the others' terms of its own 2 rows, and nothing else moves.
        assert_eq!(
            (moved.rounds + rest.rounds, moved.bytes + rest.bytes),
            (1, 3 * 4 * 8)
        );
        let column = |k: usize| (0..8).map(|i| small(&[i, k])).sum::<f64>();
        assert_eq!(
            (dw.layout(), b.full(&dw)),
            (w.layout(), table(&[8, 2], |i| column(i[0])))
        );
    });
}

/// The identity, with a vjp that insists on the layout of the law.
#[derive(Debug)]
struct Strict;

impl Op for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> shard_ops::Result<Rule> {
        Rule::pointwise(self.name(), inputs, inputs[0].dtype, Linearity::Joint)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0).to_vec();
        call.output::<f64>(0).data_mut().copy_from_slice(&x);
    }

    fn vjp(
        &self,
        _: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &Cotangents,
    ) -> shard_ops::Result<Grads> {
        let fits = |c: &Value| c.layout() == &gradient_layout(saved.outputs[0].layout());
        match cotangents[0].as_ref().is_some_and(fits) {
            true => Ok(cotangents.to_vec()),
            false => Err(OpError::NoVjp {
                op: self.name(),
                operand: 0,
            }),
        }
    }
}

#[test]
fn vjps_get_cotangents_in_the_layout_of_their_output() {
    for &(mesh, text) in LAYOUTS {
        on_mesh(mesh, |b| {
            let x = b.leaf(SHAPE, text, small);
            let y = b.rec.apply1(Arc::new(Strict), &[&x]).unwrap();
            // A cotangent that is partial where y is replicated, and one of any other layout.
            let axes = vec!["P(sum)"; mesh.len()].join(" ");
            for seed in [
                axes.as_str(),
                LAYOUTS.iter().rfind(|l| l.0 == mesh).map_or("R", |l| l.1),
            ] {
                let seed = b
                    .rec
                    .leaf(b.value(SHAPE, seed, small).array().clone())
                    .unwrap();
                let dx = b
                    .rec
                    .backward(&y, Some(&seed))
                    .unwrap()
                    .get(&x)
                    .unwrap()
                    .unwrap();
                assert_eq!(b.full(&dx), table(SHAPE, small), "{mesh:?} {text}");
                assert!(
                    !b.rec.is_tracked(&dx),
                    "an unrecorded pass gives untracked gradients"
                );
            }
        });
    }
}

#[test]
fn passes_are_accumulated_before_they_are_summed_over_ranks() {
    on_mesh(&[3], |b| {
        let w = b.leaf(&[4, 2], "R", small);
        let other = b.leaf(&[2], "S(0)", small);
        let mut total = None;
        let ((), moved) = b.moved(|| {
            for batch in 0..3 {
                let x = b.value(&[5, 4], "S(0)", |i| small(i) + f64::from(batch));
                let mut loss =
                    sum(&b.rec, &matmul(&b.rec, &x, &w).unwrap(), &[0, 1], false).unwrap();
                if batch == 1 {
                    loss = add(&b.rec, &loss, &sum(&b.rec, &other, &[0], false).unwrap()).unwrap();
                }
                let gradients = b.rec.backward(&loss, None).unwrap();
                match &mut total {
                    None => total = Some(gradients),
                    Some(total) => total.accumulate(gradients).unwrap(),
                }
            }
        });
        assert_eq!(moved.rounds, 0);
        let total = total.unwrap();
        assert_eq!((total.len(), total.unreduced()), (2, 1));
        let (dw, moved) = b.moved(|| total.get(&w).unwrap().unwrap());
        assert_eq!(moved.rounds, 1);
        let column = |k: usize| (0..5).map(|i| small(&[i, k])).sum::<f64>();
        assert_eq!(b.full(&dw), table(&[4, 2], |i| 3.0 * column(i[0]) + 15.0));
        assert_eq!(b.full(&total.get(&other).unwrap().unwrap()), [1.0, 1.0]);
    });
}

#[test]
fn ranks_outside_the_mesh_take_part_without_data() {
    let mesh = DeviceMesh::with_ranks(&[2], vec![2, 0]).unwrap();
    let seen = on(3, &mesh, |b| {
        let x = b.leaf(&[5, 2], "S(0)[1,4]", small);
        let w = b.leaf(&[2, 2], "R", small);
        let y = matmul(&b.rec, &x, &w).unwrap();
        let y = add(&b.rec, &y, &x).unwrap();
        let loss = sum(&b.rec, &y, &[0, 1], false).unwrap();
        let gradients = b.rec.backward(&loss, None).unwrap();
        let (dx, dw) = (
            gradients.get(&x).unwrap().unwrap(),
            gradients.get(&w).unwrap().unwrap(),
        );
        assert_eq!((dx.layout(), dw.layout()), (x.layout(), w.layout()));
        if b.rank() == 1 {
            assert!(dx.array().buffer().is_none() && dw.array().buffer().is_none());
            return (gradients.len(), Vec::new());
        }
        let row = |k: usize| (0..2).map(|j| small(&[k, j])).sum::<f64>();
        assert_eq!(b.full(&dx), table(&[5, 2], |i| row(i[1]) + 1.0));
        (gradients.len(), b.full(&dw))
    });
    let column = |k: usize| (0..5).map(|i| small(&[i, k])).sum::<f64>();
    assert_eq!(seen[0], (2, table(&[2, 2], |i| column(i[0]))));
    assert_eq!(seen[1], (2, Vec::new()));
    assert_eq!(seen[2], seen[0]);
}

#[test]
fn errors_are_the_same_everywhere_and_leave_the_group_usable() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[4], "S(0)", small);
        let y = mul_scalar(&b.rec, &x, 2.0).unwrap();
        let refused = |e: AutogradError, text: &str| {
            assert_eq!(e.class(), shard_comm::ErrorClass::Uniform);
            assert!(e.to_string().contains(text), "{e}");
        };
        refused(
            b.rec.backward(&y, None).unwrap_err(),
            "shape [4] has no default seed",
        );
        let seed = b.value(&[3], "R", small);
        refused(
            b.rec.backward(&y, Some(&seed)).unwrap_err(),
            "the seed has shape [3]",
        );
        // One on another mesh, with which even the tape's own moves could do nothing.
        let moved = b.rec.redistribute(&x, &b.layout(&[4], "R")).unwrap();
        let others = [
            DeviceMesh::new(&[1, 2]).unwrap(),
            DeviceMesh::with_ranks(&[2], vec![1, 0]).unwrap(),
        ];
        for mesh in others {
            let cx = MeshComm::new(b.cx.world(), &mesh).unwrap();
            let axis = mesh.ndim() - 1;
            let terms = Layout::replicated(&mesh, &[4]).with_partial(&[axis], ReduceOp::Sum);
            let terms = Array::from_fn::<f64>(&cx, &terms.unwrap(), |_| 1.0).unwrap();
            refused(
                b.rec.backward(&moved, Some(&terms.into())).unwrap_err(),
                "backward: cannot go from",
            );
        }
        refused(
            b.rec.backward(&y.detach(), None).unwrap_err(),
            "the loss is not on this tape",
        );
        refused(
            b.rec.grad(&[&y], &[&x], &[None, None], false).unwrap_err(),
            "expected 1 cotangents, got 2",
        );
        refused(
            b.rec.grad(&[&y], &[&x.detach()], &[], false).unwrap_err(),
            "input 0 is not on this tape",
        );
        let ints = Array::from_fn::<i64>(&b.cx, &b.layout(&[4], "R"), |i| i[0] as i64).unwrap();
        refused(
            b.rec.leaf(ints).unwrap_err(),
            "i64 values have no derivative",
        );
        // A value of another tape is not a constant.
        let other = shard_autograd::Recorder::new(Rc::clone(b.rec.inner()));
        let foreign = other.leaf(x.array().clone()).unwrap();
        let error = mul(&b.rec, &x, &foreign).unwrap_err();
        assert!(
            error.to_string().contains("operand 1 is on another tape"),
            "{error}"
        );
        assert!(mul(&b.rec, &x, &foreign.detach()).is_ok());
        // Ids are counted by tape: those of another's leaves are those of others here.
        let backward = |rec: &Recorder, leaf: &Value| {
            let loss = sum(rec, &mul(rec, leaf, leaf).unwrap(), &[0], false).unwrap();
            rec.backward(&loss, None).unwrap()
        };
        let mut gradients = backward(&b.rec, &x);
        let error = gradients
            .accumulate(backward(&other, &foreign))
            .unwrap_err();
        let said = "accumulate: the pass to add is not on this tape";
        assert!(error.to_string().starts_with(said), "{error}");
        let before = gradients.get(&x).unwrap().unwrap();
        assert!(gradients.accumulate(backward(&b.rec.clone(), &x)).is_ok());
        let doubled = b.full(&before).iter().map(|g| 2.0 * g).collect::<Vec<_>>();
        assert_eq!(b.full(&gradients.get(&x).unwrap().unwrap()), doubled);
        let loss = sum(&b.rec, &y, &[0], false).unwrap();
        assert_eq!(
            b.full(
                &b.rec
                    .backward(&loss, None)
                    .unwrap()
                    .get(&x)
                    .unwrap()
                    .unwrap()
            ),
            [2.0; 4]
        );
    });
}

//! Hand-written code for one piece.

use crate::common::read;
use ndarray::{ArrayD, Axis};
use shard_autograd::{AutogradError, GradCheck, gradcheck, gradgradcheck};
use shard_tensor::{
    Context, DType, DeviceKind, Error, ErrorClass, GradAs, Launch, LocalSizes, Mesh, Placements,
    Result, ShardTensor, launch, replicate, shard,
};

/// Rows brought to mean 0 and variance 1, by a handler that knows nothing of ranks.
fn normalized(ctx: &Context, x: &ShardTensor, w: &ShardTensor) -> Result<ShardTensor> {
    let rows = x.layout().clone();
    let mut y = ctx.map_local(
        &[x, w],
        [rows.clone().into(), shard_tensor::Placements::replicated()],
        &[&rows],
        |pieces| {
            let [x, w] = pieces else {
                unreachable!("two inputs")
            };
            let centred = x.sub(&x.mean([1], true)?)?;
            let variance = centred.square()?.mean([1], true)?;
            let scale = variance.add_scalar(1e-3)?.sqrt()?;
            Ok(vec![centred.div(&scale)?.mul(w)?])
        },
    )?;
    Ok(y.remove(0))
}

#[test]
fn a_hand_written_normalization_has_the_gradient_of_the_whole() {
    let checked = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let f = |i: &[usize]| ((3 * i[0] + 5 * i[1]) % 7) as f64;
        let x = mesh.from_fn([5, 4], [shard(0).sizes([5, 0]), replicate()], f)?;
        let w = mesh.from_fn([4], [replicate(), shard(0)], |i| 1.0 + i[0] as f64)?;
        let lift = |v: &shard_tensor::op::Value| ShardTensor::new(ctx, v.clone());
        let same = |_: &_, v: &[_]| {
            let y = normalized(ctx, &lift(&v[0]), &lift(&v[1]))
                .map_err(|e| AutogradError::external(&e, e.class()))?;
            Ok(vec![y.value()])
        };
        let inputs = [x.value(), w.value()];
        let report = gradcheck(ctx.tape(), &same, &inputs, GradCheck::default())?;
        assert_eq!(report.compared, 24);
        let few = GradCheck {
            samples: 6,
            rtol: 1e-4,
            ..GradCheck::default()
        };
        gradgradcheck(ctx.tape(), &same, &inputs, few)?;
        // And the value of the function that knows of ranks.
        let centred = x.sub(&x.mean([1], true)?)?;
        let scale = centred
            .square()?
            .mean([1], true)?
            .add_scalar(1e-3)?
            .sqrt()?;
        let expected = centred.div(&scale)?.mul(&w)?;
        assert_eq!(read(&normalized(ctx, &x, &w)?)?, read(&expected)?);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn pieces_of_new_sizes_are_wrapped() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(6, [shard(0)])?.requires_grad()?;
        // Every rank keeps as many of its elements as its number.
        let piece = x.to_local()?;
        let kept = piece.slice(0, 0, 1, ctx.rank())?;
        let y = mesh.wrap_local(&kept, [shard(0)], LocalSizes::Infer)?;
        assert_eq!(y.layout().to_string(), "S(0)[0,1,2]");
        assert_eq!(read(&y)?, [2.0, 4.0, 5.0]);
        let slope = y.sum_all()?.backward()?.get(&x)?.unwrap();
        assert_eq!(read(&slope)?, [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
        // The same sizes, stated; and wrong ones.
        let sizes = [shard(0).sizes([0, 1, 2])];
        let again = mesh.wrap_local(&kept, sizes, LocalSizes::Global(3.into()))?;
        assert_eq!(read(&again)?, read(&y)?);
        let error = mesh
            .wrap_local(&kept, [shard(0)], LocalSizes::Global(3.into()))
            .unwrap_err();
        assert_eq!(
            (error.class(), error.rank()),
            (ErrorClass::Agreed, Some(0)),
            "{error}"
        );
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn a_handler_may_leave_the_tape_for_arrays() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        // Rank 1 is off the mesh: it is asked for nothing it does not have.
        let mesh = ctx.mesh_from(&shard_tensor::DeviceMesh::with_ranks(&[2], vec![2, 0])?)?;
        let x = mesh.arange(5, [shard(0)])?;
        let y = ctx.map_local(&[&x], [[shard(0)]], &[x.layout()], |pieces| {
            let numbers: ArrayD<f64> = pieces[0].to_array()?;
            let mut sums = numbers;
            sums.accumulate_axis_inplace(Axis(0), |&before, now| *now += before);
            Ok(vec![pieces[0].mesh().distribute(&sums, [replicate()])?])
        })?;
        if mesh.is_member() {
            assert_eq!(read(&y[0])?, [0.0, 1.0, 3.0, 3.0, 7.0]);
        }
        assert_eq!((y[0].layout(), y[0].dtype()), (x.layout(), DType::F64));
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn copies_that_part_sum_their_gradients() {
    let checked = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(4)?;
        // Conformance case 26, and the ranks' own losses of case 12.
        let x = mesh.arange(5, [shard(0)])?.requires_grad()?;
        for (grad, factor) in [(GradAs::Replicate, 2.0), (GradAs::Partial, 8.0)] {
            let loss = x.full_tensor_with(grad)?.square()?.sum_all()?;
            let slope = loss.backward()?.get(&x)?.unwrap();
            assert_eq!(
                read(&slope)?,
                [0.0, factor, 2.0 * factor, 3.0 * factor, 4.0 * factor]
            );
        }
        let w = mesh.ones([2], [replicate()])?.requires_grad()?;
        let loss = (w.to_local_with(GradAs::Partial)? * (ctx.rank() + 1) as f64).sum_all()?;
        assert_eq!(read(&loss.backward()?.get(&w)?.unwrap())?, [10.0, 10.0]);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn a_failing_handler_fails_everywhere() {
    let checked = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([6], [shard(0)])?;
        let error = ctx
            .map_local(&[&x], [[shard(0)]], &[x.layout()], |pieces| {
                match ctx.rank() {
                    2 => Err(Error::custom("the table has no such row")),
                    _ => Ok(pieces.to_vec()),
                }
            })
            .unwrap_err();
        assert_eq!((error.class(), error.rank()), (ErrorClass::Agreed, Some(2)));
        assert!(
            error.to_string().contains("the table has no such row"),
            "{error}"
        );
        let error = ctx
            .map_local(
                &[&x],
                [] as [[shard_tensor::AxisPlacement; 1]; 0],
                &[],
                |_| Ok(Vec::new()),
            )
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::Argument {
                    op: "map_local",
                    ..
                }
            ),
            "{error:?}"
        );
        let error = ctx
            .map_local(
                &[&x],
                [[shard_tensor::partial(shard_tensor::ReduceOp::Sum)]],
                &[],
                |_| Ok(Vec::new()),
            )
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::Argument {
                    op: "map_local",
                    ..
                }
            ),
            "{error:?}"
        );
        x.sum_all()?.item()
    });
    assert_eq!(checked.unwrap(), [6.0; 3]);
}

/// The squares of a piece, by way of an array: off the tape.
fn squares_off_the_tape(pieces: &[ShardTensor]) -> Result<Vec<ShardTensor>> {
    let squares = pieces[0].to_local_array::<f32>()?.mapv(|x| x * x);
    Ok(vec![
        pieces[0]
            .mesh()
            .distribute(&squares, Placements::replicated())?,
    ])
}

/// What leaves the tape inside the function has no gradient, and must not be said to have one of zero.
#[test]
fn a_function_that_leaves_the_tape_is_an_error() {
    let texts = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(4, [shard(0)])?.requires_grad()?;
        let map = || ctx.map_local(&[&x], [x.layout()], &[x.layout()], squares_off_the_tape);
        let error = map().unwrap_err();
        // Where the piece is empty the function may give it back, and so stay on the tape: that changes nothing.
        let mixed = ctx.map_local(&[&x], [x.layout()], &[x.layout()], |pieces| {
            if pieces[0].numel() == 0 {
                return Ok(pieces.to_vec());
            }
            squares_off_the_tape(pieces)
        });
        let mixed = mixed.unwrap_err();
        // The ways out: no gradient is wanted of the call, or of the input.
        let silent = ctx.no_grad(map)?.swap_remove(0);
        let detached = ctx
            .map_local(
                &[&x.detach()],
                [x.layout()],
                &[x.layout()],
                squares_off_the_tape,
            )?
            .swap_remove(0);
        for y in [&silent, &detached] {
            assert!(!y.is_tracked());
            assert_eq!(y.sum_all()?.item()?, 14.0);
        }
        Ok([error, mixed].map(|e| (e.class(), e.to_string())))
    });
    let texts = texts.unwrap();
    assert!(texts.iter().all(|t| t == &texts[0]), "{texts:?}");
    for (class, text) in &texts[0] {
        assert_eq!(*class, ErrorClass::Agreed);
        assert!(
            text.contains("map_local_with_grad") && text.contains("no_grad"),
            "{text}"
        );
    }
}

/// An input that no rank uses has no gradient either; one that some rank uses is none of the others' affair.
#[test]
fn an_input_must_be_used_somewhere() {
    let texts = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(4, [shard(0)])?.requires_grad()?;
        let w = mesh.full([1], 2.0, [replicate()])?.requires_grad()?;
        let inputs = [&x, &w];
        let places = || [x.layout(), w.layout()];
        let unused = ctx
            .map_local(&inputs, places(), &[x.layout()], |p| {
                Ok(vec![p[0].square()?])
            })
            .unwrap_err();
        let last = ctx.rank() == 1;
        let y = ctx.map_local(&inputs, places(), &[x.layout()], |p| {
            Ok(vec![if last { p[0].mul(&p[1])? } else { p[0].clone() }])
        })?;
        let slope = y[0]
            .sum_all()?
            .backward()?
            .get(&w)?
            .expect("rank 1 used it");
        Ok((unused.to_string(), slope.item()?))
    });
    for (text, slope) in texts.unwrap() {
        assert!(text.contains("input 1"), "{text}");
        assert_eq!(slope, 5.0);
    }
}

/// `w x`, by way of arrays, and its derivative by hand.
fn scaled(piece: &[ShardTensor]) -> Result<Vec<ShardTensor>> {
    let [x, w] = [&piece[0], &piece[1]].map(|t| t.to_local_array::<f64>());
    Ok(vec![
        piece[0]
            .mesh()
            .distribute(&(x? * &w?), Placements::replicated())?,
    ])
}

fn scaled_back(
    inputs: &[ShardTensor],
    outputs: &[ShardTensor],
    cotangents: &[ShardTensor],
) -> Result<Vec<Option<ShardTensor>>> {
    let [x, w, dy] = [&inputs[0], &inputs[1], &cotangents[0]].map(|t| t.to_local_array::<f64>());
    let (x, w, dy) = (x?, w?, dy?);
    assert_eq!(outputs[0].to_local_array::<f64>()?, &x * &w);
    let mesh = inputs[0].mesh();
    let dw = ndarray::arr1(&[(&x * &dy).sum()]);
    let everywhere = Placements::replicated;
    Ok(vec![
        Some(mesh.distribute(&(&dy * &w), everywhere())?),
        Some(mesh.distribute(&dw, everywhere())?),
    ])
}

/// A derivative written by hand moves like any other: sharded where its value is, summed over the ranks where it is copied.
#[test]
fn a_derivative_by_hand_is_that_of_the_global_function() {
    for device in [DeviceKind::Host, DeviceKind::Test] {
        let slopes = Launch::new(4).device(device).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let x = mesh
                .arange(5, [shard(0).sizes([1, 0, 4])])?
                .requires_grad()?;
            let w = mesh.full([1], 3.0, [replicate()])?.requires_grad()?;
            let y = ctx.map_local_with_grad(
                &[&x, &w],
                [x.layout(), w.layout()],
                &[x.layout()],
                scaled,
                scaled_back,
            )?;
            assert!(y[0].is_tracked());
            let loss = y[0].square()?.sum_all()?;
            let gradients = loss.backward()?;
            let slopes = [&x, &w].map(|p| gradients.get(p).map(Option::unwrap));
            let [dx, dw] = slopes;
            let (dx, dw) = (dx?, dw?);
            assert_eq!((dx.layout(), dw.layout()), (x.layout(), w.layout()));
            // It is not differentiated again.
            let again = loss.grad(&[&x], true).unwrap_err();
            assert!(again.to_string().contains("map_local_with_grad"), "{again}");
            mesh.is_member()
                .then(|| Ok::<_, Error>((read(&dx)?, read(&dw)?)))
                .transpose()
        });
        // d/dx (w x)^2 = 2 w^2 x, d/dw = 2 w x^2.
        let expected = (
            (0..5).map(|i| 18.0 * f64::from(i)).collect::<Vec<_>>(),
            vec![180.0],
        );
        let slopes = slopes.unwrap();
        assert_eq!(
            slopes,
            [
                Some(expected.clone()),
                Some(expected.clone()),
                Some(expected),
                None
            ]
        );
    }
}

/// What goes wrong on one rank in a derivative by hand is everyone's error, and the group goes on.
#[test]
fn a_derivative_by_hand_that_fails_is_agreed_on() {
    let texts = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(4, [shard(0)])?.requires_grad()?;
        let rank = ctx.rank();
        let fails = |how: usize| {
            let y = ctx.map_local_with_grad(
                &[&x],
                [x.layout()],
                &[x.layout()],
                |x| Ok(x.to_vec()),
                move |x, _, dy| match (rank, how) {
                    (1, 0) => Err(Error::custom("no derivative today")),
                    (1, 1) => Ok(vec![]),
                    (1, 2) => Ok(vec![Some(x[0].sum_all()?)]),
                    _ => Ok(vec![Some(dy[0].clone())]),
                },
            )?;
            let error = y[0].sum_all()?.backward().map(|_| ()).unwrap_err();
            Ok::<_, Error>((error.class(), error.rank(), error.to_string()))
        };
        Ok([fails(0)?, fails(1)?, fails(2)?])
    });
    let texts = texts.unwrap();
    assert!(texts.iter().all(|t| t == &texts[0]), "{texts:?}");
    for ((class, rank, text), said) in texts[0].iter().zip(["today", "expected 1", "input 0"]) {
        assert_eq!((*class, *rank), (ErrorClass::Agreed, Some(1)));
        assert!(text.contains(said), "{text}");
    }
}

/// What ranks say of their pieces is compared before they are taken for one tensor.
#[test]
fn ranks_that_wrap_otherwise_are_told() {
    type Wrap = fn(&Mesh, &ShardTensor, usize) -> Result<ShardTensor>;
    let wraps: [Wrap; 3] = [
        |mesh, piece, rank| mesh.wrap_local(piece, [shard(rank)], LocalSizes::Infer),
        |mesh, piece, rank| {
            let sizes = [shard(0).sizes([[2, 2], [1, 3]][rank])];
            mesh.wrap_local(piece, sizes, LocalSizes::Global([4, 2].into()))
        },
        |mesh, piece, rank| {
            let piece = piece.to([DType::F32, DType::F64][rank])?;
            mesh.wrap_local(&piece, [shard(0)], LocalSizes::Infer)
        },
    ];
    for wrap in wraps {
        let told = Launch::new(2).run(|ctx| {
            let mesh = ctx.mesh_of(2)?;
            let piece = mesh.ones([4, 2], [shard(0)])?.to_local()?;
            let error = wrap(&mesh, &piece, ctx.rank()).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform, "{error}");
            mesh.ones([4], [shard(0)])?.sum_all()?.item()?;
            Ok(error.to_string())
        });
        let told = told.unwrap();
        assert!(
            told[0].contains("wrap_local") && told[0] == told[1],
            "{told:?}"
        );
    }
}

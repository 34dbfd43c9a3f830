//! Tensors from data: uneven, empty, more ranks than rows, nested.

use ndarray::{Array1, Array2, ArrayD, IxDyn};
use shard_tensor::{DType, Launch, LocalSizes, Placements, launch, partial, replicate, shard};
use shard_tensor::{Error, ErrorClass, ReduceOp, Steps};

fn field(shape: &[usize]) -> ArrayD<f64> {
    let n: usize = shape.iter().product();
    ArrayD::from_shape_vec(IxDyn(shape), (0..n).map(|i| i as f64).collect()).unwrap()
}

/// Placements of a `[5, 4]` tensor on a `2 x 3` mesh.
fn everywhere() -> Vec<Placements> {
    vec![
        [replicate(), replicate()].into(),
        [shard(0), shard(1)].into(),
        [shard(1), shard(0)].into(),
        [shard(0).sizes([5, 0]), shard(1).sizes([0, 1, 3])].into(),
        [shard(0), shard(0)].into(),
        [shard(0).sizes([1, 0, 0, 3, 0, 1]), shard(0)].into(),
        [shard(0).sizes([2, 3]), shard(0).even()].into(),
        [shard(1).weights([3.0, 1.0]), replicate()].into(),
        [("w", shard(0))].into(),
    ]
}

#[test]
fn distribute_and_back() {
    for placements in everywhere() {
        let whole = field(&[5, 4]);
        let back = launch(6, |ctx| {
            let mesh = ctx.mesh([("h", 2), ("w", 3)])?;
            let x = mesh.distribute(&whole, &placements)?;
            assert_eq!((x.shape(), x.dtype()), (&[5, 4][..], DType::F64));
            let piece = x.to_local_array::<f64>()?;
            assert_eq!(piece.shape(), &x.local_shape()[..]);
            if let Some(first) = piece.first() {
                let at = x.offsets().unwrap();
                assert_eq!(*first, (4 * at[0] + at[1]) as f64, "{x:?}");
            }
            x.to_array::<f64>()
        });
        assert_eq!(back.unwrap(), vec![whole; 6], "{placements:?}");
    }
}

#[test]
fn more_ranks_than_rows() {
    let shapes = launch(5, |ctx| {
        let x = ctx.mesh_of(5)?.distribute(&field(&[3, 2]), [shard(0)])?;
        assert_eq!(x.to_array::<f64>()?, field(&[3, 2]));
        Ok(x.local_shape()[0])
    });
    assert_eq!(shapes.unwrap(), [1, 1, 1, 0, 0]);
}

#[test]
fn nothing_at_all_is_a_tensor() {
    let sums = launch(3, |ctx| {
        let x = ctx.mesh_of(3)?.zeros([0, 4], [shard(0)])?;
        assert_eq!(x.to_array::<f32>()?.shape(), [0, 4]);
        x.sum_all()?.item()
    });
    assert_eq!(sums.unwrap(), [0.0; 3]);
}

#[test]
fn scatter_sends_each_rank_its_piece_and_no_more() {
    for placements in everywhere() {
        let whole = field(&[5, 4]);
        let ranks = launch(6, |ctx| {
            let mesh = ctx.mesh([("h", 2), ("w", 3)])?;
            let before = ctx.ledger().snapshot();
            let mine = (ctx.rank() == 4).then(|| whole.view());
            let x = mesh.scatter(4, mine, &placements)?;
            let moved = ctx.ledger().since(&before).bytes as usize;
            let piece = 8 * x.local_shape().iter().product::<usize>();
            // The shape came first: one number of dims, two extents.
            assert!(
                moved <= piece + 24,
                "rank {} received {moved} bytes for a piece of {piece}",
                ctx.rank()
            );
            x.to_array::<f64>()
        });
        assert_eq!(ranks.unwrap(), vec![whole; 6], "{placements:?}");
    }
}

#[test]
fn scatter_of_a_number() {
    let numbers = launch(3, |ctx| {
        let mine = ndarray::arr0(7.5f32).into_dyn();
        ctx.mesh_of(3)?
            .scatter(
                1,
                (ctx.rank() == 1).then(|| mine.view()),
                Placements::replicated(),
            )?
            .item()
    });
    assert_eq!(numbers.unwrap(), [7.5; 3]);
}

#[test]
fn scatter_without_an_array_at_the_root_is_agreed_on() {
    let errors = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let error = mesh.scatter::<f64>(2, None, [shard(0)]).unwrap_err();
        // The group is usable.
        assert_eq!(mesh.ones([2], [shard(0)])?.sum_all()?.item()?, 2.0);
        Ok((error.class(), error.rank(), error.to_string()))
    });
    let errors = errors.unwrap();
    assert!(errors.iter().all(|e| e == &errors[0]));
    assert_eq!((errors[0].0, errors[0].1), (ErrorClass::Agreed, Some(2)));
}

#[test]
fn from_local_infers_uneven_pieces() {
    let layouts = launch(6, |ctx| {
        let mesh = ctx.mesh([("h", 2), ("w", 3)])?;
        let (h, w) = (
            [3, 0][mesh.coords().unwrap()[0]],
            [0, 4, 1][mesh.coords().unwrap()[1]],
        );
        let x = mesh.from_local(
            &Array2::<f64>::ones((h, w)),
            [shard(0), shard(1)],
            LocalSizes::Infer,
        )?;
        Ok(format!("{:?} {}", x.shape(), x.layout()))
    });
    assert_eq!(layouts.unwrap(), vec!["[3, 5] S(0)[3,0] S(1)[0,4,1]"; 6]);
}

#[test]
fn from_local_infers_nested_pieces_and_partial_terms() {
    let found = launch(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let n = [2, 0, 5, 1][ctx.rank()];
        let nested = mesh.from_local(
            &Array1::<f32>::ones(n),
            [shard(0), shard(0)],
            LocalSizes::Infer,
        )?;
        let terms = [partial(ReduceOp::Sum), replicate()];
        let sum = mesh.from_local(&Array1::<f32>::ones(3), terms, LocalSizes::Infer)?;
        assert_eq!(sum.to_array::<f32>()?, ndarray::arr1(&[2.0; 3]).into_dyn());
        Ok(nested.layout().to_string())
    });
    assert_eq!(found.unwrap(), vec!["S(0)[2,0,5,1] S(0)"; 4]);
}

#[test]
fn from_local_disagreement_is_one_error_everywhere() {
    let errors = launch(4, |ctx| {
        let mesh = ctx.mesh([("rows", 2), ("copies", 2)])?;
        // Ranks 2 and 3 hold copies of one piece, but not of one size.
        let piece = Array2::<f64>::ones((if ctx.rank() == 3 { 9 } else { 2 }, 3));
        let error = mesh
            .from_local(&piece, [("rows", shard(0))], LocalSizes::Infer)
            .unwrap_err();
        assert_eq!(
            mesh.ones([4], [shard(0), replicate()])?.sum_all()?.item()?,
            4.0
        );
        Ok((error.class(), error.rank(), error.to_string()))
    });
    let errors = errors.unwrap();
    assert!(errors.iter().all(|e| e == &errors[0]), "{errors:?}");
    assert_eq!((errors[0].0, errors[0].1), (ErrorClass::Agreed, Some(3)));
    assert!(
        errors[0].2.contains("extent 2 in dim 0, as rank 2 has") && errors[0].2.contains("[9, 3]"),
        "{errors:?}"
    );
}

#[test]
fn from_local_against_stated_sizes() {
    let errors = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let given = LocalSizes::Global([6, 2].into());
        let piece = |rows: usize, columns: usize| Array2::<f32>::ones((rows, columns));
        let good = mesh.from_local(&piece(2, 2), [shard(0)], given.clone())?;
        assert_eq!(good.layout().to_string(), "S(0)");
        let uneven = mesh.from_local(
            &piece([4, 0, 2][ctx.rank()], 2),
            [shard(0).sizes([4, 0, 2])],
            given.clone(),
        )?;
        assert_eq!(uneven.local_shape()[0], [4, 0, 2][ctx.rank()]);
        // As many elements, another shape.
        let swapped = if ctx.rank() == 1 {
            piece(1, 4)
        } else {
            piece(2, 2)
        };
        let error = mesh.from_local(&swapped, [shard(0)], given).unwrap_err();
        Ok((error.class(), error.rank(), error.to_string()))
    });
    let errors = errors.unwrap();
    assert!(errors.iter().all(|e| e == &errors[0]), "{errors:?}");
    assert_eq!((errors[0].0, errors[0].1), (ErrorClass::Agreed, Some(1)));
    assert!(
        errors[0].2.contains("[2, 2]") && errors[0].2.contains("[1, 4]"),
        "{errors:?}"
    );
}

#[test]
fn ranks_that_disagree_on_arguments_hear_of_it() {
    let errors = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let dim = ctx.rank();
        let whole = field(&[4, 4]);
        let errors = [
            mesh.distribute(&whole, [shard(dim)]).unwrap_err(),
            mesh.from_local(&whole, [shard(dim)], LocalSizes::Infer)
                .unwrap_err(),
            mesh.scatter(dim, Some(whole.view()), [shard(0)])
                .unwrap_err(),
            mesh.distribute(&field(&[4, 3 + dim]), [shard(0)])
                .unwrap_err(),
            // One rank's own placements are impossible.
            mesh.distribute(&whole, [shard(5 * dim)]).unwrap_err(),
        ];
        assert_eq!(mesh.ones([4], [shard(0)])?.sum_all()?.item()?, 4.0);
        Ok(errors.map(|e| (e.class(), e.to_string())))
    });
    let errors = errors.unwrap();
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0]
            .iter()
            .all(|e| e.0 == ErrorClass::Uniform && e.1.contains("disagree")),
        "{errors:?}"
    );
}

#[test]
fn impossible_placements_are_the_same_error_everywhere() {
    let errors = launch(2, |ctx| {
        let mesh = ctx.mesh([("rows", 2)])?;
        let make = |p: Placements| mesh.zeros([4, 4], p).unwrap_err();
        Ok([
            make([shard(0), shard(1)].into()),
            make([shard(2)].into()),
            make([shard(0).sizes([3, 2])].into()),
            make([shard(0).sizes([1, 1, 2])].into()),
            make([("columns", shard(0))].into()),
            make([("rows", shard(0)), ("rows", shard(1))].into()),
            make([shard(0).weights([1.0, -1.0])].into()),
        ]
        .map(|e: Error| (e.class(), e.to_string())))
    });
    let errors = errors.unwrap();
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].iter().all(|e| e.0 == ErrorClass::Uniform),
        "{errors:?}"
    );
    for (error, part) in errors[0]
        .iter()
        .zip(["2", "dim 2", "5", "3", "columns", "twice", "-1"])
    {
        assert!(error.1.contains(part), "{part:?} not in {error:?}");
    }
}

#[test]
fn ranks_off_the_mesh_take_part_without_data() {
    let seen = launch(3, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.distribute(&field(&[4]), [shard(0)])?;
        let y = (&x * 2.0).sum_all()?;
        Ok((
            x.local_shape()[0],
            x.shape().to_vec(),
            y.item().map_err(|e| e.to_string()),
        ))
    });
    let seen = seen.unwrap();
    assert_eq!(seen[0], (2, vec![4], Ok(12.0)));
    assert_eq!((seen[2].0, &seen[2].1), (0, &vec![4]));
    assert!(
        seen[2]
            .2
            .as_ref()
            .unwrap_err()
            .contains("rank 2 is not a member")
    );
}

#[test]
fn constants_on_every_kind_of_layout() {
    let ok = Launch::new(2).dtype(DType::I32).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        assert_eq!(
            mesh.full([3], -2.0, [shard(0)])?.to_array::<i32>()?,
            ndarray::arr1(&[-2; 3]).into_dyn()
        );
        assert_eq!(
            mesh.arange(4, [shard(0)])?.to_array::<i32>()?,
            ndarray::arr1(&[0, 1, 2, 3]).into_dyn()
        );
        let terms = mesh.full([2], 5.0, [partial(ReduceOp::Max)])?;
        assert_eq!(terms.to_array::<i32>()?, ndarray::arr1(&[5; 2]).into_dyn());
        assert_eq!(mesh.empty([5], [shard(0)])?.to_array::<i32>()?.len(), 5);
        Ok(mesh
            .with_dtype(DType::F64)
            .ones([2], [replicate()])?
            .dtype())
    });
    assert_eq!(ok.unwrap(), [DType::F64; 2]);
}

#[test]
fn ranks_off_the_mesh_pass_through_every_constructor_and_file() {
    let path = std::env::temp_dir().join(format!("shard-tensor-off-mesh-{}", std::process::id()));
    let ok = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let mine = Array1::<f64>::ones(if mesh.is_member() { 1 + ctx.rank() } else { 0 });
        let inferred = mesh.from_local(&mine, [shard(0)], LocalSizes::Infer)?;
        assert_eq!(inferred.layout().to_string(), "S(0)[1,2,3]");
        let whole = field(&[5]);
        let x = mesh.scatter(2, (ctx.rank() == 2).then(|| whole.view()), [shard(0)])?;
        let w = x.redistribute([replicate()])?.requires_grad()?;
        let gradient = (&w * &x).sum_all()?.backward()?.get(&w)?.unwrap();
        let named = [("w".to_owned(), w.clone()), ("x".to_owned(), x)];
        shard_tensor::checkpoint::save(&path, &named)?;
        w.set(&mesh.zeros([5], [replicate()])?)?;
        shard_tensor::checkpoint::load(&path, &named[..1])?;
        if mesh.is_member() {
            assert_eq!(gradient.to_array::<f64>()?, whole);
            assert_eq!(w.to_array::<f64>()?, whole);
        }
        Ok(())
    });
    ok.unwrap();
    std::fs::remove_file(&path).unwrap();
}

/// Terms of a sum are the results of ops: data has none, whatever the placements say.
#[test]
fn scatter_takes_no_partial_placements() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let whole = ndarray::arr1(&[1.0f32, 2.0]).into_dyn();
        let mine = (ctx.rank() == 0).then(|| whole.view());
        let error = mesh.scatter(0, mine, [partial(ReduceOp::Sum)]).unwrap_err();
        // The group goes on.
        assert_eq!(mesh.ones([2], [shard(0)])?.sum_all()?.item()?, 2.0);
        Ok((error.class(), error.to_string()))
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0].0, ErrorClass::Uniform);
    assert!(texts[0].1.contains("P(sum)"), "{}", texts[0].1);
}

#[test]
fn steps_are_counted_as_pytorch_counts_them() {
    let count = |dtype: DType, steps: Steps| {
        let found = Launch::new(3).dtype(dtype).run(|ctx| {
            let x = ctx
                .mesh_of(3)?
                .arange(steps, [shard(0).weights([1.0, 0.0, 2.0])])?;
            Ok((
                x.to(DType::F64)?
                    .to_array::<f64>()?
                    .into_raw_vec_and_offset()
                    .0,
                x.dtype(),
            ))
        });
        let (numbers, of) = found.map_err(|e| e.to_string())?.swap_remove(2);
        assert_eq!(of, dtype);
        Ok::<_, String>(numbers)
    };
    let f64 = |steps: Steps| count(DType::F64, steps).unwrap();
    assert_eq!(f64((2..5).into()), [2.0, 3.0, 4.0]);
    assert_eq!(f64((0.5..3.0).into()), [0.5, 1.5, 2.5]);
    assert_eq!(f64((7, -2, -3).into()), [7.0, 4.0, 1.0]);
    assert_eq!(f64((7, 8, 3).into()), [7.0]);
    assert_eq!(f64((1.0, 2.0, 0.25).into()), [1.0, 1.25, 1.5, 1.75]);
    assert_eq!(f64((4, 4, -1).into()), [0.0; 0]);
    assert_eq!(
        count(DType::I32, (0.0, 2.0, 0.5).into()).unwrap(),
        [0.0, 0.0, 1.0, 1.0]
    );
    assert_eq!(count(DType::Bool, 2.into()).unwrap(), [0.0, 1.0]);
    for (dtype, steps, says) in [
        (DType::F64, Steps::from((5, 2, 1)), "turn the step round"),
        (DType::F64, (2.0, 5.0, -1.0).into(), "turn the step round"),
        (DType::F64, (2, 5, 0).into(), "other than 0"),
        (DType::F64, (0.0, f64::NAN, 1.0).into(), "finite"),
        (DType::U8, (250..257).into(), "holds"),
        (DType::U8, (3, -2, -1).into(), "holds"),
    ] {
        let refused = count(dtype, steps).unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
    // Any type of indices will do, whatever its values.
    let (rows, below): (usize, i64) = (3, -3);
    for steps in [
        rows.into(),
        3_i64.into(),
        (0..rows).into(),
        (0, rows, 1).into(),
        3.into(),
    ] {
        assert_eq!(f64(steps), [0.0, 1.0, 2.0]);
    }
    let refused = [
        below.into(),
        (usize::MAX - 2..usize::MAX).into(),
        (1 << 63..(1_usize << 63) + 2).into(),
    ]
    .map(|steps: Steps| count(DType::I64, steps).unwrap_err());
    assert!(refused[0].contains("turn the step round"), "{refused:?}");
    assert!(
        refused[1..].iter().all(|error| error.contains("holds")),
        "{refused:?}"
    );
    // Beyond what doubles tell apart, and past the end of none.
    let exact = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?.with_dtype(DType::I64);
        mesh.arange((i64::MAX - 5, i64::MAX, 2), [shard(0)])?
            .to_array::<i64>()
    });
    let expected = [i64::MAX - 5, i64::MAX - 3, i64::MAX - 1];
    assert_eq!(exact.unwrap()[1].as_slice(), Some(&expected[..]));
}

#[test]
fn ends_may_be_further_apart_than_any_number() {
    let lines = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let line = ctx.mesh_of(2)?.linspace(-f64::MAX, f64::MAX, 3, shard(0))?;
        line.to_array::<f64>()
    });
    let expected = ndarray::arr1(&[-f64::MAX, 0.0, f64::MAX]).into_dyn();
    assert_eq!(lines.unwrap(), [expected.clone(), expected]);
}

/// An array that each rank drew for itself is none that all have.
#[test]
fn arrays_that_differ_between_ranks_are_refused() {
    use ndarray::s;
    for (rows, axis) in [(3, replicate()), (3, shard(0)), (500, shard(0))] {
        let whole = |seed: usize| {
            Array2::from_shape_fn((rows, 11), |(i, j)| crate::common::pattern(seed, &[i, j]))
        };
        let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            // The same elements in another order of memory are the same array.
            let turned = whole(1).reversed_axes().as_standard_layout().into_owned();
            let alike = match ctx.rank() {
                1 => mesh.distribute(&turned.t(), axis.clone())?,
                _ => mesh.distribute(&whole(1).slice(s![.., ..]), axis.clone())?,
            };
            assert_eq!(alike.shape(), [rows, 11]);
            let own = mesh.distribute(&whole(ctx.rank() / 2), axis.clone());
            Ok(own.map(|_| ()).map_err(|e| (e.class(), e.to_string())))
        });
        for refused in found.unwrap() {
            let (class, text) = refused.unwrap_err();
            assert_eq!(class, ErrorClass::Uniform, "{text}");
            assert!(text.contains("with elements"), "{text}");
        }
    }
}

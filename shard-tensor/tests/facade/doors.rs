//! The many ways of saying one thing: placements, dims, numbers, meshes.

use crate::common::read;
use shard_comm::CommError;
use shard_tensor::nn::{self, ModelExt, Module, ParallelPlan};
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{
    ConvTransposeOptions, DType, Error, ErrorClass, GradCheck, Launch, LocalSizes, Placement,
    Placements, ReduceOp, Result, ShardTensor, launch, partial, replicate, shard,
};
use std::collections::BTreeMap;

#[test]
fn placements_are_taken_in_any_form() {
    let checked = launch(4, |ctx| {
        let line = ctx.mesh_of(4)?;
        let rows: [Placements; 5] = [
            shard(0).into(),
            Placement::Shard(0).into(),
            [shard(0)].into(),
            (&[shard(0)]).into(),
            (&vec![shard(0)]).into(),
        ];
        for placements in rows {
            assert_eq!(line.ones([5, 3], placements)?.layout().to_string(), "S(0)");
        }
        // Any sequence of names and sizes makes a mesh.
        let axes = BTreeMap::from([("h".to_owned(), 2), ("w".to_owned(), 2)]);
        let grid = ctx.mesh(axes)?;
        let names = vec![("h", 2), ("w", 2)];
        assert_eq!(ctx.mesh(names)?.mesh().to_string(), grid.mesh().to_string());
        let (whole, split) = (Placement::Replicate, shard(1).sizes([1, 2]));
        let mixed: [Placements; 6] = [
            (whole, split.clone()).into(),
            [("w", split.clone())].into(),
            ("w", split.clone()).into(),
            vec![("w", split.clone())].into(),
            vec![("w".to_owned(), split.clone())].into(),
            (&[("w", split)][..]).into(),
        ];
        for placements in mixed {
            assert_eq!(
                grid.ones([5, 3], placements)?.layout().to_string(),
                "R S(1)[1,2]"
            );
        }
        // One placement is not enough for two axes.
        grid.ones([5, 3], shard(0))
            .map(|_| ())
            .map_err(|e| assert!(e.to_string().contains('2')))
            .unwrap_err();
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn placements_count_dims_from_the_end() {
    let checked = launch(4, |ctx| {
        let grid = ctx.mesh([("h", 2), ("w", 2)])?;
        let laid = |x: &ShardTensor| x.layout().to_string();
        let x = grid.ones([4, 3, 5], [shard(-3), shard(-1).sizes([4, 1])])?;
        assert_eq!(laid(&x), "S(0) S(2)[4,1]");
        assert_eq!(laid(&x.redistribute_axis("w", shard(-2))?), "S(0) S(1)");
        assert_eq!(laid(&x.redistribute([("h", shard(-2))])?), "S(1) R");
        // The same placement is another dim of another tensor, and the same of all ranks whose sizes are asked for.
        let last = [shard(-1), replicate()];
        assert_eq!(laid(&grid.ones(6, &last)?), "S(0) R");
        let piece = ndarray::Array2::<f32>::ones((3, 1 + ctx.rank() / 2));
        let x = grid.from_local(&piece, &last, LocalSizes::Infer)?;
        assert_eq!((x.shape(), laid(&x).as_str()), (&[3, 3][..], "S(1)[1,2] R"));
        let linear = nn::Linear::new(&grid, 4, 6)?;
        let linear = linear.distribute(&ParallelPlan::new().shard("weight", "w", -1))?;
        assert_eq!(laid(&linear.weight), "R S(1)");
        let beyond = [
            grid.ones([4, 3], [shard(-3), replicate()]),
            grid.from_local(&piece, [shard(-3), replicate()], LocalSizes::Infer),
            x.redistribute([("h", shard(-3))]),
            x.redistribute_axis("w", shard(-3)),
            (nn::Linear::new(&grid, 4, 6)?)
                .distribute(&ParallelPlan::new().shard("weight", "w", -3))
                .map(|linear| linear.weight),
        ];
        let beyond = beyond.map(|made| made.map(drop).unwrap_err());
        for error in &beyond {
            assert_eq!(error.class(), ErrorClass::Uniform);
            let text = error.to_string();
            assert!(text.contains("from -2 on, got dim -3"), "{text}");
        }
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn dims_count_from_either_end_and_come_as_arrays() {
    let checked = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.from_fn([2, 3, 4], shard(1), |i| {
            (12 * i[0] + 4 * i[1] + i[2]) as f64
        })?;
        let same = |a: ShardTensor, b: ShardTensor| {
            assert_eq!(a.shape(), b.shape());
            assert_eq!(read(&a)?, read(&b)?);
            Ok::<_, Error>(())
        };
        same(x.sum([0, -1], false)?, x.sum([0, 2], false)?)?;
        same(x.mean(-1, true)?, x.mean(vec![2_usize], true)?)?;
        same(x.amax([-2_isize], false)?, x.amax(&[1_usize][..], false)?)?;
        same(x.narrow(-1, 1..3)?, x.narrow(2, 1..3)?)?;
        same(x.slice(-3, 1, -1, 2)?, x.slice(0, 1, -1, 2)?)?;
        same(x.select(-2, 2)?, x.select(1, 2)?)?;
        same(x.flip(-1)?, x.flip(2)?)?;
        same(x.flip([0, -1])?, x.flip(2)?.flip(0)?)?;
        same(x.flip(..)?, x.flip([2, 1, 0])?)?;
        same(x.roll(-1, 1)?, x.roll(2, 1)?)?;
        same(x.repeat(-3, 2)?, x.repeat(0, 2)?)?;
        same(x.transpose(0, -1)?, x.transpose(0, 2)?)?;
        same(x.permute([-1, 0, 1])?, x.permute([2, 0, 1])?)?;
        same(x.unsqueeze(-1)?, x.reshape([2, 3, 4, 1])?)?;
        same(x.unsqueeze(0)?.squeeze(-4)?, x.clone())?;
        same(
            ShardTensor::cat(&[&x, &x], -1)?,
            ShardTensor::cat(&[&x, &x], 2)?,
        )?;
        same(
            ShardTensor::stack(&[&x, &x], -1)?,
            ShardTensor::stack(&[&x, &x], 3)?,
        )?;
        assert_eq!(x.split([1, 3], -1)?[1].shape(), [2, 3, 3]);
        let widths =
            |parts: Vec<ShardTensor>| parts.iter().map(|part| part.shape()[2]).collect::<Vec<_>>();
        assert_eq!(widths(x.split(3, 2)?), [3, 1]);
        assert_eq!(widths(x.split(2, -1)?), [2, 2]);
        assert_eq!(widths(x.split(usize::MAX, 2)?), [4]);
        assert_eq!(widths(x.narrow(2, ..0)?.split(3, 2)?), [0]);
        same(mesh.eye(3, replicate())?, mesh.eye([3, 3], shard(0))?)?;
        Ok([
            x.sum(-4, false),
            x.sum(3, false),
            x.flip(-4),
            x.flip([1, -2]),
            x.unsqueeze(-5),
            x.split(2, 3).map(|mut parts| parts.remove(0)),
            mesh.eye((), replicate()),
        ]
        .map(|e| e.unwrap_err().to_string()))
    });
    for text in &checked.unwrap()[1] {
        assert!(text.contains("dim"), "{text}");
    }
}

#[test]
fn operators_take_numbers_of_any_type_and_assign() {
    let checked = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.from_fn(3, shard(0), |i| i[0] as f64 + 1.0)?;
        let before = x.clone();
        let mut y = x.clone();
        y += 1;
        y *= 2_f32;
        y -= &x;
        y /= 0.5;
        // ((x + 1) 2 - x) / 0.5 = 2 x + 4
        assert_eq!(read(&y)?, [6.0, 8.0, 10.0]);
        assert_eq!(read(&before)?, [1.0, 2.0, 3.0]);
        assert_eq!(read(&(6 / &x - 1_f32))?, [5.0, 2.0, 1.0]);
        assert_eq!(read(&(1 - &x))?, [0.0, -1.0, -2.0]);
        // On the tape, as any op.
        let w = x.requires_grad()?;
        let mut loss = w.square()?;
        loss += &w;
        let slope = loss
            .sum_all()?
            .backward()?
            .get(&w)?
            .expect("it depends on w");
        assert_eq!(read(&slope)?, [3.0, 5.0, 7.0]);
        Ok(())
    });
    checked.unwrap();
    let lost = launch(1, |ctx| {
        let mut w = ctx.mesh_of(1)?.ones([2], replicate())?.requires_grad()?;
        w += 1.0;
        Ok(())
    });
    assert!(lost.unwrap_err().to_string().contains("`set`"));
}

/// Moves between meshes have gradients, under any layouts on either side.
#[test]
fn a_tensor_goes_to_another_mesh_and_its_gradient_comes_back() {
    let checked = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let (line, grid) = (ctx.mesh_of(3)?, ctx.mesh_of([2, 2])?);
        let scale = grid.from_fn([5, 2], [shard(0), shard(1)], |i| (i[0] + 1) as f64)?;
        let layouts: [Placements; 3] = [
            shard(0).sizes([4, 0, 1]).into(),
            shard(1).into(),
            replicate().into(),
        ];
        for placements in layouts {
            let x = line
                .from_fn([5, 2], placements, |i| (2 * i[0] + i[1]) as f64)?
                .requires_grad()?;
            let moved = x.to_mesh(&grid, (Placement::Replicate, shard(0)))?;
            assert_eq!(moved.layout().to_string(), "R S(0)");
            let slope = moved
                .mul(&scale)?
                .square()?
                .sum_all()?
                .backward()?
                .get(&x)?
                .expect("it depends on x");
            assert_eq!(slope.layout(), x.layout());
            let found = slope
                .to_array_on::<f64>(3)?
                .map(|a| a.into_raw_vec_and_offset().0);
            let expected = (0..10)
                .map(|i| f64::from(2 * i * (i / 2 + 1) * (i / 2 + 1)))
                .collect::<Vec<_>>();
            assert_eq!(found, (ctx.rank() == 3).then_some(expected));
            // And twice.
            let loss = x
                .to_mesh(&grid, [replicate(), replicate()])?
                .square()?
                .square()?
                .sum_all()?;
            let slope = loss
                .grad(&[&x], true)?
                .swap_remove(0)
                .expect("it depends on x");
            let curve = slope
                .sum_all()?
                .grad(&[&x], false)?
                .swap_remove(0)
                .expect("it depends on x");
            let found = curve
                .to_array_on::<f64>(0)?
                .map(|a| a.into_raw_vec_and_offset().0);
            let expected = (0..10).map(|i| f64::from(12 * i * i)).collect::<Vec<_>>();
            assert_eq!(found, (ctx.rank() == 0).then_some(expected));
        }
        // A sum over ranks is taken before it leaves, and on the way to one rank.
        let sum = line.ones([6], shard(0))?.sum([0], true)?;
        assert_eq!(sum.to_mesh(&grid, [replicate(), replicate()])?.item()?, 6.0);
        assert_eq!(
            sum.to_array_on::<f64>(1)?.map(|a| a[[0]]),
            (ctx.rank() == 1).then_some(6.0)
        );
        Ok(sum.to_array_on::<f64>(4).unwrap_err().to_string())
    });
    let texts = checked.unwrap();
    assert!(
        texts[0].contains('4') && texts.iter().all(|t| t == &texts[0]),
        "{texts:?}"
    );
}

/// Terms of a sum are added in pieces on the way to one rank: no other rank ever holds the whole.
#[test]
fn a_sum_is_taken_on_the_way_to_one_rank() {
    let (n, ranks) = (1 << 12, 4);
    let checked = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
        let x = ctx.mesh_of(ranks)?.ones([8, n], shard(0))?;
        let terms = x.sum(0, false)?;
        terms.expect_layout(partial(ReduceOp::Sum))?;
        let memory = || ctx.device().memory();
        let live = memory().live;
        ctx.device().reset_peak();
        let whole = terms.to_array_on::<f64>(2)?;
        assert!(ctx.rank() == 2 || memory().peak - live < 8 * n);
        let scalar = x.sum_all()?.to_array_on::<f64>(1)?;
        Ok((whole.map(|a| a.sum()), scalar.map(|a| a.sum())))
    });
    let sum = 8.0 * n as f64;
    let [none, one, two] = [(None, None), (None, Some(sum)), (Some(sum), None)];
    assert_eq!(checked.unwrap(), [none, one, two, none]);
}

#[test]
fn memory_is_used_again_where_a_tensor_is_given_up() {
    let checked = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.from_fn([4, 6], shard(1), |i| (6 * i[0] + i[1]) as f64)?;
        let kept = x.clone();
        let moved = x.redistribute_into(shard(0))?;
        assert_eq!(
            (moved.layout().to_string(), read(&moved)?),
            ("S(0)".to_owned(), read(&kept)?)
        );
        // On the tape it goes as any move.
        let w = kept.requires_grad()?;
        let slope = (w.clone() * 3)
            .redistribute_into(shard(0))?
            .sum_all()?
            .backward()?;
        assert_eq!(read(&slope.get(&w)?.expect("it depends on w"))?, [3.0; 24]);
        let terms = moved
            .redistribute_into(shard_tensor::partial(ReduceOp::Sum))
            .unwrap_err();
        Ok(terms.to_string())
    });
    assert!(checked.unwrap()[0].contains("partial"));
}

#[test]
fn gradients_are_checked_and_recomputed() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.randn([4, 2], shard(0))?;
        let w = mesh.randn([2], replicate())?.requires_grad()?;
        let held = w.clone();
        let layer = move |x: &[ShardTensor]| Ok(vec![x[0].mul(&held)?.tanh()?]);
        let report = ctx.gradcheck(&layer, &[&x], GradCheck::default())?;
        assert!(report.compared > 0 && report.max_error < 1e-6);
        let wrong = |x: &[ShardTensor]| Ok(vec![x[0].detach().add(&x[0].tanh()?)?]);
        let error = ctx
            .gradcheck(wrong, &[&x], GradCheck::default())
            .unwrap_err();
        let slope = |y: &ShardTensor| {
            read(
                &y.square()?
                    .sum_all()?
                    .backward()?
                    .get(&w)?
                    .expect("it depends on w"),
            )
        };
        let plain = slope(&layer(std::slice::from_ref(&x))?[0])?;
        let again = slope(&ctx.recompute(&[&x], layer.clone())?[0])?;
        for (a, b) in plain.iter().zip(&again) {
            assert!(
                (a - b).abs() < 1e-12 * a.abs().max(1.0),
                "{plain:?} {again:?}"
            );
        }
        // A parameter that was set in between would be another function.
        let y = ctx
            .recompute1(&x, move |x| Ok(layer(std::slice::from_ref(x))?.remove(0)))?
            .sum_all()?;
        Sgd::new(vec![("w".to_owned(), w.clone())], 0.1)?.step(&w.sum_all()?.backward()?)?;
        Ok((error.to_string(), y.backward().unwrap_err().to_string()))
    });
    for (differs, replaced) in checked.unwrap() {
        assert!(differs.contains("finite differences"), "{differs}");
        assert!(replaced.contains("replaced"), "{replaced}");
    }
}

/// What a function's results depend on beside its inputs is the same when it runs again, and afterwards as if it had run once.
#[test]
fn what_runs_again_draws_the_same_numbers_and_leaves_nothing_behind() {
    let checked = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([16], shard(0))?.requires_grad()?;
        let (buffer, dropout) = (
            nn::Buffer::new(&mesh.zeros([], replicate())?),
            nn::Dropout::new(0.5),
        );
        let held = buffer.clone();
        let inner = ctx.clone();
        let twice = move |x: &[ShardTensor]| {
            held.set(&held.get().add_scalar(1.0)?)?;
            // One within another runs again when that does, and then once more.
            let (y, layer) = (x[0].dropout(0.5)?, dropout.clone());
            inner.recompute(&[&y], move |y| Ok(vec![layer.forward(&y[0])?]))
        };
        let y = ctx.recompute(&[&x], twice)?.remove(0);
        let next = mesh.randn([5], shard(0))?;
        let slope = y.sum_all()?.backward()?.get(&x)?.expect("y depends on x");
        let after = mesh.randn([5], shard(0))?;
        Ok((
            read(&y)?,
            read(&slope)?,
            read(&next)?,
            read(&after)?,
            buffer.get().item()?,
        ))
    });
    // The numbers that a program without it draws.
    let plain = Launch::new(1).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(1)?;
        mesh.ones([16], shard(0))?.dropout(0.5)?.dropout(0.5)?;
        let drawn = [mesh.randn([5], shard(0))?, mesh.randn([5], shard(0))?];
        Ok([read(&drawn[0])?, read(&drawn[1])?])
    });
    let [next, after] = plain.unwrap().remove(0);
    for (y, slope, then, later, set) in checked.unwrap() {
        assert!(y.contains(&0.0) && y.contains(&4.0), "{y:?}");
        assert_eq!(y, slope);
        assert_eq!((&then, &later), (&next, &after));
        assert_eq!(set, 1.0);
    }
}

#[test]
fn what_runs_again_is_pinned_as_it_was() {
    launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let w = mesh.ones([128, 128], shard(0))?.requires_grad()?;
        let x = mesh.ones([64, 128], shard(0))?.requires_grad()?;
        let held = w.clone();
        let layer = move |x: &[ShardTensor]| Ok(vec![x[0].linear(&held, None)?]);
        let y = ctx.pinned(shard(0), || ctx.recompute(&[&x], layer))?;
        y[0].expect_layout(shard(0))?;
        y[0].sum_all()?.backward()?;
        // Outside it is not.
        x.linear(&w, None)?.expect_layout(shard(1)).map(drop)
    })
    .unwrap();
}

/// Terms of a sum that an op takes first: its result lies alike on the tape and off it, and so in both runs.
#[test]
fn terms_that_are_summed_first_leave_a_result_where_they_do_off_the_tape() {
    launch(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let weight = mesh.randn([1, 4, 2, 2], replicate())?;
        let stride = ConvTransposeOptions::new().stride(2);
        let layer = move |x: &[ShardTensor]| {
            let y = x[0].conv_transpose(&weight, None, stride.clone())?;
            Ok(vec![y])
        };
        let source = mesh.randn([3, 3, 1, 2, 2], [shard(0), shard(3)])?;
        let source = source.requires_grad()?;
        let terms = source.sum([0], false)?;
        let tracked = layer(std::slice::from_ref(&terms))?;
        layer(&[terms.detach()])?[0].expect_layout(tracked[0].layout())?;
        let again = ctx.recompute(&[&terms], layer)?;
        let [plain, again] = [&tracked[0], &again[0]].map(|y| -> Result<_> {
            let slope = y.square()?.sum_all()?.backward()?.get(&source)?;
            slope.expect("y depends on it").to_array::<f32>()
        });
        assert_eq!(plain?, again?);
        Ok(())
    })
    .unwrap();
}

/// The value of a sum that was not taken yet is the sum: as a parameter, it has the gradient of one.
#[test]
fn a_sum_that_was_not_taken_becomes_a_parameter() {
    let trained = launch(3, |ctx| {
        let x = ctx.mesh_of(3)?.arange(6, shard(0))?;
        let w = x.sum_all()?.requires_grad()?;
        let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], 0.25)?;
        sgd.step(&w.square()?.backward()?)?;
        w.item()
    });
    assert_eq!(trained.unwrap(), [7.5; 3]);
}

#[test]
fn a_parameter_is_set_by_the_call_that_its_error_names() {
    let values = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.zeros(5, shard(0))?.requires_grad()?;
        let value = mesh.with_dtype(DType::F64).arange(5, replicate())?;
        let refused = w.set(&value).unwrap_err().to_string();
        let fix = "w.set(&value.to(w.dtype())?.redistribute(w.layout())?)";
        assert!(refused.contains(fix), "{refused}");
        w.set(&value.to(w.dtype())?.redistribute(w.layout())?)?;
        w.to_array::<f32>()
    });
    let expected = ndarray::arr1(&[0.0_f32, 1.0, 2.0, 3.0, 4.0]).into_dyn();
    assert_eq!(values.unwrap(), [expected.clone(), expected]);
}

#[test]
fn one_axis_is_changed_and_the_others_stay() {
    let done = launch(8, |ctx| {
        let mesh = ctx.mesh([("a", 2), ("b", 2), ("c", 2)])?;
        let whole = mesh.arange(11, Placements::replicated())?;
        let by_a = whole.redistribute([("a", shard(0).sizes([4, 7]))])?;
        let by_both = by_a.redistribute_axis("c", shard(0).even())?;
        let back = by_both.redistribute_axis("c", replicate())?;
        assert_eq!(back.layout(), by_a.layout());
        assert_eq!(by_both.to_array::<f32>()?, whole.to_array::<f32>()?);
        // The parts along `a` are what `c` divides: 1 and 3 of 4, 2 and 5 of 7. Without `a` they are 3 and 8.
        let leaning = by_a.redistribute_axis("c", shard(0).weights([1.0, 3.0]))?;
        let outer = leaning.redistribute_axis("a", replicate())?;
        assert_eq!(outer.to_array::<f32>()?, whole.to_array::<f32>()?);
        let columns = leaning.reshape([11, 1])?.redistribute_axis("a", shard(1))?;
        let laid = [&leaning, &outer, &columns].map(|x| x.layout().to_string());
        let expected = ["S(0)[1,3,2,5] R S(0)", "R R S(0)[3,8]", "S(1) R S(0)[3,8]"];
        assert_eq!(laid, expected);
        // Of three axes the one in the middle, in parts that are several intervals.
        let nested = [("a", shard(0)), ("b", shard(0)), ("c", shard(0).striped())];
        let striped = mesh.arange(16, nested)?;
        let ends = striped.redistribute_axis("b", replicate())?;
        assert_eq!(ends.to_array::<f32>()?, striped.to_array::<f32>()?);
        let held = |x: &ShardTensor| {
            x.layout()
                .sharding(0)
                .map(|s| s.partition.part(0).indices().collect())
        };
        assert_eq!(
            [held(&striped), held(&ends)],
            [Some(vec![0, 2]), Some(vec![0, 2, 4, 6])]
        );
        // Terms along one axis become parts; the sum along the other is taken.
        let ones = mesh.ones([8, 3], [("a", shard(0)), ("b", shard(0))])?;
        let terms = ones.sum(0, false)?;
        let left = terms.redistribute_axis("a", shard(0))?;
        assert_eq!(
            left.to_array::<f32>()?,
            ndarray::arr1(&[8.0_f32; 3]).into_dyn()
        );
        let unknown = whole.redistribute_axis("d", shard(0)).unwrap_err();
        Ok((
            by_both.layout().to_string(),
            left.layout().to_string(),
            unknown.to_string(),
        ))
    });
    let (by_both, left, unknown) = done.unwrap().remove(0);
    assert_eq!(by_both, "S(0)[2,2,4,3] R S(0)");
    assert_eq!(left, "S(0) R R");
    assert!(
        unknown.contains("\"d\"") && unknown.contains("doors.rs"),
        "{unknown}"
    );
}

/// Why it moved, and where it should lie.
#[test]
fn an_explanation_has_every_op_and_what_it_moved() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4, 6], shard(1))?;
        let w = mesh.ones([6, 3], replicate())?.requires_grad()?;
        let (loss, outer) = ctx.explain(|| {
            let (y, inner) = ctx.explain(|| x.matmul(&w))?;
            assert_eq!(inner.steps.len(), 1);
            y.relu()?.sum_all()
        })?;
        let ops: Vec<_> = outer.steps.iter().map(|s| s.op).collect();
        assert_eq!(ops, ["matmul", "redistribute", "relu", "sum"]);
        let moved: Vec<_> = outer.moves().map(|s| s.op).collect();
        // The sum that the derivative will read, too.
        assert_eq!(moved, ["redistribute"]);
        let (_, back) = ctx.explain(|| loss.backward())?;
        assert!(back.steps.iter().any(|s| s.op.contains("matmul")), "{back}");
        // Nobody asks any more: nothing is told.
        x.relu()?;
        let (_, silent) = ctx.explain(|| Ok(()))?;
        assert!(silent.steps.is_empty());
        x.expect_layout(shard(1))?.expect_layout(x.layout())?;
        let error = x.expect_layout(shard(0)).unwrap_err();
        let failed = ctx.explain(|| x.matmul(&x)).unwrap_err();
        assert!(failed.to_string().contains("matmul"));
        Ok((outer.to_string(), error.to_string()))
    });
    let (outer, error) = &told.unwrap()[0];
    assert!(
        outer.contains("f32 [4, 6] S(1), f32 [6, 3] R -> f32 [4, 3] P(sum)"),
        "{outer}"
    );
    assert!(outer.contains("relu") && outer.contains("sent"), "{outer}");
    assert!(error.contains("S(0)") && error.contains("S(1)"), "{error}");
}

#[test]
fn a_pinned_result_lies_as_it_should_and_is_the_same() {
    launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.rand([8, 16], shard(0))?.requires_grad()?;
        let w = mesh.rand([16, 16], shard(0))?.requires_grad()?;
        let free = x.linear(&w, None)?;
        free.expect_layout(shard(1))?;
        let expected = free.to_array::<f32>()?;
        let sizes = [3, 0, 4, 1];
        for (pin, other) in [
            (Placements::from(shard(0)), shard(0).into()),
            (replicate().into(), replicate().into()),
            (
                shard(0).sizes(sizes).into(),
                Placements::from(shard(0).sizes(sizes)),
            ),
        ] {
            let y = ctx.pinned(pin, || x.linear(&w, None))?;
            y.expect_layout(other)?;
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(y.to_array::<f32>()?.iter().zip(&expected).all(close));
            let gradients = y.sum_all()?.backward()?;
            gradients.get(&x)?.unwrap().expect_layout(shard(0))?;
        }
        // Nothing stays pinned, after an error neither.
        x.linear(&w, None)?.expect_layout(shard(1))?;
        assert!(
            ctx.pinned(shard(0), || Err::<(), _>(Error::custom("no")))
                .is_err()
        );
        x.linear(&w, None)?.expect_layout(shard(1))?;
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_pin_that_no_strategy_fulfils_is_an_error_that_says_what_is_possible() {
    let lost = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4, 6], shard(0))?;
        let sum = ctx.pinned(partial(ReduceOp::Max), || x.relu()).unwrap_err();
        assert_eq!(sum.class(), ErrorClass::Uniform);
        let text = sum.to_string();
        assert!(
            text.contains("pinned to P(max), and can be S(0) or R"),
            "{text}"
        );
        // A dim the result does not have.
        let none = ctx.pinned(shard(1), || x.sum(1, false)).unwrap_err();
        assert_eq!(none.class(), ErrorClass::Uniform);
        // And the ranks go on together.
        x.sum_all()?.item()
    });
    assert_eq!(lost.unwrap(), [24.0, 24.0]);
}

#[test]
fn ranks_that_pin_differently_are_found() {
    let lost = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.ones([4, 6], shard(0))?;
        let pin = [replicate(), shard(0)][ctx.rank()].clone();
        let y = ctx.pinned(pin, || x.relu())?;
        y.sum_all()?.item()
    });
    assert!(lost.is_err());
}

/// A pin to where a result would lie anyway changes no layout: what the ranks were asked for is compared all the same.
#[test]
fn a_pin_that_changes_nothing_is_compared_too() {
    let lost = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.ones([4, 6], shard(0))?;
        let relu = || x.relu();
        let y = match ctx.rank() {
            0 => ctx.pinned(shard(0), relu)?,
            _ => relu()?,
        };
        y.expect_layout(shard(0))?;
        y.sum_all()?.item()
    });
    let error = lost.unwrap_err();
    assert!(
        matches!(error.comm(), Some(CommError::Mismatch(_))),
        "{error}"
    );
}

#[test]
fn an_explanation_has_what_was_considered() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, w) = (
            mesh.ones([4, 6], shard(1))?,
            mesh.ones([6, 3], replicate())?,
        );
        let (_, why) = ctx.explain(|| x.matmul(&w))?;
        let step = &why.steps[0];
        let taken: Vec<_> = step.alternatives.iter().filter(|a| a.taken).collect();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].outputs[0].to_string(), "P(sum)");
        // The terms of the result are summed later; to gather x costs as much, with nothing shared.
        assert_eq!(taken[0].elements, 12);
        Ok(why.to_string())
    })
    .unwrap();
    assert_eq!(told[0], told[1]);
    assert!(
        told[0].contains("taken: P(sum) for 12 elements"),
        "{}",
        told[0]
    );
}

//! Numbers at the edges: what is not finite, not exact, or not a number of the type.

use shard_tensor::{
    DType, EdgeMap, Error, ErrorClass, Launch, Pool, Result, ShardTensor, launch, replicate, shard,
};

/// The same program on one rank and on two, where each rank holds one of two elements.
fn on_both<T: Send + PartialEq + std::fmt::Debug>(
    dtype: DType,
    program: impl Fn(&ShardTensor) -> Result<T> + Sync,
    elements: [f64; 2],
) -> [T; 2] {
    [1, 2].map(|ranks| {
        let out = Launch::new(ranks).dtype(dtype).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            program(&mesh.from_fn(2, [shard(0)], |i| elements[i[0]])?)
        });
        out.unwrap().swap_remove(0)
    })
}

/// Terms of a sum over zero, or times infinity, are of either sign; their sum is not.
#[test]
fn a_sum_meets_zero_and_infinity_as_a_whole() {
    let zero = |x: &ShardTensor| x.mesh().zeros((), [replicate()]);
    let tiny = 1e-60; // zero in f32
    type Case<'a> = (
        &'a str,
        Box<dyn Fn(&ShardTensor) -> Result<f64> + Sync + 'a>,
    );
    let cases: [Case<'_>; 6] = [
        (
            "sum / 0",
            Box::new(|x| x.sum_all()?.div_scalar(0.0)?.item()),
        ),
        (
            "sum / tiny",
            Box::new(|x| x.sum_all()?.div_scalar(tiny)?.item()),
        ),
        (
            "sum * inf",
            Box::new(|x| x.sum_all()?.mul_scalar(f64::INFINITY)?.item()),
        ),
        (
            "sum * huge",
            Box::new(|x| x.sum_all()?.mul_scalar(1e60)?.item()),
        ),
        (
            "sum / tensor",
            Box::new(|x| x.sum_all()?.div(&zero(x)?)?.item()),
        ),
        ("operator", Box::new(|x| (&x.sum_all()? / 0.0).item())),
    ];
    for (name, case) in &cases {
        let found = on_both(DType::F32, |x| case(x), [3.0, -1.0]);
        assert_eq!(found, [f64::INFINITY; 2], "{name}");
    }
    // A sum over a number stays a sum: it costs nothing before it is read.
    let lazy = on_both(
        DType::F32,
        |x| Ok(x.sum_all()?.div_scalar(4.0)?.layout().to_string()),
        [3.0, -1.0],
    );
    assert_eq!(lazy[1], "P(sum)");
}

#[test]
fn the_gradient_of_a_quotient_forms_no_square() {
    for (a, b, slope) in [(1e30, 1e20, -1e-10), (0.0, 1e-25, 0.0)] {
        let slopes = on_both(
            DType::F32,
            |x| {
                let b = x.mesh().full(2, b, [shard(0)])?.requires_grad()?;
                let quotient = x.div(&b)?.sum_all()?;
                let slope = quotient.backward()?.get(&b)?.expect("it depends on b");
                Ok(slope.to_array::<f32>()?[0])
            },
            [a, a],
        );
        for got in slopes {
            assert!(
                (f64::from(got) - slope).abs() <= 1e-6 * slope.abs(),
                "{got} for {slope}"
            );
        }
    }
}

/// What PyTorch gives: d/da a^b and d/db a^b at a = 0.
#[test]
fn powers_of_zero_have_gradients() {
    let cases = [
        (0.0, 2.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0),
        (0.0, 1.0, 1.0, 0.0),
        (3.0, 0.0, 0.0, 3f64.ln()),
        (2.0, 3.0, 12.0, 8.0 * 2f64.ln()),
        (0.0, -1.0, f64::NEG_INFINITY, f64::NEG_INFINITY),
    ];
    for (base, exponent, by_base, by_exponent) in cases {
        let found = on_both(
            DType::F64,
            |x| {
                let a = x.requires_grad()?;
                let b = x.mesh().full(2, exponent, [shard(0)])?.requires_grad()?;
                let slopes = a.pow(&b)?.sum_all()?.backward()?;
                let read =
                    |p: &ShardTensor| Ok::<_, Error>(slopes.get(p)?.unwrap().to_array::<f64>()?[1]);
                Ok((read(&a)?, read(&b)?))
            },
            [base, base],
        );
        assert_eq!(
            found,
            [(by_base, by_exponent); 2],
            "{base} to the power {exponent}"
        );
    }
}

#[test]
fn random_numbers_stay_below_one_in_every_type() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let greatest = Launch::new(2).dtype(dtype).run(|ctx| {
            let drawn = ctx
                .mesh_of(2)?
                .rand([1 << 17], [shard(0)])?
                .to(DType::F64)?;
            let (most, least) = (
                drawn.amax([0], false)?.item()?,
                drawn.amin([0], false)?.item()?,
            );
            let mean = drawn.mean_all()?.item()?;
            assert!((mean - 0.5).abs() < 0.01 && least >= 0.0, "{dtype}: {mean}");
            Ok(most)
        });
        let greatest = greatest.unwrap()[0];
        assert!((0.99..1.0).contains(&greatest), "{dtype}: {greatest}");
    }
}

#[test]
fn the_mean_of_a_large_window_is_as_exact_as_a_mean() {
    let means = launch(1, |ctx| {
        let n = 2048;
        let x = ctx.mesh_of(1)?.full([1, 1, n, n], 0.1, [replicate()])?;
        let (pooled, mean) = (x.avg_pool(Pool::new([n, n]))?, x.mean_all()?);
        Ok((pooled.item()?, mean.item()?))
    });
    let (pooled, mean) = means.unwrap()[0];
    assert!(
        (pooled - 0.1).abs() < 1e-7 && (mean - 0.1).abs() < 1e-7,
        "{pooled} {mean}"
    );
}

#[test]
fn the_greatest_zero_is_positive_wherever_it_lies() {
    for elements in [[0.0, -0.0], [-0.0, 0.0]] {
        for dtype in [DType::F64, DType::F32] {
            let found = on_both(
                dtype,
                |x| {
                    let signs = |t: ShardTensor| Ok::<_, Error>(t.item()?.is_sign_positive());
                    Ok((signs(x.amax([0], false)?)?, signs(x.amin([0], false)?)?))
                },
                elements,
            );
            assert_eq!(found, [(true, false); 2], "{elements:?} {dtype}");
        }
    }
}

/// What a type cannot hold is refused, alike on all ranks.
#[test]
fn nothing_is_converted_in_silence() {
    let refused = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (bytes, longs) = (mesh.with_dtype(DType::U8), mesh.with_dtype(DType::I64));
        let truths = mesh.with_dtype(DType::Bool);
        let ones = longs.ones([4], [shard(0)])?;
        let calls = [
            bytes.full([4], 300.0, [shard(0)]),
            bytes.full([4], -1.0, [shard(0)]),
            longs.full([4], 0.5, [shard(0)]),
            longs.full([4], f64::NAN, [shard(0)]),
            truths.full([4], 2.0, [shard(0)]),
            longs.rand([4], [shard(0)]),
            longs.randn([4], [shard(0)]),
            ones.pad(&[(1, 1)], EdgeMap::Zeros, 0.5),
            mesh.uniform([4], 5.0..2.0, [shard(0)]),
            mesh.uniform([4], 0.0..f64::NAN, [shard(0)]),
            bytes.arange(300, [shard(0)]),
            bytes.uniform([4], 0.0..257.0, [shard(0)]),
        ];
        Ok(calls.map(|call| {
            call.map_err(|e| (e.class(), e.to_string()))
                .map(|t| t.to_string())
        }))
    });
    let refused = refused.unwrap();
    assert_eq!(refused[0], refused[1]);
    for (i, call) in refused[0].iter().enumerate() {
        assert!(call.is_err(), "call {i} gives {call:?}");
    }
    // Integers in a range that are drawn as they were, and numbers that fit, are fine.
    let fine = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (bytes, longs) = (mesh.with_dtype(DType::U8), mesh.with_dtype(DType::I64));
        let dice = longs
            .uniform([64], 1.0..7.0, [shard(0)])?
            .to_array::<i64>()?;
        assert!(dice.iter().all(|d| (1..7).contains(d)));
        let padded = longs
            .ones([2], [shard(0)])?
            .pad(&[(1, 0)], EdgeMap::Zeros, -3.0)?;
        Ok((
            bytes.full((), 255.0, [replicate()])?.item()?,
            padded.to_array::<i64>()?.into_raw_vec_and_offset().0,
        ))
    });
    assert_eq!(fine.unwrap()[0], (255.0, vec![-3, 1, 1]));
}

#[test]
fn a_number_too_long_for_item_is_refused() {
    let read = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let number = |n: i64| {
            let x = mesh.distribute(&ndarray::arr1(&[n]), [replicate()])?;
            Ok::<_, Error>(x.item().map_err(|e| (e.class(), e.to_string())))
        };
        Ok([
            number(1 << 53)?,
            number((1 << 53) + 1)?,
            number(i64::MAX)?,
            number(-(1 << 60))?,
        ])
    });
    let read = read.unwrap().swap_remove(1);
    assert_eq!(read[0], Ok(2f64.powi(53)));
    assert_eq!(read[3], Ok(-(2f64.powi(60))));
    for exact in [&read[1], &read[2]] {
        let (class, text) = exact.as_ref().unwrap_err();
        assert!(
            *class == ErrorClass::Uniform && text.contains("to_array::<i64>"),
            "{text}"
        );
    }
}

/// JSON has no NaN, and takes `Some(())` for `None`.
#[test]
fn values_that_json_changes_are_not_gathered() {
    let texts = launch(2, |ctx| {
        let nan = (ctx.rank() == 1).then_some(f64::NAN);
        let errors = [
            ctx.gather(&nan).map(|_| ()),
            ctx.gather(&Some(())).map(|_| ()),
            ctx.gather(&f64::INFINITY).map(|_| ()),
        ];
        let kept: Vec<Option<f64>> = ctx.gather(&Some(0.1 + ctx.rank() as f64))?;
        assert_eq!(kept, [Some(0.1), Some(1.1)]);
        Ok(errors.map(|e| e.map_err(|e| (e.class(), e.rank()))))
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0][0], Err((ErrorClass::Agreed, Some(1))));
    assert_eq!(texts[0][1], Err((ErrorClass::Agreed, Some(0))));
    assert_eq!(texts[0][2], Err((ErrorClass::Agreed, Some(0))));
}

/// Points that are not finite come last, by index, and none is taken twice.
#[test]
fn points_at_infinity_are_taken_last() {
    let rows = [0.0, 1.0, f64::INFINITY, 4.0, f64::NEG_INFINITY];
    for (ranks, placement) in [(1, shard(0)), (2, shard(0)), (3, shard(0).sizes([0, 4, 1]))] {
        let taken = Launch::new(ranks).run(|ctx| {
            let points = ctx
                .mesh_of(ranks)?
                .from_fn([5, 1], [placement.clone()], |i| rows[i[0]])?;
            points.farthest_points(5, 0)?.to_array::<i64>()
        });
        assert_eq!(
            taken.unwrap()[0].as_slice(),
            Some(&[0, 3, 1, 2, 4][..]),
            "{ranks} ranks"
        );
    }
}

//! Numbers at the edges: what is not finite, not exact, or not a number of the type.

use crate::common::numbers;
use shard_tensor::{
    DType, EdgeMap, Error, ErrorClass, Launch, Placements, PoolOptions, Result, ShardTensor,
    launch, replicate, shard,
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
        let (pooled, mean) = (x.avg_pool(PoolOptions::new([n, n]))?, x.mean_all()?);
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

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Nine numbers, and where they lie: on one rank, in parts of which one is empty, and on every rank.
const LAYOUTS: [(usize, fn() -> Placements); 3] = [
    (1, || shard(0).into()),
    (3, || shard(0).sizes([4, 0, 5]).into()),
    (2, || replicate().into()),
];

/// Numbers that have every bit alike, zeros with their signs too; NaN is NaN.
#[track_caller]
fn assert_alike(found: &[f64], exact: &[f64], what: &str) {
    let bits = |x: &[f64]| -> Vec<u64> {
        let one = |x: &f64| {
            if x.is_nan() {
                NAN.to_bits()
            } else {
                x.to_bits()
            }
        };
        x.iter().map(one).collect()
    };
    assert_eq!(bits(found), bits(exact), "{what}: {found:?}, not {exact:?}");
}

type OfTwo = fn(&ShardTensor, &ShardTensor) -> Result<ShardTensor>;

/// What an op gives of two tensors, and the gradients of its sum, under all layouts and in all types.
#[track_caller]
fn check_pair(name: &str, op: OfTwo, [a, b]: [&[f64; 9]; 2], exact: [&[f64]; 3]) {
    for ((ranks, placement), dtype) in LAYOUTS
        .into_iter()
        .flat_map(|on| [DType::F32, DType::F64, DType::BF16, DType::F16].map(|dtype| (on, dtype)))
    {
        let found = Launch::new(ranks).dtype(dtype).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.from_fn(9, placement(), |i| a[i[0]])?.requires_grad()?;
            // Elsewhere than the other operand.
            let y = mesh.from_fn(9, replicate(), |i| b[i[0]])?.requires_grad()?;
            let z = op(&x, &y)?;
            let gradients = z.sum_all()?.backward()?;
            let slope = |of: &ShardTensor| match gradients.get(of)? {
                // Whatever the sign of zero.
                Some(slope) => numbers(&slope.add_scalar(0.0)?),
                None => Ok(vec![0.0; 9]),
            };
            Ok([numbers(&z)?, slope(&x)?, slope(&y)?])
        });
        for found in found.unwrap_or_else(|e| panic!("{name} on {ranks} ranks: {e}")) {
            for (found, exact) in found.iter().zip(exact) {
                assert_alike(found, exact, &format!("{name} of {dtype} on {ranks} ranks"));
            }
        }
    }
}

/// PyTorch 2's values and gradients, but for the gradient of `copysign` at infinity (there NaN), of two NaN in `fmax` and `fmin` (there the
/// first one's alone), and the sign of a zero among two, which there is the first one's.
#[test]
fn pairs_at_the_edges_are_pytorchs() {
    let a = [1.0, -1.0, 0.0, -0.0, NAN, INF, -INF, 2.0, NAN];
    let b = [2.0, -1.0, -0.0, 0.0, 1.0, NAN, 2.0, -0.0, NAN];
    let ab = [&a, &b];
    check_pair(
        "fmax",
        ShardTensor::fmax,
        ab,
        [
            &[2.0, -1.0, 0.0, 0.0, 1.0, INF, 2.0, 2.0, NAN],
            &[0.0, 0.5, 0.5, 0.5, 0.0, 1.0, 0.0, 1.0, 1.0],
            &[1.0, 0.5, 0.5, 0.5, 1.0, 0.0, 1.0, 0.0, 1.0],
        ],
    );
    check_pair(
        "fmin",
        ShardTensor::fmin,
        ab,
        [
            &[1.0, -1.0, -0.0, -0.0, 1.0, INF, -INF, -0.0, NAN],
            &[1.0, 0.5, 0.5, 0.5, 0.0, 1.0, 1.0, 0.0, 1.0],
            &[0.0, 0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 1.0, 1.0],
        ],
    );
    check_pair(
        "maximum",
        ShardTensor::maximum,
        ab,
        [
            &[2.0, -1.0, 0.0, 0.0, NAN, NAN, 2.0, 2.0, NAN],
            &[0.0, 0.5, 0.5, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0],
            &[1.0, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 0.0, 1.0],
        ],
    );
    let sized = [1.0, -1.0, 0.0, -0.0, 7.0, INF, -INF, 2.0, -3.0];
    check_pair(
        "copysign",
        ShardTensor::copysign,
        [&sized, &b.map(|b| if b.is_nan() { 1.0 } else { b })],
        [
            &[1.0, -1.0, -0.0, 0.0, 7.0, INF, INF, -2.0, 3.0],
            &[1.0, 1.0, 0.0, 0.0, 1.0, 1.0, -1.0, -1.0, -1.0],
            &[0.0; 9],
        ],
    );
    check_pair(
        "heaviside",
        ShardTensor::heaviside,
        ab,
        [
            &[1.0, 0.0, -0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0],
            &[0.0; 9],
            &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ],
    );
}

/// PyTorch's values and gradients, at the origin too; and those of lengths whose squares are beyond a type.
#[test]
fn angles_have_gradients_at_the_origin() {
    let (a, b) = (
        [0.0, -0.0, 0.0, 4.0, -0.0, 0.0, 1.0, 0.0, -2.0],
        [0.0, 0.0, -0.0, 0.0, 2.0, -4.0, 0.0, 0.5, 0.0],
    );
    let (quarter, half) = (std::f64::consts::FRAC_PI_2, std::f64::consts::PI);
    for dtype in [DType::F32, DType::F64] {
        let found = Launch::new(3).dtype(dtype).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let of = |line: [f64; 9]| mesh.from_fn(9, shard(0), move |i| line[i[0]]);
            let (y, x) = (of(a)?.requires_grad()?, of(b)?.requires_grad()?);
            let angle = y.atan2(&x)?;
            let slopes = angle.sum_all()?.backward()?;
            let slope = |of: &ShardTensor| numbers(&slopes.get(of)?.unwrap().add_scalar(0.0)?);
            Ok([numbers(&angle)?, slope(&y)?, slope(&x)?])
        });
        for [angle, by_y, by_x] in found.unwrap() {
            let exact = [0.0, -0.0, half, quarter, -0.0, half, quarter, 0.0, -quarter];
            assert!(angle.iter().zip(exact).all(|(a, b)| (a - b).abs() < 1e-6));
            assert_alike(
                &by_y,
                &[0.0, 0.0, 0.0, 0.0, 0.5, -0.25, 0.0, 2.0, 0.0],
                "by the ordinate",
            );
            assert_alike(
                &by_x,
                &[0.0, 0.0, 0.0, -0.25, 0.0, 0.0, -1.0, 0.0, 0.5],
                "by the abscissa",
            );
        }
    }
    let far = on_both(
        DType::F32,
        |x| {
            let x = x.requires_grad()?;
            let slope = x.atan2(&x.detach())?.sum_all()?.grad(&[&x], false)?;
            numbers(slope[0].as_ref().unwrap())
        },
        [1e-30, 1e30],
    );
    for found in far {
        let exact = [0.5e30, 0.5e-30];
        let near = |(a, b): (&f64, f64)| (a / b - 1.0).abs() < 1e-5;
        assert!(found.iter().zip(exact).all(near), "{found:?}");
    }
}

/// Also of integers, whose other end stays where it is; NaN stays.
#[test]
fn bounds_from_one_side_leave_the_other() {
    let x = [
        NAN,
        f64::NEG_INFINITY,
        -3.0,
        -1.0,
        0.5,
        2.0,
        2.5,
        f64::INFINITY,
        7.0,
    ];
    type Bound = fn(&ShardTensor) -> Result<ShardTensor>;
    let cases: [(Bound, [f64; 9], [f64; 9]); 2] = [
        (
            |x| x.clamp_min(-1.0),
            [NAN, -1.0, -1.0, -1.0, 0.5, 2.0, 2.5, f64::INFINITY, 7.0],
            [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        ),
        (
            |x| x.clamp_max(2.0),
            [NAN, f64::NEG_INFINITY, -3.0, -1.0, 0.5, 2.0, 2.0, 2.0, 2.0],
            [0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        ),
    ];
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?.with_dtype(DType::F64);
        for (bound, expected, slopes) in &cases {
            for dtype in [DType::F64, DType::F32, DType::BF16] {
                let x = mesh.from_fn(9, shard(0), |i| x[i[0]])?.to(dtype)?;
                let x = x.requires_grad()?;
                let found = bound(&x)?;
                let slope = found.backward_with(&x.ones_like()?)?.get(&x)?;
                let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
                let found = numbers(&found.detach().to(DType::F64)?)?;
                assert!(found.iter().zip(expected).all(same), "{found:?}");
                let slope = numbers(&slope.unwrap().to(DType::F64)?)?;
                assert_eq!(slope, slopes, "of {dtype}");
            }
        }
        let ends = [i64::MIN, -4, 3, i64::MAX];
        let whole = mesh.distribute(&ndarray::arr1(&ends), shard(0))?;
        let found = [whole.clamp_min(-2.0)?, whole.clamp_max(2.0)?];
        let [low, high] = [found[0].to_array::<i64>()?, found[1].to_array::<i64>()?];
        assert_eq!(low.as_slice().unwrap(), [-2, -2, 3, i64::MAX]);
        assert_eq!(high.as_slice().unwrap(), [i64::MIN, -4, 2, 2]);
        Ok(())
    });
    texts.unwrap();
}

/// PyTorch's values and gradients; where `x` is at a bound, the two share the gradient.
#[test]
fn bounds_may_be_tensors() {
    let x = [NAN, 1.0, -3.0, 5.0, 0.5, 2.0, -3.0, 3.0, 1.0];
    let low = [0.0, NAN, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 1.0];
    check_pair(
        "clamp_by at least",
        |x, low| x.clamp_by(Some(low), None),
        [&x, &low],
        [
            &[NAN, NAN, 0.0, 5.0, 0.5, 2.0, 1.0, 3.0, 1.0],
            &[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5],
            &[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5],
        ],
    );
    // A lower bound above the upper one gives way.
    check_pair(
        "clamp_by both",
        |x, low| {
            let high = low.detach().mul_scalar(0.0)?.add_scalar(1.0)?;
            x.clamp_by(Some(low), Some(&high))
        },
        [
            &[0.25, 1.0, -3.0, 5.0, 0.5, 2.0, -3.0, 3.0, 1.0],
            &[0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0],
        ],
        [
            &[0.25, 1.0, 0.5, 1.0, 0.5, 1.0, 0.0, 1.0, 1.0],
            &[1.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.5],
            &[0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        ],
    );
    let texts = launch(2, |ctx| {
        let error = ctx.mesh_of(2)?.ones(3, shard(0))?.clamp_by(None, None);
        Ok(error.map(|_| ()).map_err(|e| (e.class(), e.to_string())))
    });
    let text = texts.unwrap().swap_remove(0).unwrap_err();
    assert!(
        text.0 == ErrorClass::Uniform && text.1.contains("clamp_by"),
        "{text:?}"
    );
}

/// What is no number in a tensor, under all layouts and in all types.
#[test]
fn nan_is_replaced_and_left_out() {
    let a = [1.0, -1.0, 0.0, -0.0, NAN, INF, -INF, 2.0, NAN];
    for ((ranks, placement), (dtype, most)) in LAYOUTS.into_iter().flat_map(|on| {
        [
            (DType::F32, f64::from(f32::MAX)),
            (DType::F64, f64::MAX),
            (DType::F16, 65504.0),
            // PyTorch's 3.3895e38.
            (DType::BF16, 255.0 * 2f64.powi(120)),
        ]
        .map(|of| (on, of))
    }) {
        let found = Launch::new(ranks).dtype(dtype).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.from_fn(9, placement(), |i| a[i[0]])?.requires_grad()?;
            let slope = |y: ShardTensor| -> Result<Vec<f64>> {
                let slope = y.sum_all()?.backward()?.get(&x)?;
                numbers(&slope.expect("it depends on x"))
            };
            let default = x.nan_to_num(7.0, None, None)?;
            let given = x.nan_to_num(INF, Some(1.0), Some(NAN))?;
            let finite = x.nan_to_num(NAN, Some(NAN), Some(3.0))?;
            Ok([
                numbers(&default)?,
                slope(default)?,
                numbers(&given)?,
                numbers(&x.signbit()?)?,
                vec![
                    finite.nansum(0, false)?.item()?,
                    finite.nanmean(0, true)?.item()?,
                ],
                slope(finite.nansum(0, false)?)?,
                slope(finite.nanmean(0, false)?.mul_scalar(6.0)?)?,
                vec![x.nansum(0, false)?.item()?],
                vec![
                    x.narrow(0, 4..5)?.nansum(0, false)?.item()?,
                    x.narrow(0, 4..5)?.nanmean(0, false)?.item()?,
                ],
            ])
        });
        let stays = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        let exact: [&[f64]; 9] = [
            &[1.0, -1.0, 0.0, -0.0, 7.0, most, -most, 2.0, 7.0],
            &stays,
            &[1.0, -1.0, 0.0, -0.0, INF, 1.0, NAN, 2.0, INF],
            &[
                0.0,
                1.0,
                0.0,
                1.0,
                f64::from(u8::from(NAN.is_sign_negative())),
                0.0,
                1.0,
                0.0,
                0.0,
            ],
            &[5.0, 5.0 / 6.0],
            &stays,
            &stays,
            &[NAN],
            &[0.0, NAN],
        ];
        for found in found.unwrap() {
            for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
                let what = format!("{i} of {dtype} on {ranks} ranks");
                match i {
                    // 5 / 6, rounded once.
                    4 => assert!(
                        (found[1] - exact[1]).abs() < 2f64.powi(-8),
                        "{what}: {found:?}"
                    ),
                    _ => assert_alike(found, exact, &what),
                }
            }
        }
    }
}

#[test]
fn numbers_are_close_as_pytorchs() {
    let a = [1.0, NAN, INF, INF, -INF, 1e-9, 1.00001, 0.0, 3.0];
    let b = [1.0, NAN, INF, -INF, 1.0, 0.0, 1.0, -0.0, 3.1];
    let close = [1, 0, 1, 0, 0, 1, 1, 1, 0].map(f64::from);
    for (ranks, placement) in LAYOUTS {
        let found = Launch::new(ranks).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?.with_dtype(DType::F64);
            let [x, y] = [&a, &b].map(|of| mesh.from_fn(9, placement(), |i| of[i[0]]));
            let (x, y) = (x?, y?.redistribute(replicate())?);
            assert_alike(
                &numbers(&x.isclose(&y, 1e-5, 1e-8, false)?)?,
                &close,
                "isclose",
            );
            let wide = x.isclose(&y, 0.1, 0.0, true)?;
            assert_alike(
                &numbers(&wide)?,
                &[1, 1, 1, 0, 0, 0, 1, 1, 1].map(f64::from),
                "isclose",
            );
            assert!(!x.allclose(&y, 1e-5, 1e-8, true)?);
            assert!(x.allclose(&x, 0.0, 0.0, true)? && !x.allclose(&x, 1.0, 1.0, false)?);
            let large = mesh.with_dtype(DType::I64);
            let more = large.full(9, 10_000_001.0, placement())?;
            let large = large.full(9, 10_000_000.0, placement())?;
            assert!(more.allclose(&large, 1e-5, 0.0, false)?);
            assert!(!more.allclose(&large, 1e-8, 0.0, false)?);
            let none = mesh.ones([0, 3], replicate())?;
            assert!(none.allclose(&none.mul_scalar(0.0)?, 0.0, 0.0, false)?);
            let refused = x.isclose(&y, -1.0, 0.0, false);
            Ok(refused.map(|_| ()).map_err(|e| (e.class(), e.to_string())))
        });
        for found in found.unwrap() {
            let (class, text) = found.unwrap_err();
            assert!(
                class == ErrorClass::Uniform && text.contains("isclose"),
                "{text}"
            );
        }
    }
}

/// Terms of a sum are what their sum is.
#[test]
fn terms_of_a_sum_meet_the_edges_as_a_whole() {
    let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        // Whose sums are 3, 0, -3, 0, ..
        let terms = mesh.from_fn([3, 6], shard(0), |i| {
            (i[0] as f64 - 1.0) * 7.0 + [1.0, 0.0, -1.0][i[1] % 3]
        })?;
        let leaf = terms.requires_grad()?;
        let x = leaf.sum(0, false)?;
        assert!(x.layout().is_partial());
        let whole = leaf.redistribute(replicate())?.sum(0, false)?;
        let y = mesh.from_fn(6, shard(0).sizes([1, 5, 0]), |i| i[0] as f64 - 2.0)?;
        type Map<'a> = Box<dyn Fn(&ShardTensor) -> Result<ShardTensor> + 'a>;
        let maps: [Map<'_>; 11] = [
            Box::new(|x| x.fmax(&y)),
            Box::new(|x| y.fmin(x)),
            Box::new(|x| x.copysign(&y)),
            Box::new(|x| y.copysign(x)),
            Box::new(|x| y.heaviside(x)),
            Box::new(|x| x.nan_to_num(1.0, Some(2.0), None)),
            Box::new(|x| x.clamp_by(Some(&y), Some(&y.add_scalar(2.0)?))),
            Box::new(|x| x.diff(2, 0)),
            Box::new(|x| x.kron(&y)),
            Box::new(|x| x.nansum(0, true)),
            Box::new(|x| x.nanmean(0, false)),
        ];
        for (i, map) in maps.iter().enumerate() {
            let both = [&x, &whole].map(|x| -> Result<_> {
                let y = map(x)?;
                let slope = y.square()?.sum_all()?.backward()?.get(&leaf)?;
                let slope = slope.map_or(Ok(Vec::new()), |slope| numbers(&slope))?;
                Ok((numbers(&y)?, slope))
            });
            let [found, exact] = both.map(Result::unwrap);
            assert_alike(&found.0, &exact.0, &format!("map {i}"));
            assert_alike(&found.1, &exact.1, &format!("slope {i}"));
        }
        // A linear one leaves terms as they are.
        assert!(x.diff(1, 0)?.layout().is_partial());
        assert!(
            x.allclose(&whole, 0.0, 0.0, false)?
                && whole.isclose(&x, 0.0, 0.0, false)?.all(0, false)?.item()? == 1.0
        );
        // Where moves are explicit, all of them refuse to take the sum by themselves.
        ctx.explicit_moves(true);
        let refused = [
            x.fmax(&whole),
            x.bernoulli(),
            x.rrelu(0.1..0.2, true),
            x.multinomial(1, true),
        ];
        let refused = refused.map(|of| of.map(|_| ()).map_err(|e| e.to_string()));
        ctx.explicit_moves(false);
        Ok(refused)
    });
    for refused in found.unwrap().into_iter().flatten() {
        let text = refused.unwrap_err();
        assert!(text.contains("explicit"), "{text}");
    }
}

#[test]
fn integers_meet_the_edges() {
    for (ranks, placement) in LAYOUTS {
        let done = Launch::new(ranks).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let of = |dtype: DType, f: fn(usize) -> f64| {
                mesh.with_dtype(dtype)
                    .from_fn(9, placement(), move |i| f(i[0]))
            };
            let (a, b) = (
                of(DType::I64, |i| i as f64 - 3.0)?,
                of(DType::I64, |i| 2.0 - i as f64)?,
            );
            let map = |f: &dyn Fn(i64, i64) -> i64| -> Vec<f64> {
                (0..9).map(|i| f(i - 3, 2 - i) as f64).collect()
            };
            let signed = a.copysign(&b)?;
            assert_eq!(signed.dtype(), DType::F32);
            let exact = map(&|a, b| if b < 0 { -a.abs() } else { a.abs() });
            assert_eq!(numbers(&signed)?, exact);
            assert_eq!(numbers(&a.fmax(&b)?)?, map(&|a, b| a.max(b)));
            assert_eq!(numbers(&a.fmin(&b)?)?, map(&|a, b| a.min(b)));
            assert_eq!(
                numbers(&a.heaviside(&b)?)?,
                map(&|a, b| if a == 0 { b } else { i64::from(a > 0) })
            );
            assert_eq!(numbers(&a.signbit()?)?, map(&|a, _| i64::from(a < 0)));
            assert_eq!(numbers(&a.nan_to_num(5.0, None, None)?)?, map(&|a, _| a));
            assert_eq!(
                numbers(&a.clamp_by(Some(&b), Some(&a))?)?,
                map(&|a, b| a.max(b).min(a))
            );
            assert_eq!(a.nansum(0, false)?.item()?, 9.0);
            assert_eq!(numbers(&b.diff(1, -1)?)?, [-1.0; 8]);
            // What wraps, and what only differs.
            let bytes = of(DType::U8, |i| 10.0 - i as f64)?;
            assert_eq!(numbers(&bytes.diff(1, 0)?)?, [255.0; 8]);
            assert_eq!(numbers(&bytes.signbit()?)?, [0.0; 9]);
            let truths = of(DType::Bool, |i| [1.0, 0.0, 0.0][i % 3])?;
            assert_eq!(truths.diff(1, 0)?.dtype(), DType::Bool);
            assert_eq!(
                numbers(&truths.diff(1, 0)?)?,
                [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
            );
            assert_eq!(truths.nansum(0, false)?.item()?, 3.0);
            assert_eq!(numbers(&a.kron(&b)?.narrow(0, 8..11)?)?, [18.0, -4.0, -2.0]);
            // As often as there are neighbours, and more often.
            assert_eq!(
                [8, 9, 70].map(|n| a.diff(n, 0).unwrap().shape()[0]),
                [1, 0, 0]
            );
            assert_eq!(numbers(&a.diff(0, 0)?)?, map(&|a, _| a));
            Ok(a.nanmean(0, false).map(|_| ()).map_err(|e| e.to_string()))
        });
        for refused in done.unwrap() {
            assert!(refused.unwrap_err().contains("nanmean"));
        }
    }
}

/// Kronecker's product of matrices, and of a matrix with fewer dims, by its definition.
#[test]
fn kronecker_products_are_pytorchs() {
    for (ranks, [first, second]) in [
        (1, [shard(0), shard(0)]),
        (2, [shard(0), shard(0)]),
        (3, [shard(1).sizes([0, 2, 1]), shard(0)]),
        (3, [shard(0).sizes([0, 1, 1]), shard(0).sizes([2, 0, 2])]),
    ] {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let a = mesh.from_fn([2, 3], first.clone(), |i| (3 * i[0] + i[1]) as f64)?;
            let a = a.requires_grad()?;
            let b = mesh.from_fn([4], second.clone(), |i| 10f64.powi(i[0] as i32))?;
            let y = a.kron(&b)?;
            assert_eq!(y.shape(), [2, 12]);
            let slope = y.narrow(1, 0..6)?.sum_all()?.backward()?.get(&a)?;
            let slope = numbers(&slope.expect("it depends on a"))?;
            Ok((numbers(&y)?, slope, numbers(&b.kron(&a)?)?))
        });
        for (y, slope, turned) in found.unwrap() {
            let exact = |at: usize| {
                let (i, j) = (at / 12, at % 12);
                (3 * i + j / 4) as f64 * 10f64.powi((j % 4) as i32)
            };
            assert_eq!(y, (0..24).map(exact).collect::<Vec<_>>(), "{ranks} ranks");
            assert_eq!(slope, [1111.0, 11.0, 0.0, 1111.0, 11.0, 0.0]);
            let exact = |at: usize| {
                let (i, j) = (at / 12, at % 12);
                (3 * i + j % 3) as f64 * 10f64.powi((j / 3) as i32)
            };
            assert_eq!(turned, (0..24).map(exact).collect::<Vec<_>>());
        }
    }
}

//! Scans along sharded dims.

use ndarray::{Ix2, arr1};
use shard_autograd::{Recorder, gradgradcheck};
use shard_ops::{OpError, Value, scan};
use shard_tensor::{
    DType, GradCheck, Launch, Placements, Result, ShardTensor, launch, replicate, shard,
};

/// The shape of a mesh, and placements on it.
pub(crate) type OnMesh = (Vec<usize>, fn() -> Placements);

/// Layouts of a tensor of nine rows: whole, even, uneven, with empty parts, with fewer rows than ranks, and divided twice.
pub(crate) fn layouts() -> Vec<OnMesh> {
    vec![
        (vec![1], || [shard(0)].into()),
        (vec![3], || [shard(0).sizes([4, 0, 5])].into()),
        (vec![4], || [shard(0).sizes([0, 0, 9, 0])].into()),
        (vec![11], || [shard(0)].into()),
        (vec![2, 2], || [shard(0), shard(0)].into()),
        (vec![2, 2], || [shard(1), shard(0)].into()),
        (vec![3], || [replicate()].into()),
    ]
}

#[test]
fn scans_of_a_sharded_dim_are_the_single_devices() {
    let x = |i: &[usize]| [3.0, -1.0, 0.0, 2.0, 3.0, -4.0, 3.0, 0.5, 1.0][(i[0] + 2 * i[1]) % 9];
    let lines: Vec<Vec<f64>> = (0..2)
        .map(|j| (0..9).map(|i| x(&[i, j])).collect())
        .collect();
    let running = |f: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
        let at = |k: usize| f(&lines[k % 2][..=k / 2]);
        (0..18).map(at).collect()
    };
    let last = |line: &[f64], wins: fn(f64, f64) -> bool| -> usize {
        (0..line.len()).fold(
            0,
            |best, i| if wins(line[i], line[best]) { i } else { best },
        )
    };
    let exact = [
        running(&|line| line.iter().sum()),
        running(&|line| line.iter().product()),
        running(&|line| line.iter().map(|x| x.exp()).sum::<f64>().ln()),
        running(&|line| line[last(line, |a, b| a >= b)]),
        running(&|line| last(line, |a, b| a >= b) as f64),
        running(&|line| line[last(line, |a, b| a <= b)]),
        running(&|line| last(line, |a, b| a <= b) as f64),
    ];
    for (shape, placements) in layouts() {
        let found = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let x = mesh.from_fn([9, 2], placements(), x)?;
                let (most, most_at) = x.cummax(0)?;
                let (least, least_at) = x.cummin(-2)?;
                let scans = [
                    x.cumsum(0)?,
                    x.cumprod(0)?,
                    x.logcumsumexp(0)?,
                    most,
                    most_at,
                    least,
                    least_at,
                ];
                assert_eq!(
                    (scans[4].dtype(), scans[0].layout()),
                    (DType::I64, x.layout())
                );
                scans
                    .iter()
                    .map(|y| {
                        Ok(y.to(DType::F64)?
                            .to_array::<f64>()?
                            .into_iter()
                            .collect::<Vec<_>>())
                    })
                    .collect::<Result<Vec<_>>>()
            });
        for found in found.unwrap() {
            for (scan, (found, exact)) in found.iter().zip(&exact).enumerate() {
                for (a, b) in found.iter().zip(exact) {
                    assert!(
                        (a - b).abs() < 1e-12,
                        "scan {scan} on {shape:?}: {found:?}, not {exact:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn integers_are_scanned_exactly_and_wrap() {
    let numbers: Vec<i64> = (0..40)
        .map(|i: i64| i.wrapping_mul(i64::MAX / 9) - 7)
        .collect();
    let mut sum = 0_i64;
    let sums: Vec<i64> = numbers
        .iter()
        .map(|x| {
            sum = sum.wrapping_add(*x);
            sum
        })
        .collect();
    for (ranks, sizes) in [(2, vec![39, 1]), (5, vec![0, 20, 0, 7, 13])] {
        let found = launch(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.distribute(&arr1(&numbers), shard(0).sizes(sizes.clone()))?;
            let bytes = mesh
                .with_dtype(DType::U8)
                .full(40, 200, shard(0))?
                .cumsum(0)?;
            assert_eq!(
                (bytes.dtype(), bytes.narrow(0, 39..40)?.item()?),
                (DType::I64, 8000.0)
            );
            Ok(x.cumsum(0)?
                .to_array::<i64>()?
                .into_iter()
                .collect::<Vec<_>>())
        });
        assert!(found.unwrap().iter().all(|found| *found == sums));
    }
}

#[test]
fn nan_is_the_extreme_from_its_rank_on() {
    let found = launch(3, |ctx| {
        let x = [1.0, 5.0, f32::NAN, 9.0, 2.0, f32::NAN, 0.0];
        let x = ctx
            .mesh_of(3)?
            .distribute(&arr1(&x), shard(0).sizes([2, 2, 3]))?;
        let (_, most) = x.cummax(0)?;
        let (_, least) = x.cummin(0)?;
        Ok((most.to_array::<i64>()?, least.to_array::<i64>()?))
    });
    let (most, least) = &found.unwrap()[2];
    assert_eq!(*most, arr1(&[0, 1, 2, 2, 2, 5, 5]).into_dyn());
    assert_eq!(*least, arr1(&[0, 0, 2, 2, 2, 5, 5]).into_dyn());
}

#[test]
fn scans_have_the_slopes_of_differences() {
    for (shape, placements) in layouts().into_iter().filter(|(shape, _)| shape[0] < 9) {
        let checked = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                // No ties, and a zero, two zeros and none in the lines.
                let x = mesh.from_fn([9, 3], placements(), |i| match (i[0], i[1]) {
                    (4, 0) | (2, 1) | (6, 1) => 0.0,
                    (i, j) => ((i * 7 + j * 5) % 11) as f64 / 4.0 - 1.3,
                })?;
                type Function<'a> = &'a dyn Fn(&ShardTensor) -> Result<ShardTensor>;
                let functions: [Function<'_>; 6] = [
                    &|x| x.cumsum(0)?.square(),
                    &|x| x.cumprod(0),
                    &|x| x.logcumsumexp(0),
                    &|x| x.cummax(0)?.0.square(),
                    &|x| x.cummin(0)?.0.square(),
                    // Of a sum that waits.
                    &|x| x.sum(1, false)?.cumsum(0)?.square(),
                ];
                for (i, f) in functions.iter().enumerate() {
                    let f = |v: &[ShardTensor]| Ok(vec![f(&v[0])?]);
                    let report = ctx.gradcheck(f, &[&x], GradCheck::default());
                    let report = report.unwrap_or_else(|e| panic!("scan {i} on {shape:?}: {e}"));
                    assert!(report.compared >= 24, "{i}");
                }
                Ok(())
            });
        checked.unwrap();
    }
}

#[test]
fn scans_have_the_second_derivatives_of_differences() {
    type Function = fn(&Recorder, &Value, usize) -> Result<Value, OpError>;
    let functions: [Function; 3] = [
        |tape, x, dim| scan::cumsum(tape, x, dim),
        |tape, x, dim| scan::cumprod(tape, x, dim),
        |tape, x, dim| scan::logcumsumexp(tape, x, dim),
    ];
    for (shape, placements) in layouts().into_iter().filter(|(shape, _)| shape[0] < 9) {
        let checked = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let x = |i: &[usize]| match (i[0], i[1]) {
                    (3, 1) | (2, 2) | (6, 2) | (0, 3) | (4, 3) | (7, 3) => 0.0,
                    (i, j) => ((i * 7 + j * 5) % 11) as f64 / 4.0 - 1.3,
                };
                let x = ctx
                    .mesh_of(shape.clone())?
                    .from_fn([9, 4], placements(), x)?;
                for (i, f) in functions.iter().enumerate() {
                    let f = |tape: &Recorder, v: &[Value]| Ok(vec![f(tape, &v[0], 0)?]);
                    let report = gradgradcheck(ctx.tape(), &f, &[x.value()], GradCheck::default());
                    let report = report.unwrap_or_else(|e| panic!("scan {i} on {shape:?}: {e}"));
                    assert!(report.compared > 18, "{i}");
                }
                Ok(())
            });
        checked.unwrap();
    }
}

#[test]
fn running_extremes_have_second_derivatives() {
    for (shape, placements) in layouts() {
        let found = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let value = |i: &[usize]| ((i[0] * 7 + i[1] * 5) % 11) as f64 - 4.0;
                let x = mesh.from_fn([9, 2], placements(), value)?.requires_grad()?;
                let (most, at) = x.cummax(0)?;
                let cubes = (&most * &most * &most).sum_all()?;
                let first = cubes.grad(&[&x], true)?.remove(0).unwrap();
                let weights = mesh.from_fn([9, 2], placements(), |i| 1.0 + i[0] as f64)?;
                let second = (&first * &weights).sum_all()?.grad(&[&x], false)?;
                let second = second[0].as_ref().unwrap().to_array::<f64>()?;
                Ok((x.to_array::<f64>()?, at.to_array::<i64>()?, second))
            });
        for (x, at, second) in found.unwrap() {
            // An element is cubed once for every place that it is the largest of.
            for ((i, j), &x) in x.into_dimensionality::<Ix2>().unwrap().indexed_iter() {
                let times = (0..9).filter(|&k| at[[k, j]] == i as i64).count();
                let expected = 6.0 * x * times as f64 * (1.0 + i as f64);
                assert_eq!(second[[i, j]], expected, "{shape:?} at {i}, {j}");
            }
        }
    }
}

/// A rank receives the totals of the others, and no elements.
#[test]
fn totals_alone_move() {
    let moved = launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.ones([1000, 3], shard(0))?;
        let explanation = ctx.explain(|| x.cumsum(0).map(drop))?;
        let explanation = explanation.1;
        let received: u64 = explanation.steps.iter().map(|s| s.received).sum();
        let names: Vec<&str> = explanation.steps.iter().map(|s| s.op).collect();
        Ok((received, names.join(" ")))
    });
    for (received, names) in moved.unwrap() {
        // Three lines of doubles from three ranks.
        assert_eq!(received, 3 * 3 * 8, "{names}");
        assert_eq!(names, "scan_totals redistribute cumsum");
    }
}

#[test]
fn a_scan_of_a_zigzag_is_that_of_the_row() {
    let found = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.arange(9, shard(0).zigzag())?;
        x.cumsum(0)?.to_array::<f32>()
    });
    let sums = [0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 28.0, 36.0];
    assert_eq!(found.unwrap()[1], arr1(&sums).into_dyn());
}

#[test]
fn differences_of_neighbours_are_those_of_the_whole() {
    const COLUMN: [f64; 9] = [3.0, -1.0, 0.0, 2.0, 3.0, -4.0, 3.0, 0.5, 1.0];
    let weight = |i: usize| (i * i) as f64 - 7.5;
    let once: Vec<f64> = COLUMN.windows(2).map(|x| x[1] - x[0]).collect();
    let twice: Vec<f64> = once.windows(2).map(|x| x[1] - x[0]).collect();
    // What each element gets: of the difference that ends at it, less of the one that begins there.
    let of = |i: usize| if i < 8 { weight(i) } else { 0.0 };
    let slopes: Vec<f64> = (0..9_usize)
        .map(|i| i.checked_sub(1).map_or(0.0, of) - of(i))
        .collect();
    for (shape, placements) in layouts() {
        for dtype in [DType::F64, DType::F32, DType::BF16] {
            let launched = Launch::new(shape.iter().product()).dtype(dtype);
            let run = launched.run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let x = mesh.from_fn([9, 2], placements(), |i| COLUMN[i[0]] + i[1] as f64)?;
                let x = x.requires_grad()?;
                for (n, expected) in [(1, &once[..]), (2, &twice), (9, &[]), (12, &[])] {
                    let found = x.detach().diff(n, 0)?.to(DType::F64)?.to_array::<f64>()?;
                    assert_eq!(found.shape(), [expected.len(), 2]);
                    for (row, expected) in found.outer_iter().zip(expected) {
                        assert!(row.iter().all(|found| found == expected), "{n}: {found}");
                    }
                }
                assert!(
                    x.diff(1, 1)?
                        .to(DType::F64)?
                        .to_array::<f64>()?
                        .iter()
                        .all(|&d| d == 1.0)
                );
                let weights = mesh.from_fn([8, 2], replicate(), |i| weight(i[0]))?;
                let gradients = x.diff(1, 0)?.mul(&weights)?.sum_all()?.backward()?;
                let found = gradients.get(&x)?.expect("a gradient");
                found.expect_layout(x.layout())?;
                let found = found.to(DType::F64)?.to_array::<f64>()?;
                for (row, expected) in found.outer_iter().zip(&slopes) {
                    assert!(row.iter().all(|found| found == expected), "{found}");
                }
                Ok(())
            });
            run.unwrap();
        }
    }
}

#[test]
fn slopes_along_a_sharded_dim_are_pytorchs() {
    const COLUMN: [f64; 9] = [3.0, -1.0, 0.0, 2.0, 3.0, -4.0, 3.0, 0.5, 1.0];
    const PLACES: [f64; 9] = [0.0, 0.5, 1.5, 2.0, 4.0, 4.25, 5.0, 7.0, 8.0];
    let middle = [-3.0, 3.0, 3.0, -6.0, 0.0, 4.5, -2.0];
    let middle_at = [
        -5.0,
        3.0,
        3.3,
        -24.833333333333332,
        -18.666666666666664,
        6.446969696969697,
        -0.08333333333333337,
    ];
    let ends = [
        [[-8.0, 1.0], [-8.0, 0.5]],
        [[-13.0, 4.0], [-11.0, 1.0833333333333333]],
    ];
    for (shape, placements) in layouts() {
        let launched = Launch::new(shape.iter().product()).dtype(DType::F64);
        let run = launched.run(|ctx| {
            let mesh = ctx.mesh_of(shape.clone())?;
            let x = mesh.from_fn([9, 2], placements(), |i| match i[1] {
                0 => (i[0] * i[0]) as f64,
                _ => COLUMN[i[0]],
            })?;
            let at = mesh.from_fn(9, replicate(), |i| PLACES[i[0]])?;
            for (order, ends) in (1..).zip(&ends) {
                let found = [x.gradient(0.5, 0, order)?, x.gradient_at(&at, -2, order)?];
                let middles = [&middle, &middle_at];
                for ((found, middle), [first, last]) in found.iter().zip(middles).zip(ends) {
                    found.expect_layout(x.layout())?;
                    let found = found.select(1, 1)?.to_array::<f64>()?;
                    let expected = [&[*first][..], middle, &[*last]].concat();
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
                    assert!(found.iter().zip(&expected).all(near), "{found}");
                }
            }
            // Of squares the slope is exact with three places at the ends, wherever places are.
            let squares = at.square()?.redistribute(x.select(1, 0)?.layout())?;
            let slope = squares.gradient_at(&at, 0, 2)?;
            assert!(slope.allclose(&at.mul_scalar(2.0)?, 1e-12, 1e-12, false)?);
            let tracked = [x.requires_grad()?, at.requires_grad()?];
            let found = ctx.gradcheck(
                |t: &[ShardTensor]| {
                    Ok(vec![
                        t[0].gradient(0.5, 0, 2)?,
                        t[0].gradient_at(&t[1], 0, 1)?,
                    ])
                },
                &tracked.each_ref(),
                GradCheck::default(),
            );
            assert!(found.is_ok(), "{found:?}");
            Ok(())
        });
        run.unwrap();
    }
}

#[test]
fn slopes_of_too_few_places_or_of_others_are_refused() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(2, shard(0))?;
        assert_eq!(
            x.gradient(1.0, 0, 1)?.to_array::<f32>()?.as_slice(),
            Some(&[1.0; 2][..])
        );
        let at = mesh.arange(3, shard(0))?;
        let refused = [
            x.gradient(1.0, 0, 2),
            x.gradient(1.0, 0, 0),
            x.gradient(1.0, 1, 1),
            x.gradient(1.0, usize::MAX, 1),
            x.gradient_at(&at, 0, 1),
            x.gradient_at(&at, 1, 1),
            x.to(DType::I64)?.gradient(1.0, 0, 1),
            mesh.ones([0, 3], shard(1))?.gradient(1.0, 0, 1),
        ];
        for refused in refused {
            let refused = refused.unwrap_err();
            assert_eq!(
                refused.class(),
                shard_tensor::ErrorClass::Uniform,
                "{refused}"
            );
        }
        // A sum that waits goes on; 16 bits are subtracted in 32.
        let halves = mesh.with_dtype(DType::BF16).arange(5, shard(0))?;
        assert_eq!(halves.gradient(0.5, 0, 1)?.dtype(), DType::BF16);
        let terms = mesh.ones([3, 4], shard(0))?.sum(0, false)?;
        assert_eq!(terms.gradient(1.0, 0, 1)?.layout().to_string(), "P(sum)");
        Ok(())
    })
    .unwrap();
}

//! Softmax, losses and statistics over sharded dims, against their definitions.

use ndarray::{Array1, Array2, arr1};
use shard_autograd::{GradCheck, Recorder, gradgradcheck};
use shard_ops::{Value, norm, reduce, softmax as soft, statistics as stats};
use shard_tensor::{
    ClassLoss, Context, DType, ErrorClass, Interpolation, Launch, LossReduction, NormOrder,
    Placements, Result, ShardTensor, launch, replicate, shard,
};

/// The shape of a mesh, and placements of a tensor of two dims on it.
type OnMesh = (Vec<usize>, fn() -> Placements);

fn layouts() -> Vec<OnMesh> {
    vec![
        (vec![1], || [shard(0)].into()),
        (vec![3], || [shard(0).sizes([4, 0, 3])].into()),
        (vec![4], || [shard(1).sizes([0, 3, 1, 1])].into()),
        (vec![2, 2], || [shard(1), shard(0)].into()),
        (vec![2, 2], || [shard(1), shard(1)].into()),
        (vec![2], || [shard(0).zigzag()].into()),
        (vec![2], || [replicate()].into()),
    ]
}

const ROWS: usize = 7;
const COLUMNS: usize = 5;

/// Elements without ties, but for one in every column but the first.
fn at(i: usize, j: usize) -> f64 {
    match (i, j) {
        (2, 1..) => at(6, j),
        _ => ((i * 11 + j * 17) % 29) as f64 / 3.0 - 4.0,
    }
}

fn rows() -> Vec<Vec<f64>> {
    let row = |i| (0..COLUMNS).map(|j| at(i, j)).collect();
    (0..ROWS).map(row).collect()
}

fn columns() -> Vec<Vec<f64>> {
    let column = |j| (0..ROWS).map(|i| at(i, j)).collect();
    (0..COLUMNS).map(column).collect()
}

/// Runs a function of a tensor on all layouts, and compares what it gives with `exact`.
fn check(
    what: &str,
    exact: &[f64],
    f: impl Fn(&Context, &ShardTensor) -> Result<ShardTensor> + Sync,
) {
    checked(what, exact, &f);
}

/// Not generic: each of many functions would compile the launch for itself.
fn checked(
    what: &str,
    exact: &[f64],
    f: &(dyn Fn(&Context, &ShardTensor) -> Result<ShardTensor> + Sync),
) {
    for (shape, placements) in layouts() {
        let found = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let x = mesh.from_fn([ROWS, COLUMNS], placements(), |i| at(i[0], i[1]))?;
                let y = f(ctx, &x)?.to(DType::F64)?.to_array::<f64>()?;
                Ok(y.into_iter().collect::<Vec<f64>>())
            });
        for found in found.unwrap_or_else(|e| panic!("{what} on {shape:?}: {e}")) {
            assert_eq!(found.len(), exact.len(), "{what} on {shape:?}");
            let same = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-11;
            assert!(
                found.iter().zip(exact).all(same),
                "{what} on {shape:?}: {found:?}, not {exact:?}"
            );
        }
    }
}

fn variance(line: &[f64], correction: f64) -> f64 {
    let mean = line.iter().sum::<f64>() / line.len() as f64;
    let squares: f64 = line.iter().map(|x| (x - mean) * (x - mean)).sum();
    squares / (line.len() as f64 - correction)
}

fn log_sum_exp(line: &[f64]) -> f64 {
    line.iter().map(|x| x.exp()).sum::<f64>().ln()
}

#[test]
fn statistics_are_those_of_their_definitions() {
    let of = |lines: &[Vec<f64>], f: &dyn Fn(&[f64]) -> f64| -> Vec<f64> {
        lines.iter().map(|line| f(line)).collect()
    };
    let (rows, columns) = (rows(), columns());
    let spread = of(&columns, &|line| variance(line, 1.0));
    check("var", &spread, |_, x| x.var(0, 1.0, false));
    let spread = of(&rows, &|line| variance(line, 0.0).sqrt());
    check("std", &spread, |_, x| x.std(-1, 0.0, true));
    let all = rows.concat();
    let mean = [all.iter().sum::<f64>() / all.len() as f64];
    check("mean", &mean, |_, x| Ok(x.var_mean([0, 1], 1.0, false)?.1));
    let sums = of(&columns, &log_sum_exp);
    check("logsumexp", &sums, |_, x| x.logsumexp(0, true));
    let p = |p: f64| {
        of(&columns, &|line: &[f64]| {
            let sum: f64 = line.iter().map(|x| x.abs().powf(p)).sum();
            sum.powf(1.0 / p)
        })
    };
    for order in [0.5, 1.0, 2.0, 3.0, 3.5, -1.5] {
        check("norm", &p(order), |_, x| x.norm(order, 0, false));
    }
    let count = of(&columns, &|line| {
        line.iter().filter(|x| **x != 0.0).count() as f64
    });
    check("norm 0", &count, |_, x| x.norm(0.0, 0, false));
    let most = of(&rows, &|line| line.iter().fold(0.0, |m, x| x.abs().max(m)));
    check("norm inf", &most, |_, x| x.norm(f64::INFINITY, 1, false));
    let unit: Vec<f64> = (rows.iter())
        .flat_map(|row| {
            let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
            row.iter().map(move |x| x / length)
        })
        .collect();
    check("normalize", &unit, |_, x| x.normalize(2.0, 1, 1e-12));
    // Rank 0.25 (7 - 1) = 1.5 lies halfway, which makes the nearest place the even one.
    let sorted = |line: &[f64]| {
        let mut line = line.to_vec();
        line.sort_by(f64::total_cmp);
        line
    };
    let quarter = of(&columns, &|line| 0.5 * (sorted(line)[1] + sorted(line)[2]));
    let found = |how| move |_: &Context, x: &ShardTensor| x.quantile(&[0.25], 0, how);
    check("quantile", &quarter, found(Interpolation::Linear));
    check("quantile", &quarter, found(Interpolation::Midpoint));
    let second = of(&columns, &|line| sorted(line)[2]);
    check("quantile", &second, found(Interpolation::Nearest));
    check("quantile", &second, found(Interpolation::Higher));
}

#[test]
fn extremes_are_the_first_of_equal_ones() {
    let first = |line: &[f64], wins: fn(f64, f64) -> bool| -> usize {
        (0..line.len()).fold(
            0,
            |best, i| if wins(line[i], line[best]) { i } else { best },
        )
    };
    let places = |wins: fn(f64, f64) -> bool| -> Vec<f64> {
        columns()
            .iter()
            .map(|line| first(line, wins) as f64)
            .collect()
    };
    check("argmax", &places(|a, b| a > b), |_, x| x.argmax(0));
    check("argmin", &places(|a, b| a < b), |_, x| {
        let kept = x.argmin_keepdim(0)?;
        assert_eq!(kept.shape(), x.argmin(0)?.unsqueeze(0)?.shape());
        Ok(kept)
    });
    check("max", &places(|a, b| a > b), |_, x| Ok(x.max(0, false)?.1));
    let all = rows().concat();
    let flat = [first(&all, |a, b| a > b) as f64];
    check("argmax of all", &flat, |_, x| {
        let kept = x.argmax_keepdim([0, 1])?;
        assert_eq!(kept.shape(), [1, 1]);
        kept.squeeze(0)?.squeeze(0)
    });
    check("argmax of all", &flat, |_, x| x.argmax([0, 1]));
    // The index goes down the columns if these come first, which dims in any order do not change.
    check("argmax of all", &flat, |_, x| x.argmax([1, 0]));
    let least: Vec<f64> = columns()
        .iter()
        .map(|line| line[first(line, |a, b| a < b)])
        .collect();
    check("min", &least, |_, x| Ok(x.min(0, false)?.0));
}

#[test]
fn nan_is_the_extreme_and_the_first_is_found() {
    let found = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let line = arr1(&[1.0, f32::INFINITY, 3.0, f32::NAN, -1.0, f32::NAN]);
        let x = mesh.distribute(&line, shard(0).sizes([3, 1, 2]))?;
        let worst = mesh.full(4, f64::NEG_INFINITY, shard(0).sizes([0, 3, 1]))?;
        let most = x.max(0, false)?;
        Ok((
            most.0.item()?.is_nan(),
            most.1.item()?,
            x.argmin(0)?.item()?,
            worst.argmax(0)?.item()?,
        ))
    });
    assert_eq!(found.unwrap()[2], (true, 3.0, 3.0, 0.0));
}

#[test]
fn softmax_of_what_would_overflow_and_of_infinities() {
    let (rows, columns) = (rows(), columns());
    let logs: Vec<f64> = (0..ROWS)
        .flat_map(|i| (0..COLUMNS).map(move |j| (i, j)))
        .map(|(i, j)| at(i, j) - log_sum_exp(&columns[j]))
        .collect();
    check("log_softmax", &logs, |_, x| {
        x.add_scalar(1024.0)?.log_softmax(0)
    });
    let p: Vec<f64> = (rows.iter())
        .flat_map(|row| row.iter().map(|x| (x - log_sum_exp(row)).exp()))
        .collect();
    check("softmax", &p, |_, x| x.softmax(-1));
    check("softmin", &p, |_, x| x.neg()?.softmin(1));
    let found = launch(2, |ctx| {
        let of = |line: [f32; 3]| -> Result<(Vec<f32>, f64)> {
            let x = ctx.mesh_of(2)?.distribute(&arr1(&line), shard(0))?;
            let sum = x.logsumexp(0, false)?.item()?;
            Ok((
                x.softmax(0)?
                    .to_array::<f32>()?
                    .into_iter()
                    .collect::<Vec<_>>(),
                sum,
            ))
        };
        let inf = f32::INFINITY;
        Ok([of([-inf, 0.0, -inf])?, of([-inf; 3])?, of([inf, 0.0, 1.0])?])
    });
    let [one, none, all] = &found.unwrap()[1];
    assert_eq!(*one, (vec![0.0, 1.0, 0.0], 0.0));
    assert_eq!(none.1, f64::NEG_INFINITY);
    assert_eq!(all.1, f64::INFINITY);
    assert!(none.0.iter().chain(&all.0).all(|p| p.is_nan()));
}

/// Class, weight of each class, and what is ignored.
const TARGETS: [i64; ROWS] = [0, 4, 2, 2, -100, 1, 3];
const WEIGHTS: [f64; COLUMNS] = [0.5, 1.0, 2.0, 0.25, 3.0];

#[test]
fn cross_entropy_is_weighted_over_all_ranks() {
    let (ignore, smoothing) = (2_i64, 0.1);
    let logs: Vec<Vec<f64>> = rows()
        .iter()
        .map(|row| row.iter().map(|x| x - log_sum_exp(row)).collect())
        .collect();
    let errors = |ignore: i64, smoothing: f64| -> (Vec<f64>, f64) {
        let counted = |t: i64| t != ignore && t != -100;
        let error = |(row, &t): (&Vec<f64>, &i64)| match counted(t) {
            false => 0.0,
            true => {
                let even: f64 = row.iter().zip(WEIGHTS).map(|(l, w)| l * w).sum();
                let right = WEIGHTS[t as usize] * row[t as usize];
                -(1.0 - smoothing) * right - smoothing / COLUMNS as f64 * even
            }
        };
        let weights = TARGETS.iter().filter(|t| counted(**t));
        let weight: f64 = weights.map(|&t| WEIGHTS[t as usize]).sum();
        (logs.iter().zip(&TARGETS).map(error).collect(), weight)
    };
    let targets = |x: &ShardTensor, place: Placements| {
        let array: Array1<i64> = TARGETS
            .iter()
            .map(|&t| if t == -100 { ignore } else { t })
            .collect();
        x.mesh().distribute(&array, place)
    };
    let options = |x: &ShardTensor, how| -> Result<ClassLoss> {
        let weight = x
            .mesh()
            .distribute(&arr1(&WEIGHTS), Placements::replicated())?;
        let options = ClassLoss::new().weight(&weight).ignore(ignore);
        Ok(options.smoothing(smoothing).reduction(how))
    };
    let (each, weight) = errors(ignore, smoothing);
    let total: f64 = each.iter().sum();
    let runs: [(LossReduction, Vec<f64>); 3] = [
        (LossReduction::None, each),
        (LossReduction::Sum, vec![total]),
        (LossReduction::Mean, vec![total / weight]),
    ];
    for (how, exact) in &runs {
        check("cross_entropy", exact, |_, x| {
            let targets = targets(x, Placements::replicated())?;
            x.cross_entropy(&targets, &options(x, *how)?)
        });
        check("nll_loss", &errors(ignore, 0.0).0, |_, x| {
            let targets = targets(x, Placements::replicated())?;
            let options = options(x, LossReduction::None)?.smoothing(0.0);
            x.log_softmax(1)?.nll_loss(&targets, &options)
        });
    }
    // Distributions instead of classes: the mean is over samples.
    let share = |i: usize, j: usize| (1 + (3 * i + j) % 4) as f64 / 10.0;
    let spread: f64 = (0..ROWS)
        .flat_map(|i| (0..COLUMNS).map(move |j| (i, j)))
        .map(|(i, j)| {
            let target = (1.0 - smoothing) * share(i, j) + smoothing / COLUMNS as f64;
            -target * WEIGHTS[j] * logs[i][j]
        })
        .sum();
    check("cross_entropy", &[spread / ROWS as f64], |_, x| {
        let shares = Array2::from_shape_fn((ROWS, COLUMNS), |(i, j)| share(i, j));
        let shares = x.mesh().distribute(&shares, Placements::replicated())?;
        let weight = x
            .mesh()
            .distribute(&arr1(&WEIGHTS), Placements::replicated())?;
        x.cross_entropy(
            &shares,
            &ClassLoss::new().weight(&weight).smoothing(smoothing),
        )
    });
}

#[test]
fn a_target_that_is_no_class_is_an_error_on_all_ranks() {
    let failed = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([2, 3], shard(0))?;
        let loss = |targets: [i64; 2]| {
            let targets = mesh.distribute(&arr1(&targets), shard(0))?;
            x.cross_entropy(&targets, &ClassLoss::new())
        };
        let errors = [loss([0, 3]), loss([-1, 0])].map(|loss| loss.err().map(|e| e.to_string()));
        // The group goes on, with a target that is ignored.
        Ok((errors, loss([-100, 1])?.item()?))
    });
    for (errors, loss) in failed.unwrap() {
        assert!(
            errors[0].as_ref().is_some_and(|e| e.contains("index 3")),
            "{errors:?}"
        );
        assert!(
            errors[1].as_ref().is_some_and(|e| e.contains("index -1")),
            "{errors:?}"
        );
        assert!((loss - 3_f64.ln()).abs() < 1e-6);
    }
}

#[test]
fn losses_of_elements_are_those_of_their_definitions() {
    let p = |i: usize, j: usize| (1 + (i + 2 * j) % 9) as f64 / 10.0;
    let elements = |f: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
        let all = (0..ROWS).flat_map(|i| (0..COLUMNS).map(move |j| (i, j)));
        all.map(|(i, j)| f(at(i, j), p(i, j))).collect()
    };
    let target = |x: &ShardTensor| {
        let p = Array2::from_shape_fn((ROWS, COLUMNS), |(i, j)| p(i, j));
        x.mesh().distribute(&p, Placements::replicated())
    };
    let none = LossReduction::None;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let logits = elements(&|x, p| -(1.7 * p * sigmoid(x).ln() + (1.0 - p) * sigmoid(-x).ln()));
    check("bce with logits", &logits, |_, x| {
        let positive = x
            .mesh()
            .distribute(&arr1(&[1.7]), Placements::replicated())?;
        x.binary_cross_entropy_with_logits(&target(x)?, None, Some(&positive), none)
    });
    let shares = elements(&|x, p| -(p * sigmoid(x).ln() + (1.0 - p) * sigmoid(-x).ln()));
    check("bce", &shares, |_, x| {
        x.sigmoid()?.binary_cross_entropy(&target(x)?, None, none)
    });
    let kl: f64 = elements(&|x, p| p * (p.ln() - x)).iter().sum();
    check("kl_div", &[kl / ROWS as f64], |_, x| {
        x.kl_div(&target(x)?, false, LossReduction::BatchMean)
    });
    check("kl_div of logarithms", &[kl], |_, x| {
        x.kl_div(&target(x)?.log()?, true, LossReduction::Sum)
    });
    let huber = |x: f64, p: f64| {
        let d = (x - p).abs();
        if d < 0.8 {
            0.5 * d * d
        } else {
            0.8 * (d - 0.4)
        }
    };
    check("huber", &elements(&huber), |_, x| {
        x.huber_loss(&target(x)?, 0.8, none)
    });
    let smooth = elements(&|x, p| huber(x, p) / 0.8);
    check("smooth l1", &smooth, |_, x| {
        x.smooth_l1_loss(&target(x)?, 0.8, none)
    });
    let normal = elements(&|x, p| {
        0.5 * (p.ln() + (x - 1.0) * (x - 1.0) / p + (2.0 * std::f64::consts::PI).ln())
    });
    check("gaussian nll", &normal, |_, x| {
        let one = x.mesh().ones([ROWS, COLUMNS], Placements::replicated())?;
        x.gaussian_nll_loss(&one, &target(x)?, true, 1e-6, none)
    });
    let poisson = elements(&|x, p| {
        let t = 10.0 * p;
        let rest = t * t.ln() - t + 0.5 * (2.0 * std::f64::consts::PI * t).ln();
        x.exp() - t * x + if t > 1.0 { rest } else { 0.0 }
    });
    check("poisson nll", &poisson, |_, x| {
        x.poisson_nll_loss(&target(x)?.mul_scalar(10.0)?, true, true, 1e-8, none)
    });
    let l1: f64 = elements(&|x, p| (x - p).abs()).iter().sum();
    check("l1", &[l1 / (ROWS * COLUMNS) as f64], |_, x| {
        x.l1_loss(&target(x)?, LossReduction::Mean)
    });
}

/// As PyTorch: where nothing lies beyond the bend there is the parabola alone, and where nothing lies before it the line.
#[test]
fn losses_bend_anywhere_above_0() {
    type Loss = fn(&ShardTensor, &ShardTensor, f64, LossReduction) -> Result<ShardTensor>;
    let (huber, smooth): (Loss, Loss) = (
        |x, t, delta, how| x.huber_loss(t, delta, how),
        |x, t, beta, how| x.smooth_l1_loss(t, beta, how),
    );
    let parabola = [[0.0, 0.5, 2.0], [0.0, 1.0, 2.0]];
    let line = [[0.0, 1.0, 2.0], [0.0, 1.0, 1.0]];
    let nothing = [[0.0; 3]; 2];
    let cases = [
        (huber, f64::INFINITY, parabola),
        // Which f32 does not hold.
        (huber, 1e39, parabola),
        (smooth, f64::INFINITY, nothing),
        (smooth, 1e-310, line),
        (smooth, 1e-40, line),
        (smooth, 0.0, line),
        (smooth, -0.0, line),
    ];
    let refused = [
        (huber, 0.0),
        (huber, -1.0),
        (huber, f64::NAN),
        (smooth, -1.0),
        (smooth, f64::NAN),
    ];
    let found = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(3, shard(0))?.requires_grad()?;
        let zeros = mesh.zeros([3], shard(0))?;
        for (case, (loss, bend, [values, slopes])) in cases.into_iter().enumerate() {
            let errors = loss(&x, &zeros, bend, LossReduction::None)?;
            let gradient = errors.sum_all()?.grad(&[&x], false)?.remove(0).unwrap();
            let found = [errors, gradient].map(|x| x.to_array::<f32>());
            let [errors, gradient] = found;
            assert_eq!(errors?, arr1(&values).into_dyn(), "{case}");
            assert_eq!(gradient?, arr1(&slopes).into_dyn(), "{case}");
        }
        Ok(refused.map(|(loss, bend)| {
            let refused = loss(&x, &zeros, bend, LossReduction::Mean);
            refused.err().map(|e| e.class())
        }))
    });
    assert_eq!(found.unwrap(), [[Some(ErrorClass::Uniform); 5]; 2]);
}

/// PyTorch's numbers: where nothing is lost there is a parabola as beside it.
#[test]
fn losses_that_bend_have_second_derivatives_at_0() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(4, shard(0))?.sub_scalar(1.0)?.requires_grad()?;
        let zeros = mesh.zeros([4], shard(0))?;
        let sum = LossReduction::Sum;
        let losses = [
            (x.huber_loss(&zeros, 1.5, sum)?, [1.0, 1.0, 1.0, 0.0]),
            // At the bend itself nothing changes any more.
            (x.huber_loss(&zeros, 1.0, sum)?, [0.0, 1.0, 0.0, 0.0]),
            (
                x.smooth_l1_loss(&zeros, 1.6, sum)?,
                [0.625, 0.625, 0.625, 0.0],
            ),
        ];
        for (loss, exact) in losses {
            let slope = loss.grad(&[&x], true)?.remove(0).unwrap();
            let bend = slope.sum_all()?.grad(&[&x], false)?.remove(0).unwrap();
            assert_eq!(bend.to_array::<f32>()?, arr1(&exact).into_dyn());
        }
        Ok(())
    })
    .unwrap();
}

/// Beyond the bend at any distance slopes are what they are near it, and NaN has none.
#[test]
fn losses_that_bend_have_slopes_at_infinity_and_nan() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let of = |x: &[f32]| mesh.distribute(&arr1(x), shard(0));
        let x = of(&[f32::NEG_INFINITY, -1e38, f32::NAN, f32::INFINITY])?.requires_grad()?;
        let zeros = mesh.zeros([4], shard(0))?;
        let none = LossReduction::None;
        let losses = [
            (x.huber_loss(&zeros, 0.5, none)?, [-0.5, -0.5, 0.5]),
            (x.smooth_l1_loss(&zeros, 0.25, none)?, [-1.0, -1.0, 1.0]),
        ];
        for (errors, exact) in losses {
            let slope = errors.sum_all()?.grad(&[&x], false)?.remove(0).unwrap();
            let (errors, slope) = (errors.to_array::<f32>()?, slope.to_array::<f32>()?);
            assert!(errors[[2]].is_nan() && slope[[2]].is_nan());
            assert_eq!([errors[[0]], errors[[3]]], [f32::INFINITY; 2]);
            assert!(errors[[1]].is_finite());
            assert_eq!([slope[[0]], slope[[1]], slope[[3]]], exact);
        }
        Ok(())
    })
    .unwrap();
}

/// A norm of an order that has a name is that under the name.
#[test]
fn orders_of_norms_are_known_by_their_numbers() {
    let found = launch(2, |ctx| {
        // -1, 0, 1, 2, 3
        let x = ctx.mesh_of(2)?.arange(5, shard(0))?.sub_scalar(1.0)?;
        let norm = |p| x.norm(NormOrder::P(p), 0, false)?.item();
        let y = x.reshape([5, 1])?;
        let far = |p| y.cdist(&y, NormOrder::P(p))?.sum_all()?.item();
        let norms = [norm(0.0)?, norm(f64::INFINITY)?, norm(f64::NEG_INFINITY)?];
        Ok((norms, [far(0.0)?, far(f64::INFINITY)?]))
    });
    assert_eq!(found.unwrap(), [([4.0, 3.0, 0.0], [20.0, 40.0]); 2]);
}

#[test]
fn probabilities_of_0_and_1_have_finite_losses_and_gradients() {
    let found = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let p = mesh
            .distribute(&arr1(&[0.0_f32, 1.0, 0.0, 1.0]), shard(0))?
            .requires_grad()?;
        let t = mesh.distribute(&arr1(&[0.0_f32, 1.0, 1.0, 0.0]), shard(0))?;
        let loss = p.binary_cross_entropy(&t, None, LossReduction::None)?;
        let gradients = loss.sum_all()?.backward()?;
        let gradient = gradients.get(&p)?.expect("a gradient").to_array::<f32>()?;
        Ok((
            loss.to_array::<f32>()?,
            gradient.iter().all(|g| g.is_finite()),
        ))
    });
    let (loss, finite) = &found.unwrap()[0];
    assert_eq!(*loss, arr1(&[0.0, 0.0, 100.0, 100.0]).into_dyn());
    assert!(finite);
}

/// 10,000 numbers around 10,000 with a spread of 1, in single precision.
#[test]
fn a_spread_far_from_zero_keeps_its_digits() {
    let n = 10_000;
    let x = |i: usize| (1e4 + ((i * 7919 % 10_007) as f64 / 10_007.0 - 0.5) * 12_f64.sqrt()) as f32;
    let line: Vec<f64> = (0..n).map(|i| f64::from(x(i))).collect();
    let (exact, mean) = (variance(&line, 1.0), line.iter().sum::<f64>() / n as f64);
    let found = launch(3, |ctx| {
        let x = ctx
            .mesh_of(3)?
            .from_fn(n, shard(0).sizes([9_000, 1, 999]), |i| f64::from(x(i[0])))?;
        let x = x.requires_grad()?;
        let (var, mean) = x.var_mean(0, 1.0, false)?;
        let gradients = var.backward()?;
        let gradient = gradients.get(&x)?.expect("a gradient").to_array::<f32>()?;
        Ok((
            var.item()?,
            mean.item()?,
            gradient.into_iter().collect::<Vec<f32>>(),
        ))
    });
    let (var, about, gradient) = &found.unwrap()[2];
    assert!((var / exact - 1.0).abs() < 1e-6, "{var}, not {exact}");
    assert!((about - mean).abs() < 1e-3, "{about}, not {mean}");
    for (i, &slope) in gradient.iter().enumerate() {
        let wanted = 2.0 * (line[i] - mean) / (n - 1) as f64;
        assert!(
            (f64::from(slope) - wanted).abs() < 1e-9,
            "{i}: {slope}, not {wanted}"
        );
    }
}

/// What each rank receives, forward and backward, is a few numbers per cell: nothing of 100,000 elements moves.
#[test]
fn what_moves_is_the_size_of_results() {
    let (rows, columns) = (10_usize, 10_000_usize);
    type Case = (&'static str, usize, fn(&ShardTensor) -> Result<ShardTensor>);
    // Bytes per row that ranks tell each other.
    let cases: [Case; 8] = [
        ("logsumexp", 16, |x| x.logsumexp(1, false)),
        ("softmax", 16, |x| x.softmax(1)),
        ("log_softmax", 16, |x| x.log_softmax(1)),
        ("var", 24, |x| x.var(1, 1.0, false)),
        ("std", 24, |x| x.std(1, 1.0, false)),
        ("argmax", 16, |x| x.argmax(1)),
        ("norm", 8, |x| x.norm(3.0, 1, false)),
        ("normalize", 8, |x| x.normalize(2.0, 1, 1e-12)),
    ];
    for (name, each, f) in cases {
        let moved = launch(4, |ctx| {
            let mesh = ctx.mesh_of(4)?;
            let x = mesh.from_fn([rows, columns], shard(1), |i| {
                ((i[0] + 3 * i[1]) % 17) as f64
            })?;
            let x = x.requires_grad()?;
            let before = ctx.ledger().snapshot();
            let y = f(&x)?;
            let layout = y.layout().clone();
            let forward = ctx.ledger().since(&before).bytes;
            if y.dtype().is_float() {
                y.square()?.sum_all()?.backward()?;
            }
            Ok((
                forward,
                ctx.ledger().since(&before).bytes,
                layout.to_string(),
            ))
        });
        for (forward, both, layout) in moved.unwrap() {
            // A rank receives the states of three others at most.
            let states = 3 * rows * each;
            assert!(
                forward as usize <= states,
                "{name}: {forward} of {states}, {layout}"
            );
            assert!(
                both as usize <= 4 * states,
                "{name}: {both} of {states}, {layout}"
            );
        }
    }
}

#[test]
fn a_cross_entropy_with_sharded_classes_moves_numbers_per_target() {
    let (rows, classes) = (12_usize, 4_000_usize);
    let moved = launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.from_fn([rows, classes], shard(1), |i| {
            ((i[0] + 3 * i[1]) % 17) as f64
        })?;
        let x = x.requires_grad()?;
        let targets: Array1<i64> = (0..rows as i64).map(|i| i * 333).collect();
        let targets = mesh.distribute(&targets, replicate())?;
        let before = ctx.ledger().snapshot();
        let loss = x.cross_entropy(&targets, &ClassLoss::new())?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&x)?.expect("a gradient");
        assert_eq!(gradient.layout(), x.layout());
        Ok(ctx.ledger().since(&before).bytes as usize)
    });
    for bytes in moved.unwrap() {
        assert!(bytes <= 100 * rows, "{bytes} bytes for {rows} targets");
    }
}

#[test]
fn second_derivatives_are_those_of_differences() {
    type Function = fn(&Recorder, &Value) -> Result<Value, shard_ops::OpError>;
    let functions: [(&str, Function); 12] = [
        ("softmax", |t, x| soft::softmax(t, x, &[0])),
        ("softmax of rows", |t, x| soft::softmax(t, x, &[1])),
        ("log_softmax", |t, x| soft::log_softmax(t, x, &[1])),
        ("log_softmax of all", |t, x| {
            soft::log_softmax(t, x, &[0, 1])
        }),
        ("layer_norm", |t, x| {
            let [w, b] = [
                reduce::mean(t, x, &[0], false)?,
                reduce::sum(t, x, &[0], false)?,
            ];
            norm::layer_norm(t, x, 1, Some(&w), Some(&b), 1e-2)
        }),
        ("rms_norm", |t, x| norm::rms_norm(t, x, 1, None, Some(1e-2))),
        ("group_norm", |t, x| {
            let b = reduce::mean(t, x, &[0], false)?;
            norm::group_norm(t, x, 1, None, Some(&b), 1e-2)
        }),
        ("logsumexp", |t, x| stats::logsumexp(t, x, &[0, 1], false)),
        ("var", |t, x| stats::var(t, x, &[0], 1.0, false)),
        ("std", |t, x| stats::std(t, x, &[1], 0.0, true)),
        ("norm", |t, x| stats::norm(t, x, 3.5, &[0], false)),
        ("normalize", |t, x| stats::normalize(t, x, 2.0, &[1], 1e-12)),
    ];
    let layouts: [OnMesh; 2] = [
        (vec![3], || [shard(0).sizes([3, 0, 1])].into()),
        (vec![2, 2], || [shard(1), shard(0)].into()),
    ];
    for (shape, placements) in layouts {
        let checked = Launch::new(shape.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(shape.clone())?;
                let x = mesh.from_fn([4, 3], placements(), |i| 0.3 * at(i[0], i[1]) + 0.05)?;
                for (name, f) in functions {
                    let f = |tape: &Recorder, v: &[Value]| Ok(vec![f(tape, &v[0])?]);
                    let few = GradCheck::default();
                    let report = gradgradcheck(ctx.tape(), &f, &[x.value()], few)
                        .unwrap_or_else(|e| panic!("{name} on {shape:?}: {e}"));
                    assert!(report.compared > 0, "{name}");
                }
                Ok(())
            });
        checked.unwrap();
    }
}

#[test]
fn what_has_no_extreme_or_no_such_dim_is_an_error() {
    let errors = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let none = mesh.ones([3, 0], shard(0))?;
        let some = mesh.ones([3, 2], shard(1))?;
        let error = |found: Result<ShardTensor>| found.err().map(|e| e.to_string());
        assert_eq!(none.argmax(0)?.shape(), [0]);
        assert!(
            none.var(1, 1.0, false)?
                .to_array::<f32>()?
                .iter()
                .all(|v| v.is_nan())
        );
        Ok([
            error(none.argmax(1)),
            error(none.max(1, true).map(|found| found.0)),
            error(none.quantile(&[0.5], 1, Interpolation::Linear)),
            error(some.quantile(&[1.5], 1, Interpolation::Linear)),
            error(some.softmax(2)),
            error(some.var([0, 0], 1.0, false)),
            error(some.cross_entropy(&some, &ClassLoss::new().smoothing(-0.1))),
            error(some.nll_loss(&some.argmax(0)?, &ClassLoss::new())),
        ])
    });
    for (i, error) in errors.unwrap()[1].iter().enumerate() {
        assert!(error.is_some(), "{i}");
    }
}

/// Ops of several steps take the sum of an operand once, whatever reads it after.
#[test]
fn sums_of_operands_are_taken_once() {
    const NONE: LossReduction = LossReduction::None;
    type Apply = fn(&ShardTensor, &ShardTensor) -> Result<ShardTensor>;
    let ops: [(&str, Apply); 17] = [
        ("lerp, start", |x, y| x.lerp(y, y)),
        ("lerp, end", |x, y| y.lerp(x, y)),
        ("lerp, weight", |x, y| y.lerp(y, x)),
        ("bce", |x, y| x.binary_cross_entropy(y, None, NONE)),
        ("bce, target", |x, y| y.binary_cross_entropy(x, None, NONE)),
        ("bce of logits", |x, y| {
            x.binary_cross_entropy_with_logits(y, None, Some(y), NONE)
        }),
        ("bce of logits, target", |x, y| {
            y.binary_cross_entropy_with_logits(x, None, Some(y), NONE)
        }),
        ("kl_div", |x, y| y.kl_div(x, true, NONE)),
        ("gaussian", |x, y| {
            y.gaussian_nll_loss(y, x, true, 1e-6, NONE)
        }),
        ("poisson", |x, y| {
            x.poisson_nll_loss(y, false, true, 1e-8, NONE)
        }),
        ("poisson, target", |x, y| {
            y.poisson_nll_loss(x, true, true, 1e-8, NONE)
        }),
        ("norm", |x, _| x.norm(0.0, 1, false)),
        ("normalize", |x, _| x.normalize(3.0, 1, 1e-12)),
        ("cosine_similarity", |x, y| x.cosine_similarity(y, 1, 1e-8)),
        ("local_response_norm", |x, _| {
            x.local_response_norm(3, 0.5, 0.75, 2.0)
        }),
        ("softmax of columns", |x, _| x.softmax(0)),
        ("histc", |x, _| x.histc(3, 0.0..1.0)),
    ];
    for tracked in [false, true] {
        launch(2, |ctx| {
            let mesh = ctx.mesh_of(2)?.with_dtype(DType::F64);
            let share = |i: &[usize]| (1 + (i[1] * 5 + i[2] * 3) % 14) as f64 / 32.0;
            let terms = mesh.from_fn([2, 6, 4], shard(0), share)?;
            let y = terms.select(0, 0)?.redistribute(replicate())?;
            let terms = if tracked {
                terms.requires_grad()?
            } else {
                terms
            };
            for (name, op) in &ops {
                let x = terms.sum(0, false)?;
                assert!(x.layout().is_partial());
                let before = ctx.ledger().snapshot();
                op(&x, &y)?;
                let moved = ctx.ledger().since(&before).bytes;
                // What the other rank has, and no more.
                assert_eq!(moved, 6 * 4 * 8, "{name}, tracked: {tracked}");
            }
            Ok(())
        })
        .unwrap();
    }
}

/// As `torch.tensor(3.).sum(0)`: a tensor without dims is one element along its only dim, 0 or -1. What PyTorch refuses says so.
#[test]
fn a_number_is_one_element_along_its_only_dim() {
    for ranks in [1, 2] {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let parts = mesh.ones([3], [shard(0)])?.requires_grad()?;
            // Terms of a sum, and the sum.
            for x in [parts.sum_all()?, parts.sum_all()?.reduced()?] {
                type Map = fn(&ShardTensor) -> Result<ShardTensor>;
                // PyTorch's values and slopes.
                let maps: [(Map, f64, f64); 30] = [
                    (|x| x.sum(0, false), 3.0, 1.0),
                    (|x| x.sum(-1, true), 3.0, 1.0),
                    (|x| x.mean([0], true), 3.0, 1.0),
                    (|x| x.nansum(0, false), 3.0, 1.0),
                    (|x| x.nanmean(0, false), 3.0, 1.0),
                    (|x| x.amax(-1, false), 3.0, 1.0),
                    (|x| x.amin(0, false), 3.0, 1.0),
                    (|x| x.prod(0, true), 3.0, 1.0),
                    (|x| x.var(0, 0.0, false), 0.0, 0.0),
                    (|x| Ok(x.var_mean(0, 1.0, true)?.1), 3.0, 1.0),
                    (|x| Ok(x.max(0, true)?.0), 3.0, 1.0),
                    (|x| x.norm(2.0, 0, false), 3.0, 1.0),
                    (|x| x.normalize(2.0, -1, 1e-12), 1.0, 0.0),
                    (|x| x.logsumexp(0, false), 3.0, 1.0),
                    (|x| x.softmax(0), 1.0, 0.0),
                    (|x| x.log_softmax(-1), 0.0, 0.0),
                    (|x| x.softmin(0), 1.0, 0.0),
                    (|x| x.cumsum(0), 3.0, 1.0),
                    (|x| x.cumprod(-1), 3.0, 1.0),
                    (|x| x.logcumsumexp(0), 3.0, 1.0),
                    (|x| Ok(x.cummax(-1)?.0), 3.0, 1.0),
                    (|x| Ok(x.cummin(0)?.0), 3.0, 1.0),
                    (|x| Ok(x.sort(0, true)?.0), 3.0, 1.0),
                    (|x| Ok(x.topk(1, -1, true)?.0), 3.0, 1.0),
                    (|x| Ok(x.topk(0, 0, false)?.0), 3.0, 1.0),
                    (|x| Ok(x.kthvalue(1, 0)?.0), 3.0, 1.0),
                    (|x| Ok(x.median(-1)?.0), 3.0, 1.0),
                    (|x| x.flip(0), 3.0, 1.0),
                    (|x| x.squeeze(-1), 3.0, 1.0),
                    (
                        |x| x.quantile(&[0.5], 0, Interpolation::Linear)?.sum(0, false),
                        3.0,
                        1.0,
                    ),
                ];
                for (i, (map, value, slope)) in maps.into_iter().enumerate() {
                    let y = map(&x)?;
                    assert_eq!((y.ndim(), y.item()?), (0, value), "map {i}");
                    let found = y.backward()?.get(&parts)?.expect("it depends on x");
                    let found = found.sum_all()?.item()? / 3.0;
                    assert!((found - slope).abs() < 1e-12, "slope {i}: {found}");
                }
                assert!(x.var(0, 1.0, false)?.item()?.is_nan());
                let whole: [Map; 14] = [
                    |x| x.argmax(0),
                    |x| x.argmin_keepdim(-1),
                    |x| Ok(x.min(0, false)?.1),
                    |x| x.any(0, false),
                    |x| x.all(0, true),
                    |x| x.count_nonzero(-1, false),
                    |x| x.to(DType::Bool)?.sum(0, false),
                    |x| x.to(DType::I32)?.prod(0, false),
                    |x| Ok(x.cummax(0)?.1),
                    |x| Ok(x.cummin(-1)?.1),
                    |x| Ok(x.sort(0, false)?.1),
                    |x| x.argsort(-1, true),
                    |x| Ok(x.topk(1, 0, true)?.1),
                    |x| x.to(DType::I32)?.cumsum(0),
                ];
                let values = [0., 0., 0., 1., 1., 1., 1., 3., 0., 0., 0., 0., 0., 3.];
                for (i, (map, value)) in whole.iter().zip(values).enumerate() {
                    let y = map(&x)?;
                    assert_eq!(
                        (y.ndim(), y.item()?),
                        (0, value),
                        "map {i} to whole numbers"
                    );
                }
                let refused: [Map; 10] = [
                    |x| x.sum(1, false),
                    |x| x.sum([0, -1], false),
                    |x| x.softmax(-2),
                    |x| x.select(0, 0),
                    |x| x.narrow(-1, 0..1),
                    |x| x.cumsum(1),
                    |x| x.flip(-2),
                    |x| Ok(x.sort(1, false)?.0),
                    |x| x.roll(0, 1),
                    |x| x.diff(1, 0),
                ];
                for (i, map) in refused.iter().enumerate() {
                    let error = map(&x).expect_err("it has no such dim");
                    assert!(error.to_string().contains("dim"), "{i}: {error}");
                }
            }
            Ok(())
        });
        found.unwrap();
    }
}

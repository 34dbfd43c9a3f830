//! Ops against PyTorch's numbers (`xtests/data/ops.json`), on many layouts: values and gradients.

#[cfg(feature = "linalg")]
mod algebra;
mod distributions;
mod functions;
mod layers;

use crate::common::close;
use crate::optimizing::numbers;
use ndarray::{arr1, arr2};
use serde_json::Value;
#[cfg(feature = "linalg")]
use shard_tensor::MatrixNorm;
use shard_tensor::{
    DType, FourierNorm, Interpolation, Launch, LossReduction, Mesh, Placements, Result,
    ShardTensor, Stft, replicate, shard,
};

type Op = fn(&[ShardTensor]) -> Result<ShardTensor>;

/// An op, by its name among the numbers.
type Case = (&'static str, Op);

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtests/data/ops.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// `sin(1.7 n + 0.6 k + 0.3)` of element number `n` of operand number `k`.
fn wave(mesh: &Mesh, shape: &[usize], k: usize, at: &Placements) -> Result<ShardTensor> {
    let angle = |i: &[usize]| {
        let number = i
            .iter()
            .zip(shape)
            .fold(0, |n, (&i, &extent)| n * extent + i);
        1.7 * number as f64 + 0.6 * k as f64 + 0.3
    };
    mesh.from_fn(shape, at, |i| angle(i).sin())?.requires_grad()
}

/// -1 at every third element, 1 at the others.
fn signs(x: &ShardTensor) -> Result<ShardTensor> {
    let columns = x.shape()[1];
    let sign = |i: &[usize]| {
        if (i[0] * columns + i[1]).is_multiple_of(3) {
            -1.0
        } else {
            1.0
        }
    };
    x.mesh().from_fn(x.shape(), [("first", shard(1))], sign)
}

fn classes(x: &ShardTensor) -> Result<ShardTensor> {
    x.mesh()
        .distribute(&arr1(&[2_i64, 0, 3, 3, 1]), [("first", shard(0))])
}

/// The own classes of five samples: some, none, all, one, and one twice.
const OWN: [[i64; 4]; 5] = [
    [3, 0, -1, 1],
    [-1, 2, 0, 1],
    [2, 1, 0, 3],
    [1, -1, 1, -1],
    [0, 0, 2, -1],
];

fn own(x: &ShardTensor) -> Result<ShardTensor> {
    x.mesh().distribute(&arr2(&OWN), [("first", shard(0))])
}

/// How often each of seven observations was seen.
fn counted(x: &ShardTensor) -> Result<ShardTensor> {
    x.mesh()
        .distribute(&arr1(&[1_i64, 2, 0, 3, 1, 1, 2]), [("first", shard(0))])
}

/// With NaN at every fourth element from the second on, and in the third column.
fn holes(x: &ShardTensor) -> Result<ShardTensor> {
    let columns = x.shape()[1];
    let is_hole = |i: &[usize]| f64::from((i[0] * columns + i[1]) % 4 == 1 || i[1] == 2);
    let mask = x
        .mesh()
        .from_fn(x.shape(), [("first", shard(0))], is_hole)?;
    x.masked_fill(&mask.to(DType::Bool)?, f64::NAN)
}

/// Both triangles of cubes.
#[cfg(feature = "linalg")]
fn triangles(x: &ShardTensor, dim: isize) -> Result<ShardTensor> {
    let (_, l, u) = x.square()?.mul(x)?.lu()?;
    ShardTensor::cat(&[&l, &u], dim)
}

/// Three times the identity.
#[cfg(feature = "linalg")]
fn three(x: &ShardTensor) -> Result<ShardTensor> {
    let n = x.shape()[x.ndim() - 1];
    x.mesh()
        .eye([n, n], Placements::replicated())?
        .mul_scalar(3.0)
}

/// Whole; sharded by the first dim in parts that are even, uneven and empty; by the last one; and by both.
fn layouts(shape: &[usize]) -> Vec<(Vec<usize>, Placements)> {
    let n = shape[0];
    vec![
        (vec![1], replicate().into()),
        (vec![3], shard(0).into()),
        (vec![3], shard(0).sizes([n - 1, 0, 1]).into()),
        (vec![8], shard(0).into()),
        (vec![3], shard(-1).into()),
        (vec![2, 2], [shard(0), shard(-1)].into()),
    ]
}

/// What the op gives of waves, and the gradients of the sum of its elements times a cosine, under all layouts.
fn check(cases: &[Case]) {
    let (fixture, mut failed) = (fixture(), Vec::new());
    for &(name, op) in cases {
        let expected = &fixture[name];
        let shapes = expected["inputs"].as_array().expect(name).iter();
        let shapes = shapes.map(|shape| numbers(shape).iter().map(|&n| n as usize).collect());
        let shapes: Vec<Vec<usize>> = shapes.collect();
        let y = numbers(&expected["y"]);
        let gradients = expected["gradients"].as_array().unwrap().iter();
        let gradients: Vec<Vec<f64>> = gradients.map(numbers).collect();
        for (at, (axes, _)) in layouts(&shapes[0]).iter().enumerate() {
            let what = format!("{name}, {at}");
            let launch = Launch::new(axes.iter().product()).dtype(DType::F64);
            let checked = launch.run(|ctx| {
                let mesh = ctx.mesh(["first", "second"].into_iter().zip(axes.iter().copied()))?;
                let inputs = shapes
                    .iter()
                    .enumerate()
                    .map(|(k, shape)| wave(&mesh, shape, k, &layouts(shape)[at].1));
                let inputs = inputs.collect::<Result<Vec<_>>>()?;
                let found = op(&inputs)?;
                close(&what, &found, &y)?;
                let total = found.mul(&cosine(&found)?)?.sum_all()?;
                let slopes = total.grad(&inputs.iter().collect::<Vec<_>>(), false)?;
                for ((slope, input), expected) in slopes.iter().zip(&inputs).zip(&gradients) {
                    match slope {
                        Some(slope) => {
                            assert_eq!(slope.layout(), input.layout(), "{what}");
                            close(&format!("{what}, gradient"), slope, expected)?;
                        }
                        None => assert!(expected.iter().all(|&x| x == 0.0), "{what}"),
                    }
                }
                Ok(())
            });
            if let Err(error) = checked {
                failed.push(error.to_string());
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// `cos(0.9 n)` of element number `n`.
fn cosine(like: &ShardTensor) -> Result<ShardTensor> {
    let shape = like.shape().to_vec();
    let number = |i: &[usize]| {
        i.iter()
            .zip(&shape)
            .fold(0, |n, (&i, &extent)| n * extent + i)
    };
    like.mesh()
        .from_fn(like.shape(), Placements::replicated(), |i| {
            (0.9 * number(i) as f64).cos()
        })
}

const OPS: [Case; 50] = [
    ("soft_margin_loss", |x| {
        x[0].soft_margin_loss(&signs(&x[0])?, LossReduction::Mean)
    }),
    ("multi_margin_loss", |x| {
        x[0].multi_margin_loss(&classes(&x[0])?, 1, 0.7, None, LossReduction::None)
    }),
    ("multi_margin_loss of squares, weighted", |x| {
        let weight = x[0].mesh().linspace(0.5, 2.0, 4, [("first", shard(0))])?;
        x[0].multi_margin_loss(&classes(&x[0])?, 2, 1.0, Some(&weight), LossReduction::Mean)
    }),
    ("multilabel_margin_loss", |x| {
        let scores = x[0].mul_scalar(3.0)?;
        scores.multilabel_margin_loss(&own(&x[0])?, LossReduction::None)
    }),
    ("multilabel_margin_loss of a sample", |x| {
        let own = x[0].mesh().distribute(&arr1(&OWN[0]), replicate())?;
        x[0].multilabel_margin_loss(&own, LossReduction::Mean)
    }),
    ("mode", |x| {
        let again = ShardTensor::cat(&[&x[0], &x[0].narrow(1, 2..4)?], 1)?;
        let (value, at) = again.mode(-1)?;
        value.add(&at.to(DType::F64)?)
    }),
    ("i0", |x| x[0].mul_scalar(4.3)?.i0()),
    ("i0e", |x| x[0].mul_scalar(4.3)?.i0e()),
    ("i1", |x| x[0].mul_scalar(4.3)?.i1()),
    ("i1e", |x| x[0].mul_scalar(4.3)?.i1e()),
    ("multilabel_soft_margin_loss", |x| {
        let weight = x[0].mesh().linspace(0.5, 2.0, 4, [("first", shard(0))])?;
        let share = x[1].square()?;
        x[0].multilabel_soft_margin_loss(&share, Some(&weight), LossReduction::None)
    }),
    ("pairwise_distance", |x| {
        x[0].pairwise_distance(&x[1], 2.0, 1e-6, false)
    }),
    ("pairwise_distance of magnitudes", |x| {
        x[0].pairwise_distance(&x[1], 1.0, 1e-6, true)
    }),
    ("pdist", |x| x[0].pdist(2.0)),
    ("pdist of cubes", |x| x[0].pdist(3.0)),
    ("cov", |x| x[0].cov(1.0, [None, None])),
    ("cov of a list", |x| x[0].cov(0.0, [None, None])),
    ("cov, weighted", |x| {
        let often = counted(&x[0])?;
        x[0].cov(1.0, [Some(&often), Some(&x[1].square()?)])
    }),
    ("cov, counted", |x| {
        let often = counted(&x[0])?;
        x[0].cov(1.0, [Some(&often), None])
    }),
    ("corrcoef", |x| x[0].corrcoef()),
    ("renorm", |x| x[0].renorm(2.0, 0, 1.2)),
    ("renorm of magnitudes", |x| x[0].renorm(1.0, 1, 2.0)),
    ("nanquantile", |x| {
        holes(&x[0])?
            .nanquantile(&[0.3, 0.75], 0, Interpolation::Linear)?
            .nan_to_num(9.0, None, None)
    }),
    ("nanquantile, midpoints", |x| {
        holes(&x[0])?
            .nanquantile(&[0.3], 1, Interpolation::Midpoint)?
            .squeeze(1)?
            .nan_to_num(9.0, None, None)
    }),
    ("trapezoid", |x| x[0].trapezoid(0.3, 0)),
    ("trapezoid at places", |x| x[0].trapezoid_at(&x[1], 0)),
    ("trapezoid at places of each", |x| {
        x[0].trapezoid_at(&x[1], 1)
    }),
    ("cumulative_trapezoid", |x| {
        x[0].cumulative_trapezoid(0.3, -1)
    }),
    ("cumulative_trapezoid at places", |x| {
        x[0].cumulative_trapezoid_at(&x[1], 1)
    }),
    ("vander", |x| x[0].vander(4, true)),
    ("vander, falling", |x| x[0].vander(3, false)),
    ("linear_recurrence", |x| {
        x[0].linear_recurrence(&x[1], None, 0, false)
    }),
    ("linear_recurrence from a state", |x| {
        x[0].linear_recurrence(&x[1], Some(&x[2]), -1, false)
    }),
    ("linear_recurrence, backwards", |x| {
        x[0].linear_recurrence(&x[1], Some(&x[2]), 0, true)
    }),
    ("linear_recurrence, backwards, of few terms", |x| {
        x[0].linear_recurrence(&x[1], None, 0, true)
    }),
    ("selective scan", |x| {
        let decay = x[1].unsqueeze(2)?.mul(&x[2])?.exp()?;
        let input = x[1].mul(&x[0])?.unsqueeze(2)?.mul(&x[3].unsqueeze(1)?)?;
        let h = input.linear_recurrence(&decay, None, 0, false)?;
        h.mul(&x[4].unsqueeze(1)?)?.sum(2, false)
    }),
    ("take", |x| {
        let at = x[0].mesh().distribute(
            &ndarray::arr2(&[[7_i64, 0, 7], [-1, 3, 11]]),
            [("first", shard(1))],
        )?;
        x[0].take(&at)
    }),
    ("tensor_split", |x| {
        let pieces = x[0].tensor_split(3, 0)?;
        ShardTensor::cat(&[&pieces[2], &pieces[0]], 0)
    }),
    ("rot90 by 1", |x| x[0].rot90(1, [0, 1])),
    ("rot90 by 2", |x| x[0].rot90(2, [0, 1])),
    ("rot90 by 3", |x| x[0].rot90(3, [0, 1])),
    ("block_diag", |x| {
        ShardTensor::block_diag(&[&x[0], &x[1], &x[2]])
    }),
    ("trigamma", |x| x[0].mul_scalar(4.3)?.trigamma()),
    ("stft", |x| {
        x[0].stft(&Stft::new(8).hop(3).window(&x[0].mesh().hann_window(
            8,
            true,
            Placements::replicated(),
        )?))
    }),
    ("stft, two-sided", |x| {
        x[0].stft(
            &Stft::new(6)
                .hop(2)
                .window(
                    &x[0]
                        .mesh()
                        .hamming_window(5, false, [("first", shard(0))])?,
                )
                .from_start()
                .two_sided()
                .norm(FourierNorm::Ortho),
        )
    }),
    ("istft", |x| {
        x[0].istft(
            &Stft::new(8).hop(3).window(&x[0].mesh().blackman_window(
                8,
                true,
                Placements::replicated(),
            )?),
            Some(15),
        )
    }),
    ("istft, two-sided", |x| {
        x[0].istft(
            &Stft::new(6).hop(2).two_sided().norm(FourierNorm::Ortho),
            None,
        )
    }),
    ("lgamma", |x| x[0].mul_scalar(4.3)?.lgamma()),
    ("digamma", |x| x[0].mul_scalar(4.3)?.digamma()),
    ("sinc", |x| x[0].mul_scalar(4.3)?.sinc()),
];

#[test]
fn ops_are_pytorchs_wherever_their_operands_lie() {
    check(&OPS);
    check(functions::FUNCTIONS);
}

#[test]
fn layers_are_pytorchs_wherever_their_operands_lie() {
    check(&layers::LAYERS);
}

#[test]
fn distributions_are_pytorchs_wherever_their_parameters_lie() {
    check(distributions::DISTRIBUTIONS);
}

#[cfg(feature = "linalg")]
const ALGEBRA: [Case; 23] = [
    ("solve_triangular", |x| {
        x[0].add(&three(&x[0])?)?
            .solve_triangular(&x[1], false, false)
    }),
    ("solve_triangular of ones above", |x| {
        x[0].solve_triangular(&x[1], true, true)
    }),
    ("pinv", |x| x[0].pinv(None)),
    ("pinv of more columns", |x| x[0].pinv(None)),
    ("lstsq", |x| x[0].lstsq(&x[1])),
    ("lstsq of more columns", |x| x[0].lstsq(&x[1])),
    ("matrix_exp", |x| x[0].mul_scalar(4.0)?.matrix_exp()),
    ("matrix_power", |x| x[0].matrix_power(5)),
    ("matrix_power below 0", |x| {
        x[0].add(&three(&x[0])?)?.matrix_power(-2)
    }),
    ("matrix_norm of MatrixNorm::Frobenius", |x| {
        x[0].matrix_norm(MatrixNorm::Frobenius, false)
    }),
    ("matrix_norm of MatrixNorm::Nuclear", |x| {
        x[0].matrix_norm(MatrixNorm::Nuclear, false)
    }),
    ("matrix_norm of 1.0", |x| x[0].matrix_norm(1.0, false)),
    ("matrix_norm of -1.0", |x| x[0].matrix_norm(-1.0, false)),
    ("matrix_norm of 2.0", |x| x[0].matrix_norm(2.0, false)),
    ("matrix_norm of -2.0", |x| x[0].matrix_norm(-2.0, false)),
    ("matrix_norm of f64::INFINITY", |x| {
        x[0].matrix_norm(f64::INFINITY, false)
    }),
    ("matrix_norm of f64::NEG_INFINITY", |x| {
        x[0].matrix_norm(f64::NEG_INFINITY, false)
    }),
    ("cond", |x| x[0].cond(2.0)),
    ("cond of columns", |x| x[0].add(&three(&x[0])?)?.cond(1.0)),
    ("lu", |x| triangles(&x[0], -1)),
    ("lu of more rows", |x| triangles(&x[0], -2)),
    ("lu of more columns", |x| triangles(&x[0], -1)),
    ("svdvals", |x| x[0].svdvals()),
];

#[cfg(feature = "linalg")]
#[test]
fn matrices_are_pytorchs_wherever_they_lie() {
    check(&ALGEBRA);
    check(algebra::FACTORS);
}

#[cfg(feature = "linalg")]
#[test]
fn all_numbers_of_pytorch_are_compared() {
    let compared = OPS.iter().chain(&ALGEBRA).chain(&layers::LAYERS);
    let compared = compared
        .chain(distributions::DISTRIBUTIONS)
        .chain(algebra::FACTORS)
        .chain(functions::FUNCTIONS)
        .map(|(name, _)| *name);
    let mut compared: Vec<&str> = compared.collect();
    compared.sort_unstable();
    let fixture = fixture();
    let mut all: Vec<&String> = fixture.as_object().unwrap().keys().collect();
    all.sort_unstable();
    assert_eq!(compared, all);
}

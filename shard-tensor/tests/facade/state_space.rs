//! The mixer of Mamba's blocks, against numbers of PyTorch (`xtests/data/mamba.json`), with time in pieces too.

use crate::common::close;
use crate::optimizing::numbers;
use ndarray::{Array1, Array2};
use serde_json::Value;
use shard_tensor::nn::{ModelExt, Module, ParallelPlan, SelectiveStateSpace, StateSpaceSizes};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{
    Context, DType, Launch, Mesh, Placements, Result, ShardTensor, launch, replicate, shard,
};

const SHAPE: [usize; 3] = [2, 11, 6];
const SIZES: StateSpaceSizes = StateSpaceSizes {
    inner: 8,
    states: 3,
    kernel: 4,
    rank: 2,
};

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../xtests/data/mamba.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The number of an element in its tensor.
fn number(at: &[usize], shape: &[usize]) -> f64 {
    let number = at
        .iter()
        .zip(shape)
        .fold(0, |n, (&i, &extent)| n * extent + i);
    number as f64
}

/// A mixer whose weight number `p` is `0.8 sin(1.7 n + p)`.
fn mixer(mesh: &Mesh) -> Result<SelectiveStateSpace> {
    let mixer = SelectiveStateSpace::with_sizes(mesh, SHAPE[2], SIZES)?;
    for (p, (_, weight)) in mixer.parameters().into_iter().enumerate() {
        let value = |i: &[usize]| 0.8 * (1.7 * number(i, weight.shape()) + p as f64).sin();
        weight.set(&mesh.from_fn(weight.shape(), Placements::replicated(), value)?)?;
    }
    Ok(mixer)
}

fn input(mesh: &Mesh, at: &Placements) -> Result<ShardTensor> {
    mesh.from_fn(SHAPE, at, |i| (0.9 * number(i, &SHAPE)).cos())?
        .requires_grad()
}

fn target(mesh: &Mesh, at: &Placements) -> Result<ShardTensor> {
    mesh.from_fn(SHAPE, at, |i| (0.4 * number(i, &SHAPE)).sin())
}

/// Meshes, and how tokens lie: whole, with uneven, empty and few parts of time, with batches or features in parts, and with both.
fn layouts() -> Vec<(Vec<usize>, Placements)> {
    vec![
        (vec![1], replicate().into()),
        (vec![3], shard(1).sizes([2, 8, 1]).into()),
        (vec![3], shard(1).sizes([4, 0, 7]).into()),
        (vec![5], shard(1).sizes([1, 1, 1, 1, 7]).into()),
        (vec![3], shard(0).into()),
        (vec![3], shard(2).into()),
        (vec![2, 3], [shard(0), shard(1)].into()),
    ]
}

fn on_all(check: impl Fn(&Context, &Mesh, &Placements) -> Result<()> + Sync) {
    for (axes, at) in layouts() {
        let checked = Launch::new(axes.iter().product())
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh(["first", "second"].into_iter().zip(axes.iter().copied()))?;
                check(ctx, &mesh, &at)
            });
        checked.unwrap_or_else(|error| panic!("{axes:?} {at:?}: {error}"));
    }
}

#[test]
fn a_mixer_is_pytorchs_wherever_its_tokens_lie() {
    let fixture = fixture();
    on_all(|_, mesh, at| {
        let (mixer, x) = (mixer(mesh)?, input(mesh, at)?);
        let y = mixer.forward(&x)?;
        assert_eq!(y.layout().sharding(1), x.layout().sharding(1));
        close("y", &y, &numbers(&fixture["y"]))?;
        let loss = y.sub(&target(mesh, at)?)?.square()?.mean_all()?;
        let gradients = loss.backward()?;
        close("x", &gradients.get(&x)?.unwrap(), &numbers(&fixture["x"]))?;
        let expected = fixture["gradients"].as_object().unwrap();
        assert_eq!(mixer.parameters().len(), expected.len());
        for (name, parameter) in mixer.parameters() {
            close(
                &name,
                &gradients.get(&parameter)?.unwrap(),
                &numbers(&expected[&name]),
            )?;
        }
        Ok(())
    });
}

/// Three steps of training, with copies of the parameters, with parameters in pieces, and with columns of the first projection in pieces.
#[test]
fn a_mixer_learns_as_pytorchs_does() {
    let losses = numbers(&fixture()["losses"]);
    on_all(|_, mesh, at| {
        for kind in 0..3 {
            let mixer = mixer(mesh)?;
            let mixer = match kind {
                0 => mixer,
                1 => mixer.fully_sharded("first")?,
                _ => {
                    let plan = ParallelPlan::new().colwise("in_proj", "first");
                    mixer.distribute(&plan.rowwise("out_proj", "first"))?
                }
            };
            let mut optimizer = AdamW::new(mixer.parameters(), 1e-2)?;
            let mut found = Vec::new();
            for _ in 0..losses.len() {
                let y = mixer.forward(&input(mesh, at)?.detach())?;
                let loss = y.sub(&target(mesh, at)?)?.square()?.mean_all()?;
                optimizer.step(&loss.backward()?)?;
                found.push(loss.item()?);
            }
            let far = found.iter().zip(&losses).any(|(a, b)| (a - b).abs() > 1e-9);
            assert!(!far, "{kind}: {found:?}, not {losses:?}");
        }
        Ok(())
    });
}

/// Token by token, in pieces of any size, and of none, what is put out is what all tokens at once give, and so are the states.
#[test]
fn tokens_go_on_from_what_is_kept() {
    let fixture = fixture();
    on_all(|ctx, mesh, at| {
        let (mixer, x) = (mixer(mesh)?, input(mesh, at)?.detach());
        for cuts in [
            &[0, 4, 5, 6, 6, 11][..],
            &[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
            &[0, 11],
        ] {
            let (mut kept, mut found) = (None, Vec::new());
            for cut in cuts.windows(2) {
                let tokens = x.narrow(1, cut[0]..cut[1])?;
                let (y, next) = ctx.no_grad(|| mixer.forward_from(&tokens, kept.as_ref()))?;
                assert_eq!(next.inputs.shape(), [2, 3, 8]);
                found.push(y);
                kept = Some(next);
            }
            close("y", &ShardTensor::cat(&found, 1)?, &numbers(&fixture["y"]))?;
            close(
                "states",
                &kept.unwrap().states,
                &numbers(&fixture["states"]),
            )?;
        }
        Ok(())
    });
}

#[test]
fn steps_begin_between_their_bounds_and_what_does_not_fit_is_refused() {
    let checked = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let mixer = SelectiveStateSpace::new(&mesh, 20)?;
        let names: Vec<String> = mixer.parameters().into_iter().map(|p| p.0).collect();
        assert_eq!(names[6..8], ["A_log", "D"]);
        let bias = mixer.dt_proj.bias.as_ref().unwrap();
        let steps = bias.detach().softplus(1.0, 20.0)?;
        let (least, most) = (
            steps.amin(.., false)?.item()?,
            steps.amax(.., false)?.item()?,
        );
        assert!(
            (0.99e-3..0.03).contains(&least) && (0.01..0.101).contains(&most),
            "{least} {most}"
        );
        let refused = |x: &[usize], with: &str| -> Result<()> {
            let x = mesh.zeros(x, Placements::replicated())?;
            let error = mixer.forward(&x).unwrap_err().to_string();
            assert!(error.contains(with), "{error}");
            let error = mixer.forward_from(&x, None).unwrap_err().to_string();
            assert!(error.contains(with), "{error}");
            Ok(())
        };
        refused(&[4, 20], "tokens `[batch, time, width]`")?;
        refused(&[2, 4, 19], "19")?;
        let sizes = StateSpaceSizes {
            kernel: 0,
            ..StateSpaceSizes::of(4)
        };
        let error = SelectiveStateSpace::with_sizes(&mesh, 4, sizes).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("give 1 for none but the token itself")
        );
        // No tokens, and no batch.
        for shape in [[2, 0, 20], [0, 3, 20]] {
            let (y, kept) = mixer.forward_from(&mesh.zeros(shape, [shard(1)])?, None)?;
            assert_eq!(
                (y.shape(), kept.states.shape()),
                (&shape[..], &[shape[0], 1, 40, 16][..])
            );
        }
        Ok(())
    });
    checked.unwrap();
}

/// Documents that are packed give what each gives by itself, and so do their gradients: some of one token, some shorter than the
/// convolution, and some whose number an earlier one has, too.
#[test]
fn documents_that_are_packed_are_mixed_by_themselves() {
    let documents = [
        vec![(7, 3), (-2, 1), (7, 5), (i64::MAX, 2)],
        vec![(0, 2), (1, 9)],
    ];
    on_all(|_, mesh, at| {
        let (mixer, x) = (mixer(mesh)?, input(mesh, at)?);
        let weights = target(mesh, at)?;
        let of = |b: usize| documents[b].iter().flat_map(|&(n, len)| vec![n; len]);
        let numbers: Vec<i64> = (0..2).flat_map(of).collect();
        let numbers = Array2::from_shape_vec((2, 11), numbers).expect("two of eleven");
        let segments = mesh.distribute(&numbers, Placements::replicated())?;

        let packed = mixer.forward_by_segment(&x, &segments)?;
        assert_eq!(packed.layout().sharding(1), x.layout().sharding(1));
        let loss = packed.mul(&weights)?.sum_all()?;
        let found = loss.backward()?;
        let mut rows = Vec::new();
        for (b, documents) in documents.iter().enumerate() {
            let mut alone = Vec::new();
            let mut start = 0;
            for &(_, len) in documents {
                let document = x.narrow(0, b..=b)?.narrow(1, start..start + len)?;
                alone.push(mixer.forward(&document)?);
                start += len;
            }
            rows.push(ShardTensor::cat(&alone, 1)?);
        }
        let alone = ShardTensor::cat(&rows, 0)?;
        assert!(packed.allclose(&alone, 1e-12, 1e-12, false)?);
        let wanted = alone.mul(&weights)?.sum_all()?.backward()?;
        for (name, parameter) in mixer.parameters().into_iter().chain([("x".to_owned(), x)]) {
            let (found, wanted) = (
                found.get(&parameter)?.unwrap(),
                wanted.get(&parameter)?.unwrap(),
            );
            assert!(found.allclose(&wanted, 1e-10, 1e-11, false)?, "{name}");
        }
        Ok(())
    });
}

/// Segments of one row are those of every batch; of no tokens there are none; what is no number for each token is refused.
#[test]
fn segments_are_a_number_for_each_token() {
    on_all(|_, mesh, at| {
        let (mixer, x) = (mixer(mesh)?, input(mesh, at)?.detach());
        let row = mesh.distribute(&Array1::from_elem(11, 4_i64), Placements::replicated())?;
        let one = mixer.forward_by_segment(&x, &row)?;
        assert!(one.allclose(&mixer.forward(&x)?, 1e-12, 1e-12, false)?);
        let none = mixer.forward_by_segment(&x.narrow(1, 3..3)?, &row.narrow(0, 3..3)?)?;
        assert_eq!(none.shape(), [2, 0, 6]);
        let floats = row.to(DType::F64)?;
        for wrong in [&row.narrow(0, 1..)?, &row.unsqueeze(1)?, &floats] {
            let error = mixer.forward_by_segment(&x, wrong).unwrap_err().to_string();
            assert!(error.contains("SelectiveStateSpace"), "{error}");
        }
        Ok(())
    });
}

//! The mixer of Mamba's blocks, against numbers of PyTorch (`xtests/data/mamba.json`), with time in pieces too.

use crate::common::close;
use crate::optimizing::numbers;
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

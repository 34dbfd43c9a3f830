//! A training that was put down goes on as if it had not been.

use crate::scratch;
use ndarray::Array2;
use shard_tensor::checkpoint::Checkpoint;
use shard_tensor::data::{DataError, Loader, Npy, npy_bytes};
use shard_tensor::nn::{BatchNorm, Buffer, Linear, ModelExt, Module};
use shard_tensor::optim::{AdamW, Ema, Optimizer, Plateau};
use shard_tensor::{
    Context, DType, Error, Launch, Mesh, Placements, Result, ShardTensor, State, StateNumber,
    Stateful, replicate, shard, tree,
};
use std::path::Path;

struct Net {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
    seen: Buffer,
}
tree!(Net {
    first,
    norm,
    last,
    seen
});

impl Module for Net {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let hidden = self.norm.forward(&self.first.forward(x)?)?.gelu()?;
        self.seen
            .set(&self.seen.get().add(&hidden.mean_all()?)?.reduced()?)?;
        self.last.forward(&hidden)
    }
}

/// Where a run computes: its ranks, and how it lays out batches and weights.
#[derive(Clone, Copy)]
struct How {
    ranks: usize,
    mesh: &'static [(&'static str, usize)],
    batch: fn() -> Placements,
    place: fn(Net) -> Result<Net>,
}

const FOUR: How = How {
    ranks: 4,
    mesh: &[("x", 2), ("y", 2)],
    batch: || [shard(0), shard(1)].into(),
    place: |net| placed(net, &[shard(1), replicate()].into()),
};
const THREE: How = How {
    ranks: 3,
    mesh: &[("x", 3)],
    batch: || [shard(0)].into(),
    place: |net| placed(net, &[shard(0)].into()),
};
const FOUR_SHARDED: How = How {
    ranks: 4,
    mesh: &[("shard", 4)],
    batch: || [shard(0)].into(),
    place: |net| net.fully_sharded("shard"),
};
const SIX_SHARDED_IN_PAIRS: How = How {
    ranks: 6,
    mesh: &[("data", 3), ("shard", 2)],
    batch: || [shard(0), shard(0)].into(),
    place: |net| net.fully_sharded("shard"),
};

/// The first layer's weights go there, all else everywhere.
fn placed(net: Net, weights: &Placements) -> Result<Net> {
    net.place(|name, _| match name {
        "first.weight" => weights.clone(),
        _ => Placements::replicated(),
    })
}

/// All that a training is made of.
struct Training {
    net: Net,
    adam: AdamW,
    rates: Plateau,
    ema: Ema,
    loader: Loader,
    step: u64,
}

impl Training {
    fn new(mesh: &Mesh, how: How) -> Result<Self> {
        let samples = || {
            let samples = Array2::from_shape_fn((8, 6), |(i, j)| (i * 6 + j) as f64 / 40.0);
            Npy::from_bytes(npy_bytes(&samples).map_err(DataError::other)?)
        };
        let net = Net {
            first: Linear::new(mesh, 6, 5)?,
            norm: BatchNorm::new(mesh, 5)?,
            last: Linear::new(mesh, 5, 1)?,
            seen: Buffer::new(&mesh.zeros((), Placements::replicated())?),
        };
        let net = (how.place)(net)?;
        Ok(Self {
            adam: AdamW::new(net.parameters(), 0.01)?,
            rates: Plateau::new(0.01).patience(1).factor(0.7),
            ema: Ema::new(&net, 0.9)?,
            loader: Loader::new(mesh, 3)?
                .source((how.batch)(), samples)?
                .shuffle(true),
            step: 0,
            net,
        })
    }

    fn job(&mut self, ctx: &Context) -> Checkpoint<'_> {
        Checkpoint::new()
            .model(&mut self.net)
            .optimizer(&mut self.adam)
            .schedule(&mut self.rates)
            .ema(&mut self.ema)
            .data(&mut self.loader)
            .step(&mut self.step)
            .rng(ctx)
    }

    /// Samples come in a random order, with noise, and some of them are dropped.
    fn learn(&mut self, x: &ShardTensor) -> Result<f64> {
        let noisy = x.add(&x.mesh().randn(x.shape(), Placements::replicated())?)?;
        let told = self.net.forward(&noisy)?.dropout(0.3)?;
        let loss = told.sub(&noisy.sum([1], true)?)?.square()?.mean_all()?;
        let mut slopes = loss.backward()?;
        slopes.clip_norm(1.0)?;
        self.adam.step(&slopes)?;
        self.ema.update()?;
        let loss = loss.item()?;
        self.adam.set_learning_rate(self.rates.observe(loss));
        self.step += 1;
        Ok(loss)
    }
}

/// Trains from what `from` has, if anything, up to this step; puts it down in `to`; tells the losses, and the sum of the means
/// of the weights.
fn train(how: How, from: Option<&Path>, until: u64, to: Option<&Path>) -> (Vec<f64>, f64) {
    let told = Launch::new(how.ranks).dtype(DType::F64).seed(5).run(|ctx| {
        let mesh = ctx.mesh(how.mesh.iter().copied())?;
        let mut it = Training::new(&mesh, how)?;
        if let Some(from) = from {
            it.job(ctx).load(from)?;
        }
        let mut losses = Vec::new();
        while it.step < until {
            let batch = it.loader.epoch()?.next().transpose()?;
            if let Some(batch) = batch {
                losses.push(it.learn(&batch[0])?);
            }
        }
        if let Some(to) = to {
            let saving = it.job(ctx).start_save(to)?;
            // What comes now is not in the file.
            it.net
                .last
                .weight
                .set(&(&it.net.last.weight.detach() * 0.0))?;
            saving.wait()?;
        }
        let means = it.ema.means();
        let first = means.iter().find(|(name, _)| name == "first.weight");
        let first = first.map_or(Ok(f64::NAN), |(_, mean)| mean.square()?.sum_all()?.item())?;
        Ok((losses, first))
    });
    let mut told = told.unwrap();
    assert!(told.iter().all(|t| *t == told[0]));
    told.swap_remove(0)
}

/// Puts a training down and goes on there, and elsewhere.
fn goes_on(name: &str, first: How, elsewhere: &[How]) {
    let path = scratch(name);
    let (whole, mean) = train(first, None, 13, None);
    assert!(whole.iter().all(|l| l.is_finite()) && mean.is_finite());
    // In the middle of an epoch, which has three batches.
    assert_eq!(train(first, None, 7, Some(&path)).0, whole[..7]);
    // As it was: every bit.
    assert_eq!(
        train(first, Some(&path), 13, None),
        (whole[7..].to_vec(), mean)
    );
    // On other ranks, under other layouts: up to the order of sums.
    for &how in elsewhere {
        let (other, other_mean) = train(how, Some(&path), 13, None);
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} for {b}");
        assert_eq!(other.len(), 6);
        (other.iter().zip(&whole[7..])).for_each(|(a, b)| near(*a, *b));
        near(other_mean, mean);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_training_goes_on_where_it_was_put_down() {
    goes_on("resume.safetensors", FOUR, &[THREE]);
}

#[test]
fn a_fully_sharded_training_goes_on_where_it_was_put_down() {
    let elsewhere = [THREE, SIX_SHARDED_IN_PAIRS];
    goes_on("resume-sharded.safetensors", FOUR_SHARDED, &elsewhere);
}

/// Takes up nothing.
struct Stubborn;

impl Stateful for Stubborn {
    fn state(&self) -> Result<State> {
        Ok(State::default())
    }

    fn load_state(&mut self, _: &State) -> Result<()> {
        Err(Error::custom("never"))
    }
}

#[test]
fn parts_that_took_their_state_up_get_the_old_one_back_if_another_refuses() {
    let path = scratch("stubborn.safetensors");
    let kept = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let mut w = mesh.ones([3], shard(0))?.requires_grad()?;
        let (mut step, mut never) = (3, Stubborn);
        Checkpoint::new()
            .model(&mut w)
            .step(&mut step)
            .rng(ctx)
            .save(&path)?;
        let (old, drawn) = (w.clone(), mesh.rand([2], replicate())?);
        w.set(&(&old.detach() * 5.0))?;
        step = 7;
        let mut job = Checkpoint::new()
            .model(&mut w)
            .step(&mut step)
            .rng(ctx)
            .with("other", &mut never);
        let refused = job.load(&path).unwrap_err().to_string();
        assert_eq!(refused, "never");
        assert_ne!(
            mesh.rand([2], replicate())?.to_array::<f32>()?,
            drawn.to_array::<f32>()?
        );
        let now = (w.sum_all()?.item()?, step);
        // Without it, all is taken up, and random numbers come again.
        Checkpoint::new()
            .rng(ctx)
            .step(&mut step)
            .model(&mut w)
            .load(&path)?;
        assert_eq!(
            mesh.rand([2], replicate())?.to_array::<f32>()?,
            drawn.to_array::<f32>()?
        );
        Ok((now, (w.sum_all()?.item()?, step)))
    });
    std::fs::remove_file(&path).unwrap();
    assert_eq!(kept.unwrap(), [((15.0, 7), (3.0, 3)); 2]);
}

#[test]
fn numbers_are_kept_to_the_last_bit() {
    let odd = [
        0.1,
        -0.0,
        f64::MIN_POSITIVE / 3.0,
        f64::INFINITY,
        f64::from_bits(0x7ff8_0000_0000_0123),
    ];
    for x in odd {
        let text = StateNumber::Real(x).to_string();
        let Ok(StateNumber::Real(again)) = text.parse() else {
            panic!("{text}")
        };
        assert_eq!(again.to_bits(), x.to_bits(), "{text}");
    }
    assert_eq!(
        u64::MAX.to_string().parse::<StateNumber>().unwrap(),
        StateNumber::Whole(u64::MAX)
    );
    for text in [
        "",
        "0x12",
        "1.5",
        "-1",
        "0xzzzzzzzzzzzzzzzz",
        "é",
        "0x12345678901234é",
    ] {
        assert!(text.parse::<StateNumber>().is_err(), "{text}");
    }
}

fn job_of<'a>(rates: &'a mut Plateau, ctx: &Context) -> Checkpoint<'a> {
    Checkpoint::new().schedule(rates).rng(ctx)
}

#[test]
fn a_plateau_goes_on_from_its_best_loss() {
    let path = scratch("plateau");
    let fallen = Launch::new(2).run(|ctx| {
        let new = || Plateau::new(1.0).factor(0.5).patience(0);
        let (mut first, mut other, mut later) = (new(), new(), new());
        // Before it has heard of any, and what takes that up has.
        job_of(&mut first, ctx).save(&path)?;
        other.observe(5.0);
        job_of(&mut other, ctx).load(&path)?;
        assert_eq!(other, first);
        // After one.
        first.observe(1.0);
        job_of(&mut first, ctx).save(&path)?;
        job_of(&mut later, ctx).load(&path)?;
        assert_eq!(later, first);
        Ok(later.observe(2.0))
    });
    std::fs::remove_file(&path).unwrap();
    assert_eq!(fallen.unwrap(), [0.5; 2]);
}

#[test]
fn a_job_without_context_and_names_given_twice_are_refused() {
    let path = scratch("never");
    let texts = Launch::new(2).run(|ctx| {
        let (mut a, mut b) = (1, 2);
        let nothing = Checkpoint::new().step(&mut a).save(&path).unwrap_err();
        let twice = Checkpoint::new()
            .step(&mut a)
            .with("step", &mut b)
            .rng(ctx)
            .save(&path);
        Ok([nothing.to_string(), twice.unwrap_err().to_string()])
    });
    assert!(!path.exists());
    for [nothing, twice] in texts.unwrap() {
        assert!(nothing.contains("rng(ctx)"), "{nothing}");
        assert!(twice.contains("\"step\" twice"), "{twice}");
    }
}

/// Random numbers go on from where they were put down, whatever seed and however many ranks a program is launched with.
#[test]
fn random_numbers_go_on_under_another_seed() {
    let path = scratch("seed");
    let drawn = |ranks: usize, seed: u64, loads: bool| {
        let drawn = Launch::new(ranks).seed(seed).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            mesh.randn([3], shard(0))?;
            let mut job = Checkpoint::new().rng(ctx);
            match loads {
                true => job.load(&path)?,
                false => job.save(&path)?,
            }
            mesh.randn([3], shard(0))?.to_array::<f32>()
        });
        drawn.unwrap().remove(0)
    };
    let first = drawn(2, 5, false);
    let (same, other) = (drawn(3, 9, true), drawn(2, 9, false));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(first, same);
    assert_ne!(first, other);
}

//! A training that was put down goes on as if it had not been.

use crate::scratch;
use shard_tensor::checkpoint::Checkpoint;
use shard_tensor::nn::{BatchNorm, Buffer, Linear, ModelExt, Module};
use shard_tensor::{
    Context, DType, Error, Gradients, Launch, Mesh, Number, Placements, Result, ShardTensor, State,
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

/// Momentum with a rate that falls, as an optimizer and a schedule in one would be.
struct Momentum {
    slots: Vec<(String, ShardTensor, ShardTensor)>,
    steps: u64,
    rate: f64,
}

impl Momentum {
    fn new(model: &impl ModelExt, layout: &Placements) -> Result<Self> {
        let slot = |(name, p): (String, ShardTensor)| {
            let zeros = p.mesh().zeros(p.shape(), layout.clone())?;
            Ok((name, p, zeros))
        };
        Ok(Self {
            slots: model
                .parameters()
                .into_iter()
                .map(slot)
                .collect::<Result<_>>()?,
            steps: 0,
            rate: 0.1,
        })
    }

    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        (self.steps, self.rate) = (self.steps + 1, self.rate * 0.93);
        for (_, parameter, mean) in &mut self.slots {
            let Some(gradient) = gradients.get(parameter)? else {
                continue;
            };
            let gradient = gradient.redistribute(mean.layout())?;
            *mean = (&*mean * 0.9)
                .add(&(&gradient * (1.0 / self.steps as f64)))?
                .detach();
            let change = (&*mean * self.rate).redistribute(parameter.layout())?;
            parameter.set(&parameter.detach().sub(&change)?)?;
        }
        Ok(())
    }
}

impl Stateful for Momentum {
    fn state(&self) -> Result<State> {
        let mean =
            |(name, _, mean): &(String, ShardTensor, ShardTensor)| (name.clone(), mean.clone());
        Ok(State {
            tensors: self.slots.iter().map(mean).collect(),
            numbers: vec![
                ("steps".into(), Number::Whole(self.steps)),
                ("rate".into(), Number::Real(self.rate)),
            ],
        })
    }

    fn load_state(&mut self, state: &State) -> Result<()> {
        let (steps, rate) = (state.whole("steps")?, state.real("rate")?);
        for (name, _, mean) in &mut self.slots {
            *mean = state
                .tensor(name)
                .ok_or_else(|| Error::custom("a mean"))?
                .clone();
        }
        (self.steps, self.rate) = (steps, rate);
        Ok(())
    }
}

/// Where a run computes: its ranks, and how it lays out data and means.
#[derive(Clone, Copy)]
struct How {
    ranks: usize,
    mesh: &'static [usize],
    data: fn() -> Placements,
    means: fn() -> Placements,
}

const FOUR: How = How {
    ranks: 4,
    mesh: &[2, 2],
    data: || [shard(0).sizes([7, 3]), shard(1)].into(),
    means: || [shard(0), replicate()].into(),
};
const THREE: How = How {
    ranks: 3,
    mesh: &[3],
    data: || [shard(0).sizes([0, 6, 4])].into(),
    means: || [replicate()].into(),
};

/// Trains from what `from` has, if anything, up to this step; puts it down in `to`; tells the losses.
fn train(how: How, from: Option<&Path>, until: u64, to: Option<&Path>) -> Vec<f64> {
    let losses = Launch::new(how.ranks).dtype(DType::F64).seed(5).run(|ctx| {
        let mesh = ctx.mesh_of(how.mesh)?;
        let mut model = net(&mesh)?;
        let mut optimizer = Momentum::new(&model, &(how.means)())?;
        let mut step = 0;
        if let Some(from) = from {
            job(ctx, &mut model, &mut optimizer, &mut step).load(from)?;
        }
        let mut losses = Vec::new();
        while step < until {
            // Data and noise are random, so the counters matter.
            let x = mesh.randn([10, 6], (how.data)())?;
            let loss = model
                .forward(&x)?
                .dropout(0.3)?
                .sub(&x.sum([1], true)?)?
                .square()?
                .mean_all()?;
            optimizer.step(&loss.backward()?)?;
            losses.push(loss.item()?);
            step += 1;
        }
        if let Some(to) = to {
            let saving = job(ctx, &mut model, &mut optimizer, &mut step).start_save(to)?;
            // What comes now is not in the file.
            model
                .last
                .weight
                .set(&(&model.last.weight.detach() * 0.0))?;
            saving.wait()?;
        }
        Ok(losses)
    });
    let losses = losses.unwrap();
    assert!(losses.iter().all(|l| *l == losses[0]));
    losses[0].clone()
}

fn job<'a>(
    ctx: &Context,
    model: &'a mut Net,
    optimizer: &'a mut Momentum,
    step: &'a mut u64,
) -> Checkpoint<'a> {
    Checkpoint::new()
        .model(model)
        .optimizer(optimizer)
        .step(step)
        .rng(ctx)
}

fn net(mesh: &Mesh) -> Result<Net> {
    Ok(Net {
        first: Linear::new(mesh, 6, 5)?,
        norm: BatchNorm::new(mesh, 5)?,
        last: Linear::new(mesh, 5, 1)?,
        seen: Buffer::new(&mesh.zeros((), Placements::replicated())?),
    })
}

#[test]
fn a_training_goes_on_where_it_was_put_down() {
    let path = scratch("resume.safetensors");
    let whole = train(FOUR, None, 12, None);
    assert_eq!(train(FOUR, None, 6, Some(&path)), whole[..6]);
    // As it was: every bit.
    assert_eq!(train(FOUR, Some(&path), 12, None), whole[6..]);
    // On other ranks, under other layouts: up to the order of sums.
    let other = train(THREE, Some(&path), 12, None);
    for (a, b) in other.iter().zip(&whole[6..]) {
        assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} for {b}");
    }
    assert_eq!(other.len(), 6);
    std::fs::remove_file(&path).unwrap();
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
        let text = Number::Real(x).to_string();
        let Ok(Number::Real(again)) = text.parse() else {
            panic!("{text}")
        };
        assert_eq!(again.to_bits(), x.to_bits(), "{text}");
    }
    assert_eq!(
        u64::MAX.to_string().parse::<Number>().unwrap(),
        Number::Whole(u64::MAX)
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
        assert!(text.parse::<Number>().is_err(), "{text}");
    }
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

//! A program that runs on a rank.

use super::values::{At, Values};
use super::{Computed, How, Input, Program, Slip, Step};
use crate::strategies::{integer, resolve};
use shard_ops::testing::{Rng, place, tensor};
use shard_redistribute::MeshComm;
use shard_tensor::{Context, Mesh, Placements, Result, ShardTensor, shard};
use std::cell::Cell;
use std::rc::Rc;

/// Runs a program, in which this rank may slip.
pub(super) fn program(
    program: &Program,
    cx: &Rc<MeshComm>,
    slip: Option<&Slip<Step>>,
) -> Result<Computed> {
    let ctx = Context::new(cx.world().clone(), 5, program.float);
    let mesh = ctx.mesh(
        ["a", "b", "c"]
            .into_iter()
            .zip(program.mesh.iter().copied()),
    )?;
    let mut values = Values::new(&mesh, program.numbers);
    for (at, input) in program.inputs.iter().enumerate() {
        let x = input.placed(&mesh, at as u64)?;
        if input.parameter {
            values.parameters.push(x.clone());
        }
        values.keep("input", x, 9.0);
    }
    let steps = program.steps.len();
    for (at, step) in program.steps.iter().enumerate() {
        match slip.and_then(|slip| slip.at(at, steps, cx)) {
            None => step.run(&mut values)?,
            Some(How::Leave) => return Ok(Computed::default()),
            Some(how) => how.run(step, &mut values)?,
        }
    }

    let mut computed = Computed::default();
    let gradients = gradients(program, &values, &mut computed)?;
    for (at, (x, by)) in values.named().enumerate() {
        computed.add(&format!("value {at} by {by}"), x)?;
    }
    for (name, gradient) in &gradients {
        computed.add(name, gradient)?;
    }
    // Ranks meet once more, as they do where a launch ends: what differs is found out there at the latest.
    let met = mesh.ones([7], Placements::everywhere(shard(0)))?;
    computed.add("all", &met.sum_all()?)?;
    Ok(computed)
}

/// Gradients of a sum of the last values, and of a sum of these.
fn gradients(
    program: &Program,
    values: &Values,
    computed: &mut Computed,
) -> Result<Vec<(String, ShardTensor)>> {
    let mut rng = Rng::new(program.seed, &["ends"]);
    let tracked = values.tensors().filter(|x| x.is_tracked());
    let ends: Vec<_> = tracked.cloned().collect();
    let Some(loss) = weighed(&ends[ends.len().saturating_sub(3)..], &mut rng)? else {
        return Ok(Vec::new());
    };
    computed.add("loss", &loss)?;
    let by: Vec<&ShardTensor> = values.parameters.iter().collect();
    // Of what does not depend on a parameter the gradient is zero, whether the tape knows that or not.
    let filled = |all: Vec<Option<ShardTensor>>| -> Result<Vec<ShardTensor>> {
        let each = all.into_iter().zip(&by);
        each.map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok))
            .collect()
    };
    let twice = rng.one_in(2) && program.float.size() > 2;
    if !twice {
        let gradients = loss.backward()?;
        let each: Result<_> = by.iter().map(|x| gradients.get(x)).collect();
        return Ok(named("gradient", filled(each?)?).collect());
    }
    let first = filled(loss.grad(&by, true)?)?;
    let second = match weighed(&first, &mut rng)?.filter(ShardTensor::is_tracked) {
        Some(sum) => sum.grad(&by, false)?,
        None => vec![None; by.len()],
    };
    let second = named("second gradient", filled(second)?);
    Ok(named("gradient", first).chain(second).collect())
}

fn named(what: &str, all: Vec<ShardTensor>) -> impl Iterator<Item = (String, ShardTensor)> {
    let each = all.into_iter().enumerate();
    each.map(move |(at, x)| (format!("{what} {at}"), x))
}

/// A sum in which each element of each tensor weighs something of its own; `None` of none.
fn weighed(tensors: &[ShardTensor], rng: &mut Rng) -> Result<Option<ShardTensor>> {
    let mut sum: Option<ShardTensor> = None;
    for x in tensors {
        let salt = rng.below(100);
        let weight = move |i: &[usize]| {
            let hash = i.iter().fold(salt + 3, |h, &i| (h * 31 + i + 1) % 1009);
            (hash % 7) as f64 - 3.0
        };
        let layout = x.layout().with_partial_reduced();
        let weights = x.mesh().from_fn(x.shape(), layout, weight)?;
        let part = x.mul(&weights)?.sum_all()?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
    }
    Ok(sum)
}

impl Input {
    fn placed(&self, mesh: &Mesh, seed: u64) -> Result<ShardTensor> {
        let layout = resolve(&self.recipe, mesh.mesh(), &self.shape);
        let data = tensor(&self.shape, |i| integer(seed, i));
        let array = place(mesh.comm(), &layout, &data, mesh.dtype())?;
        let x = ShardTensor::new(mesh.context(), array.into());
        if self.parameter {
            x.requires_grad()
        } else {
            Ok(x)
        }
    }
}

impl How<Step> {
    /// What the rank that slips does in place of a step.
    fn run(&self, step: &Step, values: &mut Values) -> Result<()> {
        match (self, step) {
            (Self::Twice, _) => {
                step.run(values)?;
                step.run(values)
            }
            (Self::Otherwise(seed), Step::Op(op, _)) => Step::Op(op, *seed).run(values),
            (Self::Instead(other), _) => other.run(values),
            (Self::Skip | Self::Leave | Self::Otherwise(_), _) => Ok(()),
        }
    }
}

impl Step {
    fn run(&self, values: &mut Values) -> Result<()> {
        match self {
            Self::Op(op, seed) => (op.run)(&mut At::new(values, op.name, *seed)),
            Self::Recompute(steps, seed) => recomputed(steps.clone(), *seed, values),
            Self::NoGrad(steps) => {
                let mut within = values.clone();
                within.nested = true;
                let ctx = values.mesh.context().clone();
                ctx.no_grad(|| steps.iter().try_for_each(|s| s.run(&mut within)))?;
                let (x, bound) = within.last();
                values.keep("no_grad", x, bound);
                Ok(())
            }
        }
    }
}

/// Runs steps on a few values as a checkpointed function, of which the last value is kept.
fn recomputed(steps: Vec<Step>, seed: u64, values: &mut Values) -> Result<()> {
    let (given, bounds) = values.some(seed);
    let fresh = Values::within(values);
    let bound = Rc::new(Cell::new(0.0));
    let last = Rc::clone(&bound);
    let function = move |given: &[ShardTensor]| {
        let mut values = fresh.clone();
        for (x, &bound) in given.iter().zip(&bounds) {
            values.keep("given", x.clone(), bound);
        }
        steps.iter().try_for_each(|step| step.run(&mut values))?;
        let (x, bound) = values.last();
        last.set(bound);
        Ok(vec![x])
    };
    let given: Vec<&ShardTensor> = given.iter().collect();
    let ctx = values.mesh.context().clone();
    for x in ctx.recompute(&given, function)? {
        values.keep("recompute", x, bound.get());
    }
    Ok(())
}

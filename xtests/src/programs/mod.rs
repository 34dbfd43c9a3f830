//! Programs of many ops, drawn: what they compute on any mesh, from data in any layouts, is what one rank computes.
//!
//! A [`Program`] has inputs in layouts of all kinds and [steps](Step), each of which reads values that are there and makes others: ops,
//! moves, values that are not tracked, parts that the backward pass runs again, gradients in the middle, parameters that are given other
//! values. Which value a step reads, and with which arguments, follows from the step's seed and from shapes, which are the same on one
//! rank. All values are compared at the end, so that what overwrites memory that is still read is found, with the gradients of two
//! sums of them and the gradients of those gradients.
//!
//! Programs of [whole numbers](Numbers::Whole) are compared bit by bit: they add, multiply, compare and move, and so an order of equal
//! numbers, or the one that an extreme is taken from, has to be the same, too. What [smooth functions](Numbers::Smooth) make is
//! compared up to their rounding.

mod any;
mod smooth;
mod values;
mod whole;

use crate::strategies::{Recipe, mesh_shape, recipe, resolve};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use shard_ops::testing::{Rng, place, tensor};
use shard_redistribute::MeshComm;
use shard_tensor::{Context, DType, Mesh, Placements, Result, ShardTensor, shard};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use values::{At, Values};

/// What a program does with numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Adds, multiplies, compares and moves whole numbers, small enough to be exact.
    Whole,
    /// Applies functions that are differentiable everywhere.
    Smooth,
}

/// A program of many ops.
#[derive(Clone, Debug)]
pub struct Program {
    /// Extents of the mesh.
    pub mesh: Vec<usize>,
    /// What its steps are taken from.
    pub numbers: Numbers,
    /// The type of its numbers.
    pub float: DType,
    /// What it begins with.
    pub inputs: Vec<Input>,
    /// What it does with that.
    pub steps: Vec<Step>,
    /// Fixes which values are differentiated, and how much they weigh.
    pub seed: u64,
}

/// Data of a program: whole numbers.
#[derive(Clone, Debug)]
pub struct Input {
    /// Global extents.
    pub shape: Vec<usize>,
    /// The layout they begin in.
    pub recipe: Recipe,
    /// Whether gradients are wanted.
    pub parameter: bool,
}

/// What a program does next.
#[derive(Clone)]
pub enum Step {
    /// An op, or a few.
    Op(&'static Op, u64),
    /// Steps of which the backward pass keeps nothing, and which it runs again; the last value is kept.
    Recompute(Vec<Self>, u64),
    /// Steps that are not differentiated; the last value is kept.
    NoGrad(Vec<Self>),
}

/// A kind of step.
pub struct Op {
    name: &'static str,
    run: fn(&mut At<'_>) -> Result<()>,
}

/// Lists kinds of steps.
macro_rules! ops {
    ($($name:ident => $run:expr,)*) => { &[$($crate::programs::Op { name: stringify!($name), run: $run }),*] };
}
use ops;

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(op, seed) => write!(f, "{op:?}({seed:#x})"),
            Self::Recompute(steps, seed) => write!(f, "recompute({seed:#x}, {steps:?})"),
            Self::NoGrad(steps) => write!(f, "no_grad({steps:?})"),
        }
    }
}

/// What one rank does otherwise than the program says.
#[derive(Clone, Debug)]
pub struct Slip {
    /// Which rank, modulo their number.
    pub rank: usize,
    /// At which step, modulo their number.
    pub step: usize,
    /// What it does there.
    pub how: How,
}

/// What a rank does at a step otherwise than the others.
#[derive(Clone, Debug)]
pub enum How {
    /// Nothing.
    Skip,
    /// The step twice.
    Twice,
    /// The same op, with other operands and arguments.
    Otherwise(u64),
    /// Another step.
    Instead(Step),
    /// It ends there.
    Leave,
}

/// Slips of programs.
pub fn slips(numbers: Numbers) -> impl Strategy<Value = Slip> {
    let how = prop_oneof![
        Just(How::Skip),
        Just(How::Twice),
        any::<u64>().prop_map(How::Otherwise),
        step(numbers).prop_map(How::Instead),
        Just(How::Leave),
    ];
    (0_usize..64, 0_usize..64, how).prop_map(|(rank, step, how)| Slip { rank, step, how })
}

/// What a program computes: values and gradients in full, the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Computed {
    /// What each is, and the bits of its numbers: some may be infinite, which not every text can say.
    pub all: Vec<(String, Vec<u64>)>,
}

/// Programs on meshes of at most so many ranks, of at most so many steps.
pub fn programs(numbers: Numbers, ranks: usize, steps: usize) -> impl Strategy<Value = Program> {
    mesh_shape(ranks).prop_flat_map(move |mesh| {
        let float = match numbers {
            Numbers::Whole => {
                proptest::sample::select(vec![DType::F64, DType::F32, DType::BF16, DType::F16])
            }
            Numbers::Smooth => proptest::sample::select(vec![DType::F64]),
        };
        let inputs = vec(input(mesh.len()), 2..5);
        let steps = vec(step(numbers), 1..=steps);
        (Just(mesh), float, inputs, steps, any::<u64>()).prop_map(
            move |(mesh, float, inputs, steps, seed)| Program {
                mesh,
                numbers,
                float,
                inputs,
                steps,
                seed,
            },
        )
    })
}

fn input(axes: usize) -> impl Strategy<Value = Input> {
    vec(prop_oneof![9 => 1_usize..7, 1 => Just(0)], 1..4).prop_flat_map(move |shape| {
        (
            recipe(axes, shape.len(), true),
            proptest::bool::weighted(0.7),
        )
            .prop_map(move |(recipe, parameter)| Input {
                shape: shape.clone(),
                recipe,
                parameter,
            })
    })
}

fn step(numbers: Numbers) -> impl Strategy<Value = Step> {
    let op = || {
        let all: Vec<&'static Op> = match numbers {
            Numbers::Whole => any::OPS.iter().chain(whole::OPS).collect(),
            Numbers::Smooth => any::OPS.iter().chain(smooth::OPS).collect(),
        };
        (proptest::sample::select(all), any::<u64>()).prop_map(|(op, seed)| Step::Op(op, seed))
    };
    prop_oneof![
        14 => op(),
        1 => (vec(op(), 1..5), any::<u64>()).prop_map(|(steps, seed)| Step::Recompute(steps, seed)),
        1 => vec(op(), 1..3).prop_map(Step::NoGrad),
    ]
}

impl Program {
    /// The same on one rank.
    pub fn alone(&self) -> Self {
        Self {
            mesh: vec![1; self.mesh.len()],
            ..self.clone()
        }
    }

    /// Runs the program on this rank of its mesh.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// Of steps, and of gradients.
    pub fn run(&self, cx: &Rc<MeshComm>) -> Result<Computed> {
        self.run_with(cx, None)
    }

    /// As [`run`](Self::run), where one rank may do something else.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// As [`run`](Self::run), and what ranks hear of the one that slips.
    pub fn run_with(&self, cx: &Rc<MeshComm>, slip: Option<&Slip>) -> Result<Computed> {
        let ctx = Context::new(cx.world().clone(), 5, self.float);
        let mesh = ctx.mesh(["a", "b", "c"].into_iter().zip(self.mesh.iter().copied()))?;
        let mut values = Values::new(&mesh, self.numbers);
        for (at, input) in self.inputs.iter().enumerate() {
            let x = input.placed(&mesh, at as u64)?;
            if input.parameter {
                values.parameters.push(x.clone());
            }
            values.keep("input", x, 9.0);
        }
        let ranks = cx.world().size();
        let slip = slip.filter(|slip| slip.rank % ranks == cx.world().rank());
        for (at, step) in self.steps.iter().enumerate() {
            match slip.filter(|slip| slip.step % self.steps.len() == at) {
                None => step.run(&mut values)?,
                Some(slip) => match (&slip.how, step) {
                    (How::Skip, _) => {}
                    (How::Twice, _) => {
                        step.run(&mut values)?;
                        step.run(&mut values)?;
                    }
                    (How::Otherwise(seed), Step::Op(op, _)) => {
                        Step::Op(op, *seed).run(&mut values)?
                    }
                    (How::Otherwise(_), _) => {}
                    (How::Instead(other), _) => other.run(&mut values)?,
                    (How::Leave, _) => return Ok(Computed::default()),
                },
            }
        }
        let mut computed = Computed::default();
        let gradients = self.differentiate(&values, &mut computed)?;
        for (at, (x, by)) in values.named().enumerate() {
            computed.add(format!("value {at} by {by}"), x)?;
        }
        for (name, gradient) in &gradients {
            computed.add(name.clone(), gradient)?;
        }
        // Ranks meet once more, as they do where a launch ends: what differs is found out there at the latest.
        let met = mesh.ones([7], Placements::everywhere(shard(0)))?;
        computed.add("all".to_owned(), &met.sum_all()?)?;
        Ok(computed)
    }

    /// Gradients of sums of the last values, and of sums of these.
    fn differentiate(
        &self,
        values: &Values,
        computed: &mut Computed,
    ) -> Result<Vec<(String, ShardTensor)>> {
        let mut rng = Rng::new(self.seed, &["ends"]);
        let mut found = Vec::new();
        let ends: Vec<_> = values
            .tensors()
            .filter(|x| x.is_tracked())
            .cloned()
            .collect();
        let Some(loss) = weighed(&ends[ends.len().saturating_sub(3)..], &mut rng)? else {
            return Ok(found);
        };
        computed.add("loss".to_owned(), &loss)?;
        let by: Vec<&ShardTensor> = values.parameters.iter().collect();
        let twice = rng.one_in(2) && !values.once.get() && self.float.size() > 2;
        let first = if twice {
            loss.grad(&by, true)?
        } else {
            let gradients = loss.backward()?;
            by.iter().map(|x| gradients.get(x)).collect::<Result<_>>()?
        };
        // Of what does not depend on a parameter the gradient is zero, whether the tape knows that or not.
        let filled = |all: Vec<Option<ShardTensor>>| -> Result<Vec<ShardTensor>> {
            let each = all.into_iter().zip(&by);
            each.map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok))
                .collect()
        };
        let first = filled(first)?;
        let second = if twice {
            weighed(&first, &mut rng)?
        } else {
            None
        };
        found.extend(named("gradient", first));
        if twice {
            let second = match second.filter(ShardTensor::is_tracked) {
                Some(second) => second.grad(&by, false)?,
                None => vec![None; by.len()],
            };
            found.extend(named("second gradient", filled(second)?));
        }
        Ok(found)
    }
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
        let weights = x.mesh().from_fn(
            x.shape().to_vec(),
            x.layout().with_partial_reduced(),
            move |i| {
                let hash = i.iter().fold(salt + 3, |h, &i| (h * 31 + i + 1) % 1009);
                (hash % 7) as f64 - 3.0
            },
        )?;
        let part = x.mul(&weights)?.sum_all()?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
    }
    Ok(sum)
}

impl Computed {
    fn add(&mut self, what: String, x: &ShardTensor) -> Result<()> {
        let x = x.detach().to(DType::F64)?;
        let numbers = x.to_array::<f64>()?.into_iter().map(f64::to_bits).collect();
        self.all.push((format!("{what} {:?}", x.shape()), numbers));
        Ok(())
    }

    /// What differs from the same program elsewhere: bits, or, of smooth functions, more than rounding.
    pub fn differs(&self, other: &Self, program: &Program) -> Option<String> {
        // Of 16 bits each op's results are rounded once, from sums that `f32` holds.
        let (exact, digits) = match program.float {
            DType::F64 => (1e9, 1e-9),
            DType::F32 => (1e5, 1e-4),
            _ => (f64::INFINITY, 0.1),
        };
        let names = |of: &Self| {
            of.all
                .iter()
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        };
        if names(self) != names(other) {
            return Some(format!("{:?} are not {:?}", names(self), names(other)));
        }
        let differ = |((name, found), (_, wanted)): (&(String, Vec<u64>), &(String, Vec<u64>))| {
            let wanted = wanted.iter().copied().map(f64::from_bits);
            let scale = wanted.clone().fold(1.0_f64, |most, v| most.max(v.abs()));
            // Numbers that are whole and not large are exact; of gradients ties have fractions.
            let bound = match program.numbers {
                Numbers::Whole if scale < exact && !name.contains("gradient") => 0.0,
                _ => digits * scale,
            };
            let same =
                |a: f64, b: f64| (a - b).abs() <= bound || a.is_nan() && b.is_nan() || a == b;
            let found = found.iter().copied().map(f64::from_bits);
            let (at, (a, b)) = found
                .zip(wanted)
                .enumerate()
                .find(|(_, (a, b))| !same(*a, *b))?;
            Some(format!("{name} at {at}: {a} is not {b}"))
        };
        self.all.iter().zip(&other.all).find_map(differ)
    }
}

impl Input {
    fn placed(&self, mesh: &Mesh, seed: u64) -> Result<ShardTensor> {
        let layout = resolve(&self.recipe, mesh.mesh(), &self.shape);
        let data = tensor(&self.shape, |i| crate::strategies::integer(seed, i));
        let array = place(mesh.comm(), &layout, &data, mesh.dtype())?;
        let x = ShardTensor::new(mesh.context(), array.into());
        if self.parameter {
            x.requires_grad()
        } else {
            Ok(x)
        }
    }
}

impl Step {
    fn run(&self, values: &mut Values) -> Result<()> {
        match self {
            Self::Op(op, seed) => (op.run)(&mut At::new(values, op.name, *seed)),
            Self::Recompute(steps, seed) => {
                let (given, bounds) = values.some(*seed);
                let (mesh, numbers, steps) = (values.mesh.clone(), values.numbers, steps.clone());
                let (bound, once) = (Rc::new(Cell::new(0.0)), Rc::clone(&values.once));
                let last = Rc::clone(&bound);
                let kept = mesh.context().clone().recompute(
                    &given.iter().collect::<Vec<_>>(),
                    move |given| {
                        let mut values = Values::new(&mesh, numbers);
                        values.nested = true;
                        values.once = Rc::clone(&once);
                        for (x, &bound) in given.iter().zip(&bounds) {
                            values.keep("given", x.clone(), bound);
                        }
                        for step in &steps {
                            step.run(&mut values)?;
                        }
                        let (x, bound) = values.last();
                        last.set(bound);
                        Ok(vec![x])
                    },
                )?;
                for x in kept {
                    values.keep("recompute", x, bound.get());
                }
                Ok(())
            }
            Self::NoGrad(steps) => {
                let mut within = values.clone();
                within.nested = true;
                values
                    .mesh
                    .context()
                    .clone()
                    .no_grad(|| steps.iter().try_for_each(|s| s.run(&mut within)))?;
                let (x, bound) = within.last();
                values.keep("no_grad", x, bound);
                Ok(())
            }
        }
    }
}

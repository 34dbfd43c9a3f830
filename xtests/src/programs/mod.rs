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
mod computed;
mod run;
mod smooth;
mod values;
mod whole;

pub use self::computed::Computed;

use self::values::At;
use crate::strategies::{Recipe, mesh_shape, recipe};
use proptest::collection::vec;
use proptest::prelude::*;
use shard_redistribute::MeshComm;
use shard_tensor::{DType, Result};
use std::fmt;
use std::rc::Rc;

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

/// What one rank does otherwise than a program of such steps says.
#[derive(Clone, Debug)]
pub struct Slip<S> {
    /// Which rank, modulo their number.
    pub rank: usize,
    /// At which step, modulo their number.
    pub step: usize,
    /// What it does there.
    pub how: How<S>,
}

/// What a rank does at a step otherwise than the others.
#[derive(Clone, Debug)]
pub enum How<S> {
    /// Nothing.
    Skip,
    /// The step twice.
    Twice,
    /// The same op, with other operands and arguments.
    Otherwise(u64),
    /// Another step.
    Instead(S),
    /// It ends there.
    Leave,
}

/// Slips of programs of such steps.
pub fn slips<S: Clone + fmt::Debug>(
    step: impl Strategy<Value = S>,
) -> impl Strategy<Value = Slip<S>> {
    let how = prop_oneof![
        Just(How::Skip),
        Just(How::Twice),
        any::<u64>().prop_map(How::Otherwise),
        step.prop_map(How::Instead),
        Just(How::Leave),
    ];
    (0_usize..64, 0_usize..64, how).prop_map(|(rank, step, how)| Slip { rank, step, how })
}

impl<S> Slip<S> {
    /// What this rank does otherwise at one of so many steps, if it does.
    pub(crate) fn at(&self, step: usize, steps: usize, comm: &MeshComm) -> Option<&How<S>> {
        let (rank, ranks) = (comm.world().rank(), comm.world().size());
        (self.rank % ranks == rank && self.step % steps == step).then_some(&self.how)
    }
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

/// What programs are made of.
pub fn step(numbers: Numbers) -> impl Strategy<Value = Step> {
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
    pub fn run_with(&self, cx: &Rc<MeshComm>, slip: Option<&Slip<Step>>) -> Result<Computed> {
        run::program(self, cx, slip)
    }
}

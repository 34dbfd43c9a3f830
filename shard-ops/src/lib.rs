//! Operators on sharded arrays: local kernels, sharding rules, and the one engine that runs them.
//!
//! An [`Op`] is three things: a **rule** ([`Rule`]) that names every dim of every operand as a *factor* (an
//! index the op loops over), a **kernel** that computes one rank's part, and a **vjp** written with other ops.
//! The [`Engine`] turns a rule and the operands' layouts into a [`Strategy`]: which mesh axes shard which
//! factor, what each operand must look like for that, which halos and redistributions bring it there, and the
//! layout of the result. No op communicates by itself, and no op bypasses the engine.

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(feature = "cuda")]
pub mod cuda;
mod engine;
mod error;
mod families;
mod host;
mod kernel;
mod key;
mod measure;
mod op;
pub mod rng;
mod routes;
mod rows;
mod rule;
mod strategy;
pub mod testing;
mod value;
mod wide;

pub use engine::{Engine, EngineOptions, Handler, Pin};
pub use error::{InOp, OpError, Result};
pub use families::*;
pub use kernel::{
    DeviceCall, DeviceKernel, Fold, FoldState, HostCall, KernelCx, KernelPhase, KernelPolicy,
    OperandBox,
};
pub use key::key_of;
pub use measure::{Measured, measure};
pub use op::{
    Cotangents, Exec, Grads, Halves, Keeps, Op, Precision, Saved, Sums, Terms, Wait, Waiting,
};
pub use routes::{MergedRuns, RouteBy, Routes};
pub use rows::RowCuts;
pub use rule::{Access, Boundaries, FoldBy, Linearity, Meta, Output, Reduction, Rule, RuleBuilder};
pub use shard_kernels::{View, ViewMut};
pub use strategy::{Alternative, Choice, RouteCost, Strategy, WayCost};
pub use value::{Value, Values, holds};

/// What the tests of this crate look at beside what is public.
#[doc(hidden)]
pub mod inside {
    pub use crate::engine::route::asking::{Asked, ask};
    pub use crate::engine::route::runs::{Meeting, OwnRun};
    pub use crate::engine::route::telling::{
        COUNTS, Status, exchange_numbers, swap, tell_counts, tell_rows, within,
    };
    pub use crate::families::attention::advice::advice;
    pub use crate::families::elementwise::UnaryMap;
    #[cfg(feature = "cuda")]
    pub use crate::families::elementwise::cuda::UNARY;
    pub use crate::families::fft::Transform;
    pub use crate::families::indexing::resolve::Resolve;
    pub use crate::families::neighbors::radius::PairsGrad;
    pub use crate::families::norm::{Cells, Normalise, Statistics};
    pub use crate::families::softmax::Softmax;
    pub use crate::kernel::line_of;
    pub use crate::key::with_operand;
    pub use crate::strategy::missing::most_received;
    pub use crate::strategy::routing::{
        Group, Keyed, KeyedDims, Merging, OperandPart, Peer, Routing,
    };
    pub use crate::testing::arrays::Share;

    /// The texts of all families for GPUs, each with what it is compiled for.
    #[cfg(feature = "cuda")]
    pub fn texts() -> impl Iterator<Item = &'static (crate::cuda::KernelSource, &'static str)> {
        crate::families::TEXTS.iter().copied().flatten()
    }
}

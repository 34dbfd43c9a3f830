//! Operators on sharded arrays: local kernels, sharding rules, and the one engine that runs them.
//!
//! An [`Op`] is three things: a **rule** ([`Rule`]) that names every dim of every operand as a *factor* (an
//! index the op loops over), a **kernel** that computes one rank's part, and a **vjp** written with other ops.
//! The [`Engine`] turns a rule and the operands' layouts into a [`Strategy`]: which mesh axes shard which
//! factor, what each operand must look like for that, which halos and redistributions bring it there, and the
//! layout of the result. No op communicates by itself, and no op bypasses the engine.

pub mod attention;
pub mod conv;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod elementwise;
mod engine;
mod error;
mod host;
pub mod kernels;
pub mod matmul;
mod measure;
pub mod moves;
pub mod neighborhood;
pub mod neighbors;
pub mod norm;
mod op;
pub mod optimize;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod resample;
pub mod rng;
mod rows;
mod rule;
mod strategy;
mod value;

pub use engine::{Engine, EngineOptions, Handler, KernelPolicy};
pub use error::{InOp, OpError, Result};
pub use measure::{Measured, measure};
pub use op::{Exec, Fold, FoldState, HostCall, KernelCx, Op, OperandBox, Saved, key_of};
pub use rows::RowCuts;
pub use rule::{Access, Boundaries, FoldBy, Linearity, Meta, Output, Reduction, Rule, RuleBuilder};
pub use strategy::{Choice, Strategy, WayCost};
pub use value::{Value, holds};

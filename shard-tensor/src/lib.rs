//! Distributed tensors for applications: one facade over layouts, communication, operators and gradients.
//!
//! A [`ShardTensor`] is one tensor whose pieces live on many ranks. Programs are written as for one device: every op
//! finds out from the layouts of its operands what must move, moves it, and gives the single-device result in pieces.
//! Pieces may be uneven or empty; a dim may be divided over several axes of a mesh.
//!
//! ```
//! use shard_tensor::{ConvOptions, prelude::*};
//!
//! # fn main() -> Result<()> {
//! let losses = launch(4, |ctx| {
//!     let mesh = ctx.mesh([("h", 2), ("w", 2)])?;
//!     let x = mesh.randn([1, 3, 50, 37], [("h", shard(2).sizes([31, 19])), ("w", shard(3))])?;
//!     let conv = nn::Conv::new(&mesh, 3, 8, [3, 3], ConvOptions::new().padding(1))?;
//!     let mut adam = AdamW::new(conv.parameters(), 1e-2)?;
//!     let mut losses = Vec::new();
//!     for _ in 0..3 {
//!         let loss = conv.forward(&x)?.gelu()?.square()?.mean_all()?;
//!         adam.step(&loss.backward()?)?;
//!         losses.push(loss.item()?);
//!     }
//!     Ok(losses)
//! })?;
//! assert!(losses[0][2] < losses[0][0]); // it learns,
//! assert_eq!(losses[0], losses[3]);     // and all ranks see the same
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//!
//! - [`launch`] runs a program on several ranks; each gets a [`Context`], which makes [`Mesh`]es, which make tensors.
//! - [`Placements`] say where a tensor goes: [`shard`], [`replicate`], per mesh axis, in order or by name.
//! - ops are methods of [`ShardTensor`]; [`op`] has what is needed to write one's own.
//! - [`distributions`] are drawn from, and have densities, entropies and divergences.
//! - [`nn`], [`optim`] and [`checkpoint`] train models; [`data`] reads what they are trained on, where it lies.
//! - the crates below are usable alone: `shard_spec` (layouts), `shard_comm` (communicators), `shard_redistribute`
//!   (moving arrays), `shard_ops` (operators), `shard_autograd` (the tape).
//!
//! # On a cluster
//!
//! With the feature `mpi` the same program runs as processes; see [`guide::cluster`].
//!
//! # Tests
//!
//! [`guide::testing`] shows how programs are tested: under any layout (feature `proptest`), in any order of ranks, with faults.
//!
//! # Errors
//!
//! Everything returns [`Result`]. An [`Error`] is of one of three [classes](ErrorClass): decided from arguments and the
//! same on every rank; seen by one rank and agreed on by all before anything moved; or a failure, after which every
//! other rank hears of the one that failed. Only after the last is the group unusable.
#![forbid(unsafe_code)]

mod autocast;
pub mod checkpoint;
mod context;
pub mod data;
mod dim;
pub mod distributions;
mod error;
mod explain;
mod files;
mod gradients;
pub mod guide;
mod json;
mod launch;
mod local;
mod mesh;
pub mod nn;
mod operators;
mod ops;
pub mod optim;
mod options;
mod placements;
mod processes;
mod profile;
mod recompute;
mod shape;
mod simulate;
mod state;
mod tensor;
mod transfer;

pub use context::Context;
pub use dim::{Dim, DimList, Index, PartSizes, Shifts};
pub use error::{Error, Located, Result};
pub use explain::{ExplainedStep, Explanation};
pub use gradients::{ClipNorm, Gradients};
pub use launch::{Backend, Launch, RankProgram, Returned, launch};
pub use mesh::{LocalSizes, Mesh, Steps};
pub use operators::Operand;
pub use ops::{
    Bins, Branch, ClassLoss, Fused, RadiusPairs, RadiusTable, SphereGrid, SphericalTransform, Stft,
    Unique,
};
pub use options::{ConvOptions, ConvTransposeOptions, PoolOptions, UnfoldOptions};
pub use placements::{AxisPlacement, Placements, partial, replicate, shard};
pub use processes::refuse_copies;
pub use profile::{Profile, Spent};
pub use shape::{Extents, Shape};
pub use simulate::{Forecast, Simulation};
pub use state::{State, StateNumber, Stateful};
pub use tensor::ShardTensor;

pub use ndarray;
pub use shard_autograd::{GradAs, GradCheck, GradReport, HookHandle};
pub use shard_comm::half;
pub use shard_comm::local::{Binding, Interleaving};
pub use shard_comm::{
    Bool, DType, DeviceFactory, DeviceKind, Element, ErrorClass, Fault, FaultKind, Ledger,
    LedgerSnapshot, MatmulPrecision, OpCount, Scalar,
};
pub use shard_ops::Measured;
pub use shard_ops::attention::{Attention, Causal};
pub use shard_ops::elementwise::Unary;
pub use shard_ops::fft::FourierNorm;
pub use shard_ops::fused::Symbol;
pub use shard_ops::grid::{SampleEdge, SampleMode, Sampling};
pub use shard_ops::indexing::{BagReduce, ScatterReduce};
#[cfg(feature = "linalg")]
pub use shard_ops::linalg::MatrixNorm;
pub use shard_ops::loss::LossReduction;
pub use shard_ops::neighborhood::Neighborhood;
pub use shard_ops::rng;
pub use shard_ops::statistics::{Interpolation, NormOrder};
pub use shard_ops::{FoldBy, KernelPolicy, RouteBy};
#[cfg(feature = "proptest")]
pub use shard_spec::strategies;
pub use shard_spec::{DeviceMesh, EdgeMap, Layout, Placement, ReduceOp, ResampleMode};

/// What an op of one's own is made of.
pub mod op {
    pub use shard_ops::testing;
    pub use shard_ops::{
        Access, Boundaries, Cotangents, Exec, Grads, Handler, HostCall, InOp, Keeps, KernelCx,
        Linearity, Meta, Op, OpError, OperandBox, Output, Reduction, RowCuts, Rule, RuleBuilder,
        Saved, Terms, Value, View, ViewMut, key_of,
    };
    pub use shard_ops::{DeviceCall, DeviceKernel, KernelPhase};
    pub use shard_spec::{EdgeMap, Window};

    /// What a kernel for GPUs is written with.
    #[cfg(feature = "cuda")]
    pub mod cuda {
        pub use shard_ops::cuda::{CudaCall, CudaKernel, CudaView, KernelSource, define, kernel};
        pub use shard_ops::cuda_source;
    }
}

/// What a [`Simulation`] runs on.
pub mod simulated {
    pub use shard_comm::LinkCost;
    pub use shard_comm::simulated::{OpTime, Played};
    pub use shard_comm::{Machine, Reductions, Topology};
}

/// What programs usually need.
pub mod prelude {
    pub use crate::checkpoint::Checkpoint;
    pub use crate::nn::{self, ModelExt as _, Module};
    pub use crate::optim::{AdamW, Optimizer as _, Schedule as _, Sgd};
    pub use crate::{
        Context, DType, Error, Launch, LocalSizes, Mesh, Placement, Placements, Result,
        ShardTensor, launch, partial, replicate, shard, tree,
    };
}

/// The program in this crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct OwnReadme;

/// What the tests of this crate look at beside what is public.
#[doc(hidden)]
pub mod inside {
    pub use crate::data::order::shuffled;
    pub use crate::files::boxes::Place;
    pub use crate::files::shared::{mark, same};
    pub use crate::nn::parallel_plan::matches;
    pub use crate::processes::Processes;
}

/// The program in the workspace's README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

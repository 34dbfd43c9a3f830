//! Sharded arrays and the plans that move them from any layout to any other.
//!
//! An [`Array`] is a [`Layout`](shard_spec::Layout) and this rank's piece of the data. Moving an array takes two things, and
//! everything above this crate is built from them:
//!
//! - an **exchange**: every destination element is copied from the rank that owns it (or folded from all ranks
//!   that hold a part of it). Which pieces go where is found by intersecting intervals, one tensor dim at a
//!   time ([`ExchangeBuilder`]); nothing is negotiated, because every rank knows every boundary.
//! - a **reduce**: ranks that hold partial values of the same box combine them
//!   (the `all_reduce` of a [`Communicator`](shard_comm::Communicator)).
//!
//! [`Plan`] strings these together to take an array from one layout to another. Each rank derives its own for its place on the mesh,
//! without communication; the steps are the same on all ranks. It can be printed and run many times.
//!
//! [`CrossPlan`] does the same between different meshes of one world. [`Array::scatter`] and [`Array::gather`] are built on
//! it: only the rank that has the whole tensor ever holds more than its block.
//!
//! # Which method
//!
//! [`Plan::new`] moves directly: every rank reads what it needs and does not have from whoever holds it, which is the least
//! that a rank can receive. Over a network that may still be slow, where one rank must send much or where messages are many
//! and small. [`Plan::cheapest`] prices the alternatives ([`Method`]) by a [`CostModel`] and takes the cheapest;
//! [`Plan::explain`] tells what it will do and why. The program `plan` (feature `cli`) shows it:
//!
//! ```text
//! cargo run -p shard-redistribute --features cli --bin plan -- \
//!     --mesh 2x4 --shape 8192x4096 --from 'S(0) S(1)' --to 'S(1) S(0)' --svg moves.svg
//! ```
//!
//! The table shows the received bytes of the busiest rank as a fraction of the tensor, on a 2x4 mesh, for the two planners of
//! PyTorch 2.15's DTensor (collectives along one mesh axis at a time, with the number of steps in brackets) and for the direct
//! plan:
//!
//! | move | greedy | graph search | direct |
//! |---|---|---|---|
//! | `S(0) S(1)` to `S(1) S(0)` | 0.625 (2) | 0.312 (2) | 0.125 |
//! | `S(0) S(0)` to `S(1) S(1)` | 0.625 (2) | 0.500 (4) | 0.109 |
//! | `S(0) S(0)` to `R S(0)` | 0.875 (2) | 0.406 (3) | 0.250 |
//! | `R S(0)` to `S(0) R` | 0.750 (1) | 0.562 (2) | 0.500 |
//! | `R S(0)` to `S(0) S(0)` | 0.750 (1) | | 0.125 |
//!
//! A plan is an object: [`Plan::run`] it any number of times, [`Plan::start`] it and compute while it is in flight, take its
//! [`Plan::adjoint`], [`Plan::forecast`] its bytes, messages and peak, or write it down (feature `serde`) and read it
//! elsewhere.
//!
//! # Many ranks
//!
//! Where a rank has little for each of many others, messages cost more than bytes. An exchange then goes in **stages**: pieces pass
//! through other ranks, first those of the node, so that a rank has a few messages per doubling of the number of ranks in place of one
//! to each. The model decides, and the elements are the same to the last bit. Without a model of their links, processes that send
//! messages decide by what their communicator says of them. [`PlanReport`] and [`PlanCost`] show stages as the ledger counts them.
//! On 2048 ranks in nodes of eight (10 µs and 40 GB/s between them), in arrays of 2048 x 2048 (`tests/it/staged.rs`):
//!
//! | move | messages | bytes from other nodes | forecast |
//! |---|---|---|---|
//! | `S(0)` to `S(1)` | 2047, in stages 23 | 8 kB, 66 kB | 20.4 ms, 0.20 ms |
//! | `S(0)` to `R` | 2047, 23 | 16.7 MB, 4.2 MB | 20.9 ms, 0.35 ms |
//! | `P(sum)` to `S(0)` | 2047, 23 | 16.7 MB, 3.1 MB | 20.9 ms, 0.35 ms |
//!
//! # Memory
//!
//! Beside its source, a move holds its destination and a bounded staging (64 MiB unless the [model](CostModel::with_staging)
//! or the [plan](Plan::with_staging) says otherwise); a reduction that would need more is cut into rounds. An array that
//! nobody else holds can move in its own memory ([`Array::redistribute_into`]): then no rank ever holds more than the larger
//! of source and destination, and the staging. [`Plan::forecast_into`] tells the bytes, messages and peak beforehand.
//!
//! For example, 1 GiB of f32 from rows to columns over two ranks of one process, with the default staging: the process
//! peaks at 1039 MiB instead of 2051 MiB, and takes 0.19 s where filling fresh memory takes 0.68 s
//! (`cargo run --release -p shard-redistribute --example in_place`, on two cores).
//!
//! # Speed
//!
//! Measured on two idle cores; the programs print the figures of the machine they run on.
//!
//! - *Moving* (`cargo run --release -p xtests --bin bench -- redistribute`): on 2 and on 4 ranks of one process, for 4096x4096
//!   and an uneven 1000x777x13 of f32, moves between rows, columns and copies, sums, rebalancing and 2-D swaps take 0.6 to 1.2
//!   times what threads take to copy (or fold) the same bytes without any library. Replicated to rows is a view.
//! - *Planning* (`... --bin bench -- plan`): 2 to 3 us for a direct plan on small meshes, 40 to 250 us to compare all
//!   methods on up to 12 ranks; on 16,384 ranks at most 0.75 ms for a direct plan with ten thousand messages, 0.93 ms
//!   with the comparison. Where stages are weighed, 0.1 ms on 12 ranks, 0.6 ms on 2048 and 2.5 ms on 16,384. A plan that
//!   is kept is found in 7 ns. Parts of several intervals cost a composition of maps for each pair of parts, which merges
//!   their runs.
//!
//! # Example
//!
//! ```
//! use shard_redistribute::{Array, MeshComm};
//! use shard_spec::{DeviceMesh, Layout, Placement::{Replicate, Shard}};
//! use std::rc::Rc;
//!
//! let sums = shard_comm::local::run(4, |comm| {
//!     let world: Rc<dyn shard_comm::Communicator> = Rc::new(comm);
//!     let mesh = DeviceMesh::new(&[4]).unwrap();
//!     let cx = MeshComm::new(&world, &mesh).unwrap();
//!     // 10 rows over 4 ranks: 3, 3, 3, 1.
//!     let rows = Layout::new(&mesh, &[10, 2], &[Shard(0)]).unwrap();
//!     let x = Array::from_fn::<f64>(&cx, &rows, |i| (2 * i[0] + i[1]) as f64).unwrap();
//!     let whole = x.redistribute(&Layout::replicated(&mesh, &[10, 2])).unwrap();
//!     whole.to_vec::<f64>().unwrap().iter().sum::<f64>()
//! })
//! .unwrap();
//! assert_eq!(sums, [190.0; 4]);
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod array;
mod budget;
mod cost;
mod cross;
mod error;
mod exchange;
mod explain;
mod fingerprint;
mod geometry;
mod handle;
mod history;
mod mesh_comm;
mod path;
mod plan;
mod planner;
mod price;
mod rounds;
#[cfg(feature = "serde")]
mod serial;
mod stages;
mod trace;

pub use array::Array;
pub use cost::CostModel;
pub use cross::CrossPlan;
pub use error::{Incompatible, RedistributeError, Result, TooManyPieces};
pub use exchange::{Exchange, ExchangeBuilder, ExchangeHandle, ExchangeSource, Owners};
pub use explain::{PlanCost, PlanReport, StepReport};
pub use fingerprint::Fingerprint;
pub use handle::PlanHandle;
pub use mesh_comm::MeshComm;
pub use path::Method;
pub use plan::{Considered, Plan, Step};
pub use planner::Planner;
pub use shard_comm::LinkCost;

/// What the tests of this crate look at beside what is public.
#[doc(hidden)]
pub mod inside {
    pub use crate::path::{Axes, Hop, Move, Path, paths};
    pub use crate::price::{HopCost, Prices};
    pub use crate::rounds::ranges::{Block, Cut, Part, UNEVEN, for_each_box};
    pub use crate::stages::{AxisSplit, Stages, digits};
    pub use crate::trace::placements;
}

/// The program in the README runs as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

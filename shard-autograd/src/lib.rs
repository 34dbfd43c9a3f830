//! Reverse-mode differentiation through sharded arrays: a tape, the gradient law, and gradcheck.
//!
//! A [`Recorder`] is an executor of ops ([`Exec`](shard_ops::Exec)) that runs them through another executor and remembers what
//! it ran. Model code and vjps are written against that trait, so the same text computes, records, and, when a derivative is
//! itself recorded, gives derivatives of higher order. Ops have only so many: maps of one number have three derivatives, and a
//! fourth is [`OpError::NoVjp`](shard_ops::OpError::NoVjp).
//!
//! # The gradient law
//!
//! Everything on the tape is global: a value is one tensor with a label that says where its pieces are, and so
//! is its cotangent. What a user sees, from [`Gradients::get`], [`Recorder::grad`] or a hook, has exactly the
//! layout of its value, boundaries included, with replicate in place of partial ([`gradient_layout`]). Inside,
//! a cotangent keeps the label its op gave it for as long as that saves communication:
//!
//! - cotangents of one value are added label by label, and only then brought to one layout: buffers of
//!   different labels are never added;
//! - a move passes its cotangent on unchanged, so that the partial cotangent of a gathered shard is
//!   reduce-scattered and a replicated one is sliced, each with one move;
//! - the gradient of a replicated leaf stays a sum over ranks until it is read. Then all of them are summed
//!   together, in few large reductions; a pass with much to sum starts while it still runs;
//! - a leaf that ops use in [another layout](Recorder::leaf_used_as) than its own is gathered for every use and again for every
//!   vjp that reads it; its gradient is a sum too, of which every rank is left its part, and is taken together with others.
//!
//! # Pieces
//!
//! Code written for one piece, such as a kernel that no op has been declared for, gets this rank's piece of a value from
//! [`Recorder::to_local`] and makes a value of the ranks' pieces with [`Recorder::from_local`]. [`Recorder::map_local`] does
//! both, and derives from the layouts which gradients of copies are sums. Pieces are values on the mesh of one rank alone, on
//! the same tape.
//!
//! # Example
//!
//! The gradients of a linear model whose data are split unevenly over four ranks:
//!
//! ```
//! use shard_autograd::Recorder;
//! use shard_comm::{Communicator, local};
//! use shard_ops::{Engine, EngineOptions, Value, loss::{LossReduction, mse_loss}, matmul::matmul};
//! use shard_redistribute::{Array, MeshComm};
//! use shard_spec::{DeviceMesh, Layout};
//! use std::rc::Rc;
//!
//! let steps = local::run(4, |comm| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
//!     let world: Rc<dyn Communicator> = Rc::new(comm);
//!     let mesh = DeviceMesh::new(&[4])?;
//!     let cx = MeshComm::new(&world, &mesh)?;
//!     let tape = Recorder::new(Engine::new(EngineOptions::default()));
//!
//!     let rows = Layout::parse(&mesh, &[10, 2], "S(0)[5,0,1,4]")?;
//!     let x = Value::new(Array::from_fn(&cx, &rows, |i| (i[0] + 3 * i[1]) as f64)?);
//!     let y = Value::new(Array::from_fn(&cx, &rows.with_shape(&[10, 1])?, |i| i[0] as f64)?);
//!     let w = tape.leaf(Array::from_fn(&cx, &Layout::replicated(&mesh, &[2, 1]), |_| 0.5)?)?;
//!
//!     let loss = mse_loss(&tape, &matmul(&tape, &x, &w)?, &y, LossReduction::Mean)?;
//!     let gradients = tape.backward(&loss, None)?;
//!     let dw = gradients.get(&w)?.ok_or("the loss depends on w")?;
//!     assert_eq!(dw.layout(), w.layout());
//!     Ok(dw.array().to_vec::<f64>()?)
//! })?;
//! for dw in steps {
//!     // d/dw mean((x w - y)^2): the residual is 1.5 in every row.
//!     let dw = dw.map_err(|e| e.to_string())?;
//!     assert!((dw[0] - 13.5).abs() < 1e-12 && (dw[1] - 22.5).abs() < 1e-12);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod accumulate;
mod ahead;
mod autocast;
mod backward;
mod bucket;
mod by_hand;
mod error;
mod gradcheck;
mod gradients;
mod hook;
mod law;
mod local;
mod map_local;
mod node;
mod pass;
mod recompute;
mod recorder;
mod to_mesh;
mod together;
mod used;

pub use error::{AutogradError, GradMismatch, Result};
pub use gradcheck::{Checked, GradCheck, GradReport, gradcheck, gradgradcheck};
pub use gradients::Gradients;
pub use hook::{GradientHook, HookHandle};
pub use law::gradient_layout;
pub use local::GradAs;
pub use node::ValueId;
pub use recompute::recompute;
pub use recorder::Recorder;

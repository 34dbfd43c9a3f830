//! Reverse-mode differentiation through sharded arrays: a tape, the gradient law, and gradcheck.
#![forbid(unsafe_code)]

mod accumulate;
mod backward;
mod bucket;
mod checkpoint;
mod error;
mod gradcheck;
mod gradients;
mod hook;
mod law;
mod node;
mod pass;
mod recorder;

pub use checkpoint::checkpoint;
pub use error::{AutogradError, GradMismatch, Result};
pub use gradcheck::{Checked, GradCheck, GradReport, gradcheck, gradgradcheck};
pub use gradients::Gradients;
pub use hook::{GradientHook, HookHandle};
pub use law::gradient_layout;
pub use node::ValueId;
pub use recorder::Recorder;

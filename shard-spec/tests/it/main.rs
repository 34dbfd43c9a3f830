//! Everything the crate promises, against enumeration and against values known from PyTorch.

mod common;
mod layouts;
mod overlaps;
mod refusals;
mod segments;
#[cfg(feature = "serde")]
mod serial;
mod windows;

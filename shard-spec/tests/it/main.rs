//! Everything the crate promises, against enumeration and against values known from PyTorch.

mod common;
mod layouts;
mod overlaps;
mod refusals;
#[cfg(feature = "serde")]
mod segments;
mod serial;
mod windows;

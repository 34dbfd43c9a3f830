//! Everything the crate promises, against enumeration and against values known from PyTorch.

mod boxes;
mod candidates;
mod common;
mod dim_map;
mod dims;
mod layouts;
mod mesh;
mod overlaps;
mod pad;
mod parts;
mod placement;
mod progression;
mod refusals;
mod reshape;
mod segments;
mod serial;
mod strategies;
mod windows;

//! Arrays that move from any layout to any other, against the global array; and what is planned, and printed of it.

mod any_to_any;
#[cfg(feature = "cli")]
mod cli;
mod common;
mod cross_mesh;
mod in_place;
mod lower_bound;
mod meshes;
mod plan_object;

//! Arrays that move from any layout to any other, checked against the global array; plans, and what is printed about them.

mod any_to_any;
mod common;
mod cross_mesh;
mod folds;
mod in_place;
mod levels;
mod lower_bound;
mod meshes;
mod paths;
mod plan_object;
mod planner;
mod ranges;
mod scarce;
mod staged;
mod stages;
mod trace;

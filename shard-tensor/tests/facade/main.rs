//! Tests of the facade on in-process ranks.

mod constructors;
mod errors;
mod gradients;
mod local;
mod models;
mod operators;
mod random;
mod reading;
mod simulating;
mod training;

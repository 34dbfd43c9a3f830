//! Tests of the facade on in-process ranks.

mod constructors;
mod domains;
mod doors;
mod dtensor;
mod errors;
mod gradients;
mod graphs;
mod histories;
mod indexing;
mod limits;
mod local;
mod models;
mod numbers;
mod operators;
mod random;
mod reading;
mod scans;
mod simulating;
mod training;
mod types;

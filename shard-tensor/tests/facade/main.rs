//! Tests of the facade on in-process ranks.

mod constructors;
mod counts;
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
mod noise;
mod numbers;
mod operators;
mod peers;
mod products;
mod random;
mod reading;
mod scans;
mod simulating;
mod statistics;
mod training;
mod types;
mod windows;

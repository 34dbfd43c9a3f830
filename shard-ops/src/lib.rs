//! Operators on sharded arrays: local kernels, sharding rules, and the one engine that runs them.

pub mod kernels;

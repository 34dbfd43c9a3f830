//! Ranks as threads, and one rank played, by what a user of the crate can call: promises, hard programs, faults, and orders of ranks.

mod checked;
mod contract;
#[cfg(feature = "cuda")]
mod cuda;
mod endurance;
mod faults;
mod interleavings;
mod ledger;
mod local;
#[cfg(feature = "nccl")]
mod nccl;
mod plans;
mod simulated;
mod staged;
mod topology;
mod watch;

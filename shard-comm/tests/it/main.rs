//! Ranks as threads, and one rank played, by what a user of the crate can call: promises, hard programs, faults, and orders of ranks.

// The programs of the contract take these names from the crate that they are compiled in: see `contract.rs`.
#[cfg(not(feature = "contract-tests"))]
use shard_comm::*;

mod checked;
pub mod contract;
mod endurance;
mod faults;
mod ledger;
mod local;
mod plans;
mod schedules;
mod simulated;
mod staged;
mod topology;
mod watch;

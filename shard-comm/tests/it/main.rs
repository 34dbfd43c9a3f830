//! Ranks as threads, by what a user of the crate can call: hard programs, faults, and orders of ranks.

mod endurance;
mod faults;
mod schedules;

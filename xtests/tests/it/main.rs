//! The programs, as they are started, and short runs of what they run.

mod bench;
mod cli;
mod conformance_quick;
mod faults;
mod over_channels;
mod page;
mod step_memory;

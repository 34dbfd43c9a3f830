//! The programs, as they are started, and short runs of what they run; cases, layouts and what else they are made of.

mod bench;
mod case;
mod cli;
mod conformance_quick;
mod faults;
mod layouts;
mod made;
mod names;
mod over_channels;
mod page;
mod parsers;
mod report;
mod step_memory;
mod trial;

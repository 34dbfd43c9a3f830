//! What is kept of something that trains: named tensors and numbers.

use crate::{Result, ShardTensor};

/// Tensors and numbers under names, in a fixed order that is the same on every rank.
///
/// A tensor of a state is laid out as its owner wants it: what is loaded is read into that layout, whatever mesh it was
/// saved from.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The tensors.
    pub tensors: Vec<(String, ShardTensor)>,
    /// The numbers. All ranks have the same.
    pub numbers: Vec<(String, Number)>,
}

/// A number of a [`State`], kept to the last bit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count, as of steps.
    Whole(u64),
    /// A rate, or another real number.
    Real(f64),
}

/// What can be put down and taken up again: models, optimizers, schedules, random numbers, places in data.
pub trait Stateful {
    /// All that a program which starts anew would have to know. Before a first step too it lists every tensor, laid out as it
    /// will be.
    ///
    /// # Collective
    /// All ranks of the program. No communication.
    ///
    /// # Errors
    /// What the device reports.
    fn state(&self) -> Result<State>;

    /// Takes up a state. Its tensors have the layouts of those that [`state`](Self::state) gives.
    ///
    /// # Collective
    /// All ranks of the program, with the same state. No communication.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) if something is missing or does not fit; nothing is changed then.
    fn load_state(&mut self, state: &State) -> Result<()>;
}

impl State {
    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&ShardTensor> {
        find(&self.tensors, name)
    }

    /// The number of this name.
    pub fn number(&self, name: &str) -> Option<Number> {
        find(&self.numbers, name).copied()
    }
}

fn find<'a, T>(named: &'a [(String, T)], name: &str) -> Option<&'a T> {
    named
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, found)| found)
}

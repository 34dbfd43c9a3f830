//! What is kept of something that trains: named tensors and numbers.

use crate::{Error, Result, ShardTensor};
use std::fmt;
use std::str::FromStr;

/// Tensors and numbers under names, in a fixed order that is the same on every rank.
///
/// A tensor of a state is laid out as its owner wants it: what is loaded is read into that layout, whatever mesh it was
/// saved from.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The tensors.
    pub tensors: Vec<(String, ShardTensor)>,
    /// The numbers. All ranks have the same.
    pub numbers: Vec<(String, StateNumber)>,
}

/// A number of a [`State`], kept to the last bit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StateNumber {
    /// A count, as of steps.
    Whole(u64),
    /// A rate, or another real number.
    Real(f64),
}

/// What can be put down and taken up again: models, optimizers, schedules, random numbers, places in data.
pub trait Stateful {
    /// All that a program which starts anew would have to know. Before a first step too it lists every tensor, laid out as it
    /// will be, and every number: what is not listed is not read from a file.
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
    pub fn number(&self, name: &str) -> Option<StateNumber> {
        find(&self.numbers, name).copied()
    }

    /// The count of this name.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) if there is none, or it is a real number.
    #[track_caller]
    pub fn whole(&self, name: &str) -> Result<u64> {
        match self.number(name) {
            Some(StateNumber::Whole(n)) => Ok(n),
            found => Err(lacking(name, "a whole number", found)),
        }
    }

    /// The real number of this name.
    ///
    /// # Errors
    /// [`Argument`](crate::Error::Argument) if there is none, or it is a whole number.
    #[track_caller]
    pub fn real(&self, name: &str) -> Result<f64> {
        match self.number(name) {
            Some(StateNumber::Real(x)) => Ok(x),
            found => Err(lacking(name, "a real number", found)),
        }
    }
}

/// A count alone, under no name of its own.
impl Stateful for u64 {
    fn state(&self) -> Result<State> {
        Ok(State {
            tensors: Vec::new(),
            numbers: vec![(String::new(), StateNumber::Whole(*self))],
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        *self = state.whole("")?;
        Ok(())
    }
}

/// As text: of a real number its bits, and what they come to.
impl fmt::Display for StateNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(n) => write!(f, "{n}"),
            Self::Real(x) => write!(f, "0x{:016x} = {x:?}", x.to_bits()),
        }
    }
}

impl FromStr for StateNumber {
    type Err = Error;

    #[track_caller]
    fn from_str(text: &str) -> Result<Self> {
        let bits = text.strip_prefix("0x").and_then(|t| t.get(..16));
        let read = match bits {
            Some(bits) => {
                u64::from_str_radix(bits, 16).map(|bits| Self::Real(f64::from_bits(bits)))
            }
            None => text.parse().map(Self::Whole),
        };
        read.map_err(|e| {
            let expected = "a whole number, or the 16 hexadecimal digits of a real one after 0x";
            Error::argument(
                "Number",
                expected,
                format!("{text:?}: {e}"),
                "check the file",
            )
        })
    }
}

#[track_caller]
fn lacking(name: &str, expected: &str, found: Option<StateNumber>) -> Error {
    Error::argument(
        "load_state",
        format!("{expected} as {name:?}"),
        found.map_or_else(|| "nothing".to_owned(), |n| n.to_string()),
        "give all that `state` lists",
    )
}

fn find<'a, T>(named: &'a [(String, T)], name: &str) -> Option<&'a T> {
    named
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, found)| found)
}

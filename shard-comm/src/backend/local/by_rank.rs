//! What ranks gave, in their order.

use std::sync::{Mutex, PoisonError};

/// What ranks gave, in the order of their numbers, whoever came first. Each gives one value.
///
/// Nearly all of it is compiled once: programs are many, and most return something of a type of their own.
#[doc(hidden)]
#[derive(Debug)]
pub struct ByRank<T>(Mutex<(Vec<usize>, Vec<T>)>);

/// Nothing yet.
impl<T> Default for ByRank<T> {
    fn default() -> Self {
        Self(Mutex::new((Vec::new(), Vec::new())))
    }
}

impl<T> ByRank<T> {
    /// Keeps what a rank gave.
    pub fn keep(&self, rank: usize, value: T) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = place(&mut kept.0, rank);
        kept.1.insert(at, value);
    }

    /// All that was given.
    pub fn into_values(self) -> Vec<T> {
        self.0
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .1
    }
}

/// Where a rank comes among those that have come, of which it is now one.
fn place(ranks: &mut Vec<usize>, rank: usize) -> usize {
    let at = ranks.partition_point(|&earlier| earlier < rank);
    ranks.insert(at, rank);
    at
}

//! Short runs of a cell, gathered until they fill a block.

use super::BLOCK;
use crate::Real;
use crate::whole::gathered;

/// Elements of a run up to which those of a cell are gathered, where to join what each one comes to takes longer than to copy them.
pub(crate) const SHORT_RUN: usize = 128;

/// Elements of a cell that have not been reduced yet.
pub(crate) struct Pending<T> {
    room: [T; BLOCK],
    filled: usize,
}

impl<T: Real> Pending<T> {
    pub(crate) fn new() -> Self {
        Self {
            room: [T::zero(); BLOCK],
            filled: 0,
        }
    }

    /// Adds `n` elements from position `at` on, `step` apart, and calls `f` with each block that is full.
    pub(crate) fn add(
        &mut self,
        data: &[T],
        (mut at, mut n, step): (usize, usize, isize),
        mut f: impl FnMut(&[T]),
    ) {
        while n > 0 {
            let len = n.min(BLOCK - self.filled);
            let to = &mut self.room[self.filled..][..len];
            if step == 1 {
                to.copy_from_slice(&data[at..][..len]);
            } else {
                gathered(data, at, step, to);
            }
            (at, n) = (at.wrapping_add_signed(len as isize * step), n - len);
            self.filled += len;
            if self.filled == BLOCK {
                self.take(&mut f);
            }
        }
    }

    /// Calls `f` with what is left, if anything is.
    pub(crate) fn take(&mut self, mut f: impl FnMut(&[T])) {
        if self.filled > 0 {
            f(&self.room[..self.filled]);
            self.filled = 0;
        }
    }
}

//! Memory for intermediate results, which a thread keeps: it would be fresh pages with each call otherwise.

use crate::Real;
use bytemuck::{Pod, Zeroable};
use std::cell::Cell;

/// The memory of a cache line, so that whole vectors never lie in two of them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

thread_local! {
    static KEPT: Cell<Vec<CacheLine>> = const { Cell::new(Vec::new()) };
}

/// Numbers to be taken in parts. They may be anything.
#[derive(Debug)]
pub(super) struct Scratch<'a, A>(&'a mut [A]);

impl<A: Real> Scratch<'_, A> {
    /// Calls `f` with so many numbers. Parts that are whole units begin at cache lines.
    pub(super) fn with(numbers: usize, f: impl FnOnce(Scratch<'_, A>)) {
        let lines = (numbers * size_of::<A>()).div_ceil(size_of::<CacheLine>());
        let mut kept = KEPT.take();
        if kept.len() < lines {
            kept.resize(lines, CacheLine::zeroed());
        }
        f(Scratch(bytemuck::cast_slice_mut(&mut kept)));
        KEPT.set(kept);
    }
}

impl<'a, A> Scratch<'a, A> {
    pub(super) fn take(&mut self, numbers: usize) -> &'a mut [A] {
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut(numbers);
        self.0 = rest;
        taken
    }
}

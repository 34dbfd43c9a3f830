//! Memory for intermediate results, which a thread keeps: it would be fresh pages with each call otherwise.

use bytemuck::{Pod, Zeroable};
use std::cell::Cell;

/// The memory of a cache line, so that whole vectors never lie in two of them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// The most lines that are kept: 16 MiB.
const MOST: usize = (16 << 20) / size_of::<CacheLine>();

thread_local! {
    static KEPT: Cell<Vec<CacheLine>> = const { Cell::new(Vec::new()) };
}

/// The thread's memory, until this is dropped. Who asks for it meanwhile gets memory of its own.
#[derive(Debug)]
pub(crate) struct Room(Vec<CacheLine>);

impl Room {
    pub(crate) fn new() -> Self {
        Self(KEPT.take())
    }

    /// So many numbers.
    pub(crate) fn numbers<A: Pod>(&mut self, numbers: usize) -> Scratch<'_, A> {
        let lines = (numbers * size_of::<A>()).div_ceil(size_of::<CacheLine>());
        if self.0.len() < lines {
            self.0.resize(lines, CacheLine::zeroed());
        }
        let lines = &mut self.0[..lines];
        if cfg!(debug_assertions) {
            // Not a number: who reads what it has not written sees it.
            lines.fill(CacheLine([0xff; 64]));
        }
        Scratch(bytemuck::cast_slice_mut(lines))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.0.len() <= MOST {
            KEPT.set(std::mem::take(&mut self.0));
        }
    }
}

/// Numbers to be taken in parts. They may be anything.
#[derive(Debug)]
pub(crate) struct Scratch<'a, A>(&'a mut [A]);

impl<A: Pod> Scratch<'_, A> {
    /// Calls `f` with so many numbers. Parts that are whole units begin at cache lines.
    pub(crate) fn with(numbers: usize, f: impl FnOnce(Scratch<'_, A>)) {
        f(Room::new().numbers(numbers));
    }
}

impl<'a, A> Scratch<'a, A> {
    pub(crate) fn take(&mut self, numbers: usize) -> &'a mut [A] {
        let (taken, rest) = std::mem::take(&mut self.0).split_at_mut(numbers);
        self.0 = rest;
        taken
    }
}

//! Memory for intermediate results, which a thread keeps: it would be fresh pages with each call otherwise.

use bytemuck::{Pod, Zeroable};
use std::cell::RefCell;

/// The memory of a cache line, so that whole vectors never lie in two of them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// The most lines of a piece of memory that is kept: 16 MiB.
const MOST: usize = (16 << 20) / size_of::<CacheLine>();

thread_local! {
    static KEPT: RefCell<Vec<Vec<CacheLine>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of the thread's, until this is dropped. Who asks meanwhile, such as a product within a convolution, gets another piece, which is
/// kept too.
#[derive(Debug)]
pub(crate) struct Room(Vec<CacheLine>);

impl Room {
    pub(crate) fn new() -> Self {
        Self(KEPT.with_borrow_mut(Vec::pop).unwrap_or_default())
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

    /// All its numbers as they are.
    pub(crate) fn as_numbers<A: Pod>(&self) -> &[A] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.0.len() <= MOST {
            let lines = std::mem::take(&mut self.0);
            KEPT.with_borrow_mut(|kept| kept.push(lines));
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

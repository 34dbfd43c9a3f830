//! One buffer that holds a source and, page by page in its place, a destination.
//!
//! The source's elements never move. A page of them is released when all of it has been read. Destination pages are put into
//! released ones as they come, and a table remembers where. At the end they are brought into order.

use super::ranges::{Block, Cut};
use crate::Result;
use shard_comm::{BufferMut, DeviceRef};

/// The place of a page that has no place yet.
const NOWHERE: u32 = u32::MAX;

/// When pages of the source become free, and when pages of the destination are first written.
#[derive(Clone, Debug)]
pub(super) struct Timetable {
    /// Elements in a page.
    page: usize,
    /// Per page of the source, one more than the last round that reads from it; 0 if none does.
    released: Vec<u32>,
    /// Number of pages of the buffer.
    pub(super) pages: usize,
    /// Number of pages of the destination.
    wanted: usize,
}

impl Timetable {
    /// Simulates `rounds` rounds over pages of `page` elements, for a source and a destination of these lengths.
    pub(super) fn new(
        page: usize,
        rounds: usize,
        (source, reads): (usize, &[Block]),
        (destination, writes): (usize, &[Block]),
    ) -> Self {
        let mut released = vec![0_u32; source.div_ceil(page)];
        for block in reads {
            for_each_page(block, page, rounds, |at, _, last| {
                released[at] = released[at].max(last as u32 + 1);
            });
        }
        let mut first = vec![rounds; destination.div_ceil(page)];
        for block in writes {
            for_each_page(block, page, rounds, |at, round, _| {
                first[at] = first[at].min(round);
            });
        }
        // Pages that are released, less those that are taken, round by round.
        let mut balance = vec![0_i64; rounds + 1];
        for &round in &released {
            balance[(round as usize).saturating_sub(1)] += 1;
        }
        for &round in &first {
            balance[round] -= 1;
        }
        let (mut at, mut short) = (0, 0);
        for change in balance {
            at += change;
            short = short.min(at);
        }
        let wanted = first.len();
        // One more page, to put others aside while they are brought into order.
        let spare = usize::from(wanted > 1);
        Self {
            page,
            pages: (released.len() + short.unsigned_abs() as usize).max(wanted + spare),
            released,
            wanted,
        }
    }

    /// Number of elements of the buffer.
    pub(super) fn elements(&self) -> usize {
        self.pages * self.page
    }
}

/// Calls `f` with every page that holds elements of a block, and with the rounds of the first and the last of these elements.
fn for_each_page(
    block: &Block,
    page: usize,
    rounds: usize,
    mut f: impl FnMut(usize, usize, usize),
) {
    let n = block.numel();
    let cut = Cut::new(&block.shape, rounds);
    let mut done = 0;
    while done < n {
        let at = block.at(done) / page;
        let end = block.count_below((at + 1) * page);
        f(at, cut.round_of(done), cut.round_of(end - 1));
        done = end;
    }
}

/// Which pages are free, and where the destination's are.
#[derive(Debug)]
pub(super) struct Pages {
    page: usize,
    free: Vec<bool>,
    /// Free pages, and some that have been taken since.
    stack: Vec<u32>,
    place: Vec<u32>,
    /// The source's pages with the rounds in which they are released, latest first.
    waiting: Vec<(u32, u32)>,
}

impl Pages {
    pub(super) fn new(times: &Timetable) -> Self {
        let source = times.released.len();
        let mut waiting: Vec<(u32, u32)> = (times.released.iter().copied()).zip(0..).collect();
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        let mut pages = Self {
            page: times.page,
            free: vec![false; times.pages],
            stack: Vec::new(),
            place: vec![NOWHERE; times.wanted],
            waiting,
        };
        for page in (source..times.pages).rev() {
            pages.release(page);
        }
        pages
    }

    /// Elements in a page.
    pub(super) fn size(&self) -> usize {
        self.page
    }

    /// Frees the pages of the source that no rank reads after `round`.
    pub(super) fn finish(&mut self, round: usize) {
        while let Some(&(released, page)) = self.waiting.last()
            && released as usize <= round + 1
        {
            self.waiting.pop();
            self.release(page as usize);
        }
    }

    fn release(&mut self, page: usize) {
        self.free[page] = true;
        self.stack.push(page as u32);
    }

    /// The place of a page of the destination, and whether the page has just been put there. `None` if no page is free, which
    /// the timetable rules out.
    pub(super) fn place(&mut self, wanted: usize) -> Option<(usize, bool)> {
        if self.place[wanted] != NOWHERE {
            return Some((self.place[wanted] as usize, false));
        }
        // The page goes to its final place if that is free.
        let mut at = wanted;
        while !self.free.get(at).copied().unwrap_or(false) {
            at = self.stack.pop()? as usize;
        }
        self.free[at] = false;
        self.place[wanted] = at as u32;
        Some((at, true))
    }

    /// The destination's pages that have no place yet.
    pub(super) fn missing(&self) -> Vec<usize> {
        let nowhere = |&p: &usize| self.place[p] == NOWHERE;
        (0..self.place.len()).filter(nowhere).collect()
    }

    /// Brings the destination's pages into order, at the front of the buffer.
    ///
    /// # Errors
    /// What the device reports.
    pub(super) fn order(&mut self, device: &DeviceRef, buffer: &mut BufferMut) -> Result<()> {
        // First the final places that are free are filled. Filling one empties another, until one is empty that is no page's
        // final place.
        for hole in 0..self.place.len() {
            if self.free[hole] {
                self.fill(hole, device, buffer)?;
            }
        }
        // Only cycles are left. Putting one page aside opens a cycle.
        let mut occupants = vec![0; self.free.len()];
        for (wanted, &at) in self.place.iter().enumerate() {
            occupants[at as usize] = wanted;
        }
        let aside = (self.place.len()..self.free.len()).find(|&page| self.free[page]);
        for (home, &occupant) in occupants.iter().enumerate().take(self.place.len()) {
            // The timetable leaves a free page wherever there are two to exchange.
            if let Some(aside) = aside
                && self.place[home] as usize != home
            {
                self.shift(occupant, aside, device, buffer)?;
                self.fill(home, device, buffer)?;
            }
        }
        Ok(())
    }

    /// Moves the page that belongs to `hole` there, then the page that belongs where that one was, and so on.
    fn fill(&mut self, mut hole: usize, device: &DeviceRef, buffer: &mut BufferMut) -> Result<()> {
        while let Some(&at) = self.place.get(hole) {
            if at as usize == hole {
                break;
            }
            self.shift(hole, hole, device, buffer)?;
            hole = at as usize;
        }
        Ok(())
    }

    fn shift(
        &mut self,
        page: usize,
        to: usize,
        device: &DeviceRef,
        buffer: &mut BufferMut,
    ) -> Result<()> {
        let from = self.place[page] as usize;
        let start = from * self.page;
        device.copy_within(buffer, start..start + self.page, to * self.page)?;
        self.place[page] = to as u32;
        (self.free[from], self.free[to]) = (true, false);
        Ok(())
    }
}

//! Lines of outputs side by side, where rows are narrow.
//!
//! A tile of the direct convolution is some channels by one to three vectors of columns, and reads all their weights. Of rows of 14 outputs a
//! tile has one vector, two of its 16 lanes are in vain, and weights of many channels come from the third-level cache at each. So the lines of
//! all images, each a row or a [pair](super::pairs) of rows, are packed one behind the other as if they were one long line:
//!
//! ```text
//! image 0, rows 0 and 1 | image 0, rows 2 and 3 | .. | image 1, rows 0 and 1 | ..
//! 14 columns, 2 more    | 14 columns, 2 more    |    |
//! ```
//!
//! The columns between two lines are those that a window reaches over. What is computed for windows that begin there is dropped, so each output
//! is the sum that it was, in the same order. Where windows reach beyond the input, zeros at the end of a line are those at the beginning of the
//! next.

use super::lift::{Geometry, SlabMut};
use super::pack::reach;
use super::pairs::{self, PARTS};
use crate::Real;
use core::ops::Range;
use smallvec::SmallVec;

/// Products per output below which what is copied for each line weighs too much.
const LEAST: usize = 64;

/// Output channels that tiles have at least.
const CHANNELS: usize = 8;

/// Packed elements per block: in f32 three eighths of a second-level cache of 2 MiB.
const BUDGET: usize = 192 * 1024;

/// Lines of outputs, in the order of images, planes and rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongLine {
    /// Planes, rows and columns of an image's outputs.
    extent: [usize; 3],
    /// Rows of a line.
    pub(super) rows: usize,
    /// Columns from a line to the next.
    pub(super) cell: usize,
    /// All lines.
    count: usize,
}

/// A line: its image, its plane, its first row, and how many it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) image: usize,
    pub(super) plane: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
}

impl LongLine {
    /// The lines of so many images, of inputs of so many columns.
    pub(super) fn new(
        g: &Geometry,
        batch: usize,
        extent: [usize; 3],
        inputs: usize,
        paired: bool,
    ) -> Self {
        let rows = if paired { 2 } else { 1 };
        // Columns outside the input, before the first one and behind the last.
        let before = (-g.input(2, 0, 0)).max(0) as usize;
        let last = g.input(
            2,
            extent[2].saturating_sub(1),
            g.kernel[2].saturating_sub(1),
        );
        let behind = (last + 1 - inputs as isize).max(0) as usize;
        let shared = match g.stride[2] {
            1 => before.min(behind).min(reach(g)),
            _ => 0,
        };
        Self {
            extent,
            rows,
            cell: extent[2] + reach(g) - shared,
            count: batch * extent[0] * extent[1].div_ceil(rows),
        }
    }

    /// The outputs of them all as one line.
    pub(super) fn as_one(&self) -> [usize; 3] {
        let gap = self.cell - self.extent[2];
        [1, self.rows, (self.count * self.cell).saturating_sub(gap)]
    }

    /// Columns of a line.
    pub(super) fn columns(&self) -> usize {
        self.extent[2]
    }

    /// How many lines are packed together, of which a column takes so many elements.
    pub(super) fn together(&self, per_column: usize) -> usize {
        let most = (BUDGET / per_column.max(1) / self.cell).clamp(1, self.count.max(1));
        // Blocks are even: the last one is not a small remainder.
        self.count.div_ceil(self.count.div_ceil(most).max(1)).max(1)
    }

    /// The lines in some columns, which begin and end with a line.
    pub(super) fn within(&self, columns: &Range<usize>) -> Range<usize> {
        columns.start / self.cell..columns.end.div_ceil(self.cell)
    }

    pub(super) fn line(&self, number: usize) -> Line {
        let [planes, height, _] = self.extent;
        let lines = height.div_ceil(self.rows);
        let row = number % lines * self.rows;
        Line {
            image: number / lines / planes,
            plane: number / lines % planes,
            row,
            rows: self.rows.min(height - row),
        }
    }
}

/// Whether tiles of lines side by side, of so many lanes, take less time than tiles of each row.
pub(super) fn pay(
    g: &Geometry,
    batch: usize,
    extent: [usize; 3],
    inputs: usize,
    lanes: usize,
) -> bool {
    let paired = pairs::fit(g, extent[1]);
    let lines = LongLine::new(g, batch, extent, inputs, paired);
    let taps = match paired {
        true => PARTS * pairs::taps(g),
        false => g.taps(),
    };
    if lines.count < 2 || g.cout < CHANNELS || taps < LEAST {
        return false;
    }
    // Tenths of a vector per line. A tile of one vector waits for its weights.
    let alone = match extent[2].div_ceil(lanes) {
        1 => 15,
        vectors => 10 * vectors,
    };
    // Rows of windows that are no pairs are packed for each line that reads them.
    let beside = if paired { 12 } else { 13 } * lines.cell / lanes;
    beside <= alone
}

/// Whether images have so few outputs that the sums over them are those of several images, of up to `together` outputs.
pub(super) fn are_few(batch: usize, extent: [usize; 3], together: usize) -> bool {
    batch > 1 && 2 * extent.iter().product::<usize>() <= together
}

/// Where a block's lines are written: each line's first output relative to a channel's, and its rows.
#[derive(Clone, Debug)]
pub(super) struct Targets {
    columns: usize,
    cell: usize,
    /// Steps of rows and columns.
    steps: [isize; 2],
    lines: Vec<(isize, usize)>,
}

impl Targets {
    pub(super) fn new<T>(long: &LongLine, columns: &Range<usize>, y: &SlabMut<'_, T>) -> Self {
        let at = |number: usize| {
            let line = long.line(number);
            let image = line.image as isize * y.outer[0];
            (image + y.within([line.plane, line.row, 0]), line.rows)
        };
        Self {
            columns: long.columns(),
            cell: long.cell,
            steps: [y.step[1], y.step[2]],
            lines: long.within(columns).map(at).collect(),
        }
    }

    /// The runs of outputs among some columns, of a row of each line: the first one's column, their number, and where they are written.
    pub(super) fn runs(
        &self,
        columns: Range<usize>,
        row: usize,
    ) -> SmallVec<[(usize, usize, isize); 8]> {
        let numbers =
            columns.start / self.cell..columns.end.div_ceil(self.cell).min(self.lines.len());
        let run = |number: usize| {
            let (at, rows) = self.lines[number];
            let start = number * self.cell;
            let first = columns.start.max(start);
            let until = columns.end.min(start + self.columns);
            let to = at + row as isize * self.steps[0] + (first - start) as isize * self.steps[1];
            (row < rows && first < until).then(|| (first, until - first, to))
        };
        numbers.filter_map(run).collect()
    }
}

/// Writes such runs of a channel's sums, of which the first belongs to column `from`; `to` is the channel's first output.
pub(super) fn write<T: Real>(
    runs: &[(usize, usize, isize)],
    sums: &[T],
    from: usize,
    y: &mut [T],
    to: usize,
    step: isize,
) {
    for &(first, len, at) in runs {
        let to = to.wrapping_add_signed(at);
        let sums = &sums[first - from..][..len];
        if step == 1 {
            y[to..to + len].copy_from_slice(sums);
            continue;
        }
        for (j, v) in sums.iter().enumerate() {
            y[to.wrapping_add_signed(j as isize * step)] = *v;
        }
    }
}

//! The gradient with respect to the weight: the same packed input, summed over outputs instead of taps.
//!
//! With enough output channels to fill a vector, the output gradient is turned channels-last, and one input broadcast meets a
//! vector of channels. Otherwise each channel's rows meet the taps' rows lane by lane. Sums over at most [`FLUSH`] outputs are
//! kept in the element type and then join totals in f64.

use super::apart;
use super::beside::{self, LongLine};
use super::channels::{self, Channels};
use super::direct::{dot_tile, weight_tile};
use super::forward::lanes;
use super::im2col;
use super::lift::{Geometry, Slab};
use super::line::Line;
use super::lone;
use super::pack::{Ahead, Block, How, Order, Packing};
use super::pairs::{self, PARTS};
use crate::arrays::{each, numbered};
use crate::pointwise::vectorized;
use crate::prefetch::prefetch;
use crate::scratch::Room;
use crate::turn::{SIDE, turned};
use crate::view::for_each_row;
use crate::{Dims, Real, Strides, View, ViewMut, copy::copy};
use pulp::{Simd, WithSimd};

/// Outputs of an image up to which products of matrices may take less time than sums that are joined block by block: of 49 and 512 channels
/// less than half, of 256 and more outputs twice as long.
pub(super) const SITES: usize = 64;

/// Outputs of all images, with as few of each, from which sums over [lines of all of them](super::beside) take less time.
const OUTPUTS: usize = 256;

/// Channels and taps below which products of matrices are not worth what is copied for them.
pub(super) const FEW: usize = 16;

/// How many outputs are summed in the element type.
const FLUSH: usize = 2048;

pub(super) fn weight_grad<T: Real>(
    x: &Slab<'_, T>,
    dy: &Slab<'_, T>,
    dw: &mut ViewMut<'_, T>,
    g: &Geometry,
) {
    let sites: usize = dy.extent.iter().product();
    let size = g.groups * g.cout * g.taps();
    let is_empty = size == 0 || dy.batch * sites == 0;
    let is_lone = lone::fits(g, [x.step[2], dy.step[2]]);
    let is_copied = apart::are_copied(g);
    let is_wide = g.cout >= FEW && g.taps() >= FEW && !is_lone && !is_copied;
    let matrices = match is_wide {
        true => im2col::are_matrices(x, dy.extent, dy.step, g),
        false => None,
    };
    if is_empty {
        row_major(dw, |to| to.fill(T::zero()));
    } else if lanes::<T>() >= channels::LANES
        && let Some(channels) = Channels::of_weight(g, x.extent, dy.extent)
        && is_finite(dy, g.groups)
    {
        row_major(dw, |to| {
            rounded(to, |totals| channels.weight_grad(x, dy, totals, FLUSH, g));
        });
    } else if let Some(line) = Line::of(g, dy.extent)
        && is_finite(x, g.groups)
        && is_finite(dy, g.groups)
    {
        row_major(dw, |to| {
            rounded(to, |totals| line.weight_grad(x, dy, totals, FLUSH));
        });
    } else if is_copied {
        row_major(dw, |to| {
            rounded(to, |totals| apart::weight_grad(x, dy, totals, FLUSH, g));
        });
    } else if is_lone {
        row_major(dw, |to| {
            rounded(to, |totals| lone::weight_grad(x, dy, totals, FLUSH, g));
        });
    } else if let Some(step) = matrices {
        row_major(dw, |to| {
            im2col::pointwise_weight_grad(x, dy, to, step, FLUSH, g);
        });
    } else if is_wide && sites <= SITES && dy.batch * sites < OUTPUTS {
        row_major(dw, |to| im2col::weight_grad(x, dy, to, g));
    } else {
        vectorized(Sums { x, dy, dw, g });
    }
}

/// Has all weights written in row-major order, where they belong if that is how they are stored.
fn row_major<T: Real>(dw: &mut ViewMut<'_, T>, write: impl FnOnce(&mut [T])) {
    let shape = dw.shape().to_vec();
    let size = shape.iter().product();
    if dw.is_contiguous() {
        let first = dw.offset();
        return write(&mut dw.data_mut()[first..][..size]);
    }
    let mut values = vec![T::zero(); size];
    write(&mut values);
    copy(&View::contiguous(&values, &shape), &mut dw.reborrow());
}

/// Whether some channels hold no infinity or NaN.
fn is_finite<T: Real>(x: &Slab<'_, T>, channels: usize) -> bool {
    let [planes, rows, columns] = x.extent;
    let shape = [x.batch, channels, planes, rows, columns];
    let steps = [x.outer[0], x.outer[1], x.step[0], x.step[1], x.step[2]];
    let mut is_finite = true;
    for_each_row(&shape, [&steps], [x.offset], |[at], run, [step]| {
        is_finite &= match step {
            1 => (x.data[at..at + run].iter()).fold(true, |all, x| all & x.is_finite()),
            _ => (0..run as isize).all(|i| x.data[at.wrapping_add_signed(i * step)].is_finite()),
        };
    });
    is_finite
}

/// Writes totals, each rounded once.
fn rounded<T: Real>(to: &mut [T], sum: impl FnOnce(&mut [f64])) {
    let mut totals = vec![0.0; to.len()];
    sum(&mut totals);
    for (to, total) in to.iter_mut().zip(&totals) {
        *to = T::of(*total);
    }
}

/// Adds sums in the element type to totals.
pub(super) fn join<T: Real>(sums: &[T], totals: &mut [f64]) {
    for (total, sum) in totals.iter_mut().zip(sums) {
        *total += sum.wide();
    }
}

struct Sums<'a, 'b, 'c, T> {
    x: &'a Slab<'b, T>,
    dy: &'a Slab<'b, T>,
    dw: &'a mut ViewMut<'c, T>,
    g: &'a Geometry,
}

impl<T: Real> WithSimd for Sums<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let lanes = T::lanes::<S>();
        let Self { x, dy, dw, g } = self;
        // Channels are taken in chunks, so that a block holds many outputs and their sums are seldom flushed.
        let part = |cin: usize| Geometry { cin, ..*g };
        let width = if 4 * g.cout <= lanes {
            0
        } else {
            lanes * g.cout.div_ceil(lanes).min(2)
        };
        let paired = width > 0 && pairs::fit(g, dy.extent[1]);
        // Rows are long enough for what is done once for each.
        let (most, tile) = (part(g.cin.min(CHANNELS)), 8 * lanes);
        let how = How {
            paired,
            turned: false,
            overread: lanes,
            order: Order::Channels,
        };
        // All rows that a line reads are packed for it, of windows of more rows too often.
        let fits = width > 0 && (paired || g.kernel[1] <= 3);
        let packing = match fits && beside::are_few(dy.batch, dy.extent, FLUSH) {
            true => Packing::beside(
                &most,
                LongLine::new(&most, dy.batch, dy.extent, x.extent[2], paired),
                how,
            ),
            false => Packing::new(&most, dy.extent, tile, how),
        };
        let (batch, extent) = packing.whole(dy.batch, dy.extent);
        let outputs = packing.outputs() * if paired { PARTS / 2 } else { 1 };
        let turned = outputs * g.cout.next_multiple_of(width.max(1));
        let mut room = Room::new();
        let mut scratch = room.numbers(packing.elements() + turned);
        let (packed, turned) = (scratch.take(packing.elements()), scratch.take(turned));
        let (parts, volume) = match paired {
            true => (PARTS, g.volume() / g.kernel[1]),
            false => (1, g.volume()),
        };
        // Sums of a channel, and those of all, or of a chunk where that has all its outputs in one block.
        let size = parts * volume * g.cout;
        let is_one = batch == 1 && packing.blocks(extent).nth(1).is_none();
        let kept = if is_one { most.cin } else { g.cin };
        let (mut sums, mut values) = (Room::new(), Room::new());
        let sums = sums.numbers::<f64>(kept * size).take(kept * size);
        let written = most.taps() * g.cout;
        let values = values.numbers::<T>(written).take(written);
        for group in 0..g.groups {
            if !is_one {
                sums.fill(0.0);
            }
            for n in 0..batch {
                let mut blocks = packing.blocks(extent).peekable();
                while let Some(block) = blocks.next() {
                    let rows = OutputRows {
                        dy,
                        n,
                        channel: group * g.cout,
                        block: &block,
                        cout: g.cout,
                        paired,
                        line: packing.line,
                    };
                    let cols = rows.cols();
                    let lines = match width {
                        0 => rows.lines(turned),
                        _ => {
                            let turned = rows.channels_last(simd, width, turned);
                            Lines::within(turned, rows.count(), cols)
                        }
                    };
                    for first in (0..g.cin).step_by(CHANNELS) {
                        let count = CHANNELS.min(g.cin - first);
                        let at = [n, group * g.cin + first];
                        packing.pack(simd, x, at, count, &block, packed);
                        let (channel, next) = match first + CHANNELS < g.cin {
                            true => (first + CHANNELS, Some(block.clone())),
                            false => (0, blocks.peek().cloned()),
                        };
                        let at = [n, group * g.cin + channel];
                        let panels = g.cout.div_ceil(width.max(1));
                        let runs = parts * rows.count().div_ceil(parts * together(cols));
                        let steps = panels * (count * volume).div_ceil(TAPS) * runs;
                        let mut ahead = Ahead::new(&packing, x, at, next, steps);
                        let sums = match is_one {
                            true => &mut sums[..count * size],
                            false => &mut sums[first * size..][..count * size],
                        };
                        if is_one {
                            sums.fill(0.0);
                        }
                        let of_parts = sums.chunks_exact_mut(count * volume * g.cout);
                        for (part, sums) in of_parts.enumerate() {
                            let job = BlockJob {
                                taps: &packing.taps[..count * volume],
                                row_step: match packing.line {
                                    Some(line) => line.cell,
                                    None => parts * packing.row_step,
                                },
                                packed: &packed[part * packing.row_step..],
                                lines,
                                rows: rows.count() / parts,
                                every: [part, parts],
                                cols,
                                cout: g.cout,
                            };
                            job.add(simd, width, sums, &mut ahead);
                        }
                        if n + 1 == batch && blocks.peek().is_none() {
                            let chunk = part(count);
                            let values = &mut values[..chunk.taps() * g.cout];
                            round(sums, paired, &chunk, values);
                            write(values, [group * g.cout, first], &chunk, dw);
                        }
                    }
                }
            }
        }
    }
}

/// Writes `[Cin, kernel, Cout]` from sums of that shape, or from those of the parts of [pairs].
#[inline(always)]
fn round<T: Real>(sums: &[f64], paired: bool, g: &Geometry, to: &mut [T]) {
    if paired {
        return pairs::of_sums(sums, g, to);
    }
    for (to, sum) in to.iter_mut().zip(sums) {
        *to = T::of(*sum);
    }
}

/// Writes the weights of some input channels and a group's output channels, `[Cin, kernel, Cout]`, of which the first are those given.
fn write<T: Real>(
    values: &[T],
    [output, input]: [usize; 2],
    g: &Geometry,
    dw: &mut ViewMut<'_, T>,
) {
    let mut extent = Dims::from_slice(dw.shape());
    (extent[0], extent[1]) = (g.cout, g.cin);
    let mut step = g.cout;
    let mut strides: Strides = extent.iter().map(|_| 1).collect();
    for d in (1..extent.len()).rev() {
        strides[d] = step as isize;
        step *= extent[d];
    }
    let mut start: Dims = extent.iter().map(|_| 0).collect();
    (start[0], start[1]) = (output, input);
    let ones: Dims = extent.iter().map(|_| 1).collect();
    let values = View::new(values, 0, &extent, &strides);
    copy(&values, &mut dw.reborrow().stepped(&start, &ones, &extent));
}

/// How many input channels are packed together.
const CHANNELS: usize = 32;

/// How many rows of so many outputs are summed in the element type.
fn together(cols: usize) -> usize {
    (FLUSH / cols).max(1)
}

/// Taps of a tile at most.
const TAPS: usize = 12;

/// The output gradient of one block.
struct OutputRows<'a, 'b, T> {
    dy: &'a Slab<'b, T>,
    n: usize,
    channel: usize,
    block: &'a Block,
    cout: usize,
    /// Whether they are turned in [pairs].
    paired: bool,
    /// The lines of which the block has some side by side.
    line: Option<LongLine>,
}

impl<T: Real> OutputRows<'_, '_, T> {
    /// Rows that are multiplied: those of the block, or all parts of its pairs.
    fn count(&self) -> usize {
        match self.paired {
            true => self.rows().div_ceil(2) * PARTS,
            false => self.rows(),
        }
    }

    /// Rows of the block, of which a line of an odd number may lack its last.
    fn rows(&self) -> usize {
        match &self.line {
            Some(long) => long.within(&self.block.cols).len() * long.rows,
            None => self.block.rows.len(),
        }
    }

    /// Columns of a row.
    fn cols(&self) -> usize {
        self.line
            .map_or(self.block.cols.len(), |long| long.columns())
    }

    /// Position in `dy` of the first output of row `row` of channel 0, if there is such a row.
    fn first(&self, row: usize) -> Option<usize> {
        let (n, [plane, row, col]) = match &self.line {
            Some(long) => {
                let line = long.line(self.block.cols.start / long.cell + row / long.rows);
                let within = row % long.rows;
                if within >= line.rows {
                    return None;
                }
                (line.image, [line.plane, line.row + within, 0])
            }
            None => {
                let row = self.block.rows.start + row;
                (self.n, [self.block.plane, row, self.block.cols.start])
            }
        };
        let step = &self.dy.step;
        let within = plane as isize * step[0] + row as isize * step[1] + col as isize * step[2];
        let start = self.dy.start(n, self.channel);
        Some(start.wrapping_add_signed(within))
    }

    /// `[panel][row][col][width]`, channels past the last as zeros.
    #[inline(always)]
    fn channels_last<'l, S: Simd>(&self, simd: S, width: usize, room: &'l mut [T]) -> &'l [T] {
        let (rows, cols) = (self.rows(), self.cols());
        let line = cols * width;
        let whole = &mut room[..self.cout.div_ceil(width) * self.count() * line];
        for (panel, out) in whole.chunks_exact_mut(self.count() * line).enumerate() {
            let count = width.min(self.cout - panel * width);
            if count < width {
                out.fill(T::zero());
            }
            for row in 0..rows.next_multiple_of(if self.paired { 2 } else { 1 }) {
                // Of a pair, the first and the last part.
                let at = match self.paired {
                    true => row / 2 * PARTS + row % 2 * (PARTS - 1),
                    false => row,
                };
                let out_row = &mut out[at * line..][..line];
                match self.first(row).filter(|_| row < rows) {
                    Some(first) => {
                        let first =
                            first.wrapping_add_signed((panel * width) as isize * self.dy.outer[1]);
                        self.turn_row(first, count, width, out_row);
                    }
                    None => out_row.fill(T::zero()),
                }
                if self.paired && row % 2 == 1 {
                    let parts = &mut out[row / 2 * PARTS * line..];
                    pairs::of_outputs(simd, pairs::four(parts, line, line));
                }
            }
        }
        whole
    }

    /// Writes some channels of a row, of which the first begins at `first`, channels last.
    #[inline(always)]
    fn turn_row(&self, first: usize, count: usize, width: usize, out: &mut [T]) {
        /// Columns that are turned together, so that the memory they touch stays in the first-level cache.
        const TURN: usize = 16;
        /// How many times that the columns lie ahead that are asked for.
        const AHEAD: usize = 2;
        let (cols, step) = (out.len() / width, self.dy.step[2]);
        for col in (0..cols).step_by(TURN) {
            let live = TURN.min(cols - col);
            let target = &mut out[col * width..][..live * width];
            let from = |co: usize| {
                let within = co as isize * self.dy.outer[1] + col as isize * step;
                first.wrapping_add_signed(within)
            };
            let (whole, squares) = match step {
                1 => (count / SIDE * SIDE, live / SIDE * SIDE),
                _ => (0, 0),
            };
            for co in (0..whole).step_by(SIDE) {
                let rows: [&[T]; SIDE] = numbered(|k| {
                    let from = from(co + k);
                    prefetch(self.dy.data, from + AHEAD * TURN, TURN);
                    &self.dy.data[from..from + live]
                });
                for col in (0..squares).step_by(SIDE) {
                    let block = each(rows, |row| pulp::as_arrays::<SIDE, T>(&row[col..]).0[0]);
                    for (j, lanes) in turned(block).iter().enumerate() {
                        target[(col + j) * width + co..][..SIDE].copy_from_slice(lanes);
                    }
                }
            }
            for co in 0..count {
                let done = if co < whole { squares } else { 0 };
                for i in done..live {
                    let at = from(co).wrapping_add_signed(i as isize * step);
                    target[i * width + co] = self.dy.data[at];
                }
            }
        }
    }

    /// The rows of channels, where they lie if their elements are side by side, or in `room`.
    #[inline(always)]
    fn lines<'l>(&self, room: &'l mut [T]) -> Lines<'l, T>
    where
        Self: 'l,
    {
        let step = &self.dy.step;
        if step[2] == 1 {
            return Lines {
                data: self.dy.data,
                start: self.first(0).unwrap_or(0),
                channel: self.dy.outer[1],
                row: step[1],
            };
        }
        let cols = self.block.cols.len();
        let mut lines = room.chunks_exact_mut(cols);
        for co in 0..self.cout {
            for (row, line) in lines.by_ref().take(self.block.rows.len()).enumerate() {
                let Some(first) = self.first(row) else {
                    continue;
                };
                let from = first.wrapping_add_signed(co as isize * self.dy.outer[1]);
                for (col, v) in line.iter_mut().enumerate() {
                    *v = self.dy.data[from.wrapping_add_signed(col as isize * step[2])];
                }
            }
        }
        Lines::within(room, self.block.rows.len(), cols)
    }
}

/// Rows of several channels, each of elements side by side.
#[derive(Clone, Copy)]
struct Lines<'a, T> {
    data: &'a [T],
    start: usize,
    /// From a channel to the next, and from a row to the next.
    channel: isize,
    row: isize,
}

impl<'a, T> Lines<'a, T> {
    /// Those of a block, `[channel][row][col]`.
    fn within(data: &'a [T], rows: usize, cols: usize) -> Self {
        let (rows, cols) = (rows as isize, cols as isize);
        Self {
            data,
            start: 0,
            channel: rows * cols,
            row: cols,
        }
    }

    #[inline(always)]
    fn line(&self, channel: usize, row: usize, cols: usize) -> &'a [T] {
        let within = channel as isize * self.channel + row as isize * self.row;
        &self.data[self.start.wrapping_add_signed(within)..][..cols]
    }
}

struct BlockJob<'a, T> {
    taps: &'a [usize],
    /// The first row that is summed, and how far it is to the next one.
    packed: &'a [T],
    row_step: usize,
    /// The output gradient: channels last in panels, `[panel][row][col][width]`, or rows of single channels.
    lines: Lines<'a, T>,
    /// Rows that are summed: of the output gradient's, the first, and every how many.
    rows: usize,
    every: [usize; 2],
    cols: usize,
    cout: usize,
}

impl<T: Real> BlockJob<'_, T> {
    /// Adds the block's products to sums; output channels are taken by vectors of `width` together, or one by one if that is 0.
    #[inline(always)]
    fn add<S: Simd>(&self, simd: S, width: usize, sums: &mut [f64], ahead: &mut Ahead<'_, '_, T>) {
        match width / T::lanes::<S>() {
            0 => self.by_columns(simd, sums),
            1 => self.by_channels::<S, TAPS, 1>(simd, sums, ahead),
            // 32 vector registers hold 12 x 2 accumulators and their operands, 16 registers half of that.
            _ if S::F32_LANES >= 16 => self.by_channels::<S, TAPS, 2>(simd, sums, ahead),
            _ => self.by_channels::<S, 6, 2>(simd, sums, ahead),
        }
    }

    /// Multiplies vectors of `NV * lanes` output channels by broadcast inputs, of `TAPS` taps at a time.
    #[inline(always)]
    fn by_channels<S: Simd, const TAPS: usize, const NV: usize>(
        &self,
        simd: S,
        totals: &mut [f64],
        ahead: &mut Ahead<'_, '_, T>,
    ) {
        let width = NV * T::lanes::<S>();
        let together = together(self.cols);
        let [first, every] = self.every;
        for (panel, turned) in self
            .lines
            .data
            .chunks_exact(self.rows * every * self.cols * width)
            .enumerate()
        {
            let count = width.min(self.cout - panel * width);
            for (taps, totals) in self
                .taps
                .chunks(TAPS)
                .zip(totals.chunks_mut(TAPS * self.cout))
            {
                // A short last chunk repeats its last tap and drops the copies.
                let offset: [usize; TAPS] = numbered(|t| taps[t.min(taps.len() - 1)]);
                for from in (0..self.rows).step_by(together) {
                    // Before there are sums: a call would move them to memory.
                    ahead.some();
                    let mut acc = [[T::splat(simd, T::zero()); NV]; TAPS];
                    for row in from..(from + together).min(self.rows) {
                        let packed = &self.packed[row * self.row_step..];
                        let dy = (first + row * every) * self.cols * width;
                        let dy = &turned[dy..][..self.cols * width];
                        weight_tile::<T, S, TAPS, NV>(
                            simd,
                            each(offset, |o| &packed[o..]),
                            dy,
                            &mut acc,
                        );
                    }
                    for (sums, totals) in acc.iter().zip(totals.chunks_mut(self.cout)) {
                        let mut buffer = [T::zero(); 64];
                        T::vectors_mut::<S>(&mut buffer[..width]).copy_from_slice(sums);
                        for (total, v) in totals[panel * width..][..count].iter_mut().zip(&buffer) {
                            *total += v.wide();
                        }
                    }
                }
            }
        }
    }

    /// Multiplies rows of one output channel by rows of inputs, for few channels.
    #[inline(always)]
    fn by_columns<S: Simd>(&self, simd: S, totals: &mut [f64]) {
        // All positions of a window of 3 x 3, and those of larger ones by threes.
        const AT_ONCE: usize = 9;
        let lanes = T::lanes::<S>();
        // Columns past the last whole vector go lane by lane, because the memory packed behind them may hold NaN.
        let full = self.cols / lanes * lanes;
        let together = together(self.cols);
        for co in 0..self.cout {
            for (taps, totals) in self
                .taps
                .chunks(AT_ONCE)
                .zip(totals.chunks_mut(AT_ONCE * self.cout))
            {
                let offset: [usize; AT_ONCE] = numbered(|t| taps[t.min(taps.len() - 1)]);
                for from in (0..self.rows).step_by(together) {
                    let mut acc = [T::splat(simd, T::zero()); AT_ONCE];
                    let mut tails = [[T::zero(); 16]; AT_ONCE];
                    for row in from..(from + together).min(self.rows) {
                        let packed = &self.packed[row * self.row_step..];
                        let dy = self.lines.line(co, row, self.cols);
                        dot_tile::<T, S, AT_ONCE>(
                            simd,
                            each(offset, |o| &packed[o..]),
                            &dy[..full],
                            &mut acc,
                        );
                        for (tail, o) in tails.iter_mut().zip(offset) {
                            let x = &packed[o + full..o + self.cols];
                            for ((sum, x), dy) in tail.iter_mut().zip(x).zip(&dy[full..]) {
                                *sum += *x * *dy;
                            }
                        }
                    }
                    for ((sum, tail), totals) in
                        acc.iter().zip(&tails).zip(totals.chunks_mut(self.cout))
                    {
                        let tail = tail[..self.cols - full].iter();
                        let tail = tail.map(|v| v.wide()).sum::<f64>();
                        totals[co] += T::sum_vec(simd, *sum).wide() + tail;
                    }
                }
            }
        }
    }
}

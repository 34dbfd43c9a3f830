//! Packs the input a block of outputs needs, so that every tap of a window is a contiguous run.
//!
//! A block is one output plane index, some output rows and some output columns. Its packed input holds, per channel and kernel
//! plane, all input rows from the first to the last needed, each split into its stride phases. Tap `(ci, kd, kh, kw)` of the
//! outputs of row `r` then lies at one fixed offset plus `r` row steps, with a unit step along columns, whatever the stride,
//! dilation or padding. Indexes outside the input are packed as zeros. Columns past the block feed only lanes that are dropped, and are
//! zeros too: of what memory held before, numbers below 2^-126 would have the processor take a hundred times as long for each product.
//!
//! Where outputs are computed in [pairs], a block holds [`PARTS`] rows for two rows of outputs, and its taps are those of a kernel of
//! one row. Where rows are narrow, a block is some lines [side by side](super::beside), of one or several images.

use super::beside::LongLine;
use super::lift::{Geometry, Slab};
use super::pairs::{self, PARTS};
use crate::Real;
use crate::prefetch::prefetch;
use core::ops::Range;
use pulp::{NullaryFnOnce, Simd};
use smallvec::SmallVec;

/// Packed elements per block: half of a 1 MiB second-level cache in f64, a quarter in f32.
const BUDGET: usize = 64 * 1024;

/// Most columns per block.
const COLUMNS: usize = 512;

/// What it takes to begin a run of columns, in elements.
const START: usize = 64;

/// Rows start on cache lines of this many elements (f32), an odd number of lines apart, so that channels spread over the
/// cache.
const LINE: usize = 16;

/// Outputs computed from one packing.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) plane: usize,
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
}

/// Where taps lie in a packed block; the same for every block of a convolution.
#[derive(Debug)]
pub(super) struct Packing {
    geometry: Geometry,
    /// Whether rows are packed for [pairs] of outputs.
    paired: bool,
    /// Output rows and columns per block.
    rows: usize,
    cols: usize,
    /// Distinct stride phases that the kernel's columns fall into.
    phases: Vec<usize>,
    /// Elements of a packed block, from a kernel plane to the next, and from a row to the next.
    size: usize,
    plane: usize,
    step: usize,
    /// Columns that a window reaches beyond its first, in a phase.
    reach: usize,
    /// Elements of one packed row.
    pitch: usize,
    /// From a channel to the next.
    channel: usize,
    /// Offset of each tap `(ci, kd, kh, kw)`, row-major.
    pub(super) taps: Vec<usize>,
    /// Step from an output row to the next, or from a part of a pair to the next.
    pub(super) row_step: usize,
    /// The lines of which a block has some side by side.
    pub(super) line: Option<LongLine>,
}

/// How a block is packed.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Whether rows are packed for [pairs] of outputs.
    pub(super) paired: bool,
    /// Whether rows and columns have [changed places](Geometry::turned) in all but the weights: taps are in the order of these.
    pub(super) turned: bool,
    /// Columns past a block's last one that loops may read.
    pub(super) overread: usize,
    pub(super) order: Order,
}

/// What lies together.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// A row of all channels: who sums taps reads memory side by side.
    Rows,
    /// All rows of a channel: so does who sums rows.
    Channels,
}

impl Packing {
    /// Plans blocks of the outputs `extent`, of whole tiles of `tile` columns but for the last.
    pub(super) fn new(g: &Geometry, extent: [usize; 3], tile: usize, how: How) -> Self {
        let How {
            paired, overread, ..
        } = how;
        let (kd, phases) = (g.kernel[0], phases(g).len());
        let reach = reach(g);
        let pitch_of = |cols: usize| odd_lines(cols + overread + reach);
        let span_of = |rows: usize| span(g, rows, paired);
        let [_, height, width] = extent.map(|n| n.max(1));
        let rows_of = |cols: usize| {
            let per_row = (g.cin * kd * phases * pitch_of(cols)).max(1);
            let mut rows = 1;
            while rows < height && span_of(rows + 1) * per_row <= BUDGET {
                rows += 1;
            }
            // Blocks are even: the last one is not a small remainder.
            let rows = height.div_ceil(height.div_ceil(rows));
            rows.next_multiple_of(if paired { 2 } else { 1 })
        };
        // What neighbouring blocks share is packed for each: the shape is that of which least is.
        let copied = |cols: usize| {
            let rows = rows_of(cols);
            let lines = height.div_ceil(rows) * span_of(rows);
            lines * (width + width.div_ceil(cols) * (reach + START))
        };
        let widths = (1..=(COLUMNS / tile).max(1)).map(|tiles| (tiles * tile).min(width));
        let cols = widths.min_by_key(|cols| copied(*cols)).unwrap_or(width);
        Self::of(g, [rows_of(cols), cols], how)
    }

    /// Plans blocks of lines side by side.
    pub(super) fn beside(g: &Geometry, line: LongLine, how: How) -> Self {
        let rows = span(g, line.rows, how.paired) * g.kernel[0] * phases(g).len();
        let cols = line.together(g.cin * rows) * line.cell;
        let plan = Self::of(g, [line.rows, cols], how);
        Self {
            line: Some(line),
            ..plan
        }
    }

    /// Plans blocks of so many rows and columns.
    fn of(g: &Geometry, [rows, cols]: [usize; 2], how: How) -> Self {
        let How {
            paired,
            turned,
            overread,
            order,
        } = how;
        let [kd, kh, kw] = g.kernel;
        let kh = if paired { 1 } else { kh };
        let (phases, reach) = (phases(g), reach(g));
        let span = span(g, rows, paired);
        let pitch = odd_lines(cols + overread + reach);
        let line = phases.len() * pitch;
        let (channel, plane, step) = match order {
            Order::Rows => {
                let channel = odd_lines(kd * line);
                (channel, line, g.cin * channel)
            }
            Order::Channels => (odd_lines(kd * span * line), span * line, line),
        };
        let mut taps = Vec::with_capacity(g.taps());
        for ci in 0..g.cin {
            for d in 0..kd {
                for k in 0..kh * kw {
                    let (h, w) = if turned {
                        (k % kh, k / kh)
                    } else {
                        (k / kw, k % kw)
                    };
                    let column = w * g.dilation[2];
                    let phase = phases
                        .iter()
                        .position(|p| *p == column % g.stride[2])
                        .unwrap_or(0);
                    let row = d * plane + h * g.dilation[1] * step;
                    taps.push(ci * channel + row + phase * pitch + column / g.stride[2]);
                }
            }
        }
        let row_step = match paired {
            true => step,
            false => g.stride[1] * step,
        };
        Self {
            geometry: *g,
            paired,
            rows,
            cols,
            phases,
            size: (g.cin * channel).max(span * step),
            plane,
            step,
            reach,
            pitch,
            channel,
            taps,
            row_step,
            line: None,
        }
    }

    /// The images and the outputs of each that blocks are parts of, of a convolution that has so many: one long line, where lines are side by
    /// side.
    pub(super) fn whole(&self, batch: usize, extent: [usize; 3]) -> (usize, [usize; 3]) {
        match &self.line {
            Some(line) => (1, line.as_one()),
            None => (batch, extent),
        }
    }

    /// The blocks that cover the outputs `extent`.
    pub(super) fn blocks(&self, extent: [usize; 3]) -> impl Iterator<Item = Block> + use<> {
        let (rows, cols) = (self.rows, self.cols);
        // What lies behind a block's last line is in no window.
        let gap = self.line.map_or(0, |line| line.cell - line.columns());
        (0..extent[0]).flat_map(move |plane| {
            (0..extent[1]).step_by(rows).flat_map(move |r| {
                (0..extent[2]).step_by(cols).map(move |c| Block {
                    plane,
                    rows: r..(r + rows).min(extent[1]),
                    cols: c..(c + cols - gap).min(extent[2]),
                })
            })
        })
    }

    /// The most outputs of a block.
    pub(super) fn outputs(&self) -> usize {
        self.rows * self.cols
    }

    /// The elements that a packed block takes.
    pub(super) fn elements(&self) -> usize {
        let read = |rows: usize| rows + self.geometry.kernel[1];
        let spare = if self.paired {
            read(self.rows) * self.pitch
        } else {
            0
        };
        self.size + spare
    }

    /// Packs `block` of `channels` channels (no more than planned) from `first_channel` on into `out`,
    /// which has room for its [elements](Self::elements).
    #[inline(always)]
    pub(super) fn pack<T: Real, S: Simd>(
        &self,
        simd: S,
        x: &Slab<'_, T>,
        at: [usize; 2],
        channels: usize,
        block: &Block,
        out: &mut [T],
    ) {
        // A function of its own: it would be compiled as often as it is called.
        simd.vectorize(Pack {
            simd,
            packing: self,
            x,
            at,
            channels,
            block,
            out,
        });
    }

    /// What a block is packed of: the block of image `n` itself, or its lines.
    fn pieces(&self, n: usize, block: &Block) -> SmallVec<[Piece; 32]> {
        let Some(long) = &self.line else {
            let whole = Piece {
                at: 0,
                image: n,
                plane: block.plane,
                rows: block.rows.clone(),
                columns: block.cols.clone(),
            };
            return SmallVec::from_iter([whole]);
        };
        let numbers = long.within(&block.cols);
        let piece = |number: usize| {
            let line = long.line(number);
            Piece {
                at: (number - numbers.start) * long.cell,
                image: line.image,
                plane: line.plane,
                rows: line.row..line.row + line.rows,
                columns: 0..long.columns(),
            }
        };
        numbers.clone().map(piece).collect()
    }

    /// How many rows of inputs so many rows of outputs read.
    fn read(&self, rows: usize) -> usize {
        let g = &self.geometry;
        (rows - 1) * g.stride[1] + (g.kernel[1] - 1) * g.dilation[1] + 1
    }
}

/// A block to be packed.
struct Pack<'a, 'b, T, S> {
    simd: S,
    packing: &'a Packing,
    x: &'a Slab<'b, T>,
    /// Batch, and the first channel.
    at: [usize; 2],
    channels: usize,
    block: &'a Block,
    out: &'a mut [T],
}

impl<T: Real, S: Simd> NullaryFnOnce for Pack<'_, '_, T, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            simd,
            packing,
            x,
            at: [n, first_channel],
            channels,
            block,
            out,
        } = self;
        let g = &packing.geometry;
        let (out, spare) = out.split_at_mut(packing.size);
        let width = block.cols.len() + packing.reach;
        let step = packing.step;
        let rows = match packing.paired {
            true => block.rows.len().div_ceil(2) * PARTS,
            false => packing.read(block.rows.len()),
        };
        let pieces = packing.pieces(n, block);
        let sources = packing.sources(x, first_channel, &pieces);
        for ci in 0..channels {
            for source in &sources {
                let out = &mut out[ci * packing.channel + source.at..];
                let mut starts = &source.starts[..];
                for piece in &pieces {
                    let (own, others) = starts.split_at(packing.read(piece.rows.len()));
                    let lines = Lines {
                        data: x.data,
                        starts: own,
                        channel: ci as isize * x.outer[1],
                        inside: source.inside.clone(),
                        width: piece.columns.len() + packing.reach,
                        jump: g.stride[2] as isize * x.step[2],
                    };
                    starts = others;
                    let out = &mut out[piece.at..];
                    if packing.paired {
                        let spare = &mut spare[..(own.len() + 1) * packing.pitch];
                        lines.pairs(simd, out, step, spare);
                    } else {
                        lines.copies(out, step);
                    }
                }
                for i in 0..rows {
                    out[i * step..][width..packing.pitch].fill(T::zero());
                }
            }
        }
    }
}

/// What is packed of a plane of the kernel and a phase: the same rows of each channel.
struct Source {
    /// Where it is packed in a channel.
    at: usize,
    /// The columns inside the input.
    inside: Range<usize>,
    /// Where the columns inside of each row of each piece begin, in the first channel, if they are not all outside.
    starts: Vec<Option<usize>>,
}

impl Packing {
    /// What pieces are packed of; of each the same columns are inside.
    fn sources<T>(&self, x: &Slab<'_, T>, channel: usize, pieces: &[Piece]) -> Vec<Source> {
        let g = &self.geometry;
        let phases = self.phases.iter().enumerate();
        let of = |kd: usize, (p, phase): (usize, &usize)| {
            let first = |piece: &Piece| g.input(2, piece.columns.start, 0) + *phase as isize;
            let inside = pieces.first().map_or(0..0, |piece| {
                inside(
                    first(piece),
                    g.stride[2],
                    piece.columns.len() + self.reach,
                    x.extent[2],
                )
            });
            let is_in = |i: isize, d: usize| (0..x.extent[d] as isize).contains(&i);
            let start = |piece: &Piece, i: usize| {
                let plane = g.input(0, piece.plane, kd);
                let row = g.input(1, piece.rows.start, 0) + i as isize;
                let column = first(piece) + (inside.start * g.stride[2]) as isize;
                let within = plane * x.step[0] + row * x.step[1] + column * x.step[2];
                (is_in(plane, 0) && is_in(row, 1) && !inside.is_empty())
                    .then(|| x.start(piece.image, channel).wrapping_add_signed(within))
            };
            let starts = pieces.iter().flat_map(|piece| {
                let start = &start;
                (0..self.read(piece.rows.len())).map(move |i| start(piece, i))
            });
            Source {
                at: kd * self.plane + p * self.pitch,
                starts: starts.collect(),
                inside: inside.clone(),
            }
        };
        let planes = 0..g.kernel[0];
        planes
            .flat_map(|kd| phases.clone().map(move |phase| (kd, phase)))
            .map(|(kd, phase)| of(kd, phase))
            .collect()
    }
}

/// Which of the columns `first + j * stride`, for `j` in `0 .. width`, are among the first `extent`.
fn inside(first: isize, stride: usize, width: usize, extent: usize) -> Range<usize> {
    let stride = stride as isize;
    let until = |limit: isize| {
        let columns = (limit - first + stride - 1).div_euclid(stride);
        columns.clamp(0, width as isize) as usize
    };
    let low = until(0);
    low..until(extent as isize).max(low)
}

/// Outputs of one image whose input is packed side by side.
struct Piece {
    /// The column where it is packed.
    at: usize,
    image: usize,
    plane: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// The input of a block that is packed after the one at hand: its lines are asked for while that is computed, some at a time.
pub(super) struct Ahead<'a, 'b, T> {
    packing: &'a Packing,
    x: &'a Slab<'b, T>,
    n: usize,
    first_channel: usize,
    block: Option<Block>,
    /// Lines that were asked for, and how many are each step, of so many.
    done: usize,
    step: usize,
    steps: usize,
}

impl<'a, 'b, T> Ahead<'a, 'b, T> {
    /// The input of a block, if there is one, that is asked for in so many steps.
    pub(super) fn new(
        packing: &'a Packing,
        x: &'a Slab<'b, T>,
        [n, first_channel]: [usize; 2],
        block: Option<Block>,
        steps: usize,
    ) -> Self {
        // Where columns do not lie side by side, each is in a line of its own.
        let block = block.filter(|_| x.step[2] == 1 && packing.line.is_none());
        Self {
            packing,
            x,
            n,
            first_channel,
            block,
            done: 0,
            step: 0,
            steps: steps.max(1),
        }
    }

    /// Asks for some lines. It is a call, as it is made in many places, which wait for memory rather than for it.
    #[inline(never)]
    pub(super) fn some(&mut self) {
        let Some(block) = &self.block else { return };
        let (g, x) = (&self.packing.geometry, self.x);
        let span = self.packing.read(block.rows.len());
        let lines = g.cin * g.kernel[0] * span;
        let first = g.input(2, block.cols.start, 0);
        let count = block.cols.len() * g.stride[2] + self.packing.reach * g.stride[2];
        self.step += 1;
        let until = lines.min(lines * self.step / self.steps);
        for line in self.done..until {
            let (channel, depth, row) = (
                line / span / g.kernel[0],
                line / span % g.kernel[0],
                line % span,
            );
            let within = g.input(0, block.plane, depth) * x.step[0]
                + (g.input(1, block.rows.start, 0) + row as isize) * x.step[1]
                + first;
            let at = x.start(self.n, self.first_channel + channel);
            prefetch(x.data, at.wrapping_add_signed(within), count);
        }
        self.done = until;
    }
}

/// Rows of a channel that are packed, of which each has `width` columns, `jump` elements apart; what lies outside is zeros.
struct Lines<'a, T> {
    data: &'a [T],
    /// Where the columns inside of each row begin in the first channel, if there are some, and how far this channel lies behind it.
    starts: &'a [Option<usize>],
    channel: isize,
    inside: Range<usize>,
    width: usize,
    jump: isize,
}

impl<'a, T: Real> Lines<'a, T> {
    /// Where the columns inside of row `i` begin, if there are some.
    #[inline(always)]
    fn start(&self, i: usize) -> Option<usize> {
        self.starts[i].map(|start| start.wrapping_add_signed(self.channel))
    }

    /// Copies all rows, each `step` elements behind the last in `out`.
    #[inline(always)]
    fn copies(&self, out: &mut [T], step: usize) {
        for i in 0..self.starts.len() {
            let target = &mut out[i * step..][..self.width];
            match self.start(i) {
                Some(start) => self.copy(start, target),
                None => target.fill(T::zero()),
            }
        }
    }

    /// Copies a row whose columns inside begin at `start`.
    #[inline(always)]
    fn copy(&self, start: usize, target: &mut [T]) {
        let inside = self.inside.clone();
        clear(&mut target[..inside.start]);
        clear(&mut target[inside.end..]);
        let target = &mut target[inside];
        match self.jump {
            1 => target.copy_from_slice(&self.data[start..start + target.len()]),
            2 => {
                // Of each two side by side the first, which is a loop that can be vectors; the last of all may be alone.
                let of = &self.data[start..];
                let (of, _) = pulp::as_arrays::<2, T>(&of[..of.len().min(2 * target.len())]);
                let (pairs, alone) = target.split_at_mut(of.len());
                let (eights, others) = pulp::as_arrays_mut::<8, T>(pairs);
                let (of_eights, of_others) = pulp::as_arrays::<8, [T; 2]>(of);
                for (v, of) in eights.iter_mut().zip(of_eights) {
                    *v = of.map(|two| two[0]);
                }
                for (v, two) in others.iter_mut().zip(of_others) {
                    *v = two[0];
                }
                if let [last] = alone {
                    *last = self.data[start + 2 * of.len()];
                }
            }
            jump => {
                for (j, v) in target.iter_mut().enumerate() {
                    *v = self.data[start.wrapping_add_signed(j as isize * jump)];
                }
            }
        }
    }

    /// Writes the parts of pairs of outputs, which read the rows together; parts lie `step` elements apart in `out`, and `spare` has room for
    /// one row more than there are.
    #[inline(always)]
    fn pairs<S: Simd>(&self, simd: S, out: &mut [T], step: usize, spare: &mut [T]) {
        let (inside, read) = (&self.inside, self.starts.len());
        let pitch = spare.len() / (read + 1);
        let (zeros, copies) = spare.split_at_mut(pitch);
        zeros.fill(T::zero());
        let copied = self.jump != 1;
        if copied {
            self.copies(copies, pitch);
        }
        let rows = Rows {
            lines: self,
            zeros: &zeros[..inside.len()],
            copies: copied.then_some(&*copies),
        };
        // Of an odd number of rows, the last pair has one.
        for pair in 0..(read - 1) / 2 {
            let mut parts = pairs::four(&mut out[PARTS * pair * step..], step, self.width);
            // Outside all rows are zeros.
            for part in &mut parts {
                clear(&mut part[..inside.start]);
                clear(&mut part[inside.end..]);
            }
            let i = 2 * pair;
            let x = [
                rows.row(i),
                rows.row(i + 1),
                rows.row(i + 2),
                rows.row(i + 3),
            ];
            pairs::of_inputs(simd, x, parts, inside.start);
        }
    }
}

/// Writes zeros to a few columns, of which there are mostly none or one: no call for these.
#[inline(always)]
fn clear<T: Real>(columns: &mut [T]) {
    match columns {
        [] => {}
        [one] => *one = T::zero(),
        several => several.fill(T::zero()),
    }
}

/// The columns inside of rows that are read side by side, where they lie or as copies.
struct Rows<'a, T> {
    lines: &'a Lines<'a, T>,
    zeros: &'a [T],
    copies: Option<&'a [T]>,
}

impl<'a, T: Real> Rows<'a, T> {
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [T] {
        let inside = &self.lines.inside;
        let read = self.lines.starts.len();
        // Nobody reads the row behind the last one of an odd number.
        let Some(start) = (i < read).then(|| self.lines.start(i)).flatten() else {
            return self.zeros;
        };
        match self.copies {
            None => &self.lines.data[start..start + inside.len()],
            Some(copies) => &copies[i * (copies.len() / read)..][inside.clone()],
        }
    }
}

/// Distinct stride phases that a kernel's columns fall into.
fn phases(g: &Geometry) -> Vec<usize> {
    let mut phases: Vec<usize> = (0..g.kernel[2])
        .map(|k| k * g.dilation[2] % g.stride[2])
        .collect();
    phases.sort_unstable();
    phases.dedup();
    phases
}

/// Columns that a window reaches beyond its first, in a phase.
pub(super) fn reach(g: &Geometry) -> usize {
    g.kernel[2].saturating_sub(1) * g.dilation[2] / g.stride[2]
}

/// Rows that are packed of a plane for so many rows of outputs.
fn span(g: &Geometry, rows: usize, paired: bool) -> usize {
    match paired {
        true => rows.div_ceil(2) * PARTS,
        false => (rows - 1) * g.stride[1] + g.kernel[1].saturating_sub(1) * g.dilation[1] + 1,
    }
}

/// The size in elements of the least odd number of cache lines that holds `n` elements.
fn odd_lines(n: usize) -> usize {
    (n.div_ceil(LINE) | 1) * LINE
}

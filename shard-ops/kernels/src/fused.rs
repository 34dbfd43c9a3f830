//! Several maps in one pass: a block of elements goes through all of them while it is in the nearest cache, and what lies between
//! them is never written to memory.

use super::attention::{Stored, gather};
use super::compiled::compiled;
use super::pointwise::{Binary, assert_shapes, binary_lines, vectorized};
use super::prefetch::line;
use super::scratch::{Room, Scratch};
use super::unary::Unary;
use super::view::{for_each_joined, is_row_major, join_dims};
use super::{Dims, Real, Strides, View, ViewMut};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// A step of a [`Formula`]. Steps name earlier ones by their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FormulaStep {
    /// A part of an operand; parts are counted through all operands.
    Input(usize),
    /// A number, rounded to the element type.
    Number(f64),
    /// A map of one number, or a derivative of it.
    Map {
        /// The map.
        map: Unary,
        /// The order of the derivative, up to 3; 0 for the map itself.
        order: usize,
        /// What it is taken of.
        of: usize,
    },
    /// A function of two numbers.
    Binary {
        /// The function.
        kind: Binary,
        /// What it is taken of.
        of: [usize; 2],
    },
    /// `x` where `a < b`, and `y` elsewhere, of `[a, b, x, y]`.
    Below([usize; 4]),
}

impl FormulaStep {
    /// The steps that this one reads.
    pub fn reads(&self) -> impl Iterator<Item = usize> {
        let read: SmallVec<[usize; 4]> = match *self {
            Self::Input(_) | Self::Number(_) => SmallVec::new(),
            Self::Map { of, .. } => SmallVec::from_slice(&[of]),
            Self::Binary { of, .. } => SmallVec::from_slice(&of),
            Self::Below(of) => SmallVec::from_slice(&of),
        };
        read.into_iter()
    }

    /// Whether it is there before any step is made.
    fn is_early(&self) -> bool {
        matches!(self, Self::Input(_) | Self::Number(_))
    }

    /// The step with other numbers for those that it reads.
    #[must_use]
    pub fn renumbered(self, number: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::Input(_) | Self::Number(_) => self,
            Self::Map { map, order, of } => Self::Map {
                map,
                order,
                of: number(of),
            },
            Self::Binary { kind, of } => Self::Binary {
                kind,
                of: of.map(number),
            },
            Self::Below(of) => Self::Below(of.map(number)),
        }
    }
}

/// Steps from operands to results, element by element.
///
/// An operand or a result may have several parts: it then has a dim more than the others, of that extent, and each of its indices is
/// a part, such as the gates of a recurrent layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    steps: Vec<FormulaStep>,
    operands: Vec<usize>,
    results: Vec<Vec<usize>>,
    /// Whether a step is a part of an operand. A derivative has all operands, and needs few of them.
    are_read: SmallVec<[bool; 16]>,
    /// In which block of room each step writes. Steps that nobody reads any more leave theirs to later ones.
    blocks: SmallVec<[usize; 8]>,
    /// How many blocks there are.
    room: usize,
    /// How many steps are neither operands nor numbers, but one at least.
    made: usize,
    /// The result that each step is, if it is one of a single part, is made, and is neither read nor another result.
    alone: SmallVec<[Option<usize>; 8]>,
}

impl Formula {
    /// These steps, from operands of so many parts to results, whose parts are what some steps give.
    ///
    /// # Panics
    /// When a step reads one that does not come before it, or a part that no operand has; when a part of a result is none of the steps.
    pub fn new(steps: Vec<FormulaStep>, operands: Vec<usize>, results: Vec<Vec<usize>>) -> Self {
        let parts = operands.iter().sum();
        let mut are_read = SmallVec::from_elem(false, parts);
        let mut last: SmallVec<[usize; 8]> = (0..steps.len()).collect();
        for (at, step) in steps.iter().enumerate() {
            for read in step.reads() {
                assert!(read < at, "fused: step {at} reads step {read}");
                last[read] = at;
            }
            // Operands and numbers are there from the beginning.
            match *step {
                FormulaStep::Input(part) => {
                    assert!(part < parts, "fused: part {part} of {parts}");
                    are_read[part] = true;
                }
                FormulaStep::Number(_) => {}
                _ => continue,
            }
            last[at] = steps.len();
        }
        for (at, step) in steps.iter().enumerate() {
            // And results until the end.
            if step.is_early() || results.iter().flatten().any(|&result| result == at) {
                last[at] = steps.len();
            }
        }
        let mut room = 0;
        let (mut free, mut blocks) = (SmallVec::<[usize; 8]>::new(), SmallVec::new());
        for (at, step) in steps.iter().enumerate() {
            // What there is from the beginning is written there before any step is.
            let reused = match step.is_early() {
                true => None,
                false => free.pop(),
            };
            blocks.push(reused.unwrap_or_else(|| {
                room += 1;
                room - 1
            }));
            let mut done: SmallVec<[usize; 4]> = step.reads().filter(|&r| last[r] == at).collect();
            done.sort_unstable();
            done.dedup();
            free.extend(done.into_iter().map(|read| blocks[read]));
        }
        let made = steps.iter().filter(|step| !step.is_early()).count().max(1);
        let alone = alone(&steps, &results);
        Self {
            steps,
            operands,
            results,
            are_read,
            blocks,
            room,
            made,
            alone,
        }
    }

    /// The steps.
    pub fn steps(&self) -> &[FormulaStep] {
        &self.steps
    }

    /// How many parts each operand has.
    pub fn operands(&self) -> &[usize] {
        &self.operands
    }

    /// For each result the steps that are its parts.
    pub fn results(&self) -> &[Vec<usize>] {
        &self.results
    }
}

/// [`Formula::alone`]: such results are written where they belong, and not copied there.
fn alone(steps: &[FormulaStep], results: &[Vec<usize>]) -> SmallVec<[Option<usize>; 8]> {
    let mut uses: SmallVec<[usize; 8]> = SmallVec::from_elem(0, steps.len());
    let mut alone = SmallVec::from_elem(None, steps.len());
    for (result, parts) in results.iter().enumerate() {
        for &part in parts {
            uses[part] += 1;
            alone[part] = (parts.len() == 1).then_some(result);
        }
    }
    for read in steps.iter().flat_map(FormulaStep::reads) {
        uses[read] += 1;
    }
    for ((alone, step), uses) in alone.iter_mut().zip(steps).zip(uses) {
        if uses > 1 || step.is_early() {
            *alone = None;
        }
    }
    alone
}

compiled! { trait Compiled for Stored: f32 f64 f16 bf16; {
    /// The results of a formula, element by element, computed in [`Stored::Acc`] and rounded once; operands have the shape of the results,
    /// broadcast by strides of 0 ([`View::broadcast_to`]). Those of several parts have a dim more, with `behind` dims behind it.
    ///
    /// ```
    /// use shard_kernels::fused::{Formula, FormulaStep, fused};
    /// use shard_kernels::{View, ViewMut, pointwise::Binary, unary::Unary};
    /// // x times its sigmoid, and the sigmoid.
    /// let steps = vec![
    ///     FormulaStep::Input(0),
    ///     FormulaStep::Map { map: Unary::Sigmoid, order: 0, of: 0 },
    ///     FormulaStep::Binary { kind: Binary::Mul, of: [0, 1] },
    /// ];
    /// let silu = Formula::new(steps, vec![1], vec![vec![2], vec![1]]);
    /// let (x, mut y, mut sigmoid) = ([0.0f32, 40.0], [9.0; 2], [9.0; 2]);
    /// let mut outs = [ViewMut::line(&mut y), ViewMut::line(&mut sigmoid)];
    /// fused(&silu, 0, &[View::line(&x)], &mut outs);
    /// assert_eq!((y, sigmoid), ([0.0, 40.0], [0.5, 1.0]));
    /// ```
    ///
    /// # Panics
    /// When shapes differ, when there are not as many operands and results as the formula has, or more than [`MOST`] parts of both.
    pub fn fused<T>(formula: &Formula, behind: usize, inputs: &[View<'_, T>], outs: &mut [ViewMut<'_, T>]) = fused_here;
} }

/// How many parts operands and results may have together.
pub const MOST: usize = 256;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Elements of a block: enough that going to it does not count, few enough that what some steps make of it is in the nearest cache.
const BLOCK: usize = 1024;

/// Elements of a tile that needs no room but for what is between its steps, so that its blocks follow each other at once.
const LONG: usize = 8 * BLOCK;

/// Bytes of operands and results that are taken to be in a cache, be it the last one: what comes from there is not worth asking for (Zen 4).
const NEAR: usize = 8 << 20;

/// Lines of the cache that are asked for at a time, at most: for more a core waits (Zen 4).
const AT_ONCE: usize = 24;

/// Where tiles are of fewer elements, they are brought together.
const SHORT: usize = 64;

fn fused_here<T: Stored>(
    formula: &Formula,
    behind: usize,
    inputs: &[View<'_, T>],
    outs: &mut [ViewMut<'_, T>],
) {
    let (operands, results) = (&formula.operands, &formula.results);
    assert!(
        (inputs.len(), outs.len()) == (operands.len(), results.len()) && !results.is_empty(),
        "fused: {} operands and {} results for {operands:?} and {results:?}",
        inputs.len(),
        outs.len(),
    );
    let mut places: SmallVec<[Place; 16]> = SmallVec::new();
    for (x, &parts) in inputs.iter().zip(operands) {
        places.extend(Place::of_parts(
            x.shape(),
            x.strides(),
            x.offset(),
            parts,
            behind,
        ));
    }
    for (out, parts) in outs.iter().zip(results) {
        let (shape, strides, offset) = out.geometry();
        places.extend(Place::of_parts(
            &shape,
            &strides,
            offset,
            parts.len(),
            behind,
        ));
    }
    let mut data: SmallVec<[&mut [T]; 4]> = outs.iter_mut().map(|out| out.parts().3).collect();
    match places.len() {
        ..=8 => by_rows::<T, 8>(formula, &places, inputs, &mut data),
        9..=32 => by_rows::<T, 32>(formula, &places, inputs, &mut data),
        33..=MOST => by_rows::<T, MOST>(formula, &places, inputs, &mut data),
        more => panic!("fused: {more} parts of operands and results"),
    }
}

/// Where the elements of a part lie.
struct Place {
    shape: Dims,
    strides: Strides,
    offset: usize,
}

impl Place {
    /// The places of an operand's or result's parts.
    fn of_parts<'a>(
        shape: &'a [usize],
        strides: &'a [isize],
        offset: usize,
        parts: usize,
        behind: usize,
    ) -> impl Iterator<Item = Self> + use<'a> {
        let dim = (parts != 1).then(|| shape.len().wrapping_sub(behind + 1));
        if let Some(dim) = dim {
            assert!(
                shape.get(dim) == Some(&parts),
                "fused: {parts} parts with {behind} dims behind them in shape {shape:?}"
            );
        }
        let is_kept = move |d: &usize| Some(*d) != dim;
        (0..parts).map(move |part| Self {
            shape: (0..shape.len()).filter(is_kept).map(|d| shape[d]).collect(),
            strides: (0..shape.len())
                .filter(is_kept)
                .map(|d| strides[d])
                .collect(),
            offset: dim.map_or(offset, |dim| {
                offset.wrapping_add_signed(part as isize * strides[dim])
            }),
        })
    }
}

/// As [`fused_here`], of at most `N` parts in these places, those of operands first.
fn by_rows<T: Stored, const N: usize>(
    formula: &Formula,
    places: &[Place],
    inputs: &[View<'_, T>],
    data: &mut [&mut [T]],
) {
    let count: usize = formula.operands.iter().sum();
    let shape = &places[count].shape;
    for place in places {
        assert_shapes(&[&place.shape], shape);
    }
    if shape.contains(&0) {
        return;
    }
    // Parts that are not there stay at one place.
    let still: Strides = SmallVec::from_elem(0, shape.len());
    let strides = core::array::from_fn(|k| places.get(k).map_or(&still[..], |at| &at.strides));
    let offsets: [usize; N] = core::array::from_fn(|k| places.get(k).map_or(0, |at| at.offset));
    let elements: usize = shape.iter().product();
    let mut there = strides.iter().take(places.len());
    let (extents, strides) = match there.all(|steps| is_row_major(shape, steps)) {
        true => (smallvec![elements], smallvec![[1; N]]),
        false => join_dims(shape, strides),
    };
    let (n, outer) = (extents.split_last()).map_or((1, &[][..]), |(n, outer)| (*n, outer));
    let apart = outer
        .len()
        .checked_sub(1)
        .map_or([1; N], |last| strides[last]);
    let along = *strides.last().unwrap_or(&[1; N]);
    let mut memory = Room::new();
    let memory = memory.numbers(formula.room * BLOCK);
    let steps = Apart {
        rows: apart,
        elements: along,
    };
    let mut blocks = Blocks::new(formula, inputs, steps, memory);
    // What a cache holds is not asked for, nor what the processor sees coming: few parts, read in few loops.
    let used = places.len() - formula.are_read.iter().filter(|is_read| !**is_read).count();
    let is_asked = elements * used * size_of::<T>() > NEAR && used >= 3 && used + formula.made >= 5;
    // Both ways bring operands to the same room, so that all tiles go one of them.
    // The tile whose elements have been asked for is the next block.
    let most = match !is_asked && blocks.take_all_where_it_is(&along) {
        true => LONG,
        false => BLOCK,
    };
    let together = n * outer.last().unwrap_or(&1);
    let are_few = together < SHORT && together < elements;
    // The tile whose elements have been asked for while the one before is computed.
    let mut next: Option<Tile<N>> = None;
    let mut visit = |tile: Tile<N>| {
        if are_few {
            return blocks.append(tile, data);
        }
        if is_asked {
            blocks.ask_for(&tile, data);
        }
        if let Some(tile) = next.replace(tile) {
            blocks.whole(&tile, data);
        }
    };
    for_each_joined(
        outer,
        &strides[..outer.len()],
        offsets,
        &mut |at, rows, _| {
            let mut row = Tile {
                at,
                rows: 1,
                len: n,
            };
            if n > BLOCK {
                for _ in 0..rows {
                    let mut tile = row;
                    for first in (0..n).step_by(most) {
                        tile.len = most.min(n - first);
                        visit(tile);
                        tile.go_on(&along, most);
                    }
                    row.go_on(&apart, 1);
                }
            } else {
                let together = BLOCK / n;
                for first in (0..rows).step_by(together) {
                    row.rows = together.min(rows - first);
                    visit(row);
                    row.go_on(&apart, together);
                }
            }
        },
    );
    if let Some(tile) = next {
        blocks.whole(&tile, data);
    }
    blocks.settle(data);
}

/// Rows of elements, as many as a block has room for, or a run of some blocks.
#[derive(Clone, Copy)]
struct Tile<const N: usize> {
    /// Where the first is in each part.
    at: [usize; N],
    rows: usize,
    /// Elements of a row.
    len: usize,
}

impl<const N: usize> Tile<N> {
    fn elements(&self) -> usize {
        self.rows * self.len
    }

    fn go_on(&mut self, steps: &[isize; N], times: usize) {
        for (at, step) in self.at.iter_mut().zip(steps) {
            *at = at.wrapping_add_signed(step * times as isize);
        }
    }
}

/// How far it is in each part to the next row of a tile, and to the next element of one.
struct Apart<const N: usize> {
    rows: [isize; N],
    elements: [isize; N],
}

impl<const N: usize> Apart<N> {
    /// Whether the elements of a part lie side by side in memory.
    fn is_dense(&self, tile: &Tile<N>, part: usize) -> bool {
        self.elements[part] == 1 && (tile.rows == 1 || self.rows[part] == tile.len as isize)
    }

    /// Whether all rows of a part are the same one, or one number.
    fn is_repeated(&self, tile: &Tile<N>, part: usize) -> bool {
        match tile.rows {
            1 => self.elements[part] == 0,
            _ => self.rows[part] == 0,
        }
    }

    /// Where the rows of a part begin.
    fn rows(&self, tile: &Tile<N>, part: usize) -> impl Iterator<Item = usize> + use<N> {
        let (at, apart) = (tile.at[part], self.rows[part]);
        (0..tile.rows).map(move |row| at.wrapping_add_signed(row as isize * apart))
    }
}

/// Operands and results, and what is made of a block of them.
struct Blocks<'a, 'r, T: Stored, const N: usize> {
    /// The memory of each operand's part.
    data: SmallVec<[&'a [T]; 16]>,
    made: Made<'a, 'r, T::Acc>,
    steps: Apart<N>,
    /// Of an operand whose rows are one row, or one number: where that is, and how much room from the first on has it.
    repeated: SmallVec<[(usize, usize); 16]>,
    /// Tiles of few elements that wait for more, and where in the block each begins.
    waiting: Vec<(usize, Tile<N>)>,
    /// How many elements they have.
    filled: usize,
}

/// What the steps make of a block.
struct Made<'a, 'r, A> {
    formula: &'a Formula,
    /// Room for a block of each step.
    room: SmallVec<[&'r mut [A]; 32]>,
    /// Parts of operands whose elements of this block lie side by side where they are, in the type that is computed in.
    direct: SmallVec<[Option<&'a [A]>; 16]>,
    /// Where the lines of the cache are that the next block has elements in: each part's first one, and how many there are.
    ahead: SmallVec<[*const u8; 16]>,
    ahead_lines: usize,
}

impl<'a, 'r, T: Stored, const N: usize> Blocks<'a, 'r, T, N> {
    fn new(
        formula: &'a Formula,
        inputs: &[View<'a, T>],
        steps: Apart<N>,
        mut room: Scratch<'r, T::Acc>,
    ) -> Self {
        let mut room: SmallVec<[&'r mut [T::Acc]; 32]> =
            (0..formula.room).map(|_| room.take(BLOCK)).collect();
        for (step, &block) in formula.steps.iter().zip(&formula.blocks) {
            if let FormulaStep::Number(value) = *step {
                room[block].fill(T::Acc::of(value));
            }
        }
        let parts = inputs.iter().zip(&formula.operands);
        let data: SmallVec<[&'a [T]; 16]> = parts
            .flat_map(|(x, &parts)| std::iter::repeat_n(x.data(), parts))
            .collect();
        Self {
            made: Made {
                formula,
                room,
                direct: SmallVec::from_elem(None, data.len()),
                ahead: SmallVec::new(),
                ahead_lines: 0,
            },
            repeated: SmallVec::from_elem((0, 0), data.len()),
            data,
            steps,
            waiting: Vec::new(),
            filled: 0,
        }
    }

    /// Whether elements that are so far apart along a row are read and written where they are, but for those that are one number.
    fn take_all_where_it_is(&self, along: &[isize; N]) -> bool {
        let formula = self.made.formula;
        let is_alone =
            |parts: &Vec<usize>| matches!(parts[..], [step] if formula.alone[step].is_some());
        let (operands, results) = along.split_at(self.data.len());
        T::as_acc(&[]).is_some()
            && operands.iter().all(|step| matches!(step, 0 | 1))
            && results
                .iter()
                .zip(&formula.results)
                .all(|(&step, parts)| step == 1 && is_alone(parts))
    }

    /// Notes the places of a tile that is next, of operands and results, which are asked for while another is computed.
    fn ask_for(&mut self, tile: &Tile<N>, outs: &[&mut [T]]) {
        let results = self.made.formula.results.iter().zip(outs);
        let results = results.flat_map(|(parts, out)| std::iter::repeat_n(&**out, parts.len()));
        let of = self.data.iter().copied().chain(results);
        self.made.ahead.clear();
        self.made.ahead_lines = (tile.elements() * size_of::<T>()).div_ceil(LINE);
        let are_read = self.made.formula.are_read.iter().copied();
        let are_used = are_read.chain(std::iter::repeat(true));
        for ((part, data), is_used) in of.enumerate().zip(are_used) {
            if is_used && self.steps.is_dense(tile, part) {
                self.made.ahead.push(data[tile.at[part]..].as_ptr().cast());
            }
        }
    }

    /// Computes a tile by itself.
    fn whole(&mut self, tile: &Tile<N>, outs: &mut [&mut [T]]) {
        let (formula, len) = (self.made.formula, tile.elements());
        for (part, data) in self.data.iter().enumerate() {
            self.made.direct[part] = match self.steps.is_dense(tile, part) {
                true => T::as_acc(&data[tile.at[part]..][..len]),
                false => None,
            };
        }
        self.bring(tile, 0);
        let mut part = self.data.len();
        let mut kept: SmallVec<[Option<&mut [T::Acc]>; 4]> = SmallVec::new();
        for (parts, out) in formula.results.iter().zip(outs.iter_mut()) {
            kept.push(match parts[..] {
                [step] if formula.alone[step].is_some() && self.steps.is_dense(tile, part) => {
                    T::as_acc_mut(&mut out[tile.at[part]..][..len])
                }
                _ => None,
            });
            part += parts.len();
        }
        let written: SmallVec<[bool; 4]> = kept.iter().map(Option::is_some).collect();
        let (made, kept_here) = (&mut self.made, &mut kept);
        vectorized(Run {
            made,
            kept: kept_here,
            len,
        });
        drop(kept);
        self.store(tile, 0, &written, outs);
    }

    /// Adds a tile of few elements to the block, which is computed once it is full.
    fn append(&mut self, tile: Tile<N>, outs: &mut [&mut [T]]) {
        if self.filled + tile.elements() > BLOCK {
            self.settle(outs);
        }
        self.made.direct.fill(None);
        self.bring(&tile, self.filled);
        self.waiting.push((self.filled, tile));
        self.filled += tile.elements();
    }

    /// Brings operands that are not taken from where they are to places of the block.
    fn bring(&mut self, tile: &Tile<N>, first: usize) {
        let formula = self.made.formula;
        for (step, &block) in formula.steps.iter().zip(&formula.blocks) {
            let FormulaStep::Input(part) = *step else {
                continue;
            };
            if self.made.direct[part].is_some() || self.has(part, tile, first) {
                continue;
            }
            let from = self.data[part];
            // Of a tile of several blocks one number alone, which is the same in all of them.
            let len = tile.len.min(BLOCK);
            let to = &mut self.made.room[block][first..][..tile.rows * len];
            if self.steps.is_dense(tile, part) {
                T::widen_slice(&from[tile.at[part]..][..to.len()], to);
                continue;
            }
            for (to, at) in to.chunks_exact_mut(len).zip(self.steps.rows(tile, part)) {
                match self.steps.elements[part] {
                    0 => to.fill(from[at].widen()),
                    step => gather(from, at, step, to),
                }
            }
        }
    }

    /// Whether there is the row or the number of an operand already, as often as a tile needs it, since one before needed it too; now there
    /// will be.
    fn has(&mut self, part: usize, tile: &Tile<N>, first: usize) -> bool {
        if !self.steps.is_repeated(tile, part) {
            self.repeated[part] = (0, 0);
            return false;
        }
        let (of, filled) = self.repeated[part];
        let (at, end) = (tile.at[part], first + tile.elements());
        let goes_on = of == at && filled >= first;
        if goes_on && end <= filled {
            return true;
        }
        let filled = if goes_on || first == 0 { end } else { 0 };
        self.repeated[part] = (at, filled);
        false
    }

    /// Writes the results of a tile, which begins at a place of the block, but those that are written.
    fn store(&self, tile: &Tile<N>, first: usize, written: &[bool], outs: &mut [&mut [T]]) {
        let mut part = self.data.len();
        for (i, (parts, out)) in self.made.formula.results.iter().zip(outs).enumerate() {
            if written.get(i) == Some(&true) {
                part += parts.len();
                continue;
            }
            for &result in parts {
                let found = &self.made.of(result, first + tile.elements())[first..];
                if self.steps.is_dense(tile, part) {
                    T::narrow_slice(found, &mut out[tile.at[part]..][..found.len()]);
                } else {
                    let step = self.steps.elements[part];
                    for (found, at) in found
                        .chunks_exact(tile.len)
                        .zip(self.steps.rows(tile, part))
                    {
                        scatter(found, out, at, step);
                    }
                }
                part += 1;
            }
        }
    }

    /// Computes the tiles that have been brought together.
    fn settle(&mut self, outs: &mut [&mut [T]]) {
        if self.filled > 0 {
            vectorized(Run {
                made: &mut self.made,
                kept: &mut [],
                len: self.filled,
            });
        }
        let waiting = std::mem::take(&mut self.waiting);
        for (first, tile) in &waiting {
            self.store(tile, *first, &[], outs);
        }
        self.waiting = waiting;
        self.waiting.clear();
        self.filled = 0;
    }
}

/// Rounds numbers to position `at` on, `step` apart.
fn scatter<T: Stored>(found: &[T::Acc], to: &mut [T], at: usize, step: isize) {
    if step == 1 {
        return T::narrow_slice(found, &mut to[at..][..found.len()]);
    }
    for (k, &found) in found.iter().enumerate() {
        to[at.wrapping_add_signed(k as isize * step)] = T::narrow(found);
    }
}

impl<A: Real> Made<'_, '_, A> {
    /// The first elements of a step's block.
    fn of(&self, step: usize, len: usize) -> &[A] {
        self.among(step, 0, len)
    }

    /// The elements of a step's block that begins at one of the tile.
    #[inline(always)]
    fn among(&self, step: usize, first: usize, len: usize) -> &[A] {
        let direct = match self.formula.steps[step] {
            FormulaStep::Input(i) => self.direct[i],
            _ => None,
        };
        match direct {
            Some(elements) => &elements[first..][..len],
            None => &self.room[self.formula.blocks[step]][..len],
        }
    }
}

/// Goes through the steps for a tile: one call for all of them that are short.
struct Run<'b, 'o, 'a, 'r, A> {
    made: &'b mut Made<'a, 'r, A>,
    /// Of each result the elements, if they are written where they belong.
    kept: &'b mut [Option<&'o mut [A]>],
    len: usize,
}

impl<A: Real> WithSimd for Run<'_, '_, '_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { made, kept, len } = self;
        for first in (0..len).step_by(BLOCK) {
            made.go_through(first, BLOCK.min(len - first), kept);
        }
    }
}

impl<A: Real> Made<'_, '_, A> {
    /// Goes through the steps for the block that begins at an element of the tile.
    #[inline(always)]
    fn go_through(&mut self, first: usize, len: usize, kept: &mut [Option<&mut [A]>]) {
        let formula = self.formula;
        // What the next block reads and writes is asked for bit by bit: all at once would be waited for.
        let (mut elements, mut share) = (len, 0);
        if !self.ahead.is_empty() {
            let bits = (self.ahead_lines * self.ahead.len()).div_ceil(AT_ONCE * formula.made);
            elements = len.div_ceil(bits).next_multiple_of(LINE);
            share = self.ahead_lines.div_ceil(bits * formula.made);
        }
        let mut asked = 0;
        let steps = formula.steps.iter().zip(&formula.blocks);
        for ((step, &block), alone) in steps.zip(&formula.alone) {
            if step.is_early() {
                continue;
            }
            // No step reads the block that it writes.
            let whole = std::mem::take(&mut self.room[block]);
            let out = match alone.and_then(|result| kept.get_mut(result)) {
                Some(Some(out)) => &mut out[first..][..len],
                _ => &mut whole[..len],
            };
            for (i, out) in out.chunks_mut(elements).enumerate() {
                self.ask(asked..self.ahead_lines.min(asked + share));
                asked += share;
                let bit = i * elements..i * elements + out.len();
                step.run(|of| &self.among(of, first, len)[bit.clone()], out);
            }
            self.room[block] = whole;
        }
    }

    /// Asks for some of the lines that the next block has in each part.
    #[inline(always)]
    fn ask(&self, lines: Range<usize>) {
        for at in lines {
            for of in &self.ahead {
                line(of.wrapping_add(at * LINE));
            }
        }
    }
}

impl FormulaStep {
    /// Makes some elements of those of the steps that it reads.
    #[inline(always)]
    fn run<'x, A: Real>(self, of: impl Fn(usize) -> &'x [A], out: &mut [A]) {
        match self {
            Self::Input(_) | Self::Number(_) => {}
            Self::Map { map, order, of: x } => map.eval(order, of(x), out),
            Self::Binary { kind, of: read } => {
                let (a, b) = (of(read[0]), of(read[1]));
                match kind {
                    Binary::Add => each(a, b, out, A::add),
                    Binary::Sub => each(a, b, out, A::sub),
                    Binary::Mul => each(a, b, out, A::mul),
                    Binary::Div => each(a, b, out, A::div),
                    kind => binary_lines(kind, a, b, out),
                }
            }
            Self::Below(read) => {
                let [a, b, x, y] = read.map(of);
                let of = a.iter().zip(b).zip(x.iter().zip(y));
                for (out, ((&a, &b), (&x, &y))) in out.iter_mut().zip(of) {
                    // Both are there before one is taken: of two places, it would be gathered.
                    *out = if a < b { x } else { y };
                }
            }
        }
    }
}

#[inline(always)]
fn each<T: Real>(a: &[T], b: &[T], out: &mut [T], f: impl Fn(T, T) -> T) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}

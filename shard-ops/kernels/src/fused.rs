//! Several maps in one pass: a block of elements goes through all of them while it is in the nearest cache, and what lies between
//! them is never written to memory.

mod strips;

use self::strips::{Made, Program};
use super::attention::{Stored, gather};
use super::compiled::compiled;
use super::pointwise::{Binary, assert_shapes};
use super::scratch::{Room, Scratch};
use super::unary::Unary;
use super::view::{for_each_joined, is_row_major, join_dims};
use super::{Dims, Strides, View, ViewMut};
use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};

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
    program: Program,
}

impl Formula {
    /// These steps, from operands of so many parts to results, whose parts are what some steps give.
    ///
    /// # Panics
    /// When a step reads one that does not come before it, or a part that no operand has; when a part of a result is none of the steps.
    pub fn new(steps: Vec<FormulaStep>, operands: Vec<usize>, results: Vec<Vec<usize>>) -> Self {
        let parts: usize = operands.iter().sum();
        for (at, step) in steps.iter().enumerate() {
            for read in step.reads() {
                assert!(read < at, "fused: step {at} reads step {read}");
            }
            if let FormulaStep::Input(part) = *step {
                assert!(part < parts, "fused: part {part} of {parts}");
            }
        }
        Self {
            program: Program::new(&steps, &results),
            steps,
            operands,
            results,
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

/// Elements that are brought and stored at a time, where they do not lie side by side in the type that is computed in.
const BLOCK: usize = 1024;

/// Bytes of operands and results that no cache is taken to hold. Of three arrays and more that are not read where they are, those of the next tile are
/// asked for then, some lines with each strip: so many that are brought at once a processor does not see coming.
const FAR: usize = 8 << 20;

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
    let memory = memory.numbers(formula.program.room());
    let steps = Apart {
        rows: apart,
        elements: along,
    };
    let mut blocks = Blocks::new(formula, inputs, steps, memory);
    // Both ways bring operands to the same room, so that all tiles go one of them.
    blocks.is_far = places.len() >= 3 && elements * places.len() * size_of::<T>() > FAR;
    let most = match blocks.take_all_where_it_is(&along) {
        true => n,
        false => BLOCK,
    };
    let together = n * outer.last().unwrap_or(&1);
    let are_few = together < SHORT && together < elements;
    let mut visit = |tile: Tile<N>| match are_few {
        true => blocks.append(tile, data),
        false => blocks.whole(&tile, data),
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
    blocks.settle(data);
}

/// Rows of elements, as many as a block has room for, or one of as many as there are.
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
    formula: &'a Formula,
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
    /// [`FAR`].
    is_far: bool,
}

impl<'a, 'r, T: Stored, const N: usize> Blocks<'a, 'r, T, N> {
    fn new(
        formula: &'a Formula,
        inputs: &[View<'a, T>],
        steps: Apart<N>,
        room: Scratch<'r, T::Acc>,
    ) -> Self {
        let parts = inputs.iter().zip(&formula.operands);
        let data: SmallVec<[&'a [T]; 16]> = parts
            .flat_map(|(x, &parts)| std::iter::repeat_n(x.data(), parts))
            .collect();
        Self {
            formula,
            made: Made::new(&formula.program, room),
            repeated: SmallVec::from_elem((0, 0), data.len()),
            data,
            steps,
            waiting: Vec::new(),
            filled: 0,
            is_far: false,
        }
    }

    /// Whether elements that are so far apart along a row are read and written where they are, but for those that are one number.
    fn take_all_where_it_is(&self, along: &[isize; N]) -> bool {
        let formula = self.formula;
        let is_alone =
            |parts: &Vec<usize>| matches!(parts[..], [step] if formula.program.is_alone(step));
        let (operands, results) = along.split_at(self.data.len());
        T::as_acc(&[]).is_some()
            && operands.iter().all(|step| matches!(step, 0 | 1))
            && results
                .iter()
                .zip(&formula.results)
                .all(|(&step, parts)| step == 1 && is_alone(parts))
    }

    /// Computes a tile by itself.
    fn whole(&mut self, tile: &Tile<N>, outs: &mut [&mut [T]]) {
        let (formula, len) = (self.formula, tile.elements());
        for input in self.made.inputs() {
            input.direct = match self.steps.is_dense(tile, input.part) {
                true => T::as_acc(&self.data[input.part][tile.at[input.part]..][..len]),
                false => None,
            };
        }
        self.bring(tile, 0);
        if self.is_far && len <= BLOCK {
            self.ask_behind(tile, outs);
        }
        let mut part = self.data.len();
        let mut kept: SmallVec<[Option<&mut [T::Acc]>; 4]> = SmallVec::new();
        for (parts, out) in formula.results.iter().zip(outs.iter_mut()) {
            kept.push(match parts[..] {
                [step] if formula.program.is_alone(step) && self.steps.is_dense(tile, part) => {
                    T::as_acc_mut(&mut out[tile.at[part]..][..len])
                }
                _ => None,
            });
            part += parts.len();
        }
        let written: SmallVec<[bool; 4]> = kept.iter().map(Option::is_some).collect();
        self.made.run(len, &mut kept);
        drop(kept);
        self.store(tile, 0, &written, outs);
    }

    /// Asks for what is behind a tile, in operands and results, while it is computed.
    fn ask_behind(&mut self, tile: &Tile<N>, outs: &[&mut [T]]) {
        let results = self.formula.results.iter().zip(outs);
        let results =
            results.flat_map(|(parts, out)| std::iter::repeat_n(out.as_ptr(), parts.len()));
        let parts = self.data.iter().map(|data| data.as_ptr()).chain(results);
        let dense = parts
            .enumerate()
            .filter(|(part, _)| self.steps.is_dense(tile, *part));
        let behind =
            |(part, of): (usize, *const T)| of.wrapping_add(tile.at[part] + tile.elements());
        self.made.ask_for(dense.map(behind));
    }

    /// Adds a tile of few elements to the block, which is computed once it is full.
    fn append(&mut self, tile: Tile<N>, outs: &mut [&mut [T]]) {
        if self.filled + tile.elements() > BLOCK {
            self.settle(outs);
        }
        self.bring(&tile, self.filled);
        self.waiting.push((self.filled, tile));
        self.filled += tile.elements();
    }

    /// Brings operands that are not taken from where they are to places of the block.
    fn bring(&mut self, tile: &Tile<N>, first: usize) {
        for input in self.made.inputs() {
            let part = input.part;
            if input.direct.is_some() {
                // Its end may be written over what was there.
                self.repeated[part] = (0, 0);
                continue;
            }
            if has(&mut self.repeated[part], &self.steps, part, tile, first) {
                continue;
            }
            let from = self.data[part];
            // Of a tile of more than a block one number alone, as often as a block has it.
            let len = tile.len.min(BLOCK);
            let to = &mut input.block()[first..][..tile.rows * len];
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

    /// Writes the results of a tile, which begins at a place of the block, but those that are written.
    fn store(&self, tile: &Tile<N>, first: usize, written: &[bool], outs: &mut [&mut [T]]) {
        let mut part = self.data.len();
        for (i, (parts, out)) in self.formula.results.iter().zip(outs).enumerate() {
            if written.get(i) == Some(&true) {
                part += parts.len();
                continue;
            }
            for &result in parts {
                let found = self.made.found(result, first..first + tile.elements());
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
            self.made.run(self.filled, &mut []);
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

/// Whether there is the row or the number of an operand already, as often as a tile needs it, since one before needed it too; now there
/// will be.
fn has<const N: usize>(
    repeated: &mut (usize, usize),
    steps: &Apart<N>,
    part: usize,
    tile: &Tile<N>,
    first: usize,
) -> bool {
    if !steps.is_repeated(tile, part) {
        *repeated = (0, 0);
        return false;
    }
    let (of, filled) = *repeated;
    let (at, end) = (tile.at[part], first + tile.elements());
    let goes_on = of == at && filled >= first;
    if goes_on && end <= filled {
        return true;
    }
    *repeated = (at, if goes_on || first == 0 { end } else { 0 });
    false
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

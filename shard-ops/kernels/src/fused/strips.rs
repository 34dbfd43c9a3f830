//! What the steps of a formula make of a tile, strip by strip: a strip goes through all steps before the next one does.
//!
//! So the next elements of every operand are read while steps of these are made, and a processor sees them coming: from memory formulas of three
//! operands and more take half the time that they take if each step goes through a page. What lies between steps takes little room.

use super::{BLOCK, FormulaStep};
use crate::pointwise::{Binary, binary_lines};
use crate::prefetch::{LINE, line};
use crate::scratch::Scratch;
use crate::{Real, arrays};
use pulp::{Simd, WithSimd};
use smallvec::SmallVec;
use std::ops::Range;

/// Elements of a strip: few enough that processors look beyond it, many enough that going from step to step does not count.
const STRIP: usize = 128;

/// How many are a block.
const STRIPS: usize = BLOCK / STRIP;

/// Elements that are brought or that wait to be stored.
type Block<A> = [[A; STRIP]; STRIPS];

/// The steps in the order of their kinds. Those that are made read, by number, parts of operands first, then numbers, then what was made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Program {
    /// The parts that are read or are results.
    inputs: SmallVec<[usize; 8]>,
    /// Numbers, and in which block one waits that is a result.
    numbers: SmallVec<[(f64, Option<usize>); 8]>,
    made: SmallVec<[Making; 8]>,
    /// Where each step is.
    places: SmallVec<[Place; 8]>,
    /// How many blocks wait to be stored.
    waiting: usize,
}

/// Where what a step gives is found after a tile.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// At the part of an operand of this number.
    Input(usize),
    /// In a block, unless it is alone and has been written where it belongs.
    Waits { block: usize, is_alone: bool },
    /// Nowhere, as it is no result.
    Gone,
}

/// A step that is made.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Making {
    step: FormulaStep,
    /// The result that it is, if it is one of a single part and is neither read nor another result: it is written where it belongs, and not
    /// copied there.
    alone: Option<usize>,
    /// In which block it waits otherwise, if it is a result.
    waits: Option<usize>,
}

impl Program {
    pub(super) fn new(steps: &[FormulaStep], results: &[Vec<usize>]) -> Self {
        let count = |is: fn(&FormulaStep) -> bool| steps.iter().filter(|step| is(step)).count();
        let inputs = count(|step| matches!(step, FormulaStep::Input(_)));
        let numbers = count(|step| matches!(step, FormulaStep::Number(_)));
        let mut program = Self {
            inputs: SmallVec::new(),
            numbers: SmallVec::new(),
            made: SmallVec::new(),
            places: SmallVec::new(),
            waiting: 0,
        };
        let alone = alone(steps, results);
        let mut order: SmallVec<[usize; 16]> = SmallVec::new();
        for (at, &step) in steps.iter().enumerate() {
            let is_result = results.iter().flatten().any(|&result| result == at);
            let waits = (is_result && !matches!(step, FormulaStep::Input(_))).then(|| {
                program.waiting += 1;
                program.waiting - 1
            });
            let mut place = waits.map_or(Place::Gone, |block| Place::Waits {
                block,
                is_alone: alone[at].is_some() && !matches!(step, FormulaStep::Number(_)),
            });
            order.push(match step {
                FormulaStep::Input(part) => {
                    place = Place::Input(program.inputs.len());
                    program.inputs.push(part);
                    program.inputs.len() - 1
                }
                FormulaStep::Number(value) => {
                    program.numbers.push((value, waits));
                    inputs + program.numbers.len() - 1
                }
                step => {
                    program.made.push(Making {
                        step: step.renumbered(|read| order[read]),
                        alone: alone[at],
                        waits,
                    });
                    inputs + numbers + program.made.len() - 1
                }
            });
            program.places.push(place);
        }
        program
    }

    /// How many numbers [`Made`] has room for.
    pub(super) fn room(&self) -> usize {
        (self.inputs.len() + self.waiting) * BLOCK + (self.numbers.len() + self.made.len()) * STRIP
    }

    /// Whether a step is [`Making::alone`].
    pub(super) fn is_alone(&self, step: usize) -> bool {
        matches!(self.places[step], Place::Waits { is_alone: true, .. })
    }
}

/// [`Making::alone`].
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
    for (alone, uses) in alone.iter_mut().zip(uses) {
        if uses > 1 {
            *alone = None;
        }
    }
    alone
}

/// What the steps make of a tile.
pub(super) struct Made<'a, 'r, A> {
    program: &'a Program,
    inputs: SmallVec<[Input<'a, 'r, A>; 16]>,
    /// The numbers, and what the steps made of a strip, one after the other.
    strips: &'r mut [[A; STRIP]],
    /// Results that wait to be stored.
    waiting: SmallVec<[&'r mut Block<A>; 8]>,
    /// Places whose lines of the cache are asked for from strip to strip.
    ahead: SmallVec<[*const u8; 16]>,
    /// Bytes of a strip there.
    share: usize,
}

/// The elements of a part of an operand.
pub(super) struct Input<'a, 'r, A> {
    pub(super) part: usize,
    /// Where they lie side by side, in the type that is computed in.
    pub(super) direct: Option<&'a [A]>,
    /// Where they are brought to otherwise; and the end of those that lie side by side, which is no whole strip.
    block: &'r mut Block<A>,
}

impl<A: Real> Input<'_, '_, A> {
    /// As many elements as a block has.
    pub(super) fn block(&mut self) -> &mut [A] {
        self.block.as_flattened_mut()
    }

    /// A strip of the tile. Tiles of more than a block have one number alone where they are brought.
    #[inline(always)]
    fn strip(&self, number: usize, is_whole: bool) -> &[A; STRIP] {
        match self.direct {
            Some(direct) if is_whole => &direct.as_chunks().0[number],
            Some(_) => &self.block[0],
            None => &self.block[number % STRIPS],
        }
    }
}

impl<'a, 'r, A: Real> Made<'a, 'r, A> {
    pub(super) fn new(program: &'a Program, mut room: Scratch<'r, A>) -> Self {
        let mut block =
            || -> &'r mut Block<A> { &mut room.take(BLOCK).as_chunks_mut().0.as_chunks_mut().0[0] };
        let inputs = program.inputs.iter().map(|&part| Input {
            part,
            direct: None,
            block: block(),
        });
        let inputs = inputs.collect();
        let mut waiting: SmallVec<[_; 8]> = (0..program.waiting).map(|_| block()).collect();
        let count = program.numbers.len() + program.made.len();
        let strips = room.take(count * STRIP).as_chunks_mut().0;
        for (strip, &(value, waits)) in strips.iter_mut().zip(&program.numbers) {
            strip.fill(A::of(value));
            if let Some(block) = waits {
                waiting[block].fill(*strip);
            }
        }
        Self {
            program,
            inputs,
            strips,
            waiting,
            ahead: SmallVec::new(),
            share: 0,
        }
    }

    pub(super) fn inputs(&mut self) -> &mut [Input<'a, 'r, A>] {
        &mut self.inputs
    }

    /// Asks for as much memory from these places on as a tile has, while the next one is made. They need not be any.
    pub(super) fn ask_for<T>(&mut self, places: impl Iterator<Item = *const T>) {
        self.ahead = places.map(<*const T>::cast).collect();
        self.share = STRIP * size_of::<T>();
    }

    /// Goes through the steps for so many elements. Results for which there is a place are written there.
    pub(super) fn run(&mut self, len: usize, kept: &mut [Option<&mut [A]>]) {
        crate::pointwise::vectorized(Run {
            made: self,
            kept,
            len,
        });
    }

    /// Elements of a result's part that has waited.
    pub(super) fn found(&self, step: usize, elements: Range<usize>) -> &[A] {
        match self.program.places[step] {
            Place::Input(number) => {
                let input = &self.inputs[number];
                &input.direct.unwrap_or(input.block.as_flattened())[elements]
            }
            Place::Waits { block, .. } => &self.waiting[block].as_flattened()[elements],
            Place::Gone => &[],
        }
    }
}

/// One call for all steps that are short.
struct Run<'b, 'o, 'a, 'r, A> {
    made: &'b mut Made<'a, 'r, A>,
    kept: &'b mut [Option<&'o mut [A]>],
    len: usize,
}

impl<A: Real> WithSimd for Run<'_, '_, '_, '_, A> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { made, kept, len } = self;
        let (whole, rest) = (len / STRIP, len % STRIP);
        for number in 0..whole {
            for at in &made.ahead {
                for behind in (0..made.share).step_by(LINE) {
                    line(at.wrapping_add(number * made.share + behind));
                }
            }
            made.strip(simd, number, STRIP, kept);
        }
        made.ahead.clear();
        if rest > 0 {
            for input in &mut made.inputs {
                if let Some(direct) = input.direct {
                    input.block[0][..rest].copy_from_slice(&direct[whole * STRIP..]);
                }
            }
            made.strip(simd, whole, rest, kept);
        }
    }
}

impl<A: Real> Made<'_, '_, A> {
    /// Goes through the steps for a strip of the tile, of which so many elements are wanted.
    #[inline(always)]
    fn strip<S: Simd>(
        &mut self,
        simd: S,
        number: usize,
        len: usize,
        kept: &mut [Option<&mut [A]>],
    ) {
        let (program, inputs, is_whole) = (self.program, &self.inputs[..], len == STRIP);
        for (making, at) in program.made.iter().zip(program.numbers.len()..) {
            let (before, out) = self.strips.split_at_mut(at);
            let of = |read: usize| match read.checked_sub(inputs.len()) {
                None => inputs[read].strip(number, is_whole),
                Some(read) => &before[read],
            };
            let kept = making.alone.and_then(|result| kept.get_mut(result));
            match (kept, making.waits) {
                (Some(Some(to)), _) if is_whole => {
                    let to = &mut to.as_chunks_mut().0[number];
                    making.step.run(simd, len, of, to);
                }
                (Some(Some(to)), _) => {
                    making.step.run(simd, len, of, &mut out[0]);
                    to[number * STRIP..].copy_from_slice(&out[0][..len]);
                }
                // Nobody else reads it.
                (_, Some(block)) if making.alone.is_some() => {
                    let to = &mut self.waiting[block][number % STRIPS];
                    making.step.run(simd, len, of, to);
                }
                (_, waits) => {
                    making.step.run(simd, len, of, &mut out[0]);
                    if let Some(block) = waits {
                        self.waiting[block][number % STRIPS][..len].copy_from_slice(&out[0][..len]);
                    }
                }
            }
        }
    }
}

impl FormulaStep {
    /// Makes a strip of those of the steps that it reads, of which so many elements are wanted.
    #[inline(always)]
    fn run<'x, S: Simd, A: Real>(
        self,
        simd: S,
        len: usize,
        of: impl Fn(usize) -> &'x [A; STRIP],
        out: &mut [A; STRIP],
    ) {
        match self {
            Self::Input(_) | Self::Number(_) => {}
            Self::Map { map, order, of: x } => map.eval(order, &of(x)[..len], &mut out[..len]),
            Self::Binary { kind, of: [a, b] } => {
                let of = [of(a), of(b)];
                match kind {
                    Binary::Add => each::<S, A, _>(of, out, |[a, b]| A::add_vec(simd, a, b)),
                    Binary::Sub => each::<S, A, _>(of, out, |[a, b]| A::sub_vec(simd, a, b)),
                    Binary::Mul => each::<S, A, _>(of, out, |[a, b]| A::mul_vec(simd, a, b)),
                    Binary::Div => each::<S, A, _>(of, out, |[a, b]| A::div_vec(simd, a, b)),
                    kind => binary_lines(kind, &of[0][..len], &of[1][..len], &mut out[..len]),
                }
            }
            Self::Below([a, b, x, y]) => {
                let of = [of(a), of(b), of(x), of(y)];
                each::<S, A, _>(of, out, |of| A::where_below_vec(simd, of));
            }
        }
    }
}

/// Writes a function of vectors. There are as many for every strip, so that the compiler makes no loop: where one ends a processor may guess wrong, and
/// what comes next is then asked for late.
#[inline(always)]
fn each<S: Simd, A: Real, const N: usize>(
    of: [&[A; STRIP]; N],
    out: &mut [A; STRIP],
    f: impl Fn([A::Vec<S>; N]) -> A::Vec<S>,
) {
    let of = arrays::each(
        of,
        #[inline(always)]
        |x| A::vectors::<S>(x),
    );
    for (i, out) in A::vectors_mut::<S>(out).iter_mut().enumerate() {
        *out = f(arrays::each(
            of,
            #[inline(always)]
            |x| x[i],
        ));
    }
}

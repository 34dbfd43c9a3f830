//! Fourier transforms along a dim of strided views, by `rustfft`.
//!
//! A complex number is two numbers side by side, the last dim of a view. A transform reads as many elements as there are, up to its
//! length, with zeros for those that are missing, and writes as many as are asked for, with zeros where there are none: so the
//! adjoint of a transform is a transform too.

mod half;
mod lines;
mod parts;
mod product;

pub use self::product::{CompiledProduct, multiply};

use self::half::{Half, Join, Pair, Split};
use self::lines::{Gather, LINES, Lines, Places, Scatter, join_dims};
use self::parts::transform_all_here;
use super::{Real, View, ViewMut};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use pulp::{Simd, WithSimd};
use shard_instances::fourier::{self, Complex, Transforms};
use std::sync::Arc;

/// What is transformed into what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fft {
    /// Complex numbers `x[j]` into `Σ x[j] e^(∓2πi jk/n)`: minus forward, plus `inverse`.
    Complex {
        /// The direction.
        inverse: bool,
    },
    /// Real numbers into the first `n/2 + 1` results of the forward transform. `doubled`: those that stand for two, all but those
    /// of frequencies 0 and `n/2`, times two.
    FromReal {
        /// Whether such results are doubled.
        doubled: bool,
    },
    /// The adjoint of [`FromReal`](Self::FromReal): the real part of `Σ x[k] e^(2πi jk/n)` over `k` up to `n/2`, with `doubled`
    /// terms. That is the inverse transform of half a spectrum whose other half is its mirror image.
    ToReal {
        /// Whether the terms that stand for two are doubled.
        doubled: bool,
    },
}

impl Fft {
    /// Whether the operand's last dim holds complex numbers.
    pub fn reads_complex(self) -> bool {
        !matches!(self, Self::FromReal { .. })
    }

    /// Whether the result's last dim holds complex numbers.
    pub fn writes_complex(self) -> bool {
        !matches!(self, Self::ToReal { .. })
    }

    /// The transform that pulls gradients back.
    #[must_use]
    pub fn adjoint(self) -> Self {
        match self {
            Self::Complex { inverse } => Self::Complex { inverse: !inverse },
            Self::FromReal { doubled } => Self::ToReal { doubled },
            Self::ToReal { doubled } => Self::FromReal { doubled },
        }
    }
}

/// One of several transforms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// What becomes of what.
    pub kind: Fft,
    /// The dim.
    pub dim: usize,
    /// Elements of a transform.
    pub n: usize,
    /// How many results are written.
    pub extent: usize,
    /// By which results are multiplied.
    pub scale: f64,
}

impl Pass {
    /// The shape of what becomes of a shape.
    pub fn shape_of(&self, shape: &[usize]) -> Vec<usize> {
        let mut made = shape.to_vec();
        made.truncate(shape.len() - usize::from(self.kind.reads_complex()));
        made[self.dim] = self.extent;
        made.extend(self.kind.writes_complex().then_some(2));
        made
    }
}

/// An element type that has plans for transforms.
pub trait Planned: Real + Transforms + Compiled<Self> {}

impl Planned for f32 {}

impl Planned for f64 {}

compiled! { trait Compiled for Planned: f32 f64; {
    /// `out = scale · fft(x)` along dim `dim`, with transforms of `n` elements.
    ///
    /// ```
    /// use shard_kernels::{fft::{transform, Fft}, View, ViewMut};
    /// let x = [1.0, 2.0, 3.0, 4.0];
    /// let mut y = [0.0; 6];
    /// let kind = Fft::FromReal { doubled: false };
    /// transform(kind, 0, 4, 1.0, &View::contiguous(&x, &[4]), &mut ViewMut::contiguous(&mut y, &[3, 2]));
    /// assert_eq!(y, [10.0, 0.0, -2.0, 2.0, -2.0, 0.0]);
    /// ```
    ///
    /// # Panics
    /// When shapes differ in other dims than `dim`, a dim of complex numbers is not the last or not 2, or `n` is 0.
    pub fn transform<T>(
        kind: Fft,
        dim: usize,
        n: usize,
        scale: f64,
        x: &View<'_, T>,
        out: &mut ViewMut<'_, T>,
    ) = transform_here;

    /// Transforms that follow each other, each along its own dim, with the bits that [`transform`] gives, one after the other. What
    /// lies side by side in the other dims is transformed part by part, so that each pass finds in a cache what the one before wrote. No
    /// passes leave all as it is.
    ///
    /// ```
    /// use shard_kernels::{fft::{transform_all, Fft, Pass}, View, ViewMut};
    /// // The half spectrum of two rows, then the spectrum of its columns.
    /// let x = [1.0, 2.0, 3.0, 4.0];
    /// let passes = [
    ///     Pass { kind: Fft::FromReal { doubled: false }, dim: 1, n: 2, extent: 2, scale: 1.0 },
    ///     Pass { kind: Fft::Complex { inverse: false }, dim: 0, n: 2, extent: 2, scale: 1.0 },
    /// ];
    /// let mut y = [0.0; 8];
    /// transform_all(&passes, &View::contiguous(&x, &[2, 2]), &mut ViewMut::contiguous(&mut y, &[2, 2, 2]));
    /// assert_eq!(y, [10.0, 0.0, -2.0, 0.0, -4.0, 0.0, 0.0, 0.0]);
    /// ```
    ///
    /// # Panics
    /// As [`transform`]; where a pass does not read what the one before it writes.
    pub fn transform_all<T>(
        passes: &[Pass],
        x: &View<'_, T>,
        out: &mut ViewMut<'_, T>,
    ) = transform_all_here;
} }

fn transform_here<T: Planned>(
    kind: Fft,
    dim: usize,
    n: usize,
    scale: f64,
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let lines = x.shape().iter().enumerate().filter(|(d, _)| *d != dim);
    let lines = lines.map(|(_, n)| n).product();
    Work::new(kind, n, scale, lines).over(dim, x, out);
}

/// Some lines in memory: where they begin, and how they lie.
type Read<'a, T> = (&'a [T], &'a [usize], &'a Lines);

/// Some lines in memory that are written.
type Write<'a, T> = (&'a mut [T], &'a [usize], &'a Lines);

/// What lines are transformed with.
struct Work<T> {
    kind: Fft,
    scale: T,
    ends: Ends<T>,
    plan: Arc<dyn fourier::Fft<T>>,
    /// A few lines, which are transformed here.
    line: Vec<Complex<T>>,
    /// Real numbers or half spectra of a few lines, where these are not read or written in memory.
    other: Vec<Pair<T>>,
    scratch: Vec<Complex<T>>,
}

/// What goes into the complex transform, and comes out of it.
enum Ends<T> {
    Complex,
    FromReal(Half<T>),
    ToReal(Half<T>),
}

impl<T: Planned> Work<T> {
    /// For transforms of `n` elements, of which there are so many.
    fn new(kind: Fft, n: usize, scale: f64, lines: usize) -> Self {
        assert!(n > 0, "fft: a transform of no elements");
        let lines = lines.min(LINES);
        let by = |weight: f64| T::of(scale * weight);
        let twice = |doubled| if doubled { 2.0 } else { 1.0 };
        let (ends, inverse, len, other) = match kind {
            Fft::Complex { inverse } => (Ends::Complex, inverse, n, 0),
            Fft::FromReal { doubled } => {
                let half = Half::new(n, by(1.0), by(twice(doubled)));
                let (len, other) = (half.transformed(), half.frequencies());
                (Ends::FromReal(half), false, len, other)
            }
            Fft::ToReal { doubled } => {
                let half = Half::new(n, by(1.0), by(twice(doubled) / 2.0));
                let (len, other) = (half.transformed(), half.frequencies());
                (Ends::ToReal(half), true, len, other)
            }
        };
        let plan = T::complex(len, inverse);
        let scratch = plan
            .get_inplace_scratch_len()
            .max(plan.get_immutable_scratch_len());
        let zero = Complex::new(T::zero(), T::zero());
        Self {
            kind,
            scale: T::of(scale),
            ends,
            plan,
            line: vec![zero; len * lines],
            other: vec![[T::zero(); 2]; other * lines],
            scratch: vec![zero; scratch],
        }
    }

    /// Transforms the lines of a view along a dim.
    fn over(&mut self, dim: usize, x: &View<'_, T>, out: &mut ViewMut<'_, T>) {
        let complex = self.kind.reads_complex();
        let mut from = Lines::of(x.shape(), x.strides(), x.offset(), dim, complex);
        let (shape, strides, offset) = out.geometry();
        let complex = self.kind.writes_complex();
        let mut to = Lines::of(&shape, &strides, offset, dim, complex);
        assert!(
            from.others == to.others,
            "fft: {:?} into {shape:?}",
            x.shape()
        );
        join_dims(&mut from, &mut to);
        let (rows, beside) = from.rows();
        let data = out.data_mut();
        for row in 0..rows {
            let (source, target) = (from.row(row), to.row(row));
            for first in (0..beside).step_by(LINES) {
                let last = beside.min(first + LINES);
                self.transform(
                    (x.data(), &from.places(source, first..last), &from),
                    (&mut *data, &to.places(target, first..last), &to),
                );
            }
        }
    }

    /// Transforms some lines.
    fn transform(&mut self, read: Read<'_, T>, (data, starts, to): Write<'_, T>) {
        let (plan, scratch) = (&*self.plan, &mut self.scratch);
        let n = plan.len();
        let line = &mut self.line[..starts.len() * n];
        let there = match &self.ends {
            Ends::Complex if is_whole(read, n) && to.are_runs() && to.extent >= n => {
                let (from, starts_from, _) = read;
                between(plan, scratch, (from, starts_from), (&mut *data, starts));
                if self.scale != T::one() {
                    for &start in starts {
                        vectorized(Scaled(&mut data[start..][..2 * n], self.scale));
                    }
                }
                n
            }
            Ends::Complex => {
                if !in_memory(plan, scratch, read, n, line) {
                    read_pairs(read, n, bytemuck::cast_slice_mut(line));
                    plan.process_with_scratch(line, scratch);
                }
                vectorized(Scaled(bytemuck::cast_slice_mut(line), self.scale));
                write_pairs(bytemuck::cast_slice(line), n, (data, starts, to))
            }
            Ends::FromReal(half) => {
                if !half.is_even() {
                    read_reals(read, n, bytemuck::cast_slice_mut(&mut self.other));
                    let reals: &[T] = bytemuck::cast_slice(&self.other);
                    for (z, &x) in line.iter_mut().zip(reals) {
                        *z = Complex::new(x, T::zero());
                    }
                    plan.process_with_scratch(line, scratch);
                } else if !in_memory(plan, scratch, read, 2 * n, line) {
                    read_reals(read, 2 * n, bytemuck::cast_slice_mut(line));
                    plan.process_with_scratch(line, scratch);
                }
                join(
                    half,
                    bytemuck::cast_slice(line),
                    &mut self.other,
                    (data, starts, to),
                )
            }
            Ends::ToReal(half) => {
                split(half, read, &mut self.other, bytemuck::cast_slice_mut(line));
                plan.process_with_scratch(line, scratch);
                if half.is_even() {
                    write_reals(bytemuck::cast_slice(line), 2 * n, (data, starts, to))
                } else {
                    let reals: &mut [T] = bytemuck::cast_slice_mut(&mut self.other);
                    for (x, z) in reals.iter_mut().zip(line) {
                        *x = z.re;
                    }
                    write_reals(reals, n, (data, starts, to))
                }
            }
        };
        to.clear(there, starts, data);
    }
}

/// Transforms lines from where they are if they are runs of at least `len` numbers, complex or real; whether they are.
fn in_memory<T: Planned>(
    plan: &dyn fourier::Fft<T>,
    scratch: &mut [Complex<T>],
    read: Read<'_, T>,
    len: usize,
    line: &mut [Complex<T>],
) -> bool {
    let whole = is_whole(read, len);
    if whole {
        let (data, starts, _) = read;
        let here = side_by_side(starts.len(), plan.len());
        let line = bytemuck::cast_slice_mut(line);
        between(plan, scratch, (data, starts), (line, &here));
    }
    whole
}

/// Writes half spectra of lines that were transformed; of how many frequencies.
fn join<T: Planned>(
    half: &Half<T>,
    lines: &[Pair<T>],
    other: &mut [Pair<T>],
    (data, starts, to): Write<'_, T>,
) -> usize {
    let width = half.frequencies();
    if to.are_runs() {
        let there = width.min(to.extent);
        vectorized(Join {
            half,
            lines,
            out: data,
            starts,
            there,
        });
        return there;
    }
    vectorized(Join {
        half,
        lines,
        out: bytemuck::cast_slice_mut(&mut *other),
        starts: &side_by_side(starts.len(), width),
        there: width,
    });
    write_pairs(other, width, (data, starts, to))
}

/// Reads half spectra, and prepares lines.
fn split<T: Planned>(
    half: &Half<T>,
    (data, starts, from): Read<'_, T>,
    other: &mut [Pair<T>],
    lines: &mut [Pair<T>],
) {
    let width = half.frequencies();
    if is_whole((data, starts, from), width) {
        return vectorized(Split {
            half,
            spectra: data,
            starts,
            lines,
        });
    }
    read_pairs((data, starts, from), width, other);
    vectorized(Split {
        half,
        spectra: bytemuck::cast_slice(other),
        starts: &side_by_side(starts.len(), width),
        lines,
    });
}

/// Where lines of `width` complex numbers begin that follow each other.
fn side_by_side(lines: usize, width: usize) -> Places {
    (0..lines).map(|line| line * 2 * width).collect()
}

/// Whether lines are runs of memory, of at least `len` numbers.
fn is_whole<T>((_, _, lines): Read<'_, T>, len: usize) -> bool {
    lines.are_runs() && lines.extent >= len
}

/// Transforms lines that are runs of memory into such lines, as many at a time as lie one after the other on both sides.
fn between<T: Planned>(
    plan: &dyn fourier::Fft<T>,
    scratch: &mut [Complex<T>],
    (from, mut starts): (&[T], &[usize]),
    (to, mut targets): (&mut [T], &[usize]),
) {
    let len = 2 * plan.len();
    while let (Some(&start), Some(&target)) = (starts.first(), targets.first()) {
        let follows = |i: &usize| starts[*i] == start + i * len && targets[*i] == target + i * len;
        let count = 1 + (1..starts.len()).take_while(follows).count();
        plan.process_immutable_with_scratch(
            bytemuck::cast_slice(&from[start..][..count * len]),
            bytemuck::cast_slice_mut(&mut to[target..][..count * len]),
            scratch,
        );
        (starts, targets) = (&starts[count..], &targets[count..]);
    }
}

/// Brings complex numbers side by side, `width` a line, with zeros for those that are not there.
fn read_pairs<T: Real>((data, starts, from): Read<'_, T>, width: usize, to: &mut [Pair<T>]) {
    let count = width.min(from.extent);
    if let Some((step, starts)) = from.in_pairs(starts) {
        let from = data.as_chunks().0;
        vectorized(Gather {
            from,
            starts: &starts,
            step,
            to: &mut *to,
            width,
            count,
        });
    } else {
        from.each(width, count, starts, |i, at| {
            to[i] = [data[at], data[at.wrapping_add_signed(from.imaginary)]];
        });
    }
    for line in to.chunks_exact_mut(width).take(starts.len()) {
        line[count..].fill([T::zero(); 2]);
    }
}

/// Brings real numbers side by side, as [`read_pairs`].
fn read_reals<T: Real>((data, starts, from): Read<'_, T>, width: usize, to: &mut [T]) {
    let count = width.min(from.extent);
    vectorized(Gather {
        from: data,
        starts,
        step: from.step,
        to: &mut *to,
        width,
        count,
    });
    for line in to.chunks_exact_mut(width).take(starts.len()) {
        line[count..].fill(T::zero());
    }
}

/// Writes as many complex numbers of lines of `width` as there is space for; how many of a line.
fn write_pairs<T: Real>(from: &[Pair<T>], width: usize, (data, starts, to): Write<'_, T>) -> usize {
    let count = width.min(to.extent);
    if let Some((step, starts)) = to.in_pairs(starts) {
        vectorized(Scatter {
            from,
            width,
            count,
            to: data.as_chunks_mut().0,
            starts: &starts,
            step,
        });
    } else {
        to.each(width, count, starts, |i, at| {
            data[at] = from[i][0];
            data[at.wrapping_add_signed(to.imaginary)] = from[i][1];
        });
    }
    count
}

/// Writes real numbers of lines, as [`write_pairs`].
fn write_reals<T: Real>(from: &[T], width: usize, (data, starts, to): Write<'_, T>) -> usize {
    let count = width.min(to.extent);
    vectorized(Scatter {
        from,
        width,
        count,
        to: data,
        starts,
        step: to.step,
    });
    count
}

/// Some numbers, times another.
struct Scaled<'a, T>(&'a mut [T], T);

impl<T: Real> WithSimd for Scaled<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if self.1 != T::one() {
            self.0.iter_mut().for_each(|x| *x *= self.1);
        }
    }
}

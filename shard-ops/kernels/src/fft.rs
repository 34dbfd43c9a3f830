//! Fourier transforms along a dim of strided views, by `rustfft` and `realfft`.
//!
//! A complex number is two numbers side by side, the last dim of a view. A transform reads as many elements as there are, up to its
//! length, with zeros for those that are missing, and writes as many as are asked for, with zeros where there are none: so the
//! adjoint of a transform is a transform too.

use super::{Real, View, ViewMut};
use crate::compiled::compiled;
use shard_instances::fourier::{Complex, Transforms};

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

/// An element type that has plans for transforms.
pub trait Planned: Real + Transforms + Compiled<Self> {}

impl Planned for f32 {}

impl Planned for f64 {}

/// How many elements of a line are moved before those of the next line, which are their neighbours where the dim is not the last.
const TILE: usize = 4;

/// How many lines are taken at a time, so that neighbours in memory are read together where the dim is not the last.
const LINES: usize = 16;

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
} }

fn transform_here<T: Planned>(
    kind: Fft,
    dim: usize,
    n: usize,
    scale: f64,
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    assert!(n > 0, "fft: a transform of no elements");
    let from = Lines::of(
        x.shape(),
        x.strides(),
        x.offset(),
        dim,
        kind.reads_complex(),
    );
    let (shape, strides, offset) = out.geometry();
    let to = Lines::of(&shape, &strides, offset, dim, kind.writes_complex());
    assert!(
        from.others == to.others,
        "fft: {:?} into {shape:?}",
        x.shape()
    );
    let mut work = Work::<T>::new(kind, n);
    let count: usize = from.others.iter().product();
    let data = out.data_mut();
    for first in (0..count).step_by(LINES) {
        let lines = first..count.min(first + LINES);
        let (source, target): (Vec<usize>, Vec<usize>) =
            lines.map(|line| (from.start(line), to.start(line))).unzip();
        work.read(x.data(), &source, &from);
        work.run(source.len());
        work.write(data, &target, &to, T::of(scale));
    }
}

/// The lines of a view along a dim.
struct Lines {
    /// Extents of the other dims, but that of complex numbers.
    others: Vec<usize>,
    steps: Vec<isize>,
    offset: usize,
    /// Elements of a line, and from one to the next.
    extent: usize,
    step: isize,
    /// From a real part to its imaginary part.
    imaginary: isize,
}

impl Lines {
    fn of(shape: &[usize], strides: &[isize], offset: usize, dim: usize, complex: bool) -> Self {
        let last = shape.len() - usize::from(complex);
        assert!(
            dim < last && (!complex || shape[last] == 2),
            "fft: dim {dim} of {shape:?}"
        );
        let others = (0..last).filter(|&d| d != dim);
        Self {
            others: others.clone().map(|d| shape[d]).collect(),
            steps: others.map(|d| strides[d]).collect(),
            offset,
            extent: shape[dim],
            step: strides[dim],
            imaginary: if complex { strides[last] } else { 0 },
        }
    }

    /// The place of a line's first element.
    fn start(&self, mut line: usize) -> usize {
        let mut at = self.offset;
        for (&n, &step) in self.others.iter().zip(&self.steps).rev() {
            at = at.wrapping_add_signed((line % n) as isize * step);
            line /= n;
        }
        at
    }
}

impl Lines {
    /// Visits the first `count` elements of the lines that start at these places: where one is among lines of `width` elements, and
    /// where in memory.
    #[inline(always)]
    fn each(
        &self,
        width: usize,
        count: usize,
        starts: &[usize],
        mut visit: impl FnMut(usize, usize),
    ) {
        for first in (0..count).step_by(TILE) {
            for (line, &start) in starts.iter().enumerate() {
                for j in first..count.min(first + TILE) {
                    let at = start.wrapping_add_signed(j as isize * self.step);
                    visit(line * width + j, at);
                }
            }
        }
    }

    /// Whether lines are runs of complex numbers.
    fn are_complex_runs(&self) -> bool {
        self.step == 2 && self.imaginary == 1
    }

    /// Visits the places of the elements behind the first `count`.
    fn clear(&self, count: usize, starts: &[usize], mut visit: impl FnMut(usize)) {
        for &start in starts {
            for j in count..self.extent {
                visit(start.wrapping_add_signed(j as isize * self.step));
            }
        }
    }
}

/// Buffers of a few lines.
struct Work<T> {
    kind: Fft,
    n: usize,
    real: Vec<T>,
    complex: Vec<Complex<T>>,
    scratch: Vec<Complex<T>>,
}

impl<T> Work<T> {
    /// Elements of the spectrum of a line.
    fn width(&self) -> usize {
        self.complex.len() / LINES
    }
}

impl<T: Real> Work<T> {
    fn new(kind: Fft, n: usize) -> Self {
        let zero = Complex::new(T::zero(), T::zero());
        let (real, complex) = match kind {
            Fft::Complex { .. } => (0, n),
            _ => (n, n / 2 + 1),
        };
        Self {
            kind,
            n,
            real: vec![T::zero(); real * LINES],
            complex: vec![zero; complex * LINES],
            scratch: Vec::new(),
        }
    }

    fn read(&mut self, data: &[T], starts: &[usize], from: &Lines) {
        let zero = Complex::new(T::zero(), T::zero());
        match self.kind {
            Fft::FromReal { .. } => {
                let given = self.n.min(from.extent);
                if from.step == 1 {
                    for (line, &start) in self.real.chunks_exact_mut(self.n).zip(starts) {
                        line[..given].copy_from_slice(&data[start..start + given]);
                    }
                } else {
                    from.each(self.n, given, starts, |i, at| self.real[i] = data[at]);
                }
                for line in self.real.chunks_exact_mut(self.n).take(starts.len()) {
                    line[given..].fill(T::zero());
                }
            }
            _ => {
                let width = self.width();
                let given = width.min(from.extent);
                if from.are_complex_runs() {
                    for (line, &start) in self.complex.chunks_exact_mut(width).zip(starts) {
                        let (run, _) = data[start..start + 2 * given].as_chunks();
                        for (to, &[re, im]) in line.iter_mut().zip(run) {
                            *to = Complex::new(re, im);
                        }
                    }
                } else if from.imaginary == 1 {
                    from.each(width, given, starts, |i, at| {
                        let both = &data[at..at + 2];
                        self.complex[i] = Complex::new(both[0], both[1]);
                    });
                } else {
                    from.each(width, given, starts, |i, at| {
                        let imaginary = data[at.wrapping_add_signed(from.imaginary)];
                        self.complex[i] = Complex::new(data[at], imaginary);
                    });
                }
                for line in self.complex.chunks_exact_mut(width).take(starts.len()) {
                    line[given..].fill(zero);
                }
            }
        }
        if let Fft::ToReal { doubled } = self.kind {
            let (n, width) = (self.n, self.width());
            for line in self.complex.chunks_exact_mut(width).take(starts.len()) {
                for (k, value) in line.iter_mut().enumerate() {
                    if !stands_for_two(k, n) {
                        value.im = T::zero();
                    } else if !doubled {
                        *value = value.unscale(T::of(2.0));
                    }
                }
            }
        }
    }

    /// Transforms the first lines of the buffers.
    fn run(&mut self, lines: usize)
    where
        T: Transforms,
    {
        let (n, width) = (self.n, self.width());
        let zero = Complex::new(T::zero(), T::zero());
        match self.kind {
            Fft::Complex { inverse } => {
                let plan = T::complex(n, inverse);
                self.scratch.resize(plan.get_inplace_scratch_len(), zero);
                plan.process_with_scratch(&mut self.complex[..lines * n], &mut self.scratch);
            }
            Fft::FromReal { .. } => {
                let plan = T::from_real(n);
                self.scratch.resize(plan.get_scratch_len(), zero);
                let rows = self.real.chunks_exact_mut(n).take(lines);
                for (row, to) in rows.zip(self.complex.chunks_exact_mut(width)) {
                    let done = plan.process_with_scratch(row, to, &mut self.scratch);
                    assert!(done.is_ok(), "buffers have the plan's lengths");
                }
            }
            Fft::ToReal { .. } => {
                let plan = T::to_real(n);
                self.scratch.resize(plan.get_scratch_len(), zero);
                let rows = self.real.chunks_exact_mut(n).take(lines);
                for (row, from) in rows.zip(self.complex.chunks_exact_mut(width)) {
                    let done = plan.process_with_scratch(from, row, &mut self.scratch);
                    assert!(done.is_ok(), "buffers have the plan's lengths");
                }
            }
        }
    }

    fn write(&mut self, data: &mut [T], starts: &[usize], to: &Lines, scale: T) {
        if let Fft::ToReal { .. } = self.kind {
            let there = self.n.min(to.extent);
            if to.step == 1 {
                for (line, &start) in self.real.chunks_exact(self.n).zip(starts) {
                    for (to, &from) in data[start..start + there].iter_mut().zip(line) {
                        *to = from * scale;
                    }
                }
            } else {
                to.each(self.n, there, starts, |i, at| {
                    data[at] = self.real[i] * scale;
                });
            }
            return to.clear(there, starts, |at| data[at] = T::zero());
        }
        let (n, width) = (self.n, self.width());
        if let Fft::FromReal { doubled: true } = self.kind {
            for line in self.complex.chunks_exact_mut(width).take(starts.len()) {
                for value in &mut line[1..n.div_ceil(2)] {
                    *value = value.scale(T::of(2.0));
                }
            }
        }
        let there = width.min(to.extent);
        if to.are_complex_runs() {
            for (line, &start) in self.complex.chunks_exact(width).zip(starts) {
                let (run, _) = data[start..start + 2 * there].as_chunks_mut();
                for ([re, im], from) in run.iter_mut().zip(line) {
                    [*re, *im] = [from.re * scale, from.im * scale];
                }
            }
        } else if to.imaginary == 1 {
            to.each(width, there, starts, |i, at| {
                let value = self.complex[i].scale(scale);
                let both = &mut data[at..at + 2];
                (both[0], both[1]) = (value.re, value.im);
            });
        } else {
            to.each(width, there, starts, |i, at| {
                let value = self.complex[i].scale(scale);
                data[at] = value.re;
                data[at.wrapping_add_signed(to.imaginary)] = value.im;
            });
        }
        to.clear(there, starts, |at| {
            data[at] = T::zero();
            data[at.wrapping_add_signed(to.imaginary)] = T::zero();
        });
    }
}

/// Whether a frequency's mirror image is another one, in a transform of `n` numbers.
fn stands_for_two(k: usize, n: usize) -> bool {
    k != 0 && 2 * k != n
}

compiled! { trait CompiledProduct for Real: f32 f64; {
    /// `out = a b`, complex numbers in the last dim, with `a` or `b` conjugated if asked; shapes are those of `out`, broadcast by strides
    /// of 0.
    ///
    /// # Panics
    /// When the shapes differ, or the last dim is not 2.
    pub fn multiply<T>(
        conjugate: [bool; 2],
        a: &View<'_, T>,
        b: &View<'_, T>,
        out: &mut ViewMut<'_, T>,
    ) = multiply_here;
} }

fn multiply_here<T: Real>(
    [conjugate_a, conjugate_b]: [bool; 2],
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let (shape, strides, offset) = out.geometry();
    super::pointwise::assert_shapes(&[a.shape(), b.shape()], &shape);
    let Some((&2, outer)) = shape.split_last() else {
        // Of ops, the rule has refused it.
        panic!("complex numbers in the last dim of {shape:?}")
    };
    let last = outer.len();
    let [ia, ib, io] = [a.strides()[last], b.strides()[last], strides[last]];
    let sign = |conjugate| if conjugate { -T::one() } else { T::one() };
    let (sa, sb) = (sign(conjugate_a), sign(conjugate_b));
    let data = out.data_mut();
    super::view::for_each_row(
        outer,
        [&a.strides()[..last], &b.strides()[..last], &strides[..last]],
        [a.offset(), b.offset(), offset],
        |[p, q, r], n, [ta, tb, to]| {
            for i in 0..n as isize {
                let p = p.wrapping_add_signed(i * ta);
                let q = q.wrapping_add_signed(i * tb);
                let r = r.wrapping_add_signed(i * to);
                let (x, xi) = (a.data()[p], sa * a.data()[p.wrapping_add_signed(ia)]);
                let (y, yi) = (b.data()[q], sb * b.data()[q.wrapping_add_signed(ib)]);
                data[r] = x * y - xi * yi;
                data[r.wrapping_add_signed(io)] = x * yi + xi * y;
            }
        },
    );
}

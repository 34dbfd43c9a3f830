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
        let width = match self.kind {
            Fft::FromReal { .. } => self.n,
            _ => self.width(),
        };
        let given = width.min(from.extent);
        let half = self.is_half();
        for j in 0..width {
            for (line, &start) in starts.iter().enumerate() {
                let at = start.wrapping_add_signed(j as isize * from.step);
                match self.kind {
                    Fft::FromReal { .. } => {
                        self.real[line * width + j] = if j < given { data[at] } else { T::zero() };
                    }
                    _ => {
                        let mut value = Complex::new(T::zero(), T::zero());
                        if j < given {
                            let imaginary = at.wrapping_add_signed(from.imaginary);
                            value = Complex::new(data[at], data[imaginary]);
                        }
                        if half && !self.stands_for_two(j) {
                            value.im = T::zero();
                        } else if half && self.kind == (Fft::ToReal { doubled: false }) {
                            value = value.unscale(T::of(2.0));
                        }
                        self.complex[line * width + j] = value;
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

    /// Whether the operand is half a spectrum.
    fn is_half(&self) -> bool {
        matches!(self.kind, Fft::ToReal { .. })
    }

    /// Whether a frequency's mirror image is another one.
    fn stands_for_two(&self, k: usize) -> bool {
        k != 0 && 2 * k != self.n
    }

    fn write(&self, data: &mut [T], starts: &[usize], to: &Lines, scale: T) {
        let width = self.width();
        let doubles = self.kind == (Fft::FromReal { doubled: true });
        for j in 0..to.extent {
            for (line, &start) in starts.iter().enumerate() {
                let at = start.wrapping_add_signed(j as isize * to.step);
                if self.is_half() {
                    data[at] = match j < self.n {
                        true => self.real[line * self.n + j] * scale,
                        false => T::zero(),
                    };
                    continue;
                }
                let mut value = Complex::new(T::zero(), T::zero());
                if j < width {
                    let twice = doubles && self.stands_for_two(j);
                    let scale = if twice { scale + scale } else { scale };
                    value = self.complex[line * width + j].scale(scale);
                }
                data[at] = value.re;
                data[at.wrapping_add_signed(to.imaginary)] = value.im;
            }
        }
    }
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

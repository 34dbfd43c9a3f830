//! Fourier transforms along a dim of strided views, by `rustfft` and `realfft`.
//!
//! A complex number is two numbers side by side, the last dim of a view. A transform reads as many elements as there are, up to its
//! length, with zeros for those that are missing, and writes as many as are asked for, with zeros where there are none: so the
//! adjoint of a transform is a transform too.

use super::{Real, View, ViewMut};
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
pub trait Planned: Real + Transforms {}

impl<T: Real + Transforms> Planned for T {}

/// How many lines are taken at a time, so that neighbours in memory are read together where the dim is not the last.
const LINES: usize = 16;

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
pub fn transform<T: Planned>(
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
                    debug_assert!(done.is_ok(), "buffers have the plan's lengths");
                }
            }
            Fft::ToReal { .. } => {
                let plan = T::to_real(n);
                self.scratch.resize(plan.get_scratch_len(), zero);
                let rows = self.real.chunks_exact_mut(n).take(lines);
                for (row, from) in rows.zip(self.complex.chunks_exact_mut(width)) {
                    let done = plan.process_with_scratch(from, row, &mut self.scratch);
                    debug_assert!(done.is_ok(), "buffers have the plan's lengths");
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

/// `out = a b`, complex numbers in the last dim, with `a` or `b` conjugated if asked; shapes are those of `out`, broadcast by strides
/// of 0.
///
/// # Panics
/// When the shapes differ, or the last dim is not 2.
pub fn multiply<T: Real>(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    const KINDS: [Fft; 6] = [
        Fft::Complex { inverse: false },
        Fft::Complex { inverse: true },
        Fft::FromReal { doubled: false },
        Fft::FromReal { doubled: true },
        Fft::ToReal { doubled: false },
        Fft::ToReal { doubled: true },
    ];

    /// The transform of one line by its definition.
    fn definition(kind: Fft, n: usize, x: &[f64], rows: usize) -> Vec<f64> {
        let half = n / 2 + 1;
        let weight = |k: usize, doubled: bool| match (k < half, doubled && k != 0 && 2 * k != n) {
            (false, _) => 0.0,
            (true, twice) => 1.0 + f64::from(u8::from(twice)),
        };
        let angle = |j: usize, k: usize| core::f64::consts::TAU * ((j * k) % n) as f64 / n as f64;
        let complex: Vec<(f64, f64)> = match kind.reads_complex() {
            true => x.chunks(2).map(|c| (c[0], c[1])).collect(),
            false => x.iter().map(|&x| (x, 0.0)).collect(),
        };
        let mut out = Vec::new();
        for k in 0..rows {
            let (mut re, mut im) = (0.0, 0.0);
            for (j, &(a, b)) in complex.iter().enumerate().take(n) {
                let (sign, by) = match kind {
                    Fft::Complex { inverse: false } => (-1.0, 1.0),
                    Fft::Complex { inverse: true } => (1.0, 1.0),
                    Fft::FromReal { doubled } => (-1.0, weight(k, doubled)),
                    Fft::ToReal { doubled } => (1.0, weight(j, doubled)),
                };
                let (sin, cos) = (sign * angle(j, k)).sin_cos();
                re += by * (a * cos - b * sin);
                im += by * (a * sin + b * cos);
            }
            let exists = k < n;
            out.push(if exists { re } else { 0.0 });
            if kind.writes_complex() {
                out.push(if exists { im } else { 0.0 });
            }
        }
        out
    }

    fn tail(complex: bool) -> &'static [usize] {
        if complex { &[2] } else { &[] }
    }

    #[test]
    fn lines_of_any_length_are_transformed_as_defined() {
        let mut rng = Rng::new(3);
        for kind in KINDS {
            for n in [1, 2, 3, 4, 5, 8, 12, 17, 30] {
                for (given, rows) in [(n, n), (n / 2 + 1, n / 2 + 1), (n + 3, n + 2), (1, 2)] {
                    let count = given * tail(kind.reads_complex()).iter().product::<usize>();
                    let x: Vec<f64> = (0..count).map(|_| rng.unit()).collect();
                    let expected = definition(kind, n, &x, rows);
                    let mut y = vec![9.0; expected.len()];
                    transform(
                        kind,
                        0,
                        n,
                        1.0,
                        &View::contiguous(&x, &[&[given], tail(kind.reads_complex())].concat()),
                        &mut ViewMut::contiguous(
                            &mut y,
                            &[&[rows], tail(kind.writes_complex())].concat(),
                        ),
                    );
                    for (got, expected) in y.iter().zip(&expected) {
                        let close = (got - expected).abs() < 1e-12 * (1.0 + n as f64);
                        assert!(close, "{kind:?} {n} {given} {rows}: {got} for {expected}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_transform_and_its_adjoint_are_transposes() {
        let mut rng = Rng::new(5);
        for kind in KINDS {
            for (n, given, rows) in [(6, 4, 9), (7, 7, 3), (5, 8, 8)] {
                let of = |complex, rows: usize| rows * if complex { 2 } else { 1 };
                let shape = |complex, rows: usize| [&[rows], tail(complex)].concat();
                let (reads, writes) = (kind.reads_complex(), kind.writes_complex());
                let x: Vec<f64> = (0..of(reads, given)).map(|_| rng.unit()).collect();
                let g: Vec<f64> = (0..of(writes, rows)).map(|_| rng.unit()).collect();
                let (mut y, mut back) = (vec![0.0; g.len()], vec![0.0; x.len()]);
                let run = |kind, x: &[f64], from: &[usize], y: &mut [f64], to: &[usize]| {
                    let mut y = ViewMut::contiguous(y, to);
                    transform(kind, 0, n, 0.5, &View::contiguous(x, from), &mut y);
                };
                let (from, to) = (shape(reads, given), shape(writes, rows));
                run(kind, &x, &from, &mut y, &to);
                run(kind.adjoint(), &g, &to, &mut back, &from);
                let dot =
                    |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
                let (left, right) = (dot(&y, &g), dot(&x, &back));
                assert!((left - right).abs() < 1e-12, "{kind:?}: {left} {right}");
            }
        }
    }

    #[test]
    fn a_dim_in_the_middle_is_transformed_line_by_line_in_single_precision_too() {
        let mut rng = Rng::new(7);
        let x: Vec<f64> = (0..3 * 5 * 20 * 2).map(|_| rng.unit()).collect();
        let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let shape = [3, 5, 20, 2];
        let kind = Fft::Complex { inverse: false };
        let (mut y, mut z) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        transform(
            kind,
            1,
            5,
            1.0,
            &View::contiguous(&x, &shape),
            &mut ViewMut::contiguous(&mut y, &shape),
        );
        transform(
            kind,
            1,
            5,
            1.0,
            &View::contiguous(&single, &shape),
            &mut ViewMut::contiguous(&mut z, &shape),
        );
        for (i, j) in (0..3).flat_map(|i| (0..20).map(move |j| (i, j))) {
            let at = |k: usize| ((i * 5 + k) * 20 + j) * 2;
            let line: Vec<f64> = (0..5).flat_map(|k| [x[at(k)], x[at(k) + 1]]).collect();
            let expected = definition(kind, 5, &line, 5);
            for k in 0..5 {
                for c in 0..2 {
                    let expected = expected[2 * k + c];
                    assert!((y[at(k) + c] - expected).abs() < 1e-13);
                    assert!((f64::from(z[at(k) + c]) - expected).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn complex_products_conjugate_what_they_are_told_to() {
        let (a, b) = ([1.0, 2.0], [3.0, -5.0]);
        let of = |conjugate| {
            let mut out = [0.0; 2];
            let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[2]));
            multiply(conjugate, &a, &b, &mut ViewMut::contiguous(&mut out, &[2]));
            out
        };
        assert_eq!(of([false, false]), [13.0, 1.0]);
        assert_eq!(of([true, false]), [-7.0, -11.0]);
        assert_eq!(of([false, true]), [-7.0, 11.0]);
    }
}

//! Fourier transforms along a dim of strided views, by `rustfft` and `realfft`.
//!
//! A complex number is two numbers side by side, the last dim of a view. A transform reads as many elements as there are, up to its
//! length, with zeros for those that are missing, and writes as many as are asked for, with zeros where there are none: so the
//! adjoint of a transform is a transform too.

use super::{Real, View, ViewMut};
use crate::arrays::numbered;
use crate::compiled::compiled;
use shard_instances::fourier::{Complex, Transforms};
use smallvec::SmallVec;

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

/// Rows and columns of a tile that are exchanged at once: a cache line of complex numbers of `f32`.
const TILE: usize = 8;

/// How many lines are taken at a time, so that neighbours in memory are read together where the dim is not the last.
const LINES: usize = TILE;

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
        let (source, target): (Places, Places) =
            lines.map(|line| (from.start(line), to.start(line))).unzip();
        work.read(x.data(), &source, &from);
        work.run(source.len());
        work.write(data, &target, &to, T::of(scale));
    }
}

/// Where some lines begin.
type Places = SmallVec<[usize; LINES]>;

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
    /// The lines that start at these places as lines of pairs, and those places; `None` where a real part and its imaginary part are
    /// not neighbours, or pairs not a whole number of pairs apart.
    fn in_pairs(&self, starts: &[usize]) -> Option<(isize, Places)> {
        let odd = |start: &usize| start % 2 == 1;
        let whole = self.imaginary == 1 && self.step % 2 == 0 && !starts.iter().any(odd);
        whole.then(|| {
            (
                self.step / 2,
                starts.iter().map(|start| start / 2).collect(),
            )
        })
    }

    /// Visits the first `count` elements of the lines that start at these places: where one is among lines of `width` elements, and
    /// where in memory.
    fn each(
        &self,
        width: usize,
        count: usize,
        starts: &[usize],
        mut visit: impl FnMut(usize, usize),
    ) {
        for (line, &start) in starts.iter().enumerate() {
            for j in 0..count {
                visit(
                    line * width + j,
                    start.wrapping_add_signed(j as isize * self.step),
                );
            }
        }
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

/// Sets the first `count` elements of lines side by side, `width` elements each, to `f` of the elements of lines in memory, which
/// start at these places and step by `step`.
#[inline(always)]
fn gather<S: Copy, D>(
    from: &[S],
    (starts, step): (&[usize], isize),
    to: &mut [D],
    (width, count): (usize, usize),
    f: impl Fn(S) -> D,
) {
    if step == 1 {
        for (line, &start) in to.chunks_exact_mut(width).zip(starts) {
            let run = &from[start..start + count];
            line.iter_mut().zip(run).for_each(|(to, &x)| *to = f(x));
        }
        return;
    }
    let mut lines = to;
    for run in neighbours(starts) {
        let (here, rest) = lines.split_at_mut(run.len() * width);
        let row = |j: usize| run[0].wrapping_add_signed(j as isize * step);
        exchange(from, row, count, here, |line| line * width, run.len(), &f);
        lines = rest;
    }
}

/// Sets the first `count` elements of lines in memory to `f` of those of lines side by side, as [`gather`] in the other direction.
#[inline(always)]
fn scatter<S: Copy, D>(
    from: &[S],
    (width, count): (usize, usize),
    to: &mut [D],
    (starts, step): (&[usize], isize),
    f: impl Fn(S) -> D,
) {
    if step == 1 {
        for (line, &start) in from.chunks_exact(width).zip(starts) {
            let run = &mut to[start..start + count];
            run.iter_mut().zip(line).for_each(|(to, &x)| *to = f(x));
        }
        return;
    }
    let mut lines = from;
    for run in neighbours(starts) {
        let (here, rest) = lines.split_at(run.len() * width);
        let row = |j: usize| run[0].wrapping_add_signed(j as isize * step);
        exchange(here, |line| line * width, run.len(), to, row, count, &f);
        lines = rest;
    }
}

/// Starts of lines in runs of those that are neighbours in memory.
fn neighbours(starts: &[usize]) -> impl Iterator<Item = &[usize]> {
    starts.chunk_by(|a, b| *b == a + 1)
}

/// Exchanges rows and columns: `to[to_row(k) + i] = f(from[from_row(i) + k])`, for `i < n` and `k < m`. It goes by tiles, so that each
/// cache line is read and written once.
#[inline(always)]
fn exchange<S: Copy, D>(
    from: &[S],
    from_row: impl Fn(usize) -> usize,
    n: usize,
    to: &mut [D],
    to_row: impl Fn(usize) -> usize,
    m: usize,
    f: impl Fn(S) -> D,
) {
    for i in (0..n).step_by(TILE) {
        for k in (0..m).step_by(TILE) {
            if i + TILE <= n && k + TILE <= m {
                let rows: [&[S; TILE]; TILE] =
                    numbered(|a| &from[from_row(i + a) + k..].as_chunks().0[0]);
                for b in 0..TILE {
                    let row: &mut [D; TILE] = &mut to[to_row(k + b) + i..].as_chunks_mut().0[0];
                    for a in 0..TILE {
                        row[a] = f(rows[a][b]);
                    }
                }
            } else {
                for b in k..m.min(k + TILE) {
                    for a in i..n.min(i + TILE) {
                        to[to_row(b) + a] = f(from[from_row(a) + b]);
                    }
                }
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
                let lines = (self.n, given);
                gather(data, (starts, from.step), &mut self.real, lines, |x| x);
                for line in self.real.chunks_exact_mut(self.n).take(starts.len()) {
                    line[given..].fill(T::zero());
                }
            }
            _ => {
                let width = self.width();
                let given = width.min(from.extent);
                if let Some((step, starts)) = from.in_pairs(starts) {
                    let (pairs, to) = (data.as_chunks().0, &mut self.complex);
                    gather(pairs, (&starts, step), to, (width, given), |[re, im]| {
                        Complex::new(re, im)
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
            let lines = (self.n, there);
            scatter(&self.real, lines, data, (starts, to.step), |x| x * scale);
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
        if let Some((step, starts)) = to.in_pairs(starts) {
            let (pairs, lines) = (data.as_chunks_mut().0, (width, there));
            scatter(&self.complex, lines, pairs, (&starts, step), |x| {
                [x.re * scale, x.im * scale]
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

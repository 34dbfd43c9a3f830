//! Pairs of rows of outputs from four products per column of a kernel in place of six.
//!
//! Where a kernel has three rows `g0 g1 g2`, at stride and dilation 1, two outputs below each other read the inputs `x0 .. x3`:
//!
//! ```text
//! y0 = x0 g0 + x1 g1 + x2 g2        y1 = x1 g0 + x2 g1 + x3 g2
//! ```
//!
//! Both are sums of four products (Winograd's F(2, 3): S. Winograd, *Arithmetic Complexity of Computations*, 1980; A. Lavin and
//! S. Gray, *Fast Algorithms for Convolutional Neural Networks*, 2016, section 4.1):
//!
//! ```text
//! m0 = (x0 - x2) g0                  m1 = (x1 + x2) (g0 + g1 + g2) / 2
//! m3 = (x1 - x3) (-g2)               m2 = (x2 - x1) (g0 - g1 + g2) / 2
//! y0 = m0 + m1 + m2                  y1 = m1 - m2 + m3
//! ```
//!
//! What depends on inputs alone is done once per packed block, for all output channels; what depends on weights alone, once.
//! The products with respect to which this is linear turn into each other, so the gradient by the weight needs as many:
//!
//! ```text
//! n0 = (x0 - x2) dy0                 n1 = (x1 + x2) (dy0 + dy1)
//! n3 = (x1 - x3) (-dy1)              n2 = (x2 - x1) (dy0 - dy1)
//! dg0 = n0 + (n1 + n2) / 2           dg1 = (n1 - n2) / 2           dg2 = n3 + (n1 + n2) / 2
//! ```
//!
//! An output reads no input outside its own window, so NaN stays in the windows that hold it. An infinite input may give NaN
//! where a sum in order would be infinite.

use super::lift::Geometry;
use crate::Real;
use pulp::Simd;

/// Rows that are packed, and multiplied, for two rows of outputs.
pub(super) const PARTS: usize = 4;

/// Products of a part below which what is done around them costs more than is saved.
const LEAST: usize = 24;

/// Output channels below which tiles of wide vectors would be half empty.
const CHANNELS: usize = 8;

/// Whether `rows` rows of outputs are worth being computed in pairs.
pub(super) fn fit(g: &Geometry, rows: usize) -> bool {
    let regular = g.kernel[1] == 3 && g.stride[1] == 1 && g.dilation[1] == 1;
    regular && rows >= PARTS && taps(g) >= LEAST && g.cout >= CHANNELS
}

/// Products of a part per output.
pub(super) fn taps(g: &Geometry) -> usize {
    g.cin * g.kernel[0] * g.kernel[2]
}

/// Writes what two outputs below each other have in common of four rows of inputs, from an element of the parts on.
#[inline(always)]
pub(super) fn of_inputs<T: Real, S: Simd>(
    simd: S,
    x: [&[T]; 4],
    parts: [&mut [T]; PARTS],
    first: usize,
) {
    let (n, lanes) = (x[0].len(), T::lanes::<S>());
    let [x0, x1, x2, x3] = x;
    let (x1, x2, x3) = (&x1[..n], &x2[..n], &x3[..n]);
    let [u0, u1, u2, u3] = parts;
    let (u0, u1) = (&mut u0[first..first + n], &mut u1[first..first + n]);
    let (u2, u3) = (&mut u2[first..first + n], &mut u3[first..first + n]);
    let sums = Sums::<T, S>::new(simd);
    let mut done = 0;
    while done < n && n >= lanes {
        // The last vector may take columns again that the one before it had.
        let from = done.min(n - lanes);
        let at = from..from + lanes;
        let (a, b) = (
            T::vectors::<S>(&x0[at.clone()])[0],
            T::vectors::<S>(&x1[at.clone()])[0],
        );
        let (c, d) = (
            T::vectors::<S>(&x2[at.clone()])[0],
            T::vectors::<S>(&x3[at.clone()])[0],
        );
        T::vectors_mut::<S>(&mut u0[at.clone()])[0] = sums.sub(a, c);
        T::vectors_mut::<S>(&mut u1[at.clone()])[0] = sums.add(b, c);
        T::vectors_mut::<S>(&mut u2[at.clone()])[0] = sums.sub(c, b);
        T::vectors_mut::<S>(&mut u3[at])[0] = sums.sub(b, d);
        done += lanes;
    }
    for i in done..n {
        u0[i] = x0[i] - x2[i];
        u1[i] = x1[i] + x2[i];
        u2[i] = x2[i] - x1[i];
        u3[i] = x1[i] - x3[i];
    }
}

/// The same of two rows of the gradient, of whole vectors: the first part holds `dy0`, the last `dy1`, before.
#[inline(always)]
pub(super) fn of_outputs<T: Real, S: Simd>(simd: S, dy: [&mut [T]; PARTS]) {
    let [v0, v1, v2, v3] = dy.map(|v| T::vectors_mut::<S>(v));
    let sums = Sums::<T, S>::new(simd);
    for (((a, sum), difference), b) in v0.iter().zip(v1).zip(v2).zip(v3) {
        *sum = sums.add(*a, *b);
        *difference = sums.sub(*a, *b);
        *b = sums.sub(T::splat(simd, T::zero()), *b);
    }
}

/// Sums and differences of vectors.
#[derive(Clone, Copy)]
pub(super) struct Sums<T: Real, S: Simd> {
    simd: S,
    one: T::Vec<S>,
    minus: T::Vec<S>,
}

impl<T: Real, S: Simd> Sums<T, S> {
    #[inline(always)]
    pub(super) fn new(simd: S) -> Self {
        Self {
            simd,
            one: T::splat(simd, T::one()),
            minus: T::splat(simd, -T::one()),
        }
    }

    #[inline(always)]
    pub(super) fn add(self, a: T::Vec<S>, b: T::Vec<S>) -> T::Vec<S> {
        T::mul_add_vec(self.simd, self.one, a, b)
    }

    #[inline(always)]
    pub(super) fn sub(self, a: T::Vec<S>, b: T::Vec<S>) -> T::Vec<S> {
        T::mul_add_vec(self.simd, self.minus, b, a)
    }
}

/// The gradient of the weights, `[Cin, kernel, Cout]`, from the sums of the products, `[PARTS, Cin, kernel planes, kernel columns, Cout]`.
#[inline(always)]
pub(super) fn of_sums<T: Real>(sums: &[f64], g: &Geometry, out: &mut [T]) {
    let ([_, kh, kw], taps) = (g.kernel, taps(g));
    let part = |part: usize, tap: usize| &sums[(part * taps + tap) * g.cout..][..g.cout];
    for tap in 0..taps {
        let [n0, n1, n2, n3] = [0, 1, 2, 3].map(|p| part(p, tap));
        let at = |h: usize| (tap / kw * kh + h) * kw + tap % kw;
        let (upper, rest) = out[at(0) * g.cout..].split_at_mut(kw * g.cout);
        let (middle, lower) = rest.split_at_mut(kw * g.cout);
        let rows = upper.iter_mut().zip(middle).zip(lower);
        let products = n0.iter().zip(n1).zip(n2).zip(n3);
        for (((upper, middle), lower), (((n0, n1), n2), n3)) in rows.zip(products) {
            let both = 0.5 * (n1 + n2);
            *upper = T::of(n0 + both);
            *middle = T::of(0.5 * (n1 - n2));
            *lower = T::of(n3 + both);
        }
    }
}

/// The four rows from `rows` on, of so many elements each.
#[inline(always)]
pub(super) fn four<T>(rows: &mut [T], pitch: usize, n: usize) -> [&mut [T]; PARTS] {
    let (a, rest) = rows.split_at_mut(pitch);
    let (b, rest) = rest.split_at_mut(pitch);
    let (c, d) = rest.split_at_mut(pitch);
    [&mut a[..n], &mut b[..n], &mut c[..n], &mut d[..n]]
}

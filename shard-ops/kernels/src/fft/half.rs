//! Half a spectrum, that of real numbers, whose other half is its mirror image.
//!
//! An even number `n` of reals is `m = n/2` complex numbers `z[j] = x[2j] + i x[2j+1]`, as they lie in memory. With `Z` their transform,
//! `w = e^(-2πi/n)` and `Z[m] = Z[0]`, the spectrum of the reals is
//! `X[k] = (Z[k] + conj Z[m-k]) / 2 + w^k (Z[k] - conj Z[m-k]) / 2i`, for `k` up to `m` (W. H. Press et al., Numerical Recipes,
//! section 12.3). Solved for `Z`, it leads back. An odd number of reals is as many complex numbers.

use crate::Real;
use pulp::{Simd, WithSimd};
use shard_instances::fourier::{Roots, Transforms};
use std::sync::Arc;

/// A complex number.
pub(super) type Pair<T> = [T; 2];

/// How spectra of `n` real numbers are scaled, and put together from a complex transform or taken apart for one.
pub(super) struct Half<T> {
    n: usize,
    /// Of frequencies 0 and `n/2`, and of all others.
    edge: T,
    inner: T,
    /// Where `n` is even.
    roots: Option<Arc<Roots<T>>>,
}

impl<T: Real + Transforms> Half<T> {
    pub(super) fn new(n: usize, edge: T, inner: T) -> Self {
        let even = n.is_multiple_of(2);
        Self {
            n,
            edge,
            inner,
            roots: even.then(|| T::roots(n)),
        }
    }

    pub(super) fn is_even(&self) -> bool {
        self.roots.is_some()
    }

    /// How many complex numbers are transformed.
    pub(super) fn transformed(&self) -> usize {
        match self.roots {
            Some(_) => self.n / 2,
            None => self.n,
        }
    }

    /// How many frequencies half a spectrum has.
    pub(super) fn frequencies(&self) -> usize {
        self.n / 2 + 1
    }
}

/// Puts the first `there` frequencies of reals together, whose lines were transformed, where spectra start.
pub(super) struct Join<'a, T> {
    pub(super) half: &'a Half<T>,
    pub(super) lines: &'a [Pair<T>],
    pub(super) out: &'a mut [T],
    pub(super) starts: &'a [usize],
    pub(super) there: usize,
}

impl<T: Real + Transforms> WithSimd for Join<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if self.there == 0 {
            return;
        }
        let lines = self.lines.chunks_exact(self.half.transformed());
        for (z, &start) in lines.zip(self.starts) {
            let out = self.out[start..][..2 * self.there].as_chunks_mut().0;
            self.half.join(z, out);
        }
    }
}

/// Prepares lines whose inverse transforms are the reals of spectra, which start at some places.
pub(super) struct Split<'a, T> {
    pub(super) half: &'a Half<T>,
    pub(super) spectra: &'a [T],
    pub(super) starts: &'a [usize],
    pub(super) lines: &'a mut [Pair<T>],
}

impl<T: Real + Transforms> WithSimd for Split<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let lines = self.lines.chunks_exact_mut(self.half.transformed());
        for (line, &start) in lines.zip(self.starts) {
            let x = self.spectra[start..][..2 * self.half.frequencies()]
                .as_chunks()
                .0;
            self.half.split(x, line);
        }
    }
}

impl<T: Real + Transforms> Half<T> {
    #[inline(always)]
    fn join(&self, z: &[Pair<T>], out: &mut [Pair<T>]) {
        let [re, im] = z[0];
        let Some(roots) = &self.roots else {
            out[0] = [re * self.edge, T::zero()];
            for (out, &[re, im]) in out.iter_mut().zip(z).skip(1) {
                *out = [re * self.inner, im * self.inner];
            }
            return;
        };
        out[0] = [(re + im) * self.edge, T::zero()];
        if let Some(last) = out.get_mut(z.len()) {
            *last = [(re - im) * self.edge, T::zero()];
        }
        let inner = out.len().min(z.len());
        Mirrored {
            line: &z[1..inner],
            mirror: &z[z.len() + 1 - inner..],
            roots: [&roots.cos[1..inner], &roots.sin[1..inner]],
            by: self.inner / T::of(2.0),
        }
        .write(
            &mut out[1..inner],
            #[inline(always)]
            |[re, im], cos, sin| [cos * im - sin * re, -cos * re - sin * im],
        );
    }

    #[inline(always)]
    fn split(&self, x: &[Pair<T>], out: &mut [Pair<T>]) {
        let first = x[0][0] * self.edge;
        let Some(roots) = &self.roots else {
            out[0] = [first, T::zero()];
            for (k, &[re, im]) in x.iter().enumerate().skip(1) {
                let [re, im] = [re * self.inner, im * self.inner];
                out[k] = [re, im];
                out[self.n - k] = [re, -im];
            }
            return;
        };
        let m = out.len();
        let last = x[m][0] * self.edge;
        out[0] = [first + last, first - last];
        Mirrored {
            line: &x[1..m],
            mirror: &x[1..m],
            roots: [&roots.cos[1..], &roots.sin[1..]],
            by: self.inner,
        }
        .write(
            &mut out[1..],
            #[inline(always)]
            |[re, im], cos, sin| [-cos * im - sin * re, cos * re - sin * im],
        );
    }
}

/// Numbers `a` of a line, `b` of another from its end, and angles: what is written is `a + conj b` and a function of `a - conj b` and
/// the angle, times `by`.
#[derive(Clone, Copy)]
struct Mirrored<'a, T> {
    line: &'a [Pair<T>],
    mirror: &'a [Pair<T>],
    roots: [&'a [T]; 2],
    by: T,
}

/// How many numbers make loops of whole vectors on all processors.
const VECTORS: usize = 16;

impl<T: Real> Mirrored<'_, T> {
    #[inline(always)]
    fn write(self, out: &mut [Pair<T>], turn: impl Fn(Pair<T>, T, T) -> Pair<T>) {
        let len = out.len();
        let whole = len - len % VECTORS;
        // The last vectors begin before the ones in front of them end, or the rest would go number by number.
        let rest = if whole == 0 { 0 } else { len - VECTORS };
        for range in [0..whole, rest..len] {
            let mirror = len - range.end..len - range.start;
            let part = Self {
                line: &self.line[range.clone()],
                mirror: &self.mirror[mirror],
                roots: self.roots.map(|roots| &roots[range.clone()]),
                by: self.by,
            };
            part.write_here(&mut out[range], &turn);
        }
    }

    #[inline(always)]
    fn write_here(self, out: &mut [Pair<T>], turn: &impl Fn(Pair<T>, T, T) -> Pair<T>) {
        let (by, len) = (self.by, out.len());
        let [cos, sin] = self.roots.map(|roots| &roots[..len]);
        let (line, mirror) = (&self.line[..len], &self.mirror[..len]);
        // By number: with iterators from both ends the compiler would leave the last vector to single numbers.
        for k in 0..len {
            let (a, b) = (line[k], mirror[len - 1 - k]);
            let sum = [a[0] + b[0], a[1] - b[1]];
            let turned = turn([a[0] - b[0], a[1] + b[1]], cos[k], sin[k]);
            out[k] = [(sum[0] + turned[0]) * by, (sum[1] + turned[1]) * by];
        }
    }
}

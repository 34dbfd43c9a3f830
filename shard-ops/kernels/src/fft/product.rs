//! Products of complex numbers.

use super::half::Pair;
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::{Real, View, ViewMut};
use pulp::{Simd, WithSimd};

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
    crate::pointwise::assert_shapes(&[a.shape(), b.shape()], &shape);
    let Some((&2, outer)) = shape.split_last() else {
        // Of ops, the rule has refused it.
        panic!("complex numbers in the last dim of {shape:?}")
    };
    let last = outer.len();
    let [ia, ib, io] = [a.strides()[last], b.strides()[last], strides[last]];
    let sign = |conjugate| if conjugate { -T::one() } else { T::one() };
    let (sa, sb) = (sign(conjugate_a), sign(conjugate_b));
    let data = out.data_mut();
    let whole = [ia, ib, io] == [1; 3];
    crate::view::for_each_row(
        outer,
        [&a.strides()[..last], &b.strides()[..last], &strides[..last]],
        [a.offset(), b.offset(), offset],
        |[p, q, r], n, [ta, tb, to]| {
            if whole && to == 2 && [ta, tb].iter().all(|&step| step == 2 || step == 0) {
                let a = Operand::of(a.data(), p, ta, n, sa);
                let b = Operand::of(b.data(), q, tb, n, sb);
                let out = &mut data[r..][..2 * n];
                return vectorized(Run {
                    a,
                    b,
                    out: out.as_chunks_mut().0,
                });
            }
            for i in 0..n as isize {
                let p = p.wrapping_add_signed(i * ta);
                let q = q.wrapping_add_signed(i * tb);
                let r = r.wrapping_add_signed(i * to);
                let x = [a.data()[p], sa * a.data()[p.wrapping_add_signed(ia)]];
                let y = [b.data()[q], sb * b.data()[q.wrapping_add_signed(ib)]];
                let [re, im] = times(x, y);
                data[r] = re;
                data[r.wrapping_add_signed(io)] = im;
            }
        },
    );
}

/// The product of two complex numbers.
#[inline(always)]
fn times<T: Real>([x, xi]: Pair<T>, [y, yi]: Pair<T>) -> Pair<T> {
    [x * y - xi * yi, x * yi + xi * y]
}

/// Complex numbers of a row, whose imaginary parts are times a sign.
enum Operand<'a, T> {
    Run(&'a [Pair<T>], T),
    Same(Pair<T>),
}

impl<'a, T: Real> Operand<'a, T> {
    fn of(data: &'a [T], first: usize, step: isize, n: usize, sign: T) -> Self {
        match step {
            0 => Self::Same([data[first], sign * data[first + 1]]),
            _ => Self::Run(data[first..][..2 * n].as_chunks().0, sign),
        }
    }
}

/// Products of a row.
struct Run<'a, T> {
    a: Operand<'a, T>,
    b: Operand<'a, T>,
    out: &'a mut [Pair<T>],
}

impl<T: Real> WithSimd for Run<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let out = self.out.iter_mut();
        match (self.a, self.b) {
            (Operand::Run(a, sa), Operand::Run(b, sb)) => {
                for ((out, &[x, xi]), &[y, yi]) in out.zip(a).zip(b) {
                    *out = times([x, sa * xi], [y, sb * yi]);
                }
            }
            // Of complex numbers too the order of factors does not matter to a bit.
            (Operand::Run(a, sign), Operand::Same(b))
            | (Operand::Same(b), Operand::Run(a, sign)) => {
                for (out, &[x, xi]) in out.zip(a) {
                    *out = times([x, sign * xi], b);
                }
            }
            (Operand::Same(a), Operand::Same(b)) => out.for_each(|out| *out = times(a, b)),
        }
    }
}

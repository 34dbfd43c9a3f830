//! Maps of one number with their first three derivatives: every activation of the library.
//!
//! Values, and (sub)gradients where a map has a kink, are PyTorch's. Each formula is one line in f64 over [`Math`](super::math::Math): f64
//! elements use the standard library's functions, f32 elements vectorised polynomials, rounded once.

use super::pointwise::assert_shapes;
use super::view::for_each_row;
use super::{Real, View, ViewMut};

mod formulas;
#[cfg(test)]
mod tests;

/// A map of one number. Parameters are rounded to the element type before use, as PyTorch does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`; derivative 0 at 0.
    Abs,
    /// `√x`
    Sqrt,
    /// `1 / √x`
    Rsqrt,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `max(x, 0)`; derivative 0 at 0.
    Relu,
    /// `x` above 0, `slope * x` at and below it.
    LeakyRelu(f64),
    /// `x` above 0, `alpha (e^x - 1)` at and below it.
    Elu(f64),
    /// `elu` with the self-normalising constants.
    Selu,
    /// `x Φ(x)`, Φ the standard normal's distribution.
    Gelu,
    /// The tanh approximation of gelu.
    GeluTanh,
    /// `x sigmoid(x)`
    Silu,
    /// `x tanh(softplus(x))`
    Mish,
    /// `ln(1 + e^(beta x)) / beta`, and `x` itself where `beta x > threshold`.
    Softplus {
        /// Sharpness.
        beta: f64,
        /// Where the map turns linear.
        threshold: f64,
    },
    /// `x / (1 + |x|)`
    Softsign,
    /// `clamp(x + 3, 0, 6) / 6`; derivative 0 at ±3.
    Hardsigmoid,
    /// `x clamp(x + 3, 0, 6) / 6`; derivative 0 at -3 and 1 at 3.
    Hardswish,
    /// `ln sigmoid(x)`
    LogSigmoid,
    /// The error function.
    Erf,
    /// `x²`
    Square,
    /// `1 / x`
    Reciprocal,
    /// `x^p`
    PowScalar(f64),
    /// `min(max(x, min), max)`; derivative 1 on the closed interval.
    Clamp {
        /// Lower bound.
        min: f64,
        /// Upper bound; wins where the bounds cross.
        max: f64,
    },
    /// -1, 0 or 1.
    Sign,
    /// The largest integer not above `x`.
    Floor,
    /// 1 where `x > 0`, else 0.
    Step,
    /// `x + s`
    AddScalar(f64),
    /// `x * s`
    MulScalar(f64),
}

/// `out = f⁽ᵒʳᵈᵉʳ⁾(x)` element by element: the map itself for order 0, its derivatives for 1, 2 and 3.
///
/// ```
/// use shard_kernels::{unary::{unary, Unary}, View, ViewMut};
/// let x = [-1.0f32, 0.0, 2.0];
/// let mut out = [9.0; 3];
/// unary(Unary::Relu, 1, &View::contiguous(&x, &[3]), &mut ViewMut::contiguous(&mut out, &[3]));
/// assert_eq!(out, [0.0, 0.0, 1.0]);
/// ```
///
/// # Panics
/// When the shapes differ or `order` exceeds 3.
pub fn unary<T: Real>(op: Unary, order: usize, x: &View<'_, T>, out: &mut ViewMut<'_, T>) {
    run(op, order, x, None, out);
}

/// `out = g · f⁽ᵒʳᵈᵉʳ⁾(x)` element by element: one step of the chain rule.
///
/// # Panics
/// When the shapes differ or `order` exceeds 3.
pub fn unary_scaled<T: Real>(
    op: Unary,
    order: usize,
    x: &View<'_, T>,
    g: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    run(op, order, x, Some(g), out);
}

impl Unary {
    /// `f⁽ᵒʳᵈᵉʳ⁾(x)` of every element of `x`, written to `y`.
    ///
    /// # Panics
    /// When the lengths differ or `order` exceeds 3.
    pub fn eval<T: Real>(self, order: usize, x: &[T], y: &mut [T]) {
        assert!(
            x.len() == y.len(),
            "unary: {} elements into {}",
            x.len(),
            y.len()
        );
        assert!(
            order <= 3,
            "unary: derivatives up to the third exist, not order {order}"
        );
        formulas::run(self, order, x, y);
    }
}

/// Elements per step through the buffers of strided or scaled maps: small enough to stay in the first cache.
const CHUNK: usize = 512;

fn run<T: Real>(
    op: Unary,
    order: usize,
    x: &View<'_, T>,
    g: Option<&View<'_, T>>,
    out: &mut ViewMut<'_, T>,
) {
    let g = g.unwrap_or(x);
    assert_shapes(&[x.shape(), g.shape()], out.shape());
    let scaled = !core::ptr::eq(g, x);
    let (shape, strides, offset) = out.geometry();
    let data = out.data_mut();
    let (mut input, mut result) = ([T::zero(); CHUNK], [T::zero(); CHUNK]);
    for_each_row(
        &shape,
        [x.strides(), g.strides(), &strides],
        [x.offset(), g.offset(), offset],
        |at, n, steps| {
            for first in (0..n).step_by(CHUNK) {
                let len = CHUNK.min(n - first);
                let [p, q, r] =
                    core::array::from_fn(|k| at[k].wrapping_add_signed(first as isize * steps[k]));
                let source = if steps[0] == 1 {
                    &x.data()[p..p + len]
                } else {
                    for (i, v) in input[..len].iter_mut().enumerate() {
                        *v = x.data()[p.wrapping_add_signed(i as isize * steps[0])];
                    }
                    &input[..len]
                };
                let direct = steps[2] == 1;
                let target = if direct {
                    &mut data[r..r + len]
                } else {
                    &mut result[..len]
                };
                op.eval(order, source, target);
                if scaled {
                    for (i, v) in target.iter_mut().enumerate() {
                        *v *= g.data()[q.wrapping_add_signed(i as isize * steps[1])];
                    }
                }
                if !direct {
                    for (i, v) in result[..len].iter().enumerate() {
                        data[r.wrapping_add_signed(i as isize * steps[2])] = *v;
                    }
                }
            }
        },
    );
}

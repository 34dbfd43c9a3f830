//! The text of every map and its derivatives.

use super::Unary;
use crate::Real;
use crate::math::{Fast, Math, Precise, relu, sign};
use crate::pointwise::vectorized;
use core::f64::consts::FRAC_2_SQRT_PI;
use pulp::{Simd, WithSimd};

/// One derivative of one map, as text the compiler inlines into each instruction set's loop.
trait Formula {
    fn at<M: Math>(&self, x: f64) -> f64;
}

struct Loop<'a, T, F> {
    x: &'a [T],
    y: &'a mut [T],
    formula: F,
}

impl<T: Real, F: Formula> WithSimd for Loop<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        if size_of::<T>() == 8 {
            each::<T, F, Precise>(self.x, self.y, &self.formula);
        } else if S::F64_LANES >= 4 || cfg!(target_arch = "aarch64") {
            each::<T, F, Fast<true>>(self.x, self.y, &self.formula);
        } else {
            each::<T, F, Fast<false>>(self.x, self.y, &self.formula);
        }
    }
}

#[inline(always)]
fn each<T: Real, F: Formula, M: Math>(x: &[T], y: &mut [T], formula: &F) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = T::of(formula.at::<M>(x.wide()));
    }
}

fn constant<T: Real>(y: &mut [T], value: f64) {
    y.fill(T::of(value));
}

/// Chooses the loop for `order`: one formula per derivative. What is given of four is repeated: the only one, or the third.
macro_rules! derivatives {
    ($x:ident, $y:ident, $order:ident, [$($p:ident),*], |$m:ident, $v:ident| $f:expr) => {
        derivatives!(@one $x, $y, [$($p),*], $m, $v, $f)
    };
    ($x:ident, $y:ident, $order:ident, [$($p:ident),*], |$m:ident, $v:ident| $f0:expr, $f1:expr, $f2:expr) => {
        match $order {
            0 => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f0),
            1 => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f1),
            _ => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f2),
        }
    };
    ($x:ident, $y:ident, $order:ident, [$($p:ident),*], |$m:ident, $v:ident| $f0:expr, $f1:expr, $f2:expr, $f3:expr) => {
        match $order {
            0 => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f0),
            1 => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f1),
            2 => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f2),
            _ => derivatives!(@one $x, $y, [$($p),*], $m, $v, $f3),
        }
    };
    (@one $x:ident, $y:ident, [$($p:ident),*], $m:ident, $v:ident, $f:expr) => {{
        struct Here { $($p: f64),* }
        impl Formula for Here {
            #[inline(always)]
            fn at<$m: Math>(&self, $v: f64) -> f64 {
                let Self { $($p),* } = *self;
                // Not every derivative needs every parameter.
                let _ = ($v, $($p),*);
                $f
            }
        }
        vectorized(Loop { x: $x, y: $y, formula: Here { $($p),* } });
    }};
}

/// As [`derivatives!`], for maps whose second and third derivatives vanish; after a semicolon the first is a constant.
macro_rules! piecewise {
    ($x:ident, $y:ident, $order:ident, [$($p:ident),*], |$v:ident| $f0:expr; $f1:expr) => {
        match $order {
            0 => derivatives!(@one $x, $y, [$($p),*], M, $v, $f0),
            1 => constant($y, $f1),
            _ => constant($y, 0.0),
        }
    };
    ($x:ident, $y:ident, $order:ident, [$($p:ident),*], |$v:ident| $f0:expr, $f1:expr) => {
        match $order {
            0 => derivatives!(@one $x, $y, [$($p),*], M, $v, $f0),
            1 => derivatives!(@one $x, $y, [$($p),*], M, $v, $f1),
            _ => constant($y, 0.0),
        }
    };
    ($x:ident, $y:ident, [$($p:ident),*], |$v:ident| $f0:expr) => {
        derivatives!(@one $x, $y, [$($p),*], M, $v, $f0)
    };
}

pub(super) fn run<T: Real>(op: Unary, order: usize, x: &[T], y: &mut [T]) {
    let rounded = |p: f64| T::of(p).wide();
    match op {
        Unary::Neg => piecewise!(x, y, order, [], |x| -x; -1.0),
        Unary::Abs => piecewise!(x, y, order, [], |x| x.abs(), sign(x)),
        Unary::Sqrt => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| x.sqrt(),
            0.5 / x.sqrt(),
            -0.25 / (x * x.sqrt()),
            0.375 / (x * x * x.sqrt())
        ),
        Unary::Rsqrt => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| 1.0 / x.sqrt(),
            -0.5 / (x * x.sqrt()),
            0.75 / (x * x * x.sqrt()),
            -1.875 / (x * x * x * x.sqrt())
        ),
        // Every derivative.
        Unary::Exp => derivatives!(x, y, order, [], |M, x| M::exp(x)),
        Unary::Log => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| M::ln(x),
            1.0 / x,
            -1.0 / (x * x),
            2.0 / (x * x * x)
        ),
        Unary::Sin => derivatives!(x, y, order, [], |M, x| x.sin(), x.cos(), -x.sin(), -x.cos()),
        Unary::Cos => derivatives!(x, y, order, [], |M, x| x.cos(), -x.sin(), -x.cos(), x.sin()),
        Unary::Tanh => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| M::tanh(x),
            1.0 - squared(M::tanh(x)),
            tanh_parts::<M>(x, 1.0, 0.0, 0.0)[2],
            tanh_parts::<M>(x, 1.0, 0.0, 0.0)[3]
        ),
        Unary::Sigmoid => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| M::sigmoid(x),
            sigmoid_parts::<M>(x)[1],
            sigmoid_parts::<M>(x)[2],
            sigmoid_parts::<M>(x)[3]
        ),
        Unary::Relu => piecewise!(
            x,
            y,
            order,
            [],
            |x| relu(x),
            if x <= 0.0 { 0.0 } else { 1.0 }
        ),
        Unary::LeakyRelu(slope) => {
            let slope = rounded(slope);
            piecewise!(
                x,
                y,
                order,
                [slope],
                |x| if x > 0.0 { x } else { slope * x },
                if x > 0.0 { 1.0 } else { slope }
            );
        }
        Unary::Elu(alpha) => elu(1.0, rounded(alpha), order, x, y),
        Unary::Selu => elu(
            rounded(1.050_700_987_355_480_5),
            rounded(1.673_263_242_354_377_2),
            order,
            x,
            y,
        ),
        Unary::Gelu => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| x * M::normal_cdf(x),
            M::normal_cdf(x) + x * M::normal_pdf(x),
            M::normal_pdf(x) * (2.0 - x * x),
            M::normal_pdf(x) * x * (x * x - 4.0)
        ),
        Unary::GeluTanh => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| 0.5 * x * (1.0 + gelu_tanh_parts::<M>(x)[0]),
            {
                let t = gelu_tanh_parts::<M>(x);
                0.5 + 0.5 * t[0] + 0.5 * x * t[1]
            },
            {
                let t = gelu_tanh_parts::<M>(x);
                t[1] + 0.5 * x * t[2]
            },
            {
                let t = gelu_tanh_parts::<M>(x);
                1.5 * t[2] + 0.5 * x * t[3]
            }
        ),
        Unary::Silu => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| x * M::sigmoid(x),
            {
                let s = sigmoid_parts::<M>(x);
                s[0] + x * s[1]
            },
            {
                let s = sigmoid_parts::<M>(x);
                2.0 * s[1] + x * s[2]
            },
            {
                let s = sigmoid_parts::<M>(x);
                3.0 * s[2] + x * s[3]
            }
        ),
        Unary::Mish => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| x * M::tanh(M::softplus(x)),
            {
                let t = mish_parts::<M>(x);
                t[0] + x * t[1]
            },
            {
                let t = mish_parts::<M>(x);
                2.0 * t[1] + x * t[2]
            },
            {
                let t = mish_parts::<M>(x);
                3.0 * t[2] + x * t[3]
            }
        ),
        Unary::Softplus { beta, threshold } => {
            let (beta, threshold) = (rounded(beta), rounded(threshold));
            derivatives!(
                x,
                y,
                order,
                [beta, threshold],
                |M, x| if beta * x > threshold {
                    x
                } else {
                    M::softplus(beta * x) / beta
                },
                if beta * x > threshold {
                    1.0
                } else {
                    M::sigmoid(beta * x)
                },
                if beta * x > threshold {
                    0.0
                } else {
                    beta * sigmoid_parts::<M>(beta * x)[1]
                },
                if beta * x > threshold {
                    0.0
                } else {
                    beta * beta * sigmoid_parts::<M>(beta * x)[2]
                }
            );
        }
        Unary::Softsign => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| x / (1.0 + x.abs()),
            1.0 / squared(1.0 + x.abs()),
            -2.0 * sign(x) / ((1.0 + x.abs()) * squared(1.0 + x.abs())),
            6.0 / squared(squared(1.0 + x.abs()))
        ),
        Unary::Hardsigmoid => piecewise!(
            x,
            y,
            order,
            [],
            |x| clamp(x + 3.0, 0.0, 6.0) / 6.0,
            // PyTorch multiplies by a sixth in single precision, whatever the type: 3e-8 more than a sixth.
            if x > -3.0 && x < 3.0 {
                0.166_666_671_633_720_4
            } else {
                0.0
            }
        ),
        Unary::Hardswish if order == 3 => constant(y, 0.0),
        Unary::Hardswish => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| x * clamp(x + 3.0, 0.0, 6.0) / 6.0,
            if x <= -3.0 {
                0.0
            } else if x < 3.0 {
                x / 3.0 + 0.5
            } else {
                1.0
            },
            if x > -3.0 && x < 3.0 { 1.0 / 3.0 } else { 0.0 }
        ),
        Unary::LogSigmoid => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| -M::softplus(-x),
            M::sigmoid(-x),
            -sigmoid_parts::<M>(x)[1],
            -sigmoid_parts::<M>(x)[2]
        ),
        Unary::Erf => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| M::erf(x),
            FRAC_2_SQRT_PI * M::exp(-x * x),
            -2.0 * FRAC_2_SQRT_PI * x * M::exp(-x * x),
            FRAC_2_SQRT_PI * M::exp(-x * x) * (4.0 * x * x - 2.0)
        ),
        Unary::Square if order == 2 => constant(y, 2.0),
        Unary::Square => piecewise!(x, y, order, [], |x| x * x, 2.0 * x),
        Unary::Reciprocal => derivatives!(
            x,
            y,
            order,
            [],
            |M, x| 1.0 / x,
            -1.0 / (x * x),
            2.0 / (x * x * x),
            -6.0 / squared(x * x)
        ),
        Unary::PowScalar(p) => {
            // The coefficient p (p-1) ... may vanish: then so does the derivative, at every x.
            let p = rounded(p);
            let scale: f64 = (0..order).map(|i| p - i as f64).product();
            power(scale, p - order as f64, x, y);
        }
        Unary::Clamp { min, max } => {
            let (min, max) = (rounded(min), rounded(max));
            piecewise!(
                x,
                y,
                order,
                [min, max],
                |x| clamp(x, min, max),
                if x >= min && x <= max { 1.0 } else { 0.0 }
            );
        }
        Unary::Sign => piecewise!(x, y, order, [], |x| sign(x); 0.0),
        Unary::Floor => piecewise!(x, y, order, [], |x| x.floor(); 0.0),
        Unary::Step => piecewise!(x, y, order, [], |x| if x > 0.0 { 1.0 } else { 0.0 }; 0.0),
        Unary::AddScalar(s) => {
            let s = rounded(s);
            piecewise!(x, y, order, [s], |x| x + s; 1.0);
        }
        Unary::MulScalar(s) => {
            let s = rounded(s);
            piecewise!(x, y, order, [s], |x| x * s; s);
        }
    }
}

/// `scale * elu(x)`
fn elu<T: Real>(scale: f64, alpha: f64, order: usize, x: &[T], y: &mut [T]) {
    derivatives!(
        x,
        y,
        order,
        [scale, alpha],
        |M, x| scale * if x > 0.0 { x } else { alpha * M::expm1(x) },
        scale * if x > 0.0 { 1.0 } else { alpha * M::exp(x) },
        scale * if x > 0.0 { 0.0 } else { alpha * M::exp(x) }
    );
}

/// `scale * x^p`, with products in place of powers where few do.
fn power<T: Real>(scale: f64, p: f64, x: &[T], y: &mut [T]) {
    if scale == 0.0 || p == 0.0 {
        constant(y, scale);
    } else if p == 1.0 {
        piecewise!(x, y, [scale], |x| scale * x);
    } else if p == 2.0 {
        piecewise!(x, y, [scale], |x| scale * (x * x));
    } else if p == 3.0 {
        piecewise!(x, y, [scale], |x| scale * (x * x * x));
    } else if p == 0.5 {
        piecewise!(x, y, [scale], |x| scale * x.sqrt());
    } else if p == -0.5 {
        piecewise!(x, y, [scale], |x| scale / x.sqrt());
    } else if p == -1.0 {
        piecewise!(x, y, [scale], |x| scale / x);
    } else if p == -2.0 {
        piecewise!(x, y, [scale], |x| scale / (x * x));
    } else {
        piecewise!(x, y, [scale, p], |x| scale * x.powf(p));
    }
}

#[inline(always)]
fn squared(x: f64) -> f64 {
    x * x
}

/// `min(max(x, low), high)` that keeps NaN.
#[inline(always)]
fn clamp(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// The sigmoid and its first three derivatives.
#[inline(always)]
fn sigmoid_parts<M: Math>(x: f64) -> [f64; 4] {
    let s = M::sigmoid(x);
    // sigmoid(-x) rather than 1 - s, which cancels.
    let first = s * M::sigmoid(-x);
    [
        s,
        first,
        first * (1.0 - 2.0 * s),
        first * (1.0 - 6.0 * s + 6.0 * s * s),
    ]
}

/// `tanh(u(x))` and its first three derivatives by x, from u and its first three.
#[inline(always)]
fn tanh_of<M: Math>(u: f64, u1: f64, u2: f64, u3: f64) -> [f64; 4] {
    let t = M::tanh(u);
    let d = 1.0 - t * t;
    [
        t,
        d * u1,
        d * (u2 - 2.0 * t * u1 * u1),
        d * (u3 - 6.0 * t * u1 * u2 + u1 * u1 * u1 * (6.0 * t * t - 2.0)),
    ]
}

#[inline(always)]
fn tanh_parts<M: Math>(x: f64, u1: f64, u2: f64, u3: f64) -> [f64; 4] {
    tanh_of::<M>(x, u1, u2, u3)
}

#[inline(always)]
fn gelu_tanh_parts<M: Math>(x: f64) -> [f64; 4] {
    const SCALE: f64 = FRAC_2_SQRT_PI * core::f64::consts::FRAC_1_SQRT_2;
    const CUBIC: f64 = 0.044_715;
    let u = SCALE * (x + CUBIC * x * x * x);
    tanh_of::<M>(
        u,
        SCALE * (1.0 + 3.0 * CUBIC * x * x),
        6.0 * SCALE * CUBIC * x,
        6.0 * SCALE * CUBIC,
    )
}

#[inline(always)]
fn mish_parts<M: Math>(x: f64) -> [f64; 4] {
    let s = sigmoid_parts::<M>(x);
    tanh_of::<M>(M::softplus(x), s[0], s[1], s[2])
}

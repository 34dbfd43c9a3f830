//! How formulas of the [table](crate::unary_table!) become loops on the host, and the functions that the formulas are made of.

use super::{Unary, single};
use crate::exp::fused;
use crate::math::{Fast, Math, Precise, TURNS, sign};
use crate::pointwise::vectorized;
use crate::{Real, special};
use core::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10};
use pulp::{Simd, WithSimd};

/// The derivatives of one map, as text the compiler inlines into each instruction set's loops.
trait Map {
    /// Whether the formula of the order calls functions of [`Math`], rather than using arithmetic alone.
    fn calls(&self) -> bool;

    /// Whether some formula calls functions of which [`Fast`] knows a part alone.
    const LIMITED: bool;

    /// The largest magnitude of which [`Fast`] knows the functions that the formula of the order calls, if there is one; below 0 if it knows
    /// them of no number.
    fn limit(&self) -> Option<f64>;

    /// Writes the derivative of the order at all of `x`. The formulas that call functions are compiled if `CALLING`, the others
    /// if `PLAIN`.
    fn each<T: Real, M: Math, const CALLING: bool, const PLAIN: bool>(&self, x: &[T], y: &mut [T]);
}

fn run_map<T: Real, F: Map>(map: &F, x: &[T], y: &mut [T]) {
    if const { size_of::<T>() == 8 } && map.calls() {
        // Calls of the standard library take one number at a time, whatever the instruction set.
        return map.each::<T, Precise, true, false>(x, y);
    }
    vectorized(Loops { map, x, y });
    if const { size_of::<T>() != 8 && F::LIMITED }
        && let Some(limit) = map.limit()
    {
        // One by one, so that no number's result depends on those beside it.
        for (x, y) in x.chunks_exact(1).zip(y.chunks_exact_mut(1)) {
            let is_known = x[0].wide().abs() <= limit;
            if !is_known {
                map.each::<T, Precise, true, false>(x, y);
            }
        }
    }
}

struct Loops<'a, T, F> {
    map: &'a F,
    x: &'a [T],
    y: &'a mut [T],
}

// All orders are one function for an instruction set: what chooses it takes longer to compile than a loop.
impl<T: Real, F: Map> WithSimd for Loops<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { map, x, y } = self;
        // Only one of these is compiled.
        if const { size_of::<T>() == 8 } {
            map.each::<T, Precise, false, true>(x, y);
        } else if const { fused::<S>() } {
            map.each::<T, Fast<true>, true, true>(x, y);
        } else {
            map.each::<T, Fast<false>, true, true>(x, y);
        }
    }
}

/// Runs the loop of an order, of formulas of `$x` with these parameters, and perhaps a value that they share. Orders without a
/// formula are zero.
macro_rules! map {
    (
        $from:ident, $to:ident, $order:expr, $x:ident, [$($p:ident)*], $shared:tt,
        $($($n:literal)|+ => $formula:expr;)+
    ) => {{
        struct Here { order: usize, $($p: f64),* }
        impl Map for Here {
            fn calls(&self) -> bool {
                match self.order {
                    $($($n)|+ => const { mentions!("M", $formula, $shared) },)+
                    _ => false,
                }
            }

            const LIMITED: bool = false $(|| turns!($formula, $shared) || powers!($formula, $shared))+;

            fn limit(&self) -> Option<f64> {
                let is_finite = true $(&& self.$p.is_finite())*;
                match self.order {
                    $($($n)|+ if const { turns!($formula, $shared) } => Some(TURNS),)+
                    $($($n)|+ if const { powers!($formula, $shared) } && !is_finite => Some(-1.0),)+
                    _ => None,
                }
            }

            #[inline(always)]
            fn each<T: Real, M: Math, const CALLING: bool, const PLAIN: bool>(&self, from: &[T], to: &mut [T]) {
                // Not every derivative needs every parameter.
                let Self { order, $($p),* } = *self;
                let _ = ($($p),*);
                match order {
                    $($($n)|+ => {
                        const CALLS: bool = mentions!("M", $formula, $shared);
                        const CONSTANT: bool = !mentions!(stringify!($x), $formula, $shared);
                        if const { CONSTANT } {
                            let $x = 0.0f64;
                            let _ = $x;
                            share!($shared);
                            to.fill(T::of($formula));
                        } else if const { if CALLS { CALLING } else { PLAIN } } {
                            for (to, from) in to.iter_mut().zip(from) {
                                let $x = from.wide();
                                let _ = $x;
                                share!($shared);
                                *to = T::of($formula);
                            }
                        }
                    })+
                    _ => to.fill(T::zero()),
                }
            }
        }
        run_map(&Here { order: $order, $($p),* }, $from, $to);
    }};
}

/// Binds what formulas share.
macro_rules! share {
    ([$($t:ident = $shared:expr)?]) => {
        // Not every derivative needs it.
        $(let $t = $shared; let _ = &$t;)?
    };
}

/// Whether a word stands in a formula, or in what it shares with others.
macro_rules! mentions {
    ($word:expr, $formula:expr, [$($t:ident = $shared:expr)?]) => {
        has_word(stringify!($formula), $word)
            $(|| has_word(stringify!($formula), stringify!($t)) && has_word(stringify!($shared), $word))?
    };
}

/// Whether a formula is of angles.
macro_rules! turns {
    ($formula:expr, $shared:tt) => {
        mentions!("sin", $formula, $shared)
            || mentions!("cos", $formula, $shared)
            || mentions!("tan", $formula, $shared)
    };
}

/// Whether a formula has powers whose exponents are no constants.
macro_rules! powers {
    ($formula:expr, $shared:tt) => {
        mentions!("power", $formula, $shared)
    };
}

/// The loops of all maps.
macro_rules! loops {
    ($x:ident; $(
        $(#[$_doc:meta])*
        $_name:ident: $variant:ident $(($($(#[$_about:meta])* $p:ident = $_default:expr),+))? $(, $_form:ident)? {
            $(with $($c:ident = $value:expr),+;)?
            $(let $t:ident = $shared:expr;)?
            $($($order:literal)|+ => $formula:expr;)+
        }
    )*) => {
        #[expect(clippy::manual_range_patterns, reason = "orders are listed as in the table")]
        pub(super) fn run<T: Real>(op: Unary, n: usize, from: &[T], to: &mut [T]) {
            let rounded = |p: f64| T::of(p).wide();
            if single::run(op, n, from, to) {
                return;
            }
            match op {
                Unary::PowScalar { exponent } if small_power(rounded(exponent), n, from, to) => {}
                $(Unary::$variant $({ $($p),+ })? => {
                    $($(let $p = rounded($p);)+)?
                    $($(let $c = rounded($value);)+)?
                    map!(
                        from, to, n, $x, [$($($p)+)? $($($c)+)?], [$($t = $shared)?],
                        $($($order)|+ => $formula;)+
                    );
                })*
            }
        }
    };
}

crate::unary_table!(loops);

/// `x^exponent` and its derivatives as products instead of powers, where a few products are enough.
fn small_power<T: Real>(exponent: f64, order: usize, x: &[T], y: &mut [T]) -> bool {
    // The coefficient p (p-1) ... may vanish; the derivative then vanishes at every x.
    let (scale, p) = falling(order as i32, exponent);
    if scale == 0.0 || p == 0.0 {
        y.fill(T::of(scale));
    } else if p == 1.0 {
        map!(x, y, 0, v, [scale], [], 0 => scale * v;);
    } else if p == 2.0 {
        map!(x, y, 0, v, [scale], [], 0 => scale * (v * v););
    } else if p == 3.0 {
        map!(x, y, 0, v, [scale], [], 0 => scale * (v * v * v););
    } else if p == 0.5 {
        map!(x, y, 0, v, [scale], [], 0 => scale * v.sqrt(););
    } else if p == -0.5 {
        map!(x, y, 0, v, [scale], [], 0 => scale / v.sqrt(););
    } else if p == -1.0 {
        map!(x, y, 0, v, [scale], [], 0 => scale / v;);
    } else if p == -2.0 {
        map!(x, y, 0, v, [scale], [], 0 => scale / (v * v););
    } else {
        return false;
    }
    true
}

/// The factor and the exponent of a derivative of `x^p`.
#[inline(always)]
fn falling(order: i32, p: f64) -> (f64, f64) {
    let scale = (0..order).map(|i| p - f64::from(i)).product();
    (scale, p - f64::from(order))
}

/// Whether an identifier stands in a text.
const fn has_word(text: &str, word: &str) -> bool {
    const fn joins(text: &[u8], i: usize) -> bool {
        i < text.len() && (text[i].is_ascii_alphanumeric() || text[i] == b'_')
    }
    let (text, word) = (text.as_bytes(), word.as_bytes());
    let mut at = 0;
    while at + word.len() <= text.len() {
        let mut same = 0;
        while same < word.len() && text[at + same] == word[same] {
            same += 1;
        }
        let begins = at == 0 || !joins(text, at - 1);
        if same == word.len() && begins && !joins(text, at + word.len()) {
            return true;
        }
        at += 1;
    }
    false
}

/// `if c { a } else { b }`, in a form that CUDA has too.
macro_rules! pick {
    ($c:expr, $a:expr, $b:expr) => {
        if $c { $a } else { $b }
    };
}
use pick;

#[inline(always)]
fn sqrt(x: f64) -> f64 {
    x.sqrt()
}

#[inline(always)]
fn abs(x: f64) -> f64 {
    x.abs()
}

#[inline(always)]
fn floor(x: f64) -> f64 {
    x.floor()
}

#[inline(always)]
fn ceil(x: f64) -> f64 {
    x.ceil()
}

#[inline(always)]
fn trunc(x: f64) -> f64 {
    x.trunc()
}

#[inline(always)]
fn round_even(x: f64) -> f64 {
    x.round_ties_even()
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

/// The derivative of [`clamp`]. An infinite bound is none; NaN has no side of one that is.
#[inline(always)]
fn passes(x: f64, low: f64, high: f64) -> f64 {
    let above = x > low || low == f64::NEG_INFINITY;
    let below = x < high || high == f64::INFINITY;
    if above && below { 1.0 } else { 0.0 }
}

/// Functions that only the standard library has.
macro_rules! standard {
    ($($name:ident)*) => {$(
        #[inline(always)]
        fn $name(x: f64) -> f64 {
            x.$name()
        }
    )*};
}

/// Functions made of those of [`Math`], and others. `f_parts` gives a function and its first three derivatives.
trait Parts: Math {
    standard!(asin acos atan sinh cosh asinh acosh atanh);

    #[inline(always)]
    fn erfc(x: f64) -> f64 {
        libm::erfc(x)
    }

    /// From Winitzki's approximation by three steps of Halley's method; near 1 by the complement, which does not cancel.
    #[inline(always)]
    fn erfinv(x: f64) -> f64 {
        const A: f64 = 0.147;
        let size = x.abs();
        if size >= 1.0 || x.is_nan() {
            return if size == 1.0 {
                x * f64::INFINITY
            } else {
                f64::NAN
            };
        }
        let log = (-x * x).ln_1p();
        let b = FRAC_2_SQRT_PI * FRAC_2_SQRT_PI / (2.0 * A) + 0.5 * log;
        let mut y = ((b * b - log / A).sqrt() - b).max(0.0).sqrt();
        for _ in 0..3 {
            let error = if size < 0.5 {
                libm::erf(y) - size
            } else {
                (1.0 - size) - libm::erfc(y)
            };
            let slope = FRAC_2_SQRT_PI * (-y * y).exp();
            y -= error / (slope + y * error);
        }
        y.copysign(x)
    }

    /// Parts of `e^(x²) erfc(x)`: of large `x` by its asymptotic series, where the recurrence of the others would cancel.
    fn erfcx_parts(x: f64) -> [f64; 4] {
        if x < ERFCX_FAR || x.is_nan() {
            let f = (x * x).exp() * libm::erfc(x);
            let first = 2.0 * x * f - FRAC_2_SQRT_PI;
            let second = 2.0 * (f + x * first);
            return [f, first, second, 4.0 * first + 2.0 * x * second];
        }
        let one = x.recip();
        let (mut parts, mut term) = ([0.0; 4], 0.5 * FRAC_2_SQRT_PI * one);
        for k in 0..26 {
            // A power of -(2k + 1), and what its derivatives have before them.
            let (mut slope, power) = (term, f64::from(2 * k + 1));
            for (order, part) in parts.iter_mut().enumerate() {
                *part += slope;
                slope *= -(power + order as f64) * one;
            }
            term *= -0.5 * power * one * one;
        }
        parts
    }

    /// Parts of the logarithm of the standard normal's cumulative distribution: below 0 by [`erfcx_parts`](Self::erfcx_parts), whose
    /// argument falls with `x`.
    fn log_ndtr_parts(x: f64) -> [f64; 4] {
        use core::f64::consts::SQRT_2;
        if x < -1.0 {
            let e = Self::erfcx_parts(-x * FRAC_1_SQRT_2);
            // The slope h grows with h' = -h r, where r = x + h has its own way here, which does not cancel.
            let h = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / e[0];
            let (first, second) = (e[1] / e[0], e[2] / e[0]);
            let (r, slope) = (-first / SQRT_2, 0.5 * (second - first * first));
            return [
                (0.5 * e[0]).ln() - 0.5 * x * x,
                h,
                -h * r,
                h * (r * r - slope),
            ];
        }
        let above = 0.5 * libm::erfc(x * FRAC_1_SQRT_2);
        let h = Precise::normal_pdf(x) / (1.0 - above);
        let r = if h == 0.0 { 0.0 } else { x + h };
        [(-above).ln_1p(), h, -h * r, h * (r * r + h * r - 1.0)]
    }

    /// What has so much of the standard normal below it: in the middle by [`erfinv`](Self::erfinv), in the tails by Newton's method, of which
    /// the logarithm's bend makes each step end on the same side.
    fn ndtri(p: f64) -> f64 {
        let tail = p.min(1.0 - p);
        if tail >= 0.25 {
            return core::f64::consts::SQRT_2 * Self::erfinv(2.0 * p - 1.0);
        }
        if tail > 0.0 {
            let log = tail.ln();
            let mut x = -(-2.0 * log).sqrt();
            for _ in 0..6 {
                let [f, slope, ..] = Self::log_ndtr_parts(x);
                x -= (f - log) / slope;
            }
            return if p < 0.5 { x } else { -x };
        }
        match tail == 0.0 {
            true => (p - 0.5) * f64::INFINITY,
            false => f64::NAN,
        }
    }

    /// A derivative of the Bessel function of the first kind of order `n`.
    fn bessel_first(n: i32, order: i32, x: f64) -> f64 {
        cylinder(libm::jn, n, order, x)
    }

    /// A derivative of the Bessel function of the second kind of order `n`.
    fn bessel_second(n: i32, order: i32, x: f64) -> f64 {
        cylinder(libm::yn, n, order, x)
    }

    /// `x` to so many decimals.
    #[inline(always)]
    fn rounded(x: f64, decimals: f64) -> f64 {
        let scale = 10f64.powf(decimals.abs());
        if decimals < 0.0 {
            round_even(x / scale) * scale
        } else {
            round_even(x * scale) / scale
        }
    }

    /// A derivative of `x^p`.
    #[inline(always)]
    fn power(order: i32, p: f64, x: f64) -> f64 {
        let (scale, p) = falling(order, p);
        scale * Self::powf(x, p)
    }

    #[inline(always)]
    fn sigmoid_parts(x: f64) -> [f64; 4] {
        let s = Self::sigmoid(x);
        // sigmoid(-x) rather than 1 - s, which cancels.
        let first = s * Self::sigmoid(-x);
        [
            s,
            first,
            first * (1.0 - 2.0 * s),
            first * (1.0 - 6.0 * s + 6.0 * s * s),
        ]
    }

    /// `tanh(u(x))` and its derivatives by `x`, from `u` and its derivatives.
    #[inline(always)]
    fn tanh_of(u: f64, u1: f64, u2: f64, u3: f64) -> [f64; 4] {
        let t = Self::tanh(u);
        let d = 1.0 - t * t;
        [
            t,
            d * u1,
            d * (u2 - 2.0 * t * u1 * u1),
            d * (u3 - 6.0 * t * u1 * u2 + u1 * u1 * u1 * (6.0 * t * t - 2.0)),
        ]
    }

    #[inline(always)]
    fn tanh_parts(x: f64) -> [f64; 4] {
        Self::tanh_of(x, 1.0, 0.0, 0.0)
    }

    /// Parts of `tanh(√(2/π) (x + 0.044715 x³))`.
    #[inline(always)]
    fn gelu_tanh_parts(x: f64) -> [f64; 4] {
        const SCALE: f64 = FRAC_2_SQRT_PI * core::f64::consts::FRAC_1_SQRT_2;
        const CUBIC: f64 = 0.044_715;
        Self::tanh_of(
            SCALE * (x + CUBIC * x * x * x),
            SCALE * (1.0 + 3.0 * CUBIC * x * x),
            6.0 * SCALE * CUBIC * x,
            6.0 * SCALE * CUBIC,
        )
    }

    /// The logarithm of the size of the gamma function.
    #[inline(always)]
    fn lgamma(x: f64) -> f64 {
        libm::lgamma(x)
    }

    /// Derivative number `n + order + 1` of [`lgamma`](Self::lgamma).
    fn polygamma(n: f64, order: i32, x: f64) -> f64 {
        match n as i32 + order {
            0 => digamma(x),
            order => {
                let size: f64 = (1..=order).map(f64::from).product();
                let zeta = special::zeta(f64::from(order + 1), x);
                zeta * if order % 2 == 0 { -size } else { size }
            }
        }
    }

    /// A derivative of the modified Bessel function of the first kind of order `n`, up to the third of orders 0 and 1; each is a mean of
    /// the functions of the orders beside.
    fn bessel(n: i32, order: i32, x: f64) -> f64 {
        let size = x.abs();
        if size > 800.0 {
            return odd(n + order, x, f64::INFINITY);
        }
        // In two steps: the exponential overflows before the function does.
        let half = (0.5 * size).exp();
        odd(n + order, x, bessel_slope(n, order, size) * half * half)
    }

    /// As [`bessel`](Self::bessel) of `e^-|x|` times the function. At 0 the derivative of the magnitude counts as 0.
    fn scaled_bessel(n: i32, order: i32, x: f64) -> f64 {
        let size = x.abs();
        if size >= BESSEL_FAR {
            return odd(n + order, x, bessel_far(n, order, size));
        }
        let sign: f64 = if size == 0.0 { 0.0 } else { -1.0 };
        // Products of derivatives of both: (-1)^(order - j) times the choices of j.
        let (mut sum, mut choices) = (0.0, 1.0);
        for j in 0..=order {
            sum += choices * sign.powi(order - j) * bessel_slope(n, j, size);
            choices *= f64::from(order - j) / f64::from(j + 1);
        }
        odd(n + order, x, sum)
    }

    /// A derivative of the modified Bessel function of the second kind of order 0 or 1.
    fn bessel_falling(n: i32, order: i32, x: f64) -> f64 {
        special::bessel_falling(n, order, false, x)
    }

    /// As [`bessel_falling`](Self::bessel_falling) of `e^x` times the function.
    fn scaled_bessel_falling(n: i32, order: i32, x: f64) -> f64 {
        special::bessel_falling(n, order, true, x)
    }

    /// A number of a half to 1 in size, that gives `x` with the power of two of [`binary_exponent`](Self::binary_exponent).
    fn mantissa(x: f64) -> f64 {
        special::frexp(x).0
    }

    fn binary_exponent(x: f64) -> f64 {
        special::frexp(x).1
    }

    /// Parts of `sin(πx) / (πx)`.
    #[inline(always)]
    fn sinc_parts(x: f64) -> [f64; 4] {
        use core::f64::consts::PI;
        let angle = PI * (x - 2.0 * (0.5 * x).round_ties_even());
        let [s, first, second, third] = Self::sinc_of(PI * x, angle);
        [s, PI * first, PI * PI * second, PI * PI * PI * third]
    }

    /// Parts of `sin(x) / x`, which are 0 at infinity.
    #[inline(always)]
    fn spherical_parts(x: f64) -> [f64; 4] {
        match x.is_infinite() {
            true => [0.0; 4],
            false => Precise::sinc_of(x, x),
        }
    }

    /// Parts of Airy's function Ai.
    fn airy_parts(x: f64) -> [f64; 4] {
        special::airy_parts(x)
    }

    /// Parts of `sin(u) / u`, near 0 by its series, and else of an angle that has the same sine.
    #[inline(always)]
    fn sinc_of(u: f64, angle: f64) -> [f64; 4] {
        if u.abs() < 1.5 {
            let [mut s, mut first, mut second, mut third] = [0.0; 4];
            // (-1)^n u^(2n) / (2n + 1)!, and what its successors leave of their powers.
            let mut term = 1.0;
            for n in 0..13 {
                let n = f64::from(2 * n);
                let next = -1.0 / ((n + 2.0) * (n + 3.0));
                let after = -next / ((n + 4.0) * (n + 5.0));
                s += term;
                first += term * next * (n + 2.0);
                second += term * next * (n + 2.0) * (n + 1.0);
                third += term * after * (n + 4.0) * (n + 3.0) * (n + 2.0);
                term *= next * u * u;
            }
            [s, first * u, second, third * u]
        } else {
            let s = Self::sin(angle) / u;
            let first = (Self::cos(angle) - s) / u;
            let second = -s - 2.0 * first / u;
            [s, first, second, -first - 2.0 * (second - first / u) / u]
        }
    }

    /// Parts of `tanh(ln(1 + e^x))`.
    #[inline(always)]
    fn mish_parts(x: f64) -> [f64; 4] {
        let s = Self::sigmoid_parts(x);
        Self::tanh_of(Self::softplus(x), s[0], s[1], s[2])
    }
}

impl<M: Math> Parts for M {}

/// From where on the asymptotic series of `erfcx` is exact.
const ERFCX_FAR: f64 = 6.0;

/// A derivative of a Bessel function of either kind: half the differences of those of the orders beside, again and again. Orders below 0
/// have those above, with their signs in turn.
fn cylinder(of: fn(i32, f64) -> f64, n: i32, order: i32, x: f64) -> f64 {
    let (mut sum, mut choices) = (0.0, 1.0);
    for i in 0..=order {
        let beside = n - order + 2 * i;
        let sign = if beside < 0 && beside % 2 != 0 {
            -1.0
        } else {
            1.0
        };
        sum += choices * sign * of(beside.abs(), x);
        choices *= -f64::from(order - i) / f64::from(i + 1);
    }
    sum / f64::from(1 << order)
}

/// From where on the asymptotic series of Bessel functions is exact.
const BESSEL_FAR: f64 = 25.0;

/// What a function of a magnitude is at `x`, if it is odd or even as a number is.
fn odd(number: i32, x: f64, of_size: f64) -> f64 {
    if number % 2 == 1 && x < 0.0 {
        -of_size
    } else {
        of_size
    }
}

/// `e^-x` times a derivative of the modified Bessel function of order `n`, of `x` from 0 on: a mean of those of other orders, whose sign
/// does not matter.
fn bessel_slope(n: i32, order: i32, x: f64) -> f64 {
    let (mut sum, mut choices) = (0.0, 1.0);
    for i in 0..=order {
        sum += choices * bessel_near_or_far((n - order + 2 * i).abs(), x);
        choices *= f64::from(order - i) / f64::from(i + 1);
    }
    sum / f64::from(1 << order)
}

/// `e^-x` times the function, by its series in powers of `x`, all of one sign, or for large `x` of its inverse.
fn bessel_near_or_far(n: i32, x: f64) -> f64 {
    if x >= BESSEL_FAR {
        return bessel_far(n, 0, x);
    }
    let half = 0.5 * x;
    let mut term: f64 = (1..=n).map(|i| half / f64::from(i)).product();
    let mut sum = term;
    for k in 1..60 {
        term *= half * half / f64::from(k * (k + n));
        sum += term;
    }
    sum * (-x).exp()
}

/// A derivative of `e^-x` times the function, term by term of its asymptotic series.
fn bessel_far(n: i32, order: i32, x: f64) -> f64 {
    use core::f64::consts::TAU;
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..30 {
        // The power is -k - ½, and one less with each derivative.
        let slope: f64 = (0..order).map(|i| -f64::from(k + i) - 0.5).product();
        sum += slope * term;
        term *= f64::from((2 * k + 1) * (2 * k + 1) - 4 * n * n) / (f64::from(8 * (k + 1)) * x);
    }
    sum / ((TAU * x).sqrt() * x.powi(order))
}

/// The derivative of the logarithm of the gamma function: below 0 by reflection, then up to where the asymptotic series is exact.
fn digamma(x: f64) -> f64 {
    use core::f64::consts::PI;
    if x == 0.0 {
        // A pole, on the side of its sign.
        return -1.0 / x;
    }
    if x < 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        let angle = PI * (x - x.round_ties_even());
        return digamma(1.0 - x) - PI * (angle.cos() / angle.sin());
    }
    let (mut at, mut sum) = (x, 0.0);
    while at < 14.0 {
        sum -= 1.0 / at;
        at += 1.0;
    }
    sum += at.ln() - 0.5 / at;
    // (2n - 1)! / x^(2n)
    let mut term = 1.0 / (at * at);
    for (n, c) in (1..).zip(special::BERNOULLI) {
        sum -= c * term;
        term *= f64::from((2 * n + 1) * (2 * n)) / (at * at);
    }
    sum
}

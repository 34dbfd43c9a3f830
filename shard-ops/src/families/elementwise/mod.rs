//! Pointwise ops: activations, arithmetic with broadcasting, comparisons, masks, casts. None communicates, except to
//! bring misaligned operands together.

mod combined;
mod compare;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod diff;
mod edges;
mod halves;
mod mask;
mod number;
mod polynomials;
mod slopes;

pub use self::combined::{
    add_scaled, addcdiv, addcmul, cross, floor_div_scalar, glu, isfinite, isinf, isnan, leaky,
    lerp, lerp_by, prelu, remainder_scalar, rsub_scalar,
};
pub use self::compare::{
    eq, ge, gt, le, logical_and, logical_not, logical_or, logical_xor, lt, ne,
};
#[cfg(feature = "cuda")]
pub(in crate::families) use self::cuda::{as_number, goes_by_grains, grain, unsigned};
pub use self::diff::diff;
pub use self::edges::{clamp_by, fmax, fmin, heaviside, isclose, nan_to_num, signbit};
pub(crate) use self::mask::masked;
pub use self::mask::{masked_fill, where_};
pub use self::number::number;
pub use self::polynomials::{OrthogonalPolynomial, polynomial};
use self::slopes::{QUOTIENT, gamma_density, is_zero, power_slope, shared};
use super::broadcast::sum_to;
use super::full::{each_rounded_once, rounded_once};
use super::types::{float_types, number_types};
use crate::host::{is_whole, with_float, with_whole};
use crate::rule::broadcast;
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, OperandBox, Precision,
    Result, Rule, Saved, Value, key_of,
};
use shard_comm::{DType, Element, Strided, kernel};
use shard_kernels::pointwise::{self, Binary};
pub use shard_kernels::unary::Unary;
use shard_kernels::unary::{self, Form};
use shard_kernels::{View, ViewMut, whole};
use smallvec::smallvec;
use std::sync::Arc;

/// Applies a map of one number to every element. It can be differentiated three times; a fourth is
/// [`NoVjp`](OpError::NoVjp).
///
/// Of integers there are those that stay integers: `neg`, `abs`, `sign`, `square`, `relu`, `relu6`, `floor`, `ceil`, `trunc`, `round`,
/// `clamp`, `pow_scalar`, `add_scalar` and `mul_scalar`, all wrapping.
///
/// # Collective
/// All members of the mesh. No communication; a partial operand is reduced first unless the map is linear.
///
/// # Errors
/// An operand that is not of floats, nor an integer where the map stays one; a parameter that integers do not hold.
pub fn unary(exec: &dyn Exec, x: &Value, map: Unary) -> Result<Value> {
    match is_whole(x.dtype()) {
        true => number::map(exec, x, map),
        false => {
            is_order(x, map)?;
            exec.apply1(Arc::new(UnaryMap { map, order: 0 }), &[x])
        }
    }
}

/// The most often that [`Unary::Polygamma`] differentiates: factorials are numbers, also of the order that its third derivative has.
const HIGHEST_ORDER: f64 = 100.0;

/// Refuses orders of derivatives that are none.
fn is_order(x: &Value, map: Unary) -> Result<()> {
    match map {
        Unary::Polygamma { n } if n.fract() != 0.0 || !(0.0..=HIGHEST_ORDER).contains(&n) => {
            Err(OpError::Shape {
                op: map.name(),
                problem: format!("{n} is no order of a derivative that there is"),
                shapes: vec![x.shape().to_vec()],
                fix: "give a whole number from 0 to 100",
            })
        }
        _ => Ok(()),
    }
}

macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// Shapes broadcast as in NumPy.
        ///
        /// # Collective
        /// All members of the mesh; communicates only to align operands whose boundaries differ.
        ///
        /// # Errors
        /// Shapes that do not broadcast; types that differ, or that have no such map.
        pub fn $name(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
            exec.apply1(Arc::new(Arithmetic::of(Binary::$kind)), &[a, b])
        }
    )*};
}

binaries! {
    /// `a + b`
    add => Add;
    /// `a - b`
    sub => Sub;
    /// `a * b`
    mul => Mul;
    /// The largest whole number not above `a / b`; 0 where an integer is divided by 0. Its derivative is 0.
    floor_div => FloorDiv;
    /// What [`floor_div`] leaves, with the sign of `b`; 0 where an integer is divided by 0.
    remainder => Remainder;
    /// What division rounded towards 0 leaves, with the sign of `a`; 0 where an integer is divided by 0.
    fmod => Fmod;
    /// `a` to the power `b`. An integer to a negative power is 0, but for those of 1 and -1.
    pow => Pow;
    /// The larger of the two; NaN if either is. Gradients are shared evenly between ties, and go to both where it is NaN.
    maximum => Maximum;
    /// The smaller of the two; NaN if either is. Gradients are shared evenly between ties, and go to both where it is NaN.
    minimum => Minimum;
    /// The angle, in `-π ..= π`, of the point whose abscissa is `b` and whose ordinate is `a`.
    atan2 => Atan2;
    /// `√(a² + b²)` without overflow.
    hypot => Hypot;
    /// `a ln b`, and 0 where `a` is 0 unless `b` is NaN.
    xlogy => Xlogy;
    /// `ln(e^a + e^b)` without overflow.
    logaddexp => LogAddExp;
    /// `log₂(2^a + 2^b)` without overflow.
    logaddexp2 => LogAddExp2;
    /// Hurwitz's zeta function: the sum of `(b + k)^-a` over all `k` from 0 on, infinite where `a` is 1. Only `b` has a derivative.
    zeta => Zeta;
    /// The lower incomplete gamma function of `a`, up to `b`, over the whole one. Only `b` has a derivative.
    igamma => Igamma;
    /// The upper incomplete gamma function of `a`, from `b` on, over the whole one. Only `b` has a derivative.
    igammac => Igammac;
    /// The next number of the type after `a` on the way to `b`, which is `b` where they are equal. There the derivative is 0, elsewhere that of
    /// `a` is 1; `b` has none.
    nextafter => NextAfter;
    /// The greatest common divisor of integers, which is not below 0; of two zeros 0.
    gcd => Gcd;
    /// The least common multiple of integers, which is not below 0 but where it wraps; 0 if either is.
    lcm => Lcm;
    /// The bits that both have, of integers and truth values.
    bitwise_and => BitAnd;
    /// The bits that either has, of integers and truth values.
    bitwise_or => BitOr;
    /// The bits that one of the two has, of integers and truth values.
    bitwise_xor => BitXor;
    /// The bits of integer `a` moved up by `b`; by less than 0, or as many as there are, it is 0.
    shift_left => Shl;
    /// The bits of integer `a` moved down by `b`, the sign staying; by less than 0, or as many as there are, only the sign is
    /// left.
    shift_right => Shr;
}

/// `a / b`. Of integers and truth values it is the true quotient, in `f32`, as PyTorch's; [`floor_div`] stays with integers.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn div(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    if a.dtype() == b.dtype() && is_whole(a.dtype()) {
        let [a, b] = [cast(exec, a, DType::F32)?, cast(exec, b, DType::F32)?];
        return div(exec, &a, &b);
    }
    exec.apply1(Arc::new(Arithmetic::of(Binary::Div)), &[a, b])
}

/// The size of `a` with the sign of `b`; of integers and truth values it is `f32`, as PyTorch's. The derivative at 0 is 0, at NaN it is NaN,
/// and `b` has none.
///
/// # Collective
/// As [`add`].
///
/// # Errors
/// As [`add`].
pub fn copysign(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    if a.dtype() == b.dtype() && is_whole(a.dtype()) {
        let [a, b] = [cast(exec, a, DType::F32)?, cast(exec, b, DType::F32)?];
        return copysign(exec, &a, &b);
    }
    exec.apply1(Arc::new(Arithmetic::of(Binary::Copysign)), &[a, b])
}

/// `x + value`
///
/// # Collective
/// As [`unary`](fn@unary).
///
/// # Errors
/// As [`unary`](fn@unary).
pub fn add_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    unary(exec, x, Unary::AddScalar { value })
}

/// `x - value`
///
/// # Collective
/// As [`unary`](fn@unary).
///
/// # Errors
/// As [`unary`](fn@unary).
pub fn sub_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    match is_whole(x.dtype()) {
        true => sub(exec, x, &number("sub", x, value)?),
        false => add_scalar(exec, x, -value),
    }
}

/// `x * value`; a partial operand stays partial, unless the value is not finite in its type.
///
/// # Collective
/// As [`unary`](fn@unary).
///
/// # Errors
/// As [`unary`](fn@unary).
pub fn mul_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    unary(exec, x, Unary::MulScalar { value })
}

/// `x / value`, rounded once: not the product with the reciprocal. A partial operand stays partial, unless the value is zero or
/// not finite in its type.
///
/// # Collective
/// As [`unary`](fn@unary).
///
/// # Errors
/// As [`unary`](fn@unary).
pub fn div_scalar(exec: &dyn Exec, x: &Value, value: f64) -> Result<Value> {
    if is_whole(x.dtype()) {
        return div_scalar(exec, &cast(exec, x, DType::F32)?, value);
    }
    if combined::is_rounded(x.dtype(), value) {
        // Terms pass; each of them is rounded in any case.
        let passes = x.layout().is_partial() && is_linear(value.recip(), DType::F32);
        return match passes {
            true => mul_scalar(exec, x, value.recip()),
            false => combined::divided(exec, x, value),
        };
    }
    let op = Arithmetic {
        kind: Binary::Div,
        by_number: is_linear(value, x.dtype()) && value != 0.0,
    };
    exec.apply1(Arc::new(op), &[x, &number::rounded("div", x, value)?])
}

/// `-x`; a partial operand stays partial.
///
/// # Collective
/// As [`unary`](fn@unary).
///
/// # Errors
/// As [`unary`](fn@unary).
pub fn neg(exec: &dyn Exec, x: &Value) -> Result<Value> {
    unary(exec, x, Unary::Neg)
}

/// The bits that an integer lacks; the contrary of a truth value.
///
/// # Collective
/// As [`unary`](fn@unary).
///
/// # Errors
/// Floats.
pub fn bitwise_not(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let all = match x.dtype() {
        DType::Bool => 1.0,
        DType::U8 => 255.0,
        _ => -1.0,
    };
    bitwise_xor(exec, x, &number::rounded("bitwise_not", x, all)?)
}

/// Converts elements to another type: to the nearest float; to integers towards zero, into the type's range, NaN to 0; to truth
/// values whether they are not zero.
///
/// # Collective
/// All members of the mesh. No communication; a partial operand is reduced first.
///
/// # Errors
/// What the communicator or the device reports.
pub fn cast(exec: &dyn Exec, x: &Value, to: DType) -> Result<Value> {
    if x.dtype() == to {
        return Ok(x.clone());
    }
    exec.apply1(Arc::new(Cast { to }), &[x])
}

/// Whether the map makes much of little, or so large or small numbers that 16 bits cannot hold them.
pub(super) fn is_steep(map: Unary) -> bool {
    matches!(
        map,
        Unary::Exp
            | Unary::Exp2
            | Unary::Expm1
            | Unary::Log
            | Unary::Log2
            | Unary::Log10
            | Unary::Log1p
            | Unary::PowScalar { .. }
            | Unary::Reciprocal
            | Unary::Rsqrt
            | Unary::Tan
            | Unary::Acos
            | Unary::Asin
            | Unary::Cosh
            | Unary::Sinh
            | Unary::Erfinv
            | Unary::Erfcx
            | Unary::LogNdtr
            | Unary::Ndtri
            | Unary::Polygamma { .. }
            | Unary::ModifiedBesselK0
            | Unary::ModifiedBesselK1
            | Unary::Softplus { .. }
            | Unary::LogSigmoid
    )
}

/// The op that converts to a type.
pub(crate) fn cast_op(to: DType) -> Arc<dyn Op> {
    Arc::new(Cast { to })
}

/// One step of the chain rule of a map: `f(x)` for order 0, `g * f⁽ᵒʳᵈᵉʳ⁾(x)` beyond, so that every derivative
/// is the same op of the next order.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct UnaryMap {
    pub map: Unary,
    pub order: usize,
}

impl Op for UnaryMap {
    fn name(&self) -> &'static str {
        match self.order {
            0 => self.map.name(),
            _ => "chain",
        }
    }

    fn precision(&self) -> Precision {
        match self.order {
            0 if is_steep(self.map) => Precision::Full,
            _ => Precision::Widest,
        }
    }

    fn key(&self) -> u128 {
        key_of(
            "map",
            &(
                self.map.name(),
                self.map.numbers().map(f64::to_bits),
                self.order,
            ),
        )
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let numbers = self.map.numbers();
        let linear = match (self.order, self.map.form()) {
            // Terms of either sign would become infinities of either sign if the factor were not finite.
            (0, Form::Linear) if numbers.iter().all(|&by| is_linear(by, dtype)) => {
                Linearity::Each(smallvec![0])
            }
            (0, _) => Linearity::None,
            _ => Linearity::Each(smallvec![1]),
        };
        Rule::pointwise(self.name(), inputs, dtype, linear)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if call.dtype().is_half() {
            return halves::map(self.map, self.order, call);
        }
        with_float!(call.dtype(), T => {
            if self.order == 0 {
                match call.lines::<T, 1>() {
                    Some(([x], out)) => self.map.eval(0, x, out),
                    None => unary::unary(self.map, 0, &call.input::<T>(0), &mut call.output::<T>(0)),
                }
            } else {
                let x = call.elements::<T>(0);
                let g = call.elements::<T>(1);
                unary::unary_scaled(self.map, self.order, &x, &g, &mut call.elements_out::<T>(0));
            }
        });
    }

    crate::kernel::gpu_kernel!(halves everywhere);

    fn keeps(&self) -> Keeps {
        match self.map.form() {
            Form::Linear | Form::Shift if self.order == 0 => Keeps::NOTHING,
            _ => Keeps::INPUTS,
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let x = &saved.inputs[0];
        let chain = |order: usize, x: &Value, g: &Value| -> Result<Value> {
            match (self.map.form(), order) {
                // They need no operand, and pass partial sums.
                (Form::Linear, 1) => unary(exec, g, self.map),
                (Form::Shift, 1) => Ok(g.clone()),
                (_, 1..=3) => exec.apply1(
                    Arc::new(Self {
                        map: self.map,
                        order,
                    }),
                    &[x, g],
                ),
                _ => Err(OpError::NoVjp {
                    op: self.name(),
                    operand: 0,
                }),
            }
        };
        saved.pull_back(cotangents, |dy, operand| match (self.order, operand) {
            (0, _) => chain(1, x, dy),
            (order, 0) => rounded_once(exec, [x, &saved.inputs[1], dy], |[x, g, dy]| {
                chain(order + 1, x, &mul(exec, g, dy)?)
            }),
            (order, _) => chain(order, x, dy),
        })
    }
}

/// A function of two numbers, element by element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) kind: Binary,
    /// Whether the second operand is a finite number other than zero, the same on all ranks: a sum may then be divided by
    /// it term by term. Zeros in a tensor would make infinities of either sign of terms of either sign.
    by_number: bool,
}

impl Arithmetic {
    pub(crate) fn of(kind: Binary) -> Self {
        Self {
            kind,
            by_number: false,
        }
    }

    /// The operands' type, if it has the map.
    fn types(&self, inputs: &[Meta]) -> Result<DType> {
        let dtype = number_types(self.name(), inputs)?;
        let expected = match (self.kind, dtype) {
            (
                Binary::Sub | Binary::FloorDiv | Binary::Remainder | Binary::Fmod | Binary::Pow,
                DType::Bool,
            ) => "f32, f64 or an integer",
            (Binary::Shl | Binary::Shr | Binary::Gcd | Binary::Lcm, _)
                if dtype.is_float() || dtype == DType::Bool =>
            {
                "an integer"
            }
            (Binary::BitAnd | Binary::BitOr | Binary::BitXor, _) if dtype.is_float() => {
                "an integer or bool"
            }
            (
                Binary::Div
                | Binary::Atan2
                | Binary::Hypot
                | Binary::Xlogy
                | Binary::LogAddExp
                | Binary::LogAddExp2
                | Binary::Copysign
                | Binary::Prelu
                | Binary::Zeta
                | Binary::Igamma
                | Binary::Igammac
                | Binary::NextAfter,
                _,
            ) if is_whole(dtype) => "f32 or f64",
            _ => return Ok(dtype),
        };
        Err(OpError::dtype(self.name(), 0, expected, dtype))
    }
}

/// Runs a kernel on both operands in the output's shape.
fn over_both<T: Element>(
    call: &mut HostCall<'_, '_>,
    kernel: impl FnOnce(&View<'_, T>, &View<'_, T>, &mut ViewMut<'_, T>),
) {
    let (a, b) = (call.elements::<T>(0), call.elements::<T>(1));
    let mut out = call.elements_out::<T>(0);
    if let (Some(a), Some(b)) = (a.shaped(out.shape()), b.shaped(out.shape())) {
        kernel(&a, &b, &mut out);
    }
}

impl Op for Arithmetic {
    fn name(&self) -> &'static str {
        binary_name(self.kind)
    }

    fn precision(&self) -> Precision {
        match self.kind {
            Binary::Pow | Binary::Xlogy | Binary::LogAddExp | Binary::LogAddExp2 => Precision::Full,
            Binary::Zeta | Binary::Igamma | Binary::Igammac => Precision::Full,
            _ => Precision::Widest,
        }
    }

    fn key(&self) -> u128 {
        key_of("arithmetic", &(self.kind, self.by_number))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = self.types(inputs)?;
        let linear = match self.kind {
            Binary::Add | Binary::Sub => Linearity::Joint,
            Binary::Mul => Linearity::Each(smallvec![0, 1]),
            Binary::Div if self.by_number => Linearity::Each(smallvec![0]),
            _ => Linearity::None,
        };
        Rule::pointwise(self.name(), inputs, dtype, linear)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        if call.dtype().is_half() {
            return halves::arithmetic(self.kind, call);
        }
        match call.dtype() {
            DType::F32 | DType::F64 => with_float!(call.dtype(), T => match call.lines::<T, 2>() {
                Some(([a, b], out)) => pointwise::binary_lines(self.kind, a, b, out),
                None => over_both::<T>(call, |a, b, out| pointwise::binary(self.kind, a, b, out)),
            }),
            other => with_whole!(other, T => {
                over_both::<T>(call, |a, b, out| whole::binary(self.kind, a, b, out));
            }),
        }
    }

    crate::kernel::gpu_kernel!(halves everywhere);

    fn keeps(&self) -> Keeps {
        match self.kind {
            Binary::Add | Binary::Sub => Keeps::NOTHING,
            _ => Keeps::INPUTS,
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None; saved.needs.len()]);
        };
        let of = |[a, b, dy]: [&Value; 3], wanted: &dyn Fn(usize) -> bool| {
            saved.pull_back(&[Some(dy.clone())], |dy, operand| {
                if !wanted(operand) {
                    return Ok(None);
                }
                let slope = self.slope(exec, [a, b], dy, operand)?;
                let of = saved.inputs[operand].shape();
                slope.map(|slope| sum_to(exec, &slope, of)).transpose()
            })
        };
        let operands = [&saved.inputs[0], &saved.inputs[1], dy];
        let takes = |operand| dy.dtype().is_half() && self.takes_steps(saved, dy, operand);
        let mut found = of(operands, &|operand| !takes(operand))?;
        if (0..saved.needs.len()).any(|operand| saved.needs[operand] && takes(operand)) {
            let others = each_rounded_once(exec, operands, |operands| of(operands, &takes))?;
            for (found, other) in found.iter_mut().zip(others) {
                *found = found.take().or(other);
            }
        }
        Ok(found)
    }
}

impl Arithmetic {
    /// Whether an operand's gradient is made by several ops that round. Sums, and what passes whole or not at all, are one.
    fn takes_steps(&self, saved: &Saved<'_>, dy: &Value, operand: usize) -> bool {
        match (self.kind, operand) {
            (Binary::Mul | Binary::Prelu | Binary::Div, _) => {
                saved.inputs[operand].shape() != dy.shape()
            }
            (Binary::Remainder | Binary::Fmod, 1) => true,
            (Binary::Pow | Binary::Atan2 | Binary::Hypot | Binary::Xlogy, _) => true,
            (Binary::LogAddExp | Binary::LogAddExp2, _) => true,
            (Binary::Zeta | Binary::Igamma | Binary::Igammac, 1) => true,
            _ => false,
        }
    }

    /// What an operand's cotangent is, before what broadcasting added is summed out; `None` if there is no derivative.
    fn slope(
        &self,
        exec: &dyn Exec,
        [a, b]: [&Value; 2],
        dy: &Value,
        operand: usize,
    ) -> Result<Option<Value>> {
        let [own, other] = if operand == 0 { [a, b] } else { [b, a] };
        let slope = match (self.kind, operand) {
            (Binary::Add, _) | (Binary::Sub, 0) => dy.clone(),
            (Binary::Sub, _) => neg(exec, dy)?,
            (Binary::Mul, _) => mul(exec, dy, other)?,
            (Binary::Div, 0) => exec.apply1(Arc::new(*self), &[dy, b])?,
            // The square of the divisor may be zero or infinite where neither quotient is.
            (Binary::Div, _) => QUOTIENT.apply1(exec, &[a, b, dy])?,
            (Binary::Pow, _) => power_slope(exec, [a, b], dy, operand)?,
            (Binary::Remainder | Binary::Fmod, 0) => dy.clone(),
            (Binary::Remainder, _) => {
                let times = floor_div(exec, &a.detach(), &b.detach())?;
                neg(exec, &mul(exec, dy, &times)?)?
            }
            (Binary::Fmod, _) => {
                let times = unary(exec, &div(exec, &a.detach(), &b.detach())?, Unary::Trunc)?;
                neg(exec, &mul(exec, dy, &times)?)?
            }
            (Binary::FloorDiv, _) | (Binary::Copysign | Binary::NextAfter, 1) => return Ok(None),
            (Binary::NextAfter, _) => {
                let is_other = eq(exec, &a.detach(), &b.detach())?;
                masked_fill(exec, dy, &is_other, 0.0)?
            }
            (Binary::Zeta, 1) => {
                let next = zeta(exec, &add_scalar(exec, a, 1.0)?, b)?;
                neg(exec, &mul(exec, dy, &mul(exec, a, &next)?)?)?
            }
            (Binary::Igamma | Binary::Igammac, 1) => {
                let slope = gamma_density(exec, a, b, dy)?;
                match self.kind {
                    Binary::Igamma => slope,
                    _ => neg(exec, &slope)?,
                }
            }
            (Binary::Copysign, _) => {
                let sign = unary(exec, &a.detach(), Unary::Sign)?;
                let turned = mul(exec, &sign, &copysign(exec, &sign, &b.detach())?)?;
                // NaN has no sign.
                let is_none = ne(exec, &a.detach(), &a.detach())?;
                mul(exec, dy, &where_(exec, &is_none, &a.detach(), &turned)?)?
            }
            (Binary::Atan2, _) => {
                // The origin has no angle, and no slope. The square of a length may be 0 or infinite where the length is neither.
                let origin = logical_and(exec, &is_zero(exec, a)?, &is_zero(exec, b)?)?;
                let length = hypot(exec, a, &add(exec, b, &flag(exec, &origin, b)?)?)?;
                let along = div(exec, &div(exec, other, &length)?, &length)?;
                let slope = masked_fill(exec, &mul(exec, dy, &along)?, &origin, 0.0)?;
                match operand {
                    0 => slope,
                    _ => neg(exec, &slope)?,
                }
            }
            (Binary::Hypot, _) => mul(exec, dy, &div(exec, own, &hypot(exec, a, b)?)?)?,
            // Where the product is 0 by decree, so is its slope.
            (Binary::Xlogy, 0) => {
                let below = le(exec, &b.detach(), &number::rounded("xlogy", b, 0.0)?)?;
                let decreed = logical_and(exec, &is_zero(exec, a)?, &below)?;
                let slope = mul(exec, dy, &unary(exec, b, Unary::Log)?)?;
                masked_fill(exec, &slope, &decreed, 0.0)?
            }
            (Binary::Xlogy, _) => mul(exec, dy, &div(exec, a, b)?)?,
            (Binary::LogAddExp | Binary::LogAddExp2, _) => {
                let mut by = sub(exec, own, other)?;
                if self.kind == Binary::LogAddExp2 {
                    by = mul_scalar(exec, &by, std::f64::consts::LN_2)?;
                }
                mul(exec, dy, &unary(exec, &by, Unary::Sigmoid)?)?
            }
            (Binary::Prelu, of) => {
                let above = gt(exec, &a.detach(), &number::rounded("prelu", a, 0.0)?)?;
                let slope = mul(exec, dy, other)?;
                match of {
                    0 => where_(exec, &above, dy, &slope)?,
                    _ => masked_fill(exec, &slope, &above, 0.0)?,
                }
            }
            (Binary::Maximum, _) => shared(exec, dy, own, other, lt)?,
            (Binary::Minimum, _) => shared(exec, dy, own, other, gt)?,
            _ => {
                return Err(OpError::NoVjp {
                    op: self.name(),
                    operand,
                });
            }
        };
        Ok(Some(slope))
    }
}

/// 1 where a mask is true and 0 elsewhere, in the type of `like`.
pub(super) fn flag(exec: &dyn Exec, mask: &Value, like: &Value) -> Result<Value> {
    cast(exec, mask, like.dtype())
}

/// Whether products with a number, or quotients by it, are finite for finite elements but for overflow. Those of 16 bits are computed in `f32`.
fn is_linear(value: f64, dtype: DType) -> bool {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            (value as f32).is_finite() && (value == 0.0 || value as f32 != 0.0)
        }
        _ => value.is_finite(),
    }
}

/// Another type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    to: DType,
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn key(&self) -> u128 {
        key_of("cast", &self.to)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        // Rounding is not linear, so partial sums are reduced first.
        Rule::pointwise("cast", inputs, self.to, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let at = |operand: &OperandBox| {
            Strided::new(
                operand.offset,
                operand.shape.clone(),
                operand.strides.clone(),
            )
        };
        let (from, to) = (at(&call.cx.inputs[0]), at(&call.cx.outputs[0]));
        let (x, y) = (&call.inputs[0], &mut call.outputs[0]);
        kernel::copy(x.dtype(), x.bytes(), &from, self.to, y.bytes_mut(), &to);
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, x| cast(exec, dy, saved.inputs[x].dtype()))
    }
}

fn binary_name(kind: Binary) -> &'static str {
    match kind {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::Pow => "pow",
        Binary::Maximum => "maximum",
        Binary::Minimum => "minimum",
        Binary::FloorDiv => "floor_div",
        Binary::Remainder => "remainder",
        Binary::Fmod => "fmod",
        Binary::Atan2 => "atan2",
        Binary::Hypot => "hypot",
        Binary::Xlogy => "xlogy",
        Binary::LogAddExp => "logaddexp",
        Binary::LogAddExp2 => "logaddexp2",
        Binary::Copysign => "copysign",
        Binary::Prelu => "prelu",
        Binary::Zeta => "zeta",
        Binary::Igamma => "igamma",
        Binary::Igammac => "igammac",
        Binary::NextAfter => "nextafter",
        Binary::Gcd => "gcd",
        Binary::Lcm => "lcm",
        Binary::BitAnd => "bitwise_and",
        Binary::BitOr => "bitwise_or",
        Binary::BitXor => "bitwise_xor",
        Binary::Shl => "shift_left",
        Binary::Shr => "shift_right",
    }
}

/// The shape that values broadcast to.
///
/// # Errors
/// Shapes that do not broadcast.
pub fn broadcast_shape(op: &'static str, values: &[&Value]) -> Result<Vec<usize>> {
    let metas: Vec<Meta> = values.iter().map(|value| Meta::of(value)).collect();
    Ok(broadcast(op, &metas)?.to_vec())
}

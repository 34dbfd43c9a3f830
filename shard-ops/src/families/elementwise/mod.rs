//! Pointwise ops: activations, arithmetic with broadcasting, comparisons, casts. None communicates, except to
//! bring misaligned operands together.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(all(test, feature = "cuda-emulated"))]
mod tests;

use super::broadcast::sum_to;
use super::types::float_types;
use crate::error::InOp;
use crate::host::{computes, partial_type, with_float, with_stored};
use crate::rule::broadcast;
use crate::{
    Exec, HostCall, Keeps, Linearity, Meta, Op, OpError, Result, Rule, Saved, Value, key_of,
};
use num_traits::AsPrimitive;
use shard_comm::DType;
use shard_kernels::pointwise::{self, Binary};
use shard_kernels::unary::{self, Form, Unary};
use shard_redistribute::Array;
use shard_spec::Layout;
use smallvec::smallvec;
use std::sync::Arc;

/// Applies a map of one number to every element. It can be differentiated three times; a fourth is
/// [`NoVjp`](OpError::NoVjp).
///
/// # Collective
/// All members of the mesh. No communication; a partial operand is reduced first unless the map is linear.
///
/// # Errors
/// An operand that is not f32 or f64.
pub fn unary(exec: &dyn Exec, x: &Value, map: Unary) -> Result<Value> {
    exec.apply1(Arc::new(Map { map, order: 0 }), &[x])
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
        /// Shapes that do not broadcast; types that differ or are not f32 or f64.
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
    /// `a / b`
    div => Div;
    /// `a` to the power `b`.
    pow => Pow;
    /// The larger of the two; NaN if either is. Gradients are shared evenly between ties.
    maximum => Maximum;
    /// The smaller of the two; NaN if either is. Gradients are shared evenly between ties.
    minimum => Minimum;
    /// 1 where `a > b`, else 0, in the operands' type.
    gt => Gt;
    /// 1 where `a >= b`, else 0, in the operands' type.
    ge => Ge;
    /// 1 where `a < b`, else 0, in the operands' type.
    lt => Lt;
    /// 1 where `a <= b`, else 0, in the operands' type.
    le => Le;
    /// 1 where `a == b`, else 0, in the operands' type.
    eq => Eq;
    /// 1 where `a != b`, else 0, in the operands' type.
    ne => Ne;
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
    let array = x.array();
    let layout = Layout::replicated(array.layout().mesh(), &[]);
    let divisor = match x.dtype() {
        DType::F32 => Array::from_fn(array.cx(), &layout, |_| value as f32),
        _ => Array::from_fn(array.cx(), &layout, |_| value),
    };
    let op = Arithmetic {
        kind: Binary::Div,
        by_number: is_linear(value, x.dtype()) && value != 0.0,
    };
    exec.apply1(Arc::new(op), &[x, &Value::new(divisor.in_op("div")?)])
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

/// Converts elements between f16, bf16, f32 and f64.
///
/// # Collective
/// All members of the mesh. No communication.
///
/// # Errors
/// A type other than these on either side.
pub fn cast(exec: &dyn Exec, x: &Value, to: DType) -> Result<Value> {
    if x.dtype() == to {
        return Ok(x.clone());
    }
    exec.apply1(Arc::new(Cast { to }), &[x])
}

/// One step of the chain rule of a map: `f(x)` for order 0, `g * f⁽ᵒʳᵈᵉʳ⁾(x)` beyond, so that every derivative
/// is the same op of the next order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Map {
    pub(crate) map: Unary,
    pub(crate) order: usize,
}

impl Op for Map {
    fn name(&self) -> &'static str {
        match self.order {
            0 => self.map.name(),
            _ => "chain",
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
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            if self.order == 0 {
                unary::unary(self.map, 0, &x, &mut call.output::<T>(0));
            } else {
                let g = call.input::<T>(1);
                unary::unary_scaled(self.map, self.order, &x, &g, &mut call.output::<T>(0));
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        match self.map.form() {
            Form::Linear | Form::Shift if self.order == 0 => Keeps::NOTHING,
            _ => Keeps::INPUTS,
        }
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let x = &saved.inputs[0];
        let chain = |order: usize, g: &Value| -> Result<Value> {
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
            (0, _) => chain(1, dy),
            (order, 0) => chain(order + 1, &mul(exec, &saved.inputs[1], dy)?),
            (order, _) => chain(order, dy),
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
    fn of(kind: Binary) -> Self {
        Self {
            kind,
            by_number: false,
        }
    }
}

impl Op for Arithmetic {
    fn name(&self) -> &'static str {
        binary_name(self.kind)
    }

    fn key(&self) -> u128 {
        key_of(binary_name(self.kind), &self.by_number)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let linear = match self.kind {
            Binary::Add | Binary::Sub => Linearity::Joint,
            Binary::Mul => Linearity::Each(smallvec![0, 1]),
            Binary::Div if self.by_number => Linearity::Each(smallvec![0]),
            _ => Linearity::None,
        };
        Rule::pointwise(self.name(), inputs, dtype, linear)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (a, b) = (call.input::<T>(0), call.input::<T>(1));
            let mut out = call.output::<T>(0);
            let (a, b) = (a.broadcast_to(out.shape()), b.broadcast_to(out.shape()));
            if let (Some(a), Some(b)) = (a, b) {
                pointwise::binary(self.kind, &a, &b, &mut out);
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        match self.kind {
            Binary::Add | Binary::Sub => Keeps::NOTHING,
            _ => Keeps::INPUTS,
        }
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        let (a, b) = (&saved.inputs[0], &saved.inputs[1]);
        saved.pull_back(cotangents, |dy, operand| {
            let full = match (self.kind, operand) {
                (Binary::Add, _) | (Binary::Sub, 0) => dy.clone(),
                (Binary::Sub, _) => neg(exec, dy)?,
                (Binary::Mul, 0) => mul(exec, dy, b)?,
                (Binary::Mul, _) => mul(exec, dy, a)?,
                (Binary::Div, 0) => exec.apply1(Arc::new(*self), &[dy, b])?,
                // The square of the divisor may be zero or infinite where neither quotient is.
                (Binary::Div, _) => {
                    let twice = div(exec, &div(exec, a, b)?, b)?;
                    neg(exec, &mul(exec, dy, &twice)?)?
                }
                // To the power 0 everything is 1: the exponent is raised there, so that 0 does not meet an infinity.
                (Binary::Pow, 0) => {
                    let less = add(exec, &add_scalar(exec, b, -1.0)?, &is_zero(exec, b)?)?;
                    mul(exec, dy, &mul(exec, b, &pow(exec, a, &less)?)?)?
                }
                // Powers of 0 are 0 for exponents above 0: the logarithm is taken of 1 there, for the same reason.
                (Binary::Pow, _) => {
                    let up = ge(exec, &b.detach(), &neg(exec, &b.detach())?)?;
                    let flat = mul(exec, &is_zero(exec, a)?, &up)?;
                    let log = unary(exec, &add(exec, a, &flat)?, Unary::Log)?;
                    mul(exec, dy, &mul(exec, &pow(exec, a, b)?, &log)?)?
                }
                (Binary::Maximum, 0) => shared(exec, dy, a, b, gt)?,
                (Binary::Maximum, _) => shared(exec, dy, b, a, gt)?,
                (Binary::Minimum, 0) => shared(exec, dy, a, b, lt)?,
                (Binary::Minimum, _) => shared(exec, dy, b, a, lt)?,
                _ => {
                    return Err(OpError::NoVjp {
                        op: self.name(),
                        operand,
                    });
                }
            };
            sum_to(exec, &full, saved.inputs[operand].shape())
        })
    }
}

/// 1 where an element is 0, and 0 elsewhere.
fn is_zero(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let x = x.detach();
    eq(exec, &x, &neg(exec, &x)?)
}

/// Whether products with a number, or quotients by it, are finite for finite elements but for overflow.
fn is_linear(value: f64, dtype: DType) -> bool {
    match dtype {
        DType::F32 => (value as f32).is_finite() && (value == 0.0 || value as f32 != 0.0),
        _ => value.is_finite(),
    }
}

/// `dy` where `a` wins, half of it where they tie.
fn shared(
    exec: &dyn Exec,
    dy: &Value,
    a: &Value,
    b: &Value,
    wins: fn(&dyn Exec, &Value, &Value) -> Result<Value>,
) -> Result<Value> {
    let (a, b) = (a.detach(), b.detach());
    let tie = mul_scalar(exec, &eq(exec, &a, &b)?, 0.5)?;
    mul(exec, dy, &add(exec, &wins(exec, &a, &b)?, &tie)?)
}

/// Another float type.
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
        let from = inputs[0].dtype;
        if [from, self.to].iter().any(|&t| !computes(partial_type(t))) {
            return Err(OpError::Cast { from, to: self.to });
        }
        // Rounding is not linear, so partial sums are reduced first.
        Rule::pointwise("cast", inputs, self.to, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.inputs[0].dtype(), A => with_stored!(self.to, B => convert::<A, B>(call)));
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>> {
        saved.pull_back(cotangents, |dy, x| cast(exec, dy, saved.inputs[x].dtype()))
    }
}

/// Converts a box that is contiguous on both sides, as pointwise boxes are.
fn convert<A, B>(call: &mut HostCall<'_, '_>)
where
    A: shard_comm::Element + AsPrimitive<B>,
    B: shard_comm::Element,
{
    let x = call.input::<A>(0);
    let mut y = call.output::<B>(0);
    let from = x.to_vec();
    for (to, from) in y.data_mut().iter_mut().zip(from) {
        *to = from.as_();
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
        Binary::Gt => "gt",
        Binary::Ge => "ge",
        Binary::Lt => "lt",
        Binary::Le => "le",
        Binary::Eq => "eq",
        Binary::Ne => "ne",
    }
}

/// The shape that values broadcast to.
///
/// # Errors
/// Shapes that do not broadcast.
pub fn broadcast_shape(op: &'static str, values: &[&Value]) -> Result<Vec<usize>> {
    let metas: Vec<Meta> = values
        .iter()
        .map(|v| Meta {
            shape: v.shape().iter().copied().collect(),
            dtype: v.dtype(),
        })
        .collect();
    Ok(broadcast(op, &metas)?.to_vec())
}

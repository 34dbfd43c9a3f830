//! Scans along a dim: running sums, products, extremes and the like.
//!
//! Where the dim is sharded, a scan is two ops. The first finds what each part of the dim comes to (its total), in the parts'
//! places, so that nothing moves. The totals, one per line and part, are gathered along the dim's axes. The second joins those
//! of the parts before its own, in their order, and scans its own part from there. Integers are exact, and the bits of floats
//! depend on the layout alone.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod extreme;
mod gradient;
mod parts;
mod recurrence;

pub use self::extreme::{cummax, cummin};
use self::parts::{Parts, line_shape};
pub use self::recurrence::linear_recurrence;
use super::broadcast::{expand, expand_like};
use super::elementwise::{cast, number};
use super::full::{rounded_once, sums};
use super::index::{cat, flip};
use super::shape::unsqueeze;
use super::types::number_types;
use crate::host::{is_whole, with_float, with_whole};
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision, Result,
    Rule, Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::scan::{self as kernels, Scan};
use smallvec::smallvec;
use std::sync::Arc;

macro_rules! scans {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Collective
        /// All members of the mesh. Where the dim is sharded, every rank gathers the totals of the other parts, one number per
        /// line and part; else nothing moves. A dim in several intervals per rank (zigzag, striped) is first brought to one
        /// each.
        ///
        /// # Errors
        /// A dim out of range; a type that has no such scan.
        pub fn $name(exec: &dyn Exec, x: &Value, dim: usize) -> Result<Value> {
            along(exec, stringify!($name), Scan::$op, false, x, dim)
        }
    )*};
}

scans! {
    /// The sums of the elements of a dim up to each. Of integers and truth values they are `i64`, and wrap. Partial sums stay
    /// partial.
    cumsum => Sum;
    /// The products of the elements of a dim up to each. Of integers and truth values they are `i64`, and wrap.
    cumprod => Prod;
    /// The logarithms of the sums of the exponentials of the elements of a dim up to each, of floats.
    logcumsumexp => LogSumExp;
}

/// Powers of the elements of a list as the rows of a matrix, `[elements, columns]`: from 1 on, or, if not `increasing`, down to 1 (a
/// Vandermonde matrix). Of integers they are `i64`, and wrap.
///
/// # Collective
/// All members of the mesh. No communication: rows lie as the list.
///
/// # Errors
/// Another number of dims than one; a type that has no products.
pub fn vander(exec: &dyn Exec, x: &Value, columns: usize, increasing: bool) -> Result<Value> {
    let &[n] = x.shape() else {
        return Err(OpError::Shape {
            op: "vander",
            problem: format!("{} dims", x.ndim()),
            shapes: vec![x.shape().to_vec()],
            fix: "give a list",
        });
    };
    rounded_once(exec, [x], |[x]| {
        let copies = [n, columns.saturating_sub(1)];
        let copies = expand(exec, &unsqueeze(exec, x, 1)?, &copies)?;
        let powers = cumprod(exec, &copies, 1)?;
        if columns == 0 {
            return Ok(powers);
        }
        let one = number("vander", &powers, 1.0)?;
        let ones = expand_like(
            exec,
            &one,
            &cast(exec, &unsqueeze(exec, x, 1)?, powers.dtype())?,
        )?;
        let all = cat(exec, &[&ones, &powers], 1)?;
        match increasing {
            true => Ok(all),
            false => flip(exec, &all, 1),
        }
    })
}

/// A scan in one direction.
pub(super) fn along(
    exec: &dyn Exec,
    name: &'static str,
    op: Scan,
    backwards: bool,
    x: &Value,
    dim: usize,
) -> Result<Value> {
    let parts = Parts::of(name, x, dim)?;
    let scan = Running {
        name,
        op,
        backwards,
        parts,
    };
    if !scan.parts.has_totals() {
        return exec.apply1(Arc::new(scan), &[x]);
    }
    let [x] = &match op {
        // Terms pass.
        Scan::Sum => [x.clone()],
        _ => sums(exec, [x])?,
    };
    let totals = exec.apply1(Arc::new(Totals(scan.clone())), &[&x.detach()])?;
    let totals = scan.parts.gathered(exec, &totals)?;
    exec.apply1(Arc::new(scan), &[x, &totals])
}

/// A scan that starts from the totals of the parts before, if there are any: the second operand.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    name: &'static str,
    op: Scan,
    backwards: bool,
    parts: Parts,
}

/// What each part of the dim comes to.
#[derive(Clone, Debug)]
pub(crate) struct Totals(Running);

impl Running {
    fn types(&self, inputs: &[Meta]) -> Result<DType> {
        let dtype = number_types(self.name, &inputs[..1])?;
        if self.op == Scan::LogSumExp && is_whole(dtype) {
            return Err(OpError::dtype(self.name, 0, "f32 or f64", dtype));
        }
        Ok(if is_whole(dtype) { DType::I64 } else { dtype })
    }

    /// Which partial sums pass: terms that wrap in a narrower type do not wrap in the result's.
    fn linearity(&self, of: DType, to: DType) -> Linearity {
        match (self.op, of == to) {
            (Scan::Sum, true) if self.parts.has_totals() => Linearity::Joint,
            (Scan::Sum, true) => Linearity::Each(smallvec![0]),
            _ => Linearity::None,
        }
    }
}

impl Op for Running {
    fn name(&self) -> &'static str {
        self.name
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of("scan", &(self.name, self.op, self.backwards, &self.parts))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = self.types(inputs)?;
        let linear = self.linearity(inputs[0].dtype, dtype);
        let (rule, dims) = self.parts.scanned(self.name, inputs, 1, inputs.len() - 1);
        rule.output(dims, inputs[0].shape.clone(), dtype)
            .linearity(linear)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (dim, of) = (self.parts.dim, call.inputs[0].dtype());
        let lines = line_shape(&call.cx.inputs[0].shape, dim);
        let before = self.parts.before(&call.cx.inputs[0], self.backwards);
        if is_whole(of) {
            let start = self.op.whole_identity();
            let mut states = vec![start; lines.iter().product()];
            if call.inputs.len() > 1 {
                let totals = call.input::<i64>(1);
                parts::join(&totals, dim, &before, &mut states, |state, total| {
                    *state = self.op.join_whole(*state, total);
                });
            }
            with_whole!(of, T => {
                let x = call.input::<T>(0);
                let to = &mut call.output::<i64>(0);
                kernels::whole(self.op, self.backwards, &x, dim, &mut states, Some(to));
            });
            return;
        }
        let mut states = vec![self.op.float_identity(); lines.iter().product()];
        if call.inputs.len() > 1 {
            let totals = call.input::<f64>(1);
            parts::join(&totals, dim, &before, &mut states, |state, total| {
                *state = self.op.join_floats(*state, total);
            });
        }
        with_float!(of, T => {
            let x = call.input::<T>(0);
            let to = &mut call.output::<T>(0);
            kernels::floats(self.op, self.backwards, &x, dim, &mut states, Some(to));
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        match self.op {
            Scan::Sum => Keeps::NOTHING,
            _ => Keeps::inputs(&[0]).and_outputs(&[0]),
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (x, y, dim) = (&saved.inputs[0], &saved.outputs[0], self.parts.dim);
        saved.pull_back(cotangents, |dy, operand| {
            // The totals are made of the first operand, whose derivative is of both.
            if operand > 0 {
                return Err(OpError::NoVjp {
                    op: self.name,
                    operand,
                });
            }
            let back = |op, x: &Value| along(exec, self.name, op, !self.backwards, x, dim);
            if self.op == Scan::Sum {
                return back(Scan::Sum, dy).map(Some);
            }
            rounded_once(exec, [x, dy], |[x, dy]| {
                // Of 16 bits the result is found anew: what it lost where it was rounded would be lost to all that is before.
                let y = match y.dtype() == x.dtype() {
                    true => y.clone(),
                    false => along(exec, self.name, self.op, self.backwards, x, dim)?,
                };
                match self.op {
                    Scan::LogSumExp => gradient::of_exponentials(exec, x, &y, dy, &back),
                    _ => gradient::of_products(exec, x, &y, dy, dim, self.backwards),
                }
            })
            .map(Some)
        })
    }
}

impl Op for Totals {
    fn name(&self) -> &'static str {
        "scan_totals"
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &(self.0.op, self.0.backwards, &self.0.parts))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = self.0.types(inputs)?;
        let linear = match self.0.linearity(inputs[0].dtype, dtype) {
            Linearity::None => Linearity::None,
            _ => Linearity::Each(smallvec![0]),
        };
        // Sums of floats are gathered as they were made, in f64.
        let wide = if is_whole(dtype) {
            DType::I64
        } else {
            DType::F64
        };
        let (rule, dims, shape) = self.0.parts.totals(self.name(), inputs, 1);
        rule.output(dims, shape, wide).linearity(linear).build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (parts, op, backwards) = (&self.0.parts, self.0.op, self.0.backwards);
        let of = call.inputs[0].dtype();
        let each = parts.within(&call.cx.inputs[0], &call.cx.outputs[0]);
        for (k, rows) in each.into_iter().enumerate() {
            let at = call.cx.inputs[0].shape.clone();
            let lines = line_shape(&at, parts.dim).iter().product();
            if is_whole(of) {
                let mut states = vec![op.whole_identity(); lines];
                with_whole!(of, T => {
                    let x = parts.rows(&call.input::<T>(0), rows);
                    kernels::whole(op, backwards, &x, parts.dim, &mut states, None);
                });
                parts.put(&mut call.output::<i64>(0), k, &states);
            } else {
                let mut states = vec![op.float_identity(); lines];
                with_float!(of, T => {
                    let x = parts.rows(&call.input::<T>(0), rows);
                    kernels::floats(op, backwards, &x, parts.dim, &mut states, None);
                });
                parts.put(&mut call.output::<f64>(0), k, &states);
            }
        }
    }

    crate::kernel::gpu_kernel!();
}

//! A reduction over dims: what sums and the other reductions share.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use super::shape::reshape;
use super::types::{float_types, number_types};
use crate::host::{is_whole, with_float, with_number, with_whole};
use crate::{
    Access, Exec, Halves, HostCall, Linearity, Meta, OpError, Reduction, Result, Rule, Value,
    key_of,
};
use shard_comm::{DType, DeviceKind, Element};
use shard_kernels::reduce as kernels;
use shard_kernels::tally::{Tally, of_truths, of_whole};
use shard_kernels::whole::Whole;
use shard_spec::ReduceOp;
use smallvec::{SmallVec, smallvec};

/// What of an element is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    /// The element.
    Itself,
    /// 0 or 1, by whether it is zero.
    Truth,
    /// Its square, of floats.
    Square,
}

/// A reduction over dims. Sums and products of integers and truth values are `i64`.
#[derive(Clone, Debug)]
pub(super) struct OverDims {
    pub(super) name: &'static str,
    pub(super) op: ReduceOp,
    of: Of,
    pub(super) dims: SmallVec<[usize; 6]>,
    keepdim: bool,
    /// Whether the result of floats of 16 bits is `f32`.
    in_full: bool,
}

impl OverDims {
    pub(super) fn new(name: &'static str, op: ReduceOp, dims: &[usize], keepdim: bool) -> Self {
        Self {
            name,
            op,
            of: Of::Itself,
            dims: dims.iter().copied().collect(),
            keepdim,
            in_full: false,
        }
    }

    /// The sum; of floats of 16 bits in `f32`, as it is computed.
    pub(super) fn in_full(name: &'static str, dims: &[usize], keepdim: bool) -> Self {
        Self {
            in_full: true,
            ..Self::new(name, ReduceOp::Sum, dims, keepdim)
        }
    }

    /// A reduction of whether elements are not zero: how many (a sum), whether any, or whether all.
    pub(super) fn of_truths(
        name: &'static str,
        op: ReduceOp,
        dims: &[usize],
        keepdim: bool,
    ) -> Self {
        Self {
            of: Of::Truth,
            ..Self::new(name, op, dims, keepdim)
        }
    }

    /// The sum of the squares of floats; of floats of 16 bits in `f32`, as it is computed.
    pub(super) fn of_squares(name: &'static str, dims: &[usize], keepdim: bool) -> Self {
        Self {
            of: Of::Square,
            ..Self::in_full(name, dims, keepdim)
        }
    }

    fn is_of_truths(&self) -> bool {
        self.of == Of::Truth
    }

    pub(super) fn is_of_squares(&self) -> bool {
        self.of == Of::Square
    }

    /// The type of the result.
    fn result(&self, of: DType) -> DType {
        match self.op {
            ReduceOp::Any | ReduceOp::All => DType::Bool,
            ReduceOp::Sum | ReduceOp::Prod if self.is_of_truths() || is_whole(of) => DType::I64,
            _ => of,
        }
    }

    /// What a kernel of whole numbers does.
    fn tally(&self) -> Tally {
        match self.op {
            ReduceOp::Sum => Tally::Sum,
            ReduceOp::Prod => Tally::Prod,
            ReduceOp::Max | ReduceOp::Any => Tally::Max,
            ReduceOp::Min | ReduceOp::All => Tally::Min,
        }
    }

    pub(super) fn key(&self) -> u128 {
        let how = (self.keepdim, self.in_full);
        key_of(self.name, &(self.of, &self.dims, how))
    }

    pub(super) fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let name = self.name;
        let of = match self.of {
            Of::Square => float_types(name, inputs)?,
            Of::Itself | Of::Truth => number_types(name, inputs)?,
        };
        let dtype = self.result(of);
        let x = &inputs[0].shape;
        let twice = self
            .dims
            .iter()
            .enumerate()
            .any(|(k, d)| self.dims[..k].contains(d));
        if twice || self.dims.iter().any(|&d| d >= x.len()) {
            return Err(OpError::Shape {
                op: name,
                problem: format!(
                    "dims {:?} are not distinct dims of the operand",
                    &self.dims[..]
                ),
                shapes: vec![x.to_vec()],
                fix: "name each dim once, counting from 0",
            });
        }
        let mut rule = Rule::builder(name, inputs).any_order();
        let factors: Vec<usize> = x.iter().map(|&n| rule.factor(n)).collect();
        let mut out = Vec::new();
        let mut shape = SmallVec::new();
        for (d, &n) in x.iter().enumerate() {
            if !self.dims.contains(&d) {
                out.push(Access::factor(factors[d]));
                shape.push(n);
            } else if self.keepdim {
                out.push(Access::WHOLE);
                shape.push(1);
            }
        }
        // Terms that wrap in a narrower type do not wrap in the result's.
        let linear = if self.op == ReduceOp::Sum && self.of == Of::Itself && of == dtype {
            Linearity::Each(smallvec![0])
        } else {
            Linearity::None
        };
        rule.input(factors.iter().map(|&f| Access::factor(f)).collect())
            .output(out, shape, dtype)
            .reduction(Reduction::Partial(self.op))
            .linearity(linear)
            .unrounded(self.in_full)
            .build()
    }

    /// What a kernel for a kind of device reads and writes in 16 bits: on the host, whole rows of numbers are read.
    pub(super) fn halves(&self, inputs: &[Meta], on: DeviceKind) -> Halves {
        let are_rows = |x: &Meta| !self.is_of_truths() && self.rows(&x.shape).is_some();
        match on.is_cuda() {
            true => Halves::ALL,
            false if inputs.iter().all(are_rows) => Halves {
                reads: &[0],
                writes: false,
            },
            false => Halves::NONE,
        }
    }

    /// How many dims are kept, if all that are reduced are behind them.
    fn rows(&self, shape: &[usize]) -> Option<usize> {
        let kept = *self.dims.iter().min()?;
        let is_behind = |d: usize| shape[d] == 1 || self.dims.contains(&d);
        (kept..shape.len()).all(is_behind).then_some(kept)
    }

    fn kind(&self) -> kernels::ReduceKind {
        match self.op {
            ReduceOp::Sum if self.of == Of::Square => kernels::ReduceKind::SquareSum,
            ReduceOp::Sum => kernels::ReduceKind::Sum,
            ReduceOp::Max => kernels::ReduceKind::Max,
            ReduceOp::Min => kernels::ReduceKind::Min,
            ReduceOp::Prod => kernels::ReduceKind::Prod,
            ReduceOp::Any | ReduceOp::All => unreachable!("{} is of truths", self.name),
        }
    }

    pub(super) fn host(&self, call: &mut HostCall<'_, '_>) {
        let of = call.inputs[0].dtype();
        if self.is_of_truths() {
            return with_number!(of, T => {
                let x = call.input::<T>(0);
                let op = self.tally();
                self.put(call, |put| of_truths(op, &x, &self.dims, put));
            });
        }
        if is_whole(of) {
            return with_whole!(of, T => {
                let x = call.input::<T>(0);
                let op = self.tally();
                self.put(call, |put| of_whole(op, &x, &self.dims, put));
            });
        }
        match of {
            DType::F16 => return self.rows_of::<half::f16>(call),
            DType::BF16 => return self.rows_of::<half::bf16>(call),
            _ => {}
        }
        with_float!(of, T => {
            let x = call.input::<T>(0);
            // Reductions have no windows, so the output box is the whole piece.
            kernels::reduce(self.kind(), &x, &self.dims, call.output::<T>(0).data_mut());
        });
    }

    fn rows_of<T: kernels::Half + Element>(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<T>(0);
        let kept = self.dims.iter().min().map_or(x.ndim(), |&first| first);
        let mut out = call.output::<f32>(0);
        kernels::reduce_rows(self.kind(), &x, kept, out.data_mut());
    }

    /// Writes whole numbers as elements of the result's type; the identities of extremes are the ends of it.
    fn put(&self, call: &mut HostCall<'_, '_>, reduce: impl FnOnce(&mut dyn FnMut(usize, i64))) {
        with_whole!(call.dtype(), R => {
            let [least, most] = match R::DTYPE {
                DType::Bool => [0, 1],
                _ => [i64::MIN, i64::MAX].map(|end| R::from_i64(end).wide()),
            };
            let mut y = call.output::<R>(0);
            let y = y.data_mut();
            reduce(&mut |cell, x| y[cell] = R::narrow(match self.op {
                ReduceOp::Sum | ReduceOp::Prod => x,
                _ => x.clamp(least, most),
            }));
        });
    }

    /// What the reduction of `x` gave, or its cotangent, with the reduced dims of extent 1.
    pub(super) fn with_kept_dims(&self, exec: &dyn Exec, y: &Value, x: &Value) -> Result<Value> {
        let extents = x.shape().iter().enumerate();
        let kept: Vec<usize> = extents
            .map(|(d, &n)| if self.dims.contains(&d) { 1 } else { n })
            .collect();
        if y.shape() == kept {
            return Ok(y.clone());
        }
        reshape(exec, y, &kept)
    }
}

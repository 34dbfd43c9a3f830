//! Rows folded into those of a table that an index operand names.

use super::rows::{Picked, fold_all, row_fold, with_foldable};
use super::take::Take;
use crate::elementwise::{add, add_scalar, cast, div, eq, logical_not, mul, sub};
use crate::families::reduce::share_of_ties;
use crate::{
    Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OpError, Reduction,
    Result, RouteBy, Rule, Saved, Value, key_of,
};
use shard_comm::{DType, DeviceKind, Element};
use shard_kernels::View;
use shard_kernels::reduce::Half;
use shard_kernels::rows::{Foldable, Rows, fold_rounded, fold_widened};
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::sync::Arc;

/// Folds rows into a table: inputs are the table, which lends its layout alone where it is no term itself, the indices, and the rows.
#[derive(Clone, Debug)]
pub(crate) struct FoldRows {
    pub(crate) picked: Picked,
    pub(crate) how: ReduceOp,
    /// Whether the table's own rows are terms.
    pub(crate) has_base: bool,
    /// An index whose rows are left out.
    pub(crate) skips: Option<i64>,
}

const NAME: &str = "fold_rows";

impl FoldRows {
    fn with(&self, how: ReduceOp) -> Self {
        Self {
            how,
            ..self.clone()
        }
    }

    /// Where rows lie in what a call reads and writes.
    fn rows(&self, call: &HostCall<'_, '_>) -> Rows {
        let cx = call.cx;
        self.picked.geometry(&cx.outputs[0], &cx.inputs[2])
    }

    /// Folds rows that are stored in 16 bits, into a table of that type or of `f32`.
    fn in_halves<T: Half + Element>(&self, call: &mut HostCall<'_, '_>) {
        let (rows, how) = (self.rows(call), row_fold(self.how));
        let (keys, src) = (call.input::<i64>(1), call.input::<T>(2));
        let adds_base = self.has_base && call.cx.adds_once;
        let base = adds_base.then(|| call.input::<T>(0));
        let base = base.as_ref().map(View::data);
        if call.dtype() != DType::F32 {
            let mut table = call.output::<T>(0);
            return fold_rounded(how, &rows, base, keys.data(), src.data(), table.data_mut());
        }
        let goes_on = !call.cx.fold.first;
        let (mut table, mut away) = call.output_pair::<f32, f32>();
        let (table, away) = (table.data_mut(), away.data_mut());
        let none = f32::identity(how);
        match base {
            _ if goes_on => {}
            Some(base) => T::widen_slice(base, table),
            None => table.fill(none),
        }
        away.fill(none);
        fold_widened(how, &rows, table, away, keys.data(), src.data());
    }

    /// The rows of a table that the index operand names.
    fn take(&self, exec: &dyn Exec, table: &Value, index: &Value) -> Result<Value> {
        let take = Take {
            picked: self.picked.clone(),
            skips: self.skips,
            padding: None,
            by: RouteBy::Auto,
        };
        exec.apply1(Arc::new(take), &[table, index])
    }

    /// What rows are folded in where the largest or smallest counts: the cotangent is shared evenly between ties.
    fn ties(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Value) -> Result<Grads> {
        let (base, index, src) = (&saved.inputs[0], &saved.inputs[1], &saved.inputs[2]);
        let out = saved.outputs[0].detach();
        let wins = equal(exec, &src.detach(), &self.take(exec, &out, index)?)?;
        let own = match self.has_base {
            true => Some(equal(exec, &base.detach(), &out)?),
            false => None,
        };
        let winners = own.as_ref().unwrap_or(&out);
        let count = exec.apply1(Arc::new(self.with(ReduceOp::Sum)), &[winners, index, &wins])?;
        // Nobody wins where nothing was folded in, or NaN, of which all have the gradient NaN.
        let count = add(exec, &count, &is_zero(exec, &count)?)?;
        let share = share_of_ties(exec, dy, &count, &out)?;
        let to_base = match (&own, saved.needs[0]) {
            (Some(own), true) => Some(mul(exec, &share, own)?),
            _ => None,
        };
        let to_src = match saved.needs[2] {
            true => Some(mul(exec, &self.take(exec, &share, index)?, &wins)?),
            false => None,
        };
        Ok(vec![to_base, None, to_src])
    }

    /// The gradient of products: each factor gets the product of the others. Where one factor is zero only it gets anything, where
    /// two are nobody does; so products are taken without zeros, and put back by their count.
    fn others(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Value) -> Result<Grads> {
        let (base, index, src) = (&saved.inputs[0], &saved.inputs[1], &saved.inputs[2]);
        let sum = Arc::new(self.with(ReduceOp::Sum));
        let zero = is_zero(exec, &src.detach())?;
        let nonzero = add(exec, src, &zero)?;
        let (zeros, product, own) = if self.has_base {
            let own = is_zero(exec, &base.detach())?;
            let nonzero_base = add(exec, base, &own)?;
            let zeros = exec.apply1(sum, &[&own, index, &zero])?;
            let product = exec.apply1(Arc::new(self.clone()), &[&nonzero_base, index, &nonzero])?;
            (zeros, product, Some((own, nonzero_base)))
        } else {
            let zeros = exec.apply1(sum, &[base, index, &zero])?;
            let product = exec.apply1(Arc::new(self.clone()), &[base, index, &nonzero])?;
            (zeros, product, None)
        };
        let all = mul(exec, dy, &product)?;
        let none = mul(exec, &all, &is_zero(exec, &zeros)?)?;
        let one = mul(
            exec,
            &all,
            &is_zero(exec, &add_scalar(exec, &zeros, -1.0)?)?,
        )?;
        // Of a factor that is zero, and of one that is not.
        let of = |none: &Value, one: &Value, zero: &Value, nonzero: &Value| {
            let alone = mul(exec, one, zero)?;
            let beside = div(exec, &sub(exec, none, &mul(exec, none, zero)?)?, nonzero)?;
            add(exec, &beside, &alone)
        };
        let to_base = match (&own, saved.needs[0]) {
            (Some((zero, nonzero)), true) => Some(of(&none, &one, zero, nonzero)?),
            _ => None,
        };
        let to_src = match saved.needs[2] {
            true => {
                let (none, one) = (
                    self.take(exec, &none, index)?,
                    self.take(exec, &one, index)?,
                );
                Some(of(&none, &one, &zero, &nonzero)?)
            }
            false => None,
        };
        Ok(vec![to_base, None, to_src])
    }
}

/// 1 where an element is 0, and 0 elsewhere.
fn is_zero(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let zero = logical_not(exec, &x.detach())?;
    cast(exec, &zero, x.dtype())
}

/// 1 where elements are equal, and 0 elsewhere.
fn equal(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    cast(exec, &eq(exec, a, b)?, a.dtype())
}

impl Op for FoldRows {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(&self.picked, self.how, self.has_base, self.skips))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let made = self.picked.accesses(NAME, inputs, 3)?;
        let dtype = inputs[2].dtype;
        let numbers = [DType::F64, DType::F32, DType::I64, DType::I32, DType::U8];
        if !numbers.contains(&dtype) {
            return Err(OpError::dtype(NAME, 2, "f64, f32, i64, i32 or u8", dtype));
        }
        if self.has_base && inputs[0].dtype != dtype {
            return Err(OpError::dtype(NAME, 2, inputs[0].dtype.to_string(), dtype));
        }
        let mut rule = (made.rule)
            .input(made.table.clone())
            .input(made.index)
            .input(made.picked)
            .output(made.table, inputs[0].shape.clone(), dtype)
            .routes(self.picked.routes().skips(self.skips).masks())
            .reduction(Reduction::Partial(self.how));
        if !self.has_base {
            rule = rule.unread(0);
        }
        if self.how == ReduceOp::Sum {
            rule = rule.linearity(Linearity::Each(smallvec![2]));
        }
        rule.build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, _: DType, _: &[Meta], on: DeviceKind) -> Halves {
        match on.is_cuda() {
            true => Halves::NONE,
            false => Halves {
                reads: &[0, 2],
                writes: true,
            },
        }
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        match call.inputs[2].dtype() {
            DType::F16 => return self.in_halves::<half::f16>(call),
            DType::BF16 => return self.in_halves::<half::bf16>(call),
            _ => {}
        }
        let rows = self.rows(call);
        let adds_base = self.has_base && call.cx.adds_once;
        let call_is_first = call.cx.fold.first;
        with_foldable!(call.dtype(), T => {
            let (keys, src) = (call.input::<i64>(1), call.input::<T>(2));
            // A table that only lends its layout has no elements.
            let base = adds_base.then(|| call.input::<T>(0));
            let none = T::identity(row_fold(self.how));
            let (mut table, mut away) = call.output_pair::<T, T>();
            match base {
                // A call that is not the first goes on with what it finds.
                _ if !call_is_first => {}
                Some(base) => table.data_mut().copy_from_slice(base.data()),
                None => table.data_mut().fill(none),
            }
            away.data_mut().fill(none);
            fold_all::<T>(self.how, &rows, table.data_mut(), away.data_mut(), keys.data(), src.data());
        });
    }

    fn keeps(&self) -> Keeps {
        match self.how {
            ReduceOp::Sum => Keeps::inputs(&[1]),
            _ => Keeps::ALL,
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None; 3]);
        };
        match self.how {
            ReduceOp::Sum => saved.pull_back(cotangents, |dy, operand| match operand {
                0 if self.has_base => Ok(Some(dy.clone())),
                2 => self.take(exec, dy, &saved.inputs[1]).map(Some),
                _ => Ok(None),
            }),
            ReduceOp::Prod => self.others(exec, saved, dy),
            _ => self.ties(exec, saved, dy),
        }
    }
}

//! Rows of a table, or elements along a dim, by index.

use super::fold::FoldRows;
use super::rows::Picked;
use crate::host::with_element;
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, Reduction, Result, RouteBy,
    Rule, Saved, key_of,
};
use shard_comm::DType;
use shard_kernels::rows::pick;
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::sync::Arc;

/// What an index operand names in a table: inputs are the table and the indices.
#[derive(Clone, Debug)]
pub(crate) struct Take {
    pub(crate) picked: Picked,
    /// An index that stands for zeros.
    pub(crate) skips: Option<i64>,
    /// An index whose row gets no gradient.
    pub(crate) padding: Option<i64>,
    pub(crate) by: RouteBy,
}

const NAME: &str = "take";

impl Op for Take {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(&self.picked, self.skips, self.padding, self.by))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let made = self.picked.accesses(NAME, inputs, 2)?;
        let dtype = inputs[0].dtype;
        let mut routes = self.picked.routes().skips(self.skips).served(self.by);
        if dtype != DType::Bool {
            routes = routes.masks();
        }
        (made.rule)
            .input(made.table)
            .input(made.index)
            .output(made.picked, made.shape, dtype)
            .routes(routes)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let rows = self
            .picked
            .geometry(&call.cx.inputs[0], &call.cx.outputs[0]);
        with_element!(call.dtype(), T => {
            let (table, keys, ghosts) = (call.input::<T>(0), call.input::<i64>(1), call.input::<T>(2));
            pick(&rows, table.data(), ghosts.data(), keys.data(), call.output::<T>(0).data_mut());
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [table, index] = saved.inputs else {
            unreachable!("the rule has two inputs")
        };
        saved.pull_back_to(0, cotangents, |dy| {
            let fold = FoldRows {
                picked: self.picked.clone(),
                how: ReduceOp::Sum,
                has_base: false,
                skips: self.padding.or(self.skips),
            };
            exec.apply1(Arc::new(fold), &[&table.detach(), index, dy])
        })
    }
}

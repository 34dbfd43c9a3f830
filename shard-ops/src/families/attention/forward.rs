//! Attention itself, and the merge of partial results over parts of the keys.

use super::NAME;
use super::backward::Backward;
use super::facing::{Facing, block};
use super::options::Attention;
use super::rule::{Extents, Masks, accesses, types};
use super::whole;
use crate::families::elementwise::cast;
use crate::host::{partial_type, with_stored};
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision, Result,
    Rule, Saved, Value,
};
use shard_comm::Element;
use shard_kernels::attention::{AttentionState, Stored, merge};
use shard_spec::Layout;
use smallvec::smallvec;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Forward {
    pub(crate) options: Attention,
    pub(super) masks: Masks,
}

impl Op for Forward {
    fn name(&self) -> &'static str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        self.options.key(NAME, self.masks)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let count = self.masks.end();
        if inputs.len() != count {
            return Err(OpError::arity(NAME, count.to_string(), inputs.len()));
        }
        let dtype = types(inputs, self.masks)?;
        let mask = self.masks.of(inputs);
        let at = Extents::new(&inputs[0], &inputs[1], &inputs[2], mask)?;
        let mut rule = Rule::builder(NAME, inputs)
            .any_order()
            .fold_by(self.options.fold_by);
        let a = accesses(&mut rule, &at, self.masks, inputs);
        let mut rule = rule
            .input(a.query.clone())
            .input(a.key.clone())
            .input(a.key);
        for side in a.mask.into_iter().chain(a.segments) {
            rule = rule.input(side);
        }
        let shape = smallvec![at.batch, at.heads, at.queries];
        rule.output(
            a.query,
            smallvec![at.batch, at.heads, at.queries, at.value_dim],
            dtype,
        )
        .output(a.sums, shape, partial_type(dtype))
        .linearity(Linearity::None)
        .flops(at.flops(1, 1))
        .merges()
        .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.inputs[0].dtype(), E => self.fold::<E>(call));
    }

    fn merge(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.dtype(), E => merge_parts::<E>(call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::ALL
    }

    fn advice(&self, layouts: &[&Layout]) -> Option<String> {
        super::advice::advice(&self.options, layouts)
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let inputs = saved.inputs.len();
        let Some(dout) = &cotangents[0] else {
            return Ok(vec![None; inputs]);
        };
        if exec.records() {
            return whole::gradients(exec, &self.options, self.masks, saved, dout);
        }
        let op = Backward {
            options: self.options,
            masks: self.masks,
            wants_mask: self.masks.is_added() && saved.needs[3],
        };
        let operands: Vec<&Value> = saved
            .inputs
            .iter()
            .chain(&saved.outputs[..2])
            .chain([dout])
            .collect();
        let grads = exec.apply(Arc::new(op), &operands)?;
        // Sums over ranks and blocks are taken in the type of the partial sums, and then rounded once.
        let rounded = |grad: Value| cast(exec, &grad, saved.inputs[0].dtype()).map(Some);
        let mut grads: Vec<Option<Value>> =
            grads.into_iter().map(rounded).collect::<Result<_>>()?;
        grads.resize(inputs, None);
        Ok(grads)
    }
}

impl Forward {
    fn fold<E: Stored + Element>(&self, call: &mut HostCall<'_, '_>)
    where
        E::Acc: Element + Stored<Acc = E::Acc>,
    {
        let boxes = &call.cx.inputs;
        let facing = Facing::new(&self.options, boxes);
        let problem = facing.problem::<E>(call, self.masks);
        let block = block(call, self.masks, facing.keys.get());
        let shape = &boxes[0].shape;
        let rows = [shape[0], shape[1], shape[2]];
        let mut state = match call
            .state
            .take()
            .map(|s| s.downcast::<AttentionState<E::Acc>>())
        {
            Some(Ok(state)) => *state,
            _ => AttentionState::new(rows, boxes[2].shape[3]),
        };
        state.fold(&problem, &block);
        if call.cx.fold.last {
            let mut lse = vec![<E::Acc as num_traits::Zero>::zero(); rows.iter().product()];
            // Partial results that are merged later are kept in the type of the sums.
            if call.dtype() == E::DTYPE {
                state.finish(&mut call.output::<E>(0), &mut lse);
            } else {
                state.finish(&mut call.output::<E::Acc>(0), &mut lse);
            }
            call.output::<E::Acc>(1).data_mut()[..lse.len()].copy_from_slice(&lse);
        } else {
            *call.state = Some(Box::new(state));
        }
    }
}

/// The results over all keys from those of each part, which lie along a first dim.
fn merge_parts<E: Stored + Element>(call: &mut HostCall<'_, '_>)
where
    E::Acc: Element,
{
    let (outs, sums) = (call.input::<E::Acc>(0), call.input::<E::Acc>(1));
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let (outs, sums) = (
        &outs.data()[..count(outs.shape())],
        &sums.data()[..count(sums.shape())],
    );
    let (mut out, mut lse) = call.output_pair::<E, E::Acc>();
    let rows = count(lse.shape());
    merge(outs, sums, &mut out, &mut lse.data_mut()[..rows]);
}

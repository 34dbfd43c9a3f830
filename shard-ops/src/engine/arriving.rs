//! Inputs on their way to where the kernels read them.

use super::{Run, note};
use crate::Result;
use crate::Strategy;
use crate::error::InOp;
use crate::strategy::InputMove;
use shard_comm::Buffer;
use shard_redistribute::{Array, ExchangeHandle};
use std::borrow::Cow;
use std::rc::Rc;

/// What comes for an input.
pub(super) enum Coming {
    /// A halo that was kept with the value when another op fetched it.
    Kept(Buffer),
    Flying(ExchangeHandle),
}

/// Posts an input's exchange, if it has one, unless the value has what it would bring.
pub(super) fn post(op: &'static str, step: &InputMove, array: &Array) -> Result<Option<Coming>> {
    let (Some(exchange), Some(local)) = (&step.exchange, array.buffer()) else {
        return Ok(None);
    };
    // Whether it was kept follows from the ops that were applied to the value, which are the same on all ranks.
    if let Some(halo) = &step.halo
        && let Some(kept) = array.kept::<Buffer>(halo.key)
    {
        return Ok(Some(Coming::Kept((*kept).clone())));
    }
    let pending = exchange
        .start(array.cx(), array.dtype(), std::slice::from_ref(local))
        .in_op(op)?;
    if pending.is_flying() {
        note(array.cx(), op, "post");
    }
    Ok(Some(Coming::Flying(pending)))
}

/// Posts every exchange but that of input `except` before any is waited for; empty where nothing moves, as in most ops.
pub(super) fn post_all(
    op: &'static str,
    strategy: &Strategy,
    inputs: &[&Array],
    except: Option<usize>,
) -> Result<Vec<Option<Coming>>> {
    if strategy.inputs.iter().all(|step| step.exchange.is_none()) {
        return Ok(Vec::new());
    }
    let steps = strategy.inputs.iter().zip(inputs).enumerate();
    let posted = steps.map(|(i, (step, array))| match except == Some(i) {
        true => Ok(None),
        false => post(op, step, array),
    });
    posted.collect()
}

impl Run<'_> {
    /// Waits for what is in flight, except for input `still`, and puts what arrived in place of the rank's own piece, or around it.
    pub(super) fn settle(
        &self,
        inputs: &[&Array],
        flying: &mut [Option<Coming>],
        buffers: &mut [Cow<'_, Buffer>],
        still: Option<usize>,
    ) -> Result<()> {
        let (cx, name) = (self.cx, self.op.name());
        for (i, (slot, buffer)) in flying.iter_mut().zip(buffers).enumerate() {
            if still == Some(i) {
                continue;
            }
            let Some(coming) = slot.take() else {
                continue;
            };
            let halo = self.strategy.inputs[i].halo.as_ref();
            let came = match coming {
                Coming::Kept(came) => came,
                Coming::Flying(pending) => {
                    let waits = pending.is_flying();
                    let came = pending.wait().in_op(name)?;
                    if waits {
                        note(cx, name, "wait");
                    }
                    if let Some(halo) = halo {
                        inputs[i].keep(halo.key, Rc::new(came.clone()));
                    }
                    came
                }
            };
            *buffer = Cow::Owned(match halo {
                Some(halo) => halo.put_together(name, cx.device(), buffer, &came)?,
                None => came,
            });
        }
        Ok(())
    }
}

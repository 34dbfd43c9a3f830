//! The gradient of attention.

use super::facing::{Facing, block};
use super::options::Attention;
use super::rule::{Extents, Masks, accesses, types};
use crate::host::{partial_type, with_stored};
use crate::{HostCall, Meta, Op, OperandBox, Reduction, Result, Rule};
use shard_comm::Element;
use shard_kernels::attention::{AttentionGrad, BlockGrad, PausedGrad, Stored};
use shard_spec::ReduceOp;
use smallvec::SmallVec;

/// The gradient: inputs are those of the op, its outputs and the cotangent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backward {
    pub(crate) options: Attention,
    pub(super) masks: Masks,
    pub(crate) wants_mask: bool,
}

impl Op for Backward {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn key(&self) -> u128 {
        let name = match self.wants_mask {
            true => "attention_grad with mask",
            false => "attention_grad",
        };
        self.options.key(name, self.masks)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let mask = self.masks.of(inputs);
        let dtype = partial_type(types(inputs, self.masks)?);
        let at = Extents::new(&inputs[0], &inputs[1], &inputs[2], mask)?;
        let mut rule = Rule::builder(self.name(), inputs)
            .any_order()
            .fold_by(self.options.fold_by);
        let a = accesses(&mut rule, &at, self.masks, inputs);
        let mut rule = rule
            .input(a.query.clone())
            .input(a.key.clone())
            .input(a.key.clone());
        for side in a.mask.iter().chain(&a.segments) {
            rule = rule.input(side.clone());
        }
        rule = rule
            .input(a.query.clone())
            .input(a.sums)
            .input(a.query.clone())
            .output(a.query, inputs[0].shape.clone(), dtype)
            .output(a.key.clone(), inputs[1].shape.clone(), dtype)
            .output(a.key, inputs[2].shape.clone(), dtype);
        if let (true, Some(dims), Some(mask)) = (self.wants_mask, a.mask, mask) {
            rule = rule.output(dims, mask.shape.clone(), dtype);
        }
        rule.reduction(Reduction::Partial(ReduceOp::Sum))
            .flops(at.flops(3, 2))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_stored!(call.inputs[0].dtype(), E => self.fold::<E>(call));
    }
}

impl Backward {
    fn fold<E: Stored + Element>(&self, call: &mut HostCall<'_, '_>)
    where
        E::Acc: Element + Stored<Acc = E::Acc>,
    {
        let boxes = &call.cx.inputs;
        let facing = Facing::new(&self.options, boxes);
        let problem = facing.problem::<E>(call, self.masks);
        let block = block(call, self.masks, facing.keys.get());
        let first = self.masks.end();
        let dout = call.input::<E>(first + 2);
        let paused = call
            .state
            .take()
            .map(|s| s.downcast::<PausedGrad<E::Acc>>());
        let mut grad = match paused {
            Some(Ok(paused)) => AttentionGrad::resume(*paused, dout),
            _ => {
                let lse = call.input::<E::Acc>(first + 1);
                let rows: usize = lse.shape().iter().product();
                let lse = &lse.data()[call.cx.inputs[first + 1].offset..][..rows];
                AttentionGrad::new(dout, &call.input::<E>(first), lse, boxes[0].shape[3])
            }
        };
        // Gradients of operands with a dim over keys are of another block each time; that of a mask that all keys share is not.
        let shared =
            |o: &OperandBox| o.global.len() == 4 && o.global[3] == 1 && boxes[1].global[2] > 1;
        let first = call.cx.fold.first;
        let fresh: SmallVec<[bool; 3]> = (call.cx.outputs[1..].iter().enumerate())
            .map(|(o, at)| first || o < 2 || !shared(at))
            .collect();
        let mut outputs = call.outputs_from::<E::Acc>(1).into_iter();
        for (view, starts) in outputs.as_mut_slice().iter_mut().zip(fresh) {
            if starts {
                view.data_mut().fill(<E::Acc as num_traits::Zero>::zero());
            }
        }
        let (Some(dk), Some(dv)) = (outputs.next(), outputs.next()) else {
            unreachable!("the rule has these outputs")
        };
        let dbias = outputs.next();
        grad.fold(&problem, &block, &mut BlockGrad { dk, dv, dbias });
        if call.cx.fold.last {
            grad.finish(&mut call.output::<E::Acc>(0));
        } else {
            *call.state = Some(Box::new(grad.pause()));
        }
    }
}

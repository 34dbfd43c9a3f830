//! Kernel calls on operands of 16 bits by kernels that compute in `f32`: a call gets copies of the boxes it reads, and what it writes is
//! rounded where it belongs.

use super::Applied;
use super::rows::{SharedWork, Work};
use crate::error::InOp;
use crate::host::partial_type;
use crate::strategy::Blocks;
use crate::{KernelCx, KernelPhase, OperandBox, Reduction, Result, Rule};
use shard_comm::{Buffer, BufferMut, DeviceRef, Monoid, Strided};
use shard_redistribute::MeshComm;
use shard_spec::{Dims, ReduceOp, numel, row_major_strides};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// As [`submit`](super::submit()), of calls whose kernels know no 16-bit floats. Calls that write to the same box one after the other
/// make terms of it, which are combined in `f32` and rounded once.
#[expect(
    clippy::too_many_arguments,
    reason = "the pieces of one call, passed on once"
)]
pub(super) fn submit(
    op: Applied<'_>,
    (rule, blocks): (&Rule, &Blocks),
    cx: &Rc<MeshComm>,
    phase: KernelPhase,
    whole: &Arc<Vec<KernelCx>>,
    work: Option<&SharedWork>,
    inputs: &[&Buffer],
    mut outputs: Vec<BufferMut>,
) -> Result<Vec<BufferMut>> {
    let (name, device) = (op.name, cx.device());
    // Kernels of ops without windows rely on boxes that are all of their memory, which blocks are not.
    let divided = whole.len() > 1 || blocks.count() > 1;
    let as_it_is = Applied { wide: None, ..op };
    let mut copies = Copies {
        name,
        device,
        rule,
        is_operands: phase == KernelPhase::Compute,
        divided,
        last: SmallVec::new(),
    };
    let mut homes = Homes {
        name,
        device,
        // Calls make terms only where the rule says how those of several ranks are combined.
        by: Monoid::Op(match rule.reduction {
            Some(Reduction::Partial(by)) => by,
            _ => ReduceOp::Sum,
        }),
        divided,
        // A call that is the only one makes whole results.
        rounds: rule.rounds && !divided && phase == KernelPhase::Compute,
        sums: outputs.iter().map(|_| None).collect(),
        before: SmallVec::new(),
    };
    let mut calls = (whole.iter())
        .flat_map(|call| blocks.calls(rule, call))
        .filter(|call| Work::needs(work, call))
        .peekable();
    while let Some(mut call) = calls.next() {
        let read = copies.read(&mut call, inputs)?;
        let read: SmallVec<[&Buffer; 4]> = read.iter().collect();
        let places = homes.places(&call);
        let away = homes.leave(&mut call, &places, &mut outputs)?;
        let alone = match call {
            Cow::Borrowed(_) if whole.len() == 1 => whole.clone(),
            call => Arc::new(vec![call.into_owned()]),
        };
        outputs = super::submit(as_it_is, cx, phase, &alone, work, &read, outputs)?;
        for away in away {
            let o = away.output;
            let next = calls.peek().map(|next| Place::of(&next.outputs[o]));
            let goes_on = next.is_some_and(|next| next == places[o]);
            homes.come_back(away, goes_on, &mut outputs[o])?;
        }
        homes.before = places;
    }
    Ok(outputs)
}

/// Where what calls write belongs.
struct Homes<'a> {
    name: &'static str,
    device: &'a DeviceRef,
    /// How terms are combined.
    by: Monoid,
    /// Whether there are several calls.
    divided: bool,
    /// Whether kernels round what they write.
    rounds: bool,
    /// The sums so far of terms of which others follow, by outputs.
    sums: SmallVec<[Option<BufferMut>; 1]>,
    /// Which boxes the last call wrote.
    before: SmallVec<[Place; 1]>,
}

/// An output that a call does not write where it belongs.
struct Away {
    output: usize,
    /// Where it belongs.
    home: BufferMut,
    at: Strided,
    /// Whether the call before wrote to the same box.
    is_term: bool,
}

impl Homes<'_> {
    /// The boxes that a call writes, if it makes parts or terms.
    fn places(&self, call: &KernelCx) -> SmallVec<[Place; 1]> {
        match self.divided {
            true => call.outputs.iter().map(Place::of).collect(),
            false => SmallVec::new(),
        }
    }

    /// Gives a call memory of its own for the outputs that it cannot write where they belong.
    fn leave(
        &self,
        call: &mut Cow<'_, KernelCx>,
        places: &[Place],
        outputs: &mut [BufferMut],
    ) -> Result<SmallVec<[Away; 2]>> {
        let mut away = SmallVec::new();
        for o in 0..call.outputs.len() {
            let (stored, len, at) = (outputs[o].dtype(), outputs[o].len(), &call.outputs[o]);
            let is_term = self.divided && self.before.get(o) == Some(&places[o]);
            if stored.is_half() && !self.rounds || is_term || self.divided && is_part(at, len) {
                let made = self.device.alloc(partial_type(stored), numel(&at.shape));
                let made = made.in_op(self.name)?;
                away.push(Away {
                    output: o,
                    home: std::mem::replace(&mut outputs[o], made),
                    at: at.strided(),
                    is_term,
                });
                lay_out(call, |call| &call.outputs[o], |call| &mut call.outputs[o]);
            }
        }
        Ok(away)
    }

    /// Puts what a call has written where it belongs, once no other term of it follows.
    fn come_back(&mut self, away: Away, goes_on: bool, output: &mut BufferMut) -> Result<()> {
        let (name, device, at) = (self.name, self.device, &away.at);
        let made = std::mem::replace(output, away.home);
        let line = Strided::contiguous(&at.shape);
        let sum = &mut self.sums[away.output];
        let all = match (away.is_term, sum.take()) {
            (false, _) => made,
            (true, Some(mut sum)) => {
                let folded = device.fold(self.by, &made.freeze(), &line, &mut sum, &line);
                folded.in_op(name)?;
                sum
            }
            // What stays `f32` is where it belongs already.
            (true, None) => {
                let folded = device.fold(self.by, &made.freeze(), &line, output, at);
                return folded.in_op(name);
            }
        };
        if goes_on {
            *sum = Some(all);
            return Ok(());
        }
        device.copy(&all.freeze(), &line, output, at).in_op(name)
    }
}

/// The copies of what calls read; one that the next call reads too is not made again.
struct Copies<'a> {
    name: &'static str,
    device: &'a DeviceRef,
    rule: &'a Rule,
    /// Whether what calls read are the rule's operands, and not parts that are merged.
    is_operands: bool,
    /// Whether parts of operands need memory of their own, whatever their type.
    divided: bool,
    last: SmallVec<[Option<(Strided, Buffer)>; 4]>,
}

impl Copies<'_> {
    /// What a call reads, where it now says.
    fn read(
        &mut self,
        call: &mut Cow<'_, KernelCx>,
        inputs: &[&Buffer],
    ) -> Result<SmallVec<[Buffer; 4]>> {
        self.last.resize(inputs.len(), None);
        let mut read = SmallVec::new();
        for (i, &input) in inputs.iter().enumerate() {
            // Rows of others, which follow the operands, are read in any case.
            let rule = self.rule;
            let is_copied = !rule.unread.contains(&i) && !rule.as_stored.contains(&i);
            let is_read = !self.is_operands || is_copied;
            let part = || self.divided && is_part(&call.inputs[i], input.len());
            if !is_read || !input.dtype().is_half() && !part() {
                read.push(input.clone());
                continue;
            }
            let at = call.inputs[i].strided();
            let copy = match self.last[i].take() {
                Some((place, copy)) if place == at => copy,
                // The memory of the last copy is free for this one.
                last => {
                    drop(last);
                    self.copy(input, &at)?
                }
            };
            self.last[i] = Some((at, copy.clone()));
            lay_out(call, |call| &call.inputs[i], |call| &mut call.inputs[i]);
            read.push(copy);
        }
        Ok(read)
    }

    fn copy(&self, input: &Buffer, at: &Strided) -> Result<Buffer> {
        let made = self.device.alloc(partial_type(input.dtype()), at.numel());
        let mut copy = made.in_op(self.name)?;
        let line = Strided::contiguous(&at.shape);
        (self.device.copy(input, at, &mut copy, &line)).in_op(self.name)?;
        Ok(copy.freeze())
    }
}

/// Which box of an output a call writes to.
#[derive(PartialEq)]
struct Place {
    offset: usize,
    shape: Dims,
}

impl Place {
    fn of(at: &OperandBox) -> Self {
        Self {
            offset: at.offset,
            shape: at.shape.clone(),
        }
    }
}

/// Whether a box is not all of its memory.
fn is_part(at: &OperandBox, len: usize) -> bool {
    at.offset != 0 || numel(&at.shape) != len
}

/// Has a call find an operand's box in memory of its own. Most boxes lie that way already, and their call is shared as it is.
fn lay_out(
    call: &mut Cow<'_, KernelCx>,
    operand: impl Fn(&KernelCx) -> &OperandBox,
    operand_mut: impl Fn(&mut KernelCx) -> &mut OperandBox,
) {
    let at = operand(call);
    let strides = row_major_strides(&at.shape);
    if at.offset != 0 || at.strides != strides {
        let at = operand_mut(call.to_mut());
        (at.offset, at.strides) = (0, strides);
    }
}

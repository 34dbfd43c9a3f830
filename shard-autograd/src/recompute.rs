//! Recomputation: a function's inputs are kept instead of everything inside it.

use crate::accumulate::Mover;
use crate::node::{Kind, Node, Outlet, Parents, Slot, on_tape};
use crate::pass::{Pass, Want};
use crate::recorder::Mode;
use crate::{AutogradError, Recorder, Result};
use shard_ops::Value;
use shard_redistribute::Array;
use smallvec::SmallVec;
use std::rc::Rc;

/// A function that can be run again.
pub(crate) type Body = dyn Fn(&Recorder, &[Value]) -> Result<Vec<Value>>;

/// Applies `f` to `inputs` and keeps only the inputs, as PyTorch's `checkpoint`. In a backward pass `f` runs again and is differentiated then.
///
/// `f` must compute the same thing both times, through the recorder it is given or a clone of it. Tracked values that `f`
/// captures, such as parameters, get their gradients as if they were inputs, and must not be [renewed](Recorder::renewed)
/// before the backward pass. A gradient hook inside `f` sees the cotangents of the second run.
///
/// # Collective
/// All ranks of the program.
///
/// # Errors
/// What `f` reports.
pub fn recompute(
    recorder: &Recorder,
    inputs: &[&Value],
    f: impl Fn(&Recorder, &[Value]) -> Result<Vec<Value>> + 'static,
) -> Result<Vec<Value>> {
    let mut parents = recorder.parents("recompute", inputs)?;
    // Both runs cast as the region here does, each by itself.
    let cast = recorder.autocasts_to();
    let body: Rc<Body> =
        Rc::new(move |tape: &Recorder, inputs: &[Value]| tape.cast_to(cast, || f(tape, inputs)));
    let detached: Vec<Value> = inputs.iter().map(|v| v.detach()).collect();
    if !recorder.is_recording() {
        // Inside an outer one the captured values belong to the outer one, which runs this function again.
        return body(recorder, &detached);
    }
    let (outputs, mode) = recorder.in_mode(Mode::Capture(Vec::new()), || body(recorder, &detached));
    let outputs = outputs?;
    let mut leaves = Vec::new();
    if let Mode::Capture(captured) = mode {
        // A captured value that `f` returns untouched was used by no op.
        let given = outputs.iter().filter_map(|v| recorder.own_slot(v));
        let mut known: SmallVec<[_; 4]> = parents.iter().flatten().map(|s| s.id()).collect();
        for slot in captured.into_iter().chain(given) {
            if let Some(version) = slot.node.version() {
                leaves.push((slot.clone(), version));
            }
            // Of a frozen leaf only its version counts.
            if !slot.frozen && !known.contains(&slot.id()) {
                known.push(slot.id());
                parents.push(Some(slot));
            }
        }
    }
    let mut outputs: Vec<Value> = outputs.iter().map(Value::detach).collect();
    let inputs = inputs.iter().map(|v| v.array().clone()).collect();
    recorder.record(parents, &mut outputs, |_| Kind::Recompute {
        body,
        inputs,
        captured: leaves,
    });
    Ok(outputs)
}

/// Refuses to run the function again with other parameters than it had the first time.
pub(crate) fn check_captured(captured: &[(Rc<Slot>, u64)]) -> Result<()> {
    let is_old = |(slot, version): &(Rc<Slot>, u64)| slot.node.version() == Some(*version);
    match captured.iter().all(is_old) {
        true => Ok(()),
        false => Err(AutogradError::Recompute {
            what:
                "results of a parameter whose value was replaced, or that was frozen or thawed, in between"
                    .into(),
        }),
    }
}

/// The function gets fresh values, so that the gradient of an input does not count what reaches it through another input: the nodes outside
/// do that. The fresh values are made by moves that change nothing, which connect them to the originals, for derivatives of this derivative.
fn fresh_inputs(recorder: &Recorder, node: &Node, inputs: &[Array]) -> Vec<Value> {
    let fresh = |(array, parent): (&Array, &Option<Rc<Slot>>)| match parent {
        None => Value::new(array.clone()),
        Some(slot) => {
            let copy = Node::new(
                recorder.census(),
                Kind::Pass,
                Parents::from_iter([Some(slot.clone())]),
                SmallVec::from_buf([Outlet::of(array)]),
            );
            on_tape(array.clone(), &copy, 0)
        }
    };
    inputs.iter().zip(&node.parents).map(fresh).collect()
}

/// Runs the function again on the tape, and goes back through it.
pub(crate) fn vjp(
    mover: Mover<'_>,
    node: &Node,
    body: &Rc<Body>,
    inputs: &[Array],
    cotangents: &[Option<Value>],
) -> Result<Vec<Option<Value>>> {
    let recorder = mover.recorder;
    let fresh = fresh_inputs(recorder, node, inputs);
    let floor = recorder.next_id();
    let outputs = recorder.in_mode(Mode::Again, || body(recorder, &fresh)).0?;
    check_again(node, &outputs)?;
    let seeds = (outputs.iter().zip(cotangents))
        .filter_map(|(output, cotangent)| Some((recorder.own_slot(output)?, cotangent.clone()?)))
        .collect();
    let (found, _) = Pass {
        recorder,
        recorded: mover.recorded,
        want: Want::Older,
        floor,
    }
    .run(seeds)?;
    let mut found: Vec<_> = found
        .into_iter()
        .map(|(id, f)| (id, Some(f.value)))
        .collect();
    let mut take = |slot: &Slot| {
        (found.iter_mut())
            .find(|(id, value)| *id == slot.id() && value.is_some())
            .and_then(|(_, value)| value.take())
    };
    let mut terms = Vec::with_capacity(node.parents.len());
    for (i, parent) in node.parents.iter().enumerate() {
        let slot = match fresh.get(i) {
            Some(value) => recorder.own_slot(value),
            None => parent.clone(),
        };
        terms.push(slot.and_then(|slot| take(&slot)));
    }
    match found.iter().any(|(_, value)| value.is_some()) {
        true => Err(AutogradError::Recompute {
            what: "a derivative for a value that it had not used before, or that was frozen then"
                .into(),
        }),
        false => Ok(terms),
    }
}

fn check_again(node: &Node, outputs: &[Value]) -> Result<()> {
    if outputs.len() != node.outlets.len() {
        let what = format!(
            "{} outputs instead of {}",
            outputs.len(),
            node.outlets.len()
        );
        return Err(AutogradError::Recompute { what });
    }
    for (i, (now, then)) in outputs.iter().zip(&node.outlets).enumerate() {
        if *now.layout() != *then.layout || now.dtype() != then.dtype {
            let what = format!(
                "output {i} as {:?} {} {} instead of {:?} {} {}",
                now.shape(),
                now.dtype(),
                now.layout(),
                then.layout.shape(),
                then.dtype,
                then.layout
            );
            return Err(AutogradError::Recompute { what });
        }
    }
    Ok(())
}

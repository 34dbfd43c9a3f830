//! Kernel calls on the device where the arrays live, whatever it is.

use super::rows::{SharedWork, Work};
use super::{Applied, widened};
use crate::error::InOp;
use crate::families::cast_op;
use crate::{
    DeviceCall, DeviceKernel, Fold, HostCall, KernelCx, KernelPhase, KernelPolicy, Op, OperandBox,
    Result,
};
use shard_comm::{
    Buffer, BufferMut, DType, Host, HostJob, HostSlice, HostSliceMut, Work as Amount,
};
use shard_redistribute::MeshComm;
use std::rc::Rc;
use std::sync::Arc;

/// Runs an op's calls over their boxes, in stream order. Those that leave something behind have a place for it in `work`.
pub(super) fn submit(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    phase: KernelPhase,
    calls: &Arc<Vec<KernelCx>>,
    work: Option<&SharedWork>,
    inputs: &[&Buffer],
    mut outputs: Vec<BufferMut>,
) -> Result<Vec<BufferMut>> {
    if let Some(wide) = op.wide {
        return widened::submit(op, wide, cx, phase, calls, work, inputs, outputs);
    }
    if submit_now(op, cx, phase, calls, work, inputs, &mut outputs)? {
        return Ok(outputs);
    }
    let (name, device) = (op.name, cx.device());
    if let Some(kernel) = op.op.kernel(device.kind()) {
        let inputs = handles(inputs);
        return on_device(op, kernel, cx, phase, calls, work, &inputs, outputs);
    }
    let much = amount(phase, calls, &outputs);
    let (op, calls, work) = (op.op.clone(), calls.clone(), work.cloned());
    let job = HostJob::new(name, much, move |inputs, outputs| {
        on_host(&*op, phase, &calls, work.as_ref(), inputs, outputs);
    });
    let inputs = handles(inputs);
    if !device.runs_host_jobs() {
        return by_host(name, cx, job, &inputs, outputs);
    }
    device.submit(inputs, outputs, job).in_op(name)
}

/// As [`submit`], of operands that kernels get as they are, where the device does the work of the host when it is asked for. Returns
/// false, and has done nothing, elsewhere.
pub(super) fn submit_now(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    phase: KernelPhase,
    calls: &[KernelCx],
    work: Option<&SharedWork>,
    inputs: &[&Buffer],
    outputs: &mut [BufferMut],
) -> Result<bool> {
    let device = cx.device();
    if op.op.kernel(device.kind()).is_some() {
        return Ok(false);
    }
    let much = amount(phase, calls, outputs);
    let ran = device.run_now(op.name, much, inputs, outputs, &mut |inputs, outputs| {
        on_host(&**op.op, phase, calls, work, inputs, outputs);
    });
    ran.in_op(op.name)
}

/// How much work the calls are.
fn amount(phase: KernelPhase, calls: &[KernelCx], outputs: &[BufferMut]) -> Amount {
    match phase {
        KernelPhase::WriteRows => Amount::moving(outputs.iter().map(BufferMut::bytes).sum()),
        _ => calls.iter().map(|call| call.work).sum(),
    }
}

/// Handles that may outlive those at hand.
fn handles(buffers: &[&Buffer]) -> Vec<Buffer> {
    buffers.iter().map(|&buffer| buffer.clone()).collect()
}

/// The calls of an op's host kernel.
#[inline(always)]
fn on_host(
    op: &dyn Op,
    phase: KernelPhase,
    calls: &[KernelCx],
    work: Option<&SharedWork>,
    inputs: &[HostSlice<'_>],
    outputs: &mut [HostSliceMut<'_>],
) {
    match work {
        Some(shared) => Work::with(shared, |work| {
            with_work(op, phase, calls, work, inputs, outputs);
        }),
        None => with_work(op, phase, calls, &mut Work::default(), inputs, outputs),
    }
}

#[inline(always)]
fn with_work(
    op: &dyn Op,
    phase: KernelPhase,
    calls: &[KernelCx],
    work: &mut Work,
    inputs: &[HostSlice<'_>],
    outputs: &mut [HostSliceMut<'_>],
) {
    for cx in calls {
        if phase == KernelPhase::Compute && !work.has_to_see(cx) {
            continue;
        }
        let mut call = HostCall {
            cx,
            inputs,
            outputs,
            state: &mut work.state,
            rows: &mut work.rows,
        };
        match phase {
            KernelPhase::Compute => op.host(&mut call),
            KernelPhase::WriteRows => op.write_rows(&mut call),
            KernelPhase::Merge => op.merge(&mut call),
        }
    }
}

/// A copy of all elements of some memory in another type.
pub(super) fn converted(cx: &Rc<MeshComm>, from: &Buffer, to: DType) -> Result<Buffer> {
    let cast = cast_op(to);
    let len = from.len();
    let made = cx.device().alloc(to, len).in_op(cast.name())?;
    if len == 0 {
        return Ok(made.freeze());
    }
    let all = OperandBox::line(len);
    let call = KernelCx {
        inputs: vec![all.clone()],
        outputs: vec![all],
        adds_once: true,
        fold: Fold::ONLY,
        work: Amount::moving(from.bytes() + len * to.size()),
        is_part: false,
        line: None,
    };
    let applied = Applied {
        op: &cast,
        name: cast.name(),
        kernels: KernelPolicy::default(),
        wide: None,
    };
    let calls = Arc::new(vec![call]);
    let mut made = submit(
        applied,
        cx,
        KernelPhase::Compute,
        &calls,
        None,
        &[from],
        vec![made],
    )?;
    Ok(made.remove(0).freeze())
}

/// The calls of a device's own kernel.
#[expect(
    clippy::too_many_arguments,
    reason = "the pieces of one call, passed on once"
)]
fn on_device(
    op: Applied<'_>,
    kernel: &dyn DeviceKernel,
    cx: &Rc<MeshComm>,
    phase: KernelPhase,
    calls: &[KernelCx],
    work: Option<&SharedWork>,
    inputs: &[Buffer],
    mut outputs: Vec<BufferMut>,
) -> Result<Vec<BufferMut>> {
    let mut run = |work: &mut Work| {
        for call in calls {
            if phase == KernelPhase::Compute && !work.has_to_see(call) {
                continue;
            }
            let call = DeviceCall {
                op: op.name,
                cx: call,
                device: cx.device(),
                policy: op.kernels,
                ledger: cx.world().ledger(),
                inputs,
                outputs: &mut outputs,
                state: &mut work.state,
                rows: &mut work.rows,
            };
            kernel.run(phase, call)?;
        }
        Ok(())
    };
    match work {
        Some(shared) => Work::with(shared, run),
        None => run(&mut Work::default()),
    }?;
    Ok(outputs)
}

/// A job of the host on memory of a device that it cannot reach: there and back, which the ledger counts.
fn by_host(
    op: &'static str,
    cx: &Rc<MeshComm>,
    job: HostJob,
    inputs: &[Buffer],
    outputs: Vec<BufferMut>,
) -> Result<Vec<BufferMut>> {
    let (device, host) = (cx.device(), Host::new());
    let mut bytes = 0;
    let mut fetch = |buffer: &Buffer| {
        bytes += buffer.bytes();
        let elements = device.download(buffer).in_op(op)?;
        host.upload(buffer.dtype(), &elements).in_op(op)
    };
    let here = inputs.iter().map(&mut fetch).collect::<Result<Vec<_>>>()?;
    let mut results = Vec::with_capacity(outputs.len());
    // What earlier calls wrote stays.
    for output in outputs {
        let (dtype, copy) = (output.dtype(), fetch(&output.freeze())?);
        let own = host.upload(dtype, copy.as_bytes().in_op(op)?).in_op(op)?;
        results.extend(own.into_mut().ok());
    }
    let results = host.submit(here, results, job).in_op(op)?;
    let back = results.into_iter().map(|result| {
        let result = result.freeze();
        bytes += result.bytes();
        let elements = result.as_bytes().in_op(op)?;
        let uploaded = device.upload(result.dtype(), elements).in_op(op)?;
        Ok(uploaded.into_mut().ok())
    });
    let back: Result<Vec<Option<BufferMut>>> = back.collect();
    let back = back?.into_iter().flatten().collect();
    cx.world().ledger().fell_back(bytes as u64);
    Ok(back)
}

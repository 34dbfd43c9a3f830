//! Kernel calls on the device where the arrays live, whatever it is.

use super::Applied;
use super::rows::{SharedWork, Work};
use crate::error::InOp;
use crate::families::cast_op;
use crate::{
    DeviceCall, DeviceKernel, Fold, HostCall, KernelCx, KernelPolicy, OperandBox, Result, Stage,
};
use shard_comm::{Buffer, BufferMut, DType, Host, HostJob, Work as Amount};
use shard_redistribute::MeshComm;
use std::rc::Rc;
use std::sync::Arc;

/// Runs an op's calls over their boxes, in stream order. Those that leave something behind have a place for it in `work`.
pub(super) fn submit(
    op: Applied<'_>,
    cx: &Rc<MeshComm>,
    stage: Stage,
    calls: Arc<Vec<KernelCx>>,
    work: Option<&SharedWork>,
    inputs: Vec<Buffer>,
    outputs: Vec<BufferMut>,
) -> Result<Vec<BufferMut>> {
    let inputs = match op.wide {
        true => widened(cx, inputs)?,
        false => inputs,
    };
    if let Some(kernel) = op.op.kernel(cx.device().kind()) {
        return on_device(op, kernel, cx, stage, &calls, work, &inputs, outputs);
    }
    let (job_op, work) = (op.op.clone(), work.cloned());
    let much = match stage {
        Stage::WriteRows => Amount::moving(outputs.iter().map(BufferMut::bytes).sum()),
        _ => calls.iter().map(|call| call.work).sum(),
    };
    let job = HostJob::new(op.name(), much, move |inputs, outputs| {
        let mut run = |work: &mut Work| {
            for cx in calls.iter() {
                if stage == Stage::Compute && !work.has_to_see(cx) {
                    continue;
                }
                let mut call = HostCall {
                    cx,
                    inputs,
                    outputs,
                    state: &mut work.state,
                    rows: &mut work.rows,
                };
                match stage {
                    Stage::Compute => job_op.host(&mut call),
                    Stage::WriteRows => job_op.write_rows(&mut call),
                    Stage::Merge => job_op.merge(&mut call),
                }
            }
        };
        match &work {
            Some(shared) => Work::with(shared, run),
            None => run(&mut Work::default()),
        }
    });
    if !cx.device().runs_host_jobs() {
        return by_host(op.name(), cx, job, &inputs, outputs);
    }
    cx.device().submit(inputs, outputs, job).in_op(op.name())
}

/// The inputs, those of 16 bits as `f32`.
fn widened(cx: &Rc<MeshComm>, inputs: Vec<Buffer>) -> Result<Vec<Buffer>> {
    let each = inputs.into_iter().map(|input| match input.dtype() {
        DType::F16 | DType::BF16 => converted(cx, &input, DType::F32),
        _ => Ok(input),
    });
    each.collect()
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
    };
    let applied = Applied {
        op: &cast,
        kernels: KernelPolicy::default(),
        wide: false,
    };
    let (calls, inputs) = (Arc::new(vec![call]), vec![from.clone()]);
    let mut made = submit(applied, cx, Stage::Compute, calls, None, inputs, vec![made])?;
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
    stage: Stage,
    calls: &[KernelCx],
    work: Option<&SharedWork>,
    inputs: &[Buffer],
    mut outputs: Vec<BufferMut>,
) -> Result<Vec<BufferMut>> {
    let mut run = |work: &mut Work| {
        for call in calls {
            if stage == Stage::Compute && !work.has_to_see(call) {
                continue;
            }
            let call = DeviceCall {
                op: op.name(),
                cx: call,
                device: cx.device(),
                policy: op.kernels,
                ledger: cx.world().ledger(),
                inputs,
                outputs: &mut outputs,
                state: &mut work.state,
                rows: &mut work.rows,
            };
            kernel.run(stage, call)?;
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

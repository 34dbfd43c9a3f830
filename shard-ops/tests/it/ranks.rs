//! Ranks that each have an engine, the layouts that their values may have, and what came of them.

#[cfg(feature = "cuda")]
use shard_comm::cuda::{Availability, availability};
use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DeviceKind};
use shard_ops::{Engine, EngineOptions, Exec, Value};
use shard_redistribute::MeshComm;
use shard_spec::{DeviceMesh, Layout, Partition};
use std::rc::Rc;

/// Runs `f` on every rank of a mesh with an engine.
pub(crate) fn on_ranks<T: Send>(
    shape: &[usize],
    f: impl Fn(&Rc<MeshComm>, &Engine) -> T + Sync,
) -> Vec<T> {
    on_device(DeviceKind::Host, shape, f)
}

/// The same on devices of a kind.
pub(crate) fn on_device<T: Send>(
    device: DeviceKind,
    shape: &[usize],
    f: impl Fn(&Rc<MeshComm>, &Engine) -> T + Sync,
) -> Vec<T> {
    launched(device, shape, &f)
}

/// Not generic over functions: the launch is compiled for each type of results, not for each call.
fn launched<T: Send>(
    device: DeviceKind,
    shape: &[usize],
    f: &(dyn Fn(&Rc<MeshComm>, &Engine) -> T + Sync),
) -> Vec<T> {
    let mesh = DeviceMesh::new(shape).unwrap();
    let options = LocalOptions {
        device,
        ..LocalOptions::default()
    };
    local::run_with(mesh.size(), &options, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        f(&cx, &Engine::new(EngineOptions::default()))
    })
    .unwrap()
}

/// Kinds of GPUs: the emulated one where it is built, and the real one where there is one.
#[cfg(feature = "cuda")]
pub(crate) fn gpus() -> Vec<DeviceKind> {
    let mut kinds = Vec::new();
    if cfg!(feature = "cuda-emulated") {
        kinds.push(DeviceKind::EmulatedCuda);
    }
    if matches!(availability(), Availability::Ready { .. }) {
        kinds.push(DeviceKind::Cuda);
    }
    kinds
}

/// All ways to share a shape out over the axes of a mesh: what each axis does, and how dims are divided.
pub(crate) fn layouts(mesh: &DeviceMesh, shape: &[usize]) -> Vec<Layout> {
    let choices = shape.len() + 1;
    let mut found = Vec::new();
    for pick in 0..choices.pow(mesh.ndim() as u32) {
        let mut axes: Vec<Vec<usize>> = vec![Vec::new(); shape.len()];
        let mut rest = pick;
        for axis in 0..mesh.ndim() {
            if let Some(of) = axes.get_mut(rest % choices) {
                of.push(axis);
            }
            rest /= choices;
        }
        for style in 0..4 {
            let mut builder = Layout::builder(mesh, shape);
            for (d, axes) in axes.iter().enumerate().filter(|(_, axes)| !axes.is_empty()) {
                let parts = mesh.part_count(axes);
                builder = builder.shard(d, axes, partition(shape[d], parts, style));
            }
            found.push(builder.build().unwrap());
            if pick == choices.pow(mesh.ndim() as u32) - 1 {
                break;
            }
        }
    }
    found
}

fn partition(n: usize, parts: usize, style: usize) -> Partition {
    let mut sizes = vec![0; parts];
    match style {
        0 => return Partition::chunk(n, parts),
        1 => {
            sizes[0] = n / 3;
            sizes[parts - 1] += n - n / 3;
        }
        2 => sizes[parts / 2] = n,
        _ => return Partition::striped(n, parts),
    }
    Partition::from_sizes(&sizes).unwrap()
}

/// All elements of a value.
pub(crate) fn whole(exec: &dyn Exec, v: &Value) -> Vec<f64> {
    let to = Layout::replicated(v.layout().mesh(), v.shape());
    exec.redistribute(v, &to).unwrap().array().to_vec().unwrap()
}

/// Bytes that a rank receives while `f` runs.
pub(crate) fn received(cx: &Rc<MeshComm>, f: impl FnOnce()) -> u64 {
    let before = cx.world().ledger().snapshot();
    f();
    cx.world().ledger().since(&before).bytes
}

//! Ranks that each have an engine.

#[cfg(feature = "cuda")]
use shard_comm::cuda::{Availability, availability};
use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DeviceKind};
use shard_ops::{Engine, EngineOptions};
use shard_redistribute::MeshComm;
use shard_spec::DeviceMesh;
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

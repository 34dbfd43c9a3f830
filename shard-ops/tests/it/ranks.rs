//! Ranks that each have an engine.

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

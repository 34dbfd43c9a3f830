//! Running a function on the ranks of a mesh.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shard_comm::local::{self, ByRank};
#[cfg(feature = "nccl")]
use shard_comm::nccl;
use shard_comm::{Communicator, DeviceKind, LaunchError};
use shard_redistribute::MeshComm;
use shard_spec::DeviceMesh;
use std::rc::Rc;

/// Where arrays live during a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum On {
    /// Ordinary memory.
    Host,
    /// Memory the host cannot read, behind a lazy queue: finds missing synchronisation.
    TestDevice,
    /// A GPU, all ranks on it if there is but one.
    Cuda,
    /// The emulation of one.
    EmulatedCuda,
    /// GPUs, between which NCCL moves.
    #[cfg(feature = "nccl")]
    Nccl,
    /// The emulation of GPUs and of NCCL.
    #[cfg(feature = "nccl")]
    EmulatedNccl,
}

/// Runs `f` on every rank of a mesh and returns what each gave, in rank order.
///
/// Ranks are threads of this process. Where [properties](mod@crate::properties) run on processes, they are those, or threads of the
/// first if it takes more, or memory is not ordinary; all processes get the results.
///
/// # Panics
/// If a rank panics or the group breaks, with what the first rank said: this is for tests.
pub fn on_mesh<T: Send + Serialize + DeserializeOwned>(
    mesh: &DeviceMesh,
    on: On,
    f: impl Fn(&Rc<MeshComm>) -> T + Sync,
) -> Vec<T> {
    #[cfg(feature = "mpi")]
    if let Some(results) = crate::job::on_mesh(mesh, on, &f) {
        return results;
    }
    on_threads(mesh, on, f)
}

/// As [`on_mesh`], where ranks are threads in any case.
///
/// # Panics
/// As [`on_mesh`].
pub fn on_threads<T: Send>(
    mesh: &DeviceMesh,
    on: On,
    f: impl Fn(&Rc<MeshComm>) -> T + Sync,
) -> Vec<T> {
    let ranks = mesh.ranks().iter().max().map_or(0, |&r| r + 1);
    let given = ByRank::default();
    // Not generic: properties are many, and each would compile the launch for its own function.
    let ran = launched(ranks, on, &|world| match MeshComm::new(&world, mesh) {
        Ok(cx) => given.keep(world.rank(), f(&cx)),
        Err(error) => panic!("no communicators for {mesh:?}: {error}"),
    });
    match ran {
        Ok(()) => given.into_values(),
        Err(error) => panic!("{error}"),
    }
}

/// Runs `f` on ranks that are threads, with what moves their elements.
pub(crate) fn run_threads<T: Send>(
    ranks: usize,
    on: On,
    f: impl Fn(Rc<dyn Communicator>) -> T + Sync,
) -> Result<Vec<T>, LaunchError> {
    let given = ByRank::default();
    launched(ranks, on, &|world| given.keep(world.rank(), f(world)))?;
    Ok(given.into_values())
}

fn launched(
    ranks: usize,
    on: On,
    f: &(dyn Fn(Rc<dyn Communicator>) + Sync),
) -> Result<(), LaunchError> {
    #[cfg(feature = "nccl")]
    if matches!(on, On::Nccl | On::EmulatedNccl) {
        let options = nccl::NcclOptions {
            device: options(on).device,
            ..nccl::NcclOptions::default()
        };
        return nccl::run(ranks, &options, |comm| f(Rc::new(comm))).map(drop);
    }
    local::run_with(ranks, &options(on), |comm| f(Rc::new(comm))).map(drop)
}

fn options(on: On) -> local::LocalOptions {
    let device = match on {
        On::Host => DeviceKind::Host,
        On::TestDevice => DeviceKind::Test,
        On::Cuda => DeviceKind::Cuda,
        On::EmulatedCuda => DeviceKind::EmulatedCuda,
        #[cfg(feature = "nccl")]
        On::Nccl => DeviceKind::Cuda,
        #[cfg(feature = "nccl")]
        On::EmulatedNccl => DeviceKind::EmulatedCuda,
    };
    local::LocalOptions {
        device,
        ..local::LocalOptions::default()
    }
}

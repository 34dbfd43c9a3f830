//! Running one program on several ranks.

use crate::processes::{self, Processes};
use crate::{Context, Error, Result};
use shard_comm::local::{self, Binding, ByRank, Interleaving};
use shard_comm::{Checks, CommError, Communicator, DType, DeviceFactory, DeviceKind, Fault, Past};
use shard_comm::{checked, faulty};
use std::rc::Rc;
use std::time::Duration;

#[cfg(feature = "mpi")]
mod on_processes;
mod over;
#[cfg(feature = "nccl")]
mod over_nccl;

pub use over::RankProgram;

/// What moves elements between ranks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Backend {
    /// What joins ranks anyway: memory where they are threads, MPI where they are processes.
    #[default]
    Own,
    /// NVIDIA's NCCL, between ranks with a GPU each ([`DeviceKind::Cuda`]); what joins them anyway finds out whether they
    /// agree. Needs the feature `nccl`, and the library at run time.
    Nccl,
}

/// What a rank may return from a [`launch`]: whatever may leave its thread.
///
/// Tensors and meshes may not, for their communicators stay with their rank: return arrays or numbers.
///
/// ```compile_fail
/// // error: a rank cannot return `ShardTensor`
/// let x = shard_tensor::launch(2, |ctx| ctx.mesh_of(2)?.ones([3], shard_tensor::shard(0)));
/// ```
#[diagnostic::on_unimplemented(
    message = "a rank cannot return `{Self}`: it belongs to the rank's own thread",
    label = "this program returns it",
    note = "tensors, meshes and contexts end with their rank; return arrays (`x.to_array::<f32>()?`), numbers (`x.item()?`) \
            or texts instead, or save tensors with `checkpoint::save`"
)]
pub trait Returned: Send {}

#[diagnostic::do_not_recommend]
impl<T: Send> Returned for T {}

/// What each rank runs, and keeps what it returned.
type OneRank<'a> = dyn Fn(&Context) -> Result<()> + Sync + 'a;

/// Runs `program` on `ranks` ranks, and gives what each of this process returned, in rank order.
///
/// Ranks are threads of this process: the result is all of theirs. Where a launcher (`mpirun`, `srun`) started several
/// processes, which needs the feature `mpi`, ranks are processes, and each process gets what its own rank returned. If
/// there are more processes than ranks, the last ones get nothing, at once. So a program that prints what `launch`
/// returns prints the same either way; what is to be printed once, rank 0 returns or prints.
///
/// # Errors
/// If a rank returns an error or panics, the cause: not what the other ranks heard of it. It names its rank unless
/// all ranks returned the same. An error ends the job if ranks are processes: the process of the rank it began at returns
/// it, and the others end with that process.
///
/// It is compared in the end what each rank did on each mesh (of the last 64): if one made other calls than the others
/// (another learning rate, one step more) and nothing has been sent since, that is an error, not results of different programs.
///
/// So what may fail on one rank belongs into `program`. If a process ends by itself after `launch`, because of what only
/// rank 0 found in the result, and the others launch again, their launch fails: that process left the job.
///
/// Several processes that cannot work together are a [`LaunchError::Processes`](shard_comm::LaunchError::Processes):
/// they never each run the program alone.
///
/// ```
/// let squares = shard_tensor::launch(3, |ctx| Ok(ctx.rank() * ctx.rank()))?;
/// assert_eq!(squares, [0, 1, 4]);
///
/// let lost = shard_tensor::launch(3, |ctx| match ctx.rank() {
///     1 => Err(shard_tensor::Error::custom("no such file")),
///     _ => Ok(ctx.world().barrier()?),
/// });
/// assert_eq!(lost.unwrap_err().to_string(), "rank 1: no such file");
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub fn launch<T: Returned>(
    ranks: usize,
    program: impl Fn(&Context) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    Launch::new(ranks).run(program)
}

/// How to run a program on several ranks; see [`launch`].
///
/// ```
/// use shard_tensor::{DType, Launch};
/// let sums = Launch::new(2).seed(7).dtype(DType::F64).run(|ctx| {
///     ctx.mesh_of(2)?.ones([3], [shard_tensor::shard(0)])?.sum(&[0], false)?.item()
/// })?;
/// assert_eq!(sums, [3.0, 3.0]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Launch {
    ranks: usize,
    device: DeviceKind,
    devices: Option<DeviceFactory>,
    backend: Backend,
    seed: u64,
    dtype: DType,
    explicit_moves: bool,
    interleaving: Interleaving,
    binding: Binding,
    host_fallback: bool,
    timeout: Option<Duration>,
    faults: Vec<Fault>,
}

impl Launch {
    /// This many ranks, on the host, with seed 0 and single precision.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            device: DeviceKind::Host,
            devices: None,
            backend: Backend::default(),
            seed: 0,
            dtype: DType::F32,
            explicit_moves: false,
            interleaving: Interleaving::Free,
            binding: Binding::None,
            host_fallback: false,
            timeout: None,
            faults: Vec::new(),
        }
    }

    /// As many ranks as the launcher started processes; without one, as the variable `SHARD_RANKS` says; without that,
    /// `ranks`.
    ///
    /// # Errors
    /// [`LaunchError::Processes`](shard_comm::LaunchError::Processes) if `SHARD_RANKS` is no number.
    pub fn from_env(ranks: usize) -> Result<Self> {
        let wanted = processes::number("SHARD_RANKS", "set it to the number of ranks")?;
        let wanted = wanted.map_or(ranks, |n| usize::try_from(n).unwrap_or(usize::MAX));
        Ok(Self::new(
            Processes::started().map_or(wanted, |started| started.count),
        ))
    }

    /// How long a rank waits for others before it gives up, where that cannot be found out exactly: between processes, and if a
    /// rank that is a thread computes for ever or is held up by a lock. Between processes ten minutes unless said here or, in
    /// seconds, by the variable `SHARD_TIMEOUT`; for threads as long as it takes, with a warning after 30 seconds of who waits
    /// where, unless said so. 0 is for ever.
    ///
    /// ```
    /// use shard_tensor::Launch;
    /// use std::{sync::Mutex, time::Duration};
    /// let log = Mutex::new(Vec::new());
    /// let lost = Launch::new(2).timeout(Duration::from_millis(50)).run(|ctx| {
    ///     let mut log = log.lock().unwrap_or_else(|e| e.into_inner());
    ///     let x = ctx.mesh_of(2)?.ones([4], shard_tensor::shard(0))?;
    ///     log.push(x.sum_all()?.item()?); // waits for the other rank, which waits for the lock
    ///     Ok(())
    /// });
    /// let error = lost.unwrap_err().to_string();
    /// assert!(error.contains("timed out"), "{error}");
    /// assert!(error.contains("is not waiting"), "{error}");
    /// ```
    ///
    /// The ranks that wait get the error, and return it. A rank that is a thread and makes no call for as long again cannot be
    /// stopped: then the process prints the error and ends with the exit code 1, as those of `mpirun` do.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self {
            timeout: Some(timeout),
            ..self
        }
    }

    /// Another kind of device for every rank.
    pub fn device(self, device: DeviceKind) -> Self {
        Self { device, ..self }
    }

    /// Devices of your own for ranks that are threads: what [`DeviceKind::Other`] names, or different ones.
    ///
    /// ```
    /// use shard_tensor::{DeviceFactory, Launch, shard};
    /// let devices = DeviceFactory::new(|_rank| Ok(shard_comm::TestDevice::new()));
    /// let sums = Launch::new(2).devices(devices).run(|ctx| {
    ///     ctx.mesh_of(2)?.ones([3], shard(0))?.sum(0, false)?.item()
    /// })?;
    /// assert_eq!(sums, [3.0, 3.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn devices(self, devices: DeviceFactory) -> Self {
        Self {
            devices: Some(devices),
            ..self
        }
    }

    /// What moves elements between ranks.
    pub fn backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// The seed of all random numbers.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The element type of tensors made from nothing.
    pub fn dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// See [`Context::explicit_moves`].
    pub fn explicit_moves(self, on: bool) -> Self {
        Self {
            explicit_moves: on,
            ..self
        }
    }

    /// Whether the ranks run all at once, as the system lets them, or one at a time in an order that can be had again: a
    /// program that goes wrong with a seed goes wrong with it each time. For ranks that are threads; processes run as the
    /// system lets them.
    ///
    /// ```
    /// use shard_tensor::{Interleaving, Launch};
    /// use std::sync::Mutex;
    /// // Ranks that share more than tensors may meet in any order, but with a seed always in the same.
    /// let order = |seed| {
    ///     let seen = Mutex::new(Vec::new());
    ///     Launch::new(3).interleaving(Interleaving::Seeded(seed)).run(|ctx| {
    ///         for _ in 0..3 {
    ///             seen.lock().unwrap().push(ctx.rank());
    ///             ctx.world().barrier()?;
    ///         }
    ///         Ok(())
    ///     })?;
    ///     Ok::<_, shard_tensor::Error>(seen.into_inner().unwrap())
    /// };
    /// assert_eq!(order(7)?, order(7)?);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn interleaving(self, interleaving: Interleaving) -> Self {
        Self {
            interleaving,
            ..self
        }
    }

    /// What goes wrong on purpose: for tests that a program ends with the right result or with an error that names the cause, and
    /// does not hang. Operations are numbered and their elements summed meanwhile, so that what is lost, twice or other than
    /// sent is found.
    ///
    /// ```
    /// use shard_tensor::{Fault, FaultKind, Launch, shard};
    /// let lost = Fault { rank: 1, call: 2, kind: FaultKind::Drop };
    /// let error = Launch::new(2).faults([lost]).run(|ctx| {
    ///     ctx.mesh_of(2)?.ones([4], shard(0))?.sum_all()?.item()
    /// });
    /// assert!(error.unwrap_err().to_string().contains("rank 0 waits"));
    /// ```
    pub fn faults(self, faults: impl Into<Vec<Fault>>) -> Self {
        Self {
            faults: faults.into(),
            ..self
        }
    }

    /// Where ranks run that are threads; for processes the launcher says it (`mpirun --bind-to`).
    pub fn binding(self, binding: Binding) -> Self {
        Self { binding, ..self }
    }

    /// See [`Context::host_fallback`].
    pub fn host_fallback(self, on: bool) -> Self {
        Self {
            host_fallback: on,
            ..self
        }
    }

    /// Runs the program.
    ///
    /// # Collective
    /// Every process of the job, if ranks are processes.
    ///
    /// # Errors
    /// As [`launch`].
    pub fn run<T: Returned>(
        &self,
        program: impl Fn(&Context) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        // All that a launch is but this is not generic: programs are many, and each would compile it for each of theirs.
        let returned = ByRank::default();
        self.launch(&|ctx| {
            returned.keep(ctx.rank(), program(ctx)?);
            Ok(())
        })?;
        Ok(returned.into_values())
    }

    /// Runs a program that returns nothing.
    fn launch(&self, program: &OneRank<'_>) -> Result<()> {
        match Processes::started() {
            None => self.on_threads(program),
            Some(started) => {
                started.check()?;
                #[cfg(feature = "mpi")]
                return self.on_processes(&started, program);
                #[cfg(not(feature = "mpi"))]
                Ok(())
            }
        }
    }

    /// Runs the program as one rank.
    /// Gives what it did on each mesh.
    fn run_on(
        &self,
        world: &Rc<dyn Communicator>,
        program: &OneRank<'_>,
    ) -> Result<Vec<(usize, Past)>> {
        /// Hooks may hold the tensors they are on, and so themselves.
        struct Ending(Context);
        impl Drop for Ending {
            fn drop(&mut self) {
                self.0.tape().forget_hooks();
            }
        }
        let world = match &self.faults[..] {
            [] => world.clone(),
            faults => checked(faulty(world.clone(), faults), Checks { checksums: true }),
        };
        let ending = Ending(Context::new(world, self.seed, self.dtype));
        ending.0.explicit_moves(self.explicit_moves);
        ending.0.host_fallback(self.host_fallback);
        program(&ending.0)?;
        Ok(ending.0.at_end())
    }

    fn on_threads(&self, program: &OneRank<'_>) -> Result<()> {
        if self.devices.is_some() && self.backend == Backend::Nccl {
            return Err(self.foreign_devices());
        }
        let options = local::LocalOptions {
            device: self.device,
            make: self.devices.clone(),
            interleaving: self.interleaving.clone(),
            binding: self.binding,
            timeout: self.patience(None)?,
            ..Default::default()
        };
        let start = |ranks, rank: &RankProgram<'_>| match self.backend {
            Backend::Own => local::run_with(ranks, &options, |comm| rank(Rc::new(comm))),
            Backend::Nccl => self.threads_over_nccl(options, rank),
        };
        self.over(Box::new(start), program)
    }

    /// How long a rank waits for others: as told, by the variable, or as usual; `None` is for ever.
    fn patience(&self, usual: Option<Duration>) -> Result<Option<Duration>> {
        let told = processes::number("SHARD_TIMEOUT", "set it to seconds, or 0 for ever")?;
        let patience = self.timeout.or(told.map(Duration::from_secs)).or(usual);
        Ok(patience.filter(|patience| !patience.is_zero()))
    }

    /// That devices are made by a factory where they cannot be.
    fn foreign_devices(&self) -> Error {
        Error::argument(
            "launch",
            "devices of its own only for ranks that are threads, joined by memory",
            format!("a factory of devices, and {:?}", self.backend),
            "name the device by its kind, or join the ranks yourself and use `Launch::run_over`",
        )
    }
}

#[cfg(not(feature = "nccl"))]
impl Launch {
    fn threads_over_nccl(
        &self,
        _: local::LocalOptions,
        _: &RankProgram<'_>,
    ) -> Result<Vec<()>, shard_comm::LaunchError> {
        Err(shard_comm::LaunchError::Failed(without_nccl()))
    }
}

/// Why there is no NCCL in this program.
#[cfg(not(feature = "nccl"))]
fn without_nccl() -> CommError {
    CommError::Backend {
        backend: "nccl",
        call: "launch",
        cause: "this program was built without the feature nccl".into(),
    }
}

/// Whether an error only tells of another rank's.
fn is_echo(error: &Error) -> bool {
    matches!(
        error.comm(),
        Some(CommError::PeerFailed { .. } | CommError::Closed { .. })
    )
}

/// The first error that is no echo; without its rank if all ranks returned it.
fn root_cause(errors: &mut Vec<(usize, Error)>, ranks: usize) -> Error {
    let first = errors.iter().position(|(_, e)| !is_echo(e)).unwrap_or(0);
    let (rank, error) = errors.swap_remove(first);
    let text = error.to_string();
    let everywhere = errors.len() + 1 == ranks && errors.iter().all(|(_, e)| e.to_string() == text);
    if everywhere || error.rank().is_some() {
        return error;
    }
    Error::OnRank {
        rank,
        source: Box::new(error),
    }
}

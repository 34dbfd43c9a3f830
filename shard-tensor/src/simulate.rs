//! How a job would scale: its program, played without data on a topology of any size.

use crate::{Context, Error, Result};
use shard_comm::simulated::{Played, SimulatedComm};
use shard_comm::{Communicator, DType};
use shard_comm::{Host, HostOptions, Topology};
use std::fmt;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs a program as ranks of a [topology](Topology) would, without data and without the other ranks: how long a step takes,
/// what it moves, and how much memory it needs.
///
/// The program is an ordinary one, models and gradients and optimizers included; see [`shard_comm::simulated`] for what is
/// exact and what is only as good as the topology. It must not read values (`item`, `to_array`), which is an error here.
///
/// ```
/// use shard_tensor::{Simulation, shard};
/// use shard_tensor::simulated::{LinkCost, Machine, Topology};
///
/// // 1024 ranks that compute 20 TFLOP/s, eight to a node.
/// let machine = Machine::new(20e12, 2e12);
/// let cluster = Topology::network(1024, machine, LinkCost::new(2e-6, 300e9)).nodes_of(8, LinkCost::new(5e-6, 25e9));
/// let forecast = Simulation::new(&cluster).run(
///     |ctx| {
///         let mesh = ctx.mesh_of(1024)?;
///         let x = mesh.randn([1, 8, 8192, 8192], [shard(2)])?;
///         let w = mesh.randn([8, 8, 3, 3], shard_tensor::Placements::replicated())?.requires_grad()?;
///         Ok((x, w))
///     },
///     |_, (x, w)| {
///         let y = x.conv2d(w, None, shard_tensor::ConvOptions::new().padding(1))?;
///         y.mul(&y)?.mean(&[0, 1, 2, 3], false)?.backward()?;
///         Ok(())
///     },
/// )?;
/// // Each rank has 8 rows of 2 MiB, and a few copies of them.
/// assert!(forecast.peak() > 8 << 18 && forecast.peak() < 64 << 20);
/// assert!(forecast.seconds() > 0.0);
/// println!("{forecast}");
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Simulation {
    topology: Topology,
    ranks: Vec<usize>,
    cores: Option<usize>,
    seed: u64,
    dtype: DType,
}

/// Steps of a rehearsal that are timed, after two that are not.
const STEPS: usize = 7;

impl Simulation {
    /// A simulation that plays the first two, the middle and the last two ranks, in single precision.
    pub fn new(topology: &Topology) -> Self {
        let n = topology.ranks();
        let sample = [0, 1, n / 2, n.saturating_sub(2), n.saturating_sub(1)];
        let mut ranks: Vec<usize> = sample.into_iter().filter(|&r| r < n).collect();
        ranks.sort_unstable();
        ranks.dedup();
        Self {
            topology: topology.clone(),
            ranks,
            cores: None,
            seed: 0,
            dtype: DType::F32,
        }
    }

    /// Plays these ranks instead. Where shards are of different sizes, those with the largest should be among them.
    pub fn ranks(self, ranks: impl Into<Vec<usize>>) -> Self {
        Self {
            ranks: ranks.into(),
            ..self
        }
    }

    /// All ranks of the topology are threads on this many cores. Where that is fewer than there are ranks, they take turns: between
    /// two places where ranks meet, a core does the work of all of its ranks, and what links and rounds cost is what they do with
    /// all ranks at it, as [`Mesh::measure`](crate::Mesh::measure) finds it. Otherwise each has a core of its own.
    pub fn cores(self, cores: usize) -> Self {
        Self {
            cores: Some(cores.max(1)),
            ..self
        }
    }

    /// The element type of tensors made from nothing.
    pub fn dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// Plays `prepare` once and `step` twice on each of the ranks, one after the other; the forecast is of the second step,
    /// when caches and the state of optimizers are there.
    ///
    /// # Collective
    /// No ranks: one thread plays them.
    ///
    /// # Errors
    /// What the program reports; [`NoData`](shard_comm::DeviceError::NoData) if it reads values or has sizes that the data
    /// decides; an invalid argument for a rank that the topology does not have.
    pub fn run<S>(
        &self,
        prepare: impl Fn(&Context) -> Result<S>,
        step: impl Fn(&Context, &mut S) -> Result<()>,
    ) -> Result<Forecast> {
        let played = self.ranks.iter().map(|&rank| {
            let comm = SimulatedComm::new(&self.topology, rank)?;
            let world: Rc<dyn Communicator> = Rc::new(comm.clone());
            let ctx = Context::new(world, self.seed, self.dtype);
            let mut state = prepare(&ctx)?;
            step(&ctx, &mut state)?;
            comm.restart();
            step(&ctx, &mut state)?;
            Ok(comm.played())
        });
        Ok(Forecast {
            played: played.collect::<Result<_>>()?,
            ranks_per_core: 0.0,
        })
    }

    /// Plays the ranks as [`run`](Self::run) does, but has them do their own work on this machine: what a rank does between two
    /// calls of its communicators takes as long as it takes here, kernels on pieces of just these shapes and all that the host does
    /// besides. What ranks move and wait for is forecast. As many ranks are rehearsed at a time as there are
    /// [cores](Self::cores), so that they have as much of the memory's bandwidth as they will. Of a few steps the shortest
    /// counts, which nobody disturbed.
    ///
    /// It takes the memory of these ranks. What others would have sent them is whatever the memory holds, so a program whose
    /// course depends on values takes another one here.
    ///
    /// ```
    /// use shard_tensor::simulated::{LinkCost, Machine, Topology};
    /// use shard_tensor::{Simulation, shard};
    /// let links = LinkCost::new(5e-6, 10e9);
    /// let cluster = Topology::network(64, Machine::new(1e12, 1e11), links);
    /// let forecast = Simulation::new(&cluster).ranks([0, 31]).rehearse(
    ///     |ctx| ctx.mesh_of(64)?.randn([6400, 100], shard(0)),
    ///     |_, x| x.gelu()?.sum(&[0], false)?.redistribute(shard_tensor::replicate()).map(drop),
    /// )?;
    /// assert!(forecast.seconds() > 0.0);
    /// println!("{forecast}");
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// No ranks: a thread per core rehearses them.
    ///
    /// # Errors
    /// What the program reports; an invalid argument for a rank that the topology does not have.
    pub fn rehearse<S>(
        &self,
        prepare: impl Fn(&Context) -> Result<S> + Sync,
        step: impl Fn(&Context, &mut S) -> Result<()> + Sync,
    ) -> Result<Forecast> {
        let (ranks, at_once) = (self.topology.ranks(), self.cores.unwrap_or(1));
        let ranks_per_core = self.cores.map_or(0.0, |cores| ranks as f64 / cores as f64);
        let mut played = Vec::with_capacity(self.ranks.len());
        for together in self.ranks.chunks(at_once) {
            let busy = AtomicUsize::new(together.len());
            let rehearse = |rank| self.rehearse_one(rank, &busy, &prepare, &step);
            let rehearsed: Vec<Result<Played>> = thread::scope(|scope| {
                let start = |&rank: &usize| scope.spawn(move || rehearse(rank));
                let started: Vec<_> = together.iter().map(start).collect();
                let ended = started.into_iter().map(thread::ScopedJoinHandle::join);
                let ended = ended.map(|end| end.unwrap_or_else(|panic| resume_unwind(panic)));
                ended.collect()
            });
            for one in rehearsed {
                played.push(one?);
            }
        }
        Ok(Forecast {
            played,
            ranks_per_core,
        })
    }

    /// One rank's part, while `busy` ranks have steps to time.
    fn rehearse_one<S>(
        &self,
        rank: usize,
        busy: &AtomicUsize,
        prepare: &impl Fn(&Context) -> Result<S>,
        step: &impl Fn(&Context, &mut S) -> Result<()>,
    ) -> Result<Played> {
        let timing = Timing(busy);
        let host = Host::with_options(HostOptions {
            meter: true,
            ..HostOptions::default()
        });
        let comm = SimulatedComm::rehearsing(&self.topology, rank, host)?;
        let world: Rc<dyn Communicator> = Rc::new(comm.clone());
        let ctx = Context::new(world, self.seed, self.dtype);
        let mut state = prepare(&ctx)?;
        let mut best: Option<Played> = None;
        for turn in 0..STEPS + 2 {
            comm.restart();
            step(&ctx, &mut state)?;
            let played = comm.played();
            if turn >= 2 && best.as_ref().is_none_or(|b| played.seconds < b.seconds) {
                best = Some(played);
            }
        }
        // Until the others are done, they are not to have the machine for themselves.
        drop(timing);
        while busy.load(Ordering::Relaxed) > 0 {
            step(&ctx, &mut state)?;
        }
        best.ok_or_else(|| Error::custom("no step was timed"))
    }
}

/// A rank that has steps to time, until this is dropped.
struct Timing<'a>(&'a AtomicUsize);

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a [`Simulation`] found of one step.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// The ranks that were played.
    pub played: Vec<Played>,
    /// How many ranks take turns on a core.
    ranks_per_core: f64,
}

impl Forecast {
    /// Seconds of the step, the ranks that were played waiting for each other wherever they communicate.
    pub fn seconds(&self) -> f64 {
        Played::in_turns(&self.played, self.ranks_per_core)
    }

    /// Bytes that a rank holds at most.
    pub fn peak(&self) -> usize {
        self.played.iter().map(|p| p.peak).max().unwrap_or(0)
    }

    /// The rank that takes longest; `None` if none was played.
    pub fn busiest(&self) -> Option<&Played> {
        (self.played.iter()).max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

impl fmt::Display for Forecast {
    /// The time and memory of the step, and what it is made of on the busiest rank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (millis, ranks) = (1e3 * self.seconds(), self.played.len());
        writeln!(
            f,
            "{millis:.3} ms, {} bytes per rank; of {ranks} ranks played, the busiest:",
            self.peak()
        )?;
        match self.busiest() {
            Some(busiest) => busiest.fmt(f),
            None => Ok(()),
        }
    }
}

//! How a job would scale: its program, played without data on a topology of any size.

use crate::{Context, Result};
use shard_comm::Topology;
use shard_comm::simulated::{Played, SimulatedComm};
use shard_comm::{Communicator, DType};
use std::fmt;
use std::rc::Rc;

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
///         let y = x.conv2d(w, None, shard_tensor::Conv::new().padding(1))?;
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
    seed: u64,
    dtype: DType,
}

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
        })
    }
}

/// What a [`Simulation`] found of one step.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// The ranks that were played.
    pub played: Vec<Played>,
}

impl Forecast {
    /// Seconds of the step, the ranks that were played waiting for each other wherever they communicate.
    pub fn seconds(&self) -> f64 {
        Played::in_step(&self.played)
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

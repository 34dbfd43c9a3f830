//! What moves cost: the model by which plans are chosen.

use crate::{MeshComm, Result};
use shard_comm::{Communicator, DType, Monoid};
use smallvec::SmallVec;
use std::rc::Rc;
use std::time::Instant;

/// What one link costs: `latency + bytes * per_byte` seconds for one message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkCost {
    /// Seconds per message, the model's α.
    pub latency: f64,
    /// Seconds per byte, the model's β: one over the bandwidth.
    pub per_byte: f64,
}

impl LinkCost {
    /// A link of this latency in seconds and bandwidth in bytes per second.
    ///
    /// ```
    /// use shard_redistribute::LinkCost;
    /// let link = LinkCost::new(10e-6, 50e9);
    /// assert_eq!(link.time(2.0, 0.0), 20e-6);
    /// ```
    pub fn new(latency: f64, bandwidth: f64) -> Self {
        Self {
            latency,
            per_byte: 1.0 / bandwidth,
        }
    }

    /// Seconds for this many messages of this many bytes together.
    pub fn time(&self, messages: f64, bytes: f64) -> f64 {
        messages * self.latency + bytes * self.per_byte
    }

    /// The worse of two links in both respects.
    fn worse(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            per_byte: self.per_byte.max(other.per_byte),
        }
    }
}

/// The α–β model that strategies are compared by.
///
/// A rank's time in a step is its messages times α plus its bytes times β, for what it receives and, where
/// [`sender_pays`](Self::sender_pays), for what it sends, whichever is more (links are full duplex); a step takes
/// as long as its busiest rank; a plan as long as its steps one after the other. A message between ranks that
/// differ along several mesh axes pays the worst of their links.
///
/// The model is a plain value: give every rank the same one, or the ranks choose different plans, which the next
/// exchange reports as a mismatch.
///
/// ```
/// use shard_redistribute::{CostModel, LinkCost};
/// // Two nodes of eight: the first mesh axis crosses nodes.
/// let model = CostModel::network(LinkCost::new(3e-6, 80e9)).with_axis(0, LinkCost::new(10e-6, 20e9));
/// assert_eq!(model.link(&[0, 3], &[0, 5]).latency, 3e-6);
/// assert_eq!(model.link(&[0, 3], &[1, 5]).latency, 10e-6);
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct CostModel {
    usual: LinkCost,
    axes: Vec<(usize, LinkCost)>,
    /// Whether sending occupies the sender: true on a network, false where readers copy from shared memory.
    pub sender_pays: bool,
    /// Bytes that a plan may hold on one rank beyond its source and its destination.
    pub staging: usize,
    /// Floating-point operations per second of a rank's kernels, where work is weighed against what moves; 50 GFLOP/s, about a
    /// core, if not said.
    pub flops: f64,
}

impl Default for CostModel {
    /// [`CostModel::shared_memory`].
    fn default() -> Self {
        Self::shared_memory()
    }
}

/// Staging that plans may use unless told otherwise: 64 MiB.
pub(crate) const STAGING: usize = 64 << 20;

/// What kernels are taken to compute per second unless told otherwise.
const FLOPS: f64 = 50e9;

impl CostModel {
    /// Ranks that are threads of one process: messages are free, and readers copy what they need, so the direct
    /// plan, in which everyone receives least, is never beaten.
    pub fn shared_memory() -> Self {
        Self {
            usual: LinkCost::new(0.0, 10e9),
            axes: Vec::new(),
            sender_pays: false,
            staging: STAGING,
            flops: FLOPS,
        }
    }

    /// Ranks joined by a network whose links all cost the same.
    pub fn network(link: LinkCost) -> Self {
        Self {
            usual: link,
            axes: Vec::new(),
            sender_pays: true,
            staging: STAGING,
            flops: FLOPS,
        }
    }

    /// The cost of links along one mesh axis, in place of the usual one.
    #[must_use]
    pub fn with_axis(mut self, axis: usize, link: LinkCost) -> Self {
        self.axes.retain(|(a, _)| *a != axis);
        self.axes.push((axis, link));
        self
    }

    /// Bytes that a plan may hold on one rank beyond its source and its destination.
    #[must_use]
    pub fn with_staging(mut self, bytes: usize) -> Self {
        self.staging = bytes;
        self
    }

    /// Floating-point operations per second of a rank's kernels.
    #[must_use]
    pub fn with_flops(mut self, flops: f64) -> Self {
        self.flops = flops;
        self
    }

    /// The link along one mesh axis.
    pub fn axis(&self, axis: usize) -> LinkCost {
        self.axes
            .iter()
            .find(|(a, _)| *a == axis)
            .map_or(self.usual, |(_, link)| *link)
    }

    /// The link between two coordinates: the worst of the axes along which they differ.
    pub fn link(&self, a: &[usize], b: &[usize]) -> LinkCost {
        let differ: SmallVec<[usize; 4]> =
            (0..a.len()).filter(|&axis| a[axis] != b[axis]).collect();
        self.worst(&differ)
    }

    /// The worst link of several axes; the usual link for none.
    pub fn worst(&self, axes: &[usize]) -> LinkCost {
        axes.iter()
            .map(|&a| self.axis(a))
            .reduce(LinkCost::worse)
            .unwrap_or(self.usual)
    }

    /// Seconds for an all-reduce of `bytes` over the ranks along `axes`, `ranks` of them: one round of whole
    /// copies when small, else a reduce-scatter and an all-gather.
    pub(crate) fn all_reduce(&self, axes: &[usize], ranks: usize, bytes: usize) -> f64 {
        if ranks <= 1 || bytes == 0 {
            return 0.0;
        }
        let (link, others, bytes) = (self.worst(axes), (ranks - 1) as f64, bytes as f64);
        if bytes <= shard_comm::ONE_ROUND_BYTES as f64 {
            return link.time(others, others * bytes);
        }
        link.time(2.0 * others, 2.0 * others / ranks as f64 * bytes)
    }

    /// Measures the links of a mesh, axis by axis, by timing a small and a large all-gather; the slowest rank's
    /// figures, so all ranks get the same model.
    ///
    /// # Collective
    /// All members of the mesh. Moves about 4 MiB per rank and axis.
    ///
    /// # Errors
    /// What the communicator reports; [`NotMember`](crate::RedistributeError::NotMember) off the mesh.
    pub fn measure(cx: &Rc<MeshComm>) -> Result<Self> {
        const LARGE: usize = 1 << 20;
        let mut links: Vec<f64> = Vec::new();
        for axis in 0..cx.mesh().ndim() {
            let comm = member(cx, cx.along(&[axis]))?;
            let others = (comm.size() - 1).max(1) as f64;
            let small = best_time(comm, 1)?;
            let large = best_time(comm, LARGE)?;
            links.push(small / others);
            links.push((large - small).max(0.0) / (others * LARGE as f64));
        }
        let all = member(cx, cx.all())?;
        let mine = all.device().upload_slice(&links)?;
        let slowest = all.all_reduce(&mine, Monoid::MAX)?;
        let slowest: Vec<f64> = all.device().download_vec(&slowest)?;
        let mut model = Self {
            sender_pays: all.backend() != "local",
            ..Self::shared_memory()
        };
        for (axis, pair) in slowest.chunks_exact(2).enumerate() {
            model = model.with_axis(
                axis,
                LinkCost {
                    latency: pair[0],
                    per_byte: pair[1],
                },
            );
        }
        Ok(model)
    }
}

/// The shortest of a few all-gathers of `bytes` per rank, in seconds; the first one warms up.
fn best_time(comm: &Rc<dyn Communicator>, bytes: usize) -> Result<f64> {
    let mine = comm.device().upload_slice(&vec![0_u8; bytes])?;
    debug_assert_eq!(mine.dtype(), DType::U8);
    let counts = vec![bytes; comm.size()];
    let mut best = f64::INFINITY;
    for turn in 0..4 {
        comm.barrier()?;
        let start = Instant::now();
        comm.all_gather_v(&mine, &counts)?;
        if turn > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(best)
}

fn member<'a>(
    cx: &MeshComm,
    comm: Option<&'a Rc<dyn Communicator>>,
) -> Result<&'a Rc<dyn Communicator>> {
    comm.ok_or(crate::RedistributeError::NotMember {
        op: "measure",
        rank: cx.rank(),
    })
}

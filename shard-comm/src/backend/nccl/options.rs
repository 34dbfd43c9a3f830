//! How ranks over NCCL are set up.

use std::time::Duration;

use crate::DeviceKind;

/// In which order elements of several ranks are combined.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Order {
    /// In the order of ranks, on any number of GPUs and any network: the bits are those of every other backend. The library
    /// only moves, and each rank combines its part; but where any order gives the same bits, as for integers, the library
    /// combines.
    #[default]
    Rank,
    /// Sums and products as the library forms them, which is faster between nodes. All ranks get the same bits; other numbers
    /// of ranks, other versions of the library or other networks may give others, and 16-bit floats may be rounded at every
    /// step.
    Any,
}

/// How the ranks of a group over NCCL are set up. Must be equal on all of them.
///
/// ```
/// use shard_comm::nccl::{NcclOptions, Order};
/// let options = NcclOptions { order: Order::Any, ..NcclOptions::default() };
/// assert_eq!(options.timeout, Some(NcclOptions::TIMEOUT));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NcclOptions {
    /// The device of every rank, where [`run`](super::run) makes it: a GPU, or the emulation of one.
    pub device: DeviceKind,
    /// How reductions combine.
    pub order: Order,
    /// How long a rank waits for elements before it gives up; for ever if `None`.
    pub timeout: Option<Duration>,
}

impl NcclOptions {
    /// How long a rank waits unless said otherwise.
    pub const TIMEOUT: Duration = Duration::from_secs(600);
}

impl Default for NcclOptions {
    fn default() -> Self {
        Self {
            device: DeviceKind::Cuda,
            order: Order::default(),
            timeout: Some(Self::TIMEOUT),
        }
    }
}

//! How ranks over NCCL are set up.

use std::time::Duration;

use crate::DeviceKind;

/// The order in which elements of several ranks are combined.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Order {
    /// In the order of ranks, on any number of GPUs and any network: the bits are those of every other backend. The library
    /// only moves elements, and each rank combines its part. Where the bits do not depend on the order, as for integers, the
    /// library combines too.
    #[default]
    Rank,
    /// Sums and products as the library forms them, which is faster between nodes. All ranks get the same bits. The bits may
    /// differ with the number of ranks, the version of the library and the network, and 16-bit floats may be rounded at every
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
    /// The device of every rank, where [`run`](super::run) makes it: a GPU, or an emulated one.
    pub device: DeviceKind,
    /// How reductions combine.
    pub order: Order,
    /// How long a rank waits for elements before it gives up; for ever if `None`.
    pub timeout: Option<Duration>,
}

impl NcclOptions {
    /// How long a rank waits for elements by default.
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

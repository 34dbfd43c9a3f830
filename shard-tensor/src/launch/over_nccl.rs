//! Launches whose ranks have a GPU each and move elements by NCCL.

use super::{Launch, RankProgram};
use shard_comm::local::LocalOptions;
use shard_comm::nccl::{self, NcclOptions};
use shard_comm::{DeviceKind, LaunchError};
use std::rc::Rc;
use std::time::Duration;

impl Launch {
    /// Runs ranks that are threads.
    pub(super) fn threads_over_nccl(
        &self,
        threads: LocalOptions,
        rank: &RankProgram<'_>,
    ) -> Result<Vec<()>, LaunchError> {
        // The threads themselves only agree, in memory of the host.
        let threads = LocalOptions {
            device: DeviceKind::Host,
            ..threads
        };
        let options = self.nccl_options(self.timeout.or(Some(NcclOptions::TIMEOUT)));
        nccl::run_with(self.ranks, &options, &threads, |comm| rank(Rc::new(comm)))
    }

    /// How ranks are set up that wait so long for each other.
    pub(super) fn nccl_options(&self, patience: Option<Duration>) -> NcclOptions {
        NcclOptions {
            device: self.device,
            timeout: patience.filter(|patience| !patience.is_zero()),
            ..NcclOptions::default()
        }
    }
}

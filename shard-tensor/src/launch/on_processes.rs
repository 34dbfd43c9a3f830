//! Launches whose ranks are processes.

use super::over::Did;
use super::{Backend, Launch, OneRank, is_echo};
use crate::processes::Processes;
#[cfg(feature = "nccl")]
use crate::processes::number;
use crate::{Error, Result};
use shard_comm::{AgreedError, CommError, Communicator, DeviceKind, ErrorClass, LaunchError, mpi};
use std::rc::Rc;
use std::time::Duration;

/// How long a process waits to be ended by the one that returns the error.
const GRACE: Duration = Duration::from_secs(60);

impl Launch {
    /// Runs the program as one rank among processes.
    pub(super) fn on_processes(&self, started: &Processes, program: &OneRank<'_>) -> Result<()> {
        if self.devices.is_some() {
            return Err(self.foreign_devices());
        }
        if self.device != DeviceKind::Host && self.backend == Backend::Own {
            return Err(Error::argument(
                "launch",
                "the host as device of ranks that are processes",
                format!("{:?}", self.device),
                "choose the backend NCCL, or start it without a launcher: ranks are threads then",
            ));
        }
        let seen = mpi::process()?.size;
        if seen != started.count {
            return Err(Error::from(LaunchError::Processes {
                cause: format!(
                    "MPI knows of {seen} of the {} processes ({}={})",
                    started.count, started.variable, started.count
                ),
                remedy: "use the mpirun of the MPI it was built with, or srun --mpi=pmix (or pmi2)",
            }));
        }
        let session = mpi::Session::start(&mpi::MpiOptions {
            ranks: Some(self.ranks),
            timeout: self.patience(Some(mpi::MpiOptions::TIMEOUT))?,
            ..mpi::MpiOptions::default()
        })?;
        let Some(comm) = session.comm() else {
            return Ok(());
        };
        let me = comm.rank();
        let control: Rc<dyn Communicator> = Rc::new(comm);
        let world = match self.moved_by(&control) {
            Ok(world) => world,
            // All ranks have the same error, or heard of the one that failed.
            Err(error) => {
                drop(control);
                let ended = end(session, me, Err(error));
                mpi::abandon();
                return ended;
            }
        };
        drop(control);
        let ran = session.catch(|| self.run_on(&world, program));
        let mine = ran.unwrap_or_else(|panic| Err(panic.into()));
        if let Err(error) = &mine
            && error.class() == ErrorClass::Failure
        {
            if is_echo(error) && error.rank() != Some(me) {
                wait_for_the_end();
            }
            world.fail(error.to_string());
        }
        drop(world);
        end(session, me, mine).inspect_err(|_| mpi::abandon())
    }

    /// The communicator of a rank among processes.
    fn moved_by(&self, control: &Rc<dyn Communicator>) -> Result<Rc<dyn Communicator>> {
        match self.backend {
            Backend::Own => Ok(Rc::clone(control)),
            #[cfg(feature = "nccl")]
            Backend::Nccl => {
                let rank = local_rank()?.unwrap_or(control.rank());
                let device = shard_comm::device_of(self.device, rank);
                let status = (device.as_ref().map(drop))
                    .map_err(|error| AgreedError::from_local("launch", error.clone()));
                control.agree(status)?;
                let options = self.nccl_options(self.patience(Some(mpi::MpiOptions::TIMEOUT))?);
                let comm =
                    shard_comm::nccl::NcclComm::over(Rc::clone(control), &device?, &options)?;
                Ok(Rc::new(comm))
            }
            #[cfg(not(feature = "nccl"))]
            Backend::Nccl => Err(super::without_nccl().into()),
        }
    }
}

/// This process's number among those on its node, if the launcher says so: GPUs are shared out by it.
#[cfg(feature = "nccl")]
fn local_rank() -> Result<Option<usize>> {
    const VARIABLES: [&str; 4] = [
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "SLURM_LOCALID",
        "LOCAL_RANK",
    ];
    for variable in VARIABLES {
        if let Some(number) = number(variable, "leave it to the launcher")? {
            return Ok(usize::try_from(number).ok());
        }
    }
    Ok(None)
}

/// Meets the other ranks at the end, given what this one did on each mesh. Returns only what this process is to return: the
/// error that began here, at the lowest rank if at several.
fn end(session: mpi::Session, me: usize, mine: Result<Did>) -> Result<()> {
    let (mine, did) = match mine {
        Ok(did) => (Ok(()), did),
        Err(error) if error.class() == ErrorClass::Failure => return Err(named(error, me)),
        Err(error) => (Err(error), Did::new()),
    };
    let status = mine.as_ref().copied().map_err(|error| {
        AgreedError::new(
            "launch",
            "a program without errors",
            error.to_string(),
            "see there",
        )
    });
    match session.end(status, &did) {
        Ok(statuses) => {
            let texts: Vec<Option<&str>> = (statuses.iter())
                .map(|status| status.as_ref().map(|s| s.got.as_str()))
                .collect();
            let Some(first) = texts.iter().position(Option::is_some) else {
                return mine;
            };
            mpi::abandon();
            if first != me {
                wait_for_the_end();
            }
            let everywhere = texts.iter().all(|text| *text == texts[first]);
            mine.map_err(|error| if everywhere { error } else { named(error, me) })
        }
        // This rank's own error explains why it came here while others did not.
        Err(_) if mine.is_err() => mine.map_err(|error| named(error, me)),
        Err(LaunchError::Failed(CommError::PeerFailed { origin, .. })) if origin != me => {
            wait_for_the_end()
        }
        // All ranks have it.
        Err(LaunchError::Failed(unlike @ CommError::Mismatch(_))) => match me {
            0 => Err(unlike.into()),
            _ => wait_for_the_end(),
        },
        Err(error) => Err(error.into()),
    }
}

fn named(error: Error, rank: usize) -> Error {
    if error.rank().is_some() {
        return error;
    }
    Error::OnRank {
        rank,
        source: Box::new(error),
    }
}

/// Another process returns the error, and ends the job when it ends.
fn wait_for_the_end() -> ! {
    mpi::abandon();
    std::thread::sleep(GRACE);
    std::process::exit(1)
}

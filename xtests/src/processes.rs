//! Ranks that are processes: trials on them. All processes run the same trials in the same order, and hear of all results.

use crate::case::Case;
use crate::dispatch::Apply;
use crate::trial::{RankError, RankResult, Trial, Verdict, judge, one, recorder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shard_comm::{CommError, Communicator, DType, LaunchError, mpi};
use shard_redistribute::{MeshComm, RedistributeError};
use shard_spec::DeviceMesh;
use shard_tensor::Context;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// How long a process waits to be ended by the first, which reports.
const GRACE: Duration = Duration::from_secs(30);

/// The processes of a job.
pub struct Group {
    session: mpi::Session,
    world: Context,
    whole: Cell<bool>,
}

impl Group {
    /// All processes that were started together. Ranks that wait longer than `patience` give up.
    ///
    /// # Collective
    /// All processes.
    ///
    /// # Errors
    /// What MPI reports.
    pub fn start(patience: Duration) -> Result<Self, LaunchError> {
        let session = mpi::Session::start(&mpi::MpiOptions {
            timeout: Some(patience),
            ..mpi::MpiOptions::default()
        })?;
        let world = session.comm().ok_or(LaunchError::NoRanks)?;
        Ok(Self {
            world: Context::new(Rc::new(world), 0, DType::F64),
            session,
            whole: Cell::new(true),
        })
    }

    /// This process's number.
    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.world.world_size()
    }

    /// Whether the ranks can still work together.
    pub fn is_whole(&self) -> bool {
        self.whole.get()
    }

    /// What the first process says.
    ///
    /// # Collective
    /// All processes.
    ///
    /// # Errors
    /// Why the ranks cannot work together any more.
    pub fn of_first<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<T, String> {
        let all = self.all(|| value)?;
        all.into_iter().next().ok_or_else(|| "no ranks".to_owned())
    }

    /// What `f` gives on the processes up to the last of a mesh, in rank order, on all processes.
    ///
    /// # Collective
    /// All processes.
    ///
    /// # Errors
    /// Why the ranks cannot work together any more.
    pub fn on_mesh<T: Serialize + DeserializeOwned>(
        &self,
        mesh: &DeviceMesh,
        f: impl FnOnce(&Rc<MeshComm>) -> T,
    ) -> Result<Vec<T>, String> {
        let cx = self.members(mesh)?;
        // Lists, since a result may be an option, of which text would not keep two.
        let mine = || cx.as_ref().map(f).into_iter().collect::<Vec<T>>();
        Ok(self.all(mine)?.into_iter().flatten().collect())
    }

    /// Tries combinations one after the other, and adds a verdict for each.
    ///
    /// # Collective
    /// All processes, with the same arguments.
    ///
    /// # Errors
    /// Why the ranks cannot work together any more since the trial after the last verdict.
    pub fn trials(
        &self,
        case: &Case,
        apply: Apply,
        mesh: &DeviceMesh,
        trials: &[Trial],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), String> {
        let mut group = None;
        for trial in trials {
            // What an error left behind is not used again.
            let (cx, recorder) = match group.take() {
                Some(group) => group,
                None => (self.members(mesh)?, recorder()),
            };
            let try_it = |cx: &Rc<MeshComm>| -> RankResult {
                one(cx, &recorder, case, apply, trial).map_err(RankError::from)
            };
            let all = self.all(|| cx.as_ref().map(try_it))?;
            let results: Vec<RankResult> = all.into_iter().flatten().collect();
            if !(results.iter()).any(|r| matches!(r, Err(e) if e.ends_group)) {
                group = Some((cx, recorder));
            }
            verdicts.push(judge(&results));
        }
        Ok(())
    }

    /// Ends the job. Call it in all processes once the first has reported.
    ///
    /// # Collective
    /// All processes.
    pub fn end(self) {
        if self.is_whole() && self.session.end(Ok(()), &[]).is_ok() {
            return;
        }
        // The first process ends the others with itself, when it has said what it knows.
        mpi::abandon();
        if self.world.rank() > 0 {
            std::thread::sleep(GRACE);
        }
    }

    /// The communicator of the first processes, where this one is a member.
    ///
    /// # Errors
    /// Why the ranks cannot work together any more.
    pub(crate) fn split(&self, ranks: usize) -> Result<Option<Rc<dyn Communicator>>, String> {
        let member = self.rank() < ranks;
        (self.world.world().split(member.then_some(0), self.rank()))
            .map_err(|e| self.broke(e.to_string()))
    }

    /// Runs part of the program; if it panics, all other ranks hear of it.
    pub(crate) fn catch<T>(&self, f: impl FnOnce() -> T) -> Result<T, LaunchError> {
        self.session.catch(f)
    }

    /// The communicators of a mesh, on the processes up to its last.
    fn members(&self, mesh: &DeviceMesh) -> Result<Option<Rc<MeshComm>>, String> {
        let comm = self.split(mesh.ranks().iter().max().map_or(0, |&rank| rank + 1))?;
        let mesh = comm.map(|comm| MeshComm::new(&comm, mesh)).transpose();
        mesh.map_err(|e: RedistributeError| self.broke(e.to_string()))
    }

    /// What `f` gives on every rank.
    ///
    /// # Collective
    /// All processes.
    ///
    /// # Errors
    /// Why the ranks cannot work together any more.
    pub(crate) fn all<T: Serialize + DeserializeOwned>(
        &self,
        f: impl FnOnce() -> T,
    ) -> Result<Vec<T>, String> {
        let mine = (self.session.catch(f)).map_err(|e| self.broke(e.to_string()))?;
        (self.world.gather(&mine)).map_err(|e| {
            let echo = matches!(e.comm(), Some(CommError::PeerFailed { .. }));
            // The rank that gave up first knows the cause; whoever waited for it in vain does not.
            if !echo {
                self.world.world().fail(e.to_string());
            }
            self.broke(e.to_string())
        })
    }

    fn broke(&self, cause: String) -> String {
        self.whole.set(false);
        cause
    }
}

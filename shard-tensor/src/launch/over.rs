//! Launches over any backend, also one of another crate.

use super::{Launch, OneRank, Returned, is_echo, root_cause};
use crate::{Context, Error, Result};
use shard_comm::local::ByRank;
use shard_comm::{Communicator, ErrorClass, LaunchError, Past};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What one rank does, given its communicator over all of them. The launch keeps what its program returns.
pub type RankProgram<'a> = dyn Fn(Rc<dyn Communicator>) + Sync + 'a;

/// Starts this number of ranks, each with the program, and joins those of this process.
type Start<'a> = dyn FnOnce(usize, &RankProgram<'_>) -> Result<Vec<()>, LaunchError> + 'a;

impl Launch {
    /// Runs the program on ranks that `start` starts and joins: over a backend of your own.
    ///
    /// `start` is given the number of ranks and what each of them is to do, with its communicator; it returns when those of this
    /// process are done. What a launch says of devices, schedules and backends is for `start` to see to.
    ///
    /// ```
    /// use shard_comm::local;
    /// use shard_tensor::{Launch, shard};
    /// use std::rc::Rc;
    /// let sums = Launch::new(2).run_over(
    ///     |ranks, rank| local::run(ranks, |comm| rank(Rc::new(comm))),
    ///     |ctx| ctx.mesh_of(2)?.ones([3], shard(0))?.sum(0, false)?.item(),
    /// )?;
    /// assert_eq!(sums, [3.0, 3.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`launch`](crate::launch); [`LaunchError`]s of `start`.
    pub fn run_over<T: Returned>(
        &self,
        start: impl FnOnce(usize, &RankProgram<'_>) -> Result<Vec<()>, LaunchError>,
        program: impl Fn(&Context) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let returned = ByRank::default();
        self.over(Box::new(start), &|ctx| {
            returned.keep(ctx.rank(), program(ctx)?);
            Ok(())
        })?;
        Ok(returned.into_values())
    }

    /// [`run_over`](Self::run_over) of a program that returns nothing.
    pub(super) fn over(&self, start: Box<Start<'_>>, program: &OneRank<'_>) -> Result<()> {
        // In the order in which ranks gave up.
        let errors: Mutex<Vec<(usize, Error)>> = Mutex::default();
        let did: Mutex<Vec<(usize, Did)>> = Mutex::default();
        let rank = |world: Rc<dyn Communicator>| match self.run_on(&world, program) {
            Ok(done) => lock(&did).push((world.rank(), done)),
            Err(error) => {
                // Errors of the other classes reach every rank by themselves; poisoning the group could only
                // replace them by an echo.
                if error.class() == ErrorClass::Failure {
                    world.fail(error.to_string());
                }
                lock(&errors).push((world.rank(), error));
            }
        };
        let ended = start(self.ranks, &rank);
        let mut errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
        let only_echoes = errors.iter().all(|(_, e)| is_echo(e));
        match ended {
            Err(launch) if only_echoes => Err(launch.into()),
            Ok(_) if errors.is_empty() => {
                compare(did.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            _ => Err(root_cause(&mut errors, self.ranks)),
        }
    }
}

/// What a rank did on each mesh, by the mesh's number.
pub(super) type Did = Vec<(usize, Past)>;

/// Refuses results of ranks that did not do the same on a mesh.
fn compare(mut did: Vec<(usize, Did)>) -> Result<()> {
    did.sort_by_key(|(rank, _)| *rank);
    let mut by_mesh: BTreeMap<usize, Vec<(usize, Past)>> = BTreeMap::new();
    for (rank, done) in did {
        for (mesh, past) in done {
            by_mesh.entry(mesh).or_default().push((rank, past));
        }
    }
    for ranks in by_mesh.values() {
        Past::compare(ranks)?;
    }
    Ok(())
}

/// What is locked is whole: nothing that panics runs meanwhile.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

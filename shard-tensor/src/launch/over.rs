//! Launches over any backend, also one of another crate.

use super::{Launch, Returned, is_echo, root_cause};
use crate::{Context, Error, Result};
use shard_comm::{Communicator, ErrorClass, LaunchError};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

/// What one rank does, given its communicator over all of them.
pub type RankProgram<'a, T> = dyn Fn(Rc<dyn Communicator>) -> RankOutcome<T> + Sync + 'a;

/// What became of one rank: what its program returned, unless that was an error, of which the launch knows.
#[derive(Debug)]
pub struct RankOutcome<T>(Option<T>);

impl Launch {
    /// Runs the program on ranks that `start` starts and joins: over a backend of your own.
    ///
    /// `start` is given the number of ranks and what each of them is to do, with its communicator; it returns what came of
    /// those of this process, in rank order. What a launch says of devices, schedules and backends is for `start` to see to.
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
        start: impl FnOnce(usize, &RankProgram<'_, T>) -> Result<Vec<RankOutcome<T>>, LaunchError>,
        program: impl Fn(&Context) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        // In the order in which ranks gave up.
        let errors: Mutex<Vec<(usize, Error)>> = Mutex::default();
        let record = |rank, error| {
            let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
            errors.push((rank, error));
        };
        let rank = |world: Rc<dyn Communicator>| match self.run_on(&world, &program) {
            Ok(value) => RankOutcome(Some(value)),
            Err(error) => {
                // Errors of the other classes reach every rank by themselves; poisoning the group could only
                // replace them by an echo.
                if error.class() == ErrorClass::Failure {
                    world.fail(error.to_string());
                }
                record(world.rank(), error);
                RankOutcome(None)
            }
        };
        let results = start(self.ranks, &rank);
        let mut errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
        let only_echoes = errors.iter().all(|(_, e)| is_echo(e));
        match results {
            Err(launch) if only_echoes => Err(launch.into()),
            Ok(values) if errors.is_empty() => Ok(values.into_iter().filter_map(|v| v.0).collect()),
            _ => Err(root_cause(&mut errors, self.ranks)),
        }
    }
}

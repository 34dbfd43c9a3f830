//! The end of a run, at which all processes meet.

use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::super::details::{Call, END};
use super::super::member::Group;
use super::super::notice::Notice;
use super::super::raw;
use super::Rank;
use crate::collectives::plan_all_gather;
use crate::history::{unlike_ends, unlike_the_first};
use crate::{AgreedError, Buffer, CommError, ExchangePlan, Past, Request, Result, Target, Told};

/// What came of a meeting: each rank's error if some have one, and else what was to be gathered.
struct Met {
    statuses: Vec<Option<AgreedError>>,
    gathered: Option<Buffer>,
}

/// A process that has ended says so after waiting this long for the others.
const OVERDUE: Duration = Duration::from_secs(1);

/// Of how many meshes ranks compare what was done on them: those with the highest numbers.
const COMPARED: usize = 64;

impl Rank {
    /// Ends this rank: finishes what is in flight and meets all others, which learn of `status` and compare what they did. Returns
    /// every rank's status if some are errors.
    ///
    /// # Errors
    /// The first failure; a mismatch.
    pub(in super::super) fn finish(
        &self,
        group: &Group,
        status: Result<(), AgreedError>,
        did: &[(usize, Past)],
    ) -> Result<Vec<Option<AgreedError>>> {
        if self.closed.get() {
            return Ok(Vec::new());
        }
        let ended = self.end(group, status, did);
        self.closed.set(true);
        let heard = self.letterbox.borrow_mut().close();
        self.device.synchronize()?;
        if ended.is_ok() && heard && self.flying.borrow().is_empty() {
            raw::set_broken(false);
        }
        ended
    }

    fn end(
        &self,
        group: &Group,
        status: Result<(), AgreedError>,
        did: &[(usize, Past)],
    ) -> Result<Vec<Option<AgreedError>>> {
        let site = Location::caller();
        let ranks = self.everyone.len();
        let plan = plan_all_gather(END, self.me(), &vec![COMPARED; ranks]);
        let prints = self.device.upload_slice(&prints_of(did))?;
        let whole = self.device.alloc(prints.dtype(), COMPARED * ranks)?;
        let target = Target::Write(whole);
        let mut request = Request::exchange(Arc::new(plan), &[prints], target, site);
        request.status = status.map_err(Box::new);
        let met = self.meet(group, request)?;
        if let Some(prints) = met.gathered {
            let prints = prints.to_vec::<i64>()?;
            let by_rank: Vec<&[i64]> = prints.chunks_exact(COMPARED).collect();
            for slot in 0..COMPARED {
                self.compare(group, did, slot, &by_rank)?;
            }
        }
        self.settle();
        Ok(met.statuses)
    }

    /// Meets the others.
    fn meet(&self, group: &Group, request: Request) -> Result<Met> {
        let end = self.start(group.next(), request, &Rc::default())?;
        let mut told = false;
        let result = self.wait_until(&end, None, |waited| {
            if waited > OVERDUE && !told {
                told = true;
                self.tell(&Notice::Ended { rank: self.me() });
            }
        });
        let gathered = match result {
            Ok(gathered) => gathered,
            Err(CommError::Agreed(_)) => None,
            Err(error) => {
                self.fail_all(error.clone());
                return Err(error);
            }
        };
        let statuses = std::mem::take(&mut end.state.borrow_mut().statuses);
        Ok(Met { statuses, gathered })
    }

    /// Compares what the members of a mesh did on it. If it is not the same, two of them tell all what they did.
    fn compare(
        &self,
        group: &Group,
        did: &[(usize, Past)],
        slot: usize,
        prints: &[&[i64]],
    ) -> Result<()> {
        let members: Vec<usize> = (0..prints.len())
            .filter(|&rank| prints[rank][slot] != 0)
            .collect();
        let of_members = members.iter().map(|&rank| prints[rank][slot] as u64);
        let Some(unlike) = unlike_the_first(of_members) else {
            return Ok(());
        };
        let unlike = unlike.map(|at| members[at]);
        let site = Location::caller();
        let mine = did.iter().find(|(mesh, _)| mesh % COMPARED == slot);
        let status = match mine.filter(|_| unlike.contains(&self.me())) {
            None => Ok(()),
            Some((_, past)) => Err(AgreedError::new("end", "", Call::written(past)?, "")),
        };
        let request = Request::status(Arc::new(ExchangePlan::empty(END)), status, site);
        let met = self.meet(group, request)?;
        let told = |rank: usize| -> Result<Vec<Told>> {
            let status = met.statuses.get(rank).and_then(Option::as_ref);
            status.map_or(Ok(Vec::new()), |status| Call::read(&status.got))
        };
        let told = [told(unlike[0])?, told(unlike[1])?];
        let error = unlike_ends(&members, unlike, &told, site.into());
        self.fail_all(error.clone());
        Err(error)
    }

    /// Finishes what is in flight.
    fn settle(&self) {
        loop {
            let Some(op) = self.flying.borrow().first().cloned() else {
                break;
            };
            // The handle is gone, so nobody is left to receive an error; the peers get it themselves.
            drop(self.wait(&op));
        }
        // The readers of these messages have met this rank, and are finishing what is in flight too.
        while !self.leaving.borrow().is_empty() {
            self.progress(0);
            std::thread::yield_now();
        }
    }

    fn me(&self) -> usize {
        self.world().rank()
    }
}

/// Prints of what was done on meshes, each in the place of its number; 0 where there is none.
fn prints_of(did: &[(usize, Past)]) -> [i64; COMPARED] {
    let mut prints = [0; COMPARED];
    for (mesh, past) in did {
        prints[mesh % COMPARED] = past.print().max(1) as i64;
    }
    prints
}

//! Notices: unsolicited messages. A rank that gives up tells all others, and each rank looks for such a notice while it
//! waits. Every process also says good-bye before it leaves MPI, so that nobody waits for it in vain.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::raw::{self, Mail, World};
use super::tags::NEWS;
use crate::Result;

/// Bytes of a message; longer causes are cut.
const SIZE: usize = 2048;

/// The content of a notice.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    /// A rank cannot go on: which one, and why. It may be another rank than the sender.
    Failed { origin: usize, cause: String },
    /// The sender has ended and waits for the others to end.
    Ended { rank: usize },
    /// The sender's process leaves the job.
    Left { rank: usize },
}

/// Processes that have left the job.
static LEFT: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The processes that are known to have left the job.
pub(super) fn left() -> BTreeSet<usize> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn has_left(rank: usize) {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.insert(rank);
}

/// Notices of runs that this process has not begun, with the runs' numbers: others may be a run ahead, and fail there.
static EARLY: Mutex<Vec<(u64, Notice)>> = Mutex::new(Vec::new());

fn early() -> MutexGuard<'static, Vec<(u64, Notice)>> {
    EARLY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next kept notice of a run; those of earlier runs are dropped.
fn next_of(run: u64, kept: &mut Vec<(u64, Notice)>) -> Option<Notice> {
    kept.retain(|(of, _)| *of >= run);
    let at = kept.iter().position(|(of, _)| *of == run)?;
    Some(kept.remove(at).1)
}

/// Says good-bye to all other processes and waits until they have said so too: no process may leave MPI before that, or while
/// notices are under way.
pub(super) fn part(world: &World) -> Result<()> {
    const NAP: Duration = Duration::from_micros(200);
    let me = world.rank();
    let mut outgoing = Mail::of_bytes(Notice::Left { rank: me }.to_bytes(0));
    for peer in (0..world.size()).filter(|&peer| peer != me) {
        outgoing.send_bytes(world, peer, NEWS, 0..SIZE)?;
    }
    has_left(me);
    let mut incoming = Mail::of_bytes(vec![0; SIZE]);
    while left().len() < world.size() {
        incoming.recv_bytes(world, None, NEWS, 0..SIZE)?;
        while !incoming.test()? {
            std::thread::sleep(NAP);
        }
        // Other notices belong to runs that are over.
        if let (_, Notice::Left { rank }) = Notice::from_bytes(incoming.bytes()) {
            has_left(rank);
        }
    }
    while !outgoing.test()? || !raw::have_left(Vec::new())? {
        std::thread::sleep(NAP);
    }
    Ok(())
}

/// Receives notices, and keeps those that were sent until they are received.
#[derive(Debug)]
pub(super) struct Letterbox {
    /// The number of the run: notices of earlier runs may still arrive, and of later ones already.
    run: u64,
    incoming: Mail,
    sent: Vec<Mail>,
}

impl Letterbox {
    pub(super) fn new(world: &World, run: u64) -> Result<Self> {
        let mut incoming = Mail::of_bytes(vec![0; SIZE]);
        incoming.recv_bytes(world, None, NEWS, 0..SIZE)?;
        Ok(Self {
            run,
            incoming,
            sent: Vec::new(),
        })
    }

    /// Sends a notice to some processes.
    pub(super) fn tell(
        &mut self,
        world: &World,
        to: impl Iterator<Item = usize>,
        notice: &Notice,
    ) -> Result<()> {
        let mut mail = Mail::of_bytes(notice.to_bytes(self.run));
        for peer in to {
            mail.send_bytes(world, peer, NEWS, 0..SIZE)?;
        }
        // Small enough to be sent at once.
        mail.test()?;
        self.sent.push(mail);
        Ok(())
    }

    /// The next notice that has come, if any.
    pub(super) fn look(&mut self, world: &World) -> Result<Option<Notice>> {
        if self.incoming.test()? {
            let (run, notice) = Notice::from_bytes(self.incoming.bytes());
            self.incoming.recv_bytes(world, None, NEWS, 0..SIZE)?;
            if let Notice::Left { rank } = notice {
                has_left(rank);
                return Ok(Some(notice));
            }
            early().push((run, notice));
        }
        Ok(next_of(self.run, &mut early()))
    }

    /// Closes the letterbox. Notices that have not left yet do when MPI is called again, at the latest when this process parts from
    /// the others. Returns whether MPI could tell of all.
    pub(super) fn close(&mut self) -> bool {
        let came = self.incoming.test().unwrap_or(false) || !self.incoming.cancel();
        if came {
            match Notice::from_bytes(self.incoming.bytes()) {
                (_, Notice::Left { rank }) => has_left(rank),
                later => early().push(later),
            }
        }
        raw::have_left(std::mem::take(&mut self.sent)).is_ok()
    }
}

impl Notice {
    fn to_bytes(&self, run: u64) -> Vec<u8> {
        let (kind, rank, text) = match self {
            Self::Failed { origin, cause } => (0, *origin, cause.as_str()),
            Self::Ended { rank } => (1, *rank, ""),
            Self::Left { rank } => (2, *rank, ""),
        };
        let mut bytes = vec![kind];
        bytes.extend((rank as u64).to_le_bytes());
        bytes.extend(run.to_le_bytes());
        bytes.extend(text.bytes());
        bytes.resize(SIZE, 0);
        bytes
    }

    /// The notice, with the number of its run.
    fn from_bytes(bytes: &[u8]) -> (u64, Self) {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let (rank, run) = (number(1) as usize, number(9));
        let text = String::from_utf8_lossy(&bytes[17..]);
        let text = text.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]);
        let notice = match bytes[0] {
            0 => Self::Failed {
                origin: rank,
                cause: text.to_owned(),
            },
            1 => Self::Ended { rank },
            _ => Self::Left { rank },
        };
        (run, notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_later_runs_are_kept_for_them() {
        let mut kept = vec![
            (1, Notice::Ended { rank: 5 }),
            (3, Notice::Ended { rank: 6 }),
            (2, Notice::Ended { rank: 7 }),
        ];
        assert!(matches!(
            next_of(2, &mut kept),
            Some(Notice::Ended { rank: 7 })
        ));
        assert!(next_of(2, &mut kept).is_none());
        assert!(matches!(
            next_of(3, &mut kept),
            Some(Notice::Ended { rank: 6 })
        ));
        assert!(kept.is_empty());
    }

    #[test]
    fn news_arrives_as_it_was_sent_or_cut() {
        for cause in ["", "no such file", &"long ".repeat(1000)] {
            let sent = Notice::Failed {
                origin: 3,
                cause: cause.to_owned(),
            };
            let (run, got) = Notice::from_bytes(&sent.to_bytes(9));
            let Notice::Failed { origin, cause: got } = got else {
                panic!("another kind");
            };
            assert_eq!((origin, run), (3, 9));
            assert!(cause.starts_with(&got) && (got == cause || got.len() > 2000));
        }
        let ended = Notice::from_bytes(&Notice::Ended { rank: 7 }.to_bytes(2));
        assert!(matches!(ended, (2, Notice::Ended { rank: 7 })));
        let left = Notice::from_bytes(&Notice::Left { rank: 1 }.to_bytes(0));
        assert!(matches!(left, (0, Notice::Left { rank: 1 })));
    }
}

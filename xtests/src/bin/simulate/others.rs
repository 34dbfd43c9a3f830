//! How much of the machine other programs have.

use std::fs;

/// Ticks of all cores since the machine started, and of this process.
pub(crate) struct Ticks {
    all: u64,
    busy: u64,
    own: u64,
}

impl Ticks {
    /// Now; `None` where the system does not tell.
    pub(crate) fn now() -> Option<Self> {
        let all = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Self::read(&all, &own)
    }

    /// From what `/proc/stat` and `/proc/self/stat` say.
    fn read(all: &str, own: &str) -> Option<Self> {
        let cores = all.lines().next()?.strip_prefix("cpu ")?;
        // User, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen; guests are in the first two.
        let times: Vec<u64> = (cores.split_whitespace().take(8))
            .map(|n| n.parse().ok())
            .collect::<Option<_>>()?;
        let all: u64 = times.iter().sum();
        let idle: u64 = times.iter().skip(3).take(2).sum();
        // The name, which may hold anything, ends at the last bracket; two more fields on, numbers begin.
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
        Some(Self {
            all,
            busy: all - idle,
            own: ticks(11)? + ticks(12)?,
        })
    }

    /// The share of the machine that others had since.
    pub(crate) fn others_since(&self, before: &Self) -> f64 {
        let (all, busy) = (self.all - before.all, self.busy - before.busy);
        let others = busy.saturating_sub(self.own - before.own);
        others as f64 / all.max(1) as f64
    }
}

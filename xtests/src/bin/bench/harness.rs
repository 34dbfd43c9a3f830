//! Timing a case and its limit in turns.

use crate::case::{Bench, Step, Work};
use crate::peers::{Answer, Peers};
use crate::suite::{Options, Spec};
use serde::Serialize;
use shard_comm::DeviceRef;
use shard_tensor::{Binding, Context, Error, Launch, Result};
use std::hint::black_box;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// How far a result may be from one rank's, as a share of the largest element, and from a peer's; of a case that does not say another.
pub(crate) const TOLERANCE: f64 = 1e-4;

/// Short calls are repeated until they take this many seconds together.
const BATCH_SECONDS: f64 = 200e-6;
/// The same on a GPU, where the end of a batch is waited for, which takes some microseconds.
const GPU_BATCH_SECONDS: f64 = 2e-3;

/// How long to measure.
pub(crate) struct Effort {
    seconds: f64,
    warm: usize,
    repetitions: [usize; 2],
}

impl Effort {
    pub(crate) const QUICK: Self = Self {
        seconds: 0.0,
        warm: 0,
        repetitions: [2, 2],
    };

    pub(crate) fn of(seconds: f64) -> Self {
        Self {
            seconds,
            warm: 2,
            repetitions: [5, 101],
        }
    }
}

/// What a case gave.
#[derive(Serialize)]
pub(crate) struct Record {
    pub(crate) case: String,
    pub(crate) peer: &'static str,
    pub(crate) device: String,
    pub(crate) ranks: usize,
    /// Of each rank.
    pub(crate) threads: usize,
    pub(crate) split: &'static str,
    pub(crate) median_s: f64,
    pub(crate) min_s: f64,
    pub(crate) reps: usize,
    /// How long the host is busy with a call of which a GPU does the work, of the busiest rank, at the median.
    pub(crate) host_s: Option<f64>,
    /// The largest difference from one rank's result as a share of its largest element; `None` where there is none.
    pub(crate) check: Option<f64>,
    /// How large it may be.
    pub(crate) tolerance: f64,
    pub(crate) limit: Option<&'static str>,
    pub(crate) limit_s: Option<f64>,
    pub(crate) limit_min_s: Option<f64>,
    /// Of the medians.
    pub(crate) ratio: Option<f64>,
    /// Of the least times, which others on the machine disturb least.
    pub(crate) min_ratio: Option<f64>,
    /// Of the peer, if one was asked for that has the case.
    pub(crate) beside_s: Option<f64>,
    pub(crate) beside_min_s: Option<f64>,
    /// Our time over the peer's: of the medians, and of the least times.
    pub(crate) beside_ratio: Option<f64>,
    pub(crate) beside_min_ratio: Option<f64>,
    /// What the peer says that has the case and cannot do it, or finds something else.
    pub(crate) beside_fails: Option<String>,
    /// Whether it was asked for and has no such case.
    pub(crate) beside_lacks: bool,
    /// Of all ranks together, at the least time.
    pub(crate) gflops: Option<f64>,
    pub(crate) gbytes_per_s: Option<f64>,
}

/// When one rank began one repetition, when the last call had returned, and when its work was done.
#[derive(Clone, Copy)]
struct Span {
    start: Instant,
    returned: Instant,
    end: Instant,
}

impl Span {
    fn seconds(&self) -> f64 {
        (self.end - self.start).as_secs_f64().max(1e-9)
    }
}

/// How often the step and the limit run; the same on all ranks.
#[derive(Clone, Copy)]
struct Turns {
    batch: usize,
    limit_batch: usize,
    beside_batch: usize,
    repetitions: usize,
}

/// What one rank saw.
struct Seen {
    check: Option<f64>,
    tolerance: f64,
    limit: Option<(&'static str, f64)>,
    work: Option<Work>,
    turns: Turns,
    steps: Vec<Span>,
    limits: Vec<Span>,
    /// Seconds of each of the peer's batches.
    beside: Vec<f64>,
    beside_fails: Option<String>,
    beside_lacks: bool,
}

/// What ranks know of each other, as threads of one process.
#[derive(Default)]
struct Shared {
    turns: OnceLock<Turns>,
    /// Seconds of the peer's first call; from rank 0.
    beside_once: OnceLock<f64>,
}

/// Runs a case on its ranks.
pub(crate) fn measure(
    spec: &Spec,
    options: &Options,
    effort: &Effort,
    peers: &Mutex<Option<Peers>>,
) -> Result<Record> {
    let shared = Shared::default();
    let launch = Launch::new(spec.ranks).device(options.device);
    // The machine is this program's, and figures shall not depend on where the system puts two ranks.
    let launch = launch.binding(Binding::Core);
    let seen = launch.run(|ctx| on_rank(ctx, spec, effort, &shared, peers))?;
    let Turns {
        batch,
        limit_batch,
        beside_batch,
        repetitions,
    } = seen[0].turns;
    let [median_s, min_s] = times(&seen, batch, |s| &s.steps);
    let limit = seen[0].limit;
    let limits =
        limit.map(|(_, scale)| times(&seen, limit_batch, |s| &s.limits).map(|t| t * scale));
    let beside = middle_and_least(seen[0].beside.clone());
    let beside = beside.map(|t| t.map(|s| s / beside_batch as f64));
    let rate = |per_call: f64| per_call / min_s / 1e9;
    Ok(Record {
        case: spec.name.clone(),
        peer: "rust",
        device: options.device.to_string(),
        ranks: spec.ranks,
        threads: 1,
        split: options.split.name(),
        median_s,
        min_s,
        reps: repetitions,
        host_s: (options.device.is_cuda()).then(|| host_seconds(&seen, batch)),
        check: seen.iter().find_map(|s| s.check),
        tolerance: seen[0].tolerance,
        limit: limit.map(|l| l.0),
        limit_s: limits.map(|l| l[0]),
        limit_min_s: limits.map(|l| l[1]),
        ratio: limits.map(|l| median_s / l[0]),
        min_ratio: limits.map(|l| min_s / l[1]),
        beside_s: beside.map(|b| b[0]),
        beside_min_s: beside.map(|b| b[1]),
        beside_ratio: beside.map(|b| median_s / b[0]),
        beside_min_ratio: beside.map(|b| min_s / b[1]),
        beside_fails: seen[0].beside_fails.clone(),
        beside_lacks: seen[0].beside_lacks,
        gflops: match seen[0].work {
            Some(Work::Flops(n)) => Some(rate(n)),
            _ => None,
        },
        gbytes_per_s: match seen[0].work {
            Some(Work::Bytes(n)) => Some(rate(n)),
            _ => None,
        },
    })
}

/// Median and least over repetitions of (latest end - earliest start), per call.
fn times(seen: &[Seen], batch: usize, of: impl Fn(&Seen) -> &[Span]) -> [f64; 2] {
    let seconds: Vec<f64> = (0..of(&seen[0]).len())
        .filter_map(|k| {
            let start = seen.iter().map(|s| of(s)[k].start).min()?;
            let end = seen.iter().map(|s| of(s)[k].end).max()?;
            Some((end - start).as_secs_f64() / batch as f64)
        })
        .collect();
    middle_and_least(seconds).unwrap_or([f64::NAN; 2])
}

/// Median and least of some times, if there are any.
fn middle_and_least(mut seconds: Vec<f64>) -> Option<[f64; 2]> {
    seconds.sort_by(f64::total_cmp);
    Some([*seconds.get(seconds.len() / 2)?, seconds[0]])
}

/// The median over repetitions of how long the busiest rank's calls took to return, per call.
fn host_seconds(seen: &[Seen], batch: usize) -> f64 {
    let busy = |s: &Seen, k: usize| (s.steps[k].returned - s.steps[k].start).as_secs_f64();
    let mut seconds: Vec<f64> = (0..seen[0].steps.len())
        .map(|k| seen.iter().map(|s| busy(s, k)).fold(0.0, f64::max) / batch as f64)
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn on_rank(
    ctx: &Context,
    spec: &Spec,
    effort: &Effort,
    shared: &Shared,
    peers: &Mutex<Option<Peers>>,
) -> Result<Seen> {
    let mut bench = (spec.build)(ctx)?;
    let world = ctx.world();
    let check = match bench.check.take() {
        Some(check) => check()?,
        None => None,
    };
    for _ in 0..effort.warm {
        (bench.step)()?;
        if let Some(limit) = &mut bench.limit {
            (limit.step)()?;
        }
    }
    // A peer answers rank 0, and works while all ranks wait for that at a barrier.
    let mut peers = match ctx.rank() {
        0 => peers.lock().ok(),
        _ => None,
    };
    let peers = peers.as_mut().and_then(|p| p.as_mut());
    let mut beside = Beside::prepare(peers, spec, &bench)?;
    if ctx.rank() == 0 {
        let once = beside.seconds(1).unwrap_or_default();
        shared.beside_once.get_or_init(|| once);
    }
    let device = ctx.device();
    device.synchronize()?;
    world.barrier()?;
    // Of many ranks the last to come finds all others there, and sees next to nothing of a single call.
    let calls = 1 + spec.ranks / 8;
    let one_of = |span: Span| span.seconds() / calls as f64;
    let mut once = one_of(timed(device, &mut bench.step, calls)?);
    for _ in 0..2 {
        once = once.min(one_of(timed(device, &mut bench.step, calls)?));
    }
    let limit_once = match &mut bench.limit {
        Some(limit) => one_of(timed(device, &mut limit.step, calls)?),
        None => 0.0,
    };
    let beside_once = shared.beside_once.get().copied().unwrap_or_default();
    // All ranks take the numbers of the one that comes here first.
    let turns = *shared.turns.get_or_init(|| {
        // Ranks that share cores begin and end one after the other, which is part of the time of a batch and as long as a call
        // or two: there must be many calls in one.
        let least = if device.kind().is_cuda() {
            GPU_BATCH_SECONDS
        } else {
            BATCH_SECONDS
        };
        let least = least * (spec.ranks as f64 / 2.0).max(1.0);
        let batch = |once: f64| (least / once).clamp(1.0, 10_000.0).ceil();
        let each = [once, limit_once, beside_once].map(|once| batch(once) * once);
        let [least, most] = effort.repetitions;
        Turns {
            batch: batch(once) as usize,
            limit_batch: batch(limit_once) as usize,
            beside_batch: batch(beside_once) as usize,
            repetitions: ((effort.seconds / each.iter().sum::<f64>()) as usize).clamp(least, most),
        }
    });
    let (mut steps, mut limits, mut besides) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..turns.repetitions {
        world.barrier()?;
        steps.push(timed(device, &mut bench.step, turns.batch)?);
        if let Some(limit) = &mut bench.limit {
            world.barrier()?;
            limits.push(timed(device, &mut limit.step, turns.limit_batch)?);
        }
        besides.extend(beside.seconds(turns.beside_batch));
    }
    Ok(Seen {
        check,
        tolerance: bench.tolerance,
        limit: bench.limit.map(|l| (l.kind, l.scale)),
        work: bench.work,
        turns,
        steps,
        limits,
        beside: besides,
        beside_fails: beside.fails,
        beside_lacks: beside.lacks,
    })
}

/// A peer that has the case, until it fails.
struct Beside<'a> {
    peers: Option<&'a mut Peers>,
    ranks: usize,
    fails: Option<String>,
    lacks: bool,
}

impl<'a> Beside<'a> {
    /// # Errors
    /// As [`Peers::prepare`].
    fn prepare(peers: Option<&'a mut Peers>, spec: &Spec, bench: &Bench) -> Result<Self> {
        let mut beside = Self {
            peers,
            ranks: spec.ranks,
            fails: None,
            lacks: false,
        };
        if let Some(peers) = &mut beside.peers {
            let answer = peers.prepare(&spec.name, spec.ranks, bench);
            match answer.map_err(Error::custom)? {
                Answer::Ready => {}
                Answer::Differs(told) => beside.fails = Some(told),
                Answer::Absent => (beside.peers, beside.lacks) = (None, true),
                Answer::Fails(told) => beside.give_up(told),
            }
        }
        Ok(beside)
    }

    /// Seconds that so many calls took, if there is a peer that does them.
    fn seconds(&mut self, calls: usize) -> Option<f64> {
        let answer = self.peers.as_mut()?.seconds(self.ranks, calls);
        answer.map_err(|told| self.give_up(told)).ok()
    }

    fn give_up(&mut self, told: String) {
        self.peers = None;
        self.fails = Some(told);
    }
}

fn timed(device: &DeviceRef, step: &mut Step, batch: usize) -> Result<Span> {
    let start = Instant::now();
    for _ in 1..batch {
        black_box(step()?);
    }
    let last = black_box(step()?);
    let returned = Instant::now();
    device.synchronize()?;
    let end = Instant::now();
    drop(last);
    Ok(Span {
        start,
        returned,
        end,
    })
}

//! Timing a case and its limit in turns.

use crate::suite::{Spec, Split};
use serde::Serialize;
use shard_ops::kernels::gemm::{Mat, MatMut, gemm};
use shard_tensor::{Context, Launch, Result};
use std::any::Any;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// How far a result may be from one rank's, as a share of the largest element.
pub(crate) const TOLERANCE: f64 = 1e-4;

/// Short calls are repeated until they take this many seconds together.
const BATCH_SECONDS: f64 = 200e-6;

/// What is done once; what it returns is dropped after the clock has been read.
pub(crate) type Step = Box<dyn FnMut() -> Result<Box<dyn Any>>>;

/// A step from a function.
pub(crate) fn step<T: 'static>(mut f: impl FnMut() -> Result<T> + 'static) -> Step {
    Box::new(move || Ok(Box::new(f()?)))
}

/// How far the result is from what it should be, on the ranks that know. All ranks call it.
pub(crate) type Check = Box<dyn FnOnce() -> Result<Option<f64>>>;

/// A case on one rank.
pub(crate) struct Bench {
    pub(crate) step: Step,
    pub(crate) limit: Option<Limit>,
    pub(crate) check: Option<Check>,
    pub(crate) work: Option<Work>,
}

impl Bench {
    /// A case that is only timed.
    pub(crate) fn new<T: 'static>(f: impl FnMut() -> Result<T> + 'static) -> Self {
        Self {
            step: step(f),
            limit: None,
            check: None,
            work: None,
        }
    }

    pub(crate) fn limit(self, limit: Limit) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    pub(crate) fn check(self, check: impl FnOnce() -> Result<Option<f64>> + 'static) -> Self {
        Self {
            check: Some(Box::new(check)),
            ..self
        }
    }

    pub(crate) fn work(self, work: Work) -> Self {
        Self {
            work: Some(work),
            ..self
        }
    }
}

/// What the ranks do together in one call.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Flops(f64),
    Bytes(f64),
}

/// What bounds a case.
pub(crate) struct Limit {
    pub(crate) kind: &'static str,
    pub(crate) step: Step,
    /// How many times as long as the step the limit is.
    pub(crate) scale: f64,
}

impl Limit {
    pub(crate) fn new<T: 'static>(
        kind: &'static str,
        f: impl FnMut() -> Result<T> + 'static,
    ) -> Self {
        Self {
            kind,
            step: step(f),
            scale: 1.0,
        }
    }

    /// A copy of this many bytes to warm memory on this rank.
    pub(crate) fn memcpy(bytes: usize) -> Self {
        let from: Vec<f32> = (0..bytes / 4).map(|i| (i % 1021) as f32).collect();
        let mut to = from.clone();
        Self::new("memcpy", move || {
            black_box(&mut to).copy_from_slice(black_box(&from));
            Ok(())
        })
    }

    /// As many operations on this rank as this, at the rate of matrix products that fit the caches.
    pub(crate) fn gemm_rate(flops: f64) -> Self {
        const N: usize = 768;
        let a: Vec<f32> = (0..N * N).map(|i| (i % 13) as f32 / 13.0).collect();
        let mut c = a.clone();
        Self {
            kind: "gemm rate",
            scale: flops / (2 * N * N * N) as f64,
            step: step(move || {
                let (a, b) = (Mat::row_major(&a, N), Mat::row_major(&a, N));
                gemm(
                    N,
                    N,
                    N,
                    a,
                    b,
                    MatMut::row_major(black_box(&mut c), N),
                    false,
                );
                Ok(())
            }),
        }
    }
}

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
    pub(crate) ranks: usize,
    /// Of each rank.
    pub(crate) threads: usize,
    pub(crate) split: &'static str,
    pub(crate) median_s: f64,
    pub(crate) min_s: f64,
    pub(crate) reps: usize,
    /// The largest difference from one rank's result as a share of its largest element; `None` where there is none.
    pub(crate) check: Option<f64>,
    pub(crate) limit: Option<&'static str>,
    pub(crate) limit_s: Option<f64>,
    pub(crate) limit_min_s: Option<f64>,
    /// Of the medians.
    pub(crate) ratio: Option<f64>,
    /// Of the least times, which others on the machine disturb least.
    pub(crate) min_ratio: Option<f64>,
    /// Of all ranks together, at the least time.
    pub(crate) gflops: Option<f64>,
    pub(crate) gbytes_per_s: Option<f64>,
}

/// When one rank began and ended one repetition.
type Span = (Instant, Instant);

/// How often the step and the limit run; the same on all ranks.
#[derive(Clone, Copy)]
struct Turns {
    batch: usize,
    limit_batch: usize,
    repetitions: usize,
}

/// What one rank saw.
struct Seen {
    check: Option<f64>,
    limit: Option<(&'static str, f64)>,
    work: Option<Work>,
    turns: Turns,
    steps: Vec<Span>,
    limits: Vec<Span>,
}

/// Runs a case on its ranks.
pub(crate) fn measure(spec: &Spec, split: Split, effort: &Effort) -> Result<Record> {
    let turns = OnceLock::new();
    let seen = Launch::new(spec.ranks).run(|ctx| on_rank(ctx, spec, effort, &turns))?;
    let Turns {
        batch,
        limit_batch,
        repetitions,
    } = seen[0].turns;
    let [median_s, min_s] = times(&seen, batch, |s| &s.steps);
    let limit = seen[0].limit;
    let limits =
        limit.map(|(_, scale)| times(&seen, limit_batch, |s| &s.limits).map(|t| t * scale));
    let rate = |per_call: f64| per_call / min_s / 1e9;
    Ok(Record {
        case: spec.name.clone(),
        peer: "rust",
        ranks: spec.ranks,
        threads: 1,
        split: split.name(),
        median_s,
        min_s,
        reps: repetitions,
        check: seen.iter().find_map(|s| s.check),
        limit: limit.map(|l| l.0),
        limit_s: limits.map(|l| l[0]),
        limit_min_s: limits.map(|l| l[1]),
        ratio: limits.map(|l| median_s / l[0]),
        min_ratio: limits.map(|l| min_s / l[1]),
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
    let mut seconds: Vec<f64> = (0..of(&seen[0]).len())
        .filter_map(|k| {
            let start = seen.iter().map(|s| of(s)[k].0).min()?;
            let end = seen.iter().map(|s| of(s)[k].1).max()?;
            Some((end - start).as_secs_f64() / batch as f64)
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    [seconds[seconds.len() / 2], seconds[0]]
}

fn on_rank(ctx: &Context, spec: &Spec, effort: &Effort, turns: &OnceLock<Turns>) -> Result<Seen> {
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
    world.barrier()?;
    let mut once = seconds(timed(&mut bench.step, 1)?);
    for _ in 0..2 {
        once = once.min(seconds(timed(&mut bench.step, 1)?));
    }
    let limit_once = match &mut bench.limit {
        Some(limit) => seconds(timed(&mut limit.step, 1)?),
        None => 0.0,
    };
    // All ranks take the numbers of the one that comes here first.
    let turns = *turns.get_or_init(|| {
        // Ranks that share cores begin one after the other, which is part of the time of a batch.
        let least = BATCH_SECONDS * (spec.ranks as f64 / 8.0).max(1.0);
        let batch = |once: f64| (least / once).clamp(1.0, 10_000.0).ceil();
        let each = batch(once) * once + batch(limit_once) * limit_once;
        let [least, most] = effort.repetitions;
        Turns {
            batch: batch(once) as usize,
            limit_batch: batch(limit_once) as usize,
            repetitions: ((effort.seconds / each) as usize).clamp(least, most),
        }
    });
    let (mut steps, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..turns.repetitions {
        world.barrier()?;
        steps.push(timed(&mut bench.step, turns.batch)?);
        if let Some(limit) = &mut bench.limit {
            world.barrier()?;
            limits.push(timed(&mut limit.step, turns.limit_batch)?);
        }
    }
    Ok(Seen {
        check,
        limit: bench.limit.map(|l| (l.kind, l.scale)),
        work: bench.work,
        turns,
        steps,
        limits,
    })
}

fn timed(step: &mut Step, batch: usize) -> Result<Span> {
    let start = Instant::now();
    for _ in 1..batch {
        black_box(step()?);
    }
    let last = black_box(step()?);
    let end = Instant::now();
    drop(last);
    Ok((start, end))
}

fn seconds(span: Span) -> f64 {
    (span.1 - span.0).as_secs_f64().max(1e-9)
}

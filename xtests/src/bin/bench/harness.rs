//! Timing a case and its limit in turns.

use crate::suite::{Options, Spec};
use crate::tensors::fill;
use serde::Serialize;
use shard_comm::{DType, DeviceRef, Strided};
use shard_kernels::gemm::{Mat, MatMut, gemm};
use shard_tensor::{Binding, Context, DeviceKind, Launch, Result, replicate};
use std::any::Any;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// How far a result may be from one rank's, as a share of the largest element.
pub(crate) const TOLERANCE: f64 = 1e-4;

/// Short calls are repeated until they take this many seconds together.
const BATCH_SECONDS: f64 = 200e-6;
/// The same on a GPU, where the end of a batch is waited for, which takes some microseconds.
const GPU_BATCH_SECONDS: f64 = 2e-3;

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

    /// A copy of this many bytes to warm memory on this rank: on a GPU the driver's own, from device to device.
    pub(crate) fn memcpy(ctx: &Context, bytes: usize) -> Result<Self> {
        if ctx.device().kind().is_cuda() {
            return Self::device_copy(ctx.device(), bytes);
        }
        let from: Vec<f32> = (0..bytes / 4).map(|i| (i % 1021) as f32).collect();
        let mut to = from.clone();
        Ok(Self::new("memcpy", move || {
            black_box(&mut to).copy_from_slice(black_box(&from));
            Ok(())
        }))
    }

    /// A copy of this many bytes from one place of a device's memory to another.
    pub(crate) fn device_copy(device: &DeviceRef, bytes: usize) -> Result<Self> {
        let (device, all) = (device.clone(), Strided::contiguous(&[bytes / 4]));
        let mut from = device.alloc(DType::F32, bytes / 4)?;
        device.fill(&mut from, &all, shard_comm::Scalar::F64(1.0))?;
        let (from, mut to) = (from.freeze(), device.alloc(DType::F32, bytes / 4)?);
        Ok(Self::new("d2d copy", move || {
            Ok(device.copy(&from, &all, &mut to, &all)?)
        }))
    }

    /// As many operations on this rank as this, at the rate of matrix products: on the host of those that fit the caches, on a
    /// GPU of the library's own in single precision.
    pub(crate) fn gemm_rate(ctx: &Context, flops: f64) -> Result<Self> {
        let scale = |n: usize| flops / (2 * n * n * n) as f64;
        if ctx.device().kind().is_cuda() {
            let n = match ctx.device().kind() {
                DeviceKind::Cuda => 4096,
                _ => 32,
            };
            let mesh = ctx.mesh_of(ctx.world_size())?.with_dtype(DType::F32);
            let own = |seed| fill(&mesh, &[n, n], [replicate()], seed)?.to_local();
            let (a, b) = (own(1)?, own(2)?);
            return Ok(Self {
                kind: "own matmul",
                scale: scale(n),
                step: step(move || a.matmul(&b)),
            });
        }
        const N: usize = 768;
        let a: Vec<f32> = (0..N * N).map(|i| (i % 13) as f32 / 13.0).collect();
        let mut c = a.clone();
        Ok(Self {
            kind: "gemm rate",
            scale: scale(N),
            step: step(move || {
                let (a, b) = (Mat::row_major(&a, N), Mat::row_major(&a, N));
                let to = MatMut::row_major(black_box(&mut c), N);
                gemm(N, N, N, a, b, to, false);
                Ok(())
            }),
        })
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
pub(crate) fn measure(spec: &Spec, options: &Options, effort: &Effort) -> Result<Record> {
    let turns = OnceLock::new();
    let launch = Launch::new(spec.ranks).device(options.device);
    // The machine is this program's, and figures shall not depend on where the system puts two ranks.
    let launch = launch.binding(Binding::Core);
    let seen = launch.run(|ctx| on_rank(ctx, spec, effort, &turns))?;
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
        device: options.device.to_string(),
        ranks: spec.ranks,
        threads: 1,
        split: options.split.name(),
        median_s,
        min_s,
        reps: repetitions,
        host_s: (options.device.is_cuda()).then(|| host_seconds(&seen, batch)),
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
            let start = seen.iter().map(|s| of(s)[k].start).min()?;
            let end = seen.iter().map(|s| of(s)[k].end).max()?;
            Some((end - start).as_secs_f64() / batch as f64)
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    [seconds[seconds.len() / 2], seconds[0]]
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
    // All ranks take the numbers of the one that comes here first.
    let turns = *turns.get_or_init(|| {
        // Ranks that share cores begin and end one after the other, which is part of the time of a batch and as long as a call
        // or two: there must be many calls in one.
        let least = if device.kind().is_cuda() {
            GPU_BATCH_SECONDS
        } else {
            BATCH_SECONDS
        };
        let least = least * (spec.ranks as f64 / 2.0).max(1.0);
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
        steps.push(timed(device, &mut bench.step, turns.batch)?);
        if let Some(limit) = &mut bench.limit {
            world.barrier()?;
            limits.push(timed(device, &mut limit.step, turns.limit_batch)?);
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

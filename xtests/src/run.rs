//! Many trials: every case on every mesh, round after round, within a budget of time or a number of combinations.

use crate::case::{Case, Data, Tensor};
use crate::dispatch::{self, Apply};
use crate::harness::On;
use crate::layouts::{Draft, Drafts, Operand, Plan, drafts};
#[cfg(feature = "mpi")]
use crate::processes::Group;
use crate::report::{CaseReport, Incident, Report, Status};
use crate::sixteen;
use crate::trial::{Trial, Verdict, run_trials};
use shard_comm::{DType, FaultKind};
use shard_ops::testing as arrays;
use shard_ops::testing::Rng;
use shard_ops::testing::Tolerance;
use shard_spec::{DeviceMesh, Layout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rank counts: a 1-D mesh of each; 4 adds a 2 x 2 mesh and 6 a 2 x 3 mesh.
    pub ranks: Vec<usize>,
    /// All placements with all splits.
    pub exhaustive: bool,
    /// Fixes every random choice.
    pub seed: u64,
    /// When to stop starting trials.
    pub budget: Option<Duration>,
    /// How many combinations of a case on a mesh are tried at most.
    pub most: usize,
    /// How long one trial may take before it counts as a hang.
    pub patience: Duration,
    /// How many groups of ranks run side by side.
    pub jobs: usize,
    /// Where all trials run; by default on the host, and some on the test device.
    pub device: Option<On>,
    /// The type of floats, of 16 bits, of cases that are [in it](crate::sixteen); by default f64, and in some trials f32.
    pub float: Option<DType>,
    /// Which kinds of faults a sweep of them tries.
    pub faults: Vec<FaultKind>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ranks: vec![1, 2, 3, 4, 6, 8],
            exhaustive: false,
            seed: 0,
            budget: None,
            most: usize::MAX,
            patience: Duration::from_secs(60),
            jobs: std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(8),
            device: None,
            float: None,
            faults: FaultKind::ALL.to_vec(),
        }
    }
}

/// How many failures of a case are kept, and after how many it is given up.
const KEPT: usize = 5;
const ENOUGH: usize = 50;
/// One trial in so many runs on the test device, one in so many in single precision, and, on GPUs, one in so many on kernels
/// of our own alone.
const ON_TEST_DEVICE: usize = 5;
const IN_F32: usize = 6;
const WITHOUT_LIBRARIES: usize = 3;

/// Every so many-th trial is of a checkpointed function.
const AGAIN: usize = 6;

/// Runs cases. Cases whose op is not built are skipped by name.
///
/// Within a budget every case gets one layout on every mesh first; then batches grow. If a trial takes longer than
/// `options.patience`, `on_hang` is called with the report as it stands, the case in question failed: threads
/// that hang cannot be stopped, so it had better end the process.
pub fn run(cases: &[Case], options: &Options, on_hang: &(dyn Fn(&Report) + Sync)) -> Report {
    let meshes = meshes(&options.ranks);
    let state = State::new(cases, options.seed);
    let deadline = options.budget.map(|b| Instant::now() + b);
    let late = || deadline.is_some_and(|d| Instant::now() >= d);
    let done = AtomicBool::new(false);
    let beats: Vec<Mutex<Option<Beat>>> =
        (0..options.jobs.max(1)).map(|_| Mutex::new(None)).collect();
    let queue = Queue::new(&state, cases, &meshes, options);

    std::thread::scope(|scope| {
        let watchdog = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let stuck = beats.iter().find_map(|b| {
                    lock(b)
                        .as_ref()
                        .filter(|b| b.since.elapsed() > options.patience)
                        .cloned()
                });
                if let Some(beat) = stuck {
                    let seconds = options.patience.as_secs();
                    state.broken(&beat, "hang", format!("hang: no result after {seconds} s"));
                    on_hang(&state.report());
                    return;
                }
                std::thread::park_timeout(Duration::from_millis(200));
            }
        });
        let workers: Vec<_> = beats
            .iter()
            .map(|beat| {
                let (queue, state) = (&queue, &state);
                scope.spawn(move || {
                    while !late() {
                        let Some(work) = queue.next() else { break };
                        let started = |i: usize| {
                            let what = work
                                .trials
                                .get(i)
                                .map_or_else(String::new, Trial::to_string);
                            let mesh = work.mesh.shape().to_vec();
                            *lock(beat) = Some(Beat {
                                case: work.case,
                                mesh,
                                what,
                                since: Instant::now(),
                            });
                        };
                        started(0);
                        let verdicts = run_trials(
                            &cases[work.case],
                            work.apply,
                            &work.mesh,
                            &work.trials,
                            &started,
                        );
                        *lock(beat) = None;
                        state.add(&work, &verdicts);
                    }
                })
            })
            .collect();
        for worker in workers {
            // A panic of a worker is a mistake of the runner: let it be seen.
            if let Err(panic) = worker.join() {
                done.store(true, Ordering::Release);
                std::panic::resume_unwind(panic);
            }
        }
        done.store(true, Ordering::Release);
        watchdog.thread().unpark();
    });
    state.report()
}

/// As [`run`], on ranks that are processes, all in host memory. Every process walks the same list, and gets the same
/// report, by the clock of the first; [`Group::is_whole`] says whether the list was cut short by a rank that panicked,
/// or one that did not come to an end in time.
///
/// # Collective
/// All processes, with the same arguments.
#[cfg(feature = "mpi")]
pub fn run_on_processes(cases: &[Case], options: &Options, group: &Group) -> Report {
    let meshes = meshes(&options.ranks);
    let state = State::new(cases, options.seed);
    let deadline = options.budget.map(|b| Instant::now() + b);
    let late = || deadline.is_some_and(|d| Instant::now() >= d);
    let queue = Queue::new(&state, cases, &meshes, options);
    while let Some(mut work) = queue.next() {
        for trial in &mut work.trials {
            trial.on = On::Host;
        }
        let mut verdicts = Vec::new();
        let case = &cases[work.case];
        let cut = group.trials(case, work.apply, &work.mesh, &work.trials, &mut verdicts);
        let place = verdicts.len();
        work.trials.truncate(place + 1);
        let broken = work.trials.get(place).map(Trial::to_string);
        state.add(&work, &verdicts);
        let cut = cut.and_then(|()| group.of_first(late()));
        match cut {
            Ok(false) => {}
            Ok(true) => break,
            Err(cause) => {
                let beat = Beat {
                    case: work.case,
                    mesh: work.mesh.shape().to_vec(),
                    what: broken.unwrap_or_default(),
                    since: Instant::now(),
                };
                state.broken(&beat, "the ranks broke", cause);
                break;
            }
        }
    }
    state.report()
}

/// The meshes for some rank counts.
pub fn meshes(ranks: &[usize]) -> Vec<DeviceMesh> {
    let mut shapes: Vec<Vec<usize>> = ranks.iter().map(|&p| vec![p]).collect();
    for (p, shape) in [(4, vec![2, 2]), (6, vec![2, 3])] {
        if ranks.contains(&p) {
            shapes.push(shape);
        }
    }
    // A count of zero has no mesh.
    shapes
        .iter()
        .filter_map(|s| DeviceMesh::new(s).ok())
        .collect()
}

/// A trial in progress.
#[derive(Clone, Debug)]
struct Beat {
    case: usize,
    mesh: Vec<usize>,
    what: String,
    since: Instant,
}

/// Trials of one case on one mesh, to run on one group.
struct Work {
    case: usize,
    apply: Apply,
    mesh: DeviceMesh,
    trials: Vec<Trial>,
}

/// Results so far.
struct State {
    seed: u64,
    cases: Mutex<Vec<Progress>>,
}

struct Progress {
    report: CaseReport,
    apply: Option<Apply>,
    passed: usize,
    /// Whether rounding the inputs to single precision alone spoils the result; `None` until tried.
    f32_unfit: Option<bool>,
}

impl State {
    fn new(cases: &[Case], seed: u64) -> Self {
        let of = |case: &Case| match dispatch::find(case) {
            Ok(apply) => Progress {
                report: CaseReport::skipped(&case.name, &case.op, "time ran out"),
                apply: Some(apply),
                passed: 0,
                f32_unfit: None,
            },
            Err(reason) => Progress {
                report: CaseReport::skipped(&case.name, &case.op, &reason),
                apply: None,
                passed: 0,
                f32_unfit: None,
            },
        };
        Self {
            seed,
            cases: Mutex::new(cases.iter().map(of).collect()),
        }
    }

    fn add(&self, work: &Work, verdicts: &[Verdict]) {
        let mut cases = lock(&self.cases);
        let progress = &mut cases[work.case];
        let report = &mut progress.report;
        for (trial, verdict) in work.trials.iter().zip(verdicts) {
            report.layouts += 1;
            let incident = |reason: &str| Incident {
                mesh: work.mesh.shape().to_vec(),
                layouts: trial.to_string(),
                reason: reason.to_owned(),
            };
            match verdict {
                Verdict::Pass => progress.passed += 1,
                Verdict::Refused(reason) => report.refused.push(incident(reason)),
                Verdict::Fail(reason) => {
                    report.failed += 1;
                    if report.failures.len() < KEPT {
                        report.failures.push(incident(reason));
                    }
                }
            }
        }
        (report.status, report.reason) = match (report.failed, progress.passed) {
            (0, 0) => (Status::Fail, Some("every layout was refused".to_owned())),
            (0, _) => (Status::Pass, None),
            _ => (Status::Fail, None),
        };
    }

    /// A trial after which nothing more can be tried.
    fn broken(&self, beat: &Beat, reason: &str, details: String) {
        let mut cases = lock(&self.cases);
        let report = &mut cases[beat.case].report;
        report.status = Status::Fail;
        report.reason = Some(reason.to_owned());
        report.failed += 1;
        report.layouts += 1;
        report.failures.push(Incident {
            mesh: beat.mesh.clone(),
            layouts: beat.what.clone(),
            reason: details,
        });
    }

    fn report(&self) -> Report {
        let cases = lock(&self.cases).iter().map(|p| p.report.clone()).collect();
        Report {
            seed: self.seed,
            cases,
        }
    }
}

/// Work in a fixed order: rounds over all cases and meshes, with batches that grow from round to round.
struct Queue<'a> {
    state: &'a State,
    cases: &'a [Case],
    meshes: &'a [DeviceMesh],
    options: &'a Options,
    place: Mutex<Place>,
    /// The combinations for a case on a mesh, made when first needed.
    drafts: Vec<Mutex<Option<Drafts>>>,
}

#[derive(Default)]
struct Place {
    round: u32,
    unit: usize,
    /// Whether this round has found anything to do.
    busy: bool,
}

impl<'a> Queue<'a> {
    fn new(
        state: &'a State,
        cases: &'a [Case],
        meshes: &'a [DeviceMesh],
        options: &'a Options,
    ) -> Self {
        let drafts = (0..cases.len() * meshes.len())
            .map(|_| Mutex::new(None))
            .collect();
        Self {
            state,
            cases,
            meshes,
            options,
            place: Mutex::default(),
            drafts,
        }
    }

    fn next(&self) -> Option<Work> {
        loop {
            let (round, unit) = {
                let mut place = lock(&self.place);
                if place.unit == self.drafts.len() {
                    if !place.busy {
                        return None;
                    }
                    *place = Place {
                        round: place.round + 1,
                        ..Place::default()
                    };
                }
                place.unit += 1;
                (place.round, place.unit - 1)
            };
            if let Some(work) = self.work(round, unit) {
                lock(&self.place).busy = true;
                return Some(work);
            }
        }
    }

    /// The batch of a round for a unit, unless its trials are all done or its case has failed enough.
    fn work(&self, round: u32, unit: usize) -> Option<Work> {
        let (mesh, case) = (unit / self.cases.len(), unit % self.cases.len());
        let mesh = &self.meshes[mesh];
        let apply = {
            let cases = lock(&self.state.cases);
            let progress = &cases[case];
            if progress.report.failed >= ENOUGH {
                return None;
            }
            progress.apply?
        };
        // Where time may run out, batches of 1, 3, 9, 27, then 64, so that every case comes soon. Else each group of ranks has many.
        let size = |r: u32| match self.options.budget {
            Some(_) => 3_usize.pow(r.min(4)).min(64),
            None => 64,
        };
        let most = self.options.most;
        let first = (0..round).map(size).sum::<usize>().min(most);
        let end = (first + size(round)).min(most);
        let drafts = {
            let mut drafts = lock(&self.drafts[unit]);
            let drafts =
                drafts.get_or_insert_with(|| combinations(&self.cases[case], mesh, self.options));
            // The choices are valid by construction; one that is not would leave nothing to try, and the case skipped.
            let known = drafts.first(end).unwrap_or_default();
            known.get(first..).unwrap_or_default().to_vec()
        };
        let mut batch: Vec<Trial> = (first..)
            .zip(&drafts)
            .filter_map(|(place, draft)| trial(&self.cases[case], mesh, self.options, place, draft))
            .collect();
        if batch.is_empty() {
            return None;
        }
        // A group of ranks has one kind of device.
        batch.sort_by_key(|t| t.on == On::TestDevice);
        if batch.iter().any(|t| t.float == DType::F32) && self.f32_unfit(case, apply) {
            for trial in &mut batch {
                (trial.float, trial.tolerance) = (DType::F64, Tolerance::F64);
            }
        }
        Some(Work {
            case,
            apply,
            mesh: mesh.clone(),
            trials: batch,
        })
    }

    /// Whether a case cannot meet the tolerance in single precision, because rounding its inputs alone changes
    /// the double-precision result by more than a part of it.
    fn f32_unfit(&self, case: usize, apply: Apply) -> bool {
        if let Some(known) = lock(&self.state.cases)[case].f32_unfit {
            return known;
        }
        let unfit = !survives_rounding(&self.cases[case], apply);
        lock(&self.state.cases)[case].f32_unfit = Some(unfit);
        unfit
    }
}

fn operands(case: &Case) -> Vec<Operand> {
    let of = |t: &Tensor| Operand {
        shape: t.shape.clone(),
        sums: true,
    };
    case.inputs.iter().map(|(_, t)| of(t)).collect()
}

/// The combinations for a case on a mesh, in the order the seed fixes.
pub(crate) fn combinations(case: &Case, mesh: &DeviceMesh, options: &Options) -> Drafts {
    let plan = Plan {
        exhaustive: options.exhaustive,
        ..Plan::new(options.seed)
    };
    drafts(mesh, &operands(case), &plan, &case.name)
}

/// The trial of the combination at a place of the sequence: it, on a device and in a type that the seed fixes.
pub(crate) fn trial(
    case: &Case,
    mesh: &DeviceMesh,
    options: &Options,
    place: usize,
    draft: &Draft,
) -> Option<Trial> {
    let mut rng = Rng::new(
        options.seed,
        &[&case.name, &format!("{:?} {place}", mesh.shape())],
    );
    let mut trial = Trial::new(draft.build(mesh, &operands(case)).ok()?);
    if rng.one_in(ON_TEST_DEVICE) {
        trial.on = On::TestDevice;
    }
    trial.on = options.device.unwrap_or(trial.on);
    if rng.one_in(IN_F32) {
        (trial.float, trial.tolerance) = (DType::F32, Tolerance::F32);
    }
    if let Some(float) = options.float {
        (trial.float, trial.tolerance) = (float, sixteen::tolerance(&case.name, float));
    }
    let gpus = !matches!(trial.on, On::Host | On::TestDevice);
    trial.libraries = !(gpus && rng.one_in(WITHOUT_LIBRARIES));
    trial.again = rng.one_in(AGAIN);
    Some(trial)
}

/// Whether the case gives nearly the same on one rank in double precision from inputs rounded to single.
fn survives_rounding(case: &Case, apply: Apply) -> bool {
    let round = |t: &Tensor| match &*t.data {
        Data::F64(v) => arrays::tensor(&t.shape, |i| f64::from(v[i] as f32)),
        _ => t.clone(),
    };
    let mut rounded = case.clone();
    for (_, tensor) in &mut rounded.inputs {
        *tensor = round(tensor);
    }
    let Ok(mesh) = DeviceMesh::new(&[1]) else {
        return false;
    };
    let layouts = rounded
        .inputs
        .iter()
        .map(|(_, t)| Layout::replicated(&mesh, &t.shape))
        .collect();
    let tolerance = Tolerance::relative(Tolerance::F32.relative / 8.0);
    let trial = Trial {
        tolerance,
        ..Trial::new(layouts)
    };
    run_trials(&rounded, apply, &mesh, &[trial], &|_| ()) == [Verdict::Pass]
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

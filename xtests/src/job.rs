//! A job of properties: all processes run the same ones in the same order, and wherever a function is to run on the ranks of a mesh
//! they are its ranks.

use crate::case::Case;
use crate::dispatch::Apply;
use crate::harness::{On, on_threads};
use crate::processes::Group;
use crate::say;
use crate::strategies::{Draw, draw};
use crate::trial::{Trial, Verdict, trials_on_threads};
use libtest_mimic::{Arguments, Failed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shard_redistribute::MeshComm;
use shard_spec::DeviceMesh;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// How long a process waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// The job of this process, which is its main thread's.
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
    /// Where this thread panicked last.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Job {
    group: Group,
    /// How many functions ran on its processes.
    runs: Cell<usize>,
    /// How many ran on threads of the first.
    others: Cell<usize>,
}

/// Runs properties one after the other on the processes that were started together. The first reports.
pub(crate) fn run(
    mut args: Arguments,
    wanted: Draw,
    properties: impl Iterator<Item = (String, fn())>,
) -> ExitCode {
    let started = Group::start(PATIENCE).map_err(|e| e.to_string());
    let started = started.and_then(|group| {
        // The processes must draw the same cases.
        let any = || RandomState::new().hash_one("seed");
        let seed = group.of_first(wanted.seed.unwrap_or_else(any))?;
        Ok((group, seed))
    });
    let (group, seed) = match started {
        Ok(started) => started,
        Err(cause) => {
            eprintln!("properties: {cause}");
            return ExitCode::from(2);
        }
    };
    let (size, tells) = (group.size(), group.rank() == 0 && !args.list);
    draw(Draw {
        seed: Some(seed),
        ranks: Some(size),
        ..wanted
    });
    if tells {
        say!("{size} processes, seed {seed}");
    }
    if group.rank() > 0 {
        args.logfile = Some("/dev/null".to_owned());
    }
    // On this thread, in order.
    args.test_threads = Some(1);
    // What a panic says is told with the result.
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map_or_else(String::new, |l| l.to_string());
        PLACE.set(place);
    }));
    JOB.set(Some(Job {
        group,
        runs: Cell::new(0),
        others: Cell::new(0),
    }));
    let trial = |(name, test): (String, fn())| {
        libtest_mimic::Trial::test(name.clone(), move || one(&name, test))
    };
    let conclusion = libtest_mimic::run(&args, properties.map(trial).collect());
    if let Some(Job {
        group,
        runs,
        others,
    }) = JOB.take()
    {
        if tells {
            let (runs, others) = (runs.get(), others.get());
            say!("{runs} functions ran on {size} processes, {others} on threads of the first");
        }
        group.end();
    }
    conclusion.exit_code()
}

/// What `f` gives on the ranks of a mesh: the processes of the job, if there is one; or threads of its first process, if there are
/// more ranks, or their memory is not the host's.
///
/// # Collective
/// All processes of the job.
///
/// # Panics
/// If a rank panics, or the ranks cannot work together any more.
pub(crate) fn on_mesh<T: Send + Serialize + DeserializeOwned>(
    mesh: &DeviceMesh,
    on: On,
    f: impl Fn(&Rc<MeshComm>) -> T + Sync,
) -> Option<Vec<T>> {
    let one = |cx: &Rc<MeshComm>| {
        catch_unwind(AssertUnwindSafe(|| f(cx))).unwrap_or_else(|said| {
            resume_unwind(Box::new(format!("{} at {}", text(&*said), PLACE.take())))
        })
    };
    in_job(
        mesh,
        on,
        |group| group.on_mesh(mesh, one),
        || on_threads(mesh, on, one),
    )
}

/// As [`run_trials`](crate::trial::run_trials), on ranks as of [`on_mesh`].
///
/// # Collective
/// All processes of the job.
///
/// # Panics
/// As [`on_mesh`].
pub(crate) fn trials(
    case: &Case,
    apply: Apply,
    mesh: &DeviceMesh,
    trials: &[Trial],
) -> Option<Vec<Verdict>> {
    let mut devices = trials.iter().map(|trial| trial.on);
    let elsewhere = devices.find(|&on| on != On::Host);
    let on_processes = |group: &Group| {
        let mut verdicts = Vec::new();
        let outcome = group.trials(case, apply, mesh, trials, &mut verdicts);
        outcome.map(|()| verdicts)
    };
    let on_threads = || trials_on_threads(case, apply, mesh, trials, &|_| ());
    let on = elsewhere.unwrap_or(On::Host);
    in_job(mesh, on, on_processes, on_threads)
}

fn in_job<T: Serialize + DeserializeOwned>(
    mesh: &DeviceMesh,
    on: On,
    on_processes: impl FnOnce(&Group) -> Result<T, String>,
    on_threads: impl FnOnce() -> T,
) -> Option<T> {
    JOB.with_borrow(|job| {
        let Job {
            group,
            runs,
            others,
        } = job.as_ref()?;
        let fits = on == On::Host && mesh.ranks().iter().all(|&rank| rank < group.size());
        let results = if fits {
            runs.set(runs.get() + 1);
            on_processes(group)
        } else {
            others.set(others.get() + 1);
            // A list, since a result may be an option, of which text would not keep two.
            let of_first = || {
                let first = group.rank() == 0;
                first.then(on_threads).into_iter().collect::<Vec<T>>()
            };
            let all = group.all(of_first);
            all.and_then(|all| {
                let first = all.into_iter().flatten().next();
                first.ok_or_else(|| "no ranks".to_owned())
            })
        };
        Some(results.unwrap_or_else(|cause| panic!("{cause}")))
    })
}

/// One property on all processes, who agree on what came of it.
fn one(name: &str, test: fn()) -> Result<(), Failed> {
    let said = catch_unwind(test).err().map(|said| text(&*said));
    JOB.with_borrow(|job| {
        let Some(Job { group, .. }) = job else {
            return said.map_or(Ok(()), |said| Err(said.into()));
        };
        if !group.is_whole() {
            give_up(group, name, &said.unwrap_or_default());
        }
        match group.all(|| said.clone()) {
            Ok(all) => {
                let failed = all
                    .into_iter()
                    .zip(0..)
                    .find_map(|(said, r)| Some((said?, r)));
                failed.map_or(Ok(()), |(said, rank)| {
                    Err(format!("rank {rank}: {said}").into())
                })
            }
            Err(cause) => {
                // It failed while others went on: they do not know.
                if let Some(said) = said {
                    eprintln!("rank {} in {name}: {said}", group.rank());
                }
                give_up(group, name, &cause)
            }
        }
    })
}

/// Ends the job, whose ranks cannot work together any more. The first process says why; another one only if the first is not heard of.
fn give_up(group: &Group, name: &str, cause: &str) -> ! {
    shard_comm::mpi::abandon();
    if group.rank() > 0 {
        std::thread::sleep(PATIENCE);
    }
    eprintln!("FAILED\n\n{name}: {cause}\n\nits ranks cannot work together any more: the job ends");
    std::process::exit(101)
}

/// What a panic said.
fn text(said: &(dyn Any + Send)) -> String {
    let known = said.downcast_ref::<String>().map(String::as_str);
    let known = known.or_else(|| said.downcast_ref::<&str>().copied());
    known.unwrap_or("a panic without words").to_owned()
}

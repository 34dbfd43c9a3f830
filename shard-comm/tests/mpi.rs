//! The contract and what goes wrong, on processes. Run by itself it starts `mpirun` on itself for every scenario;
//! started by that it is one of the ranks. `MPIRUN` names another launcher, as that of the MPI it was built with. With
//! `OMPI_MCA_pml=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any` Open MPI goes over UCX, as on most clusters, which
//! has fewer tags.

#[path = "mpi/large.rs"]
mod large;
#[path = "mpi/marks.rs"]
mod marks;

use shard_comm::{
    Checks, CommError, Communicator, DType, Fault, FaultKind, HostOptions, LaunchError, Monoid,
    checked, contract, faulty, mpi,
};
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Names the scenario to the ranks.
const SCENARIO: &str = "SHARD_TEST_SCENARIO";

/// Set where ranks are to agree by messages although they are on one node.
const MESSAGES: &str = "SHARD_TEST_MESSAGES";

/// What Open MPI, 4 and 5, must be told to start more processes than there are cores, and as root; others take no note.
const PERMISSIONS: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// Name, rank counts, and whether the job is to end well.
const SCENARIOS: [(&str, &[usize], bool); 30] = [
    // More than 8 ranks agree by what their records come to: 10, 13 and 16 need a second round for it.
    ("contract", &[1, 2, 3, 4, 8, 9, 10, 13, 16], true),
    ("more_groups_than_places", &[3, 8], true),
    ("one_is_late", &[2, 4], true),
    ("one_ends_late", &[2, 8], true),
    (
        "few_messages",
        &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        true,
    ),
    ("large_like_threads", &[2, 3, 4, 5, 6, 7, 8], true),
    ("large_in_a_crowd", &[3, 4, 8], true),
    ("large_of_other_lengths", &[2, 5, 8], true),
    ("large_and_metered", &[3], true),
    ("large_dies_on_the_way", &[2, 3, 8], false),
    ("share_or_not", &[2, 4], false),
    ("many_groups", &[3], true),
    ("group_number_in_use", &[3], true),
    ("every_color", &[3], true),
    // What the standard grants: 64 groups, 16 operations of each in flight.
    ("contract_with_few_tags", &[3], true),
    ("many_in_flight", &[2], true),
    ("tags_come_round", &[2], true),
    ("out_of_step", &[2, 11], false),
    ("wrong_count", &[2], true),
    ("some_ranks", &[3], true),
    ("panic", &[3, 12], false),
    ("gives_up", &[3, 12], false),
    ("ends_early", &[3, 12], false),
    ("ends_early_elsewhere", &[3], false),
    ("leaves_before_the_next_run", &[2, 3, 12], false),
    ("timeout", &[2], false),
    ("checked_contract", &[1, 2, 3, 11], true),
    ("wrong_bits", &[2, 3, 4, 12], false),
    ("wrong_bits_in_a_message", &[2], false),
    (LARGE, &[2], true),
];

/// More elements than fit the counts of MPI, in 5 GB: only if asked for by name.
const LARGE: &str = "more_than_i32";

fn main() -> ExitCode {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        be_a_rank(&scenario);
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|arg| arg == "--list") {
        return ExitCode::SUCCESS;
    }
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let wanted = |scenario: &str| match &filter {
        Some(filter) => scenario.contains(filter.as_str()),
        None => scenario != LARGE,
    };
    let jobs: Vec<Job> = (SCENARIOS.iter())
        .filter(|(scenario, ..)| wanted(scenario))
        .flat_map(|&(scenario, counts, well)| jobs_of(scenario, counts, well))
        .collect();
    // The end of a job that does not end well is mostly waited for.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(MOST_AT_A_TIME) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    start(job);
                    println!("{job}: ok");
                }
            });
        }
    });
    ExitCode::SUCCESS
}

/// How many jobs run side by side at most. Each has more ranks than there are cores as it is.
const MOST_AT_A_TIME: usize = 2;

/// A scenario on so many ranks.
struct Job {
    scenario: &'static str,
    ranks: usize,
    well: bool,
    messages: bool,
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.messages { ", by messages" } else { "" };
        write!(f, "{} on {} ranks{how}", self.scenario, self.ranks)
    }
}

/// A scenario on all of its rank counts. Up to 8 ranks of a node agree in memory that they share, those of several nodes by
/// messages: so does the largest of these counts, once more.
fn jobs_of(scenario: &'static str, counts: &[usize], well: bool) -> Vec<Job> {
    let job = |ranks, messages| Job {
        scenario,
        ranks,
        well,
        messages,
    };
    let by_messages = counts.iter().rfind(|ranks| (2..=8).contains(*ranks));
    let by_messages = by_messages.filter(|_| scenario != LARGE);
    (counts.iter().map(|&ranks| job(ranks, false)))
        .chain(by_messages.map(|&ranks| job(ranks, true)))
        .collect()
}

/// Runs a job and checks that every rank came to its end.
fn start(job: &Job) {
    let (scenario, ranks) = (job.scenario, job.ranks);
    let program = std::env::current_exe().expect("this program");
    let mpirun = std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into());
    let marks = marks::Folder::new();
    let output = Command::new(mpirun)
        .args(["-n", &ranks.to_string()])
        .arg(program)
        .env(SCENARIO, scenario)
        .envs(job.messages.then_some((MESSAGES, "1")))
        .envs([marks.variable()])
        .envs(PERMISSIONS)
        .output()
        .expect("mpirun, which the feature mpi needs");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    for rank in 0..ranks {
        assert!(
            marks.has(&saw_what_it_should(rank)),
            "{job}: rank {rank} did not see what it should\n{out}\n{err}"
        );
    }
    assert_eq!(output.status.success(), job.well, "{job}\n{out}\n{err}");
    if scenario == "panic" {
        // Of three ranks the one that panicked says so, and where; what the others make of it is theirs to handle.
        let told: Vec<&str> = err
            .lines()
            .filter(|line| line.contains("out of luck"))
            .collect();
        let places = err.lines().filter(|line| line.contains("panicked at"));
        assert_eq!((told.len(), places.count()), (1, 1), "{err}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn be_a_rank(scenario: &str) {
    let options = mpi::MpiOptions {
        host: HostOptions {
            poison: true,
            ..HostOptions::default()
        },
        ..usual()
    };
    let process = mpi::process().expect("a process of a job");
    let me = process.rank;
    let run = |f: &dyn Fn(&mpi::MpiComm)| mpi::run(&options, |comm| f(&comm));
    match scenario {
        "contract" => {
            // Twice: a job may run several programs, one after the other.
            for _ in 0..2 {
                run(&|comm| contract::all(&**comm)).expect("the contract");
            }
        }
        "more_groups_than_places" => {
            run(&more_groups_than_places)
                .expect("a run")
                .expect("a rank");
        }
        "one_is_late" => run(&one_is_late).expect("a run").expect("a rank"),
        "one_ends_late" => {
            // What the others tell each other meanwhile may still be under way when all have met: that ends no job.
            for _ in 0..2 {
                let nap = Duration::from_millis(1300);
                run(&|comm| std::thread::sleep(nap * u32::from(comm.rank() + 1 == comm.size())))
                    .expect("a run")
                    .expect("a rank");
            }
        }
        "few_messages" => run(&few_messages).expect("a run").expect("a rank"),
        "tags_come_round" => run(&tags_come_round).expect("a run").expect("a rank"),
        "out_of_step" => out_of_step(&options),
        "wrong_count" => run(&wrong_count).expect("a run").expect("a rank"),
        "some_ranks" => some_ranks(&options, me),
        "large_like_threads" => {
            run(&|comm| large::like_threads(&**comm))
                .expect("a run")
                .expect("a rank");
        }
        "large_in_a_crowd" => {
            run(&|comm| large::crowd(&**comm))
                .expect("a run")
                .expect("a rank");
        }
        "large_of_other_lengths" => {
            run(&|comm| large::differ(&**comm))
                .expect("a run")
                .expect("a rank");
        }
        "large_and_metered" => large::metered(&options),
        "large_dies_on_the_way" => large::dies_on_the_way(&options, me),
        "share_or_not" => large::share_or_not(&options, me),
        "many_groups" => run(&many_groups).expect("groups").expect("a rank"),
        "group_number_in_use" => run(&group_number_in_use).expect("a run").expect("a rank"),
        "every_color" => run(&every_color).expect("a run").expect("a rank"),
        "contract_with_few_tags" => {
            mpi::run(&few_tags(&options), |comm| contract::all(&*comm)).expect("the contract");
        }
        "many_in_flight" => {
            mpi::run(&few_tags(&options), |comm| many_in_flight(&comm)).expect("a run");
        }
        "panic" => panics(&options, me),
        "gives_up" => gives_up(&options, me),
        "ends_early" => {
            let over = run(&|comm| {
                if me != 1 {
                    let error = comm.barrier().expect_err("rank 1 has ended");
                    let of = format!("of ranks 0..={})", comm.size() - 1);
                    assert_failed(&error, 1, "without joining barrier (operation 0");
                    assert_failed(&error, 1, &of);
                }
            });
            let Err(LaunchError::Failed(error)) = over else {
                panic!("the run has failed: {over:?}");
            };
            assert_failed(&error, 1, "it ended without joining");
        }
        "ends_early_elsewhere" => {
            let over = run(&|comm| {
                let pair = comm.split(Some(usize::from(me == 2)), 0);
                let pair = pair.expect("a split").expect("a member");
                if me == 0 {
                    let error = pair.barrier().expect_err("rank 1 has ended");
                    assert_failed(&error, 1, "it ended without joining barrier");
                }
            });
            assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
        }
        LARGE => more_than_i32(me),
        "leaves_before_the_next_run" => {
            run(&|comm| comm.barrier().expect("all are there")).expect("a run");
            if me != 1 {
                let start = std::time::Instant::now();
                let over = run(&|comm| {
                    let error = comm.barrier().expect_err("process 1 has left");
                    assert_failed(
                        &error,
                        1,
                        "its process left the job without joining barrier",
                    );
                });
                assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
                assert!(start.elapsed() < Duration::from_secs(10));
            }
        }
        "timeout" => times_out(me),
        "checked_contract" => {
            let sums = Checks { checksums: true };
            run(&|comm| contract::all(&*checked(Rc::new(comm.clone()), sums)))
                .expect("the contract, with checksums");
        }
        "wrong_bits" => wrong_bits(&options),
        "wrong_bits_in_a_message" => wrong_bits_in_a_message(&options, me),
        other => panic!("no scenario {other}"),
    }
    marks::leave(&saw_what_it_should(me));
    // A process that has seen a failure ends the job: not before the others have said so too. One that is to leave goes first.
    let ends_well = (SCENARIOS.iter()).any(|(name, _, well)| *name == scenario && *well);
    let goes_first = ends_well || scenario.starts_with("leaves") && me == 1;
    if !goes_first {
        (0..process.size).for_each(|rank| marks::wait_for(&saw_what_it_should(rank)));
    }
}

/// The mark of a rank that has come to its end.
fn saw_what_it_should(rank: usize) -> String {
    format!("rank {rank} saw what it should")
}

/// The options of a launch, but for how ranks of a node agree.
fn usual() -> mpi::MpiOptions {
    mpi::MpiOptions {
        shared_memory: std::env::var_os(MESSAGES).is_none(),
        ..mpi::MpiOptions::default()
    }
}

/// More groups than there are places for in the memory of a node, dropped in another order on each rank, and again.
fn more_groups_than_places(comm: &mpi::MpiComm) {
    let (ranks, me) = (comm.size(), comm.rank());
    for turn in 0..4 {
        let mut groups: Vec<_> = (0..40)
            .map(|k| {
                // Some groups have all ranks, others leave one out, which has no place to give for them.
                let joins = k % 3 > 0 || me != (k + turn) % ranks;
                comm.split(joins.then_some(0), 0).expect("a split")
            })
            .collect();
        for round in 0..7 {
            for (k, group) in groups.iter().enumerate() {
                let Some(group) = group else { continue };
                let value = (round * 100 + k) as f64;
                let mine = comm.device().upload_slice(&[value; 5]).expect("numbers");
                let sum = group.all_reduce(&mine, Monoid::SUM).expect("a sum");
                let expected = value * group.size() as f64;
                assert_eq!(sum.to_vec::<f64>().expect("doubles"), [expected; 5]);
            }
        }
        groups.rotate_left(me * 7 % 40);
        while let Some(group) = groups.pop() {
            drop(group);
        }
    }
}

/// Many operations in flight, of all sizes, which one rank joins late and the others wait for last first.
fn one_is_late(comm: &mpi::MpiComm) {
    let (ranks, me) = (comm.size(), comm.rank());
    for late in 0..ranks {
        let nap = Duration::from_millis(20 * u64::from(me == late));
        let lengths = (0..60).map(|k| [1, 4, 100, 512, 513, 5000][k % 6]);
        let mut started: Vec<_> = lengths
            .enumerate()
            .map(|(k, len)| {
                if k % 20 == 3 {
                    std::thread::sleep(nap);
                }
                let values = vec![(k * (me + 1)) as f64; len];
                let mine = comm.device().upload_slice(&values).expect("numbers");
                let sum = comm.start_all_reduce(&mine, Monoid::SUM).expect("a sum");
                (k, len, sum)
            })
            .collect();
        while let Some((k, len, sum)) = started.pop() {
            let sum = sum.wait().expect("a sum").to_vec::<f64>().expect("doubles");
            assert_eq!(sum, vec![(k * ranks * (ranks + 1) / 2) as f64; len], "{k}");
        }
    }
}

fn assert_failed(error: &CommError, rank: usize, because: &str) {
    match error {
        CommError::PeerFailed { origin, cause } => {
            assert!(*origin == rank && cause.contains(because), "{error}");
        }
        other => panic!("expected a failure of rank {rank}, got {other}"),
    }
}

/// Fewer ranks than processes, then all of them.
fn some_ranks(options: &mpi::MpiOptions, me: usize) {
    for ranks in [2, 1, 3, 2] {
        let options = mpi::MpiOptions {
            ranks: Some(ranks),
            ..*options
        };
        let sum = mpi::run(&options, |comm| {
            let one = comm.device().upload_slice(&[1.0f64]).expect("one number");
            let sum = comm.all_reduce(&one, Monoid::SUM).expect("a sum");
            sum.to_vec::<f64>().expect("doubles")[0]
        });
        let expected = (me < ranks).then_some(ranks as f64);
        assert_eq!(sum.expect("a run"), expected);
    }
    let many = mpi::MpiOptions {
        ranks: Some(4),
        ..*options
    };
    let error = mpi::run(&many, |_| ()).expect_err("too few processes");
    assert!(
        error.to_string().contains("4 ranks and 3 processes"),
        "{error}"
    );
}

/// How many messages a rank has grows with the logarithm of the number of ranks: to agree, and to sum up few elements and many.
fn few_messages(comm: &mpi::MpiComm) {
    let ranks = comm.size();
    let doublings = u64::from(ranks.next_power_of_two().ilog2());
    let upload = |len: usize| {
        let values = vec![1.0 + comm.rank() as f64; len];
        comm.device().upload_slice(&values).expect("numbers")
    };
    let total = (ranks * (ranks + 1) / 2) as f64;
    for len in [0, 1, 3, 100, 600, 5000, 100_000] {
        let mine = upload(len);
        let before = comm.ledger().snapshot();
        let sum = comm.all_reduce(&mine, Monoid::SUM).expect("a sum");
        let moved = comm.ledger().since(&before);
        assert_eq!(sum.to_vec::<f64>().expect("doubles"), vec![total; len]);
        assert!(moved.messages <= 2 * doublings + 2, "{len}: {moved}");
        assert!(moved.agreement_messages <= 4 * doublings, "{len}: {moved}");
    }
    let before = comm.ledger().snapshot();
    comm.barrier().expect("all are there");
    let moved = comm.ledger().since(&before);
    assert_eq!(moved.messages, 0);
    assert!(
        (1..=4 * doublings).contains(&moved.agreement_messages),
        "{moved}"
    );
}

/// More groups than there are tags for, one after the other; then two at once of which one rank is in one only.
fn many_groups(comm: &mpi::MpiComm) {
    let me = comm.rank();
    for _ in 0..1100 {
        let group = comm.split(Some(0), 0).expect("dropped groups give way");
        assert_eq!(group.expect("a member").size(), 3);
    }
    let pair = comm.split((me < 2).then_some(0), 0).expect("a split");
    let all = comm.split(Some(0), 0).expect("a split").expect("a member");
    // The first operation of both groups is under way at once, begun in another order on each rank of the pair.
    let sum = |group: &dyn Communicator, value: f64| {
        let values = comm.device().upload_slice(&[value; 3000]).expect("numbers");
        group.start_all_reduce(&values, Monoid::SUM).expect("a sum")
    };
    let in_pair = || pair.as_ref().map(|pair| sum(&**pair, 100.0));
    let (of_pair, of_all) = if me == 0 {
        let first = in_pair();
        (first, sum(&*all, 1.0))
    } else {
        let first = sum(&*all, 1.0);
        (in_pair(), first)
    };
    let read = |handle: shard_comm::Handle| {
        let sum = handle.wait().expect("a sum");
        sum.to_vec::<f64>().expect("doubles")
    };
    assert_eq!(read(of_all), [3.0; 3000]);
    assert_eq!(of_pair.map(read), (me < 2).then(|| vec![200.0; 3000]));
}

/// A group that is dropped while an operation of it is in flight: no later group has its number before that is done.
fn group_number_in_use(comm: &mpi::MpiComm) {
    let me = comm.rank();
    let upload = |value: f64| {
        let values = comm.device().upload_slice(&[value; 1000]);
        values.expect("numbers")
    };
    let pair = comm.split((me < 2).then_some(0), 0).expect("a split");
    let old = comm.split(Some(0), 0).expect("a split").expect("a member");
    let (mine, counts) = (upload(10.0 + me as f64), [1000; 3]);
    let Some(pair) = pair else {
        // Late: the two others have dropped the group, and made another one, which has its number.
        marks::wait_for("another group on rank 0");
        marks::wait_for("another group on rank 1");
        let all = old.start_all_gather_v(&mine, &counts).expect("a start");
        comm.send(0, &mine).expect("a message");
        let all = all.wait().expect("all").to_vec::<f64>().expect("doubles");
        assert!((0..3).all(|r| all[1000 * r] == 10.0 + r as f64));
        return comm.barrier().expect("all are there");
    };
    drop(old.start_all_gather_v(&mine, &counts).expect("a start"));
    drop(old);
    let new = pair.split(Some(0), 0).expect("a split").expect("a member");
    let mine = upload(20.0 + me as f64);
    let another = format!("another group on rank {me}");
    let all = if me == 0 {
        let mut all = new.start_all_gather_v(&mine, &[1000; 2]).expect("a start");
        marks::leave(&another);
        comm.recv(2, DType::F64, 1000).expect("a message");
        // Meanwhile the exchange of the old group begins here.
        for _ in 0..200 {
            assert!(!all.is_done(), "rank 1 makes no calls");
        }
        marks::leave("rank 1 may go on");
        all
    } else {
        // Rank 1 looks after nothing until the others have gone on.
        marks::leave(&another);
        marks::wait_for("rank 1 may go on");
        new.start_all_gather_v(&mine, &[1000; 2]).expect("a start")
    };
    let all = all.wait().expect("both").to_vec::<f64>().expect("doubles");
    assert!((0..2).all(|r| all[1000 * r..][..1000] == [20.0 + r as f64; 1000]));
    comm.barrier().expect("all are there");
}

/// Any number is a color, and a key.
fn every_color(comm: &mpi::MpiComm) {
    let me = comm.rank();
    let key = [usize::MAX, 0, 7][me];
    let all = comm.split(Some(usize::MAX), key).expect("a split");
    let all = all.expect("a color is no lack of one");
    assert_eq!(all.members(), [1, 2, 0]);
    let one = comm.split((me == 1).then_some(usize::MAX), 0);
    let one = one.expect("a split");
    assert!(one.is_none_or(|one| me == 1 && one.members() == [1]));
}

/// Options by which there are as few tags as every MPI has.
fn few_tags(options: &mpi::MpiOptions) -> mpi::MpiOptions {
    mpi::MpiOptions {
        greatest_tag: Some((1 << 15) - 1),
        ..*options
    }
}

/// More operations in flight than there are tags for, short and long ones, waited for from the last to the first; and
/// as many messages.
fn many_in_flight(comm: &mpi::MpiComm) {
    const OPERATIONS: usize = 100;
    let me = comm.rank();
    let upload = |k: usize, len: usize| {
        let values = vec![(100 * k + me) as i64; len];
        comm.device().upload_slice(&values).expect("numbers")
    };
    let len = |k: usize| if k.is_multiple_of(3) { 1 } else { 500 };
    let mut gathers = Vec::new();
    let mut messages = Vec::new();
    for k in 0..OPERATIONS {
        let gather = comm.start_all_gather_v(&upload(k, len(k)), &[len(k); 2]);
        gathers.push((k, gather.expect("a start")));
        let message = match me {
            0 => comm.start_send(1, &upload(k, len(k))),
            _ => comm.start_recv(0, DType::I64, len(k)),
        };
        messages.push((k, message.expect("a start")));
    }
    let expected = |k: usize, rank: usize| vec![(100 * k + rank) as i64; len(k)];
    for (k, gather) in gathers.into_iter().rev() {
        let all = gather
            .wait()
            .expect("both")
            .to_vec::<i64>()
            .expect("integers");
        assert_eq!(all, [expected(k, 0), expected(k, 1)].concat());
    }
    for (k, message) in messages.into_iter().rev() {
        let sent = message.wait().expect("a message");
        assert_eq!(sent.to_vec::<i64>().expect("integers"), expected(k, 0));
    }
}

/// Operations whose tags are those of earlier ones: no message of these may be left to be taken for another.
fn tags_come_round(comm: &mpi::MpiComm) {
    let me = comm.rank();
    // What one of them sends goes with its record, and what the other one does not.
    for counts in [[1, 1000], [1000, 1]] {
        let mine = vec![me as f64 + 1.0; counts[me]];
        let mine = comm.device().upload_slice(&mine).expect("numbers");
        let all = comm.all_gather_v(&mine, &counts).expect("all numbers");
        let all = all.to_vec::<f64>().expect("doubles");
        assert!(all[..counts[0]].iter().all(|&x| x == 1.0));
        assert!(all[counts[0]..].iter().all(|&x| x == 2.0));
        for _ in 1..1 << 12 {
            comm.barrier().expect("both are there");
        }
    }
}

/// An operation that gets lost: its next one is not taken for it.
fn out_of_step(options: &mpi::MpiOptions) {
    let over = mpi::run(options, |comm| {
        let fault = Fault {
            rank: 1,
            call: 0,
            kind: FaultKind::Drop,
        };
        let comm: Rc<dyn Communicator> = Rc::new(comm);
        let comm = checked(faulty(comm, &[fault]), Checks::default());
        let number = |x: f64| comm.device().upload_slice(&[x]).expect("a number");
        let lost = comm.start_all_reduce(&number(1.0), Monoid::SUM);
        drop(lost.expect("it seems to have started"));
        let error = comm.all_reduce(&number(10.0), Monoid::SUM);
        let error = error.expect_err("one is lost");
        let CommError::OutOfStep(report) = &error else {
            panic!("expected ranks out of step, got {error}");
        };
        assert_eq!((&*report.field, &*report.a, &*report.b), ("turn", "0", "1"));
    });
    assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
}

/// A rank that sends less than its peer expects: an error on both, and the group goes on.
fn wrong_count(comm: &mpi::MpiComm) {
    let numbers = comm.device().upload_slice(&[1.0f64; 200]);
    let numbers = numbers.expect("numbers");
    let (send, recv) = match comm.rank() {
        0 => ([100, 100], [100, 100]),
        _ => ([99, 101], [100, 101]),
    };
    let error = comm.all_to_all_v(&numbers, &send, &recv);
    let Err(CommError::Mismatch(found)) = error else {
        panic!("expected a mismatch, got {error:?}");
    };
    assert!(found.field.contains("from rank 1 to rank 0"), "{found:?}");
    let counts = [100, 100];
    let all = comm.all_to_all_v(&numbers, &counts, &counts);
    all.expect("nothing wrong");
}

fn panics(options: &mpi::MpiOptions, me: usize) {
    let over = mpi::run(options, |comm| {
        let ones = comm
            .device()
            .upload_slice(&[1.0f32; 100])
            .expect("a few numbers");
        comm.all_reduce(&ones, Monoid::SUM).expect("all are there");
        assert!(me != 2, "out of luck");
        let error = comm
            .all_reduce(&ones, Monoid::SUM)
            .expect_err("rank 2 is gone");
        assert_failed(&error, 2, "panicked: out of luck");
        // And at every later call.
        assert_eq!(comm.barrier(), Err(error.clone()));
        let record = comm.ledger().flight_record().expect("a record");
        assert_eq!(record.cause, error);
        let names: Vec<_> = record.operations.iter().map(|op| op.name).collect();
        assert_eq!(names, ["all_reduce"; 2]);
    });
    match over {
        Err(LaunchError::Panicked { rank: 2, message }) => {
            assert!(me == 2 && message == "out of luck");
        }
        Err(LaunchError::Failed(error)) => assert_failed(&error, 2, "out of luck"),
        other => panic!("the run has failed: {other:?}"),
    }
}

fn gives_up(options: &mpi::MpiOptions, me: usize) {
    let over = mpi::run(options, |comm| {
        if me == 0 {
            comm.fail("no more paper".to_owned());
        }
        let error = comm.barrier().expect_err("rank 0 has given up");
        assert_failed(&error, 0, "no more paper");
    });
    assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
}

/// A wrong bit in what rank 1 sends, in operations of every kind: one cause, on all ranks, in that operation.
fn wrong_bits(options: &mpi::MpiOptions) {
    let over = mpi::run(options, |comm| {
        let ranks = comm.size();
        let (few, many) = (vec![1.0f64; ranks], vec![1.0f64; 4000 * ranks]);
        let upload = |values: &[f64]| comm.device().upload_slice(values).expect("numbers");
        let (few, many) = (upload(&few), upload(&many));
        let faults = [Fault {
            rank: 1,
            call: 2,
            kind: FaultKind::Corrupt,
        }];
        let comm: Rc<dyn Communicator> = Rc::new(comm);
        let comm = checked(faulty(comm, &faults), Checks { checksums: true });
        comm.all_reduce(&few, Monoid::SUM).expect("nothing wrong");
        comm.all_reduce(&many, Monoid::SUM).expect("nothing wrong");
        let counts = vec![many.len() / ranks; ranks];
        let error = match ranks {
            // Inline, received in place, and received packed.
            2 => comm.all_reduce(&few, Monoid::SUM),
            3 => comm.all_to_all_v(&many, &counts, &counts),
            _ => comm.all_reduce(&many, Monoid::SUM),
        };
        let error = error.expect_err("a wrong bit");
        assert_failed(&error, 1, "did not find in");
        assert_failed(&error, 1, "what rank 1 sent");
        assert_eq!(comm.barrier(), Err(error));
    });
    assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
}

/// One message of 2^31 + 5 bytes, whose last ones tell.
fn more_than_i32(me: usize) {
    const LEN: usize = (1 << 31) + 5;
    let over = mpi::run(&usual(), |comm| {
        if me == 0 {
            let mut data = comm.device().alloc(DType::U8, LEN).expect("2 GB");
            let bytes = data.as_mut_slice::<u8>().expect("host memory");
            (bytes[0], bytes[1 << 30], bytes[LEN - 1]) = (1, 2, 3);
            comm.send(1, &data.freeze()).expect("a long message");
        } else {
            let got = comm.recv(0, DType::U8, LEN).expect("a long message");
            let bytes = got.as_slice::<u8>().expect("host memory");
            assert_eq!((bytes[0], bytes[1 << 30], bytes[LEN - 1]), (1, 2, 3));
            assert_eq!(bytes.iter().filter(|&&b| b != 0).count(), 3);
            assert_eq!(comm.ledger().snapshot().bytes, LEN as u64);
        }
    });
    over.expect("a run");
}

fn wrong_bits_in_a_message(options: &mpi::MpiOptions, me: usize) {
    let over = mpi::run(options, |comm| {
        let numbers = comm.device().upload_slice(&[1.0f32; 100]).expect("numbers");
        let faults = [Fault {
            rank: 0,
            call: 1,
            kind: FaultKind::Corrupt,
        }];
        let comm: Rc<dyn Communicator> = Rc::new(comm);
        let comm = checked(faulty(comm, &faults), Checks { checksums: true });
        let pass = || match me {
            0 => comm.send(1, &numbers),
            _ => comm.recv(0, DType::F32, 100).map(drop),
        };
        pass().expect("nothing wrong");
        let error = pass().expect_err("a wrong bit");
        assert_failed(&error, 0, "rank 1 did not find in recv (message)");
    });
    assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
}

fn times_out(me: usize) {
    let options = mpi::MpiOptions {
        timeout: Some(Duration::from_millis(300)),
        ..usual()
    };
    let over = mpi::run(&options, |comm| {
        // No process is late by what it takes to start.
        marks::leave(&format!("rank {me} is there"));
        marks::wait_for(&format!("rank {} is there", 1 - me));
        comm.barrier().expect("both are there");
        if me == 1 {
            marks::wait_for("rank 0 lost its patience");
            // Rank 0 did come to the second barrier, and left.
            comm.barrier().expect("both were there");
            let error = comm.barrier().expect_err("rank 0 lost its patience");
            assert_failed(&error, 0, "timed out");
            return;
        }
        let error = comm.barrier().expect_err("rank 1 does not come");
        marks::leave("rank 0 lost its patience");
        let CommError::TimedOut(report) = &error else {
            panic!("expected a timeout, got {error}");
        };
        assert_eq!(
            (&report.wait.missing[..], report.wait.sequence),
            (&[1][..], 1)
        );
        let text = error.to_string();
        assert!(
            text.contains("waits in barrier (operation 1 of ranks [0, 1])"),
            "{text}"
        );
        assert!(
            text.contains("barrier (operation 0) at shard-comm/tests/mpi.rs"),
            "{text}"
        );
    });
    assert!(matches!(over, Err(LaunchError::Failed(_))), "{over:?}");
}

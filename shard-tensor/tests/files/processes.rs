//! Checkpoints of ranks that are processes. Started by the test runner a test starts `mpirun` on itself; `MPIRUN` names
//! another launcher.

use crate::{memory, scratch};
use shard_tensor::checkpoint::{self, Checkpoint};
use shard_tensor::nn::{Linear, ModelExt, Module, Sequential};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{
    Context, DType, DeviceMesh, ErrorClass, Launch, Placements, Result, replicate, shard,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The file, for processes that are ranks.
const FILE: &str = "SHARD_TENSOR_TESTS_FILE_OF_PROCESSES";

/// What Open MPI, 4 and 5, must be told to start more processes than there are cores, and as root; others take no note.
const PERMISSIONS: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
];

/// Runs a test of this file on so many processes, all of which must pass it.
fn start(test: &str, ranks: usize, path: &Path) {
    let output = run(test, ranks, path);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let passed = out.matches("1 passed").count();
    assert!(
        output.status.success() && passed == ranks,
        "{test} on {ranks} processes\n{out}\n{err}"
    );
}

fn run(test: &str, ranks: usize, path: &Path) -> Output {
    let mpirun = std::env::var_os("MPIRUN").unwrap_or_else(|| "mpirun".into());
    Command::new(mpirun)
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{test}"), "--nocapture"])
        .env(FILE, path)
        .envs(PERMISSIONS)
        .output()
        .expect("mpirun, which the feature mpi needs")
}

fn of_rank() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// Where ranks compute.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    /// Parameters are divided over two or three ranks.
    Sharded(usize),
    Replicated(usize),
}

/// Trains from what the file has, if anything, up to this step, and puts it down there.
fn train(at: Where, goes_on: bool, until: u64, path: &Path) -> Vec<Vec<f64>> {
    let (Where::Sharded(ranks) | Where::Replicated(ranks)) = at;
    let told = Launch::new(ranks).dtype(DType::F64).seed(3).run(|ctx| {
        let mesh = ctx.mesh([("all", ranks)])?;
        let mut net = Sequential::new()
            .then(Linear::new(&mesh, 5, 7)?)
            .then(Linear::new(&mesh, 7, 2)?);
        if let Where::Sharded(_) = at {
            net = net.fully_sharded("all")?;
        }
        let mut adam = AdamW::new(net.parameters(), 0.01)?;
        let mut step = 0;
        if goes_on {
            let job = Checkpoint::new().model(&mut net).optimizer(&mut adam);
            job.step(&mut step).rng(ctx).load(path)?;
        }
        let mut losses = Vec::new();
        while step < until {
            let x = mesh.randn([6, 5], shard(0))?;
            let loss = net.forward(&x)?.square()?.mean_all()?;
            adam.step(&loss.backward()?)?;
            losses.push(loss.item()?);
            step += 1;
        }
        let job = Checkpoint::new().model(&mut net).optimizer(&mut adam);
        job.step(&mut step).rng(ctx).save(path)?;
        Ok(losses)
    });
    told.unwrap()
}

/// Losses beside the file, which processes leave for the test.
fn losses_of(path: &Path) -> PathBuf {
    path.with_extension("losses")
}

#[test]
fn a_training_of_processes_is_put_down_and_goes_on() {
    const NAME: &str = "a_training_of_processes_is_put_down_and_goes_on";
    if let Some(path) = of_rank() {
        let three = std::env::var("OMPI_COMM_WORLD_SIZE").is_ok_and(|n| n == "3");
        let (at, goes_on, until) = match three {
            true => (Where::Sharded(3), false, 4),
            false => (Where::Replicated(2), true, 8),
        };
        let losses = train(at, goes_on, until, &path).remove(0);
        let text: Vec<String> = losses.iter().map(f64::to_string).collect();
        // All ranks write the same.
        return std::fs::write(losses_of(&path), text.join("\n")).unwrap();
    }
    let (threads, processes) = (scratch("threads.safetensors"), scratch("mpi.safetensors"));
    train(Where::Sharded(3), false, 4, &threads);
    start(NAME, 3, &processes);
    // The same bits, whoever wrote them.
    let [a, b] = [&threads, &processes].map(|path| std::fs::read(path).unwrap());
    assert!(a == b, "the file of processes is another");
    // As one that was not interrupted.
    let whole = train(Where::Sharded(3), false, 8, &threads).remove(0);
    let expected = &whole[4..];
    start(NAME, 2, &processes);
    let found = std::fs::read_to_string(losses_of(&processes)).unwrap();
    let found: Vec<f64> = found.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-12 * b.abs(), "{a} for {b}");
    }
    // What processes wrote goes on in threads.
    let [a, b] = [&threads, &processes].map(|path| train(Where::Sharded(3), true, 9, path));
    assert!((a[0][0] - b[0][0]).abs() <= 1e-12 * b[0][0].abs());
    for path in [&threads, &processes, &losses_of(&processes)] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn what_one_process_cannot_make_is_an_error_of_all() {
    const NAME: &str = "what_one_process_cannot_make_is_an_error_of_all";
    let Some(path) = of_rank() else {
        let folder = scratch("refused");
        std::fs::create_dir_all(folder.join("elsewhere")).unwrap();
        start(NAME, 3, &folder.join("x.safetensors"));
        // Neither here nor there is anything left but what was saved in the end.
        let names = |folder: &Path| -> Vec<_> {
            let files = std::fs::read_dir(folder).unwrap();
            files.map(|f| f.unwrap().file_name()).collect()
        };
        let mut found = names(&folder);
        found.sort();
        assert_eq!(found, ["elsewhere", "x.safetensors"]);
        assert!(names(&folder.join("elsewhere")).is_empty());
        return std::fs::remove_dir_all(&folder).unwrap();
    };
    let folder = path.parent().unwrap();
    let refuse = |ctx: &Context, path: &str| -> Result<String> {
        let x = ctx.mesh_of(3)?.ones([7], shard(0))?;
        let error = checkpoint::save(path, &[("x".to_owned(), x)]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Agreed, "{error}");
        let said = error.to_string();
        assert_eq!(ctx.gather(&said)?, vec![said.clone(); 3]);
        Ok(said)
    };
    let run = Launch::new(3).run(|ctx| {
        // Rank 1 stands elsewhere, so that this path is of another file there.
        let stands = if ctx.rank() == 1 { "elsewhere" } else { "." };
        std::env::set_current_dir(folder.join(stands))?;
        let apart = refuse(ctx, "x.safetensors")?;
        assert!(apart.contains("rank 1"), "{apart}");
        // Rank 0, which begins the file, stands elsewhere.
        let stands = if ctx.rank() == 0 { "elsewhere" } else { "." };
        std::env::set_current_dir(folder.join(stands))?;
        refuse(ctx, "x.safetensors")?;
        let nowhere = refuse(ctx, "no/such/folder/x.safetensors")?;
        assert!(nowhere.contains("rank 0"), "{nowhere}");
        // The group goes on.
        let x = ctx.mesh_of(3)?.ones([7], shard(0))?;
        checkpoint::save(&path, &[("x".to_owned(), x)])?;
        let mesh = ctx.mesh_of(3)?;
        checkpoint::read(&path, "x", &mesh, shard(0))?
            .sum_all()?
            .item()
    });
    assert_eq!(run.unwrap(), [7.0]);
}

#[test]
fn processes_that_did_not_do_the_same_have_no_results() {
    const NAME: &str = "processes_that_did_not_do_the_same_have_no_results";
    // One call more on one of the members, after all that had to be sent.
    let unlike = || {
        Launch::new(3).run(|ctx| {
            let _all = ctx.mesh_of(3)?.ones([6], shard(0))?.sum_all()?.item()?;
            let pair = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![1, 2])?)?;
            if pair.is_member() {
                let x = pair.ones([4], shard(0))?;
                let turns = if ctx.rank() == 2 { 3 } else { 2 };
                (0..turns).try_for_each(|_| x.exp().map(drop))?;
            }
            Ok(())
        })
    };
    if let Some(path) = of_rank() {
        // Processes that this is not the error of end with the one that returns it.
        let error = unlike().unwrap_err().to_string();
        return std::fs::write(path, error).unwrap();
    }
    let path = scratch("unlike");
    let output = run(NAME, 3, &path);
    assert!(!output.status.success(), "{output:?}");
    let [threads, processes] = [
        unlike().unwrap_err().to_string(),
        std::fs::read_to_string(&path).unwrap(),
    ];
    assert!(
        processes.contains("rank 1 called nothing more"),
        "{processes}"
    );
    assert_eq!(threads, processes);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn the_first_process_holds_its_piece_and_a_block() {
    const NAME: &str = "the_first_process_holds_its_piece_and_a_block";
    let Some(path) = of_rank() else {
        let path = scratch("pieces-of-processes.safetensors");
        start(NAME, 3, &path);
        return std::fs::remove_file(&path).unwrap();
    };
    // A whole of 384 MiB, in halves that lie in pieces in the file, and one that is small.
    let layouts: [Placements; 2] = [
        shard(1).sizes([4 << 10, 4 << 10, 4 << 10]).into(),
        replicate().into(),
    ];
    let beyond = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let [columns, all] = layouts.clone();
        let large = mesh.full([8 << 10, 12 << 10], 2.0, columns)?;
        let small = mesh.full([12 << 10], 1.0, all)?;
        let named = [("large".to_owned(), large), ("small".to_owned(), small)];
        ctx.world().barrier()?;
        let (saved, beyond) = memory::beyond(|| checkpoint::save(&path, &named));
        saved?;
        ctx.gather(&beyond)
    });
    for beyond in beyond.unwrap().into_iter().flatten() {
        let beyond = beyond.unwrap_or_default();
        assert!(beyond < 64 << 20, "{beyond} bytes beyond the piece");
    }
}

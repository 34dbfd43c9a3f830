//! Trainings of drawn models, on any meshes one after the other, take the course of one rank.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use shard_spec::DeviceMesh;
use shard_tensor::ErrorClass;
use std::hash::{DefaultHasher, Hash, Hasher};
use xtests::harness::{On, on_mesh, on_threads};
use xtests::programs::{Computed, How, Slip, slips};
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::config;
use xtests::trainings::{Event, Stay, TrainingRun, event, trainings};

pub(super) const ALL: &[Property] = properties![
    they_take_one_ranks_course,
    on_devices_too,
    a_stop_changes_no_bit,
    few_are_refused,
    a_rank_that_slips_is_found_out,
];

/// An error's text, and whether it is uniform.
type Said = (String, bool);

/// What every rank finds in each stay, up to one in which some rank errs; in the last of them one rank may slip.
fn course(
    run: &TrainingRun,
    on: On,
    slip: Option<&Slip<Event>>,
) -> Vec<Vec<Result<Computed, Said>>> {
    let mut hasher = DefaultHasher::new();
    format!("{run:?}{on:?}{slip:?}").hash(&mut hasher);
    let name = format!("shard-tensor-training-{:x}.safetensors", hasher.finish());
    let file = std::env::temp_dir().join(name);
    let mut all = Vec::new();
    for (at, stay) in run.stays.iter().enumerate() {
        let mesh = DeviceMesh::new(&[stay.mesh.iter().product()]).unwrap();
        let slip = slip.filter(|_| at + 1 == run.stays.len());
        let run = |cx: &_| {
            let found = run.run_with(at, cx, &file, slip);
            found.map_err(|e| (e.to_string(), e.class() == ErrorClass::Uniform))
        };
        let found = match slip {
            // Processes all go the same way.
            Some(_) => on_threads(&mesh, on, run),
            None => on_mesh(&mesh, on, run),
        };
        let refused = found.iter().any(Result::is_err);
        all.push(found);
        if refused {
            break;
        }
    }
    std::fs::remove_file(&file).ok();
    all
}

fn check(run: &TrainingRun, on: On) -> Result<(), TestCaseError> {
    let single = course(&run.alone(), On::Host, None);
    let all = course(run, on, None);
    prop_assert_eq!(
        all.len(),
        single.len(),
        "{:?}, where one rank has {:?}",
        all.last(),
        single.last()
    );
    for (at, (ranks, single)) in all.into_iter().zip(single).enumerate() {
        for (rank, got) in ranks.into_iter().enumerate() {
            let differs = match (&single[0], &got) {
                (Ok(want), Ok(got)) => got.differs(want, |_, scale| 1e-7 * scale),
                (Err(_), Err((_, true))) => None,
                (want, got) => Some(format!("{got:?}, where one rank has {want:?}")),
            };
            prop_assert!(
                differs.is_none(),
                "stay {}, rank {}: {}",
                at,
                rank,
                differs.unwrap_or_default()
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(25))]

    fn they_take_one_ranks_course(run in trainings(5)) {
        check(&run, On::Host)?;
    }

    /// What goes on where it lay before goes on with the same bits.
    fn a_stop_changes_no_bit(run in trainings(4)) {
        let mut stays = run.stays.clone();
        let (first, last) = (stays.remove(0), stays.pop());
        let events = last.map_or_else(|| first.events.clone(), |last| last.events);
        // What is frozen, a file does not say.
        let thawed = |events: &[Event]| -> Vec<Event> {
            events.iter().filter(|e| !matches!(e, Event::Freeze(_))).cloned().collect()
        };
        let stay = |events: Vec<Event>| Stay { events, ..first.clone() };
        let (before, after) = (thawed(&first.events), thawed(&events));
        let of = |stays| TrainingRun { stays, ..run.clone() };
        let stopped = course(&of(vec![stay(before.clone()), stay(after.clone())]), On::Host, None);
        let whole = course(&of(vec![stay([before, after].concat())]), On::Host, None);
        if let (2, Some(stopped)) = (stopped.len(), stopped.last()) {
            for (stopped, whole) in stopped.iter().zip(&whole[0]) {
                match (stopped, whole) {
                    (Ok(stopped), Ok(whole)) => prop_assert!(whole.all.ends_with(&stopped.all), "{stopped:?} is not the end of {whole:?}"),
                    (stopped, whole) => prop_assert!(stopped.is_err() == whole.is_err(), "{stopped:?}, without a stop {whole:?}"),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config(5))]

    /// In memory that the host cannot read, and on emulated GPUs, moved by threads and by what plays NCCL.
    fn on_devices_too(run in trainings(4)) {
        check(&run, On::TestDevice)?;
        if cfg!(feature = "cuda-emulated") {
            check(&run, On::EmulatedCuda)?;
        }
        #[cfg(all(feature = "cuda-emulated", feature = "nccl"))]
        check(&run, On::EmulatedNccl)?;
    }
}

proptest! {
    #![proptest_config(config(30))]

    /// All ranks hear of it, or it made no difference; none gets numbers that others have not, and none waits for ever.
    fn a_rank_that_slips_is_found_out(run in trainings(4), slip in slips(event())) {
        let mut stays = course(&run, On::Host, Some(&slip));
        if stays.len() == run.stays.len() {
            let ends = stays.pop().unwrap();
            let heard = ends.iter().filter(|end| end.is_err()).count();
            let others = usize::from(matches!(slip.how, How::Leave));
            let same = ends.iter().all(|end| end == &ends[0]);
            prop_assert!(heard + others >= ends.len() || same, "{ends:?}");
        }
    }
}

/// What is refused on one rank compares nothing with others.
fn few_are_refused() {
    let mut runner = TestRunner::new(config(1));
    let mut refused = Vec::new();
    for _ in 0..30 {
        let run = trainings(2)
            .new_tree(&mut runner)
            .unwrap()
            .current()
            .alone();
        let last = course(&run, On::Host, None)
            .pop()
            .and_then(|mut ranks| ranks.pop());
        refused.extend(last.and_then(Result::err));
    }
    assert!(refused.len() < 5, "{refused:#?}");
}

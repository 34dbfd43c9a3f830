//! Outputs whose extent the data decides, by an op made for it: one round, one layout, whatever the data and the shards.

use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DType, DeviceKind, ErrorClass};
use shard_ops::RowCuts;
use shard_ops::{
    Access, Cotangents, Engine, EngineOptions, Exec, Grads, HostCall, Meta, Op, OpError, Result,
    Rule, Saved, key_of,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::Partition;
use shard_spec::{DeviceMesh, Layout};
use smallvec::smallvec;
use std::rc::Rc;
use std::sync::Arc;

/// The rows of a matrix whose first element is positive.
#[derive(Debug)]
struct Positive;

impl Op for Positive {
    fn name(&self) -> &'static str {
        "positive"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let x = &inputs[0].shape;
        let mut rule = Rule::builder(self.name(), inputs);
        let factor = rule.factor(x[0]);
        let dims = vec![Access::factor(factor), Access::WHOLE];
        let rows = Access::Rows { factor, cuts: None };
        rule.input(dims)
            .output(vec![rows, Access::WHOLE], smallvec![0, x[1]], DType::F64)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let rows = call.input::<f64>(0).to_vec();
        assert!(rows.iter().all(|x| !x.is_nan()), "no sign");
        let rows = rows.chunks_exact(call.cx.inputs[0].shape[1]);
        let found: Vec<f64> = rows.filter(|row| row[0] > 0.0).flatten().copied().collect();
        *call.rows = found.len() / call.cx.inputs[0].shape[1];
        *call.state = Some(Box::new(found));
    }

    fn write_rows(&self, call: &mut HostCall<'_, '_>) {
        let state = call.state.take().unwrap();
        let found = state.downcast::<Vec<f64>>().unwrap();
        call.output::<f64>(0).data_mut().copy_from_slice(&found);
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None])
    }
}

/// What each rank holds of the positive rows of `[i * sign(i), i]`, and their layout.
fn positive(mesh: &[usize], text: &str, sign: fn(usize) -> f64) -> Vec<(String, Vec<f64>)> {
    let mesh = DeviceMesh::new(mesh).unwrap();
    local::run(mesh.size(), |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let layout = Layout::parse(&mesh, &[8, 2], text).unwrap();
        let x = Array::from_fn(&cx, &layout, |i| {
            let row = i[0] as f64 + 1.0;
            if i[1] == 0 { row * sign(i[0]) } else { row }
        });
        let engine = Engine::new(EngineOptions::default());
        let op: Arc<dyn Op> = Arc::new(Positive);
        let found = engine.run(&op, &[&x.unwrap()]).unwrap().remove(0);
        let columns = found.to_vec::<f64>().unwrap();
        let seconds = columns.chunks(2).map(|row| row[1]).collect();
        (found.layout().to_string(), seconds)
    })
    .unwrap()
}

#[test]
fn parts_keep_their_ranks_and_their_order() {
    let odd = |i: usize| if i % 2 == 1 { 1.0 } else { -1.0 };
    let found = positive(&[3], "S(0)[5,0,3]", odd);
    assert!(found.iter().all(|f| f.0 == "S(0)[2,0,2]"), "{found:?}");
    let rows: Vec<&[f64]> = found.iter().map(|f| &f.1[..]).collect();
    assert_eq!(rows, [&[2.0, 4.0][..], &[], &[6.0, 8.0]]);
    // Striped rows are brought to consecutive indices first, or the result would be in another order.
    let striped = positive(&[2], "S(0)[0:1,1:1]*", odd);
    let rows: Vec<f64> = striped.iter().flat_map(|f| f.1.clone()).collect();
    assert_eq!(rows, [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn copies_stay_copies_and_nothing_is_a_result() {
    let found = positive(&[2, 2], "S(0) R", |_| 1.0);
    assert!(found.iter().all(|f| f.0 == "S(0) R"), "{found:?}");
    assert_eq!((&found[0].1, &found[2].1), (&found[1].1, &found[3].1));
    for text in ["S(0)", "R", "P(sum)", "S(1)"] {
        let found = positive(&[2], text, |_| -1.0);
        assert!(found.iter().all(|f| f.1.is_empty()), "{found:?}");
    }
}

#[test]
fn one_round_of_a_number_per_rank() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    local::run(4, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let layout = Layout::parse(&mesh, &[8, 2], "S(0)").unwrap();
        let x = Array::from_fn(&cx, &layout, |i| i[0] as f64).unwrap();
        let engine = Engine::new(EngineOptions::default());
        let before = world.ledger().snapshot();
        engine.run(&(Arc::new(Positive) as _), &[&x]).unwrap();
        let moved = world.ledger().since(&before);
        // A number from each of the three others.
        assert_eq!((moved.rounds, moved.bytes), (1, 24));
    })
    .unwrap();
}

#[test]
fn copies_that_differ_are_found_out_on_all_ranks() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    local::run(3, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let layout = Layout::parse(&mesh, &[2, 1], "R").unwrap();
        let engine = Engine::new(EngineOptions::default());
        let run = |last: f64| {
            let local = cx.device().upload_slice(&[1.0, last]).unwrap();
            let x = Array::from_parts(&cx, &layout, Some(local), DType::F64).unwrap();
            engine.run(&(Arc::new(Positive) as _), &[&x])
        };
        let error = run(1.0 - cx.rank() as f64).unwrap_err();
        assert!(matches!(
            error,
            OpError::Copies {
                ranks: [0, 1],
                rows: [2, 1],
                ..
            }
        ));
        assert_eq!(error.class(), ErrorClass::Agreed);
        // The group goes on.
        assert_eq!(run(1.0).unwrap()[0].shape(), [2, 1]);
    })
    .unwrap();
}

/// A kernel that fails on one rank, where the device runs it later.
#[test]
fn what_one_rank_cannot_find_comes_out_on_all() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let options = LocalOptions {
        device: DeviceKind::Test,
        ..LocalOptions::default()
    };
    let errors = local::run_with(3, &options, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let layout = Layout::parse(&mesh, &[6, 1], "S(0)").unwrap();
        let engine = Engine::new(EngineOptions::default());
        let x = Array::from_fn(&cx, &layout, |i| if i[0] == 3 { f64::NAN } else { 1.0 });
        engine
            .run(&(Arc::new(Positive) as _), &[&x.unwrap()])
            .err()
            .map(|e| e.to_string())
    });
    let told = |error: &Option<String>| error.as_ref().is_some_and(|e| e.contains("no sign"));
    assert!(errors.as_ref().unwrap().iter().all(told), "{errors:?}");
}

#[test]
fn rules_say_where_existing_rows_lie() {
    let meta = Meta {
        shape: smallvec![3],
        dtype: DType::F64,
    };
    let mut rule = Rule::builder("test", &[meta]);
    let factor = rule.factor(3);
    let error = rule
        .input(vec![Access::Rows { factor, cuts: None }])
        .build();
    assert!(matches!(error, Err(OpError::Shape { .. })));
}

#[test]
fn empty_parts_keep_their_place() {
    let cuts = RowCuts::new(&[0, 0, 4, 4, 6], &[0, 0, 0, 0, 3]).unwrap();
    assert_eq!(cuts.extents(), (6, 3));
    assert_eq!(cuts.rows(0..4), Some(0..0));
    assert_eq!(cuts.rows(5..5), Some(0..0));
    let of = |offsets: &[usize]| {
        Partition::from_offsets(offsets[offsets.len() - 1], offsets.to_vec()).unwrap()
    };
    assert_eq!(
        cuts.divides(&of(&[0, 0, 0, 0, 3])),
        Some(of(&[0, 0, 4, 4, 6]))
    );
    assert_eq!(cuts.divides(&of(&[0, 0, 0, 3, 3])), None);
    assert_eq!(cuts.divided(&of(&[0, 4, 6])), Some(of(&[0, 0, 3])));
    assert_eq!(cuts.divided(&of(&[0, 3, 6])), None);
}

#[test]
fn what_is_no_table_is_refused() {
    for (indices, rows) in [
        (&[0, 3][..], &[0][..]),
        (&[1, 3], &[0, 2]),
        (&[0, 3], &[2, 0]),
        (&[0, 3, 3], &[0, 1, 2]),
        (&[], &[]),
    ] {
        assert_eq!(RowCuts::new(indices, rows), None);
    }
}

#[test]
fn layouts_of_different_axes_are_known_at_their_ends() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let indices = Layout::parse(&mesh, &[4], "S(0)[3,1]").unwrap();
    let rows = Layout::parse(&mesh, &[7], "R").unwrap();
    let cuts = RowCuts::between("test", &indices, &rows).unwrap();
    assert_eq!((cuts.rows(0..4), cuts.rows(0..3)), (Some(0..7), None));
}

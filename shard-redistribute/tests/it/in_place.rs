//! Moves within an array's own memory: the same bits as by any other method, in as little memory as promised.

use crate::common::{Recipe, expected, layout, missing, on_device, on_ranks, pair, recipe, spread};
use crate::scarce::Scarce;
use proptest::prelude::*;
use shard_comm::{
    Call, CommError, Communicator, DType, DeviceFactory, DeviceKind, Element, ErrorClass, Scalar,
    local,
};
use shard_redistribute::{Array, CostModel, MeshComm, Plan, PlanCost, RedistributeError, Step};
use shard_spec::{DeviceMesh, Layout, ReduceOp, numel};
use std::rc::Rc;

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::select(vec![
        vec![1],
        vec![2],
        vec![3],
        vec![4],
        vec![6],
        vec![2, 2],
        vec![2, 3],
        vec![3, 1],
        vec![2, 1, 2],
    ])
}

/// The array of whole numbers with unequal terms, converted to another type.
fn typed<T: Element>(cx: &Rc<MeshComm>, layout: &Layout) -> Array {
    let values = spread(cx, layout).to_vec::<f64>().unwrap();
    let values: Vec<T> = (values.iter())
        .map(|&v| T::from_scalar(Scalar::F64(v)))
        .collect();
    let local = cx.device().upload_slice(&values).unwrap();
    Array::from_parts(cx, layout, Some(local), T::DTYPE).unwrap()
}

fn bytes(x: &Array) -> Vec<u8> {
    x.cx().device().download(x.buffer().unwrap()).unwrap()
}

/// Waits until every rank has read and written everything, so that nothing of what went before is left in memory.
fn settle(cx: &MeshComm) {
    cx.device().synchronize().unwrap();
    cx.all().unwrap().barrier().unwrap();
}

/// Runs a plan in place and beside its source, and checks bits, memory and traffic.
fn check<T: Element>(cx: &Rc<MeshComm>, from: &Layout, to: &Layout, staging: usize) {
    let index = cx.mesh().index_of(cx.rank()).unwrap();
    let device = cx.device();
    let whole = Plan::new(from, to, index).unwrap().with_staging(usize::MAX);
    let want = bytes(&whole.run(&typed::<T>(cx, from)).unwrap());
    let size = T::DTYPE.size();
    let held = |l: &Layout| numel(&l.local_shape(cx.rank()).unwrap()) * size;
    let (source, target) = (held(from), held(to));
    let direct = Plan::new(from, to, index).unwrap();
    let others = Plan::alternatives(from, to, index).unwrap();
    let ways = std::iter::once((direct, false)).chain(others.into_iter().map(|p| (p, true)));
    for (plan, in_place) in ways {
        let direct = plan.method() == shard_redistribute::Method::Direct;
        let plan = plan.with_staging(staging);
        let spare = staging.max(plan.least_staging(T::DTYPE));
        let x = typed::<T>(cx, from);
        settle(cx);
        let before = cx.world().ledger().snapshot();
        device.reset_peak();
        let live = device.memory().live;
        let (forecast, y) = if in_place {
            (
                plan.forecast_into(T::DTYPE).unwrap(),
                plan.run_into(x).unwrap(),
            )
        } else {
            (plan.forecast(T::DTYPE), plan.run(&x).unwrap())
        };
        let peak = device.memory().peak + if in_place { source } else { 0 } - live;
        let moved = cx.world().ledger().since(&before);
        settle(cx);
        let what = format!("{from} to {to}, staging {staging}, in place {in_place}: {plan}");
        assert_eq!(y.layout(), to);
        assert_eq!(bytes(&y), want, "{what}");
        let did = PlanCost {
            bytes: moved.bytes,
            messages: moved.messages,
            rounds: moved.rounds,
            peak: forecast.peak,
        };
        assert_eq!(did, forecast, "{what}");
        if direct && !from.is_partial() && !to.is_partial() {
            let least = missing(from, to, cx.rank()) * size;
            assert_eq!(moved.bytes, least as u64, "{what}");
        }
        assert!(
            peak as u64 <= forecast.peak,
            "{peak} B of {forecast:?}: {what}"
        );
        let bound = if in_place {
            assert_eq!(device.memory().live + source - live, target, "{what}");
            source.max(target)
        } else {
            to.max_local_numel() * size
        };
        assert!(
            forecast.peak <= (bound + spare) as u64,
            "{forecast:?} of {bound} + {spare} B: {what}"
        );
    }
}

fn both(mesh: &DeviceMesh, shape: &[usize], from: &Recipe, to: &Recipe) -> (Layout, Layout) {
    (layout(mesh, shape, from), layout(mesh, shape, to))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_move_in_place_is_exact_and_within_its_memory(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3), staging in 0_usize..700,
    ) {
        on_ranks(&mesh, |cx| {
            let (from, to) = both(cx.mesh(), &[rows, cols], &from, &to);
            check::<f64>(cx, &from, &to, staging);
        });
    }

    #[test]
    fn larger_blocks_and_other_types(
        mesh in meshes(), rows in 0_usize..40, cols in 0_usize..50, half in any::<bool>(),
        from in recipe(3), to in recipe(3), staging in 0_usize..4000,
    ) {
        on_ranks(&mesh, |cx| {
            let (from, to) = both(cx.mesh(), &[rows, cols], &from, &to);
            if half {
                check::<half::f16>(cx, &from, &to, staging);
            } else {
                check::<i64>(cx, &from, &to, staging);
            }
        });
    }

    #[test]
    fn on_a_device_with_a_queue(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3), staging in 0_usize..700,
    ) {
        on_device(DeviceKind::Test, &mesh, |cx| {
            let (from, to) = both(cx.mesh(), &[rows, cols], &from, &to);
            check::<f32>(cx, &from, &to, staging);
        });
    }
    #[test]
    fn the_adjoint_in_place_passes_the_dot_product_test(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3), staging in 0_usize..300,
    ) {
        let sums = on_ranks(&mesh, |cx| {
            let (from, to) = both(cx.mesh(), &[rows, cols], &from, &to);
            let index = cx.mesh().index_of(cx.rank()).unwrap();
            let plan = Plan::new(&from, &to, index).unwrap().with_staging(staging);
            let adjoint = plan.adjoint().unwrap().with_staging(staging);
            let (x, y) = (spread(cx, &from), spread(cx, adjoint.from()));
            let ax = plan.run_into(spread(cx, &from)).unwrap();
            let aty = adjoint.run_into(spread(cx, adjoint.from())).unwrap();
            (pair(cx, &ax, &y), pair(cx, &x, &aty))
        });
        let (left, right) = sums.iter().fold((0.0, 0.0), |(a, b), (l, r)| (a + l, b + r));
        prop_assert_eq!(left, right);
    }
}

/// 40 x 60 doubles by rows and by columns, both uneven, and a staging that makes the move take rounds.
fn rows_and_columns(cx: &MeshComm) -> (Layout, Layout, usize) {
    let rows = Layout::parse(cx.mesh(), &[40, 60], "S(0)[11,0,29]").unwrap();
    let columns = Layout::parse(cx.mesh(), &[40, 60], "S(1)[20,25,15]").unwrap();
    (rows, columns, 2000)
}

#[test]
fn an_array_that_somebody_else_holds_is_left_alone() {
    on_ranks(&[3], |cx| {
        let (rows, columns, staging) = rows_and_columns(cx);
        cx.planner()
            .set_model(Some(CostModel::shared_memory().with_staging(staging)));
        let x = spread(cx, &rows);
        // One rank keeps a clone; the others need not know.
        let kept = (cx.rank() == 2).then(|| x.clone());
        let y = x.redistribute_into(&columns).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), expected(cx, &columns));
        if let Some(kept) = kept {
            assert_eq!(kept.to_vec::<f64>().unwrap(), expected(cx, &rows));
        }
        // The source is a part of a larger buffer that nobody else holds.
        let all = spread(cx, &Layout::replicated(cx.mesh(), &[40, 60]));
        let part = all.redistribute(&rows).unwrap();
        drop(all);
        let y = part.redistribute_into(&columns).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), expected(cx, &columns));
    });
}

/// A copy of what somebody else holds may find no memory, on one rank alone: all ranks are told, whatever the plan.
#[test]
fn memory_that_gives_out_in_place_is_agreed_on() {
    const STAGING: usize = 2000;
    let options = local::LocalOptions {
        make: Some(DeviceFactory::new(|_| Ok(Scarce::new()))),
        ..local::LocalOptions::default()
    };
    let sums = local::run_with(3, &options, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let mesh = DeviceMesh::new(&[3]).unwrap();
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let terms = Layout::parse(&mesh, &[40, 60], "P(sum)").unwrap();
        let whole = Layout::replicated(&mesh, &[40, 60]);
        let want = expected(&cx, &whole);
        let plans = Plan::alternatives(&terms, &whole, cx.rank()).unwrap();
        let mut sums = 0;
        for plan in plans {
            let plan = plan.with_staging(STAGING);
            let x = spread(&cx, &terms);
            let own = x.to_vec::<f64>().unwrap();
            let kept = (cx.rank() == 1).then(|| x.clone());
            settle(&cx);
            let most = if cx.rank() == 1 {
                STAGING / 8
            } else {
                usize::MAX
            };
            Scarce::give_at_most(cx.device(), most);
            let error = plan.run_into(x).unwrap_err();
            Scarce::give_at_most(cx.device(), usize::MAX);
            assert_eq!(error.class(), ErrorClass::Agreed, "{plan}: {error}");
            assert!(
                error.to_string().contains("out of memory"),
                "{plan}: {error}"
            );
            if let Some(kept) = kept {
                assert_eq!(kept.to_vec::<f64>().unwrap(), own, "{plan}");
            }
            // The group still works.
            let y = plan.run_into(spread(&cx, &terms)).unwrap();
            assert_eq!(y.to_vec::<f64>().unwrap(), want, "{plan}");
            sums += (plan.steps().iter())
                .filter(|step| matches!(step, Step::AllReduce(..)))
                .count();
        }
        sums
    });
    assert!(sums.unwrap().iter().all(|&sums| sums > 0));
}

#[test]
fn slow_readers_of_an_earlier_move_are_waited_for() {
    on_ranks(&[3], |cx| {
        let (rows, columns, staging) = rows_and_columns(cx);
        let index = cx.mesh().index_of(cx.rank()).unwrap();
        let plan = Plan::new(&rows, &columns, index).unwrap();
        let plan = plan.with_staging(staging);
        for turn in 0..30 {
            let x = spread(cx, &rows);
            let source = x.buffer().unwrap().bytes();
            settle(cx);
            let other = x.redistribute(&columns).unwrap();
            if turn % 3 == cx.rank() {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            drop(other);
            let live = cx.device().memory().live;
            cx.device().reset_peak();
            plan.run_into(x).unwrap();
            let most = source.max(
                columns
                    .local_shape(cx.rank())
                    .unwrap()
                    .iter()
                    .product::<usize>()
                    * 8,
            );
            let peak = cx.device().memory().peak + source - live;
            assert!(peak <= most + staging, "{peak} of {most} + {staging}");
        }
    });
}

#[test]
fn ranks_that_disagree_on_the_staging_are_told() {
    let errors = on_ranks(&[3], |cx| {
        let (rows, columns, staging) = rows_and_columns(cx);
        let index = cx.mesh().index_of(cx.rank()).unwrap();
        let plan = Plan::new(&rows, &columns, index).unwrap();
        // One rank moves all at once, the others in different numbers of rounds.
        let plan = plan.with_staging([1 << 20, staging, staging / 2][cx.rank()]);
        let x = spread(cx, &rows);
        cx.record(Call::new("step"));
        let error = plan.run_into(x).unwrap_err();
        // The group still works.
        let y = spread(cx, &rows).redistribute(&columns).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), expected(cx, &columns));
        error
    });
    for error in errors {
        assert!(
            matches!(error, RedistributeError::Comm(CommError::Mismatch(_))),
            "{error}"
        );
        assert_eq!(error.class(), ErrorClass::Uniform);
    }
}

#[test]
fn other_reductions_and_three_dims() {
    for (op, text) in [(ReduceOp::Max, "P(max)"), (ReduceOp::Prod, "P(prod)")] {
        on_ranks(&[2, 2], |cx| {
            let shape = [7, 6, 5];
            let from = Layout::parse(cx.mesh(), &shape, &format!("S(1) {text}")).unwrap();
            let x = || {
                let len = numel(&from.local_shape(cx.rank()).unwrap());
                let me = cx.rank() as i64;
                let data: Vec<i64> = (0..len as i64)
                    .map(|i| (i * 7 + me * 13) % 11 - 5)
                    .collect();
                let local = cx.device().upload_slice(&data).unwrap();
                Array::from_local(cx, &from, Some(local), DType::I64).unwrap()
            };
            for to in ["S(2) S(0)", "R S(2)", "S(1) R", "R R", "S(0) S(0)"] {
                let to = Layout::parse(cx.mesh(), &shape, to).unwrap();
                let want = bytes(&x().redistribute(&to).unwrap());
                for staging in [0, 600, 900] {
                    let index = cx.mesh().index_of(cx.rank()).unwrap();
                    let plan = Plan::new(&from, &to, index).unwrap().with_staging(staging);
                    assert_eq!(bytes(&plan.run_into(x()).unwrap()), want, "{op} {plan}");
                    assert_eq!(bytes(&plan.run(&x()).unwrap()), want, "{op} {plan}");
                }
            }
        });
    }
}

#[test]
fn ranks_outside_the_mesh_have_nothing_to_do() {
    let moved = local::run(3, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let mesh = DeviceMesh::with_ranks(&[2], vec![2, 0]).unwrap();
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let rows = Layout::parse(&mesh, &[40, 60], "S(0)").unwrap();
        let columns = Layout::parse(&mesh, &[40, 60], "S(1)").unwrap();
        cx.planner()
            .set_model(Some(CostModel::shared_memory().with_staging(1000)));
        let x = Array::from_fn::<f64>(&cx, &rows, |i| (i[0] * 60 + i[1]) as f64).unwrap();
        let y = x.redistribute_into(&columns).unwrap();
        y.buffer().map(|_| y.to_vec::<f64>().unwrap()[1])
    })
    .unwrap();
    assert_eq!(moved, [Some(31.0), None, Some(1.0)]);
}

#[test]
fn sums_have_the_same_bits_however_they_are_cut() {
    // Zeros of either sign, and sums that round: these show where a sum begins and in which order it is taken.
    fn value<T: Element>(i: usize, rank: usize) -> T {
        T::from_scalar(Scalar::F64(match (i * 5 + rank) % 3 {
            0 => -0.0,
            1 => 0.1 * (1 + rank) as f64,
            _ if i.is_multiple_of(2) => -0.0,
            _ => 1e3 / (1 + i + rank) as f64,
        }))
    }
    fn all<T: Element>(cx: &Rc<MeshComm>) {
        let parse = |text: &str| Layout::parse(cx.mesh(), &[14, 15], text).unwrap();
        for (from, to) in [
            ("P(sum) P(sum)", "S(0) S(1)"),
            ("P(sum) S(0)", "S(1) R"),
            ("S(1) P(sum)", "S(0) S(0)"),
            ("P(sum) R", "S(0) P(sum)"),
            ("P(sum) R", "R R"),
            ("S(0) P(sum)", "R R"),
        ] {
            let (from, to) = (parse(from), parse(to));
            let len = numel(&from.local_shape(cx.rank()).unwrap());
            let x = || {
                let data: Vec<T> = (0..len).map(|i| value(i, cx.rank())).collect();
                let local = cx.device().upload_slice(&data).unwrap();
                Array::from_parts(cx, &from, Some(local), T::DTYPE).unwrap()
            };
            let plan = |staging| {
                let index = cx.mesh().index_of(cx.rank()).unwrap();
                Plan::new(&from, &to, index).unwrap().with_staging(staging)
            };
            let want = bytes(&plan(usize::MAX).run(&x()).unwrap());
            for staging in [0, 100, 200] {
                let plan = plan(staging);
                assert_eq!(
                    bytes(&plan.run_into(x()).unwrap()),
                    want,
                    "{plan}, {staging}"
                );
                assert_eq!(bytes(&plan.run(&x()).unwrap()), want, "{plan}, {staging}");
            }
        }
    }
    on_ranks(&[2, 3], |cx| {
        all::<half::f16>(cx);
        all::<f32>(cx);
    });
}

#[test]
fn copies_that_readers_share_out_are_released_as_they_are_read() {
    // A rank reads all of its own copy, and others read shares of it that begin and end anywhere. The blocks are so large that
    // what one of the shares would keep occupied is many times the staging.
    let mut by_rounds = [0, 0];
    for (mesh, from, to) in [
        (&[2, 2][..], "R S(0)[0,280]", "R R"),
        (&[3, 2], "R S(0)", "S(0)[200,0,80] R"),
        (&[2, 3], "S(0)[280,0] R", "R S(0)[280,0,0]"),
        (&[3, 3], "S(1) R", "R S(1)[1,15,1]"),
    ] {
        on_ranks(mesh, |cx| {
            let [from, to] =
                [from, to].map(|text| Layout::parse(cx.mesh(), &[280, 17], text).unwrap());
            check::<i64>(cx, &from, &to, 800);
        });
        let mesh = DeviceMesh::new(mesh).unwrap();
        let [from, to] = [from, to].map(|text| Layout::parse(&mesh, &[280, 17], text).unwrap());
        for plan in Plan::alternatives(&from, &to, 0).unwrap() {
            let shares = match plan.method() {
                shard_redistribute::Method::Spread => 0,
                shard_redistribute::Method::Balanced => 1,
                _ => continue,
            };
            let rounds = plan
                .with_staging(800)
                .forecast_into(DType::I64)
                .unwrap()
                .rounds;
            by_rounds[shares] += usize::from(rounds > 10);
        }
    }
    assert!(by_rounds.iter().all(|&n| n > 1), "{by_rounds:?}");
}

#[test]
fn hundreds_of_ranks_stay_within_their_memory() {
    // Forecasts only, since other tests compare them with runs.
    let mesh = DeviceMesh::new(&[8, 10, 2]).unwrap();
    let shape = [403, 1007, 6];
    for (from, to) in [
        ("S(0) S(1) S(0)", "S(1) S(0) R"),
        ("S(0) S(0) S(0)", "S(1) S(1) S(1)"),
        ("S(1) R S(0)", "S(0) S(1) S(2)"),
        ("P(sum) S(1) R", "S(0) R S(1)"),
        ("P(sum) S(1) S(0)", "R S(0) S(1)"),
    ] {
        let [from, to] = [from, to].map(|text| Layout::parse(&mesh, &shape, text).unwrap());
        for staging in [0, 20_000, 1 << 20] {
            for index in (0..mesh.size()).step_by(13) {
                let plan = Plan::new(&from, &to, index).unwrap().with_staging(staging);
                let forecast = plan.forecast_into(DType::F32).unwrap();
                let held = |l: &Layout| 4 * numel(&l.local_shape(mesh.ranks()[index]).unwrap());
                let spare = staging.max(plan.least_staging(DType::F32));
                let bound = held(&from).max(held(&to)) + spare;
                assert!(
                    forecast.peak <= bound as u64,
                    "{forecast:?} {bound}: {plan}"
                );
                assert_eq!(forecast.bytes, plan.forecast(DType::F32).bytes);
            }
        }
    }
}

//! Plans as objects: started and waited for, written and read.

use crate::common::{expected, layout, missing, on_ranks, pair, recipe, spread};
use proptest::prelude::*;
use shard_comm::simulated::SimulatedComm;
use shard_comm::{Communicator, DType, Machine, Topology};
use shard_redistribute::{Array, CostModel, LinkCost, MeshComm, Plan, RedistributeError};
use shard_spec::{DeviceMesh, Layout, SpecError};
use std::rc::Rc;

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::select(vec![vec![1], vec![4], vec![2, 2], vec![2, 3]])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn moves_that_fly_together_arrive_as_they_would_alone(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3), and in recipe(3), latency in 0.0..1e-5,
    ) {
        let shape = [rows, cols];
        on_ranks(&mesh, |cx| {
            let src = layout(cx.mesh(), &shape, &from);
            let targets = [to.clone(), and.clone()]
                .map(|r| layout(cx.mesh(), &shape, &r).with_partial_reduced());
            cx.planner().set_model(Some(CostModel::network(LinkCost::new(latency, 1e9))));
            let x = spread(cx, &src);
            let before = cx.world().ledger().snapshot();
            let [first, second] = targets.clone().map(|t| x.redistribute_start(&t).unwrap());
            // The handles are waited for in the other order.
            let landed = [(second, &targets[1]), (first, &targets[0])].map(|(handle, target)| {
                let forecast = handle.plan().forecast(DType::F64);
                if !src.is_partial() {
                    assert!(forecast.bytes >= 8 * missing(&src, target, cx.rank()) as u64);
                }
                assert!(handle.is_flying() || handle.plan().steps().len() != 1 || forecast.rounds == 0);
                assert_eq!(handle.wait().unwrap().to_vec::<f64>().unwrap(), expected(cx, target));
                // Whatever the method, no rank receives less than what it needs and does not have.
                assert!(src.is_partial() || forecast.bytes >= 8 * missing(&src, target, cx.rank()) as u64);
                forecast
            });
            let moved = cx.world().ledger().since(&before);
            assert_eq!(moved.bytes, landed.iter().map(|f| f.bytes).sum::<u64>());
            assert_eq!(moved.messages, landed.iter().map(|f| f.messages).sum::<u64>());
        });
    }
}

/// Sums over ranks that send messages go in stages, which a forecast describes as the ledger counts them.
#[test]
fn sums_in_stages_are_as_forecast() {
    let link = LinkCost::new(1e-6, 1e9);
    for (ranks, len) in [
        (4, 9),
        (9, 7),
        (64, 5),
        (64, 300_001),
        (100, 6000),
        (1024, 3),
    ] {
        let topology = Topology::network(ranks, Machine::new(1e12, 1e12), link);
        let mesh = DeviceMesh::new(&[ranks]).unwrap();
        for rank in [0, 1, ranks / 2, ranks - 1] {
            let world: Rc<dyn Communicator> = Rc::new(SimulatedComm::new(&topology, rank).unwrap());
            let cx = MeshComm::new(&world, &mesh).unwrap();
            let parse = |text| Layout::parse(cx.mesh(), &[len], text).unwrap();
            let (from, to) = (parse("P(sum)"), parse("R"));
            let local = world.device().alloc(DType::F32, len).unwrap().freeze();
            let x = Array::from_parts(&cx, &from, Some(local), DType::F32).unwrap();
            let before = world.ledger().snapshot();
            let handle = x.redistribute_start(&to).unwrap();
            let forecast = handle.plan().forecast(DType::F32);
            let told = handle.plan().explain(DType::F32);
            handle.wait().unwrap();
            let moved = world.ledger().since(&before);
            assert_eq!(
                (forecast.bytes, forecast.messages, forecast.rounds),
                (moved.bytes, moved.messages, moved.rounds),
                "rank {rank} of {ranks}, {len} elements"
            );
            assert_eq!(told.mine, forecast);
            if ranks > 8 {
                let log = u64::from(ranks.next_power_of_two().ilog2());
                assert!(forecast.messages <= 2 * log + 2);
                assert!(told.steps.iter().all(|s| s.kind == "all-reduce"));
                assert!(told.steps[0].most_received >= forecast.bytes / 2);
            }
        }
    }
}

#[test]
fn a_plan_for_another_source_is_refused_before_anything_moves() {
    on_ranks(&[2], |cx| {
        let parse = |text| Layout::parse(cx.mesh(), &[4], text).unwrap();
        let plan = Rc::new(Plan::new(&parse("S(0)"), &parse("R"), cx.rank()).unwrap());
        let x = spread(cx, &parse("S(0)[1,3]"));
        for error in [plan.start(&x).unwrap_err(), plan.run(&x).unwrap_err()] {
            assert!(
                matches!(error, RedistributeError::Incompatible(_)),
                "{error}"
            );
        }
        cx.world().barrier().unwrap();
    });
}

/// A plan that was made for another place would give elements of another piece. Only the rank itself knows, so all are told.
#[test]
fn a_plan_of_another_rank_is_refused_on_all() {
    let moves = [("S(0)", "S(1)"), ("P(sum)", "S(0)"), ("P(sum)", "R")];
    let made_for: [fn(usize) -> usize; 2] = [|_| 0, |rank| rank.min(2)];
    for (moved, made_for) in moves.iter().flat_map(|m| made_for.map(|f| (m, f))) {
        let errors = on_ranks(&[4], |cx| {
            let parse = |text| Layout::parse(cx.mesh(), &[6, 5], text).unwrap();
            let (from, to) = (parse(moved.0), parse(moved.1));
            let plan = Rc::new(Plan::new(&from, &to, made_for(cx.rank())).unwrap());
            let x = spread(cx, &from);
            let errors = [
                plan.run(&x).unwrap_err(),
                (plan.start(&x).and_then(|handle| handle.wait())).unwrap_err(),
                plan.run_into(x).unwrap_err(),
            ];
            // The group still works.
            let same = parse("S(0)");
            spread(cx, &same).redistribute(&parse("R")).unwrap();
            errors.map(|error| error.to_string())
        });
        let wrong = (0..4).find(|&rank| made_for(rank) != rank).unwrap();
        let said = format!("redistribute on rank {wrong}: expected a plan made for index {wrong}");
        for error in errors.into_iter().flatten() {
            assert!(error.starts_with(&said), "{moved:?}: {error}");
        }
    }
}

/// Where nobody waits for the rank, and where only some ranks sum with it.
#[test]
fn a_plan_of_another_rank_is_refused_where_it_does_not_communicate() {
    let refused = |shape: &[usize], from: &str, to: &str| {
        on_ranks(shape, |cx| {
            let parse = |text: &str| Layout::parse(cx.mesh(), &[6, 5], text).unwrap();
            let plan = Plan::new(&parse(from), &parse(to), 0).unwrap();
            plan.run(&spread(cx, &parse(from))).is_err()
        })
    };
    assert_eq!(refused(&[2], "R", "S(0)"), [false, true]);
    assert_eq!(refused(&[2, 2], "S(0) P(sum)", "R R"), [true; 4]);
}

#[test]
fn a_place_that_the_mesh_does_not_have_is_refused() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let parse = |text| Layout::parse(&mesh, &[6], text).unwrap();
    let (from, to, model) = (parse("S(0) R"), parse("R S(0)"), CostModel::shared_memory());
    let refused = [
        Plan::new(&from, &to, 4).map(drop),
        Plan::staged(&from, &to, 99, DType::F64, &model).map(drop),
        Plan::cheapest(&from, &to, 4, DType::F64, &model).map(drop),
        Plan::alternatives(&from, &to, usize::MAX).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        let is_named = matches!(error, RedistributeError::NoSuchRank { size: 4, .. });
        assert!(is_named, "{error}");
    }
}

/// No rank is asked: what does not fit is an error before anything reads it.
#[test]
fn pieces_that_do_not_fit_are_refused_by_their_own_rank() {
    on_ranks(&[2], |cx| {
        let rows = Layout::parse(cx.mesh(), &[4, 3], "S(0)").unwrap();
        let wrap = |len, held, dtype| {
            let buffer = cx.device().alloc(held, len).unwrap().freeze();
            Array::from_parts(cx, &rows, Some(buffer), dtype)
        };
        assert!(wrap(6, DType::F64, DType::F64).is_ok());
        let refused = [
            wrap(5, DType::F64, DType::F64),
            wrap(12, DType::F64, DType::F64),
            wrap(6, DType::F32, DType::F64),
        ];
        for error in refused.map(Result::unwrap_err) {
            let said = "array: expected 6 elements of f64 for local shape [2, 3] under S(0), got";
            assert!(error.to_string().starts_with(said), "{error}");
        }
    });
}

#[test]
fn the_adjoint_of_a_started_move_is_started_alike() {
    let products = on_ranks(&[2, 2], |cx| {
        let parse = |text| Layout::parse(cx.mesh(), &[6, 5], text).unwrap();
        let plan = Rc::new(Plan::new(&parse("S(0) S(1)"), &parse("R S(0)"), cx.rank()).unwrap());
        let adjoint = Rc::new(plan.adjoint().unwrap());
        let (x, y) = (spread(cx, plan.from()), spread(cx, adjoint.from()));
        let (ax, aty) = (plan.start(&x).unwrap(), adjoint.start(&y).unwrap());
        let aty = pair(cx, &x, &aty.wait().unwrap());
        (pair(cx, &ax.wait().unwrap(), &y), aty)
    });
    let (forth, back) = (products.iter()).fold((0.0, 0.0), |(f, b), p| (f + p.0, b + p.1));
    assert_eq!(forth, back);
}

/// Tiles of 2^16 and of 2^16 - 1 that meet in 2^32 pieces, described in a few words.
fn tiles_that_share_no_boundary(mesh: &DeviceMesh) -> [Layout; 2] {
    let tiles = |size: usize| format!("S(0)[0:{size},1:{size}]*");
    [1 << 16, (1 << 16) - 1].map(|size| Layout::parse(mesh, &[1 << 50], &tiles(size)).unwrap())
}

#[test]
fn more_pieces_than_can_be_listed_are_refused_before_they_are() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let [from, to] = tiles_that_share_no_boundary(&mesh);
    let model = CostModel::shared_memory();
    let refused = [
        Plan::new(&from, &to, 0).map(drop),
        Plan::cheapest(&from, &to, 1, DType::U8, &model).map(drop),
        Plan::alternatives(&from, &to, 0).map(drop),
    ];
    for error in refused.map(Result::unwrap_err) {
        let RedistributeError::TooManyPieces(what) = &error else {
            panic!("{error}");
        };
        assert!(what.pieces > what.most && what.pieces > 1 << 31, "{error}");
    }
    // The move can go through halves, with one piece per stride and half.
    let halves = Layout::parse(&mesh, &[1 << 50], "S(0)").unwrap();
    let plan = Plan::new(&from, &halves, 0).unwrap();
    assert_eq!(plan.forecast(DType::U8).bytes, 1 << 48);
}

#[test]
fn bytes_that_cannot_be_counted_are_refused() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let parse = |n: usize, text: &str| Layout::parse(&mesh, &[n], text).unwrap();
    let refused = Plan::new(&parse(1 << 61, "P(sum)"), &parse(1 << 61, "S(0)"), 0).unwrap_err();
    let overflow = RedistributeError::Spec(SpecError::Overflow {
        op: "redistribute",
        shape: vec![1 << 61],
    });
    assert_eq!(refused.to_string(), overflow.to_string());
    // The largest move that is planned: every rank receives three terms of its quarter of 2^57 elements.
    let plan = Plan::new(&parse(1 << 57, "P(sum)"), &parse(1 << 57, "S(0)"), 0).unwrap();
    assert_eq!(plan.forecast(DType::F64).bytes, 3 << 58);
    let told = plan.explain(DType::F64);
    assert_eq!(told.steps[0].most_received, 3 << 58);
    // In its own memory too, though following all the rounds that this takes would be too slow.
    assert!((1 << 60..5 << 58).contains(&told.in_place.unwrap().peak));
    // And slice by slice, of which there would be thousands of millions.
    let plan = Plan::new(&parse(1 << 57, "P(sum)"), &parse(1 << 57, "R"), 0).unwrap();
    assert_eq!(plan.forecast(DType::F64).bytes, 3 << 59);
}

mod written {
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn every_plan_is_read_as_it_was_written(
            mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
            from in recipe(3), to in recipe(3), index in 0_usize..4,
        ) {
            let mesh = DeviceMesh::new(&mesh).unwrap();
            let shape = [rows, cols];
            let (src, dst) = (layout(&mesh, &shape, &from), layout(&mesh, &shape, &to));
            let index = index % mesh.size();
            for plan in Plan::alternatives(&src, &dst.with_partial_reduced(), index).unwrap() {
                let text = serde_json::to_string(&plan).unwrap();
                let read: Plan = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(serde_json::to_string(&read).unwrap(), text);
                prop_assert_eq!(read.to_string(), plan.to_string());
                prop_assert_eq!(read.method(), plan.method());
                prop_assert_eq!(read.forecast(DType::F32), plan.forecast(DType::F32));
            }
        }
    }

    #[test]
    fn read_plans_run() {
        on_ranks(&[2, 2], |cx| {
            let parse = |text| Layout::parse(cx.mesh(), &[6, 5], text).unwrap();
            let (from, to) = (parse("S(0) P(sum)"), parse("S(1) S(0)"));
            let x = spread(cx, &from);
            let text = serde_json::to_string(&Plan::new(&from, &to, x.index()).unwrap()).unwrap();
            let plan: Plan = serde_json::from_str(&text).unwrap();
            let y = plan.run(&x).unwrap();
            assert_eq!(y.to_vec::<f64>().unwrap(), expected(cx, &to));
        });
    }

    #[test]
    fn what_no_plan_is_written_as_is_refused() {
        let mesh = DeviceMesh::new(&[2, 2]).unwrap();
        let parse = |text| Layout::parse(&mesh, &[6, 5], text).unwrap();
        let plan = Plan::new(&parse("S(0) P(sum)"), &parse("S(1) R"), 3).unwrap();
        let good = serde_json::to_value(&plan).unwrap();
        assert!(serde_json::from_value::<Plan>(good.clone()).is_ok());
        let refused = |change: &dyn Fn(&mut serde_json::Value), why: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            let error = serde_json::from_value::<Plan>(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(&|v| v["index"] = 4.into(), "no rank 4");
        refused(&|v| v["method"] = "Magic".into(), "unknown variant");
        refused(&|v| v["from"] = v["to"].clone(), "not partial");
        refused(
            &|v| v["hops"] = serde_json::Value::Array(vec![]),
            "the hops end elsewhere",
        );
        refused(
            &|v| {
                v["hops"].as_array_mut().unwrap().remove(0);
            },
            "reduces other axes",
        );
        refused(
            &|v| v["hops"][1]["exchange"]["scatter"] = vec![0].into(),
            "reduces other axes",
        );
    }

    /// A few hundred bytes ask for four thousand million pieces.
    #[test]
    fn what_asks_for_too_much_is_refused_before_it_is_built() {
        let mesh = DeviceMesh::new(&[2]).unwrap();
        let [from, to] = tiles_that_share_no_boundary(&mesh);
        let plan = |to: &Layout, hops: usize| {
            let hop = |to: &Layout| serde_json::json!({ "exchange": { "to": to, "scatter": [], "owners": "Nearest" } });
            // There and back again.
            let stops = (0..hops).map(|i| if i % 2 == 0 { hop(to) } else { hop(&from) });
            let hops: Vec<_> = stops.collect();
            let end = if hops.len() % 2 == 1 { to } else { &from };
            let plan = serde_json::json!({
                "from": from, "to": end, "index": 0, "method": "Direct", "hops": hops,
                "staging": 0,
            });
            serde_json::from_value::<Plan>(plan)
        };
        let error = plan(&to, 1).unwrap_err().to_string();
        assert!(error.contains("pieces, expected at most"), "{error}");
        // Each hop is within the bound, but all together are beyond it.
        let halves = Layout::parse(&mesh, &[1 << 50], "S(0)").unwrap();
        assert!(plan(&halves, 1).is_ok());
        let error = plan(&halves, 40).unwrap_err().to_string();
        assert!(error.contains("pieces, expected at most"), "{error}");
    }
}

/// A plan goes between layouts of one shape on one mesh, whose partial values it can make of one another.
#[test]
fn layouts_that_no_plan_joins_are_refused() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let turned = DeviceMesh::with_ranks(&[2], vec![1, 0]).unwrap();
    let flat = |text| Layout::parse(&mesh, &[4], text).unwrap();
    let told = |from: &Layout, to: &Layout| match Plan::new(from, to, 0) {
        Err(error @ RedistributeError::Incompatible(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let rows = flat("S(0)");
    for (from, to, why) in [
        (
            &rows,
            Layout::parse(&turned, &[4], "S(0)").unwrap(),
            "the meshes differ",
        ),
        (
            &rows,
            Layout::parse(&mesh, &[4, 1], "S(0)").unwrap(),
            "the shapes differ",
        ),
        (
            &flat("P(sum)"),
            flat("P(max)"),
            "the partial operations differ",
        ),
        (&rows, flat("P(max)"), "only a partial sum"),
    ] {
        let said = told(from, &to);
        assert!(said.contains(why), "{said}");
    }
    assert!(Plan::new(&rows, &flat("P(sum)"), 0).is_ok());
}

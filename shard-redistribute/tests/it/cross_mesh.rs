//! Moves between meshes of one world, checked element by element.

use crate::common::{expected, layout, missing, pair, recipe, spread, value};
use proptest::prelude::*;
use shard_comm::{CommError, Communicator, DType, local};
use shard_redistribute::{
    Array, Considered, CostModel, CrossPlan, LinkCost, MeshComm, Method as Way, RedistributeError,
};
use shard_spec::{DeviceMesh, Layout, numel};
use std::rc::Rc;

const WORLD: usize = 6;

/// A mesh over some of the world's ranks, in any order.
fn meshes() -> impl Strategy<Value = DeviceMesh> {
    let shapes = vec![
        vec![1],
        vec![2],
        vec![5],
        vec![2, 2],
        vec![3, 2],
        vec![1, 2, 2],
    ];
    let ranks = Just((0..WORLD).collect::<Vec<_>>()).prop_shuffle();
    (prop::sample::select(shapes), ranks).prop_map(|(shape, ranks)| {
        let size = shape.iter().product();
        DeviceMesh::with_ranks(&shape, ranks[..size].to_vec()).unwrap()
    })
}

fn on_meshes<T: Send>(
    a: &DeviceMesh,
    b: &DeviceMesh,
    f: impl Fn(&Rc<MeshComm>, &Rc<MeshComm>) -> T + Sync,
) -> Vec<T> {
    local::run(WORLD, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        f(
            &MeshComm::new(&world, a).unwrap(),
            &MeshComm::new(&world, b).unwrap(),
        )
    })
    .unwrap()
}

/// The array of `layout`, without data off its mesh.
fn source(cx: &Rc<MeshComm>, layout: &Layout) -> Array {
    match cx.is_member() {
        true => spread(cx, layout),
        false => Array::from_parts(cx, layout, None, DType::F64).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_move_between_meshes_is_exact_and_as_forecast(
        left in meshes(), right in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3), way in 0_usize..8,
    ) {
        let shape = [rows, cols];
        let (src, dst) = (layout(&left, &shape, &from), layout(&right, &shape, &to));
        let dst = dst.with_partial_reduced();
        let crossed = on_meshes(&left, &right, |a, b| {
            let x = source(a, &src);
            let mut plans = CrossPlan::alternatives(&src, &dst, a.rank()).unwrap();
            let plan = plans.swap_remove(way % plans.len());
            let forecast = plan.forecast(DType::F64);
            let before = a.world().ledger().snapshot();
            let live = a.device().memory().live;
            a.device().reset_peak();
            let y = plan.run(&x, b).unwrap();
            let peak = a.device().memory().peak - live;
            let moved = a.world().ledger().since(&before);
            let did = (moved.bytes, moved.messages, moved.rounds);
            assert_eq!(did, (forecast.bytes, forecast.messages, forecast.rounds), "{}", plan.trace());
            assert!(peak as u64 <= forecast.peak, "{peak} B of {forecast:?}");
            assert_eq!(y.buffer().is_some(), b.is_member());
            if b.is_member() {
                assert_eq!(y.to_vec::<f64>().unwrap(), expected(b, &dst));
            }
            if !src.is_partial() {
                let missing = 8 * missing(&src, &dst, a.rank()) as u64;
                let once = plan.method() == Way::SliceGather;
                assert!(moved.bytes == missing || once && moved.bytes >= missing);
                // And home again, bit for bit.
                let home = y.redistribute_onto(a, &src).unwrap();
                if a.is_member() {
                    assert_eq!(home.to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
                }
            }
            (plan.method(), plan.pieces().remote_elements(a.rank()))
        });
        // Every element crosses at most once where copies gather on their own mesh.
        if crossed[0].0 == Way::SliceGather {
            prop_assert!(crossed.iter().map(|c| c.1).sum::<usize>() <= rows * cols);
        }
        prop_assert!(crossed.iter().all(|c| c.0 == crossed[0].0));
    }

    #[test]
    fn the_cheapest_way_across_is_the_same_on_every_rank_and_never_dearer(
        left in meshes(), right in meshes(), rows in 0_usize..40, cols in 0_usize..40,
        from in recipe(3), to in recipe(3), latency in 0.0..1e-5,
    ) {
        let (src, dst) = (layout(&left, &[rows, cols], &from), layout(&right, &[rows, cols], &to));
        let model = CostModel::network(LinkCost::new(latency, 1e9));
        let plans: Vec<CrossPlan> = (0..WORLD)
            .map(|rank| CrossPlan::cheapest(&src, &dst, rank, DType::F64, &model).unwrap())
            .collect();
        let of = |p: &CrossPlan| (p.trace(), p.method(), p.considered().to_vec());
        for plan in &plans {
            prop_assert_eq!(of(plan), of(&plans[0]));
            let mine = |c: &&Considered| c.method == plan.method() && c.trace == plan.trace();
            let taken = plan.considered().iter().filter(mine).map(|c| c.seconds);
            let taken = taken.fold(f64::INFINITY, f64::min);
            // Prices that differ by the rounding of their sums are equal.
            let taken = taken * (1.0 - 1e-9);
            prop_assert!(plan.considered().iter().all(|c| taken <= c.seconds));
        }
    }

    #[test]
    fn the_adjoint_between_meshes_passes_the_dot_product_test(
        left in meshes(), right in meshes(), rows in 0_usize..7, cols in 0_usize..6,
        from in recipe(3), to in recipe(3),
    ) {
        let shape = [rows, cols];
        let (src, dst) = (layout(&left, &shape, &from), layout(&right, &shape, &to));
        let sums = on_meshes(&left, &right, |a, b| {
            let plan = CrossPlan::new(&src, &dst, a.rank()).unwrap();
            let adjoint = plan.adjoint().unwrap();
            let (x, y) = (source(a, &src), source(b, adjoint.from()));
            let ax = plan.run(&x, b).unwrap();
            let aty = adjoint.run(&y, a).unwrap();
            let left = if b.is_member() { pair(b, &ax, &y) } else { 0.0 };
            let right = if a.is_member() { pair(a, &x, &aty) } else { 0.0 };
            (left, right)
        });
        let (forth, back) = sums.iter().fold((0.0, 0.0), |(f, b), s| (f + s.0, b + s.1));
        prop_assert_eq!(forth, back);
    }

    #[test]
    fn scatter_and_gather_hold_no_more_than_the_block(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8, to in recipe(3),
        owner in 0..WORLD, home in 0..WORLD,
    ) {
        let shape = [rows, cols];
        let dst = layout(&mesh, &shape, &to).with_partial_reduced();
        let whole: Vec<f64> = (0..rows * cols).map(|i| value(&[i / cols, i % cols])).collect();
        on_meshes(&mesh, &mesh, |cx, _| {
            let data = (cx.rank() == owner).then(|| cx.device().upload_slice(&whole).unwrap());
            let live = cx.device().memory().live;
            cx.device().reset_peak();
            let x = Array::scatter(cx, &dst, owner, data.as_ref(), DType::F64).unwrap();
            let block = 8 * numel(&x.local_shape());
            assert!(cx.device().memory().peak - live <= block);
            if cx.is_member() {
                assert_eq!(x.to_vec::<f64>().unwrap(), expected(cx, &dst));
            }
            let live = cx.device().memory().live;
            cx.device().reset_peak();
            let got = x.gather(home).unwrap();
            let peak = cx.device().memory().peak - live;
            assert_eq!(got.is_some(), cx.rank() == home);
            match got {
                Some(got) => assert_eq!(got.to_vec::<f64>().unwrap(), whole),
                None => assert_eq!(peak, 0),
            }
        });
    }
}

/// Whether the source is reduced first, the result is gathered afterwards, or nothing crosses.
#[test]
fn a_plan_of_another_rank_is_refused_on_every_rank() {
    let left = DeviceMesh::with_ranks(&[2], vec![0, 1]).unwrap();
    let right = DeviceMesh::with_ranks(&[3], vec![1, 2, 3]).unwrap();
    let named = left.with_names(&["x"]).unwrap();
    let refused = |to: &DeviceMesh, texts: [&str; 2]| {
        on_meshes(&left, to, |a, b| {
            let parse = |cx: &MeshComm, text| Layout::parse(cx.mesh(), &[12], text).unwrap();
            let (from, to) = (parse(a, texts[0]), parse(b, texts[1]));
            // Rank 1, which is on both meshes, has the plan of rank 0.
            let rank = if a.rank() == 1 { 0 } else { a.rank() };
            let mut plans = CrossPlan::alternatives(&from, &to, rank).unwrap();
            let gathers = plans.iter().position(|p| p.method() == Way::SliceGather);
            let plan = plans.swap_remove(gathers.unwrap_or(0));
            let ran = plan.run(&source(a, &from), b);
            ran.err().map(|error| error.to_string())
        })
    };
    for texts in [["S(0)", "S(0)"], ["P(sum)", "S(0)"], ["S(0)", "R"]] {
        for error in refused(&right, texts) {
            let error = error.expect("an error on every rank");
            let said = "move on rank 1: expected a plan made for rank 1, got one made for rank 0";
            assert!(error.starts_with(said), "{texts:?}: {error}");
        }
    }
    // Nothing crosses: where the members gather, they are told, and others have nothing to do.
    let on_members = [true, true, false, false, false, false];
    let told = refused(&named, ["S(0)", "R"])
        .into_iter()
        .map(|error| error.is_some());
    assert_eq!(told.collect::<Vec<_>>(), on_members);
    let own = refused(&named, ["S(0)", "S(0)"])
        .into_iter()
        .map(|error| error.is_some());
    assert_eq!(
        own.collect::<Vec<_>>(),
        [false, true, false, false, false, false]
    );
}

#[test]
fn what_does_not_fit_is_reported_on_every_rank() {
    let mesh = DeviceMesh::new(&[WORLD]).unwrap();
    let rows = Layout::parse(&mesh, &[12], "S(0)").unwrap();
    let errors = on_meshes(&mesh, &mesh, |cx, _| {
        // The owner has one element too few.
        let short = cx.device().upload_slice(&[0.0; 11]).unwrap();
        let error = Array::scatter(cx, &rows, 2, Some(&short), DType::F64).unwrap_err();
        let nobody = Array::scatter(cx, &rows, WORLD, Some(&short), DType::F64).unwrap_err();
        assert!(matches!(
            nobody,
            RedistributeError::NoSuchRank {
                rank: WORLD,
                size: WORLD,
                ..
            }
        ));
        // The world still works.
        cx.world().barrier().unwrap();
        error
    });
    for error in errors {
        let RedistributeError::Comm(CommError::Agreed { .. }) = &error else {
            panic!("{error}");
        };
        let text = error.to_string();
        assert!(
            text.contains("12 elements") && text.contains("11 elements"),
            "{text}"
        );
    }
}

/// What a move between meshes would ask for is looked at before it is planned, as on one mesh.
#[test]
fn what_no_rank_can_list_or_count_is_refused_between_meshes_too() {
    let left = DeviceMesh::new(&[2]).unwrap();
    let right = DeviceMesh::with_ranks(&[2], vec![1, 2]).unwrap();
    let model = CostModel::shared_memory();
    let refused = |from: &Layout, to: &Layout| {
        [
            CrossPlan::new(from, to, 1).map(drop),
            CrossPlan::spread(from, to, 1).map(drop),
            CrossPlan::cheapest(from, to, 1, DType::U8, &model).map(drop),
            CrossPlan::alternatives(from, to, 1).map(drop),
        ]
        .map(Result::unwrap_err)
    };
    // Tiles that share no boundary.
    let tiles = |size: usize| format!("S(0)[0:{size},1:{size}]*");
    let shape = [1 << 50];
    let [from, to] = [(&left, 1 << 16), (&right, (1 << 16) - 1)]
        .map(|(mesh, size)| Layout::parse(mesh, &shape, &tiles(size)).unwrap());
    for error in refused(&from, &to) {
        let RedistributeError::TooManyPieces(what) = &error else {
            panic!("{error}");
        };
        assert!(what.pieces > what.most && what.op == "move", "{error}");
    }
    // Bytes that do not fit into 64 bits.
    let whole = |mesh, n| Layout::replicated(mesh, &[n]);
    for error in refused(&whole(&left, 1 << 61), &whole(&right, 1 << 61)) {
        assert!(matches!(error, RedistributeError::Spec(_)), "{error}");
    }
    let plan = CrossPlan::new(&whole(&left, 1 << 57), &whole(&right, 1 << 57), 2).unwrap();
    assert_eq!(plan.forecast(DType::F64).bytes, 1 << 60);
}

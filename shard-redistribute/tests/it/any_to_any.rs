//! Any layout to any layout, checked element by element against the global array.

use crate::common::{expected, layout, missing, on_ranks, pair, recipe, spread, value};
use proptest::prelude::*;
use shard_comm::{DType, ErrorClass};
use shard_redistribute::{Array, CostModel, LinkCost, Plan, PlanCost};
use shard_spec::{DeviceMesh, Layout, ReduceOp, numel};

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::select(vec![
        vec![1],
        vec![3],
        vec![4],
        vec![2, 2],
        vec![2, 3],
        vec![3, 1],
        vec![2, 1, 2],
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn arrays_are_filled_at_the_indices_that_their_ranks_hold(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8, of in recipe(3),
    ) {
        on_ranks(&mesh, |cx| {
            let layout = layout(cx.mesh(), &[rows, cols], &of);
            let coords = cx.coords().unwrap();
            let holds = layout.partial_axes().iter().all(|&a| coords[a] == 0);
            let parts = layout.local_parts(cx.rank()).unwrap();
            let here = parts[0].indices().flat_map(|i| parts[1].indices().map(move |j| [i, j]));
            let want: Vec<f64> = here.map(|at| if holds { value(&at) } else { 0.0 }).collect();
            let filled = Array::from_fn::<f64>(cx, &layout, value).unwrap();
            assert_eq!(filled.to_vec::<f64>().unwrap(), want);
            let number = Array::from_fn::<f64>(cx, &Layout::replicated(cx.mesh(), &[]), value).unwrap();
            assert_eq!(number.to_vec::<f64>().unwrap(), [1.0]);
        });
    }

    #[test]
    fn every_move_is_exact_and_meets_the_lower_bound(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3),
    ) {
        let shape = [rows, cols];
        on_ranks(&mesh, |cx| {
            let (src, dst) = (layout(cx.mesh(), &shape, &from), layout(cx.mesh(), &shape, &to));
            let dst = dst.with_partial_reduced();
            let x = spread(cx, &src);
            let before = cx.world().ledger().snapshot();
            let plan = Plan::new(&src, &dst, x.index()).unwrap();
            let y = plan.run(&x).unwrap();
            let moved = cx.world().ledger().since(&before);
            assert_eq!(y.to_vec::<f64>().unwrap(), expected(cx, &dst), "{plan}");
            assert_eq!(moved.bytes, 8 * plan.received(shard_comm::DType::F64) as u64, "{plan}");
            if !src.is_partial() {
                assert_eq!(plan.received(shard_comm::DType::F64), missing(&src, &dst, cx.rank()), "{plan}");
                // And back again, bit for bit.
                assert_eq!(y.redistribute(&src).unwrap().to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
            }
        });
    }

    #[test]
    fn every_method_is_exact_and_does_what_it_forecasts(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), to in recipe(3),
    ) {
        let shape = [rows, cols];
        on_ranks(&mesh, |cx| {
            let (src, dst) = (layout(cx.mesh(), &shape, &from), layout(cx.mesh(), &shape, &to));
            let dst = dst.with_partial_reduced();
            let x = spread(cx, &src);
            let want = expected(cx, &dst);
            for plan in Plan::alternatives(&src, &dst, x.index()).unwrap() {
                let forecast = plan.forecast(DType::F64);
                let before = cx.world().ledger().snapshot();
                let live = cx.device().memory().live;
                cx.device().reset_peak();
                let y = plan.run(&x).unwrap();
                let peak = cx.device().memory().peak - live;
                let moved = cx.world().ledger().since(&before);
                assert_eq!(y.to_vec::<f64>().unwrap(), want, "{plan}");
                let did = PlanCost {
                    bytes: moved.bytes,
                    messages: moved.messages,
                    rounds: moved.rounds,
                    peak: forecast.peak,
                };
                assert_eq!(did, forecast, "{:?} {plan}", plan.method());
                assert!(peak as u64 <= forecast.peak, "{peak} B of {forecast:?}: {plan}");
            }
        });
    }

    #[test]
    fn the_cheapest_is_never_above_any_other_and_the_same_on_every_rank(
        mesh in meshes(), rows in 0_usize..40, cols in 0_usize..40,
        from in recipe(3), to in recipe(3), latency in 0.0..1e-5,
    ) {
        let mesh = DeviceMesh::new(&mesh).unwrap();
        let (src, dst) = (layout(&mesh, &[rows, cols], &from), layout(&mesh, &[rows, cols], &to));
        let dst = dst.with_partial_reduced();
        let model = CostModel::network(LinkCost::new(latency, 1e9));
        let plans: Vec<Plan> = (0..mesh.size())
            .map(|i| Plan::cheapest(&src, &dst, i, DType::F64, &model).unwrap())
            .collect();
        for plan in &plans {
            prop_assert_eq!(plan.to_string(), plans[0].to_string());
            prop_assert_eq!(plan.considered(), plans[0].considered());
            let taken: f64 = plan.explain(DType::F64).steps.iter().map(|s| s.seconds).sum();
            for other in plan.considered() {
                // Prices that differ by the rounding of their sums are equal.
                let most = other.seconds * (1.0 + 2e-9);
                prop_assert!(taken <= most, "{} is dearer than {:?}", plan, other);
            }
        }
    }

    #[test]
    fn the_adjoint_of_every_move_passes_the_dot_product_test(
        mesh in meshes(), rows in 0_usize..7, cols in 0_usize..6,
        from in recipe(3), to in recipe(3),
    ) {
        // ⟨A x, y⟩ = ⟨x, A* y⟩, where a partial value pairs with a replicated one: each rank pairs its share with the whole
        // cotangent, and replicated copies count once.
        let shape = [rows, cols];
        let sums = on_ranks(&mesh, |cx| {
            let (src, dst) = (layout(cx.mesh(), &shape, &from), layout(cx.mesh(), &shape, &to));
            let index = cx.mesh().index_of(cx.rank()).unwrap();
            let Ok(plan) = Plan::new(&src, &dst, index) else { return None };
            let adjoint = plan.adjoint().unwrap();
            let x = spread(cx, &src);
            let y = spread(cx, adjoint.from());
            let ax = plan.run(&x).unwrap();
            let aty = adjoint.run(&y).unwrap();
            Some((pair(cx, &ax, &y), pair(cx, &x, &aty)))
        });
        if sums.iter().all(Option::is_some) {
            let (left, right) =
                sums.iter().flatten().fold((0.0, 0.0), |(a, b), (l, r)| (a + l, b + r));
            prop_assert_eq!(left, right);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn any_path_leads_to_the_same_place(
        mesh in meshes(), rows in 0_usize..9, cols in 0_usize..8,
        from in recipe(3), over in recipe(3), to in recipe(3),
    ) {
        let shape = [rows, cols];
        on_ranks(&mesh, |cx| {
            let [src, mid, dst] = [&from, &over, &to].map(|r| layout(cx.mesh(), &shape, r));
            let (mid, dst) = (mid.with_partial_reduced(), dst.with_partial_reduced());
            let x = spread(cx, &src);
            // This includes partial values: they are reduced either way, and never gathered before.
            let straight = x.redistribute(&dst).unwrap().to_vec::<f64>().unwrap();
            let around = x.redistribute(&mid).unwrap().redistribute(&dst).unwrap();
            assert_eq!(around.to_vec::<f64>().unwrap(), straight);
            assert_eq!(straight, expected(cx, &dst));
            // Keeping a layout moves nothing, and neither does taking a part of what a rank holds.
            let before = cx.world().ledger().snapshot();
            around.redistribute(&dst).unwrap();
            let whole = Layout::replicated(cx.mesh(), &shape);
            let everything = Array::from_fn::<f64>(cx, &whole, value).unwrap();
            let part = everything.redistribute(&dst).unwrap();
            assert_eq!(cx.world().ledger().since(&before).rounds, 0);
            assert_eq!(part.to_vec::<f64>().unwrap(), straight);
        });
    }

    #[test]
    fn moving_commutes_with_what_each_element_or_each_row_goes_through(
        mesh in meshes(), rows in 0_usize..9, cols in 1_usize..8,
        from in recipe(3), to in recipe(3),
    ) {
        // Rows stay whole: axes that would shard the columns replicate.
        let whole_rows = |mut recipe: crate::common::Recipe| {
            recipe.kinds.iter_mut().filter(|k| **k == 1).for_each(|k| *k = 2);
            recipe
        };
        let (from, to) = (whole_rows(from), whole_rows(to));
        on_ranks(&mesh, |cx| {
            let at = |recipe, shape: &[usize]| layout(cx.mesh(), shape, recipe);
            let made = |layout: &Layout, data: &[f64]| {
                let local = cx.device().upload_slice(data).unwrap();
                Array::from_local(cx, layout, Some(local), DType::F64).unwrap()
            };
            let dst = |shape: &[usize]| at(&to, shape).with_partial_reduced();
            let x = spread(cx, &at(&from, &[rows, cols]));
            let values = x.to_vec::<f64>().unwrap();
            let moved = x.redistribute(&dst(&[rows, cols])).unwrap().to_vec::<f64>().unwrap();

            // Sums over a dim that is whole, of partial values too.
            let sums = |v: &[f64]| -> Vec<f64> { v.chunks(cols).map(|row| row.iter().sum()).collect() };
            let summed = made(&at(&from, &[rows]), &sums(&values)).redistribute(&dst(&[rows])).unwrap();
            assert_eq!(summed.to_vec::<f64>().unwrap(), sums(&moved));

            // A function of each element, for values that are not partial.
            if !x.layout().is_partial() {
                let square = |v: &[f64]| -> Vec<f64> { v.iter().map(|v| v * v).collect() };
                let squared = made(x.layout(), &square(&values)).redistribute(&dst(&[rows, cols])).unwrap();
                assert_eq!(squared.to_vec::<f64>().unwrap(), square(&moved));
            }
        });
    }
}

#[test]
fn plans_print_what_they_pass_through() {
    use shard_spec::Placement::{Partial, Replicate, Shard};
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let from = Layout::new(&mesh, &[10], &[Shard(0), Partial(ReduceOp::Sum)]).unwrap();
    let to = Layout::new(&mesh, &[10], &[Replicate, Replicate]).unwrap();
    assert_eq!(
        Plan::new(&from, &to, 0).unwrap().to_string(),
        "S(0) P(sum) -> S(0) R -> R R"
    );
    assert_eq!(numel(from.shape()), 10);
}

#[test]
fn reducing_a_product_is_not_a_sum() {
    use shard_spec::Placement::Partial;
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let values = on_ranks(&[3], |cx| {
        let layout = Layout::new(&mesh, &[2], &[Partial(ReduceOp::Prod)]).unwrap();
        let local = cx
            .device()
            .upload_slice(&[2.0, cx.rank() as f64 + 1.0])
            .unwrap();
        let x = Array::from_local(cx, &layout, Some(local), shard_comm::DType::F64).unwrap();
        x.redistribute(&layout.with_partial_reduced())
            .unwrap()
            .to_vec::<f64>()
            .unwrap()
    });
    assert_eq!(values, vec![vec![8.0, 6.0]; 3]);
}

/// All ranks are told, whatever the size of their own piece, and go on.
#[test]
fn a_piece_of_another_size_on_one_rank_is_an_error_on_all() {
    let told = on_ranks(&[3], |cx| {
        let layout = Layout::parse(cx.mesh(), &[6], "S(0)").unwrap();
        let held = if cx.rank() == 1 { 3 } else { 2 };
        let local = cx.device().upload_slice(&vec![1.0; held]).unwrap();
        let error = Array::from_local(cx, &layout, Some(local), DType::F64).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Agreed);
        let x = Array::from_fn(cx, &layout, |i| i[0] as f64).unwrap();
        let whole = x
            .redistribute(&Layout::replicated(cx.mesh(), &[6]))
            .unwrap();
        let numbers = whole.to_vec::<f64>().unwrap();
        assert_eq!(numbers, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        error.to_string()
    });
    assert!(told[0].contains("rank 1"), "{}", told[0]);
    assert!(told.iter().all(|t| t == &told[0]), "{told:?}");
}

#[test]
fn a_measured_model_is_the_same_on_every_rank() {
    let models = on_ranks(&[2, 2], |cx| CostModel::measure(cx).unwrap());
    let first = &models[0];
    assert!(models.iter().all(|m| m == first));
    // Threads of one process read from shared memory.
    assert!(!first.sender_pays);
    for axis in 0..2 {
        let link = first.axis(axis);
        assert!(link.latency >= 0.0 && link.per_byte > 0.0, "{link:?}");
    }
    assert!(first.round > 0.0 && first.round < 1.0);
}

#[test]
fn arrays_move_by_the_model_of_their_planner() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let from = Layout::parse(&mesh, &[4096], "S(0)[4096,0,0,0]").unwrap();
    let to = Layout::replicated(&mesh, &[4096]);
    let rounds = on_ranks(&[4], |cx| {
        let x = Array::from_fn::<f64>(cx, &from, |i| i[0] as f64).unwrap();
        let count = || {
            let before = cx.world().ledger().snapshot();
            let whole = x.redistribute(&to).unwrap().to_vec::<f64>().unwrap();
            assert!(whole.iter().enumerate().all(|(i, &v)| v == i as f64));
            cx.world().ledger().since(&before).rounds
        };
        let direct = count();
        let network = CostModel::network(LinkCost::new(0.0, 1e9));
        cx.planner().set_model(Some(network));
        (direct, count())
    });
    assert_eq!(rounds, [(1, 2); 4]);
}

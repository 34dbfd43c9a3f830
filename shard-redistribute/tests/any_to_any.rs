//! Any layout to any layout, checked element by element against the global array.

use proptest::prelude::*;
use shard_comm::{Communicator, DType, local};
use shard_redistribute::{Array, CostModel, Forecast, LinkCost, MeshComm, Plan};
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp, numel};
use std::rc::Rc;

/// A recipe for a layout of a 2-D tensor on a mesh: small enough to shrink well.
#[derive(Clone, Debug)]
struct Recipe {
    /// Per mesh axis: 0 and 1 shard that dim, 2 replicates, 3 is a partial sum.
    kinds: Vec<u8>,
    /// Cut points per dim, scaled to the extent; unused cuts are ignored.
    cuts: Vec<f64>,
    /// Whether a dim sharded by several axes lists them minor to major.
    reversed: bool,
}

fn layout(mesh: &DeviceMesh, shape: &[usize], recipe: &Recipe) -> Layout {
    let mut builder = Layout::builder(mesh, shape);
    for (d, &n) in shape.iter().enumerate() {
        let mut axes: Vec<usize> = (0..mesh.ndim())
            .filter(|&a| usize::from(recipe.kinds[a]) == d)
            .collect();
        if axes.is_empty() {
            continue;
        }
        if recipe.reversed {
            axes.reverse();
        }
        let parts: usize = axes.iter().map(|&a| mesh.shape()[a]).product();
        let mut cuts: Vec<usize> = (1..parts)
            .map(|k| (recipe.cuts[k % recipe.cuts.len()] * n as f64) as usize)
            .collect();
        cuts.sort_unstable();
        let offsets = std::iter::once(0)
            .chain(cuts)
            .chain(std::iter::once(n))
            .collect();
        builder = builder.shard(d, &axes, Partition::from_offsets(n, offsets).unwrap());
    }
    for a in 0..mesh.ndim() {
        if recipe.kinds[a] == 3 {
            builder = builder.partial(a, ReduceOp::Sum);
        }
    }
    builder.build().unwrap()
}

fn recipe(ndim: usize) -> impl Strategy<Value = Recipe> {
    (
        prop::collection::vec(0_u8..4, ndim),
        prop::collection::vec(0.0..=1.0, 6),
        any::<bool>(),
    )
        .prop_map(|(kinds, cuts, reversed)| Recipe {
            kinds,
            cuts,
            reversed,
        })
}

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

/// Values whose partial shares differ per rank and sum to the global value.
fn value(index: &[usize]) -> f64 {
    index.iter().fold(1.0, |v, &i| 7.0 * v + i as f64)
}

fn on_ranks<T: Send>(shape: &[usize], f: impl Fn(&Rc<MeshComm>) -> T + Sync) -> Vec<T> {
    let mesh = DeviceMesh::new(shape).unwrap();
    local::run(mesh.size(), |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        f(&MeshComm::new(&world, &mesh).unwrap())
    })
    .unwrap()
}

/// The array of `layout` whose partial shares are spread unevenly over the ranks.
fn spread(cx: &Rc<MeshComm>, layout: &Layout) -> Array {
    let whole = Array::from_fn::<f64>(cx, &layout.with_partial_reduced(), value).unwrap();
    let p: usize = layout
        .partial_axes()
        .iter()
        .map(|&a| cx.mesh().shape()[a])
        .product();
    let coords = cx.coords().unwrap();
    let me = layout
        .partial_axes()
        .iter()
        .fold(0, |i, &a| i * cx.mesh().shape()[a] + coords[a]);
    let data: Vec<f64> = whole
        .to_vec::<f64>()
        .unwrap()
        .iter()
        .map(|v| {
            if me == 0 {
                v - (p * (p - 1) / 2) as f64 * 5.0
            } else {
                me as f64 * 5.0
            }
        })
        .collect();
    let data = if p == 1 {
        whole.to_vec().unwrap()
    } else {
        data
    };
    Array::from_local(
        cx,
        layout,
        Some(cx.device().upload_slice(&data).unwrap()),
        shard_comm::DType::F64,
    )
    .unwrap()
}

/// What this rank should hold of a whole-valued layout.
fn expected(cx: &Rc<MeshComm>, layout: &Layout) -> Vec<f64> {
    Array::from_fn::<f64>(cx, layout, value)
        .unwrap()
        .to_vec()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

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
                let (have, want) = (src.local_box(cx.rank()).unwrap(), dst.local_box(cx.rank()).unwrap());
                let common = have.intersect(&want).map_or(0, |b| b.numel());
                assert_eq!(plan.received(shard_comm::DType::F64), want.numel() - common, "{plan}");
                // And back again, bit for bit.
                assert_eq!(y.redistribute(&src).unwrap().to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
            }
        });
    }

    #[test]
    fn every_strategy_is_exact_and_does_what_it_forecasts(
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
                let did = Forecast {
                    bytes: moved.bytes,
                    messages: moved.messages,
                    rounds: moved.rounds,
                    peak: forecast.peak,
                };
                assert_eq!(did, forecast, "{:?} {plan}", plan.strategy());
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
                prop_assert!(taken <= other.seconds, "{} is dearer than {:?}", plan, other);
            }
        }
    }

    #[test]
    fn the_adjoint_of_every_move_passes_the_dot_product_test(
        mesh in meshes(), rows in 0_usize..7, cols in 0_usize..6,
        from in recipe(3), to in recipe(3),
    ) {
        // ⟨A x, y⟩ = ⟨x, A* y⟩, where a partial value pairs with a replicated one: each rank's share with the
        // whole cotangent, and replicated copies count once.
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

/// This rank's term of the inner product of a value and a cotangent of dual layouts.
fn pair(cx: &Rc<MeshComm>, a: &Array, b: &Array) -> f64 {
    let coords = cx.coords().unwrap();
    // Both replicated along an axis would count every copy; duals never are.
    let copies_once = (0..cx.mesh().ndim()).all(|axis| {
        let both = a.layout().replicate_axes().contains(&axis)
            && b.layout().replicate_axes().contains(&axis);
        !both || coords[axis] == 0
    });
    if !copies_once {
        return 0.0;
    }
    a.to_vec::<f64>()
        .unwrap()
        .iter()
        .zip(b.to_vec::<f64>().unwrap())
        .map(|(x, y)| x * y)
        .sum()
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

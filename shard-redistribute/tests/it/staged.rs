//! Exchanges in which pieces pass through other ranks: the same elements in fewer messages.

use crate::common::{expected, layout, on_ranks, recipe, spread};
use proptest::prelude::*;
use shard_comm::backend::Decorator;
use shard_comm::simulated::SimulatedComm;
use shard_comm::{Communicator, DType, Machine, Nodes, Topology, local};
use shard_redistribute::{Array, CostModel, LinkCost, MeshComm, Plan, PlanCost, Step};
use shard_spec::{DeviceMesh, IndexBox, Layout, Partition};
use std::rc::Rc;

/// Messages take an hour, and bytes next to nothing.
fn slow() -> CostModel {
    CostModel::network(LinkCost::new(3600.0, 1e12)).with_at_once(0)
}

/// Runs a plan, and compares what it did with what it said.
fn run(plan: &Plan, x: &Array) -> Array {
    let forecast = plan.forecast(x.dtype());
    let (world, live) = (x.cx().world(), x.cx().device().memory().live);
    let before = world.ledger().snapshot();
    x.cx().device().reset_peak();
    let y = plan.run(x).unwrap();
    // What was given back for others to read until now may have been part of what was live.
    let peak = x.cx().device().memory().peak.saturating_sub(live) as u64;
    let moved = world.ledger().since(&before);
    let did = PlanCost {
        bytes: moved.bytes,
        messages: moved.messages,
        rounds: moved.rounds,
        peak: forecast.peak,
    };
    // Threads sum up in a message from each to each other, whatever the model says of their links.
    if plan
        .steps()
        .iter()
        .all(|step| matches!(step, Step::Exchange(..)))
    {
        assert_eq!(did, forecast, "{plan}");
    }
    assert!(peak <= forecast.peak, "{peak} B of {forecast:?}: {plan}");
    y
}

fn messages(plan: &Plan) -> u64 {
    plan.forecast(DType::F64).messages
}

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    prop::sample::select(vec![
        vec![4],
        vec![5],
        vec![6],
        vec![8],
        vec![9],
        vec![12],
        vec![2, 6],
        vec![4, 3],
        vec![2, 4, 2],
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Uneven and empty parts, several intervals, more ranks than rows, terms, copies, nested shards, prime numbers of ranks.
    #[test]
    fn every_staged_move_has_the_bits_of_the_direct_one_and_does_what_it_forecasts(
        mesh in meshes(), rows in 0_usize..24, cols in 0_usize..14,
        from in recipe(3), to in recipe(3), each in 1_usize..5, room in 0_usize..4000,
    ) {
        let shape = [rows, cols];
        let model = mesh.iter().enumerate().fold(slow(), |model, (axis, &n)| {
            let each = if n.is_multiple_of(each) { each } else { 1 };
            model.with_node(axis, each, LinkCost::new(3000.0, 1e12))
        });
        on_ranks(&mesh, |cx| {
            let (src, dst) = (layout(cx.mesh(), &shape, &from), layout(cx.mesh(), &shape, &to));
            let dst = dst.with_partial_reduced();
            // Rounded sums, whose bits tell in which order they were formed.
            let x = spread(cx, &src);
            let rounded: Vec<f64> = x.to_vec::<f64>().unwrap().iter().map(|v| v.sin()).collect();
            let rounded = cx.device().upload_slice(&rounded).unwrap();
            let rounded = Array::from_parts(cx, &src, Some(rounded), DType::F64).unwrap();
            let direct = Plan::new(&src, &dst, x.index()).unwrap();
            let staged = Plan::staged(&src, &dst, x.index(), DType::F64, &slow()).unwrap();
            assert_eq!(run(&staged, &x).to_vec::<f64>().unwrap(), expected(cx, &dst), "{staged}");
            let bits = |y: Array| -> Vec<u64> {
                y.to_vec::<f64>().unwrap().iter().map(|v| v.to_bits()).collect()
            };
            assert_eq!(bits(run(&staged, &rounded)), bits(direct.run(&rounded).unwrap()), "{staged}");
            // By nodes; within little memory; and whatever else the model finds.
            for plan in [
                Plan::staged(&src, &dst, x.index(), DType::F64, &model).unwrap(),
                Plan::staged(&src, &dst, x.index(), DType::F64, &model.clone().with_staging(room)).unwrap(),
                Plan::cheapest(&src, &dst, x.index(), DType::F64, &model).unwrap(),
                Plan::staged(&src, &dst, x.index(), DType::F64, &model).unwrap().with_staging(room),
            ] {
                assert_eq!(run(&plan, &x).to_vec::<f64>().unwrap(), expected(cx, &dst), "{plan}");
                let own = Array::from_parts(cx, &src, x.buffer().cloned(), DType::F64).unwrap();
                let moved = plan.run_into(own).unwrap();
                assert_eq!(moved.to_vec::<f64>().unwrap(), expected(cx, &dst), "{plan}");
            }
        });
    }
}

/// Rows, columns, copies and terms among 8 ranks: 7 messages become at most 5.
#[test]
fn messages_are_few() {
    let mesh = DeviceMesh::new(&[8]).unwrap();
    let layout = |text| Layout::parse(&mesh, &[16, 24], text).unwrap();
    for (from, to) in [
        ("S(0)", "S(1)"),
        ("S(0)", "R"),
        ("P(sum)", "S(1)"),
        ("P(max)", "S(0)"),
    ] {
        let (from, to) = (layout(from), layout(to));
        let direct = Plan::new(&from, &to, 3).unwrap();
        let staged = Plan::staged(&from, &to, 3, DType::F64, &slow()).unwrap();
        assert_eq!(messages(&direct), 7);
        assert!(messages(&staged) <= 5, "{staged}");
        // A model in which readers copy from shared memory has no use for it, nor has one in which 7 messages are few.
        for model in [CostModel::shared_memory(), slow().with_at_once(7)] {
            let plan = Plan::staged(&from, &to, 3, DType::F64, &model).unwrap();
            assert_eq!(messages(&plan), 7);
        }
        // Long arrays go straight to where they belong.
        let fast = CostModel::network(LinkCost::new(1e-9, 1e9)).with_at_once(0);
        let gathers = to.is_replicated();
        let plan = Plan::staged(&from, &to, 3, DType::F64, &fast).unwrap();
        assert_eq!(messages(&plan) < 7, gathers, "{plan}");
    }
    // Sums of 16-bit floats are rounded once, at their owner.
    let sums = Plan::staged(&layout("P(sum)"), &layout("S(0)"), 0, DType::BF16, &slow()).unwrap();
    assert_eq!(messages(&sums), 7);
    // Halos and new boundaries have few neighbours anyway.
    let uneven = Partition::from_sizes(&[1, 2, 2, 2, 2, 2, 2, 3]).unwrap();
    let moved = Layout::builder(&mesh, &[16, 24])
        .shard(0, &[0], uneven)
        .build()
        .unwrap();
    let plan = Plan::staged(&layout("S(0)"), &moved, 3, DType::F64, &slow()).unwrap();
    assert_eq!(plan.explain(DType::F64).steps[0].kind, "exchange");
}

/// The adjoint of what goes in stages does as well, and so do plans that are kept and run again.
#[test]
fn planners_keep_staged_plans() {
    on_ranks(&[9], |cx| {
        cx.planner().set_model(Some(slow()));
        let layout = |text| Layout::parse(cx.mesh(), &[18, 27], text).unwrap();
        let (rows, columns) = (layout("S(0)"), layout("S(1)"));
        let x = spread(cx, &rows);
        let plan = cx.planner().plan(&rows, &columns, DType::F64).unwrap();
        assert!(
            messages(&plan) <= 5 && plan.forecast(DType::F64).rounds == 2,
            "{plan}"
        );
        assert!(messages(&plan.adjoint().unwrap()) <= 5, "{plan}");
        for _ in 0..3 {
            let moving = x.redistribute_start(&columns).unwrap();
            assert!(moving.is_flying());
            let y = moving.wait().unwrap();
            assert_eq!(y.to_vec::<f64>().unwrap(), expected(cx, &columns));
            let back = y.redistribute(&rows).unwrap();
            assert_eq!(back.to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
        }
        let told = plan.explain(DType::F64).to_string();
        assert!(told.contains("in stages"), "{told}");
    });
}

/// Ranks whose models differ are told so.
#[test]
fn other_stages_are_a_mismatch() {
    let errors = on_ranks(&[8], |cx| {
        let layout = |text| Layout::parse(cx.mesh(), &[8, 8], text).unwrap();
        let (rows, columns) = (layout("S(0)"), layout("S(1)"));
        let x = spread(cx, &rows);
        let model = slow().with_at_once(if cx.rank() == 5 { 8 } else { 0 });
        cx.planner().set_model(Some(model));
        x.redistribute(&columns).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("plan"), "{error}");
    }
}

/// Messages that a rank of a cluster receives in a move of 32-bit elements, bytes from other nodes, and its seconds.
fn played(
    cluster: &Topology,
    rank: usize,
    shape: &[usize],
    [from, to]: [&str; 2],
    direct: bool,
) -> (u64, u64, f64) {
    let mesh = DeviceMesh::new(&[cluster.ranks()]).unwrap();
    let comm = SimulatedComm::new(cluster, rank).unwrap();
    let world: Rc<dyn Communicator> = Rc::new(comm.clone());
    let cx = MeshComm::new(&world, &mesh).unwrap();
    if direct {
        cx.planner().set_model(Some(CostModel::shared_memory()));
    }
    let [from, to] = [from, to].map(|text| Layout::parse(&mesh, shape, text).unwrap());
    let len = from
        .local_box(rank)
        .map_or(0, |held| IndexBox::numel(&held));
    let mine = world.device().alloc(DType::F32, len).unwrap().freeze();
    let array = Array::from_parts(&cx, &from, Some(mine), DType::F32).unwrap();
    comm.restart();
    array.redistribute(&to).unwrap();
    let played = comm.played();
    let plan = cx.planner().plan(&from, &to, DType::F32).unwrap();
    assert_eq!(played.moved.messages, plan.forecast(DType::F32).messages);
    (played.moved.messages, played.crossed, played.seconds)
}

/// In a move of many small pieces a rank has messages for the logarithm of the number of ranks. What is gathered or summed up crosses
/// between nodes less often than before.
#[test]
fn thousands_of_ranks_have_few_messages() {
    let machine = || Machine::new(20e12, 2e12);
    let (near, far) = (LinkCost::new(5e-6, 300e9), LinkCost::new(10e-6, 40e9));
    for (ranks, most, rank) in [
        (64, 13, 9),
        (512, 19, 77),
        (2048, 27, 1000),
        (2048, 27, 2047),
    ] {
        let nodes = Topology::network(ranks, machine(), near).nodes_of(8, far);
        let flat = Topology::network(ranks, machine(), far);
        let shape = [ranks, ranks];
        for moved in [["S(0)", "S(1)"], ["S(0)", "R"], ["P(sum)", "S(0)"]] {
            for cluster in [&nodes, &flat] {
                let [direct, staged] =
                    [true, false].map(|d| played(cluster, rank, &shape, moved, d));
                let told = format!("{ranks} {moved:?}: {direct:?} {staged:?}");
                assert_eq!(direct.0, ranks as u64 - 1, "{told}");
                assert!(staged.0 <= most && staged.2 < 0.2 * direct.2, "{told}");
                let once = moved != ["S(0)", "S(1)"];
                let times = if once {
                    1
                } else {
                    u64::from((ranks / 8).ilog2())
                };
                // Not counting what is on the node in the end.
                let (all, others) = (ranks as u64, ranks as u64 - 8);
                assert!(staged.1 * others <= times * direct.1 * all, "{told}");
            }
        }
    }
    // Longer pieces pass through the ranks of a node alone, and cross between nodes once.
    let nodes = Topology::network(512, machine(), near).nodes_of(8, far);
    let moved = ["S(0)", "S(1)"];
    let [direct, staged] = [true, false].map(|d| played(&nodes, 9, &[1 << 16, 1 << 17], moved, d));
    assert_eq!((direct.0, direct.1), (511, staged.1), "{staged:?}");
    assert!(
        staged.0 <= 7 + 64 && staged.2 < direct.2,
        "{direct:?} {staged:?}"
    );
}

/// Threads that say they send messages, on nodes of four.
#[derive(Debug)]
struct OnNodes {
    group: Rc<dyn Communicator>,
    nodes: Option<Nodes>,
}

impl OnNodes {
    fn over(group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
        let of: Vec<usize> = group.members().iter().map(|rank| rank / 4).collect();
        let nodes = Nodes::new(&of);
        Rc::new(Self { group, nodes })
    }
}

impl Decorator for OnNodes {
    fn inner(&self) -> &Rc<dyn Communicator> {
        &self.group
    }

    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
        Self::over(group)
    }

    fn messages(&self) -> Option<LinkCost> {
        Some(LinkCost::new(1.0, 1e12))
    }

    fn nodes(&self) -> Option<&Nodes> {
        self.nodes.as_ref()
    }
}

/// Without a model exchanges go in stages by what a communicator says of its messages; what is measured tells nodes apart.
#[test]
fn ranks_that_send_messages_take_stages_without_a_model() {
    let mesh = DeviceMesh::new(&[16]).unwrap();
    local::run(16, |comm| {
        let cx = MeshComm::new(&OnNodes::over(Rc::new(comm)), &mesh).unwrap();
        assert!(cx.planner().model().is_none());
        let layout = |text| Layout::parse(&mesh, &[32, 48], text).unwrap();
        let (rows, columns) = (layout("S(0)"), layout("S(1)"));
        let x = spread(&cx, &rows);
        let before = cx.world().ledger().snapshot();
        let y = x.redistribute(&columns).unwrap();
        let moved = cx.world().ledger().since(&before);
        assert!(moved.messages < 10 && moved.rounds > 1, "{moved}");
        assert_eq!(y.to_vec::<f64>().unwrap(), expected(&cx, &columns));
        let plan = cx.planner().plan(&rows, &columns, DType::F64).unwrap();
        assert_eq!(messages(&plan), moved.messages);
        let model = CostModel::measure(&cx).unwrap();
        assert!(model.to_string().contains("among 4"), "{model}");
    })
    .unwrap();
}

/// A plan that was written down has the stages it had; stages that none would have are refused.
#[test]
fn plans_are_written_with_their_stages() {
    let mesh = DeviceMesh::new(&[24]).unwrap();
    let layout = |text| Layout::parse(&mesh, &[48, 48], text).unwrap();
    for (from, to) in [("S(0)", "S(1)"), ("P(sum)", "S(1)")] {
        let (from, to) = (layout(from), layout(to));
        let staged = Plan::staged(&from, &to, 3, DType::F64, &slow()).unwrap();
        let text = serde_json::to_string(&staged).unwrap();
        let back: Plan = serde_json::from_str(&text).unwrap();
        assert_eq!(back.forecast(DType::F64), staged.forecast(DType::F64));
        assert!(messages(&back) < 12, "{text}");
        let digits = text.split("\"digits\":[").nth(1).unwrap();
        let digits = format!("\"digits\":[{}]", digits.split(']').next().unwrap());
        for other in [
            "[5,5]",
            "[]",
            "[24]",
            "[0,7]",
            "[18446744073709551615,2]",
            "[24,1,1]",
        ] {
            let text = text.replace(&digits, &format!("\"digits\":{other}"));
            assert!(serde_json::from_str::<Plan>(&text).is_err(), "{text}");
        }
    }
}

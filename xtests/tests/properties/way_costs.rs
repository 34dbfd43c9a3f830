//! What the ways to serve sharded keys are said to cost is what they cost: bytes, and memory, forward and backward.

use shard_comm::{DType, LinkCost};
use shard_ops::attention::{Attention, Causal, attention};
use shard_ops::testing::place;
use shard_ops::{Engine, EngineOptions, FoldBy, Op, Rule, Strategy, Value, WayCost};
use shard_redistribute::{Array, CostModel};
use shard_spec::{DeviceMesh, Layout};
use std::sync::Arc;
use xtests::case::Tensor;
use xtests::differentiate::numbers;
use xtests::harness::{On, on_mesh, on_threads};
use xtests::properties;
use xtests::properties::Property;
use xtests::validate::Capture;

pub(super) const ALL: &[Property] = properties![
    bytes_are_those_of_the_ledger,
    memory_is_what_was_said,
    slack_is_time_for_memory,
];

const WAYS: [FoldBy; 4] = [FoldBy::Ring, FoldBy::Gather, FoldBy::Split, FoldBy::Heads];

/// An op with operands, each along queries or keys.
struct Applied {
    op: Arc<dyn Op>,
    inputs: Vec<(Tensor, Along)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    Queries,
    Keys,
}

/// Attention and its gradient, by a way, as they are applied.
fn captured(way: FoldBy, [queries, keys]: [usize; 2], mask: bool) -> [Applied; 2] {
    let one = DeviceMesh::new(&[1]).unwrap();
    let options = Attention::new().causal(Causal::TopLeft).fold_by(way);
    let samples = on_threads(&one, On::Host, |cx| {
        let capture = Capture::new();
        let tape = shard_autograd::Recorder::new(capture.clone());
        let shapes = [
            [1, 12, queries, 8],
            [1, 12, keys, 8],
            [1, 12, keys, 8],
            [1, 1, queries, keys],
        ];
        let x: Vec<Value> = shapes[..3 + usize::from(mask)]
            .iter()
            .map(|shape| {
                let layout = Layout::replicated(&one, shape);
                let t = numbers(shape, 7);
                tape.leaf(place(cx, &layout, &t, DType::F64).unwrap())
                    .unwrap()
            })
            .collect();
        let y = attention(&tape, &x[0], &x[1], &x[2], x.get(3), &options).unwrap();
        let seed = y.detach();
        let all: Vec<&Value> = x.iter().collect();
        tape.grad(&[&y], &all, &[Some(&seed)], false).unwrap();
        capture.samples()
    });
    let samples = samples.into_iter().next().unwrap();
    ["attention", "attention_grad"].map(|name| {
        let sample = samples.iter().find(|s| s.op.name() == name).unwrap();
        let along = |i: usize| {
            if i == 1 || i == 2 {
                Along::Keys
            } else {
                Along::Queries
            }
        };
        let inputs = sample.inputs.iter().enumerate();
        Applied {
            op: sample.op.clone(),
            inputs: inputs.map(|(i, t)| (t.clone(), along(i))).collect(),
        }
    })
}

/// What a rank received and held at once beside the operands, and what was said.
#[derive(Clone, Copy, Debug)]
struct Found {
    bytes: usize,
    peak: usize,
    /// What may be packed for other processes meanwhile.
    packed: usize,
    said: WayCost,
}

impl Applied {
    /// Its rule, and how its operands lie where queries and keys are divided so.
    fn divided(&self, mesh: &DeviceMesh, [q, k]: [&str; 2]) -> (Rule, Vec<Layout>) {
        let layout = |(t, along): &(Tensor, Along)| {
            let text = if *along == Along::Keys { k } else { q };
            Layout::parse(mesh, &t.shape, text).unwrap()
        };
        let meta = |(t, _): &(Tensor, Along)| shard_ops::Meta {
            shape: t.shape.iter().copied().collect(),
            dtype: DType::F64,
        };
        let metas: Vec<_> = self.inputs.iter().map(meta).collect();
        let layouts = self.inputs.iter().map(layout).collect();
        (self.op.rule(&metas).unwrap(), layouts)
    }
}

/// Runs an op by a way on every rank, with queries and keys divided so. Partial sums are then reduced to where the keys are.
fn measured(applied: &Applied, way: FoldBy, ranks: usize, [q, k]: [&str; 2]) -> Found {
    let mesh = DeviceMesh::new(&[ranks]).unwrap();
    let (rule, layouts) = applied.divided(&mesh, [q, k]);
    let strategy = |rank| {
        let layouts: Vec<&Layout> = layouts.iter().collect();
        Strategy::new(&rule, &layouts, rank, &CostModel::default()).unwrap()
    };
    // Heads may be brought together in more than one dim: the best was taken.
    let first = strategy(0);
    let all = first.ways().iter().filter(|cost| cost.way == way);
    let said = *all.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap();
    let found = on_mesh(&mesh, On::Host, |cx| {
        let strategy = strategy(cx.rank());
        assert_eq!(strategy.way(), Some(way));
        let all = applied.inputs.iter().zip(&layouts);
        let arrays: Vec<Array> = all
            .map(|((t, _), layout)| place(cx, layout, t, DType::F64).unwrap())
            .collect();
        let arrays: Vec<&Array> = arrays.iter().collect();
        let ledger = cx.world().ledger();
        let (live, began) = (cx.device().memory().live, ledger.snapshot());
        cx.device().reset_peak();
        let engine = Engine::new(EngineOptions::default());
        let outputs = engine
            .run_strategy(&applied.op, &rule, &strategy, &arrays)
            .unwrap();
        let peak = cx.device().memory().peak - live;
        for output in &outputs {
            if !output.layout().partial_axes().is_empty() {
                let rows = output.shape()[2] == applied.inputs[0].0.shape[2];
                let home = Layout::parse(&mesh, output.shape(), if rows { q } else { k }).unwrap();
                output.redistribute(&home).unwrap();
            }
        }
        let bytes = ledger.since(&began).bytes as usize;
        let packs = cx.world().backend() == "mpi";
        [bytes, peak, if packs { bytes } else { 0 }]
    });
    let [bytes, peak, packed] = [0, 1, 2].map(|i| found.iter().map(|f| f[i]).max().unwrap());
    Found {
        bytes,
        peak,
        packed,
        said,
    }
}

/// Evenly divided, to the byte. Otherwise the busiest rank of one operand need not be that of another.
fn bytes_are_those_of_the_ledger() {
    for (mask, way) in all() {
        for (op, direction) in captured(way, [24, 48], mask)
            .iter()
            .zip(["forward", "backward"])
        {
            for ranks in [2, 3, 4] {
                let Found { bytes, said, .. } = measured(op, way, ranks, ["S(2)", "S(2)"]);
                assert_eq!(
                    bytes, said.bytes,
                    "{direction} on {ranks}, mask {mask}: {said}"
                );
            }
            for (ranks, cuts) in [
                (2, ["S(2)[7,17]", "S(2)[30,18]"]),
                (3, ["S(2)[7,0,17]", "S(2)[30,17,1]"]),
                (4, ["S(2)[7,0,16,1]", "S(2)[29,17,0,2]"]),
            ] {
                let Found { bytes, said, .. } = measured(op, way, ranks, cuts);
                let what = format!("{direction} {cuts:?}, mask {mask}: {bytes} of {said}");
                assert!(bytes <= said.bytes && 2 * bytes > said.bytes, "{what}");
                // Keys alone move, with values, which are divided as they are.
                if direction == "forward" && matches!(way, FoldBy::Ring | FoldBy::Gather) {
                    assert_eq!(bytes, said.bytes, "{what}");
                }
            }
        }
    }
}

/// What is said is held as if at once: no less than the peak, but for a block that is held until its reader has got round to it,
/// and less than twice of it. Processes also hold what is packed for others until these have taken it.
fn memory_is_what_was_said() {
    for (mask, way) in all() {
        for (op, direction) in captured(way, [240, 480], mask)
            .iter()
            .zip(["forward", "backward"])
        {
            for ranks in [2, 3, 4] {
                let found = measured(op, way, ranks, ["S(2)", "S(2)"]);
                let Found { peak, said, .. } = found;
                let what = format!("{direction} on {ranks}, mask {mask}: {peak} in {said}");
                let most = (5 * said.held / 4).max(said.held + found.packed);
                assert!(peak <= most && 2 * peak > said.held, "{what}");
            }
        }
    }
}

/// The fastest way is taken, or of those that the model's slack lets pass the one that holds least.
fn slack_is_time_for_memory() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    for op in captured(FoldBy::Auto, [24, 48], false) {
        let (rule, layouts) = op.divided(&mesh, ["S(2)", "S(2)"]);
        let layouts: Vec<&Layout> = layouts.iter().collect();
        let taken = |slack: f64| {
            // Each message of a ring takes its time.
            let model = CostModel::network(LinkCost::new(1e-3, 1e9)).with_slack(slack);
            let strategy = Strategy::new(&rule, &layouts, 0, &model).unwrap();
            let all = strategy.ways().to_vec();
            // Heads may be brought together in more than one dim.
            let ways = all.iter().filter(|cost| Some(cost.way) == strategy.way());
            (ways.copied().collect::<Vec<_>>(), all)
        };
        let least = |ways: &[WayCost]| {
            let seconds = ways.iter().map(|cost| cost.seconds);
            let held = ways.iter().map(|cost| cost.held).min();
            (seconds.fold(f64::INFINITY, f64::min), held)
        };
        let ((fastest, all), (smallest, _)) = (taken(1.0), taken(f64::INFINITY));
        assert_eq!(least(&fastest).0, least(&all).0);
        assert_eq!(least(&smallest).1, least(&all).1);
        let what = format!("{smallest:?} besides {fastest:?}");
        assert!(least(&smallest).1 < least(&fastest).1, "{what}");
    }
}

/// Without and with a mask that has an entry for every query and key, by every way.
fn all() -> impl Iterator<Item = (bool, FoldBy)> {
    [false, true]
        .into_iter()
        .flat_map(|mask| WAYS.map(|way| (mask, way)))
}

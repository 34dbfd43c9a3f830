//! Attention on random layouts: every way and one rank agree, forward and backward, and a ring
//! holds a few blocks, whatever the number of ranks.

use proptest::prelude::*;
use shard_autograd::{GradCheck, Recorder, gradcheck};
use shard_comm::DType;
use shard_ops::attention::{Attention, Causal, attention};
use shard_ops::rng::Stream;
use shard_ops::testing::{place, tensor};
use shard_ops::{FoldBy, Value};
use shard_spec::{DeviceMesh, Layout, Partition};
use xtests::differentiate::{close, numbers, run};
use xtests::harness::{On, on_mesh};
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{Recipe, mesh_shape, recipe, resolve};

pub(super) const ALL: &[Property] = properties![
    attention_is_the_same_by_every_way_and_on_one_rank,
    sequences_divided_anyhow_attend_alike_by_every_way,
    the_widest_window_sees_everything,
    dropout_keeps_its_rate_and_its_gradient,
    a_ring_holds_a_few_blocks_whatever_the_number_of_ranks,
    zigzag_and_striped_shards_share_causal_work_evenly,
];

/// Every way keys may meet queries.
const WAYS: [FoldBy; 5] = [
    FoldBy::Auto,
    FoldBy::Ring,
    FoldBy::Gather,
    FoldBy::Split,
    FoldBy::Heads,
];

/// Batch, kv heads, heads per kv head, queries, keys, dim, value dim.
type Sizes = (usize, usize, usize, usize, usize, usize, usize);

fn scene() -> impl Strategy<Value = (DeviceMesh, Sizes, Vec<Recipe>, Attention)> {
    let sizes = (
        0..3_usize,
        1..3_usize,
        1..3_usize,
        0..12_usize,
        0..12_usize,
        1..4_usize,
        1..4_usize,
    );
    let options = (
        any::<bool>(),
        prop::option::of(any::<bool>()),
        prop::option::of((0..6_usize, 0..6_usize)),
        prop::option::of(0..9_u64),
    );
    let options = options.prop_map(|(scaled, causal, window, dropped)| {
        let mut options = Attention::new();
        if let Some(call) = dropped {
            options = options.dropout(0.4, Stream::new(5, call));
        }
        if scaled {
            options = options.scale(0.7);
        }
        if let Some(left) = causal {
            options = options.causal(if left {
                Causal::TopLeft
            } else {
                Causal::BottomRight
            });
        }
        if let Some((left, right)) = window {
            options = options.window(left, right);
        }
        options
    });
    (mesh_shape(6), sizes, options).prop_flat_map(|(mesh, sizes, options)| {
        let recipes = proptest::collection::vec(recipe(mesh.len(), 4, true), 4);
        (
            Just(DeviceMesh::new(&mesh).unwrap()),
            Just(sizes),
            recipes,
            Just(options),
        )
    })
}

proptest! {
    #![proptest_config(xtests::strategies::config(200))]

    fn attention_is_the_same_by_every_way_and_on_one_rank(
        (mesh, (b, h, g, q, k, d, dv), recipes, options) in scene(), mask in prop::option::of(any::<[bool; 4]>()), seed: u64,
    ) {
        let mut inputs = vec![
            numbers(&[b, h * g, q, d], seed),
            numbers(&[b, h, k, d], seed ^ 1),
            numbers(&[b, h, k, dv], seed ^ 2),
        ];
        if let Some(full) = mask {
            let shape: Vec<usize> = [b, h * g, q, k].iter().zip(full).map(|(&n, full)| if full { n } else { 1 }).collect();
            inputs.push(numbers(&shape, seed ^ 3));
        }
        let layouts: Vec<Layout> = inputs.iter().zip(&recipes).map(|(t, r)| resolve(r, &mesh, &t.shape)).collect();
        let attend = |ring| move |tape: &Recorder, x: &[Value]| {
            vec![attention(tape, &x[0], &x[1], &x[2], x.get(3), &options.fold_by(ring)).unwrap()]
        };
        let one = DeviceMesh::new(&[1]).unwrap();
        let single: Vec<Layout> = inputs.iter().map(|t| Layout::replicated(&one, &t.shape)).collect();
        let expected = run(&one, &single, &inputs, attend(FoldBy::Gather));
        for way in WAYS {
            close(&format!("{way:?}"), &run(&mesh, &layouts, &inputs, attend(way)), &expected);
        }
    }

    /// Sequences divided anyhow over the same axes, which is where every way is open.
    fn sequences_divided_anyhow_attend_alike_by_every_way(
        (mesh, q, k, cuts) in (mesh_shape(6), 0..14_usize, 0..14_usize, any::<[u64; 2]>(),),
        (h, g, kind) in (1..4_usize, 1..3_usize, 0..4_usize),
        causal in prop::option::of(any::<bool>()), mask in prop::option::of(any::<[bool; 4]>()), seed: u64,
    ) {
        let mesh = DeviceMesh::new(&mesh).unwrap();
        let axes: Vec<usize> = (0..mesh.ndim()).collect();
        let divided = |n: usize, seed: u64, axes: &[usize]| -> Partition {
            let parts = mesh.part_count(axes);
            match kind {
                0 => Partition::zigzag(n, parts),
                1 => Partition::striped(n, parts),
                2 => Partition::chunk(n, parts),
                _ => {
                    let weights: Vec<f64> = (0..parts).map(|p| (seed >> (8 * (p % 8)) & 7) as f64).collect();
                    Partition::weighted(n, &weights).unwrap_or_else(|_| Partition::balanced(n, parts))
                }
            }
        };
        let mut inputs = vec![numbers(&[2, h * g, q, 3], seed), numbers(&[2, h, k, 3], seed ^ 1), numbers(&[2, h, k, 2], seed ^ 2)];
        // Keys over the last axis alone, or all; queries over all, the others alone, or none.
        let last = [mesh.ndim() - 1];
        let keys: &[usize] = if cuts[0] % 2 == 0 { &axes } else { &last };
        let queries: &[usize] = [&axes[..], &axes[..axes.len() - 1], &[]][(cuts[1] % 3) as usize];
        let layout = |t: &xtests::case::Tensor, along: &[usize], seed| {
            let builder = Layout::builder(&mesh, &t.shape);
            if along.is_empty() { builder } else { builder.shard(2, along, divided(t.shape[2], seed, along)) }.build().unwrap()
        };
        let mut layouts = vec![layout(&inputs[0], queries, cuts[0]), layout(&inputs[1], keys, cuts[1]), layout(&inputs[2], keys, cuts[1])];
        if let Some(full) = mask {
            let shape: Vec<usize> = [2, h * g, q, k].iter().zip(full).map(|(&n, full)| if full { n } else { 1 }).collect();
            inputs.push(numbers(&shape, seed ^ 3));
            // Whole, or divided as queries or keys are, in as many dims as there are entries.
            let (dim, along, seed) = if cuts[0] & 2 == 0 { (2, queries, cuts[0]) } else { (3, keys, cuts[1]) };
            let builder = Layout::builder(&mesh, &shape);
            let whole = along.is_empty() || shape[dim] == 1 || cuts[1] & 4 == 0;
            let builder = if whole { builder } else { builder.shard(dim, along, divided(shape[dim], seed, along)) };
            layouts.push(builder.build().unwrap());
        }
        let mut options = Attention::new();
        if let Some(left) = causal {
            options = options.causal(if left { Causal::TopLeft } else { Causal::BottomRight });
        }
        let attend = |way| move |tape: &Recorder, x: &[Value]| {
            vec![attention(tape, &x[0], &x[1], &x[2], x.get(3), &options.fold_by(way)).unwrap()]
        };
        let one = DeviceMesh::new(&[1]).unwrap();
        let single: Vec<Layout> = inputs.iter().map(|t| Layout::replicated(&one, &t.shape)).collect();
        let expected = run(&one, &single, &inputs, attend(FoldBy::Auto));
        for way in WAYS {
            close(&format!("{way:?}"), &run(&mesh, &layouts, &inputs, attend(way)), &expected);
        }
    }
}

/// A window without bounds hides nothing, however it is aligned.
fn the_widest_window_sees_everything() {
    use shard_kernels::attention::Band;
    let all = Band::window(usize::MAX, usize::MAX);
    for offset in [-7, 0, 7] {
        let band = all.shifted(offset);
        assert!(band.sees(0, 1000) && band.sees(1000, 0) && band.sees(5, 5));
    }
    let past = Band::window(usize::MAX, 0);
    assert!(past.sees(1000, 0) && !past.sees(0, 1));
}

/// As many probabilities are dropped as said, others each time, and the gradient is that of what was computed.
fn dropout_keeps_its_rate_and_its_gradient() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let (queries, keys) = (64, 50);
    let shapes = [[1, 2, queries, 3], [1, 2, keys, 3], [1, 2, keys, 1]];
    let layouts = shapes.map(|s| Layout::parse(&mesh, &s, "S(2)").unwrap());
    let dropped = |call| {
        // Equal logits and values of one: an output is the number of kept keys, over what is expected.
        let inputs = [
            tensor(&shapes[0], |_| 0.0),
            tensor(&shapes[1], |_| 0.0),
            tensor(&shapes[2], |_| 1.0),
        ];
        let options = Attention::new()
            .fold_by(FoldBy::Ring)
            .dropout(0.25, Stream::new(1, call));
        run(&mesh, &layouts, &inputs, |tape, x| {
            vec![attention(tape, &x[0], &x[1], &x[2], None, &options).unwrap()]
        })
        .swap_remove(0)
    };
    let kept = dropped(0);
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    // Five standard errors of 6400 draws kept with chance 0.75.
    let error = 5.0 * (0.25_f64 * 0.75 / 6400.0).sqrt() / 0.75;
    assert!((mean - 1.0).abs() < error, "{mean}");
    assert!(kept.iter().any(|&x| x != kept[0]) && kept != dropped(1));

    let small = [[1, 1, 3, 2], [1, 1, 4, 2], [1, 1, 4, 2]];
    let layouts = small.map(|s| Layout::parse(&mesh, &s, "S(2)").unwrap());
    let options = Attention::new().dropout(0.5, Stream::new(2, 0));
    on_mesh(&mesh, On::Host, |cx| {
        let x: Vec<Value> = layouts
            .iter()
            .zip(0..)
            .map(|(layout, i)| {
                Value::new(place(cx, layout, &numbers(layout.shape(), i), DType::F64).unwrap())
            })
            .collect();
        let tape = xtests::trial::recorder();
        let attend = |exec: &Recorder, x: &[Value]| {
            Ok(vec![attention(exec, &x[0], &x[1], &x[2], None, &options)?])
        };
        gradcheck(&tape, &attend, &x, GradCheck::default()).unwrap();
    });
}

/// Bytes that the busiest rank holds at most while it attends, forward or backward, beyond what it began with.
fn peak(ranks: usize, ring: FoldBy) -> u64 {
    let mesh = DeviceMesh::new(&[ranks]).unwrap();
    let shape = [1, 2, 240, 8];
    let layout = Layout::parse(&mesh, &shape, "S(2)").unwrap();
    let t = numbers(&shape, 7);
    let peaks = on_mesh(&mesh, On::Host, |cx| {
        let tape = xtests::trial::recorder();
        let leaf = || {
            tape.leaf(place(cx, &layout, &t, DType::F64).unwrap())
                .unwrap()
        };
        let x = [leaf(), leaf(), leaf()];
        let before = cx.device().memory().live;
        cx.device().reset_peak();
        let y = attention(
            &tape,
            &x[0],
            &x[1],
            &x[2],
            None,
            &Attention::new().fold_by(ring),
        )
        .unwrap();
        let seed = y.detach();
        tape.grad(&[&y], &[&x[0], &x[1], &x[2]], &[Some(&seed)], false)
            .unwrap();
        (cx.device().memory().peak - before) as u64
    });
    peaks.into_iter().max().unwrap()
}

fn a_ring_holds_a_few_blocks_whatever_the_number_of_ranks() {
    let block = |ranks: u64| 2 * 240 * 8 * 8 / ranks;
    for ranks in [2, 4, 8] {
        let (ring, gather) = (peak(ranks, FoldBy::Ring), peak(ranks, FoldBy::Gather));
        // Results and gradients are four blocks; in flight are two of keys and values and of their gradients.
        assert!(
            ring <= 18 * block(ranks as u64),
            "{ranks} ranks: {ring} bytes, blocks of {}",
            block(ranks as u64)
        );
        // Gathered, keys and values and their gradients are there whole.
        assert!(gather >= 4 * block(1), "{ranks} ranks: {gather}");
    }
}

/// Pairs of a query and a key it sees, on the busiest rank over their mean: the work of a causal mask.
fn imbalance(layout: &Layout) -> f64 {
    let seen: Vec<usize> = layout
        .mesh()
        .ranks()
        .iter()
        .map(|&rank| {
            layout.local_parts(rank).unwrap()[0]
                .indices()
                .map(|i| i + 1)
                .sum()
        })
        .collect();
    let mean = seen.iter().sum::<usize>() as f64 / seen.len() as f64;
    *seen.iter().max().unwrap() as f64 / mean
}

fn zigzag_and_striped_shards_share_causal_work_evenly() {
    let mesh = DeviceMesh::new(&[8]).unwrap();
    let n = 4099;
    let by = |partition| {
        let layout = Layout::builder(&mesh, &[n])
            .shard(0, &[0], partition)
            .build()
            .unwrap();
        imbalance(&layout)
    };
    assert!(by(shard_spec::Partition::zigzag(n, 8)) < 1.05);
    assert!(by(shard_spec::Partition::striped(n, 8)) < 1.05);
    // The last eighth of the queries sees nearly all keys: almost twice the mean.
    assert!(by(shard_spec::Partition::chunk(n, 8)) > 1.8);
}

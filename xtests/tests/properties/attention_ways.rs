//! What the ways to attend to sharded keys move and hold, and the cases of the research list that concern them.

use shard_autograd::Recorder;
use shard_comm::DType;
use shard_ops::attention::{Attention, Causal, attention};
use shard_ops::elementwise::cast;
use shard_ops::testing::{place, tensor};
use shard_ops::{FoldBy, Value};
use shard_redistribute::Array;
use shard_spec::{DeviceMesh, Layout, Partition};
use xtests::case::Tensor;
use xtests::differentiate::{close, numbers, run, run_on};
use xtests::harness::{On, on_mesh};
use xtests::properties;
use xtests::properties::Property;

pub(super) const ALL: &[Property] = properties![
    every_way_receives_what_its_figures_say,
    rings_and_heads_hold_a_share_that_falls_with_the_ranks,
    a_mask_of_pairs_stays_with_its_queries,
    every_way_runs_where_work_is_queued,
    case_28_all_placements_and_unlike_lengths,
    case_29_uneven_blocks_with_one_empty_and_one_masked,
    case_33_one_step_and_a_full_turn_of_uneven_rows,
    sixteen_bits_round_once,
    the_cheapest_way_fits_the_shapes,
];

const WAYS: [FoldBy; 4] = [FoldBy::Ring, FoldBy::Gather, FoldBy::Split, FoldBy::Heads];

fn attend(options: Attention) -> impl Fn(&Recorder, &[Value]) -> Vec<Value> + Sync {
    move |tape, x| vec![attention(tape, &x[0], &x[1], &x[2], x.get(3), &options).unwrap()]
}

/// Most bytes that a rank receives forward and held at once beyond what it began with, forward or backward.
fn cost(ranks: usize, [queries, keys]: [usize; 2], way: FoldBy) -> [u64; 2] {
    let mesh = DeviceMesh::new(&[ranks]).unwrap();
    let costs = on_mesh(&mesh, On::Host, |cx| {
        let tape = xtests::trial::recorder();
        let leaf = |n: usize| {
            let layout = Layout::parse(&mesh, &[1, 8, n, 8], "S(2)").unwrap();
            let t = numbers(layout.shape(), 7);
            tape.leaf(place(cx, &layout, &t, DType::F64).unwrap())
                .unwrap()
        };
        let x = [leaf(queries), leaf(keys), leaf(keys)];
        let ledger = cx.world().ledger();
        let (before, began) = (cx.device().memory().live, ledger.snapshot());
        cx.device().reset_peak();
        let options = Attention::new().fold_by(way);
        let y = attention(&tape, &x[0], &x[1], &x[2], None, &options).unwrap();
        let received = ledger.since(&began).bytes;
        let seed = y.detach();
        tape.grad(&[&y], &[&x[0], &x[1], &x[2]], &[Some(&seed)], false)
            .unwrap();
        [received, (cx.device().memory().peak - before) as u64]
    });
    [0, 1].map(|i| costs.iter().map(|c| c[i]).max().unwrap())
}

fn every_way_receives_what_its_figures_say() {
    let row = 8 * 8 * 8;
    for ranks in [2, 4, 8] {
        let (q, k) = (240_u64, 480_u64);
        let p = ranks as u64;
        for way in WAYS {
            let expected = match way {
                FoldBy::Ring | FoldBy::Gather => 2 * k * row / p * (p - 1),
                // Queries, then results with a sum per head and query.
                FoldBy::Split => (2 * q * row + q * 8 * 8) / p * (p - 1),
                _ => (2 * (q + k) * row + q * 8 * 8) / p / p * (p - 1),
            };
            let [received, _] = cost(ranks, [q as usize, k as usize], way);
            assert_eq!(received, expected, "{way:?} on {ranks}");
        }
    }
}

/// Of queries, keys, values, results and gradients a rank has its share, and a few blocks more; what a single op holds is asserted
/// beside what [`WayCost`](shard_ops::WayCost) says of it (`way_costs.rs`).
fn rings_and_heads_hold_a_share_that_falls_with_the_ranks() {
    let peaks = |way| [4, 8].map(|ranks| cost(ranks, [240, 240], way)[1]);
    for way in [FoldBy::Ring, FoldBy::Heads] {
        let [four, eight] = peaks(way);
        // Half, but for a block that is held until its reader has got round to it.
        assert!(3 * eight <= 2 * four, "{way:?}: {four}, then {eight}");
        assert!(four < cost(4, [240, 240], FoldBy::Gather)[1]);
    }
}

/// A mask with an entry for every query and key, divided as the queries are, stays where it is, and so does its gradient: what
/// moves is what moves without one. Divided as the keys are, it comes block by block.
fn a_mask_of_pairs_stays_with_its_queries() {
    let (mesh, n) = (DeviceMesh::new(&[4]).unwrap(), 48);
    let received = |mask: Option<&str>| {
        on_mesh(&mesh, On::Host, |cx| {
            let tape = xtests::trial::recorder();
            let leaf = |shape: &[usize], text: &str| {
                let layout = Layout::parse(&mesh, shape, text).unwrap();
                let x = place(cx, &layout, &numbers(shape, 7), DType::F64).unwrap();
                tape.leaf(x).unwrap()
            };
            let sequence = || leaf(&[1, 2, n, 8], "S(2)[20,0,9,19]");
            let mut x = vec![sequence(), sequence(), sequence()];
            x.extend(mask.map(|text| leaf(&[n, n], text)));
            let ledger = cx.world().ledger();
            let began = ledger.snapshot();
            let options = Attention::new().fold_by(FoldBy::Ring);
            let y = attention(&tape, &x[0], &x[1], &x[2], x.get(3), &options).unwrap();
            let forward = ledger.since(&began).bytes;
            let (seed, began) = (y.detach(), ledger.snapshot());
            let wanted: Vec<&Value> = x.iter().collect();
            tape.grad(&[&y], &wanted, &[Some(&seed)], false).unwrap();
            [forward, ledger.since(&began).bytes]
        })
    };
    let without = received(None);
    assert_eq!(received(Some("S(0)[20,0,9,19]")), without);
    let row = 2 * 2 * 8 * 8;
    for (rank, held) in [20, 0, 9, 19].into_iter().enumerate() {
        assert_eq!(without[rank][0], (48 - held) * row, "rank {rank}");
    }
    let columns = received(Some("S(1)[20,0,9,19]"));
    for (rank, held) in [20, 0, 9, 19].into_iter().enumerate() {
        // Of this rank's rows the columns of the others.
        assert_eq!(columns[rank][0] - without[rank][0], held * (48 - held) * 8);
    }
}

/// Where memory cannot be read by the host and work is queued.
fn every_way_runs_where_work_is_queued() {
    let (one, mesh) = (
        DeviceMesh::new(&[1]).unwrap(),
        DeviceMesh::new(&[3]).unwrap(),
    );
    let inputs = [
        numbers(&[1, 6, 10, 4], 1),
        numbers(&[1, 3, 14, 4], 2),
        numbers(&[1, 3, 14, 4], 3),
        numbers(&[1, 1, 10, 14], 4),
    ];
    let options = Attention::new().causal(Causal::BottomRight);
    let expected = run(&one, &single(&inputs), &inputs, attend(options));
    let layouts: Vec<Layout> = inputs
        .iter()
        .zip(["S(2)[3,0,7]", "S(2)[1,9,4]", "S(2)[1,9,4]", "S(2)[3,0,7]"])
        .map(|(t, text)| Layout::parse(&mesh, &t.shape, text).unwrap())
        .collect();
    for way in WAYS {
        let f = attend(options.fold_by(way));
        let found = run_on(On::TestDevice, &mesh, &layouts, &inputs, f);
        close(&format!("{way:?}"), &found, &expected);
    }
}

fn single(inputs: &[Tensor]) -> Vec<Layout> {
    let one = DeviceMesh::new(&[1]).unwrap();
    inputs
        .iter()
        .map(|t| Layout::replicated(&one, &t.shape))
        .collect()
}

fn case_28_all_placements_and_unlike_lengths() {
    let one = DeviceMesh::new(&[1]).unwrap();
    let mesh = DeviceMesh::new(&[4]).unwrap();
    for (b, q, k) in [(1, 64, 64), (4, 32, 32), (1, 16, 64), (1, 64, 16)] {
        let inputs = [
            numbers(&[b, 8, q, 8], 1),
            numbers(&[b, 8, k, 8], 2),
            numbers(&[b, 8, k, 8], 3),
        ];
        let expected = run(&one, &single(&inputs), &inputs, attend(Attention::new()));
        for at in [["R", "R"], ["S(2)", "R"], ["R", "S(2)"], ["S(2)", "S(2)"]] {
            let [of_q, of_k] = at;
            let layouts: Vec<Layout> = (inputs.iter().zip([of_q, of_k, of_k]))
                .map(|(t, at)| Layout::parse(&mesh, &t.shape, at).unwrap())
                .collect();
            for way in WAYS {
                let found = run(
                    &mesh,
                    &layouts,
                    &inputs,
                    attend(Attention::new().fold_by(way)),
                );
                close(&format!("{at:?} {q}:{k} by {way:?}"), &found, &expected);
            }
        }
    }
}

fn case_29_uneven_blocks_with_one_empty_and_one_masked() {
    let one = DeviceMesh::new(&[1]).unwrap();
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let shape = [1, 2, 128, 4];
    // The second block is hidden from everyone; causal, so the first queries see some of the first.
    let hidden = tensor(&[1, 1, 1, 128], |i| {
        if (70..100).contains(&i) {
            f64::NEG_INFINITY
        } else {
            0.0
        }
    });
    let inputs = [numbers(&shape, 1), numbers(&shape, 2), numbers(&shape, 3)];
    let with_mask = |way: FoldBy| {
        let hidden = hidden.clone();
        move |tape: &Recorder, x: &[Value]| {
            let layout = Layout::replicated(x[0].layout().mesh(), &hidden.shape);
            let mask = Value::new(place(x[0].array().cx(), &layout, &hidden, DType::F64).unwrap());
            let options = Attention::new().causal(Causal::TopLeft).fold_by(way);
            vec![attention(tape, &x[0], &x[1], &x[2], Some(&mask), &options).unwrap()]
        }
    };
    let expected = run(&one, &single(&inputs), &inputs, with_mask(FoldBy::Auto));
    assert!(expected.iter().flatten().all(|x| x.is_finite()));
    let layouts: Vec<Layout> = (inputs.iter())
        .map(|t| Layout::parse(&mesh, &t.shape, "S(2)[70,30,0,28]").unwrap())
        .collect();
    for way in WAYS {
        close(
            &format!("{way:?}"),
            &run(&mesh, &layouts, &inputs, with_mask(way)),
            &expected,
        );
    }
}

/// A step of a ring is the partition rotated, either way round; as many steps as blocks come back to the beginning.
///
/// The anchor's "asynchronous with all-to-all is rejected" has nothing to stand for here: there is one exchange, whose start returns a
/// handle on any backend and whose messages are between pairs of ranks, so there is no way of sending to combine with, or without,
/// waiting. Both directions are in flight at once below.
fn case_33_one_step_and_a_full_turn_of_uneven_rows() {
    for ranks in [1, 2, 3, 4] {
        let sizes: Vec<usize> = (0..ranks).map(|r| 10 + 3 * r).collect();
        let n: usize = sizes.iter().sum();
        let mesh = DeviceMesh::new(&[ranks]).unwrap();
        let home = Partition::from_sizes(&sizes).unwrap();
        on_mesh(&mesh, On::Host, |cx| {
            let at = |by: usize| {
                let turned = home.rotated(by % ranks);
                let layout = Layout::builder(&mesh, &[n, 2]).shard(0, &[0], turned);
                layout.build().unwrap()
            };
            let begin = Array::from_fn(cx, &at(0), |i| (2 * i[0] + i[1]) as f64).unwrap();
            let own = begin.to_vec::<f64>().unwrap();
            // Forward, and backward: as many steps forward as come to one back.
            let (mut forth, mut back) = (begin.clone(), begin);
            for turn in 1..=ranks {
                let [to, from] = [turn, turn * (ranks - 1)].map(&at);
                let flying = [
                    forth.redistribute_start(&to).unwrap(),
                    back.redistribute_start(&from).unwrap(),
                ];
                [forth, back] = flying.map(|pending| pending.wait().unwrap());
                for (x, step) in [(&forth, turn), (&back, turn * (ranks - 1))] {
                    let holder = (cx.rank() + step) % ranks;
                    let first = 2 * home.part(holder).index(0);
                    let held = x.to_vec::<f64>().unwrap();
                    let rows = (0..2 * sizes[holder]).map(|i| (first + i) as f64);
                    assert!(
                        held.iter().copied().eq(rows),
                        "rank {} turn {turn}",
                        cx.rank()
                    );
                }
            }
            assert_eq!(forth.to_vec::<f64>().unwrap(), own);
            assert_eq!(back.to_vec::<f64>().unwrap(), own);
        });
    }
}

/// Results and gradients in 16 bits are those of the rounded operands in `f32`, rounded once; probabilities and sums are `f32`.
fn sixteen_bits_round_once() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let shape = [1, 4, 40, 8];
    for (dtype, digits) in [(DType::F16, 11), (DType::BF16, 8)] {
        for way in WAYS {
            on_mesh(&mesh, On::Host, |cx| {
                let tape = xtests::trial::recorder();
                let layout = Layout::parse(&mesh, &shape, "S(2)").unwrap();
                let leaves: Vec<Value> = (0..3)
                    .map(|i| {
                        tape.leaf(place(cx, &layout, &numbers(&shape, i), DType::F64).unwrap())
                            .unwrap()
                    })
                    .collect();
                let small: Vec<Value> = leaves
                    .iter()
                    .map(|x| cast(&tape, x, dtype).unwrap())
                    .collect();
                let wide: Vec<Value> = (small.iter())
                    .map(|x| {
                        tape.leaf(cast(&tape, x, DType::F64).unwrap().detach().array().clone())
                            .unwrap()
                    })
                    .collect();
                let options = Attention::new().causal(Causal::TopLeft).fold_by(way);
                let grads = |x: &[Value]| {
                    let y = attention(&tape, &x[0], &x[1], &x[2], None, &options).unwrap();
                    let seed = cast(&tape, &leaves[0].detach(), y.dtype())
                        .unwrap()
                        .detach();
                    let g = tape
                        .grad(&[&y], &[&x[0], &x[1], &x[2]], &[Some(&seed)], true)
                        .unwrap();
                    std::iter::once(y.detach())
                        .chain(g.into_iter().map(Option::unwrap))
                        .map(|v| {
                            cast(&tape, &v, DType::F64)
                                .unwrap()
                                .array()
                                .to_vec::<f64>()
                                .unwrap()
                        })
                        .collect::<Vec<_>>()
                };
                let (found, expected) = (grads(&small), grads(&wide));
                for (o, (a, b)) in found.iter().zip(&expected).enumerate() {
                    let size = b.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
                    // Half a unit in the last place of the result; gradients also see the rounded result and cotangent.
                    let units = if o == 0 { 1.0 } else { 4.0 };
                    let bound = units * 0.5_f64.powi(digits) * size + 1e-5 * size;
                    for (x, y) in a.iter().zip(b) {
                        assert!(
                            (x - y).abs() <= bound,
                            "{dtype:?} {way:?} output {o}: {x} and {y}"
                        );
                    }
                }
            });
        }
    }
}

/// One query against a cache: the keys stay. As many queries as keys, and much to do: no rank holds all keys.
fn the_cheapest_way_fits_the_shapes() {
    let [few, _] = cost(4, [4, 4096], FoldBy::Auto);
    assert_eq!(few, cost(4, [4, 4096], FoldBy::Split)[0]);
    let [_, peak] = cost(4, [960, 960], FoldBy::Auto);
    assert!(peak < cost(4, [960, 960], FoldBy::Gather)[1]);
}

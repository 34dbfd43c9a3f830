//! Neighbour search on random layouts: every way and one rank agree bit for bit, gradients but for the rounding of sums.

use proptest::prelude::*;
use shard_autograd::{GradAs, GradCheck, Recorder, gradcheck, gradgradcheck};
use shard_comm::DType;
use shard_ops::elementwise::{isinf, masked_fill};
use shard_ops::neighbors::{
    Clouds, farthest_points, nearest, nearest_by_cloud, radius_search, radius_search_capped,
};
use shard_ops::testing::Rng;
use shard_ops::testing::{place, tensor};
use shard_ops::{FoldBy, OpError, Value};
use shard_redistribute::Array;
use shard_spec::{DeviceMesh, Layout, Partition};
use xtests::case::{Data, Tensor};
use xtests::differentiate::{close, numbers, run};
use xtests::harness::{On, on_mesh, on_threads};
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{Recipe, integer, mesh_shape, recipe, resolve};
use xtests::validate::{Capture, validate};

pub(super) const ALL: &[Property] = properties![
    neighbours_are_one_ranks,
    pairs_within_a_radius_are_one_ranks,
    tables_within_a_radius_are_one_ranks,
    samples_far_apart_are_one_ranks,
    rules_hold,
    pairs_stay_with_their_queries,
    few_queries_go_to_many_points,
    ties_of_rounded_distances_are_one_ranks,
    anchor_nearest_of_many_points,
    anchor_within_a_radius_of_a_grid,
    distances_within_a_radius_are_differentiated,
    pieces_are_searched_alone,
    other_types_are_refused,
];

/// Every way points may meet queries.
const WAYS: [FoldBy; 4] = [FoldBy::Ring, FoldBy::Gather, FoldBy::Split, FoldBy::Auto];

/// Queries and points on a small grid, so that nearly every distance is a tie, and how they are divided.
#[derive(Clone, Debug)]
struct Scene {
    mesh: DeviceMesh,
    inputs: [Tensor; 2],
    layouts: Vec<Layout>,
}

fn scene(fewest: usize) -> impl Strategy<Value = Scene> {
    let sizes = (
        mesh_shape(6),
        0..12_usize,
        fewest..14_usize,
        1..4_usize,
        any::<u64>(),
    );
    sizes.prop_flat_map(|(mesh, queries, points, dim, seed)| {
        let recipes = proptest::collection::vec(recipe(mesh.len(), 2, true), 2);
        recipes.prop_map(move |recipes: Vec<Recipe>| {
            let mesh = DeviceMesh::new(&mesh).unwrap();
            let grid =
                |n: usize, seed: u64| tensor(&[n, dim], |i| (integer(seed, i) / 3.0).round());
            let inputs = [grid(queries, seed), grid(points, seed ^ 5)];
            let all = inputs.iter().zip(&recipes);
            let layouts = all.map(|(t, r)| resolve(r, &mesh, &t.shape)).collect();
            Scene {
                mesh,
                inputs,
                layouts,
            }
        })
    })
}

impl Scene {
    /// Asserts that what a search gives is one rank's, and its gradients are.
    fn holds(
        &self,
        search: impl Fn(&Recorder, &Value, &Value, FoldBy) -> Vec<Value> + Copy + Sync,
    ) {
        let with = |ring| move |tape: &Recorder, x: &[Value]| search(tape, &x[0], &x[1], ring);
        let one = DeviceMesh::new(&[1]).unwrap();
        let whole = self
            .inputs
            .iter()
            .map(|t| Layout::replicated(&one, &t.shape));
        let whole: Vec<Layout> = whole.collect();
        let expected = run(&one, &whole, &self.inputs, with(FoldBy::Gather));
        let results = expected.len() - 2;
        for ring in WAYS {
            let found = run(&self.mesh, &self.layouts, &self.inputs, with(ring));
            assert_eq!(found[..results], expected[..results], "{ring:?}");
            close("gradients", &found[results..], &expected[results..]);
        }
    }
}

/// Farthest point sampling, every distance anew.
fn by_definition(points: &Tensor, count: usize, start: usize) -> Vec<i64> {
    let Data::F64(points_data) = &*points.data else {
        panic!("points are doubles")
    };
    let point = |i: usize| &points_data[i * points.shape[1]..][..points.shape[1]];
    let apart = |i: usize, j: usize| -> f64 {
        let terms = point(i).iter().zip(point(j));
        terms.map(|(a, b)| (a - b) * (a - b)).sum()
    };
    let mut taken = Vec::new();
    for _ in 0..count {
        let nearest = |i: usize| {
            if taken.contains(&i) {
                // None is taken twice, wherever others are.
                return f64::NEG_INFINITY;
            }
            let all = taken.iter().map(|&j| apart(i, j));
            all.fold(f64::INFINITY, f64::min)
        };
        // Of equal ones the first.
        let best = (0..points.shape[0]).reduce(|a, b| if nearest(b) > nearest(a) { b } else { a });
        taken.push(if taken.is_empty() {
            start
        } else {
            best.unwrap()
        });
    }
    taken.into_iter().map(|i| i as i64).collect()
}

proptest! {
    #![proptest_config(xtests::strategies::config(200))]

    fn neighbours_are_one_ranks(scene in scene(1), k in 0..6_usize) {
        let k = k.min(scene.inputs[1].shape[0]);
        scene.holds(|tape, queries, points, ring| {
            let (distances, indices) = nearest(tape, queries, points, k, ring).unwrap();
            vec![distances, indices]
        });
    }

    /// From nobody but coinciding points to everybody.
    fn pairs_within_a_radius_are_one_ranks(scene in scene(0), squared in 0..14_u32) {
        let radius = f64::from(squared).sqrt();
        scene.holds(|tape, queries, points, ring| {
            let near = radius_search(tape, queries, points, radius, ring).unwrap();
            vec![near.distances, near.pairs, near.counts]
        });
    }

    fn tables_within_a_radius_are_one_ranks(scene in scene(0), squared in 0..14_u32, cap in 0..5_usize) {
        let radius = f64::from(squared).sqrt();
        scene.holds(|tape, queries, points, ring| {
            let near = radius_search_capped(tape, queries, points, radius, cap, ring).unwrap();
            // The cotangent of what is not there is infinite here, and must count for nothing.
            vec![near.distances, near.indices, near.counts]
        });
    }

    fn samples_far_apart_are_one_ranks(
        scene in scene(1), count in 0..8_usize, start in 0..14_usize, elsewhere: bool,
    ) {
        let on = if elsewhere { On::TestDevice } else { On::Host };
        let n = scene.inputs[1].shape[0];
        let (count, start) = (count.min(n), start % n);
        let sample = |mesh: &DeviceMesh, layout: &Layout, ring| {
            on_mesh(mesh, on, |cx| {
                let tape = xtests::trial::recorder();
                let points = place(cx, layout, &scene.inputs[1], DType::F64).unwrap();
                let points = tape.leaf(points).unwrap();
                let far = farthest_points(&tape, &points, count, start, ring).unwrap();
                assert!(!tape.is_tracked(&far));
                far.array().to_vec::<i64>().unwrap()
            })
        };
        let one = DeviceMesh::new(&[1]).unwrap();
        let expected = sample(&one, &Layout::replicated(&one, &scene.inputs[1].shape), FoldBy::Gather);
        prop_assert_eq!(&expected[0], &by_definition(&scene.inputs[1], count, start));
        for ring in WAYS {
            for found in sample(&scene.mesh, &scene.layouts[1], ring) {
                prop_assert_eq!(&found, &expected[0]);
            }
        }
    }
}

/// Ops that no reference case applies: samples far apart, and the derivative of distances within a radius.
fn rules_hold() {
    let one = DeviceMesh::new(&[1]).unwrap();
    let inputs = [numbers(&[9, 2], 3), numbers(&[13, 2], 4)];
    let whole = inputs
        .each_ref()
        .map(|t| Layout::replicated(&one, &t.shape));
    let samples = on_threads(&one, On::Host, |cx| {
        let capture = Capture::new();
        let tape = Recorder::new(capture.clone());
        let [queries, points] = [0, 1].map(|i| {
            let array = place(cx, &whole[i], &inputs[i], DType::F64).unwrap();
            tape.leaf(array).unwrap()
        });
        farthest_points(&tape, &points, 3, 7, FoldBy::Ring).unwrap();
        let near = radius_search(&tape, &queries, &points, 0.9, FoldBy::Ring).unwrap();
        let g = near.distances.detach();
        tape.grad(&[&near.distances], &[&queries, &points], &[Some(&g)], false)
            .unwrap();
        capture.samples()
    });
    let samples = samples.into_iter().next().unwrap();
    assert!(samples.iter().any(|s| s.op.name() == "radius_search_grad"));
    for shape in [&[3][..], &[2, 2]] {
        let problems = validate(&samples, &DeviceMesh::new(shape).unwrap(), 1);
        assert!(problems.is_empty(), "{problems:#?}");
    }
}

/// Bytes the busiest rank receives in a backward pass of distances within a radius, whose queries are sharded.
fn bytes_of_backward(points: &str, ring: FoldBy) -> u64 {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let inputs = [numbers(&[40, 3], 3), numbers(&[24, 3], 4)];
    let texts = ["S(0)[20,0,13,7]", points];
    let ranks = on_mesh(&mesh, On::Host, |cx| {
        let tape = xtests::trial::recorder();
        let [queries, points] = [0, 1].map(|i| {
            let layout = Layout::parse(&mesh, &inputs[i].shape, texts[i]).unwrap();
            tape.leaf(place(cx, &layout, &inputs[i], DType::F64).unwrap())
                .unwrap()
        });
        let near = radius_search(&tape, &queries, &points, 1.5, ring).unwrap();
        let g = near.distances.detach();
        let before = cx.world().ledger().snapshot();
        let found = tape.grad(&[&near.distances], &[&queries], &[Some(&g)], false);
        assert!(found.unwrap()[0].is_some());
        cx.world().ledger().since(&before).bytes
    });
    ranks.into_iter().max().unwrap()
}

/// The derivative is divided as the pairs are, which stay where they are: nothing moves but points.
fn pairs_stay_with_their_queries() {
    assert_eq!(bytes_of_backward("R", FoldBy::Gather), 0);
    // The other blocks of points come, and their gradients go home.
    let block = 24 / 4 * 3 * 8;
    assert_eq!(bytes_of_backward("S(0)", FoldBy::Ring), 2 * 3 * block);
}

/// Few queries go to many points: what moves are the queries, and what each rank found for the others'.
fn few_queries_go_to_many_points() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let inputs = [random(&[8, 3], 3), random(&[40_000, 3], 4)];
    let received = |k: usize, cap: bool, way| {
        let ranks = on_mesh(&mesh, On::Host, |cx| {
            let tape = xtests::trial::recorder();
            let [queries, points] = [0, 1].map(|i| {
                let layout = Layout::parse(&mesh, &inputs[i].shape, "S(0)").unwrap();
                Value::new(place(cx, &layout, &inputs[i], DType::F64).unwrap())
            });
            let before = cx.world().ledger().snapshot();
            if cap {
                radius_search_capped(&tape, &queries, &points, 0.5, k, way).unwrap();
            } else {
                nearest(&tape, &queries, &points, k, way).unwrap();
            }
            cx.world().ledger().since(&before).bytes
        });
        ranks.into_iter().max().unwrap()
    };
    // Two queries of each rank to the others; of three parts, k distances and indices, and with a cap their number.
    assert_eq!(received(5, false, FoldBy::Split), 3 * 2 * (3 * 8 + 5 * 16));
    assert_eq!(
        received(5, true, FoldBy::Split),
        3 * 2 * (3 * 8 + 5 * 16 + 8)
    );
    assert_eq!(
        received(5, false, FoldBy::Auto),
        received(5, false, FoldBy::Split)
    );
    assert_eq!(received(5, false, FoldBy::Ring), 30_000 * 3 * 8);
}

/// Roots round where squares do not: parts are merged by what is not rounded.
fn ties_of_rounded_distances_are_one_ranks() {
    // Squared distances from the origin are 1 and so many times the spacing of doubles above it; two of them have one root. The
    // farthest come first.
    let points = tensor(&[32, 2], |at| {
        let steps = (31 - at / 2) as f64;
        if at % 2 == 0 {
            1.0
        } else {
            (steps * f64::EPSILON).sqrt()
        }
    });
    let inputs = [tensor(&[1, 2], |_| 0.0), points];
    let found = |ranks: usize, text: &str, way| {
        let mesh = DeviceMesh::new(&[ranks]).unwrap();
        let layouts = [
            Layout::replicated(&mesh, &[1, 2]),
            Layout::parse(&mesh, &[32, 2], text).unwrap(),
        ];
        let mut all = run(&mesh, &layouts, &inputs, |tape, x| {
            let (distances, indices) = nearest(tape, &x[0], &x[1], 32, way).unwrap();
            vec![distances, indices]
        });
        all.truncate(2);
        all
    };
    let expected = found(1, "R", FoldBy::Auto);
    assert!(expected[0].windows(2).any(|pair| pair[0] == pair[1]));
    assert!(expected[1].iter().rev().copied().eq((0..32).map(f64::from)));
    for way in WAYS {
        // A zigzag puts points of one root on different ranks.
        for (ranks, text) in [
            (2, "S(0)"),
            (4, "S(0)[5,0,12,15]"),
            (2, "S(0)[0:3,1:7,0:5,1:17]"),
        ] {
            assert_eq!(found(ranks, text, way), expected, "{way:?} {text}");
        }
    }
}

/// The four combinations of sharded and replicated queries and points, unevenly.
fn combinations(queries: usize, points: usize, parts: usize) -> Vec<[Layout; 2]> {
    let mesh = DeviceMesh::new(&[parts]).unwrap();
    let cut = |n: usize, dim: usize, sharded: bool, weights: &[f64]| {
        let builder = Layout::builder(&mesh, &[n, dim]);
        let partition = Partition::weighted(n, weights).unwrap();
        let builder = if sharded {
            builder.shard(0, &[0], partition)
        } else {
            builder
        };
        builder.build().unwrap()
    };
    let both = [(false, false), (false, true), (true, false), (true, true)];
    both.map(|(q, p)| {
        [
            cut(queries, 3, q, &[5.0, 2.0, 1.0]),
            cut(points, 3, p, &[400.0, 1.0, 600.0]),
        ]
    })
    .into()
}

/// The anchor's case 31: 1025 points, 2048 queries, 4 neighbours; one shard has fewer points than that.
fn anchor_nearest_of_many_points() {
    let inputs = [random(&[2048, 3], 1), random(&[1025, 3], 2)];
    let one = DeviceMesh::new(&[1]).unwrap();
    let whole = inputs
        .each_ref()
        .map(|t| Layout::replicated(&one, &t.shape));
    let search = |ring| {
        move |tape: &Recorder, x: &[Value]| {
            let (distances, indices) = nearest(tape, &x[0], &x[1], 4, ring).unwrap();
            vec![distances, indices]
        }
    };
    let expected = run(&one, &whole, &inputs, search(FoldBy::Gather));
    for layouts in combinations(2048, 1025, 3) {
        assert!(layouts[1].max_local_numel() == 1025 * 3 || layouts[1].part_size(0, 1) < 4);
        let mesh = layouts[0].mesh().clone();
        for ring in WAYS {
            let found = run(&mesh, &layouts, &inputs, search(ring));
            assert_eq!(found[..2], expected[..2]);
            close("gradients", &found[2..], &expected[2..]);
        }
    }
}

/// The anchor's case 32: 136 points, a grid of 96 x 6 x 4 queries in the unit cube, radius 1, batches of 1 and 2, which are as many
/// searches.
fn anchor_within_a_radius_of_a_grid() {
    let sides = [96, 6, 4];
    let count = sides.iter().product::<usize>();
    let grid = tensor(&[count, 3], |i| {
        let (at, d) = (i / 3, i % 3);
        let below: usize = sides[d + 1..].iter().product();
        (at / below % sides[d]) as f64 / (sides[d] - 1) as f64
    });
    let one = DeviceMesh::new(&[1]).unwrap();
    let search = |ring| {
        move |tape: &Recorder, x: &[Value]| {
            let near = radius_search(tape, &x[0], &x[1], 1.0, ring).unwrap();
            vec![near.distances, near.pairs, near.counts]
        }
    };
    for batch in 0..2 {
        let inputs = [grid.clone(), random(&[136, 3], 7 + batch)];
        let whole = inputs
            .each_ref()
            .map(|t| Layout::replicated(&one, &t.shape));
        let expected = run(&one, &whole, &inputs, search(FoldBy::Gather));
        let pairs = expected[0].len();
        assert!(pairs > count && pairs < 136 * count, "{pairs}");
        for layouts in combinations(count, 136, 3) {
            let mesh = layouts[0].mesh().clone();
            for ring in WAYS {
                let found = run(&mesh, &layouts, &inputs, search(ring));
                assert_eq!(found[..3], expected[..3]);
                close("gradients", &found[3..], &expected[3..]);
            }
        }
    }
}

/// Numbers in the unit interval, no two of them alike.
fn random(shape: &[usize], seed: u64) -> Tensor {
    tensor(shape, |i| {
        let bits = Rng::new(seed, &[&i.to_string()]).next_u64() >> 11;
        bits as f64 / (1_u64 << 53) as f64
    })
}

/// Where the device's work is queued and its memory cannot be read: sizes are waited for, and rows come after them.
fn distances_within_a_radius_are_differentiated() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let inputs = [random(&[4, 2], 1), random(&[7, 2], 2)];
    for texts in [["S(0)[3,0,1]", "S(0)[1,4,2]"], ["R", "S(0)"], ["S(0)", "R"]] {
        on_mesh(&mesh, On::TestDevice, |cx| {
            let x = [0, 1].map(|i| {
                let layout = Layout::parse(&mesh, &inputs[i].shape, texts[i]).unwrap();
                Value::new(place(cx, &layout, &inputs[i], DType::F64).unwrap())
            });
            let tape = xtests::trial::recorder();
            let search = |exec: &Recorder, x: &[Value]| {
                let near = radius_search(exec, &x[0], &x[1], 0.5, FoldBy::Ring)?;
                assert!((1..28).contains(&near.distances.shape()[0]));
                Ok(vec![near.distances])
            };
            gradcheck(&tape, &search, &x, GradCheck::default()).unwrap();
            gradgradcheck(&tape, &search, &x, GradCheck::default()).unwrap();
            let search = |exec: &Recorder, x: &[Value]| {
                let near = radius_search_capped(exec, &x[0], &x[1], 2.0, 3, FoldBy::Ring)?;
                Ok(vec![near.distances])
            };
            gradcheck(&tape, &search, &x, GradCheck::default()).unwrap();
            gradgradcheck(&tape, &search, &x, GradCheck::default()).unwrap();
            // Of clouds with fewer points than are asked for, what is not there has no derivative of any order.
            let numbers = |n: usize| {
                let layout = Layout::replicated(&mesh, &[n]);
                Value::new(Array::from_fn(cx, &layout, |i| (i[0] % 3) as i64).unwrap())
            };
            let (own, others) = (numbers(4), numbers(7));
            let search = |exec: &Recorder, x: &[Value]| {
                let clouds = Clouds {
                    queries: &own,
                    points: &others,
                };
                let found = nearest_by_cloud(exec, &x[0], &x[1], clouds, 3, FoldBy::Ring)?;
                let none = isinf(exec, &found.0)?;
                Ok(vec![masked_fill(exec, &found.0, &none, 0.0)?])
            };
            gradcheck(&tape, &search, &x, GradCheck::default()).unwrap();
            gradgradcheck(&tape, &search, &x, GradCheck::default()).unwrap();
        });
    }
}

/// A piece is searched by its rank alone: nobody else is asked, or waited for.
fn pieces_are_searched_alone() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let line = tensor(&[5, 1], |i| i as f64);
    let found = on_mesh(&mesh, On::Host, |cx| {
        let layout = Layout::parse(&mesh, &line.shape, "S(0)[4,1]").unwrap();
        let tape = xtests::trial::recorder();
        let points = Value::new(place(cx, &layout, &line, DType::F64).unwrap());
        let piece = tape.to_local(&points, GradAs::Replicate).unwrap();
        if cx.rank() == 1 {
            return 0;
        }
        let near = radius_search(&tape, &piece, &piece, 1.0, FoldBy::Auto).unwrap();
        near.pairs.shape()[0]
    });
    assert_eq!(found, [10, 0]);
}

/// Only f32 and f64 have kernels: others are refused on all ranks alike, before anything is sent.
fn other_types_are_refused() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    on_mesh(&mesh, On::Host, |cx| {
        let tape = xtests::trial::recorder();
        let layout = Layout::parse(&mesh, &[4, 2], "S(0)").unwrap();
        let x = Value::new(Array::from_fn(cx, &layout, |i| i[0] as i64).unwrap());
        let before = cx.world().ledger().snapshot();
        let ring = FoldBy::Ring;
        let errors = [
            nearest(&tape, &x, &x, 1, ring).err(),
            radius_search(&tape, &x, &x, 1.0, ring).err(),
            radius_search_capped(&tape, &x, &x, 1.0, 2, ring).err(),
            farthest_points(&tape, &x, 2, 0, ring).err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(OpError::DType { .. })), "{error:?}");
        }
        assert_eq!(cx.world().ledger().since(&before).rounds, 0);
    });
}

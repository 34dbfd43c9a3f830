//! Neighbourhood attention on random layouts against dense attention under a mask, forward and backward, and what it moves.

use proptest::prelude::*;
use shard_autograd::{GradCheck, Recorder, gradcheck, gradgradcheck};
use shard_comm::DType;
use shard_ops::elementwise::cast;
use shard_ops::neighborhood::{Neighborhood, neighborhood_attention};
use shard_ops::testing::Tolerance;
use shard_ops::testing::place;
use shard_ops::{OpError, Value};
use shard_spec::{DeviceMesh, Layout};
use xtests::case::Case;
use xtests::differentiate::{close, numbers, run};
use xtests::dispatch;
use xtests::harness::{On, on_mesh};
use xtests::made::Windows;
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{Recipe, mesh_shape, recipe, resolve};
use xtests::trial::{Trial, Verdict, run_trials};

pub(super) const ALL: &[Property] = properties![
    neighbourhoods_are_dense_attention_under_a_mask,
    case_30_grids_of_one_two_and_three_dims,
    sixteen_bits_round_once,
    halos_are_all_that_moves,
    gradients_are_differences,
    the_widest_window_sees_everything,
    misfits_are_uniform_errors,
    second_gradients_are_differences,
];

/// A grid of up to three dims, windows that fit it, and sizes.
fn grid() -> impl Strategy<Value = (Windows, [usize; 5])> {
    let dims = prop::collection::vec(
        (1..12_usize, 1..6_usize, 1..4_usize, any::<bool>()),
        1..=3_usize,
    );
    let sizes = [0..3_usize, 1..3, 1..3, 1..4, 1..4];
    (dims, sizes).prop_map(|(dims, sizes)| {
        let most = [12, 7, 4][dims.len() - 1];
        let mut windows = Windows {
            spatial: Vec::new(),
            kernel: Vec::new(),
            dilation: Vec::new(),
            causal: Vec::new(),
        };
        for (n, k, d, causal) in dims {
            let n = n.min(most);
            windows.spatial.push(n);
            windows.kernel.push(k.min(n));
            windows.dilation.push(d.min(n / k.min(n)));
            windows.causal.push(causal);
        }
        (windows, sizes)
    })
}

fn scene() -> impl Strategy<Value = (DeviceMesh, Windows, [usize; 5], Vec<Recipe>)> {
    (mesh_shape(6), grid()).prop_flat_map(|(mesh, (windows, sizes))| {
        let ndim = windows.spatial.len() + 3;
        let recipes = prop::collection::vec(recipe(mesh.len(), ndim, true), 3);
        let mesh = DeviceMesh::new(&mesh).unwrap();
        (Just(mesh), Just(windows), Just(sizes), recipes)
    })
}

/// Checks a case on layouts of its operands, on one device.
fn check(case: &Case, mesh: &DeviceMesh, layouts: Vec<Layout>, on: On) -> Verdict {
    let apply = dispatch::find(case).unwrap();
    let trial = Trial {
        // A gradient whose terms cancel is as exact as they are, which are of size 1.
        tolerance: Tolerance {
            relative: 1e-11,
            absolute: 1e-13,
        },
        on,
        ..Trial::new(layouts)
    };
    let verdicts = run_trials(case, apply, mesh, std::slice::from_ref(&trial), &|_| ());
    verdicts.into_iter().next().unwrap()
}

proptest! {
    #![proptest_config(xtests::strategies::config(200))]

    /// Uneven and empty shards, of fewer sites than a window, of all dims, replicated or terms of a sum.
    fn neighbourhoods_are_dense_attention_under_a_mask(
        (mesh, windows, sizes, recipes) in scene(), elsewhere: bool, seed: u64,
    ) {
        let case = windows.case("random", sizes, seed);
        let all = case.inputs.iter().zip(&recipes);
        let layouts = all.map(|((_, t), r)| resolve(r, &mesh, &t.shape)).collect();
        let on = if elsewhere { On::TestDevice } else { On::Host };
        prop_assert_eq!(check(&case, &mesh, layouts, on), Verdict::Pass);
    }
}

/// The anchor's case 30: one, two and three spatial dims, kernels of 3 and 5, four heads. There, shards smaller than the kernel
/// are an error; here they are ordinary.
fn case_30_grids_of_one_two_and_three_dims() {
    let grids: [&[usize]; 5] = [&[32], &[64], &[16, 16], &[32, 32], &[32, 8, 8]];
    for spatial in grids {
        for k in [3, 5] {
            // Dense references of the larger grids take long: those have fewer heads and dims.
            let large = spatial.iter().product::<usize>() > 300;
            let sizes = if large {
                [1, 1, 1, 4, 4]
            } else {
                [1, 4, 1, 8, 8]
            };
            let windows = Windows {
                spatial: spatial.to_vec(),
                kernel: vec![k; spatial.len()],
                dilation: vec![1; spatial.len()],
                causal: vec![false; spatial.len()],
            };
            let case = windows.case("case 30", sizes, 3);
            for (ranks, text) in [(4, "S(1)"), (3, "S(1)[1,20,-]"), (16, "S(1)")] {
                let mesh = DeviceMesh::new(&[ranks]).unwrap();
                let text = text.replace('-', &(spatial[0].saturating_sub(21)).to_string());
                if text.contains("20") && spatial[0] < 21 {
                    continue;
                }
                let layouts = case.inputs.iter();
                let layouts = layouts.map(|(_, t)| Layout::parse(&mesh, &t.shape, &text).unwrap());
                let verdict = check(&case, &mesh, layouts.collect(), On::Host);
                assert_eq!(verdict, Verdict::Pass, "{windows:?} {text} on {ranks}");
            }
        }
    }
}

/// Results of 16 bits are those of the rounded operands, rounded once.
fn sixteen_bits_round_once() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let shape = [1, 8, 5, 2, 4];
    let near = Neighborhood::new([3]);
    for (dtype, digits) in [(DType::F16, 11), (DType::BF16, 8)] {
        on_mesh(&mesh, On::Host, |cx| {
            let tape = xtests::trial::recorder();
            let layout = Layout::parse(&mesh, &shape, "S(1)").unwrap();
            let small: Vec<Value> = (0..3)
                .map(|i| {
                    let x = place(cx, &layout, &numbers(&shape, i), DType::F64).unwrap();
                    let x = cast(&tape, &Value::new(x), dtype).unwrap();
                    tape.leaf(x.array().clone()).unwrap()
                })
                .collect();
            let wide: Vec<Value> = (small.iter())
                .map(|x| {
                    let x = cast(&tape, &x.detach(), DType::F64).unwrap();
                    tape.leaf(x.array().clone()).unwrap()
                })
                .collect();
            let grads = |x: &[Value]| {
                let y = neighborhood_attention(&tape, &x[0], &x[1], &x[2], &near).unwrap();
                let seed = x[0].detach();
                let g = tape
                    .grad(&[&y], &[&x[0], &x[1], &x[2]], &[Some(&seed)], true)
                    .unwrap();
                let all = std::iter::once(y.detach()).chain(g.into_iter().map(Option::unwrap));
                all.map(|v| {
                    assert_eq!(v.dtype(), x[0].dtype());
                    let v = cast(&tape, &v, DType::F64).unwrap();
                    v.array().to_vec::<f64>().unwrap()
                })
                .collect::<Vec<_>>()
            };
            for (o, (a, b)) in grads(&small).iter().zip(grads(&wide)).enumerate() {
                let size = b.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
                // Half a unit in the last place; gradients also see the rounded result.
                let units = if o == 0 { 1.0 } else { 4.0 };
                let bound = units * 0.5_f64.powi(digits) * size + 1e-5 * size;
                for (x, y) in a.iter().zip(&b) {
                    assert!((x - y).abs() <= bound, "{dtype:?} output {o}: {x} and {y}");
                }
            }
        });
    }
}

/// Nothing moves but halos: keys and values forward, which stay for the gradients; and for these a halo of queries, of two sums per
/// query, and of cotangents.
fn halos_are_all_that_moves() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let (shape, row) = ([1, 24, 5, 2, 4], 5 * 2 * 4 * 8);
    let moved = on_mesh(&mesh, On::Host, |cx| {
        let tape = xtests::trial::recorder();
        let layout = Layout::parse(&mesh, &shape, "S(1)[10,6,8]").unwrap();
        let leaf = |seed| {
            let x = place(cx, &layout, &numbers(&shape, seed), DType::F64).unwrap();
            tape.leaf(x).unwrap()
        };
        let x = [leaf(1), leaf(2), leaf(3)];
        let ledger = cx.world().ledger();
        let began = ledger.snapshot();
        let near = Neighborhood::new([5, 3]);
        let y = neighborhood_attention(&tape, &x[0], &x[1], &x[2], &near).unwrap();
        let forward = ledger.since(&began).bytes;
        let seed = y.detach();
        let began = ledger.snapshot();
        tape.grad(&[&y], &[&x[0], &x[1], &x[2]], &[Some(&seed)], false)
            .unwrap();
        [forward, ledger.since(&began).bytes]
    });
    // Two rows from each side: the rank in the middle has two sides. Windows of the first and last rows reach no further.
    for (rank, sides) in [(0, 1), (1, 2), (2, 1)] {
        let rows = 2 * sides;
        assert_eq!(moved[rank][0], 2 * rows * row, "forward on {rank}");
        let sums = 2 * row / 4;
        assert_eq!(
            moved[rank][1],
            rows * (2 * row + sums),
            "backward on {rank}"
        );
    }
}

/// The gradient is that of what is computed, under a causal window too.
fn gradients_are_differences() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let shape = [1, 5, 3, 1, 2];
    let near = Neighborhood::new([3, 2]).causal([true, false]).scale(0.4);
    on_mesh(&mesh, On::TestDevice, |cx| {
        let layout = Layout::parse(&mesh, &shape, "S(1)[1,4]").unwrap();
        let x: Vec<Value> = (0..3)
            .map(|i| Value::new(place(cx, &layout, &numbers(&shape, i), DType::F64).unwrap()))
            .collect();
        let tape = xtests::trial::recorder();
        let attend = |exec: &Recorder, x: &[Value]| {
            Ok(vec![neighborhood_attention(
                exec, &x[0], &x[1], &x[2], &near,
            )?])
        };
        gradcheck(&tape, &attend, &x, GradCheck::default()).unwrap();
    });
}

/// A window as wide as the grid is attention to everything, wherever the query.
fn the_widest_window_sees_everything() {
    use shard_ops::attention::{Attention, attention};
    use shard_ops::shape::permute;
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let inputs = [1, 2, 3].map(|seed| numbers(&[2, 7, 2, 3], seed));
    let layouts = inputs
        .each_ref()
        .map(|t| Layout::parse(&mesh, &t.shape, "S(1)").unwrap());
    let near = run(&mesh, &layouts, &inputs, |tape, x| {
        let near = Neighborhood::new([7]);
        vec![neighborhood_attention(tape, &x[0], &x[1], &x[2], &near).unwrap()]
    });
    let all = run(&mesh, &layouts, &inputs, |tape, x| {
        let turn = |x: &Value| permute(tape, x, &[0, 2, 1, 3]).unwrap();
        let [q, k, v] = [0, 1, 2].map(|i| turn(&x[i]));
        vec![turn(
            &attention(tape, &q, &k, &v, None, &Attention::new()).unwrap(),
        )]
    });
    close("one window", &near, &all);
}

/// What does not fit is refused on all ranks alike, before anything is sent, and the group goes on.
fn misfits_are_uniform_errors() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    on_mesh(&mesh, On::Host, |cx| {
        let tape = xtests::trial::recorder();
        let value = |shape: &[usize]| {
            let layout = Layout::parse(&mesh, shape, "S(1)").unwrap();
            Value::new(place(cx, &layout, &numbers(shape, 1), DType::F64).unwrap())
        };
        let x = value(&[1, 6, 4, 2, 3]);
        let before = cx.world().ledger().snapshot();
        let refuse = |q: &Value, k: &Value, v: &Value, near: Neighborhood, why: &str| {
            let error: OpError = neighborhood_attention(&tape, q, k, v, &near).unwrap_err();
            assert_eq!(error.class(), shard_comm::ErrorClass::Uniform);
            assert!(error.to_string().contains(why), "{error}");
        };
        let three = || Neighborhood::new([3]);
        refuse(&x, &x, &x, Neighborhood::new([5]), "4");
        refuse(&x, &x, &x, three().dilation([3, 1]), "9");
        refuse(&x, &x, &x, Neighborhood::new([0]), "kernel");
        refuse(&x, &x, &x, three().dilation([0]), "dilation");
        refuse(&x, &x, &x, Neighborhood::new([3, 3, 3]), "entries");
        refuse(&x, &x, &x, Neighborhood::new([]), "entries");
        refuse(&x, &x, &x, three().causal([]), "entries");
        let [short, wide, odd] =
            [[1, 5, 4, 2, 3], [1, 6, 4, 2, 2], [1, 6, 4, 3, 3]].map(|s| value(&s));
        refuse(&x, &short, &short, three(), "belong together");
        refuse(&x, &wide, &x, three(), "belong together");
        refuse(&x, &odd, &odd, three(), "heads");
        let flat = value(&[1, 6, 2]);
        refuse(&flat, &flat, &flat, Neighborhood::new([1]), "spatial dims");
        let single = cast(&tape, &x, DType::F32).unwrap();
        let mixed = neighborhood_attention(&tape, &x, &single, &x, &three()).unwrap_err();
        assert!(matches!(mixed, OpError::DType { .. }), "{mixed}");
        assert_eq!(cx.world().ledger().since(&before).bytes, 0);
        assert!(neighborhood_attention(&tape, &x, &x, &x, &three()).is_ok());
    });
}

/// So is the gradient of the gradient: of heads that share keys, of grids in pieces smaller than a window, some empty, and on axes that divide
/// two dims.
fn second_gradients_are_differences() {
    let shape = |heads| [1, 5, 4, heads, 2];
    let near = Neighborhood::new([3, 2])
        .dilation([1, 2])
        .causal([true, false])
        .scale(0.4);
    for (ranks, on, text) in [
        (&[2][..], On::TestDevice, "S(1)[1,4]"),
        (&[3], On::Host, "S(1)[2,0,3]"),
        (&[2, 2], On::Host, "S(2)[3,1] S(1)"),
        (&[2], On::EmulatedCuda, "S(2)"),
    ] {
        let mesh = DeviceMesh::new(ranks).unwrap();
        on_mesh(&mesh, on, |cx| {
            let x: Vec<Value> = [(4, 1), (2, 2), (2, 3)]
                .map(|(heads, seed)| {
                    let layout = Layout::parse(&mesh, &shape(heads), text).unwrap();
                    let x = numbers(&shape(heads), seed);
                    Value::new(place(cx, &layout, &x, DType::F64).unwrap())
                })
                .into();
            let tape = xtests::trial::recorder();
            let attend = |exec: &Recorder, x: &[Value]| {
                Ok(vec![neighborhood_attention(
                    exec, &x[0], &x[1], &x[2], &near,
                )?])
            };
            gradgradcheck(&tape, &attend, &x, GradCheck::default()).unwrap();
        });
    }
}

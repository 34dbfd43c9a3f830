//! Random cases of ops, with whole numbers as data: reference results come from one rank.

use crate::case::{Case, Tensor};
use crate::strategies::integer;
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use shard_ops::testing::Rng;

/// A case without reference results, whose inputs are whole numbers.
pub fn case(op: &str, attributes: &Json, inputs: &[(&str, Vec<usize>)], seed: u64) -> Case {
    let tensors = inputs.iter().enumerate().map(|(i, (name, shape))| {
        let seed = seed.wrapping_add(i as u64 * 77);
        (
            (*name).to_owned(),
            shard_ops::testing::tensor(shape, |at| integer(seed, at)),
        )
    });
    Case::without_reference(op, op, attributes.clone(), tensors.collect(), "")
}

/// Geometry of a window along one dim, with an extent that gives at least one output.
fn window() -> impl Strategy<Value = (usize, usize, usize, usize, usize)> {
    (
        1_usize..=4,
        1_usize..=3,
        1_usize..=2,
        0_usize..=3,
        1_usize..=11,
    )
        .prop_map(|(k, s, d, p, n)| (k, s, d, p, n.max((d * (k - 1) + 1).saturating_sub(2 * p))))
}

/// Convolutions of one or two dims, `conv` or `conv_transpose`, with any groups, strides, dilations and padding.
pub fn convs(name: &'static str) -> impl Strategy<Value = Case> {
    let windows = proptest::collection::vec(window(), 1..=2).boxed();
    let channels = (0_usize..=2, 1_usize..=2, 1_usize..=2, 1_usize..=3);
    (windows, channels, any::<bool>(), any::<u64>()).prop_map(
        move |(windows, (batch, groups, cin, cout), bias, seed)| {
            let of = |f: fn(&(usize, usize, usize, usize, usize)) -> usize| {
                windows.iter().map(f).collect::<Vec<usize>>()
            };
            let transposed = name == "conv_transpose";
            // A transposed convolution crops: its padding must leave something.
            let pads: Vec<usize> = windows
                .iter()
                .map(|&(k, _, d, p, _)| {
                    if transposed {
                        p.min(d * (k - 1) / 2)
                    } else {
                        p
                    }
                })
                .collect();
            let (cin, cout) = (groups * cin, groups * cout);
            let (first, second) = if transposed {
                (cin, cout / groups)
            } else {
                (cout, cin / groups)
            };
            let input = [vec![batch, cin], of(|w| w.4)].concat();
            let weight = [vec![first, second], of(|w| w.0)].concat();
            let mut inputs = vec![("input", input), ("weight", weight)];
            if bias {
                inputs.push(("bias", vec![cout]));
            }
            let attributes = json!({
                "stride": of(|w| w.1), "dilation": of(|w| w.2), "padding": pads, "groups": groups,
            });
            case(
                &format!("{name}{}d", windows.len()),
                &attributes,
                &inputs,
                seed,
            )
        },
    )
}

/// Poolings of one or two dims, `max_pool` or `avg_pool`.
pub fn pools(name: &'static str) -> impl Strategy<Value = Case> {
    let windows = proptest::collection::vec(window(), 1..=2).boxed();

    (windows, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        move |(windows, ceil, count, seed)| {
            let pads: Vec<usize> = windows.iter().map(|w| w.3.min(w.0 / 2)).collect();
            let dilation: Vec<usize> = windows
                .iter()
                .map(|w| if name == "max_pool" { w.2 } else { 1 })
                .collect();
            let extents = windows.iter().map(|w| w.4.max(w.2 * (w.0 - 1) + 1));
            let shape: Vec<usize> = [1, 2].into_iter().chain(extents).collect();
            let mut attributes = json!({
                "kernel_size": windows.iter().map(|w| w.0).collect::<Vec<_>>(),
                "stride": windows.iter().map(|w| w.1).collect::<Vec<_>>(),
                "padding": pads, "ceil_mode": ceil,
            });
            if name == "max_pool" {
                attributes["dilation"] = json!(dilation);
            } else {
                attributes["count_include_pad"] = json!(count);
            }
            case(
                &format!("{name}{}d", windows.len()),
                &attributes,
                &[("input", shape)],
                seed,
            )
        },
    )
}

/// Interpolations of one or two dims to any size.
pub fn resizes() -> impl Strategy<Value = Case> {
    let extents = proptest::collection::vec((1_usize..=9, 1_usize..=13), 1..=2);

    (extents, 0_usize..7, any::<u64>()).prop_map(|(extents, kind, seed)| {
        let linear = ["linear", "bilinear"][extents.len() - 1];
        let size: Vec<usize> = extents.iter().map(|e| e.1).collect();
        let attributes = match kind {
            0 => json!({"size": size, "mode": "nearest"}),
            1 => json!({"size": size, "mode": "nearest-exact"}),
            _ => json!({"size": size, "mode": linear, "align_corners": kind == 3}),
        };
        let shape: Vec<usize> = [1, 2]
            .into_iter()
            .chain(extents.iter().map(|e| e.0))
            .collect();
        case("interpolate", &attributes, &[("input", shape)], seed)
    })
}

/// Group and layer norms with weight and bias.
pub fn norms() -> impl Strategy<Value = Case> {
    (
        1_usize..=2,
        1_usize..=3,
        1_usize..=3,
        1_usize..=7,
        1_usize..=5,
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(batch, groups, per, h, w, layer, seed)| {
            let channels = groups * per;
            if layer {
                let inputs = [
                    ("input", vec![batch, h, w, channels + 1]),
                    ("weight", vec![channels + 1]),
                    ("bias", vec![channels + 1]),
                ];
                return case(
                    "layer_norm",
                    &json!({"normalized_shape": [channels + 1], "eps": 0.5}),
                    &inputs,
                    seed,
                );
            }
            let inputs = [
                ("input", vec![batch, channels, h, w]),
                ("weight", vec![channels]),
                ("bias", vec![channels]),
            ];
            // A large epsilon keeps the gradients of constant groups tame.
            case(
                "group_norm",
                &json!({"num_groups": groups, "eps": 0.5}),
                &inputs,
                seed,
            )
        })
}

/// Softmax, losses and statistics over any dims.
pub fn statistics() -> impl Strategy<Value = Case> {
    let shapes = proptest::collection::vec(1_usize..=7, 2..=3);
    (shapes, 0_usize..12, any::<u64>()).prop_map(|(shape, kind, seed)| {
        let mut rng = Rng::new(seed, &["statistics"]);
        let dim = rng.below(shape.len());
        let dims: Vec<usize> = (0..shape.len())
            .filter(|&d| d == dim || rng.below(3) == 0)
            .collect();
        let keepdim = rng.below(2) == 0;
        let one = [("input", shape.clone())];
        let two = [("input", shape.clone()), ("target", shape.clone())];
        let over = json!({"dim": dims, "keepdim": keepdim, "correction": 0});
        let along = json!({"dim": dim, "keepdim": keepdim});
        match kind {
            0 => case("softmax", &along, &one, seed),
            1 => case("log_softmax", &along, &one, seed),
            2 => case("logsumexp", &over, &one, seed),
            3 => case("var_mean", &over, &one, seed),
            4 => case("std", &over, &one, seed),
            5 => case(["max", "min"][rng.below(2)], &along, &one, seed),
            6 => {
                let order = [json!(1), json!(2), json!(3), json!(2.5), json!("inf")];
                let order = &order[rng.below(5)];
                let over = json!({"ord": order, "dim": dims, "keepdim": keepdim});
                case("norm", &over, &one, seed)
            }
            7 => {
                let attributes = json!({"p": 2.0, "dim": dims, "eps": 0.5});
                case("normalize", &attributes, &one, seed)
            }
            8 => {
                let inputs = [("x1", shape.clone()), ("x2", shape)];
                let attributes = json!({"dim": dim, "eps": 0.5});
                case("cosine_similarity", &attributes, &inputs, seed)
            }
            9 => {
                let how = ["none", "sum", "mean"][rng.below(3)];
                let attributes = json!({"reduction": how, "label_smoothing": 0.25});
                case("cross_entropy", &attributes, &two, seed)
            }
            10 => {
                let attributes = json!({"reduction": "mean"});
                case("binary_cross_entropy_with_logits", &attributes, &two, seed)
            }
            _ => {
                let attributes = json!({"q": [0.25, 0.5], "dim": dim});
                case("quantile", &attributes, &one, seed)
            }
        }
    })
}

/// Linear ops that move or add elements: slices, pads in every mode, rolls, reshapes, sums and the like.
pub fn moves() -> impl Strategy<Value = Case> {
    let shapes = proptest::collection::vec(1_usize..=7, 2..=3);

    (shapes, 0_usize..13, any::<u64>()).prop_map(|(shape, kind, seed)| {
        let mut rng = Rng::new(seed, &["moves"]);
        let dim = rng.below(shape.len());
        let n = shape[dim];
        let one =
            |op: &str, attributes: Json| case(op, &attributes, &[("input", shape.clone())], seed);
        let to = |mut case: Case, shape: Vec<usize>| {
            // These ops take the shape of their result as an attribute, which cases give in words.
            case.outputs = vec![shard_ops::testing::tensor(&shape, |_| 0.0)];
            case
        };
        match kind {
            0 => {
                let start = rng.below(n);
                one(
                    "narrow",
                    json!({"dim": dim, "start": start, "length": rng.below(n - start + 1)}),
                )
            }
            1 => one(
                "strided_slice",
                json!({"dim": dim, "start": rng.below(n), "step": 1 + rng.below(3)}),
            ),
            2 => one("flip", json!({"dims": [dim, (dim + 1) % shape.len()]})),
            3 => one(
                "roll",
                json!({"shifts": [rng.below(9) as i64 - 4], "dims": [dim]}),
            ),
            4 => {
                let repeats: Vec<usize> = shape.iter().map(|_| 1 + rng.below(3)).collect();
                one("repeat", json!({ "repeats": repeats }))
            }
            5 => {
                let mut dims: Vec<usize> = (0..shape.len()).collect();
                rng.shuffle(&mut dims);
                one("permute", json!({ "dims": dims }))
            }
            6 => {
                let mut small = shape.clone();
                small[dim] = 1;
                to(case("expand", &json!({}), &[("input", small)], seed), shape)
            }
            7 => {
                let (a, b) = (shape.len() - 2, shape.len() - 1);
                let mut merged = shape[..a].to_vec();
                merged.push(shape[a] * shape[b]);
                to(one("reshape_merge", json!({})), merged)
            }
            8 => {
                let mut whole = shape.clone();
                whole[dim] *= 3;
                let mut split = shape.clone();
                split.insert(dim, 3);
                to(
                    case("reshape_split", &json!({}), &[("input", whole)], seed),
                    split,
                )
            }
            9 => {
                let mut more = |name: &'static str| {
                    let mut shape = shape.clone();
                    shape[dim] = rng.below(8);
                    (name, shape)
                };
                to(
                    case(
                        "cat",
                        &json!({ "dim": dim }),
                        &[more("a"), more("b"), more("c")],
                        seed,
                    ),
                    shape,
                )
            }
            10 => one("sum", json!({"dim": dim, "keepdim": rng.one_in(2)})),
            11 => one("mean", json!({})),
            _ => {
                let mode = ["constant", "replicate", "reflect", "circular"][rng.below(4)];
                // One pair per dim, from the last backwards, no wider than the mode allows; zeros may crop.
                let pad: Vec<i64> = shape
                    .iter()
                    .rev()
                    .flat_map(|&n| {
                        let n = n as i64;
                        let most = if mode == "reflect" { n } else { n + 1 };
                        let least = if mode == "constant" { -(n / 2) } else { 0 };
                        let mut draw = || least + rng.below((most - least) as usize) as i64;
                        [draw(), draw()]
                    })
                    .collect();
                one("pad", json!({"pad": pad, "mode": mode}))
            }
        }
    })
}

/// Products of matrices, batched and broadcast or not.
pub fn products() -> impl Strategy<Value = Case> {
    let extents = (0_usize..=3, 1_usize..=6, 0_usize..=6, 1_usize..=6);

    (extents, 0_usize..8, any::<u64>()).prop_map(|((batch, m, k, n), kind, seed)| {
        let (a, b) = match kind {
            0 => (vec![m, k], vec![k, n]),
            1 => (vec![batch, m, k], vec![k, n]),
            2 => (vec![batch, 1, m, k], vec![2, k, n]),
            3 => (vec![m, k], vec![k]),
            4 => (vec![k], vec![batch, k, n]),
            5 => (vec![batch, m, k], vec![k]),
            6 => (vec![m, k], vec![batch, k, n]),
            _ => (vec![k], vec![k]),
        };
        case("matmul", &json!({}), &[("a", a), ("b", b)], seed)
    })
}

/// The sum of products of two tensors of one shape.
pub fn inner(a: &Tensor, b: &Tensor) -> f64 {
    use crate::case::Data;
    match (&*a.data, &*b.data) {
        (Data::F64(a), Data::F64(b)) => a.iter().zip(b).map(|(x, y)| x * y).sum(),
        _ => f64::NAN,
    }
}

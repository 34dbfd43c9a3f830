//! Ops with halos and statistics on random layouts equal the same op on one rank, forward and backward. Data
//! are whole numbers in doubles: where an op only adds and multiplies, equality is exact.

use proptest::prelude::*;
use serde_json::json;
use shard_spec::{DeviceMesh, Layout};
use xtests::case::{Attributes, Case};
use xtests::compare::Tolerance;
use xtests::dispatch;
use xtests::strategies::{Recipe, integer, recipe, resolve};
use xtests::trial::{Trial, Verdict, run_trials, with_reference};

/// A case without reference results, whose inputs are whole numbers.
fn case(op: &str, attributes: serde_json::Value, inputs: &[(&str, Vec<usize>)], seed: u64) -> Case {
    let serde_json::Value::Object(attributes) = attributes else { unreachable!("attributes are an object") };
    let tensors = inputs.iter().enumerate().map(|(i, (name, shape))| {
        let seed = seed.wrapping_add(i as u64 * 77);
        ((*name).to_owned(), xtests::arrays::tensor(shape, |at| integer(seed, at)))
    });
    Case {
        name: op.to_owned(),
        op: op.to_owned(),
        attributes: Attributes(attributes),
        inputs: tensors.collect(),
        outputs: Vec::new(),
        cotangents: Vec::new(),
        gradients: Vec::new(),
        note: String::new(),
    }
}

/// Small meshes of one and two axes.
fn mesh() -> impl Strategy<Value = Vec<usize>> {
    let shapes: [&[usize]; 7] = [&[2], &[3], &[5], &[6], &[2, 2], &[2, 3], &[1, 4]];
    proptest::sample::select(shapes.map(<[usize]>::to_vec).to_vec())
}

/// A mesh, a case, and a layout recipe for each of its inputs.
fn scenes(cases: impl Strategy<Value = Case> + Clone) -> impl Strategy<Value = (Case, Vec<usize>, Vec<Recipe>)> {
    (mesh(), cases).prop_flat_map(|(mesh, case)| {
        let recipes: Vec<_> =
            case.inputs.iter().map(|(_, t)| recipe(mesh.len(), t.shape.len(), true)).collect();
        (Just(case), Just(mesh), recipes)
    })
}

/// Checks a case on one combination of layouts against one rank.
fn check(case: Case, mesh: &[usize], recipes: &[Recipe], tolerance: Tolerance) -> Result<(), TestCaseError> {
    let mesh = DeviceMesh::new(mesh).unwrap();
    let apply = dispatch::find(&case).map_err(TestCaseError::fail)?;
    let wants: Vec<usize> = (0..case.inputs.len()).collect();
    let case = with_reference(case, apply, &wants, 5);
    let layouts: Vec<Layout> =
        recipes.iter().zip(&case.inputs).map(|(r, (_, t))| resolve(r, &mesh, &t.shape)).collect();
    let trial = Trial { tolerance, ..Trial::new(layouts) };
    let verdicts = run_trials(&case, apply, &mesh, std::slice::from_ref(&trial), &|_| ());
    prop_assert_eq!(&verdicts[..], &[Verdict::Pass], "{} {:?} mesh {:?} {}", case.op, case.attributes, mesh, trial);
    Ok(())
}

/// Geometry of a window along one dim, with an extent that gives at least one output.
fn window() -> impl Strategy<Value = (usize, usize, usize, usize, usize)> {
    (1_usize..=4, 1_usize..=3, 1_usize..=2, 0_usize..=3, 1_usize..=11)
        .prop_map(|(k, s, d, p, n)| (k, s, d, p, n.max((d * (k - 1) + 1).saturating_sub(2 * p))))
}

fn convs(name: &'static str) -> impl Strategy<Value = Case> + Clone {
    let windows = proptest::collection::vec(window(), 1..=2).boxed();
    let channels = (0_usize..=2, 1_usize..=2, 1_usize..=2, 1_usize..=3);
    std::sync::Arc::new((windows, channels, any::<bool>(), any::<u64>()).prop_map(
        move |(windows, (batch, groups, cin, cout), bias, seed)| {
            let of = |f: fn(&(usize, usize, usize, usize, usize)) -> usize| {
                windows.iter().map(f).collect::<Vec<usize>>()
            };
            let transposed = name == "conv_transpose";
            // A transposed convolution crops: its padding must leave something.
            let pads: Vec<usize> = windows
                .iter()
                .map(|&(k, _, d, p, _)| if transposed { p.min(d * (k - 1) / 2) } else { p })
                .collect();
            let (cin, cout) = (groups * cin, groups * cout);
            let (first, second) = if transposed { (cin, cout / groups) } else { (cout, cin / groups) };
            let input = [vec![batch, cin], of(|w| w.4)].concat();
            let weight = [vec![first, second], of(|w| w.0)].concat();
            let mut inputs = vec![("input", input), ("weight", weight)];
            if bias {
                inputs.push(("bias", vec![cout]));
            }
            let attributes = json!({
                "stride": of(|w| w.1), "dilation": of(|w| w.2), "padding": pads, "groups": groups,
            });
            case(&format!("{name}{}d", windows.len()), attributes, &inputs, seed)
        },
    ))
}

fn pools(name: &'static str) -> impl Strategy<Value = Case> + Clone {
    let windows = proptest::collection::vec(window(), 1..=2).boxed();
    std::sync::Arc::new((windows, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(move |(windows, ceil, count, seed)| {
        let pads: Vec<usize> = windows.iter().map(|w| w.3.min(w.0 / 2)).collect();
        let dilation: Vec<usize> = windows.iter().map(|w| if name == "max_pool" { w.2 } else { 1 }).collect();
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
        case(&format!("{name}{}d", windows.len()), attributes, &[("input", shape)], seed)
    }))
}

fn resizes() -> impl Strategy<Value = Case> + Clone {
    let extents = proptest::collection::vec((1_usize..=9, 1_usize..=13), 1..=2);
    std::sync::Arc::new((extents, 0_usize..4, any::<u64>()).prop_map(|(extents, kind, seed)| {
        let linear = ["linear", "bilinear"][extents.len() - 1];
        let size: Vec<usize> = extents.iter().map(|e| e.1).collect();
        let attributes = match kind {
            0 => json!({"size": size, "mode": "nearest"}),
            1 => json!({"size": size, "mode": "nearest-exact"}),
            _ => json!({"size": size, "mode": linear, "align_corners": kind == 3}),
        };
        let shape: Vec<usize> = [1, 2].into_iter().chain(extents.iter().map(|e| e.0)).collect();
        case("interpolate", attributes, &[("input", shape)], seed)
    }))
}

fn norms() -> impl Strategy<Value = Case> + Clone {
    std::sync::Arc::new((1_usize..=2, 1_usize..=3, 1_usize..=3, 1_usize..=7, 1_usize..=5, any::<bool>(), any::<u64>()).prop_map(
        |(batch, groups, per, h, w, layer, seed)| {
            let channels = groups * per;
            if layer {
                let inputs = [("input", vec![batch, h, w, channels + 1]), ("weight", vec![channels + 1]), ("bias", vec![channels + 1])];
                return case("layer_norm", json!({"normalized_shape": [channels + 1], "eps": 0.5}), &inputs, seed);
            }
            let inputs = [("input", vec![batch, channels, h, w]), ("weight", vec![channels]), ("bias", vec![channels])];
            // A large epsilon keeps the gradients of constant groups tame.
            case("group_norm", json!({"num_groups": groups, "eps": 0.5}), &inputs, seed)
        },
    ))
}

const EXACT: Tolerance = Tolerance(0.0);

proptest! {
    #![proptest_config(xtests::strategies::config(64))]

    #[test]
    fn convolutions((case, mesh, recipes) in scenes(convs("conv"))) {
        check(case, &mesh, &recipes, EXACT)?;
    }

    #[test]
    fn transposed_convolutions((case, mesh, recipes) in scenes(convs("conv_transpose"))) {
        check(case, &mesh, &recipes, EXACT)?;
    }

    #[test]
    fn max_pools((case, mesh, recipes) in scenes(pools("max_pool"))) {
        check(case, &mesh, &recipes, EXACT)?;
    }

    #[test]
    fn average_pools((case, mesh, recipes) in scenes(pools("avg_pool"))) {
        check(case, &mesh, &recipes, Tolerance(1e-13))?;
    }

    #[test]
    fn resizing((case, mesh, recipes) in scenes(resizes())) {
        check(case, &mesh, &recipes, Tolerance(1e-13))?;
    }

    #[test]
    fn norms_over_all_ranks((case, mesh, recipes) in scenes(norms())) {
        check(case, &mesh, &recipes, Tolerance(1e-10))?;
    }
}

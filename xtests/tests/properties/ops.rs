//! Ops on random layouts equal the same op on one rank, forward and backward, and their gradients are adjoints.
//! Data are whole numbers in doubles: where an op only adds, multiplies and moves, equality is exact.

use proptest::prelude::*;
use shard_ops::testing::Tolerance;
use shard_spec::{DeviceMesh, Layout};
use xtests::case::Case;
use xtests::dispatch::{self, Apply};
use xtests::generate::{convs, inner, moves, norms, pools, products, resizes, statistics};
use xtests::harness::{On, on_mesh};
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{Recipe, fits, recipe, resolve};
use xtests::trial::{Trial, Verdict, compute, recorder, run_trials, with_reference};

pub(super) const ALL: &[Property] = properties![
    convolutions,
    transposed_convolutions,
    max_pools,
    average_pools,
    resizing,
    norms_over_all_ranks,
    statistics_and_losses,
    moves_and_sums,
    matrix_products,
    gradients_of_products_are_adjoints,
    gradients_of_linear_ops_are_adjoints,
];

/// Small meshes of one and two axes.
pub(super) fn mesh() -> impl Strategy<Value = Vec<usize>> {
    let shapes: [&[usize]; 7] = [&[2], &[3], &[5], &[6], &[2, 2], &[2, 3], &[1, 4]];
    let mut shapes = shapes.map(<[usize]>::to_vec).to_vec();
    shapes.retain(|shape| fits(shape));
    proptest::sample::select(shapes)
}

/// A mesh, a case, and a layout recipe for each of its inputs.
fn scenes(
    cases: impl Strategy<Value = Case>,
) -> impl Strategy<Value = (Case, Vec<usize>, Vec<Recipe>)> {
    (mesh(), cases).prop_flat_map(|(mesh, case)| {
        let recipes: Vec<_> = case
            .inputs
            .iter()
            .map(|(_, t)| recipe(mesh.len(), t.shape.len(), true))
            .collect();
        (Just(case), Just(mesh), recipes)
    })
}

/// Checks a case on one combination of layouts against one rank.
fn check_op(
    case: Case,
    mesh: &[usize],
    recipes: &[Recipe],
    tolerance: Tolerance,
) -> Result<(), TestCaseError> {
    let apply = dispatch::find(&case).map_err(TestCaseError::fail)?;
    check(case, apply, mesh, recipes, tolerance)
}

/// The same of any program.
pub(super) fn check(
    case: Case,
    apply: Apply,
    mesh: &[usize],
    recipes: &[Recipe],
    tolerance: Tolerance,
) -> Result<(), TestCaseError> {
    let mesh = DeviceMesh::new(mesh).unwrap();
    let floats = |i: &usize| case.inputs[*i].1.data.dtype().is_float();
    let wants: Vec<usize> = (0..case.inputs.len()).filter(floats).collect();
    let case = with_reference(case, apply, &wants, 5);
    let layouts: Vec<Layout> = recipes
        .iter()
        .zip(&case.inputs)
        .map(|(r, (_, t))| resolve(r, &mesh, &t.shape))
        .collect();
    let trial = Trial {
        tolerance,
        ..Trial::new(layouts)
    };
    let verdicts = run_trials(&case, apply, &mesh, std::slice::from_ref(&trial), &|_| ());
    prop_assert_eq!(
        &verdicts[..],
        &[Verdict::Pass],
        "{} {:?} mesh {:?} {}",
        case.op,
        case.attributes,
        mesh,
        trial
    );
    Ok(())
}

/// Checks `<A x, y> = <x, A* y>` on one combination of layouts: for each operand of a product, the others held
/// fixed, or for all operands together.
fn check_adjoint(
    case: Case,
    mesh: &[usize],
    recipes: &[Recipe],
    together: bool,
) -> Result<(), TestCaseError> {
    let mesh = DeviceMesh::new(mesh).unwrap();
    let apply = dispatch::find(&case).map_err(TestCaseError::fail)?;
    let wants: Vec<usize> = (0..case.inputs.len()).collect();
    let case = with_reference(case, apply, &wants, 6);
    let layouts: Vec<Layout> = recipes
        .iter()
        .zip(&case.inputs)
        .map(|(r, (_, t))| resolve(r, &mesh, &t.shape))
        .collect();
    let trial = Trial::new(layouts);
    let (forth, back) = on_mesh(&mesh, On::Host, |cx| {
        let computed = compute(cx, &recorder(), &case, apply, &trial).unwrap();
        let outputs = (case.cotangents.iter()).map(|(i, y)| inner(&computed.outputs[*i], y));
        let forth: f64 = outputs.sum();
        let gradients = computed.gradients.iter().zip(&case.inputs);
        let back = gradients.map(|(g, (_, x))| g.as_ref().map_or(0.0, |g| inner(g, x)));
        (forth, back.collect::<Vec<f64>>())
    })
    .swap_remove(0);
    let sums = if together {
        vec![back.iter().sum()]
    } else {
        back
    };
    let size = case
        .cotangents
        .iter()
        .map(|(_, y)| y.data.len())
        .sum::<usize>() as f64;
    for sum in sums {
        prop_assert!(
            (forth - sum).abs() <= 1e-11 * size.max(1.0) * 81.0,
            "{} {:?} mesh {mesh:?} {trial}: {forth} is not {sum}",
            case.op,
            case.attributes
        );
    }
    Ok(())
}

const EXACT: Tolerance = Tolerance::EXACT;

proptest! {
    #![proptest_config(xtests::strategies::config(64))]

    fn convolutions((case, mesh, recipes) in scenes(convs("conv"))) {
        check_op(case, &mesh, &recipes, EXACT)?;
    }

    fn transposed_convolutions((case, mesh, recipes) in scenes(convs("conv_transpose"))) {
        check_op(case, &mesh, &recipes, EXACT)?;
    }

    fn max_pools((case, mesh, recipes) in scenes(pools("max_pool"))) {
        check_op(case, &mesh, &recipes, EXACT)?;
    }

    fn average_pools((case, mesh, recipes) in scenes(pools("avg_pool"))) {
        check_op(case, &mesh, &recipes, Tolerance::relative(1e-13))?;
    }

    fn resizing((case, mesh, recipes) in scenes(resizes())) {
        check_op(case, &mesh, &recipes, Tolerance::relative(1e-13))?;
    }

    fn norms_over_all_ranks((case, mesh, recipes) in scenes(norms())) {
        check_op(case, &mesh, &recipes, Tolerance::relative(1e-10))?;
    }

    fn statistics_and_losses((case, mesh, recipes) in scenes(statistics())) {
        check_op(case, &mesh, &recipes, Tolerance { relative: 1e-10, absolute: 1e-10 })?;
    }

    fn moves_and_sums((case, mesh, recipes) in scenes(moves())) {
        // A mean divides each term of a sum, which rounds.
        // Ranks divide their shares of a sum, which may cancel to less than the rounding of the shares.
        let mean = Tolerance { relative: 1e-11, absolute: 1e-13 };
        let tolerance = if case.op == "mean" { mean } else { EXACT };
        check_op(case, &mesh, &recipes, tolerance)?;
    }

    fn matrix_products((case, mesh, recipes) in scenes(products())) {
        check_op(case, &mesh, &recipes, EXACT)?;
    }

    fn gradients_of_products_are_adjoints((case, mesh, recipes) in scenes(prop_oneof![
        convs("conv").prop_map(without_bias).boxed(),
        convs("conv_transpose").prop_map(without_bias).boxed(),
        products().boxed(),
    ])) {
        check_adjoint(case, &mesh, &recipes, false)?;
    }

    fn gradients_of_linear_ops_are_adjoints((case, mesh, recipes) in scenes(prop_oneof![
        pools("avg_pool").boxed(),
        resizes().boxed(),
        moves().boxed(),
    ])) {
        check_adjoint(case, &mesh, &recipes, true)?;
    }
}

/// With a bias a convolution is affine, not linear.
fn without_bias(mut case: Case) -> Case {
    case.inputs.retain(|(name, _)| name != "bias");
    case
}

//! `proptest` strategies: meshes of one to three axes with size-1 axes, and layouts with uneven, empty and
//! prime-sized shards.

use crate::layouts::{AxisChoice, Operand, Split, choices, layout};
use crate::rng::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use shard_spec::{DeviceMesh, Layout};

/// Settings for property tests: so many cases, from a random seed that a failure prints with its smallest
/// example. `PROPTEST_CASES` in the environment replaces the count.
pub fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(cases);
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Shapes of meshes of one to three axes and at most `ranks` ranks; size 1 is an ordinary axis size.
pub fn mesh_shape(ranks: usize) -> impl Strategy<Value = Vec<usize>> {
    vec(1..=ranks.max(1), 1..=3).prop_map(move |mut shape| {
        // Shrink the later axes until the mesh fits, so that no draw is thrown away.
        let mut left = ranks.max(1);
        for n in &mut shape {
            *n = (*n).min(left);
            left /= *n;
        }
        shape
    })
}

/// Shapes of tensors: up to `dims` dims of extents 0 to `extent`, small, prime and zero among them.
pub fn shape(dims: usize, extent: usize) -> impl Strategy<Value = Vec<usize>> {
    vec(
        prop_oneof![1 => Just(0), 2 => Just(1), 12 => 2..=extent],
        0..=dims,
    )
}

/// As [`shape`], without zero extents and with at least one dim.
pub fn full_shape(dims: usize, extent: usize) -> impl Strategy<Value = Vec<usize>> {
    vec(1..=extent, 1..=dims)
}

/// What a layout of a tensor of `ndim` dims on a mesh of `axes` axes does, apart from where the cuts are;
/// resolve it with [`resolve`]. Shrinks towards replication.
pub fn recipe(axes: usize, ndim: usize, sums: bool) -> impl Strategy<Value = Recipe> {
    let all = choices(&Operand {
        shape: vec![0; ndim],
        sums,
    });
    let axis = proptest::sample::select(all);
    let split = proptest::sample::select(Split::ALL.to_vec());
    (vec(axis, axes), split, any::<u64>()).prop_map(|(axes, split, seed)| Recipe {
        axes,
        split,
        seed,
    })
}

/// A layout before its mesh and shape are known.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What each mesh axis does.
    pub axes: Vec<AxisChoice>,
    /// How split dims are cut.
    pub split: Split,
    /// Fixes where the cuts are.
    pub seed: u64,
}

/// The layout a recipe stands for.
///
/// # Panics
/// If the recipe is for another number of axes or dims: generators that mix them up are mistakes in a test.
pub fn resolve(recipe: &Recipe, mesh: &DeviceMesh, shape: &[usize]) -> Layout {
    let mut rng = Rng::new(recipe.seed, &["recipe"]);
    match layout(mesh, shape, &recipe.axes, recipe.split, &mut rng) {
        Ok(layout) => layout,
        Err(error) => panic!("{recipe:?} does not fit {mesh:?} and {shape:?}: {error}"),
    }
}

/// A small whole number as a double, from a seed and a linear index: sums of them are exact.
pub fn integer(seed: u64, at: usize) -> f64 {
    let mut rng = Rng::new(seed ^ (at as u64).wrapping_mul(0x5851_f42d_4c95_7f2d), &[]);
    rng.below(19) as f64 - 9.0
}

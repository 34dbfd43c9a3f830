//! `proptest` strategies: meshes of one to three axes with size-1 axes, and layouts with uneven, empty and
//! prime-sized shards.

use crate::layouts::{AxisChoice, Split, choices, layout};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use shard_ops::testing::Rng;
use shard_spec::{DeviceMesh, Layout, strategies};
use std::sync::OnceLock;

pub use shard_spec::strategies::shape;

/// What properties draw, as far as a run says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draw {
    /// How many cases, in place of a property's own number.
    pub cases: Option<u32>,
    /// From which seed, in place of a random one.
    pub seed: Option<u64>,
    /// On how many ranks at most; these are processes.
    pub ranks: Option<usize>,
}

static DRAW: OnceLock<Draw> = OnceLock::new();

/// Says what properties draw from now on. Only the first call counts.
pub fn draw(what: Draw) {
    DRAW.get_or_init(|| what);
}

fn drawn() -> Draw {
    DRAW.get().copied().unwrap_or_default()
}

/// Whether a mesh of this shape has no more ranks than there are.
pub fn fits(mesh: &[usize]) -> bool {
    drawn()
        .ranks
        .is_none_or(|most| mesh.iter().product::<usize>() <= most)
}

/// Settings for property tests: so many cases, from a random seed, and a failure prints its smallest example; or what the run
/// [says](Draw). Processes that have failed cannot look for a smaller example.
pub fn config(cases: u32) -> ProptestConfig {
    let (draw, default) = (drawn(), ProptestConfig::default());
    ProptestConfig {
        cases: draw.cases.unwrap_or(cases),
        failure_persistence: None,
        rng_seed: draw.seed.map_or(default.rng_seed, RngSeed::Fixed),
        max_shrink_iters: match draw.ranks {
            Some(_) => 0,
            None => default.max_shrink_iters,
        },
        ..default
    }
}

/// Shapes of [meshes](strategies::mesh) of at most `ranks` ranks, if there are so many.
pub fn mesh_shape(ranks: usize) -> impl Strategy<Value = Vec<usize>> {
    let ranks = drawn().ranks.map_or(ranks, |most| ranks.min(most));
    strategies::mesh(ranks).prop_map(|mesh| mesh.shape().to_vec())
}

/// What a layout of a tensor of `ndim` dims on a mesh of `axes` axes does, apart from where the cuts are;
/// resolve it with [`resolve`]. Shrinks towards replication.
pub fn recipe(axes: usize, ndim: usize, sums: bool) -> impl Strategy<Value = Recipe> {
    let all = choices(ndim, sums);
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

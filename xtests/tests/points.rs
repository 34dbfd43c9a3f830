//! Neighbour search on random layouts: a ring, a gather and one rank agree bit for bit, gradients but for the rounding of sums.

use proptest::prelude::*;
use shard_autograd::Recorder;
use shard_ops::neighbors::{nearest, radius_search, radius_search_capped};
use shard_ops::{RingUse, Value};
use shard_spec::{DeviceMesh, Layout};
use xtests::arrays::tensor;
use xtests::case::Tensor;
use xtests::differentiate::{close, run};
use xtests::strategies::{Recipe, integer, mesh_shape, recipe, resolve};

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
        search: impl Fn(&Recorder, &Value, &Value, RingUse) -> Vec<Value> + Copy + Sync,
    ) {
        let with = |ring| move |tape: &Recorder, x: &[Value]| search(tape, &x[0], &x[1], ring);
        let one = DeviceMesh::new(&[1]).unwrap();
        let whole = self
            .inputs
            .iter()
            .map(|t| Layout::replicated(&one, &t.shape));
        let whole: Vec<Layout> = whole.collect();
        let expected = run(&one, &whole, &self.inputs, with(RingUse::Never));
        let results = expected.len() - 2;
        for ring in [RingUse::Always, RingUse::Never] {
            let found = run(&self.mesh, &self.layouts, &self.inputs, with(ring));
            assert_eq!(found[..results], expected[..results], "{ring:?}");
            close("gradients", &found[results..], &expected[results..]);
        }
    }
}

proptest! {
    #![proptest_config(xtests::strategies::config(200))]

    #[test]
    fn neighbours_are_one_ranks(scene in scene(1), k in 0..6_usize) {
        let k = k.min(scene.inputs[1].shape[0]);
        scene.holds(|tape, queries, points, ring| {
            let (distances, indices) = nearest(tape, queries, points, k, ring).unwrap();
            vec![distances, indices]
        });
    }

    /// From nobody but coinciding points to everybody.
    #[test]
    fn pairs_within_a_radius_are_one_ranks(scene in scene(0), squared in 0..14_u32) {
        let radius = f64::from(squared).sqrt();
        scene.holds(|tape, queries, points, ring| {
            let near = radius_search(tape, queries, points, radius, ring).unwrap();
            vec![near.distances, near.pairs, near.counts]
        });
    }

    #[test]
    fn tables_within_a_radius_are_one_ranks(scene in scene(0), squared in 0..14_u32, cap in 0..5_usize) {
        let radius = f64::from(squared).sqrt();
        scene.holds(|tape, queries, points, ring| {
            let near = radius_search_capped(tape, queries, points, radius, cap, ring).unwrap();
            // The cotangent of what is not there is infinite here, and must count for nothing.
            vec![near.distances, near.indices, near.counts]
        });
    }
}

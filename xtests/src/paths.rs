//! Tensors through random layouts.

use crate::case::{Data, Tensor};
use crate::strategies::{integer, mesh_shape, recipe, resolve, shape};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use shard_comm::DType;
use shard_ops::testing::{local_indices, place, tensor, whole};
use shard_redistribute::{CostModel, LinkCost, MeshComm, Plan, RedistributeError};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;

/// A tensor of whole numbers and the layouts it takes one after the other. The first may hold partial sums, the others
/// not.
#[derive(Clone, Debug)]
pub struct Path {
    /// The ranks.
    pub mesh: DeviceMesh,
    /// The numbers, as doubles, so that every comparison is exact.
    pub tensor: Tensor,
    /// At least one.
    pub layouts: Vec<Layout>,
}

/// Paths of `steps` steps on meshes of at most so many ranks.
pub fn path(ranks: usize, steps: usize) -> impl Strategy<Value = Path> {
    (mesh_shape(ranks), shape(3, 7)).prop_flat_map(move |(mesh, shape)| {
        let (axes, ndim) = (mesh.len(), shape.len());
        let first = recipe(axes, ndim, true);
        let others = vec(recipe(axes, ndim, false), steps);
        (first, others, any::<u64>()).prop_filter_map(
            "an empty mesh",
            move |(first, others, seed)| {
                let mesh = DeviceMesh::new(&mesh).ok()?;
                let recipes = std::iter::once(&first).chain(&others);
                let layouts = recipes.map(|r| resolve(r, &mesh, &shape)).collect();
                Some(Path {
                    tensor: tensor(&shape, |i| integer(seed, i)),
                    mesh,
                    layouts,
                })
            },
        )
    })
}

/// Paths that a seed fixes, the same wherever they are drawn.
pub fn paths(ranks: usize, steps: usize, seed: u64) -> impl Iterator<Item = Path> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::default(), rng);
    let paths = path(ranks, steps);
    std::iter::from_fn(move || Some(paths.new_tree(&mut runner).ok()?.current()))
}

impl Path {
    /// Takes the path on this rank: after every step, and directly from the first layout, and back there, the rank must
    /// hold its piece of the tensor, bit for bit. Gives what is wrong otherwise.
    ///
    /// # Collective
    /// All ranks of the mesh.
    ///
    /// # Errors
    /// What moving reports.
    pub fn walk(&self, cx: &Rc<MeshComm>) -> Result<Option<String>, RedistributeError> {
        let Some((first, steps)) = self.layouts.split_first() else {
            return Ok(None);
        };
        // Ranks go on after a wrong result: the others do not know of it.
        let mut wrong = None;
        let mut compare = |found: &[f64], expected: &[f64], what: String| {
            let same = found.len() == expected.len()
                && (found.iter().zip(expected)).all(|(a, b)| a.to_bits() == b.to_bits());
            if !same && wrong.is_none() {
                wrong = Some(format!("{what}: {found:?}, not {expected:?}"));
            }
        };
        let source = place(cx, first, &self.tensor, DType::F64)?;
        let mut at = source.clone();
        for to in steps {
            at = at.redistribute(to)?;
            let piece = self.piece(to, cx.rank());
            compare(&at.to_vec()?, &piece, format!("step to {to}"));
            let direct = source.redistribute(to)?;
            compare(&direct.to_vec()?, &piece, format!("{first} to {to}"));
            // Messages take an hour, so pieces pass through other ranks if that saves one.
            let model = CostModel::network(LinkCost::new(3600.0, 1e12)).with_at_once(0);
            let staged =
                Plan::staged(first, to, source.index(), DType::F64, &model)?.run(&source)?;
            compare(
                &staged.to_vec()?,
                &piece,
                format!("{first} to {to} in stages"),
            );
        }
        let back = first.with_partial_reduced();
        let home = at.redistribute(&back)?;
        let piece = self.piece(&back, cx.rank());
        compare(&home.to_vec()?, &piece, format!("back to {back}"));
        if let Data::F64(found) = &*whole(&source)?.data {
            compare(found, self.values(), format!("all of {first}"));
        }
        Ok(wrong)
    }

    fn values(&self) -> &[f64] {
        match &*self.tensor.data {
            Data::F64(values) => values,
            _ => &[],
        }
    }

    /// What a rank must hold in a layout without partial axes.
    fn piece(&self, layout: &Layout, rank: usize) -> Vec<f64> {
        let indices = local_indices(layout, rank).unwrap_or_default();
        indices.iter().map(|&i| self.values()[i]).collect()
    }
}

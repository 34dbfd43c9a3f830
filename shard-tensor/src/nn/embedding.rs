//! Tables of rows.

use super::Module;
use crate::{Mesh, Placements, Result, ShardTensor, tree};

/// The rows of a table that integers name, as `torch.nn.Embedding`. With the table's rows sharded, ranks ask each other for the rows
/// they need, and for those alone.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[rows, features]`, standard normal at first.
    pub weight: ShardTensor,
}

impl Embedding {
    /// A table of so many rows.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, rows: usize, features: usize) -> Result<Self> {
        let weight = mesh.randn([rows, features], Placements::replicated())?;
        Ok(Self {
            weight: weight.requires_grad()?,
        })
    }
}

tree!(Embedding { weight });

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.weight.embedding(x, None)
    }
}

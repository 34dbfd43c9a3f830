//! Tables of rows.

use super::Module;
use crate::{Error, Mesh, Placements, Result, ShardTensor, tree};
use shard_comm::{Calling, DType};

/// The rows of a table that integers name, as `torch.nn.Embedding`. With the table's rows sharded, ranks ask each other for the rows
/// they need, and for those alone.
#[derive(Clone, Debug)]
pub struct Embedding {
    padding: Option<usize>,
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
            padding: None,
            weight: weight.requires_grad()?,
        })
    }

    /// The table with this row of zeros, which gets no gradient and so stays: what stands for no token, `padding_idx` of PyTorch.
    ///
    /// ```
    /// use shard_tensor::{launch, nn::{Embedding, Module}, shard};
    /// let slopes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let table = Embedding::new(&mesh, 3, 2)?.padding(1)?;
    ///     let words = table.forward(&mesh.arange(3, shard(0))?.to(shard_tensor::DType::I64)?)?;
    ///     assert_eq!(words.narrow(0, 1..2)?.square()?.sum_all()?.item()?, 0.0);
    ///     let slope = words.sum_all()?.backward()?.get(&table.weight)?.expect("it depends on it");
    ///     slope.to_array::<f32>()
    /// })?;
    /// assert_eq!(slopes[0].as_slice(), Some(&[1.0, 1.0, 0.0, 0.0, 1.0, 1.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the table's mesh, with the same row. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for what is no row.
    #[track_caller]
    pub fn padding(self, row: usize) -> Result<Self> {
        let _call = Calling::of("padding");
        let rows = self.weight.shape().first().copied().unwrap_or_default();
        if row >= rows {
            return Err(Error::argument(
                "Embedding",
                format!("a row of {rows}"),
                row.to_string(),
                "count rows from 0",
            ));
        }
        let (mesh, whole) = (self.weight.mesh(), self.weight.detach());
        let rows = mesh
            .with_dtype(DType::I64)
            .arange(rows, Placements::replicated())?;
        let kept = rows.ne_scalar(row as f64)?.to(whole.dtype())?;
        let masked = whole.mul(&kept.unsqueeze(1)?)?;
        let masked = masked.redistribute(self.weight.layout())?;
        self.weight.set(&masked)?;
        let padding = Some(row);
        Ok(Self { padding, ..self })
    }
}

tree!(Embedding { weight });

impl Module for Embedding {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.weight.embedding(x, self.padding)
    }
}

//! Tables of rows.

use super::Module;
use crate::{BagReduce, Error, Mesh, Placements, Result, ShardTensor, tree};
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

/// The rows of a table that bags of integers name, combined, as `torch.nn.EmbeddingBag`: see [`ShardTensor::embedding_bag`].
///
/// ```
/// use shard_tensor::nn::{EmbeddingBag, Module};
/// use shard_tensor::{BagReduce, launch, ndarray::array, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let table = EmbeddingBag::new(&mesh, 9, 4, BagReduce::Mean)?;
///     let (words, begins) = (array![3_i64, 8, 1, 1, 0], array![0_i64, 2]);
///     let [words, begins] = [words, begins].map(|list| mesh.distribute(&list, shard(0)));
///     let (words, begins) = (words?, begins?);
///     let texts = table.combine(&words, &begins)?;
///     assert_eq!(texts.shape(), [2, 4]);
///     let first = table.forward(&words.narrow(0, 0..2)?.unsqueeze(0)?)?;
///     assert!(first.allclose(&texts.narrow(0, 0..1)?, 1e-5, 1e-6, false)?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EmbeddingBag {
    how: BagReduce,
    padding: Option<usize>,
    /// `[rows, features]`, standard normal at first.
    pub weight: ShardTensor,
}

impl EmbeddingBag {
    /// A table of so many rows, of which each bag gives one.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, rows: usize, features: usize, how: BagReduce) -> Result<Self> {
        let weight = Embedding::new(mesh, rows, features)?.weight;
        Ok(Self {
            how,
            padding: None,
            weight,
        })
    }

    /// The table with this row of zeros, which counts as none and gets no gradient.
    ///
    /// # Collective
    /// As [`Embedding::padding`].
    ///
    /// # Errors
    /// As [`Embedding::padding`].
    #[track_caller]
    pub fn padding(self, row: usize) -> Result<Self> {
        let table = Embedding {
            padding: None,
            weight: self.weight,
        };
        let table = table.padding(row)?;
        Ok(Self {
            how: self.how,
            padding: table.padding,
            weight: table.weight,
        })
    }

    /// What bags give that are parts of a list, each of which begins where its offset says: `[bags, features]`.
    ///
    /// # Collective
    /// As [`ShardTensor::embedding_bag`].
    ///
    /// # Errors
    /// As [`ShardTensor::embedding_bag`].
    #[track_caller]
    pub fn combine(&self, indices: &ShardTensor, offsets: &ShardTensor) -> Result<ShardTensor> {
        (self.weight).embedding_bag(indices, Some(offsets), self.how, None, self.padding)
    }
}

tree!(EmbeddingBag { weight });

/// Of bags that are rows of indices, `[bags, length]`.
impl Module for EmbeddingBag {
    #[track_caller]
    fn forward(&self, indices: &ShardTensor) -> Result<ShardTensor> {
        (self.weight).embedding_bag(indices, None, self.how, None, self.padding)
    }
}

//! Tables of rows.

use super::Module;
use crate::{BagReduce, Error, Mesh, NormOrder, Placements, Result, ShardTensor, tree};
use shard_comm::{Calling, DType};

/// The rows of a table that integers name, as `torch.nn.Embedding`. With the table's rows sharded, ranks ask each other for the rows
/// they need, and for those alone.
#[derive(Clone, Debug)]
pub struct Embedding {
    padding: Option<usize>,
    longest: Option<Longest>,
    shares: bool,
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
            longest: None,
            shares: false,
            weight: weight.requires_grad()?,
        })
    }

    /// The table whose rows, each time they are named, are first shortened to a norm of `most`, where that of this order is above it: `max_norm` and
    /// `norm_type` of PyTorch. The parameter itself is [set](ShardTensor::set), and no gradient sees of it. Each call reads and writes the whole table.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, nn::{Embedding, Module}, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let table = Embedding::new(&mesh, 4, 2)?.max_norm(2.0, 1.0);
    ///     table.weight.set(&mesh.full([4, 2], 3.0, replicate())?)?;
    ///     let words = table.forward(&mesh.distribute(&array![2_i64, 0], shard(0))?)?;
    ///     assert!((words.norm(2.0, -1, false)?.amax(.., false)?.item()? - 1.0).abs() < 1e-5);
    ///     assert_eq!(table.weight.select(0, 1)?.to_array::<f32>()?, array![3.0, 3.0].into_dyn()); // not named
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn max_norm(self, order: impl Into<NormOrder>, most: f64) -> Self {
        let longest = Some(Longest::new(order, most));
        Self { longest, ..self }
    }

    /// The table whose rows each get the mean of the gradients at the places that name them, and not their sum: `scale_grad_by_freq` of PyTorch.
    /// How often a row is named is counted in all of the call's indices, on all ranks.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, nn::{Embedding, Module}, shard};
    /// let slopes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let table = Embedding::new(&mesh, 3, 1)?.scale_grad_by_freq();
    ///     let words = table.forward(&mesh.distribute(&array![2_i64, 0, 2, 2], shard(0))?)?;
    ///     let slopes = mesh.arange(4, shard(0))?.mul_scalar(3.0)?;
    ///     let loss = words.flatten()?.dot(&slopes)?;
    ///     loss.grad1(&table.weight, false)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(slopes[0].as_slice(), Some(&[3.0, 0.0, (0.0 + 6.0 + 9.0) / 3.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn scale_grad_by_freq(self) -> Self {
        Self {
            shares: true,
            ..self
        }
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
        let _call = Calling::throughout("Embedding");
        if let Some(longest) = &self.longest {
            longest.shorten(&self.weight, x)?;
        }
        let rows = self.weight.embedding(x, self.padding)?;
        if self.shares && rows.is_tracked() {
            let often = counts(&self.weight, x)?.to(DType::F64)?;
            let often = often.embedding(x, None)?.unsqueeze(-1)?;
            divide_gradient(&rows, often)?;
        }
        Ok(rows)
    }
}

/// Divides the gradient of a value by `f64` numbers that broadcast with it.
#[track_caller]
fn divide_gradient(of: &ShardTensor, by: ShardTensor) -> Result<()> {
    of.on_gradient(move |slope| {
        let wide = match slope.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let share = slope.to(wide)?.div(&by.to(wide)?)?;
        Ok(Some(share.to(slope.dtype())?))
    })?;
    Ok(())
}

/// How often indices name each row of a table.
#[track_caller]
fn counts(table: &ShardTensor, indices: &ShardTensor) -> Result<ShardTensor> {
    let rows = table.shape().first().copied().unwrap_or_default();
    indices.detach().flatten()?.bincount_within(None, rows)
}

/// How long rows may be.
#[derive(Clone, Copy, Debug)]
struct Longest {
    order: NormOrder,
    most: f64,
}

impl Longest {
    fn new(order: impl Into<NormOrder>, most: f64) -> Self {
        let order = order.into();
        Self { order, most }
    }

    /// Shortens the rows of a table that indices name.
    #[track_caller]
    fn shorten(&self, table: &ShardTensor, indices: &ShardTensor) -> Result<()> {
        let named = counts(table, indices)?.gt_scalar(0.0)?;
        let whole = table.detach();
        let short = whole.renorm(self.order, 0, self.most)?;
        let fitting = named.unsqueeze(-1)?.where_(&short, &whole)?;
        table.set(&fitting.redistribute(table.layout())?)
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
    longest: Option<Longest>,
    shares: bool,
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
            longest: None,
            shares: false,
            weight,
        })
    }

    /// As [`Embedding::max_norm`].
    #[must_use]
    pub fn max_norm(self, order: impl Into<NormOrder>, most: f64) -> Self {
        let longest = Some(Longest::new(order, most));
        Self { longest, ..self }
    }

    /// The table whose rows each get the gradients of the places that name them divided by how many these are in all bags of a call:
    /// `scale_grad_by_freq` of PyTorch.
    #[must_use]
    pub fn scale_grad_by_freq(self) -> Self {
        Self {
            shares: true,
            ..self
        }
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
            longest: None,
            shares: false,
            weight: self.weight,
        };
        let table = table.padding(row)?;
        Ok(Self {
            padding: table.padding,
            weight: table.weight,
            ..self
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
        self.of(indices, Some(offsets))
    }

    #[track_caller]
    fn of(&self, indices: &ShardTensor, offsets: Option<&ShardTensor>) -> Result<ShardTensor> {
        let _call = Calling::throughout("EmbeddingBag");
        if let Some(longest) = &self.longest {
            longest.shorten(&self.weight, indices)?;
        }
        let mut table = self.weight.clone();
        if self.shares && table.is_tracked() {
            // A value of its own for the hook, which is not to see what else uses the table.
            table = table.unsqueeze(0)?.squeeze(0)?;
            let often = counts(&table, indices)?.to(DType::F64)?;
            divide_gradient(&table, often.clamp_min(1.0)?.unsqueeze(-1)?)?;
        }
        table.embedding_bag(indices, offsets, self.how, None, self.padding)
    }
}

tree!(EmbeddingBag { weight });

/// Of bags that are rows of indices, `[bags, length]`.
impl Module for EmbeddingBag {
    #[track_caller]
    fn forward(&self, indices: &ShardTensor) -> Result<ShardTensor> {
        self.of(indices, None)
    }
}

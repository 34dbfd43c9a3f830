//! The loss of logits that are never whole.

use super::losses::ClassLoss;
use crate::{DType, Error, LossReduction, Result, ShardTensor};
use ndarray::SliceInfoElem;
use shard_comm::Calling;
use shard_ops::loss::IGNORED;

/// Pieces have no fewer logits on a rank: smaller ones take longer than the memory is worth.
const LEAST: usize = 1 << 16;

impl ShardTensor {
    /// The [cross entropy](Self::cross_entropy) of the logits `x wᵀ + b` of rows `[.., features]`, with a weight `[classes, features]`, as
    /// `torch.nn.functional.linear_cross_entropy`: for classes that are so many that logits of all rows take more memory than all else.
    /// Targets are integers `[..]`, or distributions `[.., classes]`.
    ///
    /// Logits are made of some of each rank's rows at a time, and made again for the gradient: one product more with the weight. Of those rows
    /// there are about as many logits as all rows have features.
    ///
    /// ```
    /// use shard_tensor::{ClassLoss, launch, replicate, shard};
    /// let losses = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let hidden = mesh.randn([2, 64, 16], shard(1))?; // [batch, tokens, features]
    ///     let weight = mesh.randn([4096, 16], replicate())?.requires_grad()?;
    ///     let next = mesh.randint([2, 64], 0..4096, shard(1))?;
    ///     let loss = hidden.linear_cross_entropy(&weight, None, &next, &ClassLoss::new())?;
    ///     assert_eq!(loss.grad1(&weight, false)?.shape(), [4096, 16]);
    ///     let whole = hidden.linear(&weight, None)?.movedim(-1, 1)?;
    ///     Ok(loss.item()? - whole.cross_entropy(&next, &ClassLoss::new())?.item()?)
    /// })?;
    /// assert!(losses[0].abs() < 1e-4);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. As [`linear`](Self::linear) and [`cross_entropy`](Self::cross_entropy) for each piece; rows stay where they
    /// are. A weight that is gathered for its uses is gathered once.
    ///
    /// # Errors
    /// As [`linear`](Self::linear) and [`cross_entropy`](Self::cross_entropy); [`Argument`](Error::Argument) for targets of other rows.
    #[track_caller]
    pub fn linear_cross_entropy(
        &self,
        weight: &Self,
        bias: Option<&Self>,
        target: &Self,
        options: &ClassLoss,
    ) -> Result<Self> {
        let _call = Calling::throughout("linear_cross_entropy");
        self.check_rows(target)?;
        let weight = weight.in_use()?;
        let (dim, pieces) = self.pieces_for(&weight);
        let reduction = options.reduction;
        let of_piece = match reduction {
            LossReduction::None => LossReduction::None,
            _ => LossReduction::Sum,
        };
        let part = options.clone().reduction(of_piece);
        let loss = |x: &Self, target: Self| {
            let (weight, bias, part) = (weight.clone(), bias.cloned(), part.clone());
            let f = move |x: &Self| of_rows(x, &weight, bias.as_ref(), &target, &part);
            match pieces {
                1 => f(x),
                _ => self.context().recompute1(x, f),
            }
        };
        let every = |x: &Self, k: usize| match pieces {
            1 => Ok(x.clone()),
            _ => x.slices(each(x.ndim(), dim, k, pieces)),
        };
        let losses = (0..pieces).map(|k| loss(&every(self, k)?, every(target, k)?));
        let losses = losses.collect::<Result<Vec<_>>>()?;
        let found = match reduction {
            LossReduction::None => self.of_each_row(losses, dim)?,
            _ => {
                let mut losses = losses.into_iter();
                let first = losses.next().map_or_else(|| self.number(0.0), Ok)?;
                losses.try_fold(first, |sum, loss| sum.add(&loss))?
            }
        };
        let found = match reduction {
            LossReduction::Mean => found.div(&self.rows_that_count(target, options)?)?,
            _ => found,
        };
        found.to(self.dtype())
    }

    /// Refuses targets of other rows.
    #[track_caller]
    fn check_rows(&self, target: &Self) -> Result<()> {
        let Some((_, rows)) = self.shape().split_last() else {
            return Ok(()); // `linear` refuses it.
        };
        let of_target = match target.dtype().is_float() {
            true => target.shape().split_last().map(|(_, rows)| rows),
            false => Some(target.shape()),
        };
        match of_target == Some(rows) {
            true => Ok(()),
            false => Err(Error::argument(
                "linear_cross_entropy",
                format!("a class, or a distribution of classes, for each of rows {rows:?}"),
                format!("targets {:?} of {}", target.shape(), target.dtype()),
                "give integers of the shape without features, or floats with classes in their place",
            )),
        }
    }

    /// The dim of which ranks have the most indices, and into how many pieces rows are cut along it. All ranks find the same.
    fn pieces_for(&self, weight: &Self) -> (usize, usize) {
        let held = |of: &Self, dim: usize| match of.layout().sharding(dim) {
            Some(sharding) => sharding.partition.sizes().max().unwrap_or(0),
            None => of.shape()[dim],
        };
        let rows = self.ndim().saturating_sub(1);
        let each = (0..rows).map(|dim| (held(self, dim), dim));
        let Some((most, dim)) = each.max_by_key(|&(held, dim)| (held, rows - dim)) else {
            return (0, 1);
        };
        let (features, classes) = match *weight.shape() {
            [_, features] => (features.max(1), held(weight, 0)),
            _ => return (0, 1), // `linear` refuses it.
        };
        let logits = (0..rows).fold(classes, |all, dim| all.saturating_mul(held(self, dim)));
        let pieces = classes.div_ceil(features).min(logits / LEAST).min(most);
        (dim, pieces.max(1))
    }

    /// The losses of each row, of which every piece has some.
    #[track_caller]
    fn of_each_row(&self, mut losses: Vec<Self>, dim: usize) -> Result<Self> {
        let pieces = losses.len();
        if pieces == 1 {
            return Ok(losses.remove(0));
        }
        let rows = self.detach().select(-1, 0)?.to(DType::F32)?;
        let mut all = rows.to(losses[0].dtype())?.zeros_like()?;
        for (k, loss) in losses.iter().enumerate() {
            all = all.slices_assign(each(all.ndim(), dim, k, pieces), loss)?;
        }
        Ok(all)
    }

    /// How many rows count, each with the weight of its class.
    #[track_caller]
    fn rows_that_count(&self, target: &Self, options: &ClassLoss) -> Result<Self> {
        let dtype = full(self.dtype());
        if target.dtype().is_float() {
            let (_, rows) = target.shape().split_last().unwrap_or((&1, &[]));
            return self
                .number(rows.iter().product::<usize>() as f64)?
                .to(dtype);
        }
        let counts = target.ne_scalar(options.ignore.unwrap_or(IGNORED) as f64)?;
        let weights = match &options.weight {
            None => counts.to(dtype)?,
            Some(weight) => {
                let class = target.masked_fill(&counts.logical_not()?, 0.0)?.flatten()?;
                let weights = weight.to(dtype)?.index_select(0, &class)?;
                weights.mul(&counts.flatten()?.to(dtype)?)?
            }
        };
        weights.sum_all()
    }
}

/// The type that losses of a type are summed in.
fn full(dtype: DType) -> DType {
    match dtype.is_half() {
        true => DType::F32,
        false => dtype,
    }
}

/// Every so many-th index of a dim, from the `k`-th on: some of each rank's.
fn each(ndim: usize, dim: usize, k: usize, step: usize) -> Vec<SliceInfoElem> {
    let mut of = vec![SliceInfoElem::from(..); ndim];
    of[dim] = SliceInfoElem::Slice {
        start: k as isize,
        end: None,
        step: step as isize,
    };
    of
}

/// The loss of some rows.
#[track_caller]
fn of_rows(
    x: &ShardTensor,
    weight: &ShardTensor,
    bias: Option<&ShardTensor>,
    target: &ShardTensor,
    options: &ClassLoss,
) -> Result<ShardTensor> {
    let classes_second = |of: &ShardTensor| match of.ndim() {
        0..=2 => Ok(of.clone()),
        _ => of.movedim(-1, 1),
    };
    let logits = classes_second(&x.linear(weight, bias)?)?;
    let target = match target.dtype().is_float() {
        true => classes_second(target)?.to(full(logits.dtype()))?,
        false => target.clone(),
    };
    // Sums of terms of 16 bits would lose what they have.
    logits
        .to(full(logits.dtype()))?
        .cross_entropy(&target, options)
}

//! Slopes along a dim, by finite differences.

use super::fine;
use crate::{Dim, Error, Fused, Placement, Result, ShardTensor};
use shard_comm::Calling;
use std::ops::Range;
use std::sync::LazyLock;

/// Slopes along a dim, by finite differences.
impl ShardTensor {
    /// The slopes along a dim of what is known at places that are `dx` apart, as `torch.gradient` and NumPy's of one dim: central differences,
    /// and at both ends one-sided ones, of two places (`edge_order` 1) or of three (2).
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let slopes = launch(3, |ctx| {
    ///     let squares = ctx.mesh_of(3)?.arange(5, shard(0))?.square()?;
    ///     Ok([1, 2].map(|edge_order| squares.gradient(1.0, 0, edge_order)?.to_array::<f32>()))
    /// })?;
    /// let [rough, fine] = slopes[0].clone();
    /// assert_eq!(rough?, ndarray::arr1(&[1.0, 2.0, 4.0, 6.0, 7.0]).into_dyn());
    /// assert_eq!(fine?, ndarray::arr1(&[0.0, 2.0, 4.0, 6.0, 8.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where the dim is sharded, a few rows on either side of each boundary move, and the result lies as this tensor
    /// does; nothing moves otherwise. A partial sum stays one.
    ///
    /// # Errors
    /// For a dim out of range or of fewer places than `edge_order + 1`, another order, integers and truth values; what the communicator
    /// reports.
    #[track_caller]
    pub fn gradient(&self, dx: f64, dim: impl Into<Dim>, edge_order: usize) -> Result<Self> {
        const OP: &str = "gradient";
        let _call = Calling::throughout(OP);
        let dim = self.dim(OP, dim)?;
        self.slopes(OP, dim, edge_order, |x| evenly(x, dx, dim, edge_order))
    }

    /// As [`gradient`](Self::gradient), with the places: a list of as many as the dim has, whose neighbours differ.
    ///
    /// ```
    /// use shard_tensor::{launch, ndarray::array, shard};
    /// let slopes = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.distribute(&array![0.0_f32, 1.0, 3.0, 4.0], shard(0))?;
    ///     x.square()?.gradient_at(&x, 0, 2)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(slopes[0], array![0.0, 2.0, 6.0, 8.0].into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`gradient`](Self::gradient); communicates to align misaligned operands.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient); for places that are no such list, and types that differ.
    #[track_caller]
    pub fn gradient_at(&self, x: &Self, dim: impl Into<Dim>, edge_order: usize) -> Result<Self> {
        const OP: &str = "gradient_at";
        let _call = Calling::throughout(OP);
        let dim = self.dim(OP, dim)?;
        let places = self.places(OP, dim)?;
        if x.shape() != [places] || x.dtype() != self.dtype() {
            return Err(Error::argument(
                OP,
                format!("a list of {places} places in {}", self.dtype()),
                format!("shape {:?} in {}", x.shape(), x.dtype()),
                "give the place of each index of the dim",
            ));
        }
        let widths = x.to(fine(x.dtype()))?.diff(1, 0)?;
        let mut shape = vec![1; self.ndim() - dim];
        shape[0] = widths.numel();
        let widths = widths.reshape(shape)?;
        self.slopes(OP, dim, edge_order, |x| {
            unevenly(x, &widths, dim, edge_order)
        })
    }

    /// How many places a dim has.
    #[track_caller]
    fn places(&self, op: &'static str, dim: usize) -> Result<usize> {
        self.shape().get(dim).copied().ok_or_else(|| {
            Error::argument(
                op,
                format!("a dim of {}", self.ndim()),
                format!("dim {dim}"),
                "count dims from 0, or from the end with -1 for the last",
            )
        })
    }

    #[track_caller]
    fn slopes(
        &self,
        op: &'static str,
        dim: usize,
        edge_order: usize,
        of: impl FnOnce(&Self) -> Result<Self>,
    ) -> Result<Self> {
        let n = self.places(op, dim)?;
        if !self.dtype().is_float() || !(1..=2).contains(&edge_order) || n <= edge_order {
            return Err(Error::argument(
                op,
                "floats, an edge order of 1 or 2, and a place more than that along the dim",
                format!("{n} places of {}, and order {edge_order}", self.dtype()),
                "of two places there is order 1; integers are converted with `to`",
            ));
        }
        let found = of(&self.to(fine(self.dtype()))?)?.to(self.dtype())?;
        let partial = |placement: &Placement| matches!(placement, Placement::Partial(_));
        match found.layout() == self.layout() || self.placements().iter().any(partial) {
            true => Ok(found),
            false => found.redistribute(self.layout()),
        }
    }
}

/// Slopes at places that are `width` apart: what lies on either side, whatever the place itself has, and at the ends those between the last two or
/// three.
#[track_caller]
fn evenly(x: &ShardTensor, width: f64, dim: usize, edge_order: usize) -> Result<ShardTensor> {
    let last = x.shape()[dim] - 1;
    let between = |from: usize| {
        x.narrow(dim, from..from + 2)?
            .diff(1, dim)?
            .div_scalar(width)
    };
    let end = |at: usize, before: usize| match edge_order {
        1 => between(at),
        _ => between(at)?
            .mul_scalar(1.5)?
            .add_scaled(&between(before)?, -0.5),
    };
    let (before, behind) = (x.narrow(dim, ..last - 1)?, x.narrow(dim, 2..)?);
    let middle = behind.sub(&before)?.div_scalar(2.0 * width)?;
    let ends = [end(0, 1)?, end(last - 1, last.saturating_sub(2))?];
    ShardTensor::cat(&[&ends[0], &middle, &ends[1]], dim)
}

/// Slopes at places of which each two neighbours are a width apart, which broadcasts along the dims before: means of those between neighbours by the
/// widths on the other side, and what is there at the ends.
#[track_caller]
fn unevenly(
    x: &ShardTensor,
    widths: &ShardTensor,
    dim: usize,
    edge_order: usize,
) -> Result<ShardTensor> {
    static MEAN: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
        Fused::new("gradient", |[left, right, left_width, right_width]| {
            [(left_width * right + right_width * left) / (left_width + right_width)]
        })
    });
    static END: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
        Fused::new("gradient_at_end", |[last, before, width, width_before]| {
            [last + width * (last - before) / (width + width_before)]
        })
    });
    let between = x.diff(1, dim)?.div(widths)?;
    let last = between.shape()[dim] - 1;
    // Counted from the last dim, as widths have no dims before theirs.
    let along = dim as isize - x.ndim() as isize;
    let mixed = |formula: &Fused<4, 1>, a: Range<usize>, b: Range<usize>| {
        let of = |at: &Range<usize>| between.narrow(dim, at.clone());
        let width = |at: &Range<usize>| widths.narrow(along, at.clone());
        let [found] = formula.of([&of(&a)?, &of(&b)?, &width(&a)?, &width(&b)?])?;
        Ok(found)
    };
    let end = |at: usize, before: usize| match edge_order {
        1 => between.narrow(dim, at..at + 1),
        _ => mixed(&END, at..at + 1, before..before + 1),
    };
    let middle = mixed(&MEAN, 0..last, 1..last + 1)?;
    let ends = [end(0, 1)?, end(last, last.saturating_sub(1))?];
    ShardTensor::cat(&[&ends[0], &middle, &ends[1]], dim)
}

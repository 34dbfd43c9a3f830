//! Correlations that are drawn.

use super::{Batch, Beta, Distribution, fine};
use crate::{EdgeMap, Error, Placements, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::PI;

/// Triangles of matrices of correlations, whose density goes with a power of the determinant (Lewandowski, Kurowicka and Joe, 2009), as
/// `torch.distributions.LKJCholesky`: with a concentration of 1 all such matrices are as likely. No closed form gives its entropy and its moments.
#[derive(Clone, Debug)]
pub struct LkjCholesky {
    concentration: Batch<1>,
    event: [usize; 2],
}

impl LkjCholesky {
    /// Of matrices of so many rows, 2 at least, and concentrations above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for fewer rows, and for concentrations that are no floats.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, LkjCholesky};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let even = LkjCholesky::new(3, &ctx.mesh_of(2)?.ones([5], shard(0))?)?;
    ///     let triangle = even.sample([4])?;
    ///     assert_eq!((triangle.shape(), even.log_prob(&triangle)?.shape()), (&[4, 5, 3, 3][..], &[4, 5][..]));
    ///     let rows = triangle.square()?.sum(-1, false)?;
    ///     assert!(rows.allclose(&rows.ones_like()?, 1e-5, 1e-5, false)?);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new(dim: usize, concentration: &ShardTensor) -> Result<Self> {
        const OP: &str = "LkjCholesky::new";
        let _call = Calling::of(OP);
        if dim < 2 {
            return Err(Error::argument(
                OP,
                "two rows or more",
                dim.to_string(),
                "a number has no correlation but with another",
            ));
        }
        Ok(Self {
            concentration: Batch::new("LkjCholesky", [concentration.clone()])?,
            event: [dim; 2],
        })
    }

    /// The concentrations.
    pub fn concentration(&self) -> &ShardTensor {
        &self.concentration.of[0]
    }

    /// The numbers of the rows from `first` on.
    #[track_caller]
    fn rows(&self, first: usize) -> Result<ShardTensor> {
        let mesh = self
            .concentration()
            .mesh()
            .with_dtype(self.concentration().dtype());
        let rows = mesh.arange(self.event[0] - first, Placements::replicated())?;
        rows.add_scalar(first as f64)
    }
}

impl Distribution for LkjCholesky {
    fn batch_shape(&self) -> &[usize] {
        &self.concentration.batch
    }

    fn event_shape(&self) -> &[usize] {
        &self.event
    }

    /// By the onion: of each row how long it is below the diagonal, and where it points. All correlations have the variance that they are to have,
    /// `1 / (2 concentration + n - 1)` of `n` rows; in PyTorch 2.15 those of rows behind the second have a larger one.
    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::throughout("LkjCholesky::sample");
        let dtype = self.concentration().dtype();
        let wide = fine(dtype);
        let concentration = self.concentration().detach().to(wide)?.unsqueeze(-1)?;
        // Row `i` has as many numbers below the diagonal, and the squares of those sum to a share of 1.
        let half = self.rows(1)?.to(wide)?.mul_scalar(0.5)?;
        let rest = concentration
            .add_scalar(0.5 * (self.event[0] - 1) as f64)?
            .sub(&half)?;
        let share = Beta::new(&half, &rest)?.sample(shape)?;
        let whole = [share.shape(), &[self.event[0] - 1]].concat();
        let lengths = share.sqrt()?.unsqueeze(-1)?;
        let normal = lengths.expand(whole)?.randn_like()?.tril(0)?;
        let below = normal.normalize(2.0, -1, 0.0)?.mul(&lengths)?;
        let own = share
            .rsub_scalar(1.0)?
            .clamp_min(f64::from(f32::MIN_POSITIVE))?
            .sqrt()?;
        let padded = |x: &ShardTensor, last: [(isize, isize); 2], value| {
            let mut pads = vec![(0, 0); x.ndim()];
            pads.extend(last);
            x.pad(&pads[2..], EdgeMap::Zeros, value)
        };
        let below = padded(&below, [(1, 0), (0, 1)], 0.0)?;
        let own = padded(&own, [(0, 0), (1, 0)], 1.0)?.diag_embed(0, -2, -1)?;
        below.add(&own)?.to(dtype)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout("LkjCholesky::log_prob");
        let n = self.event[0] as f64;
        let concentration = self.concentration().unsqueeze(-1)?;
        let orders = concentration.mul_scalar(2.0)?.sub(&self.rows(1)?)?;
        let orders = orders.add_scalar(n - 3.0)?;
        let own = value.diagonal(0, -2, -1)?.narrow(-1, 1..)?;
        let powers = orders.mul(&own.log()?)?.sum(-1, false)?;
        // What the densities of all come to (page 1999 of the paper).
        let alpha = self.concentration().add_scalar(0.5 * (n - 1.0))?;
        let steps = self.rows(1)?.mul_scalar(-0.5)?.add(&alpha.unsqueeze(-1)?)?;
        let gammas = steps.lgamma()?.sum(-1, false)?;
        let whole = gammas.add_scaled(&alpha.lgamma()?, 1.0 - n)?;
        powers.sub(&whole.add_scalar(0.25 * n * (n - 1.0) * PI.ln())?)
    }
}

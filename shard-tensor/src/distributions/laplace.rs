//! Numbers whose distances from their mean are exponential.

use super::{Batch, Distribution, Divergence, Reparametrized, open_uniform, pair};
use crate::{Branch, Fused, Result, Shape, ShardTensor};
use shard_comm::Calling;
use std::f64::consts::LN_2;
use std::sync::LazyLock;

/// Numbers on both sides of `loc`, at exponential distances of mean `scale`, as `torch.distributions.Laplace`.
#[derive(Clone, Debug)]
pub struct Laplace(Batch<2>);

impl Laplace {
    /// Of means `loc` and mean distances `scale`, a tensor or a number, which are above 0.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// Shapes that do not broadcast.
    ///
    /// ```
    /// use shard_tensor::distributions::{Distribution, Laplace};
    /// use shard_tensor::{launch, shard};
    /// let found = launch(2, |ctx| {
    ///     let laplace = Laplace::new(&ctx.mesh_of(2)?.zeros([3], shard(0))?, 2.0)?;
    ///     laplace.variance()?.to_array::<f32>()
    /// })?;
    /// assert_eq!(found[0].as_slice(), Some(&[8.0; 3][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn new<'a>(loc: &ShardTensor, scale: impl Into<Branch<'a>>) -> Result<Self> {
        let _call = Calling::of("Laplace::new");
        Ok(Self(Batch::new("Laplace", pair(loc, scale)?)?))
    }

    /// The means.
    pub fn loc(&self) -> &ShardTensor {
        &self.0.of[0]
    }

    /// The mean distances from them.
    pub fn scale(&self) -> &ShardTensor {
        &self.0.of[1]
    }
}

impl Distribution for Laplace {
    fn batch_shape(&self) -> &[usize] {
        &self.0.batch
    }

    #[track_caller]
    fn sample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("Laplace::sample");
        Self(self.0.detached()).rsample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: &ShardTensor) -> Result<ShardTensor> {
        static LOG_PROB: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("laplace_log_prob", |[x, loc, scale]| {
                [(x - loc).abs() / -scale - scale.log() - LN_2]
            })
        });
        let _call = Calling::of("Laplace::log_prob");
        let [found] = LOG_PROB.of([value, self.loc(), self.scale()])?;
        Ok(found)
    }

    #[track_caller]
    fn entropy(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Laplace::entropy");
        self.0.filled(&self.scale().log()?.add_scalar(1.0 + LN_2)?)
    }

    #[track_caller]
    fn mean(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Laplace::mean");
        self.0.filled(self.loc())
    }

    #[track_caller]
    fn variance(&self) -> Result<ShardTensor> {
        let _call = Calling::of("Laplace::variance");
        self.0.filled(&self.scale().square()?.mul_scalar(2.0)?)
    }
}

impl Reparametrized for Laplace {
    #[track_caller]
    fn rsample(&self, shape: impl Into<Shape>) -> Result<ShardTensor> {
        // Of a number in -1 .. 1, the side by its sign; the distance is finite, as its size is below 1.
        static SAMPLE: LazyLock<Fused<3, 1>> = LazyLock::new(|| {
            Fused::new("laplace_sample", |[loc, scale, u]| {
                let side = u.below(0.0, u, -u);
                let distance = side.log1p();
                [loc + scale * u.below(0.0, distance, -distance)]
            })
        });
        let _call = Calling::of("Laplace::rsample");
        let (largest, dtype) = (self.0.largest(&shape.into())?, self.loc().dtype());
        let u = open_uniform(&largest)?;
        let wide = u.dtype();
        let u = u.mul_scalar(2.0)?.sub_scalar(1.0)?;
        let [loc, scale] = self.0.each().map(|of| of.to(wide));
        let [found] = SAMPLE.of([&loc?, &scale?, &u])?;
        found.to(dtype)
    }
}

impl Divergence for Laplace {
    #[track_caller]
    fn kl_divergence(&self, other: &Self) -> Result<ShardTensor> {
        static DIVERGENCE: LazyLock<Fused<4, 1>> = LazyLock::new(|| {
            Fused::new(
                "laplace_kl_divergence",
                |[p_loc, p_scale, q_loc, q_scale]| {
                    let (ratio, apart) = (p_scale / q_scale, (p_loc - q_loc).abs());
                    let near = ratio * (apart / -p_scale).exp();
                    [apart / q_scale + near - 1.0 - ratio.log()]
                },
            )
        });
        let [found] = DIVERGENCE.of([self.loc(), self.scale(), other.loc(), other.scale()])?;
        Ok(found)
    }
}

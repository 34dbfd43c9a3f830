//! Tensors that are like another one.

use crate::{Placements, Result, ShardTensor};
use shard_comm::{Calling, Scalar};

/// Tensors of this one's shape, type and layout, with other elements. Of a partial tensor, whose ranks hold terms of a sum, they have
/// copies in their place. They are no parameters, and know nothing of this one's history.
impl ShardTensor {
    /// Zeros.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.randn([5, 3], shard(0).sizes([4, 1]))?;
    ///     let noise = x.randn_like()?; // the same numbers as of another layout
    ///     noise.expect_layout(x.layout())?;
    ///     assert_eq!(x.zeros_like()?.sum_all()?.item()?, 0.0);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of its mesh. No communication.
    ///
    /// # Errors
    /// What the device reports.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Self> {
        let _call = Calling::of("zeros_like");
        self.mesh().zeros(self.shape(), self.like())
    }

    /// Ones.
    ///
    /// # Collective
    /// As [`zeros_like`](Self::zeros_like).
    ///
    /// # Errors
    /// As [`zeros_like`](Self::zeros_like).
    #[track_caller]
    pub fn ones_like(&self) -> Result<Self> {
        let _call = Calling::of("ones_like");
        self.mesh().ones(self.shape(), self.like())
    }

    /// One value everywhere.
    ///
    /// # Collective
    /// As [`zeros_like`](Self::zeros_like).
    ///
    /// # Errors
    /// As [`Mesh::full`](crate::Mesh::full).
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Self> {
        let _call = Calling::of("full_like");
        self.mesh().full(self.shape(), value, self.like())
    }

    /// Uniform random numbers in `[0, 1)`.
    ///
    /// # Collective
    /// As [`Mesh::rand`](crate::Mesh::rand).
    ///
    /// # Errors
    /// As [`Mesh::rand`](crate::Mesh::rand).
    #[track_caller]
    pub fn rand_like(&self) -> Result<Self> {
        let _call = Calling::of("rand_like");
        self.mesh().rand(self.shape(), self.like())
    }

    /// Standard normal random numbers.
    ///
    /// # Collective
    /// As [`Mesh::randn`](crate::Mesh::randn).
    ///
    /// # Errors
    /// As [`Mesh::randn`](crate::Mesh::randn).
    #[track_caller]
    pub fn randn_like(&self) -> Result<Self> {
        let _call = Calling::of("randn_like");
        self.mesh().randn(self.shape(), self.like())
    }

    fn like(&self) -> Placements {
        self.layout().with_partial_reduced().into()
    }
}

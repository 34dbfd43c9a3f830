//! Programs that cast by themselves: products in 16 bits, what needs more in `f32`.

use crate::{Context, Result};
use shard_comm::{Calling, DType};

impl Context {
    /// Runs `f` with operands cast as the ops want them, as `torch.autocast`: products get theirs in the 16-bit type `to`, sums, losses
    /// and what grows or shrinks fast get `f32`, and other ops the widest type among their operands. Parameters stay what they are, and so
    /// do their gradients: of `f32` parameters they are `f32`, which are the master weights. `docs/training.md` has the lists.
    ///
    /// Casts are on the tape; a parameter is cast once in a region, however often it is used. Backward passes, which may be taken inside or
    /// outside, are never cast: they go by the types of the forward pass. With [`DType::F32`] nothing is cast, also inside a region of 16
    /// bits. `f16` needs a [`LossScale`](crate::optim::LossScale), for its small range.
    ///
    /// ```
    /// use shard_tensor::{DType, launch, replicate, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let w = mesh.ones([3, 4], replicate())?.requires_grad()?;
    ///     let x = mesh.ones([6, 4], shard(0))?;
    ///     let (y, loss) = ctx.autocast(DType::BF16, || {
    ///         let y = x.linear(&w, None)?.relu()?;
    ///         let loss = y.softmax(1)?.square()?.sum_all()?;
    ///         Ok((y, loss))
    ///     })?;
    ///     assert_eq!((y.dtype(), loss.dtype()), (DType::BF16, DType::F32));
    ///     let gradients = loss.backward()?;
    ///     assert_eq!(gradients.get(&w)?.unwrap().dtype(), DType::F32);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As `f`, with the same type on all ranks: ranks that differ find it out, as any other difference between programs, since casts are
    /// ops.
    ///
    /// # Errors
    /// [`Autograd`](crate::Error::Autograd) for another type than `f16`, `bf16` and `f32`; what `f` reports.
    #[track_caller]
    pub fn autocast<T>(&self, to: DType, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _call = Calling::of("autocast");
        self.tape().autocast(to, f)?
    }
}

//! Functions that run again in a backward pass.

use crate::{Context, Result, ShardTensor};
use shard_autograd::recompute;
use shard_comm::Calling;
use shard_ops::{Pin, Value};
use std::cell::Cell;

impl Context {
    /// Applies a function and keeps only its inputs on the tape: in a backward pass it runs again and is differentiated then.
    /// What memory its ops would hold, their time is paid for twice.
    ///
    /// It must compute the same both times; parameters it captures get their gradients, and must not be set in between. Random numbers
    /// are the same both times, results are [pinned](Self::pinned) as they were, and a [`Buffer`](crate::nn::Buffer), as running
    /// statistics are, is set by the first run alone.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let slopes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.ones([3], shard(0))?;
    ///     let w = mesh.full([1], 2.0, replicate())?.requires_grad()?;
    ///     let held = w.clone();
    ///     let y = ctx.recompute(&[&x], move |x| Ok(vec![x[0].mul(&held)?.square()?]))?;
    ///     y[0].sum_all()?.backward()?.get(&w)?.expect("y depends on w").item()
    /// })?;
    /// assert_eq!(slopes, [12.0, 12.0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// The function owns what it captures, since it runs again later. For a layer, of one tensor, there is [`recompute1`](Self::recompute1).
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// What the function reports; in a backward pass [`Autograd`](crate::Error::Autograd) if its results are others in number, type or
    /// layout, or depend on other parameters. Other values of the same kind are not noticed.
    #[track_caller]
    pub fn recompute(
        &self,
        inputs: &[&ShardTensor],
        f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>> + 'static,
    ) -> Result<Vec<ShardTensor>> {
        let _call = Calling::of("recompute");
        let values: Vec<Value> = inputs.iter().map(|t| t.value()).collect();
        let (ctx, then) = (self.clone(), Surroundings::of(self));
        let has_run = Cell::new(false);
        let values = recompute(
            self.tape(),
            &values.iter().collect::<Vec<_>>(),
            move |_, inputs| {
                let _back = has_run.replace(true).then(|| then.again(&ctx));
                ctx.on_values(inputs, &f)
            },
        )?;
        Ok(self.lifted(&values))
    }

    /// [`recompute`](Self::recompute) of a function of one tensor, as a layer is: PyTorch's `checkpoint(block, x)`. Of a model the function captures
    /// a clone of a block, which is a few handles: the clone of a parameter is the same parameter.
    ///
    /// ```
    /// use shard_tensor::nn::{LayerNorm, Linear, ModelExt, Module};
    /// use shard_tensor::{Result, ShardTensor, launch, shard, tree};
    ///
    /// #[derive(Clone)]
    /// struct Block { norm: LayerNorm, up: Linear, down: Linear }
    /// tree!(Block { norm, up, down });
    ///
    /// impl Module for Block {
    ///     fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
    ///         x.add(&self.down.forward(&self.up.forward(&self.norm.forward(x)?)?.gelu()?)?)
    ///     }
    /// }
    ///
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let block = || Ok(Block { norm: LayerNorm::new(&mesh, 4)?, up: Linear::new(&mesh, 4, 8)?, down: Linear::new(&mesh, 8, 4)? });
    ///     let blocks = (0..3).map(|_| block()).collect::<Result<Vec<_>>>()?;
    ///     let mut x = mesh.randn([6, 4], shard(0))?;
    ///     for block in &blocks {
    ///         let block = block.clone();
    ///         x = ctx.recompute1(&x, move |x| block.forward(x))?;
    ///     }
    ///     assert_eq!(x.square()?.mean_all()?.backward()?.len(), blocks.parameters().len());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`recompute`](Self::recompute).
    ///
    /// # Errors
    /// As [`recompute`](Self::recompute).
    #[track_caller]
    pub fn recompute1(
        &self,
        input: &ShardTensor,
        f: impl Fn(&ShardTensor) -> Result<ShardTensor> + 'static,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("recompute1");
        let mut made = self.recompute(&[input], move |x| Ok(vec![f(&x[0])?]))?;
        Ok(made.remove(0))
    }
}

/// What a function's results depend on beside its inputs. (What products are rounded to, the tape keeps itself.)
struct Surroundings {
    streams: (u64, u64),
    pin: Option<Pin>,
    again: bool,
}

impl Surroundings {
    fn of(ctx: &Context) -> Self {
        Self {
            streams: ctx.streams(),
            pin: ctx.engine().pin(),
            again: ctx.runs_again().get(),
        }
    }

    /// Has all be as it was, for a function that runs again, until what is returned is dropped.
    fn again<'a>(&self, ctx: &'a Context) -> Back<'a> {
        let now = Self::of(ctx);
        ctx.set_streams(self.streams);
        ctx.engine().set_pin(self.pin.clone());
        ctx.runs_again().set(true);
        Back(ctx, now)
    }
}

/// Has all be as it is now, in the end.
struct Back<'a>(&'a Context, Surroundings);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        let Self(ctx, now) = self;
        ctx.set_streams(now.streams);
        ctx.engine().set_pin(now.pin.take());
        ctx.runs_again().set(now.again);
    }
}

//! Moves beyond a mesh: to another one, to one rank, and in a tensor's own memory.

use crate::tensor::to_ndarray_of;
use crate::{Mesh, Placements, Result, ShardTensor};
use ndarray::ArrayD;
use shard_comm::{Calling, DType, Element};
use shard_ops::decided;

impl ShardTensor {
    /// The same tensor on another mesh of the program; its gradient moves back.
    ///
    /// # Collective
    /// All ranks of the program, on either mesh or on none.
    ///
    /// # Errors
    /// As [`Placements::layout`]; what the communicator reports.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let slopes = launch(4, |ctx| {
    ///     let (two, four) = (ctx.mesh_of(2)?, ctx.mesh_of([2, 2])?);
    ///     let x = two.arange(5, shard(0))?.requires_grad()?;
    ///     let y = x.to_mesh(&four, [shard(0), shard(0)])?;
    ///     let slope = y.square()?.sum_all()?.backward()?.get(&x)?.expect("y depends on x");
    ///     assert_eq!(slope.layout(), x.layout());
    ///     slope.to_array_on::<f32>(3)
    /// })?;
    /// assert_eq!(slopes[3], Some(ndarray::arr1(&[0.0, 2.0, 4.0, 6.0, 8.0]).into_dyn()));
    /// assert_eq!(slopes[0], None);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to_mesh(&self, mesh: &Mesh, placements: impl Into<Placements>) -> Result<Self> {
        let _call = Calling::of("to_mesh");
        let to = mesh.layout(self.shape(), placements)?;
        let tape = self.context().tape();
        Ok(self.lift(tape.to_mesh(&self.value(), mesh.comm(), &to)?))
    }

    /// The whole tensor as an array on one rank of the program, `None` on the others, which hold no more than their
    /// pieces.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// If it holds another type than `T`; for a rank the program does not have; what the communicator reports.
    #[track_caller]
    pub fn to_array_on<T: Element>(&self, rank: usize) -> Result<Option<ArrayD<T>>> {
        let _call = Calling::of("to_array_on");
        self.check_type::<T>("to_array_on")?;
        self.context().tape().note_read(&self.value());
        let whole = self.value().array().gather(rank)?;
        match whole {
            Some(whole) => {
                let elements = self.context().device().download_vec::<T>(&whole)?;
                to_ndarray_of("to_array_on", elements, self.shape()).map(Some)
            }
            None => Ok(None),
        }
    }

    /// As [`redistribute`](Self::redistribute), in the tensor's own memory: little more is needed than the larger of what
    /// it takes before and after. If something else holds its memory too, as a clone or the tape does, that is copied
    /// first.
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute). If the move fails midway, the tensor is lost.
    ///
    /// ```
    /// let rows = shard_tensor::launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.ones([4, 6], shard_tensor::shard(1))?;
    ///     Ok(x.redistribute_into(shard_tensor::shard(0))?.local_shape().to_vec())
    /// })?;
    /// assert_eq!(rows, [[2, 6], [2, 6]]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn redistribute_into(self, placements: impl Into<Placements>) -> Result<Self> {
        let _call = Calling::of("redistribute_into");
        if self.is_tracked() {
            // The tape holds it.
            return self.redistribute(placements);
        }
        let to = self.target(placements)?;
        let (ctx, array) = (self.context().clone(), self.into_value().into_array());
        Ok(Self::new(&ctx, array.redistribute_into(&to)?.into()))
    }

    /// [`item`](Self::item) on all ranks of the program, whether they are on its mesh or not: for what all of them go by.
    ///
    /// # Collective
    /// All ranks of the program.
    #[track_caller]
    pub(crate) fn item_everywhere(&self, op: &'static str) -> Result<f64> {
        let number = self.detach().to(DType::F64)?;
        match decided::known::<f64>(&**self.context().engine(), op, &number.value())?.as_deref() {
            Some(&[number]) => Ok(number),
            _ => self.item(),
        }
    }
}

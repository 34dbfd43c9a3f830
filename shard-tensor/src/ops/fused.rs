//! Pointwise ops of a program's own.

use crate::{Error, Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::fused::{self, Symbol};
use smallvec::SmallVec;
use std::sync::Arc;

/// A pointwise op of a program's own, written as arithmetic with the elements of `N` operands, which gives `M` results.
///
/// Each element goes through all of it at once: what lies between its steps takes no memory, and an op takes one pass over memory instead of
/// one for each step. Gradients are derived from it, and can be differentiated again. Operands of 16 bits are computed in `f32`, and
/// results rounded once. A [`Symbol`] has the methods of all maps of one number that tensors have, `+ - * /` with symbols and numbers, and
/// [`below`](Symbol::below) to choose between two.
///
/// On GPUs the steps are ops one after the other.
///
/// ```
/// use shard_tensor::{Fused, launch, shard};
/// use std::sync::LazyLock;
/// static SWIGLU: LazyLock<Fused<2, 1>> =
///     LazyLock::new(|| Fused::new("swiglu", |[gate, x]| [gate.silu() * x]));
///
/// launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let gate = mesh.randn([7, 4], shard(0))?.requires_grad()?;
///     let x = mesh.randn([7, 4], shard(0))?;
///     let [y] = SWIGLU.of([&gate, &x])?;
///     let by_ops = gate.silu()?.mul(&x)?;
///     assert!(y.allclose(&by_ops, 1e-5, 1e-6, false)?);
///     let gradients = [y, by_ops].map(|y| y.sum_all()?.grad1(&gate, false));
///     let [fused, by_ops] = gradients;
///     assert!(fused?.allclose(&by_ops?, 1e-5, 1e-6, false)?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fused<const N: usize, const M: usize>(Arc<fused::Fused>);

impl<const N: usize, const M: usize> Fused<N, M> {
    /// An op that is called so in errors and traces. What it computes is known by its formula: names may be the same.
    pub fn new(
        name: &'static str,
        f: impl for<'f> FnOnce([Symbol<'f>; N]) -> [Symbol<'f>; M],
    ) -> Self {
        const { assert!(N > 0 && M > 0, "a formula has an operand and a result") };
        Self(fused::Fused::new(name, f))
    }

    /// The results for operands whose shapes broadcast.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands; a partial operand is reduced first.
    ///
    /// # Errors
    /// Shapes that do not broadcast; types that differ, are no floats, or do not hold a number of the formula; more than 256 operands and
    /// results together.
    #[track_caller]
    pub fn of(&self, operands: [&ShardTensor; N]) -> Result<[ShardTensor; M]> {
        let _call = Calling::of("fused");
        let first = operands[0];
        let values = operands.map(ShardTensor::value);
        let operands: SmallVec<[_; 8]> = values.iter().collect();
        let found = self.0.apply(first.context().tape(), &operands)?;
        let found: Vec<_> = found.into_iter().map(|value| first.lift(value)).collect();
        found.try_into().map_err(|found: Vec<_>| {
            let (wanted, got) = (format!("{M} results"), found.len().to_string());
            Error::argument("fused", wanted, got, "report this: the op lost some")
        })
    }
}

//! Folds of strided views: `dst = dst op src`.

use super::arithmetic::{Family, Merge, Op, Widen, choose, narrow_into, widened};
use super::nest::{Block, Kernel, Nest};
use crate::{DType, DeviceError, Monoid, Result, Strided};

/// Combines a checked view into another. The types are equal, or a 16-bit float is folded into `f32`.
pub fn fold(
    op: Monoid,
    from: DType,
    src: &[u8],
    sv: &Strided,
    to: DType,
    dst: &mut [u8],
    dv: &Strided,
) {
    let Some(nest) = Nest::new(sv, dv) else {
        return;
    };
    if let Some(kernel) = choose::<Folds>(op, from, to) {
        nest.blocks(&mut |block| kernel(dst, src, block));
    }
}

/// The check that a device makes before a fold, beyond that of the views.
///
/// # Errors
/// [`DeviceError::Invalid`] if the types do not fit each other or the operation, or if groups are not contiguous.
pub fn check_fold(op: Monoid, from: DType, sv: &Strided, to: DType, dv: &Strided) -> Result<()> {
    if from != to && !(from.is_half() && to == DType::F32) {
        return Err(DeviceError::dtype("fold", to, from));
    }
    op.check(to)?;
    let width = op.width();
    let whole = |v: &Strided| {
        v.numel() == 0
            || matches!((v.shape.last(), v.strides.last()), (Some(n), Some(1)) if n % width == 0)
    };
    if width > 1 && !(whole(sv) && whole(dv)) {
        return Err(DeviceError::invalid(
            "fold",
            format!("a dense innermost dim, a multiple of {width}, for {op}"),
            format!("{sv:?} and {dv:?}"),
            "keep the elements of a group side by side",
        ));
    }
    Ok(())
}

/// The family of kernels that fold a block into another.
pub(super) struct Folds;

impl Family for Folds {
    type Kernel = Kernel;

    fn each<S: Widen, D: Widen<Wide = S::Wide>, O: Op<S::Wide>>() -> Kernel {
        fold_each::<S, D, O>
    }

    fn groups<S, D, M, const N: usize>() -> Kernel
    where
        S: Widen,
        D: Widen<Wide = S::Wide>,
        M: Merge<S::Wide, N>,
    {
        fold_groups::<S, D, M, N>
    }
}

fn fold_each<S, D, O>(dst: &mut [u8], src: &[u8], block: &Block<'_>)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    O: Op<S::Wide>,
{
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    block.sweep(src, dst, |old, value| {
        D::narrow(O::of(old.widen(), value.widen()))
    });
}

/// Folds groups of `N` elements, which lie in dense rows.
fn fold_groups<S, D, M, const N: usize>(dst: &mut [u8], src: &[u8], block: &Block<'_>)
where
    S: Widen,
    D: Widen<Wide = S::Wide>,
    M: Merge<S::Wide, N>,
{
    let (src, dst): (&[S], &mut [D]) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
    block.dense_rows(|s, d, n| {
        let (to, _) = dst[d..d + n].as_chunks_mut::<N>();
        let (from, _) = src[s..s + n].as_chunks::<N>();
        for (to, from) in to.iter_mut().zip(from) {
            narrow_into(to, M::of(widened(to), widened(from)));
        }
    });
}

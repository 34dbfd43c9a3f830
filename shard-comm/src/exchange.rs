//! Running a plan: reading pieces from their owners' buffers into a destination, through any device.

use crate::plan::Overlap;
use crate::{
    Buffer, BufferMut, DType, DeviceRef, ExchangePlan, Monoid, PieceRef, Result, Scalar, Strided,
};

/// Bytes of destination that a reduction of several ranks finishes before going on: they stay in the first cache
/// while the ranks' values stream past.
const TILE_BYTES: usize = 32 << 10;

/// Reads every received piece of a checked plan into `dst`. `source(peer, index)` finds the owner's buffer.
pub(crate) fn run<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    source: impl Fn(usize, usize) -> &'a Buffer,
    mut dst: BufferMut,
) -> Result<BufferMut> {
    let source = |piece: PieceRef<'_>| source(piece.peer, piece.source);
    let Some(op) = plan.fold else {
        if let Some(fill) = plan.fill
            && !plan.covers(dst.len())
        {
            fill_all(device, &mut dst, &[fill])?;
        }
        for piece in plan.recv.iter() {
            device.copy(
                source(piece),
                &piece.src_view(),
                &mut dst,
                &piece.dst_view(),
            )?;
        }
        return Ok(dst);
    };
    // Sums of 16-bit floats are formed in f32 and rounded once, unless there is nothing to sum.
    let rounds_once = dst.dtype().is_half()
        && op.accumulates()
        && (plan.overlap() != Overlap::Disjoint || plan.fill.is_some());
    if !rounds_once {
        fold_into(device, plan, op, &source, &mut dst)?;
        return Ok(dst);
    }
    let mut wide = device.alloc(DType::F32, dst.len())?;
    fold_into(device, plan, op, &source, &mut wide)?;
    let all = Strided::contiguous(&[dst.len()]);
    device.copy(&wide.freeze(), &all, &mut dst, &all)?;
    Ok(dst)
}

fn fold_into<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    op: Monoid,
    source: &impl Fn(PieceRef<'_>) -> &'a Buffer,
    dst: &mut BufferMut,
) -> Result<()> {
    // Where an element is written first, copying stands for folding into the identity.
    let copies_first = plan.fill.is_none() && plan.overlap() != Overlap::Mixed;
    if !(copies_first && plan.covers(dst.len())) {
        match plan.fill {
            Some(value) => fill_all(device, dst, &[value])?,
            None => fill_all(device, dst, op.identity(dst.dtype()))?,
        }
    }
    if plan.overlap() == Overlap::Stacked {
        return fold_stacked(device, plan, op, source, dst, copies_first);
    }
    for piece in plan.recv.iter() {
        let (from, sv, dv) = (source(piece), piece.src_view(), piece.dst_view());
        if copies_first {
            device.copy(from, &sv, dst, &dv)?;
        } else {
            device.fold(op, from, &sv, dst, &dv)?;
        }
    }
    Ok(())
}

/// Folds pieces that all cover one dense run, tile by tile.
fn fold_stacked<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    op: Monoid,
    source: &impl Fn(PieceRef<'_>) -> &'a Buffer,
    dst: &mut BufferMut,
    copies_first: bool,
) -> Result<()> {
    let len = plan.recv.first().map_or(0, |p| p.numel());
    let tile = TILE_BYTES / dst.dtype().size() / op.width() * op.width();
    for start in (0..len).step_by(tile) {
        let width = tile.min(len - start);
        for (k, piece) in plan.recv.iter().enumerate() {
            let sv = Strided::contiguous_at(piece.src_offset + start, &[width]);
            let dv = Strided::contiguous_at(piece.dst_offset + start, &[width]);
            if copies_first && k == 0 {
                device.copy(source(piece), &sv, dst, &dv)?;
            } else {
                device.fold(op, source(piece), &sv, dst, &dv)?;
            }
        }
    }
    Ok(())
}

/// Fills a destination with a repeated group of values.
fn fill_all(device: &DeviceRef, dst: &mut BufferMut, group: &[Scalar]) -> Result<()> {
    let width = group.len();
    for (k, &value) in group.iter().enumerate() {
        let lane = Strided::new(
            k,
            [dst.len() / width][..].into(),
            [width as isize][..].into(),
        );
        device.fill(dst, &lane, value)?;
    }
    Ok(())
}

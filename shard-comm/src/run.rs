//! Running a plan: reading pieces from their owners' buffers into a destination, through any device.

use shard_device::Result;
use smallvec::SmallVec;

use crate::plan::Collisions;
use crate::{
    Buffer, BufferMut, CommError, DType, DeviceRef, ExchangePlan, Monoid, PieceRef, Scalar, Strided,
};

impl ExchangePlan {
    /// Runs the plan of a rank that reads only from itself: the same as an exchange, but without a communicator.
    ///
    /// Pieces are read from `sources` whatever their peer is. Elements that no piece writes are as after an exchange: the fill, or
    /// the identity of the fold; a plan without either writes all elements.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if buffers do not fit the plan, or if it leaves elements unwritten; otherwise errors of the device.
    pub fn run_alone(
        &self,
        device: &DeviceRef,
        sources: &[Buffer],
        dst: &mut BufferMut,
    ) -> Result<(), CommError> {
        let brought = sources.iter().map(|s| (s.dtype(), s.len()));
        self.check(usize::MAX, Some(dst.dtype()), &brought, dst.len())?;
        self.check_written(dst.len())?;
        let needed = self.recv.iter().map(|p| p.source + 1).max().unwrap_or(0);
        if needed > sources.len() {
            return Err(CommError::invalid(
                self.name,
                format!("{needed} sources"),
                format!("{}", sources.len()),
                "pass all that the plan reads",
            ));
        }
        Ok(run(device, self, |_, source| &sources[source], dst)?)
    }
}

/// Reads every received piece of a checked plan into `dst`. `source(peer, index)` finds the owner's buffer.
///
/// [`receive`](crate::backend::receive) does this with the posts of peers; by itself it is for backends that have brought the
/// elements here in another way.
///
/// # Errors
/// Errors of the device; [`DeviceError::Invalid`](crate::DeviceError::Invalid) if a buffer is too short for a piece.
pub fn run<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    source: impl Fn(usize, usize) -> &'a Buffer,
    dst: &mut BufferMut,
) -> Result<()> {
    let source = |piece: PieceRef<'_>| source(piece.peer, piece.source);
    if let Some(op) = plan.fold {
        return fold_all(device, plan, op, &source, dst);
    }
    if let Some(fill) = plan.fill
        && !plan.covers(dst.len())
    {
        fill_all(device, dst, &[fill])?;
    }
    // A GPU copies many pieces in one launch; the host would gain nothing from the list.
    if plan.recv.len() > 1
        && device.takes_many_pieces()
        && plan.collisions() == Collisions::Disjoint
    {
        let views = (plan.recv.iter())
            .map(|piece| (source(piece), piece.src_view(), piece.dst_view()))
            .collect::<Vec<_>>();
        return device.copy_pieces(&views, dst);
    }
    for piece in plan.recv.iter() {
        copy_piece(device, source(piece), piece, dst)?;
    }
    Ok(())
}

/// Combines every received piece with what is in the destination.
#[inline(never)]
fn fold_all<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    op: Monoid,
    source: &impl Fn(PieceRef<'_>) -> &'a Buffer,
    dst: &mut BufferMut,
) -> Result<()> {
    let plain = plan.fill.is_none();
    if plain && plan.collisions() == Collisions::Stacked {
        if !plan.covers(dst.len()) {
            let identity = op.identity(dst.dtype());
            fill_all(device, dst, identity)?;
        }
        for stack in plan.stacks() {
            let mut terms = SmallVec::<[(&Buffer, usize); 8]>::with_capacity(stack.len());
            let pieces = stack.iter().filter_map(|&k| plan.recv.get(k));
            terms.extend(pieces.map(|piece| (source(piece), piece.src_offset)));
            if let Some(first) = plan.recv.get(stack[0]) {
                device.reduce(op, &terms, first.src_strides, dst, &first.dst_view())?;
            }
        }
        return Ok(());
    }
    // If no element is written twice, copying is the same as folding into the identity.
    let copies = plain && plan.collisions() == Collisions::Disjoint;
    // Sums of 16-bit floats are formed in f32 and rounded once, unless there is nothing to sum.
    if plan.widens(dst.dtype()) {
        let mut wide = device.alloc(DType::F32, dst.len())?;
        fold_pieces(device, plan, op, source, &mut wide, copies)?;
        let all = Strided::contiguous(&[dst.len()]);
        return device.copy(&wide.freeze(), &all, dst, &all);
    }
    fold_pieces(device, plan, op, source, dst, copies)
}

/// Combines pieces into a destination one by one.
fn fold_pieces<'a>(
    device: &DeviceRef,
    plan: &ExchangePlan,
    op: Monoid,
    source: &impl Fn(PieceRef<'_>) -> &'a Buffer,
    dst: &mut BufferMut,
    copies: bool,
) -> Result<()> {
    if !(copies && plan.covers(dst.len())) {
        match plan.fill {
            Some(value) => fill_all(device, dst, &[value])?,
            None => fill_all(device, dst, op.identity(dst.dtype()))?,
        }
    }
    for piece in plan.recv.iter() {
        let from = source(piece);
        if copies {
            copy_piece(device, from, piece, dst)?;
        } else {
            device.fold(op, from, &piece.src_view(), dst, &piece.dst_view())?;
        }
    }
    Ok(())
}

/// Copies one piece; most are contiguous on both sides and need no views.
#[inline]
fn copy_piece(
    device: &DeviceRef,
    from: &Buffer,
    piece: PieceRef<'_>,
    dst: &mut BufferMut,
) -> Result<()> {
    match (piece.shape, piece.src_strides, piece.dst_strides) {
        (&[len], [1], [1]) if let Some(end) = piece.src_offset.checked_add(len) => {
            device.copy_run(from, piece.src_offset..end, dst, piece.dst_offset)
        }
        _ => copy_views(device, from, piece, dst),
    }
}

#[inline(never)]
fn copy_views(
    device: &DeviceRef,
    from: &Buffer,
    piece: PieceRef<'_>,
    dst: &mut BufferMut,
) -> Result<()> {
    device.copy(from, &piece.src_view(), dst, &piece.dst_view())
}

/// Fills a destination with a repeated group of values.
pub(crate) fn fill_all(device: &DeviceRef, dst: &mut BufferMut, group: &[Scalar]) -> Result<()> {
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

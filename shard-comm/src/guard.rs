//! The part that a [checked](crate::checked) communicator adds to an operation, so that faults below it are caught.

use std::sync::Arc;

use crate::{Buffer, DeviceRef, ExchangePlan, Host, PieceRef, Result, Strided};

/// What ranks compare besides the operation itself. Empty unless a [checked](crate::checked) communicator filled it.
#[derive(Clone, Default, Debug)]
pub struct Guard {
    /// How many operations of the group, or messages of the pair, the caller has started. If ranks differ, one of them has lost
    /// or repeated an operation.
    pub turn: Option<u64>,
    /// The checksum that each peer should find when it reads from this rank; the backend compares it with what the peer found.
    pub sums: Option<Arc<[PeerSum]>>,
}

/// A checksum of all elements that one peer reads in one exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerSum {
    /// The reader, numbered within the group.
    pub peer: usize,
    /// The sum, over all elements read, of a hash of the element's source, index and bits: it does not depend on the order of
    /// pieces.
    pub sum: u64,
}

impl Guard {
    /// The checksums of all ranks as one table, for a backend that moves the elements by itself and compares them there. The
    /// table has one row per rank: first 1 if the rank gave checksums and 0 if it did not, then its checksum for each reader.
    /// `None` if no rank gave any.
    ///
    /// # Errors
    /// None in practice: the memory is the host's.
    pub(crate) fn tell(guards: &[Option<&Self>]) -> Result<Option<Buffer>> {
        let sums = |guard: &Option<&Self>| guard.and_then(|g| g.sums.clone());
        if !guards.iter().any(|guard| sums(guard).is_some()) {
            return Ok(None);
        }
        let mut words = Vec::new();
        for guard in guards {
            let mut row = vec![0_i64; 1 + guards.len()];
            if let Some(sums) = sums(guard) {
                row[0] = 1;
                for sum in sums.iter() {
                    if let Some(word) = row.get_mut(1 + sum.peer) {
                        *word = sum.sum.cast_signed();
                    }
                }
            }
            words.extend(row);
        }
        Ok(Some(Host::new().upload_slice(&words)?))
    }

    /// The checksums of what peers read from these sources, in the order of peers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn sums_of(
        device: &DeviceRef,
        plan: &ExchangePlan,
        sources: &[Buffer],
    ) -> Result<Arc<[PeerSum]>> {
        let mut sums: Vec<PeerSum> = Vec::new();
        for piece in plan.send.iter() {
            // A plan that asks for more than there is has been refused already.
            let Some(source) = sources.get(piece.source) else {
                continue;
            };
            let sum = sum_of(device, piece, source)?;
            match sums.iter_mut().find(|s| s.peer == piece.peer) {
                Some(total) => total.sum = total.sum.wrapping_add(sum),
                None => sums.push(PeerSum {
                    peer: piece.peer,
                    sum,
                }),
            }
        }
        sums.sort_unstable_by_key(|s| s.peer);
        Ok(sums.into())
    }

    /// Whether the checksum of what this rank, number `me`, reads from `peer` is the one in that peer's guard; true if it has
    /// none.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn holds<'a>(
        &self,
        device: &DeviceRef,
        plan: &ExchangePlan,
        me: usize,
        peer: usize,
        source: impl Fn(usize) -> &'a Buffer,
    ) -> Result<bool> {
        let Some(sums) = &self.sums else {
            return Ok(true);
        };
        let mut found = 0_u64;
        for piece in plan.recv.iter().filter(|p| p.peer == peer) {
            found = found.wrapping_add(sum_of(device, piece, source(piece.source))?);
        }
        let expected = sums.iter().find(|s| s.peer == me).map_or(0, |s| s.sum);
        Ok(found == expected)
    }
}

/// The checksums of all ranks, as [`Guard::tell`] writes them: one row per rank, first whether the rank gave any, then its
/// checksum for each reader.
#[cfg(feature = "nccl")]
#[derive(Debug)]
pub(crate) struct PeerSums {
    words: Vec<i64>,
    ranks: usize,
}

#[cfg(feature = "nccl")]
impl PeerSums {
    /// Reads the table that is the result of an operation whose target is [`Target::Elsewhere`](crate::Target::Elsewhere).
    ///
    /// # Errors
    /// [`CommError::Invalid`](crate::CommError::Invalid) if the buffer does not hold 64-bit integers.
    pub(crate) fn new(buffer: &Buffer, ranks: usize) -> Result<Self> {
        let words = buffer.to_vec::<i64>()?;
        Ok(Self { words, ranks })
    }

    /// The checksum of what `reader` reads from `owner`; `None` if `owner` gave no checksums.
    pub(crate) fn expected(&self, owner: usize, reader: usize) -> Option<u64> {
        let row = &self.words.get(owner * (1 + self.ranks)..)?;
        (row.first() == Some(&1)).then(|| row.get(1 + reader).map_or(0, |w| w.cast_unsigned()))
    }
}

/// The checksum of the elements one piece reads.
pub(crate) fn sum_of(device: &DeviceRef, piece: PieceRef<'_>, source: &Buffer) -> Result<u64> {
    sum_at(device, piece, source, &piece.src_view())
}

/// The checksum of the elements one piece has read, which are now elsewhere.
pub(crate) fn sum_at(
    device: &DeviceRef,
    piece: PieceRef<'_>,
    buffer: &Buffer,
    at: &Strided,
) -> Result<u64> {
    let (view, len) = (piece.src_view(), piece.numel());
    let dense = Strided::contiguous(&view.shape);
    let mut read = device.alloc(buffer.dtype(), len)?;
    device.copy(buffer, at, &mut read, &dense)?;
    let bytes = device.download(&read.freeze())?;
    let mut elements = bytes.chunks_exact(buffer.dtype().size());
    let mut sum = 0_u64;
    each_index(&view, &mut |index| {
        let mut bits = [0_u8; 8];
        if let Some(element) = elements.next() {
            bits[..element.len()].copy_from_slice(element);
        }
        let place = (piece.source as u64) << 48 ^ index as u64;
        sum = sum.wrapping_add(mix(mix(place) ^ u64::from_le_bytes(bits)));
    });
    Ok(sum)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Visits the element indices of a view in row-major order.
fn each_index(view: &Strided, visit: &mut impl FnMut(usize)) {
    if view.shape.contains(&0) {
        return;
    }
    let mut at = vec![0_usize; view.ndim()];
    let mut index = view.offset;
    loop {
        visit(index);
        // The innermost dim that can go on advances; the dims inside it begin again.
        let mut dims = at.iter_mut().zip(&view.shape).zip(&view.strides).rev();
        loop {
            let Some(((at, &extent), &stride)) = dims.next() else {
                return;
            };
            if *at + 1 < extent {
                *at += 1;
                index = index.wrapping_add_signed(stride);
                break;
            }
            index = index.wrapping_add_signed(-(*at as isize) * stride);
            *at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_view() {
        let view = Strided::new(5, [2, 3][..].into(), [3, -1][..].into());
        let mut seen = Vec::new();
        each_index(&view, &mut |i| seen.push(i));
        assert_eq!(seen, [5, 4, 3, 8, 7, 6]);
    }
}

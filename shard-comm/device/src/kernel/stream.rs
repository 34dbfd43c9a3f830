//! Copies past the caches, for results that no cache holds anyway.
//!
//! A plain store reads the line that it overwrites into the cache first; a non-temporal one does not, so that a large copy moves two
//! thirds of the bytes. What was written so comes from memory when it is read next, so it pays only where a plain store would
//! have driven it out of the caches by then.

/// Bytes of a destination from which on its elements are gone from a core's caches before it is whole.
const LARGE: usize = 16 << 20;
/// Bytes of a piece of such a destination below which it may be read again soon.
const PIECE: usize = 1 << 20;
/// Bytes of a row below which the stores before and after its whole cache lines are too many.
const ROW: usize = 1 << 10;
/// Bytes from what is read to what is asked for.
const AHEAD: usize = 1 << 10;

/// Whether rows of `row` bytes, of which `piece` bytes are written in all, are to be written to a destination of `all` bytes past
/// the caches.
#[inline]
pub(super) fn pays(all: usize, piece: usize, row: usize) -> bool {
    all >= LARGE && piece >= PIECE && row >= ROW && lines::are_stored()
}

/// Copies a long row past the caches where the processor [can](lines::are_stored), and the ends that are not whole lines of the cache
/// as ever. Until [`settle`] is called, other threads must not be told of it.
pub(super) fn copy(dst: &mut [u8], src: &[u8]) {
    let head = dst.as_ptr().align_offset(lines::LINE).min(dst.len());
    let (first, rest) = dst.split_at_mut(head);
    let (from, src) = src.split_at(head);
    first.copy_from_slice(from);
    let whole = rest.len() / lines::LINE * lines::LINE;
    let (body, last) = rest.split_at_mut(whole);
    if lines::are_stored() {
        lines::store(body, &src[..whole]);
    } else {
        body.copy_from_slice(&src[..whole]);
    }
    last.copy_from_slice(&src[whole..]);
}

/// Visits the numbers below `n`, those of both halves in turns: of two places more is on its way from memory than of one.
#[inline(always)]
pub(super) fn in_halves(n: usize, mut visit: impl FnMut(usize)) {
    let half = n / 2;
    for i in 0..half {
        visit(i);
        visit(half + i);
    }
    if n > 2 * half {
        visit(n - 1);
    }
}

/// Asks for what lies a little behind some bytes that are read one part after the other, so that it is there when its turn comes.
pub(super) fn ask_behind(part: &[u8]) {
    for at in (0..part.len()).step_by(lines::LINE) {
        lines::ask(part.as_ptr().wrapping_add(AHEAD + at));
    }
}

/// Orders what was written past the caches before all that this thread writes next, such as that it is done.
pub(super) fn settle() {
    lines::settle();
}

/// A whole line at a time, which only the widest registers hold: narrower stores were measured to be slower than plain ones.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod lines {
    #![expect(unsafe_code, reason = "the instructions take addresses")]

    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm512_loadu_si512, _mm512_stream_si512,
    };

    pub(super) const LINE: usize = 64;

    pub(super) fn are_stored() -> bool {
        std::arch::is_x86_feature_detected!("avx512f")
    }

    /// Copies whole lines to aligned addresses.
    pub(super) fn store(dst: &mut [u8], src: &[u8]) {
        assert!(are_stored() && dst.len() == src.len());
        assert!(dst.is_empty() || dst.as_ptr().align_offset(LINE) == 0);
        // SAFETY: the processor has the instructions.
        unsafe { store_lines(dst, src) }
    }

    #[target_feature(enable = "avx512f")]
    fn store_lines(dst: &mut [u8], src: &[u8]) {
        let ((to, _), (from, _)) = (dst.as_chunks_mut::<LINE>(), src.as_chunks::<LINE>());
        super::in_halves(to.len().min(from.len()), |i| {
            store_line(&mut to[i], &from[i]);
        });
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn store_line(to: &mut [u8; LINE], from: &[u8; LINE]) {
        // SAFETY: both are a line long, and `to` is aligned to one: `store` has asserted it of the first, and the others lie whole
        // lines behind it. `copy` is called between a check of `pays` and a `settle`, on which its module insists.
        unsafe {
            _mm512_stream_si512(
                to.as_mut_ptr().cast(),
                _mm512_loadu_si512(from.as_ptr().cast()),
            );
        }
    }

    #[inline]
    pub(super) fn ask(at: *const u8) {
        // SAFETY: every processor of this architecture has the instruction, which takes any address: it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    pub(super) fn settle() {
        // SAFETY: every processor of this architecture has the instruction.
        unsafe { _mm_sfence() }
    }
}

/// Elsewhere there are plain stores.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod lines {
    pub(super) const LINE: usize = 64;

    pub(super) fn are_stored() -> bool {
        false
    }

    pub(super) fn store(dst: &mut [u8], src: &[u8]) {
        dst.copy_from_slice(src);
    }

    pub(super) fn ask(_: *const u8) {}

    pub(super) fn settle() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    // `tests/it/stream.rs` moves what is large by these numbers, and does not see them.
    const _: () = assert!(LARGE == 16 << 20 && PIECE == 1 << 20 && ROW == 1 << 10);

    #[test]
    fn rows_at_any_address_are_copied_whole() {
        let src: Vec<u8> = (0..3000u32).map(|i| (i * 7 % 251) as u8).collect();
        for start in [0, 1, 3, 63, 64] {
            for len in [0, 1, 60, 64, 65, 127, 500, 2048] {
                let mut dst = vec![0u8; 2200];
                copy(&mut dst[start..start + len], &src[start / 2..][..len]);
                settle();
                assert_eq!(
                    dst[start..start + len],
                    src[start / 2..][..len],
                    "{start} {len}"
                );
                assert!(
                    dst[..start]
                        .iter()
                        .chain(&dst[start + len..])
                        .all(|&b| b == 0)
                );
            }
        }
    }
}

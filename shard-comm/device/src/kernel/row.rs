//! Copies of rows from the first byte to the last, for rows that follow each other closely.
//!
//! `memcpy` reads the last lines of a row of some hundreds of bytes before those in front of them. Where such rows follow each other and come
//! from memory, the processor no longer sees that lines are asked for in order, and fetches none ahead. Rows of 187 numbers of 204, 16 MiB in
//! all, took 1.0 ms so, and 0.57 in order (Zen 5). Rows with much between them were as fast or faster by `memcpy`, as are short ones, whose loads
//! it does all at once, and long ones, for which it has an instruction of the processor's.

use core::ops::Range;

/// Bytes of rows that go part by part.
const ROWS: Range<usize> = 320..2049;
/// Bytes of a part.
const PART: usize = 64;

/// Whether rows of so many bytes, which begin so far apart in both views, are copied in parts.
#[inline]
pub(super) fn pays(bytes: usize, steps: [usize; 2]) -> bool {
    ROWS.contains(&bytes) && steps.iter().all(|step| *step <= bytes + bytes / 3)
}

/// Copies a row of at least a part.
pub(super) fn copy(dst: &mut [u8], src: &[u8]) {
    let (to, from) = (dst.as_chunks_mut::<PART>().0, src.as_chunks::<PART>().0);
    for (to, from) in to.iter_mut().zip(from) {
        copy_part(to, from);
    }
    // What is no whole part is copied with bytes before it.
    if let (Some(to), Some(from)) = (dst.last_chunk_mut(), src.last_chunk()) {
        copy_part(to, from);
    }
}

/// Word by word: a copy of the whole would be found to continue in the next part, and become a call of `memcpy`.
#[inline(always)]
fn copy_part(to: &mut [u8; PART], from: &[u8; PART]) {
    const WORD: usize = size_of::<u64>();
    let (to, from) = (to.as_chunks_mut::<WORD>().0, from.as_chunks::<WORD>().0);
    let words: [u64; PART / WORD] = core::array::from_fn(|i| u64::from_ne_bytes(from[i]));
    for (to, word) in to.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
}

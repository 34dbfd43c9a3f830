//! Lines of the cache that are asked for before they are needed, so that other work is done while they come.

/// Bytes of a line of the cache.
pub(crate) const LINE: usize = 64;

/// How many elements behind the first of a short row memory is asked for, while that row is computed.
pub(crate) const AHEAD: usize = 512;

/// Bytes of a row, or of a cell, behind which those that follow are asked for. What longer ones are followed by a processor sees coming, and a Zen 4
/// waits for so many lines at once: rows of 1024 took up to twice the time.
const SHORT: usize = 1 << 10;

/// Asks for as many elements of later rows as one of `n` has, if that is few.
#[inline(always)]
pub(crate) fn next_rows<T>(data: &[T], at: usize, n: usize) {
    if n * size_of::<T>() <= SHORT {
        prefetch(data, at, n);
    }
}

/// Asks for the lines of some elements. Nothing waits for them, and places behind the end are no error.
#[inline(always)]
pub(crate) fn prefetch<T>(data: &[T], at: usize, count: usize) {
    let per_line = (LINE / size_of::<T>()).max(1);
    for first in (0..count).step_by(per_line) {
        line(data.as_ptr().wrapping_add(at.wrapping_add(first)));
    }
    // They may begin within a line and then end in one more.
    line(
        data.as_ptr()
            .wrapping_add(at.wrapping_add(count).wrapping_sub(1)),
    );
}

/// Asks for the line of a place, which need not be one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(crate) fn line<T>(at: *const T) {
    use std::arch::x86_64::_MM_HINT_T0;
    if let Some(sse) = pulp::core_arch::x86::Sse::try_new() {
        sse._mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
}

/// Elsewhere loads wait.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
pub(crate) fn line<T>(_: *const T) {}

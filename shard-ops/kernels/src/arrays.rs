//! Functions of arrays for loops on vectors. The standard library's are not always compiled into their callers, and then run without
//! the instructions of these, with the arrays copied on the way.

/// `f` of each element, of which there is at least one.
#[inline(always)]
pub(crate) fn each<T: Copy, U: Copy, const N: usize>(
    of: [T; N],
    mut f: impl FnMut(T) -> U,
) -> [U; N] {
    numbered(
        #[inline(always)]
        |i| f(of[i]),
    )
}

/// `f` of each place, of which there is at least one.
#[inline(always)]
pub(crate) fn numbered<U: Copy, const N: usize>(mut f: impl FnMut(usize) -> U) -> [U; N] {
    let mut out = [f(0); N];
    for (i, out) in out.iter_mut().enumerate().skip(1) {
        *out = f(i);
    }
    out
}

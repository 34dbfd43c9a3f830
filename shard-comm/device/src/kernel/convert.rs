//! Conversions of rows to and from 16-bit floats, on the widest vectors that the processor has.
//!
//! The loops are plain ones; what they are compiled for is chosen when they run, since kernels that compute in `f32` wait for them. Each
//! conversion is of one element alone, so results do not depend on the choice.

/// Sets each element of `to` to `f` of the one of `from`.
pub(super) fn rows<S: Copy, D>(to: &mut [D], from: &[S], f: impl Fn(S) -> D) {
    match vectors::best() {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Some(vectors) => vectors.rows(to, from, f),
        _ => one_by_one(to, from, f),
    }
}

#[inline(always)]
fn one_by_one<S: Copy, D>(to: &mut [D], from: &[S], f: impl Fn(S) -> D) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = f(from);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vectors {
    #![expect(
        unsafe_code,
        reason = "functions for instructions not all processors have"
    )]

    use super::one_by_one;
    use std::arch::is_x86_feature_detected;

    /// Instructions that this processor has: [`best`] alone makes one.
    pub(super) struct Vectors(Widest);

    enum Widest {
        Avx2,
        Avx512,
    }

    /// The widest there are.
    #[inline]
    pub(super) fn best() -> Option<Vectors> {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            Some(Vectors(Widest::Avx512))
        } else if is_x86_feature_detected!("avx2") {
            Some(Vectors(Widest::Avx2))
        } else {
            None
        }
    }

    impl Vectors {
        pub(super) fn rows<S: Copy, D>(self, to: &mut [D], from: &[S], f: impl Fn(S) -> D) {
            match self.0 {
                // SAFETY: `best` has found that the processor has the instructions.
                Widest::Avx2 => unsafe { avx2(to, from, f) },
                // SAFETY: as above.
                Widest::Avx512 => unsafe { avx512(to, from, f) },
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn avx2<S: Copy, D>(to: &mut [D], from: &[S], f: impl Fn(S) -> D) {
        one_by_one(to, from, f);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn avx512<S: Copy, D>(to: &mut [D], from: &[S], f: impl Fn(S) -> D) {
        one_by_one(to, from, f);
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod vectors {
    /// Other processors have one kind of vectors, and miri has none.
    pub(super) fn best() -> Option<core::convert::Infallible> {
        None
    }
}

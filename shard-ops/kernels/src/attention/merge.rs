//! Merging results of disjoint sets of keys.

use super::stored::Stored;
use crate::ViewMut;
use crate::compiled::compiled;
use half::{bf16, f16};
use num_traits::Float;

compiled! { trait Compiled for Stored: f32 f64 f16 bf16; {
    /// The result over all keys from results over disjoint sets of keys: `outs` holds their outputs
    /// `[batch, heads, queries, value dim]` and `sums` the logarithms of their sums of exponentials, one set after the other,
    /// row-major.
    ///
    /// Writes the output and its log-sum-exp; sets are folded in order. A query that no set saw gets zeros and -inf.
    ///
    /// # Panics
    /// When `outs` or `lse` does not fit `out` and `sums`.
    ///
    /// ```
    /// use shard_kernels::{ViewMut, attention::merge};
    /// // Weights 1 and 3.
    /// let (mut out, mut lse) = ([0.0], [0.0]);
    /// merge(&[1.0, 5.0], &[0.0, 3.0f64.ln()], &mut ViewMut::contiguous(&mut out, &[1, 1, 1, 1]), &mut lse);
    /// assert!((out[0] - 4.0f64).abs() < 1e-14 && (lse[0] - 4.0f64.ln()).abs() < 1e-14);
    /// ```
    pub fn merge<T>(
        outs: &[<T as Stored>::Acc],
        sums: &[<T as Stored>::Acc],
        out: &mut ViewMut<'_, T>,
        lse: &mut [<T as Stored>::Acc],
    ) = merge_here;
} }

fn merge_here<E: Stored>(
    outs: &[E::Acc],
    sums: &[E::Acc],
    out: &mut ViewMut<'_, E>,
    lse: &mut [E::Acc],
) {
    let (rows, width) = (lse.len(), out.shape()[3]);
    if rows == 0 {
        return;
    }
    let parts = sums.len() / rows;
    assert!(
        sums.len() == parts * rows && outs.len() == parts * rows * width,
        "attention: {} outputs and {} sums of {rows} queries by {width}",
        outs.len(),
        sums.len()
    );
    let none = <E::Acc as num_traits::Float>::neg_infinity();
    let zero = <E::Acc as num_traits::Zero>::zero();
    let mut merged = vec![zero; rows * width];
    for (r, lse) in lse.iter_mut().enumerate() {
        let each = || (0..parts).map(|p| sums[p * rows + r]);
        if each().all(|l| l == none) {
            *lse = none;
            continue;
        }
        // If one of them is NaN, the sum of weights is NaN.
        let max = each().fold(none, |m, l| if l > m { l } else { m });
        let total = each().map(|l| (l - max).exp()).fold(zero, |a, w| a + w);
        let row = &mut merged[r * width..(r + 1) * width];
        for (p, l) in each().enumerate() {
            let weight = (l - max).exp() / total;
            // A set in which the query saw no key has output zero, and its weight is zero too.
            let from = &outs[(p * rows + r) * width..][..width];
            for (o, &x) in row.iter_mut().zip(from) {
                *o += weight * x;
            }
        }
        *lse = max + total.ln();
    }
    let ones = std::iter::repeat(<E::Acc as num_traits::One>::one());
    super::forward::write_rows(out, &merged, ones);
}

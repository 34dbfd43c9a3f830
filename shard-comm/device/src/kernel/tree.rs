//! The order in which terms are combined.

use smallvec::SmallVec;

/// Combines terms by the binary tree over their numbers: 0 with 1, 2 with 3, ..., then pairs with pairs, and so on; an odd one is
/// carried. `None` if there are none.
///
/// Sums over ranks are formed in this order, so their bits depend on nothing but the terms and their number, and ranks can form
/// them in few rounds. Its rounding error grows with the logarithm of the number of terms (Higham, *Accuracy and Stability of
/// Numerical Algorithms*, 4.2).
///
/// ```
/// let told = shard_device::by_tree((0..7).map(|n| n.to_string()), |a, b| format!("({a}{b})"));
/// assert_eq!(told.as_deref(), Some("(((01)(23))((45)6))"));
/// ```
pub fn by_tree<T>(
    terms: impl IntoIterator<Item = T>,
    mut combine: impl FnMut(T, T) -> T,
) -> Option<T> {
    // The sums of finished subtrees, the largest first: as many as the number of terms so far has ones in binary.
    let mut finished = SmallVec::<[T; 8]>::new();
    for (n, mut sum) in terms.into_iter().enumerate() {
        for _ in 0..(n + 1).trailing_zeros() {
            if let Some(left) = finished.pop() {
                sum = combine(left, sum);
            }
        }
        finished.push(sum);
    }
    let last = finished.pop()?;
    Some(
        finished
            .into_iter()
            .rev()
            .fold(last, |sum, left| combine(left, sum)),
    )
}

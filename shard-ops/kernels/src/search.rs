//! Where values would stand among sorted ones.

use core::cmp::Ordering;

/// A number that is sorted by: NaN stands behind all others, and zeros of either sign are equal.
pub trait Sortable: Copy + Default {
    /// How it stands to another.
    fn order(self, other: Self) -> Ordering;
}

macro_rules! sortable {
    (floats: $($F:ty),*; whole: $($W:ty),*) => {
        $(impl Sortable for $F {
            fn order(self, other: Self) -> Ordering {
                let by_nan = || self.is_nan().cmp(&other.is_nan());
                self.partial_cmp(&other).unwrap_or_else(by_nan)
            }
        })*
        $(impl Sortable for $W {
            fn order(self, other: Self) -> Ordering {
                self.cmp(&other)
            }
        })*
    };
}

sortable!(floats: f32, f64; whole: i64, i32, u8);

/// For every value how many of the sorted ones stand before it; with `right`, those that are equal too.
///
/// ```
/// use shard_kernels::search::count_before;
/// let mut counts = [0; 4];
/// count_before(&[1.0, 2.0, 2.0, f64::NAN], &[2.0, 0.5, 7.0, f64::NAN], false, &mut counts);
/// assert_eq!(counts, [1, 0, 3, 3]);
/// count_before(&[1.0, 2.0, 2.0, f64::NAN], &[2.0, 0.5, 7.0, f64::NAN], true, &mut counts);
/// assert_eq!(counts, [3, 0, 3, 4]);
/// ```
pub fn count_before<T: Sortable>(sorted: &[T], values: &[T], right: bool, counts: &mut [i64]) {
    for (count, &value) in counts.iter_mut().zip(values) {
        let before = |x: &T| match x.order(value) {
            Ordering::Less => true,
            Ordering::Equal => right,
            Ordering::Greater => false,
        };
        *count = sorted.partition_point(before) as i64;
    }
}

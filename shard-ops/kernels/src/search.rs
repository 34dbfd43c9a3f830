//! Where values would stand among sorted ones.

use core::cmp::Ordering;

/// A number that is sorted by: NaN stands behind all others, and zeros of either sign are equal.
pub trait Sortable: Copy + Default {
    /// How it stands to another.
    fn order(self, other: Self) -> Ordering;

    /// A whole number that stands to those of others as it does, and how many of its low bits count.
    fn rank(self) -> (u64, u32);
}

macro_rules! sortable {
    (floats: $($F:ty, $bits:ty),*; whole: $($W:ty, $plus:expr),*) => {
        $(impl Sortable for $F {
            fn rank(self) -> (u64, u32) {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                // Zeros of either sign are one number, and so is NaN, whatever its bits.
                let bits = match (self == 0.0, self.is_nan()) {
                    (true, _) => SIGN,
                    (_, true) => <$bits>::MAX,
                    _ if self.to_bits() & SIGN == 0 => self.to_bits() | SIGN,
                    _ => !self.to_bits(),
                };
                (bits.into(), <$bits>::BITS)
            }

            fn order(self, other: Self) -> Ordering {
                let by_nan = || self.is_nan().cmp(&other.is_nan());
                self.partial_cmp(&other).unwrap_or_else(by_nan)
            }
        })*
        $(impl Sortable for $W {
            fn rank(self) -> (u64, u32) {
                // From the least number on.
                (i64::from(self).wrapping_add($plus).cast_unsigned(), <$W>::BITS)
            }

            fn order(self, other: Self) -> Ordering {
                self.cmp(&other)
            }
        })*
    };
}

sortable!(floats: f32, u32, f64, u64; whole: i64, i64::MIN, i32, 1 << 31, u8, 0);

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

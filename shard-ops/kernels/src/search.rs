//! Where values would stand among sorted ones.

use core::cmp::Ordering;

/// A number that is sorted by: NaN stands behind all others, and zeros of either sign are equal.
pub trait Sortable: Copy + Default + super::sort::Compiled<Self> {
    /// How many low bits of a [`rank`](Self::rank) count.
    const RANK_BITS: u32;

    /// How it stands to another.
    fn order(self, other: Self) -> Ordering;

    /// Whether it stands before another.
    fn is_before(self, other: Self) -> bool;

    /// A whole number that stands to those of others as it does.
    fn rank(self) -> u64;

    /// The number of a rank, if there is only one: zeros of either sign have one rank, and so has NaN, whatever its bits.
    fn of_rank(rank: u64) -> Option<Self>;
}

macro_rules! sortable {
    (floats: $($F:ty, $bits:ty, $short:expr),*; whole: $($W:ty, $plus:expr, $small:expr),*) => {
        $(impl Sortable for $F {
            const RANK_BITS: u32 = <$bits>::BITS;

            #[inline]
            fn rank(self) -> u64 {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                // The sum of zeros of either sign is the positive one.
                let bits = (self + 0.0).to_bits();
                let negative = (bits & SIGN != 0).then_some(!bits);
                let rank = negative.unwrap_or(bits | SIGN);
                if self.is_nan() { <$bits>::MAX.into() } else { rank.into() }
            }

            #[inline]
            fn of_rank(rank: u64) -> Option<Self> {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let rank: $bits = $short(rank);
                let bits = if rank & SIGN == 0 { !rank } else { rank & !SIGN };
                (rank != SIGN && rank != <$bits>::MAX).then_some(Self::from_bits(bits))
            }

            #[inline]
            fn is_before(self, other: Self) -> bool {
                (self < other) | (other.is_nan() & !self.is_nan())
            }

            fn order(self, other: Self) -> Ordering {
                let by_nan = || self.is_nan().cmp(&other.is_nan());
                self.partial_cmp(&other).unwrap_or_else(by_nan)
            }
        })*
        $(impl Sortable for $W {
            const RANK_BITS: u32 = <$W>::BITS;

            #[inline]
            fn rank(self) -> u64 {
                // From the least number on.
                i64::from(self).wrapping_add($plus).cast_unsigned()
            }

            #[inline]
            fn of_rank(rank: u64) -> Option<Self> {
                Some($small(rank.cast_signed().wrapping_sub($plus)))
            }

            #[inline]
            fn is_before(self, other: Self) -> bool {
                self < other
            }

            fn order(self, other: Self) -> Ordering {
                self.cmp(&other)
            }
        })*
    };
}

sortable!(
    floats: f32, u32, |rank| rank as u32, f64, u64, |rank| rank;
    whole: i64, i64::MIN, |i| i, i32, 1 << 31, |i| i as i32, u8, 0, |i| i as u8
);

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
    // A comparison without branches: which way it goes for the next value nobody can foresee.
    for (count, &value) in counts.iter_mut().zip(values) {
        let place = match right {
            true => sorted.partition_point(|x| !value.is_before(*x)),
            false => sorted.partition_point(|x| x.is_before(value)),
        };
        *count = place as i64;
    }
}

//! One rank's part of farthest point sampling.

use super::scan::{Columns, WIDTH, distances};
use crate::kernels::pointwise::vectorized;
use crate::kernels::{Positions, Real, View};
use pulp::{Simd, WithSimd};

/// Points with their squared distance to the nearest sample so far.
///
/// Farthest point sampling takes, again and again, the point whose distance to all samples is largest; of equal ones the
/// one of lowest global index. Each rank steps its own points, and the best of the ranks' answers by (distance, index) is the next
/// sample. Points with a coordinate that is not finite are at distance NaN and
/// taken only when there is no other.
///
/// ```
/// use shard_ops::kernels::{neighbors::FarthestPoints, Positions, View};
/// let points = [0.0f32, 1.0, 4.0, 10.0];
/// let mut farthest = FarthestPoints::new(&View::contiguous(&points, &[4, 1]), Positions::from(0));
/// let first = farthest.step(&[0.0]).unwrap();
/// assert_eq!((first.index, first.distance), (3, 100.0));
/// let second = farthest.step(&points[first.row..=first.row]).unwrap();
/// assert_eq!((second.index, second.distance), (2, 16.0));
/// ```
#[derive(Debug)]
pub struct FarthestPoints<T> {
    columns: Columns<T>,
    index: Vec<i64>,
    /// Squared distance to the nearest sample, in whole blocks.
    nearest: Vec<T>,
}

/// The point farthest from all samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Farthest<T> {
    /// Its squared distance to the nearest sample.
    pub distance: T,
    /// Its global index.
    pub index: i64,
    /// Its row among this rank's points.
    pub row: usize,
}

impl<T: Real> FarthestPoints<T> {
    /// Points `[points, dim]` with these global indexes, before the first sample.
    ///
    /// # Panics
    /// When `points` has not two dims, or a list of indexes another length.
    pub fn new(points: &View<'_, T>, index: Positions<'_>) -> Self {
        assert!(
            points.ndim() == 2,
            "farthest points: points of shape {:?}",
            points.shape()
        );
        let columns = Columns::new(points);
        let mut nearest = vec![T::infinity(); columns.count().next_multiple_of(WIDTH)];
        for (near, row) in nearest
            .iter_mut()
            .zip(points.to_vec().chunks(columns.dim().max(1)))
        {
            if row.iter().any(|x| !x.is_finite()) {
                *near = T::nan();
            }
        }
        Self {
            index: index.list(columns.count()).into_owned(),
            nearest,
            columns,
        }
    }

    /// Takes in a sample and gives the point that is now farthest from all; none without points.
    ///
    /// # Panics
    /// When the sample has another number of coordinates.
    pub fn step(&mut self, sample: &[T]) -> Option<Farthest<T>> {
        assert!(
            sample.len() == self.columns.dim(),
            "farthest points: a sample of {} coordinates for points of {}",
            sample.len(),
            self.columns.dim()
        );
        let count = self.columns.count();
        vectorized(Lower {
            columns: &self.columns,
            sample,
            nearest: &mut self.nearest,
        });
        let rows = || self.nearest[..count].iter().zip(&self.index).enumerate();
        let candidate = |(row, (&distance, &index))| Farthest {
            distance,
            index,
            row,
        };
        let lowest = |a: Farthest<T>, b: Farthest<T>| if b.index < a.index { b } else { a };
        let largest = rows().fold(
            T::neg_infinity(),
            |m, (_, (&d, _))| if d > m { d } else { m },
        );
        rows()
            .filter(|(_, (d, _))| **d == largest)
            .map(candidate)
            .reduce(lowest)
            .or_else(|| rows().map(candidate).reduce(lowest))
    }

    /// Squared distances of the points to their nearest samples.
    pub fn distances(&self) -> &[T] {
        &self.nearest[..self.columns.count()]
    }
}

/// Lowers every point's distance to that of a sample.
struct Lower<'a, T> {
    columns: &'a Columns<T>,
    sample: &'a [T],
    nearest: &'a mut [T],
}

impl<T: Real> WithSimd for Lower<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (blocks, _) = pulp::as_arrays_mut::<WIDTH, T>(self.nearest);
        for (i, nearest) in blocks.iter_mut().enumerate() {
            // Without a bound no block is given up.
            let Some(distances) =
                distances::<T, WIDTH>(self.sample, self.columns.block(i), T::nan())
            else {
                continue;
            };
            for (near, &d) in nearest.iter_mut().zip(&distances) {
                *near = if d < *near { d } else { *near };
            }
        }
    }
}

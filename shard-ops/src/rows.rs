//! Where rows whose number the data decided lie between the indices they belong to.

use crate::{OpError, Result};
use shard_spec::{Layout, Partition};
use std::ops::Range;

/// What is known of rows that belong to the indices of a factor, in their order: at some boundaries between indices, how many
/// rows lie before.
///
/// An op whose [rows](crate::Access::Rows) the data decided knows them where the factor was divided among ranks, from the
/// layouts of its results alone; an op on those results (its derivative) can be divided there, and only there, without asking
/// the data again.
///
/// ```
/// use shard_ops::RowCuts;
/// // Indices 0..3 have five rows, 3..4 has none, 4..9 have two.
/// let cuts = RowCuts::new(&[0, 3, 4, 9], &[0, 5, 5, 7]).unwrap();
/// assert_eq!(cuts.rows(3..9), Some(5..7));
/// assert_eq!(cuts.rows(2..9), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowCuts {
    /// Boundaries of the factor from 0 to its extent, and the rows before each.
    at: Vec<(usize, usize)>,
}

impl RowCuts {
    /// What lies before boundaries of the factor, from 0 to its extent, in ascending order. `None` where the lists are no such
    /// tables or of different lengths.
    pub fn new(indices: &[usize], rows: &[usize]) -> Option<Self> {
        let table = |list: &[usize]| list.first() == Some(&0) && list.is_sorted();
        let at: Vec<(usize, usize)> = indices.iter().copied().zip(rows.iter().copied()).collect();
        let function = at.windows(2).all(|w| w[0].0 != w[1].0 || w[0].1 == w[1].1);
        (indices.len() == rows.len() && table(indices) && table(rows) && function)
            .then_some(Self { at })
    }

    /// What the layouts of two results of one op tell: one with an element per index of the factor along its first dim, one
    /// with the rows along its first dim.
    ///
    /// # Errors
    /// Layouts that are not divided alike, which no op gives to its results.
    pub fn between(op: &'static str, indices: &Layout, rows: &Layout) -> Result<Self> {
        let ends = |layout: &Layout| vec![0, layout.shape().first().copied().unwrap_or(0)];
        let offsets = |layout: &Layout| match layout.sharding(0) {
            Some(sharding) => sharding.partition.to_contiguous().as_slice().to_vec(),
            None => ends(layout),
        };
        let found = if indices.axis_order(0) == rows.axis_order(0) {
            Self::new(&offsets(indices), &offsets(rows))
        } else {
            Self::new(&ends(indices), &ends(rows))
        };
        found.ok_or_else(|| OpError::Shape {
            op,
            problem: format!("rows {rows} of indices {indices}"),
            shapes: vec![indices.shape().to_vec(), rows.shape().to_vec()],
            fix: "give results of one call",
        })
    }

    /// The extents of the factor and of the rows.
    pub fn extents(&self) -> (usize, usize) {
        self.at.last().copied().unwrap_or_default()
    }

    /// The rows of a span of the factor, if both its ends are known.
    pub fn rows(&self, span: Range<usize>) -> Option<Range<usize>> {
        if span.is_empty() {
            // No index has no rows, wherever it is.
            let before = self.at.partition_point(|(i, _)| *i <= span.start);
            let start = self.at[before.saturating_sub(1)].1;
            return Some(start..start);
        }
        Some(self.before(span.start)?..self.before(span.end)?)
    }

    /// The division of the rows that belongs to one of the factor, if its boundaries are known.
    pub fn divided(&self, factor: &Partition) -> Option<Partition> {
        let offsets = factor.offsets()?.iter().map(|&i| self.before(i));
        Partition::from_offsets(self.extents().1, offsets.collect::<Option<_>>()?).ok()
    }

    /// The division of the factor that belongs to the one of the rows that these cuts were taken from; `None` for any other.
    pub fn divides(&self, rows: &Partition) -> Option<Partition> {
        let (indices, cut): (Vec<usize>, Vec<usize>) = self.at.iter().copied().unzip();
        if rows.offsets()? != cut {
            return None;
        }
        Partition::from_offsets(self.extents().0, indices).ok()
    }

    fn before(&self, index: usize) -> Option<usize> {
        let found = self.at.binary_search_by_key(&index, |(i, _)| *i).ok()?;
        Some(self.at[found].1)
    }
}

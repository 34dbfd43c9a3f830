//! Device meshes: N-D arrays of ranks.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::dims::{Dims, checked_numel};
use crate::error::{Result, SpecError};
use crate::hash::{ContentHash, StableHasher};

/// Coordinates of a rank: one index per mesh axis.
pub type Coords = SmallVec<[usize; 4]>;

/// The most ranks of a mesh, and so the most parts of a partition. Each takes memory on every rank, so what users ask for is
/// checked before anything is allocated.
pub(crate) const MOST_RANKS: usize = 1 << 24;

/// An N-D, row-major array of distinct world ranks, with optional axis names. Immutable; a clone is a pointer copy.
///
/// A mesh without axes holds one rank.
///
/// ```
/// use shard_spec::DeviceMesh;
/// let mesh = DeviceMesh::new(&[2, 3])?.with_names(&["data", "space"])?;
/// assert_eq!(mesh.coords(4).as_deref(), Some(&[1, 1][..]));
/// assert_eq!(mesh.groups(&[mesh.axis("data")?]), [[0, 3], [1, 4], [2, 5]]);
/// assert_eq!(mesh.slice(4, &["space"])?.ranks(), &[3, 4, 5]);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Clone)]
pub struct DeviceMesh(Arc<Inner>);

struct Inner {
    shape: Dims,
    ranks: Vec<usize>,
    names: Option<Vec<String>>,
    /// `(rank, index)` sorted by rank; empty where rank = index, the usual case.
    inverse: Vec<(usize, usize)>,
    hash: u128,
}

impl DeviceMesh {
    /// The mesh of ranks `0..n` in row-major order.
    ///
    /// # Errors
    /// [`SpecError::ZeroMeshAxis`]; [`SpecError::Overflow`] or, for more than 2^24 ranks, [`SpecError::Argument`].
    pub fn new(shape: &[usize]) -> Result<Self> {
        let size = mesh_size(shape)?;
        Self::build(shape, (0..size).collect(), None)
    }

    /// A mesh of the given world ranks, listed row-major.
    ///
    /// # Errors
    /// As [`DeviceMesh::new`], and [`SpecError::RankCount`], [`SpecError::DuplicateRank`].
    pub fn with_ranks(shape: &[usize], ranks: Vec<usize>) -> Result<Self> {
        Self::build(shape, ranks, None)
    }

    /// The same mesh with named axes.
    ///
    /// # Errors
    /// [`SpecError::NameCount`], [`SpecError::BadName`].
    pub fn with_names(&self, names: &[&str]) -> Result<Self> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Self::build(self.shape(), self.0.ranks.clone(), Some(names))
    }

    /// Number of axes.
    pub fn ndim(&self) -> usize {
        self.0.shape.len()
    }

    /// Ranks along each axis.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.ranks.len()
    }

    /// World ranks, row-major.
    pub fn ranks(&self) -> &[usize] {
        &self.0.ranks
    }

    /// Axis names, where there are any.
    pub fn names(&self) -> Option<&[String]> {
        self.0.names.as_deref()
    }

    /// The axis of this name.
    ///
    /// # Errors
    /// [`SpecError::UnknownName`].
    pub fn axis(&self, name: &str) -> Result<usize> {
        let names = self.names().unwrap_or_default();
        names
            .iter()
            .position(|n| n == name)
            .ok_or_else(|| SpecError::UnknownName {
                name: name.to_owned(),
                known: names.to_vec(),
            })
    }

    /// Ranks along one axis.
    ///
    /// # Panics
    /// Where `axis >= ndim()`.
    pub fn axis_size(&self, axis: usize) -> usize {
        self.0.shape[axis]
    }

    /// Row-major position of a world rank.
    pub fn index_of(&self, rank: usize) -> Option<usize> {
        if self.0.inverse.is_empty() {
            return (rank < self.size()).then_some(rank);
        }
        let at = self
            .0
            .inverse
            .binary_search_by_key(&rank, |&(r, _)| r)
            .ok()?;
        Some(self.0.inverse[at].1)
    }

    /// Whether the mesh holds this world rank.
    pub fn contains(&self, rank: usize) -> bool {
        self.index_of(rank).is_some()
    }

    /// Coordinates of a world rank.
    pub fn coords(&self, rank: usize) -> Option<Coords> {
        self.index_of(rank)
            .map(|index| unravel(index, self.shape()))
    }

    /// The coordinates of the member at row-major position `index`.
    ///
    /// ```
    /// use shard_spec::DeviceMesh;
    /// let mesh = DeviceMesh::new(&[2, 3])?;
    /// assert_eq!(mesh.coords_at(4)[..], [1, 1]);
    /// assert_eq!(mesh.index_at(&[1, 1]), 4);
    /// // Over axes (1, 0), major to minor, these coordinates are part 1 * 2 + 1 of 6.
    /// assert_eq!(mesh.part_at(&[1, 0], &[1, 1]), 3);
    /// # Ok::<(), shard_spec::SpecError>(())
    /// ```
    ///
    /// # Panics
    /// Where `index >= size()`.
    pub fn coords_at(&self, index: usize) -> Coords {
        assert!(index < self.size(), "no position {index} of {self}");
        unravel(index, self.shape())
    }

    /// The row-major position of the member at these coordinates.
    ///
    /// # Panics
    /// Where the coordinates are off the mesh, too few or too many.
    pub fn index_at(&self, coords: &[usize]) -> usize {
        assert!(self.has(coords), "no coordinates {coords:?} on {self}");
        ravel(coords, self.shape())
    }

    /// How many parts `axes` divide a dim into together: the ranks along one times those along the next.
    ///
    /// ```
    /// use shard_spec::DeviceMesh;
    /// let mesh = DeviceMesh::new(&[2, 3, 5])?;
    /// assert_eq!((mesh.part_count(&[2, 0]), mesh.part_count(&[])), (10, 1));
    /// # Ok::<(), shard_spec::SpecError>(())
    /// ```
    ///
    /// # Panics
    /// Where the mesh has no such axis.
    pub fn part_count(&self, axes: &[usize]) -> usize {
        axes.iter().map(|&a| self.axis_size(a)).product()
    }

    /// The flat part at these coordinates over `axes`, major to minor.
    ///
    /// # Panics
    /// Where the mesh, or `coords`, has no such axis, or the coordinates along them are off the mesh.
    pub fn part_at(&self, axes: &[usize], coords: &[usize]) -> usize {
        axes.iter().fold(0, |part, &a| {
            let (size, at) = (self.shape()[a], coords[a]);
            assert!(at < size, "no coordinate {at} along axis {a} of {self}");
            part * size + at
        })
    }

    /// Sets the coordinates along `axes` to those of a flat part: the reverse of [`DeviceMesh::part_at`].
    ///
    /// # Panics
    /// Where the mesh, or `coords`, has no such axis, or there are not so many parts.
    pub fn set_part(&self, axes: &[usize], mut part: usize, coords: &mut [usize]) {
        for &a in axes.iter().rev() {
            coords[a] = part % self.shape()[a];
            part /= self.shape()[a];
        }
        assert!(part == 0, "no such part over axes {axes:?} of {self}");
    }

    /// Whether these are coordinates on the mesh.
    fn has(&self, coords: &[usize]) -> bool {
        coords.len() == self.ndim() && coords.iter().zip(self.shape()).all(|(c, n)| c < n)
    }

    /// The world rank at these coordinates; `None` where they are off the mesh, or too few or too many.
    pub fn rank_at(&self, coords: &[usize]) -> Option<usize> {
        if !self.has(coords) {
            return None;
        }
        self.0.ranks.get(ravel(coords, self.shape())).copied()
    }

    /// The sets of world ranks that differ only in these axes: together a partition of the mesh.
    ///
    /// Within a group ranks are row-major over `axes` in the order given; groups are row-major over the other axes.
    ///
    /// # Panics
    /// Where an axis is out of range or given twice.
    pub fn groups(&self, axes: &[usize]) -> Vec<Vec<usize>> {
        if let Err(err) = self.check_axes("groups", axes) {
            panic!("{err}");
        }
        let others: Vec<usize> = (0..self.ndim()).filter(|a| !axes.contains(a)).collect();
        let extents = |axes: &[usize]| axes.iter().map(|&a| self.axis_size(a)).collect::<Coords>();
        let (inner, outer) = (extents(axes), extents(&others));
        let mut coords: Coords = SmallVec::from_elem(0, self.ndim());
        let mut groups = Vec::with_capacity(outer.iter().product());
        for group in 0..outer.iter().product() {
            for (&axis, c) in others.iter().zip(unravel(group, &outer)) {
                coords[axis] = c;
            }
            let members = (0..inner.iter().product()).map(|member| {
                for (&axis, c) in axes.iter().zip(unravel(member, &inner)) {
                    coords[axis] = c;
                }
                self.0.ranks[ravel(&coords, self.shape())]
            });
            groups.push(members.collect());
        }
        groups
    }

    /// The submesh that holds `rank` and spans the given axes, in that order. Names are kept.
    ///
    /// # Errors
    /// [`SpecError::NotInMesh`], [`SpecError::AxisOutOfRange`], [`SpecError::RepeatedAxis`].
    pub fn submesh(&self, rank: usize, axes: &[usize]) -> Result<Self> {
        self.check_axes("submesh", axes)?;
        let Some(mut coords) = self.coords(rank) else {
            return Err(SpecError::NotInMesh {
                op: "submesh",
                rank,
                mesh: self.to_string(),
            });
        };
        if axes.iter().copied().eq(0..self.ndim()) {
            return Ok(self.clone());
        }
        let shape: Dims = axes.iter().map(|&a| self.axis_size(a)).collect();
        let ranks = (0..shape.iter().product()).map(|member| {
            for (&axis, c) in axes.iter().zip(unravel(member, &shape)) {
                coords[axis] = c;
            }
            self.0.ranks[ravel(&coords, self.shape())]
        });
        let names = self
            .names()
            .map(|names| axes.iter().map(|&a| names[a].clone()).collect());
        Self::build(&shape, ranks.collect(), names)
    }

    /// [`DeviceMesh::submesh`] by axis names.
    ///
    /// # Errors
    /// As [`DeviceMesh::submesh`], and [`SpecError::UnknownName`].
    pub fn slice(&self, rank: usize, names: &[&str]) -> Result<Self> {
        let axes: Coords = names
            .iter()
            .map(|name| self.axis(name))
            .collect::<Result<_>>()?;
        self.submesh(rank, &axes)
    }

    /// The same ranks in the same order along a single axis; its name joins the axes' names by `_`.
    pub fn flatten(&self) -> Self {
        let names = self
            .names()
            .filter(|names| !names.is_empty())
            .map(|names| vec![names.join("_")]);
        Self::assemble(
            SmallVec::from_slice(&[self.size()]),
            self.0.ranks.clone(),
            names,
        )
    }

    /// Hash of shape, ranks and names, equal on every process.
    pub fn content_hash(&self) -> u128 {
        self.0.hash
    }

    /// Refuses axes that are out of range or repeated.
    pub(crate) fn check_axes(&self, op: &'static str, axes: &[usize]) -> Result<()> {
        for (i, &axis) in axes.iter().enumerate() {
            if axis >= self.ndim() {
                return Err(SpecError::AxisOutOfRange {
                    op,
                    axis,
                    ndim: self.ndim(),
                });
            }
            if axes[..i].contains(&axis) {
                return Err(SpecError::RepeatedAxis { op, axis });
            }
        }
        Ok(())
    }

    pub(crate) fn build(
        shape: &[usize],
        ranks: Vec<usize>,
        names: Option<Vec<String>>,
    ) -> Result<Self> {
        let expected = mesh_size(shape)?;
        if ranks.len() != expected {
            return Err(SpecError::RankCount {
                shape: shape.to_vec(),
                expected,
                got: ranks.len(),
            });
        }
        if let Some(names) = &names {
            if names.len() != shape.len() {
                return Err(SpecError::NameCount {
                    expected: shape.len(),
                    got: names.len(),
                });
            }
            for (i, name) in names.iter().enumerate() {
                if name.is_empty() || names[..i].contains(name) {
                    return Err(SpecError::BadName { name: name.clone() });
                }
            }
        }
        let mesh = Self::assemble(SmallVec::from_slice(shape), ranks, names);
        let twins = mesh.0.inverse.windows(2).find(|w| w[0].0 == w[1].0);
        if let Some(&[(rank, first), (_, second)]) = twins.and_then(|w| w.first_chunk()) {
            return Err(SpecError::DuplicateRank {
                rank,
                first,
                second,
            });
        }
        Ok(mesh)
    }

    /// Builds without checks; a repeated rank shows as equal neighbours in `inverse`.
    fn assemble(shape: Dims, ranks: Vec<usize>, names: Option<Vec<String>>) -> Self {
        let mut inverse = Vec::new();
        if ranks.iter().enumerate().any(|(i, &rank)| i != rank) {
            inverse = ranks
                .iter()
                .enumerate()
                .map(|(i, &rank)| (rank, i))
                .collect();
            inverse.sort_unstable();
        }
        let mut hasher = StableHasher::new("mesh");
        hasher.usizes(&shape);
        hasher.usizes(&ranks);
        for name in names.iter().flatten() {
            hasher.str(name);
        }
        let hash = hasher.finish();
        Self(Arc::new(Inner {
            shape,
            ranks,
            names,
            inverse,
            hash,
        }))
    }
}

impl PartialEq for DeviceMesh {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        Arc::ptr_eq(a, b)
            || (a.hash == b.hash && a.shape == b.shape && a.ranks == b.ranks && a.names == b.names)
    }
}

impl Eq for DeviceMesh {}

impl Hash for DeviceMesh {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}

impl ContentHash for DeviceMesh {
    fn feed(&self, hasher: &mut StableHasher) {
        hasher.u128(self.0.hash);
    }
}

impl fmt::Display for DeviceMesh {
    /// `mesh(data=2, space=3)`, or `mesh(2x3)` without names; ranks follow unless they are `0..n`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("mesh(")?;
        for (axis, size) in self.shape().iter().enumerate() {
            match self.names() {
                Some(names) => write!(
                    f,
                    "{}{}={size}",
                    if axis == 0 { "" } else { ", " },
                    names[axis]
                )?,
                None => write!(f, "{}{size}", if axis == 0 { "" } else { "x" })?,
            }
        }
        f.write_str(")")?;
        if self.0.inverse.is_empty() {
            Ok(())
        } else {
            write!(f, " of ranks {:?}", self.ranks())
        }
    }
}

impl fmt::Debug for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Ranks of a mesh shape, refusing empty axes and more ranks than there can be.
fn mesh_size(shape: &[usize]) -> Result<usize> {
    if let Some(axis) = shape.iter().position(|&n| n == 0) {
        return Err(SpecError::ZeroMeshAxis {
            shape: shape.to_vec(),
            axis,
        });
    }
    let size = checked_numel(shape)?;
    if size > MOST_RANKS {
        return Err(SpecError::Argument {
            op: "mesh",
            argument: "shape",
            got: format!("{shape:?} of {size} ranks"),
            expected: format!("at most {MOST_RANKS} ranks"),
            remedy: "give the ranks of the job along each axis, not extents of a tensor",
        });
    }
    Ok(size)
}

/// Row-major index of coordinates.
fn ravel(coords: &[usize], shape: &[usize]) -> usize {
    coords
        .iter()
        .zip(shape)
        .fold(0, |index, (&c, &n)| index * n + c)
}

/// Coordinates of a row-major index.
pub(crate) fn unravel(mut index: usize, shape: &[usize]) -> Coords {
    let mut coords: Coords = SmallVec::from_elem(0, shape.len());
    for (c, &n) in coords.iter_mut().zip(shape).rev() {
        *c = index % n;
        index /= n;
    }
    coords
}

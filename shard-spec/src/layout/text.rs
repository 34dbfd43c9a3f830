//! The short form of layouts: one token per mesh axis, in mesh order.
//!
//! In `S(0)[3,1,0,2] R P(sum)` the sizes of the parts follow the first axis that shards the dim, and only where they are not
//! those of the nested chunk. That axis also gives the order of the axes, major first, where it is not mesh order: `S(0;1,0)`.
//! Segments are written as tiles `part:size` in index order, `S(0)[0:2,1:4,0:2]`, with a `*` where they repeat:
//! `S(0)[0:1,1:1]*`.

use std::fmt;

use smallvec::SmallVec;

use super::{DimSharding, Layout, axis_sizes};
use crate::error::{Result, SpecError};
use crate::mesh::DeviceMesh;
use crate::partition::Partition;
use crate::placement::Placement;

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (axis, placement) in self.placements().iter().enumerate() {
            if axis > 0 {
                f.write_str(" ")?;
            }
            match placement
                .shard_dim()
                .and_then(|dim| Some((dim, self.sharding(dim)?)))
            {
                Some((dim, sharding)) if sharding.axes.iter().all(|&a| a >= axis) => {
                    write_sharding(f, self.mesh(), dim, sharding)?;
                }
                _ => write!(f, "{placement}")?,
            }
        }
        Ok(())
    }
}

fn write_sharding(
    f: &mut fmt::Formatter<'_>,
    mesh: &DeviceMesh,
    dim: usize,
    sharding: &DimSharding,
) -> fmt::Result {
    let DimSharding { axes, partition } = sharding;
    write!(f, "S({dim}")?;
    if !axes.is_sorted() {
        for (i, axis) in axes.iter().enumerate() {
            write!(f, "{}{axis}", if i == 0 { ';' } else { ',' })?;
        }
    }
    f.write_str(")")?;
    if *partition == Partition::nested_chunk(partition.extent(), &axis_sizes(mesh, axes)) {
        return Ok(());
    }
    write!(f, "{partition}")
}

impl Layout {
    /// Reads the short form for a mesh and a shape: the inverse of `Display`.
    ///
    /// # Errors
    /// [`SpecError::Parse`] for other text, [`SpecError::PlacementCount`], and as [`LayoutBuilder::build`](super::LayoutBuilder::build).
    pub fn parse(mesh: &DeviceMesh, shape: &[usize], text: &str) -> Result<Self> {
        let tokens: Vec<Token<'_>> = split(text)
            .into_iter()
            .map(|token| Token::parse(text, token))
            .collect::<Result<_>>()?;
        if tokens.len() != mesh.ndim() {
            let (expected, got) = (mesh.ndim(), tokens.len());
            return Err(SpecError::PlacementCount {
                op: "parse layout",
                expected,
                got,
            });
        }
        let mut builder = Self::builder(mesh, shape);
        for (axis, token) in tokens.iter().enumerate() {
            match token.placement {
                Placement::Replicate => {}
                Placement::Partial(op) => builder = builder.partial(axis, op),
                Placement::Shard(dim) => {
                    let axes: SmallVec<[usize; 4]> = (0..tokens.len())
                        .filter(|&a| tokens[a].placement == token.placement)
                        .collect();
                    if axes[0] == axis {
                        let order = token.order(text, &axes)?;
                        builder = match &token.sizes {
                            Some(sizes) => {
                                let parts = axis_sizes(mesh, &order).iter().product();
                                let extent = shape.get(dim).copied().unwrap_or(0);
                                builder.shard(dim, &order, sizes.partition(extent, parts)?)
                            }
                            None => builder.shard_chunk(dim, &order),
                        };
                    } else if token.sizes.is_some() || token.order.is_some() {
                        let expected =
                            format!("sizes and order of dim {dim} on mesh axis {}", axes[0]);
                        return Err(unreadable(text, token.text, expected));
                    }
                }
            }
        }
        builder.build()
    }
}

/// One token: a placement, and for the first axis of a dim its order and sizes.
struct Token<'a> {
    text: &'a str,
    placement: Placement,
    order: Option<Vec<usize>>,
    sizes: Option<Sizes>,
}

/// What stands in square brackets.
enum Sizes {
    Parts(Vec<usize>),
    Tiles {
        tiles: Vec<(usize, usize)>,
        repeated: bool,
    },
}

impl Sizes {
    fn partition(&self, extent: usize, parts: usize) -> Result<Partition> {
        match self {
            Self::Parts(sizes) => Partition::from_sizes(sizes),
            Self::Tiles {
                tiles,
                repeated: false,
            } => Partition::from_segments(extent, parts, tiles),
            Self::Tiles { tiles, .. } => Partition::from_repeated(extent, parts, tiles),
        }
    }
}

impl<'a> Token<'a> {
    fn parse(input: &str, text: &'a str) -> Result<Self> {
        let bad = || {
            unreadable(
                input,
                text,
                "S(dim), S(dim;axes)[sizes], S(dim)[part:size,...], R or P(op)".to_owned(),
            )
        };
        let numbers = |list: &str| -> Result<Vec<usize>> {
            list.split(',')
                .map(|n| n.trim().parse().map_err(|_| bad()))
                .collect()
        };
        let Some(shard) = text.strip_prefix("S(") else {
            let placement = text.parse().map_err(|_| bad())?;
            return Ok(Self {
                text,
                placement,
                order: None,
                sizes: None,
            });
        };
        let (inside, after) = shard.split_once(')').ok_or_else(bad)?;
        let (dim, order) = match inside.split_once(';') {
            Some((dim, order)) => (dim, Some(numbers(order)?)),
            None => (inside, None),
        };
        let placement = Placement::Shard(dim.parse().map_err(|_| bad())?);
        let (after, repeated) = match after.strip_suffix('*') {
            Some(before) => (before, true),
            None => (after, false),
        };
        let inside = |text: &'a str| text.strip_prefix('[')?.strip_suffix(']');
        let sizes = match after {
            "" if repeated => return Err(bad()),
            "" => None,
            _ => {
                let list = inside(after).ok_or_else(bad)?;
                if list.contains(':') {
                    let tile = |tile: &str| {
                        let (part, size) = tile.split_once(':').ok_or_else(bad)?;
                        let number = |n: &str| n.trim().parse().map_err(|_| bad());
                        Ok((number(part)?, number(size)?))
                    };
                    let tiles = list.split(',').map(tile).collect::<Result<_>>()?;
                    Some(Sizes::Tiles { tiles, repeated })
                } else if repeated {
                    return Err(bad());
                } else {
                    Some(Sizes::Parts(numbers(list)?))
                }
            }
        };
        Ok(Self {
            text,
            placement,
            order,
            sizes,
        })
    }

    /// The axes of the dim, major first, as the text gives them. They must be a permutation of the axes that shard the dim.
    fn order(&self, input: &str, axes: &[usize]) -> Result<SmallVec<[usize; 4]>> {
        let Some(order) = &self.order else {
            return Ok(SmallVec::from_slice(axes));
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted == axes {
            Ok(SmallVec::from_slice(order))
        } else {
            Err(unreadable(
                input,
                self.text,
                format!("an order of the mesh axes {axes:?}"),
            ))
        }
    }
}

/// Splits at blanks outside brackets.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let separates = |c: char| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && c.is_whitespace()
    };
    text.split(separates)
        .filter(|token| !token.is_empty())
        .collect()
}

fn unreadable(input: &str, got: &str, expected: String) -> SpecError {
    SpecError::Parse {
        what: "a layout",
        input: input.to_owned(),
        expected,
        got: got.to_owned(),
    }
}

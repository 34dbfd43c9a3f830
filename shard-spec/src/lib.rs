//! Where every piece of a distributed tensor lives, and which pieces move.
//!
//! This crate is arithmetic only: no data, no communication, no element types, no `unsafe`. It describes
//!
//! - **meshes** ([`DeviceMesh`]): N-D arrays of ranks with optional axis names;
//! - **placements** ([`Placement`]): what one mesh axis does with a tensor, and **partitions** ([`Partition`]): how one dim
//!   is divided, unevenly or with empty parts;
//! - **layouts** ([`Layout`]): both together, the map from ranks to boxes ([`IndexBox`]) of the global index space, with a
//!   short form that prints and parses and a hash that is equal on every process;
//! - **covers** ([`DimCover`]): what ranks need rather than own, such as a slab with its halo;
//! - **index maps** ([`DimMap`]): slices, flips, rolls, concatenations and pads as affine runs, and their [`overlaps`] with
//!   partitions, which are the pieces an exchange copies;
//! - **windows** ([`Window`]): which inputs the outputs of a convolution, pooling, interpolation or neighbourhood
//!   attention read.
//!
//! Everything is a function of arguments that all ranks share, so every rank derives the same answers and the same errors
//! without talking.
//!
//! # The halo of an uneven convolution
//!
//! ```
//! use shard_spec::{DeviceMesh, DimMap, EdgeMap, Layout, Window, overlaps};
//!
//! // 10 rows over 4 ranks, one of them empty.
//! let mesh = DeviceMesh::new(&[4])?;
//! let layout = Layout::parse(&mesh, &[10, 8], "S(0)[5,1,0,4]")?;
//! let rows = &layout.sharding(0).unwrap().partition;
//!
//! // A 5-wide "same" convolution keeps the boundaries; rank 1 owns output row 5 and needs input rows 3 to 7.
//! let window = Window::conv(5, 1, 1, 2, 2)?;
//! let outputs = window.anchor(10, rows);
//! assert_eq!(&outputs, rows);
//! let needed = window.input_interval(10, outputs.contiguous().unwrap().interval(1));
//! assert_eq!(needed, 3..8);
//!
//! // Padded by two, input row i is row i + 2. Rank 1 gets two rows of rank 0, its own, and two of rank 3, beyond the empty rank.
//! let padded = DimMap::pad(10, 2, 2, EdgeMap::Zeros)?;
//! let pieces = overlaps(rows, &padded, 5..10);
//! let from: Vec<_> = pieces.iter().map(|p| (p.src_part, p.src_start, p.len)).collect();
//! assert_eq!(from, [(0, 3, 2), (1, 0, 1), (3, 0, 2)]);
//! # Ok::<(), shard_spec::SpecError>(())
//! ```
//!
//! # Features
//!
//! - `proptest`: what property tests draw: meshes, partitions and layouts, uneven and empty ones among them (module `strategies`).
//! - `serde`: meshes, partitions, layouts, maps and windows serialise as plain fields and are validated again when read.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod boxes;
mod cover;
mod dim_map;
mod dims;
mod error;
mod hash;
mod layout;
mod mesh;
mod most_pieces;
mod overlap;
mod part;
mod partition;
mod placement;
mod progression;
mod reduce_op;
mod reshape;
mod segments;
#[cfg(feature = "serde")]
mod serial;
#[cfg(feature = "proptest")]
#[cfg_attr(docsrs, doc(cfg(feature = "proptest")))]
pub mod strategies;
mod window;

pub use boxes::IndexBox;
pub use cover::{CoverParts, DimCover};
pub use dim_map::{DimMap, EdgeMap, Run};
pub use dims::{Dims, Strides, checked_numel, checked_row_major_strides, numel, row_major_strides};
pub use error::{Result, SpecError};
pub use hash::{ContentHash, StableHasher};
pub use layout::{DimSharding, Layout, LayoutBuilder};
pub use mesh::{Coords, DeviceMesh};
pub use most_pieces::most_pieces;
pub use overlap::{DimPiece, DimSend, overlaps, overlaps_from, overlaps_to};
pub use part::DimPart;
pub use partition::{Offsets, Partition};
pub use placement::Placement;
pub use progression::{Intersection, Progression};
pub use reduce_op::ReduceOp;
pub use reshape::{ReshapeGroup, reshape_groups, reshape_stop};
pub use segments::Segments;
pub use window::{Neighbors, ResampleMode, Sample, ScaleFactor, Window};

/// What the tests of this crate look at beside what is public.
#[doc(hidden)]
pub mod inside {
    pub use crate::dim_map::candidates::candidates;
}

/// The program in the README runs as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

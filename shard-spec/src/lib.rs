//! Meshes, placements, partitions and layouts: where every piece of a distributed tensor lives.
#![forbid(unsafe_code)]

mod boxes;
mod cover;
mod dim_map;
mod dims;
mod error;
mod hash;
mod layout;
mod mesh;
mod overlap;
mod partition;
mod placement;
mod progression;
#[cfg(feature = "serde")]
mod serial;
mod window;

pub use boxes::IndexBox;
pub use cover::DimCover;
pub use dim_map::{DimMap, EdgeMap, Run};
pub use dims::{Dims, Strides, checked_numel, checked_row_major_strides, numel, row_major_strides};
pub use error::{Result, SpecError};
pub use hash::{ContentHash, StableHasher};
pub use layout::{DimSharding, Layout, LayoutBuilder};
pub use mesh::{Coords, DeviceMesh};
pub use overlap::{DimPiece, DimSend, overlaps, overlaps_from};
pub use partition::{Offsets, Partition};
pub use placement::{Placement, ReduceOp};
pub use window::{ResampleMode, Sample, ScaleFactor, Window};

//! What meshes, partitions and layouts look like in serde formats: plain fields, validated again when read.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use crate::dim_map::{DimMap, Run};
use crate::error::SpecError;
use crate::layout::{DimSharding, Layout};
use crate::mesh::DeviceMesh;
use crate::partition::Partition;
use crate::placement::Placement;
use crate::reduce_op::ReduceOp;
use crate::window::{ResampleMode, ScaleFactor, Window};

/// Writes and reads a type in the form of another.
macro_rules! in_the_form_of {
    ($($type:ty: $form:ty),+ $(,)?) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$form>::from(self.clone()).serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let form = <$form>::deserialize(deserializer)?;
                form.try_into().map_err(D::Error::custom)
            }
        }
    )+};
}

// Placements and reductions go by their short forms, which are readable in any format.
in_the_form_of! {
    DeviceMesh: MeshRepr,
    Partition: PartitionRepr,
    Layout: LayoutRepr,
    DimMap: DimMapRepr,
    Window: WindowRepr,
    Placement: String,
    ReduceOp: String,
}

impl From<ReduceOp> for String {
    fn from(op: ReduceOp) -> Self {
        op.name().to_owned()
    }
}

impl TryFrom<String> for ReduceOp {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

impl TryFrom<String> for Placement {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

#[derive(Serialize, Deserialize)]
struct MeshRepr {
    shape: Vec<usize>,
    ranks: Vec<usize>,
    #[serde(default)]
    names: Option<Vec<String>>,
}

impl From<DeviceMesh> for MeshRepr {
    fn from(mesh: DeviceMesh) -> Self {
        let names = mesh.names().map(<[String]>::to_vec);
        Self {
            shape: mesh.shape().to_vec(),
            ranks: mesh.ranks().to_vec(),
            names,
        }
    }
}

impl TryFrom<MeshRepr> for DeviceMesh {
    type Error = SpecError;

    fn try_from(repr: MeshRepr) -> Result<Self, SpecError> {
        Self::build(&repr.shape, repr.ranks, repr.names)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartitionRepr {
    Offsets(Vec<usize>),
    Segments {
        extent: usize,
        parts: usize,
        /// `(part, size)` in index order, repeated up to the extent.
        tiles: Vec<(usize, usize)>,
    },
}

impl PartitionRepr {
    fn parts(&self) -> usize {
        match self {
            Self::Offsets(offsets) => offsets.len().saturating_sub(1),
            Self::Segments { parts, .. } => *parts,
        }
    }
}

impl From<Partition> for PartitionRepr {
    fn from(partition: Partition) -> Self {
        match &partition {
            Partition::Contiguous(offsets) => Self::Offsets(offsets.as_slice().to_vec()),
            Partition::Segments(segments) => Self::Segments {
                extent: partition.extent(),
                parts: partition.parts(),
                tiles: segments.tiles().collect(),
            },
        }
    }
}

impl TryFrom<PartitionRepr> for Partition {
    type Error = SpecError;

    fn try_from(repr: PartitionRepr) -> Result<Self, SpecError> {
        match repr {
            PartitionRepr::Offsets(offsets) => {
                Self::from_offsets(offsets.last().copied().unwrap_or(0), offsets)
            }
            PartitionRepr::Segments {
                extent,
                parts,
                tiles,
            } => Self::from_repeated(extent, parts, &tiles),
        }
    }
}

/// A dim's axes and partition, the partition not yet built.
#[derive(Serialize, Deserialize)]
struct ShardingRepr {
    axes: SmallVec<[usize; 2]>,
    partition: PartitionRepr,
}

#[derive(Serialize, Deserialize)]
struct LayoutRepr {
    mesh: DeviceMesh,
    shape: Vec<usize>,
    dims: Vec<Option<ShardingRepr>>,
    #[serde(default)]
    partial: Option<(ReduceOp, Vec<usize>)>,
}

impl From<Layout> for LayoutRepr {
    fn from(layout: Layout) -> Self {
        let sharding = |s: &DimSharding| ShardingRepr {
            axes: s.axes.clone(),
            partition: s.partition.clone().into(),
        };
        Self {
            mesh: layout.mesh().clone(),
            shape: layout.shape().to_vec(),
            dims: (layout.shardings().iter())
                .map(|s| s.as_ref().map(sharding))
                .collect(),
            partial: layout
                .partial_op()
                .map(|op| (op, layout.partial_axes().to_vec())),
        }
    }
}

impl TryFrom<LayoutRepr> for Layout {
    type Error = SpecError;

    fn try_from(repr: LayoutRepr) -> Result<Self, SpecError> {
        let partial = repr
            .partial
            .as_ref()
            .map(|(op, axes)| (*op, axes.as_slice()));
        let sharding = |s: ShardingRepr| {
            // Each part takes memory, so their number is checked before there are any.
            let size = |&axis: &usize| repr.mesh.shape().get(axis).copied().unwrap_or(1);
            let expected = s.axes.iter().map(size).fold(1, usize::saturating_mul);
            let got = s.partition.parts();
            if got != expected {
                let op = "layout";
                return Err(SpecError::PartCount { op, expected, got });
            }
            Ok(DimSharding {
                axes: s.axes,
                partition: s.partition.try_into()?,
            })
        };
        let dims = repr.dims.into_iter().map(|s| s.map(sharding).transpose());
        let dims = dims.collect::<Result<Vec<_>, _>>()?;
        Self::from_dims(&repr.mesh, &repr.shape, dims, partial)
    }
}

#[derive(Serialize, Deserialize)]
struct DimMapRepr {
    src_extent: usize,
    dst_extent: usize,
    runs: Vec<Run>,
}

impl From<DimMap> for DimMapRepr {
    fn from(map: DimMap) -> Self {
        Self {
            src_extent: map.src_extent(),
            dst_extent: map.dst_extent(),
            runs: map.runs().to_vec(),
        }
    }
}

impl TryFrom<DimMapRepr> for DimMap {
    type Error = SpecError;

    fn try_from(repr: DimMapRepr) -> Result<Self, SpecError> {
        Self::from_runs(repr.src_extent, repr.dst_extent, repr.runs)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WindowRepr {
    Conv {
        kernel: usize,
        stride: usize,
        dilation: usize,
        pad_lo: usize,
        pad_hi: usize,
    },
    Pool {
        kernel: usize,
        stride: usize,
        pad: usize,
        dilation: usize,
    },
    Transposed {
        kernel: usize,
        stride: usize,
        dilation: usize,
        pad_lo: usize,
        pad_hi: usize,
        output_padding: usize,
    },
    Resample {
        input: usize,
        output: usize,
        mode: ResampleMode,
        scale: Option<f64>,
    },
    Neighborhood {
        extent: usize,
        kernel: usize,
        dilation: usize,
        causal: bool,
    },
}

impl From<Window> for WindowRepr {
    fn from(window: Window) -> Self {
        match window {
            Window::Direct {
                kernel,
                stride,
                dilation,
                pad_lo,
                ceil: true,
                ..
            } => Self::Pool {
                kernel,
                stride,
                pad: pad_lo,
                dilation,
            },
            Window::Direct {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                ceil: false,
            } => Self::Conv {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
            },
            Window::Transposed {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                output_padding,
            } => Self::Transposed {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                output_padding,
            },
            Window::Resample {
                input,
                output,
                mode,
                scale,
            } => Self::Resample {
                input,
                output,
                mode,
                scale: scale.map(ScaleFactor::value),
            },
            Window::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            } => Self::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            },
        }
    }
}

impl TryFrom<WindowRepr> for Window {
    type Error = SpecError;

    fn try_from(repr: WindowRepr) -> Result<Self, SpecError> {
        match repr {
            WindowRepr::Conv {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
            } => Self::conv(kernel, stride, dilation, pad_lo, pad_hi),
            WindowRepr::Pool {
                kernel,
                stride,
                pad,
                dilation,
            } => Self::pool(kernel, stride, pad, dilation, true),
            WindowRepr::Transposed {
                kernel,
                stride,
                dilation,
                pad_lo,
                pad_hi,
                output_padding,
            } => Self::transposed(kernel, stride, dilation, pad_lo, pad_hi, output_padding),
            WindowRepr::Resample {
                input,
                output,
                mode,
                scale,
            } => Self::resample(input, output, mode, scale),
            WindowRepr::Neighborhood {
                extent,
                kernel,
                dilation,
                causal,
            } => Self::neighborhood(extent, kernel, dilation, causal),
        }
    }
}

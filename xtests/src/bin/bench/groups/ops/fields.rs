//! Convolutions, pooling, interpolation and samples of fields.

use super::{Line, op};
use shard_tensor::{
    ConvOptions, ConvTransposeOptions, EdgeMap, PoolOptions, ResampleMode, Result, SampleEdge,
    SampleMode, Sampling, ShardTensor, UnfoldOptions,
};

const IMAGES: &[&str] = &["8x64x56x56", "8x256x14x14"];
const COARSE: &[&str] = &["8x64x28x28", "1x32x128x128"];

/// A convolution that keeps extents, with as many groups as its weight says.
fn same(x: &[ShardTensor]) -> Result<ShardTensor> {
    conv(x, ConvOptions::new().same())
}

fn conv(x: &[ShardTensor], options: ConvOptions) -> Result<ShardTensor> {
    let groups = x[0].shape()[1] / x[1].shape()[1];
    x[0].conv(&x[1], x.get(2), options.groups(groups))
}

fn sampling(mode: SampleMode) -> Sampling {
    Sampling {
        mode,
        edge: SampleEdge::Zeros,
        aligned: false,
    }
}

/// Twice the extents of a plane.
fn doubled(x: &ShardTensor, mode: ResampleMode) -> Result<ShardTensor> {
    let extents: Vec<usize> = x.shape()[2..].iter().map(|n| 2 * n).collect();
    x.interpolate(extents, mode)
}

pub(super) const LINES: &[Line] = &[
    op(
        "conv1d",
        &["8x64x1024, 64x64x3, 64", "8x1x16384, 32x1x7, 32"],
        same,
    ),
    op(
        "conv2d",
        &[
            "4x64x56x56, 64x64x3x3, 64",
            "4x128x28x28, 128x128x3x3, 128",
            "8x256x4x4, 256x256x3x3, 256",
            "8x512x7x7, 512x512x3x3, 512",
            "1x32x256x256, 32x32x3x3, 32",
            "1x3x256x256, 32x3x3x3, 32",
            "8x16x16x16, 32x16x5x5, 32",
            "8x64x56x56, 256x64x1x1, 256",
            "8x512x7x7, 512x512x1x1, 512",
        ],
        same,
    ),
    op(
        "conv2d, stride 2",
        &[
            "4x64x56x56, 128x64x3x3, 128",
            "8x256x14x14, 512x256x3x3, 512",
        ],
        |x| conv(x, ConvOptions::new().padding(1).stride(2)),
    ),
    op(
        "conv2d, 7 x 7, stride 2",
        &["4x3x224x224, 64x3x7x7, 64"],
        |x| conv(x, ConvOptions::new().padding(3).stride(2)),
    ),
    op("conv2d, dilated", &["4x64x56x56, 64x64x3x3, 64"], |x| {
        conv(x, ConvOptions::new().padding(2).dilation(2))
    }),
    op(
        "conv2d, patches",
        &["4x3x224x224, 384x3x16~8x16~8, 384"],
        |x| {
            let side = x[1].shape()[2];
            conv(x, ConvOptions::new().stride(side))
        },
    ),
    op(
        "conv2d, depthwise",
        &[
            "4x64x56x56, 64x1x3x3, 64",
            "4x512x7x7, 512x1x3x3, 512",
            "4x96x56x56, 96x1x7x7, 96",
            "4x768x7x7, 768x1x7x7, 768",
        ],
        same,
    ),
    op(
        "conv2d, depthwise, stride 2",
        &["2x64x112x112, 64x1x3x3, 64"],
        |x| conv(x, ConvOptions::new().padding(1).stride(2)),
    ),
    op("conv2d, 4 groups", &["4x64x56x56, 64x16~4x3x3, 64"], same),
    op(
        "conv3d",
        &[
            "1x32x32x32x32, 32x32x3x3x3, 32",
            "2x8x48x48x48, 16x8x3x3x3, 16",
        ],
        same,
    ),
    op(
        "transposed conv2d, stride 2",
        &["4x64x28x28, 64x32x4x4, 32", "8x256x7x7, 256x128x4x4, 128"],
        |x| {
            let options = ConvTransposeOptions::new().stride(2).padding(1);
            x[0].conv_transpose(&x[1], Some(&x[2]), options)
        },
    ),
    // Pooling.
    op("max pool 2", IMAGES, |x| x[0].max_pool(PoolOptions::new(2))),
    op("max pool 3, stride 2", IMAGES, |x| {
        x[0].max_pool(PoolOptions::new(3).stride(2).padding(1))
    }),
    op("avg pool 2", IMAGES, |x| x[0].avg_pool(PoolOptions::new(2))),
    op("avg pool 3, stride 1", IMAGES, |x| {
        x[0].avg_pool(PoolOptions::new(3).stride(1).padding(1))
    }),
    op(
        "adaptive avg pool to 1",
        &["8x64x56x56", "8x512x7x7"],
        |x| x[0].adaptive_avg_pool([1, 1]),
    ),
    op("adaptive avg pool to 7", &["8x64x56x56"], |x| {
        x[0].adaptive_avg_pool([7, 7])
    }),
    op("adaptive max pool to 7", &["8x64x56x56"], |x| {
        x[0].adaptive_max_pool([7, 7])
    }),
    // Interpolation and samples.
    op("interpolate, nearest", COARSE, |x| {
        doubled(&x[0], ResampleMode::Nearest)
    }),
    op("interpolate, linear", COARSE, |x| {
        doubled(&x[0], ResampleMode::Linear)
    }),
    op("interpolate, linear, aligned", COARSE, |x| {
        doubled(&x[0], ResampleMode::LinearAligned)
    }),
    op("interpolate, cubic", COARSE, |x| {
        doubled(&x[0], ResampleMode::Cubic)
    }),
    op(
        "grid sample",
        &["4x32x64x64, 4x64x64x2", "1x64x128x128, 1x128x128x2"],
        |x| x[0].grid_sample(&x[1], sampling(SampleMode::Linear)),
    )
    .full(),
    op(
        "grid sample, nearest",
        &["4x32x64x64, given 4x64x64x2"],
        |x| x[0].grid_sample(&x[1], sampling(SampleMode::Nearest)),
    )
    .full(),
    // Edges and windows.
    op("pad with zeros", IMAGES, |x| {
        x[0].pad(&[(0, 0), (0, 0), (1, 1), (1, 1)], EdgeMap::Zeros, 0.0)
    }),
    op("pad, reflected", IMAGES, |x| {
        x[0].pad(&[(0, 0), (0, 0), (2, 2), (2, 2)], EdgeMap::Reflect, 0.0)
    }),
    op("pad, circular", IMAGES, |x| {
        x[0].pad(&[(0, 0), (0, 0), (2, 2), (2, 2)], EdgeMap::Circular, 0.0)
    }),
    op("unfold 3 x 3", &["4x32x28x28", "2x64x56x56"], |x| {
        x[0].unfold(UnfoldOptions::new(3).padding(1))
    }),
    op("pixel shuffle 2", &["4x64x64x64"], |x| {
        x[0].pixel_shuffle(2)
    }),
];

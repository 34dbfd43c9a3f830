//! Moves of elements: other orders, parts, and parts together.

use super::{Line, op};
use shard_tensor::{Result, ShardTensor};

const ONE: &[&str] = &["128x256", "4096x1024"];
const IMAGES: &[&str] = &["8x64x56x56", "8x512x7x7"];

pub(super) const LINES: &[Line] = &[
    op(
        "transpose",
        &["256x128", "4096x1024", "96x197x64", "65536x3"],
        |x| x[0].transpose(-1, -2),
    ),
    op("channels last", IMAGES, |x| x[0].permute([0, 2, 3, 1])),
    op("channels first", &["8x56x56x64", "8x7x7x512"], |x| {
        x[0].permute([0, 3, 1, 2])
    }),
    op("split heads of 8", &["8x64x512", "8x1024x512"], |x| {
        x[0].unflatten(-1, [8, -1])?.transpose(1, 2)
    }),
    op("merge heads", &["8x8x64x64", "8x8x1024x64"], |x| {
        x[0].transpose(1, 2)?.flatten_dims(2, 3)
    }),
    op("windows of 8 x 8", &["8x56x56x96"], |x| windows(&x[0])),
    op(
        "cat of rows",
        &["128x256, 128x256", "2048x1024, 2048x1024"],
        |x| ShardTensor::cat(x, 0),
    ),
    op(
        "cat of columns",
        &["128x256, 128x256", "4096x512, 4096x512"],
        |x| ShardTensor::cat(x, 1),
    ),
    op("cat of channels", &["8x64x56x56, 8x64x56x56"], |x| {
        ShardTensor::cat(x, 1)
    }),
    op(
        "stack",
        &["128x256, 128x256", "2048x1024, 2048x1024"],
        |x| ShardTensor::stack(x, 0),
    ),
    op("stack last", &["2048x1024, 2048x1024"], |x| {
        ShardTensor::stack(x, -1)
    }),
    op("thirds of columns, summed", &["4096x768~24"], |x| {
        let [q, k, v] = x[0].chunk_array(-1)?;
        q.add(&k)?.add(&v)
    }),
    op(
        "rotary places",
        &["4x8x256x64, given 256x64, given 256x64"],
        |x| turned(&x[0], &x[1], &x[2]),
    ),
    op("flip rows", ONE, |x| x[0].flip(0)),
    op("flip columns", ONE, |x| x[0].flip(1)),
    op("roll of planes", &["8x56x56x96"], |x| {
        x[0].roll([1, 2], [-3, -3])
    }),
    op("repeat", &["256x256"], |x| x[0].repeat([0, 1], [4, 4])),
    op("repeat interleave", &["4096x256"], |x| {
        x[0].repeat_interleave(0, 4)
    }),
    op("expand", &["1024x1x256"], |x| {
        let (rows, width) = (x[0].shape()[0], x[0].shape()[2]);
        x[0].expand([rows, 16, width])
    }),
    op("tril", &["128x256", "2048x2048"], |x| x[0].tril(0)),
    op("triu", &["2048x2048"], |x| x[0].triu(1)),
    op("diagonal", &["2048x2048"], |x| x[0].diagonal(0, 0, 1)),
    op("every second column", ONE, |x| {
        x[0].slice(1, 0, 2, x[0].shape()[1] / 2)
    }),
    op("every second row", ONE, |x| {
        x[0].slice(0, 0, 2, x[0].shape()[0] / 2)
    }),
    op("a quarter of columns", ONE, |x| {
        x[0].narrow(1, ..x[0].shape()[1] / 4)
    }),
    op("first token", &["64x197x384"], |x| x[0].select(1, 0)),
    op("rows assigned", &["4096x1024, 1024~8x1024"], |x| {
        x[0].slice_assign(0, 8, 1, &x[1])
    }),
];

/// Windows of a field with channels last, one after the other, as tokens.
fn windows(x: &ShardTensor) -> Result<ShardTensor> {
    let &[n, rows, columns, width] = x.shape() else {
        return x.reshape([-1]);
    };
    let apart = x.reshape([n, rows / 8, 8, columns / 8, 8, width])?;
    apart
        .permute([0, 1, 3, 2, 4, 5])?
        .reshape([n * rows / 8 * columns / 8, 64, width])
}

/// Pairs of halves turned, as programs write it with slices.
fn turned(x: &ShardTensor, cos: &ShardTensor, sin: &ShardTensor) -> Result<ShardTensor> {
    let [first, second] = x.chunk_array(-1)?;
    let other = ShardTensor::cat(&[second.neg()?, first], -1)?;
    x.mul(cos)?.add(&other.mul(sin)?)
}

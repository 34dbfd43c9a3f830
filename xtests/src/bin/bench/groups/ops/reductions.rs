//! Sums and other reductions, norms, softmax and scans.

use super::{Line, op};
use shard_tensor::ShardTensor;

const ONE: &[&str] = &["128x256", "4096x1024"];
/// Rows of few numbers, as coordinates, classes and heads are.
const ROWS: &[&str] = &[
    "128x256",
    "4096x1024",
    "262144x3",
    "65536x10",
    "65536x16",
    "512x8192",
];
const FEW: &[&str] = &["128x256", "4096x1024", "65536x10"];
/// Widths of models.
const WIDTHS: &[&str] = &[
    "65536x16",
    "16384x49",
    "16384x256",
    "4096x1024",
    "512x32000",
];

pub(super) const LINES: &[Line] = &[
    op("sum", ONE, |x| x[0].sum_all()),
    op("sum of rows", ROWS, |x| x[0].sum(-1, false)),
    op("sum of columns", FEW, |x| x[0].sum(0, false)),
    op("sum of planes", &["8x64x56x56", "8x512x7x7"], |x| {
        x[0].sum([2, 3], false)
    }),
    op("sum but of channels", &["8x64x56x56", "8x512x7x7"], |x| {
        x[0].sum([0, 2, 3], false)
    }),
    op("mean", ONE, |x| x[0].mean_all()),
    op("mean of rows", FEW, |x| x[0].mean(-1, false)),
    op("mean of tokens", &["64x197x384"], |x| x[0].mean(1, false)),
    op("amax of rows", ROWS, |x| x[0].amax(-1, false)),
    op("amin of columns", FEW, |x| x[0].amin(0, false)),
    op("max of rows", FEW, |x| Ok(x[0].max(-1, false)?.0)),
    op("argmax of rows", FEW, |x| x[0].argmax(-1)).forward(),
    op("argmin of columns", ONE, |x| x[0].argmin(0)).forward(),
    op("var of rows", FEW, |x| x[0].var(-1, 1.0, false)),
    op("var of columns", ONE, |x| x[0].var(0, 1.0, false)),
    op("std of rows", ONE, |x| x[0].std(-1, 1.0, false)),
    op("norm", ONE, |x| x[0].norm(2.0, .., false)),
    op("norm of rows", ROWS, |x| x[0].norm(2.0, -1, false)),
    op("sum of squares", ONE, |x| x[0].square()?.sum_all()),
    op("logsumexp of rows", ROWS, |x| x[0].logsumexp(-1, false)),
    op(
        "prod of rows",
        &["positive 65536x3", "positive 4096x64"],
        |x| x[0].prod(-1, false),
    ),
    op("any of rows", &["bool 4096x1024"], |x| x[0].any(-1, false))
        .forward()
        .full(),
    op("normalize rows", FEW, |x| x[0].normalize(2.0, -1, 1e-12)),
    op(
        "cosine similarity",
        &["4096x1024, 4096x1024", "65536x16, 65536x16"],
        |x| x[0].cosine_similarity(&x[1], -1, 1e-8),
    ),
    // Softmax and norms.
    op("softmax of rows", WIDTHS, |x| x[0].softmax(-1)),
    op("softmax of columns", &["256x128", "1024x4096"], |x| {
        x[0].softmax(0)
    }),
    op("log softmax of rows", WIDTHS, |x| x[0].log_softmax(-1)),
    op(
        "layer norm",
        &[
            "128x256, 256, 256",
            "16384x64, 64, 64",
            "16384x256, 256, 256",
            "4096x1024, 1024, 1024",
            "1024x4096, 4096, 4096",
        ],
        |x| x[0].layer_norm(1, Some(&x[1]), Some(&x[2]), 1e-5),
    ),
    op(
        "rms norm",
        &[
            "128x256, 256",
            "16384x256, 256",
            "4096x1024, 1024",
            "1024x4096, 4096",
        ],
        |x| x[0].rms_norm(1, Some(&x[1]), Some(1e-6)),
    ),
    op(
        "group norm, 8 groups",
        &[
            "8x64x56x56, 64, 64",
            "8x256x14x14, 256, 256",
            "1x32x256x256, 32, 32",
        ],
        |x| x[0].group_norm(8, Some(&x[1]), Some(&x[2]), 1e-5),
    ),
    op(
        "batch norm",
        &[
            "8x64x56x56, 64, 64",
            "8x512x7x7, 512, 512",
            "4096x256, 256, 256",
        ],
        |x| {
            Ok(x[0]
                .batch_norm(None, [Some(&x[1]), Some(&x[2])], true, 0.1, 1e-5)?
                .0)
        },
    ),
    op(
        "batch norm of running statistics",
        &["8x64x56x56, 64, 64, given 64, given positive 64"],
        |x| {
            let affine = [Some(&x[1]), Some(&x[2])];
            let running = Some((&x[3], &x[4]));
            Ok(x[0].batch_norm(running, affine, false, 0.1, 1e-5)?.0)
        },
    ),
    op(
        "instance norm",
        &["8x64x56x56, 64, 64", "8x256x14x14, 256, 256"],
        |x| x[0].instance_norm(Some(&x[1]), Some(&x[2]), 1e-5),
    ),
    // Scans.
    op("cumsum of rows", ONE, |x| x[0].cumsum(-1)),
    op("cumsum of columns", ONE, |x| x[0].cumsum(0)),
    op("cumprod of rows", &["positive 4096x64"], |x| {
        x[0].cumprod(-1)
    }),
    op("cummax of rows", ONE, |x| Ok(x[0].cummax(-1)?.0)),
    op("logcumsumexp of rows", ONE, |x| x[0].logcumsumexp(-1)),
    op("diff of rows", &["4096x1024"], |x| x[0].diff(1, -1)),
    op(
        "sum of all after a product",
        &["4096x1024, 4096x1024"],
        |x| ShardTensor::einsum("ij,ij->", &[&x[0], &x[1]]),
    ),
];

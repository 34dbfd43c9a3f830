//! Maps of one number and of several, choices, losses, random masks and conversions.

use super::{Line, op};
use shard_tensor::{ClassLoss, DType, Fused, LossReduction, ShardTensor};
use std::sync::LazyLock;

/// What caches hold, and what they do not.
const ONE: &[&str] = &["128x256", "4096x1024"];
const ABOVE_ZERO: &[&str] = &["positive 128x256", "positive 4096x1024"];
const TWO: &[&str] = &["128x256, 128x256", "4096x1024, 4096x1024"];
const TARGETS: &[&str] = &["128x256, given 128x256", "4096x1024, given 4096x1024"];
const THREE: &[&str] = &[
    "128x256, 128x256, 128x256",
    "2048x1024, 2048x1024, 2048x1024",
];

const MEAN: LossReduction = LossReduction::Mean;

static SWIGLU: LazyLock<Fused<2, 1>> =
    LazyLock::new(|| Fused::new("swiglu", |[gate, x]| [gate.silu() * x]));

pub(super) const LINES: &[Line] = &[
    // Maps of one number.
    op("relu", ONE, |x| x[0].relu()),
    op("gelu", ONE, |x| x[0].gelu()),
    op("gelu by tanh", ONE, |x| x[0].gelu_tanh()),
    op("silu", ONE, |x| x[0].silu()),
    op("mish", ONE, |x| x[0].mish()),
    op("sigmoid", ONE, |x| x[0].sigmoid()),
    op("tanh", ONE, |x| x[0].tanh()),
    op("exp", ONE, |x| x[0].exp()),
    op("log", ABOVE_ZERO, |x| x[0].log()),
    op("log1p", ABOVE_ZERO, |x| x[0].log1p()),
    op("sqrt", ABOVE_ZERO, |x| x[0].sqrt()),
    op("rsqrt", ABOVE_ZERO, |x| x[0].rsqrt()),
    op("reciprocal", ABOVE_ZERO, |x| x[0].reciprocal()),
    op("pow 2.5", ABOVE_ZERO, |x| x[0].pow_scalar(2.5)),
    op("pow 3", ONE, |x| x[0].pow_scalar(3.0)),
    op("abs", ONE, |x| x[0].abs()),
    op("neg", ONE, |x| x[0].neg()),
    op("square", ONE, |x| x[0].square()),
    op("sin", ONE, |x| x[0].sin()),
    op("cos", ONE, |x| x[0].cos()),
    op("erf", ONE, |x| x[0].erf()),
    op("softplus", ONE, |x| x[0].softplus(1.0, 20.0)),
    op("clamp", ONE, |x| x[0].clamp(-0.25, 0.5)),
    op("leaky relu", ONE, |x| x[0].leaky_relu(0.01)),
    op("elu", ONE, |x| x[0].elu(1.0)),
    op("hardswish", ONE, |x| x[0].hardswish()),
    op("floor", ONE, |x| x[0].floor()).forward(),
    op("add a number", ONE, |x| x[0].add_scalar(1.5)),
    op("mul by a number", ONE, |x| x[0].mul_scalar(1.5)),
    // Of two, that lie alike and that do not.
    op("add", TWO, |x| x[0].add(&x[1])),
    op("sub", TWO, |x| x[0].sub(&x[1])),
    op("mul", TWO, |x| x[0].mul(&x[1])),
    op(
        "div",
        &["128x256, positive 128x256", "4096x1024, positive 4096x1024"],
        |x| x[0].div(&x[1]),
    ),
    op("maximum", TWO, |x| x[0].maximum(&x[1])),
    op("atan2", &["512x1024, positive 512x1024"], |x| {
        x[0].atan2(&x[1])
    })
    .full(),
    op(
        "add a row",
        &["128x256, 256", "4096x1024, 1024", "65536x64, 64"],
        |x| x[0].add(&x[1]),
    ),
    op(
        "add a column",
        &["128x256, 128x1", "4096x1024, 4096x1"],
        |x| x[0].add(&x[1]),
    ),
    op("mul by a column", &["4096x1024, 4096x1"], |x| {
        x[0].mul(&x[1])
    }),
    op(
        "add a number for each channel",
        &["8x64x56x56, 64x1x1", "8x512x7x7, 512x1x1"],
        |x| x[0].add(&x[1]),
    ),
    op("add a plane", &["8x8x256x256, 256x256"], |x| {
        x[0].add(&x[1])
    }),
    op("lerp by a number", TWO, |x| x[0].lerp(&x[1], 0.3)),
    op("lerp", THREE, |x| x[0].lerp(&x[1], &x[2])),
    op("addcmul", THREE, |x| x[0].addcmul(&x[1], &x[2], 0.5)),
    op("swiglu", TWO, |x| {
        let [y] = SWIGLU.of([&x[0], &x[1]])?;
        Ok(y)
    }),
    op("glu", &["128x512", "4096x2048"], |x| x[0].glu(-1)),
    // Comparisons and choices.
    op("gt", TWO, |x| x[0].gt(&x[1])).forward(),
    op("gt a number", ONE, |x| x[0].gt_scalar(0.1)).forward(),
    op(
        "where",
        &[
            "bool 128x256, 128x256, 128x256",
            "bool 4096x1024, 4096x1024, 4096x1024",
        ],
        |x| x[0].where_(&x[1], &x[2]),
    ),
    op(
        "masked fill",
        &["128x256, bool 128x256", "4096x1024, bool 4096x1024"],
        |x| x[0].masked_fill(&x[1], 0.0),
    ),
    op(
        "masked fill of scores",
        &["8x8x256x256, bool 256x256"],
        |x| x[0].masked_fill(&x[1], -1e4),
    ),
    op("dropout", ONE, |x| x[0].dropout(0.1)).free(),
    // Losses.
    op("mse loss", TARGETS, |x| x[0].mse_loss(&x[1])),
    op("l1 loss", TARGETS, |x| x[0].l1_loss(&x[1], MEAN)),
    op("smooth l1 loss", TARGETS, |x| {
        x[0].smooth_l1_loss(&x[1], 0.5, MEAN)
    }),
    op("huber loss", TARGETS, |x| x[0].huber_loss(&x[1], 0.5, MEAN)),
    op(
        "binary cross entropy",
        &[
            "unit 128x256, given unit 128x256",
            "unit 4096x1024, given unit 4096x1024",
        ],
        |x| x[0].binary_cross_entropy(&x[1], None, MEAN),
    )
    .full(),
    op(
        "binary cross entropy with logits",
        &[
            "128x256, given unit 128x256",
            "4096x1024, given unit 4096x1024",
        ],
        |x| x[0].binary_cross_entropy_with_logits(&x[1], None, None, MEAN),
    ),
    op(
        "kl divergence",
        &[
            "128x256, given unit 128x256",
            "4096x1024, given unit 4096x1024",
        ],
        |x| x[0].kl_div(&x[1], false, LossReduction::BatchMean),
    ),
    op(
        "cross entropy",
        &[
            "128x10, 128<10",
            "4096x1000, 4096<1000",
            "512x32000, 512<32000",
        ],
        cross_entropy,
    ),
    op(
        "cross entropy of planes",
        &["8x19x64x64, 8x64x64<19", "2x19x512x512, 2x512x512<19"],
        cross_entropy,
    ),
    op("nll loss", &["4096x1000, 4096<1000"], |x| {
        x[0].nll_loss(&x[1], &ClassLoss::new())
    }),
    // Conversions.
    op("to bf16", ONE, |x| x[0].to(DType::BF16)).full(),
    op("to f64", ONE, |x| x[0].to(DType::F64)),
    op("to f32", &["bf16 128x256", "bf16 4096x1024"], |x| {
        x[0].to(DType::F32)
    })
    .full(),
    op("to truth values", ONE, |x| x[0].to(DType::Bool)).forward(),
    op("integers to f32", &["4096x1024<1000"], |x| {
        x[0].to(DType::F32)
    })
    .forward()
    .full(),
];

fn cross_entropy(x: &[ShardTensor]) -> shard_tensor::Result<ShardTensor> {
    x[0].cross_entropy(&x[1], &ClassLoss::new())
}

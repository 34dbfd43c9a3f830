//! Products of matrices, distances, attention and steps of recurrent layers.

use super::{Line, op};
use shard_tensor::nn::{GruCell, LstmCell, RecurrentCell};
use shard_tensor::{Attention, Causal, Result, ShardTensor};

const HEADS: &[&str] = &[
    "64x3x49x32, 64x3x49x32, 64x3x49x32",
    "8x12x64x64, 8x12x64x64, 8x12x64x64",
    "4x12x197x64, 4x12x197x64, 4x12x197x64",
    "1x8x1024x64, 1x8x1024x64, 1x8x1024x64",
];

pub(super) const LINES: &[Line] = &[
    op(
        "matmul",
        &[
            "64x64, 64x64",
            "256x256, 256x256",
            "1024x1024, 1024x1024",
            "4096x1024, 1024x16",
            "16x1024, 1024x4096",
            "4096x64, 64x4096",
            "64x128x128, 64x128x128",
            "50000x3x3, 50000x3x3",
            "4096x8x8, 4096x8x8",
            "8x1024x256, 256x256",
            "96x197x64, 96x64x197",
            "96x197x197, 96x197x64",
        ],
        |x| x[0].matmul(&x[1]),
    ),
    op(
        "matrix by vector",
        &["256x256, 256", "2048x2048, 2048"],
        |x| x[0].matmul(&x[1]),
    ),
    op("matrices by vectors", &["50000x3x3, 50000x3"], |x| {
        x[0].matmul(&x[1].unsqueeze(-1)?)?.squeeze(-1)
    }),
    op("dot", &["65536, 65536", "4000000, 4000000"], |x| {
        x[0].dot(&x[1])
    }),
    op("outer", &["256, 256", "2048, 2048"], |x| x[0].outer(&x[1])),
    op(
        "linear",
        &[
            "64x256, 256x256, 256",
            "4096x256, 1024x256, 1024",
            "4096x1024, 1024x1024, 1024",
            "32x197x384, 1152x384, 1152",
            "65536x64, 64x64, 64",
            "1x4096, 4096x4096, 4096",
        ],
        |x| x[0].linear(&x[1], Some(&x[2])),
    ),
    op(
        "einsum bhqd,bhkd->bhqk",
        &["4x12x197x64, 4x12x197x64"],
        |x| ShardTensor::einsum("bhqd,bhkd->bhqk", &[&x[0], &x[1]]),
    ),
    op("einsum bi,oij,bj->bo", &["256x32, 64x32x32, 256x32"], |x| {
        ShardTensor::einsum("bi,oij,bj->bo", &[&x[0], &x[1], &x[2]])
    }),
    op(
        "einsum bixy,ioxy->boxy",
        &["4x32x24x24, 32x32x24x24"],
        |x| ShardTensor::einsum("bixy,ioxy->boxy", &[&x[0], &x[1]]),
    ),
    op("cross", &["262144x3, 262144x3"], |x| x[0].cross(&x[1], -1)).full(),
    op("cdist", &["1024x3, 1024x3", "1024x64, 1024x64"], |x| {
        x[0].cdist(&x[1], 2.0)
    })
    .full(),
    op("pairwise distance", &["65536x16, 65536x16"], |x| {
        x[0].pairwise_distance(&x[1], 2.0, 1e-6, false)
    }),
    op("attention", HEADS, |x| {
        x[0].attention(&x[1], &x[2], None, &Attention::new())
    }),
    op("attention, causal", HEADS, |x| {
        let causal = Attention::new().causal(Causal::TopLeft);
        x[0].attention(&x[1], &x[2], None, &causal)
    }),
    op(
        "attention with a mask",
        &["4x12x197x64, 4x12x197x64, 4x12x197x64, bool 197x197"],
        |x| x[0].attention(&x[1], &x[2], Some(&x[3]), &Attention::new()),
    ),
    op(
        "attention of a query",
        &["8x12x1x64, 8x12x1024x64, 8x12x1024x64"],
        |x| x[0].attention(&x[1], &x[2], None, &Attention::new()),
    ),
    op(
        "attention of grouped heads",
        &["2x16x256x64, 2x4x256x64, 2x4x256x64"],
        |x| x[0].attention(&x[1], &x[2], None, &Attention::new()),
    ),
    op(
        "lstm cell",
        &[
            "32x64, given 32x128, given 32x128, weights 512~32x64, weights 512~32x128, 512~32, 512~32",
            "256x256, given 256x256, given 256x256, weights 1024~64x256, weights 1024~64x256, 1024~64, 1024~64",
        ],
        |x| {
            let cell = LstmCell {
                weight_ih: x[3].clone(),
                weight_hh: x[4].clone(),
                bias_ih: Some(x[5].clone()),
                bias_hh: Some(x[6].clone()),
                weight_hr: None,
            };
            Ok(cell.next(&x[0], Some(&(x[1].clone(), x[2].clone())))?.0)
        },
    ),
    op(
        "gru cell",
        &[
            "32x64, 32x128, weights 384~24x64, weights 384~24x128, 384~24, 384~24",
            "256x256, 256x256, weights 768~48x256, weights 768~48x256, 768~48, 768~48",
        ],
        gru,
    ),
];

fn gru(x: &[ShardTensor]) -> Result<ShardTensor> {
    let cell = GruCell {
        weight_ih: x[2].clone(),
        weight_hh: x[3].clone(),
        bias_ih: Some(x[4].clone()),
        bias_hh: Some(x[5].clone()),
    };
    cell.next(&x[0], Some(&x[1]))
}

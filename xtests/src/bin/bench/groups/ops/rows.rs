//! Rows and elements by index, order, and counts.

use super::{Line, op};
use shard_tensor::ShardTensor;

const TABLE: &[&str] = &[
    "512x128, 256<512",
    "32768x256, 4096<32768",
    "200000x64, 200000<200000",
];
const ELEMENTS: &[&str] = &["128x256, 128x64<256", "4096x1024, 4096x256<1024"];
const ONTO: &[&str] = &[
    "given 512x64, 2048<512, 2048x64",
    "given 16384x64, 131072<16384, 131072x64",
];
const ONE: &[&str] = &["65536", "1000000", "4096x256"];

pub(super) const LINES: &[Line] = &[
    op("embedding", TABLE, |x| x[0].embedding(&x[1], None)),
    op("index select", TABLE, |x| x[0].index_select(0, &x[1])),
    op("index select of columns", &["4096x1024, 256<1024"], |x| {
        x[0].index_select(1, &x[1])
    }),
    op("gather", ELEMENTS, |x| x[0].gather(1, &x[1])),
    op("take along rows", &["4096x1024, 4096x1<1024"], |x| {
        x[0].take_along_dim(1, &x[1])
    }),
    op(
        "scatter add",
        &[
            "given 128x256, 128x64<256, 128x64",
            "given 4096x1024, 4096x256<1024, 4096x256",
        ],
        |x| x[0].scatter_add(1, &x[1], &x[2]),
    ),
    op("index add", ONTO, |x| x[0].index_add(0, &x[1], &x[2])),
    op(
        "segment sum, sorted",
        &["131072x64, sorted 131072<16384, given 16384x1"],
        |x| x[0].segment_sum(&x[1], x[2].shape()[0]),
    ),
    op(
        "segment max",
        &["131072x64, 131072<16384, given 16384x1"],
        |x| x[0].segment_max(&x[1], x[2].shape()[0]),
    ),
    op("one hot of 1000", &["4096<1000"], |x| x[0].one_hot(1000))
        .forward()
        .full(),
    op("masked select", &["4096x1024, bool 4096x1024"], |x| {
        x[0].masked_select(&x[1])
    }),
    op("nonzero", &["bool 4096x1024"], |x| x[0].nonzero())
        .forward()
        .full(),
    // Order.
    op("sort", ONE, |x| Ok(x[0].sort(-1, false)?.0)),
    op("argsort", ONE, |x| x[0].argsort(-1, false))
        .forward()
        .full(),
    op("sort of integers", &["1000000<1000000"], |x| {
        Ok(x[0].sort(0, false)?.0)
    })
    .forward()
    .full(),
    op("topk 8", &["4096x64", "4096x1024", "1000000"], |x| {
        Ok(x[0].topk(8, -1, true)?.0)
    }),
    op("median of rows", &["4096x256"], |x| Ok(x[0].median(-1)?.0)).forward(),
    op(
        "searchsorted",
        &[
            "sorted 1024<100000, 65536<100000",
            "sorted 100000<1000000, 1000000<1000000",
        ],
        |x| x[0].searchsorted(&x[1], false),
    )
    .forward()
    .full(),
    // Counts.
    op("unique", &["65536<1000", "1000000<100000"], |x| {
        x[0].unique()
    })
    .forward()
    .full(),
    op("bincount", &["65536<1000", "1000000<1000"], |x| {
        x[0].bincount(None, 0)
    })
    .forward()
    .full(),
    op("histc of 64", &["4000000"], |x| x[0].histc(64, -0.5..1.0))
        .forward()
        .full(),
    op("isin", &["65536<1000, 100<1000"], |x| x[0].isin(&x[1]))
        .forward()
        .full(),
    op("rows where a mask is", &["65536x64, bool 65536"], |x| {
        rows_where(&x[0], &x[1])
    }),
];

fn rows_where(x: &ShardTensor, mask: &ShardTensor) -> shard_tensor::Result<ShardTensor> {
    x.index(0, &[mask])
}

//! Factors, inverses and solutions of many small matrices, and of a few larger ones.

use super::{Line, op};

const DEFINITE: &[&str] = &[
    "definite 4096x3x3",
    "definite 1024x8x8",
    "definite 64x32x32",
    "definite 4x256x256",
];

pub(super) const LINES: &[Line] = &[
    op("det", DEFINITE, |x| x[0].det()).full(),
    op("inv", DEFINITE, |x| x[0].inv()).full(),
    op("cholesky", DEFINITE, |x| x[0].cholesky()).full(),
    op(
        "solve",
        &[
            "definite 4096x3x3, 4096x3x1",
            "definite 1024x8x8, 1024x8x4",
            "definite 4x256x256, 4x256x16",
        ],
        |x| x[0].solve(&x[1]),
    )
    .full(),
    op("qr", &["1024x8x8", "4x256x256"], |x| Ok(x[0].qr()?.1))
        .full()
        .free(),
    op("svd", &["4096x3x3", "1024x8x8", "1x128x128"], |x| {
        Ok(x[0].svd()?.1)
    })
    .full(),
    op(
        "eigh",
        &[
            "definite 4096x3x3",
            "definite 1024x8x8",
            "definite 1x128x128",
        ],
        |x| Ok(x[0].eigh()?.0),
    )
    .full(),
];

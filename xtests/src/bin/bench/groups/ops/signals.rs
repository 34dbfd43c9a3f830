//! Fourier transforms and complex numbers.

use super::{Line, op};
use shard_tensor::FourierNorm;

const BACK: FourierNorm = FourierNorm::Backward;

pub(super) const LINES: &[Line] = &[
    op("fft", &["256x64x2", "1024x1024x2"], |x| {
        x[0].fft(None, -1, BACK)
    })
    .full(),
    op("ifft", &["1024x1024x2"], |x| x[0].ifft(None, -1, BACK)).full(),
    op("rfft", &["256x128", "1024x2048", "64x16384"], |x| {
        x[0].rfft(None, -1, BACK)
    })
    .full(),
    op("irfft", &["1024x1025x2"], |x| x[0].irfft(None, -1, BACK)).full(),
    op(
        "rfft of planes",
        &["64x64x64", "32x128x128", "4x512x512"],
        |x| x[0].rfftn(None, [-2, -1], BACK),
    )
    .full(),
    op("irfft of planes", &["64x64x33x2", "32x128x65x2"], |x| {
        x[0].irfftn(None, [-2, -1], BACK)
    })
    .full(),
    op("fft of columns", &["1024x1024x2"], |x| {
        x[0].fft(None, 0, BACK)
    })
    .full(),
    op(
        "complex mul",
        &["128x128x2, 128x128x2", "1024x1024x2, 1024x1024x2"],
        |x| x[0].complex_mul(&x[1]),
    )
    .full(),
];

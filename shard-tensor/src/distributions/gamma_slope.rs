//! How numbers of a gamma distribution grow with their concentration.

use super::Symbol;
use crate::{Fused, Result, ShardTensor};
use std::sync::LazyLock;

/// Numbers that were drawn for such concentrations, with a gradient for these: that of a number which keeps its place among all that may be
/// drawn (Figurnov, Mohamed and Mnih 2018, "Implicit reparameterization gradients").
///
/// It is not differentiated again.
#[track_caller]
pub(super) fn with_slope(concentration: &ShardTensor, drawn: &ShardTensor) -> Result<ShardTensor> {
    static SLOPE: LazyLock<Fused<3, 1>> =
        LazyLock::new(|| Fused::new("gamma_slope", |[a, x, dy]| [dy * slope(a, x)]));
    if !concentration.is_tracked() {
        return Ok(drawn.clone());
    }
    let mut found = concentration.context().map_local_with_grad(
        &[concentration, drawn],
        [drawn.layout(), drawn.layout()],
        &[drawn.layout()],
        |of| Ok(vec![of[1].clone()]),
        |of, _, dy| {
            let [by_concentration] = SLOPE.of([&of[0], &of[1], &dy[0]])?;
            Ok(vec![Some(by_concentration), None])
        },
    )?;
    Ok(found.swap_remove(0))
}

/// `-(∂P/∂a) / (∂P/∂x)` of the probability `P(a, x)` to be below `x`, to three digits or more: as `torch._standard_gamma_grad` works it out,
/// after Jankowiak and Obermeyer 2018, "Pathwise derivatives beyond the reparameterization trick".
fn slope<'f>(a: Symbol<'f>, x: Symbol<'f>) -> Symbol<'f> {
    let moderate = a.below(8.0, by_fit(a, x), by_saddle_point(a, x));
    x.below(0.8, by_series(a, x), moderate)
}

/// Of small numbers: `P` is a power of `x` times a series.
fn by_series<'f>(a: Symbol<'f>, x: Symbol<'f>) -> Symbol<'f> {
    let (mut sum, mut slopes) = (1.0 / a, 1.0 / a.square());
    let mut term = -x;
    for i in 1..=5 {
        let share = term / (a + f64::from(i));
        sum = sum + share;
        slopes = slopes + share / (a + f64::from(i));
        term = -(term * x * f64::from(i + 1).recip());
    }
    x * x.exp() * (slopes - (x.log() - a.digamma()) * sum)
}

/// Of large concentrations, by Rice's expansion; where that cancels, near the mean, by a polynomial. Both are written with the share of the mean
/// that `x` is, so that no power is beyond `f32`.
fn by_saddle_point<'f>(a: Symbol<'f>, x: Symbol<'f>) -> Symbol<'f> {
    let (share, one) = (x / a, 1.0 / a);
    let (log, apart) = (share.log(), 1.0 - share);
    let far = log * (-apart - log).pow_scalar(-1.5) * one * 8_f64.sqrt().recip();
    let middle = (share + 1.0) * one * 0.5 / apart.square();
    let stirling = one * (1.0 / 12.0) * (one * (1.0 / 24.0) + 1.0) + 1.0;
    let away = stirling * share * (middle - log / apart - apart.below(0.0, far, -far));
    let more = share * 6.0 * (one * 53.0 - share * 120.0) - share.square() * one * 65.0;
    let more = more + one * 107.0 + share * 3600.0 + 1440.0;
    let near = (one * (one + 24.0) + 288.0) * more * (1.0 / 1_244_160.0);
    (0.9 - share).below(0.0, share.below(1.1, near, away), away)
}

/// Of others, by a fit with a quotient of polynomials in the logarithms of `x / a` and of `a`.
fn by_fit<'f>(a: Symbol<'f>, x: Symbol<'f>) -> Symbol<'f> {
    // By powers of the first logarithm, and of each: four by powers of the second above, and four below.
    const FIT: [[f64; 8]; 3] = [
        [
            0.16009398,
            -0.094634809,
            0.025146376,
            -0.0030648343,
            1.0,
            0.32668115,
            0.10406089,
            0.0014179084,
        ],
        [
            0.53487893,
            0.1298071,
            0.065735949,
            -0.0015649758,
            0.16639465,
            0.020070113,
            -0.0035938915,
            -0.00058392623,
        ],
        [
            0.040121004,
            -0.0065914022,
            -0.0026286047,
            -0.0013441777,
            0.017050642,
            -0.0021309326,
            0.00085092367,
            -1.5247877e-07,
        ],
    ];
    let (u, v) = ((x / a).log(), a.log());
    let power = |i: usize| u * (u * FIT[2][i] + FIT[1][i]) + FIT[0][i];
    let polynomial = |first: usize| {
        let [none, one, two, three] = [0, 1, 2, 3].map(|i| power(first + i));
        none + v * (one + v * (two + v * three))
    };
    (polynomial(0) / polynomial(4)).exp()
}

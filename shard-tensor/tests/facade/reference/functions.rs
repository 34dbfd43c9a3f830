//! Functions of one number that are sums of series, and polynomials.

use super::Case;
use shard_tensor::{Result, ShardTensor};

/// Polynomials of some degrees.
fn degrees(f: impl Fn(usize) -> Result<ShardTensor>) -> Result<ShardTensor> {
    let all: Vec<ShardTensor> = [0, 1, 2, 5].into_iter().map(f).collect::<Result<_>>()?;
    ShardTensor::stack(&all, 0)
}

macro_rules! polynomials {
    ($($name:ident)*) => {
        &[
            ("airy_ai", |x| x[0].mul_scalar(12.0)?.airy_ai()),
            ("multi_dot", |x| ShardTensor::multi_dot(&[&x[0], &x[1], &x[2], &x[3]])),
            $((stringify!($name), |x| degrees(|n| x[0].$name(n))),)*
        ]
    };
}

pub(super) const FUNCTIONS: &[Case] = polynomials! {
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
    hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p
};

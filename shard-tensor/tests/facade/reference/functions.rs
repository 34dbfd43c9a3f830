//! Functions of one number that are sums of series, and polynomials.

use super::Case;
use crate::common::on;
use ndarray::arr1;
use shard_tensor::{DType, ErrorClass, Result, ShardTensor, replicate, shard};

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

/// By the angles whose cosines are given, with both derivatives; of degree 0 they are ones, whatever is given.
#[test]
fn polynomials_of_high_degrees_and_of_none() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let angles = mesh.from_fn([9], shard(0).sizes([7, 2]), |i| 0.3 + 0.27 * i[0] as f64)?;
        let x = angles.cos()?.requires_grad()?;
        let many = angles.mul_scalar(300.0)?;
        let y = x.chebyshev_polynomial_t(300)?;
        assert!(y.allclose(&many.cos()?, 1e-9, 1e-9, false)?);
        let slope = y.sum_all()?.grad1(&x, true)?;
        let expected = many.sin()?.div(&angles.sin()?)?.mul_scalar(300.0)?;
        assert!(slope.allclose(&expected, 1e-9, 1e-7, false)?);
        // (1 - x²) y″ - x y′ + n² y = 0
        let bend = slope.sum_all()?.grad1(&x, false)?;
        let left = bend
            .mul(&x.square()?.rsub_scalar(1.0)?)?
            .sub(&x.mul(&slope)?)?;
        assert!(left.allclose(&y.mul_scalar(-90000.0)?, 1e-8, 1e-4, false)?);

        let odd = mesh.distribute(&arr1(&[f64::NAN, f64::INFINITY]), replicate())?;
        let ones = odd.legendre_polynomial_p(0)?;
        assert_eq!(ones.to_array::<f64>()?, arr1(&[1.0, 1.0]).into_dyn());
        let narrow = x.detach().to(DType::BF16)?;
        let wide = narrow.to(DType::F32)?.hermite_polynomial_h(4)?;
        let rounded = narrow.hermite_polynomial_h(4)?.to(DType::F32)?;
        assert_eq!(
            wide.to(DType::BF16)?.to(DType::F32)?.to_array::<f32>()?,
            rounded.to_array::<f32>()?
        );
        for refused in [
            x.laguerre_polynomial_l(1001),
            x.detach().to(DType::I64)?.laguerre_polynomial_l(2),
            x.detach().to(DType::I64)?.laguerre_polynomial_l(0),
        ] {
            assert_eq!(refused.unwrap_err().class(), ErrorClass::Uniform);
        }
        Ok(())
    });
}

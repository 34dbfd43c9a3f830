//! Orthogonal polynomials, each by the recurrence from one degree to the next.

use super::number;
use crate::families::broadcast::expand_like;
use crate::families::fused::{Fused, Symbol};
use crate::families::types::floats;
use crate::{Exec, OpError, Result, Value};

/// The family of a polynomial, of which there is one of every degree (DLMF chapter 18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrthogonalPolynomial {
    /// Chebyshev's of the first kind: `cos(n arccos x)`.
    ChebyshevT,
    /// Chebyshev's of the second kind.
    ChebyshevU,
    /// Chebyshev's of the third kind.
    ChebyshevV,
    /// Chebyshev's of the fourth kind.
    ChebyshevW,
    /// Hermite's of physics, orthogonal by the weight `e^(-x²)`.
    HermiteH,
    /// Hermite's of probability, orthogonal by the weight `e^(-x²/2)`.
    HermiteHe,
    /// Laguerre's.
    LaguerreL,
    /// Legendre's.
    LegendreP,
}

/// The greatest degree: formulas have steps in proportion to it.
const MOST: usize = 1000;

impl OrthogonalPolynomial {
    fn name(self) -> &'static str {
        match self {
            Self::ChebyshevT => "chebyshev_polynomial_t",
            Self::ChebyshevU => "chebyshev_polynomial_u",
            Self::ChebyshevV => "chebyshev_polynomial_v",
            Self::ChebyshevW => "chebyshev_polynomial_w",
            Self::HermiteH => "hermite_polynomial_h",
            Self::HermiteHe => "hermite_polynomial_he",
            Self::LaguerreL => "laguerre_polynomial_l",
            Self::LegendreP => "legendre_polynomial_p",
        }
    }

    /// What that of degree 1 has of `x`, and beside it.
    fn first(self) -> [f64; 2] {
        match self {
            Self::ChebyshevT | Self::HermiteHe | Self::LegendreP => [1.0, 0.0],
            Self::ChebyshevU | Self::HermiteH => [2.0, 0.0],
            Self::ChebyshevV => [2.0, -1.0],
            Self::ChebyshevW => [2.0, 1.0],
            Self::LaguerreL => [-1.0, 1.0],
        }
    }

    /// `a`, `b` and `c` of `p[k + 1] = (a x + b) p[k] - c p[k - 1]`.
    fn step(self, k: f64) -> [f64; 3] {
        let next = k + 1.0;
        match self {
            Self::ChebyshevT | Self::ChebyshevU | Self::ChebyshevV | Self::ChebyshevW => {
                [2.0, 0.0, 1.0]
            }
            Self::HermiteH => [2.0, 0.0, 2.0 * k],
            Self::HermiteHe => [1.0, 0.0, k],
            Self::LaguerreL => [-1.0 / next, (k + next) / next, k / next],
            Self::LegendreP => [(k + next) / next, 0.0, k / next],
        }
    }

    /// The polynomial of a degree, 1 or more.
    fn of<'f>(self, degree: usize, x: Symbol<'f>) -> Symbol<'f> {
        let times = |x: Symbol<'f>, [a, b]: [f64; 2]| {
            let x = if a == 1.0 { x } else { x * a };
            if b == 0.0 { x } else { x + b }
        };
        let first = times(x, self.first());
        let (mut before, mut last) = (None, first);
        for k in 1..degree {
            let [a, b, c] = self.step(k as f64);
            let grown = times(x, [a, b]) * last;
            let next = match before {
                // That of degree 0 is 1.
                None => grown - c,
                Some(before) if c == 1.0 => grown - before,
                Some(before) => grown - before * c,
            };
            (before, last) = (Some(last), next);
        }
        last
    }
}

/// The polynomial of a degree at each element, or if `shifted` at `2 x - 1`, as those of Chebyshev may be that are orthogonal between 0 and 1.
///
/// # Collective
/// As a [`Fused`] formula of one operand: nothing moves, and a partial operand is reduced first.
///
/// # Errors
/// Integers and truth values; degrees above 1000, and those whose coefficients the type does not hold.
pub fn polynomial(
    exec: &dyn Exec,
    x: &Value,
    of: OrthogonalPolynomial,
    degree: usize,
    shifted: bool,
) -> Result<Value> {
    if degree > MOST {
        return Err(OpError::Shape {
            op: of.name(),
            problem: format!("degree {degree}"),
            shapes: vec![x.shape().to_vec()],
            fix: "give a degree up to 1000",
        });
    }
    floats(of.name(), 0, x)?;
    if degree == 0 {
        // It is 1 of any number, and of none.
        return expand_like(exec, &number(of.name(), x, 1.0)?, &x.detach());
    }
    let formula = Fused::new(of.name(), |[x]| {
        [of.of(degree, if shifted { x * 2.0 - 1.0 } else { x })]
    });
    formula.apply1(exec, &[x])
}

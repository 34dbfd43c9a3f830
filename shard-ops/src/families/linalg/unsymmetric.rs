//! Eigenvalues and eigenvectors of matrices that are not symmetric, which are complex numbers: pairs of a real and an imaginary part in a last
//! dim.

use super::gradient::turned;
use super::{apply, apply_solve};
use crate::families::elementwise::{
    add, div, eq, logical_and, masked_fill, mul, neg, number, sub, unary,
};
use crate::families::index::{cat, slice};
use crate::families::matmul::product;
use crate::families::reduce::sum;
use crate::families::shape::{reshape, unsqueeze};
use crate::families::triangle::diag_embed;
use crate::{Exec, OpError, Result, Value};
use shard_kernels::linalg::Factors;
use shard_kernels::unary::Unary;

/// The eigenvalues, `[.., n, 2]`, and the eigenvectors, `[.., n, n, 2]`, as columns, of square matrices of real numbers; the last dim holds real
/// and imaginary parts. Vectors have length 1, and their greatest element is real and positive; of two conjugates the value with the
/// positive imaginary part comes first.
///
/// Gradients are those of what is found, the choice of that element included. There are none of vectors whose values are equal.
///
/// # Collective
/// As [`inv`](fn@super::inv).
///
/// # Errors
/// As [`inv`](fn@super::inv).
pub fn eig(exec: &dyn Exec, x: &Value) -> Result<[Value; 2]> {
    let made = apply(exec, Factors::Eig, x)?;
    let [values, vectors, _] = &made[..] else {
        return Err(OpError::arity("eig", "3 results", made.len()));
    };
    let shape = [x.shape(), &[2]].concat();
    Ok([values.clone(), reshape(exec, vectors, &shape)?])
}

/// `V⁻ᴴ (diag(dw) + Ē ∘ (Vᴴ dU)) Vᴴ` with `E[i, j] = 1 / (w[j] - w[i])`, of which the real part is taken (Boeddeker, Hanebrink and Haeb-Umbach,
/// "On the computation of complex-valued gradients", 2017). In `dU` is left of `dV` what leaves the lengths of vectors as they are, and their
/// greatest elements real.
pub(super) fn gradient(
    exec: &dyn Exec,
    y: &[Value],
    dw: Option<&Value>,
    dv: Option<&Value>,
) -> Result<Value> {
    let [values, vectors, real] = y else {
        return Err(OpError::arity("eig", "3 results", y.len()));
    };
    let n = values.ndim();
    let v = Complex::side_by_side(exec, vectors)?;
    let mut inner = None;
    if let Some(dv) = dv {
        let du = v.within(exec, &Complex::side_by_side(exec, dv)?, real)?;
        let within = v.product(exec, &du, [true, false])?;
        inner = Some(within.divided(exec, &Complex::pairs(exec, values)?)?);
    }
    if let Some(dw) = dw {
        let dw = Complex::pairs(exec, dw)?;
        let on = dw.each(|part| diag_embed(exec, part, 0, n - 2, n - 1))?;
        inner = Some(match inner {
            Some(inner) => inner.plus(exec, &on)?,
            None => on,
        });
    }
    let Some(inner) = inner else {
        return Err(OpError::NoVjp {
            op: "eig",
            operand: 0,
        });
    };
    // Vᴴ X = inner Vᴴ, as one system of real numbers; the upper half is the real part.
    let right = inner.product(exec, &v.adjoint(exec)?, [false, false])?;
    let system = v.adjoint(exec)?.as_real(exec)?;
    let sides = cat(exec, &[&right.re, &right.im], n - 2)?;
    let all = apply_solve(exec, &system, &sides)?;
    slice(exec, &all, n - 2, 0, 1, values.shape()[n - 2])
}

/// Complex matrices, or rows of numbers.
struct Complex {
    re: Value,
    im: Value,
}

impl Complex {
    /// Parts that stand beside each other in pairs of columns.
    fn side_by_side(exec: &dyn Exec, x: &Value) -> Result<Self> {
        let last = x.ndim() - 1;
        let part = |first| slice(exec, x, last, first, 2, x.shape()[last] / 2);
        Ok(Self {
            re: part(0)?,
            im: part(1)?,
        })
    }

    /// Parts that are in a last dim, which is lost.
    fn pairs(exec: &dyn Exec, x: &Value) -> Result<Self> {
        let last = x.ndim() - 1;
        let part = |at| reshape(exec, &slice(exec, x, last, at, 1, 1)?, &x.shape()[..last]);
        Ok(Self {
            re: part(0)?,
            im: part(1)?,
        })
    }

    fn each(&self, f: impl Fn(&Value) -> Result<Value>) -> Result<Self> {
        Ok(Self {
            re: f(&self.re)?,
            im: f(&self.im)?,
        })
    }

    fn plus(&self, exec: &dyn Exec, other: &Self) -> Result<Self> {
        Ok(Self {
            re: add(exec, &self.re, &other.re)?,
            im: add(exec, &self.im, &other.im)?,
        })
    }

    /// Turned, with the signs of imaginary parts.
    fn adjoint(&self, exec: &dyn Exec) -> Result<Self> {
        Ok(Self {
            re: turned(exec, &self.re)?,
            im: neg(exec, &turned(exec, &self.im)?)?,
        })
    }

    /// The product, of the adjoint where it says so.
    fn product(&self, exec: &dyn Exec, other: &Self, adjoint: [bool; 2]) -> Result<Self> {
        let times = |a: &Value, b: &Value| product(exec, a, b, adjoint[0], adjoint[1]);
        let signed = |is_less: bool, a: Value, b: Value| match is_less {
            true => sub(exec, &a, &b),
            false => add(exec, &a, &b),
        };
        let (re, im) = (times(&self.re, &other.re)?, times(&self.im, &other.im)?);
        let (first, second) = (times(&self.im, &other.re)?, times(&self.re, &other.im)?);
        let [a, b] = adjoint;
        // Of imaginary parts one, or none, or both have another sign.
        let first = if a { neg(exec, &first)? } else { first };
        Ok(Self {
            re: signed(a == b, re, im)?,
            im: signed(b, first, second)?,
        })
    }

    /// `[[re, -im], [im, re]]`, which multiplies real parts above imaginary ones.
    fn as_real(&self, exec: &dyn Exec) -> Result<Value> {
        let (rows, columns) = (self.re.ndim() - 2, self.re.ndim() - 1);
        let above = cat(exec, &[&self.re, &neg(exec, &self.im)?], columns)?;
        let below = cat(exec, &[&self.im, &self.re], columns)?;
        cat(exec, &[&above, &below], rows)
    }

    /// Of the cotangent `g` of these vectors what leaves their lengths and the elements that are real as they are: for every column
    /// `g - v Re(vᴴ g) - i e Im(vᴴ g) / vₑ`, where `e` is the element's place.
    fn within(&self, exec: &dyn Exec, g: &Self, real: &Value) -> Result<Self> {
        let rows = self.re.ndim() - 2;
        let of_columns = |x: &Value, y: &Value| sum(exec, &mul(exec, x, y)?, &[rows], true);
        let along = add(
            exec,
            &of_columns(&self.re, &g.re)?,
            &of_columns(&self.im, &g.im)?,
        )?;
        let across = sub(
            exec,
            &of_columns(&self.re, &g.im)?,
            &of_columns(&self.im, &g.re)?,
        )?;
        let turn = div(exec, &across, &of_columns(&self.re, real)?)?;
        let re = sub(exec, &g.re, &mul(exec, &self.re, &along)?)?;
        let im = sub(exec, &g.im, &mul(exec, &self.im, &along)?)?;
        let im = sub(exec, &im, &mul(exec, real, &turn)?)?;
        Ok(Self { re, im })
    }

    /// Each element over the conjugate of `w[j] - w[i]`, and 0 where these are equal.
    fn divided(&self, exec: &dyn Exec, w: &Self) -> Result<Self> {
        let apart = |w: &Value| {
            let (rows, columns) = (
                unsqueeze(exec, w, w.ndim())?,
                unsqueeze(exec, w, w.ndim() - 1)?,
            );
            sub(exec, &columns, &rows)
        };
        let (re, im) = (apart(&w.re)?, apart(&w.im)?);
        let none = |x: &Value| eq(exec, &x.detach(), &number("eq", x, 0.0)?);
        let same = logical_and(exec, &none(&re)?, &none(&im)?)?;
        let squares = add(
            exec,
            &unary(exec, &re, Unary::Square)?,
            &unary(exec, &im, Unary::Square)?,
        )?;
        let over = unary(
            exec,
            &masked_fill(exec, &squares, &same, 1.0)?,
            Unary::Reciprocal,
        )?;
        let over = masked_fill(exec, &over, &same, 0.0)?;
        let times = |a: &Value, b: &Value| mul(exec, a, b);
        // 1 / conj(d) is d / |d|².
        Ok(Self {
            re: mul(
                exec,
                &sub(exec, &times(&self.re, &re)?, &times(&self.im, &im)?)?,
                &over,
            )?,
            im: mul(
                exec,
                &add(exec, &times(&self.re, &im)?, &times(&self.im, &re)?)?,
                &over,
            )?,
        })
    }
}

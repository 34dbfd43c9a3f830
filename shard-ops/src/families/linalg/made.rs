//! What is made of factors: powers, norms, and least squares.

use super::gradient::turned;
use super::{columns, inv, qr, solve_triangular, svd};
use crate::error::InOp;
use crate::families::broadcast::{expand, expand_like};
use crate::families::elementwise::{
    cast, div, isfinite, logical_and, logical_not, masked_fill, mul, number,
};
use crate::families::full::{in_full, rounded_once};
use crate::families::index::{cat, pad, slice};
use crate::families::matmul::{matmul, product};
use crate::families::reduce::{amax, amin, sum};
use crate::families::shape::{squeeze, unsqueeze};
use crate::families::statistics::{NormOrder, norm};
use crate::families::triangle::{tril, triu};
use crate::{Exec, OpError, Result, Value};
use shard_redistribute::Array;
use shard_spec::{EdgeMap, Layout};

/// The norm of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixNorm {
    /// The root of the sum of squares of its elements.
    Frobenius,
    /// The sum of its singular values.
    Nuclear,
    /// Of 2 its greatest singular value, of 1 the largest sum of magnitudes of a column, and of infinity of a row; of their negatives the
    /// smallest of these.
    Of(NormOrder),
}

impl From<f64> for MatrixNorm {
    fn from(p: f64) -> Self {
        Self::Of(p.into())
    }
}

/// The singular values of matrices of any extents, falling.
///
/// # Collective
/// As [`svd`].
///
/// # Errors
/// As [`svd`].
pub fn svdvals(exec: &dyn Exec, x: &Value) -> Result<Value> {
    // Numbers of results are checked where they are made.
    Ok(svd(exec, x)?.swap_remove(1))
}

/// `Q`, `[.., m, m]` and orthogonal, and `R`, `[.., m, n]` and upper triangular, with `Q R = A`: [`qr`] with columns for all rows. Those behind
/// the first `min(m, n)` span what is left; they have no derivative.
///
/// # Collective
/// As [`qr`].
///
/// # Errors
/// As [`qr`].
pub fn qr_complete(exec: &dyn Exec, x: &Value) -> Result<[Value; 2]> {
    let factors = qr(exec, x)?;
    let [q, r] = &factors[..] else {
        return Err(OpError::arity("qr_complete", "2 results", factors.len()));
    };
    let rows = q.ndim() - 2;
    let missing = q.shape()[rows] - q.shape()[rows + 1];
    let mut pads = vec![(0, 0); r.ndim()];
    pads[rows].1 = missing as isize;
    let r = pad(exec, r, &pads, EdgeMap::Zeros, 0.0)?;
    Ok([whole_basis(exec, q)?, r])
}

/// `U`, `[.., m, m]`, the singular values `s`, `[.., min(m, n)]`, and `Vᵀ`, `[.., n, n]`: [`svd`] with bases of all rows and of all columns, of
/// which those vectors that no singular value belongs to have no derivative.
///
/// # Collective
/// As [`svd`] and [`qr`].
///
/// # Errors
/// As [`svd`].
pub fn svd_full(exec: &dyn Exec, x: &Value) -> Result<[Value; 3]> {
    let factors = svd(exec, x)?;
    let [u, s, vt] = &factors[..] else {
        return Err(OpError::arity("svd_full", "3 results", factors.len()));
    };
    let v = whole_basis(exec, &turned(exec, vt)?)?;
    Ok([whole_basis(exec, u)?, s.clone(), turned(exec, &v)?])
}

/// Orthonormal columns, `[.., m, k]`, and behind them as many others as make a basis, `[.., m, m]`: what reflections that make a triangle of the
/// columns and of ones make of ones.
fn whole_basis(exec: &dyn Exec, columns: &Value) -> Result<Value> {
    let rows = columns.ndim() - 2;
    let [m, k] = [columns.shape()[rows], columns.shape()[rows + 1]];
    if m == k {
        return Ok(columns.clone());
    }
    let own = columns.detach();
    let both = cat(exec, &[&own, &ones_beside(exec, &own)?], rows + 1)?;
    let all = qr(exec, &both)?.swap_remove(0);
    let others = slice(exec, &all, rows + 1, k, 1, m - k)?;
    cat(exec, &[columns, &others], rows + 1)
}

/// For each matrix of `m` rows the identity of as many.
fn ones_beside(exec: &dyn Exec, like: &Value) -> Result<Value> {
    let rows = like.ndim() - 2;
    let m = like.shape()[rows];
    let layout = Layout::replicated(like.layout().mesh(), &[m, m]);
    let one = |i: &[usize]| f32::from(u8::from(i[0] == i[1]));
    let ones = Array::from_fn(like.array().cx(), &layout, one).in_op("qr_complete")?;
    let ones = cast(exec, &Value::new(ones), like.dtype())?;
    let shape = [&like.shape()[..rows], &[m, m]].concat();
    expand(exec, &ones, &shape)
}

/// The norms of matrices, the last two dims, which disappear, or stay with extent 1 if `keepdim`.
///
/// # Collective
/// All members of the mesh. As [`norm`] of elements, and as [`svd`] of singular values.
///
/// # Errors
/// Fewer than two dims, an order without such a norm, integers and truth values; as [`svd`] of singular values, and of extremes of nothing.
pub fn matrix_norm(
    exec: &dyn Exec,
    x: &Value,
    order: impl Into<MatrixNorm>,
    keepdim: bool,
) -> Result<Value> {
    let order = order.into();
    let Some(rows) = x.ndim().checked_sub(2) else {
        return Err(unfit("matrix_norm", "there are no matrices".into(), x));
    };
    in_full(exec, [x], |[x]| {
        let (columns, both) = (rows + 1, [rows, rows + 1]);
        // Sums along one dim, and an extreme of them along the other.
        let extreme = |along: usize, of: usize, pick: Reduce| {
            let sums = norm(exec, x, 1.0, &[along], true)?;
            kept(exec, pick(exec, &sums, &[of], true)?, keepdim)
        };
        let singular = |pick: Reduce| {
            let values = svdvals(exec, x)?;
            let found = pick(exec, &values, &[rows], true)?;
            let found = unsqueeze(exec, &found, columns)?;
            kept(exec, found, keepdim)
        };
        match order {
            MatrixNorm::Frobenius => norm(exec, x, 2.0, &both, keepdim),
            MatrixNorm::Nuclear => singular(sum),
            MatrixNorm::Of(NormOrder::P(2.0)) => singular(greatest),
            MatrixNorm::Of(NormOrder::P(-2.0)) => singular(least),
            MatrixNorm::Of(NormOrder::P(1.0)) => extreme(rows, columns, greatest),
            MatrixNorm::Of(NormOrder::P(-1.0)) => extreme(rows, columns, least),
            MatrixNorm::Of(NormOrder::Infinity) => extreme(columns, rows, greatest),
            MatrixNorm::Of(NormOrder::NegInfinity) => extreme(columns, rows, least),
            MatrixNorm::Of(order) => Err(unfit(
                "matrix_norm",
                format!("there is no norm of matrices of order {order:?}"),
                x,
            )),
        }
    })
}

type Reduce = fn(&dyn Exec, &Value, &[usize], bool) -> Result<Value>;

/// The greatest of sizes; of none it is 0.
fn greatest(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    match x.shape()[dims[0]] {
        0 => sum(exec, x, dims, keepdim),
        _ => amax(exec, x, dims, keepdim),
    }
}

/// The least of sizes, of which there must be one.
fn least(exec: &dyn Exec, x: &Value, dims: &[usize], keepdim: bool) -> Result<Value> {
    match x.shape()[dims[0]] {
        0 => Err(unfit(
            "matrix_norm",
            "of nothing there is no least".into(),
            x,
        )),
        _ => amin(exec, x, dims, keepdim),
    }
}

/// Without the last two dims, unless they are kept.
fn kept(exec: &dyn Exec, x: Value, keepdim: bool) -> Result<Value> {
    match keepdim {
        true => Ok(x),
        false => {
            let x = squeeze(exec, &x, x.ndim() - 1)?;
            squeeze(exec, &x, x.ndim() - 1)
        }
    }
}

/// The condition numbers of matrices: the norm of each times that of its inverse. Of 2, and of -2, they are the ratio of the greatest to the
/// least singular value, or the other way round, of matrices of any extents.
///
/// # Collective
/// As [`matrix_norm`], and as [`inv`](fn@super::inv) for other orders than 2 and -2.
///
/// # Errors
/// As [`matrix_norm`]; as [`inv`](fn@super::inv) for other orders than 2 and -2.
pub fn cond(exec: &dyn Exec, x: &Value, order: impl Into<MatrixNorm>) -> Result<Value> {
    let order = order.into();
    let [most, least] = [2.0, -2.0].map(MatrixNorm::from);
    in_full(exec, [x], |[x]| {
        let of = |order| matrix_norm(exec, x, order, false);
        // Of no elements it is 0, as the norm is.
        if x.shape().iter().rev().take(2).any(|&n| n == 0) {
            return of(MatrixNorm::Frobenius);
        }
        if order == most || order == least {
            let other = if order == most { least } else { most };
            return div(exec, &of(order)?, &of(other)?);
        }
        let inverse = inv(exec, x)?.swap_remove(0);
        let (own, other) = (of(order)?, matrix_norm(exec, &inverse, order, false)?);
        let found = mul(exec, &own, &other)?;
        // What elimination leaves of a singular matrix is no number; a matrix that has such itself is none.
        let singular = logical_and(
            exec,
            &logical_not(exec, &isfinite(exec, &other)?)?,
            &isfinite(exec, &own)?,
        )?;
        masked_fill(exec, &found, &singular, f64::INFINITY)
    })
}

/// The powers of square matrices, by squaring; negative ones are those of the inverse, and of 0 there are ones on the diagonal.
///
/// # Collective
/// All members of the mesh. As [`matmul`] of a matrix by itself, twice the logarithm of the exponent times at the most; as
/// [`inv`](fn@super::inv) for negative exponents.
///
/// # Errors
/// Matrices that are not square; as [`matmul`], and as [`inv`](fn@super::inv) for negative exponents.
pub fn matrix_power(exec: &dyn Exec, x: &Value, exponent: i64) -> Result<Value> {
    let n = x.ndim();
    if n < 2 || x.shape()[n - 2] != x.shape()[n - 1] {
        let problem = "the matrices are not square".into();
        return Err(unfit("matrix_power", problem, x));
    }
    rounded_once(exec, [x], |[x]| {
        let mut base = match exponent < 0 {
            true => inv(exec, x)?.swap_remove(0),
            false => x.clone(),
        };
        let mut rest = exponent.unsigned_abs();
        let mut found: Option<Value> = None;
        while rest > 0 {
            if rest % 2 == 1 {
                found = Some(match found {
                    None => base.clone(),
                    Some(found) => matmul(exec, &found, &base)?,
                });
            }
            rest /= 2;
            if rest > 0 {
                base = matmul(exec, &base, &base)?;
            }
        }
        match found {
            Some(found) => Ok(found),
            None => {
                let ones = expand_like(exec, &number("matrix_power", x, 1.0)?, &x.detach())?;
                tril(exec, &triu(exec, &ones, 0)?, 0)
            }
        }
    })
}

/// The `X` with the least `|A X - B|`, for matrices `a`, `[.., m, n]`, of full rank, and `b`, `[.., m, k]` or `[.., m]`, with equal batch dims;
/// of several the smallest, where there are more columns than rows. By orthogonal factors of `a`; where its rank is not full, they hold
/// pivots near 0, and `pinv(a)` is for that.
///
/// # Collective
/// As [`solve`](fn@super::solve), and as [`qr`](fn@super::qr).
///
/// # Errors
/// As [`solve`](fn@super::solve), of matrices of any extents.
pub fn lstsq(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    in_full(exec, [a, b], |[a, b]| least_squares(exec, a, b))
}

fn least_squares(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    const OP: &str = "lstsq";
    let factors = |a: &Value| {
        let mut made = qr(exec, a)?;
        let r = made.swap_remove(1);
        Ok::<_, OpError>((made.swap_remove(0), r))
    };
    columns(exec, a, b, &|b| {
        let fits = match (a.shape(), b.shape()) {
            ([batch @ .., m, _], [others @ .., rows, _]) => m == rows && batch == others,
            _ => false,
        };
        if !fits {
            return Err(OpError::Shape {
                op: OP,
                problem: "matrices and right-hand sides do not fit".into(),
                shapes: vec![a.shape().to_vec(), b.shape().to_vec()],
                fix: "give batches of matrices with as many rows, the last two dims",
            });
        }
        let &[.., m, n] = a.shape() else {
            return Err(unfit(OP, "there are no matrices".into(), a));
        };
        if m < n {
            let (q, r) = factors(&turned(exec, a)?)?;
            let y = solve_triangular(exec, &turned(exec, &r)?, b, false, false)?;
            return product(exec, &q, &y, false, false);
        }
        let (q, r) = factors(a)?;
        solve_triangular(exec, &r, &product(exec, &q, b, true, false)?, true, false)
    })
}

fn unfit(op: &'static str, problem: String, x: &Value) -> OpError {
    OpError::Shape {
        op,
        problem,
        shapes: vec![x.shape().to_vec()],
        fix: "give batches of such matrices, the last two dims",
    }
}

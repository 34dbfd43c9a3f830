//! Gradients of factors, by the formulas of Giles, "Collected matrix derivative results" (2008), and Walter and Lehmann (2012) for QR.

use super::{apply, apply_solve, solve_triangular, unsymmetric};
use crate::families::elementwise::{
    add, cast, eq, le, masked_fill, mul, mul_scalar, neg, number, sub, unary,
};
use crate::families::index::{cat, pad, slice};
use crate::families::matmul::product;
use crate::families::reduce::sum;
use crate::families::shape::{transpose, unsqueeze};
use crate::families::triangle::{tril, triu};
use crate::{Exec, OpError, Result, Saved, Value};
use shard_kernels::linalg::Factors;
use shard_kernels::unary::Unary;
use shard_spec::EdgeMap;

/// The cotangent of the matrices.
pub(super) fn of(
    exec: &dyn Exec,
    kind: Factors,
    saved: &Saved<'_>,
    cotangents: &[Option<Value>],
) -> Result<Option<Value>> {
    let (x, y) = (&saved.inputs[0], saved.outputs);
    let given = |i: usize| cotangents[i].as_ref();
    match (kind, given(0)) {
        (Factors::Inverse, Some(dy)) => {
            let right = product(exec, dy, &y[0], false, true)?;
            neg(exec, &product(exec, &y[0], &right, true, false)?).map(Some)
        }
        (Factors::Cholesky, Some(dl)) => cholesky(exec, &y[0], dl).map(Some),
        (Factors::Det, Some(d)) => {
            let adjugate = apply(exec, Factors::Adjugate, x)?.swap_remove(0);
            mul(exec, &apart(exec, d)?, &turned(exec, &adjugate)?).map(Some)
        }
        (Factors::Slogdet, _) => match given(1) {
            Some(d) => mul(exec, &apart(exec, d)?, &turned(exec, &inverse(exec, x)?)?).map(Some),
            None => Ok(None),
        },
        (Factors::Qr, _) => qr(exec, y, given(0), given(1)).map(Some),
        (Factors::Lu, _) => match (given(1), given(2)) {
            (None, None) => Ok(None),
            (dl, du) => lu(exec, y, dl, du).map(Some),
        },
        (Factors::Svd, _) => svd(exec, y, [given(0), given(1), given(2)]).map(Some),
        (Factors::Adjugate, Some(dy)) => adjugate(exec, x, &y[0], dy).map(Some),
        (Factors::Exp, Some(dy)) => exponential(exec, x, dy).map(Some),
        (Factors::Eigh, _) => eigh(exec, y, given(0), given(1)).map(Some),
        (Factors::Eig, _) => unsymmetric::gradient(exec, y, given(0), given(1)).map(Some),
        (Factors::Reflections, _) => Err(OpError::NoVjp {
            op: "geqrf",
            operand: 0,
        }),
        _ => Ok(None),
    }
}

/// The transposed matrices.
pub(super) fn turned(exec: &dyn Exec, x: &Value) -> Result<Value> {
    transpose(exec, x, x.ndim() - 2, x.ndim() - 1)
}

/// `-A Bᵀ`.
pub(super) fn minus_product(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    neg(exec, &product(exec, a, b, false, true)?)
}

fn inverse(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let mut made = apply(exec, Factors::Inverse, x)?;
    Ok(made.swap_remove(0))
}

/// A number for each matrix, as a matrix of one.
fn apart(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let x = unsqueeze(exec, x, x.ndim())?;
    unsqueeze(exec, &x, x.ndim())
}

/// `B` with `B M = A`.
fn divided(exec: &dyn Exec, a: &Value, m: &Value) -> Result<Value> {
    let left = apply_solve(exec, &turned(exec, m)?, &turned(exec, a)?)?;
    turned(exec, &left)
}

fn sum_of(exec: &dyn Exec, terms: Vec<Value>) -> Result<Value> {
    let mut terms = terms.into_iter();
    let first = terms.next();
    let first = first.ok_or(OpError::NoVjp {
        op: "linalg",
        operand: 0,
    })?;
    terms.try_fold(first, |all, term| add(exec, &all, &term))
}

/// The derivative of `exp` at `Aᵀ` in a direction is what stands beside `exp(Aᵀ)` in the exponential of both together.
fn exponential(exec: &dyn Exec, x: &Value, dy: &Value) -> Result<Value> {
    let (last, n) = (x.ndim() - 1, x.shape()[x.ndim() - 1]);
    let turned = turned(exec, x)?;
    let above = cat(exec, &[&turned, dy], last)?;
    let mut pads = vec![(0, 0); x.ndim()];
    pads[last].0 = n as isize;
    let below = pad(exec, &turned, &pads, EdgeMap::Zeros, 0.0)?;
    let both = cat(exec, &[&above, &below], last - 1)?;
    let all = apply(exec, Factors::Exp, &both)?.swap_remove(0);
    let above = slice(exec, &all, last - 1, 0, 1, n)?;
    slice(exec, &above, last, n, 1, n)
}

/// `⟨dY, Y⟩ A⁻ᵀ - Yᵀ dY A⁻ᵀ` for the adjugate `Y = A⁻¹ det A`.
fn adjugate(exec: &dyn Exec, x: &Value, y: &Value, dy: &Value) -> Result<Value> {
    let (rows, columns) = (x.ndim() - 2, x.ndim() - 1);
    let scale = sum(exec, &mul(exec, dy, y)?, &[rows, columns], true)?;
    let along = mul(exec, &scale, &turned(exec, &inverse(exec, x)?)?)?;
    let across = divided(exec, &product(exec, y, dy, true, false)?, &turned(exec, x)?)?;
    sub(exec, &along, &across)
}

/// `½ (S + Sᵀ)` with `S = L⁻ᵀ Φ(Lᵀ dL) L⁻¹`, where Φ takes the lower triangle and half of the diagonal.
fn cholesky(exec: &dyn Exec, l: &Value, dl: &Value) -> Result<Value> {
    let inner = product(exec, l, dl, true, false)?;
    let halves = add(exec, &tril(exec, &inner, 0)?, &tril(exec, &inner, -1)?)?;
    let right = divided(exec, &mul_scalar(exec, &halves, 0.5)?, l)?;
    let s = apply_solve(exec, &turned(exec, l)?, &right)?;
    mul_scalar(exec, &add(exec, &s, &turned(exec, &s)?)?, 0.5)
}

/// `P L₁⁻ᵀ W U₁⁻ᵀ`, for the first rows of `L` and the first columns of `U`, as many as either has; below its diagonal `W` is `Lᵀ dL`, and above
/// it, and on it, `dU Uᵀ`.
///
/// Of more columns the others are `U₂ = L⁻¹ A₂`: `A₂` gets `L⁻ᵀ dU₂`, and `L` has `-L⁻ᵀ dU₂ U₂ᵀ` more. Of more rows `L₂ = A₂ U⁻¹`: `A₂` gets
/// `dL₂ U⁻ᵀ`, and `U` has `-L₂ᵀ dL₂ U⁻ᵀ` more.
fn lu(exec: &dyn Exec, y: &[Value], dl: Option<&Value>, du: Option<&Value>) -> Result<Value> {
    let [p, l, u] = y else {
        return sum_of(exec, Vec::new());
    };
    let (row, column) = (l.ndim() - 2, l.ndim() - 1);
    let (m, k, n) = (l.shape()[row], l.shape()[column], u.shape()[column]);
    let first = |x: &Value, dim: usize| slice(exec, x, dim, 0, 1, k);
    let others = |x: &Value, dim: usize| slice(exec, x, dim, k, 1, x.shape()[dim] - k);
    let l_first = turned(exec, &first(l, row)?)?;
    let u_first = turned(exec, &first(u, column)?)?;
    let over_l = |x: &Value| solve_triangular(exec, &l_first, x, true, true);
    let (mut below, mut above, mut more) = (Vec::new(), Vec::new(), None);
    if let Some(dl) = dl {
        below.push(product(exec, &l_first, &first(dl, row)?, false, false)?);
        if m > k {
            let (l, dl) = (others(l, row)?, others(dl, row)?);
            above.push(neg(exec, &product(exec, &l, &dl, true, false)?)?);
            more = Some((divided(exec, &dl, &u_first)?, row));
        }
    }
    if let Some(du) = du {
        above.push(product(exec, &first(du, column)?, &u_first, false, false)?);
        if n > k {
            let (u, du) = (others(u, column)?, others(du, column)?);
            below.push(minus_product(exec, &du, &u)?);
            more = Some((over_l(&du)?, column));
        }
    }
    let mut terms = Vec::new();
    if !below.is_empty() {
        terms.push(tril(exec, &sum_of(exec, below)?, -1)?);
    }
    if !above.is_empty() {
        terms.push(triu(exec, &sum_of(exec, above)?, 0)?);
    }
    let inner = over_l(&sum_of(exec, terms)?)?;
    let mut dx = divided(exec, &inner, &u_first)?;
    if let Some((more, dim)) = more {
        dx = cat(exec, &[&dx, &more], dim)?;
    } else if m.max(n) > k {
        let mut pads = vec![(0, 0); dx.ndim()];
        pads[if m > k { row } else { column }].1 = (m.max(n) - k) as isize;
        dx = pad(exec, &dx, &pads, EdgeMap::Zeros, 0.0)?;
    }
    product(exec, p, &dx, false, false)
}

/// `(dQ + Q copyltu(M)) R⁻ᵀ` with `M = R dRᵀ - dQᵀ Q`. Of matrices with more columns than rows, whose `Q` is that of the first ones,
/// see [`wide_qr`].
fn qr(exec: &dyn Exec, y: &[Value], dq: Option<&Value>, dr: Option<&Value>) -> Result<Value> {
    let (q, r) = (&y[0], &y[1]);
    let mut terms = Vec::new();
    if let Some(dr) = dr {
        terms.push(product(exec, r, dr, false, true)?);
    }
    if let Some(dq) = dq {
        terms.push(neg(exec, &product(exec, dq, q, true, false)?)?);
    }
    let m = sum_of(exec, terms)?;
    if q.shape()[q.ndim() - 2] < r.shape()[r.ndim() - 1] {
        return wide_qr(exec, q, r, &m, dr);
    }
    let mirrored = add(
        exec,
        &tril(exec, &m, 0)?,
        &turned(exec, &tril(exec, &m, -1)?)?,
    )?;
    let mut left = product(exec, q, &mirrored, false, false)?;
    if let Some(dq) = dq {
        left = add(exec, dq, &left)?;
    }
    divided(exec, &left, &turned(exec, r)?)
}

/// `Q dR`, and of the first columns, as many as rows, `Q W R₁⁻ᵀ` more: `R₁` are those columns of `R`, and `W` is what lies below the
/// diagonal of `M - Mᵀ`, for the `M` of [`qr`].
///
/// A change `dA` of the matrix is one of `Q` by `Q K` and of `R` by `Qᵀ dA - K R`, with `K` skew and `K R₁ = Qᵀ dA₁` below the diagonal.
/// So `dR` reaches all columns through `Qᵀ`, and what `K` is worth, `⟨Qᵀ dQ - dR Rᵀ, K⟩`, the first ones.
fn wide_qr(exec: &dyn Exec, q: &Value, r: &Value, m: &Value, dr: Option<&Value>) -> Result<Value> {
    let (last, rows) = (r.ndim() - 1, q.shape()[q.ndim() - 2]);
    let first = slice(exec, r, last, 0, 1, rows)?;
    let skew = tril(exec, &sub(exec, m, &turned(exec, m)?)?, -1)?;
    let left = divided(
        exec,
        &product(exec, q, &skew, false, false)?,
        &turned(exec, &first)?,
    )?;
    let mut pads = vec![(0, 0); r.ndim()];
    pads[last].1 = (r.shape()[last] - rows) as isize;
    let left = pad(exec, &left, &pads, EdgeMap::Zeros, 0.0)?;
    match dr {
        Some(dr) => add(exec, &left, &product(exec, q, dr, false, false)?),
        None => Ok(left),
    }
}

/// `1 / (x[j] - x[i])`, and 0 where they are equal.
fn apart_by(exec: &dyn Exec, x: &Value) -> Result<Value> {
    let (rows, columns) = (
        unsqueeze(exec, x, x.ndim())?,
        unsqueeze(exec, x, x.ndim() - 1)?,
    );
    let difference = sub(exec, &columns, &rows)?;
    let same = eq(exec, &difference.detach(), &number("eq", x, 0.0)?)?;
    let reciprocal = unary(
        exec,
        &masked_fill(exec, &difference, &same, 1.0)?,
        Unary::Reciprocal,
    )?;
    masked_fill(exec, &reciprocal, &same, 0.0)
}

/// A matrix with the numbers of a row on its diagonal, as the sum of it and another.
fn with_diagonal(exec: &dyn Exec, of: &Value, like: &Value) -> Result<Value> {
    let ones = cast(
        exec,
        &le(
            exec,
            &number("le", like, 0.0)?,
            &unary(exec, like, Unary::Square)?,
        )?,
        like.dtype(),
    )?;
    let unit = triu(exec, &tril(exec, &ones, 0)?, 0)?;
    mul(exec, &unit, &unsqueeze(exec, of, of.ndim() - 1)?)
}

/// `V (diag(dw) + F ∘ (Vᵀ dV)) Vᵀ` with `F[i, j] = 1 / (w[j] - w[i])`, made symmetric.
fn eigh(exec: &dyn Exec, y: &[Value], dw: Option<&Value>, dv: Option<&Value>) -> Result<Value> {
    let (w, v) = (&y[0], &y[1]);
    let mut terms = Vec::new();
    if let Some(dw) = dw {
        terms.push(with_diagonal(exec, dw, v)?);
    }
    if let Some(dv) = dv {
        let inner = product(exec, v, dv, true, false)?;
        terms.push(mul(exec, &apart_by(exec, w)?, &inner)?);
    }
    let inner = product(exec, v, &sum_of(exec, terms)?, false, false)?;
    let all = product(exec, &inner, v, false, true)?;
    mul_scalar(exec, &add(exec, &all, &turned(exec, &all)?)?, 0.5)
}

/// `U ((J + Jᵀ) S + S (K + Kᵀ) + diag(ds)) Vᵀ`, with `J = F ∘ (Uᵀ dU)`, `K = F ∘ (Vᵀ dV)` and `F[i, j] = 1 / (s[j]² - s[i]²)`, and
/// what `dU` and `dV` have outside of the spaces that `U` and `V` span, divided by `S`.
fn svd(exec: &dyn Exec, y: &[Value], [du, ds, dvt]: [Option<&Value>; 3]) -> Result<Value> {
    let (u, s, vt) = (&y[0], &y[1], &y[2]);
    let count = s.shape()[s.ndim() - 1];
    let f = apart_by(exec, &unary(exec, s, Unary::Square)?)?;
    let columns = unsqueeze(exec, s, s.ndim() - 1)?;
    let rows = unsqueeze(exec, s, s.ndim())?;
    let both = |x: &Value| add(exec, x, &turned(exec, x)?);
    let mut inner = Vec::new();
    let mut outer = Vec::new();
    if let Some(ds) = ds {
        let like = product(exec, u, u, true, false)?;
        inner.push(with_diagonal(exec, ds, &like)?);
    }
    if let Some(du) = du {
        let within = product(exec, u, du, true, false)?;
        inner.push(mul(exec, &both(&mul(exec, &f, &within)?)?, &columns)?);
        // As many vectors as dims span all there is: what rounding leaves beyond them would be divided by values near 0.
        if u.shape()[u.ndim() - 2] > count {
            let beyond = sub(exec, du, &product(exec, u, &within, false, false)?)?;
            let beyond = mul(exec, &beyond, &unary(exec, &columns, Unary::Reciprocal)?)?;
            outer.push(product(exec, &beyond, vt, false, false)?);
        }
    }
    if let Some(dvt) = dvt {
        // Vᵀ dV, of which dVᵀ is given.
        let within = product(exec, vt, dvt, false, true)?;
        inner.push(mul(exec, &rows, &both(&mul(exec, &f, &within)?)?)?);
        if vt.shape()[vt.ndim() - 1] > count {
            let beyond = sub(
                exec,
                dvt,
                &product(exec, &turned(exec, &within)?, vt, false, false)?,
            )?;
            let beyond = mul(exec, &unary(exec, &rows, Unary::Reciprocal)?, &beyond)?;
            outer.push(product(exec, u, &beyond, false, false)?);
        }
    }
    let inner = product(exec, u, &sum_of(exec, inner)?, false, false)?;
    outer.push(product(exec, &inner, vt, false, false)?);
    sum_of(exec, outer)
}

//! Calls of linear algebra.

use super::{Call, Chance, one, two};
use shard_tensor::{DType, Mesh, Result, ShardTensor, replicate};

/// Whole matrices, of which those that are square are positive definite.
fn matrices(c: &mut Chance, m: &Mesh) -> Result<ShardTensor> {
    let [rows, columns] = [c.extent(), c.extent()];
    let columns = if c.below(4) == 0 { columns } else { rows };
    let x = c.tensor(m, &[2, rows, columns])?;
    let x = x.redistribute(vec![replicate(); m.shape().len()])?;
    match rows == columns {
        true => x.matmul(&x.transpose(1, 2)?)?.add(
            &x.mesh()
                .eye([rows, rows], vec![replicate(); m.shape().len()])?,
        ),
        false => Ok(x),
    }
}

/// The same matrices on all ranks, most of them square and far from singular.
fn whole(c: &mut Chance, m: &Mesh) -> Result<ShardTensor> {
    let [rows, columns] = [c.extent(), c.extent()];
    let columns = if c.below(4) == 0 { columns } else { rows };
    let x = c.tensor(m, &[2, rows, columns])?;
    if c.terms {
        // They are refused, or pass: nothing may move here.
        return Ok(x);
    }
    let all = vec![replicate(); m.shape().len()];
    let ones = m.with_dtype(DType::F64).eye([rows, columns], all.clone())?;
    x.redistribute(all)?.add(&ones.mul_scalar(9.0)?)
}

/// Calls of whole matrices.
pub(super) const ALL: &[(&str, Call)] = &[
    ("factors", |c, m| {
        let x = matrices(c, m)?;
        match c.below(8) {
            0 => one(x.inv()),
            1 => one(x.cholesky()),
            2 => two(x.qr()),
            // Vectors of equal values are any.
            3 => one(x.svd().map(|(_, s, _)| s)),
            4 => one(x.eigh().map(|(w, _)| w)),
            5 => one(x.det()),
            6 => two(x.slogdet()),
            _ => {
                let b = c.of(m, 3)?;
                let b = b.redistribute(vec![replicate(); m.shape().len()])?;
                one(x.solve(&b))
            }
        }
    }),
    ("solve_triangular", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        one(a.solve_triangular(&b, c.flag(), c.flag()))
    }),
    ("lstsq", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        one(a.lstsq(&b))
    }),
    ("pinv", |c, m| {
        let (x, rtol) = (whole(c, m)?, c.number());
        one(x.pinv(c.maybe(rtol)))
    }),
    ("matrix_exp", |c, m| one(whole(c, m)?.matrix_exp())),
    ("matrix_power", |c, m| {
        one(whole(c, m)?.matrix_power(c.offset() as i64))
    }),
    ("matrix_norm", |c, m| {
        let order = c.pick(&[1.0, 2.0, -1.0, -2.0, f64::INFINITY, 3.0, f64::NAN]);
        one(whole(c, m)?.matrix_norm(order, c.flag()))
    }),
    ("cond", |c, m| {
        let order = c.pick(&[1.0, 2.0, -2.0, f64::INFINITY, 0.0]);
        one(whole(c, m)?.cond(order))
    }),
    ("svdvals", |c, m| one(whole(c, m)?.svdvals())),
    ("lu_solve", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        let (factors, pivots) = a.lu_factor()?;
        one(factors.lu_solve(&pivots, &b, c.flag(), c.flag()))
    }),
    ("packed", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        let (factors, pivots) = a.detach().ldl_factor()?;
        one(factors.ldl_solve(&pivots, &b))
    }),
    ("ormqr", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        let (reflections, tau) = a.detach().geqrf()?;
        one(reflections.ormqr(&tau, &b, c.flag(), c.flag()))
    }),
    ("packed", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        let tau = b.select(-1, c.offset())?;
        one(a.householder_product(&tau))
    }),
    // In which order values come is decided by none.
    ("eig", |c, m| one(whole(c, m)?.eigvals()?.sum(-2, false))),
    ("matrix_rank", |c, m| {
        let (atol, rtol) = (c.number(), c.number());
        one(whole(c, m)?.matrix_rank(c.maybe(atol), c.maybe(rtol)))
    }),
    ("cholesky_solve", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        one(a.cholesky_solve(&b))
    }),
    ("tensorinv", |c, m| one(whole(c, m)?.tensorinv(c.extent()))),
    ("tensorsolve", |c, m| {
        let [a, b] = [whole(c, m)?, whole(c, m)?];
        one(a.tensorsolve(&b.sum(-1, false)?))
    }),
    ("qr_complete", |c, m| {
        let (q, r) = whole(c, m)?.qr_complete()?;
        one(q.matmul(&r))
    }),
    ("svd_full", |c, m| {
        one(whole(c, m)?.svd_full().map(|(_, s, _)| s))
    }),
];

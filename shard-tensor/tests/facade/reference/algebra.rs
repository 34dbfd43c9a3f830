//! Factors that are kept, and what is solved with them.

use super::{Case, three};
use shard_tensor::{DType, Result, ShardTensor};

/// Two results of matrices, as rows of numbers.
fn rows((a, b): (ShardTensor, ShardTensor)) -> Result<ShardTensor> {
    ShardTensor::cat(
        &[
            &a.flatten_dims(1, -1)?,
            &b.to(DType::F64)?.flatten_dims(1, -1)?,
        ],
        1,
    )
}

/// Results that no gradient reaches.
fn fixed(x: &ShardTensor, y: &ShardTensor) -> Result<ShardTensor> {
    y.add(&x.sum_all()?.mul_scalar(0.0)?)
}

fn cubed(x: &ShardTensor) -> Result<ShardTensor> {
    x.square()?.mul(x)
}

/// Symmetric, with zeros along the diagonal.
fn hollow(x: &ShardTensor) -> Result<ShardTensor> {
    let below = x.add(&x.transpose(-2, -1)?)?.tril(-1)?;
    below.add(&below.transpose(-2, -1)?)
}

/// What neither the order of eigenvalues nor how vectors are turned changes.
fn spectrum(x: &ShardTensor) -> Result<ShardTensor> {
    let (values, vectors) = x.eig()?;
    let parts = vectors.square()?.sum(-1, false)?;
    let [re, im] = [0, 1].map(|part| values.select(-1, part));
    let of = |x: ShardTensor| parts.mul(&x.unsqueeze(-2)?)?.sum(-1, false);
    ShardTensor::stack(&[of(re?)?, of(im?.square()?)?], -1)
}

/// With three times the identity of its matrix of so many rows.
fn shifted(x: &ShardTensor, rows: usize) -> Result<ShardTensor> {
    let matrix = x.reshape([rows, rows])?;
    matrix.add(&three(&matrix)?)?.reshape(x.shape())
}

fn solved(x: &[ShardTensor], left: bool, transpose: bool, shifted: bool) -> Result<ShardTensor> {
    let a = match shifted {
        true => x[0].add(&three(&x[0])?)?,
        false => x[0].add(&three(&x[0])?.flip(0)?)?,
    };
    let (lu, pivots) = a.lu_factor()?;
    lu.lu_solve(&pivots, &x[1], left, transpose)
}

pub(super) const FACTORS: &[Case] = &[
    ("lu_factor", |x| rows(cubed(&x[0])?.lu_factor()?)),
    ("lu_factor of more rows", |x| {
        rows(cubed(&x[0])?.lu_factor()?)
    }),
    ("lu_factor of more columns", |x| {
        rows(cubed(&x[0])?.lu_factor()?)
    }),
    ("lu_solve", |x| solved(x, true, false, true)),
    ("lu_solve of rows", |x| solved(x, false, false, true)),
    ("lu_solve, turned", |x| solved(x, true, true, false)),
    ("lu_solve of turned rows", |x| solved(x, false, true, false)),
    ("ldl_factor", |x| {
        fixed(&x[0], &rows(hollow(&x[0].detach())?.ldl_factor()?)?)
    }),
    ("ldl_solve", |x| {
        let (factors, pivots) = hollow(&x[0].detach())?.ldl_factor()?;
        factors.ldl_solve(&pivots, &x[1])
    }),
    ("geqrf", |x| {
        fixed(&x[0], &rows(cubed(&x[0].detach())?.geqrf()?)?)
    }),
    ("geqrf of more columns", |x| {
        fixed(&x[0], &rows(cubed(&x[0].detach())?.geqrf()?)?)
    }),
    ("householder_product", |x| x[0].householder_product(&x[1])),
    ("ormqr", |x| x[0].ormqr(&x[1], &x[2], true, false)),
    ("ormqr, turned", |x| x[0].ormqr(&x[1], &x[2], true, true)),
    ("ormqr of rows", |x| x[0].ormqr(&x[1], &x[2], false, false)),
    ("ormqr of turned rows", |x| {
        x[0].ormqr(&x[1], &x[2], false, true)
    }),
    ("eig", |x| spectrum(&x[0])),
    ("eig of one", |x| spectrum(&cubed(&x[0])?)),
    ("eigvals", |x| {
        let values = x[0].eigvals()?;
        let [re, im] = [0, 1].map(|part| values.select(-1, part));
        let sums = [re?.pow_scalar(3.0)?, im?.pow_scalar(4.0)?].map(|x| x.sum(-1, false));
        let [re, im] = sums;
        ShardTensor::stack(&[re?, im?], -1)
    }),
    ("eigvalsh", |x| {
        x[0].add(&x[0].transpose(-2, -1)?)?.eigvalsh()
    }),
    ("logdet", |x| x[0].add(&three(&x[0])?)?.logdet()),
    ("cholesky_solve", |x| {
        x[0].add(&three(&x[0])?)?.tril(0)?.cholesky_solve(&x[1])
    }),
    ("cholesky_inverse", |x| {
        x[0].add(&three(&x[0])?)?.tril(0)?.cholesky_inverse()
    }),
    ("tensorinv", |x| shifted(&x[0], 6)?.tensorinv(1)),
    ("tensorsolve", |x| shifted(&x[0], 12)?.tensorsolve(&x[1])),
    ("matrix_rank", |x| {
        let a = &x[0];
        let of_one = a.narrow(-1, ..1)?.mul(&a.narrow(-1, 1..)?)?;
        let ranks = [a.clone(), a.matmul(&a.transpose(-2, -1)?)?, of_one]
            .map(|a| a.matrix_rank(None, None)?.to(DType::F64));
        let ranks: Vec<ShardTensor> = ranks.into_iter().collect::<Result<_>>()?;
        fixed(a, &ShardTensor::stack(&ranks, 0)?)
    }),
];

//! Linear algebra of batches of matrices. A matrix is whole where it is computed with: mesh axes that divide it divide a batch dim
//! instead, or nothing, and those of columns that are solved for stay.
//!
//! What does not exist is NaN, on every rank alike; the inverse of a singular matrix holds infinities or NaN.

mod gradient;
mod made;
mod packed;
mod pseudo;
mod reflections;
mod unsymmetric;

pub use self::made::{
    MatrixNorm, cond, lstsq, matrix_norm, matrix_power, qr_complete, svd_full, svdvals,
};
pub use self::packed::{ldl_factor, ldl_solve, lu_factor, lu_solve};
pub use self::pseudo::pinv;
pub use self::reflections::{householder_product, ormqr};
pub use self::unsymmetric::eig;
use crate::families::shape::{reshape, unsqueeze};
use crate::families::triangle::{tril, triu};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision,
    Result, Rule, Saved, Value, key_of,
};
use shard_kernels::linalg::{self as kernels, Factors, Triangle};
use shard_spec::Dims;
use smallvec::smallvec;
use std::sync::Arc;

macro_rules! factors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident, $square:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Matrices are the last two dims.
        ///
        /// # Collective
        /// All members of the mesh. No communication for whole matrices; those in pieces are exchanged for whole ones, which the ranks
        /// divide among themselves if there is a batch, and all have otherwise. A partial operand is reduced first.
        ///
        /// # Errors
        /// Fewer than two dims, or matrices that are not square where they must be; a type that is not of floats.
        pub fn $name(exec: &dyn Exec, x: &Value) -> Result<Vec<Value>> {
            apply(exec, Factors::$kind, x)
        }
    )*};
}

factors! {
    /// The inverse `A⁻¹`.
    inv => Inverse, true;
    /// The lower triangular `L` with `L Lᵀ = A`, of symmetric positive definite matrices.
    cholesky => Cholesky, true;
    /// `Q`, `[.., m, k]` with orthonormal columns, and `R`, `[.., k, n]` and upper triangular, with `Q R = A` and `k = min(m, n)`.
    qr => Qr, false;
    /// `P`, `[.., m, m]`, which puts rows in another order, `L`, `[.., m, k]` and lower triangular with ones on its diagonal, and `U`,
    /// `[.., k, n]` and upper triangular, with `P L U = A` and `k = min(m, n)`. Each pivot is the greatest of its column.
    lu => Lu, false;
    /// `U`, `[.., m, k]`, `s`, `[.., k]` and falling, and `Vᵀ`, `[.., k, n]`, with `U diag(s) Vᵀ = A` and `k = min(m, n)`.
    svd => Svd, false;
    /// The eigenvalues, rising, and the eigenvectors, as columns, of symmetric matrices.
    eigh => Eigh, true;
    /// The determinant. Its gradient holds the cofactors, of a singular matrix too, which has no second derivative here.
    det => Det, true;
    /// The sign of the determinant, and the logarithm of its size.
    slogdet => Slogdet, true;
    /// The exponential `e^A`.
    matrix_exp => Exp, true;
    /// `Q` and `R` with `Q R = A` as LAPACK keeps them: `R`, `[.., m, n]`, on and above the diagonal, and below it the vectors `v` of reflections
    /// `1 - tau v vᵀ`, whose product is `Q` and whose first elements, ones, are not kept; and `tau`, `[.., min(m, n)]`. There is no gradient.
    geqrf => Reflections, false;
}

/// `X` with `A X = B`; `b` is `[.., n, k]`, or a vector for each matrix if it has a dim less than `a`. Batch dims must be equal.
///
/// # Collective
/// All members of the mesh. No communication but to align the batch dims of the operands, and to bring whole matrices together; the
/// columns of `b` may be sharded.
///
/// # Errors
/// Shapes that do not belong together; types that differ or are not of floats.
pub fn solve(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    columns(exec, a, b, &|b| apply_solve(exec, a, b))
}

/// [`solve`] with a triangle of each matrix, of which nothing else is read, and with `unit` not the diagonal, where ones are taken.
///
/// # Collective
/// As [`solve`].
///
/// # Errors
/// As [`solve`].
pub fn solve_triangular(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    upper: bool,
    unit: bool,
) -> Result<Value> {
    let triangle = Some(Triangle { upper, unit });
    columns(exec, a, b, &|b| {
        exec.apply1(Arc::new(SolveFor { triangle }), &[a, b])
    })
}

/// What `f` makes of right-hand sides as columns, of which a vector for each matrix is one.
fn columns(
    exec: &dyn Exec,
    a: &Value,
    b: &Value,
    f: &dyn Fn(&Value) -> Result<Value>,
) -> Result<Value> {
    if b.ndim() + 1 != a.ndim() {
        return f(b);
    }
    let x = f(&unsqueeze(exec, b, b.ndim())?)?;
    reshape(exec, &x, &x.shape()[..x.ndim() - 1])
}

fn apply(exec: &dyn Exec, kind: Factors, x: &Value) -> Result<Vec<Value>> {
    exec.apply(Arc::new(Decompose { kind }), &[x])
}

fn apply_solve(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value> {
    exec.apply1(Arc::new(SolveFor { triangle: None }), &[a, b])
}

/// Factors of matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decompose {
    kind: Factors,
}

/// Solutions of systems of equations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SolveFor {
    /// What of the matrices is read, if not all.
    triangle: Option<Triangle>,
}

fn misfit(op: &'static str, problem: &str, inputs: &[Meta]) -> OpError {
    OpError::Shape {
        op,
        problem: problem.to_owned(),
        shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
        fix: "give batches of matrices that belong together, the last two dims",
    }
}

/// Batch dims as factors, and the others whole.
fn dims(batch: &[usize], own: usize) -> Vec<Access> {
    divided_instead(batch, own, None)
}

/// Batch dims as factors, and the others whole: axes that shard them shard the factor instead.
fn divided_instead(batch: &[usize], own: usize, instead: Option<usize>) -> Vec<Access> {
    let factors = batch.iter().map(|&f| Access::factor(f));
    let whole = Access::Whole { instead };
    factors.chain(std::iter::repeat_n(whole, own)).collect()
}

/// The factor of the largest batch dim, which divides the work best.
fn largest(batch: &[usize], factors: &[usize]) -> Option<usize> {
    // Of equal ones the first.
    let dims = batch.iter().zip(factors).rev();
    dims.max_by_key(|(n, _)| **n).map(|(_, f)| *f)
}

impl Op for Decompose {
    fn name(&self) -> &'static str {
        match self.kind {
            Factors::Inverse => "inv",
            Factors::Cholesky => "cholesky",
            Factors::Qr => "qr",
            Factors::Lu => "lu",
            Factors::Svd => "svd",
            Factors::Eigh => "eigh",
            Factors::Det => "det",
            Factors::Slogdet => "slogdet",
            Factors::Exp => "matrix_exp",
            Factors::Adjugate => "adjugate",
            Factors::Reflections => "geqrf",
            Factors::Eig => "eig",
        }
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of("linalg", &self.kind)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let [batch @ .., m, n] = &inputs[0].shape[..] else {
            return Err(misfit(self.name(), "there are no matrices", inputs));
        };
        let square = !matches!(
            self.kind,
            Factors::Qr | Factors::Lu | Factors::Svd | Factors::Reflections
        );
        if square && m != n {
            return Err(misfit(self.name(), "the matrices are not square", inputs));
        }
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let factors: Vec<usize> = batch.iter().map(|&n| rule.factor(n)).collect();
        let k = *m.min(n);
        let made: Vec<Vec<usize>> = match self.kind {
            Factors::Inverse | Factors::Cholesky | Factors::Exp | Factors::Adjugate => {
                vec![vec![*n, *n]]
            }
            Factors::Qr => vec![vec![*m, k], vec![k, *n]],
            Factors::Lu => vec![vec![*m, *m], vec![*m, k], vec![k, *n]],
            Factors::Svd => vec![vec![*m, k], vec![k], vec![k, *n]],
            Factors::Eigh => vec![vec![*n], vec![*n, *n]],
            Factors::Det => vec![vec![]],
            Factors::Slogdet => vec![vec![], vec![]],
            Factors::Reflections => vec![vec![*m, *n], vec![k]],
            Factors::Eig => vec![vec![*n, 2], vec![*n, 2 * *n], vec![*n, *n]],
        };
        let mut rule = rule
            .input(divided_instead(&factors, 2, largest(batch, &factors)))
            .flops(*m as f64 * *n as f64 * k as f64);
        for own in made {
            let shape: Dims = batch.iter().chain(&own).copied().collect();
            rule = rule.output(dims(&factors, own.len()), shape, dtype);
        }
        rule.linearity(Linearity::None).build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            kernels::factors(self.kind, &x, &mut call.outputs_from::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::ALL
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        if !saved.needs[0] || cotangents.iter().all(Option::is_none) {
            return Ok(vec![None]);
        }
        gradient::of(exec, self.kind, saved, cotangents).map(|dx| vec![dx])
    }
}

impl Op for SolveFor {
    fn name(&self) -> &'static str {
        match self.triangle {
            None => "solve",
            Some(_) => "solve_triangular",
        }
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        key_of("solve", &self.triangle)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let fits = match (&inputs[0].shape[..], &inputs[1].shape[..]) {
            ([batch @ .., m, n], [others @ .., rows, _]) => m == n && n == rows && batch == others,
            _ => false,
        };
        if !fits {
            return Err(misfit(
                self.name(),
                "matrices and right-hand sides do not fit",
                inputs,
            ));
        }
        let shape = inputs[1].shape.clone();
        let batch = shape.len() - 2;
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let factors: Vec<usize> = shape[..batch].iter().map(|&n| rule.factor(n)).collect();
        let (n, k) = (shape[batch], shape[batch + 1]);
        let columns = rule.factor(k);
        let of_batch = largest(&shape[..batch], &factors);
        // Columns are solved for one by one. A single one is not divided.
        let instead = of_batch.or((k > 1).then_some(columns));
        let sides = |rows: Access| {
            let mut sides = dims(&factors, 0);
            sides.extend([rows, Access::factor(columns)]);
            sides
        };
        rule.input(divided_instead(&factors, 2, of_batch))
            .input(sides(Access::Whole { instead }))
            .output(sides(Access::WHOLE), shape, dtype)
            .flops((n as f64).powi(3))
            .linearity(Linearity::Each(smallvec![1]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let (a, b) = (call.input::<T>(0), call.input::<T>(1));
            kernels::solve(self.triangle, &a, &b, &mut call.output::<T>(0));
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0]).and_outputs(&[0])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (a, x) = (&saved.inputs[0], &saved.outputs[0]);
        let Some(dx) = &cotangents[0] else {
            return Ok(vec![None, None]);
        };
        // Aᵀ dB = dX, and dA = -dB Xᵀ, where A is read.
        let turned = self.triangle.map(|t| Triangle {
            upper: !t.upper,
            ..t
        });
        let op = Self { triangle: turned };
        let db = exec.apply1(Arc::new(op), &[&gradient::turned(exec, a)?, dx])?;
        let da = match saved.needs[0] {
            true => {
                let all = gradient::minus_product(exec, &db, x)?;
                Some(match self.triangle {
                    None => all,
                    Some(t) if t.upper => triu(exec, &all, i64::from(t.unit))?,
                    Some(t) => tril(exec, &all, -i64::from(t.unit))?,
                })
            }
            false => None,
        };
        Ok(vec![da, Some(db).filter(|_| saved.needs[1])])
    }
}

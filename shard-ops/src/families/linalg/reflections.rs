//! Products of Householder's reflections, by `Q = 1 - V T Vᵀ` with the triangular `T` of Schreiber and Van Loan, "A storage-efficient WY
//! representation for products of Householder transformations" (1989): `T = (1 + D S)⁻¹ D`, where `D` holds the factors and `S` is what lies
//! above the diagonal of `Vᵀ V`. So these are products of matrices, and have their derivatives.

use super::gradient::turned;
use super::packed::ones_on_the_diagonal;
use super::solve_triangular;
use crate::families::elementwise::{add, mul, sub};
use crate::families::full::in_full;
use crate::families::index::slice;
use crate::families::matmul::product;
use crate::families::shape::unsqueeze;
use crate::families::triangle::{tril, triu};
use crate::{Exec, OpError, Result, Value};

/// The first columns, `[.., m, n]`, of the product of the reflections `1 - tau v vᵀ`: vectors are the first columns of `a`, `[.., m, n]` with
/// `n` up to `m`, as many as `tau` has numbers, `[.., k]`. Below the diagonal is read; there are ones on it.
///
/// # Collective
/// As products of such matrices, and as [`solve_triangular`].
///
/// # Errors
/// Shapes that do not belong together; types that differ or are not of floats.
pub fn householder_product(exec: &dyn Exec, a: &Value, tau: &Value) -> Result<Value> {
    let [m, n] = extents("householder_product", a, tau)?;
    if n > m {
        return Err(unfit("householder_product", &[a, tau]));
    }
    in_full(exec, [a, tau], |[a, tau]| {
        let reflections = Reflections::new(exec, a, tau)?;
        let rows = a.ndim() - 2;
        // Of the first columns of ones vectors have their first rows.
        let own = slice(exec, &reflections.vectors, rows, 0, 1, n)?;
        let taken = reflections.taken(exec, &turned(exec, &own)?, false)?;
        sub(exec, &ones_on_the_diagonal(exec, a)?, &taken)
    })
}

/// `Q C`, `Qᵀ C`, `C Q` or `C Qᵀ` for the product `Q`, `[.., m, m]`, of the reflections of [`householder_product`], with `a` `[.., m, k]`.
///
/// # Collective
/// As [`householder_product`].
///
/// # Errors
/// As [`householder_product`]; a `c` with other rows, or columns where it stands left.
pub fn ormqr(
    exec: &dyn Exec,
    a: &Value,
    tau: &Value,
    c: &Value,
    left: bool,
    transpose: bool,
) -> Result<Value> {
    let [m, _] = extents("ormqr", a, tau)?;
    let side = c.ndim().checked_sub(if left { 2 } else { 1 });
    let batch = |x: &Value, own: usize| x.shape()[..x.ndim().saturating_sub(own)].to_vec();
    if c.ndim() < 2 || side.is_none_or(|dim| c.shape()[dim] != m) || batch(c, 2) != batch(a, 2) {
        return Err(unfit("ormqr", &[a, tau, c]));
    }
    in_full(exec, [a, tau, c], |[a, tau, c]| {
        let reflections = Reflections::new(exec, a, tau)?;
        // What stands left is turned twice.
        let c = if left { c.clone() } else { turned(exec, c)? };
        let own = product(exec, &reflections.vectors, &c, true, false)?;
        let found = sub(exec, &c, &reflections.taken(exec, &own, transpose == left)?)?;
        if left {
            Ok(found)
        } else {
            turned(exec, &found)
        }
    })
}

/// Rows and columns.
fn extents(op: &'static str, a: &Value, tau: &Value) -> Result<[usize; 2]> {
    match (a.shape(), tau.shape()) {
        ([batch @ .., m, n], [others @ .., k]) if batch == others && k <= n && k <= m => {
            Ok([*m, *n])
        }
        _ => Err(unfit(op, &[a, tau])),
    }
}

fn unfit(op: &'static str, values: &[&Value]) -> OpError {
    OpError::Shape {
        op,
        problem: "reflections, factors and matrices do not fit".into(),
        shapes: values.iter().map(|x| x.shape().to_vec()).collect(),
        fix: "give batches of matrices (m, n) and at most as many factors as both, and what is multiplied with m rows, or columns on the left",
    }
}

/// Vectors, `[.., m, k]`, with ones on their diagonal, and the factors.
struct Reflections {
    vectors: Value,
    tau: Value,
}

impl Reflections {
    fn new(exec: &dyn Exec, a: &Value, tau: &Value) -> Result<Self> {
        let columns = a.ndim() - 1;
        let count = tau.shape()[columns - 1];
        let below = slice(exec, &tril(exec, a, -1)?, columns, 0, 1, count)?;
        let ones = ones_on_the_diagonal(exec, &below)?;
        Ok(Self {
            vectors: add(exec, &below, &ones)?,
            tau: unsqueeze(exec, tau, columns)?,
        })
    }

    /// `V T y`, or `V Tᵀ y`, for `y = Vᵀ x`: what the product takes from `x`.
    fn taken(&self, exec: &dyn Exec, y: &Value, transpose: bool) -> Result<Value> {
        let v = &self.vectors;
        let between = triu(exec, &product(exec, v, v, true, false)?, 1)?;
        let above = mul(exec, &self.tau, &between)?;
        let inner = match transpose {
            false => solve_triangular(exec, &above, &mul(exec, &self.tau, y)?, true, true)?,
            true => {
                let below = turned(exec, &above)?;
                mul(
                    exec,
                    &self.tau,
                    &solve_triangular(exec, &below, y, false, true)?,
                )?
            }
        };
        product(exec, v, &inner, false, false)
    }
}

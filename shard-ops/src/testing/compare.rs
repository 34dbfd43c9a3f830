//! Does a result equal the reference?

use super::{Data, Tensor};

/// How close floats must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative to the largest magnitude of the expected tensor.
    pub relative: f64,
    /// Whatever the magnitude: where terms may cancel, a sum is only as exact as they are.
    pub absolute: f64,
}

impl Tolerance {
    /// For runs in double precision.
    pub const F64: Self = Self::relative(1e-9);
    /// For runs in single precision.
    pub const F32: Self = Self::relative(1e-4);
    /// Equal bits, but for the sign of zero.
    pub const EXACT: Self = Self::relative(0.0);

    /// Relative to the largest magnitude of the expected tensor.
    pub const fn relative(relative: f64) -> Self {
        Self {
            relative,
            absolute: 0.0,
        }
    }
}

/// Compares a whole tensor with the expected one; `None` if they agree, else the first and the worst
/// difference in words. Integers and truth values must be equal, NaN equals NaN, infinities are exact.
pub fn difference(expected: &Tensor, got: &Tensor, tolerance: Tolerance) -> Option<String> {
    if expected.shape != got.shape {
        return Some(format!(
            "expected shape {:?}, got {:?}",
            expected.shape, got.shape
        ));
    }
    match (&*expected.data, &*got.data) {
        (Data::F64(e), Data::F64(g)) => floats(e, g, tolerance, &expected.shape),
        (Data::I64(e), Data::I64(g)) => exact(e, g, &expected.shape),
        (Data::Bool(e), Data::Bool(g)) => exact(e, g, &expected.shape),
        (e, g) => Some(format!(
            "expected {} elements, got {}",
            e.dtype(),
            g.dtype()
        )),
    }
}

fn exact<T: PartialEq + std::fmt::Debug>(e: &[T], g: &[T], shape: &[usize]) -> Option<String> {
    if e.len() != g.len() {
        return Some(format!("expected {} elements, got {}", e.len(), g.len()));
    }
    let wrong = e.iter().zip(g).filter(|(a, b)| a != b).count();
    let at = e.iter().zip(g).position(|(a, b)| a != b)?;
    Some(format!(
        "{wrong} of {} elements differ, first at {:?}: expected {:?}, got {:?}",
        e.len(),
        index_of(at, shape),
        e[at],
        g[at]
    ))
}

fn floats(e: &[f64], g: &[f64], tolerance: Tolerance, shape: &[usize]) -> Option<String> {
    if e.len() != g.len() {
        return Some(format!("expected {} elements, got {}", e.len(), g.len()));
    }
    let scale = e
        .iter()
        .filter(|v| v.is_finite())
        .fold(0.0_f64, |m, v| m.max(v.abs()));
    let bound = tolerance.absolute.max(tolerance.relative * scale);
    let off = |a: f64, b: f64| {
        if a.is_nan() || b.is_nan() {
            return if a.is_nan() && b.is_nan() {
                0.0
            } else {
                f64::INFINITY
            };
        }
        if a == b { 0.0 } else { (a - b).abs() }
    };
    let wrong = e
        .iter()
        .zip(g)
        .filter(|&(&a, &b)| off(a, b) > bound)
        .count();
    if wrong == 0 {
        return None;
    }
    let worst = (0..e.len()).max_by(|&i, &j| off(e[i], g[i]).total_cmp(&off(e[j], g[j])))?;
    Some(format!(
        "{wrong} of {} elements differ by more than {bound:.1e}, worst at {:?}: expected {:e}, got {:e}",
        e.len(),
        index_of(worst, shape),
        e[worst],
        g[worst]
    ))
}

/// The index of the element at a linear one.
pub(super) fn index_of(mut linear: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, &n) in index.iter_mut().zip(shape).rev() {
        *i = linear % n.max(1);
        linear /= n.max(1);
    }
    index
}

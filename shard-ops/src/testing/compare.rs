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
    elements(expected, &got.data, Places::All, tolerance)
}

/// As [`difference`], of the elements of a tensor at some linear indices.
pub(super) fn difference_at(
    expected: &Tensor,
    indices: &[usize],
    got: &Data,
    tolerance: Tolerance,
) -> Option<String> {
    elements(expected, got, Places::These(indices), tolerance)
}

/// Which elements of an expected tensor are compared.
#[derive(Clone, Copy)]
enum Places<'a> {
    All,
    /// By linear index.
    These(&'a [usize]),
}

impl Places<'_> {
    fn count(self, all: usize) -> usize {
        match self {
            Self::All => all,
            Self::These(indices) => indices.len(),
        }
    }

    /// The linear index of what is compared as number `i`.
    fn at(self, i: usize) -> usize {
        match self {
            Self::All => i,
            Self::These(indices) => indices[i],
        }
    }
}

fn elements(
    expected: &Tensor,
    got: &Data,
    places: Places<'_>,
    tolerance: Tolerance,
) -> Option<String> {
    match (&*expected.data, got) {
        (Data::F64(e), Data::F64(g)) => floats(e, g, places, tolerance, &expected.shape),
        (Data::I64(e), Data::I64(g)) => exact(e, g, places, &expected.shape),
        (Data::Bool(e), Data::Bool(g)) => exact(e, g, places, &expected.shape),
        (e, g) => Some(format!(
            "expected {} elements, got {}",
            e.dtype(),
            g.dtype()
        )),
    }
}

/// What is said of lists of two lengths, which are not compared.
fn lengths(expected: usize, got: usize) -> Option<String> {
    (expected != got).then(|| format!("expected {expected} elements, got {got}"))
}

fn exact<T: PartialEq + std::fmt::Debug>(
    e: &[T],
    g: &[T],
    places: Places<'_>,
    shape: &[usize],
) -> Option<String> {
    let all = places.count(e.len());
    if let Some(said) = lengths(all, g.len()) {
        return Some(said);
    }
    let mut wrong = (0..all).filter(|&i| e[places.at(i)] != g[i]);
    let first = wrong.next()?;
    let at = places.at(first);
    Some(format!(
        "{} of {all} elements differ, first at {:?}: expected {:?}, got {:?}",
        1 + wrong.count(),
        index_of(at, shape),
        e[at],
        g[first]
    ))
}

fn floats(
    e: &[f64],
    g: &[f64],
    places: Places<'_>,
    tolerance: Tolerance,
    shape: &[usize],
) -> Option<String> {
    let all = places.count(e.len());
    if let Some(said) = lengths(all, g.len()) {
        return Some(said);
    }
    let scale = e
        .iter()
        .filter(|v| v.is_finite())
        .fold(0.0_f64, |m, v| m.max(v.abs()));
    let bound = tolerance.absolute.max(tolerance.relative * scale);
    let off = |i: usize| {
        let (a, b) = (e[places.at(i)], g[i]);
        if a.is_nan() || b.is_nan() {
            return if a.is_nan() && b.is_nan() {
                0.0
            } else {
                f64::INFINITY
            };
        }
        if a == b { 0.0 } else { (a - b).abs() }
    };
    let wrong = (0..all).filter(|&i| off(i) > bound).count();
    if wrong == 0 {
        return None;
    }
    let worst = (0..all).max_by(|&i, &j| off(i).total_cmp(&off(j)))?;
    let at = places.at(worst);
    Some(format!(
        "{wrong} of {all} elements differ by more than {bound:.1e}, worst at {:?}: expected {:e}, got {:e}",
        index_of(at, shape),
        e[at],
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

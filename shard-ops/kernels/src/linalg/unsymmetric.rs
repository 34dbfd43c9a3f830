//! Eigenvalues and eigenvectors of matrices that are not symmetric: complex numbers.

use faer::{Mat, MatRef};

/// Of a matrix that was divided by `scale`, the eigenvalues, a row of two numbers each; the eigenvectors, in two columns each; and which element
/// of each was made real, a one in its column. Vectors have length 1, and their greatest element, of equal ones the first, is positive. Of two values that are
/// conjugates of each other the one with the positive imaginary part comes first. `None` where they are not found.
pub(super) fn of_matrix(a: MatRef<'_, f64>, scale: f64) -> Option<Vec<Mat<f64>>> {
    let n = a.nrows();
    if n == 0 {
        return Some(vec![Mat::zeros(0, 2), Mat::zeros(0, 0), Mat::zeros(0, 0)]);
    }
    let eigen = a.eigen().ok()?;
    let value = |i: usize| eigen.S()[i];
    let mut order: Vec<usize> = (0..n).collect();
    // Conjugates stand beside each other.
    for i in 1..n {
        let is_second = value(order[i]).im > 0.0 && value(order[i - 1]).im == -value(order[i]).im;
        if is_second && value(order[i]).re == value(order[i - 1]).re {
            order.swap(i - 1, i);
        }
    }
    let values = Mat::from_fn(n, 2, |i, part| {
        let value = value(order[i]);
        scale * [value.re, value.im][part]
    });
    let (mut vectors, mut real) = (Mat::zeros(n, 2 * n), Mat::zeros(n, n));
    for (column, &from) in order.iter().enumerate() {
        let element = |i: usize| {
            let element = eigen.U()[(i, from)];
            [element.re, element.im]
        };
        let size = |i: usize| element(i)[0].hypot(element(i)[1]);
        // What rounding makes of equal ones decides nothing.
        let most = (0..n).map(size).fold(0.0, f64::max);
        let at = (0..n).find(|&i| size(i) >= most * (1.0 - 1e-12))?;
        let length = (0..n).map(size).fold(0.0, f64::hypot);
        let [re, im] = element(at).map(|part| part / size(at));
        for i in 0..n {
            let [a, b] = element(i).map(|part| part / length);
            vectors[(i, 2 * column)] = a * re + b * im;
            vectors[(i, 2 * column + 1)] = if i == at { 0.0 } else { b * re - a * im };
        }
        real[(at, column)] = 1.0;
    }
    Some(vec![values, vectors, real])
}

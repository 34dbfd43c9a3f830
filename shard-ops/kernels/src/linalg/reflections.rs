//! Householder's reflections as LAPACK keeps them.

use faer::{Mat, Scale};

/// Of a matrix that was divided by `scale`, `R` on and above the diagonal and the reflections below it, whose first elements are ones that are
/// not kept; and what each is multiplied by, so that `Q` is the product of `1 - tau v vᵀ` (LAPACK's `geqr2`).
pub(super) fn of_matrix(mut a: Mat<f64>, scale: f64) -> Vec<Mat<f64>> {
    let (m, n) = (a.nrows(), a.ncols());
    let k = m.min(n);
    let mut factors = Mat::zeros(k, 1);
    for at in 0..k {
        let below = (at + 1..m).map(|i| a[(i, at)]).fold(0.0, f64::hypot);
        if below == 0.0 {
            continue;
        }
        let first: f64 = a[(at, at)];
        let beta = -first.hypot(below).copysign(first);
        let tau = (beta - first) / beta;
        for i in at + 1..m {
            a[(i, at)] /= first - beta;
        }
        for j in at + 1..n {
            let along: f64 = (at + 1..m).map(|i| a[(i, at)] * a[(i, j)]).sum();
            let step = tau * (a[(at, j)] + along);
            a[(at, j)] -= step;
            for i in at + 1..m {
                let v = a[(i, at)];
                a[(i, j)] -= step * v;
            }
        }
        a[(at, at)] = beta;
        factors[(at, 0)] = tau;
    }
    let scaled = &a * Scale(scale);
    let made = Mat::from_fn(m, n, |i, j| if i <= j { scaled[(i, j)] } else { a[(i, j)] });
    vec![made, factors]
}

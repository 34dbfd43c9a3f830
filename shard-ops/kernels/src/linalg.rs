//! Factors and inverses of batches of matrices, by `faer`, in double precision for both types.
//!
//! What does not exist is NaN, as what orthonormal vectors make of a matrix that is not finite; the inverse of a singular matrix holds
//! infinities or NaN.

mod interchanges;
mod reflections;
mod room;
mod symmetric;
mod unsymmetric;

pub use interchanges::{interchanges, permutations};
pub use symmetric::{symmetric_factors, symmetric_solve};

use super::{Real, View, ViewMut};
use faer::linalg::solvers::Solve;
use faer::linalg::triangular_solve::{
    solve_lower_triangular_in_place, solve_unit_lower_triangular_in_place,
    solve_unit_upper_triangular_in_place, solve_upper_triangular_in_place,
};
use faer::{Mat, MatRef, Par, Scale, Side};
use room::Room;
use std::cmp::Ordering;

/// What is made of each matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factors {
    /// `A⁻¹`.
    Inverse,
    /// Lower triangular `L` with `L Lᵀ = A`, of which the lower triangle is read.
    Cholesky,
    /// `Q`, whose columns are orthonormal, and upper triangular `R` with `Q R = A`.
    Qr,
    /// A permutation `P`, lower triangular `L` with ones on its diagonal, and upper triangular `U` with `P L U = A`.
    Lu,
    /// `U`, `s` (greatest first) and `Vᵀ` with `U diag(s) Vᵀ = A`.
    Svd,
    /// Eigenvalues (least first) and eigenvectors, the columns, of a symmetric matrix, of which the lower triangle is read.
    Eigh,
    /// The determinant.
    Det,
    /// Its sign and the logarithm of its size.
    Slogdet,
    /// `e^A`.
    Exp,
    /// The reflections whose product is `Q`, below the diagonal of `R`, and their factors.
    Reflections,
    /// Eigenvalues, eigenvectors, the columns, and ones where these were made real. Numbers are pairs of a real and an imaginary part, side by
    /// side.
    Eig,
    /// The adjugate: the cofactors, transposed, or `A⁻¹ det A` where there is an inverse.
    Adjugate,
}

/// A triangle of a matrix: what is outside of it is taken for zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Triangle {
    /// Whether it is the upper one.
    pub upper: bool,
    /// Whether ones are taken for what is on the diagonal.
    pub unit: bool,
}

/// Factors of every matrix of `x`, its last two dims. Outputs have the batch dims of `x` in front.
///
/// # Panics
/// When shapes do not belong together.
pub fn factors<T: Real>(kind: Factors, x: &View<'_, T>, outs: &mut [ViewMut<'_, T>]) {
    let (batch, m, n) = matrices(x.shape());
    if matches!(
        kind,
        Factors::Inverse | Factors::Cholesky | Factors::Det | Factors::Slogdet | Factors::Adjugate
    ) {
        return by_elimination(kind, x, outs);
    }
    for_each_of(batch, |index| {
        let found = of_matrix(kind, read(x, index, m, n).as_ref());
        for (o, out) in outs.iter_mut().enumerate() {
            let made = found.as_ref().and_then(|found| found.get(o));
            write(out, index, made);
        }
    });
}

/// The same of square matrices, by what takes their place.
fn by_elimination<T: Real>(kind: Factors, x: &View<'_, T>, outs: &mut [ViewMut<'_, T>]) {
    let (batch, n, _) = matrices(x.shape());
    let mut room = Room::new(n, n);
    for_each_of(batch, |index| {
        read_into(x, index, &mut room.a);
        match kind {
            Factors::Cholesky => {
                let exists = room.cholesky();
                write(&mut outs[0], index, exists.then_some(&room.a));
            }
            Factors::Det => {
                let product = T::of(room.pivots().iter().product());
                write_each(&mut outs[0], index, |_, _| product);
            }
            Factors::Slogdet => {
                let pivots = room.pivots();
                // The sign of zero is zero.
                let sign = |d: &f64| if *d == 0.0 { 0.0 } else { d.signum() };
                let sign = T::of(pivots.iter().map(sign).product());
                let log = T::of(pivots.iter().map(|d| d.abs().ln()).sum());
                write_each(&mut outs[0], index, |_, _| sign);
                write_each(&mut outs[1], index, |_, _| log);
            }
            Factors::Adjugate if !room.adjugate() => {
                read_into(x, index, &mut room.a);
                let made = by_values(&mut room);
                write(&mut outs[0], index, made.as_ref());
            }
            Factors::Adjugate => write(&mut outs[0], index, Some(&room.made)),
            _ => {
                room.invert();
                write(&mut outs[0], index, Some(&room.made));
            }
        }
    });
}

/// `A X = B` for every matrix of `a`, or a triangle of it, and of `b`, their last two dims; the batch dims are those of `out`.
///
/// # Panics
/// When shapes do not belong together.
pub fn solve<T: Real>(
    triangle: Option<Triangle>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let (batch, n, columns) = matrices(b.shape());
    let mut room = Room::new(n, columns);
    for_each_of(batch, |index| {
        read_into(a, index, &mut room.a);
        read_into(b, index, &mut room.made);
        match triangle {
            _ if n == 0 => {}
            None => room.solve(),
            Some(Triangle { upper, unit }) => {
                let (a, b, par) = (room.a.as_ref(), room.made.as_mut(), Par::Seq);
                match (upper, unit) {
                    (false, false) => solve_lower_triangular_in_place(a, b, par),
                    (false, true) => solve_unit_lower_triangular_in_place(a, b, par),
                    (true, false) => solve_upper_triangular_in_place(a, b, par),
                    (true, true) => solve_unit_upper_triangular_in_place(a, b, par),
                }
            }
        }
        write(out, index, Some(&room.made));
    });
}

/// The pseudo-inverse of every matrix of `x`, its last two dims: singular values are taken for zeros that are not above `rtol` times the
/// greatest.
///
/// # Panics
/// When shapes do not belong together.
pub fn pseudo_inverse<T: Real>(rtol: f64, x: &View<'_, T>, out: &mut ViewMut<'_, T>) {
    let (batch, m, n) = matrices(x.shape());
    for_each_of(batch, |index| {
        let a = read(x, index, m, n);
        let found = of_matrix(Factors::Svd, a.as_ref()).map(|made| {
            let [u, values, turned] = [&made[0], &made[1], &made[2]];
            let values = (0..m.min(n)).map(|i| values[(i, 0)]);
            let least = rtol * values.clone().fold(0.0, f64::max);
            let scale: Vec<f64> = values
                .map(|s| if s > least { 1.0 / s } else { 0.0 })
                .collect();
            let scaled = Mat::from_fn(n, scale.len(), |i, j| turned[(j, i)] * scale[j]);
            scaled * u.transpose()
        });
        write(out, index, found.as_ref());
    });
}

/// `e^A`, by the approximation of order 13 of Padé and squaring (Higham, "The scaling and squaring method for the matrix exponential
/// revisited", 2005); nothing of what is not finite.
fn exponential(a: MatRef<'_, f64>) -> Option<Mat<f64>> {
    const B: [f64; 14] = [
        64764752532480000.0,
        32382376266240000.0,
        7771770303897600.0,
        1187353796428800.0,
        129060195264000.0,
        10559470521600.0,
        670442572800.0,
        33522128640.0,
        1323241920.0,
        40840800.0,
        960960.0,
        16380.0,
        182.0,
        1.0,
    ];
    // Up to this norm the approximation is exact in double precision.
    const WITHIN: f64 = 5.371920351148152;
    let n = a.nrows();
    let column = |j| (0..n).map(|i| a[(i, j)].abs()).sum::<f64>();
    let norm = (0..n)
        .map(column)
        .fold(0.0, |most: f64, sum| match sum.is_nan() {
            true => sum,
            false => most.max(sum),
        });
    if !norm.is_finite() {
        return None;
    }
    let halvings = (norm / WITHIN).log2().ceil().max(0.0) as i32;
    let scale = 0.5_f64.powi(halvings);
    let x = Mat::from_fn(n, n, |i, j| a[(i, j)] * scale);
    let x2 = &x * &x;
    let x4 = &x2 * &x2;
    let x6 = &x4 * &x2;
    let sum = |[c0, c2, c4, c6]: [f64; 4]| {
        Mat::from_fn(n, n, |i, j| {
            let one = if i == j { c0 } else { 0.0 };
            c6 * x6[(i, j)] + c4 * x4[(i, j)] + c2 * x2[(i, j)] + one
        })
    };
    let odd = &x * (&x6 * sum([0.0, B[9], B[11], B[13]]) + sum([B[1], B[3], B[5], B[7]]));
    let even = &x6 * sum([0.0, B[8], B[10], B[12]]) + sum([B[0], B[2], B[4], B[6]]);
    let mut found = (&even - &odd).partial_piv_lu().solve(&even + &odd);
    for _ in 0..halvings {
        found = &found * &found;
    }
    Some(found)
}

/// The factors of one matrix, in order; `None` where they do not exist.
fn of_matrix(kind: Factors, a: MatRef<'_, f64>) -> Option<Vec<Mat<f64>>> {
    let column = |len: usize, of: &dyn Fn(usize) -> f64| Mat::from_fn(len, 1, |i, _| of(i));
    Some(match kind {
        Factors::Qr => {
            let (a, scale) = scaled(a, |_, _| true)?;
            let qr = a.qr();
            vec![qr.compute_thin_Q(), upper(qr.thin_R()) * Scale(scale)]
        }
        Factors::Lu => by_pivots(a)?,
        Factors::Svd => {
            let (a, scale) = scaled(a, |_, _| true)?;
            let svd = a.thin_svd().ok()?;
            let values = column(a.nrows().min(a.ncols()), &|i| svd.S()[i] * scale);
            vec![svd.U().to_owned(), values, svd.V().transpose().to_owned()]
        }
        Factors::Eigh => {
            let (a, scale) = scaled(a, |i, j| i >= j)?;
            let eigen = a.self_adjoint_eigen(Side::Lower).ok()?;
            let values = column(a.nrows(), &|i| eigen.S()[i] * scale);
            vec![values, eigen.U().to_owned()]
        }
        Factors::Reflections => {
            let (a, scale) = scaled(a, |_, _| true)?;
            reflections::of_matrix(a, scale)
        }
        Factors::Eig => {
            let (a, scale) = scaled(a, |_, _| true)?;
            unsymmetric::of_matrix(a.as_ref(), scale)?
        }
        Factors::Exp if a.nrows() == 0 => vec![a.to_owned()],
        Factors::Exp => vec![exponential(a)?],
        // By elimination.
        Factors::Inverse
        | Factors::Cholesky
        | Factors::Det
        | Factors::Slogdet
        | Factors::Adjugate => return None,
    })
}

/// `P`, `L` and `U` by Gaussian elimination, with the greatest of a column as pivot; nothing of what is not finite.
///
/// `faer` divides by a pivot of zero. Where there is one, elimination leaves out that column, as LAPACK does, and so does this.
fn by_pivots(a: MatRef<'_, f64>) -> Option<Vec<Mat<f64>>> {
    let (m, k) = (a.nrows(), a.nrows().min(a.ncols()));
    scaled(a, |_, _| true)?;
    if k == 0 {
        let none = |rows, columns| Mat::from_fn(rows, columns, |_, _| 0.0);
        return Some(vec![Mat::identity(m, m), none(m, 0), none(0, a.ncols())]);
    }
    let lu = a.partial_piv_lu();
    let (order, l, u) = match (0..k).all(|i| lu.U()[(i, i)] != 0.0) {
        true => (
            lu.P().arrays().0.to_vec(),
            lu.L().to_owned(),
            lu.U().to_owned(),
        ),
        false => eliminated(a),
    };
    let mut p = Mat::zeros(m, m);
    for (row, &from) in order.iter().enumerate() {
        p[(from, row)] = 1.0;
    }
    Some(vec![p, l, u])
}

/// The order of rows, `L` and `U`, one column after the other.
fn eliminated(a: MatRef<'_, f64>) -> (Vec<usize>, Mat<f64>, Mat<f64>) {
    let (m, n) = (a.nrows(), a.ncols());
    let k = m.min(n);
    let (mut order, mut a): (Vec<usize>, _) = ((0..m).collect(), a.to_owned());
    for at in 0..k {
        let greatest = (at..m).fold(at, |best, i| {
            if a[(i, at)].abs() > a[(best, at)].abs() {
                i
            } else {
                best
            }
        });
        if a[(greatest, at)] == 0.0 {
            continue;
        }
        order.swap(at, greatest);
        for j in 0..n {
            (a[(at, j)], a[(greatest, j)]) = (a[(greatest, j)], a[(at, j)]);
        }
        for i in at + 1..m {
            a[(i, at)] /= a[(at, at)];
        }
        for j in at + 1..n {
            for i in at + 1..m {
                a[(i, j)] -= a[(i, at)] * a[(at, j)];
            }
        }
    }
    let l = Mat::from_fn(m, k, |i, j| match i.cmp(&j) {
        Ordering::Less => 0.0,
        Ordering::Equal => 1.0,
        Ordering::Greater => a[(i, j)],
    });
    let u = Mat::from_fn(k, n, |i, j| if i <= j { a[(i, j)] } else { 0.0 });
    (order, l, u)
}

/// `A⁻¹ det A` by singular values, with or without an inverse: with `A = U diag(s) Vᵀ` it is `det U det V V diag(p) Uᵀ`, where `p[i]` is the
/// product of all values but the one at `i`.
fn by_values(room: &mut Room) -> Option<Mat<f64>> {
    let n = room.a.nrows();
    let made = of_matrix(Factors::Svd, room.a.as_ref())?;
    let [u, values, turned] = [&made[0], &made[1], &made[2]];
    let mut sign = |x: &Mat<f64>| {
        room.a.copy_from(x);
        let signs = room.pivots().iter().map(|d| d.signum());
        signs.product::<f64>()
    };
    let sign = sign(u) * sign(turned);
    let others = |i: usize| {
        (0..n)
            .filter(|&k| k != i)
            .map(|k| values[(k, 0)])
            .product::<f64>()
    };
    let products: Vec<f64> = (0..n).map(|i| sign * others(i)).collect();
    let scaled = Mat::from_fn(n, n, |i, j| turned[(j, i)] * products[j]);
    Some(scaled * u.transpose())
}

/// A matrix divided by a power of two, and that power: squares of what is left of the elements that are read neither overflow nor
/// vanish. `None` if one of these is not finite.
fn scaled(a: MatRef<'_, f64>, reads: impl Fn(usize, usize) -> bool) -> Option<(Mat<f64>, f64)> {
    // Those between 10^-100 and 10^100 stay as they are.
    const USUAL: f64 = 332.0;
    let places = (0..a.nrows()).flat_map(|i| (0..a.ncols()).map(move |j| (i, j)));
    let sizes = places.filter(|&(i, j)| reads(i, j)).map(|at| a[at].abs());
    let most = sizes.fold(
        0.0,
        |most: f64, x| if x.is_nan() || x > most { x } else { most },
    );
    if !most.is_finite() {
        return None;
    }
    // Of the power and its inverse both are numbers.
    let scale = match most.log2() {
        power if most == 0.0 || power.abs() < USUAL => 1.0,
        power => power.clamp(-1000.0, 1000.0).floor().exp2(),
    };
    Some((a * Scale(scale.recip()), scale))
}

fn upper(a: MatRef<'_, f64>) -> Mat<f64> {
    let keep = |i, j| if i <= j { a[(i, j)] } else { 0.0 };
    Mat::from_fn(a.nrows(), a.ncols(), keep)
}

/// Batch dims, rows and columns.
fn matrices(shape: &[usize]) -> (&[usize], usize, usize) {
    match shape {
        [batch @ .., m, n] => (batch, *m, *n),
        // Of ops, the rule has refused it.
        _ => panic!("linalg: no matrices in {shape:?}"),
    }
}

/// Calls `f` with each index of the batch dims.
fn for_each_of(batch: &[usize], mut f: impl FnMut(&[usize])) {
    let mut index = vec![0; batch.len()];
    for _ in 0..batch.iter().product() {
        f(&index);
        for (i, &n) in index.iter_mut().zip(batch).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
}

fn read<T: Real>(x: &View<'_, T>, index: &[usize], m: usize, n: usize) -> Mat<f64> {
    let mut made = Mat::zeros(m, n);
    read_into(x, index, &mut made);
    made
}

/// Reads a matrix of as many rows and columns.
fn read_into<T: Real>(x: &View<'_, T>, index: &[usize], to: &mut Mat<f64>) {
    let (before, own) = x.strides().split_at(index.len());
    let along = |(i, step): (&usize, &isize)| *i as isize * step;
    let first: isize = index.iter().zip(before).map(along).sum();
    for j in 0..to.ncols() {
        for (i, to) in to.col_as_slice_mut(j).iter_mut().enumerate() {
            let at = first + i as isize * own[0] + j as isize * own[1];
            *to = x.data()[x.offset().wrapping_add_signed(at)].wide();
        }
    }
}

/// Writes a matrix, a column or a number where the output has two, one or no dims behind the batch; NaN if there is none.
fn write<T: Real>(out: &mut ViewMut<'_, T>, index: &[usize], made: Option<&Mat<f64>>) {
    write_each(out, index, |i, j| {
        T::of(made.map_or(f64::NAN, |made| made[(i, j)]))
    });
}

/// Writes what is in each row and column.
fn write_each<E>(out: &mut ViewMut<'_, E>, index: &[usize], of: impl Fn(usize, usize) -> E) {
    let (shape, strides, offset) = out.geometry();
    let step = |d: usize, i: usize| strides[d] * i as isize;
    let first: isize = index.iter().enumerate().map(|(d, &i)| step(d, i)).sum();
    let batch = index.len();
    let own = &shape[batch..];
    let (m, n) = match own {
        [m, n] => (*m, *n),
        [m] => (*m, 1),
        _ => (1, 1),
    };
    let data = out.data_mut();
    for i in 0..m {
        for j in 0..n {
            let mut at = first;
            if !own.is_empty() {
                at += step(batch, i);
            }
            if own.len() == 2 {
                at += step(batch + 1, j);
            }
            data[offset.wrapping_add_signed(at)] = of(i, j);
        }
    }
}

/// The numbers of a list for each matrix of a batch.
fn list<E: Copy>(x: &View<'_, E>, index: &[usize]) -> Vec<E> {
    let mut at = index.to_vec();
    at.push(0);
    let len = x.shape().last().copied().unwrap_or(0);
    let number = |i| {
        at[index.len()] = i;
        x.get(&at)
    };
    (0..len).map(number).collect()
}

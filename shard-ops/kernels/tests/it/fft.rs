use crate::testing::Rng;
use shard_kernels::fft::*;
use shard_kernels::view::row_major;
use shard_kernels::{View, ViewMut};

const KINDS: [Fft; 6] = [
    Fft::Complex { inverse: false },
    Fft::Complex { inverse: true },
    Fft::FromReal { doubled: false },
    Fft::FromReal { doubled: true },
    Fft::ToReal { doubled: false },
    Fft::ToReal { doubled: true },
];

/// The transform of one line by its definition.
fn definition(kind: Fft, n: usize, x: &[f64], rows: usize) -> Vec<f64> {
    let half = n / 2 + 1;
    let weight = |k: usize, doubled: bool| match (k < half, doubled && k != 0 && 2 * k != n) {
        (false, _) => 0.0,
        (true, twice) => 1.0 + f64::from(u8::from(twice)),
    };
    let angle = |j: usize, k: usize| core::f64::consts::TAU * ((j * k) % n) as f64 / n as f64;
    let complex: Vec<(f64, f64)> = match kind.reads_complex() {
        true => x.chunks(2).map(|c| (c[0], c[1])).collect(),
        false => x.iter().map(|&x| (x, 0.0)).collect(),
    };
    let mut out = Vec::new();
    for k in 0..rows {
        let (mut re, mut im) = (0.0, 0.0);
        for (j, &(a, b)) in complex.iter().enumerate().take(n) {
            let (sign, by) = match kind {
                Fft::Complex { inverse: false } => (-1.0, 1.0),
                Fft::Complex { inverse: true } => (1.0, 1.0),
                Fft::FromReal { doubled } => (-1.0, weight(k, doubled)),
                Fft::ToReal { doubled } => (1.0, weight(j, doubled)),
            };
            let (sin, cos) = (sign * angle(j, k)).sin_cos();
            re += by * (a * cos - b * sin);
            im += by * (a * sin + b * cos);
        }
        let exists = k < n;
        out.push(if exists { re } else { 0.0 });
        if kind.writes_complex() {
            out.push(if exists { im } else { 0.0 });
        }
    }
    out
}

fn tail(complex: bool) -> &'static [usize] {
    if complex { &[2] } else { &[] }
}

#[test]
fn lines_of_any_length_are_transformed_as_defined() {
    let mut rng = Rng::new(3);
    for kind in KINDS {
        for n in [1, 2, 3, 4, 5, 8, 12, 17, 30, 34, 50, 75, 128] {
            for (given, rows) in [(n, n), (n / 2 + 1, n / 2 + 1), (n + 3, n + 2), (1, 2)] {
                let count = given * tail(kind.reads_complex()).iter().product::<usize>();
                let x: Vec<f64> = (0..count).map(|_| rng.unit()).collect();
                let expected = definition(kind, n, &x, rows);
                let mut y = vec![9.0; expected.len()];
                transform(
                    kind,
                    0,
                    n,
                    1.0,
                    &View::contiguous(&x, &[&[given], tail(kind.reads_complex())].concat()),
                    &mut ViewMut::contiguous(
                        &mut y,
                        &[&[rows], tail(kind.writes_complex())].concat(),
                    ),
                );
                for (got, expected) in y.iter().zip(&expected) {
                    let close = (got - expected).abs() < 1e-12 * (1.0 + n as f64);
                    assert!(close, "{kind:?} {n} {given} {rows}: {got} for {expected}");
                }
            }
        }
    }
}

#[test]
fn a_transform_and_its_adjoint_are_transposes() {
    let mut rng = Rng::new(5);
    for kind in KINDS {
        for (n, given, rows) in [(6, 4, 9), (7, 7, 3), (5, 8, 8)] {
            let of = |complex, rows: usize| rows * if complex { 2 } else { 1 };
            let shape = |complex, rows: usize| [&[rows], tail(complex)].concat();
            let (reads, writes) = (kind.reads_complex(), kind.writes_complex());
            let x: Vec<f64> = (0..of(reads, given)).map(|_| rng.unit()).collect();
            let g: Vec<f64> = (0..of(writes, rows)).map(|_| rng.unit()).collect();
            let (mut y, mut back) = (vec![0.0; g.len()], vec![0.0; x.len()]);
            let run = |kind, x: &[f64], from: &[usize], y: &mut [f64], to: &[usize]| {
                let mut y = ViewMut::contiguous(y, to);
                transform(kind, 0, n, 0.5, &View::contiguous(x, from), &mut y);
            };
            let (from, to) = (shape(reads, given), shape(writes, rows));
            run(kind, &x, &from, &mut y, &to);
            run(kind.adjoint(), &g, &to, &mut back, &from);
            let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let (left, right) = (dot(&y, &g), dot(&x, &back));
            assert!((left - right).abs() < 1e-12, "{kind:?}: {left} {right}");
        }
    }
}

#[test]
fn a_dim_in_the_middle_is_transformed_line_by_line_in_single_precision_too() {
    let mut rng = Rng::new(7);
    let x: Vec<f64> = (0..3 * 5 * 20 * 2).map(|_| rng.unit()).collect();
    let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
    let shape = [3, 5, 20, 2];
    let kind = Fft::Complex { inverse: false };
    let (mut y, mut z) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    transform(
        kind,
        1,
        5,
        1.0,
        &View::contiguous(&x, &shape),
        &mut ViewMut::contiguous(&mut y, &shape),
    );
    transform(
        kind,
        1,
        5,
        1.0,
        &View::contiguous(&single, &shape),
        &mut ViewMut::contiguous(&mut z, &shape),
    );
    for (i, j) in (0..3).flat_map(|i| (0..20).map(move |j| (i, j))) {
        let at = |k: usize| ((i * 5 + k) * 20 + j) * 2;
        let line: Vec<f64> = (0..5).flat_map(|k| [x[at(k)], x[at(k) + 1]]).collect();
        let expected = definition(kind, 5, &line, 5);
        for k in 0..5 {
            for c in 0..2 {
                let expected = expected[2 * k + c];
                assert!((y[at(k) + c] - expected).abs() < 1e-13);
                assert!((f64::from(z[at(k) + c]) - expected).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn complex_products_conjugate_what_they_are_told_to() {
    let (a, b) = ([1.0, 2.0], [3.0, -5.0]);
    let of = |conjugate| {
        let mut out = [0.0; 2];
        let [a, b] = [&a, &b].map(|x| View::contiguous(x, &[2]));
        multiply(conjugate, &a, &b, &mut ViewMut::contiguous(&mut out, &[2]));
        out
    };
    assert_eq!(of([false, false]), [13.0, 1.0]);
    assert_eq!(of([true, false]), [-7.0, -11.0]);
    assert_eq!(of([false, true]), [-7.0, 11.0]);
}

#[test]
fn complex_products_of_runs_are_those_of_single_numbers() {
    let (n, mut rng) = (37, Rng::new(13));
    let [a, b]: [Vec<f32>; 2] =
        core::array::from_fn(|_| (0..2 * n).map(|_| rng.unit() as f32).collect());
    // One after the other, every other one, the same number again and again; real and imaginary parts apart.
    let kinds = [[2, 1], [4, 1], [0, 1], [1, n as isize]];
    for (to_a, to_b) in kinds.iter().flat_map(|a| kinds.map(|b| (a, b))) {
        let count = if to_a[0] == 4 || to_b[0] == 4 {
            n / 2
        } else {
            n
        };
        let (a, b) = (
            View::new(&a, 0, &[count, 2], to_a),
            View::new(&b, 0, &[count, 2], &to_b),
        );
        for conjugate in [[false, false], [true, false], [false, true], [true, true]] {
            let mut out = vec![0.0; 2 * count];
            multiply(
                conjugate,
                &a,
                &b,
                &mut ViewMut::contiguous(&mut out, &[count, 2]),
            );
            for (i, out) in out.chunks(2).enumerate() {
                let of = |x: &View<'_, f32>, conjugate| {
                    let at = |part| {
                        x.data()[(i as isize * x.strides()[0] + part * x.strides()[1]) as usize]
                    };
                    (at(0), if conjugate { -at(1) } else { at(1) })
                };
                let ((x, xi), (y, yi)) = (of(&a, conjugate[0]), of(&b, conjugate[1]));
                assert_eq!(
                    out,
                    [x * y - xi * yi, x * yi + xi * y],
                    "{i} {to_a:?} {to_b:?}"
                );
            }
        }
    }
}

/// Bit for bit: numbers of either size are brought side by side in ways of their own.
#[test]
fn lines_side_by_side_are_transformed_as_lines_one_after_the_other() {
    side_by_side::<f64>(|x| x);
    side_by_side::<f32>(|x| x as f32);
}

fn side_by_side<T: Planned>(of: impl Fn(f64) -> T) {
    let mut rng = Rng::new(11);
    let lengths = [
        (19, 17, 18),
        (97, 97, 90),
        (16, 16, 16),
        (8, 9, 5),
        (8, 5, 9),
        (70, 70, 70),
        (70, 36, 36),
        (64, 64, 33),
    ];
    for kind in KINDS {
        for (n, given, rows) in lengths {
            let (reads, writes) = (kind.reads_complex(), kind.writes_complex());
            let shape = |extent, complex| [&[2, extent, 21], tail(complex)].concat();
            let (from, to) = (shape(given, reads), shape(rows, writes));
            let order = |complex| {
                if complex {
                    &[0, 2, 1, 3][..]
                } else {
                    &[0, 2, 1]
                }
            };
            // Once with real parts at odd places, so that pairs are not whole.
            for first in [0, 1] {
                let x: Vec<T> = (0..from.iter().product::<usize>() + first)
                    .map(|_| of(rng.unit()))
                    .collect();
                let x = View::new(&x, first, &from, &row_major(&from));
                let apart = x.permute(order(reads));
                let (copied, shape) = (apart.to_vec(), apart.shape().to_vec());
                let apart = View::contiguous(&copied, &shape);
                let len: usize = to.iter().product();
                let (mut y, mut z) = (vec![of(9.0); len + first], vec![of(9.0); len]);
                let (y_view, z_view) = (
                    ViewMut::new(&mut y, first, &to, &row_major(&to)),
                    ViewMut::contiguous(&mut z, &permuted(&to, order(writes))),
                );
                for (x, dim, mut out) in [(x, 1, y_view), (apart, 2, z_view)] {
                    transform(kind, dim, n, 0.5, &x, &mut out);
                }
                let y = View::new(&y, first, &to, &row_major(&to)).permute(order(writes));
                assert_eq!(y.to_vec(), z, "{kind:?} {n} {given} {rows} {first}");
            }
        }
    }
}

#[test]
fn of_nothing_comes_zero_and_into_nothing_goes_nothing() {
    for kind in KINDS {
        for n in [3, 4, 70] {
            let (reads, writes) = (kind.reads_complex(), kind.writes_complex());
            for (lines, given, rows) in [(5, 0, 3), (5, 4, 0), (5, 0, 0), (0, 4, 3)] {
                for dim in [0, 1] {
                    let shape = |extent, complex| match dim {
                        0 => [&[extent, lines], tail(complex)].concat(),
                        _ => [&[lines, extent], tail(complex)].concat(),
                    };
                    let (from, to) = (shape(given, reads), shape(rows, writes));
                    let x = vec![1.0_f32; from.iter().product()];
                    let mut y = vec![9.0; to.iter().product()];
                    let x = View::contiguous(&x, &from);
                    transform(kind, dim, n, 1.0, &x, &mut ViewMut::contiguous(&mut y, &to));
                    assert!(
                        given > 0 || y.iter().all(|&y| y == 0.0),
                        "{kind:?} {n} {dim}"
                    );
                }
            }
        }
    }
}

/// Where lines follow each other on one side only.
#[test]
fn lines_with_gaps_between_them_stay_apart() {
    let mut rng = Rng::new(17);
    let x: Vec<f64> = (0..3 * 4 * 6 * 2).map(|_| rng.unit()).collect();
    let kind = Fft::Complex { inverse: false };
    let mut expected = vec![0.0; x.len()];
    let shape = [3, 4, 6, 2];
    let whole = View::contiguous(&x, &shape);
    transform(
        kind,
        2,
        6,
        1.0,
        &whole,
        &mut ViewMut::contiguous(&mut expected, &shape),
    );
    // Rows of five lines, of which four are written or read.
    let apart = [5 * 12, 12, 2, 1];
    let mut wide = vec![7.0; 3 * 5 * 12];
    transform(
        kind,
        2,
        6,
        1.0,
        &whole,
        &mut ViewMut::new(&mut wide, 0, &shape, &apart),
    );
    assert_eq!(View::new(&wide, 0, &shape, &apart).to_vec(), expected);
    let gaps = wide.chunks(12).skip(4).step_by(5).flatten();
    assert!(gaps.eq([7.0; 36].iter()));
    for (i, x) in x.chunks(12).enumerate() {
        wide[(i / 4 * 5 + i % 4) * 12..][..12].copy_from_slice(x);
    }
    let mut out = vec![0.0; x.len()];
    let from = View::new(&wide, 0, &shape, &apart);
    transform(
        kind,
        2,
        6,
        1.0,
        &from,
        &mut ViewMut::contiguous(&mut out, &shape),
    );
    assert_eq!(out, expected);
}

/// Passes one after the other, each on all there is.
fn one_by_one(passes: &[Pass], x: &[f32], shape: &[usize]) -> Vec<f32> {
    let (mut x, mut shape) = (x.to_vec(), shape.to_vec());
    for pass in passes {
        let after = pass.shape_of(&shape);
        let mut y = vec![9.0; after.iter().product()];
        transform(
            pass.kind,
            pass.dim,
            pass.n,
            pass.scale,
            &View::contiguous(&x, &shape),
            &mut ViewMut::contiguous(&mut y, &after),
        );
        (x, shape) = (y, after);
    }
    x
}

/// In one part and in many, of which the last is smaller; of dims in any order, with others in front, between and behind; cut
/// and padded.
#[test]
fn several_dims_are_transformed_as_one_after_the_other() {
    let mut rng = Rng::new(19);
    let complex = |dim, n, extent| Pass {
        kind: Fft::Complex { inverse: false },
        dim,
        n,
        extent,
        scale: 0.5,
    };
    let from_real = |dim, n: usize| Pass {
        kind: Fft::FromReal { doubled: false },
        ..complex(dim, n, n / 2 + 1)
    };
    let to_real = |dim, n| Pass {
        kind: Fft::ToReal { doubled: true },
        ..complex(dim, n, n)
    };
    let cases: [(Vec<usize>, Vec<Pass>); 11] = [
        (vec![3, 5], vec![]),
        (vec![6, 5], vec![from_real(1, 5), complex(0, 6, 6)]),
        (
            vec![3, 19, 50, 64],
            vec![from_real(3, 64), complex(2, 50, 50)],
        ),
        (
            vec![3, 19, 50, 64],
            vec![from_real(2, 50), complex(3, 64, 9)],
        ),
        (vec![70, 90, 37], vec![from_real(1, 90), complex(0, 70, 70)]),
        (vec![70, 90, 7], vec![from_real(1, 100), complex(0, 60, 71)]),
        (
            vec![33, 41, 35, 2],
            vec![complex(2, 35, 35), complex(0, 33, 33)],
        ),
        (
            vec![5, 20, 24, 30],
            vec![from_real(3, 30), complex(2, 24, 24), complex(1, 20, 20)],
        ),
        (
            vec![21, 12, 16, 9, 2],
            vec![complex(1, 12, 14), complex(2, 16, 16), to_real(3, 17)],
        ),
        (vec![4, 0, 6, 8], vec![from_real(3, 8), complex(2, 6, 6)]),
        (vec![4, 3, 0, 8], vec![from_real(3, 8), complex(2, 6, 6)]),
    ];
    for (shape, passes) in cases {
        let x: Vec<f32> = (0..shape.iter().product())
            .map(|_| rng.unit() as f32)
            .collect();
        let expected = one_by_one(&passes, &x, &shape);
        let after = passes
            .iter()
            .fold(shape.clone(), |shape, pass| pass.shape_of(&shape));
        // Where they lie side by side, and where the first two dims are exchanged in memory.
        for turned in [false, true] {
            let mut order: Vec<usize> = (0..shape.len()).collect();
            let mut after_order: Vec<usize> = (0..after.len()).collect();
            if turned {
                order.swap(0, 1);
                after_order.swap(0, 1);
            }
            let given = View::contiguous(&x, &shape).permute(&order).to_vec();
            let x = View::contiguous(&given, &permuted(&shape, &order)).permute(&order);
            let mut y = vec![9.0; expected.len()];
            let lying = permuted(&after, &after_order);
            let mut out = ViewMut::contiguous(&mut y, &lying).permute(&after_order);
            transform_all(&passes, &x, &mut out);
            let y = View::contiguous(&y, &lying).permute(&after_order);
            assert!(y.to_vec() == expected, "{passes:?} of {shape:?}, {turned}");
        }
    }
}

fn permuted(shape: &[usize], order: &[usize]) -> Vec<usize> {
    order.iter().map(|&d| shape[d]).collect()
}

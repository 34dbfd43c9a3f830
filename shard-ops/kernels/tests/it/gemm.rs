use crate::testing::{Rng, assert_close, naive_index};
use shard_kernels::gemm::*;
use shard_kernels::{Real, View, ViewMut};

fn case<T: Real>(
    batch: &[usize],
    m: usize,
    k: usize,
    n: usize,
    broadcast_a: bool,
    transpose_b: bool,
) {
    let mut rng = Rng::new(7 + m as u64 * 31 + k as u64 * 5 + n as u64);
    let full = |tail: [usize; 2]| [batch, &tail].concat();
    let a_data = rng.vec::<T>(if broadcast_a {
        m * k
    } else {
        batch.iter().product::<usize>() * m * k
    });
    let b_data = rng.vec::<T>(batch.iter().product::<usize>() * k * n);
    let a = if broadcast_a {
        View::contiguous(&a_data, &[m, k])
            .broadcast_to(&full([m, k]))
            .expect("broadcasts")
    } else {
        View::contiguous(&a_data, &full([m, k]))
    };
    let b = if transpose_b {
        let mut order: Vec<usize> = (0..batch.len()).collect();
        order.extend([batch.len() + 1, batch.len()]);
        View::contiguous(&b_data, &full([n, k])).permute(&order)
    } else {
        View::contiguous(&b_data, &full([k, n]))
    };
    let shape = full([m, n]);
    let mut out = rng.vec::<T>(shape.iter().product());
    let before = out.clone();
    let mut expected = Vec::new();
    for at in naive_index(&shape) {
        let (lead, [i, j]) = at.split_at(batch.len()) else {
            panic!("two trailing dims")
        };
        let sum: f64 = (0..k)
            .map(|q| {
                a.get(&[lead, &[*i, q]].concat()).wide() * b.get(&[lead, &[q, *j]].concat()).wide()
            })
            .sum();
        expected.push(sum);
    }
    matmul(&a, &b, &mut ViewMut::contiguous(&mut out, &shape), false);
    assert_close(&out, &expected, 1e-5);
    out.copy_from_slice(&before);
    matmul(&a, &b, &mut ViewMut::contiguous(&mut out, &shape), true);
    let added: Vec<f64> = expected
        .iter()
        .zip(&before)
        .map(|(e, b)| e + b.wide())
        .collect();
    assert_close(&out, &added, 1e-5);
}

/// Few rows times a large matrix, which is not packed then.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn few_rows_match_the_triple_loop() {
    for (m, k, n) in [(2, 70, 470), (15, 31, 150)] {
        for transpose_b in [false, true] {
            case::<f32>(&[], m, k, n, false, transpose_b);
            case::<f64>(&[2], m, k, n, false, transpose_b);
            // And where columns are few.
            case::<f32>(&[], n, k, m, false, transpose_b);
        }
    }
    // The most rows that are few; more results than are computed at a time. Of these some are looked at.
    let mut rng = Rng::new(3);
    for [m, k, n] in [[128, 256, 513], [64, 128, 4133]] {
        let [a, b, before] = [m * k, n * k, m * n].map(|len| rng.vec::<f32>(len));
        let mut c = before.clone();
        let (left, right) = (Mat::row_major(&a, k), Mat::row_major(&b, k).transposed());
        gemm(m, n, k, left, right, MatMut::row_major(&mut c, n), true);
        for _ in 0..500 {
            let (i, j) = (rng.within(0, m - 1), rng.within(0, n - 1));
            let terms = a[i * k..][..k].iter().zip(&b[j * k..][..k]);
            let sum: f64 = terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let (at, before) = (i * n + j, f64::from(before[i * n + j]));
            assert!((f64::from(c[at]) - before - sum).abs() < 1e-4, "{i} {j}");
        }
    }
}

#[test]
fn products_match_the_triple_loop() {
    for (m, k, n) in [
        (1, 1, 1),
        // Under miri, what is larger would take minutes.
        if cfg!(miri) { (2, 3, 2) } else { (5, 7, 3) },
        (0, 3, 2),
        (3, 0, 2),
        // Larger than any tile.
        if cfg!(miri) { (3, 1, 2) } else { (33, 65, 17) },
        (2, 3, 0),
    ] {
        for batch in [&[][..], &[3], &[2, 3], &[0]] {
            // Under miri, one type and one batch dim stand for all.
            if cfg!(miri) && batch.len() > 1 {
                continue;
            }
            for (broadcast_a, transpose_b) in [(false, false), (false, true), (true, false)] {
                if !cfg!(miri) {
                    case::<f32>(batch, m, k, n, broadcast_a, transpose_b);
                }
                case::<f64>(batch, m, k, n, broadcast_a, transpose_b);
            }
        }
    }
}

/// Every way in which a matrix can be stored: by rows or by columns, and either of them backward.
#[test]
fn steps_of_any_sign_and_order_give_the_same_product() {
    const M: usize = 5;
    const N: usize = 3;
    const K: usize = 4;
    let stored = |rows: usize, cols: usize, way: usize| {
        let (mut row, mut col) = match way & 1 {
            0 => (cols as isize, 1),
            _ => (1, rows as isize),
        };
        let mut offset = 0;
        if way & 2 > 0 {
            offset += (rows - 1) * row.unsigned_abs();
            row = -row;
        }
        if way & 4 > 0 {
            offset += (cols - 1) * col.unsigned_abs();
            col = -col;
        }
        (offset, row, col)
    };
    let at = |(offset, row, col): (usize, isize, isize), i: usize, j: usize| {
        offset.wrapping_add_signed(i as isize * row + j as isize * col)
    };
    let mut rng = Rng::new(5);
    let (a, b) = (rng.vec::<f64>(M * K), rng.vec::<f64>(K * N));
    // Interpreted, a product takes long; all ways of each operand come up in a few.
    for way in (0..512).step_by(if cfg!(miri) { 13 } else { 1 }) {
        let (a_lies, b_lies) = (stored(M, K, way & 7), stored(K, N, way >> 3 & 7));
        let c_lies = stored(M, N, way >> 6);
        let mut c = [f64::NAN; M * N];
        let mat = |data, (offset, row_step, col_step)| Mat {
            data,
            offset,
            row_step,
            col_step,
        };
        let (offset, row_step, col_step) = c_lies;
        let out = MatMut {
            data: &mut c,
            offset,
            row_step,
            col_step,
        };
        gemm(M, N, K, mat(&a, a_lies), mat(&b, b_lies), out, false);
        for (i, j) in (0..M).flat_map(|i| (0..N).map(move |j| (i, j))) {
            let expected: f64 = (0..K)
                .map(|q| a[at(a_lies, i, q)] * b[at(b_lies, q, j)])
                .sum();
            let got = c[at(c_lies, i, j)];
            assert!((got - expected).abs() < 1e-12, "{way}: {got} {expected}");
        }
    }
}

#[test]
fn shared_right_operand_runs_as_one_product() {
    let mut rng = Rng::new(3);
    let (a, b) = (rng.vec::<f64>(4 * 3 * 5), rng.vec::<f64>(5 * 2));
    let shared = View::contiguous(&b, &[5, 2])
        .broadcast_to(&[4, 5, 2])
        .expect("broadcasts");
    let mut together = vec![0.0; 24];
    matmul(
        &View::contiguous(&a, &[4, 3, 5]),
        &shared,
        &mut ViewMut::contiguous(&mut together, &[4, 3, 2]),
        false,
    );
    let mut flat = vec![0.0; 24];
    gemm(
        12,
        2,
        5,
        Mat::row_major(&a, 5),
        Mat::row_major(&b, 2),
        MatMut::row_major(&mut flat, 2),
        false,
    );
    assert_eq!(together, flat);
}

#[test]
#[should_panic(expected = "operand a reaches 0..=5 of 5")]
fn short_operands_are_refused() {
    let mut c = [0.0; 4];
    gemm(
        2,
        2,
        3,
        Mat::row_major(&[0.0; 5], 3),
        Mat::row_major(&[0.0; 6], 2),
        MatMut::row_major(&mut c, 2),
        false,
    );
}

/// A product of numbers by tiles and what is expected of it: matrices that lie in one of the four ways.
struct Tiled {
    extent: [usize; 3],
    a: Vec<f32>,
    b: Vec<f32>,
    a_turned: bool,
    b_turned: bool,
}

impl Tiled {
    fn new(extent: [usize; 3], turned: [bool; 2], mut number: impl FnMut(usize) -> f32) -> Self {
        let [m, n, k] = extent;
        let a = (0..m * k).map(&mut number).collect();
        let b = (0..k * n).map(&mut number).collect();
        let [a_turned, b_turned] = turned;
        Self {
            extent,
            a,
            b,
            a_turned,
            b_turned,
        }
    }

    fn a(&self) -> Mat<'_, f32> {
        let [m, _, k] = self.extent;
        match self.a_turned {
            false => Mat::row_major(&self.a, k),
            true => Mat::row_major(&self.a, m).transposed(),
        }
    }

    fn b(&self) -> Mat<'_, f32> {
        let [_, n, k] = self.extent;
        match self.b_turned {
            false => Mat::row_major(&self.b, n),
            true => Mat::row_major(&self.b, k).transposed(),
        }
    }

    /// The product, and the sum of the magnitudes of what is summed.
    fn expected(&self, i: usize, j: usize) -> (f64, f64) {
        let at = |mat: Mat<'_, f32>, i: usize, j: usize| {
            let steps = i as isize * mat.row_step + j as isize * mat.col_step;
            f64::from(mat.data[mat.offset.wrapping_add_signed(steps)])
        };
        (0..self.extent[2])
            .map(|q| at(self.a(), i, q) * at(self.b(), q, j))
            .fold((0.0, 0.0), |(sum, all), x| (sum + x, all + x.abs()))
    }

    /// The results by an emulated unit, by the processor's if it is such a one, which must be equal to the last bit, and otherwise.
    fn results(&self, unit: Emulated, before: &[f32], accumulate: bool) -> [Vec<f32>; 2] {
        let n = self.extent[1];
        let [mut tiled, mut other, mut plain] = [before; 3].map(<[f32]>::to_vec);
        let (a, b) = (self.a(), self.b());
        let to = MatMut::row_major(&mut tiled, n);
        assert!(inside::emulated(unit, self.extent, a, b, to, accumulate));
        let to = MatMut::row_major(&mut other, n);
        if unit.is_of_processor()
            && let Some(done) = inside::by_processor(self.extent, a, b, to, accumulate)
        {
            assert!(done);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&tiled), bits(&other), "{:?}", self.extent);
        }
        let to = MatMut::row_major(&mut plain, n);
        gemm(self.extent[0], n, self.extent[2], a, b, to, accumulate);
        [tiled, plain]
    }
}

/// Extents at the edges of tiles and of what is packed at a time.
const EXTENTS: [[usize; 3]; 7] = [
    [1, 1, 1],
    [32, 32, 32],
    [33, 31, 65],
    [16, 48, 17],
    [70, 5, 33],
    [300, 40, 20],
    [40, 35, 1100],
];

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn tiles_are_as_exact_as_single_precision() {
    let mut rng = Rng::new(11);
    for extent in EXTENTS {
        for turned in [[false; 2], [false, true], [true, false], [true; 2]] {
            // In large ones one kind of numbers stands for all.
            let large = extent.iter().sum::<usize>() > 200;
            for kind in 0..if large { 1 } else { 4 } {
                let case = Tiled::new(extent, turned, |i| {
                    let x = rng.unit() as f32;
                    match kind {
                        0 => x,
                        // Of very different magnitudes.
                        1 => x * 2.0f32.powi((i % 61) as i32 - 30),
                        2 => half::bf16::from_f32(x).to_f32(),
                        _ => half::f16::from_f32(x).to_f32(),
                    }
                });
                let before = rng.vec::<f32>(extent[0] * extent[1]);
                let units = |accumulate| Emulated::ALL.map(|unit| (unit, accumulate));
                for (unit, accumulate) in [false, true].into_iter().flat_map(units) {
                    let [tiled, _] = case.results(unit, &before, accumulate);
                    for (at, (&got, &before)) in tiled.iter().zip(&before).enumerate() {
                        let (mut sum, mut all) = case.expected(at / extent[1], at % extent[1]);
                        if accumulate {
                            sum += f64::from(before);
                            all += f64::from(before.abs());
                        }
                        let error = (f64::from(got) - sum).abs();
                        // Roundings of single precision, of which few meet.
                        assert!(
                            error <= 4.0 * f64::from(f32::EPSILON) * all,
                            "{extent:?} {turned:?} {kind} {accumulate}: {got} for {sum} at {at}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn tiles_leave_alone_what_parts_do_not_stand_for() {
    let mut rng = Rng::new(12);
    for odd in [
        f32::NAN,
        f32::INFINITY,
        f32::MAX,
        1e35,
        -1e-30,
        f32::MIN_POSITIVE / 8.0,
    ] {
        // A number alone, a line of them, and all.
        for most in [1, 40, usize::MAX] {
            let extent @ [m, n, k] = [40, 35, 40];
            let mut case = Tiled::new(extent, [false, true], |_| rng.unit() as f32);
            let first = m / 2 * k;
            (case.a[first..].iter_mut().take(most)).for_each(|x| *x = odd);
            if most == usize::MAX {
                case.a.fill(odd);
            }
            let [tiled, plain] = case.results(Emulated::Tiles, &vec![0.5; m * n], false);
            for (at, (got, plain)) in tiled.iter().zip(&plain).enumerate() {
                let (_, all) = case.expected(at / n, at % n);
                let near = f64::from((got - plain).abs()) <= 1e-6 * all + 1e-44;
                let same = got == plain || got.is_nan() && plain.is_nan();
                assert!(near || same, "{odd} {most}: {got} for {plain} at {at}");
            }
        }
    }
}

/// Operands of `bf16` by whatever this processor has: small and large products, stored by rows and columns, with numbers that are none.
#[test]
#[cfg_attr(miri, ignore = "takes minutes there")]
fn products_of_halves_are_summed_in_single_precision() {
    let mut rng = Rng::new(13);
    for extent @ [m, n, k] in [
        [3, 5, 2],
        [70, 90, 130],
        [130, 64, 96],
        // Few rows or columns and long sums, whole vectors of the others and not.
        [1, 70, 130],
        [1, 40, 9],
        [8, 64, 64],
        [15, 34, 125],
        [5, 33, 47],
        [40, 3, 64],
        [23, 40, 190],
        // Few, and more columns than are near at a time.
        [3, 130, 2048],
        // Few, but enough for a unit that forms eight rows and 16 columns at a time.
        [7, 514, 97],
        [18, 200, 130],
        [130, 28, 90],
        [10, 500, 270],
        // Few with short sums, and few of both.
        [8, 64, 32],
        [90, 16, 16],
        [16, 15, 140],
        [9, 9, 1],
        [0, 3, 2],
        [3, 2, 0],
    ] {
        for turned in [[false; 2], [false, true], [true, false], [true; 2]] {
            let mut case = Tiled::new(extent, turned, |_| {
                half::bf16::from_f32(rng.unit() as f32).to_f32()
            });
            if let Some(x) = case.a.last_mut() {
                *x = f32::NAN;
            }
            let halves = |x: &[f32]| {
                x.iter()
                    .map(|&x| half::bf16::from_f32(x))
                    .collect::<Vec<_>>()
            };
            let (a, b) = (halves(&case.a), halves(&case.b));
            let lies = |data, of: Mat<'_, f32>| Mat {
                data,
                offset: of.offset,
                row_step: of.row_step,
                col_step: of.col_step,
            };
            let before = rng.vec::<f32>(m * n);
            for (accumulate, by_columns) in [(false, false), (true, false), (true, true)] {
                let mut got = before.clone();
                let at = |i: usize, j: usize| if by_columns { i + j * m } else { i * n + j };
                let to = MatMut {
                    data: &mut got,
                    offset: 0,
                    row_step: if by_columns { 1 } else { n as isize },
                    col_step: if by_columns { m as isize } else { 1 },
                };
                let (a, b) = (lies(&a[..], case.a()), lies(&b[..], case.b()));
                gemm_halves(m, n, k, a, b, to, accumulate);
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let (mut sum, mut all) = case.expected(i, j);
                    if accumulate {
                        sum += f64::from(before[at(i, j)]);
                        all += f64::from(before[at(i, j)].abs());
                    }
                    let got = f64::from(got[at(i, j)]);
                    let close = (got - sum).abs() <= 4.0 * f64::from(f32::EPSILON) * all;
                    assert!(
                        close || got.is_nan() && sum.is_nan(),
                        "{extent:?} {turned:?}: {got} for {sum}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_lies_in_gaps_is_not_for_tiles() {
    let data = [1.0f32; 64 * 64];
    let mut c = [0.0f32; 64 * 64];
    let dense = Mat::row_major(&data, 32);
    let apart = Mat {
        col_step: 2,
        row_step: 64,
        ..dense
    };
    let backward = Mat {
        offset: 31 * 32,
        row_step: -32,
        ..dense
    };
    for (a, b) in [(apart, dense), (dense, apart), (backward, dense)] {
        let to = MatMut::row_major(&mut c, 32);
        assert!(!inside::emulated(
            Emulated::Tiles,
            [32, 32, 32],
            a,
            b,
            to,
            false
        ));
    }
    let to = MatMut {
        col_step: 2,
        row_step: 64,
        ..MatMut::row_major(&mut c, 64)
    };
    assert!(!inside::emulated(
        Emulated::Tiles,
        [32, 32, 32],
        dense,
        dense,
        to,
        false
    ));
}

/// Integers wrap, so any order of the terms gives the same: across the edges of tiles, and of operands that lie in any way.
fn whole_products<T: Integer>(bits: impl Fn(u64) -> T) {
    let mut rng = Rng::new(17);
    let shapes = [
        [1, 1, 300],
        [1, 200, 70],
        [90, 1, 130],
        [33, 129, 65],
        [70, 40, 0],
        [0, 5, 3],
        [5, 270, 64],
    ];
    for [m, n, k] in shapes {
        for turned in 0..8 {
            let mut some = |n: usize| -> Vec<T> {
                let drawn = (0..n).map(|_| rng.within(0, usize::MAX - 1) as u64);
                drawn.map(&bits).collect()
            };
            let (a, b, before) = (some(m * k), some(k * n), some(m * n));
            // Row by row, or column by column.
            let mat = |data, rows, columns, turned: bool| match turned {
                false => Mat::row_major(data, columns),
                true => Mat::row_major(data, rows).transposed(),
            };
            let (left, right) = (
                mat(&a, m, k, turned & 1 != 0),
                mat(&b, k, n, turned & 2 != 0),
            );
            let at = |x: &Mat<'_, T>, i: usize, j: usize| {
                x.data[i * x.row_step as usize + j * x.col_step as usize]
            };
            for accumulate in [false, true] {
                let mut out = before.clone();
                let steps = if turned & 4 != 0 { (1, m) } else { (n, 1) };
                let c = MatMut {
                    data: &mut out,
                    offset: 0,
                    row_step: steps.0 as isize,
                    col_step: steps.1 as isize,
                };
                gemm_whole(m, n, k, left, right, c, accumulate);
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let place = i * steps.0 + j * steps.1;
                    let start = if accumulate { before[place] } else { T::zero() };
                    let sum = (0..k).fold(start, |sum, q| {
                        sum.wrapping_add(&at(&left, i, q).wrapping_mul(&at(&right, q, j)))
                    });
                    assert_eq!(out[place], sum, "{m} {n} {k}: {i}, {j}");
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes, and nothing of it is unsafe")]
fn products_of_integers_are_exact() {
    whole_products(|bits| bits as i64);
    whole_products(|bits| bits as i32);
    whole_products(|bits| bits as u8);
}

fn few_as_rows_of_many<T: Real>() {
    let mut rng = Rng::new(77);
    for [n, k] in [[2, 3], [3, 3], [4, 4], [13, 4], [4, 13], [2, 16], [3, 7]] {
        for (many, few) in [(40, 2), (13, 2), (13, 3), (9, 4), (4, 2)] {
            let [a, b, start] = [many * k, k * n, many * n].map(|len| rng.vec::<T>(len));
            for accumulate in [false, true] {
                let product = |rows: usize| {
                    let mut c = start[..rows * n].to_vec();
                    let left = Mat::row_major(&a, k);
                    let right = Mat::row_major(&b, n);
                    gemm(
                        rows,
                        n,
                        k,
                        left,
                        right,
                        MatMut::row_major(&mut c, n),
                        accumulate,
                    );
                    c
                };
                let (some, all) = (product(few), product(many));
                assert_eq!(
                    some,
                    all[..few * n],
                    "{few} of {many} x {n} x {k}, {accumulate}"
                );
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "the library does not run there")]
fn products_of_a_few_numbers_have_the_bits_of_rows_of_many() {
    few_as_rows_of_many::<f32>();
    few_as_rows_of_many::<f64>();
}

/// Rows of a matrix times a vector, written to places so far apart, and the same with everything transposed.
fn with_vector<T: Real>(
    matrix: Mat<'_, T>,
    vector: &[T],
    rows: usize,
    start: &[T],
    apart: usize,
    accumulate: bool,
) -> [Vec<T>; 2] {
    let (k, column) = (vector.len(), Mat::row_major(vector, 1));
    let (mut down, mut along) = (start.to_vec(), start.to_vec());
    let to = MatMut {
        data: &mut down,
        offset: 0,
        row_step: apart as isize,
        col_step: 1,
    };
    gemm(rows, 1, k, matrix, column, to, accumulate);
    let to = MatMut {
        data: &mut along,
        offset: 0,
        row_step: 1,
        col_step: apart as isize,
    };
    let (left, right) = (column.transposed(), matrix.transposed());
    gemm(1, rows, k, left, right, to, accumulate);
    [down, along]
}

fn rows_with_a_vector<T: Real>() {
    let mut rng = Rng::new(78);
    let many = 150;
    // Elsewhere the order of longer sums in rows is the library's.
    #[cfg(target_arch = "x86_64")]
    let are_here = matches!(pulp::Arch::new(), pulp::Arch::V3(_));
    #[cfg(not(target_arch = "x86_64"))]
    let are_here = false;
    for (k, apart) in [
        (3, 1),
        (4, 3),
        (5, 1),
        (8, 2),
        (9, 1),
        (16, 1),
        (37, 1),
        (100, 2),
        (303, 1),
    ] {
        let [x, v, start] = [many * k, k, many * apart].map(|len| rng.vec::<T>(len));
        let in_rows = Mat::row_major(&x, k);
        let in_columns = Mat::row_major(&x, many).transposed();
        for (accumulate, matrix) in [false, true]
            .into_iter()
            .flat_map(|adds| [(adds, in_rows), (adds, in_columns)])
        {
            let product = |rows| with_vector(matrix, &v, rows, &start, apart, accumulate);
            let all = product(many);
            let at = |i: usize, l: usize| {
                let step = i as isize * matrix.row_step + l as isize * matrix.col_step;
                x[step as usize].wide()
            };
            for (i, found) in all[0].iter().step_by(apart).enumerate() {
                let first = if accumulate {
                    start[i * apart].wide()
                } else {
                    0.0
                };
                let sum: f64 = (0..k).map(|l| at(i, l) * v[l].wide()).sum();
                let bound = 1e-5 * (1.0 + sum.abs());
                assert!((found.wide() - first - sum).abs() < bound, "{k}: row {i}");
            }
            assert_eq!(all[0], all[1], "{k}");
            let are_long = matrix.col_step == 1 && k > 4;
            if are_long && !are_here {
                continue;
            }
            for few in [if are_long { 1 } else { 2 }, 2, 5, 16, 21, 65] {
                let written = (few - 1) * apart + 1;
                for (some, all) in product(few).iter().zip(&all) {
                    assert_eq!(
                        some[..written],
                        all[..written],
                        "{few} of {many} x {k}, {}, {accumulate}",
                        matrix.col_step
                    );
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "the library does not run there")]
fn short_rows_with_a_vector_have_the_same_bits_however_many_there_are() {
    rows_with_a_vector::<f32>();
    rows_with_a_vector::<f64>();
}

fn rows_with_columns<T: Real>() {
    let mut rng = Rng::new(79);
    for (k, m, n) in [
        (3, 3, 3),
        (4, 4, 4),
        (3, 2, 5),
        (4, 5, 5),
        (3, 13, 4),
        (4, 40, 1),
        (3, 1, 9),
    ] {
        let (x, y) = (rng.vec::<T>(m * k), rng.vec::<T>(n * k));
        let product = |rows: core::ops::Range<usize>, columns: core::ops::Range<usize>| {
            let mut c = vec![T::nan(); rows.len() * columns.len()];
            let left = Mat::row_major(&x[rows.start * k..], k);
            let right = Mat::row_major(&y[columns.start * k..], k).transposed();
            let to = MatMut::row_major(&mut c, columns.len());
            gemm(rows.len(), columns.len(), k, left, right, to, false);
            c
        };
        let all = product(0..m, 0..n);
        for i in 0..m {
            assert_eq!(
                product(i..i + 1, 0..n),
                all[i * n..][..n],
                "row {i} of {m} x {n} x {k}"
            );
            for j in 0..n {
                assert_eq!(
                    product(i..i + 1, j..j + 1),
                    [all[i * n + j]],
                    "{i} {j} of {m} x {n} x {k}"
                );
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "the library does not run there")]
fn short_rows_with_columns_have_the_bits_of_each_alone() {
    rows_with_columns::<f32>();
    rows_with_columns::<f64>();
}

/// Products that are computed together have the bits of each by itself, however their matrices lie.
fn many_as_one_by_one<T: Real>() {
    let mut rng = Rng::new(80);
    for (m, n, k) in [
        (3, 3, 3),
        (3, 1, 3),
        (1, 3, 3),
        (2, 5, 4),
        (4, 1, 16),
        (1, 1, 5),
        (4, 4, 4),
        (2, 2, 2),
        (8, 8, 8),
        (5, 12, 5),
        (4, 8, 16),
        (2, 32, 2),
    ] {
        for way in 0..16 {
            let stored = |data, rows: usize, columns: usize, turned: bool| match turned {
                false => Mat::row_major(data, columns),
                true => Mat::row_major(data, rows).transposed(),
            };
            let (count, accumulate) = (21, way & 8 > 0);
            // One side may be the same for all.
            let shares = way & 4 > 0;
            let steps = [m * k, if shares { 0 } else { k * n }, m * n].map(|step| step as isize);
            let [x, y, start] =
                [count * m * k, count * k * n, count * m * n].map(|len| rng.vec::<T>(len));
            let (left, right) = (stored(&x, m, k, way & 1 > 0), stored(&y, k, n, way & 2 > 0));
            let (mut all, mut each) = (start.clone(), start);
            let to = MatMut::row_major(&mut all, n);
            gemm_many([m, n, k], left, right, to, (count, steps), accumulate);
            for r in 0..count {
                let at = |offset: usize, step: isize| offset + r * step as usize;
                let to = MatMut::row_major(&mut each[r * m * n..], n);
                let left = Mat {
                    offset: at(left.offset, steps[0]),
                    ..left
                };
                let right = Mat {
                    offset: at(right.offset, steps[1]),
                    ..right
                };
                gemm(m, n, k, left, right, to, accumulate);
            }
            assert_eq!(all, each, "{m} x {n} x {k}, {way}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "the library does not run there")]
fn products_of_many_matrices_have_the_bits_of_each_by_itself() {
    many_as_one_by_one::<f32>();
    many_as_one_by_one::<f64>();
}

#[test]
#[should_panic(expected = "operand a reaches")]
fn many_products_of_too_few_numbers_are_refused() {
    let (a, b, mut c) = ([1.0; 29 * 9], [1.0; 9], [0.0; 30 * 9]);
    let (left, right) = (Mat::row_major(&a, 3), Mat::row_major(&b, 3));
    let to = MatMut::row_major(&mut c, 3);
    gemm_many([3, 3, 3], left, right, to, (30, [9, 0, 9]), false);
}

/// Products of a column and a row, of any steps: each number of them is one product, rounded once, and added to what is there.
#[test]
#[cfg_attr(miri, ignore = "short columns go to a crate with inline assembly")]
fn products_of_a_column_and_a_row_are_rounded_once() {
    let mut rng = Rng::new(31);
    for [m, n] in [[1, 40], [40, 1], [15, 16], [16, 15], [33, 17], [64, 64]] {
        let (a, b) = (rng.vec::<f32>(2 * m), rng.vec::<f32>(2 * n));
        for (by, at) in [(1_isize, 0), (2, 0), (-1, 1)] {
            let first = |n: usize| if at == 0 { 0 } else { n - 1 };
            let left = || Mat {
                data: &a,
                offset: first(m),
                row_step: by,
                col_step: 5,
            };
            let right = || Mat {
                data: &b,
                offset: first(n),
                row_step: 7,
                col_step: by,
            };
            for (turned, accumulate) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let before = rng.vec::<f32>(m * n);
                let mut c = before.clone();
                let steps = if turned {
                    [1, m as isize]
                } else {
                    [n as isize, 1]
                };
                let to = MatMut {
                    data: &mut c,
                    offset: 0,
                    row_step: steps[0],
                    col_step: steps[1],
                };
                gemm(m, n, 1, left(), right(), to, accumulate);
                for i in 0..m as isize {
                    for j in 0..n as isize {
                        let at = (i * steps[0] + j * steps[1]) as usize;
                        let [x, y] = [(&a, first(m), i), (&b, first(n), j)]
                            .map(|(of, first, i)| of[first.wrapping_add_signed(i * by)]);
                        let wanted = match accumulate {
                            true => before[at] + x * y,
                            false => x * y,
                        };
                        let apart = (c[at] - wanted).abs();
                        let most = if accumulate { 1e-6 } else { 0.0 };
                        assert!(
                            apart <= most,
                            "{} for {wanted} at {i}, {j} of {m} x {n}",
                            c[at]
                        );
                    }
                }
            }
        }
    }
}

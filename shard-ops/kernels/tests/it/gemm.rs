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

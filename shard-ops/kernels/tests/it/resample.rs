use shard_kernels::resample::*;
use shard_kernels::{Real, View, ViewMut};

use crate::testing::{Rng, assert_close, naive_index};

fn random_table(rng: &mut Rng, rows: usize, columns: usize) -> Table {
    let each = rng.within(0, 3);
    let table: Vec<Vec<(usize, f64)>> = (0..rows)
        .map(|_| {
            let count = if columns == 0 {
                0
            } else if each == 3 {
                rng.within(0, 4)
            } else {
                each
            };
            (0..count)
                .map(|_| (rng.within(0, columns - 1), rng.unit()))
                .collect()
        })
        .collect();
    Table::from_rows(table)
}

fn random<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..200 {
        let nd = rng.within(1, 4);
        let shape: Vec<usize> = (0..nd).map(|_| rng.within(0, 7)).collect();
        let dim = rng.within(0, nd - 1);
        let rows = rng.within(0, 9);
        let table = random_table(&mut rng, rows, shape[dim]);
        let mut to = shape.clone();
        to[dim] = rows;
        let x = rng.vec::<T>(shape.iter().product());
        let x = View::contiguous(&x, &shape);
        let mut order: Vec<usize> = (0..nd).collect();
        order.rotate_left(rng.within(0, nd - 1));
        let expected: Vec<f64> = naive_index(&to)
            .iter()
            .map(|at| {
                let pick = |c: usize| {
                    let mut from = at.clone();
                    from[dim] = c;
                    x.get(&from).wide()
                };
                table.row(at[dim]).map(|(c, w)| w * pick(c)).sum()
            })
            .collect();
        let mut out = vec![T::nan(); to.iter().product()];
        apply_along(&x, dim, &table, &mut ViewMut::contiguous(&mut out, &to));
        assert_close(&out, &expected, 1e-5);

        // Permuted strides on both sides.
        let place = order.iter().position(|d| *d == dim).expect("a permutation");
        let turned: Vec<usize> = order.iter().map(|&d| to[d]).collect();
        let mut permuted = vec![T::nan(); out.len()];
        apply_along(
            &x.permute(&order),
            place,
            &table,
            &mut ViewMut::contiguous(&mut permuted, &turned),
        );
        assert_eq!(
            View::contiguous(&out, &to).permute(&order).to_vec().len(),
            permuted.len()
        );
        let again: Vec<f64> = View::contiguous(&out, &to)
            .permute(&order)
            .to_vec()
            .iter()
            .map(|v| v.wide())
            .collect();
        assert_close(&permuted, &again, 1e-6);

        // <A x, y> = <x, A' y>
        let y = rng.vec::<T>(out.len());
        let mut back = vec![T::nan(); x.len()];
        let transposed = table.transposed(shape[dim]);
        apply_along(
            &View::contiguous(&y, &to),
            dim,
            &transposed,
            &mut ViewMut::contiguous(&mut back, &shape),
        );
        let dot = |a: &[T], b: &[T]| {
            a.iter()
                .zip(b)
                .map(|(a, b)| a.wide() * b.wide())
                .sum::<f64>()
        };
        let (forward, adjoint) = (dot(&out, &y), dot(x.data(), &back));
        let tolerance = if size_of::<T>() == 8 { 1e-10 } else { 1e-3 };
        assert!(
            (forward - adjoint).abs() <= tolerance,
            "{forward} against {adjoint}"
        );
    }
}

#[test]
fn tables_match_plain_sums_and_their_adjoints() {
    random::<f64>(1);
    random::<f32>(2);
}

#[test]
fn separable_passes_compose() {
    let x = [1.0, 2.0, 3.0, 4.0];
    let double = Table::from_rows([vec![(0, 1.0)], vec![(0, 0.5), (1, 0.5)], vec![(1, 1.0)]]);
    let mut out = [0.0f64; 9];
    resample(
        &View::contiguous(&x, &[2, 2]),
        &[(0, &double), (1, &double)],
        &mut ViewMut::contiguous(&mut out, &[3, 3]),
    );
    assert_eq!(out, [1.0, 1.5, 2.0, 2.0, 2.5, 3.0, 3.0, 3.5, 4.0]);
    let mut same = [0.0f64; 4];
    resample(
        &View::contiguous(&x, &[2, 2]),
        &[],
        &mut ViewMut::contiguous(&mut same, &[2, 2]),
    );
    assert_eq!(same, x);
}

#[test]
fn transposing_twice_gives_the_table_back() {
    let table = Table::from_rows([vec![(0, 1.0), (3, 2.0)], vec![], vec![(1, 0.5)]]);
    assert_eq!(table.transposed(5).rows(), 5);
    assert_eq!(table.transposed(5).transposed(3), table);
}

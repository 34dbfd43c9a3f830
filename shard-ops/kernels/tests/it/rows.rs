use shard_kernels::rows::*;

/// A table of three dims of which some are keyed, picked by a list that lies along the other side as the case says.
fn geometry(shape: [usize; 3], keyed: [bool; 3], list: usize) -> (Rows, usize, usize) {
    let steps = [shape[1] * shape[2], shape[2], 1];
    let dims = || (0..3).zip(keyed);
    let keys: Vec<_> = dims()
        .filter(|d| d.1)
        .map(|(d, _)| (shape[d], steps[d]))
        .collect();
    let row: Vec<usize> = dims().filter(|d| !d.1).map(|(d, _)| d).collect();
    // The other side is rows in reverse order of their dims, then the list.
    let mut other = list;
    let mut row_dims = Vec::new();
    for &d in &row {
        row_dims.push(RowDim::new(shape[d], steps[d], other));
        other *= shape[d];
    }
    let rows = Rows::new(&keys, &[(list, 1)], &row_dims);
    (rows, shape.iter().product(), other)
}

/// Where element `r` of the row of `key` lies, by counting.
fn element(shape: [usize; 3], keyed: [bool; 3], mut key: usize, mut r: usize) -> usize {
    let mut at = [0; 3];
    for d in (0..3).rev() {
        let rest = if keyed[d] { &mut key } else { &mut r };
        at[d] = *rest % shape[d];
        *rest /= shape[d];
    }
    (at[0] * shape[1] + at[1]) * shape[2] + at[2]
}

/// Numbers that look random, below a limit.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn rows_are_those_that_counting_finds() {
    let mut draw = Draw(7);
    for _ in 0..300 {
        let shape = [0; 3].map(|_| 1 + draw.below(3));
        let mut keyed = [0; 3].map(|_| draw.below(2) == 1);
        keyed[1] |= !keyed.contains(&true);
        let ghosts_of = 2;
        let keys: usize = (0..3).filter(|&d| keyed[d]).map(|d| shape[d]).product();
        let picks = draw.below(7);
        let keys: Vec<i64> = (0..picks)
            .map(|_| draw.below(keys + ghosts_of + 1) as i64 - 1)
            .collect();
        check(shape, keyed, ghosts_of, &keys);
    }
}

fn check(shape: [usize; 3], keyed: [bool; 3], ghosts_of: usize, keys: &[i64]) {
    let (rows, len, other) = geometry(shape, keyed, keys.len());
    let table: Vec<i64> = (0..len as i64).map(|i| 1 + i).collect();
    let ghosts = (0..(ghosts_of * rows.row_len()) as i64).map(|i| 1000 + i);
    let ghosts: Vec<i64> = ghosts.collect();
    let mut out = vec![-7; other];
    pick(&rows, &table, &ghosts, keys, &mut out);
    // Rows are row-major over their dims on either side; there, the first dim steps least.
    let extents: Vec<usize> = (0..3).filter(|&d| !keyed[d]).map(|d| shape[d]).collect();
    let place = |j: usize, r: usize| {
        let (mut rest, mut at) = (r, Vec::new());
        for &n in extents.iter().rev() {
            at.push(rest % n);
            rest /= n;
        }
        let (mut step, mut to) = (keys.len(), j);
        for (&i, &n) in at.iter().rev().zip(&extents) {
            to += i * step;
            step *= n;
        }
        to
    };
    let value = |key: i64, r: usize| match usize::try_from(key) {
        Err(_) => 0,
        Ok(key) if key < rows.keys() => table[element(shape, keyed, key, r)],
        Ok(key) => ghosts[(key - rows.keys()) * rows.row_len() + r],
    };
    for (j, &key) in keys.iter().enumerate() {
        for r in 0..rows.row_len() {
            assert_eq!(
                out[place(j, r)],
                value(key, r),
                "{shape:?} {keyed:?} {keys:?}"
            );
        }
    }
    // Folding what was picked into zeros counts how often each was.
    let (mut sums, mut away) = (vec![0; len], vec![0; ghosts.len()]);
    fold(RowFold::Sum, &rows, &mut sums, &mut away, keys, &out);
    let times = |key: usize| keys.iter().filter(|&&k| k == key as i64).count() as i64;
    for r in 0..rows.row_len() {
        for key in 0..rows.keys() {
            let at = element(shape, keyed, key, r);
            assert_eq!(sums[at], times(key) * table[at]);
        }
        for ghost in 0..ghosts_of {
            let at = ghost * rows.row_len() + r;
            assert_eq!(away[at], times(rows.keys() + ghost) * ghosts[at]);
        }
    }
}

#[test]
fn maxima_know_nan_and_the_signs_of_zeros() {
    let max = |a: f64, b: f64| [a.larger(b), b.larger(a)];
    assert!(max(f64::NAN, 3.0).iter().all(|x| x.is_nan()));
    assert_eq!(max(-0.0, 0.0).map(f64::is_sign_negative), [false; 2]);
    let min = |a: f64, b: f64| [a.smaller(b), b.smaller(a)];
    assert!(min(f64::NAN, 3.0).iter().all(|x| x.is_nan()));
    assert_eq!(min(-0.0, 0.0).map(f64::is_sign_negative), [true; 2]);
    assert_eq!((max(1.0, 2.0), min(1.0, 2.0)), ([2.0; 2], [1.0; 2]));
}

#[test]
fn single_elements_are_folded_from_where_they_stand() {
    // Three keys two apart in the table, and one ghost; elements are three apart, in lines of two.
    let rows = Rows::new(&[(3, 2)], &[(2, 10), (2, 3)], &[]);
    let src: Vec<i64> = (0..14).map(|i| 1 << i).collect();
    let (mut table, mut ghosts) = ([0; 6], [0]);
    let keys = [2, 0, 3, 2];
    fold(RowFold::Sum, &rows, &mut table, &mut ghosts, &keys, &src);
    assert_eq!(
        (table, ghosts),
        ([1 << 3, 0, 0, 0, 1 | 1 << 13, 0], [1 << 10])
    );
    let mut out = [9; 14];
    pick(&rows, &table, &ghosts, &keys, &mut out);
    assert_eq!(
        [out[0], out[3], out[10], out[13]],
        [1 | 1 << 13, 8, 1 << 10, 1 | 1 << 13]
    );
    assert_eq!(out.iter().filter(|&&x| x == 9).count(), 10);
}

/// Sums with weights are those of picked rows, each times its weight; and the adjoints are adjoints.
#[test]
fn weighted_sums_are_those_of_picked_rows() {
    let mut draw = Draw(11);
    for [keys, ghosts_of, places, taps, channels, parts] in [
        [5, 2, 7, 4, 3, 1],
        [9, 0, 3, 1, 40, 1],
        [4, 3, 6, 8, 17, 2],
        [3, 1, 2, 2, 5, 3],
    ] {
        // Rows of parts that lie apart in the table, and the other way round at the places.
        let width = channels * parts;
        let dims = [
            RowDim::new(parts, keys * channels, 1),
            RowDim::new(channels, 1, parts),
        ];
        let rows = |list: &[(usize, usize)]| Rows::new(&[(keys, channels)], list, &dims);
        let mut numbers = |len: usize| -> Vec<f64> {
            (0..len)
                .map(|_| draw.below(200) as f64 / 8.0 - 12.0)
                .collect()
        };
        let (table, ghosts) = (numbers(keys * width), numbers(ghosts_of * width));
        let (weights, dy) = (numbers(places * taps), numbers(places * width));
        let named: Vec<i64> = (0..places * taps)
            .map(|_| draw.below(keys + ghosts_of + 1) as i64 - 1)
            .collect();
        let mut picked = vec![9.0; places * taps * width];
        pick(
            &rows(&[(places * taps, width)]),
            &table,
            &ghosts,
            &named,
            &mut picked,
        );
        let list = rows(&[(places, width), (taps, 0)]);
        let mut sums = vec![9.0; places * width];
        weigh(&list, &table, &ghosts, &named, &weights, &mut sums);
        let mut of_weights = vec![9.0; places * taps];
        row_dots(&list, &table, &ghosts, &named, &dy, &mut of_weights);
        let (mut back, mut away) = (vec![1.0; table.len()], vec![0.0; ghosts.len()]);
        spread(&list, &mut back, &mut away, &named, &weights, &dy);
        let spread_by_one: Vec<f64> = (0..places * taps * width)
            .map(|i| dy[i / width / taps * width + i % width] * weights[i / width])
            .collect();
        let (mut expected, mut expected_away) = (vec![1.0; table.len()], vec![0.0; ghosts.len()]);
        let by_one = rows(&[(places * taps, width)]);
        fold(
            RowFold::Sum,
            &by_one,
            &mut expected,
            &mut expected_away,
            &named,
            &spread_by_one,
        );
        assert_eq!((back, away), (expected, expected_away));
        for place in 0..places {
            for e in 0..width {
                let of = |tap: usize| (place * taps + tap) * width + e;
                let sum: f64 = (0..taps)
                    .map(|t| weights[place * taps + t] * picked[of(t)])
                    .sum();
                assert_eq!(sums[place * width + e], sum);
            }
            for tap in 0..taps {
                let at = place * taps + tap;
                let dot: f64 = (0..width)
                    .map(|e| picked[at * width + e] * dy[place * width + e])
                    .sum();
                assert_eq!(of_weights[at], dot);
            }
        }
    }
}

/// Products of rows with the matrices that their keys name, however rows, matrices and results lie, and their adjoint.
#[test]
fn products_by_key_are_those_of_each_row() {
    use shard_kernels::gemm::gemm;
    use shard_kernels::{View, ViewMut};
    let mut draw = Draw(11);
    for round in 0..200 {
        let [rows, k, n, own, others] = [300, 5, 4, 4, 3].map(|most| draw.below(most));
        let rows = if round % 4 == 0 { rows } else { rows % 12 };
        let count = own + others;
        let mut keys: Vec<i64> = (0..rows)
            .map(|_| draw.below(count + 1) as i64 - 1)
            .collect();
        if round % 3 == 0 {
            keys.sort_unstable();
        }
        let mut numbers =
            |len: usize| -> Vec<f64> { (0..len).map(|_| draw.below(9) as f64 - 4.0).collect() };
        let (x, y) = (numbers(rows * k), numbers(rows * n));
        let (table, ghosts) = (numbers(own * k * n), numbers(others * k * n));
        let at = |key: usize, i: usize, j: usize| match key.checked_sub(own) {
            None => table[(key * k + i) * n + j],
            Some(key) => ghosts[(key * k + i) * n + j],
        };
        // Columns of the rows may stand one behind the other, in memory and in the result.
        let turned = round % 2 == 1;
        let laid: Vec<f64> = match turned {
            true => (0..k * rows)
                .map(|e| x[e % rows.max(1) * k + e / rows.max(1)])
                .collect(),
            false => x.clone(),
        };
        let view = match turned {
            true => View::contiguous(&laid, &[k, rows]).permute(&[1, 0]),
            false => View::contiguous(&laid, &[rows, k]),
        };
        let mut out = vec![f64::NAN; rows * n];
        let mut to = match turned {
            true => ViewMut::contiguous(&mut out, &[n, rows]).permute(&[1, 0]),
            false => ViewMut::contiguous(&mut out, &[rows, n]),
        };
        let tables = [
            View::contiguous(&table, &[own, k, n]),
            View::contiguous(&ghosts, &[others, k, n]),
        ];
        multiply_each(&keys, &view, [&tables[0], &tables[1]], &mut to, gemm::<f64>);
        for (i, &key) in keys.iter().enumerate() {
            for j in 0..n {
                let found = out[if turned { j * rows + i } else { i * n + j }];
                let expected: f64 = match usize::try_from(key) {
                    Ok(key) => (0..k).map(|l| x[i * k + l] * at(key, l, j)).sum(),
                    Err(_) => 0.0,
                };
                assert_eq!(found, expected, "{keys:?} {k} {n}");
            }
        }
        let b = View::contiguous(&y, &[rows, n]);
        for goes_on in [false, true] {
            let (mut sums, mut away) = (table.clone(), vec![f64::NAN; ghosts.len()]);
            let mut own_sums = ViewMut::contiguous(&mut sums, &[own, k, n]);
            let mut away_sums = ViewMut::contiguous(&mut away, &[others, k, n]);
            let into = [&mut own_sums, &mut away_sums];
            outer_each(&keys, [&view, &b], into, goes_on, gemm::<f64>);
            for key in 0..count {
                for (i, j) in (0..k).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let mine = (0..rows).filter(|&r| keys[r] == key as i64);
                    let sum: f64 = mine.map(|r| x[r * k + i] * y[r * n + j]).sum();
                    let (found, before) = match key.checked_sub(own) {
                        None => (
                            sums[(key * k + i) * n + j],
                            f64::from(u8::from(goes_on)) * at(key, i, j),
                        ),
                        Some(away_key) => (away[(away_key * k + i) * n + j], 0.0),
                    };
                    assert_eq!(found, before + sum, "{keys:?} {goes_on}");
                }
            }
        }
    }
}

/// Rows in 16 bits are folded as rows in `f32` are, and where the table has 16 bits too, rounded at the end: long and short ones, one behind the
/// other or lines apart, named by many keys or few, beside numbers that were there.
#[test]
fn rows_in_16_bits_are_folded_in_full() {
    use half::{bf16, f16};
    folded_in_full(bf16::from_f32, bf16::to_f32);
    folded_in_full(f16::from_f32, f16::to_f32);
}

fn folded_in_full<T: shard_kernels::reduce::Half + Default>(
    narrow: impl Fn(f32) -> T,
    widen: impl Fn(T) -> f32,
) {
    let bits = |all: &[T]| all.iter().map(|&x| widen(x).to_bits()).collect::<Vec<_>>();
    let mut draw = Draw(5);
    for [keys, places, lines, run, apart] in [
        [5, 7, 1, 16, 1],
        [40, 11, 1, 600, 1],
        [90, 7, 1, 33, 1],
        [3, 9, 2, 20, 1],
        [90, 9, 1, 1, 1],
        [6, 40, 1, 1, 1],
        [4, 12, 3, 5, 1],
        [7, 5, 1, 6, 7],
        [0, 3, 1, 17, 1],
        [4, 0, 1, 17, 1],
        [4, 3, 1, 0, 1],
    ] {
        let width = lines * run;
        // Elements of a row stand side by side in the table, or as far apart as there are rows.
        let (key_step, dims) = match apart {
            1 => (
                run,
                vec![
                    RowDim::new(lines, keys * run, 1),
                    RowDim::new(run, 1, lines),
                ],
            ),
            _ => (1, vec![RowDim::new(run, keys, 1)]),
        };
        // Lists of two dims, which do not follow each other.
        let list = [(places, 2 * width), (2, width * (2 * places + 1))];
        let rows = Rows::new(&[(keys, key_step)], &list, &dims);
        let len = 1 + (2 * places + 1) * 2 * width;
        let ghosts_of = 2;
        let mut numbers = |len: usize| -> Vec<T> {
            let mut number = || narrow(draw.below(4000) as f32 / 64.0 - 31.0);
            (0..len).map(|_| number()).collect()
        };
        let (src, base) = (numbers(len), numbers(keys * width));
        let full = |of: &[T]| of.iter().map(|&x| widen(x)).collect::<Vec<_>>();
        for how in [RowFold::Sum, RowFold::Prod, RowFold::Max, RowFold::Min] {
            for round in 0..4 {
                let ghosts_of = if round == 3 { ghosts_of } else { 0 };
                let named: Vec<i64> = (0..2 * places)
                    .map(|_| draw.below(keys + ghosts_of + 1) as i64 - 1)
                    .collect();
                let begins = match round {
                    1 => full(&base),
                    _ => vec![f32::identity(how); base.len()],
                };
                let (mut table, mut away) = (begins.clone(), vec![1.0; ghosts_of * width]);
                fold(how, &rows, &mut table, &mut away, &named, &full(&src));
                let (mut own, mut others) = (begins, vec![1.0; ghosts_of * width]);
                fold_widened(how, &rows, &mut own, &mut others, &named, &src);
                assert_eq!((&own, &others), (&table, &away), "{how:?} {keys} {width}");
                if ghosts_of == 0 {
                    let base = (round == 1).then_some(&base[..]);
                    let mut rounded = vec![T::default(); table.len()];
                    fold_rounded(how, &rows, base, &named, &src, &mut rounded);
                    let expected: Vec<T> = table.iter().map(|&x| narrow(x)).collect();
                    assert_eq!(bits(&rounded), bits(&expected), "{how:?} {keys} {width}");
                }
            }
        }
    }
}

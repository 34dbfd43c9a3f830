use crate::testing::Rng;
use shard_kernels::View;
use shard_kernels::best::*;
use shard_kernels::whole::Number;

fn found<T: Number>(largest: bool, x: &View<'_, T>, dims: &[usize], steps: &[isize]) -> Vec<i64> {
    let mut all = Vec::new();
    best(largest, x, dims, steps, &mut |cell, found| {
        all.push((cell, found.map_or(-1, |(_, index)| index)));
    });
    all.sort_unstable();
    all.into_iter().map(|(_, index)| index).collect()
}

#[test]
fn the_first_of_equal_ones_along_rows_and_columns() {
    let x = [3, 9, 9, 1, 9, 1];
    let rows = View::contiguous(&x, &[2, 3]);
    assert_eq!(found(true, &rows, &[1], &[1]), [1, 1]);
    assert_eq!(found(false, &rows, &[1], &[1]), [0, 0]);
    assert_eq!(found(true, &rows, &[0], &[1]), [0, 0, 0]);
    assert_eq!(found(false, &rows, &[0], &[1]), [1, 0, 1]);
    assert_eq!(found(true, &rows, &[0, 1], &[3, 1]), [1]);
    assert_eq!(found(false, &rows.permute(&[1, 0]), &[0, 1], &[2, 1]), [1]);
}

#[test]
fn nan_is_before_all_numbers() {
    let x = [1.0, f64::NAN, f64::INFINITY, f64::NAN];
    for largest in [true, false] {
        assert_eq!(found(largest, &View::contiguous(&x, &[4]), &[0], &[1]), [1]);
        assert_eq!(
            found(largest, &View::contiguous(&x, &[2, 2]), &[0], &[1])[1],
            0
        );
    }
    assert_eq!(
        found(true, &View::contiguous(&x[..0], &[0, 2]), &[0], &[1]),
        [-1, -1]
    );
}

/// Short rows, many of which are looked at together, and long runs, of which vectors find the extreme, against a plain search; with equal ones,
/// with NaN and infinities.
fn runs<T: Number>(number: impl Fn(usize) -> T) {
    let mut rng = Rng::new(11);
    for n in [2, 3, 10, 11, 15, 16, 17, 63, 64, 65, 200, 1500] {
        let rows = if n < 16 { 37 } else { 3 };
        for many in [1, 4, 1000] {
            let x: Vec<T> = (0..rows * n).map(|_| number(rng.within(0, many))).collect();
            for largest in [true, false] {
                let plain = |row: &[T]| {
                    let mut best = 0;
                    for (i, v) in row.iter().enumerate() {
                        let (old, is_old_nan) = (row[best], row[best].is_nan());
                        let further = if largest { *v > old } else { *v < old };
                        if !is_old_nan && (further || v.is_nan()) {
                            best = i;
                        }
                    }
                    best as i64
                };
                let expected: Vec<i64> = x.chunks(n).map(plain).collect();
                assert_eq!(
                    found(largest, &View::contiguous(&x, &[rows, n]), &[1], &[1]),
                    expected,
                    "{n} of {many}, largest: {largest}"
                );
            }
        }
    }
}

#[test]
fn the_first_of_equal_ones_in_short_and_long_runs() {
    let special = |i: usize| match i {
        997 => f32::NAN,
        998 => f32::INFINITY,
        999 => f32::NEG_INFINITY,
        i => i as f32 - 2.0,
    };
    runs(special);
    runs(|i| f64::from(special(i)));
    runs(|i| i as i64 - 2);
    runs(|i| (i % 256) as u8);
    // Of several the first NaN counts.
    runs(|i| if i % 3 == 0 { f32::NAN } else { i as f32 });
    // Zeros are equal, whatever their sign: the first one is found, with its own.
    let x: Vec<f32> = (0..40)
        .map(|i| if i % 3 == 1 { 0.0 } else { -0.0 })
        .collect();
    best(
        true,
        &View::contiguous(&x, &[40]),
        &[0],
        &[1],
        &mut |_, found| {
            let (value, index) = found.expect("a run of 40");
            assert!(value.is_sign_negative() && index == 0);
        },
    );
}

/// A row of two dims that lie one behind the other is one run, whose indices may have gaps.
#[test]
fn indices_of_several_dims_have_gaps() {
    let x: Vec<i32> = (0..20 * 6).map(|i| (i + i / 6) % 6).collect();
    let rows = View::contiguous(&x, &[20, 2, 3]);
    let expected: Vec<i64> = (x.chunks(6))
        .map(|row| row.iter().position(|x| *x == 5).expect("one of six"))
        .map(|at| (at / 3 * 100 + at % 3) as i64)
        .collect();
    assert!(expected.contains(&100));
    assert_eq!(found(true, &rows, &[1, 2], &[100, 1]), expected);
}

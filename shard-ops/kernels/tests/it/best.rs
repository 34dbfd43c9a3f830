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

use shard_kernels::triangle::*;
use shard_kernels::{Positions, View, ViewMut};

#[test]
fn triangles_are_cut_at_global_positions() {
    let x: Vec<i32> = (1..=2 * 3 * 4).collect();
    let x = View::contiguous(&x, &[2, 3, 4]);
    // The same with gaps.
    let apart: Vec<i32> = x.to_vec().into_iter().flat_map(|x| [x, -7]).collect();
    let apart = View::new(&apart, 0, &[2, 3, 4], &[24, 8, 2]);
    let (rows, columns) = ([1, 2, 6], [0, 2, 3, 7]);
    for diagonal in [-9, -2, 0, 1, 3, i64::MAX, i64::MIN] {
        for (upper, x) in [(false, &x), (true, &x), (false, &apart), (true, &apart)] {
            let mut out = vec![-1; 24];
            let to = &mut ViewMut::contiguous(&mut out, &[2, 3, 4]);
            let of = |list| Positions::List(list);
            triangle(upper, diagonal, of(&rows), of(&columns), x, to);
            for (i, out) in out.iter().enumerate() {
                let (row, column) = (rows[i / 4 % 3], columns[i % 4]);
                let apart = i128::from(column - row);
                let diagonal = i128::from(diagonal);
                let keeps = if upper {
                    apart >= diagonal
                } else {
                    apart <= diagonal
                };
                assert_eq!(*out, if keeps { i as i32 + 1 } else { 0 }, "{i} {diagonal}");
            }
        }
    }
}

#[test]
fn diagonals_are_put_where_positions_meet() {
    let x = [1, 2, 3, 4, 5, 6];
    let mut out = [-1; 18];
    let to = &mut ViewMut::contiguous(&mut out, &[2, 3, 3]);
    let (rows, columns) = (Positions::List(&[1, 4, 5]), Positions::from(4));
    embed(rows, columns, &View::contiguous(&x, &[2, 3]), to);
    let expected = [0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0];
    assert_eq!(out, expected);
    // And taken from there, those whose columns are not there aside.
    let mut back = [-1; 6];
    let to = &mut ViewMut::contiguous(&mut back, &[2, 3]);
    take(rows, columns, &View::contiguous(&out, &[2, 3, 3]), to);
    assert_eq!(back, [0, 2, 3, 0, 5, 6]);
}

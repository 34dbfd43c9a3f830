use shard_kernels::cells::*;
use shard_kernels::{View, ViewMut};

#[test]
fn elements_meet_their_cells_in_any_order_of_dims() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let view = View::contiguous(&x, &[2, 3]);
    let weights = [10.0, 100.0, 1000.0];
    let mut out = [0.0; 6];
    let to = &mut ViewMut::contiguous(&mut out, &[2, 3]);
    map_cells(&view, &[0], to, |x, cell| x * weights[cell]);
    assert_eq!(out, [10.0, 200.0, 3000.0, 40.0, 500.0, 6000.0]);
    let to = &mut ViewMut::contiguous(&mut out, &[3, 2]);
    map_cells(&view.permute(&[1, 0]), &[1], to, |x, cell| {
        x * weights[cell]
    });
    assert_eq!(out, [10.0, 40.0, 200.0, 500.0, 3000.0, 6000.0]);
}

use shard_kernels::view::*;
use std::borrow::Cow;

#[test]
fn rows_join_and_carry() {
    let data: Vec<i32> = (0..24).collect();
    let whole = View::contiguous(&data, &[2, 3, 4]);
    let mut runs = Vec::new();
    for_each_row(whole.shape(), [whole.strides()], [0], |[at], n, [step]| {
        runs.push((at, n, step));
    });
    assert_eq!(runs, [(0, 24, 1)]);

    let inner = whole.sub_box(&[0, 1, 1], &[2, 2, 3]);
    assert_eq!(inner.to_vec(), [5, 6, 7, 9, 10, 11, 17, 18, 19, 21, 22, 23]);
    assert_eq!(
        inner.permute(&[2, 0, 1]).to_vec(),
        [5, 9, 17, 21, 6, 10, 18, 22, 7, 11, 19, 23]
    );
    assert_eq!(inner.get(&[1, 0, 2]), 19);
    assert!(!inner.is_contiguous() && whole.is_contiguous());
}

#[test]
fn zero_d_empty_negative_and_broadcast() {
    let data = [1, 2, 3];
    assert_eq!(View::new(&data, 1, &[], &[]).to_vec(), [2]);
    assert_eq!(View::new(&data, 0, &[0, 9], &[5, 5]).to_vec(), [0; 0]);
    assert_eq!(View::new(&data, 2, &[3], &[-1]).to_vec(), [3, 2, 1]);
    let row = View::contiguous(&data, &[3]);
    assert_eq!(
        row.broadcast_to(&[2, 3]).map(|v| v.to_vec()),
        Some(vec![1, 2, 3, 1, 2, 3])
    );
    assert!(row.broadcast_to(&[2, 4]).is_none() && row.broadcast_to(&[]).is_none());
}

#[test]
fn views_of_a_shape_are_borrowed_and_others_repeated() {
    let data = [1, 2, 3];
    let line = View::line(&data);
    assert_eq!((line.shape(), line.strides()), (&[3][..], &[1][..]));
    assert!(matches!(line.shaped(&[3]), Some(Cow::Borrowed(_))));
    let repeated = line.shaped(&[2, 3]).unwrap();
    assert_eq!(repeated.to_vec(), [1, 2, 3, 1, 2, 3]);
    assert!(line.shaped(&[2]).is_none());

    let mut written = [0; 2];
    let mut out = ViewMut::line(&mut written);
    assert_eq!((out.shape(), out.strides()), (&[2][..], &[1][..]));
    out.data_mut()[1] = 7;
    assert_eq!(written, [0, 7]);
}

#[test]
fn an_element_is_set_where_the_view_has_it() {
    let mut data = [0; 7];
    let mut out = ViewMut::new(&mut data, 6, &[2, 3], &[-3, -1]);
    out.set(&[0, 0], 1);
    out.set(&[1, 2], 2);
    out.set(&[0, 1], 3);
    assert_eq!(data, [0, 2, 0, 0, 0, 3, 1]);
}

#[test]
#[should_panic(expected = "reach 1..=3, data holds 3")]
fn runs_outside_their_data_are_refused() {
    View::new(&[0; 3], 1, &[3], &[1]);
}

#[test]
fn stepped_views_write_their_phase_only() {
    let mut data = [0; 10];
    let view = ViewMut::contiguous(&mut data, &[2, 5]);
    let mut odd = view.stepped(&[0, 1], &[1, 2], &[2, 2]);
    assert_eq!((odd.offset(), odd.strides()), (1, &[5, 2][..]));
    odd.set(&[0, 0], 7);
    odd.set(&[1, 1], 8);
    assert_eq!(data, [0, 7, 0, 0, 0, 0, 0, 0, 8, 0]);
}

#[test]
#[should_panic(expected = "index [0, 2] lies outside shape [2, 2]")]
fn elements_outside_a_view_are_not_written() {
    let mut data = [0; 10];
    let view = ViewMut::contiguous(&mut data, &[2, 5]);
    view.stepped(&[0, 1], &[1, 2], &[2, 2]).set(&[0, 2], 7);
}

#[test]
#[should_panic(expected = "reach 0..=4, data holds 4")]
fn views_outside_their_data_are_refused() {
    View::new(&[0; 4], 0, &[3], &[2]);
}

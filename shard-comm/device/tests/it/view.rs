use shard_device::Strided;
use shard_device::view::is_dense;
use smallvec::smallvec;

#[test]
fn negative_strides_reach_down() {
    let flip = Strided::new(3, smallvec![4], smallvec![-1]);
    assert!(flip.validate(4).is_ok());
    assert!(flip.validate(3).is_err());
    assert!(
        Strided::new(2, smallvec![4], smallvec![-1])
            .validate(9)
            .is_err()
    );
}

#[test]
fn empty_views_fit_anywhere() {
    assert!(
        Strided::new(99, smallvec![0, 3], smallvec![3, 1])
            .validate(0)
            .is_ok()
    );
}

#[test]
fn absurd_strides_are_an_error_not_an_overflow() {
    let far = Strided::new(
        0,
        smallvec![usize::MAX, usize::MAX],
        smallvec![isize::MAX; 2],
    );
    assert!(far.validate(10).is_err());
}

#[test]
fn density_ignores_unit_dims() {
    assert!(is_dense(&[2, 1, 3], &[3, 77, 1]));
    assert!(!is_dense(&[2, 3], &[4, 1]));
}

//! Whole tensors that tests compare.

use shard_ops::testing::{Tensor, Tolerance, difference};

fn t(values: &[f64]) -> Tensor {
    Tensor::new([values.len()], values.to_vec())
}

#[test]
fn floats_are_compared_to_the_largest() {
    assert_eq!(
        difference(&t(&[1e6, 1.0]), &t(&[1e6, 1.0005]), Tolerance::F64),
        None
    );
    assert!(difference(&t(&[1.0, 1.0]), &t(&[1.0, 1.0005]), Tolerance::F64).is_some());
    let text = difference(&t(&[1.0, 5.0, 2.0]), &t(&[1.1, 7.0, 2.0]), Tolerance::F64).unwrap();
    assert!(text.starts_with("2 of 3") && text.contains("[1]"), "{text}");
}

#[test]
fn nan_and_infinity_are_data() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    assert_eq!(
        difference(&t(&[nan, inf]), &t(&[nan, inf]), Tolerance::F64),
        None
    );
    for (e, g) in [
        ([nan, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [nan, 1.0]),
        ([inf, 1.0], [-inf, 1.0]),
    ] {
        assert!(
            difference(&t(&e), &t(&g), Tolerance::F64).is_some(),
            "{e:?} {g:?}"
        );
    }
}

#[test]
fn other_types_are_exact() {
    let i = |v: &[i64]| Tensor::new([v.len()], v.to_vec());
    assert_eq!(difference(&i(&[1, 2]), &i(&[1, 2]), Tolerance::F64), None);
    assert!(
        difference(&i(&[1, 2]), &i(&[1, 3]), Tolerance::F64)
            .unwrap()
            .contains("[1]")
    );
    assert!(
        difference(&i(&[1]), &t(&[1.0]), Tolerance::F64)
            .unwrap()
            .contains("i64")
    );
}

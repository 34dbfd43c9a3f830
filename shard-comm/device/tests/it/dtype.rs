use shard_device::{Bool, DType, Element, Scalar, dispatch_dtype};

#[test]
fn tags_agree_with_types() {
    for dtype in DType::ALL {
        dispatch_dtype!(dtype, T => {
            assert_eq!(T::DTYPE, dtype);
            assert_eq!(size_of::<T>(), dtype.size());
            assert_eq!(T::from_f64(1.0).to_f64(), 1.0);
            assert_eq!(T::from_scalar(Scalar::Bool(true)).to_f64(), 1.0);
        });
    }
}

#[test]
fn bool_compares_by_truth() {
    let odd: &[Bool] = bytemuck::cast_slice(&[2u8]);
    assert_eq!(odd[0], Bool::TRUE);
}

#[test]
fn integers_keep_their_last_digit() {
    let big = (1i64 << 53) + 1;
    assert_eq!(i64::from_scalar(Scalar::I64(big)), big);
    assert_eq!(u8::from_scalar(Scalar::I64(300)), 255);
}

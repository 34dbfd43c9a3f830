//! NumPy's files, for tests of what reads them.

use ndarray::{ArrayRef, Dimension};
use shard_tensor::Bool;
use shard_tensor::half::f16;

/// A type of elements.
pub(crate) trait Element: Copy {
    /// What NumPy calls it.
    const DESCR: &str;

    /// Its bytes, the lowest first.
    fn bytes(self) -> impl AsRef<[u8]>;
}

macro_rules! numbers {
    ($($number:ty: $descr:literal;)*) => {$(
        impl Element for $number {
            const DESCR: &str = $descr;

            fn bytes(self) -> impl AsRef<[u8]> {
                self.to_le_bytes()
            }
        }
    )*};
}

numbers! {
    f64: "<f8";
    f32: "<f4";
    f16: "<f2";
    i64: "<i8";
    i32: "<i4";
    u8: "|u1";
}

impl Element for Bool {
    const DESCR: &str = "|b1";

    fn bytes(self) -> impl AsRef<[u8]> {
        [u8::from(self.get())]
    }
}

/// A file of version 1, as NumPy writes it: in the order of the array, if that is one of the two it knows.
pub(crate) fn bytes<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Vec<u8> {
    let turned = array.t();
    let fortran = !array.is_standard_layout() && turned.is_standard_layout();
    let extents: Vec<String> = array.shape().iter().map(usize::to_string).collect();
    let extents = match &extents[..] {
        [one] => format!("{one},"),
        all => all.join(", "),
    };
    let order = if fortran { "True" } else { "False" };
    let descr = T::DESCR;
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({extents}), }}");
    // The elements begin at a multiple of 64 bytes.
    let len = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend(u16::try_from(len).expect("few dims").to_le_bytes());
    file.extend(format!("{header:<0$}\n", len - 1).bytes());
    let ordered = if fortran { turned } else { array.view() };
    for &element in ordered {
        file.extend(element.bytes().as_ref());
    }
    file
}

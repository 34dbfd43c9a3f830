//! NumPy's files of float32, of which any bytes may be given.

use ndarray::{Array, Dimension};
use ndarray_npy::npy::header::{Header, ReadHeaderError};
use ndarray_npy::{ReadNpyError, ReadNpyExt};

/// The longest header that is read, as in NumPy, and for its reason: what it says is a literal of Python, and these
/// may take any time to be understood.
const LONGEST_HEADER: usize = 10_000;

/// Brackets that the header of a plain array opens: of a dict, and in it of a tuple, the shape. The reader of literals takes
/// twice the time for each more within another.
const BRACKETS: usize = 2;

/// Why bytes are no array of float32.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpyError {
    /// It does not begin as files of NumPy do.
    #[error("not a NumPy file: it does not begin with \\x93NUMPY and a version")]
    Magic,
    /// The header ends after the file does, or is longer than any of a plain array.
    #[error("a header of {len} bytes, in a file of {file}; at most {LONGEST_HEADER} are read")]
    HeaderLength { len: usize, file: usize },
    /// The header is of no plain array.
    #[error("a header with {brackets} opening brackets; that of a plain array has {BRACKETS}")]
    Nested { brackets: usize },
    /// The header cannot be understood.
    #[error(transparent)]
    Header(#[from] ReadHeaderError),
    /// There are more or fewer elements than the header says.
    #[error("the header says float32 of shape {shape:?}, and {bytes} bytes follow it")]
    Size { shape: Vec<usize>, bytes: usize },
    /// Elements of another type, or another number of dims.
    #[error(transparent)]
    Array(#[from] ReadNpyError),
}

/// The array in these bytes. What is allocated is at most a few times the bytes there are, whatever they say.
///
/// # Errors
/// If they are not a NumPy file of float32 with the dims of `D`, and nothing after it.
pub(crate) fn read<D: Dimension>(bytes: &[u8]) -> Result<Array<f32, D>, NpyError> {
    let after = after_plain_header(bytes)?;
    // Never called on other headers: it reserves what they announce, and recurses as they are nested.
    let header = Header::from_reader(&mut &bytes[..after])?;
    let follow = bytes.len() - after;
    // Extents beside a zero count too: an array of none of them has strides all the same.
    let size = header
        .shape
        .iter()
        .try_fold(size_of::<f32>(), |n, &extent| n.checked_mul(extent.max(1)))
        .filter(|&size| isize::try_from(size).is_ok())
        .map(|size| if header.shape.contains(&0) { 0 } else { size });
    if size != Some(follow) {
        return Err(NpyError::Size {
            shape: header.shape,
            bytes: follow,
        });
    }
    Ok(Array::read_npy(bytes)?)
}

/// Where the elements begin.
fn after_plain_header(bytes: &[u8]) -> Result<usize, NpyError> {
    let (start, len) = match *bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, a, b, ..] => {
            (10, usize::from(u16::from_le_bytes([a, b])))
        }
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, 0, a, b, c, d, ..] => {
            (12, u32::from_le_bytes([a, b, c, d]) as usize)
        }
        _ => return Err(NpyError::Magic),
    };
    let header = Some(len)
        .filter(|&len| len <= LONGEST_HEADER)
        .and_then(|len| bytes.get(start..start + len))
        .ok_or(NpyError::HeaderLength {
            len,
            file: bytes.len(),
        })?;
    let opening = header.iter().filter(|b| matches!(b, b'(' | b'[' | b'{'));
    match opening.count() {
        brackets if brackets > BRACKETS => Err(NpyError::Nested { brackets }),
        _ => Ok(start + len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array2, Ix2, Ix3, array};
    use ndarray_npy::WriteNpyExt;

    /// A file of version 1 with this header.
    fn file(header: &str, elements: &[u8]) -> Vec<u8> {
        let len = u16::try_from(header.len() + 1).unwrap().to_le_bytes();
        [
            b"\x93NUMPY\x01\x00",
            &len[..],
            header.as_bytes(),
            b"\n",
            elements,
        ]
        .concat()
    }

    fn shaped(shape: &str, elements: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        file(&header, elements)
    }

    #[test]
    fn what_was_written_is_read() {
        let rows = array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
        for array in [rows.clone(), rows.reversed_axes()] {
            let mut bytes = Vec::new();
            array.write_npy(&mut bytes).unwrap();
            assert_eq!(read::<Ix2>(&bytes).unwrap(), array);
            assert!(matches!(read::<Ix3>(&bytes), Err(NpyError::Array(_))));
            let short = &bytes[..bytes.len() - 1];
            assert!(matches!(
                read::<Ix2>(short),
                Err(NpyError::Size { bytes: 23, .. })
            ));
        }
        // In another order of bytes.
        let big = file(
            "{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1), }",
            &2.5_f32.to_be_bytes(),
        );
        assert_eq!(read::<Ix2>(&big).unwrap(), array![[2.5]]);
        let none: Array2<f32> = read(&shaped("(0, 7)", &[])).unwrap();
        assert_eq!(none.dim(), (0, 7));
    }

    #[test]
    fn extents_beyond_memory_are_refused() {
        for shape in [
            "(9223372036854775807, 3)",
            "(0, 9223372036854775807, 9223372036854775807)",
            "(9223372036854775807, 0)",
            "(18446744073709551616,)",
        ] {
            assert!(read::<Ix2>(&shaped(shape, &[])).is_err(), "{shape}");
        }
    }

    /// The reader of literals tries each bracket in two ways: 16 took it seconds, and 20 more than anyone waits.
    #[test]
    fn nested_headers_are_refused() {
        for nested in ["[".repeat(60), "(".repeat(9000), "{".repeat(40)] {
            let brackets = nested.len();
            let refused = read::<Ix2>(&file(&nested, &[]));
            assert!(
                matches!(refused, Err(NpyError::Nested { brackets: n }) if n == brackets),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn headers_longer_than_the_file_or_than_any_are_refused() {
        // 4 GiB of header.
        let announced = b"\x93NUMPY\x03\x00\xff\xff\xff\xff{}";
        let long = file(&" ".repeat(LONGEST_HEADER), &[]);
        for bytes in [announced.as_slice(), &long, &long[..50]] {
            let refused = read::<Ix2>(bytes);
            assert!(
                matches!(refused, Err(NpyError::HeaderLength { .. })),
                "{refused:?}"
            );
        }
        assert!(matches!(
            read::<Ix2>(b"\x93NUMPY\x04\x00"),
            Err(NpyError::Magic)
        ));
    }
}

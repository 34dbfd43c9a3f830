//! NumPy's files of numbers and truth values, of which any bytes may be given.

use ndarray::{Array, Dimension, ShapeBuilder, ShapeError};
use shard_tensor::Bool;
use shard_tensor::half::f16;

/// The longest header that is read, as in NumPy. That of an array of any dims is a few hundred bytes long.
const LONGEST_HEADER: usize = 10_000;

/// A type of elements.
pub(crate) trait Element: Copy {
    /// What NumPy calls it, without the order of its bytes.
    const KIND: &str;

    /// The element that these bytes are, the lowest first; nothing if they are more or fewer.
    fn of(bytes: &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty: $kind:literal;)*) => {$(
        impl Element for $number {
            const KIND: &str = $kind;

            fn of(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

numbers! {
    f64: "f8";
    f32: "f4";
    f16: "f2";
    i64: "i8";
    i32: "i4";
    u8: "u1";
}

impl Element for Bool {
    const KIND: &str = "b1";

    fn of(bytes: &[u8]) -> Option<Self> {
        u8::of(bytes).map(|byte| Self::from(byte != 0))
    }
}

/// Why bytes are no array of some type.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NpyError {
    /// It does not begin as files of NumPy do.
    #[error("not a NumPy file: it does not begin with \\x93NUMPY and a version")]
    Magic,
    /// The header ends after the file does, or is longer than any of a plain array.
    #[error("a header of {len} bytes, in a file of {file}; at most {LONGEST_HEADER} are read")]
    HeaderLength { len: usize, file: usize },
    /// The header is of no plain array.
    #[error("byte {at} of the header is not {expected}")]
    Header { at: usize, expected: &'static str },
    /// Elements of another type.
    #[error("elements of type {found:?}, where {expected:?} in any order of bytes are read")]
    Type {
        found: String,
        expected: &'static str,
    },
    /// Another number of dims.
    #[error("{found} dims, where {expected} were expected")]
    Dims { found: usize, expected: usize },
    /// There are more or fewer elements than the header says.
    #[error("the header says {of} of shape {shape:?}, and {bytes} bytes follow it")]
    Size {
        of: &'static str,
        shape: Vec<usize>,
        bytes: usize,
    },
    /// The array cannot be made.
    #[error(transparent)]
    Array(#[from] ShapeError),
}

/// The array in these bytes. What is allocated is at most a few times the bytes there are, whatever they say.
///
/// # Errors
/// If they are not a NumPy file of `T` with the dims of `D`, and nothing after it.
pub(crate) fn read<T: Element, D: Dimension>(bytes: &[u8]) -> Result<Array<T, D>, NpyError> {
    let (header, elements) = split(bytes)?;
    let header = Header::parse(header)?;
    let highest_first = match order_of::<T>(header.descr) {
        Some(order) => order == b'>',
        None => {
            return Err(NpyError::Type {
                found: header.descr.to_owned(),
                expected: T::KIND,
            });
        }
    };
    let mut dim = D::zeros(D::NDIM.unwrap_or(header.shape.len()));
    if dim.ndim() != header.shape.len() {
        return Err(NpyError::Dims {
            found: header.shape.len(),
            expected: dim.ndim(),
        });
    }
    dim.slice_mut().copy_from_slice(&header.shape);
    // Extents beside a zero count too: an array of none of them has strides all the same.
    let size = header
        .shape
        .iter()
        .try_fold(size_of::<T>(), |n, &extent| n.checked_mul(extent.max(1)))
        .filter(|&size| isize::try_from(size).is_ok())
        .map(|size| if header.shape.contains(&0) { 0 } else { size });
    if size != Some(elements.len()) {
        return Err(NpyError::Size {
            of: T::KIND,
            shape: header.shape,
            bytes: elements.len(),
        });
    }
    let each = elements.chunks_exact(size_of::<T>());
    let numbers = match highest_first {
        false => each.filter_map(T::of).collect(),
        true => {
            let turned = |bytes: &[u8]| {
                let mut room = [0; 8];
                let lowest_first = room.get_mut(..bytes.len())?;
                lowest_first.copy_from_slice(bytes);
                lowest_first.reverse();
                T::of(lowest_first)
            };
            each.filter_map(turned).collect()
        }
    };
    Ok(Array::from_shape_vec(
        dim.set_f(header.fortran_order),
        numbers,
    )?)
}

/// The order of bytes that a description of `T` says, a byte alone in any; nothing if it is of another type.
fn order_of<T: Element>(descr: &str) -> Option<u8> {
    let order = *descr.strip_suffix(T::KIND)?.as_bytes().first()?;
    let known = descr.len() == 1 + T::KIND.len() && b"<>|".contains(&order);
    (known && (order != b'|' || size_of::<T>() == 1)).then_some(order)
}

/// The header and the elements after it.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), NpyError> {
    let (len, rest) = match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, 0, a, b, rest @ ..] => {
            (usize::from(u16::from_le_bytes([*a, *b])), rest)
        }
        [
            0x93,
            b'N',
            b'U',
            b'M',
            b'P',
            b'Y',
            2 | 3,
            0,
            a,
            b,
            c,
            d,
            rest @ ..,
        ] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(NpyError::Magic),
    };
    Some(len)
        .filter(|&len| len <= LONGEST_HEADER)
        .and_then(|len| rest.split_at_checked(len))
        .ok_or(NpyError::HeaderLength {
            len,
            file: bytes.len(),
        })
}

/// What the header of an array says.
struct Header<'a> {
    /// The type of an element and its order of bytes.
    descr: &'a str,
    /// Whether the first index is the one that changes fastest.
    fortran_order: bool,
    /// The extents.
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    /// Reads a literal of Python: a dict of just these three entries, in any order.
    fn parse(text: &'a [u8]) -> Result<Self, NpyError> {
        let mut text = Literal { text, at: 0 };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        text.expect(b'{', "{")?;
        while !text.takes(b'}') {
            let at = text.at;
            let key = text.string()?;
            text.expect(b':', ":")?;
            let first = match key {
                "descr" => descr.replace(text.string()?).is_none(),
                "fortran_order" => fortran_order.replace(text.boolean()?).is_none(),
                "shape" => shape.replace(text.tuple()?).is_none(),
                _ => false,
            };
            if !first {
                let expected = "'descr', 'fortran_order' or 'shape', each once";
                return Err(NpyError::Header { at, expected });
            }
            if !text.takes(b',') {
                text.expect(b'}', "a comma or }")?;
                break;
            }
        }
        text.end()?;
        match (descr, fortran_order, shape) {
            (Some(descr), Some(fortran_order), Some(shape)) => Ok(Self {
                descr,
                fortran_order,
                shape,
            }),
            _ => text.refuse("after 'descr', 'fortran_order' and 'shape'"),
        }
    }
}

/// A literal of Python that is being read, from its byte `at` on.
struct Literal<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Literal<'a> {
    fn refuse<T>(&self, expected: &'static str) -> Result<T, NpyError> {
        Err(NpyError::Header {
            at: self.at,
            expected,
        })
    }

    /// The next bytes that `wanted` takes.
    fn run(&mut self, wanted: impl Fn(&u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|b| wanted(b)).count();
        self.at += len;
        &rest[..len]
    }

    /// Whether this byte comes next, after spaces; if so it is passed.
    fn takes(&mut self, byte: u8) -> bool {
        self.run(u8::is_ascii_whitespace);
        let next = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(next);
        next
    }

    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), NpyError> {
        match self.takes(byte) {
            true => Ok(()),
            false => self.refuse(expected),
        }
    }

    /// Nothing but spaces is left.
    fn end(&mut self) -> Result<(), NpyError> {
        self.run(u8::is_ascii_whitespace);
        match self.at == self.text.len() {
            true => Ok(()),
            false => self.refuse("the end"),
        }
    }

    /// A string without escapes.
    fn string(&mut self) -> Result<&'a str, NpyError> {
        let quote = match self.takes(b'\'') {
            true => b'\'',
            false => {
                self.expect(b'"', "a string")?;
                b'"'
            }
        };
        let string = self.run(|b| (b' '..=b'~').contains(b) && *b != quote && *b != b'\\');
        self.expect(quote, "the end of a string")?;
        str::from_utf8(string).or_else(|_| self.refuse("a string"))
    }

    fn boolean(&mut self) -> Result<bool, NpyError> {
        self.run(u8::is_ascii_whitespace);
        match self.run(u8::is_ascii_alphabetic) {
            b"True" => Ok(true),
            b"False" => Ok(false),
            _ => self.refuse("after True or False"),
        }
    }

    /// Numbers in round brackets, a lone one with a comma.
    fn tuple(&mut self) -> Result<Vec<usize>, NpyError> {
        let mut numbers = Vec::new();
        self.expect(b'(', "a tuple")?;
        let mut comma = true;
        while !self.takes(b')') {
            if !comma {
                return self.refuse("a comma or )");
            }
            numbers.push(self.number()?);
            comma = self.takes(b',');
        }
        match numbers.len() == 1 && !comma {
            true => self.refuse("after a tuple: one number in brackets is a number"),
            false => Ok(numbers),
        }
    }

    fn number(&mut self) -> Result<usize, NpyError> {
        self.run(u8::is_ascii_whitespace);
        let digits = str::from_utf8(self.run(u8::is_ascii_digit));
        digits
            .ok()
            .and_then(|digits| digits.parse().ok())
            .map_or_else(|| self.refuse("after an extent"), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy_write;
    use ndarray::{Array2, Ix1, Ix2, Ix3, array};

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
            let bytes = npy_write::bytes(&array);
            let again = read::<f32, Ix2>(&bytes).unwrap();
            assert_eq!(again, array);
            assert_eq!(again.strides(), array.strides());
            assert!(matches!(
                read::<f32, Ix3>(&bytes),
                Err(NpyError::Dims {
                    found: 2,
                    expected: 3
                })
            ));
            let short = &bytes[..bytes.len() - 1];
            assert!(matches!(
                read::<f32, Ix2>(short),
                Err(NpyError::Size { bytes: 23, .. })
            ));
        }
        // In another order of bytes.
        let big = file(
            "{'descr': '>f4', 'fortran_order': False, 'shape': (1, 1), }",
            &2.5_f32.to_be_bytes(),
        );
        assert_eq!(read::<f32, Ix2>(&big).unwrap(), array![[2.5]]);
        let none: Array2<f32> = read(&shaped("(0, 7)", &[])).unwrap();
        assert_eq!(none.dim(), (0, 7));
    }

    /// Written and read again, and not as another type.
    fn again<T: Element + npy_write::Element + PartialEq + std::fmt::Debug>(elements: [T; 2]) {
        let row = Array2::from(vec![elements]);
        let bytes = npy_write::bytes(&row);
        assert_eq!(read::<T, Ix2>(&bytes).unwrap(), row);
        let other = read::<f32, Ix2>(&bytes).is_ok();
        assert_eq!(other, <T as Element>::KIND == "f4");
    }

    #[test]
    fn all_types_are_read_as_they_were_written() {
        again([1.5_f64, f64::MIN_POSITIVE]);
        again([1.5_f32, -0.0]);
        again([f16::from_f32(1.5), f16::MAX]);
        again([i64::MIN, 7]);
        again([i32::MIN, 7]);
        again([0_u8, 255]);
        again([Bool::from(true), Bool::from(false)]);
        // As other writers have them.
        let header = "{'descr': '>i8', 'fortran_order': False, 'shape': (1,), }";
        let one = read::<i64, Ix1>(&file(header, &(-3_i64).to_be_bytes()));
        assert_eq!(one.unwrap(), array![-3]);
        let header = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }";
        let truths = read::<Bool, Ix1>(&file(header, &[0, 1, 2]));
        assert_eq!(truths.unwrap().mapv(bool::from), array![false, true, true]);
    }

    #[test]
    fn extents_beyond_memory_are_refused() {
        for shape in [
            "(9223372036854775807, 3)",
            "(0, 9223372036854775807, 9223372036854775807)",
            "(9223372036854775807, 0)",
            "(18446744073709551616,)",
        ] {
            assert!(read::<f32, Ix2>(&shaped(shape, &[])).is_err(), "{shape}");
        }
    }

    #[test]
    fn headers_of_other_writers_are_read() {
        for header in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
            "{\"shape\":(1,),\"fortran_order\":True,\"descr\":\"<f4\"}",
            " {\t'fortran_order' : False , 'shape' : ( 1 , ) , 'descr' : '<f4' } ",
        ] {
            let one = read::<f32, Ix1>(&file(header, &2.5_f32.to_le_bytes()));
            assert_eq!(one.unwrap(), array![2.5], "{header}");
        }
    }

    #[test]
    fn headers_that_are_not_of_an_array_are_refused() {
        let entries = "'descr': '<f4', 'fortran_order': False, 'shape': (0,)";
        for header in [
            String::new(),
            "{}".to_owned(),
            format!("{{{entries}"),
            format!("{{{entries}}} {{"),
            format!("{{{entries}, 'shape': (0,)}}"),
            format!("{{{entries}, 'more': (0,)}}"),
            entries.to_owned(),
            "{'descr': '<f4', 'fortran_order': False}".to_owned(),
            "{'descr': '<f4', 'fortran_order': Falsely, 'shape': (0,)}".to_owned(),
            "{'descr': '<f4, 'fortran_order': False, 'shape': (0,)}".to_owned(),
            "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (0,)}".to_owned(),
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,)}".to_owned(),
            "[".repeat(60),
            "(".repeat(9000),
            "{".repeat(40),
        ] {
            let refused = read::<f32, Ix1>(&file(&header, &[]));
            assert!(
                matches!(refused, Err(NpyError::Header { .. })),
                "{header}: {refused:?}"
            );
        }
        for shape in [
            "0", "(0)", "(,)", "(0,,)", "(-0,)", "(0 0)", "(0,", "(0x0,)",
        ] {
            let refused = read::<f32, Ix1>(&shaped(shape, &[]));
            assert!(
                matches!(refused, Err(NpyError::Header { .. })),
                "{shape}: {refused:?}"
            );
        }
        for descr in ["<f8", "|i1", "|f4", "f4", "<<f4", "=f4", ""] {
            let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (1,)}}");
            let refused = read::<f32, Ix1>(&file(&header, &[0; 4]));
            assert!(
                matches!(&refused, Err(NpyError::Type { found, .. }) if found == descr),
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
            let refused = read::<f32, Ix2>(bytes);
            assert!(
                matches!(refused, Err(NpyError::HeaderLength { .. })),
                "{refused:?}"
            );
        }
        assert!(matches!(
            read::<f32, Ix2>(b"\x93NUMPY\x04\x00"),
            Err(NpyError::Magic)
        ));
    }
}

//! What the header of a NumPy file says: a literal of Python.

use super::NpyError;

/// The longest header that is read, as in NumPy. That of an array of any dims is a few hundred bytes long.
const LONGEST: usize = 10_000;

/// The most bytes before the elements of a file that is read.
pub(super) const MOST: usize = LONGEST + 12;

/// The first bytes of a file, of which `file` follow each other in all: the header's text, and where elements begin.
pub(super) fn split(bytes: &[u8], file: u64) -> Result<(&[u8], usize), NpyError> {
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
    let text = Some(len).filter(|&len| len <= LONGEST);
    let text = text.and_then(|len| rest.get(..len));
    let begin = bytes.len() - rest.len() + len;
    let most = LONGEST;
    let refused = NpyError::HeaderLength { len, file, most };
    Ok((text.ok_or(refused)?, begin))
}

/// The first bytes of a file of version 1 of such an array, as NumPy writes them.
pub(super) fn head(descr: &str, fortran: bool, shape: &[usize]) -> Result<Vec<u8>, NpyError> {
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    let extents = match &extents[..] {
        [one] => format!("{one},"),
        all => all.join(", "),
    };
    let order = if fortran { "True" } else { "False" };
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({extents}), }}");
    // The elements begin at a multiple of 64 bytes.
    let len = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let short = u16::try_from(len).map_err(|_| NpyError::HeaderLength {
        len,
        file: 0,
        most: LONGEST,
    })?;
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend(short.to_le_bytes());
    head.extend(format!("{header:<0$}\n", len - 1).bytes());
    Ok(head)
}

/// What the header of an array says.
pub(super) struct Header<'a> {
    /// The type of an element and its order of bytes.
    pub(super) descr: &'a str,
    /// Whether the first index is the one that changes fastest.
    pub(super) fortran_order: bool,
    /// The extents.
    pub(super) shape: Vec<usize>,
}

impl<'a> Header<'a> {
    /// Reads a literal of Python: a dict of just these three entries, in any order.
    pub(super) fn parse(text: &'a [u8]) -> Result<Self, NpyError> {
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

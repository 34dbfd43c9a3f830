//! What a rank has of an array, as ranges of a file.

use super::text;
use shard_comm::{Buffer, DType, DeviceRef};
use shard_spec::DimPart;
use std::borrow::Cow;
use std::fs::File;
use std::io;

/// Elements are brought from a device and written in blocks of this many bytes.
const BLOCK: usize = 16 << 20;

/// An array in a file: its elements follow each other, the last index fastest.
#[derive(Clone, Debug)]
pub struct Place {
    /// The byte at which it begins.
    pub at: u64,
    /// Its extents.
    pub shape: Vec<usize>,
    /// The bytes of an element.
    pub size: usize,
}

impl Place {
    /// Reads the elements that are held, in their order, which fill `into`. No other byte is asked for; where the last dims are
    /// held in part, every row of them is a read of its own.
    pub(crate) fn read(&self, file: &File, held: &[DimPart], into: &mut [u8]) -> io::Result<()> {
        self.fetch(held, into, &mut |at, run| read_at(file, run, at))
    }

    /// As [`read`](Self::read), from whatever gives the bytes from some place on. It is asked for them in ascending order.
    pub(crate) fn fetch(
        &self,
        held: &[DimPart],
        into: &mut [u8],
        from: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = into;
        self.runs(held, &mut |at, len| {
            let (run, after) = std::mem::take(&mut rest)
                .split_at_mut_checked(len)
                .ok_or_else(|| io::Error::other("more elements than room"))?;
            rest = after;
            from(at, run)
        })
    }

    /// Writes the elements that are held and lie in a buffer in their order, and no byte between them.
    pub(crate) fn write(&self, file: &File, held: &[DimPart], from: &Buffer) -> Result<(), String> {
        let (block, mut next) = (BLOCK / self.size.max(1), 0);
        let mut bytes: Cow<'_, [u8]> = Cow::Borrowed(&[]);
        let mut used = 0;
        self.runs(held, &mut |mut at, mut len| {
            while len > 0 {
                if used == bytes.len() {
                    let end = from.len().min(next + block);
                    bytes = host_bytes(from, next..end)?;
                    (next, used) = (end, 0);
                }
                let part = len.min(bytes.len() - used);
                if part == 0 {
                    return Err(io::Error::other("fewer elements than the piece has"));
                }
                write_at(file, &bytes[used..used + part], at)?;
                (at, len, used) = (at + part as u64, len - part, used + part);
            }
            Ok(())
        })
        .map_err(text)
    }

    /// Calls `f` with the ranges of the file in which the held elements lie, in the order of the piece: where each begins and
    /// how many bytes it has.
    ///
    /// # Errors
    /// The first of `f`.
    pub fn runs(
        &self,
        held: &[DimPart],
        f: &mut dyn FnMut(u64, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        if held.iter().any(DimPart::is_empty) {
            return Ok(());
        }
        // Behind the last dim that is held in part, rows follow each other.
        let whole = |d: &usize| held[*d].len() == self.shape[*d];
        let cut = (0..held.len()).rev().find(|d| !whole(d));
        let dims = cut.map_or(0, |d| d + 1);
        let row: usize = self.shape[dims..].iter().product::<usize>() * self.size;
        walk(self.at, &held[..dims], &self.shape[..dims], row, f)
    }
}

/// The runs of leading dims, of which the innermost has steps of `row` bytes.
fn walk(
    at: u64,
    held: &[DimPart],
    shape: &[usize],
    row: usize,
    f: &mut dyn FnMut(u64, usize) -> io::Result<()>,
) -> io::Result<()> {
    let Some((first, rest)) = held.split_first() else {
        return f(at, row);
    };
    let step = shape[1..].iter().product::<usize>() * row;
    for interval in first.intervals() {
        let begin = at + (interval.start * step) as u64;
        if rest.is_empty() {
            f(begin, interval.len() * row)?;
            continue;
        }
        for i in 0..interval.len() {
            walk(begin + (i * step) as u64, rest, &shape[1..], row, f)?;
        }
    }
    Ok(())
}

/// A buffer of this many elements, filled on the host: in place where the device's memory is the host's.
pub(crate) fn filled(
    device: &DeviceRef,
    dtype: DType,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<(), String>,
) -> Result<Buffer, String> {
    // Truth values are kept as 0 and 1, whatever a file has for true.
    let fill = |bytes: &mut [u8]| {
        fill(bytes)?;
        if dtype == DType::Bool {
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok::<_, String>(())
    };
    let mut buffer = device.alloc(dtype, len).map_err(text)?;
    if let Ok(bytes) = buffer.as_mut_bytes() {
        fill(bytes)?;
        return Ok(buffer.freeze());
    }
    drop(buffer);
    let mut bytes = vec![0; len * dtype.size()];
    fill(&mut bytes)?;
    device.upload(dtype, &bytes).map_err(text)
}

/// Elements of a buffer as the host sees them: where they are, or brought from the device.
fn host_bytes(buffer: &Buffer, elements: std::ops::Range<usize>) -> io::Result<Cow<'_, [u8]>> {
    let size = buffer.dtype().size();
    let bytes = elements.start * size..elements.end * size;
    match buffer.as_bytes() {
        Ok(all) => Ok(Cow::Borrowed(&all[bytes])),
        Err(_) => {
            let part = buffer.try_slice(elements).map_err(io::Error::other)?;
            let part = buffer.device().download(&part).map_err(io::Error::other)?;
            Ok(Cow::Owned(part))
        }
    }
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(unix)]
pub(super) fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (into, at) = (&mut into[n..], at + n as u64),
        }
    }
    Ok(())
}

#[cfg(windows)]
pub(super) fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, at)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => (bytes, at) = (&bytes[n..], at + n as u64),
        }
    }
    Ok(())
}

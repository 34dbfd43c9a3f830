//! The list of files at the end of a ZIP archive, also of one larger than 4 GiB. Crates that read it bring a dozen others.

use crate::files::read_at;
use std::fs::File;
use std::io;

/// The longest list that is read. An archive of arrays has some hundred entries of a hundred bytes.
const LONGEST: u64 = 64 << 20;

/// A file in an archive.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) packing: Packing,
    /// Bytes as they are packed.
    pub(super) packed: u64,
    /// Bytes as they are.
    pub(super) len: u64,
    /// Their CRC-32.
    pub(super) crc: u32,
    /// Where its header is.
    header: u64,
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Stored,
    Deflated,
    /// By a method that is not read here, or encrypted.
    Other(u16),
}

/// A piece of an archive, whose numbers have their lowest bytes first.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn number(&self, at: usize, len: usize) -> io::Result<u64> {
        let bytes = at.checked_add(len).and_then(|end| self.0.get(at..end));
        let bytes = bytes.ok_or_else(|| damaged("it ends early"))?;
        Ok(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("no archive of arrays: {what}"),
    )
}

/// The files in an archive of so many bytes.
pub(super) fn entries(file: &File, len: u64) -> io::Result<Vec<Entry>> {
    let (at, size, count) = directory(file, len)?;
    if size > LONGEST || at.checked_add(size).is_none_or(|end| end > len) {
        return Err(damaged("its list of files lies beyond its end"));
    }
    let mut list = vec![0; size as usize];
    read_at(file, &mut list, at)?;
    let mut rest = &list[..];
    let mut all = Vec::new();
    for _ in 0..count {
        let (entry, len) = entry(rest)?;
        rest = rest
            .get(len..)
            .ok_or_else(|| damaged("its list ends early"))?;
        all.push(entry);
    }
    match rest.is_empty() {
        true => Ok(all),
        false => Err(damaged("its list goes on behind its last entry")),
    }
}

/// Where the list of files is, how long it is, and how many there are.
fn directory(file: &File, len: u64) -> io::Result<(u64, u64, u64)> {
    // A record of 22 bytes, with a remark of up to 64 KiB, and 20 bytes of a larger archive before it.
    let begin = len.saturating_sub(22 + 0xffff + 20);
    let mut tail = vec![0; (len - begin) as usize];
    read_at(file, &mut tail, begin)?;
    let at = tail.windows(4).rposition(|w| w == b"PK\x05\x06");
    let at = at.ok_or_else(|| damaged("no list of files at its end"))?;
    let end = Bytes(&tail[at..]);
    let (count, size, start) = (end.number(10, 2)?, end.number(12, 4)?, end.number(16, 4)?);
    if count < 0xffff && size < 0xffff_ffff && start < 0xffff_ffff {
        return Ok((start, size, count));
    }
    // A larger archive says so elsewhere.
    let locator = at.checked_sub(20).and_then(|at| tail.get(at..));
    let locator = locator.filter(|l| l.starts_with(b"PK\x06\x07"));
    let locator = Bytes(locator.ok_or_else(|| damaged("it is large and does not say where"))?);
    let mut record = [0; 56];
    read_at(file, &mut record, locator.number(8, 8)?)?;
    if !record.starts_with(b"PK\x06\x06") {
        return Err(damaged("it is large and does not say where"));
    }
    let record = Bytes(&record);
    Ok((
        record.number(48, 8)?,
        record.number(40, 8)?,
        record.number(32, 8)?,
    ))
}

/// The first entry of a list, and how long it is.
fn entry(list: &[u8]) -> io::Result<(Entry, usize)> {
    if !list.starts_with(b"PK\x01\x02") {
        return Err(damaged("an entry of its list is none"));
    }
    let bytes = Bytes(list);
    let [flags, method] = [bytes.number(8, 2)?, bytes.number(10, 2)?];
    let [mut packed, mut len, mut header] = [
        bytes.number(20, 4)?,
        bytes.number(24, 4)?,
        bytes.number(42, 4)?,
    ];
    let [name, extra, remark] = [28, 30, 32].map(|at| bytes.number(at, 2));
    let (name, extra, remark) = (name? as usize, extra? as usize, remark? as usize);
    let text = list
        .get(46..46 + name)
        .ok_or_else(|| damaged("a name ends early"))?;
    let more = list.get(46 + name..46 + name + extra);
    let mut more = more.ok_or_else(|| damaged("an entry ends early"))?;
    while more.len() >= 4 {
        let field = Bytes(more);
        let (kind, size) = (field.number(0, 2)?, field.number(2, 2)? as usize);
        if kind == 1 {
            // Those of the three numbers that had no room, in this order.
            let mut at = 4;
            for number in [&mut len, &mut packed, &mut header] {
                if *number == 0xffff_ffff {
                    *number = field.number(at, 8)?;
                    at += 8;
                }
            }
        }
        more = more.get(4 + size..).unwrap_or_default();
    }
    let packing = match method {
        0 if flags & 1 == 0 => Packing::Stored,
        8 if flags & 1 == 0 => Packing::Deflated,
        other => Packing::Other(other as u16),
    };
    if packing == Packing::Stored && packed != len {
        return Err(damaged(
            "a file that is stored as it is has another length there",
        ));
    }
    let entry = Entry {
        name: String::from_utf8_lossy(text).into_owned(),
        packing,
        packed,
        len,
        crc: bytes.number(16, 4)? as u32,
        header,
    };
    Ok((entry, 46 + name + extra + remark))
}

impl Entry {
    /// Where its bytes begin.
    pub(super) fn start(&self, file: &File) -> io::Result<u64> {
        let mut header = [0; 30];
        read_at(file, &mut header, self.header)?;
        if !header.starts_with(b"PK\x03\x04") {
            return Err(damaged("a file does not begin where its list says"));
        }
        let header = Bytes(&header);
        let start = 30 + header.number(26, 2)? + header.number(28, 2)?;
        let start = self.header.checked_add(start);
        let end = start.and_then(|start| start.checked_add(self.packed));
        match (start, end) {
            (Some(start), Some(end)) if end <= file.metadata()?.len() => Ok(start),
            _ => Err(damaged("a file lies beyond its end")),
        }
    }
}

//! What NumPy's types are here.

use super::NpyError;
use crate::data::DataError;
use bytemuck::{AnyBitPattern, NoUninit};
use ndarray::{ArrayView, IxDyn};
use shard_comm::DType;

/// The elements of a file.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) struct Stored {
    kind: Kind,
    /// Whether their bytes are in the other order than this machine's.
    swapped: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// As they are here.
    As(DType),
    I8,
    I16,
    U16,
    U32,
    U64,
}

/// What NumPy calls them.
const NAMES: [(&str, Kind); 12] = [
    ("f8", Kind::As(DType::F64)),
    ("f4", Kind::As(DType::F32)),
    ("f2", Kind::As(DType::F16)),
    ("i8", Kind::As(DType::I64)),
    ("i4", Kind::As(DType::I32)),
    ("u1", Kind::As(DType::U8)),
    ("b1", Kind::As(DType::Bool)),
    ("i1", Kind::I8),
    ("i2", Kind::I16),
    ("u2", Kind::U16),
    ("u4", Kind::U32),
    ("u8", Kind::U64),
];

/// The type of elements that are written, as NumPy has it; nothing for one that it does not know.
pub(super) fn descr_of(dtype: DType) -> Option<String> {
    let (name, kind) = NAMES
        .iter()
        .find(|(_, kind)| matches!(kind, Kind::As(d) if *d == dtype))?;
    let order = match (kind.size(), cfg!(target_endian = "big")) {
        (1, _) => '|',
        (_, false) => '<',
        (_, true) => '>',
    };
    Some(format!("{order}{name}"))
}

impl Stored {
    /// What a header says.
    pub(super) fn of(descr: &str) -> Result<Self, NpyError> {
        let found = descr.split_at_checked(1).and_then(|(order, name)| {
            let kind = NAMES.iter().find(|(n, _)| *n == name)?.1;
            let swapped = match order {
                "<" => cfg!(target_endian = "big"),
                ">" => cfg!(target_endian = "little"),
                "|" if kind.size() == 1 => false,
                _ => return None,
            };
            Some(Self { kind, swapped })
        });
        found.ok_or_else(|| NpyError::Type {
            found: descr.to_owned(),
            expected: NAMES.map(|(name, _)| name).join(", ") + " in either order of bytes",
        })
    }

    /// What NumPy has under a name, in the order of bytes of this machine.
    #[cfg(feature = "zarr")]
    pub(in crate::data) fn named(name: &str) -> Option<Self> {
        let kind = NAMES.iter().find(|(n, _)| *n == name)?.1;
        Some(Self {
            kind,
            swapped: false,
        })
    }

    /// What is here as it is there.
    #[cfg(feature = "zarr")]
    pub(in crate::data) fn same(dtype: DType) -> Self {
        Self {
            kind: Kind::As(dtype),
            swapped: false,
        }
    }

    /// Bytes of an element in the file.
    pub(in crate::data) fn size(self) -> usize {
        self.kind.size()
    }

    /// What the elements are here.
    pub(in crate::data) fn dtype(self) -> DType {
        match self.kind {
            Kind::As(dtype) => dtype,
            Kind::I8 | Kind::I16 | Kind::U16 => DType::I32,
            Kind::U32 | Kind::U64 => DType::I64,
        }
    }

    /// Whether they have the same type here.
    pub(super) fn is_plain(self) -> bool {
        matches!(self.kind, Kind::As(_))
    }

    /// Puts the bytes of elements in the order of this machine.
    pub(in crate::data) fn order(self, bytes: &mut [u8]) {
        if self.swapped && self.size() > 1 {
            bytes
                .chunks_exact_mut(self.size())
                .for_each(<[u8]>::reverse);
        }
        if matches!(self.kind, Kind::As(DType::Bool)) {
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
    }

    /// Makes what elements are here of what they are in the file.
    pub(in crate::data) fn widen(self, raw: &[u8], into: &mut [u8]) -> Result<(), DataError> {
        match self.kind {
            Kind::As(_) => into.copy_from_slice(raw),
            Kind::I8 => each(raw, into, |n: i8| Some(i32::from(n)))?,
            Kind::I16 => each(raw, into, |n: i16| Some(i32::from(n)))?,
            Kind::U16 => each(raw, into, |n: u16| Some(i32::from(n)))?,
            Kind::U32 => each(raw, into, |n: u32| Some(i64::from(n)))?,
            Kind::U64 => each(raw, into, |n: u64| i64::try_from(n).ok())?,
        }
        Ok(())
    }
}

impl Kind {
    fn size(self) -> usize {
        match self {
            Self::As(dtype) => dtype.size(),
            Self::I8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }
}

fn each<A: AnyBitPattern + std::fmt::Display, B: NoUninit>(
    raw: &[u8],
    into: &mut [u8],
    f: impl Fn(A) -> Option<B>,
) -> Result<(), DataError> {
    let (from, to) = (
        raw.chunks_exact(size_of::<A>()),
        into.chunks_exact_mut(size_of::<B>()),
    );
    for (from, to) in from.zip(to) {
        let number: A = bytemuck::pod_read_unaligned(from);
        let Some(number) = f(number) else {
            return Err(DataError::other(format!(
                "{number}, which is more than i64 holds"
            )));
        };
        to.copy_from_slice(bytemuck::bytes_of(&number));
    }
    Ok(())
}

/// Elements in the order of the last index of an array whose first one changes fastest in `raw`. `shape` is that of `raw`, so
/// the array's from its end.
pub(super) fn turned(raw: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    match size {
        1 => turned_of::<1>(raw, shape),
        2 => turned_of::<2>(raw, shape),
        4 => turned_of::<4>(raw, shape),
        _ => turned_of::<8>(raw, shape),
    }
}

fn turned_of<const N: usize>(raw: &[u8], shape: &[usize]) -> Vec<u8> {
    let elements = raw.as_chunks::<N>().0;
    match ArrayView::from_shape(IxDyn(shape), elements) {
        Ok(view) => view.reversed_axes().iter().flatten().copied().collect(),
        // There are as many as the shape says: that is how `raw` was made.
        Err(_) => raw.to_vec(),
    }
}

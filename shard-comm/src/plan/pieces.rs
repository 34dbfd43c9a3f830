//! Pieces of exchanges, alone and in lists of thousands.

use shard_spec::{Dims, Strides};
use smallvec::{SmallVec, smallvec};

use crate::Strided;

/// A box of elements that one rank reads from another.
///
/// The same piece appears in the reader's `recv` list with the owner as `peer`, and in the owner's `send` list with
/// the reader as `peer`. Offsets and strides are in elements; strides may be zero or negative.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// The other rank, numbered within the group.
    pub peer: usize,
    /// Which of the owner's sources is read.
    pub source: usize,
    /// Extents of the box.
    pub shape: Dims,
    /// First element read, in the owner's source.
    pub src_offset: usize,
    /// Strides in the owner's source.
    pub src_strides: Strides,
    /// First element written, in the reader's destination.
    pub dst_offset: usize,
    /// Strides in the reader's destination.
    pub dst_strides: Strides,
}

impl Piece {
    /// A run of `len` contiguous elements.
    pub fn run(
        peer: usize,
        source: usize,
        len: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Self {
        Self {
            peer,
            source,
            shape: smallvec![len],
            src_offset,
            src_strides: smallvec![1],
            dst_offset,
            dst_strides: smallvec![1],
        }
    }

    /// The piece in the form in which a list shows it.
    pub fn view(&self) -> PieceRef<'_> {
        PieceRef {
            peer: self.peer,
            source: self.source,
            shape: &self.shape,
            src_offset: self.src_offset,
            src_strides: &self.src_strides,
            dst_offset: self.dst_offset,
            dst_strides: &self.dst_strides,
        }
    }

    /// Elements in the box.
    pub fn numel(&self) -> usize {
        self.view().numel()
    }

    /// The box in the owner's source.
    pub fn src_view(&self) -> Strided {
        self.view().src_view()
    }

    /// The box in the reader's destination.
    pub fn dst_view(&self) -> Strided {
        self.view().dst_view()
    }
}

/// A view of these; the slices are copied at once, while `into` would copy element by element.
fn strided(offset: usize, shape: &[usize], strides: &[isize]) -> Strided {
    Strided::new(
        offset,
        SmallVec::from_slice(shape),
        SmallVec::from_slice(strides),
    )
}

/// A [`Piece`] in a list of [`Pieces`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PieceRef<'a> {
    /// The other rank, numbered within the group.
    pub peer: usize,
    /// Which of the owner's sources is read.
    pub source: usize,
    /// Extents of the box.
    pub shape: &'a [usize],
    /// First element read, in the owner's source.
    pub src_offset: usize,
    /// Strides in the owner's source.
    pub src_strides: &'a [isize],
    /// First element written, in the reader's destination.
    pub dst_offset: usize,
    /// Strides in the reader's destination.
    pub dst_strides: &'a [isize],
}

impl PieceRef<'_> {
    /// Elements in the box.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// The box in the owner's source.
    pub fn src_view(&self) -> Strided {
        strided(self.src_offset, self.shape, self.src_strides)
    }

    /// The box in the reader's destination.
    pub fn dst_view(&self) -> Strided {
        strided(self.dst_offset, self.shape, self.dst_strides)
    }

    /// The piece with its own extents and strides.
    pub fn to_piece(&self) -> Piece {
        Piece {
            peer: self.peer,
            source: self.source,
            shape: self.shape.into(),
            src_offset: self.src_offset,
            src_strides: self.src_strides.into(),
            dst_offset: self.dst_offset,
            dst_strides: self.dst_strides.into(),
        }
    }
}

/// A list of pieces that stores extents and strides once for neighbours that share them. That is 32 bytes for most pieces, so
/// a plan that reads from thousands of ranks stays small and quick to make. Empty pieces are left out.
///
/// ```
/// use shard_comm::{Piece, Pieces};
/// let pieces: Pieces = (0..1000).map(|peer| Piece::run(peer, 0, 7, 0, 7 * peer)).collect();
/// assert_eq!((pieces.len(), pieces.blocks()), (1000, 1));
/// assert_eq!(pieces.iter().map(|p| p.numel()).sum::<usize>(), 7000);
/// ```
#[derive(Clone, Default, Debug)]
pub struct Pieces {
    records: Vec<Record>,
    blocks: Vec<Block>,
}

/// The part of a piece that is its own.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// The largest number stands for all values that are not ranks.
    peer: u32,
    source: u32,
    block: usize,
    src_offset: usize,
    dst_offset: usize,
}

/// The part that pieces share.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Block {
    shape: Dims,
    src_strides: Strides,
    dst_strides: Strides,
}

/// How many of the last blocks are searched for that of a new piece: uneven parts differ by one, alternately.
const LOOK_BACK: usize = 4;

impl Pieces {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece, unless it is empty.
    pub fn push(&mut self, piece: PieceRef<'_>) {
        if piece.shape.contains(&0) {
            return;
        }
        let like = |b: &Block| {
            b.shape[..] == *piece.shape
                && b.src_strides[..] == *piece.src_strides
                && b.dst_strides[..] == *piece.dst_strides
        };
        let recent = self.blocks.iter().enumerate().rev().take(LOOK_BACK);
        let block = match recent.into_iter().find(|(_, b)| like(b)) {
            Some((at, _)) => at,
            None => {
                self.blocks.push(Block {
                    shape: piece.shape.into(),
                    src_strides: piece.src_strides.into(),
                    dst_strides: piece.dst_strides.into(),
                });
                self.blocks.len() - 1
            }
        };
        self.records.push(Record {
            peer: short(piece.peer),
            source: short(piece.source),
            block,
            src_offset: piece.src_offset,
            dst_offset: piece.dst_offset,
        });
    }

    /// Sorts by peer, then source, then place in the destination, then place in the source. Both sides of an exchange list their
    /// pieces in this order.
    pub fn sort(&mut self) {
        let order = |r: &Record| (r.peer, r.source, r.dst_offset, r.src_offset);
        // Checking first saves the scratch space of sorting.
        if !self.records.is_sorted_by_key(order) {
            self.records.sort_by_key(order);
        }
    }

    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Number of different pairs of extents and strides that are stored.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The piece at a position.
    pub fn get(&self, at: usize) -> Option<PieceRef<'_>> {
        self.records.get(at).map(|r| self.piece(r))
    }

    /// The first piece.
    pub fn first(&self) -> Option<PieceRef<'_>> {
        self.get(0)
    }

    /// The pieces in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PieceRef<'_>> + Clone {
        self.records.iter().map(|r| self.piece(r))
    }

    /// Makes room for this many more pieces.
    pub fn reserve(&mut self, additional: usize) {
        self.records.reserve(additional);
    }

    /// Adds a piece with the source, extents and strides of the one at position `like`; does nothing if there is none.
    pub fn again(&mut self, like: usize, peer: usize, src_offset: usize, dst_offset: usize) {
        if let Some(&like) = self.records.get(like) {
            self.records.push(Record {
                peer: short(peer),
                src_offset,
                dst_offset,
                ..like
            });
        }
    }

    /// Number of different peers, if the pieces of each peer follow one another.
    pub(crate) fn peers(&self) -> usize {
        let turns = self.records.windows(2).filter(|w| w[0].peer != w[1].peer);
        turns.count() + usize::from(!self.is_empty())
    }

    /// The pieces in order, each with facts that are computed once for all pieces that share extents and strides.
    pub(crate) fn with_facts<'a, T: Copy>(
        &'a self,
        fact: impl Fn(PieceRef<'a>) -> T,
    ) -> impl Iterator<Item = (PieceRef<'a>, T)> {
        let mut last: Option<(usize, T)> = None;
        self.records.iter().map(move |r| {
            let piece = self.piece(r);
            let known = match last {
                Some((block, known)) if block == r.block => known,
                _ => fact(piece),
            };
            last = Some((r.block, known));
            (piece, known)
        })
    }

    fn piece(&self, record: &Record) -> PieceRef<'_> {
        let block = &self.blocks[record.block];
        PieceRef {
            peer: record.peer as usize,
            source: record.source as usize,
            shape: &block.shape,
            src_offset: record.src_offset,
            src_strides: &block.src_strides,
            dst_offset: record.dst_offset,
            dst_strides: &block.dst_strides,
        }
    }
}

/// A number in half the space; numbers that do not fit are not ranks.
fn short(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

impl Extend<Piece> for Pieces {
    fn extend<I: IntoIterator<Item = Piece>>(&mut self, pieces: I) {
        for piece in pieces {
            self.push(piece.view());
        }
    }
}

impl FromIterator<Piece> for Pieces {
    fn from_iter<I: IntoIterator<Item = Piece>>(pieces: I) -> Self {
        let mut list = Self::new();
        list.extend(pieces);
        list
    }
}

impl From<Vec<Piece>> for Pieces {
    fn from(pieces: Vec<Piece>) -> Self {
        pieces.into_iter().collect()
    }
}

impl<const N: usize> From<[Piece; N]> for Pieces {
    fn from(pieces: [Piece; N]) -> Self {
        pieces.into_iter().collect()
    }
}

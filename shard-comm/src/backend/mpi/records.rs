//! How the ranks of an operation agree: few ranks get every record, with which few elements travel, by messages or in the memory of
//! their node; more of them get the summary.

use super::all_gather::{AllGather, FACTOR};
use super::node::{Gathered, Whereabouts};
use super::progress::Rank;
use super::record::{Accord, Carriage, HEADER, MOST_SENT, Record, accord, carried, header_of};
use super::summary::{Summary, Summing};
use super::tags::Tags;
use crate::{Buffer, DType, DeviceRef, Result};

/// Up to this many ranks get every record, in one round.
pub(super) const FEW: usize = FACTOR;

/// Part of a participant's source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought<'a> {
    pub(super) bytes: &'a [u8],
    /// The first byte's place in the source.
    pub(super) start: usize,
}

impl Brought<'_> {
    /// A buffer that has these elements where the source has them. Nothing may be read elsewhere in it.
    pub(super) fn to_buffer(self, device: &DeviceRef, dtype: DType) -> Result<Buffer> {
        if self.start == 0 {
            return Ok(device.upload(dtype, self.bytes)?);
        }
        let mut buffer = device.alloc(dtype, (self.start + self.bytes.len()) / dtype.size())?;
        buffer.as_mut_bytes()?[self.start..].copy_from_slice(self.bytes);
        Ok(buffer.freeze())
    }
}

/// The agreement of all ranks, on its way or done.
#[derive(Debug)]
pub(super) enum Records {
    /// Every rank's record, by messages.
    Each(Box<AllGather>),
    /// Every rank's record, in the memory of their node.
    Near(Gathered),
    /// What they come to, once that is known.
    Summary(Box<Summing>, Option<Summary>),
}

impl Records {
    /// How the records of these participants get to the others.
    pub(super) fn carriage(tags: &Tags) -> Carriage {
        match &tags.board {
            Some(_) => Carriage::Node,
            None if tags.members.len() <= FEW => Carriage::Mail,
            None => Carriage::None,
        }
    }

    /// Begins with this rank's record.
    pub(super) fn begin(rank: &Rank, tags: &Tags, record: &Record<'_>) -> Result<Self> {
        let world = rank.world();
        let source = record.source.unwrap_or(&[]);
        if let Some(board) = &tags.board {
            let near = board.post(tags.sequence, record.header, source, record.laid)?;
            rank.ledger().heard(tags.members.len() - 1);
            return Ok(Self::Near(near));
        }
        if tags.members.len() <= FEW {
            let mut all = rank.spare();
            let header = record.header.map(u64::to_le);
            let parts = [bytemuck::bytes_of(&header), source];
            all.begin_few(world, tags, &parts, HEADER + MOST_SENT)?;
            rank.ledger().heard(tags.members.len() - 1);
            return Ok(Self::Each(all));
        }
        let summing = Summing::new(world, tags, record.summary())?;
        Ok(Self::Summary(Box::new(summing), None))
    }

    /// Makes progress, and returns whether the ranks have heard of each other.
    pub(super) fn advance(&mut self, rank: &Rank, tags: &Tags) -> Result<bool> {
        match self {
            Self::Each(all) => all.advance(rank.world(), tags),
            Self::Near(near) => near.advance(),
            Self::Summary(summing, all) => {
                if all.is_none() {
                    *all = summing.advance(rank.world(), tags)?;
                    if all.is_some() {
                        rank.ledger().heard(summing.heard());
                    }
                }
                Ok(all.is_some())
            }
        }
    }

    /// A participant's record; nothing if only the summary is known.
    fn record(&self, tags: &Tags, participant: usize) -> &[u8] {
        match self {
            Self::Each(all) => all.record(tags, participant),
            Self::Near(near) => near.record(participant),
            Self::Summary(..) => &[],
        }
    }

    /// What they come to, once the ranks have heard of each other.
    pub(super) fn accord(&self, tags: &Tags) -> Accord {
        match self {
            Self::Summary(_, all) => Accord {
                agrees: all.is_some_and(|all| all.agrees()),
                summed: all.is_some_and(|all| all.summed),
            },
            Self::Each(_) => {
                accord((0..tags.members.len()).map(|r| header_of(self.record(tags, r))))
            }
            Self::Near(near) => near.accord(),
        }
    }

    /// The bytes of a participant's source that are here for an exchange: they came with its record, or lie in the memory of the node.
    pub(super) fn brought(
        &self,
        tags: &Tags,
        exchange: usize,
        participant: usize,
    ) -> Result<Option<Brought<'_>>> {
        let record = match exchange {
            0 => self.record(tags, participant),
            _ => &[],
        };
        if let Some(bytes) = carried(record)? {
            return Ok(Some(Brought { bytes, start: 0 }));
        }
        let Some(near) = self.near() else {
            return Ok(None);
        };
        Ok(match near.told(participant, exchange) {
            Whereabouts::Laid(parcel) => Some(Brought {
                bytes: near.laid(participant, parcel),
                start: parcel.start,
            }),
            Whereabouts::Sent | Whereabouts::Nothing => None,
        })
    }

    /// The records in the memory of the node, if they are there.
    pub(super) fn near(&self) -> Option<&Gathered> {
        match self {
            Self::Near(near) => Some(near),
            Self::Each(_) | Self::Summary(..) => None,
        }
    }

    /// The processes that this waits for.
    pub(super) fn peers(&self) -> Vec<usize> {
        match self {
            Self::Each(all) => all.peers(),
            Self::Near(near) => near.peers(),
            Self::Summary(summing, _) => summing.peers(),
        }
    }

    /// Gives back what can be used again.
    pub(super) fn keep(self, rank: &Rank) {
        if let Self::Each(all) = self {
            rank.keep_spare(all);
        }
    }
}

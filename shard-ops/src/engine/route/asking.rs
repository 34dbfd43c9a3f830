//! Which rows a rank's part of an operand names: its own, by key, and those to be asked for, each once.

use crate::strategy::{Group, Keyed, Routing};
use shard_comm::AgreedError;
use shard_spec::DimPart;
use smallvec::SmallVec;
use std::ops::Range;

/// What a part of an operand asks for.
#[derive(Debug, Default, PartialEq)]
pub struct Asked {
    /// The rows asked for as their owners number them, peer by peer and ascending.
    pub requests: Vec<i64>,
    /// How many from each peer.
    pub counts: Vec<usize>,
}

/// Looks up what every element names, and writes its key: of a row of the rank's own, of one of those asked for, counted on from
/// there, or of none.
///
/// # Errors
/// The first index that is out of range.
pub fn ask<I: Copy + Into<i64>>(
    op: &'static str,
    routing: &Routing,
    indices: &[I],
    keys: &mut [i64],
) -> Result<Asked, AgreedError> {
    let numbers = Numbers::new(routing);
    let mut remote = Remote::new(routing, &numbers);
    let mut stray = None;
    let own = Own::new(routing);
    if let (Own::Interval(own), Some(bits)) = (&own, remote.in_order(&own)) {
        let stray = in_order(routing, own, indices, keys, bits);
        return match stray {
            Some(at) => Err(out_of_range(op, routing, at, indices[at].into())),
            None => Ok(remote.settle(keys, own.len())),
        };
    }
    let rows = routing.own.len();
    numbers.for_each(indices, keys, |place, value, shared| {
        if routing.absent == Some(value) {
            return NONE;
        }
        let from_end = if routing.from_end && value < 0 {
            value.checked_add_unsigned(routing.extent as u64)
        } else {
            Some(value)
        };
        let index = from_end.and_then(|i| usize::try_from(i).ok());
        let Some(index) = index.filter(|&i| i < routing.extent) else {
            stray.get_or_insert(place);
            return NONE;
        };
        match own.position(index) {
            Some(at) => numbers.key(rows, at, shared) as i64,
            None => remote.note(index, &numbers, shared),
        }
    });
    if let Some(at) = stray {
        return Err(out_of_range(op, routing, at, indices[at].into()));
    }
    Ok(remote.settle(keys, numbers.all * rows))
}

/// What an element holds in place of a key until all have been seen: none, or from here down one of another rank.
const NONE: i64 = -1;

/// [`ask`] where indices are rows and those of other ranks are numbered as they are, without this rank's: the same keys and bits,
/// without a branch on whose row it is, which nobody could foresee. Returns the first element that is out of range.
fn in_order<I: Copy + Into<i64>>(
    routing: &Routing,
    own: &Range<usize>,
    indices: &[I],
    keys: &mut [i64],
    bits: &mut [u64],
) -> Option<usize> {
    let (extent, from_end) = (routing.extent as u64, i64::from(routing.from_end));
    let (first, len) = (own.start as u64, own.len() as u64);
    // Without bits nobody is asked.
    let (asks, mut stray) = (!bits.is_empty(), None);
    for (place, (key, &value)) in keys.iter_mut().zip(indices).enumerate() {
        let value = value.into();
        // A negative index counts from the end; where it does not, it is beyond all extents.
        let from_start =
            value.wrapping_add((value >> 63) & from_end.wrapping_neg() & extent as i64);
        let index = from_start as u64;
        if index >= extent || routing.absent == Some(value) {
            if routing.absent != Some(value) {
                stray.get_or_insert(place);
            }
            *key = NONE;
            continue;
        }
        let here = index.wrapping_sub(first);
        let is_own = here < len;
        let row = index - if index >= first + len { len } else { 0 };
        // An own row sets no bit of whichever word.
        let word = if is_own { 0 } else { row / 64 };
        if asks {
            bits[word as usize] |= u64::from(!is_own) << (row % 64);
        }
        *key = match is_own {
            true => here as i64,
            false if asks => NONE - 1 - row as i64,
            false => NONE,
        };
    }
    stray
}

fn out_of_range(op: &'static str, routing: &Routing, at: usize, index: i64) -> AgreedError {
    let (n, mut rest) = (routing.extent, at);
    let mut position: SmallVec<[usize; 4]> = SmallVec::new();
    for (&extent, held) in routing.part.shape.iter().zip(&routing.part.held).rev() {
        position.push(held.index(rest % extent));
        rest /= extent;
    }
    position.reverse();
    let least = if routing.from_end { -(n as i64) } else { 0 };
    AgreedError::new(
        op,
        format!("indices from {least} to below {n}, the extent of the dim"),
        format!("index {index} at position {:?}", &position[..]),
        "give indices within the extent",
    )
}

/// How keys are made of a place along the routed dim and a place in the dims that the operand shares with the table.
struct Numbers {
    /// Per dim of the operand, what a step along it adds to the numbers of shared places before and after the routed dim.
    steps: SmallVec<[Shared; 4]>,
    shape: SmallVec<[usize; 4]>,
    /// Shared places after the routed dim, and all.
    inner: usize,
    all: usize,
}

/// Numbers of a place in the shared dims before the routed one, and after it.
type Shared = (usize, usize);

impl Numbers {
    fn new(routing: &Routing) -> Self {
        let mut steps = SmallVec::from_elem((0, 0), routing.part.shape.len());
        let (mut inner, mut outer, mut before) = (1, 1, false);
        for keyed in routing.keyed.iter().rev() {
            match *keyed {
                Keyed::Routed => before = true,
                Keyed::Shared { dim, extent } if before => {
                    steps[dim] = (outer, 0);
                    outer *= extent;
                }
                Keyed::Shared { dim, extent } => {
                    steps[dim] = (0, inner);
                    inner *= extent;
                }
            }
        }
        Self {
            steps,
            shape: routing.part.shape.iter().copied().collect(),
            inner,
            all: inner * outer,
        }
    }

    /// The key of a row of a part that has so many indices of the routed dim.
    fn key(&self, len: usize, at: usize, (outer, inner): Shared) -> usize {
        (outer * len + at) * self.inner + inner
    }

    /// Calls `f` with the number of every element, the element, and its place in the shared dims, for its key.
    fn for_each<I: Copy + Into<i64>>(
        &self,
        indices: &[I],
        keys: &mut [i64],
        mut f: impl FnMut(usize, i64, Shared) -> i64,
    ) {
        let all = keys.iter_mut().zip(indices).enumerate();
        if self.all == 1 {
            all.for_each(|(k, (key, &value))| *key = f(k, value.into(), (0, 0)));
            return;
        }
        let mut at: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.shape.len());
        let (mut outer, mut inner) = (0, 0);
        for (k, (key, &value)) in all {
            *key = f(k, value.into(), (outer, inner));
            for d in (0..at.len()).rev() {
                let (o, i) = self.steps[d];
                at[d] += 1;
                (outer, inner) = (outer + o, inner + i);
                if at[d] < self.shape[d] {
                    break;
                }
                (outer, inner) = (outer - o * at[d], inner - i * at[d]);
                at[d] = 0;
            }
        }
    }
}

/// What a rank has of the routed dim: most often an interval, which is quick to look into.
enum Own<'a> {
    Interval(Range<usize>),
    Other(&'a DimPart),
}

impl<'a> Own<'a> {
    fn new(routing: &'a Routing) -> Self {
        match routing.own.interval() {
            Some(interval) => Self::Interval(interval),
            None => Self::Other(&routing.own),
        }
    }

    #[inline]
    fn position(&self, index: usize) -> Option<usize> {
        match self {
            Self::Interval(own) => own.contains(&index).then(|| index - own.start),
            Self::Other(part) => part.position(index),
        }
    }
}

/// Rows of other ranks that are asked for.
struct Remote<'a> {
    group: Option<&'a Group>,
    /// Where all peers have intervals whose indices are rows: these in order, each with the number of its first row.
    spans: Option<Vec<(Range<usize>, usize)>>,
    /// Per part of the routed dim the peer that has it, where one is asked, and the part.
    peers: Vec<Option<usize>>,
    parts: Vec<DimPart>,
    /// Where the rows of each peer begin among those of all, and the end.
    starts: Vec<usize>,
    seen: Seen,
}

/// Which rows were asked for: a bit for each, where they are not many more than the elements, or a list with repetitions.
enum Seen {
    Bits(Vec<u64>),
    List(Vec<usize>),
}

impl<'a> Remote<'a> {
    fn new(routing: &'a Routing, numbers: &Numbers) -> Self {
        let group = routing.group.as_ref();
        let (mut peers, mut parts, mut starts) = (Vec::new(), Vec::new(), vec![0]);
        if let Some(group) = group {
            let count = group.partition.parts();
            peers = vec![None; count];
            parts.extend((0..count).map(|part| group.partition.part(part)));
            for (number, peer) in group.peers.iter().enumerate() {
                let rows = match number == group.me {
                    true => 0,
                    false => group.partition.size(peer.part) * numbers.all,
                };
                peers[peer.part] = (number != group.me).then_some(number);
                starts.push(starts[number] + rows);
            }
        }
        let rows = starts[starts.len() - 1];
        let spans = (numbers.all == 1).then(|| spans(&parts, &peers, &starts));
        let asks: usize = routing.part.shape.iter().product();
        // To sort takes longer than to look at a word of bits for each element.
        let few = rows / 64 <= asks.saturating_add(1 << 10) && u32::try_from(rows).is_ok();
        Self {
            group,
            spans: spans.flatten(),
            peers,
            parts,
            starts,
            seen: if few {
                Seen::Bits(vec![0; rows.div_ceil(64)])
            } else {
                Seen::List(Vec::new())
            },
        }
    }

    /// The bits of rows, if the rows of other ranks are numbered as the indices are, without this rank's.
    fn in_order(&mut self, own: &Own<'_>) -> Option<&mut [u64]> {
        let (Own::Interval(own), Some(spans)) = (own, &self.spans) else {
            return None;
        };
        let expected = |start: usize| start - if start >= own.end { own.len() } else { 0 };
        let mut end = 0;
        for (span, first) in spans {
            // Between two spans there may only be this rank's own.
            let follows = span.start == end || (end, span.start) == (own.start, own.end);
            if !follows || *first != expected(span.start) {
                return None;
            }
            end = span.end;
        }
        let extent = self.group.map_or(0, |group| group.partition.extent());
        if end != extent && (end, extent) != (own.start, own.end) {
            return None;
        }
        match &mut self.seen {
            Seen::Bits(bits) => Some(bits),
            Seen::List(_) => None,
        }
    }

    /// Notes that a row is asked for which this rank has not.
    #[inline]
    fn note(&mut self, index: usize, numbers: &Numbers, shared: Shared) -> i64 {
        let row = match &self.spans {
            Some(spans) => {
                let at = spans.partition_point(|(span, _)| span.end <= index);
                let found = spans.get(at).filter(|(span, _)| span.start <= index);
                found.map(|(span, first)| first + index - span.start)
            }
            None => self.row(index, numbers, shared),
        };
        let Some(row) = row else {
            return NONE;
        };
        match &mut self.seen {
            Seen::Bits(bits) => bits[row / 64] |= 1 << (row % 64),
            Seen::List(list) => list.push(row),
        }
        NONE - 1 - row as i64
    }

    /// The number of a row among those of all peers.
    fn row(&self, index: usize, numbers: &Numbers, shared: Shared) -> Option<usize> {
        let part = self.group?.partition.owner_of(index)?;
        let (peer, rows) = (self.peers[part]?, &self.parts[part]);
        let at = rows.position(index)?;
        Some(self.starts[peer] + numbers.key(rows.len(), at, shared))
    }

    /// Numbers the rows that were asked for, behind the rank's own.
    fn settle(self, keys: &mut [i64], own: usize) -> Asked {
        match self.seen {
            // There are no rows of others.
            Seen::Bits(bits) if bits.is_empty() => asked(&self.starts, std::iter::empty(), 0),
            Seen::Bits(bits) => {
                // How many rows there are in front of each word.
                let mut before = Vec::with_capacity(bits.len());
                let mut count = 0;
                for word in bits.iter() {
                    before.push(count);
                    count += word.count_ones();
                }
                renumber(keys, |row| {
                    let below = bits[row / 64] & ((1 << (row % 64)) - 1);
                    own + (before[row / 64] + below.count_ones()) as usize
                });
                let rows = (bits.iter().enumerate()).flat_map(|(k, &word)| ones(64 * k, word));
                asked(&self.starts, rows, count as usize)
            }
            Seen::List(mut list) => {
                list.sort_unstable();
                list.dedup();
                for key in keys.iter_mut().filter(|key| **key < NONE) {
                    let row = (NONE - 1 - *key) as usize;
                    *key = (own + list.partition_point(|&r| r < row)) as i64;
                }
                asked(&self.starts, list.iter().copied(), list.len())
            }
        }
    }
}

/// The intervals that peers have, in order, and the numbers of their first rows; nothing if a part is no interval.
fn spans(
    parts: &[DimPart],
    peers: &[Option<usize>],
    starts: &[usize],
) -> Option<Vec<(Range<usize>, usize)>> {
    let of_peers = parts
        .iter()
        .zip(peers)
        .filter_map(|(part, peer)| Some((part, (*peer)?)));
    let mut spans = (of_peers.filter(|(part, _)| !part.is_empty()))
        .map(|(part, peer)| Some((part.interval()?, starts[peer])))
        .collect::<Option<Vec<_>>>()?;
    spans.sort_by_key(|(span, _)| span.start);
    Some(spans)
}

/// Ascending rows, `count` of them, as their owners number them, whose rows begin at these places.
fn asked(starts: &[usize], rows: impl Iterator<Item = usize>, count: usize) -> Asked {
    let mut asked = Asked {
        requests: Vec::with_capacity(count),
        counts: vec![0; starts.len() - 1],
    };
    let mut peer = 0;
    for row in rows {
        while row >= starts[peer + 1] {
            peer += 1;
        }
        asked.counts[peer] += 1;
        asked.requests.push((row - starts[peer]) as i64);
    }
    asked
}

/// Puts keys in place of the numbers of rows that were noted.
fn renumber(keys: &mut [i64], key_of: impl Fn(usize) -> usize) {
    for key in keys {
        // No branch, since nobody could foresee it: a key that stays one looks at row 0.
        let noted = *key < NONE;
        let row = if noted { NONE - 1 - *key } else { 0 };
        let found = key_of(row as usize) as i64;
        *key = if noted { found } else { *key };
    }
}

/// Which bits of a word are set, counted from `first`, ascending.
fn ones(first: usize, mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (word != 0).then(|| first + word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(at)
    })
}

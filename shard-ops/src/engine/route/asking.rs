//! Which rows a rank's part of an operand names: its own, by key, and those to be asked for, each once.

use crate::strategy::{Group, Keyed, Routing};
use shard_comm::AgreedError;
use shard_spec::DimPart;
use smallvec::SmallVec;

/// What a part of an operand asks for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    /// Per element the row it names: a row of the rank's own, one of those asked for, counted on from there, or none.
    pub(super) keys: Vec<i64>,
    /// The rows asked for as their owners number them, peer by peer and ascending.
    pub(super) requests: Vec<i64>,
    /// How many from each peer.
    pub(super) counts: Vec<usize>,
}

/// Looks up what every element names.
///
/// # Errors
/// The first index that is out of range.
pub(super) fn ask(
    op: &'static str,
    routing: &Routing,
    indices: &[i64],
) -> Result<Asked, AgreedError> {
    let numbers = Numbers::new(routing);
    let mut remote = Remote::new(routing, &numbers);
    let mut keys = Vec::with_capacity(indices.len());
    let mut stray = None;
    numbers.for_each(indices, |value, shared| {
        if routing.absent == Some(value) {
            keys.push(NONE);
            return;
        }
        let from_end = if routing.from_end && value < 0 {
            value.checked_add_unsigned(routing.extent as u64)
        } else {
            Some(value)
        };
        let index = from_end.and_then(|i| usize::try_from(i).ok());
        let Some(index) = index.filter(|&i| i < routing.extent) else {
            stray.get_or_insert(keys.len());
            keys.push(NONE);
            return;
        };
        keys.push(match routing.own.position(index) {
            Some(at) => numbers.key(routing.own.len(), at, shared) as i64,
            None => remote.note(index, &numbers, shared),
        });
    });
    if let Some(at) = stray {
        return Err(out_of_range(op, routing, at, indices[at]));
    }
    Ok(remote.settle(keys, numbers.all * routing.own.len()))
}

/// What an element holds in place of a key until all have been seen: none, or from here down one of another rank.
const NONE: i64 = -1;

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

    /// Calls `f` with every element and its place in the shared dims.
    fn for_each(&self, indices: &[i64], mut f: impl FnMut(i64, Shared)) {
        if self.all == 1 {
            indices.iter().for_each(|&value| f(value, (0, 0)));
            return;
        }
        let mut at: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.shape.len());
        let (mut outer, mut inner) = (0, 0);
        for &value in indices {
            f(value, (outer, inner));
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

/// Rows of other ranks that are asked for.
struct Remote<'a> {
    group: Option<&'a Group>,
    /// Per part of the routed dim the peer that has it, where one is asked, and the part.
    peers: Vec<Option<usize>>,
    parts: Vec<DimPart>,
    /// Where the rows of each peer begin among those of all, and the end.
    starts: Vec<usize>,
    seen: Seen,
}

/// Which rows were asked for: marks, where there are few rows, or a list with repetitions.
enum Seen {
    Marks(Vec<u32>),
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
        let asks: usize = routing.part.shape.iter().product();
        // A mark takes four bytes, and to sort takes longer.
        let few = rows <= 8 * asks.saturating_add(1 << 13) && u32::try_from(rows).is_ok();
        Self {
            group,
            peers,
            parts,
            starts,
            seen: if few {
                Seen::Marks(vec![0; rows])
            } else {
                Seen::List(Vec::new())
            },
        }
    }

    /// Notes that a row is asked for which this rank has not.
    fn note(&mut self, index: usize, numbers: &Numbers, shared: Shared) -> i64 {
        let Some(group) = self.group else {
            return NONE;
        };
        let part = group.partition.owner_of(index);
        let Some((part, peer)) = part.and_then(|part| Some((part, self.peers[part]?))) else {
            return NONE;
        };
        let rows = &self.parts[part];
        let Some(at) = rows.position(index) else {
            return NONE;
        };
        let row = self.starts[peer] + numbers.key(rows.len(), at, shared);
        match &mut self.seen {
            Seen::Marks(marks) => marks[row] = 1,
            Seen::List(list) => list.push(row),
        }
        NONE - 1 - row as i64
    }

    /// Numbers the rows that were asked for, behind the rank's own.
    fn settle(self, mut keys: Vec<i64>, own: usize) -> Asked {
        let rows: Vec<usize>;
        let number: Box<dyn Fn(usize) -> usize>;
        match self.seen {
            Seen::Marks(mut marks) => {
                let mut found = Vec::new();
                for (row, mark) in marks.iter_mut().enumerate().filter(|(_, mark)| **mark > 0) {
                    *mark = found.len() as u32;
                    found.push(row);
                }
                rows = found;
                number = Box::new(move |row| marks[row] as usize);
            }
            Seen::List(mut list) => {
                list.sort_unstable();
                list.dedup();
                rows = list.clone();
                number = Box::new(move |row| list.partition_point(|&r| r < row));
            }
        }
        for key in keys.iter_mut().filter(|key| **key < NONE) {
            *key = (own + number((NONE - 1 - *key) as usize)) as i64;
        }
        let counts = self.starts.windows(2).map(|ends| {
            let below = |end: usize| rows.partition_point(|&row| row < end);
            below(ends[1]) - below(ends[0])
        });
        let counts: Vec<usize> = counts.collect();
        let mut requests = Vec::with_capacity(rows.len());
        let mut rows = rows.into_iter();
        for (&count, &start) in counts.iter().zip(&self.starts) {
            requests.extend(rows.by_ref().take(count).map(|row| (row - start) as i64));
        }
        Asked {
            keys,
            requests,
            counts,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::RouteBy;
    use crate::strategy::{OperandPart, Peer};
    use shard_spec::Partition;
    use smallvec::smallvec;

    /// Rank `me` of as many as the partition has parts, which looks up a part of this shape.
    pub(in super::super) fn routing(
        partition: &Partition,
        me: usize,
        shape: &[usize],
        keyed: &[Keyed],
    ) -> Routing {
        let peers = (0..partition.parts()).map(|part| Peer { at: part, part });
        Routing {
            index: 1,
            part: OperandPart {
                shape: shape.iter().copied().collect(),
                held: shape.iter().map(|&n| DimPart::from(10..10 + n)).collect(),
            },
            extent: partition.extent(),
            from_end: true,
            skips: None,
            absent: None,
            own: partition.part(me),
            keyed: keyed.iter().copied().collect(),
            group: Some(Group {
                partition: partition.clone(),
                peers: peers.collect(),
                me,
            }),
            narrow: true,
            fetched: Vec::new(),
            home: Vec::new(),
            id: 0,
            by: RouteBy::Ask,
            considered: smallvec![],
            merging: None,
        }
    }

    #[test]
    fn duplicates_are_asked_for_once_and_in_order() {
        // Rows 0..4, none, 4..7, 7..10: rank 2 asks.
        let partition = Partition::from_sizes(&[4, 0, 3, 3]).unwrap();
        let routing = routing(&partition, 2, &[7], &[Keyed::Routed]);
        let asked = ask("take", &routing, &[9, 0, 5, -1, 3, 0, 4]).unwrap();
        assert_eq!(asked.requests, [0, 3, 2]);
        assert_eq!(asked.counts, [2, 0, 0, 1]);
        // Own rows are keys 0..3, the others follow in the order of the requests.
        assert_eq!(asked.keys, [5, 3, 1, 5, 4, 3, 0]);
    }

    #[test]
    fn marks_and_lists_find_the_same() {
        let partition = Partition::block_cyclic(1 << 20, 3, 5);
        let mut indices: Vec<i64> = (0..500).map(|i| (i * i * 7919) % (1 << 20)).collect();
        let few = ask(
            "take",
            &routing(&partition, 1, &[500], &[Keyed::Routed]),
            &indices,
        )
        .unwrap();
        // Enough elements that marks take less room than lists.
        indices.resize(1 << 18, 3);
        let many = routing(&partition, 1, &[1 << 18], &[Keyed::Routed]);
        let many = ask("take", &many, &indices).unwrap();
        let repeated = many.requests.len() - few.requests.len();
        assert!(repeated <= 1, "row 3 may be new");
        let row = |asked: &Asked, key: i64| {
            let own = partition.size(1) as i64;
            (key >= own).then(|| asked.requests[(key - own) as usize])
        };
        for j in 0..500 {
            assert_eq!(row(&few, few.keys[j]), row(&many, many.keys[j]));
        }
    }

    #[test]
    fn shared_dims_count_before_and_after_the_routed_one() {
        // A table [2, 6, 3] whose dim 1 is routed, by an operand [2, 2, 3]: every element has its own row.
        let partition = Partition::from_sizes(&[2, 4]).unwrap();
        let shared = |dim, extent| Keyed::Shared { dim, extent };
        let keyed = [shared(0, 2), Keyed::Routed, shared(2, 3)];
        let routing = routing(&partition, 0, &[2, 2, 3], &keyed);
        let asked = ask("gather", &routing, &[0, 1, 5, 2, 2, 2, 1, 1, 1, 5, 5, 5]).unwrap();
        // Rank 1 has a box [2, 4, 3]: key (b * 4 + at) * 3 + c.
        assert_eq!(asked.requests, [0, 1, 2, 11, 21, 22, 23]);
        assert_eq!(asked.keys[..3], [0, 4, 12 + 3]);
        assert_eq!(asked.keys[3..6], [12, 13, 14]);
        assert_eq!(asked.keys[6..9], [9, 10, 11]);
        assert_eq!(asked.keys[9..], [16, 17, 18]);
    }

    #[test]
    fn strays_are_named_by_global_position() {
        let partition = Partition::balanced(6, 2);
        let routing = routing(&partition, 0, &[2, 3], &[Keyed::Routed]);
        let error = ask("take", &routing, &[0, 5, -6, 1, 6, -7]).unwrap_err();
        assert_eq!(
            (error.expected.as_str(), error.got.as_str()),
            (
                "indices from -6 to below 6, the extent of the dim",
                "index 6 at position [11, 11]"
            )
        );
    }
}

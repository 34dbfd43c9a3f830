//! Collectives in stages, on threads that go about them as if they sent messages: the bits are those of one exchange.

use std::rc::Rc;

use shard_comm::backend::Decorator;
use shard_comm::{Buffer, Communicator, DType, LinkCost, Monoid, Nodes, Strided, contract, local};

/// Threads that go about collectives as if they sent messages at this cost, and were on several nodes.
#[derive(Debug)]
struct Sending {
    inner: Rc<dyn Communicator>,
    link: LinkCost,
    /// The number of a rank's node is its number divided by the first of these, modulo the second.
    nodes: Option<(usize, usize)>,
    known: Option<Nodes>,
}

impl Sending {
    fn new(inner: Rc<dyn Communicator>, link: LinkCost, nodes: Option<(usize, usize)>) -> Self {
        let of = |(by, modulo): (usize, usize)| {
            let of = inner.members().iter().map(|rank| rank / by % modulo);
            Nodes::new(&of.collect::<Vec<_>>())
        };
        Self {
            known: nodes.and_then(of),
            inner,
            link,
            nodes,
        }
    }
}

impl Decorator for Sending {
    fn inner(&self) -> &Rc<dyn Communicator> {
        &self.inner
    }

    fn decorate(&self, group: Rc<dyn Communicator>) -> Rc<dyn Communicator> {
        Rc::new(Self::new(group, self.link, self.nodes))
    }

    fn messages(&self) -> Option<LinkCost> {
        Some(self.link)
    }

    fn nodes(&self) -> Option<&Nodes> {
        self.known.as_ref()
    }
}

/// One node; nodes of neighbours, all alike or the last one smaller; ranks dealt out to nodes in turn.
const NODES: [Option<(usize, usize)>; 5] = [
    None,
    Some((3, usize::MAX)),
    Some((4, usize::MAX)),
    Some((1, 3)),
    Some((2, 2)),
];

/// Messages that cost nothing but their bytes, and bytes that cost nothing.
const BYTES_COUNT: LinkCost = LinkCost {
    latency: 0.0,
    per_byte: 1.0,
};
const MESSAGES_COUNT: LinkCost = LinkCost {
    latency: 1.0,
    per_byte: 0.0,
};

/// Runs a program on threads twice, reading memory and as if by messages: the same bits.
fn same_bits(ranks: usize, program: impl Fn(&dyn Communicator) -> Vec<u8> + Send + Sync) {
    let results = local::run(ranks, |comm| {
        let direct = program(&*comm);
        let comm: Rc<dyn Communicator> = Rc::new(comm);
        for (link, nodes) in [BYTES_COUNT, MESSAGES_COUNT]
            .into_iter()
            .flat_map(|link| NODES.map(|nodes| (link, nodes)))
        {
            let sending = Sending::new(Rc::clone(&comm), link, nodes);
            assert_eq!(program(&sending), direct, "{link:?} {nodes:?}");
        }
    });
    results.unwrap();
}

/// Terms whose sum depends on the order in which they are added, and rounds in 16 bits.
fn term(rank: usize, i: usize) -> f64 {
    let sign = if (rank + i).is_multiple_of(2) {
        1.0
    } else {
        -1.0
    };
    sign * (1.0 + (rank * 37 + i * 11) as f64 / 7.0) * [1.0, 100.0, 0.01][(rank * 5 + i) % 3]
}

fn upload(comm: &dyn Communicator, dtype: DType, len: usize) -> Buffer {
    let values: Vec<f64> = (0..len).map(|i| term(comm.rank(), i)).collect();
    let wide = comm.device().upload_slice(&values).unwrap();
    let all = Strided::contiguous(&[len]);
    let mut narrow = comm.device().alloc(dtype, len).unwrap();
    comm.device().copy(&wide, &all, &mut narrow, &all).unwrap();
    narrow.freeze()
}

/// As many elements on each rank, which can be divided among all.
fn whole(comm: &dyn Communicator) -> Buffer {
    upload(comm, DType::BF16, 3 * comm.size())
}

fn bytes(buffer: Option<Buffer>) -> Vec<u8> {
    buffer.map_or(vec![255], |b| b.as_bytes().unwrap().to_vec())
}

#[test]
fn sums_have_the_bits_of_the_tree() {
    for ranks in [1, 2, 5, 6, 7, 8, 9, 11, 12, 13, 16, 21, 33] {
        same_bits(ranks, |comm| {
            let mut all = Vec::new();
            for dtype in [DType::F64, DType::BF16, DType::I32] {
                for len in [0, 1, 6, 1200] {
                    let mine = upload(comm, dtype, len);
                    all.extend(bytes(Some(comm.all_reduce(&mine, Monoid::SUM).unwrap())));
                    let root = len % comm.size();
                    let started = comm.start_all_reduce(&mine, Monoid::MAX).unwrap();
                    all.extend(bytes(comm.reduce(&mine, Monoid::SUM, root).unwrap()));
                    all.extend(bytes(started.wait_optional().unwrap()));
                    if dtype.is_float() && len % 6 == 0 {
                        let sum = comm.all_reduce(&mine, Monoid::Moments).unwrap();
                        all.extend(bytes(Some(sum)));
                        let sum = comm.start_reduce(&mine, Monoid::MaxSumExp, root).unwrap();
                        all.extend(bytes(sum.wait_optional().unwrap()));
                    }
                }
            }
            all
        });
    }
}

#[test]
fn copies_are_those_of_one_exchange() {
    for ranks in [9, 11, 12, 13, 16, 21, 33] {
        same_bits(ranks, |comm| {
            let (me, mut all) = (comm.rank(), Vec::new());
            let cases = [vec![1; ranks], vec![5; ranks]].into_iter();
            let uneven = (0..4).map(|turn| (0..ranks).map(|r| (r * 5 + turn) % 4).collect());
            let one = (0..ranks).map(|r| if r == 3 { 7 } else { 0 }).collect();
            for counts in cases.chain(uneven).chain([one, vec![0; ranks]]) {
                let total: usize = counts.iter().sum();
                let root = (total + 3) % ranks;
                let mine = upload(comm, DType::F32, counts[me]);
                all.extend(bytes(Some(comm.all_gather_v(&mine, &counts).unwrap())));
                all.extend(bytes(comm.gather_v(&mine, &counts, root).unwrap()));
                all.extend(bytes(Some(comm.all_gather(&whole(comm)).unwrap())));
                let part = comm.reduce_scatter(&whole(comm), Monoid::SUM).unwrap();
                all.extend(bytes(Some(part)));
                for dtype in [DType::F32, DType::BF16] {
                    let whole = upload(comm, dtype, total);
                    let part = comm.reduce_scatter_v(&whole, &counts, Monoid::SUM);
                    all.extend(bytes(Some(part.unwrap())));
                    let data = (me == root).then_some(&whole);
                    let part = comm.scatter_v(data, &counts, root, dtype).unwrap();
                    all.extend(bytes(Some(part)));
                    let copy = comm.broadcast(data, root, dtype, total).unwrap();
                    all.extend(bytes(Some(copy)));
                }
                let groups: Vec<usize> = counts.iter().map(|c| 3 * c).collect();
                let whole = upload(comm, DType::F64, 3 * total);
                let part = comm.reduce_scatter_v(&whole, &groups, Monoid::Moments);
                all.extend(bytes(Some(part.unwrap())));
            }
            all
        });
    }
}

#[test]
fn the_contract_holds_for_stages() {
    for ranks in [5, 9] {
        local::run(ranks, |comm| {
            let comm: Rc<dyn Communicator> = Rc::new(comm);
            for link in [BYTES_COUNT, MESSAGES_COUNT] {
                let nodes = Some((3, usize::MAX));
                contract::all(&Sending::new(Rc::clone(&comm), link, nodes));
            }
        })
        .unwrap();
    }
}

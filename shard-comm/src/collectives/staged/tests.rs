use std::rc::Rc;

use super::sums::{doubling_stages, halving_messages};
use super::*;
use crate::backend::Decorator;
use crate::{Communicator, Nodes, local};

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

fn log2(ranks: usize) -> usize {
    ranks.next_power_of_two().ilog2() as usize
}

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
    narrow(wide, dtype).unwrap()
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
                crate::contract::all(&Sending::new(Rc::clone(&comm), link, nodes));
            }
        })
        .unwrap();
    }
}

/// The messages of the steps of all ranks: the most that one receives, and that one sends.
fn most(ranks: usize, steps: impl Fn(usize) -> Vec<Step>) -> (usize, usize) {
    let mut most = (0, 0);
    for me in 0..ranks {
        let steps = steps(me);
        let received = steps.iter().map(|s| s.plan.remote_messages(me)).sum();
        let sent = |s: &Step| s.plan.outgoing().iter().filter(|t| t.peer() != me).count();
        most = (
            most.0.max(received),
            most.1.max(steps.iter().map(sent).sum()),
        );
    }
    most
}

#[test]
fn messages_grow_with_the_logarithm() {
    let sizes = (2..=130).chain([255, 256, 257, 1000, 1024, 1025, 4096, 16_384]);
    for ranks in sizes {
        let bar = 2 * log2(ranks) + 2;
        let len = 4 * ranks;
        let doubling = |me| all_reduce("t", Way::Doubling, me, ranks, len, Monoid::SUM);
        let (received, sent) = most(ranks, doubling);
        assert!(received <= log2(ranks) && sent <= bar, "{sent} of {ranks}");
        assert_eq!(doubling(0).len(), doubling_stages(ranks));
        let halving = |me| all_reduce("t", Way::Halving, me, ranks, len, Monoid::SUM);
        let (received, _) = most(ranks, halving);
        assert_eq!(received, halving_messages(ranks), "{ranks}");
        // Whichever way is taken, all of them keep to it.
        for link in [BYTES_COUNT, MESSAGES_COUNT] {
            for bytes in [1, ONE_ROUND_BYTES, ONE_ROUND_BYTES + 1, 1 << 20] {
                let messages = match Way::new(ranks, bytes, link) {
                    Way::Direct if bytes <= ONE_ROUND_BYTES => ranks - 1,
                    Way::Direct => 2 * (ranks - 1),
                    Way::Doubling => log2(ranks),
                    Way::Halving => received,
                };
                assert!(messages <= bar, "{messages} of {ranks} for {bytes}");
            }
        }
    }
}

#[test]
fn messages_of_copies_grow_with_the_logarithm() {
    for ranks in (9..=70).chain([128, 255, 1000, 1024]) {
        let counts = vec![2; ranks];
        let root = ranks / 3;
        let levels = log2(ranks);
        let (received, sent) = most(ranks, |me| all_gather("t", me, &counts, None));
        assert_eq!((received, sent), (levels, levels));
        let (received, sent) = most(ranks, |me| broadcast("t", me, root, ranks, 5, None));
        assert_eq!((received, sent), (1, levels));
        let (received, sent) = most(ranks, |me| broadcast_parts("t", me, root, &counts, None));
        assert!(received <= levels + 1 && sent <= 2 * levels);
        let (received, sent) = most(ranks, |me| scatter("t", me, root, &counts, None));
        assert_eq!((received, sent), (1, levels));
        let (received, sent) = most(ranks, |me| gather("t", me, root, &counts, None));
        assert_eq!((received, sent), (levels, 1));
        let (received, sent) = most(ranks, |me| reduce_scatter("t", me, &counts, Monoid::SUM));
        assert!(received.max(sent) <= 2 * levels);
    }
}

/// Where the number of ranks is a power of two nothing moves twice.
#[test]
fn halving_moves_no_more_than_it_must() {
    for ranks in [8, 16, 64] {
        let len = 8 * ranks;
        for me in 0..ranks {
            let steps = all_reduce("t", Way::Halving, me, ranks, len, Monoid::SUM);
            let moved: usize = steps.iter().map(|s| s.plan.remote_elements(me)).sum();
            assert_eq!(moved, 2 * (ranks - 1) * len / ranks);
        }
    }
}

/// Elements that all ranks receive from other nodes.
fn crossing(nodes: &Nodes, steps: impl Fn(usize) -> Vec<Step>) -> usize {
    let ranks = nodes.all().iter().map(Vec::len).sum();
    let of_rank = |me: usize| -> usize {
        let steps = steps(me);
        let traffic = steps.iter().flat_map(|step| step.plan.incoming());
        let crosses = traffic.filter(|t| nodes.of(t.peer()) != nodes.of(me));
        crosses.map(|t| t.elements).sum()
    };
    (0..ranks).map(of_rank).sum()
}

/// Copies and large sums cross between nodes as seldom as they can, whichever ranks the nodes have.
#[test]
fn elements_cross_between_nodes_once() {
    let shapes = [(8, 8), (5, 6), (3, 12), (16, 4)];
    for (count, each) in shapes {
        let ranks = count * each;
        let neighbours: Vec<usize> = (0..ranks).map(|rank| rank / each).collect();
        let in_turn: Vec<usize> = (0..ranks).map(|rank| rank % count).collect();
        for of in [neighbours, in_turn] {
            let nodes = Nodes::new(&of).unwrap();
            let (part, root) = (3, ranks / 3);
            let (counts, whole) = (vec![part; ranks], part * ranks);
            let to_all = (count - 1) * whole;
            let some = Some(&nodes);
            // What a node lacks comes to it once.
            let gathered = crossing(&nodes, |me| all_gather("t", me, &counts, some));
            assert_eq!(gathered, to_all, "{count} nodes of {each}");
            let spread = crossing(&nodes, |me| broadcast("t", me, root, ranks, whole, some));
            assert_eq!(spread, to_all);
            // On its way from or to the root a part passes at most as many nodes as there are doublings of their number.
            let few = log2(count) * (whole - each * part);
            let dealt = crossing(&nodes, |me| scatter("t", me, root, &counts, some));
            let joined = crossing(&nodes, |me| gather("t", me, root, &counts, some));
            assert!(
                dealt <= few && joined == dealt,
                "{dealt} and {joined} of {few}"
            );
            let parts = crossing(&nodes, |me| broadcast_parts("t", me, root, &counts, some));
            assert_eq!(parts, dealt + to_all);
        }
    }
}

/// Large sums keep the tree's order. Where nodes have a power of two of neighbouring ranks, every term crosses once on its way to the sum,
/// and the sum once on its way to every node.
#[test]
fn sums_cross_between_nodes_once() {
    for (count, each) in [(8, 8), (4, 16), (32, 2)] {
        let ranks = count * each;
        let of: Vec<usize> = (0..ranks).map(|rank| rank / each).collect();
        let nodes = Nodes::new(&of).unwrap();
        let len = 2 * ranks;
        let sum = |me| all_reduce("t", Way::Halving, me, ranks, len, Monoid::SUM);
        assert_eq!(crossing(&nodes, sum), 2 * (count - 1) * len);
        let counts = vec![2; ranks];
        let scattered = |me| reduce_scatter("t", me, &counts, Monoid::SUM);
        assert_eq!(crossing(&nodes, scattered), (count - 1) * len);
    }
}

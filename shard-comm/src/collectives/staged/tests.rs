use super::sums::{doubling_stages, halving_messages};
use super::*;
use crate::Nodes;

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

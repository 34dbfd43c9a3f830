//! Which ranks of a group share a node.

use std::collections::BTreeMap;

/// The ranks of a group by the nodes they are on.
///
/// ```
/// use shard_comm::Nodes;
/// let nodes = Nodes::new(&[7, 7, 2, 7]).unwrap();
/// assert_eq!((nodes.all(), nodes.of(2)), (&[vec![0, 1, 3], vec![2]][..], 1));
/// assert!(Nodes::new(&[4, 4, 4]).is_none());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nodes {
    all: Vec<Vec<usize>>,
    of: Vec<usize>,
}

impl Nodes {
    /// The nodes of ranks, given any number that tells each rank's node; `None` if they are all on one, or each on one of its own.
    pub fn new(of: &[usize]) -> Option<Self> {
        let mut numbers = BTreeMap::new();
        let mut all: Vec<Vec<usize>> = Vec::new();
        let place = |(rank, node): (usize, &usize)| {
            let next = all.len();
            let at = *numbers.entry(*node).or_insert(next);
            match all.get_mut(at) {
                Some(ranks) => ranks.push(rank),
                None => all.push(vec![rank]),
            }
            at
        };
        let of: Vec<usize> = of.iter().enumerate().map(place).collect();
        (1 < all.len() && all.len() < of.len()).then_some(Self { all, of })
    }

    /// The ranks of each node, in their order; nodes in the order of their first ranks.
    pub fn all(&self) -> &[Vec<usize>] {
        &self.all
    }

    /// The node of a rank, by its place in [`Nodes::all`].
    pub fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// How many ranks of the group each node has, if all have as many.
    pub fn each(&self) -> Option<usize> {
        let each = self.all.first()?.len();
        self.all
            .iter()
            .all(|node| node.len() == each)
            .then_some(each)
    }
}

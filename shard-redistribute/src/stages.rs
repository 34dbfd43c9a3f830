//! Exchanges in stages: where many ranks have little for each other, pieces pass through other ranks, so that each has few
//! messages.
//!
//! One mesh axis is taken apart into several, as if its ranks were numbered by digits, and moves one digit at a time. What ranks
//! hold in between are layouts of this finer mesh, so every stage is an exchange like any other, and so is its price. For example,
//! rows become columns on 64 ranks of 8 nodes: first the ranks of each node move among themselves what they have for the ranks at
//! each place of all nodes (7 messages), and then those at the same place of all nodes (7 more, in place of 63). As many bytes as
//! before go from node to node. A gather begins with the nodes, so that what is gathered comes to each of them once.
//!
//! Sums are formed from the last digit on. Where all digits but the first have a power of two of values, this is the tree of
//! [`by_tree`](shard_comm::by_tree), so the bits are those of the direct exchange.

use crate::budget::is_affordable;
use crate::path::{Axes, Move, partway, reductions};
use crate::price::HopCost;
use crate::{CostModel, Owners, Result};
use shard_comm::DType;
use shard_spec::{DeviceMesh, DimSharding, Layout};
use smallvec::SmallVec;

/// How an exchange goes in stages.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// The axis that is taken apart.
    pub split: AxisSplit,
    /// The exchange of each stage, on the finer mesh. They feed one another.
    pub moves: Vec<Move>,
}

/// A mesh axis that is taken apart.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AxisSplit {
    /// Its number in the mesh.
    pub axis: usize,
    /// How many values each digit has, the major one first.
    pub digits: Axes,
    /// Whether the last digit moves first.
    pub last_first: bool,
}

impl Stages {
    /// The cheapest stages of an exchange by the model, if they are cheaper than a message from each rank to each other, and hold no
    /// more than `room` bytes in between. It depends on nothing but the arguments.
    pub fn best(of: &Move, dtype: DType, model: &CostModel, room: usize) -> Option<Self> {
        let model = model.by_messages()?;
        let axis = moving(of)?;
        // Sums of 16-bit floats are to be rounded once.
        if dtype.is_half() && !of.scatter.is_empty() {
            return None;
        }
        let size = dtype.size();
        let direct = of.cost(model, size);
        if direct.messages <= model.at_once || of.builder().is_local() {
            return None;
        }
        let summed = !of.scatter.is_empty();
        let each = model.near(axis).map_or(1, |(each, _)| each);
        let mut best: Option<(f64, Self)> = None;
        for digits in digits(of.to.mesh().shape()[axis], each, summed) {
            for last_first in [true, false] {
                let split = AxisSplit {
                    axis,
                    digits: digits.clone(),
                    last_first,
                };
                // What cannot be described is not worth considering.
                let Ok(Some(stages)) = Self::new(of, split) else {
                    continue;
                };
                if stages.staging().saturating_mul(size) > room || !is_affordable(&stages.moves) {
                    continue;
                }
                let seconds = stages.cost(model, size).time;
                let least = best.as_ref().map_or(direct.time, |(least, _)| *least);
                if seconds < least {
                    best = Some((seconds, stages));
                }
            }
        }
        best.map(|(_, stages)| stages)
    }

    /// The stages of an exchange in which this axis is taken apart; `None` if sums would be formed in another order, or if there is
    /// only one stage.
    ///
    /// # Errors
    /// Layouts in between that have too many tiles to be written out.
    pub fn new(of: &Move, split: AxisSplit) -> Result<Option<Self>> {
        let ranks = of.to.mesh().shape().get(split.axis).copied();
        let numbers = split
            .digits
            .iter()
            .try_fold(1, |all: usize, n| all.checked_mul(*n));
        let Some((_, minor)) = split.digits.split_first() else {
            return Ok(None);
        };
        let by_tree = split.last_first && minor.iter().all(|n| n.is_power_of_two());
        let sums = of.scatter.is_empty() || by_tree;
        let idle = split.digits.iter().any(|&n| n < 2);
        if moving(of) != Some(split.axis) || ranks != numbers || !sums || idle {
            return Ok(None);
        }
        let mesh = split.mesh(of.to.mesh())?;
        let (from, to) = (split.layout(&of.from, &mesh)?, split.layout(&of.to, &mesh)?);
        let mut order: Axes = split.axes().collect();
        if split.last_first {
            order.reverse();
        }
        let (mut moves, mut at) = (Vec::new(), from.clone());
        for moved in 1..=order.len() {
            let next = match moved == order.len() {
                true => to.clone(),
                false => between(&from, &to, &order[..moved])?,
            };
            let (scatter, all) = reductions(&at, &next);
            if !all.is_empty() {
                return Ok(None);
            }
            if at != next {
                moves.push(Move {
                    from: at,
                    to: next.clone(),
                    scatter,
                    owners: Owners::Nearest,
                    stages: None,
                });
                at = next;
            }
        }
        Ok((moves.len() > 1).then_some(Self { split, moves }))
    }

    /// Most elements that some rank holds between the stages, summed over them.
    pub fn staging(&self) -> usize {
        self.between().map(Layout::max_local_numel).sum()
    }

    /// What ranks hold between the stages.
    pub(crate) fn between(&self) -> impl Iterator<Item = &Layout> {
        let last = self.moves.len() - 1;
        self.moves[..last].iter().map(|stage| &stage.to)
    }

    /// What the stages cost together, for elements of `size` bytes.
    pub fn cost(&self, model: &CostModel, size: usize) -> HopCost {
        let model = model.split(self.split.axis, &self.split.digits);
        let costs = self.moves.iter().map(|stage| stage.cost(&model, size));
        costs.fold(HopCost::default(), |sum, one| HopCost {
            time: sum.time + one.time,
            received: sum.received + one.received,
            sent: sum.sent + one.sent,
            messages: sum.messages + one.messages,
        })
    }
}

impl AxisSplit {
    /// The axes that stand for the one that is taken apart.
    fn axes(&self) -> impl Iterator<Item = usize> {
        self.axis..self.axis + self.digits.len()
    }

    /// The same ranks with the axis taken apart.
    fn mesh(&self, mesh: &DeviceMesh) -> Result<DeviceMesh> {
        let mut shape: Vec<usize> = mesh.shape().to_vec();
        shape.splice(self.axis..=self.axis, self.digits.iter().copied());
        Ok(DeviceMesh::with_ranks(&shape, mesh.ranks().to_vec())?)
    }

    /// The same layout on the finer mesh.
    fn layout(&self, layout: &Layout, mesh: &DeviceMesh) -> Result<Layout> {
        let finer = |axes: &[usize]| -> SmallVec<[usize; 2]> {
            let mut all = SmallVec::new();
            for &a in axes {
                match a.cmp(&self.axis) {
                    std::cmp::Ordering::Less => all.push(a),
                    std::cmp::Ordering::Equal => all.extend(self.axes()),
                    std::cmp::Ordering::Greater => all.push(a + self.digits.len() - 1),
                }
            }
            all
        };
        let dims = layout.shardings().iter().map(|sharding| {
            sharding.as_ref().map(|s| DimSharding {
                axes: finer(&s.axes),
                partition: s.partition.clone(),
            })
        });
        let partial = finer(layout.partial_axes());
        let partial = layout.partial_op().map(|op| (op, &partial[..]));
        Ok(Layout::from_dims(mesh, layout.shape(), dims, partial)?)
    }
}

/// The layout in which these axes have moved, and the others hold what they held.
fn between(from: &Layout, to: &Layout, moved: &[usize]) -> Result<Layout> {
    let layout = partway(from, to, moved)?;
    let terms: Axes = (from.partial_axes().iter().copied())
        .filter(|a| !moved.contains(a))
        .collect();
    Ok(match from.partial_op() {
        Some(op) if !terms.is_empty() => layout.with_partial(&terms, op)?,
        _ => layout,
    })
}

/// The one axis along which an exchange moves, if it may go in stages.
fn moving(of: &Move) -> Option<usize> {
    let (from, to) = (&of.from, &of.to);
    if of.owners != Owners::Nearest || to.is_partial() || to.numel() == 0 {
        return None;
    }
    let shape = to.mesh().shape();
    let changes = |&a: &usize| shape[a] > 1 && from.placements()[a] != to.placements()[a];
    let mut changed = (0..shape.len()).filter(changes);
    let axis = changed.next()?;
    // Terms are summed up, or there are none.
    let terms = of.scatter[..] == *from.partial_axes() && of.scatter.iter().all(|&a| a == axis);
    (changed.next().is_none() && terms).then_some(axis)
}

/// The ways to number `n` ranks by digits that are worth pricing, if `each` consecutive ones share a node: digits of about the same
/// number of values, of which the last one has those of a node. If terms are `summed` up, all but the first are powers of two.
pub fn digits(n: usize, each: usize, summed: bool) -> Vec<Axes> {
    let whole = |k: usize| match summed {
        true => 1 << k.trailing_zeros(),
        false => k,
    };
    let here = match whole(each) {
        here if here > 1 && here < n => Some(here),
        _ => None,
    };
    let others = n / here.unwrap_or(1);
    let mut primes = primes(others);
    let mut first = 1;
    if summed {
        let odd = primes.iter().filter(|&&p| p != 2);
        first = odd.product();
        primes.retain(|&p| p == 2);
    }
    let most = primes.len() + usize::from(first > 1);
    let mut counts: SmallVec<[usize; 4]> = (1..=3)
        .map(|count| count + usize::from(here.is_none()))
        .filter(|&count| count < most)
        .collect();
    if most + usize::from(here.is_some()) > 1 {
        counts.push(most);
    }
    let numbering = |&count: &usize| {
        let mut digits: Axes = SmallVec::from_elem(1, count);
        digits[0] = first;
        for &p in primes.iter().rev() {
            let least = (0..count).min_by_key(|&i| digits[i]).unwrap_or(0);
            digits[least] *= p;
        }
        digits.extend(here);
        digits
    };
    counts.iter().map(numbering).collect()
}

/// The prime factors of a number, in order.
fn primes(mut n: usize) -> Vec<usize> {
    let (mut found, mut p) = (Vec::new(), 2);
    while p * p <= n {
        while n.is_multiple_of(p) {
            found.push(p);
            n /= p;
        }
        p += 1;
    }
    if n > 1 {
        found.push(n);
    }
    found
}

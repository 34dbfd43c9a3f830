//! The ways to serve a sharded ring dim, what each costs, and the choice between them.
//!
//! The operands' layouts decide where results lie, so that they lie alike whichever way is taken. A way decides which
//! factor the mesh axes of the blocks shard *while the kernels run*: the outputs' (a ring, or a gather), the blocks' own
//! (split), or another that all operands have (heads). Operands are brought there and results brought back by exchanges.

use super::choice::{Choice, received_input};
use super::missing::most_received;
use super::site::{Site, Spans};
use crate::host::partial_type;
use crate::{Access, FoldBy, Reduction};
use shard_redistribute::CostModel;
use shard_spec::{DimCover, DimSharding, Layout, Partition, ReduceOp, numel};
use std::fmt;

/// What one way to serve a sharded ring dim costs the busiest rank, forward or backward, by the mesh's cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WayCost {
    /// The way.
    pub way: FoldBy,
    /// Seconds: those of the kernels at the model's rate, and those of what moves; on a network, what goes round a ring moves
    /// while kernels run. Masks that leave more work to some ranks than to others are not looked at.
    pub seconds: f64,
    /// Bytes received, with those of partial results that are summed later: operand by operand those of the busiest rank, which is
    /// what a rank receives where all are divided evenly, and no less where they are not.
    pub bytes: usize,
    /// Times a rank waits for others.
    pub rounds: usize,
    /// Bytes held beside the operands, as if at once: copies of what comes, results, and what they are made of.
    pub held: usize,
}

impl fmt::Display for WayCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = 1e6 * self.seconds;
        let (way, bytes, rounds, held) = (self.way, self.bytes, self.rounds, self.held);
        write!(
            f,
            "{way:?} ({micros:.1} us, {bytes} bytes in {rounds} rounds, {held} held)"
        )
    }
}

/// A way, and the choice under which its kernels run.
pub(super) struct Way {
    pub(super) cost: WayCost,
    pub(super) work: Choice,
    /// How the blocks are divided.
    pub(super) blocks: DimSharding,
}

impl Site<'_> {
    /// The way to take and what was compared; nothing where no ring dim is sharded.
    pub(super) fn way(&self, layouts: &[Layout], model: &CostModel) -> Option<(Way, Vec<WayCost>)> {
        let mut ways = self.ways(layouts, model);
        let considered = ways.iter().map(|way| way.cost).collect();
        let asked = |way: &Way| way.cost.way == self.rule.fold_by;
        if ways.iter().any(asked) {
            ways.retain(asked);
        }
        let fastest = (ways.iter()).fold(f64::INFINITY, |t, way| t.min(way.cost.seconds));
        ways.retain(|way| way.cost.seconds <= model.slack * fastest);
        let best = ways.into_iter().min_by_key(|way| way.cost.held)?;
        Some((best, considered))
    }

    fn ways(&self, layouts: &[Layout], model: &CostModel) -> Vec<Way> {
        let Some((ring, blocks)) = self.blocks(layouts) else {
            return Vec::new();
        };
        let mut works = vec![(FoldBy::Gather, self.choice.clone())];
        if self.can_ring(&blocks) {
            works.push((FoldBy::Ring, self.choice.clone()));
        }
        works.extend(self.elsewhere(ring, &blocks));
        let price = |(by, work): (FoldBy, Choice)| Way {
            cost: self.price(by, &work, &blocks, layouts, model),
            work,
            blocks: blocks.clone(),
        };
        works.into_iter().map(price).collect()
    }

    /// The ring factor, and how it is divided: as the first of its operands that is.
    fn blocks(&self, layouts: &[Layout]) -> Option<(usize, DimSharding)> {
        let read = (0..layouts.len()).filter(|i| !self.rule.unread.contains(i));
        for i in read {
            for (d, access) in self.rule.inputs[i].iter().enumerate() {
                if let (Access::Ring { factor, .. }, Some(s)) = (access, layouts[i].sharding(d))
                    && s.partition.parts() > 1
                {
                    return Some((*factor, s.clone()));
                }
            }
        }
        None
    }

    /// Whether blocks so divided may go round.
    fn can_ring(&self, blocks: &DimSharding) -> bool {
        // What these axes divide in a dim that all operands have, such as heads, is needed there whole. The rows that blocks are
        // folded into are what they are there to divide: of an operand that has those too, each rank has its own.
        let outputs = self.rule.outputs.iter().map(|o| &o.dims);
        let mut operands = self.rule.inputs.iter().chain(outputs);
        let whole = operands.any(|dims| {
            let rows = |access: &Access| match access {
                Access::Ring { instead, .. } => *instead,
                _ => None,
            };
            let rows = dims.iter().find_map(rows);
            let others = dims.iter().filter(|a| a.factor_index() != rows);
            dims.iter().any(is_ring) && others.into_iter().any(|a| self.divides(a, &blocks.axes))
        });
        // Ranks along an axis that shards no work would all do the same, and their contributions be counted each time.
        let idle = blocks.axes.iter().any(|a| {
            let works = |s: &DimSharding| s.axes.contains(a);
            self.mesh.shape()[*a] > 1 && !self.choice.factors.iter().flatten().any(works)
        });
        !idle && !whole
    }

    /// Whether a dim that is indexed so is divided by one of these axes.
    pub(super) fn divides(&self, access: &Access, axes: &[usize]) -> bool {
        let sharding = access
            .factor_index()
            .and_then(|f| self.choice.factors[f].as_ref());
        sharding.is_some_and(|s| s.axes.iter().any(|a| axes.contains(a)))
    }

    /// Choices that move the axes of the blocks from the factor they shard to the blocks' own, or to another.
    fn elsewhere(&self, ring: usize, blocks: &DimSharding) -> Vec<(FoldBy, Choice)> {
        let rule = self.rule;
        let mut accesses = (rule.inputs.iter()).chain(rule.outputs.iter().map(|o| &o.dims));
        let rows = accesses.any(|dims| dims.iter().any(|a| matches!(a, Access::Rows { .. })));
        let shards = |s: &Option<DimSharding>| {
            s.as_ref()
                .is_some_and(|s| s.axes.ends_with(&blocks.axes[..]))
        };
        let Some(held) = self.choice.factors.iter().position(shards) else {
            return Vec::new();
        };
        if rows || !self.choice.carry.is_empty() {
            return Vec::new();
        }
        let parts = blocks.partition.parts();
        let freed = self.choice.factors[held].as_ref().and_then(|s| {
            let kept = s.axes.len() - blocks.axes.len();
            (kept > 0)
                .then(|| s.partition.joined(parts).ok())
                .flatten()
                .map(|partition| DimSharding {
                    axes: s.axes[..kept].into(),
                    partition,
                })
        });
        let moved = |to: usize, sharding: DimSharding| {
            let mut work = self.choice.clone();
            work.factors[held].clone_from(&freed);
            work.factors[to] = Some(sharding);
            work
        };
        let sums = rule.reduction == Some(Reduction::Partial(ReduceOp::Sum));
        let indexes = |dims: &[Access], f: usize| dims.iter().any(|a| a.factor_index() == Some(f));
        let mut found = Vec::new();
        if sums || rule.merges {
            found.push((FoldBy::Split, moved(ring, blocks.clone())));
        }
        for f in (0..rule.factors.len()).filter(|&f| f != held && !rule.rings(f)) {
            let keys =
                (rule.inputs.iter()).any(|dims| dims.iter().any(is_ring) && indexes(dims, f));
            let whole = (rule.inputs.iter().flatten())
                .all(|a| a.factor_index() != Some(f) || matches!(a, Access::Factor { .. }));
            if keys && whole && (sums || rule.outputs.iter().all(|o| indexes(&o.dims, f))) {
                let own = self.choice.factors[f].as_ref();
                if let Some(sharding) = further(own, rule.factors[f], &blocks.axes, parts) {
                    found.push((FoldBy::Heads, moved(f, sharding)));
                }
            }
        }
        found
    }

    /// Where an output lies in the end: as the choice says, whatever the way.
    pub(super) fn outcome(&self, o: usize, by: FoldBy, made: &Layout) -> crate::Result<Layout> {
        let dims = &self.rule.outputs[o].dims;
        // Gradients of the blocks: they are home already, or divided in a way that only the kernels' layout can say.
        let home = dims.iter().any(is_ring);
        let stays = by == FoldBy::Split
            || self
                .ring
                .as_ref()
                .is_some_and(|r| dims.iter().any(|a| self.divides(a, &r.axes)));
        if home && stays {
            return Ok(made.clone());
        }
        self.output_layout(o)
    }

    /// What a way costs the busiest rank.
    fn price(
        &self,
        by: FoldBy,
        work: &Choice,
        blocks: &DimSharding,
        layouts: &[Layout],
        model: &CostModel,
    ) -> WayCost {
        let rings = by == FoldBy::Ring;
        let mut site = Site::new(self.rule, work, self.mesh, 0);
        let parts = blocks.partition.parts();
        let (mut bytes, mut held, mut rounds) = (0, 0, 0);
        for (i, layout) in layouts.iter().enumerate() {
            if self.rule.unread.contains(&i) {
                continue;
            }
            let size = self.rule.metas[i].dtype.size();
            let covers = site.covers(i, &Spans::Full);
            bytes += size * received_input(&site, i, layout, usize::MAX).unwrap_or(0);
            let dims = &self.rule.inputs[i];
            let block = |(a, c): (&Access, &DimCover)| {
                if is_ring(a) {
                    blocks.partition.max_size()
                } else {
                    c.max_size()
                }
            };
            let block: Vec<usize> = dims.iter().zip(&covers).map(block).collect();
            let crossed = self.is_crossed(dims, &blocks.axes);
            if rings && dims.iter().any(is_ring) {
                // Of what goes round, the block being computed and the next.
                held += if crossed { 1 } else { 2.min(parts - 1) } * size * numel(&block);
            }
            if (!rings || crossed || !dims.iter().any(is_ring)) && !site.in_place(layout, &covers) {
                held += size * numel(&covers.iter().map(DimCover::max_size).collect::<Vec<_>>());
            }
        }
        if bytes > 0 {
            rounds += if rings { parts - 1 } else { 1 };
        }
        let inward = bytes;
        let moves = matches!(by, FoldBy::Split | FoldBy::Heads);
        site.ring = rings.then(|| blocks.clone());
        let mut target = Site::new(self.rule, self.choice, self.mesh, 0);
        target.ring = (by != FoldBy::Gather).then(|| blocks.clone());
        for (o, output) in self.rule.outputs.iter().enumerate() {
            let home = output.dims.iter().any(is_ring);
            let Ok(made) = site.output_layout(o) else {
                continue;
            };
            let Ok(lies) = target.outcome(o, by, &made) else {
                continue;
            };
            let size = output.meta.dtype.size();
            held += size * lies.max_local_numel();
            if rings && home && self.is_crossed(&output.dims, &blocks.axes) {
                held += size * lies.max_local_numel().div_ceil(parts);
            } else if rings && home {
                bytes += size * (parts - 1) * lies.max_local_numel();
                // The block being summed up, and the one before: as it left, and as another came.
                held += 3 * size * lies.max_local_numel();
            } else if moves {
                let merged = by == FoldBy::Split && self.rule.merges;
                let size = if merged {
                    partial_type(output.meta.dtype).size()
                } else {
                    size
                };
                let came = if merged {
                    (parts - 1) * lies.max_local_numel()
                } else if made == lies {
                    // Partial sums, as below, of what is divided in the end as its rows are.
                    target
                        .output_layout(o)
                        .map_or(0, |rows| (terms(&made) - 1) * rows.max_local_numel())
                } else {
                    received(&made, &lies)
                };
                bytes += size * came;
                if merged || made != lies {
                    held += size
                        * (made.max_local_numel()
                            + if merged {
                                parts * lies.max_local_numel()
                            } else {
                                0
                            });
                }
            } else {
                // Partial sums are left to whoever reads them, and are reduced then.
                bytes += size * later(&made, &output.dims, blocks);
            }
        }
        if moves && bytes > inward {
            rounds += 1;
        }
        let share = |(f, n): (usize, &usize)| {
            let part = work.factors[f].as_ref().map(|s| s.partition.max_size());
            part.unwrap_or(*n) as f64
        };
        let points: f64 = self.rule.factors.iter().enumerate().map(share).product();
        // What divides the blocks divides their work as well, in turn or by rank: `share` has the latter.
        let kernels = points * self.rule.flops / model.flops;
        let link = model.worst(&blocks.axes);
        let turns = if rings { 1 } else { rounds };
        let moving =
            link.time((turns * (parts - 1)) as f64, bytes as f64) + rounds as f64 * model.round;
        let flies = rings && model.sender_pays;
        WayCost {
            way: by,
            seconds: if flies {
                kernels.max(moving)
            } else {
                kernels + moving
            },
            bytes,
            rounds,
            held,
        }
    }
}

pub(super) fn is_ring(access: &Access) -> bool {
    matches!(access, Access::Ring { .. })
}

/// A factor divided further, by axes that have `parts` ranks.
pub(super) fn further(
    own: Option<&DimSharding>,
    extent: usize,
    axes: &[usize],
    parts: usize,
) -> Option<DimSharding> {
    let Some(own) = own else {
        return Some(DimSharding {
            axes: axes.into(),
            partition: Partition::balanced(extent, parts),
        });
    };
    let inner: Vec<Partition> = (own.partition.sizes())
        .map(|size| Partition::balanced(size, parts))
        .collect();
    Some(DimSharding {
        axes: own.axes.iter().chain(axes).copied().collect(),
        partition: Partition::nested(&own.partition, &inner).ok()?,
    })
}

/// Elements the busiest rank receives to have its block of `to`, partial sums added up.
fn received(from: &Layout, to: &Layout) -> usize {
    match terms(from) {
        1 => most_received(from, to),
        terms => (terms - 1) * to.max_local_numel(),
    }
}

/// How many partial sums make up each element.
fn terms(of: &Layout) -> usize {
    let ranks = of.partial_axes().iter().map(|&a| of.mesh().shape()[a]);
    ranks.product()
}

/// Elements the busiest rank receives when partial sums are scattered to their owners: those of the blocks, or evenly.
fn later(made: &Layout, dims: &[Access], blocks: &DimSharding) -> usize {
    let (terms, all) = (terms(made), made.max_local_numel());
    let whole = (dims.iter().zip(made.shape())).find_map(|(a, &n)| is_ring(a).then_some(n));
    let share = match whole {
        Some(n) if terms == blocks.partition.parts() && n > 0 => {
            all / n * blocks.partition.max_size()
        }
        _ => all.div_ceil(terms),
    };
    (terms - 1) * share
}

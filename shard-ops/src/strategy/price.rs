//! What a way to serve a sharded ring dim costs the busiest rank.

use super::choice::Choice;
use super::cost::received_input;
use super::missing::most_received;
use super::site::{Site, Spans};
use crate::host::partial_type;
use crate::{Access, FoldBy};
use shard_comm::Monoid;
use shard_redistribute::{CostModel, ExchangeBuilder, ExchangeSource};
use shard_spec::{DimCover, DimSharding, Layout, numel};
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

impl Site<'_> {
    /// What a way costs the busiest rank.
    pub(super) fn price(
        &self,
        by: FoldBy,
        work: &Choice,
        blocks: &DimSharding,
        layouts: &[Layout],
        model: &CostModel,
    ) -> WayCost {
        let site = |choice, ring: bool| {
            let mut site = Site::new(self.rule, choice, self.mesh, 0).by(model);
            site.ring = ring.then(|| blocks.clone());
            site
        };
        let pricing = Pricing {
            by,
            blocks,
            parts: blocks.partition.parts(),
            work: site(work, by == FoldBy::Ring),
            target: site(self.choice, by != FoldBy::Gather),
        };
        let mut account = Account::default();
        for (i, layout) in layouts.iter().enumerate() {
            if !self.rule.unread.contains(&i) {
                pricing.add_input(i, layout, &mut account);
            }
        }
        if account.bytes > 0 {
            account.rounds += match by {
                FoldBy::Ring => pricing.parts - 1,
                _ => 1,
            };
        }
        let inward = account.bytes;
        for o in 0..self.rule.outputs.len() {
            pricing.add_output(o, &mut account);
        }
        if matches!(by, FoldBy::Split | FoldBy::Heads) && account.bytes > inward {
            account.rounds += 1;
        }
        pricing.total(&account, model)
    }
}

/// What the busiest rank receives, waits for and holds.
#[derive(Default)]
struct Account {
    bytes: usize,
    rounds: usize,
    held: usize,
    /// Bytes of what goes in stages, and its seconds.
    staged: (usize, f64),
}

impl Account {
    /// Adds what moves, and if it goes in stages, how long that takes and what is held between them.
    fn add(&mut self, bytes: usize, staged: Option<(f64, usize)>) {
        self.receive(bytes);
        if let Some((seconds, between)) = staged {
            self.staged.0 = self.staged.0.saturating_add(bytes);
            self.staged.1 += seconds;
            self.hold(between);
        }
    }

    fn receive(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn hold(&mut self, bytes: usize) {
        self.held = self.held.saturating_add(bytes);
    }
}

/// A way whose price is asked for.
struct Pricing<'a> {
    by: FoldBy,
    blocks: &'a DimSharding,
    /// How many blocks.
    parts: usize,
    /// The choice under which the kernels run.
    work: Site<'a>,
    /// The choice that says where results lie.
    target: Site<'a>,
}

impl Pricing<'_> {
    fn add_input(&self, i: usize, layout: &Layout, account: &mut Account) {
        let (rule, rings) = (self.work.rule, self.by == FoldBy::Ring);
        let (dims, size) = (&rule.inputs[i], rule.metas[i].dtype.size());
        let covers = self.work.covers_with_halos(i, &Spans::Full);
        let goes = dims.iter().any(Access::is_ring);
        let staged = || self.staged_input(i, layout, covers.clone());
        let staged = (!rings || !goes).then(staged).flatten();
        let received = received_input(&self.work, i, layout, usize::MAX).unwrap_or(0);
        account.add(product([size, received]), staged);
        let crossed = self.target.is_crossed(dims, &self.blocks.axes);
        if rings && goes {
            let block = |(a, c): (&Access, &DimCover)| match a.is_ring() {
                true => self.blocks.partition.max_size(),
                false => c.max_size(),
            };
            let block: Vec<usize> = dims.iter().zip(&covers).map(block).collect();
            // Of what goes round, the block being computed and the next.
            let blocks = if crossed { 1 } else { 2.min(self.parts - 1) };
            account.hold(product([blocks, size, numel(&block)]));
        }
        if (!rings || crossed || !goes) && !self.work.in_place(layout, &covers) {
            let whole: Vec<usize> = covers.iter().map(DimCover::max_size).collect();
            account.hold(product([size, numel(&whole)]));
        }
    }

    fn add_output(&self, o: usize, account: &mut Account) {
        let output = &self.work.rule.outputs[o];
        let Ok(made) = self.work.output_layout(o) else {
            return;
        };
        let Ok(lies) = self.target.final_layout(o, self.by, &made) else {
            return;
        };
        let (size, own) = (output.meta.dtype.size(), lies.max_local_numel());
        account.hold(product([size, own]));
        match self.by {
            FoldBy::Ring if output.dims.iter().any(Access::is_ring) => {
                if self.target.is_crossed(&output.dims, &self.blocks.axes) {
                    account.hold(product([size, own.div_ceil(self.parts)]));
                } else {
                    account.receive(product([size, self.parts - 1, own]));
                    // The block being summed up, and the one before: as it left, and as another came.
                    account.hold(product([3, size, own]));
                }
            }
            FoldBy::Split | FoldBy::Heads => self.add_moved(o, &made, &lies, account),
            // Partial sums are left to whoever reads them, and are reduced then.
            _ => {
                let bytes = product([size, later(&made, &output.dims, self.blocks)]);
                account.add(bytes, self.staged_sums(o, &made));
            }
        }
    }

    /// How long an input takes if it goes in stages, and what is held between them.
    fn staged_input(
        &self,
        i: usize,
        layout: &Layout,
        covers: Vec<DimCover>,
    ) -> Option<(f64, usize)> {
        if self.work.in_place(layout, &covers) {
            return None;
        }
        let exchange = self.work.brought(i, layout, covers);
        exchange.in_stages(self.work.rule.metas[i].dtype, self.work.model?)
    }

    /// How long partial sums of the blocks take to get to their owners, if they go in stages, and what is held between them.
    fn staged_sums(&self, o: usize, made: &Layout) -> Option<(f64, usize)> {
        let output = &self.work.rule.outputs[o];
        let d = output.dims.iter().position(Access::is_ring)?;
        let (op, model) = (made.partial_op()?, self.work.model?);
        let whole = made.with_partial_reduced();
        let owned = whole.with_sharding(d, Some(self.blocks.clone())).ok()?;
        let sums = ExchangeBuilder::onto(self.work.rule.name, &owned)
            .source(ExchangeSource::identity(made))
            .reduce_axes(made.partial_axes())
            .fold(Monoid::Op(op));
        let dtype = output.meta.dtype;
        sums.staged(dtype, model).in_stages(dtype, model)
    }

    /// An output that is `made` in one layout and `lies` in another in the end.
    fn add_moved(&self, o: usize, made: &Layout, lies: &Layout, account: &mut Account) {
        let (dtype, own) = (self.work.rule.outputs[o].meta.dtype, lies.max_local_numel());
        if self.by == FoldBy::Split && self.work.rule.merges {
            let size = partial_type(dtype).size();
            account.receive(product([size, self.parts - 1, own]));
            account.hold(product([size, made.max_local_numel()]));
            account.hold(product([size, self.parts, own]));
        } else if made == lies {
            // Partial sums, of what is divided in the end as its rows are.
            let rows = self.target.output_layout(o);
            let came = rows.map_or(0, |rows| product([terms(made) - 1, rows.max_local_numel()]));
            account.receive(product([dtype.size(), came]));
        } else {
            account.receive(product([dtype.size(), received(made, lies)]));
            account.hold(product([dtype.size(), made.max_local_numel()]));
        }
    }

    /// The account and the time it takes.
    fn total(&self, account: &Account, model: &CostModel) -> WayCost {
        let &Account {
            bytes,
            rounds,
            held,
            staged: (in_stages, staged),
        } = account;
        let rule = self.work.rule;
        let share = |(f, n): (usize, &usize)| {
            let part = self.work.choice.factors[f].as_ref();
            part.map(|s| s.partition.max_size()).unwrap_or(*n) as f64
        };
        let points: f64 = rule.factors.iter().enumerate().map(share).product();
        // What divides the blocks divides their work as well, in turn or by rank: `share` has the latter.
        let kernels = points * rule.flops / model.flops;
        let link = model.worst(&self.blocks.axes);
        let rings = self.by == FoldBy::Ring;
        let turns = if rings { 1 } else { rounds };
        let straight = match bytes - in_stages {
            0 if in_stages > 0 => 0.0,
            bytes => link.time((turns * (self.parts - 1)) as f64, bytes as f64),
        };
        let moving = straight + staged + rounds as f64 * model.round;
        let flies = rings && model.sender_pays;
        WayCost {
            way: self.by,
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

/// Elements the busiest rank receives to have its block of `to`, partial sums added up.
fn received(from: &Layout, to: &Layout) -> usize {
    match terms(from) {
        1 => most_received(from, to),
        terms => product([terms - 1, to.max_local_numel()]),
    }
}

/// How many partial sums make up each element.
fn terms(of: &Layout) -> usize {
    of.mesh().part_count(of.partial_axes())
}

/// Elements the busiest rank receives when partial sums are scattered to their owners: those of the blocks, or evenly.
fn later(made: &Layout, dims: &[Access], blocks: &DimSharding) -> usize {
    let (terms, all) = (terms(made), made.max_local_numel());
    let whole = (dims.iter().zip(made.shape())).find_map(|(a, &n)| a.is_ring().then_some(n));
    let share = match whole {
        Some(n) if terms == blocks.partition.parts() && n > 0 => {
            all / n * blocks.partition.max_size()
        }
        _ => all.div_ceil(terms),
    };
    product([terms - 1, share])
}

/// A product of numbers, or the largest number there is: sizes are the user's, and what is larger than any memory is refused by
/// whoever asks for that memory.
fn product<const N: usize>(numbers: [usize; N]) -> usize {
    numbers.into_iter().fold(1, usize::saturating_mul)
}

//! Strategies: a rule and the operands' layouts, turned into moves, kernel calls and result layouts.
//!
//! A [`Choice`] says which mesh axes shard which factor and which partial sums pass. Candidates come from the
//! operands themselves (each in turn leads, the others fill what it leaves free), and the cheapest wins: bytes
//! received by the busiest rank, ties to more sharding, then to the left. Everything here is a function of
//! values that are equal on all ranks, so every rank makes the same choice.

use crate::error::InOp;
use crate::rule::{Body, Boundaries};
use crate::{Access, KernelCx, Linearity, OperandBox, Reduction, Result, Rule};
use shard_comm::Monoid;
use shard_redistribute::{Exchange, ExchangeBuilder, Plan, Source};
use shard_spec::{
    DeviceMesh, DimCover, DimMap, DimSharding, Dims, Layout, Partition, ReduceOp, row_major_strides,
};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;

/// Mesh axes.
pub(crate) type Axes = SmallVec<[usize; 4]>;

/// Which mesh axes shard which factor, and which partial sums pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Per factor, the mesh axes and boundaries it is sharded by.
    pub factors: Vec<Option<DimSharding>>,
    /// Axes along which operands stay partial, and the result is.
    pub carry: Axes,
    /// The one operand that stays partial; `None` if all that are partial along these axes do.
    pub carrier: Option<usize>,
}

/// What one rank does to run an op on operands of given layouts.
#[derive(Debug)]
pub struct Strategy {
    pub(crate) choice: Choice,
    pub(crate) inputs: Vec<InputMove>,
    pub(crate) outputs: Vec<Layout>,
    /// The input whose halo may fly while the early calls run, from its own piece.
    pub(crate) flying: Option<usize>,
    /// Kernel calls that need only what each rank has: they run while the halo flies.
    pub(crate) early: Vec<KernelCx>,
    /// Kernel calls that need everything.
    pub(crate) late: Vec<KernelCx>,
    /// For moves: the exchange that is the op.
    pub(crate) assemble: Option<Exchange>,
    /// Combine the outputs over these axes at once.
    pub(crate) combine: Option<(Axes, Monoid)>,
    bytes: usize,
}

/// How one input gets where the kernel needs it.
#[derive(Debug, Default)]
pub(crate) struct InputMove {
    /// Partial sums that do not pass are reduced first.
    pub(crate) reduce: Option<Plan>,
    /// Pieces and halos from other ranks; `None` if the operand is in place.
    pub(crate) exchange: Option<Exchange>,
    /// Whether operands have to move in the sense of `explicit_moves`: a halo is not a move.
    pub(crate) realigned: bool,
    /// What the strategy wants of the operand, for messages.
    pub(crate) wanted: String,
}

impl Strategy {
    /// Derives the strategy of the mesh member at row-major position `index`. No communication.
    ///
    /// # Errors
    /// Layouts the rule cannot serve; the same on all ranks.
    pub fn new(rule: &Rule, layouts: &[&Layout], index: usize) -> Result<Self> {
        let mesh = layouts[0].mesh().clone();
        let mut best: Option<(usize, usize, Choice)> = None;
        for choice in candidates(rule, layouts) {
            let bytes = cost(rule, layouts, &choice);
            let sharded: usize = choice.factors.iter().flatten().map(|s| s.axes.len()).sum();
            let better = best
                .as_ref()
                .is_none_or(|(b, s, _)| bytes < *b || (bytes == *b && sharded > *s));
            if better {
                best = Some((bytes, sharded, choice));
            }
        }
        let (bytes, _, choice) = best.unwrap_or((0, 0, Choice::none(rule)));
        Self::with_choice(rule, layouts, &choice, index, &mesh, bytes)
    }

    /// The strategy of a given choice: what the rule validator runs to try every factor.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn forced(rule: &Rule, layouts: &[&Layout], choice: &Choice, index: usize) -> Result<Self> {
        let mesh = layouts[0].mesh().clone();
        let bytes = cost(rule, layouts, choice);
        Self::with_choice(rule, layouts, choice, index, &mesh, bytes)
    }

    fn with_choice(
        rule: &Rule,
        layouts: &[&Layout],
        choice: &Choice,
        index: usize,
        mesh: &DeviceMesh,
        bytes: usize,
    ) -> Result<Self> {
        let site = Site::new(rule, choice, mesh, index);
        let outputs = (0..rule.outputs.len())
            .map(|o| site.output_layout(o))
            .collect::<Result<Vec<_>>>()?;
        let mut inputs = Vec::with_capacity(layouts.len());
        let mut current = Vec::with_capacity(layouts.len());
        for (i, layout) in layouts.iter().enumerate() {
            let (step, at) = site.reduce_input(i, layout)?;
            inputs.push(step);
            current.push(at);
        }
        let combine = match rule.reduction {
            Some(Reduction::Now(monoid)) => {
                Some((site.reduced_axes(), monoid)).filter(|c| !c.0.is_empty())
            }
            _ => None,
        };
        let mut strategy = Self {
            choice: choice.clone(),
            inputs,
            outputs,
            flying: None,
            early: vec![],
            late: vec![],
            assemble: None,
            combine,
            bytes,
        };
        if let Body::Move { accumulate } = rule.body {
            strategy.assemble = Some(site.assemble(&current, accumulate));
            for (step, layout) in strategy.inputs.iter_mut().zip(&current) {
                step.wanted = layout.to_string();
            }
            return Ok(strategy);
        }
        if let Some(overlap) = site.overlap(&current) {
            site.with_overlap(&current, &overlap, &mut strategy);
        } else {
            site.without_overlap(&current, &mut strategy);
        }
        Ok(strategy)
    }

    /// Which mesh axes shard which factor.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The layouts of the results.
    pub fn outputs(&self) -> &[Layout] {
        &self.outputs
    }

    /// The cost the choice was made by: elements received by the busiest rank.
    pub fn cost(&self) -> usize {
        self.bytes
    }

    /// Whether part of the work is done while the halo flies.
    pub fn overlaps(&self) -> bool {
        !self.early.is_empty()
    }

    /// Whether running it communicates.
    pub fn communicates(&self) -> bool {
        self.combine.is_some()
            || self.assemble.as_ref().is_some_and(|e| !e.is_local())
            || self.inputs.iter().any(|i| {
                i.reduce.as_ref().is_some_and(Plan::communicates)
                    || i.exchange.as_ref().is_some_and(|e| !e.is_local())
            })
    }
}

impl fmt::Display for Strategy {
    /// Such as `out S(2)[3,2] R, input 0: exchange of 24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<String> = self.outputs.iter().map(ToString::to_string).collect();
        write!(f, "out {}", outputs.join(", "))?;
        for (i, input) in self.inputs.iter().enumerate() {
            if let Some(plan) = &input.reduce {
                write!(f, "; input {i}: {plan}")?;
            }
            if let Some(exchange) = &input.exchange {
                let how = if exchange.is_local() {
                    "local copy"
                } else {
                    "exchange"
                };
                write!(
                    f,
                    "; input {i}: {how} in {} pieces",
                    exchange.plan().recv.len()
                )?;
            }
        }
        if self.overlaps() {
            write!(f, "; interior first")?;
        }
        if let Some((axes, monoid)) = &self.combine {
            write!(f, "; combine {monoid:?} over axes {axes:?}")?;
        }
        Ok(())
    }
}

impl Choice {
    /// Nothing is sharded.
    pub fn none(rule: &Rule) -> Self {
        Self {
            factors: vec![None; rule.factors.len()],
            carry: Axes::new(),
            carrier: None,
        }
    }

    /// Whether operand `i` stays partial along an axis: a product of two sums is not the sum of the products.
    fn carries(&self, i: usize, axis: usize) -> bool {
        self.carry.contains(&axis) && self.carrier.is_none_or(|c| c == i)
    }

    fn uses(&self, axis: usize) -> bool {
        self.carry.contains(&axis)
            || self
                .factors
                .iter()
                .flatten()
                .any(|s| s.axes.contains(&axis))
    }
}

/// Every operand leads once with the others filling in, and once alone; and nothing sharded at all.
fn candidates(rule: &Rule, layouts: &[&Layout]) -> Vec<Choice> {
    let mut found: Vec<Choice> = Vec::new();
    let mut push = |choice: Choice| {
        if !found.contains(&choice) {
            found.push(choice);
        }
    };
    for lead in 0..layouts.len() {
        let order: Vec<usize> = std::iter::once(lead)
            .chain((0..layouts.len()).filter(|&i| i != lead))
            .collect();
        push(adopt(rule, layouts, &order));
    }
    for lead in 0..layouts.len() {
        push(adopt(rule, layouts, &[lead]));
    }
    push(Choice::none(rule));
    found
}

/// Adopts the shardings of the operands in the given order, as far as they do not collide.
fn adopt(rule: &Rule, layouts: &[&Layout], order: &[usize]) -> Choice {
    let mut choice = Choice::none(rule);
    for &i in order {
        let layout = layouts[i];
        if passes(rule, layouts, i, order, &choice) {
            let fresh: Axes = layout
                .partial_axes()
                .iter()
                .copied()
                .filter(|&a| !choice.uses(a))
                .collect();
            choice.carry.extend(fresh);
            if matches!(rule.linearity, Linearity::Each(_)) {
                choice.carrier = Some(i);
            }
        }
        for (d, access) in rule.inputs[i].iter().enumerate() {
            let Some(sharding) = layout.sharding(d) else {
                continue;
            };
            if sharding.axes.iter().any(|&a| choice.uses(a)) {
                continue;
            }
            let Some((factor, partition)) =
                factor_partition(rule, access, layout.shape()[d], &sharding.partition)
            else {
                continue;
            };
            if choice.factors[factor].is_none() {
                choice.factors[factor] = Some(DimSharding {
                    axes: sharding.axes.clone(),
                    partition,
                });
            }
        }
    }
    choice
}

/// Whether operand `i`'s partial sums may pass the op.
fn passes(rule: &Rule, layouts: &[&Layout], i: usize, order: &[usize], choice: &Choice) -> bool {
    let layout = layouts[i];
    if layout.partial_op() != Some(ReduceOp::Sum)
        || layout.partial_axes().iter().any(|&a| choice.uses(a))
    {
        return false;
    }
    match &rule.linearity {
        Linearity::None => false,
        Linearity::Each(operands) => operands.contains(&i) && choice.carry.is_empty(),
        Linearity::Joint => {
            let same = |l: &&Layout| {
                l.partial_op() == Some(ReduceOp::Sum) && l.partial_axes() == layout.partial_axes()
            };
            order[0] == i && layouts.iter().all(same)
        }
    }
}

/// The boundaries a factor gets if it follows an operand's.
fn factor_partition(
    rule: &Rule,
    access: &Access,
    extent: usize,
    own: &Partition,
) -> Option<(usize, Partition)> {
    let n = |f: usize| rule.factor_extent(f);
    Some(match access {
        Access::Whole { instead } => {
            let factor = (*instead)?;
            (factor, Partition::balanced(n(factor), own.parts()))
        }
        Access::Factor { factor, block } => (*factor, divided(own, *block, n(*factor))),
        Access::Window { factor, window, .. } => (*factor, window.anchor(extent, own)),
        Access::Adjoint { factor, window } => (*factor, window.anchor_input(n(*factor), own)),
        Access::Map { factor, law, .. } => (
            *factor,
            match law {
                Boundaries::Scaled => own.scaled(n(*factor)),
                Boundaries::Shifted(by) => shifted(own, *by, n(*factor)),
            },
        ),
    })
}

/// Boundaries in units of `block`, rounded to the nearest.
fn divided(own: &Partition, block: usize, extent: usize) -> Partition {
    if block == 1 {
        return own.clone();
    }
    remap(own, extent, |x| {
        (x + block / 2).checked_div(block).unwrap_or(0)
    })
}

fn shifted(own: &Partition, by: isize, extent: usize) -> Partition {
    remap(own, extent, |x| x.saturating_add_signed(by))
}

/// Moves the inner boundaries; the outer ones stay at 0 and `extent`.
fn remap(own: &Partition, extent: usize, f: impl Fn(usize) -> usize) -> Partition {
    let last = own.parts();
    let moved = own.offsets().iter().enumerate().map(|(k, &x)| match k {
        0 => 0,
        _ if k == last => extent,
        _ => f(x).min(extent),
    });
    // Monotone by construction (f is monotone and clamped), starting at 0 and ending at the extent.
    Partition::from_offsets(extent, moved.collect())
        .unwrap_or_else(|_| Partition::balanced(extent, last))
}

/// Elements the busiest rank receives, plus a share for partial results that must be reduced later.
fn cost(rule: &Rule, layouts: &[&Layout], choice: &Choice) -> usize {
    let mesh = layouts[0].mesh();
    let site = Site::new(rule, choice, mesh, 0);
    let mut total = 0;
    for (i, layout) in layouts.iter().enumerate() {
        let covers = site.covers(i, &Spans::Full);
        let reduces = layout.partial_axes().iter().any(|&a| !choice.carries(i, a));
        let mut worst = 0;
        for index in 0..mesh.size() {
            let coords = coords_of(mesh, index);
            let (mut wanted, mut owned) = (1, 1);
            for (d, cover) in covers.iter().enumerate() {
                let want = cover.intervals[part_at(mesh, &cover.axes, &coords)].clone();
                let have = own_interval(layout, d, mesh, &coords);
                wanted *= want.len();
                owned *= want
                    .end
                    .min(have.end)
                    .saturating_sub(want.start.max(have.start))
                    .min(want.len());
            }
            worst = worst.max(wanted - owned.min(wanted));
        }
        total += worst
            + if reduces {
                2 * layout.max_local_numel()
            } else {
                0
            };
    }
    let partial_result = !site.reduced_axes().is_empty() || !choice.carry.is_empty();
    for o in 0..rule.outputs.len() {
        if partial_result && let Ok(layout) = site.output_layout(o) {
            total += layout.max_local_numel();
        }
    }
    total
}

/// Which interval of each factor a kernel call computes, for every part.
enum Spans {
    /// All of it.
    Full,
    /// Per factor, per part; `None` for factors that are not cut.
    Cut(Vec<Option<Vec<Range<usize>>>>),
}

/// The one input whose halo flies while the interior is computed, and the cuts.
struct Overlap {
    input: usize,
    /// Per factor with a window, the interior of each part.
    interior: Vec<Option<Vec<Range<usize>>>>,
}

/// A rule with a choice, seen from one rank.
struct Site<'a> {
    rule: &'a Rule,
    choice: &'a Choice,
    mesh: &'a DeviceMesh,
    index: usize,
    coords: SmallVec<[usize; 4]>,
}

impl<'a> Site<'a> {
    fn new(rule: &'a Rule, choice: &'a Choice, mesh: &'a DeviceMesh, index: usize) -> Self {
        Self {
            rule,
            choice,
            mesh,
            index,
            coords: coords_of(mesh, index),
        }
    }

    /// Axes that split a sum: those of sharded factors that appear in no output.
    fn reduced_axes(&self) -> Axes {
        let mut axes = Axes::new();
        for (f, sharding) in self.choice.factors.iter().enumerate() {
            if let (Some(sharding), true) = (sharding, self.rule.is_reduced(f)) {
                axes.extend(sharding.axes.iter().copied());
            }
        }
        axes.sort_unstable();
        axes
    }

    fn output_layout(&self, o: usize) -> Result<Layout> {
        let output = &self.rule.outputs[o];
        let mut builder = Layout::builder(self.mesh, &output.meta.shape);
        for (d, access) in output.dims.iter().enumerate() {
            if let Access::Factor { factor, block } = access
                && let Some(sharding) = &self.choice.factors[*factor]
            {
                builder = builder.shard(d, &sharding.axes, multiplied(&sharding.partition, *block));
            }
        }
        let mut partial: Axes = self.choice.carry.clone();
        let mut op = ReduceOp::Sum;
        if let Some(Reduction::Partial(by)) = self.rule.reduction {
            partial.extend(self.reduced_axes());
            op = by;
        }
        for axis in partial {
            builder = builder.partial(axis, op);
        }
        builder.build().in_op(self.rule.name)
    }

    /// Reduces what does not pass, unless the exchange can fold it on the way.
    fn reduce_input(&self, i: usize, layout: &Layout) -> Result<(InputMove, Layout)> {
        let name = self.rule.name;
        let keep: Axes = layout
            .partial_axes()
            .iter()
            .copied()
            .filter(|&a| self.choice.carries(i, a))
            .collect();
        if keep.len() == layout.partial_axes().len() {
            return Ok((InputMove::default(), layout.clone()));
        }
        let mut to = layout.with_partial_reduced();
        // Axes that will shard a dim of this operand are reduced by scattering straight to the owners.
        let mut builder = Layout::builder(self.mesh, layout.shape());
        let mut scattered = false;
        for (d, access) in self.rule.inputs[i].iter().enumerate() {
            let own = to.sharding(d).cloned();
            let wish = match access {
                Access::Factor { factor, block } => {
                    self.choice.factors[*factor].as_ref().map(|s| DimSharding {
                        axes: s.axes.clone(),
                        partition: multiplied(&s.partition, *block),
                    })
                }
                _ => None,
            };
            let scatters = wish.as_ref().is_some_and(|w| {
                w.axes.iter().all(|a| {
                    layout.partial_axes().contains(a) || layout.replicate_axes().contains(a)
                })
            });
            let pick = if own.is_none() && scatters { wish } else { own };
            if let Some(s) = pick {
                scattered |= scatters;
                builder = builder.shard(d, &s.axes, s.partition);
            }
        }
        if scattered {
            to = builder.build().in_op(name)?;
        }
        if let (Some(op), false) = (layout.partial_op(), keep.is_empty()) {
            to = to.with_partial(&keep, op).in_op(name)?;
        }
        let plan = Plan::new(layout, &to, self.index).in_op(name)?;
        let realigned = plan.communicates();
        Ok((
            InputMove {
                reduce: Some(plan),
                exchange: None,
                realigned,
                wanted: to.to_string(),
            },
            to,
        ))
    }

    /// What each dim of input `i` must cover.
    fn covers(&self, i: usize, spans: &Spans) -> Vec<DimCover> {
        self.rule.inputs[i]
            .iter()
            .zip(&self.rule.metas[i].shape)
            .map(|(access, &extent)| self.cover(access, extent, spans))
            .collect()
    }

    fn cover(&self, access: &Access, extent: usize, spans: &Spans) -> DimCover {
        let Some(factor) = access.factor_index() else {
            return DimCover::whole(extent);
        };
        let axes = self.choice.factors[factor]
            .as_ref()
            .map(|s| s.axes.clone())
            .unwrap_or_default();
        let spans: Vec<Range<usize>> = match (spans, &self.choice.factors[factor]) {
            (Spans::Cut(cut), _) if cut[factor].is_some() => {
                cut[factor].clone().unwrap_or_default()
            }
            (_, Some(sharding)) => (0..sharding.partition.parts())
                .map(|p| sharding.partition.interval(p))
                .collect(),
            (_, None) => std::iter::once(0..self.rule.factors[factor]).collect(),
        };
        let intervals = spans
            .into_iter()
            .map(|span| self.needs(access, extent, span))
            .collect();
        DimCover { axes, intervals }
    }

    /// What a span of the factor needs of the dim. What a window reaches beyond the dim is the kernel's padding.
    fn needs(&self, access: &Access, extent: usize, span: Range<usize>) -> Range<usize> {
        match access {
            Access::Whole { .. } => 0..extent,
            Access::Factor { block, .. } => span.start * block..span.end * block,
            Access::Map { .. } => span,
            Access::Window { window, .. } => clip(window.input_interval(extent, span), extent),
            Access::Adjoint { factor, window } => {
                window.output_of_input(self.rule.factors[*factor], span)
            }
        }
    }

    fn source(&self, i: usize, layout: &Layout) -> Source {
        let maps =
            self.rule.inputs[i]
                .iter()
                .zip(layout.shape())
                .map(|(access, &n)| match access {
                    Access::Map { map, .. } => map.clone(),
                    _ => DimMap::identity(n),
                });
        Source {
            layout: layout.clone(),
            maps: maps.collect(),
        }
    }

    /// The exchange that brings input `i` to its cover; `None` if it is in place on every rank.
    fn exchange(&self, i: usize, layout: &Layout) -> Option<Exchange> {
        let covers = self.covers(i, &Spans::Full);
        if self.in_place(layout, &covers) {
            return None;
        }
        let builder =
            ExchangeBuilder::new(self.rule.name, self.mesh, covers).source(self.source(i, layout));
        Some(builder.build(self.index))
    }

    /// Whether every rank's piece of the operand is exactly what it needs.
    fn in_place(&self, layout: &Layout, covers: &[DimCover]) -> bool {
        covers
            .iter()
            .enumerate()
            .all(|(d, cover)| same_intervals(cover, layout, d, self.mesh))
    }

    fn without_overlap(&self, layouts: &[Layout], strategy: &mut Strategy) {
        for (i, layout) in layouts.iter().enumerate() {
            let exchange = self.exchange(i, layout);
            let step = &mut strategy.inputs[i];
            step.realigned |=
                exchange.as_ref().is_some_and(|e| !e.is_local()) && self.is_realigned(i, layout);
            step.wanted = self.wanted(i);
            step.exchange = exchange;
        }
        strategy.late.push(self.kernel(&Spans::Full, |i| {
            let covers = self.covers(i, &Spans::Full);
            self.input_box(&covers, 0)
        }));
    }

    /// The boxes of one kernel call.
    fn kernel(&self, spans: &Spans, input: impl Fn(usize) -> OperandBox) -> KernelCx {
        let adds_once = self
            .reduced_axes()
            .iter()
            .chain(&self.choice.carry)
            .all(|&a| self.coords[a] == 0);
        KernelCx {
            inputs: (0..self.rule.inputs.len())
                .map(|i| {
                    let mut operand = input(i);
                    operand.global = self.rule.metas[i].shape.clone();
                    operand
                })
                .collect(),
            outputs: (0..self.rule.outputs.len())
                .map(|o| self.output_box(o, spans))
                .collect(),
            adds_once,
        }
    }

    /// The box of an input that lies as a whole in a buffer of its own, from `offset` on.
    fn input_box(&self, covers: &[DimCover], offset: usize) -> OperandBox {
        let at = |c: &DimCover| c.intervals[part_at(self.mesh, &c.axes, &self.coords)].clone();
        let shape: Dims = covers.iter().map(|c| at(c).len()).collect();
        OperandBox {
            offset,
            strides: row_major_strides(&shape),
            shape,
            start: covers.iter().map(|c| at(c).start).collect(),
            global: Dims::new(),
        }
    }

    /// A sub-box of a buffer that covers `outer`.
    fn sub_box(&self, outer: &[DimCover], inner: &[DimCover]) -> OperandBox {
        let whole = self.input_box(outer, 0);
        let mut part = self.input_box(inner, 0);
        if !part.shape.contains(&0) {
            let steps = part.start.iter().zip(&whole.start).zip(&whole.strides);
            part.offset = steps.map(|((a, b), &s)| (a - b) * s as usize).sum();
        }
        part.strides = whole.strides;
        part
    }

    fn output_box(&self, o: usize, spans: &Spans) -> OperandBox {
        let output = &self.rule.outputs[o];
        let side = |spans: &Spans| -> Vec<DimCover> {
            output
                .dims
                .iter()
                .zip(&output.meta.shape)
                .map(|(a, &n)| self.cover(a, n, spans))
                .collect()
        };
        let mut part = self.sub_box(&side(&Spans::Full), &side(spans));
        part.global = output.meta.shape.clone();
        part
    }

    /// Whether the interior can be computed while a halo flies, and where it is. Decided from layouts alone.
    ///
    /// One input may have windows in the result's dims; its other dims must be in place; and the interior must
    /// be at least half of the work, or the slabs around it are not worth their calls.
    fn overlap(&self, layouts: &[Layout]) -> Option<Overlap> {
        let windowed = |i: &usize| {
            self.rule.inputs[*i]
                .iter()
                .any(|a| matches!(a, Access::Window { .. } | Access::Adjoint { .. }))
        };
        let mut with_windows = (0..layouts.len()).filter(windowed);
        let input = with_windows.next()?;
        if with_windows.next().is_some() {
            return None;
        }
        let layout = &layouts[input];
        let covers = self.covers(input, &Spans::Full);
        if self.in_place(layout, &covers) {
            return None;
        }
        let mut interior = vec![None; self.rule.factors.len()];
        let (mut inside, mut all) = (1.0, 1.0);
        for (d, access) in self.rule.inputs[input].iter().enumerate() {
            let (Access::Window { factor, .. } | Access::Adjoint { factor, .. }) = access else {
                if same_intervals(&covers[d], layout, d, self.mesh) {
                    continue;
                }
                return None;
            };
            let sharding = self.choice.factors[*factor].as_ref();
            let aligned = match (layout.sharding(d), sharding) {
                (Some(have), Some(want)) => have.axes == want.axes,
                (None, _) => true,
                (Some(_), None) => false,
            };
            if self.rule.is_reduced(*factor) || !aligned {
                return None;
            }
            let full = 0..self.rule.factors[*factor];
            let spans: Vec<Range<usize>> = match sharding {
                Some(s) => (0..s.partition.parts())
                    .map(|p| s.partition.interval(p))
                    .collect(),
                None => std::iter::once(full.clone()).collect(),
            };
            let n = layout.shape()[d];
            let cut: Vec<Range<usize>> = spans
                .iter()
                .enumerate()
                .map(|(part, span)| {
                    let own = if layout.sharding(d).is_some() {
                        layout.interval(d, part)
                    } else {
                        0..n
                    };
                    inner_span(span, &own, |s| self.needs(access, n, s))
                })
                .collect();
            inside *= cut.iter().map(Range::len).sum::<usize>() as f64;
            all *= full.len() as f64;
            interior[*factor] = Some(cut);
        }
        (inside > 0.0 && inside >= 0.5 * all).then_some(Overlap { input, interior })
    }

    fn with_overlap(&self, layouts: &[Layout], overlap: &Overlap, strategy: &mut Strategy) {
        let flying = overlap.input;
        for (i, layout) in layouts.iter().enumerate() {
            let step = &mut strategy.inputs[i];
            step.wanted = self.wanted(i);
            if i != flying {
                let exchange = self.exchange(i, layout);
                step.realigned |= exchange.as_ref().is_some_and(|e| !e.is_local())
                    && self.is_realigned(i, layout);
                step.exchange = exchange;
            }
        }
        let own: Vec<DimCover> = (0..layouts[flying].ndim())
            .map(|d| own_cover(&layouts[flying], d))
            .collect();
        let boxes = |spans: &Spans, flying_box: &dyn Fn() -> OperandBox| {
            self.kernel(spans, |i| {
                if i == flying {
                    flying_box()
                } else {
                    self.sub_box(&self.covers(i, &Spans::Full), &self.covers(i, spans))
                }
            })
        };
        let middle = Spans::Cut(overlap.interior.clone());
        let inner = self.covers(flying, &middle);
        strategy
            .early
            .push(boxes(&middle, &|| self.sub_box(&own, &inner)));
        // The rest, peeled off dim by dim: before the interior, after it.
        let mut builder: Option<ExchangeBuilder> = None;
        let mut slabs = Vec::new();
        let cut_factors: Vec<usize> = (0..self.rule.factors.len())
            .filter(|&f| overlap.interior[f].is_some())
            .collect();
        for (k, &f) in cut_factors.iter().enumerate() {
            for after in [false, true] {
                let mut cut: Vec<Option<Vec<Range<usize>>>> = vec![None; self.rule.factors.len()];
                for &g in &cut_factors[..k] {
                    cut[g].clone_from(&overlap.interior[g]);
                }
                cut[f] = Some(self.beside(f, overlap, after));
                let spans = Spans::Cut(cut);
                let covers = self.covers(flying, &spans);
                builder = Some(match builder {
                    None => ExchangeBuilder::new(self.rule.name, self.mesh, covers.clone()),
                    Some(builder) => builder.region(covers.clone()),
                });
                slabs.push((spans, covers));
            }
        }
        let Some(builder) = builder else { return };
        let exchange = builder
            .source(self.source(flying, &layouts[flying]))
            .build(self.index);
        for ((spans, covers), (base, _)) in slabs.iter().zip(exchange.regions()) {
            let cx = boxes(spans, &|| self.input_box(covers, *base));
            if cx.outputs.iter().all(|o| !o.shape.contains(&0)) {
                strategy.late.push(cx);
            }
        }
        strategy.inputs[flying].exchange = Some(exchange);
        strategy.flying = Some(flying);
    }

    /// For every part, what lies before or after the interior of factor `f`.
    fn beside(&self, f: usize, overlap: &Overlap, after: bool) -> Vec<Range<usize>> {
        let interior = overlap.interior[f].as_deref().unwrap_or_default();
        interior
            .iter()
            .enumerate()
            .map(|(part, inner)| {
                let span = match &self.choice.factors[f] {
                    Some(s) => s.partition.interval(part),
                    None => 0..self.rule.factors[f],
                };
                if after {
                    inner.end..span.end
                } else {
                    span.start..inner.start
                }
            })
            .collect()
    }

    /// The exchange that is a move.
    fn assemble(&self, layouts: &[Layout], accumulate: bool) -> Exchange {
        let output = &self.rule.outputs[0];
        let target = output
            .dims
            .iter()
            .zip(&output.meta.shape)
            .map(|(a, &n)| self.cover(a, n, &Spans::Full))
            .collect();
        let mut builder = ExchangeBuilder::new(self.rule.name, self.mesh, target);
        for (i, layout) in layouts.iter().enumerate() {
            builder = builder.source(self.source(i, layout));
        }
        builder = builder.fill(self.rule.fill);
        if accumulate {
            builder = builder.fold(Monoid::Op(ReduceOp::Sum));
        }
        builder.build(self.index)
    }

    /// Whether an operand that needs an exchange was misaligned, rather than short of a halo.
    fn is_realigned(&self, i: usize, layout: &Layout) -> bool {
        self.rule.inputs[i].iter().enumerate().any(|(d, access)| {
            let wanted = access
                .factor_index()
                .and_then(|f| self.choice.factors[f].as_ref());
            match (access, layout.sharding(d), wanted) {
                (Access::Window { .. } | Access::Adjoint { .. }, Some(have), Some(want)) => {
                    have.axes != want.axes
                }
                (_, Some(_), None) => true,
                (Access::Factor { block, .. }, Some(have), Some(want)) => {
                    have.axes != want.axes || have.partition != multiplied(&want.partition, *block)
                }
                _ => false,
            }
        })
    }

    /// What the strategy wants of operand `i`, in the short form of layouts.
    fn wanted(&self, i: usize) -> String {
        let mut builder = Layout::builder(self.mesh, &self.rule.metas[i].shape);
        for (d, access) in self.rule.inputs[i].iter().enumerate() {
            if let Access::Factor { factor, block } = access
                && let Some(sharding) = &self.choice.factors[*factor]
            {
                builder = builder.shard(d, &sharding.axes, multiplied(&sharding.partition, *block));
            }
        }
        builder
            .build()
            .map_or_else(|e| e.to_string(), |layout| layout.to_string())
    }
}

/// The largest part of `span` whose needs lie inside `own`.
///
/// Needs are monotone: shrinking a span from the left never lowers where its needs start, so both ends can be
/// found by bisection.
fn inner_span(
    span: &Range<usize>,
    own: &Range<usize>,
    needs: impl Fn(Range<usize>) -> Range<usize>,
) -> Range<usize> {
    let bisect = |good: &dyn Fn(usize) -> bool| {
        // Smallest offset in 0..=len that is good; len always is.
        let (mut lo, mut hi) = (0, span.len());
        while lo < hi {
            let mid = lo.midpoint(hi);
            if good(mid) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        lo
    };
    let start = span.start
        + bisect(&|k| {
            let need = needs(span.start + k..span.end);
            need.is_empty() || need.start >= own.start
        });
    let end = span.end
        - bisect(&|k| {
            let need = needs(span.start..span.end - k);
            need.is_empty() || need.end <= own.end
        });
    if start < end {
        start..end
    } else {
        start..start
    }
}

fn own_cover(layout: &Layout, d: usize) -> DimCover {
    match layout.sharding(d) {
        Some(sharding) => DimCover::from(sharding),
        None => DimCover::whole(layout.shape()[d]),
    }
}

/// The interval of dim `d` that the member at `coords` owns.
fn own_interval(layout: &Layout, d: usize, mesh: &DeviceMesh, coords: &[usize]) -> Range<usize> {
    match layout.sharding(d) {
        Some(s) => s.partition.interval(part_at(mesh, &s.axes, coords)),
        None => 0..layout.shape()[d],
    }
}

/// Whether the cover is what each rank owns of dim `d`.
fn same_intervals(cover: &DimCover, layout: &Layout, d: usize, mesh: &DeviceMesh) -> bool {
    let own = own_cover(layout, d);
    if own.axes == cover.axes {
        return own.intervals == cover.intervals;
    }
    let mut axes: Axes = own.axes.iter().chain(&cover.axes).copied().collect();
    axes.sort_unstable();
    axes.dedup();
    let count: usize = axes.iter().map(|&a| mesh.shape()[a]).product();
    let mut coords: SmallVec<[usize; 4]> = SmallVec::from_elem(0, mesh.ndim());
    (0..count).all(|mut part| {
        for &a in axes.iter().rev() {
            coords[a] = part % mesh.shape()[a];
            part /= mesh.shape()[a];
        }
        own.intervals[part_at(mesh, &own.axes, &coords)]
            == cover.intervals[part_at(mesh, &cover.axes, &coords)]
    })
}

fn multiplied(partition: &Partition, block: usize) -> Partition {
    if block == 1 {
        return partition.clone();
    }
    remap(partition, partition.extent() * block, |x| x * block)
}

/// The part of a window's interval that lies inside the dim.
fn clip(range: Range<isize>, extent: usize) -> Range<usize> {
    let n = extent as isize;
    let (lo, hi) = (
        range.start.clamp(0, n) as usize,
        range.end.clamp(0, n) as usize,
    );
    lo..hi.max(lo)
}

fn part_at(mesh: &DeviceMesh, axes: &[usize], coords: &[usize]) -> usize {
    axes.iter()
        .fold(0, |part, &a| part * mesh.shape()[a] + coords[a])
}

fn coords_of(mesh: &DeviceMesh, mut index: usize) -> SmallVec<[usize; 4]> {
    let mut coords = SmallVec::from_elem(0, mesh.ndim());
    for a in (0..mesh.ndim()).rev() {
        coords[a] = index % mesh.shape()[a];
        index /= mesh.shape()[a];
    }
    coords
}

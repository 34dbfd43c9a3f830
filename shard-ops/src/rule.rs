//! Rules: how the dims of an op's operands relate to the indices it loops over.

mod conditions;

use crate::{OpError, OperandBox, Result, Routes, RowCuts, Value};
use shard_comm::{DType, Monoid, Scalar, Work};
use shard_spec::{DimMap, DimSharding, Dims, Partition, ReduceOp, Window, numel};
use smallvec::SmallVec;
use std::sync::Arc;

/// The global shape and type of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Global extents.
    pub shape: Dims,
    /// Element type.
    pub dtype: DType,
}

impl Meta {
    /// A value's.
    pub fn of(value: &Value) -> Self {
        Self {
            shape: Dims::from_slice(value.shape()),
            dtype: value.dtype(),
        }
    }
}

/// How one dim of one operand is indexed.
///
/// A **factor** is an index that the op loops over: matmul has three, `m`, `n` and `k`. A factor that appears in an
/// output is a *map* factor, one that does not is a *reduce* factor. Sharding an op means giving each rank an
/// interval of some factors; the access says which interval of the dim the rank then needs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Access {
    /// Every rank needs the whole dim. If an operand arrives sharded along it, the mesh axes may shard the factor
    /// `instead` (evenly), so that the op stays sharded.
    Whole {
        /// The factor to shard instead.
        instead: Option<usize>,
    },
    /// Index `i` of the factor is indices `i * block .. (i + 1) * block` of the dim.
    Factor {
        /// The factor.
        factor: usize,
        /// Consecutive indices of the dim per index of the factor.
        block: usize,
    },
    /// The dim comes block by block, in any order, and the kernel folds each block into its outputs (keys of attention, points
    /// of a neighbour search): see [`KernelCx::fold`](crate::KernelCx::fold). Every rank needs every index, but not at once:
    /// where the dim is sharded, [`FoldBy`] says how blocks and outputs meet. In an output, each rank's contribution to a block
    /// goes back to the block's owner and is summed.
    Ring {
        /// The factor, the same one in all operands.
        factor: usize,
        /// A factor that mesh axes which shard the dim may shard as well, so that the work is divided.
        instead: Option<usize>,
    },
    /// Another operand, the index of [`Routes`](crate::Routes), says which indices of the dim are looked at: each of its
    /// elements names one. In an input, a rank needs the rows that its part of that operand names; in an output, its
    /// contributions to rows belong to the owners of the rows. [`Routes`](crate::Routes) says how these meet.
    Routed {
        /// The factor whose indices are named, the same one in all operands.
        factor: usize,
    },
    /// Rows that belong to the indices of the factor, in the order of the indices, any number of rows to each.
    ///
    /// In an output without `cuts` their number depends on the data: the kernel [tells it](crate::HostCall::rows) and
    /// [writes](crate::Op::write_rows) the rows once all ranks know, which costs one round of a number per rank. The factor is
    /// then held in consecutive indices, so that rows are in the single device's order; the dim's extent is declared as 0. Rows
    /// that exist already have `cuts`, and the factor can be divided only at these.
    Rows {
        /// The factor.
        factor: usize,
        /// Where the rows of each index lie, if they exist already.
        cuts: Option<Arc<RowCuts>>,
    },
    /// The factor indexes the window's output; the dim is its input, with its halo. The kernel is given only what exists:
    /// what a window reads beyond the dim's ends is padding, which the kernel supplies.
    Window {
        /// The factor.
        factor: usize,
        /// Which input indices each output needs.
        window: Window,
    },
    /// The factor indexes the window's input (of extent `n`); the dim is its output, as the adjoint of a window needs it.
    Adjoint {
        /// The factor.
        factor: usize,
        /// The window whose adjoint this is.
        window: Window,
    },
    /// The factor indexes the destination of an index map, the dim is its source. Moves only.
    Map {
        /// The factor.
        factor: usize,
        /// Which index of the dim each index of the factor reads.
        map: DimMap,
        /// Where the boundaries of the operand's pieces lie in the result.
        law: Boundaries,
    },
}

/// Where an operand's boundaries move to when a move changes the extent of a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Boundaries {
    /// Scaled to the new extent: `cat`, `roll`, `flip`, `slice`.
    Scaled,
    /// Shifted by a number of indices, the outer ones clamped: `pad`.
    Shifted(isize),
}

impl Access {
    /// The whole dim on every rank.
    pub const WHOLE: Self = Self::Whole { instead: None };

    /// The dim is the factor.
    pub fn factor(factor: usize) -> Self {
        Self::Factor { factor, block: 1 }
    }

    /// Which factor indexes this dim, if any.
    pub fn factor_index(&self) -> Option<usize> {
        match self {
            Self::Whole { .. } => None,
            Self::Factor { factor, .. }
            | Self::Ring { factor, .. }
            | Self::Routed { factor }
            | Self::Rows { factor, .. }
            | Self::Window { factor, .. }
            | Self::Adjoint { factor, .. }
            | Self::Map { factor, .. } => Some(*factor),
        }
    }

    /// Which factor may be sharded instead, if any.
    pub(crate) fn instead(&self) -> Option<usize> {
        match self {
            Self::Whole { instead } | Self::Ring { instead, .. } => *instead,
            _ => None,
        }
    }

    /// Whether the dim comes block by block.
    pub(crate) fn is_ring(&self) -> bool {
        matches!(self, Self::Ring { .. })
    }

    /// Whether the dim is reached through a window or an index map.
    fn is_geometric(&self) -> bool {
        matches!(
            self,
            Self::Window { .. } | Self::Adjoint { .. } | Self::Map { .. }
        )
    }

    /// Whether another operand names the indices.
    pub(crate) fn is_routed(&self) -> bool {
        matches!(self, Self::Routed { .. })
    }
}

/// Whether a factor indexes one of these dims.
pub(crate) fn indexes(dims: &[Access], factor: usize) -> bool {
    dims.iter().any(|a| a.factor_index() == Some(factor))
}

/// What happens when a reduce factor is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The output is a partial value: `P(op)`.
    Partial(ReduceOp),
    /// The output is combined at once; for small results whose monoid has no placement, such as moments.
    Now(Monoid),
}

/// How an op with a sharded [`Access::Ring`] dim brings every index of its outputs together with all blocks of that dim. Results
/// are the same up to the rounding of sums, and have the same layout.
///
/// Figures are what each of `P` ranks receives, for keys and values of `K` bytes in all, and queries (forward, with results) of
/// `Q` bytes. In each way the dim's mesh axes must also shard the outputs, which they do unless another dim uses them.
///
/// | way | what moves | bytes | rounds | held |
/// |---|---|---|---|---|
/// | `Ring` | blocks, one in flight while another is computed (Ring Attention, Liu et al. 2023) | `K (P-1)/P` | `P-1` | two blocks |
/// | `Gather` | blocks, at once | `K (P-1)/P` | 1 | `K` |
/// | `Split` | queries to the blocks, and each block's results back, to be merged (as flash decoding splits the keys) | `Q (P-1)/P` | 2 | `Q` |
/// | `Heads` | blocks, queries and results: resharded from this dim to another one that all have (DeepSpeed Ulysses) | `(K + Q) (P-1)/P²` | 2 | `(K + Q)/P` |
///
/// An operand with an entry for every index of both dims, such as a mask of queries by keys, stays with its queries while keys go
/// round or are gathered, and so does its gradient. Neighbour search is split as attention is: queries go to the points, and what
/// each rank found is merged by (squared distance, index).
///
/// If the layouts or the op do not offer a way, it is not taken even when asked for; the cheapest of the others is. All ways
/// run on any device that runs host kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FoldBy {
    /// The fastest way by the mesh's [cost model](shard_redistribute::CostModel); among ways within a tenth of its time, the
    /// one that needs the least memory. See [`WayCost`](crate::WayCost).
    #[default]
    Auto,
    /// Blocks go round a ring.
    Ring,
    /// Every rank gathers all blocks.
    Gather,
    /// Blocks stay where they are: every rank folds its own into the outputs of all ranks, and the owners of the outputs merge
    /// the partial results. For few queries against many keys, as in decoding with a sharded cache.
    Split,
    /// The mesh axes shard another dim instead, such as heads: all operands are redistributed to that, the op runs on whole
    /// sequences, and results are redistributed back.
    Heads,
}

/// Through which operands partial sums may pass an op.
///
/// If an op is linear in an operand, applying it to each rank's term of a sum gives each rank's term of the
/// result, and no reduction is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Linearity {
    /// None: partial operands are reduced first.
    None,
    /// Linear in each of these operands while the others are fixed: at most one of them passes (matmul, conv).
    Each(SmallVec<[usize; 4]>),
    /// Linear in all operands together: they pass if all are partial over the same axes (add, cat).
    Joint,
}

/// One output of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// How its dims are indexed: by factors, or whole.
    pub dims: Vec<Access>,
    /// Its global shape and type.
    pub meta: Meta,
}

/// The local work of an op.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    /// A kernel over boxes of the operands.
    Kernel,
    /// No work: the first input's piece, once it has the right layout, is the output's piece under another shape.
    Relabel,
    /// No work: the exchange that assembles the result is everything.
    Move {
        /// Whether elements that map to the same place are added up.
        accumulate: bool,
    },
}

/// How an op's operands relate: its factors, the accesses of every dim, and which partial sums may pass.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: &'static str,
    pub(crate) factors: Vec<usize>,
    pub(crate) inputs: Vec<Vec<Access>>,
    pub(crate) metas: Vec<Meta>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) reduction: Option<Reduction>,
    pub(crate) linearity: Linearity,
    pub(crate) fill: Scalar,
    /// Inputs that are not read, and only determine a layout.
    pub(crate) unread: SmallVec<[usize; 1]>,
    /// Inputs of which other ops read the same halo.
    pub(crate) kept_halos: SmallVec<[usize; 2]>,
    /// Whether the kernel never looks at the positions of plain factors.
    pub(crate) any_order: bool,
    /// How sharded ring dims are served.
    pub(crate) fold_by: FoldBy,
    /// How ring dims are divided that are divided in no input.
    pub(crate) blocks: Option<DimSharding>,
    /// Which operand names the indices of routed dims, and how.
    pub(crate) routes: Option<Routes>,
    /// Floating-point operations per index of all factors together.
    pub(crate) flops: f64,
    /// Whether the op merges partial results.
    pub(crate) merges: bool,
    /// For operands of 16 bits that kernels get as `f32`: the types to which the outputs are rounded that kernels write as `f32`. Empty
    /// where kernels read the operands as they are.
    pub(crate) narrows: SmallVec<[Option<DType>; 2]>,
    /// Of such operands: how many bytes the `f32` copies for one call take, where calls can be divided so far.
    pub(crate) room: usize,
    /// Of such operands: those that kernels read as they are.
    pub(crate) as_stored: SmallVec<[usize; 2]>,
    /// Whether kernels round outputs that are whole themselves.
    pub(crate) rounds: bool,
    /// Whether outputs of operands of 16 bits stay `f32`.
    pub(crate) unrounded: bool,
    /// How many results like this one's the sum over ranks is taken of [together](crate::Exec::set_terms).
    pub(crate) terms: usize,
    pub(crate) body: Body,
}

impl Rule {
    /// Whether kernels get 16-bit operands as `f32`.
    pub fn is_wide(&self) -> bool {
        !self.narrows.is_empty()
    }

    /// The type to which output `o`, which kernels write as `f32`, is rounded in the end, if it is.
    pub fn narrows(&self, o: usize) -> Option<DType> {
        self.narrows.get(o).copied().flatten()
    }

    /// Whether kernels get input `i` as a copy in `f32`.
    pub(crate) fn widens(&self, i: usize) -> bool {
        let is_read = !self.unread.contains(&i) && !self.as_stored.contains(&i);
        self.is_wide() && self.metas[i].dtype.is_half() && is_read
    }

    /// Starts a rule for the op called `name`, whose inputs are `inputs`.
    pub fn builder(name: &'static str, inputs: &[Meta]) -> RuleBuilder {
        RuleBuilder(Self {
            name,
            factors: Vec::new(),
            inputs: Vec::new(),
            metas: inputs.to_vec(),
            outputs: Vec::new(),
            reduction: None,
            linearity: Linearity::None,
            fill: Scalar::ZERO,
            unread: SmallVec::new(),
            kept_halos: SmallVec::new(),
            any_order: false,
            fold_by: FoldBy::default(),
            blocks: None,
            routes: None,
            flops: 1.0,
            merges: false,
            narrows: SmallVec::new(),
            room: 0,
            as_stored: SmallVec::new(),
            rounds: false,
            unrounded: false,
            terms: 1,
            body: Body::Kernel,
        })
    }

    /// The rule of a pointwise op: every dim of every operand is a map factor, with operands of size 1
    /// broadcast and missing leading dims added, as NumPy does.
    ///
    /// # Errors
    /// [`Shape`](OpError::Shape) if the shapes do not broadcast.
    pub fn pointwise(
        name: &'static str,
        inputs: &[Meta],
        dtype: DType,
        linearity: Linearity,
    ) -> Result<Self> {
        let shape = broadcast(name, inputs)?;
        let mut rule = Self::builder(name, inputs).linearity(linearity).any_order();
        let factors: Vec<usize> = shape.iter().map(|&n| rule.factor(n)).collect();
        for meta in inputs {
            let lead = shape.len() - meta.shape.len();
            let dims = meta.shape.iter().enumerate().map(|(d, &n)| {
                let broadcasts = n == 1 && shape[lead + d] != 1;
                if broadcasts {
                    Access::WHOLE
                } else {
                    Access::factor(factors[lead + d])
                }
            });
            rule = rule.input(dims.collect());
        }
        rule.output(
            factors.iter().map(|&f| Access::factor(f)).collect(),
            shape,
            dtype,
        )
        .build()
    }

    /// The op's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The extent of each factor.
    pub fn factors(&self) -> &[usize] {
        &self.factors
    }

    /// How the dims of each input are indexed.
    pub fn inputs(&self) -> &[Vec<Access>] {
        &self.inputs
    }

    /// The outputs.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// How the dims of each operand are indexed: of the inputs, and then of the outputs.
    pub(crate) fn operands(&self) -> impl Iterator<Item = &Vec<Access>> {
        (self.inputs.iter()).chain(self.outputs.iter().map(|o| &o.dims))
    }

    /// Which partial sums may pass.
    pub fn linearity(&self) -> &Linearity {
        &self.linearity
    }

    /// How much work a kernel does on these boxes: operations per index of all factors together, and bytes of every operand once.
    pub(crate) fn work(&self, inputs: &[OperandBox], outputs: &[OperandBox]) -> Work {
        // How many indices of each factor are counted: those that the first box that shows it has.
        let mut indices: SmallVec<[Option<usize>; 8]> =
            SmallVec::from_elem(None, self.factors.len());
        let mut is_routed = false;
        for (dims, at) in self.operands().zip(inputs.iter().chain(outputs)) {
            for (access, &n) in dims.iter().zip(&at.shape) {
                let (factor, n) = match access {
                    Access::Factor { factor, block } if *block > 0 => (factor, n.div_ceil(*block)),
                    Access::Ring { factor, .. } => (factor, n),
                    _ => {
                        is_routed |= access.is_routed();
                        continue;
                    }
                };
                indices[*factor].get_or_insert(n);
            }
        }
        // Those of a routed factor are not: one is looked at for each element that names it.
        let counted = indices.iter().enumerate();
        let points: f64 = counted
            .filter(|&(f, _)| !(is_routed && self.is_routed(f)))
            .map(|(f, shown)| shown.unwrap_or(self.factors[f]) as f64)
            .product();
        let size = |at: &OperandBox, dtype: DType| numel(&at.shape).saturating_mul(dtype.size());
        let read = self.metas.iter().zip(inputs).enumerate();
        let read = read.filter(|(i, _)| !self.unread.contains(i));
        let read = read.map(|(_, (meta, at))| size(at, meta.dtype));
        let written = self.outputs.iter().zip(outputs);
        let written = written.map(|(o, at)| size(at, o.meta.dtype));
        Work {
            flops: (points * self.flops) as u64,
            bytes: read.chain(written).fold(0, usize::saturating_add) as u64,
        }
    }

    /// Whether a factor appears in no output: sharding it makes the result a reduction.
    pub fn is_reduced(&self, factor: usize) -> bool {
        !self.outputs.iter().any(|o| indexes(&o.dims, factor))
    }

    /// Whether a rank may hold several intervals of a factor, as with a zigzag or striped partition: the kernel does
    /// not look at positions, and every dim that the factor indexes is divided as the factor is.
    pub(crate) fn scatters(&self, factor: usize) -> bool {
        let mut accesses = self.operands().flatten();
        self.any_order
            && accesses.all(|access| match access {
                Access::Factor { factor: f, block } => *f != factor || *block == 1,
                Access::Map { factor: f, law, .. } => {
                    *f != factor || matches!(law, Boundaries::Scaled)
                }
                Access::Routed { .. } => true,
                _ => access.factor_index() != Some(factor),
            })
    }

    /// Whether a factor is folded block by block: every rank needs all of it, so no strategy shards it.
    pub(crate) fn rings(&self, factor: usize) -> bool {
        let mut accesses = self.operands().flatten();
        accesses.any(|a| matches!(a, Access::Ring { factor: f, .. } if *f == factor))
    }

    /// Whether another operand names the indices of a factor that are looked at.
    pub(crate) fn is_routed(&self, factor: usize) -> bool {
        let mut accesses = self.operands().flatten();
        accesses.any(|a| matches!(a, Access::Routed { factor: f } if *f == factor))
    }

    /// The factor whose numbers of rows depend on the data, if there is one.
    pub fn decides_rows(&self) -> Option<usize> {
        let mut dims = self.outputs.iter().flat_map(|o| &o.dims);
        dims.find_map(|access| match access {
            Access::Rows { factor, cuts: None } => Some(*factor),
            _ => None,
        })
    }

    /// Whether a factor can be divided in this way. A factor with rows that exist already can be divided only at their cuts; a
    /// routed one only if every rank may look at its own part of it alone.
    pub(crate) fn divides(&self, factor: usize, partition: &Partition) -> bool {
        if self.is_routed(factor) && !self.routes.as_ref().is_some_and(|r| r.masks) {
            return false;
        }
        let mut accesses = self.operands().flatten();
        accesses.all(|access| match access {
            Access::Rows {
                factor: f,
                cuts: Some(cuts),
            } if *f == factor => cuts.divided(partition).is_some(),
            _ => true,
        })
    }
}

/// Builds a [`Rule`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RuleBuilder(Rule);

impl RuleBuilder {
    /// Adds a factor of the given extent and returns its index.
    pub fn factor(&mut self, extent: usize) -> usize {
        self.0.factors.push(extent);
        self.0.factors.len() - 1
    }

    /// Says how the next input's dims are indexed.
    pub fn input(mut self, dims: Vec<Access>) -> Self {
        self.0.inputs.push(dims);
        self
    }

    /// Adds an output.
    pub fn output(mut self, dims: Vec<Access>, shape: Dims, dtype: DType) -> Self {
        self.0.outputs.push(Output {
            dims,
            meta: Meta { shape, dtype },
        });
        self
    }

    /// Says what happens when a reduce factor is sharded.
    pub fn reduction(mut self, reduction: Reduction) -> Self {
        self.0.reduction = Some(reduction);
        self
    }

    /// Says which partial sums may pass.
    pub fn linearity(mut self, linearity: Linearity) -> Self {
        self.0.linearity = linearity;
        self
    }

    /// Says what a move's result holds where its maps leave holes; zero by default.
    pub fn fill(mut self, value: Scalar) -> Self {
        self.0.fill = value;
        self
    }

    /// Says that the op is only a move; with `accumulate`, elements that map to the same place are added up.
    pub fn moves(mut self, accumulate: bool) -> Self {
        self.0.body = Body::Move { accumulate };
        self
    }

    /// Says that input `i` is not read or moved, and only determines the result's layout; it may be without data.
    pub fn unread(mut self, i: usize) -> Self {
        self.0.unread.push(i);
        self
    }

    /// Says that other ops, such as those of the vjp, read input `i` through the same windows: what a rank lacks of it is kept with
    /// the value while that lives, and not fetched again by ops that say the same.
    pub fn keeps_halo(mut self, i: usize) -> Self {
        self.0.kept_halos.push(i);
        self
    }

    /// Says that the kernel never reads [`OperandBox::start`](crate::OperandBox::start) of dims that are plain factors
    /// ([`Access::factor`]), so that a rank may hold several intervals of them, as with zigzag and striped partitions.
    /// Otherwise such operands are first redistributed to consecutive indices.
    pub fn any_order(mut self) -> Self {
        self.0.any_order = true;
        self
    }

    /// Says how blocks of sharded ring dims meet the outputs.
    pub fn fold_by(mut self, fold_by: FoldBy) -> Self {
        self.0.fold_by = fold_by;
        self
    }

    /// Says how ring dims are divided into blocks where no input that is read divides them: as outputs over them are to lie.
    pub fn blocks(mut self, blocks: DimSharding) -> Self {
        self.0.blocks = Some(blocks);
        self
    }

    /// Says which operand names the indices of [routed](Access::Routed) dims, and how.
    pub fn routes(mut self, routes: Routes) -> Self {
        self.0.routes = Some(routes);
        self
    }

    /// Says how many floating-point operations the op takes per index of all factors together, for the choice of a way to serve
    /// blocks and for forecasts of time; 1 by default.
    pub fn flops(mut self, flops: f64) -> Self {
        self.0.flops = flops;
        self
    }

    /// Says that the op [merges](crate::Op::merge) its outputs over parts of the dim that is folded block by block.
    pub fn merges(mut self) -> Self {
        self.0.merges = true;
        self
    }

    /// Says that results of operands of 16 bits stay `f32`, as they are computed: what goes on with them rounds once.
    pub(crate) fn unrounded(mut self, unrounded: bool) -> Self {
        self.0.unrounded = unrounded;
        self
    }

    /// Says that the first input's piece, once it has the right layout, is the output's piece under another shape.
    pub fn relabels(mut self) -> Self {
        self.0.body = Body::Relabel;
        self
    }

    /// Checks the rule against the operands' shapes.
    ///
    /// # Errors
    /// [`Arity`](OpError::Arity) or [`Shape`](OpError::Shape) if the rule does not describe them, or names factors or operands that
    /// are not there.
    pub fn build(self) -> Result<Rule> {
        self.0.check()?;
        Ok(self.0)
    }
}

/// The shape that `inputs` broadcast to, by NumPy's rule.
///
/// # Errors
/// [`Shape`](OpError::Shape) if two extents differ and neither is 1.
pub(crate) fn broadcast(op: &'static str, inputs: &[Meta]) -> Result<Dims> {
    let ndim = inputs.iter().map(|m| m.shape.len()).max().unwrap_or(0);
    let mut shape: Dims = SmallVec::from_elem(1, ndim);
    for meta in inputs {
        let lead = ndim - meta.shape.len();
        for (d, &n) in meta.shape.iter().enumerate() {
            let slot = &mut shape[lead + d];
            if *slot == 1 {
                *slot = n;
            } else if n != 1 && n != *slot {
                return Err(OpError::Shape {
                    op,
                    problem: format!("extents {} and {n} do not broadcast", *slot),
                    shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
                    fix: "reshape or expand an operand",
                });
            }
        }
    }
    Ok(shape)
}

//! Placements as a user writes them, and the layouts they mean.

use crate::{Dim, Error, Result};
use shard_spec::{DeviceMesh, DimSharding, Layout, Partition, Placement, ReduceOp};

/// What one mesh axis does with a tensor, and, if it shards a dim, how large the parts are.
///
/// Made by [`shard`], [`replicate`] and [`partial`]; a bare [`Placement`] turns into one.
///
/// ```
/// use shard_tensor::{replicate, shard};
/// let by_chunk = shard(0);                      // as torch.chunk: the trailing parts short or empty
/// let even = shard(0).even();                   // sizes differ by at most one
/// let uneven = shard(0).sizes([62, 0, 38]);     // these sizes
/// let weighted = shard(0).weights([1.0, 2.0]);  // in proportion
/// let causal = shard(1).zigzag();               // equal work under a causal mask
/// let features = shard(-1);                     // the last dim, whichever it is
/// # let _ = (by_chunk, even, uneven, weighted, causal, features, replicate());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AxisPlacement {
    what: What,
    split: Split,
}

/// A [`Placement`] of a tensor whose dims are not counted yet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Shard(Dim),
    Replicate,
    Partial(ReduceOp),
}

#[derive(Clone, Debug, PartialEq)]
enum Split {
    Chunk,
    Even,
    Sizes(Vec<usize>),
    Weights(Vec<f64>),
    Zigzag,
    BlockCyclic(usize),
}

/// Shards a dim along a mesh axis, by chunk unless one of the methods says otherwise. Below 0 it counts from the end, whatever the tensor:
/// -1 is the last.
///
/// ```
/// use shard_tensor::{launch, shard};
/// let laid = launch(2, |ctx| Ok(ctx.mesh_of(2)?.ones([3, 4, 5], shard(-1))?.layout().to_string()))?;
/// assert_eq!(laid[0], "S(2)");
/// # Ok::<(), shard_tensor::Error>(())
/// ```
pub fn shard(dim: impl Into<Dim>) -> AxisPlacement {
    AxisPlacement {
        what: What::Shard(dim.into()),
        split: Split::Chunk,
    }
}

/// Holds copies along a mesh axis; where it stands alone, along every axis of any mesh.
pub fn replicate() -> AxisPlacement {
    Placement::Replicate.into()
}

/// Holds terms of a reduction along a mesh axis.
pub fn partial(op: ReduceOp) -> AxisPlacement {
    Placement::Partial(op).into()
}

impl AxisPlacement {
    /// Parts of these sizes, one per rank along the axis.
    ///
    /// If several axes shard the same dim, the first may list the sizes of all parts of their product instead.
    /// Ignored unless the axis shards.
    #[must_use]
    pub fn sizes(self, sizes: impl Into<Vec<usize>>) -> Self {
        Self {
            split: Split::Sizes(sizes.into()),
            ..self
        }
    }

    /// Parts whose sizes differ by at most one, the larger first.
    #[must_use]
    pub fn even(self) -> Self {
        Self {
            split: Split::Even,
            ..self
        }
    }

    /// Parts in proportion to weights, one per rank along the axis.
    #[must_use]
    pub fn weights(self, weights: impl Into<Vec<f64>>) -> Self {
        Self {
            split: Split::Weights(weights.into()),
            ..self
        }
    }

    /// Each part a block and its mirror image from the end, see [`Partition::zigzag`].
    #[must_use]
    pub fn zigzag(self) -> Self {
        Self {
            split: Split::Zigzag,
            ..self
        }
    }

    /// Indices dealt to the parts in turn, see [`Partition::striped`].
    #[must_use]
    pub fn striped(self) -> Self {
        self.block_cyclic(1)
    }

    /// Blocks of this size dealt to the parts in turn, see [`Partition::block_cyclic`].
    #[must_use]
    pub fn block_cyclic(self, block: usize) -> Self {
        Self {
            split: Split::BlockCyclic(block),
            ..self
        }
    }

    /// The placement without its sizes, for a tensor of so many dims.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a dim before the first. One behind the last is left to who makes a layout of it.
    pub fn placement(&self, ndim: usize) -> Result<Placement> {
        Ok(match self.what {
            What::Shard(dim) => Placement::Shard(dim.of("placements", ndim)?),
            What::Replicate => Placement::Replicate,
            What::Partial(op) => Placement::Partial(op),
        })
    }

    /// How `n` indices divide over `parts` ranks.
    fn partition(&self, n: usize, parts: usize) -> Result<Partition> {
        Ok(match &self.split {
            Split::Chunk => Partition::chunk(n, parts),
            Split::Even => Partition::balanced(n, parts),
            Split::Weights(weights) => Partition::weighted(n, weights)?,
            Split::Sizes(sizes) => Partition::from_sizes(sizes)?,
            Split::Zigzag => Partition::zigzag(n, parts),
            Split::BlockCyclic(block) => Partition::block_cyclic(n, parts, *block),
        })
    }
}

/// A layout that differs from another, which is not partial, in what one mesh axis does. A dim that other axes divide is divided further.
pub(crate) fn with_axis(layout: &Layout, axis: usize, placement: &AxisPlacement) -> Result<Layout> {
    let free = without_axis(layout, axis)?;
    let parts = layout.mesh().axis_size(axis);
    match placement.placement(layout.ndim())? {
        Placement::Replicate => Ok(free),
        Placement::Partial(op) => Ok(free.with_partial(&[axis], op)?),
        Placement::Shard(dim) => {
            if dim >= free.ndim() {
                // The same error as everywhere else.
                let mut all = free.placements().to_vec();
                all[axis] = Placement::Shard(dim);
                return Ok(Layout::new(free.mesh(), free.shape(), &all)?);
            }
            divided_further(&free, dim, axis, |size| placement.partition(size, parts))
        }
    }
}

/// A layout that divides a dim that it has, or the parts that it has of it, over one more axis. `parts` tells how so many indices divide.
/// What other axes divide stays divided: the parts of this one are parts of theirs.
pub(crate) fn divided_further(
    layout: &Layout,
    dim: usize,
    axis: usize,
    parts: impl Fn(usize) -> Result<Partition>,
) -> Result<Layout> {
    let (own, extent) = (layout.sharding(dim), layout.shape()[dim]);
    let sharding = DimSharding::further(own, extent, &[axis], parts)?;
    Ok(layout.with_sharding(dim, Some(sharding))?)
}

/// A layout that one mesh axis has copies of, and the others as they had it. Where others divide its parts of a dim further, each of them
/// has as much of the dim as it had in all of these together, in consecutive parts if they were so.
fn without_axis(layout: &Layout, axis: usize) -> Result<Layout> {
    let Placement::Shard(dim) = layout.placements()[axis] else {
        return Ok(layout.clone());
    };
    let Some(sharding) = layout.sharding(dim).filter(|s| s.axes.len() > 1) else {
        return Ok(layout.with_sharding(dim, None)?);
    };
    let (mesh, old) = (layout.mesh(), &sharding.partition);
    let at = sharding.axes.iter().take_while(|&&a| a != axis).count();
    let (count, within) = (
        mesh.axis_size(axis),
        mesh.part_count(&sharding.axes[at + 1..]),
    );
    let mut axes = sharding.axes.clone();
    axes.remove(at);
    let kept = |part: usize| part / (count * within) * within + part % within;
    let parts = old.parts() / count;
    let partition = match old {
        Partition::Segments(segments) => {
            let tiles: Vec<_> = segments.tiles().map(|(p, n)| (kept(p), n)).collect();
            Partition::from_repeated(old.extent(), parts, &tiles)?
        }
        _ => {
            let mut sizes = vec![0; parts];
            for (part, size) in old.sizes().enumerate() {
                sizes[kept(part)] += size;
            }
            Partition::from_sizes(&sizes)?
        }
    };
    Ok(layout.with_sharding(dim, Some(DimSharding { axes, partition }))?)
}

impl From<Placement> for AxisPlacement {
    fn from(placement: Placement) -> Self {
        let what = match placement {
            Placement::Shard(dim) => What::Shard(dim.into()),
            Placement::Replicate => What::Replicate,
            Placement::Partial(op) => What::Partial(op),
        };
        Self {
            what,
            split: Split::Chunk,
        }
    }
}

/// Where a tensor goes on a mesh, as a user writes it.
///
/// - in mesh order, one entry per axis: `[shard(0), replicate()]`, `[shard(2).sizes([62, 38]), shard(3)]`, or, where there is
///   one axis, just `shard(0)`; also as a slice, a vector, or a tuple, whose entries may be [`Placement`]s and others;
/// - as copies on a mesh of any number of axes: just `replicate()`; anything else on all axes of any mesh:
///   [`Placements::everywhere`];
/// - by axis name, the axes not named holding copies: `[("h", shard(2)), ("w", shard(3))]`, `("w", shard(3))`, or a vector
///   ([`redistribute_axis`](crate::ShardTensor::redistribute_axis) leaves them as they are);
/// - as another tensor's layout: `x.layout()`.
///
/// ```
/// use shard_spec::DeviceMesh;
/// use shard_tensor::{Placements, replicate, shard};
/// let mesh = DeviceMesh::new(&[2, 2])?.with_names(&["h", "w"])?;
/// let layout = Placements::from([shard(0).sizes([62, 38]), replicate()]).layout(&mesh, &[100, 7])?;
/// assert_eq!(layout.to_string(), "S(0)[62,38] R");
/// let named = Placements::from([("w", shard(1))]).layout(&mesh, &[100, 7])?;
/// assert_eq!(named.to_string(), "R S(1)");
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Placements(Form);

#[derive(Clone, Debug, PartialEq)]
enum Form {
    InOrder(Vec<AxisPlacement>),
    Everywhere(AxisPlacement),
    ByName(Vec<(String, AxisPlacement)>),
    Layout(Layout),
}

impl Placements {
    /// Copies on every axis of any mesh.
    pub fn replicated() -> Self {
        Self(Form::ByName(Vec::new()))
    }

    /// The same on every axis of a mesh of any number of axes: what is `[Shard(0)] * mesh.ndim` in PyTorch. A program that divides its
    /// batch so runs on any mesh.
    ///
    /// Sizes are those of all parts, one per rank.
    ///
    /// ```
    /// use shard_tensor::{Placements, launch, shard};
    /// launch(4, |ctx| {
    ///     for mesh in [ctx.mesh_of(4)?, ctx.mesh_of([2, 2])?] {
    ///         let batch = mesh.randn([7, 3], Placements::everywhere(shard(0)))?;
    ///         assert_eq!(batch.local_shape()[0], if ctx.rank() < 3 { 2 } else { 1 });
    ///         mesh.randn([7, 3], Placements::everywhere(shard(0).sizes([3, 0, 3, 1])))?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    pub fn everywhere(axis: impl Into<AxisPlacement>) -> Self {
        Self(Form::Everywhere(axis.into()))
    }

    /// The layout these placements give a tensor of this shape.
    ///
    /// # Collective
    /// None: pure layout maths.
    ///
    /// # Errors
    /// [`Spec`](Error::Spec) and [`Argument`](Error::Argument): a wrong number of placements, a dim out of range,
    /// sizes that do not sum to the extent, an unknown or repeated axis name, a layout of another mesh or shape.
    pub fn layout(&self, mesh: &DeviceMesh, shape: &[usize]) -> Result<Layout> {
        let axes = match &self.0 {
            Form::Layout(layout) => return same_tensor(layout, mesh, shape),
            Form::InOrder(axes) => axes.clone(),
            Form::Everywhere(axis) => on_all(mesh, axis),
            Form::ByName(named) => in_mesh_order(mesh, named)?,
        };
        let placements = resolved(&axes, shape.len())?;
        // Validates the count, the dims and the mixture of partial axes, and is the answer if all go by chunk.
        let by_chunk = Layout::new(mesh, shape, &placements)?;
        if axes.iter().all(|a| a.split == Split::Chunk) {
            return Ok(by_chunk);
        }
        let mut builder = Layout::builder(mesh, shape);
        for (axis, placement) in placements.iter().enumerate() {
            if let Some(op) = placement.partial_op() {
                builder = builder.partial(axis, op);
            }
        }
        for (dim, &extent) in shape.iter().enumerate() {
            let sharding: Vec<usize> = (0..axes.len())
                .filter(|&a| placements[a].shard_dim() == Some(dim))
                .collect();
            if !sharding.is_empty() {
                builder = builder.shard(dim, &sharding, divide(mesh, &axes, &sharding, extent)?);
            }
        }
        Ok(builder.build()?)
    }

    /// The placements alone, for callers that learn the sizes from the ranks, and count the dims with these: see [`resolved`].
    pub(crate) fn plain(&self, mesh: &DeviceMesh) -> Result<Vec<AxisPlacement>> {
        let axes = match &self.0 {
            Form::Layout(layout) => {
                return Ok(layout.placements().iter().map(|&p| p.into()).collect());
            }
            Form::InOrder(axes) => axes.clone(),
            Form::Everywhere(axis) => on_all(mesh, axis),
            Form::ByName(named) => in_mesh_order(mesh, named)?,
        };
        if axes.len() != mesh.ndim() {
            // The same error as everywhere else.
            Layout::new(mesh, &[], &vec![Placement::Replicate; axes.len()])?;
        }
        if axes.iter().any(|a| a.split != Split::Chunk) {
            return Err(Error::argument(
                "from_local",
                "placements without sizes",
                format!("{self:?}"),
                "the ranks tell the sizes; drop them from the placements, or state the global shape",
            ));
        }
        Ok(axes)
    }
}

/// Placements of a tensor of so many dims.
pub(crate) fn resolved(axes: &[AxisPlacement], ndim: usize) -> Result<Vec<Placement>> {
    axes.iter().map(|axis| axis.placement(ndim)).collect()
}

/// The flat partition of one dim over the axes that shard it, the first the major one.
fn divide(
    mesh: &DeviceMesh,
    axes: &[AxisPlacement],
    sharding: &[usize],
    extent: usize,
) -> Result<Partition> {
    let sizes: Vec<usize> = sharding.iter().map(|&a| mesh.axis_size(a)).collect();
    let product: usize = sizes.iter().product();
    let first = &axes[sharding[0]];
    if let Split::Sizes(flat) = &first.split
        && flat.len() == product
        && sharding[1..].iter().all(|&a| axes[a].split == Split::Chunk)
    {
        return Ok(Partition::from_sizes(flat)?);
    }
    let mut whole = first.partition(extent, sizes[0])?;
    for (&axis, &parts) in sharding.iter().zip(&sizes).skip(1) {
        let inner: Result<Vec<Partition>> = (0..whole.parts())
            .map(|p| axes[axis].partition(whole.size(p), parts))
            .collect();
        whole = Partition::nested(&whole, &inner?)?;
    }
    Ok(whole)
}

/// A placement on every axis. Its sizes, if it says any, are those of the parts of all axes together: the first has them.
fn on_all(mesh: &DeviceMesh, axis: &AxisPlacement) -> Vec<AxisPlacement> {
    let mut axes = vec![axis.clone(); mesh.ndim()];
    if let (Split::Sizes(_), [_, others @ ..]) = (&axis.split, &mut axes[..]) {
        others.iter_mut().for_each(|axis| axis.split = Split::Chunk);
    }
    axes
}

fn in_mesh_order(
    mesh: &DeviceMesh,
    named: &[(String, AxisPlacement)],
) -> Result<Vec<AxisPlacement>> {
    let mut axes = vec![None; mesh.ndim()];
    for (name, placement) in named {
        let slot = &mut axes[mesh.axis(name)?];
        if slot.is_some() {
            return Err(Error::argument(
                "placements",
                "every axis name at most once",
                format!("{name:?} twice"),
                "merge the two entries into one",
            ));
        }
        *slot = Some(placement.clone());
    }
    Ok(axes
        .into_iter()
        .map(|a| a.unwrap_or_else(replicate))
        .collect())
}

fn same_tensor(layout: &Layout, mesh: &DeviceMesh, shape: &[usize]) -> Result<Layout> {
    if layout.mesh() != mesh {
        return Err(Error::argument(
            "placements",
            format!("a layout of mesh {mesh}"),
            format!("one of mesh {}", layout.mesh()),
            "give placements instead of a layout, or use the mesh the layout is of",
        ));
    }
    if layout.shape() != shape {
        return Err(Error::argument(
            "placements",
            format!("a layout of shape {shape:?}"),
            format!("one of shape {:?}", layout.shape()),
            "give placements, which fit any shape",
        ));
    }
    Ok(layout.clone())
}

/// Placements in mesh order.
fn in_order<A: Into<AxisPlacement>>(axes: impl IntoIterator<Item = A>) -> Placements {
    Placements(Form::InOrder(axes.into_iter().map(Into::into).collect()))
}

/// Placements by axis name.
fn by_name<S: Into<String>, A: Into<AxisPlacement>>(
    named: impl IntoIterator<Item = (S, A)>,
) -> Placements {
    let named = named.into_iter().map(|(name, a)| (name.into(), a.into()));
    Placements(Form::ByName(named.collect()))
}

/// What the one axis of a mesh does. Copies are the same on a mesh of any number of axes: a bare [`replicate`] is
/// [`Placements::replicated`].
impl From<AxisPlacement> for Placements {
    fn from(axis: AxisPlacement) -> Self {
        match axis.what {
            What::Replicate => Self::replicated(),
            _ => in_order([axis]),
        }
    }
}

impl From<Placement> for Placements {
    fn from(axis: Placement) -> Self {
        AxisPlacement::from(axis).into()
    }
}

impl<A: Into<AxisPlacement>, const N: usize> From<[A; N]> for Placements {
    fn from(axes: [A; N]) -> Self {
        in_order(axes)
    }
}

impl<A: Clone + Into<AxisPlacement>, const N: usize> From<&[A; N]> for Placements {
    fn from(axes: &[A; N]) -> Self {
        axes[..].into()
    }
}

impl<A: Clone + Into<AxisPlacement>> From<&[A]> for Placements {
    fn from(axes: &[A]) -> Self {
        in_order(axes.iter().cloned())
    }
}

impl<A: Into<AxisPlacement>> From<Vec<A>> for Placements {
    fn from(axes: Vec<A>) -> Self {
        in_order(axes)
    }
}

impl<A: Clone + Into<AxisPlacement>> From<&Vec<A>> for Placements {
    fn from(axes: &Vec<A>) -> Self {
        axes[..].into()
    }
}

/// Axes placed by what is not of one type, as a [`Placement`] beside a `shard(0)`.
macro_rules! mixed {
    ($($($axis:ident)+;)*) => {$(
        impl<$($axis: Into<AxisPlacement>),+> From<($($axis,)+)> for Placements {
            fn from(axes: ($($axis,)+)) -> Self {
                #[expect(non_snake_case, reason = "the names of the types")]
                let ($($axis,)+) = axes;
                in_order([$($axis.into()),+])
            }
        }
    )*};
}

mixed! {
    A B;
    A B C;
    A B C D;
}

impl<A: Into<AxisPlacement>> From<(&str, A)> for Placements {
    fn from(named: (&str, A)) -> Self {
        by_name([named])
    }
}

impl<A: Into<AxisPlacement>, const N: usize> From<[(&str, A); N]> for Placements {
    fn from(named: [(&str, A); N]) -> Self {
        by_name(named)
    }
}

impl<A: Clone + Into<AxisPlacement>> From<&[(&str, A)]> for Placements {
    fn from(named: &[(&str, A)]) -> Self {
        by_name(named.iter().cloned())
    }
}

impl<A: Into<AxisPlacement>> From<Vec<(&str, A)>> for Placements {
    fn from(named: Vec<(&str, A)>) -> Self {
        by_name(named)
    }
}

impl<A: Into<AxisPlacement>> From<Vec<(String, A)>> for Placements {
    fn from(named: Vec<(String, A)>) -> Self {
        by_name(named)
    }
}

impl From<Layout> for Placements {
    fn from(layout: Layout) -> Self {
        Self(Form::Layout(layout))
    }
}

impl From<&Layout> for Placements {
    fn from(layout: &Layout) -> Self {
        Self(Form::Layout(layout.clone()))
    }
}

impl From<&Self> for Placements {
    fn from(placements: &Self) -> Self {
        placements.clone()
    }
}

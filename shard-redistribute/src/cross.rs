//! Moves between different meshes of one world, and between one rank and a mesh.
//!
//! Ranks are names in the world: a rank may be on both meshes, on one, or on none. The pieces are found as on one
//! mesh, by intersecting intervals; what is on a rank already is not sent. Partial values are reduced on their own
//! mesh first, by a reduce-scatter, so that each element crosses once.

use crate::error::Incompatible;
use crate::geometry::{Along, Places, Run, Writer, cover_of, for_each_product, shape_of, share_of};
use crate::route::finer;
use crate::{Array, Fingerprint, Forecast, MeshComm, Plan, RedistributeError, Result};
use shard_comm::{
    AgreedError, Buffer, Communicator, DType, ExchangePlan, Pieces, Request, Scalar, Target,
};
use shard_spec::{DeviceMesh, DimMap, Layout, ReduceOp, numel};
use smallvec::SmallVec;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

/// How an array goes from a layout on one mesh to a layout on another: derived by every rank of the world from the
/// two layouts alone.
///
/// ```
/// use shard_redistribute::CrossPlan;
/// use shard_comm::DType;
/// use shard_spec::{DeviceMesh, Layout};
/// // From ranks 0 and 1 to ranks 1, 2 and 3.
/// let left = DeviceMesh::with_ranks(&[2], vec![0, 1])?;
/// let right = DeviceMesh::with_ranks(&[3], vec![1, 2, 3])?;
/// let from = Layout::parse(&left, &[12], "S(0)")?;
/// let to = Layout::parse(&right, &[12], "S(0)")?;
/// // Rank 1 holds rows 6 to 11 and wants rows 0 to 3; rank 3 wants rows 8 to 11, which rank 1 has.
/// let messages = |rank| CrossPlan::new(&from, &to, rank).unwrap().forecast(DType::F64).messages;
/// assert_eq!([messages(0), messages(1), messages(2), messages(3)], [0, 1, 2, 1]);
/// # Ok::<(), shard_spec::SpecError>(())
/// ```
#[derive(Debug)]
pub struct CrossPlan {
    from: Layout,
    to: Layout,
    rank: usize,
    /// On the source's mesh, before anything crosses.
    before: Option<Plan>,
    /// The source's layout when it crosses.
    crossing: Layout,
    exchange: Arc<ExchangePlan>,
    /// Elements of this rank's block of the destination; 0 off its mesh.
    len: usize,
}

impl CrossPlan {
    /// Plans the move for the rank of this number in the world. A replicated piece is read whole from one of its
    /// copies, readers taking turns. No communication.
    ///
    /// The destination may be a partial sum, as adjoints need: its values arrive at coordinate 0 of the partial
    /// axes, and the others hold zeros.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the shapes differ or the destination is partial under
    /// another operation than a sum.
    pub fn new(from: &Layout, to: &Layout, rank: usize) -> Result<Self> {
        Self::build(from, to, rank, false)
    }

    /// As [`new`](Self::new), with every piece cut evenly over its copies: more messages, and no owner sends more
    /// than its share.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn spread(from: &Layout, to: &Layout, rank: usize) -> Result<Self> {
        Self::build(from, to, rank, true)
    }

    fn build(from: &Layout, to: &Layout, rank: usize, spread: bool) -> Result<Self> {
        check(from, to)?;
        let crossing = scattered(from)?;
        let before = match from.mesh().index_of(rank) {
            Some(index) if from.is_partial() => Some(Plan::new(from, &crossing, index)?),
            _ => None,
        };
        let crossing_pair = Crossing {
            from: &crossing,
            to,
            copies: Copies::of(&crossing),
            spread,
        };
        let mut recv = crossing_pair.receive(rank);
        let mut send = crossing_pair.send(rank);
        recv.sort();
        send.sort();
        let id = Fingerprint::new("cross")
            .with(&from.hash128())
            .with(&to.hash128())
            .with(&spread)
            .finish();
        let fill = to.is_partial().then_some(Scalar::ZERO);
        Ok(Self {
            from: from.clone(),
            to: to.clone(),
            rank,
            before,
            exchange: Arc::new(ExchangePlan::new("move", id, recv, send, None, fill)),
            len: to.local_shape(rank).map_or(0, |s| numel(&s)),
            crossing,
        })
    }

    /// The layout the plan starts from.
    pub fn from(&self) -> &Layout {
        &self.from
    }

    /// The layout the plan ends in.
    pub fn to(&self) -> &Layout {
        &self.to
    }

    /// The pieces that cross, peers numbered as in the world.
    pub fn pieces(&self) -> &ExchangePlan {
        &self.exchange
    }

    /// What this rank will move and hold when the plan runs; see [`Plan::forecast`].
    pub fn forecast(&self, dtype: DType) -> Forecast {
        let before = self.before.as_ref();
        let mut all = before.map_or_else(Forecast::default, |p| p.forecast(dtype));
        all.bytes += (self.exchange.remote_elements(self.rank) * dtype.size()) as u64;
        all.messages += self.exchange.remote_messages(self.rank) as u64;
        all.rounds += 1;
        all.peak += (self.len * dtype.size()) as u64;
        all
    }

    /// The plan of the adjoint move: from the dual of the destination to the dual of the source; see
    /// [`Plan::adjoint`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn adjoint(&self) -> Result<Self> {
        Self::new(
            &crate::plan::dual(&self.to)?,
            &crate::plan::dual(&self.from)?,
            self.rank,
        )
    }

    /// Moves an array onto the mesh of `cx`.
    ///
    /// # Collective
    /// Every rank of the world, on either mesh or on none.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the array's layout is not the plan's source,
    /// [`OtherMesh`](RedistributeError::OtherMesh) if `cx` is not of the destination's mesh; what the communicator
    /// reports.
    #[track_caller]
    pub fn run(&self, array: &Array, cx: &Rc<MeshComm>) -> Result<Array> {
        if array.layout() != &self.from {
            let why = "the plan was made for another source layout";
            return Err(incompatible(array.layout(), &self.from, why));
        }
        if cx.mesh() != self.to.mesh() {
            return Err(RedistributeError::OtherMesh { op: "move" });
        }
        let reduced = match &self.before {
            Some(plan) => plan.run(array)?,
            None => array.clone(),
        };
        let local = self.cross(cx.world(), array.dtype(), reduced.buffer())?;
        Array::from_parts(cx, &self.to, local, array.dtype())
    }

    /// The part of the move that crosses: this rank's block in, this rank's block out. A block that does not fit
    /// is reported on every rank.
    #[track_caller]
    fn cross(
        &self,
        world: &Rc<dyn Communicator>,
        dtype: DType,
        block: Option<&Buffer>,
    ) -> Result<Option<Buffer>> {
        let device = world.device();
        let expected = self.crossing.local_shape(self.rank);
        let mut status = check_block(block, dtype, expected.as_deref().map(numel));
        // A rank that cannot allocate still joins, so that all ranks fail alike.
        let dst = match device.alloc(dtype, self.len) {
            Ok(dst) => dst,
            Err(e) => {
                status = status.and(Err(AgreedError::from_local("move", e)));
                device.alloc(dtype, 0)?
            }
        };
        let sources: SmallVec<[Buffer; 1]> = match &status {
            Ok(()) => block.cloned().into_iter().collect(),
            Err(_) => SmallVec::new(),
        };
        let request = Request::exchange(
            self.exchange.clone(),
            &sources,
            Target::Write(dst),
            Location::caller(),
        );
        let result = world.post(Request { status, ..request })?.wait()?;
        Ok(self.to.mesh().contains(self.rank).then_some(result))
    }
}

impl Array {
    /// Moves the array onto another mesh of the same world.
    ///
    /// # Collective
    /// Every rank of the world, on either mesh or on none: a rank off the mesh has an array without data.
    ///
    /// # Errors
    /// As [`CrossPlan::new`] and [`CrossPlan::run`].
    #[track_caller]
    pub fn redistribute_onto(&self, cx: &Rc<MeshComm>, to: &Layout) -> Result<Self> {
        CrossPlan::new(self.layout(), to, cx.rank())?.run(self, cx)
    }

    /// Makes an array of what one rank of the world holds whole, row-major. Every rank receives its own block and
    /// nothing else.
    ///
    /// # Collective
    /// Every rank of the world, with the same layout, owner and type; only the owner's `data` is read.
    ///
    /// # Errors
    /// [`NoSuchRank`](RedistributeError::NoSuchRank), [`Incompatible`](RedistributeError::Incompatible) for a
    /// partial layout other than a sum; an agreed error if the owner's data is absent or of another size.
    ///
    /// ```
    /// use shard_comm::{Communicator, DType};
    /// use shard_redistribute::{Array, MeshComm};
    /// use shard_spec::{DeviceMesh, Layout};
    /// use std::rc::Rc;
    /// let back = shard_comm::local::run(3, |comm| {
    ///     let world: Rc<dyn Communicator> = Rc::new(comm);
    ///     let mesh = DeviceMesh::new(&[3]).unwrap();
    ///     let cx = MeshComm::new(&world, &mesh).unwrap();
    ///     let rows = Layout::parse(&mesh, &[6], "S(0)[1,2,3]").unwrap();
    ///     let data = (cx.rank() == 1).then(|| {
    ///         world.device().upload_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).unwrap()
    ///     });
    ///     let x = Array::scatter(&cx, &rows, 1, data.as_ref(), DType::F64).unwrap();
    ///     let last = *x.to_vec::<f64>().unwrap().last().unwrap();
    ///     let whole = x.gather(2).unwrap();
    ///     (last, whole.map(|b| b.to_vec::<f64>().unwrap()))
    /// })
    /// .unwrap();
    /// assert_eq!(back[0], (0.0, None));
    /// assert_eq!(back[2], (5.0, Some(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])));
    /// ```
    #[track_caller]
    pub fn scatter(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        owner: usize,
        data: Option<&Buffer>,
        dtype: DType,
    ) -> Result<Self> {
        if layout.mesh() != cx.mesh() {
            return Err(RedistributeError::OtherMesh { op: "scatter" });
        }
        let from = on_one("scatter", cx, owner, layout.shape())?;
        let plan = CrossPlan::new(&from, layout, cx.rank())?;
        let data = data.filter(|_| cx.rank() == owner);
        let local = plan.cross(cx.world(), dtype, data)?;
        Self::from_parts(cx, layout, local, dtype)
    }

    /// The whole array, row-major, on one rank of the world, which gets `Some`. The others hold nothing new but,
    /// for a partial array, their share of the sum.
    ///
    /// # Collective
    /// Every rank of the world.
    ///
    /// # Errors
    /// [`NoSuchRank`](RedistributeError::NoSuchRank); what the communicator reports.
    #[track_caller]
    pub fn gather(&self, owner: usize) -> Result<Option<Buffer>> {
        let cx = self.cx();
        let to = on_one("gather", cx, owner, self.shape())?;
        let plan = CrossPlan::new(self.layout(), &to, cx.rank())?;
        let reduced = match &plan.before {
            Some(plan) => plan.run(self)?,
            None => self.clone(),
        };
        plan.cross(cx.world(), self.dtype(), reduced.buffer())
    }
}

/// The layout of a tensor that one rank holds whole.
fn on_one(op: &'static str, cx: &MeshComm, owner: usize, shape: &[usize]) -> Result<Layout> {
    let size = cx.world().size();
    if owner >= size {
        return Err(RedistributeError::NoSuchRank {
            op,
            rank: owner,
            size,
        });
    }
    let mesh = DeviceMesh::with_ranks(&[1], vec![owner])?;
    Ok(Layout::replicated(&mesh, shape))
}

/// The layout with its partial axes sharding its largest dim: what a reduce-scatter leaves. Replicated if there is
/// no dim to shard.
fn scattered(from: &Layout) -> Result<Layout> {
    let whole = from.with_partial_reduced();
    let axes = from.partial_axes();
    let largest = (0..whole.ndim()).rev().max_by_key(|&d| {
        whole
            .sharding(d)
            .map_or(whole.shape()[d], |s| s.partition.max_size())
    });
    match largest {
        Some(d) if !axes.is_empty() => {
            let count = axes.iter().map(|&a| from.mesh().shape()[a]).product();
            Ok(whole.with_sharding(d, Some(finer(&whole, d, axes, count)?))?)
        }
        _ => Ok(whole),
    }
}

fn check_block(
    block: Option<&Buffer>,
    dtype: DType,
    expected: Option<usize>,
) -> Result<(), AgreedError> {
    let got = block.map(|b| (b.dtype(), b.len()));
    let fits = match (got, expected) {
        (None, None) => true,
        (Some((t, n)), Some(want)) => t == dtype && n == want,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let text = |held: Option<(DType, usize)>| match held {
        Some((t, n)) => format!("{n} elements of {t}"),
        None => "no data".to_owned(),
    };
    Err(AgreedError::new(
        "move",
        text(expected.map(|n| (dtype, n))),
        text(got),
        "pass the block that the source layout gives this rank",
    ))
}

fn check(from: &Layout, to: &Layout) -> Result<()> {
    if from.shape() != to.shape() {
        return Err(incompatible(from, to, "the shapes differ"));
    }
    match to.partial_op() {
        Some(op) if op != ReduceOp::Sum => Err(incompatible(
            from,
            to,
            "only a partial sum can be made from whole values",
        )),
        _ => Ok(()),
    }
}

fn incompatible(from: &Layout, to: &Layout, why: &'static str) -> RedistributeError {
    RedistributeError::Incompatible(Box::new(Incompatible {
        op: "move",
        from: from.clone(),
        to: to.clone(),
        why,
        fix: "give a destination layout of the same shape that is not partial",
    }))
}

/// Both ends of a move, neither end's values partial on the way.
struct Crossing<'a> {
    from: &'a Layout,
    to: &'a Layout,
    copies: Copies,
    spread: bool,
}

/// The axes of the source's mesh that hold copies.
struct Copies {
    axes: SmallVec<[usize; 4]>,
    places: Places,
}

impl Copies {
    fn of(layout: &Layout) -> Self {
        let axes: SmallVec<[usize; 4]> = layout.replicate_axes().iter().copied().collect();
        let places = Places::of(layout.mesh(), &axes);
        Self { axes, places }
    }
}

impl Crossing<'_> {
    /// The pieces that the rank reads: per dim the runs that its interval shares with the source's parts, and their
    /// product.
    fn receive(&self, rank: usize) -> Pieces {
        let mut out = Pieces::new();
        let (Some(turn), Some(want)) = (self.to.mesh().index_of(rank), self.to.local_parts(rank))
        else {
            return out;
        };
        if !self.arrives_at(&self.to.mesh().coords_at(turn)) {
            return out;
        }
        let along = |d: usize| {
            let map = DimMap::identity(self.to.shape()[d]);
            Along::reads(self.from, d, &map, want[d].clone(), |_| true)
        };
        let dims: Vec<Along<'_>> = (0..self.to.ndim()).map(along).collect();
        let mut writer = Writer::new(&mut out, &dims, 0, &shape_of(&want), true);
        let ranks = self.from.mesh().ranks();
        let held = self.held_by(rank);
        for_each_product(&dims, |runs, owner| {
            if held == Some(owner) {
                return writer.push(rank, runs, 0);
            }
            for copy in 0..self.copies.places.count() {
                if let Some(cut) = self.share(runs, copy, turn) {
                    let peer = ranks[owner + self.copies.places.at(copy)];
                    writer.push(peer, &cut, 0);
                }
            }
        });
        out
    }

    /// The mirror of [`receive`](Self::receive): what others read from the rank.
    fn send(&self, rank: usize) -> Pieces {
        let mut out = Pieces::new();
        let (mesh, target) = (self.from.mesh(), self.to.mesh());
        let (Some(index), Some(have)) = (mesh.index_of(rank), self.from.local_parts(rank)) else {
            return out;
        };
        let copy = mesh.part_at(&self.copies.axes, &mesh.coords_at(index));
        // Values arrive at coordinate 0 of the axes of a sum.
        let mut fixed: SmallVec<[Option<usize>; 4]> = SmallVec::from_elem(None, target.ndim());
        self.to
            .partial_axes()
            .iter()
            .for_each(|&a| fixed[a] = Some(0));
        let covers = cover_of(self.to);
        let dims: Vec<Along<'_>> = (0..self.to.ndim())
            .map(|d| {
                let map = DimMap::identity(self.to.shape()[d]);
                Along::sends(target, have[d].clone(), &map, &covers[d], &fixed)
            })
            .collect();
        let mut writer = Writer::new(&mut out, &dims, 0, &shape_of(&have), false);
        let readers = Places::of(target, self.to.replicate_axes());
        let held = self.held_by(rank);
        for_each_product(&dims, |runs, first| {
            for turn in (0..readers.count()).map(|r| first + readers.at(r)) {
                let peer = target.ranks()[turn];
                if self.held_by(peer) == held {
                    if peer == rank {
                        writer.push(rank, runs, 0);
                    }
                } else if let Some(cut) = self.share(runs, copy, turn) {
                    writer.push(peer, &cut, 0);
                }
            }
        });
        out
    }

    /// What a reader takes from copy number `copy` of a piece: a share, or all of it where it is the copy's turn.
    fn share(&self, runs: &[Run], copy: usize, turn: usize) -> Option<SmallVec<[Run; 6]>> {
        let count = self.copies.places.count();
        let share = (copy + count - turn % count) % count;
        if self.spread {
            share_of(runs, share, count)
        } else {
            (share == 0).then(|| runs.into())
        }
    }

    /// Which block of the source a rank holds, as the position of its first copy; `None` off the source's mesh.
    fn held_by(&self, rank: usize) -> Option<usize> {
        let (mesh, copies) = (self.from.mesh(), &self.copies);
        let index = mesh.index_of(rank)?;
        Some(
            index
                - copies
                    .places
                    .at(mesh.part_at(&copies.axes, &mesh.coords_at(index))),
        )
    }

    /// Whether values arrive at these coordinates of the target, and not zeros of a sum.
    fn arrives_at(&self, coords: &[usize]) -> bool {
        self.to.partial_axes().iter().all(|&a| coords[a] == 0)
    }
}

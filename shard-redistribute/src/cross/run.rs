//! Running moves between meshes, and between one rank and a mesh.

use super::{CrossPlan, OP, incompatible};
use crate::plan::of_another;
use crate::{Array, MeshComm, Plan, RedistributeError, Result};
use shard_comm::{
    AgreedError, Buffer, Call, Calling, CommError, Communicator, DType, Request, Target,
};
use shard_spec::{DeviceMesh, Layout, numel};
use smallvec::SmallVec;
use std::panic::Location;
use std::rc::Rc;

impl CrossPlan {
    /// Moves an array onto the mesh of `cx`.
    ///
    /// # Collective
    /// Every rank of the world, on either mesh or on none.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) if the array's layout is not the plan's source,
    /// [`OtherMesh`](RedistributeError::OtherMesh) if `cx` is not of the destination's mesh; an error that all ranks learn of if
    /// one runs a plan made for another; what the communicator reports.
    #[track_caller]
    pub fn run(&self, array: &Array, cx: &Rc<MeshComm>) -> Result<Array> {
        if array.layout() != &self.from {
            let why = "the plan was made for another source layout";
            return Err(incompatible(array.layout(), &self.from, why));
        }
        if cx.mesh() != self.to.mesh() {
            return Err(RedistributeError::OtherMesh { op: OP });
        }
        let own = match self.rank == cx.rank() {
            true => Ok(()),
            false => Err(of_another(OP, "rank", self.rank, cx.rank())),
        };
        let reduced = self.reduce(array)?;
        let local = match (self.still, own) {
            (true, Ok(())) => reduced.buffer().cloned(),
            (true, Err(error)) => return Err(self.refuse_after(cx, error)),
            (false, own) => self.cross(cx.world(), array.dtype(), reduced.buffer(), own)?,
        };
        let arrived = Array::laid(cx, &self.arriving, local, array.dtype())?;
        match &self.after {
            Some(plan) => plan.run(&arrived),
            None => Array::laid(cx, &self.to, arrived.buffer().cloned(), array.dtype()),
        }
    }

    /// The array that crosses: partial values are reduced on their own mesh first. A rank that runs the plan of another joins in that by
    /// a plan of its own: all ranks meet, and are told, where the array crosses.
    fn reduce(&self, array: &Array) -> Result<Array> {
        if self.rank != array.cx().rank() && self.from.is_partial() && array.cx().is_member() {
            return Plan::new(&self.from, &self.crossing, array.index())?.run(array);
        }
        match &self.before {
            Some(plan) => plan.run(array),
            None => Ok(array.clone()),
        }
    }

    /// Tells the other ranks of the destination's mesh, where nothing crosses, that this rank does not go on.
    #[cold]
    #[track_caller]
    fn refuse_after(&self, cx: &MeshComm, error: CommError) -> RedistributeError {
        let index = self.to.mesh().index_of(cx.rank());
        let after = index.map(|index| Plan::new(&self.arriving, &self.to, index));
        match after {
            Some(Ok(after)) => after.refuse(cx, error),
            _ => error.into(),
        }
    }

    /// The part of the move that crosses: this rank's block in, this rank's block out. A block that does not fit, and an `own`
    /// error of this rank, is reported on every rank.
    #[track_caller]
    fn cross(
        &self,
        world: &Rc<dyn Communicator>,
        dtype: DType,
        block: Option<&Buffer>,
        own: Result<(), CommError>,
    ) -> Result<Option<Buffer>> {
        let device = world.device();
        let expected = self.crossing.local_shape(self.rank);
        let mut status = own
            .map_err(|error| AgreedError::from_local(OP, error))
            .and_then(|()| check_block(block, dtype, expected.as_deref().map(numel)));
        // A rank that cannot allocate still joins, so that all ranks fail alike.
        let dst = match device.alloc(dtype, self.len) {
            Ok(dst) => dst,
            Err(e) => {
                status = status.and(Err(AgreedError::from_local(OP, e)));
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
        let told = Request {
            status: status.map_err(Box::new),
            ..request
        };
        let result = world.post(told)?.wait()?;
        Ok(self.to.mesh().contains(self.rank).then_some(result))
    }
}

impl Array {
    /// Moves the array onto another mesh of the same world. If that mesh's [planner](MeshComm::planner) has a cost model, the
    /// cheapest method is taken.
    ///
    /// # Collective
    /// Every rank of the world, on either mesh or on none: a rank off the mesh has an array without data.
    ///
    /// # Errors
    /// As [`CrossPlan::new`] and [`CrossPlan::run`].
    #[track_caller]
    pub fn redistribute_onto(&self, cx: &Rc<MeshComm>, to: &Layout) -> Result<Self> {
        const OP: &str = "to_mesh";
        let _call = Calling::doing(OP);
        let (from, rank) = (self.layout(), cx.rank());
        // Each mesh has a history of its own. Both compare which array it is, because a mesh of one rank compares nothing.
        let read = [self.number()];
        let call = Call::new(OP).with(to.hash128()).of(self.dtype(), from);
        self.cx().record(call.reading(&read));
        let call = Call::new(OP).with(from.hash128()).of(self.dtype(), to);
        let number = cx.record(call.reading(&read));
        let plan = match cx.planner().model() {
            Some(model) => CrossPlan::cheapest(from, to, rank, self.dtype(), &model)?,
            None => CrossPlan::new(from, to, rank)?,
        };
        Ok(plan.run(self, cx)?.with_number(number))
    }

    /// Makes an array of a tensor that one rank of the world holds whole, row-major. Every rank receives its own block and
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
        let _call = Calling::doing("scatter");
        let call = Call::new("scatter").with(owner as u128);
        let number = cx.record(call.of(dtype, layout));
        let from = on_one("scatter", cx, owner, layout.shape())?;
        let plan = CrossPlan::new(&from, layout, cx.rank())?;
        let data = data.filter(|_| cx.rank() == owner);
        let local = plan.cross(cx.world(), dtype, data, Ok(()))?;
        Ok(Self::laid(cx, layout, local, dtype)?.with_number(number))
    }

    /// Brings the whole array, row-major, to one rank of the world, which gets `Some`. The other ranks receive nothing except,
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
        let _call = Calling::doing("gather");
        let call = Call::new("gather").with(owner as u128);
        let call = call.of(self.dtype(), self.layout());
        cx.record(call.reading(&[self.number()]));
        let to = on_one("gather", cx, owner, self.shape())?;
        let plan = CrossPlan::new(self.layout(), &to, cx.rank())?;
        plan.cross(
            cx.world(),
            self.dtype(),
            plan.reduce(self)?.buffer(),
            Ok(()),
        )
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
        OP,
        text(expected.map(|n| (dtype, n))),
        text(got),
        "pass the block that the source layout gives this rank",
    ))
}

//! An array in pieces: its layout, and this rank's piece.

use crate::{MeshComm, RedistributeError, Result};
use shard_comm::simulated::PHANTOM;
use shard_comm::{
    AgreedError, Buffer, Call, Calling, CommError, DType, DeviceError, DeviceKind, Element, Monoid,
    Scalar,
};
use shard_spec::{DimPart, Dims, Layout, numel};
use smallvec::SmallVec;
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// The name of a move.
const NAME: &str = "redistribute";

/// This rank's piece of a global array, and where all the pieces are.
///
/// The local piece is row-major and contiguous. Clones share it; arrays are values and are never written
/// through. On a rank outside the mesh the array has a layout and no data.
#[derive(Clone)]
pub struct Array {
    /// Held by a count of this rank's own, which is cheaper than that of the layout, which threads share.
    layout: Rc<Layout>,
    dtype: DType,
    local: Option<Buffer>,
    cx: Rc<MeshComm>,
    /// See [`Array::number`].
    number: u64,
    derived: Option<Derived>,
}

/// What was derived from the elements of an array, shared by its clones. Only arrays of whole numbers, which may be indices, and
/// those of three dims or more, which may have halos, keep any.
type Derived = Rc<RefCell<Vec<(u128, Rc<dyn Any>)>>>;

/// Whether arrays of this type and number of dims keep what is derived from them.
fn may_keep(dtype: DType, ndim: usize) -> bool {
    matches!(dtype, DType::I64 | DType::I32) || ndim > 2
}

/// Writes a run, from the index of its first element and the dim it goes along.
type Filler<'a, T> = dyn FnMut(&[usize], usize, &mut [T]) + 'a;

impl Array {
    /// Wraps this rank's piece.
    ///
    /// # Collective
    /// All members of the mesh, with the same layout: a piece of the wrong size on one rank is reported on all
    /// of them, at the cost of one small round.
    ///
    /// # Errors
    /// [`OtherMesh`](RedistributeError::OtherMesh); an agreed error naming the lowest rank whose piece does not
    /// have the size the layout gives it.
    #[track_caller]
    pub fn from_local(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        local: Option<Buffer>,
        dtype: DType,
    ) -> Result<Self> {
        let _call = Calling::doing("from_local");
        let number = cx.record(Call::new("from_local").of(dtype, layout));
        let array = Self::laid(cx, layout, local, dtype)?.with_number(number);
        if let Some(comm) = cx.all() {
            let words = || format!("{dtype} {:?} {layout}", layout.shape());
            comm.check_uniform_as("from_local layout", layout.hash128(), words)?;
            let fits = array.check_local("from_local");
            comm.agree(fits.map_err(|error| AgreedError::from_local("from_local", error)))?;
        }
        Ok(array)
    }

    /// Wraps a piece that is known to fit, as the output of a plan or a kernel is. Not checked among ranks: one that does not fit
    /// is an error on this rank alone. Without a piece the array has a layout and no data.
    ///
    /// # Errors
    /// [`OtherMesh`](RedistributeError::OtherMesh); [`Invalid`](shard_comm::CommError::Invalid) for a piece that is not of this type
    /// or does not have the size the layout gives it.
    #[inline]
    pub fn from_parts(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        local: Option<Buffer>,
        dtype: DType,
    ) -> Result<Self> {
        let array = Self::laid(cx, layout, local, dtype)?;
        if array.local.is_some() {
            array.check_local("array")?;
        }
        Ok(array)
    }

    /// An array of a piece that has not been looked at.
    #[inline]
    pub(crate) fn laid(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        local: Option<Buffer>,
        dtype: DType,
    ) -> Result<Self> {
        match layout.mesh() == cx.mesh() {
            true => Ok(Self::on_mesh(cx, Rc::new(layout.clone()), local, dtype)),
            false => Err(RedistributeError::OtherMesh { op: "array" }),
        }
    }

    /// As [`from_parts`](Self::from_parts), for crates of this workspace that have the layout from an array of this mesh.
    ///
    /// # Panics
    /// If the layout is of another mesh.
    #[doc(hidden)]
    #[inline]
    pub fn on_mesh(
        cx: &Rc<MeshComm>,
        layout: Rc<Layout>,
        local: Option<Buffer>,
        dtype: DType,
    ) -> Self {
        assert!(layout.mesh() == cx.mesh(), "a layout of another mesh");
        Self {
            derived: may_keep(dtype, layout.ndim()).then(Rc::default),
            layout,
            dtype,
            local,
            cx: cx.clone(),
            number: cx.history().number(),
        }
    }

    /// What [`keep`](Self::keep) was given under this key by this array or a clone of it.
    ///
    /// An array is a value, so what was derived from its elements, this rank's or others', holds as long as it lives. Whether
    /// anything is kept under a key follows from the program alone, which is the same on all ranks, and never from where elements
    /// happen to lie in memory.
    pub fn kept<T: 'static>(&self, key: u128) -> Option<Rc<T>> {
        let derived = self.derived.as_ref()?.borrow();
        let found = derived.iter().find(|(k, _)| *k == key)?;
        found.1.clone().downcast().ok()
    }

    /// Keeps what was derived from the elements until the last clone of this array is dropped, or until 16 others have been
    /// kept since. Arrays of less than three dims whose type is neither `i64` nor `i32` keep nothing.
    ///
    /// ```
    /// # use shard_comm::Communicator;
    /// # use shard_redistribute::{Array, MeshComm};
    /// # use shard_spec::{DeviceMesh, Layout};
    /// # use std::rc::Rc;
    /// # shard_comm::local::run(2, |comm| {
    /// #     let world: Rc<dyn Communicator> = Rc::new(comm);
    /// #     let mesh = DeviceMesh::new(&[2])?;
    /// #     let cx = MeshComm::new(&world, &mesh)?;
    /// let rows = Layout::parse(&mesh, &[6], "S(0)")?;
    /// let x = Array::from_fn::<i64>(&cx, &rows, |i| i[0] as i64)?;
    /// x.keep(7, Rc::new("sorted"));
    /// assert!(x.clone().kept::<&str>(7).is_some());
    /// // Of the same elements as another value, nothing is known.
    /// let other = x.clone().with_number(x.number() ^ 1);
    /// assert!(other.kept::<&str>(7).is_none() && x.kept::<&str>(7).is_some());
    /// #     Ok::<_, shard_redistribute::RedistributeError>(())
    /// # }).unwrap().into_iter().for_each(|r| r.unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep<T: 'static>(&self, key: u128, value: Rc<T>) {
        const MOST: usize = 16;
        if let Some(derived) = &self.derived {
            let mut derived = derived.borrow_mut();
            if derived.len() == MOST {
                derived.remove(0);
            }
            derived.push((key, value));
        }
    }

    /// Makes an array from a function of the global index. No communication.
    ///
    /// For a partial layout the function gives the value at coordinate 0 of the partial axes, and the other
    /// coordinates hold the identity of the reduction.
    ///
    /// # Errors
    /// [`OtherMesh`](RedistributeError::OtherMesh) and device errors.
    pub fn from_fn<T: Element>(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        f: impl Fn(&[usize]) -> T,
    ) -> Result<Self> {
        Self::from_runs(cx, layout, |index, along, run| {
            let mut index = Dims::from_slice(index);
            for to in run {
                *to = f(&index);
                // An array without dims has one element.
                if let Some(at) = index.get_mut(along) {
                    *at += 1;
                }
            }
        })
    }

    /// As [`from_fn`](Self::from_fn), many elements at a time: the function writes those whose indices begin with the one it is given
    /// and go on along the dim it is given.
    ///
    /// ```
    /// # use shard_comm::Communicator;
    /// # use shard_redistribute::{Array, MeshComm};
    /// # use shard_spec::{DeviceMesh, Layout};
    /// # use std::rc::Rc;
    /// # shard_comm::local::run(2, |comm| {
    /// #     let world: Rc<dyn Communicator> = Rc::new(comm);
    /// #     let mesh = DeviceMesh::new(&[2])?;
    /// #     let cx = MeshComm::new(&world, &mesh)?;
    /// let rows = Layout::parse(&mesh, &[4, 3], "S(0)")?;
    /// let x = Array::from_runs::<i32>(&cx, &rows, |index, along, run| {
    ///     assert_eq!((along, index[1]), (1, 0));
    ///     run.fill(index[0] as i32);
    /// })?;
    /// let first = 2 * cx.rank() as i32;
    /// assert_eq!(x.to_vec::<i32>()?, [[first; 3], [first + 1; 3]].concat());
    /// #     Ok::<_, shard_redistribute::RedistributeError>(())
    /// # }).unwrap().into_iter().for_each(|r| r.unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`from_fn`](Self::from_fn).
    pub fn from_runs<T: Element>(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        mut fill: impl FnMut(&[usize], usize, &mut [T]),
    ) -> Result<Self> {
        Self::filled(cx, layout, &mut fill)
    }

    /// As [`from_runs`](Self::from_runs), compiled once for a type, whatever fills the runs.
    fn filled<T: Element>(
        cx: &Rc<MeshComm>,
        layout: &Layout,
        fill: &mut Filler<'_, T>,
    ) -> Result<Self> {
        let Some(held) = Held::of(cx, layout) else {
            return Self::from_parts(cx, layout, None, T::DTYPE);
        };
        let device = cx.device();
        if device.kind() == PHANTOM {
            // This device keeps no elements, so there is no need to compute them.
            let buffer = device.alloc(T::DTYPE, held.count)?.freeze();
            return Self::from_parts(cx, layout, Some(buffer), T::DTYPE);
        }
        let identity = Held::identity(cx, layout, T::DTYPE);
        let mut write = |mut all: &mut [T]| match identity {
            Some(identity) => all.fill(T::from_scalar(identity)),
            None => held.for_each_run(&mut |index, along, n| {
                let (run, behind) = std::mem::take(&mut all).split_at_mut(n);
                all = behind;
                fill(index, along, run);
            }),
        };
        let buffer = if device.kind() == DeviceKind::Host {
            let mut buffer = device.alloc(T::DTYPE, held.count)?;
            write(buffer.as_mut_slice()?);
            buffer.freeze()
        } else {
            let mut all = Vec::new();
            // The host has it first, and may have less memory than the device.
            if all.try_reserve_exact(held.count).is_err() {
                return Err(RedistributeError::from(DeviceError::OutOfMemory {
                    device: "host".to_owned(),
                    bytes: held.count.saturating_mul(T::DTYPE.size()),
                    dtype: T::DTYPE,
                    len: held.count,
                }));
            }
            all.resize(held.count, T::from_f64(0.0));
            write(&mut all);
            device.upload_slice(&all)?
        };
        Self::from_parts(cx, layout, Some(buffer), T::DTYPE)
    }

    /// The same layout and type without this rank's piece.
    #[must_use]
    pub fn without_data(&self) -> Self {
        Self {
            layout: self.layout.clone(),
            dtype: self.dtype,
            local: None,
            cx: self.cx.clone(),
            number: self.number,
            derived: None,
        }
    }

    /// Where the pieces are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the pieces are, to be shared with other arrays.
    pub fn shared_layout(&self) -> &Rc<Layout> {
        &self.layout
    }

    /// The global shape.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape()
    }

    /// The number of dims.
    pub fn ndim(&self) -> usize {
        self.layout.ndim()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The mesh and its communicators.
    pub fn cx(&self) -> &Rc<MeshComm> {
        &self.cx
    }

    /// Which value it is: clones have the number of the original, and so has what the same call makes of the same, other values mostly
    /// another one. It comes from the [call](MeshComm::record) that made it and the numbers of what that read, so that it is equal on
    /// all ranks if they do the same, and what reads a value records it: ranks that read two tensors of one layout in different orders
    /// are found out.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The same under another number: of [what a call made](MeshComm::record). Under another number it is another value, for which
    /// nothing was [kept](Self::keep): ranks that make it of the same elements, and ranks that make it of new ones, then have as much.
    #[must_use]
    pub fn with_number(mut self, number: u64) -> Self {
        self.set_number(number);
        self
    }

    /// As [`with_number`](Self::with_number), in place.
    pub fn set_number(&mut self, number: u64) {
        if number != self.number
            && let Some(derived) = &self.derived
            && (Rc::strong_count(derived) > 1 || !derived.borrow().is_empty())
        {
            self.derived = Some(Rc::default());
        }
        self.number = number;
    }

    /// This rank's piece, `None` off the mesh.
    pub fn buffer(&self) -> Option<&Buffer> {
        self.local.as_ref()
    }

    /// The shape of this rank's piece; all zeros off the mesh.
    pub fn local_shape(&self) -> Dims {
        self.layout
            .local_shape(self.cx.rank())
            .unwrap_or_else(|| SmallVec::from_elem(0, self.ndim()))
    }

    /// This rank's piece alone; the array no longer holds it.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.local
    }

    /// Copies this rank's piece to host memory.
    ///
    /// # Errors
    /// [`DType`](RedistributeError::DType) if the array holds another type,
    /// [`NotMember`](RedistributeError::NotMember) off the mesh.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(RedistributeError::DType {
                op: "to_vec",
                expected: T::DTYPE,
                got: self.dtype,
            });
        }
        let Some(local) = &self.local else {
            return Err(RedistributeError::NotMember {
                op: "to_vec",
                rank: self.cx.rank(),
            });
        };
        Ok(local.device().download_vec::<T>(local)?)
    }

    /// Moves the array to another layout of the same mesh and shape; a no-op if it has that layout already.
    ///
    /// # Collective
    /// All members of the mesh. Bytes received: what this rank needs and does not have and, for a partial source, twice the
    /// block being reduced. If the mesh's [planner](MeshComm::planner) has a cost model, a plan may receive more bytes, in
    /// fewer messages or with less sent by the busiest rank.
    ///
    /// # Errors
    /// [`Incompatible`](RedistributeError::Incompatible) (shapes or meshes differ, or a partial value would
    /// have to change its operation); what the communicator reports.
    #[doc(alias = "reshard")]
    #[doc(alias = "all-to-all")]
    #[doc(alias = "Ulysses")]
    #[track_caller]
    pub fn redistribute(&self, to: &Layout) -> Result<Self> {
        let _call = Calling::doing(NAME);
        let number = self.record_move(to);
        if *self.layout == *to {
            return Ok(self.clone());
        }
        let plan = self.cx.planner().plan(&self.layout, to, self.dtype)?;
        Ok(plan.run(self)?.with_number(number))
    }

    /// Tells the mesh's history that this array goes to another layout; the number of what comes of it.
    pub(crate) fn record_move(&self, to: &Layout) -> u64 {
        let call = Call::new(NAME).with(to.hash128());
        (self.cx).record(call.of(self.dtype, &self.layout).reading(&[self.number]))
    }

    /// Moves the array to another layout in its own memory: no rank ever holds more than the larger of its source and its
    /// destination, and the staging of the mesh's [planner](MeshComm::planner) (64 MiB unless its
    /// [`CostModel`](crate::CostModel) says otherwise). [`redistribute`](Self::redistribute) holds both source and
    /// destination. Where the smaller of the two fits into the staging, this method holds both too.
    ///
    /// Beyond that the pieces move in rounds, which copy each element up to three times (two of the copies within the cache)
    /// and meet two times per round. That is slower than a move into memory that is at hand, and faster than one into fresh
    /// memory. The array is consumed. If a clone of it, or of its buffer, lives on some rank, that rank copies its piece first
    /// and holds the source beside all this. If the move fails midway, the data is lost.
    ///
    /// ```
    /// # use shard_comm::Communicator;
    /// # use shard_redistribute::{Array, CostModel, MeshComm};
    /// # use shard_spec::{DeviceMesh, Layout};
    /// # use std::rc::Rc;
    /// # shard_comm::local::run(2, |comm| {
    /// #     let world: Rc<dyn Communicator> = Rc::new(comm);
    /// #     let mesh = DeviceMesh::new(&[2])?;
    /// #     let cx = MeshComm::new(&world, &mesh)?;
    /// let rows = Layout::parse(&mesh, &[1000, 1000], "S(0)")?;
    /// let columns = Layout::parse(&mesh, &[1000, 1000], "S(1)")?;
    /// // As if 4 MB were much.
    /// let frugal = CostModel::shared_memory().with_staging(100_000);
    /// cx.planner().set_model(Some(frugal));
    ///
    /// let x = Array::from_fn::<f64>(&cx, &rows, |i| (1000 * i[0] + i[1]) as f64)?;
    /// cx.device().reset_peak();
    /// let y = x.redistribute_into(&columns)?;
    /// assert!(cx.device().memory().peak <= 4_000_000 + 100_000);
    /// # let first = 500.0 * cx.rank() as f64;
    /// # assert_eq!(y.to_vec::<f64>()?[..2], [first, first + 1.0]);
    /// #     Ok::<_, shard_redistribute::RedistributeError>(())
    /// # }).unwrap().into_iter().for_each(|r| r.unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Bytes received are those of [`redistribute`](Self::redistribute) (more where the staging is so
    /// small that an all-reduce moves only a few KiB at a time). They come in more messages:
    /// [`Plan::forecast_into`](crate::Plan::forecast_into) says how many.
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute).
    #[track_caller]
    #[doc(alias = "reshard")]
    pub fn redistribute_into(self, to: &Layout) -> Result<Self> {
        let _call = Calling::doing(NAME);
        let number = self.record_move(to);
        if *self.layout == *to {
            return Ok(self);
        }
        let plan = self.cx.planner().plan(&self.layout, to, self.dtype)?;
        Ok(plan.run_into(self)?.with_number(number))
    }

    /// This rank's row-major position on the mesh; 0 off the mesh.
    pub fn index(&self) -> usize {
        self.cx.mesh().index_of(self.cx.rank()).unwrap_or(0)
    }

    /// Whether this rank's piece is what the layout gives it.
    fn check_local(&self, op: &'static str) -> Result<(), CommError> {
        let shape = self.local_shape();
        let (expected, got) = (numel(&shape), self.local.as_ref().map_or(0, Buffer::len));
        let got_type = self.local.as_ref().map_or(self.dtype, Buffer::dtype);
        if expected == got && got_type == self.dtype {
            return Ok(());
        }
        Err(CommError::invalid(
            op,
            format!(
                "{expected} elements of {} for local shape {:?} under {}",
                self.dtype,
                &shape[..],
                self.layout
            ),
            format!("{got} of {got_type}"),
            "pass the piece that the layout gives this rank, or a layout with the sizes of the pieces",
        ))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Array {:?} {} {}, local {:?}",
            self.shape(),
            self.dtype,
            self.layout,
            &self.local_shape()[..]
        )
    }
}

/// The global indices that a rank holds. It knows neither the elements nor what is computed of them, so that its loops are not
/// compiled for each function that fills an array.
struct Held {
    parts: SmallVec<[DimPart; 4]>,
    count: usize,
}

impl Held {
    /// `None` where the rank holds no part.
    fn of(cx: &MeshComm, layout: &Layout) -> Option<Self> {
        let parts = layout.local_parts(cx.rank())?;
        let shape: Dims = layout.local_shape(cx.rank()).unwrap_or_default();
        let count = numel(&shape);
        Some(Self { parts, count })
    }

    /// What all elements are where the layout is partial and other ranks hold the values.
    fn identity(cx: &MeshComm, layout: &Layout, dtype: DType) -> Option<Scalar> {
        let holds = cx
            .coords()
            .is_some_and(|c| layout.partial_axes().iter().all(|&a| c[a] == 0));
        let op = layout.partial_op().filter(|_| !holds)?;
        Some(Monoid::Op(op).identity(dtype)[0])
    }

    /// Visits where each run of consecutive indices begins, along which dim it goes, the last of more than one index, and its length.
    /// What is done to the index along that dim is forgotten.
    fn for_each_run(&self, visit: &mut dyn FnMut(&mut [usize], usize, usize)) {
        if self.count == 0 {
            return;
        }
        let intervals = |part: &DimPart| part.intervals().collect();
        let intervals: SmallVec<[Vec<Range<usize>>; 4]> =
            self.parts.iter().map(intervals).collect();
        let mut within: SmallVec<[usize; 6]> = SmallVec::from_elem(0, intervals.len());
        let mut index: Dims = intervals.iter().map(|all| all[0].start).collect();
        let is_long = |all: &Vec<Range<usize>>| all.iter().map(Range::len).sum::<usize>() > 1;
        let Some(dim) = intervals.iter().rposition(is_long) else {
            return visit(&mut index, 0, 1);
        };
        let mut visited = 0;
        while visited < self.count {
            let run = intervals[dim][within[dim]].clone();
            visit(&mut index, dim, run.len());
            visited += run.len();
            index[dim] = run.end - 1;
            // The next index: the next one in the interval, or the first of the next interval, or back to the first interval
            // with a step along the dim before.
            for d in (0..=dim).rev() {
                index[d] += 1;
                if index[d] < intervals[d][within[d]].end {
                    break;
                }
                within[d] = (within[d] + 1) % intervals[d].len();
                index[d] = intervals[d][within[d]].start;
                if within[d] > 0 {
                    break;
                }
            }
        }
    }
}

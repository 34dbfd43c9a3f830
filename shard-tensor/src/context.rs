//! A rank's context: its communicator, engine, tape and random numbers.

use crate::explain::{Telling, Told};
use crate::local::into_autograd;
use crate::rng::Stream;
use crate::{Error, Mesh, Result, Shape, ShardTensor, State, StateNumber, Stateful, json};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shard_autograd::{GradCheck, GradReport, Recorder, gradcheck};
use shard_comm::Calling;
use shard_comm::{AgreedError, Communicator, DType, DeviceRef, History, Ledger, Past};
use shard_ops::{Engine, EngineOptions, Handler, KernelPolicy, Op, OpError, Value};
use shard_redistribute::MeshComm;
use shard_spec::DeviceMesh;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// What one rank needs to run the program. Cheap to clone; belongs to the rank's own thread.
///
/// There is no global state: two contexts in one process do not know of each other. All ranks of a context run
/// the same program: they make the same meshes, tensors and calls in the same order, whether or not they are
/// members of the mesh concerned.
///
/// ```
/// let sizes = shard_tensor::launch(4, |ctx| {
///     let mesh = ctx.mesh([("rows", 2), ("cols", 2)])?;
///     Ok((ctx.rank(), mesh.size()))
/// })?;
/// assert_eq!(sizes, [(0, 4), (1, 4), (2, 4), (3, 4)]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct Context(Rc<Inner>);

struct Inner {
    world: Rc<dyn Communicator>,
    engine: Rc<Engine>,
    tape: Recorder,
    seed: Cell<u64>,
    /// How many random tensors were drawn; the same on every rank, because all run the program.
    calls: Cell<u64>,
    /// Whether a function runs that has run before.
    again: Cell<bool>,
    dtype: DType,
    told: Rc<Told>,
    /// The last meshes by their number, with what this rank does on them.
    meshes: RefCell<VecDeque<(usize, Option<History>)>>,
}

/// Of how many meshes it is kept what was done on them.
const MESHES: usize = 64;

impl Context {
    /// A context over a communicator of all ranks of the program. [`launch`](crate::launch) makes one per rank.
    pub fn new(world: Rc<dyn Communicator>, seed: u64, dtype: DType) -> Self {
        let engine = Engine::new(EngineOptions::default());
        let told = Rc::<Told>::default();
        let tape = Recorder::new(Rc::new(Telling {
            engine: engine.clone(),
            world: world.clone(),
            told: told.clone(),
        }));
        Self(Rc::new(Inner {
            world,
            engine,
            tape,
            seed: Cell::new(seed),
            calls: Cell::new(0),
            again: Cell::new(false),
            dtype,
            told,
            meshes: RefCell::default(),
        }))
    }

    /// What ops tell of themselves.
    pub(crate) fn told(&self) -> &Told {
        &self.0.told
    }

    /// This process's or thread's number.
    pub fn rank(&self) -> usize {
        self.0.world.rank()
    }

    /// How many ranks run the program.
    pub fn world_size(&self) -> usize {
        self.0.world.size()
    }

    /// The communicator of all ranks.
    pub fn world(&self) -> &Rc<dyn Communicator> {
        &self.0.world
    }

    /// The device this rank computes on.
    pub fn device(&self) -> &DeviceRef {
        self.0.world.device()
    }

    /// What this rank sent and received.
    pub fn ledger(&self) -> &Ledger {
        self.0.world.ledger()
    }

    /// The element type of tensors that are made from nothing, unless their mesh says otherwise.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The executor that puts what it applies on the tape; ops of `shard_ops` take it.
    pub fn tape(&self) -> &Recorder {
        &self.0.tape
    }

    /// The executor underneath the tape.
    pub fn engine(&self) -> &Rc<Engine> {
        &self.0.engine
    }
}

/// Meshes.
impl Context {
    /// A mesh of the first ranks, row-major, with named axes: `[("h", 2), ("w", 2)]`, or whatever lists names and sizes.
    ///
    /// # Collective
    /// All ranks of the program, members of the mesh or not: its communicators are made here.
    ///
    /// # Errors
    /// [`Spec`](Error::Spec) for an empty axis or repeated names, [`Argument`](Error::Argument) for more ranks than
    /// the program has; a mismatch if ranks ask for different meshes.
    #[track_caller]
    pub fn mesh<S: AsRef<str>>(&self, axes: impl IntoIterator<Item = (S, usize)>) -> Result<Mesh> {
        let _call = Calling::of("mesh");
        let (names, shape): (Vec<S>, Vec<usize>) = axes.into_iter().unzip();
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let mesh = DeviceMesh::new(&shape).and_then(|m| m.with_names(&names));
        self.mesh_from(&mesh?)
    }

    /// A mesh of the first ranks, row-major, without names.
    ///
    /// # Collective
    /// As [`mesh`](Self::mesh).
    ///
    /// # Errors
    /// As [`mesh`](Self::mesh).
    #[track_caller]
    pub fn mesh_of(&self, shape: impl Into<Shape>) -> Result<Mesh> {
        let _call = Calling::of("mesh");
        self.mesh_from(&DeviceMesh::new(&shape.into())?)
    }

    /// A mesh of these ranks, row-major, with named axes: the layers of a pipeline have one each.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let held = launch(4, |ctx| {
    ///     let late = ctx.mesh_on(2..4, [("data", 2)])?;
    ///     let ends = ctx.mesh_on([3, 0], [("data", 2)])?; // rank 3 has the first rows
    ///     let x = ends.arange(5, [("data", shard(0))])?;
    ///     Ok((late.is_member(), x.local_shape().to_vec()))
    /// })?;
    /// assert_eq!(held[3], (true, vec![3]));
    /// assert_eq!(held[0], (false, vec![2]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`mesh`](Self::mesh).
    ///
    /// # Errors
    /// As [`mesh`](Self::mesh), and [`Spec`](Error::Spec) for a rank that is listed twice, or another number of ranks than the axes have.
    #[track_caller]
    pub fn mesh_on<S: AsRef<str>>(
        &self,
        ranks: impl IntoIterator<Item = usize>,
        axes: impl IntoIterator<Item = (S, usize)>,
    ) -> Result<Mesh> {
        let _call = Calling::of("mesh");
        let (names, shape): (Vec<S>, Vec<usize>) = axes.into_iter().unzip();
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        // A mesh of more ranks than there are is refused, however many more.
        let ranks = ranks.into_iter().take(self.world_size() + 1);
        let mesh = DeviceMesh::with_ranks(&shape, ranks.collect());
        self.mesh_from(&mesh.and_then(|m| m.with_names(&names))?)
    }

    /// A mesh as layout maths has it, of any ranks, with names or without.
    ///
    /// # Collective
    /// As [`mesh`](Self::mesh).
    ///
    /// # Errors
    /// As [`mesh`](Self::mesh).
    #[track_caller]
    pub fn mesh_from(&self, mesh: &DeviceMesh) -> Result<Mesh> {
        let _call = Calling::of("mesh");
        if let Some(&rank) = mesh.ranks().iter().find(|&&r| r >= self.world_size()) {
            return Err(Error::argument(
                "mesh",
                format!("ranks below {}", self.world_size()),
                format!("{mesh}, which holds rank {rank}"),
                "launch more ranks, or make the mesh smaller",
            ));
        }
        let comm = MeshComm::new(&self.0.world, mesh)?;
        let mut meshes = self.0.meshes.borrow_mut();
        let number = meshes.back().map_or(0, |(number, _)| number + 1);
        if meshes.len() == MESHES {
            meshes.pop_front();
        }
        let history = comm.is_member().then(|| comm.history().clone());
        meshes.push_back((number, history));
        drop(meshes);
        Ok(Mesh::new(self.clone(), comm))
    }

    /// What this rank did on each mesh in the end, by the mesh's number.
    pub(crate) fn at_end(&self) -> Vec<(usize, Past)> {
        let meshes = self.0.meshes.borrow();
        let past = |(number, history): &(usize, Option<History>)| {
            Some((*number, history.as_ref()?.at_end()?))
        };
        meshes.iter().filter_map(past).collect()
    }
}

/// Values of the program that are not tensors.
impl Context {
    /// Every rank's value, in rank order, on every rank: for reports, not for data. Values travel as JSON.
    ///
    /// ```
    /// let seen = shard_tensor::launch(3, |ctx| ctx.gather(&("rank".to_owned(), ctx.rank())))?;
    /// assert_eq!(seen[1][2], ("rank".to_owned(), 2));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program. Rounds for sizes, values, and whether all could be written and read.
    ///
    /// # Errors
    /// An agreed error if a value cannot be written or read as JSON, which has no NaN and infinity, and cannot tell
    /// `Some(())` from `None`.
    #[track_caller]
    pub fn gather<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let _call = Calling::of("gather");
        let world = self.world();
        let fault = |what: &str, e: String| {
            AgreedError::new("gather", what, e, "pass values that JSON can hold")
        };
        let (text, status) = match json::write(value) {
            Ok(text) => (text, Ok(())),
            Err(e) => (Vec::new(), Err(fault("a value that can be written", e))),
        };
        world.agree(status)?;
        let size = self.device().upload_slice(&[text.len() as i64])?;
        let sizes = world.all_gather_v(&size, &vec![1; world.size()])?;
        let sizes: Vec<usize> = sizes
            .to_vec::<i64>()?
            .into_iter()
            .map(|n| n as usize)
            .collect();
        let texts = world.all_gather_v(&self.device().upload_slice(&text)?, &sizes)?;
        let texts = texts.to_vec::<u8>()?;
        let mut rest = &texts[..];
        let values: std::result::Result<Vec<T>, _> = sizes
            .into_iter()
            .map(|size| {
                let (text, after) = rest.split_at(size);
                rest = after;
                serde_json::from_slice(text)
            })
            .collect();
        let status = (values.as_ref())
            .map(|_| ())
            .map_err(|e| fault("values that can be read", e.to_string()));
        world.agree(status)?;
        values.map_err(Error::custom)
    }
}

/// How ops run.
impl Context {
    /// If on, an op whose operands would have to be redistributed is an error that says how to do it by hand. Halos and
    /// reductions, which are part of an op, stay allowed. Off at first.
    ///
    /// # Collective
    /// All ranks must agree.
    pub fn explicit_moves(&self, on: bool) {
        self.0.engine.set_explicit_moves(on);
    }

    /// Whether an op without a kernel for a GPU runs on the host, its operands there and back, which the
    /// [ledger](crate::LedgerSnapshot::fallbacks) counts; otherwise it is an error, the same on all ranks. Off at first.
    ///
    /// # Collective
    /// All ranks of the program.
    pub fn host_fallback(&self, on: bool) {
        self.0.engine.set_host_fallback(on);
    }

    /// How kernels on GPUs go about it: how exact products of `f32` are, in full at first, and whether the vendor's libraries
    /// are called, which they are at first where they are found. Returns what was set before.
    ///
    /// ```
    /// use shard_tensor::{KernelPolicy, MatmulPrecision};
    /// shard_tensor::launch(2, |ctx| {
    ///     let precision = MatmulPrecision::Tf32;
    ///     ctx.kernels(KernelPolicy { precision, ..KernelPolicy::default() });
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks must set the same.
    pub fn kernels(&self, policy: KernelPolicy) -> KernelPolicy {
        self.0.engine.set_kernels(policy)
    }

    /// Runs `f` without recording: its results have no gradient.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let scores = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.ones([6], shard(0))?.requires_grad()?;
    ///     ctx.no_grad(|| {
    ///         let y = x.exp()?;
    ///         assert!(!y.is_tracked());
    ///         y.mean_all()?.item()
    ///     })
    /// })?;
    /// assert!((scores[0] - 1_f64.exp()).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `f` returns.
    ///
    /// # Collective
    /// All ranks must agree on what is recorded.
    pub fn no_grad<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.0.tape.no_grad(f)
    }

    /// Runs `f` with recording, even inside [`no_grad`](Self::no_grad).
    ///
    /// ```
    /// use shard_tensor::{launch, replicate};
    /// let tracked = launch(2, |ctx| {
    ///     let w = ctx.mesh_of(2)?.ones([1], replicate())?.requires_grad()?;
    ///     ctx.no_grad(|| {
    ///         assert!(!ctx.is_grad_enabled());
    ///         Ok((w.exp()?.is_tracked(), ctx.enable_grad(|| w.exp())?.is_tracked()))
    ///     })
    /// })?;
    /// assert_eq!(tracked[0], (false, true));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `f` returns.
    ///
    /// # Collective
    /// All ranks must agree on what is recorded.
    pub fn enable_grad<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.0.tape.enable_grad(f)
    }

    /// Whether what is computed now is recorded, if a parameter is part of it.
    pub fn is_grad_enabled(&self) -> bool {
        self.0.tape.is_recording()
    }

    /// Compares the gradients of a function of `f64` tensors with finite differences.
    ///
    /// ```
    /// use shard_tensor::{DType, GradCheck, Launch, shard};
    /// let compared = Launch::new(2).dtype(DType::F64).run(|ctx| {
    ///     let x = ctx.mesh_of(2)?.randn([3, 2], shard(0))?;
    ///     let checked = ctx.gradcheck(|x| Ok(vec![x[0].tanh()?.sum([0], false)?]), &[&x], GradCheck::default())?;
    ///     Ok(checked.compared)
    /// })?;
    /// assert!(compared[0] > 0);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// [`Autograd`](Error::Autograd) with the worst element, for tensors that cannot be perturbed, or for what the function
    /// reports.
    #[track_caller]
    pub fn gradcheck(
        &self,
        f: impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
        inputs: &[&ShardTensor],
        how: GradCheck,
    ) -> Result<GradReport> {
        let _call = Calling::of("gradcheck");
        let values: Vec<Value> = inputs.iter().map(|t| t.value().detach()).collect();
        let checked = |_: &Recorder, inputs: &[Value]| self.on_values(inputs, &f);
        Ok(gradcheck(self.tape(), &checked, &values, how)?)
    }

    /// A function of tensors as one of values.
    pub(crate) fn on_values(
        &self,
        inputs: &[Value],
        f: &impl Fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
    ) -> shard_autograd::Result<Vec<Value>> {
        let results = f(&self.lifted(inputs)).map_err(into_autograd)?;
        Ok(results.iter().map(ShardTensor::value).collect())
    }

    /// Applies an op, a built-in or the user's own: an op is anything that implements [`Op`].
    ///
    /// # Collective
    /// All members of the operands' mesh.
    ///
    /// # Errors
    /// What the op's rule, the engine or a communicator reports.
    #[track_caller]
    pub fn apply(&self, op: impl Op, inputs: &[&ShardTensor]) -> Result<Vec<ShardTensor>> {
        let _call = Calling::here();
        use shard_ops::Exec;
        let values: Vec<Value> = inputs.iter().map(|t| t.value()).collect();
        let values: Vec<&Value> = values.iter().collect();
        let outputs = self.0.tape.apply(Arc::new(op), &values)?;
        Ok(outputs
            .into_iter()
            .map(|v| ShardTensor::new(self, v))
            .collect())
    }

    /// As [`apply`](Self::apply), for an op with one output.
    ///
    /// # Collective
    /// As [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    #[track_caller]
    pub fn apply1(&self, op: impl Op, inputs: &[&ShardTensor]) -> Result<ShardTensor> {
        let name = op.name();
        let mut outputs = self.apply(op, inputs)?;
        let got = outputs.len();
        match (outputs.pop(), got) {
            (Some(output), 1) => Ok(output),
            _ => Err(OpError::arity(name, "one output", got).into()),
        }
    }

    /// Registers a hand-written way to run the op of this name, which takes precedence over its rule and kernel; the
    /// op keeps its derivative.
    ///
    /// # Collective
    /// All ranks must register the same handlers.
    pub fn register(&self, op: &'static str, handler: Handler) {
        self.0.engine.register(op, handler);
    }

    /// The next stream of random numbers under this context's seed: one is taken by every random tensor.
    ///
    /// # Collective
    /// All ranks of the program must take the same streams in the same order.
    pub fn next_stream(&self) -> Stream {
        let call = self.0.calls.get();
        self.0.calls.set(call + 1);
        Stream::new(self.0.seed.get(), call)
    }

    /// The seed, and how many streams were taken.
    pub(crate) fn streams(&self) -> (u64, u64) {
        (self.0.seed.get(), self.0.calls.get())
    }

    pub(crate) fn set_streams(&self, (seed, calls): (u64, u64)) {
        self.0.seed.set(seed);
        self.0.calls.set(calls);
    }

    /// Whether a function runs that has run before, and what it leaves behind is there already.
    pub(crate) fn runs_again(&self) -> &Cell<bool> {
        &self.0.again
    }

    /// Gives every rank the same error if they do not agree on the outcome of a local check.
    ///
    /// # Collective
    /// All ranks of the program.
    #[track_caller]
    pub(crate) fn uniform<T>(
        &self,
        what: &'static str,
        checked: Result<T>,
        words: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        let words = match &checked {
            Ok(value) => words(value),
            // But for the line, which may be another one.
            Err(error) => error.to_string().split(" (at ").take(1).collect(),
        };
        let key = shard_ops::key_of(what, &words);
        self.0.world.check_uniform_as(what, key, || words)?;
        checked
    }
}

/// Of the random numbers: their seed, and how many streams were taken.
impl Stateful for Context {
    fn state(&self) -> Result<State> {
        let number = |name: &str, n| (name.to_owned(), StateNumber::Whole(n));
        let (seed, streams) = self.streams();
        Ok(State {
            tensors: Vec::new(),
            numbers: vec![number("seed", seed), number("streams", streams)],
        })
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        self.set_streams((state.whole("seed")?, state.whole("streams")?));
        Ok(())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Context(rank {} of {}, {})",
            self.rank(),
            self.world_size(),
            self.0.world.backend()
        )
    }
}

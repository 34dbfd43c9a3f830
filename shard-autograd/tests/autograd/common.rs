//! Ranks, a mesh, an engine and a recorder, for the tests of this crate.
use shard_autograd::Recorder;
use shard_comm::{Communicator, LedgerSnapshot, local};
use shard_ops::{Engine, EngineOptions, Exec, Op, Result, Value, Values};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct Bench {
    pub(crate) cx: Rc<MeshComm>,
    pub(crate) rec: Recorder,
}

/// Runs `f` on every rank of a mesh of this shape.
pub(crate) fn on_mesh<T: Send>(shape: &[usize], f: impl Fn(&Bench) -> T + Sync) -> Vec<T> {
    let mesh = DeviceMesh::new(shape).unwrap();
    on(mesh.size(), &mesh, f)
}

/// Runs `f` on this many ranks, members of the mesh or not.
pub(crate) fn on<T: Send>(
    ranks: usize,
    mesh: &DeviceMesh,
    f: impl Fn(&Bench) -> T + Sync,
) -> Vec<T> {
    launched(ranks, mesh, &f)
}

/// Not generic over functions: the launch is compiled for each type of results, not for each call.
fn launched<T: Send>(ranks: usize, mesh: &DeviceMesh, f: &(dyn Fn(&Bench) -> T + Sync)) -> Vec<T> {
    local::run(ranks, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, mesh).unwrap();
        let engine: Rc<dyn Exec> = Engine::new(EngineOptions::default());
        f(&Bench {
            cx,
            rec: Recorder::new(engine),
        })
    })
    .unwrap()
}

impl Bench {
    pub(crate) fn layout(&self, shape: &[usize], text: &str) -> Layout {
        Layout::parse(self.cx.mesh(), shape, text).unwrap()
    }

    /// The value whose element at global index `i` is `f(i)`.
    pub(crate) fn value(&self, shape: &[usize], text: &str, f: impl Fn(&[usize]) -> f64) -> Value {
        Value::new(Array::from_fn(&self.cx, &self.layout(shape, text), f).unwrap())
    }

    pub(crate) fn leaf(&self, shape: &[usize], text: &str, f: impl Fn(&[usize]) -> f64) -> Value {
        self.rec
            .leaf(self.value(shape, text, f).array().clone())
            .unwrap()
    }

    /// All elements, on every rank of the mesh.
    pub(crate) fn full(&self, value: &Value) -> Vec<f64> {
        let whole = Layout::replicated(self.cx.mesh(), value.shape());
        self.rec
            .inner()
            .redistribute(value, &whole)
            .unwrap()
            .array()
            .to_vec()
            .unwrap()
    }

    pub(crate) fn rank(&self) -> usize {
        self.cx.rank()
    }

    pub(crate) fn ledger(&self) -> LedgerSnapshot {
        self.cx.world().ledger().snapshot()
    }

    /// What `f` moved.
    pub(crate) fn moved<T>(&self, f: impl FnOnce() -> T) -> (T, LedgerSnapshot) {
        let before = self.ledger();
        let result = f();
        (result, self.cx.world().ledger().since(&before))
    }
}

/// Whether numbers are equal but for rounding.
pub(crate) fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12)
}

/// An engine that writes down what is applied.
pub(crate) struct Telling {
    engine: Rc<dyn Exec>,
    pub(crate) names: RefCell<Vec<&'static str>>,
}

impl Exec for Telling {
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values> {
        self.names.borrow_mut().push(op.name());
        self.engine.results(op, inputs)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value> {
        self.engine.redistribute(value, to)
    }
}

impl Telling {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            engine: Engine::new(EngineOptions::default()),
            names: RefCell::default(),
        })
    }

    /// How often ops of a name were applied.
    pub(crate) fn count(&self, name: &str) -> usize {
        let names = self.names.borrow();
        names.iter().filter(|applied| **applied == name).count()
    }
}

/// A number that depends on the global index of an element, small and integral so that sums are exact.
pub(crate) fn small(index: &[usize]) -> f64 {
    index
        .iter()
        .enumerate()
        .map(|(d, &i)| (3 * d + 1) * (i + 1))
        .sum::<usize>() as f64
        % 7.0
        - 3.0
}

/// All elements of the function over a shape, row-major.
pub(crate) fn table(shape: &[usize], f: impl Fn(&[usize]) -> f64) -> Vec<f64> {
    let mut index = vec![0; shape.len()];
    let mut out = Vec::new();
    for _ in 0..shape.iter().product() {
        out.push(f(&index));
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    out
}

/// Meshes, and layouts on them: even, uneven, empty, replicated, partial, nested.
pub(crate) const LAYOUTS: &[(&[usize], &str)] = &[
    (&[1], "S(0)"),
    (&[1], "R"),
    (&[3], "R"),
    (&[3], "S(0)"),
    (&[3], "S(0)[4,0,1]"),
    (&[3], "S(1)[0,0,3]"),
    (&[3], "P(sum)"),
    (&[7], "S(0)"),
    (&[2, 2], "S(0)[4,1] S(1)[1,2]"),
    (&[2, 2], "S(1)[0,3] R"),
    (&[2, 2], "P(sum) S(0)[0,5]"),
    (&[2, 2], "P(sum) R"),
    (&[2, 2], "P(sum) P(sum)"),
    (&[2, 2], "S(0)[2,0,3,0] S(0)"),
];

/// The shape of what has those layouts.
pub(crate) const SHAPE: &[usize] = &[5, 3];

//! What an op was given on one rank, and what it gave.

use super::{Data, Tensor, tensor, whole};
use crate::{Engine, EngineOptions, Exec, Meta, Op, OpError, Value, Values};
use shard_comm::DType;
use shard_spec::{Layout, numel};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// One application of an op: as on one rank, of whole tensors.
#[derive(Clone, Debug)]
pub struct OpSample {
    /// The op with its attributes.
    pub op: Arc<dyn Op>,
    /// What it was given.
    pub inputs: Vec<Tensor>,
    /// What it gave.
    pub outputs: Vec<Tensor>,
    /// Shapes and types of the operands.
    pub metas: Vec<Meta>,
}

/// An executor that remembers every op applied through it, with whole operands. For one rank, or for all members of a mesh alike:
/// to read what is sharded, they communicate.
pub struct Capture {
    engine: Rc<Engine>,
    samples: RefCell<Vec<OpSample>>,
}

impl Capture {
    /// An executor that has seen nothing.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            engine: Engine::new(EngineOptions::default()),
            samples: RefCell::default(),
        })
    }

    /// What was applied so far.
    pub fn samples(&self) -> Vec<OpSample> {
        self.samples.borrow().clone()
    }
}

impl Exec for Capture {
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        let outputs = self.engine.results(op.clone(), inputs)?;
        let read = |v: &Value| {
            if v.array().buffer().is_none() {
                // An operand of which only the shape counts: the tape keeps no elements of those.
                return Ok(match v.dtype() {
                    DType::Bool => Tensor::new(v.shape(), Data::Bool(vec![0; numel(v.shape())])),
                    dtype if dtype.is_float() => tensor(v.shape(), |_| 0.0),
                    _ => Tensor::new(v.shape(), vec![0_i64; numel(v.shape())]),
                });
            }
            whole(v.array()).map_err(|source| OpError::Redistribute {
                op: "capture",
                source: source.into(),
            })
        };
        let sample = OpSample {
            op,
            metas: inputs.iter().map(|value| Meta::of(value)).collect(),
            inputs: inputs.iter().copied().map(read).collect::<Result<_, _>>()?,
            outputs: outputs.iter().map(read).collect::<Result<_, _>>()?,
        };
        self.samples.borrow_mut().push(sample);
        Ok(outputs)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value, OpError> {
        self.engine.redistribute(value, to)
    }
}

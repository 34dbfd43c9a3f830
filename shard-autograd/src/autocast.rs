//! Regions of a program that cast by themselves: products in 16 bits, what needs more in `f32`, as PyTorch's autocast.
//!
//! Casts are ops like any other: they are on the tape, so that gradients come back in the type of what was cast, and in the history by
//! which ranks find out that their programs differ.

use crate::node::ValueId;
use crate::recorder::Mode;
use crate::{AutogradError, Recorder, Result};
use shard_comm::DType;
use shard_ops::{Op, OpError, Precision, Value, elementwise::cast};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A region.
pub(crate) struct Region {
    /// The type of products.
    to: DType,
    /// What parameters were cast to, by type, and by whether that went on the tape.
    casts: RefCell<BTreeMap<(ValueId, u64, DType, bool), Value>>,
}

/// Puts the outer region back, whatever happens.
struct Leave<'a>(&'a Recorder, Option<Rc<Region>>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.region().replace(self.1.take());
    }
}

impl Recorder {
    /// Runs `f` with operands cast as the ops want them ([`Precision`]), where these differ from what they are: products get theirs in
    /// the 16-bit type `to`. A parameter is cast once in a region, however often it is used. With `f32` nothing is cast, also inside
    /// a region of 16 bits. Backward passes are never cast: they go by the types of the forward pass.
    ///
    /// # Collective
    /// There is no communication, but all ranks must do the same.
    ///
    /// # Errors
    /// [`NotDifferentiable`](AutogradError::NotDifferentiable) for another type than `f16`, `bf16` and `f32`.
    pub fn autocast<T>(&self, to: DType, f: impl FnOnce() -> T) -> Result<T> {
        match to {
            DType::F16 | DType::BF16 => Ok(self.cast_to(Some(to), f)),
            DType::F32 => Ok(self.cast_to(None, f)),
            dtype => Err(AutogradError::NotDifferentiable {
                op: "autocast",
                expected: "f16, bf16, or f32 for none",
                dtype,
            }),
        }
    }

    /// The type of products in the present region, if this is one.
    pub fn autocasts_to(&self) -> Option<DType> {
        self.region().borrow().as_ref().map(|region| region.to)
    }

    /// Whether this is a region.
    pub(crate) fn casts(&self) -> bool {
        self.region().borrow().is_some()
    }

    /// Runs `f` in a region of its own, or in none.
    pub(crate) fn cast_to<T>(&self, to: Option<DType>, f: impl FnOnce() -> T) -> T {
        let region = to.map(|to| {
            Rc::new(Region {
                to,
                casts: RefCell::default(),
            })
        });
        let _leave = Leave(self, self.region().replace(region));
        f()
    }

    /// The operands in the types that the op wants them in here; `None` where they have these.
    pub(crate) fn in_precision<'a>(
        &self,
        op: &Arc<dyn Op>,
        inputs: &[&'a Value],
    ) -> Result<Option<SmallVec<[Cow<'a, Value>; 3]>>, OpError> {
        let Some(region) = self.region().borrow().clone() else {
            return Ok(None);
        };
        let Some(to) = wanted(op.precision(), region.to, inputs) else {
            return Ok(None);
        };
        let differs = |value: &Value| is_cast(value.dtype()) && value.dtype() != to;
        if !inputs.iter().any(|value| differs(value)) {
            return Ok(None);
        }
        let each = inputs.iter().map(|&value| match differs(value) {
            true => self.cast_in(&region, value, to).map(Cow::Owned),
            false => Ok(Cow::Borrowed(value)),
        });
        each.collect::<Result<_, OpError>>().map(Some)
    }

    /// The value in `f32` if it has 16 bits and this is a region that casts.
    pub(crate) fn full(&self, value: &Value) -> Result<Value, OpError> {
        let region = self.region().borrow().clone();
        match region {
            Some(region) if value.dtype().is_half() => self.cast_in(&region, value, DType::F32),
            _ => Ok(value.clone()),
        }
    }

    /// A value in another type: of a parameter, what it was cast to before.
    fn cast_in(&self, region: &Region, value: &Value, to: DType) -> Result<Value, OpError> {
        // Results of a function that runs again are its own, and what was cast off the tape has no gradient.
        let recorded = match *self.mode().borrow() {
            Mode::Record | Mode::Again => Some(true),
            Mode::Off => Some(false),
            Mode::Capture(_) => None,
        };
        let leaf = self.own_slot(value).filter(|slot| slot.node.is_leaf());
        // A sharded parameter that ops gather for each use is not held whole in between.
        let leaf = leaf.filter(|slot| slot.node.sharded().is_none());
        let key = leaf
            .zip(recorded)
            .map(|(slot, recorded)| (slot.id(), slot.version, to, recorded));
        if let Some(known) = key.and_then(|key| region.casts.borrow().get(&key).cloned()) {
            return Ok(known);
        }
        let made = cast(self, value, to)?;
        if let Some(key) = key {
            region.casts.borrow_mut().insert(key, made.clone());
        }
        Ok(made)
    }
}

/// Whether operands of this type are cast.
fn is_cast(dtype: DType) -> bool {
    dtype.is_half() || dtype == DType::F32
}

/// The type in which operands that are cast at all are wanted.
fn wanted(precision: Precision, products: DType, inputs: &[&Value]) -> Option<DType> {
    let mut types = (inputs.iter().map(|value| value.dtype())).filter(|&dtype| is_cast(dtype));
    let first = types.next()?;
    Some(match precision {
        Precision::Sixteen => products,
        Precision::Full => DType::F32,
        Precision::First => first,
        // Neither 16-bit type holds what the other does.
        Precision::Widest => match types.all(|dtype| dtype == first) {
            true => first,
            false => DType::F32,
        },
    })
}

//! The operands and results of ops: an array, and whatever the executor needs to remember about it.

use shard_comm::DType;
use shard_comm::half::{bf16, f16};
use shard_redistribute::Array;
use shard_spec::Layout;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::rc::Rc;

/// An array with a slot for its executor: the eager executor leaves it empty, a recording one keeps the tape's
/// handle there. Cloning is cheap and shares both.
#[derive(Clone)]
pub struct Value {
    array: Array,
    slot: Option<Rc<dyn Any>>,
}

/// The results of an op, mostly one.
pub type Values = SmallVec<[Value; 1]>;

impl Value {
    /// A value that no tape knows.
    #[inline]
    pub fn new(array: Array) -> Self {
        Self { array, slot: None }
    }

    /// A value with a slot, for executors.
    pub fn with_slot(array: Array, slot: Rc<dyn Any>) -> Self {
        Self {
            array,
            slot: Some(slot),
        }
    }

    /// The array.
    pub fn array(&self) -> &Array {
        &self.array
    }

    /// Which value the array is, as its [number](Array::number) says.
    pub(crate) fn set_number(&mut self, number: u64) {
        self.array.set_number(number);
    }

    /// The array alone.
    pub fn into_array(self) -> Array {
        self.array
    }

    /// The executor's slot.
    pub fn slot(&self) -> Option<&Rc<dyn Any>> {
        self.slot.as_ref()
    }

    /// Puts the executor's handle into the slot.
    #[inline]
    pub fn set_slot(&mut self, slot: Rc<dyn Any>) {
        self.slot = Some(slot);
    }

    /// The same array, unknown to any tape.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self::new(self.array.clone())
    }

    /// The global shape.
    pub fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    /// The number of dims.
    pub fn ndim(&self) -> usize {
        self.array.ndim()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.array.dtype()
    }

    /// Where the pieces are.
    pub fn layout(&self) -> &Layout {
        self.array.layout()
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::new(array)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}{}",
            self.array,
            if self.slot.is_some() { ", on tape" } else { "" }
        )
    }
}

/// Whether a type can hold a number: integers hold the whole numbers in their range, truth values hold 0 and 1, and
/// floating-point types hold numbers that do not overflow them.
///
/// ```
/// use shard_comm::DType::{F16, I64, U8};
/// use shard_ops::holds;
/// assert!(holds(U8, 255.0) && !holds(U8, 256.0) && !holds(I64, 0.5));
/// assert!(holds(F16, 0.1) && holds(F16, f64::INFINITY) && !holds(F16, 1e5));
/// ```
pub fn holds(dtype: DType, value: f64) -> bool {
    let whole = |least: f64, limit: f64| value.fract() == 0.0 && (least..limit).contains(&value);
    let fits = |rounded: f64| rounded.is_finite() || !value.is_finite();
    match dtype {
        DType::F64 => true,
        DType::F32 => fits(f64::from(value as f32)),
        DType::F16 => fits(f64::from(f16::from_f64(value))),
        DType::BF16 => fits(f64::from(bf16::from_f64(value))),
        DType::I64 => whole(-(2f64.powi(63)), 2f64.powi(63)),
        DType::I32 => whole(-(2f64.powi(31)), 2f64.powi(31)),
        DType::U8 => whole(0.0, 256.0),
        DType::Bool => whole(0.0, 2.0),
    }
}

//! What an op is.

use crate::{Meta, Result, Rule, Value};
use shard_comm::{DType, Element, HostSlice, HostSliceMut, Work};
use shard_kernels::{View, ViewMut};
use shard_redistribute::Fingerprint;
use shard_spec::{DimPart, Dims, Layout, Strides};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

/// An operator: a rule, a local kernel, and a vjp.
///
/// Built-in ops and a user's own are declared the same way. Attributes are fields of the implementing struct.
pub trait Op: Debug + Send + Sync + 'static {
    /// The op's name, as errors, traces and handlers know it.
    fn name(&self) -> &'static str;

    /// A number that is equal for equal name and attributes, on every rank; strategies are cached under it.
    /// Usually `key_of(self.name(), &(attributes))`.
    fn key(&self) -> u128;

    /// How the op's dims relate, from global shapes and types alone. Also checks them.
    ///
    /// # Errors
    /// Whatever is wrong with shapes, types or attributes; the same on every rank.
    fn rule(&self, inputs: &[Meta]) -> Result<Rule>;

    /// Computes one rank's part (or a box of it) on host memory.
    ///
    /// Every element of every output box must be written. `call.cx` says which global indices the boxes cover.
    fn host(&self, call: &mut HostCall<'_, '_>);

    /// The op's kernel on GPUs of NVIDIA, if it has one. Without, the op is an error there, unless the engine may
    /// [fall back](crate::EngineOptions::host_fallback) to [`host`](Self::host).
    #[cfg(feature = "cuda")]
    fn cuda(&self) -> Option<&dyn crate::cuda::CudaKernel> {
        None
    }

    /// Writes this rank's part of outputs whose [rows](crate::Access::Rows) the data decides, after [`host`](Self::host) has said
    /// [how many](HostCall::rows): the outputs' boxes have that extent now, and [`HostCall::state`] is what `host` left. There are no
    /// inputs. Not called where this rank has no rows.
    fn write_rows(&self, call: &mut HostCall<'_, '_>) {
        let _ = call;
    }

    /// Merges partial results over parts of a dim that is folded block by block, for rules that say so
    /// ([`merges`](crate::RuleBuilder::merges)): inputs are the outputs as [`host`](Self::host) made them of each part, side by
    /// side in part order along a new first dim, those of 16-bit floats in `f32`; outputs are the op's. What `host` makes of a
    /// [part](KernelCx::is_part) may be whatever merges best in the outputs' shapes and types.
    fn merge(&self, call: &mut HostCall<'_, '_>) {
        let _ = call;
    }

    /// Whether the vjp looks at the elements of input `i`. If not, a tape keeps only its layout, and the memory can
    /// go.
    fn keeps_input(&self, i: usize) -> bool {
        let _ = i;
        true
    }

    /// Whether the vjp looks at the elements of output `o`.
    fn keeps_output(&self, o: usize) -> bool {
        let _ = o;
        true
    }

    /// The vector-Jacobian product: cotangents of the inputs from those of the outputs, as global arrays; the
    /// engine and the tape see to layouts. `None` stands for a zero or unwanted cotangent.
    ///
    /// # Errors
    /// Whatever the ops it applies report; [`NoVjp`](crate::OpError::NoVjp) if it has none.
    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>>;
}

/// Who applies ops: the eager [`Engine`](crate::Engine), or a recorder that also writes a tape.
///
/// vjps are written against this, so that the derivative of a derivative comes from the same text.
pub trait Exec {
    /// Applies an op to global arrays.
    ///
    /// # Collective
    /// All members of the operands' mesh, with the same op and layouts, in the same order.
    ///
    /// # Errors
    /// What the op's rule, the engine, or a communicator reports.
    fn apply(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Vec<Value>>;

    /// Moves a value to another layout of the same mesh and shape.
    ///
    /// # Collective
    /// All members of the value's mesh.
    ///
    /// # Errors
    /// As [`Array::redistribute`](shard_redistribute::Array::redistribute).
    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value>;

    /// Whether what is applied here may be differentiated: vjps then stick to ops that have vjps themselves,
    /// and may otherwise use fused ones.
    fn records(&self) -> bool {
        false
    }

    /// Applies an op with one output.
    ///
    /// # Collective
    /// As [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    fn apply1(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Value> {
        let name = op.name();
        let mut outputs = self.apply(op, inputs)?;
        match (outputs.pop(), outputs.is_empty()) {
            (Some(value), true) => Ok(value),
            _ => Err(crate::OpError::Arity {
                op: name,
                expected: "one output".into(),
                got: outputs.len(),
            }),
        }
    }
}

/// What a vjp may look at.
#[derive(Debug)]
pub struct Saved<'a> {
    /// The op's inputs as they were applied; without data where the op does not [keep](Op::keeps_input) them.
    pub inputs: &'a [Value],
    /// The op's outputs; without data where the op does not [keep](Op::keeps_output) them.
    pub outputs: &'a [Value],
    /// Which inputs' cotangents are wanted.
    pub needs: &'a [bool],
}

/// One operand's box, as a kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandBox {
    /// First element of the box in the slice.
    pub offset: usize,
    /// Extents of the box.
    pub shape: Dims,
    /// Strides of the box in the slice, in elements.
    pub strides: Strides,
    /// Global index of the box's first element along each dim; 0 for a dim held in several intervals, which a rule must
    /// [allow](crate::RuleBuilder::any_order).
    pub start: Dims,
    /// The global indices of the box along each dim, in order.
    pub held: SmallVec<[DimPart; 4]>,
    /// The operand's global extents.
    pub global: Dims,
}

/// Which part of the op a kernel call computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCx {
    /// The boxes of the inputs.
    pub inputs: Vec<OperandBox>,
    /// The boxes of the outputs.
    pub outputs: Vec<OperandBox>,
    /// Whether this rank is at coordinate 0 of every mesh axis that splits a sum: the one that adds what must
    /// be added once, such as a bias.
    pub adds_once: bool,
    /// Which of several calls this is that fold blocks into the same outputs.
    pub fold: Fold,
    /// How much work it is, for accounts and forecasts of time.
    pub work: Work,
    /// Whether the outputs are of a part of the dim that is folded, and [`Op::merge`] will merge them with those of the others.
    pub is_part: bool,
}

impl KernelCx {
    /// Whether there is anything to write: where there is not, there is nothing to compute, whatever the inputs look like.
    pub(crate) fn writes(&self) -> bool {
        self.outputs.iter().any(|o| !o.shape.contains(&0))
    }
}

/// The place of a kernel call among those that fold the blocks of a ring, or among one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Nothing has been folded yet: [`HostCall::state`] is empty.
    pub first: bool,
    /// Nothing is folded after this: the outputs must be written.
    pub last: bool,
}

impl Fold {
    /// The only call.
    pub const ONLY: Self = Self {
        first: true,
        last: true,
    };
}

/// What the kernel of a fold keeps from call to call.
pub type FoldState = Option<Box<dyn Any + Send>>;

/// One call of a host kernel: memory and the boxes in it.
pub struct HostCall<'a, 'm> {
    /// What to compute.
    pub cx: &'a KernelCx,
    /// The inputs' memory.
    pub inputs: &'a [HostSlice<'a>],
    /// The outputs' memory.
    pub outputs: &'a mut [HostSliceMut<'m>],
    /// What a call of the same fold left, and the next will find. Outputs over a ring dim are memory of their own for
    /// each block, the others the same for all.
    pub state: &'a mut FoldState,
    /// How many rows this rank's part has, where the data [decides](crate::Access::Rows) that: the last call sets it.
    pub rows: &'a mut usize,
}

impl<'a> HostCall<'a, '_> {
    /// The element type of the first output.
    pub fn dtype(&self) -> DType {
        self.outputs[0].dtype()
    }

    /// Input `i`'s box as a view.
    ///
    /// # Panics
    /// If `T` is not the operand's type: the op's rule fixes the types, so its kernel knows them.
    pub fn input<T: Element>(&self, i: usize) -> View<'a, T> {
        let at = &self.cx.inputs[i];
        match self.inputs[i].as_slice::<T>() {
            Ok(data) if at.shape.contains(&0) => View::new(&data[..0], 0, &at.shape, &at.strides),
            Ok(data) => View::new(data, at.offset, &at.shape, &at.strides),
            Err(e) => panic!("kernel reads input {i} as {}, but {e}", T::DTYPE),
        }
    }

    /// Output `o`'s box as a writable view.
    ///
    /// # Panics
    /// As [`input`](Self::input).
    pub fn output<T: Element>(&mut self, o: usize) -> ViewMut<'_, T> {
        writable(&mut self.outputs[o], &self.cx.outputs[o])
    }

    /// The first two outputs' boxes as writable views, for kernels that write both at once.
    ///
    /// # Panics
    /// As [`input`](Self::input); if there is only one output.
    pub fn output_pair<A: Element, B: Element>(&mut self) -> (ViewMut<'_, A>, ViewMut<'_, B>) {
        let [first, second, ..] = &mut self.outputs else {
            panic!("the op has no second output")
        };
        (
            writable(first, &self.cx.outputs[0]),
            writable(second, &self.cx.outputs[1]),
        )
    }
}

impl HostCall<'_, '_> {
    /// The boxes of the outputs from number `first` on, all of one type, as writable views.
    ///
    /// # Panics
    /// As [`input`](Self::input).
    pub fn outputs_from<T: Element>(&mut self, first: usize) -> Vec<ViewMut<'_, T>> {
        let boxes = &self.cx.outputs[first..];
        let memory = self.outputs[first..].iter_mut().zip(boxes);
        memory.map(|(slice, at)| writable(slice, at)).collect()
    }
}

fn writable<'a, T: Element>(slice: &'a mut HostSliceMut<'_>, at: &OperandBox) -> ViewMut<'a, T> {
    match slice.as_mut_slice::<T>() {
        Ok(data) if at.shape.contains(&0) => {
            ViewMut::new(&mut data[..0], 0, &at.shape, &at.strides)
        }
        Ok(data) => ViewMut::new(data, at.offset, &at.shape, &at.strides),
        Err(e) => panic!("kernel writes an output as {}, but {e}", T::DTYPE),
    }
}

/// The key of an op with these attributes.
///
/// ```
/// use shard_ops::key_of;
/// assert_eq!(key_of("scale", &2.5_f64.to_bits()), key_of("scale", &2.5_f64.to_bits()));
/// assert_ne!(key_of("scale", &2.5_f64.to_bits()), key_of("shift", &2.5_f64.to_bits()));
/// ```
pub fn key_of<A: Hash + ?Sized>(name: &str, attributes: &A) -> u128 {
    Fingerprint::new(name).with(attributes).finish()
}

//! What an op is.

use crate::{DeviceKernel, HostCall, Meta, Result, Rule, Value};
use shard_comm::DeviceKind;
use shard_redistribute::Fingerprint;
use shard_spec::Layout;
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

    /// The op's kernel for devices of a kind that do not run jobs of the host, such as GPUs, if it has one. Without, the op is
    /// an error there, unless the engine may [fall back](crate::EngineOptions::host_fallback) to [`host`](Self::host). It must be
    /// the same on all ranks.
    fn kernel(&self, on: DeviceKind) -> Option<&dyn DeviceKernel> {
        let _ = on;
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
    /// [part](crate::KernelCx::is_part) may be whatever merges best in the outputs' shapes and types.
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

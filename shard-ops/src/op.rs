//! Operators: what an op declares, and who applies it.

use crate::engine::note;
use crate::error::InOp;
use crate::{DeviceKernel, HostCall, Meta, OpError, Result, Rule, Value, Values};
use shard_comm::{DType, DeviceKind};
use shard_redistribute::PlanHandle;
use shard_spec::Layout;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt::{self, Debug};
use std::sync::Arc;

/// What a kernel that computes in `f32` reads and writes as it is stored in 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Halves {
    /// The operands that it reads so. Of the others it gets copies in `f32`.
    pub reads: &'static [usize],
    /// Whether it rounds its results itself. It is then given outputs of 16 bits where a call's results are whole, and outputs in
    /// `f32` where they are terms of a sum. If not, outputs are `f32` in either case, and rounded behind it.
    pub writes: bool,
}

impl Halves {
    /// Nothing.
    pub const NONE: Self = Self {
        reads: &[],
        writes: false,
    };
    /// All operands and results.
    pub const ALL: Self = Self {
        reads: &[0, 1, 2, 3, 4, 5, 6],
        writes: true,
    };
}

/// An operator: a rule, a local kernel, and a vjp.
///
/// Built-in ops and a user's own are declared the same way. Attributes are fields of the implementing struct.
pub trait Op: Any + Debug + Send + Sync {
    /// The op's name in errors, traces and handlers.
    fn name(&self) -> &'static str;

    /// A number that is equal for equal names and attributes, on every rank; strategies are cached under it.
    /// Usually `key_of(self.name(), &(attributes))`.
    fn key(&self) -> u128;

    /// How the dims of the op's operands relate, from global shapes and types alone. Also checks these.
    ///
    /// # Errors
    /// Whatever is wrong with shapes, types or attributes; the same on every rank.
    fn rule(&self, inputs: &[Meta]) -> Result<Rule>;

    /// Rules by which the same kernel gives the same results, which lie as `outputs` say, with a dim that comes or goes
    /// [block by block](crate::Access::Ring) instead of at once. The engine takes one where the op's [rule](Self::rule) would bring the
    /// dim's operand first, results lie alike, no more is moved, and blocks that fly while others are computed take less time by the
    /// mesh's cost model.
    ///
    /// # Errors
    /// As [`rule`](Self::rule).
    fn block_rules(&self, _inputs: &[Meta], _outputs: &[Layout]) -> Result<Vec<Rule>> {
        Ok(Vec::new())
    }

    /// Computes one rank's part (or a box of it) on host memory.
    ///
    /// Every element of every output box must be written. `call.cx` says which global indices the boxes cover.
    fn host(&self, call: &mut HostCall<'_, '_>);

    /// What the op's kernel for this kind of device reads and writes as it is stored in this type of 16 bits, though the op's rule knows `f32`
    /// alone, for operands of these shapes: nothing by default.
    fn halves(&self, stored: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        let _ = (stored, inputs, on);
        Halves::NONE
    }

    /// The op's kernel for devices of a kind that do not run jobs of the host, such as GPUs, if it has one. Without one,
    /// applying the op there is an error, unless the engine may [fall back](crate::EngineOptions::host_fallback) to
    /// [`host`](Self::host). Whether there is one must be the same on all ranks.
    fn kernel(&self, on: DeviceKind) -> Option<&dyn DeviceKernel> {
        let _ = on;
        None
    }

    /// Writes this rank's part of outputs whose number of [rows](crate::Access::Rows) depends on the data, after
    /// [`host`](Self::host) has said [how many](HostCall::rows). The outputs' boxes have that extent now, and
    /// [`HostCall::state`] is what `host` left. There are no inputs. Not called where this rank has no rows.
    fn write_rows(&self, call: &mut HostCall<'_, '_>) {
        let _ = call;
    }

    /// Merges partial results over parts of a dim that is folded block by block, for rules that say so
    /// ([`merges`](crate::RuleBuilder::merges)). The inputs are the outputs that [`host`](Self::host) made of each part, along
    /// a new first dim in the order of the parts, with 16-bit floats as `f32`; the outputs are the op's. For a
    /// [part](crate::KernelCx::is_part) `host` may write whatever merges best, in the outputs' shapes and types.
    fn merge(&self, call: &mut HostCall<'_, '_>) {
        let _ = call;
    }

    /// The operands whose elements the vjp looks at: all inputs by default. Of the other operands a tape keeps only the
    /// layout, and their memory can be freed.
    fn keeps(&self) -> Keeps {
        Keeps::INPUTS
    }

    /// In which type a program that [casts by itself](crate::Precision) gives the op its operands.
    fn precision(&self) -> Precision {
        Precision::Widest
    }

    /// A line about what operands that lie so cost the op beyond moves, and what would cost less, if there is something to say: for
    /// explanations.
    fn advice(&self, layouts: &[&Layout]) -> Option<String> {
        let _ = layouts;
        None
    }

    /// The vector-Jacobian product: cotangents of the inputs from those of the outputs, as global arrays; the
    /// engine and the tape see to layouts. `None` stands for a zero or unwanted cotangent. Most vjps are a
    /// [`Saved::pull_back`]. An op without a vjp has no derivative.
    ///
    /// # Errors
    /// Errors of the ops that it applies; [`NoVjp`](crate::OpError::NoVjp) if the op has no vjp.
    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let _ = (exec, saved, cotangents);
        Err(OpError::NoVjp {
            op: self.name(),
            operand: 0,
        })
    }

    /// Whether what this op of one output makes of a cotangent for one of its operands may wait for what others make for the same value,
    /// so that [`vjp_together`](Self::vjp_together) makes their sum with less work than one after the other: as for the pieces of a tensor,
    /// or a weight that every step of a recurrence multiplies. If so, its [`vjp`](Self::vjp) is not asked for that operand. `inputs` are
    /// those of [`Saved`]. Says the same on every rank.
    fn waits(&self, operand: usize, inputs: &[Value], cotangent: &Value) -> Option<Wait> {
        let _ = (operand, inputs, cotangent);
        None
    }

    /// The sum of the cotangents that applications which [wait](Self::waits) give the value that is this operand of each. They are one or
    /// more, and [can be made together](Wait::with).
    ///
    /// # Errors
    /// As [`vjp`](Self::vjp).
    fn vjp_together(&self, exec: &dyn Exec, operand: usize, of: &[Waiting<'_>]) -> Result<Value> {
        let _ = (exec, of);
        Err(OpError::NoVjp {
            op: self.name(),
            operand,
        })
    }
}

/// What a cotangent that [waits](Op::waits) is made of, and with which others.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// The inputs that it is made of besides the cotangent of the output.
    pub keeps: Keeps,
    /// A number that is equal for those that can be made together, for the same operand. They may be applications of several ops, if
    /// these are of one type.
    pub with: u128,
}

/// An application of an op, of which the cotangent of an operand [waits](Op::waits).
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The op.
    pub op: &'a dyn Op,
    /// Its inputs; without data but those that the cotangent is [made of](Wait::keeps).
    pub inputs: &'a [Value],
    /// The cotangent of its output.
    pub cotangent: &'a Value,
}

/// In which type an op gets floating-point operands in a region of a program that casts by itself, as PyTorch's autocast does. Operands
/// of `f64` stay what they are, and other types are not meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// In 16 bits: products, which are most of the work, and sum in `f32` in any case.
    Sixteen,
    /// In `f32`: results that 16 bits are too few for, such as sums of many terms, exponentials and logarithms.
    Full,
    /// In the type of the first operand: normalisations, which compute in `f32` inside.
    First,
    /// In the widest type among the operands.
    Widest,
}

/// Some of an op's inputs and outputs.
///
/// ```
/// use shard_ops::Keeps;
/// let keeps = Keeps::inputs(&[1]).and_outputs(&[0]);
/// assert!(keeps.input(1) && !keeps.input(0));
/// assert!(keeps.output(0) && Keeps::ALL.output(7) && !Keeps::INPUTS.output(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeps {
    inputs: u64,
    outputs: u64,
}

impl Keeps {
    /// No inputs and no outputs.
    pub const NOTHING: Self = Self {
        inputs: 0,
        outputs: 0,
    };
    /// All inputs, no outputs.
    pub const INPUTS: Self = Self {
        inputs: u64::MAX,
        outputs: 0,
    };
    /// All inputs and outputs.
    pub const ALL: Self = Self {
        inputs: u64::MAX,
        outputs: u64::MAX,
    };

    /// Inputs by number. Those from number 63 on are either all included or all not.
    pub const fn inputs(which: &[usize]) -> Self {
        Self {
            inputs: bits(which),
            outputs: 0,
        }
    }

    /// Adds outputs by number, as for [`inputs`](Self::inputs).
    #[must_use]
    pub const fn and_outputs(self, which: &[usize]) -> Self {
        Self {
            outputs: self.outputs | bits(which),
            ..self
        }
    }

    /// Whether input `i` is included.
    pub const fn input(self, i: usize) -> bool {
        self.inputs & bits(&[i]) != 0
    }

    /// Whether output `o` is included.
    pub const fn output(self, o: usize) -> bool {
        self.outputs & bits(&[o]) != 0
    }
}

const fn bits(which: &[usize]) -> u64 {
    let (mut bits, mut k) = (0, 0);
    while k < which.len() {
        bits |= 1 << if which[k] < 63 { which[k] } else { 63 };
        k += 1;
    }
    bits
}

/// For each operand of an op, the layout that its sum over ranks is brought to before the op, if that is taken first.
pub type Sums = SmallVec<[Option<Layout>; 3]>;

/// An executor, which applies ops: the eager [`Engine`](crate::Engine), or a recorder that also writes a tape.
///
/// vjps are written against this trait, so the derivative of a derivative comes from the same code.
pub trait Exec {
    /// Applies an op to global arrays.
    ///
    /// # Collective
    /// All members of the operands' mesh, with the same op and layouts, in the same order.
    ///
    /// # Errors
    /// Errors of the op's rule, the engine, or a communicator.
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values>;

    /// As [`results`](Self::results), which it gives as a list on the heap.
    ///
    /// # Collective
    /// As [`results`](Self::results).
    ///
    /// # Errors
    /// As [`results`](Self::results).
    fn apply(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Vec<Value>> {
        Ok(self.results(op, inputs)?.into_vec())
    }

    /// Moves a value to another layout of the same mesh and shape.
    ///
    /// # Collective
    /// All members of the value's mesh.
    ///
    /// # Errors
    /// As [`Array::redistribute`](shard_redistribute::Array::redistribute).
    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value>;

    /// Whether ops refuse operands that would have to move; see [`EngineOptions`](crate::EngineOptions::explicit_moves).
    fn moves_are_explicit(&self) -> bool {
        false
    }

    /// An operand of what is made of several ops, in the layout that it needs it in: `(op, operand)` names it.
    ///
    /// # Collective
    /// As [`redistribute`](Self::redistribute).
    ///
    /// # Errors
    /// [`ImplicitMove`](OpError::ImplicitMove) if something has to be sent for that and [moves are explicit](Self::moves_are_explicit); as
    /// [`redistribute`](Self::redistribute).
    fn aligned(
        &self,
        (op, operand): (&'static str, usize),
        value: &Value,
        to: &Layout,
    ) -> Result<Value> {
        if self.moves_are_explicit() && value.layout() != to {
            let planner = value.array().cx().planner();
            let plan = planner.plan(value.layout(), to, value.dtype()).in_op(op)?;
            if plan.communicates() {
                return Err(OpError::ImplicitMove {
                    op,
                    operand,
                    layout: value.layout().to_string(),
                    wanted: to.to_string(),
                });
            }
        }
        self.redistribute(value, to)
    }

    /// As [`redistribute`](Self::redistribute), of a parameter to the layout in which the next op uses it.
    ///
    /// # Collective
    /// As [`redistribute`](Self::redistribute).
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute).
    fn gather(&self, value: &Value, to: &Layout) -> Result<Value> {
        self.gather_wait(self.gather_start(value, to)?)
    }

    /// Starts what [`gather`](Self::gather) does, before the op that uses it has its turn.
    ///
    /// # Collective
    /// As [`redistribute`](Self::redistribute). All members [wait](Self::gather_wait) for it at the same place, or drop it.
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute).
    fn gather_start(&self, value: &Value, to: &Layout) -> Result<PlanHandle> {
        let gather = value.array().redistribute_start(to).in_op("gather")?;
        if gather.is_flying() {
            note(value.array().cx(), "gather", "post");
        }
        Ok(gather)
    }

    /// Waits for a parameter that was [sent for](Self::gather_start).
    ///
    /// # Collective
    /// As [`gather_start`](Self::gather_start).
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute).
    fn gather_wait(&self, gather: PlanHandle) -> Result<Value> {
        let flies = gather.is_flying();
        let array = gather.wait().in_op("gather")?;
        if flies {
            note(array.cx(), "gather", "wait");
        }
        Ok(Value::new(array))
    }

    /// How the op would have partial operands that it cannot let pass: for each operand, the layout that its sum over ranks is
    /// brought to first, if it is. Who applies the op to these sums instead has them for further uses.
    ///
    /// # Errors
    /// What the op's rule reports.
    fn sums_first(&self, _op: &Arc<dyn Op>, inputs: &[&Value]) -> Result<Sums> {
        Ok(inputs.iter().map(|_| None).collect())
    }

    /// Tells that the sum over ranks is taken of so many results together, those of the ops to come among them, as of the gradients of a
    /// parameter that is used several times: one that is left as terms of a sum then costs its share of that sum alone. Returns what
    /// was told before. An executor that does not choose among strategies hears nothing.
    ///
    /// # Collective
    /// No communication. All ranks tell the same.
    fn set_terms(&self, _terms: usize) -> usize {
        1
    }

    /// The value as an op takes it that is computed in [`Full`](Precision::Full) precision, for what is made of several ops: as it is,
    /// unless this executor casts by itself.
    ///
    /// # Collective
    /// As [`apply`](Self::apply).
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    fn in_full(&self, value: &Value) -> Result<Value> {
        Ok(value.clone())
    }

    /// Whether what is applied here may be differentiated. If so, vjps use only ops that have vjps themselves;
    /// otherwise they may use fused ones.
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
        match self.results(op, inputs)?.into_inner() {
            Ok([value]) => Ok(value),
            Err(outputs) => only(name, outputs),
        }
    }
}

impl dyn Exec + '_ {
    /// Applies an op with `N` outputs.
    ///
    /// # Collective
    /// As [`apply`](Exec::apply).
    ///
    /// # Errors
    /// As [`apply`](Exec::apply).
    pub(crate) fn apply_n<const N: usize>(
        &self,
        op: Arc<dyn Op>,
        inputs: &[&Value],
    ) -> Result<[Value; N]> {
        let name = op.name();
        let outputs = self.apply(op, inputs)?;
        (outputs.try_into())
            .map_err(|all: Vec<_>| OpError::arity(name, format!("{N} outputs"), all.len()))
    }
}

/// The output of an op that has one, in a list on the heap.
#[cold]
fn only(op: &'static str, mut outputs: Values) -> Result<Value> {
    match (outputs.len(), outputs.pop()) {
        (1, Some(value)) => Ok(value),
        (got, _) => Err(OpError::arity(op, "one output", got)),
    }
}

/// Cotangents of an op's outputs, in order; `None` for zero.
pub type Cotangents = [Option<Value>];

/// Cotangents of an op's inputs, in order; `None` for zero, or where none is wanted.
pub type Grads = Vec<Option<Value>>;

/// The operands that a vjp may look at.
#[derive(Debug)]
pub struct Saved<'a> {
    /// The op's inputs as they were applied; without data where the op does not [keep](Op::keeps) them.
    pub inputs: &'a [Value],
    /// The op's outputs; without data where the op does not [keep](Op::keeps) them.
    pub outputs: &'a [Value],
    /// Which inputs' cotangents are wanted.
    pub needs: &'a [bool],
    /// Which of them are summed with others of the same input before a sum over ranks is taken, if that is known.
    pub terms: Option<Terms<'a>>,
}

/// How many cotangents of each input are summed, and who is told while one is computed.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// What the vjp applies ops by.
    pub exec: &'a dyn Exec,
    /// For each input: 1 if the cotangent is used as it is.
    pub of: &'a [usize],
}

impl Debug for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Terms").field(&self.of).finish()
    }
}

impl Terms<'_> {
    /// Runs `f`, which makes the cotangent of an input.
    pub fn told<T>(self, input: usize, f: impl FnOnce() -> T) -> T {
        struct Before<'a>(&'a dyn Exec, usize);
        impl Drop for Before<'_> {
            fn drop(&mut self) {
                self.0.set_terms(self.1);
            }
        }
        let terms = self.of.get(input).copied().unwrap_or(1);
        let _before = Before(self.exec, self.exec.set_terms(terms));
        f()
    }
}

impl Saved<'_> {
    /// The result of a vjp that looks only at the first output's cotangent: for every input whose cotangent is wanted, in
    /// order, what `of` makes of that cotangent and the input's number. Without the output's cotangent there are no results.
    ///
    /// # Errors
    /// Errors of `of`.
    pub fn pull_back<G: Into<Option<Value>>>(
        &self,
        cotangents: &Cotangents,
        mut of: impl FnMut(&Value, usize) -> Result<G>,
    ) -> Result<Grads> {
        let each = |(i, &wanted): (usize, &bool)| match &cotangents[0] {
            Some(dy) if wanted => {
                let made = match self.terms {
                    Some(terms) => terms.told(i, || of(dy, i)),
                    None => of(dy, i),
                };
                made.map(Into::into)
            }
            _ => Ok(None),
        };
        self.needs.iter().enumerate().map(each).collect()
    }

    /// [`pull_back`](Self::pull_back) of an op that is linear in its one input: by the op that is its adjoint.
    ///
    /// # Errors
    /// As [`Exec::apply`].
    pub(crate) fn pull_back_by(
        &self,
        exec: &dyn Exec,
        cotangents: &Cotangents,
        adjoint: impl Op,
    ) -> Result<Grads> {
        let adjoint: Arc<dyn Op> = Arc::new(adjoint);
        self.pull_back(cotangents, |dy, _| exec.apply1(adjoint.clone(), &[dy]))
    }

    /// [`pull_back`](Self::pull_back) to one input of several: the others have no derivative.
    ///
    /// # Errors
    /// Errors of `of`.
    pub fn pull_back_to(
        &self,
        input: usize,
        cotangents: &Cotangents,
        of: impl Fn(&Value) -> Result<Value>,
    ) -> Result<Grads> {
        self.pull_back(cotangents, |dy, i| (i == input).then(|| of(dy)).transpose())
    }
}

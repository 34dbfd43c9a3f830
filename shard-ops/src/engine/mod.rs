//! The eager executor: one path from an op and its operands to the result.

mod arriving;
mod local;
mod outcome;
mod pin;
mod refusals;
mod ring;
pub(crate) mod route;
mod rows;
mod run;
mod submit;
mod widened;

pub use self::pin::Pin;
use self::refusals::{refuse_moves, refuse_other_count, refuse_without_kernel};
use self::run::{Applied, Run, finish, outputs_without_data};
use self::submit::{converted, submit};
use crate::error::InOp;
use crate::key::{key_of, with_operand};
use crate::rule::Body;
use crate::wide;
use crate::{
    Alternative, Exec, KernelPolicy, Meta, Op, OpError, Result, Rule, Strategy, Sums, Value, Values,
};
use shard_comm::{Call, Calling, History};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Layout, ReduceOp};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use tracing::level_filters::LevelFilter;

/// A hand-written way to run an op: takes precedence over its rule and kernel on the engine it is
/// [registered](Engine::register) with. It gets the op and the arrays, and must return the op's outputs, all of them.
pub type Handler = Rc<dyn Fn(&Engine, &Arc<dyn Op>, &[&Array]) -> Result<Vec<Array>>>;

/// How an engine behaves.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Strategies kept per engine; when there are more, all are dropped and made again as needed.
    pub cache_entries: usize,
    /// Whether an operand that has to move is an error instead. Halos are not moves.
    pub explicit_moves: bool,
    /// Whether an op without a kernel for a GPU runs on the host, its operands there and back, which the
    /// [ledger](shard_comm::LedgerSnapshot::fallbacks) counts; otherwise it is an error.
    pub host_fallback: bool,
    /// How kernels on a GPU go about it.
    pub kernels: KernelPolicy,
    /// Whether terms of sums over ranks are rounded where the result has 16 bits, so that half the bytes move, and later, with others:
    /// results then differ from those of one rank by the rounding of each term. Otherwise an op with such a result takes the sum in
    /// `f32` first.
    pub narrow_sums: bool,
    /// How many bytes the `f32` copies of 16-bit operands take at a time, of an op whose kernel knows no such floats and can be called
    /// for a part of its factors; `None` for a MiB where kernels of the host run, and 64 elsewhere. An op with many operations for each
    /// element gets four times as much.
    pub room: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            cache_entries: 4096,
            explicit_moves: false,
            host_fallback: false,
            kernels: KernelPolicy::default(),
            narrow_sums: false,
            room: None,
        }
    }
}

/// Applies ops to arrays: looks up or makes the [`Strategy`], moves what must move, runs the kernel, labels
/// the result. One per rank; cheap to share through `Rc`.
pub struct Engine {
    cache_entries: usize,
    room: Option<usize>,
    explicit_moves: Cell<bool>,
    host_fallback: Cell<bool>,
    kernels: Cell<KernelPolicy>,
    narrow_sums: Cell<bool>,
    pin: RefCell<Option<Pin>>,
    /// How many partial results are summed over ranks together, as a power of two.
    terms: Cell<usize>,
    strategies: RefCell<HashMap<u128, Rc<Ready>, Prehashed>>,
    handlers: RefCell<HashMap<&'static str, Handler>>,
    /// The ops whose handlers run.
    handled: RefCell<Vec<&'static str>>,
}

type Prehashed = BuildHasherDefault<Folded>;

/// The results of an op, mostly one.
type Arrays = SmallVec<[Array; 1]>;

/// A rule and its strategy, ready to run.
struct Ready {
    rule: Rule,
    strategy: Strategy,
    /// Where the first result is to be.
    wanted: Option<Layout>,
    /// Of the op and the operands' layouts: what ranks compare.
    fingerprint: u128,
}

/// A handler that runs, until it returns or panics.
struct Handled<'a>(&'a RefCell<Vec<&'static str>>);

impl<'a> Handled<'a> {
    fn begin(handled: &'a RefCell<Vec<&'static str>>, op: &'static str) -> Self {
        handled.borrow_mut().push(op);
        Self(handled)
    }
}

impl Drop for Handled<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().pop();
    }
}

impl Engine {
    /// An engine with empty caches.
    pub fn new(options: EngineOptions) -> Rc<Self> {
        let EngineOptions {
            cache_entries,
            explicit_moves,
            host_fallback,
            kernels,
            narrow_sums,
            room,
        } = options;
        Rc::new(Self {
            cache_entries,
            room,
            explicit_moves: Cell::new(explicit_moves),
            host_fallback: Cell::new(host_fallback),
            kernels: Cell::new(kernels),
            narrow_sums: Cell::new(narrow_sums),
            pin: RefCell::default(),
            terms: Cell::new(1),
            strategies: RefCell::default(),
            handlers: RefCell::default(),
            handled: RefCell::default(),
        })
    }

    /// Registers a hand-written handler for the op of this name, replacing an earlier one. While it runs, an op of this
    /// name goes by its rule and kernel: a handler may hand its op back to [`run`](Self::run).
    ///
    /// # Collective
    /// All ranks must register the same handlers.
    pub fn register(&self, op: &'static str, handler: Handler) {
        self.handlers.borrow_mut().insert(op, handler);
    }

    /// Whether operands that have to move are an error; returns what was set before.
    ///
    /// # Collective
    /// All ranks must set the same.
    pub fn set_explicit_moves(&self, explicit: bool) -> bool {
        self.explicit_moves.replace(explicit)
    }

    /// Whether ops without a kernel for a GPU run on the host; returns what was set before.
    ///
    /// # Collective
    /// All ranks must set the same.
    pub fn set_host_fallback(&self, allowed: bool) -> bool {
        self.host_fallback.replace(allowed)
    }

    /// How kernels on a GPU go about it; returns what was set before.
    ///
    /// # Collective
    /// All ranks must set the same.
    pub fn set_kernels(&self, policy: KernelPolicy) -> KernelPolicy {
        self.kernels.replace(policy)
    }

    /// Whether terms of sums over ranks are [rounded](EngineOptions::narrow_sums) to 16 bits; returns what was set before.
    ///
    /// # Collective
    /// All ranks must set the same, which the next exchange finds out.
    pub fn set_narrow_sums(&self, narrow: bool) -> bool {
        self.narrow_sums.replace(narrow)
    }

    /// How the first result of each op is to lie from now on, if it is to lie in a certain way: the cheapest strategy that leaves it
    /// so is taken. Returns what was set before.
    ///
    /// # Collective
    /// All ranks must set the same.
    pub fn set_pin(&self, pin: Option<Pin>) -> Option<Pin> {
        self.pin.replace(pin)
    }

    /// How the first result of each op is to lie, if that was [set](Self::set_pin).
    pub fn pin(&self) -> Option<Pin> {
        self.pin.borrow().clone()
    }

    /// What the engine chose from for an op on operands of these layouts, and why: the same on every rank.
    ///
    /// # Errors
    /// What the op's rule reports.
    pub fn alternatives(&self, op: &Arc<dyn Op>, inputs: &[&Array]) -> Result<Vec<Alternative>> {
        let ready = self.ready(op, inputs)?;
        let layouts: Vec<&Layout> = inputs.iter().map(|a| a.layout()).collect();
        Ok((ready.strategy).alternatives(&ready.rule, &layouts, ready.wanted.as_ref()))
    }

    /// The strategy the engine uses for an op on operands of these layouts, and the op's [advice](Op::advice), for inspection.
    ///
    /// # Errors
    /// What the op's rule reports.
    pub fn explain(&self, op: &Arc<dyn Op>, inputs: &[&Array]) -> Result<String> {
        let strategy = self.ready(op, inputs)?.strategy.to_string();
        let layouts: Vec<&Layout> = inputs.iter().map(|a| a.layout()).collect();
        Ok(match op.advice(&layouts) {
            Some(advice) => format!("{strategy}\n{advice}"),
            None => strategy,
        })
    }

    /// Applies an op to arrays.
    ///
    /// # Collective
    /// All members of the operands' mesh, with the same op and layouts, in the same order.
    ///
    /// # Errors
    /// What the op's rule, a move, or the device reports.
    #[track_caller]
    pub fn run(&self, op: &Arc<dyn Op>, inputs: &[&Array]) -> Result<Vec<Array>> {
        let outputs = self.outputs(op, inputs)?;
        Ok(outputs.into_iter().map(Value::into_array).collect())
    }

    #[track_caller]
    fn outputs(&self, op: &Arc<dyn Op>, inputs: &[&Array]) -> Result<Values> {
        let name = op.name();
        let _call = Calling::doing(name);
        if let Some(handler) = self.handler(name) {
            return self.by_handler(&handler, op, inputs);
        }
        let ready = self.ready(op, inputs)?;
        let mut key = ready.fingerprint ^ self.kernels.get().fingerprint();
        if ready.rule.is_wide() {
            key ^= u128::from(self.narrow_sums.get());
            self.refuse_terms(name, ready.wanted.as_ref())?;
        }
        let number = record(name, key, inputs);
        let outputs = self.by_strategy((op, name), &ready.rule, &ready.strategy, inputs)?;
        Ok(numbered(outputs, number))
    }

    /// What a handler makes of an op.
    #[inline(never)]
    fn by_handler(&self, handler: &Handler, op: &Arc<dyn Op>, inputs: &[&Array]) -> Result<Values> {
        let name = op.name();
        let _handled = Handled::begin(&self.handled, name);
        let layouts = |a: &&Array| (a.layout().hash128(), a.dtype());
        let layouts: SmallVec<[_; 4]> = inputs.iter().map(layouts).collect();
        let number = record(name, key_of(name, &(op.key(), layouts)), inputs);
        let outputs = handler(self, op, inputs)?;
        refuse_other_count(op, inputs, outputs.len())?;
        let outputs = values(self.as_pinned(name, outputs.into())?);
        Ok(numbered(outputs, number))
    }

    /// Refuses to leave terms of a sum where the sum is taken before it gets 16 bits.
    fn refuse_terms(&self, op: &'static str, wanted: Option<&Layout>) -> Result<()> {
        match wanted.filter(|wanted| wanted.is_partial() && !self.narrow_sums.get()) {
            None => Ok(()),
            Some(wanted) => Err(OpError::Pinned {
                op,
                wanted: wanted.to_string(),
                possible: vec!["the sum, which is taken before it gets 16 bits".into()],
            }),
        }
    }

    /// What a handler gave, if its first result lies as it should.
    fn as_pinned(&self, op: &'static str, outputs: Arrays) -> Result<Arrays> {
        if let (Some(pin), Some(first)) = (&*self.pin.borrow(), outputs.first()) {
            let wanted = pin.layout(op, first.layout().mesh(), first.shape())?;
            if wanted != *first.layout() {
                return Err(OpError::Pinned {
                    op,
                    wanted: wanted.to_string(),
                    possible: vec![format!("{}, as its handler makes it", first.layout())],
                });
            }
        }
        Ok(outputs)
    }

    /// What runs the op of this name, unless it is running.
    fn handler(&self, op: &str) -> Option<Handler> {
        let handlers = self.handlers.borrow();
        if handlers.is_empty() {
            return None;
        }
        let handler = handlers.get(op)?;
        let is_running = self.handled.borrow().contains(&op);
        (!is_running).then(|| handler.clone())
    }

    /// Runs a given strategy: what [`run`](Self::run) does after choosing one.
    ///
    /// # Collective
    /// As [`run`](Self::run), with the same choice on all ranks.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_strategy(
        &self,
        op: &Arc<dyn Op>,
        rule: &Rule,
        strategy: &Strategy,
        inputs: &[&Array],
    ) -> Result<Vec<Array>> {
        let outputs = self.by_strategy((op, op.name()), rule, strategy, inputs)?;
        Ok(outputs.into_iter().map(Value::into_array).collect())
    }

    fn by_strategy(
        &self,
        (op, name): (&Arc<dyn Op>, &'static str),
        rule: &Rule,
        strategy: &Strategy,
        inputs: &[&Array],
    ) -> Result<Values> {
        let _span = traced().then(|| tracing::trace_span!("op", name).entered());
        let cx = inputs[0].cx();
        if self.explicit_moves.get() {
            refuse_moves(name, rule, strategy, inputs)?;
        }
        if rule.body == Body::Kernel && !self.host_fallback.get() {
            refuse_without_kernel(op, cx.device())?;
        }
        if !cx.is_member() {
            let outputs = match rule.decides_rows() {
                Some(_) => rows::settle_outside(name, cx, rule, strategy),
                None => outputs_without_data(cx, rule, &strategy.outputs),
            };
            return self.narrow(name, rule, outputs?).map(values);
        }
        let run = Run {
            op: Applied {
                op,
                name,
                kernels: self.kernels.get(),
                wide: rule.is_wide().then_some((rule, &strategy.blocks)),
            },
            cx,
            rule,
            strategy,
        };
        match strategy.is_local {
            true => run.local(inputs),
            false => self.with_moves(&run, inputs).map(values),
        }
    }

    /// An op for which something moves, or whose kernels do not write its results as they are.
    #[inline(never)]
    fn with_moves(&self, run: &Run<'_>, inputs: &[&Array]) -> Result<Arrays> {
        let (rule, strategy, name) = (run.rule, run.strategy, run.op.name());
        let reduced = reduce(name, strategy, inputs)?;
        let mut current: SmallVec<[&Array; 4]> = SmallVec::new();
        let inputs = match reduced.is_empty() {
            true => inputs,
            false => {
                current.extend_from_slice(inputs);
                for (i, array) in &reduced {
                    current[*i] = array;
                }
                &current[..]
            }
        };
        let outputs = match (&strategy.assemble, &rule.body) {
            (Some(assemble), _) => run.assemble(assemble, inputs),
            (None, Body::Relabel) => run.relabel(inputs),
            (None, _) => run.kernels(inputs),
        };
        match run.op.wide {
            Some(_) => self.narrow(name, rule, outputs?),
            None => outputs,
        }
    }

    /// Outputs that kernels wrote as `f32` in place of a 16-bit type: rounded to it, once sums over ranks have been taken.
    fn narrow(&self, op: &'static str, rule: &Rule, outputs: Arrays) -> Result<Arrays> {
        let narrowed = outputs.into_iter().enumerate().map(|(o, output)| {
            let Some(to) = rule.narrows(o).filter(|to| *to != output.dtype()) else {
                return Ok(output);
            };
            // Of the greatest and the least, the rounded ones are the roundings.
            let rounds = match output.layout().partial_op() {
                Some(ReduceOp::Sum) => !self.narrow_sums.get(),
                by => by == Some(ReduceOp::Prod),
            };
            let settled = match rounds {
                true => {
                    let whole = output.layout().with_partial_reduced();
                    output.redistribute(&whole).in_op(op)?
                }
                false => output,
            };
            let local = (settled.buffer())
                .map(|local| converted(settled.cx(), local, to))
                .transpose()?;
            Array::from_parts(settled.cx(), settled.layout(), local, to).in_op(op)
        });
        narrowed.collect()
    }

    /// The strategy of an op on operands that lie so, made at the first time.
    fn ready(&self, op: &Arc<dyn Op>, inputs: &[&Array]) -> Result<Rc<Ready>> {
        let Some(first) = inputs.first() else {
            return Err(OpError::arity(op.name(), "at least one operand", 0));
        };
        let pin = self.pin.borrow();
        let set = u128::from(first.cx().planner().models_set());
        let mut key = op.key() ^ set ^ pin.as_ref().map_or(0, Pin::key);
        let terms = self.terms.get();
        if terms > 1 {
            key ^= key_of("terms", &terms);
        }
        for array in inputs {
            key = with_operand(key, array.layout().hash128(), array.dtype());
        }
        if let Some(found) = self.strategies.borrow().get(&key) {
            return Ok(found.clone());
        }
        let made = Rc::new(make_ready(
            op,
            inputs,
            (pin.as_ref(), terms),
            key,
            self.room,
        )?);
        let mut cache = self.strategies.borrow_mut();
        if cache.len() >= self.cache_entries {
            cache.clear();
        }
        cache.insert(key, made.clone());
        Ok(made)
    }
}

/// The shapes and types of operands.
fn metas(inputs: &[&Array]) -> Vec<Meta> {
    let meta = |array: &&Array| Meta {
        shape: array.shape().iter().copied().collect(),
        dtype: array.dtype(),
    };
    inputs.iter().map(meta).collect()
}

/// The rule and the strategy of an op on operands that lie so, whose result lies as pinned or is one of so many terms; ops without kernels
/// for 16 bits get copies of `room` bytes at a time.
#[inline(never)]
fn make_ready(
    op: &Arc<dyn Op>,
    inputs: &[&Array],
    (pin, terms): (Option<&Pin>, usize),
    key: u128,
    room: Option<usize>,
) -> Result<Ready> {
    let (name, first) = (op.name(), inputs[0]);
    for (operand, array) in inputs.iter().enumerate() {
        if array.layout().mesh() != first.layout().mesh() {
            return Err(OpError::Meshes { op: name, operand });
        }
    }
    let metas = metas(inputs);
    let device = first.cx().device();
    let room = room.unwrap_or_else(|| wide::room(device));
    let mut rule = wide::rule(&**op, &metas, room, device.kind())?;
    // Where a sum is taken before its result is rounded, each is taken by itself.
    rule.terms = if rule.is_wide() { 1 } else { terms };
    let layouts: Vec<&Layout> = inputs.iter().map(|a| a.layout()).collect();
    let model = first.cx().planner().model_or_default();
    let wanted = match (pin, rule.outputs.first()) {
        (Some(pin), Some(output)) => {
            Some(pin.layout(name, first.layout().mesh(), &output.meta.shape)?)
        }
        _ => None,
    };
    let index = first.index();
    let strategy = Strategy::yielding(&rule, &layouts, wanted.as_ref(), index, &model)?;
    let (rule, strategy) = match strategy.cost() {
        0 => (rule, strategy),
        _ => {
            let mut rules = wide::block_rules(&**op, &rule, &metas, strategy.outputs())?;
            rules.iter_mut().for_each(|made| made.terms = rule.terms);
            strategy.or_block_by_block((rule, rules), &layouts, index, &model)
        }
    };
    tracing::debug!(op = name, %strategy, "new strategy");
    Ok(Ready {
        rule,
        strategy,
        wanted,
        fingerprint: key_of(name, &key),
    })
}

impl Exec for Engine {
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values> {
        let mut arrays: SmallVec<[&Array; 4]> = SmallVec::new();
        for value in inputs {
            arrays.push(value.array());
        }
        self.outputs(&op, &arrays)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value> {
        // Plans are cached with the mesh.
        Ok(Value::new(
            value.array().redistribute(to).in_op("redistribute")?,
        ))
    }

    fn moves_are_explicit(&self) -> bool {
        self.explicit_moves.get()
    }

    fn set_terms(&self, terms: usize) -> usize {
        // Of lists of all lengths not each has strategies of its own.
        self.terms.replace(1 << terms.max(1).ilog2())
    }

    fn sums_first(&self, op: &Arc<dyn Op>, inputs: &[&Value]) -> Result<Sums> {
        // A handler gets the operands as they are, and where moves are explicit the op is refused.
        if self.explicit_moves.get() || self.handler(op.name()).is_some() {
            return Ok(inputs.iter().map(|_| None).collect());
        }
        let arrays: SmallVec<[&Array; 4]> = inputs.iter().map(|v| v.array()).collect();
        let ready = self.ready(op, &arrays)?;
        let steps = ready.strategy.inputs.iter();
        Ok(steps
            .map(|step| step.reduce.as_ref().map(|plan| plan.to().clone()))
            .collect())
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("strategies", &self.strategies.borrow().len())
            .finish_non_exhaustive()
    }
}

/// Whether anybody listens to spans, which cost some time even where nobody does.
#[inline]
fn traced() -> bool {
    LevelFilter::current() == LevelFilter::TRACE
}

/// Tells the mesh's history of an op, and of which values; gives the number of what it makes.
fn record(op: &'static str, key: u128, inputs: &[&Array]) -> u64 {
    let Some(first) = inputs.first() else {
        return 0;
    };
    let mut read: SmallVec<[u64; 4]> = SmallVec::new();
    for array in inputs {
        read.push(array.number());
    }
    let call = Call::keyed(op, key).of(first.dtype(), first.layout());
    first.cx().record(call.reading(&read))
}

/// The results of a call that has this number; the first has it too.
fn numbered(mut outputs: Values, number: u64) -> Values {
    if let [first, others @ ..] = &mut outputs[..] {
        first.set_number(number);
        for (output, at) in others.iter_mut().zip(1..) {
            output.set_number(History::derived(number, at));
        }
    }
    outputs
}

/// Arrays as values that no tape knows.
fn values(arrays: Arrays) -> Values {
    arrays.into_iter().map(Value::new).collect()
}

/// Reduces the partial sums that do not pass: which inputs, and to what.
fn reduce(op: &'static str, strategy: &Strategy, inputs: &[&Array]) -> Result<Vec<(usize, Array)>> {
    let mut reduced = Vec::new();
    for (i, (input, step)) in inputs.iter().zip(&strategy.inputs).enumerate() {
        if let Some(plan) = &step.reduce {
            reduced.push((i, plan.run(input).in_op(op)?));
        }
    }
    Ok(reduced)
}

/// Writes to the ledger's event trace, if it is on.
#[inline]
pub(crate) fn note(cx: &Rc<MeshComm>, op: &'static str, what: &'static str) {
    let ledger = cx.world().ledger();
    if ledger.is_tracing() {
        ledger.note(format!("{what} {op}"));
    }
}

/// A hasher for keys that are hashes already.
#[derive(Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u128(&mut self, value: u128) {
        self.write_u64(value as u64);
        self.write_u64((value >> 64) as u64);
    }
}

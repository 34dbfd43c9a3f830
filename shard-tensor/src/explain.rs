//! Why data moved: what each op of a piece of a program did, and what that cost.

use crate::{Context, Error, Placements, Result, ShardTensor};
use shard_comm::Communicator;
use shard_ops::{Alternative, Engine, Exec, Op, OpError, Pin, Sums, Value, Values};
use shard_redistribute::PlanHandle;
use shard_spec::Layout;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// One application of an op, or one move.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainedStep {
    /// The op.
    pub op: &'static str,
    /// Type, shape and layout of each operand.
    pub operands: Vec<String>,
    /// Type, shape and layout of each result.
    pub results: Vec<String>,
    /// How the engine goes about it: which mesh axes divide what, and what moves for that.
    pub strategy: String,
    /// What that was chosen from, and why. Empty for moves, and where a handler runs the op.
    pub alternatives: Vec<Alternative>,
    /// Bytes that this rank sent to others.
    pub sent: u64,
    /// Bytes that this rank received from others.
    pub received: u64,
}

/// What a piece of a program did, op by op; prints itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// In order. Of an op that is made of others, those.
    pub steps: Vec<ExplainedStep>,
}

impl Explanation {
    /// The steps in which this rank sent or received anything.
    pub fn moves(&self) -> impl Iterator<Item = &ExplainedStep> {
        self.steps
            .iter()
            .filter(|step| step.sent + step.received > 0)
    }
}

impl fmt::Display for ExplainedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operands, results) = (self.operands.join(", "), self.results.join(", "));
        write!(f, "{}: {operands} -> {results}", self.op)?;
        if self.sent + self.received > 0 {
            write!(f, "; sent {} bytes, received {}", self.sent, self.received)?;
        }
        (self.strategy.lines()).try_for_each(|line| write!(f, "\n    {line}"))?;
        (self.alternatives.iter()).try_for_each(|other| write!(f, "\n      {other}"))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "{i}. {step}")?;
        }
        Ok(())
    }
}

impl Context {
    /// Runs `f` and tells what its ops did: the layouts they met, how the engine served them and what else it considered, and what
    /// this rank sent and received. Backward passes are told of too.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let told = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (x, w) = (mesh.ones([4, 6], shard(1))?, mesh.ones([6, 3], replicate())?);
    ///     let (y, why) = ctx.explain(|| x.matmul(&w)?.relu())?;
    ///     y.expect_layout(replicate())?;
    ///     assert_eq!(why.moves().map(|step| step.op).collect::<Vec<_>>(), ["redistribute"]); // the sum is taken, for relu
    ///     Ok(why.to_string())
    /// })?;
    /// assert!(told[0].starts_with("0. matmul: f32 [4, 6] S(1), f32 [6, 3] R -> f32 [4, 3] P(sum)"), "{}", told[0]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As `f`.
    ///
    /// # Errors
    /// What `f` reports.
    pub fn explain<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<(T, Explanation)> {
        let outer = self.told().begin();
        let result = f();
        let steps = self.told().end(outer);
        Ok((result?, Explanation { steps }))
    }
}

impl Context {
    /// Runs `f` with the results of its ops pinned: each op takes the cheapest strategy that leaves its (first) result so.
    ///
    /// Which strategy is the cheapest depends on the sizes, so that layouts may change with the batch; what a program has come to
    /// rely on, it pins. `docs/layouts.md` has the law of the choice, with an example.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// launch(4, |ctx| {
    ///     let mesh = ctx.mesh_of(4)?;
    ///     let (x, w) = (mesh.ones([64, 128], shard(0))?, mesh.ones([128, 128], shard(0))?);
    ///     x.linear(&w, None)?.expect_layout(shard(1))?; // x is the smaller one, and moves
    ///     let y = ctx.pinned(shard(0), || x.linear(&w, None))?;
    ///     y.expect_layout(shard(0))?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As `f`, with the same placements on all ranks, which is found out like any other difference between programs.
    ///
    /// # Errors
    /// [`OpError::Pinned`], with what would be possible, for an op without a strategy that leaves its result so; what `f` reports.
    #[track_caller]
    pub fn pinned<T>(
        &self,
        placements: impl Into<Placements>,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        struct Unpin<'a>(&'a Engine, Option<Pin>);
        impl Drop for Unpin<'_> {
            fn drop(&mut self) {
                self.0.set_pin(self.1.take());
            }
        }
        let placements = placements.into();
        let pin = Pin::new(format!("{placements:?}"), move |mesh, shape| {
            placements.layout(mesh, shape).map_err(|e| e.to_string())
        });
        let engine = self.engine();
        let _unpin = Unpin(engine, engine.set_pin(Some(pin)));
        f()
    }
}

impl ShardTensor {
    /// This tensor, if it lies as expected: an assumption that a program makes, written down.
    ///
    /// # Collective
    /// None: it looks at the layout alone, which is equal on all ranks.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) naming both layouts if it lies otherwise; as [`Placements::layout`].
    #[track_caller]
    pub fn expect_layout(&self, placements: impl Into<Placements>) -> Result<&Self> {
        let expected = placements
            .into()
            .layout(self.layout().mesh(), self.shape())?;
        match expected == *self.layout() {
            true => Ok(self),
            false => Err(Error::argument(
                "expect_layout",
                expected.to_string(),
                format!("{} of shape {:?}", self.layout(), self.shape()),
                "redistribute it, or see with `ctx.explain` which op made it so",
            )),
        }
    }
}

/// What has been told since somebody asked; `None` while nobody does.
#[derive(Default)]
pub(crate) struct Told(RefCell<Option<Vec<ExplainedStep>>>);

impl Told {
    fn is_asked(&self) -> bool {
        self.0.borrow().is_some()
    }

    fn begin(&self) -> Option<Vec<ExplainedStep>> {
        self.0.replace(Some(Vec::new()))
    }

    /// What was told; whoever asked before hears of it too.
    fn end(&self, outer: Option<Vec<ExplainedStep>>) -> Vec<ExplainedStep> {
        let steps = self.0.take().unwrap_or_default();
        self.0.replace(outer.map(|mut outer| {
            outer.extend(steps.iter().cloned());
            outer
        }));
        steps
    }
}

/// The engine, telling what it does if somebody asks.
pub(crate) struct Telling {
    pub(crate) engine: Rc<Engine>,
    pub(crate) world: Rc<dyn Communicator>,
    pub(crate) told: Rc<Told>,
}

impl Telling {
    fn tell(
        &self,
        op: &'static str,
        operands: impl FnOnce(&[Value]) -> Vec<String>,
        strategy: impl FnOnce() -> (String, Vec<Alternative>),
        run: impl FnOnce() -> Result<Values, OpError>,
    ) -> Result<Values, OpError> {
        if !self.told.is_asked() {
            return run();
        }
        let before = self.world.ledger().snapshot();
        let results = run()?;
        let moved = self.world.ledger().since(&before);
        let (strategy, alternatives) = strategy();
        let step = ExplainedStep {
            op,
            operands: operands(&results),
            results: results.iter().map(describe).collect(),
            strategy,
            alternatives,
            sent: moved.sent_bytes,
            received: moved.bytes,
        };
        if let Some(steps) = &mut *self.told.0.borrow_mut() {
            steps.push(step);
        }
        Ok(results)
    }
}

impl Telling {
    fn tell_move(
        &self,
        name: &'static str,
        (from, to): (&Layout, &Layout),
        why: &str,
        run: impl FnOnce() -> Result<Value, OpError>,
    ) -> Result<Value, OpError> {
        let strategy = || (format!("{from} to {to}{why}"), Vec::new());
        // A move changes neither type nor shape.
        let operands = |moved: &[Value]| moved.iter().map(|v| described(v, from)).collect();
        let run = || Ok(Values::from_buf([run()?]));
        let mut moved = self.tell(name, operands, strategy, run)?;
        // One went in, so one comes out.
        Ok(moved.remove(0))
    }
}

impl Exec for Telling {
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values, OpError> {
        if !self.told.is_asked() {
            return self.engine.results(op, inputs);
        }
        let strategy = || {
            let arrays: Vec<_> = inputs.iter().map(|v| v.array()).collect();
            let strategy = self.engine.explain(&op, &arrays);
            let alternatives = self.engine.alternatives(&op, &arrays);
            let strategy = strategy.unwrap_or_else(|e| e.to_string());
            (strategy, alternatives.unwrap_or_default())
        };
        let operands = |_: &[Value]| inputs.iter().map(|v| describe(v)).collect();
        self.tell(op.name(), operands, strategy, || {
            self.engine.results(op.clone(), inputs)
        })
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value, OpError> {
        self.tell_move("redistribute", (value.layout(), to), "", || {
            self.engine.redistribute(value, to)
        })
    }

    fn gather_start(&self, value: &Value, to: &Layout) -> Result<PlanHandle, OpError> {
        self.engine.gather_start(value, to)
    }

    fn gather_wait(&self, gather: PlanHandle) -> Result<Value, OpError> {
        let why = ": a parameter that is pinned to be gathered wherever an op uses it";
        let (from, to) = (gather.plan().from().clone(), gather.plan().to().clone());
        self.tell_move("gather", (&from, &to), why, || {
            self.engine.gather_wait(gather)
        })
    }

    fn moves_are_explicit(&self) -> bool {
        self.engine.moves_are_explicit()
    }

    fn set_terms(&self, terms: usize) -> usize {
        self.engine.set_terms(terms)
    }

    fn sums_first(&self, op: &Arc<dyn Op>, inputs: &[&Value]) -> Result<Sums, OpError> {
        self.engine.sums_first(op, inputs)
    }
}

fn describe(value: &Value) -> String {
    described(value, value.layout())
}

fn described(value: &Value, layout: &Layout) -> String {
    format!("{} {:?} {layout}", value.dtype(), value.shape())
}

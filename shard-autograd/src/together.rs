//! Cotangents that are made together: those of the pieces of one value, or of a weight that many small products share.

use crate::Result;
use crate::accumulate::Mover;
use crate::backward::check_cotangent;
use crate::node::Outlet;
use shard_ops::{Op, Terms, Value, Wait, Waiting};
use smallvec::SmallVec;
use std::sync::Arc;

/// Applications whose cotangents of one value are still to be made, all of which can be made together.
#[derive(Default)]
pub(crate) struct Together {
    of: Vec<Application>,
    /// Which operand of them the value is, and which [others](Wait::with) can be made with them.
    with: (usize, u128),
    elements: usize,
}

/// An application whose cotangent of an operand waits.
pub(crate) struct Application {
    op: Arc<dyn Op>,
    operand: usize,
    with: u128,
    inputs: SmallVec<[Value; 3]>,
    cotangent: Value,
    /// Of what it is made of.
    elements: usize,
}

impl Application {
    /// Of an op to these inputs, of which it holds no more than the cotangent is made of.
    pub(crate) fn new(
        op: &Arc<dyn Op>,
        (operand, wait): (usize, Wait),
        inputs: &[Value],
        cotangent: &Value,
    ) -> Self {
        let extent = |value: &Value| value.shape().iter().product::<usize>();
        let mut elements = extent(cotangent);
        let held = |(i, input): (usize, &Value)| match wait.keeps.input(i) {
            true => {
                elements += extent(input);
                input.clone()
            }
            false => Value::new(input.array().without_data()),
        };
        Self {
            op: op.clone(),
            operand,
            with: wait.with,
            inputs: inputs.iter().enumerate().map(held).collect(),
            cotangent: cotangent.clone(),
            elements,
        }
    }
}

impl Together {
    /// How many wait at most. What makes them is an op of as many operands, which is planned once for each number of them.
    const MOST: usize = 64;

    /// Whether this application's cotangent can be made with those of the others.
    pub(crate) fn takes(&self, one: &Application) -> bool {
        self.of.is_empty() || self.with == (one.operand, one.with)
    }

    pub(crate) fn push(&mut self, one: Application) {
        self.elements += one.elements;
        self.with = (one.operand, one.with);
        self.of.push(one);
    }

    /// Whether it is time to make them: what waits is as large as what is made of it. So a value that was split is put together when
    /// the last piece arrives, pieces that overlap take no more memory than their sum, and samples no more than the weight.
    pub(crate) fn is_full(&self, outlet: &Outlet) -> bool {
        let whole = outlet.layout.shape().iter().product::<usize>();
        self.elements >= whole || self.of.len() >= Self::MOST
    }

    /// The sum of what waits, for the value that comes out here, which so many terms are summed for.
    pub(crate) fn make(
        &mut self,
        mover: Mover<'_>,
        outlet: &Outlet,
        terms: usize,
    ) -> Result<Option<Value>> {
        let of = std::mem::take(self).of;
        let Some(Application { op, operand, .. }) = of.first() else {
            return Ok(None);
        };
        let _span = tracing::trace_span!("vjp", op = op.name(), together = of.len()).entered();
        let waiting: Vec<Waiting<'_>> = of
            .iter()
            .map(|one| Waiting {
                op: &*one.op,
                inputs: &one.inputs,
                cotangent: &one.cotangent,
            })
            .collect();
        let told = Terms {
            exec: &**mover.recorder.inner(),
            of: &[terms.div_ceil(of.len())],
        };
        let sum = told.told(0, || op.vjp_together(mover.exec(), *operand, &waiting))?;
        let fix = "`vjp_together` must give one of the operand's";
        let what = || format!("the cotangent of operand {operand}");
        check_cotangent(op.name(), what, outlet, &sum, fix)?;
        Ok(Some(sum))
    }
}

//! Cotangents that are made together: those of the pieces of one value.

use crate::Result;
use crate::accumulate::Mover;
use crate::backward::check_cotangent;
use crate::node::Outlet;
use shard_ops::{Op, Value, Waiting};
use std::any::Any;
use std::sync::Arc;

/// Ops whose cotangents of one value are still to be made, with the cotangents of what they gave.
#[derive(Default)]
pub(crate) struct Together {
    of: Vec<(Arc<dyn Op>, Value)>,
    elements: usize,
}

impl Together {
    /// How many wait at most. What makes them is an op of as many operands, which is planned once for each number of them.
    const MOST: usize = 64;

    /// Whether this op's cotangent can be made with those of the others.
    pub(crate) fn takes(&self, op: &Arc<dyn Op>) -> bool {
        let type_of = |op: &Arc<dyn Op>| {
            let op: &dyn Any = &**op;
            op.type_id()
        };
        self.of
            .first()
            .is_none_or(|(first, _)| type_of(first) == type_of(op))
    }

    pub(crate) fn push(&mut self, op: &Arc<dyn Op>, cotangent: Value) {
        self.elements += cotangent.shape().iter().product::<usize>();
        self.of.push((op.clone(), cotangent));
    }

    /// Whether it is time to make them: what waits is as large as what is made of it. So a value that was split is put together when
    /// the last piece arrives, and pieces that overlap take no more memory than their sum.
    pub(crate) fn is_full(&self, outlet: &Outlet) -> bool {
        let whole = outlet.layout.shape().iter().product::<usize>();
        self.elements >= whole || self.of.len() >= Self::MOST
    }

    /// The sum of what waits, for the value that comes out here.
    pub(crate) fn make(&mut self, mover: Mover<'_>, outlet: &Outlet) -> Result<Option<Value>> {
        let of = std::mem::take(self).of;
        let Some((op, _)) = of.first() else {
            return Ok(None);
        };
        let _span = tracing::trace_span!("vjp", op = op.name(), together = of.len()).entered();
        let waiting: Vec<Waiting<'_>> = of
            .iter()
            .map(|(op, cotangent)| Waiting {
                op: &**op,
                cotangent,
            })
            .collect();
        let sum = op.vjp_together(mover.exec(), &waiting)?;
        let fix = "`vjp_together` must give one of the input's";
        check_cotangent(
            op.name(),
            || "the cotangent of the input".into(),
            outlet,
            &sum,
            fix,
        )?;
        Ok(Some(sum))
    }
}

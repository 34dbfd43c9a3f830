//! Sums of rows of a table with weights: several indices name the rows of one place.
//!
//! Of the table, the weights and what is at the places three ops each find one from the others, and are each other's derivatives.

use super::rows::{Accesses, Picked};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OperandBox, Reduction, Result,
    Rule, Saved, Value, key_of,
};
use shard_comm::{DType, Element};
use shard_kernels::View;
use shard_kernels::rows::{Rows, row_dots, spread, weigh};
use shard_spec::ReduceOp;
use smallvec::smallvec;
use std::borrow::Cow;
use std::sync::Arc;

/// Sums, for every place, of the rows that an index names in its last dim, each times a weight: inputs are the table, the index, and the
/// weights, which have the index's shape.
#[derive(Clone, Debug)]
pub(crate) struct Weigh(pub(crate) Picked);

/// The derivative of [`Weigh`] by the table: inputs are the table, which lends its layout, the index, the weights, and what is at the places.
#[derive(Clone, Debug)]
struct Spread(Picked);

/// The derivative of [`Weigh`] by the weights: inputs are the table, the index, and what is at the places.
#[derive(Clone, Debug)]
struct RowDots(Picked);

/// The sums of rows of `table` with `weights`.
pub(super) fn weighed(
    exec: &dyn Exec,
    picked: &Picked,
    [table, index, weights]: [&Value; 3],
) -> Result<Value> {
    exec.apply1(
        Arc::new(Weigh(picked.clone())),
        &[table, &index.detach(), weights],
    )
}

fn spread_over(
    exec: &dyn Exec,
    picked: &Picked,
    [table, index, weights, at_places]: [&Value; 4],
) -> Result<Value> {
    let op = Arc::new(Spread(picked.clone()));
    exec.apply1(op, &[&table.detach(), &index.detach(), weights, at_places])
}

fn dots(exec: &dyn Exec, picked: &Picked, [table, index, at_places]: [&Value; 3]) -> Result<Value> {
    let op = Arc::new(RowDots(picked.clone()));
    exec.apply1(op, &[table, &index.detach(), at_places])
}

/// How dims are indexed, with those of places for what is picked, and the shape of these.
fn accesses(
    picked: &Picked,
    name: &'static str,
    inputs: &[Meta],
    expected: usize,
) -> Result<(Accesses, DType)> {
    let mut made = picked.accesses(name, inputs, expected)?;
    let last = picked.last_own(inputs[0].shape.len());
    made.picked.remove(last);
    made.shape.remove(last);
    let floats: Vec<Meta> = (inputs.iter().enumerate())
        .filter(|(i, _)| *i != 1)
        .map(|(_, meta)| meta.clone())
        .collect();
    Ok((made, float_types(name, &floats)?))
}

/// Where rows lie in the table and at the places.
fn geometry(picked: &Picked, table: &OperandBox, index: &OperandBox, places: &OperandBox) -> Rows {
    let (last, mut places) = (picked.last_own(table.shape.len()), places.clone());
    places
        .shape
        .insert(last, index.shape.last().copied().unwrap_or(1));
    places.strides.insert(last, 0);
    picked.geometry(table, &places)
}

/// Elements side by side.
fn side_by_side<'a, T: Element>(view: &View<'a, T>) -> Cow<'a, [T]> {
    view.as_slice()
        .map_or_else(|| Cow::Owned(view.to_vec()), Cow::Borrowed)
}

impl Op for Weigh {
    fn name(&self) -> &'static str {
        "weigh_rows"
    }

    fn key(&self) -> u128 {
        key_of("weigh_rows", &self.0)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (made, dtype) = accesses(&self.0, self.name(), inputs, 3)?;
        (made.rule)
            .input(made.table)
            .input(made.index.clone())
            .input(made.index)
            .output(made.picked, made.shape, dtype)
            .routes(self.0.routes().masks())
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 2]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let [table, index, ..] = &call.cx.inputs[..] else {
            unreachable!("the rule has three inputs")
        };
        let rows = geometry(&self.0, table, index, &call.cx.outputs[0]);
        with_float!(call.dtype(), T => {
            let (table, keys) = (call.input::<T>(0), call.input::<i64>(1));
            let weights = call.input::<T>(2);
            let (weights, ghosts) = (side_by_side(&weights), call.input::<T>(3));
            let mut out = call.output::<T>(0);
            weigh(&rows, table.data(), ghosts.data(), keys.data(), &weights, out.data_mut());
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::INPUTS
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [table, index, weights] = saved.inputs else {
            unreachable!("the rule has three inputs")
        };
        saved.pull_back(cotangents, |dy, operand| match operand {
            0 => spread_over(exec, &self.0, [table, index, weights, dy]).map(Some),
            2 => dots(exec, &self.0, [table, index, dy]).map(Some),
            _ => Ok(None),
        })
    }
}

impl Op for Spread {
    fn name(&self) -> &'static str {
        "spread_rows"
    }

    fn key(&self) -> u128 {
        key_of("spread_rows", &self.0)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (made, dtype) = accesses(&self.0, self.name(), inputs, 4)?;
        (made.rule)
            .input(made.table.clone())
            .input(made.index.clone())
            .input(made.index)
            .input(made.picked)
            .output(made.table, inputs[0].shape.clone(), dtype)
            .routes(self.0.routes().masks())
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .unread(0)
            .linearity(Linearity::Each(smallvec![2, 3]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let [_, index, _, places, ..] = &call.cx.inputs[..] else {
            unreachable!("the rule has four inputs")
        };
        let rows = geometry(&self.0, &call.cx.outputs[0], index, places);
        let is_first = call.cx.fold.first;
        with_float!(call.dtype(), T => {
            let (keys, weights) = (call.input::<i64>(1), call.input::<T>(2));
            let (weights, places) = (side_by_side(&weights), call.input::<T>(3));
            let (mut table, mut away) = call.output_pair::<T, T>();
            // A call that is not the first goes on with what it finds.
            if is_first {
                table.data_mut().fill(0.0);
            }
            away.data_mut().fill(0.0);
            spread(&rows, table.data_mut(), away.data_mut(), keys.data(), &weights, places.data());
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1, 2, 3])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [_, index, weights, places] = saved.inputs else {
            unreachable!("the rule has four inputs")
        };
        saved.pull_back(cotangents, |dy, operand| match operand {
            2 => dots(exec, &self.0, [dy, index, places]).map(Some),
            3 => weighed(exec, &self.0, [dy, index, weights]).map(Some),
            _ => Ok(None),
        })
    }
}

impl Op for RowDots {
    fn name(&self) -> &'static str {
        "row_dots"
    }

    fn key(&self) -> u128 {
        key_of("row_dots", &self.0)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (made, dtype) = accesses(&self.0, self.name(), inputs, 3)?;
        (made.rule)
            .input(made.table)
            .input(made.index.clone())
            .input(made.picked)
            .output(made.index, inputs[1].shape.clone(), dtype)
            .routes(self.0.routes().masks())
            .flops(2.0)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 2]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let [table, index, places, ..] = &call.cx.inputs[..] else {
            unreachable!("the rule has three inputs")
        };
        let rows = geometry(&self.0, table, index, places);
        with_float!(call.dtype(), T => {
            let (table, keys) = (call.input::<T>(0), call.input::<i64>(1));
            let (places, ghosts) = (call.input::<T>(2), call.input::<T>(3));
            let mut out = call.output::<T>(0);
            row_dots(&rows, table.data(), ghosts.data(), keys.data(), places.data(), out.data_mut());
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::INPUTS
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let [table, index, places] = saved.inputs else {
            unreachable!("the rule has three inputs")
        };
        saved.pull_back(cotangents, |dy, operand| match operand {
            0 => spread_over(exec, &self.0, [table, index, dy, places]).map(Some),
            2 => weighed(exec, &self.0, [table, index, dy]).map(Some),
            _ => Ok(None),
        })
    }
}

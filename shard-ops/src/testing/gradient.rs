//! The derivative of an op: against differences of its values on one rank, and on several ranks against one.

use super::compare::index_of;
use super::probe::{first_difference, inputs_of};
use super::{Data, Difference, OpSample, Probe, Tensor, place, whole};
use crate::error::InOp;
use crate::{Engine, EngineOptions, Exec, Op, OpError, Result, Saved, Value};
use shard_comm::DType;
use shard_redistribute::MeshComm;
use shard_spec::numel;
use std::rc::Rc;
use std::sync::Arc;

/// The gradients of an op's operands, for cotangents that look random.
pub(super) struct Slopes {
    op: Arc<dyn Op>,
    /// By operand; empty if the op has no derivative.
    gradients: Vec<Option<Value>>,
    /// Of which operands a gradient was asked for.
    needs: Vec<bool>,
}

/// An element at which the derivative is wrong.
pub(super) struct Slope {
    pub(super) operand: usize,
    pub(super) index: Vec<usize>,
    pub(super) expected: f64,
    /// `None` where the vjp gave no gradient.
    pub(super) got: Option<f64>,
}

impl Slopes {
    /// Applies the op and its vjp. What is wrong with the list that the vjp gives is told in words.
    pub(super) fn of(
        exec: &dyn Exec,
        op: &Arc<dyn Op>,
        inputs: &[Value],
    ) -> Result<Result<Self, String>> {
        let outputs = exec.apply(op.clone(), &inputs.iter().collect::<Vec<_>>())?;
        let cotangents = (outputs.iter().enumerate())
            .map(|(o, value)| cotangent(o, value))
            .collect::<Result<Vec<_>>>()?;
        // As a tape does, which keeps no more.
        let keeps = op.keeps();
        let kept = |values: &[Value], keeps: &dyn Fn(usize) -> bool| -> Vec<Value> {
            let each = values.iter().enumerate().map(|(i, value)| match keeps(i) {
                true => value.clone(),
                false => Value::new(value.array().without_data()),
            });
            each.collect()
        };
        let inputs = kept(inputs, &|i| keeps.input(i));
        let outputs = kept(&outputs, &|o| keeps.output(o));
        let mut needs: Vec<bool> = inputs.iter().map(|v| v.dtype().is_float()).collect();
        let gradients = loop {
            let saved = Saved {
                inputs: &inputs,
                outputs: &outputs,
                needs: &needs,
                terms: None,
            };
            match op.vjp(exec, &saved, &cotangents) {
                Ok(gradients) => break gradients,
                // Not by this operand, or by none.
                Err(OpError::NoVjp { op: name, operand }) if name == op.name() => {
                    match needs.get_mut(operand) {
                        Some(needed) if *needed => *needed = false,
                        _ => {
                            return Ok(Ok(Self {
                                op: op.clone(),
                                gradients: Vec::new(),
                                needs: Vec::new(),
                            }));
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        };
        Ok(match misfit(&inputs, &gradients) {
            Some(problem) => Err(problem),
            None => Ok(Self {
                op: op.clone(),
                gradients,
                needs,
            }),
        })
    }

    /// As whole tensors.
    pub(super) fn gradients(&self) -> Result<Vec<Option<Tensor>>> {
        let whole = |g: &Option<Value>| {
            let read = g.as_ref().map(|g| whole(g.array()).in_op(self.op.name()));
            read.transpose()
        };
        self.gradients.iter().map(whole).collect()
    }

    /// Compares at most so many elements per operand with central differences of the op's values, where all are in `f64`; on one
    /// rank. An operand without a gradient counts as one of zeros. How many, or the first that is off.
    pub(super) fn check(&self, inputs: &[Value], most: usize) -> Result<Result<usize, Slope>> {
        const STEP: f64 = 1e-6;
        let mut compared = 0;
        if inputs
            .iter()
            .any(|v| v.dtype().is_float() && v.dtype() != DType::F64)
        {
            return Ok(Ok(0));
        }
        for (operand, gradient) in self.gradients()?.iter().enumerate() {
            let gradient = match gradient.as_ref().map(|g| &*g.data) {
                Some(Data::F64(gradient)) => Some(gradient),
                None if self.needs[operand] => None,
                _ => continue,
            };
            let shape = inputs[operand].shape();
            let count = numel(shape);
            for at in (0..count).step_by(count.div_ceil(most.max(1)).max(1)) {
                let up = self.moved(inputs, operand, at, STEP)?;
                let down = self.moved(inputs, operand, at, -STEP)?;
                let expected = (up - down) / (2.0 * STEP);
                let given = gradient.map(|gradient| gradient[at]);
                let got = given.unwrap_or(0.0);
                // The digits that the difference of two such numbers has.
                let bound = 1e-5 * expected.abs() + 1e-6 * up.abs().max(1.0);
                if (expected - got).is_nan() || (expected - got).abs() > bound {
                    return Ok(Err(Slope {
                        operand,
                        index: index_of(at, shape),
                        expected,
                        got: given,
                    }));
                }
                compared += usize::from(given.is_some());
            }
        }
        Ok(Ok(compared))
    }

    /// The sum of results times cotangents, with one element moved.
    fn moved(&self, inputs: &[Value], operand: usize, at: usize, by: f64) -> Result<f64> {
        let name = self.op.name();
        let mut inputs = inputs.to_vec();
        let array = inputs[operand].array();
        let Data::F64(mut values) = Data::clone(&whole(array).in_op(name)?.data) else {
            return Ok(f64::NAN);
        };
        values[at] += by;
        let moved = Tensor::new(array.shape(), values);
        let moved = place(array.cx(), array.layout(), &moved, DType::F64).in_op(name)?;
        inputs[operand] = Value::new(moved);
        let engine = Engine::new(EngineOptions::default());
        let outputs = engine.apply(self.op.clone(), &inputs.iter().collect::<Vec<_>>())?;
        let mut sum = 0.0;
        for (o, value) in outputs.iter().enumerate() {
            let (Data::F64(values), Data::F64(weights)) = (
                &*whole(value.array()).in_op(name)?.data,
                &*drawn(o, value.shape()).data,
            ) else {
                continue;
            };
            sum += values.iter().zip(weights).map(|(v, w)| v * w).sum::<f64>();
        }
        Ok(sum)
    }
}

/// What is wrong with a list of gradients of these operands.
fn misfit(inputs: &[Value], gradients: &[Option<Value>]) -> Option<String> {
    if gradients.len() != inputs.len() {
        let (got, expected) = (gradients.len(), inputs.len());
        return Some(format!(
            "expected an entry for each of {expected} operands, got {got}; give None for those without a gradient"
        ));
    }
    let said = |v: &Value| format!("{} {:?}", v.dtype(), v.shape());
    let pairs = inputs.iter().zip(gradients).enumerate();
    let mut given = pairs.filter_map(|(operand, (x, dx))| Some((operand, x, dx.as_ref()?)));
    let (operand, x, dx) =
        given.find(|(_, x, dx)| x.dtype() != dx.dtype() || x.shape() != dx.shape())?;
    Some(format!(
        "the gradient of operand {operand} is {}, expected {}, as the operand is",
        said(dx),
        said(x)
    ))
}

/// Whether an op's gradients under a probe's layouts are as on one rank.
///
/// # Collective
/// All members of the mesh.
pub(super) fn difference(
    cx: &Rc<MeshComm>,
    sample: &OpSample,
    probe: &Probe,
    expected: &[Option<Tensor>],
) -> Option<Difference> {
    let engine = Engine::new(EngineOptions::default());
    let found =
        inputs_of(cx, sample, probe).and_then(|inputs| Slopes::of(&*engine, &sample.op, &inputs));
    let problem = match found {
        Err(error) => Some(format!("gradient: {error}")),
        Ok(Err(misfit)) => Some(format!("gradient: {misfit}")),
        Ok(Ok(Slopes {
            gradients: found, ..
        })) if found.len() != expected.len() => {
            Some("gradient: there is one on one rank or here, not both".to_owned())
        }
        Ok(Ok(Slopes {
            gradients: found, ..
        })) => {
            let pairs = expected.iter().zip(&found).enumerate();
            let problems = pairs.filter_map(|(i, pair)| match pair {
                (Some(expected), Some(found)) => {
                    let what = format!("gradient of operand {i}");
                    first_difference(
                        &what,
                        sample,
                        std::slice::from_ref(expected),
                        std::slice::from_ref(found),
                    )
                }
                (None, None) => None,
                _ => Some(format!(
                    "gradient of operand {i}: there is one on one rank or here, not both"
                )),
            });
            // All, as for outputs: ranks may find different ones.
            problems.collect::<Vec<_>>().into_iter().next()
        }
    };
    problem.map(|problem| Difference::of(sample, probe, problem))
}

/// Weights of an output's elements, which depend on its number alone.
fn drawn(output: usize, shape: &[usize]) -> Tensor {
    Tensor::drawn(shape, output as u64)
}

/// What an output's gradient is said to be: in the layout of gradients, which is the value's but for sums.
fn cotangent(output: usize, value: &Value) -> Result<Option<Value>> {
    if !value.dtype().is_float() {
        return Ok(None);
    }
    let layout = value.layout().with_partial_reduced();
    let whole = drawn(output, value.shape());
    let placed = place(value.array().cx(), &layout, &whole, value.dtype()).in_op("cotangent")?;
    Ok(Some(Value::new(placed)))
}

//! The derivative of a formula, which is a formula as well: of the operands and the cotangents of results it gives the operands'
//! cotangents.

use super::Fused;
use super::symbol::{Steps, Symbol};
use crate::{OpError, Result};
use shard_kernels::fused::{Formula, FormulaStep};
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Form;
use std::sync::Arc;

/// What a formula gives back to its operands.
#[derive(Debug)]
pub(super) struct Gradient {
    /// Of the operands and then of the cotangents that are given.
    pub(super) fused: Arc<Fused>,
    /// Which of its results is the cotangent of each operand, if it has one.
    pub(super) of: Vec<Option<usize>>,
}

/// The gradient for the operands that need one, from cotangents of the results that have one.
pub(super) fn gradient(of: &Fused, needs: &[bool], given: &[bool]) -> Result<Gradient> {
    let formula = &of.formula;
    let from = (of.slopes.as_ref()).map_or(formula.steps(), |slopes| &slopes.steps);
    let steps = Steps::of(from);
    let mut operands = formula.operands().to_vec();
    let mut next: usize = operands.iter().sum();
    let mut back = Back {
        steps: &steps,
        of: vec![None; from.len()],
    };
    if let Some(slopes) = &of.slopes {
        operands.push(1);
        let dy = steps.symbol(FormulaStep::Input(next));
        for (part, slope) in slopes.of.iter().enumerate() {
            let input = steps.find(&FormulaStep::Input(part));
            if let (Some(input), Some(slope)) = (input, *slope) {
                back.add(input, dy * steps.at(slope));
            }
        }
        return Ok(back.made(of, operands, needs));
    }
    let results = formula.results().iter().zip(given);
    for (parts, _) in results.filter(|&(_, &given)| given) {
        operands.push(parts.len());
        for &result in parts {
            back.add(result, steps.symbol(FormulaStep::Input(next)));
            next += 1;
        }
    }
    for at in (0..formula.steps().len()).rev() {
        if let Some(dy) = back.of[at] {
            back.through(of.name, &formula.steps()[at], dy)?;
        }
    }
    Ok(back.made(of, operands, needs))
}

/// Cotangents of steps, which are gathered from the last one on.
struct Back<'s> {
    steps: &'s Steps,
    of: Vec<Option<Symbol<'s>>>,
}

impl<'s> Back<'s> {
    fn add(&mut self, to: usize, more: Symbol<'s>) {
        self.of[to] = Some(match self.of[to] {
            Some(sum) => sum + more,
            None => more,
        });
    }

    /// The formula of the cotangents of the operands that need one.
    fn made(self, of: &Fused, operands: Vec<usize>, needs: &[bool]) -> Gradient {
        let (formula, steps) = (&of.formula, self.steps);
        let (mut results, mut first) = (Vec::<Vec<usize>>::new(), 0);
        let mut found = Vec::new();
        for (&parts, &needed) in formula.operands().iter().zip(needs) {
            let cotangents: Vec<_> = (first..first + parts)
                .map(|part| self.of_part(part))
                .collect();
            first += parts;
            found.push((needed && cotangents.iter().any(Option::is_some)).then(|| {
                let zero = || steps.symbol(FormulaStep::Number(0.0));
                let parts = cotangents.iter().map(|part| part.unwrap_or_else(zero).at());
                let parts: Vec<usize> = parts.collect();
                // Operands that were added have the same.
                let known = results.iter().position(|known| *known == parts);
                known.unwrap_or_else(|| {
                    results.push(parts);
                    results.len() - 1
                })
            }));
        }
        let (steps, results) = read(&steps.to_vec(), results);
        Gradient {
            fused: Fused::of_formula(of.name, Formula::new(steps, operands, results)),
            of: found,
        }
    }

    /// The cotangent of a part of an operand, if it has one.
    fn of_part(&self, part: usize) -> Option<Symbol<'s>> {
        let at = self.steps.find(&FormulaStep::Input(part))?;
        self.of.get(at).copied().flatten()
    }

    /// From a step to those that it reads.
    fn through(&mut self, op: &'static str, step: &FormulaStep, dy: Symbol<'s>) -> Result<()> {
        let steps = self.steps;
        match *step {
            FormulaStep::Input(_) | FormulaStep::Number(_) => {}
            FormulaStep::Map { map, order, of } => {
                let dx = match (map.form(), order) {
                    (Form::Linear, 0) => dy.map(map),
                    (Form::Shift, 0) => dy,
                    (_, 0..=2) => dy * steps.at(of).derived(map, order + 1),
                    _ => return Err(OpError::NoVjp { op, operand: 0 }),
                };
                self.add(of, dx);
            }
            FormulaStep::Binary { kind, of: [a, b] } => {
                let [x, y] = [steps.at(a), steps.at(b)];
                let [dx, dy] = match kind {
                    Binary::Add => [dy, dy],
                    Binary::Sub => [dy, -dy],
                    Binary::Mul => [dy * y, dy * x],
                    // The square of the divisor may be zero or infinite where neither quotient is.
                    Binary::Div => [dy / y, -(dy * (x / y / y))],
                    _ => return Err(OpError::NoVjp { op, operand: 0 }),
                };
                self.add(a, dx);
                self.add(b, dy);
            }
            FormulaStep::Below([a, b, x, y]) => {
                let zero = steps.symbol(FormulaStep::Number(0.0));
                let [low, high] = [a, b].map(|at| steps.at(at));
                self.add(x, low.below(high, dy, zero));
                self.add(y, low.below(high, zero, dy));
            }
        }
        Ok(())
    }
}

/// The steps that results need, and their new numbers.
fn read(
    steps: &[FormulaStep],
    mut results: Vec<Vec<usize>>,
) -> (Vec<FormulaStep>, Vec<Vec<usize>>) {
    let mut is_read = vec![false; steps.len()];
    for &result in results.iter().flatten() {
        is_read[result] = true;
    }
    for at in (0..steps.len()).rev() {
        if is_read[at] {
            steps[at].reads().for_each(|read| is_read[read] = true);
        }
    }
    let (mut kept, mut number) = (Vec::new(), vec![0; steps.len()]);
    for (at, step) in steps.iter().enumerate() {
        if is_read[at] {
            number[at] = kept.len();
            kept.push(step.renumbered(|read| number[read]));
        }
    }
    for result in results.iter_mut().flatten() {
        *result = number[*result];
    }
    (kept, results)
}

//! Choices worth comparing: those that the operands' own shardings suggest.

use super::choice::Choice;
use super::intervals::{Axes, divided, further, shifted};
use crate::rule::Boundaries;
use crate::{Access, Linearity, Rule};
use shard_spec::{DimSharding, Layout, Partition, ReduceOp};

/// Every operand leads once with the others filling in, and once alone; and nothing sharded at all.
pub(super) fn candidates(rule: &Rule, layouts: &[&Layout]) -> Vec<Choice> {
    candidates_from(rule, layouts, &Choice::none(rule))
}

/// These, and before them the same with the first result in the lead, which is to lie so.
pub(super) fn candidates_yielding(
    rule: &Rule,
    layouts: &[&Layout],
    wanted: &Layout,
) -> Vec<Choice> {
    let mut start = Choice::none(rule);
    let dims = rule.outputs.first().map_or(&[][..], |output| &output.dims);
    for (d, access) in dims.iter().enumerate() {
        let (factor, block, s) = match (access, wanted.sharding(d)) {
            (Access::Factor { factor, block }, Some(s)) => (factor, *block, s),
            (Access::Routed { factor }, Some(s)) => (factor, 1, s),
            _ => continue,
        };
        let partition = divided(&s.partition, block, rule.factors[*factor]);
        if rule.divides(*factor, &partition) {
            start.factors[*factor] = Some(DimSharding {
                axes: s.axes.clone(),
                partition,
            });
        }
    }
    let mut found = candidates_from(rule, layouts, &start);
    for choice in candidates(rule, layouts) {
        if !found.contains(&choice) {
            found.push(choice);
        }
    }
    found
}

fn candidates_from(rule: &Rule, layouts: &[&Layout], start: &Choice) -> Vec<Choice> {
    let mut found: Vec<Choice> = Vec::new();
    let mut push = |choice: Choice| {
        if !found.contains(&choice) {
            found.push(choice);
        }
    };
    for lead in 0..layouts.len() {
        let order: Vec<usize> = std::iter::once(lead)
            .chain((0..layouts.len()).filter(|&i| i != lead))
            .collect();
        push(adopt(rule, layouts, &order, start.clone()));
    }
    for lead in 0..layouts.len() {
        push(adopt(rule, layouts, &[lead], start.clone()));
    }
    push(start.clone());
    found
}

/// Adopts the shardings of the operands in the given order, as far as they do not collide with what is there.
fn adopt(rule: &Rule, layouts: &[&Layout], order: &[usize], mut choice: Choice) -> Choice {
    for &i in order {
        let layout = layouts[i];
        if passes(rule, layouts, i, order, &choice) {
            let fresh: Axes = layout
                .partial_axes()
                .iter()
                .copied()
                .filter(|&a| !choice.uses(a))
                .collect();
            choice.carry.extend(fresh);
            if matches!(rule.linearity, Linearity::Each(_)) {
                choice.carrier = Some(i);
            }
        }
        // Axes of dims that must be whole look for other work when the other dims have theirs.
        let is_whole = |access: &Access| matches!(access, Access::Whole { .. });
        let dims = || rule.inputs[i].iter().enumerate();
        let others = dims().filter(|(_, access)| !is_whole(access));
        for (d, access) in others.chain(dims().filter(|(_, access)| is_whole(access))) {
            if let Some(sharding) = layout.sharding(d) {
                adopt_dim(rule, layout, (d, access), sharding, &mut choice);
            }
        }
    }
    choice
}

/// Adopts the sharding of a dim, unless its axes have other work or its factor is divided already.
fn adopt_dim(
    rule: &Rule,
    layout: &Layout,
    (d, access): (usize, &Access),
    sharding: &DimSharding,
    choice: &mut Choice,
) {
    if let Access::Ring {
        instead: Some(f), ..
    }
    | Access::Whole { instead: Some(f) } = access
        && choice.factors[*f].is_some()
    {
        // Axes that have no other work divide the factor further.
        let fresh: Axes = (sharding.axes.iter().copied())
            .filter(|&a| !choice.uses(a))
            .collect();
        let parts = layout.mesh().part_count(&fresh);
        let own = choice.factors[*f].as_ref();
        if let (false, Some(s)) = (
            fresh.is_empty(),
            further(own, rule.factors[*f], &fresh, parts),
        ) && rule.divides(*f, &s.partition)
        {
            choice.factors[*f] = Some(s);
        }
        return;
    }
    if sharding.axes.iter().any(|&a| choice.uses(a)) {
        return;
    }
    if let Some((factor, partition)) =
        factor_partition(rule, access, layout.shape()[d], &sharding.partition)
        && choice.factors[factor].is_none()
        && rule.divides(factor, &partition)
    {
        choice.factors[factor] = Some(DimSharding {
            axes: sharding.axes.clone(),
            partition,
        });
    }
}

/// Whether operand `i`'s partial sums may pass the op.
fn passes(rule: &Rule, layouts: &[&Layout], i: usize, order: &[usize], choice: &Choice) -> bool {
    let layout = layouts[i];
    if layout.partial_op() != Some(ReduceOp::Sum)
        || layout.partial_axes().iter().any(|&a| choice.uses(a))
    {
        return false;
    }
    match &rule.linearity {
        Linearity::None => false,
        Linearity::Each(operands) => operands.contains(&i) && choice.carry.is_empty(),
        Linearity::Joint => {
            let same = |l: &&Layout| {
                l.partial_op() == Some(ReduceOp::Sum) && l.partial_axes() == layout.partial_axes()
            };
            order[0] == i && layouts.iter().all(same)
        }
    }
}

/// The boundaries a factor gets if it follows an operand's.
fn factor_partition(
    rule: &Rule,
    access: &Access,
    extent: usize,
    own: &Partition,
) -> Option<(usize, Partition)> {
    let n = |f: usize| rule.factors[f];
    let follows = match access {
        Access::Whole { .. } | Access::Ring { .. } => access.instead(),
        _ => access.factor_index(),
    };
    let consecutive = follows.is_some_and(|f| !rule.scatters(f));
    let own = &if consecutive {
        Partition::from(own.to_contiguous())
    } else {
        own.clone()
    };
    Some(match access {
        Access::Whole { instead } => {
            let factor = (*instead)?;
            (factor, Partition::balanced(n(factor), own.parts()))
        }
        // Queries are divided as their keys are, where they are as many.
        Access::Ring { instead, .. } => {
            let factor = (*instead)?;
            if n(factor) == own.extent() {
                (factor, own.clone())
            } else {
                (factor, Partition::balanced(n(factor), own.parts()))
            }
        }
        Access::Factor { factor, block } => (*factor, divided(own, *block, n(*factor))),
        Access::Routed { factor } => (*factor, own.clone()),
        Access::Rows { factor, cuts } => (*factor, cuts.as_ref()?.divides(own)?),
        Access::Window { factor, window, .. } => (*factor, window.anchor(extent, own)),
        Access::Adjoint { factor, window } => (*factor, window.anchor_input(n(*factor), own)),
        Access::Map { factor, law, .. } => (
            *factor,
            match law {
                Boundaries::Scaled => own.scaled(n(*factor)),
                Boundaries::Shifted(by) => shifted(own, *by, n(*factor)),
            },
        ),
    })
}

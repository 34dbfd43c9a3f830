//! The choice among candidates, and what it was made by.

use super::candidates::{candidates, candidates_yielding};
use super::choice::Choice;
use super::cost::cost;
use super::site::Site;
use crate::{OpError, Result, Rule};
use shard_spec::Layout;
use std::fmt;

/// A strategy that was considered, as far as the choice looks at it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Alternative {
    /// The layouts of the results.
    pub outputs: Vec<Layout>,
    /// What it is priced by: the elements that the busiest rank receives, plus those of partial results that must be summed later.
    pub elements: usize,
    /// How many mesh axes share the work.
    pub axes: usize,
    /// Whether it is the one.
    pub taken: bool,
    /// Why it is, or is not.
    pub why: &'static str,
}

impl fmt::Display for Alternative {
    /// Such as `taken: S(1) for 6144 elements, the fewest`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs: Vec<String> = self.outputs.iter().map(ToString::to_string).collect();
        let (outputs, elements, why) = (outputs.join(", "), self.elements, self.why);
        let what = if self.taken { "taken" } else { "not" };
        write!(f, "{what}: {outputs} for {elements} elements, {why}")
    }
}

/// The cheapest candidate and its price: the fewest elements, then the most axes, then the first. If the first result is to lie
/// so, among those that leave it so.
///
/// # Errors
/// [`Pinned`](OpError::Pinned) if none does.
pub(super) fn choose(
    rule: &Rule,
    layouts: &[&Layout],
    wanted: Option<&Layout>,
) -> Result<(usize, Choice)> {
    let mut best: Option<(usize, usize, Choice)> = None;
    for choice in considered(rule, layouts, wanted) {
        if wanted.is_some_and(|wanted| !yields(rule, layouts, &choice, wanted)) {
            continue;
        }
        let ceiling = best.as_ref().map_or(usize::MAX, |b| b.0);
        let Some(elements) = cost(rule, layouts, &choice, ceiling) else {
            continue;
        };
        let axes = choice.axes();
        let better = best
            .as_ref()
            .is_none_or(|(e, a, _)| elements < *e || (elements == *e && axes > *a));
        if better {
            best = Some((elements, axes, choice));
        }
    }
    match (best, wanted) {
        (Some((elements, _, choice)), _) => Ok((elements, choice)),
        (None, None) => Ok((0, Choice::none(rule))),
        (None, Some(wanted)) => {
            let mut possible: Vec<String> = Vec::new();
            for choice in considered(rule, layouts, None) {
                if let Some(layout) = first_output(rule, layouts, &choice)
                    && !possible.contains(&layout.to_string())
                {
                    possible.push(layout.to_string());
                }
            }
            Err(OpError::Pinned {
                op: rule.name,
                wanted: wanted.to_string(),
                possible,
            })
        }
    }
}

/// All candidates, with what decided.
pub(super) fn alternatives(
    rule: &Rule,
    layouts: &[&Layout],
    wanted: Option<&Layout>,
    taken: &Choice,
) -> Vec<Alternative> {
    let price = |choice: &Choice| cost(rule, layouts, choice, usize::MAX).unwrap_or(usize::MAX);
    let own = (price(taken), taken.axes());
    let mut all = Vec::new();
    for choice in considered(rule, layouts, wanted) {
        let site = Site::serving(rule, &choice, layouts);
        let outputs = (0..rule.outputs.len()).map(|o| site.output_layout(o));
        let Ok(outputs) = outputs.collect::<Result<Vec<_>>>() else {
            continue;
        };
        let (elements, axes, is_taken) = (price(&choice), choice.axes(), choice == *taken);
        let why = if wanted.is_some_and(|wanted| outputs.first() != Some(wanted)) {
            "not as pinned"
        } else if is_taken {
            "the fewest, then the most axes"
        } else if elements > own.0 {
            "which are more"
        } else if axes < own.1 {
            "with fewer axes at work"
        } else {
            "no better, and later"
        };
        all.push(Alternative {
            outputs,
            elements,
            axes,
            taken: is_taken,
            why,
        });
    }
    all
}

fn considered(rule: &Rule, layouts: &[&Layout], wanted: Option<&Layout>) -> Vec<Choice> {
    match wanted {
        None => candidates(rule, layouts),
        Some(wanted) => candidates_yielding(rule, layouts, wanted),
    }
}

fn yields(rule: &Rule, layouts: &[&Layout], choice: &Choice, wanted: &Layout) -> bool {
    let site = Site::serving(rule, choice, layouts);
    !rule.outputs.is_empty() && site.output_layout(0).is_ok_and(|layout| layout == *wanted)
}

fn first_output(rule: &Rule, layouts: &[&Layout], choice: &Choice) -> Option<Layout> {
    let site = Site::serving(rule, choice, layouts);
    (!rule.outputs.is_empty()).then(|| site.output_layout(0).ok())?
}

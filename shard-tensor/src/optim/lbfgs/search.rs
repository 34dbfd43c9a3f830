//! A step along a direction that decreases a function enough and flattens it enough: the strong conditions of Wolfe.

use super::Vector;
use crate::Result;

/// A place along a direction: how far, and what the function is there.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) step: f64,
    pub(super) loss: f64,
    pub(super) gradient: Vector,
    /// The slope along the direction.
    pub(super) slope: f64,
}

/// How much of the decrease that the first slope promises is enough.
const DECREASE: f64 = 1e-4;

/// How much of the first slope may be left.
const FLATNESS: f64 = 0.9;

/// PyTorch's search, which brackets a step and then narrows the bracket by cubic interpolation. It ends after so many evaluations, or
/// where the bracket moves no element by more than `change`, `longest` being the direction's largest one.
pub(super) fn strong_wolfe(
    start: &Point,
    first: f64,
    most: usize,
    (longest, change): (f64, f64),
    mut at: impl FnMut(f64) -> Result<Point>,
) -> Result<Point> {
    let enough = |p: &Point| p.loss <= start.loss + DECREASE * p.step * start.slope;
    let flat = |p: &Point| p.slope.abs() <= -FLATNESS * start.slope;
    let (mut before, mut here) = (start.clone(), at(first)?);
    let mut count = 0;
    let mut bracket = loop {
        if count >= most {
            return Ok(lower(start.clone(), here));
        }
        if !enough(&here) || (count > 1 && here.loss >= before.loss) {
            break [before, here];
        }
        if flat(&here) {
            return Ok(here);
        }
        if here.slope >= 0.0 {
            break [before, here];
        }
        let bounds = (
            here.step + 0.01 * (here.step - before.step),
            here.step * 10.0,
        );
        let next = cubic(&before, &here, bounds);
        before = std::mem::replace(&mut here, at(next)?);
        count += 1;
    };
    let mut low = usize::from(bracket[0].loss > bracket[1].loss);
    let mut has_stalled = false;
    while count < most {
        let [a, b] = [&bracket[0], &bracket[1]].map(|p| p.step);
        let (least, greatest) = (a.min(b), a.max(b));
        if (greatest - least) * longest < change {
            break;
        }
        let tried = cubic(&bracket[0], &bracket[1], (least, greatest));
        let next = within(tried, (least, greatest), &mut has_stalled);
        let here = at(next)?;
        count += 1;
        if !enough(&here) || here.loss >= bracket[low].loss {
            bracket[1 - low] = here;
            low = usize::from(bracket[0].loss > bracket[1].loss);
            continue;
        }
        if flat(&here) {
            return Ok(here);
        }
        if here.slope * (bracket[1 - low].step - bracket[low].step) >= 0.0 {
            bracket[1 - low] = bracket[low].clone();
        }
        bracket[low] = here;
    }
    let [a, b] = bracket;
    Ok(if low == 0 { a } else { b })
}

fn lower(a: Point, b: Point) -> Point {
    if a.loss <= b.loss { a } else { b }
}

/// A step that is not at the ends of the bracket twice in a row, from where it would narrow little.
fn within(step: f64, (least, greatest): (f64, f64), has_stalled: &mut bool) -> f64 {
    let margin = 0.1 * (greatest - least);
    if (greatest - step).min(step - least) >= margin {
        *has_stalled = false;
        return step;
    }
    let is_outside = step >= greatest || step <= least;
    if !*has_stalled && !is_outside {
        *has_stalled = true;
        return step;
    }
    *has_stalled = false;
    match (step - greatest).abs() < (step - least).abs() {
        true => greatest - margin,
        false => least + margin,
    }
}

/// Where the cubic through two points with their slopes is lowest, within bounds; their middle if it has no lowest place.
fn cubic(a: &Point, b: &Point, (least, greatest): (f64, f64)) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.step - b.step);
    let square = d1 * d1 - a.slope * b.slope;
    // NaN too has no lowest place.
    if square.is_nan() || square < 0.0 {
        return f64::midpoint(least, greatest);
    }
    let d2 = square.sqrt();
    let lowest = match a.step <= b.step {
        true => b.step - (b.step - a.step) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2)),
        false => {
            a.step - (a.step - b.step) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2.0 * d2))
        }
    };
    lowest.max(least).min(greatest)
}

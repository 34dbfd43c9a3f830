//! Losses of distances between numbers and what they should be.

use super::{LossReduction, of_total, reduced};
use crate::families::elementwise::{number, sub, unary};
use crate::families::full::in_full;
use crate::families::fused::{Fused, Symbol};
use crate::families::reduce::square_sum;
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::unary::Unary;
use std::sync::{Arc, LazyLock};

/// `|x - target|`
///
/// # Collective
/// All members of the mesh. Communicates to align misaligned operands; a mean or sum is partial over the axes that shard them.
///
/// # Errors
/// Shapes that do not broadcast; types that differ or are no floats.
pub fn l1_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |[x, target]| {
        reduced(exec, distance(exec, x, target)?, None, reduction)
    })
}

/// `(x - target)²`
///
/// # Collective
/// As [`l1_loss`].
///
/// # Errors
/// As [`l1_loss`].
pub fn mse_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    reduction: LossReduction,
) -> Result<Value> {
    in_full(exec, [x, target], |[x, target]| {
        let apart = sub(exec, x, target)?;
        if reduction == LossReduction::None {
            return unary(exec, &apart, Unary::Square);
        }
        let all: Vec<usize> = (0..apart.ndim()).collect();
        let total = square_sum(exec, "mse_loss", &apart, &all, false)?;
        of_total(exec, total, apart.shape(), reduction)
    })
}

/// [`huber_loss`] divided by `beta`, where it bends: near 0 a parabola, beyond a line of slope 1. With a `beta` of 0 it is
/// [`l1_loss`].
///
/// # Collective
/// As [`l1_loss`].
///
/// # Errors
/// As [`l1_loss`]; a `beta` that is below 0 or NaN.
pub fn smooth_l1_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    beta: f64,
    reduction: LossReduction,
) -> Result<Value> {
    const NAME: &str = "smooth_l1_loss";
    static SMOOTH: LazyLock<[Arc<Fused>; 2]> = LazyLock::new(|| formulas(NAME));
    check_bend(NAME, beta >= 0.0, beta, [x, target])?;
    in_full(exec, [x, target], |[x, target]| {
        // So near 0 the type has no parabola.
        let errors = match 1.0 / beta.abs() > most(x) {
            true => distance(exec, x, target)?,
            false => bent(exec, NAME, &SMOOTH, [x, target], [beta, 1.0 / beta])?,
        };
        reduced(exec, errors, None, reduction)
    })
}

/// Half the square of the distance up to `delta`, and a line of slope `delta` beyond.
///
/// # Collective
/// As [`l1_loss`].
///
/// # Errors
/// As [`l1_loss`]; a `delta` that is not above 0.
pub fn huber_loss(
    exec: &dyn Exec,
    x: &Value,
    target: &Value,
    delta: f64,
    reduction: LossReduction,
) -> Result<Value> {
    const NAME: &str = "huber_loss";
    static HUBER: LazyLock<[Arc<Fused>; 2]> = LazyLock::new(|| formulas(NAME));
    check_bend(NAME, delta > 0.0, delta, [x, target])?;
    in_full(exec, [x, target], |[x, target]| {
        let errors = bent(exec, NAME, &HUBER, [x, target], [delta, 1.0])?;
        reduced(exec, errors, None, reduction)
    })
}

fn distance(exec: &dyn Exec, x: &Value, target: &Value) -> Result<Value> {
    static DISTANCE: LazyLock<Arc<Fused>> =
        LazyLock::new(|| Fused::new("l1_loss", |[x, target]| [(x - target).abs()]));
    DISTANCE.apply1(exec, &[x, target])
}

/// Refuses a place to bend at that is none, as PyTorch does.
fn check_bend(op: &'static str, fits: bool, bend: f64, operands: [&Value; 2]) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(OpError::Shape {
            op,
            problem: format!("a loss that bends at {bend}"),
            shapes: operands.map(|v| v.shape().to_vec()).into(),
            fix: "give a distance above 0, beyond which the loss is a line",
        }),
    }
}

/// Formulas of a loss of this name: `half * d²` with `d = x - target`, and `scale * m * (d - m / 2)` with `m = clamp(d, -bend, bend)`, a parabola
/// that goes on as lines. The slope of that is `scale * m`: where `m` changes it is `d`.
fn formulas(name: &'static str) -> [Arc<Fused>; 2] {
    // Nothing changes with the distance from the bend on. What is below nothing is beyond it, or NaN, which is no constant.
    fn within<'f>(d: Symbol<'f>, bend: Symbol<'f>) -> Symbol<'f> {
        d.below(bend, (-bend).below(d, d, -bend), (-bend).below(d, bend, d))
    }
    let parabola = Fused::new(name, |[x, target, half]| [(x - target).square() * half]);
    let bent = Fused::with_slopes(
        name,
        |[x, target, scale, bend]| {
            let d = x - target;
            let m = within(d, bend);
            m * scale * (d - m * 0.5)
        },
        |[x, target, scale, bend]| {
            let d = x - target;
            let slope = within(d, bend) * scale;
            [Some(slope), Some(-slope), None, None]
        },
    );
    [parabola, bent]
}

/// A parabola, `scale` times half the square of the distance, that goes on as lines from `bend` on.
fn bent(
    exec: &dyn Exec,
    name: &'static str,
    [parabola, bent]: &[Arc<Fused>; 2],
    [x, target]: [&Value; 2],
    [bend, scale]: [f64; 2],
) -> Result<Value> {
    let of = |value: f64| number(name, x, value);
    // Nothing is beyond infinity, and a line of that slope would be NaN.
    if bend > most(x) {
        return parabola.apply1(exec, &[x, target, &of(0.5 * scale)?]);
    }
    bent.apply1(exec, &[x, target, &of(scale)?, &of(bend)?])
}

/// The largest number that is computed with.
fn most(x: &Value) -> f64 {
    match x.dtype() {
        DType::F64 => f64::MAX,
        _ => f32::MAX.into(),
    }
}

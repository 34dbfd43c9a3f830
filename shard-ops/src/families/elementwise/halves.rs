//! Maps of floats of 16 bits on the host: widened, computed in `f32` and rounded once, in registers or some elements at a time.

use super::over_both;
use crate::HostCall;
use half::{bf16, f16};
use shard_comm::{DType, Element};
use shard_kernels::attention::Stored;
use shard_kernels::fused::{Formula, FormulaStep, fused};
use shard_kernels::pointwise::{self, Binary};
use shard_kernels::reduce::Half;
use shard_kernels::together::by_cells;
use shard_kernels::unary::{self, Unary};
use shard_kernels::{View, ViewMut};
use smallvec::SmallVec;

/// A map of one number, or a derivative of it times the other operand.
pub(super) fn map(map: Unary, order: usize, call: &mut HostCall<'_, '_>) {
    if call.dtype() == DType::BF16 && map_in_registers(map, order, call) {
        return;
    }
    let are_lines = match order {
        0 => by_lines(call, |[x], out| map.eval(0, x, out)),
        _ => by_lines(call, |[x, g], out| {
            let [x, g] = [x, g].map(View::line);
            unary::unary_scaled(map, order, &x, &g, &mut ViewMut::line(out));
        }),
    };
    if are_lines {
        return;
    }
    let f = FormulaStep::Map { map, order, of: 0 };
    let scaled = FormulaStep::Binary {
        kind: Binary::Mul,
        of: [2, 1],
    };
    match order {
        0 => by_steps(call, 1, &[f]),
        _ => by_steps(call, 2, &[f, scaled]),
    }
}

/// A function of two numbers.
pub(super) fn arithmetic(kind: Binary, call: &mut HostCall<'_, '_>) {
    match (kind, call.dtype()) {
        (Binary::NextAfter, DType::F16) => over_both::<f16>(call, pointwise::next_halves),
        (Binary::NextAfter, _) => over_both::<bf16>(call, pointwise::next_halves),
        (_, DType::BF16) if in_registers(kind, call) => {}
        _ => {
            let are_lines = by_lines(call, |[a, b], out| {
                pointwise::binary_lines(kind, a, b, out);
            });
            if !are_lines {
                by_steps(call, 2, &[FormulaStep::Binary { kind, of: [0, 1] }]);
            }
        }
    }
}

/// Widens operands of 16 bits that lie side by side, and rounds what `f` makes of them, some elements at a time. Returns whether they lie so: one
/// step of such needs no formula.
fn by_lines<const N: usize>(
    call: &mut HostCall<'_, '_>,
    f: impl Fn([&[f32]; N], &mut [f32]),
) -> bool {
    fn stored<T: Half + Element, const N: usize>(
        call: &mut HostCall<'_, '_>,
        f: impl Fn([&[f32]; N], &mut [f32]),
    ) -> bool {
        let lines = call.lines::<T, N>();
        let are_lines = lines.is_some();
        if let Some((of, out)) = lines {
            by_cells(1, of, out, |_, of, out| f(of, out));
        }
        are_lines
    }
    match call.dtype() {
        DType::F16 => stored::<f16, N>(call, f),
        _ => stored::<bf16, N>(call, f),
    }
}

/// Whether a map of numbers of `bf16` that lie side by side, or its slope times the other operand, is one that is widened and rounded in registers; it
/// is written then.
fn map_in_registers(map: Unary, order: usize, call: &mut HostCall<'_, '_>) -> bool {
    match order {
        0 => (call.lines::<bf16, 1>())
            .is_some_and(|([x], out)| unary::unary_halves(map, x, None, out)),
        1 => (call.lines::<bf16, 2>())
            .is_some_and(|([x, g], out)| unary::unary_halves(map, x, Some(g), out)),
        _ => false,
    }
}

/// The same of two numbers.
fn in_registers(kind: Binary, call: &mut HostCall<'_, '_>) -> bool {
    let mut is_done = false;
    over_both(call, |a, b, out| {
        is_done = pointwise::binary_halves(kind, a, b, out);
    });
    is_done
}

/// Takes so many operands of 16 bits through steps that are numbered behind them. They are widened, and the result is rounded, block by
/// block, as in formulas.
fn by_steps(call: &mut HostCall<'_, '_>, operands: usize, steps: &[FormulaStep]) {
    let inputs = (0..operands).map(FormulaStep::Input);
    let all: Vec<FormulaStep> = inputs.chain(steps.iter().copied()).collect();
    let result = vec![all.len() - 1];
    let formula = Formula::new(all, vec![1; operands], vec![result]);
    match call.dtype() {
        DType::F16 => by_formula::<f16>(call, &formula),
        _ => by_formula::<bf16>(call, &formula),
    }
}

fn by_formula<T: Stored + Element>(call: &mut HostCall<'_, '_>, formula: &Formula) {
    let operands = 0..formula.operands().len();
    let operands: SmallVec<[View<'_, T>; 2]> = operands.map(|i| call.elements(i)).collect();
    let out = call.elements_out::<T>(0);
    let inputs = operands.iter().map(|x| x.broadcast_to(out.shape()));
    if let Some(inputs) = inputs.collect::<Option<SmallVec<[View<'_, T>; 2]>>>() {
        fused(formula, 0, &inputs, &mut [out]);
    }
}

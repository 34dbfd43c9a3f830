//! What layers do in one pass.

use super::Fused;
use crate::{Exec, OpError, Result, Value};
use std::array::from_fn;
use std::sync::{Arc, LazyLock};

/// The next output and memory of long short-symbol memory, of shape `[.., hidden]`, from what its gates get of the input and of the state,
/// `[.., 4, hidden]`, and its memory. Gates come in PyTorch's order: input, forget, cell, output.
///
/// # Collective
/// As [`Fused::apply_to`].
///
/// # Errors
/// As [`Fused::apply_to`].
pub fn lstm(exec: &dyn Exec, gates: [&Value; 2], memory: &Value) -> Result<[Value; 2]> {
    static LSTM: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::of_parts("lstm", [4, 4, 1], |[of_input, of_state, memory]| {
            let [input, forget, cell, output] = from_fn(|i| of_input[i] + of_state[i]);
            let memory = forget.sigmoid() * memory[0] + input.sigmoid() * cell.tanh();
            [vec![output.sigmoid() * memory.tanh()], vec![memory]]
        })
    });
    let found = LSTM.apply_to(exec, &[gates[0], gates[1], memory], 1)?;
    (found.into_vec().try_into())
        .map_err(|all: Vec<_>| OpError::arity("lstm", "two outputs", all.len()))
}

/// The next state of gated recurrent units, of shape `[.., hidden]`, from what its gates get of the input and of the state,
/// `[.., 3, hidden]`, and the state. Gates come in PyTorch's order: reset, update, new.
///
/// # Collective
/// As [`Fused::apply_to`].
///
/// # Errors
/// As [`Fused::apply_to`].
pub fn gru(exec: &dyn Exec, gates: [&Value; 2], state: &Value) -> Result<Value> {
    static GRU: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::of_parts("gru", [3, 3, 1], |[of_input, of_state, state]| {
            let [reset, update] = from_fn(|i| (of_input[i] + of_state[i]).sigmoid());
            let new = (of_input[2] + reset * of_state[2]).tanh();
            // (1 - update) * new + update * state
            [vec![new + update * (state[0] - new)]]
        })
    });
    GRU.one_of_parts(exec, &[gates[0], gates[1], state], 1)
}

/// Pairs of features, `[.., 2, n]`, turned by angles of which these are cosines and sines, `[.., n]` (Su et al. 2021, RoFormer, section 3.2.2).
///
/// # Collective
/// As [`Fused::apply_to`].
///
/// # Errors
/// As [`Fused::apply_to`].
pub fn rotary(exec: &dyn Exec, x: &Value, [cos, sin]: [&Value; 2]) -> Result<Value> {
    static ROTARY: LazyLock<Arc<Fused>> = LazyLock::new(|| {
        Fused::of_parts("rotary", [2, 1, 1], |[x, cos, sin]| {
            let (cos, sin) = (cos[0], sin[0]);
            [vec![x[0] * cos - x[1] * sin, x[1] * cos + x[0] * sin]]
        })
    });
    ROTARY.one_of_parts(exec, &[x, cos, sin], 1)
}

//! Ops that find a few numbers of every cell, and what is made of cells with them.

use crate::applied::{applied, validated};
use crate::ranks::on_ranks;
use shard_comm::DType;
use shard_ops::norm::{group_norm, layer_norm, rms_norm};
use shard_ops::softmax::{log_softmax, softmax};
use shard_ops::statistics::var;
use shard_ops::testing::{Tensor, Validation};
use shard_ops::{Engine, Exec, Op, Result, Value};
use shard_redistribute::Array;
use shard_spec::Layout;
use std::rc::Rc;
use std::sync::Arc;

#[test]
fn rows_have_the_softmax_of_one_rank_under_any_layout() {
    let x = [Tensor::drawn([5, 3, 7], 3)];
    for tried in [
        validated("softmax", &x, &|e, v| softmax(e, &v[0], &[2]).map(drop)),
        validated("log_softmax", &x, &|e, v| {
            log_softmax(e, &v[0], &[1, 2]).map(drop)
        }),
    ] {
        assert!(tried.layouts > 10 && tried.slopes > 0, "{tried:?}");
    }
}

/// The derivative of the pairs (maximum, sum of exponentials) is that of what does not depend on the maximum, so it has no place here.
#[test]
fn states_are_under_any_layout_what_they_are_on_one_rank() {
    let x = [Tensor::drawn([5, 7, 2], 3)];
    for dims in [&[1][..], &[0, 2]] {
        // The first op of a variance finds moments.
        let tried = validated("var", &x, &|e, v| var(e, &v[0], dims, 1.0, false).map(drop));
        assert!(tried.slopes > 0);
    }
}

/// A norm of an operand by its own statistics, with a weight, a bias, or neither.
type Norm<'a> = dyn Fn(&dyn Exec, &Value, [Option<&Value>; 2]) -> Result<Value> + Sync + 'a;

/// Statistics are a second output, whose derivative nobody asks for: slopes of values are compared elsewhere.
#[test]
fn cells_that_lie_whole_are_normalised_under_any_layout_as_on_one_rank() {
    let check = |norm: &Norm<'_>, weights: u64, shape: &[usize], affine: &[usize]| {
        for count in 0..=weights {
            let weights = (0..count).map(|seed| Tensor::drawn(affine, 10 + seed));
            let operands: Vec<Tensor> = std::iter::once(Tensor::drawn(shape, 3))
                .chain(weights)
                .collect();
            let sample = applied("normalise", &operands, &|e, v| {
                norm(e, &v[0], [v.get(1), v.get(2)]).map(drop)
            });
            let validation = Validation {
                float: DType::F32,
                ..Validation::default()
            };
            let tried = validation.run_shared(&sample.op, &sample.inputs).unwrap();
            assert!(tried.layouts > 10 && tried.gradients > 10, "{tried:?}");
        }
    };
    check(
        &|e, x, [w, b]| layer_norm(e, x, 1, w, b, 1e-5),
        2,
        &[5, 3, 7],
        &[7],
    );
    check(
        &|e, x, [w, _]| rms_norm(e, x, 2, w, Some(1e-5)),
        1,
        &[5, 3, 7],
        &[3, 7],
    );
    check(
        &|e, x, [w, b]| group_norm(e, x, 3, w, b, 1e-5),
        2,
        &[4, 6, 5],
        &[6],
    );
}

/// A norm counts on the statistics that it does not show.
#[test]
fn a_handler_that_gives_other_results_than_the_op_has_is_refused() {
    for count in [0, 1, 3] {
        let errors = on_ranks(&[2], |cx, engine| {
            let made = move |_: &Engine, _: &Arc<dyn Op>, inputs: &[&Array]| {
                Ok(vec![inputs[0].clone(); count])
            };
            engine.register("normalise", Rc::new(made));
            let rows = Layout::parse(cx.mesh(), &[4, 3], "S(0)").unwrap();
            let x = Array::from_fn(cx, &rows, |i| i[1] as f64).unwrap().into();
            layer_norm(engine, &x, 1, None, None, 1e-5).unwrap_err()
        });
        for error in errors {
            let said = format!("normalise: expected its handler to give 2 results, got {count}");
            assert_eq!(error.to_string(), said);
        }
    }
}

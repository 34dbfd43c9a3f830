//! Recompute checkpointing, and checks against finite differences.

use crate::common::{Bench, on, on_mesh, small, table};
use shard_autograd::{
    AutogradError, GradCheck, Recorder, Result as AutogradResult, gradcheck, gradgradcheck,
    recompute,
};
use shard_comm::DType;
use shard_ops::elementwise::{add, cast, mul, mul_scalar, neg};
use shard_ops::matmul::matmul;
use shard_ops::reduce::sum;
use shard_ops::{
    Cotangents, Exec, Grads, HostCall, InOp, Linearity, Meta, Op, Result, Rule, Saved, Value,
    key_of,
};
use shard_redistribute::Array;
use shard_spec::DeviceMesh;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// `x^2` with a derivative of `x` at indices of 3 and above: wrong there.
#[derive(Debug)]
struct BadSquare;

impl Op for BadSquare {
    fn name(&self) -> &'static str {
        "bad_square"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Rule::pointwise(self.name(), inputs, inputs[0].dtype, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0).to_vec();
        for (y, x) in call.output::<f64>(0).data_mut().iter_mut().zip(x) {
            *y = x * x;
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let Some(dy) = &cotangents[0] else {
            return Ok(vec![None]);
        };
        let x = &saved.inputs[0];
        let factor = Array::from_fn(
            x.array().cx(),
            x.layout(),
            |i| if i[0] < 3 { 2.0 } else { 1.0 },
        );
        let factor = Value::new(factor.in_op(self.name())?);
        Ok(vec![Some(mul(exec, &mul(exec, x, &factor)?, dy)?)])
    }
}

fn chain(rec: &Recorder, values: &[Value]) -> AutogradResult<Vec<Value>> {
    let [x, w] = values else {
        unreachable!("called with two")
    };
    let y = matmul(rec, x, w)?;
    let y = mul(rec, &mul(rec, &y, &y)?, &y)?;
    Ok(vec![sum(rec, &y, &[0], false)?, mul(rec, x, x)?])
}

fn smooth(i: &[usize]) -> f64 {
    small(i) / 4.0 + 0.1
}

#[test]
fn gradients_of_any_layout_agree_with_finite_differences() {
    let cases: &[(&[usize], &str, &str)] = &[
        (&[1], "R", "R"),
        (&[3], "S(0)[0,4,1]", "R"),
        (&[3], "S(1)[1,0,2]", "S(0)[1,0,2]"),
        (&[3], "P(sum)", "S(1)"),
        (&[2, 2], "S(0)[4,1] P(sum)", "R S(1)[0,2]"),
        (&[2, 2], "R S(0)", "P(sum) P(sum)"),
    ];
    for &(mesh, x, w) in cases {
        let reports = on_mesh(mesh, |b| {
            let inputs = [b.value(&[5, 3], x, smooth), b.value(&[3, 2], w, smooth)];
            let how = GradCheck {
                samples: 7,
                ..GradCheck::default()
            };
            let report =
                gradcheck(&b.rec, &chain, &inputs, how).unwrap_or_else(|e| panic!("{x} {w}: {e}"));
            // 7 of 15 elements, and all 6 of the other input.
            assert_eq!(report.compared, 13);
            let second = gradgradcheck(&b.rec, &chain, &inputs, how)
                .unwrap_or_else(|e| panic!("{x} {w}: {e}"));
            // And the cotangents: 2 elements, and 7 of 15.
            assert_eq!(second.compared, 13 + 2 + 7);
            assert_eq!(b.rec.live_nodes(), 0);
            (report, second)
        });
        assert!(
            reports.iter().all(|r| r == &reports[0]),
            "ranks agree on the report"
        );
    }
}

#[test]
fn a_wrong_derivative_is_found_at_its_worst_element() {
    on_mesh(&[3], |b| {
        // The error is x where i >= 3. Relative to the right derivative it is greatest at 3 or 4.
        let x = b.value(&[5], "S(0)[2,0,3]", |i| 1.0 + i[0] as f64);
        let f = |rec: &Recorder, x: &[Value]| Ok(vec![rec.apply1(Arc::new(BadSquare), &[&x[0]])?]);
        let error = gradcheck(&b.rec, &f, &[x], GradCheck::default()).unwrap_err();
        let AutogradError::GradMismatch(m) = error else {
            panic!("{error}")
        };
        assert_eq!((m.input, m.index.len()), (0, 1));
        assert!(m.index[0] >= 3, "{m}");
        assert!((m.analytic * 2.0 - m.numeric).abs() < 1e-5, "{m}");
        let narrow = Array::from_fn::<f32>(&b.cx, &b.layout(&[5], "S(0)"), |_| 1.0).unwrap();
        let error = gradcheck(&b.rec, &f, &[Value::new(narrow)], GradCheck::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("f32 values have no derivative, expected f64"),
            "{error}"
        );
        let product = b.value(&[5], "P(prod)", small);
        let error = gradcheck(&b.rec, &f, &[product], GradCheck::default()).unwrap_err();
        assert!(
            matches!(error, AutogradError::Perturb { input: 0, .. }),
            "{error}"
        );
    });
}

#[test]
fn checks_run_on_ranks_outside_the_mesh() {
    let mesh = DeviceMesh::with_ranks(&[2], vec![1, 2]).unwrap();
    let compared = on(3, &mesh, |b| {
        let inputs = [
            b.value(&[5, 3], "S(0)", smooth),
            b.value(&[3, 2], "R", smooth),
        ];
        gradcheck(&b.rec, &chain, &inputs, GradCheck::default())
            .unwrap()
            .compared
    });
    assert_eq!(compared, [0, 21, 21]);
}

/// Three layers, each computed again or not, with a parameter captured by the function.
fn layers(b: &Bench, x: &Value, w: &Value, checkpointed: bool, runs: &Rc<Cell<usize>>) -> Value {
    let mut x = x.clone();
    for scale in 1..4 {
        let (w, runs) = (w.clone(), runs.clone());
        let layer = move |rec: &Recorder, x: &[Value]| {
            runs.set(runs.get() + 1);
            let y = matmul(rec, &x[0], &w)?;
            let y = add(rec, &mul(rec, &y, &y)?, &neg(rec, &y)?)?;
            Ok(vec![mul_scalar(rec, &y, f64::from(scale))?])
        };
        let mut y = match checkpointed {
            true => recompute(&b.rec, &[&x], layer).unwrap(),
            false => layer(&b.rec, &[x]).unwrap(),
        };
        x = y.remove(0);
    }
    sum(&b.rec, &x, &[0, 1], false).unwrap()
}

#[test]
fn checkpoints_keep_inputs_only_and_give_the_same_gradients() {
    on_mesh(&[3], |b| {
        let runs: Rc<Cell<usize>> = Rc::default();
        let x = b.leaf(&[5, 2], "S(0)[0,4,1]", |i| small(i) / 8.0);
        let w = b.leaf(&[2, 2], "R", |i| small(i) / 8.0);
        let mut seen = Vec::new();
        for checkpointed in [false, true] {
            let live = b.rec.live_nodes();
            let loss = layers(b, &x, &w, checkpointed, &runs);
            // Each layer has one node instead of five; the sum is one more.
            assert_eq!(
                b.rec.live_nodes() - live,
                if checkpointed { 3 + 1 } else { 15 + 1 }
            );
            let live = b.rec.live_nodes();
            runs.set(0);
            let gradients = b.rec.backward(&loss, None).unwrap();
            assert_eq!(runs.get(), if checkpointed { 3 } else { 0 });
            assert_eq!(b.rec.live_nodes(), live, "what was recomputed is freed");
            let (dx, dw) = (
                gradients.get(&x).unwrap().unwrap(),
                gradients.get(&w).unwrap().unwrap(),
            );
            assert_eq!((dx.layout(), dw.layout()), (x.layout(), w.layout()));
            seen.push((b.full(&dx), b.full(&dw)));
        }
        assert_eq!(seen[0].0, seen[1].0);
        // The parameter's terms are summed over the ranks per layer now: equal up to rounding.
        for (a, c) in seen[0].1.iter().zip(&seen[1].1) {
            assert!((a - c).abs() <= 1e-12 * a.abs().max(1.0), "{a} {c}");
        }
    });
}

#[test]
fn checkpoints_nest_and_differentiate_twice() {
    on_mesh(&[2], |b| {
        let power = |rec: &Recorder, values: &[Value]| -> AutogradResult<Vec<Value>> {
            // x^4 as a checkpointed square of a checkpointed square; and the input itself.
            let square = |rec: &Recorder, v: &[Value]| Ok(vec![mul(rec, &v[0], &v[0])?]);
            let outer = move |rec: &Recorder, v: &[Value]| {
                let inner = recompute(rec, &[&v[0]], square)?;
                Ok(vec![mul(rec, &inner[0], &inner[0])?, v[0].clone()])
            };
            let out = recompute(rec, &[&values[0]], outer)?;
            Ok(vec![mul(rec, &out[0], &out[1])?])
        };
        let x = b.leaf(&[4], "S(0)[1,3]", small);
        let mut y = power(&b.rec, std::slice::from_ref(&x)).unwrap().remove(0);
        for order in 1..4 {
            let total = sum(&b.rec, &y, &[0], false).unwrap();
            y = b
                .rec
                .grad(&[&total], &[&x], &[], true)
                .unwrap()
                .remove(0)
                .unwrap();
            let expected = table(&[4], |i| match order {
                1 => 5.0 * small(i).powi(4),
                2 => 20.0 * small(i).powi(3),
                _ => 60.0 * small(i).powi(2),
            });
            assert_eq!(b.full(&y), expected, "order {order}");
        }
        let inputs = [b.value(&[4], "S(0)[0,4]", smooth)];
        gradcheck(&b.rec, &power, &inputs, GradCheck::default()).unwrap();
        gradgradcheck(&b.rec, &power, &inputs, GradCheck::default()).unwrap();
    });
}

#[test]
fn an_input_that_depends_on_another_one_is_counted_once() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let y = mul(&b.rec, &x, &x).unwrap();
        let product = |rec: &Recorder, v: &[Value]| Ok(vec![mul(rec, &v[0], &v[1])?]);
        let z = recompute(&b.rec, &[&x, &y], product).unwrap().remove(0);
        let loss = sum(&b.rec, &z, &[0], false).unwrap();
        let dx = b
            .rec
            .backward(&loss, None)
            .unwrap()
            .get(&x)
            .unwrap()
            .unwrap();
        assert_eq!(b.full(&dx), table(&[3], |i| 3.0 * small(i) * small(i)));
    });
}

#[test]
fn a_function_that_changes_its_mind_is_an_error() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let other = b.leaf(&[3], "S(0)", small);
        let calls = Rc::new(Cell::new(0));
        for kind in 0..4 {
            calls.set(0);
            let (calls, other) = (calls.clone(), other.clone());
            let fickle = move |rec: &Recorder, v: &[Value]| {
                calls.set(calls.get() + 1);
                Ok(match (calls.get(), kind) {
                    (2, 0) => vec![v[0].clone(), v[0].clone()],
                    (2, 1) => vec![sum(rec, &v[0], &[0], false)?],
                    (2, 2) => vec![cast(rec, &v[0], DType::F32)?],
                    (2, _) => vec![mul(rec, &v[0], &other)?],
                    _ => vec![mul_scalar(rec, &v[0], 2.0)?],
                })
            };
            let y = recompute(&b.rec, &[&x], fickle).unwrap().remove(0);
            let error = b
                .rec
                .backward(&sum(&b.rec, &y, &[0], false).unwrap(), None)
                .unwrap_err();
            assert!(matches!(error, AutogradError::Recompute { .. }), "{error}");
        }
    });
}

/// A renewed parameter is not what the function saw, so running it again would mix two values.
#[test]
fn a_function_is_not_run_again_with_a_renewed_parameter() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let w = Rc::new(RefCell::new(b.leaf(&[3], "S(0)", |_| 2.0)));
        let held = w.clone();
        let scaled = move |rec: &Recorder, v: &[Value]| {
            let w = held.borrow().clone();
            Ok(vec![mul(rec, &v[0], &w)?])
        };
        let y = recompute(&b.rec, &[&x], scaled).unwrap().remove(0);
        let loss = sum(&b.rec, &y, &[0], false).unwrap();
        let slope = |loss| {
            let gradients = b.rec.backward(loss, None)?;
            Ok::<_, AutogradError>(b.full(&gradients.get(&x)?.unwrap()))
        };
        assert_eq!(slope(&loss).unwrap(), [2.0; 3]);
        let array = b.value(&[3], "S(0)", |_| 5.0).array().clone();
        let renewed = b.rec.renewed(&w.borrow(), array).unwrap();
        w.replace(renewed);
        let error = slope(&loss).unwrap_err();
        assert!(matches!(error, AutogradError::Recompute { .. }), "{error}");
        assert!(error.to_string().contains("replaced"), "{error}");
        // As an input the old value is kept, and renewing it changes nothing.
        let square = |rec: &Recorder, v: &[Value]| Ok(vec![mul(rec, &v[0], &v[0])?]);
        let y = recompute(&b.rec, &[&x], square).unwrap().remove(0);
        b.rec
            .renewed(&x, b.value(&[3], "S(0)", |_| 9.0).array().clone())
            .unwrap();
        let loss = sum(&b.rec, &y, &[0], false).unwrap();
        assert_eq!(slope(&loss).unwrap(), table(&[3], |i| 2.0 * small(i)));
    });
}

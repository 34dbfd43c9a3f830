//! What is recorded and differentiated, in which order, and what is freed.

use crate::common::{Bench, on_mesh, small, table};
use shard_autograd::{AutogradError, Recorder, recompute};
use shard_comm::ErrorClass;
use shard_ops::elementwise::{add, add_scalar, mul, mul_scalar};
use shard_ops::reduce::sum;
use shard_ops::{
    Access, Cotangents, Exec, Grads, HostCall, Linearity, Meta, Op, OpError, Result, Rule, Saved,
    Value, key_of,
};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// `(a + b, a - b)`.
#[derive(Debug)]
struct SumDifference {
    /// What the vjp gives: right, one cotangent short, or of the wrong shape.
    fault: u8,
}

impl Op for SumDifference {
    fn name(&self) -> &'static str {
        "sum_difference"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.fault)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let mut rule = Rule::builder(self.name(), inputs).linearity(Linearity::Joint);
        let Meta { shape, dtype } = inputs[0].clone();
        let dims: Vec<Access> = shape
            .iter()
            .map(|&n| Access::factor(rule.factor(n)))
            .collect();
        rule.input(dims.clone())
            .input(dims.clone())
            .output(dims.clone(), shape.clone(), dtype)
            .output(dims, shape, dtype)
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (a, b) = (call.input::<f64>(0).to_vec(), call.input::<f64>(1).to_vec());
        for (o, sign) in [(0, 1.0), (1, -1.0)] {
            for ((y, a), b) in call.output::<f64>(o).data_mut().iter_mut().zip(&a).zip(&b) {
                *y = a + sign * b;
            }
        }
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (s, d) = (&cotangents[0], &cotangents[1]);
        let both = |sign: f64| -> Result<Option<Value>> {
            let d = d.as_ref().map(|d| mul_scalar(exec, d, sign)).transpose()?;
            Ok(match (s, d) {
                (Some(s), Some(d)) => Some(add(exec, s, &d)?),
                (Some(s), None) => Some(s.clone()),
                (None, d) => d,
            })
        };
        match self.fault {
            0 => Ok(vec![
                if saved.needs[0] { both(1.0)? } else { None },
                if saved.needs[1] { both(-1.0)? } else { None },
            ]),
            1 => Ok(vec![both(1.0)?]),
            _ => Ok(vec![Some(sum(exec, &saved.inputs[0], &[0], false)?), None]),
        }
    }
}

fn sum_difference(b: &Bench, fault: u8, x: &Value, y: &Value) -> [Value; 2] {
    b.rec
        .apply(Arc::new(SumDifference { fault }), &[x, y])
        .unwrap()
        .try_into()
        .unwrap()
}

fn cube(b: &Bench, x: &Value) -> Value {
    mul(&b.rec, &mul(&b.rec, x, x).unwrap(), x).unwrap()
}

#[test]
fn several_outputs_used_or_not() {
    on_mesh(&[2], |b| {
        let (x, y) = (b.leaf(&[3], "S(0)", small), b.leaf(&[3], "R", small));
        let [_, difference] = sum_difference(b, 0, &x, &y);
        let loss = sum(
            &b.rec,
            &mul_scalar(&b.rec, &difference, 3.0).unwrap(),
            &[0],
            false,
        )
        .unwrap();
        let gradients = b.rec.backward(&loss, None).unwrap();
        assert_eq!(b.full(&gradients.get(&x).unwrap().unwrap()), [3.0; 3]);
        assert_eq!(b.full(&gradients.get(&y).unwrap().unwrap()), [-3.0; 3]);
        // Both outputs, one of them twice.
        let [total, difference] = sum_difference(b, 0, &x, &y);
        let z = mul(&b.rec, &mul(&b.rec, &total, &total).unwrap(), &difference).unwrap();
        let loss = sum(&b.rec, &z, &[0], false).unwrap();
        let gradients = b.rec.backward(&loss, None).unwrap();
        // x = y: (x + y)^2 (x - y) has the derivatives 4x^2 and -4x^2.
        let square = table(&[3], |i| 4.0 * small(i) * small(i));
        assert_eq!(b.full(&gradients.get(&x).unwrap().unwrap()), square);
        assert_eq!(
            b.full(&gradients.get(&y).unwrap().unwrap()),
            square.iter().map(|v| -v).collect::<Vec<_>>()
        );
    });
}

#[test]
fn a_wrong_vjp_is_named() {
    on_mesh(&[2], |b| {
        let (x, y) = (b.leaf(&[3], "S(0)", small), b.leaf(&[3], "S(0)", small));
        for (fault, text) in [
            (
                1,
                "sum_difference: expected 2 cotangents from its vjp, got 1",
            ),
            (2, "operand 0 has shape []"),
        ] {
            let [total, _] = sum_difference(b, fault, &x, &y);
            let error = b
                .rec
                .backward(&sum(&b.rec, &total, &[0], false).unwrap(), None)
                .unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!(error.class(), ErrorClass::Uniform);
        }
    });
}

#[test]
fn nothing_is_recorded_without_need() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let constant = b.value(&[3], "S(0)", small);
        let live = b.rec.live_nodes();
        assert!(
            !b.rec
                .is_tracked(&mul(&b.rec, &constant, &constant).unwrap())
        );
        let off = b.rec.no_grad(|| {
            assert!(!b.rec.is_recording() && !b.rec.records());
            let inner = b.rec.enable_grad(|| mul(&b.rec, &x, &x).unwrap());
            assert!(b.rec.is_tracked(&inner));
            mul(&b.rec, &x, &x).unwrap()
        });
        assert!(!b.rec.is_tracked(&off) && b.rec.is_recording());
        assert_eq!(b.rec.live_nodes(), live);
        // Recording goes on after early returns and panics.
        let early: Result<Value> = b.rec.no_grad(|| {
            add(&b.rec, &x, &b.value(&[4], "S(0)", small))?;
            Ok(x.clone())
        });
        assert!(early.is_err() && b.rec.is_recording());
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            b.rec.no_grad(|| std::panic::panic_any("on purpose"))
        }));
        std::panic::set_hook(hook);
        assert!(panicked.is_err() && b.rec.is_recording());
        // A detached value is a constant.
        let y = mul(&b.rec, &x, &x.detach()).unwrap();
        let gradients = b
            .rec
            .backward(&sum(&b.rec, &y, &[0], false).unwrap(), None)
            .unwrap();
        assert_eq!(
            b.full(&gradients.get(&x).unwrap().unwrap()),
            table(&[3], small)
        );
        assert!(b.rec.is_leaf(&x) && !b.rec.is_leaf(&y));
    });
}

#[test]
fn dropping_a_value_frees_its_graph_however_deep() {
    on_mesh(&[1], |b| {
        let x = b.leaf(&[1], "R", small);
        let mut y = x.clone();
        for _ in 0..100_000 {
            y = add_scalar(&b.rec, &y, 1.0).unwrap();
        }
        assert_eq!(b.rec.live_nodes(), 100_001);
        let gradients = b.rec.backward(&y, None).unwrap();
        assert_eq!(b.full(&gradients.get(&x).unwrap().unwrap()), [1.0]);
        drop(y);
        assert_eq!(b.rec.live_nodes(), 1);
        // Nodes that hold their parent twice.
        let mut y = x.clone();
        for _ in 0..100_000 {
            y = add(&b.rec, &y, &y).unwrap();
        }
        assert_eq!(b.rec.live_nodes(), 100_001);
        drop(y);
        assert_eq!(b.rec.live_nodes(), 1);
        drop(x);
        assert_eq!(b.rec.live_nodes(), 0);
    });
}

/// A recurrence whose step is a function that holds the state before it.
#[test]
fn dropping_a_value_frees_what_functions_hold_however_deep() {
    const STEPS: usize = 40_000;
    on_mesh(&[1], |b| {
        let (x, layout) = (b.leaf(&[1], "R", small), b.layout(&[1], "R"));
        let again = |before: Value| {
            let step = move |exec: &Recorder, x: &[Value]| Ok(vec![mul(exec, &before, &x[0])?]);
            recompute(&b.rec, &[&x], step).unwrap().remove(0)
        };
        let by_hand = |before: Value| {
            let step = |_: &Recorder, x: &[Value]| Ok(vec![x[0].clone()]);
            let back = move |_: &Recorder, _: &[Value], _: &[Value], _: &[Value]| {
                Ok(vec![Some(before.detach())])
            };
            let made = (b.rec).map_local_with_grad(&[&x], &[&layout], &[&layout], step, back);
            made.unwrap().remove(0)
        };
        let hooked = |before: Value| {
            let y = add_scalar(&b.rec, &before, 1.0).unwrap();
            let hook = move |_: &Value| Ok(Some(before.detach()));
            b.rec.on_gradient(&y, Rc::new(hook)).unwrap();
            y
        };
        let steps: [&dyn Fn(Value) -> Value; 3] = [&again, &by_hand, &hooked];
        for step in steps {
            let last = (0..STEPS).fold(x.clone(), |y, _| step(y));
            assert!(b.rec.live_nodes() > STEPS);
            drop(last);
            assert_eq!(b.rec.live_nodes(), 1);
        }
    });
}

#[test]
fn nodes_are_visited_in_reverse_order_of_creation_on_every_rank() {
    let orders = on_mesh(&[3], |b| {
        let x = b.leaf(&[4], "S(0)", small);
        let seen: Rc<RefCell<Vec<usize>>> = Rc::default();
        let watch = |value: &Value, name: usize| {
            let seen = seen.clone();
            let hook = move |_: &Value| {
                seen.borrow_mut().push(name);
                Ok(None)
            };
            b.rec.on_gradient(value, Rc::new(hook)).unwrap();
        };
        // A long branch is made first and a short one last. If nodes ran as soon as they are ready, the long one would come in
        // between.
        let long = (0..3).fold(x.clone(), |v, i| {
            let v = mul_scalar(&b.rec, &v, 2.0).unwrap();
            watch(&v, i);
            v
        });
        let short = mul(&b.rec, &x, &x).unwrap();
        watch(&short, 3);
        let y = add(&b.rec, &short, &long).unwrap();
        watch(&y, 4);
        watch(&x, 5);
        b.rec
            .backward(&sum(&b.rec, &y, &[0], false).unwrap(), None)
            .unwrap();
        seen.take()
    });
    assert_eq!(orders, vec![vec![4, 3, 2, 1, 0, 5]; 3]);
}

#[test]
fn hooks_see_and_replace_complete_gradients() {
    on_mesh(&[3], |b| {
        let x = b.leaf(&[5], "S(0)[0,4,1]", small);
        let w = b.leaf(&[5], "R", small);
        let y = mul(&b.rec, &x, &w).unwrap();
        let z = add(&b.rec, &y, &mul_scalar(&b.rec, &y, 4.0).unwrap()).unwrap();
        let loss = sum(&b.rec, &z, &[0], false).unwrap();
        let seen: Rc<RefCell<Vec<Value>>> = Rc::default();
        let log = seen.clone();
        // A hook on an interior value sees the complete gradient (1 + 4) in the value's layout, and replaces it in another
        // layout.
        let (cx, rec) = (b.cx.clone(), b.rec.clone());
        let handle = (b.rec)
            .on_gradient(
                &y,
                Rc::new(move |g| {
                    log.borrow_mut().push(g.clone());
                    let whole = shard_spec::Layout::replicated(cx.mesh(), g.shape());
                    Ok(Some(mul_scalar(&rec, &rec.redistribute(g, &whole)?, 2.0)?))
                }),
            )
            .unwrap();
        // A hook on a replicated leaf sees the gradient summed over the ranks.
        let log = seen.clone();
        b.rec
            .on_gradient(
                &w,
                Rc::new(move |g| {
                    log.borrow_mut().push(g.clone());
                    Ok(None)
                }),
            )
            .unwrap();
        let gradients = b.rec.backward(&loss, None).unwrap();
        assert_eq!(gradients.unreduced(), 0);
        assert_eq!(
            b.full(&gradients.get(&x).unwrap().unwrap()),
            table(&[5], |i| 10.0 * small(i))
        );
        let saw = seen.take();
        assert_eq!(
            (saw[0].layout(), b.full(&saw[0])),
            (y.layout(), vec![5.0; 5])
        );
        assert_eq!(
            (saw[1].layout(), b.full(&saw[1])),
            (w.layout(), table(&[5], |i| 10.0 * small(i)))
        );
        handle.remove();
        let gradients = b.rec.backward(&loss, None).unwrap();
        assert_eq!(
            b.full(&gradients.get(&x).unwrap().unwrap()),
            table(&[5], |i| 5.0 * small(i))
        );
        // A hook's error is the pass's error, and the gradient that it returns must fit.
        let failing =
            Rc::new(|_: &Value| Err(AutogradError::external("not today", ErrorClass::Uniform)));
        let handle = b.rec.on_gradient(&y, failing).unwrap();
        assert_eq!(
            b.rec.backward(&loss, None).unwrap_err().to_string(),
            "not today"
        );
        handle.remove();
        let scalar = b.value(&[], "R", small);
        b.rec
            .on_gradient(&y, Rc::new(move |_| Ok(Some(scalar.clone()))))
            .unwrap();
        let error = b.rec.backward(&loss, None).unwrap_err().to_string();
        assert!(error.contains("what the hook gave has shape []"), "{error}");
        assert!(
            b.rec
                .on_gradient(&y.detach(), Rc::new(|_| Ok(None)))
                .is_err()
        );
    });
}

#[test]
fn derivatives_with_respect_to_any_value() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let unused = b.leaf(&[3], "S(0)", small);
        let y = mul(&b.rec, &x, &x).unwrap();
        let z = sum(&b.rec, &mul(&b.rec, &y, &x).unwrap(), &[0], false).unwrap();
        let found = b
            .rec
            .grad(&[&z], &[&y, &unused, &x, &z], &[], false)
            .unwrap();
        // With respect to y alone, x is held fixed; with respect to x, every path counts.
        assert_eq!(b.full(found[0].as_ref().unwrap()), table(&[3], small));
        assert!(found[1].is_none());
        assert_eq!(
            b.full(found[2].as_ref().unwrap()),
            table(&[3], |i| 3.0 * small(i) * small(i))
        );
        assert_eq!(b.full(found[3].as_ref().unwrap()), [1.0]);
        // Several outputs with their own cotangents.
        let seed = b.value(&[3], "R", |i| i[0] as f64);
        let found = b
            .rec
            .grad(&[&z, &y], &[&x], &[None, Some(&seed)], false)
            .unwrap();
        let expected = table(&[3], |i| {
            3.0 * small(i) * small(i) + 2.0 * small(i) * i[0] as f64
        });
        assert_eq!(b.full(found[0].as_ref().unwrap()), expected);
    });
}

#[test]
fn third_derivatives_from_the_same_vjps() {
    for text in ["S(0)[3,0,1]", "R", "P(sum)"] {
        on_mesh(&[3], |b| {
            let x = b.leaf(&[4], text, small);
            let mut y = cube(b, &x);
            let mut expected = Vec::new();
            for order in 0..3 {
                let total = sum(&b.rec, &y, &[0], false).unwrap();
                y = b
                    .rec
                    .grad(&[&total], &[&x], &[], true)
                    .unwrap()
                    .remove(0)
                    .unwrap();
                assert_eq!(y.layout(), &shard_autograd::gradient_layout(x.layout()));
                // The third derivative is a constant: it does not depend on x any more.
                assert_eq!(b.rec.is_tracked(&y), order < 2);
                expected = table(&[4], |i| match order {
                    0 => 3.0 * small(i) * small(i),
                    1 => 6.0 * small(i),
                    _ => 6.0,
                });
                assert_eq!(b.full(&y), expected, "{text} order {order}");
            }
            assert_eq!(expected, [6.0; 4]);
        });
    }
}

#[test]
fn what_an_op_cannot_differentiate_is_an_error() {
    #[derive(Debug)]
    struct Opaque;
    impl Op for Opaque {
        fn name(&self) -> &'static str {
            "opaque"
        }
        fn key(&self) -> u128 {
            key_of(self.name(), &())
        }
        fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
            Rule::pointwise(self.name(), inputs, inputs[0].dtype, Linearity::None)
        }
        fn host(&self, call: &mut HostCall<'_, '_>) {
            call.output::<f64>(0).data_mut().fill(1.0);
        }
        fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
            Err(OpError::NoVjp {
                op: self.name(),
                operand: 0,
            })
        }
    }
    on_mesh(&[2], |b| {
        let x = b.leaf(&[4], "S(0)", small);
        let y = b.rec.apply1(Arc::new(Opaque), &[&x]).unwrap();
        let loss = sum(&b.rec, &y, &[0], false).unwrap();
        let error = b.rec.backward(&loss, None).unwrap_err();
        assert!(
            matches!(
                error,
                AutogradError::Op(OpError::NoVjp {
                    op: "opaque",
                    operand: 0
                })
            ),
            "{error}"
        );
        assert!(b.rec.is_recording());
    });
}

#[test]
fn a_leaf_keeps_its_name_and_layout_when_it_is_renewed() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let array = |shape: &[usize], text| b.value(shape, text, |_| 4.0).array().clone();
        let live = b.rec.live_nodes();
        let y = b.rec.renewed(&x, array(&[3], "S(0)")).unwrap();
        assert_eq!((b.rec.id(&y), b.rec.live_nodes()), (b.rec.id(&x), live));
        assert_eq!((b.full(&y), b.full(&x)), (vec![4.0; 3], table(&[3], small)));
        for other in [array(&[3], "R"), array(&[4], "S(0)")] {
            let error = b.rec.renewed(&x, other).unwrap_err();
            assert!(matches!(error, AutogradError::Leaf { .. }), "{error}");
        }
        let twice = mul_scalar(&b.rec, &x, 2.0).unwrap();
        for no_leaf in [&twice, &x.detach()] {
            let error = b.rec.renewed(no_leaf, array(&[3], "S(0)")).unwrap_err();
            assert!(matches!(error, AutogradError::NotTracked { .. }), "{error}");
        }
    });
}

/// A hook that holds its own leaf keeps it, until hooks are forgotten.
#[test]
fn forgetting_hooks_frees_what_they_hold() {
    on_mesh(&[2], |b| {
        let live = b.rec.live_nodes();
        for _ in 0..3 {
            let x = b.leaf(&[3], "S(0)", small);
            let own = x.clone();
            let hook = move |g: &Value| {
                Ok(Some(if own.ndim() == 1 {
                    own.detach()
                } else {
                    g.clone()
                }))
            };
            b.rec.on_gradient(&x, Rc::new(hook)).unwrap();
        }
        assert_eq!(b.rec.live_nodes(), live + 3);
        b.rec.forget_hooks();
        assert_eq!(b.rec.live_nodes(), live);
    });
}

/// A handle removes its own hook alone, also when hooks have been forgotten and added since.
#[test]
fn a_handle_of_a_forgotten_hook_removes_no_other() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[3], "S(0)", small);
        let engine = Rc::clone(b.rec.inner());
        let doubles = move |g: &Value| Ok(Some(mul_scalar(&*engine, g, 2.0)?));
        let forgotten = b.rec.on_gradient(&x, Rc::new(|_| Ok(None))).unwrap();
        b.rec.forget_hooks();
        b.rec.on_gradient(&x, Rc::new(doubles)).unwrap();
        forgotten.remove();
        let loss = sum(&b.rec, &x, &[0], false).unwrap();
        let gradient = b.rec.backward(&loss, None).unwrap().get(&x).unwrap();
        assert_eq!(b.full(&gradient.unwrap()), [2.0; 3]);
    });
}

//! Gradients of a weight that many small products share, which are made together.

use crate::common::{Bench, Telling, close, on, on_mesh, small};
use shard_autograd::Recorder;
use shard_ops::elementwise::{add, mul};
use shard_ops::matmul::{linear, matmul};
use shard_ops::reduce::sum;
use shard_ops::shape::permute;
use shard_ops::{Exec, Value};
use shard_spec::DeviceMesh;

const IN: usize = 4;
const OUT: usize = 5;

/// How a weight stands in a product.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// `x W`, of `[IN, OUT]`.
    Right,
    /// `x Wᵀ`, of `[OUT, IN]`.
    Turned,
    /// `W xᵀ`, of `[OUT, IN]`.
    Left,
}

impl Form {
    fn shape(self) -> [usize; 2] {
        match self {
            Self::Right => [IN, OUT],
            Self::Turned | Self::Left => [OUT, IN],
        }
    }

    /// The result, `[rows, OUT]`.
    fn product(self, exec: &dyn Exec, x: &Value, w: &Value) -> Value {
        let turned = |v: &Value| permute(exec, v, &[1, 0]).unwrap();
        match self {
            Self::Right => matmul(exec, x, w).unwrap(),
            Self::Turned => linear(exec, x, w, None).unwrap(),
            Self::Left => turned(&matmul(exec, w, &turned(x)).unwrap()),
        }
    }
}

fn sample(step: usize, i: &[usize]) -> f64 {
    small(&[step + 2 * i[0], i[1], step])
}

fn factor(step: usize, i: &[usize]) -> f64 {
    small(&[i[1], step, i[0] + 1])
}

/// `Σ c y²` over steps of so many rows each, whose samples lie so.
fn loss(b: &Bench, exec: &dyn Exec, form: Form, w: &Value, steps: &[usize], layout: &str) -> Value {
    let everywhere = vec!["R"; b.cx.mesh().ndim()].join(" ");
    let terms = steps.iter().enumerate().map(|(step, &rows)| {
        let x = b.value(&[rows, IN], layout, |i| sample(step, i));
        let y = form.product(exec, &x, w);
        let c = b.value(&[rows, OUT], &everywhere, |i| factor(step, i));
        let squares = mul(exec, &mul(exec, &y, &y).unwrap(), &c).unwrap();
        sum(exec, &squares, &[0, 1], false).unwrap()
    });
    terms.reduce(|a, b| add(exec, &a, &b).unwrap()).unwrap()
}

/// The gradient by a weight, which lies in the form's shape.
fn slopes(form: Form, w: &[f64], steps: &[usize]) -> Vec<f64> {
    let at = |i: usize, o: usize| match form {
        Form::Right => i * OUT + o,
        Form::Turned | Form::Left => o * IN + i,
    };
    let mut slopes = vec![0.0; IN * OUT];
    for (step, &rows) in steps.iter().enumerate() {
        for row in 0..rows {
            let x = |i: usize| sample(step, &[row, i]);
            for o in 0..OUT {
                let y: f64 = (0..IN).map(|i| x(i) * w[at(i, o)]).sum();
                for i in 0..IN {
                    slopes[at(i, o)] += 2.0 * x(i) * factor(step, &[row, o]) * y;
                }
            }
        }
    }
    slopes
}

/// Of a row 9 numbers wait for a weight of 20, so three steps are made together; of two rows 18; three are as many as the weight.
const STEPS: &[&[usize]] = &[
    &[1; 7],
    &[2, 2, 2],
    &[1, 1, 2, 2, 1, 3, 1, 1],
    &[0, 1, 0, 1, 0],
    &[0, 0],
    &[3, 3],
    &[1],
];

#[test]
fn steps_give_the_sum_of_their_gradients() {
    for (mesh, of_weight, of_samples) in [
        (&[1][..], "R", "R"),
        (&[3], "R", "S(0)"),
        (&[3], "S(0)", "S(1)"),
        (&[3], "S(1)", "P(sum)"),
        (&[2], "R", "S(1)[0,4]"),
        (&[7], "S(0)", "S(0)"),
        (&[2, 2], "S(0) S(1)", "S(0) P(sum)"),
        (&[2, 2], "R S(0)", "S(1) S(1)"),
    ] {
        on_mesh(mesh, |b| {
            for form in [Form::Right, Form::Turned, Form::Left] {
                for &steps in STEPS {
                    let case = || format!("{form:?} {steps:?} {of_weight} {of_samples}");
                    let w = b.leaf(&form.shape(), of_weight, small);
                    let y = loss(b, &b.rec, form, &w, steps, of_samples);
                    let gradients = b.rec.backward(&y, None).unwrap();
                    let dw = gradients.get(&w).unwrap().unwrap();
                    assert_eq!(dw.layout(), w.layout(), "{}", case());
                    let expected = slopes(form, &b.full(&w), steps);
                    assert!(close(&b.full(&dw), &expected), "{}", case());
                    // The derivative of the gradient's sum is the gradient at ones.
                    let y = loss(b, &b.rec, form, &w, steps, of_samples);
                    let dw = b.rec.grad(&[&y], &[&w], &[], true).unwrap();
                    let total = sum(&b.rec, dw[0].as_ref().unwrap(), &[0, 1], false).unwrap();
                    let gradients = b.rec.backward(&total, None).unwrap();
                    let second = gradients.get(&w).unwrap().unwrap();
                    let expected = slopes(form, &[1.0; IN * OUT], steps);
                    assert!(close(&b.full(&second), &expected), "twice: {}", case());
                }
            }
        });
    }
}

/// Ranks beside the mesh have no elements, and go on alike.
#[test]
fn ranks_beside_the_mesh_make_no_less_together() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    on(3, &mesh, |b| {
        let telling = Telling::new();
        let tape = Recorder::new(telling.clone());
        let w = b.value(&[IN, OUT], "S(1)", small);
        let w = tape.leaf(w.array().clone()).unwrap();
        let y = loss(b, &tape, Form::Right, &w, &[1; 7], "S(0)");
        telling.names.borrow_mut().clear();
        let gradients = tape.backward(&y, None).unwrap();
        let dw = gradients.get(&w).unwrap().unwrap();
        assert_eq!(telling.count("matmul"), 3);
        if b.rank() < 2 {
            let w: Vec<f64> = super::common::table(&[IN, OUT], small);
            assert!(close(&b.full(&dw), &slopes(Form::Right, &w, &[1; 7])));
        }
    });
}

#[test]
fn small_steps_are_one_product_and_large_ones_are_their_own() {
    on_mesh(&[2], |b| {
        let telling = Telling::new();
        let tape = Recorder::new(telling.clone());
        let products = |steps: &[usize]| {
            let w = b.value(&[IN, OUT], "R", small);
            let w = tape.leaf(w.array().clone()).unwrap();
            let y = loss(b, &tape, Form::Right, &w, steps, "S(0)");
            telling.names.borrow_mut().clear();
            tape.backward(&y, None).unwrap();
            telling.count("matmul")
        };
        assert_eq!(products(&[1; 6]), 2);
        assert_eq!(products(&[1; 7]), 3);
        assert_eq!(products(&[2; 6]), 3);
        assert_eq!(products(&[3; 6]), 6);
        // Steps of another size stand between.
        assert_eq!(products(&[1, 1, 2, 2, 1, 1]), 3);
    });
}

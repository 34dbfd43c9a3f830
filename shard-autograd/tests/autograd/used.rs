//! Leaves that ops use in another layout than their own.
use crate::common::{Bench, on_mesh};
use shard_autograd::recompute;

use shard_ops::elementwise::mul;
use shard_ops::matmul::matmul;
use shard_ops::reduce::sum;
use shard_ops::{Exec, Value};
use shard_redistribute::Array;
use shard_spec::{DeviceMesh, Layout};

fn squared(b: &Bench, x: &Value) -> Value {
    mul(&b.rec, x, x).unwrap()
}

fn small(i: &[usize]) -> f64 {
    let at = i.iter().fold(1, |at, &i| 3 * at + i);
    (at * 7 % 11) as f64 - 5.0
}

impl Bench {
    fn gathered(&self, shape: &[usize], own: &str, used_as: &str) -> Value {
        let array = self.value(shape, own, small).array().clone();
        let used_as = self.layout(shape, used_as);
        self.rec.leaf_used_as(array, &used_as).unwrap()
    }

    /// `sum((x a)² b)`, all of it twice as large in the second column.
    fn loss(&self, x: &Value, a: &Value, b: &Value) -> Value {
        let hidden = squared(self, &matmul(&self.rec, x, a).unwrap());
        let y = matmul(&self.rec, &hidden, b).unwrap();
        let weights = Layout::replicated(self.cx.mesh(), &[1, 2]);
        let weights = Array::from_fn(&self.cx, &weights, |i| 1.0 + i[1] as f64).unwrap();
        let weights = Value::new(weights);
        sum(
            &self.rec,
            &mul(&self.rec, &y, &weights).unwrap(),
            &[0, 1],
            false,
        )
        .unwrap()
    }
}

#[test]
fn what_is_used_whole_is_gathered_twice_and_its_gradient_reduced_to_the_parts() {
    on_mesh(&[3], |b| {
        let x = b.value(&[7, 4], "S(0)[4,0,3]", small);
        let [a, c] = [[4, 6], [6, 2]].map(|shape| b.leaf(&shape, "R", small));
        let expected = b.rec.backward(&b.loss(&x, &a, &c), None).unwrap();

        for limit in [8, usize::MAX] {
            b.rec.set_bucket_bytes(limit);
            let (p, q) = (
                b.gathered(&[4, 6], "S(0)[1,1,2]", "R"),
                b.gathered(&[6, 2], "S(0)[3,2,1]", "R"),
            );
            let (loss, forward) = b.moved(|| b.loss(&x, &p, &q));
            let missing = |held: [usize; 3], all: usize| (all - held[b.rank()]) * 8;
            let once = missing([6, 6, 12], 24) + missing([6, 4, 2], 12);
            assert_eq!(forward.bytes as usize, once);
            let (gradients, backward) = b.moved(|| {
                let gradients = b.rec.backward(&loss, None).unwrap();
                gradients.reduce().unwrap();
                gradients
            });
            // A sum that is left in parts: of each other rank this one reads its own part.
            let reduced = 2 * 8 * ([6, 6, 12][b.rank()] + [6, 4, 2][b.rank()]);
            assert_eq!(backward.bytes as usize, once + reduced);
            assert_eq!(backward.rounds, if limit == 8 { 4 } else { 3 });
            for (used, plain) in [(&p, &a), (&q, &c)] {
                let gradient = gradients.get(used).unwrap().unwrap();
                assert_eq!(gradient.layout(), used.layout());
                assert_eq!(
                    b.full(&gradient),
                    b.full(&expected.get(plain).unwrap().unwrap())
                );
            }
        }
    });
}

#[test]
fn what_was_gathered_is_freed_after_its_use() {
    on_mesh(&[2], |b| {
        let device = b.cx.device();
        let x = b.value(&[600, 300], "S(0)", small);
        let p = b.gathered(&[300, 300], "S(0)", "R");
        let before = device.memory().live;
        let y = matmul(&b.rec, &x, &p).unwrap();
        let (whole, piece) = (300 * 300 * 8, 300 * 300 * 8);
        assert_eq!(device.memory().live - before, piece);
        device.reset_peak();
        let z = matmul(&b.rec, &squared(b, &y), &p).unwrap();
        let loss = sum(&b.rec, &z, &[0, 1], false).unwrap();
        let gradients = b.rec.backward(&loss, None).unwrap();
        gradients.reduce().unwrap();
        // Besides pieces of activations and of their cotangents: one gathered at a time and one in flight, its gradient before
        // it is reduced.
        let peak = device.memory().peak - before;
        assert!(peak <= 8 * whole + 64, "{peak}");
        drop((x, y, z, loss));
        // Others may still read what this rank reduces.
        b.cx.all().unwrap().barrier().unwrap();
        // The gradient; `x` was there before.
        assert_eq!(device.memory().live + piece - before, whole / 2);
    });
}

#[test]
fn several_axes_tied_uses_and_accumulated_passes() {
    on_mesh(&[2, 2], |b| {
        let x = b.value(&[7, 4], "S(0) S(0)", small);
        let a = b.leaf(&[4, 4], "R R", small);
        let p = b.gathered(&[4, 4], "R S(0)[3,1]", "R R");
        let q = b.gathered(&[4, 4], "S(1)[1,3] S(0)[3,1]", "R S(0)[3,1]");
        let c = b.leaf(&[4, 2], "R R", small);
        let run = |w: &Value| {
            let twice = squared(b, &matmul(&b.rec, &x, w).unwrap());
            b.loss(&twice, w, &c)
        };
        let expected = b.rec.backward(&run(&a), None).unwrap().get(&a).unwrap();
        let expected = b.full(&expected.unwrap());
        let doubled: Vec<f64> = expected.iter().map(|x| 2.0 * x).collect();
        for (limit, used) in [(8, &p), (usize::MAX, &p), (8, &q), (usize::MAX, &q)] {
            b.rec.set_bucket_bytes(limit);
            let mut gradients = b.rec.backward(&run(used), None).unwrap();
            let again = b.rec.backward(&run(used), None).unwrap();
            let once = b.rec.backward(&run(used), None).unwrap();
            assert_eq!(b.full(&once.get(used).unwrap().unwrap()), expected);
            gradients.accumulate(again).unwrap();
            let sum = gradients.get(used).unwrap().unwrap();
            assert_eq!(
                (sum.layout(), b.full(&sum)),
                (used.layout(), doubled.clone())
            );
        }
    });
}

#[test]
fn a_checkpointed_function_gathers_once_more_and_keeps_that_for_its_derivative() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[4, 4], "S(0)", small);
        let p = b.gathered(&[4, 4], "S(0)", "R");
        let square = |b: &Bench, p: Value| {
            let body = move |exec: &shard_autograd::Recorder, inputs: &[Value]| {
                let y = matmul(exec, &inputs[0], &p)?;
                Ok(vec![mul(exec, &y, &y)?])
            };
            let y = recompute(&b.rec, &[&x], body).unwrap().remove(0);
            sum(&b.rec, &y, &[0, 1], false).unwrap()
        };
        let (gradients, moved) = b.moved(|| {
            let gradients = b.rec.backward(&square(b, p.clone()), None).unwrap();
            gradients.reduce().unwrap();
            gradients
        });
        // Gathered in each run of the function, and the gradient.
        assert_eq!(moved.bytes, 3 * 8 * 8);
        let plain = b.leaf(&[4, 4], "R", small);
        let expected = b.rec.backward(&square(b, plain.clone()), None).unwrap();
        let of = |g: &shard_autograd::Gradients, v: &Value| b.full(&g.get(v).unwrap().unwrap());
        assert_eq!(of(&gradients, &p), of(&expected, &plain));
        assert_eq!(of(&gradients, &x), of(&expected, &x));
    });
}

#[test]
fn derivatives_of_derivatives_gather_too() {
    on_mesh(&[2], |b| {
        let x = b.value(&[3, 4], "S(0)", small);
        let second = |w: &Value| {
            let y = matmul(&b.rec, &x, w).unwrap();
            let loss = sum(
                &b.rec,
                &mul(&b.rec, &y, &mul(&b.rec, &y, &y).unwrap()).unwrap(),
                &[0, 1],
                false,
            )
            .unwrap();
            let first = b
                .rec
                .grad(&[&loss], &[w], &[], true)
                .unwrap()
                .remove(0)
                .unwrap();
            assert_eq!(first.layout(), w.layout());
            let size = sum(
                &b.rec,
                &mul(&b.rec, &first, &first).unwrap(),
                &[0, 1],
                false,
            )
            .unwrap();
            let second = b
                .rec
                .grad(&[&size], &[w], &[], false)
                .unwrap()
                .remove(0)
                .unwrap();
            assert_eq!(second.layout(), w.layout());
            b.full(&second)
        };
        let (plain, used) = (
            b.leaf(&[4, 2], "R", small),
            b.gathered(&[4, 2], "S(0)", "R"),
        );
        assert_eq!(second(&used), second(&plain));
    });
}

#[test]
fn without_a_tape_and_by_explicit_moves() {
    on_mesh(&[2], |b| {
        let x = b.value(&[4, 4], "S(0)", small);
        let p = b.gathered(&[4, 4], "S(0)", "R");
        assert_eq!(b.rec.layout_in_use(&p), b.layout(&[4, 4], "R"));
        let y = b.rec.no_grad(|| matmul(&b.rec, &x, &p)).unwrap();
        assert!(!b.rec.is_tracked(&y) && y.layout() == x.layout());
        // What is moved as told is no longer gathered.
        let columns = b.rec.redistribute(&p, &b.layout(&[4, 4], "S(1)")).unwrap();
        let z = matmul(&b.rec, &b.value(&[4, 4], "R", small), &columns).unwrap();
        assert_eq!(z.layout().to_string(), "S(1)");
        let other = b.value(&[4, 4], "S(0)", small).array().clone();
        let turned = DeviceMesh::with_ranks(&[2], vec![1, 0]).unwrap();
        for bad in [
            b.layout(&[2, 8], "R"),
            b.layout(&[4, 4], "P(sum)"),
            Layout::parse(&turned, &[4, 4], "S(1)").unwrap(),
        ] {
            let error = b.rec.leaf_used_as(other.clone(), &bad).unwrap_err();
            assert!(error.to_string().contains("leaf_used_as"), "{error}");
        }
    });
}

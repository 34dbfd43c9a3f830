//! Leaves that are sent for ahead of their use.
use crate::common::{Bench, on_mesh};
use shard_autograd::recompute;

use shard_ops::matmul::matmul;
use shard_ops::reduce::sum;
use shard_ops::{Exec, Value};
use shard_redistribute::Array;
use shard_spec::Layout;

const WIDTH: usize = 5;

/// Fractions, so that sums differ in their last bits where they are taken in another order.
fn fraction(i: &[usize]) -> f64 {
    let at = i.iter().fold(1, |at, &i| 7 * at + i);
    (at % 13) as f64 / 7.0 - 1.0
}

impl Bench {
    /// A square matrix in uneven parts that ops use whole.
    fn part(&self, number: usize) -> Value {
        let rest = WIDTH - 1 - (self.cx.mesh().size() - 2);
        let sizes: Vec<_> = (2..self.cx.mesh().size()).map(|_| ",1").collect();
        let own = format!("S(0)[{rest},1{}]", sizes.concat());
        let value = self.value(&[WIDTH, WIDTH], &own, |i| fraction(&[number, i[0], i[1]]));
        let used_as = Layout::replicated(self.cx.mesh(), &[WIDTH, WIDTH]);
        (self.rec.leaf_used_as(value.array().clone(), &used_as)).unwrap()
    }

    /// `x w w ...`
    fn chain(&self, exec: &dyn Exec, x: &Value, weights: &[&Value]) -> Value {
        (weights.iter()).fold(x.clone(), |x, w| matmul(exec, &x, w).unwrap())
    }

    /// The loss of a chain and its gradients.
    fn step(&self, x: &Value, weights: &[&Value]) -> (Value, Vec<Vec<f64>>) {
        let y = self.chain(&self.rec, x, weights);
        let loss = sum(&self.rec, &y, &[0, 1], false).unwrap();
        let gradients = self.rec.backward(&loss, None).unwrap();
        let of = |w: &&Value| self.full(&gradients.get(w).unwrap().unwrap());
        let found = weights.iter().map(of).collect();
        (loss, found)
    }

    /// Which parameters were sent for, waited for and used, in order.
    fn events(&self, f: impl FnOnce()) -> String {
        self.cx.world().ledger().trace(true);
        f();
        self.cx.world().ledger().trace(false);
        let name = |label: &str| match label {
            "post gather" => "send ",
            "wait gather" => "wait ",
            "kernel matmul" => "op ",
            _ => "",
        };
        let events = self.cx.world().ledger().events();
        events.iter().map(|e| name(&e.label)).collect()
    }
}

#[test]
fn the_next_one_flies_while_ops_run() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[6, WIDTH], "S(0)", fraction);
        let (p, q, r) = (b.part(0), b.part(1), b.part(2));
        let all = [&p, &q, &r];
        let forward = || drop(b.chain(&b.rec, &x, &all));
        // A vjp has two products.
        let back = "send wait send op op wait send op op wait op op ";
        let synchronous = "send wait op send wait op send wait op ";
        let step = || drop(b.step(&x, &all));
        assert_eq!(b.events(step), format!("{synchronous}{back}"));
        let ahead = "send wait send op wait send op wait op ";
        for _ in 0..2 {
            assert_eq!(b.events(step), format!("{ahead}{back}"));
        }
        assert_eq!(b.events(forward), ahead);
        // Off the tape uses come in runs of their own, which begin again with the first leaf.
        let unrecorded = || b.rec.no_grad(forward);
        assert_eq!(b.events(unrecorded), synchronous);
        for _ in 0..2 {
            assert_eq!(b.events(unrecorded), ahead);
        }
        assert!(b.rec.set_gathers_ahead(false));
        let back = "send wait op op ".repeat(3);
        assert_eq!(b.events(step), format!("{synchronous}{back}"));
        assert!(!b.rec.set_gathers_ahead(true));
    });
}

#[test]
fn functions_that_run_again_send_for_theirs() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[6, WIDTH], "S(0)", fraction);
        let weights: Vec<Value> = (0..4).map(|i| b.part(i)).collect();
        let (stem, head) = (b.part(4), b.part(5));
        let step = || {
            let mut y = matmul(&b.rec, &x, &stem).unwrap();
            for pair in weights.chunks(2) {
                let pair = pair.to_vec();
                y = recompute(&b.rec, &[&y], move |exec, inputs| {
                    let y = matmul(exec, &inputs[0], &pair[0])?;
                    Ok(vec![matmul(exec, &y, &pair[1])?])
                })
                .unwrap()
                .remove(0);
            }
            y = matmul(&b.rec, &y, &head).unwrap();
            let loss = sum(&b.rec, &y, &[0, 1], false).unwrap();
            let gradients = b.rec.backward(&loss, None).unwrap();
            gradients.reduce().unwrap();
        };
        let (_, first) = b.moved(step);
        let ahead = "send wait ".to_owned() + &"send op wait ".repeat(5) + "op ";
        let again = "send wait send op wait op op op op op ".repeat(2);
        let plain = "send wait op op ";
        assert_eq!(b.events(step), format!("{ahead}{plain}{again}{plain}"));
        let (_, later) = b.moved(step);
        assert_eq!(later.bytes, first.bytes);
    });
}

#[test]
fn bits_and_bytes_are_those_of_gathers_in_their_turn() {
    for ranks in [2, 3, 4] {
        on_mesh(&[ranks], |b| {
            let steps = |ahead: bool| {
                b.rec.set_gathers_ahead(ahead);
                let x = b.leaf(&[7, WIDTH], "S(0)", fraction);
                let mut weights: Vec<Value> = (0..3).map(|i| b.part(i)).collect();
                let run = |_| {
                    let refs: Vec<&Value> = weights.iter().collect();
                    let ((_, gradients), moved) = b.moved(|| b.step(&x, &refs));
                    // The next step's parameters.
                    for (w, gradient) in weights.iter_mut().zip(&gradients) {
                        let next = |i: &[usize]| gradient[WIDTH * i[0] + i[1]] / 100.0;
                        let next = Array::from_fn(&b.cx, w.layout(), next).unwrap();
                        *w = b.rec.renewed(w, next).unwrap();
                    }
                    (gradients, moved.bytes, moved.messages)
                };
                (0..4).map(run).collect::<Vec<_>>()
            };
            assert_eq!(steps(true), steps(false));
        });
    }
}

#[test]
fn another_order_than_before_is_harmless() {
    // By number of the leaf. Some orders come again, some begin alike, in some a leaf comes twice.
    let orders: [&[usize]; 12] = [
        &[0, 1, 2],
        &[0, 1, 2],
        &[0, 2, 1],
        &[0, 1],
        &[1, 0, 1, 2],
        &[1, 0, 1, 2],
        &[0, 0, 2],
        &[2],
        &[0, 1, 2],
        &[0, 1, 2],
        &[0, 1, 2],
        &[1, 0, 1],
    ];
    on_mesh(&[3], |b| {
        let x = b.leaf(&[4, WIDTH], "S(0)", fraction);
        let run = |ahead: bool| {
            b.rec.set_gathers_ahead(ahead);
            let leaves = [b.part(0), b.part(1), b.part(2)];
            let step = |order: &&[usize]| {
                let weights: Vec<&Value> = order.iter().map(|&i| &leaves[i]).collect();
                // A loss without a derivative, then one with.
                let y = b.rec.no_grad(|| b.chain(&b.rec, &x, &weights));
                let ((loss, gradients), moved) = b.moved(|| b.step(&x, &weights));
                (b.full(&y), b.full(&loss), gradients, moved.bytes)
            };
            orders.iter().map(step).collect::<Vec<_>>()
        };
        let (ahead, plain) = (run(true), run(false));
        let mut in_vain = 0;
        for (at, (ahead, plain)) in ahead.iter().zip(&plain).enumerate() {
            assert_eq!(
                (&ahead.0, &ahead.1, &ahead.2),
                (&plain.0, &plain.1, &plain.2)
            );
            let more = (ahead.3 - plain.3) as usize;
            let most = WIDTH * WIDTH * 8;
            assert!(more < most, "{more} bytes more in step {at}");
            in_vain += usize::from(more > 0);
        }
        assert!(in_vain <= 3, "{in_vain} gathers in vain");
        assert_eq!(ahead[10].3, plain[10].3);
    });
}

#[test]
fn a_leaf_that_one_rank_alone_still_has() {
    on_mesh(&[3], |b| {
        let x = b.leaf(&[4, WIDTH], "S(0)", fraction);
        let (p, q, new) = (b.part(0), b.part(1), b.part(2));
        for _ in 0..2 {
            b.step(&x, &[&p, &q]);
        }
        // The others have nothing to send when this one is expected.
        let kept = (b.rank() == 1).then_some(q);
        for _ in 0..2 {
            let (loss, found) = b.step(&x, &[&p, &new]);
            b.rec.set_gathers_ahead(false);
            let (expected, gradients) = b.step(&x, &[&p, &new]);
            b.rec.set_gathers_ahead(true);
            assert_eq!((b.full(&loss), found), (b.full(&expected), gradients));
        }
        drop(kept);
    });
}

#[test]
fn an_older_array_is_not_mistaken_for_the_present_one() {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[4, WIDTH], "S(0)", fraction);
        let (p, q) = (b.part(0), b.part(1));
        let (before, _) = b.step(&x, &[&p, &q]);
        // Nothing is recorded between the two, so the history gives both the same number.
        let zeros = Array::from_fn(&b.cx, q.layout(), |_| 0.0).unwrap();
        let zero = b.rec.renewed(&q, zeros).unwrap();
        let (old, _) = b.step(&x, &[&p, &q]);
        assert_eq!(b.full(&old), b.full(&before));
        let (new, _) = b.step(&x, &[&p, &zero]);
        assert_eq!(b.full(&new), [0.0]);
    });
}

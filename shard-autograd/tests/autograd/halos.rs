//! Halos: what an op fetched of its input stays with the value, so that its gradient by the weight, and other ops that read as far,
//! do not fetch it again.

use crate::common::{Bench, on_mesh, small};
use shard_autograd::{Recorder, recompute};
use shard_comm::DType;
use shard_ops::conv::{ConvOptions, ConvTransposeOptions, Padding, conv, conv_transpose};
use shard_ops::elementwise::{cast, mul};
use shard_ops::neighborhood::{Neighborhood, neighborhood_attention};
use shard_ops::pool::{PoolOptions, avg_pool};
use shard_ops::reduce::sum;
use shard_ops::{Exec, Value};
use shard_redistribute::Array;

/// Batch, channels, rows, columns.
const SHAPE: [usize; 4] = [2, 2, 16, 5];

/// Bytes of a row of all of a tensor of [`SHAPE`].
const ROW: u64 = 8 * 2 * 2 * 5;

fn same() -> ConvOptions {
    ConvOptions {
        padding: Padding::Same,
        ..ConvOptions::default()
    }
}

/// Two convolutions with kernels of three rows and columns, and squares between them.
struct Net {
    x: Value,
    weights: [Value; 2],
}

impl Net {
    fn new(b: &Bench, at: &str) -> Self {
        let everywhere = vec!["R"; b.cx.mesh().ndim()].join(" ");
        let weight = || b.leaf(&[2, 2, 3, 3], &everywhere, small);
        Self {
            x: b.leaf(&SHAPE, at, small),
            weights: [weight(), weight()],
        }
    }

    fn forward(rec: &Recorder, x: &Value, [v, w]: &[Value; 2]) -> Value {
        let hidden = conv(rec, x, v, None, &same()).unwrap();
        let hidden = mul(rec, &hidden, &hidden).unwrap();
        conv(rec, &hidden, w, None, &same()).unwrap()
    }

    fn run(&self, b: &Bench) -> Value {
        Self::forward(&b.rec, &self.x, &self.weights)
    }

    /// The gradients of the product of `y` with `small`, and what the pass moved without the sums of the weights' gradients.
    fn gradients(&self, b: &Bench, y: &Value) -> (Vec<Vec<f64>>, u64) {
        let seed = Value::new(Array::from_fn(&b.cx, y.layout(), small).unwrap());
        let (found, moved) = b.moved(|| b.rec.backward(y, Some(&seed)).unwrap());
        let of = |v: &Value| b.full(&found.get(v).unwrap().unwrap());
        let all = [&self.x, &self.weights[0], &self.weights[1]].map(of);
        (all.into(), moved.bytes)
    }
}

/// What one rank finds.
fn expected() -> (Vec<f64>, Vec<Vec<f64>>) {
    on_mesh(&[1], |b| {
        let net = Net::new(b, "R");
        let y = net.run(b);
        (b.full(&y), net.gradients(b, &y).0)
    })
    .remove(0)
}

#[test]
fn a_step_moves_each_halo_once_each_way() {
    let (result, gradients) = expected();
    // Interiors of most of a part, of little of it, of nothing, and of parts that are less than a halo.
    for (at, rows) in [
        ("S(2)[6,5,5]", [1, 2, 1]),
        ("S(2)[3,10,3]", [1, 2, 1]),
        ("S(2)[14,1,1]", [1, 2, 1]),
        ("S(2)[8,0,8]", [1, 0, 1]),
    ] {
        on_mesh(&[3], |b| {
            let net = Net::new(b, at);
            let (y, forward) = b.moved(|| net.run(b));
            let halo = rows[b.rank()] * ROW;
            assert_eq!(forward.bytes, 2 * halo, "forward, {at}");
            assert_eq!(b.full(&y), result, "{at}");
            // Backward only the cotangents' halos move; and so again where the graph is used again.
            for _ in 0..2 {
                let (found, backward) = net.gradients(b, &y);
                assert_eq!(backward, 2 * halo, "backward, {at}");
                assert_eq!(found, gradients, "{at}");
            }
        });
    }
}

#[test]
fn halos_of_two_dims_bring_their_corners_along() {
    let (result, gradients) = expected();
    on_mesh(&[2, 2], |b| {
        let net = Net::new(b, "S(2)[9,7] S(3)[3,2]");
        let (y, forward) = b.moved(|| net.run(b));
        let [rows, columns] = [[9, 7][b.rank() / 2], [3, 2][b.rank() % 2]];
        let halo = 8 * 2 * 2 * (rows + columns + 1);
        assert_eq!(forward.bytes, 2 * halo);
        assert_eq!(b.full(&y), result);
        let (found, backward) = net.gradients(b, &y);
        assert_eq!(found, gradients);
        // Nothing moves for the gradients by the weights.
        let seed = Value::new(Array::from_fn(&b.cx, y.layout(), small).unwrap());
        let by_input = || b.rec.grad(&[&y], &[&net.x], &[Some(&seed)], false);
        let (_, alone) = b.moved(|| by_input().unwrap());
        assert!(alone.bytes > 0);
        assert_eq!(backward, alone.bytes);
    });
}

#[test]
fn what_is_kept_is_what_was_fetched_and_goes_with_the_value() {
    on_mesh(&[3], |b| {
        let live = || b.cx.device().memory().live as u64;
        let at = "S(2)[6,5,5]";
        let net = Net::new(b, at);
        let before = live();
        let apart = net.run(b);
        let held = live() - before;
        drop(apart);
        // The first input outlives its graph, and so does its halo.
        let halo = [1, 2, 1][b.rank()] * ROW;
        let outputs = [6, 5, 5][b.rank()] * ROW;
        let about = |bytes: u64, expected: u64| (expected..expected + 1024).contains(&bytes);
        assert!(
            about(live() - before, halo),
            "{} bytes stay",
            live() - before
        );
        // The results of all three ops, and the halos of the two convolutions' inputs.
        assert!(about(held, 3 * outputs + 2 * halo), "{held} bytes are held");
    });
}

#[test]
fn a_checkpointed_function_fetches_again_what_is_computed_again() {
    let (result, gradients) = expected();
    on_mesh(&[3], |b| {
        let net = Net::new(b, "S(2)[6,5,5]");
        let weights = net.weights.clone();
        let (y, forward) = b.moved(|| {
            let f = move |rec: &Recorder, x: &[Value]| Ok(vec![Net::forward(rec, &x[0], &weights)]);
            recompute(&b.rec, &[&net.x], f).unwrap().remove(0)
        });
        let halo = [1, 2, 1][b.rank()] * ROW;
        assert_eq!(forward.bytes, 2 * halo);
        assert_eq!(b.full(&y), result);
        // The function's input is the value that it was; what lies between is another.
        let (found, backward) = net.gradients(b, &y);
        assert_eq!(backward, 3 * halo);
        assert_eq!(found, gradients);
    });
}

#[test]
fn a_value_that_lies_elsewhere_has_another_halo() {
    let (_, gradients) = expected();
    on_mesh(&[2], |b| {
        let net = Net::new(b, "S(2)");
        let columns = b.layout(&SHAPE, "S(3)");
        drop(net.run(b));
        let moved = b.rec.redistribute(&net.x, &columns).unwrap();
        let y = Net::forward(&b.rec, &moved, &net.weights);
        assert_eq!(y.layout(), &columns);
        assert_eq!(net.gradients(b, &y).0, gradients);
    });
}

#[test]
fn values_without_a_tape_keep_halos_for_ops_that_say_so() {
    on_mesh(&[2], |b| {
        let net = Net::new(b, "S(2)");
        let apply = || conv(&b.rec, &net.x, &net.weights[0], None, &same()).unwrap();
        let (first, fetched) = b.moved(|| b.rec.no_grad(apply));
        assert_eq!(fetched.bytes, ROW);
        // A clone is the same value, and the second convolution reads as far as the first one.
        let (second, fetched) = b.moved(|| b.rec.no_grad(apply));
        assert_eq!(fetched.bytes, 0);
        assert_eq!(b.full(&first), b.full(&second));
        // Its derivative does not read what an average read.
        let options = PoolOptions {
            stride: vec![1],
            padding: vec![1],
            ..PoolOptions::new([3])
        };
        for _ in 0..2 {
            let (_, fetched) = b.moved(|| avg_pool(&b.rec, &first, &options).unwrap());
            assert_eq!(fetched.bytes, ROW);
        }
    });
}

#[test]
fn both_gradients_of_a_transposed_convolution_read_one_halo() {
    let run = |ranks: usize, at: &str| {
        on_mesh(&[ranks], |b| {
            let x = b.leaf(&SHAPE, at, small);
            let w = b.leaf(&[2, 2, 3, 3], "R", small);
            let options = ConvTransposeOptions {
                padding: vec![(1, 1)],
                ..ConvTransposeOptions::default()
            };
            let y = conv_transpose(&b.rec, &x, &w, None, &options).unwrap();
            let seed = b.value(y.shape(), at, small);
            let (found, moved) = b.moved(|| b.rec.backward(&y, Some(&seed)).unwrap());
            let of = |v| b.full(&found.get(v).unwrap().unwrap());
            ([of(&x), of(&w)], moved.bytes)
        })
    };
    let alone = run(1, "R").remove(0).0;
    for (rank, (found, bytes)) in run(3, "S(2)[6,5,5]").into_iter().enumerate() {
        assert_eq!(bytes, [1, 2, 1][rank] * ROW);
        assert_eq!(found, alone);
    }
}

#[test]
fn keys_and_values_near_queries_are_fetched_once() {
    let near = Neighborhood::new([3]).scale(0.125);
    let shape = [1, 12, 2, 4];
    let run = |ranks: usize, at: &str| {
        on_mesh(&[ranks], |b| {
            let [q, k, v] = [0, 1, 2].map(|n| {
                let value = move |i: &[usize]| small(i) * [0.5, 0.25, 1.0][n];
                b.leaf(&shape, at, value)
            });
            let (y, forward) =
                b.moved(|| neighborhood_attention(&b.rec, &q, &k, &v, &near).unwrap());
            let seed = b.value(&shape, at, small);
            let (found, moved) = b.moved(|| b.rec.backward(&y, Some(&seed)).unwrap());
            let of = |v| b.full(&found.get(v).unwrap().unwrap());
            ([of(&q), of(&k), of(&v)], [forward.bytes, moved.bytes])
        })
    };
    let alone = run(1, "R").remove(0).0;
    for (rank, (found, moved)) in run(3, "S(1)").into_iter().enumerate() {
        // Of keys and values a site at each side; on the way back queries and their cotangents, and two numbers per head.
        let sites = [1, 2, 1][rank];
        assert_eq!(moved, [2 * 64, 2 * 64 + 2 * 16].map(|site| site * sites));
        for (found, alone) in found.iter().flatten().zip(alone.iter().flatten()) {
            assert!((found - alone).abs() < 1e-12, "{found}, not {alone}");
        }
    }
}

#[test]
fn halos_of_16_bits_are_kept_as_they_are() {
    let run = |ranks: usize, at: &str| {
        on_mesh(&[ranks], |b| {
            let exec = &**b.rec.inner();
            let half = |shape: &[usize], at: &str| {
                let value = cast(exec, &b.value(shape, at, small), DType::BF16).unwrap();
                b.rec.leaf(value.into_array()).unwrap()
            };
            let (x, w) = (half(&SHAPE, at), half(&[2, 2, 3, 3], "R"));
            let (y, forward) = b.moved(|| conv(&b.rec, &x, &w, None, &same()).unwrap());
            let seed = half(&SHAPE, at).detach();
            let (found, moved) = b.moved(|| b.rec.backward(&y, Some(&seed)).unwrap());
            let whole = |v: &Value| b.full(&cast(exec, v, DType::F64).unwrap());
            let of = |v| whole(&found.get(v).unwrap().unwrap());
            ([whole(&y), of(&x), of(&w)], [forward.bytes, moved.bytes])
        })
    };
    let alone = run(1, "R").remove(0).0;
    for (rank, (found, moved)) in run(3, "S(2)[6,5,5]").into_iter().enumerate() {
        // Backward also the terms of the weight's gradient, of which the sum is taken in `f32` before it is rounded.
        let (halo, terms) = ([1, 2, 1][rank] * ROW / 4, 2 * 36 * 4);
        assert_eq!(moved, [halo, halo + terms]);
        assert_eq!(found, alone);
    }
}

#[test]
fn derivatives_of_derivatives_read_kept_halos() {
    let run = |ranks: usize, at: &str| {
        on_mesh(&[ranks], |b| {
            let net = Net::new(b, at);
            let y = net.run(b);
            let loss = sum(&b.rec, &mul(&b.rec, &y, &y).unwrap(), &[0, 1, 2, 3], false).unwrap();
            let [v, w] = &net.weights;
            let first = b.rec.grad(&[&loss], &[v], &[], true).unwrap();
            let dv = first[0].clone().unwrap();
            let squares = mul(&b.rec, &dv, &dv).unwrap();
            let total = sum(&b.rec, &squares, &[0, 1, 2, 3], false).unwrap();
            let second = b.rec.backward(&total, None).unwrap();
            [v, w, &net.x].map(|of| b.full(&second.get(of).unwrap().unwrap()))
        })
        .remove(0)
    };
    let alone = run(1, "R");
    for at in ["S(2)[6,5,5]", "S(2)[14,1,1]"] {
        for (found, alone) in run(3, at).iter().flatten().zip(alone.iter().flatten()) {
            let near = (found - alone).abs() <= 1e-9 * alone.abs().max(1.0);
            assert!(near, "{at}: {found}, not {alone}");
        }
    }
}

//! The tape keeps what a vjp looks at, and nothing else.

use crate::common::{on_mesh, small};
use shard_ops::elementwise::{add, add_scalar, mul, mul_scalar};
use shard_ops::reduce::sum;
use shard_ops::{Exec, Value};

const N: usize = 1 << 16;

/// Live bytes that a chain of four linear ops, or of four products, holds on to; and the gradient.
fn chain(op: fn(&dyn Exec, &Value) -> Value) -> (u64, f64) {
    on_mesh(&[2], |b| {
        let x = b.leaf(&[N], "S(0)", small);
        let before = b.cx.device().memory().live;
        let mut y = x.clone();
        for _ in 0..4 {
            y = op(&b.rec, &y);
        }
        let loss = sum(&b.rec, &y, &[0], false).unwrap();
        drop(y);
        let held = b.cx.device().memory().live - before;
        let grads = b.rec.backward(&loss, None).unwrap();
        let dx = grads.get(&x).unwrap().unwrap();
        assert_eq!(dx.layout(), x.layout());
        (held as u64, b.full(&dx)[0])
    })
    .remove(0)
}

#[test]
fn linear_ops_keep_no_elements() {
    let (held, slope) = chain(|e, v| {
        let twice = add(e, v, v).unwrap();
        add_scalar(e, &mul_scalar(e, &twice, 0.5).unwrap(), 1.0).unwrap()
    });
    assert_eq!(slope, 1.0);
    // Only the loss, a scalar, is held; no intermediate of N / 2 elements is.
    assert!(held < 4096, "{held} bytes are held");
}

#[test]
fn products_keep_their_factors() {
    let (held, _) = chain(|e, v| mul(e, v, v).unwrap());
    // The inputs of the second to fourth products are held; that of the first is the leaf.
    let piece = 8 * (N / 2) as u64;
    assert!(
        (3 * piece..4 * piece).contains(&held),
        "{held} bytes are held"
    );
}

//! Results and gradients of what is applied to inputs on a mesh.

use crate::case::{Data, Tensor};
use crate::harness::{On, on_mesh};
use crate::strategies::integer;
use shard_autograd::Recorder;
use shard_comm::DType;
use shard_ops::Value;
use shard_ops::testing::{place, tensor, whole};
use shard_spec::{DeviceMesh, Layout};

/// Eighths of small whole numbers.
pub fn numbers(shape: &[usize], seed: u64) -> Tensor {
    tensor(shape, |i| integer(seed, i) / 8.0)
}

/// The elements as doubles.
///
/// # Panics
/// For anything but doubles and indices.
pub fn values(t: &Tensor) -> Vec<f64> {
    match &*t.data {
        Data::F64(v) => v.clone(),
        Data::I64(v) => v.iter().map(|&i| i as f64).collect(),
        other => panic!("expected doubles or indices, got {}", other.dtype()),
    }
}

/// Differentiates the sum of squares of the first of what `f` makes of the inputs on a mesh: results, then gradients, gathered.
///
/// # Panics
/// Where an op reports an error, or ranks compute different bits.
pub fn run(
    mesh: &DeviceMesh,
    layouts: &[Layout],
    inputs: &[Tensor],
    f: impl Fn(&Recorder, &[Value]) -> Vec<Value> + Sync,
) -> Vec<Vec<f64>> {
    run_on(On::Host, mesh, layouts, inputs, f)
}

/// [`run`], on a device of choice.
///
/// # Panics
/// As [`run`].
pub fn run_on(
    on: On,
    mesh: &DeviceMesh,
    layouts: &[Layout],
    inputs: &[Tensor],
    f: impl Fn(&Recorder, &[Value]) -> Vec<Value> + Sync,
) -> Vec<Vec<f64>> {
    let ranks = on_mesh(mesh, on, |cx| {
        let tape = crate::trial::recorder();
        let leaves: Vec<Value> = inputs
            .iter()
            .zip(layouts)
            .map(|(t, layout)| {
                tape.leaf(place(cx, layout, t, DType::F64).unwrap())
                    .unwrap()
            })
            .collect();
        let outputs = f(&tape, &leaves);
        // The cotangent of the sum of squares, halved, is the result itself.
        let seed = outputs[0].detach();
        let wanted: Vec<&Value> = leaves.iter().collect();
        let grads = tape
            .grad(&[&outputs[0]], &wanted, &[Some(&seed)], false)
            .unwrap();
        // As bits, which every rank tells the others as they are: distances may be infinite.
        let gathered = |v: &Value| -> Vec<u64> {
            let numbers = values(&whole(v.array()).unwrap());
            numbers.into_iter().map(f64::to_bits).collect()
        };
        let results = outputs.iter().map(gathered);
        results
            .chain(grads.iter().map(|g| gathered(g.as_ref().unwrap())))
            .collect::<Vec<_>>()
    });
    for other in &ranks[1..] {
        assert_eq!(other, &ranks[0], "ranks computed different bits");
    }
    let numbers = |bits: &Vec<u64>| bits.iter().map(|&b| f64::from_bits(b)).collect();
    ranks[0].iter().map(numbers).collect()
}

/// Asserts that numbers are equal but for the rounding of sums.
///
/// # Panics
/// Where they are not.
pub fn close(what: &str, a: &[Vec<f64>], b: &[Vec<f64>]) {
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len());
        let size = b.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
        for (x, y) in a.iter().zip(b) {
            assert!(
                (x - y).abs() <= 1e-10 * size,
                "{what}, number {i}: {x} and {y}"
            );
        }
    }
}

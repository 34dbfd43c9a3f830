//! What contractions and Fourier transforms send.

use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DType};
use shard_ops::einsum::einsum;
use shard_ops::fft::{self, FourierNorm};
use shard_ops::{Engine, EngineOptions, Value};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;

/// The bytes that each rank received and how often it met the others, in `f` of operands that lie so, and the results'
/// layouts.
fn moved(
    mesh: &[usize],
    operands: &[(&[usize], &str)],
    f: impl Fn(&Engine, &[&Value]) -> Value + Sync,
) -> Vec<(u64, usize, String)> {
    let mesh = DeviceMesh::new(mesh).unwrap();
    local::run_with(mesh.size(), &LocalOptions::default(), |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let engine = Engine::new(EngineOptions::default());
        let place = |(shape, placed): &(&[usize], &str)| {
            let layout = Layout::parse(&mesh, shape, placed).unwrap();
            let number = |i: &[usize]| (i.iter().sum::<usize>() % 7) as f64;
            Value::new(Array::from_fn::<f64>(&cx, &layout, number).unwrap())
        };
        let values: Vec<Value> = operands.iter().map(place).collect();
        assert!(values.iter().all(|v| v.dtype() == DType::F64));
        let before = cx.world().ledger().snapshot();
        let y = f(&engine, &values.iter().collect::<Vec<_>>());
        let since = cx.world().ledger().since(&before);
        let rounds = since
            .ops
            .iter()
            .map(|(_, count)| count.rounds as usize)
            .sum();
        (since.bytes, rounds, y.layout().to_string())
    })
    .unwrap()
}

#[test]
fn a_sharded_letter_that_is_summed_sends_nothing_and_the_result_waits_as_terms() {
    let operands: [(&[usize], &str); 2] = [(&[3, 7, 4], "S(1)"), (&[5, 7, 2], "S(1)")];
    for (bytes, _, layout) in moved(&[3], &operands, |e, v| {
        einsum(e, "aib,cid->abcd", v).unwrap()
    }) {
        assert_eq!((bytes, layout.as_str()), (0, "P(sum)"));
    }
}

#[test]
fn letters_that_both_shard_alike_send_nothing() {
    let operands: [(&[usize], &str); 2] = [(&[6, 4, 5], "S(0) S(1)"), (&[6, 5, 3], "S(0) R")];
    for (bytes, _, layout) in moved(&[2, 2], &operands, |e, v| {
        einsum(e, "bij,bjk->bik", v).unwrap()
    }) {
        assert_eq!((bytes, layout.as_str()), (0, "S(0) S(1)"));
    }
}

#[test]
fn a_transform_of_both_dims_over_both_axes_is_two_exchanges_of_pencils() {
    // 8 x 8 complex doubles on 2 x 2 ranks: 16 on each.
    let operands: [(&[usize], &str); 1] = [(&[8, 8, 2], "S(0) S(1)")];
    let all = moved(&[2, 2], &operands, |e, v| {
        fft::fftn(e, v[0], None, &[0, 1], FourierNorm::Backward).unwrap()
    });
    for (bytes, rounds, layout) in all {
        // Half of a piece stays in the first exchange, which is within pairs, and a quarter in the second.
        assert_eq!(bytes, (16 / 2 + 16 * 3 / 4) * 16, "{layout}");
        assert_eq!(rounds, 2, "{layout}");
        assert_eq!(layout, "S(1) S(1)");
    }
}

#[test]
fn a_transform_of_a_dim_that_is_whole_sends_nothing() {
    let operands: [(&[usize], &str); 1] = [(&[7, 6, 2], "S(0)")];
    for (bytes, _, layout) in moved(&[3], &operands, |e, v| {
        fft::ifft(e, v[0], None, 1, FourierNorm::Ortho).unwrap()
    }) {
        assert_eq!((bytes, layout.as_str()), (0, "S(0)"));
    }
}

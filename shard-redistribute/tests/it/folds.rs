//! Exchanges within a rank that fold what falls on the same elements.

use half::bf16;
use shard_comm::{Buffer, Communicator, Element, Monoid, Scalar, local};
use shard_redistribute::{ExchangeBuilder, MeshComm, Source};
use shard_spec::{DeviceMesh, DimMap, Layout};
use std::rc::Rc;

/// The result of folding arrays of one dim, each placed somewhere in `len` elements, on one rank.
fn folded<T: Element>(
    len: usize,
    monoid: Monoid,
    fill: Option<Scalar>,
    arrays: &[(usize, &[T])],
) -> Vec<T> {
    let mesh = DeviceMesh::new(&[1]).unwrap();
    let target = Layout::replicated(&mesh, &[len]);
    let mut builder = ExchangeBuilder::onto("fold", &target).fold(monoid);
    for &(at, values) in arrays {
        builder = builder.source(Source {
            layout: Layout::replicated(&mesh, &[values.len()]),
            maps: vec![DimMap::place(values.len(), len, at).unwrap()],
        });
    }
    if let Some(value) = fill {
        builder = builder.fill(value);
    }
    let exchange = builder.build(0);
    assert!(exchange.is_local());
    let results = local::run(1, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let sources: Vec<Buffer> = arrays
            .iter()
            .map(|(_, values)| cx.device().upload_slice(values).unwrap())
            .collect();
        let result = exchange.run(&cx, T::DTYPE, &sources).unwrap();
        result.to_vec::<T>().unwrap()
    });
    results.unwrap().remove(0)
}

#[test]
fn local_folds_leave_the_whole_identity_where_nothing_falls() {
    let (one, two): (&[f64], &[f64]) = (&[1.0, 2.0, 5.0, 3.0], &[1.0, 4.0]);
    let sums = folded(8, Monoid::MaxSumExp, None, &[(2, one), (2, two)]);
    let none = f64::NEG_INFINITY;
    assert_eq!(sums, [none, 0.0, 1.0, 6.0, 5.0, 3.0, none, 0.0]);
    let best = folded(8, Monoid::ArgMax, None, &[(2, one), (2, two)]);
    let last = f64::INFINITY;
    assert_eq!(best, [none, last, 1.0, 2.0, 5.0, 3.0, none, last]);
    let (count, more): (&[f32], &[f32]) = (&[2.0, 3.0, 2.0], &[2.0, 5.0, 2.0]);
    let moments = folded(6, Monoid::Moments, None, &[(0, count), (0, more)]);
    assert_eq!(moments, [4.0, 4.0, 8.0, 0.0, 0.0, 0.0]);
}

#[test]
fn one_piece_that_covers_all_is_folded_into_the_fill() {
    let values: &[f64] = &[1.0, 2.0, 3.0];
    let folded_into = |fill| folded(3, Monoid::SUM, fill, &[(0, values)]);
    assert_eq!(folded_into(None), values);
    assert_eq!(folded_into(Some(Scalar::F64(10.0))), [11.0, 12.0, 13.0]);
}

#[test]
fn local_sums_of_16_bit_floats_are_rounded_once() {
    // 256 + 1 cannot be held in bf16, 256 + 1 + 1 can.
    let value = |v: f32| [bf16::from_f32(v); 3];
    let (large, small) = (value(256.0), value(1.0));
    let sum = value(258.0);
    let all = [(0, &large[..]), (0, &small[..]), (0, &small[..])];
    assert_eq!(folded(3, Monoid::SUM, None, &all), sum);
    assert_eq!(folded(3, Monoid::SUM, Some(Scalar::ZERO), &all), sum);
    // Pieces that overlap partly.
    let parts = [(0, &large[..]), (1, &small[..]), (1, &small[..])];
    let expected = [256.0, 258.0, 258.0, 2.0].map(bf16::from_f32);
    assert_eq!(folded(4, Monoid::SUM, None, &parts), expected);
}

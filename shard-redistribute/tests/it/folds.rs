//! The order in which what falls on the same elements is folded: within a rank, and in sums over ranks.

use crate::common::{layout, recipe};
use half::bf16;
use proptest::prelude::*;
use shard_comm::{Buffer, Communicator, DType, Element, Monoid, Scalar, by_tree, local};
use shard_redistribute::{Array, ExchangeBuilder, ExchangeSource, MeshComm};
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
        builder = builder.source(ExchangeSource {
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

/// Term `me` of the element at a global index: sums of some are rounded differently in each order.
fn term(index: &[usize], me: usize) -> f64 {
    let place = index.iter().fold(me + 1, |at, &i| 31 * at + i);
    (place as f64).sin()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever is read of an array of terms along one axis, and into whatever pieces it comes: also where those of a row lie between
    /// others.
    #[test]
    fn sums_over_ranks_are_formed_by_the_tree(
        mesh in prop::sample::select(vec![vec![6], vec![2, 6], vec![5, 2], vec![3, 4], vec![2, 3, 2]]),
        axis in 0_usize..3, rows in 0_usize..9, cols in 0_usize..14, mut from in recipe(3), to in recipe(3),
    ) {
        let axis = axis % mesh.len();
        from.kinds.iter_mut().for_each(|kind| *kind %= 3);
        from.kinds[axis] = 3;
        let mesh = DeviceMesh::new(&mesh).unwrap();
        let ends = local::run(mesh.size(), |comm| {
            let world: Rc<dyn Communicator> = Rc::new(comm);
            let cx = MeshComm::new(&world, &mesh).unwrap();
            let shape = [rows, cols];
            let (from, to) = (layout(&mesh, &shape, &from), layout(&mesh, &shape, &to));
            let to = to.with_partial_reduced();
            let me = cx.coords().unwrap()[axis];
            let whole = from.with_partial_reduced();
            let terms = Array::from_fn(&cx, &whole, |i| term(i, me)).unwrap();
            let terms = Array::from_parts(&cx, &from, terms.buffer().cloned(), DType::F64).unwrap();
            let sum = |i: &[usize]| {
                by_tree((0..mesh.shape()[axis]).map(|k| term(i, k)), |a, b| a + b).unwrap()
            };
            let wanted = Array::from_fn(&cx, &to, sum).unwrap().to_vec::<f64>().unwrap();
            let got = terms.redistribute(&to).unwrap().to_vec::<f64>().unwrap();
            (format!("{from} -> {to}"), got, wanted)
        });
        for (moved, got, wanted) in ends.unwrap() {
            prop_assert_eq!(got, wanted, "{}", moved);
        }
    }
}

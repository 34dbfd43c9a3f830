//! Meshes that are not all ranks in order: members compute the same, others take part without data.

use shard_comm::DType;
use shard_ops::Value;
use shard_ops::testing::{place, tensor, whole};
use shard_spec::{
    DeviceMesh, Layout,
    Placement::{Replicate, Shard},
};
use xtests::differentiate::values;
use xtests::harness::{On, on_mesh};
use xtests::properties;
use xtests::properties::Property;
use xtests::trial::recorder;

pub(super) const ALL: &[Property] = properties![
    ranks_outside_the_mesh_take_part_without_data,
    ranks_outside_the_mesh_hear_how_many_rows_there_are,
];

fn ranks_outside_the_mesh_take_part_without_data() {
    // Ranks 3 and 1 in this order; 0 and 2 are outside.
    let mesh = DeviceMesh::with_ranks(&[2], vec![3, 1]).unwrap();
    let x = tensor(&[5, 4], |i| i as f64 - 7.0);
    let w = tensor(&[4, 3], |i| (i % 5) as f64);
    let results = on_mesh(&mesh, On::Host, |cx| {
        let tape = recorder();
        let at = |t, placement| {
            let t: &xtests::case::Tensor = t;
            let layout = Layout::new(&mesh, &t.shape, &[placement]).unwrap();
            tape.leaf(place(cx, &layout, t, DType::F64).unwrap())
                .unwrap()
        };
        let (x, w) = (at(&x, Shard(0)), at(&w, Replicate));
        let y = shard_ops::matmul::matmul(&tape, &x, &w).unwrap();
        let loss = shard_ops::reduce::sum(&tape, &y, &[0, 1], false).unwrap();
        let gradients = tape.grad(&[&loss], &[&x, &w], &[], false).unwrap();
        assert_eq!(y.shape(), [5, 3]);
        let gradient = gradients[1].clone().unwrap();
        assert_eq!(gradient.layout(), w.layout());
        cx.is_member().then(|| {
            let read = |v: &Value| values(&whole(v.array()).unwrap());
            (read(&y), read(&gradient))
        })
    });
    assert!(results[0].is_none() && results[2].is_none());
    assert_eq!(results[1], results[3]);
    let (_, gradient) = results[1].clone().unwrap();
    // Every column of the gradient is the column sums of x.
    let sums: Vec<f64> = (0..4)
        .map(|c| (0..5).map(|r| (4 * r + c) as f64 - 7.0).sum())
        .collect();
    let expected = (0..12).map(|i| sums[i / 3]);
    assert!(gradient.into_iter().eq(expected));
}

/// How many pairs there are is up to the data, which these ranks do not have: they are told.
fn ranks_outside_the_mesh_hear_how_many_rows_there_are() {
    use shard_ops::FoldBy;
    let mesh = DeviceMesh::with_ranks(&[2], vec![3, 1]).unwrap();
    let line = tensor(&[5, 1], |i| i as f64);
    let results = on_mesh(&mesh, On::Host, |cx| {
        let tape = recorder();
        let layout = Layout::parse(&mesh, &line.shape, "S(0)[4,1]").unwrap();
        let x = tape
            .leaf(place(cx, &layout, &line, DType::F64).unwrap())
            .unwrap();
        let near = shard_ops::neighbors::radius_search(&tape, &x, &x, 1.0, FoldBy::Ring).unwrap();
        let gradients = tape.grad(
            &[&near.distances],
            &[&x],
            &[Some(&near.distances.detach())],
            false,
        );
        let gradient = gradients.unwrap().remove(0).unwrap();
        assert_eq!(gradient.layout(), &layout);
        (
            near.pairs.layout().to_string(),
            near.distances.shape().to_vec(),
            near.distances.array().buffer().is_some(),
        )
    });
    for (rank, (layout, shape, holds)) in results.iter().enumerate() {
        assert_eq!((layout.as_str(), shape), ("S(0)[11,2]", &vec![13]));
        assert_eq!(*holds, rank % 2 == 1);
    }
}

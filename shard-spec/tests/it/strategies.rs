//! What property tests draw: that all that breaks distributed code is among it, and that failures shrink to few ranks.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestCaseError, TestError, TestRunner};
use shard_spec::strategies::{division, layout_with, layouts, mesh, partition, shape};
use shard_spec::{DeviceMesh, Layout, Partition, ReduceOp};

fn runner() -> TestRunner {
    TestRunner::new(ProptestConfig {
        cases: 500,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

/// So many draws.
fn drawn<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = runner();
    let draw = |_| strategy.new_tree(&mut runner).unwrap().current();
    (0..count).map(draw).collect()
}

/// How many of these are so, in a thousand.
fn share<T>(of: &[T], is: impl Fn(&T) -> bool) -> usize {
    1000 * of.iter().filter(|&x| is(x)).count() / of.len()
}

#[test]
fn all_that_breaks_programs_is_drawn() {
    let all: Vec<Layout> = drawn(&layouts(6, 3, 9, 1), 2000).concat();
    let sharded = |is: &dyn Fn(&Partition, usize) -> bool, l: &Layout| {
        let mut dims = l.shardings().iter().flatten();
        dims.any(|s| is(&s.partition, s.axes.len()))
    };
    let often = |what: &str, least: usize, is: &dyn Fn(&Layout) -> bool| {
        let found = share(&all, is);
        assert!(found >= least, "{what}: {found} of 1000");
    };
    let uneven = |p: &Partition| p.sizes().max() > p.sizes().min().map(|n| n + 1);
    often("uneven", 150, &|l| sharded(&|p, _| uneven(p), l));
    often("an empty part", 100, &|l| {
        sharded(&|p, _| p.extent() > 0 && p.sizes().any(|n| n == 0), l)
    });
    often("a dim shorter than its ranks", 50, &|l| {
        sharded(&|p, _| p.extent() < p.parts(), l)
    });
    often("several intervals", 60, &|l| {
        sharded(&|p, _| !p.is_contiguous(), l)
    });
    often("two axes on one dim", 80, &|l| {
        sharded(&|_, axes| axes > 1, l)
    });
    often("a minor axis first", 30, &|l| {
        (0..l.ndim()).any(|d| !l.axis_order(d).is_sorted())
    });
    often("an axis of one rank", 100, &|l| {
        l.mesh().shape().contains(&1)
    });
    often("no elements", 50, &|l| l.numel() == 0);
    often("a scalar", 50, &|l| l.ndim() == 0);
    often("one rank", 50, &|l| l.mesh().size() == 1);
    assert!(all.iter().all(|l| l.mesh().size() <= 6 && !l.is_partial()));

    let mesh = DeviceMesh::new(&[2, 3]).unwrap();
    let ops = [ReduceOp::Sum, ReduceOp::Max];
    let sums = drawn(&layout_with(&mesh, &[4, 5], &ops), 500);
    for op in ops {
        assert!(share(&sums, |l| l.partial_op() == Some(op)) > 100, "{op}");
    }
    assert!(sums.iter().all(|l| l.partial_op() != Some(ReduceOp::Min)));
}

#[test]
fn arguments_at_their_ends_are_ordinary() {
    for p in drawn(&division(0, 3), 50) {
        assert_eq!((p.extent(), p.parts()), (0, 3));
    }
    assert!(drawn(&partition(5, 0), 50).iter().all(|p| p.parts() == 1));
    assert!(drawn(&mesh(0), 50).iter().all(|m| m.size() == 1));
    assert!(drawn(&shape(3, 0), 50).iter().flatten().all(|&n| n == 0));
    assert!(drawn(&layouts(1, 0, 0, 0), 5).iter().all(Vec::is_empty));
}

/// A program that goes wrong where a part is empty fails on the smallest such layout.
#[test]
fn failures_shrink_to_few_ranks() {
    let starved = |layouts: Vec<Layout>| {
        let empty = |l: &Layout| {
            let mut dims = l.shardings().iter().flatten();
            l.numel() > 0 && dims.any(|s| s.partition.sizes().any(|n| n == 0))
        };
        match layouts.iter().any(empty) {
            true => Err(TestCaseError::fail("a rank has nothing")),
            false => Ok(()),
        }
    };
    let Err(TestError::Fail(_, least)) = runner().run(&layouts(6, 3, 9, 1), starved) else {
        panic!("no layout with an empty part was drawn");
    };
    let least = &least[0];
    assert_eq!(least.mesh().size(), 2, "{least} of {:?}", least.shape());
    assert!(least.numel() < 10, "{least} of {:?}", least.shape());
}

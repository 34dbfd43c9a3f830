//! Which layouts are tried.

use shard_ops::testing::Rng;
use shard_spec::{DeviceMesh, Layout};
use std::collections::HashSet;
use xtests::layouts::{Assignment, Operand, Plan, Split, drafts};

fn operands() -> Vec<Operand> {
    vec![
        Operand {
            shape: vec![7, 2],
            sums: true,
        },
        Operand {
            shape: vec![7],
            sums: false,
        },
    ]
}

fn assignments(mesh: &DeviceMesh, operands: &[Operand], plan: &Plan) -> Vec<Assignment> {
    let mut drafts = drafts(mesh, operands, plan, "op");
    let all = drafts.all().unwrap();
    all.iter()
        .map(|d| d.build(mesh, operands).unwrap())
        .collect()
}

#[test]
fn one_axis_has_every_placement_and_split() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let all = assignments(&mesh, &operands(), &Plan::new(1));
    let texts: HashSet<String> = all
        .iter()
        .map(|a| format!("{:?} {:?}", a[0].placements(), a[1].placements()))
        .collect();
    assert_eq!(texts.len(), 4 * 2);
    let empty = all.iter().filter(|a| {
        a[0].sharding(0)
            .is_some_and(|s| s.partition.sizes().any(|n| n == 0))
    });
    assert!(empty.count() >= 2);
    let unlike = all
        .iter()
        .filter(|a| match (a[0].sharding(0), a[1].sharding(0)) {
            (Some(x), Some(y)) => x.partition != y.partition,
            _ => false,
        });
    assert!(unlike.count() >= 1, "operands are cut differently too");
}

#[test]
fn the_seed_fixes_the_sequence() {
    let mesh = DeviceMesh::new(&[2, 3]).unwrap();
    let run = |seed| assignments(&mesh, &operands(), &Plan::new(seed));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!(run(1).len() <= 40 && run(1).len() > 20);
}

#[test]
fn looking_at_few_first_changes_none() {
    for mesh in [&[3][..], &[2, 2]] {
        let mesh = DeviceMesh::new(mesh).unwrap();
        let make = || drafts(&mesh, &operands(), &Plan::new(1), "op");
        let (mut one, mut other) = (make(), make());
        assert_eq!(one.first(0).unwrap().len(), 0);
        let some = one.first(7).unwrap().to_vec();
        let all = other.all().unwrap();
        assert_eq!(some, all[..7]);
        assert_eq!(one.all().unwrap(), all);
        let layouts: HashSet<Vec<u128>> = (all.iter())
            .map(|d| d.build(&mesh, &operands()).unwrap())
            .map(|built| built.iter().map(Layout::hash128).collect())
            .collect();
        assert_eq!(layouts.len(), all.len(), "no two are alike");
    }
}

#[test]
fn two_axes_nest_and_pair() {
    let mesh = DeviceMesh::new(&[2, 2]).unwrap();
    let all = assignments(&mesh, &operands(), &Plan::new(3));
    assert!(
        all.iter()
            .any(|a| a[0].sharding(0).is_some_and(|s| s.axes.len() == 2))
    );
    assert!(all.iter().any(|a| {
        a.iter()
            .any(|l| l.shardings().iter().flatten().any(|s| s.axes[..] == [1, 0]))
    }));
    let both = |a: &Assignment| (a[0].placements()[0], a[0].placements()[1]);
    assert_eq!(
        all.iter().map(both).collect::<HashSet<_>>().len(),
        16,
        "every pair of choices"
    );
}

#[test]
fn exhaustive_is_more() {
    let mesh = DeviceMesh::new(&[3]).unwrap();
    let some = assignments(&mesh, &operands(), &Plan::new(1)).len();
    let plan = Plan {
        exhaustive: true,
        ..Plan::new(1)
    };
    let all = assignments(&mesh, &operands(), &plan).len();
    assert!(all > some, "{all} {some}");
}

#[test]
fn gaps_are_empty_parts_and_cuts_are_complete() {
    let mut rng = Rng::new(0, &[]);
    for parts in 1..8 {
        for extent in [0, 1, 2, 5, 13] {
            for split in Split::ALL {
                let p = split.partition(extent, parts, &mut rng);
                assert_eq!((p.parts(), p.extent()), (parts, extent));
                let has_gap = p.sizes().any(|n| n == 0);
                assert!(has_gap || split != Split::Gaps || parts == 1);
            }
        }
    }
}

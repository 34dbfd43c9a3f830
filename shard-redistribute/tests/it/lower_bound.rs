//! Every pair of layouts on some meshes, planned but not run: bytes received, and what the chosen plan costs.

use shard_comm::DType;
use shard_redistribute::{CostModel, LinkCost, Method, Plan, Step};
use shard_spec::{DeviceMesh, Layout};

/// All layouts of a 2-D tensor on the mesh that shard and replicate, dims nested in mesh order and, where one dim
/// is sharded by two axes, in the other order too.
fn layouts(mesh: &DeviceMesh, shape: &[usize]) -> Vec<Layout> {
    let axes = mesh.ndim();
    let mut all = Vec::new();
    for code in 0..3_usize.pow(axes as u32) {
        let kind = |a: usize| code / 3_usize.pow(a as u32) % 3;
        for reversed in [false, true] {
            let mut builder = Layout::builder(mesh, shape);
            let mut nests = false;
            for d in 0..2 {
                let mut on: Vec<usize> = (0..axes).filter(|&a| kind(a) == d).collect();
                nests |= on.len() > 1;
                if reversed {
                    on.reverse();
                }
                if !on.is_empty() {
                    builder = builder.shard_chunk(d, &on);
                }
            }
            if nests || !reversed {
                all.push(builder.build().unwrap());
            }
        }
    }
    all
}

fn missing(from: &Layout, to: &Layout, rank: usize) -> usize {
    let (have, want) = (from.local_box(rank).unwrap(), to.local_box(rank).unwrap());
    want.numel() - have.intersect(&want).map_or(0, |b| b.numel())
}

#[test]
fn direct_plans_receive_exactly_what_is_missing() {
    let mut pairs = 0;
    for shape in [&[2, 4][..], &[2, 2, 2], &[3, 2], &[4, 6]] {
        let mesh = DeviceMesh::new(shape).unwrap();
        // Even where both extents are multiples of 24, uneven with empty parts otherwise.
        for extents in [[24, 48], [13, 5]] {
            let all = layouts(&mesh, &extents);
            for (from, to) in all.iter().flat_map(|f| all.iter().map(move |t| (f, t))) {
                for rank in 0..mesh.size() {
                    let plan = Plan::new(from, to, rank).unwrap();
                    assert_eq!(
                        plan.received(DType::F32),
                        missing(from, to, rank),
                        "{plan} at rank {rank}"
                    );
                }
                pairs += 1;
            }
        }
    }
    assert_eq!(pairs, 2 * (11 * 11 * 3 + 41 * 41));
}

#[test]
fn ranks_that_are_only_permuted_take_over_one_whole_block_each() {
    let mut found = 0;
    for shape in [&[2, 2][..], &[2, 3, 2], &[4, 4]] {
        let mesh = DeviceMesh::new(shape).unwrap();
        let all = layouts(&mesh, &[13, 7]);
        for (from, to) in all.iter().flat_map(|f| all.iter().map(move |t| (f, t))) {
            let plans: Vec<Plan> = (0..mesh.size())
                .map(|rank| Plan::new(from, to, rank).unwrap())
                .collect();
            let boxes = |l: &Layout| {
                let mut boxes: Vec<_> = (0..mesh.size())
                    .map(|r| format!("{:?}", l.local_box(r)))
                    .collect();
                boxes.sort();
                boxes.dedup();
                boxes
            };
            let permuted = from != to && boxes(from) == boxes(to);
            let told = plans[0].method() == Method::Relabel;
            assert_eq!(told, permuted, "{from} to {to}");
            found += usize::from(told);
            for (rank, plan) in plans.iter().enumerate().filter(|_| told) {
                let forecast = plan.forecast(DType::F32);
                let block = to.local_box(rank).unwrap();
                if from.local_box(rank).unwrap() == block {
                    assert_eq!((forecast.messages, forecast.bytes), (0, 0), "{plan}");
                } else {
                    let whole = 4 * block.numel() as u64;
                    let messages = u64::from(whole > 0);
                    assert_eq!(
                        (forecast.messages, forecast.bytes),
                        (messages, whole),
                        "{plan}"
                    );
                }
            }
        }
    }
    assert!(found > 40, "{found}");
}

#[test]
fn no_owner_sends_more_than_its_share_of_what_is_read_of_its_block() {
    for shape in [&[2, 4][..], &[2, 2, 2], &[3, 2], &[4, 6]] {
        let mesh = DeviceMesh::new(shape).unwrap();
        let all = layouts(&mesh, &[240, 240]);
        let pairs = all.iter().flat_map(|f| all.iter().map(move |t| (f, t)));
        let usual = if mesh.size() <= 6 { 1 } else { 5 };
        for (from, to) in pairs.step_by(stride(usual)) {
            let copies: usize = (from.replicate_axes().iter())
                .map(|&a| mesh.shape()[a])
                .product();
            // What ranks that do not hold a block read of it, for each block.
            let mut read = std::collections::BTreeMap::new();
            for (owner, reader) in
                (0..mesh.size()).flat_map(|o| (0..mesh.size()).map(move |r| (o, r)))
            {
                let have = |rank| from.local_box(rank).unwrap();
                if have(owner) == have(reader) {
                    continue;
                }
                let common = have(owner).intersect(&to.local_box(reader).unwrap());
                // Each copy counts it once.
                *read.entry(format!("{:?}", have(owner))).or_insert(0) +=
                    common.map_or(0, |b| b.numel());
            }
            let share = read
                .values()
                .map(|n| n / copies / copies)
                .max()
                .unwrap_or(0);
            let sends = |method: Method| -> Option<(usize, u64)> {
                let plans: Vec<Plan> = (0..mesh.size())
                    .filter_map(|rank| {
                        let plans = Plan::alternatives(from, to, rank).unwrap();
                        plans.into_iter().find(|p| p.method() == method)
                    })
                    .collect();
                let sent = |rank| -> usize {
                    let others = plans.iter().enumerate().filter(|(r, _)| *r != rank);
                    others
                        .map(|(_, p)| match &p.steps()[0] {
                            Step::Exchange(e, _) => e.plan().received_from(rank),
                            _ => 0,
                        })
                        .sum()
                };
                let messages = plans.iter().map(|p| p.forecast(DType::F32).messages).sum();
                (plans.len() == mesh.size())
                    .then(|| ((0..mesh.size()).map(sent).max().unwrap(), messages))
            };
            if let Some((most, messages)) = sends(Method::Balanced) {
                // A share may be larger by up to a row of each piece that is cut.
                assert!(most <= share + 2 * 240, "{from} to {to}: {most} of {share}");
                if let Some((_, spread)) = sends(Method::Spread) {
                    assert!(
                        messages <= spread,
                        "{from} to {to}: {messages} and {spread}"
                    );
                }
            }
        }
    }
}

/// The step through the pairs: 1, that is all pairs, if the environment asks for them.
fn stride(usual: usize) -> usize {
    match std::env::var_os("SHARD_ALL_PAIRS") {
        Some(_) => 1,
        None => usual,
    }
}

/// With `SHARD_ALL_PAIRS` set, every pair is compared. Otherwise all pairs of the small meshes are, and of the other meshes as
/// many as take a second.
#[test]
fn the_chosen_plan_is_never_dearer_than_gathering_and_slicing() {
    for (shape, usual) in [
        (&[2, 4][..], 1),
        (&[3, 2], 1),
        (&[2, 2, 2], 13),
        (&[4, 6], 5),
    ] {
        let mesh = DeviceMesh::new(shape).unwrap();
        let extents = [26, 31];
        let whole = Layout::replicated(&mesh, &extents);
        let all = layouts(&mesh, &extents);
        // Latency-bound and bandwidth-bound.
        for model in [LinkCost::new(1e-5, 1e12), LinkCost::new(0.0, 1e9)].map(CostModel::network) {
            let pairs = all.iter().flat_map(|f| all.iter().map(move |t| (f, t)));
            for (from, to) in pairs.step_by(stride(usual)) {
                let cheapest = |to| Plan::cheapest(from, to, 0, DType::F32, &model).unwrap();
                let cost = |plan: &Plan| -> f64 {
                    let told = plan.explain(DType::F32);
                    told.steps.iter().map(|s| s.seconds).sum()
                };
                let plan = cheapest(to);
                // Sums of the same terms in another order may differ in the last bit.
                let taken = cost(&plan) * (1.0 - 1e-12);
                let gather = cost(&cheapest(&whole));
                assert!(taken <= gather, "{plan}: {taken} against {gather}");
                let others = plan.considered();
                assert!(others.iter().all(|c| taken <= c.seconds), "{plan}");
            }
        }
    }
}

#[test]
fn fractions_received_on_two_by_four_are_those_of_the_documentation() {
    let mesh = DeviceMesh::new(&[2, 4]).unwrap();
    let parse = |text| Layout::parse(&mesh, &[64, 64], text).unwrap();
    for (from, to, fraction) in [
        ("S(0) S(1)", "S(1) S(0)", 0.125),
        ("S(0) S(0)", "S(1) S(1)", 0.109_375),
        ("S(0) S(0)", "R S(0)", 0.25),
        ("R S(0)", "S(0) R", 0.5),
        ("R S(0)", "S(0) S(0)", 0.125),
    ] {
        let received = |rank| {
            let plan = Plan::new(&parse(from), &parse(to), rank).unwrap();
            plan.received(DType::F32)
        };
        let most = (0..mesh.size()).map(received).max().unwrap();
        assert_eq!(most as f64 / (64.0 * 64.0), fraction, "{from} to {to}");
    }
}

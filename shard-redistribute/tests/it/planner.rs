//! Plans that are kept, and what a model changes.

use shard_comm::DType;
use shard_redistribute::{CostModel, LinkCost, Method, Plan, Planner};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;

#[test]
fn the_oldest_plan_goes_first_and_the_bound_holds() {
    let mesh = DeviceMesh::new(&[2]).unwrap();
    let to = |n: usize| Layout::parse(&mesh, &[n], "R").unwrap();
    let from = |n: usize| Layout::parse(&mesh, &[n], "S(0)").unwrap();
    let planner = Planner::new(1, 3);
    let first = planner.plan(&from(5), &to(5), DType::F64).unwrap();
    for n in 6..8 {
        planner.plan(&from(n), &to(n), DType::F64).unwrap();
    }
    let again = planner.plan(&from(5), &to(5), DType::F64).unwrap();
    assert!(Rc::ptr_eq(&first, &again));
    assert_eq!((planner.len(), planner.is_empty()), (3, false));
    planner.plan(&from(8), &to(8), DType::F64).unwrap();
    assert_eq!(planner.len(), 3);
    let anew = planner.plan(&from(5), &to(5), DType::F64).unwrap();
    assert!(!Rc::ptr_eq(&first, &anew));
    assert_eq!(first.to_string(), anew.to_string());
}

#[test]
fn a_model_changes_what_is_chosen() {
    let mesh = DeviceMesh::new(&[4]).unwrap();
    let from = Layout::parse(&mesh, &[4096], "S(0)[4096,0,0,0]").unwrap();
    let to = Layout::parse(&mesh, &[4096], "R").unwrap();
    let planner = Planner::new(0, 3);
    let method = |p: &Planner| p.plan(&from, &to, DType::F64).unwrap().method();
    assert_eq!(method(&planner), Method::Direct);
    planner.set_model(Some(CostModel::network(LinkCost::new(0.0, 1e9))));
    assert_eq!(method(&planner), Method::SliceGather);
    planner.set_model(None);
    assert_eq!(method(&planner), Method::Direct);
}

/// Where messages are free a sum is taken as it is, also a small one, of which every rank reads all terms because a second round would take
/// longer; and the direct way is not given up for what prices lose to rounding.
#[test]
fn where_ranks_share_memory_sums_are_direct() {
    let model = CostModel::shared_memory();
    let moves = [
        (&[3][..], "P(sum)", "R"),
        (&[8], "P(sum)", "R"),
        (&[2, 3], "S(0) P(sum)", "S(0) R"),
        (&[2, 3], "P(sum) P(sum)", "R R"),
        (&[2, 3], "S(0) S(0)", "R S(0)"),
    ];
    for (shape, from, to) in moves {
        let mesh = DeviceMesh::new(shape).unwrap();
        for shape in [[5, 7], [40, 25], [200, 30]] {
            let [from, to] = [from, to].map(|at| Layout::parse(&mesh, &shape, at).unwrap());
            let plan = Plan::cheapest(&from, &to, 0, DType::F32, &model).unwrap();
            assert_eq!(plan.method(), Method::Direct, "{from} to {to} of {shape:?}");
        }
    }
}

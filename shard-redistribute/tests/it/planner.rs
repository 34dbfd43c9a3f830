//! Plans that are kept, and what a model changes.

use shard_comm::DType;
use shard_redistribute::{CostModel, LinkCost, Method, Planner};
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

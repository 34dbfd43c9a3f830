//! Moves on a machine of several nodes: what crosses between them, counted on ranks that are played.

use std::rc::Rc;

use shard_comm::simulated::SimulatedComm;
use shard_comm::{Communicator, DType, LinkCost, Machine, Topology};
use shard_redistribute::{Array, CostModel, MeshComm};
use shard_spec::{DeviceMesh, Layout};

const NODES: usize = 8;
const EACH: usize = 8;

/// Bytes that all ranks receive from other nodes in a move of 32-bit elements, and how it is made.
fn crossed(
    from: impl Fn(&DeviceMesh) -> Layout,
    to: impl Fn(&DeviceMesh) -> Layout,
) -> (usize, String) {
    let (near, far) = (LinkCost::new(1e-6, 100e9), LinkCost::new(2e-6, 10e9));
    let cluster = Topology::network(NODES * EACH, Machine::new(1e12, 1e12), near);
    let cluster = cluster.nodes_of(EACH, far);
    let (mut crossed, mut how) = (0, String::new());
    for rank in 0..NODES * EACH {
        let mesh = DeviceMesh::new(&[NODES, EACH]).unwrap();
        let played = SimulatedComm::new(&cluster, rank).unwrap();
        let world: Rc<dyn Communicator> = Rc::new(played.clone());
        let cx = MeshComm::new(&world, &mesh).unwrap();
        cx.planner().set_model(Some(CostModel::of(&cluster, &mesh)));
        let (from, to) = (from(&mesh), to(&mesh));
        let len = from.local_box(rank).unwrap().numel();
        let mine = world.device().alloc(DType::F32, len).unwrap().freeze();
        let array = Array::from_local(&cx, &from, Some(mine), DType::F32).unwrap();
        played.restart();
        array.redistribute(&to).unwrap();
        crossed += played.played().crossed as usize;
        how = cx
            .planner()
            .plan(&from, &to, DType::F32)
            .unwrap()
            .to_string();
    }
    (crossed, how)
}

fn layout(mesh: &DeviceMesh, extents: &[usize], dims: &[(usize, &[usize])]) -> Layout {
    let builder = Layout::builder(mesh, extents);
    let shard = |builder: shard_spec::LayoutBuilder, &(dim, axes): &(usize, &[usize])| {
        builder.shard_chunk(dim, axes)
    };
    dims.iter().fold(builder, shard).build().unwrap()
}

/// Every byte comes to a node that lacks it once, also where all ranks of the node want it.
#[test]
fn moves_cross_between_nodes_once() {
    let extents = [1024, 2048];
    let bytes = 4 * extents[0] * extents[1];
    let by_rows = |mesh: &DeviceMesh| layout(mesh, &extents, &[(0, &[0, 1])]);
    let whole = |mesh: &DeviceMesh| layout(mesh, &extents, &[]);
    let (gathered, how) = crossed(by_rows, whole);
    assert_eq!(gathered, (NODES - 1) * bytes, "{how}");
    let by_node = |mesh: &DeviceMesh| layout(mesh, &extents, &[(0, &[0])]);
    let (copied, how) = crossed(by_node, whole);
    assert_eq!(copied, (NODES - 1) * bytes, "{how}");
    // Many small pieces: one for each pair of ranks.
    let by_columns = |mesh: &DeviceMesh| layout(mesh, &extents, &[(1, &[0, 1])]);
    let (dealt, how) = crossed(by_rows, by_columns);
    assert_eq!(dealt, (NODES - 1) * bytes / NODES, "{how}");
}

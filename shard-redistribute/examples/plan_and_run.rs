//! Plans a move, explains it, and runs it on four ranks as threads.
//!
//! ```text
//! cargo run -p shard-redistribute --example plan_and_run
//! ```
//!
//! All four are in this process: under `mpirun` each process would run all of them, and print as much. What launches a program of ranks
//! that are processes is `shard_tensor::launch`.

use shard_comm::{Communicator, DType, local};
use shard_redistribute::{Array, CostModel, LinkCost, MeshComm, Plan};
use shard_spec::{DeviceMesh, Layout};
use std::error::Error;
use std::rc::Rc;

fn main() -> Result<(), Box<dyn Error>> {
    // One rank holds all rows of a table that every rank wants.
    let mesh = DeviceMesh::new(&[4])?;
    let shape = [1 << 10, 1 << 10];
    let from = Layout::parse(&mesh, &shape, "S(0)[1024,0,0,0]")?;
    let to = Layout::replicated(&mesh, &shape);

    // Between threads that share memory, every rank copies what it needs straight from its owner.
    let near = CostModel::shared_memory();
    println!(
        "{}",
        Plan::cheapest(&from, &to, 0, DType::F32, &near)?.explain(DType::F32)
    );

    // Over a network, the owner shares the table out, and the ranks gather it from each other.
    let far = CostModel::network(LinkCost::new(10e-6, 25e9));
    println!(
        "{}",
        Plan::cheapest(&from, &to, 0, DType::F32, &far)?.explain(DType::F32)
    );

    let received = local::run(4, |comm| -> shard_redistribute::Result<u64> {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &mesh)?;
        let table = Array::from_fn::<f32>(&cx, &from, |i| (i[0] ^ i[1]) as f32)?;
        let plan = Plan::cheapest(&from, &to, table.index(), DType::F32, &far)?;
        let before = world.ledger().snapshot();
        let copy = plan.run(&table)?;
        assert_eq!(copy.to_vec::<f32>()?[5 * 1024 + 3], 6.0);
        Ok(world.ledger().since(&before).bytes)
    })?;
    for (rank, bytes) in received.into_iter().enumerate() {
        println!("rank {rank} received {} bytes", bytes?);
    }
    Ok(())
}

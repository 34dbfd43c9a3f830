//! An op of one's own on the engine, on three ranks: the first moment of each row, `y[r] = sum over c of c * x[r, c]`.
//!
//! The rule names the loop indices, and from it the engine knows what to do under any layout: where rows are sharded each rank has
//! its rows' results, where columns are, each has a term of every sum. The op itself never communicates.
//!
//! ```text
//! cargo run -p shard-ops --example row_moments
//! ```

use shard_comm::{Communicator, local};
use shard_ops::testing::{Tensor, validate};
use shard_ops::{
    Access, Engine, EngineOptions, Exec, HostCall, Linearity, Meta, Op, OpError, Reduction, Rule,
    Value, key_of,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout, ReduceOp};
use std::rc::Rc;
use std::sync::Arc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Debug)]
struct RowMoments;

impl Op for RowMoments {
    fn name(&self) -> &'static str {
        "row_moments"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> std::result::Result<Rule, OpError> {
        let x = &inputs[0];
        let [rows, columns] = x.shape[..] else {
            return Err(OpError::Shape {
                op: self.name(),
                problem: "the operand must have two dims".into(),
                shapes: vec![x.shape.to_vec()],
                fix: "reshape it",
            });
        };
        let mut rule = Rule::builder(self.name(), inputs);
        let (r, c) = (rule.factor(rows), rule.factor(columns));
        rule.input(vec![Access::factor(r), Access::factor(c)])
            .output(vec![Access::factor(r)], [rows][..].into(), x.dtype)
            // Columns are summed over: of some of them a rank has a term of the sum.
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each([0].into_iter().collect()))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        // The box of x begins somewhere in the whole tensor: which columns these are counts.
        let first_column = call.cx.inputs[0].start[1];
        let x = call.input::<f64>(0);
        let (rows, columns) = (x.shape()[0], x.shape()[1]);
        let mut y = call.output::<f64>(0);
        for r in 0..rows {
            let moment = |c| (first_column + c) as f64 * x.get(&[r, c]);
            y.set(&[r], (0..columns).map(moment).sum());
        }
    }
}

fn main() -> Result<()> {
    // Is it on 1 to 4 ranks, under any layout, what it is on one?
    let tried = validate(RowMoments, &[Tensor::drawn([5, 7], 1)])?;
    println!("as on one rank under {} layouts", tried.layouts);

    let told = local::run(3, |comm| -> Result<Vec<String>> {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let mesh = DeviceMesh::new(&[3])?;
        let cx = MeshComm::new(&world, &mesh)?;
        let engine = Engine::new(EngineOptions::default());
        let mut told = Vec::new();
        for layout in ["S(0)[3,0,1]", "S(1)[1,3,2]"] {
            let layout = Layout::parse(&mesh, &[4, 6], layout)?;
            let x = Value::new(Array::from_fn(&cx, &layout, |i| i[0] as f64)?);
            let before = world.ledger().snapshot();
            let y = engine.apply1(Arc::new(RowMoments), &[&x])?;
            let sent = world.ledger().since(&before).bytes;
            let whole = y.array().redistribute(&Layout::replicated(&mesh, &[4]))?;
            assert_eq!(whole.to_vec::<f64>()?, [0.0, 15.0, 30.0, 45.0]);
            told.push(format!("{layout} to {}, {sent} bytes received", y.layout()));
        }
        Ok(told)
    })?;
    for (rank, told) in told.into_iter().enumerate() {
        println!("rank {rank}: {}", told?.join("; "));
    }
    Ok(())
}

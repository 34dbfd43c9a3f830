//! A gradient on the tape, on three ranks: of a layer whose weight's rows are shared out unevenly.
//!
//! ```text
//! cargo run -p shard-autograd --example gradient
//! ```

use shard_autograd::{GradCheck, Recorder, gradcheck};
use shard_comm::{Communicator, local};
use shard_ops::{
    Engine, EngineOptions, Value,
    loss::{LossReduction, mse_loss},
    matmul::matmul,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let told = local::run(3, |comm| -> Result<String> {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let mesh = DeviceMesh::new(&[3])?;
        let cx = MeshComm::new(&world, &mesh)?;
        let tape = Recorder::new(Engine::new(EngineOptions::default()));
        let wave = |shape: &[usize], layout: &str, by: f64| -> Result<Array> {
            let layout = Layout::parse(&mesh, shape, layout)?;
            let value = |i: &[usize]| (by * (i[0] + 5 * i[1]) as f64).sin();
            Ok(Array::from_fn(&cx, &layout, value)?)
        };
        let x = Value::new(wave(&[8, 5], "S(1)[3,0,2]", 0.7)?);
        let y = Value::new(wave(&[8, 2], "R", 0.3)?);
        let w = tape.leaf(wave(&[5, 2], "S(0)[3,0,2]", 1.1)?)?;

        let loss = |tape: &Recorder, w: &Value| {
            mse_loss(tape, &matmul(tape, &x, w)?, &y, LossReduction::Mean)
        };
        let gradients = tape.backward(&loss(&tape, &w)?, None)?;
        let dw = gradients.get(&w)?.ok_or("the loss depends on w")?;
        // A gradient has the layout of its value: no rank has more of it than of the weight.
        assert_eq!(dw.layout(), w.layout());

        // And it is what differences of the loss say.
        let checked = |tape: &Recorder, w: &[Value]| Ok(vec![loss(tape, &w[0])?]);
        let report = gradcheck(&tape, &checked, &[w], GradCheck::default())?;
        Ok(format!(
            "gradient {} of {:?}; {} elements checked, off by at most {:.1e}",
            dw.layout(),
            dw.shape(),
            report.compared,
            report.max_error
        ))
    })?;
    for (rank, told) in told.into_iter().enumerate() {
        println!("rank {rank}: {}", told?);
    }
    Ok(())
}

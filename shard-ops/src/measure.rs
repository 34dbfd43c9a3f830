//! Measures how fast a machine at hand computes and moves data, for the choice of plans and for forecasts of time.

use crate::error::InOp;
use crate::{Engine, EngineOptions, Exec, Result, Value, elementwise, matmul};
use shard_comm::{DType, Machine, Monoid};
use shard_redistribute::{Array, CostModel, MeshComm};
use shard_spec::Layout;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

/// The result of [`measure`]: the same on all ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The costs of moves along each mesh axis, for planners.
    pub links: CostModel,
    /// The speed of a rank, for forecasts.
    pub machine: Machine,
}

impl fmt::Display for Measured {
    /// The links, and the machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.links, self.machine)
    }
}

/// Measures the costs of a mesh's links and the speed of its ranks, all ranks at once, and takes the slowest rank's figures.
///
/// Computing is measured with a matrix product of 384 x 384 in single precision, memory with 16 MiB that are doubled, and
/// the cost of each call with a sum of one number: all through the engine, on whatever device the ranks have.
///
/// ```
/// # use shard_comm::{Communicator, local};
/// # use shard_redistribute::MeshComm;
/// # use shard_spec::DeviceMesh;
/// # use std::rc::Rc;
/// let measured = local::run(2, |comm| {
///     let world: Rc<dyn Communicator> = Rc::new(comm);
///     let cx = MeshComm::new(&world, &DeviceMesh::new(&[2]).unwrap()).unwrap();
///     let measured = shard_ops::measure(&cx)?;
///     cx.planner().set_model(Some(measured.links.clone()));
///     Ok::<_, shard_ops::OpError>(measured)
/// }).unwrap();
/// let measured = measured.into_iter().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(measured[0], measured[1]);
/// println!("{}", measured[0]);
/// # Ok::<(), shard_ops::OpError>(())
/// ```
///
/// # Collective
/// All members of the mesh. Moves as much as [`CostModel::measure`], and three numbers.
///
/// # Errors
/// As [`CostModel::measure`].
pub fn measure(cx: &Rc<MeshComm>) -> Result<Measured> {
    const NAME: &str = "measure";
    const SIDE: usize = 384;
    const LONG: usize = 4 << 20;
    let links = CostModel::measure(cx).in_op(NAME)?;
    let engine = Engine::new(EngineOptions::default());
    let ones = |n: &[usize]| -> Result<Value> {
        let own = cx.own();
        let layout = Layout::replicated(own.mesh(), n);
        let array = Array::from_fn(&own, &layout, |_| 1.0_f32).in_op(NAME)?;
        Ok(Value::new(array))
    };
    let best = |turns: usize, f: &dyn Fn() -> Result<Value>| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..=turns {
            let start = Instant::now();
            f()?;
            cx.device().synchronize().in_op(NAME)?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(best)
    };
    let all = cx.all().filter(|_| cx.is_member());
    let meet = || all.map_or(Ok(()), |comm| comm.barrier()).in_op(NAME);
    let (a, x, one) = (ones(&[SIDE, SIDE])?, ones(&[LONG])?, ones(&[1])?);
    let exec: &dyn Exec = &*engine;
    meet()?;
    let launch = best(50, &|| elementwise::add(exec, &one, &one))?;
    meet()?;
    let product = best(8, &|| matmul::matmul(exec, &a, &a))?;
    meet()?;
    let stream = best(5, &|| elementwise::mul_scalar(exec, &x, 2.0))?;
    let mine = [
        launch,
        (product - launch).max(1e-9),
        (stream - launch).max(1e-9),
    ];
    let slowest = match all {
        Some(comm) => {
            let mine = comm.device().upload_slice(&mine).in_op(NAME)?;
            let slowest = comm.all_reduce(&mine, Monoid::MAX).in_op(NAME)?;
            comm.device().download_vec::<f64>(&slowest).in_op(NAME)?
        }
        None => mine.to_vec(),
    };
    let flops = 2.0 * (SIDE * SIDE * SIDE) as f64 / slowest[1];
    let bandwidth = (2 * LONG * DType::F32.size()) as f64 / slowest[2];
    Ok(Measured {
        links: links.with_flops(flops),
        machine: Machine::new(flops, bandwidth).with_launch(slowest[0]),
    })
}

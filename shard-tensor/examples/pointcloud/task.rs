//! The points of a terrain, and what is asked of them.

use crate::model::Graph;
use ndarray::Array2;
use shard_tensor::{AxisPlacement, DType, Mesh, Result, ShardTensor, rng::Stream, shard};

/// Metres from a column or row to the next.
const SPACING: f64 = 1500.0;

/// How much steeper the points lie than the terrain, which is nearly flat.
const STEEPER: f64 = 30.0;

/// The share of all points that are kept for the score.
const SCORED: f64 = 0.2;

/// Whether a point is one to be scored by, drawn by its number: the same on every rank.
pub(crate) fn is_scored(point: usize) -> bool {
    Stream::new(0, 0).uniform_f64(point as u64) < SCORED
}

/// How steep a terrain is at each point, in metres for a hundred: from the points before and after in either direction.
pub(crate) fn steepness(terrain: &Array2<f64>, every: usize) -> Array2<f64> {
    let (rows, columns) = terrain.dim();
    let metres = SPACING * every as f64;
    let slope = |low: [usize; 2], high: [usize; 2]| {
        let run = metres * (high[0] - low[0] + high[1] - low[1]) as f64;
        if run > 0.0 {
            (terrain[high] - terrain[low]) / run
        } else {
            0.0
        }
    };
    Array2::from_shape_fn((rows, columns), |(i, j)| {
        let north = slope([i.saturating_sub(1), j], [(i + 1).min(rows - 1), j]);
        let east = slope([i, j.saturating_sub(1)], [i, (j + 1).min(columns - 1)]);
        100.0 * north.hypot(east)
    })
}

/// The points of a terrain in pieces, a strip of rows each.
pub(crate) struct Task {
    pub(crate) graph: Graph,
    /// What a point knows of itself, `[points, 1]`: how high it lies.
    pub(crate) known: ShardTensor,
    /// How steep it is there, `[points, 1]`: from the mean, in units of the spread.
    pub(crate) wanted: ShardTensor,
    /// Where the model learns and where it is scored, `[points, 1]`: a share of 1 each, zeros elsewhere.
    pub(crate) learned: ShardTensor,
    pub(crate) scored: ShardTensor,
    /// What zero stands for, and one.
    pub(crate) mean: f64,
    pub(crate) spread: f64,
}

impl Task {
    /// Points of which `rows` says how many rows of the grid each rank has, and the edges between them.
    ///
    /// # Collective
    /// All ranks.
    pub(crate) fn new(
        mesh: &Mesh,
        [terrain, steepness]: [&Array2<f64>; 2],
        rows: &[usize],
        every: usize,
        neighbours: usize,
    ) -> Result<Self> {
        let (columns, points) = (terrain.ncols(), terrain.len());
        let sizes: Vec<usize> = rows.iter().map(|n| n * columns).collect();
        let strips: [AxisPlacement; 1] = [shard(0).sizes(sizes)];
        let places = mesh.from_fn([points, 3], &strips, |i| {
            let (row, column) = (i[0] / columns, i[0] % columns);
            match i[1] {
                0 => column as f64,
                1 => row as f64,
                _ => terrain[[row, column]] * STEEPER / (SPACING * every as f64),
            }
        })?;
        let numbers = mesh.with_dtype(DType::I64).arange(points, &strips)?;
        let graph = Graph::nearest(&places, &numbers, neighbours)?;

        let share = |scored: bool| {
            let all = (0..points).filter(|&p| is_scored(p) == scored).count();
            let share = 1.0 / all.max(1) as f64;
            mesh.from_fn([points, 1], &strips, move |i| {
                match is_scored(i[0]) == scored {
                    true => share,
                    false => 0.0,
                }
            })
        };
        let (learned, scored) = (share(false)?, share(true)?);
        let steep = mesh.from_fn([points, 1], &strips, |i| {
            steepness[[i[0] / columns, i[0] % columns]]
        })?;
        let mean = (&steep * &learned).sum_all()?.item()?;
        let apart = steep - mean;
        let spread = (apart.square()? * &learned).sum_all()?.item()?.sqrt();
        Ok(Self {
            graph,
            known: places.narrow(1, 2..3)?,
            wanted: apart / spread,
            learned,
            scored,
            mean,
            spread,
        })
    }
}

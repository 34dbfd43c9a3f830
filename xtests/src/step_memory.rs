//! What a training step holds at most, beside what its vjps read.

#[path = "../../shard-tensor/examples/downscale/model.rs"]
mod unet;
#[path = "../../shard-tensor/examples/vit/model.rs"]
mod vit;

use shard_comm::DType;
use shard_tensor::nn::{ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{Context, Result, ShardTensor, shard};
use unet::UNet;
use vit::{Sizes, Vit};

/// The bytes of one rank in one step.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Parameters.
    pub parameters: usize,
    /// What the tape kept when the loss was known.
    pub saved: usize,
    /// Gradients: as many as parameters, of which each rank has what it has of those.
    pub gradients: usize,
    /// Most that was live before the loss was known, beyond what was before the step.
    pub forward: usize,
    /// Most that was live in the whole step, beyond what was before it: parameters and the optimizer's state.
    pub peak: usize,
}

impl Held {
    /// The peak, as a share of what vjps read and they and the optimizer must have: saved tensors and gradients.
    pub fn excess(&self) -> f64 {
        self.peak as f64 / (self.saved + self.gradients) as f64
    }
}

/// Which model learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Learner {
    /// The U-Net of the main job, on fields of 204 x 187 points.
    UNet,
    /// The vision transformer of the examples.
    Vit,
}

/// Trains for two steps, and tells what the second one holds. Fields have `1 / shrink` of their extents. With `autocast`, products are
/// in that type.
///
/// # Collective
/// All ranks of the program, which divide rows.
///
/// # Errors
/// What the library reports.
pub fn held(
    ctx: &Context,
    learner: Learner,
    shrink: usize,
    autocast: Option<DType>,
) -> Result<Held> {
    let mesh = ctx.mesh_of(ctx.world_size())?;
    match learner {
        Learner::UNet => {
            let model = UNet::new(&mesh, 4, 3, 16)?;
            let field =
                |channels: usize| mesh.randn([1, channels, 204 / shrink, 187 / shrink], shard(2));
            second_step(ctx, &model, &field(4)?, &field(3)?, autocast)
        }
        Learner::Vit => {
            let (side, width, heads, depth) = (4, 64, 4, 4);
            let grid = [32 / shrink; 2];
            let model = Vit::new(
                &mesh,
                Sizes {
                    grid,
                    side,
                    width,
                    heads,
                    depth,
                },
            )?;
            let field = |channels: usize| {
                mesh.randn([2, channels, side * grid[0], side * grid[1]], shard(2))
            };
            second_step(ctx, &model, &field(2)?, &field(1)?, autocast)
        }
    }
}

fn second_step(
    ctx: &Context,
    model: &(impl Module + ModelExt),
    input: &ShardTensor,
    target: &ShardTensor,
    autocast: Option<DType>,
) -> Result<Held> {
    let memory = || ctx.device().memory();
    // What another rank still reads is live here: all are to be as far.
    let all_here = || ctx.world().barrier();
    let mut adam = AdamW::new(model.parameters(), 1e-3)?;
    let bytes = |x: &ShardTensor| x.local_shape().iter().product::<usize>() * x.dtype().size();
    let parameters: usize = (model.parameters().iter()).map(|(_, x)| bytes(x)).sum();
    let mut told = None;
    for _ in 0..2 {
        // Another value, as the next batch would be: of the same one the halo has stayed.
        let input = &input.mul_scalar(1.0)?;
        all_here()?;
        let before = memory().live;
        ctx.device().reset_peak();
        let loss = match autocast {
            Some(to) => ctx.autocast(to, || model.forward(input)?.mse_loss(target))?,
            None => model.forward(input)?.mse_loss(target)?,
        };
        let forward = memory().peak - before;
        all_here()?;
        let saved = memory().live - before;
        let gradients = loss.backward()?;
        adam.step(&gradients)?;
        told = Some(Held {
            parameters,
            saved,
            gradients: parameters,
            forward,
            peak: memory().peak - before,
        });
    }
    told.ok_or_else(|| shard_tensor::Error::custom("two steps were taken"))
}

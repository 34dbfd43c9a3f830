//! A small U-Net trains alike on one rank and on many, whatever the split.

use shard_tensor::nn::{Conv, GroupNorm, LayerNorm, ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{
    ConvOptions, DType, DeviceKind, EdgeMap, Launch, Mesh, Placements, PoolOptions, ResampleMode,
    Result, ShardTensor, replicate, shard, tree,
};

struct UNet {
    down: Conv,
    norm: GroupNorm,
    middle: Conv,
    up: Conv,
    head: Conv,
}

tree!(UNet {
    down,
    norm,
    middle,
    up,
    head
});

impl UNet {
    fn new(mesh: &Mesh) -> Result<Self> {
        let around = || ConvOptions::new().padding(1);
        Ok(Self {
            down: Conv::new(mesh, 2, 4, [3, 3], around())?.without_bias(),
            norm: GroupNorm::new(mesh, 2, 4)?,
            middle: Conv::new(mesh, 4, 6, [3, 3], around().stride(2))?,
            up: Conv::new(mesh, 10, 4, [3, 3], around().edge(EdgeMap::Reflect))?,
            head: Conv::new(mesh, 4, 1, [1, 1], ConvOptions::new())?,
        })
    }
}

impl Module for UNet {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let fine = self.norm.forward(&self.down.forward(x)?)?.gelu()?;
        let coarse = self
            .middle
            .forward(&fine)?
            .silu()?
            .max_pool(PoolOptions::new(2).ceil_mode(true))?;
        let size = &fine.shape()[2..];
        let up = coarse.interpolate(size, ResampleMode::Linear)?;
        let joined = ShardTensor::cat(&[&fine, &up], 1)?;
        self.head.forward(&self.up.forward(&joined)?.gelu()?)
    }
}

/// Losses of three steps, and all weights afterwards.
type Trained = (Vec<f64>, Vec<(String, Vec<f64>)>);

fn train(device: DeviceKind, mesh: &[usize], placements: &Placements) -> Trained {
    let ranks = mesh.iter().product();
    let trained = Launch::new(ranks)
        .device(device)
        .seed(5)
        .dtype(DType::F64)
        .run(|ctx| {
            let mesh = ctx.mesh_of(mesh)?;
            let model = UNet::new(&mesh)?;
            let (x, y) = (
                mesh.randn([1, 2, 13, 11], placements)?,
                mesh.randn([1, 1, 13, 11], placements)?,
            );
            let mut adam = AdamW::new(model.parameters(), 1e-2)?;
            let mut losses = Vec::new();
            for _ in 0..3 {
                let loss = model.forward(&x)?.mse_loss(&y)?;
                adam.step(&loss.backward()?)?;
                losses.push(loss.item()?);
            }
            let read = |(name, w): (String, ShardTensor)| {
                Ok((name, w.to_array::<f64>()?.into_raw_vec_and_offset().0))
            };
            Ok((
                losses,
                model
                    .parameters()
                    .into_iter()
                    .map(read)
                    .collect::<Result<Vec<_>>>()?,
            ))
        });
    let mut trained: Vec<Trained> = trained.unwrap();
    assert!(
        trained.iter().all(|t| t == &trained[0]),
        "ranks ended with different weights"
    );
    trained.swap_remove(0)
}

#[test]
fn a_unet_trains_alike_on_any_mesh_and_split() {
    let (losses, weights) = train(DeviceKind::Host, &[1], &[replicate()].into());
    assert!(losses[2] < losses[0]);
    let cases: [(DeviceKind, &[usize], Placements); 5] = [
        (
            DeviceKind::Host,
            &[2, 2],
            [shard(2).sizes([8, 5]), shard(3).sizes([7, 4])].into(),
        ),
        (
            DeviceKind::Host,
            &[4],
            [shard(2).sizes([1, 0, 9, 3])].into(),
        ),
        (DeviceKind::Host, &[3, 2], [shard(2), shard(3)].into()),
        (DeviceKind::Host, &[2, 2], [shard(3), shard(3)].into()),
        (
            DeviceKind::Test,
            &[2, 2],
            [shard(2).sizes([4, 9]), shard(3).sizes([3, 8])].into(),
        ),
    ];
    for (device, mesh, placements) in cases {
        let (other_losses, other_weights) = train(device, mesh, &placements);
        for (a, b) in losses.iter().zip(&other_losses) {
            assert!(
                (a - b).abs() <= 1e-10 * a.abs(),
                "{placements:?}: losses {losses:?} and {other_losses:?}"
            );
        }
        for ((name, a), (_, b)) in weights.iter().zip(&other_weights) {
            let scale = a.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let worst = a
                .iter()
                .zip(b)
                .fold(0.0f64, |m, (x, y)| m.max((x - y).abs()));
            assert!(
                worst <= 1e-9 * scale,
                "{placements:?}: {name} differs by {worst} of {scale}"
            );
        }
    }
}

#[test]
fn layer_norm_over_a_sharded_dim() {
    let rows = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.from_fn([2, 7], [shard(1).sizes([1, 0, 6])], |i| {
            (i[1] * (i[0] + 1)) as f64
        })?;
        let norm = LayerNorm::new(&mesh, 7)?.eps(0.0);
        norm.forward(&x)?.to_array::<f64>()
    });
    // 0..7 has mean 3 and variance 4; doubling changes nothing.
    let expected =
        ndarray::Array2::from_shape_fn((2, 7), |(_, j)| (j as f64 - 3.0) / 2.0).into_dyn();
    let worst = (&rows.unwrap()[0] - &expected)
        .iter()
        .fold(0.0f64, |m, d| m.max(d.abs()));
    assert!(worst < 1e-14, "{worst}");
}

#[test]
fn convolutions_name_the_dims_they_need() {
    let text = Launch::new(1).run(|ctx| {
        let x = ctx.mesh_of(1)?.ones([3, 8, 8], [replicate()])?;
        Ok(x.conv2d(&x, None, ConvOptions::new())
            .unwrap_err()
            .to_string())
    });
    assert!(text.unwrap()[0].contains("unsqueeze"));
}

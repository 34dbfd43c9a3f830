//! Calls with numbers no tensor has: the same typed error on every rank, never a panic, and the group goes on.

use shard_spec::DeviceMesh;
use shard_tensor::{
    Context, ConvOptions, ConvTransposeOptions, DType, EdgeMap, Mesh, PoolOptions, ResampleMode,
    Result, ShardTensor, replicate, shard,
};
use xtests::harness::{On, on_mesh};
use xtests::properties;
use xtests::properties::Property;

pub(super) const ALL: &[Property] = properties![numbers_no_tensor_has_are_typed_errors,];

type Call = (&'static str, fn(&ShardTensor, &Mesh) -> Result<ShardTensor>);

const HUGE: usize = usize::MAX / 2;

/// `x` is (2, 3, 7, 5).
fn calls() -> Vec<Call> {
    vec![
        ("dim", |x, _| x.flip(HUGE)),
        ("slice start", |x, _| x.slice(2, HUGE, 1, 3)),
        ("slice length", |x, _| x.slice(2, 1, 1, HUGE)),
        ("slice step", |x, _| x.slice(2, 1, isize::MIN, 2)),
        ("narrow", |x, _| {
            x.narrow(2, std::ops::Range { start: 5, end: 2 })
        }),
        ("select", |x, _| x.select(2, HUGE)),
        ("split", |x, _| {
            x.split([usize::MAX, 8], 2).map(|mut v| v.remove(0))
        }),
        ("pad", |x, _| {
            x.pad(
                &[(0, 0), (0, 0), (isize::MAX, 1), (0, 0)],
                EdgeMap::Zeros,
                0.0,
            )
        }),
        ("crop", |x, _| {
            x.pad(
                &[(0, 0), (0, 0), (isize::MIN, 1), (0, 0)],
                EdgeMap::Circular,
                0.0,
            )
        }),
        ("repeat", |x, _| x.repeat(2, HUGE)),
        ("expand", |x, _| x.expand([HUGE, HUGE, 2, 3, 7, 5])),
        ("reshape", |x, _| x.reshape([HUGE, HUGE])),
        ("permute", |x, _| x.permute([0, 1, 2, HUGE])),
        ("unsqueeze", |x, _| x.unsqueeze(HUGE)),
        ("sum", |x, _| x.sum([1, 1], false)),
        ("amax", |x, _| x.amax([HUGE], true)),
        ("groups", |x, _| x.group_norm(0, None, None, 1e-5)),
        ("layer_norm", |x, _| x.layer_norm(HUGE, None, None, 1e-5)),
        ("pool kernel", |x, _| x.max_pool(PoolOptions::new(0))),
        ("pool padding", |x, _| {
            x.avg_pool(PoolOptions::new(2).padding(HUGE))
        }),
        ("pool stride", |x, _| {
            x.max_pool(PoolOptions::new(2).stride(0))
        }),
        ("pool divisor", |x, _| {
            x.avg_pool(PoolOptions::new(HUGE).divisor(1))
        }),
        ("size", |x, _| x.interpolate([0, 3], ResampleMode::Linear)),
        ("size beyond memory", |x, _| {
            x.interpolate([HUGE, HUGE], ResampleMode::Nearest)
        }),
        ("factor", |x, _| {
            x.interpolate_by(&[f64::NAN], ResampleMode::Linear)
        }),
        ("infinite factor", |x, _| {
            x.interpolate_by(&[f64::INFINITY], ResampleMode::Nearest)
        }),
        ("negative factor", |x, _| {
            x.interpolate_by(&[-1.0], ResampleMode::Nearest)
        }),
        ("conv padding", |x, m| {
            x.conv(&kernel(m)?, None, ConvOptions::new().padding(HUGE))
        }),
        ("conv dilation", |x, m| {
            x.conv(&kernel(m)?, None, ConvOptions::new().dilation(HUGE))
        }),
        ("conv stride", |x, m| {
            x.conv(&kernel(m)?, None, ConvOptions::new().stride(0))
        }),
        ("conv groups", |x, m| {
            x.conv(&kernel(m)?, None, ConvOptions::new().groups(0))
        }),
        ("many groups", |x, m| {
            x.conv(&kernel(m)?, None, ConvOptions::new().groups(HUGE))
        }),
        ("transposed stride", |x, m| {
            x.conv_transpose(&kernel(m)?, None, ConvTransposeOptions::new().stride(HUGE))
        }),
        ("transposed groups", |x, m| {
            x.conv_transpose(&kernel(m)?, None, ConvTransposeOptions::new().groups(HUGE))
        }),
        ("transposed crop", |x, m| {
            x.conv_transpose(&kernel(m)?, None, ConvTransposeOptions::new().padding(HUGE))
        }),
        ("neighbours", |_, m| {
            Ok(points(m)?.nearest(&points(m)?, HUGE)?.0)
        }),
        ("radius", |_, m| {
            Ok(points(m)?.radius_search(&points(m)?, f64::NAN)?.pairs)
        }),
        ("negative radius", |_, m| {
            Ok(points(m)?.radius_search(&points(m)?, -1e-300)?.pairs)
        }),
        ("cap", |_, m| {
            Ok(points(m)?
                .radius_search_capped(&points(m)?, 1.0, HUGE)?
                .indices)
        }),
        ("samples", |_, m| points(m)?.farthest_points(HUGE, 0)),
        ("start", |_, m| points(m)?.farthest_points(1, HUGE)),
        ("neighbours in clouds", |_, m| {
            let (x, ids) = (points(m)?, m.with_dtype(DType::I64).arange(5, [shard(0)])?);
            Ok(x.nearest_by_cloud(&x, HUGE, [&ids, &ids])?.0)
        }),
        ("clouds", |_, m| {
            let ids = m.with_dtype(DType::I64).arange(5, [shard(0)])?;
            points(m)?.farthest_points_by_cloud(&ids, HUGE, 5)
        }),
        ("copies", |x, m| {
            let counts = m.with_dtype(DType::I64).arange(7, [replicate()])?;
            x.repeat_interleave_each(2, &counts, Some(HUGE))
        }),
        ("mixed types", |x, _| x.add(&x.to(DType::F32)?)),
        ("zeros", |_, m| m.zeros([HUGE, HUGE], [replicate()])),
        ("placement", |_, m| m.zeros([3], [shard(HUGE)])),
        ("sizes", |_, m| {
            m.zeros([3], [shard(0).sizes(vec![usize::MAX; m.size()])])
        }),
        ("weights", |_, m| {
            m.zeros([3], [shard(0).weights(vec![f64::NAN; m.size()])])
        }),
    ]
}

fn kernel(mesh: &Mesh) -> Result<ShardTensor> {
    mesh.ones([3, 3, 2, 2], [replicate()])
}

fn points(mesh: &Mesh) -> Result<ShardTensor> {
    mesh.rand([5, 2], [shard(0)])
}

fn numbers_no_tensor_has_are_typed_errors() {
    for ranks in [1, 3] {
        for (name, call) in calls() {
            let all = DeviceMesh::new(&[ranks]).unwrap();
            let told = on_mesh(&all, On::Host, |cx| {
                let run = || -> Result<_> {
                    let ctx = Context::new(cx.world().clone(), 0, DType::F64);
                    let mesh = ctx.mesh_of(ranks)?;
                    let x = mesh.ones([2, 3, 7, 5], [shard(2)])?;
                    let told = call(&x, &mesh).err().map(|e| e.to_string());
                    assert_eq!(x.sum_all()?.item()?, 210.0);
                    Ok(told)
                };
                run().unwrap_or_else(|e| panic!("{name} on {ranks} ranks: {e}"))
            });
            assert!(told[0].is_some(), "{name} on {ranks} ranks went through");
            assert!(told.iter().all(|t| t == &told[0]), "{name}: {told:?}");
        }
    }
}

//! Steps whose results and gradients change little where numbers change little.

use super::{Op, ops};
use nn::{ModelExt, Module};
use shard_tensor::{
    Attention, Causal, ClassLoss, ConvOptions, DType, FourierNorm, Fused, Neighborhood,
    PoolOptions, ResampleMode, SampleEdge, SampleMode, Sampling, nn,
};
use std::sync::LazyLock;

pub(super) const OPS: &[Op] = ops![
    tanh => |at| {
        let (x, _) = at.any();
        at.add(x.tanh()?, 1.0)
    },
    sigmoid => |at| {
        let (x, a) = at.any();
        let y = if at.one_in(2) { x.sigmoid()? } else { x.silu()? };
        at.add(y, a.max(1.0))
    },
    gelu => |at| {
        let (x, a) = at.any();
        at.add(x.gelu()?, a)
    },
    exp => |at| {
        let (x, _) = at.any();
        at.add(x.tanh()?.exp()?, 3.0)
    },
    log => |at| {
        let (x, a) = at.any();
        at.add(x.square()?.add_scalar(1.0)?.log()?, a)
    },
    div => |at| {
        let (x, a) = at.any();
        let (y, _) = at.partner(&x)?;
        at.add(x.div(&y.square()?.add_scalar(1.0)?)?, a)
    },
    softmax => |at| {
        let (x, _) = at.filled(1)?;
        let dim = at.below(x.ndim());
        at.add(x.softmax([dim])?, 1.0)
    },
    log_softmax => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        at.add(x.log_softmax([dim])?, 2.0 * a + 8.0)
    },
    logsumexp => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let keep = at.one_in(2);
        at.add(x.logsumexp([dim], keep)?, a + 8.0)
    },
    mean => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let keep = at.one_in(2);
        at.add(x.mean([dim], keep)?, a)?;
        at.add(x.var([dim], 0.0, keep)?, a * a)
    },
    layer_norm => |at| {
        let (x, _) = at.filled(1)?;
        let n = x.shape()[x.ndim() - 1];
        let (w, b) = (at.parameter(&[n])?, at.numbers(&[n])?);
        let y = if at.one_in(2) {
            x.layer_norm(1, Some(&w), Some(&b), 0.1)?
        } else {
            x.rms_norm(1, Some(&w), Some(0.1))?
        };
        at.add(y, 16.0)
    },
    group_norm => |at| {
        let (x, _) = at.filled(3)?;
        let c = x.shape()[1];
        let w = at.parameter(&[c])?;
        at.add(x.group_norm(if c.is_multiple_of(2) { 2 } else { 1 }, Some(&w), None, 0.1)?, 16.0)
    },
    batch_norm => |at| {
        let (x, _) = at.filled(3)?;
        if x.numel() / x.shape()[1] < 2 {
            return Ok(());
        }
        let w = at.parameter(&[x.shape()[1]])?;
        at.add(x.batch_norm(None, [Some(&w), None], true, 0.1, 0.1)?.0, 16.0)
    },
    attention => |at| {
        let (x, a) = at.filled(2)?;
        let (n, d) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
        let q = x.reshape([1, x.numel() / (n * d), n, d])?;
        let k = at.parameter(q.shape())?.mul_scalar(0.25)?;
        let mut options = Attention::new();
        if at.one_in(2) {
            options = options.causal(Causal::TopLeft);
        }
        at.add(q.attention(&k, &q, None, &options)?, a)
    },
    avg_pool => |at| {
        let (x, a) = at.of_exactly(4)?;
        if x.shape()[2] < 2 || x.shape()[3] < 2 {
            return Ok(());
        }
        let stride = 1 + at.below(2);
        at.add(x.avg_pool(PoolOptions::new(2).stride(stride))?, a)
    },
    depthwise => |at| {
        let (x, a) = at.filled(4)?;
        let c = x.shape()[1];
        let w = at.parameter(&[c, 1, 3, 3])?;
        at.add(x.conv(&w, None, ConvOptions::new().padding(1).groups(c))?, 36.0 * a)
    },
    interpolate => |at| {
        let (x, a) = at.filled(3)?;
        let x = x.flatten_dims(0, x.ndim() - 3)?;
        let size = 1 + at.below(8);
        let mode = [ResampleMode::Linear, ResampleMode::LinearAligned, ResampleMode::Area][at.below(3)];
        at.add(x.interpolate([size], mode)?, a)
    },
    grid_sample => |at| {
        let (x, a) = at.filled(4)?;
        let grid = at.numbers(&[x.shape()[0], 2, 3, 2])?.mul_scalar(0.23)?.add_scalar(0.017)?;
        let edge = [SampleEdge::Zeros, SampleEdge::Border][at.below(2)];
        let aligned = at.one_in(2);
        at.add(x.grid_sample(&grid, Sampling { mode: SampleMode::Linear, edge, aligned })?, a)
    },
    deform_conv => |at| {
        let (x, a) = at.filled(4)?;
        let [n, c, h, w] = [0, 1, 2, 3].map(|dim| x.shape()[dim]);
        let weight = at.parameter(&[2, c, 2, 2])?;
        // Between elements, where what is read has a slope.
        let offset = at.parameter(&[n, 2 * 4, h + 1, w + 1])?.mul_scalar(0.23)?.add_scalar(0.017)?;
        at.add(x.deform_conv(&offset, &weight, None, None, ConvOptions::new().padding(1))?, 16.0 * a * c as f64)
    },
    fourier => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let n = x.shape()[dim];
        let there = x.rfft(None, dim, FourierNorm::Forward)?;
        let (weights, _) = at.partner(&there)?;
        let back = there.mul(&weights)?.irfft(Some(n), dim, FourierNorm::Backward)?;
        at.add(back, 16.0 * a)
    },
    cross_entropy => |at| {
        let (x, a) = at.filled(2)?;
        let x = x.flatten_dims(0, x.ndim() - 2)?;
        let classes = at.indices(&[x.shape()[0]], x.shape()[1])?;
        at.add(x.cross_entropy(&classes, &ClassLoss::new().smoothing(0.1))?, 2.0 * a + 8.0)
    },
    linear_cross_entropy => |at| {
        let (x, a) = at.filled(2)?;
        let x = x.flatten_dims(0, x.ndim() - 2)?;
        let classes = at.indices(&[x.shape()[0]], 3)?;
        let w = at.parameter(&[3, x.shape()[1]])?;
        at.add(x.linear_cross_entropy(&w, None, &classes, &ClassLoss::new())?, 2.0 * a * 4.0 * x.shape()[1] as f64 + 8.0)
    },
    mse_loss => |at| {
        let (x, a) = at.filled(1)?;
        let (y, b) = at.alike(&x)?;
        at.add(x.mse_loss(&y)?, (a + b) * (a + b))
    },
    normalize => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let length = x.square()?.sum([dim], true)?.add_scalar(0.5)?.sqrt()?;
        at.add(x.div(&length)?, a)
    },
    segment_softmax => |at| {
        let (x, _) = at.of_dims(1)?;
        let n = x.shape()[0];
        let ids = at.indices(&[n], 3)?;
        at.add(x.segment_softmax(&ids, 3)?, 1.0)
    },
    logcumsumexp => |at| {
        let (x, a, dim) = at.dim()?;
        at.add(x.logcumsumexp(dim)?, a + 8.0)
    },
    decay => |at| {
        let (x, a, dim) = at.dim()?;
        let (factors, _) = at.alike(&x)?;
        let backwards = at.one_in(2);
        let n = x.shape()[dim] as f64;
        at.add(x.linear_recurrence(&factors.sigmoid()?, None, dim, backwards)?, a * n)
    },
    layer => |at| {
        let (x, a) = at.filled(1)?;
        let n = x.shape()[x.ndim() - 1];
        let layer = nn::Linear::new(&at.mesh(), n, 4)?;
        at.add(layer.forward(&x)?, a * n as f64 + 1.0)
    },
    recurrent => |at| {
        let (x, _) = at.filled(3)?;
        let x = x.flatten_dims(0, x.ndim() - 3)?;
        let layer = nn::Gru::new(&at.mesh(), x.shape()[2], 3, 1)?;
        at.add(layer.forward(&x)?, 1.0)
    },
    cast => |at| {
        let (x, a) = at.any();
        // There and back is exact where numbers are few bits; here it only has to be the same everywhere.
        at.add(x.mul_scalar(4.0)?.detach().round()?.to(DType::F32)?.to(DType::F64)?, 4.0 * a)
    },
    segments => |at| {
        let (x, a) = at.filled(2)?;
        let (n, d) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
        let q = x.reshape([1, x.numel() / (n * d), n, d])?;
        let k = at.parameter(q.shape())?.mul_scalar(0.25)?;
        let of = at.indices(&[1, n], 2)?;
        at.add(q.attention_by_segment(&k, &q, [&of, &of], None, &Attention::new())?, a)
    },
    neighbors => |at| {
        let (x, a) = at.filled(2)?;
        let (n, d) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
        let q = x.reshape([x.numel() / (n * d), n, 1, d])?;
        let k = at.parameter(q.shape())?.mul_scalar(0.25)?;
        let near = Neighborhood::new([if n > 2 { 3 } else { 1 }]);
        at.add(q.neighborhood_attention(&k, &q, &near)?, a)
    },
    swiglu => |at| {
        static OF: LazyLock<Fused<2, 1>> = LazyLock::new(|| Fused::new("swiglu", |[x, y]| [x.silu() * y]));
        let (x, a) = at.any();
        let (y, b) = at.partner(&x)?;
        let [z] = OF.of([&x, &y])?;
        at.add(z, a * b)
    },
    bilinear => |at| {
        let (x, a) = at.of_exactly(2)?;
        let (y, b) = at.alike(&x)?;
        let n = x.shape()[1];
        let w = at.parameter(&[2, n, n])?;
        at.add(x.bilinear(&y, &w, None)?, 4.0 * a * b * (n * n) as f64)
    },
    distances => |at| {
        let (x, _) = at.filled(2)?;
        let x = x.flatten_dims(0, x.ndim() - 2)?;
        // Far from where a distance has no slope.
        let y = at.parameter(&[3, x.shape()[1]])?.mul_scalar(0.1)?.add_scalar(9.0)?;
        at.add(x.tanh()?.cdist(&y, 2.0)?, 16.0 * x.shape()[1] as f64)
    },
    lerp => |at| {
        let (x, a) = at.any();
        let (y, b) = at.alike(&x)?;
        at.add(x.lerp(&y, 0.3)?, a + b)
    },
    segment_mean => |at| {
        let (x, a) = at.of_dims(1)?;
        let ids = at.indices(&[x.shape()[0]], 3)?;
        at.add(x.segment_mean(&ids, 3)?, a)
    },
    sharded_layer => |at| {
        let (x, a) = at.filled(1)?;
        let n = x.shape()[x.ndim() - 1];
        let layer = nn::Linear::new(&at.mesh(), n, 5)?.fully_sharded("a")?;
        at.add(layer.forward(&x)?.gelu()?, a * n as f64 + 1.0)
    },
];

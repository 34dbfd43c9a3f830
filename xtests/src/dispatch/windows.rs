//! Ops with windows, norms, and a small network of them.

use super::{Applied, Args, Entry, built, unfit};
use crate::case::{Case, CaseError};
use shard_kernels::unary::Unary;
use shard_ops::conv::{ConvOptions, ConvTransposeOptions, Padding, conv, conv_transpose};
use shard_ops::grid::{SampleEdge, SampleMode, Sampling, affine_grid, deform_conv, grid_sample};
use shard_ops::neighborhood::{Neighborhood, neighborhood_attention};
use shard_ops::norm::{
    Running, batch_norm, group_norm, instance_norm, instance_norm_running, layer_norm, rms_norm,
};
use shard_ops::pool::{
    PoolOptions, adaptive_avg_pool, adaptive_max_pool, avg_pool, fractional_max_pool,
    local_response_norm, lp_pool, max_pool, max_unpool,
};
use shard_ops::resample::{ResampleTo, interpolate};
use shard_ops::unfold::{
    UnfoldOptions, channel_shuffle, fold, pixel_shuffle, pixel_unshuffle, sliding, unfold,
};
use shard_ops::{Exec, Value, elementwise as ew, index, shape};
use shard_spec::ResampleMode;

pub(crate) const TABLE: &[Entry] = &[
    built("conv1d", forward),
    built("conv2d", forward),
    built("conv3d", forward),
    built("deform_conv1d", displaced),
    built("deform_conv2d", displaced),
    built("conv_transpose1d", transposed),
    built("conv_transpose2d", transposed),
    built("conv_transpose3d", transposed),
    built("max_pool1d", largest),
    built("max_pool2d", largest),
    built("max_pool3d", largest),
    built("avg_pool1d", average),
    built("avg_pool2d", average),
    built("avg_pool3d", average),
    built("adaptive_avg_pool1d", averages),
    built("adaptive_avg_pool2d", averages),
    built("adaptive_avg_pool3d", averages),
    built("adaptive_max_pool1d", maxima),
    built("adaptive_max_pool2d", maxima),
    built("adaptive_max_pool3d", maxima),
    built("lp_pool1d", by_norm),
    built("lp_pool2d", by_norm),
    built("lp_pool3d", by_norm),
    built("fractional_max_pool2d", by_chance),
    built("fractional_max_pool3d", by_chance),
    built("max_unpool1d", put_back),
    built("max_unpool2d", put_back),
    built("max_unpool3d", put_back),
    built("interpolate", resized),
    built("upsample", resized),
    built("grid_sample", sampled),
    built("affine_grid", |e, c, v| {
        let theta = Args::new(c, v).need("theta")?;
        let size = c.attributes.ints("size")?.unwrap_or_default();
        let places: Vec<usize> = (size.iter().skip(2)).map(|&n| n.max(0) as usize).collect();
        let aligned = c.attributes.bool("align_corners", false)?;
        Ok(vec![affine_grid(e, theta, &places, aligned)?])
    }),
    built("unfold1d", columns),
    built("unfold2d", columns),
    built("unfold3d", columns),
    built("fold1d", summed),
    built("fold2d", summed),
    built("fold3d", summed),
    built("unfold", |e, c, v| match c.attributes.has("kernel_size") {
        true => columns(e, c, v),
        false => {
            let args = Args::new(c, v);
            let x = args.need("input")?;
            let dim = args.dim(
                if c.attributes.has("dim") {
                    "dim"
                } else {
                    "dimension"
                },
                x.ndim(),
            )?;
            let (size, step) = (c.attributes.size("size", 1)?, c.attributes.size("step", 1)?);
            Ok(vec![sliding(e, x, dim, size, step)?])
        }
    }),
    built("fold", summed),
    built("pixel_shuffle", |e, c, v| {
        let factor = c.attributes.size("upscale_factor", 1)?;
        Ok(vec![pixel_shuffle(
            e,
            Args::new(c, v).need("input")?,
            factor,
        )?])
    }),
    built("pixel_unshuffle", |e, c, v| {
        let factor = c.attributes.size("downscale_factor", 1)?;
        Ok(vec![pixel_unshuffle(
            e,
            Args::new(c, v).need("input")?,
            factor,
        )?])
    }),
    built("channel_shuffle", |e, c, v| {
        let groups = c.attributes.size("groups", 1)?;
        Ok(vec![channel_shuffle(
            e,
            Args::new(c, v).need("input")?,
            groups,
        )?])
    }),
    built("neighborhood_attention", |e, c, v| {
        let args = Args::new(c, v);
        let q = args.need("query")?;
        let nd = q.ndim().saturating_sub(3);
        let causal = c.attributes.spatial("is_causal", nd, 0)?;
        let mut near = Neighborhood::new(c.attributes.spatial("kernel_size", nd, 1)?)
            .dilation(c.attributes.spatial("dilation", nd, 1)?)
            .causal(causal.into_iter().map(|c| c > 0).collect::<Vec<_>>());
        if c.attributes.has("scale") {
            near = near.scale(c.attributes.float("scale", 1.0)?);
        }
        let (k, v) = (args.need("key")?, args.need("value")?);
        Ok(vec![neighborhood_attention(e, q, k, v, &near)?])
    }),
    built("group_norm", |e, c, v| {
        let args = Args::new(c, v);
        let (groups, eps) = (
            c.attributes.size("num_groups", 1)?,
            c.attributes.float("eps", 1e-5)?,
        );
        let (w, b) = (args.get("weight"), args.get("bias"));
        Ok(vec![group_norm(e, args.need("input")?, groups, w, b, eps)?])
    }),
    built("instance_norm", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let eps = c.attributes.float("eps", 1e-5)?;
        let (w, b) = (args.get("weight"), args.get("bias"));
        let Some(old) = running(&args) else {
            return Ok(vec![instance_norm(e, x, w, b, eps)?]);
        };
        let training = c.attributes.bool("use_input_stats", true)?;
        let momentum = c.attributes.float("momentum", 0.1)?;
        let (y, new) = instance_norm_running(e, x, &old, w, b, training, momentum, eps)?;
        Ok(told(c, y, Some(new)))
    }),
    built("batch_norm", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let eps = c.attributes.float("eps", 1e-5)?;
        let (w, b) = (args.get("weight"), args.get("bias"));
        let training = c.attributes.bool("training", false)?;
        let momentum = c.attributes.float("momentum", 0.1)?;
        let old = running(&args);
        let (y, new) = batch_norm(e, x, old.as_ref(), w, b, training, momentum, eps)?;
        Ok(told(c, y, new))
    }),
    built("rms_norm", |e, c, v| {
        let args = Args::new(c, v);
        let dims = c.attributes.ints("normalized_shape")?.unwrap_or_default();
        let eps = match c.attributes.has("eps") {
            true => Some(c.attributes.float("eps", 0.0)?),
            false => None,
        };
        let (x, w) = (args.need("input")?, args.get("weight"));
        Ok(vec![rms_norm(e, x, dims.len(), w, eps)?])
    }),
    built("local_response_norm", |e, c, v| {
        let x = Args::new(c, v).need("input")?;
        let size = c.attributes.size("size", 1)?;
        let number = |name, default| c.attributes.float(name, default);
        let (alpha, beta, k) = (
            number("alpha", 1e-4)?,
            number("beta", 0.75)?,
            number("k", 1.0)?,
        );
        Ok(vec![local_response_norm(e, x, size, alpha, beta, k)?])
    }),
    built("layer_norm", |e, c, v| {
        let args = Args::new(c, v);
        let dims = c
            .attributes
            .ints("normalized_shape")?
            .unwrap_or_default()
            .len();
        let eps = c.attributes.float("eps", 1e-5)?;
        Ok(vec![layer_norm(
            e,
            args.need("input")?,
            dims,
            args.get("weight"),
            args.get("bias"),
            eps,
        )?])
    }),
    built(
        "silu(group_norm(conv)) -> conv s2 -> nearest upsample -> cat -> conv",
        |e, c, v| {
            let args = Args::new(c, v);
            let x = args.need("input")?;
            let (groups, eps) = (
                c.attributes.size("num_groups", 1)?,
                c.attributes.float("eps", 1e-5)?,
            );
            let same = ConvOptions {
                padding: Padding::Explicit(vec![(1, 1)]),
                ..ConvOptions::default()
            };
            let halving = ConvOptions {
                stride: vec![2],
                ..same.clone()
            };
            let h = conv(e, x, args.need("w1")?, None, &same)?;
            let h = group_norm(e, &h, groups, args.get("g"), args.get("b"), eps)?;
            let h = ew::unary(e, &h, Unary::Silu)?;
            let low = conv(e, &h, args.need("w2")?, None, &halving)?;
            let up = interpolate(
                e,
                &low,
                &ResampleTo::Size(x.shape()[2..].to_vec()),
                ResampleMode::Nearest,
            )?;
            let joined = index::cat(e, &[&h, &up], 1)?;
            Ok(vec![conv(e, &joined, args.need("w3")?, None, &same)?])
        },
    ),
];

fn forward(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let args = Args::new(c, v);
    let (x, w) = (args.need("input")?, args.need("weight")?);
    let dims = w.ndim().saturating_sub(2);
    let options = direct(c, dims)?;
    batched(e, x, dims, |x| {
        Ok(vec![conv(e, x, w, args.get("bias"), &options)?])
    })
}

fn displaced(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let args = Args::new(c, v);
    let operands = [
        args.need("input")?,
        args.need("offset")?,
        args.need("weight")?,
    ];
    let options = direct(c, operands[0].ndim().saturating_sub(2))?;
    let (mask, bias) = (args.get("mask"), args.get("bias"));
    Ok(vec![deform_conv(e, operands, mask, bias, &options)?])
}

/// The options of a convolution of so many spatial dims.
fn direct(c: &Case, dims: usize) -> Result<ConvOptions, CaseError> {
    let padding = match c.attributes.get("padding").and_then(|p| p.as_str()) {
        Some("same") => Padding::Same,
        Some("valid") => Padding::Explicit(vec![(0, 0)]),
        _ => Padding::Explicit(both_sides(c.attributes.spatial("padding", dims, 0)?)),
    };
    Ok(ConvOptions {
        stride: c.attributes.spatial("stride", dims, 1)?,
        dilation: c.attributes.spatial("dilation", dims, 1)?,
        padding,
        groups: c.attributes.size("groups", 1)?,
        ..ConvOptions::default()
    })
}

fn transposed(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let args = Args::new(c, v);
    let (x, w) = (args.need("input")?, args.need("weight")?);
    let dims = w.ndim().saturating_sub(2);
    let options = ConvTransposeOptions {
        stride: c.attributes.spatial("stride", dims, 1)?,
        dilation: c.attributes.spatial("dilation", dims, 1)?,
        padding: both_sides(c.attributes.spatial("padding", dims, 0)?),
        output_padding: c.attributes.spatial("output_padding", dims, 0)?,
        groups: c.attributes.size("groups", 1)?,
    };
    batched(e, x, dims, |x| {
        Ok(vec![conv_transpose(e, x, w, args.get("bias"), &options)?])
    })
}

fn both_sides(pads: Vec<usize>) -> Vec<(usize, usize)> {
    pads.into_iter().map(|p| (p, p)).collect()
}

/// Applies an op that wants a batch dim, also to an operand without one.
fn batched(e: &dyn Exec, x: &Value, dims: usize, op: impl Fn(&Value) -> Applied) -> Applied {
    if x.ndim() != dims + 1 {
        return op(x);
    }
    let outputs = op(&shape::unsqueeze(e, x, 0)?)?;
    outputs
        .iter()
        .map(|y| Ok(shape::squeeze(e, y, 0)?))
        .collect()
}

/// How many spatial dims an op's name says it has.
fn spatial_dims(c: &Case) -> usize {
    ["1d", "2d", "3d"]
        .iter()
        .position(|s| c.op.ends_with(s))
        .map_or(0, |i| i + 1)
}

fn pooling(c: &Case) -> Result<PoolOptions, CaseError> {
    let dims = spatial_dims(c);
    let kernel = c.attributes.spatial("kernel_size", dims, 1)?;
    let stride = if c.attributes.has("stride") {
        c.attributes.spatial("stride", dims, 1)?
    } else {
        kernel.clone()
    };
    Ok(PoolOptions {
        stride,
        padding: c.attributes.spatial("padding", dims, 0)?,
        dilation: c.attributes.spatial("dilation", dims, 1)?,
        ceil_mode: c.attributes.bool("ceil_mode", false)?,
        count_include_pad: c.attributes.bool("count_include_pad", true)?,
        divisor: match c.attributes.size("divisor_override", 0)? {
            0 => None,
            n => Some(n),
        },
        ..PoolOptions::new(kernel)
    })
}

/// Values and, for the cases that ask, their indices.
fn largest(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let options = pooling(c)?;
    batched(e, Args::new(c, v).need("input")?, spatial_dims(c), |x| {
        let (values, indices) = max_pool(e, x, &options)?;
        Ok(vec![values, indices])
    })
}

fn average(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let options = pooling(c)?;
    batched(e, Args::new(c, v).need("input")?, spatial_dims(c), |x| {
        Ok(vec![avg_pool(e, x, &options)?])
    })
}

/// Extents asked for; those left out stay as they are.
fn outputs(c: &Case) -> Result<Vec<Option<usize>>, CaseError> {
    let given = c.attributes.get("output_size");
    let one = |n: &serde_json::Value| match n.as_u64() {
        Some(n) => Ok(Some(n as usize)),
        None if n.is_null() => Ok(None),
        None => Err(unfit("output_size", "extents or nothing", n)),
    };
    match given {
        Some(serde_json::Value::Array(all)) => all.iter().map(one).collect(),
        Some(n) => Ok(vec![one(n)?]),
        None => Ok(vec![None]),
    }
}

fn averages(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let outputs = outputs(c)?;
    batched(e, Args::new(c, v).need("input")?, spatial_dims(c), |x| {
        Ok(vec![adaptive_avg_pool(e, x, &outputs)?])
    })
}

fn maxima(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let outputs = outputs(c)?;
    batched(e, Args::new(c, v).need("input")?, spatial_dims(c), |x| {
        let (values, indices) = adaptive_max_pool(e, x, &outputs)?;
        Ok(vec![values, indices])
    })
}

fn by_norm(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let (options, norm) = (pooling(c)?, c.attributes.float("norm_type", 2.0)?);
    batched(e, Args::new(c, v).need("input")?, spatial_dims(c), |x| {
        Ok(vec![lp_pool(e, x, norm, &options)?])
    })
}

fn by_chance(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let (args, options) = (Args::new(c, v), pooling(c)?);
    let outputs: Vec<usize> = outputs(c)?.into_iter().flatten().collect();
    let (x, samples) = (args.need("input")?, args.need("samples")?);
    let (values, indices) = fractional_max_pool(e, x, samples, &options.kernel, &outputs)?;
    Ok(vec![values, indices])
}

fn put_back(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let (args, dims) = (Args::new(c, v), spatial_dims(c));
    let (x, indices) = (args.need("input")?, args.need("indices")?);
    let extents = c.attributes.ints("output_size")?.map(|all| {
        let spatial = all[all.len().saturating_sub(dims)..].iter();
        spatial.map(|&n| n.max(0) as usize).collect::<Vec<_>>()
    });
    let options = pooling(c)?;
    let lone = x.ndim() == dims + 1;
    let indices = match lone {
        true => shape::unsqueeze(e, indices, 0)?,
        false => indices.clone(),
    };
    batched(e, x, dims, |x| {
        Ok(vec![max_unpool(
            e,
            x,
            &indices,
            &options,
            extents.as_deref(),
        )?])
    })
}

/// Windows of a case, of as many spatial dims as its op says or its operand has.
fn windows(c: &Case, dims: usize) -> Result<UnfoldOptions, CaseError> {
    let dims = dims.max(1);
    Ok(UnfoldOptions {
        stride: c.attributes.spatial("stride", dims, 1)?,
        padding: c.attributes.spatial("padding", dims, 0)?,
        dilation: c.attributes.spatial("dilation", dims, 1)?,
        ..UnfoldOptions::new(c.attributes.spatial("kernel_size", dims, 1)?)
    })
}

fn columns(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let x = Args::new(c, v).need("input")?;
    // Without a number in its name the op is PyTorch's, of two dims.
    let dims = match spatial_dims(c) {
        0 => 2,
        n => n,
    };
    let options = windows(c, dims)?;
    batched(e, x, dims, |x| Ok(vec![unfold(e, x, &options)?]))
}

fn summed(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let x = Args::new(c, v).need("input")?;
    let dims = match spatial_dims(c) {
        0 => 2,
        n => n,
    };
    let options = windows(c, dims)?;
    let extents = c.attributes.spatial("output_size", dims, 1)?;
    // Columns without a batch have two dims.
    batched(e, x, 1, |x| Ok(vec![fold(e, x, &extents, &options)?]))
}

fn sampled(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let args = Args::new(c, v);
    let mode = match c.attributes.text("mode", "bilinear")?.as_str() {
        "nearest" => SampleMode::Nearest,
        "bilinear" => SampleMode::Linear,
        "bicubic" => SampleMode::Cubic,
        other => return Err(unfit("mode", "nearest, bilinear or bicubic", &other).into()),
    };
    let edge = match c.attributes.text("padding_mode", "zeros")?.as_str() {
        "zeros" => SampleEdge::Zeros,
        "border" => SampleEdge::Border,
        "reflection" => SampleEdge::Reflection,
        other => return Err(unfit("padding_mode", "zeros, border or reflection", &other).into()),
    };
    let aligned = c.attributes.bool("align_corners", false)?;
    let sampling = Sampling {
        mode,
        edge,
        aligned,
    };
    let (x, grid) = (args.need("input")?, args.need("grid")?);
    Ok(vec![grid_sample(e, x, grid, sampling)?])
}

fn running(args: &Args<'_>) -> Option<Running> {
    Some(Running {
        mean: args.get("running_mean")?.clone(),
        var: args.get("running_var")?.clone(),
    })
}

/// The outputs of a norm that a case asks for: statistics follow the result.
fn told(c: &Case, y: Value, running: Option<Running>) -> Vec<Value> {
    let statistics = running.into_iter().flat_map(|r| [r.mean, r.var]);
    [y].into_iter()
        .chain(statistics)
        .take(c.outputs.len().max(1))
        .collect()
}

fn mode(c: &Case) -> Result<ResampleMode, CaseError> {
    let aligned = c.attributes.bool("align_corners", false)?;
    let antialias = c.attributes.bool("antialias", false)?;
    match c.attributes.text("mode", "nearest")?.as_str() {
        "nearest" => Ok(ResampleMode::Nearest),
        "nearest-exact" => Ok(ResampleMode::NearestExact),
        "linear" | "bilinear" | "trilinear" => Ok(match (aligned, antialias) {
            (false, false) => ResampleMode::Linear,
            (true, false) => ResampleMode::LinearAligned,
            (false, true) => ResampleMode::LinearAntialias,
            (true, true) => ResampleMode::LinearAlignedAntialias,
        }),
        "bicubic" => Ok(match (aligned, antialias) {
            (false, false) => ResampleMode::Cubic,
            (true, false) => ResampleMode::CubicAligned,
            (false, true) => ResampleMode::CubicAntialias,
            (true, true) => ResampleMode::CubicAlignedAntialias,
        }),
        "area" => Ok(ResampleMode::Area),
        other => Err(unfit("mode", "one of PyTorch's", &other)),
    }
}

fn resized(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let x = Args::new(c, v).need("input")?;
    let dims = x.ndim().saturating_sub(2);
    let target = if c.attributes.has("scale_factor") {
        let factors = c.attributes.floats("scale_factor")?.unwrap_or_default();
        let recomputed = c.attributes.bool("recompute_scale_factor", false)?;
        match recomputed && (factors.len() == 1 || factors.len() == dims) {
            // Coordinates by the ratio of the extents.
            true => ResampleTo::Size(
                (0..dims)
                    .map(|d| (x.shape()[2 + d] as f64 * factors[d.min(factors.len() - 1)]) as usize)
                    .collect(),
            ),
            false => ResampleTo::Scale(factors),
        }
    } else {
        ResampleTo::Size(c.attributes.spatial("size", dims, 1)?)
    };
    Ok(vec![interpolate(e, x, &target, mode(c)?)?])
}

//! Ops with windows, norms, and a small network of them.

use super::{Applied, Args, Entry, built, unfit};
use crate::case::{Case, CaseError};
use shard_kernels::unary::Unary;
use shard_ops::conv::{ConvOptions, ConvTransposeOptions, Padding, conv, conv_transpose};
use shard_ops::neighborhood::{Neighborhood, neighborhood_attention};
use shard_ops::norm::{group_norm, instance_norm, layer_norm};
use shard_ops::pool::{PoolOptions, avg_pool, max_pool};
use shard_ops::resample::{Target, interpolate};
use shard_ops::{Exec, Value, elementwise as ew, index, shape};
use shard_spec::ResampleMode;

pub(crate) const TABLE: &[Entry] = &[
    built("conv1d", forward),
    built("conv2d", forward),
    built("conv3d", forward),
    built("conv_transpose1d", transposed),
    built("conv_transpose2d", transposed),
    built("conv_transpose3d", transposed),
    built("max_pool1d", largest),
    built("max_pool2d", largest),
    built("max_pool3d", largest),
    built("avg_pool1d", average),
    built("avg_pool2d", average),
    built("avg_pool3d", average),
    Entry {
        name: "interpolate",
        apply: resized,
        lacks: |case| {
            let mode = case.attributes.text("mode", "nearest").unwrap_or_default();
            ["area", "bicubic"]
                .contains(&mode.as_str())
                .then(|| format!("mode {mode} is not built"))
        },
    },
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
        let eps = c.attributes.float("eps", 1e-5)?;
        Ok(vec![instance_norm(
            e,
            args.need("input")?,
            args.get("weight"),
            args.get("bias"),
            eps,
        )?])
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
                &Target::Size(x.shape()[2..].to_vec()),
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
    let padding = match c.attributes.get("padding").and_then(|p| p.as_str()) {
        Some("same") => Padding::Same,
        Some("valid") => Padding::Explicit(vec![(0, 0)]),
        _ => Padding::Explicit(both_sides(c.attributes.spatial("padding", dims, 0)?)),
    };
    let options = ConvOptions {
        stride: c.attributes.spatial("stride", dims, 1)?,
        dilation: c.attributes.spatial("dilation", dims, 1)?,
        padding,
        groups: c.attributes.size("groups", 1)?,
        ..ConvOptions::default()
    };
    batched(e, x, dims, |x| {
        Ok(vec![conv(e, x, w, args.get("bias"), &options)?])
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

fn mode(c: &Case) -> Result<ResampleMode, CaseError> {
    let aligned = c.attributes.bool("align_corners", false)?;
    match c.attributes.text("mode", "nearest")?.as_str() {
        "nearest" => Ok(ResampleMode::Nearest),
        "nearest-exact" => Ok(ResampleMode::NearestExact),
        "linear" | "bilinear" | "trilinear" if aligned => Ok(ResampleMode::LinearAligned),
        "linear" | "bilinear" | "trilinear" => Ok(ResampleMode::Linear),
        other => Err(unfit("mode", "nearest, nearest-exact or linear", &other)),
    }
}

fn resized(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let x = Args::new(c, v).need("input")?;
    let target = if c.attributes.has("scale_factor") {
        Target::Scale(c.attributes.floats("scale_factor")?.unwrap_or_default())
    } else {
        Target::Size(
            c.attributes
                .spatial("size", x.ndim().saturating_sub(2), 1)?,
        )
    };
    Ok(vec![interpolate(e, x, &target, mode(c)?)?])
}

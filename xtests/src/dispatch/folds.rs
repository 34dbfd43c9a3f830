//! Ops that fold blocks of a sharded dim.

use super::{Applied, ApplyError, Args, Entry, built, unfit};
use crate::case::Case;
use shard_kernels::unary::Unary;
use shard_ops::attention::{Attention, Causal, TokenSegments, attention, attention_by_segment};
use shard_ops::elementwise::{add, isinf, masked_fill, unary};
use shard_ops::index::slice;
use shard_ops::matmul::matmul;
use shard_ops::neighbors::{
    Clouds, farthest_points_by_cloud, nearest, nearest_by_cloud, radius_search,
    radius_search_by_cloud, radius_search_capped, radius_search_capped_by_cloud,
};
use shard_ops::norm::layer_norm;
use shard_ops::shape::{permute, reshape};
use shard_ops::{Exec, FoldBy, OpError, Value};

pub(crate) const TABLE: &[Entry] = &[
    Entry {
        name: "scaled_dot_product_attention",
        apply: sdpa,
        lacks: |c| {
            let rate = c.attributes.float("dropout_p", 0.0).unwrap_or(0.0);
            (rate != 0.0).then(|| "dropout is not built".to_owned())
        },
    },
    built("attention_by_segment", |e, c, v| {
        let args = Args::new(c, v);
        let operands = [args.need("query")?, args.need("key")?, args.need("value")?];
        let segments = TokenSegments {
            queries: args.need("query_segments")?,
            keys: args.need("key_segments")?,
        };
        let (mask, options) = (args.get("attn_mask"), attention_options(c)?);
        let out = attention_by_segment(e, operands, segments, mask, &options)?;
        Ok(vec![out])
    }),
    built("x + mlp(x + attn(layer_norm(x)))", transformer_block),
    built("knn", |e, c, v| {
        let args = Args::new(c, v);
        let (queries, points) = (args.need("queries")?, args.need("points")?);
        let k = c.attributes.size("k", 1)?;
        let (distances, indices) = nearest(e, queries, points, k, ring(c)?)?;
        Ok(vec![distances, indices])
    }),
    built("radius_search", |e, c, v| {
        let args = Args::new(c, v);
        let (queries, points) = (args.need("queries")?, args.need("points")?);
        let radius = c.attributes.float("radius", 1.0)?;
        if c.attributes.has("cap") {
            let cap = c.attributes.size("cap", 0)?;
            let found = radius_search_capped(e, queries, points, radius, cap, ring(c)?)?;
            return Ok(vec![found.distances, found.indices, found.counts]);
        }
        let found = radius_search(e, queries, points, radius, ring(c)?)?;
        Ok(vec![found.pairs, found.distances, found.counts])
    }),
    built("knn_by_cloud", |e, c, v| {
        let ((queries, points), clouds) = among_clouds(c, v)?;
        let k = c.attributes.size("k", 1)?;
        let (distances, indices) = nearest_by_cloud(e, queries, points, clouds, k, ring(c)?)?;
        Ok(vec![finite(e, &distances)?, indices])
    }),
    built("radius_search_by_cloud", |e, c, v| {
        let ((queries, points), clouds) = among_clouds(c, v)?;
        let (radius, ring) = (c.attributes.float("radius", 1.0)?, ring(c)?);
        if c.attributes.has("cap") {
            let cap = c.attributes.size("cap", 0)?;
            let found =
                radius_search_capped_by_cloud(e, queries, points, clouds, radius, cap, ring)?;
            let distances = finite(e, &found.distances)?;
            return Ok(vec![distances, found.indices, found.counts]);
        }
        let found = radius_search_by_cloud(e, queries, points, clouds, radius, ring)?;
        Ok(vec![found.pairs, found.distances, found.counts])
    }),
    built("farthest_points_by_cloud", |e, c, v| {
        let args = Args::new(c, v);
        let (points, ids) = (args.need("points")?, args.need("point_clouds")?);
        let [clouds, count] = [
            c.attributes.size("clouds", 1)?,
            c.attributes.size("count", 1)?,
        ];
        let far = farthest_points_by_cloud(e, points, ids, clouds, count, ring(c)?)?;
        Ok(vec![far])
    }),
];

/// Queries and points, and the clouds of both.
type AmongClouds<'a> = ((&'a Value, &'a Value), Clouds<'a>);

fn among_clouds<'a>(case: &'a Case, values: &'a [Value]) -> Result<AmongClouds<'a>, ApplyError> {
    let args = Args::new(case, values);
    let clouds = Clouds {
        queries: args.need("query_clouds")?,
        points: args.need("point_clouds")?,
    };
    Ok(((args.need("queries")?, args.need("points")?), clouds))
}

/// Distances, where those of what is not there are zero.
fn finite(exec: &dyn Exec, distances: &Value) -> Result<Value, OpError> {
    masked_fill(exec, distances, &isinf(exec, distances)?, 0.0)
}

/// The cases are small: left alone, blocks would always be gathered.
fn ring(case: &Case) -> Result<FoldBy, ApplyError> {
    Ok(match case.attributes.text("ring", "always")?.as_str() {
        "never" => FoldBy::Gather,
        "auto" => FoldBy::Auto,
        _ => FoldBy::Ring,
    })
}

fn sdpa(exec: &dyn Exec, case: &Case, values: &[Value]) -> Applied {
    let args = Args::new(case, values);
    Ok(vec![attention(
        exec,
        args.need("query")?,
        args.need("key")?,
        args.need("value")?,
        args.get("attn_mask"),
        &attention_options(case)?,
    )?])
}

fn attention_options(case: &Case) -> Result<Attention, ApplyError> {
    let mut options = Attention::new();
    if case.attributes.bool("is_causal", false)? {
        options = options.causal(Causal::TopLeft);
    }
    if case.attributes.has("scale") {
        options = options.scale(case.attributes.float("scale", 1.0)?);
    }
    Ok(options.fold_by(ring(case)?))
}

/// A block of a transformer: attention of several heads to normalised tokens, then two layers around a GELU, each added to what it
/// was given. Queries, keys and values are thirds of one product.
fn transformer_block(exec: &dyn Exec, case: &Case, values: &[Value]) -> Applied {
    let args = Args::new(case, values);
    let x = args.need("input")?;
    let heads = case.attributes.size("heads", 1)?;
    let eps = case.attributes.float("eps", 1e-5)?;
    let (scale, shift) = (args.get("g1"), args.get("b1"));
    let tokens = layer_norm(exec, x, 1, scale, shift, eps)?;
    let [batch, count, width] = *x.shape() else {
        return Err(unfit("in.input", "batch, tokens and channels", &x.shape()).into());
    };
    let qkv = matmul(exec, &tokens, args.need("wqkv")?)?;
    let third = |k: usize| {
        let third = slice(exec, &qkv, 2, k * width, 1, width)?;
        let split = reshape(exec, &third, &[batch, count, heads, width / heads.max(1)])?;
        permute(exec, &split, &[0, 2, 1, 3])
    };
    let (q, k, v) = (third(0)?, third(1)?, third(2)?);
    let seen = attention(exec, &q, &k, &v, None, &Attention::new())?;
    let joined = permute(exec, &seen, &[0, 2, 1, 3])?;
    let joined = reshape(exec, &joined, &[batch, count, width])?;
    let h = add(exec, x, &matmul(exec, &joined, args.need("wo")?)?)?;
    let wide = unary(exec, &matmul(exec, &h, args.need("w1")?)?, Unary::Gelu)?;
    let y = matmul(exec, &wide, args.need("w2")?)?;
    Ok(vec![add(exec, &h, &y)?])
}

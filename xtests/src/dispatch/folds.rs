//! Ops that fold blocks of a sharded dim.

use super::{Applied, ApplyError, Args, Entry, built, unfit};
use crate::case::Case;
use shard_kernels::unary::Unary;
use shard_ops::attention::{Attention, Causal, attention};
use shard_ops::elementwise::{add, unary};
use shard_ops::index::slice;
use shard_ops::matmul::matmul;
use shard_ops::neighbors::{nearest, radius_search, radius_search_capped};
use shard_ops::norm::layer_norm;
use shard_ops::shape::{permute, reshape};
use shard_ops::{Exec, FoldBy, Value};

pub(crate) const TABLE: &[Entry] = &[
    Entry {
        name: "scaled_dot_product_attention",
        apply: sdpa,
        lacks: |c| {
            let rate = c.attributes.float("dropout_p", 0.0).unwrap_or(0.0);
            (rate != 0.0).then(|| "dropout is not built".to_owned())
        },
    },
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
];

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
    let mut options = Attention::default();
    if case.attributes.bool("is_causal", false)? {
        options = options.causal(Causal::TopLeft);
    }
    if case.attributes.has("scale") {
        options = options.scale(case.attributes.float("scale", 1.0)?);
    }
    Ok(vec![attention(
        exec,
        args.need("query")?,
        args.need("key")?,
        args.need("value")?,
        args.get("attn_mask"),
        &options.fold_by(ring(case)?),
    )?])
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
    let seen = attention(exec, &q, &k, &v, None, &Attention::default())?;
    let joined = permute(exec, &seen, &[0, 2, 1, 3])?;
    let joined = reshape(exec, &joined, &[batch, count, width])?;
    let h = add(exec, x, &matmul(exec, &joined, args.need("wo")?)?)?;
    let wide = unary(exec, &matmul(exec, &h, args.need("w1")?)?, Unary::Gelu)?;
    let y = matmul(exec, &wide, args.need("w2")?)?;
    Ok(vec![add(exec, &h, &y)?])
}

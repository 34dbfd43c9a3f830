//! Ops that fold blocks of a sharded dim.

use super::{Applied, ApplyError, Args, Entry, built};
use crate::case::Case;
use shard_ops::attention::{Attention, Causal, attention};
use shard_ops::neighbors::{nearest, radius_search, radius_search_capped};
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

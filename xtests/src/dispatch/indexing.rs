//! Ops whose operands name rows of others.

use super::{Applied, ApplyError, Args, Entry, built, unfit};
use crate::case::Case;
use shard_ops::elementwise::{lt, masked_fill, number};
use shard_ops::histogram::{self, Bins};
use shard_ops::indexing::{self, BagReduce, Bags, ScatterReduce};
use shard_ops::unique::{self, Unique};
use shard_ops::{Exec, OpError, Value, search, select, shape, sort};

pub(crate) const TABLE: &[Entry] = &[
    built("index_select", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index) = (args.need("input")?, args.need("index")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::index_select(exec, x, dim, index)?])
    }),
    built("gather", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index) = (args.need("input")?, args.need("index")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::gather(exec, x, dim, index)?])
    }),
    built("take", |exec, case, values| {
        let args = Args::new(case, values);
        Ok(vec![indexing::take(
            exec,
            args.need("input")?,
            args.need("index")?,
        )?])
    }),
    built("take_along_dim", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index) = (args.need("input")?, args.need("index")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::take_along_dim(exec, x, index, dim)?])
    }),
    built("embedding", |exec, case, values| {
        let args = Args::new(case, values);
        let (indices, weight) = (args.need("indices")?, args.need("weight")?);
        let padding = match case.attributes.has("padding_idx") {
            true => Some(args.index("padding_idx", 0, weight.shape()[0])?),
            false => None,
        };
        Ok(vec![indexing::embedding(exec, indices, weight, padding)?])
    }),
    built("embedding_bag", |exec, case, values| {
        let args = Args::new(case, values);
        let (indices, weight) = (args.need("indices")?, args.need("weight")?);
        let padding = match case.attributes.has("padding_idx") {
            true => Some(args.index("padding_idx", 0, weight.shape()[0])?),
            false => None,
        };
        let how = match case.attributes.text("mode", "mean")?.as_str() {
            "sum" => BagReduce::Sum,
            "mean" => BagReduce::Mean,
            "max" => BagReduce::Max,
            other => return Err(unfit("mode", "sum, mean or max", &other).into()),
        };
        let bags = Bags {
            offsets: args.get("offsets"),
            padding,
            weights: args.get("per_sample_weights"),
        };
        Ok(vec![indexing::embedding_bag(
            exec, indices, weight, how, bags,
        )?])
    }),
    built("index_fill", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index) = (args.need("input")?, args.need("index")?);
        let (dim, value) = (
            args.dim("dim", x.ndim())?,
            case.attributes.float("value", 0.0)?,
        );
        Ok(vec![indexing::index_fill(exec, x, dim, index, value)?])
    }),
    built("scatter_value", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index) = (args.need("input")?, args.need("index")?);
        let (dim, value) = (
            args.dim("dim", x.ndim())?,
            case.attributes.float("value", 0.0)?,
        );
        Ok(vec![indexing::scatter_value(exec, x, dim, index, value)?])
    }),
    built("index_add", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let (dim, alpha) = (
            args.dim("dim", x.ndim())?,
            case.attributes.float("alpha", 1.0)?,
        );
        Ok(vec![indexing::index_add(exec, x, dim, index, src, alpha)?])
    }),
    built("scatter_add", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::scatter_add(exec, x, dim, index, src)?])
    }),
    built("scatter", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::scatter(exec, x, dim, index, src)?])
    }),
    built("scatter_reduce", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let dim = args.dim("dim", x.ndim())?;
        let how = match case.attributes.text("reduce", "sum")?.as_str() {
            "sum" => ScatterReduce::Sum,
            "mean" => ScatterReduce::Mean,
            "prod" => ScatterReduce::Prod,
            "amax" => ScatterReduce::Max,
            "amin" => ScatterReduce::Min,
            other => return Err(unfit("reduce", "a reduction", &other).into()),
        };
        let own = case.attributes.bool("include_self", true)?;
        let made = indexing::scatter_reduce(exec, x, dim, index, src, how, own)?;
        Ok(vec![made])
    }),
    built("index_copy", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::index_copy(exec, x, dim, index, src)?])
    }),
    built("index_put", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, put) = (args.need("input")?, args.need("values")?);
        let indices = (0..).map_while(|k| args.get(&format!("index{k}")));
        let indices: Vec<_> = args.get("index").into_iter().chain(indices).collect();
        let adds = case.attributes.bool("accumulate", false)?;
        Ok(vec![indexing::index_put(exec, x, &indices, put, adds)?])
    }),
    built("gather_mm", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, w) = (args.need("input")?, args.need("weight")?);
        let y = indexing::gather_mm(exec, x, w, args.need("index")?)?;
        Ok(vec![y])
    }),
    built("grouped_mm", |exec, case, values| {
        let args = Args::new(case, values);
        let (a, b) = (args.need("a")?, args.need("b")?);
        let y = indexing::grouped_mm(exec, a, b, args.get("offsets"))?;
        Ok(vec![y])
    }),
    built("segment_sum", |e, c, v| {
        segments(e, c, v, indexing::segment_sum)
    }),
    built("segment_mean", |e, c, v| {
        segments(e, c, v, indexing::segment_mean)
    }),
    built("segment_max", |e, c, v| {
        segments(e, c, v, indexing::segment_max)
    }),
    built("segment_min", |e, c, v| {
        segments(e, c, v, indexing::segment_min)
    }),
    built("segment_max_with_indices", |e, c, v| {
        winners(e, c, v, indexing::segment_max_with_indices)
    }),
    built("segment_min_with_indices", |e, c, v| {
        winners(e, c, v, indexing::segment_min_with_indices)
    }),
    built("repeat_interleave_each", |e, c, v| {
        let args = Args::new(c, v);
        let (x, counts) = (args.need("input")?, args.need("counts")?);
        let (dim, total) = (args.dim("dim", x.ndim())?, c.attributes.size("total", 0)?);
        let total = c.attributes.has("total").then_some(total);
        let made = indexing::repeat_interleave_each(e, x, dim, counts, total)?;
        Ok(vec![made])
    }),
    built("segment_softmax", |e, c, v| {
        segments(e, c, v, indexing::segment_softmax)
    }),
    built("searchsorted", |exec, case, values| {
        let args = Args::new(case, values);
        let (sorted, x) = (args.need("sorted_sequence")?, args.need("values")?);
        let right = case.attributes.bool("right", false)?;
        Ok(vec![search::searchsorted(exec, sorted, x, right)?])
    }),
    built("bucketize", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, ends) = (args.need("input")?, args.need("boundaries")?);
        let right = case.attributes.bool("right", false)?;
        Ok(vec![search::bucketize(exec, x, ends, right)?])
    }),
    built("isin", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, among) = (args.need("input")?, args.need("among")?);
        Ok(vec![search::isin(exec, x, among)?])
    }),
    built("masked_select", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, mask) = (args.need("input")?, args.need("mask")?);
        Ok(vec![select::masked_select(exec, x, mask)?])
    }),
    built("nonzero", |exec, case, values| {
        let args = Args::new(case, values);
        Ok(vec![select::nonzero(exec, args.need("input")?)?])
    }),
    built("sort", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.index("dim", -1, x.ndim())?;
        let descending = case.attributes.bool("descending", false)?;
        let (values, indices) = sort::sort(exec, x, dim, descending)?;
        Ok(vec![values, indices])
    }),
    built("argsort", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.index("dim", -1, x.ndim())?;
        let descending = case.attributes.bool("descending", false)?;
        Ok(vec![sort::argsort(exec, x, dim, descending)?])
    }),
    built("topk", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.index("dim", -1, x.ndim())?;
        let (k, largest) = (
            case.attributes.size("k", 1)?,
            case.attributes.bool("largest", true)?,
        );
        let (values, indices) = sort::topk(exec, x, k, dim, largest)?;
        Ok(vec![values, indices])
    }),
    built("kthvalue", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.index("dim", -1, x.ndim())?;
        let k = case.attributes.size("k", 1)?;
        let (value, index) = sort::kthvalue(exec, x, k, dim)?;
        with_dim(exec, case, dim, [value, index])
    }),
    built("median", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        if !case.attributes.has("dim") {
            let all = shape::reshape(exec, x, &[x.shape().iter().product()])?;
            return Ok(vec![sort::median(exec, &all, 0)?.0]);
        }
        let dim = args.dim("dim", x.ndim())?;
        let (value, index) = sort::median(exec, x, dim)?;
        with_dim(exec, case, dim, [value, index])
    }),
    built("bincount", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, weights) = (args.need("input")?, args.get("weights"));
        let least = case.attributes.size("minlength", 0)?;
        Ok(vec![indexing::bincount(exec, x, weights, least)?])
    }),
    built("masked_scatter", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, mask, from) = (
            args.need("input")?,
            args.need("mask")?,
            args.need("source")?,
        );
        Ok(vec![select::masked_scatter(exec, x, mask, from)?])
    }),
    built("unique", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let found = match case.attributes.has("dim") {
            true => unique::unique_dim(exec, x, args.dim("dim", x.ndim())?)?,
            false => unique::unique_all(exec, x)?,
        };
        parts_of(case, found)
    }),
    built("unique_consecutive", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let found = match case.attributes.has("dim") {
            true => unique::unique_consecutive_dim(exec, x, args.dim("dim", x.ndim())?)?,
            false => unique::unique_consecutive(exec, x)?,
        };
        parts_of(case, found)
    }),
    built("histogram", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, weights) = (args.need("input")?, args.get("weight"));
        let bins = match args.get("bins") {
            Some(edges) => Bins::Edges(edges),
            None => Bins::Count(case.attributes.size("bins", 100)?, range(case)?),
        };
        let density = case.attributes.bool("density", false)?;
        let (counts, edges) = histogram::histogram(exec, x, bins, weights, density)?;
        Ok(vec![counts, edges])
    }),
    built("histogramdd", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, weights) = (args.need("input")?, args.get("weight"));
        let coordinates = x.shape().last().copied().unwrap_or(0);
        let (counts, ends) = (
            case.attributes.ints("bins")?,
            case.attributes.floats("range")?,
        );
        let names: Vec<_> = (0..coordinates).map(|k| format!("bins{k}")).collect();
        let bins = (names.iter().enumerate()).map(|(k, name)| match (args.get(name), &counts) {
            (Some(edges), _) => Ok(Bins::Edges(edges)),
            (None, Some(counts)) if k < counts.len() => {
                let ends = ends
                    .as_ref()
                    .and_then(|ends| Some((*ends.get(2 * k)?, *ends.get(2 * k + 1)?)));
                Ok(Bins::Count(usize::try_from(counts[k]).unwrap_or(0), ends))
            }
            _ => Err(unfit(
                "bins",
                "numbers or edges for each coordinate",
                &counts,
            )),
        });
        let bins = bins.collect::<Result<Vec<_>, _>>()?;
        let density = case.attributes.bool("density", false)?;
        let (counts, edges) = histogram::histogramdd(exec, x, &bins, weights, density)?;
        Ok(std::iter::once(counts).chain(edges).collect())
    }),
    built("histc", |exec, case, values| {
        let x = Args::new(case, values).need("input")?;
        let ends = (
            case.attributes.float("min", 0.0)?,
            case.attributes.float("max", 0.0)?,
        );
        let bins = case.attributes.size("bins", 100)?;
        Ok(vec![histogram::histc(exec, x, bins, ends)?])
    }),
];

type OfSegments = fn(&dyn Exec, &Value, &Value, usize) -> Result<Value, OpError>;

fn segments(e: &dyn Exec, c: &Case, v: &[Value], f: OfSegments) -> Applied {
    let args = Args::new(c, v);
    let count = c.attributes.size("num_segments", 0)?;
    Ok(vec![f(e, args.need("input")?, args.need("ids")?, count)?])
}

type Winners = fn(&dyn Exec, &Value, &Value, usize) -> Result<(Value, Value), OpError>;

/// Extremes of segments and their rows. Those without rows have infinities, which become zero.
fn winners(e: &dyn Exec, c: &Case, v: &[Value], f: Winners) -> Applied {
    let args = Args::new(c, v);
    let (x, ids) = (args.need("input")?, args.need("ids")?);
    let (best, rows) = f(e, x, ids, c.attributes.size("num_segments", 0)?)?;
    let none = lt(e, &rows, &number("winners", &rows, 0.0)?)?;
    Ok(vec![masked_fill(e, &best, &none, 0.0)?, rows])
}

/// What is left of a dim, which a case may ask to keep.
fn with_dim(exec: &dyn Exec, case: &Case, dim: usize, found: [Value; 2]) -> Applied {
    if !case.attributes.bool("keepdim", false)? {
        return Ok(found.into());
    }
    let kept = found.iter().map(|v| shape::unsqueeze(exec, v, dim));
    Ok(kept.collect::<Result<_, _>>()?)
}

/// What a case asks for of different elements.
fn parts_of(case: &Case, found: Unique) -> Applied {
    let mut all = vec![found.values];
    if case.attributes.bool("return_inverse", false)? {
        all.push(found.inverse);
    }
    if case.attributes.bool("return_counts", false)? {
        all.push(found.counts);
    }
    Ok(all)
}

/// The ends of bins, if a case has them.
fn range(case: &Case) -> Result<Option<(f64, f64)>, ApplyError> {
    match case.attributes.floats("range")?.as_deref() {
        None => Ok(None),
        Some(&[low, high]) => Ok(Some((low, high))),
        Some(other) => Err(unfit("range", "two numbers", &other).into()),
    }
}

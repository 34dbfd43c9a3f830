//! Ops whose operands name rows of others.

use super::{Args, Entry, built};
use shard_ops::indexing;

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
    built("index_add", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let (dim, alpha) = (args.dim("dim", x.ndim())?, case.attributes.float("alpha", 1.0)?);
        Ok(vec![indexing::index_add(exec, x, dim, index, src, alpha)?])
    }),
    built("scatter_add", |exec, case, values| {
        let args = Args::new(case, values);
        let (x, index, src) = (args.need("input")?, args.need("index")?, args.need("src")?);
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![indexing::scatter_add(exec, x, dim, index, src)?])
    }),
];

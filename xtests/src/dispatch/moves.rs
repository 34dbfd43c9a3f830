//! Ops that only move elements.

use super::{Applied, Args, Entry, built, unfit};
use crate::case::Case;
use shard_ops::{Exec, Value, broadcast, index, scan, shape};
use shard_spec::EdgeMap;

pub(crate) const TABLE: &[Entry] = &[
    built("cat", |exec, case, values| {
        let xs: Vec<&Value> = values.iter().collect();
        let ndim = case.outputs[0].shape.len();
        Ok(vec![index::cat(
            exec,
            &xs,
            Args::new(case, values).dim("dim", ndim)?,
        )?])
    }),
    built("stack", |exec, case, values| {
        let xs: Vec<&Value> = values.iter().collect();
        let ndim = case.outputs[0].shape.len();
        Ok(vec![index::stack(
            exec,
            &xs,
            Args::new(case, values).dim("dim", ndim)?,
        )?])
    }),
    built("narrow", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.dim("dim", x.ndim())?;
        let start = args.bound("start", 0, x.shape()[dim])?;
        let len = case.attributes.size("length", 0)?;
        Ok(vec![index::slice(exec, x, dim, start, 1, len)?])
    }),
    built("select", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.dim("dim", x.ndim())?;
        let index = args.index("index", 0, x.shape()[dim])?;
        Ok(vec![select(exec, x, dim, index)?])
    }),
    built("strided_slice", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.dim("dim", x.ndim())?;
        let n = x.shape()[dim];
        let step = case.attributes.size("step", 1)?;
        let stop = if case.attributes.has("stop") {
            "stop"
        } else {
            "end"
        };
        let (start, end) = (args.bound("start", 0, n)?, args.bound(stop, n, n)?);
        let len = end.saturating_sub(start).div_ceil(step.max(1));
        Ok(vec![index::slice(
            exec,
            x,
            dim,
            start,
            step.cast_signed(),
            len,
        )?])
    }),
    built("split", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.dim("dim", x.ndim())?;
        let sizes: Vec<usize> = case
            .outputs
            .iter()
            .map(|o| o.shape.get(dim).copied().unwrap_or(0))
            .collect();
        Ok(index::split(exec, x, &sizes, dim)?)
    }),
    built("tensor_split", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let pieces = case.attributes.size("sections", 1)?;
        Ok(index::tensor_split(
            exec,
            x,
            pieces,
            args.dim("dim", x.ndim())?,
        )?)
    }),
    built("rot90", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dims = args.dims("dims", x.ndim())?;
        let quarters = case.attributes.int("k", 1)?;
        Ok(vec![index::rot90(exec, x, quarters, [dims[0], dims[1]])?])
    }),
    built("block_diag", |exec, _, values| {
        let xs: Vec<&Value> = values.iter().collect();
        Ok(vec![index::block_diag(exec, &xs)?])
    }),
    built("vander", |exec, case, values| {
        let x = Args::new(case, values).need("input")?;
        let columns = case.attributes.size("n", x.shape()[0])?;
        let increasing = case.attributes.bool("increasing", false)?;
        Ok(vec![scan::vander(exec, x, columns, increasing)?])
    }),
    built("chunk_short", chunk),
    built("chunk", chunk),
    built("unbind", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        let dim = args.dim("dim", x.ndim())?;
        Ok(index::unbind(exec, x, dim)?)
    }),
    built("flip", |exec, case, values| {
        let args = Args::new(case, values);
        let mut x = args.need("input")?.clone();
        for dim in args.dims("dims", x.ndim())? {
            x = index::flip(exec, &x, dim)?;
        }
        Ok(vec![x])
    }),
    built("roll", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?.clone();
        let shifts = case.attributes.ints("shifts")?.unwrap_or_default();
        if !case.attributes.has("dims") {
            // As one long row.
            let shape = x.shape().to_vec();
            let row = shape::reshape(exec, &x, &[shape.iter().product()])?;
            let shift = isize::try_from(shifts.iter().sum::<i64>());
            let shift = shift.map_err(|_| unfit("shifts", "smaller shifts", &shifts))?;
            return Ok(vec![shape::reshape(
                exec,
                &index::roll(exec, &row, 0, shift)?,
                &shape,
            )?]);
        }
        let dims = args.dims("dims", x.ndim())?;
        if shifts.len() != dims.len() {
            return Err(unfit("shifts", "one shift per dim", &shifts).into());
        }
        let mut by = Vec::new();
        for (dim, shift) in dims.into_iter().zip(shifts) {
            let shift =
                isize::try_from(shift).map_err(|_| unfit("shifts", "smaller shifts", &shift))?;
            by.push((dim, shift));
        }
        Ok(vec![index::roll_dims(exec, &x, &by)?])
    }),
    built("repeat", |exec, case, values| {
        let mut x = Args::new(case, values).need("input")?.clone();
        let times = case.attributes.ints("repeats")?.unwrap_or_default();
        while x.ndim() < times.len() {
            x = shape::unsqueeze(exec, &x, 0)?;
        }
        let mut by = Vec::new();
        for (dim, times) in times.into_iter().enumerate() {
            let times = usize::try_from(times).map_err(|_| unfit("repeats", "counts", &times))?;
            by.push((dim, times));
        }
        Ok(vec![index::repeat_dims(exec, &x, &by)?])
    }),
    built("meshgrid", |exec, _, values| {
        let lists: Vec<&Value> = values.iter().collect();
        Ok(broadcast::meshgrid(exec, &lists)?)
    }),
    built("expand", |exec, case, values| {
        Ok(vec![broadcast::expand(
            exec,
            Args::new(case, values).need("input")?,
            &case.outputs[0].shape,
        )?])
    }),
    built("permute", |exec, case, values| {
        let args = Args::new(case, values);
        let x = args.need("input")?;
        Ok(vec![shape::permute(
            exec,
            x,
            &args.dims("dims", x.ndim())?,
        )?])
    }),
    // The attributes of reshapes are words; the shape they mean is that of the result.
    built("reshape_merge", reshape),
    built("reshape_split", reshape),
    built("flatten_all", reshape),
    built("flatten", reshape),
    built("reshape", reshape),
    built("pad", |exec, case, values| {
        let x = Args::new(case, values).need("input")?;
        let given = case.attributes.ints("pad")?.unwrap_or_default();
        // Pairs are given from the last dim backwards.
        let mut pads = vec![(0, 0); x.ndim()];
        for (pair, pad) in given.chunks(2).zip(pads.iter_mut().rev()) {
            let [before, after] = pair else {
                return Err(unfit("pad", "pairs", &given).into());
            };
            *pad = (*before as isize, *after as isize);
        }
        let edge = match case.attributes.text("mode", "constant")?.as_str() {
            "constant" => EdgeMap::Zeros,
            "replicate" => EdgeMap::Replicate,
            "reflect" => EdgeMap::Reflect,
            "circular" => EdgeMap::Circular,
            other => return Err(unfit("mode", "a pad mode", &other).into()),
        };
        Ok(vec![index::pad(
            exec,
            x,
            &pads,
            edge,
            case.attributes.float("value", 0.0)?,
        )?])
    }),
];

fn reshape(exec: &dyn Exec, case: &Case, values: &[Value]) -> Applied {
    Ok(vec![shape::reshape(
        exec,
        Args::new(case, values).need("input")?,
        &case.outputs[0].shape,
    )?])
}

fn select(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    index: usize,
) -> Result<Value, super::ApplyError> {
    let one = index::slice(exec, x, dim, index, 1, 1)?;
    Ok(shape::squeeze(exec, &one, dim)?)
}

fn chunk(exec: &dyn Exec, case: &Case, values: &[Value]) -> Applied {
    let args = Args::new(case, values);
    let x = args.need("input")?;
    let dim = args.dim("dim", x.ndim())?;
    let chunks = case.attributes.size("chunks", 1)?;
    Ok(index::chunk(exec, x, chunks, dim)?)
}

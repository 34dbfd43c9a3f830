//! Ops on integers and truth values, masks, triangles and scans.

use super::math::binary;
use super::{Applied, Args, Entry, built, unfit};
use crate::case::Case;
use shard_comm::DType;
use shard_ops::{Exec, OpError, Value, elementwise as ew, one_hot, reduce, scan, triangle};

pub(crate) const TABLE: &[Entry] = &[
    built("floor_div", |e, c, v| binary(e, c, v, ew::floor_div)),
    built("remainder", |e, c, v| binary(e, c, v, ew::remainder)),
    built("bitwise_and", |e, c, v| binary(e, c, v, ew::bitwise_and)),
    built("bitwise_or", |e, c, v| binary(e, c, v, ew::bitwise_or)),
    built("bitwise_xor", |e, c, v| binary(e, c, v, ew::bitwise_xor)),
    built("shift_left", |e, c, v| binary(e, c, v, ew::shift_left)),
    built("gcd", |e, c, v| binary(e, c, v, ew::gcd)),
    built("lcm", |e, c, v| binary(e, c, v, ew::lcm)),
    built("shift_right", |e, c, v| binary(e, c, v, ew::shift_right)),
    built("eq", |e, c, v| binary(e, c, v, ew::eq)),
    built("ne", |e, c, v| binary(e, c, v, ew::ne)),
    built("lt", |e, c, v| binary(e, c, v, ew::lt)),
    built("le", |e, c, v| binary(e, c, v, ew::le)),
    built("gt", |e, c, v| binary(e, c, v, ew::gt)),
    built("ge", |e, c, v| binary(e, c, v, ew::ge)),
    built("logical_and", |e, c, v| binary(e, c, v, ew::logical_and)),
    built("logical_or", |e, c, v| binary(e, c, v, ew::logical_or)),
    built("logical_xor", |e, c, v| binary(e, c, v, ew::logical_xor)),
    built("logical_not", |e, c, v| {
        Ok(vec![ew::logical_not(e, Args::new(c, v).need("input")?)?])
    }),
    built("bitwise_not", |e, c, v| {
        Ok(vec![ew::bitwise_not(e, Args::new(c, v).need("input")?)?])
    }),
    built("where", |e, c, v| {
        let args = Args::new(c, v);
        let [mask, a, b] = ["condition", "a", "b"].map(|name| args.need(name));
        Ok(vec![ew::where_(e, mask?, a?, b?)?])
    }),
    built("masked_fill", |e, c, v| {
        let args = Args::new(c, v);
        let value = c.attributes.float("value", 0.0)?;
        let (x, mask) = (args.need("input")?, args.need("mask")?);
        Ok(vec![ew::masked_fill(e, x, mask, value)?])
    }),
    built("all/any", |e, c, v| {
        let mut both = reduction(e, c, v, reduce::all)?;
        both.extend(reduction(e, c, v, reduce::any)?);
        Ok(both)
    }),
    built("all", |e, c, v| reduction(e, c, v, reduce::all)),
    built("any", |e, c, v| reduction(e, c, v, reduce::any)),
    built("count_nonzero", |e, c, v| {
        reduction(e, c, v, reduce::count_nonzero)
    }),
    built("to", |e, c, v| {
        let to = match c.attributes.text("dtype", "")?.as_str() {
            "float64" => DType::F64,
            "int64" => DType::I64,
            "bool" => DType::Bool,
            other => return Err(unfit("dtype", "float64, int64 or bool", &other).into()),
        };
        Ok(vec![ew::cast(e, Args::new(c, v).need("input")?, to)?])
    }),
    built("one_hot", |e, c, v| {
        // PyTorch's -1 stands for as many as there are.
        let classes = usize::try_from(c.attributes.int("num_classes", -1)?).ok();
        Ok(vec![one_hot(e, Args::new(c, v).need("input")?, classes)?])
    }),
    built("tril", |e, c, v| {
        let diagonal = c.attributes.int("diagonal", 0)?;
        let x = Args::new(c, v).need("input")?;
        Ok(vec![triangle::tril(e, x, diagonal)?])
    }),
    built("triu", |e, c, v| {
        let diagonal = c.attributes.int("diagonal", 0)?;
        let x = Args::new(c, v).need("input")?;
        Ok(vec![triangle::triu(e, x, diagonal)?])
    }),
    built("diagonal", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let (rows, columns) = (
            args.index("dim1", 0, x.ndim())?,
            args.index("dim2", 1, x.ndim())?,
        );
        let offset = c.attributes.int("offset", 0)?;
        Ok(vec![triangle::diagonal(e, x, offset, rows, columns)?])
    }),
    built("diag_embed", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let (rows, columns) = (
            args.index("dim1", -2, x.ndim() + 1)?,
            args.index("dim2", -1, x.ndim() + 1)?,
        );
        let offset = c.attributes.int("offset", 0)?;
        Ok(vec![triangle::diag_embed(e, x, offset, rows, columns)?])
    }),
    built("cumsum", |e, c, v| scanned(e, c, v, scan::cumsum)),
    built("cumprod", |e, c, v| scanned(e, c, v, scan::cumprod)),
    built("logcumsumexp", |e, c, v| {
        scanned(e, c, v, scan::logcumsumexp)
    }),
    built("linear_recurrence", |e, c, v| {
        let args = Args::new(c, v);
        let (b, a, first) = (
            args.need("input")?,
            args.need("factors")?,
            args.get("first"),
        );
        let ndim = first.map_or(0, Value::ndim).max(a.ndim()).max(b.ndim());
        let backwards = c.attributes.bool("backwards", false)?;
        let dim = args.dim("dim", ndim)?;
        Ok(vec![scan::linear_recurrence(
            e, b, a, first, dim, backwards,
        )?])
    }),
    built("cummax", |e, c, v| extremes(e, c, v, scan::cummax)),
    built("cummin", |e, c, v| extremes(e, c, v, scan::cummin)),
];

type Reduce = fn(&dyn Exec, &Value, &[usize], bool) -> Result<Value, OpError>;

fn reduction(e: &dyn Exec, c: &Case, v: &[Value], f: Reduce) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    let keepdim = c.attributes.bool("keepdim", false)?;
    Ok(vec![f(e, x, &args.dims("dim", x.ndim())?, keepdim)?])
}

type Scan<T> = fn(&dyn Exec, &Value, usize) -> Result<T, OpError>;

fn scanned(e: &dyn Exec, c: &Case, v: &[Value], f: Scan<Value>) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    Ok(vec![f(e, x, args.dim("dim", x.ndim())?)?])
}

fn extremes(e: &dyn Exec, c: &Case, v: &[Value], f: Scan<(Value, Value)>) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    let (values, indices) = f(e, x, args.dim("dim", x.ndim())?)?;
    Ok(vec![values, indices])
}

//! Pointwise ops, reductions, products, losses, and small compositions of them.

use super::{Applied, Args, Entry, built, unfit};
use crate::case::Case;
use shard_kernels::unary::Unary;
use shard_ops::loss::{LossReduction, mse_loss};
use shard_ops::{Exec, Value, elementwise as ew, index, matmul as mm, reduce, shape};

pub(crate) const TABLE: &[Entry] = &[
    built("logsigmoid", |e, c, v| unary(e, c, v, Unary::LogSigmoid)),
    built("gelu", |e, c, v| {
        match c.attributes.text("approximate", "none")?.as_str() {
            "none" => unary(e, c, v, Unary::Gelu),
            "tanh" => unary(e, c, v, Unary::GeluTanh),
            other => Err(unfit("approximate", "none or tanh", &other).into()),
        }
    }),
    built("pow(log(sqrt(x)), 3)", |e, c, v| {
        let x = ew::unary(e, Args::new(c, v).need("input")?, Unary::Sqrt)?;
        let x = ew::unary(e, &x, Unary::Log)?;
        Ok(vec![ew::unary(e, &x, Unary::PowScalar { exponent: 3.0 })?])
    }),
    built("glu", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let dim = args.index("dim", -1, x.ndim())?;
        let half = x.shape()[dim] / 2;
        let gate = ew::unary(e, &index::slice(e, x, dim, half, 1, half)?, Unary::Sigmoid)?;
        Ok(vec![ew::mul(
            e,
            &index::slice(e, x, dim, 0, 1, half)?,
            &gate,
        )?])
    }),
    built("prelu", |e, c, v| {
        let args = Args::new(c, v);
        let (x, w) = (args.need("input")?, args.need("weight")?);
        // One slope per channel, dim 1.
        let mut shape = vec![1; x.ndim().max(1)];
        let channels = usize::from(shape.len() > 1);
        shape[channels] = w.shape().iter().product();
        let w = shape::reshape(e, w, &shape)?;
        let below = ew::unary(e, &ew::unary(e, x, Unary::Neg)?, Unary::Relu)?;
        Ok(vec![ew::sub(
            e,
            &ew::unary(e, x, Unary::Relu)?,
            &ew::mul(e, &w, &below)?,
        )?])
    }),
    built("add", |e, c, v| binary(e, c, v, ew::add)),
    built("sub", |e, c, v| binary(e, c, v, ew::sub)),
    built("mul", |e, c, v| binary(e, c, v, ew::mul)),
    built("div", |e, c, v| binary(e, c, v, ew::div)),
    built("pow", |e, c, v| binary(e, c, v, ew::pow)),
    built("maximum", |e, c, v| binary(e, c, v, ew::maximum)),
    built("minimum", |e, c, v| binary(e, c, v, ew::minimum)),
    built("(a*b-a)/b", |e, c, v| {
        let args = Args::new(c, v);
        let (a, b) = (args.need("a")?, args.need("b")?);
        Ok(vec![ew::div(e, &ew::sub(e, &ew::mul(e, a, b)?, a)?, b)?])
    }),
    built("matmul", |e, c, v| {
        let args = Args::new(c, v);
        Ok(vec![mm::matmul(e, args.need("a")?, args.need("b")?)?])
    }),
    built("linear", |e, c, v| {
        let args = Args::new(c, v);
        Ok(vec![mm::linear(
            e,
            args.need("input")?,
            args.need("weight")?,
            args.get("bias"),
        )?])
    }),
    built("dot", |e, c, v| {
        let args = Args::new(c, v);
        Ok(vec![mm::dot(e, args.need("a")?, args.need("b")?)?])
    }),
    built("baddbmm", |e, c, v| {
        let args = Args::new(c, v);
        let (beta, alpha) = (
            c.attributes.float("beta", 1.0)?,
            c.attributes.float("alpha", 1.0)?,
        );
        Ok(vec![mm::baddbmm(
            e,
            args.need("input")?,
            args.need("a")?,
            args.need("b")?,
            beta,
            alpha,
        )?])
    }),
    built("sum", |e, c, v| reduction(e, c, v, reduce::sum)),
    built("mean", |e, c, v| reduction(e, c, v, reduce::mean)),
    built("amax", |e, c, v| reduction(e, c, v, reduce::amax)),
    built("amin", |e, c, v| reduction(e, c, v, reduce::amin)),
    built("prod", |e, c, v| reduction(e, c, v, reduce::prod)),
    built("mse(linear(gelu(linear(x))), y)", |e, c, v| {
        let args = Args::new(c, v);
        let hidden = mm::matmul(e, args.need("input")?, args.need("w1")?)?;
        let out = mm::matmul(e, &ew::unary(e, &hidden, Unary::Gelu)?, args.need("w2")?)?;
        Ok(vec![mse_loss(
            e,
            &out,
            args.need("target")?,
            LossReduction::Mean,
        )?])
    }),
];

/// Applies the row of the table of maps that has the case's name; its parameters are attributes.
pub(crate) fn map_of_table(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let of_table = Unary::named(&c.op, |name, default| c.attributes.float(name, default))?;
    match of_table {
        Some(map) => unary(e, c, v, map),
        None => Err(unfit("op", "a map of one number", &c.op).into()),
    }
}

fn unary(e: &dyn Exec, c: &Case, v: &[Value], f: Unary) -> Applied {
    Ok(vec![ew::unary(e, Args::new(c, v).need("input")?, f)?])
}

type Binary = fn(&dyn Exec, &Value, &Value) -> Result<Value, shard_ops::OpError>;

fn binary(e: &dyn Exec, c: &Case, v: &[Value], f: Binary) -> Applied {
    let args = Args::new(c, v);
    Ok(vec![f(e, args.need("a")?, args.need("b")?)?])
}

type Reduce = fn(&dyn Exec, &Value, &[usize], bool) -> Result<Value, shard_ops::OpError>;

fn reduction(e: &dyn Exec, c: &Case, v: &[Value], f: Reduce) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    Ok(vec![f(
        e,
        x,
        &args.dims("dim", x.ndim())?,
        c.attributes.bool("keepdim", false)?,
    )?])
}

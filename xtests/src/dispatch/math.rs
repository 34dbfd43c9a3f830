//! Pointwise ops, reductions, products, losses, and small compositions of them.

use super::{Applied, Args, Entry, built, unfit};
use crate::case::Case;
use shard_kernels::unary::Unary;
use shard_ops::loss::{LossReduction, mse_loss};
use shard_ops::{Exec, Value, einsum, elementwise as ew, fused, matmul as mm, pairwise, reduce};

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
        Ok(vec![ew::glu(e, x, args.index("dim", -1, x.ndim())?)?])
    }),
    built("prelu", |e, c, v| {
        let args = Args::new(c, v);
        Ok(vec![ew::prelu(
            e,
            args.need("input")?,
            args.need("weight")?,
        )?])
    }),
    built("add", |e, c, v| binary(e, c, v, ew::add)),
    built("sub", |e, c, v| binary(e, c, v, ew::sub)),
    built("mul", |e, c, v| binary(e, c, v, ew::mul)),
    built("div", |e, c, v| binary(e, c, v, ew::div)),
    built("pow", |e, c, v| binary(e, c, v, ew::pow)),
    built("fmod", |e, c, v| binary(e, c, v, ew::fmod)),
    built("atan2", |e, c, v| binary(e, c, v, ew::atan2)),
    built("hypot", |e, c, v| binary(e, c, v, ew::hypot)),
    built("xlogy", |e, c, v| binary(e, c, v, ew::xlogy)),
    built("logaddexp", |e, c, v| binary(e, c, v, ew::logaddexp)),
    built("logaddexp2", |e, c, v| binary(e, c, v, ew::logaddexp2)),
    built("copysign", |e, c, v| binary(e, c, v, ew::copysign)),
    built("zeta", |e, c, v| {
        // Exponents are above 1, and gradients of numbers near 0 more than 16 bits hold.
        binary(e, c, v, |e, a, b| {
            let (above, away) = (ew::add_scalar(e, a, 1.5)?, ew::add_scalar(e, b, 0.5)?);
            ew::zeta(e, &above, &away)
        })
    }),
    built("igamma", |e, c, v| binary(e, c, v, ew::igamma)),
    built("igammac", |e, c, v| binary(e, c, v, ew::igammac)),
    built("nextafter", |e, c, v| binary(e, c, v, ew::nextafter)),
    built("fmax", |e, c, v| binary(e, c, v, ew::fmax)),
    built("fmin", |e, c, v| binary(e, c, v, ew::fmin)),
    built("heaviside", |e, c, v| binary(e, c, v, ew::heaviside)),
    built("kron", |e, c, v| binary(e, c, v, einsum::kron)),
    built("remainder", |e, c, v| binary(e, c, v, ew::remainder)),
    built("floor_divide", |e, c, v| binary(e, c, v, ew::floor_div)),
    built("lerp", |e, c, v| {
        ternary(e, c, v, ["input", "end", "weight"], &ew::lerp)
    }),
    built("lstm_gates", |e, c, v| {
        let args = Args::new(c, v);
        let gates = [args.need("of_input")?, args.need("of_state")?];
        Ok(fused::lstm(e, gates, args.need("memory")?)?.into())
    }),
    built("gru_gates", |e, c, v| {
        ternary(
            e,
            c,
            v,
            ["of_input", "of_state", "state"],
            &|e, a, b, state| fused::gru(e, [a, b], state),
        )
    }),
    built("rotary", |e, c, v| {
        ternary(e, c, v, ["input", "cos", "sin"], &|e, x, cos, sin| {
            fused::rotary(e, x, [cos, sin])
        })
    }),
    built("add_scaled", |e, c, v| {
        let (args, alpha) = (Args::new(c, v), c.attributes.float("alpha", 1.0)?);
        let (x, y) = (args.need("input")?, args.need("other")?);
        Ok(vec![ew::add_scaled(e, x, y, alpha)?])
    }),
    built("addcmul", |e, c, v| {
        let value = c.attributes.float("value", 1.0)?;
        ternary(e, c, v, ["input", "a", "b"], &|e, x, a, b| {
            ew::addcmul(e, x, a, b, value)
        })
    }),
    built("addcdiv", |e, c, v| {
        let value = c.attributes.float("value", 1.0)?;
        ternary(e, c, v, ["input", "a", "b"], &|e, x, a, b| {
            ew::addcdiv(e, x, a, b, value)
        })
    }),
    built("isnan", |e, c, v| predicate(e, c, v, ew::isnan)),
    built("isinf", |e, c, v| predicate(e, c, v, ew::isinf)),
    built("isfinite", |e, c, v| predicate(e, c, v, ew::isfinite)),
    built("signbit", |e, c, v| predicate(e, c, v, ew::signbit)),
    built("nan_to_num", |e, c, v| {
        predicate(e, c, v, |e, x| ew::nan_to_num(e, x, 0.0, None, None))
    }),
    built("isclose", |e, c, v| {
        let rtol = c.attributes.float("rtol", 1e-5)?;
        let args = Args::new(c, v);
        let (a, b) = (args.need("a")?, args.need("b")?);
        Ok(vec![ew::isclose(e, a, b, rtol, 1e-8, false)?])
    }),
    built("clamp_by", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        Ok(vec![ew::clamp_by(e, x, args.get("min"), args.get("max"))?])
    }),
    built("diff", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let n = usize::try_from(c.attributes.int("n", 1)?).unwrap_or(0);
        Ok(vec![ew::diff(e, x, n, args.index("dim", -1, x.ndim())?)?])
    }),
    built("round", |e, c, v| {
        let decimals = c.attributes.float("decimals", 0.0)?;
        let map = match decimals {
            0.0 => Unary::Round,
            _ => Unary::RoundDecimals { decimals },
        };
        unary(e, c, v, map)
    }),
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
    built("einsum", |e, c, v| {
        let equation = c.attributes.text("equation", "")?;
        let operands: Vec<&Value> = v.iter().collect();
        Ok(vec![einsum::einsum(e, &equation, &operands)?])
    }),
    built("cdist", |e, c, v| {
        let args = Args::new(c, v);
        let order = super::stats::order(c, "p")?;
        Ok(vec![pairwise::cdist(
            e,
            args.need("x1")?,
            args.need("x2")?,
            order,
        )?])
    }),
    built("cross", |e, c, v| {
        let args = Args::new(c, v);
        let (a, b) = (args.need("input")?, args.need("other")?);
        let dim = args.index("dim", -1, a.ndim().max(b.ndim()))?;
        Ok(vec![ew::cross(e, a, b, dim)?])
    }),
    built("bilinear", |e, c, v| {
        let args = Args::new(c, v);
        let (a, b, w) = (args.need("a")?, args.need("b")?, args.need("weight")?);
        Ok(vec![mm::bilinear(e, a, b, w, args.get("bias"))?])
    }),
    built("outer", |e, c, v| binary(e, c, v, einsum::outer)),
    built("inner", |e, c, v| binary(e, c, v, einsum::inner)),
    built("tensordot", |e, c, v| {
        let args = Args::new(c, v);
        let (a, b) = (args.need("a")?, args.need("b")?);
        Ok(vec![einsum::tensordot(
            e,
            a,
            b,
            &args.dims("dims_a", a.ndim())?,
            &args.dims("dims_b", b.ndim())?,
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
    built("nansum", |e, c, v| reduction(e, c, v, reduce::nansum)),
    built("nanmean", |e, c, v| reduction(e, c, v, reduce::nanmean)),
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

pub(super) type Binary = fn(&dyn Exec, &Value, &Value) -> Result<Value, shard_ops::OpError>;

pub(super) fn binary(e: &dyn Exec, c: &Case, v: &[Value], f: Binary) -> Applied {
    let args = Args::new(c, v);
    Ok(vec![f(e, args.need("a")?, args.need("b")?)?])
}

type Ternary<'a> =
    &'a dyn Fn(&dyn Exec, &Value, &Value, &Value) -> Result<Value, shard_ops::OpError>;

fn ternary(e: &dyn Exec, c: &Case, v: &[Value], names: [&str; 3], f: Ternary<'_>) -> Applied {
    let args = Args::new(c, v);
    let [x, y, z] = names.map(|name| args.need(name));
    Ok(vec![f(e, x?, y?, z?)?])
}

fn predicate(
    e: &dyn Exec,
    c: &Case,
    v: &[Value],
    f: fn(&dyn Exec, &Value) -> Result<Value, shard_ops::OpError>,
) -> Applied {
    Ok(vec![f(e, Args::new(c, v).need("input")?)?])
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

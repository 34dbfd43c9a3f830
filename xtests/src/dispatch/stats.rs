//! Softmax, losses and statistics.

use super::{Applied, ApplyError, Args, Entry, built, unfit};
use crate::case::{Attributes, Case, CaseError};
use shard_ops::integral::{self, Spacing};
use shard_ops::loss::{self, Classes, Labels, LossReduction};
use shard_ops::statistics::{self, Interpolation, NormOrder};
use shard_ops::{Exec, OpError, Value, pairwise, reduce, shape, softmax as soft};

pub(crate) const TABLE: &[Entry] = &[
    built("softmax", |e, c, v| over_one(e, c, v, soft::softmax)),
    built("log_softmax", |e, c, v| {
        over_one(e, c, v, soft::log_softmax)
    }),
    built("softmin", |e, c, v| over_one(e, c, v, soft::softmin)),
    built("logsumexp", |e, c, v| {
        let (x, dims, keepdim) = over(c, v)?;
        Ok(vec![statistics::logsumexp(e, x, &dims, keepdim)?])
    }),
    built("cross_entropy", |e, c, v| {
        classes(e, c, v, loss::cross_entropy)
    }),
    built("nll_loss", |e, c, v| classes(e, c, v, loss::nll_loss)),
    built("binary_cross_entropy", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        let made = loss::binary_cross_entropy(e, x, t, args.get("weight"), reduction(c)?)?;
        Ok(vec![made])
    }),
    built("binary_cross_entropy_with_logits", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        let (weight, positive) = (args.get("weight"), args.get("pos_weight"));
        let how = reduction(c)?;
        let made = loss::binary_cross_entropy_with_logits(e, x, t, weight, positive, how)?;
        Ok(vec![made])
    }),
    built("kl_div", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        let log_target = c.attributes.bool("log_target", false)?;
        Ok(vec![loss::kl_div(e, x, t, log_target, reduction(c)?)?])
    }),
    built("gaussian_nll_loss", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t, var) = (args.need("input")?, args.need("target")?, args.need("var")?);
        let (full, eps) = (
            c.attributes.bool("full", false)?,
            c.attributes.float("eps", 1e-6)?,
        );
        Ok(vec![loss::gaussian_nll_loss(
            e,
            x,
            t,
            var,
            full,
            eps,
            reduction(c)?,
        )?])
    }),
    built("poisson_nll_loss", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        let log = c.attributes.bool("log_input", true)?;
        let (full, eps) = (
            c.attributes.bool("full", false)?,
            c.attributes.float("eps", 1e-8)?,
        );
        Ok(vec![loss::poisson_nll_loss(
            e,
            x,
            t,
            log,
            full,
            eps,
            reduction(c)?,
        )?])
    }),
    built("mse_loss", |e, c, v| distance(e, c, v, loss::mse_loss)),
    built("l1_loss", |e, c, v| distance(e, c, v, loss::l1_loss)),
    built("smooth_l1_loss", |e, c, v| {
        let beta = c.attributes.float("beta", 1.0)?;
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        Ok(vec![loss::smooth_l1_loss(e, x, t, beta, reduction(c)?)?])
    }),
    built("huber_loss", |e, c, v| {
        let delta = c.attributes.float("delta", 1.0)?;
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        Ok(vec![loss::huber_loss(e, x, t, delta, reduction(c)?)?])
    }),
    built("margin_ranking_loss", |e, c, v| {
        let args = Args::new(c, v);
        let (a, b, t) = (args.need("a")?, args.need("b")?, args.need("target")?);
        let margin = c.attributes.float("margin", 0.0)?;
        let made = loss::margin_ranking_loss(e, a, b, t, margin, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("hinge_embedding_loss", |e, c, v| {
        let margin = c.attributes.float("margin", 1.0)?;
        let args = Args::new(c, v);
        let (x, t) = (args.need("input")?, args.need("target")?);
        let made = loss::hinge_embedding_loss(e, x, t, margin, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("cosine_embedding_loss", |e, c, v| {
        let args = Args::new(c, v);
        let (a, b, t) = (args.need("a")?, args.need("b")?, args.need("target")?);
        let margin = c.attributes.float("margin", 0.0)?;
        let made = loss::cosine_embedding_loss(e, a, b, t, margin, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("triplet_margin_loss", |e, c, v| {
        let args = Args::new(c, v);
        let anchor = args.need("anchor")?;
        let others = [args.need("positive")?, args.need("negative")?];
        let margin = c.attributes.float("margin", 1.0)?;
        let swap = c.attributes.bool("swap", false)?;
        let made = loss::triplet_margin_loss(e, anchor, others, margin, swap, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("ctc_loss", |e, c, v| {
        let args = Args::new(c, v);
        let labels = Labels {
            targets: args.need("targets")?,
            steps: args.need("input_lengths")?,
            lengths: args.need("target_lengths")?,
            blank: c.attributes.size("blank", 0)?,
            zero_infinity: c.attributes.bool("zero_infinity", false)?,
        };
        let made = loss::ctc_loss(e, args.need("log_probs")?, labels, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("soft_margin_loss", |e, c, v| {
        distance(e, c, v, loss::soft_margin_loss)
    }),
    built("multi_margin_loss", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t, weight) = (
            args.need("input")?,
            args.need("target")?,
            args.get("weight"),
        );
        let power = c.attributes.size("p", 1)? as u32;
        let margin = c.attributes.float("margin", 1.0)?;
        let made = loss::multi_margin_loss(e, x, t, power, margin, weight, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("multilabel_soft_margin_loss", |e, c, v| {
        let args = Args::new(c, v);
        let (x, t, weight) = (
            args.need("input")?,
            args.need("target")?,
            args.get("weight"),
        );
        let made = loss::multilabel_soft_margin_loss(e, x, t, weight, reduction(c)?)?;
        Ok(vec![made])
    }),
    built("pairwise_distance", |e, c, v| {
        let args = Args::new(c, v);
        let (x, y) = (args.need("x1")?, args.need("x2")?);
        let (eps, keepdim) = (
            c.attributes.float("eps", 1e-6)?,
            c.attributes.bool("keepdim", false)?,
        );
        Ok(vec![pairwise::pairwise_distance(
            e,
            x,
            y,
            order(c, "p")?,
            eps,
            keepdim,
        )?])
    }),
    built("pdist", |e, c, v| {
        let x = Args::new(c, v).need("input")?;
        Ok(vec![pairwise::pdist(e, x, order(c, "p")?)?])
    }),
    built("cov", |e, c, v| {
        let args = Args::new(c, v);
        let weights = [args.get("fweights"), args.get("aweights")];
        let correction = c.attributes.float("correction", 1.0)?;
        Ok(vec![statistics::cov(
            e,
            args.need("input")?,
            correction,
            weights,
        )?])
    }),
    built("corrcoef", |e, c, v| {
        Ok(vec![statistics::corrcoef(
            e,
            Args::new(c, v).need("input")?,
        )?])
    }),
    built("renorm", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let (dim, most) = (
            args.dim("dim", x.ndim())?,
            c.attributes.float("maxnorm", 1.0)?,
        );
        Ok(vec![statistics::renorm(e, x, order(c, "p")?, dim, most)?])
    }),
    built("nanquantile", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let q = c.attributes.floats("q")?.unwrap_or_default();
        let dim = args.dim("dim", x.ndim())?;
        Ok(vec![statistics::nanquantile(
            e,
            x,
            &q,
            dim,
            interpolation(c)?,
        )?])
    }),
    built("trapezoid", |e, c, v| {
        over_places(e, c, v, integral::trapezoid)
    }),
    built("cumulative_trapezoid", |e, c, v| {
        over_places(e, c, v, integral::cumulative_trapezoid)
    }),
    built("aminmax", |e, c, v| {
        let (x, dims, keepdim) = over(c, v)?;
        let (least, most) = reduce::aminmax(e, x, &dims, keepdim)?;
        Ok(vec![least, most])
    }),
    built("cosine_similarity", |e, c, v| {
        let args = Args::new(c, v);
        let get = |a: &str, b: &str| args.get(a).map_or_else(|| args.need(b), Ok);
        let (a, b) = (get("a", "x1")?, get("b", "x2")?);
        let dim = args.index("dim", 1, a.ndim().max(b.ndim()))?;
        let eps = c.attributes.float("eps", 1e-8)?;
        Ok(vec![statistics::cosine_similarity(e, a, b, dim, eps)?])
    }),
    built("argmax", |e, c, v| {
        let (x, dims, keepdim) = over(c, v)?;
        Ok(vec![statistics::argmax(e, x, &dims, keepdim)?])
    }),
    built("argmin", |e, c, v| {
        let (x, dims, keepdim) = over(c, v)?;
        Ok(vec![statistics::argmin(e, x, &dims, keepdim)?])
    }),
    built("max", |e, c, v| {
        extreme(e, c, v, statistics::max, reduce::amax)
    }),
    built("min", |e, c, v| {
        extreme(e, c, v, statistics::min, reduce::amin)
    }),
    built("var", |e, c, v| {
        moments(e, c, v, statistics::var, statistics::var_mean)
    }),
    built("std", |e, c, v| {
        moments(e, c, v, statistics::std, statistics::std_mean)
    }),
    built("var_mean", |e, c, v| {
        moments(e, c, v, statistics::var, statistics::var_mean)
    }),
    built("std_mean", |e, c, v| {
        moments(e, c, v, statistics::std, statistics::std_mean)
    }),
    built("norm", norm),
    built("vector_norm", norm),
    built("norm0", norm),
    built("norm1", norm),
    built("norm2", norm),
    built("norm3", norm),
    built("normalize", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        let dims = match c.attributes.ints("dim")? {
            Some(_) => args.dims("dim", x.ndim())?,
            None => vec![1],
        };
        let eps = c.attributes.float("eps", 1e-12)?;
        Ok(vec![statistics::normalize(
            e,
            x,
            order(c, "p")?,
            &dims,
            eps,
        )?])
    }),
    built("quantile", |e, c, v| {
        let args = Args::new(c, v);
        let input = args.need("input")?;
        let q = c.attributes.floats("q")?.unwrap_or_default();
        let keepdim = c.attributes.bool("keepdim", false)?;
        let (x, dim) = match c.attributes.has("dim") {
            true => (input.clone(), args.dim("dim", input.ndim())?),
            false => (
                shape::reshape(e, input, &[input.shape().iter().product()])?,
                0,
            ),
        };
        let found = statistics::quantile(e, &x, &q, dim, interpolation(c)?)?;
        // PyTorch has the quantiles in front, and no dim for a single one.
        let mut order: Vec<usize> = (0..x.ndim()).filter(|&d| d != dim).collect();
        order.insert(0, dim);
        let mut shape: Vec<usize> = match c.attributes.float("q", 0.5) {
            Ok(_) => vec![],
            Err(_) => vec![q.len()],
        };
        match (c.attributes.has("dim"), keepdim) {
            (false, true) => shape.extend(input.shape().iter().map(|_| 1)),
            (false, false) => {}
            (true, true) => {
                shape.extend((0..x.ndim()).map(|d| if d == dim { 1 } else { x.shape()[d] }));
            }
            (true, false) => shape.extend(order[1..].iter().map(|&d| x.shape()[d])),
        }
        let found = shape::permute(e, &found, &order)?;
        Ok(vec![shape::reshape(e, &found, &shape)?])
    }),
];

/// What is reduced over which dims, and whether they stay: all dims where none are named, as in PyTorch.
fn over<'a>(c: &'a Case, v: &'a [Value]) -> Result<(&'a Value, Vec<usize>, bool), ApplyError> {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    let mut dims = args.dims("dim", x.ndim())?;
    if dims.is_empty() {
        dims = (0..x.ndim()).collect();
    }
    Ok((x, dims, c.attributes.bool("keepdim", false)?))
}

type OverDims = fn(&dyn Exec, &Value, &[usize]) -> Result<Value, OpError>;

fn over_one(e: &dyn Exec, c: &Case, v: &[Value], f: OverDims) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    // A number is its own cell.
    let dims = match x.ndim() {
        0 => vec![],
        n => vec![args.index("dim", -1, n)?],
    };
    Ok(vec![f(e, x, &dims)?])
}

fn interpolation(c: &Case) -> Result<Interpolation, CaseError> {
    Ok(
        match c.attributes.text("interpolation", "linear")?.as_str() {
            "linear" => Interpolation::Linear,
            "lower" => Interpolation::Lower,
            "higher" => Interpolation::Higher,
            "nearest" => Interpolation::Nearest,
            "midpoint" => Interpolation::Midpoint,
            other => return Err(unfit("interpolation", "an interpolation", &other)),
        },
    )
}

type Integral = fn(&dyn Exec, &Value, Spacing<'_>, usize) -> Result<Value, OpError>;

/// An integral over places, or over ones that are as far apart as an attribute says.
fn over_places(e: &dyn Exec, c: &Case, v: &[Value], f: Integral) -> Applied {
    let args = Args::new(c, v);
    let y = args.need("y")?;
    let spacing = match args.get("x") {
        Some(places) => Spacing::At(places),
        None => Spacing::Even(c.attributes.float("dx", 1.0)?),
    };
    Ok(vec![f(e, y, spacing, args.index("dim", -1, y.ndim())?)?])
}

fn reduction(c: &Case) -> Result<LossReduction, CaseError> {
    Ok(match c.attributes.text("reduction", "mean")?.as_str() {
        "mean" => LossReduction::Mean,
        "sum" => LossReduction::Sum,
        "none" => LossReduction::None,
        "batchmean" => LossReduction::BatchMean,
        other => return Err(unfit("reduction", "mean, sum, batchmean or none", &other)),
    })
}

type Distance = fn(&dyn Exec, &Value, &Value, LossReduction) -> Result<Value, OpError>;

fn distance(e: &dyn Exec, c: &Case, v: &[Value], f: Distance) -> Applied {
    let args = Args::new(c, v);
    Ok(vec![f(
        e,
        args.need("input")?,
        args.need("target")?,
        reduction(c)?,
    )?])
}

type OfClasses =
    fn(&dyn Exec, &Value, &Value, Classes<'_>, LossReduction) -> Result<Value, OpError>;

fn classes(e: &dyn Exec, c: &Case, v: &[Value], f: OfClasses) -> Applied {
    let args = Args::new(c, v);
    let ignore = match c.attributes.has("ignore_index") {
        true => Some(c.attributes.int("ignore_index", -100)?),
        false => None,
    };
    let how = Classes {
        weight: args.get("weight"),
        ignore,
        smoothing: c.attributes.float("label_smoothing", 0.0)?,
    };
    Ok(vec![f(
        e,
        args.need("input")?,
        args.need("target")?,
        how,
        reduction(c)?,
    )?])
}

type Extreme = fn(&dyn Exec, &Value, usize, bool) -> Result<(Value, Value), OpError>;
type Reduce = fn(&dyn Exec, &Value, &[usize], bool) -> Result<Value, OpError>;

/// With a dim the element and its index; without one, the element.
fn extreme(e: &dyn Exec, c: &Case, v: &[Value], f: Extreme, all: Reduce) -> Applied {
    let (x, dims, keepdim) = over(c, v)?;
    match (c.attributes.has("dim"), &dims[..]) {
        (true, &[dim]) => {
            let (value, index) = f(e, x, dim, keepdim)?;
            Ok(vec![value, index])
        }
        _ => Ok(vec![all(e, x, &dims, keepdim)?]),
    }
}

type Moment = fn(&dyn Exec, &Value, &[usize], f64, bool) -> Result<Value, OpError>;
type Moments = fn(&dyn Exec, &Value, &[usize], f64, bool) -> Result<(Value, Value), OpError>;

fn moments(e: &dyn Exec, c: &Case, v: &[Value], one: Moment, two: Moments) -> Applied {
    let (x, dims, keepdim) = over(c, v)?;
    let unbiased = c.attributes.bool("unbiased", true)?;
    let correction = (c.attributes).float("correction", if unbiased { 1.0 } else { 0.0 })?;
    if c.outputs.len() < 2 && !c.op.ends_with("_mean") {
        return Ok(vec![one(e, x, &dims, correction, keepdim)?]);
    }
    let (first, mean) = two(e, x, &dims, correction, keepdim)?;
    Ok(vec![first, mean])
}

/// A number, or infinity by name; 2 if it is left out.
pub(super) fn order(c: &Case, name: &str) -> Result<NormOrder, CaseError> {
    let attributes: &Attributes = &c.attributes;
    match attributes.text(name, "") {
        Ok(text) => match text.as_str() {
            "" => Ok(NormOrder::P(2.0)),
            "inf" | "Infinity" => Ok(NormOrder::Infinity),
            "-inf" | "-Infinity" => Ok(NormOrder::NegInfinity),
            other => other
                .parse()
                .map(|p: f64| p.into())
                .map_err(|_| unfit(name, "the order of a norm", &other)),
        },
        Err(_) => Ok(attributes.float(name, 2.0)?.into()),
    }
}

fn norm(e: &dyn Exec, c: &Case, v: &[Value]) -> Applied {
    let (x, dims, keepdim) = over(c, v)?;
    let name = if c.attributes.has("p") { "p" } else { "ord" };
    Ok(vec![statistics::norm(
        e,
        x,
        order(c, name)?,
        &dims,
        keepdim,
    )?])
}

//! Fourier transforms. Complex numbers are in a last dim of 2, which dims are not counted with.

use super::{Applied, ApplyError, Args, Entry, built, unfit};
use crate::case::Case;
use shard_ops::fft::{self, FourierNorm, Frames};
use shard_ops::{Exec, OpError, Value};
use shard_spec::EdgeMap;

pub(crate) const TABLE: &[Entry] = &[
    built("fft", |e, c, v| one(e, c, v, 1, fft::fft)),
    built("ifft", |e, c, v| one(e, c, v, 1, fft::ifft)),
    built("rfft", |e, c, v| one(e, c, v, 0, fft::rfft)),
    built("irfft", |e, c, v| one(e, c, v, 1, fft::irfft)),
    built("fftn", |e, c, v| many(e, c, v, 1, fft::fftn)),
    built("ifftn", |e, c, v| many(e, c, v, 1, fft::ifftn)),
    built("rfftn", |e, c, v| many(e, c, v, 0, fft::rfftn)),
    built("irfftn", |e, c, v| many(e, c, v, 1, fft::irfftn)),
    built("fft2", |e, c, v| many(e, c, v, 1, fft::fftn)),
    built("ifft2", |e, c, v| many(e, c, v, 1, fft::ifftn)),
    built("rfft2", |e, c, v| many(e, c, v, 0, fft::rfftn)),
    built("irfft2", |e, c, v| many(e, c, v, 1, fft::irfftn)),
    built("fftshift", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        Ok(vec![fft::fftshift(e, x, &args.dims("dim", x.ndim())?)?])
    }),
    built("ifftshift", |e, c, v| {
        let args = Args::new(c, v);
        let x = args.need("input")?;
        Ok(vec![fft::ifftshift(e, x, &args.dims("dim", x.ndim())?)?])
    }),
    built("stft", |e, c, v| {
        let args = Args::new(c, v);
        Ok(vec![fft::stft(e, args.need("input")?, frames(c, &args)?)?])
    }),
    built("istft", |e, c, v| {
        let args = Args::new(c, v);
        let length = match c.attributes.has("length") {
            true => Some(c.attributes.size("length", 0)?),
            false => None,
        };
        Ok(vec![fft::istft(
            e,
            args.need("input")?,
            frames(c, &args)?,
            length,
        )?])
    }),
    built("complex_mul", |e, c, v| {
        let args = Args::new(c, v);
        Ok(vec![fft::complex_mul(e, args.need("a")?, args.need("b")?)?])
    }),
    built("complex_einsum", |e, c, v| {
        let equation = c.attributes.text("equation", "")?;
        let operands: Vec<&Value> = v.iter().collect();
        Ok(vec![fft::complex_einsum(e, &equation, &operands)?])
    }),
];

fn frames<'a>(c: &Case, args: &Args<'a>) -> Result<Frames<'a>, ApplyError> {
    let size = c.attributes.size("n_fft", 1)?;
    Ok(Frames {
        size,
        hop: c.attributes.size("hop_length", (size / 4).max(1))?,
        window: args.get("window"),
        center: c.attributes.bool("center", true)?,
        edge: EdgeMap::Reflect,
        norm: norm(c)?,
        onesided: c.attributes.bool("onesided", true)?,
    })
}

type One = fn(&dyn Exec, &Value, Option<usize>, usize, FourierNorm) -> Result<Value, OpError>;

fn one(e: &dyn Exec, c: &Case, v: &[Value], complex: usize, f: One) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    let dim = args.index("dim", -1, x.ndim() - complex)?;
    let n = usize::try_from(c.attributes.int("n", 0)?).ok();
    Ok(vec![f(e, x, n.filter(|&n| n > 0), dim, norm(c)?)?])
}

type Many =
    fn(&dyn Exec, &Value, Option<&[usize]>, &[usize], FourierNorm) -> Result<Value, OpError>;

fn many(e: &dyn Exec, c: &Case, v: &[Value], complex: usize, f: Many) -> Applied {
    let args = Args::new(c, v);
    let x = args.need("input")?;
    let counted = x.ndim() - complex;
    let lengths: Option<Vec<usize>> = (c.attributes.ints("s")?)
        .map(|s| s.into_iter().map(|n| n.unsigned_abs() as usize).collect());
    let named = c.attributes.ints("dim")?.is_some();
    let mut dims = args.dims("dim", counted)?;
    if !named {
        // The last ones: two if the name says so, as many as there are lengths, or all.
        let count = match (c.op.ends_with('2'), &lengths) {
            (true, _) => 2,
            (false, Some(lengths)) => lengths.len(),
            (false, None) => counted,
        };
        dims.drain(..counted - count.min(counted));
    }
    Ok(vec![f(e, x, lengths.as_deref(), &dims, norm(c)?)?])
}

pub(crate) fn norm(c: &Case) -> Result<FourierNorm, ApplyError> {
    match c.attributes.text("norm", "backward")?.as_str() {
        "backward" => Ok(FourierNorm::Backward),
        "ortho" => Ok(FourierNorm::Ortho),
        "forward" => Ok(FourierNorm::Forward),
        other => Err(unfit("norm", "backward, ortho or forward", &other).into()),
    }
}

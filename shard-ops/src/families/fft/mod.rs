//! Fourier transforms over sharded dims. Complex numbers are two numbers side by side: the last dim, of extent 2.
//!
//! A transform needs its dim as a whole, and nothing of other lines. Where the dim is sharded, its mesh axes divide another dim
//! instead (the exchange of pencils), which is one exchange, and the result stays so. A transform of two dims over a mesh of two
//! axes is two exchanges. Of an operand with no other dim every rank has all.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod frames;
mod product;

pub use self::frames::{Frames, istft, stft};
pub use self::product::{complex_einsum, complex_mul};
use super::index::roll_dims;
use super::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, Precision,
    Result, Rule, Saved, Value, key_of,
};
use shard_kernels::fft::{Fft, Pass, transform_all};
use smallvec::{SmallVec, smallvec};
use std::iter;
use std::sync::Arc;

/// By what the two transforms are scaled so that one undoes the other. `n` is how many elements are transformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FourierNorm {
    /// The inverse by `1/n`.
    #[default]
    Backward,
    /// Both by `1/√n`.
    Ortho,
    /// The forward one by `1/n`.
    Forward,
}

impl FourierNorm {
    /// The factor of a transform of `n` elements.
    fn scale(self, inverse: bool, n: usize) -> f64 {
        match (self, inverse) {
            (Self::Backward, true) | (Self::Forward, false) => 1.0 / n as f64,
            (Self::Ortho, _) => 1.0 / (n as f64).sqrt(),
            _ => 1.0,
        }
    }
}

macro_rules! transforms {
    ($($(#[$doc:meta])* $name:ident, $(#[$many_doc:meta])* $many:ident => $kind:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// `n` is the length of the transform: the operand is cut or padded with zeros to it.
        ///
        /// # Collective
        /// All members of the mesh. If the dim is sharded, one exchange in which its mesh axes come to divide another dim: each
        /// rank receives what it has, less what it had already. Partial sums stay partial.
        ///
        /// # Errors
        /// A dim out of range; a transform of no elements; complex numbers that are not in a last dim of 2; a type that is not f32
        /// or f64.
        pub fn $name(exec: &dyn Exec, x: &Value, n: Option<usize>, dim: usize, norm: FourierNorm) -> Result<Value> {
            along(exec, stringify!($name), $kind, x, n, dim, norm)
        }

        $(#[$many_doc])*
        ///
        /// `lengths` are those of the transforms, one per dim, as for one dim.
        ///
        /// # Collective
        /// All members of the mesh. One exchange for each dim that is sharded when its turn comes; dims that follow each other and are
        /// not are one op.
        ///
        /// # Errors
        /// As for one dim; no dims or a dim named twice, and another number of lengths than of dims.
        pub fn $many(
            exec: &dyn Exec,
            x: &Value,
            lengths: Option<&[usize]>,
            dims: &[usize],
            norm: FourierNorm,
        ) -> Result<Value> {
            over(exec, stringify!($many), $kind, x, lengths, dims, norm)
        }
    )*};
}

transforms! {
    /// The Fourier transform `y[k] = Σ x[j] e^(-2πi jk/n)` of complex numbers along a dim.
    fft,
    /// [`fft`] along several dims.
    fftn => Fft::Complex { inverse: false };
    /// The inverse transform of complex numbers along a dim: `y[j] = 1/n Σ x[k] e^(2πi jk/n)`.
    ifft,
    /// [`ifft`] along several dims.
    ifftn => Fft::Complex { inverse: true };
    /// The first `n/2 + 1` results of the transform of real numbers along a dim: the others are their mirror image.
    rfft,
    /// [`rfft`] along the last of several dims, and [`fft`] along the others.
    rfftn => Fft::FromReal { doubled: false };
    /// The real numbers whose transform's first half is given; `n` is how many, by default the even number
    /// `2 (extent - 1)`. Imaginary parts that such a transform does not have are not looked at.
    irfft,
    /// [`ifft`] along all but the last of several dims, and [`irfft`] along the last.
    irfftn => Fft::ToReal { doubled: true };
}

/// Moves frequency 0 to the middle of dims.
///
/// # Collective
/// All members of the mesh; communicates if a dim is sharded.
///
/// # Errors
/// A dim out of range.
pub fn fftshift(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    shift(exec, x, dims, |n| n / 2)
}

/// Undoes [`fftshift`].
///
/// # Collective
/// As [`fftshift`].
///
/// # Errors
/// As [`fftshift`].
pub fn ifftshift(exec: &dyn Exec, x: &Value, dims: &[usize]) -> Result<Value> {
    shift(exec, x, dims, |n| n.div_ceil(2))
}

fn shift(exec: &dyn Exec, x: &Value, dims: &[usize], by: fn(usize) -> usize) -> Result<Value> {
    let mut shifts = Vec::with_capacity(dims.len());
    for &dim in dims {
        let n = super::shape::extent("fftshift", x, dim)?;
        shifts.push((dim, by(n) as isize));
    }
    roll_dims(exec, x, &shifts)
}

/// The frequency of result `k` of a transform of `n` elements that are `d` apart: positive ones first, then negative ones.
pub fn frequency(k: usize, n: usize, d: f64) -> f64 {
    let signed = if k < n.div_ceil(2) {
        k as f64
    } else {
        k as f64 - n as f64
    };
    signed / (n as f64 * d)
}

/// The transform of what has a shape, along one of its dims.
fn pass(
    name: &'static str,
    kind: Fft,
    shape: &[usize],
    n: Option<usize>,
    dim: usize,
    norm: FourierNorm,
) -> Result<Pass> {
    let dims = shape.len().checked_sub(usize::from(kind.reads_complex()));
    let complex = !kind.reads_complex() || shape.last() == Some(&2);
    if dims.is_none_or(|dims| dim >= dims) || !complex {
        return Err(OpError::Shape {
            op: name,
            problem: format!("there is no dim {dim} of such numbers"),
            shapes: vec![shape.to_vec()],
            fix: "count dims from 0, and put real and imaginary parts of complex numbers in a last dim of 2",
        });
    }
    let given = shape[dim];
    let n = n.unwrap_or(match kind {
        Fft::ToReal { .. } => 2 * given.saturating_sub(1),
        _ => given,
    });
    if n == 0 {
        return Err(OpError::Shape {
            op: name,
            problem: "a transform of no elements".into(),
            shapes: vec![shape.to_vec()],
            fix: "give a length of 1 or more",
        });
    }
    let inverse = matches!(kind, Fft::Complex { inverse: true } | Fft::ToReal { .. });
    Ok(Pass {
        kind,
        dim,
        n,
        extent: match kind {
            Fft::FromReal { .. } => n / 2 + 1,
            _ => n,
        },
        scale: norm.scale(inverse, n),
    })
}

/// One dim.
fn along(
    exec: &dyn Exec,
    name: &'static str,
    kind: Fft,
    x: &Value,
    n: Option<usize>,
    dim: usize,
    norm: FourierNorm,
) -> Result<Value> {
    let pass = pass(name, kind, x.shape(), n, dim, norm)?;
    Transform::apply(exec, name, &[pass], x)
}

/// Several dims, the last one first or, to real numbers, last.
fn over(
    exec: &dyn Exec,
    name: &'static str,
    kind: Fft,
    x: &Value,
    lengths: Option<&[usize]>,
    dims: &[usize],
    norm: FourierNorm,
) -> Result<Value> {
    let twice = (1..dims.len()).any(|i| dims[..i].contains(&dims[i]));
    let fits = lengths.is_none_or(|lengths| lengths.len() == dims.len());
    let (Some(last), false, true) = (dims.len().checked_sub(1), twice, fits) else {
        return Err(OpError::Shape {
            op: name,
            problem: format!("dims {dims:?} with lengths {lengths:?}"),
            shapes: vec![x.shape().to_vec()],
            fix: "name each dim once, one at least, and a length for each or none",
        });
    };
    let inverse = matches!(kind, Fft::Complex { inverse: true } | Fft::ToReal { .. });
    let others = (0..last).rev().map(|i| (i, Fft::Complex { inverse }));
    let order: Vec<(usize, Fft)> = match kind {
        Fft::ToReal { .. } => others.chain([(last, kind)]).collect(),
        _ => iter::once((last, kind)).chain(others).collect(),
    };
    let mut shape = x.shape().to_vec();
    let mut passes = Passes::new();
    for (i, kind) in order {
        let n = lengths.map(|lengths| lengths[i]);
        let pass = pass(name, kind, &shape, n, dims[i], norm)?;
        shape = pass.shape_of(&shape);
        passes.push(pass);
    }
    Transform::apply(exec, name, &passes, x)
}

/// What an op does, one after the other.
type Passes = SmallVec<[Pass; 2]>;

/// A transform along one dim, or along several that ranks have as a whole.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Transform {
    /// The op's name.
    name: &'static str,
    passes: Passes,
    /// The dim that mesh axes divide which divided that of a lone pass.
    instead: Option<usize>,
}

impl Transform {
    /// Transforms of a value that follow each other, along as many dims at a time as ranks have as a whole.
    ///
    /// # Errors
    /// As of any op.
    pub fn apply(exec: &dyn Exec, name: &'static str, passes: &[Pass], x: &Value) -> Result<Value> {
        let (mut y, mut rest) = (x.clone(), passes);
        while let Some(first) = rest.first() {
            let is_whole = |dim: usize| y.layout().sharding(dim).is_none();
            // Where parts of complex numbers are apart, the first pass brings them together.
            let together = match first.kind.reads_complex() && !is_whole(y.ndim() - 1) {
                true => 1,
                false => rest.iter().take_while(|pass| is_whole(pass.dim)).count(),
            };
            let together = together.max(1);
            let (passes, later) = rest.split_at(together);
            let instead = match passes {
                [_] => replacement(&y, first),
                _ => None,
            };
            let op = Self {
                name,
                passes: passes.into(),
                instead,
            };
            y = exec.apply1(Arc::new(op), &[&y])?;
            rest = later;
        }
        Ok(y)
    }
}

/// The dim whose parts are the most equal if the axes that shard the dim of a pass divide it too; of such the one that nothing
/// divides, and of these the largest.
fn replacement(x: &Value, pass: &Pass) -> Option<usize> {
    let parts = |d: usize| x.layout().sharding(d).map_or(1, |s| s.partition.parts());
    let fresh = parts(pass.dim);
    let dims = x.ndim() - usize::from(pass.kind.reads_complex());
    let others = (0..dims).filter(|&d| d != pass.dim && x.shape()[d] > 0);
    others.min_by_key(|&d| {
        let (n, before) = (x.shape()[d], parts(d));
        let pieces = fresh * before;
        // What the largest part has beyond its share, in thousandths of the share.
        let beyond = (n.div_ceil(pieces) as u128 * pieces as u128 * 1000) / n as u128;
        (beyond, before, usize::MAX - n)
    })
}

impl Op for Transform {
    fn name(&self) -> &'static str {
        self.name
    }

    fn precision(&self) -> Precision {
        Precision::Full
    }

    fn key(&self) -> u128 {
        let of = |p: &Pass| (p.kind, p.dim, p.n, p.extent, p.scale.to_bits());
        let passes: SmallVec<[_; 2]> = self.passes.iter().map(of).collect();
        key_of("fft", &(self.name, passes, self.instead))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name, inputs)?;
        let mut made = inputs[0].shape.to_vec();
        let mut rule = Rule::builder(self.name, inputs).any_order();
        let dims = made.len() - usize::from(self.passes[0].kind.reads_complex());
        let factors: Vec<usize> = made[..dims].iter().map(|&n| rule.factor(n)).collect();
        let whole = Access::Whole {
            instead: self.instead.map(|d| factors[d]),
        };
        let mut from: Vec<Access> = factors.iter().map(|&f| Access::factor(f)).collect();
        let mut to = from.clone();
        let mut stages = 0;
        for pass in &self.passes {
            from[pass.dim] = whole.clone();
            to[pass.dim] = Access::WHOLE;
            made = pass.shape_of(&made);
            stages += usize::BITS - pass.n.leading_zeros();
        }
        from.resize(inputs[0].shape.len(), whole);
        to.resize(made.len(), Access::WHOLE);
        // The factor of the dim itself is nobody's; it stands for the elements of a line in the account of work.
        rule.input(from)
            .output(to, made.into(), dtype)
            .flops(5.0 * f64::from(stages))
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            transform_all(&self.passes, &x, &mut call.output::<T>(0));
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        saved.pull_back(cotangents, |dy, x| {
            let adjoint = |pass: &Pass| Pass {
                kind: pass.kind.adjoint(),
                extent: saved.inputs[x].shape()[pass.dim],
                ..*pass
            };
            let back: Passes = self.passes.iter().rev().map(adjoint).collect();
            Self::apply(exec, self.name, &back, dy)
        })
    }
}

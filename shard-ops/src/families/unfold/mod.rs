//! Windows laid out side by side, and their sum back: im2col, col2im, and sliding windows of one dim; and the reshaping of channels
//! into positions and back, which takes no kernel.
//!
//! A window reads its inputs and their halo as a convolution does, and writes them as columns. Forward and adjoint are one op, so
//! derivatives of any order are in this family.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod shuffle;

pub use shuffle::{channel_shuffle, pixel_shuffle, pixel_unshuffle};

use crate::error::InOp;
use crate::families::shape::{check_spatial, extent, per_dim, permute, reshape};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, OperandBox,
    Result, Rule, Saved, Value, key_of,
};
use shard_kernels::conv::Taps;
use shard_kernels::unfold as kernels;
use shard_spec::{Dims, Window};
use smallvec::smallvec;
use std::sync::Arc;

/// The windows of [`unfold`] and [`fold`]. Lists have one entry per spatial dim; one entry serves all dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfoldOptions {
    /// Extents of the window.
    pub kernel: Vec<usize>,
    /// Inputs from one window to the next.
    pub stride: Vec<usize>,
    /// Zeros added on either side.
    pub padding: Vec<usize>,
    /// Inputs from one tap to the next.
    pub dilation: Vec<usize>,
}

impl UnfoldOptions {
    /// Windows of this size at every place where one fits.
    pub fn new(kernel: impl Into<Vec<usize>>) -> Self {
        Self {
            kernel: kernel.into(),
            stride: vec![1],
            padding: vec![0],
            dilation: vec![1],
        }
    }
}

/// The windows of (N, C, spatial...) as columns: (N, C * positions of a window, windows).
///
/// # Collective
/// All members of the mesh; communicates the halos of sharded spatial dims. Where another spatial dim than the first is sharded, columns are
/// redistributed, because the windows of a rank do not follow one another.
///
/// # Errors
/// Shapes or options that do not fit.
pub fn unfold(exec: &dyn Exec, x: &Value, options: &UnfoldOptions) -> Result<Value> {
    let nd = x.ndim().saturating_sub(2);
    let op = Unfold::new("unfold", options, nd, x.shape().get(2..).unwrap_or(&[]), x)?;
    let (windows, kernel) = (op.windows_of(x)?, op.kernel.clone());
    let columns = exec.apply1(Arc::new(op), &[x])?;
    let positions: usize = kernel.iter().product();
    let shape = [
        x.shape()[0],
        x.shape()[1] * positions,
        windows.iter().product(),
    ];
    reshape(exec, &columns, &shape)
}

/// The sum of windows, given as columns, at the places in (N, C, `output`...) where [`unfold`] took them from.
///
/// # Collective
/// As [`unfold`].
///
/// # Errors
/// Shapes or options that do not fit.
pub fn fold(
    exec: &dyn Exec,
    x: &Value,
    output: &[usize],
    options: &UnfoldOptions,
) -> Result<Value> {
    let op = Unfold::new("fold", options, output.len(), output, x)?;
    let op = Unfold {
        adjoint: true,
        ..op
    };
    let windows = op.windows_of(x)?;
    let positions: usize = op.kernel.iter().product();
    let count: usize = windows.iter().product();
    if x.ndim() != 3 || x.shape()[2] != count || !x.shape()[1].is_multiple_of(positions) {
        return Err(misfit(
            "fold",
            x,
            format!("{count} windows of {positions} positions"),
            "give (N, C * positions of a window, windows)",
        ));
    }
    let mut shape = vec![x.shape()[0], x.shape()[1] / positions];
    shape.extend(op.kernel.iter().chain(&windows));
    exec.apply1(Arc::new(op), &[&reshape(exec, x, &shape)?])
}

/// All slices of `size` along dim `dim`, `step` apart, as a new last dim; `dim` counts them.
///
/// # Collective
/// All members of the mesh; communicates the halo of the dim if it is sharded.
///
/// # Errors
/// A dim out of range; a size of 0 or of more than the dim, or a step of 0.
pub fn sliding(exec: &dyn Exec, x: &Value, dim: usize, size: usize, step: usize) -> Result<Value> {
    let n = extent("sliding", x, dim)?;
    let last = x.ndim() - 1;
    let mut order: Vec<usize> = (0..=last).filter(|&d| d != dim).collect();
    order.push(dim);
    let options = UnfoldOptions {
        stride: vec![step],
        ..UnfoldOptions::new([size])
    };
    let op = Unfold::new("sliding", &options, 1, &[n], x)?;
    op.windows_of(x)?;
    let moved = match order.is_sorted() {
        true => x.clone(),
        false => permute(exec, x, &order)?,
    };
    // The other dims, positions of a window, windows.
    let columns = exec.apply1(Arc::new(op), &[&moved])?;
    let mut order: Vec<usize> = (0..last).collect();
    order.insert(dim, last + 1);
    order.push(last);
    permute(exec, &columns, &order)
}

fn misfit(op: &'static str, x: &Value, problem: String, fix: &'static str) -> OpError {
    OpError::Shape {
        op,
        problem,
        shapes: vec![x.shape().to_vec()],
        fix,
    }
}

/// `[*L, *S]` as `[*L, *K, *O]`, or the way back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Unfold {
    pub(crate) kernel: Dims,
    stride: Dims,
    padding: Dims,
    dilation: Dims,
    /// Spatial extents of what windows are taken from.
    input: Dims,
    pub(crate) adjoint: bool,
}

impl Unfold {
    fn new(
        name: &'static str,
        options: &UnfoldOptions,
        nd: usize,
        input: &[usize],
        x: &Value,
    ) -> Result<Self> {
        check_spatial(name, x, nd, "give one to three spatial dims")?;
        let per_dim = |option, given: &[usize]| per_dim(name, option, given, nd, &[x]);
        Ok(Self {
            kernel: per_dim("kernel", &options.kernel)?,
            stride: per_dim("stride", &options.stride)?,
            padding: per_dim("padding", &options.padding)?,
            dilation: per_dim("dilation", &options.dilation)?,
            input: input.iter().copied().collect(),
            adjoint: false,
        })
    }

    fn window(&self, d: usize) -> Result<Window> {
        let pad = self.padding[d];
        Window::conv(self.kernel[d], self.stride[d], self.dilation[d], pad, pad).in_op(self.name())
    }

    /// How many windows there are per dim.
    fn windows(&self) -> Result<Dims> {
        (0..self.kernel.len())
            .map(|d| {
                let windows = self.window(d)?.output_extent(self.input[d]);
                windows.in_op(self.name())
            })
            .collect()
    }

    /// How many windows there are, if what they are laid out as can be addressed.
    fn windows_of(&self, x: &Value) -> Result<Dims> {
        let windows = self.windows()?;
        let mut sizes = self.kernel.iter().chain(&windows).chain(x.shape());
        match sizes.try_fold(1_usize, |all, &n| all.checked_mul(n.max(1))) {
            Some(_) => Ok(windows),
            None => Err(misfit(
                self.name(),
                x,
                "columns are more than can be counted".into(),
                "use a smaller window",
            )),
        }
    }

    /// The kernels' window between a box of what windows are taken from and a box of columns.
    pub(crate) fn local(&self, input: &OperandBox, columns: &OperandBox) -> Taps {
        let nd = self.kernel.len();
        let lead = input.shape.len() - nd;
        let before = self.padding.iter().copied();
        let starts = [&input.start[lead..], &columns.start[lead + nd..]];
        Taps::between(&self.stride, &self.dilation, before, starts)
    }
}

impl Op for Unfold {
    fn name(&self) -> &'static str {
        if self.adjoint { "fold" } else { "unfold" }
    }

    fn key(&self) -> u128 {
        key_of("unfold", self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let nd = self.kernel.len();
        let x = &inputs[0].shape;
        let lead = x.len() - if self.adjoint { 2 * nd } else { nd };
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let (mut from, mut to): (Vec<Access>, Vec<Access>) = Default::default();
        for &n in &x[..lead] {
            let factor = Access::factor(rule.factor(n));
            from.push(factor.clone());
            to.push(factor);
        }
        let mut shape: Dims = x[..lead].into();
        // Positions of a window are whole on every rank.
        if self.adjoint {
            from.extend((0..nd).map(|_| Access::WHOLE));
            shape.extend(self.input.iter().copied());
            for (d, &n) in self.input.iter().enumerate() {
                let (factor, window) = (rule.factor(n), self.window(d)?);
                from.push(Access::Adjoint { factor, window });
                to.push(Access::factor(factor));
            }
        } else {
            to.extend((0..nd).map(|_| Access::WHOLE));
            let windows = self.windows()?;
            shape.extend(self.kernel.iter().chain(&windows).copied());
            for (d, &n) in windows.iter().enumerate() {
                let (factor, window) = (rule.factor(n), self.window(d)?);
                from.push(Access::Window { factor, window });
                to.push(Access::factor(factor));
            }
        }
        rule.input(from)
            .output(to, shape, dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let (input, output) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let window = match self.adjoint {
            true => self.local(output, input),
            false => self.local(input, output),
        };
        with_float!(call.dtype(), T => {
            let (x, mut y) = (call.input::<T>(0), call.output::<T>(0));
            match self.adjoint {
                true => kernels::fold(&x, &mut y, &window),
                false => kernels::unfold(&x, &mut y, &window),
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let adjoint = Self {
            adjoint: !self.adjoint,
            ..self.clone()
        };
        saved.pull_back_by(exec, cotangents, adjoint)
    }
}

//! Max and average pooling of one, two or three spatial dims: windows of any size, stride, padding and dilation, or as many as
//! outputs are asked for. Indices and counts are global, so results do not depend on the sharding.

mod adaptive;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod fractional;
mod powers;
mod unpool;

pub use adaptive::{adaptive_avg_pool, adaptive_max_pool};
pub use fractional::fractional_max_pool;
pub use powers::{local_response_norm, lp_pool};
pub use unpool::max_unpool;

use crate::error::InOp;
use crate::families::shape::{check_spatial, per_dim};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, KernelCx, Linearity, Meta, Op, OpError,
    OperandBox, Result, Rule, Saved, Value, key_of,
};
use shard_comm::DType;
use shard_kernels::conv as kernels;
use shard_kernels::pool::{self, Divisor, Plane};
use shard_spec::{Dims, ResampleMode, Window};
use smallvec::smallvec;
use std::sync::Arc;

/// The windows of a pooling. Lists have one entry per spatial dim; one entry serves all dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Extents of the window.
    pub kernel: Vec<usize>,
    /// Inputs from one output to the next; empty for the kernel's extents.
    pub stride: Vec<usize>,
    /// What is added on either side, at most half of the window.
    pub padding: Vec<usize>,
    /// Inputs from one tap to the next; averages take 1 only.
    pub dilation: Vec<usize>,
    /// Whether the output extent is rounded up.
    pub ceil_mode: bool,
    /// Whether an average counts the padding; maxima ignore it.
    pub count_include_pad: bool,
    /// The divisor of an average, instead of the count.
    pub divisor: Option<usize>,
}

impl PoolOptions {
    /// Windows of this size, without overlap.
    pub fn new(kernel: impl Into<Vec<usize>>) -> Self {
        Self {
            kernel: kernel.into(),
            stride: Vec::new(),
            padding: vec![0],
            dilation: vec![1],
            ceil_mode: false,
            count_include_pad: true,
            divisor: None,
        }
    }
}

/// The largest element of every window, and its flat index in the *global* spatial plane (i64). Among equal elements the
/// first wins; NaN wins over numbers.
///
/// # Collective
/// All members of the mesh; communicates the halos of sharded spatial dims.
///
/// # Errors
/// Shapes or options that do not fit.
pub fn max_pool(exec: &dyn Exec, x: &Value, options: &PoolOptions) -> Result<(Value, Value)> {
    let geometry = Geometry::new("max_pool", x, options)?;
    largest(exec, x, geometry)
}

/// The values and the indices.
fn largest(exec: &dyn Exec, x: &Value, geometry: Geometry) -> Result<(Value, Value)> {
    let [y, index] = exec.apply_n(Arc::new(MaxPool { geometry }), &[x])?;
    Ok((y, index))
}

/// The mean of every window. The divisor is counted globally.
///
/// # Collective
/// All members of the mesh; communicates the halos of sharded spatial dims.
///
/// # Errors
/// Shapes or options that do not fit; a dilation; a divisor of 0.
pub fn avg_pool(exec: &dyn Exec, x: &Value, options: &PoolOptions) -> Result<Value> {
    let geometry = Geometry::new("avg_pool", x, options)?;
    if geometry.dilation.iter().any(|&d| d != 1) {
        return Err(OpError::Shape {
            op: "avg_pool",
            problem: "averages have no dilation".into(),
            shapes: vec![x.shape().to_vec()],
            fix: "set the dilation to 1",
        });
    }
    if options.divisor == Some(0) {
        return Err(OpError::Shape {
            op: "avg_pool",
            problem: "an average by a divisor of 0".into(),
            shapes: vec![x.shape().to_vec()],
            fix: "give a divisor of 1 or more",
        });
    }
    let divide = Divide {
        include_pad: options.count_include_pad,
        fixed: options.divisor,
    };
    let op = AvgPool {
        geometry,
        divide,
        adjoint: false,
    };
    exec.apply1(Arc::new(op), &[x])
}

/// The numbers of a pooling, one per spatial dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    pub(crate) kernel: Dims,
    pub(crate) stride: Dims,
    pub(crate) padding: Dims,
    dilation: Dims,
    ceil: bool,
    /// Global extents of the input.
    pub(crate) input: Dims,
    /// Global extents of the output, if the windows follow from them and the other numbers are not used.
    pub(crate) adaptive: Option<Dims>,
}

impl Geometry {
    fn new(op: &'static str, x: &Value, options: &PoolOptions) -> Result<Self> {
        let nd = x.ndim().saturating_sub(2);
        let fix = "give (N, C, spatial...) of one to three spatial dims";
        check_spatial(op, x, nd, fix)?;
        let per_dim = |option, given: &[usize]| per_dim(op, option, given, nd, &[x]);
        let kernel = per_dim("kernel", &options.kernel)?;
        let stride = if options.stride.is_empty() {
            kernel.clone()
        } else {
            per_dim("stride", &options.stride)?
        };
        Ok(Self {
            kernel,
            stride,
            padding: per_dim("padding", &options.padding)?,
            dilation: per_dim("dilation", &options.dilation)?,
            ceil: options.ceil_mode,
            input: x.shape()[2..].iter().copied().collect(),
            adaptive: None,
        })
    }

    /// Windows for this many outputs.
    fn adaptive(x: &Value, outputs: &[usize]) -> Self {
        let none = Dims::from_elem(1, outputs.len());
        Self {
            kernel: none.clone(),
            stride: none.clone(),
            padding: none.clone(),
            dilation: none,
            ceil: false,
            input: x.shape()[2..].iter().copied().collect(),
            adaptive: Some(outputs.iter().copied().collect()),
        }
    }

    fn window(&self, op: &'static str, d: usize) -> Result<Window> {
        if let Some(outputs) = &self.adaptive {
            return Window::resample(self.input[d], outputs[d], ResampleMode::Area, None).in_op(op);
        }
        Window::pool(
            self.kernel[d],
            self.stride[d],
            self.padding[d],
            self.dilation[d],
            self.ceil,
        )
        .in_op(op)
    }

    fn outputs(&self, op: &'static str) -> Result<Dims> {
        (0..self.kernel.len())
            .map(|d| self.window(op, d)?.output_extent(self.input[d]).in_op(op))
            .collect()
    }

    /// The kernels' window between a box of the input side and a box of the output side.
    pub(crate) fn local(&self, input: &OperandBox, output: &OperandBox) -> kernels::Taps {
        let before = self.padding.iter().copied();
        let starts = [&input.start[2..], &output.start[2..]];
        kernels::Taps::between(&self.stride, &self.dilation, before, starts)
    }

    /// The positions in a box of the input that each output of a box sees, per dim, if the windows are adaptive.
    fn windows(
        &self,
        input: &OperandBox,
        output: &OperandBox,
    ) -> Option<Vec<Vec<std::ops::Range<usize>>>> {
        self.adaptive.as_ref()?;
        let of = |d: usize| {
            let (n, from) = (self.input[d], input.start[2 + d]);
            let window = self.window("max_pool", d).ok()?;
            let outputs = (0..output.shape[2 + d]).map(|o| output.start[2 + d] + o);
            let seen = outputs.map(|o| {
                let seen = window.input_interval(n, o..o + 1);
                seen.start as usize - from..seen.end as usize - from
            });
            Some(seen.collect())
        };
        (0..self.kernel.len()).map(of).collect()
    }

    /// Where a box of the input lies in the global plane.
    fn plane(&self, input: &OperandBox) -> Plane {
        let start: Vec<isize> = input.start[2..].iter().map(|&s| s as isize).collect();
        Plane::new(&start, &self.input)
    }

    /// The rule of an op from the input side to the output side; `inputs` say which side each operand is on.
    fn forward(
        &self,
        op: &'static str,
        inputs: &[Meta],
        sides: &[Side],
        outputs: &[DType],
    ) -> Result<Rule> {
        let mut rule = Rule::builder(op, inputs).any_order();
        let (n, c) = (
            rule.factor(inputs[0].shape[0]),
            rule.factor(inputs[0].shape[1]),
        );
        let out = self.outputs(op)?;
        let factors: Vec<usize> = out.iter().map(|&n| rule.factor(n)).collect();
        let lead = [Access::factor(n), Access::factor(c)];
        let mut dims: Vec<Access> = lead.to_vec();
        dims.extend(factors.iter().map(|&f| Access::factor(f)));
        for side in sides {
            let mut access = lead.to_vec();
            for (d, &factor) in factors.iter().enumerate() {
                access.push(match side {
                    Side::Input => Access::Window {
                        factor,
                        window: self.window(op, d)?,
                    },
                    Side::Output => Access::factor(factor),
                });
            }
            rule = rule.input(access);
        }
        let shape: Dims = inputs[0].shape[..2].iter().copied().chain(out).collect();
        for &dtype in outputs {
            rule = rule.output(dims.clone(), shape.clone(), dtype);
        }
        rule.linearity(if op == "max_pool" {
            Linearity::None
        } else {
            Linearity::Each(smallvec![0])
        })
        .build()
    }

    /// The rule of an op from the output side back to the input side.
    fn backward(&self, op: &'static str, inputs: &[Meta], dtype: DType) -> Result<Rule> {
        let mut rule = Rule::builder(op, inputs).any_order();
        let (n, c) = (
            rule.factor(inputs[0].shape[0]),
            rule.factor(inputs[0].shape[1]),
        );
        let factors: Vec<usize> = self.input.iter().map(|&n| rule.factor(n)).collect();
        let lead = [Access::factor(n), Access::factor(c)];
        let mut from = lead.to_vec();
        for (d, &factor) in factors.iter().enumerate() {
            from.push(Access::Adjoint {
                factor,
                window: self.window(op, d)?,
            });
        }
        for _ in inputs {
            rule = rule.input(from.clone());
        }
        let mut to = lead.to_vec();
        to.extend(factors.iter().map(|&f| Access::factor(f)));
        let shape: Dims = inputs[0].shape[..2]
            .iter()
            .chain(&self.input)
            .copied()
            .collect();
        rule.output(to, shape, dtype)
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }
}

/// Which side of the windows an operand is on.
#[derive(Clone, Copy)]
enum Side {
    Input,
    Output,
}

#[derive(Clone, Debug)]
pub(crate) struct MaxPool {
    pub(crate) geometry: Geometry,
}

impl Op for MaxPool {
    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn key(&self) -> u128 {
        key_of("max_pool", &self.geometry)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("max_pool", inputs)?;
        self.geometry
            .forward("max_pool", inputs, &[Side::Input], &[dtype, DType::I64])
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let g = &self.geometry;
        let (input, output) = (&call.cx.inputs[0], &call.cx.outputs[0]);
        let (window, plane) = (g.local(input, output), g.plane(input));
        let windows = g.windows(input, output);
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0);
            let (mut y, mut index) = call.output_pair::<T, i64>();
            match &windows {
                Some(windows) => pool::adaptive_max_pool(&x, &mut y, &mut index, windows, &plane),
                None => pool::max_pool(&x, &mut y, &mut index, &g.kernel, &window, &plane),
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING.and_outputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let geometry = &self.geometry;
        saved.pull_back(cotangents, |dy, _| {
            let geometry = geometry.clone();
            exec.apply1(Arc::new(MaxPoolGrad { geometry }), &[dy, &saved.outputs[1]])
        })
    }
}

/// Adds every output's cotangent to the input that its index names.
#[derive(Clone, Debug)]
pub(crate) struct MaxPoolGrad {
    pub(crate) geometry: Geometry,
}

impl Op for MaxPoolGrad {
    fn name(&self) -> &'static str {
        "max_pool_grad"
    }

    fn key(&self) -> u128 {
        key_of("max_pool_grad", &self.geometry)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("max_pool_grad", &inputs[..1])?;
        self.geometry.backward("max_pool_grad", inputs, dtype)
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let plane = self.geometry.plane(&call.cx.outputs[0]);
        with_float!(call.dtype(), T => {
            let (dy, index) = (call.input::<T>(0), call.input::<i64>(1));
            pool::max_pool_grad(&dy, &index, &mut call.output::<T>(0), &plane);
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        by_place(saved, cotangents, |g, places| {
            let geometry = self.geometry.clone();
            exec.apply1(Arc::new(MaxPoolPick { geometry }), &[g, places])
        })
    }
}

/// The vjp of an op that reads its first operand at the places given by the second, which has no cotangent.
fn by_place(
    saved: &Saved<'_>,
    cotangents: &[Option<Value>],
    back: impl Fn(&Value, &Value) -> Result<Value>,
) -> Result<Grads> {
    saved.pull_back_to(0, cotangents, |dy| back(dy, &saved.inputs[1]))
}

/// Reads the input that every output's index names.
#[derive(Clone, Debug)]
pub(crate) struct MaxPoolPick {
    pub(crate) geometry: Geometry,
}

impl Op for MaxPoolPick {
    fn name(&self) -> &'static str {
        "max_pool_pick"
    }

    fn key(&self) -> u128 {
        key_of("max_pool_pick", &self.geometry)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("max_pool_pick", &inputs[..1])?;
        let sides = [Side::Input, Side::Output];
        (self.geometry).forward("max_pool_pick", inputs, &sides, &[dtype])
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let plane = self.geometry.plane(&call.cx.inputs[0]);
        with_float!(call.dtype(), T => {
            let (x, index) = (call.input::<T>(0), call.input::<i64>(1));
            pool::gather_at(&x, &index, &mut call.output::<T>(0), &plane);
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        by_place(saved, cotangents, |dy, places| {
            let geometry = self.geometry.clone();
            exec.apply1(Arc::new(MaxPoolGrad { geometry }), &[dy, places])
        })
    }
}

/// The divisor of an average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Divide {
    pub(crate) include_pad: bool,
    pub(crate) fixed: Option<usize>,
}

impl Divide {
    /// The counts of a box of outputs, per dim: the positions of the window inside the plane or, if padding counts, inside the
    /// padded plane. (If a window reaches beyond the padding in `ceil_mode`, only the part inside counts.)
    fn counts(&self, geometry: &Geometry, output: &OperandBox) -> Vec<Vec<usize>> {
        (0..geometry.kernel.len())
            .map(|d| {
                let (n, pad) = (geometry.input[d] as isize, geometry.padding[d] as isize);
                (0..output.shape[2 + d])
                    .map(|o| {
                        let lo = ((output.start[2 + d] + o) * geometry.stride[d]) as isize - pad;
                        let hi = (lo + geometry.kernel[d] as isize).min(n + pad);
                        let (lo, hi) = if self.include_pad {
                            (lo, hi)
                        } else {
                            (lo.max(0), hi.min(n))
                        };
                        (hi - lo).max(0) as usize
                    })
                    .collect()
            })
            .collect()
    }

    fn divisor<'a>(&self, counts: &'a [Vec<usize>]) -> Divisor<'a> {
        match self.fixed {
            Some(by) => Divisor::Fixed(by as f64),
            None => Divisor::Counts(counts),
        }
    }
}

/// Averages, or their adjoint, which gives each input its share of the outputs that it is counted in.
#[derive(Clone, Debug)]
pub(crate) struct AvgPool {
    pub(crate) geometry: Geometry,
    pub(crate) divide: Divide,
    pub(crate) adjoint: bool,
}

impl Op for AvgPool {
    fn name(&self) -> &'static str {
        match self.adjoint {
            true => "avg_pool_grad",
            false => "avg_pool",
        }
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &(&self.geometry, self.divide))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (g, name) = (&self.geometry, self.name());
        let dtype = float_types(name, inputs)?;
        match self.adjoint {
            true => g.backward(name, inputs, dtype),
            false => g.forward(name, inputs, &[Side::Input], &[dtype]),
        }
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let g = &self.geometry;
        let [input, output] = self.sides(call.cx);
        let window = g.local(input, output);
        let counts = self.divide.counts(g, output);
        let divisor = self.divide.divisor(&counts);
        with_float!(call.dtype(), T => {
            let (x, mut y) = (call.input::<T>(0), call.output::<T>(0));
            match self.adjoint {
                true => pool::avg_pool_grad(&x, &mut y, &g.kernel, &window, divisor),
                false => pool::avg_pool(&x, &mut y, &g.kernel, &window, divisor),
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

impl AvgPool {
    /// The boxes of a call on the side of the windows' inputs, and on that of their outputs.
    pub(crate) fn sides<'a>(&self, cx: &'a KernelCx) -> [&'a OperandBox; 2] {
        let (from, to) = (&cx.inputs[0], &cx.outputs[0]);
        match self.adjoint {
            true => [to, from],
            false => [from, to],
        }
    }
}

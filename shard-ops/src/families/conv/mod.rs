//! Convolution and transposed convolution of one, two or three spatial dims.
//!
//! There are three ops, each the derivative of the others: the convolution itself, its gradient by the input (which is also
//! the transposed convolution), and its gradient by the weight. Spatial dims are windows, so a rank gets what it needs
//! of its neighbours by an exchange; input channels are a sum, output channels and batch are free. The gradient by
//! the input exchanges the halo of the *output's* cotangent and then sums locally, so nothing is added across ranks:
//! a sum has the single device's terms, and its bits where the kernel takes rows one by one (`shard_kernels::conv`).

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use crate::error::InOp;
use crate::families::elementwise::{add, cast};
use crate::families::full::rounded_once;
use crate::families::index::pad;
use crate::families::reduce::sum;
use crate::families::shape::{per_dim, reshape};
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, Halves, HostCall, Keeps, Linearity, Meta, Op, OpError,
    OperandBox, Precision, Reduction, Result, Rule, RuleBuilder, Saved, Value, key_of,
};
use half::bf16;
use shard_comm::{DType, DeviceKind};
use shard_kernels::conv as kernels;
use shard_spec::{Dims, EdgeMap, ReduceOp, Window};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Runs an expression with `$T` bound to the type to which sums of products of `bf16` are rounded, if they are.
macro_rules! with_rounded {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::BF16 => {
                type $T = bf16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}

/// How much is added around the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Padding {
    /// `(before, after)` per spatial dim; one pair serves all dims.
    Explicit(Vec<(usize, usize)>),
    /// As much as makes the output as large as the input at stride 1; if the total is odd, one more is added behind.
    Same,
}

/// The attributes of a convolution. Lists have one entry per spatial dim; one entry serves all dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvOptions {
    /// Inputs from one output to the next.
    pub stride: Vec<usize>,
    /// Inputs from one tap to the next.
    pub dilation: Vec<usize>,
    /// What is added around the input.
    pub padding: Padding,
    /// Channels are divided into this many groups that do not mix.
    pub groups: usize,
    /// What the padding holds.
    pub edge: EdgeMap,
}

impl Default for ConvOptions {
    fn default() -> Self {
        Self {
            stride: vec![1],
            dilation: vec![1],
            padding: Padding::Explicit(vec![(0, 0)]),
            groups: 1,
            edge: EdgeMap::Zeros,
        }
    }
}

/// The attributes of a transposed convolution. Lists have one entry per spatial dim; one entry serves all dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvTransposeOptions {
    /// Outputs from one input to the next.
    pub stride: Vec<usize>,
    /// Outputs from one tap to the next.
    pub dilation: Vec<usize>,
    /// `(before, after)` outputs cropped.
    pub padding: Vec<(usize, usize)>,
    /// Outputs added behind.
    pub output_padding: Vec<usize>,
    /// Channels are divided into this many groups that do not mix.
    pub groups: usize,
}

impl Default for ConvTransposeOptions {
    fn default() -> Self {
        Self {
            stride: vec![1],
            dilation: vec![1],
            padding: vec![(0, 0)],
            output_padding: vec![0],
            groups: 1,
        }
    }
}

/// Convolution: `x` is (N, C, spatial...), `w` is (O, C / groups, kernel...), `bias` is (O).
///
/// Padding with other edges than zeros is done by a [`pad`] first.
///
/// # Collective
/// All members of the mesh. Communicates the halos of sharded spatial dims, of any width, while the interior is
/// computed. Sharded input channels make the result `P(sum)`.
///
/// # Errors
/// Shapes that do not fit; a kernel wider than the padded input; a number of channels that is not a multiple of the groups.
pub fn conv(
    exec: &dyn Exec,
    x: &Value,
    w: &Value,
    bias: Option<&Value>,
    options: &ConvOptions,
) -> Result<Value> {
    let geometry = Geometry::direct(NAME, x, w, options)?;
    check_bias(NAME, bias, w.shape()[0])?;
    if options.edge != EdgeMap::Zeros && geometry.pads.iter().any(|p| *p != (0, 0)) {
        let mut pads = vec![(0, 0), (0, 0)];
        for (d, &(before, behind)) in geometry.pads.iter().enumerate() {
            // As with zeros, more than can be counted is refused.
            geometry.window(d)?;
            pads.push((before as isize, behind as isize));
        }
        let padded = pad(exec, x, &pads, options.edge, 0.0)?;
        let plain = ConvOptions {
            padding: Padding::Explicit(vec![(0, 0)]),
            edge: EdgeMap::Zeros,
            ..options.clone()
        };
        return conv(exec, &padded, w, bias, &plain);
    }
    let op = Arc::new(Conv {
        geometry,
        bias: bias.is_some(),
    });
    match bias {
        Some(bias) => exec.apply1(op, &[x, w, bias]),
        None => exec.apply1(op, &[x, w]),
    }
}

/// Transposed convolution: `x` is (N, C, spatial...), `w` is (C, O / groups, kernel...), `bias` is (O).
///
/// # Collective
/// As [`conv`].
///
/// # Errors
/// As [`conv`]; an output padding that is not less than the stride or the dilation.
pub fn conv_transpose(
    exec: &dyn Exec,
    x: &Value,
    w: &Value,
    bias: Option<&Value>,
    options: &ConvTransposeOptions,
) -> Result<Value> {
    let (geometry, spatial, behind) = Geometry::transposed(x, w, options)?;
    check_bias(TRANSPOSED, bias, w.shape()[1] * geometry.groups)?;
    // Types that differ are for the ops to refuse.
    let in_full = bias.is_some_and(|bias| [x, w].iter().all(|v| v.dtype() == bias.dtype()));
    let op = ConvInputGrad {
        geometry,
        spatial,
        in_full,
    };
    let mut y = exec.apply1(Arc::new(op), &[x, w])?;
    if behind.iter().any(|&n| n > 0) {
        let mut pads = vec![(0, 0), (0, 0)];
        pads.extend(behind.iter().map(|&n| (0, n as isize)));
        y = pad(exec, &y, &pads, EdgeMap::Zeros, 0.0)?;
    }
    let Some(bias) = bias else { return Ok(y) };
    let mut shape = vec![1; y.ndim()];
    shape[1] = bias.shape()[0];
    let biased = |bias: &Value| add(exec, &y, &reshape(exec, bias, &shape)?);
    match in_full {
        true => rounded_once(exec, [bias], |[bias]| biased(bias)),
        false => biased(bias),
    }
}

/// The numbers of a convolution, one per spatial dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Geometry {
    pub(crate) kernel: Dims,
    pub(crate) stride: Dims,
    pub(crate) dilation: Dims,
    pub(crate) pads: SmallVec<[(usize, usize); 3]>,
    pub(crate) groups: usize,
}

const NAME: &str = "conv";
const TRANSPOSED: &str = "conv_transpose";

impl Geometry {
    /// A multiplication and an addition per tap, for each pair of channels and position.
    fn flops(&self) -> f64 {
        2.0 * self.kernel.iter().product::<usize>() as f64
    }

    pub(crate) fn direct(
        op: &'static str,
        x: &Value,
        w: &Value,
        options: &ConvOptions,
    ) -> Result<Self> {
        let nd = spatial_dims(op, x, w)?;
        let kernel: Dims = w.shape()[2..].iter().copied().collect();
        let stride = per_dim(op, "stride", &options.stride, nd, &[x, w])?;
        let dilation = per_dim(op, "dilation", &options.dilation, nd, &[x, w])?;
        let pads = match &options.padding {
            Padding::Explicit(pads) => per_dim(op, "padding", pads, nd, &[x, w])?
                .into_iter()
                .collect(),
            Padding::Same => kernel
                .iter()
                .zip(&dilation)
                .map(|(&k, &d)| {
                    let total = d.saturating_mul(k.saturating_sub(1));
                    (total / 2, total - total / 2)
                })
                .collect(),
        };
        let geometry = Self {
            kernel,
            stride,
            dilation,
            pads,
            groups: options.groups,
        };
        geometry.check(op, x, w, x.shape()[1], w.shape()[1], w.shape()[0])?;
        Ok(geometry)
    }

    /// For a transposed convolution: the convolution of which it is the gradient by the input, the extents of that input, and
    /// how many outputs without any contribution follow behind them.
    fn transposed(
        x: &Value,
        w: &Value,
        options: &ConvTransposeOptions,
    ) -> Result<(Self, Dims, Dims)> {
        let name = TRANSPOSED;
        let nd = spatial_dims(name, x, w)?;
        let kernel: Dims = w.shape()[2..].iter().copied().collect();
        let stride = per_dim(name, "stride", &options.stride, nd, &[x, w])?;
        let dilation = per_dim(name, "dilation", &options.dilation, nd, &[x, w])?;
        let mut pads = per_dim(name, "padding", &options.padding, nd, &[x, w])?;
        let extra = per_dim(name, "output_padding", &options.output_padding, nd, &[x, w])?;
        let (mut spatial, mut behind) = (Dims::new(), Dims::new());
        for d in 0..nd {
            let window = Window::transposed(
                kernel[d],
                stride[d],
                dilation[d],
                pads[d].0,
                pads[d].1,
                extra[d],
            )
            .in_op(name)?;
            let outputs = window.output_extent(x.shape()[2 + d]).in_op(name)?;
            let unreached = without_excess(&mut pads[d], stride[d], extra[d], outputs);
            spatial.push(outputs - unreached);
            behind.push(unreached);
        }
        let geometry = Self {
            kernel,
            stride,
            dilation,
            pads: pads.into_iter().collect(),
            groups: options.groups,
        };
        geometry.check(
            name,
            x,
            w,
            x.shape()[1],
            w.shape()[0] / options.groups.max(1),
            // A number of channels that overflows is not a multiple of the groups either.
            w.shape()[1].checked_mul(options.groups).unwrap_or(1),
        )?;
        Ok((geometry, spatial, behind))
    }

    /// Checks channels: those of the operand, those that a kernel of one group reads, and those of the output.
    fn check(
        &self,
        op: &'static str,
        x: &Value,
        w: &Value,
        channels: usize,
        reads: usize,
        out: usize,
    ) -> Result<()> {
        let fits = self.groups > 0
            && reads.checked_mul(self.groups) == Some(channels)
            && out.is_multiple_of(self.groups);
        if fits {
            return Ok(());
        }
        Err(OpError::Shape {
            op,
            problem: format!(
                "{channels} channels do not fit the weight in {} groups",
                self.groups
            ),
            shapes: vec![x.shape().to_vec(), w.shape().to_vec()],
            fix: operands_of(op),
        })
    }

    /// What kernels read and write in 16 bits, of so many input and output channels of a group.
    fn halves(&self, stored: DType, [inputs, outputs]: [usize; 2], on: DeviceKind) -> Halves {
        let is_for_unit = || {
            stored == DType::BF16
                && kernels::convolves_halves(inputs, outputs, &self.kernel, &self.stride)
        };
        match on.is_cuda() || is_for_unit() {
            true => Halves::ALL,
            false => Halves::NONE,
        }
    }

    fn window(&self, d: usize) -> Result<Window> {
        let (lo, hi) = self.pads[d];
        Window::conv(self.kernel[d], self.stride[d], self.dilation[d], lo, hi).in_op(NAME)
    }

    pub(crate) fn outputs(&self, inputs: &[usize]) -> Result<Dims> {
        inputs
            .iter()
            .enumerate()
            .map(|(d, &n)| self.window(d)?.output_extent(n).in_op(NAME))
            .collect()
    }

    /// The kernels' window between a box of the input side and a box of the output side.
    pub(crate) fn local(&self, input: &OperandBox, output: &OperandBox) -> kernels::Taps {
        let before = self.pads.iter().map(|pads| pads.0);
        let starts = [&input.start[2..], &output.start[2..]];
        kernels::Taps::between(&self.stride, &self.dilation, before, starts)
    }
}

/// How the three ops index feature maps `x` and `y`, the weight and the bias of a convolution of `x` to `y`.
struct Indexed {
    x: Vec<Access>,
    y: Vec<Access>,
    weight: Vec<Access>,
    bias: Vec<Access>,
}

/// Which of the feature maps is indexed by the places that a rule has factors for. The other one is read through windows.
#[derive(Clone, Copy)]
enum Places {
    Input,
    Output,
}

impl Indexed {
    /// For a batch, input and output channels, and these places. Without groups input and output channels are free factors; with
    /// groups the group is one, and channels inside a group stay together.
    fn new(
        rule: &mut RuleBuilder,
        geometry: &Geometry,
        [batch, c, o]: [usize; 3],
        places: &[usize],
        of: Places,
    ) -> Result<Self> {
        let batch = Access::factor(rule.factor(batch));
        let ([y, out_weight], [x, in_weight]) = if geometry.groups == 1 {
            let [o, c] = [o, c].map(|n| Access::factor(rule.factor(n)));
            ([o.clone(), o], [c.clone(), c])
        } else {
            let factor = rule.factor(geometry.groups);
            let [o, c] = [o, c].map(|channels| Access::Factor {
                factor,
                block: channels / geometry.groups,
            });
            ([o.clone(), o], [c, Access::WHOLE])
        };
        let mut all = Self {
            x: vec![batch.clone(), x],
            bias: vec![y.clone()],
            y: vec![batch, y],
            weight: vec![out_weight, in_weight],
        };
        for (d, &n) in places.iter().enumerate() {
            let (factor, window) = (rule.factor(n), geometry.window(d)?);
            let place = Access::factor(factor);
            let (x, y) = match of {
                Places::Output => (Access::Window { factor, window }, place),
                Places::Input => (place, Access::Adjoint { factor, window }),
            };
            all.x.push(x);
            all.y.push(y);
            all.weight.push(Access::WHOLE);
        }
        Ok(all)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Conv {
    pub(crate) geometry: Geometry,
    pub(crate) bias: bool,
}

impl Op for Conv {
    fn name(&self) -> &'static str {
        NAME
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        key_of(NAME, &(&self.geometry, self.bias))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(NAME, inputs)?;
        let (x, w) = (&inputs[0].shape, &inputs[1].shape);
        let out = self.geometry.outputs(&x[2..])?;
        let mut rule = Rule::builder(NAME, inputs).any_order();
        let counts = [x[0], x[1], w[0]];
        let at = Indexed::new(&mut rule, &self.geometry, counts, &out, Places::Output)?;
        let mut rule = rule.input(at.x).input(at.weight);
        if self.bias {
            rule = rule.input(at.bias);
        }
        let shape = [x[0], w[0]].into_iter().chain(out).collect();
        // The gradient by the weight reads what the convolution reads.
        rule.output(at.y, shape, dtype)
            .keeps_halo(0)
            .flops(self.geometry.flops())
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 1]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        let w = &inputs[1].shape;
        self.geometry
            .halves(stored, [w[1], w[0] / self.geometry.groups], on)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let window = self.geometry.local(&call.cx.inputs[0], &call.cx.outputs[0]);
        let groups = local_groups(
            &self.geometry,
            call.cx.inputs[0].shape[1],
            &call.cx.inputs[1],
        );
        let bias = self.bias && call.cx.adds_once;
        if call.inputs[0].dtype() == DType::BF16 {
            let (x, w) = (call.input::<bf16>(0), call.input::<bf16>(1));
            let bias = bias.then(|| call.input::<bf16>(2).to_vec());
            let bias = bias.map(|bias| bias.into_iter().map(bf16::to_f32).collect::<Vec<_>>());
            return with_rounded!(call.dtype(), T => {
                let mut y = call.output::<T>(0);
                kernels::conv_forward_halves(&x, &w, bias.as_deref(), &mut y, &window, groups);
            });
        }
        with_float!(call.dtype(), T => {
            let (x, w) = (call.input::<T>(0), call.input::<T>(1));
            let bias = bias.then(|| call.input::<T>(2).to_vec());
            kernels::conv_forward(&x, &w, bias.as_deref(), &mut call.output::<T>(0), &window, groups);
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::inputs(&[0, 1])
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (x, w) = (&saved.inputs[0], &saved.inputs[1]);
        saved.pull_back(cotangents, |dy, operand| match operand {
            0 => input_grad(exec, &self.geometry, dy, w, &x.shape()[2..]),
            1 => weight_grad(exec, &self.geometry, x, dy),
            _ => {
                let dims: Vec<usize> = (0..dy.ndim()).filter(|&d| d != 1).collect();
                sum(exec, dy, &dims, false)
            }
        })
    }
}

/// The gradient of a convolution by its input: dx over the input's extents from dy and w. The factor of a spatial
/// dim is the *input* index; dy's dims are the adjoint of its windows.
#[derive(Clone, Debug)]
pub(crate) struct ConvInputGrad {
    pub(crate) geometry: Geometry,
    spatial: Dims,
    /// Whether the result of floats of 16 bits is `f32`.
    in_full: bool,
}

fn apply_conv(exec: &dyn Exec, geometry: &Geometry, x: &Value, w: &Value) -> Result<Value> {
    let op = Conv {
        geometry: geometry.clone(),
        bias: false,
    };
    exec.apply1(Arc::new(op), &[x, w])
}

fn input_grad(
    exec: &dyn Exec,
    geometry: &Geometry,
    dy: &Value,
    w: &Value,
    spatial: &[usize],
) -> Result<Value> {
    let op = ConvInputGrad {
        geometry: geometry.clone(),
        spatial: spatial.iter().copied().collect(),
        in_full: false,
    };
    exec.apply1(Arc::new(op), &[dy, w])
}

impl Op for ConvInputGrad {
    fn name(&self) -> &'static str {
        "conv_input_grad"
    }

    fn precision(&self) -> Precision {
        Precision::Sixteen
    }

    fn key(&self) -> u128 {
        let what = (&self.geometry, &self.spatial, self.in_full);
        key_of("conv_input_grad", &what)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("conv_input_grad", inputs)?;
        let (dy, w) = (&inputs[0].shape, &inputs[1].shape);
        let channels = w[1] * self.geometry.groups;
        let mut rule = Rule::builder("conv_input_grad", inputs).any_order();
        let (counts, places) = ([dy[0], channels, w[0]], &self.spatial);
        let at = Indexed::new(&mut rule, &self.geometry, counts, places, Places::Input)?;
        let shape = [dy[0], channels]
            .into_iter()
            .chain(self.spatial.iter().copied())
            .collect();
        rule.input(at.y)
            .input(at.weight)
            .output(at.x, shape, dtype)
            .flops(self.geometry.flops())
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 1]))
            .unrounded(self.in_full)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        let w = &inputs[1].shape;
        self.geometry
            .halves(stored, [w[0] / self.geometry.groups, w[1]], on)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let window = self.geometry.local(&call.cx.outputs[0], &call.cx.inputs[0]);
        let groups = local_groups(
            &self.geometry,
            call.cx.outputs[0].shape[1],
            &call.cx.inputs[1],
        );
        if call.inputs[0].dtype() == DType::BF16 {
            let (dy, w) = (call.input::<bf16>(0), call.input::<bf16>(1));
            return with_rounded!(call.dtype(), T => {
                let mut dx = call.output::<T>(0);
                kernels::conv_input_grad_halves(&dy, &w, &mut dx, &window, groups);
            });
        }
        with_float!(call.dtype(), T => {
            let (dy, w) = (call.input::<T>(0), call.input::<T>(1));
            let mut dx = call.output::<T>(0);
            kernels::conv_input_grad(&dy, &w, &mut dx, &window, groups);
        });
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (dy, w) = (&saved.inputs[0], &saved.inputs[1]);
        // Gradients are products of operands of one type, which may not be that of a result in full.
        let rounded = |g: &Value| cast(exec, g, dy.dtype());
        let g = cotangents[0].as_ref().map(rounded).transpose()?;
        saved.pull_back(&[g], |g, operand| match operand {
            0 => apply_conv(exec, &self.geometry, g, w),
            _ => weight_grad(exec, &self.geometry, g, dy),
        })
    }
}

/// The gradient of a convolution by its weight: a sum over batch and outputs, so sharding those makes it partial.
#[derive(Clone, Debug)]
pub(crate) struct ConvWeightGrad {
    pub(crate) geometry: Geometry,
}

fn weight_grad(exec: &dyn Exec, geometry: &Geometry, x: &Value, dy: &Value) -> Result<Value> {
    exec.apply1(
        Arc::new(ConvWeightGrad {
            geometry: geometry.clone(),
        }),
        &[x, dy],
    )
}

impl Op for ConvWeightGrad {
    fn name(&self) -> &'static str {
        "conv_weight_grad"
    }

    fn key(&self) -> u128 {
        key_of("conv_weight_grad", &self.geometry)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types("conv_weight_grad", inputs)?;
        let (x, dy) = (&inputs[0].shape, &inputs[1].shape);
        let mut rule = Rule::builder("conv_weight_grad", inputs).any_order();
        let (counts, places) = ([x[0], x[1], dy[1]], &dy[2..]);
        let at = Indexed::new(&mut rule, &self.geometry, counts, places, Places::Output)?;
        let shape = [dy[1], x[1] / self.geometry.groups]
            .into_iter()
            .chain(self.geometry.kernel.iter().copied())
            .collect();
        rule.input(at.x)
            .input(at.y)
            .output(at.weight, shape, dtype)
            .keeps_halo(0)
            .flops(self.geometry.flops())
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0, 1]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn halves(&self, stored: DType, inputs: &[Meta], on: DeviceKind) -> Halves {
        let channels = [0, 1].map(|i| inputs[i].shape[1] / self.geometry.groups);
        self.geometry.halves(stored, channels, on)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let window = self.geometry.local(&call.cx.inputs[0], &call.cx.inputs[1]);
        let groups = local_groups(
            &self.geometry,
            call.cx.inputs[0].shape[1],
            &call.cx.outputs[0],
        );
        if call.inputs[0].dtype() == DType::BF16 {
            let (x, dy) = (call.input::<bf16>(0), call.input::<bf16>(1));
            return with_rounded!(call.dtype(), T => {
                let mut dw = call.output::<T>(0);
                kernels::conv_weight_grad_halves(&x, &dy, &mut dw, &window, groups);
            });
        }
        with_float!(call.dtype(), T => {
            let (x, dy) = (call.input::<T>(0), call.input::<T>(1));
            let mut dw = call.output::<T>(0);
            kernels::conv_weight_grad(&x, &dy, &mut dw, &window, groups);
        });
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let (x, dy) = (&saved.inputs[0], &saved.inputs[1]);
        saved.pull_back(cotangents, |g, operand| match operand {
            0 => input_grad(exec, &self.geometry, dy, g, &x.shape()[2..]),
            _ => apply_conv(exec, &self.geometry, x, g),
        })
    }
}

/// How many groups a rank's channels form: the whole groups it holds, counted by the weight's rows or, if it has no rows, by the
/// channels that they read. A rank without channels has one group, which is empty.
pub(crate) fn local_groups(geometry: &Geometry, channels: usize, weight: &OperandBox) -> usize {
    let rows = weight.global[0] / geometry.groups;
    let held = weight.shape[0]
        .checked_div(rows)
        .or_else(|| channels.checked_div(weight.shape[1]));
    match geometry.groups {
        1 => 1,
        _ => held.unwrap_or(1).max(1),
    }
}

/// How many of a transposed convolution's `outputs` no input contributes to, among the `extra` ones that are added behind.
/// These are not inputs of the convolution of which it is the gradient: with them that convolution would have more outputs than
/// there are inputs here. Fewer of them than the stride do not matter. Added outputs that are cropped again are removed from
/// both: `pads` is updated to the cropping that is left.
fn without_excess(pads: &mut (usize, usize), stride: usize, extra: usize, outputs: usize) -> usize {
    if extra < stride {
        return 0;
    }
    let uncropped = extra.min(pads.1);
    pads.1 -= uncropped;
    let unreached = extra - uncropped;
    if unreached < stride {
        return 0;
    }
    // If more is cropped in front than there are outputs, part of what is added is cropped too.
    pads.0 -= unreached.saturating_sub(outputs);
    unreached.min(outputs)
}

fn spatial_dims(op: &'static str, x: &Value, w: &Value) -> Result<usize> {
    let nd = x.ndim().saturating_sub(2);
    if (1..=3).contains(&nd) && w.ndim() == nd + 2 {
        return Ok(nd);
    }
    Err(OpError::Shape {
        op,
        problem: format!(
            "takes one to three spatial dims, got operands of {} and {} dims",
            x.ndim(),
            w.ndim()
        ),
        shapes: vec![x.shape().to_vec(), w.shape().to_vec()],
        fix: operands_of(op),
    })
}

/// What to give a convolution.
fn operands_of(op: &str) -> &'static str {
    if op == TRANSPOSED {
        return "give (N, C, spatial...) and (C, O / groups, kernel...), with groups dividing C and O";
    }
    "give (N, C, spatial...) and (O, C / groups, kernel...), with groups dividing C and O"
}

/// There is an element of the bias for each output channel.
pub(crate) fn check_bias(op: &'static str, bias: Option<&Value>, channels: usize) -> Result<()> {
    match bias.map(Value::shape) {
        Some(shape) if shape != [channels] => Err(OpError::Shape {
            op,
            problem: format!("the bias has shape {shape:?}, expected [{channels}]"),
            shapes: vec![shape.to_vec()],
            fix: "give the bias one element per output channel",
        }),
        _ => Ok(()),
    }
}

//! Convolutions of `bf16`.

use super::forward::start_from;
use super::input_grad::by_phases;
use super::lift::{Geometry, Slab, SlabMut};
use super::{Taps, apart, contiguous, tiles};
use super::{conv_forward, conv_input_grad, conv_weight_grad};
use crate::attention::Stored;
use crate::compiled::compiled;
use crate::copy::convert;
use crate::gemm::{Unit, gemm_halves, of_processor, rate};
use crate::{Dims, View, ViewMut};
use half::bf16;
use shard_device::Element;

/// An element type that sums of `f32` are rounded to.
pub trait Rounded: Stored<Acc = f32> + Element + CompiledHalves<Self> {}

impl Rounded for f32 {}
impl Rounded for bf16 {}

/// Whether the processor computes a convolution of `bf16` with so many input and output channels, such a kernel and such strides in fewer steps
/// than one of single precision, and this crate knows how.
///
/// ```
/// // Channels by themselves are left to vectors on any processor.
/// assert!(!shard_kernels::conv::convolves_halves(1, 1, &[3, 3], &[1, 1]));
/// ```
pub fn convolves_halves(inputs: usize, outputs: usize, kernel: &[usize], stride: &[usize]) -> bool {
    // Of 1024 products of a place in 32 numbers of a step, and 32 outputs, so many are of use. Few channels are packed with the positions of
    // their windows, which takes longer where windows overlap.
    let within = kernel.iter().product::<usize>().saturating_mul(inputs);
    let overlap = kernel
        .iter()
        .zip(stride)
        .any(|(kernel, stride)| kernel > stride);
    let within = within.min(32) / if overlap { 2 } else { 1 };
    let of_use = inputs.min(32).max(within) * outputs.min(32);
    // What was measured on a Xeon, and on a Zen 5.
    const FEWEST: [usize; 2] = [64, 640];
    match rate() {
        0..2 => false,
        2..6 => of_use >= FEWEST[1],
        _ => of_use >= FEWEST[0],
    }
}

compiled! { trait CompiledHalves for Rounded: f32 bf16; {
    /// As [`conv_forward`] of operands of `bf16`, whose products are summed in `f32`: by the processor's unit for them where it
    /// [has one](crate::gemm::multiplies_halves), and otherwise of copies in `f32`. That unit takes products below 2^-126 for zero.
    ///
    /// ```
    /// use half::bf16;
    /// use shard_kernels::{conv::{conv_forward_halves, Taps}, View, ViewMut};
    /// let (x, w) = ([1.0, 2.0, 3.0, 4.0].map(bf16::from_f32), [1.0, 10.0].map(bf16::from_f32));
    /// let mut y = [0.0f32; 3];
    /// let (x, w) = (View::contiguous(&x, &[1, 1, 4]), View::contiguous(&w, &[1, 1, 2]));
    /// conv_forward_halves(&x, &w, None, &mut ViewMut::contiguous(&mut y, &[1, 1, 3]), &Taps::unit(1), 1);
    /// assert_eq!(y, [21.0, 32.0, 43.0]);
    /// ```
    ///
    /// # Panics
    /// As [`conv_forward`].
    pub fn conv_forward_halves<T>(
        x: &View<'_, bf16>,
        weight: &View<'_, bf16>,
        bias: Option<&[f32]>,
        y: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) = forward_here;

    /// As [`conv_input_grad`], in the way of [`conv_forward_halves`].
    ///
    /// # Panics
    /// As [`conv_input_grad`].
    pub fn conv_input_grad_halves<T>(
        dy: &View<'_, bf16>,
        weight: &View<'_, bf16>,
        dx: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) = input_grad_here;

    /// As [`conv_weight_grad`], in the way of [`conv_forward_halves`].
    ///
    /// # Panics
    /// As [`conv_weight_grad`].
    pub fn conv_weight_grad_halves<T>(
        x: &View<'_, bf16>,
        dy: &View<'_, bf16>,
        dw: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) = weight_grad_here;
} }

fn forward_here<T: Rounded>(
    x: &View<'_, bf16>,
    weight: &View<'_, bf16>,
    bias: Option<&[f32]>,
    y: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    if let Some(unit) = of_processor() {
        return forward(&unit, x, weight, bias, y, window, groups);
    }
    in_single(y, |y| {
        let (x, w) = (wide(x), wide(weight));
        conv_forward(&x.view(), &w.view(), bias, y, window, groups);
    });
}

fn input_grad_here<T: Rounded>(
    dy: &View<'_, bf16>,
    weight: &View<'_, bf16>,
    dx: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    if let Some(unit) = of_processor() {
        return grad_by_input(&unit, dy, weight, dx, window, groups);
    }
    in_single(dx, |dx| {
        let (dy, w) = (wide(dy), wide(weight));
        conv_input_grad(&dy.view(), &w.view(), dx, window, groups);
    });
}

fn weight_grad_here<T: Rounded>(
    x: &View<'_, bf16>,
    dy: &View<'_, bf16>,
    dw: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    let is_done =
        of_processor().is_some_and(|unit| grad_by_weight(&unit, x, dy, dw, window, groups));
    if !is_done {
        in_single(dw, |dw| {
            let (x, dy) = (wide(x), wide(dy));
            conv_weight_grad(&x.view(), &dy.view(), dw, window, groups);
        });
    }
}

fn forward<T: Rounded>(
    unit: &impl Unit,
    x: &View<'_, bf16>,
    weight: &View<'_, bf16>,
    bias: Option<&[f32]>,
    y: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    let g = Geometry::new(window, weight.shape(), x.shape(), y.shape(), groups);
    assert!(
        bias.is_none_or(|b| b.len() == y.shape()[1]),
        "conv: {:?} bias elements",
        bias.map(<[f32]>::len)
    );
    correlate(
        unit,
        &Slab::new(x),
        &contiguous(weight),
        bias,
        &mut SlabMut::new(y),
        &g,
    );
}

fn correlate<T: Rounded>(
    unit: &impl Unit,
    x: &Slab<'_, bf16>,
    weight: &[bf16],
    bias: Option<&[f32]>,
    y: &mut SlabMut<'_, T>,
    g: &Geometry,
) {
    if y.extent.contains(&0) || y.batch == 0 || g.cout == 0 {
        return;
    }
    if g.taps() == 0 {
        let bias = |co: usize| T::narrow(bias.map_or(0.0, |bias| bias[co]));
        return start_from(bias, y, g);
    }
    tiles::correlate(unit, x, weight, bias, y, g);
}

fn grad_by_input<T: Rounded>(
    unit: &impl Unit,
    dy: &View<'_, bf16>,
    weight: &View<'_, bf16>,
    dx: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    let g = Geometry::new(window, weight.shape(), dx.shape(), dy.shape(), groups);
    let (weight, dy) = (contiguous(weight), Slab::new(dy));
    if apart::are_apart(&g) {
        let mut dx = SlabMut::new(dx);
        return apart::input_grad(&dy, &weight, &mut dx, &g, gemm_halves, |_, x| T::narrow(x));
    }
    by_phases(&weight, dx, &g, |weight, dx, g| {
        correlate(unit, &dy, weight, None, dx, g);
    });
}

/// Tells whether the gradient was written: of inputs that are infinite or no numbers it is not.
fn grad_by_weight<T: Rounded>(
    unit: &impl Unit,
    x: &View<'_, bf16>,
    dy: &View<'_, bf16>,
    dw: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) -> bool {
    let g = Geometry::new(window, dw.shape(), x.shape(), dy.shape(), groups);
    let shape = dw.shape().to_vec();
    let grad = match dy.shape().contains(&0) || dw.shape().contains(&0) {
        true => Some(vec![0.0; shape.iter().product()]),
        false => tiles::weight_grad(unit, &Slab::new(x), &Slab::new(dy), &g),
    };
    let Some(grad) = grad else { return false };
    convert(&View::contiguous(&grad, &shape), &mut dw.reborrow());
    true
}

/// A copy in single precision.
struct Wide {
    numbers: Vec<f32>,
    shape: Dims,
}

fn wide(of: &View<'_, bf16>) -> Wide {
    let shape: Dims = of.shape().into();
    let mut numbers = vec![0.0; shape.iter().product()];
    convert(of, &mut ViewMut::contiguous(&mut numbers, &shape));
    Wide { numbers, shape }
}

impl Wide {
    fn view(&self) -> View<'_, f32> {
        View::contiguous(&self.numbers, &self.shape)
    }
}

/// Writes what is computed in single precision.
fn in_single<T: Rounded>(to: &mut ViewMut<'_, T>, compute: impl FnOnce(&mut ViewMut<'_, f32>)) {
    let shape: Dims = to.shape().into();
    let mut numbers = vec![0.0; shape.iter().product()];
    compute(&mut ViewMut::contiguous(&mut numbers, &shape));
    convert(&View::contiguous(&numbers, &shape), to);
}

/// What tests see of convolutions by units.
#[doc(hidden)]
pub mod inside {
    use super::{Rounded, Taps, View, ViewMut, bf16};
    use crate::gemm::Emulated;

    /// As [`conv_forward_halves`](super::conv_forward_halves) by a unit that is emulated.
    pub fn forward_emulated<T: Rounded>(
        unit: Emulated,
        x: &View<'_, bf16>,
        weight: &View<'_, bf16>,
        bias: Option<&[f32]>,
        y: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) {
        super::forward(&unit, x, weight, bias, y, window, groups);
    }

    /// As [`conv_input_grad_halves`](super::conv_input_grad_halves) in the same way.
    pub fn input_grad_emulated<T: Rounded>(
        unit: Emulated,
        dy: &View<'_, bf16>,
        weight: &View<'_, bf16>,
        dx: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) {
        super::grad_by_input(&unit, dy, weight, dx, window, groups);
    }

    /// As [`conv_weight_grad_halves`](super::conv_weight_grad_halves) in the same way. Tells whether the unit takes the inputs.
    pub fn weight_grad_emulated<T: Rounded>(
        unit: Emulated,
        x: &View<'_, bf16>,
        dy: &View<'_, bf16>,
        dw: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) -> bool {
        super::grad_by_weight(&unit, x, dy, dw, window, groups)
    }
}

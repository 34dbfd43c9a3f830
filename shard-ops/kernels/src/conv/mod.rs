//! Convolution of one, two or three spatial dims: the value, and the gradients with respect to the input and the weight.
//!
//! All three obey one relation per spatial dim between an index `i` of the input view, `o` of the output view and `k` of the
//! kernel: `i = o * stride + k * dilation + origin`. The views are slabs or boxes of larger arrays, and `origin` says how they
//! lie relative to each other. Input indexes outside the input view count as zeros, so a halo that was exchanged, padding that
//! was written, and padding left implicit are all the same to a kernel.
//!
//! Each element's sum runs over channels and kernel in one order, wherever its slab begins, but for kernels of three rows at stride
//! and dilation 1 with enough channels: there slabs of at least four rows are computed by pairs of rows, from two thirds of the
//! products. Sums and differences of inputs take the place of inputs, so an infinite one may give NaN where the sum would be infinite,
//! and a result is as exact as its largest terms are. NaN stays in the windows that hold it.

use super::{Real, Strides, View, ViewMut};
use crate::compiled::compiled;
use lift::{Geometry, Slab, SlabMut};
use std::borrow::Cow;

mod apart;
mod beside;
mod channels;
mod direct;
mod forward;
mod halves;
mod im2col;
mod input_grad;
mod lift;
mod line;
mod lone;
mod pack;
mod pairs;
mod panel;
mod tiles;
mod weight_grad;
mod weights;

#[doc(hidden)]
pub use halves::inside;
pub use halves::{
    Rounded, conv_forward_halves, conv_input_grad_halves, conv_weight_grad_halves, convolves_halves,
};
pub(crate) use lift::{lift_extents, lift_view, lift_view_mut};

/// How input, output and kernel indexes of a convolution or pooling meet, per spatial dim: `i = o * stride + k * dilation + origin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taps {
    /// Input steps per output step, at least 1.
    pub stride: super::Dims,
    /// Input steps per kernel step, at least 1.
    pub dilation: super::Dims,
    /// The input index at which output 0 and kernel 0 meet; a negative one reaches into implicit zeros.
    pub origin: Strides,
}

impl Taps {
    /// Taps from their per-dim numbers.
    ///
    /// # Panics
    /// When the lengths differ or are not 1 to 3, or a stride or dilation is 0.
    pub fn new(stride: &[usize], dilation: &[usize], origin: &[isize]) -> Self {
        let fits = (1..=3).contains(&stride.len())
            && dilation.len() == stride.len()
            && origin.len() == stride.len()
            && stride.iter().chain(dilation).all(|&s| s > 0);
        assert!(
            fits,
            "taps: stride {stride:?}, dilation {dilation:?}, origin {origin:?}"
        );
        Self {
            stride: stride.into(),
            dilation: dilation.into(),
            origin: origin.into(),
        }
    }

    /// Taps between a box of inputs, which begins at some indices, and one of outputs, where windows begin `padding` before the first
    /// input. There is a number of each per spatial dim.
    ///
    /// ```
    /// use shard_kernels::conv::Taps;
    /// let taps = Taps::between(&[2], &[1], [1], [&[3], &[4]]);
    /// assert_eq!(taps.origin[0], 2 * 4 - 1 - 3);
    /// ```
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn between(
        stride: &[usize],
        dilation: &[usize],
        padding: impl IntoIterator<Item = usize>,
        [input, output]: [&[usize]; 2],
    ) -> Self {
        let origin = (padding.into_iter().enumerate()).map(|(d, padding)| {
            (output[d] * stride[d]) as isize - padding as isize - input[d] as isize
        });
        Self::new(stride, dilation, &origin.collect::<Strides>())
    }

    /// The taps of stride 1, dilation 1 and origin 0 over `ndim` spatial dims.
    ///
    /// # Panics
    /// When `ndim` is not 1 to 3.
    pub fn unit(ndim: usize) -> Self {
        Self::new(&vec![1; ndim], &vec![1; ndim], &vec![0; ndim])
    }
}

compiled! { trait Compiled for Real: f32 f64; {
    /// `y[n, co, o] = bias[co] + Σ_{ci, k} weight[co, ci, k] · x[n, group(co) + ci, o·stride + k·dilation + origin]`.
    ///
    /// `x` is `[N, Cin, *S]`, `weight` `[Cout, Cin / groups, *K]`, `bias` of length `Cout`, `y` `[N, Cout, *O]`, any strides.
    ///
    /// ```
    /// use shard_kernels::{conv::{conv_forward, Taps}, View, ViewMut};
    /// let (x, w) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 10.0]);
    /// let mut y = [0.0; 3];
    /// let (x, w) = (View::contiguous(&x, &[1, 1, 4]), View::contiguous(&w, &[1, 1, 2]));
    /// conv_forward(&x, &w, None, &mut ViewMut::contiguous(&mut y, &[1, 1, 3]), &Taps::unit(1), 1);
    /// assert_eq!(y, [21.0, 32.0, 43.0]);
    /// ```
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn conv_forward<T>(
        x: &View<'_, T>,
        weight: &View<'_, T>,
        bias: Option<&[T]>,
        y: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) = conv_forward_here;

    /// The gradient of [`conv_forward`] with respect to its input, over the box `dx`: every element of `dx` is written, with 0
    /// where no output meets it. It is also the value of a transposed convolution.
    ///
    /// The relation is the same: `i` indexes `dx`, `o` indexes `dy`. Outputs outside the view `dy` count as zeros.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn conv_input_grad<T>(
        dy: &View<'_, T>,
        weight: &View<'_, T>,
        dx: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) = conv_input_grad_here;

    /// The gradient of [`conv_forward`] with respect to its weight:
    /// `dw[co, ci, k] = Σ_{n, o} dy[n, co, o] · x[n, group(co) + ci, i(o, k)]`.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn conv_weight_grad<T>(
        x: &View<'_, T>,
        dy: &View<'_, T>,
        dw: &mut ViewMut<'_, T>,
        window: &Taps,
        groups: usize,
    ) = conv_weight_grad_here;
} }

fn conv_forward_here<T: Real>(
    x: &View<'_, T>,
    weight: &View<'_, T>,
    bias: Option<&[T]>,
    y: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    let geometry = Geometry::new(window, weight.shape(), x.shape(), y.shape(), groups);
    assert!(
        bias.is_none_or(|b| b.len() == y.shape()[1]),
        "conv: {:?} bias elements",
        bias.map(<[T]>::len)
    );
    let weight = contiguous(weight);
    forward::correlate(
        &Slab::new(x),
        &weight,
        bias,
        &mut SlabMut::new(y),
        &geometry,
    );
}

fn conv_input_grad_here<T: Real>(
    dy: &View<'_, T>,
    weight: &View<'_, T>,
    dx: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    let geometry = Geometry::new(window, weight.shape(), dx.shape(), dy.shape(), groups);
    input_grad::input_grad(dy, weight, dx, &geometry);
}

fn conv_weight_grad_here<T: Real>(
    x: &View<'_, T>,
    dy: &View<'_, T>,
    dw: &mut ViewMut<'_, T>,
    window: &Taps,
    groups: usize,
) {
    let geometry = Geometry::new(window, dw.shape(), x.shape(), dy.shape(), groups);
    weight_grad::weight_grad(&Slab::new(x), &Slab::new(dy), dw, &geometry);
}

/// The elements in row-major order, copied only where they are not stored so.
fn contiguous<'a, T: Copy>(view: &View<'a, T>) -> Cow<'a, [T]> {
    view.as_slice()
        .map_or_else(|| Cow::Owned(view.to_vec()), Cow::Borrowed)
}

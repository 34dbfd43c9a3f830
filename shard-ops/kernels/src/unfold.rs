//! Windows laid out side by side, and their sum back: im2col and col2im of one to three spatial dims.
//!
//! Indexes meet as in convolution ([`Taps`]): `i = o * stride + k * dilation + origin`. Positions outside the slab are zeros, and
//! get nothing. A sum runs in the order of kernel indexes, wherever the slab begins.

use super::conv::{Taps, lift_extents};
use super::{Real, View, ViewMut};
use crate::compiled::compiled;

compiled! { trait Compiled for Real: f32 f64; {
    /// `y[.., k.., o..] = x[.., i..]`: `x` is `[*L, *S]` and `y` is `[*L, *K, *O]`.
    ///
    /// ```
    /// use shard_kernels::{conv::Taps, unfold::unfold, View, ViewMut};
    /// let mut y = [0.0f32; 6];
    /// unfold(
    ///     &View::contiguous(&[1.0, 2.0, 3.0], &[3]),
    ///     &mut ViewMut::contiguous(&mut y, &[2, 3]),
    ///     &Taps::new(&[1], &[1], &[-1]),
    /// );
    /// assert_eq!(y, [0.0, 1.0, 2.0, 1.0, 2.0, 3.0]);
    /// ```
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn unfold<T>(x: &View<'_, T>, y: &mut ViewMut<'_, T>, window: &Taps) = unfold_here;

    /// `x[.., i..] = Σ y[.., k.., o..]`: the adjoint of [`unfold`].
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn fold<T>(y: &View<'_, T>, x: &mut ViewMut<'_, T>, window: &Taps) = fold_here;
} }

fn unfold_here<T: Real>(x: &View<'_, T>, y: &mut ViewMut<'_, T>, window: &Taps) {
    let g = Meeting::new(
        window,
        (x.shape(), x.strides(), x.offset()),
        (y.shape(), y.strides(), y.offset()),
    );
    super::copy::fill(y, T::zero());
    let data = y.data_mut();
    g.for_each_run(|[from, to], n, [s, t]| {
        for i in 0..n as isize {
            data[to.wrapping_add_signed(i * t)] = x.data()[from.wrapping_add_signed(i * s)];
        }
    });
}

fn fold_here<T: Real>(y: &View<'_, T>, x: &mut ViewMut<'_, T>, window: &Taps) {
    let g = Meeting::new(
        window,
        (x.shape(), x.strides(), x.offset()),
        (y.shape(), y.strides(), y.offset()),
    );
    super::copy::fill(x, T::zero());
    let data = x.data_mut();
    g.for_each_run(|[to, from], n, [t, s]| {
        for i in 0..n as isize {
            data[to.wrapping_add_signed(i * t)] += y.data()[from.wrapping_add_signed(i * s)];
        }
    });
}

/// Extents, steps and the first place of a view.
type Geometry<'a> = (&'a [usize], &'a [isize], usize);

/// How places of both sides meet, with three spatial dims; missing ones are added in front.
struct Meeting {
    window: Taps,
    /// Places of both sides for every index of the leading dims.
    leads: Vec<[usize; 2]>,
    kernel: [usize; 3],
    output: [usize; 3],
    input: [usize; 3],
    input_step: [isize; 3],
    kernel_step: [isize; 3],
    output_step: [isize; 3],
}

impl Meeting {
    fn new(window: &Taps, x: Geometry<'_>, y: Geometry<'_>) -> Self {
        let nd = window.stride.len();
        let lead = x.0.len().saturating_sub(nd);
        let fits = x.0.len() >= nd && y.0.len() == x.0.len() + nd && x.0[..lead] == y.0[..lead];
        assert!(
            fits && (1..=3).contains(&nd),
            "unfold: {:?} and {:?}",
            x.0,
            y.0
        );
        let mut leads = vec![[x.2, y.2]];
        for d in 0..lead {
            let each = |at: [usize; 2]| {
                (0..x.0[d] as isize).map(move |i| {
                    let step = |at: usize, by: isize| at.wrapping_add_signed(i * by);
                    [step(at[0], x.1[d]), step(at[1], y.1[d])]
                })
            };
            leads = leads.into_iter().flat_map(each).collect();
        }
        Self {
            window: Taps::new(
                &lift_extents(&window.stride, 1),
                &lift_extents(&window.dilation, 1),
                &lift_extents(&window.origin, 0),
            ),
            leads,
            kernel: lift_extents(&y.0[lead..lead + nd], 1),
            output: lift_extents(&y.0[lead + nd..], 1),
            input: lift_extents(&x.0[lead..], 1),
            input_step: lift_extents(&x.1[lead..], 0),
            kernel_step: lift_extents(&y.1[lead..lead + nd], 0),
            output_step: lift_extents(&y.1[lead + nd..], 0),
        }
    }

    fn input_at(&self, d: usize, o: usize, k: usize) -> isize {
        let w = &self.window;
        (o * w.stride[d] + k * w.dilation[d]) as isize + w.origin[d]
    }

    /// The outputs whose input along dim `d` through kernel index `k` is in the slab.
    fn outputs(&self, d: usize, k: usize) -> core::ops::Range<usize> {
        let (stride, first) = (self.window.stride[d] as isize, self.input_at(d, 0, k));
        let until = |limit: isize| {
            let o = (limit - first + stride - 1).div_euclid(stride);
            o.clamp(0, self.output[d] as isize) as usize
        };
        let start = until(0);
        start..until(self.input[d] as isize).max(start)
    }

    /// Calls `f` with runs of elements that meet: places in `x` and `y`, how many, and steps. Kernel indexes rise slowest.
    fn for_each_run(&self, mut f: impl FnMut([usize; 2], usize, [isize; 2])) {
        let [kd, kh, kw] = self.kernel;
        for k in 0..kd * kh * kw {
            let k = [k / (kh * kw), k / kw % kh, k % kw];
            let [depths, rows, columns] = [0, 1, 2].map(|d| self.outputs(d, k[d]));
            if columns.is_empty() {
                continue;
            }
            let steps = [
                self.window.stride[2] as isize * self.input_step[2],
                self.output_step[2],
            ];
            for &[x, y] in &self.leads {
                for (od, oh) in (depths.clone()).flat_map(|d| rows.clone().map(move |h| (d, h))) {
                    let o = [od, oh, columns.start];
                    let (mut from, mut to) = (0, 0);
                    for d in 0..3 {
                        from += self.input_at(d, o[d], k[d]) * self.input_step[d];
                        to += k[d] as isize * self.kernel_step[d];
                        to += o[d] as isize * self.output_step[d];
                    }
                    f(
                        [x.wrapping_add_signed(from), y.wrapping_add_signed(to)],
                        columns.len(),
                        steps,
                    );
                }
            }
        }
    }
}

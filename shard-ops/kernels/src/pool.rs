//! Pooling of one, two or three spatial dims, over slabs whose surroundings count as holes.
//!
//! Indexes meet as in convolution ([`Taps`]): `i = o * stride + k * dilation + origin`. Input positions outside the slab never
//! win a maximum and add nothing to a mean. Sums run in window order, gradients in the order of outputs, wherever the
//! slab begins.

use super::conv::{Taps, lift_extents, lift_view, lift_view_mut};
use super::{Real, View, ViewMut};
use crate::compiled::compiled;
use crate::pointwise::vectorized;
use crate::view::is_row_major;
use pulp::{Simd, WithSimd};

/// How many positions of a window are summed in the element type before they join a total in f64.
const POSITIONS: usize = 64;

/// Where a slab lies in its global spatial plane. It turns local positions into global flat indexes and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    start: [isize; 3],
    extent: [usize; 3],
}

impl Plane {
    /// A slab whose first element has global spatial index `start` (negative in padding before the plane), of a plane with
    /// global extents `extent`.
    ///
    /// # Panics
    /// When the lengths differ or are not 1 to 3.
    pub fn new(start: &[isize], extent: &[usize]) -> Self {
        let fits = start.len() == extent.len() && (1..=3).contains(&start.len());
        assert!(fits, "pool: slab at {start:?} of a plane {extent:?}");
        Self {
            start: lift_extents(start, 0),
            extent: lift_extents(extent, 1),
        }
    }

    /// The local positions along dim `d` that lie in the plane, of a slab of `extent`.
    fn valid(&self, d: usize, extent: usize) -> (isize, isize) {
        (
            (-self.start[d]).max(0),
            (self.extent[d] as isize - self.start[d]).min(extent as isize),
        )
    }

    fn flat(&self, local: [isize; 3]) -> i64 {
        self.step([0, 1, 2].map(|d| local[d] + self.start[d]))
    }

    /// How far apart the flat indexes of two places are.
    fn step(&self, [d, h, w]: [isize; 3]) -> i64 {
        let [_, rows, columns] = self.extent.map(|n| n as isize);
        ((d * rows + h) * columns + w) as i64
    }

    /// Where the elements of a slab are, by their global flat indexes.
    fn places(&self, extent: &[usize], strides: &[isize], offset: usize) -> Places {
        let extent = [extent[0], extent[1], extent[2]];
        let is_whole = self.start == [0; 3] && self.extent == extent;
        Places {
            plane: *self,
            extent,
            strides: [0, 1, 2, 3, 4].map(|d| strides[d]),
            offset,
            is_direct: is_whole && is_row_major(&extent, &strides[2..]),
        }
    }
}

/// Where the elements of a slab are in memory.
struct Places {
    plane: Plane,
    extent: [usize; 3],
    strides: [isize; 5],
    offset: usize,
    /// Whether the slab is all of the plane and in its order.
    is_direct: bool,
}

impl Places {
    /// The place of the element of a plane with this flat index, if it lies in the slab.
    #[inline]
    fn of(&self, lead: [usize; 2], flat: i64) -> Option<usize> {
        let flat = usize::try_from(flat).ok()?;
        if self.is_direct {
            let is_in = flat < self.extent.iter().product();
            return is_in.then(|| at(self.offset + flat, &self.strides, lead, [0; 3]));
        }
        let [_, h, w] = self.plane.extent;
        let global = [
            flat / (h * w).max(1),
            flat / w.max(1) % h.max(1),
            flat % w.max(1),
        ];
        let mut local = [0; 3];
        for d in 0..3 {
            local[d] = global[d] as isize - self.plane.start[d];
            if !(0..self.extent[d] as isize).contains(&local[d]) {
                return None;
            }
        }
        Some(at(self.offset, &self.strides, lead, local))
    }
}

/// What a mean divides by.
#[derive(Clone, Copy, Debug)]
pub enum Divisor<'a> {
    /// The product over spatial dims of the count at the output's local index. The count says how many positions the global
    /// rule counts.
    Counts(&'a [Vec<usize>]),
    /// One number for all outputs.
    Fixed(f64),
}

compiled! { trait Compiled for Real: f32 f64; {
    /// The largest element of each window and its global flat index in the spatial plane.
    ///
    /// As in PyTorch, the first of equal elements wins, and NaN wins over numbers. A window without positions gives -inf and
    /// index -1.
    /// `x` is `[N, C, *S]`; `y` and `index` are `[N, C, *O]`.
    ///
    /// ```
    /// use shard_kernels::{conv::Taps, pool::{max_pool, Plane}, View, ViewMut};
    /// let (mut y, mut index) = ([0.0f32; 2], [0i64; 2]);
    /// let shape = [1, 1, 2];
    /// max_pool(
    ///     &View::contiguous(&[1.0, 5.0, 2.0, 3.0], &[1, 1, 4]),
    ///     &mut ViewMut::contiguous(&mut y, &shape),
    ///     &mut ViewMut::contiguous(&mut index, &shape),
    ///     &[2],
    ///     &Taps::new(&[2], &[1], &[0]),
    ///     &Plane::new(&[0], &[4]),
    /// );
    /// assert_eq!((y, index), ([5.0, 3.0], [1, 3]));
    /// ```
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn max_pool<T>(
        x: &View<'_, T>,
        y: &mut ViewMut<'_, T>,
        index: &mut ViewMut<'_, i64>,
        kernel: &[usize],
        window: &Taps,
        plane: &Plane,
    ) = max_pool_here;

    /// [`max_pool`] over windows of any extents: along spatial dim `d` output `o` sees the positions `windows[d][o]` of the slab, which
    /// are all in the plane.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn adaptive_max_pool<T>(
        x: &View<'_, T>,
        y: &mut ViewMut<'_, T>,
        index: &mut ViewMut<'_, i64>,
        windows: &[Vec<core::ops::Range<usize>>],
        plane: &Plane,
    ) = adaptive_max_pool_here;

    /// The gradient of [`max_pool`]: every element of the box `dx` gets the sum of `dy` over the windows whose index names it.
    ///
    /// `dy` and `index` must hold all outputs whose window may reach the box; `plane` places `dx`.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn max_pool_grad<T>(
        dy: &View<'_, T>,
        index: &View<'_, i64>,
        dx: &mut ViewMut<'_, T>,
        plane: &Plane,
    ) = max_pool_grad_here;

    /// `y[o] = x[index[o]]` by global flat index: the linear map whose adjoint [`max_pool_grad`] is. Indexes outside the slab give 0.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn gather_at<T>(
        x: &View<'_, T>,
        index: &View<'_, i64>,
        y: &mut ViewMut<'_, T>,
        plane: &Plane,
    ) = gather_at_here;

    /// The mean of each window: the sum over its positions in the slab, divided by `divisor`. Sums of large windows lose no digits
    /// to their size.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn avg_pool<T>(
        x: &View<'_, T>,
        y: &mut ViewMut<'_, T>,
        kernel: &[usize],
        window: &Taps,
        divisor: Divisor<'_>,
    ) = avg_pool_here;

    /// The gradient of [`avg_pool`] over the box `dx`: each element gets `dy / divisor` of every window that holds it.
    ///
    /// The relation is the same: `i` indexes `dx`, `o` indexes `dy` and the divisor's counts.
    ///
    /// # Panics
    /// When the shapes contradict each other.
    pub fn avg_pool_grad<T>(
        dy: &View<'_, T>,
        dx: &mut ViewMut<'_, T>,
        kernel: &[usize],
        window: &Taps,
        divisor: Divisor<'_>,
    ) = avg_pool_grad_here;
} }

fn max_pool_here<T: Real>(
    x: &View<'_, T>,
    y: &mut ViewMut<'_, T>,
    index: &mut ViewMut<'_, i64>,
    kernel: &[usize],
    window: &Taps,
    plane: &Plane,
) {
    check("max_pool", x.shape(), y.shape(), kernel, window);
    assert!(
        index.shape() == y.shape(),
        "max_pool: indexes {:?}, values {:?}",
        index.shape(),
        y.shape()
    );
    let x = lift_view(x);
    let (mut y, mut index) = (lift_view_mut(y), lift_view_mut(index));
    let g = Meeting::new(kernel, window, x.shape(), y.shape());
    let valid = [0, 1, 2].map(|d| plane.valid(d, g.input[d]));
    let mut best = vec![T::zero(); g.output[2]];
    let mut place = vec![0i64; g.output[2]];
    let mut from = vec![0u32; g.output[2]];
    // A flat index is the first of the window and the step to the position.
    let steps: Vec<i64> = (g.kernel_positions())
        .map(|k| plane.step([0, 1, 2].map(|d| (k[d] * g.dilation[d]) as isize)))
        .collect();
    let mut row = vec![T::zero(); g.output[2]];
    for (n, c) in pairs(&x) {
        for (od, oh) in g.output_rows() {
            best.fill(T::neg_infinity());
            from.fill(NOWHERE);
            for (number, k) in (0..).zip(g.kernel_positions()) {
                let [id, ih] = [g.input_at(0, od, k[0]), g.input_at(1, oh, k[1])];
                let outputs = g.outputs(k[2], valid[2]);
                if id < valid[0].0
                    || id >= valid[0].1
                    || ih < valid[1].0
                    || ih >= valid[1].1
                    || outputs.is_empty()
                {
                    continue;
                }
                let iw = g.input_at(2, outputs.start, k[2]);
                let first = at(x.offset(), x.strides(), [n, c], [id, ih, iw]);
                let step = g.stride[2] as isize * x.strides()[4];
                let row = if step == 1 {
                    &x.data()[first..][..outputs.len()]
                } else {
                    let row = &mut row[..outputs.len()];
                    for (i, v) in row.iter_mut().enumerate() {
                        *v = x.data()[first.wrapping_add_signed(i as isize * step)];
                    }
                    &*row
                };
                let take = Take {
                    row,
                    number,
                    best: &mut best[outputs.clone()],
                    from: &mut from[outputs],
                };
                // A call for a few windows takes longer than they do.
                if take.row.len() < FEW {
                    take.run();
                } else {
                    vectorized(take);
                }
            }
            for (ow, (place, &from)) in place.iter_mut().zip(&from).enumerate() {
                *place = if from == NOWHERE {
                    -1
                } else {
                    let first = [
                        g.input_at(0, od, 0),
                        g.input_at(1, oh, 0),
                        g.input_at(2, ow, 0),
                    ];
                    plane.flat(first) + steps[from as usize]
                };
            }
            store(&mut y, [n, c], [od, oh], &best);
            store(&mut index, [n, c], [od, oh], &place);
        }
    }
}

/// So many windows of a row are few.
const FEW: usize = 8;

/// The number of no position of a window.
const NOWHERE: u32 = u32::MAX;

/// Compares the best so far of a row of windows with the elements at one position of each.
struct Take<'a, T> {
    row: &'a [T],
    /// The position's number.
    number: u32,
    best: &'a mut [T],
    /// At which position each best one was.
    from: &'a mut [u32],
}

impl<T: Real> WithSimd for Take<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.run();
    }
}

impl<T: Real> Take<'_, T> {
    #[inline(always)]
    fn run(self) {
        let all = self.best.iter_mut().zip(self.from).zip(self.row);
        for ((best, from), &v) in all {
            // Which is larger nobody can foresee: these are choices between values, not branches.
            let wins = (v > *best) | v.is_nan() | (*from == NOWHERE);
            *best = if wins { v } else { *best };
            *from = if wins { self.number } else { *from };
        }
    }
}

fn adaptive_max_pool_here<T: Real>(
    x: &View<'_, T>,
    y: &mut ViewMut<'_, T>,
    index: &mut ViewMut<'_, i64>,
    windows: &[Vec<core::ops::Range<usize>>],
    plane: &Plane,
) {
    let fits = x.ndim() == windows.len() + 2 && index.shape() == y.shape();
    assert!(
        fits && (windows.iter().zip(&y.shape()[2..])).all(|(w, &n)| w.len() == n),
        "adaptive_max_pool: input {:?}, output {:?}, indexes {:?}",
        x.shape(),
        y.shape(),
        index.shape()
    );
    let lead = 3 - windows.len();
    let whole = std::slice::from_ref(&(0..1));
    let windows = [0, 1, 2].map(|d| match d < lead {
        true => whole,
        false => &windows[d - lead][..],
    });
    let x = lift_view(x);
    let (mut y, mut index) = (lift_view_mut(y), lift_view_mut(index));
    let mut best = vec![T::zero(); windows[2].len()];
    let mut place = vec![0i64; windows[2].len()];
    for (n, c) in pairs(&x) {
        for (od, depths) in windows[0].iter().enumerate() {
            for (oh, rows) in windows[1].iter().enumerate() {
                best.fill(T::neg_infinity());
                place.fill(-1);
                for (id, ih) in depths
                    .clone()
                    .flat_map(|d| rows.clone().map(move |h| (d, h)))
                {
                    let [id, ih] = [id as isize, ih as isize];
                    let row = at(x.offset(), x.strides(), [n, c], [id, ih, 0]);
                    let first = plane.flat([id, ih, 0]);
                    for ((best, place), columns) in best.iter_mut().zip(&mut place).zip(windows[2])
                    {
                        for iw in columns.clone() {
                            let v = x.data()[row.wrapping_add_signed(iw as isize * x.strides()[4])];
                            if v > *best || v.is_nan() || *place < 0 {
                                *best = v;
                                *place = first + iw as i64;
                            }
                        }
                    }
                }
                store(&mut y, [n, c], [od, oh], &best);
                store(&mut index, [n, c], [od, oh], &place);
            }
        }
    }
}

fn max_pool_grad_here<T: Real>(
    dy: &View<'_, T>,
    index: &View<'_, i64>,
    dx: &mut ViewMut<'_, T>,
    plane: &Plane,
) {
    check_indexed("max_pool_grad", dx.shape(), dy.shape(), index.shape());
    super::copy::fill(dx, T::zero());
    let (dy, index) = (lift_view(dy), lift_view(index));
    let mut dx = lift_view_mut(dx);
    let places = plane.places(&dx.shape()[2..], dx.strides(), dx.offset());
    let data = dx.data_mut();
    for_each_indexed(&dy, &index, |lead, out, flat| {
        if let Some(place) = places.of(lead, flat) {
            data[place] += dy.data()[out];
        }
    });
}

fn gather_at_here<T: Real>(
    x: &View<'_, T>,
    index: &View<'_, i64>,
    y: &mut ViewMut<'_, T>,
    plane: &Plane,
) {
    check_indexed("gather_at", x.shape(), y.shape(), index.shape());
    let (x, index) = (lift_view(x), lift_view(index));
    let mut y = lift_view_mut(y);
    let (strides, offset) = (y.strides().to_vec(), y.offset());
    let out_shape = y.shape().to_vec();
    let places = plane.places(&x.shape()[2..], x.strides(), x.offset());
    let data = y.data_mut();
    for n in 0..out_shape[0] {
        for c in 0..out_shape[1] {
            let lead = |strides: &[isize]| n as isize * strides[0] + c as isize * strides[1];
            let from = index.offset().wrapping_add_signed(lead(index.strides()));
            let to = offset.wrapping_add_signed(lead(&strides));
            let steps = [&index.strides()[2..], &strides[2..]];
            super::view::for_each_row(
                &out_shape[2..],
                steps,
                [from, to],
                |[from, to], run, [s, t]| {
                    for i in 0..run as isize {
                        let flat = index.data()[from.wrapping_add_signed(i * s)];
                        let place = places.of([n, c], flat);
                        let value = place.map_or(T::zero(), |place| x.data()[place]);
                        data[to.wrapping_add_signed(i * t)] = value;
                    }
                },
            );
        }
    }
}

fn avg_pool_here<T: Real>(
    x: &View<'_, T>,
    y: &mut ViewMut<'_, T>,
    kernel: &[usize],
    window: &Taps,
    divisor: Divisor<'_>,
) {
    check("avg_pool", x.shape(), y.shape(), kernel, window);
    let x = lift_view(x);
    let mut y = lift_view_mut(y);
    let g = Meeting::new(kernel, window, x.shape(), y.shape());
    let divisor = Divide::new(divisor, &g);
    let mut sums = vec![T::zero(); g.output[2]];
    // For large windows: the sums of the positions before those in `sums`.
    let mut totals = vec![
        0.0;
        if g.positions() > POSITIONS {
            sums.len()
        } else {
            0
        }
    ];
    for (n, c) in pairs(&x) {
        for (od, oh) in g.output_rows() {
            sums.fill(T::zero());
            totals.fill(0.0);
            for (position, k) in g.kernel_positions().enumerate() {
                if position > 0 && position % POSITIONS == 0 {
                    for (total, s) in totals.iter_mut().zip(&mut sums) {
                        *total += s.wide();
                        *s = T::zero();
                    }
                }
                let Some(row) = g.line(
                    &x,
                    [n, c],
                    [g.input_at(0, od, k[0]), g.input_at(1, oh, k[1])],
                ) else {
                    continue;
                };
                let outputs = g.outputs(k[2], (0, g.input[2] as isize));
                if outputs.is_empty() {
                    continue;
                }
                let step = g.stride[2] as isize * x.strides()[4];
                let first =
                    row.wrapping_add_signed(g.input_at(2, outputs.start, k[2]) * x.strides()[4]);
                let sums = &mut sums[outputs];
                if step == 1 {
                    for (s, v) in sums.iter_mut().zip(&x.data()[first..]) {
                        *s += *v;
                    }
                } else {
                    for (i, s) in sums.iter_mut().enumerate() {
                        *s += x.data()[first.wrapping_add_signed(i as isize * step)];
                    }
                }
            }
            for (total, s) in totals.iter().zip(&mut sums) {
                *s = T::of(total + s.wide());
            }
            divisor.apply([od, oh], &mut sums);
            store(&mut y, [n, c], [od, oh], &sums);
        }
    }
}

fn avg_pool_grad_here<T: Real>(
    dy: &View<'_, T>,
    dx: &mut ViewMut<'_, T>,
    kernel: &[usize],
    window: &Taps,
    divisor: Divisor<'_>,
) {
    check("avg_pool_grad", dx.shape(), dy.shape(), kernel, window);
    super::copy::fill(dx, T::zero());
    let dy = lift_view(dy);
    let mut dx = lift_view_mut(dx);
    let g = Meeting::new(kernel, window, dx.shape(), dy.shape());
    let divisor = Divide::new(divisor, &g);
    let (strides, offset) = (dx.strides().to_vec(), dx.offset());
    let data = dx.data_mut();
    let mut shares = vec![T::zero(); g.output[2]];
    for (n, c) in pairs(&dy) {
        for (od, oh) in g.output_rows() {
            let from = at(
                dy.offset(),
                dy.strides(),
                [n, c],
                [od as isize, oh as isize, 0],
            );
            for (i, v) in shares.iter_mut().enumerate() {
                *v = dy.data()[from.wrapping_add_signed(i as isize * dy.strides()[4])];
            }
            divisor.apply([od, oh], &mut shares);
            for k in g.kernel_positions() {
                let [id, ih] = [g.input_at(0, od, k[0]), g.input_at(1, oh, k[1])];
                if !g.inside(id, ih) {
                    continue;
                }
                let row = at(offset, &strides, [n, c], [id, ih, 0]);
                for ow in g.outputs(k[2], (0, g.input[2] as isize)) {
                    data[row.wrapping_add_signed(g.input_at(2, ow, k[2]) * strides[4])] +=
                        shares[ow];
                }
            }
        }
    }
}

/// A window over lifted extents.
struct Meeting {
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    origin: [isize; 3],
    input: [usize; 3],
    output: [usize; 3],
}

impl Meeting {
    fn new(kernel: &[usize], window: &Taps, x: &[usize], y: &[usize]) -> Self {
        Self {
            kernel: lift_extents(kernel, 1),
            stride: lift_extents(&window.stride, 1),
            dilation: lift_extents(&window.dilation, 1),
            origin: lift_extents(&window.origin, 0),
            input: lift_extents(&x[2..], 1),
            output: lift_extents(&y[2..], 1),
        }
    }

    #[inline(always)]
    fn input_at(&self, d: usize, o: usize, k: usize) -> isize {
        (o * self.stride[d] + k * self.dilation[d]) as isize + self.origin[d]
    }

    fn inside(&self, id: isize, ih: isize) -> bool {
        (0..self.input[0] as isize).contains(&id) && (0..self.input[1] as isize).contains(&ih)
    }

    /// Position of input row `(id, ih)`, if it lies in the slab.
    fn line<T>(&self, x: &View<'_, T>, lead: [usize; 2], [id, ih]: [isize; 2]) -> Option<usize> {
        self.inside(id, ih)
            .then(|| at(x.offset(), x.strides(), lead, [id, ih, 0]))
    }

    /// The outputs of a row whose input column through kernel column `k` lies in `low .. high`.
    fn outputs(&self, k: usize, (low, high): (isize, isize)) -> core::ops::Range<usize> {
        let (stride, first) = (self.stride[2] as isize, self.input_at(2, 0, k));
        let until = |limit: isize| {
            (limit - first + stride - 1)
                .div_euclid(stride)
                .clamp(0, self.output[2] as isize)
        };
        let start = until(low) as usize;
        start..(until(high) as usize).max(start)
    }

    fn output_rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [depth, height, _] = self.output;
        (0..depth).flat_map(move |d| (0..height).map(move |h| (d, h)))
    }

    /// The number of kernel positions.
    fn positions(&self) -> usize {
        self.kernel.iter().product()
    }

    fn kernel_positions(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [kd, kh, kw] = self.kernel;
        (0..kd * kh * kw).map(move |k| [k / (kh * kw), k / kw % kh, k % kw])
    }
}

/// Divisors of an output row.
enum Divide {
    Counts([Vec<f64>; 3]),
    Fixed(f64),
}

impl Divide {
    fn new(divisor: Divisor<'_>, g: &Meeting) -> Self {
        match divisor {
            Divisor::Fixed(value) => Self::Fixed(value),
            Divisor::Counts(counts) => {
                let lead = 3usize.saturating_sub(counts.len());
                let lifted: [Vec<f64>; 3] = core::array::from_fn(|d| match d.checked_sub(lead) {
                    Some(d) => counts[d].iter().map(|c| *c as f64).collect(),
                    None => vec![1.0],
                });
                let fits = counts.len() <= 3 && (0..3).all(|d| lifted[d].len() == g.output[d]);
                assert!(
                    fits,
                    "avg_pool: counts {counts:?} for outputs {:?}",
                    g.output
                );
                Self::Counts(lifted)
            }
        }
    }

    fn apply<T: Real>(&self, [od, oh]: [usize; 2], row: &mut [T]) {
        match self {
            Self::Fixed(value) => row.iter_mut().for_each(|v| *v /= T::of(*value)),
            Self::Counts([d, h, w]) => {
                for (v, count) in row.iter_mut().zip(w) {
                    *v /= T::of(d[od] * h[oh] * count);
                }
            }
        }
    }
}

fn pairs<T>(view: &View<'_, T>) -> impl Iterator<Item = (usize, usize)> + use<T> {
    let (batch, channels) = (view.shape()[0], view.shape()[1]);
    (0..batch).flat_map(move |n| (0..channels).map(move |c| (n, c)))
}

#[inline(always)]
fn at(offset: usize, strides: &[isize], [n, c]: [usize; 2], i: [isize; 3]) -> usize {
    let lead = n as isize * strides[0] + c as isize * strides[1];
    offset.wrapping_add_signed(lead + i[0] * strides[2] + i[1] * strides[3] + i[2] * strides[4])
}

fn store<T: Copy>(out: &mut ViewMut<'_, T>, lead: [usize; 2], [d, h]: [usize; 2], row: &[T]) {
    let (to, step) = (
        at(
            out.offset(),
            out.strides(),
            lead,
            [d as isize, h as isize, 0],
        ),
        out.strides()[4],
    );
    let data = out.data_mut();
    for (i, v) in row.iter().enumerate() {
        data[to.wrapping_add_signed(i as isize * step)] = *v;
    }
}

/// Visits every output in row-major order: `([n, c], position in dy, index)`.
fn for_each_indexed<T>(
    dy: &View<'_, T>,
    index: &View<'_, i64>,
    mut visit: impl FnMut([usize; 2], usize, i64),
) {
    for (n, c) in pairs(dy) {
        let lead = |strides: &[isize]| n as isize * strides[0] + c as isize * strides[1];
        let start = [
            dy.offset().wrapping_add_signed(lead(dy.strides())),
            index.offset().wrapping_add_signed(lead(index.strides())),
        ];
        let steps = [&dy.strides()[2..], &index.strides()[2..]];
        super::view::for_each_row(&dy.shape()[2..], steps, start, |[p, q], run, [s, t]| {
            for i in 0..run as isize {
                visit(
                    [n, c],
                    p.wrapping_add_signed(i * s),
                    index.data()[q.wrapping_add_signed(i * t)],
                );
            }
        });
    }
}

fn check(op: &str, x: &[usize], y: &[usize], kernel: &[usize], window: &Taps) {
    let nd = window.stride.len();
    let fits = x.len() == nd + 2 && y.len() == nd + 2 && kernel.len() == nd && x[..2] == y[..2];
    assert!(fits, "{op}: input {x:?}, output {y:?}, kernel {kernel:?}");
}

fn check_indexed(op: &str, x: &[usize], y: &[usize], index: &[usize]) {
    let fits = (3..=5).contains(&x.len()) && x.len() == y.len() && x[..2] == y[..2] && index == y;
    assert!(fits, "{op}: input {x:?}, output {y:?}, indexes {index:?}");
}

//! Strided views of a slice: what every kernel reads and writes.

use smallvec::SmallVec;
use std::borrow::Cow;

pub use shard_spec::{Dims, Strides};

/// A read-only strided view: element `i` lives at `data[offset + Σ i[d] * strides[d]]`.
///
/// ```
/// use shard_kernels::View;
/// let data = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
/// let rows = View::contiguous(&data, &[2, 3]);
/// let columns = rows.permute(&[1, 0]);
/// assert_eq!(columns.to_vec(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
/// ```
#[derive(Clone, Debug)]
pub struct View<'a, T> {
    data: &'a [T],
    offset: usize,
    shape: Dims,
    strides: Strides,
}

/// A writable strided view; no two of its indexes may name one element.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    data: &'a mut [T],
    offset: usize,
    shape: Dims,
    strides: Strides,
}

impl<'a, T> View<'a, T> {
    /// A view of `data` with explicit geometry.
    ///
    /// # Panics
    /// When `shape` and `strides` differ in length or some index lies outside `data`.
    pub fn new(data: &'a [T], offset: usize, shape: &[usize], strides: &[isize]) -> Self {
        check_bounds(data.len(), offset, shape, strides);
        Self {
            data,
            offset,
            shape: short(shape),
            strides: short(strides),
        }
    }

    /// A row-major view of all of `data`.
    ///
    /// # Panics
    /// When `data` does not hold exactly `shape`.
    pub fn contiguous(data: &'a [T], shape: &[usize]) -> Self {
        let count: usize = shape.iter().product();
        assert!(
            data.len() == count,
            "contiguous view: shape {shape:?} needs {count} elements, got {}",
            data.len()
        );
        Self {
            data,
            offset: 0,
            shape: Dims::from_slice(shape),
            strides: row_major(shape),
        }
    }

    /// All of `data` as a view of one dim.
    #[inline]
    pub fn line(data: &'a [T]) -> Self {
        Self {
            data,
            offset: 0,
            shape: short(&[data.len()]),
            strides: short(&[1]),
        }
    }

    /// The slice behind the view.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// Position of element `[0, 0, ...]` in [`View::data`].
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Extents per dim.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element steps per dim.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        is_row_major(&self.shape, &self.strides)
    }

    /// The elements as one slice, where they lie in row-major order without gaps.
    pub fn as_slice(&self) -> Option<&'a [T]> {
        if self.is_empty() {
            return Some(&[]);
        }
        self.is_contiguous()
            .then(|| &self.data[self.offset..self.offset + self.len()])
    }

    /// What an index of the first dim names.
    pub(crate) fn slab(&self, index: usize) -> Self {
        Self {
            data: self.data,
            offset: (self.offset).wrapping_add_signed(index as isize * self.strides[0]),
            shape: short(&self.shape[1..]),
            strides: short(&self.strides[1..]),
        }
    }

    /// The elements of a view of one dim, if they lie side by side.
    #[inline]
    pub(crate) fn as_line(&self) -> Option<&'a [T]> {
        match (self.shape(), self.strides()) {
            (&[n], &[1]) => Some(&self.data[self.offset..][..n]),
            _ => None,
        }
    }

    /// The same elements with dim `d` of the result taken from dim `order[d]`.
    ///
    /// # Panics
    /// When `order` is not a permutation of the dims.
    pub fn permute(&self, order: &[usize]) -> Self {
        check_permutation(order, self.ndim());
        Self {
            data: self.data,
            offset: self.offset,
            shape: order.iter().map(|&d| self.shape[d]).collect(),
            strides: order.iter().map(|&d| self.strides[d]).collect(),
        }
    }

    /// The box `start .. start + extent` of the view.
    ///
    /// # Panics
    /// When the box leaves the view.
    pub fn sub_box(&self, start: &[usize], extent: &[usize]) -> Self {
        let offset = sub_offset(self.offset, &self.shape, &self.strides, start, extent);
        Self {
            data: self.data,
            offset,
            shape: Dims::from_slice(extent),
            strides: self.strides.clone(),
        }
    }

    /// As [`broadcast_to`](Self::broadcast_to): the view itself where it has the shape.
    pub fn shaped(&self, shape: &[usize]) -> Option<Cow<'_, Self>>
    where
        T: Clone,
    {
        match same_shape(self.shape(), shape) {
            true => Some(Cow::Borrowed(self)),
            false => self.broadcast_to(shape).map(Cow::Owned),
        }
    }

    /// The view repeated to `shape` by the usual broadcasting: aligned at the last dim, extent 1 or missing repeats.
    /// `None` where the shapes do not broadcast.
    pub fn broadcast_to(&self, shape: &[usize]) -> Option<Self> {
        if same_shape(self.shape(), shape) {
            let strides = Strides::from_slice(&self.strides);
            return Some(Self {
                data: self.data,
                offset: self.offset,
                shape: Dims::from_slice(shape),
                strides,
            });
        }
        let lead = shape.len().checked_sub(self.ndim())?;
        let mut strides: Strides = SmallVec::from_elem(0, lead);
        for (d, &extent) in self.shape.iter().enumerate() {
            match (extent, shape[lead + d]) {
                (a, b) if a == b => strides.push(self.strides[d]),
                (1, _) => strides.push(0),
                _ => return None,
            }
        }
        Some(Self {
            data: self.data,
            offset: self.offset,
            shape: Dims::from_slice(shape),
            strides,
        })
    }
}

impl<T: Copy> View<'_, T> {
    /// The element at `index`.
    ///
    /// # Panics
    /// When `index` lies outside the view.
    pub fn get(&self, index: &[usize]) -> T {
        self.data[position(self.offset, &self.shape, &self.strides, index)]
    }

    /// The elements in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        let mut out = Vec::with_capacity(self.len());
        for_each_row(
            &self.shape,
            [&self.strides],
            [self.offset],
            |[at], n, [step]| {
                if step == 1 {
                    out.extend_from_slice(&self.data[at..at + n]);
                } else {
                    out.extend(
                        (0..n).map(|i| self.data[at.wrapping_add_signed(i as isize * step)]),
                    );
                }
            },
        );
        out
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// A writable view of `data` with explicit geometry.
    ///
    /// # Panics
    /// When `shape` and `strides` differ in length, some index lies outside `data`, or a stride of 0 would make
    /// several indexes name one element.
    pub fn new(data: &'a mut [T], offset: usize, shape: &[usize], strides: &[isize]) -> Self {
        check_bounds(data.len(), offset, shape, strides);
        let repeats = shape.iter().zip(strides).any(|(&n, &s)| n > 1 && s == 0);
        assert!(
            !repeats,
            "writable view: strides {strides:?} repeat elements of shape {shape:?}"
        );
        Self {
            data,
            offset,
            shape: short(shape),
            strides: short(strides),
        }
    }

    /// A row-major writable view of all of `data`.
    ///
    /// # Panics
    /// When `data` does not hold exactly `shape`.
    pub fn contiguous(data: &'a mut [T], shape: &[usize]) -> Self {
        let count: usize = shape.iter().product();
        assert!(
            data.len() == count,
            "contiguous view: shape {shape:?} needs {count} elements, got {}",
            data.len()
        );
        Self {
            data,
            offset: 0,
            shape: Dims::from_slice(shape),
            strides: row_major(shape),
        }
    }

    /// All of `data` as a writable view of one dim.
    #[inline]
    pub fn line(data: &'a mut [T]) -> Self {
        Self {
            shape: short(&[data.len()]),
            strides: short(&[1]),
            data,
            offset: 0,
        }
    }

    /// The slice behind the view.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.data
    }

    /// Position of element `[0, 0, ...]` in the slice behind the view.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Extents per dim.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element steps per dim.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        is_row_major(&self.shape, &self.strides)
    }

    /// As [`View::as_line`].
    #[inline]
    pub(crate) fn as_line_mut(&mut self) -> Option<&mut [T]> {
        match (&self.shape[..], &self.strides[..]) {
            (&[n], &[1]) => Some(&mut self.data[self.offset..][..n]),
            _ => None,
        }
    }

    /// As [`View::as_slice`].
    pub(crate) fn as_slice_mut(&mut self) -> Option<&mut [T]> {
        if self.is_empty() {
            return Some(&mut []);
        }
        let len = self.shape.iter().product();
        self.is_contiguous()
            .then(|| &mut self.data[self.offset..][..len])
    }

    /// Shape, strides and offset, and the slice behind the view.
    pub(crate) fn parts(&mut self) -> (&[usize], &[isize], usize, &mut [T]) {
        (&self.shape, &self.strides, self.offset, self.data)
    }

    /// Copies of shape, strides and offset, for loops that need the slice at the same time.
    pub(crate) fn geometry(&self) -> (Dims, Strides, usize) {
        (short(&self.shape), short(&self.strides), self.offset)
    }

    /// This view for reading.
    pub fn as_view(&self) -> View<'_, T> {
        View {
            data: self.data,
            offset: self.offset,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
        }
    }

    /// This view again, for a shorter lifetime.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            data: self.data,
            offset: self.offset,
            shape: self.shape.clone(),
            strides: self.strides.clone(),
        }
    }

    /// The same elements with dim `d` of the result taken from dim `order[d]`.
    ///
    /// # Panics
    /// When `order` is not a permutation of the dims.
    pub fn permute(self, order: &[usize]) -> Self {
        check_permutation(order, self.ndim());
        let shape = order.iter().map(|&d| self.shape[d]).collect();
        let strides = order.iter().map(|&d| self.strides[d]).collect();
        Self {
            data: self.data,
            offset: self.offset,
            shape,
            strides,
        }
    }

    /// The box `start .. start + extent` of the view.
    ///
    /// # Panics
    /// When the box leaves the view.
    pub fn sub_box(self, start: &[usize], extent: &[usize]) -> Self {
        let offset = sub_offset(self.offset, &self.shape, &self.strides, start, extent);
        Self {
            data: self.data,
            offset,
            shape: Dims::from_slice(extent),
            strides: self.strides,
        }
    }

    /// Every `step[d]`-th element of each dim from `start[d]` on, `extent[d]` of them.
    ///
    /// # Panics
    /// When a step is 0 or an element leaves the view.
    pub fn stepped(self, start: &[usize], step: &[usize], extent: &[usize]) -> Self {
        assert!(
            step.iter().all(|&s| s > 0),
            "stepped view: steps {step:?} must be positive"
        );
        let span: Dims = extent
            .iter()
            .zip(step)
            .map(|(&n, &s)| if n == 0 { 0 } else { (n - 1) * s + 1 })
            .collect();
        let offset = sub_offset(self.offset, &self.shape, &self.strides, start, &span);
        let strides = self
            .strides
            .iter()
            .zip(step)
            .map(|(&stride, &s)| stride * s as isize)
            .collect();
        Self {
            data: self.data,
            offset,
            shape: Dims::from_slice(extent),
            strides,
        }
    }
}

impl<T> ViewMut<'_, T> {
    /// Writes the element at `index`.
    ///
    /// It finds the place of each element anew: loops where that would be felt write runs of [`data_mut`](Self::data_mut), which
    /// [`for_each_row`] finds.
    ///
    /// ```
    /// use shard_kernels::ViewMut;
    /// let mut data = [0; 6];
    /// ViewMut::contiguous(&mut data, &[2, 3]).permute(&[1, 0]).set(&[2, 0], 7);
    /// assert_eq!(data, [0, 0, 7, 0, 0, 0]);
    /// ```
    ///
    /// # Panics
    /// When `index` lies outside the view.
    pub fn set(&mut self, index: &[usize], value: T) {
        let at = position(self.offset, &self.shape, &self.strides, index);
        self.data[at] = value;
    }
}

/// Row-major strides of `shape`.
pub fn row_major(shape: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, shape.len());
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d].max(1) as isize;
    }
    strides
}

/// Visits the innermost runs of `N` operands over one `shape`, in row-major order.
///
/// `visit(positions, n, steps)` gets, per operand, where the run starts and the step between its `n` elements. Outer dims that
/// continue a run for every operand are joined to it, so contiguous operands are visited once. Nothing is visited
/// when an extent is zero; a 0-D shape is one run of one element.
///
/// ```
/// use shard_kernels::View;
/// use shard_kernels::view::for_each_row;
/// let numbers: Vec<i32> = (0..24).collect();
/// let whole = View::contiguous(&numbers, &[2, 3, 4]);
/// let inner = whole.sub_box(&[0, 1, 1], &[2, 2, 3]);
/// let mut runs = Vec::new();
/// for_each_row(inner.shape(), [inner.strides()], [inner.offset()], |[at], n, [step]| {
///     runs.push((at, n, step));
/// });
/// assert_eq!(runs, [(5, 3, 1), (9, 3, 1), (17, 3, 1), (21, 3, 1)]);
/// ```
pub fn for_each_row<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    offsets: [usize; N],
    mut visit: impl FnMut([usize; N], usize, [isize; N]),
) {
    rows(shape, strides, offsets, &mut visit);
}

/// As [`for_each_row`], but compiled once for each number of operands rather than once for each caller.
fn rows<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
    offsets: [usize; N],
    visit: &mut dyn FnMut([usize; N], usize, [isize; N]),
) {
    // Most operands are one run of elements side by side.
    if let [n] = *shape {
        let steps = match n {
            1 => [1; N],
            _ => core::array::from_fn(|k| strides[k][0]),
        };
        if n > 0 {
            visit(offsets, n, steps);
        }
        return;
    }
    if shape.contains(&0) {
        return;
    }
    if strides.iter().all(|strides| is_row_major(shape, strides)) {
        visit(offsets, shape.iter().product(), [1; N]);
        return;
    }
    let (shape, strides) = join_dims(shape, strides);
    for_each_joined(&shape, &strides, offsets, visit);
}

/// As [`for_each_row`], of dims that [`join_dims`] has joined.
pub(crate) fn for_each_joined<const N: usize>(
    shape: &[usize],
    strides: &[[isize; N]],
    offsets: [usize; N],
    visit: &mut dyn FnMut([usize; N], usize, [isize; N]),
) {
    let Some((&n, outer)) = shape.split_last() else {
        return visit(offsets, 1, [1; N]);
    };
    let last = outer.len();
    let steps = strides[last];
    let mut index: Dims = SmallVec::from_elem(0, outer.len());
    let mut at = offsets;
    loop {
        visit(at, n, steps);
        // Odometer: advance the last outer dim, carrying leftwards.
        let mut d = outer.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            if index[d] < outer[d] {
                for k in 0..N {
                    at[k] = at[k].wrapping_add_signed(strides[d][k]);
                }
                break;
            }
            for k in 0..N {
                at[k] = at[k].wrapping_add_signed(-strides[d][k] * (index[d] as isize - 1));
            }
            index[d] = 0;
        }
    }
}

/// Drops dims of extent 1 and joins neighbouring dims that every operand walks with one step: the extents that are left, and each operand's step
/// along each of them.
///
/// ```
/// use shard_kernels::view::join_dims;
/// // A matrix without gaps, and a number for each of its four rows; the rows are two by two.
/// let (shape, steps) = join_dims(&[2, 2, 1, 3], [&[6, 3, 3, 1], &[2, 1, 1, 0]]);
/// assert_eq!(shape[..], [4, 3]);
/// assert_eq!(steps[..], [[3, 1], [1, 0]]);
/// ```
pub fn join_dims<const N: usize>(
    shape: &[usize],
    strides: [&[isize]; N],
) -> (Dims, SmallVec<[[isize; N]; 6]>) {
    let mut dims = Dims::new();
    let mut steps: SmallVec<[[isize; N]; 6]> = SmallVec::new();
    for (d, &extent) in shape.iter().enumerate() {
        if extent == 1 {
            continue;
        }
        let step: [isize; N] = core::array::from_fn(|k| strides[k][d]);
        if let (Some(outer), Some(outer_step)) = (dims.last_mut(), steps.last_mut())
            && (0..N).all(|k| outer_step[k] == step[k] * extent as isize)
        {
            *outer *= extent;
            *outer_step = step;
        } else {
            dims.push(extent);
            steps.push(step);
        }
    }
    (dims, steps)
}

/// The list, of few entries: a call of `memcpy` would cost more than they.
#[inline]
fn short<T: Copy + Default>(list: &[T]) -> SmallVec<[T; 6]> {
    let none = T::default();
    match *list {
        [a] => SmallVec::from_buf_and_len([a, none, none, none, none, none], 1),
        [a, b] => SmallVec::from_buf_and_len([a, b, none, none, none, none], 2),
        [a, b, c] => SmallVec::from_buf_and_len([a, b, c, none, none, none], 3),
        [a, b, c, d] => SmallVec::from_buf_and_len([a, b, c, d, none, none], 4),
        _ => SmallVec::from_slice(list),
    }
}

/// Whether two lists of few entries are equal: a call of `memcmp` would cost more than they.
#[inline]
pub(crate) fn same_shape(a: &[usize], b: &[usize]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

/// Whether elements lie in row-major order without gaps.
pub(crate) fn is_row_major(shape: &[usize], strides: &[isize]) -> bool {
    let mut expected = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&n, &s)| {
            let fits = n == 1 || s == expected;
            expected *= n as isize;
            fits
        })
}

#[inline]
fn check_bounds(len: usize, offset: usize, shape: &[usize], strides: &[isize]) {
    // Most views are of one run of elements.
    match (shape, strides) {
        (&[n], &[1]) if offset.checked_add(n).is_some_and(|end| end <= len) => {}
        _ => check_each_dim(len, offset, shape, strides),
    }
}

fn check_each_dim(len: usize, offset: usize, shape: &[usize], strides: &[isize]) {
    assert!(
        shape.len() == strides.len(),
        "view: {} extents but {} strides",
        shape.len(),
        strides.len()
    );
    if shape.contains(&0) {
        return;
    }
    let reach = || {
        let mut reach = (isize::try_from(offset).ok()?, 0_isize);
        for (&n, &s) in shape.iter().zip(strides) {
            let by = isize::try_from(n - 1).ok()?.checked_mul(s)?;
            match by < 0 {
                true => reach.0 = reach.0.checked_add(by)?,
                false => reach.1 = reach.1.checked_add(by)?,
            }
        }
        Some((reach.0, reach.1.checked_add_unsigned(offset)?))
    };
    match reach() {
        Some((low, high)) if low >= 0 && high.unsigned_abs() < len => {}
        _ => out_of_bounds(len, offset, shape, strides),
    }
}

#[cold]
fn out_of_bounds(len: usize, offset: usize, shape: &[usize], strides: &[isize]) -> ! {
    let (mut low, mut high) = (offset as i128, offset as i128);
    for (&n, &s) in shape.iter().zip(strides) {
        let by = (n as i128 - 1) * s as i128;
        match by < 0 {
            true => low += by,
            false => high += by,
        }
    }
    panic!(
        "view: shape {shape:?}, strides {strides:?}, offset {offset} reach {low}..={high}, data holds {len}"
    );
}

fn check_permutation(order: &[usize], ndim: usize) {
    let mut seen: SmallVec<[bool; 6]> = SmallVec::from_elem(false, ndim);
    let valid = order.len() == ndim
        && order
            .iter()
            .all(|&d| d < ndim && !core::mem::replace(&mut seen[d], true));
    assert!(valid, "permute: {order:?} is no permutation of {ndim} dims");
}

fn position(offset: usize, shape: &[usize], strides: &[isize], index: &[usize]) -> usize {
    let inside = index.len() == shape.len() && index.iter().zip(shape).all(|(i, n)| i < n);
    assert!(inside, "index {index:?} lies outside shape {shape:?}");
    index.iter().zip(strides).fold(offset, |at, (&i, &s)| {
        at.wrapping_add_signed(i as isize * s)
    })
}

fn sub_offset(
    offset: usize,
    shape: &[usize],
    strides: &[isize],
    start: &[usize],
    extent: &[usize],
) -> usize {
    let inside = start.len() == shape.len()
        && extent.len() == shape.len()
        && (0..shape.len()).all(|d| {
            start[d]
                .checked_add(extent[d])
                .is_some_and(|end| end <= shape[d])
        });
    assert!(
        inside,
        "box at {start:?} of extent {extent:?} leaves shape {shape:?}"
    );
    if extent.contains(&0) {
        return offset;
    }
    start.iter().zip(strides).fold(offset, |at, (&i, &s)| {
        at.wrapping_add_signed(i as isize * s)
    })
}

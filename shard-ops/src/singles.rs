//! Operands of 16 bits for kernels of `f32` that go element by element: part by part, in copies that the cache nearest to a core holds.
//!
//! What other kernels get are copies that the engine makes of whole blocks ([`wide`](crate::wide)), which are written to a cache further away
//! and read from there again.

use crate::{HostCall, OperandBox};
use shard_comm::{DType, Strided, kernel};
use shard_kernels::view::join_dims;
use shard_kernels::{View, ViewMut};
use shard_spec::{Dims, Strides, row_major_strides};
use std::cell::Cell;

/// Elements of a part at most. Twice as many took 1.5 times as long to add (Zen 5): what comes next from memory is asked for in order only
/// where copies do not take long between.
const PART: usize = 1024;

/// Operands of a map at most, and its output, which stands behind them and in the place of those that it has not.
const ALL: usize = 3;

thread_local! {
    /// Memory for copies, which would be allocated with each call otherwise.
    static KEPT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl HostCall<'_, '_> {
    /// Whether the first operand is stored in 16 bits: then the kernel goes [by singles](Self::by_singles).
    pub(crate) fn is_of_halves(&self) -> bool {
        self.inputs[0].dtype().is_half()
    }

    /// Calls `kernel` with parts of the first `N` operands and of the first output in `f32`, all in the shape of that part. What it writes
    /// is rounded where it belongs.
    pub(crate) fn by_singles<const N: usize>(
        &mut self,
        mut kernel: impl FnMut([View<'_, f32>; N], ViewMut<'_, f32>),
    ) {
        const { assert!(N < ALL, "an operand more than maps have") };
        let (inputs, output) = (&self.cx.inputs, &self.cx.outputs[0]);
        if output.shape.contains(&0) {
            return;
        }
        let (shape, steps) = match self.cx.line {
            Some(len) => join_dims(&[len], [&[1]; ALL]),
            None => {
                let steps: [Strides; N] =
                    std::array::from_fn(|i| steps_in(&inputs[i], &output.shape));
                let of = |i: usize| steps.get(i).unwrap_or(&output.strides).as_slice();
                join_dims(&output.shape, std::array::from_fn::<_, ALL, _>(of))
            }
        };
        let of = |i: usize| steps.iter().map(|steps| steps[i]).collect::<Strides>();
        let parts = Parts::of(&shape);
        let mut operands: [Part; N] =
            std::array::from_fn(|i| Part::of(inputs[i].offset, of(i), &parts));
        let mut to = Part::of(output.offset, of(ALL - 1), &parts);
        let most = parts.elements();
        let mut kept = KEPT.take();
        if kept.len() < (N + 1) * most {
            kept.resize((N + 1) * most, 0.0);
        }
        let (made, copies) = kept.split_at_mut(most);
        parts.for_each(|index, rows| {
            for (i, copy) in copies.chunks_exact_mut(most).take(N).enumerate() {
                let from = &self.inputs[i];
                if operands[i].goes_to(index, rows) {
                    let copy = bytemuck::cast_slice_mut(copy);
                    operands[i].convert((from.dtype(), from.bytes()), copy);
                }
            }
            let views = std::array::from_fn(|i| operands[i].view(&copies[i * most..][..most]));
            to.goes_to(index, rows);
            let elements = &mut made[..rows * parts.inner];
            kernel(views, ViewMut::contiguous(elements, &to.at.shape));
            let (dtype, output) = (self.outputs[0].dtype(), self.outputs[0].bytes_mut());
            to.round(bytemuck::cast_slice(elements), (dtype, output));
        });
        KEPT.set(kept);
    }
}

/// How a shape that has elements is divided: some last dims are whole in each part, the one before is cut, and those before that have one index.
struct Parts<'a> {
    shape: &'a [usize],
    /// The dim that is cut, if it is not all in one part.
    cut: Option<usize>,
    /// Its indices in a part.
    rows: usize,
    /// Elements behind each of them.
    inner: usize,
}

impl<'a> Parts<'a> {
    fn of(shape: &'a [usize]) -> Self {
        let (mut whole, mut inner) = (shape.len(), 1);
        while whole > 0 && inner * shape[whole - 1] <= PART {
            whole -= 1;
            inner *= shape[whole];
        }
        let cut = whole.checked_sub(1);
        let rows = match cut {
            Some(cut) => (PART / inner).min(shape[cut]),
            None => 1,
        };
        Self {
            shape,
            cut,
            rows,
            inner,
        }
    }

    fn elements(&self) -> usize {
        self.rows * self.inner
    }

    /// Visits parts in row-major order: where each begins, and how many indices of the dim that is cut it has.
    fn for_each(&self, mut visit: impl FnMut(&[usize], usize)) {
        let mut index = Dims::from_elem(0, self.shape.len());
        let Some(cut) = self.cut else {
            return visit(&index, 1);
        };
        loop {
            for first in (0..self.shape[cut]).step_by(self.rows) {
                index[cut] = first;
                visit(&index, self.rows.min(self.shape[cut] - first));
            }
            index[cut] = 0;
            let Some(d) = (0..cut).rev().find(|d| index[*d] + 1 < self.shape[*d]) else {
                return;
            };
            index[d] += 1;
            index[d + 1..].fill(0);
        }
    }
}

/// The part of an operand that is computed, and its copy.
struct Part {
    /// The first element of all, and how far it is to the next along each dim of the result.
    first: usize,
    steps: Strides,
    /// The dim of the part that is cut, of as many as a part has.
    first_dim: usize,
    is_cut: bool,
    /// The part, in the result's shape.
    at: Strided,
    /// The part without repetitions, and whether there are no gaps in it.
    own: Strided,
    is_line: bool,
    /// Where it lies in the copy.
    copied: Strides,
    is_new: bool,
}

impl Part {
    fn of(first: usize, steps: Strides, parts: &Parts<'_>) -> Self {
        let first_dim = parts.cut.unwrap_or(0);
        let mut extents = Dims::from_slice(&parts.shape[first_dim..]);
        if parts.cut.is_some() {
            extents[0] = parts.rows;
        }
        let own = extents.iter().zip(&steps[first_dim..]);
        let own: Dims = own
            .map(|(n, step)| if *step == 0 { 1 } else { *n })
            .collect();
        let mut copied = row_major_strides(&own);
        let mut dims = steps[first_dim..].iter().zip(&copied).zip(&own);
        let is_line = dims.all(|((there, here), n)| *n == 1 || there == here);
        for (copied, step) in copied.iter_mut().zip(&steps[first_dim..]) {
            *copied = if *step == 0 { 0 } else { *copied };
        }
        let strides = Strides::from_slice(&steps[first_dim..]);
        Self {
            first,
            first_dim,
            is_cut: parts.cut.is_some(),
            at: Strided::new(first, extents, strides.clone()),
            own: Strided::new(first, own, strides),
            steps,
            is_line,
            copied,
            is_new: true,
        }
    }

    /// Sets where the part begins; whether it is another one then.
    fn goes_to(&mut self, index: &[usize], rows: usize) -> bool {
        let steps = index.iter().zip(&self.steps);
        let moved: isize = steps.map(|(i, step)| *i as isize * step).sum();
        let offset = self.first.wrapping_add_signed(moved);
        let mut is_other = std::mem::take(&mut self.is_new) || offset != self.at.offset;
        (self.at.offset, self.own.offset) = (offset, offset);
        if self.is_cut {
            is_other |= self.at.shape[0] != rows;
            self.at.shape[0] = rows;
            if self.steps[self.first_dim] != 0 {
                self.own.shape[0] = rows;
            }
        }
        is_other
    }

    /// Copies the part.
    fn convert(&self, (dtype, bytes): (DType, &[u8]), copy: &mut [u8]) {
        let len = self.own.numel();
        match self.is_line {
            true => {
                kernel::convert_run(
                    (dtype, bytes),
                    (DType::F32, copy),
                    [self.own.offset, 0],
                    len,
                );
            }
            false => {
                let line = Strided::contiguous(&self.own.shape);
                kernel::copy(dtype, bytes, &self.own, DType::F32, copy, &line);
            }
        }
    }

    /// Writes the part, of which nothing is repeated.
    fn round(&self, made: &[u8], (dtype, bytes): (DType, &mut [u8])) {
        let len = self.at.numel();
        match self.is_line {
            true => {
                kernel::convert_run((DType::F32, made), (dtype, bytes), [0, self.at.offset], len);
            }
            false => {
                let line = Strided::contiguous(&self.at.shape);
                kernel::copy(DType::F32, made, &line, dtype, bytes, &self.at);
            }
        }
    }

    fn view<'v>(&self, copy: &'v [f32]) -> View<'v, f32> {
        View::new(copy, 0, &self.at.shape, &self.copied)
    }
}

/// How far an operand's elements lie from each other along the dims of a shape to which it is broadcast.
fn steps_in(at: &OperandBox, shape: &[usize]) -> Strides {
    let missing = shape.len() - at.shape.len();
    let step = |d: usize| match d.checked_sub(missing) {
        Some(own) if at.shape[own] == shape[d] => at.strides[own],
        _ => 0,
    };
    (0..shape.len()).map(step).collect()
}

//! Products of many matrices, as few products as they can be.

use shard_comm::Element;
use shard_kernels::gemm::{Mat, MatMut, each_product};
use shard_kernels::{View, ViewMut};
use smallvec::SmallVec;

/// A kernel for products of matrices of these extents, `[m, n, k]`: so many, those of each so far behind those of the one before. Whether they
/// are added to what is there comes last.
pub(in crate::families) trait Multiply<E, T>:
    Fn([usize; 3], Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>, (usize, [isize; 3]), bool)
{
}

impl<E, T, F> Multiply<E, T> for F where
    F: Fn([usize; 3], Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>, (usize, [isize; 3]), bool)
{
}

/// One product after the other, by a kernel for one.
pub(in crate::families) fn one_by_one<E: Copy, T>(
    multiply: impl Fn(usize, usize, usize, Mat<'_, E>, Mat<'_, E>, MatMut<'_, T>, bool),
) -> impl Multiply<E, T> {
    move |[m, n, k]: [usize; 3],
          a: Mat<'_, E>,
          b: Mat<'_, E>,
          mut c: MatMut<'_, T>,
          many: (usize, [isize; 3]),
          adds: bool| {
        each_product(a, b, &mut c, many, |a, b, c| {
            multiply(m, n, k, a, b, c, adds);
        });
    }
}

/// A dim over whose indices products are made, with the strides of all three.
#[derive(Clone, Copy)]
struct Step {
    extent: usize,
    a: isize,
    b: isize,
    y: isize,
    /// Whether the products are added up.
    sums: bool,
}

/// The matrices of one product: `y` has `rows x columns`, and `inner` are summed over. Steps are by row and by column.
#[derive(Clone, Copy)]
struct One {
    rows: usize,
    columns: usize,
    inner: usize,
    a: (isize, isize),
    b: (isize, isize),
    y: (isize, isize),
}

/// `y = a b` for every batch of `y`, over which the leading dims of `a` and `b` broadcast; over the first `sums` of them, which `y`
/// lacks, the products are added up. Matrices are multiplied by the kernel that is given, such as [`gemm_many`](shard_kernels::gemm::gemm_many).
///
/// Batches that lie one after the other are rows of one product if they share the right operand, columns if they share the left one, and
/// a part of the contraction if they are summed: `x w` of `x` (8, 64, 256) is one product of 512 rows, and so is the gradient of `w`.
pub(in crate::families) fn batched<E: Element, T: Element>(
    a: &View<'_, E>,
    b: &View<'_, E>,
    sums: usize,
    y: &mut ViewMut<'_, T>,
    multiply: impl Multiply<E, T>,
) {
    let tail = |strides: &[isize]| (strides[strides.len() - 2], strides[strides.len() - 1]);
    let mut one = One {
        rows: y.shape()[y.ndim() - 2],
        columns: y.shape()[y.ndim() - 1],
        inner: a.shape()[a.ndim() - 1],
        a: tail(a.strides()),
        b: tail(b.strides()),
        y: tail(y.strides()),
    };
    let steps = merged(steps(a, b, sums, y), &mut one);
    let (mut base, summed): (SmallVec<[Step; 4]>, SmallVec<[Step; 4]>) =
        steps.into_iter().partition(|step| !step.sums);
    // Of those that are not added up the innermost are left to the kernel.
    let innermost = if summed.is_empty() { base.pop() } else { None };
    let many = innermost.map_or((1, [0; 3]), |step| (step.extent, [step.a, step.b, step.y]));
    let starts = [a.offset(), b.offset(), y.offset()].map(|at| at as isize);
    each(starts, &base, &mut |starts| {
        let mut adds = false;
        each(starts, &summed, &mut |at| {
            let [at_a, at_b, at_y] = at.map(|at| at as usize);
            let matrix = |data, offset, (row_step, col_step)| Mat {
                data,
                offset,
                row_step,
                col_step,
            };
            let to = MatMut {
                data: y.data_mut(),
                offset: at_y,
                row_step: one.y.0,
                col_step: one.y.1,
            };
            let (left, right) = (matrix(a.data(), at_a, one.a), matrix(b.data(), at_b, one.b));
            let adds = std::mem::replace(&mut adds, true);
            let extent = [one.rows, one.columns, one.inner];
            multiply(extent, left, right, to, many, adds);
        });
    });
}

/// Visits where the matrices of each batch begin, if those of the first begin here.
fn each([mut a, mut b, mut y]: [isize; 3], steps: &[Step], visit: &mut impl FnMut([isize; 3])) {
    let Some((step, inner)) = steps.split_first() else {
        return visit([a, b, y]);
    };
    for _ in 0..step.extent {
        each([a, b, y], inner, visit);
        (a, b, y) = (a + step.a, b + step.b, y + step.y);
    }
}

/// The dims of batches, outermost first.
fn steps<E, T>(
    a: &View<'_, E>,
    b: &View<'_, E>,
    sums: usize,
    y: &ViewMut<'_, T>,
) -> SmallVec<[Step; 4]> {
    let count = sums + y.ndim() - 2;
    let of = |shape: &[usize], strides: &[isize], d: usize| -> (usize, isize) {
        match (d + shape.len()).checked_sub(count + 2) {
            // Broadcast dims have stride 0.
            None => (1, 0),
            Some(d) if shape[d] == 1 => (1, 0),
            Some(d) => (shape[d], strides[d]),
        }
    };
    (0..count)
        .map(|d| {
            let (n, a) = of(a.shape(), a.strides(), d);
            let (m, b) = of(b.shape(), b.strides(), d);
            let (extent, y) = match d.checked_sub(sums) {
                Some(d) => (y.shape()[d], y.strides()[d]),
                None => (if n == 1 { m } else { n }, 0),
            };
            let sums = d < sums;
            Step {
                extent,
                a,
                b,
                y,
                sums,
            }
        })
        .filter(|step| step.extent != 1)
        .collect()
}

/// The dims that are left once others are rows, columns and contraction of one product.
fn merged(mut steps: SmallVec<[Step; 4]>, one: &mut One) -> SmallVec<[Step; 4]> {
    // A sum of nothing is 0.
    if steps.iter().any(|step| step.sums && step.extent == 0) {
        one.inner = 0;
        steps.retain(|step| !step.sums);
    }
    // Those further in first, until none is taken.
    while let Some(at) = steps.iter().rposition(|step| one.take(step)) {
        steps.remove(at);
    }
    steps
}

impl One {
    /// Makes a dim rows, columns or a part of the contraction, if its matrices lie one after the other.
    fn take(&mut self, step: &Step) -> bool {
        let follows =
            |by: isize, extent: usize, own: isize| extent == 1 || by == own * extent as isize;
        let first = |by: isize, extent: usize, own: isize| if extent == 1 { by } else { own };
        let (m, n, k) = (self.rows, self.columns, self.inner);
        if step.sums {
            if !(follows(step.a, k, self.a.1) && follows(step.b, k, self.b.0)) {
                return false;
            }
            self.a.1 = first(step.a, k, self.a.1);
            self.b.0 = first(step.b, k, self.b.0);
            self.inner = k * step.extent;
        } else if step.b == 0 && follows(step.a, m, self.a.0) && follows(step.y, m, self.y.0) {
            self.a.0 = first(step.a, m, self.a.0);
            self.y.0 = first(step.y, m, self.y.0);
            self.rows = m * step.extent;
        } else if step.a == 0 && follows(step.b, n, self.b.1) && follows(step.y, n, self.y.1) {
            self.b.1 = first(step.b, n, self.b.1);
            self.y.1 = first(step.y, n, self.y.1);
            self.columns = n * step.extent;
        } else {
            return false;
        }
        true
    }
}

//! Transforms along several dims, part by part: what one pass writes, the next finds in a cache.

use super::{Pass, Planned, Work, transform_here};
use crate::copy::copy;
use crate::{View, ViewMut};

/// How many bytes a part has between two passes, where a part can be so small: of two of them, and what is read and written, a
/// core's second cache holds all.
const PART: usize = 128 << 10;

/// How many bytes a part has at most that is copied to where it is transformed, or from there.
const STAGED: usize = 512 << 10;

/// How many elements of the last dim are taken together, at least, where it is not transformed: so many share a cache line.
const TOGETHER: usize = 16;

pub(super) fn transform_all_here<T: Planned>(
    passes: &[Pass],
    x: &View<'_, T>,
    out: &mut ViewMut<'_, T>,
) {
    let (Some(first), Some(last)) = (passes.first(), passes.last()) else {
        return copy(x, out);
    };
    let parts = Parts::of::<T>(passes, x.shape());
    let is_small = parts.most() * size_of::<T>() <= STAGED;
    // Lines with steps are read and written in the order of memory, by way of a cache.
    let reads = is_small && !are_runs(x.strides(), first.dim, first.kind.reads_complex());
    let writes = is_small && !are_runs(out.strides(), last.dim, last.kind.writes_complex());
    if let (&[one], false, false) = (passes, reads, writes) {
        return transform_here(one.kind, one.dim, one.n, one.scale, x, out);
    }
    let mut work: Vec<Work<T>> = Vec::with_capacity(passes.len());
    for (i, pass) in passes.iter().enumerate() {
        let lines = parts.most_lines(i, pass);
        work.push(Work::new(pass.kind, pass.n, pass.scale, lines));
    }
    let end = passes.len();
    // One is written first; both take turns where one of them is read at the same time.
    let both = reads || end + usize::from(writes) > 2;
    let most = parts.most();
    let mut between = [if both { most } else { 0 }, most].map(|n| vec![T::zero(); n]);
    parts.each(|start| {
        let x = x.sub_box(&parts.origin(0, start), &parts.extents(0, start));
        let (origin, extents) = (parts.origin(end, start), parts.extents(end, start));
        let mut out = out.reborrow().sub_box(&origin, &extents);
        if reads {
            let to = &mut between[0][..x.len()];
            copy(&x, &mut ViewMut::contiguous(to, x.shape()));
        }
        for (i, (pass, work)) in passes.iter().zip(&mut work).enumerate() {
            let [from, to] = &mut between;
            let (before, after) = (parts.extents(i, start), parts.extents(i + 1, start));
            let read = match i {
                0 if !reads => x.clone(),
                _ => View::contiguous(&from[..before.iter().product()], &before),
            };
            if i + 1 == end && !writes {
                work.over(pass.dim, &read, &mut out);
            } else {
                let to = &mut to[..after.iter().product()];
                work.over(pass.dim, &read, &mut ViewMut::contiguous(to, &after));
            }
            between.swap(0, 1);
        }
        if writes {
            copy(
                &View::contiguous(&between[0][..out.len()], &extents),
                &mut out,
            );
        }
    });
}

/// Whether lines along a dim are runs of memory.
fn are_runs(strides: &[isize], dim: usize, complex: bool) -> bool {
    match complex {
        true => strides[dim] == 2 && strides.last() == Some(&1),
        false => strides[dim] == 1,
    }
}

/// Parts of what is transformed: all of the dims along which that is done, and some of the others.
struct Parts {
    /// Shapes before the first pass and after each.
    shapes: Vec<Vec<usize>>,
    /// How much of each dim but that of complex numbers a part takes; no end of those that are transformed.
    step: Vec<usize>,
}

impl Parts {
    fn of<T>(passes: &[Pass], shape: &[usize]) -> Self {
        let mut shapes = vec![shape.to_vec()];
        for pass in passes {
            shapes.push(pass.shape_of(&shapes[shapes.len() - 1]));
        }
        let complex = passes.first().is_some_and(|p| p.kind.reads_complex());
        let dims = shape.len() - usize::from(complex);
        let is_whole = |d: usize| passes.iter().any(|pass| pass.dim == d);
        // Of one index of the other dims.
        let numbers = |shape: &Vec<usize>| -> usize {
            let whole = (0..shape.len()).filter(|&d| d >= dims || is_whole(d));
            whole.map(|d| shape[d]).product()
        };
        let most = shapes.iter().map(numbers).max();
        let mut bytes = most.unwrap_or(0).max(1) * size_of::<T>();
        let mut step = vec![usize::MAX; dims];
        for d in (0..dims).rev().filter(|&d| !is_whole(d)) {
            let least = if d + 1 == dims { TOGETHER } else { 1 };
            step[d] = (PART / bytes).max(least).min(shape[d].max(1));
            bytes *= step[d];
        }
        Self { shapes, step }
    }

    /// Visits all parts, by where they start.
    fn each(&self, mut visit: impl FnMut(&[usize])) {
        let is_cut = |d: &usize| self.step[*d] != usize::MAX;
        let cut: Vec<usize> = (0..self.step.len()).filter(is_cut).collect();
        let n = |d: usize| self.shapes[0][d];
        if cut.iter().any(|&d| n(d) == 0) {
            return;
        }
        let mut start = vec![0; self.step.len()];
        loop {
            visit(&start);
            let goes_on = cut.iter().rev().any(|&d| {
                start[d] += self.step[d];
                let more = start[d] < n(d);
                if !more {
                    start[d] = 0;
                }
                more
            });
            if !goes_on {
                return;
            }
        }
    }

    /// Where the part that starts here begins, after so many passes.
    fn origin(&self, passes: usize, start: &[usize]) -> Vec<usize> {
        let mut origin = start.to_vec();
        origin.resize(self.shapes[passes].len(), 0);
        origin
    }

    /// Extents of the part that starts here, after so many passes.
    fn extents(&self, passes: usize, start: &[usize]) -> Vec<usize> {
        let mut extents = self.shapes[passes].clone();
        for ((n, &start), &step) in extents.iter_mut().zip(start).zip(&self.step) {
            *n = (*n - start).min(step);
        }
        extents
    }

    /// The part at the front, than which none is larger.
    fn largest(&self, passes: usize) -> Vec<usize> {
        self.extents(passes, &vec![0; self.step.len()])
    }

    /// How many numbers a part has at most, before or after any pass.
    fn most(&self) -> usize {
        let numbers = (0..self.shapes.len()).map(|i| self.largest(i).iter().product());
        numbers.max().unwrap_or(0)
    }

    /// How many lines of a part a pass transforms, at most, after so many others.
    fn most_lines(&self, passes: usize, pass: &Pass) -> usize {
        let mut shape = self.largest(passes);
        shape[pass.dim] = 1;
        if pass.kind.reads_complex() {
            shape.pop();
        }
        shape.iter().product()
    }
}

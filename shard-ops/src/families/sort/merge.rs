//! Merging sorted runs: a stretch of what they are merged to.

use super::{check, factors, lines};
use crate::families::indexing::with_foldable;
use crate::host::positions;
use crate::{
    Access, HostCall, Keeps, MergedRuns, Meta, Op, OpError, Result, RouteBy, Routes, Rule, key_of,
};
use shard_comm::{DType, Element};
use shard_kernels::cuts::heads;
use shard_kernels::search::Sortable;
use shard_kernels::sort::{SortedRun, merge, rank};
use std::ops::Range;

pub(super) const NAME: &str = "merge_runs";

/// A stretch of merged runs: inputs are an array that lies as the stretch is to, which is not read, and the runs' elements and indices;
/// outputs are the stretch's.
#[derive(Clone, Debug)]
pub(crate) struct MergeRuns {
    pub(crate) dim: usize,
    /// Where each run ends.
    pub(crate) ends: Vec<usize>,
    pub(crate) descending: bool,
    /// Where the stretch begins.
    pub(crate) from: usize,
    pub(crate) by: RouteBy,
}

impl Op for MergeRuns {
    fn name(&self) -> &'static str {
        NAME
    }

    fn key(&self) -> u128 {
        let order = (self.dim, &self.ends, self.descending);
        key_of(NAME, &(order, self.from, self.by))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let [to, values, _] = inputs else {
            return Err(OpError::arity(NAME, "3", inputs.len()));
        };
        check(NAME, 1, inputs)?;
        let mut rule = Rule::builder(NAME, inputs);
        let of = factors(&mut rule, &to.shape);
        let runs = rule.factor(values.shape[self.dim]);
        let stretch: Vec<Access> = of.iter().map(|&f| Access::factor(f)).collect();
        let mut all = stretch.clone();
        all[self.dim] = Access::Routed { factor: runs };
        let merged = MergedRuns {
            ends: self.ends.clone(),
            descending: self.descending,
            from: self.from,
        };
        rule.input(stretch.clone())
            .input(all.clone())
            .input(all)
            .unread(0)
            .output(stretch.clone(), to.shape.clone(), values.dtype)
            .output(stretch, to.shape.clone(), DType::I64)
            .routes(Routes::merging(0, merged).served(self.by))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_foldable!(call.dtype(), T => merge_box::<T>(self, call));
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

/// Per run the part of it on a line, and where it was read to, if it is not this rank's own: as the engine tells.
fn parts(
    cuts: &[i64],
    runs: usize,
    lines: usize,
    line: usize,
) -> impl Iterator<Item = (Range<usize>, Option<usize>)> {
    (0..runs).map(move |run| {
        let cut = &cuts[3 * (run * lines + line)..][..3];
        (
            cut[0] as usize..cut[1] as usize,
            usize::try_from(cut[2]).ok(),
        )
    })
}

fn merge_box<T: Sortable + Element>(op: &MergeRuns, call: &mut HostCall<'_, '_>) {
    let (from, to) = (&call.cx.inputs[1], &call.cx.outputs[0]);
    let (before, n, after) = lines(&from.shape, op.dim);
    let held = to.shape[op.dim];
    let start = op.from + positions(to, op.dim).get().at(0) as usize;
    let (cuts, x, indices) = (
        call.input::<i64>(0),
        call.input::<T>(1),
        call.input::<i64>(2),
    );
    let (read, read_indices) = (call.input::<T>(3), call.input::<i64>(4));
    let (mut values, mut found) = call.output_pair::<T, i64>();
    let (values, found) = (values.data_mut(), found.data_mut());
    let mut line = (Vec::new(), Vec::new());
    let mut merged = (vec![T::default(); held], vec![0; held]);
    for number in 0..before * after {
        let (row, column) = (number / after, number % after);
        let own: SortedRun<'_, T> = match after {
            1 => (&x.data()[row * n..][..n], &indices.data()[row * n..][..n]),
            _ => {
                let places = || (0..n).map(|i| (row * n + i) * after + column);
                line.0.clear();
                line.1.clear();
                line.0.extend(places().map(|place| x.data()[place]));
                line.1.extend(places().map(|place| indices.data()[place]));
                (&line.0, &line.1)
            }
        };
        let of_own = |part: Range<usize>| (&own.0[part.clone()], &own.1[part]);
        let runs: Vec<SortedRun<'_, T>> = match cuts.data() {
            [] => cut(op, own.0, start..start + held).map(of_own).collect(),
            cuts => parts(cuts, op.ends.len(), before * after, number)
                .map(|(part, read_to)| match read_to {
                    None => of_own(part),
                    Some(at) => {
                        let part = at..at + part.len();
                        (&read.data()[part.clone()], &read_indices.data()[part])
                    }
                })
                .collect(),
        };
        if after == 1 {
            let place = row * held..(row + 1) * held;
            let (v, i) = (&mut values[place.clone()], &mut found[place]);
            merge(&runs, op.descending, v, i);
            continue;
        }
        merge(&runs, op.descending, &mut merged.0, &mut merged.1);
        for (i, (&v, &index)) in merged.0.iter().zip(&merged.1).enumerate() {
            let place = (row * held + i) * after + column;
            (values[place], found[place]) = (v, index);
        }
    }
}

/// The parts of runs that lie behind each other which a stretch of their elements in order is made of.
fn cut<T: Sortable>(
    op: &MergeRuns,
    line: &[T],
    stretch: Range<usize>,
) -> impl Iterator<Item = Range<usize>> {
    let starts = || std::iter::once(&0).chain(&op.ends);
    let lens: Vec<usize> = starts().zip(&op.ends).map(|(from, to)| to - from).collect();
    let first: Vec<usize> = starts().copied().collect();
    let rank = |run: usize, at: usize| rank(line[first[run] + at], op.descending);
    let [from, to] = [stretch.start, stretch.end].map(|count| heads(&lens, rank, count));
    let ends = from.into_iter().zip(to);
    let parts = first
        .into_iter()
        .zip(ends)
        .map(|(run, (a, b))| run + a..run + b);
    parts.collect::<Vec<_>>().into_iter()
}

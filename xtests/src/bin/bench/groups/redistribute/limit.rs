//! What moving the same bytes costs at least: plain loops over private memory.

use shard_comm::Piece;
use shard_redistribute::{Exchange, Plan, RedistributeError, Step};
use shard_spec::Layout;
use std::hint::black_box;

/// Runs of fewer elements than fill a cache line are copied run by run, as the move has to.
const SHORT: usize = 16;

/// One rank's share of the work of a plan, step by step.
///
/// All bytes of all pieces are divided evenly among the threads, and copied densely between private warm buffers. Where
/// runs are shorter than a cache line they are copied in runs of that length, as far apart; where terms are summed, in
/// one pass over as many terms, read in runs as long and as far apart; an all-reduce is such a sum of a share, followed
/// by a copy of the whole.
pub(crate) struct MoveLimit(Vec<Work>);

enum Work {
    /// One dense copy.
    Copy { from: Vec<f32>, to: Vec<f32> },
    /// Runs of few elements.
    Runs(Vec<Runs>),
    /// One pass that adds terms up, in dense runs that lie some way apart in the terms.
    Fold {
        terms: Vec<Vec<f32>>,
        to: Vec<f32>,
        run: usize,
        step: usize,
    },
}

/// The rows of some of a piece: so many, with these steps in each memory, of `len` elements each.
struct Runs {
    terms: Vec<Vec<f32>>,
    to: Vec<f32>,
    len: usize,
    counts: [usize; 2],
    src: [usize; 2],
    dst: [usize; 2],
}

impl MoveLimit {
    /// The share of thread `me` in the work of all ranks, divided evenly even where the layouts are not.
    pub(crate) fn new(from: &Layout, to: &Layout, me: usize) -> Result<Self, RedistributeError> {
        let threads = from.mesh().size();
        let plans = (0..threads)
            .map(|rank| Plan::new(from, to, rank))
            .collect::<Result<Vec<_>, _>>()?;
        let share = |n: usize| (me + 1) * n / threads - me * n / threads;
        let mut work = Vec::new();
        for (k, step) in plans[0].steps().iter().enumerate() {
            if let Step::AllReduce(axes, _, layout) = step {
                let held = (0..threads)
                    .filter_map(|rank| layout.local_shape(rank))
                    .map(|shape| shape.iter().product::<usize>());
                let len = share(held.sum());
                let terms = axes.iter().map(|&a| layout.mesh().shape()[a]).product();
                let len_each = len / terms;
                work.push(Work::fold(terms, 1, len_each, len_each));
                work.push(Work::copy(len));
                continue;
            }
            let exchanges: Vec<&Exchange> = (plans.iter())
                .filter_map(|plan| match &plan.steps()[k] {
                    Step::Exchange(exchange, _) => Some(exchange),
                    _ => None,
                })
                .collect();
            let len = |e: &&Exchange| e.local_shape().iter().product::<usize>();
            let pieces = exchanges.iter().flat_map(|e| e.plan().recv.iter());
            let all: Vec<Piece> = pieces.map(|p| p.to_piece()).collect();
            let (written, read): (usize, usize) = (
                exchanges.iter().map(len).sum(),
                all.iter().map(Piece::numel).sum(),
            );
            let (terms, folds) = (read / written, exchanges[0].plan().fold.is_some());
            if all.iter().all(|p| run_len(p) < SHORT && Runs::fits(p)) {
                // Terms have one destination, so they follow each other in order of destinations.
                let mut all = all;
                all.sort_by_key(|p| p.dst_offset);
                let firsts = all.iter().step_by(if folds { terms } else { 1 });
                let runs = firsts.map(|p| Runs::new(p, share(p.shape[0]), terms));
                work.push(Work::Runs(runs.collect()));
            } else if folds {
                let (run, step) =
                    (exchanges[me].plan().recv.first()).map_or((1, 1), |p| runs_of(&p.to_piece()));
                let len = share(written);
                work.push(match step > run {
                    true => Work::fold(terms, len / run, run, step),
                    false => Work::fold(terms, 1, len, len),
                });
            } else {
                work.push(Work::copy(share(written)));
            }
        }
        Ok(Self(work))
    }

    /// What it does.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.0[..] {
            [.., Work::Runs(_)] => "runs",
            [Work::Fold { .. }] => "fold",
            [.., Work::Fold { .. }, _] => "fold+copy",
            _ => "copy",
        }
    }

    pub(crate) fn run(&mut self) {
        for work in &mut self.0 {
            work.run();
        }
    }
}

impl Work {
    fn copy(len: usize) -> Self {
        Self::Copy {
            from: warm(len),
            to: warm(len),
        }
    }

    fn fold(terms: usize, runs: usize, run: usize, step: usize) -> Self {
        Self::Fold {
            terms: (0..terms).map(|_| warm(runs * step)).collect(),
            to: warm(runs * run),
            run,
            step,
        }
    }

    fn run(&mut self) {
        match self {
            Self::Copy { from, to } => to.copy_from_slice(black_box(from)),
            Self::Runs(pieces) => pieces.iter_mut().for_each(Runs::run),
            Self::Fold {
                terms,
                to,
                run,
                step,
            } => {
                for (k, to) in to.chunks_mut(*run).enumerate() {
                    sum(terms, k * *step, to);
                }
            }
        }
        black_box(self);
    }
}

/// `to = a + b + ...`, each element once.
fn sum(terms: &[Vec<f32>], at: usize, to: &mut [f32]) {
    let n = to.len();
    let row = |k: usize| &terms[k][at..][..n];
    match terms.len() {
        2 => {
            for ((to, a), b) in to.iter_mut().zip(row(0)).zip(row(1)) {
                *to = a + b;
            }
        }
        4 => {
            let sources = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3));
            for (to, (((a, b), c), d)) in to.iter_mut().zip(sources) {
                *to = a + b + c + d;
            }
        }
        _ => {
            for (i, to) in to.iter_mut().enumerate() {
                *to = terms.iter().map(|t| t[at + i]).sum();
            }
        }
    }
}

impl Runs {
    /// Whether a piece is made of rows in planes, forwards.
    fn fits(piece: &Piece) -> bool {
        let forwards = |strides: &[isize]| strides.iter().all(|&s| s >= 0);
        piece.shape.len() == 3 && forwards(&piece.src_strides) && forwards(&piece.dst_strides)
    }

    /// `planes` of the planes of a piece.
    fn new(piece: &Piece, planes: usize, terms: usize) -> Self {
        let steps = |strides: &[isize]| [strides[0].unsigned_abs(), strides[1].unsigned_abs()];
        let (src, dst) = (steps(&piece.src_strides), steps(&piece.dst_strides));
        let (rows, len) = (piece.shape[1], piece.shape[2]);
        let end = |steps: [usize; 2]| planes * steps[0] + rows * steps[1] + len;
        Self {
            terms: (0..terms).map(|_| warm(end(src))).collect(),
            to: warm(end(dst)),
            len,
            counts: [planes, rows],
            src,
            dst,
        }
    }

    fn run(&mut self) {
        match self.len {
            1 => self.run_of::<1>(),
            2 => self.run_of::<2>(),
            4 => self.run_of::<4>(),
            6 => self.run_of::<6>(),
            9 => self.run_of::<9>(),
            13 => self.run_of::<13>(),
            _ => self.rows_of_any_length(),
        }
    }

    /// With its length known to the compiler, a run is one or two moves.
    fn run_of<const N: usize>(&mut self) {
        match self.terms.len() {
            1 => self.rows::<N, 1>(),
            2 => self.rows::<N, 2>(),
            4 => self.rows::<N, 4>(),
            _ => self.rows_of_any_length(),
        }
    }

    fn rows<const N: usize, const T: usize>(&mut self) {
        let terms: [&[f32]; T] = std::array::from_fn(|t| &black_box(&self.terms)[t][..]);
        for i in 0..self.counts[0] {
            for j in 0..self.counts[1] {
                let s = i * self.src[0] + j * self.src[1];
                let d = i * self.dst[0] + j * self.dst[1];
                let mut sum = [0.0; N];
                sum.copy_from_slice(&terms[0][s..s + N]);
                for term in &terms[1..] {
                    for (sum, value) in sum.iter_mut().zip(&term[s..s + N]) {
                        *sum += value;
                    }
                }
                self.to[d..d + N].copy_from_slice(&sum);
            }
        }
    }

    fn rows_of_any_length(&mut self) {
        let terms = black_box(&self.terms);
        for i in 0..self.counts[0] {
            for j in 0..self.counts[1] {
                let s = i * self.src[0] + j * self.src[1];
                let to = &mut self.to[i * self.dst[0] + j * self.dst[1]..][..self.len];
                to.copy_from_slice(&terms[0][s..s + self.len]);
                for term in &terms[1..] {
                    for (sum, value) in to.iter_mut().zip(&term[s..]) {
                        *sum += value;
                    }
                }
            }
        }
    }
}

/// Elements that lie side by side in the source and in the destination.
fn run_len(piece: &Piece) -> usize {
    let mut len = 1;
    for d in (0..piece.shape.len()).rev() {
        if piece.src_strides[d] != len as isize || piece.dst_strides[d] != len as isize {
            break;
        }
        len *= piece.shape[d];
    }
    len
}

/// The length of the runs of a piece, and how far they are apart in its source.
fn runs_of(piece: &Piece) -> (usize, usize) {
    let run = run_len(piece);
    let mut inner = 1;
    let outer = (0..piece.shape.len()).rev().find(|&d| {
        inner *= piece.shape[d];
        inner > run
    });
    let step = outer.map_or(run, |d| piece.src_strides[d].unsigned_abs());
    (run, step)
}

/// Memory whose pages are there.
fn warm(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 1021) as f32).collect()
}

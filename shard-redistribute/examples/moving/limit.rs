//! What moving the same bytes costs at least: plain loops over private memory.

use shard_comm::Piece;
use shard_redistribute::{Plan, Step};
use std::error::Error;
use std::hint::black_box;

/// Runs of fewer elements than fill a cache line are copied run by run, as the move has to.
const SHORT: usize = 16;

/// What a limit does, for the table.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Copy,
    ShortRuns,
    Fold,
    AllReduce,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::ShortRuns => "runs",
            Self::Fold => "fold",
            Self::AllReduce => "fold+copy",
        }
    }
}

/// One rank's share of the work of a plan, step by step.
pub(crate) struct Limit(Vec<Work>);

enum Work {
    /// One dense copy.
    Copy { from: Vec<f32>, to: Vec<f32> },
    /// Runs of few elements: where they are, and the memory of each owner.
    Runs { pieces: Vec<Runs>, to: Vec<f32> },
    /// One pass that adds terms up.
    Fold { terms: Vec<Vec<f32>>, to: Vec<f32> },
}

/// The rows of a piece: `counts` of them, `steps` apart, `len` elements each.
struct Runs {
    from: Vec<f32>,
    len: usize,
    counts: [usize; 2],
    src: [usize; 2],
    dst: [usize; 2],
    src_offset: usize,
    dst_offset: usize,
}

impl Limit {
    pub(crate) fn new(plan: &Plan, rank: usize) -> Result<Self, Box<dyn Error>> {
        let mut work = Vec::new();
        let mut layout = plan.from();
        for step in plan.steps() {
            match step {
                Step::Exchange(exchange, _) => {
                    let recv = &exchange.plan().recv;
                    let len = exchange.local_shape().iter().product();
                    let read: usize = recv.iter().map(Piece::numel).sum();
                    if exchange.plan().fold.is_some() {
                        work.push(Work::fold(read / len, len));
                    } else if recv.iter().all(|p| run_len(p) < SHORT) {
                        let pieces = recv.iter().map(Runs::new).collect::<Result<_, _>>()?;
                        work.push(Work::Runs {
                            pieces,
                            to: warm(len),
                        });
                    } else {
                        work.push(Work::copy(len));
                    }
                }
                Step::AllReduce(axes, ..) => {
                    let shape = layout.local_shape(rank).ok_or("not on the mesh")?;
                    let len: usize = shape.iter().product();
                    let ranks = axes.iter().map(|&a| layout.mesh().shape()[a]).product();
                    work.push(Work::fold(ranks, len.div_ceil(ranks)));
                    work.push(Work::copy(len));
                }
                _ => return Err("a step without a limit".into()),
            }
            layout = step.layout();
        }
        Ok(Self(work))
    }

    pub(crate) fn kind(&self) -> Kind {
        match &self.0[..] {
            [.., Work::Runs { .. }] => Kind::ShortRuns,
            [Work::Fold { .. }] => Kind::Fold,
            [.., Work::Fold { .. }, _] => Kind::AllReduce,
            _ => Kind::Copy,
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

    fn fold(terms: usize, len: usize) -> Self {
        Self::Fold {
            terms: (0..terms).map(|_| warm(len)).collect(),
            to: warm(len),
        }
    }

    fn run(&mut self) {
        match self {
            Self::Copy { from, to } => to.copy_from_slice(black_box(from)),
            Self::Runs { pieces, to } => {
                for piece in pieces.iter() {
                    piece.run(to);
                }
            }
            Self::Fold { terms, to } => sum(terms, to),
        }
        match self {
            Self::Copy { to, .. } | Self::Runs { to, .. } | Self::Fold { to, .. } => {
                black_box(to);
            }
        }
    }
}

/// `to = a + b + ...`, each element once.
fn sum(terms: &[Vec<f32>], to: &mut [f32]) {
    match terms {
        [a, b] => {
            for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
                *to = a + b;
            }
        }
        [a, b, c, d] => {
            for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *to = a + b + c + d;
            }
        }
        _ => {
            for (i, to) in to.iter_mut().enumerate() {
                *to = terms.iter().map(|t| t[i]).sum();
            }
        }
    }
}

impl Runs {
    fn new(piece: &Piece) -> Result<Self, Box<dyn Error>> {
        let (&[a, b, len], Ok(src), Ok(dst)) = (
            &piece.shape[..],
            steps(&piece.src_strides),
            steps(&piece.dst_strides),
        ) else {
            return Err("short runs of a volume only".into());
        };
        let end = piece.src_offset + (a - 1) * src[0] + (b - 1) * src[1] + len;
        Ok(Self {
            from: warm(end),
            len,
            counts: [a, b],
            src,
            dst,
            src_offset: piece.src_offset,
            dst_offset: piece.dst_offset,
        })
    }

    fn run(&self, to: &mut [f32]) {
        match self.len {
            2 => self.run_of::<2>(to),
            4 => self.run_of::<4>(to),
            5 => self.run_of::<5>(to),
            6 => self.run_of::<6>(to),
            7 => self.run_of::<7>(to),
            8 => self.run_of::<8>(to),
            9 => self.run_of::<9>(to),
            13 => self.run_of::<13>(to),
            len => self.rows(to, len, |to, from| to.copy_from_slice(from)),
        }
    }

    /// With the length known to the compiler, a run is one or two moves.
    fn run_of<const N: usize>(&self, to: &mut [f32]) {
        self.rows(to, N, |to, from| {
            if let (Ok(to), Ok(from)) = (<&mut [f32; N]>::try_from(to), <&[f32; N]>::try_from(from))
            {
                *to = *from;
            }
        });
    }

    #[inline(always)]
    fn rows(&self, to: &mut [f32], len: usize, copy: impl Fn(&mut [f32], &[f32])) {
        let from = black_box(&self.from);
        for i in 0..self.counts[0] {
            let src = self.src_offset + i * self.src[0];
            let dst = self.dst_offset + i * self.dst[0];
            for j in 0..self.counts[1] {
                let (s, d) = (src + j * self.src[1], dst + j * self.dst[1]);
                copy(&mut to[d..d + len], &from[s..s + len]);
            }
        }
    }
}

fn steps(strides: &[isize]) -> Result<[usize; 2], Box<dyn Error>> {
    Ok([strides[0].try_into()?, strides[1].try_into()?])
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

/// Memory whose pages are there.
fn warm(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 1021) as f32).collect()
}

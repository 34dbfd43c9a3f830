//! The groups of cases.

mod attention;
mod comm;
mod conv;
mod dispatch;
mod elementwise;
mod knn;
mod limits;
mod matmul;
mod models;
mod norm;
mod ops;
mod pack;
mod parallel;
mod plan;
mod redistribute;
mod sorting;
mod train;

use crate::suite::Suite;
use clap::ValueEnum;

/// A group of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// The machine: copies and matrix products.
    Limits,
    /// Pieces of memory on one device, and elements to and from the host.
    Pack,
    /// Communicators without layouts.
    Comm,
    /// Moves between layouts.
    Redistribute,
    /// Strategies and plans, without running them.
    Plan,
    /// What an op costs that computes next to nothing.
    Dispatch,
    /// Maps, and sums over them.
    Elementwise,
    /// Convolutions.
    Conv,
    /// Norms, means, softmax.
    Norm,
    /// Matrix products.
    Matmul,
    /// Scaled dot product attention.
    Attention,
    /// Neighbours.
    Knn,
    /// Sorted elements, and rows by index.
    Sorting,
    /// Training steps.
    Train,
    /// Whole models of many kinds.
    Models,
    /// A survey of ops, each alone at shapes that models have. It is asked for by name, or all of it small with --quick.
    Ops,
    /// On several ranks what PyTorch distributes too: moves, ops and steps of training.
    Parallel,
}

impl Group {
    pub(crate) const ALL: [Self; 17] = [
        Self::Limits,
        Self::Pack,
        Self::Comm,
        Self::Redistribute,
        Self::Plan,
        Self::Dispatch,
        Self::Elementwise,
        Self::Conv,
        Self::Norm,
        Self::Matmul,
        Self::Attention,
        Self::Knn,
        Self::Sorting,
        Self::Train,
        Self::Models,
        Self::Ops,
        Self::Parallel,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::Pack => "pack",
            Self::Comm => "comm",
            Self::Redistribute => "redistribute",
            Self::Plan => "plan",
            Self::Dispatch => "dispatch",
            Self::Elementwise => "elementwise",
            Self::Conv => "conv",
            Self::Norm => "norm",
            Self::Matmul => "matmul",
            Self::Attention => "attention",
            Self::Knn => "knn",
            Self::Sorting => "sorting",
            Self::Train => "train",
            Self::Models => "models",
            Self::Ops => "ops",
            Self::Parallel => "parallel",
        }
    }

    /// Adds the group's cases.
    pub(crate) fn add_to(self, suite: &mut Suite<'_>) {
        suite.begin(self.name());
        match self {
            Self::Limits => limits::add(suite),
            Self::Pack => pack::add(suite),
            Self::Comm => comm::add(suite),
            Self::Redistribute => redistribute::add(suite),
            Self::Plan => plan::add(suite),
            Self::Dispatch => dispatch::add(suite),
            Self::Elementwise => elementwise::add(suite),
            Self::Conv => conv::add(suite),
            Self::Norm => norm::add(suite),
            Self::Matmul => matmul::add(suite),
            Self::Attention => attention::add(suite),
            Self::Knn => knn::add(suite),
            Self::Sorting => sorting::add(suite),
            Self::Train => train::add(suite),
            Self::Models => models::add(suite),
            Self::Ops => ops::add(suite),
            Self::Parallel => parallel::add(suite),
        }
    }
}

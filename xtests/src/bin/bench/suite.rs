//! Which cases there are, and how dims are divided in them.

use crate::case::Bench;
use shard_tensor::{AxisPlacement, Context, DeviceKind, Result, shard};
use std::collections::BTreeMap;

/// What all groups are asked for.
pub(crate) struct Options {
    pub(crate) ranks: Vec<usize>,
    pub(crate) split: Split,
    pub(crate) quick: bool,
    pub(crate) device: DeviceKind,
    /// Whether a peer does the same.
    pub(crate) beside: bool,
}

/// How a dim is divided over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// As `torch.chunk` does.
    Even,
    /// In parts of very different size.
    Uneven,
}

impl Split {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Uneven => "uneven",
        }
    }

    /// Sizes of the parts of a dim; `None` where they are the library's own choice.
    pub(crate) fn sizes(self, extent: usize, parts: usize) -> Option<Vec<usize>> {
        let shares = match (self, parts) {
            (Self::Even, _) => return None,
            (Self::Uneven, 2) => vec![62, 38],
            (Self::Uneven, 4) => vec![37, 13, 31, 19],
            (Self::Uneven, _) => (0..parts).map(|i| 2 + 7 * i % 5).collect(),
        };
        let all: usize = shares.iter().sum();
        let mut sizes: Vec<usize> = shares.iter().map(|s| extent * s / all).collect();
        sizes[0] += extent - sizes.iter().sum::<usize>();
        Some(sizes)
    }

    /// Dim `dim` of this extent, divided over so many ranks.
    pub(crate) fn shard(self, dim: usize, extent: usize, parts: usize) -> AxisPlacement {
        match self.sizes(extent, parts) {
            None => shard(dim),
            Some(sizes) => shard(dim).sizes(sizes),
        }
    }
}

/// Makes a case on one rank of those it is measured on.
type Build = Box<dyn Fn(&Context) -> Result<Bench> + Sync>;

/// A case, and how many ranks it is measured on.
pub(crate) struct Spec {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) ranks: usize,
    pub(crate) build: Build,
}

/// The cases of a run.
pub(crate) struct Suite<'a> {
    pub(crate) options: &'a Options,
    group: &'static str,
    specs: Vec<Spec>,
    /// How many cases were left out, by reason.
    skipped: BTreeMap<&'static str, usize>,
}

impl<'a> Suite<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        Self {
            options,
            group: "",
            specs: Vec::new(),
            skipped: BTreeMap::new(),
        }
    }

    /// Names the group of the cases that are added from now on.
    pub(crate) fn begin(&mut self, group: &'static str) {
        self.group = group;
    }

    /// Adds a case on so many ranks.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        ranks: usize,
        build: impl Fn(&Context) -> Result<Bench> + Sync + 'static,
    ) {
        self.specs.push(Spec {
            group: self.group,
            name: name.into(),
            ranks,
            build: Box::new(build),
        });
    }

    /// As [`add`](Self::add), but for the host alone: on other devices it is left out, and the reason told.
    pub(crate) fn add_on_host(
        &mut self,
        reason: &'static str,
        name: impl Into<String>,
        ranks: usize,
        build: impl Fn(&Context) -> Result<Bench> + Sync + 'static,
    ) {
        if self.on_gpu() {
            *self.skipped.entry(reason).or_default() += 1;
        } else {
            self.add(name, ranks, build);
        }
    }

    /// Whether ranks compute on GPUs, or what plays them.
    pub(crate) fn on_gpu(&self) -> bool {
        self.options.device.is_cuda()
    }

    /// One of two sizes: that of the peers' workloads, or a small one for a quick run.
    pub(crate) fn size(&self, full: usize, quick: usize) -> usize {
        if self.options.quick { quick } else { full }
    }

    /// The cases, and how many were left out for which reason.
    pub(crate) fn into_specs(self) -> (Vec<Spec>, BTreeMap<&'static str, usize>) {
        (self.specs, self.skipped)
    }
}

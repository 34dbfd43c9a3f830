//! Which rows of a table an operand asks for, and how they come to those that ask.

/// Which operand names the indices of [routed](crate::Access::Routed) dims, and what its elements mean.
///
/// The kernel sees *keys* in place of that operand's elements, of type `i64`: the row-major number of the row among the dims of
/// the table's box that are routed or the operand's as well, which for an operand that shares none is the position along the
/// routed dim. Where rows come from other ranks, or go there, a further box follows the rule's inputs, or outputs: those rows
/// side by side, in the order of the table's other dims. Keys from the number of rows of the table's box on name these; a negative
/// key names no row, and stands for a zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    /// The operand.
    pub(crate) index: usize,
    /// Whether negative indices count from the end.
    pub(crate) from_end: bool,
    /// An index that names no row.
    pub(crate) skips: Option<i64>,
    /// An element that is no index and names no row.
    pub(crate) absent: Option<i64>,
    /// Whether ranks may each look at their own part of the dim alone, the results being terms of a reduction.
    pub(crate) masks: bool,
    /// Runs that are merged, in place of elements that name rows.
    pub(crate) merging: Option<MergedRuns>,
    pub(crate) by: RouteBy,
}

/// Sorted runs side by side along a dim, and which stretch of what they are merged to is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MergedRuns {
    /// Where each run ends.
    pub ends: Vec<usize>,
    /// Whether the largest come first.
    pub descending: bool,
    /// The first place that is asked for.
    pub from: usize,
}

impl Routes {
    /// Indices are the elements of operand `index`, from 0 to below the extent.
    pub fn by(index: usize) -> Self {
        Self {
            index,
            from_end: false,
            skips: None,
            absent: None,
            masks: false,
            merging: None,
            by: RouteBy::default(),
        }
    }

    /// No elements name rows: the first operand with a routed dim holds sorted runs, and operand `index`, whose dims are that operand's
    /// but for the extent of the routed one, the stretch of their elements in order that is asked for. It may be
    /// [unread](crate::RuleBuilder::unread).
    ///
    /// In place of that operand's elements the kernel sees *cuts*, of type `i64`: for each run and line of the other dims where the part of
    /// it begins and ends that belongs to the rank's stretch, and where that is among what was read, or -1 in the rank's own run. What was read from others follows the inputs, for each operand with a routed dim: those parts
    /// of all runs but its own, one after the other. Where all runs are at hand there are no cuts.
    pub fn merging(index: usize, runs: MergedRuns) -> Self {
        Self {
            merging: Some(runs),
            ..Self::by(index)
        }
    }

    /// And negative ones, which count from the end.
    #[must_use]
    pub fn counted_from_either_end(mut self) -> Self {
        self.from_end = true;
        self
    }

    /// This element is no index, and names no row.
    #[must_use]
    pub fn absent(mut self, element: i64) -> Self {
        self.absent = Some(element);
        self
    }

    /// This index names no row; for operands that share no dim with the table.
    #[must_use]
    pub fn skips(mut self, index: Option<i64>) -> Self {
        self.skips = index;
        self
    }

    /// Ranks may each look at their own part of the routed dim alone, where keys that name rows of others are negative: results that
    /// do not have the dim are then terms of the rule's [reduction](crate::Reduction).
    #[must_use]
    pub fn masks(mut self) -> Self {
        self.masks = true;
        self
    }

    /// How rows come to those that ask.
    #[must_use]
    pub fn served(mut self, by: RouteBy) -> Self {
        self.by = by;
        self
    }
}

/// How the rows of a sharded [routed](crate::Access::Routed) dim and those that ask for them meet.
///
/// | way | what moves | when |
/// |---|---|---|
/// | `Ask` | every rank tells owners which distinct rows it asks for, eight bytes or less each, and gets these; the adjoint sends sums of them home | by default |
/// | `Gather` | the whole table | where it is no more than the requests alone could be |
///
/// Of [runs that are merged](Routes::merging) `Ask` finds by rounds of a few elements of each run which parts of them a rank's
/// stretch is made of, and reads these; it is taken where all that is less than all runs.
///
/// There is a third way, for which nobody has to ask: each rank looks at its own part, and results are terms of a sum. It is taken
/// where an op's operands lie so that it moves less, as any other choice of which mesh axes shard what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RouteBy {
    /// The way that moves least, as far as shapes tell.
    #[default]
    Auto,
    /// Rows that are asked for.
    Ask,
    /// The table.
    Gather,
}

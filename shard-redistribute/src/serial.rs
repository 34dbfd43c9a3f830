//! Plans as data: two layouts, the position of the rank that asks, and the hops in between. Pieces are derived again, and hops
//! are checked.

use crate::error::Incompatible;
use crate::path::{Axes, Hop, Move};
use crate::stages::{AxisSplit, Stages};
use crate::{Method, Owners, Plan, RedistributeError, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shard_spec::{Layout, ReduceOp};

/// The form in which a plan is written.
#[derive(Serialize, Deserialize)]
struct PlanRepr {
    from: Layout,
    to: Layout,
    index: usize,
    method: Method,
    hops: Vec<HopRepr>,
    staging: usize,
}

/// The form in which a hop is written: the layout it leads to, and how it gets there.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HopRepr {
    Exchange {
        to: Layout,
        scatter: Axes,
        owners: Owners,
        #[serde(default)]
        stages: Option<AxisSplit>,
    },
    AllReduce {
        to: Layout,
        axes: Axes,
        op: ReduceOp,
    },
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let hop = |hop: &Hop| match hop {
            Hop::Exchange(e) => HopRepr::Exchange {
                to: e.to.clone(),
                scatter: e.scatter.clone(),
                owners: e.owners,
                stages: e.stages.as_ref().map(|stages| stages.split.clone()),
            },
            Hop::AllReduce { axes, op, to } => HopRepr::AllReduce {
                to: to.clone(),
                axes: axes.clone(),
                op: *op,
            },
        };
        let repr = PlanRepr {
            from: self.from.clone(),
            to: self.to.clone(),
            index: self.index,
            method: self.method(),
            hops: self.hops.iter().map(hop).collect(),
            staging: self.staging(),
        };
        repr.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let repr = PlanRepr::deserialize(deserializer)?;
        repr.rebuild().map_err(serde::de::Error::custom)
    }
}

impl PlanRepr {
    /// The plan, if its hops lead from its source to its destination.
    fn rebuild(self) -> Result<Plan> {
        let Self {
            from,
            to,
            index,
            method,
            hops,
            staging,
        } = self;
        crate::plan::check(&from, &to)?;
        let mut at = from.clone();
        let mut built = Vec::with_capacity(hops.len());
        for hop in hops {
            let hop = hop.rebuild(&at)?;
            at = hop.to().clone();
            built.push(hop);
        }
        if at != to {
            return Err(broken(&at, &to, "the hops end elsewhere"));
        }
        // Nothing was built before this, which first checks the number of pieces.
        Ok(Plan::along(&from, &to, index, method, built)?.with_staging(staging))
    }
}

impl HopRepr {
    fn rebuild(self, at: &Layout) -> Result<Hop> {
        let terms = |axes: &Axes| axes.iter().all(|a| at.partial_axes().contains(a));
        match self {
            Self::AllReduce { to, axes, op } => {
                if !terms(&axes) || at.partial_op() != Some(op) {
                    return Err(broken(at, &to, "an all-reduce of what is not partial"));
                }
                if crate::path::reduced(at, &axes)? != to {
                    return Err(broken(at, &to, "an all-reduce leads elsewhere"));
                }
                Ok(Hop::AllReduce { axes, op, to })
            }
            Self::Exchange {
                to,
                scatter,
                owners,
                stages,
            } => {
                crate::plan::check(at, &to)?;
                // An exchange reduces exactly the axes that turn from terms into shards, and no other.
                let (expected, left) = crate::path::reductions(at, &to);
                if expected != scatter || !left.is_empty() {
                    return Err(broken(
                        at,
                        &to,
                        "an exchange reduces other axes than it must",
                    ));
                }
                let mut exchange = Move {
                    from: at.clone(),
                    to,
                    scatter,
                    owners,
                    stages: None,
                };
                if let Some(split) = stages {
                    let stages = Stages::new(&exchange, split)?;
                    let unknown = || broken(at, &exchange.to, "an exchange has no such stages");
                    exchange.stages = Some(Box::new(stages.ok_or_else(unknown)?));
                }
                Ok(Hop::Exchange(exchange))
            }
        }
    }
}

fn broken(from: &Layout, to: &Layout, why: &'static str) -> RedistributeError {
    RedistributeError::Incompatible(Box::new(Incompatible {
        op: "load plan",
        from: from.clone(),
        to: to.clone(),
        why,
        fix: "load what a plan was written as",
    }))
}

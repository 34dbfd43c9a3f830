//! How plans keep within their staging.

use super::run::{Mover, move_into};
use super::sizes::{Leg, Place, Way, beside_sum, forecast_into, fresh_forecast};
use crate::{Array, Method, Plan, PlanCost, Result, Step};
use shard_comm::DType;

impl Plan {
    /// Bytes that the plan may hold on one rank beyond its source and its destination.
    pub fn staging(&self) -> usize {
        self.staging
    }

    /// Sets the bytes that the plan may hold on one rank beyond its source and its destination: 64 MiB unless set
    /// here or by the [model](crate::CostModel::staging) that chose the plan. All ranks must set the same.
    ///
    /// Fewer bytes mean more rounds. Less than [`least_staging`](Self::least_staging) counts as that.
    #[must_use]
    pub fn with_staging(mut self, bytes: usize) -> Self {
        self.staging = bytes;
        self
    }

    /// The least staging with which the plan keeps its promise: a few elements for each piece of an exchange. Where a composed
    /// plan would run as the direct one instead, the direct plan's pieces count too.
    pub fn least_staging(&self, dtype: DType) -> usize {
        let least = |plan: &Self| plan.legs().map(|leg| leg.least_staging(dtype)).max();
        let direct = match self.method() {
            Method::Direct => None,
            _ => Self::new(self.from(), self.to(), self.index).ok(),
        };
        let direct = direct.as_ref().and_then(least);
        least(self).max(direct).unwrap_or(0)
    }

    /// Moves an array in its own memory; see [`Array::redistribute_into`].
    ///
    /// No rank holds more than the larger of its source and its destination and the plan's [staging](Self::staging), as
    /// [`forecast_into`](Self::forecast_into) tells beforehand. A composed plan whose blocks in between are larger than the
    /// staging runs as the direct plan instead.
    ///
    /// # Collective
    /// All members of the mesh, if the plan [communicates](Self::communicates).
    ///
    /// # Errors
    /// As [`run`](Self::run). The array is lost if the move fails midway.
    #[track_caller]
    pub fn run_into(&self, array: Array) -> Result<Array> {
        self.check_source(&array)?;
        match self.instead(array.dtype())? {
            Some(direct) => move_into(&direct, 0, array, false),
            None => move_into(self, 0, array, false),
        }
    }

    /// What this rank will move and hold when the plan runs [in place](Self::run_into).
    ///
    /// Bytes, messages and rounds are what the ledger will count. The peak is an upper bound of all that is held at once,
    /// *including the source*: at most the larger of source and destination, and the staging.
    ///
    /// ```
    /// use shard_comm::DType;
    /// use shard_redistribute::Plan;
    /// use shard_spec::{DeviceMesh, Layout};
    /// let mesh = DeviceMesh::new(&[4])?;
    /// let rows = Layout::parse(&mesh, &[4096, 4096], "S(0)")?;
    /// let columns = Layout::parse(&mesh, &[4096, 4096], "S(1)")?;
    /// let plan = Plan::new(&rows, &columns, 0)?.with_staging(1 << 20);
    /// let (there, here) = (plan.forecast(DType::F32), plan.forecast_into(DType::F32)?);
    /// assert_eq!(here.bytes, there.bytes);
    /// // 16 MiB become other 16 MiB, with 1 MiB to spare; in new memory, 16 MiB more are needed.
    /// assert!(here.peak <= 17 << 20);
    /// assert_eq!(there.peak, 16 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::new`], if the plan has to run as the direct one.
    pub fn forecast_into(&self, dtype: DType) -> Result<PlanCost> {
        Ok(match self.instead(dtype)? {
            Some(direct) => forecast_into(&direct, 0, dtype, false),
            None => forecast_into(self, 0, dtype, false),
        })
    }

    /// The direct plan, if the blocks between this plan's steps would exceed its staging.
    fn instead(&self, dtype: DType) -> Result<Option<Self>> {
        let between = self.between(dtype);
        // The blocks between an all-reduce and an exchange have the size of the source's or the destination's.
        let own = |step: &Step| matches!(step, Step::AllReduce(..));
        if between <= self.staging() || self.steps.len() == 2 && self.steps.iter().any(own) {
            return Ok(None);
        }
        let direct = Self::new(self.from(), self.to(), self.index)?;
        Ok(Some(direct.with_staging(self.staging())))
    }

    /// Most bytes that some rank has in the blocks between the steps, summed over them.
    fn between(&self, dtype: DType) -> usize {
        let before = self
            .steps
            .split_last()
            .map_or(&[][..], |(_, before)| before);
        let blocks = before.iter().map(|s| s.layout().max_local_numel());
        blocks.sum::<usize>() * dtype.size()
    }

    /// Most bytes that some rank needs beside the results of the steps, summed over them.
    fn beside(&self, dtype: DType, widening: &dyn Fn(&Leg<'_>) -> usize) -> usize {
        let each = self.legs().map(|leg| {
            let target = leg.step.layout().max_local_numel();
            match leg.step {
                Step::Exchange(..) => target * widening(&leg) + leg.between() * dtype.size(),
                Step::AllReduce(axes, ..) => {
                    let ranks = self.to().mesh().part_count(axes);
                    beside_sum(target, dtype, ranks)
                }
            }
        });
        each.sum()
    }

    /// How the first step runs if the plan's steps, each with memory of its own, would hold more than the staging beyond
    /// source and destination. The other steps then run in place. `None` if they would not.
    pub(crate) fn bounded(&self, dtype: DType) -> Option<Way> {
        let fits = |widening: &dyn Fn(&Leg<'_>) -> usize| {
            self.between(dtype) + self.beside(dtype, widening) <= self.staging()
        };
        // The bound comes first, since it is at hand, while the exact answer may take a look at every piece.
        if fits(&|leg| leg.most_widening(dtype)) || fits(&|leg| leg.widening(dtype)) {
            return None;
        }
        let first = self.legs().next()?;
        Some(first.way(dtype, self.staging(), Place::Fresh))
    }

    /// Runs the plan within its staging: the first step goes to memory of its own, the others run in place in that.
    #[track_caller]
    pub(crate) fn run_bounded(&self, array: &Array, way: Way) -> Result<Array> {
        let (cx, dtype) = (array.cx(), array.dtype());
        let (Some(first), Some(buffer)) = (self.legs().next(), array.buffer()) else {
            return Array::laid(cx, self.to(), None, dtype);
        };
        let mover = Mover {
            cx,
            dtype,
            staging: self.staging(),
            index: self.index,
        };
        let moved = mover.step(&first, way, buffer.clone(), Place::Fresh)?;
        let at = Array::laid(cx, first.step.layout(), Some(moved), dtype)?;
        self.finish_bounded(at, way)
    }

    /// Runs the steps after the first in the memory of the first one's result; `way` is how the first step ran.
    #[track_caller]
    pub(crate) fn finish_bounded(&self, at: Array, way: Way) -> Result<Array> {
        let flew = self.legs().next().is_some_and(|first| !first.is_local());
        move_into(self, 1, at, way == Way::Whole && flew)
    }

    /// What [`run_bounded`](Self::run_bounded) costs.
    pub(crate) fn bounded_forecast(&self, dtype: DType, way: Way) -> PlanCost {
        let Some(first) = self.legs().next() else {
            return PlanCost::default();
        };
        let mut total = fresh_forecast(self, &first, way, dtype);
        let rest = forecast_into(self, 1, dtype, way == Way::Whole && !first.is_local());
        total.bytes += rest.bytes;
        total.messages += rest.messages;
        total.rounds += rest.rounds;
        total.peak = total.peak.max(rest.peak);
        total
    }
}

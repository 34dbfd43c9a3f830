//! What a plan will do, told before it runs.

use crate::{Considered, Method, Plan, Step};
use shard_comm::{DType, Monoid, ONE_ROUND_BYTES, all_reduce_received, staged_all_reduce};
use shard_spec::{DeviceMesh, ReduceOp, numel};
use std::fmt;

/// What running a plan costs one rank, as its ledger will show it. Sums over ranks that send messages go in stages, whose messages and
/// rounds these are, if the plan has a [model](crate::CostModel) of their links.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PlanCost {
    /// Bytes received from other ranks.
    pub bytes: u64,
    /// Ranks received from, summed over rounds.
    pub messages: u64,
    /// Number of rendezvous.
    pub rounds: u64,
    /// Most bytes allocated at once beyond the source, including the destination; an upper bound.
    pub peak: u64,
}

/// One step of a [`PlanReport`].
#[derive(Clone, PartialEq, Debug)]
pub struct StepReport {
    /// `exchange`, `in stages` if it passes through other ranks, or `all-reduce`.
    pub kind: &'static str,
    /// The layout after the step, in short form.
    pub layout: String,
    /// What the step costs this rank; the peak is that of the step alone.
    pub mine: PlanCost,
    /// Most bytes received by one rank; a bound for meshes of more than 64 ranks.
    pub most_received: u64,
    /// Most bytes sent by one rank; an estimate for meshes of more than 64 ranks.
    pub most_sent: u64,
    /// Seconds by the plan's model, or by [`CostModel::shared_memory`](crate::CostModel::shared_memory) if it has none.
    pub seconds: f64,
}

/// A plan in words and figures; prints as a table.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanReport {
    /// The layouts passed through, such as `S(0)[0]S(0)[1] → R S(0)`; see [`Plan::trace`].
    pub trace: String,
    /// The plan's method.
    pub method: Method,
    /// The steps, in order.
    pub steps: Vec<StepReport>,
    /// The totals of this rank.
    pub mine: PlanCost,
    /// The totals of this rank if the array moves in its own memory ([`Plan::run_into`]); the peak then counts the
    /// source.
    pub in_place: Option<PlanCost>,
    /// The methods compared, if there was a choice.
    pub considered: Vec<Considered>,
    /// Why this method was taken.
    pub why: String,
}

impl Plan {
    /// Elements of the given type that this rank receives from others when the plan runs.
    pub fn received(&self, dtype: DType) -> usize {
        let bytes = self.forecast(dtype).bytes as usize;
        bytes / dtype.size()
    }

    /// What this rank will move and hold when the plan runs.
    ///
    /// Bytes, messages and rounds are what the ledger will count; the peak is an upper bound.
    pub fn forecast(&self, dtype: DType) -> PlanCost {
        if let Some(first) = self.bounded(dtype) {
            return self.bounded_forecast(dtype, first);
        }
        let mut total = PlanCost::default();
        for step in &self.steps {
            let cost = self.step_forecast(step, dtype);
            total.bytes += cost.bytes;
            total.messages += cost.messages;
            total.rounds += cost.rounds;
            // A slower rank may still be reading what an earlier step left here, so nothing is sure to be free.
            total.peak += cost.peak;
        }
        total
    }

    /// The plan in words and figures, for elements of this type.
    ///
    /// ```
    /// use shard_comm::DType;
    /// use shard_redistribute::Plan;
    /// use shard_spec::{DeviceMesh, Layout};
    /// let mesh = DeviceMesh::new(&[2, 2])?;
    /// let from = Layout::parse(&mesh, &[8, 4], "S(0) S(0)")?;
    /// let to = Layout::parse(&mesh, &[8, 4], "R S(0)")?;
    /// let told = Plan::new(&from, &to, 1)?.explain(DType::F32);
    /// assert_eq!(told.trace, "S(0)[0]S(0)[1] → R S(0)");
    /// // Rank 1 holds rows 2 and 3, and wants rows 4 to 7.
    /// assert_eq!((told.mine.bytes, told.mine.messages), (4 * 16, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn explain(&self, dtype: DType) -> PlanReport {
        let shared = crate::CostModel::shared_memory();
        let model = self.choice.as_ref().map_or(&shared, |c| &c.model);
        let size = dtype.size() as u64;
        let steps = self.steps.iter().zip(&self.hops).map(|(step, hop)| {
            let cost = hop.cost(model, dtype.size());
            StepReport {
                kind: match step {
                    Step::Exchange(e, _) if e.stages().len() > 1 => "in stages",
                    Step::Exchange(..) => "exchange",
                    Step::AllReduce(..) => "all-reduce",
                },
                layout: step.layout().to_string(),
                mine: self.step_forecast(step, dtype),
                most_received: cost.received as u64 * size,
                most_sent: cost.sent as u64 * size,
                seconds: cost.time,
            }
        });
        PlanReport {
            trace: self.trace(),
            method: self.method(),
            steps: steps.collect(),
            mine: self.forecast(dtype),
            in_place: self.forecast_into(dtype).ok(),
            considered: self.considered().to_vec(),
            why: self.why() + self.bounds(dtype),
        }
    }

    /// What to say about the memory that the plan keeps to.
    fn bounds(&self, dtype: DType) -> &'static str {
        match self.bounded(dtype) {
            Some(_) => "; by rounds, to stay within the staging",
            None => "",
        }
    }

    fn why(&self) -> String {
        if self.steps.is_empty() {
            return "source and destination are the same layout".to_owned();
        }
        if !self.communicates() {
            return "every rank holds what it needs already".to_owned();
        }
        let Some(choice) = &self.choice else {
            return "no model was given: the direct way, in which every rank receives least"
                .to_owned();
        };
        let best = &choice.considered[choice.best];
        let rival = choice
            .considered
            .iter()
            .enumerate()
            .filter(|(i, c)| *i != choice.best && c.staging <= choice.model.staging)
            .map(|(_, c)| c)
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds));
        match rival {
            None => "there is no other way".to_owned(),
            Some(next) => format!(
                "{} at {} is the cheapest; next {} at {}",
                best.method,
                Seconds(best.seconds),
                next.method,
                Seconds(next.seconds)
            ),
        }
    }

    fn block(&self, step: &Step, dtype: DType) -> usize {
        let rank = self.from.mesh().ranks()[self.index];
        let shape = step.layout().local_shape(rank).unwrap_or_default();
        numel(&shape) * dtype.size()
    }

    pub(crate) fn step_forecast(&self, step: &Step, dtype: DType) -> PlanCost {
        let block = self.block(step, dtype);
        match step {
            Step::Exchange(exchange, _) => {
                let mut moved = PlanCost::default();
                for stage in exchange.stages() {
                    moved.bytes += (stage.remote_elements(self.index) * dtype.size()) as u64;
                    moved.messages += stage.remote_messages(self.index) as u64;
                    moved.rounds += u64::from(!exchange.is_local());
                }
                let block = block + exchange.between() * dtype.size();
                PlanCost {
                    peak: match exchange.plan().widens(dtype) {
                        true => (block + block / dtype.size() * DType::F32.size()) as u64,
                        false => block as u64,
                    },
                    ..moved
                }
            }
            Step::AllReduce(axes, op, _) => {
                let (ranks, me) = position(self.from.mesh(), axes, self.index);
                let len = block / dtype.size();
                self.staged_sum(len, dtype, axes, (me, ranks), *op)
                    .unwrap_or_else(|| all_reduce_forecast(len, dtype, ranks, me))
            }
        }
    }

    /// The all-reduce of ranks that send messages, if it goes in stages at what the plan's model says of their links.
    fn staged_sum(
        &self,
        len: usize,
        dtype: DType,
        axes: &[usize],
        place: (usize, usize),
        op: ReduceOp,
    ) -> Option<PlanCost> {
        let model = &self.choice.as_ref()?.model;
        if !model.sender_pays {
            return None;
        }
        let moves = staged_all_reduce(len, dtype, place, Monoid::Op(op), model.worst(axes))?;
        Some(PlanCost {
            bytes: moves.bytes,
            messages: moves.messages,
            rounds: moves.rounds,
            peak: moves.allocated,
        })
    }
}

/// What an all-reduce of `len` elements costs member `me` of a group of `ranks`.
pub(crate) fn all_reduce_forecast(len: usize, dtype: DType, ranks: usize, me: usize) -> PlanCost {
    let block = len * dtype.size();
    let received = all_reduce_received(len, dtype.size(), ranks, me, 1);
    // The rule by which the communicator chooses one round or two.
    let one_round = ranks == 1 || block <= ONE_ROUND_BYTES;
    let others = ranks as u64 - 1;
    let chunk = len / ranks + usize::from(me < len % ranks);
    let messages = match one_round {
        true => others * u64::from(len > 0),
        false => {
            let owners = ranks.min(len) as u64;
            others * u64::from(chunk > 0) + owners - u64::from(chunk > 0)
        }
    };
    PlanCost {
        bytes: (received * dtype.size()) as u64,
        messages,
        rounds: match (ranks, one_round) {
            (1, _) => 0,
            (_, true) => 1,
            (_, false) => 2,
        },
        peak: match (ranks, one_round) {
            (1, _) => 0,
            (_, true) => block as u64,
            (_, false) => (block + chunk * dtype.size()) as u64,
        },
    }
}

/// How many ranks lie along `axes`, and the place among them of the rank at `index`.
pub(crate) fn position(mesh: &DeviceMesh, axes: &[usize], index: usize) -> (usize, usize) {
    let coords = mesh.coords_at(index);
    let axes: Vec<usize> = (0..mesh.ndim()).filter(|a| axes.contains(a)).collect();
    (mesh.part_count(&axes), mesh.part_at(&axes, &coords))
}

/// Seconds in a readable unit.
pub(crate) struct Seconds(pub(crate) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0.0 => "0 s".to_owned(),
            s if s < 1e-6 => format!("{:.1} ns", s * 1e9),
            s if s < 1e-3 => format!("{:.1} us", s * 1e6),
            s if s < 1.0 => format!("{:.1} ms", s * 1e3),
            s => format!("{s:.2} s"),
        };
        f.pad(&text)
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}  ({})", self.trace, self.method)?;
        for (i, s) in self.steps.iter().enumerate() {
            writeln!(
                f,
                "  {}. {:<10} to {:<24} {:>12} B in {:>3} messages, {} rounds, allocates {} B; busiest receives {} B, sends {} B; {}",
                i + 1,
                s.kind,
                s.layout,
                s.mine.bytes,
                s.mine.messages,
                s.mine.rounds,
                s.mine.peak,
                s.most_received,
                s.most_sent,
                Seconds(s.seconds),
            )?;
        }
        writeln!(
            f,
            "  this rank: {} B, {} messages, {} rounds, peak {} B",
            self.mine.bytes, self.mine.messages, self.mine.rounds, self.mine.peak
        )?;
        if let Some(own) = &self.in_place {
            writeln!(
                f,
                "  in its own memory: {} messages, {} rounds, peak {} B with the source",
                own.messages, own.rounds, own.peak
            )?;
        }
        writeln!(f, "  {}", self.why)?;
        for c in &self.considered {
            writeln!(
                f,
                "    {:<16} {:>10}  staging {:>12} B  {}",
                c.method.to_string(),
                Seconds(c.seconds).to_string(),
                c.staging,
                c.trace
            )?;
        }
        Ok(())
    }
}

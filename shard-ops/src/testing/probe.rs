//! An op with each of its factors sharded and each of its linear operands split into terms.

use super::arrays::piece;
use super::compare::difference_at;
use super::{
    AxisChoice, Data, OpSample, Rng, Split, Tensor, Tolerance, choices, difference, layout,
    local_indices, place, whole,
};
use crate::error::InOp;
use crate::{Choice, Engine, EngineOptions, Linearity, OpError, Result, Rule, Strategy, Value};
use shard_comm::DType;
use shard_redistribute::{MeshComm, RedistributeError};
use shard_spec::{DeviceMesh, DimSharding, Layout};
use std::rc::Rc;

/// A choice of layouts for a sample's operands, and what it is meant to show.
#[derive(Clone, Debug)]
pub struct Probe {
    /// In words, such as `factor 2 over axes [0, 1], Gaps`.
    pub what: String,
    /// The operands' layouts.
    pub layouts: Vec<Layout>,
    /// What the engine must do, if it is not to choose itself.
    pub choice: Option<Choice>,
}

/// A probe that did not give what one rank gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The op, and the shapes of its operands.
    pub op: String,
    /// What the probe was meant to show.
    pub what: String,
    /// The operands' layouts.
    pub layouts: Vec<String>,
    /// What was not as on one rank.
    pub problem: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layouts = self.layouts.join(" | ");
        write!(
            f,
            "{}: {} [{layouts}]: {}",
            self.op, self.what, self.problem
        )
    }
}

/// Probes for a sample on a mesh: every factor of the op's rule over all axes of the mesh and over the last alone, cut in each of
/// these ways, once as the operands' layouts ask for and once whatever they are; and every operand the rule calls linear as
/// terms of a sum.
///
/// # Errors
/// What the op's rule reports about operands it was applied to before, which would be a mistake.
pub fn probes(
    sample: &OpSample,
    mesh: &DeviceMesh,
    splits: &[Split],
    seed: u64,
) -> Result<Vec<Probe>> {
    let rule = sample.op.rule(&sample.metas)?;
    let mut probing = Probing {
        sample,
        mesh,
        rng: Rng::new(seed, &["probe", sample.op.name()]),
        probes: Vec::new(),
    };
    let axis_sets: Vec<Vec<usize>> = match mesh.ndim() {
        1 => vec![vec![0]],
        n => vec![(0..n).collect(), vec![n - 1]],
    };
    for axes in &axis_sets {
        for factor in 0..rule.factors().len() {
            for &split in splits {
                probing.factor(&rule, factor, axes, split)?;
            }
        }
        let linear: Vec<Vec<usize>> = match rule.linearity() {
            Linearity::None => Vec::new(),
            Linearity::Each(operands) => operands.iter().map(|&i| vec![i]).collect(),
            Linearity::Joint => vec![(0..sample.inputs.len()).collect()],
        };
        for operands in linear {
            probing.terms(&operands, axes)?;
        }
    }
    Ok(probing.probes)
}

/// Probes as they are made.
struct Probing<'a> {
    sample: &'a OpSample,
    mesh: &'a DeviceMesh,
    rng: Rng,
    probes: Vec<Probe>,
}

impl Probing<'_> {
    /// A factor over these axes: as the operands lie, and forced.
    fn factor(&mut self, rule: &Rule, factor: usize, axes: &[usize], split: Split) -> Result<()> {
        // Uneven cuts are alike where the extents are, so that operands are aligned; gaps are not.
        let alike = self.rng.clone();
        let mut layouts = Vec::with_capacity(self.sample.inputs.len());
        for (t, dims) in self.sample.inputs.iter().zip(rule.inputs()) {
            if split == Split::Uneven {
                self.rng = alike.clone();
            }
            let dim = dims.iter().position(|a| a.factor_index() == Some(factor));
            let by = |a: usize| match dim {
                Some(d) if axes.contains(&a) => AxisChoice::Shard(d),
                _ => AxisChoice::Replicate,
            };
            layouts.push(self.lay(t, by, split)?);
        }
        self.push(
            format!("factor {factor} over {axes:?}, {split:?}"),
            layouts,
            None,
        );

        let mut choice = Choice::none(rule);
        let parts = self.mesh.part_count(axes);
        choice.factors[factor] = Some(DimSharding {
            axes: axes.iter().copied().collect(),
            partition: split.partition(rule.factors()[factor], parts, &mut self.rng),
        });
        let layouts = self.anything()?;
        let what = format!("factor {factor} forced over {axes:?}, {split:?}");
        self.push(what, layouts, Some(choice));
        Ok(())
    }

    /// Some operands as terms of a sum along these axes.
    fn terms(&mut self, operands: &[usize], axes: &[usize]) -> Result<()> {
        let mut layouts = Vec::with_capacity(self.sample.inputs.len());
        for (i, t) in self.sample.inputs.iter().enumerate() {
            let by = |a: usize| match operands.contains(&i) && axes.contains(&a) {
                true => AxisChoice::Partial,
                false => AxisChoice::Replicate,
            };
            layouts.push(self.lay(t, by, Split::Even)?);
        }
        let what = format!("operands {operands:?} as terms over {axes:?}");
        self.push(what, layouts, None);
        Ok(())
    }

    /// Random layouts for the operands: copies half of the time.
    fn anything(&mut self) -> Result<Vec<Layout>> {
        let mut layouts = Vec::with_capacity(self.sample.inputs.len());
        for t in &self.sample.inputs {
            let all = choices(t.shape.len(), true);
            let axes: Vec<AxisChoice> = (0..self.mesh.ndim())
                .map(|_| match self.rng.one_in(2) {
                    true => AxisChoice::Replicate,
                    false => all[self.rng.below(all.len())],
                })
                .collect();
            let split = Split::ALL[self.rng.below(Split::ALL.len())];
            layouts.push(self.lay(t, |a| axes[a], split)?);
        }
        Ok(layouts)
    }

    fn lay(
        &mut self,
        t: &Tensor,
        by: impl Fn(usize) -> AxisChoice,
        split: Split,
    ) -> Result<Layout> {
        let axes: Vec<AxisChoice> = (0..self.mesh.ndim()).map(by).collect();
        layout(self.mesh, &t.shape, &axes, split, &mut self.rng).in_op(self.sample.op.name())
    }

    fn push(&mut self, what: String, layouts: Vec<Layout>, choice: Option<Choice>) {
        self.probes.push(Probe {
            what,
            layouts,
            choice,
        });
    }
}

/// Applies samples under their probes on the members of a mesh, and gives what was not as on one rank: each rank what it finds in
/// its pieces. Whole numbers must be equal, others as close as a type's digits allow.
///
/// # Collective
/// All members of the mesh.
pub fn differences(cx: &Rc<MeshComm>, work: &[(&OpSample, Probe)]) -> Vec<Difference> {
    let engine = Engine::new(EngineOptions::default());
    let mut found = Vec::new();
    for (sample, probe) in work {
        let outputs = inputs_of(cx, sample, probe)
            .and_then(|inputs| apply(&engine, sample, probe, &inputs, cx.rank()));
        let problem = match &outputs {
            Err(error) => Some(error.to_string()),
            Ok(outputs) => first_difference("output", sample, &sample.outputs, outputs),
        };
        found.extend(problem.map(|problem| Difference::of(sample, probe, problem)));
    }
    found
}

impl Difference {
    pub(super) fn of(sample: &OpSample, probe: &Probe, problem: String) -> Self {
        let shapes: Vec<&[usize]> = sample.inputs.iter().map(|t| &t.shape[..]).collect();
        Self {
            op: format!("{:?} {shapes:?}", sample.op),
            what: probe.what.clone(),
            layouts: probe.layouts.iter().map(Layout::to_string).collect(),
            problem,
        }
    }
}

/// A sample's operands, placed as a probe says.
pub(super) fn inputs_of(cx: &Rc<MeshComm>, sample: &OpSample, probe: &Probe) -> Result<Vec<Value>> {
    let operands = sample.inputs.iter().zip(&sample.metas).zip(&probe.layouts);
    let placed = operands.map(|((t, meta), layout)| place(cx, layout, t, meta.dtype));
    placed
        .map(|array| Ok(Value::new(array.in_op("place")?)))
        .collect()
}

/// The first of several results that is not as expected, in words: of a result that is a sum, anywhere, else in this rank's piece.
pub(super) fn first_difference(
    what: &str,
    sample: &OpSample,
    expected: &[Tensor],
    got: &[Value],
) -> Option<String> {
    let pairs = expected.iter().zip(got).enumerate();
    let found = pairs.map(|(i, (e, got))| {
        let found = match result_difference(e, got, tolerance_for(e, sample, got.dtype())) {
            Ok(found) => found,
            Err(error) => Some(error.to_string()),
        };
        found.map(|d| format!("{what} {i}: {d}"))
    });
    // All are looked at, whatever is found: another rank may find nothing, and the terms of the next are summed together.
    found.collect::<Vec<_>>().into_iter().flatten().next()
}

/// What of a result is not as expected. What a rank holds is compared where it is, copies too; terms are summed first.
fn result_difference(
    expected: &Tensor,
    got: &Value,
    tolerance: Tolerance,
) -> std::result::Result<Option<String>, RedistributeError> {
    let (array, layout) = (got.array(), got.layout());
    if layout.is_partial() || layout.shape() != expected.shape {
        return Ok(difference(expected, &whole(array)?, tolerance));
    }
    let held = local_indices(layout, array.cx().rank()).unwrap_or_default();
    let found = difference_at(expected, &held, &piece(array)?, tolerance);
    Ok(found.map(|found| format!("the piece of rank {}: {found}", array.cx().rank())))
}

/// Applies a sample's op as the engine chooses, or as the probe says. Operands of a mesh that numbers its ranks
/// from 0.
fn apply(
    engine: &Engine,
    sample: &OpSample,
    probe: &Probe,
    inputs: &[Value],
    rank: usize,
) -> Result<Vec<Value>, OpError> {
    let Some(choice) = &probe.choice else {
        return crate::Exec::apply(
            engine,
            sample.op.clone(),
            &inputs.iter().collect::<Vec<_>>(),
        );
    };
    let rule = sample.op.rule(&sample.metas)?;
    let layouts: Vec<&Layout> = probe.layouts.iter().collect();
    let strategy = Strategy::forced(&rule, &layouts, choice, rank)?;
    let arrays: Vec<_> = inputs.iter().map(Value::array).collect();
    let outputs = engine.run_strategy(&sample.op, &rule, &strategy, &arrays)?;
    Ok(outputs.into_iter().map(Value::new).collect())
}

/// What another order of a sum may change.
fn tolerance_for(expected: &Tensor, sample: &OpSample, made: DType) -> Tolerance {
    let digits = |dtype: DType| -> f64 {
        match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 1e-2,
            DType::BF16 => 5e-2,
            _ => 1e-12,
        }
    };
    let coarsest = (sample.metas.iter()).fold(digits(made), |c, meta| c.max(digits(meta.dtype)));
    match &*expected.data {
        Data::F64(v) if v.iter().any(|x| x.fract() != 0.0) => Tolerance::relative(coarsest),
        _ => Tolerance::EXACT,
    }
}

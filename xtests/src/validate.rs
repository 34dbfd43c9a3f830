//! The rule validator: every op, as it was applied on one rank, applied again with each of its factors sharded
//! and each of its linear operands split into terms.

use crate::arrays::{place, tensor, whole};
use crate::case::Tensor;
use crate::compare::{Tolerance, difference};
use crate::harness::{On, on_mesh};
use crate::layouts::{AxisChoice, Operand, Split, choices, layout};
use crate::rng::Rng;
use shard_comm::DType;
use shard_ops::{
    Choice, Engine, EngineOptions, Exec, Linearity, Meta, Op, OpError, Strategy, Value,
};
use shard_spec::{DeviceMesh, DimSharding, Layout, SpecError};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// One application of an op on one rank.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The op with its attributes.
    pub op: Arc<dyn Op>,
    /// What it was given.
    pub inputs: Vec<Tensor>,
    /// What it gave.
    pub outputs: Vec<Tensor>,
}

impl Sample {
    /// Shapes and types of the operands.
    pub fn metas(&self) -> Vec<Meta> {
        let meta = |t: &Tensor| Meta {
            shape: t.shape.iter().copied().collect(),
            dtype: t.data.dtype(),
        };
        self.inputs.iter().map(meta).collect()
    }
}

/// An executor that remembers every op applied through it. For one rank.
pub struct Capture {
    engine: Rc<Engine>,
    samples: RefCell<Vec<Sample>>,
}

impl Capture {
    /// An executor that has seen nothing.
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            engine: Engine::new(EngineOptions::default()),
            samples: RefCell::default(),
        })
    }

    /// What was applied so far.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.borrow().clone()
    }
}

impl Exec for Capture {
    fn apply(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Vec<Value>, OpError> {
        let outputs = self.engine.apply(op.clone(), inputs)?;
        let read = |v: &Value| {
            if v.array().buffer().is_none() {
                // An operand of which only the shape counts: the tape keeps no elements of those.
                return Ok(tensor(v.shape(), |_| 0.0));
            }
            whole(v.array()).map_err(|source| OpError::Redistribute {
                op: "capture",
                source: source.into(),
            })
        };
        let sample = Sample {
            op,
            inputs: inputs.iter().copied().map(read).collect::<Result<_, _>>()?,
            outputs: outputs.iter().map(read).collect::<Result<_, _>>()?,
        };
        self.samples.borrow_mut().push(sample);
        Ok(outputs)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value, OpError> {
        self.engine.redistribute(value, to)
    }
}

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

/// Probes for a sample on a mesh: every factor of the op's rule over all axes of the mesh and over the last
/// alone, with uneven and partly empty cuts, once as the operands' layouts ask for and once whatever they are;
/// and every operand the rule calls linear as terms of a sum.
///
/// # Errors
/// What the op's rule reports about operands it was applied to before, which would be a mistake.
pub fn probes(sample: &Sample, mesh: &DeviceMesh, seed: u64) -> Result<Vec<Probe>, OpError> {
    let rule = sample.op.rule(&sample.metas())?;
    let mut rng = Rng::new(seed, &["probe", sample.op.name()]);
    let mut probes = Vec::new();
    let axis_sets: Vec<Vec<usize>> = if mesh.ndim() == 1 {
        vec![vec![0]]
    } else {
        vec![(0..mesh.ndim()).collect(), vec![mesh.ndim() - 1]]
    };
    for axes in &axis_sets {
        for factor in 0..rule.factors().len() {
            for split in [Split::Uneven, Split::Gaps] {
                // Uneven cuts are alike where the extents are, so that operands are aligned; gaps are not.
                let alike = rng.clone();
                let layouts = sample.inputs.iter().zip(rule.inputs()).map(|(t, dims)| {
                    if split == Split::Uneven {
                        rng = alike.clone();
                    }
                    let dim = dims.iter().position(|a| a.factor_index() == Some(factor));
                    let axes: Vec<AxisChoice> = (0..mesh.ndim())
                        .map(|a| match dim {
                            Some(d) if axes.contains(&a) => AxisChoice::Shard(d),
                            _ => AxisChoice::Replicate,
                        })
                        .collect();
                    layout(mesh, &t.shape, &axes, split, &mut rng)
                });
                let layouts =
                    layouts
                        .collect::<Result<_, _>>()
                        .map_err(|source| OpError::Spec {
                            op: rule.name(),
                            source: source.into(),
                        })?;
                let what = format!("factor {factor} over {axes:?}, {split:?}");
                probes.push(Probe {
                    what,
                    layouts,
                    choice: None,
                });
                let mut choice = Choice::none(&rule);
                let parts = axes.iter().map(|&a| mesh.axis_size(a)).product();
                choice.factors[factor] = Some(DimSharding {
                    axes: axes.iter().copied().collect(),
                    partition: split.partition(rule.factors()[factor], parts, &mut rng),
                });
                let layouts = anything(sample, mesh, &mut rng).map_err(|source| OpError::Spec {
                    op: rule.name(),
                    source: source.into(),
                })?;
                let what = format!("factor {factor} forced over {axes:?}, {split:?}");
                probes.push(Probe {
                    what,
                    layouts,
                    choice: Some(choice),
                });
            }
        }
        let linear: Vec<Vec<usize>> = match rule.linearity() {
            Linearity::None => Vec::new(),
            Linearity::Each(operands) => operands.iter().map(|&i| vec![i]).collect(),
            Linearity::Joint => vec![(0..sample.inputs.len()).collect()],
        };
        for operands in linear {
            let layouts = sample.inputs.iter().enumerate().map(|(i, t)| {
                let axes: Vec<AxisChoice> = (0..mesh.ndim())
                    .map(|a| {
                        let terms = operands.contains(&i) && axes.contains(&a);
                        if terms {
                            AxisChoice::Partial
                        } else {
                            AxisChoice::Replicate
                        }
                    })
                    .collect();
                layout(mesh, &t.shape, &axes, Split::Even, &mut rng)
            });
            let layouts = layouts
                .collect::<Result<_, _>>()
                .map_err(|source| OpError::Spec {
                    op: rule.name(),
                    source: source.into(),
                })?;
            let what = format!("operands {operands:?} as terms over {axes:?}");
            probes.push(Probe {
                what,
                layouts,
                choice: None,
            });
        }
    }
    Ok(probes)
}

/// Random layouts for a sample's operands: copies half of the time.
fn anything(sample: &Sample, mesh: &DeviceMesh, rng: &mut Rng) -> Result<Vec<Layout>, SpecError> {
    let of = |t: &Tensor| {
        let all = choices(&Operand {
            shape: t.shape.clone(),
            sums: true,
        });
        let axes: Vec<AxisChoice> = (0..mesh.ndim())
            .map(|_| {
                if rng.one_in(2) {
                    AxisChoice::Replicate
                } else {
                    all[rng.below(all.len())]
                }
            })
            .collect();
        let split = Split::ALL[rng.below(Split::ALL.len())];
        layout(mesh, &t.shape, &axes, split, rng)
    };
    sample.inputs.iter().map(of).collect()
}

/// Applies samples with all their probes on a mesh and returns what was not as on one rank, in words.
///
/// Whole numbers must be equal, others to 1e-12 of the largest.
pub fn validate(samples: &[Sample], mesh: &DeviceMesh, seed: u64) -> Vec<String> {
    let mut work = Vec::new();
    let mut problems = Vec::new();
    for sample in samples {
        match probes(sample, mesh, seed) {
            Ok(all) => work.extend(all.into_iter().map(|p| (sample, p))),
            Err(error) => problems.push(format!("{:?}: {error}", sample.op)),
        }
    }
    let found =
        on_mesh(mesh, On::Host, |cx| {
            let engine = Engine::new(EngineOptions::default());
            let mut found = Vec::new();
            for (sample, probe) in &work {
                let inputs: Result<Vec<Value>, _> = sample
                    .inputs
                    .iter()
                    .zip(&probe.layouts)
                    .map(|(t, l)| place(cx, l, t, DType::F64).map(Value::new))
                    .collect();
                let outputs = inputs
                    .map_err(|source| OpError::Redistribute {
                        op: "place",
                        source: source.into(),
                    })
                    .and_then(|inputs| apply(&engine, sample, probe, &inputs, cx.rank()));
                let problem =
                    match outputs {
                        Err(error) => Some(error.to_string()),
                        Ok(outputs) => sample.outputs.iter().zip(&outputs).enumerate().find_map(
                            |(i, (e, got))| {
                                let difference = match whole(got.array()) {
                                    Ok(got) => difference(e, &got, tolerance_for(e)),
                                    Err(error) => Some(error.to_string()),
                                };
                                difference.map(|d| format!("output {i}: {d}"))
                            },
                        ),
                    };
                found.extend(problem.map(|p| {
                    let layouts: Vec<String> =
                        probe.layouts.iter().map(Layout::to_string).collect();
                    let shapes: Vec<&[usize]> =
                        sample.inputs.iter().map(|t| &t.shape[..]).collect();
                    format!(
                        "{:?} {shapes:?}: {} [{}]: {p}",
                        sample.op,
                        probe.what,
                        layouts.join(" | ")
                    )
                }));
            }
            found
        });
    for rank in found.iter().skip(1) {
        if rank.len() != found[0].len() {
            problems.push(format!("ranks differ: {:?} and {:?}", found[0], rank));
        }
    }
    problems.extend(found.into_iter().next().unwrap_or_default());
    problems
}

/// Applies a sample's op as the engine chooses, or as the probe says. Operands of a mesh that numbers its ranks
/// from 0.
fn apply(
    engine: &Engine,
    sample: &Sample,
    probe: &Probe,
    inputs: &[Value],
    rank: usize,
) -> Result<Vec<Value>, OpError> {
    let Some(choice) = &probe.choice else {
        return engine.apply(sample.op.clone(), &inputs.iter().collect::<Vec<_>>());
    };
    let rule = sample.op.rule(&sample.metas())?;
    let layouts: Vec<&Layout> = probe.layouts.iter().collect();
    let strategy = Strategy::forced(&rule, &layouts, choice, rank)?;
    let arrays: Vec<_> = inputs.iter().map(Value::array).collect();
    let outputs = engine.run_strategy(&sample.op, &rule, &strategy, &arrays)?;
    Ok(outputs.into_iter().map(Value::new).collect())
}

fn tolerance_for(expected: &Tensor) -> Tolerance {
    match &*expected.data {
        crate::case::Data::F64(v) if v.iter().any(|x| x.fract() != 0.0) => {
            Tolerance::relative(1e-12)
        }
        _ => Tolerance::EXACT,
    }
}

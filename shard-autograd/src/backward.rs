//! Derivatives with respect to leaves, and with respect to any values.

use crate::gradients::Gradients;
use crate::law::gradient_layout;
use crate::node::{Outlet, ValueId};
use crate::pass::{Pass, Want};
use crate::{AutogradError, Recorder, Result};
use shard_comm::{Scalar, Strided};
use shard_ops::Value;
use shard_redistribute::{Array, Incompatible, RedistributeError};
use shard_spec::Layout;
use std::collections::BTreeSet;

impl Recorder {
    /// Computes the gradients of `loss` with respect to every leaf it depends on.
    ///
    /// `seed` is the cotangent of the loss, of the loss's shape and type and in any layout; a loss of one element needs none.
    /// A partial loss counts as the value it stands for. The graph is kept, so another pass may follow.
    ///
    /// Nodes are visited in reverse order of creation, which is the same on every rank, so that the
    /// communication of the vjps matches.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// [`NotTracked`](AutogradError::NotTracked) if the loss depends on no leaf;
    /// [`SeedNeeded`](AutogradError::SeedNeeded); [`Cotangent`](AutogradError::Cotangent) if the seed does not
    /// fit, [`Incompatible`](RedistributeError::Incompatible) if it lies on another mesh; whatever vjps and hooks report.
    pub fn backward(&self, loss: &Value, seed: Option<&Value>) -> Result<Gradients> {
        let slot = self.slot_of("backward", "the loss", loss)?;
        let seed = seed_of("backward", loss, seed)?;
        let pass = Pass {
            recorder: self,
            recorded: false,
            want: Want::Leaves,
            floor: 0,
        };
        Ok(Gradients::new(self, pass.run(vec![(slot, seed)])?))
    }

    /// As [`backward`](Self::backward), with respect to these leaves alone: what leads to others only is not differentiated. Leaves that are
    /// frozen are left out.
    ///
    /// # Collective
    /// All ranks of the program, with the same leaves.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`NotTracked`](AutogradError::NotTracked) if the loss depends on none of the leaves.
    pub fn backward_to(&self, loss: &Value, leaves: &[&Value]) -> Result<Gradients> {
        const OP: &str = "backward_to";
        let slot = self.slot_of(OP, "the loss", loss)?;
        let seed = seed_of(OP, loss, None)?;
        let targets: BTreeSet<ValueId> = (leaves.iter())
            .filter_map(|leaf| Some(self.own_slot(leaf).filter(|s| !s.frozen)?.id()))
            .collect();
        let pass = Pass {
            recorder: self,
            recorded: false,
            floor: targets.first().map_or(0, |t| t.node),
            want: Want::Values(targets),
        };
        let found = pass.run(vec![(slot, seed)])?;
        if found.0.is_empty() {
            return Err(AutogradError::NotTracked {
                op: OP,
                what: "the loss, from any of the leaves,".into(),
                fix: "name leaves that it was computed from and that are not frozen",
            });
        }
        Ok(Gradients::new(self, found))
    }

    /// The gradients of `outputs` with respect to `inputs`, which may be leaves or not: the sum over the outputs of their
    /// vector-Jacobian products with `cotangents`. `None` for an input that no output depends on.
    ///
    /// An input that depends on another input of the list does not hide it: each gradient counts every path from its input to
    /// the outputs. With `create_graph` the gradients are themselves on the tape, for derivatives of higher order.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Count`](AutogradError::Count) if there are not as many cotangents as outputs. An
    /// empty list stands for the default cotangents.
    pub fn grad(
        &self,
        outputs: &[&Value],
        inputs: &[&Value],
        cotangents: &[Option<&Value>],
        create_graph: bool,
    ) -> Result<Vec<Option<Value>>> {
        if !cotangents.is_empty() && cotangents.len() != outputs.len() {
            return Err(AutogradError::Count {
                op: "grad",
                what: "cotangents",
                expected: outputs.len(),
                got: cotangents.len(),
                fix: "pass one per output, `None` for the default, or an empty list",
            });
        }
        let targets = (inputs.iter().enumerate())
            .map(|(i, v)| Ok(self.slot_of("grad", &format!("input {i}"), v)?.id()))
            .collect::<Result<Vec<_>>>()?;
        let mut seeds = Vec::with_capacity(outputs.len());
        for (i, output) in outputs.iter().enumerate() {
            let slot = self.slot_of("grad", &format!("output {i}"), output)?;
            seeds.push((
                slot,
                seed_of("grad", output, cotangents.get(i).copied().flatten())?,
            ));
        }
        let pass = Pass {
            recorder: self,
            recorded: create_graph,
            want: Want::Values(targets.iter().copied().collect()),
            floor: targets.iter().map(|t| t.node).min().unwrap_or(0),
        };
        let (found, early) = pass.run(seeds)?;
        if create_graph {
            return Ok(targets
                .iter()
                .map(|t| found.get(t).map(|f| f.value.clone()))
                .collect());
        }
        let gradients = Gradients::new(self, (found, early));
        targets.iter().map(|&t| gradients.get_id(t)).collect()
    }
}

/// The cotangent that a pass starts from.
fn seed_of(op: &'static str, value: &Value, seed: Option<&Value>) -> Result<Value> {
    let outlet = Outlet::of(value.array());
    if let Some(seed) = seed {
        check_cotangent(
            op,
            || "the seed".to_owned(),
            &outlet,
            seed,
            "pass a seed of the value's",
        )?;
        return Ok(seed.clone());
    }
    if value.shape().iter().product::<usize>() != 1 {
        return Err(AutogradError::SeedNeeded {
            op,
            shape: value.shape().to_vec(),
        });
    }
    let layout = gradient_layout(value.layout());
    let array = value.array();
    let buffer = match array.buffer() {
        None => None,
        // The piece of the gradient is as large as that of the value: the layouts differ only in partial axes.
        Some(like) => {
            let device = like.device();
            let mut ones = device.alloc(like.dtype(), like.len())?;
            device.fill(
                &mut ones,
                &Strided::contiguous(&[like.len()]),
                Scalar::F64(1.0),
            )?;
            Some(ones.freeze())
        }
    };
    Ok(Value::new(Array::from_parts(
        array.cx(),
        &layout,
        buffer,
        array.dtype(),
    )?))
}

/// Refuses a cotangent that is not of its value's shape and type, or lies on another mesh.
pub(crate) fn check_cotangent(
    op: &'static str,
    what: impl FnOnce() -> String,
    value: &Outlet,
    cotangent: &Value,
    fix: &'static str,
) -> Result<()> {
    if value.layout.shape() == cotangent.shape() && value.dtype == cotangent.dtype() {
        return match value.layout.mesh() == cotangent.layout().mesh() {
            true => Ok(()),
            false => Err(on_another_mesh(op, &value.layout, cotangent.layout())),
        };
    }
    Err(AutogradError::Cotangent {
        op,
        what: what(),
        shape: value.layout.shape().to_vec(),
        dtype: value.dtype,
        got_shape: cotangent.shape().to_vec(),
        got_dtype: cotangent.dtype(),
        fix,
    })
}

/// The error for a cotangent that could only be moved to its value by a move between meshes.
#[cold]
fn on_another_mesh(op: &'static str, value: &Layout, cotangent: &Layout) -> AutogradError {
    let refused = Incompatible {
        op,
        from: cotangent.clone(),
        to: value.clone(),
        why: "the cotangent lies on another mesh than its value",
        fix: "move it to the value's mesh first (`to_mesh`)",
    };
    RedistributeError::Incompatible(Box::new(refused)).into()
}

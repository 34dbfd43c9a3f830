//! The coordinates of affine maps.

use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, OpError, OperandBox,
    Reduction, Result, Rule, Saved, Value, key_of,
};
use shard_kernels::grid as kernels;
use shard_spec::{Dims, ReduceOp};
use smallvec::smallvec;
use std::sync::Arc;

/// The coordinates (N, `places`..., spatial dims) at which the maps `theta`, (N, spatial dims, spatial dims + 1), have every place of a plane:
/// what [`grid_sample`](super::grid_sample) takes. `aligned` as in [`Sampling`](super::Sampling).
///
/// # Collective
/// All members of the mesh. No communication.
///
/// # Errors
/// Maps of another shape; more than three spatial dims.
pub fn affine_grid(
    exec: &dyn Exec,
    theta: &Value,
    places: &[usize],
    aligned: bool,
) -> Result<Value> {
    let nd = places.len();
    if !(1..=3).contains(&nd) || theta.ndim() != 3 || theta.shape()[1..] != [nd, nd + 1] {
        return Err(OpError::Shape {
            op: "affine_grid",
            problem: format!("maps for places {places:?}"),
            shapes: vec![theta.shape().to_vec()],
            fix: "give maps (N, spatial dims, spatial dims + 1), and one to three extents",
        });
    }
    let op = AffineGrid {
        plane: places.iter().copied().collect(),
        aligned,
        adjoint: false,
    };
    exec.apply1(Arc::new(op), &[theta])
}

/// Coordinates of maps, or the adjoint: maps of coordinates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AffineGrid {
    pub(crate) plane: Dims,
    pub(crate) aligned: bool,
    pub(crate) adjoint: bool,
}

impl AffineGrid {
    /// Start and extents of a box of places.
    pub(crate) fn places<'a>(&self, grid: &'a OperandBox) -> [&'a [usize]; 2] {
        let nd = self.plane.len();
        [&grid.start[1..=nd], &grid.shape[1..=nd]]
    }
}

impl Op for AffineGrid {
    fn name(&self) -> &'static str {
        match self.adjoint {
            true => "affine_grid_adjoint",
            false => "affine_grid",
        }
    }

    fn key(&self) -> u128 {
        key_of("affine_grid", self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let (n, nd) = (inputs[0].shape[0], self.plane.len());
        let mut rule = Rule::builder(self.name(), inputs);
        let maps = Access::factor(rule.factor(n));
        let places = (self.plane.iter()).map(|&n| Access::factor(rule.factor(n)));
        let mut grid: Vec<Access> = vec![maps.clone()];
        grid.extend(places);
        grid.push(Access::WHOLE);
        let theta = vec![maps, Access::WHOLE, Access::WHOLE];
        let (from, to, shape): (_, _, Dims) = match self.adjoint {
            true => (grid, theta, smallvec![n, nd, nd + 1]),
            false => {
                let shape = [n].into_iter().chain(self.plane.iter().copied());
                (theta, grid, shape.chain([nd]).collect())
            }
        };
        rule.input(from)
            .output(to, shape, dtype)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .linearity(Linearity::Each(smallvec![0]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let grid = match self.adjoint {
            true => &call.cx.inputs[0],
            false => &call.cx.outputs[0],
        };
        let ([start, shape], aligned) = (self.places(grid), self.aligned);
        with_float!(call.dtype(), T => {
            let x = call.input::<T>(0).to_vec();
            let mut out = call.output::<T>(0);
            let out = out.data_mut();
            match self.adjoint {
                true => kernels::affine_grad(&x, out, &self.plane, start, shape, aligned),
                false => kernels::affine(&x, out, &self.plane, start, shape, aligned),
            }
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let adjoint = Self {
            adjoint: !self.adjoint,
            ..self.clone()
        };
        saved.pull_back_by(exec, cotangents, adjoint)
    }
}

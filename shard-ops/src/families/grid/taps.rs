//! Which elements of a plane coordinates read, and with what weights.

use crate::families::indexing::ABSENT;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, Result, Rule,
    RuleBuilder, Saved, key_of,
};
use shard_comm::DType;
use shard_kernels::grid as kernels;
use shard_kernels::grid::Reading;
use shard_spec::Dims;
use smallvec::smallvec;
use std::sync::Arc;

/// Of coordinates, (N, places..., spatial dims), the last dim's first, the weights and the flat indices of what is read: (N, places..., taps) each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GridTaps {
    pub(crate) reading: Reading,
    /// Extents of the plane.
    pub(crate) plane: Dims,
}

/// The gradient of coordinates: inputs are these and that of weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GridTapsGrad(pub(crate) GridTaps);

/// Accesses and extents of a side, (N, places..., and some number).
type Side = (Vec<Access>, Dims);

impl GridTaps {
    pub(crate) fn taps(&self) -> usize {
        self.reading
            .sampling
            .mode
            .taps()
            .pow(self.plane.len() as u32)
    }

    /// A rule in the making, the side of coordinates, and that of weights.
    fn sides(&self, name: &'static str, inputs: &[Meta]) -> (RuleBuilder, Side, Side) {
        let grid = &inputs[0].shape;
        let mut rule = Rule::builder(name, inputs).any_order();
        let places = &grid[..grid.len() - 1];
        let factors: Vec<Access> = (places.iter())
            .map(|&n| Access::factor(rule.factor(n)))
            .collect();
        let side = |last: usize| {
            let access = factors.iter().cloned().chain([Access::WHOLE]).collect();
            (access, places.iter().copied().chain([last]).collect())
        };
        (rule, side(self.plane.len()), side(self.taps()))
    }
}

impl Op for GridTaps {
    fn name(&self) -> &'static str {
        "grid_taps"
    }

    fn key(&self) -> u128 {
        key_of("grid_taps", self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let (rule, (grid, _), (taps, shape)) = self.sides(self.name(), inputs);
        rule.input(grid)
            .output(taps.clone(), shape.clone(), dtype)
            .output(taps, shape, DType::I64)
            .linearity(Linearity::None)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => {
            let grid = call.input::<T>(0).to_vec();
            let (mut weight, mut index) = call.output_pair::<T, i64>();
            let (weight, index) = (weight.data_mut(), index.data_mut());
            kernels::taps(self.reading, &self.plane, ABSENT, &grid, weight, index);
        });
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let grad = Arc::new(GridTapsGrad(self.clone()));
        saved.pull_back(cotangents, |dw, _| {
            exec.apply1(grad.clone(), &[&saved.inputs[0], dw])
        })
    }
}

impl Op for GridTapsGrad {
    fn name(&self) -> &'static str {
        "grid_taps_grad"
    }

    fn key(&self) -> u128 {
        key_of("grid_taps_grad", self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let (rule, (grid, shape), (taps, _)) = self.0.sides(self.name(), inputs);
        rule.input(grid.clone())
            .input(taps)
            .output(grid, shape, dtype)
            .linearity(Linearity::Each(smallvec![1]))
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let GridTaps { reading, plane } = &self.0;
        with_float!(call.dtype(), T => {
            let (grid, dw) = (call.input::<T>(0).to_vec(), call.input::<T>(1).to_vec());
            kernels::taps_grad(*reading, plane, &grid, &dw, call.output::<T>(0).data_mut());
        });
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

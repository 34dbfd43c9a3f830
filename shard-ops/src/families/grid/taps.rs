//! Which elements of a plane coordinates read, and with what weights.

use crate::families::elementwise::mul;
use crate::families::index::cat;
use crate::families::indexing::ABSENT;
use crate::families::reduce::sum;
use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Cotangents, Exec, Grads, HostCall, Keeps, Linearity, Meta, Op, Result, Rule,
    RuleBuilder, Saved, Value, key_of,
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

/// The weights of [`GridTaps`], differentiated by the coordinate of each dim of the plane so many times: of coordinates, (N, places..., spatial
/// dims), those of (N, places..., taps). All derivatives of weights are such, so these have gradients of any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GridTapsAfter {
    pub(crate) taps: GridTaps,
    pub(crate) orders: [u8; 3],
}

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
        if exec.records() {
            let own = GridTapsAfter {
                taps: self.clone(),
                orders: [0; 3],
            };
            return own.vjp(exec, saved, cotangents);
        }
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

impl Op for GridTapsAfter {
    fn name(&self) -> &'static str {
        "grid_taps_after"
    }

    fn key(&self) -> u128 {
        key_of("grid_taps_after", self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let dtype = float_types(self.name(), inputs)?;
        let (rule, (grid, _), (taps, shape)) = self.taps.sides(self.name(), inputs);
        rule.input(grid)
            .output(taps, shape, dtype)
            .linearity(Linearity::None)
            .build()
    }

    crate::kernel::gpu_kernel!();

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let GridTaps { reading, plane } = &self.taps;
        with_float!(call.dtype(), T => {
            let grid = call.input::<T>(0).to_vec();
            kernels::taps_after(*reading, plane, self.orders, &grid, call.output::<T>(0).data_mut());
        });
    }

    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, cotangents: &Cotangents) -> Result<Grads> {
        let grid = &saved.inputs[0];
        saved.pull_back(cotangents, |dw, _| {
            // The last dim's coordinate is the first.
            let along = |d: usize| {
                let mut next = self.clone();
                next.orders[d] += 1;
                let slopes = exec.apply1(Arc::new(next), &[grid])?;
                sum(exec, &mul(exec, dw, &slopes)?, &[dw.ndim() - 1], true)
            };
            let each: Vec<Value> = (0..self.taps.plane.len())
                .rev()
                .map(along)
                .collect::<Result<_>>()?;
            let each: Vec<&Value> = each.iter().collect();
            cat(exec, &each, grid.ndim() - 1).map(Some)
        })
    }
}

//! Convolution whose taps are displaced.
//!
//! Where taps lie follows from their displacements, element by element; what they read comes as rows of a table, as for
//! [`grid_sample`](super::grid_sample); and the rest is a product.

use super::{GridTaps, summed, table};
use crate::error::InOp;
use crate::families::conv::{Geometry, check_bias};
use crate::families::einsum::einsum;
use crate::families::elementwise::{add, mul};
use crate::families::full::in_full_with;
use crate::families::fused::Fused;
use crate::families::index::flip;
use crate::families::shape::{permute, reshape, unsqueeze};
use crate::{Exec, OpError, Result, Value};
use shard_comm::DType;
use shard_kernels::grid::{Reading, Sampling};
use shard_redistribute::Array;
use shard_spec::{Dims, EdgeMap, Layout};
use std::sync::{Arc, LazyLock};

use crate::families::conv::ConvOptions;

const NAME: &str = "deform_conv";

/// Where taps lie: displacements, and what each dim adds to them.
static PLACED: LazyLock<Arc<Fused>> = LazyLock::new(|| {
    Fused::new(NAME, |[moved, first, second, third]| {
        [moved + (first + second + third)]
    })
});

/// Convolution of `x`, (N, C, spatial...), with `w`, (O, C / groups, kernel...), each of whose taps is displaced at each output by `offset`, (N,
/// offset groups * taps * spatial dims, outputs...), and weighed by `mask`, (N, offset groups * taps, outputs...): the channels of `x` are divided
/// into that many groups, which are displaced alike. Displacements of a tap are in elements, the first dim's first. Between elements it is
/// linear, and beyond the ends are zeros (Dai et al., 2017; Zhu et al., 2019).
///
/// # Collective
/// All members of the mesh. As [`grid_sample`](super::grid_sample) of the places of taps, each once. Sharded input channels make the result
/// `P(sum)`.
///
/// # Errors
/// Shapes that do not fit, as for [`conv`](fn@crate::conv::conv); edges other than zeros; an `x` without elements in a spatial dim; types that differ.
pub fn deform_conv(
    exec: &dyn Exec,
    [x, offset, w]: [&Value; 3],
    mask: Option<&Value>,
    bias: Option<&Value>,
    options: &ConvOptions,
) -> Result<Value> {
    let deform = Deform::new([x, offset, w], mask, options)?;
    check_bias(NAME, bias, w.shape()[0])?;
    in_full_with(
        exec,
        [x, offset, w],
        [mask, bias],
        |[x, offset, w], [mask, bias]| {
            let read = deform.read(exec, x, &deform.coordinates(exec, offset)?, mask)?;
            let made = deform.product(exec, &read, w)?;
            let Some(bias) = bias else { return Ok(made) };
            let mut channels = vec![1; x.ndim() - 1];
            channels[0] = w.shape()[0];
            add(exec, &made, &reshape(exec, bias, &channels)?)
        },
    )
}

/// A convolution with displaced taps: its windows, and the extents of all.
struct Deform {
    geometry: Geometry,
    /// Batch, and channels of input and output.
    batch: usize,
    channels: [usize; 2],
    plane: Dims,
    outputs: Dims,
    /// Groups of channels that are displaced alike.
    groups: usize,
    taps: usize,
}

impl Deform {
    fn new(
        [x, offset, w]: [&Value; 3],
        mask: Option<&Value>,
        options: &ConvOptions,
    ) -> Result<Self> {
        let geometry = Geometry::direct(NAME, x, w, options)?;
        let plane: Dims = x.shape()[2..].iter().copied().collect();
        let outputs = geometry.outputs(&plane)?;
        let (nd, taps) = (plane.len(), geometry.kernel.iter().product::<usize>());
        let (batch, channels) = (x.shape()[0], [x.shape()[1], w.shape()[0]]);
        let groups = match offset.shape() {
            [_, all, ..] => all / (taps * nd).max(1),
            _ => 0,
        };
        let shape = |channels: usize| [&[batch, channels], &outputs[..]].concat();
        let fits = groups > 0
            && channels[0].is_multiple_of(groups)
            && offset.shape() == shape(groups * taps * nd)
            && mask.is_none_or(|mask| mask.shape() == shape(groups * taps))
            && !plane.contains(&0)
            && options.edge == EdgeMap::Zeros;
        if !fits {
            let others = [Some(x), Some(offset), mask].into_iter().flatten();
            return Err(OpError::Shape {
                op: NAME,
                problem: format!(
                    "displacements of {taps} taps at {outputs:?} outputs, edges that are {:?}",
                    options.edge
                ),
                shapes: others.map(|v| v.shape().to_vec()).collect(),
                fix: "give (N, C, spatial...), (N, groups * taps * spatial dims, outputs...) and a mask (N, groups * taps, outputs...), with groups dividing C; pad with zeros",
            });
        }
        Ok(Self {
            geometry,
            batch,
            channels,
            plane,
            outputs,
            groups,
            taps,
        })
    }

    /// Where taps lie, (N * groups, outputs..., taps, spatial dims): in elements, the last dim's first.
    fn coordinates(&self, exec: &dyn Exec, offset: &Value) -> Result<Value> {
        let nd = self.plane.len();
        let apart = [
            &[self.batch * self.groups, self.taps, nd],
            &self.outputs[..],
        ]
        .concat();
        let moved = flip(exec, &reshape(exec, offset, &apart)?, 2)?;
        let order: Vec<usize> = [0].into_iter().chain(3..nd + 3).chain([1, 2]).collect();
        let moved = permute(exec, &moved, &order)?;
        let own: Vec<Value> = (0..3).map(|d| self.own(&moved, d)).collect::<Result<_>>()?;
        PLACED.apply1(exec, &[&moved, &own[0], &own[1], &own[2]])
    }

    /// Where taps lie in a dim that are not displaced, (outputs or 1..., taps, spatial dims).
    fn own(&self, like: &Value, d: usize) -> Result<Value> {
        let (nd, kernel) = (self.plane.len(), &self.geometry.kernel);
        let mut shape = vec![1; nd + 2];
        if d < nd {
            shape[d] = self.outputs[d];
            shape[nd..].copy_from_slice(&[self.taps, nd]);
        }
        let inner: usize = kernel.iter().skip(d + 1).product();
        self.constant(like, &shape, &|i| {
            if d >= nd || i[nd + 1] != nd - 1 - d {
                return 0.0;
            }
            let tap = i[nd] / inner % kernel[d];
            let (stride, dilation) = (self.geometry.stride[d], self.geometry.dilation[d]);
            let first = i[d] as f64 * stride as f64 - self.geometry.pads[d].0 as f64;
            first + tap as f64 * dilation as f64
        })
    }

    /// Numbers that all ranks know, in the type of a value.
    fn constant(
        &self,
        like: &Value,
        shape: &[usize],
        f: &dyn Fn(&[usize]) -> f64,
    ) -> Result<Value> {
        let (cx, layout) = (
            like.array().cx(),
            Layout::replicated(like.layout().mesh(), shape),
        );
        let made = match like.dtype() {
            DType::F64 => Array::from_fn(cx, &layout, f),
            _ => Array::from_fn(cx, &layout, |i| f(i) as f32),
        };
        Ok(Value::new(made.in_op(NAME)?))
    }

    /// What taps read, (N, groups, outputs..., taps, C / groups).
    fn read(
        &self,
        exec: &dyn Exec,
        x: &Value,
        grid: &Value,
        mask: Option<&Value>,
    ) -> Result<Value> {
        let nd = self.plane.len();
        let (all, each) = (self.batch * self.groups, self.channels[0] / self.groups);
        let reading = Reading {
            sampling: Sampling::default(),
            in_elements: true,
        };
        let taps = GridTaps {
            reading,
            plane: self.plane.clone(),
        };
        let [mut weights, index] = exec.apply_n(Arc::new(taps), &[grid])?;
        if let Some(mask) = mask {
            let mask = reshape(exec, mask, &[&[all, self.taps], &self.outputs[..]].concat())?;
            let order: Vec<usize> = [0].into_iter().chain(2..nd + 2).chain([1]).collect();
            let mask = unsqueeze(exec, &permute(exec, &mask, &order)?, nd + 2)?;
            weights = mul(exec, &weights, &mask)?;
        }
        let x = reshape(exec, x, &[&[all, each], &self.plane[..]].concat())?;
        let read = summed(exec, &table(exec, &x)?, &index, Some(&weights))?;
        let shape = [
            &[self.batch, self.groups],
            &self.outputs[..],
            &[self.taps, each],
        ]
        .concat();
        reshape(exec, &read, &shape)
    }

    /// The product of what was read with the weight, (N, O, outputs...).
    fn product(&self, exec: &dyn Exec, read: &Value, w: &Value) -> Result<Value> {
        let (nd, [inputs, outputs], groups) =
            (self.plane.len(), self.channels, self.geometry.groups);
        let places = &"xyz"[..nd];
        if groups == 1 {
            let w = reshape(
                exec,
                w,
                &[outputs, self.groups, inputs / self.groups, self.taps],
            )?;
            return einsum(exec, &format!("ng{places}tc,ogct->no{places}"), &[read, &w]);
        }
        // All channels beside each other, to be divided anew.
        let order: Vec<usize> = [0]
            .into_iter()
            .chain(2..nd + 3)
            .chain([1, nd + 3])
            .collect();
        let read = permute(exec, read, &order)?;
        let shape = [
            &[self.batch],
            &self.outputs[..],
            &[self.taps, groups, inputs / groups],
        ]
        .concat();
        let read = reshape(exec, &read, &shape)?;
        let w = reshape(
            exec,
            w,
            &[groups, outputs / groups, inputs / groups, self.taps],
        )?;
        let made = einsum(
            exec,
            &format!("n{places}tgc,goct->ngo{places}"),
            &[&read, &w],
        )?;
        reshape(
            exec,
            &made,
            &[&[self.batch, outputs], &self.outputs[..]].concat(),
        )
    }
}

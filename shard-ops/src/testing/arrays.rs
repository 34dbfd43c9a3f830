//! Whole tensors on ranks, and results back.

use super::{Data, Tensor};
use shard_comm::half::{bf16, f16};
use shard_comm::{Bool, Buffer, DType, DeviceRef, Element};
use shard_redistribute::{Array, MeshComm, RedistributeError};
use shard_spec::{Layout, numel, row_major_strides};
use std::rc::Rc;

/// This rank's piece of a tensor in a layout; floats take type `float`. No communication.
///
/// On partial axes the ranks get terms whose sum is exactly the value: signed powers of two times the value, in
/// another pattern for every other element; of integers such multiples, which wrap, and of truth values true on some.
///
/// # Errors
/// Whatever making an array reports.
pub fn place(
    cx: &Rc<MeshComm>,
    layout: &Layout,
    tensor: &Tensor,
    float: DType,
) -> Result<Array, RedistributeError> {
    let piece = local_indices(layout, cx.rank());
    let dtype = match (&*tensor.data, float) {
        (Data::F64(_), float) => float,
        (other, _) => other.dtype(),
    };
    let Some(indices) = piece else {
        return Array::from_parts(cx, layout, None, dtype);
    };
    let device = cx.device();
    let buffer = match &*tensor.data {
        Data::F64(values) => {
            let share = Share::of(cx, layout);
            let terms = indices.iter().map(|&i| share.term(values[i], i));
            let terms = terms.collect::<Vec<_>>();
            match float {
                DType::F32 => rounded::<f32>(device, &terms)?,
                DType::F16 => rounded::<f16>(device, &terms)?,
                DType::BF16 => rounded::<bf16>(device, &terms)?,
                _ => device.upload_slice(&terms)?,
            }
        }
        Data::I64(values) => {
            let share = Share::of(cx, layout);
            let terms = indices.iter().map(|&i| share.whole_term(values[i], i));
            device.upload_slice(&terms.collect::<Vec<_>>())?
        }
        Data::Bool(values) => {
            let share = Share::of(cx, layout);
            let bools = indices
                .iter()
                .map(|&i| Bool::new(values[i] != 0 && share.holds(i)));
            device.upload_slice(&bools.collect::<Vec<_>>())?
        }
    };
    Array::from_parts(cx, layout, Some(buffer), dtype)
}

/// The whole of an array on every rank; floats as doubles, integers as `i64`.
///
/// # Collective
/// All members of the array's mesh.
///
/// # Errors
/// Whatever moving and reading the array reports.
pub fn whole(array: &Array) -> Result<Tensor, RedistributeError> {
    let all = array.redistribute(&Layout::replicated(array.layout().mesh(), array.shape()))?;
    Ok(Tensor::new(array.shape(), piece(&all)?))
}

/// The elements that this rank holds, as [`whole`] gives them. No communication.
///
/// # Errors
/// Whatever reading the array reports.
pub(super) fn piece(array: &Array) -> Result<Data, RedistributeError> {
    Ok(match array.dtype() {
        DType::F64 => Data::F64(array.to_vec::<f64>()?),
        DType::F32 => doubles::<f32>(array)?,
        DType::F16 => doubles::<f16>(array)?,
        DType::BF16 => doubles::<bf16>(array)?,
        DType::I64 => Data::I64(array.to_vec::<i64>()?),
        DType::I32 => Data::I64(array.to_vec::<i32>()?.into_iter().map(i64::from).collect()),
        DType::U8 => Data::I64(array.to_vec::<u8>()?.into_iter().map(i64::from).collect()),
        DType::Bool => Data::Bool(
            array
                .to_vec::<Bool>()?
                .into_iter()
                .map(|b| u8::from(b.to_f64() != 0.0))
                .collect(),
        ),
    })
}

fn rounded<T: Element>(device: &DeviceRef, values: &[f64]) -> Result<Buffer, RedistributeError> {
    let values: Vec<T> = values.iter().map(|&v| T::from_f64(v)).collect();
    Ok(device.upload_slice(&values)?)
}

fn doubles<T: Element>(array: &Array) -> Result<Data, RedistributeError> {
    let values = array.to_vec::<T>()?;
    Ok(Data::F64(values.into_iter().map(T::to_f64).collect()))
}

/// A tensor of doubles made from the linear index.
pub fn tensor(shape: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    Tensor::new(shape, (0..numel(shape)).map(f).collect::<Vec<_>>())
}

/// Global linear indices of a rank's piece, in the piece's row-major order; `None` off the mesh.
pub fn local_indices(layout: &Layout, rank: usize) -> Option<Vec<usize>> {
    let held = layout.local_parts(rank)?;
    let strides = row_major_strides(layout.shape());
    let mut indices = vec![0_usize];
    for (held, stride) in held.iter().zip(&strides) {
        let stride = stride.unsigned_abs();
        let steps: Vec<usize> = held.indices().map(|i| i * stride).collect();
        let mut longer = Vec::with_capacity(indices.len() * steps.len());
        for base in &indices {
            longer.extend(steps.iter().map(|step| base + step));
        }
        indices = longer;
    }
    Some(indices)
}

/// A rank's place among the ranks that hold terms of the same elements.
pub struct Share {
    /// Its number among them.
    pub index: usize,
    /// How many they are.
    pub terms: usize,
}

impl Share {
    fn of(cx: &MeshComm, layout: &Layout) -> Self {
        let coords = cx.coords().unwrap_or_default();
        let axes = layout.partial_axes();
        let size = |a: usize| layout.mesh().axis_size(a);
        let index = axes
            .iter()
            .fold(0, |i, &a| i * size(a) + coords.get(a).copied().unwrap_or(0));
        Self {
            index,
            terms: layout.mesh().part_count(axes),
        }
    }

    /// This rank's term of `value` at linear index `at`.
    pub fn term(&self, value: f64, at: usize) -> f64 {
        if !value.is_finite() {
            // Infinity minus infinity is no sum: such values have one term.
            return if self.index == 0 { value } else { 0.0 };
        }
        self.units(at) as f64 * value
    }

    /// This rank's term of a whole number: as of others, but that multiples wrap.
    fn whole_term(&self, value: i64, at: usize) -> i64 {
        value.wrapping_mul(self.units(at))
    }

    /// Whether this rank's term of a truth value is as true as the value: on one rank, or, of some elements, on all.
    fn holds(&self, at: usize) -> bool {
        at % self.terms.max(1) == self.index || at.is_multiple_of(3)
    }

    /// How many times the value this rank's term is. Running sums end in 1 and differ by signed powers of two, so that every
    /// term, and every sum of neighbours, is exact.
    fn units(&self, at: usize) -> i64 {
        let running = |i: usize| {
            if i + 1 == self.terms {
                return 1;
            }
            if at.is_multiple_of(2) {
                [2, 1, 0][i % 3]
            } else {
                [0, -1, 1][i % 3]
            }
        };
        let before = if self.index == 0 {
            0
        } else {
            running(self.index - 1)
        };
        running(self.index) - before
    }
}

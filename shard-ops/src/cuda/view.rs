//! Boxes of memory in the form that kernels take.

use crate::{OpError, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::{DType, Strided};

/// The most dims of a view.
pub const AXES: usize = 8;

/// A box of a buffer, laid out as `View` in kernels: the address of its first element, extents and strides in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CudaView {
    /// Address of the first element.
    pub data: u64,
    /// How many dims.
    pub ndim: i64,
    /// Extents.
    pub shape: [i64; AXES],
    /// Strides.
    pub strides: [i64; AXES],
}

impl CudaView {
    /// The box of a buffer whose first element is at an address.
    pub(crate) fn new(op: &'static str, address: u64, dtype: DType, at: &Strided) -> Result<Self> {
        if at.shape.len() > AXES {
            return Err(OpError::Shape {
                op,
                problem: format!("kernels on a GPU take at most {AXES} dims"),
                shapes: vec![at.shape.to_vec()],
                fix: "reshape to fewer dims first",
            });
        }
        let mut view = Self {
            data: address + (at.offset * dtype.size()) as u64,
            ndim: at.shape.len() as i64,
            shape: [1; AXES],
            strides: [0; AXES],
        };
        for (d, (&extent, &stride)) in at.shape.iter().zip(&at.strides).enumerate() {
            view.shape[d] = extent as i64;
            view.strides[d] = stride as i64;
        }
        Ok(view)
    }

    /// How many elements.
    pub fn numel(&self) -> usize {
        self.shape[..self.ndim as usize].iter().product::<i64>() as usize
    }

    /// The same elements in the same order, by as few dims as that takes: fewer divisions to find one by its number.
    #[must_use]
    pub(crate) fn merged(&self) -> Self {
        let mut view = Self {
            ndim: 0,
            shape: [1; AXES],
            strides: [0; AXES],
            ..*self
        };
        for d in (0..self.ndim as usize).filter(|&d| self.shape[d] != 1) {
            let (extent, stride) = (self.shape[d], self.strides[d]);
            let last = (view.ndim as usize).wrapping_sub(1);
            match view.strides.get(last) {
                Some(&outer) if outer == extent * stride => {
                    view.shape[last] *= extent;
                    view.strides[last] = stride;
                }
                _ => {
                    let at = view.ndim as usize;
                    (view.shape[at], view.strides[at]) = (extent, stride);
                    view.ndim += 1;
                }
            }
        }
        view
    }

    /// The view with only the dims that are not named, and with only those that are.
    pub(crate) fn split(&self, dims: &[usize]) -> (Self, Self) {
        let of = |named: bool| {
            let mut view = Self {
                ndim: 0,
                shape: [1; AXES],
                strides: [0; AXES],
                ..*self
            };
            for d in (0..self.ndim as usize).filter(|d| dims.contains(d) == named) {
                let at = view.ndim as usize;
                (view.shape[at], view.strides[at]) = (self.shape[d], self.strides[d]);
                view.ndim += 1;
            }
            view
        };
        (of(false), of(true))
    }

    /// The view with the dims of `to`: missing dims are added in front, and dims of extent 1 are repeated.
    #[must_use]
    pub fn broadcast_to(&self, to: &Self) -> Self {
        let mut view = Self {
            strides: [0; AXES],
            ..*to
        };
        view.data = self.data;
        let front = (to.ndim - self.ndim).max(0) as usize;
        for d in 0..self.ndim as usize {
            if self.shape[d] == to.shape[front + d] {
                view.strides[front + d] = self.strides[d];
            }
        }
        view
    }
}

/// Definitions of the element types of a kernel, such as `T`, which stand in front of its source.
///
/// ```
/// use shard_comm::DType;
/// use shard_ops::cuda::define;
/// assert_eq!(define(&[("T", DType::F32)]), "#define T f32\n");
/// ```
pub fn define(types: &[(&str, DType)]) -> String {
    let one = |(name, dtype): &(&str, DType)| {
        format!("#define {name} {}\n", shard_comm::cuda::type_name(*dtype))
    };
    types.iter().map(one).collect()
}

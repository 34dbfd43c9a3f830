//! Calls of kernels, on the host and on devices that have kernels of their own: the boxes of operands, and their memory.

use crate::Result;
use shard_comm::{
    Buffer, BufferMut, DType, DeviceRef, Element, HostSlice, HostSliceMut, Ledger, MatmulPrecision,
    Strided, Work,
};
use shard_kernels::{View, ViewMut};
use shard_redistribute::Fingerprint;
use shard_spec::{DimPart, Dims, Strides, row_major_strides};
use smallvec::SmallVec;
use std::any::Any;

/// One operand's box, in the form that a kernel sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandBox {
    /// First element of the box in the slice.
    pub offset: usize,
    /// Extents of the box.
    pub shape: Dims,
    /// Strides of the box in the slice, in elements.
    pub strides: Strides,
    /// The global index of the box's first element along each dim; 0 for a dim that is held in several intervals, which a rule
    /// must [allow](crate::RuleBuilder::any_order).
    pub start: Dims,
    /// The global indices of the box along each dim, in order.
    pub held: SmallVec<[DimPart; 4]>,
    /// The operand's global extents.
    pub global: Dims,
}

impl OperandBox {
    /// All of an array of one dim without gaps.
    pub(crate) fn line(len: usize) -> Self {
        let shape = Dims::from_slice(&[len]);
        Self {
            offset: 0,
            strides: row_major_strides(&shape),
            start: Dims::from_slice(&[0]),
            held: std::iter::once(DimPart::from(0..len)).collect(),
            global: shape.clone(),
            shape,
        }
    }

    /// The box in the form that devices take.
    pub(crate) fn strided(&self) -> Strided {
        Strided::new(self.offset, self.shape.clone(), self.strides.clone())
    }
}

/// Which part of the op a kernel call computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCx {
    /// The boxes of the inputs.
    pub inputs: Vec<OperandBox>,
    /// The boxes of the outputs.
    pub outputs: Vec<OperandBox>,
    /// Whether this rank is at coordinate 0 of every mesh axis that shards a sum: only that rank adds what must
    /// be added once, such as a bias.
    pub adds_once: bool,
    /// The place of this call among several that fold blocks into the same outputs.
    pub fold: Fold,
    /// The amount of work, for accounts and forecasts of time.
    pub work: Work,
    /// Whether the outputs are those of a part of the folded dim, which [`Op::merge`](crate::Op::merge) will merge with those
    /// of the other parts.
    pub is_part: bool,
    /// How many elements each operand has, if all are runs of as many elements side by side; `None` also where nobody looked.
    pub(crate) line: Option<usize>,
}

impl KernelCx {
    /// Looks whether all operands are runs of as many elements side by side, in one shape.
    pub(crate) fn find_line(&mut self) {
        self.line = line_of(&self.inputs, &self.outputs);
    }

    /// Whether there is anything to write. If not, there is nothing to compute, whatever the inputs are.
    pub(crate) fn writes(&self) -> bool {
        // `contains` is for lists that are longer.
        let has_elements = |o: &OperandBox| o.shape.iter().all(|&n| n > 0);
        self.outputs.iter().any(has_elements)
    }
}

/// How many elements each operand has, if all are runs of as many elements side by side, in one shape.
pub fn line_of(inputs: &[OperandBox], outputs: &[OperandBox]) -> Option<usize> {
    let first = outputs.first()?;
    let all = || inputs.iter().chain(outputs);
    let is_like = |each: &OperandBox| {
        each.shape == first.shape && each.strides == row_major_strides(&each.shape)
    };
    all().all(is_like).then(|| first.shape.iter().product())
}

/// The place of a kernel call among those that fold the blocks of a ring; a call without a ring is the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Nothing has been folded yet: [`HostCall::state`] is empty.
    pub first: bool,
    /// Nothing is folded after this: the outputs must be written.
    pub last: bool,
}

impl Fold {
    /// The only call.
    pub const ONLY: Self = Self {
        first: true,
        last: true,
    };
}

/// State that the kernel of a fold keeps from call to call.
pub type FoldState = Option<Box<dyn Any + Send>>;

/// One call of a host kernel: memory and the boxes in it.
pub struct HostCall<'a, 'm> {
    /// What to compute.
    pub cx: &'a KernelCx,
    /// The inputs' memory.
    pub inputs: &'a [HostSlice<'a>],
    /// The outputs' memory.
    pub outputs: &'a mut [HostSliceMut<'m>],
    /// State that a call of the same fold leaves for the next one. Outputs over a ring dim are separate memory for
    /// each block; the other outputs are the same memory for all.
    pub state: &'a mut FoldState,
    /// How many rows this rank's part has, if that [depends on the data](crate::Access::Rows): the last call sets it.
    pub rows: &'a mut usize,
}

impl<'a> HostCall<'a, '_> {
    /// The element type of the first output.
    pub fn dtype(&self) -> DType {
        self.outputs[0].dtype()
    }

    /// Input `i`'s box as a view.
    ///
    /// # Panics
    /// If `T` is not the operand's type: the op's rule fixes the types, so its kernel knows them.
    pub fn input<T: Element>(&self, i: usize) -> View<'a, T> {
        let at = &self.cx.inputs[i];
        let (data, offset) = match at.shape.contains(&0) {
            true => (&self.read::<T>(i)[..0], 0),
            false => (self.read(i), at.offset),
        };
        View::new(data, offset, &at.shape, &at.strides)
    }

    /// As [`input`](Self::input), for kernels that go element by element, in whatever order: where all operands are runs of as many
    /// elements side by side, a view of one dim.
    ///
    /// # Panics
    /// As [`input`](Self::input).
    #[inline]
    pub fn elements<T: Element>(&self, i: usize) -> View<'a, T> {
        match self.cx.line {
            Some(len) => View::line(&self.read(i)[self.cx.inputs[i].offset..][..len]),
            None => self.input(i),
        }
    }

    /// As [`output`](Self::output), for kernels that read [`elements`](Self::elements).
    ///
    /// # Panics
    /// As [`input`](Self::input).
    #[inline]
    pub fn elements_out<T: Element>(&mut self, o: usize) -> ViewMut<'_, T> {
        match self.cx.line {
            Some(len) => {
                let data = written(&mut self.outputs[o]);
                ViewMut::line(&mut data[self.cx.outputs[o].offset..][..len])
            }
            None => self.output(o),
        }
    }

    /// The first `N` inputs and the first output, where all operands are runs of as many elements side by side.
    ///
    /// # Panics
    /// As [`input`](Self::input).
    #[inline]
    pub fn lines<T: Element, const N: usize>(&mut self) -> Option<([&'a [T]; N], &mut [T])> {
        let len = self.cx.line?;
        let line = |i: usize| &self.read(i)[self.cx.inputs[i].offset..][..len];
        let inputs = std::array::from_fn(line);
        let out = written(&mut self.outputs[0]);
        Some((inputs, &mut out[self.cx.outputs[0].offset..][..len]))
    }

    /// All of input `i`'s memory.
    #[inline]
    fn read<T: Element>(&self, i: usize) -> &'a [T] {
        match self.inputs[i].as_slice::<T>() {
            Ok(data) => data,
            Err(e) => panic!("kernel reads input {i} as {}, but {e}", T::DTYPE),
        }
    }

    /// Output `o`'s box as a writable view.
    ///
    /// # Panics
    /// As [`input`](Self::input).
    pub fn output<T: Element>(&mut self, o: usize) -> ViewMut<'_, T> {
        writable(&mut self.outputs[o], &self.cx.outputs[o])
    }

    /// The first two outputs' boxes as writable views, for kernels that write both at once.
    ///
    /// # Panics
    /// As [`input`](Self::input); if there is only one output.
    pub fn output_pair<A: Element, B: Element>(&mut self) -> (ViewMut<'_, A>, ViewMut<'_, B>) {
        let [first, second, ..] = &mut self.outputs else {
            panic!("the op has no second output")
        };
        (
            writable(first, &self.cx.outputs[0]),
            writable(second, &self.cx.outputs[1]),
        )
    }
}

impl HostCall<'_, '_> {
    /// The boxes of the outputs from number `first` on, all of one type, as writable views.
    ///
    /// # Panics
    /// As [`input`](Self::input).
    pub fn outputs_from<T: Element>(&mut self, first: usize) -> Vec<ViewMut<'_, T>> {
        let boxes = &self.cx.outputs[first..];
        let memory = self.outputs[first..].iter_mut().zip(boxes);
        memory.map(|(slice, at)| writable(slice, at)).collect()
    }
}

fn writable<'a, T: Element>(slice: &'a mut HostSliceMut<'_>, at: &OperandBox) -> ViewMut<'a, T> {
    let data = written(slice);
    let (data, offset) = match at.shape.contains(&0) {
        true => (&mut data[..0], 0),
        false => (data, at.offset),
    };
    ViewMut::new(data, offset, &at.shape, &at.strides)
}

/// All of an output's memory.
#[inline]
fn written<'a, T: Element>(slice: &'a mut HostSliceMut<'_>) -> &'a mut [T] {
    match slice.as_mut_slice::<T>() {
        Ok(data) => data,
        Err(e) => panic!("kernel writes an output as {}, but {e}", T::DTYPE),
    }
}

/// What an op's kernel is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPhase {
    /// Compute the rank's part of the outputs: [`Op::host`](crate::Op::host).
    Compute,
    /// Write the rows it found: [`Op::write_rows`](crate::Op::write_rows).
    WriteRows,
    /// Merge several partial results into one: [`Op::merge`](crate::Op::merge).
    Merge,
}

/// An op's kernel for devices that do not run jobs of the host.
///
/// It is given boxes of buffers, like [`Op::host`](crate::Op::host), and queues the work that writes the outputs.
/// [`Op::kernel`](crate::Op::kernel) says which kernels an op has; those for NVIDIA GPUs are `CudaKernel`s, of the module
/// `cuda` that the feature of that name brings.
pub trait DeviceKernel {
    /// Does what the phase says: computes one rank's part (or a box of it), writes rows, or merges.
    ///
    /// # Errors
    /// An error of the device; the op's rule has checked everything else.
    fn run(&self, phase: KernelPhase, call: DeviceCall<'_>) -> Result<()>;
}

/// One call of a kernel on a device: memory and the boxes in it.
pub struct DeviceCall<'a> {
    /// The op's name.
    pub op: &'static str,
    /// What to compute.
    pub cx: &'a KernelCx,
    /// The device, whose queue is the order of all work.
    pub device: &'a DeviceRef,
    /// The policy for precision and libraries.
    pub policy: KernelPolicy,
    /// The rank's ledger.
    pub ledger: &'a Ledger,
    /// The inputs' memory.
    pub inputs: &'a [Buffer],
    /// The outputs' memory.
    pub outputs: &'a mut [BufferMut],
    /// State that a call of the same fold leaves for the next one.
    pub state: &'a mut FoldState,
    /// How many rows this rank's part has, if that depends on the data.
    pub rows: &'a mut usize,
}

/// In an op of this crate: defines its kernel for GPUs, which is the op itself, or the one in a field of it.
/// `halves` says that the kernel reads and writes floats of 16 bits as they are stored, and `halves everywhere` that the one for the host does
/// so too.
macro_rules! gpu_kernel {
    (halves everywhere) => {
        crate::kernel::gpu_kernel!();

        fn halves(
            &self,
            _: shard_comm::DType,
            _: &[crate::Meta],
            _: shard_comm::DeviceKind,
        ) -> crate::Halves {
            crate::Halves::ALL
        }
    };
    (halves $($field:tt)?) => {
        crate::kernel::gpu_kernel!($($field)?);

        fn halves(
            &self,
            _: shard_comm::DType,
            _: &[crate::Meta],
            on: shard_comm::DeviceKind,
        ) -> crate::Halves {
            if on.is_cuda() { crate::Halves::ALL } else { crate::Halves::NONE }
        }
    };
    ($($field:tt)?) => {
        #[cfg(feature = "cuda")]
        fn kernel(&self, on: shard_comm::DeviceKind) -> Option<&dyn crate::DeviceKernel> {
            crate::cuda::kernel(&(*self)$(.$field)?, on)
        }
    };
}
pub(crate) use gpu_kernel;

/// The policy of kernels on a GPU. Kernels on the host ignore it.
///
/// It must be the same on all ranks, because the rounding of values depends on it. The next exchange detects ranks that differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KernelPolicy {
    /// The precision of products of `f32`, of matrices and in convolutions; full by default.
    pub precision: MatmulPrecision,
    /// Whether the vendor's libraries are called where they are found, which is the default; otherwise kernels of this
    /// workspace do everything. The [ledger](shard_comm::LedgerSnapshot::library_calls) counts calls of libraries.
    pub libraries: bool,
}

impl Default for KernelPolicy {
    fn default() -> Self {
        Self {
            precision: MatmulPrecision::Full,
            libraries: true,
        }
    }
}

impl KernelPolicy {
    /// The number that ranks compare; 0 for the default policy.
    pub(crate) fn fingerprint(self) -> u128 {
        if self == Self::default() {
            return 0;
        }
        Fingerprint::new("kernels").with(&self).finish()
    }
}

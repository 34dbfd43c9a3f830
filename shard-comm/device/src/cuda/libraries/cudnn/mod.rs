//! cuDNN itself, loaded when it is first asked for. All calls to it are here.
//!
//! Convolutions are planned as graphs (`plan.rs`), by the engine that the library's heuristics expect to be the fastest of those that
//! multiply and add in the type of the computation, without transforms, and give the same bits every time. Where there is none, such
//! an algorithm is named.
#![expect(
    unsafe_code,
    reason = "calls into cuDNN, whose handles this file alone holds"
)]

pub(super) mod plan;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock};

use cudarc::cudnn::sys::{
    self, cudnnConvolutionBwdDataAlgo_t as ByInput, cudnnConvolutionBwdFilterAlgo_t as ByWeight,
    cudnnConvolutionFwdAlgo_t as Forward, cudnnConvolutionMode_t as Mode, cudnnConvolutionStruct,
    cudnnDataType_t as Type, cudnnFilterStruct, cudnnHandle_t, cudnnMathType_t as Math,
    cudnnStatus_t as Status, cudnnTensorFormat_t as Format, cudnnTensorStruct,
};
use cudarc::driver::CudaContext;

use super::Library;
use super::nvidia::{Description, refusal};
use crate::cuda::driver::{Answer, Refusal};
use crate::cuda::terms::{ConvKind, Convolution, Numbers, Tensor};
use crate::{DType, MatmulPrecision};

/// The oldest version that is used, 9.1.0: the first whose functions are declared as here.
const OLDEST: usize = 90_100;
/// The most workspace that an algorithm may use; one that wants more is not used. It is a constant, so that the choice depends
/// on the call alone.
const WORKSPACE: usize = 1 << 30;
/// Choices kept; when there are more, all are dropped and made again as needed.
const CHOICES: usize = 4096;

/// The functions that are called; an old library may lack some of them.
const CALLED: [&str; 22] = [
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnConvolutionForward",
    "cudnnCreate",
    "cudnnCreateConvolutionDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnCreateTensorDescriptor",
    "cudnnDestroy",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetConvolutionNdForwardOutputDim",
    "cudnnGetErrorString",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnSetConvolutionNdDescriptor",
    "cudnnSetFilterNdDescriptor",
    "cudnnSetStream",
    "cudnnSetTensorNdDescriptor",
];

/// Whether the library is there. cudarc panics where it or one of its functions is missing, so this looks for all of them first.
pub(super) fn found() -> &'static Library {
    static FOUND: LazyLock<Library> = LazyLock::new(|| {
        // SAFETY: loads a library of the system; the names are cudarc's own.
        if !unsafe { sys::is_culib_present() } {
            return Library::missing(
                "libcudnn is in no folder of LD_LIBRARY_PATH (NVIDIA's cuDNN, or the Python package nvidia-cudnn-cu13)",
            );
        }
        let has = |name: &str| {
            // SAFETY: the library is there; the symbol is only looked for.
            unsafe { sys::culib().get::<*const c_void>(name.as_bytes()).is_ok() }
        };
        if !has("cudnnGetVersion") {
            return Library::missing("libcudnn has no cudnnGetVersion");
        }
        // SAFETY: the function was looked for.
        let version = unsafe { sys::cudnnGetVersion() };
        if version < OLDEST {
            return Library::missing(format!("version {version} is older than {OLDEST}"));
        }
        match (CALLED.iter().chain(&plan::CALLED)).find(|name| !has(name)) {
            Some(name) => Library::missing(format!("version {version} has no {name}")),
            None => Library::Found { version },
        }
    });
    &FOUND
}

/// A handle of the library, for one stream.
pub(in crate::cuda) struct Dnn {
    /// The pointer. Only one thread at a time uses it, because this is behind a lock.
    handle: usize,
    context: Arc<CudaContext>,
    /// The choices by call, with alignments in place of addresses; `None` where the library cannot compute the convolution.
    choices: HashMap<Convolution, Option<Way>>,
}

/// How a convolution is done.
enum Way {
    Plan(plan::Plan),
    Named(Choice),
}

impl Way {
    fn workspace(&self) -> usize {
        match self {
            Self::Plan(plan) => plan.workspace,
            Self::Named(choice) => choice.workspace,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    algorithm: Algorithm,
    workspace: usize,
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Forward(Forward),
    ByInput(ByInput),
    ByWeight(ByWeight),
}

impl Algorithm {
    /// The algorithms that may be used, the fastest first. For gradients only these are deterministic and without transforms.
    fn of(kind: ConvKind) -> &'static [Self] {
        const FORWARD: [Algorithm; 2] = [
            Algorithm::Forward(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM),
            Algorithm::Forward(Forward::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM),
        ];
        const BY_INPUT: [Algorithm; 1] = [Algorithm::ByInput(
            ByInput::CUDNN_CONVOLUTION_BWD_DATA_ALGO_1,
        )];
        const BY_WEIGHT: [Algorithm; 1] = [Algorithm::ByWeight(
            ByWeight::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1,
        )];
        match kind {
            ConvKind::Forward => &FORWARD,
            ConvKind::InputGrad => &BY_INPUT,
            ConvKind::WeightGrad => &BY_WEIGHT,
        }
    }
}

impl Dnn {
    /// A handle for a stream of the context, which is current on this thread.
    pub(super) fn new(context: &Arc<CudaContext>, stream: usize) -> Answer<Self> {
        let mut handle: cudnnHandle_t = null_mut();
        // SAFETY: the pointer is to a local.
        accept("cudnnCreate", unsafe { sys::cudnnCreate(&raw mut handle) })?;
        let made = Self {
            handle: handle as usize,
            context: Arc::clone(context),
            choices: HashMap::new(),
        };
        // SAFETY: both are alive.
        accept("cudnnSetStream", unsafe {
            sys::cudnnSetStream(handle, stream as sys::cudaStream_t)
        })?;
        Ok(made)
    }

    /// The bytes of workspace that a convolution needs; `None` if the library cannot compute it.
    pub(in crate::cuda) fn plan(&mut self, call: &Convolution) -> Answer<Option<usize>> {
        Ok(self.way(call)?.map(Way::workspace))
    }

    fn way(&mut self, call: &Convolution) -> Answer<Option<&Way>> {
        let mut key = call.clone();
        for tensor in [&mut key.x, &mut key.w, &mut key.y] {
            tensor.address = plan::alignment(tensor.address);
        }
        if !self.choices.contains_key(&key) {
            let way = match self.planned(&key) {
                Some(plan) => Some(Way::Plan(plan)),
                None => self.choose(&key)?.map(Way::Named),
            };
            if self.choices.len() >= CHOICES {
                self.choices.clear();
            }
            self.choices.insert(key.clone(), way);
        }
        Ok(self.choices.get(&key).and_then(Option::as_ref))
    }

    /// The library's own plan. That it makes none is no error: there are the named algorithms.
    fn planned(&self, key: &Convolution) -> Option<plan::Plan> {
        match plan::Plan::new(self.handle as cudnnHandle_t, key) {
            Ok(plan) => plan,
            Err(refusal) => {
                tracing::debug!(target: "shard_device::cuda", ?refusal, "no plan of cuDNN's");
                None
            }
        }
    }

    fn choose(&self, call: &Convolution) -> Answer<Option<Choice>> {
        let described = Described::new(call)?;
        if described.outputs()? != call.y.dims {
            let text = format!("the library makes {:?} of {call:?}", described.outputs()?);
            return Err(Refusal::new("cudnnGetConvolutionNdForwardOutputDim", text));
        }
        for &algorithm in Algorithm::of(call.kind) {
            if let Some(workspace) = self.workspace(&described, algorithm)?
                && workspace <= WORKSPACE
            {
                return Ok(Some(Choice {
                    algorithm,
                    workspace,
                }));
            }
        }
        Ok(None)
    }

    /// The bytes of workspace that an algorithm needs; `None` if the algorithm cannot compute this convolution.
    fn workspace(&self, described: &Described, algorithm: Algorithm) -> Answer<Option<usize>> {
        let handle = self.handle as cudnnHandle_t;
        let Described {
            x, w, y, window, ..
        } = described;
        let mut bytes = 0;
        // SAFETY, for all calls: the handle and the descriptions are alive, and the pointer is to a local.
        let status = match algorithm {
            // SAFETY: as said above.
            Algorithm::Forward(algorithm) => unsafe {
                sys::cudnnGetConvolutionForwardWorkspaceSize(
                    handle,
                    x.raw(),
                    w.raw(),
                    window.raw(),
                    y.raw(),
                    algorithm,
                    &raw mut bytes,
                )
            },
            // SAFETY: as said above.
            Algorithm::ByInput(algorithm) => unsafe {
                sys::cudnnGetConvolutionBackwardDataWorkspaceSize(
                    handle,
                    w.raw(),
                    y.raw(),
                    window.raw(),
                    x.raw(),
                    algorithm,
                    &raw mut bytes,
                )
            },
            // SAFETY: as said above.
            Algorithm::ByWeight(algorithm) => unsafe {
                sys::cudnnGetConvolutionBackwardFilterWorkspaceSize(
                    handle,
                    x.raw(),
                    y.raw(),
                    window.raw(),
                    w.raw(),
                    algorithm,
                    &raw mut bytes,
                )
            },
        };
        // Status codes come in classes of a thousand.
        match status as u32 / 1000 {
            // The library reports a call that an algorithm cannot do as "not supported" or, in places, as a bad parameter.
            2 | 3 => {
                tracing::debug!(target: "shard_device::cuda", ?algorithm, ?status, "not by cuDNN");
                Ok(None)
            }
            _ => accept("cudnnGetConvolution..WorkspaceSize", status).map(|()| Some(bytes)),
        }
    }

    /// Queues a convolution that was planned, on this handle's stream.
    ///
    /// # Safety
    /// As [`Driver::convolve`](crate::cuda::driver::Driver::convolve). The handle's context is current on this thread.
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        call: &Convolution,
        (workspace, bytes): (u64, usize),
    ) -> Answer<()> {
        let handle = self.handle as cudnnHandle_t;
        let way = self.way(call)?.filter(|way| way.workspace() <= bytes);
        let choice = match way {
            // SAFETY: the caller's promise.
            Some(Way::Plan(plan)) => return unsafe { plan.run(handle, call, workspace) },
            Some(Way::Named(choice)) => *choice,
            None => return Err(Refusal::new("cudnn", "a convolution that was not planned")),
        };
        let described = Described::new(call)?;
        let Described {
            x, w, y, window, ..
        } = &described;
        let ((one, zero), (one_f64, zero_f64)) = ((1.0_f32, 0.0_f32), (1.0_f64, 0.0_f64));
        let [one, zero] = match call.dtype {
            DType::F64 => [&raw const one_f64, &raw const zero_f64].map(<*const f64>::cast),
            _ => [&raw const one, &raw const zero].map(<*const f32>::cast::<c_void>),
        };
        let workspace = workspace as *mut c_void;
        let read = |tensor: &Tensor| tensor.address as *const c_void;
        let write = |tensor: &Tensor| tensor.address as *mut c_void;
        // SAFETY, for all calls: the handle and the descriptions are alive; the factors are of the type they must have and
        // read before the call returns; the caller promises that the memory may be touched.
        let (name, status) = match choice.algorithm {
            Algorithm::Forward(algorithm) => {
                // SAFETY: as said above.
                let status = unsafe {
                    sys::cudnnConvolutionForward(
                        handle,
                        one,
                        x.raw(),
                        read(&call.x),
                        w.raw(),
                        read(&call.w),
                        window.raw(),
                        algorithm,
                        workspace,
                        bytes,
                        zero,
                        y.raw(),
                        write(&call.y),
                    )
                };
                ("cudnnConvolutionForward", status)
            }
            Algorithm::ByInput(algorithm) => {
                // SAFETY: as said above.
                let status = unsafe {
                    sys::cudnnConvolutionBackwardData(
                        handle,
                        one,
                        w.raw(),
                        read(&call.w),
                        y.raw(),
                        read(&call.y),
                        window.raw(),
                        algorithm,
                        workspace,
                        bytes,
                        zero,
                        x.raw(),
                        write(&call.x),
                    )
                };
                ("cudnnConvolutionBackwardData", status)
            }
            Algorithm::ByWeight(algorithm) => {
                // SAFETY: as said above.
                let status = unsafe {
                    sys::cudnnConvolutionBackwardFilter(
                        handle,
                        one,
                        x.raw(),
                        read(&call.x),
                        y.raw(),
                        read(&call.y),
                        window.raw(),
                        algorithm,
                        workspace,
                        bytes,
                        zero,
                        w.raw(),
                        write(&call.w),
                    )
                };
                ("cudnnConvolutionBackwardFilter", status)
            }
        };
        accept(name, status)
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        // A context that is gone has ended everything in it.
        if self.context.bind_to_thread().is_ok() {
            self.choices.clear();
            // SAFETY: made by `new`, ended once.
            let _ = unsafe { sys::cudnnDestroy(self.handle as cudnnHandle_t) };
        }
    }
}

type DnnDescription<T> = Description<T, Status>;

/// A convolution and its tensors as descriptions of the library.
pub(super) struct Described {
    x: DnnDescription<cudnnTensorStruct>,
    w: DnnDescription<cudnnFilterStruct>,
    y: DnnDescription<cudnnTensorStruct>,
    window: DnnDescription<cudnnConvolutionStruct>,
    ndim: usize,
}

impl Described {
    /// Needs the library, but no GPU.
    pub(super) fn new(call: &Convolution) -> Answer<Self> {
        let dtype = type_of(call.dtype)?;
        Ok(Self {
            x: tensor(dtype, &call.x)?,
            w: filter(dtype, &call.w)?,
            y: tensor(dtype, &call.y)?,
            window: window(call)?,
            ndim: call.y.dims.len(),
        })
    }

    /// The extents that the library computes for y.
    pub(super) fn outputs(&self) -> Answer<Numbers> {
        let mut dims = Numbers::from_elem(0, self.ndim);
        // SAFETY: the descriptions are alive, and there is room for that many numbers.
        accept("cudnnGetConvolutionNdForwardOutputDim", unsafe {
            sys::cudnnGetConvolutionNdForwardOutputDim(
                self.window.raw(),
                self.x.raw(),
                self.w.raw(),
                dims.len() as c_int,
                dims.as_mut_ptr(),
            )
        })?;
        Ok(dims)
    }
}

fn tensor(dtype: Type, of: &Tensor) -> Answer<DnnDescription<cudnnTensorStruct>> {
    let mut made = null_mut();
    // SAFETY: the pointer is to a local; `Description` ends what the library made; extents and strides are as many as the call
    // says, and are read before it returns.
    unsafe {
        let status = sys::cudnnCreateTensorDescriptor(&raw mut made);
        accept("cudnnCreateTensorDescriptor", status)?;
        let made = Description::new(made, sys::cudnnDestroyTensorDescriptor);
        let (dims, strides) = (of.dims.as_ptr(), of.strides.as_ptr());
        let status =
            sys::cudnnSetTensorNdDescriptor(made.raw(), dtype, count(&of.dims), dims, strides);
        accept("cudnnSetTensorNdDescriptor", status).map(|()| made)
    }
}

fn filter(dtype: Type, of: &Tensor) -> Answer<DnnDescription<cudnnFilterStruct>> {
    let mut made = null_mut();
    // SAFETY: as in `tensor`.
    unsafe {
        let status = sys::cudnnCreateFilterDescriptor(&raw mut made);
        accept("cudnnCreateFilterDescriptor", status)?;
        let made = Description::new(made, sys::cudnnDestroyFilterDescriptor);
        let (format, dims) = (Format::CUDNN_TENSOR_NCHW, of.dims.as_ptr());
        let status =
            sys::cudnnSetFilterNdDescriptor(made.raw(), dtype, format, count(&of.dims), dims);
        accept("cudnnSetFilterNdDescriptor", status).map(|()| made)
    }
}

fn window(call: &Convolution) -> Answer<DnnDescription<cudnnConvolutionStruct>> {
    let (compute, math) = match (call.dtype, call.precision) {
        (DType::F64, _) => (Type::CUDNN_DATA_DOUBLE, Math::CUDNN_DEFAULT_MATH),
        (DType::F32, MatmulPrecision::Full) => (Type::CUDNN_DATA_FLOAT, Math::CUDNN_FMA_MATH),
        // The default lets f32 be rounded to TF32.
        (DType::F32, MatmulPrecision::Tf32) => (Type::CUDNN_DATA_FLOAT, Math::CUDNN_DEFAULT_MATH),
        _ => (Type::CUDNN_DATA_FLOAT, Math::CUDNN_TENSOR_OP_MATH),
    };
    let mut made = null_mut();
    // SAFETY: as in `tensor`.
    unsafe {
        let status = sys::cudnnCreateConvolutionDescriptor(&raw mut made);
        accept("cudnnCreateConvolutionDescriptor", status)?;
        let made = Description::new(made, sys::cudnnDestroyConvolutionDescriptor);
        let status = sys::cudnnSetConvolutionNdDescriptor(
            made.raw(),
            count(&call.pad),
            call.pad.as_ptr(),
            call.stride.as_ptr(),
            call.dilation.as_ptr(),
            Mode::CUDNN_CROSS_CORRELATION,
            compute,
        );
        accept("cudnnSetConvolutionNdDescriptor", status)?;
        let status = sys::cudnnSetConvolutionGroupCount(made.raw(), call.groups);
        accept("cudnnSetConvolutionGroupCount", status)?;
        let status = sys::cudnnSetConvolutionMathType(made.raw(), math);
        accept("cudnnSetConvolutionMathType", status).map(|()| made)
    }
}

fn count(numbers: &Numbers) -> c_int {
    numbers.len() as c_int
}

fn type_of(dtype: DType) -> Answer<Type> {
    match dtype {
        DType::F64 => Ok(Type::CUDNN_DATA_DOUBLE),
        DType::F32 => Ok(Type::CUDNN_DATA_FLOAT),
        DType::F16 => Ok(Type::CUDNN_DATA_HALF),
        DType::BF16 => Ok(Type::CUDNN_DATA_BFLOAT16),
        other => Err(Refusal::new("cuDNN", format!("no convolutions of {other}"))),
    }
}

/// Success, or the library's message as a refusal.
fn accept(call: &'static str, status: Status) -> Answer<()> {
    if status == Status::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    if status == Status::CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED {
        return Err(Refusal::OutOfMemory);
    }
    // SAFETY: for any status the library has a text, which lives as long as it.
    Err(unsafe { refusal(call, status, sys::cudnnGetErrorString(status)) })
}

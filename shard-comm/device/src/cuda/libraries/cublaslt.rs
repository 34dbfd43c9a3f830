//! cuBLASLt itself, loaded when it is first asked for. All calls to it are here.
#![expect(
    unsafe_code,
    reason = "calls into cuBLASLt, whose handles this file alone holds"
)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock};

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t as Epilogue, cublasLtHandle_t,
    cublasLtMatmulAlgo_t as Algorithm, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulDescOpaque_t, cublasLtMatmulPreferenceAttributes_t as Preference,
    cublasLtMatmulPreferenceOpaque_t, cublasLtMatrixLayoutAttribute_t as LayoutAttribute,
    cublasLtMatrixLayoutOpaque_t, cublasLtReductionScheme_t as Reduction, cublasStatus_t as Status,
    cudaDataType_t as Type,
};
use cudarc::driver::CudaContext;

use super::Library;
use super::nvidia::{Description, refusal};
use crate::cuda::driver::{Answer, Refusal};
use crate::cuda::terms::{Gemm, Matrix};
use crate::{DType, MatmulPrecision};

/// The oldest version that is used: that of CUDA 12.
const OLDEST: usize = 120_000;
/// The most workspace that an algorithm may use: NVIDIA's recommendation for its larger GPUs.
const WORKSPACE: u64 = 32 << 20;
/// The alignment of a bias in bytes, because biases are read as vectors of 16 bytes.
const BIAS_ALIGNMENT: u64 = 16;
/// Alignment beyond this makes no difference.
const MOST_ALIGNMENT: u64 = 256;
/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
const PLAIN: i32 = 0;
const TRANSPOSED: i32 = 1;
/// Choices kept; when there are more, all are dropped and made again as needed.
const CHOICES: usize = 4096;

/// The functions that are called; an old library may lack some of them.
const CALLED: [&str; 15] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetStatusString",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtGetVersion",
];

/// Whether the library is there. cudarc panics where it or one of its functions is missing, so this looks for all of them first.
pub(super) fn found() -> &'static Library {
    static FOUND: LazyLock<Library> = LazyLock::new(|| {
        // SAFETY: loads a library of the system; the names are cudarc's own.
        if !unsafe { sys::is_culib_present() } {
            return Library::missing(
                "libcublasLt is in no folder of LD_LIBRARY_PATH (CUDA toolkit, or the Python package nvidia-cublas)",
            );
        }
        let has = |name: &&&str| {
            // SAFETY: the library is there; the symbol is only looked for.
            unsafe { sys::culib().get::<*const c_void>(name.as_bytes()).is_ok() }
        };
        if let Some(name) = CALLED.iter().find(|name| !has(name)) {
            return Library::missing(format!("libcublasLt has no {name}"));
        }
        // SAFETY: the function was looked for.
        match unsafe { sys::cublasLtGetVersion() } {
            version if version < OLDEST => {
                Library::missing(format!("version {version} is older than {OLDEST}"))
            }
            version => Library::Found { version },
        }
    });
    &FOUND
}

/// A handle of the library, in a context of CUDA.
pub(in crate::cuda) struct Lt {
    /// The pointer. Only one thread at a time uses it, because this is behind a lock.
    handle: usize,
    context: Arc<CudaContext>,
    /// The choices by call, with alignments in place of addresses; `None` where the library cannot compute the product.
    choices: HashMap<Gemm, Option<Choice>>,
}

/// How a product is done.
#[derive(Clone, Copy, Debug)]
struct Choice {
    algorithm: Algorithm,
    workspace: usize,
}

impl Lt {
    /// A handle in the context, which is current on this thread.
    pub(super) fn new(context: &Arc<CudaContext>) -> Answer<Self> {
        let mut handle: cublasLtHandle_t = null_mut();
        // SAFETY: the pointer is to a local.
        accept("cublasLtCreate", unsafe {
            sys::cublasLtCreate(&raw mut handle)
        })?;
        Ok(Self {
            handle: handle as usize,
            context: Arc::clone(context),
            choices: HashMap::new(),
        })
    }

    /// The bytes of workspace that a product needs; `None` if the library cannot compute it.
    pub(in crate::cuda) fn plan(&mut self, gemm: &Gemm) -> Answer<Option<usize>> {
        Ok(self.choice(gemm)?.map(|choice| choice.workspace))
    }

    fn choice(&mut self, gemm: &Gemm) -> Answer<Option<Choice>> {
        let key = aligned(gemm);
        if let Some(&choice) = self.choices.get(&key) {
            return Ok(choice);
        }
        let choice = match gemm.bias {
            Some(address) if !address.is_multiple_of(BIAS_ALIGNMENT) => None,
            _ => self.choose(gemm, &key)?,
        };
        if self.choices.len() >= CHOICES {
            self.choices.clear();
        }
        self.choices.insert(key, choice);
        Ok(choice)
    }

    /// The best choice by the library's heuristics. They are a function of the call, so equal GPUs and libraries choose alike.
    fn choose(&self, gemm: &Gemm, key: &Gemm) -> Answer<Option<Choice>> {
        let described = Described::new(gemm)?;
        let preference = preference(key)?;
        let mut result = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let mut count = 0;
        // SAFETY: handle and descriptions are alive, and there is room for the one result that is asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle as cublasLtHandle_t,
                described.product.raw(),
                described.a.raw(),
                described.b.raw(),
                described.d.raw(),
                described.d.raw(),
                preference.raw(),
                1,
                result.as_mut_ptr(),
                &raw mut count,
            )
        };
        if status == Status::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(None);
        }
        accept("cublasLtMatmulAlgoGetHeuristic", status)?;
        // SAFETY: zeros are a valid value of the type, with the state "success"; the result is used only if the library wrote
        // one.
        let result = unsafe { result.assume_init() };
        let usable = count == 1 && result.state == Status::CUBLAS_STATUS_SUCCESS;
        Ok(usable.then_some(Choice {
            algorithm: result.algo,
            workspace: result.workspaceSize,
        }))
    }

    /// Queues a product that was planned.
    ///
    /// # Safety
    /// As [`Driver::gemm`](crate::cuda::driver::Driver::gemm). The stream is alive and belongs to this handle's context, which is
    /// current on this thread.
    pub(in crate::cuda) unsafe fn run(
        &mut self,
        gemm: &Gemm,
        (workspace, bytes): (u64, usize),
        stream: usize,
    ) -> Answer<()> {
        const CALL: &str = "cublasLtMatmul";
        let choice = self.choice(gemm)?.filter(|c| c.workspace <= bytes);
        let choice = choice.ok_or_else(|| Refusal::new(CALL, "a product that was not planned"))?;
        let described = Described::new(gemm)?;
        let ((one, zero), (one_f64, zero_f64)) = ((1.0_f32, 0.0_f32), (1.0_f64, 0.0_f64));
        let [one, zero] = match gemm.dtype {
            DType::F64 => [&raw const one_f64, &raw const zero_f64].map(<*const f64>::cast),
            _ => [&raw const one, &raw const zero].map(<*const f32>::cast::<c_void>),
        };
        let address = |matrix: &Matrix| matrix.address as *const c_void;
        // SAFETY: handle and descriptions are alive; the factors are of the scale type and read before the call returns; the
        // caller promises that the memory may be touched. With a factor of zero, the matrix C is not read.
        let status = unsafe {
            sys::cublasLtMatmul(
                self.handle as cublasLtHandle_t,
                described.product.raw(),
                one,
                address(&gemm.a),
                described.a.raw(),
                address(&gemm.b),
                described.b.raw(),
                zero,
                address(&gemm.d),
                described.d.raw(),
                address(&gemm.d).cast_mut(),
                described.d.raw(),
                &raw const choice.algorithm,
                workspace as *mut c_void,
                bytes,
                stream as sys::cudaStream_t,
            )
        };
        accept(CALL, status)
    }
}

impl Drop for Lt {
    fn drop(&mut self) {
        // A context that is gone has ended everything in it.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: made by `new`, ended once.
            let _ = unsafe { sys::cublasLtDestroy(self.handle as cublasLtHandle_t) };
        }
    }
}

/// The call with alignments in place of its addresses: choices depend on this.
fn aligned(gemm: &Gemm) -> Gemm {
    let alignment = |address: u64| match address {
        0 => MOST_ALIGNMENT,
        other => (other & other.wrapping_neg()).min(MOST_ALIGNMENT),
    };
    let matrix = |matrix: &Matrix| Matrix {
        address: alignment(matrix.address),
        ..*matrix
    };
    Gemm {
        a: matrix(&gemm.a),
        b: matrix(&gemm.b),
        d: matrix(&gemm.d),
        bias: gemm.bias.map(alignment),
        ..*gemm
    }
}

type LtDescription<T> = Description<T, Status>;

/// A product and its matrices as descriptions of the library.
pub(super) struct Described {
    product: LtDescription<cublasLtMatmulDescOpaque_t>,
    a: LtDescription<cublasLtMatrixLayoutOpaque_t>,
    b: LtDescription<cublasLtMatrixLayoutOpaque_t>,
    d: LtDescription<cublasLtMatrixLayoutOpaque_t>,
}

impl Described {
    /// Needs the library, but no GPU.
    pub(super) fn new(gemm: &Gemm) -> Answer<Self> {
        let (compute, scale) = match (gemm.dtype, gemm.precision) {
            (DType::F64, _) => (Compute::CUBLAS_COMPUTE_64F, Type::CUDA_R_64F),
            (DType::F32, MatmulPrecision::Tf32) => {
                (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, Type::CUDA_R_32F)
            }
            _ => (Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F),
        };
        let mut product = null_mut();
        // SAFETY: the pointer is to a local; `Description` ends what the library made.
        let product = unsafe {
            accept(
                "cublasLtMatmulDescCreate",
                sys::cublasLtMatmulDescCreate(&raw mut product, compute, scale),
            )?;
            Description::new(product, sys::cublasLtMatmulDescDestroy)
        };
        let operation = |transposed| if transposed { TRANSPOSED } else { PLAIN };
        let raw = product.raw();
        set_product(
            raw,
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA,
            &operation(gemm.transpose_a),
        )?;
        set_product(
            raw,
            Attribute::CUBLASLT_MATMUL_DESC_TRANSB,
            &operation(gemm.transpose_b),
        )?;
        if let Some(address) = gemm.bias {
            let epilogue = Epilogue::CUBLASLT_EPILOGUE_BIAS;
            set_product(raw, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            set_product(raw, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)?;
        }
        let (dtype, result) = (type_of(gemm.dtype)?, type_of(gemm.result)?);
        Ok(Self {
            product,
            a: layout(dtype, &gemm.a, gemm.batches)?,
            b: layout(dtype, &gemm.b, gemm.batches)?,
            d: layout(result, &gemm.d, gemm.batches)?,
        })
    }
}

fn layout(
    dtype: Type,
    matrix: &Matrix,
    batches: i32,
) -> Answer<LtDescription<cublasLtMatrixLayoutOpaque_t>> {
    let mut layout = null_mut();
    // SAFETY: the pointer is to a local; `Description` ends what the library made.
    let layout = unsafe {
        accept(
            "cublasLtMatrixLayoutCreate",
            sys::cublasLtMatrixLayoutCreate(
                &raw mut layout,
                dtype,
                matrix.rows,
                matrix.columns,
                matrix.leading,
            ),
        )?;
        Description::new(layout, sys::cublasLtMatrixLayoutDestroy)
    };
    if batches > 1 {
        let count = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
        let step = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the layout is alive, and the value has that many bytes, which are read before the call returns.
            accept("cublasLtMatrixLayoutSetAttribute", unsafe {
                sys::cublasLtMatrixLayoutSetAttribute(layout.raw(), attribute, value, bytes)
            })
        };
        set(count, (&raw const batches).cast(), size_of::<i32>())?;
        set(step, (&raw const matrix.step).cast(), size_of::<i64>())?;
    }
    Ok(layout)
}

/// Restricts the search to algorithms that sum in the type of the computation alone, for data aligned as the key says.
pub(super) fn preference(key: &Gemm) -> Answer<LtDescription<cublasLtMatmulPreferenceOpaque_t>> {
    let mut made = null_mut();
    // SAFETY: the pointer is to a local; `Description` ends what the library made.
    let made = unsafe {
        accept(
            "cublasLtMatmulPreferenceCreate",
            sys::cublasLtMatmulPreferenceCreate(&raw mut made),
        )?;
        Description::new(made, sys::cublasLtMatmulPreferenceDestroy)
    };
    let set = |attribute, value: *const c_void, bytes| {
        // SAFETY: the preference is alive, and the value has that many bytes, which are read before the call returns.
        accept("cublasLtMatmulPreferenceSetAttribute", unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(made.raw(), attribute, value, bytes)
        })
    };
    let most = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    let workspace = WORKSPACE;
    set(most, (&raw const workspace).cast(), size_of::<u64>())?;
    let schemes = Reduction::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    let mask = Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
    set(mask, (&raw const schemes).cast(), size_of::<u32>())?;
    for (attribute, address) in [
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            key.a.address,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            key.b.address,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            key.d.address,
        ),
        (
            Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            key.d.address,
        ),
    ] {
        let alignment = address as u32;
        set(attribute, (&raw const alignment).cast(), size_of::<u32>())?;
    }
    Ok(made)
}

fn set_product<T>(
    product: *mut cublasLtMatmulDescOpaque_t,
    attribute: Attribute,
    value: &T,
) -> Answer<()> {
    let bytes = size_of::<T>();
    // SAFETY: the description is alive, and the value, which has that many bytes, is read before the call returns.
    accept("cublasLtMatmulDescSetAttribute", unsafe {
        sys::cublasLtMatmulDescSetAttribute(product, attribute, (&raw const *value).cast(), bytes)
    })
}

fn type_of(dtype: DType) -> Answer<Type> {
    match dtype {
        DType::F64 => Ok(Type::CUDA_R_64F),
        DType::F32 => Ok(Type::CUDA_R_32F),
        DType::F16 => Ok(Type::CUDA_R_16F),
        DType::BF16 => Ok(Type::CUDA_R_16BF),
        other => Err(Refusal::new("cuBLASLt", format!("no products of {other}"))),
    }
}

/// Success, or the library's message as a refusal.
fn accept(call: &'static str, status: Status) -> Answer<()> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    if status == Status::CUBLAS_STATUS_ALLOC_FAILED {
        return Err(Refusal::OutOfMemory);
    }
    // SAFETY: for any status the library has a text, which lives as long as it.
    Err(unsafe { refusal(call, status, sys::cublasLtGetStatusString(status)) })
}

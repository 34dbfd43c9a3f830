//! Plans of cuDNN's graphs: a convolution as a graph of one operation, and the engine that the library's heuristics put first among
//! those that compute it as it was asked for.
#![expect(unsafe_code, reason = "calls into cuDNN with its descriptors")]

use std::ffi::c_void;
use std::ptr::null_mut;

use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Kind,
    cudnnBackendDescriptorType_t as What, cudnnBackendHeurMode_t as Heuristics,
    cudnnBackendNumericalNote_t as Note, cudnnConvolutionMode_t as Mode, cudnnDataType_t as Type,
    cudnnHandle_t,
};

use super::{WORKSPACE, accept, type_of};
use crate::cuda::driver::Answer;
use crate::cuda::terms::{ConvKind, Convolution, Tensor};
use crate::{DType, MatmulPrecision};

/// The functions that are called.
pub(super) const CALLED: [&str; 6] = [
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendExecute",
    "cudnnBackendFinalize",
    "cudnnBackendGetAttribute",
    "cudnnBackendSetAttribute",
];

/// Alignment beyond this makes no difference.
const MOST_ALIGNMENT: u64 = 16;
/// How many engines of the heuristics are looked at.
const ENGINES: usize = 32;
/// How many notes an engine has at most.
const NOTES: usize = 16;

/// The numbers of the tensors in a graph.
const X: i64 = 1;
const W: i64 = 2;
const Y: i64 = 3;

/// How a convolution is done.
pub(super) struct Plan {
    plan: Part,
    /// Bytes.
    pub(super) workspace: usize,
    /// What the plan was made of.
    _parts: Vec<Part>,
}

/// The alignment of an address, as far as it makes a difference; that of no address is the best.
pub(super) fn alignment(address: u64) -> u64 {
    match address {
        0 => MOST_ALIGNMENT,
        other => (other & other.wrapping_neg()).min(MOST_ALIGNMENT),
    }
}

impl Plan {
    /// The plan for a convolution that has alignments in place of addresses; `None` if no engine computes it as it was asked for. The
    /// heuristics are a function of the call, so equal GPUs and libraries plan alike.
    pub(super) fn new(handle: cudnnHandle_t, call: &Convolution) -> Answer<Option<Self>> {
        let (graph, parts) = graph(handle, call)?;
        for mode in [
            Heuristics::CUDNN_HEUR_MODE_A,
            Heuristics::CUDNN_HEUR_MODE_FALLBACK,
        ] {
            for engine in engines(&graph, mode)? {
                if let Some(plan) = planned(handle, call, &engine)? {
                    let workspace = plan.number(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
                    if let Ok(workspace) = usize::try_from(workspace)
                        && workspace <= WORKSPACE
                    {
                        let mut parts = parts;
                        parts.extend([graph, engine]);
                        return Ok(Some(Self {
                            plan,
                            workspace,
                            _parts: parts,
                        }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Queues the convolution on the handle's stream.
    ///
    /// # Safety
    /// As [`Driver::convolve`](crate::cuda::driver::Driver::convolve), for the call that was planned, with a workspace of that many
    /// bytes. The handle is the one that the plan was made for, and its context is current on this thread.
    pub(super) unsafe fn run(
        &self,
        handle: cudnnHandle_t,
        call: &Convolution,
        workspace: u64,
    ) -> Answer<()> {
        let mut pack = Part::new(What::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let address = |tensor: &Tensor| tensor.address as *mut c_void;
        let addresses = [address(&call.x), address(&call.w), address(&call.y)];
        let names = Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS;
        pack.set(names, Kind::CUDNN_TYPE_INT64, &[X, W, Y])?;
        let pointers = Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS;
        pack.set(pointers, Kind::CUDNN_TYPE_VOID_PTR, &addresses)?;
        let scratch = Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE;
        pack.set(
            scratch,
            Kind::CUDNN_TYPE_VOID_PTR,
            &[workspace as *mut c_void],
        )?;
        pack.finish()?;
        // SAFETY: all of them are alive; the caller promises that the memory may be touched.
        accept("cudnnBackendExecute", unsafe {
            sys::cudnnBackendExecute(handle, self.plan.raw(), pack.raw())
        })
    }
}

/// The graph of a convolution, and the parts that it is made of.
fn graph(handle: cudnnHandle_t, call: &Convolution) -> Answer<(Part, Vec<Part>)> {
    let (operation, mut parts) = operation(call)?;
    let mut graph = Part::new(What::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
    let handles = Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE;
    graph.set(handles, Kind::CUDNN_TYPE_HANDLE, &[handle])?;
    graph.link(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation)?;
    graph.finish()?;
    parts.push(operation);
    Ok((graph, parts))
}

/// A convolution as an operation, and the parts that it is made of. Needs the library, but no GPU.
pub(in super::super) fn operation(call: &Convolution) -> Answer<(Part, Vec<Part>)> {
    let dtype = type_of(call.dtype)?;
    let x = tensor(X, dtype, &call.x)?;
    let w = tensor(W, dtype, &call.w)?;
    let y = tensor(Y, dtype, &call.y)?;
    let window = window(call)?;
    let (what, [conv, of_x, of_w, of_y, one, zero]) = match call.kind {
        ConvKind::Forward => (
            What::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        ConvKind::InputGrad => (
            What::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        ConvKind::WeightGrad => (
            What::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    };
    let mut operation = Part::new(what)?;
    for (name, part) in [(conv, &window), (of_x, &x), (of_w, &w), (of_y, &y)] {
        operation.link(name, part)?;
    }
    for (name, factor) in [(one, 1.0_f32), (zero, 0.0)] {
        match call.dtype {
            DType::F64 => {
                operation.set(name, Kind::CUDNN_TYPE_DOUBLE, &[f64::from(factor)])?;
            }
            _ => operation.set(name, Kind::CUDNN_TYPE_FLOAT, &[factor])?,
        }
    }
    operation.finish()?;
    Ok((operation, vec![x, w, y, window]))
}

/// A tensor whose address has this alignment.
fn tensor(number: i64, dtype: Type, of: &Tensor) -> Answer<Part> {
    let wide = |numbers: &[i32]| -> Vec<i64> { numbers.iter().map(|&n| n.into()).collect() };
    let mut tensor = Part::new(What::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    let types = Name::CUDNN_ATTR_TENSOR_DATA_TYPE;
    tensor.set(types, Kind::CUDNN_TYPE_DATA_TYPE, &[dtype])?;
    for (name, numbers) in [
        (Name::CUDNN_ATTR_TENSOR_DIMENSIONS, wide(&of.dims)),
        (Name::CUDNN_ATTR_TENSOR_STRIDES, wide(&of.strides)),
        (Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, vec![number]),
        (
            Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
            vec![alignment(of.address) as i64],
        ),
    ] {
        tensor.set(name, Kind::CUDNN_TYPE_INT64, &numbers)?;
    }
    tensor.finish()?;
    Ok(tensor)
}

fn window(call: &Convolution) -> Answer<Part> {
    let compute = match call.dtype {
        DType::F64 => Type::CUDNN_DATA_DOUBLE,
        _ => Type::CUDNN_DATA_FLOAT,
    };
    let mut window = Part::new(What::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    let types = Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE;
    window.set(types, Kind::CUDNN_TYPE_DATA_TYPE, &[compute])?;
    let mode = Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE;
    let modes = [Mode::CUDNN_CROSS_CORRELATION];
    window.set(mode, Kind::CUDNN_TYPE_CONVOLUTION_MODE, &modes)?;
    let dims = [call.pad.len() as i32];
    for (name, numbers) in [
        (Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &dims[..]),
        (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &call.dilation),
        (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &call.stride),
        (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &call.pad),
        (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &call.pad),
    ] {
        let numbers: Vec<i64> = numbers.iter().map(|&n| n.into()).collect();
        window.set(name, Kind::CUDNN_TYPE_INT64, &numbers)?;
    }
    window.finish()?;
    Ok(window)
}

/// The engines of the library for a graph, those first that it expects to be the fastest.
fn engines(graph: &Part, mode: Heuristics) -> Answer<Vec<Part>> {
    let mut heuristics = Part::new(What::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.link(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)?;
    let modes = Name::CUDNN_ATTR_ENGINEHEUR_MODE;
    heuristics.set(modes, Kind::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    if !heuristics.is_finished()? {
        return Ok(Vec::new());
    }
    let mut engines = (0..ENGINES)
        .map(|_| Part::new(What::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
        .collect::<Answer<Vec<_>>>()?;
    let count = heuristics.fill(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, &mut engines)?;
    engines.truncate(count);
    Ok(engines)
}

/// The plan that goes by an engine; `None` if the engine computes something else than was asked for, or cannot compute it.
fn planned(handle: cudnnHandle_t, call: &Convolution, engine: &Part) -> Answer<Option<Part>> {
    let mut own = vec![Part::new(What::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?];
    if engine.fill(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &mut own)? != 1 {
        return Ok(None);
    }
    let notes = own[0].notes()?;
    let full = call.dtype == DType::F32 && call.precision == MatmulPrecision::Full;
    // The same bits every time; products and sums in the type of the computation, without transforms.
    let wrong = |&note: &Note| match note {
        Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE | Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS => {
            full
        }
        Note::CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP => false,
        _ => true,
    };
    if notes.iter().any(wrong) {
        return Ok(None);
    }
    let mut plan = Part::new(What::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    let handles = Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE;
    plan.set(handles, Kind::CUDNN_TYPE_HANDLE, &[handle])?;
    plan.link(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine)?;
    Ok(plan.is_finished()?.then_some(plan))
}

/// A descriptor of the library; it ends with the scope. The pointer is a number, because only one thread at a time uses it, behind the
/// lock of the library's handle.
pub(in super::super) struct Part(usize);

impl Part {
    fn new(what: What) -> Answer<Self> {
        let mut made = null_mut();
        // SAFETY: the pointer is to a local.
        accept("cudnnBackendCreateDescriptor", unsafe {
            sys::cudnnBackendCreateDescriptor(what, &raw mut made)
        })?;
        Ok(Self(made as usize))
    }

    fn raw(&self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// Sets an attribute to values, whose type must be the one that `kind` names.
    fn set<T: Copy>(&mut self, name: Name, kind: Kind, values: &[T]) -> Answer<()> {
        let (count, values) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the descriptor is alive; there are as many values as the call says, which are read before it returns.
        accept("cudnnBackendSetAttribute", unsafe {
            sys::cudnnBackendSetAttribute(self.raw(), name, kind, count, values)
        })
    }

    /// Sets an attribute to another descriptor, which is to live as long as this one.
    fn link(&mut self, name: Name, to: &Self) -> Answer<()> {
        self.set(name, Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[to.raw()])
    }

    fn finish(&mut self) -> Answer<()> {
        // SAFETY: the descriptor is alive.
        accept("cudnnBackendFinalize", unsafe {
            sys::cudnnBackendFinalize(self.raw())
        })
    }

    /// Finishes the descriptor; false if the library does not support what it says.
    fn is_finished(&mut self) -> Answer<bool> {
        // SAFETY: the descriptor is alive.
        let status = unsafe { sys::cudnnBackendFinalize(self.raw()) };
        // Status codes come in classes of a thousand: "not supported", and in places "bad parameter".
        match status as u32 / 1000 {
            2 | 3 => Ok(false),
            _ => accept("cudnnBackendFinalize", status).map(|()| true),
        }
    }

    /// Gets descriptors into those given, and returns how many there are.
    fn fill(&self, name: Name, into: &mut [Self]) -> Answer<usize> {
        let mut raw: Vec<*mut c_void> = into.iter().map(Self::raw).collect();
        let kind = Kind::CUDNN_TYPE_BACKEND_DESCRIPTOR;
        self.get(name, kind, &mut raw)
    }

    fn number(&self, name: Name) -> Answer<i64> {
        let mut number = [0_i64];
        self.get(name, Kind::CUDNN_TYPE_INT64, &mut number)?;
        Ok(number[0])
    }

    /// The notes of an engine. One that this library does not know counts as one that is not wanted.
    fn notes(&self) -> Answer<Vec<Note>> {
        const KNOWN: [Note; 4] = [
            Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
            Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
            Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
            Note::CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP,
        ];
        // As numbers, since the library may know more notes than there are names.
        let mut found = [0_u32; NOTES];
        let name = Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
        let count = self.get(name, Kind::CUDNN_TYPE_NUMERICAL_NOTE, &mut found)?;
        let note = |&number: &u32| {
            let known = KNOWN.iter().find(|&&known| known as u32 == number);
            *known.unwrap_or(&Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
        };
        Ok(found[..count].iter().map(note).collect())
    }

    /// Gets at most as many values as there is room for, and returns how many there are.
    fn get<T>(&self, name: Name, kind: Kind, into: &mut [T]) -> Answer<usize> {
        let (room, mut count) = (into.len() as i64, 0);
        // SAFETY: the descriptor is alive, and there is room for as many values as the call says.
        let status = unsafe {
            sys::cudnnBackendGetAttribute(
                self.raw(),
                name,
                kind,
                room,
                &raw mut count,
                into.as_mut_ptr().cast(),
            )
        };
        accept("cudnnBackendGetAttribute", status)?;
        Ok((count.max(0) as usize).min(into.len()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: made by `new`, ended once.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.raw()) };
    }
}

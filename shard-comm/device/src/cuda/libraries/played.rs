//! The libraries as their manuals describe them, in plain loops on the host: a device without a GPU calls these in their place.
//!
//! The loops read descriptions as the libraries do: matrices by columns, strides of tensors, equal padding on both sides. They
//! refuse what the libraries refuse, and do not take what the manuals do not allow.
#![expect(unsafe_code, reason = "reads and writes addresses of emulated GPUs")]

use half::{bf16, f16};

use super::{Libraries, Library};
use crate::cuda::driver::{Answer, Refusal};
use crate::cuda::terms::{ConvKind, Convolution, Fourier, FourierKind, Gemm, Matrix, Tensor};
use crate::{DType, MatmulPrecision};

/// Workspace that every call asks for, so that tests see that the call gets it.
const WORKSPACE: usize = 64;

/// The emulation has all libraries.
pub(in crate::cuda) fn libraries() -> Libraries {
    let played = || Library::Found { version: 0 };
    Libraries {
        cublaslt: played(),
        cudnn: played(),
        cufft: played(),
    }
}

/// As [`Driver::plan_gemm`](crate::cuda::driver::Driver::plan_gemm).
pub(in crate::cuda) fn plan_gemm(gemm: &Gemm) -> Answer<Option<usize>> {
    let [a, b] = [(gemm.a, gemm.transpose_a), (gemm.b, gemm.transpose_b)].map(|(of, turned)| {
        let (rows, columns) = (of.rows, of.columns);
        if turned {
            (columns, rows)
        } else {
            (rows, columns)
        }
    });
    let fits = a.1 == b.0 && a.0 == gemm.d.rows && b.1 == gemm.d.columns && gemm.batches >= 1;
    let lies = |of: &Matrix| of.leading >= of.rows as i64 && of.step >= 0;
    let apart = gemm.batches == 1 || gemm.d.step > 0;
    match fits && apart && [gemm.a, gemm.b, gemm.d].iter().all(lies) {
        true => Ok(Some(WORKSPACE)),
        false => Err(Refusal::new(
            "cublasLtMatmulAlgoGetHeuristic",
            format!("invalid value: {gemm:?}"),
        )),
    }
}

/// As [`Driver::gemm`](crate::cuda::driver::Driver::gemm).
///
/// # Safety
/// As for that function, with addresses of the host.
pub(in crate::cuda) unsafe fn gemm(gemm: &Gemm, workspace: (u64, usize)) -> Answer<()> {
    if workspace.0 == 0 || workspace.1 < WORKSPACE {
        return Err(Refusal::new("cublasLtMatmul", "no workspace"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (gemm.dtype, gemm.result) {
            (DType::F64, DType::F64) => multiply::<f64, f64>(gemm),
            (DType::F32, DType::F32) => multiply::<f32, f32>(gemm),
            (DType::F16, DType::F16) => multiply::<f16, f16>(gemm),
            (DType::BF16, DType::BF16) => multiply::<bf16, bf16>(gemm),
            (DType::F16, DType::F32) => multiply::<f16, f32>(gemm),
            (DType::BF16, DType::F32) => multiply::<bf16, f32>(gemm),
            _ => return Err(Refusal::new("cublasLtMatmul", "not supported")),
        }
    }
    Ok(())
}

unsafe fn multiply<T: Float, R: Float<Sum = T::Sum>>(gemm: &Gemm) {
    let inner = if gemm.transpose_a {
        gemm.a.rows
    } else {
        gemm.a.columns
    };
    let place = |of: &Matrix, batch: i64, i: u64, j: u64| {
        batch * of.step + i as i64 + j as i64 * of.leading
    };
    let at = |of: &Matrix, turned: bool, batch: i64, i: u64, j: u64| {
        let (i, j) = if turned { (j, i) } else { (i, j) };
        Place::<T>::new(of.address, place(of, batch, i, j))
    };
    for batch in 0..i64::from(gemm.batches) {
        for j in 0..gemm.d.columns {
            for i in 0..gemm.d.rows {
                let mut sum = T::ZERO;
                for k in 0..inner {
                    let a = at(&gemm.a, gemm.transpose_a, batch, i, k);
                    let b = at(&gemm.b, gemm.transpose_b, batch, k, j);
                    // SAFETY: elements of the matrices, as the caller promises.
                    sum = unsafe { T::add_product(sum, a.read(), b.read(), gemm.precision) };
                }
                if let Some(bias) = gemm.bias {
                    let one = R::narrow(R::ONE);
                    let bias = Place::<R>::new(bias, i as i64);
                    // SAFETY: as above.
                    let bias = unsafe { bias.read() };
                    sum = R::add_product(sum, bias, one, MatmulPrecision::Full);
                }
                // SAFETY: as above.
                unsafe {
                    Place::<R>::new(gemm.d.address, place(&gemm.d, batch, i, j))
                        .write(R::narrow(sum));
                }
            }
        }
    }
}

/// As [`Driver::plan_convolution`](crate::cuda::driver::Driver::plan_convolution).
pub(in crate::cuda) fn plan_convolution(call: &Convolution) -> Answer<Option<usize>> {
    let Convolution { x, w, y, .. } = call;
    let window = |d: usize| {
        let span = (w.dims[2 + d] - 1) * call.dilation[d] + 1;
        (x.dims[2 + d] + 2 * call.pad[d] - span) / call.stride[d] + 1 == y.dims[2 + d]
    };
    let spatial = call.pad.len();
    let fits = (2..=3).contains(&spatial)
        && [x, w, y].iter().all(|of| of.dims.len() == spatial + 2)
        && x.dims[0] == y.dims[0]
        && x.dims[1] == w.dims[1] * call.groups
        && y.dims[1] == w.dims[0]
        && w.dims[0] % call.groups == 0
        && (0..spatial).all(window);
    if !fits {
        let text = format!("bad parameter: {call:?}");
        return Err(Refusal::new("cudnnGetConvolution..WorkspaceSize", text));
    }
    // For gradients the gradient by y must have no gaps inside a sample.
    let dense = call.kind == ConvKind::Forward || is_packed(y);
    Ok(dense.then_some(WORKSPACE))
}

/// Whether a sample lies without gaps.
fn is_packed(of: &Tensor) -> bool {
    let mut expected = 1;
    (of.dims.iter().zip(&of.strides).skip(1).rev()).all(|(&extent, &stride)| {
        let fits = stride == expected;
        expected *= extent;
        fits
    })
}

/// As [`Driver::convolve`](crate::cuda::driver::Driver::convolve).
///
/// # Safety
/// As for that function, with addresses of the host.
pub(in crate::cuda) unsafe fn convolve(call: &Convolution, workspace: (u64, usize)) -> Answer<()> {
    if workspace.0 == 0 || workspace.1 < WORKSPACE {
        return Err(Refusal::new("cudnnConvolution", "no workspace"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match call.dtype {
            DType::F64 => run::<f64>(call),
            DType::F32 => run::<f32>(call),
            DType::F16 => run::<f16>(call),
            DType::BF16 => run::<bf16>(call),
            _ => return Err(Refusal::new("cudnnConvolution", "not supported")),
        }
    }
    Ok(())
}

unsafe fn run<T: Float>(call: &Convolution) {
    let [x, w, y] = [&call.x, &call.w, &call.y].map(lift);
    let lift3 = |of: &[i32], missing: i64| {
        let mut three = [missing; 3];
        for (to, &from) in three[3 - of.len()..].iter_mut().zip(of) {
            *to = i64::from(from);
        }
        three
    };
    let (pad, stride, dilation) = (
        lift3(&call.pad, 0),
        lift3(&call.stride, 1),
        lift3(&call.dilation, 1),
    );
    let (reads, out_of_group) = (w.dims[1], w.dims[0] / i64::from(call.groups));
    // One sum per element of the result.
    let target = match call.kind {
        ConvKind::Forward => &y,
        ConvKind::InputGrad => &x,
        ConvKind::WeightGrad => &w,
    };
    let mut sums = vec![T::ZERO; target.dims.iter().product::<i64>() as usize];
    for [n, o, y0, y1, y2] in positions(y.dims) {
        for [c, k0, k1, k2, _] in positions([reads, w.dims[2], w.dims[3], w.dims[4], 1]) {
            let mut at = [n, o / out_of_group * reads + c, 0, 0, 0];
            for (d, (o, k)) in [(y0, k0), (y1, k1), (y2, k2)].into_iter().enumerate() {
                at[2 + d] = o * stride[d] + k * dilation[d] - pad[d];
            }
            if !(2..5).all(|d| (0..x.dims[d]).contains(&at[d])) {
                continue;
            }
            let (out, tap) = ([n, o, y0, y1, y2], [o, c, k0, k1, k2]);
            let (left, right, to) = match call.kind {
                ConvKind::Forward => (x.place::<T>(at), w.place(tap), out),
                ConvKind::InputGrad => (y.place(out), w.place(tap), at),
                ConvKind::WeightGrad => (x.place(at), y.place(out), tap),
            };
            let sum = &mut sums[target.number(to)];
            // SAFETY: elements of the tensors, as the caller promises.
            *sum = unsafe { T::add_product(*sum, left.read(), right.read(), call.precision) };
        }
    }
    for at in positions(target.dims) {
        // SAFETY: as above.
        unsafe { target.place(at).write(T::narrow(sums[target.number(at)])) };
    }
}

/// As [`Driver::plan_fourier`](crate::cuda::driver::Driver::plan_fourier).
pub(in crate::cuda) fn plan_fourier(call: &Fourier) -> Answer<Option<usize>> {
    match call.n > 0 && call.lines > 0 {
        true => Ok(Some(WORKSPACE)),
        false => Err(Refusal::new(
            "cufftMakePlanMany64",
            format!("invalid size: {call:?}"),
        )),
    }
}

/// As [`Driver::fourier`](crate::cuda::driver::Driver::fourier).
///
/// # Safety
/// As for that function, with addresses of the host.
pub(in crate::cuda) unsafe fn fourier(call: &Fourier, workspace: (u64, usize)) -> Answer<()> {
    if workspace.0 == 0 || workspace.1 < WORKSPACE {
        return Err(Refusal::new("cufftExec", "no workspace"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        match call.dtype {
            DType::F64 => transform::<f64>(call, |x| x, |x| x),
            DType::F32 => transform::<f32>(call, f64::from, |x| x as f32),
            _ => return Err(Refusal::new("cufftExec", "invalid type")),
        }
    }
    Ok(())
}

/// Sums in `f64`, line by line. What is read is overwritten when it has been read, because the library may do so.
unsafe fn transform<T: Float>(call: &Fourier, wide: impl Fn(T) -> f64, narrow: impl Fn(f64) -> T) {
    let Fourier { kind, n, .. } = *call;
    let [width, out] = kind.widths(n);
    for line in 0..call.lines {
        let x = |i: usize| Place::<T>::new(call.x, (line * width + i) as i64);
        let y = |i: usize| Place::<T>::new(call.y, (line * out + i) as i64);
        // SAFETY: elements of the line, as the caller promises.
        let read = |i: usize| wide(unsafe { x(i).read() });
        // The whole line as complex numbers.
        let number = |j: usize| match kind {
            FourierKind::Complex { .. } => [read(2 * j), read(2 * j + 1)],
            FourierKind::FromReal => [read(j), 0.0],
            FourierKind::ToReal if j == 0 || 2 * j == n => [read(2 * j), 0.0],
            FourierKind::ToReal if 2 * j < n => [read(2 * j), read(2 * j + 1)],
            FourierKind::ToReal => [read(2 * (n - j)), -read(2 * (n - j) + 1)],
        };
        let numbers: Vec<[f64; 2]> = (0..n).map(number).collect();
        let sign = match kind {
            FourierKind::Complex { inverse: false } | FourierKind::FromReal => -1.0,
            _ => 1.0,
        };
        let sum = |k: usize| {
            (0..n).fold([0.0; 2], |[re, im], j| {
                let angle = sign * std::f64::consts::TAU * ((j * k) % n) as f64 / n as f64;
                let ([a, b], (s, c)) = (numbers[j], angle.sin_cos());
                [re + a * c - b * s, im + a * s + b * c]
            })
        };
        let parts = if kind == FourierKind::ToReal { 1 } else { 2 };
        let results = (0..out).map(|i| (y(i), sum(i / parts)[i % parts]));
        let lost = (0..width).map(|i| (x(i), f64::NAN));
        for (place, value) in results.chain(lost) {
            // SAFETY: as above.
            unsafe { place.write(narrow(value)) };
        }
    }
}

/// A tensor with three spatial dims.
struct Lifted {
    address: u64,
    dims: [i64; 5],
    strides: [i64; 5],
}

fn lift(of: &Tensor) -> Lifted {
    let front = 5 - of.dims.len();
    let mut lifted = Lifted {
        address: of.address,
        dims: [1; 5],
        strides: [0; 5],
    };
    for (d, (&extent, &stride)) in of.dims.iter().zip(&of.strides).enumerate() {
        let to = if d < 2 { d } else { d + front };
        lifted.dims[to] = i64::from(extent);
        lifted.strides[to] = i64::from(stride);
    }
    lifted
}

impl Lifted {
    fn place<T: Float>(&self, at: [i64; 5]) -> Place<T> {
        let offset = at.iter().zip(self.strides).map(|(i, stride)| i * stride);
        Place::new(self.address, offset.sum())
    }

    /// The number of an element in row-major order.
    fn number(&self, at: [i64; 5]) -> usize {
        let dims = at.iter().zip(self.dims);
        dims.fold(0, |all, (i, extent)| all * extent + i) as usize
    }
}

/// All positions in a box, in order.
fn positions(dims: [i64; 5]) -> impl Iterator<Item = [i64; 5]> {
    (0..dims.iter().product::<i64>()).map(move |mut rest| {
        let mut at = [0; 5];
        for d in (0..5).rev() {
            at[d] = rest % dims[d];
            rest /= dims[d];
        }
        at
    })
}

/// The address of an element in memory.
struct Place<T>(*mut T);

impl<T: Float> Place<T> {
    fn new(address: u64, elements: i64) -> Self {
        Self((address as *mut T).wrapping_offset(elements as isize))
    }

    /// # Safety
    /// There is an element at this address.
    unsafe fn read(&self) -> T {
        // SAFETY: the caller's promise; buffers are aligned for every element type.
        unsafe { self.0.read() }
    }

    /// # Safety
    /// As [`read`](Self::read), and nobody else uses the element.
    unsafe fn write(&self, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.write(value) }
    }
}

/// Element types, each with the type it is summed in: `f32` for 16-bit types.
trait Float: Copy {
    type Sum: Copy;
    const ZERO: Self::Sum;
    const ONE: Self::Sum;
    fn add_product(sum: Self::Sum, a: Self, b: Self, precision: MatmulPrecision) -> Self::Sum;
    fn narrow(sum: Self::Sum) -> Self;
}

impl Float for f64 {
    type Sum = Self;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn add_product(sum: Self, a: Self, b: Self, _: MatmulPrecision) -> Self {
        sum + a * b
    }
    fn narrow(sum: Self) -> Self {
        sum
    }
}

impl Float for f32 {
    type Sum = Self;
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn add_product(sum: Self, a: Self, b: Self, precision: MatmulPrecision) -> Self {
        match precision {
            MatmulPrecision::Full => sum + a * b,
            MatmulPrecision::Tf32 => sum + to_tf32(a) * to_tf32(b),
        }
    }
    fn narrow(sum: Self) -> Self {
        sum
    }
}

/// The nearest number with 10 bits of mantissa, halves away from zero.
fn to_tf32(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    f32::from_bits((x.to_bits() + 0x1000) & !0x1fff)
}

macro_rules! sixteen_bits {
    ($($T:ty),+) => {$(
        impl Float for $T {
            type Sum = f32;
            const ZERO: f32 = 0.0;
            const ONE: f32 = 1.0;
            fn add_product(sum: f32, a: Self, b: Self, _: MatmulPrecision) -> f32 {
                sum + a.to_f32() * b.to_f32()
            }
            fn narrow(sum: f32) -> Self {
                Self::from_f32(sum)
            }
        }
    )+};
}
sixteen_bits!(f16, bf16);

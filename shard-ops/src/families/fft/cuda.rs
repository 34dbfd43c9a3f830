//! Fourier transforms on GPUs: every result is the sum that defines it.

use super::Transform;
use super::product::ComplexMul;
use crate::Result;
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_kernels::fft::Fft;

const SOURCE: KernelSource = cuda_source!("fft", include_str!("fft.cu"));
#[cfg(test)]
compiles!(
    SOURCE,
    "#define T f32\n#define READS 0\n#define WRITES 1\n#define SIGN -1\n#define HALF 0\n#define DOUBLED 1\n"
);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    dim: i64,
    n: i64,
    ix: i64,
    iy: i64,
    scale: f64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProductParams {
    a: CudaView,
    b: CudaView,
    y: CudaView,
    ia: i64,
    ib: i64,
    iy: i64,
    conjugate_a: i64,
    conjugate_b: i64,
}

/// The view of real parts, and the step to imaginary parts.
fn parts(mut view: CudaView) -> (CudaView, i64) {
    view.ndim -= 1;
    let last = view.ndim as usize;
    let step = std::mem::take(&mut view.strides[last]);
    view.shape[last] = 1;
    (view, step)
}

impl CudaKernel for Transform {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (reads, writes) = (self.kind.reads_complex(), self.kind.writes_complex());
        let of = |view, complex| if complex { parts(view) } else { (view, 0) };
        let (x, ix) = of(call.input(0)?, reads);
        let (y, iy) = of(call.output(0)?, writes);
        let params = Params {
            x,
            y,
            dim: self.dim as i64,
            n: self.n as i64,
            ix,
            iy,
            scale: self.scale,
        };
        let (sign, half, doubled) = match self.kind {
            Fft::Complex { inverse } => (if inverse { 1 } else { -1 }, false, false),
            Fft::FromReal { doubled } => (-1, false, doubled),
            Fft::ToReal { doubled } => (1, true, doubled),
        };
        let of = |name, is| format!("#define {name} {}\n", u8::from(is));
        let flags = [
            ("READS", reads),
            ("WRITES", writes),
            ("HALF", half),
            ("DOUBLED", doubled),
        ];
        let flags: String = flags.map(|(name, is)| of(name, is)).concat();
        let types = define(&[("T", call.outputs[0].dtype())]);
        let defines = format!("{types}{flags}#define SIGN {sign}\n");
        call.launch_own(&SOURCE, &defines, "transform", y.numel(), &params)
    }
}

impl CudaKernel for ComplexMul {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let whole = call.output(0)?;
        let (y, iy) = parts(whole);
        let (a, ia) = parts(call.input(0)?.broadcast_to(&whole));
        let (b, ib) = parts(call.input(1)?.broadcast_to(&whole));
        let [conjugate_a, conjugate_b] = self.conjugate.map(i64::from);
        let params = ProductParams {
            a,
            b,
            y,
            ia,
            ib,
            iy,
            conjugate_a,
            conjugate_b,
        };
        let defines = define(&[("T", call.outputs[0].dtype())]);
        call.launch_own(&SOURCE, &defines, "complex_mul", y.numel(), &params)
    }
}

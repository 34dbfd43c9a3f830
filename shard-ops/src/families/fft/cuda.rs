//! Fourier transforms on GPUs, by cuFFT where it is: lines are copied to where it takes them, transformed, and copied to where they
//! belong. Without it every result is the sum that defines it.

use super::Transform;
use super::product::ComplexMul;
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::error::InOp;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::{FourierKind, KernelSource, Library};
use shard_comm::{BufferMut, DType, Strided};
use shard_kernels::fft::{Fft, Pass};

const SOURCE: KernelSource = cuda_source!("fft", include_str!("fft.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T f32\n#define READS 0\n#define WRITES 1\n#define SIGN -1\n#define HALF 0\n#define DOUBLED 1\n",
)];

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

/// Lines in their views, and as the library takes them.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct LineParams {
    view: CudaView,
    lines: CudaView,
    dim: i64,
    /// Elements of a transform, and complex or real numbers in a line of the library.
    n: i64,
    width: i64,
    imaginary: i64,
    scale: f64,
}

/// One of an op's transforms.
struct Along<'a>(&'a Pass);

impl Along<'_> {
    /// What the kernels are compiled for.
    fn defines(&self, dtype: DType) -> String {
        let kind = self.0.kind;
        let (sign, half, doubled) = match kind {
            Fft::Complex { inverse } => (if inverse { 1 } else { -1 }, false, false),
            Fft::FromReal { doubled } => (-1, false, doubled),
            Fft::ToReal { doubled } => (1, true, doubled),
        };
        let flags = [
            ("READS", kind.reads_complex()),
            ("WRITES", kind.writes_complex()),
            ("HALF", half),
            ("DOUBLED", doubled),
        ];
        let of = |(name, is): (&str, bool)| format!("#define {name} {}\n", u8::from(is));
        let types = define(&[("T", dtype)]);
        format!("{types}{}#define SIGN {sign}\n", flags.map(of).concat())
    }

    /// Lets cuFFT transform the lines; returns whether it did.
    fn by_library(
        &self,
        call: &mut CudaCall<'_>,
        defines: &str,
        [(x, ix), (y, iy)]: [(CudaView, i64); 2],
    ) -> Result<bool> {
        let found = matches!(call.gpu.libraries().cufft, Library::Found { .. });
        let pass = self.0;
        let extent = y.shape[pass.dim] as usize;
        if !call.policy.libraries || !found || y.numel() == 0 {
            return Ok(false);
        }
        let (lines, n) = (y.numel() / extent, pass.n);
        let (kind, [read, written]) = match pass.kind {
            Fft::Complex { inverse } => (FourierKind::Complex { inverse }, [n, n]),
            Fft::FromReal { .. } => (FourierKind::FromReal, [n, n / 2 + 1]),
            Fft::ToReal { .. } => (FourierKind::ToReal, [n / 2 + 1, n]),
        };
        let dtype = call.outputs[0].dtype();
        let parts = |complex: bool| if complex { 2 } else { 1 };
        let mut from = call.scratch(dtype, lines * read * parts(pass.kind.reads_complex()))?;
        let mut to = call.scratch(dtype, lines * written * parts(pass.kind.writes_complex()))?;
        let params = |view, buffer: &mut BufferMut, width: usize, imaginary| -> Result<_> {
            let address = call.gpu.address_mut(buffer).in_op(call.op)?;
            let whole = Strided::contiguous(&[buffer.len()]);
            Ok(LineParams {
                view,
                lines: CudaView::new(call.op, address, dtype, &whole)?,
                dim: pass.dim as i64,
                n: n as i64,
                width: width as i64,
                imaginary,
                scale: pass.scale,
            })
        };
        let packed = params(x, &mut from, read, ix)?;
        let unpacked = params(y, &mut to, written, iy)?;
        call.launch_own(&SOURCE, defines, "pack", lines * read, &packed)?;
        let did = (call.gpu)
            .fourier(kind, (lines, n), &mut from, &mut to)
            .in_op(call.op)?;
        if did {
            call.launch_own(&SOURCE, defines, "unpack", y.numel(), &unpacked)?;
        }
        Ok(call.by_library(did))
    }

    /// Transforms one view into another.
    fn run(&self, call: &mut CudaCall<'_>, x: CudaView, y: CudaView) -> Result<()> {
        let pass = self.0;
        let of = |view, complex| if complex { parts(view) } else { (view, 0) };
        let (x, ix) = of(x, pass.kind.reads_complex());
        let (y, iy) = of(y, pass.kind.writes_complex());
        let defines = self.defines(call.outputs[0].dtype());
        if self.by_library(call, &defines, [(x, ix), (y, iy)])? {
            return Ok(());
        }
        let params = Params {
            x,
            y,
            dim: pass.dim as i64,
            n: pass.n as i64,
            ix,
            iy,
            scale: pass.scale,
        };
        call.launch_own(&SOURCE, &defines, "transform", y.numel(), &params)
    }
}

impl CudaKernel for Transform {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (mut from, y, dtype) = (call.input(0)?, call.output(0)?, call.outputs[0].dtype());
        let Some((last, others)) = self.passes.split_last() else {
            return Ok(());
        };
        let mut between = Vec::with_capacity(others.len());
        for pass in others {
            let shape: Vec<usize> = from.shape[..from.ndim as usize]
                .iter()
                .map(|&n| n as usize)
                .collect();
            let whole = Strided::contiguous(&pass.shape_of(&shape));
            let mut buffer = call.scratch(dtype, whole.shape.iter().product())?;
            let address = call.gpu.address_mut(&mut buffer).in_op(call.op)?;
            let to = CudaView::new(call.op, address, dtype, &whole)?;
            Along(pass).run(call, from, to)?;
            between.push(buffer);
            from = to;
        }
        Along(last).run(call, from, y)
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

//! Maps of one and of two numbers, and conversions.

use super::{Arithmetic, Cast, Map, map_name, parameters};
use crate::Result;
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::{define, strided};
use crate::cuda::{CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::Unary;

const SOURCE: KernelSource = cuda_source!("pointwise", include_str!("pointwise.cu"));
#[cfg(test)]
compiles!(
    SOURCE,
    "#define UNARY\n#define T f32\n#define FORMULA mish_3\n"
);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct UnaryParams {
    x: CudaView,
    g: CudaView,
    y: CudaView,
    a: f64,
    b: f64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BinaryParams {
    a: CudaView,
    b: CudaView,
    y: CudaView,
}

/// The text of a map's derivative of some order, and its parameters.
fn formula(map: Unary, order: usize) -> (String, [f64; 2]) {
    let [a, b] = parameters(map);
    match map {
        Unary::PowScalar(p) => {
            // The coefficient p (p-1) ... may vanish: then so does the derivative, at every x.
            let scale: f64 = (0..order).map(|i| p - i as f64).product();
            ("power".to_owned(), [scale, p - order as f64])
        }
        Unary::Elu(alpha) => (format!("elu_{order}"), [alpha, 1.0]),
        Unary::Selu => {
            let (scale, alpha) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
            (format!("elu_{order}"), [alpha, scale])
        }
        Unary::Sign | Unary::Floor | Unary::Step if order > 0 => ("T(0)".to_owned(), [a, b]),
        Unary::Neg
        | Unary::Abs
        | Unary::Relu
        | Unary::LeakyRelu(_)
        | Unary::Hardsigmoid
        | Unary::Clamp { .. }
        | Unary::AddScalar(_)
        | Unary::MulScalar(_)
            if order > 1 =>
        {
            ("T(0)".to_owned(), [a, b])
        }
        _ => (format!("{}_{order}", map_name(map)), [a, b]),
    }
}

impl CudaKernel for Map {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let y = call.output(0)?;
        let x = call.input(0)?;
        let (formula, [a, b]) = formula(self.map, self.order);
        let g = if self.order > 0 { call.input(1)? } else { x };
        let params = UnaryParams { x, g, y, a, b };
        let scaled = if self.order > 0 {
            "#define SCALED\n"
        } else {
            ""
        };
        let dtype = call.outputs[0].dtype();
        let defines = format!(
            "#define UNARY\n#define FORMULA {formula}\n{scaled}{}",
            define(&[("T", dtype)])
        );
        call.launch_own(&SOURCE, &defines, "unary", y.numel(), &params)
    }
}

impl CudaKernel for Arithmetic {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let y = call.output(0)?;
        let (a, b) = (call.input(0)?, call.input(1)?);
        let params = BinaryParams {
            a: a.broadcast_to(&y),
            b: b.broadcast_to(&y),
            y,
        };
        let formula = match self.kind {
            Binary::Add => "a + b",
            Binary::Sub => "a - b",
            Binary::Mul => "a * b",
            Binary::Div => "a / b",
            Binary::Pow => "pow(a, b)",
            Binary::Maximum => "larger",
            Binary::Minimum => "smaller",
            Binary::Gt => "a > b",
            Binary::Ge => "a >= b",
            Binary::Lt => "a < b",
            Binary::Le => "a <= b",
            Binary::Eq => "a == b",
            Binary::Ne => "a != b",
        };
        let dtype = call.outputs[0].dtype();
        let defines = format!(
            "#define BINARY\n#define FORMULA {formula}\n{}",
            define(&[("T", dtype)])
        );
        call.launch_own(&SOURCE, &defines, "binary", y.numel(), &params)
    }
}

impl CudaKernel for Cast {
    /// A copy that converts, which every device has.
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        call.copy_input(&strided(&call.cx.inputs[0]))
    }
}

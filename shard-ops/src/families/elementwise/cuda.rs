//! Maps of one and of two numbers, and conversions.

use super::{Arithmetic, Cast, Map};
use crate::Result;
#[cfg(test)]
use crate::cuda::tests::compiles;
use crate::cuda::view::{define, strided};
use crate::cuda::{CudaCall, CudaKernel, CudaView, VIEW};
use crate::cuda_source;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::{Text, Unary};
use std::sync::LazyLock;

/// Maps of one number: the table's formulas between what they are made of and the kernel.
pub(super) static UNARY: LazyLock<KernelSource> = LazyLock::new(|| {
    let functions: String = Unary::TEXTS.iter().map(functions).collect();
    let (words, kernel) = (include_str!("maps.cuh"), include_str!("unary.cu"));
    KernelSource {
        name: "unary",
        text: format!("{VIEW}\n{words}\n{functions}\n{kernel}").leak(),
        exact: false,
    }
});
const BINARY: KernelSource = cuda_source!("binary", include_str!("binary.cu"));
#[cfg(test)]
compiles!(BINARY, "#define T f32\n#define FORMULA larger\n");

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

/// A map and its derivatives as functions in CUDA's language, named by map and order.
fn functions(map: &Text) -> String {
    let [a, b] = [0, 1].map(|i| map.numbers.get(i).unwrap_or(&["_a", "_b"][i]));
    let shared = map.shared.map(|(name, text)| {
        let value = translated(text);
        format!("const auto {name} = {value}; ")
    });
    let shared = shared.unwrap_or_default();
    let of_order = |order: usize| {
        let given = map.formulas.iter().find(|(of, _)| of.contains(&order));
        let value = given.map_or_else(|| "T(0)".to_owned(), |(_, text)| translated(text));
        let name = map.name;
        format!("DEVICE T {name}_{order}(T x, T {a}, T {b}) {{ {shared}return {value}; }}\n")
    };
    (0..=3).map(of_order).collect()
}

/// A formula of the table in CUDA's language: numbers with a point get the type `T`, `M::` and the mark of macros fall away.
fn translated(formula: &str) -> String {
    let mut text = String::new();
    let mut rest = formula;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let joins = |c: char| c.is_ascii_alphanumeric() || c == '_' || (is_number && c == '.');
        let (word, after) = rest.split_at(rest.find(|c| !joins(c)).unwrap_or(rest.len()));
        rest = after;
        match word {
            "" => {
                let (mark, after) = rest.split_at(first.len_utf8());
                rest = after;
                if mark != "!" {
                    text.push_str(mark);
                }
            }
            "M" => rest = rest.trim_start().strip_prefix("::").unwrap_or(rest),
            number if is_number && number.contains('.') => {
                text.push_str(&format!("T({})", number.replace('_', "")));
            }
            word => text.push_str(word),
        }
    }
    text
}

impl CudaKernel for Map {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let y = call.output(0)?;
        let x = call.input(0)?;
        let [a, b] = self.map.numbers();
        let g = if self.order > 0 { call.input(1)? } else { x };
        let params = UnaryParams { x, g, y, a, b };
        let scaled = if self.order > 0 {
            "#define SCALED\n"
        } else {
            ""
        };
        let dtype = call.outputs[0].dtype();
        let defines = format!(
            "#define FORMULA {}_{}\n{scaled}{}",
            self.map.name(),
            self.order,
            define(&[("T", dtype)])
        );
        call.launch_own(&UNARY, &defines, "unary", y.numel(), &params)
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
        let defines = format!("#define FORMULA {formula}\n{}", define(&[("T", dtype)]));
        call.launch_own(&BINARY, &defines, "binary", y.numel(), &params)
    }
}

impl CudaKernel for Cast {
    /// A copy that converts, which every device has.
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        call.copy_input(&strided(&call.cx.inputs[0]))
    }
}

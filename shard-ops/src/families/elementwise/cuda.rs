//! Maps of one and of two numbers, and conversions.

use super::compare::Comparison;
use super::mask::{MaskedFill, Where};
use super::{Arithmetic, Cast, UnaryMap};
use crate::Result;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView, VIEW};
use crate::cuda_source;
use crate::host::partial_type;
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_comm::{DType, Element, dispatch_dtype};
use shard_kernels::pointwise::Binary;
use shard_kernels::unary::{Text, Unary};
use shard_kernels::whole::Compare;
use std::sync::LazyLock;

/// Maps of one number: the table's formulas between what they are made of and the kernel.
pub static UNARY: LazyLock<KernelSource> = LazyLock::new(|| {
    let functions: String = Unary::TEXTS.iter().map(functions).collect();
    let (words, kernel) = (include_str!("maps.cuh"), include_str!("unary.cu"));
    let words = format!("{SPECIAL}\n{words}");
    KernelSource {
        name: "unary",
        text: format!("{VIEW}\n{words}\n{functions}\n{kernel}").leak(),
        exact: false,
    }
});
/// What maps of one number and of two share.
const SPECIAL: &str = include_str!("special.cuh");
const BINARY: KernelSource = cuda_source!("binary", SPECIAL, include_str!("binary.cu"));
const SELECT: KernelSource = cuda_source!("select", include_str!("select.cu"));
/// What tests compile its texts for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[
    (
        BINARY,
        "#define S bf16\n#define T f32\n#define R f32\n#define U u32\n#define FORMULA larger\n#define GRAIN 8\n\
         #define RESULT(v) (R)(v)\n",
    ),
    (SELECT, "#define T u32\n"),
];

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

impl CudaKernel for UnaryMap {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let y = call.output(0)?;
        let x = call.input(0)?;
        let [a, b] = self.map.numbers();
        let g = if self.order > 0 { call.input(1)? } else { x };
        let views = [x, g, y].map(|v| v.merged());
        let [x, g, y] = views;
        let params = UnaryParams { x, g, y, a, b };
        let scaled = if self.order > 0 {
            "#define SCALED\n"
        } else {
            ""
        };
        let (of, to) = (call.inputs[0].dtype(), call.outputs[0].dtype());
        let defines = format!(
            "#define FORMULA {}_{}\n{scaled}{}#define GRAIN {}\n",
            self.map.name(),
            self.order,
            define(&[("S", of), ("T", partial_type(of)), ("R", to)]),
            grain(of)
        );
        let lies = |view: &CudaView| goes_by_grains(view, of);
        match views.iter().all(lies) && goes_by_grains(&y, to) {
            true => {
                let count = y.numel().div_ceil(grain(of));
                call.launch_own(&UNARY, &defines, "unary_line", count, &params)
            }
            false => call.launch_own(&UNARY, &defines, "unary", y.numel(), &params),
        }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SelectParams {
    mask: CudaView,
    a: CudaView,
    b: CudaView,
    y: CudaView,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct FillParams {
    mask: CudaView,
    x: CudaView,
    y: CudaView,
    value: u64,
    filled: i64,
}

impl CudaKernel for Arithmetic {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let dtype = call.inputs[0].dtype();
        binary(call, formula(self.kind, dtype), dtype)
    }
}

impl CudaKernel for Comparison {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let dtype = call.inputs[0].dtype();
        // Truth values are compared as such, whatever their bytes.
        let formula = match (self.0, dtype) {
            (Compare::Gt, DType::Bool) => "a != 0 && b == 0",
            (Compare::Ge, DType::Bool) => "a != 0 || b == 0",
            (Compare::Lt, DType::Bool) => "a == 0 && b != 0",
            (Compare::Le, DType::Bool) => "a == 0 || b != 0",
            (Compare::Eq, DType::Bool) => "(a != 0) == (b != 0)",
            (Compare::Ne, DType::Bool) | (Compare::Xor, _) => "(a != 0) != (b != 0)",
            (Compare::Gt, _) => "a > b",
            (Compare::Ge, _) => "a >= b",
            (Compare::Lt, _) => "a < b",
            (Compare::Le, _) => "a <= b",
            (Compare::Eq, _) => "a == b",
            (Compare::Ne, _) => "a != b",
            (Compare::And, _) => "a != 0 && b != 0",
            (Compare::Or, _) => "a != 0 || b != 0",
        };
        binary(call, formula, dtype)
    }
}

/// What a map of two numbers of a type is in CUDA's language.
fn formula(kind: Binary, dtype: DType) -> &'static str {
    match (kind, dtype) {
        (Binary::Add | Binary::Maximum | Binary::BitOr, DType::Bool) => "a != 0 || b != 0",
        (Binary::Mul | Binary::Minimum | Binary::BitAnd, DType::Bool) => "a != 0 && b != 0",
        (Binary::BitXor, DType::Bool) => "(a != 0) != (b != 0)",
        (Binary::Add, _) if !dtype.is_float() => "(U)a + (U)b",
        (Binary::Sub, _) if !dtype.is_float() => "(U)a - (U)b",
        (Binary::Mul, _) if !dtype.is_float() => "(U)a * (U)b",
        (Binary::Pow, _) if !dtype.is_float() => "power_of(a, b)",
        (Binary::Add, _) => "a + b",
        (Binary::Sub, _) => "a - b",
        (Binary::Mul, _) => "a * b",
        (Binary::Div, _) => "a / b",
        (Binary::FloorDiv, _) => "floor_div(a, b)",
        (Binary::Remainder, _) => "remainder_of(a, b)",
        (Binary::Fmod, _) => "fmod_of(a, b)",
        (Binary::Pow, _) => "pow(a, b)",
        (Binary::Atan2, _) => "atan2(a, b)",
        (Binary::Hypot, _) => "hypot(a, b)",
        (Binary::Xlogy, _) => "xlogy(a, b)",
        (Binary::LogAddExp, _) => "logaddexp(a, b)",
        (Binary::LogAddExp2, _) => "logaddexp2(a, b)",
        (Binary::Copysign, _) => "copysign(a, b)",
        (Binary::Prelu, _) => "a > 0 ? a : b * a",
        (Binary::Maximum, _) => "larger",
        (Binary::Minimum, _) => "smaller",
        (Binary::BitAnd, _) => "a & b",
        (Binary::BitOr, _) => "a | b",
        (Binary::BitXor, _) => "a ^ b",
        (Binary::Shl, _) => "shift_left(a, b)",
        (Binary::Shr, _) => "shift_right(a, b)",
        (Binary::Zeta, _) => "zeta(a, b)",
        (Binary::Igamma, _) => "incomplete_gamma(true, a, b)",
        (Binary::Igammac, _) => "incomplete_gamma(false, a, b)",
        (Binary::NextAfter, _) => "next_after(left, right)",
        (Binary::Gcd, _) => "gcd_of(a, b)",
        (Binary::Lcm, _) => "lcm_of(a, b)",
    }
}

/// A formula over both operands, of this type.
fn binary(call: &mut CudaCall<'_>, formula: &str, of: DType) -> Result<()> {
    let y = call.output(0)?;
    let (a, b) = (call.input(0)?, call.input(1)?);
    let [a, b] = [a, b].map(|v| v.broadcast_to(&y).merged());
    let y = y.merged();
    let params = BinaryParams { a, b, y };
    let to = call.outputs[0].dtype();
    let whole = if of.is_float() { "" } else { "#define WHOLE\n" };
    let types = define(&[
        ("S", as_number(of)),
        ("T", as_number(partial_type(of))),
        ("R", as_number(to)),
    ]);
    let result = match to.is_half() {
        true => "As<R>::of",
        false => "(R)",
    };
    let (unsigned, grain) = (unsigned(of.size()), grain(of));
    let defines = format!(
        "{types}#define U {unsigned}\n{whole}#define FORMULA {formula}\n#define GRAIN {grain}\n\
         #define RESULT(v) {result}(v)\n"
    );
    let n = y.numel();
    // One element for all has a step of 0.
    let lies = |v: &CudaView| v.strides == [0; AXES] || goes_by_grains(v, of);
    match lies(&a) && lies(&b) && goes_by_grains(&y, to) {
        true => call.launch_own(&BINARY, &defines, "binary_line", n.div_ceil(grain), &params),
        false => call.launch_own(&BINARY, &defines, "binary", n, &params),
    }
}

/// How many elements of a type a thread takes at once: 16 bytes.
pub(in crate::families) fn grain(of: DType) -> usize {
    16 / of.size()
}

/// Whether elements of a type, in a view of as few dims as it takes, can be taken as many at once as fill 16 bytes.
pub(in crate::families) fn goes_by_grains(view: &CudaView, of: DType) -> bool {
    let lies = view.ndim == 0 || (view.ndim, view.strides[0]) == (1, 1);
    lies && view.data.is_multiple_of((grain(of) * of.size()) as u64)
}

/// The type as kernels compute in it: truth values are bytes.
pub(in crate::families) fn as_number(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U8,
        other => other,
    }
}

/// The type without a sign of so many bytes.
pub(in crate::families) fn unsigned(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

impl CudaKernel for Where {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let y = call.output(0)?;
        let of = |i: usize| Ok(call.input(i)?.broadcast_to(&y));
        let params = SelectParams {
            mask: of(0)?,
            a: of(1)?,
            b: of(2)?,
            y,
        };
        let defines = format!("#define T {}\n", unsigned(call.outputs[0].dtype().size()));
        call.launch_own(&SELECT, &defines, "select", y.numel(), &params)
    }
}

impl CudaKernel for MaskedFill {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let dtype = call.outputs[0].dtype();
        let y = call.output(0)?;
        let mut value = [0u8; 8];
        dispatch_dtype!(dtype, T => {
            let bits = T::from_f64(self.value);
            value[..dtype.size()].copy_from_slice(bytemuck::bytes_of(&bits));
        });
        let params = FillParams {
            mask: call.input(1)?.broadcast_to(&y),
            x: call.input(0)?.broadcast_to(&y),
            y,
            value: u64::from_ne_bytes(value),
            filled: self.filled.into(),
        };
        let defines = format!("#define T {}\n", unsigned(dtype.size()));
        call.launch_own(&SELECT, &defines, "masked_fill", y.numel(), &params)
    }
}

impl CudaKernel for Cast {
    /// A copy that converts, which every device has.
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        call.copy_input(&call.cx.inputs[0].strided())
    }
}

//! Every formula of the table on an emulated GPU, against the host's.

use super::assert_compiles;
use bytemuck::{Pod, Zeroable};
use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DType, DeviceKind};
use shard_kernels::Real;
use shard_kernels::unary::{self, Unary};
use shard_ops::cuda::{CudaCall, CudaKernel, CudaView, KernelSource, define};
use shard_ops::inside::{UNARY, UnaryMap};
use shard_ops::{
    Cotangents, DeviceKernel, Engine, EngineOptions, Exec, Grads, HostCall, Linearity, Meta, Op,
    Result, Rule, Saved, Value, key_of,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

/// A kernel that finds its formula when it runs, so that one compilation serves all of them.
static EVERY: LazyLock<KernelSource> = LazyLock::new(|| {
    let of_map = |(map, text): (usize, &unary::Text)| -> String {
        let name = text.name;
        let case = |order| {
            format!(
                "case {}: f = {name}_{order}(x, a, b); break;\n",
                4 * map + order
            )
        };
        (0..4).map(case).collect()
    };
    let cases: String = Unary::TEXTS.iter().enumerate().map(of_map).collect();
    let kernel = format!(
        "struct Every {{ View x, y; f64 a, b; i64 which; }};
         KERNEL(every, Every) {{
             const T a = (T)p.a, b = (T)p.b;
             for (i64 i = first_thread(); i < numel(p.y); i += threads()) {{
                 const T x = element<T>(p.x, place(p.x, i));
                 T f = 0;
                 switch (p.which) {{ {cases} }}
                 element<T>(p.y, place(p.y, i)) = f;
             }}
         }}"
    );
    KernelSource {
        name: "every",
        text: format!(
            "#define FORMULA neg_0\n#define GRAIN 1\n#define S T\n#define R T\n{}\n{kernel}",
            UNARY.text
        )
        .leak(),
        exact: false,
    }
});

#[test]
fn sources_compile_to_ptx() {
    let defines = "#define S bf16\n#define T f32\n#define R bf16\n#define FORMULA mish_3\n#define SCALED\n#define GRAIN 8\n";
    assert_compiles(&UNARY, defines);
    assert_compiles(&EVERY, "#define T f64\n");
}

/// A derivative of a map, alone.
#[derive(Clone, Copy, Debug)]
struct Derivative {
    map: Unary,
    order: usize,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
    a: f64,
    b: f64,
    which: i64,
}

impl Derivative {
    fn on_host<T: Real>(self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<T>(0);
        unary::unary(self.map, self.order, &x, &mut call.output::<T>(0));
    }
}

impl Op for Derivative {
    fn name(&self) -> &'static str {
        "derivative"
    }

    fn key(&self) -> u128 {
        let numbers = self.map.numbers().map(f64::to_bits);
        key_of("derivative", &(self.map.name(), numbers, self.order))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Rule::pointwise("derivative", inputs, inputs[0].dtype, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        match call.dtype() {
            DType::F32 => self.on_host::<f32>(call),
            _ => self.on_host::<f64>(call),
        }
    }

    fn kernel(&self, on: DeviceKind) -> Option<&dyn DeviceKernel> {
        shard_ops::cuda::kernel(self, on)
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None])
    }
}

impl CudaKernel for Derivative {
    #[expect(unsafe_code, reason = "what a kernel does, only its text says")]
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let row = Unary::ALL.iter().position(|m| m.name() == self.map.name());
        let which = (4 * row.expect("the table has all maps") + self.order) as i64;
        let (x, y) = (call.input(0)?, call.output(0)?);
        let [a, b] = self.map.numbers();
        let defines = define(&[("T", call.outputs[0].dtype())]);
        let params = Params { x, y, a, b, which };
        // SAFETY: the parameters mirror the kernel's structure, and it touches nothing but the views that the call made.
        unsafe { call.launch(&EVERY, &defines, "every", y.numel(), &params) }
    }
}

/// Both sides of every kink of the table's maps, the kinks, and far away from them. Steps are none of the numbers that lie in the
/// middle between two of one decimal: which of these is nearer depends on the type that is computed in. With both ends of the line, if asked.
fn points(ends: bool) -> Vec<f64> {
    let steps = (-34..=34).map(|i| f64::from(i) * 0.37 + 0.011);
    let chosen = [
        0.0,
        1.0,
        -1.0,
        3.0,
        -3.0,
        30.0,
        -30.0,
        85.0,
        -85.0,
        f64::NAN,
        -0.0,
    ];
    let far = [f64::INFINITY, f64::NEG_INFINITY];
    let far = far.into_iter().filter(|_| ends);
    steps.chain(chosen).chain(far).collect()
}

/// What an op makes of the points, once for each of its operands.
fn applied(
    device: DeviceKind,
    dtype: DType,
    ops: &[(Arc<dyn Op>, usize)],
    ends: bool,
) -> Vec<Vec<f64>> {
    let options = LocalOptions {
        device,
        ..LocalOptions::default()
    };
    let of_rank = local::run_with(1, &options, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let cx = MeshComm::new(&world, &DeviceMesh::new(&[1]).unwrap()).unwrap();
        let points = points(ends);
        let layout = Layout::replicated(cx.mesh(), &[points.len()]);
        let local = cx.device().upload_slice(&points).unwrap();
        let x = Array::from_local(&cx, &layout, Some(local), DType::F64).unwrap();
        let engine = Engine::new(EngineOptions::default());
        let x = shard_ops::elementwise::cast(&*engine, &Value::new(x), dtype).unwrap();
        let value = |(op, operands): &(Arc<dyn Op>, usize)| {
            let y = engine.apply1(op.clone(), &vec![&x; *operands]).unwrap();
            let y = shard_ops::elementwise::cast(&*engine, &y, DType::F64).unwrap();
            y.array().buffer().unwrap().to_vec::<f64>().unwrap()
        };
        ops.iter().map(value).collect::<Vec<_>>()
    });
    of_rank.unwrap().remove(0)
}

fn assert_gpu_agrees(dtype: DType, ops: &[(Arc<dyn Op>, usize)], ends: bool) {
    // A GPU computes f32 in f32, the host in f64. There the host's 1 - tanh² loses digits near ±1, up to 1e-16, of which the third
    // derivative of gelu_tanh makes up to 4e-13 where both are not yet flat.
    let tolerance = if dtype == DType::F32 { 4e-6 } else { 1e-12 };
    let host = applied(DeviceKind::Host, dtype, ops, ends);
    let gpu = applied(DeviceKind::EmulatedCuda, dtype, ops, ends);
    let mut wrong = Vec::new();
    for ((op, _), (host, gpu)) in ops.iter().zip(host.iter().zip(&gpu)) {
        for (x, (expected, got)) in points(ends).iter().zip(host.iter().zip(gpu)) {
            let close = (got - expected).abs() <= tolerance * (1.0 + expected.abs());
            if !(got == expected || close || (got.is_nan() && expected.is_nan())) {
                wrong.push(format!(
                    "{op:?} of {x} in {dtype}: {got} on the GPU, {expected} on the host"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_formula_is_the_hosts() {
    let bent = Unary::Clamp {
        min: -0.7,
        max: 1.2,
    };
    let unbound = Unary::Clamp {
        min: f64::NAN,
        max: 1.2,
    };
    let powers = [2.0, -1.0, 0.5, 1.0, -0.5, 1.5].map(|exponent| Unary::PowScalar { exponent });
    let maps = Unary::ALL
        .iter()
        .copied()
        .chain([bent, unbound])
        .chain(powers);
    // Higher derivatives are NaN or infinite at the ends, as the functions happen to be written.
    for (orders, ends) in [(0..2, true), (2..4, false)] {
        let all: Vec<(Arc<dyn Op>, usize)> = (maps.clone())
            .flat_map(|map| orders.clone().map(move |order| Derivative { map, order }))
            .map(|op| (Arc::new(op) as Arc<dyn Op>, 1))
            .collect();
        for dtype in [DType::F32, DType::F64] {
            assert_gpu_agrees(dtype, &all, ends);
        }
    }
}

#[test]
fn a_step_of_the_chain_rule_is_the_hosts() {
    let of = |map, order| {
        (
            Arc::new(UnaryMap { map, order }) as Arc<dyn Op>,
            1 + order.min(1),
        )
    };
    let alpha = Unary::Elu { alpha: 1.3 };
    assert_gpu_agrees(DType::F32, &[of(Unary::Selu, 0), of(alpha, 1)], true);
    assert_gpu_agrees(DType::F64, &[of(Unary::Gelu, 2)], false);
}

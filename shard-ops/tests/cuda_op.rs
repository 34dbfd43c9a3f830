//! An op of a user's own with a kernel for GPUs, written with what is public, on GPUs that the host plays.

use bytemuck::{Pod, Zeroable};
use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DType, DeviceKind};
use shard_ops::cuda::{self, CudaCall, CudaKernel, CudaView, KernelSource, define};
use shard_ops::{
    Cotangents, DeviceKernel, Engine, EngineOptions, Exec, Grads, HostCall, Linearity, Meta, Op,
    Result, Rule, Saved, Value, cuda_source, key_of,
};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;
use std::sync::Arc;

/// `x * x + 1`
#[derive(Debug)]
struct SquarePlusOne;

const SOURCE: KernelSource = cuda_source!(
    "square_plus_one",
    "struct Params { View x; View y; };
     KERNEL(square_plus_one, Params) {
         for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
             const T x = element<T>(p.x, place(p.x, i));
             element<T>(p.y, place(p.y, i)) = x * x + T(1);
         }
     }"
);

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    x: CudaView,
    y: CudaView,
}

impl CudaKernel for SquarePlusOne {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, y) = (call.input(0)?, call.output(0)?);
        let types = define(&[("T", call.inputs[0].dtype())]);
        // SAFETY: `Params` is the kernel's structure, of this call's input and output, whose boxes are of one shape.
        unsafe {
            call.launch(
                &SOURCE,
                &types,
                "square_plus_one",
                y.numel(),
                &Params { x, y },
            )
        }
    }
}

impl Op for SquarePlusOne {
    fn name(&self) -> &'static str {
        "square_plus_one"
    }

    fn key(&self) -> u128 {
        key_of("square_plus_one", &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        Rule::pointwise("square_plus_one", inputs, inputs[0].dtype, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f32>(0).to_vec();
        for (y, x) in call.output::<f32>(0).data_mut().iter_mut().zip(x) {
            *y = x * x + 1.0;
        }
    }

    fn kernel(&self, on: DeviceKind) -> Option<&dyn DeviceKernel> {
        cuda::kernel(self, on)
    }

    fn vjp(&self, _: &dyn Exec, _: &Saved<'_>, _: &Cotangents) -> Result<Grads> {
        Ok(vec![None])
    }
}

#[test]
fn an_op_of_a_users_own_runs_where_its_operand_is() {
    for device in [DeviceKind::Host, DeviceKind::EmulatedCuda] {
        let options = LocalOptions {
            device,
            ..LocalOptions::default()
        };
        let pieces = local::run_with(2, &options, |comm| {
            let world: Rc<dyn Communicator> = Rc::new(comm);
            let mesh = DeviceMesh::new(&[2]).unwrap();
            let cx = MeshComm::new(&world, &mesh).unwrap();
            let layout = Layout::parse(&mesh, &[5, 2], "S(0)[4,1]").unwrap();
            let x = Array::from_fn(&cx, &layout, |i| (2 * i[0] + i[1]) as f32).unwrap();
            let engine = Engine::new(EngineOptions::default());
            let y = engine
                .apply1(Arc::new(SquarePlusOne), &[&Value::new(x)])
                .unwrap();
            assert_eq!(y.dtype(), DType::F32);
            assert_eq!(y.layout(), &layout);
            assert_eq!(cx.world().ledger().snapshot().fallbacks, 0);
            y.array().buffer().unwrap().to_vec::<f32>().unwrap()
        })
        .unwrap();
        let expected: Vec<f32> = (0..10).map(|i| (i * i + 1) as f32).collect();
        assert_eq!(pieces.concat(), expected, "{device}");
    }
}

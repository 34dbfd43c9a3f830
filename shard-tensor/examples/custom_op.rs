//! A user's own op: a 3-point stencil, declared by a rule and a kernel for one piece.
//!
//! The rule says that each output needs a window of inputs. From that the library derives the halo exchange,
//! forward and backward, for every layout; the op itself never communicates. With the feature `cuda` it has a kernel for
//! GPUs too, in the module [`gpu`] at the end.
//!
//! `cargo run --release -p shard-tensor --example custom_op`

use clap::Parser;
use shard_tensor::op::{
    Access, Cotangents, Exec, Grads, HostCall, InOp as _, Keeps, Linearity, Meta, Op, OpError,
    Rule, Saved, Window, key_of,
};
use shard_tensor::{DType, DeviceKind, Launch, Result, ShardTensor, replicate, shard};
use std::sync::Arc;

/// `y[i] = w[0] x[i-1] + w[1] x[i] + w[2] x[i+1]`, zero beyond the ends.
#[derive(Clone, Copy, Debug)]
struct Stencil {
    weights: [f64; 3],
}

impl Op for Stencil {
    fn name(&self) -> &'static str {
        "stencil"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &self.weights.map(f64::to_bits))
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule, OpError> {
        let mut rule = Rule::builder(self.name(), inputs);
        let x = &inputs[0];
        if x.dtype != DType::F64 {
            return Err(OpError::dtype(self.name(), 0, "f64", x.dtype));
        }
        let (n, window) = (x.shape.first().copied().unwrap_or(0), three_points()?);
        let position = rule.factor(n);
        // A sum of stencils is the stencil of the sum: partial operands pass.
        rule.input(vec![Access::Window {
            factor: position,
            window,
        }])
        .output(vec![Access::factor(position)], x.shape.clone(), x.dtype)
        .linearity(Linearity::Each([0].into_iter().collect()))
        .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0);
        // Boxes say where they begin in the global index space. The box of x holds the halo, but nothing beyond the
        // ends of the whole tensor: that is zero.
        let (x_start, y_start) = (call.cx.inputs[0].start[0], call.cx.outputs[0].start[0]);
        let at = |global: usize, tap: usize| {
            (global + tap)
                .checked_sub(x_start + 1)
                .filter(|&i| i < x.len())
                .map_or(0.0, |i| x.get(&[i]))
        };
        let mut y = call.output::<f64>(0);
        for i in 0..y.len() {
            let value = (0..3).map(|k| self.weights[k] * at(y_start + i, k)).sum();
            y.set(&[i], value);
        }
    }

    #[cfg(feature = "cuda")]
    fn kernel(&self, on: DeviceKind) -> Option<&dyn shard_tensor::op::DeviceKernel> {
        shard_tensor::op::cuda::kernel(self, on)
    }

    /// The vjp looks at no elements of the operand.
    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    /// The adjoint of a stencil is the stencil with its weights reversed, which has a derivative in turn.
    fn vjp(&self, exec: &dyn Exec, saved: &Saved<'_>, dy: &Cotangents) -> Result<Grads, OpError> {
        let [a, b, c] = self.weights;
        let reversed = Arc::new(Self { weights: [c, b, a] });
        saved.pull_back(dy, |dy, _| exec.apply1(reversed.clone(), &[dy]))
    }
}

/// Three neighbouring inputs for each output, one beyond either end.
fn three_points() -> Result<Window, OpError> {
    Window::conv(3, 1, 1, 1, 1).in_op("stencil")
}

/// Smooths `x` and takes the gradient of half the sum of squares; both as whole arrays.
fn smooth(x: &ShardTensor) -> Result<[Vec<f64>; 2]> {
    let x = x.requires_grad()?;
    let y = x.context().apply1(
        Stencil {
            weights: [0.25, 0.5, 0.125],
        },
        &[&x],
    )?;
    let slope = (0.5 * y.square()?.sum_all()?).backward()?.get(&x)?;
    let slope = slope.ok_or_else(|| shard_tensor::Error::custom("y does not depend on x"))?;
    assert_eq!(
        slope.layout(),
        x.layout(),
        "a gradient has the layout of its value"
    );
    Ok([
        y.to_array::<f64>()?.into_raw_vec_and_offset().0,
        slope.to_array::<f64>()?.into_raw_vec_and_offset().0,
    ])
}

/// A user's own op on pieces of uneven size.
#[derive(Parser)]
struct Args {
    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name.
    #[arg(long, default_value_t = DeviceKind::Host)]
    device: DeviceKind,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let launch = Launch::new(4).device(args.device);
    let reports = launch.dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh([("ranks", 4)])?;
        let signal = |i: &[usize]| ((i[0] * i[0]) % 17) as f64;
        let whole = mesh.from_fn(21, [replicate()], signal)?;
        let pieces = mesh.from_fn(21, [shard(0).sizes([8, 0, 1, 12])], signal)?;

        let expected = smooth(&whole)?;
        let before = ctx.ledger().snapshot();
        let y = ctx.apply1(Stencil { weights: [0.25, 0.5, 0.125] }, &[&pieces])?;
        let halo = ctx.ledger().since(&before);
        let same = smooth(&pieces)? == expected;

        Ok(format!(
            "rank {}: {y}; halo of {} bytes in {} messages; value and gradient equal the unsharded ones: {same}",
            ctx.rank(),
            halo.bytes,
            halo.messages,
        ))
    })?;
    println!("{}", reports.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Stencil;
    use shard_tensor::op::testing::{Tensor, ValidationError, validate};

    #[test]
    fn a_stencil_is_under_any_layout_what_it_is_on_one_rank() -> Result<(), ValidationError> {
        let weights = [0.25, 0.5, 0.125];
        validate(Stencil { weights }, &[Tensor::drawn([21], 1)])?;
        Ok(())
    }
}

/// The stencil on GPUs: a text in CUDA's C++ that takes one structure, and who fills that in.
#[cfg(feature = "cuda")]
mod gpu {
    use super::Stencil;
    use bytemuck::{Pod, Zeroable};
    use shard_tensor::op::OpError;
    use shard_tensor::op::cuda::{CudaCall, CudaKernel, CudaView, KernelSource, cuda_source};

    const SOURCE: KernelSource = cuda_source!(
        "stencil",
        "struct Params { View x; View y; f64 weights[3]; i64 x_start; i64 y_start; };
         KERNEL(stencil, Params) {
             for (i64 i = first_thread(); i < numel(p.y); i += threads()) {
                 f64 sum = 0;
                 for (i64 k = 0; k < 3; k++) {
                     i64 at = p.y_start + i + k - 1 - p.x_start;
                     if (at >= 0 && at < p.x.shape[0]) sum += p.weights[k] * element<f64>(p.x, place(p.x, at));
                 }
                 element<f64>(p.y, place(p.y, i)) = sum;
             }
         }"
    );

    /// As in the text.
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Params {
        x: CudaView,
        y: CudaView,
        weights: [f64; 3],
        x_start: i64,
        y_start: i64,
    }

    impl CudaKernel for Stencil {
        fn run(&self, call: &mut CudaCall<'_>) -> Result<(), OpError> {
            let (x, y) = (call.input(0)?, call.output(0)?);
            let params = Params {
                x,
                y,
                weights: self.weights,
                x_start: call.cx.inputs[0].start[0] as i64,
                y_start: call.cx.outputs[0].start[0] as i64,
            };
            // SAFETY: `Params` is the kernel's structure; every element it reads or writes is inside the views of this call.
            unsafe { call.launch(&SOURCE, "", "stencil", y.numel(), &params) }
        }
    }
}

//! Steps of optimizers: one pointwise pass over a parameter, its gradient and the optimizer's state.
//!
//! All arrays have one layout, so nothing moves. Formulas are PyTorch's; arithmetic is in the parameter's own type.

#[cfg(feature = "cuda")]
mod cuda;

use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Exec, HostCall, Keeps, Linearity, Meta, Op, OpError, Result, Rule, Value, key_of,
};
use shard_comm::Element;
use shard_kernels::{Real, ViewMut};
use std::borrow::Cow;
use std::sync::Arc;

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Update {
    /// Gradient descent with momentum; its state is a velocity.
    Sgd {
        /// The learning rate.
        rate: f64,
        /// The share of the velocity that stays.
        momentum: f64,
        /// The share of the parameter that is added to its gradient.
        decay: f64,
        /// Whether this is the parameter's first step, which sets the velocity to the gradient itself.
        first: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019); its state is the means of the gradient and of its
    /// square.
    AdamW {
        /// The share of the parameter that stays: one minus rate times decay.
        keep: f64,
        /// How slowly the two means forget.
        betas: [f64; 2],
        /// The learning rate divided by the first mean's correction, `1 - beta1^step`.
        size: f64,
        /// The root of the second mean's correction, `1 - beta2^step`.
        root: f64,
        /// The number that is added to the denominator.
        eps: f64,
    },
}

impl Update {
    /// How many arrays its state has.
    pub const fn state(self) -> usize {
        match self {
            Self::Sgd { .. } => 1,
            Self::AdamW { .. } => 2,
        }
    }
}

/// The new parameter, followed by the new state.
///
/// ```
/// # use shard_comm::{Communicator, local};
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// use shard_ops::{Engine, EngineOptions, Value, optimize::{Update, update}};
/// # let moved = local::run(2, |comm| {
/// #     let world: Rc<dyn Communicator> = Rc::new(comm);
/// #     let mesh = DeviceMesh::new(&[2]).unwrap();
/// #     let cx = MeshComm::new(&world, &mesh).unwrap();
/// #     let layout = Layout::replicated(&mesh, &[1]);
/// #     let of = |v: f64| Value::new(Array::from_fn(&cx, &layout, |_| v).unwrap());
/// let engine = Engine::new(EngineOptions::default());
/// let (parameter, gradient, velocity) = (of(1.0), of(0.5), of(0.0));
/// let step = Update::Sgd { rate: 0.1, momentum: 0.9, decay: 0.0, first: true };
/// let new = update(&*engine, step, &parameter, &gradient, &[velocity]).unwrap();
/// # new[0].array().buffer().unwrap().to_vec::<f64>().unwrap()
/// # }).unwrap();
/// assert_eq!(moved[0], [0.95]);
/// ```
///
/// # Collective
/// All members of the mesh. No communication if all arrays have one layout.
///
/// # Errors
/// Shapes or types that differ; a type other than f32 or f64; a wrong number of state arrays.
pub fn update(
    exec: &dyn Exec,
    update: Update,
    parameter: &Value,
    gradient: &Value,
    state: &[Value],
) -> Result<Vec<Value>> {
    let mut operands = vec![parameter, gradient];
    operands.extend(state);
    exec.apply(Arc::new(Step(update)), &operands)
}

/// An update as an op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step(pub(crate) Update);

impl Op for Step {
    fn name(&self) -> &'static str {
        match self.0 {
            Update::Sgd { .. } => "sgd",
            Update::AdamW { .. } => "adamw",
        }
    }

    /// The numbers are left out: they change from step to step and affect only values.
    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule> {
        let (name, wanted) = (self.name(), 2 + self.0.state());
        if inputs.len() != wanted {
            return Err(OpError::Arity {
                op: name,
                expected: wanted.to_string(),
                got: inputs.len(),
            });
        }
        let dtype = float_types(name, inputs)?;
        let shape = &inputs[0].shape;
        if inputs.iter().any(|meta| meta.shape != *shape) {
            return Err(OpError::Shape {
                op: name,
                problem: "parameter, gradient and state have different shapes".into(),
                shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(),
                fix: "give arrays of one shape",
            });
        }
        let mut rule = Rule::builder(name, inputs)
            .any_order()
            .linearity(Linearity::None);
        let factors: Vec<usize> = shape.iter().map(|&n| rule.factor(n)).collect();
        let dims = || {
            factors
                .iter()
                .map(|&f| Access::factor(f))
                .collect::<Vec<_>>()
        };
        for _ in inputs {
            rule = rule.input(dims());
        }
        for _ in 0..=self.0.state() {
            rule = rule.output(dims(), shape.clone(), dtype);
        }
        rule.build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        with_float!(call.dtype(), T => match self.0 {
            Update::Sgd { rate, momentum, decay, first } => {
                let number = T::of;
                apply::<T, 1>(call, |p, g, [velocity]| {
                    let g = g + number(decay) * p;
                    let velocity = if first { g } else { number(momentum) * velocity + g };
                    let direction = if momentum == 0.0 { g } else { velocity };
                    (p - number(rate) * direction, [velocity])
                });
            }
            Update::AdamW { keep, betas: [beta1, beta2], size, root, eps } => {
                let number = T::of;
                apply::<T, 2>(call, |p, g, [mean, square]| {
                    let p = p * number(keep);
                    let mean = mean + (g - mean) * number(1.0 - beta1);
                    let square = square * number(beta2) + number(1.0 - beta2) * g * g;
                    let denominator = square.sqrt() / number(root) + number(eps);
                    (p - number(size) * (mean / denominator), [mean, square])
                });
            }
        });
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

/// One pass over all pieces. Results are dense, as whole pieces are.
fn apply<T: Real + Element, const N: usize>(
    call: &mut HostCall<'_, '_>,
    element: impl Fn(T, T, [T; N]) -> (T, [T; N]),
) {
    let dense = |i: usize| -> Cow<'_, [T]> {
        let view = call.input::<T>(i);
        view.as_slice()
            .map_or_else(|| view.to_vec().into(), Cow::Borrowed)
    };
    let (parameter, gradient) = (dense(0), dense(1));
    let old: [Cow<'_, [T]>; N] = std::array::from_fn(|k| dense(2 + k));
    let mut write = call.outputs_from::<T>(0);
    let mut write: Vec<&mut [T]> = write.iter_mut().map(ViewMut::data_mut).collect();
    for (i, (&p, &g)) in parameter.iter().zip(&*gradient).enumerate() {
        let (new, state) = element(p, g, std::array::from_fn(|k| old[k][i]));
        for (out, value) in write.iter_mut().zip(std::iter::once(new).chain(state)) {
            out[i] = value;
        }
    }
}

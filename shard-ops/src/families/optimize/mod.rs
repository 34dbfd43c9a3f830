//! Steps of optimizers: one pointwise pass over a parameter, its gradient and the optimizer's state.
//!
//! All arrays have one layout, so nothing moves. Formulas are PyTorch's; arithmetic is in the parameter's own type.

#[cfg(feature = "cuda")]
mod cuda;
mod powers;

pub use powers::power_sum;

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
    /// Gradient descent; its state is a velocity, if it has momentum.
    Sgd {
        /// The learning rate.
        rate: f64,
        /// The share of the velocity that stays; without any there is no state.
        momentum: f64,
        /// The share of the gradient that does not join the velocity.
        dampening: f64,
        /// The share of the parameter that is added to its gradient.
        decay: f64,
        /// Whether the step looks ahead along the velocity (Nesterov).
        nesterov: bool,
        /// Whether this is the parameter's first step, which sets the velocity to the gradient itself.
        first: bool,
    },
    /// Adam (Kingma and Ba, 2015); its state is the means of the gradient and of its square.
    Adam {
        /// The share of the parameter that stays: one minus rate times decoupled decay (Loshchilov and Hutter, 2019).
        keep: f64,
        /// The share of the parameter that is added to its gradient.
        decay: f64,
        /// How slowly the two means forget.
        betas: [f64; 2],
        /// The learning rate divided by the first mean's correction, `1 - beta1^step`.
        size: f64,
        /// The root of the second mean's correction, `1 - beta2^step`.
        root: f64,
        /// The number that is added to the denominator.
        eps: f64,
        /// Whether the largest second mean so far divides, which is a third state (Reddi, Kale and Kumar, 2018).
        amsgrad: bool,
    },
    /// Steps along the sign of a mean (Chen and others, 2023); its state is the mean of the gradient.
    Lion {
        /// The learning rate.
        rate: f64,
        /// The share of the parameter that stays: one minus rate times decay.
        keep: f64,
        /// The share of the mean in the direction, and how slowly the mean forgets.
        betas: [f64; 2],
    },
    /// A mean that follows values: it stands in the parameter's place, and the next value in the gradient's. No state.
    Average {
        /// How slowly the mean forgets.
        keep: f64,
    },
}

impl Update {
    /// How many arrays its state has.
    pub fn state(self) -> usize {
        match self {
            Self::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Self::Adam { amsgrad, .. } => 2 + usize::from(amsgrad),
            Self::Lion { .. } => 1,
            Self::Average { .. } => 0,
        }
    }

    /// Its numbers in the order of the kernel for GPUs, with switches as 0 or 1.
    pub fn numbers(self) -> [f64; 7] {
        let switch = |on| f64::from(u8::from(on));
        let mut numbers = [0.0; 7];
        match self {
            Self::Sgd {
                rate,
                momentum,
                dampening,
                decay,
                nesterov,
                first,
            } => {
                let all = [rate, momentum, dampening, decay];
                numbers[..4].copy_from_slice(&all);
                numbers[4..6].copy_from_slice(&[nesterov, first].map(switch));
            }
            Self::Adam {
                keep,
                decay,
                betas: [first, second],
                size,
                root,
                eps,
                amsgrad: _,
            } => numbers = [keep, decay, first, second, size, root, eps],
            Self::Lion {
                rate,
                keep,
                betas: [first, second],
            } => numbers[..4].copy_from_slice(&[rate, keep, first, second]),
            Self::Average { keep } => numbers[0] = keep,
        }
        numbers
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
/// let step = Update::Sgd { rate: 0.1, momentum: 0.9, dampening: 0.0, decay: 0.0, nesterov: false, first: true };
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
            Update::Adam { .. } => "adam",
            Update::Lion { .. } => "lion",
            Update::Average { .. } => "average",
        }
    }

    /// The numbers are left out: they change from step to step and affect only values.
    fn key(&self) -> u128 {
        key_of(self.name(), &self.0.state())
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
        with_float!(call.dtype(), T => self.run::<T>(call));
    }

    crate::kernel::gpu_kernel!();

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }
}

impl Step {
    fn run<T: Real + Element>(self, call: &mut HostCall<'_, '_>) {
        let n = T::of;
        match self.0 {
            Update::Sgd {
                rate,
                momentum: 0.0,
                decay,
                ..
            } => {
                let (rate, decay) = (n(rate), n(decay));
                apply::<T, 0>(call, |p, g, []| (p - rate * (g + decay * p), []));
            }
            Update::Sgd {
                rate,
                momentum,
                dampening,
                decay,
                nesterov,
                first,
            } => {
                let [rate, decay] = [rate, decay].map(n);
                let (keep, join) = match first {
                    true => (T::zero(), T::one()),
                    false => (n(momentum), n(1.0 - dampening)),
                };
                // The direction is `ahead` of the gradient and `along` of the velocity.
                let (ahead, along) = match nesterov {
                    true => (T::one(), n(momentum)),
                    false => (T::zero(), T::one()),
                };
                apply::<T, 1>(call, |p, g, [velocity]| {
                    let g = g + decay * p;
                    let velocity = keep * velocity + join * g;
                    (p - rate * (ahead * g + along * velocity), [velocity])
                });
            }
            Update::Adam {
                amsgrad: false,
                keep,
                decay,
                betas: [beta1, beta2],
                size,
                root,
                eps,
            } => {
                let [keep, decay, size, root, eps] = [keep, decay, size, root, eps].map(n);
                let ([forget1, forget2], beta2) = ([1.0 - beta1, 1.0 - beta2].map(n), n(beta2));
                apply::<T, 2>(call, |p, g, [mean, square]| {
                    let g = g + decay * p;
                    let mean = mean + (g - mean) * forget1;
                    let square = square * beta2 + forget2 * g * g;
                    let denominator = square.sqrt() / root + eps;
                    (p * keep - size * (mean / denominator), [mean, square])
                });
            }
            Update::Adam {
                amsgrad: true,
                keep,
                decay,
                betas: [beta1, beta2],
                size,
                root,
                eps,
            } => {
                let [keep, decay, size, root, eps] = [keep, decay, size, root, eps].map(n);
                let ([forget1, forget2], beta2) = ([1.0 - beta1, 1.0 - beta2].map(n), n(beta2));
                apply::<T, 3>(call, |p, g, [mean, square, most]| {
                    let g = g + decay * p;
                    let mean = mean + (g - mean) * forget1;
                    let square = square * beta2 + forget2 * g * g;
                    let most = larger(most, square);
                    let denominator = most.sqrt() / root + eps;
                    (p * keep - size * (mean / denominator), [mean, square, most])
                });
            }
            Update::Lion {
                rate,
                keep,
                betas: [beta1, beta2],
            } => {
                let [rest1, rest2] = [1.0 - beta1, 1.0 - beta2].map(n);
                let [rate, keep, beta1, beta2] = [rate, keep, beta1, beta2].map(n);
                apply::<T, 1>(call, |p, g, [mean]| {
                    let direction = sign(mean * beta1 + g * rest1);
                    (p * keep - rate * direction, [mean * beta2 + g * rest2])
                });
            }
            Update::Average { keep } => {
                let rest = n(1.0 - keep);
                apply::<T, 0>(call, |mean, next, []| (mean + rest * (next - mean), []));
            }
        }
    }
}

/// NaN if either is.
fn larger<T: Real>(a: T, b: T) -> T {
    if a.is_nan() || a > b { a } else { b }
}

/// Zero of zero, NaN of NaN.
fn sign<T: Real>(x: T) -> T {
    if x > T::zero() {
        T::one()
    } else if x < T::zero() {
        -T::one()
    } else {
        x
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
    let count = parameter.len();
    let old: [Cow<'_, [T]>; N] = std::array::from_fn(|k| dense(2 + k));
    let old: [&[T]; N] = std::array::from_fn(|k| &old[k][..count]);
    let mut views = call.outputs_from::<T>(0);
    let mut views = views.iter_mut().map(ViewMut::data_mut);
    let (Some(new), Ok(state)) = (views.next(), views.collect::<Vec<_>>().try_into()) else {
        unreachable!("the rule gives an output per state, and the parameter");
    };
    let mut state: [&mut [T]; N] = state;
    // Slices of one known length: the loop runs on vectors.
    let (parameter, gradient, new) = (&parameter[..count], &gradient[..count], &mut new[..count]);
    for slice in &mut state {
        *slice = &mut std::mem::take(slice)[..count];
    }
    for i in 0..count {
        let (value, kept) = element(
            parameter[i],
            gradient[i],
            std::array::from_fn(|k| old[k][i]),
        );
        new[i] = value;
        for (slice, value) in state.iter_mut().zip(kept) {
            slice[i] = value;
        }
    }
}

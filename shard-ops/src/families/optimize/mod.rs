//! Steps of optimizers: one pointwise pass over a parameter, its gradient and the optimizer's state.
//!
//! All arrays have one layout, so nothing moves. Formulas are PyTorch's; arithmetic is in the parameter's own type.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod powers;

pub use powers::power_sum;
pub use shard_kernels::optimize::{
    Adadelta, Adagrad, Adam, Adamax, Asgd, Lion, NAdam, RAdam, RmsProp, Rprop, Sgd, Update,
};

use crate::families::types::float_types;
use crate::host::with_float;
use crate::{
    Access, Exec, HostCall, Keeps, Linearity, Meta, Op, OpError, Result, Rule, Value, key_of,
};
use shard_comm::Element;
use shard_kernels::optimize as kernels;
use shard_kernels::{Real, ViewMut};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;

/// The new parameter, followed by the new state.
///
/// ```
/// # use shard_comm::{Communicator, local};
/// # use shard_redistribute::{Array, MeshComm};
/// # use shard_spec::{DeviceMesh, Layout};
/// # use std::rc::Rc;
/// use shard_ops::{Engine, EngineOptions, Value, optimize::{Sgd, update}};
/// # let moved = local::run(2, |comm| {
/// #     let world: Rc<dyn Communicator> = Rc::new(comm);
/// #     let mesh = DeviceMesh::new(&[2]).unwrap();
/// #     let cx = MeshComm::new(&world, &mesh).unwrap();
/// #     let layout = Layout::replicated(&mesh, &[1]);
/// #     let of = |v: f64| Value::new(Array::from_fn(&cx, &layout, |_| v).unwrap());
/// let engine = Engine::new(EngineOptions::default());
/// let (parameter, gradient, velocity) = (of(1.0), of(0.5), of(0.0));
/// let step = Sgd { rate: 0.1, momentum: 0.9, dampening: 0.0, decay: 0.0, nesterov: false, first: true };
/// let new = update(&*engine, step.into(), &parameter, &gradient, &[velocity]).unwrap();
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
            Update::Sgd(_) => "sgd",
            Update::Adam(_) => "adam",
            Update::NAdam(_) => "nadam",
            Update::RAdam(_) => "radam",
            Update::Adamax(_) => "adamax",
            Update::Lion(_) => "lion",
            Update::RmsProp(_) => "rms_prop",
            Update::Adagrad(_) => "adagrad",
            Update::Adadelta(_) => "adadelta",
            Update::Rprop(_) => "rprop",
            Update::Asgd(_) => "asgd",
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
            return Err(OpError::arity(name, wanted.to_string(), inputs.len()));
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
        let dense = |i: usize| -> Cow<'_, [T]> {
            let view = call.input::<T>(i);
            view.as_slice()
                .map_or_else(|| view.to_vec().into(), Cow::Borrowed)
        };
        let (parameter, gradient) = (dense(0), dense(1));
        let state: SmallVec<[Cow<'_, [T]>; 3]> =
            (0..self.0.state()).map(|k| dense(2 + k)).collect();
        let state: SmallVec<[&[T]; 3]> = state.iter().map(|state| &**state).collect();
        // Results are dense, as whole pieces are.
        let mut views = call.outputs_from::<T>(0);
        let mut new: SmallVec<[&mut [T]; 4]> = views.iter_mut().map(ViewMut::data_mut).collect();
        if let Some((new_parameter, new_state)) = new.split_first_mut() {
            kernels::update(
                self.0,
                &parameter,
                &gradient,
                &state,
                new_parameter,
                new_state,
            );
        }
    }
}

//! The tensor.

use crate::placements::with_axis;
use crate::{AxisPlacement, Context, Error, Gradients, Mesh, Placements, Result};
use ndarray::{ArrayD, IxDyn};
use shard_comm::half::{bf16, f16};
use shard_comm::{Bool, Buffer, Call, Calling, DType, Element, Strided};
use shard_ops::{Exec, OpError, Value};
use shard_redistribute::{Array, RedistributeError};
use shard_spec::{Dims, Layout, Placement};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

/// A tensor whose pieces live on the ranks of a mesh.
///
/// A cheap handle to an immutable value: clones share it, and nothing writes through it. The one exception is a
/// parameter, made by [`requires_grad`](Self::requires_grad), whose value [`set`](Self::set) replaces for all its
/// clones. Element type and device are run-time properties.
///
/// Methods return `Result`; the operators `+ - * /` and unary `-` on references and with `f64` are there for
/// convenience and panic with the same message.
///
/// ```
/// use shard_tensor::{launch, replicate, shard};
/// let out = launch(4, |ctx| {
///     let mesh = ctx.mesh([("h", 2), ("w", 2)])?;
///     let x = mesh.ones([5, 7], [shard(0).sizes([4, 1]), shard(1)])?;
///     let y = (&x * 2.0).sum(&[0, 1], false)?;              // partial: nothing has been sent yet
///     let z = x.redistribute([replicate(), shard(0)])?;
///     Ok((y.layout().to_string(), y.item()?, z.local_shape().to_vec()))
/// })?;
/// assert_eq!(out[0], ("P(sum) P(sum)".to_owned(), 70.0, vec![3, 7]));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone)]
pub struct ShardTensor {
    ctx: Context,
    held: Held,
}

#[derive(Clone)]
enum Held {
    Value(Value),
    /// A parameter: its clones see what `set` puts here. Layout and type never change.
    Parameter(Rc<Shared>, Layout, DType),
}

/// What all clones of a parameter see.
struct Shared {
    value: RefCell<Rc<Value>>,
    /// The call by which a model has another parameter in its place since the value was set last.
    replaced: Cell<Option<&'static str>>,
}

/// What it is, and where.
impl ShardTensor {
    /// Wraps a value of the context's tape.
    pub fn new(ctx: &Context, value: Value) -> Self {
        Self {
            ctx: ctx.clone(),
            held: Held::Value(value),
        }
    }

    /// The value, for functions of the crates below.
    pub fn value(&self) -> Value {
        self.held().into_owned()
    }

    /// The value, a parameter's as it is now.
    fn held(&self) -> Cow<'_, Value> {
        match &self.held {
            Held::Value(value) => Cow::Borrowed(value),
            Held::Parameter(shared, ..) => Cow::Owned(Value::clone(&shared.value.borrow())),
        }
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// The mesh it lives on. What is made on this handle has the tensor's type, as PyTorch's `x.new_zeros` and its like: of indices, integers.
    /// A model that makes floats, as a table of positions of its tokens, makes them on the mesh of a weight, or says so:
    /// `tokens.mesh().with_dtype(ctx.dtype())`.
    pub fn mesh(&self) -> Mesh {
        Mesh::new(self.ctx.clone(), self.value().array().cx().clone()).with_dtype(self.dtype())
    }

    /// The global shape.
    pub fn shape(&self) -> &[usize] {
        self.layout().shape()
    }

    /// The number of dims.
    pub fn ndim(&self) -> usize {
        self.layout().ndim()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.layout().numel()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match &self.held {
            Held::Value(value) => value.dtype(),
            Held::Parameter(_, _, dtype) => *dtype,
        }
    }

    /// Where the pieces are.
    pub fn layout(&self) -> &Layout {
        match &self.held {
            Held::Value(value) => value.layout(),
            Held::Parameter(_, layout, _) => layout,
        }
    }

    /// What each mesh axis does with it.
    pub fn placements(&self) -> &[Placement] {
        self.layout().placements()
    }

    /// The global index of the first element of this rank's piece; `None` off the mesh, and where the piece is not one
    /// box (see [`Layout::local_parts`]).
    pub fn offsets(&self) -> Option<Dims> {
        self.layout().local_box(self.ctx.rank()).map(|b| b.lo)
    }

    /// The shape of this rank's piece; all zeros off the mesh.
    pub fn local_shape(&self) -> Dims {
        self.layout()
            .local_shape(self.ctx.rank())
            .unwrap_or_else(|| self.shape().iter().map(|_| 0).collect())
    }
}

/// Moving and reading.
impl ShardTensor {
    /// Moves it to other placements on its mesh.
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// As [`Placements::layout`]; an error for partial targets, which only ops produce.
    #[track_caller]
    pub fn redistribute(&self, placements: impl Into<Placements>) -> Result<Self> {
        let _call = Calling::of("redistribute");
        let to = self.target(placements)?;
        Ok(self.lift(self.ctx.tape().moved(&self.value(), &to)?))
    }

    /// Changes what one mesh axis, by its name, does with it, and leaves the other axes as they are: a dim that these divide is
    /// divided further. If they divided what the axis no longer does, each of them has as much of the dim as before in all parts of
    /// the axis together. Of a partial tensor the sum is taken.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let laid = launch(4, |ctx| {
    ///     let mesh = ctx.mesh([("data", 2), ("tensor", 2)])?;
    ///     let x = mesh.ones([6, 5, 8], [("data", shard(0).sizes([2, 4]))])?;
    ///     let by_tokens = x.redistribute_axis("tensor", shard(1))?; // each rank keeps a part of its tokens: nothing is sent
    ///     let whole = by_tokens.redistribute_axis("tensor", replicate())?;
    ///     Ok([&by_tokens, &whole].map(|x| x.layout().to_string()))
    /// })?;
    /// assert_eq!(laid[0], ["S(0)[2,4] S(1)", "S(0)[2,4] R"]);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// As [`redistribute`](Self::redistribute); [`Spec`](Error::Spec) for an axis that the mesh does not have.
    #[track_caller]
    pub fn redistribute_axis(
        &self,
        axis: &str,
        placement: impl Into<AxisPlacement>,
    ) -> Result<Self> {
        let _call = Calling::of("redistribute_axis");
        let index = self.layout().mesh().axis(axis)?;
        let whole = self.layout().with_partial_reduced();
        self.redistribute(with_axis(&whole, index, &placement.into())?)
    }

    /// The whole tensor on every member of its mesh.
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn full_tensor(&self) -> Result<Self> {
        let _call = Calling::of("full_tensor");
        self.redistribute(Placements::replicated())
    }

    /// The sum (or other reduction) of a partial tensor; any other as it is.
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn reduced(&self) -> Result<Self> {
        let _call = Calling::of("reduced");
        self.redistribute(self.layout().with_partial_reduced())
    }

    /// The whole tensor as an array on every member of its mesh.
    ///
    /// # Collective
    /// All members of its mesh. Afterwards every one of them holds the whole.
    ///
    /// # Errors
    /// If it holds another type than `T`; [`NotMember`](RedistributeError::NotMember) off the mesh.
    #[track_caller]
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>> {
        let _call = Calling::of("to_array");
        self.check_type::<T>("to_array")?;
        self.ctx.tape().note_read(&self.held());
        let value = self.value().detach();
        let whole = self.ctx.engine().redistribute(
            &value,
            &Layout::replicated(self.layout().mesh(), self.shape()),
        )?;
        to_ndarray(whole.array())
    }

    /// This rank's piece as an array. No communication; of a partial tensor, this rank's term.
    ///
    /// # Collective
    /// None: this rank alone.
    ///
    /// # Errors
    /// As [`to_array`](Self::to_array).
    #[track_caller]
    pub fn to_local_array<T: Element>(&self) -> Result<ArrayD<T>> {
        let _call = Calling::of("to_local_array");
        self.check_type::<T>("to_local_array")?;
        self.ctx.tape().note_read(&self.held());
        to_ndarray(self.value().array())
    }

    /// The one element of a one-element tensor, on every member of its mesh; the reduction of a partial one.
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if it has more elements or none, or is an integer that `f64` cannot hold; [`NotMember`](RedistributeError::NotMember)
    /// off the mesh.
    #[track_caller]
    pub fn item(&self) -> Result<f64> {
        let _call = Calling::of("item");
        if self.numel() != 1 {
            return Err(Error::argument(
                "item",
                "a tensor of one element",
                format!("shape {:?}", self.shape()),
                "reduce it first, as with `sum_all` or `mean_all`, or read it with `to_array`",
            ));
        }
        let first = |x: Option<f64>| x.unwrap_or(f64::NAN);
        Ok(match self.dtype() {
            DType::F64 => first(self.to_array::<f64>()?.first().copied()),
            DType::F32 => first(self.to_array::<f32>()?.first().map(|x| x.to_f64())),
            DType::F16 => first(self.to_array::<f16>()?.first().map(|x| Element::to_f64(*x))),
            DType::BF16 => first(
                self.to_array::<bf16>()?
                    .first()
                    .map(|x| Element::to_f64(*x)),
            ),
            DType::I64 => {
                let number = self.to_array::<i64>()?.first().copied().unwrap_or_default();
                let read = number as f64;
                if read as i128 != i128::from(number) {
                    return Err(Error::argument(
                        "item",
                        "a number that f64 holds",
                        number.to_string(),
                        "read it with `to_array::<i64>()`",
                    ));
                }
                read
            }
            DType::I32 => first(self.to_array::<i32>()?.first().map(|x| x.to_f64())),
            DType::U8 => first(self.to_array::<u8>()?.first().map(|x| x.to_f64())),
            DType::Bool => first(self.to_array::<Bool>()?.first().map(|x| x.to_f64())),
        })
    }

    pub(crate) fn check_type<T: Element>(&self, op: &'static str) -> Result<()> {
        if T::DTYPE == self.dtype() {
            return Ok(());
        }
        Err(RedistributeError::DType {
            op,
            expected: T::DTYPE,
            got: self.dtype(),
        }
        .into())
    }
}

/// Gradients.
impl ShardTensor {
    /// A parameter of the same value: gradients with respect to it are computed, and [`set`](Self::set) may replace
    /// its value. Of a parameter it makes another one; [`set_requires_grad`](Self::set_requires_grad) freezes one and thaws it again.
    ///
    /// # Collective
    /// All members of the mesh. No communication; a partial tensor is reduced first, as no gradient is a term of a sum.
    ///
    /// # Errors
    /// [`Autograd`](Error::Autograd) for integers and truth values.
    #[track_caller]
    pub fn requires_grad(&self) -> Result<Self> {
        let _call = Calling::of("requires_grad");
        if self.layout().is_partial() {
            return self.detach().reduced()?.requires_grad();
        }
        let leaf = self.ctx.tape().leaf(self.value().array().clone())?;
        Ok(Self {
            held: self.parameter(leaf),
            ctx: self.ctx.clone(),
        })
    }

    /// Freezes a parameter, or thaws it with `true`, as `torch.Tensor.requires_grad_`. A frozen parameter is used as a constant: no gradient
    /// is computed for it, and so optimizers leave it as it is, with what they remember of it. It goes on being the same parameter, of
    /// models, optimizers, means and checkpoints, [`set`](Self::set) changes its value, and [plans](crate::nn::ModelExt::distribute) place
    /// it, frozen. What was computed before this call keeps what it had. [`is_tracked`](Self::is_tracked) tells which it is;
    /// [`ModelExt::set_requires_grad`](crate::nn::ModelExt::set_requires_grad) is for whole models and parts of them.
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt, Module};
    /// use shard_tensor::optim::{Optimizer, Sgd};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let layer = Linear::new(&mesh, 4, 1)?;
    ///     let mut sgd = Sgd::new(layer.parameters(), 0.1)?;
    ///     let x = mesh.ones([6, 4], shard(0))?;
    ///     layer.weight.set_requires_grad(false)?;
    ///     let before = layer.weight.to_array::<f32>()?;
    ///     sgd.step(&layer.forward(&x)?.mean_all()?.backward()?)?;       // the bias alone
    ///     assert_eq!(layer.weight.to_array::<f32>()?, before);
    ///     layer.weight.set_requires_grad(true)?;
    ///     sgd.step(&layer.forward(&x)?.mean_all()?.backward()?)?;       // both
    ///     assert_ne!(layer.weight.to_array::<f32>()?, before);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh, alike. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if this is no parameter.
    #[track_caller]
    pub fn set_requires_grad(&self, on: bool) -> Result<()> {
        let _call = Calling::of("set_requires_grad");
        let Held::Parameter(shared, ..) = &self.held else {
            return Err(no_parameter("set_requires_grad"));
        };
        if self.is_tracked() == on {
            return Ok(());
        }
        let value = self.ctx.tape().frozen(&shared.value.borrow(), !on)?;
        let call = Call::new("set_requires_grad").with(u64::from(on).into());
        let call = call.of(self.dtype(), self.layout());
        (value.array().cx()).record(call.reading(&[value.array().number()]));
        shared.value.replace(Rc::new(value));
        Ok(())
    }

    /// A parameter of this value that ops use in another layout than its own: wherever one is applied to it, it is brought there,
    /// and again where the backward pass reads it. Nothing of that is kept.
    #[track_caller]
    pub(crate) fn requires_grad_used_as(&self, used_as: &Layout) -> Result<Self> {
        let _call = Calling::of("requires_grad");
        let array = self.value().array().clone();
        let leaf = self.ctx.tape().leaf_used_as(array, used_as)?;
        Ok(Self {
            held: self.parameter(leaf),
            ctx: self.ctx.clone(),
        })
    }

    /// The layout in which ops use it: its own, unless it is a parameter that is gathered for its
    /// [uses](crate::nn::ModelExt::fully_sharded).
    pub fn layout_in_use(&self) -> Layout {
        self.ctx.tape().layout_in_use(&self.held())
    }

    /// The tensor as ops use it, brought there once for several of them.
    #[track_caller]
    pub(crate) fn in_use(&self) -> Result<Self> {
        let value = self.value();
        Ok(self.lift(self.context().tape().operand(&value)?.into_owned()))
    }

    fn parameter(&self, leaf: Value) -> Held {
        Held::Parameter(
            Rc::new(Shared {
                value: RefCell::new(Rc::new(leaf)),
                replaced: Cell::default(),
            }),
            self.layout().clone(),
            self.dtype(),
        )
    }

    /// Whether this and another tensor are one parameter under two names.
    pub fn is_same_parameter(&self, other: &Self) -> bool {
        match (&self.held, &other.held) {
            (Held::Parameter(a, ..), Held::Parameter(b, ..)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Notes that a call gave a model another parameter in the place of this one.
    pub(crate) fn set_replaced(&self, by: &'static str) {
        if let Held::Parameter(shared, ..) = &self.held {
            shared.replaced.set(Some(by));
        }
    }

    /// The call by which a model has another parameter in the place of this one, unless its value was set since.
    pub(crate) fn replaced(&self) -> Option<&'static str> {
        match &self.held {
            Held::Parameter(shared, ..) => shared.replaced.get(),
            Held::Value(_) => None,
        }
    }

    /// The same elements in another layout, without history and in memory of their own.
    #[track_caller]
    pub(crate) fn settled(&self, to: &Layout) -> Result<Self> {
        let own = self.value().detach();
        let engine = self.ctx.engine();
        let moved = engine.redistribute(&own, to)?.into_array();
        let len = |array: &Array| array.buffer().map_or(0, Buffer::len);
        let array = match moved.buffer() {
            // A part of a replica would keep all of it.
            Some(part) if len(&moved) < len(own.array()) => {
                let mut copy = part.device().alloc(part.dtype(), part.len())?;
                let all = Strided::contiguous(&[part.len()]);
                part.device().copy(part, &all, &mut copy, &all)?;
                Array::from_parts(moved.cx(), to, Some(copy.freeze()), self.dtype())?
                    .with_number(moved.number())
            }
            _ => moved,
        };
        Ok(self.lift(Value::new(array)))
    }

    /// Whether gradients reach it: not if it is a [frozen](Self::set_requires_grad) parameter.
    pub fn is_tracked(&self) -> bool {
        self.ctx.tape().is_tracked(&self.value())
    }

    /// Whether it is a parameter, also one that is frozen.
    pub fn is_parameter(&self) -> bool {
        matches!(self.held, Held::Parameter(..))
    }

    /// Gives a parameter a name, by which [gradients](Gradients::iter) and messages call it. A model names its parameters when it
    /// [lists](crate::nn::ModelExt::parameters) them, and the last name holds. Any other tensor has none.
    ///
    /// # Collective
    /// All members of the mesh, with the same name. No communication.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.ctx.tape().set_name(&self.held(), name);
        self
    }

    /// The name of a parameter, if it was given one.
    pub fn name(&self) -> Option<String> {
        Some(self.ctx.tape().name(&self.held())?.to_string())
    }

    /// The same value without its history.
    #[must_use]
    pub fn detach(&self) -> Self {
        self.lift(self.value().detach())
    }

    /// Gradients of this one-element tensor with respect to all parameters it was computed from.
    ///
    /// A partial loss is resolved. The gradient of a parameter has exactly the parameter's layout.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// [`Autograd`](Error::Autograd) if it has more than one element or no history.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// let slopes = launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     let w = mesh.full([2], 3.0, [replicate()])?.requires_grad()?;
    ///     let x = mesh.ones([5, 2], [shard(0)])?;
    ///     let loss = x.mul(&w)?.square()?.sum_all()?;
    ///     let slope = loss.backward()?.get(&w)?.expect("the loss depends on w");
    ///     slope.to_array::<f32>()
    /// })?;
    /// assert_eq!(slopes[2], ndarray::arr1(&[30.0, 30.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn backward(&self) -> Result<Gradients> {
        let _call = Calling::of("backward");
        let found = self.ctx.tape().backward(&self.value(), None)?;
        Ok(Gradients::new(&self.ctx, found))
    }

    /// As [`backward`](Self::backward), with respect to these parameters alone, as one of two models that play against each other: PyTorch's
    /// `backward(inputs=..)`. Nothing is computed for the others, and norms that [limit](Gradients::clip_norm) gradients do not count them;
    /// they would count every parameter the loss depends on, and inputs that [`requires_grad`](Self::requires_grad) made one.
    /// Those that are frozen are left out.
    ///
    /// ```
    /// use shard_tensor::nn::{Linear, ModelExt, Module};
    /// use shard_tensor::{launch, shard};
    /// launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let (painter, critic) = (Linear::new(&mesh, 3, 4)?, Linear::new(&mesh, 4, 1)?);
    ///     let loss = critic.forward(&painter.forward(&mesh.randn([6, 3], shard(0))?)?)?.mean_all()?;
    ///     let gradients = loss.backward_to(&painter.parameters())?;
    ///     assert_eq!((gradients.len(), loss.backward()?.len()), (2, 4));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program, with the same parameters.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Autograd`](Error::Autograd) if it depends on none of them; [`Argument`](Error::Argument) for a tensor that is
    /// no parameter.
    #[track_caller]
    pub fn backward_to(&self, parameters: &[(String, Self)]) -> Result<Gradients> {
        let _call = Calling::of("backward_to");
        if parameters.iter().any(|(_, p)| !p.is_parameter()) {
            return Err(no_parameter("backward_to"));
        }
        let leaves: Vec<Value> = parameters.iter().map(|(_, p)| p.value()).collect();
        let leaves: Vec<&Value> = leaves.iter().collect();
        let found = self.ctx.tape().backward_to(&self.value(), &leaves)?;
        Ok(Gradients::new(&self.ctx, found))
    }

    /// As [`backward`](Self::backward), of any tensor, given the cotangent to start from.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); if the seed has another shape or type.
    #[track_caller]
    pub fn backward_with(&self, seed: &Self) -> Result<Gradients> {
        let _call = Calling::of("backward_with");
        let seed = seed.value();
        let found = self.ctx.tape().backward(&self.value(), Some(&seed))?;
        Ok(Gradients::new(&self.ctx, found))
    }

    /// The gradients of this one-element tensor with respect to some tensors, `None` where it does not depend on
    /// one. With `create_graph` they can be differentiated again.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    #[track_caller]
    pub fn grad(&self, inputs: &[&Self], create_graph: bool) -> Result<Vec<Option<Self>>> {
        let _call = Calling::of("grad");
        self.grad_from(None, inputs, create_graph)
    }

    /// As [`grad`](Self::grad), by one tensor, which this one depends on.
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let bent = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(3, shard(0))?.requires_grad()?;
    ///     let slope = x.pow_scalar(3.0)?.sum_all()?.grad1(&x, true)?;
    ///     slope.sum_all()?.grad1(&x, false)?.to_array::<f32>()
    /// })?;
    /// assert_eq!(bent[0].as_slice(), Some(&[0.0, 6.0, 12.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`backward`](Self::backward); [`Argument`](Error::Argument) if it does not depend on `input`, as in PyTorch.
    #[track_caller]
    pub fn grad1(&self, input: &Self, create_graph: bool) -> Result<Self> {
        let _call = Calling::of("grad1");
        let found = self.grad_from(None, &[input], create_graph)?;
        found.into_iter().flatten().next().ok_or_else(|| {
            Error::argument(
                "grad1",
                "a tensor that depends on the input",
                "one that does not",
                "compute it from what `requires_grad` gave, outside of `no_grad`, or ask `grad`, which gives `None`",
            )
        })
    }

    /// As [`grad`](Self::grad), of any tensor, given the cotangent to start from: PyTorch's `grad_outputs`.
    ///
    /// With `create_graph` the seed may be on the tape too. The gradient is linear in it, so that the gradient by the seed is a product
    /// with the Jacobian from the other side:
    ///
    /// ```
    /// use shard_tensor::{launch, shard};
    /// let products = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.arange(3, shard(0))?.requires_grad()?;
    ///     let y = x.square()?;
    ///     let seed = y.zeros_like()?.requires_grad()?;
    ///     let pulled = y.grad_with(&seed, &[&x], true)?.remove(0).expect("y depends on x");
    ///     let along = x.ones_like()?; // the direction in which the derivative is taken
    ///     let pushed = pulled.grad_with(&along, &[&seed], false)?.remove(0).expect("it depends on the seed");
    ///     pushed.to_array::<f32>()
    /// })?;
    /// assert_eq!(products[0].as_slice(), Some(&[0.0, 2.0, 4.0][..]));
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`backward_with`](Self::backward_with).
    #[track_caller]
    pub fn grad_with(
        &self,
        seed: &Self,
        inputs: &[&Self],
        create_graph: bool,
    ) -> Result<Vec<Option<Self>>> {
        let _call = Calling::of("grad_with");
        self.grad_from(Some(seed), inputs, create_graph)
    }

    #[track_caller]
    fn grad_from(
        &self,
        seed: Option<&Self>,
        inputs: &[&Self],
        create_graph: bool,
    ) -> Result<Vec<Option<Self>>> {
        let values: Vec<Value> = inputs.iter().map(|t| t.value()).collect();
        let values: Vec<&Value> = values.iter().collect();
        let seed = seed.map(Self::value);
        let tape = self.ctx.tape();
        let found = tape.grad(&[&self.value()], &values, &[seed.as_ref()], create_graph)?;
        Ok(found.into_iter().map(|v| v.map(|v| self.lift(v))).collect())
    }

    /// Calls `hook` with the gradient of this tensor in every backward pass; what it returns, if anything, takes the
    /// gradient's place. The gradient has the layout of this tensor. A parameter keeps its hooks whatever value it is
    /// given.
    ///
    /// A hook that holds its own tensor keeps it alive until it is removed, or the [launch](crate::launch) ends. What it computes is recorded
    /// where the pass is; in others it may begin a pass of its own on what it computes inside [`enable_grad`](Context::enable_grad).
    ///
    /// # Collective
    /// All ranks of the program, with the same hook.
    ///
    /// # Errors
    /// [`Autograd`](Error::Autograd) if gradients do not reach it.
    #[track_caller]
    pub fn on_gradient(
        &self,
        hook: impl Fn(&Self) -> Result<Option<Self>> + 'static,
    ) -> Result<shard_autograd::HookHandle> {
        let ctx = self.ctx.clone();
        let hook = move |value: &Value| match hook(&Self::new(&ctx, value.clone())) {
            Ok(replaced) => Ok(replaced.map(|t| t.value())),
            Err(error) => Err(shard_autograd::AutogradError::external(
                &error,
                error.class(),
            )),
        };
        Ok(self.ctx.tape().on_gradient(&self.value(), Rc::new(hook))?)
    }

    /// Replaces the value of a parameter, for all its clones. What was computed from the old value keeps it. It stays the
    /// same parameter: its hooks stay, gradients computed before can still be read, and what was computed from the old
    /// value still gives its gradient to the parameter.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) if this is no parameter, or the other tensor has another layout or type.
    #[track_caller]
    pub fn set(&self, value: &Self) -> Result<()> {
        let _call = Calling::of("set");
        if value.layout() != self.layout() || value.dtype() != self.dtype() {
            return Err(Error::argument(
                "set",
                format!("{} {:?} {}", self.dtype(), self.shape(), self.layout()),
                format!("{} {:?} {}", value.dtype(), value.shape(), value.layout()),
                "a parameter keeps its type, shape and layout: `w.set(&value.to(w.dtype())?.redistribute(w.layout())?)`, or compute the value from `detach`, which lies so",
            ));
        }
        let array = value.value().array().clone();
        let call = Call::new("set").of(self.dtype(), self.layout());
        let parameter = self.held().array().number();
        (array.cx()).record(call.reading(&[parameter, array.number()]));
        self.set_array(array)
    }

    /// As [`set`](Self::set), for an array known to fit.
    #[track_caller]
    pub(crate) fn set_array(&self, array: Array) -> Result<()> {
        let _call = Calling::of("set");
        let Held::Parameter(shared, ..) = &self.held else {
            return Err(no_parameter("set"));
        };
        let renewed = self.ctx.tape().renewed(&shared.value.borrow(), array)?;
        shared.value.replace(Rc::new(renewed));
        // Who sets it uses it, as a copy of the model that was not placed.
        shared.replaced.set(None);
        Ok(())
    }
}

fn no_parameter(op: &'static str) -> Error {
    Error::argument(
        op,
        "a parameter",
        "a tensor that is none",
        "tensors are values; make a parameter with `requires_grad`",
    )
}

/// An op of two tensors.
type Op2<'a> = dyn Fn(&dyn Exec, &Value, &Value) -> Result<Value, OpError> + 'a;

impl ShardTensor {
    /// The layout that placements give this tensor, if it can be moved there.
    pub(crate) fn target(&self, placements: impl Into<Placements>) -> Result<Layout> {
        let to = placements
            .into()
            .layout(self.layout().mesh(), self.shape())?;
        if to.is_partial() && to != *self.layout() {
            return Err(Error::argument(
                "redistribute",
                "shards and replicas",
                to.to_string(),
                "partial values are the results of ops; redistribute to a replica or a shard",
            ));
        }
        Ok(to)
    }

    /// The value alone.
    pub(crate) fn into_value(self) -> Value {
        match self.held {
            Held::Value(value) => value,
            Held::Parameter(shared, ..) => Value::clone(&shared.value.borrow()),
        }
    }

    /// A tensor of the same context.
    pub(crate) fn lift(&self, value: Value) -> Self {
        Self::new(&self.ctx, self.ctx.tape().as_result(value))
    }

    /// Runs one op of `shard_ops` on this tensor.
    #[track_caller]
    pub(crate) fn run(
        &self,
        f: impl Fn(&dyn Exec, &Value) -> Result<Value, OpError>,
    ) -> Result<Self> {
        self.run_any(&f)
    }

    // What most methods come to is compiled once, and not for each of them.
    #[track_caller]
    fn run_any(&self, f: &dyn Fn(&dyn Exec, &Value) -> Result<Value, OpError>) -> Result<Self> {
        let _call = Calling::here();
        let mut place = None;
        let this = self.operand(&mut place)?;
        Ok(self.lift(f(self.ctx.tape(), this)?))
    }

    /// The value as ops use it. What is not the tensor's own is held in this place.
    fn operand<'a>(&'a self, place: &'a mut Option<Rc<Value>>) -> Result<&'a Value> {
        let tape = self.ctx.tape();
        let held = match &self.held {
            Held::Value(value) => match tape.operand(value)? {
                Cow::Borrowed(value) => return Ok(value),
                Cow::Owned(value) => Rc::new(value),
            },
            Held::Parameter(shared, ..) => {
                let value = shared.value.borrow().clone();
                match tape.operand(&value)? {
                    Cow::Borrowed(_) => value,
                    Cow::Owned(value) => Rc::new(value),
                }
            }
        };
        Ok(place.insert(held))
    }

    /// Runs one op of `shard_ops` on two tensors.
    #[track_caller]
    pub(crate) fn run2(
        &self,
        other: &Self,
        f: impl Fn(&dyn Exec, &Value, &Value) -> Result<Value, OpError>,
    ) -> Result<Self> {
        self.run2_any(other, &f)
    }

    #[track_caller]
    fn run2_any(&self, other: &Self, f: &Op2<'_>) -> Result<Self> {
        let _call = Calling::here();
        let (mut place, mut other_place) = (None, None);
        let this = self.operand(&mut place)?;
        let other = other.operand(&mut other_place)?;
        Ok(self.lift(f(self.ctx.tape(), this, other)?))
    }
}

/// What it is, never what it holds: printing does not communicate.
impl fmt::Debug for ShardTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, local) = (self.shape(), self.local_shape());
        write!(
            f,
            "ShardTensor({} {shape:?} {}, local {:?} on rank {}",
            self.dtype(),
            self.layout(),
            &local[..],
            self.ctx.rank()
        )?;
        f.write_str(match self.held {
            Held::Parameter(..) if !self.is_tracked() => ", frozen parameter)",
            Held::Parameter(..) => ", parameter)",
            Held::Value(_) if self.is_tracked() => ", tracked)",
            Held::Value(_) => ")",
        })
    }
}

impl fmt::Display for ShardTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.dtype(), self.shape(), self.layout())
    }
}

fn to_ndarray<T: Element>(array: &Array) -> Result<ArrayD<T>> {
    to_ndarray_of("to_array", array.to_vec::<T>()?, &array.local_shape())
}

/// Elements as an array.
pub(crate) fn to_ndarray_of<T>(
    op: &'static str,
    elements: Vec<T>,
    shape: &[usize],
) -> Result<ArrayD<T>> {
    ArrayD::from_shape_vec(IxDyn(shape), elements).map_err(|e| {
        Error::argument(
            op,
            "as many elements as the shape holds",
            e.to_string(),
            "report this",
        )
    })
}

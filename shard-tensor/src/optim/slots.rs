//! What all optimizers have: parameters, each with its options and what is remembered of it.

use crate::nn::Parameters;
use crate::{Error, Gradients, Result, ShardTensor, State, StateNumber};
use shard_comm::{Call, Calling, DType, Scalar, Strided};
use shard_ops::Value;
use shard_ops::optimize::{Sgd, Update, update};
use shard_redistribute::Array;
use shard_spec::Layout;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// The options of an optimizer, which have its name and a rate.
pub(super) trait Rated {
    fn name(&self) -> &'static str;

    fn rate(&self) -> f64;

    fn set_rate(&mut self, rate: f64);
}

/// The options of an optimizer, and the update that they make.
pub(super) trait Formula: Rated + Debug {
    /// The numbers that must not be negative, and those that must be from 0 to below 1.
    fn limits(&self) -> [Vec<Named>; 2];

    /// What is wrong with options that are within their limits: what they should be, what they are, and the fix.
    fn conflict(&self) -> Option<(&'static str, String, &'static str)> {
        None
    }

    /// What is wrong with a parameter of this shape: what it should be, and the fix.
    fn refused(&self, _shape: &[usize]) -> Option<(&'static str, &'static str)> {
        None
    }

    /// The names of what is remembered of a parameter of this shape.
    fn states(&self, shape: &[usize]) -> &'static [&'static str];

    /// What all that is remembered is at first.
    fn start(&self) -> f64 {
        0.0
    }

    /// Where a part of what is remembered lies: as the parameter, if nothing else is said.
    fn lies(&self, _part: usize, parameter: &Layout) -> Result<Layout> {
        Ok(parameter.clone())
    }

    /// The numbers of a step, of which the first is 1.
    fn update(&self, step: u64) -> Update;

    /// The new parameter, and what is remembered then: in one pass, where a step needs no more.
    #[track_caller]
    fn take(
        &self,
        step: u64,
        parameter: &ShardTensor,
        gradient: &Value,
        state: &[Value],
    ) -> Result<Vec<Value>> {
        let (update, old) = (self.update(step), parameter.value());
        apply(parameter, update, &old, gradient, state)
    }
}

/// A number among the options, and its name.
pub(super) type Named = (&'static str, f64);

/// How slowly two means forget, by name.
pub(super) fn betas([first, second]: [f64; 2]) -> Vec<Named> {
    vec![("first beta", first), ("second beta", second)]
}

/// The share of a parameter that stays, and that which is added to its gradient.
pub(super) fn decayed(rate: f64, decay: f64, is_decoupled: bool) -> [f64; 2] {
    match is_decoupled {
        true => [1.0 - rate * decay, 0.0],
        false => [1.0, decay],
    }
}

/// A step straight along what stands in the gradient's place, with a decay of its own; nothing is remembered for it.
pub(super) fn straight(rate: f64, decay: f64) -> Update {
    let step = Sgd {
        rate,
        momentum: 0.0,
        dampening: 0.0,
        decay,
        nesterov: false,
        first: false,
    };
    step.into()
}

/// Parameters, each with its options and what is remembered of it. What is not about the options' type is below, once for all
/// optimizers.
#[derive(Clone, Debug)]
pub(super) struct Slots<F> {
    slots: Vec<Slot>,
    /// Of each parameter.
    options: Vec<F>,
    rate: f64,
}

impl<F: Formula + Copy> Slots<F> {
    /// Of these parameters. One that is listed twice, as a tied weight, is one parameter under its first name.
    #[track_caller]
    pub(super) fn new(parameters: Parameters, options: F) -> Result<Self> {
        let slots = Slot::all(parameters, &options)?;
        Ok(Self {
            options: vec![options; slots.len()],
            slots,
            rate: options.rate(),
        })
    }

    /// The same of other parameters, which have the names of these and are laid out as they are.
    #[track_caller]
    pub(super) fn with_parameters(&self, parameters: Parameters) -> Result<Self> {
        Ok(Self {
            slots: with_parameters(&self.slots, &formulas(&self.options), parameters)?,
            options: self.options.clone(),
            rate: self.rate,
        })
    }

    /// Changes the options of all parameters.
    pub(super) fn all(mut self, set: impl Fn(F) -> F) -> Self {
        for options in &mut self.options {
            *options = set(*options);
        }
        self
    }

    /// Changes the options of the parameters that are picked.
    #[track_caller]
    pub(super) fn group(
        mut self,
        pick: impl Fn(&str, &ShardTensor) -> bool,
        set: impl Fn(F) -> F,
    ) -> Result<Self> {
        let mut picks = false;
        for (slot, options) in self.slots.iter_mut().zip(&mut self.options) {
            if pick(&slot.name, &slot.parameter) {
                picks = true;
                let old = options.rate();
                *options = set(*options);
                slot.regroup(options, old, self.rate)?;
            }
        }
        if !picks {
            let got = format!("none of {}", names(&self.slots));
            let fix = "pick at least one parameter";
            return Err(Error::argument("group", "names of parameters", got, fix));
        }
        Ok(self)
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
        for (slot, options) in self.slots.iter().zip(&mut self.options) {
            options.set_rate(rate * slot.ratio);
        }
    }

    #[track_caller]
    pub(super) fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let formulas = formulas(&self.options);
        step(&mut self.slots, &formulas, gradients)
    }

    /// # Errors
    /// [`Argument`](Error::Argument) for two parameters of one name, which a state could not tell apart.
    #[track_caller]
    pub(super) fn state(&self) -> Result<State> {
        state(&self.slots, &formulas(&self.options), self.rate)
    }

    #[track_caller]
    pub(super) fn load_state(&mut self, state: &State) -> Result<()> {
        let formulas = formulas(&self.options);
        let rate = load_state(&mut self.slots, &formulas, state)?;
        self.set_rate(rate);
        Ok(())
    }
}

/// Options of any type.
type Formulas<'a> = Vec<&'a dyn Formula>;

fn formulas<F: Formula>(options: &[F]) -> Formulas<'_> {
    options.iter().map(|o| o as &dyn Formula).collect()
}

fn names(slots: &[Slot]) -> String {
    let names: Vec<&str> = slots.iter().map(|s| &s.name[..]).collect();
    names.join(", ")
}

#[track_caller]
fn with_parameters(
    slots: &[Slot],
    options: &[&dyn Formula],
    parameters: Parameters,
) -> Result<Vec<Slot>> {
    const OP: &str = "with_parameters";
    const FIX: &str = "give the parameters of a copy of the same model";
    let wrong = |expected: String, got, fix| Err(Error::argument(OP, expected, got, fix));
    let Some(first) = options.first() else {
        return match parameters.first() {
            None => Ok(Vec::new()),
            Some((name, _)) => wrong("no parameters".to_owned(), name.clone(), FIX),
        };
    };
    let mut new = Slot::all(parameters, *first)?;
    if !(new.iter().map(|new| &new.name)).eq(slots.iter().map(|old| &old.name)) {
        return wrong(
            format!("parameters named {}", names(slots)),
            names(&new),
            FIX,
        );
    }
    for (new, old) in new.iter_mut().zip(slots) {
        let tell = |p: &ShardTensor| format!("{} {:?} {}", p.dtype(), p.shape(), p.layout());
        let (given, own) = (&new.parameter, &old.parameter);
        if (given.layout(), given.dtype()) != (own.layout(), own.dtype()) {
            return wrong(
                format!("{:?}: {}", old.name, tell(own)),
                tell(given),
                "place the copy as the model is placed, or load the optimizer's state from a checkpoint",
            );
        }
        *new = Slot {
            parameter: new.parameter.clone(),
            ..old.clone()
        };
    }
    Ok(new)
}

#[track_caller]
fn step(slots: &mut [Slot], options: &[&dyn Formula], gradients: &Gradients) -> Result<()> {
    let _call = Calling::of("step");
    for options in options {
        check(*options)?;
    }
    let mut found = Vec::with_capacity(slots.len());
    for slot in &*slots {
        let gradient = gradients.get(&slot.parameter)?;
        if gradient.is_none() {
            check_in_use("step", "the optimizer", &slot.name, &slot.parameter)?;
        }
        found.push(gradient);
    }
    // Of frozen parameters there is none to wait for.
    let waits = slots.iter().any(|slot| slot.parameter.is_tracked());
    if waits && found.iter().all(Option::is_none) && !gradients.is_empty() {
        return Err(Error::argument(
            "step",
            "gradients of the optimizer's parameters",
            format!("{} gradients, all of others", gradients.len()),
            "give each optimizer the gradients of a loss that depends on its parameters",
        ));
    }
    for ((slot, options), gradient) in slots.iter_mut().zip(options).zip(found) {
        if let Some(gradient) = gradient {
            slot.step(*options, &gradient)?;
        }
    }
    Ok(())
}

#[track_caller]
fn state(slots: &[Slot], options: &[&dyn Formula], rate: f64) -> Result<State> {
    let mut names = BTreeSet::new();
    if let Some(slot) = slots.iter().find(|s| !names.insert(&s.name)) {
        return Err(Error::argument(
            "state",
            "parameters of distinct names",
            format!("{:?} twice", slot.name),
            "list the parameters of the whole model at once, which names them apart",
        ));
    }
    let mut state = State::default();
    let rate = ("learning_rate".to_owned(), StateNumber::Real(rate));
    state.numbers.push(rate);
    for (slot, options) in slots.iter().zip(options) {
        for (k, kind) in options.states(slot.parameter.shape()).iter().enumerate() {
            let value = match slot.state.get(k) {
                Some(value) => value.clone(),
                None => slot.start(*options, k)?,
            };
            let tensor = slot.parameter.lift(value);
            state
                .tensors
                .push((format!("{kind}.{}", slot.name), tensor));
        }
        let steps = (
            format!("step.{}", slot.name),
            StateNumber::Whole(slot.steps),
        );
        state.numbers.push(steps);
    }
    Ok(state)
}

/// Gives the rate that the state has.
#[track_caller]
fn load_state(slots: &mut [Slot], options: &[&dyn Formula], state: &State) -> Result<f64> {
    let rate = real(state, "learning_rate")?;
    let mut loaded = Vec::with_capacity(slots.len());
    for (slot, options) in slots.iter().zip(options) {
        let mut values = Vec::new();
        for (k, kind) in options.states(slot.parameter.shape()).iter().enumerate() {
            let name = format!("{kind}.{}", slot.name);
            let layout = options.lies(k, slot.parameter.layout())?;
            let tensor = tensor_at(state, &name, &layout, slot.parameter.dtype())?;
            values.push(tensor.value().detach());
        }
        loaded.push((values, whole(state, &format!("step.{}", slot.name))?));
    }
    for (slot, (values, steps)) in slots.iter_mut().zip(loaded) {
        (slot.state, slot.steps) = (values, steps);
    }
    Ok(rate)
}

/// A parameter and what the optimizer remembers of it, laid out as it is.
#[derive(Clone, Debug)]
struct Slot {
    name: String,
    parameter: ShardTensor,
    /// Its rate over the optimizer's.
    ratio: f64,
    /// Empty until the first step.
    state: Vec<Value>,
    steps: u64,
}

impl Slot {
    #[track_caller]
    fn all(parameters: Parameters, options: &dyn Formula) -> Result<Vec<Self>> {
        check(options)?;
        let mut seen = BTreeSet::new();
        let mut slots = Vec::with_capacity(parameters.len());
        for (name, parameter) in parameters {
            check_parameter(options.name(), &name, &parameter)?;
            if let Some((expected, fix)) = options.refused(parameter.shape()) {
                let got = format!("{name:?} of shape {:?}", parameter.shape());
                return Err(Error::argument(options.name(), expected, got, fix));
            }
            if !seen.insert(parameter.context().tape().id(&parameter.value())) {
                continue;
            }
            slots.push(Self {
                parameter: parameter.named(&name),
                name,
                ratio: 1.0,
                state: Vec::new(),
                steps: 0,
            });
        }
        Ok(slots)
    }

    /// Takes new options, where the rate was `old` before and the optimizer's is `rate`.
    #[track_caller]
    fn regroup(&mut self, options: &dyn Formula, old: f64, rate: f64) -> Result<()> {
        check(options)?;
        let new = options.rate();
        if new != old && rate == 0.0 {
            let got = format!("{new} where the optimizer's is 0");
            let fix = "give the optimizer a rate above 0: schedules keep the ratio to it";
            return Err(Error::argument("group", "a rate with a ratio", got, fix));
        }
        if new != old {
            self.ratio = new / rate;
        }
        Ok(())
    }

    /// One step along a gradient.
    #[track_caller]
    fn step(&mut self, options: &dyn Formula, gradient: &ShardTensor) -> Result<()> {
        // A file may say any count.
        let steps = self.steps.saturating_add(1);
        while self.state.len() < options.states(self.parameter.shape()).len() {
            self.state.push(self.start(options, self.state.len())?);
        }
        let new = options.take(steps, &self.parameter, &gradient.value(), &self.state)?;
        let mut new = new.into_iter();
        if let Some(new) = new.next() {
            self.parameter.set_array(new.into_array())?;
        }
        self.state = new.collect();
        self.steps = steps;
        Ok(())
    }

    /// A part of what is remembered, before the first step. What it begins with is an option that no later step names.
    #[track_caller]
    fn start(&self, options: &dyn Formula, part: usize) -> Result<Value> {
        let value = self.parameter.value();
        let (cx, dtype) = (value.array().cx(), value.dtype());
        let layout = options.lies(part, value.layout())?;
        let call = Call::new("step").with(options.start().to_bits().into());
        let number = cx.record(call.constant().of(dtype, &layout));
        let buffer = match layout.local_shape(cx.world().rank()) {
            Some(shape) => {
                let (device, every) = (cx.device(), Strided::contiguous(&shape));
                let mut all = device.alloc(dtype, shape.iter().product())?;
                device.fill(&mut all, &every, Scalar::F64(options.start()))?;
                Some(all.freeze())
            }
            None => None,
        };
        let array = Array::from_parts(cx, &layout, buffer, dtype)?;
        Ok(Value::new(array.with_number(number)))
    }
}

/// An update of this parameter, unrecorded.
pub(super) fn apply(
    parameter: &ShardTensor,
    step: Update,
    old: &Value,
    gradient: &Value,
    state: &[Value],
) -> Result<Vec<Value>> {
    let (old, gradient) = (old.detach(), gradient.detach());
    // What an update is made of is no attribute of the op, because it changes from step to step.
    let call = Call::new("step").of(old.dtype(), old.layout());
    let call =
        (step.numbers().iter()).fold(call, |call, number| call.with(number.to_bits().into()));
    let read = [old.array().number(), gradient.array().number()];
    old.array().cx().record(call.reading(&read));
    let engine = parameter.context().engine();
    Ok(update(&**engine, step, &old, &gradient, state)?)
}

/// Refuses options that make no sense.
#[track_caller]
fn check(options: &dyn Formula) -> Result<()> {
    let [not_negative, shares] = options.limits();
    let above = |(_, x): &Named| x.is_nan() || *x < 0.0 || x.is_infinite();
    let outside = |(_, x): &Named| !(0.0..1.0).contains(x);
    let wrong = |expected, (name, x): Named| {
        let (op, got) = (options.name(), format!("{name} {x}"));
        Err(Error::argument(op, expected, got, "correct this option"))
    };
    if let Some(&option) = not_negative.iter().find(|o| above(o)) {
        return wrong("numbers of 0 or more", option);
    }
    if let Some(&option) = shares.iter().find(|o| outside(o)) {
        return wrong("shares from 0 to below 1", option);
    }
    match options.conflict() {
        Some((expected, got, fix)) => Err(Error::argument(options.name(), expected, got, fix)),
        None => Ok(()),
    }
}

/// Refuses what no optimizer changes.
#[track_caller]
pub(super) fn check_parameter(op: &'static str, name: &str, tensor: &ShardTensor) -> Result<()> {
    let is_kept = matches!(tensor.dtype(), DType::F32 | DType::F64);
    let fix = match (tensor.is_parameter(), tensor.dtype()) {
        (true, _) if is_kept => return Ok(()),
        (true, DType::F16 | DType::BF16) => {
            "keep parameters in f32 or f64; `Context::autocast` computes with them in 16 bits"
        }
        _ => "make parameters with `requires_grad`",
    };
    // What is the same on all ranks.
    let got = format!("{name:?}: {} {:?}", tensor.dtype(), tensor.shape());
    Err(Error::argument(
        op,
        "parameters of type f32 or f64",
        match tensor.is_parameter() {
            true => got,
            false => format!("{got}, which is no parameter"),
        },
        fix,
    ))
}

/// Refuses a parameter that a model has another one in the place of.
#[track_caller]
pub(super) fn check_in_use(
    op: &'static str,
    holder: &str,
    name: &str,
    parameter: &ShardTensor,
) -> Result<()> {
    match parameter.replaced() {
        None => Ok(()),
        Some(by) => Err(Error::argument(
            op,
            format!("parameters that the model has, and {holder} has too"),
            format!("{name:?}, which was replaced when `{by}` laid the model elsewhere"),
            "place the model first, and make what holds its parameters afterwards",
        )),
    }
}

/// A tensor of a state that is laid out as another.
#[track_caller]
pub(super) fn tensor_like<'a>(
    state: &'a State,
    name: &str,
    like: &ShardTensor,
) -> Result<&'a ShardTensor> {
    tensor_at(state, name, like.layout(), like.dtype())
}

/// A tensor of a state that lies so.
#[track_caller]
fn tensor_at<'a>(
    state: &'a State,
    name: &str,
    layout: &Layout,
    dtype: DType,
) -> Result<&'a ShardTensor> {
    let tell = |dtype: DType, layout: &Layout| format!("{dtype} {:?} {layout}", layout.shape());
    match state.tensor(name) {
        Some(t) if t.layout() == layout && t.dtype() == dtype => Ok(t),
        found => Err(Error::argument(
            "load_state",
            format!("{name:?}: {}", tell(dtype, layout)),
            found.map_or_else(|| "nothing".to_owned(), |t| tell(t.dtype(), t.layout())),
            "give the state of the same parameters, laid out as they are",
        )),
    }
}

/// A real number of a state.
#[track_caller]
pub(super) fn real(state: &State, name: &str) -> Result<f64> {
    match state.number(name) {
        Some(StateNumber::Real(x)) => Ok(x),
        found => Err(no_number("a real number", name, found)),
    }
}

/// A count of a state.
#[track_caller]
pub(super) fn whole(state: &State, name: &str) -> Result<u64> {
    match state.number(name) {
        Some(StateNumber::Whole(n)) => Ok(n),
        found => Err(no_number("a whole number", name, found)),
    }
}

#[track_caller]
fn no_number(kind: &str, name: &str, found: Option<StateNumber>) -> Error {
    Error::argument(
        "load_state",
        format!("{kind} {name:?}"),
        found.map_or_else(|| "nothing".to_owned(), |n| format!("{n:?}")),
        "give the state of the same kind of thing",
    )
}

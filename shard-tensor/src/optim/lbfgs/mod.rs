//! L-BFGS: steps that know the curvature from the last ones.

mod search;

use super::slots::{check_in_use, check_parameter, real, tensor_like, whole};
use crate::gradients::{joined, over_ranks, total};
use crate::nn::Parameters;
use crate::{Context, Error, Result, ShardTensor, State, StateNumber, Stateful};
use search::{Point, strong_wolfe};
use shard_comm::{Call, Calling, DType, Monoid};
use shard_ops::optimize::power_sum;
use std::collections::BTreeSet;

/// The quasi-Newton method L-BFGS, as `torch.optim.LBFGS`: for small models whose loss is the same each time it is computed, as of
/// physics-informed networks and of fits, where it finds in tens of steps what takes others thousands.
///
/// A step asks for the loss several times, so it takes a function of it. What it remembers are the changes of parameters and
/// gradients in the last [`history`](Self::history) iterations, laid out as the parameters are, so it holds twice as many copies of them.
/// [Frozen](ShardTensor::set_requires_grad) parameters stay as they are; where a loss does not depend on one, its gradient is 0. There are no
/// groups, as in PyTorch; a schedule sets the [rate](Self::set_learning_rate).
///
/// ```
/// use shard_tensor::{launch, optim::Lbfgs, replicate, shard};
/// let found = launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     let at = mesh.linspace(-1.0, 1.0, 20, shard(0))?;
///     let y = at.mul_scalar(3.0)?.sin()?;
///     let w = mesh.full([1], 2.0, replicate())?.requires_grad()?;
///     let mut lbfgs = Lbfgs::new(vec![("w".to_owned(), w.clone())], 1.0)?.strong_wolfe();
///     lbfgs.step(|| at.mul(&w)?.sin()?.mse_loss(&y))?;
///     w.item()
/// })?;
/// assert!((found[0] - 3.0).abs() < 1e-3);
/// assert_eq!(found[0], found[2]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lbfgs {
    parameters: Parameters,
    rate: f64,
    iterations: usize,
    evaluations: Option<usize>,
    history: usize,
    gradient_tolerance: f64,
    change_tolerance: f64,
    has_search: bool,
    memory: Memory,
}

/// A tensor for each parameter, laid out as it is.
type Vector = Vec<ShardTensor>;

/// What is remembered from one iteration to the next.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// How many iterations there were.
    iterations: u64,
    /// The last direction, and how far along it the last step went.
    direction: Vector,
    step: f64,
    /// The gradient where that direction begins.
    gradient: Vector,
    /// The latest last.
    pairs: Vec<Pair>,
    /// For each pair the products of its gradient with the parameters and the gradient of those up to itself, in turn.
    products: Vec<Vec<f64>>,
    /// What the curvature is taken for where nothing is known of it: the inverse of a Hessian's diagonal.
    diagonal: f64,
}

/// What an iteration changed.
#[derive(Clone, Debug)]
struct Pair {
    parameters: Vector,
    gradient: Vector,
    /// One over the product of both.
    inverse: f64,
}

impl Lbfgs {
    /// For these parameters. A tensor that is listed twice is one parameter. The rate is the length of a step, or with
    /// [`strong_wolfe`](Self::strong_wolfe) of the first one that is tried; PyTorch's is 1.
    ///
    /// # Collective
    /// All members of the parameters' meshes. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for tensors that are no parameters of `f32` or `f64`, and a rate that is below 0 or not finite.
    #[track_caller]
    pub fn new(parameters: Parameters, rate: f64) -> Result<Self> {
        const OP: &str = "Lbfgs";
        check_rate(rate)?;
        let mut seen = BTreeSet::new();
        let mut own = Vec::with_capacity(parameters.len());
        for (name, parameter) in parameters {
            check_parameter(OP, &name, &parameter)?;
            if seen.insert(parameter.context().tape().id(&parameter.value())) {
                own.push((name.clone(), parameter.named(&name)));
            }
        }
        Ok(Self {
            parameters: own,
            rate,
            iterations: 20,
            evaluations: None,
            history: 100,
            gradient_tolerance: 1e-7,
            change_tolerance: 1e-9,
            has_search: false,
            memory: Memory::default(),
        })
    }

    /// At most so many iterations in a step; 20 at first.
    #[must_use]
    pub fn iterations(mut self, most: usize) -> Self {
        self.iterations = most;
        self
    }

    /// No iteration begins after so many losses of a step; five quarters of the [iterations](Self::iterations) at first.
    #[must_use]
    pub fn evaluations(mut self, most: usize) -> Self {
        self.evaluations = Some(most);
        self
    }

    /// Remembers so many iterations; 100 at first. A model whose parameters take much memory wants fewer, as 10. What remembers more
    /// than 10,000 has no [state](Stateful::state) that could be saved.
    #[must_use]
    pub fn history(mut self, iterations: usize) -> Self {
        self.history = iterations;
        self
    }

    /// A step ends where no element of the gradient is larger than the first number, 1e-7 at first, and where an iteration changes
    /// neither the loss nor any parameter by more than the second, 1e-9 at first.
    #[must_use]
    pub fn tolerances(mut self, gradient: f64, change: f64) -> Self {
        (self.gradient_tolerance, self.change_tolerance) = (gradient, change);
        self
    }

    /// Searches along each direction for a step that decreases the loss, and its slope, enough (the strong conditions of Wolfe). Without
    /// it steps are as long as the rate says, and may lead upwards. A loss that is NaN is too high.
    #[must_use]
    pub fn strong_wolfe(mut self) -> Self {
        self.has_search = true;
        self
    }

    /// The learning rate.
    pub fn learning_rate(&self) -> f64 {
        self.rate
    }

    /// Sets the learning rate, as schedules do.
    pub fn set_learning_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    /// One step of several iterations, each of which asks for the loss, and with a search more often. Returns the loss before it.
    ///
    /// # Collective
    /// All ranks of the program, with the same function, whose loss they all hold. Beside what that and its derivative move, an
    /// iteration takes three rounds, and one for each loss of a search, whatever it remembers: the largest elements of two vectors, and four
    /// products per remembered iteration, a number per parameter each.
    ///
    /// # Errors
    /// What the function reports, as [`ShardTensor::backward`] and [`ShardTensor::item`] do; parameters are then where the search was.
    /// [`Argument`](Error::Argument) for a parameter that [`place`](crate::nn::ModelExt::place) and its like have replaced in its model, and for
    /// a rate that [`new`](Self::new) refuses.
    #[track_caller]
    pub fn step(&mut self, mut loss: impl FnMut() -> Result<ShardTensor>) -> Result<f64> {
        self.step_by(&mut loss)
    }

    #[track_caller]
    fn step_by(&mut self, closure: &mut dyn FnMut() -> Result<ShardTensor>) -> Result<f64> {
        let _call = Calling::of("step");
        check_rate(self.rate)?;
        for (name, parameter) in &self.parameters {
            check_in_use("step", "the optimizer", name, parameter)?;
            let value = parameter.value();
            value.array().cx().record(self.told());
        }
        let (first, mut gradient) = self.evaluated(closure)?;
        let Some((_, one)) = self.parameters.first() else {
            return Ok(first);
        };
        let ctx = one.context().clone();
        let most = self
            .evaluations
            .unwrap_or(self.iterations.saturating_mul(5) / 4);
        let (mut loss, mut asked) = (first, 1);
        for iteration in 1..=self.iterations {
            let is_flat = size(&ctx, &gradient, f64::INFINITY)? <= self.gradient_tolerance;
            if is_flat || (iteration > 1 && asked >= most) {
                break;
            }
            let slope = ctx.no_grad(|| self.turn(&ctx, &gradient))?;
            if slope > -self.change_tolerance {
                break;
            }
            let start = Point {
                step: 0.0,
                loss,
                gradient,
                slope,
            };
            let before = loss;
            let longest = size(&ctx, &self.memory.direction, f64::INFINITY)?;
            let origin: Vector = self.parameters.iter().map(|(_, p)| p.detach()).collect();
            let first = self.first_step(&ctx, &start.gradient)?;
            let end = if self.has_search {
                let scale = (longest, self.change_tolerance);
                let left = most.saturating_sub(asked);
                let tried = |step| {
                    asked += 1;
                    self.at(&ctx, closure, &origin, step)
                };
                strong_wolfe(&start, first, left, scale, tried)?
            } else if iteration == self.iterations {
                // Nobody asks for the loss there.
                Point {
                    step: first,
                    ..start
                }
            } else {
                asked += 1;
                self.at(&ctx, closure, &origin, first)?
            };
            self.go_to(&ctx, &origin, end.step)?;
            self.memory.step = end.step;
            (loss, gradient) = (end.loss, end.gradient);
            let is_still = (end.step * longest).abs() <= self.change_tolerance;
            if is_still || (loss - before).abs() < self.change_tolerance {
                break;
            }
        }
        Ok(first)
    }

    /// What decides how often a step asks for the loss, for the histories of meshes: ranks that differ in it would not meet again.
    fn told(&self) -> Call<'static> {
        let numbers = [self.rate, self.gradient_tolerance, self.change_tolerance];
        let counts = [self.iterations, self.history];
        let most = self.evaluations.map_or(-1, |n| n as i128);
        let call = Call::new("Lbfgs").with(most as u128);
        let call = counts.iter().fold(call, |call, &n| call.with(n as u128));
        let call = call.with(self.has_search.into());
        (numbers.iter()).fold(call, |call, number| call.with(number.to_bits().into()))
    }

    /// The length of a step, or of the first one that a search tries. The first direction is the gradient's, whose size says nothing.
    fn first_step(&self, ctx: &Context, gradient: &Vector) -> Result<f64> {
        match self.memory.iterations {
            1 => Ok(self.rate * (1.0 / size(ctx, gradient, 1.0)?).min(1.0)),
            _ => Ok(self.rate),
        }
    }

    /// The loss where the parameters are, and its gradient.
    #[track_caller]
    fn evaluated(&self, closure: &mut dyn FnMut() -> Result<ShardTensor>) -> Result<(f64, Vector)> {
        let loss = closure()?;
        let found = loss.backward()?;
        let gradient = self.parameters.iter().map(|(_, parameter)| {
            let own = found.get(parameter)?;
            own.map_or_else(|| parameter.zeros_like(), |own| Ok(own.detach()))
        });
        let gradient = gradient.collect::<Result<_>>()?;
        Ok((loss.item_everywhere("Lbfgs")?, gradient))
    }

    /// What the loss is so far along the direction from an origin.
    #[track_caller]
    fn at(
        &self,
        ctx: &Context,
        closure: &mut dyn FnMut() -> Result<ShardTensor>,
        origin: &Vector,
        step: f64,
    ) -> Result<Point> {
        self.go_to(ctx, origin, step)?;
        let (loss, gradient) = self.evaluated(closure)?;
        let slope = ctx.no_grad(|| product(ctx, &gradient, &self.memory.direction))?;
        Ok(Point {
            step,
            loss,
            gradient,
            slope,
        })
    }

    /// Sets the parameters that far along the direction from an origin.
    #[track_caller]
    fn go_to(&self, ctx: &Context, origin: &Vector, step: f64) -> Result<()> {
        let places = ctx.no_grad(|| sum(origin, &self.memory.direction, step))?;
        (self.parameters.iter().zip(&places)).try_for_each(|((_, p), place)| p.set(place))
    }

    /// Remembers what the last iteration changed, and chooses the next direction. Returns the slope along it.
    #[track_caller]
    fn turn(&mut self, ctx: &Context, gradient: &Vector) -> Result<f64> {
        let memory = &mut self.memory;
        let along = memory.learn(ctx, gradient, self.history)?;
        let (mut direction, mut slope) = memory.direction(gradient, &along)?;
        if self.parameters.iter().any(|(_, p)| !p.is_tracked()) {
            for (along, (_, parameter)) in direction.iter_mut().zip(&self.parameters) {
                // Its gradient is 0, but what is remembered may say otherwise.
                if !parameter.is_tracked() {
                    *along = along.zeros_like()?;
                }
            }
            slope = product(ctx, gradient, &direction)?;
        }
        memory.iterations = memory.iterations.saturating_add(1);
        // It stays where it is until it is told how far it went.
        (memory.direction, memory.step) = (direction, 0.0);
        memory.gradient.clone_from(gradient);
        Ok(slope)
    }
}

impl Memory {
    /// Takes up what the last iteration changed, if its curvature is above 0, in place of the oldest. Returns the gradient's products with all
    /// that is remembered, and with itself at the end. All products are summed over ranks together.
    #[track_caller]
    fn learn(&mut self, ctx: &Context, gradient: &Vector, history: usize) -> Result<Vec<f64>> {
        if self.products.len() < self.pairs.len() {
            let (all, pairs) = (self.vectors(), self.pairs.iter().enumerate());
            let rows: Vec<_> = pairs
                .map(|(i, p)| (&p.gradient, &all[..2 * i + 2]))
                .collect();
            self.products = products(ctx, &rows)?;
        }
        if self.iterations == 0 {
            self.diagonal = 1.0;
            return Ok(products(ctx, &[(gradient, &[gradient])])?.swap_remove(0));
        }
        let pair = Pair {
            parameters: scaled(&self.direction, self.step)?,
            gradient: sum(gradient, &self.gradient, -1.0)?,
            inverse: 0.0,
        };
        let mut all = self.vectors();
        let known = all.len();
        all.extend([&pair.parameters, &pair.gradient, gradient]);
        let rows = [(&pair.gradient, &all[..known + 2]), (gradient, &all[..])];
        let mut found = products(ctx, &rows)?.into_iter();
        let (row, mut along) = (
            found.next().unwrap_or_default(),
            found.next().unwrap_or_default(),
        );
        let (curvature, square) = (row[known], row[known + 1]);
        // NaN is not above it.
        if curvature.is_nan() || curvature <= 1e-10 {
            along.drain(known..known + 2);
            return Ok(along);
        }
        self.diagonal = curvature / square;
        let inverse = 1.0 / curvature;
        self.pairs.push(Pair { inverse, ..pair });
        self.products.push(row);
        let old = self.pairs.len().saturating_sub(history);
        self.pairs.drain(..old);
        self.products.drain(..old);
        for row in self.products.iter_mut().chain([&mut along]) {
            row.drain(..2 * old);
        }
        Ok(along)
    }

    /// What the pairs changed, of parameters and gradients in turn.
    fn vectors(&self) -> Vec<&Vector> {
        let pairs = self.pairs.iter();
        pairs.flat_map(|p| [&p.parameters, &p.gradient]).collect()
    }

    /// The gradient times what is known of the inverse Hessian, downwards, and the slope along that: two passes over what is remembered, by
    /// the products of all vectors, so that only numbers change until the end (Chen, Wang and Zhou, "Large-scale L-BFGS using
    /// MapReduce", 2014).
    fn direction(&self, gradient: &Vector, along: &[f64]) -> Result<(Vector, f64)> {
        let count = self.pairs.len();
        // Of the changes of parameters and of gradients, and of the gradient.
        let (mut steps, mut turns, mut own) = (vec![0.0; count], vec![0.0; count], -1.0);
        for (i, pair) in self.pairs.iter().enumerate().rev() {
            let later = (i + 1..count).map(|j| turns[j] * self.products[j][2 * i]);
            turns[i] = -pair.inverse * (own * along[2 * i] + later.sum::<f64>());
        }
        let found: Vec<f64> = turns.iter().map(|turn| -turn).collect();
        own *= self.diagonal;
        turns.iter_mut().for_each(|turn| *turn *= self.diagonal);
        for (i, pair) in self.pairs.iter().enumerate() {
            let all = (0..count).map(|j| turns[j] * self.products[i.max(j)][2 * i.min(j) + 1]);
            let earlier = (0..i).map(|j| steps[j] * self.products[i][2 * j]);
            let back = own * along[2 * i + 1] + all.sum::<f64>() + earlier.sum::<f64>();
            steps[i] = found[i] - pair.inverse * back;
        }
        let shares = steps.iter().zip(&turns).flat_map(|(a, b)| [*a, *b]);
        let terms = shares
            .clone()
            .zip(along)
            .map(|(share, along)| share * along);
        let slope = own * along[2 * count] + terms.sum::<f64>();
        let first = scaled(gradient, own)?;
        let mut all = self.vectors().into_iter().zip(shares);
        let direction = all.try_fold(first, |direction, (x, by)| sum(&direction, x, by))?;
        Ok((direction, slope))
    }
}

/// Refuses a rate that makes no step.
#[track_caller]
fn check_rate(rate: f64) -> Result<()> {
    match rate.is_finite() && rate >= 0.0 {
        true => Ok(()),
        false => Err(Error::argument(
            "Lbfgs",
            "a learning rate of 0 or more",
            rate.to_string(),
            "choose another rate, as 1",
        )),
    }
}

fn scaled(x: &Vector, by: f64) -> Result<Vector> {
    x.iter().map(|x| x.mul_scalar(by)).collect()
}

/// `x + by y`
fn sum(x: &Vector, y: &Vector, by: f64) -> Result<Vector> {
    let all = x.iter().zip(y);
    all.map(|(x, y)| x.add(&y.mul_scalar(by)?)).collect()
}

/// The product of two vectors, in `f64` and equal on all ranks to the bit.
#[track_caller]
fn product(ctx: &Context, x: &Vector, y: &Vector) -> Result<f64> {
    Ok(products(ctx, &[(x, &[y])])?[0][0])
}

/// The products of some vectors with others each, as [`product`], summed over ranks together.
#[track_caller]
fn products(ctx: &Context, rows: &[(&Vector, &[&Vector])]) -> Result<Vec<Vec<f64>>> {
    let mut terms = Vec::new();
    for (x, y) in rows
        .iter()
        .flat_map(|(x, row)| row.iter().map(move |y| (x, y)))
    {
        for (x, y) in x.iter().zip(*y) {
            let [a, b] = [x, y].map(|x| x.to(DType::F64));
            terms.push((x.value(), a?.mul(&b?)?.sum_all()?.value()));
        }
    }
    let found = over_ranks(ctx, &terms, Monoid::SUM)?;
    let mut terms = found.into_iter();
    let mut product = |x: &Vector| terms.by_ref().take(x.len()).sum();
    let found = rows
        .iter()
        .map(|(x, row)| row.iter().map(|_| product(x)).collect());
    Ok(found.collect())
}

/// The sum of magnitudes, or with an infinite order the largest one. NaN shows.
#[track_caller]
fn size(ctx: &Context, x: &Vector, order: f64) -> Result<f64> {
    let engine = ctx.engine();
    let terms = x.iter().map(|x| {
        let x = x.value().detach();
        let power = power_sum(&**engine, &x, order)?;
        Ok((x, power))
    });
    let terms: Vec<_> = terms.collect::<Result<_>>()?;
    Ok(total(
        order,
        over_ranks(ctx, &terms, joined(order))?.into_iter(),
    ))
}

/// The longest history of which there is a state.
const MOST_LISTED: usize = 10_000;

/// Its tensors are, each with the name of a parameter behind its own, `direction`, `gradient`, and for each iteration that it may remember
/// `parameters.` and `gradients.` and a number, the oldest first; its numbers `learning_rate`, `iterations`, `step`, `diagonal`,
/// `remembered` and for each `inverse.` and the same number. What there is not yet is zeros, so that a file grows with the
/// [history](Lbfgs::history), of which too much is refused.
impl Stateful for Lbfgs {
    #[track_caller]
    fn state(&self) -> Result<State> {
        if self.history > MOST_LISTED {
            return Err(Error::argument(
                "state",
                format!("a history of at most {MOST_LISTED} iterations"),
                self.history.to_string(),
                "remember fewer: a state lists all that may be remembered",
            ));
        }
        let memory = &self.memory;
        let zeros = self.parameters.iter().map(|(_, p)| p.zeros_like());
        let zeros = zeros.collect::<Result<Vector>>()?;
        let mut state = State::default();
        let mut list = |kind: &str, vector: &Vector| {
            let vector = if vector.is_empty() { &zeros } else { vector };
            for ((name, _), x) in self.parameters.iter().zip(vector) {
                state.tensors.push((format!("{kind}.{name}"), x.clone()));
            }
        };
        list("direction", &memory.direction);
        list("gradient", &memory.gradient);
        for i in 0..self.history {
            let pair = memory.pairs.get(i);
            list(
                &format!("parameters.{i}"),
                pair.map_or(&zeros, |p| &p.parameters),
            );
            list(
                &format!("gradients.{i}"),
                pair.map_or(&zeros, |p| &p.gradient),
            );
        }
        let mut note = |name: &str, number| state.numbers.push((name.to_owned(), number));
        note("learning_rate", StateNumber::Real(self.rate));
        note("iterations", StateNumber::Whole(memory.iterations));
        note("step", StateNumber::Real(memory.step));
        note("diagonal", StateNumber::Real(memory.diagonal));
        note("remembered", StateNumber::Whole(memory.pairs.len() as u64));
        for i in 0..self.history {
            let inverse = memory.pairs.get(i).map_or(0.0, |p| p.inverse);
            note(&format!("inverse.{i}"), StateNumber::Real(inverse));
        }
        Ok(state)
    }

    #[track_caller]
    fn load_state(&mut self, state: &State) -> Result<()> {
        let vector = |kind: &str| {
            let all = self.parameters.iter();
            all.map(|(name, p)| Ok(tensor_like(state, &format!("{kind}.{name}"), p)?.detach()))
                .collect::<Result<Vector>>()
        };
        let remembered = whole(state, "remembered")?;
        let pairs = (0..remembered).map(|i| {
            Ok(Pair {
                parameters: vector(&format!("parameters.{i}"))?,
                gradient: vector(&format!("gradients.{i}"))?,
                inverse: real(state, &format!("inverse.{i}"))?,
            })
        });
        let memory = Memory {
            pairs: pairs.collect::<Result<_>>()?,
            products: Vec::new(),
            iterations: whole(state, "iterations")?,
            direction: vector("direction")?,
            step: real(state, "step")?,
            gradient: vector("gradient")?,
            diagonal: real(state, "diagonal")?,
        };
        self.rate = real(state, "learning_rate")?;
        self.memory = memory;
        Ok(())
    }
}

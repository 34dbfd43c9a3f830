//! Steps along a matrix whose singular values are all about one.

use super::options::optimizer;
use super::slots::{Formula, Named, Slots, apply, straight};
use crate::{Result, ShardTensor};
use shard_comm::{Calling, DType};
use shard_ops::optimize::Update;
use shard_ops::{Exec as _, Value};
use shard_spec::Placement;

/// Muon (Jordan and others, 2024), as `torch.optim.Muon`: momentum whose matrix is made orthogonal by a few products, so that a step goes
/// as far in every direction. It is for the matrices inside a model; embeddings, heads, biases and norms are for
/// [`AdamW`](super::AdamW).
///
/// ```
/// use shard_tensor::nn::{Linear, ModelExt, Module, Sequential};
/// use shard_tensor::optim::{AdamW, Muon, Optimizer};
/// use shard_tensor::{launch, shard};
/// let losses = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let model = Sequential::new().then(Linear::new(&mesh, 6, 8)?).then(Linear::new(&mesh, 8, 1)?);
///     let model = model.place(|_, _| shard(0).into())?;
///     let (matrices, rest) = model.parameters().into_iter().partition(|(_, p)| p.ndim() == 2);
///     let (mut muon, mut adam) = (Muon::new(matrices, 0.02)?, AdamW::new(rest, 1e-3)?);
///     let (x, y) = (mesh.randn([16, 6], shard(0))?, mesh.randn([16, 1], shard(0))?);
///     let mut losses = Vec::new();
///     for _ in 0..30 {
///         let loss = model.forward(&x)?.mse_loss(&y)?;
///         let gradients = loss.backward()?;
///         muon.step(&gradients)?;
///         adam.step(&gradients)?;
///         losses.push(loss.item()?);
///     }
///     Ok(losses)
/// })?;
/// assert!(losses[0][29] < losses[0][0]);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
///
/// # Communication
/// Unlike other optimizers it moves data, of sharded matrices: their momentum goes to ranks that hold all of the shorter dim, and back,
/// where it does not lie so; an all-reduce of one number; and for each iteration one of a square as large as the shorter dim. The work is
/// divided as the matrix is. A replicated matrix is made orthogonal by every rank, and nothing moves.
#[derive(Clone, Debug)]
pub struct Muon(Slots<MuonOptions>);

/// How far a step of [`Muon`] goes for a matrix of `r` rows and `c` columns, with a rate of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MuonScale {
    /// By `sqrt(max(1, r / c))`, as its authors do.
    #[default]
    Original,
    /// By `0.2 sqrt(max(r, c))`, so that a step is as long as one of [`AdamW`](super::AdamW), with whose rate and decay it works then (Liu
    /// and others, 2025).
    LikeAdamW,
    /// By `sqrt(r / c)`.
    Spectral,
}

/// The options of [`Muon`] for some parameters.
#[derive(Clone, Copy, Debug)]
pub struct MuonOptions {
    rate: f64,
    momentum: f64,
    nesterov: bool,
    decay: f64,
    coefficients: [f64; 3],
    iterations: usize,
    eps: f64,
    scale: MuonScale,
    dtype: Option<DType>,
}

impl MuonOptions {
    fn new(rate: f64) -> Self {
        Self {
            rate,
            momentum: 0.95,
            nesterov: true,
            decay: 0.1,
            coefficients: [3.4445, -4.775, 2.0315],
            iterations: 5,
            eps: 1e-7,
            scale: MuonScale::Original,
            dtype: None,
        }
    }
}

optimizer! { Muon, MuonOptions, MuonOptions::new;
    /// How slowly the mean of gradients forgets; 0.95 at first.
    momentum(momentum: f64) |o| o.momentum = momentum;
    /// Whether the step looks ahead along the mean (Nesterov). At first it does.
    nesterov(on: bool) |o| o.nesterov = on;
    /// What share of itself, times the learning rate, a parameter loses per step; 0.1 at first.
    weight_decay(decay: f64) |o| o.decay = decay;
    /// How far a step goes; [`MuonScale::Original`] at first.
    scale(scale: MuonScale) |o| o.scale = scale;
    /// How many times a matrix `x` becomes `a x + (b g + c g²) x`, where `g` is `x xᵀ`; 5 at first, and below 100.
    iterations(count: usize) |o| o.iterations = count;
    /// The three numbers of an iteration; 3.4445, -4.775 and 2.0315 at first, which bring singular values to about 0.7 to 1.2.
    coefficients(a: f64, b: f64, c: f64) |o| o.coefficients = [a, b, c];
    /// What a matrix is divided by if its norm is less; 1e-7 at first.
    eps(eps: f64) |o| o.eps = eps;
    /// The type that products are computed in; that of the parameter at first, where PyTorch takes `bf16`.
    products_in(dtype: DType) |o| o.dtype = Some(dtype);
}

impl Formula for MuonOptions {
    fn limits(&self) -> [Vec<Named>; 2] {
        let any = vec![
            ("learning rate", self.rate),
            ("weight decay", self.decay),
            ("eps", self.eps),
        ];
        [any, vec![("momentum", self.momentum)]]
    }

    fn conflict(&self) -> Option<(&'static str, String, &'static str)> {
        if self.iterations >= 100 {
            let got = format!("{} iterations", self.iterations);
            return Some(("fewer than 100 iterations", got, "take about 5"));
        }
        let dtype = self.dtype.filter(|dtype| !dtype.is_float())?;
        let fix = "compute products in bf16, f16, f32 or f64";
        Some(("products of floating-point numbers", dtype.to_string(), fix))
    }

    fn refused(&self, shape: &[usize]) -> Option<(&'static str, &'static str)> {
        let fix =
            "give it matrices, as of `|(_, p)| p.ndim() == 2`, and AdamW all other parameters";
        (shape.len() != 2).then_some(("matrices", fix))
    }

    fn states(&self, _shape: &[usize]) -> &'static [&'static str] {
        &["momentum_buffer"]
    }

    /// Along what stands in the gradient's place.
    fn update(&self, _step: u64) -> Update {
        straight(self.rate, self.decay)
    }

    #[track_caller]
    fn take(
        &self,
        step: u64,
        parameter: &ShardTensor,
        gradient: &Value,
        state: &[Value],
    ) -> Result<Vec<Value>> {
        // `b` joins `a`, of which this share stays.
        let mean = |keep, a: &Value, b: &Value| {
            let mut found = apply(parameter, Update::Average { keep }, a, b, &[])?;
            Ok::<_, crate::Error>(found.swap_remove(0))
        };
        let momentum = mean(self.momentum, &state[0], gradient)?;
        let ahead = match self.nesterov {
            true => mean(1.0 - self.momentum, gradient, &momentum)?,
            false => momentum.clone(),
        };
        let context = parameter.context();
        // In the type that was asked for, whatever region the program takes its step in.
        let direction = context.no_grad(|| {
            context.autocast(DType::F32, || {
                self.orthogonal(&parameter.lift(ahead.detach()))
            })
        })?;
        let direction = context
            .tape()
            .redistribute(&direction.value(), parameter.layout())?;
        let old = parameter.value();
        let mut new = apply(parameter, self.update(step), &old, &direction, &[])?;
        new.push(momentum);
        Ok(new)
    }
}

impl MuonOptions {
    /// A matrix of the same singular vectors, whose singular values are about the length of a step: the iteration of Newton and Schulz.
    /// It lies where the products were formed.
    #[track_caller]
    fn orthogonal(&self, matrix: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::of("step");
        let [rows, columns] = [0, 1].map(|dim| matrix.shape()[dim]);
        let turned = |x: &ShardTensor| match rows > columns {
            true => x.transpose(0, 1),
            false => Ok(x.clone()),
        };
        let wide = in_columns(&turned(matrix)?)?.normalize(2.0, .., self.eps)?;
        let mut x = wide.to(self.dtype.unwrap_or(matrix.dtype()))?;
        let [a, b, c] = self.coefficients;
        for _ in 0..self.iterations {
            let square = x.matmul(&x.transpose(0, 1)?)?.reduced()?;
            let by = square.addmm(&square, &square, b, c)?;
            x = x.addmm(&by, &x, a, 1.0)?;
        }
        let length = self.scale.length(rows as f64, columns as f64);
        turned(&x.to(matrix.dtype())?)?.mul_scalar(length)
    }
}

impl MuonScale {
    fn length(self, rows: f64, columns: f64) -> f64 {
        match self {
            Self::Original => (rows / columns).max(1.0).sqrt(),
            Self::LikeAdamW => 0.2 * rows.max(columns).sqrt(),
            Self::Spectral => (rows / columns).sqrt(),
        }
    }
}

/// Moved so that whatever divides a matrix divides its columns: products of rows are then sums over ranks, and nothing else moves.
#[track_caller]
fn in_columns(x: &ShardTensor) -> Result<ShardTensor> {
    let placements = x.placements();
    if placements.iter().all(|p| p.shard_dim() != Some(0)) {
        return Ok(x.clone());
    }
    let columns = placements.iter().map(|p| match p.shard_dim() {
        Some(_) => Placement::Shard(1),
        None => Placement::Replicate,
    });
    x.redistribute(columns.collect::<Vec<_>>())
}

//! Where a token is.

use super::{Leaf, LeafMut, Module, Tree};
use crate::{Error, Mesh, Placements, Result, Shape, ShardTensor, tree};
use shard_comm::{Call, Calling};
use shard_ops::fused;

/// Adds to each token a vector that is learned for its place. Ranks that hold a part of the tokens add those of that part. Fewer
/// tokens than places have the first ones, along each dim of a grid.
#[derive(Clone, Debug)]
pub struct PositionEmbedding {
    /// `[places..., width]`, normal of deviation 0.02 at first.
    pub weight: ShardTensor,
}

impl PositionEmbedding {
    /// A vector of so many features for each place of a grid.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// If the sizes are too large for an array.
    #[track_caller]
    pub fn new(mesh: &Mesh, places: impl Into<Shape>, width: usize) -> Result<Self> {
        let shape: Vec<usize> = places.into().iter().copied().chain([width]).collect();
        let weight = mesh.randn(shape, Placements::replicated())?;
        Ok(Self {
            weight: weight.mul_scalar(0.02)?.requires_grad()?,
        })
    }

    /// As [`forward`](Module::forward), of tokens from this place on, a number for each dim of the grid: what decoding with a
    /// cache of keys and values has, a token at a time.
    ///
    /// # Collective
    /// All members of the mesh, with the same place.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for tokens beyond the last place, and of other dims or features.
    #[track_caller]
    pub fn forward_at(&self, x: &ShardTensor, start: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("PositionEmbedding");
        x.add(&at_places(
            "PositionEmbedding",
            (&self.weight, width(&self.weight)),
            x,
            &start.into(),
        )?)
    }
}

tree!(PositionEmbedding { weight });

impl Module for PositionEmbedding {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.forward_at(x, origin(&self.weight))
    }
}

/// Adds to each token sines and cosines of its place, whose wavelengths go from 2π to 10000 · 2π.
///
/// On a grid of several dims each gets its share of the features, the last dim the last one. Fewer tokens than places have the first
/// ones, along each dim.
///
/// ```
/// use shard_tensor::nn::{Module, SinCos};
/// use shard_tensor::{launch, shard};
/// let codes = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let codes = SinCos::new(&mesh, 3, 2)?.forward(&mesh.zeros([1, 3, 2], shard(1))?)?;
///     codes.expect_layout(shard(1))?;
///     codes.to_array::<f32>()
/// })?;
/// assert_eq!(codes[0].as_slice().map(|c| c[4]), Some(2f32.sin()));
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SinCos {
    table: ShardTensor,
}

impl SinCos {
    /// For tokens on a grid of these places, with so many features.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) unless the features divide by twice the number of the grid's dims.
    #[track_caller]
    pub fn new(mesh: &Mesh, places: impl Into<Shape>, width: usize) -> Result<Self> {
        let places = places.into();
        let dims = places.len();
        if dims == 0 || !width.is_multiple_of(2 * dims) {
            return Err(Error::argument(
                "SinCos",
                "features that divide by twice the number of dims",
                format!("{width} for {dims} dims"),
                "give each dim as many sines as cosines",
            ));
        }
        let (shape, each) = (places.iter().copied().chain([width]), width / dims / 2);
        let code = |at: &[usize]| {
            let (dim, feature) = (at[dims] / (2 * each), at[dims] % (2 * each));
            let angle = at[dim] as f64 * frequency(10_000.0, feature % each, each);
            if feature < each {
                angle.sin()
            } else {
                angle.cos()
            }
        };
        let table = mesh.from_fn(shape.collect::<Vec<_>>(), Placements::replicated(), code)?;
        Ok(Self { table })
    }

    /// As [`PositionEmbedding::forward_at`].
    ///
    /// # Collective
    /// As [`PositionEmbedding::forward_at`].
    ///
    /// # Errors
    /// As [`PositionEmbedding::forward_at`].
    #[track_caller]
    pub fn forward_at(&self, x: &ShardTensor, start: impl Into<Shape>) -> Result<ShardTensor> {
        let _call = Calling::of("SinCos");
        let table = (&self.table, width(&self.table));
        x.add(&at_places("SinCos", table, x, &start.into())?)
    }
}

/// It follows from its sizes, so it is no part of a model's state.
impl Tree for SinCos {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        Vec::new()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        Vec::new()
    }
}

impl Module for SinCos {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.forward_at(x, origin(&self.table))
    }
}

/// Turns pairs of features of queries or keys by angles that grow with the place of the token, so that products see how far
/// apart they are: rotary embedding, with the pairs that Llama has, a feature of the first half with one of the second. Fewer tokens
/// than it is made for have the first places.
///
/// ```
/// use shard_tensor::nn::{Module, Rotary};
/// use shard_tensor::{launch, shard};
/// launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     let queries = mesh.randn([1, 2, 5, 4], shard(2))?;             // [batch, heads, tokens, features]
///     let turned = Rotary::new(&mesh, 5, 4)?.forward(&queries)?;
///     turned.expect_layout(shard(2))?;                             // nothing has moved
///     let length = |x: &shard_tensor::ShardTensor| x.square()?.sum_all()?.item();
///     assert!((length(&turned)? - length(&queries)?).abs() < 1e-4);
///
///     // Decoding: the fifth token alone, behind four whose keys are kept.
///     let last = Rotary::new(&mesh, 8, 4)?.forward_at(&queries.narrow(2, 4..5)?, 4)?;
///     assert_eq!(last.to_array::<f32>()?, turned.narrow(2, 4..5)?.to_array::<f32>()?);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rotary {
    cos: ShardTensor,
    sin: ShardTensor,
}

impl Rotary {
    /// For so many tokens and features, with wavelengths up to 10000 · 2π.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for an odd number of features.
    #[track_caller]
    pub fn new(mesh: &Mesh, tokens: usize, features: usize) -> Result<Self> {
        Self::with_tables(mesh, [tokens, features], 10_000.0)
    }

    /// With wavelengths up to this number times 2π, as 500 000 for Llama 3.
    ///
    /// ```
    /// use shard_tensor::{launch, nn::{Module, Rotary}, replicate};
    /// let turned = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.from_fn([3, 4], replicate(), |i| if i[1] == 1 { 1.0 } else { 0.0 })?;
    ///     Rotary::new(&mesh, 8, 4)?.base(500_000.0)?.forward(&x)?.to_array::<f32>()
    /// })?;
    /// let angle = 2.0 * 500_000f64.powf(-0.5);
    /// assert!((f64::from(turned[0][[2, 1]]) - angle.cos()).abs() < 1e-6);
    /// assert!((f64::from(turned[0][[2, 3]]) - angle.sin()).abs() < 1e-6);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh, with the same number. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for a number that is not above 0, or not finite.
    #[track_caller]
    pub fn base(self, base: f64) -> Result<Self> {
        if !(base > 0.0 && base.is_finite()) {
            return Err(Error::argument(
                "Rotary",
                "a finite base above 0",
                base.to_string(),
                "give the ratio of the longest wavelength to the shortest, as 10000",
            ));
        }
        let sizes = [self.cos.shape()[0], 2 * self.cos.shape()[1]];
        Self::with_tables(&self.cos.mesh(), sizes, base)
    }

    /// With the cosines and sines for `[tokens, features]`, each for a pair of features.
    #[track_caller]
    fn with_tables(mesh: &Mesh, [tokens, features]: [usize; 2], base: f64) -> Result<Self> {
        let _call = Calling::of("Rotary");
        if !features.is_multiple_of(2) {
            return Err(Error::argument(
                "Rotary",
                "an even number of features",
                features.to_string(),
                "they are turned in pairs",
            ));
        }
        let half = features / 2;
        let angle = |at: &[usize]| at[0] as f64 * frequency(base, at[1], half);
        let (sizes, everywhere) = ([tokens, half].into(), Placements::replicated());
        let call = Call::new("Rotary").with(base.to_bits().into());
        let table = |f: fn(f64) -> f64| mesh.filled(&call, &sizes, &everywhere, &|at| f(angle(at)));
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }

    /// As [`forward`](Module::forward), of tokens from this place on: what decoding with a cache of keys and values has, a token at a
    /// time.
    ///
    /// # Collective
    /// All members of the mesh, with the same place.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for tokens beyond the last place, and of other features.
    #[track_caller]
    pub fn forward_at(&self, x: &ShardTensor, start: usize) -> Result<ShardTensor> {
        let _call = Calling::of("Rotary");
        let features = 2 * self.cos.shape()[1];
        let [cos, sin] =
            [&self.cos, &self.sin].map(|table| at_places("Rotary", (table, features), x, &[start]));
        let (cos, sin) = (cos?.value(), sin?.value());
        let pairs = x.unflatten(-1, [2, self.cos.shape()[1]])?;
        let tape = x.context().tape();
        let turned = pairs.lift(fused::rotary(tape, &pairs.value(), [&cos, &sin])?);
        turned.flatten_dims(-2, -1)
    }
}

/// It follows from its sizes, so it is no part of a model's state.
impl Tree for Rotary {
    fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
        Vec::new()
    }

    fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
        Vec::new()
    }
}

impl Module for Rotary {
    /// Of `[..., tokens, features]`.
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        self.forward_at(x, 0)
    }
}

/// What tokens `[..., places..., features]` from these places on have of a table of `[places..., numbers]`.
#[track_caller]
fn at_places(
    layer: &'static str,
    (table, features): (&ShardTensor, usize),
    x: &ShardTensor,
    start: &[usize],
) -> Result<ShardTensor> {
    let dims = table.shape().split_last().map_or(&[][..], |(_, dims)| dims);
    let lead = x.ndim().saturating_sub(table.ndim());
    let tokens = x.shape().get(lead..x.ndim().saturating_sub(1));
    let tokens = tokens.unwrap_or_default();
    let beyond = |(&at, (&n, &places)): (&usize, (&usize, &usize))| {
        at.checked_add(n).is_none_or(|end| end > places)
    };
    if tokens.len() != dims.len()
        || start.len() != dims.len()
        || x.shape().last() != Some(&features)
        || start.iter().zip(tokens.iter().zip(dims)).any(beyond)
    {
        return Err(Error::argument(
            layer,
            format!("tokens of {features} features on at most {dims:?} places"),
            format!("shape {:?} from place {start:?} on", x.shape()),
            "make the layer for as many places as there will be tokens",
        ));
    }
    let mut table = table.clone();
    for (dim, (&at, &n)) in start.iter().zip(tokens).enumerate() {
        if n < table.shape()[dim] {
            table = table.narrow(dim, at..at + n)?;
        }
    }
    Ok(table)
}

/// How many numbers a table has for each place.
fn width(table: &ShardTensor) -> usize {
    table.shape().last().copied().unwrap_or_default()
}

/// The first place of a table.
fn origin(table: &ShardTensor) -> Vec<usize> {
    vec![0; table.ndim().saturating_sub(1)]
}

/// What a place is multiplied by in feature `i` of `n`.
fn frequency(base: f64, i: usize, n: usize) -> f64 {
    base.powf(-(i as f64) / n as f64)
}

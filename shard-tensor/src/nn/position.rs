//! Where a token is.

use super::{Leaf, LeafMut, Module, Tree};
use crate::{Error, Mesh, Placements, Result, Shape, ShardTensor, tree};

/// Adds to each token a vector that is learned for its place. Ranks that hold a part of the tokens add those of that part.
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
}

tree!(PositionEmbedding { weight });

impl Module for PositionEmbedding {
    #[track_caller]
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        x.add(&self.weight)
    }
}

/// Adds to each token sines and cosines of its place, whose wavelengths go from 2π to 10000 · 2π.
///
/// On a grid of several dims each gets its share of the features, the last dim the last one.
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
            let angle = at[dim] as f64 * frequency(feature % each, each);
            if feature < each {
                angle.sin()
            } else {
                angle.cos()
            }
        };
        let table = mesh.from_fn(shape.collect::<Vec<_>>(), Placements::replicated(), code)?;
        Ok(Self { table })
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
        x.add(&self.table)
    }
}

/// Turns pairs of features of queries or keys by angles that grow with the place of the token, so that products see how far
/// apart they are: rotary embedding, with the pairs that Llama has, a feature of the first half with one of the second.
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
    /// For so many tokens and features.
    ///
    /// # Collective
    /// All members of the mesh. No communication.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for an odd number of features.
    #[track_caller]
    pub fn new(mesh: &Mesh, tokens: usize, features: usize) -> Result<Self> {
        if !features.is_multiple_of(2) {
            return Err(Error::argument(
                "Rotary",
                "an even number of features",
                features.to_string(),
                "they are turned in pairs",
            ));
        }
        let half = features / 2;
        let angle = |at: &[usize]| at[0] as f64 * frequency(at[1] % half, half);
        let table = |f: fn(f64) -> f64| {
            mesh.from_fn([tokens, features], Placements::replicated(), |at| {
                f(angle(at))
            })
        };
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
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
        let (last, features) = (x.ndim().saturating_sub(1), self.cos.shape()[1]);
        let [first, second] = [0..features / 2, features / 2..features];
        let second = x.narrow(last, second)?.neg()?;
        let turned = ShardTensor::cat(&[&second, &x.narrow(last, first)?], last)?;
        x.mul(&self.cos)?.add(&turned.mul(&self.sin)?)
    }
}

/// What a place is multiplied by in feature `i` of `n`.
fn frequency(i: usize, n: usize) -> f64 {
    10_000f64.powf(-(i as f64) / n as f64)
}

//! The ranks' own pieces as tensors: for code that is written for one piece.

use crate::{Context, Error, LocalSizes, Mesh, Placements, Result, ShardTensor};
use shard_autograd::{AutogradError, GradAs};
use shard_comm::Calling;
use shard_ops::Value;
use shard_spec::Layout;

/// This rank's piece, and the whole on every rank.
impl ShardTensor {
    /// This rank's piece as a tensor on this rank alone. Nothing is copied or sent.
    ///
    /// It stays on the tape: code written for one piece has its gradient, as long as it uses ops; to read the
    /// numbers, use [`to_local_array`](Self::to_local_array). Of a partial tensor the piece is this rank's term.
    /// [`Mesh::wrap_local`] is the way back, and [`Context::map_local`] goes both ways at once. A rank outside
    /// the mesh gets a tensor without data.
    ///
    /// The gradient takes the ranks to have done the same with their copies of what is replicated; see
    /// [`to_local_with`](Self::to_local_with).
    ///
    /// # Collective
    /// No communication, but all ranks of the program: the gradient is taken together.
    ///
    /// # Errors
    /// None in practice.
    ///
    /// ```
    /// use shard_tensor::{LocalSizes, launch, shard};
    /// // By hand: how far each element is from the mean of its rank's piece, squared.
    /// let slopes = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let x = mesh.arange(5, [shard(0).sizes([2, 3])])?.requires_grad()?;
    ///     let piece = x.to_local()?;
    ///     let mean = piece.mean(&[0], true)?;
    ///     let y = mesh.wrap_local(&piece.sub(&mean)?.square()?, x.layout(), LocalSizes::Global(5.into()))?;
    ///     let slope = y.sum_all()?.backward()?.get(&x)?.expect("y depends on x");
    ///     slope.to_array::<f32>()
    /// })?;
    /// assert_eq!(slopes[0], ndarray::arr1(&[-1.0, 1.0, -2.0, 0.0, 2.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to_local(&self) -> Result<Self> {
        self.to_local_with(GradAs::Replicate)
    }

    /// As [`to_local`](Self::to_local), saying what the gradients of the copies of a replicated tensor are.
    ///
    /// With [`GradAs::Partial`] they are terms of a sum, for ranks that do different things with their copies.
    ///
    /// # Collective
    /// As [`to_local`](Self::to_local).
    ///
    /// # Errors
    /// As [`to_local`](Self::to_local).
    ///
    /// ```
    /// use shard_tensor::{GradAs, launch, replicate};
    /// let slopes = launch(3, |ctx| {
    ///     let w = ctx.mesh_of(3)?.ones([1], [replicate()])?.requires_grad()?;
    ///     let loss = (w.to_local_with(GradAs::Partial)? * (ctx.rank() + 1) as f64).sum_all()?;
    ///     loss.backward()?.get(&w)?.expect("the loss depends on w").item()
    /// })?;
    /// assert_eq!(slopes, [6.0; 3]); // 1 + 2 + 3
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn to_local_with(&self, grad: GradAs) -> Result<Self> {
        let _call = Calling::of("to_local");
        Ok(self.lift(self.context().tape().to_local(&self.value(), grad)?))
    }

    /// As [`full_tensor`](Self::full_tensor), saying what the gradients of the copies are: with
    /// [`GradAs::Partial`], terms of a sum.
    ///
    /// # Collective
    /// All members of its mesh.
    ///
    /// # Errors
    /// What the communicator reports.
    #[track_caller]
    pub fn full_tensor_with(&self, grad: GradAs) -> Result<Self> {
        let _call = Calling::of("full_tensor_with");
        Ok(self.lift(self.context().tape().full_tensor(&self.value(), grad)?))
    }
}

impl Mesh {
    /// Makes a tensor of the ranks' pieces: the way back from [`ShardTensor::to_local`], on the tape.
    ///
    /// Copies of one piece are trusted to be equal. As [`from_local`](Self::from_local) otherwise.
    ///
    /// # Collective
    /// All ranks of the program, with the same placements. Which parameters a piece depends on must not depend on
    /// the rank; where it does, use [`Context::map_local`].
    ///
    /// # Errors
    /// An agreed error naming the lowest rank whose piece does not fit what the others have, or the sizes given, or
    /// is no tensor of this rank alone; as [`Placements::layout`]; a mismatch if ranks disagree on placements, type
    /// or number of dims, or on whether the piece has a gradient.
    #[track_caller]
    pub fn wrap_local(
        &self,
        piece: &ShardTensor,
        placements: impl Into<Placements>,
        sizes: LocalSizes,
    ) -> Result<ShardTensor> {
        let _call = Calling::of("wrap_local");
        const OP: &str = "wrap_local";
        let placements = placements.into();
        let (dtype, ndim) = (piece.dtype(), piece.ndim());
        let words = format!("{dtype} of {ndim} dims, {placements:?} {sizes:?}");
        let world = self.context().world();
        world.check_uniform_as(OP, shard_ops::key_of(OP, &words), || words)?;
        let layout = match sizes {
            LocalSizes::Global(shape) => self.layout(shape, placements)?,
            LocalSizes::Infer => self.infer(piece.shape(), &placements)?,
        };
        let tape = self.context().tape();
        Ok(piece.lift(tape.from_local(&piece.value(), self.comm(), &layout)?))
    }
}

impl Context {
    /// Applies a function written for one piece: redistributes `inputs` to their placements, hands `f` this rank's
    /// pieces, and makes tensors with the layouts `outputs` of what it returns.
    ///
    /// This is the way to use code that knows nothing of ranks, or to do by hand what no op does. The pieces are
    /// tensors on this rank alone, and what `f` does with ops has its gradient. Gradients of replicated inputs are
    /// summed over the ranks along mesh axes that shard an output, or make it a sum; along axes that replicate all
    /// outputs every rank must compute the same. Ranks may use their pieces differently, or not at all, as when a
    /// piece is empty.
    ///
    /// What `f` does otherwise, as with [`to_local_array`](ShardTensor::to_local_array), has no gradient. That of an input
    /// would be lost in silence, so it is an error, unless it is said that none is wanted: by calling this in
    /// [`no_grad`](Self::no_grad), or with the input [detached](ShardTensor::detach).
    /// [`map_local_with_grad`](Self::map_local_with_grad) takes a derivative written by hand.
    ///
    /// On a rank outside the mesh `f` gets tensors without data; if reading them makes it fail, its outputs are taken
    /// to have the type of the first input.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`Placements::layout`]; [`Autograd`](Error::Autograd) for a wrong number of placements or tensors of
    /// different meshes; an agreed error naming the lowest rank on which `f` fails, returns pieces that do not fit, or reads
    /// a tracked piece without using it on the tape; the same error on all ranks for a tracked input no rank uses.
    ///
    /// ```
    /// use shard_tensor::{launch, replicate, shard};
    /// // Every rank scales the rows it has to sum to one, and weighs their elements.
    /// let shares = launch(3, |ctx| {
    ///     let mesh = ctx.mesh_of(3)?;
    ///     let x = mesh.from_fn([4, 2], [shard(0)], |i| (2 * i[0] + i[1] + 1) as f64)?;
    ///     let w = mesh.from_fn([2], [replicate()], |i| i[0] as f64)?.requires_grad()?;
    ///     let [rows, whole] = [[shard(0)], [replicate()]];
    ///     let y = ctx.map_local(&[&x, &w], [rows, whole], &[x.layout()], |pieces| {
    ///         let [x, w] = pieces else { unreachable!("two inputs") };
    ///         if x.numel() == 0 {
    ///             return Ok(vec![x.clone()]);
    ///         }
    ///         Ok(vec![x.div(&x.sum(&[1], true)?)?.mul(w)?])
    ///     })?;
    ///     let slope = y[0].sum_all()?.backward()?.get(&w)?.expect("y depends on w");
    ///     slope.sum_all()?.item()
    /// })?;
    /// assert!((shares[0] - 4.0).abs() < 1e-6); // four rows that sum to one
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn map_local<P: Into<Placements>>(
        &self,
        inputs: &[&ShardTensor],
        placements: impl IntoIterator<Item = P>,
        outputs: &[&Layout],
        f: impl FnOnce(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
    ) -> Result<Vec<ShardTensor>> {
        let _call = Calling::of("map_local");
        let layouts = layouts_of("map_local", inputs, placements)?;
        let values: Vec<Value> = inputs.iter().map(|t| t.value()).collect();
        let results = self.tape().map_local(
            &values.iter().collect::<Vec<_>>(),
            &layouts.iter().collect::<Vec<_>>(),
            outputs,
            |_, pieces| {
                let results = f(&self.lifted(pieces)).map_err(into_autograd)?;
                Ok(results.iter().map(ShardTensor::value).collect())
            },
        )?;
        Ok(self.lifted(&results))
    }

    /// As [`map_local`](Self::map_local), for a function that leaves the tape: `forward` may compute through arrays, other
    /// libraries or files, and `backward` says what its derivative is.
    ///
    /// `backward` gets this rank's pieces of the inputs, of the outputs, and of the outputs' gradients. It gives one
    /// gradient per input, of that piece's shape and type, or `None` for zeros. How the gradients of copies combine is seen
    /// to. What it gives is not differentiated again.
    ///
    /// # Collective
    /// All ranks of the program.
    ///
    /// # Errors
    /// As [`map_local`](Self::map_local), but that neither function is called outside the mesh; in a backward pass an agreed error naming the lowest rank on which `backward`
    /// fails or gives what does not fit.
    ///
    /// ```
    /// use shard_tensor::{Placements, ShardTensor, launch, shard};
    /// // Squares, by hand.
    /// fn zip(x: &ShardTensor, y: &ShardTensor, f: fn(f32, f32) -> f32) -> shard_tensor::Result<ShardTensor> {
    ///     let (mut out, y) = (x.to_local_array::<f32>()?, y.to_local_array::<f32>()?);
    ///     out.zip_mut_with(&y, |x, y| *x = f(*x, *y));
    ///     x.mesh().distribute(&out, Placements::replicated())
    /// }
    /// let slopes = launch(2, |ctx| {
    ///     let x = ctx.mesh_of(2)?.arange(4, [shard(0)])?.requires_grad()?;
    ///     let y = ctx.map_local_with_grad(
    ///         &[&x],
    ///         [x.layout()],
    ///         &[x.layout()],
    ///         |x| Ok(vec![zip(&x[0], &x[0], |a, b| a * b)?]),
    ///         |x, _, dy| Ok(vec![Some(zip(&x[0], &dy[0], |a, g| 2.0 * a * g)?)]),
    ///     )?;
    ///     let slope = y[0].sum_all()?.backward()?.get(&x)?.expect("y depends on x");
    ///     slope.to_array::<f32>()
    /// })?;
    /// assert_eq!(slopes[1], ndarray::arr1(&[0.0, 2.0, 4.0, 6.0]).into_dyn());
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn map_local_with_grad<P: Into<Placements>>(
        &self,
        inputs: &[&ShardTensor],
        placements: impl IntoIterator<Item = P>,
        outputs: &[&Layout],
        forward: impl FnOnce(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
        backward: impl Fn(
            &[ShardTensor],
            &[ShardTensor],
            &[ShardTensor],
        ) -> Result<Vec<Option<ShardTensor>>>
        + 'static,
    ) -> Result<Vec<ShardTensor>> {
        let _call = Calling::of("map_local_with_grad");
        let layouts = layouts_of("map_local_with_grad", inputs, placements)?;
        let values: Vec<Value> = inputs.iter().map(|t| t.value()).collect();
        let ctx = self.clone();
        let results = self.tape().map_local_with_grad(
            &values.iter().collect::<Vec<_>>(),
            &layouts.iter().collect::<Vec<_>>(),
            outputs,
            |_, pieces| {
                let results = forward(&self.lifted(pieces)).map_err(into_autograd)?;
                Ok(results.iter().map(ShardTensor::value).collect())
            },
            move |_, inputs, outputs, cotangents| {
                let [inputs, outputs, cotangents] =
                    [inputs, outputs, cotangents].map(|values| ctx.lifted(values));
                let terms = backward(&inputs, &outputs, &cotangents).map_err(into_autograd)?;
                Ok(terms.into_iter().map(|t| t.map(|t| t.value())).collect())
            },
        )?;
        Ok(self.lifted(&results))
    }

    pub(crate) fn lifted(&self, values: &[Value]) -> Vec<ShardTensor> {
        values
            .iter()
            .map(|v| ShardTensor::new(self, v.clone()))
            .collect()
    }
}

/// The layouts that placements give the inputs of a function of pieces.
#[track_caller]
fn layouts_of<P: Into<Placements>>(
    op: &'static str,
    inputs: &[&ShardTensor],
    placements: impl IntoIterator<Item = P>,
) -> Result<Vec<Layout>> {
    let placements: Vec<Placements> = placements.into_iter().map(Into::into).collect();
    if placements.len() != inputs.len() {
        return Err(Error::argument(
            op,
            format!("placements for {} inputs", inputs.len()),
            format!("{} of them", placements.len()),
            "give placements for each input; its own layout for one that is not to move",
        ));
    }
    let layouts = (inputs.iter().zip(&placements))
        .map(|(x, p)| p.layout(x.layout().mesh(), x.shape()))
        .collect::<Result<Vec<_>>>()?;
    if let Some(i) =
        (0..inputs.len()).find(|&i| layouts[i].is_partial() && layouts[i] != *inputs[i].layout())
    {
        return Err(Error::argument(
            op,
            "shards and replicas, or a partial tensor's own layout",
            format!("{} for input {i}", layouts[i]),
            "partial values are the results of ops; take the pieces of a replica or a shard",
        ));
    }
    Ok(layouts)
}

/// An error of the caller's function as one of the crate that calls it.
pub(crate) fn into_autograd(error: Error) -> AutogradError {
    match error {
        Error::Spec(e) => e.into_error().into(),
        Error::Comm(e) => e.into(),
        Error::Redistribute(e) => e.into_error().into(),
        Error::Op(e) => e.into_error().into(),
        Error::Autograd(e) => e.into_error(),
        other => AutogradError::external(&other, other.class()),
    }
}

//! The softmax of many classes in clusters.

use super::{Linear, Module};
use crate::{ClassLoss, Error, LossReduction, Mesh, Result, ShardTensor, tree};
use shard_comm::Calling;

const NAME: &str = "AdaptiveLogSoftmax";

/// The logarithms of probabilities of many classes, the frequent ones first, of which the rarer share clusters: each has a projection of its own,
/// narrower the rarer its classes are (Grave and others, 2017). `torch.nn.AdaptiveLogSoftmaxWithLoss`, with its names.
///
/// A cluster sees those rows alone whose class is in it, so that most cost what the frequent classes do. With weights in pieces classes are divided
/// over ranks, as in [`linear_cross_entropy`](ShardTensor::linear_cross_entropy).
///
/// ```
/// use shard_tensor::nn::{AdaptiveLogSoftmax, ModelExt};
/// use shard_tensor::{launch, shard};
/// launch(3, |ctx| {
///     let mesh = ctx.mesh_of(3)?;
///     // Ten frequent classes, and clusters of 20 and of 70.
///     let softmax = AdaptiveLogSoftmax::new(&mesh, 16, 100, &[10, 30], 4.0)?;
///     let (hidden, next) = (mesh.randn([7, 16], shard(0))?, mesh.randint([7], 0..100, shard(0))?);
///     let (found, loss) = softmax.forward(&hidden, &next)?;
///     let all = softmax.log_prob(&hidden)?; // [rows, classes]
///     assert!(all.gather(1, &next.unsqueeze(1)?)?.squeeze(1)?.allclose(&found, 1e-5, 1e-5, false)?);
///     assert_eq!(loss.grad1(&softmax.head.weight, false)?.shape(), [12, 16]);
///     assert_eq!(softmax.predict(&hidden)?.shape(), [7]);
///     let names: Vec<String> = softmax.parameters().into_iter().map(|p| p.0).collect();
///     assert_eq!(names, ["head.weight", "tail.0.0.weight", "tail.0.1.weight", "tail.1.0.weight", "tail.1.1.weight"]);
///     Ok(())
/// })?;
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdaptiveLogSoftmax {
    /// Where the frequent classes, and each cluster, end.
    ends: Vec<usize>,
    /// Of the frequent classes, and of one more for each cluster.
    pub head: Linear,
    /// Of each cluster a projection, and what makes its classes of that.
    pub tail: Vec<[Linear; 2]>,
}

impl AdaptiveLogSoftmax {
    /// A layer of rows of so many features. Clusters begin at the `cutoffs`, below the first of which are the frequent classes; each projection is
    /// `div_value` times as narrow as the one before, 4 in PyTorch if not said.
    ///
    /// # Collective
    /// All ranks of the program: it draws random numbers.
    ///
    /// # Errors
    /// [`Argument`](Error::Argument) for cutoffs that do not rise from above 0 to below the number of classes; if the sizes are too large for
    /// arrays.
    #[track_caller]
    pub fn new(
        mesh: &Mesh,
        features: usize,
        classes: usize,
        cutoffs: &[usize],
        div_value: f64,
    ) -> Result<Self> {
        let _call = Calling::throughout(NAME);
        let ends = [cutoffs, &[classes]].concat();
        let rises = ends.windows(2).all(|pair| pair[0] < pair[1]);
        if cutoffs.is_empty() || ends[0] == 0 || !rises {
            return Err(Error::argument(
                NAME,
                format!("cutoffs that rise from above 0 to below {classes}"),
                format!("{cutoffs:?}"),
                "name the class at which each cluster begins",
            ));
        }
        let tail = ends.windows(2).zip(1..).map(|(pair, k)| {
            let width = (features as f64 / div_value.powi(k)) as usize;
            let narrow = Linear::new(mesh, features, width)?.without_bias();
            let classes = Linear::new(mesh, width, pair[1] - pair[0])?.without_bias();
            Ok([narrow, classes])
        });
        let head = Linear::new(mesh, features, ends[0] + cutoffs.len())?.without_bias();
        let tail = tail.collect::<Result<_>>()?;
        Ok(Self { ends, head, tail })
    }

    /// The layer with a bias of the frequent classes and the clusters, `head_bias` of PyTorch; the head is drawn anew.
    ///
    /// # Collective
    /// As [`new`](Self::new).
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Argument`](Error::Argument) if the head's weight was replaced by what is no matrix.
    #[track_caller]
    pub fn head_bias(self) -> Result<Self> {
        let _call = Calling::throughout(NAME);
        let weight = &self.head.weight;
        let &[outputs, features] = weight.shape() else {
            return Err(Error::argument(
                NAME,
                "a head whose weight is a matrix",
                format!("{:?}", weight.shape()),
                "ask for the bias before the weight is replaced",
            ));
        };
        let head = Linear::new(&weight.mesh(), features, outputs)?;
        Ok(Self { head, ..self })
    }

    /// The logarithm of the probability of the class of each row `[.., features]`, and the mean of their negatives, the loss. Classes are integers
    /// `[..]`.
    ///
    /// # Collective
    /// All ranks of the program: how many rows each cluster has is told by one round of a number per rank. Then as
    /// [`index_select`](ShardTensor::index_select) of these rows, which stay where they are if classes lie with them, and
    /// [`linear_cross_entropy`](ShardTensor::linear_cross_entropy).
    ///
    /// # Errors
    /// As [`linear_cross_entropy`](ShardTensor::linear_cross_entropy); for classes that there are not.
    #[track_caller]
    pub fn forward(
        &self,
        x: &ShardTensor,
        target: &ShardTensor,
    ) -> Result<(ShardTensor, ShardTensor)> {
        let _call = Calling::throughout(NAME);
        let Some((&features, lead)) = x
            .shape()
            .split_last()
            .filter(|(_, lead)| target.shape() == *lead && !target.dtype().is_float())
        else {
            return Err(Error::argument(
                NAME,
                "rows [.., features] and a class for each, integers [..]",
                format!(
                    "{:?}, and {:?} of {}",
                    x.shape(),
                    target.shape(),
                    target.dtype()
                ),
                "give each row its class",
            ));
        };
        let rows = lead.iter().product::<usize>();
        let (flat, classes) = (x.reshape([rows, features])?, target.flatten()?);
        // No class counts as none.
        let each = ClassLoss::new()
            .ignore(i64::MIN)
            .reduction(LossReduction::None);
        let loss = |x: &ShardTensor, of: &Linear, classes: &ShardTensor| {
            x.linear_cross_entropy(&of.weight, of.bias.as_ref(), classes, &each)
        };
        let mut losses = loss(&flat, &self.head, &self.in_head(&classes)?)?;
        for (ends, [narrow, wide]) in self.ends.windows(2).zip(&self.tail) {
            let [begin, end] = [ends[0] as f64, ends[1] as f64];
            let inside = classes
                .ge_scalar(begin)?
                .logical_and(&classes.lt_scalar(end)?)?;
            let rows = inside.nonzero()?.flatten()?;
            let own = narrow.forward(&flat.index_select(0, &rows)?)?;
            let classes = classes.index_select(0, &rows)?.sub_scalar(begin)?;
            losses = losses.index_add(0, &rows, &loss(&own, wide, &classes)?)?;
        }
        let loss = losses.mean_all()?;
        Ok((losses.neg()?.reshape(lead)?, loss))
    }

    /// Of classes what the head calls them: the frequent ones as they are, others by their cluster. What is no class is beyond the head.
    #[track_caller]
    fn in_head(&self, classes: &ShardTensor) -> Result<ShardTensor> {
        let frequent = self.ends[0] as f64;
        let mut cluster = classes.mul_scalar(0.0)?.add_scalar(frequent - 1.0)?;
        for &end in &self.ends {
            let behind = classes.ge_scalar(end as f64)?.to(classes.dtype())?;
            cluster = cluster.add(&behind)?;
        }
        classes.lt_scalar(frequent)?.where_(classes, &cluster)
    }

    /// The logarithms of the probabilities of all classes, `[.., classes]`, of rows `[.., features]`.
    ///
    /// # Collective
    /// As [`ShardTensor::linear`], [`log_softmax`](ShardTensor::log_softmax) and [`cat`](ShardTensor::cat).
    ///
    /// # Errors
    /// As these.
    #[track_caller]
    pub fn log_prob(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout(NAME);
        let head = self.head.forward(x)?.log_softmax(-1)?;
        let frequent = self.ends[0];
        let mut parts = vec![head.narrow(-1, ..frequent)?];
        for (k, [narrow, wide]) in self.tail.iter().enumerate() {
            let own = wide.forward(&narrow.forward(x)?)?.log_softmax(-1)?;
            let cluster = head.narrow(-1, frequent + k..frequent + k + 1)?;
            parts.push(own.add(&cluster)?);
        }
        ShardTensor::cat(&parts, -1)
    }

    /// The most probable class of each row, `[..]`.
    ///
    /// # Collective
    /// As [`log_prob`](Self::log_prob) and [`ShardTensor::argmax`].
    ///
    /// # Errors
    /// As [`log_prob`](Self::log_prob).
    #[track_caller]
    pub fn predict(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let _call = Calling::throughout(NAME);
        self.log_prob(x)?.argmax(-1)
    }
}

tree!(AdaptiveLogSoftmax { head, tail });

//! Losses.

use crate::{Result, ShardTensor};
use shard_comm::Calling;
use shard_ops::loss::{self as ops, LossReduction};

/// What classes count in [`ShardTensor::cross_entropy`] and [`ShardTensor::nll_loss`].
///
/// ```
/// use shard_tensor::{ClassLoss, LossReduction, launch, shard};
/// let loss = launch(2, |ctx| {
///     let mesh = ctx.mesh_of(2)?;
///     // 8 samples; the 5 classes are sharded.
///     let logits = mesh.zeros([8, 5], [shard(1).sizes([4, 1])])?;
///     let right = mesh.distribute(&ndarray::Array1::from_elem(8, 4_i64), [shard(0)])?;
///     let options = ClassLoss::new().smoothing(0.1).reduction(LossReduction::Sum);
///     logits.cross_entropy(&right, &options)?.item()
/// })?;
/// assert!((loss[0] - 8.0 * 5_f64.ln()).abs() < 1e-5);
/// # Ok::<(), shard_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClassLoss {
    pub(super) weight: Option<ShardTensor>,
    pub(super) ignore: Option<i64>,
    smoothing: f64,
    pub(super) reduction: LossReduction,
}

impl ClassLoss {
    /// All classes count alike but -100, which counts nothing, and losses are averaged.
    pub fn new() -> Self {
        Self::default()
    }

    /// A weight per class.
    #[must_use]
    pub fn weight(mut self, weight: &ShardTensor) -> Self {
        self.weight = Some(weight.clone());
        self
    }

    /// Targets of this class count nothing; -100 if not said.
    #[must_use]
    pub fn ignore(mut self, class: i64) -> Self {
        self.ignore = Some(class);
        self
    }

    /// Spreads this much of the right distribution over all classes.
    #[must_use]
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        self.smoothing = smoothing;
        self
    }

    /// The mean, if not said: weighted, over all targets that are not ignored on all ranks.
    #[must_use]
    pub fn reduction(mut self, reduction: LossReduction) -> Self {
        self.reduction = reduction;
        self
    }
}

/// Losses. A mean is the global one, whatever the sizes of shards; a mean or sum over sharded dims is a partial value until it is used.
impl ShardTensor {
    /// The cross entropy of logits `[classes]` or `[batch, classes, ...]`, any of whose dims may be sharded, with targets: integers of the
    /// shape without classes, or distributions of the logits' shape and type.
    ///
    /// # Collective
    /// All members of the mesh. Numbers per target, never per class: two in `f64` where classes are sharded, and what
    /// [`gather`](Self::gather) of one element per target takes. Communicates to align misaligned operands.
    ///
    /// # Errors
    /// If shapes or types do not fit; for a target that is no class, on all ranks; what the communicator reports.
    #[track_caller]
    pub fn cross_entropy(&self, target: &Self, options: &ClassLoss) -> Result<Self> {
        let _call = Calling::of("cross_entropy");
        self.of_classes(target, options, ops::cross_entropy)
    }

    /// The negative logarithm of the right class's probability, of logarithms `[classes]` or `[batch, classes, ...]` and integer targets.
    ///
    /// # Collective
    /// As [`cross_entropy`](Self::cross_entropy).
    ///
    /// # Errors
    /// As [`cross_entropy`](Self::cross_entropy).
    #[track_caller]
    pub fn nll_loss(&self, target: &Self, options: &ClassLoss) -> Result<Self> {
        let _call = Calling::of("nll_loss");
        self.of_classes(target, options, ops::nll_loss)
    }

    #[track_caller]
    fn of_classes(
        &self,
        target: &Self,
        options: &ClassLoss,
        f: fn(
            &dyn shard_ops::Exec,
            &shard_ops::Value,
            &shard_ops::Value,
            ops::Classes<'_>,
            LossReduction,
        ) -> shard_ops::Result<shard_ops::Value>,
    ) -> Result<Self> {
        let weight = options.weight.as_ref().map(Self::value);
        self.run2(target, |exec, x, target| {
            let classes = ops::Classes {
                weight: weight.as_ref(),
                ignore: options.ignore,
                smoothing: options.smoothing,
            };
            f(exec, x, target, classes, options.reduction)
        })
    }

    /// The mean squared difference from a target; [`mse_loss_by`](Self::mse_loss_by) has other reductions.
    ///
    /// # Collective
    /// All members of the mesh. Communicates to align misaligned operands; the result is partial.
    ///
    /// # Errors
    /// If shapes do not broadcast or types differ.
    #[track_caller]
    pub fn mse_loss(&self, target: &Self) -> Result<Self> {
        let _call = Calling::of("mse_loss");
        self.mse_loss_by(target, LossReduction::Mean)
    }

    /// Squared differences from a target, reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn mse_loss_by(&self, target: &Self, reduction: LossReduction) -> Result<Self> {
        let _call = Calling::of("mse_loss_by");
        self.run2(target, |exec, x, t| ops::mse_loss(exec, x, t, reduction))
    }

    /// Distances from a target, reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn l1_loss(&self, target: &Self, reduction: LossReduction) -> Result<Self> {
        let _call = Calling::of("l1_loss");
        self.run2(target, |exec, x, t| ops::l1_loss(exec, x, t, reduction))
    }

    /// Distances from a target, below `beta` half their squares over `beta`, reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss); a `beta` that is below 0 or NaN.
    #[track_caller]
    pub fn smooth_l1_loss(
        &self,
        target: &Self,
        beta: f64,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("smooth_l1_loss");
        self.run2(target, |exec, x, t| {
            ops::smooth_l1_loss(exec, x, t, beta, reduction)
        })
    }

    /// Half the squares of distances from a target up to `delta`, and lines of slope `delta` beyond, reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss); a `delta` that is not above 0.
    #[track_caller]
    pub fn huber_loss(&self, target: &Self, delta: f64, reduction: LossReduction) -> Result<Self> {
        let _call = Calling::of("huber_loss");
        self.run2(target, |exec, x, t| {
            ops::huber_loss(exec, x, t, delta, reduction)
        })
    }

    /// The binary cross entropy of probabilities with targets, each times `weight` if there is one, reduced. Logarithms are cut off at
    /// -100, and of less than 1e-12 their slope is PyTorch's, 1e12.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn binary_cross_entropy(
        &self,
        target: &Self,
        weight: Option<&Self>,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("binary_cross_entropy");
        let weight = weight.map(Self::value);
        self.run2(target, |exec, x, t| {
            ops::binary_cross_entropy(exec, x, t, weight.as_ref(), reduction)
        })
    }

    /// The binary cross entropy of the sigmoid of logits with targets, without overflow, each times `weight` if there is one, and what
    /// the targets claim times `positive`, reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn binary_cross_entropy_with_logits(
        &self,
        target: &Self,
        weight: Option<&Self>,
        positive: Option<&Self>,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("binary_cross_entropy_with_logits");
        let (weight, positive) = (weight.map(Self::value), positive.map(Self::value));
        self.run2(target, |exec, x, t| {
            let (weight, positive) = (weight.as_ref(), positive.as_ref());
            ops::binary_cross_entropy_with_logits(exec, x, t, weight, positive, reduction)
        })
    }

    /// The divergence of Kullback and Leibler of logarithms of probabilities from targets, which with `log_target` are logarithms too,
    /// reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn kl_div(
        &self,
        target: &Self,
        log_target: bool,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("kl_div");
        self.run2(target, |exec, x, t| {
            ops::kl_div(exec, x, t, log_target, reduction)
        })
    }

    /// The negative logarithm of targets' density under normal distributions with these means and variances `var`, at least `eps`,
    /// reduced; without its constant unless `full`. A variance below `eps` gets the gradient that `eps` would, as in PyTorch.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn gaussian_nll_loss(
        &self,
        target: &Self,
        var: &Self,
        full: bool,
        eps: f64,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("gaussian_nll_loss");
        let var = var.value();
        self.run2(target, |exec, x, t| {
            ops::gaussian_nll_loss(exec, x, t, &var, full, eps, reduction)
        })
    }

    /// The negative logarithm of counts' probability under Poisson distributions with the exponentials of these for means, or with
    /// these themselves if not `log_input` (`eps` keeps their logarithms finite), reduced; without what depends on the counts alone
    /// unless `full`.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn poisson_nll_loss(
        &self,
        target: &Self,
        log_input: bool,
        full: bool,
        eps: f64,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("poisson_nll_loss");
        self.run2(target, |exec, x, t| {
            ops::poisson_nll_loss(exec, x, t, log_input, full, eps, reduction)
        })
    }

    /// `max(0, margin - target (self - other))`, reduced: nothing where this is above the other by the margin, for targets of 1, or below,
    /// for -1.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn margin_ranking_loss(
        &self,
        other: &Self,
        target: &Self,
        margin: f64,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("margin_ranking_loss");
        let target = target.value();
        self.run2(other, |exec, a, b| {
            ops::margin_ranking_loss(exec, a, b, &target, margin, reduction)
        })
    }

    /// Distances as they are for targets of 1, and `max(0, margin - distance)` for targets of -1, which may be integers, reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// If shapes do not broadcast; for integers and truth values in place of distances.
    #[track_caller]
    pub fn hinge_embedding_loss(
        &self,
        target: &Self,
        margin: f64,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("hinge_embedding_loss");
        self.run2(target, |exec, x, t| {
            ops::hinge_embedding_loss(exec, x, t, margin, reduction)
        })
    }

    /// Of vectors `[batch, features]` and others: one less the cosine between them for targets of 1, and `max(0, cosine - margin)` for
    /// targets of -1, a list `[batch]`, which may be of integers; reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss); where features are sharded, three numbers per vector.
    ///
    /// # Errors
    /// If shapes or types differ; for vectors without dims, and integers in their place.
    #[track_caller]
    pub fn cosine_embedding_loss(
        &self,
        other: &Self,
        target: &Self,
        margin: f64,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("cosine_embedding_loss");
        let target = target.value();
        self.run2(other, |exec, a, b| {
            ops::cosine_embedding_loss(exec, a, b, &target, margin, reduction)
        })
    }

    /// `ln(1 + exp(-target self))`, reduced, for targets of 1 and -1.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn soft_margin_loss(&self, target: &Self, reduction: LossReduction) -> Result<Self> {
        let _call = Calling::of("soft_margin_loss");
        self.run2(target, |exec, x, t| {
            ops::soft_margin_loss(exec, x, t, reduction)
        })
    }

    /// Of scores `[batch, classes]` the mean over all classes but the right one of how far they lack the margin from its score,
    /// `max(0, margin - right + other)`, or of its square for a `power` of 2, times the weight of the right class; reduced. Targets are
    /// integers, `[batch]`, and weights `[classes]`.
    ///
    /// ```
    /// use shard_tensor::{LossReduction, launch, ndarray::array, shard};
    /// let loss = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let scores = mesh.distribute(&array![[0.1_f64, 0.2, 0.4, 0.8]], shard(1))?;
    ///     let target = mesh.distribute(&array![3_i64], shard(0))?;
    ///     scores.multi_margin_loss(&target, 1, 1.0, None, LossReduction::Mean)?.item()
    /// })?;
    /// assert!((loss[0] - (0.3 + 0.4 + 0.6) / 4.0).abs() < 1e-12);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Where classes are sharded, the score of the right class and a number for each target; nothing but
    /// misaligned operands moves otherwise.
    ///
    /// # Errors
    /// If shapes or types do not fit, for another power than 1 and 2; on all ranks, for targets that are no class.
    #[track_caller]
    pub fn multi_margin_loss(
        &self,
        target: &Self,
        power: u32,
        margin: f64,
        weight: Option<&Self>,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("multi_margin_loss");
        let weight = weight.map(Self::value);
        self.run2(target, |exec, x, t| {
            ops::multi_margin_loss(exec, x, t, power, margin, weight.as_ref(), reduction)
        })
    }

    /// Of scores `[batch, classes]`, or `[classes]`, how far classes that are none of a sample's come to each of its own: the sum over all
    /// pairs of `max(0, 1 - own + other)`, divided by the number of classes; reduced. Targets are integers of the same shape: a sample's own
    /// classes, and a number below 0 behind them, if they are not all.
    ///
    /// ```
    /// use shard_tensor::{LossReduction, launch, ndarray::array, shard};
    /// let loss = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let scores = mesh.distribute(&array![[0.1_f64, 0.2, 0.4, 0.8]], shard(1))?;
    ///     let own = mesh.distribute(&array![[3_i64, 0, -1, 1]], shard(1))?;
    ///     scores.multilabel_margin_loss(&own, LossReduction::Mean)?.item()
    /// })?;
    /// assert!((loss[0] - (0.4 + 0.6 + 1.1 + 1.3) / 4.0).abs() < 1e-12);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`multi_margin_loss`](Self::multi_margin_loss), with as many targets as scores. A rank holds the square of the scores of each of
    /// its samples meanwhile.
    ///
    /// # Errors
    /// If shapes are not equal, for targets that are no integers; on all ranks, for targets that are no class.
    #[track_caller]
    pub fn multilabel_margin_loss(&self, target: &Self, reduction: LossReduction) -> Result<Self> {
        let _call = Calling::of("multilabel_margin_loss");
        self.run2(target, |exec, x, t| {
            ops::multilabel_margin_loss(exec, x, t, reduction)
        })
    }

    /// Of scores and targets `[batch, classes]`, in which each class is a question of its own, the mean of
    /// [`binary_cross_entropy_with_logits`](Self::binary_cross_entropy_with_logits) over classes, times their weights, `[classes]`;
    /// reduced.
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss).
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss).
    #[track_caller]
    pub fn multilabel_soft_margin_loss(
        &self,
        target: &Self,
        weight: Option<&Self>,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("multilabel_soft_margin_loss");
        let weight = weight.map(Self::value);
        self.run2(target, |exec, x, t| {
            ops::multilabel_soft_margin_loss(exec, x, t, weight.as_ref(), reduction)
        })
    }

    /// How much farther than the negative these anchors are from the positive, and the margin, if that is above 0; of Euclidean distances
    /// along the last dim, reduced. With `swap` the negative's distance from the positive counts, if it is the shorter.
    ///
    /// ```
    /// use shard_tensor::{LossReduction, launch, shard};
    /// let loss = launch(2, |ctx| {
    ///     let anchor = ctx.mesh_of(2)?.zeros([5, 2], shard(0))?;
    ///     let (near, far) = (anchor.add_scalar(3.0)?, anchor.add_scalar(4.0)?);
    ///     anchor.triplet_margin_loss(&near, &far, 2.0, false, LossReduction::Mean)?.item()
    /// })?;
    /// assert!((loss[0] - (2.0 - 2_f64.sqrt())).abs() < 1e-5);
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// As [`mse_loss`](Self::mse_loss); where the last dim is sharded, a number per distance.
    ///
    /// # Errors
    /// As [`mse_loss`](Self::mse_loss); for operands without dims.
    #[track_caller]
    pub fn triplet_margin_loss(
        &self,
        positive: &Self,
        negative: &Self,
        margin: f64,
        swap: bool,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("triplet_margin_loss");
        let negative = negative.value();
        self.run2(positive, |exec, anchor, positive| {
            ops::triplet_margin_loss(exec, anchor, [positive, &negative], margin, swap, reduction)
        })
    }

    /// The negative logarithm of the probability that sequences of classes give each sample's labels, once repetitions and blanks are left
    /// out (connectionist temporal classification): of logarithms of probabilities `[time, batch, classes]`, as
    /// [`log_softmax`](Self::log_softmax) gives them, and labels `[batch, most labels]`, of which those beyond a sample's own may be
    /// anything. `steps` and `lengths`, `[batch]`, say how many steps and labels a sample has. Labels that cannot stand in so few steps count
    /// infinity, or 0 with `zero_infinity`, and have no gradient. A mean is that of losses, each divided by the number of labels. The gradient
    /// is that by these logarithms; PyTorch adds what makes it one by logits, so that before `log_softmax` both are the same.
    ///
    /// ```
    /// use shard_tensor::{LossReduction, launch, ndarray::array, shard};
    /// let loss = launch(2, |ctx| {
    ///     let mesh = ctx.mesh_of(2)?;
    ///     let speech = mesh.zeros([2, 3, 4], shard(1))?.log_softmax(2)?;   // all classes are as likely
    ///     let labels = mesh.distribute(&array![[1_i64], [2], [3]], shard(0))?;
    ///     let steps = mesh.distribute(&array![2_i64, 2, 2], shard(0))?;
    ///     let ones = mesh.distribute(&array![1_i64, 1, 1], shard(0))?;
    ///     speech.ctc_loss(&labels, [&steps, &ones], 0, false, LossReduction::Mean)?.item()
    /// })?;
    /// assert!((loss[0] - (16_f64 / 3.0).ln()).abs() < 1e-6); // a label alone, twice, or beside a blank: 3 ways of 16
    /// # Ok::<(), shard_tensor::Error>(())
    /// ```
    ///
    /// # Collective
    /// All members of the mesh. Two reductions of a number find out whether the lengths are such; nothing else moves where the batch is sharded
    /// alike in all of them. Steps follow each other: where time is sharded, each moves by itself.
    ///
    /// # Errors
    /// For shapes that do not belong together, no steps, labels and lengths that are no integers, and a blank that is no class; on all
    /// ranks, for a length that is longer than there is, and a label that is no class.
    #[track_caller]
    pub fn ctc_loss(
        &self,
        targets: &Self,
        [steps, lengths]: [&Self; 2],
        blank: usize,
        zero_infinity: bool,
        reduction: LossReduction,
    ) -> Result<Self> {
        let _call = Calling::of("ctc_loss");
        let (steps, lengths) = (steps.value(), lengths.value());
        self.run2(targets, |exec, x, targets| {
            let labels = ops::Labels {
                targets,
                steps: &steps,
                lengths: &lengths,
                blank,
                zero_infinity,
            };
            ops::ctc_loss(exec, x, labels, reduction)
        })
    }
}

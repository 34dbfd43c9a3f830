//! Optimizers that trainings are drawn from: those that rounding does not turn round where a gradient is zero but for it.

use shard_ops::testing::Rng;
use shard_tensor::Result;
use shard_tensor::nn::Parameters;
use shard_tensor::optim::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, Asgd, Muon, NAdam, Optimizer, RAdam, RmsProp, Sgd,
};

/// Makes an optimizer of a model, or two, one of the matrices and one of the rest.
pub(super) fn optimizers(parameters: Parameters, seed: u64) -> Result<Vec<Box<dyn Optimizer>>> {
    let mut rng = Rng::new(seed, &["optimizers"]);
    if rng.one_in(8) {
        let (matrices, others): (Vec<_>, Vec<_>) =
            parameters.into_iter().partition(|(_, p)| p.ndim() == 2);
        let mut all: Vec<Box<dyn Optimizer>> = Vec::new();
        if !matrices.is_empty() {
            all.push(Box::new(Muon::new(matrices, 0.02)?.weight_decay(0.1)));
        }
        if !others.is_empty() {
            all.push(Box::new(AdamW::new(others, 0.01)?.eps(1e-3)));
        }
        return Ok(all);
    }
    if parameters.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![one(parameters, &mut rng)?])
}

fn one(parameters: Parameters, rng: &mut Rng) -> Result<Box<dyn Optimizer>> {
    let (yes, decay) = (rng.one_in(2), [0.0, 0.1][rng.below(2)]);
    let vectors = |_: &str, p: &shard_tensor::ShardTensor| p.ndim() < 2;
    Ok(match rng.below(11) {
        0 => Box::new(
            Sgd::new(parameters, 0.1)?
                .momentum(0.9)
                .nesterov(yes)
                .weight_decay(decay),
        ),
        1 => Box::new(
            Adam::new(parameters, 0.01)?
                .eps(1e-3)
                .amsgrad(yes)
                .weight_decay(decay),
        ),
        2 if parameters.iter().any(|(n, p)| vectors(n, p)) => {
            let adam = AdamW::new(parameters, 0.01)?.eps(1e-3).amsgrad(yes);
            Box::new(adam.group_by(vectors, |options| {
                options.weight_decay(0.0).learning_rate(0.002)
            })?)
        }
        3 => Box::new(
            Adagrad::new(parameters, 0.05)?
                .eps(1e-3)
                .rate_decay(0.1)
                .weight_decay(decay),
        ),
        4 => Box::new(
            Adadelta::new(parameters, 0.5)?
                .eps(1e-3)
                .weight_decay(decay),
        ),
        5 => Box::new(Adamax::new(parameters, 0.01)?.eps(1e-3).weight_decay(decay)),
        6 => Box::new(
            NAdam::new(parameters, 0.01)?
                .eps(1e-3)
                .decoupled(yes)
                .weight_decay(decay),
        ),
        7 => Box::new(
            RAdam::new(parameters, 0.01)?
                .eps(1e-3)
                .decoupled(yes)
                .weight_decay(decay),
        ),
        8 => {
            let all = RmsProp::new(parameters, 0.01)?
                .eps(1e-2)
                .centered(yes)
                .momentum(0.5);
            Box::new(all.weight_decay(decay))
        }
        9 => Box::new(Asgd::new(parameters, 0.05)?.t0(2.0).weight_decay(decay)),
        _ => Box::new(Sgd::new(parameters, 0.1)?),
    })
}

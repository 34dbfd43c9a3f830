//! What a training step holds at most, beside what its vjps read.

use shard_comm::DType;
use shard_tensor::Launch;
use xtests::step_memory::{Held, Learner, held};

fn on_two(learner: Learner, autocast: Option<DType>) -> Held {
    let told = Launch::new(2)
        .seed(1)
        .run(|ctx| held(ctx, learner, 2, autocast));
    told.unwrap().remove(0)
}

/// The peak is in the backward pass, where cotangents of the finest level lie beside all that is saved.
#[test]
fn a_step_holds_little_more_than_vjps_read() {
    for (learner, most) in [(Learner::UNet, 1.4), (Learner::Vit, 1.16)] {
        let held = on_two(learner, None);
        assert!(held.excess() < most, "{learner:?}: {held:?}");
        assert!(held.forward as f64 <= 1.06 * held.saved as f64, "{held:?}");
    }
}

#[test]
fn activations_in_16_bits_take_half_the_memory() {
    let [full, narrow] = [None, Some(DType::BF16)].map(|to| on_two(Learner::UNet, to).saved);
    assert!((narrow as f64) < 0.55 * full as f64, "{narrow} of {full}");
}

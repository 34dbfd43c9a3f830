//! What a training step holds at most, beside what its vjps read.

use shard_comm::DType;
use shard_tensor::Launch;
use xtests::step_memory::{Held, Learner, held};

fn on_two(learner: Learner, shrink: usize, autocast: Option<DType>) -> Held {
    let told = Launch::new(2)
        .seed(1)
        .run(|ctx| held(ctx, learner, shrink, autocast));
    told.unwrap().remove(0)
}

/// The peak is in the backward pass, where cotangents of the finest level lie beside all that is saved.
#[test]
fn a_step_holds_little_more_than_vjps_read() {
    // A smaller transformer would be mostly parameters.
    for (learner, shrink, most) in [(Learner::UNet, 2, 1.4), (Learner::Vit, 1, 1.16)] {
        let held = on_two(learner, shrink, None);
        assert!(held.excess() < most, "{learner:?}: {held:?}");
        assert!(held.forward as f64 <= 1.06 * held.saved as f64, "{held:?}");
    }
}

#[test]
fn activations_in_16_bits_take_half_the_memory() {
    let [full, narrow] = [None, Some(DType::BF16)].map(|to| on_two(Learner::UNet, 2, to).saved);
    assert!((narrow as f64) < 0.55 * full as f64, "{narrow} of {full}");
}

//! What goes wrong on purpose in a training step: the right result, or one cause, and never a hang.

use shard_tensor::optim::Sgd;
use shard_tensor::{DType, Fault, FaultKind, Launch, prelude::*};
use std::time::Duration;

/// One step, and the loss after it.
fn step(ctx: &Context) -> Result<f64> {
    let mesh = ctx.mesh([("ranks", ctx.world_size())])?;
    let x = mesh.randn([7, 3], shard(0).sizes([4, 0, 3]))?;
    let layer = nn::Linear::new(&mesh, 3, 2)?;
    let mut sgd = Sgd::new(layer.parameters(), 0.1)?;
    let loss = || layer.forward(&x)?.square()?.mean_all();
    sgd.step(&loss()?.backward()?)?;
    loss()?.item()
}

#[test]
fn faults_give_the_right_result_or_a_cause() {
    let launch = Launch::new(3)
        .dtype(DType::F64)
        .timeout(Duration::from_secs(60));
    let right = launch.run(step).unwrap();
    assert_eq!(launch.clone().faults([]).run(step).unwrap(), right);
    let mut refused = [0; FaultKind::ALL.len()];
    for (kind, refused) in FaultKind::ALL.into_iter().zip(&mut refused) {
        for call in 0..9 {
            let fault = Fault {
                rank: 1,
                call,
                kind,
            };
            match launch.clone().faults([fault]).run(step) {
                Ok(results) => assert_eq!(results, right, "{fault:?}"),
                Err(error) => {
                    assert!(!kind.is_harmless(), "{fault:?}: {error}");
                    assert!(!error.to_string().contains("timed out"), "{error}");
                    *refused += 1;
                }
            }
        }
    }
    // Each of the others is met by some operation of the step.
    for (kind, refused) in FaultKind::ALL.into_iter().zip(refused) {
        let may_pass = kind.is_harmless() || kind == FaultKind::Overtaken;
        assert!(may_pass || refused > 0, "{kind:?} changed nothing");
    }
}

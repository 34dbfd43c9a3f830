use shard_kernels::optimize::{
    Adadelta, Adagrad, Adam, Adamax, Asgd, Lion, NAdam, RAdam, RmsProp, Rprop, Sgd, Update, update,
};

const ADAM: Adam = Adam {
    keep: 0.99,
    decay: 0.125,
    betas: [0.9, 0.99],
    size: 0.01,
    root: 0.75,
    eps: 1e-8,
    amsgrad: false,
};

/// The new value and state of one element, by PyTorch's formulas in `f64`.
fn plainly(step: Update, p: f64, g: f64, old: &[f64]) -> (f64, Vec<f64>) {
    match step {
        Update::Sgd(Sgd {
            rate,
            momentum,
            dampening,
            decay,
            nesterov,
            first,
        }) => {
            let g = g + decay * p;
            if momentum == 0.0 {
                return (p - rate * g, vec![]);
            }
            let velocity = match first {
                true => g,
                false => momentum * old[0] + (1.0 - dampening) * g,
            };
            let direction = match nesterov {
                true => g + momentum * velocity,
                false => velocity,
            };
            (p - rate * direction, vec![velocity])
        }
        Update::Adam(Adam {
            keep,
            decay,
            betas: [b1, b2],
            size,
            root,
            eps,
            amsgrad,
        }) => {
            let g = g + decay * p;
            let mean = b1 * old[0] + (1.0 - b1) * g;
            let square = b2 * old[1] + (1.0 - b2) * g * g;
            let mut new = vec![mean, square];
            let mut divides = square;
            if amsgrad {
                divides = square.max(old[2]);
                new.push(divides);
            }
            (keep * p - size * mean / (divides.sqrt() / root + eps), new)
        }
        Update::Lion(Lion {
            rate,
            keep,
            betas: [b1, b2],
        }) => {
            let along = b1 * old[0] + (1.0 - b1) * g;
            let sign = if along == 0.0 { 0.0 } else { along.signum() };
            (keep * p - rate * sign, vec![b2 * old[0] + (1.0 - b2) * g])
        }
        Update::NAdam(step) => {
            let g = g + step.decay * p;
            let ([b1, b2], [along, ahead]) = (step.betas, step.sizes);
            let mean = b1 * old[0] + (1.0 - b1) * g;
            let square = b2 * old[1] + (1.0 - b2) * g * g;
            let root = square.sqrt() / step.root + step.eps;
            let new = step.keep * p - along * g / root - ahead * mean / root;
            (new, vec![mean, square])
        }
        Update::RAdam(step) => {
            let g = g + step.decay * p;
            let [b1, b2] = step.betas;
            let mean = b1 * old[0] + (1.0 - b1) * g;
            let square = b2 * old[1] + (1.0 - b2) * g * g;
            let divides = match step.adapts {
                true => square.sqrt() + step.eps,
                false => 1.0,
            };
            (
                step.keep * p - step.size * mean / divides,
                vec![mean, square],
            )
        }
        Update::Adamax(step) => {
            let g = g + step.decay * p;
            let [b1, b2] = step.betas;
            let mean = b1 * old[0] + (1.0 - b1) * g;
            let most = (b2 * old[1]).max(g.abs() + step.eps);
            (p - step.size * mean / most, vec![mean, most])
        }
        Update::RmsProp(step) => {
            let g = g + step.decay * p;
            let square = step.keep * old[0] + (1.0 - step.keep) * g * g;
            let (mut kept, mut variance) = (vec![square], square);
            let mean = (step.centered).then(|| {
                let old = old[1 + usize::from(step.momentum != 0.0)];
                step.keep * old + (1.0 - step.keep) * g
            });
            if let Some(mean) = mean {
                variance = (square - mean * mean).max(0.0);
            }
            let mut along = g / (variance.sqrt() + step.eps);
            if step.momentum != 0.0 {
                along += step.momentum * old[1];
                kept.push(along);
            }
            kept.extend(mean);
            (p - step.rate * along, kept)
        }
        Update::Adagrad(step) => {
            let g = g + step.decay * p;
            let sum = old[0] + g * g;
            (p - step.rate * g / (sum.sqrt() + step.eps), vec![sum])
        }
        Update::Adadelta(step) => {
            let g = g + step.decay * p;
            let square = step.keep * old[0] + (1.0 - step.keep) * g * g;
            let along = g * ((old[1] + step.eps) / (square + step.eps)).sqrt();
            let steps = step.keep * old[1] + (1.0 - step.keep) * along * along;
            (p - step.rate * along, vec![square, steps])
        }
        Update::Rprop(step) => {
            let ([minus, plus], [least, most]) = (step.factors, step.sizes);
            let size = if step.first { step.rate } else { old[1] };
            let (factor, g) = match g * old[0] {
                turn if turn < 0.0 => (minus, 0.0),
                turn if turn > 0.0 => (plus, g),
                _ => (1.0, g),
            };
            let size = (size * factor).clamp(least, most);
            let sign = if g == 0.0 { 0.0 } else { g.signum() };
            (p - sign * size, vec![g, size])
        }
        Update::Asgd(step) => {
            let new = p * step.keep - step.size * (g + step.decay * p);
            (new, vec![(1.0 - step.share) * old[0] + step.share * new])
        }
        Update::Average { keep } => (keep * p + (1.0 - keep) * g, vec![]),
    }
}

fn steps() -> Vec<Update> {
    let sgd = |momentum, nesterov, first| {
        let step = Sgd {
            rate: 0.25,
            momentum,
            dampening: 0.125,
            decay: 0.5,
            nesterov,
            first,
        };
        step.into()
    };
    let amsgrad = Adam {
        amsgrad: true,
        ..ADAM
    };
    let (keep, decay, betas, eps) = (0.875, 0.125, [0.9, 0.75], 1e-3);
    let lion = Lion {
        rate: 0.25,
        keep,
        betas: [0.9, 0.99],
    };
    let mut all = vec![
        sgd(0.0, false, false),
        sgd(0.75, false, true),
        sgd(0.75, false, false),
        sgd(0.75, true, false),
        ADAM.into(),
        amsgrad.into(),
        lion.into(),
        Update::Average { keep: 0.75 },
    ];
    let nadam = NAdam {
        keep,
        decay,
        betas,
        sizes: [0.125, 0.5],
        root: 0.75,
        eps,
    };
    let adamax = Adamax {
        size: 0.25,
        decay,
        betas,
        eps,
    };
    let adagrad = Adagrad {
        rate: 0.5,
        decay,
        eps,
    };
    let adadelta = Adadelta {
        rate: 0.5,
        keep,
        decay,
        eps,
    };
    let updates: [Update; 4] = [nadam.into(), adamax.into(), adagrad.into(), adadelta.into()];
    all.extend(updates);
    for first in [false, true] {
        let step = Rprop {
            rate: 0.25,
            factors: [0.5, 1.25],
            sizes: [0.125, 1.0],
            first,
        };
        all.push(step.into());
    }
    for share in [0.25, 1.0] {
        let step = Asgd {
            size: 0.5,
            keep,
            decay,
            share,
        };
        all.push(step.into());
    }
    for adapts in [false, true] {
        let step = RAdam {
            keep,
            decay,
            betas,
            size: 0.25,
            eps,
            adapts,
        };
        all.push(step.into());
    }
    for (momentum, centered) in [(0.0, false), (0.5, false), (0.0, true), (0.5, true)] {
        let step = RmsProp {
            rate: 0.25,
            keep,
            decay,
            eps,
            momentum,
            centered,
        };
        all.push(step.into());
    }
    all
}

/// Lengths on both sides of vectors of any size.
#[test]
fn every_step_follows_its_formula() {
    for step in steps() {
        for n in [0, 1, 7, 64, 131] {
            let of = |k: usize| -> Vec<f64> {
                (0..n)
                    .map(|i| ((i * (k + 3) + k) % 19) as f64 / 8.0 - 1.0)
                    .collect()
            };
            let (p, g) = (of(0), of(1));
            // Squares are not negative, and come first in some.
            let first = matches!(
                step,
                Update::RmsProp(_) | Update::Adagrad(_) | Update::Adadelta(_)
            );
            let old: Vec<Vec<f64>> = (0..step.state())
                .map(|k| {
                    let of = of(k + 2).into_iter();
                    of.map(|v| if k == 0 && !first { v } else { v * v })
                        .collect()
                })
                .collect();
            let old: Vec<&[f64]> = old.iter().map(Vec::as_slice).collect();
            let mut new = vec![f64::NAN; n];
            let mut state = vec![vec![f64::NAN; n]; step.state()];
            let mut views: Vec<&mut [f64]> = state.iter_mut().map(Vec::as_mut_slice).collect();
            update(step, &p, &g, &old, &mut new, &mut views);
            for i in 0..n {
                let was: Vec<f64> = old.iter().map(|o| o[i]).collect();
                let (wanted, kept) = plainly(step, p[i], g[i], &was);
                let close = |a: f64, b: f64| (a - b).abs() <= 1e-13 * (1.0 + b.abs());
                assert!(
                    close(new[i], wanted),
                    "{step:?} {i}: {} for {wanted}",
                    new[i]
                );
                for (state, kept) in state.iter().zip(&kept) {
                    assert!(
                        close(state[i], *kept),
                        "{step:?} {i}: {} for {kept}",
                        state[i]
                    );
                }
            }
        }
    }
}

/// What is not a number stays so, and a direction of nothing is none.
#[test]
fn nan_and_zero_pass_through() {
    let all = steps();
    let (mut new, mut mean) = ([0.0f32; 3], [0.0; 3]);
    let lion = all[6];
    update(
        lion,
        &[1.0, 1.0, f32::NAN],
        &[0.0, f32::NAN, 1.0],
        &[&[0.0; 3]],
        &mut new,
        &mut [&mut mean],
    );
    assert_eq!(new[0], 0.875);
    assert!(new[1].is_nan() && mean[1].is_nan() && new[2].is_nan());
    let [mut a, mut b, mut c] = [[0.0f32; 2]; 3];
    let (one, most) = ([1.0; 2], [f32::NAN, 1.0]);
    let state = &mut [&mut a[..], &mut b, &mut c];
    update(
        all[5],
        &one,
        &[1.0, f32::NAN],
        &[&one, &one, &most],
        &mut new[..2],
        state,
    );
    assert!(
        c[0].is_nan() && c[1].is_nan(),
        "the largest of NaN and a number: {c:?}"
    );
}

#[test]
#[should_panic(expected = "arrays of state")]
fn too_little_state_is_refused() {
    update(
        ADAM.into(),
        &[1.0f64],
        &[1.0],
        &[&[0.0]],
        &mut [0.0],
        &mut [],
    );
}

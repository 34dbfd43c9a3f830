//! Steps of optimizers, and the sums of powers that norms are made of.

use crate::applied::validated;
use shard_ops::optimize::{
    Adadelta, Adagrad, Adam, Adamax, Asgd, Lion, NAdam, RAdam, RmsProp, Rprop, Sgd, Update,
    power_sum, update,
};
use shard_ops::testing::Tensor;

/// One of each kind, and the name of its op.
fn updates() -> Vec<(&'static str, Update)> {
    let sgd = |momentum, nesterov, first| {
        let step = Sgd {
            rate: 0.1,
            momentum,
            dampening: 0.25,
            decay: 0.5,
            nesterov,
            first,
        };
        ("sgd", step.into())
    };
    let (betas, keep, decay, eps) = ([0.9, 0.99], 0.75, 0.125, 1e-3);
    let adam = |amsgrad| {
        let step = Adam {
            keep,
            decay,
            betas,
            size: 0.5,
            root: 0.3,
            eps: 1e-6,
            amsgrad,
        };
        ("adam", step.into())
    };
    let lion = Lion {
        rate: 0.1,
        keep: 0.9,
        betas,
    };
    let nadam = NAdam {
        keep,
        decay,
        betas,
        sizes: [0.25, 0.5],
        root: 0.3,
        eps,
    };
    let radam = |adapts| {
        let step = RAdam {
            keep,
            decay,
            betas,
            size: 0.5,
            eps,
            adapts,
        };
        ("radam", step.into())
    };
    let adamax = Adamax {
        size: 0.5,
        decay,
        betas,
        eps,
    };
    let rms = |momentum, centered| {
        let step = RmsProp {
            rate: 0.1,
            keep,
            decay,
            eps,
            momentum,
            centered,
        };
        ("rms_prop", step.into())
    };
    let adagrad = Adagrad {
        rate: 0.1,
        decay,
        eps,
    };
    let adadelta = Adadelta {
        rate: 0.5,
        keep,
        decay,
        eps,
    };
    let rprop = |first| {
        let step = Rprop {
            rate: 0.1,
            factors: [0.5, 1.2],
            sizes: [0.2, 1.0],
            first,
        };
        ("rprop", step.into())
    };
    let asgd = |share| {
        let step = Asgd {
            size: 0.1,
            keep,
            decay,
            share,
        };
        ("asgd", step.into())
    };
    vec![
        rprop(true),
        rprop(false),
        asgd(1.0),
        asgd(0.3),
        sgd(0.0, false, false),
        sgd(0.9, false, true),
        sgd(0.9, false, false),
        sgd(0.9, true, false),
        adam(false),
        adam(true),
        ("lion", lion.into()),
        ("nadam", nadam.into()),
        radam(false),
        radam(true),
        ("adamax", adamax.into()),
        rms(0.0, false),
        rms(0.5, false),
        rms(0.0, true),
        rms(0.5, true),
        ("adagrad", adagrad.into()),
        ("adadelta", adadelta.into()),
        ("average", Update::Average { keep: 0.9 }),
    ]
}

const ORDERS: [f64; 4] = [1.0, 2.0, 2.5, f64::INFINITY];

#[test]
fn pieces_of_every_layout_are_updated_and_summed_as_one() {
    for (name, step) in updates() {
        let count = 2 + step.state();
        // Means of squares are not below 0.
        let element = |i: usize, k: usize| ((7 * i + 5 * k) % 11) as f64 / 4.0;
        let operand = |i| Tensor::new([5, 3], (0..15).map(|k| element(i, k)).collect::<Vec<f64>>());
        let operands: Vec<Tensor> = (0..count).map(operand).collect();
        let tried = validated(name, &operands, &|e, v| {
            update(e, step, &v[0], &v[1], &v[2..]).map(drop)
        });
        assert!(tried.layouts > 0, "{step:?}");
    }
    for order in ORDERS {
        let tried = validated("power_sum", &[Tensor::drawn([5, 3], 7)], &|e, v| {
            power_sum(e, &v[0], order).map(drop)
        });
        assert!(tried.layouts > 0, "{order}");
    }
}

#[cfg(feature = "cuda")]
mod on_gpus {
    use super::{ORDERS, updates};
    use crate::ranks::{gpus, on_device};
    use shard_comm::{DType, DeviceKind};
    use shard_ops::Value;
    use shard_ops::optimize::{power_sum, update};
    use shard_redistribute::Array;
    use shard_spec::Layout;

    /// What all updates and sums make of arrays of a type on two ranks of a device.
    fn made(device: DeviceKind, dtype: DType, with_nan: bool) -> Vec<Vec<f64>> {
        let ranks = on_device(device, &[2], |cx, engine| {
            let layout = Layout::parse(cx.mesh(), &[1500, 3], "S(0)[1100,400]").unwrap();
            let operand = |i: usize| {
                let number = |at: &[usize]| match (at, i) {
                    ([3, 1], 1) if with_nan => f64::NAN,
                    _ => {
                        ((7 * i + 5 * at[0] + at[1]) % 23) as f64 / 8.0 - 0.5 * (i < 2) as u8 as f64
                    }
                };
                let array = match dtype {
                    DType::F32 => Array::from_fn(cx, &layout, |at| number(at) as f32),
                    _ => Array::from_fn(cx, &layout, number),
                };
                Value::new(array.unwrap())
            };
            let operands: Vec<Value> = (0..5).map(operand).collect();
            let mut made = Vec::new();
            for (_, step) in updates() {
                let state = &operands[2..2 + step.state()];
                made.extend(update(engine, step, &operands[0], &operands[1], state).unwrap());
            }
            for order in ORDERS {
                made.push(power_sum(engine, &operands[1], order).unwrap());
            }
            assert_eq!(cx.world().ledger().snapshot().fallbacks, 0);
            let read = |value: &Value| match value.dtype() {
                DType::F32 => value
                    .array()
                    .to_vec::<f32>()
                    .unwrap()
                    .into_iter()
                    .map(f64::from)
                    .collect(),
                _ => value.array().to_vec::<f64>().unwrap(),
            };
            made.iter().map(read).collect::<Vec<Vec<f64>>>()
        });
        ranks.concat()
    }

    #[test]
    fn gpus_update_and_sum_as_the_host_does() {
        for kind in gpus() {
            for (dtype, bound) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
                for with_nan in [false, true] {
                    let host = made(DeviceKind::Host, dtype, with_nan);
                    let gpu = made(kind, dtype, with_nan);
                    assert_eq!(host.len(), gpu.len());
                    for (array, (host, gpu)) in host.iter().zip(&gpu).enumerate() {
                        assert_eq!(host.len(), gpu.len());
                        for (h, g) in host.iter().zip(gpu) {
                            let near = (h - g).abs() <= bound * h.abs().max(1e-2);
                            assert!(
                                near || h.is_nan() && g.is_nan(),
                                "{dtype} {array}: {h}, {g}"
                            );
                        }
                    }
                    assert_eq!(host.concat().iter().any(|x| x.is_nan()), with_nan);
                }
            }
        }
    }
}

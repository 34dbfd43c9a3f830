//! Ops that are several maps in one pass.

use crate::applied::validated;
use crate::ranks::{gpus, on_device, on_ranks, whole};
use shard_comm::{DType, DeviceKind};
use shard_kernels::unary::Unary;
use shard_ops::elementwise::{add, glu, lerp, mul, unary};
use shard_ops::fused::{self, Fused};
use shard_ops::loss::{LossReduction, huber_loss, smooth_l1_loss};
use shard_ops::testing::{Tensor, place};
use shard_ops::{OpError, Value};
use shard_spec::Layout;

#[test]
fn recurrent_cells_are_one_ranks_under_all_layouts_and_have_their_slopes() {
    let gates = |gates: usize, seed: u64| Tensor::drawn([3, gates, 5], seed);
    let state = Tensor::drawn([3, 5], 3);
    let lstm = validated(
        "lstm",
        &[gates(4, 1), gates(4, 2), state.clone()],
        &|e, v| fused::lstm(e, [&v[0], &v[1]], &v[2]).map(drop),
    );
    assert_eq!(lstm.slopes, 75);
    let gru = validated("gru", &[gates(3, 1), gates(3, 2), state], &|e, v| {
        fused::gru(e, [&v[0], &v[1]], &v[2]).map(drop)
    });
    assert_eq!(gru.slopes, 61);
}

#[test]
fn formulas_broadcast_and_choose_under_all_layouts() {
    let operands = [
        Tensor::drawn([4, 3], 1),
        Tensor::drawn([4, 1], 2),
        Tensor::drawn([3], 3),
    ];
    validated("lerp", &operands, &|e, v| {
        lerp(e, &v[0], &v[1], &v[2]).map(drop)
    });
    let halves = Tensor::drawn([6, 4], 4);
    validated("glu", &[halves], &|e, v| glu(e, &v[0], 0).map(drop));
    let pairs = [
        Tensor::drawn([2, 3, 2, 4], 5),
        Tensor::drawn([3, 4], 6),
        Tensor::drawn([4], 7),
    ];
    validated("rotary", &pairs, &|e, v| {
        fused::rotary(e, &v[0], [&v[1], &v[2]]).map(drop)
    });
    // Parts of an operand that has fewer dims than others, and a quotient.
    let mixed = Fused::of_parts("mixed", [2, 1], |[x, y]| {
        [
            vec![x[0] / (y[0].square() + 1.0), 2.0 - x[1], x[0]],
            vec![y[0].exp() - x[1]],
        ]
    });
    let operands = [Tensor::drawn([2, 5], 1), Tensor::drawn([3, 5], 2)];
    validated("mixed", &operands, &|e, v| {
        mixed.apply_to(e, &[&v[0], &v[1]], 1).map(drop)
    });
}

/// What ops one after the other give, to the bit: also what stands between them is rounded.
#[test]
fn a_formula_gives_what_its_steps_give_as_ops() {
    let f = Fused::new("f", |[x, y]| [(x * y).tanh() + x * 0.3, y.sigmoid()]);
    for dtype in [DType::F32, DType::F64] {
        on_ranks(&[2], |cx, engine| {
            let layout = Layout::parse(cx.mesh(), &[700, 3], "S(0)").unwrap();
            let [x, y] = [1, 2].map(|seed| {
                let drawn = Tensor::drawn([700, 3], seed);
                Value::new(place(cx, &layout, &drawn, dtype).unwrap())
            });
            let found = f.apply(engine, &[&x, &y]).unwrap();
            let tanh = unary(engine, &mul(engine, &x, &y).unwrap(), Unary::Tanh).unwrap();
            let share = unary(engine, &x, Unary::MulScalar { value: 0.3 }).unwrap();
            let first = add(engine, &tanh, &share).unwrap();
            let second = unary(engine, &y, Unary::Sigmoid).unwrap();
            for (found, expected) in found.iter().zip([&first, &second]) {
                assert_eq!(bits(found), bits(expected), "{dtype}");
            }
        });
    }
}

fn bits(value: &Value) -> Vec<u64> {
    let buffer = value.array().buffer().unwrap();
    match value.dtype() {
        DType::F32 => {
            let elements = buffer.to_vec::<f32>().unwrap().into_iter();
            elements.map(|x| x.to_bits().into()).collect()
        }
        _ => buffer
            .to_vec::<f64>()
            .unwrap()
            .into_iter()
            .map(f64::to_bits)
            .collect(),
    }
}

/// Devices without a kernel for formulas take the steps as ops.
#[test]
fn formulas_go_by_ops_on_gpus() {
    let cell = |kind| {
        let found = on_device(kind, &[2], |cx, engine| {
            let of = |shape: &[usize], seed: u64, placed: &str| {
                let layout = Layout::parse(cx.mesh(), shape, placed).unwrap();
                let drawn = Tensor::drawn(shape, seed);
                Value::new(place(cx, &layout, &drawn, DType::F64).unwrap())
            };
            let gates = [of(&[3, 4, 5], 1, "S(0)"), of(&[3, 4, 5], 2, "S(1)")];
            let memory = of(&[3, 5], 3, "R");
            let [h, c] = fused::lstm(engine, [&gates[0], &gates[1]], &memory).unwrap();
            let mixed = Fused::of_parts("mixed", [1, 4], |[x, y]| {
                [vec![x[0].below(0.1, y[0], y[1]), y[2] / y[3]]]
            });
            let more = mixed.apply_to(engine, &[&memory, &gates[0]], 1).unwrap();
            [&h, &c, &more[0]]
                .map(|value| whole(engine, value))
                .concat()
        });
        assert_eq!(found[0], found[1]);
        found.into_iter().next().unwrap()
    };
    let host = cell(DeviceKind::Host);
    assert_eq!(host.len(), 60);
    for kind in gpus() {
        for (found, expected) in cell(kind).into_iter().zip(&host) {
            assert!(
                (found - expected).abs() <= 1e-14 * expected.abs(),
                "{found} for {expected}"
            );
        }
    }
}

#[test]
fn a_formula_says_what_it_does_not_fit() {
    let f = Fused::of_parts("f", [2, 1], |[x, y]| [vec![x[0] * y[0] + x[1]]]);
    let many = Fused::new("many", |x: [_; 256]| [x[0] + x[255]]);
    on_ranks(&[1], |cx, engine| {
        let of = |shape: &[usize], dtype| {
            let layout = Layout::replicated(cx.mesh(), shape);
            Value::new(place(cx, &layout, &Tensor::drawn(shape, 1), dtype).unwrap())
        };
        let (x, y) = (of(&[3, 2, 4], DType::F64), of(&[3, 4], DType::F64));
        assert!(f.apply_to(engine, &[&x, &y], 1).is_ok());
        let told = |operands: &[&Value], behind: usize| {
            f.apply_to(engine, operands, behind)
                .unwrap_err()
                .to_string()
        };
        assert!(told(&[&x], 1).contains("f: "), "{}", told(&[&x], 1));
        let error = told(&[&x, &y], 0);
        assert!(error.contains("no dim of 2 before the last 0"), "{error}");
        let error = told(&[&x, &y], 7);
        assert!(error.contains("no dim of 2 before the last 7"), "{error}");
        let error = told(&[&x, &of(&[3, 5], DType::F64)], 1);
        assert!(error.contains("do not broadcast"), "{error}");
        assert!(matches!(
            f.apply_to(engine, &[&x, &of(&[3, 4], DType::F32)], 1),
            Err(OpError::DType { .. })
        ));
        let twice = Fused::of_parts("twice", [1], |[x]| [vec![x[0], x[0]]]);
        assert_eq!(
            twice.apply_to(engine, &[&y], 2).unwrap()[0].shape(),
            [2, 3, 4]
        );
        let error = twice.apply_to(engine, &[&y], 3).unwrap_err().to_string();
        assert!(error.contains("no 3 dims behind those of parts"), "{error}");
        let large = Fused::new("large", |[x]| [x + 1e300]);
        assert!(large.apply1(engine, &[&y]).is_ok());
        let single = of(&[3, 4], DType::F32);
        let error = large.apply1(engine, &[&single]).unwrap_err().to_string();
        assert!(
            error.contains("large: ") && error.contains("f32"),
            "{error}"
        );
        // Losses that share a formula say which one was called.
        let other = of(&[3, 5], DType::F64);
        let mean = LossReduction::Mean;
        let told = [
            ("huber_loss: ", huber_loss(engine, &y, &other, 0.5, mean)),
            (
                "smooth_l1_loss: ",
                smooth_l1_loss(engine, &y, &other, 0.5, mean),
            ),
        ];
        for (name, refused) in told {
            let error = refused.unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        let operands = vec![&y; 256];
        let error = many.apply(engine, &operands).unwrap_err().to_string();
        assert!(error.contains("at most 256 parts"), "{error}");
    });
}

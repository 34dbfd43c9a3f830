//! Rules that do not describe their operands are refused.

use shard_comm::DType;
use shard_ops::{Access, Linearity, Meta, Routes, RowCuts, Rule, RuleBuilder};
use std::sync::Arc;

/// The diagonal of a square, as somebody might write it whose factor indexes both dims.
#[test]
fn a_factor_indexes_one_dim_of_an_operand() {
    let square = Meta {
        dtype: DType::F64,
        shape: [4, 4][..].into(),
    };
    let rule = |second: fn(usize) -> Access| {
        let mut builder = Rule::builder("diagonal", std::slice::from_ref(&square));
        let i = builder.factor(4);
        builder
            .input(vec![Access::factor(i), second(i)])
            .output(vec![Access::factor(i)], [4][..].into(), DType::F64)
            .build()
    };
    assert!(rule(|_| Access::WHOLE).is_ok());
    let told = rule(Access::factor).unwrap_err().to_string();
    assert!(
        told.contains("dims 0 and 1 of an operand are indexed by one factor"),
        "{told}"
    );
}

/// Rules that name factors or operands that are not there, as somebody might miscount.
#[test]
fn what_a_rule_names_is_there() {
    let row = Meta {
        dtype: DType::F64,
        shape: [4][..].into(),
    };
    let told = |access: Access, more: fn(RuleBuilder) -> RuleBuilder| {
        let mut builder = Rule::builder("miscounted", std::slice::from_ref(&row));
        let i = builder.factor(4);
        let rule =
            builder
                .input(vec![access])
                .output(vec![Access::factor(i)], [4][..].into(), DType::F64);
        let told = more(rule).build().map(drop);
        told.map_err(|error| error.to_string())
    };
    let plain = || Access::factor(0);
    assert_eq!(told(plain(), |r| r.unread(0).keeps_halo(0)), Ok(()));
    let whole = Access::Whole { instead: Some(9) };
    let refused = [
        (told(Access::factor(1), |r| r), "factor 1 of 1"),
        (told(whole, |r| r), "factor 9 of 1"),
        (
            told(plain(), |r| r.unread(1)),
            "operand 1 of 1 is called unread",
        ),
        (
            told(plain(), |r| r.keeps_halo(1)),
            "operand 1 of 1 is called of a halo",
        ),
        (
            told(plain(), |r| {
                r.linearity(Linearity::Each([0, 1].into_iter().collect()))
            }),
            "operand 1 of 1 is called linear",
        ),
    ];
    for (told, said) in refused {
        let told = told.unwrap_err();
        assert!(told.starts_with(&format!("miscounted: {said}")), "{told}");
    }
}

/// A dim has as many indices as its factor says, in results as in operands.
#[test]
fn extents_of_dims_are_those_of_their_factors() {
    let told = |extent: usize, input: Access, output: (Access, usize)| {
        let row = Meta {
            dtype: DType::F64,
            shape: [extent][..].into(),
        };
        let mut builder = Rule::builder("miscounted", std::slice::from_ref(&row));
        assert_eq!(builder.factor(4), 0);
        let rule = builder.input(vec![input]);
        let rule = rule.output(vec![output.0], [output.1][..].into(), DType::F64);
        let told = rule.build().map(drop);
        told.map_err(|error| error.to_string())
    };
    let plain = || (Access::factor(0), 4);
    let blocks = |block| Access::Factor { factor: 0, block };
    let ring = || Access::Ring {
        factor: 0,
        instead: None,
    };
    let cuts = |indices: &[usize], rows: &[usize]| Access::Rows {
        factor: 0,
        cuts: Some(Arc::new(RowCuts::new(indices, rows).unwrap())),
    };
    let fit = [
        (4, Access::factor(0)),
        (12, blocks(3)),
        (4, ring()),
        (7, cuts(&[0, 2, 4], &[0, 5, 7])),
    ];
    for (extent, access) in fit {
        assert_eq!(told(extent, access.clone(), plain()), Ok(()), "{access:?}");
        let more = told(extent + 1, access.clone(), plain()).unwrap_err();
        let said = [
            format!("a dim of {} does not match the {extent} of", extent + 1),
            format!(
                "cuts of {extent} rows of 4 indices for {} rows of 4",
                extent + 1
            ),
        ];
        assert!(said.iter().any(|said| more.contains(said)), "{more}");
        let made = told(4, Access::factor(0), (access.clone(), extent));
        assert_eq!(made, Ok(()), "{access:?}");
        let fewer = told(4, Access::factor(0), (access, extent - 1)).unwrap_err();
        assert!(fewer.starts_with("miscounted: "), "{fewer}");
    }
    // Of other indices.
    let other = told(7, cuts(&[0, 2, 5], &[0, 5, 7]), plain()).unwrap_err();
    assert!(
        other.contains("cuts of 7 rows of 5 indices for 7 rows of 4"),
        "{other}"
    );
}

/// As many operands as are described, of as many dims, and results that can be counted.
#[test]
fn what_a_rule_describes_is_what_it_is_given() {
    let row = |n: usize| Meta {
        dtype: DType::F64,
        shape: [n][..].into(),
    };
    let told = |metas: &[Meta], input: Vec<Access>, made: &[usize]| {
        let mut builder = Rule::builder("described", metas);
        let i = builder.factor(4);
        let access = |d: usize| {
            if d == 0 {
                Access::factor(i)
            } else {
                Access::WHOLE
            }
        };
        let dims = (0..made.len()).map(access).collect();
        let rule = builder.input(input).output(dims, made.into(), DType::F64);
        rule.build().map(drop).map_err(|error| error.to_string())
    };
    let plain = || vec![Access::factor(0)];
    assert_eq!(told(&[row(4)], plain(), &[4]), Ok(()));
    let two = told(&[row(4), row(4)], plain(), &[4]).unwrap_err();
    assert_eq!(two, "described: expected 1 operand, got 2");
    let none = told(&[], plain(), &[4]).unwrap_err();
    assert_eq!(none, "described: expected 1 operand, got 0");
    let flat = told(&[row(4)], vec![Access::factor(0), Access::WHOLE], &[4]).unwrap_err();
    assert!(
        flat.contains("expected an operand of 2 dims, got [4]"),
        "{flat}"
    );
    let most = isize::MAX.unsigned_abs() / 8 / 4;
    assert_eq!(told(&[row(4)], plain(), &[4, most]), Ok(()));
    let large = told(&[row(4)], plain(), &[4, most + 1]).unwrap_err();
    assert!(large.contains("is larger than any memory"), "{large}");
}

/// Indices that are routed are named by an operand of integers.
#[test]
fn indices_that_are_routed_are_named() {
    let meta = |dtype, shape: &[usize]| Meta {
        dtype,
        shape: shape.into(),
    };
    let told = |index: DType, by: Option<usize>, dims: fn(usize, usize) -> [Vec<Access>; 2]| {
        let metas = [meta(DType::F64, &[9, 9]), meta(index, &[4])];
        let mut builder = Rule::builder("asked", &metas);
        let (row, i) = (builder.factor(9), builder.factor(4));
        let column = builder.factor(9);
        let [rows, names] = dims(row, i);
        let rule = builder.input(rows).input(names).output(
            vec![Access::factor(i), Access::factor(column)],
            [4, 9][..].into(),
            DType::F64,
        );
        let rule = match by {
            Some(by) => rule.routes(Routes::by(by)),
            None => rule,
        };
        rule.build().map(drop).map_err(|error| error.to_string())
    };
    let plain = |row, i| {
        let routed = Access::Routed { factor: row };
        [vec![routed, Access::factor(2)], vec![Access::factor(i)]]
    };
    assert_eq!(told(DType::I64, Some(1), plain), Ok(()));
    assert_eq!(told(DType::I32, Some(1), plain), Ok(()));
    let refused = [
        told(DType::F64, Some(1), plain),
        told(DType::I64, None, plain),
        told(DType::I64, Some(2), plain),
        // Another dim that every rank needs whole, and two that are routed.
        told(DType::I64, Some(1), |row, i| {
            let routed = Access::Routed { factor: row };
            [vec![routed, Access::WHOLE], vec![Access::factor(i)]]
        }),
        told(DType::I64, Some(1), |row, i| {
            let routed = |factor| Access::Routed { factor };
            [vec![routed(row), routed(2)], vec![Access::factor(i)]]
        }),
    ];
    for (i, told) in refused.into_iter().enumerate() {
        let told = told.expect_err(&i.to_string());
        assert!(told.contains("named by no operand"), "{i}: {told}");
    }
}

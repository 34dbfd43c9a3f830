//! Rules that do not describe their operands are refused.

use shard_comm::DType;
use shard_ops::{Access, Boundaries, Linearity, Meta, Routes, RowCuts, Rule, RuleBuilder};
use shard_spec::{DimMap, ResampleMode, Window};
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

/// What building a rule says of an op with one operand and one result, of a dim each, and one factor.
fn told(
    (extent, input): (usize, Access),
    factor: usize,
    (made, output): (usize, Access),
    more: fn(RuleBuilder) -> RuleBuilder,
) -> Result<(), String> {
    let row = Meta {
        dtype: DType::F64,
        shape: [extent][..].into(),
    };
    let mut builder = Rule::builder("read", std::slice::from_ref(&row));
    assert_eq!(builder.factor(factor), 0);
    let rule = builder.input(vec![input]);
    let rule = rule.output(vec![output], [made][..].into(), DType::F64);
    more(rule)
        .build()
        .map(drop)
        .map_err(|error| error.to_string())
}

/// An index map leads from the extent of its dim to that of its factor, and belongs to a move's operand.
#[test]
fn maps_are_between_the_extents_of_dim_and_factor() {
    let map = |map: DimMap| Access::Map {
        factor: 0,
        map,
        law: Boundaries::Scaled,
    };
    let every_other = || map(DimMap::slice(7, 0, 2, 4).unwrap());
    let plain = |n: usize| (n, Access::factor(0));
    let moves: fn(RuleBuilder) -> RuleBuilder = |rule| rule.moves(false);
    assert_eq!(told((7, every_other()), 4, plain(4), moves), Ok(()));
    let refused = [
        (8, 4, "has 8 indices and its factor 4"),
        (7, 5, "has 7 indices and its factor 5"),
    ];
    for (extent, factor, said) in refused {
        let told = told((extent, every_other()), factor, plain(factor), moves).unwrap_err();
        let begins =
            format!("read: dim 0 of operand 0 {said}, and its map leads from 7 to 4: DimMap");
        assert!(told.starts_with(&begins), "{told}");
    }
    let kernel = told((7, every_other()), 4, plain(4), |rule| rule).unwrap_err();
    assert!(kernel.contains("the op is no move"), "{kernel}");
    let result = told(plain(4), 4, (7, every_other()), moves).unwrap_err();
    assert!(
        result.starts_with("read: dim 0 of result 0 is indexed by Map"),
        "{result}"
    );
}

/// A window has as many outputs as its factor has indices; an adjoint's, as many inputs, and no fewer outputs than the dim.
#[test]
fn windows_are_between_the_extents_of_dim_and_factor() {
    let told =
        |input: (usize, Access), factor| told(input, factor, (factor, Access::factor(0)), |r| r);
    let window = |window: &Window| Access::Window {
        factor: 0,
        window: window.clone(),
    };
    let adjoint = |window: &Window| Access::Adjoint {
        factor: 0,
        window: window.clone(),
    };
    let conv = Window::conv(3, 2, 1, 1, 1).unwrap();
    assert_eq!(told((9, window(&conv)), 5), Ok(()));
    for factor in [4, 6] {
        let told = told((9, window(&conv)), factor).unwrap_err();
        let said = format!("of 9 inputs the window has 5 outputs, not {factor}: Direct");
        assert!(
            told.starts_with(&format!("read: dim 0 of operand 0: {said}")),
            "{told}"
        );
    }
    assert_eq!(told((5, adjoint(&conv)), 9), Ok(()));
    assert_eq!(
        told((4, adjoint(&conv)), 9),
        Ok(()),
        "the last output is left out"
    );
    let more = told((6, adjoint(&conv)), 9).unwrap_err();
    assert!(
        more.contains("of 9 inputs the window has 5 outputs, not 6: Direct"),
        "{more}"
    );
    // One that does not fit has no outputs, and one that is made for another extent none to ask for.
    let wide = Window::conv(7, 1, 1, 0, 0).unwrap();
    assert_eq!(told((4, window(&wide)), 0), Ok(()));
    let none = told((4, window(&wide)), 1).unwrap_err();
    assert!(none.contains("the window has no outputs ("), "{none}");
    let other = Window::resample(8, 16, ResampleMode::Nearest, None).unwrap();
    assert_eq!(told((8, window(&other)), 16), Ok(()));
    let none = told((9, window(&other)), 16).unwrap_err();
    assert!(none.contains("the window has no outputs ("), "{none}");
    let result = super::rules::told((5, Access::factor(0)), 5, (9, window(&conv)), |r| r);
    let result = result.unwrap_err();
    assert!(
        result.starts_with("read: dim 0 of result 0 is indexed by Window"),
        "{result}"
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

//! Cases that no file has.

use shard_ops::testing::tensor;
use xtests::case::{Data, Tensor};
use xtests::made::types::Kind;
use xtests::made::{Windows, neighborhoods, stats, types};

/// The definition, on the example of NATTEN's documentation: seven sites, windows of three.
#[test]
fn windows_are_shifted_inwards() {
    let windows = |causal| Windows {
        spatial: vec![7],
        kernel: vec![3],
        dilation: vec![1],
        causal: vec![causal],
    };
    let seen =
        |causal, q| -> Vec<usize> { (0..7).filter(|&k| windows(causal).sees(q, k)).collect() };
    assert_eq!(
        [0, 1, 3, 6].map(|q| seen(false, q)),
        [[0, 1, 2], [0, 1, 2], [2, 3, 4], [4, 5, 6]]
    );
    assert_eq!(seen(true, 0), [0]);
    assert_eq!(seen(true, 6), [4, 5, 6]);
}

/// The mask of a grid, made of its dims', is what each site sees.
#[test]
fn masks_are_what_sites_see() {
    let windows = Windows {
        spatial: vec![5, 3, 4],
        kernel: vec![2, 3, 2],
        dilation: vec![2, 1, 2],
        causal: vec![false, true, false],
    };
    let mask = windows.mask();
    assert_eq!(mask.len(), 60 * 60);
    for (at, seen) in mask.iter().enumerate() {
        assert_eq!(seen.get(), windows.sees(at / 60, at % 60), "{at}");
    }
}

#[test]
fn references_are_there() {
    for case in neighborhoods() {
        let Tensor { shape, .. } = &case.outputs[0];
        assert_eq!(
            shape[..shape.len() - 1],
            case.inputs[0].1.shape[..shape.len() - 1]
        );
        assert_eq!(case.gradients.len(), 3, "{}", case.name);
        assert_ne!(
            case.gradients[0].1.data,
            tensor(&case.inputs[0].1.shape, |_| 0.0).data
        );
    }
}

#[test]
fn every_case_has_a_reference_and_most_have_gradients() {
    let cases = stats::cases();
    assert!(cases.iter().all(|case| !case.outputs.is_empty()));
    let slopes = cases.iter().filter(|case| !case.gradients.is_empty());
    assert!(2 * slopes.count() > cases.len());
}

#[test]
fn operands_have_zeros_ties_and_numbers_that_wrap() {
    for case in types::cases() {
        assert!(!case.outputs.is_empty(), "{}", case.name);
    }
    let numbers = |kind: Kind| kind.tensor(&[40], 1).data;
    let Data::I64(large) = &*numbers(Kind::Large) else {
        panic!("whole numbers")
    };
    let exact: i128 = large.iter().map(|&x| i128::from(x.unsigned_abs())).sum();
    assert!(exact > i128::from(i64::MAX) && large.contains(&0));
    let Data::Bool(truths) = &*numbers(Kind::Truth) else {
        panic!("truth values")
    };
    assert!(truths.contains(&0) && truths.contains(&1));
}

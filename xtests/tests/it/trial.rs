//! What ranks found together, and the meshes they are on.

use xtests::run::meshes;
use xtests::trial::{RankError, Verdict, judge};

#[test]
fn ranks_must_agree() {
    let error = |refusal, t: &str| {
        Err(RankError {
            refusal,
            ends_group: false,
            text: t.to_owned(),
        })
    };
    let refuse = |t: &str| error(true, t);
    let wrong = |t: &str| error(false, t);
    assert_eq!(judge(&[Ok(1), Ok(1)]), Verdict::Pass);
    assert!(matches!(judge(&[Ok(1), Ok(2)]), Verdict::Fail(_)));
    assert!(matches!(judge(&[Ok(1), refuse("no")]), Verdict::Fail(_)));
    assert_eq!(
        judge(&[refuse("no"), refuse("no")]),
        Verdict::Refused("no".into())
    );
    assert!(matches!(
        judge(&[refuse("no"), refuse("other")]),
        Verdict::Fail(_)
    ));
    assert!(matches!(
        judge(&[refuse("no"), wrong("no")]),
        Verdict::Fail(_)
    ));
}

#[test]
fn meshes_of_four_and_six_come_in_two_shapes() {
    let shapes = |ranks: &[usize]| -> Vec<Vec<usize>> {
        meshes(ranks).iter().map(|m| m.shape().to_vec()).collect()
    };
    assert_eq!(shapes(&[1, 4]), [vec![1], vec![4], vec![2, 2]]);
    assert_eq!(shapes(&[6, 0]), [vec![6], vec![2, 3]]);
}

//! Where pieces lie in files, and which file is whose.

use shard_spec::{DimPart, Partition};
use shard_tensor::inside::{Place, mark, same};

fn runs(shape: &[usize], held: &[DimPart]) -> Vec<(u64, usize)> {
    let place = Place {
        at: 100,
        shape: shape.to_vec(),
        size: 4,
    };
    let mut runs = Vec::new();
    let mut note = |at, len| {
        runs.push((at, len));
        Ok(())
    };
    place.runs(held, &mut note).unwrap();
    runs
}

#[test]
fn runs_are_as_long_as_they_can_be() {
    assert_eq!(runs(&[], &[]), [(100, 4)]);
    assert_eq!(runs(&[3, 5], &[(0..3).into(), (0..5).into()]), [(100, 60)]);
    assert_eq!(runs(&[3, 5], &[(1..3).into(), (0..5).into()]), [(120, 40)]);
    assert_eq!(
        runs(&[3, 5], &[(1..3).into(), (2..4).into()]),
        [(128, 8), (148, 8)]
    );
    assert_eq!(runs(&[3, 5], &[(1..1).into(), (2..4).into()]), []);
    assert_eq!(runs(&[3, 0], &[(0..3).into(), (0..0).into()]), []);
    let zigzag = Partition::zigzag(8, 2).part(0);
    assert_eq!(
        runs(&[8, 2], &[zigzag.clone(), (0..2).into()]),
        [(100, 16), (148, 16)]
    );
    assert_eq!(
        runs(&[2, 8], &[(1..2).into(), zigzag]),
        [(132, 8), (156, 8)]
    );
}

#[test]
fn another_file_of_the_same_name_is_noticed() {
    let path = std::env::temp_dir().join(format!("shard-tensor-mark-{}", std::process::id()));
    let (first, other) = (mark(), mark());
    std::fs::write(&path, [&first[..], b"more"].concat()).unwrap();
    same(&path, &first).unwrap();
    assert!(same(&path, &other).unwrap_err().contains("another file"));
    std::fs::write(&path, b"short").unwrap();
    assert!(same(&path, &first).is_err());
    std::fs::remove_file(&path).unwrap();
    assert!(same(&path, &first).is_err());
}

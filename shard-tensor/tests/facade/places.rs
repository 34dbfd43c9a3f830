//! What several indices name together, and masks.

use crate::indexing::{number, same_on_all_layouts};
use ndarray::{Array1, Array2, array};
use shard_tensor::{Bool, launch, replicate, shard};

#[test]
fn what_several_indices_name_is_picked() {
    let picked = same_on_all_layouts(|x, index, _, mesh| {
        let columns = mesh.distribute(&array![0_i64, -1, 2], [replicate()])?;
        x.index(0, &[index, &columns])
    });
    let (mut whole, mut slope) = (Array2::<f64>::zeros((7, 3)), Array2::<f64>::zeros((9, 4)));
    for ((a, b), picked) in whole.indexed_iter_mut() {
        let place = [(5 * a + 7 * b * a) % 9, [0, 3, 2][b]];
        *picked = number(&place);
    }
    let seven = |a: usize| (7 + a) % 11;
    for (a, b) in (0..7).flat_map(|a| (0..3).map(move |b| (a, b))) {
        slope[[(5 * a + 7 * b * a) % 9, [0, 3, 2][b]]] += 1.0 + ((7 * seven(a) + b) % 11) as f64;
    }
    assert_eq!(picked, [whole.into_dyn(), slope.into_dyn()]);

    // An index of several dims in the place of the last dim, and rows where a mask says so.
    let index = |a: usize, b: usize| (a + 2 * b) % 4;
    let wide = same_on_all_layouts(|x, _, _, mesh| {
        let index = Array2::from_shape_fn((2, 3), |(a, b)| ((a + 2 * b) % 4) as i64);
        x.index(-1, &[&mesh.distribute(&index, [shard(0)])?])
    });
    assert_eq!(wide[0].shape(), [9, 2, 3]);
    let mut all = wide[0].indexed_iter();
    assert!(all.all(|(i, &x)| x == number(&[i[0], index(i[1], i[2])])));
    let masked = same_on_all_layouts(|x, _, _, mesh| {
        let mask = Array1::from_shape_fn(9, |a| Bool::from(a % 3 == 1));
        x.index(0, &[&mesh.distribute(&mask, [shard(0)])?])
    });
    let mut all = masked[0].indexed_iter();
    assert_eq!(masked[0].shape(), [3, 4]);
    assert!(all.all(|(i, &x)| x == number(&[3 * i[0] + 1, i[1]])));
    for (i, &slope) in masked[1].indexed_iter() {
        assert_eq!(slope != 0.0, i[0] % 3 == 1);
    }

    // A mask of both dims is those of its elements, for a number too.
    let filled = same_on_all_layouts(|x, _, _, _| x.index_put(&[&x.gt_scalar(2.0)?], 9, false));
    for (i, &x) in filled[0].indexed_iter() {
        let own = number(&[i[0], i[1]]);
        assert_eq!(x, if own > 2.0 { 9.0 } else { own });
    }
}

#[test]
fn places_that_are_none_are_errors_on_all_ranks() {
    let told = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([3, 4], shard(0))?;
        let list = |of: [i64; 2]| mesh.distribute(&Array1::from(of.to_vec()), shard(0));
        // As one number 0 * 4 + 5 would be a place.
        let beyond = x.index(0, &[&list([0, 1])?, &list([0, 5])?]).unwrap_err();
        let mask = mesh.ones([4], shard(0))?.gt_scalar(0.0)?;
        let other = x.index(0, &[&mask]).unwrap_err();
        let index = list([0, 1])?;
        let many = x.index(1, &[&index, &index]).unwrap_err();
        let none = x.index(0, &[]).unwrap_err();
        Ok([beyond, other, many, none].map(|e| e.to_string()))
    });
    let told = told.unwrap();
    assert_eq!(told[0], told[2]);
    assert!(
        told[0][0].contains("got index 5 at position [1]"),
        "{}",
        told[0][0]
    );
    assert!(
        told[0][1].contains("a mask has other extents than the dims from 0 on"),
        "{}",
        told[0][1]
    );
    for text in &told[0][2..] {
        assert!(text.contains("no indices, or more than dims"), "{text}");
    }
}

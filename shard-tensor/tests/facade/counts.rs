//! How often values occur, by hand.

use ndarray::{Array1, Array2, array};
use shard_tensor::{Bins, DType, DeviceMesh, Error, ErrorClass, Launch, launch, shard};

#[test]
fn different_elements_are_found_once_in_order() {
    let x: Array2<i64> = Array2::from_shape_fn((7, 5), |(i, j)| ((i * i + 3 * j) % 11) as i64 - 4);
    let mut values: Vec<i64> = x.iter().copied().collect();
    values.sort_unstable();
    values.dedup();
    for ranks in [1, 2, 5] {
        let found = launch(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.distribute(&x, [shard(ranks % 2)])?;
            let found = x.unique_all()?;
            assert_eq!(
                x.unique()?.to_array::<i64>()?,
                found.values.to_array::<i64>()?
            );
            Ok((
                found.values.to_array::<i64>()?,
                found.inverse.to_array::<i64>()?,
                found.counts.to_array::<i64>()?,
            ))
        });
        for (found, inverse, counts) in found.unwrap() {
            assert_eq!(found.as_slice(), Some(&values[..]));
            assert_eq!(inverse.shape(), x.shape());
            for (&i, &x) in inverse.iter().zip(&x) {
                assert_eq!(values[i as usize], x);
            }
            for (value, &count) in values.iter().zip(&counts) {
                assert_eq!(x.iter().filter(|x| *x == value).count() as i64, count);
            }
        }
    }
}

#[test]
fn runs_end_where_elements_change_across_ranks_too() {
    let x = array![2.0_f32, 2.0, 2.0, f32::NAN, f32::NAN, 2.0, -0.0, 0.0];
    let found = launch(4, |ctx| {
        let x = ctx
            .mesh_of(4)?
            .distribute(&x, [shard(0).sizes([1, 0, 4, 3])])?;
        let found = x.unique_consecutive()?;
        let counts = found.counts.to_array::<i64>()?;
        Ok((counts, found.inverse.to_array::<i64>()?))
    });
    for (counts, inverse) in found.unwrap() {
        // NaN differs from itself, zeros do not.
        assert_eq!(counts.as_slice(), Some(&[3, 1, 1, 1, 2][..]));
        assert_eq!(inverse.as_slice(), Some(&[0, 0, 0, 1, 2, 3, 4, 4][..]));
    }
}

#[test]
fn bins_are_those_of_numpy() {
    let x: Array1<f64> = array![-3.0, -1.0, 0.0, 0.5, 1.0, 1.0, f64::NAN, 2.0, 7.0];
    let weights = Array1::from_shape_fn(9, |i| (1 + i) as f64);
    for ranks in [1, 3] {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let x = mesh.distribute(&x, [shard(0)])?;
            let weights = mesh.distribute(&weights, [shard(0)])?;
            let mut all = Vec::new();
            let ends = (3, -1.0..2.0);
            for (weights, density) in [(None, false), (None, true), (Some(&weights), false)] {
                all.push(
                    x.histogram(ends.clone(), weights, density)?
                        .0
                        .to_array::<f64>()?,
                );
            }
            let edges = mesh.distribute(&array![-4.0, 0.0, 0.25, 7.0], [shard(0)])?;
            all.push(x.histogram(&edges, None, false)?.0.to_array::<f64>()?);
            all.push(x.histc(3, -1.0..2.0)?.to_array::<f64>()?);
            let finite = x.narrow(0, 0..6)?;
            let (counts, edges) = finite.histogram(4, None, false)?;
            all.extend([counts.to_array::<f64>()?, edges.to_array::<f64>()?]);
            Ok(all)
        });
        for all in found.unwrap() {
            let expected: [&[f64]; 7] = [
                &[1.0, 2.0, 3.0],
                &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0],
                &[2.0, 7.0, 19.0],
                &[2.0, 1.0, 5.0],
                &[1.0, 2.0, 3.0],
                &[1.0, 0.0, 1.0, 4.0],
                &[-3.0, -2.0, -1.0, 0.0, 1.0],
            ];
            for (found, expected) in all.iter().zip(expected) {
                assert_eq!(found.as_slice(), Some(expected));
            }
        }
    }
}

#[test]
fn extents_that_the_data_decides_are_known_outside_the_mesh() {
    let found = launch(3, |ctx| {
        let mesh = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![2, 0])?)?;
        let x = mesh.distribute(&array![3_i64, 0, 5], [shard(0)])?;
        let all = [
            x.bincount(None, 2)?,
            x.one_hot(None)?,
            x.unique()?,
            x.unique_all()?.counts,
        ];
        Ok(all.map(|found| found.shape().to_vec()))
    });
    for found in found.unwrap() {
        assert_eq!(found, [vec![6], vec![3, 6], vec![3], vec![3]]);
    }
}

#[test]
fn what_cannot_be_counted_is_refused_alike() {
    let refused = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let whole = mesh.distribute(&array![3_i64, -2, 5], [shard(0)])?;
        let floats = whole.to(DType::F32)?;
        let infinite = floats.div_scalar(0.0)?;
        let mask = whole.gt_scalar(-9.0)?;
        let errors: [Error; 8] = [
            whole.bincount(None, 0).unwrap_err(),
            floats.bincount(None, 0).unwrap_err(),
            whole.histogram(3, None, false).unwrap_err(),
            floats.histogram(0, None, false).unwrap_err(),
            infinite.histogram(3, None, false).unwrap_err(),
            floats
                .histogram(Bins::Count(3, Some(2.0..1.0)), None, false)
                .unwrap_err(),
            floats.histc(3, 0.0..f64::INFINITY).unwrap_err(),
            floats
                .masked_scatter(&mask, &floats.narrow(0, 0..2)?)
                .unwrap_err(),
        ];
        Ok(errors.map(|e| (e.class(), e.to_string())))
    });
    let refused = refused.unwrap();
    assert_eq!(refused[0], refused[1]);
    for (class, text) in &refused[0] {
        assert_ne!(*class, ErrorClass::Failure, "{text}");
    }
    assert!(
        refused[0][7].1.contains("2 elements for 3 places"),
        "{}",
        refused[0][7].1
    );
}

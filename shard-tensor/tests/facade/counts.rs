//! How often values occur, by hand.

use ndarray::{Array1, Array2, Array3, Axis, arr1, array};
use shard_tensor::{Bins, DType, DeviceMesh, Error, ErrorClass, Launch, Unique, launch, shard};

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

/// Different rows in lexicographic order, which of them each row is, and how many are each, by hand.
fn different_rows(rows: &[Vec<i64>]) -> (Vec<Vec<i64>>, Vec<i64>, Vec<i64>) {
    let mut values = rows.to_vec();
    values.sort();
    values.dedup();
    let place = |row: &Vec<i64>| values.iter().position(|v| v == row).unwrap() as i64;
    let inverse: Vec<i64> = rows.iter().map(place).collect();
    let count = |k: usize| inverse.iter().filter(|&&i| i == k as i64).count() as i64;
    let counts = (0..values.len()).map(count).collect();
    (values, inverse, counts)
}

#[test]
fn different_rows_are_found_once_in_order_under_all_layouts() {
    // Few values in each place, so that rows recur and ties go on.
    let x = Array3::from_shape_fn((4, 17, 2), |(i, j, k)| {
        (j * j * (i % 2 + 1) + 3 * k * (j % 4)) as i64 % 3 - 1
    });
    for dim in 0..3 {
        let rows: Vec<Vec<i64>> = (x.axis_iter(Axis(dim)))
            .map(|at| at.iter().copied().collect())
            .collect();
        let (values, inverse, counts) = different_rows(&rows);
        for ranks in [1, 2, 5] {
            for sharded in 0..3 {
                let found = launch(ranks, |ctx| {
                    let mesh = ctx.mesh_of(ranks)?;
                    let x = mesh.distribute(&x, [shard(sharded)])?;
                    let from_end = dim as isize - 3;
                    let found = x.unique_dim(from_end)?;
                    let halves = x.to(DType::F16)?.unique_dim(dim)?;
                    let (half, whole) = (halves.values.to(DType::I64)?, &found.values);
                    assert_eq!(half.to_array::<i64>()?, whole.to_array::<i64>()?);
                    Ok((
                        found.values.to_array::<i64>()?,
                        found.inverse.to_array::<i64>()?,
                        found.counts.to_array::<i64>()?,
                    ))
                });
                for (got, places, many) in found.unwrap() {
                    let got: Vec<Vec<i64>> = (got.axis_iter(Axis(dim)))
                        .map(|at| at.iter().copied().collect())
                        .collect();
                    assert_eq!(got, values, "dim {dim}, {ranks} ranks");
                    assert_eq!(places.as_slice(), Some(&inverse[..]));
                    assert_eq!(many.as_slice(), Some(&counts[..]));
                }
            }
        }
    }
}

#[test]
fn runs_of_rows_end_where_rows_change_and_odd_rows_are_themselves() {
    let nan = f32::NAN;
    let x = array![
        [1.0, 2.0],
        [1.0, 2.0],
        [nan, 0.0],
        [nan, 0.0],
        [1.0, 2.0],
        [-0.0, 1.0],
        [0.0, 1.0]
    ];
    let found = launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.distribute(&x, [shard(0).sizes([1, 0, 4, 2])])?;
        let runs = x.unique_consecutive_dim(0)?;
        let sets = x.unique_dim(0)?;
        let none = mesh.zeros([0, 3], [shard(0)])?.unique_dim(0)?;
        assert_eq!(none.values.shape(), [0, 3]);
        let placeless = mesh.zeros([3, 0], [shard(0)])?.unique_dim(0).unwrap_err();
        assert_eq!(placeless.class(), ErrorClass::Uniform, "{placeless}");
        let of = |found: &Unique| {
            let (counts, inverse) = (&found.counts, &found.inverse);
            Ok::<_, Error>((counts.to_array::<i64>()?, inverse.to_array::<i64>()?))
        };
        Ok([of(&runs)?, of(&sets)?])
    });
    for [(counts, inverse), (set_counts, set_inverse)] in found.unwrap() {
        // A row with NaN differs from itself, zeros do not.
        assert_eq!(counts.as_slice(), Some(&[2, 1, 1, 1, 2][..]));
        assert_eq!(inverse.as_slice(), Some(&[0, 0, 1, 2, 3, 4, 4][..]));
        assert_eq!(set_counts.as_slice(), Some(&[2, 3, 1, 1][..]));
        assert_eq!(set_inverse.as_slice(), Some(&[1, 1, 2, 3, 1, 0, 0][..]));
    }
}

#[test]
fn boxes_are_those_of_numpy() {
    // Three numbers of each of 23 points; some lie outside, on edges, or nowhere.
    let mut x = Array2::from_shape_fn((23, 3), |(i, k)| {
        ((7 * i + 5 * k * i + k) % 11) as f64 / 2.0
    });
    x[[4, 1]] = f64::NAN;
    let weights = Array1::from_shape_fn(23, |i| (1 + i % 4) as f64);
    let ends: [&[f64]; 3] = [
        &[0.0, 1.0, 2.0, 3.0, 4.0],
        &[0.5, 1.0, 5.0],
        &[1.0, 2.0, 3.0],
    ];
    let place = |edges: &[f64], v: f64| {
        let last = edges.len() - 1;
        let at = (0..last).find(|&k| edges[k] <= v && (v < edges[k + 1]))?;
        Some(at)
    };
    let place = |edges: &[f64], v: f64| match v == edges[edges.len() - 1] {
        true => Some(edges.len() - 2),
        false => place(edges, v),
    };
    let (mut counts, mut sums) = (vec![0.0; 16], vec![0.0; 16]);
    for (row, &weight) in x.outer_iter().zip(&weights) {
        let at: Option<Vec<usize>> = (0..3).map(|k| place(ends[k], row[k])).collect();
        if let Some(at) = at {
            let number = (at[0] * 2 + at[1]) * 2 + at[2];
            counts[number] += 1.0;
            sums[number] += weight;
        }
    }
    let total: f64 = counts.iter().sum();
    assert!(total > 5.0 && total < 22.0);
    let volume = |number: usize| {
        if (number / 2).is_multiple_of(2) {
            0.5
        } else {
            4.0
        }
    };
    let density: Vec<f64> = (counts.iter().enumerate())
        .map(|(k, c)| c / total / volume(k))
        .collect();
    for ranks in [1, 3] {
        for sharded in 0..2 {
            let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let x = mesh.distribute(&x, [shard(sharded)])?;
                let weights = mesh.distribute(&weights, [shard(0)])?;
                let middle = mesh.distribute(&array![0.5, 1.0, 5.0], [shard(0)])?;
                let bins = [(4, 0.0..4.0).into(), (&middle).into(), (2, 1.0..3.0).into()];
                let (counts, edges) = x.histogramdd(&bins, None, false)?;
                assert_eq!(
                    edges[2].to_array::<f64>()?.as_slice(),
                    Some(&[1.0, 2.0, 3.0][..])
                );
                let (sums, _) = x.histogramdd(&bins, Some(&weights), false)?;
                let (density, _) = x.histogramdd(&bins, None, true)?;
                // Without ends those of each coordinate are taken.
                let finite = x.narrow(0, 5..20)?;
                let (all, ends) =
                    finite.histogramdd(&[2.into(), 3.into(), 1.into()], None, false)?;
                assert_eq!((all.sum_all()?.item()?, ends.len()), (15.0, 3));
                // A coordinate by itself is a histogram.
                let (one, _) = x.narrow(1, 0..1)?.histogramdd(&bins[..1], None, false)?;
                let (same, _) = x.narrow(1, 0..1)?.histogram((4, 0.0..4.0), None, false)?;
                assert_eq!(one.to_array::<f64>()?, same.to_array::<f64>()?);
                assert!(x.histogramdd(&bins[..2], None, false).is_err());
                assert_eq!(counts.shape(), [4, 2, 2]);
                let all = [counts, sums, density].map(|of| of.to_array::<f64>());
                all.into_iter().collect::<Result<Vec<_>, _>>()
            });
            for all in found.unwrap() {
                assert_eq!(all[0].as_slice(), Some(&counts[..]));
                assert_eq!(all[1].as_slice(), Some(&sums[..]));
                for (got, expected) in all[2].iter().zip(&density) {
                    assert!((got - expected).abs() < 1e-14, "{got} {expected}");
                }
            }
        }
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

/// NumPy's and PyTorch's edges of what has no ends.
#[test]
fn bins_of_nothing_are_from_0_to_1() {
    launch(2, |ctx| {
        let nothing = ctx.mesh_of(2)?.zeros([0, 2], shard(0))?;
        let (counts, edges) = nothing.histogram(4, None, false)?;
        assert_eq!(counts.sum_all()?.item()?, 0.0);
        let exact = arr1(&[0.0_f32, 0.25, 0.5, 0.75, 1.0]).into_dyn();
        assert_eq!(edges.to_array::<f32>()?, exact);
        let (_, edges) = nothing.histogramdd(&[1.into(), 4.into()], None, false)?;
        assert_eq!(edges[1].to_array::<f32>()?, exact);
        Ok(())
    })
    .unwrap();
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
            x.unique_dim(0)?.counts,
        ];
        Ok(all.map(|found| found.shape().to_vec()))
    });
    for found in found.unwrap() {
        assert_eq!(found, [vec![6], vec![3, 6], vec![3], vec![3], vec![3]]);
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

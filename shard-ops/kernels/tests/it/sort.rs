use shard_kernels::search::Sortable;
use shard_kernels::sort::*;

use core::cmp::Ordering;
use shard_kernels::cuts::heads;

/// What sorting pairs by comparison gives.
fn by_comparing<T: Sortable>(values: &[T], descending: bool) -> Vec<i64> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|&a, &b| match descending {
        false => values[a].order(values[b]),
        true => values[b].order(values[a]),
    });
    places.into_iter().map(|p| p as i64).collect()
}

fn check<T: Sortable + PartialEq + core::fmt::Debug>(values: &[T]) {
    let mut sorter = Sorter::default();
    let same = |a: T, b: T| a == b || a.order(b) == Ordering::Equal;
    for descending in [false, true] {
        let expected = by_comparing(values, descending);
        for wanted in [values.len(), values.len() / 2, values.len().min(3), 0] {
            let mut sorted = vec![T::default(); wanted];
            let mut places = vec![0; wanted];
            sorter.sort(values, 7, descending, &mut sorted, &mut places);
            let expected: Vec<i64> = expected[..wanted].iter().map(|p| p + 7).collect();
            assert_eq!(places, expected);
            let right =
                (sorted.iter().zip(&places)).all(|(&v, &p)| same(v, values[p as usize - 7]));
            assert!(right, "{descending} {wanted} of {}", values.len());
        }
    }
}

fn spread(i: i64) -> i64 {
    (i ^ (i << 7)).wrapping_mul(0x5DEE_CE66_D765_4321)
}

#[test]
fn runs_are_sorted_as_by_comparison() {
    for count in [0, 1, 99, 3000] {
        let wide: Vec<i64> = (0..count)
            .map(spread)
            .chain([i64::MIN, i64::MAX, 0, -1, 0])
            .collect();
        check(&wide);
        check(&wide.iter().map(|i| i >> 41).collect::<Vec<_>>());
        check(&wide.iter().map(|&i| i as i32).collect::<Vec<_>>());
        check(&wide.iter().map(|&i| i as u8).collect::<Vec<_>>());
        let odd = [
            f64::NAN,
            -f64::NAN,
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            -1e-320,
            1e-320,
        ];
        let floats: Vec<f64> = wide.iter().map(|&i| i as f64 * 1e-9).chain(odd).collect();
        check(&floats);
        check(&floats.iter().map(|&x| x as f32).collect::<Vec<_>>());
        check(&vec![f32::NAN; count as usize]);
        check(&vec![1.5_f32; count as usize]);
    }
    check::<f32>(&[]);
}

#[test]
fn elements_keep_their_bits() {
    let payload = f32::from_bits(0xFFC1_2345);
    let mut values: Vec<f32> = (0..2000).map(|i| f32::from(i as i16) - 1000.0).collect();
    (values[3], values[5], values[1000]) = (payload, -0.0, 0.0);
    let (mut sorted, mut places) = (vec![0.0; 2000], vec![0; 2000]);
    Sorter::default().sort(&values, 0, false, &mut sorted, &mut places);
    for (v, &p) in sorted.iter().zip(&places) {
        assert_eq!(v.to_bits(), values[p as usize].to_bits());
    }
}

#[test]
fn any_stretch_of_merged_runs_is_that_of_all_sorted() {
    for descending in [false, true] {
        for ends in [&[0, 9, 9, 20, 31][..], &[31], &[1, 2, 31], &[12, 31]] {
            let mut all: Vec<f64> = (0..31).map(|i| f64::from(i * 7919 % 13)).collect();
            all[17] = f64::NAN;
            let expected = by_comparing(&all, descending);
            let (mut values, mut indices) = (vec![0.0; 31], vec![0; 31]);
            let mut runs = Vec::new();
            for (&from, &end) in [0].iter().chain(ends).zip(ends) {
                Sorter::default().sort(
                    &all[from..end],
                    from as i64,
                    descending,
                    &mut values[from..end],
                    &mut indices[from..end],
                );
                runs.push(from..end);
            }
            let lens: Vec<usize> = runs.iter().map(ExactSizeIterator::len).collect();
            let rank = |run: usize, at: usize| rank(values[runs[run].start + at], descending);
            for start in 0..=31 {
                for end in start..=31 {
                    let (from, to) = (heads(&lens, rank, start), heads(&lens, rank, end));
                    let parts: Vec<SortedRun<'_, f64>> = (runs.iter().zip(from.iter().zip(&to)))
                        .map(|(run, (a, b))| run.start + a..run.start + b)
                        .map(|part| (&values[part.clone()], &indices[part]))
                        .collect();
                    let (mut made, mut found) = (vec![0.0; end - start], vec![0; end - start]);
                    merge(&parts, descending, &mut made, &mut found);
                    assert_eq!(found, expected[start..end], "{start}..{end} of {ends:?}");
                }
            }
        }
    }
}

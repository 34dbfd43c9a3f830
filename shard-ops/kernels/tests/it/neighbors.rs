//! Searches against sorting all points, bit for bit: ties, duplicates, special values, any split and order.

use crate::testing::Rng;
use shard_kernels::neighbors::*;
use shard_kernels::{Positions, Real, View};

/// Queries and points `[n, dim]` with distinct global indexes.
struct Case<T> {
    dim: usize,
    queries: Vec<T>,
    points: Vec<T>,
    index: Vec<i64>,
}

impl<T: Real> Case<T> {
    fn random(rng: &mut Rng, most: usize, dims: usize) -> Self {
        let (dim, kind) = (rng.within(1, dims), rng.within(0, 3));
        let (queries, points) = (rng.within(0, 20), rng.within(0, most));
        let mut coordinate = || match kind {
            // A coarse lattice: many equal distances and duplicates.
            0 | 1 => T::of(rng.within(0, 6) as f64),
            2 if rng.within(0, 20) == 0 => {
                [T::nan(), T::infinity(), T::neg_infinity()][rng.within(0, 2)]
            }
            _ => T::of(rng.unit()),
        };
        let queries = (0..queries * dim).map(|_| coordinate()).collect();
        let points_data = (0..points * dim).map(|_| coordinate()).collect();
        let mut index: Vec<i64> = (0..points as i64).map(|i| 3 * i + 1).collect();
        for i in (1..points).rev() {
            index.swap(i, rng.within(0, i));
        }
        Self {
            dim,
            queries,
            points: points_data,
            index,
        }
    }

    fn count(&self) -> usize {
        self.queries.len() / self.dim
    }

    fn queries(&self) -> View<'_, T> {
        View::contiguous(&self.queries, &[self.count(), self.dim])
    }

    /// All (squared distance, index) of a query, sorted; NaN last.
    fn sorted(&self, query: usize) -> Vec<(T, i64)> {
        let q = &self.queries[query * self.dim..][..self.dim];
        let distance = |p: &[T]| {
            p.iter()
                .zip(q)
                .fold(T::zero(), |sum, (&p, &q)| sum + (p - q) * (p - q))
        };
        let mut all: Vec<(T, i64)> = self
            .points
            .chunks(self.dim)
            .map(distance)
            .zip(self.index.iter().copied())
            .collect();
        all.sort_by(|(a, i), (b, j)| {
            let numbers = a.partial_cmp(b);
            numbers
                .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                .then(i.cmp(j))
        });
        all
    }

    /// Calls `fold` with blocks of points in random order, some empty, some strided.
    fn blocks(&self, rng: &mut Rng, mut fold: impl FnMut(&View<'_, T>, Positions<'_>)) {
        let count = rng.within(1, 4);
        let mut blocks = vec![Vec::new(); count];
        let mut order: Vec<usize> = (0..self.index.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.within(0, i));
        }
        for i in order {
            blocks[rng.within(0, count - 1)].push(i);
        }
        for rows in blocks {
            let index: Vec<i64> = rows.iter().map(|&i| self.index[i]).collect();
            let data: Vec<T> = (0..self.dim)
                .flat_map(|d| rows.iter().map(move |&i| self.points[i * self.dim + d]))
                .collect();
            let columns = View::contiguous(&data, &[self.dim, rows.len()]);
            fold(&columns.permute(&[1, 0]), Positions::List(&index));
        }
    }
}

const SEARCHES: [Search; 3] = [Search::Auto, Search::Exhaustive, Search::Tree];

/// Numbers as bits, with NaN as one value: sign and payload of a computed NaN mean nothing.
fn bits<T: Real>(values: &[T]) -> Vec<Option<u64>> {
    values
        .iter()
        .map(|x| (!x.is_nan()).then(|| x.wide().to_bits()))
        .collect()
}

fn nearest_is_the_head_of_the_sorted_list<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..200 {
        let dims = if round % 10 == 0 { 40 } else { 5 };
        let case = Case::<T>::random(&mut rng, 400, dims);
        let k = rng.within(0, if round % 5 == 0 { 200 } else { 20 });
        for how in SEARCHES {
            let mut state = Nearest::new(case.count(), k);
            let mut other = Nearest::new(case.count(), k);
            let mut turn = 0;
            case.blocks(&mut rng, |points, index| {
                turn += 1;
                let state = if turn % 2 == 0 {
                    &mut other
                } else {
                    &mut state
                };
                state.fold_by(how, &case.queries(), points, index);
            });
            let (distances, indexes) = other.into_parts();
            state.merge(&Nearest::from_parts(k, distances, indexes));
            let (mut distances, mut indexes) =
                (vec![T::zero(); case.count() * k], vec![0; case.count() * k]);
            state.finish(&mut distances, &mut indexes);
            for query in 0..case.count() {
                let mut expected: Vec<(T, i64)> = case
                    .sorted(query)
                    .iter()
                    .map(|(d, i)| (d.sqrt(), *i))
                    .collect();
                expected.resize(expected.len().max(k), (T::infinity(), -1));
                let (d, i): (Vec<T>, Vec<i64>) = expected[..k].iter().copied().unzip();
                let row = query * k..(query + 1) * k;
                assert_eq!(indexes[row.clone()], i, "{how:?}, round {round}");
                assert_eq!(bits(&distances[row]), bits(&d), "{how:?}, round {round}");
            }
        }
    }
}

#[test]
fn nearest_neighbours_match_sorting_bit_for_bit() {
    nearest_is_the_head_of_the_sorted_list::<f32>(1);
    nearest_is_the_head_of_the_sorted_list::<f64>(2);
}

fn rows_hold_what_lies_within<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..200 {
        let case = Case::<T>::random(&mut rng, 400, 5);
        // Radii that equal distances of the lattice, and arbitrary ones.
        let radius = if round % 2 == 0 {
            T::of((rng.within(0, 30) as f64).sqrt())
        } else {
            T::of(rng.unit())
        };
        let cap = (round % 3 == 0).then(|| rng.within(0, 12));
        for how in SEARCHES {
            let mut state = WithinRadius::new(case.count(), radius, cap);
            let mut other = state.clone();
            let mut turn = 0;
            case.blocks(&mut rng, |points, index| {
                turn += 1;
                let state = if turn % 2 == 0 {
                    &mut other
                } else {
                    &mut state
                };
                state.fold_by(how, &case.queries(), points, index);
            });
            state.merge(&other);
            for order in [RowOrder::Distance, RowOrder::Index] {
                let rows = state.clone().finish(order);
                assert_eq!(rows.offsets.len(), case.count() + 1);
                assert_eq!(
                    (rows.offsets[0], rows.offsets[case.count()]),
                    (0, rows.indexes.len())
                );
                for query in 0..case.count() {
                    let mut expected = case.sorted(query);
                    expected.retain(|(d, _)| d.sqrt() <= radius);
                    expected.truncate(cap.unwrap_or(usize::MAX));
                    if order == RowOrder::Index {
                        expected.sort_by_key(|(_, i)| *i);
                    }
                    let (d, i): (Vec<T>, Vec<i64>) =
                        expected.iter().map(|(d, i)| (d.sqrt(), *i)).unzip();
                    let row = rows.offsets[query]..rows.offsets[query + 1];
                    assert_eq!(
                        rows.indexes[row.clone()],
                        i,
                        "{how:?}, round {round}, radius {radius:?}"
                    );
                    assert_eq!(
                        bits(&rows.distances[row]),
                        bits(&d),
                        "{how:?}, round {round}"
                    );
                }
            }
        }
    }
}

#[test]
fn radius_rows_match_filtering_bit_for_bit() {
    rows_hold_what_lies_within::<f32>(3);
    rows_hold_what_lies_within::<f64>(4);
}

#[test]
fn odd_radii() {
    let points = [0.0f32, 1e30, -0.0];
    let view = View::contiguous(&points, &[3, 1]);
    for (radius, found) in [
        (f32::NAN, 0),
        (-1.0, 0),
        (0.0, 5),
        (1e-30, 5),
        (1e30, 5),
        (f32::INFINITY, 9),
    ] {
        let mut state = WithinRadius::new(3, radius, None);
        state.fold(&view, &view, Positions::from(0));
        assert_eq!(
            state.finish(RowOrder::Index).indexes.len(),
            found,
            "{radius}"
        );
    }
}

type MakePoint = Box<dyn FnMut(&mut Rng) -> [f64; 3]>;

/// Clouds that a tree could stumble over, each with queries that lie in it, beside it and in one of its points.
fn hard_clouds<T: Real>(rng: &mut Rng) -> Vec<(&'static str, Case<T>)> {
    let n = 1500;
    let ring = |rng: &mut Rng| {
        let (sin, cos) = (rng.unit() * 6.3).sin_cos();
        [cos, sin, 0.25]
    };
    let mut cloud = |what, mut point: MakePoint| {
        let points: Vec<T> = (0..n).flat_map(|_| point(rng).map(T::of)).collect();
        let mut queries: Vec<T> = points[..12].to_vec();
        queries.extend((0..24).map(|_| T::of(rng.unit())));
        queries.extend([0.0, 0.0, 0.0, 0.0, 0.0, 9.0].map(T::of));
        queries.extend([
            T::nan(),
            T::zero(),
            T::zero(),
            T::infinity(),
            T::zero(),
            T::zero(),
        ]);
        // Indexes run from the last to the first, so a lower index comes later.
        let index = (0..n as i64).rev().collect();
        (
            what,
            Case {
                dim: 3,
                queries,
                points,
                index,
            },
        )
    };
    let huge = T::max_value().sqrt().wide();
    let tiny = T::min_positive_value().sqrt().wide();
    vec![
        cloud("all equal", Box::new(|_| [0.5; 3])),
        cloud("in a plane", Box::new(|r| [0.5, r.unit(), r.unit()])),
        cloud("on a line", Box::new(|r| [0.5, r.unit(), 0.1])),
        cloud(
            "lattice",
            Box::new(|r| [(); 3].map(|()| r.within(0, 5) as f64)),
        ),
        // All points are equally far from the centre, except for rounding.
        cloud("ring", Box::new(ring)),
        cloud(
            "half in one point",
            Box::new(|r| match r.within(0, 1) {
                0 => [0.3; 3],
                _ => [(); 3].map(|()| r.unit()),
            }),
        ),
        cloud(
            "overflowing",
            Box::new(move |r| [(); 3].map(|()| 4.0 * huge * (r.unit() - 0.5))),
        ),
        cloud(
            "underflowing",
            Box::new(move |r| [(); 3].map(|()| tiny * 1e-2 * r.unit())),
        ),
        cloud(
            "with gaps",
            Box::new(|r| match r.within(0, 40) {
                0 => [f64::NAN, 0.5, 0.5],
                1 => [0.5, f64::INFINITY, 0.5],
                _ => [(); 3].map(|()| r.within(0, 9) as f64 / 9.0),
            }),
        ),
    ]
}

/// Ties at the k-th place, within blocks and across them, and bounds that equal distances.
fn hard_clouds_are_searched_exactly<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for (what, case) in hard_clouds::<T>(&mut rng) {
        let m = case.count();
        let sorted: Vec<Vec<(T, i64)>> = (0..m).map(|query| case.sorted(query)).collect();
        for k in [1, 7, 64, 65, 1499, 1500, 1600] {
            let mut found = Nearest::new(m, k);
            case.blocks(&mut rng, |points, index| {
                found.fold_by(Search::Tree, &case.queries(), points, index);
            });
            let (distances, indexes) = found.into_parts();
            for (query, sorted) in sorted.iter().enumerate() {
                let (d, i): (Vec<T>, Vec<i64>) = sorted.iter().copied().take(k).unzip();
                let row = query * k..query * k + i.len();
                assert_eq!(indexes[row.clone()], i, "{what}, k {k}, query {query}");
                assert_eq!(
                    bits(&distances[row]),
                    bits(&d),
                    "{what}, k {k}, query {query}"
                );
            }
        }
        // The radius is the distance of a point from each query in turn, which other points on the same sphere share.
        for (query, sorted) in sorted.iter().enumerate() {
            let radius = sorted[700].0.sqrt();
            let within = sorted.iter().filter(|(d, _)| d.sqrt() <= radius);
            let within: Vec<i64> = within.map(|(_, i)| *i).collect();
            for cap in [None, Some(0), Some(9), Some(690), Some(2000)] {
                let mut found = WithinRadius::new(m, radius, cap);
                case.blocks(&mut rng, |points, index| {
                    found.fold_by(Search::Tree, &case.queries(), points, index);
                });
                let found = found.finish(RowOrder::Distance);
                let expected = &within[..within.len().min(cap.unwrap_or(usize::MAX))];
                let row = found.offsets[query]..found.offsets[query + 1];
                assert_eq!(
                    &found.indexes[row], expected,
                    "{what}, cap {cap:?}, query {query}"
                );
            }
        }
    }
}

#[test]
fn equal_coordinates_and_ties_are_searched_exactly() {
    hard_clouds_are_searched_exactly::<f32>(10);
    hard_clouds_are_searched_exactly::<f64>(11);
}

/// The bounds allow for rounding in many dims that the tree does not look at.
#[test]
fn dims_without_differences_round_too() {
    let mut rng = Rng::new(12);
    let (n, dim) = (900, 3000);
    let points: Vec<f32> = (0..n * dim)
        .map(|i| {
            if i % dim == 1700 {
                rng.unit() as f32 * 1e-3
            } else {
                0.3
            }
        })
        .collect();
    let queries = vec![0.0; dim];
    let (queries, points) = (
        View::contiguous(&queries, &[1, dim]),
        View::contiguous(&points, &[n, dim]),
    );
    let [tree, exhaustive] = [Search::Tree, Search::Exhaustive].map(|how| {
        let mut state = Nearest::new(1, 20);
        state.fold_by(how, &queries, &points, Positions::from(0));
        state.into_parts()
    });
    assert!(tree == exhaustive);
}

/// Enough queries and points for the tree to be chosen; some points coincide.
#[test]
fn large_blocks_match_exhaustive_search() {
    let mut rng = Rng::new(6);
    let mut points = rng.vec::<f32>(3000 * 3);
    points.copy_within(0..900, 4500);
    let queries = rng.vec::<f32>(300 * 3);
    let (points, queries) = (
        View::contiguous(&points, &[3000, 3]),
        View::contiguous(&queries, &[300, 3]),
    );
    let [auto, exhaustive] = [Search::Auto, Search::Exhaustive].map(|how| {
        let mut state = Nearest::new(300, 33);
        state.fold_by(how, &queries, &points, Positions::from(0));
        state.into_parts()
    });
    assert!(auto == exhaustive);
}

/// Points of no dims are all at distance 0.
#[test]
fn no_dims() {
    let mut state = Nearest::<f64>::new(2, 2);
    let (queries, points) = (
        View::contiguous(&[], &[2, 0]),
        View::contiguous(&[], &[3, 0]),
    );
    for how in SEARCHES {
        state.fold_by(
            how,
            &queries,
            &points,
            Positions::Run { start: 9, step: -2 },
        );
    }
    let (distances, indexes) = state.into_parts();
    assert_eq!((distances, indexes), (vec![0.0; 4], vec![5, 5, 5, 5]));
}

#[test]
fn farthest_points_match_the_definition_however_they_are_divided() {
    let mut rng = Rng::new(8);
    for _ in 0..60 {
        let case = Case::<f32>::random(&mut rng, 300, 4);
        let n = case.index.len();
        let cut = rng.within(0, n);
        let parts = [0..cut, cut..n].map(|rows| {
            let columns = (0..case.dim).flat_map(|d| {
                let points = rows.clone();
                points.map(move |i| (i, d))
            });
            let data: Vec<f32> = columns
                .map(|(i, d)| case.points[i * case.dim + d])
                .collect();
            (rows.clone(), data)
        });
        let views = parts
            .each_ref()
            .map(|(rows, data)| View::contiguous(data, &[case.dim, rows.len()]));
        let mut found = views.each_ref().map(unsampled);
        let finite = |i: usize| {
            case.points[i * case.dim..][..case.dim]
                .iter()
                .all(|x| x.is_finite())
        };
        let mut nearest: Vec<f32> = (0..n)
            .map(|i| if finite(i) { f32::INFINITY } else { -1.0 })
            .collect();
        assert_eq!(bits(&found.concat()), bits(&nearest));
        for _ in 0..8 {
            // The definition, evaluated point by point.
            let largest = nearest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let best = (0..n)
                .filter(|&i| nearest[i] == largest)
                .min_by_key(|&i| case.index[i]);
            let offers = [0, 1].map(|p| {
                let index = Positions::List(&case.index[parts[p].0.clone()]);
                farthest(&found[p], index)
            });
            let offers = offers.into_iter().flatten();
            let better = offers.reduce(|a, b| {
                if b.0 > a.0 || b.0 == a.0 && b.1 < a.1 {
                    b
                } else {
                    a
                }
            });
            assert_eq!(better, best.map(|i| (nearest[i], case.index[i])));
            let Some(best) = best else { break };
            let sample = &case.points[best * case.dim..][..case.dim];
            for (near, point) in nearest.iter_mut().zip(case.points.chunks(case.dim)) {
                let terms = point.iter().zip(sample);
                let d = terms.fold(0.0, |sum, (p, q)| sum + (p - q) * (p - q));
                *near = if d < *near { d } else { *near };
            }
            for (near, view) in found.iter_mut().zip(&views) {
                lower(view, sample, near);
            }
            // No point is taken twice; the caller must see to that.
            nearest[best] = f32::NEG_INFINITY;
            match best.checked_sub(cut) {
                None => found[0][best] = f32::NEG_INFINITY,
                Some(second) => found[1][second] = f32::NEG_INFINITY,
            }
            assert_eq!(bits(&found.concat()), bits(&nearest));
        }
    }
}

#[test]
fn farthest_points_of_clouds_in_any_order_are_those_of_each_alone() {
    let mut rng = Rng::new(11);
    for _ in 0..60 {
        let case = Case::<f32>::random(&mut rng, 900, 3);
        let n = case.index.len();
        let clouds = rng.within(1, 4);
        // Long runs, short ones, and points whose neighbours are of other clouds.
        let longest = [1, 3, 200][rng.within(0, 2)];
        let mut of: Vec<i64> = Vec::new();
        while of.len() < n {
            let (cloud, run) = (rng.within(0, clouds - 1), rng.within(1, longest));
            of.extend(std::iter::repeat_n(cloud as i64, run.min(n - of.len())));
        }
        let rows = |which: &[usize]| -> Vec<f32> {
            let places = (0..case.dim).flat_map(|d| which.iter().map(move |&i| (i, d)));
            places.map(|(i, d)| case.points[i * case.dim + d]).collect()
        };
        let all: Vec<usize> = (0..n).collect();
        let data = rows(&all);
        let view = View::contiguous(&data, &[case.dim, n]);
        let samples: Vec<f32> = (0..clouds * case.dim).map(|i| i as f32 * 0.3).collect();
        let mut nearest = unsampled(&view);
        lower_by_cloud(&view, &samples, &of, &mut nearest);
        let best = farthest_by_cloud(&nearest, Positions::List(&case.index), &of, clouds);
        for (cloud, best) in best.into_iter().enumerate() {
            let own: Vec<usize> = (0..n).filter(|&i| of[i] == cloud as i64).collect();
            let data = rows(&own);
            let view = View::contiguous(&data, &[case.dim, own.len()]);
            let mut alone = unsampled(&view);
            lower(&view, &samples[cloud * case.dim..][..case.dim], &mut alone);
            let found: Vec<f32> = own.iter().map(|&i| nearest[i]).collect();
            assert_eq!(bits(&found), bits(&alone));
            let index: Vec<i64> = own.iter().map(|&i| case.index[i]).collect();
            assert_eq!(best, farthest(&alone, Positions::List(&index)));
        }
    }
}

/// What a search among clouds finds is what one finds among the points of each query's cloud alone.
fn clouds_are_searched_alone<T: Real>(seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..100 {
        let case = Case::<T>::random(&mut rng, 700, 3);
        let clouds = rng.within(1, 4);
        let mut drawn =
            |n: usize| -> Vec<i64> { (0..n).map(|_| rng.within(0, clouds) as i64 - 1).collect() };
        let (own, others) = (drawn(case.count()), drawn(case.index.len()));
        let k = [3, 80][seed as usize % 2];
        let mut nearest = Nearest::new(case.count(), k);
        let mut within = WithinRadius::new(case.count(), T::of(1.5), None);
        // In two blocks.
        let half = case.index.len() / 2;
        for at in [half..case.index.len(), 0..half] {
            let rows = &case.points[at.start * case.dim..at.end * case.dim];
            let points = View::contiguous(rows, &[at.len(), case.dim]);
            let clouds = Clouds {
                queries: &own,
                points: &others[at.clone()],
            };
            let index = Positions::List(&case.index[at]);
            nearest.fold_by_cloud(&case.queries(), &points, index, clouds);
            within.fold_by_cloud(&case.queries(), &points, index, clouds);
        }
        let cloud_of = |index: i64| others[case.index.iter().position(|&i| i == index).unwrap()];
        let (squared, indexes) = nearest.into_parts();
        let within = within.finish(RowOrder::Index);
        for (query, &cloud) in own.iter().enumerate() {
            let mut near = case.sorted(query);
            near.retain(|&(_, index)| cloud_of(index) == cloud);
            let row = query * k..(query + 1) * k;
            let found = near.len().min(k);
            assert_eq!(
                indexes[row.clone()][..found],
                near[..found].iter().map(|p| p.1).collect::<Vec<_>>()
            );
            assert!(indexes[row.clone()][found..].iter().all(|&i| i == i64::MAX));
            assert_eq!(
                bits(&squared[row][..found]),
                bits(&near[..found].iter().map(|p| p.0).collect::<Vec<_>>())
            );
            near.retain(|&(squared, _)| squared.sqrt() <= T::of(1.5));
            let mut near: Vec<i64> = near.iter().map(|p| p.1).collect();
            near.sort_unstable();
            let hits = within.offsets[query]..within.offsets[query + 1];
            assert_eq!(within.indexes[hits], near);
        }
    }
}

#[test]
fn a_query_meets_the_points_of_its_cloud() {
    clouds_are_searched_alone::<f64>(11);
    clouds_are_searched_alone::<f32>(12);
}

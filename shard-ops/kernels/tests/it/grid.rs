use shard_kernels::grid::*;

const ALL: [SampleEdge; 3] = [
    SampleEdge::Zeros,
    SampleEdge::Border,
    SampleEdge::Reflection,
];

/// Values worked by hand from PyTorch's formulas.
#[test]
fn coordinates_as_in_pytorch() {
    let read = |mode, edge, aligned, at: f64| {
        let sampling = Sampling {
            mode,
            edge,
            aligned,
        };
        let taps = Reading::from(sampling).taps(at, 4);
        let pairs = taps.index.into_iter().zip(taps.weight);
        let mut found: Vec<_> = pairs.filter_map(|(i, w)| Some((i?, w))).collect();
        found.retain(|p| p.1 != 0.0);
        found
    };
    use SampleEdge::{Border, Reflection, Zeros};
    use SampleMode::{Linear, Nearest};
    // Not aligned, -1 is half an element before the first.
    assert_eq!(read(Linear, Zeros, false, -1.0), [(0, 0.5)]);
    assert_eq!(read(Linear, Border, false, -1.0), [(0, 1.0)]);
    assert_eq!(read(Linear, Reflection, false, -1.0), [(0, 1.0)]);
    assert_eq!(read(Linear, Zeros, true, -1.0), [(0, 1.0)]);
    assert_eq!(read(Linear, Zeros, true, 0.0), [(1, 0.5), (2, 0.5)]);
    // 2 is at 4.5 aligned: beyond, at the border, and 1.5 after the reflection.
    assert_eq!(read(Linear, Zeros, true, 2.0), []);
    assert_eq!(read(Linear, Border, true, 2.0), [(3, 1.0)]);
    assert_eq!(read(Linear, Reflection, true, 2.0), [(1, 0.5), (2, 0.5)]);
    // Half of the way the even index is the nearest.
    assert_eq!(read(Nearest, Zeros, true, 0.0), [(2, 1.0)]);
    assert_eq!(read(Nearest, Zeros, false, f64::NAN), []);
}

/// Weights sum to 1, slopes are those of weights, and indices stay in the dim.
#[test]
fn slopes_are_differences() {
    for mode in [SampleMode::Linear, SampleMode::Cubic] {
        for edge in ALL {
            for aligned in [false, true] {
                let sampling = Reading::from(Sampling {
                    mode,
                    edge,
                    aligned,
                });
                // What a dim of these elements is at a coordinate.
                let elements = [1.0, -2.0, 5.0, 0.5, 3.0];
                let value = |at: f64| {
                    let taps = sampling.taps(at, 5);
                    let each =
                        |k: usize| taps.index[k].map_or(0.0, |i| elements[i] * taps.weight[k]);
                    (0..4).map(each).sum::<f64>()
                };
                for step in 0..57 {
                    let at = -2.4871 + 0.0913 * f64::from(step);
                    let taps = sampling.taps(at, 5);
                    assert!((taps.weight.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                    let slope: f64 = (0..4)
                        .map(|k| taps.index[k].map_or(0.0, |i| elements[i] * taps.slope[k]))
                        .sum();
                    let found = (value(at + 1e-6) - value(at - 1e-6)) / 2e-6;
                    assert!(
                        (slope - found).abs() < 1e-6,
                        "{sampling:?} at {at}: {slope} {found}"
                    );
                }
            }
        }
    }
}

/// Of each dim, as often as weights have derivatives, and of several together.
#[test]
fn weights_after_are_differences_of_those_before() {
    let places = |d: usize, step: f64| {
        let mut grid: Vec<f64> = (0..21).map(|i| 0.43 * f64::from(i).sin() - 0.11).collect();
        grid.chunks_mut(3).for_each(|place| place[2 - d] += step);
        grid
    };
    for mode in [SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic] {
        for (edge, aligned) in ALL.into_iter().flat_map(|e| [(e, false), (e, true)]) {
            let reading = Reading::from(Sampling {
                mode,
                edge,
                aligned,
            });
            let count = 7 * mode.taps().pow(3);
            let after = |orders, grid: &[f64]| {
                let mut weight = vec![9.0; count];
                taps_after(reading, &[4, 5, 3], orders, grid, &mut weight);
                weight
            };
            let (mut weight, mut index) = (vec![9.0; count], vec![0; count]);
            taps(
                reading,
                &[4, 5, 3],
                -1,
                &places(0, 0.0),
                &mut weight,
                &mut index,
            );
            assert_eq!(after([0; 3], &places(0, 0.0)), weight);
            for orders in [
                [0, 0, 0],
                [0, 1, 0],
                [1, 0, 2],
                [2, 1, 0],
                [0, 2, 3],
                [3, 3, 3],
            ] {
                for d in 0..3 {
                    let mut next = orders;
                    next[d] += 1;
                    let [low, high] = [-1e-6, 1e-6].map(|step| after(orders, &places(d, step)));
                    for (i, found) in after(next, &places(d, 0.0)).iter().enumerate() {
                        let slope = (high[i] - low[i]) / 2e-6;
                        assert!(
                            (found - slope).abs() < 1e-6 * slope.abs().max(1.0),
                            "{reading:?} {next:?}: {found} is not {slope}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn affine_maps_are_linear_and_their_gradient_is_the_adjoint() {
    let (plane, start, shape) = ([3, 4], [1, 0], [2, 4]);
    let identity = [1.0f64, 0.0, 0.0, 0.0, 1.0, 0.0];
    let mut out = [0.0; 16];
    affine(&identity, &mut out, &plane, &start, &shape, false);
    // Row 1 of 3 is at 0; columns of 4 are at quarters.
    assert_eq!(out[..8], [-0.75, 0.0, -0.25, 0.0, 0.25, 0.0, 0.75, 0.0]);
    let theta = [0.5f64, -1.0, 2.0, 0.25, 3.0, -0.5];
    let dy: Vec<f64> = (0..16).map(|i| f64::from(i).sin()).collect();
    affine(&theta, &mut out, &plane, &start, &shape, true);
    let mut back = [0.0; 6];
    affine_grad(&dy, &mut back, &plane, &start, &shape, true);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert!((dot(&out, &dy) - dot(&theta, &back)).abs() < 1e-12);
}

#[test]
fn places_of_a_plane_read_the_last_dims_neighbours_first() {
    let linear = Sampling {
        mode: SampleMode::Linear,
        edge: SampleEdge::Zeros,
        aligned: true,
    };
    // Column 1.25 and row 0.5 of 3 rows and 5 columns, and column 4 of row 2, behind which nothing is.
    let (mut weight, mut index) = ([9.0f64; 8], [9; 8]);
    let at = [-0.375, -0.5, 1.0, 1.0];
    taps(linear.into(), &[3, 5], -1, &at, &mut weight, &mut index);
    assert_eq!(weight, [0.375, 0.125, 0.375, 0.125, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(index, [1, 2, 6, 7, 14, -1, -1, -1]);
    // The same places counted in elements.
    let counted = Reading {
        sampling: linear,
        in_elements: true,
    };
    let (mut weights, mut indices) = ([9.0f64; 8], [9; 8]);
    let at = [1.25, 0.5, 4.0, 2.0];
    taps(counted, &[3, 5], -1, &at, &mut weights, &mut indices);
    assert_eq!((weights, indices), (weight, index));
    let mut slopes = [9.0; 4];
    let above = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    taps_grad(counted, &[3, 5], &at, &above, &mut slopes);
    // The row below, where columns are weighed 0.75 and 0.25, grows with the second coordinate.
    assert_eq!(slopes, [0.0, 1.0, 0.0, 0.0]);
}

/// Places that are worked out side by side, and what is left of them, read the products of what each coordinate reads along its dim.
#[test]
fn taps_of_many_places_are_products_of_those_along_each_dim() {
    let plane = [4, 5, 3];
    for nd in 1..=3 {
        let plane = &plane[..nd];
        let grid: Vec<f64> = (0..(2 * 16 + 5) * nd)
            .map(|i| match i * 37 % 101 {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2 => f64::NEG_INFINITY,
                k => k as f64 / 25.0 - 2.1,
            })
            .collect();
        for mode in [SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic] {
            for (edge, [aligned, in_elements]) in ALL.into_iter().flat_map(|edge| {
                [[false, false], [true, false], [false, true]].map(|how| (edge, how))
            }) {
                let sampling = Reading {
                    sampling: Sampling {
                        mode,
                        edge,
                        aligned,
                    },
                    in_elements,
                };
                let each = mode.taps();
                let products = each.pow(nd as u32);
                let count = grid.len() / nd * products;
                let (mut weight, mut index) = (vec![9.0; count], vec![9; count]);
                taps(sampling, plane, -7, &grid, &mut weight, &mut index);
                for (at, (&weight, &index)) in weight.iter().zip(&index).enumerate() {
                    let (place, mut rest) = (&grid[at / products * nd..][..nd], at % products);
                    let (mut factors, mut flat, mut step) = (Vec::new(), Some(0), 1);
                    for d in (0..nd).rev() {
                        let along = sampling.taps(place[nd - 1 - d], plane[d]);
                        let tap = rest % each;
                        rest /= each;
                        factors.push(along.weight[tap]);
                        flat = flat.zip(along.index[tap]).map(|(flat, i)| flat + i * step);
                        step *= plane[d];
                    }
                    let expected: f64 = factors.iter().rev().product();
                    assert_eq!(weight, expected, "{sampling:?} in {plane:?} at {place:?}");
                    assert_eq!(
                        index,
                        flat.map_or(-7, |flat| flat as i64),
                        "{sampling:?} at {place:?}"
                    );
                }
            }
        }
    }
}

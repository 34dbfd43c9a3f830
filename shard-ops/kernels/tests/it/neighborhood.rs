//! Neighbourhood attention against dense attention under an explicit mask, in double precision, over random shapes, windows
//! and boxes.

use crate::testing::{Rng, assert_close, naive_index};
use half::{bf16, f16};
use shard_kernels::attention::Stored;
use shard_kernels::neighborhood::*;
use shard_kernels::{Real, View, ViewMut};
use shard_spec::Window;
use std::ops::Range;

/// For single precision: sums of at most 125 products below 1, of mixed signs.
const TOLERANCE: f64 = 2e-5;

struct Case {
    spatial: Vec<usize>,
    kernel: Vec<usize>,
    dilation: Vec<usize>,
    causal: Vec<bool>,
    /// Batch, kv heads, heads per kv head, dim, value dim.
    sizes: [usize; 5],
    scale: f64,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dout: Vec<f64>,
}

/// Results, log-sum-exps, and the gradients by queries, keys and values.
type Answer = [Vec<f64>; 5];

impl Case {
    fn random(rng: &mut Rng) -> Self {
        let nd = rng.within(1, 3);
        let (mut spatial, mut kernel, mut dilation) = (Vec::new(), Vec::new(), Vec::new());
        let most = [0, 24, 8, 5][nd];
        for _ in 0..nd {
            let n = rng.within(1, most);
            let k = rng.within(1, n.min(5));
            spatial.push(n);
            kernel.push(k);
            dilation.push(rng.within(1, n / k));
        }
        let sizes = [
            rng.within(1, 2),
            rng.within(1, 2),
            rng.within(1, 2),
            rng.within(1, 20),
            rng.within(1, 20),
        ];
        let causal = (0..nd).map(|_| rng.within(0, 2) == 0).collect();
        Self::new(rng, [spatial, kernel, dilation], causal, sizes)
    }

    fn new(
        rng: &mut Rng,
        [spatial, kernel, dilation]: [Vec<usize>; 3],
        causal: Vec<bool>,
        sizes: [usize; 5],
    ) -> Self {
        let sites: usize = spatial.iter().product();
        let [b, h, g, d, dv] = sizes;
        Self {
            causal,
            scale: rng.unit(),
            q: rng.vec(b * sites * h * g * d),
            k: rng.vec(b * sites * h * d),
            v: rng.vec(b * sites * h * dv),
            dout: rng.vec(b * sites * h * g * dv),
            spatial,
            kernel,
            dilation,
            sizes,
        }
    }

    fn sites(&self) -> usize {
        self.spatial.iter().product()
    }

    /// Whether a site sees another by the definition: among the sites of its own line, it sees the consecutive ones around it.
    fn sees(&self, query: &[usize], key: &[usize]) -> bool {
        (0..query.len()).all(|d| {
            let (k, dilation) = (self.kernel[d], self.dilation[d]);
            if query[d] % dilation != key[d] % dilation {
                return false;
            }
            let line: Vec<usize> = (query[d] % dilation..self.spatial[d])
                .step_by(dilation)
                .collect();
            let at = line.iter().position(|&i| i == query[d]).unwrap();
            let to = line.iter().position(|&i| i == key[d]).unwrap();
            if self.causal[d] {
                to <= at && at - to < k
            } else {
                let first = at.saturating_sub(k / 2).min(line.len() - k);
                (first..first + k).contains(&to)
            }
        })
    }

    fn dense(&self) -> Answer {
        let [b, h, g, d, dv] = self.sizes;
        let (sites, n) = (naive_index(&self.spatial), self.sites());
        fn row(x: &[f64], number: usize, width: usize) -> &[f64] {
            &x[number * width..][..width]
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let mut answer: Answer = [
            vec![0.0; self.dout.len()],
            vec![0.0; b * n * h * g],
            vec![0.0; self.q.len()],
            vec![0.0; self.k.len()],
            vec![0.0; self.v.len()],
        ];
        let seen = |query: &Vec<usize>| -> Vec<usize> {
            (0..n).filter(|&j| self.sees(query, &sites[j])).collect()
        };
        let seen: Vec<Vec<usize>> = sites.iter().map(seen).collect();
        for batch in 0..b {
            for (i, seen) in seen.iter().enumerate() {
                for head in 0..h * g {
                    let me = (batch * n + i) * h * g + head;
                    let key = |j: usize| (batch * n + j) * h + head / g;
                    let (q, dout) = (row(&self.q, me, d), row(&self.dout, me, dv));
                    let logits: Vec<f64> = (seen.iter())
                        .map(|&j| self.scale * dot(q, row(&self.k, key(j), d)))
                        .collect();
                    let lse = logits.iter().map(|s| s.exp()).sum::<f64>().ln();
                    answer[1][me] = lse;
                    let weights: Vec<f64> = logits.iter().map(|s| (s - lse).exp()).collect();
                    for (&j, p) in seen.iter().zip(&weights) {
                        for (c, x) in row(&self.v, key(j), dv).iter().enumerate() {
                            answer[0][me * dv + c] += p * x;
                        }
                    }
                    let delta = dot(dout, row(&answer[0], me, dv));
                    for (&j, p) in seen.iter().zip(&weights) {
                        let ds = p * (dot(dout, row(&self.v, key(j), dv)) - delta);
                        for c in 0..d {
                            answer[2][me * d + c] += self.scale * ds * self.k[key(j) * d + c];
                            answer[3][key(j) * d + c] += self.scale * ds * q[c];
                        }
                        for c in 0..dv {
                            answer[4][key(j) * dv + c] += p * dout[c];
                        }
                    }
                }
            }
        }
        answer
    }

    /// The kernels, with the grid cut into boxes along one dim: each box gets its queries and the keys they see, or its keys
    /// and the queries that see them.
    fn by_boxes<E: Stored>(&self, cut: usize, at: usize) -> Answer
    where
        E::Acc: Stored<Acc = E::Acc>,
    {
        let [b, h, g, d, dv] = self.sizes;
        let n = self.sites();
        let shape = |heads: usize, last: Option<usize>| -> Vec<usize> {
            let lead = std::iter::once(b).chain(self.spatial.iter().copied());
            lead.chain([heads]).chain(last).collect()
        };
        let stored =
            |x: &[f64]| -> Vec<E> { x.iter().map(|&x| E::narrow(E::Acc::of(x))).collect() };
        let [q, k, v, dout] = [&self.q, &self.k, &self.v, &self.dout].map(|x| stored(x));
        let zero = <E::Acc as num_traits::Zero>::zero();
        let mut out = vec![E::narrow(zero); self.dout.len()];
        let acc = |n: usize| vec![zero; n];
        let (mut lse, mut delta) = (acc(b * n * h * g), acc(b * n * h * g));
        let (mut dq, mut dk, mut dv_) = (acc(q.len()), acc(k.len()), acc(v.len()));
        let windows: Vec<Window> = (0..self.spatial.len())
            .map(|d| {
                let (k, dilation) = (self.kernel[d], self.dilation[d]);
                Window::neighborhood(self.spatial[d], k, dilation, self.causal[d]).unwrap()
            })
            .collect();
        let extent = self.spatial[cut];
        let whole: Vec<Range<usize>> = self.spatial.iter().map(|&n| 0..n).collect();
        let boxes: [Range<usize>; 2] = [0..at, at..extent];
        let with = |span: &Range<usize>| {
            let mut ranges = whole.clone();
            ranges[cut] = span.clone();
            ranges
        };
        // A box of an operand, cut out of the whole.
        fn part<'a, T>(
            data: &'a [T],
            shape: &[usize],
            dim: usize,
            span: &Range<usize>,
        ) -> View<'a, T> {
            let (mut start, mut extents) = (vec![0; shape.len()], shape.to_vec());
            (start[dim], extents[dim]) = (span.start, span.len());
            View::contiguous(data, shape).sub_box(&start, &extents)
        }
        fn part_mut<'a, T>(
            data: &'a mut [T],
            shape: &[usize],
            dim: usize,
            span: &Range<usize>,
        ) -> ViewMut<'a, T> {
            let (mut start, mut extents) = (vec![0; shape.len()], shape.to_vec());
            (start[dim], extents[dim]) = (span.start, span.len());
            ViewMut::contiguous(data, shape).sub_box(&start, &extents)
        }
        let (qs, ks, vs) = (shape(h * g, Some(d)), shape(h, Some(d)), shape(h, Some(dv)));
        let (outs, sums) = (shape(h * g, Some(dv)), shape(h * g, None));
        let dim = cut + 1;
        let filled = boxes.iter().filter(|span| !span.is_empty());
        for span in filled.clone() {
            let needs = windows[cut].input_interval(extent, span.clone());
            let needs = needs.start as usize..needs.end as usize;
            let near = Near::new(&windows, &with(span), &with(&needs));
            let operands = [
                &part(&q, &qs, dim, span),
                &part(&k, &ks, dim, &needs),
                &part(&v, &vs, dim, &needs),
            ];
            forward(
                &near,
                self.scale,
                operands,
                &mut part_mut(&mut out, &outs, dim, span),
                &mut part_mut(&mut lse, &sums, dim, span),
            );
            let mut grads = QueryGrads {
                dq: part_mut(&mut dq, &qs, dim, span),
                delta: part_mut(&mut delta, &sums, dim, span),
            };
            let results = [
                &part(&out, &outs, dim, span),
                &part(&dout, &outs, dim, span),
            ];
            let own = part(&lse, &sums, dim, span);
            grad_queries(&near, self.scale, operands, results, &own, &mut grads);
        }
        for span in filled {
            let seers = windows[cut].output_of_input(extent, span.clone());
            let near = Near::new(&windows, &with(&seers), &with(span));
            let operands = [
                &part(&q, &qs, dim, &seers),
                &part(&k, &ks, dim, span),
                &part(&v, &vs, dim, span),
            ];
            let mut grads = KeyGrads {
                dk: part_mut(&mut dk, &ks, dim, span),
                dv: part_mut(&mut dv_, &vs, dim, span),
            };
            let of_queries = [
                &part(&lse, &sums, dim, &seers),
                &part(&delta, &sums, dim, &seers),
            ];
            let dout = part(&dout, &outs, dim, &seers);
            grad_keys(&near, self.scale, operands, &dout, of_queries, &mut grads);
        }
        let wide = |x: &[E::Acc]| -> Vec<f64> { x.iter().map(|x| x.wide()).collect() };
        let out: Vec<E::Acc> = out.iter().map(|x| x.widen()).collect();
        [&out, &lse, &dq, &dk, &dv_].map(|x| wide(x))
    }
}

fn compare<E: Stored>(got: &Answer, expected: &Answer, tolerance: f64) {
    for (got, expected) in got.iter().zip(expected) {
        let got: Vec<E::Acc> = got.iter().map(|&x| E::Acc::of(x)).collect();
        assert_close(&got, expected, tolerance);
    }
}

#[test]
fn boxes_of_random_problems_match_dense_attention_under_a_mask() {
    let mut rng = Rng::new(29);
    for _ in 0..200 {
        let case = Case::random(&mut rng);
        let expected = case.dense();
        let cut = rng.within(0, case.spatial.len() - 1);
        let at = rng.within(0, case.spatial[cut]);
        let cut_up = case.by_boxes::<f64>(cut, at);
        compare::<f64>(&cut_up, &expected, TOLERANCE);
        compare::<f32>(&case.by_boxes::<f32>(cut, at), &expected, TOLERANCE);
        // Cutting elsewhere, or not at all, gives the same bits.
        assert_eq!(cut_up, case.by_boxes::<f64>(cut, case.spatial[cut]));
    }
}

/// Lines of several blocks, more lines than are computed together, and heads of more than a panel, cut along each dim.
#[test]
fn lines_longer_than_a_block_match_too() {
    let mut rng = Rng::new(37);
    let cases = [
        ([vec![75], vec![7], vec![3]], vec![false], [2, 1, 3, 5, 33]),
        ([vec![67], vec![4], vec![1]], vec![true], [1, 2, 1, 40, 1]),
        (
            [vec![50, 33], vec![5, 3], vec![1, 2]],
            vec![false, true],
            [1, 1, 2, 30, 17],
        ),
        (
            [vec![4, 1, 66], vec![3, 1, 66], vec![1; 3]],
            vec![false; 3],
            [1, 1, 1, 3, 2],
        ),
    ];
    for (extents, causal, sizes) in cases {
        let case = Case::new(&mut rng, extents, causal, sizes);
        let (expected, whole) = (case.dense(), case.by_boxes::<f64>(0, 0));
        compare::<f32>(&case.by_boxes::<f32>(0, 1), &expected, TOLERANCE);
        for (dim, &extent) in case.spatial.iter().enumerate() {
            let cut_up = case.by_boxes::<f64>(dim, rng.within(0, extent));
            compare::<f64>(&cut_up, &expected, TOLERANCE);
            assert_eq!(cut_up, whole);
        }
    }
}

/// Only inputs and results are rounded to 16 bits; gradients use the rounded result as well.
#[test]
fn half_precision_is_rounded_at_the_edges_only() {
    let mut rng = Rng::new(31);
    for _ in 0..40 {
        let mut case = Case::random(&mut rng);
        for x in [&mut case.q, &mut case.k, &mut case.v, &mut case.dout] {
            x.iter_mut().for_each(|x| *x = (*x * 64.0).round() / 64.0);
        }
        let expected = case.dense();
        compare::<f16>(&case.by_boxes::<f16>(0, 1), &expected, 4.0 / 2048.0);
        compare::<bf16>(&case.by_boxes::<bf16>(0, 1), &expected, 4.0 / 256.0);
    }
}

#[test]
fn nothing_finite_to_see_is_zero_and_nan_stays() {
    let window = Window::neighborhood(3, 1, 1, false).unwrap();
    let sites = std::slice::from_ref(&(0..3));
    let near = Near::new(&[window], sites, sites);
    let shape = [1, 3, 1, 1];
    let (q, v) = ([1.0f64; 3], [5.0; 3]);
    let k = [f64::NEG_INFINITY, f64::NAN, 0.0];
    let at = |x| View::contiguous(x, &shape);
    let (mut out, mut lse) = ([1.0; 3], [1.0; 3]);
    forward(
        &near,
        1.0,
        [&at(&q), &at(&k), &at(&v)],
        &mut ViewMut::contiguous(&mut out, &shape),
        &mut ViewMut::contiguous(&mut lse, &shape[..3]),
    );
    assert_eq!((out[0], lse[0]), (0.0, f64::NEG_INFINITY));
    assert!(out[1].is_nan() && lse[1].is_nan());
    assert_eq!((out[2], lse[2]), (5.0, 0.0));
}

#[test]
fn queries_whose_box_of_keys_is_empty_see_nothing() {
    let windows = [3, 5].map(|n| Window::neighborhood(n, 3, 1, false).unwrap());
    let none: [f64; 0] = [];
    for keys in [[0..3, 2..2], [1..1, 0..5], [0..0, 0..0]] {
        let near = Near::new(&windows, &[0..3, 0..5], &keys);
        let few = [1, keys[0].len(), keys[1].len(), 1, 2];
        let (q, many) = ([1.0; 30], [1, 3, 5, 1, 2]);
        let (mut out, mut lse) = ([1.0; 30], [1.0; 15]);
        let operands = [
            &View::contiguous(&q, &many),
            &View::contiguous(&none, &few),
            &View::contiguous(&none, &few),
        ];
        forward(
            &near,
            1.0,
            operands,
            &mut ViewMut::contiguous(&mut out, &many),
            &mut ViewMut::contiguous(&mut lse, &many[..4]),
        );
        assert_eq!((out, lse), ([0.0; 30], [f64::NEG_INFINITY; 15]));
        let (mut dq, mut delta) = ([1.0; 30], [1.0; 15]);
        grad_queries(
            &near,
            1.0,
            operands,
            [&View::contiguous(&out, &many), &View::contiguous(&q, &many)],
            &View::contiguous(&lse, &many[..4]),
            &mut QueryGrads {
                dq: ViewMut::contiguous(&mut dq, &many),
                delta: ViewMut::contiguous(&mut delta, &many[..4]),
            },
        );
        assert_eq!((dq, delta), ([0.0; 30], [0.0; 15]));
        // Of no keys there is nothing to write.
        let (mut dk, mut dv) = (none, none);
        grad_keys(
            &near,
            1.0,
            operands,
            &View::contiguous(&q, &many),
            [
                &View::contiguous(&lse, &many[..4]),
                &View::contiguous(&delta, &many[..4]),
            ],
            &mut KeyGrads {
                dk: ViewMut::contiguous(&mut dk, &few),
                dv: ViewMut::contiguous(&mut dv, &few),
            },
        );
    }
}

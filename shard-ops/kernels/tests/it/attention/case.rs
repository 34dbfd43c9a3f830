//! Random problems, the textbook's answers, and the kernels' answers in the same form.

use crate::testing::Rng;
use shard_device::Bool;
use shard_kernels::attention::*;
use shard_kernels::{Positions, Real, View, ViewMut};

/// A random problem in double precision: all arrays row-major.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) batch: usize,
    pub(super) kv_heads: usize,
    pub(super) group: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    pub(super) v: Vec<f64>,
    pub(super) dout: Vec<f64>,
    pub(super) scale: f64,
    pub(super) band: Band,
    /// Segments of queries and of keys, of all batch entries.
    pub(super) segments: Option<[Vec<i64>; 2]>,
    pub(super) query_at: Vec<i64>,
    pub(super) key_at: Vec<i64>,
    pub(super) allow: Option<(Vec<usize>, Vec<Bool>)>,
    pub(super) bias: Option<(Vec<usize>, Vec<f64>)>,
    pub(super) dropped: Option<f64>,
}

/// The answer of the formulas.
pub(super) struct Answer {
    pub(super) out: Vec<f64>,
    pub(super) lse: Vec<f64>,
    pub(super) dq: Vec<f64>,
    pub(super) dk: Vec<f64>,
    pub(super) dv: Vec<f64>,
    pub(super) dbias: Vec<f64>,
    /// How many keys each row sees.
    pub(super) seen: Vec<usize>,
}

/// Whether a probability is dropped, by a small hash.
pub(super) fn dropped(batch: usize, head: usize, query: i64, key: i64, rate: f64) -> bool {
    let mut rng = Rng::new((batch * 31 + head) as u64 ^ (query as u64) << 20 ^ (key as u64) << 40);
    rng.unit() * 0.5 + 0.5 < rate
}

impl Case {
    pub(super) fn random(rng: &mut Rng, most: usize) -> Self {
        let [batch, kv_heads, group] = [rng.within(1, 2), rng.within(1, 2), rng.within(1, 3)];
        let [queries, keys] = [rng.within(1, most), rng.within(0, most)];
        let [dim, value_dim] = [rng.within(1, 20), rng.within(1, 20)];
        let heads = kv_heads * group;
        let band = match rng.within(0, 5) {
            0 => Band::causal(),
            1 => Band::causal_bottom_right(queries, keys),
            2 => Band::window(rng.within(0, most / 2), rng.within(0, 9)),
            3 => Band::causal().and(Band::window(rng.within(0, most / 4), 0)),
            _ => Band::ALL,
        };
        let mask = |rng: &mut Rng| -> Option<Vec<usize>> {
            (rng.within(0, 2) == 0).then(|| {
                let all = [batch, heads, queries, keys];
                let shape = all.map(|n| if rng.within(0, 2) == 0 { 1 } else { n });
                shape[rng.within(0, 2)..].to_vec()
            })
        };
        let allow = mask(rng).map(|shape| {
            let share = rng.within(0, 4);
            let count = shape.iter().product();
            (
                shape,
                (0..count)
                    .map(|_| Bool::new(rng.within(0, 3) < share))
                    .collect(),
            )
        });
        let bias = mask(rng).map(|shape| {
            let hidden = rng.within(0, 1) == 0;
            let count = shape.iter().product();
            let value = |rng: &mut Rng| {
                if hidden && rng.within(0, 3) == 0 {
                    f64::NEG_INFINITY
                } else {
                    single(rng.unit())
                }
            };
            (shape, (0..count).map(|_| value(rng)).collect())
        });
        let mut numbers = |n: usize| (0..n).map(|_| single(rng.unit())).collect::<Vec<f64>>();
        let q = numbers(batch * heads * queries * dim);
        let k = numbers(batch * kv_heads * keys * dim);
        let v = numbers(batch * kv_heads * keys * value_dim);
        let dout = numbers(batch * heads * queries * value_dim);
        // Positions in any order: both sides are shuffled.
        let shuffled = |rng: &mut Rng, n: usize| {
            let mut list: Vec<i64> = (0..n as i64).collect();
            if rng.within(0, 1) == 0 {
                for i in (1..n).rev() {
                    list.swap(i, rng.within(0, i));
                }
            }
            list
        };
        let scale = single(0.2 + rng.unit().abs());
        let (query_at, key_at) = (shuffled(rng, queries), shuffled(rng, keys));
        let dropped = (rng.within(0, 3) == 0).then_some(0.3);
        // One after the other, as documents are, or anyhow.
        let (sorted, many) = (rng.within(0, 2) > 0, rng.within(0, 4));
        let mut numbers = |n: usize| -> Vec<i64> {
            let entry = |rng: &mut Rng| {
                let mut of: Vec<_> = (0..n).map(|_| rng.within(0, many) as i64 - 1).collect();
                if sorted {
                    of.sort_unstable();
                }
                of
            };
            (0..batch).flat_map(|_| entry(rng)).collect()
        };
        let segments = [numbers(queries), numbers(keys)];
        Self {
            batch,
            kv_heads,
            group,
            queries,
            keys,
            dim,
            value_dim,
            q,
            k,
            v,
            dout,
            scale,
            band,
            segments: (rng.within(0, 2) == 0).then_some(segments),
            query_at,
            key_at,
            allow,
            bias,
            dropped,
        }
    }

    pub(super) fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    pub(super) fn pairs(&self) -> [usize; 4] {
        [self.batch, self.heads(), self.queries, self.keys]
    }

    /// The textbook's answer, by a matrix of all pairs per head.
    pub(super) fn answer(&self) -> Answer {
        let (rows, keys) = (self.batch * self.heads() * self.queries, self.keys);
        let pairs = self.pairs();
        let allow = self.allow.as_ref().map(|(s, m)| {
            View::contiguous(m, s)
                .broadcast_to(&pairs)
                .expect("broadcasts")
        });
        let bias = self.bias.as_ref().map(|(s, m)| {
            View::contiguous(m, s)
                .broadcast_to(&pairs)
                .expect("broadcasts")
        });
        let mut a = Answer {
            out: vec![0.0; rows * self.value_dim],
            lse: vec![f64::NEG_INFINITY; rows],
            dq: vec![0.0; rows * self.dim],
            dk: vec![0.0; self.k.len()],
            dv: vec![0.0; self.v.len()],
            dbias: vec![0.0; rows * keys],
            seen: vec![0; rows],
        };
        for row in 0..rows {
            let (b, h, i) = (
                row / self.queries / self.heads(),
                row / self.queries % self.heads(),
                row % self.queries,
            );
            let kv = (b * self.kv_heads + h / self.group) * keys;
            let q = &self.q[row * self.dim..][..self.dim];
            let dout = &self.dout[row * self.value_dim..][..self.value_dim];
            let key = |j: usize| &self.k[(kv + j) * self.dim..][..self.dim];
            let value = |j: usize| &self.v[(kv + j) * self.value_dim..][..self.value_dim];
            let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            let logit = |j: usize| {
                let at = [b, h, i, j];
                let of_one_segment = self.segments.as_ref().is_none_or(|[of_queries, of_keys]| {
                    of_queries[b * self.queries + i] == of_keys[b * keys + j]
                });
                let seen = self.band.sees(self.query_at[i], self.key_at[j])
                    && of_one_segment
                    && allow.as_ref().is_none_or(|m| m.get(&at).get());
                if seen {
                    self.scale * dot(q, key(j)) + bias.as_ref().map_or(0.0, |m| m.get(&at))
                } else {
                    f64::NEG_INFINITY
                }
            };
            let logits: Vec<f64> = (0..keys).map(logit).collect();
            a.seen[row] = logits.iter().filter(|&&t| t > f64::NEG_INFINITY).count();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max == f64::NEG_INFINITY {
                continue;
            }
            let sum: f64 = logits.iter().map(|t| (t - max).exp()).sum();
            a.lse[row] = max + sum.ln();
            let p: Vec<f64> = logits.iter().map(|t| (t - a.lse[row]).exp()).collect();
            let z: Vec<f64> = (0..keys)
                .map(|j| match self.dropped {
                    Some(rate) if dropped(b, h, self.query_at[i], self.key_at[j], rate) => 0.0,
                    Some(rate) => 1.0 / (1.0 - rate),
                    None => 1.0,
                })
                .collect();
            let dp: Vec<f64> = (0..keys).map(|j| z[j] * dot(dout, value(j))).collect();
            let mean = dot(&p, &dp);
            for j in 0..keys {
                let ds = p[j] * (dp[j] - mean);
                a.dbias[row * keys + j] = ds;
                for (c, v) in value(j).iter().enumerate() {
                    a.out[row * self.value_dim + c] += p[j] * z[j] * v;
                    a.dv[(kv + j) * self.value_dim + c] += p[j] * z[j] * dout[c];
                }
                for (c, k) in key(j).iter().enumerate() {
                    a.dq[row * self.dim + c] += self.scale * ds * k;
                    a.dk[(kv + j) * self.dim + c] += self.scale * ds * q[c];
                }
            }
        }
        a
    }

    /// The kernels' answer, folded over blocks of keys given as lists of key numbers.
    pub(super) fn folded<E: Stored>(&self, blocks: &[Vec<usize>], strided: bool) -> Answer
    where
        E::Acc: Real,
    {
        let narrow = |x: &[f64]| {
            x.iter()
                .map(|&x| E::narrow(E::Acc::of(x)))
                .collect::<Vec<E>>()
        };
        let wide = |x: &[E]| x.iter().map(|x| x.widen().wide()).collect::<Vec<f64>>();
        let heads = self.heads();
        let q_shape = [self.batch, heads, self.queries, self.dim];
        let o_shape = [self.batch, heads, self.queries, self.value_dim];
        let q = Owned::new(&narrow(&self.q), q_shape, strided);
        let dout = Owned::new(&narrow(&self.dout), o_shape, strided);
        let rate = self.dropped.unwrap_or(0.0);
        let drop = DropWhere {
            rate,
            dropped: |b, h, q, k| dropped(b, h, q, k, rate),
        };
        let mut queries = self.of_segments(
            Queries::new(q.view(), Positions::List(&self.query_at))
                .scale(self.scale)
                .band(self.band),
        );
        if self.dropped.is_some() {
            queries = queries.dropout(&drop);
        }
        let parts: Vec<Part<E>> = blocks.iter().map(|keys| self.part(keys, strided)).collect();
        let mut state = AttentionState::new([self.batch, heads, self.queries], self.value_dim);
        for part in &parts {
            state.fold(&queries, &part.block());
        }
        let rows = self.batch * heads * self.queries;
        let (mut out, mut lse) = (
            narrow(&vec![9.0; rows * self.value_dim]),
            vec![E::Acc::of(0.0); rows],
        );
        state.finish(&mut ViewMut::contiguous(&mut out, &o_shape), &mut lse);

        let mut grad = AttentionGrad::new(
            dout.view(),
            &View::contiguous(&out, &o_shape),
            &lse,
            self.dim,
        );
        let mut a = Answer {
            dq: vec![],
            dk: vec![0.0; self.k.len()],
            dv: vec![0.0; self.v.len()],
            dbias: vec![0.0; rows * self.keys],
            seen: vec![],
            lse: lse.iter().map(|x| x.wide()).collect(),
            out: wide(&out),
        };
        for part in &parts {
            grad = AttentionGrad::resume(grad.pause(), dout.view());
            let zeros = |n: usize| vec![E::Acc::of(0.0); n];
            let n = part.keys.len();
            let [kd, vd] = [self.dim, self.value_dim].map(|d| [self.batch, self.kv_heads, n, d]);
            let pairs = [self.batch, heads, self.queries, n];
            let [mut dk, mut dv, mut dbias] = [kd, vd, pairs].map(|s| zeros(s.iter().product()));
            let mut grads = BlockGrad {
                dk: ViewMut::contiguous(&mut dk, &kd),
                dv: ViewMut::contiguous(&mut dv, &vd),
                dbias: Some(ViewMut::contiguous(&mut dbias, &pairs)),
            };
            grad.fold(&queries, &part.block(), &mut grads);
            for (i, &key) in part.keys.iter().enumerate() {
                for head in 0..self.batch * self.kv_heads {
                    for (to, from, d) in
                        [(&mut a.dk, &dk, self.dim), (&mut a.dv, &dv, self.value_dim)]
                    {
                        for c in 0..d {
                            to[(head * self.keys + key) * d + c] =
                                from[(head * n + i) * d + c].wide();
                        }
                    }
                }
                for row in 0..rows {
                    a.dbias[row * self.keys + key] = dbias[row * n + i].wide();
                }
            }
        }
        let mut dq = narrow(&vec![9.0; self.q.len()]);
        grad.finish(&mut ViewMut::contiguous(&mut dq, &q_shape));
        a.dq = wide(&dq);
        a
    }

    /// Queries of the case's segments, if it has any.
    pub(super) fn of_segments<'a, E: Stored>(&'a self, queries: Queries<'a, E>) -> Queries<'a, E> {
        match &self.segments {
            Some([of, _]) => queries.segments(View::contiguous(of, &[self.batch, self.queries])),
            None => queries,
        }
    }

    /// The keys `keys` of the problem, with their masks.
    pub(super) fn part<E: Stored>(&self, keys: &[usize], strided: bool) -> Part<E> {
        let pick = |data: &[f64], d: usize| -> Vec<E> {
            (0..self.batch * self.kv_heads)
                .flat_map(|head| keys.iter().map(move |key| (head * self.keys + key) * d))
                .flat_map(|at| data[at..at + d].iter().map(|&x| E::narrow(E::Acc::of(x))))
                .collect()
        };
        let shape = |d| [self.batch, self.kv_heads, keys.len(), d];
        Part {
            k: Owned::new(&pick(&self.k, self.dim), shape(self.dim), strided),
            v: Owned::new(
                &pick(&self.v, self.value_dim),
                shape(self.value_dim),
                strided,
            ),
            at: keys.iter().map(|&key| self.key_at[key]).collect(),
            segments: self
                .segments
                .as_ref()
                .map(|[_, of]| columns(&[self.batch, self.keys], of, keys)),
            allow: self.allow.as_ref().map(|(s, m)| columns(s, m, keys)),
            bias: self.bias.as_ref().map(|(s, m)| {
                let (shape, bias) = columns(s, m, keys);
                (
                    shape,
                    bias.iter().map(|&x| E::narrow(E::Acc::of(x))).collect(),
                )
            }),
            keys: keys.to_vec(),
        }
    }
}

/// The chosen columns of a mask, unless the mask has one column for all.
pub(super) fn columns<M: Copy>(
    shape: &[usize],
    mask: &[M],
    keys: &[usize],
) -> (Vec<usize>, Vec<M>) {
    let (&n, lead) = shape.split_last().expect("masks have dims");
    if n == 1 {
        return (shape.to_vec(), mask.to_vec());
    }
    let rows = lead.iter().product();
    let data = (0..rows)
        .flat_map(|r: usize| keys.iter().map(move |k| mask[r * n + k]))
        .collect();
    ([lead, &[keys.len()]].concat(), data)
}

/// A block's arrays.
pub(super) struct Part<E> {
    pub(super) keys: Vec<usize>,
    pub(super) k: Owned<E>,
    pub(super) v: Owned<E>,
    pub(super) at: Vec<i64>,
    pub(super) segments: Option<(Vec<usize>, Vec<i64>)>,
    pub(super) allow: Option<(Vec<usize>, Vec<Bool>)>,
    pub(super) bias: Option<(Vec<usize>, Vec<E>)>,
}

impl<E: Stored> Part<E> {
    pub(super) fn block(&self) -> KeyBlock<'_, E> {
        let mut block = KeyBlock::new(self.k.view(), self.v.view(), Positions::List(&self.at));
        if let Some((shape, of)) = &self.segments {
            block = block.segments(View::contiguous(of, shape));
        }
        if let Some((shape, mask)) = &self.allow {
            block = block.allow(View::contiguous(mask, shape));
        }
        if let Some((shape, mask)) = &self.bias {
            block = block.bias(View::contiguous(mask, shape));
        }
        block
    }
}

/// Memory of a `[batch, heads, rows, dim]` view: contiguous, or with the dims stored in another order.
pub(super) struct Owned<E> {
    data: Vec<E>,
    stored: [usize; 4],
    strided: bool,
}

impl<E: Copy> Owned<E> {
    pub(super) fn new(data: &[E], shape: [usize; 4], strided: bool) -> Self {
        if !strided {
            return Self {
                data: data.to_vec(),
                stored: shape,
                strided,
            };
        }
        let data = View::contiguous(data, &shape)
            .permute(&[3, 0, 2, 1])
            .to_vec();
        Self {
            data,
            stored: [shape[3], shape[0], shape[2], shape[1]],
            strided,
        }
    }

    pub(super) fn view(&self) -> View<'_, E> {
        let view = View::contiguous(&self.data, &self.stored);
        if self.strided {
            view.permute(&[1, 3, 2, 0])
        } else {
            view
        }
    }
}

/// A double that is exact in single precision.
pub(super) fn single(x: f64) -> f64 {
    f64::from(x as f32)
}

/// `n` keys in a random order, cut into random blocks, some of them empty.
pub(super) fn split(rng: &mut Rng, n: usize) -> Vec<Vec<usize>> {
    let mut keys: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        keys.swap(i, rng.within(0, i));
    }
    let mut blocks: Vec<Vec<usize>> = (0..rng.within(1, 5)).map(|_| Vec::new()).collect();
    for key in keys {
        let count = blocks.len() - 1;
        blocks[rng.within(0, count)].push(key);
    }
    blocks
}

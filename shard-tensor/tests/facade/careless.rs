//! Calls with whatever arguments chance gives them, as a careless user might: on any number of ranks the same comes out, or an error
//! of the same class, and never a panic.

mod everyday;
#[cfg(feature = "linalg")]
mod factors;
mod lately;
mod more;
mod others;
mod rare;

use shard_tensor::ndarray::SliceInfoElem;
use shard_tensor::nn::{self, Module};
use shard_tensor::{
    Attention, AxisPlacement, Causal, ClassLoss, ConvOptions, ConvTransposeOptions, DType, EdgeMap,
    ErrorClass, FourierNorm, Interpolation, Launch, LossReduction, Mesh, Neighborhood, Placement,
    PoolOptions, ReduceOp, ResampleMode, Result, SampleEdge, SampleMode, Sampling, ShardTensor,
    UnfoldOptions, partial, replicate, shard,
};

/// Arguments by chance: a function of a seed, the same on all ranks and for any mesh.
struct Chance {
    state: u64,
    /// Whether some sizes are beyond all memory.
    absurd: bool,
    /// Whether all numbers are sums over the first axis that are still to be made.
    terms: bool,
}

impl Chance {
    /// A step of SplitMix64.
    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.state)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }

    fn maybe<T>(&mut self, value: T) -> Option<T> {
        self.flag().then_some(value)
    }

    /// An extent of an operand.
    fn extent(&mut self) -> usize {
        self.pick(&[0, 1, 1, 2, 3, 4, 5, 7])
    }

    /// A size that an op is asked for.
    fn size(&mut self) -> usize {
        match self.absurd && self.below(4) == 0 {
            true => self.pick(&[usize::MAX, usize::MAX - 1, 1 << 62]),
            false => self.pick(&[0, 1, 1, 2, 2, 3, 4, 5, 7, 9]),
        }
    }

    fn offset(&mut self) -> isize {
        match self.absurd && self.below(4) == 0 {
            true => self.pick(&[isize::MAX, isize::MIN, 1 << 62]),
            false => self.pick(&[0, 0, 1, 2, -1, -2, 5, -5]),
        }
    }

    fn dim(&mut self) -> isize {
        self.pick(&[-1, -2, -3, 0, 0, 0, 1, 1, 2, 3, -5])
    }

    fn number(&mut self) -> f64 {
        let usual = [0.0, 1.0, 0.5, -1.0, 2.0, -0.5, 1e-5];
        let numbers = [&usual[..], &[f64::NAN, f64::INFINITY]].concat();
        self.pick(&numbers)
    }

    fn shape(&mut self, ndim: usize) -> Vec<usize> {
        (0..ndim).map(|_| self.extent()).collect()
    }

    /// Placements of some dims on two axes, of which a mesh may have one.
    fn placements(&mut self, mesh: &Mesh, ndim: usize) -> Vec<AxisPlacement> {
        let mut sums = self.terms;
        let mut of_axis = || {
            let (kind, dim, split) = (self.below(5), self.below(12), self.below(4));
            match (kind, ndim, split) {
                _ if std::mem::take(&mut sums) => partial(ReduceOp::Sum),
                (0, ..) => partial(ReduceOp::Sum),
                (1, ..) | (_, 0, _) => replicate(),
                (.., 0) => shard(dim % ndim).even(),
                (.., 1) => shard(dim % ndim).striped(),
                (.., 2) => shard(-1 - (dim % ndim) as isize),
                _ => shard(dim % ndim),
            }
        };
        let all = [of_axis(), of_axis()];
        all[..mesh.shape().len()].to_vec()
    }

    /// Numbers somewhere on the mesh, in part as sums that are still to be made; tracked or not.
    fn tensor(&mut self, mesh: &Mesh, shape: &[usize]) -> Result<ShardTensor> {
        let mesh = mesh.with_dtype(DType::F64);
        let placements = self.placements(&mesh, shape.len());
        let (seed, whole, tracked) = (self.bits(), self.flag(), self.flag());
        // A leaf of the tape is no sum that is still to be made.
        let tracked = tracked && !self.terms;
        let element = |index: &[usize]| {
            let number = index.iter().fold(seed, |h, &i| mixed(h ^ i as u64)) % 2000;
            let number = number as f64 / 500.0 - 2.0;
            if whole { number.round() } else { number }
        };
        let x = if placements.iter().any(is_sum) {
            // Four terms of each, of which ranks along an axis that is to be summed have some.
            let behind = |p: &AxisPlacement| {
                Ok(match p.placement(shape.len())? {
                    Placement::Partial(_) => shard(0),
                    Placement::Shard(dim) => shard(dim + 1),
                    Placement::Replicate => replicate(),
                })
            };
            let lying = placements.iter().map(behind);
            let lying = lying.collect::<Result<Vec<AxisPlacement>>>()?;
            let term = |index: &[usize]| element(&index[1..]) * [0.5, 0.5, 1.0, -1.0][index[0]];
            mesh.from_fn([&[4], shape].concat(), lying, term)?
                .sum([0], false)?
        } else {
            mesh.from_fn(shape.to_vec(), placements, element)?
        };
        if tracked { x.requires_grad() } else { Ok(x) }
    }

    /// A tensor of any shape.
    fn any(&mut self, mesh: &Mesh) -> Result<ShardTensor> {
        let ndim = self.below(5);
        let shape = self.shape(ndim);
        self.tensor(mesh, &shape)
    }

    /// A tensor of so many dims, as a rule.
    fn of(&mut self, mesh: &Mesh, ndim: usize) -> Result<ShardTensor> {
        let ndim = if self.below(12) == 0 {
            self.below(5)
        } else {
            ndim
        };
        let shape = self.shape(ndim);
        self.tensor(mesh, &shape)
    }

    /// A tensor of the shape of another one, as a rule.
    fn like(&mut self, mesh: &Mesh, x: &ShardTensor) -> Result<ShardTensor> {
        let mut shape = x.shape().to_vec();
        if !shape.is_empty() && self.below(5) == 0 {
            let dim = self.below(shape.len());
            shape[dim] = self.extent();
        }
        self.tensor(mesh, &shape)
    }

    /// Indices below a number, as a rule.
    fn indices(&mut self, mesh: &Mesh, shape: &[usize], n: usize) -> Result<ShardTensor> {
        let mesh = mesh.with_dtype(DType::I64);
        let (seed, beyond) = (self.bits(), self.below(8));
        let placements = self.placements(&mesh, shape.len()).into_iter();
        let placements: Vec<AxisPlacement> = placements
            .map(|p| if is_sum(&p) { replicate() } else { p })
            .collect();
        mesh.from_fn(shape.to_vec(), placements, move |index| {
            let index = index.iter().fold(seed, |h, &i| mixed(h ^ i as u64)) % n.max(1) as u64;
            index as f64 + [1.0, -1.0, 0.0][beyond.min(2)]
        })
    }

    fn mask(&mut self, mesh: &Mesh, shape: &[usize]) -> Result<ShardTensor> {
        let least = self.pick(&[0.0, 0.0, 9.0]);
        self.tensor(mesh, shape)?.gt_scalar(least)
    }

    fn reduction(&mut self) -> LossReduction {
        self.pick(&[LossReduction::Mean, LossReduction::Sum, LossReduction::None])
    }

    fn norm(&mut self) -> FourierNorm {
        self.pick(&[FourierNorm::Backward, FourierNorm::Ortho])
    }

    fn pool(&mut self) -> PoolOptions {
        let mut pool = PoolOptions::new(self.size()).ceil_mode(self.flag());
        if self.flag() {
            pool = pool.stride(self.size());
        }
        if self.flag() {
            pool = pool.padding(self.size());
        }
        pool
    }
}

fn is_sum(placement: &AxisPlacement) -> bool {
    *placement == partial(ReduceOp::Sum)
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

type Made = Result<Vec<ShardTensor>>;
type Call = fn(&mut Chance, &Mesh) -> Made;

fn one(x: Result<ShardTensor>) -> Made {
    Ok(vec![x?])
}

fn two(pair: Result<(ShardTensor, ShardTensor)>) -> Made {
    let (a, b) = pair?;
    Ok(vec![a, b])
}

/// Elements that are moved.
const MOVES: &[(&str, Call)] = &[
    ("slice", |c, m| {
        let (x, dim) = (c.any(m)?, c.dim());
        one(x.slice(dim, c.size(), c.offset(), c.size()))
    }),
    ("pad", |c, m| {
        let x = c.of(m, 2)?;
        let pads = [(c.offset(), c.offset()), (c.offset(), c.offset())];
        let edges = [
            EdgeMap::Zeros,
            EdgeMap::Replicate,
            EdgeMap::Reflect,
            EdgeMap::Circular,
        ];
        one(x.pad(&pads, c.pick(&edges), 2.0))
    }),
    ("cat", |c, m| {
        let x = c.any(m)?;
        let y = c.like(m, &x)?;
        one(ShardTensor::cat(&[&x, &y], c.dim()))
    }),
    ("split", |c, m| {
        let x = c.any(m)?;
        match c.flag() {
            true => x.split([c.size(), c.size()], c.dim()),
            false => x.split(c.size(), c.dim()),
        }
    }),
    ("chunk", |c, m| c.any(m)?.chunk(c.size(), c.dim())),
    ("roll", |c, m| one(c.any(m)?.roll(c.dim(), c.offset()))),
    ("roll of several", |c, m| {
        let shifts = [c.offset(), c.offset()];
        one(c.any(m)?.roll([c.dim(), c.dim()], shifts))
    }),
    ("slices", |c, m| {
        let x = c.any(m)?;
        let range = |c: &mut Chance| SliceInfoElem::Slice {
            start: c.offset(),
            end: c.flag().then(|| c.offset()),
            step: c.offset(),
        };
        let other = match c.below(3) {
            0 => SliceInfoElem::NewAxis,
            1 => SliceInfoElem::Index(c.offset()),
            _ => range(c),
        };
        one(x.slices([range(c), other]))
    }),
    ("repeat", |c, m| one(c.any(m)?.repeat(c.dim(), c.size()))),
    ("repeat_interleave", |c, m| {
        one(c.any(m)?.repeat_interleave(c.dim(), c.size()))
    }),
    ("repeat_interleave_each", |c, m| {
        let (x, n) = (c.any(m)?, c.extent());
        let counts = c.indices(m, &[n], 3)?;
        let total = c.size();
        one(x.repeat_interleave_each(c.dim(), &counts, c.maybe(total)))
    }),
    ("reshape", |c, m| {
        let x = c.any(m)?;
        let shape = match c.below(4) {
            0 => vec![x.numel()],
            1 => vec![c.size(), c.size()],
            2 => x.shape().iter().rev().copied().collect(),
            _ => [&[1], x.shape(), &[1]].concat(),
        };
        one(x.reshape(shape))
    }),
    ("permute", |c, m| {
        one(c.of(m, 3)?.permute([c.dim(), c.dim(), c.dim()]))
    }),
    ("tril", |c, m| one(c.any(m)?.tril(c.offset() as i64))),
    ("diagonal", |c, m| {
        one(c.any(m)?.diagonal(c.offset() as i64, c.dim(), c.dim()))
    }),
    ("pixel_shuffle", |c, m| {
        one(c.of(m, 4)?.pixel_shuffle(c.size()))
    }),
    ("pixel_unshuffle", |c, m| {
        one(c.of(m, 4)?.pixel_unshuffle(c.size()))
    }),
    ("sliding", |c, m| {
        one(c.any(m)?.sliding(c.dim(), c.size(), c.size()))
    }),
    ("unfold", |c, m| {
        let x = c.of(m, 4)?;
        one(x.unfold(
            UnfoldOptions::new(c.size())
                .stride(c.size())
                .padding(c.size()),
        ))
    }),
    ("redistribute", |c, m| {
        let x = c.of(m, 2)?;
        let to = [replicate(), shard(c.below(2))];
        one(x.redistribute(to[..m.shape().len()].to_vec()))
    }),
];

/// Reductions, scans, orders.
const FOLDS: &[(&str, Call)] = &[
    ("sum", |c, m| {
        one(c.any(m)?.sum([c.dim(), c.dim()], c.flag()))
    }),
    ("amax", |c, m| one(c.any(m)?.amax([c.dim()], c.flag()))),
    ("var_mean", |c, m| {
        two(c.any(m)?.var_mean([c.dim()], c.number(), c.flag()))
    }),
    ("norm", |c, m| {
        one(c.any(m)?.norm(c.number(), [c.dim()], c.flag()))
    }),
    ("softmax", |c, m| one(c.any(m)?.softmax(c.dim()))),
    ("cumsum", |c, m| one(c.any(m)?.cumsum(c.dim()))),
    ("cummax", |c, m| two(c.any(m)?.cummax(c.dim()))),
    ("sort", |c, m| two(c.any(m)?.sort(c.dim(), c.flag()))),
    ("topk", |c, m| {
        two(c.any(m)?.topk(c.size(), c.dim(), c.flag()))
    }),
    ("median", |c, m| two(c.any(m)?.median(c.dim()))),
    ("quantile", |c, m| {
        let q = [c.number(), 0.25];
        one(c.any(m)?.quantile(&q, c.dim(), Interpolation::Linear))
    }),
    ("unique_dim", |c, m| {
        let found = c.any(m)?.unique_dim(c.dim())?;
        Ok(vec![found.values, found.inverse, found.counts])
    }),
    ("histogram", |c, m| {
        let x = c.any(m)?;
        let weights = c.like(m, &x)?;
        let weights = c.maybe(weights);
        two(x.histogram(c.size(), weights.as_ref(), c.flag()))
    }),
    ("bincount", |c, m| {
        let n = c.extent();
        let x = c.indices(m, &[n], 5)?;
        let weights = c.of(m, 1)?;
        let weights = c.maybe(weights);
        one(x.bincount_within(weights.as_ref(), c.size()))
    }),
    ("cdist", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        one(x.cdist(&y, c.number()))
    }),
    ("nearest", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        two(x.nearest(&y, c.size()))
    }),
    ("nearest_by_cloud", |c, m| {
        let x = c.of(m, 2)?;
        let (y, n) = (c.like(m, &x)?, c.extent());
        let first = x.shape().first().copied().unwrap_or(0);
        let [own, others] = [first, n].map(|n| c.indices(m, &[n], 3));
        let k = c.size();
        two(x.nearest_by_cloud(&y, k, [&own?, &others?]))
    }),
    ("farthest_points_by_cloud", |c, m| {
        let (x, n) = (c.of(m, 2)?, c.extent());
        let ids = c.indices(m, &[n], 3)?;
        one(x.farthest_points_by_cloud(&ids, c.size(), c.size()))
    }),
    ("segment_sum", |c, m| {
        let (x, count) = (c.any(m)?, c.size());
        let n = x.shape().first().copied().unwrap_or(0);
        let ids = c.indices(m, &[n], count.min(5))?;
        one(x.segment_sum(&ids, count))
    }),
    ("segment_max_with_indices", |c, m| {
        let (x, n) = (c.any(m)?, c.extent());
        let ids = c.indices(m, &[n], 3)?;
        two(x.segment_max_with_indices(&ids, c.size()))
    }),
    ("segment_softmax", |c, m| {
        let (x, n) = (c.any(m)?, c.extent());
        let ids = c.indices(m, &[n], 3)?;
        one(x.segment_softmax(&ids, c.size()))
    }),
];

/// Indices, masks, losses.
const PICKS: &[(&str, Call)] = &[
    ("index_select", |c, m| {
        let (x, n) = (c.any(m)?, c.extent());
        let index = c.indices(m, &[n], 3)?;
        one(x.index_select(c.dim(), &index))
    }),
    ("gather", |c, m| {
        let x = c.of(m, 2)?;
        let shape = c.shape(2);
        let index = c.indices(m, &shape, 2)?;
        one(x.gather(c.dim(), &index))
    }),
    ("scatter_add", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        let index = c.indices(m, y.shape(), 2)?;
        one(x.scatter_add(c.dim(), &index, &y))
    }),
    ("index_add", |c, m| {
        let x = c.any(m)?;
        let (y, n) = (c.like(m, &x)?, c.extent());
        let index = c.indices(m, &[n], 2)?;
        one(x.index_add(c.dim(), &index, &y))
    }),
    ("embedding", |c, m| {
        let (weight, shape) = (c.of(m, 2)?, c.shape(2));
        let index = c.indices(m, &shape, 3)?;
        let padding = c.size();
        one(weight.embedding(&index, c.maybe(padding)))
    }),
    ("where", |c, m| {
        let x = c.any(m)?;
        let y = c.like(m, &x)?;
        let mask = c.mask(m, x.shape())?;
        one(mask.where_(&x, &y))
    }),
    ("masked_select", |c, m| {
        let x = c.any(m)?;
        let mask = c.mask(m, x.shape())?;
        one(x.masked_select(&mask))
    }),
    ("cross_entropy", |c, m| {
        let [n, classes] = [c.extent(), c.extent()];
        let x = c.tensor(m, &[n, classes])?;
        let target = c.indices(m, &[n], classes)?;
        let weight = c.of(m, 1)?;
        let mut loss = ClassLoss::new().reduction(c.reduction());
        if c.flag() {
            loss = loss.weight(&weight);
        }
        if c.flag() {
            loss = loss.smoothing(c.number());
        }
        one(x.cross_entropy(&target, &loss))
    }),
    ("bce", |c, m| {
        let x = c.any(m)?;
        let [y, weight, positive] = [c.like(m, &x)?, c.like(m, &x)?, c.like(m, &x)?];
        let (weight, positive) = (c.maybe(weight), c.maybe(positive));
        let how = c.reduction();
        one(x.binary_cross_entropy_with_logits(&y, weight.as_ref(), positive.as_ref(), how))
    }),
];

/// Products, windows, layers.
const LAYERS: &[(&str, Call)] = &[
    ("matmul", |c, m| {
        let [a, b] = [c.any(m)?, c.any(m)?];
        one(a.matmul(&b))
    }),
    ("einsum", |c, m| {
        let [a, b] = [c.of(m, 2)?, c.of(m, 2)?];
        let equations = [
            "ab,bc->ac",
            "ab,ab->",
            "ab,cb->ca",
            "a...,b...->ab...",
            "ab,c",
            "->",
        ];
        one(ShardTensor::einsum(c.pick(&equations), &[&a, &b]))
    }),
    ("linear", |c, m| {
        let [inputs, outputs] = [c.extent(), c.extent()];
        let x = c.tensor(m, &[3, inputs])?;
        let [weight, bias] = [c.tensor(m, &[outputs, inputs])?, c.of(m, 1)?];
        let bias = c.maybe(bias);
        one(x.linear(&weight, bias.as_ref()))
    }),
    ("conv", |c, m| {
        let [channels, outputs] = [c.extent(), c.extent()];
        let shape = [&[2, channels], &c.shape(2)[..]].concat();
        let x = c.tensor(m, &shape)?;
        let kernel = [c.below(4), c.below(4)];
        let weight = c.tensor(m, &[&[outputs, channels], &kernel[..]].concat())?;
        let bias = c.of(m, 1)?;
        let bias = c.maybe(bias);
        let mut options = ConvOptions::new().stride(c.size()).dilation(c.size());
        options = match c.below(3) {
            0 => options.same(),
            _ => options.padding(c.size()).groups(c.size()),
        };
        one(x.conv(&weight, bias.as_ref(), options))
    }),
    ("conv_transpose", |c, m| {
        let [channels, outputs] = [c.extent(), c.extent()];
        let shape = [&[2, channels], &c.shape(1)[..]].concat();
        let x = c.tensor(m, &shape)?;
        let weight = c.tensor(m, &[channels, outputs, 3])?;
        let options = ConvTransposeOptions::new()
            .stride(c.size())
            .padding(c.size());
        one(x.conv_transpose(&weight, None, options.output_padding(c.size())))
    }),
    ("max_pool", |c, m| {
        two(c.of(m, 4)?.max_pool_with_indices(c.pool()))
    }),
    ("avg_pool", |c, m| {
        let x = c.of(m, 3)?;
        let pool = c.pool();
        let pool = if c.flag() {
            pool.divisor(c.size())
        } else {
            pool
        };
        one(x.avg_pool(pool))
    }),
    ("interpolate", |c, m| {
        let modes = [
            ResampleMode::Nearest,
            ResampleMode::Linear,
            ResampleMode::CubicAntialias,
        ];
        one(c
            .of(m, 4)?
            .interpolate([c.size(), c.size()], c.pick(&modes)))
    }),
    ("grid_sample", |c, m| {
        let x = c.of(m, 4)?;
        let grid = [&c.shape(3)[..], &[2]].concat();
        let grid = c.tensor(m, &grid)?;
        let sampling = Sampling {
            mode: c.pick(&[SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic]),
            edge: c.pick(&[
                SampleEdge::Zeros,
                SampleEdge::Border,
                SampleEdge::Reflection,
            ]),
            aligned: c.flag(),
        };
        one(x.grid_sample(&grid, sampling))
    }),
    ("attention", |c, m| {
        let [batch, heads, queries, keys, dim] = [(); 5].map(|()| c.extent());
        let q = c.tensor(m, &[batch, heads, queries, dim])?;
        let k = c.tensor(m, &[batch, heads, keys, dim])?;
        let v = c.like(m, &k)?;
        let mask = c.mask(m, &[queries, keys])?;
        let mask = c.maybe(mask);
        let mut options = Attention::new();
        if c.flag() {
            options = options.causal(c.pick(&[Causal::TopLeft, Causal::BottomRight]));
        }
        if c.flag() {
            options = options.window(c.size(), c.size()).scale(c.number());
        }
        if c.flag() {
            return one(q.attention(&k, &v, mask.as_ref(), &options));
        }
        let tokens = [queries, keys]
            .map(|n| vec![vec![n], vec![batch, n], vec![n, 1]].swap_remove(c.below(3)));
        let of_queries = c.indices(m, &tokens[0], 3)?;
        let of_keys = c.indices(m, &tokens[1], 3)?;
        one(q.attention_by_segment(&k, &v, [&of_queries, &of_keys], mask.as_ref(), &options))
    }),
    ("neighborhood_attention", |c, m| {
        let x = c.of(m, 4)?;
        let [keys, values] = [c.like(m, &x)?, c.like(m, &x)?];
        let near = Neighborhood::new([c.size()]).dilation([c.size().max(1)]);
        one(x.neighborhood_attention(&keys, &values, &near))
    }),
    ("layer_norm", |c, m| {
        let (x, dims) = (c.of(m, 3)?, c.size());
        let [weight, bias] = [c.of(m, 1)?, c.of(m, 1)?];
        let (weight, bias) = (c.maybe(weight), c.maybe(bias));
        one(x.layer_norm(dims, weight.as_ref(), bias.as_ref(), c.number()))
    }),
    ("group_norm", |c, m| {
        let (x, groups) = (c.of(m, 3)?, c.size());
        let [weight, bias] = [c.of(m, 1)?, c.of(m, 1)?];
        let (weight, bias) = (c.maybe(weight), c.maybe(bias));
        one(x.group_norm(groups, weight.as_ref(), bias.as_ref(), 1e-5))
    }),
    ("rfftn", |c, m| {
        let (x, norm) = (c.of(m, 3)?, c.norm());
        let lengths = [c.size(), c.size()];
        let lengths = c.maybe(&lengths[..]);
        one(x.rfftn(lengths, [c.dim(), c.dim()], norm))
    }),
    ("ifft", |c, m| {
        let shape = [&c.shape(2)[..], &[2]].concat();
        let (x, n) = (c.tensor(m, &shape)?, c.size());
        one(x.ifft(c.maybe(n), c.dim(), c.norm()))
    }),
    ("layers", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let [a, b] = [c.size(), c.size()];
        let x = c.of(m, 3)?;
        one(match c.below(5) {
            0 => nn::Linear::new(m, a, b)?.forward(&x),
            1 => {
                nn::Conv::new(m, a, b, [c.size()], ConvOptions::new().groups(c.size()))?.forward(&x)
            }
            2 => nn::MultiheadAttention::new(m, a, b)?.forward(&x),
            3 => nn::RmsNorm::new(m, [a])?.forward(&x),
            _ => nn::PositionEmbedding::new(m, [a], b)?.forward(&x),
        })
    }),
];

/// What a rank found: shapes and elements of all results, or the class of the error.
type Found = std::result::Result<Vec<(Vec<usize>, Vec<f64>)>, ErrorClass>;

/// A call, its results read, and a backward pass through all of them.
fn found(call: Call, chance: &mut Chance, mesh: &Mesh) -> Result<Found> {
    let read = |made: Vec<ShardTensor>| {
        let mut all = Vec::new();
        for y in &made {
            let whole = y.detach().to(DType::F64)?.to_array::<f64>()?;
            all.push((whole.shape().to_vec(), whole.into_iter().collect()));
        }
        for y in made.iter().filter(|y| y.is_tracked()) {
            y.sum_all()?.backward()?;
        }
        Ok(all)
    };
    Ok(call(chance, mesh)
        .and_then(read)
        .map_err(|error: shard_tensor::Error| error.class()))
}

/// What each rank found for each of some states, one after the other: a call that is refused leaves the ranks as they were.
fn on(mesh: &[usize], call: Call, states: &[u64], absurd: bool) -> Result<Vec<Vec<Found>>> {
    Launch::new(mesh.iter().product()).run(|ctx| {
        let mesh = ctx.mesh(["a", "b"].into_iter().zip(mesh.iter().copied()))?;
        let terms = false;
        let found = |&state: &u64| {
            let mut chance = Chance {
                state,
                absurd,
                terms,
            };
            found(call, &mut chance, &mesh)
        };
        states.iter().map(found).collect()
    })
}

fn same(a: &Found, b: &Found) -> bool {
    let near = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * (1.0 + a.abs())
    };
    match (a, b) {
        (Ok(a), Ok(b)) => {
            let each = |((a, x), (b, y)): (&(_, Vec<_>), &(_, Vec<_>))| {
                a == b && x.len() == y.len() && x.iter().zip(y).all(near)
            };
            a.len() == b.len() && a.iter().zip(b).all(each)
        }
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

/// All calls, each with the states that some seeds give.
fn each_call(seeds: std::ops::Range<u64>, mut visit: impl FnMut(&str, Call, &[u64])) {
    let mut all = [MOVES, FOLDS, PICKS, LAYERS].concat();
    all.extend([more::MOVES, more::FOLDS, more::PICKS, more::LAYERS].concat());
    all.extend(everyday::ALL);
    all.extend(others::ALL);
    all.extend(lately::ALL);
    #[cfg(feature = "linalg")]
    all.extend(factors::ALL);
    all.extend(rare::ALL);
    for (number, (name, call)) in all.into_iter().enumerate() {
        let state = |seed: u64| mixed(seed << 32 | number as u64);
        visit(name, call, &seeds.clone().map(state).collect::<Vec<_>>());
    }
}

/// All calls, with one seed after the other.
fn each(seeds: std::ops::Range<u64>, mut visit: impl FnMut(&str, Call, u64)) {
    each_call(seeds.clone(), |name, call, states| {
        for (seed, &state) in seeds.clone().zip(states) {
            visit(&format!("{name}, seed {seed}"), call, state);
        }
    });
}

#[test]
fn whatever_is_asked_for_any_number_of_ranks_answers_alike() {
    let seeds = 0..12;
    each_call(seeds.clone(), |name, call, states| {
        let alone = on(&[1], call, states, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        for mesh in [&[2][..], &[3], &[2, 2]] {
            let all = on(mesh, call, states, false);
            let all = all.unwrap_or_else(|e| panic!("{name} on {mesh:?}: {e}"));
            for (at, seed) in seeds.clone().enumerate() {
                let alone = &alone[0][at];
                for found in all.iter().map(|rank| &rank[at]) {
                    let said = format!("{name}, seed {seed}, on {mesh:?}: {found:?} for {alone:?}");
                    assert_ne!(found.as_ref().err(), Some(&ErrorClass::Failure), "{said}");
                    assert!(same(alone, found), "{said}");
                }
            }
        }
    });
}

/// Memory may give out on some ranks only; none panics.
#[test]
fn sizes_beyond_all_memory_are_refused() {
    each(100..106, |call, run, state| {
        for mesh in [&[1][..], &[2]] {
            // On ranks of their own: those that memory gave out on have failed.
            if let Err(error) = on(mesh, run, &[state], true) {
                let error = error.to_string();
                assert!(!error.contains("panicked"), "{call} on {mesh:?}: {error}");
            }
        }
    });
}

/// Where moves are explicit, an op lets the terms of a sum pass or refuses them: it does not take the sum by itself.
#[test]
fn no_sum_is_taken_where_moves_are_explicit() {
    // A move that is asked for is not implicit, as gradients' to their parameters and tokens' to their experts, and what is counted without
    // weights has no sums.
    let others = [
        "redistribute",
        "redistribute_axis",
        "MixtureOfExperts",
        "factors",
        "backward_to",
        "Lbfgs",
        "bincount",
        "bincount of any",
        "one_hot",
        "options of tables",
    ];
    let mut wrong = Vec::new();
    let seeds = 200..250;
    each_call(seeds.clone(), |name, call, states| {
        for mesh in [&[2][..], &[2, 2]] {
            let launch = Launch::new(mesh.iter().product()).explicit_moves(true);
            let taken = launch.run(|ctx| {
                let mesh = ctx.mesh(["a", "b"].into_iter().zip(mesh.iter().copied()))?;
                let taken = states.iter().map(|&state| takes_a_sum(call, state, &mesh));
                Ok(taken.collect::<Vec<bool>>())
            });
            let taken = taken.unwrap_or_else(|e| panic!("{name} on {mesh:?}: {e}"));
            if others.contains(&name) {
                continue;
            }
            for (at, seed) in seeds.clone().enumerate() {
                if taken.iter().any(|rank| rank[at]) {
                    wrong.push(format!("{name}, seed {seed}, on {mesh:?}"));
                }
            }
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a call with terms of sums moves something and gives results that are none.
fn takes_a_sum(call: Call, state: u64, mesh: &Mesh) -> bool {
    let (absurd, terms) = (false, true);
    let mut chance = Chance {
        state,
        absurd,
        terms,
    };
    let ledger = mesh.context().ledger();
    let before = ledger.snapshot();
    let made = call(&mut chance, mesh).unwrap_or_else(|error| {
        // It would be one for all calls after it, which then would move nothing.
        assert_ne!(error.class(), ErrorClass::Failure, "{error}");
        Vec::new()
    });
    let moved = ledger.since(&before).bytes > 0;
    let is_sum = |y: &ShardTensor| y.numel() == 0 || y.layout().is_partial();
    moved && !made.iter().all(is_sum)
}

/// Users are told of what they called, not only of what it is made of.
#[test]
fn errors_name_what_was_called() {
    // Of several ops, or of what is made for one.
    let others = [
        "MixtureOfExperts",
        "MixtureSameFamily",
        "arrays",
        "backward_to",
        "bce",
        "computed",
        "constructors",
        "counts",
        "densities",
        "dilated",
        "distributions",
        "divergences",
        "dropouts",
        "factors",
        "layers",
        "locations",
        "map",
        "more",
        "optimizers",
        "options",
        "packed",
        "redistribute_axis",
        "reductions",
        "rsample",
        "shares",
        "windows",
    ];
    let (mut refused, mut wrong) = (0, Vec::new());
    for absurd in [false, true] {
        each(300..312, |name, call, state| {
            let terms = false;
            let told = Launch::new(1).run(|ctx| {
                let mut chance = Chance {
                    state,
                    absurd,
                    terms,
                };
                let made = call(&mut chance, &ctx.mesh([("a", 1)])?);
                Ok(made.err().map(|error| error.to_string()))
            });
            let called = name.split([' ', ',']).next().unwrap_or_default();
            let Some(text) = told.unwrap_or_else(|e| panic!("{name}: {e}")).remove(0) else {
                return;
            };
            refused += 1;
            let is_named = text.starts_with(called) || others.contains(&called);
            // Where the program called, not where this library did; of layers it may be a line of the layer's.
            let is_ours = text.contains("shard-tensor/src") && !others.contains(&called);
            if !is_named || is_ours {
                wrong.push(format!("{name}: {text}"));
            }
        });
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused > 500, "{refused}");
}

//! More calls: what is made of several ops, and options with more numbers.

use super::{Call, Chance, Made, one, two};
use shard_tensor::nn::{self, Module};
use shard_tensor::{
    BagReduce, Bins, ClassLoss, ConvOptions, DType, EdgeMap, FourierNorm, Mesh, NormOrder,
    PoolOptions, ResampleMode, Result, ScatterReduce, ShardTensor, UnfoldOptions, replicate,
};

/// A loss of two tensors.
fn loss(
    c: &mut Chance,
    m: &Mesh,
    f: impl FnOnce(&mut Chance, &ShardTensor, &ShardTensor) -> Result<ShardTensor>,
) -> Made {
    let x = c.any(m)?;
    let y = c.like(m, &x)?;
    one(f(c, &x, &y))
}

/// Elements that are moved.
pub(super) const MOVES: &[(&str, Call)] = &[
    ("max_unpool_of", |c, m| {
        let x = c.of(m, 4)?;
        let index = c.indices(m, x.shape(), 4)?;
        one(x.max_unpool_of(&index, c.pool()))
    }),
    ("max_unpool", |c, m| {
        let x = c.of(m, 3)?;
        let index = c.indices(m, x.shape(), 3)?;
        one(x.max_unpool(&index, [c.size()]))
    }),
    ("fold", |c, m| {
        let x = c.of(m, 3)?;
        let windows = UnfoldOptions::new(c.size())
            .stride(c.size())
            .padding(c.size());
        one(x.fold([c.size(), c.size()], windows.dilation(c.size())))
    }),
    ("tile", |c, m| one(c.any(m)?.tile([c.size(), c.size()]))),
    ("diag_embed", |c, m| {
        one(c.any(m)?.diag_embed(c.offset() as i64, c.dim(), c.dim()))
    }),
    ("diag", |c, m| one(c.any(m)?.diag(c.offset() as i64))),
    ("triu", |c, m| one(c.any(m)?.triu(c.offset() as i64))),
    ("slice_assign", |c, m| {
        let x = c.any(m)?;
        let y = c.like(m, &x)?;
        one(x.slice_assign(c.dim(), c.size(), c.offset(), &y))
    }),
    ("flip", |c, m| one(c.any(m)?.flip([c.dim(), c.dim()]))),
    ("movedim", |c, m| one(c.any(m)?.movedim(c.dim(), c.dim()))),
    ("unflatten", |c, m| {
        one(c.any(m)?.unflatten(c.dim(), [c.size(), c.size()]))
    }),
    ("flatten_dims", |c, m| {
        one(c.any(m)?.flatten_dims(c.dim(), c.dim()))
    }),
    ("expand", |c, m| {
        let x = c.any(m)?;
        one(x.expand([&[c.size()], x.shape()].concat()))
    }),
    ("narrow", |c, m| {
        one(c.any(m)?.narrow(c.dim(), c.size()..c.size()))
    }),
    ("select", |c, m| one(c.any(m)?.select(c.dim(), c.size()))),
    ("unbind", |c, m| c.any(m)?.unbind(c.dim())),
    ("stack", |c, m| {
        let x = c.any(m)?;
        let y = c.like(m, &x)?;
        one(ShardTensor::stack(&[&x, &y], c.dim()))
    }),
    ("channel_shuffle", |c, m| {
        one(c.of(m, 3)?.channel_shuffle(c.size()))
    }),
    ("fftshift", |c, m| {
        one(c.any(m)?.fftshift([c.dim(), c.dim()]))
    }),
    ("constructors", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let all = vec![replicate(); m.shape().len()];
        one(match c.below(7) {
            6 => m.eye(c.size(), all),
            0 => m.arange((c.number(), c.number(), c.number()), all),
            1 => m.linspace(c.number(), c.number(), c.size(), all),
            2 => m.eye([c.size(), c.size()], all),
            3 => m.uniform([c.size()], c.number()..c.number(), all),
            4 => m.trunc_normal([c.size()], c.number(), c.number(), -1.0..c.number(), all),
            _ => m.randperm(c.size(), all),
        })
    }),
];

/// Reductions, scans, orders.
pub(super) const FOLDS: &[(&str, Call)] = &[
    ("prod", |c, m| one(c.any(m)?.prod([c.dim()], c.flag()))),
    ("any", |c, m| one(c.any(m)?.any([c.dim()], c.flag()))),
    ("nanmean", |c, m| {
        one(c.any(m)?.nanmean([c.dim()], c.flag()))
    }),
    ("logsumexp", |c, m| {
        one(c.any(m)?.logsumexp([c.dim(), c.dim()], c.flag()))
    }),
    ("std", |c, m| {
        one(c.any(m)?.std([c.dim()], c.number(), c.flag()))
    }),
    ("argmax", |c, m| one(c.any(m)?.argmax([c.dim(), c.dim()]))),
    ("min", |c, m| two(c.any(m)?.min(c.dim(), c.flag()))),
    ("aminmax", |c, m| {
        two(c.any(m)?.aminmax([c.dim()], c.flag()))
    }),
    ("log_softmax", |c, m| {
        one(c.any(m)?.log_softmax([c.dim(), c.dim()]))
    }),
    ("cumprod", |c, m| one(c.any(m)?.cumprod(c.dim()))),
    ("logcumsumexp", |c, m| one(c.any(m)?.logcumsumexp(c.dim()))),
    ("linear_recurrence", |c, m| {
        let (b, a, first) = (c.any(m)?, c.any(m)?, c.any(m)?);
        let first = c.flag().then_some(&first);
        one(b.linear_recurrence(&a, first, c.dim(), c.flag()))
    }),
    ("diff", |c, m| one(c.any(m)?.diff(c.size().min(9), c.dim()))),
    ("kthvalue", |c, m| {
        two(c.any(m)?.kthvalue(c.size(), c.dim()))
    }),
    ("normalize", |c, m| {
        one(c.any(m)?.normalize(c.number(), [c.dim()], c.number()))
    }),
    ("norm of an order", |c, m| {
        one(c
            .any(m)?
            .norm(NormOrder::P(c.number()), [c.dim()], c.flag()))
    }),
    ("cosine_similarity", |c, m| {
        loss(c, m, |c, x, y| x.cosine_similarity(y, c.dim(), c.number()))
    }),
    ("histc", |c, m| {
        one(c.any(m)?.histc(c.size(), c.number()..c.number()))
    }),
    ("histogramdd", |c, m| {
        let x = c.of(m, 2)?;
        let edges = c.of(m, 1)?.sort(0, false)?.0.detach();
        let bins = [Bins::Count(c.size(), None), Bins::Edges(&edges)];
        let (counts, mut all) = x.histogramdd(&bins, None, c.flag())?;
        all.push(counts);
        Ok(all)
    }),
    ("unique_all", |c, m| {
        let found = c.any(m)?.unique_all()?;
        Ok(vec![found.values, found.inverse, found.counts])
    }),
    ("unique_consecutive_dim", |c, m| {
        let found = c.any(m)?.unique_consecutive_dim(c.dim())?;
        Ok(vec![found.values, found.inverse, found.counts])
    }),
    ("searchsorted", |c, m| {
        let [x, values] = [c.of(m, 2)?, c.of(m, 2)?];
        let sorted = x.sort(-1, false)?.0;
        one(sorted.searchsorted(&values, c.flag()))
    }),
    ("bincount of any", |c, m| {
        let n = c.extent();
        one(c.indices(m, &[n], 5)?.bincount(None, c.size()))
    }),
    ("radius_search", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        let found = x.radius_search(&y, c.number())?;
        Ok(vec![found.pairs, found.distances, found.counts])
    }),
    ("radius_search_capped", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        let found = x.radius_search_capped(&y, c.number(), c.size())?;
        Ok(vec![found.distances, found.indices, found.counts])
    }),
    ("farthest_points", |c, m| {
        one(c.of(m, 2)?.farthest_points(c.size(), c.size()))
    }),
];

/// Indices, masks, losses.
pub(super) const PICKS: &[(&str, Call)] = &[
    ("scatter", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        let index = c.indices(m, y.shape(), 2)?;
        one(x.scatter(c.dim(), &index, &y))
    }),
    ("scatter_reduce", |c, m| {
        let x = c.of(m, 2)?;
        let y = c.like(m, &x)?;
        let index = c.indices(m, y.shape(), 2)?;
        let how = c.pick(&[ScatterReduce::Mean, ScatterReduce::Prod, ScatterReduce::Max]);
        one(x.scatter_reduce(c.dim(), &index, &y, how, c.flag()))
    }),
    ("index_copy", |c, m| {
        let x = c.any(m)?;
        let (y, n) = (c.like(m, &x)?, c.extent());
        let index = c.indices(m, &[n], 2)?;
        one(x.index_copy(c.dim(), &index, &y))
    }),
    ("index_put", |c, m| {
        let (x, n) = (c.of(m, 2)?, c.extent());
        let [rows, columns] = [c.indices(m, &[n], 2)?, c.indices(m, &[n], 2)?];
        let values = c.tensor(m, &[n])?;
        one(x.index_put(&[&rows, &columns], &values, c.flag()))
    }),
    ("index_fill", |c, m| {
        let (x, n) = (c.any(m)?, c.extent());
        let index = c.indices(m, &[n], 2)?;
        one(x.index_fill(c.dim(), &index, c.number()))
    }),
    ("masked_scatter", |c, m| {
        let x = c.any(m)?;
        let mask = c.mask(m, x.shape())?;
        let source = c.any(m)?;
        one(x.masked_scatter(&mask, &source))
    }),
    ("masked_fill", |c, m| {
        let x = c.any(m)?;
        let mask = c.mask(m, x.shape())?;
        one(x.masked_fill(&mask, c.number()))
    }),
    ("one_hot", |c, m| {
        let (n, classes) = (c.extent(), c.size());
        let dtype = c.pick(&[DType::I64, DType::I32]);
        let index = c.indices(m, &[n], 3)?.to(dtype)?;
        one(index.one_hot(c.maybe(classes)))
    }),
    ("embedding_bag", |c, m| {
        let (table, n, bags) = (c.of(m, 2)?, c.extent(), c.extent());
        let indices = c.indices(m, &[n], 3)?;
        let offsets = c.indices(m, &[bags], n)?.sort(0, false)?.0;
        let how = c.pick(&[BagReduce::Sum, BagReduce::Mean, BagReduce::Max]);
        let padding = c.size();
        one(table.embedding_bag(&indices, Some(&offsets), how, None, c.maybe(padding)))
    }),
    ("nll_loss", |c, m| {
        let [n, classes, places] = [(); 3].map(|()| c.extent());
        let x = c.tensor(m, &[n, classes, places])?;
        let target = c.indices(m, &[n, places], classes)?;
        let options = ClassLoss::new().reduction(c.reduction()).ignore(1);
        one(x.nll_loss(&target, &options))
    }),
    ("mse_loss", |c, m| {
        loss(c, m, |c, x, y| x.mse_loss_by(y, c.reduction()))
    }),
    ("huber_loss", |c, m| {
        loss(c, m, |c, x, y| x.huber_loss(y, c.number(), c.reduction()))
    }),
    ("smooth_l1_loss", |c, m| {
        loss(c, m, |c, x, y| {
            x.smooth_l1_loss(y, c.number(), c.reduction())
        })
    }),
    ("kl_div", |c, m| {
        loss(c, m, |c, x, y| x.kl_div(y, c.flag(), c.reduction()))
    }),
    ("gaussian_nll_loss", |c, m| {
        let x = c.any(m)?;
        let [y, var] = [c.like(m, &x)?, c.like(m, &x)?];
        one(x.gaussian_nll_loss(&y, &var, c.flag(), 1e-3, c.reduction()))
    }),
    ("poisson_nll_loss", |c, m| {
        loss(c, m, |c, x, y| {
            x.poisson_nll_loss(y, c.flag(), c.flag(), c.number(), c.reduction())
        })
    }),
    ("cosine_embedding_loss", |c, m| {
        let x = c.of(m, 2)?;
        let (y, n) = (c.like(m, &x)?, c.extent());
        let target = c.tensor(m, &[n])?;
        one(x.cosine_embedding_loss(&y, &target, c.number(), c.reduction()))
    }),
    ("triplet_margin_loss", |c, m| {
        let x = c.any(m)?;
        let [near, far] = [c.like(m, &x)?, c.like(m, &x)?];
        one(x.triplet_margin_loss(&near, &far, c.number(), c.flag(), c.reduction()))
    }),
    ("ctc_loss", |c, m| {
        let [time, batch, classes, labels] = [(); 4].map(|()| c.extent());
        let x = c.tensor(m, &[time, batch, classes])?.log_softmax(-1)?;
        let targets = c.indices(m, &[batch, labels], classes)?;
        let steps = c.indices(m, &[batch], time + 1)?;
        let lengths = c.indices(m, &[batch], labels + 1)?;
        let (blank, zero) = (c.size(), c.flag());
        one(x.ctc_loss(&targets, [&steps, &lengths], blank, zero, c.reduction()))
    }),
    ("multinomial", |c, m| {
        let x = c.of(m, 2)?.abs()?;
        one(x.multinomial(c.size(), c.flag()))
    }),
    ("dropouts", |c, m| {
        let (x, p) = (c.of(m, 4)?, c.number());
        one(match c.below(6) {
            0 => x.dropout(p),
            1 => x.dropout2d(p),
            2 => x.alpha_dropout(p),
            3 => x.drop_path(p),
            4 => x.gumbel_softmax(p, c.flag(), c.dim()),
            _ => x.rrelu(c.number()..c.number(), c.flag()),
        })
    }),
];

/// Products, windows, layers.
pub(super) const LAYERS: &[(&str, Call)] = &[
    ("kron", |c, m| {
        let [x, y] = [c.any(m)?, c.any(m)?];
        one(x.kron(&y))
    }),
    ("inner", |c, m| {
        let [x, y] = [c.any(m)?, c.any(m)?];
        one(x.inner(&y))
    }),
    ("tensordot", |c, m| {
        let [x, y] = [c.any(m)?, c.any(m)?];
        one(x.tensordot(&y, [c.dim()], [c.dim()]))
    }),
    ("cross", |c, m| {
        let [x, y] = [c.of(m, 2)?, c.of(m, 2)?];
        one(x.cross(&y, c.dim()))
    }),
    ("addmm", |c, m| {
        let [x, a, b] = [c.of(m, 2)?, c.of(m, 2)?, c.of(m, 2)?];
        one(x.addmm(&a, &b, c.number(), c.number()))
    }),
    ("bilinear", |c, m| {
        let [i, j, o] = [(); 3].map(|()| c.extent());
        let [x, y] = [c.tensor(m, &[2, i])?, c.tensor(m, &[2, j])?];
        one(x.bilinear(&y, &c.tensor(m, &[o, i, j])?, None))
    }),
    ("einsum of three", |c, m| {
        let [x, y, z] = [c.of(m, 2)?, c.of(m, 2)?, c.of(m, 2)?];
        let equations = ["ab,bc,cd->ad", "aa,ab,b...->...", "ab,ab,ab", "ab,cd,ef->a"];
        one(ShardTensor::einsum(c.pick(&equations), &[&x, &y, &z]))
    }),
    ("conv with edges", |c, m| {
        let x = c.tensor(m, &[2, 2, 5])?;
        let weight = c.tensor(m, &[2, 2, 3])?;
        let edges = [EdgeMap::Replicate, EdgeMap::Reflect, EdgeMap::Circular];
        let options = ConvOptions::new().edge(c.pick(&edges)).stride(c.size());
        one(x.conv(&weight, None, options.padding_each([(c.size(), c.size())])))
    }),
    ("lp_pool", |c, m| {
        let x = c.of(m, 4)?;
        one(x.lp_pool(c.number(), c.pool()))
    }),
    ("dilated max_pool", |c, m| {
        let pool = PoolOptions::new([c.size(), c.size()]).dilation([c.size(), c.size()]);
        one(c.of(m, 4)?.max_pool(pool.ceil_mode(c.flag())))
    }),
    ("local_response_norm", |c, m| {
        let x = c.of(m, 3)?;
        one(x.local_response_norm(c.size(), c.number(), c.number(), c.number()))
    }),
    ("adaptive_avg_pool", |c, m| {
        one(c.of(m, 4)?.adaptive_avg_pool([c.size(), c.size()]))
    }),
    ("adaptive_max_pool", |c, m| {
        let x = c.of(m, 3)?;
        two(x.adaptive_max_pool_with_indices([c.size()]))
    }),
    ("interpolate_by", |c, m| {
        let modes = [
            ResampleMode::NearestExact,
            ResampleMode::Area,
            ResampleMode::LinearAntialias,
        ];
        let x = c.of(m, 3)?;
        one(x.interpolate_by(&[c.number()], c.pick(&modes)))
    }),
    ("affine_grid", |c, m| {
        let n = c.extent();
        let x = c.tensor(m, &[n, 2, 3])?;
        one(x.affine_grid([c.size(), c.size()], c.flag()))
    }),
    ("batch_norm", |c, m| {
        let x = c.of(m, 3)?;
        let (y, _) = x.batch_norm(None, [None; 2], true, c.number(), c.number())?;
        Ok(vec![y])
    }),
    ("rms_norm", |c, m| {
        let (x, dims, eps) = (c.of(m, 3)?, c.size(), c.number());
        one(x.rms_norm(dims, None, c.maybe(eps)))
    }),
    ("irfft", |c, m| {
        let shape = [&c.shape(2)[..], &[2]].concat();
        let (x, n) = (c.tensor(m, &shape)?, c.size());
        one(x.irfft(c.maybe(n), c.dim(), FourierNorm::Forward))
    }),
    ("fftn", |c, m| {
        let shape = [&c.shape(3)[..], &[2]].concat();
        let x = c.tensor(m, &shape)?;
        one(x.fftn(None, [c.dim(), c.dim()], c.norm()))
    }),
    ("complex_einsum", |c, m| {
        let [x, y] = [c.of(m, 3)?, c.of(m, 3)?];
        let equations = ["ab,bc->ac", "ab,ab->", "ab,cb", "->"];
        one(ShardTensor::complex_einsum(c.pick(&equations), &[&x, &y]))
    }),
    ("more layers", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let [a, b] = [c.size(), c.size()];
        let x = c.of(m, 3)?;
        one(match c.below(7) {
            0 => nn::Gru::new(m, a, b, 1)?.forward(&x),
            1 => nn::Lstm::bidirectional(m, a, b, 1)?.forward(&x),
            2 => nn::SpectralConv::new(m, a, b, [c.size()])?.forward(&x),
            3 => nn::Rotary::new(m, a, b)?.forward(&x),
            4 => nn::SinCos::new(m, [a], b)?.forward(&x),
            5 => nn::DropPath::new(c.number()).forward(&x),
            _ => nn::Dropout::new(c.number()).forward(&x),
        })
    }),
];

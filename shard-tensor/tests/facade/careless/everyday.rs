//! Calls of what is made of several ops, as PyTorch has them: pieces and turns, integrals, distances, spectra, losses of classes.

use super::{Call, Chance, one};
use shard_tensor::ndarray::SliceInfoElem;
use shard_tensor::nn::{self, ModelExt, Module};
use shard_tensor::optim::Lbfgs;
use shard_tensor::{
    DType, EdgeMap, Interpolation, Mesh, NormOrder, Result, ShardTensor, Stft, replicate,
};

fn frames(c: &mut Chance, m: &Mesh) -> Result<Stft> {
    let edges = [EdgeMap::Zeros, EdgeMap::Reflect, EdgeMap::Circular];
    let frames = Stft::new(c.size())
        .hop(c.size())
        .edge(c.pick(&edges))
        .norm(c.norm());
    let frames = if c.flag() {
        frames.from_start()
    } else {
        frames
    };
    let frames = if c.flag() { frames.two_sided() } else { frames };
    let window = c.of(m, 1)?;
    Ok(if c.flag() {
        frames.window(&window)
    } else {
        frames
    })
}

/// Two tensors of one shape, as a rule.
fn pair(c: &mut Chance, m: &Mesh, ndim: usize) -> Result<[ShardTensor; 2]> {
    let x = c.of(m, ndim)?;
    let y = c.like(m, &x)?;
    Ok([x, y])
}

/// Two tensors, of which none may be below 0.
fn sizes(c: &mut Chance, m: &Mesh) -> Result<[ShardTensor; 2]> {
    let [x, y] = pair(c, m, 2)?;
    Ok(if c.flag() {
        [x.abs()?, y.abs()?]
    } else {
        [x, y]
    })
}

/// Two tensors of whole numbers, and of what is none.
fn whole(c: &mut Chance, m: &Mesh) -> Result<[ShardTensor; 2]> {
    let [x, y] = pair(c, m, 2)?;
    let types = [DType::I64, DType::I32, DType::U8, DType::Bool, DType::F32];
    let to = c.pick(&types);
    Ok([x.mul_scalar(9.0)?.to(to)?, y.mul_scalar(9.0)?.to(to)?])
}

/// Calls of what is made of several ops.
pub(super) const ALL: &[(&str, Call)] = &[
    ("tensor_split", |c, m| {
        c.any(m)?.tensor_split(c.size(), c.dim())
    }),
    ("rot90", |c, m| {
        one(c.of(m, 2)?.rot90(c.offset() as i64, [c.dim(), c.dim()]))
    }),
    ("block_diag", |c, m| {
        let [x, y, z] = [c.of(m, 2)?, c.of(m, 1)?, c.of(m, 2)?];
        one(ShardTensor::block_diag(&[&x, &y, &z]))
    }),
    ("slices_assign", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let range = |c: &mut Chance| SliceInfoElem::Slice {
            start: c.offset(),
            end: c.flag().then(|| c.offset()),
            step: c.offset(),
        };
        one(x.slices_assign([range(c), range(c)], &y))
    }),
    ("narrow from", |c, m| {
        one(c.any(m)?.narrow(c.dim(), c.size()..))
    }),
    ("narrow to", |c, m| {
        one(c.any(m)?.narrow(c.dim(), ..=c.size()))
    }),
    ("take", |c, m| {
        let x = c.any(m)?;
        let shape = c.shape(2);
        let n = x.numel();
        one(x.take(&c.indices(m, &shape, n)?))
    }),
    ("floor_div_scalar", |c, m| {
        one(c.any(m)?.floor_div_scalar(c.number()))
    }),
    ("remainder_scalar", |c, m| {
        one(c.any(m)?.remainder_scalar(c.number()))
    }),
    ("gamma", |c, m| {
        let x = c.any(m)?;
        one(match c.below(4) {
            0 => x.lgamma(),
            1 => x.digamma(),
            2 => x.trigamma(),
            _ => x.sinc(),
        })
    }),
    ("polygamma", |c, m| {
        let x = c.any(m)?;
        let n = if c.flag() {
            c.size() as f64
        } else {
            c.number()
        };
        one(x.polygamma(n))
    }),
    ("zeta", |c, m| {
        let [x, y] = sizes(c, m)?;
        one(x.zeta(&y))
    }),
    ("igamma", |c, m| {
        let [x, y] = sizes(c, m)?;
        one(x.igamma(&y))
    }),
    ("igammac", |c, m| {
        let [x, y] = sizes(c, m)?;
        one(x.igammac(&y))
    }),
    ("nextafter", |c, m| {
        let [x, y] = sizes(c, m)?;
        one(x.nextafter(&y))
    }),
    ("gcd", |c, m| {
        let [x, y] = whole(c, m)?;
        one(x.gcd(&y))
    }),
    ("lcm", |c, m| {
        let [x, y] = whole(c, m)?;
        one(x.lcm(&y))
    }),
    ("frexp", |c, m| {
        let (mantissas, powers) = c.any(m)?.frexp()?;
        Ok(vec![mantissas, powers])
    }),
    ("vander", |c, m| one(c.of(m, 1)?.vander(c.size(), c.flag()))),
    ("trapezoid", |c, m| {
        one(c.any(m)?.trapezoid(c.number(), c.dim()))
    }),
    ("trapezoid_at", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.trapezoid_at(&y, c.dim()))
    }),
    ("gradient", |c, m| {
        one(c.any(m)?.gradient(c.number(), c.dim(), c.size()))
    }),
    ("gradient_at", |c, m| {
        let x = c.any(m)?;
        let at = c.of(m, 1)?;
        one(x.gradient_at(&at, c.dim(), c.size()))
    }),
    ("cumulative_trapezoid", |c, m| {
        one(c.any(m)?.cumulative_trapezoid(c.number(), c.dim()))
    }),
    ("cov", |c, m| {
        let x = c.of(m, 2)?;
        let n = x.shape().last().copied().unwrap_or(1);
        let often = c.indices(m, &[n], 4)?;
        let much = c.tensor(m, &[n])?.abs()?;
        let weights = [c.maybe(&often), c.maybe(&much)];
        one(x.cov(c.number(), weights))
    }),
    ("corrcoef", |c, m| one(c.of(m, 2)?.corrcoef())),
    ("renorm", |c, m| {
        one(c
            .of(m, 2)?
            .renorm(NormOrder::P(c.number()), c.dim(), c.number()))
    }),
    ("nanquantile", |c, m| {
        let x = c.any(m)?;
        let rest = [
            Interpolation::Lower,
            Interpolation::Higher,
            Interpolation::Nearest,
            Interpolation::Midpoint,
            Interpolation::Linear,
        ];
        let q = [c.number(), 0.25, c.number()];
        let count = c.below(4);
        one(x.nanquantile(&q[..count], c.dim(), c.pick(&rest)))
    }),
    ("pairwise_distance", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.pairwise_distance(&y, NormOrder::P(c.number()), 1e-6, c.flag()))
    }),
    ("pdist", |c, m| {
        one(c.of(m, 2)?.pdist(NormOrder::P(c.number())))
    }),
    ("soft_margin_loss", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        one(x.soft_margin_loss(&y, c.reduction()))
    }),
    ("multi_margin_loss", |c, m| {
        let [n, classes] = [c.extent(), c.extent()];
        let x = c.tensor(m, &[n, classes])?;
        let target = c.indices(m, &[n], classes)?;
        let weight = c.tensor(m, &[classes])?;
        let weight = c.maybe(&weight);
        one(x.multi_margin_loss(
            &target,
            c.pick(&[1, 2, 3]),
            c.number(),
            weight,
            c.reduction(),
        ))
    }),
    ("multilabel_soft_margin_loss", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let weight = c.of(m, 1)?;
        let weight = c.maybe(&weight);
        one(x.multilabel_soft_margin_loss(&y, weight, c.reduction()))
    }),
    ("stft", |c, m| {
        let x = c.of(m, 2)?;
        one(x.stft(&frames(c, m)?))
    }),
    ("istft", |c, m| {
        let shape = [&c.shape(2)[..], &[2]].concat();
        let spectra = c.tensor(m, &shape)?;
        let (frames, length) = (frames(c, m)?, c.size());
        one(spectra.istft(&frames, c.maybe(length)))
    }),
    ("windows", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let all = vec![replicate(); m.shape().len()];
        one(match c.below(6) {
            0 => m.hann_window(c.size(), c.flag(), all),
            1 => m.hamming_window(c.size(), c.flag(), all),
            2 => m.blackman_window(c.size(), c.flag(), all),
            3 => m.bartlett_window(c.size(), c.flag(), all),
            4 => m.kaiser_window(c.size(), c.flag(), c.number(), all),
            _ => m.logspace(c.number(), c.number(), c.size(), c.number(), all),
        })
    }),
    ("layers of transformers", |c, m| {
        let m = &m.with_dtype(DType::F64);
        let [width, heads, hidden] = [c.size(), c.size(), c.size()];
        let [x, memory] = [c.of(m, 3)?, c.of(m, 3)?];
        one(match c.below(2) {
            0 => {
                let layer = nn::TransformerEncoderLayer::new(m, width, heads, hidden)?;
                layer.eval();
                layer.forward(&x)
            }
            _ => {
                let layer = nn::TransformerDecoderLayer::new(m, width, heads, hidden)?;
                layer.eval();
                layer.forward(&x, &memory)
            }
        })
    }),
    ("backward_to", |c, m| {
        let [x, y] = pair(c, m, 2)?;
        let [x, y] = [x.requires_grad()?, y.requires_grad()?];
        let found = x
            .mul(&y)?
            .square()?
            .sum_all()?
            .backward_to(&[("x".to_owned(), x.clone())])?;
        assert!(found.get(&y)?.is_none());
        Ok(found.get(&x)?.into_iter().collect())
    }),
    ("Lbfgs", |c, m| {
        let x = c.of(m, 2)?.detach().requires_grad()?;
        let mut lbfgs = Lbfgs::new(vec![("x".to_owned(), x.clone())], c.number())?
            .iterations(c.size().min(5))
            .history(c.size());
        if c.flag() {
            lbfgs = lbfgs.strong_wolfe();
        }
        lbfgs.step(|| x.square()?.sum_all())?;
        Ok(vec![x.detach()])
    }),
    ("arrays of pieces", |c, m| {
        let (x, dim) = (c.any(m)?, c.dim());
        let [a, b] = match c.below(3) {
            0 => x.chunk_array(dim)?,
            1 => x.unbind_array(dim)?,
            _ => x.split_array([c.size(), c.size()], dim)?,
        };
        Ok(vec![a, b])
    }),
    ("index", |c, m| {
        let (x, n) = (c.of(m, 3)?, c.extent());
        let [rows, columns] = [c.indices(m, &[n], 2)?, c.indices(m, &[n], 2)?];
        one(x.index(c.dim(), &[&rows, &columns]))
    }),
    ("index by a mask", |c, m| {
        let x = c.any(m)?;
        let dims = c.below(x.ndim() + 1);
        let mask = c.mask(m, &x.shape()[..dims])?;
        one(x.index(0, &[&mask]))
    }),
];

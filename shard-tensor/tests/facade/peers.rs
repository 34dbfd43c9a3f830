//! The hundred and nine ops that other libraries of sharded tensors were compared by, as methods: on parts that are even, as
//! `torch.chunk` makes them, of any sizes, and empty, results and gradients are those of one rank.

use crate::common::pattern;
use shard_tensor::op::EdgeMap;
use shard_tensor::{
    Attention, Causal, ClassLoss, ConvOptions, ConvTransposeOptions, DType, Launch, Mesh,
    Placements, PoolOptions, ResampleMode, Result, ShardTensor, UnfoldOptions, replicate, shard,
};

const RANKS: usize = 4;
/// Stands for the extent of the dim that is sharded.
const N: usize = usize::MAX;

/// An operand: its shape, in which [`N`] is sharded, and what it holds.
#[derive(Clone, Copy, Debug)]
enum Of {
    Floats(&'static [usize]),
    /// Whole numbers below a bound, [`N`] if they count the sharded dim.
    Indices(&'static [usize], usize),
}

use Of::{Floats, Indices};

/// The operand of most ops.
const X: Of = Floats(&[N, 6, 5]);
/// That of ops on images.
const IMAGE: Of = Floats(&[2, 4, N, 8]);
const VOLUME: Of = Floats(&[1, 2, N, 5, 4]);
const WEIGHTS: Of = Floats(&[3, 4, 3, 3]);
const HEADS: Of = Floats(&[1, 2, N, 4]);
const WHOLE_HEADS: Of = Floats(&[1, 2, 7, 4]);

/// What an op makes of operands.
trait Made {
    fn tensors(self) -> Vec<ShardTensor>;
}

impl Made for ShardTensor {
    fn tensors(self) -> Vec<ShardTensor> {
        vec![self]
    }
}

impl Made for (ShardTensor, ShardTensor) {
    fn tensors(self) -> Vec<ShardTensor> {
        vec![self.0, self.1]
    }
}

/// Without running statistics.
impl Made for (ShardTensor, Option<(ShardTensor, ShardTensor)>) {
    fn tensors(self) -> Vec<ShardTensor> {
        vec![self.0]
    }
}

impl Made for Vec<ShardTensor> {
    fn tensors(self) -> Vec<ShardTensor> {
        self
    }
}

/// A row of the table: an op's name, its operands, and the op.
struct Row {
    name: &'static str,
    operands: &'static [Of],
    apply: fn(&[ShardTensor]) -> Result<Vec<ShardTensor>>,
}

macro_rules! rows {
    ($($name:literal [$($operand:expr),*] |$x:ident| $op:expr;)*) => {
        &[$(Row { name: $name, operands: &[$($operand),*], apply: |$x| Ok($op?.tensors()) }),*]
    };
}

const ROWS: &[Row] = rows! {
    "sum" [X] |x| x[0].sum_all();
    "sum(0)" [X] |x| x[0].sum(0, false);
    "mean" [X] |x| x[0].mean_all();
    "mean(0)" [X] |x| x[0].mean(0, false);
    "mean((0,1))" [X] |x| x[0].mean([0, 1], false);
    "mean(1)" [X] |x| x[0].mean(1, false);
    "var" [X] |x| x[0].var([0, 1, 2], 1.0, false);
    "var(0)" [X] |x| x[0].var(0, 1.0, false);
    "std(0)" [X] |x| x[0].std(0, 1.0, false);
    "vector_norm" [X] |x| x[0].norm(2.0, [0, 1, 2], false);
    "vector_norm1(0)" [X] |x| x[0].norm(1.0, 0, false);
    "amax(0)" [X] |x| x[0].amax(0, false);
    "amin" [X] |x| x[0].amin([0, 1, 2], false);
    "max(dim0)" [X] |x| x[0].max(0, false);
    "argmax(0)" [X] |x| x[0].argmax(0);
    "argmax" [X] |x| x[0].argmax([0, 1, 2]);
    "argmin(1)" [X] |x| x[0].argmin(1);
    "logsumexp(0)" [X] |x| x[0].logsumexp(0, false);
    "prod(0)" [X] |x| x[0].prod(0, false);
    "prod" [X] |x| x[0].prod([0, 1, 2], false);
    "median(0)" [X] |x| x[0].median(0);
    "all" [X] |x| x[0].gt_scalar(-2.0)?.all([0, 1, 2], false);
    "count_nonzero" [X] |x| x[0].relu()?.count_nonzero([0, 1, 2], false);
    "softmax(0)" [X] |x| x[0].softmax(0);
    "softmax(1)" [X] |x| x[0].softmax(1);
    "log_softmax(0)" [X] |x| x[0].log_softmax(0);
    "cumsum(0)" [X] |x| x[0].cumsum(0);
    "cumsum(1)" [X] |x| x[0].cumsum(1);
    "sort(0)" [X] |x| x[0].sort(0, false);
    "sort(1)" [X] |x| x[0].sort(1, false);
    "topk(0)" [X] |x| x[0].topk(2, 0, true);
    "flip(0)" [X] |x| x[0].flip(0);
    "roll(0)" [X] |x| x[0].roll(0, 2);
    "x[1:3]" [X] |x| x[0].narrow(0, 1..3);
    "x[::2]" [X] |x| x[0].slice(0, 0, 2, x[0].shape()[0].div_ceil(2));
    "x[1]" [X] |x| x[0].select(0, 1);
    "x[:,2]" [X] |x| x[0].select(1, 2);
    "x[-1:]" [X] |x| x[0].narrow(0, x[0].shape()[0] - 1..x[0].shape()[0]);
    "flatten" [X] |x| x[0].flatten();
    "reshape(n*6,5)" [X] |x| x[0].reshape([x[0].shape()[0] * 6, 5]);
    "view(n,30)" [X] |x| x[0].reshape([x[0].shape()[0], 30]);
    "transpose" [X] |x| x[0].transpose(0, 1);
    "permute" [X] |x| x[0].permute([2, 0, 1]);
    "unsqueeze(0)" [X] |x| x[0].unsqueeze(0);
    "cat dim0" [X, X] |x| ShardTensor::cat(&[&x[0], &x[1]], 0);
    "cat dim1" [X, X] |x| ShardTensor::cat(&[&x[0], &x[1]], 1);
    "stack" [X, X] |x| ShardTensor::stack(&[&x[0], &x[1]], 0);
    "split(2,0)" [X] |x| {
        let n = x[0].shape()[0];
        x[0].split([&vec![2; n / 2][..], &vec![1; n % 2]].concat(), 0)
    };
    "chunk(2,0)" [X] |x| x[0].chunk(2, 0);
    "unbind(0)" [X] |x| x[0].unbind(0);
    "gelu" [X] |x| x[0].gelu();
    "x*2+1" [X] |x| x[0].mul_scalar(2.0)?.add_scalar(1.0);
    "clamp" [X] |x| x[0].clamp(-0.5, 0.5);
    "masked_fill" [X] |x| x[0].masked_fill(&x[0].gt_scalar(0.3)?, 0.25);
    "where" [X, X] |x| x[0].gt_scalar(0.0)?.where_(&x[0], &x[1]);
    "tril" [X] |x| x[0].tril(0);
    "repeat(2,1,1)" [X] |x| x[0].repeat(0, 2);
    "pad dim0 constant" [X] |x| x[0].pad(&[(1, 2), (0, 0), (0, 0)], EdgeMap::Zeros, 1.5);
    "pad dim2 constant" [X] |x| x[0].pad(&[(0, 0), (0, 0), (1, 2)], EdgeMap::Zeros, 1.5);
    "x-x.mean(0)" [X] |x| x[0].sub(&x[0].mean(0, false)?);
    "x[None]-x[:,None]" [X] |x| x[0].unsqueeze(0)?.sub(&x[0].unsqueeze(1)?);
    "layer_norm last" [X] |x| x[0].layer_norm(1, None, None, 1e-5);
    "layer_norm(6,5)" [X] |x| x[0].layer_norm(2, None, None, 1e-5);
    "layer_norm all" [X] |x| x[0].layer_norm(3, None, None, 1e-5);
    "normalize(dim0)" [X] |x| x[0].normalize(2.0, 0, 1e-12);
    "nonzero count" [X] |x| x[0].relu()?.nonzero();
    "cdist(x,x)" [Floats(&[N, 5])] |x| x[0].cdist(&x[0], 2.0);
    "einsum ijk,ijl->kl" [X, Floats(&[N, 6, 3])] |x| ShardTensor::einsum("ijk,ijl->kl", &[&x[0], &x[1]]);
    "x@w" [X, Floats(&[5, 3])] |x| x[0].matmul(&x[1]);
    "linear" [X, Floats(&[3, 5]), Floats(&[3])] |x| x[0].linear(&x[1], Some(&x[2]));
    "x.T@x" [Floats(&[N, 5])] |x| x[0].transpose(0, 1)?.matmul(&x[0]);
    "dot" [Floats(&[N]), Floats(&[N])] |x| x[0].dot(&x[1]);
    "index_select(0)" [X, Indices(&[7], N)] |x| x[0].index_select(0, &x[1]);
    "gather(0)" [X, Indices(&[4, 6, 5], N)] |x| x[0].gather(0, &x[1]);
    "scatter_add idx sharded" [Floats(&[9, 6, 5]), Indices(&[N, 6, 5], 9), X] |x| x[0].scatter_add(0, &x[1], &x[2]);
    "embedding" [Indices(&[N, 6], 9), Floats(&[9, 4])] |x| x[1].embedding(&x[0], None);
    "cross_entropy" [Floats(&[N, 5]), Indices(&[N], 5)] |x| x[0].cross_entropy(&x[1], &ClassLoss::new());
    "cross_entropy sum" [Floats(&[N, 5]), Indices(&[N], 5)] |x| {
        let sum = ClassLoss::new().reduction(shard_tensor::LossReduction::Sum);
        x[0].cross_entropy(&x[1], &sum)
    };
    "mse_loss" [X, X] |x| x[0].mse_loss(&x[1]);
    "conv2d k3p1" [IMAGE, WEIGHTS] |x| x[0].conv2d(&x[1], None, ConvOptions::new().padding(1));
    "conv2d k3p0" [IMAGE, WEIGHTS] |x| x[0].conv2d(&x[1], None, ConvOptions::new());
    "conv2d k3s2p1" [IMAGE, WEIGHTS] |x| x[0].conv2d(&x[1], None, ConvOptions::new().stride(2).padding(1));
    "conv2d k3d2p2" [IMAGE, WEIGHTS] |x| x[0].conv2d(&x[1], None, ConvOptions::new().dilation(2).padding(2));
    "conv2d k2s2" [IMAGE, Floats(&[3, 4, 2, 2])] |x| x[0].conv2d(&x[1], None, ConvOptions::new().stride(2));
    "conv2d k2p1" [IMAGE, Floats(&[3, 4, 2, 2])] |x| x[0].conv2d(&x[1], None, ConvOptions::new().padding(1));
    "conv2d same" [IMAGE, Floats(&[3, 4, 4, 3])] |x| {
        // An even kernel: one zero more behind than before.
        let padded = x[0].pad(&[(0, 0), (0, 0), (1, 2), (1, 1)], EdgeMap::Zeros, 0.0)?;
        padded.conv2d(&x[1], None, ConvOptions::new())
    };
    "conv3d k3p1" [VOLUME, Floats(&[3, 2, 3, 3, 3])] |x| x[0].conv3d(&x[1], None, ConvOptions::new().padding(1));
    "conv_transpose2d k2s2" [IMAGE, Floats(&[4, 3, 2, 2])] |x| x[0].conv_transpose(&x[1], None, ConvTransposeOptions::new().stride(2));
    "max_pool2d 2" [IMAGE] |x| x[0].max_pool(PoolOptions::new(2));
    "max_pool2d k3s2p1" [IMAGE] |x| x[0].max_pool(PoolOptions::new(3).stride(2).padding(1));
    "avg_pool2d 2" [IMAGE] |x| x[0].avg_pool(PoolOptions::new(2));
    "avg_pool2d k3s1p1" [IMAGE] |x| x[0].avg_pool(PoolOptions::new(3).stride(1).padding(1));
    "adaptive_avg_pool2d 1" [IMAGE] |x| x[0].adaptive_avg_pool([1, 1]);
    "adaptive_avg_pool2d (3,2)" [IMAGE] |x| x[0].adaptive_avg_pool([3, 2]);
    "interpolate nearest x2" [IMAGE] |x| x[0].interpolate_by(&[2.0, 2.0], ResampleMode::Nearest);
    "interpolate bilinear x2" [IMAGE] |x| x[0].interpolate_by(&[2.0, 2.0], ResampleMode::Linear);
    "interpolate bilinear align" [IMAGE] |x| x[0].interpolate_by(&[2.0, 2.0], ResampleMode::LinearAligned);
    "interpolate bicubic x2" [IMAGE] |x| x[0].interpolate_by(&[2.0, 2.0], ResampleMode::Cubic);
    "pad H circular" [IMAGE] |x| x[0].pad(&[(0, 0), (0, 0), (2, 1), (0, 0)], EdgeMap::Circular, 0.0);
    "pad H reflect" [IMAGE] |x| x[0].pad(&[(0, 0), (0, 0), (2, 1), (0, 0)], EdgeMap::Reflect, 0.0);
    "pad H replicate" [IMAGE] |x| x[0].pad(&[(0, 0), (0, 0), (2, 1), (0, 0)], EdgeMap::Replicate, 0.0);
    "instance_norm" [IMAGE] |x| x[0].instance_norm(None, None, 1e-5);
    "pixel_shuffle" [IMAGE] |x| x[0].pixel_shuffle(2);
    "unfold" [IMAGE] |x| x[0].unfold(UnfoldOptions::new([3, 3]).padding([1, 1]));
    "group_norm" [IMAGE, Floats(&[4]), Floats(&[4])] |x| x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-5);
    "batch_norm train" [IMAGE, Floats(&[4]), Floats(&[4])] |x| x[0].batch_norm(None, [Some(&x[1]), Some(&x[2])], true, 0.1, 1e-5);
    "sdpa" [HEADS, HEADS, HEADS] |x| x[0].attention(&x[1], &x[2], None, &Attention::new());
    "sdpa causal" [HEADS, HEADS, HEADS] |x| x[0].attention(&x[1], &x[2], None, &Attention::new().causal(Causal::TopLeft));
    "sdpa q sharded, kv replicated" [HEADS, WHOLE_HEADS, WHOLE_HEADS] |x| x[0].attention(&x[1], &x[2], None, &Attention::new());
};

/// The operands of a row with this extent in place of [`N`], sharded so where that stands.
fn operands(mesh: &Mesh, row: &Row, n: usize, sizes: Option<&[usize]>) -> Result<Vec<ShardTensor>> {
    let make = |(seed, of): (usize, &Of)| {
        let (Floats(shape) | Indices(shape, _)) = *of;
        let extents: Vec<usize> = shape.iter().map(|&e| if e == N { n } else { e }).collect();
        let placed: Placements = match (shape.iter().position(|&e| e == N), sizes) {
            (Some(dim), Some(sizes)) => [shard(dim).sizes(sizes.to_vec())].into(),
            _ => replicate().into(),
        };
        match *of {
            Floats(_) => mesh
                .from_fn(extents, placed, |i| pattern(seed, i))?
                .requires_grad(),
            Indices(_, bound) => {
                let bound = if bound == N { n } else { bound };
                let index = |i: &[usize]| ((pattern(seed, i) + 1.0) / 2.0 * bound as f64).floor();
                mesh.from_fn(extents, placed, index)?.to(DType::I64)
            }
        }
    };
    row.operands.iter().enumerate().map(make).collect()
}

/// The results of a row, then the gradients of their sum with weights.
fn results(mesh: &Mesh, row: &Row, n: usize, sizes: Option<&[usize]>) -> Result<Vec<Vec<f64>>> {
    let x = operands(mesh, row, n, sizes)?;
    let made = (row.apply)(&x)?;
    let numbers = |x: &ShardTensor| -> Result<Vec<f64>> {
        Ok(x.to(DType::F64)?.to_array::<f64>()?.into_iter().collect())
    };
    let mut found = made.iter().map(numbers).collect::<Result<Vec<_>>>()?;
    let tracked = made
        .iter()
        .filter(|y| y.dtype() == DType::F64 && y.is_tracked());
    let mut loss: Option<ShardTensor> = None;
    for y in tracked {
        let weights = mesh.from_fn(y.shape().to_vec(), replicate(), |i| pattern(9, i))?;
        let term = y.mul(&weights)?.sum_all()?;
        loss = Some(match loss {
            Some(loss) => loss.add(&term)?,
            None => term,
        });
    }
    let Some(loss) = loss else { return Ok(found) };
    let gradients = loss.backward()?;
    for x in x.iter().filter(|x| x.dtype() == DType::F64) {
        let Some(dx) = gradients.get(x)? else {
            continue;
        };
        assert_eq!(dx.layout(), x.layout(), "{}", row.name);
        found.push(numbers(&dx)?);
    }
    Ok(found)
}

/// All rows with a sharded extent of `sizes`, against one rank.
fn compare(sizes: [usize; RANKS]) {
    let n = sizes.iter().sum();
    let on = |ranks: usize, sizes: Option<&[usize]>| {
        let of_all = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let each = ROWS.iter().map(|row| results(&mesh, row, n, sizes));
            each.collect::<Result<Vec<_>>>()
        });
        of_all.unwrap()
    };
    let alone = on(1, None).swap_remove(0);
    for found in on(RANKS, Some(&sizes)) {
        for ((row, found), exact) in ROWS.iter().zip(&found).zip(&alone) {
            assert_eq!(found.len(), exact.len(), "{} on {sizes:?}", row.name);
            for (k, (found, exact)) in found.iter().zip(exact).enumerate() {
                let most = exact.iter().fold(1e-300_f64, |most, x| most.max(x.abs()));
                let same = |(a, b): (&f64, &f64)| {
                    (a - b).abs() <= 1e-11 * most || a.to_bits() == b.to_bits()
                };
                let equal = found.len() == exact.len() && found.iter().zip(exact).all(same);
                assert!(
                    equal,
                    "{} on {sizes:?}, number {k}: {found:?}, not {exact:?}",
                    row.name
                );
            }
        }
    }
}

#[test]
fn there_are_a_hundred_and_nine() {
    let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 109);
}

#[test]
fn even_parts() {
    compare([2; RANKS]);
}

#[test]
fn parts_as_torch_chunk_makes_them() {
    compare([4, 4, 4, 1]);
}

#[test]
fn parts_of_any_sizes() {
    compare([5, 1, 4, 3]);
}

#[test]
fn empty_parts() {
    compare([0, 9, 0, 4]);
}

#[test]
fn fewer_rows_than_ranks() {
    compare([1, 1, 0, 1]);
}

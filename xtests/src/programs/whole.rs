//! Steps that compare whole numbers, or round: which of equal ones is taken must be the same on all ranks.

use super::{Op, ops};
use shard_tensor::{DType, EdgeMap, PoolOptions, ScatterReduce, ShardTensor};

pub(super) const OPS: &[Op] = ops![
    relu => |at| {
        let (x, a) = at.any();
        at.add(x.relu()?, a)
    },
    abs => |at| {
        let (x, a) = at.any();
        at.add(x.abs()?, a)
    },
    clamp => |at| {
        let (x, _) = at.any();
        at.add(x.clamp(-2.0, 3.0)?, 3.0)
    },
    remainder => |at| {
        let (x, _) = at.any();
        at.add(x.remainder_scalar(3.0)?, 3.0)
    },
    floor_div => |at| {
        let (x, a) = at.any();
        at.add(x.floor_div_scalar(2.0)?, a)
    },
    maximum => |at| {
        let (x, a) = at.any();
        let (y, b) = at.partner(&x)?;
        let y = if at.one_in(2) { x.maximum(&y)? } else { x.minimum(&y)? };
        at.add(y, a.max(b))
    },
    masks => |at| {
        let (x, a) = at.any();
        let mask = at.mask(&x)?;
        at.add(x.masked_fill(&mask.logical_not()?, -1.0)?, a.max(1.0))?;
        at.add(mask.to(at.float())?, 1.0)
    },
    amax => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let keep = at.one_in(2);
        let y = match at.below(3) {
            0 => x.amax([dim], keep)?,
            1 => x.amin([dim], keep)?,
            _ => x.amax(.., false)?,
        };
        at.add(y, a)
    },
    max => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let (values, indices) = if at.one_in(2) { x.max(dim, false)? } else { x.min(dim, true)? };
        at.add(values, a)?;
        at.add(indices.to(at.float())?, x.shape()[dim] as f64)
    },
    prod => |at| {
        let (x, _, dim) = at.dim()?;
        let small = x.remainder_scalar(3.0)?.sub_scalar(1.0)?;
        at.add(small.prod([dim], false)?, 1.0)?;
        at.add(small.cumprod(dim)?, 1.0)
    },
    cummax => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let (values, indices) = if at.one_in(2) { x.cummax(dim)? } else { x.cummin(dim)? };
        at.add(values, a)?;
        at.add(indices.to(at.float())?, x.shape()[dim] as f64)
    },
    sort => |at| {
        let (x, a, dim) = at.dim()?;
        let descending = at.one_in(2);
        let (values, order) = x.sort(dim, descending)?;
        at.add(values, a)?;
        at.add(order.to(at.float())?, x.shape()[dim] as f64)
    },
    topk => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let n = x.shape()[dim];
        let k = 1 + at.below(n);
        let (values, indices) = match at.below(4) {
            0 => x.topk(k, dim, true)?,
            1 => x.kthvalue(k, dim)?,
            2 => x.median(dim)?,
            _ => x.mode(dim)?,
        };
        at.add(values, a)?;
        at.add(indices.to(at.float())?, n as f64)
    },
    max_pool => |at| {
        let (x, a) = at.of_exactly(4)?;
        let stride = 1 + at.below(2);
        if x.shape()[2] < 2 || x.shape()[3] < 2 {
            return Ok(());
        }
        at.add(x.max_pool(PoolOptions::new(2).stride(stride))?, a)
    },
    pad_by_edge => |at| {
        let (x, a) = at.filled(1)?;
        let dim = at.below(x.ndim());
        let mut pads = vec![(0, 0); x.ndim()];
        pads[dim] = (at.below(x.shape()[dim]) as isize, at.below(x.shape()[dim]) as isize);
        let edge = [EdgeMap::Replicate, EdgeMap::Reflect, EdgeMap::Circular][at.below(3)];
        at.add(x.pad(&pads, edge, 0.0)?, a)
    },
    masked_select => |at| {
        let (x, a) = at.any();
        let mask = at.mask(&x)?;
        at.add(x.masked_select(&mask)?, a)
    },
    nonzero => |at| {
        let (x, a) = at.of_exactly(1)?;
        let found = at.mask(&x)?.nonzero()?.flatten()?;
        at.add(x.index_select(0, &found)?, a)
    },
    unique => |at| {
        let (x, a) = at.any();
        at.add(x.detach().unique()?, a)
    },
    by_value => |at| {
        let (x, a, dim) = at.dim()?;
        let n = x.shape()[dim];
        if n == 0 {
            return Ok(());
        }
        let list = at.of_exactly(1)?.0;
        let index = list.remainder_scalar(n as f64)?.to(DType::I64)?;
        at.add(x.index_select(dim, &index)?, a)
    },
    scatter => |at| {
        let (x, a, dim) = at.dim()?;
        let (y, b) = at.alike(&x)?;
        let n = x.shape()[dim];
        let index = at.indices(x.shape(), n)?;
        at.add(x.scatter(dim, &index, &y)?, a.max(b))
    },
    scatter_extreme => |at| {
        let (x, a, dim) = at.dim()?;
        let (y, b) = at.alike(&x)?;
        let n = x.shape()[dim];
        let index = at.indices(x.shape(), n)?;
        let how = if at.one_in(2) { ScatterReduce::Max } else { ScatterReduce::Min };
        at.add(x.scatter_reduce(dim, &index, &y, how, true)?, a.max(b))
    },
    segment_max => |at| {
        let (x, a) = at.of_dims(1)?;
        let n = x.shape()[0];
        let ids = at.indices(&[n], 2)?;
        // Of a segment of nothing an extreme is infinite.
        at.add(x.segment_max(&ids, 2)?.clamp(-16.0, 16.0)?, a.max(16.0))
    },
    searchsorted => |at| {
        let (x, _) = at.any();
        let sorted = at.of_exactly(1)?.0.sort(0, false)?.0;
        let right = at.one_in(2);
        at.add(sorted.searchsorted(&x, right)?.to(at.float())?, sorted.numel() as f64)
    },
    bincount => |at| {
        let list = at.of_exactly(1)?.0;
        let weights = at.alike(&list)?;
        let index = list.remainder_scalar(4.0)?.to(DType::I64)?;
        at.add(index.bincount_within(Some(&weights.0), 5)?, weights.1 * list.numel() as f64)
    },
    one_hot => |at| {
        let (x, _) = at.of_exactly(1)?;
        let hot = x.remainder_scalar(3.0)?.to(DType::I64)?.one_hot(3)?.to(at.float())?;
        let (w, b) = (at.parameter(&[3, 2])?, 4.0);
        at.add(hot.matmul(&w)?, b)
    },
    nearest => |at| {
        let (x, _) = at.of_exactly(2)?;
        let (n, d) = (x.shape()[0], x.shape()[1]);
        if n == 0 || d == 0 {
            return Ok(());
        }
        let points = at.numbers(&[n, d])?;
        let k = 1 + at.below(n.min(3));
        let (distances, indices) = x.detach().nearest(&points, k)?;
        at.add(distances.square()?.round()?, f64::INFINITY)?;
        at.add(indices.to(at.float())?, n as f64)
    },
    equal_rows => |at| {
        let (x, a) = at.of_exactly(2)?;
        let (y, b) = at.alike(&x)?;
        let same = x.eq(&y)?.all([1], true)?;
        at.add(same.where_(&x, &ShardTensor::cat(&[&y], 0)?)?, a.max(b))
    },
    histc => |at| {
        let (x, _) = at.any();
        at.add(x.histc(3, -4.0..4.0)?, x.numel() as f64)
    },
    isin => |at| {
        let (x, a) = at.any();
        let among = at.of_exactly(1)?.0;
        at.add(x.isin(&among)?.where_(&x, 0.0)?, a)
    },
    masked_scatter => |at| {
        let (x, a) = at.any();
        let mask = at.mask(&x)?;
        let source = at.parameter(&[x.numel()])?;
        at.add(x.masked_scatter(&mask, &source)?, a.max(4.0))
    },
    unpool => |at| {
        let (x, a) = at.of_exactly(4)?;
        if x.shape()[2] < 2 || x.shape()[3] < 2 {
            return Ok(());
        }
        let (pooled, indices) = x.max_pool_with_indices(PoolOptions::new(2))?;
        at.add(pooled.max_unpool(&indices, &x.shape()[2..])?, a)
    },
    adaptive_max_pool => |at| {
        let (x, a) = at.filled(4)?;
        let size = [1 + at.below(3), 1 + at.below(3)];
        at.add(x.adaptive_max_pool(size)?, a)
    },
    scatter_value => |at| {
        let (x, a, dim) = at.dim()?;
        let index = at.indices(x.shape(), x.shape()[dim])?;
        at.add(x.scatter_value(dim, &index, -2.0)?, a.max(2.0))
    },
    near => |at| {
        let (x, _) = at.of_exactly(2)?;
        if x.numel() == 0 {
            return Ok(());
        }
        let found = x.detach().radius_search(&at.numbers(&[3, x.shape()[1]])?, 4.5)?;
        at.add(found.counts.to(at.float())?, 3.0)?;
        at.add(found.pairs.to(at.float())?, x.shape()[0].max(3) as f64)
    },
    far => |at| {
        let (x, a) = at.filled(2)?;
        let x = x.flatten_dims(0, x.ndim() - 2)?;
        let count = 1 + at.below(x.shape()[0]);
        let index = x.detach().farthest_points(count, 0)?;
        at.add(x.index_select(0, &index)?, a)
    },
    unique_rows => |at| {
        let (x, a) = at.filled(2)?;
        let found = x.detach().flatten_dims(0, x.ndim() - 2)?.unique_dim(0)?;
        at.add(found.values, a)
    },
];

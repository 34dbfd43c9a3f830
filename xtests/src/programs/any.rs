//! Steps of any program: sums, products and moves, and what is differentiated.

use super::{Op, ops};
use shard_tensor::{
    ConvOptions, ConvTransposeOptions, EdgeMap, Fused, ShardTensor, UnfoldOptions, replicate,
};
use std::sync::LazyLock;

pub(super) const OPS: &[Op] = ops![
    add => |at| {
        let (x, a) = at.any();
        let (y, b) = at.partner(&x)?;
        at.add(x.add(&y)?, a + b)
    },
    sub => |at| {
        let (x, a) = at.any();
        let (y, b) = at.partner(&x)?;
        at.add(x.sub(&y)?, a + b)
    },
    mul => |at| {
        let (x, a) = at.any();
        let (y, b) = at.partner(&x)?;
        at.add(x.mul(&y)?, a * b)
    },
    square => |at| {
        let (x, a) = at.any();
        at.add(x.square()?, a * a)
    },
    by_number => |at| {
        let (x, a) = at.any();
        let by = at.below(7) as f64 - 3.0;
        let y = if at.one_in(2) { x.add_scalar(by)? } else { x.mul_scalar(by)? };
        at.add(y, a * by.abs().max(1.0) + by.abs())
    },
    matmul => |at| {
        let (x, a) = at.of_dims(2)?;
        let (k, n) = (x.shape()[x.ndim() - 1], 1 + at.below(5));
        let (mut y, mut b) = at.of_dims(2)?;
        if y.ndim() != 2 || y.shape()[0] != k {
            (y, b) = (at.numbers(&[k, n])?, 4.0);
        }
        at.add(x.matmul(&y)?, a * b * k as f64)
    },
    linear => |at| {
        let (x, a) = at.of_dims(1)?;
        let k = x.shape()[x.ndim() - 1];
        let n = 1 + at.below(4);
        let (w, bias) = (at.parameter(&[n, k])?, at.numbers(&[n])?);
        let bias = at.one_in(2).then_some(&bias);
        at.add(x.linear(&w, bias)?, a * 4.0 * k as f64 + 4.0)
    },
    steps_of_one_weight => |at| {
        let (x, a) = at.of_exactly(2)?;
        let k = x.shape()[1];
        let w = at.parameter(&[k, k])?;
        let mut h = x.clone();
        for _ in 0..3 {
            h = h.matmul(&w)?.mul(&x)?;
            at.add(h.clone(), a * a * 4.0 * k as f64)?;
            h = at.last();
            if h.shape() != x.shape() {
                break;
            }
        }
        Ok(())
    },
    einsum => |at| {
        let (x, a) = at.of_exactly(3)?;
        let [_, j, k] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let y = at.numbers(&[k, j])?;
        let equation = ["bij,ji->bi", "bij,ji->", "bij,jk->ibk", "bij,ji->b"][at.below(4)];
        let many = x.numel() as f64;
        at.add(ShardTensor::einsum(equation, &[&x, &y])?, a * 4.0 * many)
    },
    conv => |at| {
        let (x, a) = at.of_exactly(4)?;
        let c = x.shape()[1];
        let k = 1 + at.below(2);
        let w = at.parameter(&[2, c, k, k])?;
        let (padding, stride) = (1 + at.below(2), 1 + at.below(2));
        let options = shard_tensor::ConvOptions::new().padding(padding).stride(stride);
        at.add(x.conv(&w, None, options)?, a * 4.0 * (c * k * k) as f64)
    },
    sum => |at| {
        let (x, a, dim) = at.dim()?;
        let many = x.shape()[dim] as f64;
        let keep = at.one_in(2);
        at.add(x.sum([dim], keep)?, a * many)
    },
    cumsum => |at| {
        let (x, a, dim) = at.dim()?;
        let many = x.shape()[dim] as f64;
        at.add(x.cumsum(dim)?, a * many)
    },
    redistribute => |at| {
        let (x, a) = at.any();
        let layout = at.layout(x.shape());
        at.add(x.redistribute(layout)?, a)
    },
    reduced => |at| {
        let (x, a) = at.any();
        at.add(x.reduced()?, a)
    },
    full_tensor => |at| {
        let (x, a) = at.any();
        at.add(x.full_tensor()?, a)
    },
    permute => |at| {
        let (x, a) = at.of_dims(2)?;
        let mut order: Vec<usize> = (0..x.ndim()).collect();
        at.shuffle(&mut order);
        at.add(x.permute(order)?, a)
    },
    reshape => |at| {
        let (x, a) = at.any();
        let shape = at.other_shape(x.numel());
        at.add(x.reshape(&shape)?, a)
    },
    slice => |at| {
        let (x, a, dim) = at.dim()?;
        let (start, len) = at.range(x.shape()[dim]);
        at.add(x.narrow(dim, start..start + len)?, a)
    },
    slice_back => |at| {
        let (x, a, dim) = at.dim()?;
        let n = x.shape()[dim];
        let step = 1 + at.below(3);
        let len = n.div_ceil(step);
        let y = if n == 0 { x } else { x.slice(dim, n - 1, -(step as isize), len)? };
        at.add(y, a)
    },
    select => |at| {
        let (x, a, dim) = at.dim()?;
        let n = x.shape()[dim];
        if n == 0 {
            return Ok(());
        }
        let index = at.below(n);
        at.add(x.select(dim, index)?, a)
    },
    flip => |at| {
        let (x, a, dim) = at.dim()?;
        at.add(x.flip([dim])?, a)
    },
    roll => |at| {
        let (x, a, dim) = at.dim()?;
        let by = at.below(7) as isize - 3;
        at.add(x.roll([dim], by)?, a)
    },
    pad => |at| {
        let (x, a, dim) = at.dim()?;
        let mut pads = vec![(0, 0); x.ndim()];
        pads[dim] = (at.below(3) as isize - 1, at.below(3) as isize);
        pads[dim].0 = pads[dim].0.max(-(x.shape()[dim] as isize));
        at.add(x.pad(&pads, shard_tensor::EdgeMap::Zeros, 1.0)?, a.max(1.0))
    },
    cat => |at| {
        let (x, a, dim) = at.dim()?;
        let (y, b) = at.alike(&x)?;
        let (start, len) = at.range(x.shape()[dim]);
        at.add(ShardTensor::cat(&[&x, &y.narrow(dim, start..start + len)?, &x], dim)?, a.max(b))
    },
    stack => |at| {
        let (x, a) = at.any();
        let (y, b) = at.alike(&x)?;
        let dim = at.below(x.ndim() + 1);
        at.add(ShardTensor::stack(&[&x, &y], dim)?, a.max(b))
    },
    split => |at| {
        let (x, a, dim) = at.dim()?;
        let pieces = x.tensor_split(2 + at.below(2), dim)?;
        for piece in pieces {
            at.add(piece, a)?;
        }
        Ok(())
    },
    expand => |at| {
        let (x, a) = at.any();
        let mut shape = vec![1 + at.below(3)];
        shape.extend(x.shape());
        at.add(x.unsqueeze(0)?.expand(&shape)?, a)
    },
    repeat => |at| {
        let (x, a, dim) = at.dim()?;
        let times = 1 + at.below(2);
        let y = if at.one_in(2) { x.repeat([dim], [times])? } else { x.repeat_interleave(dim, times)? };
        at.add(y, a)
    },
    tril => |at| {
        let (x, a) = at.of_dims(2)?;
        let diagonal = at.below(5) as i64 - 2;
        let y = if at.one_in(2) { x.tril(diagonal)? } else { x.triu(diagonal)? };
        at.add(y, a)
    },
    slice_assign => |at| {
        let (x, a, dim) = at.dim()?;
        let (y, b) = at.alike(&x)?;
        let (start, len) = at.range(x.shape()[dim]);
        let from = at.below(x.shape()[dim] - len + 1);
        at.add(x.slice_assign(dim, start.min(x.shape()[dim].saturating_sub(1)), 1, &y.narrow(dim, from..from + len)?)?, a.max(b))
    },
    sliding => |at| {
        let (x, a, dim) = at.dim()?;
        if x.shape()[dim] < 2 {
            return Ok(());
        }
        let step = 1 + at.below(2);
        at.add(x.sliding(dim, 2, step)?, a)
    },
    index_select => |at| {
        let (x, a, dim) = at.dim()?;
        let n = x.shape()[dim];
        let count = if n == 0 { 0 } else { at.below(6) };
        let index = at.indices(&[count], n)?;
        at.add(x.index_select(dim, &index)?, a)
    },
    gather => |at| {
        let (x, a, dim) = at.dim()?;
        let mut shape = x.shape().to_vec();
        shape[dim] = if shape[dim] == 0 { 0 } else { 1 + at.below(4) };
        let index = at.indices(&shape, x.shape()[dim])?;
        at.add(x.gather(dim, &index)?, a)
    },
    index_add => |at| {
        let (x, a, dim) = at.dim()?;
        let (y, b) = at.alike(&x)?;
        let n = x.shape()[dim];
        let index = at.indices(&[n], n)?;
        at.add(x.index_add(dim, &index, &y)?, a + b * n as f64)
    },
    scatter_add => |at| {
        let (x, a, dim) = at.dim()?;
        let (y, b) = at.alike(&x)?;
        let n = x.shape()[dim];
        let index = at.indices(x.shape(), n)?;
        at.add(x.scatter_add(dim, &index, &y)?, a + b * n as f64)
    },
    segment_sum => |at| {
        let (x, a) = at.of_dims(1)?;
        let (n, count) = (x.shape()[0], 1 + at.below(5));
        let ids = at.indices(&[n], count)?;
        at.add(x.segment_sum(&ids, count)?, a * n as f64)
    },
    recurrence => |at| {
        let (x, a, dim) = at.dim()?;
        let factors = at.numbers(x.shape())?.sign()?;
        let backwards = at.one_in(2);
        let n = x.shape()[dim] as f64;
        at.add(x.linear_recurrence(&factors, None, dim, backwards)?, a * n)
    },
    masked_fill => |at| {
        let (x, a) = at.any();
        let mask = at.numbers(x.shape())?.gt_scalar(0.0)?;
        at.add(x.masked_fill(&mask, 2.0)?, a.max(2.0))
    },
    where_ => |at| {
        let (x, a) = at.any();
        let (y, b) = at.alike(&x)?;
        let mask = at.numbers(x.shape())?.gt_scalar(0.0)?;
        at.add(mask.where_(&x, &y)?, a.max(b))
    },
    dropout => |at| {
        let (x, a) = at.any();
        at.add(x.dropout(0.5)?, 2.0 * a)
    },
    random_order => |at| {
        let (x, a, dim) = at.dim()?;
        let n = x.shape()[dim];
        let layout = at.layout(&[n]);
        let order = at.mesh().randperm(n, layout)?;
        at.add(x.index_select(dim, &order)?, a)
    },
    detach => |at| {
        let (x, a) = at.any();
        at.add(x.detach(), a)
    },
    parameter => |at| {
        let shape = at.any().0.shape().to_vec();
        let x = at.parameter(&shape)?;
        at.add(x, 4.0)
    },
    // What was computed from it keeps the old value.
    set => |at| {
        let shape = at.any().0.shape().to_vec();
        if at.is_nested() {
            return Ok(());
        }
        let x = at.parameter(&shape)?;
        let before = x.mul_scalar(2.0)?;
        let other = at.numbers(&shape)?.redistribute(x.layout())?;
        x.set(&other)?;
        at.add(before, 8.0)?;
        at.add(x, 4.0)
    },
    gradient => |at| {
        let (y, _) = at.any();
        let (x, _) = at.any();
        if at.is_nested() || !y.is_tracked() || !x.is_tracked() {
            return Ok(());
        }
        let kept = at.twice();
        match y.sum_all()?.grad(&[&x], kept)?.remove(0) {
            Some(gradient) => at.add_gradient(&gradient),
            None => Ok(()),
        }
    },
    across => |at| {
        let (x, a) = at.any();
        let first = at.mesh().context().mesh_on([0], [("one", 1)])?;
        let there = x.to_mesh(&first, replicate())?.mul_scalar(2.0)?;
        let layout = at.layout(x.shape());
        at.add(there.to_mesh(&at.mesh(), layout)?, 2.0 * a)
    },
    conv_dilated => |at| {
        let (x, a) = at.filled(4)?;
        let c = x.shape()[1];
        let w = at.parameter(&[2 * c, 1, 2, 3])?;
        let edge = [EdgeMap::Zeros, EdgeMap::Replicate, EdgeMap::Circular][at.below(3)];
        let options = ConvOptions::new().groups(c).dilation([1, 1 + at.below(2)]).edge(edge);
        // A window has to fit.
        let pads = [(0, 0), (0, 0), (1, 1), (2, 2)];
        let x = x.pad(&pads, EdgeMap::Zeros, 0.0)?;
        at.add(x.conv(&w, None, options)?, a * 4.0 * 6.0)
    },
    conv_transpose => |at| {
        let (x, a) = at.filled(3)?;
        let x = x.flatten_dims(0, x.ndim() - 3)?;
        let c = x.shape()[1];
        let w = at.parameter(&[c, 2, 2])?;
        let stride = 1 + at.below(2);
        at.add(x.conv_transpose(&w, None, ConvTransposeOptions::new().stride(stride))?, a * 8.0 * c as f64)
    },
    unfold => |at| {
        let (x, a) = at.filled(4)?;
        let windows = UnfoldOptions::new(2).padding(1);
        let columns = x.unfold(windows.clone())?;
        let back = columns.fold(&x.shape()[2..], windows)?;
        at.add(columns, a)?;
        at.add(back, 4.0 * a)
    },
    diagonal => |at| {
        let (x, a) = at.of_dims(2)?;
        let offset = at.below(3) as i64 - 1;
        let y = x.diagonal(offset, -2, -1)?;
        at.add(y.clone(), a)?;
        at.add(y.diag_embed(0, -2, -1)?, a)
    },
    outer => |at| {
        let (x, a) = at.of_exactly(1)?;
        let (y, b) = at.of_exactly(1)?;
        at.add(x.outer(&y)?, a * b)
    },
    kron => |at| {
        let (x, a) = at.of_exactly(2)?;
        let y = at.numbers(&[2, 2])?;
        at.add(x.kron(&y)?, 4.0 * a)
    },
    tensordot => |at| {
        let (x, a) = at.of_exactly(3)?;
        let y = at.parameter(&[x.shape()[2], 2, x.shape()[0]])?;
        at.add(x.tensordot(&y, [0, 2], [2, 0])?, 4.0 * a * x.numel() as f64)
    },
    dot => |at| {
        let (x, a) = at.of_exactly(1)?;
        let (y, b) = at.alike(&x)?;
        at.add(x.dot(&y)?, a * b * x.numel() as f64)
    },
    cross => |at| {
        let x = at.any().0.shape().first().copied().unwrap_or(1);
        let (x, y) = (at.parameter(&[x, 3])?, at.numbers(&[x, 3])?);
        at.add(x.cross(&y, 1)?, 32.0)
    },
    addmm => |at| {
        let (x, a) = at.of_exactly(2)?;
        let (n, m) = (x.shape()[0], x.shape()[1]);
        let (p, q) = (at.numbers(&[n, 3])?, at.parameter(&[3, m])?);
        at.add(x.addmm(&p, &q, 2.0, -1.0)?, 2.0 * a + 48.0)
    },
    add_scaled => |at| {
        let (x, a) = at.any();
        let (y, b) = at.alike(&x)?;
        let (z, c) = at.partner(&x)?;
        at.add(x.add_scaled(&y, -2.0)?.addcmul(&y, &z, 1.0)?, a + 2.0 * b + b * c)
    },
    fused => |at| {
        static OF: LazyLock<Fused<3, 2>> =
            LazyLock::new(|| Fused::new("of_three", |[x, y, z]| [x * y - z, x + y * z]));
        let (x, a) = at.any();
        let (y, b) = at.partner(&x)?;
        let (z, c) = at.alike(&x)?;
        let [one, other] = OF.of([&x, &y, &z])?;
        at.add(one, a * b + c)?;
        at.add(other, a + b * c)
    },
    meshgrid => |at| {
        let (x, a) = at.of_exactly(1)?;
        let (y, b) = at.of_exactly(1)?;
        for grid in ShardTensor::meshgrid(&[&x, &y])? {
            at.add(grid, a.max(b))?;
        }
        Ok(())
    },
    rot90 => |at| {
        let (x, a) = at.of_dims(2)?;
        let quarters = at.below(4) as i64;
        at.add(x.rot90(quarters, [0, 1])?, a)
    },
    flatten => |at| {
        let (x, a) = at.of_dims(2)?;
        let n = x.ndim();
        let start = at.below(n);
        let flat = x.flatten_dims(start, n - 1)?;
        let back = flat.unflatten(start, &x.shape()[start..])?;
        at.add(flat, a)?;
        at.add(back, a)
    },
    movedim => |at| {
        let (x, a) = at.of_dims(2)?;
        let (from, to) = (at.below(x.ndim()), at.below(x.ndim()));
        at.add(x.movedim([from], [to])?, a)
    },
    tile => |at| {
        let (x, a) = at.of_exactly(2)?;
        let times = [1 + at.below(2), 1 + at.below(2)];
        at.add(x.tile(times)?, a)
    },
    block_diag => |at| {
        let (x, a) = at.of_exactly(2)?;
        let (y, b) = at.of_exactly(2)?;
        at.add(ShardTensor::block_diag(&[&x, &y])?, a.max(b))
    },
    diff => |at| {
        let (x, a, dim) = at.dim()?;
        at.add(x.diff(1, dim)?, 2.0 * a)?;
        at.add(x.trapezoid(2.0, dim)?, 2.0 * a * x.shape()[dim] as f64)
    },
    pixel_shuffle => |at| {
        let (x, a) = at.of_exactly(3)?;
        let [c, h, w] = [x.shape()[0], x.shape()[1], x.shape()[2]];
        let x = x.unsqueeze(1)?.expand([c, 4, h, w])?;
        let y = x.pixel_shuffle(2)?;
        at.add(y.pixel_unshuffle(2)?, a)?;
        at.add(y, a)
    },
    index_fill => |at| {
        let (x, a, dim) = at.dim()?;
        let n = x.shape()[dim];
        let count = if n == 0 { 0 } else { at.below(3) };
        let index = at.indices(&[count], n)?;
        at.add(x.index_fill(dim, &index, 3.0)?, a.max(3.0))
    },
    index_put => |at| {
        let (x, a) = at.filled(2)?;
        let x = x.flatten_dims(0, x.ndim() - 2)?;
        let (n, m) = (x.shape()[0], x.shape()[1]);
        let (i, j) = (at.indices(&[4], n)?, at.indices(&[4], m)?);
        let values = at.parameter(&[4])?;
        at.add(x.index_put(&[&i, &j], &values, true)?, a + 16.0)?;
        at.add(x.index(0, &[&i, &j])?, a)
    },
    take => |at| {
        let (x, a) = at.filled(1)?;
        let index = at.indices(&[2, 3], x.numel())?;
        at.add(x.take(&index)?, a)
    },
    embedding => |at| {
        let (x, _) = at.of_exactly(1)?;
        let table = at.parameter(&[5, 3])?;
        let index = at.indices(x.shape(), 5)?;
        at.add(table.embedding(&index, Some(1))?, 4.0)
    },
    repeat_each => |at| {
        let (x, a, dim) = at.dim()?;
        let counts = at.indices(&[x.shape()[dim]], 3)?;
        at.add(x.repeat_interleave_each(dim, &counts, None)?, a)
    },
    gather_mm => |at| {
        let (x, a) = at.of_exactly(2)?;
        let w = at.parameter(&[3, x.shape()[1], 2])?;
        let index = at.indices(&[x.shape()[0]], 3)?;
        at.add(x.gather_mm(&w, &index)?, 4.0 * a * x.shape()[1] as f64)
    },
    // What an optimizer does: values from before stay, with their gradients.
    descent => |at| {
        let (y, _) = at.any();
        if at.is_nested() || !y.is_tracked() {
            return Ok(());
        }
        let gradients = y.sum_all()?.backward()?;
        for p in at.parameters() {
            if let Some(gradient) = gradients.get(&p)? {
                let step = gradient.mul_scalar(7.0)?.add_scalar(0.123)?.sign()?;
                p.set(&p.detach().sub(&step)?.redistribute(p.layout())?)?;
            }
        }
        Ok(())
    },
];

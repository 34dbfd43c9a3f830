//! Gradients of gradients of attention are those of its formula.

use shard_tensor::{
    Attention, Causal, DType, DeviceKind, Launch, Mesh, Neighborhood, Placements, Result,
    ShardTensor, replicate, shard,
};

/// Attention by the matrix of its weights, each kv head repeated for those that it serves.
fn formula(
    [q, k, v]: [&ShardTensor; 3],
    mask: Option<&ShardTensor>,
    options: &Attention,
) -> Result<ShardTensor> {
    let group = q.shape()[1] / v.shape()[1];
    q.attention_weights(k, mask, options)?
        .matmul(&v.repeat_interleave(1, group)?)
}

/// The gradients of what gradients of a product with the result come to, by each operand.
fn twice(out: &ShardTensor, of: &[&ShardTensor]) -> Result<Vec<Vec<f64>>> {
    let seed = out.mesh().from_fn(out.shape(), replicate(), |i| {
        (i.iter().sum::<usize>() % 5) as f64 - 1.5
    })?;
    let mut sum = out.mesh().zeros((), replicate())?;
    let first = out.grad_with(&seed, of, true)?;
    for gradient in first.iter().flatten() {
        sum = sum.add(&gradient.square()?.sum_all()?)?;
    }
    let second = sum.grad(of, false)?;
    let read = |g: &Option<ShardTensor>| -> Result<Vec<f64>> {
        let g = g
            .as_ref()
            .expect("it depends on every operand")
            .to(DType::F64)?;
        Ok(g.to_array::<f64>()?.into_raw_vec_and_offset().0)
    };
    first.iter().chain(&second).map(read).collect()
}

fn close(a: &[Vec<f64>], b: &[Vec<f64>], digits: f64) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let scale = b.iter().fold(1e-3_f64, |m, x| m.max(x.abs()));
        assert_eq!(a.len(), b.len());
        assert!(
            a.iter()
                .zip(b)
                .all(|(x, y)| (x - y).abs() <= digits * scale),
            "{a:?}, not {b:?}"
        );
    }
}

fn tokens(mesh: &Mesh, shape: [usize; 4], salt: usize, at: &Placements) -> Result<ShardTensor> {
    mesh.from_fn(shape, at, move |i| {
        let hash = i.iter().fold(salt + 3, |h, &i| (h * 31 + i + 1) % 1009);
        (hash % 17) as f64 / 8.0 - 1.0
    })?
    .requires_grad()
}

#[test]
fn gradients_of_gradients_of_attention_are_those_of_the_formula() {
    let layouts: [[Placements; 2]; 4] = [
        [replicate().into(), replicate().into()],
        [shard(2).into(), replicate().into()],
        [shard(2).sizes([0, 4, 1]).into(), shard(2).zigzag().into()],
        [shard(1).into(), shard(2).into()],
    ];
    for [queries, keys] in &layouts {
        Launch::new(3)
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(3)?;
                let q = tokens(&mesh, [2, 4, 5, 3], 1, queries)?;
                let [k, v] = [
                    tokens(&mesh, [2, 2, 6, 3], 2, keys)?,
                    tokens(&mesh, [2, 2, 6, 4], 3, keys)?,
                ];
                let added = tokens(&mesh, [1, 4, 1, 6], 4, &replicate().into())?;
                let seen = added
                    .expand([2, 4, 5, 6])?
                    .detach()
                    .cumsum(2)?
                    .gt_scalar(-0.4)?;
                let of = |n: usize| {
                    mesh.from_fn([n], shard(0), |i| (i[0] / 3) as f64)?
                        .to(DType::I64)
                };
                let (of_queries, of_keys) = (of(5)?, of(6)?);
                let same = of_queries.unsqueeze(1)?.eq(&of_keys.unsqueeze(0)?)?;
                for options in [
                    Attention::new(),
                    Attention::new().causal(Causal::TopLeft).scale(0.3),
                    Attention::new().causal(Causal::BottomRight).window(2, 0),
                ] {
                    let operands = [&q, &k, &v];
                    for mask in [None, Some(&seen)] {
                        let out = q.attention(&k, &v, mask, &options)?;
                        let by_hand = formula(operands, mask, &options)?;
                        close(
                            &twice(&out, &operands)?,
                            &twice(&by_hand, &operands)?,
                            1e-10,
                        );
                    }
                    let all = [&q, &k, &v, &added];
                    let out = q.attention(&k, &v, Some(&added), &options)?;
                    let by_hand = formula(operands, Some(&added), &options)?;
                    close(&twice(&out, &all)?, &twice(&by_hand, &all)?, 1e-10);
                    for mask in [None, Some(&seen)] {
                        let out = q.attention_by_segment(
                            &k,
                            &v,
                            [&of_queries, &of_keys],
                            mask,
                            &options,
                        )?;
                        let both = match mask {
                            Some(mask) => mask.logical_and(&same)?,
                            None => same.expand([2, 4, 5, 6])?,
                        };
                        let by_hand = formula(operands, Some(&both), &options)?;
                        close(
                            &twice(&out, &operands)?,
                            &twice(&by_hand, &operands)?,
                            1e-10,
                        );
                    }
                }
                // Of 16 bits it is rounded where the formula is, and less often.
                let small = [q.to(DType::BF16)?, k.to(DType::BF16)?, v.to(DType::BF16)?]
                    .map(|x| x.detach().requires_grad());
                let [q, k, v] = small;
                let (q, k, v) = (q?, k?, v?);
                let wide = [&q, &k, &v].map(|x| x.to(DType::F64)?.detach().requires_grad());
                let [qq, kk, vv] = wide;
                let (qq, kk, vv) = (qq?, kk?, vv?);
                let found = twice(
                    &q.attention(&k, &v, None, &Attention::new())?,
                    &[&q, &k, &v],
                )?;
                let wanted = twice(
                    &qq.attention(&kk, &vv, None, &Attention::new())?,
                    &[&qq, &kk, &vv],
                )?;
                close(&found, &wanted, 0.03);
                Ok(())
            })
            .unwrap();
    }
}

/// What is dropped follows from the stream: as probabilities times what is kept of them, which values of ones along a diagonal show.
#[test]
fn what_drops_drops_the_same_in_every_gradient() {
    let layouts: [[Placements; 2]; 3] = [
        [replicate().into(), replicate().into()],
        [shard(2).sizes([0, 4, 1]).into(), shard(2).zigzag().into()],
        [shard(1).into(), shard(2).into()],
    ];
    for device in [DeviceKind::Host, DeviceKind::Test, DeviceKind::EmulatedCuda] {
        for [queries, keys] in &layouts {
            Launch::new(3)
                .dtype(DType::F64)
                .device(device)
                .run(|ctx| {
                    let mesh = ctx.mesh_of(3)?;
                    let q = tokens(&mesh, [2, 4, 5, 3], 1, queries)?;
                    let [k, v] = [
                        tokens(&mesh, [2, 2, 6, 3], 2, keys)?,
                        tokens(&mesh, [2, 2, 6, 4], 3, keys)?,
                    ];
                    let options = Attention::new().causal(Causal::BottomRight);
                    let drops = options.dropout(0.4, ctx.next_stream());
                    let diagonal = mesh.eye([6, 6], replicate())?.expand([2, 2, 6, 6])?;
                    let p = q.attention_weights(&k, None, &options)?;
                    let kept = q.detach().attention(&k.detach(), &diagonal, None, &drops)?;
                    let kept = kept.gt_scalar(0.0)?.to(DType::F64)?.div_scalar(0.6)?;
                    let dropped = p.gt_scalar(0.0)?.sum_all()?.item()?
                        - kept.gt_scalar(0.0)?.sum_all()?.item()?;
                    assert!((20.0..100.0).contains(&dropped), "{dropped} are dropped");
                    let operands = [&q, &k, &v];
                    let by_hand = p.mul(&kept)?.matmul(&v.repeat_interleave(1, 2)?)?;
                    let out = q.attention(&k, &v, None, &drops)?;
                    close(
                        &twice(&out, &operands)?,
                        &twice(&by_hand, &operands)?,
                        1e-10,
                    );
                    // As do those that are not to be differentiated.
                    let first = out.sum_all()?.grad(&operands, false)?;
                    let by_hand = by_hand.sum_all()?.grad(&operands, false)?;
                    for (first, by_hand) in first.iter().zip(&by_hand) {
                        let [a, b] = [first, by_hand].map(|g| g.as_ref().expect("a gradient"));
                        assert!(a.allclose(b, 1e-10, 1e-10, false)?);
                    }
                    Ok(())
                })
                .unwrap();
        }
    }
}

/// Of windows, by attention to the whole grid under a mask.
#[test]
fn gradients_of_gradients_of_neighbourhoods_are_those_of_a_mask() {
    let layouts: [Placements; 4] = [
        replicate().into(),
        shard(1).sizes([1, 0, 4]).into(),
        shard(2).into(),
        shard(3).into(),
    ];
    // Windows of three rows, shifted inwards at the ends, and three columns up to the query's own, or fewer.
    let sees = |[row, column]: [usize; 2], [of_row, of_column]: [usize; 2]| {
        let first = row.saturating_sub(1).min(2);
        (first..first + 3).contains(&of_row) && of_column <= column && column <= of_column + 2
    };
    for at in &layouts {
        Launch::new(3)
            .dtype(DType::F64)
            .run(|ctx| {
                let mesh = ctx.mesh_of(3)?;
                let grid = |heads, salt| {
                    let x = tokens(&mesh, [2, 20, heads, 3], salt, &replicate().into())?;
                    let x = x.detach().reshape([2, 5, 4, heads, 3])?;
                    x.redistribute(at)?.requires_grad()
                };
                let (q, k, v) = (grid(4, 1)?, grid(2, 2)?, grid(2, 3)?);
                let mask = mesh
                    .from_fn([20, 20], replicate(), |i| {
                        let of = |at: usize| [at / 4, at % 4];
                        f64::from(u8::from(sees(of(i[0]), of(i[1]))))
                    })?
                    .to(DType::Bool)?;
                let flat = |x: &ShardTensor| x.flatten_dims(1, 2)?.transpose(1, 2);
                let near = Neighborhood::new([3, 3]).causal([false, true]);
                let out = q.neighborhood_attention(&k, &v, &near)?;
                let (options, operands) = (Attention::new(), [&q, &k, &v]);
                let dense = flat(&q)?.attention(&flat(&k)?, &flat(&v)?, Some(&mask), &options)?;
                let dense = dense.transpose(1, 2)?.reshape(out.shape())?;
                close(&twice(&out, &operands)?, &twice(&dense, &operands)?, 1e-10);
                Ok(())
            })
            .unwrap();
    }
}

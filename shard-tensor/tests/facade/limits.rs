//! What is too large, and what never ends.

use shard_tensor::op::Handler;
use shard_tensor::{EdgeMap, ErrorClass, FourierNorm, Launch, Result, ShardTensor, launch, shard};
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn more_ranks_than_a_process_has_threads_for_are_refused() {
    for ranks in [1 << 22, 1 << 40, usize::MAX] {
        let error = Launch::new(ranks).run(|_| Ok(())).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        assert!(error.to_string().contains(&ranks.to_string()), "{error}");
    }
}

#[test]
fn a_tensor_too_large_to_count_is_refused_before_it_is_made() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([3, 2], [shard(0)])?;
        let errors = [
            x.repeat(0, 1 << 40).map(|_| ()),
            x.repeat(1, usize::MAX).map(|_| ()),
            x.pad(&[(0, 0), (1 << 40, 0)], EdgeMap::Circular, 0.0)
                .map(|_| ()),
        ];
        assert_eq!(x.repeat(0, 3)?.sum_all()?.item()?, 18.0);
        Ok(errors.map(|e| e.map_err(|e| (e.class(), e.to_string()))))
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    for (i, error) in texts[0].iter().enumerate() {
        assert!(error.is_err(), "call {i}");
    }
}

/// A handler that hands its op back to the engine gets what the op does without it.
#[test]
fn a_handler_may_run_its_own_op() {
    let calls = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.from_fn(4, [shard(0)], |i| i[0] as f64 - 1.0)?;
        let calls = Rc::new(Cell::new(0));
        let count = calls.clone();
        let again: Handler = Rc::new(move |engine, op, inputs| {
            count.set(count.get() + 1);
            engine.run(op, inputs)
        });
        ctx.register("relu", again);
        for _ in 0..2 {
            assert_eq!(x.relu()?.sum_all()?.item()?, 3.0);
        }
        Ok(calls.get())
    });
    assert_eq!(calls.unwrap(), [2, 2]);
}

/// An op on a tensor.
type Tried = fn(&ShardTensor) -> Result<ShardTensor>;

/// Ops that look along dims.
const ALONG_DIMS: &[(&str, Tried)] = &[
    ("softmax", |x| x.softmax(1)),
    ("cumsum", |x| x.cumsum(1)),
    ("cummax", |x| x.cummax(1).map(|pair| pair.0)),
    ("sort", |x| x.sort(1, false).map(|pair| pair.0)),
    ("argsort", |x| x.argsort(0, true)),
    ("topk", |x| x.topk(0, 1, true).map(|pair| pair.0)),
    ("topk of one", |x| x.topk(1, 1, true).map(|pair| pair.0)),
    ("median", |x| x.median(1).map(|pair| pair.0)),
    ("argmax", |x| x.argmax([1])),
    ("amax", |x| x.amax([0], false)),
    ("var", |x| x.var([1], 1.0, false)),
    ("norm", |x| x.norm(2.0, [1], false)),
    ("logsumexp", |x| x.logsumexp([1], false)),
    ("layer norm", |x| x.layer_norm(1, None, None, 1e-5)),
    ("rms norm", |x| x.rms_norm(1, None, None)),
    ("cdist", |x| x.cdist(x, 2.0)),
    ("nearest", |x| x.nearest(x, 1).map(|pair| pair.0)),
    ("product", |x| x.matmul(&x.permute([1, 0])?)),
    ("einsum", |x| ShardTensor::einsum("ab,cb->ac", &[x, x])),
    ("flip", |x| x.flip(1)),
    ("roll", |x| x.roll(1, 1)),
    ("tril", |x| x.tril(0)),
    ("unique", |x| x.unique()),
    ("fft", |x| x.rfft(Some(5), 1, FourierNorm::Ortho)),
];

/// The right result or an error, and never a panic: a rank of a training may be left without a point.
#[test]
fn what_has_no_elements_is_no_reason_to_panic() {
    for shape in [[3, 0], [0, 3], [0, 0]] {
        for (ranks, (op, apply)) in [1, 2]
            .into_iter()
            .flat_map(|r| ALONG_DIMS.iter().map(move |op| (r, op)))
        {
            for at in [0, 1] {
                let done = Launch::new(ranks).run(|ctx| {
                    let mesh = ctx.mesh_of(ranks)?;
                    let x = mesh.ones(shape, [shard(at)])?;
                    let given = apply(&x).map(drop).map_err(|e| e.class());
                    // With gradients too, where there are any.
                    let taped = apply(&x.requires_grad()?);
                    if let Ok(y) = &taped {
                        let back = y.sum_all().and_then(|sum| sum.backward());
                        let back = back.map(drop).map_err(|e| e.class());
                        assert_ne!(back, Err(ErrorClass::Failure), "{op} of {shape:?}");
                    }
                    let taped = taped.map(drop).map_err(|e| e.class());
                    assert_eq!(given, taped);
                    Ok(given)
                });
                let done = done.unwrap_or_else(|e| panic!("{op} of {shape:?}: {e}"));
                assert!(done.iter().all(|of| *of == done[0]), "{op} of {shape:?}");
                assert_ne!(done[0], Err(ErrorClass::Failure), "{op} of {shape:?}");
            }
        }
    }
}

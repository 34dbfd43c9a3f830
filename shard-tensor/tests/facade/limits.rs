//! What is too large, and what never ends.

use shard_tensor::op::Handler;
use shard_tensor::{EdgeMap, ErrorClass, Launch, launch, shard};
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

//! Models as trees of named tensors.

use shard_tensor::nn::{self, BatchNorm, Buffer, Linear, ModelExt, Module, Tree};
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{Result, ShardTensor, State, Stateful, launch, replicate, shard, tree};

/// One of each thing that a field may be.
struct Everything<T: Tree> {
    own: ShardTensor,
    constant: ShardTensor,
    buffer: Buffer,
    list: Vec<Linear>,
    pair: [Linear; 2],
    tuple: (Linear, ShardTensor),
    none: Option<Linear>,
    boxed: Box<dyn Tree>,
    any: T,
    /// A name that PyTorch's models may have, and that is a keyword here.
    r#box: Linear,
}
tree!(Everything<T: Tree> { own, constant, buffer, list, pair, tuple, none, boxed, any, r#box });

#[test]
fn leaves_have_the_names_of_their_fields() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let linear = || Linear::new(&mesh, 3, 2).map(Linear::without_bias);
        let mut model = Everything {
            own: mesh.ones([5], [shard(0)])?.requires_grad()?,
            constant: mesh.ones([5], [shard(0)])?,
            buffer: Buffer::new(&mesh.ones([5], [shard(0)])?),
            list: vec![linear()?, linear()?],
            pair: [linear()?, linear()?],
            tuple: (linear()?, mesh.ones([5], [shard(0)])?.requires_grad()?),
            none: None,
            boxed: Box::new(BatchNorm::new(&mesh, 2)?),
            any: Linear::new(&mesh, 1, 1)?,
            r#box: linear()?,
        };
        let parameters = model.parameters();
        let names: Vec<&str> = parameters.iter().map(|p| &p.0[..]).collect();
        let expected = [
            "own",
            "list.0.weight",
            "list.1.weight",
            "pair.0.weight",
            "pair.1.weight",
            "tuple.0.weight",
            "tuple.1",
            "boxed.weight",
            "boxed.bias",
            "any.weight",
            "any.bias",
            "box.weight",
        ];
        assert_eq!(names, expected);
        let buffers = model.buffers();
        let names: Vec<&str> = buffers.iter().map(|p| &p.0[..]).collect();
        assert_eq!(
            names,
            [
                "constant",
                "buffer",
                "boxed.running_mean",
                "boxed.running_var"
            ]
        );
        let leaves: Vec<String> = model.leaves().into_iter().map(|l| l.0).collect();
        let to_change: Vec<String> = model.leaves_mut().into_iter().map(|l| l.0).collect();
        assert_eq!(leaves, to_change);
        Ok(())
    })
    .unwrap();
}

/// A parameter that takes up a state is the same parameter; nothing is changed by a state that does not fit.
#[test]
fn a_state_is_taken_up_whole_or_not_at_all() {
    launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let read =
            |t: &ShardTensor| -> Result<Vec<f32>> { Ok(t.to_array()?.into_raw_vec_and_offset().0) };
        let mut norm = BatchNorm::new(&mesh, 2)?;
        let clone = norm.weight.clone().unwrap();
        let mut state = norm.state()?;
        for (i, (_, tensor)) in state.tensors.iter_mut().enumerate() {
            *tensor = mesh.full([2], i as f64 + 5.0, [replicate()])?;
        }
        norm.load_state(&state)?;
        assert_eq!(read(&clone)?, [5.0, 5.0]);
        assert_eq!(read(&norm.running_var.as_ref().unwrap().get())?, [8.0, 8.0]);

        let mut bad = State {
            tensors: state.tensors.clone(),
            ..State::default()
        };
        bad.tensors[0].1 = mesh.zeros([2], [replicate()])?;
        bad.tensors[3].1 = mesh.zeros([2], [shard(0)])?;
        let error = norm.load_state(&bad).unwrap_err().to_string();
        assert!(
            error.contains("running_var") && error.contains("S(0)"),
            "{error}"
        );
        assert_eq!(read(&clone)?, [5.0, 5.0]);
        bad.tensors.truncate(2);
        let error = norm.load_state(&bad).unwrap_err().to_string();
        assert!(
            error.contains("running_mean") && error.contains("nothing"),
            "{error}"
        );
        Ok(())
    })
    .unwrap();
}

/// A copy has parameters and buffers of its own, where and as those are; what is tied stays so.
#[test]
fn copies_have_their_own_parameters_and_buffers() {
    for ranks in [1, 3] {
        let done = launch(ranks, |ctx| {
            let mesh = ctx.mesh([("shard", ranks)])?;
            let first = nn::Linear::new(&mesh, 4, 5)?;
            let model = nn::Sequential::new()
                .then(first.clone())
                .then(nn::BatchNorm::new(&mesh, 5)?)
                .then(nn::Map::new(|x| x.narrow(1, 0..4)))
                .then(first)
                .fully_sharded("shard")?;
            model.parameters()[2].1.set_requires_grad(false)?;
            let (clone, copy) = (model.clone(), model.copied()?);
            let tensors = |of: &nn::Sequential| {
                let state = of.state()?.tensors.into_iter();
                let read = |(name, t): (String, ShardTensor)| Ok((name, t.to_array::<f32>()?));
                state.map(read).collect::<Result<Vec<_>>>()
            };
            let before = tensors(&model)?;
            assert_eq!(tensors(&copy)?, before);
            for ((name, own), (_, new)) in model.parameters().into_iter().zip(copy.parameters()) {
                assert!(!own.is_same_parameter(&new), "{name}");
                assert_eq!(own.layout(), new.layout(), "{name}");
                assert_eq!(own.layout_in_use(), new.layout_in_use(), "{name}");
                assert_eq!(own.is_tracked(), new.is_tracked(), "{name}");
            }
            let [one, last] = [0, 4].map(|at| copy.parameters()[at].1.clone());
            assert!(one.is_same_parameter(&last));
            copy.eval();
            let x = mesh.randn([6, 4], shard(0))?;
            let loss = model.forward(&x)?.square()?.sum_all()?;
            Sgd::new(model.parameters(), 0.1)?.step(&loss.backward()?)?;
            assert_ne!(tensors(&model)?, before);
            assert_eq!(tensors(&clone)?, tensors(&model)?);
            assert_eq!(tensors(&copy)?, before);
            // An optimizer of the first model takes steps as before, one of the copy its own.
            let loss = copy.forward(&x)?.square()?.sum_all()?;
            Sgd::new(copy.parameters(), 0.1)?.step(&loss.backward()?)?;
            assert_ne!(tensors(&copy)?, before);
            Ok(())
        });
        done.unwrap();
    }
}

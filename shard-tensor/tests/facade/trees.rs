//! Models as trees of named tensors.

use shard_tensor::nn::{BatchNorm, Buffer, Linear, ModelExt, Tree};
use shard_tensor::{Result, ShardTensor, State, Stateful, launch, replicate, shard, tree};

/// One of each thing that a field may be.
struct Everything<T: Tree> {
    own: ShardTensor,
    constant: ShardTensor,
    buffer: Buffer,
    list: Vec<Linear>,
    pair: [Linear; 2],
    none: Option<Linear>,
    boxed: Box<dyn Tree>,
    any: T,
    /// A name that PyTorch's models may have, and that is a keyword here.
    r#box: Linear,
}
tree!(Everything<T: Tree> { own, constant, buffer, list, pair, none, boxed, any, r#box });

#[test]
fn leaves_have_the_names_of_their_fields() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let linear = || Linear::without_bias(&mesh, 3, 2);
        let mut model = Everything {
            own: mesh.ones([5], [shard(0)])?.requires_grad()?,
            constant: mesh.ones([5], [shard(0)])?,
            buffer: Buffer::new(&mesh.ones([5], [shard(0)])?),
            list: vec![linear()?, linear()?],
            pair: [linear()?, linear()?],
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

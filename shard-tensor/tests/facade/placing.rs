//! Placing the parameters of models, and what goes wrong there.

use shard_tensor::nn::{
    BatchNorm, Embedding, Leaf, LeafMut, Linear, ModelExt, Module, ParallelPlan, Tree,
};
use shard_tensor::{
    ErrorClass, Placements, Result, ShardTensor, Stateful, launch, replicate, shard, tree,
};

/// A model whose first and last layer are one parameter.
struct Tied {
    embed: Embedding,
    norm: BatchNorm,
    head: ShardTensor,
}

impl Tied {
    fn new(mesh: &shard_tensor::Mesh) -> Result<Self> {
        let embed = Embedding::new(mesh, 5, 4)?;
        let head = embed.weight.clone();
        let norm = BatchNorm::new(mesh, 4)?;
        Ok(Self { embed, norm, head })
    }
}

tree!(Tied { embed, norm, head });

#[test]
fn tied_parameters_stay_tied_and_buffers_move_with_their_clones() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("a", 2)])?;
        let model = Tied::new(&mesh)?;
        let running = model.norm.running_mean.clone().unwrap();
        let before = ctx.ledger().snapshot();
        let placed = model.place(|name, _| match name {
            "embed.weight" | "head" => shard(0).into(),
            "norm.running_mean" | "norm.running_var" => shard(0).into(),
            _ => Placements::replicated(),
        })?;
        assert_eq!(ctx.ledger().since(&before).bytes, 0);
        assert!(placed.head.is_same_parameter(&placed.embed.weight));
        placed.head.expect_layout(shard(0))?;
        running.get().expect_layout(shard(0))?;
        // Statistics go where the buffers lie.
        placed.norm.forward(&mesh.ones([3, 4, 2], shard(0))?)?;
        running.get().expect_layout(shard(0))?;

        let sharded = Tied::new(&mesh)?.fully_sharded("a")?;
        assert!(sharded.head.is_same_parameter(&sharded.embed.weight));
        assert_eq!(sharded.parameters().len(), 4);
        let state = sharded.state()?;
        assert_eq!(state.tensor("head").unwrap().layout().to_string(), "S(0)");

        let model = Tied::new(&mesh)?;
        let apart = model.place(|name, _| match name {
            "head" => shard(1).into(),
            _ => Placements::replicated(),
        });
        let error = apart.map(|_| ()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        let text = error.to_string();
        assert!(
            text.contains("\"embed.weight\"") && text.contains("\"head\""),
            "{text}"
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn what_cannot_be_is_an_error_and_changes_nothing() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("a", 2)])?;
        let linear = || Linear::new(&mesh, 4, 3);
        let errors = [
            linear()?.fully_sharded("b").map(|_| ()).unwrap_err(),
            linear()?
                .distribute(&ParallelPlan::new().colwise("up.*", "a"))
                .map(|_| ())
                .unwrap_err(),
            linear()?
                .distribute(&ParallelPlan::new().shard("bias", "a", 1))
                .map(|_| ())
                .unwrap_err(),
            linear()?
                .distribute(&ParallelPlan::new().rowwise("*", "b"))
                .map(|_| ())
                .unwrap_err(),
            linear()?
                .distribute(&ParallelPlan::new().colwise("*", "a").fully_shard("*", "a"))
                .map(|_| ())
                .unwrap_err(),
            linear()?
                .place(|_, _| [("b", shard(0))].into())
                .map(|_| ())
                .unwrap_err(),
        ];
        let says = ["\"b\"", "up.*", "1 dims", "\"b\"", "axis \"a\"", "\"b\""];
        for (error, says) in errors.iter().zip(says) {
            assert_eq!(error.class(), ErrorClass::Uniform, "{error}");
            assert!(
                error.to_string().contains(says),
                "{error} does not say {says}"
            );
        }
        // The ranks go on together.
        mesh.ones(3, shard(0))?.sum_all()?.item().map(|_| ())
    })
    .unwrap();
}

#[test]
fn parts_may_be_empty_and_placements_combine() {
    let layouts = launch(6, |ctx| {
        let mesh = ctx.mesh([("data", 1), ("shard", 3), ("tensor", 2)])?;
        let plan = ParallelPlan::new()
            .colwise("*", "tensor")
            .fully_shard("*", "shard");
        let layer = Linear::new(&mesh, 1, 5)?.distribute(&plan)?;
        let mut told = vec![format!("{}", layer.weight.layout())];
        told.push(format!("{}", layer.bias.as_ref().unwrap().layout()));
        let x = mesh.from_fn([4, 1], [("shard", shard(0))], |i| i[0] as f64)?;
        let loss = layer.forward(&x)?.square()?.sum_all()?;
        let gradient = loss.backward()?.get(&layer.weight)?.expect("it depends");
        gradient.expect_layout(layer.weight.layout())?;
        // Placed anew, it is no longer gathered.
        let layer = layer.place(|_, _| Placements::replicated())?;
        assert_eq!(layer.weight.layout_in_use(), *layer.weight.layout());
        layer.weight.expect_layout(replicate_all())?;
        Ok(told)
    })
    .unwrap();
    assert_eq!(layouts[0], ["R S(1) S(0)", "R S(0;2,1) S(0)"]);
}

/// What a plan cannot do is said of the parameter, where the program says it.
#[test]
fn what_a_plan_cannot_do_is_said_of_the_parameter_and_the_line() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("a", 2)])?;
        let new = || Ok::<_, shard_tensor::Error>(vec![Linear::new(&mesh, 4, 6)?]);
        let line = line!() + 1;
        let told = new()?.distribute(&ParallelPlan::new().shard("0.*", "a", 1));
        let error = told.map(drop).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        let text = error.to_string();
        let here = format!("{}:{line}:", file!());
        assert!(
            text.contains("\"0.bias\"") && text.contains(&here),
            "{text}"
        );

        let sharded = new()?.fully_sharded("a")?;
        let line = line!() + 1;
        let again = sharded.fully_sharded("a");
        let text = again.map(drop).unwrap_err().to_string();
        let here = format!("{}:{line}:", file!());
        assert!(
            text.contains("\"0.weight\"") && text.contains(&here),
            "{text}"
        );

        let model = new()?;
        let line = line!() + 1;
        let beyond = model.place(|_, _| shard(1).into());
        let text = beyond.map(drop).unwrap_err().to_string();
        let here = format!("{}:{line}:", file!());
        assert!(text.contains(&here), "{text}");

        for head_dim in [0, 4] {
            let told = new()?.distribute(&ParallelPlan::new().colwise_by("0", "a", head_dim));
            let error = told.map(drop).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform);
            assert!(error.to_string().contains("\"0.weight\""), "{error}");
        }
        Ok(())
    })
    .unwrap();
}

fn replicate_all() -> [shard_tensor::Placement; 3] {
    [shard_tensor::Placement::Replicate; 3]
}

#[test]
fn a_tree_of_ones_own_is_placed_too() {
    struct Scaled(ShardTensor);
    impl Tree for Scaled {
        fn leaves(&self) -> Vec<(String, Leaf<'_>)> {
            vec![("scale".to_owned(), Leaf::Tensor(&self.0))]
        }
        fn leaves_mut(&mut self) -> Vec<(String, LeafMut<'_>)> {
            vec![("scale".to_owned(), LeafMut::Tensor(&mut self.0))]
        }
    }
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let constant = Scaled(mesh.ones(4, replicate())?);
        let placed = constant.place(|_, _| shard(0).into())?;
        assert!(!placed.0.is_parameter());
        placed.0.expect_layout(shard(0)).map(|_| ())
    })
    .unwrap();
}

/// A rule for a part's columns holds for how a parameter is used as well as for how it lies, whichever rule comes first.
#[test]
fn rules_for_parameters_that_lie_otherwise_than_they_are_used() {
    let told = launch(4, |ctx| {
        let mesh = ctx.mesh([("shard", 2), ("tensor", 2)])?;
        let plans = [
            ParallelPlan::new()
                .colwise("*", "tensor")
                .fully_shard("*", "shard"),
            ParallelPlan::new()
                .fully_shard("*", "shard")
                .colwise("*", "tensor"),
        ];
        let layouts = plans.map(|plan| {
            let weight = Linear::new(&mesh, 4, 8)?.distribute(&plan)?.weight;
            let of_tensor =
                |layout: &shard_tensor::Layout| layout.sharding(0).map(|s| s.axes.clone());
            Ok::<_, shard_tensor::Error>((
                weight.layout_in_use().to_string(),
                of_tensor(&weight.layout_in_use()),
                weight.local_shape().iter().product::<usize>(),
            ))
        });
        layouts.into_iter().collect::<Result<Vec<_>>>()
    });
    for (used, axes, held) in &told.unwrap()[0] {
        assert_eq!(
            (&used[..], axes.as_deref(), *held),
            ("R S(0)", Some(&[1][..]), 8)
        );
    }
}

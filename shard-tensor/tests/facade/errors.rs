//! A launch reports the cause, not its echoes.

use shard_ops::inside::{Cells, Normalise, Statistics};
use shard_tensor::nn::{self, LayerNorm, Linear, ModelExt, Module};
use shard_tensor::op::OpError;
use shard_tensor::optim::{Optimizer, Sgd};
use shard_tensor::{
    Attention, ClassLoss, Context, ConvOptions, ConvTransposeOptions, DType, Error, ErrorClass,
    LocalSizes, Neighborhood, Result, ShardTensor, checkpoint, launch, replicate, shard,
};
use std::rc::Rc;

#[test]
fn one_ranks_own_error_is_the_cause() {
    let error = launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        if ctx.rank() == 2 {
            return Err(Error::custom("no such file"));
        }
        mesh.ones([4], [shard(0)])?.sum_all()?.item()
    });
    let error = error.unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.rank()),
        ("rank 2: no such file", Some(2))
    );
}

/// A method that is several ops, and its line, where one of them fails; and what a `main` prints that returns the error.
#[test]
fn an_error_names_the_method_and_reads_well_from_main() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4, 3], shard(0))?;
        let target = mesh.with_dtype(DType::I64).full([4], 3, shard(0))?;
        let (line, error) = (line!(), x.cross_entropy(&target, &ClassLoss::new()));
        let error = error.unwrap_err();
        assert_eq!(format!("{error:?}"), error.to_string());
        Ok((line, error.to_string()))
    });
    for (line, text) in told.unwrap() {
        assert!(text.starts_with("cross_entropy: take"), "{text}");
        assert!(text.contains(&format!("errors.rs:{line}:")), "{text}");
    }
}

/// The method comes before an error that does not begin with its name, be it one that begins so, and is not told twice.
#[test]
fn an_error_names_the_method_once() {
    let told = launch(1, |ctx| {
        let x = ctx.mesh_of(1)?.ones([4], shard(0))?;
        let failing = |op: &'static str| {
            let refused = move || OpError::Shape {
                op,
                problem: "no".to_owned(),
                shapes: Vec::new(),
                fix: "none",
            };
            ctx.register("sum", Rc::new(move |_, _, _| Err(refused())));
            x.sum(0, false).unwrap_err().to_string()
        };
        Ok(["sum", "summary", "sum_to", "mean"].map(failing))
    });
    let begins = [
        "sum: no",
        "sum: summary: no",
        "sum: sum_to: no",
        "sum: mean: no",
    ];
    for (told, begins) in told.unwrap().remove(0).iter().zip(begins) {
        assert!(told.starts_with(begins), "{told}");
    }
}

/// Ops that are made of others, and what they look up first.
#[test]
fn an_error_of_a_step_begins_with_the_method() {
    let told = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.with_dtype(DType::I64).arange(4, shard(0))?;
        let floats = x.to(DType::F32)?;
        let points = floats.unsqueeze(1)?;
        let errors = [
            floats.fmax(&x),
            floats.heaviside(&x),
            x.floor_div_scalar(0.5),
            x.remainder_scalar(0.5),
            x.index(0, &[&x.add_scalar(2.0)?]),
            points.farthest_points_by_cloud(&x, 3, 2),
        ];
        Ok(errors.map(|error| error.unwrap_err().to_string()))
    });
    let begins = [
        "fmax: ",
        "heaviside: ",
        "floor_div_scalar: ",
        "remainder_scalar: ",
        "index on rank 1: ",
        "farthest_points_by_cloud: farthest_points on rank 1: ",
    ];
    for (text, begins) in told
        .unwrap()
        .iter()
        .flat_map(|told| told.iter().zip(begins))
    {
        assert!(text.starts_with(begins), "{text}");
    }
}

#[test]
fn an_op_of_two_results_is_refused_where_it_should_have_one() {
    let told = launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.ones([4, 3], shard(0))?;
        let found = ctx.apply1(
            Normalise {
                cells: Cells::Groups(1),
                by: Statistics::Moments,
                eps: 1e-5_f64.to_bits(),
                finds: true,
                weight: false,
                bias: false,
            },
            &[&x],
        );
        Ok(found.unwrap_err().to_string())
    });
    for text in told.unwrap() {
        assert!(text.contains("one output"), "{text}");
        assert!(text.contains("got 2"), "{text}");
    }
}

#[test]
fn a_panic_is_the_cause() {
    let error = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        assert_ne!(ctx.rank(), 1, "the reactor is too hot");
        mesh.ones([4], [shard(0)])?.sum_all()?.item()
    });
    let error = error.unwrap_err();
    // The panic itself, not what the others heard of it.
    assert!(matches!(error, Error::Launch(_)), "{error:?}");
    assert_eq!(error.rank(), Some(1));
    assert!(
        error.to_string().contains("the reactor is too hot"),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Failure);
}

#[test]
fn a_panic_that_only_echoes_is_not_the_cause() {
    let error = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([4], [shard(0)])?;
        if ctx.rank() == 0 {
            return Err(Error::custom("the disk is full"));
        }
        // The operator panics on hearing of rank 0.
        let y = &x + &mesh.ones([4], [shard(0).sizes([0, 0, 4])])?;
        y.sum_all()?.item()
    });
    assert_eq!(error.unwrap_err().to_string(), "rank 0: the disk is full");
}

#[test]
fn an_error_that_all_ranks_return_names_none() {
    for _ in 0..20 {
        let error = launch(4, |ctx| ctx.mesh_of(4)?.ones([4], [shard(3)]).map(|_| ()));
        let error = error.unwrap_err();
        assert_eq!((error.rank(), error.class()), (None, ErrorClass::Uniform));
        assert!(matches!(error, Error::Spec(_)), "{error:?}");
    }
}

#[test]
fn a_mesh_must_fit_the_program() {
    let texts = launch(2, |ctx| Ok(ctx.mesh_of([2, 2]).unwrap_err().to_string()));
    assert!(texts.unwrap()[0].contains("ranks below 2"));
    assert!(
        launch(0, |_| Ok(()))
            .unwrap_err()
            .to_string()
            .contains("0 ranks")
    );
}

#[test]
fn waiting_for_each_other_is_found_out() {
    let error = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4], [shard(0)])?;
        match ctx.rank() {
            0 => x.redistribute([replicate()])?.sum_all()?.item(),
            _ => ctx.world().barrier().map(|()| 0.0).map_err(Error::from),
        }
    });
    let error = error.unwrap_err();
    assert!(!matches!(error, Error::Launch(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Failure, "{error}");
}

/// A call that needs the other ranks, and the line it is on.
type Call = (u32, fn(&Context, &ShardTensor) -> Result<()>);

/// Whoever waits for a rank that left is told where the program waits, not where the library does.
#[test]
#[rustfmt::skip]
fn errors_name_the_place_in_the_program() {
    let cases: [Call; 14] = [
        (line!(), |_, x| x.item().map(|_| ())),
        (line!(), |_, x| x.to_array::<f32>().map(|_| ())),
        (line!(), |_, x| x.full_tensor().map(|_| ())),
        (line!(), |_, x| x.redistribute([replicate()]).map(|_| ())),
        (line!(), |_, x| x.relu().map(|_| ())),
        (line!(), |_, x| x.div_scalar(0.0).map(|_| ())),
        (line!(), |ctx, _| ctx.mesh_of(2).map(|_| ())),
        (line!(), |ctx, _| ctx.gather(&1).map(|_| ())),
        (line!(), |_, x| x.mesh().distribute(&ndarray::arr1(&[1.0]), [replicate()]).map(|_| ())),
        (line!(), |_, x| x.mesh().from_local(&ndarray::arr1(&[1.0]), [shard(0)], LocalSizes::Infer).map(|_| ())),
        (line!(), |_, x| checkpoint::save("/no/such/folder", &[("x".into(), x.clone())])),
        (line!(), |ctx, x| ctx.map_local(&[x], [x.layout()], &[x.layout()], |p| Ok(p.to_vec())).map(|_| ())),
        (line!(), |_, x| x.farthest_points(1, 0).map(|_| ())),
        (line!(), |_, x| x.mesh().measure().map(|_| ())),
    ];
    for (line, call) in cases {
        let told = launch(2, |ctx| {
            let x = ctx.mesh_of(2)?.ones([4], [shard(0)])?.sum_all()?.reshape([1, 1])?;
            match ctx.rank() {
                0 => Ok(Some(call(ctx, &x).unwrap_err().to_string())),
                _ => Ok(None),
            }
        });
        let text = told.unwrap().swap_remove(0).unwrap();
        let place = format!("tests/facade/errors.rs:{line}:");
        assert!(text.contains(&place), "{place} is not in: {text}");
    }
}

/// Layers and optimizers are the library's: the program's line is where it calls them.
#[test]
#[rustfmt::skip]
fn errors_name_the_place_through_layers_and_optimizers() {
    let told = |steps: bool| launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let layer = Linear::new(&mesh, 2, 1)?;
        let mut sgd = Sgd::new(layer.parameters(), 0.1)?;
        let x = mesh.ones([4, 2], [shard(0)])?;
        let gradients = layer.forward(&x)?.square()?.sum_all()?.backward()?;
        let (norm, columns) = (LayerNorm::new(&mesh, 2)?, mesh.ones([4, 2], [shard(1)])?);
        let (line, error) = match (ctx.rank(), steps) {
            (1, _) => return Ok(None),
            (_, true) => (line!(), sgd.step(&gradients).unwrap_err()),
            (_, false) => (line!(), norm.forward(&columns).unwrap_err()),
        };
        Ok(Some((line, error.to_string())))
    });
    for steps in [true, false] {
        let (line, text) = told(steps).unwrap().swap_remove(0).unwrap();
        let place = format!("tests/facade/errors.rs:{line}:");
        assert!(text.contains(&place), "{place} is not in: {text}");
    }
}

#[test]
fn errors_of_other_libraries_pass_through() {
    fn lines(path: &str) -> Result<usize> {
        Ok(std::fs::read_to_string(path)?.lines().count())
    }
    let missing = lines("/no/such/file").unwrap_err();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    let parsed = "seven".parse::<usize>().map_err(Error::other).unwrap_err();
    assert_eq!(parsed.to_string(), "invalid digit found in string");
    let source = std::error::Error::source(&parsed);
    assert!(source.is_none() || source.is_some_and(|s| s.is::<std::num::ParseIntError>()));
    let lost = launch(2, |ctx| match ctx.rank() {
        0 => Err(Error::other("the disk is full")),
        _ => Ok(ctx.world().barrier()?),
    });
    assert_eq!(lost.unwrap_err().to_string(), "rank 0: the disk is full");
}

/// What `step` leads to where rank 1 of two takes another turn and nothing is sent until a sum is read.
fn diverging(step: impl Fn(&Context, &ShardTensor) -> Result<ShardTensor> + Sync) -> Error {
    let outcomes = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([6], [shard(0)])?;
        let read = step(ctx, &x)?.sum_all()?.item();
        // All have learnt of it, and go on.
        let after = mesh.ones([6], [shard(0)])?.sum_all()?.item()?;
        assert_eq!(after, 6.0);
        Ok(read.err())
    });
    let mut errors = outcomes
        .unwrap()
        .into_iter()
        .enumerate()
        .map(|(rank, e)| e.unwrap_or_else(|| panic!("rank {rank} read a value")));
    let (a, b) = (errors.next().unwrap(), errors.next().unwrap());
    assert_eq!(a.to_string(), b.to_string());
    a
}

#[test]
fn ranks_that_take_different_turns_are_found_out_at_the_next_sum() {
    let other_op = diverging(|ctx, x| if ctx.rank() == 0 { x.relu() } else { x.gelu() });
    let other_extent = diverging(|ctx, x| x.mul_scalar(1.0 + ctx.rank() as f64));
    let one_more_draw = diverging(|ctx, x| {
        if ctx.rank() == 0 {
            x.mesh().rand([6], [shard(0)])?;
        }
        x.relu()
    });
    for error in [other_op, other_extent, one_more_draw] {
        assert_eq!(error.class(), ErrorClass::Uniform);
        assert!(error.to_string().contains("the calls before"), "{error}");
    }
}

#[test]
fn layers_whose_groups_do_not_divide_are_refused_when_they_are_made() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let by = |groups| ConvOptions::new().groups(groups);
        let turned = ConvTransposeOptions::new().groups(2);
        let wrong = [
            nn::GroupNorm::new(&mesh, 3, 8).err(),
            nn::GroupNorm::new(&mesh, 0, 8).err(),
            nn::Conv::new(&mesh, 0, 0, [3], by(0)).err(),
            nn::Conv::new(&mesh, 4, 6, [3], by(4)).err(),
            nn::Conv::new(&mesh, 6, 4, [3], by(4)).err(),
            nn::ConvTranspose::new(&mesh, 4, 5, [3], turned).err(),
        ];
        assert!(nn::Conv::new(&mesh, 4, 8, [3], by(4)).is_ok());
        Ok(wrong.map(|wrong| wrong.map(|wrong| wrong.to_string())))
    });
    for (told, op) in told.unwrap().remove(0).iter().zip([
        "GroupNorm",
        "GroupNorm",
        "Conv",
        "Conv",
        "Conv",
        "ConvTranspose",
    ]) {
        let told = told.as_ref().expect(op);
        assert!(told.contains(op) && told.contains("errors.rs"), "{told}");
    }
}

/// Layers that call others in closures, or by functions that are values, name the program's line and themselves.
#[test]
#[rustfmt::skip]
fn layers_name_the_line_they_are_called_at() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.randn([1, 6, 8], shard(1))?;
        let (narrow, line) = (mesh.randn([1, 6, 7], shard(1))?, mesh.randn([6], shard(0))?);
        let attention = nn::MultiheadAttention::new(&mesh, 8, 2)?;
        let near = nn::NeighborhoodAttention::new(&mesh, 8, 2, Neighborhood::new([3]))?;
        let encoder = nn::TransformerEncoderLayer::new(&mesh, 8, 2, 16)?;
        let dropout = nn::Dropout::by(ShardTensor::dropout2d, 0.5);
        let wrong = [
            (line!(), "MultiheadAttention", nn::MultiheadAttention::new(&mesh, 8, 3).err()),
            (line!(), "MultiheadAttention", nn::MultiheadAttention::from_widths(&mesh, usize::MAX, 1, 2, 2).err()),
            (line!(), "MultiheadAttention", attention.forward(&narrow).err()),
            (line!(), "MultiheadAttention", attention.attend(&x, &line, None).err()),
            (line!(), "MultiheadAttention", attention.attend(&x, &x, Some(&narrow)).err()),
            (line!(), "MultiheadAttention", attention.attend_by_segment(&x, &x, [&x, &x], None).err()),
            (line!(), "MultiheadAttention", attention.attend_with_weights(&x, &narrow, &x, None).err()),
            (line!(), "NeighborhoodAttention", near.forward(&narrow).err()),
            (line!(), "TransformerEncoderLayer", encoder.forward(&narrow).err()),
            (line!(), "dropout2d", dropout.forward(&line).err()),
            (line!(), "dropout", nn::Dropout::new(1.5).forward(&line).err()),
        ];
        Ok(wrong.map(|(line, layer, wrong)| (line, layer, wrong.map(|wrong| wrong.to_string()))))
    });
    for (line, layer, told) in told.unwrap().swap_remove(0) {
        let told = told.unwrap_or_else(|| panic!("{layer} in line {line} is no error"));
        let place = format!("tests/facade/errors.rs:{line}:");
        assert!(told.contains(&place) && told.contains(layer), "{place} {layer}: {told}");
    }
}

/// Following the fix must lead to what was meant: ones for keys that count, converted to the queries' type, would be added to logits.
#[test]
fn wrong_masks_and_classes_are_told_what_they_should_be() {
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let numbers = mesh.with_dtype(DType::I64);
        let tokens = mesh.randn([3, 2, 5, 4], shard(0))?;
        let counts = numbers.ones([3, 1, 1, 5], shard(0))?;
        let attended = tokens.attention(&tokens, &tokens, Some(&counts), &Attention::new());
        let (logits, labels) = (
            mesh.randn([2, 7, 5], shard(0))?,
            numbers.zeros([2, 7], shard(0))?,
        );
        let last = logits.cross_entropy(&labels, &ClassLoss::new());
        let moved = logits.movedim(-1, 1)?;
        assert!(moved.cross_entropy(&labels, &ClassLoss::new()).is_ok());
        let floats = moved.cross_entropy(&labels.to(DType::F32)?, &ClassLoss::new());
        let heads = nn::MultiheadAttention::new(&mesh, 8, 3).map(|_| mesh.ones([1], shard(0)));
        let mask = labels.eq_scalar(0.0)?;
        let chosen = labels.where_(&mask, &labels);
        assert!(mask.where_(&labels, -1).is_ok());
        let all = [attended, last, floats, heads.and_then(|x| x), chosen];
        Ok(all.map(|wrong| wrong.unwrap_err().to_string()))
    });
    let expected = [
        "bool, true where a key counts, or f32",
        "dim 1, which has the classes",
        "`.to(DType::I64)`",
        "errors.rs",
        "`mask.where_(&x, &y)`",
    ];
    for (told, expected) in told.unwrap().remove(0).iter().zip(expected) {
        assert!(told.contains(expected), "{told}");
    }
}

/// A bias needs to know how many classes the head has.
#[test]
fn a_head_that_is_no_matrix_gets_no_bias() {
    let refused = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let mut layer = nn::AdaptiveLogSoftmax::new(&mesh, 4, 9, &[3], 2.0)?;
        layer.head.weight = layer.head.weight.flatten()?;
        Ok(layer.head_bias().err().map(|error| error.to_string()))
    });
    let refused = refused.unwrap().remove(0).unwrap();
    assert!(refused.starts_with("AdaptiveLogSoftmax: "), "{refused}");
}

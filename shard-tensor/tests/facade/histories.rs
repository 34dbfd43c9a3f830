//! Ranks whose programs differ are told which calls differ, and right programs are left alone.

use shard_comm::Communicator;
use shard_spec::DeviceMesh;
use shard_tensor::data::Loader;
use shard_tensor::ndarray::Array2;
use shard_tensor::nn::{LayerNorm, Linear, ModelExt, Module, Rotary};
use shard_tensor::optim::{Adagrad, AdamW, Lbfgs, Optimizer, Sgd};
use shard_tensor::{
    ClassLoss, Context, ConvOptions, DType, DeviceKind, Error, ErrorClass, GradAs, KernelPolicy,
    Launch, LocalSizes, Mesh, Placements, Result, ShardTensor, checkpoint, launch, replicate,
    shard,
};
use std::path::PathBuf;
use std::rc::Rc;

/// What two ranks hear where rank 1 does something else, at the next operation: the same, and nothing in numbers that
/// nobody can read. They go on afterwards.
fn told(step: impl Fn(&Context, &Mesh) -> Result<()> + Sync) -> String {
    let outcomes = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let met = |mesh: &Mesh| mesh.ones([6], shard(0))?.sum_all()?.item();
        let heard = step(ctx, &mesh).and_then(|()| met(&mesh));
        assert_eq!(met(&mesh)?, 6.0);
        Ok(heard.err())
    });
    let outcomes: Vec<Option<Error>> = outcomes.unwrap();
    let [Some(a), Some(b)] = &outcomes[..] else {
        panic!("some rank heard nothing: {outcomes:?}");
    };
    assert_eq!(a.to_string(), b.to_string());
    assert_eq!(a.class(), ErrorClass::Uniform);
    let text = a.to_string();
    assert!(text.contains("disagree on the calls "), "{text}");
    assert!(!text.contains("0x"), "{text}");
    text
}

/// Two tensors of one layout, in an order that depends on the rank, as a `HashMap` would give them.
fn swapped(ctx: &Context, mesh: &Mesh) -> Result<[ShardTensor; 2]> {
    let a = mesh.randn([4, 6], shard(0))?;
    let b = mesh.randn([4, 6], shard(0))?;
    Ok(if ctx.rank() == 0 { [a, b] } else { [b, a] })
}

/// The first rank alone has the tensors, so only the mesh that they go to can find it out.
#[test]
fn tensors_of_one_rank_that_are_swapped_are_found_where_they_go() {
    let text = told(|ctx, mesh| {
        let one = ctx.mesh_of(1)?;
        let a = one.randn([4, 6], replicate())?;
        let b = one.randn([4, 6], replicate())?;
        let [first, second] = if ctx.rank() == 0 { [a, b] } else { [b, a] };
        let first = first.to_mesh(mesh, shard(0))?;
        let second = second.to_mesh(mesh, shard(0))?;
        first.sub(&second)?.sum_all()?.item().map(drop)
    });
    assert!(text.contains("rank 0 called to_mesh"), "{text}");
}

/// Batches of two loaders are alike in all but what is in them.
#[test]
fn loaders_that_are_swapped_are_found_out() {
    let text = told(|ctx, mesh| {
        let loader = |first: f32| {
            let rows = Array2::from_shape_fn((6, 2), |(i, _)| first + i as f32);
            Loader::new(mesh, 4)?.source_array(&rows, shard(0))
        };
        let (mut a, mut b) = (loader(0.0)?, loader(9.0)?);
        let mine = if ctx.rank() == 0 { &mut a } else { &mut b };
        mine.next_batch().map(drop)
    });
    assert!(text.contains("Loader"), "{text}");
}

/// How often a loss is asked for depends on them, so nothing may be asked before they are compared.
#[test]
fn options_of_lbfgs_that_differ_are_found_before_ranks_part() {
    type Options = fn(Lbfgs) -> Lbfgs;
    let all: [Options; 5] = [
        |lbfgs| lbfgs.iterations(1),
        |lbfgs| lbfgs.evaluations(2),
        |lbfgs| lbfgs.history(1),
        |lbfgs| lbfgs.tolerances(1e3, 1e-9),
        Lbfgs::strong_wolfe,
    ];
    for options in all {
        let text = told(|ctx, mesh| {
            let w = mesh.full([3], 2.0, replicate())?.requires_grad()?;
            let lbfgs = Lbfgs::new(vec![("w".to_owned(), w.clone())], 0.1)?;
            let mut lbfgs = match ctx.rank() {
                0 => lbfgs,
                _ => options(lbfgs),
            };
            lbfgs.step(|| w.square()?.sum_all()).map(drop)
        });
        assert!(text.contains("Lbfgs"), "{text}");
    }
}

#[test]
fn calls_that_differ_are_named_with_shape_and_line() {
    let text = told(|ctx, mesh| {
        let x = mesh.ones([4, 6], shard(0))?;
        let y = match ctx.rank() {
            0 => x.relu()?,
            _ => x.gelu()?,
        };
        y.exp()?.square().map(drop)
    });
    let line = line!();
    let file = file!();
    let (relu, gelu) = (line - 5, line - 4);
    for part in [
        format!("rank 0 called relu of f32 [4, 6] S(0) at {file}:{relu}:"),
        format!("rank 1 called gelu of f32 [4, 6] S(0) at {file}:{gelu}:"),
        "they met in item at ".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} in {text}");
    }
}

#[test]
fn a_rank_that_does_less_is_told_what_the_other_did() {
    let text = told(|ctx, mesh| {
        let x = mesh.ones([4, 6], shard(0))?;
        if ctx.rank() == 0 {
            x.relu()?;
        }
        x.sum_all()?.item().map(drop)
    });
    assert!(
        text.contains("rank 0 called relu of f32 [4, 6] S(0) at"),
        "{text}"
    );
    assert!(
        text.contains("rank 1 called sum of f32 [4, 6] S(0) at"),
        "{text}"
    );
}

#[test]
fn what_differs_long_ago_is_said_to() {
    let text = told(|ctx, mesh| {
        let mut x = mesh.ones([6], shard(0))?;
        x = if ctx.rank() == 0 {
            x.relu()?
        } else {
            x.gelu()?
        };
        for _ in 0..600 {
            x = x.tanh()?;
        }
        x.sum_all()?.item().map(drop)
    });
    assert!(!text.contains("relu"), "{text}");
    assert!(text.contains("calls long before operation 0"), "{text}");
    assert!(
        text.contains("rank 1 last called item (redistribute of f32 [] P(sum)) at"),
        "{text}"
    );
}

#[test]
fn tensors_read_in_another_order_are_found_out() {
    type Read = fn(&ShardTensor) -> Result<()>;
    let reads: [(&str, Read); 6] = [
        ("to_array", |x| x.to_array::<f32>().map(drop)),
        ("to_array_on", |x| x.to_array_on::<f32>(0).map(drop)),
        ("full_tensor", |x| x.full_tensor().map(drop)),
        ("redistribute", |x| x.redistribute(shard(1)).map(drop)),
        ("item", |x| x.mean_all()?.item().map(drop)),
        ("to_local", |x| x.to_local().map(drop)),
    ];
    for (name, read) in reads {
        let text = told(|ctx, mesh| {
            let [a, b] = swapped(ctx, mesh)?;
            read(&a)?;
            read(&b)
        });
        assert!(
            text.contains("what random made at") || text.contains("what randn (random"),
            "{name}: {text}"
        );
    }
    // Where nothing is sent, as with replicas.
    let text = told(|ctx, mesh| {
        let [a, b] = swapped(ctx, mesh)?.map(|x| x.full_tensor());
        a?.to_array::<f32>()?;
        b?.to_array::<f32>().map(drop)
    });
    assert!(text.contains("redistribute"), "{text}");
}

#[test]
fn operands_in_another_order_are_found_out() {
    told(|ctx, mesh| {
        let [a, b] = swapped(ctx, mesh)?;
        a.sub(&b).map(drop)
    });
    told(|ctx, mesh| {
        let x = mesh.ones([1, 1, 8], shard(2))?;
        let (v, w) = (
            mesh.randn([1, 1, 3], replicate())?,
            mesh.randn([1, 1, 3], replicate())?,
        );
        let [first, second] = if ctx.rank() == 0 { [v, w] } else { [w, v] };
        let y = x.conv1d(&first, None, ConvOptions::new().padding(1))?;
        y.conv1d(&second, None, ConvOptions::new().padding(1))
            .map(drop)
    });
}

#[test]
fn gradients_read_in_another_order_are_found_out() {
    let text = told(|ctx, mesh| {
        let [a, b] = swapped(ctx, mesh)?.map(|x| x.requires_grad());
        let (a, b) = (a?, b?);
        // Alike on both ranks but for which is which.
        let [x, y] = if ctx.rank() == 0 { [&a, &b] } else { [&b, &a] };
        let gradients = x.mul(y)?.sum_all()?.backward()?;
        gradients.get(&a)?;
        gradients.get(&b).map(drop)
    });
    assert!(text.contains("gradient"), "{text}");
}

#[test]
fn numbers_that_differ_are_found_out() {
    let differing: [fn(f64, &Mesh) -> Result<()>; 8] = [
        |v, mesh| mesh.full([6], v, shard(0)).map(drop),
        |v, mesh| mesh.ones([6], shard(0))?.div_scalar(v).map(drop),
        |v, mesh| mesh.ones([6], shard(0))?.mul_scalar(v).map(drop),
        |v, mesh| mesh.ones([6], shard(0))?.add_scalar(v).map(drop),
        |v, mesh| mesh.uniform([6], 0.0..v, shard(0)).map(drop),
        |v, mesh| {
            let w = mesh.ones([6], shard(0))?.requires_grad()?;
            let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], v)?;
            sgd.step(&w.square()?.sum_all()?.backward()?)
        },
        |v, mesh| {
            let w = mesh.ones([6], shard(0))?.requires_grad()?;
            let mut adam = AdamW::new(vec![("w".to_owned(), w.clone())], 0.1)?.eps(v);
            adam.step(&w.square()?.sum_all()?.backward()?)
        },
        // What is remembered begins with it, and no later step names it.
        |v, mesh| {
            let w = mesh.ones([6], shard(0))?.requires_grad()?;
            let mut adagrad = Adagrad::new(vec![("w".to_owned(), w.clone())], 0.1)?.initial(v);
            adagrad.step(&w.square()?.sum_all()?.backward()?)
        },
    ];
    for (case, differing) in differing.into_iter().enumerate() {
        let text = told(|ctx, mesh| differing(1.0 + ctx.rank() as f64, mesh));
        assert!(text.contains("with other arguments"), "{case}: {text}");
    }
}

/// What clips is the program's call, not the op that it is made of.
#[test]
fn limits_of_gradients_that_differ_are_told_by_the_method_and_line() {
    let text = told(|ctx, mesh| {
        let w = mesh.ones([6], shard(0))?.requires_grad()?;
        let mut gradients = w.square()?.sum_all()?.backward()?;
        gradients.clip_value(1.0 + ctx.rank() as f64)
    });
    let line = line!() - 2;
    let named = format!(
        "rank 0 called clip_value (hardtanh of f32 [6] S(0)) at {}:{line}:",
        file!()
    );
    assert!(text.contains(&named), "{text}");
}

/// A number that is an operand of an op rather than one of its attributes.
#[test]
fn numbers_that_become_operands_are_found_out() {
    type Differing = fn(f64, &ShardTensor) -> Result<()>;
    let integers = |x: &ShardTensor| x.to(DType::I64);
    let differing: &[(&str, Differing)] = &[
        ("add", |v, x| x.to(DType::I64)?.add_scalar(v).map(drop)),
        ("mul", |v, x| x.to(DType::I64)?.mul_scalar(v).map(drop)),
        ("clamp", |v, x| x.to(DType::I64)?.clamp(v, 9.0).map(drop)),
        ("gt", |v, x| x.gt_scalar(v).map(drop)),
        ("where", |v, x| x.gt_scalar(0.0)?.where_(x, v).map(drop)),
        ("var", |v, x| x.var(0, v, false).map(drop)),
        ("std", |v, x| x.std(0, v, false).map(drop)),
        ("histc", |v, x| x.histc(3, 0.0..v).map(drop)),
        ("farthest", |v, x| {
            x.reshape([6, 1])?.farthest_points(2, v as usize).map(drop)
        }),
        ("ignored class", |v, x| {
            let (logits, classes) = (x.reshape([2, 3])?, x.mesh().with_dtype(DType::I64));
            let target = classes.zeros([2], replicate())?;
            let options = ClassLoss::new().ignore(v as i64);
            logits.cross_entropy(&target, &options).map(drop)
        }),
        ("linspace", |v, x| {
            x.mesh().linspace(0.0, v, 6, shard(0)).map(drop)
        }),
        ("arange", |v, x| {
            let ends = (v, v + 3.0, 1.0);
            x.mesh().arange(ends, shard(0)).map(drop)
        }),
        ("fftfreq", |v, x| x.mesh().fftfreq(6, v, shard(0)).map(drop)),
        ("rfftfreq", |v, x| {
            x.mesh().rfftfreq(6, v, shard(0)).map(drop)
        }),
        // Both have three frequencies.
        ("rfftfreq of other numbers", |v, x| {
            let n = 3 + v as usize;
            x.mesh().rfftfreq(n, 1.0, shard(0)).map(drop)
        }),
    ];
    for (case, differing) in differing {
        let text = told(|ctx, mesh| {
            let x = mesh.arange(6, shard(0))?;
            differing(1.0 + ctx.rank() as f64, &x)
        });
        assert!(text.contains("with other arguments"), "{case}: {text}");
    }
    // Alike they are taken.
    let sums = launch(2, |ctx| {
        integers(&ctx.mesh_of(2)?.arange(6, shard(0))?)?
            .add_scalar(2.0)?
            .sum_all()?
            .item()
    });
    assert_eq!(sums.unwrap(), [27.0, 27.0]);
}

/// Nothing has been sent since the ranks took different turns.
#[test]
fn ranks_do_not_return_results_of_different_programs() {
    let trained = |steps: fn(usize) -> usize, rate: fn(usize) -> f64| {
        let done = launch(2, |ctx| {
            let mesh = ctx.mesh_of(2)?;
            let w = mesh.ones([4], replicate())?.requires_grad()?;
            let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], rate(ctx.rank()))?;
            for _ in 0..steps(ctx.rank()) {
                sgd.step(&w.square()?.sum_all()?.backward()?)?;
            }
            w.sum_all()?.item()
        });
        done.map_err(|error| (error.class(), error.to_string()))
    };
    assert!(trained(|_| 3, |_| 0.1).is_ok());
    for (class, text) in [
        trained(|rank| 3 + rank, |_| 0.1).unwrap_err(),
        trained(|_| 3, |rank| 0.1 + rank as f64).unwrap_err(),
    ] {
        assert_eq!(class, ErrorClass::Uniform, "{text}");
        assert!(
            text.contains("ranks disagree on the calls after the last"),
            "{text}"
        );
    }
    // Also on a mesh of some.
    let done = launch(3, |ctx| {
        let mesh = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![0, 2])?)?;
        let x = mesh.ones([4], replicate())?;
        match ctx.rank() {
            0 => x.exp()?,
            _ => x.tanh()?,
        };
        Ok(())
    });
    let text = done.unwrap_err().to_string();
    assert!(text.contains("rank 0 called exp"), "{text}");
}

#[test]
fn bases_of_rotations_that_differ_are_found_out() {
    let text = told(|ctx, mesh| {
        let base = if ctx.rank() == 0 { 10_000.0 } else { 500_000.0 };
        let rotary = Rotary::new(mesh, 6, 4)?.base(base)?;
        let x = mesh.ones([6, 4], shard(0))?;
        rotary.forward(&x)?.sum_all()?.item().map(drop)
    });
    assert!(text.contains("rank 0 called Rotary"), "{text}");
}

#[test]
fn modes_that_differ_are_found_out() {
    let text = told(|ctx, mesh| {
        let w = mesh.ones([6], shard(0))?.requires_grad()?;
        match ctx.rank() {
            0 => w.exp().map(drop),
            _ => ctx.no_grad(|| w.exp()).map(drop),
        }
    });
    assert!(
        text.contains("rank 1 called exp of f32 [6] S(0) without gradients"),
        "{text}"
    );
    let text = told(|ctx, mesh| {
        let w = mesh.ones([6], shard(0))?.requires_grad()?;
        let w = if ctx.rank() == 0 { w } else { w.detach() };
        w.exp().map(drop)
    });
    assert!(
        text.contains("rank 0 called exp of f32 [6] S(0) with gradients"),
        "{text}"
    );
    told(|ctx, mesh| {
        ctx.kernels(KernelPolicy {
            libraries: ctx.rank() == 0,
            ..KernelPolicy::default()
        });
        let x = mesh.ones([6], shard(0))?.exp();
        ctx.kernels(KernelPolicy::default());
        x.map(drop)
    });
    told(|ctx, mesh| {
        let [a, b] = swapped(ctx, mesh)?;
        a.requires_grad()?.set(&b)
    });
    told(|ctx, mesh| {
        let x = mesh.ones([6], replicate())?;
        // Nothing is sent, whichever it is.
        match ctx.rank() {
            0 => x.redistribute(shard(0)).map(drop),
            _ => x.redistribute(shard(0).sizes([2, 4])).map(drop),
        }
    });
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!(
        "shard-tensor-histories-{name}-{}",
        std::process::id()
    ))
}

#[test]
fn tensors_saved_under_each_others_names_are_found_out() {
    let path = scratch("swapped");
    let text = told(|ctx, mesh| {
        let [a, b] = swapped(ctx, mesh)?;
        checkpoint::save(&path, &[("a".to_owned(), a), ("b".to_owned(), b)])
    });
    assert!(text.contains("save"), "{text}");
    std::fs::remove_file(&path).ok();
}

/// Of copies one rank writes: it is the last time that ranks meet before a file is read by others.
#[test]
fn what_ranks_have_made_of_copies_is_compared_before_it_is_saved() {
    let path = scratch("copies");
    let saved = |ranks: usize, members: usize| {
        let done = launch(ranks, |ctx| {
            let mesh = ctx.mesh_on(0..members, [("data", members)])?;
            let w = mesh.ones([4], replicate())?;
            let w = w.mul_scalar(1.0 + ctx.rank() as f64)?;
            let heard = checkpoint::save(&path, &[("w".to_owned(), w)]).unwrap_err();
            assert!(!path.exists());
            // All have heard, and go on.
            assert_eq!(
                ctx.mesh_of(ranks)?.ones([5], shard(0))?.sum_all()?.item()?,
                5.0
            );
            Ok((heard.class(), heard.to_string()))
        });
        done.unwrap()
    };
    for (ranks, members, class) in [(2, 2, ErrorClass::Uniform), (4, 3, ErrorClass::Agreed)] {
        for (found, text) in saved(ranks, members) {
            assert_eq!(found, class, "{text}");
            assert!(
                text.contains("called mul_scalar of f32 [4] R with other arguments"),
                "{text}"
            );
        }
    }
}

#[test]
fn lengths_and_roots_are_told_apart_from_what_was_done_before() {
    let told = |call: fn(&dyn Communicator, usize) -> shard_comm::Result<()>| {
        let texts = launch(2, |ctx| {
            let mesh = ctx.mesh_of(2)?;
            mesh.ones([6], shard(0))?.relu()?;
            let comm: Rc<dyn Communicator> = mesh.comm().all().unwrap().clone();
            Ok(call(&*comm, ctx.rank()).unwrap_err().to_string())
        });
        let texts = texts.unwrap();
        assert_eq!(texts[0], texts[1]);
        texts[0].clone()
    };
    let length = told(|comm, rank| {
        let mine = comm.device().upload_slice(&vec![1.0; 2 + rank])?;
        comm.all_reduce(&mine, shard_comm::Monoid::SUM).map(drop)
    });
    assert!(
        length.contains("disagree on length") && length.contains("rank 1 has 3"),
        "{length}"
    );
    let root = told(|comm, rank| {
        let mine = comm.device().upload_slice(&[1.0])?;
        comm.broadcast(Some(&mine), rank, DType::F64, 1).map(drop)
    });
    assert!(
        root.contains("disagree on root") && root.contains("rank 1 has 1"),
        "{root}"
    );
}

/// What rank 0 hears of rank 1, which ends before `call`.
fn deserted(call: impl Fn(&Context, &Mesh, &ShardTensor) -> Result<()> + Sync) -> String {
    let outcomes = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([1, 1, 6], shard(2))?;
        match ctx.rank() {
            0 => Ok(call(ctx, &mesh, &x).unwrap_err().to_string()),
            _ => Ok(String::new()),
        }
    });
    outcomes.unwrap().swap_remove(0)
}

#[test]
fn who_waits_is_named_by_the_method_and_line_of_the_program() {
    type Wait = fn(&Context, &Mesh, &ShardTensor) -> Result<()>;
    let waits: [(&str, u32, Wait); 9] = [
        ("item", line!(), |_, _, x| x.sum_all()?.item().map(drop)),
        ("to_array", line!(), |_, _, x| x.to_array::<f32>().map(drop)),
        ("full_tensor", line!(), |_, _, x| x.full_tensor().map(drop)),
        ("reduced", line!(), |_, _, x| {
            x.sum_all()?.reduced().map(drop)
        }),
        ("conv1d", line!(), |_, m, x| {
            x.conv1d(
                &m.ones([1, 1, 3], replicate())?,
                None,
                ConvOptions::new().padding(1),
            )
            .map(drop)
        }),
        ("backward", line!(), |_, m, x| {
            let w = m.ones([1, 1, 6], replicate())?.requires_grad()?;
            // Forward nothing is sent.
            let y = w.redistribute(shard(2))?.mul(x)?;
            y.sum_all()?.backward().map(drop)
        }),
        ("mesh", line!(), |ctx, _, _| ctx.mesh_of([2]).map(drop)),
        ("gather", line!(), |ctx, _, _| ctx.gather(&1).map(drop)),
        ("map_local", line!(), |ctx, _, x| {
            ctx.map_local(
                &[x],
                [x.layout().clone()],
                &[x.layout()],
                |p| Ok(p.to_vec()),
            )
            .map(drop)
        }),
    ];
    let (file, last) = (file!(), line!());
    for (i, (method, from, wait)) in waits.into_iter().enumerate() {
        let text = deserted(wait);
        assert!(
            text.contains(&format!("joining {method} (")),
            "{method}: {text}"
        );
        let lines = from..=(from + 5).min(last);
        let told = |line: u32| text.contains(&format!("rank 0 called at {file}:{line}:"));
        assert!(lines.into_iter().any(told), "{method}: {text}");
        for inner in [
            "all_reduce",
            "all_to_all",
            "check_uniform",
            "mod.rs",
            "array.rs",
            "redistribute",
        ] {
            assert!(!text.contains(inner), "{i} {method}: {text}");
        }
    }
}

#[test]
fn errors_of_arguments_say_where() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4, 6], shard(0))?;
        let mut texts = Vec::new();
        let mut add = |line: u32, error: Error| texts.push((line, error.to_string()));
        add(line!(), x.item().unwrap_err());
        add(line!(), x.set(&x).unwrap_err());
        add(line!(), x.narrow(0, 3..9).unwrap_err());
        add(line!(), x.add(&mesh.ones([5], replicate())?).unwrap_err());
        add(line!(), x.redistribute(shard(7)).unwrap_err());
        add(line!(), mesh.full([2], 0.5, shard(3)).unwrap_err());
        add(
            line!(),
            mesh.with_dtype(DType::U8)
                .full([2], 300.0, shard(0))
                .unwrap_err(),
        );
        add(line!(), x.backward().map(drop).unwrap_err());
        add(line!(), ctx.mesh_of([3]).map(drop).unwrap_err());
        add(line!(), x.to_array::<f64>().unwrap_err());
        add(line!(), x.matmul(&x).unwrap_err());
        Ok(texts)
    });
    for (from, text) in texts.unwrap().into_iter().flatten() {
        // The call may begin some lines further down.
        let told = |line: u32| text.contains(&format!("(at {}:{line}:", file!()));
        assert!((from..from + 6).any(told), "{from} in {text}");
    }
}

#[test]
fn a_tensor_of_another_mesh_is_brought_there_as_the_error_says() {
    let sums = launch(2, |ctx| {
        let (one, two) = (ctx.mesh_of(1)?, ctx.mesh_of(2)?);
        let (x, y) = (two.ones([4], shard(0))?, one.ones([4], replicate())?);
        let text = x.add(&y).unwrap_err().to_string();
        assert!(text.contains("`to_mesh`"), "{text}");
        x.add(&y.to_mesh(&two, shard(0))?)?.sum_all()?.item()
    });
    assert_eq!(sums.unwrap(), [8.0; 2]);
}

/// All that a program may do: nothing of it is taken for a disagreement, whatever ranks do on their own.
fn everything(ctx: &Context, ranks: usize) -> Result<f64> {
    let mesh = ctx.mesh_of(ranks)?;
    let model = Linear::new(&mesh, 4, 3)?;
    let norm = LayerNorm::new(&mesh, 3)?;
    let parameters: Vec<_> = model
        .parameters()
        .into_iter()
        .chain(norm.parameters())
        .collect();
    let mut adam = AdamW::new(parameters.clone(), 0.01)?;
    let x = mesh.randn([7, 4], shard(0))?;
    let mut sum = 0.0;
    for step in 0..3 {
        let held = (model.weight.clone(), x.clone());
        let y = norm.forward(&model.forward(&x)?)?;
        let again = ctx.recompute(&[&y], move |y| {
            let weighed = held.1.matmul(&held.0.transpose(0, 1)?)?;
            Ok(vec![y[0].mul(&weighed)?.tanh()?])
        })?;
        // Every rank does as much as it has rows, on the tape.
        let layout = again[0].layout().clone();
        let pieces = ctx.map_local(&[&again[0]], [layout.clone()], &[&layout], |p| {
            let mut piece = p[0].clone();
            for _ in 0..ctx.rank() + p[0].shape()[0] {
                piece = piece.mul_scalar(1.0)?;
            }
            Ok(vec![piece])
        })?;
        let loss = pieces[0].clone().square()?.mean_all()?;
        if ctx.rank() == 0 {
            // One rank alone, and nobody else needs to know.
            loss.to_local_array::<f64>()?;
            pieces[0].detach().to_local_array::<f64>()?;
        }
        let mut gradients = loss.backward()?;
        gradients.accumulate(
            x.detach()
                .matmul(&model.weight.transpose(0, 1)?)?
                .sum_all()?
                .backward()?,
        )?;
        for (_, parameter) in &parameters {
            gradients.get(parameter)?;
        }
        adam.step(&gradients)?;
        let slopes = loss_of(&model, &x)?.grad(&[&model.weight], true)?;
        if let Some(slope) = &slopes[0] {
            sum += slope
                .square()?
                .sum_all()?
                .grad(&[&model.weight], false)?
                .len() as f64;
        }
        sum += ctx.no_grad(|| model.forward(&x)?.sum_all()?.item())? + step as f64;
    }
    // Groups of some of the ranks, each with a program of its own.
    let halves = [ctx.mesh_of(1)?, ctx.mesh_of(ranks)?];
    let moved = x.to_mesh(&halves[0], replicate())?;
    let back = moved.square()?.to_mesh(&halves[1], shard(1))?;
    sum += back.sum_all()?.item()?;
    let whole = x.full_tensor_with(GradAs::Partial)?;
    let piece = whole.to_local()?;
    let copies = mesh.wrap_local(&piece, replicate(), LocalSizes::Global([7, 4].into()))?;
    sum += copies.sum_all()?.item()?;
    let other = x.redistribute(shard(1))?;
    sum += other.mul(&x)?.sum_all()?.item()?;
    model.weight.set(&model.weight.detach().mul_scalar(0.5)?)?;
    sum += model.weight.sum_all()?.item()?;
    Ok(sum)
}

fn loss_of(model: &Linear, x: &ShardTensor) -> Result<ShardTensor> {
    model.forward(x)?.square()?.sum_all()
}

#[test]
fn cotangents_that_meet_go_on_to_ranks_off_their_mesh() {
    let slopes = launch(3, |ctx| {
        let near = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![0, 1])?)?;
        let far = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![1, 2])?)?;
        let x = near.arange(4, shard(0))?.requires_grad()?;
        let there = x.to_mesh(&far, shard(0))?;
        let y = there.to_mesh(&near, shard(0))?;
        // Two cotangents of `y` meet on ranks 0 and 1; on 1 and 2 their sum is compared.
        let slope = y.mul(&y)?.sum_all()?.backward()?.get(&x)?;
        let slope = slope.expect("it depends on x").sum_all()?;
        if far.is_member() {
            far.ones([2], shard(0))?.sum_all()?.item()?;
        }
        if near.is_member() {
            slope.item()
        } else {
            Ok(12.0)
        }
    });
    assert_eq!(slopes.unwrap(), [12.0; 3]);
}

/// A rank off a mesh need not do what only its members have to: what they read, and make for themselves.
#[test]
fn what_members_do_alone_is_no_disagreement() {
    let weights = launch(3, |ctx| {
        let on = |ranks: [usize; 2]| {
            let mesh = DeviceMesh::with_ranks(&[2], ranks.to_vec())?;
            ctx.mesh_from(&mesh)
        };
        let (near, far, last) = (on([0, 1])?, on([1, 2])?, on([2, 0])?);
        let weight = near.arange(4, shard(0))?.requires_grad()?;
        let mut sgd = Sgd::new(vec![("weight".to_owned(), weight.clone())], 0.5)?.momentum(0.9);
        for _ in 0..2 {
            if near.is_member() {
                let halves = near.full([4], 0.5, shard(0))?;
                weight.detach().mul(&halves)?.sum_all()?.item()?;
            }
            let there = weight.square()?.to_mesh(&far, shard(0))?;
            if far.is_member() {
                there.to_array::<f32>()?;
            }
            let loss = there.mul_scalar(2.0)?.to_mesh(&last, replicate())?;
            sgd.step(&loss.sum_all()?.backward()?)?;
        }
        weight.to_mesh(&last, replicate())?.to_array_on::<f32>(0)
    });
    let expected = [0.0, 1.0, 2.0, 3.0].map(|w: f32| -0.8 * w);
    let found = weights.unwrap().remove(0).expect("rank 0 has it");
    let mut pairs = found.iter().zip(expected);
    assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-6), "{found}");
}

/// Off a mesh too an op is a call, of which the mesh that its result goes to hears.
#[test]
fn another_op_off_its_mesh_is_found_where_the_result_goes() {
    let text = told(|ctx, mesh| {
        let first = ctx.mesh_of(1)?;
        let x = first.arange(4, replicate())?;
        let y = match ctx.rank() {
            0 => x.exp()?,
            _ => x.tanh()?,
        };
        y.to_mesh(mesh, shard(0)).map(drop)
    });
    assert!(text.contains("called to_mesh of f32 [4] S(0)"), "{text}");
}

#[test]
fn a_right_program_is_never_told_off() {
    for device in [DeviceKind::Host, DeviceKind::Test] {
        let mut alone = None;
        for ranks in 1..=4 {
            let sums = Launch::new(ranks)
                .seed(5)
                .device(device)
                .dtype(DType::F64)
                .run(|ctx| everything(ctx, ranks));
            let sums = sums.unwrap();
            let expected = *alone.get_or_insert(sums[0]);
            assert!(
                sums.iter().all(|&s| (s - expected).abs() < 1e-9),
                "{ranks} ranks: {sums:?}, {expected}"
            );
        }
    }
}

#[test]
fn placements_of_each_kind_are_read_alike() {
    let all: [Placements; 3] = [shard(0).into(), shard(1).into(), replicate().into()];
    for placements in &all {
        let read = launch(3, |ctx| {
            let x = ctx.mesh_of(3)?.randn([5, 4], placements)?;
            let y = x.clone();
            assert_eq!(
                x.value().array().number(),
                y.detach().value().array().number()
            );
            x.add(&y)?.to_array::<f32>()?;
            y.to_array_on::<f32>(2).map(|a| a.map(|a| a.sum()))
        });
        assert!(read.unwrap()[2].is_some());
    }
}

//! Optimizers against numbers computed by hand, and files.

use crate::common::read;
use shard_tensor::data::{DataError, DimPart, Loader, Source};
use shard_tensor::nn::{Linear, ModelExt, Module, ParallelPlan};
use shard_tensor::optim::{AdamW, Ema, Lbfgs, Optimizer, Sgd};
use shard_tensor::{
    DType, DeviceKind, ErrorClass, Launch, Placements, Result, ShardTensor, checkpoint, launch,
    replicate, shard,
};

pub(crate) fn close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!(
            (g - e).abs() <= tolerance * e.abs().max(1e-3),
            "{got:?} is not {expected:?}"
        );
    }
}

/// AdamW written out for one number, from its paper.
fn adamw(mut p: f64, gradients: &[f64], rate: f64, decay: f64) -> f64 {
    let (mut m, mut v) = (0.0, 0.0);
    for (t, g) in gradients.iter().enumerate() {
        let t = t as i32 + 1;
        p -= rate * decay * p;
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        let (m_hat, v_hat) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.999f64.powi(t)));
        p -= rate * m_hat / (v_hat.sqrt() + 1e-8);
    }
    p
}

#[test]
fn a_teacher_follows_by_a_share_where_its_parameters_are_kept() {
    let done = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh([("shard", 3)])?;
        let model = Linear::new(&mesh, 4, 5)?.fully_sharded("shard")?;
        let teacher = model.copied()?;
        for (_, p) in model.parameters() {
            p.set(&p.detach().add_scalar(2.0)?)?;
        }
        let before = ctx.ledger().snapshot();
        for ((_, old), (_, new)) in teacher.parameters().iter().zip(model.parameters()) {
            old.set(&old.detach().lerp(&new.detach(), 0.25)?)?;
        }
        assert_eq!(ctx.ledger().since(&before).bytes, 0);
        for ((_, old), (_, new)) in teacher.parameters().iter().zip(model.parameters()) {
            close(
                &read(&new.detach().sub(&old.detach())?)?,
                &vec![1.5; old.numel()],
                1e-12,
            );
        }
        let whole = teacher.weight.add_scalar(1.0)?;
        Ok(teacher.weight.set(&whole).unwrap_err().to_string())
    });
    let told = done.unwrap();
    assert!(told[0].contains("`detach`"), "{}", told[0]);
}

#[test]
fn adamw_is_the_formula_on_any_layout() {
    let layouts: [Placements; 3] = [
        [shard(0)].into(),
        [replicate()].into(),
        [shard(0).sizes([0, 3, 0])].into(),
    ];
    let (start, slopes) = (
        [1.0, -2.0, 0.5],
        [[0.3, -0.1, 2.0], [-0.7, 0.0, 1e-3], [0.2, 0.4, -5.0]],
    );
    let expected: Vec<f64> = (0..3)
        .map(|i| adamw(start[i], &slopes.map(|step| step[i]), 0.1, 0.05))
        .collect();
    for (placements, device) in
        layouts
            .iter()
            .zip([DeviceKind::Host, DeviceKind::Test, DeviceKind::Test])
    {
        let trained = Launch::new(3).device(device).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let w = mesh
                .from_fn(3, placements, |i| start[i[0]])?
                .requires_grad()?;
            let mut adam = AdamW::new(vec![("w".to_owned(), w.clone())], 0.1)?.weight_decay(0.05);
            for step in slopes {
                // The gradient of Σ slope · w is slope.
                let slope = mesh.from_fn(3, placements, |i| step[i[0]])?;
                adam.step(&(&w * &slope).sum_all()?.backward()?)?;
            }
            read(&w)
        });
        for got in trained.unwrap() {
            close(&got, &expected, 1e-13);
        }
    }
}

/// The first two steps from 1.0 with gradients 0.5 and 0.5 by hand: the bias corrections cancel, so each step is
/// p (1 - rate · decay) - rate.
#[test]
fn adamw_by_hand() {
    let trained = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let w = ctx.mesh_of(2)?.ones(1, [replicate()])?.requires_grad()?;
        let mut adam = AdamW::new(vec![("w".to_owned(), w.clone())], 0.1)?;
        for _ in 0..2 {
            adam.step(&(&w * 0.5).sum_all()?.backward()?)?;
        }
        w.item()
    });
    // 1 -> 0.999 - 0.1 = 0.899 -> 0.898101 - 0.1
    assert!((trained.unwrap()[0] - 0.798_101).abs() < 1e-7);
}

#[test]
fn sgd_with_momentum_and_decay_by_hand() {
    let trained = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let w = ctx.mesh_of(3)?.full(4, 2.0, [shard(0)])?.requires_grad()?;
        let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], 0.5)?
            .momentum(0.5)
            .weight_decay(0.1);
        for _ in 0..2 {
            sgd.step(&w.sum_all()?.backward()?)?;
        }
        sgd.set_learning_rate(0.0);
        sgd.step(&w.sum_all()?.backward()?)?;
        read(&w)
    });
    // g = 1 + 0.1 · 2 = 1.2, p = 2 - 0.6 = 1.4; g = 1.14, v = 0.6 + 1.14 = 1.74, p = 1.4 - 0.87 = 0.53
    for got in trained.unwrap() {
        close(&got, &[0.53; 4], 1e-13);
    }
}

#[test]
fn a_parameter_without_a_gradient_stays() {
    let left = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (used, unused) = (
            mesh.ones(2, [replicate()])?.requires_grad()?,
            mesh.ones(2, [replicate()])?.requires_grad()?,
        );
        let mut adam = AdamW::new(
            vec![("a".into(), used.clone()), ("b".into(), unused.clone())],
            0.1,
        )?;
        adam.step(&used.sum_all()?.backward()?)?;
        Ok((used.mean_all()?.item()? < 0.95, unused.mean_all()?.item()?))
    });
    assert_eq!(left.unwrap(), [(true, 1.0); 2]);
}

/// Gradients stay what they are when the parameter moves: they can be read, and stepped along again.
#[test]
fn gradients_are_read_and_used_again_after_a_step() {
    let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let mut found = Vec::new();
        for placements in [[replicate()], [shard(0)]] {
            let w = mesh.full(2, 3.0, placements)?.requires_grad()?;
            let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], 0.5)?;
            let gradients = w.square()?.sum_all()?.backward()?;
            sgd.step(&gradients)?;
            let slope = gradients.get(&w)?.map(|g| read(&g)).transpose()?;
            sgd.step(&gradients)?;
            found.push((slope, read(&w)?));
        }
        Ok(found)
    });
    let expected = (Some(vec![6.0; 2]), vec![-3.0; 2]);
    assert_eq!(found.unwrap(), vec![vec![expected; 2]; 3]);
}

#[test]
fn optimizers_take_parameters_only() {
    let text = Launch::new(1).run(|ctx| {
        let x = ctx.mesh_of(1)?.ones(2, [replicate()])?;
        Ok(Sgd::new(vec![("frozen".into(), x)], 0.1)
            .unwrap_err()
            .to_string())
    });
    assert!(text.unwrap()[0].contains("frozen"));
}

/// An optimizer made before the model was placed has parameters that get no gradient any more, and says so; one of a copy that
/// was not placed goes on.
#[test]
fn an_optimizer_of_parameters_that_were_replaced_says_so() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("a", 2)])?;
        let new = || {
            Ok::<_, shard_tensor::Error>(vec![Linear::new(&mesh, 4, 4)?, Linear::new(&mesh, 4, 4)?])
        };
        let x = mesh.ones([2, 4], shard(0))?;
        let slopes = |model: &[Linear]| {
            model[1]
                .forward(&model[0].forward(&x)?)?
                .square()?
                .sum_all()?
                .backward()
        };
        let whole = new()?;
        let (mut sgd, mut adam) = (
            Sgd::new(whole.parameters(), 0.1)?,
            AdamW::new(whole.parameters(), 0.1)?,
        );
        let mut lbfgs = Lbfgs::new(whole.parameters(), 0.1)?;
        let (mut own, mut mean) = (Sgd::new(whole.parameters(), 0.1)?, Ema::new(&whole, 0.9)?);
        let copy = whole.clone();
        // The second layer keeps its parameters, which alone would be trained.
        let placed = whole.distribute(&ParallelPlan::new().colwise("0", "a"))?;
        let gradients = slopes(&placed)?;
        let before = placed[1].weight.to_array::<f32>()?;
        for error in [
            sgd.step(&gradients).unwrap_err(),
            adam.step(&gradients).unwrap_err(),
            mean.update().unwrap_err(),
            mean.swap().unwrap_err(),
            lbfgs.step(|| x.sum_all()).unwrap_err(),
        ] {
            assert_eq!(error.class(), ErrorClass::Uniform);
            let text = error.to_string();
            assert!(
                text.contains("\"0.weight\", which was replaced when `distribute`"),
                "{text}"
            );
        }
        assert_eq!(placed[1].weight.to_array::<f32>()?, before);
        // The copy has the old parameters, and their gradients.
        own.step(&slopes(&copy)?)?;
        mean.update()?;
        Sgd::new(placed.parameters(), 0.1)?.step(&gradients)?;

        let whole = new()?;
        let mut sgd = Sgd::new(whole.parameters(), 0.1)?;
        let sharded = whole.fully_sharded("a")?;
        let text = sgd.step(&slopes(&sharded)?).unwrap_err().to_string();
        assert!(text.contains("`fully_sharded`"), "{text}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn options_that_contradict_each_other_and_types_that_are_not_kept_are_refused() {
    let texts = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let w = mesh
            .ones([4, 5], shard(0).sizes([1, 0, 3]))?
            .requires_grad()?;
        let new = || Sgd::new(vec![("w".to_owned(), w.clone())], 0.1);
        let gradients = w.sum_all()?.backward()?;
        let wrong = [
            new()?.nesterov(true),
            new()?.nesterov(true).momentum(0.9).dampening(0.1),
            new()?.momentum(0.9).dampening(f64::NAN),
        ];
        let mut texts = Vec::new();
        for mut sgd in wrong {
            let error = sgd.step(&gradients).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform);
            texts.push(error.to_string());
        }
        assert_eq!(w.mean_all()?.item()?, 1.0);
        new()?.momentum(0.9).nesterov(true).step(&gradients)?;
        let half = w.detach().to(DType::BF16)?.requires_grad()?;
        texts.push(
            AdamW::new(vec![("half".to_owned(), half)], 0.1)
                .unwrap_err()
                .to_string(),
        );
        texts.push(
            AdamW::new(vec![("v".to_owned(), w.detach())], 0.1)
                .unwrap_err()
                .to_string(),
        );
        Ok(texts)
    })
    .unwrap();
    // An error that the ranks tell alike is not taken for one rank's.
    assert!(texts.iter().all(|t| *t == texts[0]), "{texts:?}");
    for (text, says) in texts[0].iter().zip([
        "nesterov",
        "nesterov",
        "dampening NaN",
        "autocast",
        "requires_grad",
    ]) {
        assert!(text.contains(says), "{text} does not say {says}");
    }
    assert!(
        texts[0][3].contains("\"half\": bf16 [4, 5];"),
        "{}",
        texts[0][3]
    );
}

/// Steps on replicas and on pieces of every kind give what one rank gives.
#[test]
fn a_linear_model_trains_alike_everywhere() {
    let train = |ranks: usize, placements: Placements| {
        let trained = Launch::new(ranks).seed(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let model = Linear::new(&mesh, 4, 2)?;
            let (x, y) = (
                mesh.randn([9, 4], &placements)?,
                mesh.randn([9, 2], &placements)?,
            );
            let mut adam = AdamW::new(model.parameters(), 0.05)?;
            let mut loss = f64::NAN;
            for _ in 0..5 {
                let error = model.forward(&x)?.mse_loss(&y)?;
                loss = error.item()?;
                adam.step(&error.backward()?)?;
            }
            Ok((loss, read(&model.weight)?))
        });
        let mut trained = trained.unwrap();
        // Replicas are the same to the bit.
        assert!(trained.iter().all(|t| t == &trained[0]));
        trained.swap_remove(0)
    };
    let alone = train(1, [replicate()].into());
    for (ranks, placements) in [
        (2, [shard(0)]),
        (4, [shard(0).sizes([5, 0, 3, 1])]),
        (3, [shard(1)]),
        (12, [shard(0)]),
    ] {
        let (loss, weight) = train(ranks, placements.into());
        close(&[loss], &[alone.0], 1e-12);
        close(&weight, &alone.1, 1e-12);
    }
}

fn scratch(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("shard-tensor-{}-{name}", std::process::id()))
}

#[test]
fn files_hold_whole_tensors_of_any_layout() {
    let path = scratch("any.safetensors");
    let saved = Launch::new(4).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let a = mesh.rand([5, 3], [shard(0).sizes([1, 4]), shard(1)])?;
        let b = mesh.rand((), Placements::replicated())?;
        let c = mesh.ones([6], [shard(0), replicate()])?.sum_all()?;
        let d = mesh.rand([0, 2], [shard(1), shard(0)])?;
        checkpoint::save(
            &path,
            &[
                ("a".into(), a.clone()),
                ("b".into(), b.clone()),
                ("c".into(), c),
                ("d".into(), d),
            ],
        )?;
        Ok((a.to_array::<f32>()?, b.item()?))
    });
    let saved = saved.unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("c").unwrap().data(), 6.0f32.to_le_bytes());
    assert_eq!(file.tensor("d").unwrap().shape(), [0, 2]);
    let loaded = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let a = mesh
            .zeros([5, 3], [shard(1).sizes([2, 0, 1])])?
            .requires_grad()?;
        let b = mesh.zeros((), Placements::replicated())?.requires_grad()?;
        checkpoint::load(&path, &[("b".into(), b.clone()), ("a".into(), a.clone())])?;
        Ok((a.to_array::<f32>()?, b.item()?))
    });
    assert_eq!(loaded.unwrap(), vec![saved[0].clone(); 3]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn bad_files_are_agreed_on_and_change_nothing() {
    let (missing, garbage, short) = (scratch("missing"), scratch("garbage"), scratch("short"));
    std::fs::write(&garbage, [7; 40]).unwrap();
    let header = br#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.extend_from_slice(&[0; 12]);
    std::fs::write(&short, &file).unwrap();
    let checked = Launch::new(2).run(|ctx| {
        let w = ctx.mesh_of(2)?.ones([4], [shard(0)])?.requires_grad()?;
        let x = ctx.mesh_of(2)?.ones([5], [shard(0)])?.requires_grad()?;
        let named = |t: &ShardTensor| [("w".to_owned(), t.clone())];
        let errors = [
            checkpoint::load(&missing, &named(&w)).unwrap_err(),
            checkpoint::load(&garbage, &named(&w)).unwrap_err(),
            checkpoint::load(&short, &named(&w)).unwrap_err(),
            checkpoint::load(&short, &named(&x)).unwrap_err(),
            checkpoint::load(&short, &[("v".to_owned(), w.clone())]).unwrap_err(),
            checkpoint::save("/no/such/folder/file", &named(&w)).unwrap_err(),
        ];
        assert_eq!(w.sum_all()?.item()?, 4.0);
        Ok(errors.map(|e| (e.class(), e.to_string())))
    });
    let checked = checked.unwrap();
    assert_eq!(checked[0], checked[1]);
    assert!(
        checked[0].iter().all(|e| e.0 == ErrorClass::Agreed),
        "{checked:?}"
    );
    std::fs::remove_file(&garbage).unwrap();
    std::fs::remove_file(&short).unwrap();
}

/// Tensors of one shape under swapped names would be swapped in the file: names and paths are compared.
#[test]
fn ranks_must_name_the_same_tensors_and_file() {
    let (path, other) = (scratch("named"), scratch("named-otherwise"));
    let texts = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let tensor = |value| mesh.full([3], value, [shard(0)])?.requires_grad();
        let (a, b) = (tensor(1.0)?, tensor(2.0)?);
        let mut named = vec![("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())];
        checkpoint::save(&path, &named)?;
        let mine = if ctx.rank() == 0 { &path } else { &other };
        let paths = [
            checkpoint::save(mine, &named),
            checkpoint::load(mine, &named),
        ];
        if ctx.rank() == 1 {
            named.swap(0, 1);
        }
        let orders = [
            checkpoint::save(&path, &named),
            checkpoint::load(&path, &named),
        ];
        assert_eq!((a.sum_all()?.item()?, b.sum_all()?.item()?), (3.0, 6.0));
        let told = |e: Result<()>| {
            let e = e.unwrap_err();
            (e.class(), e.to_string())
        };
        Ok((paths.map(told), orders.map(told)))
    });
    for path in [path, other] {
        std::fs::remove_file(&path).ok();
    }
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    assert!(
        texts[0]
            .0
            .iter()
            .all(|(_, text)| text.contains("named-otherwise")),
        "{texts:?}"
    );
    assert!(
        texts[0].1.iter().all(|(_, text)| text.contains("\"b\"")),
        "{texts:?}"
    );
}

/// `__metadata__` means something else in the format: a tensor of that name could not be read again.
#[test]
fn a_name_that_the_format_keeps_for_itself_is_refused() {
    let path = scratch("reserved");
    let texts = Launch::new(2).run(|ctx| {
        let w = ctx.mesh_of(2)?.ones([3], [shard(0)])?.requires_grad()?;
        let named = [("__metadata__".to_owned(), w)];
        Ok([
            checkpoint::save(&path, &named),
            checkpoint::load(&path, &named),
        ]
        .map(|e| {
            let e = e.unwrap_err();
            (e.class(), e.to_string())
        }))
    });
    std::fs::remove_file(&path).ok();
    for (class, text) in texts.unwrap().concat() {
        assert!(
            class == ErrorClass::Uniform && text.contains("rename"),
            "{text}"
        );
    }
}

/// A file is written where a link points, with the mode the old one had; what is no file is left alone.
#[cfg(unix)]
#[test]
fn saving_respects_what_is_there() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let folder = scratch("there");
    std::fs::create_dir_all(&folder).unwrap();
    let [target, link, dangling, aim, pipe, fresh] =
        ["target", "link", "dangling", "aim", "pipe", "fresh"].map(|name| folder.join(name));
    std::fs::write(&target, b"old").unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("target", &link).unwrap();
    symlink("aim", &dangling).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(&pipe)
        .status()
        .unwrap();
    assert!(made.success());
    let refused = Launch::new(2).run(|ctx| {
        let w = ctx.mesh_of(2)?.ones([3], [shard(0)])?.requires_grad()?;
        let named = [("w".to_owned(), w)];
        checkpoint::save(&link, &named)?;
        checkpoint::save(&dangling, &named)?;
        checkpoint::save(&fresh, &named)?;
        checkpoint::load(&link, &named)?;
        let errors = [
            checkpoint::save(&pipe, &named),
            checkpoint::save(&folder, &named),
        ];
        Ok(errors.map(|e| e.map_err(|e| (e.class(), e.to_string()))))
    });
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let is_link = |path| {
        std::fs::symlink_metadata(path)
            .unwrap()
            .file_type()
            .is_symlink()
    };
    assert!(is_link(&link) && is_link(&dangling) && aim.is_file());
    assert_eq!(mode(&target), 0o640);
    // A new file has the mode that any program gives one.
    std::fs::write(folder.join("usual"), b"").unwrap();
    assert_eq!(
        (mode(&fresh), mode(&aim)),
        (mode(&folder.join("usual")), mode(&folder.join("usual")))
    );
    assert!(
        std::fs::symlink_metadata(&pipe)
            .unwrap()
            .file_type()
            .is_fifo()
    );
    let left: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 7, "nothing temporary is left: {left:?}");
    for error in refused.unwrap().concat() {
        let (class, text) = error.unwrap_err();
        assert!(
            class == ErrorClass::Agreed && text.contains("regular file"),
            "{text}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A source that panics at its sample 5.
struct Broken;

impl Source for Broken {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &[10, 2]
    }

    fn read(&self, held: &[DimPart], into: &mut [u8]) -> std::result::Result<(), DataError> {
        assert!(held[0].indices().all(|i| i != 5), "sector 5 is gone");
        into.fill(0);
        Ok(())
    }
}

/// The last batches ask for what the first do not.
#[test]
fn a_loader_says_what_it_lacks() {
    let told = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let rows = ndarray::Array2::<f32>::zeros((10, 2));
        let uneven = || shard(0).sizes([1, 2, 1]);
        let mut broken = Loader::new(&mesh, 4)?.source(shard(0), || Ok(Broken))?;
        broken.next_batch()?;
        let panicked = broken.next_batch().unwrap_err();
        assert_eq!(panicked.class(), ErrorClass::Agreed);
        let texts = [
            panicked,
            Loader::new(&mesh, 40)?.next_batch().unwrap_err(),
            Loader::new(&mesh, 4)?.epoch().unwrap_err(),
            (Loader::new(&mesh, 4)?
                .source_array(&rows, uneven())?
                .next_batch())
            .unwrap_err(),
        ];
        let mut whole = Loader::new(&mesh, 4)?
            .source_array(&rows, uneven())?
            .drop_last(true);
        assert_eq!(whole.epoch()?.count(), 2);
        Ok(texts.map(|e| e.to_string()))
    });
    let told = told.unwrap();
    assert!(told.iter().all(|texts| *texts == told[0]), "{told:?}");
    let says = [
        "sector 5 is gone",
        "source_array",
        "source_array",
        "drop_last",
    ];
    for (text, says) in told[0].iter().zip(says) {
        assert!(text.contains(says), "{text} does not say {says}");
    }
}

#[test]
fn a_loader_takes_arrays_in_memory() {
    let (x, y) = (
        ndarray::Array2::from_shape_fn((10, 3), |(i, j)| (3 * i + j) as f64),
        ndarray::Array1::from_iter(0..10_i64),
    );
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let loader = Loader::new(&mesh, 4)?
            .source_array(&x.t().as_standard_layout().t(), shard(1))?
            .source_array(&y, shard(0))?;
        let mut seen = Vec::new();
        for batch in loader.shuffle(true).epoch()? {
            let batch = batch?;
            let (rows, labels) = (read(&batch[0])?, batch[1].to_array::<i64>()?);
            for (row, label) in rows.chunks(3).zip(&labels) {
                assert_eq!(row[0], 3.0 * *label as f64);
                seen.push(*label);
            }
        }
        seen.sort_unstable();
        Ok(seen)
    });
    assert_eq!(told.unwrap(), vec![(0..10).collect::<Vec<i64>>(); 2]);
}

#[test]
fn a_file_of_other_names_is_told_from_a_damaged_one() {
    let path = scratch("other-names.safetensors");
    let told = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let layer = || Linear::new(&mesh, 2, 2);
        let own = [layer()?, layer()?, layer()?].parameters();
        let renamed = own
            .iter()
            .map(|(name, p)| (format!("module.{name}"), p.clone()));
        checkpoint::save(&path, &renamed.collect::<Vec<_>>())?;
        let error = checkpoint::load(&path, &own).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Agreed);
        Ok(error.to_string())
    });
    std::fs::remove_file(&path).ok();
    for text in told.unwrap() {
        let says = [
            "no tensor \"0.weight\", \"0.bias\"",
            "and 2 more",
            "\"module.0.bias\"",
            "read_all",
            "load_state_with",
        ];
        for says in says {
            assert!(text.contains(says), "{text} does not say {says}");
        }
    }
}

/// An archive of one array, with this checksum.
#[cfg(feature = "npz")]
fn archive(bytes: &[u8], packed: bool, crc: u32) -> Vec<u8> {
    use std::io::Write;
    let (mut content, mut method) = (bytes.to_vec(), 0_u16);
    if packed {
        let mut to = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(bytes).unwrap();
        (content, method) = (to.finish().unwrap(), 8);
    }
    let name = b"a.npy";
    let mut about = vec![20, 0, 0, 0];
    about.extend(method.to_le_bytes());
    about.extend([0; 4]);
    for number in [
        crc,
        content.len() as u32,
        bytes.len() as u32,
        name.len() as u32,
    ] {
        about.extend(number.to_le_bytes());
    }
    let mut out = [b"PK\x03\x04", &about[..], name].concat();
    out.extend(&content);
    let list = out.len() as u32;
    out.extend([b"PK\x01\x02\x14\0", &about[..], &[0; 14], name].concat());
    let size = out.len() as u32 - list;
    out.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    out.extend([size.to_le_bytes(), list.to_le_bytes()].concat());
    out.extend([0, 0]);
    out
}

#[cfg(feature = "npz")]
#[test]
fn damaged_archives_are_not_loaded() {
    use shard_tensor::data::{load_npz, npy_bytes};
    let path = scratch("damaged.npz");
    // Longer than what is read of it to see what it is, and in one case not.
    for rows in [3, 9000] {
        let array = ndarray::Array2::from_shape_fn((rows, 2), |(i, j)| (i + j) as f32);
        let bytes = npy_bytes(&array).unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(&bytes);
        let mut broken = bytes.clone();
        *broken.last_mut().unwrap() ^= 1;
        for (packed, bytes, fine) in [
            (false, &bytes, true),
            (true, &bytes, true),
            (false, &broken, false),
            (true, &broken, false),
        ] {
            std::fs::write(&path, archive(bytes, packed, crc.sum())).unwrap();
            let told = launch(2, |ctx| {
                let mesh = ctx.mesh_of(2)?;
                let load = |at: Placements| match load_npz(&path, "a", &mesh, at) {
                    Ok(x) => x.to_array::<f32>().map(Ok),
                    Err(e) => Ok(Err((e.class(), e.to_string()))),
                };
                Ok([load(replicate().into())?, load(shard(0).into())?])
            });
            for [whole, pieces] in told.unwrap() {
                if fine {
                    assert_eq!(whole.as_ref(), Ok(&array.clone().into_dyn()));
                    assert_eq!(whole, pieces);
                    continue;
                }
                let (class, text) = whole.unwrap_err();
                assert_eq!(class, ErrorClass::Agreed);
                assert!(text.contains("CRC-32"), "{text}");
                // No rank sees all of what is long and stored as it is, if each has a piece.
                assert_eq!(pieces.is_ok(), rows > 3 && !packed);
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

//! Optimizers against numbers computed by hand, and files.

use shard_tensor::nn::{Linear, ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer, Sgd};
use shard_tensor::{
    DType, DeviceKind, ErrorClass, Launch, Placements, Result, ShardTensor, checkpoint, replicate,
    shard,
};

pub(crate) fn read(t: &ShardTensor) -> Result<Vec<f64>> {
    Ok(t.to_array::<f64>()?.into_raw_vec_and_offset().0)
}

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

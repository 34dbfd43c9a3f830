//! Ranks write and read the boxes they have, and no more.

use crate::{moves, piece_bytes, scratch};
use shard_tensor::{
    Context, DType, ErrorClass, Launch, Placements, Result, checkpoint, replicate, shard,
};
use std::path::Path;

fn layouts() -> Vec<(usize, &'static [usize], Placements)> {
    vec![
        (4, &[2, 2], [shard(0).sizes([150, 250]), shard(1)].into()),
        (4, &[2, 2], [shard(1), replicate()].into()),
        (3, &[3], [shard(1).sizes([1, 0, 299])].into()),
        (3, &[3], [shard(0).zigzag()].into()),
        (2, &[2], [replicate()].into()),
        (1, &[1], [replicate()].into()),
    ]
}

#[test]
fn ranks_write_and_read_their_pieces_under_any_layout() {
    const LITTLE: u64 = 4096;
    let path = scratch("pieces.safetensors");
    let mut first = None;
    for (ranks, mesh, placements) in layouts() {
        let told = Launch::new(ranks).run(|ctx| {
            let mesh = ctx.mesh_of(mesh)?;
            let x = mesh.randn([400, 300], placements.clone())?;
            let live = ctx.ledger().memory().live;
            ctx.device().reset_peak();
            let before = ctx.ledger().snapshot();
            let named = [("x".to_owned(), x.clone())];
            let ((), [_, written]) = moves(|| checkpoint::save(&path, &named))?;
            // Nothing is gathered, and no piece is there twice.
            assert!(ctx.ledger().since(&before).bytes < LITTLE);
            assert!(ctx.ledger().memory().peak < live + LITTLE as usize);
            assert!(written <= piece_bytes(&x) + LITTLE, "{written}");
            let file = std::fs::read(&path).map_err(shard_tensor::Error::from)?;
            Ok((written, file, x.to_array::<f32>()?))
        });
        let told = told.unwrap();
        // Replicas are written once.
        let written: u64 = told.iter().map(|t| t.0).sum();
        assert!(written <= 480_000 + ranks as u64 * LITTLE, "{written}");
        // The file does not say who wrote it.
        let (_, file, x) = &told[0];
        let (bytes, whole) = first.get_or_insert_with(|| (file.clone(), x.clone()));
        assert!(bytes == file && whole == x, "{ranks} {placements:?}");
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap());
        for (ranks, mesh, placements) in layouts() {
            let read = Launch::new(ranks).run(|ctx| {
                let mesh = ctx.mesh_of(mesh)?;
                let (x, [read, _]) =
                    moves(|| checkpoint::read(&path, "x", &mesh, placements.clone()))?;
                assert!(
                    read <= header + piece_bytes(&x) * 11 / 10 + LITTLE,
                    "{read}"
                );
                x.to_array::<f32>()
            });
            assert!(read.unwrap().iter().all(|read| read == whole));
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn terms_of_sums_and_small_meshes_and_other_devices_are_saved() {
    let path = scratch("terms.safetensors");
    for device in [
        shard_tensor::DeviceKind::Host,
        shard_tensor::DeviceKind::Test,
    ] {
        let sums = Launch::new(3).device(device).run(|ctx| {
            let all = ctx.mesh_of(3)?;
            let last = ctx.mesh_from(&shard_tensor::DeviceMesh::with_ranks(&[2], vec![2, 1])?)?;
            let terms = all
                .arange(6, shard(0))?
                .mul(&all.ones([5, 6], [shard(1)])?)?
                .sum([1], false)?;
            assert!(terms.layout().is_partial());
            let few = last.with_dtype(DType::I64).arange(5, shard(0))?;
            checkpoint::save(&path, &[("terms".into(), terms), ("few".into(), few)])?;
            let terms = checkpoint::read(&path, "terms", &last, shard(0))?.sum_all()?;
            let few = checkpoint::read(&path, "few", &all, shard(0))?;
            let refused = checkpoint::read(
                &path,
                "few",
                &all,
                shard_tensor::partial(shard_tensor::ReduceOp::Sum),
            )
            .unwrap_err();
            assert_eq!(refused.class(), ErrorClass::Uniform);
            let terms = terms.to_mesh(&all, replicate())?;
            Ok((terms.item()?, few.sum_all()?.item()?))
        });
        assert_eq!(sums.unwrap(), [(75.0, 10.0); 3]);
    }
    std::fs::remove_file(&path).unwrap();
}

/// Two files and an index, as Hugging Face writes them.
fn write_index(folder: &Path, ctx: &Context) -> Result<()> {
    let mesh = ctx.mesh_of(2)?;
    let part = |n| folder.join(format!("model-0000{n}-of-00002.safetensors"));
    checkpoint::save(
        part(1),
        &[(
            "a.weight".into(),
            mesh.arange(12, shard(0))?.reshape([4, 3])?,
        )],
    )?;
    let b = mesh.with_dtype(DType::U8).full([5], 7.0, shard(0))?;
    checkpoint::save(
        part(2),
        &[
            ("b".into(), b),
            ("unlisted".into(), mesh.ones([1], replicate())?),
        ],
    )?;
    let index = r#"{"metadata": {"total_size": 53}, "weight_map": {
        "a.weight": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    std::fs::write(folder.join("model.safetensors.index.json"), index)?;
    Ok(())
}

#[test]
fn files_of_an_index_are_read_as_one() {
    let folder = scratch("index");
    std::fs::create_dir_all(&folder).unwrap();
    let told = Launch::new(2).run(|ctx| {
        write_index(&folder, ctx)?;
        let mesh = ctx.mesh_of(2)?;
        let listed = checkpoint::contents(ctx, &folder)?;
        let names: Vec<String> = listed
            .iter()
            .map(|c| format!("{} {:?} {:?}", c.name, c.dtype, c.shape))
            .collect();
        assert_eq!(names, ["a.weight Some(F32) [4, 3]", "b Some(U8) [5]"]);
        let a = mesh.zeros([4, 3], shard(1))?.requires_grad()?;
        checkpoint::load(
            folder.join("model.safetensors.index.json"),
            &[("a.weight".into(), a.clone())],
        )?;
        let b = checkpoint::read(&folder, "b", &mesh, shard(0))?;
        Ok((a.sum_all()?.item()?, b.sum_all()?.item()?))
    });
    assert_eq!(told.unwrap(), [(66.0, 35.0); 2]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_save_that_is_not_waited_for_leaves_the_old_file_and_nothing_else() {
    let folder = scratch("dropped");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("x.safetensors");
    let kept = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let mut x = mesh.ones([1000], shard(0))?;
        checkpoint::Checkpoint::new().model(&mut x).save(&path)?;
        x = &x * 2.0;
        drop(
            checkpoint::Checkpoint::new()
                .model(&mut x)
                .start_save(&path)?,
        );
        checkpoint::read(&path, "model", &mesh, shard(0))?
            .sum_all()?
            .item()
    });
    assert_eq!(kept.unwrap(), [1000.0; 2]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

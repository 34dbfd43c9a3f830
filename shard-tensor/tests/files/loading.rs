//! Batches of samples.

use crate::{moves, scratch};
use ndarray::Array3;
use shard_tensor::checkpoint::Checkpoint;
use shard_tensor::data::{DataError, DimPart, Loader, Npy, Source, npy_bytes};
use shard_tensor::{Context, DType, ErrorClass, Launch, Mesh, Placements, Result, shard};

const SAMPLES: usize = 11;

fn fields() -> Array3<f32> {
    Array3::from_shape_fn((SAMPLES, 4, 3), |(i, j, k)| (100 * i + 10 * j + k) as f32)
}

fn memory(array: &Array3<f32>) -> Result<Npy, DataError> {
    Npy::from_bytes(npy_bytes(array).map_err(DataError::other)?)
}

/// Fields whose rows are divided too, and the number of each.
fn loader(mesh: &Mesh, batch: usize) -> Result<Loader> {
    let fields_at: Placements = match mesh.mesh().ndim() {
        1 => [shard(0)].into(),
        _ => [shard(0), shard(1)].into(),
    };
    let numbers = || memory(&Array3::from_shape_fn((SAMPLES, 1, 1), |(i, ..)| i as f32));
    let labels_at: Placements = match mesh.mesh().ndim() {
        1 => [shard(0)].into(),
        _ => [shard(0), shard_tensor::replicate()].into(),
    };
    Loader::new(mesh, batch)?
        .source(fields_at, || memory(&fields()))?
        .source(labels_at, numbers)
}

/// The samples of the batches that are left of this epoch, which are seen to be whole.
fn samples(loader: &mut Loader) -> Result<Vec<Vec<usize>>> {
    let mut all = Vec::new();
    for batch in loader.epoch()? {
        let batch = batch?;
        let (x, numbers) = (batch[0].to_array::<f32>()?, batch[1].to_array::<f32>()?);
        let numbers: Vec<usize> = numbers.iter().map(|n| *n as usize).collect();
        for (x, &n) in x.outer_iter().zip(&numbers) {
            assert_eq!(x, fields().index_axis(ndarray::Axis(0), n).into_dyn());
        }
        all.push(numbers);
    }
    Ok(all)
}

fn on_ranks<T: Send + PartialEq + std::fmt::Debug>(
    mesh: &'static [usize],
    f: impl Fn(&Context, &Mesh) -> Result<T> + Sync,
) -> T {
    let ranks = mesh.iter().product();
    let mut told = Launch::new(ranks)
        .seed(3)
        .run(|ctx| f(ctx, &ctx.mesh_of(mesh)?))
        .unwrap();
    assert!(told.iter().all(|t| *t == told[0]));
    told.swap_remove(0)
}

#[test]
fn batches_are_the_same_on_any_ranks() {
    let meshes: [&'static [usize]; 4] = [&[1], &[3], &[2, 2], &[5]];
    let mut first = None;
    for mesh in meshes {
        for ahead in [0, 1, 3] {
            let epochs = on_ranks(mesh, |_, mesh| {
                let plain = samples(&mut loader(mesh, 4)?)?;
                assert_eq!(plain, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9, 10]]);
                let mut loader = loader(mesh, 4)?.shuffle(true).prefetch(ahead);
                let two = (samples(&mut loader)?, samples(&mut loader)?);
                assert_eq!(loader.epochs(), 2);
                Ok(two)
            });
            let mut numbers = epochs.0.concat();
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..SAMPLES));
            assert_ne!(epochs.0, epochs.1);
            assert_eq!(*first.get_or_insert_with(|| epochs.clone()), epochs);
        }
    }
}

/// Batches are as large on all ranks, so only the samples in them are others.
#[test]
fn ranks_with_other_samples_are_told() {
    let texts = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let odd = ctx.rank() == 1;
        let others = [
            loader(&mesh, 4)?.shuffle(odd),
            loader(&mesh, 4)?.samples(usize::from(odd)..8),
            // Of more samples, all are in another order.
            loader(&mesh, 4)?
                .shuffle(true)
                .samples(0..8 + usize::from(odd)),
            loader(&mesh, 4)?.samples_of(vec![0, 1, 2, 3 + usize::from(odd)]),
            loader(&mesh, 4)?.weights(vec![1.0 + f64::from(u8::from(odd)); SAMPLES], 4),
        ];
        Ok(others.map(|mut loader| {
            let sum = loader.next_batch().and_then(|x| x[0].sum_all()?.item());
            sum.unwrap_err().to_string()
        }))
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
    for text in &texts[0] {
        assert!(text.contains("(Loader of f32 [4, 4, 3] S(0))"), "{text}");
    }
}

#[test]
fn samples_of_a_list_come_in_its_order_or_in_any() {
    let meshes: [&'static [usize]; 3] = [&[1], &[3], &[2, 2]];
    let mut first = None;
    for mesh in meshes {
        let seen = on_ranks(mesh, |_, mesh| {
            let plain = samples(&mut loader(mesh, 2)?.samples_of([9, 0, 9]))?;
            assert_eq!(plain, [vec![9, 0], vec![9]]);
            assert!(samples(&mut loader(mesh, 2)?.samples_of([]))?.is_empty());
            let list = [10, 3, 4, 8, 1];
            let mut loader = loader(mesh, 2)?.samples_of(list).shuffle(true);
            let two = [
                samples(&mut loader)?.concat(),
                samples(&mut loader)?.concat(),
            ];
            for epoch in &two {
                let mut sorted = epoch.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, [1, 3, 4, 8, 10]);
            }
            Ok(two)
        });
        assert_ne!(seen[0], seen[1]);
        assert_eq!(*first.get_or_insert_with(|| seen.clone()), seen);
    }
}

#[test]
fn samples_are_drawn_by_weights() {
    let meshes: [&'static [usize]; 2] = [&[1], &[3]];
    let mut first = None;
    for mesh in meshes {
        let seen = on_ranks(mesh, |_, mesh| {
            // Of the last four samples, the first and the last never.
            let mut loader =
                (loader(mesh, 200)?.samples(7..SAMPLES)).weights([0.0, 1.0, 3.0, 0.0], 800);
            let two = [
                samples(&mut loader)?.concat(),
                samples(&mut loader)?.concat(),
            ];
            assert_eq!(two.each_ref().map(Vec::len), [800; 2]);
            Ok(two)
        });
        assert_ne!(seen[0], seen[1]);
        let often = |n: usize| seen.concat().iter().filter(|&&i| i == n).count() as f64 / 1600.0;
        assert!((often(8) - 0.25).abs() < 0.04 && (often(9) - 0.75).abs() < 0.04);
        assert_eq!(*first.get_or_insert_with(|| seen.clone()), seen);
    }
    on_ranks(&[2], |_, mesh| {
        let wrong = [
            loader(mesh, 2)?.samples_of([0, SAMPLES]),
            loader(mesh, 2)?.weights([1.0; 3], 4),
            loader(mesh, 2)?.weights([0.0; SAMPLES], 4),
            loader(mesh, 2)?.weights([-1.0; SAMPLES], 4),
            loader(mesh, 2)?.weights([f64::NAN; SAMPLES], 4),
            loader(mesh, 2)?.weights([f64::MAX; SAMPLES], 4),
            loader(mesh, 2)?
                .samples_of([1, 2])
                .weights([1.0; SAMPLES], 4),
            loader(mesh, 2)?.weights([1.0; SAMPLES], usize::MAX),
        ];
        for (i, mut loader) in wrong.into_iter().enumerate() {
            let error = loader
                .epoch()
                .err()
                .unwrap_or_else(|| panic!("number {i} fits"));
            assert_ne!(error.class(), ErrorClass::Failure, "{error}");
        }
        // None are drawn of none.
        assert!(samples(&mut loader(mesh, 2)?.weights([0.0; SAMPLES], 0))?.is_empty());
        Ok(())
    });
}

#[test]
fn samples_that_are_left_may_be_left_out() {
    let seen = on_ranks(&[2], |_, mesh| {
        samples(&mut loader(mesh, 4)?.drop_last(true))
    });
    assert_eq!(seen.len(), 2);
    let none = on_ranks(&[2], |_, mesh| {
        samples(&mut loader(mesh, 12)?.drop_last(true))
    });
    assert!(none.is_empty());
}

#[test]
fn a_loader_goes_on_where_it_was_put_down() {
    let path = scratch("loader.safetensors");
    let rest = on_ranks(&[4], |ctx, mesh| {
        let mut loader = loader(mesh, 3)?.shuffle(true).prefetch(2);
        samples(&mut loader)?;
        loader.epoch()?.next().transpose()?;
        // What was read ahead was not given out.
        Checkpoint::new().data(&mut loader).rng(ctx).save(&path)?;
        Ok([samples(&mut loader)?, samples(&mut loader)?])
    });
    assert_eq!(rest[0].len(), 3);
    let again = on_ranks(&[1, 3], |ctx, mesh| {
        mesh.rand([1], Placements::replicated())?;
        let mut loader = loader(mesh, 3)?.shuffle(true);
        loader.epoch()?.next().transpose()?;
        Checkpoint::new().data(&mut loader).rng(ctx).load(&path)?;
        Ok([samples(&mut loader)?, samples(&mut loader)?])
    });
    assert_eq!(again, rest);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ranks_read_the_boxes_they_have_of_the_samples_they_have() {
    const LITTLE: u64 = 4096;
    let path = scratch("samples.npy");
    std::fs::write(
        &path,
        npy_bytes(&Array3::<f32>::ones((8, 100, 50))).unwrap(),
    )
    .unwrap();
    on_ranks(&[2, 2], |_, mesh| {
        let mut loader = Loader::new(mesh, 4)?
            .source([shard(0), shard(1)], || Npy::open(&path))?
            .shuffle(true)
            .prefetch(0);
        let (sizes, [read, _]) = moves(|| {
            loader
                .epoch()?
                .map(|batch| batch.map(|b| b[0].local_shape().to_vec()))
                .collect::<Result<Vec<_>>>()
        })?;
        assert_eq!(sizes, [[2, 50, 50]; 2]);
        assert!(read <= 2 * 2 * 50 * 50 * 4 + LITTLE, "{read}");
        Ok(())
    });
    std::fs::remove_file(&path).unwrap();
}

/// Cannot be read from this sample on, on one rank.
struct Broken {
    here: bool,
    panics: bool,
}

impl Source for Broken {
    fn dtype(&self) -> DType {
        DType::U8
    }

    fn shape(&self) -> &[usize] {
        &[6]
    }

    fn read(&self, held: &[DimPart], _: &mut [u8]) -> Result<(), DataError> {
        match self.here && held[0].index(0) >= 3 {
            true if self.panics => panic!("a source of its own"),
            true => Err(DataError::other("the disk is gone")),
            false => Ok(()),
        }
    }
}

#[test]
fn what_one_rank_cannot_read_is_told_to_all_at_that_batch() {
    for (panics, ahead) in [(false, 0), (false, 2), (true, 2)] {
        let told = on_ranks(&[2], |ctx, mesh| {
            let here = ctx.rank() == 1;
            let mut loader = Loader::new(mesh, 2)?
                .source(shard(0), || Ok(Broken { here, panics }))?
                .prefetch(ahead);
            let mut batches = loader.epoch()?;
            batches.next().transpose()?;
            let error = batches.next().transpose().unwrap_err();
            assert_eq!(error.class(), ErrorClass::Agreed);
            assert!(batches.next().is_none());
            // The group goes on; the loader tries again.
            assert!(loader.epoch()?.next().transpose().is_err());
            assert_eq!(mesh.ones([2], shard(0))?.sum_all()?.item()?, 2.0);
            Ok(error.to_string())
        });
        let hint = if panics {
            "ended early"
        } else {
            "the disk is gone"
        };
        assert!(told.contains("rank 1") && told.contains(hint), "{told}");
    }
}

#[test]
fn sources_must_lie_side_by_side_and_be_alike() {
    let texts = on_ranks(&[2], |ctx, mesh| {
        let source = |n: usize| memory(&Array3::zeros((n, 1, 1)));
        let none = Loader::new(mesh, 0).unwrap_err();
        let uneven = Loader::new(mesh, 2)?
            .source(shard(0), || source(3))?
            .source(shard(0), || source(4))
            .unwrap_err();
        let differs = Loader::new(mesh, 2)?
            .source(shard(0), || source(3 + ctx.rank()))
            .unwrap_err();
        assert_eq!([none.class(), uneven.class()], [ErrorClass::Uniform; 2]);
        Ok([none, uneven, differs].map(|e| e.to_string()))
    });
    assert!(texts[1].contains("4 samples after 3"), "{texts:?}");
}

#[test]
fn some_of_the_samples_can_be_chosen() {
    let chosen = on_ranks(&[2], |_, mesh| samples(&mut loader(mesh, 2)?.samples(3..8)));
    assert_eq!(chosen, [vec![3, 4], vec![5, 6], vec![7]]);
    let mixed = on_ranks(&[2, 2], |_, mesh| {
        samples(&mut loader(mesh, 2)?.shuffle(true).samples(3..8))
    });
    let mut mixed = mixed.concat();
    mixed.sort_unstable();
    assert_eq!(mixed, [3, 4, 5, 6, 7]);
    let beyond = on_ranks(&[2], |_, mesh| {
        let refused = loader(mesh, 2)?.samples(3..SAMPLES + 1).epoch().err();
        Ok(refused.map(|e| e.to_string()))
    });
    assert!(beyond.is_some_and(|e| e.contains("samples that there are")));
}

#[test]
fn batches_go_on_after_the_end_of_an_epoch() {
    let seen = on_ranks(&[2], |_, mesh| {
        let mut loader = loader(mesh, 2)?.samples(0..3);
        let mut sizes = Vec::new();
        for _ in 0..5 {
            sizes.push(loader.next_batch()?[0].shape()[0]);
        }
        assert_eq!(loader.epochs(), 2);
        let none = loader.samples(0..1).drop_last(true).next_batch();
        Ok((sizes, none.err().map(|e| e.to_string())))
    });
    assert_eq!(seen.0, [2, 1, 2, 1, 2]);
    assert!(seen.1.is_some_and(|e| e.contains("a batch in every epoch")));
}

/// As many samples as no file has: each is its number.
struct Numbers;

impl Source for Numbers {
    fn dtype(&self) -> DType {
        DType::I64
    }

    fn shape(&self) -> &[usize] {
        &[1 << 45]
    }

    fn read(&self, held: &[DimPart], into: &mut [u8]) -> Result<(), DataError> {
        for (i, room) in held[0].indices().zip(into.chunks_exact_mut(8)) {
            room.copy_from_slice(&(i as i64).to_ne_bytes());
        }
        Ok(())
    }
}

/// What a loader keeps does not grow with the batches that there are, and what it has no memory for is an error of all.
#[test]
fn more_samples_than_memory_has_are_read_a_batch_at_a_time() {
    on_ranks(&[2], |_, mesh| {
        let loader = |batch| Loader::new(mesh, batch)?.source(shard(0), || Ok(Numbers));
        for ahead in [0, 2, usize::MAX] {
            let mut few = loader(3)?.prefetch(ahead);
            for sum in [3.0, 12.0, 21.0, 30.0] {
                assert_eq!(few.next_batch()?[0].sum_all()?.item()?, sum);
            }
        }
        for mut beyond in [loader(3)?.shuffle(true), loader(1 << 44)?] {
            let error = beyond.next_batch().unwrap_err();
            assert_eq!(error.class(), ErrorClass::Agreed);
            assert!(error.to_string().contains("no memory for"), "{error}");
        }
        mesh.ones([2], shard(0))?.sum_all()?.item()
    });
}

//! Random tensors do not depend on layout or rank count.

use shard_tensor::{DType, Launch, Mesh, Placements, Result, ShardTensor, replicate, shard};

fn drawn(ranks: usize, mesh: &[usize], dtype: DType, placements: &Placements) -> [Vec<f64>; 3] {
    let draw = |f: &dyn Fn(&Mesh) -> Result<ShardTensor>, mesh: &Mesh| -> Result<Vec<f64>> {
        Ok(f(mesh)?
            .to(DType::F64)?
            .to_array::<f64>()?
            .into_raw_vec_and_offset()
            .0)
    };
    let all = Launch::new(ranks).seed(11).dtype(dtype).run(|ctx| {
        let mesh = ctx.mesh_of(mesh)?;
        Ok([
            draw(&|m| m.rand([7, 5], placements), &mesh)?,
            draw(&|m| m.randn([7, 5], placements), &mesh)?,
            draw(&|m| m.uniform([7, 5], -3.0..4.0, placements), &mesh)?,
        ])
    });
    let mut all = all.unwrap();
    assert!(all.iter().all(|a| a == &all[0]));
    all.swap_remove(0)
}

#[test]
fn the_same_numbers_under_any_layout_and_rank_count() {
    for dtype in [DType::F32, DType::F64] {
        let alone = drawn(1, &[1], dtype, &[replicate()].into());
        assert!(
            alone[0].iter().all(|x| (0.0..1.0).contains(x)) && alone[2].iter().any(|x| *x < 0.0)
        );
        assert_ne!(alone[0], alone[1]);
        let others: [(usize, &[usize], Placements); 6] = [
            (2, &[2], [shard(0)].into()),
            (3, &[3], [shard(1).sizes([0, 5, 0])].into()),
            (4, &[2, 2], [shard(0), shard(1)].into()),
            (4, &[2, 2], [shard(1), replicate()].into()),
            (8, &[8], [shard(0)].into()),
            (6, &[2, 3], [shard(0), shard(0)].into()),
        ];
        for (ranks, mesh, placements) in others {
            assert_eq!(
                drawn(ranks, mesh, dtype, &placements),
                alone,
                "{placements:?}"
            );
        }
    }
}

#[test]
fn seeds_and_calls_matter() {
    let first = |seed| {
        let draws = Launch::new(1).seed(seed).run(|ctx| {
            let mesh = ctx.mesh_of(1)?;
            let draw = || mesh.rand(4, [replicate()])?.to_array::<f32>();
            Ok([draw()?, draw()?])
        });
        draws.unwrap().swap_remove(0)
    };
    let (one, two) = (first(1), first(2));
    assert_ne!(one[0], one[1]);
    assert_ne!(one[0], two[0]);
    assert_eq!(one, first(1));
}

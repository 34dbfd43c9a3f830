//! Graph networks on sharded nodes and edges: neighbours are found, their rows fetched, and messages added up where they belong.

use ndarray::{Array1, Array2, array};
use shard_tensor::nn::{Linear, ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::{
    Context, DType, DeviceMesh, ErrorClass, Launch, Placements, Result, ShardTensor, launch,
    replicate, shard,
};
use std::collections::HashSet;
use std::sync::Mutex;

const NODES: usize = 60;
const NEIGHBOURS: usize = 4;

/// Three layers of messages along the edges of a graph of nearest neighbours, trained for so many steps: losses, and bytes received
/// by each step.
fn train(ctx: &Context, nodes: &Placements, steps: usize) -> Result<(Vec<f64>, Vec<u64>)> {
    let mesh = ctx.mesh_of(ctx.world_size())?;
    let at = |i: &[usize]| ((37 * i[0] + 11 * i[1] * i[0]) % 101) as f64 / 101.0;
    let points = mesh.from_fn([NODES, 2], nodes, at)?;
    let (_, near) = points.nearest(&points, NEIGHBOURS)?;
    // Row by row: the edges of a node lie with it, and its neighbours are the sources.
    let source = near.reshape([NODES * NEIGHBOURS])?;
    let targets: Array1<i64> = (0..NODES * NEIGHBOURS)
        .map(|e| (e / NEIGHBOURS) as i64)
        .collect();
    let target = mesh.distribute(&targets, [shard(0)])?;
    let encode = Linear::new(&mesh, 2, 8)?;
    let layers = (0..3).map(|_| Linear::new(&mesh, 8, 8));
    let layers: Vec<Linear> = layers.collect::<Result<_>>()?;
    let head = Linear::new(&mesh, 8, 1)?;
    let parameters = [encode.parameters(), layers.parameters(), head.parameters()].concat();
    let mut adam = AdamW::new(parameters, 0.01)?;
    let wanted = mesh.from_fn([NODES, 1], nodes, |i| at(&[i[0], 0]) - at(&[i[0], 1]))?;
    let (mut losses, mut bytes) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let before = ctx.ledger().snapshot();
        let mut h: ShardTensor = encode.forward(&points)?.tanh()?;
        for layer in &layers {
            let message = layer.forward(&h.index_select(0, &source)?)?.tanh()?;
            let sums = h.index_add(0, &target, &message)?;
            h = (&sums * 0.3).tanh()?;
        }
        let loss = head.forward(&h)?.mse_loss(&wanted)?;
        losses.push(loss.item()?);
        adam.step(&loss.backward()?)?;
        bytes.push(ctx.ledger().since(&before).bytes);
    }
    Ok((losses, bytes))
}

#[test]
fn a_graph_network_trains_as_on_one_rank() {
    let run = |ranks: usize, nodes: Placements| {
        let trained = Launch::new(ranks)
            .dtype(DType::F64)
            .run(|ctx| train(ctx, &nodes, 20));
        trained.unwrap()
    };
    let one = run(1, [shard(0)].into());
    let uneven = run(4, [shard(0).sizes([23, 0, 30, 7])].into());
    assert!(one[0].0[19] < 0.5 * one[0].0[0], "{:?}", one[0].0);
    for (losses, bytes) in &uneven {
        for (got, expected) in losses.iter().zip(&one[0].0) {
            assert!(
                (got - expected).abs() <= 1e-10 * expected,
                "{got} {expected}"
            );
        }
        // The first step asks for rows, the others know whom to ask.
        assert!(bytes[1..].iter().all(|b| *b == bytes[1]), "{bytes:?}");
        assert!(bytes[0] > bytes[1], "{bytes:?}");
    }
}

#[test]
fn segments_are_one_ranks() {
    let run = |ranks: usize| {
        let made = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let value = |i: &[usize]| ((31 * i[0] + 7 * i[1]) % 13) as f64 - 6.0;
            let x = mesh.from_fn([29, 3], [shard(0)], value)?.requires_grad()?;
            let ids: Array1<i64> = (0..29).map(|i| (i * i % 11) as i64).collect();
            let ids = mesh.distribute(&ids, [shard(0)])?;
            let mut all = Vec::new();
            for made in [
                x.segment_sum(&ids, 12)?,
                x.segment_mean(&ids, 12)?,
                x.segment_softmax(&ids, 12)?,
                x.segment_max(&ids, 11)?.map_finite()?,
                x.segment_min(&ids, 11)?.map_finite()?,
            ] {
                let weights =
                    mesh.from_fn(made.shape(), [shard(0)], |i| (i[0] + 2 * i[1]) as f64)?;
                let grads = (&made * &weights).sum_all()?.backward()?;
                all.push(made.to_array::<f64>()?);
                all.push(grads.get(&x)?.unwrap().to_array::<f64>()?);
            }
            Ok(all)
        });
        made.unwrap().remove(0)
    };
    let one = run(1);
    for ranks in [2, 5] {
        for (got, expected) in run(ranks).iter().zip(&one) {
            assert_eq!(got.shape(), expected.shape());
            assert!(
                got.iter()
                    .zip(expected)
                    .all(|(g, e)| (g - e).abs() <= 1e-12)
            );
        }
    }
    // By hand: segment 0 has rows 0, 11 and 22.
    let of = |row: usize| ((31 * row) % 13) as f64 - 6.0;
    assert_eq!(one[0][[0, 0]], of(0) + of(11) + of(22));
    assert_eq!((one[0][[2, 0]], one[2][[2, 0]]), (0.0, 0.0));
    assert_eq!(one[6][[0, 0]], of(0).max(of(11)).max(of(22)));
    let shares = one[4][[0, 0]] + one[4][[11, 0]] + one[4][[22, 0]];
    assert!((shares - 1.0).abs() < 1e-14);
}

/// The part of each node of a graph of rings: three of them, of uneven sizes, and every other node is of the first.
fn part(node: usize) -> i64 {
    [0, 2, 0, 1, 0, 2, 0, 2, 0, 3][node % 10]
}

/// Sources and targets: a ring, chords, an edge twice over, a node to itself; every seventh node has no edge.
fn edges(nodes: usize) -> (Array1<i64>, Array1<i64>) {
    let linked = |n: &usize| !n.is_multiple_of(7);
    let some: Vec<usize> = (0..nodes).filter(linked).collect();
    let next = |k: usize, by: usize| some[(k + by) % some.len()] as i64;
    let pairs = (0..some.len()).flat_map(|k| {
        let here = some[k] as i64;
        [
            (next(k, 1), here),
            (next(k, 5), here),
            (here, next(k, 2)),
            (next(k, 1), here),
        ]
    });
    unzipped(pairs.chain([(1, 1)]).unzip())
}

fn unzipped(pairs: (Vec<i64>, Vec<i64>)) -> (Array1<i64>, Array1<i64>) {
    (pairs.0.into(), pairs.1.into())
}

#[test]
fn a_graph_divided_by_given_parts_gives_what_one_rank_does() {
    const SIZE: usize = 40;
    const WIDTH: usize = 3;
    let feature = |i: &[usize]| ((13 * i[0] + 5 * i[1]) % 17) as f64 - 8.0;
    let (source, target) = edges(SIZE);
    let mut expected = Array2::from_shape_fn((SIZE, WIDTH), |(i, j)| feature(&[i, j]));
    for (&s, &t) in source.iter().zip(&target) {
        for j in 0..WIDTH {
            expected[[t as usize, j]] += feature(&[s as usize, j]);
        }
    }
    let parts: Array1<i64> = (0..SIZE).map(part).collect();
    // What each rank has to ask for.
    let remote = |rank: i64| -> usize {
        let edges = source.iter().zip(&target);
        let there = edges.filter(|&(&s, &t)| part(t as usize) == rank && part(s as usize) != rank);
        there.map(|(s, _)| *s).collect::<HashSet<i64>>().len()
    };
    let found = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.from_fn([SIZE, WIDTH], [shard(0)], feature)?;
        let [parts, source, target] =
            [&parts, &source, &target].map(|list| mesh.distribute(list, [shard(0)]));
        let (parts, source, target) = (parts?, source?, target?);

        let sizes = |parts: &ShardTensor| -> Result<Placements> {
            let sizes = parts.bincount(None, 4)?.to_array::<i64>()?;
            let sizes: Vec<usize> = sizes.iter().map(|&n| n as usize).collect();
            Ok([shard(0).sizes(sizes)].into())
        };
        let order = parts.argsort(0, false)?; // nodes of a part stand together
        let number = order.argsort(0, false)?; // what a node is called now
        let of_edge = parts.index_select(0, &target)?;
        let edges = of_edge.argsort(0, false)?;
        let (nodes, with_targets) = (sizes(&parts)?, sizes(&of_edge)?);
        let x = x.index_select(0, &order)?.redistribute(&nodes)?;
        let ends = [&source, &target].map(|end| {
            let end = number.index_select(0, &end.index_select(0, &edges)?)?;
            end.redistribute(&with_targets)
        });
        let [source, target] = ends;
        let (source, target) = (source?, target?);

        let mut moved = Vec::new();
        let mut heard = x.clone();
        for _ in 0..2 {
            let before = ctx.ledger().snapshot();
            heard = x.index_add(0, &target, &x.index_select(0, &source)?)?;
            moved.push(ctx.ledger().since(&before));
        }
        Ok((
            heard.index_select(0, &number)?.to_array::<f64>()?,
            x.local_shape()[0],
            moved,
        ))
    });
    for (rank, (heard, nodes, moved)) in found.unwrap().into_iter().enumerate() {
        assert_eq!(heard, expected.clone().into_dyn());
        assert_eq!(nodes, (0..SIZE).filter(|&n| part(n) == rank as i64).count());
        let rows = (remote(rank as i64) * WIDTH * size_of::<f64>()) as u64;
        let of = |step: usize, name: &str| {
            let op = moved[step].ops.iter().find(|(op, _)| *op == name);
            op.map_or(0, |(_, count)| count.bytes)
        };
        // Rows of others come each once; who they are asked of is known the second time, and no message leaves its rank.
        for step in 0..2 {
            assert_eq!(of(step, "route rows"), rows, "rank {rank}");
            assert_eq!(of(step, "route home"), 0);
        }
        assert_eq!(moved[1].bytes, rows);
        assert!(moved[0].bytes > rows || of(0, "route requests") == 0);
    }
}

#[test]
fn an_index_out_of_range_on_a_mesh_of_some_leaves_the_others_in_step() {
    let found = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![2, 0])?)?;
        let x = mesh.ones([6, 2], [shard(0)])?;
        let index = mesh.distribute(&array![0_i64, 5, 6], [shard(0)])?;
        let error = x.index_select(0, &index).err();
        // All go on: those outside the mesh too.
        ctx.world().barrier()?;
        let fine = mesh.distribute(&array![0_i64, 5], [shard(0)])?;
        let rows = x.index_select(0, &fine)?.sum_all()?;
        if mesh.is_member() {
            assert_eq!(rows.item()?, 4.0);
        }
        Ok(error.map(|e| (e.class(), e.to_string())))
    });
    let found = found.unwrap();
    for member in [&found[0], &found[2]] {
        let (class, text) = member.as_ref().unwrap();
        assert_eq!(*class, ErrorClass::Agreed);
        assert!(text.contains("rank 0") && text.contains('6'), "{text}");
    }
    assert_eq!(found[1], None, "nobody asks a rank outside");
}

#[test]
fn members_that_end_with_an_index_out_of_range_end_those_outside_too() {
    let heard = Mutex::new(None);
    let ended = launch(3, |ctx| {
        let mesh = ctx.mesh_from(&DeviceMesh::with_ranks(&[2], vec![2, 0])?)?;
        let x = mesh.ones([6, 2], [shard(0)])?;
        let index = mesh.distribute(&array![0_i64, 5, 6], [shard(0)])?;
        let rows = x.index_select(0, &index)?;
        // To this rank the selection was nothing, and it waits for the others.
        assert_eq!((ctx.rank(), rows.shape()), (1, &[3, 2][..]));
        let error = ctx.world().barrier().unwrap_err();
        *heard.lock().unwrap() = Some(error.class());
        Err::<(), _>(error.into())
    });
    let cause = ended.unwrap_err();
    assert_eq!(cause.class(), ErrorClass::Agreed, "{cause}");
    assert!(cause.to_string().contains("index 6"), "{cause}");
    assert_eq!(heard.into_inner().unwrap(), Some(ErrorClass::Failure));
}

/// Segments without rows have infinities, which weights would make NaN of.
trait Finite: Sized {
    fn map_finite(self) -> Result<Self>;
}

impl Finite for ShardTensor {
    fn map_finite(self) -> Result<Self> {
        self.clamp(-1e3, 1e3)
    }
}

const GONE: f64 = f64::INFINITY;

/// Points of clouds 0, 2 and 3, queries of these and of one without points, under layouts of both; what SciPy's trees of each cloud give.
#[test]
fn neighbours_in_clouds_are_those_of_each() {
    let at = |step: f64, from: f64| {
        move |i: &[usize]| (step * (3 * i[0] + i[1]) as f64 + from).sin() * 0.5 + 0.5
    };
    let of_point =
        |i: &[usize]| [0, 2, 3][usize::from(i[0] >= 14) + usize::from(i[0] >= 16)] as f64;
    let of_query = |i: &[usize]| [3, 0, 1, 2, 0, 3, 3, 0][i[0]] as f64;
    let indices = array![
        [19_i64, 26, 28, 21],
        [8, 1, 6, 13],
        [-1, -1, -1, -1],
        [14, 15, -1, -1],
        [8, 1, 6, 13],
        [16, 23, 25, 18],
        [19, 26, 28, 21],
        [8, 1, 6, 13]
    ];
    let distances = array![
        [
            0.2215226053923644,
            0.2512850191591268,
            0.29396426614610754,
            0.3196690629248055
        ],
        [
            0.12453364029238544,
            0.14422578825160198,
            0.4644287817157258,
            0.49406299509304796
        ],
        [GONE, GONE, GONE, GONE],
        [0.3560832721455877, 1.0508394775449046, GONE, GONE],
        [
            0.12855309679291158,
            0.14911685352972637,
            0.4577204035949831,
            0.4874119710336793
        ],
        [
            0.21147858127514485,
            0.2376809968673115,
            0.2998106950971465,
            0.3306913740065962
        ],
        [
            0.19978560134471493,
            0.2289973859442693,
            0.3165227934270471,
            0.34205101091934087
        ],
        [
            0.13278069778160484,
            0.15413041965885454,
            0.4509260581855857,
            0.4806716336251684
        ]
    ];
    let layouts: [[Placements; 2]; 5] = [
        [shard(0).into(), shard(0).into()],
        [replicate().into(), [shard(0).sizes([1, 0, 29])].into()],
        [[shard(0).sizes([3, 5, 0])].into(), replicate().into()],
        [shard(1).into(), shard(1).into()],
        [[shard(0).striped()].into(), [shard(0).zigzag()].into()],
    ];
    for [of_queries, of_points] in &layouts {
        let done = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let queries = mesh
                .from_fn([8, 3], of_queries, at(0.7, 2.0))?
                .requires_grad()?;
            let points = mesh
                .from_fn([30, 3], of_points, at(0.9, 1.0))?
                .requires_grad()?;
            let own = mesh.from_fn([8], shard(0), of_query)?.to(DType::I64)?;
            let others = mesh.from_fn([30], shard(0), of_point)?.to(DType::I32)?;
            let clouds = [&own, &others];
            let (far, near) = queries.nearest_by_cloud(&points, 4, clouds)?;
            assert_eq!(near.to_array::<i64>()?, indices.clone().into_dyn());
            let far_whole = far.to_array::<f64>()?;
            let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() < 1e-14;
            assert!(far_whole.iter().zip(&distances).all(close), "{far_whole}");
            // Gradients are those of the distances written out.
            let gone = far.isinf()?;
            let rows = points
                .index_select(0, &near.flatten()?)?
                .reshape([8, 4, 3])?;
            let apart = (queries.unsqueeze(1)? - rows)
                .square()?
                .sum(2, false)?
                .sqrt()?;
            let weights = mesh.from_fn([8, 4], shard(0), |i| (4 * i[0] + i[1]) as f64)?;
            let mut found = Vec::new();
            for distances in [&far, &apart] {
                let weighted = distances.masked_fill(&gone, 0.0)? * &weights;
                let grads = weighted.sum_all()?.backward()?;
                for x in [&queries, &points] {
                    found.push(grads.get(x)?.unwrap().to_array::<f64>()?);
                }
            }
            for (searched, written) in [(0, 2), (1, 3)] {
                let apart = &found[searched] - &found[written];
                assert!(apart.iter().all(|apart| apart.abs() < 1e-11), "{apart}");
            }
            let within = queries.radius_search_by_cloud(&points, 0.5, clouds)?;
            assert_eq!(
                within.counts.to_array::<i64>()?.as_slice(),
                Some(&[4, 4, 0, 1, 4, 4, 4, 4][..])
            );
            let some = queries.radius_search_capped_by_cloud(&points, 0.5, 2, clouds)?;
            assert_eq!(
                some.counts.to_array::<i64>()?.as_slice(),
                Some(&[2, 2, 0, 1, 2, 2, 2, 2][..])
            );
            // Each cloud by itself: as if there were no others.
            let all = points
                .farthest_points_by_cloud(&others, 4, 5)?
                .to_array::<i64>()?;
            for (cloud, from, to) in [(0, 0, 14), (2, 14, 16), (3, 16, 30)] {
                let alone = points
                    .narrow(0, from..to)?
                    .farthest_points((to - from).min(5), 0)?;
                let alone = alone.to_array::<i64>()?;
                for (i, &sample) in alone.iter().enumerate() {
                    assert_eq!(all[[cloud, i]], sample + from as i64);
                }
            }
            assert_eq!((all[[1, 0]], all[[2, 1]], all[[2, 2]]), (-1, 15, -1));
            Ok(())
        });
        done.unwrap();
    }
}

#[test]
fn clouds_that_do_not_fit_are_errors_on_all_ranks() {
    let errors = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let points = mesh.randn([5, 2], [shard(0)])?;
        let ids = mesh.distribute(&array![0_i64, 1, 3, 1, 0], [shard(0)])?;
        let few = ids.narrow(0, 0..4)?;
        let refused = [
            points.nearest_by_cloud(&points, 1, [&ids, &few]).map(drop),
            points
                .nearest_by_cloud(&points, 1, [&points, &ids])
                .map(drop),
            points
                .radius_search_by_cloud(&points, 1.0, [&few, &ids])
                .map(drop),
            points.farthest_points_by_cloud(&few, 3, 1).map(drop),
            points.farthest_points_by_cloud(&ids, 4, 6).map(drop),
            points.farthest_points_by_cloud(&ids, 3, 1).map(drop),
        ];
        let texts = refused.map(|r| r.unwrap_err().to_string());
        // The group goes on, and more neighbours than there are points are not there.
        let (far, near) = points.nearest_by_cloud(&points, 9, [&ids, &ids])?;
        assert_eq!(far.shape(), [5, 9]);
        assert_eq!(near.to_array::<i64>()?[[2, 1]], -1);
        Ok(texts)
    });
    let errors = errors.unwrap();
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0][5].contains("index 3"), "{}", errors[0][5]);
}

#[test]
fn winners_of_segments_are_the_first_rows_that_have_them() {
    for (ranks, rows, ids) in [
        (1, shard(0), shard(0)),
        (3, shard(0), shard(0)),
        (3, shard(1), replicate()),
        (3, replicate(), shard(0)),
    ] {
        let done = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let nan = f64::NAN;
            let x = array![
                [1.0, 5.0],
                [4.0, 2.0],
                [4.0, nan],
                [-1.0, nan],
                [7.0, 0.0],
                [4.0, 0.0]
            ];
            let x = mesh.distribute(&x, rows.clone())?.requires_grad()?;
            let ids = mesh.distribute(&array![0_i64, 0, 0, -1, 1, 0], ids.clone())?;
            let (most, where_most) = x.segment_max_with_indices(&ids, 4)?;
            let expected = array![[1_i64, 2], [4, 4], [-1, -1], [3, 3]];
            assert_eq!(where_most.to_array::<i64>()?, expected.into_dyn());
            let most = most.to_array::<f64>()?;
            assert_eq!((most[[0, 0]], most[[2, 1]]), (4.0, f64::NEG_INFINITY));
            assert!(most[[0, 1]].is_nan());
            let (least, where_least) = x.segment_min_with_indices(&ids, 4)?;
            let expected = array![[0_i64, 2], [4, 4], [-1, -1], [3, 3]];
            assert_eq!(where_least.to_array::<i64>()?, expected.into_dyn());
            // Of equal ones the first has the gradient.
            let (most, _) = x.segment_max_with_indices(&ids, 4)?;
            let grads = most
                .narrow(1, 0..1)?
                .narrow(0, 0..2)?
                .sum_all()?
                .backward()?;
            let grad = grads.get(&x)?.unwrap().to_array::<f64>()?;
            let column: Vec<f64> = (0..6).map(|i| grad[[i, 0]]).collect();
            assert_eq!(column, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
            assert_eq!(least.to_array::<f64>()?[[2, 0]], f64::INFINITY);
            Ok(())
        });
        done.unwrap();
    }
}

#[test]
fn ranks_outside_of_the_mesh_know_what_the_data_decides() {
    let shapes = launch(3, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.randn([5, 2], [shard(0)])?.requires_grad()?;
        let counts = mesh.distribute(&array![1_i64, 0, 2, 2, 1], [shard(0)])?;
        let (far, near) = x.nearest_by_cloud(&x, 2, [&counts, &counts])?;
        let pairs = x.radius_search_by_cloud(&x, 9.0, [&counts, &counts])?.pairs;
        let (most, rows) = x.segment_max_with_indices(&counts, 4)?;
        let made = [
            x.repeat_interleave_each(0, &counts, None)?,
            x.repeat_interleave_each(0, &counts, Some(6))?,
            x.farthest_points_by_cloud(&counts, 3, 2)?,
            x.slices(ndarray::s![1.., 0])?,
            x.roll([0, 1], [1, 1])?,
        ];
        let grads = (far.square()?.sum_all()? + made[0].sum_all()?).backward()?;
        assert_eq!(grads.get(&x)?.unwrap().shape(), [5, 2]);
        let all = [near, pairs, most, rows].into_iter().chain(made);
        Ok(all.map(|t| t.shape().to_vec()).collect::<Vec<_>>())
    });
    let shapes = shapes.unwrap();
    // Each of two clouds of two points has four pairs, and one point has one.
    assert_eq!(shapes[0][1], [9, 2]);
    assert_eq!((&shapes[0][4], &shapes[0][6]), (&vec![6, 2], &vec![3, 2]));
    assert!(shapes.iter().all(|of_rank| *of_rank == shapes[0]));
}

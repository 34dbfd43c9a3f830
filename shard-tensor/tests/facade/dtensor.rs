//! Thirty cases that tell how distributed tensors should behave, as PyTorch's `DTensor` set the example or fell short of it:
//! by number, each with its layouts, values and what may move.

use crate::common::{numbers, on};
use ndarray::{Array1, ArrayD, IxDyn, array};
use shard_tensor::DeviceMesh;
use shard_tensor::{
    Context, ConvOptions, DType, ErrorClass, GradAs, Launch, Layout, LocalSizes, Mesh, Placement,
    Placements, ReduceOp, Result, ShardTensor, partial, replicate, shard,
};

const R: Placement = Placement::Replicate;
const S0: Placement = Placement::Shard(0);
const S1: Placement = Placement::Shard(1);
const S2: Placement = Placement::Shard(2);

fn local(x: &ShardTensor) -> Result<Vec<f64>> {
    Ok(x.to_local_array::<f64>()?.into_iter().collect())
}

/// Terms that every rank has as it says: `value` everywhere.
fn terms(mesh: &Mesh, shape: &[usize], op: ReduceOp, value: f64) -> Result<ShardTensor> {
    let piece = ArrayD::from_elem(IxDyn(shape), value);
    mesh.from_local(&piece, [partial(op)], LocalSizes::Infer)
}

/// How many exchanges carried bytes to this rank or from it while `f` ran, and how many bytes came.
fn moved<T>(ctx: &Context, f: impl FnOnce() -> Result<T>) -> Result<(T, u64, u64)> {
    let before = ctx.ledger().snapshot();
    let result = f()?;
    let since = ctx.ledger().since(&before);
    let carried = since.ops.iter().filter(|(_, count)| count.bytes > 0);
    Ok((result, carried.map(|(_, c)| c.rounds).sum(), since.bytes))
}

fn layout(mesh: &[usize], shape: &[usize], placements: &[Placement]) -> Layout {
    Layout::new(&DeviceMesh::new(mesh).unwrap(), shape, placements).unwrap()
}

/// Size and offset of each rank's part of a dim, by rank.
fn parts(layout: &Layout, dim: usize) -> Vec<(usize, usize)> {
    let of = |rank| {
        let part = layout.part(dim, layout.part_of(rank, dim).unwrap());
        let interval = part.interval().unwrap();
        (interval.len(), interval.start)
    };
    (0..layout.mesh().size()).map(of).collect()
}

#[test]
fn case_1_chunks_leave_trailing_ranks_short_or_empty() {
    for (n, sizes) in [
        (5, [2, 2, 1, 0]),
        (3, [1, 1, 1, 0]),
        (9, [3, 3, 3, 0]),
        (13, [4, 4, 4, 1]),
    ] {
        let parts = parts(&layout(&[4], &[n], &[S0]), 0);
        assert_eq!(parts.iter().map(|p| p.0).collect::<Vec<_>>(), sizes);
    }
}

#[test]
fn case_2_chunks_of_chunks() {
    let parts = |n| parts(&layout(&[2, 2], &[n, 5], &[S0, S0]), 0);
    assert_eq!(parts(10), [(3, 0), (2, 3), (3, 5), (2, 8)]);
    assert_eq!(parts(9), [(3, 0), (2, 3), (2, 5), (2, 7)]);
    assert_eq!(parts(3), [(1, 0), (1, 1), (1, 2), (0, 3)]);
}

#[test]
fn case_3_an_empty_part_begins_where_the_dim_ends() {
    let nested = parts(&layout(&[3, 2], &[7], &[S0, S0]), 0);
    assert_eq!(nested, [(2, 0), (1, 2), (2, 3), (1, 5), (1, 6), (0, 7)]);
    let few = parts(&layout(&[2, 4], &[2], &[S0, S0]), 0);
    let holders: Vec<usize> = (0..8).filter(|&r| few[r].0 == 1).collect();
    assert_eq!(
        (holders, few.iter().map(|p| p.0).sum::<usize>()),
        (vec![0, 4], 2)
    );
}

#[test]
fn case_4_other_dims() {
    let widths = parts(&layout(&[2, 2], &[2, 5], &[S1, S1]), 1);
    assert_eq!(widths, [(2, 0), (1, 2), (1, 3), (1, 4)]);
    let both = layout(&[2, 2], &[1, 3], &[S0, S1]);
    let shapes: Vec<_> = (0..4)
        .map(|r| both.local_shape(r).unwrap().to_vec())
        .collect();
    assert_eq!(shapes, [[1, 2], [1, 1], [0, 2], [0, 1]]);
}

#[test]
fn case_5_a_dim_that_the_last_axis_divides_first() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let inner_first = |n| {
            Layout::builder(mesh.mesh(), &[n])
                .shard_chunk(0, &[1, 0])
                .build()
        };
        let x = mesh.arange(8, &inner_first(8)?)?;
        let expected = [[0.0, 1.0], [4.0, 5.0], [2.0, 3.0], [6.0, 7.0]];
        assert_eq!(local(&x)?, expected[ctx.rank()]);
        // Every second part of the first axis' blocks of a strided shard, which DTensor distributes wrongly.
        let strided = mesh.arange(9, &inner_first(9)?)?;
        assert_eq!(numbers(&strided)?, numbers(&mesh.arange(9, [R, R])?)?);
        Ok(())
    });
}

#[test]
fn case_6_nested_parts_come_back_in_order() {
    on(4, |ctx| {
        let x = ctx.mesh_of([2, 2])?.arange(5, [S0, S0])?;
        let whole = x.redistribute([R, R])?;
        assert_eq!(local(&whole)?, [0.0, 1.0, 2.0, 3.0, 4.0]);
        Ok(())
    });
}

#[test]
fn case_7_parts_of_any_sizes() {
    on(4, |ctx| {
        let x = ctx.mesh_of(4)?.arange(6, shard(0).sizes([1, 3, 1, 1]))?;
        assert_eq!(numbers(&x)?, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((x.sum_all()?.item()?, x.mean_all()?.item()?), (15.0, 2.5));
        assert_eq!(numbers(&x.add(&x)?)?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        Ok(())
    });
}

#[test]
fn case_8_uneven_pieces_are_negotiated_or_refused() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let piece = Array1::<f64>::ones([2, 2, 2, 1][ctx.rank()]);
        let x = mesh.from_local(&piece, [shard(0)], LocalSizes::Infer)?;
        assert_eq!((x.shape(), x.sum_all()?.item()?), (&[7][..], 7.0));
        // By chunk, 6 elements are 2, 2, 2 and none.
        let wrong = mesh.from_local(&piece, [shard(0)], LocalSizes::Global(6.into()));
        assert_eq!(wrong.unwrap_err().class(), ErrorClass::Agreed);
        assert_eq!(x.sum_all()?.item()?, 7.0);
        Ok(())
    });
}

#[test]
fn case_9_rows_to_columns_in_one_exchange() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        for shape in [[5, 3], [8, 5], [5, 8], [5, 5], [3, 2]] {
            let x = mesh.from_fn(shape, [shard(0)], |i| (10 * i[0] + i[1]) as f64)?;
            let (columns, exchanges, _) = moved(ctx, || x.redistribute([shard(1)]))?;
            assert!(exchanges <= 1, "{exchanges} exchanges");
            if shape == [5, 3] {
                let width = [1, 1, 1, 0][ctx.rank()];
                assert_eq!(columns.to_local_array::<f64>()?.shape(), [5, width]);
            }
            assert_eq!(numbers(&columns.redistribute([shard(0)])?)?, numbers(&x)?);
            assert_eq!(numbers(&columns)?, numbers(&x)?);
        }
        Ok(())
    });
}

#[test]
fn case_10_a_gather_and_its_adjoint() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        for (n, dim) in [(12, 0), (13, 0), (14, 0), (12, 1), (13, 1), (14, 1)] {
            let shape = if dim == 0 { [n, 2] } else { [2, n] };
            let x = mesh.ones(shape, [shard(dim)])?.requires_grad()?;
            let (whole, gathers, _) = moved(ctx, || x.redistribute([replicate()]))?;
            assert_eq!(gathers, 1);
            let loss = whole.square()?.sum_all()?;
            let (gradients, sent, _) = moved(ctx, || loss.backward())?;
            assert_eq!(
                (gradients.get(&x)?.unwrap().layout(), sent),
                (x.layout(), 0)
            );

            let y = mesh.ones(shape, [replicate()])?.requires_grad()?;
            let (pieces, none, _) = moved(ctx, || y.redistribute([shard(dim)]))?;
            let loss = pieces.square()?.sum_all()?;
            let (gradients, gathers, _) = moved(ctx, || loss.backward())?;
            assert_eq!((none, gathers), (0, 1));
            assert_eq!(gradients.get(&y)?.unwrap().layout(), y.layout());
        }
        Ok(())
    });
}

#[test]
fn case_11_terms_of_every_reduction() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let mine = 1.0 + ctx.rank() as f64;
        for (op, expected) in [
            (ReduceOp::Sum, 10.0),
            (ReduceOp::Max, 4.0),
            (ReduceOp::Min, 1.0),
            (ReduceOp::Prod, 24.0),
        ] {
            let x = terms(&mesh, &[5], op, mine)?;
            assert_eq!(local(&x.redistribute([replicate()])?)?, [expected; 5]);
            let parts = x.redistribute([shard(0)])?;
            assert_eq!(local(&parts)?, vec![expected; [2, 2, 1, 0][ctx.rank()]]);
        }
        // An average is a sum of shares.
        let mean = terms(&mesh, &[5], ReduceOp::Sum, mine)?.div_scalar(4.0)?;
        assert_eq!(numbers(&mean)?, [2.5; 5]);
        Ok(())
    });
}

#[test]
fn case_12_reductions_do_not_mix() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let mixed: Placements = [partial(ReduceOp::Sum), partial(ReduceOp::Max)].into();
        let error = mesh.layout([3], mixed).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        assert!("P(foo)".parse::<Placement>().is_err());
        // A sum over one axis of averages over the other.
        let piece = Array1::from_elem(2, ctx.rank() as f64);
        let sums = [partial(ReduceOp::Sum), partial(ReduceOp::Sum)];
        let x = mesh.from_local(&piece, sums, LocalSizes::Infer)?;
        assert_eq!(numbers(&x.div_scalar(2.0)?)?, [3.0; 2]);
        Ok(())
    });
}

#[test]
fn case_13_parts_become_terms_without_moving() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.arange(5, [shard(0)])?;
        let sum = mesh.layout(5, [partial(ReduceOp::Sum)])?;
        let arrays = |x: &ShardTensor, to: &Layout| Ok(x.value().into_array().redistribute(to)?);
        let (terms, exchanges, _) = moved(ctx, || arrays(&x, &sum))?;
        let expected = [
            [0.0, 1.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 2.0, 3.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 4.0],
            [0.0; 5],
        ];
        assert_eq!(terms.to_vec::<f64>()?, expected[ctx.rank()]);
        assert_eq!(exchanges, 0);
        let terms = ShardTensor::new(ctx, terms.into());
        assert_eq!(numbers(&terms)?, [0.0, 1.0, 2.0, 3.0, 4.0]);
        // Programs get terms from ops alone, whatever they had.
        for x in [&x, &terms, &mesh.ones(5, [R])?] {
            let error = x.redistribute([partial(ReduceOp::Max)]).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform, "{error}");
        }
        Ok(())
    });
}

#[test]
fn case_14_moves_on_meshes_of_several_axes() {
    on(8, |ctx| {
        let mesh = ctx.mesh_of([2, 4])?;
        let x = mesh.arange(16, [S0, S0])?.reshape([16, 1])?;
        let x = mesh
            .from_fn([16, 8], [S0, S0], |i| (8 * i[0] + i[1]) as f64)?
            .add(&x.mul_scalar(0.0)?)?;
        // Only the parts that a rank lacks come: it has 2 of the 4 rows of each block of 4.
        let (rows, exchanges, bytes) = moved(ctx, || x.redistribute([R, S0]))?;
        let had = numbers_in_common(&x, &rows)?;
        assert_eq!((exchanges, bytes), (1, 8 * (32 - had)));
        let (_, exchanges, _) = moved(ctx, || x.redistribute([S0, S1]))?;
        assert_eq!(exchanges, 1);
        let cube = ctx.mesh_of([2, 2, 2])?;
        let y = cube.from_fn([4, 4, 4], [S0, S0, S1], |i| {
            (16 * i[0] + 4 * i[1] + i[2]) as f64
        })?;
        let (z, exchanges, _) = moved(ctx, || y.redistribute([S0, S1, S2]))?;
        assert!(exchanges <= 2, "{exchanges} exchanges");
        assert_eq!(numbers(&z)?, numbers(&y)?);
        Ok(())
    });
}

/// How many elements of a piece of `b` this rank has in its piece of `a`, of tensors of different numbers.
fn numbers_in_common(a: &ShardTensor, b: &ShardTensor) -> Result<u64> {
    let (a, b) = (local(a)?, local(b)?);
    Ok(b.iter().filter(|x| a.contains(x)).count() as u64)
}

#[test]
fn case_15_nothing_moves_along_an_axis_of_one() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of([4, 1])?;
        let x = mesh.from_fn([5, 3], [S0, S1], |i| (3 * i[0] + i[1]) as f64)?;
        for to in [[S0, R], [S0, S0]] {
            let (y, exchanges, _) = moved(ctx, || x.redistribute(to))?;
            assert_eq!((exchanges, numbers(&y)?), (0, numbers(&x)?), "{to:?}");
        }
        Ok(())
    });
}

#[test]
fn case_16_products_of_matrices() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let (a, b) = (
            |p: Placement| mesh.ones([5, 7], [p]),
            |p: Placement| mesh.ones([7, 2], [p]),
        );
        let product = |p, q| moved(ctx, || a(p)?.matmul(&b(q)?));
        for (p, q, expected) in [(S0, R, "S(0)"), (R, S1, "S(1)"), (S1, S0, "P(sum)")] {
            let (y, exchanges, _) = product(p, q)?;
            assert_eq!((y.layout().to_string().as_str(), exchanges), (expected, 0));
            assert_eq!(y.sum_all()?.item()?, 70.0);
        }
        let (y, exchanges, _) = product(S0, S0)?;
        assert!(exchanges <= 1 && y.sum_all()?.item()? == 70.0);
        let terms = terms(&mesh, &[5, 7], ReduceOp::Sum, 0.25)?;
        let (y, exchanges, _) = moved(ctx, || terms.matmul(&b(R)?))?;
        assert_eq!(
            (y.placements()[0], exchanges),
            (Placement::Partial(ReduceOp::Sum), 0)
        );
        assert_eq!(y.sum_all()?.item()?, 70.0);
        Ok(())
    });
}

#[test]
fn case_17_sums_of_unlike_layouts() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let ones = |p: Placement| mesh.ones([4, 4], [p]);
        let sum = |a: &ShardTensor, b: &ShardTensor| moved(ctx, || a.add(b));
        let (y, exchanges, _) = sum(&ones(S0)?, &ones(S1)?)?;
        assert_eq!((numbers(&y)?, exchanges), (vec![2.0; 16], 1));
        let (y, exchanges, _) = sum(&ones(S0)?, &ones(R)?)?;
        assert_eq!((y.placements(), exchanges), (&[S0][..], 0));
        let p = terms(&mesh, &[4, 4], ReduceOp::Sum, 1.0)?;
        let (y, exchanges, _) = sum(&p, &p)?;
        assert_eq!(
            (y.layout() == p.layout(), exchanges, numbers(&y)?),
            (true, 0, vec![8.0; 16])
        );
        let (y, exchanges, bytes) = sum(&p, &ones(S0)?)?;
        // A reduce-scatter: 3 terms of this rank's quarter.
        assert_eq!(
            (y.placements(), exchanges, bytes),
            (&[S0][..], 1, 3 * 4 * 8)
        );
        assert_eq!(numbers(&y)?, [5.0; 16]);
        let (y, ..) = sum(&p, &ones(R)?)?;
        assert_eq!(numbers(&y)?, [5.0; 16]);
        Ok(())
    });
}

#[test]
fn case_18_what_passes_a_partial_sum_by() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let p = terms(&mesh, &[3], ReduceOp::Sum, 1.0)?;
        let twice = p.mul_scalar(2.0)?;
        assert_eq!(
            (twice.layout(), numbers(&twice)?),
            (p.layout(), vec![8.0; 3])
        );
        assert_eq!(numbers(&p.mul(&p)?)?, [16.0; 3]);
        let signed = terms(&mesh, &[3], ReduceOp::Sum, ctx.rank() as f64 - 1.5)?;
        assert_eq!(numbers(&signed.relu()?)?, [0.0; 3]);
        let most = terms(&mesh, &[3], ReduceOp::Max, ctx.rank() as f64 - 1.5)?;
        assert_eq!(numbers(&most.relu()?)?, [1.5; 3]);
        assert_eq!(numbers(&most.neg()?)?, [-1.5; 3]);
        Ok(())
    });
}

#[test]
fn case_19_casts_of_partial_sums() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let halves = terms(&mesh, &[2], ReduceOp::Sum, 0.5)?;
        assert_eq!(numbers(&halves.to(DType::I32)?)?, [2.0; 2]);
        assert_eq!(numbers(&halves.to(DType::Bool)?)?, [1.0; 2]);
        let none = terms(
            &mesh,
            &[2],
            ReduceOp::Sum,
            [1.0, -1.0, 2.0, -2.0][ctx.rank()],
        )?;
        assert_eq!(numbers(&none.to(DType::Bool)?)?, [0.0; 2]);
        assert_eq!(numbers(&halves.add_scalar(1.0)?)?, [3.0; 2]);
        Ok(())
    });
}

#[test]
fn case_20_statistics_of_uneven_parts() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.arange(5, [shard(0)])?;
        assert_eq!(x.mean_all()?.item()?, 2.0);
        assert_eq!(x.var(0, 1.0, false)?.item()?, 2.5);
        // Three elements on four ranks, two of them the greatest.
        let y = mesh.distribute(&array![1.0, 7.0, 7.0], [shard(0)])?;
        let (most, at) = y.topk(2, 0, true)?;
        assert_eq!(
            (numbers(&most)?, numbers(&at)?),
            (vec![7.0; 2], vec![1.0, 2.0])
        );
        assert_eq!(y.argmax(0)?.item()?, 1.0);
        assert_eq!(y.amax(0, false)?.item()?, 7.0);
        Ok(())
    });
}

#[test]
fn case_21_norms_of_parts_and_terms() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.arange(8, [shard(0)])?.add_scalar(1.0)?;
        let norm = |x: &ShardTensor, p| x.norm(p, 0, false)?.item();
        assert!((norm(&x, 2.0)? - 204_f64.sqrt()).abs() < 1e-12);
        assert!((norm(&x.mul_scalar(2.0)?, 2.0)? - 816_f64.sqrt()).abs() < 1e-12);
        assert_eq!(norm(&terms(&mesh, &[4], ReduceOp::Sum, 1.0)?, 2.0)?, 8.0);
        let empty = mesh.distribute(&array![1.0, -7.0, 3.0], shard(0).sizes([2, 0, 1, 0]))?;
        assert_eq!(norm(&empty, f64::INFINITY)?, 7.0);
        Ok(())
    });
}

#[test]
fn case_22_a_number_is_the_same_everywhere() {
    on(4, |ctx| {
        let x = ctx.mesh_of(4)?.arange(8, [shard(0)])?;
        assert_eq!(x.sum_all()?.item()?, 28.0);
        Ok(())
    });
}

#[test]
fn case_23_convolutions_of_divided_images() {
    let weights = |i: &[usize]| ((i[0] * 7 + i[1] * 5 + i[2] * 3 + i[3]) % 11) as f64 - 5.0;
    let images = |i: &[usize]| ((i[0] * 5 + i[1] * 3 + i[2] * 7 + i[3] * 2) % 13) as f64 - 6.0;
    let run = |mesh: &Mesh, batch: usize, placements: Placements| -> Result<[Vec<f64>; 3]> {
        let x = mesh
            .from_fn([batch, 4, 8, 16], placements, images)?
            .requires_grad()?;
        let w = mesh
            .from_fn([3, 4, 3, 3], Placements::replicated(), weights)?
            .requires_grad()?;
        let y = x.conv2d(&w, None, ConvOptions::new().padding(1))?;
        let gradients = y.square()?.sum_all()?.backward()?;
        let of = |x| numbers(&gradients.get(x)?.unwrap());
        Ok([numbers(&y)?, of(&x)?, of(&w)?])
    };
    for batch in [4, 5, 2] {
        let alone = Launch::new(1).dtype(DType::F64).run(|ctx| {
            let [y, dx, dw] = run(&ctx.mesh_of(1)?, batch, [R].into())?;
            Ok((y, dx, dw))
        });
        let (y, dx, dw) = alone.unwrap().swap_remove(0);
        on(4, |ctx| {
            let line = ctx.mesh_of(4)?;
            let square = ctx.mesh_of([2, 2])?;
            for (mesh, placements) in [
                (&line, [shard(0)].into()),
                (&line, [shard(2)].into()),
                (&line, [shard(3)].into()),
                (&square, Placements::from([shard(0), shard(3)])),
            ] {
                // All numbers are whole, so sums are exact in any order.
                let found = run(mesh, batch, placements)?;
                assert!(found == [y.clone(), dx.clone(), dw.clone()]);
            }
            Ok(())
        });
    }
}

#[test]
fn case_24_writing_part_of_a_tensor() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.zeros([8, 4], [shard(0)])?;
        // Tensors are values: what is written is a new one.
        let rows = mesh.distribute(&array![0_i64, 1], [replicate()])?;
        let marked = x.index_copy(0, &rows, &mesh.ones([2, 4], [R])?)?;
        assert_eq!(
            (marked.sum_all()?.item()?, x.sum_all()?.item()?),
            (8.0, 0.0)
        );
        let column = mesh.distribute(&array![1_i64], [replicate()])?;
        let sevens = mesh.full([8, 1], 7.0, [shard(0)])?;
        let filled = x.index_copy(1, &column, &sevens)?;
        assert_eq!(
            (filled.sum_all()?.item()?, filled.layout()),
            (56.0, x.layout())
        );
        Ok(())
    });
}

#[test]
fn case_25_reshapes() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        for (from, dim, to) in [
            (vec![3, 8], 1, vec![24]),
            (vec![24], 0, vec![8, 3]),
            (vec![12, 8], 1, vec![16, 6]),
            (vec![5, 3], 0, vec![15]),
        ] {
            let n: usize = from.iter().product();
            let x = mesh
                .arange(n, [R])?
                .reshape(from)?
                .redistribute([shard(dim)])?;
            let expected: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let y = x.reshape(to.clone())?;
            assert_eq!((y.shape(), numbers(&y)?), (&to[..], expected));
        }
        let (y, exchanges, _) = moved(ctx, || mesh.arange(24, [S0])?.reshape([8, 3]))?;
        assert_eq!((y.placements(), exchanges), (&[S0][..], 0));
        Ok(())
    });
}

#[test]
fn case_26_gradients_and_their_layouts() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let x = mesh.arange(5, [shard(0)])?.requires_grad()?;
        let gradient = |loss: ShardTensor, x: &ShardTensor| -> Result<ShardTensor> {
            Ok(loss.backward()?.get(x)?.unwrap())
        };
        let dx = gradient(x.full_tensor()?.square()?.sum_all()?, &x)?;
        assert_eq!(
            (dx.layout(), numbers(&dx)?),
            (x.layout(), vec![0.0, 2.0, 4.0, 6.0, 8.0])
        );
        let terms_of = x.full_tensor_with(GradAs::Partial)?.square()?.sum_all()?;
        assert_eq!(
            numbers(&gradient(terms_of, &x)?)?,
            [0.0, 8.0, 16.0, 24.0, 32.0]
        );
        let p = terms(&mesh, &[3], ReduceOp::Sum, 2.0)?.requires_grad()?;
        let dp = gradient(p.full_tensor()?.sum_all()?, &p)?;
        assert_eq!(numbers(&dp)?, [1.0; 3]);
        let (a, w) = (
            mesh.ones([5, 3], [S0])?,
            mesh.ones([3, 2], [R])?.requires_grad()?,
        );
        let dw = gradient(a.matmul(&w)?.sum_all()?, &w)?;
        assert_eq!((dw.layout(), numbers(&dw)?), (w.layout(), vec![5.0; 6]));
        let ds = gradient(x.sum_all()?, &x)?;
        assert_eq!((ds.layout(), numbers(&ds)?), (x.layout(), vec![1.0; 5]));
        Ok(())
    });
}

#[test]
fn case_27_rows_by_index() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let table = mesh.from_fn([10, 3], [shard(0)], |i| (3 * i[0] + i[1]) as f64)?;
        let ids = mesh.distribute(&array![0_i64, 9, 3, 5, 5], [replicate()])?;
        let rows = numbers(&table.embedding(&ids, None)?)?;
        let expected: Vec<f64> = [0, 9, 3, 5, 5]
            .iter()
            .flat_map(|&r| (0..3).map(move |c| f64::from(3 * r + c)))
            .collect();
        assert_eq!(rows, expected);
        let index = mesh.distribute(&array![[9_i64, 0, 4]], [replicate()])?;
        assert_eq!(numbers(&table.gather(0, &index)?)?, [27.0, 1.0, 14.0]);
        Ok(())
    });
}

#[test]
fn case_28_what_does_not_fit_together() {
    on(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        let (x, y) = (mesh.ones([4, 4], [S0])?, mesh.ones([4, 4], [S1])?);
        let parameter = x.requires_grad()?;
        // A parameter keeps its layout, whatever is computed of it.
        parameter.set(&parameter.detach().add(&y)?.redistribute([S0])?)?;
        assert_eq!(
            (parameter.placements(), parameter.sum_all()?.item()?),
            (&[S0][..], 32.0)
        );
        let other = ctx.mesh_of([2, 2])?.ones([4, 4], [S0, R])?;
        let error = x.add(&other).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform);
        Ok(())
    });
}

#[test]
fn case_29_random_numbers_do_not_know_the_layout() {
    let alone = Launch::new(1).run(|ctx| ctx.mesh_of(1)?.randn([7, 5], [R])?.to_array::<f32>());
    let alone = alone.unwrap().swap_remove(0);
    for (mesh, placements) in [
        (vec![4], Placements::from([shard(0)])),
        (vec![3], [shard(1).sizes([0, 5, 0])].into()),
        (vec![2, 2], [shard(0), shard(0)].into()),
        (vec![2, 3], [shard(1), shard(0)].into()),
    ] {
        let ranks = mesh.iter().product();
        let drawn = Launch::new(ranks).run(|ctx| {
            ctx.mesh_of(mesh.clone())?
                .randn([7, 5], placements.clone())?
                .to_array::<f32>()
        });
        assert!(drawn.unwrap().iter().all(|x| *x == alone), "{placements:?}");
    }
}

#[test]
fn case_30_zigzag() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.arange(8, shard(0).zigzag())?;
        let expected = [[0.0, 1.0, 6.0, 7.0], [2.0, 3.0, 4.0, 5.0]];
        assert_eq!(local(&x)?, expected[ctx.rank()]);
        assert_eq!(numbers(&x)?, (0..8).map(f64::from).collect::<Vec<_>>());
        Ok(())
    });
}

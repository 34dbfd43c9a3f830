//! Products of groups of rows, against one product for each group.

use crate::common::{close, on, pattern, read};
use shard_tensor::ndarray::Array1;
use shard_tensor::{
    DType, ErrorClass, Launch, Mesh, Placements, Result, ShardTensor, launch, replicate, shard,
};

/// What each group's own product is, one behind the other, of plain tensors.
fn by_group(a: &ShardTensor, b: &ShardTensor, ends: &[i64]) -> Result<ShardTensor> {
    let mut begin = 0;
    let mut made = Vec::new();
    for (g, &end) in ends.iter().enumerate() {
        let part = begin..end as usize;
        begin = part.end;
        made.push(match (a.ndim(), b.ndim()) {
            (2, 3) => a.narrow(0, part)?.matmul(&b.select(0, g)?)?,
            (3, 2) => a.select(0, g)?.matmul(&b.narrow(1, part)?)?,
            _ => (a.narrow(1, part.clone())?.matmul(&b.narrow(0, part)?)?).unsqueeze(0)?,
        });
    }
    // What is in no group.
    match (a.ndim(), b.ndim()) {
        (2, 3) => made.push(
            a.narrow(0, begin..)?
                .matmul(&b.select(0, 0)?.zeros_like()?)?,
        ),
        (3, 2) => made.push(
            a.select(0, 0)?
                .matmul(&b.narrow(1, begin..)?.zeros_like()?)?,
        ),
        _ => {}
    }
    let dim = usize::from(a.ndim() == 3);
    ShardTensor::cat(&made.iter().collect::<Vec<_>>(), dim)
}

fn operand(mesh: &Mesh, seed: usize, shape: &[usize], at: &Placements) -> Result<ShardTensor> {
    mesh.from_fn(shape.to_vec(), at, |i| pattern(seed, i))?
        .requires_grad()
}

/// Gradients of a product's squares, each with that of the gradients' squares added.
fn found(y: &ShardTensor, operands: [&ShardTensor; 2]) -> Result<Vec<ShardTensor>> {
    let first = y.square()?.sum_all()?.grad(&operands, true)?;
    let first: Vec<_> = first
        .into_iter()
        .map(|x| x.expect("it depends on it"))
        .collect();
    let of_first = first[0]
        .square()?
        .sum_all()?
        .add(&first[1].square()?.sum_all()?)?;
    let second = of_first.backward()?;
    (first.iter().zip(operands))
        .map(|(first, x)| {
            assert_eq!(first.layout(), x.layout());
            first.add(&second.get(x)?.expect("it depends on it"))
        })
        .collect()
}

fn check(
    mesh: &Mesh,
    shapes: [&[usize]; 2],
    ends: &[i64],
    [at_a, at_b, at_ends]: [&Placements; 3],
) -> Result<()> {
    let what = format!("{shapes:?} {ends:?} {at_a:?} {at_b:?} {at_ends:?}");
    let whole = Placements::replicated();
    let plain = [0, 1].map(|i| operand(mesh, i, shapes[i], &whole));
    let [a, b] = plain;
    let (a, b) = (a?, b?);
    let expected = by_group(&a, &b, ends)?;
    let slopes = found(&expected, [&a, &b])?;

    let (a, b) = (
        operand(mesh, 0, shapes[0], at_a)?,
        operand(mesh, 1, shapes[1], at_b)?,
    );
    let offsets = mesh.distribute(&Array1::from(ends.to_vec()), at_ends)?;
    let y = a.grouped_mm(&b, &offsets)?;
    close(&what, &y, &read(&expected)?)?;
    for (got, expected) in found(&y, [&a, &b])?.iter().zip(&slopes) {
        close(&what, got, &read(expected)?)?;
    }
    Ok(())
}

/// Even, uneven and empty groups, rows behind the last, and none at all.
const ENDS: [&[i64]; 4] = [&[2, 2, 7, 9], &[0, 1, 1, 1], &[9, 9, 9, 9], &[0, 0, 0, 0]];

#[test]
fn groups_on_all_layouts_are_products_of_their_own() {
    for ranks in [1, 3, 4] {
        on(ranks, |ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let mut sizes = vec![0; ranks];
            sizes[ranks - 1] = 9;
            let uneven = Placements::from(shard(0).sizes(sizes));
            let at = |d: usize| Placements::from(shard(d));
            for ends in ENDS {
                for at_a in [replicate().into(), at(0), at(1), uneven.clone()] {
                    for at_b in [replicate().into(), at(0), at(1), at(2)] {
                        let places = [&at_a, &at_b, &at(0)];
                        check(&mesh, [&[9, 3], &[4, 3, 2]], ends, places)?;
                    }
                }
                for (at_a, at_b) in [(at(0), at(1)), (at(1), at(0)), (at(2), replicate().into())] {
                    let places = [&at_a, &at_b, &replicate().into()];
                    check(&mesh, [&[4, 2, 3], &[3, 9]], ends, places)?;
                }
                for (at_a, at_b) in [(at(1), at(0)), (at(0), at(1)), (replicate().into(), at(0))] {
                    let places = [&at_a, &at_b, &replicate().into()];
                    check(&mesh, [&[2, 9], &[9, 3]], ends, places)?;
                }
            }
            Ok(())
        });
    }
}

#[test]
fn groups_on_two_axes_are_products_of_their_own() {
    on(6, |ctx| {
        let mesh = ctx.mesh([("data", 2), ("expert", 3)])?;
        let places: [(Placements, Placements); 4] = [
            ([("data", shard(0))].into(), [("expert", shard(0))].into()),
            (
                [("data", shard(0)), ("expert", shard(0))].into(),
                [("data", shard(2)), ("expert", shard(0))].into(),
            ),
            (
                [("data", shard(0)), ("expert", shard(1))].into(),
                [("data", shard(0)), ("expert", shard(1))].into(),
            ),
            (
                [("expert", shard(0))].into(),
                [("data", shard(0)), ("expert", shard(2))].into(),
            ),
        ];
        for (at_a, at_b) in &places {
            let places = [at_a, at_b, &replicate().into()];
            check(&mesh, [&[9, 3], &[4, 3, 2]], &[2, 2, 7, 8], places)?;
        }
        Ok(())
    });
}

/// Rows in any order, numbers of both types, and no rows, matrices, or features.
#[test]
fn rows_are_multiplied_with_the_matrices_that_they_name() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        for [rows, groups, inner, out] in [[11, 5, 3, 2], [0, 5, 3, 2], [4, 2, 0, 3], [4, 2, 3, 0]]
        {
            for at_w in [replicate(), shard(0), shard(2)] {
                for dtype in [DType::I64, DType::I32] {
                    let named = |i: usize| 3 * i % groups;
                    let x = operand(&mesh, 0, &[rows, inner], &shard(0).into())?;
                    let w = operand(&mesh, 1, &[groups, inner, out], &at_w.clone().into())?;
                    let index = mesh
                        .from_fn([rows], shard(0), |i| named(i[0]) as f64)?
                        .to(dtype)?;
                    let y = x.gather_mm(&w, &index)?;
                    let (xs, ws) = (x.to_array::<f64>()?, w.to_array::<f64>()?);
                    let term = |i: usize, j: usize, k: usize| xs[[i, k]] * ws[[named(i), k, j]];
                    let expected: Vec<f64> = (0..rows * out)
                        .map(|at| (0..inner).map(|k| term(at / out, at % out, k)).sum())
                        .collect();
                    close("rows", &y, &expected)?;
                    let slope = y.sum_all()?.backward()?.get(&w)?.expect("it depends on it");
                    let sums: Vec<f64> = (0..groups * inner * out)
                        .map(|at| {
                            let (g, k) = (at / (inner * out), at / out % inner);
                            (0..rows)
                                .filter(|&i| named(i) == g)
                                .map(|i| xs[[i, k]])
                                .sum()
                        })
                        .collect();
                    close("matrices", &slope, &sums)?;
                }
            }
        }
        Ok(())
    });
}

/// A sum that waits passes if it is one of the two; of two of them the product is none.
#[test]
fn sums_that_wait_are_multiplied_once() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let waiting = |seed: usize, shape: &[usize]| -> Result<ShardTensor> {
            let deep = [shape, &[2]].concat();
            operand(&mesh, seed, &deep, &shard(shape.len()).into())?.sum(-1, false)
        };
        let (x, w) = (waiting(0, &[5, 3])?, waiting(1, &[2, 3, 4])?);
        assert!(x.layout().is_partial() && w.layout().is_partial());
        let [summed_x, summed_w] = [x.redistribute(replicate())?, w.redistribute(replicate())?];
        let index = mesh.from_fn([5], replicate(), |i| (i[0] % 2) as f64)?;
        let index = index.to(DType::I64)?;
        let expected = summed_x.gather_mm(&summed_w, &index)?.to_array::<f64>()?;
        let expected: Vec<f64> = expected.into_iter().collect();
        for (x, w) in [(&x, &summed_w), (&summed_x, &w), (&x, &w)] {
            close("sums", &x.gather_mm(w, &index)?, &expected)?;
        }
        Ok(())
    });
}

/// In 16 bits a product is summed in `f32`, and rounded once.
#[test]
fn sixteen_bits_are_rounded_once() {
    for dtype in [DType::BF16, DType::F16] {
        on(2, |ctx| {
            let mesh = ctx.mesh_of(2)?;
            // Whole numbers that 16 bits hold, whose products and sums `f32` holds.
            let whole = |shape: &[usize], at: Placements| -> Result<ShardTensor> {
                mesh.from_fn(shape.to_vec(), at, |i| (pattern(3, i) * 9.0).round())?
                    .to(dtype)?
                    .requires_grad()
            };
            for at_w in [replicate(), shard(0), shard(1)] {
                let x = whole(&[40, 33], shard(0).into())?;
                let w = whole(&[3, 33, 20], at_w.into())?;
                let ends = mesh.distribute(&Array1::from(vec![13_i64, 13, 37]), replicate())?;
                let y = x.grouped_mm(&w, &ends)?;
                let wide = |t: &ShardTensor| t.detach().to(DType::F64);
                let once = |t: ShardTensor| t.to(DType::F32)?.to(dtype)?.to(DType::F64);
                let (xs, ws) = (wide(&x)?.requires_grad()?, wide(&w)?.requires_grad()?);
                let plain = xs.grouped_mm(&ws, &ends)?;
                close("values", &wide(&y)?, &read(&once(plain.clone())?)?)?;
                let slopes = y.sum_all()?.backward()?;
                let expected = plain.sum_all()?.backward()?;
                for (of, plain) in [(&x, &xs), (&w, &ws)] {
                    let got = slopes.get(of)?.expect("it depends on it");
                    assert_eq!((got.dtype(), got.layout()), (dtype, of.layout()));
                    let plain = expected.get(plain)?.expect("it depends on it");
                    close("slopes", &wide(&got)?, &read(&once(plain)?)?)?;
                }
            }
            Ok(())
        });
    }
}

/// Where the rows of each group lie with its matrix, no row or matrix moves, forward or backward; offsets are read once.
#[test]
fn nothing_moves_where_rows_lie_with_their_matrices() {
    let moved = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = operand(&mesh, 0, &[9, 64], &shard(0).sizes([2, 5, 2]).into())?;
        let w = operand(&mesh, 1, &[4, 64, 32], &shard(0).sizes([1, 2, 1]).into())?;
        let ends = mesh.distribute(&Array1::from(vec![2_i64, 6, 7, 9]), replicate())?;
        let bytes = |mut f: Box<dyn FnMut() -> Result<()> + '_>| -> Result<u64> {
            let before = ctx.ledger().snapshot();
            f()?;
            Ok(ctx.ledger().since(&before).bytes)
        };
        let whole = bytes(Box::new(|| {
            let y = x.grouped_mm(&w, &ends)?;
            y.expect_layout(shard(0).sizes([2, 5, 2]))?;
            let slopes = y.backward_with(&y.ones_like()?)?;
            for of in [&x, &w] {
                slopes
                    .get(of)?
                    .expect("it depends on it")
                    .expect_layout(of.layout())?;
            }
            Ok(())
        }))?;
        // Of rows that are copies each rank multiplies those of its groups.
        let copies = operand(&mesh, 0, &[9, 64], &replicate().into())?;
        let of_copies = bytes(Box::new(|| {
            let y = ctx.no_grad(|| copies.grouped_mm(&w, &ends))?;
            assert!(y.layout().is_partial());
            Ok(())
        }))?;
        Ok((whole, of_copies))
    });
    for (whole, of_copies) in moved.unwrap() {
        // Less than a row.
        assert!(whole < 64 * 8 && of_copies == 0, "{whole} {of_copies}");
    }
}

/// A rank outside of the mesh is told the ends too, as the layout of the result goes by them.
#[test]
fn ranks_outside_know_where_the_result_lies() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        for (ends, lies) in [([2, 4, 7, 9], "S(0)[4,5]"), ([1, 3, 7, 9], "P(sum)")] {
            let x = mesh.ones([9, 64], shard(0).sizes([4, 5]))?;
            let w = mesh.ones([4, 64, 32], shard(0).sizes([2, 2]))?;
            let offsets = mesh.distribute(&Array1::from(ends.to_vec()), replicate())?;
            let y = x.grouped_mm(&w, &offsets)?;
            assert_eq!(y.layout().to_string(), lies);
            let bad = mesh.distribute(&Array1::from(vec![3_i64, 1, 6, 9]), replicate())?;
            assert!(x.grouped_mm(&w, &bad).is_err());
        }
        Ok(())
    });
}

#[test]
fn what_does_not_fit_is_told_on_all_ranks() {
    let tell = |class: ErrorClass, ends: &'static [i64], shapes: [&'static [usize]; 2]| {
        let told = Launch::new(3).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let a = mesh.ones(shapes[0].to_vec(), shard(0))?;
            let b = mesh.ones(shapes[1].to_vec(), replicate())?;
            let at = mesh.distribute(&Array1::from(ends.to_vec()), shard(0))?;
            let error = a.grouped_mm(&b, &at).unwrap_err();
            assert_eq!(error.class(), class, "{error}");
            // The group goes on.
            assert_eq!(a.sum_all()?.item()?, a.numel() as f64);
            Ok(error.to_string())
        });
        let told = told.unwrap();
        assert!(told.iter().all(|t| *t == told[0]), "{told:?}");
        told[0].clone()
    };
    let fit: [&[usize]; 2] = [&[5, 2], &[3, 2, 4]];
    let told = tell(ErrorClass::Agreed, &[2, 1, 5], fit);
    assert!(
        told.contains("group 1 ends at 1, and the one before at 2"),
        "{told}"
    );
    let told = tell(ErrorClass::Agreed, &[-1, 1, 5], fit);
    assert!(told.contains("group 0 ends at -1"), "{told}");
    let told = tell(ErrorClass::Agreed, &[2, 4, 6], fit);
    assert!(
        told.contains("group 2 ends at 6") && told.contains("of 5 in all"),
        "{told}"
    );
    let told = tell(ErrorClass::Uniform, &[2, 5], fit);
    assert!(told.contains("a number for each group"), "{told}");
    let told = tell(ErrorClass::Uniform, &[2, 4, 5], [&[5, 3], &[3, 2, 4]]);
    assert!(
        told.starts_with("grouped_mm: the operands do not"),
        "{told}"
    );
    assert!(told.contains("[groups, in, out]"), "{told}");
    let told = tell(ErrorClass::Uniform, &[2, 4, 5], [&[5, 3], &[5, 4]]);
    assert!(told.contains("inner dims agree"), "{told}");
    let told = tell(ErrorClass::Uniform, &[2, 4, 5], [&[3, 5, 3], &[3, 3, 4]]);
    assert!(told.contains("leave them out"), "{told}");

    let run = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, w) = (
            mesh.ones([4, 2], shard(0))?,
            mesh.ones([3, 2, 2], shard(0))?,
        );
        let error = x.grouped_mm(&w, None).unwrap_err().to_string();
        assert!(error.contains("nothing says where groups end"), "{error}");
        for wrong in [-1.0, 3.0, i64::MIN as f64 / 2.0] {
            let index = mesh.full([4], wrong, shard(0))?.to(DType::I64)?;
            let error = x.gather_mm(&w, &index).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Agreed, "{error}");
        }
        let error = x.gather_mm(&w, &x.select(1, 0)?).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Uniform, "{error}");
        let batch = mesh.ones([3, 4, 2], shard(0))?;
        close(
            "a batch",
            &batch.grouped_mm(&w, None)?.to(DType::F64)?,
            &[2.0; 24],
        )
    });
    run.unwrap();
}

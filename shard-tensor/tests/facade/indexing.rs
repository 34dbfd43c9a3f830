//! What is put, folded, picked and sorted by index, and its gradients: on several ranks and layouts what one rank makes.

use ndarray::{Array1, Array2, ArrayD, NewAxis, SliceInfoElem, array, s};
use shard_tensor::{
    BagReduce, Bool, DType, Launch, Mesh, Placements, Result, ScatterReduce, ShardTensor, launch,
    replicate, shard,
};

/// Whole results and gradients of a program of a table `[9, 4]`, an index `[7, 3]` below 9 and a source `[7, 3]`.
pub(crate) type Program =
    fn(&ShardTensor, &ShardTensor, &ShardTensor, &Mesh) -> Result<ShardTensor>;

pub(crate) fn number(i: &[usize]) -> f64 {
    ((29 * i[0] + 13 * i[1] * i[1] + 5) % 17) as f64 - 6.0
}

fn run(ranks: usize, placements: &[Placements; 3], program: Program) -> Vec<ArrayD<f64>> {
    let made = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(ranks)?;
        let [table, index, source] = placements;
        let x = mesh.from_fn([9, 4], table, number)?.requires_grad()?;
        let whole = Array2::from_shape_fn((7, 3), |(a, b)| ((5 * a + 7 * b * a) % 9) as i64);
        let index = mesh.distribute(&whole, index)?;
        let src = mesh
            .from_fn([7, 3], source, |i| number(&[i[0] + 3, i[1] + 1]))?
            .requires_grad()?;
        let made = program(&x, &index, &src, &mesh)?;
        let weights = mesh.from_fn(made.shape(), [replicate()], |i| {
            1.0 + i.iter().fold(1, |h, &k| (7 * h + k) % 11) as f64
        })?;
        let grads = (&made * &weights).sum_all()?.backward()?;
        let mut all = vec![made.to_array::<f64>()?];
        for input in [&x, &src] {
            if let Some(grad) = grads.get(input)? {
                all.push(grad.to_array::<f64>()?);
            }
        }
        Ok(all)
    });
    made.unwrap().remove(0)
}

/// What a program makes where its operands lie in several ways, which is what it makes on one rank: the result, and gradients of both.
pub(crate) fn same_on_all_layouts(program: Program) -> Vec<ArrayD<f64>> {
    let one = run(1, &[(); 3].map(|()| [replicate()].into()), program);
    let rows = || -> Placements { [shard(0)].into() };
    let uneven = || -> Placements { [shard(0).sizes([4, 0, 5])].into() };
    let seven = || -> Placements { [shard(0).sizes([1, 6, 0])].into() };
    let columns = || -> Placements { [shard(1)].into() };
    let copies = || -> Placements { [replicate()].into() };
    for placements in [
        [rows(), rows(), rows()],
        [uneven(), seven(), rows()],
        [columns(), columns(), rows()],
        [copies(), rows(), columns()],
        [rows(), copies(), copies()],
        [uneven(), columns(), seven()],
        [columns(), seven(), copies()],
    ] {
        let made = run(3, &placements, program);
        assert_eq!(made.len(), one.len());
        for (got, expected) in made.iter().zip(&one) {
            assert_eq!(got.shape(), expected.shape());
            let close = |(g, e): (&f64, &f64)| (g - e).abs() <= 1e-12 * e.abs().max(1.0);
            assert!(
                got.iter().zip(expected).all(close),
                "{placements:?}: {got} {expected}"
            );
        }
    }
    one
}

/// What a program written by hand does with all elements that meet at a place of dim 0, the table's own first if it takes part.
fn by_hand(own: bool, fold: fn(&[f64]) -> f64) -> Array2<f64> {
    Array2::from_shape_fn((9, 4), |(row, column)| {
        let x = number(&[row, column]);
        let mut met = if own { vec![x] } else { Vec::new() };
        for a in 0..7 {
            if column < 3 && (5 * a + 7 * column * a) % 9 == row {
                met.push(number(&[a + 3, column + 1]));
            }
        }
        let touched = met.len() > usize::from(own);
        if touched { fold(&met) } else { x }
    })
}

#[test]
fn elements_are_reduced_with_and_without_the_tables_own() {
    macro_rules! check {
        ($how:ident, $own:expr, $fold:expr) => {{
            let made = same_on_all_layouts(|x, index, src, _| {
                x.scatter_reduce(0, index, src, ScatterReduce::$how, $own)
            });
            let expected = by_hand($own, $fold);
            assert!(
                made[0]
                    .iter()
                    .zip(&expected)
                    .all(|(g, e)| (g - e).abs() <= 1e-12 * e.abs().max(1.0)),
                "{} {expected}",
                made[0]
            );
        }};
    }
    check!(Sum, true, |met| met.iter().sum());
    check!(Sum, false, |met| met.iter().sum());
    check!(Mean, true, |met| met.iter().sum::<f64>() / met.len() as f64);
    check!(Mean, false, |met| met.iter().sum::<f64>()
        / met.len() as f64);
    check!(Prod, true, |met| met.iter().product());
    check!(Prod, false, |met| met.iter().product());
    check!(Max, true, |met| met
        .iter()
        .copied()
        .fold(f64::NEG_INFINITY, f64::max));
    check!(Max, false, |met| met
        .iter()
        .copied()
        .fold(f64::NEG_INFINITY, f64::max));
    check!(Min, true, |met| met
        .iter()
        .copied()
        .fold(f64::INFINITY, f64::min));
    check!(Min, false, |met| met
        .iter()
        .copied()
        .fold(f64::INFINITY, f64::min));
}

#[test]
fn of_several_put_to_one_place_the_last_stays() {
    let made = same_on_all_layouts(|x, index, src, _| x.scatter(0, index, src));
    let expected = by_hand(false, |met| met[met.len() - 1]);
    assert_eq!(made[0], expected.into_dyn());
    // The gradient goes to those that stayed, once each.
    let went: f64 = made[2].iter().filter(|g| **g != 0.0).count() as f64;
    let stayed = by_hand(false, |_| 1e9)
        .iter()
        .filter(|x| **x == 1e9)
        .count() as f64;
    assert_eq!(went, stayed);
    let rows = same_on_all_layouts(|x, index, src, _| {
        let index = index.select(1, 2)?;
        x.index_copy(
            0,
            &index,
            &src.pad(&[(0, 0), (0, 1)], shard_tensor::EdgeMap::Zeros, 0.0)?,
        )
    });
    for row in 0..9 {
        let last = (0..7).rev().find(|a| (5 * a + 14 * a) % 9 == row);
        let expected = last.map_or(number(&[row, 1]), |a| number(&[a + 3, 2]));
        assert_eq!(rows[0][[row, 1]], expected);
    }
}

#[test]
fn values_are_put_at_places_of_several_dims() {
    fn put(
        x: &ShardTensor,
        index: &ShardTensor,
        src: &ShardTensor,
        mesh: &Mesh,
        adds: bool,
    ) -> Result<ShardTensor> {
        let columns = mesh.distribute(&Array1::from(vec![0_i64, -1, 2]), [replicate()])?;
        x.index_put(&[index, &columns], src, adds)
    }
    let made = same_on_all_layouts(|x, index, src, mesh| put(x, index, src, mesh, false));
    let added = same_on_all_layouts(|x, index, src, mesh| put(x, index, src, mesh, true));
    let mut last = Array2::from_shape_fn((9, 4), |(a, b)| number(&[a, b]));
    let mut sums = last.clone();
    for a in 0..7 {
        for (b, column) in [0, 3, 2].into_iter().enumerate() {
            let row = (5 * a + 7 * b * a) % 9;
            last[[row, column]] = number(&[a + 3, b + 1]);
            sums[[row, column]] += number(&[a + 3, b + 1]);
        }
    }
    assert_eq!(made[0], last.into_dyn());
    assert_eq!(added[0], sums.into_dyn());
}

#[test]
fn picked_and_sorted_elements_and_their_gradients() {
    let picked = same_on_all_layouts(|x, _, _, mesh| {
        let mask =
            Array2::from_shape_fn((9, 4), |(a, b)| shard_tensor::Bool::from((a + b) % 3 == 0));
        x.masked_select(&mesh.distribute(&mask, [shard(0)])?)
    });
    assert_eq!(picked[0][[1]], number(&[0, 3]));
    assert_eq!(picked[1].iter().filter(|g| **g != 0.0).count(), 12);
    for dim in [0, 1] {
        let sorted = match dim {
            0 => same_on_all_layouts(|x, _, _, _| Ok(x.sort(0, true)?.0)),
            _ => same_on_all_layouts(|x, _, _, _| Ok(x.sort(1, false)?.0)),
        };
        assert_eq!(sorted[1].iter().filter(|g| **g == 0.0).count(), 0);
    }
    let few = same_on_all_layouts(|x, _, _, _| Ok(x.topk(3, 0, false)?.0));
    assert_eq!(few[1].iter().filter(|g| **g != 0.0).count(), 12);
    let third = same_on_all_layouts(|x, _, _, _| Ok(x.kthvalue(3, 0)?.0));
    assert_eq!(few[0].index_axis(ndarray::Axis(0), 2), third[0]);
    let taken = same_on_all_layouts(|x, index, _, _| x.take_along_dim(0, &index.narrow(1, 0..1)?));
    assert_eq!(taken[0].shape(), [7, 4]);
}

#[test]
fn sums_of_16_bit_floats_are_rounded_once() {
    const ROWS: usize = 5000;
    let found = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let index = mesh.distribute(&Array1::from_elem(ROWS, 1_i64), [shard(0)])?;
        let mut all = Vec::new();
        for dtype in [DType::F16, DType::BF16] {
            let mesh = mesh.with_dtype(dtype);
            let table = mesh.ones([3, 2], [shard(0)])?.requires_grad()?;
            let ones = mesh.ones([ROWS, 2], [shard(0)])?;
            let wide = index.unsqueeze(1)?.expand([ROWS, 2])?;
            let sum = ScatterReduce::Sum;
            let sums = [
                table.detach().index_add(0, &index, &ones)?,
                table.detach().scatter_add(0, &wide, &ones)?,
                table.detach().scatter_reduce(0, &wide, &ones, sum, true)?,
                ones.segment_sum(&index, 3)?,
            ];
            for sums in sums {
                assert_eq!(sums.dtype(), dtype);
                all.push(sums.to(DType::F64)?.to_array::<f64>()?[[1, 0]]);
            }
            let means = ones.segment_mean(&index, 3)?.to(DType::F64)?;
            assert_eq!(means.to_array::<f64>()?[[1, 0]], 1.0);
            // And where rows were taken: of the gradient.
            let picked = table.index_select(0, &index)?;
            let grads = picked.to(DType::F32)?.sum_all()?.backward()?;
            let grad = grads.get(&table)?.unwrap();
            assert_eq!(grad.dtype(), dtype);
            all.push(grad.to(DType::F64)?.to_array::<f64>()?[[1, 1]]);
        }
        Ok(all)
    });
    // 5001 and 5000, as near as the types have them; one by one f16 would stay at 2048, and bf16 at 256.
    for all in found.unwrap() {
        assert_eq!(all, [[5000.0; 5], [4992.0; 5]].concat());
    }
}

#[test]
fn indices_stand_as_often_as_counts_say() {
    let made = same_on_all_layouts(|x, _, _, mesh| {
        let counts = mesh.distribute(&array![0_i32, 2, 0, 1, 3, 0, 0, 1, 0], [shard(0)])?;
        let rows = x.repeat_interleave_each(0, &counts, Some(7))?;
        let known = x.repeat_interleave_each(-2, &counts, None)?;
        assert_eq!((rows.shape(), known.shape()), (&[7, 4][..], &[7, 4][..]));
        let columns = mesh.distribute(&array![1_i64, 0, 2, 1], [replicate()])?;
        known
            .add(&rows)?
            .repeat_interleave_each(1, &columns, Some(4))
    });
    for (at, row) in [1, 1, 3, 4, 4, 4, 7].into_iter().enumerate() {
        for (to, column) in [0, 2, 2, 3].into_iter().enumerate() {
            assert_eq!(made[0][[at, to]], 2.0 * number(&[row, column]));
        }
    }
}

#[test]
fn counts_that_do_not_fit_are_errors_on_all_ranks() {
    let errors = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.arange(4, [shard(0)])?;
        let counts = |of: [i64; 4]| mesh.distribute(&Array1::from_vec(of.to_vec()), [shard(0)]);
        let fits = counts([1, 0, 2, 1])?;
        let refused = [
            x.repeat_interleave_each(0, &fits, Some(3)),
            x.repeat_interleave_each(0, &fits, Some(5)),
            x.repeat_interleave_each(0, &fits, Some(usize::MAX)),
            x.repeat_interleave_each(0, &counts([1, -1, 2, 2])?, Some(4)),
            x.repeat_interleave_each(0, &counts([1, -1, 2, 2])?, None),
            x.repeat_interleave_each(0, &counts([1 << 62; 4])?, Some(0)),
            x.repeat_interleave_each(0, &counts([1 << 62; 4])?, None),
            x.repeat_interleave_each(0, &counts([1 << 51; 4])?, None),
            x.repeat_interleave_each(0, &fits.narrow(0, 0..3)?, Some(3)),
            x.repeat_interleave_each(0, &x, Some(4)),
            x.repeat_interleave_each(1, &fits, Some(4)),
        ];
        let made = x.repeat_interleave_each(0, &fits, Some(4))?;
        assert_eq!(
            made.to_array::<f32>()?.as_slice(),
            Some(&[0.0, 2.0, 2.0, 3.0][..])
        );
        Ok(refused.map(|r| r.unwrap_err().to_string()))
    });
    let errors = errors.unwrap();
    assert!(errors.iter().all(|on_rank| *on_rank == errors[0]));
    for error in &errors[0][..2] {
        assert!(error.contains("sum to 4"), "{error}");
    }
    assert!(errors[0][3].contains("-1"), "{}", errors[0][3]);
}

#[test]
#[expect(
    clippy::reversed_empty_ranges,
    reason = "an end below 0 counts from the end"
)]
fn ranges_of_several_dims_are_ndarrays() {
    type Ranges = fn(&ArrayD<f64>, &ShardTensor) -> Result<(ArrayD<f64>, ShardTensor)>;
    macro_rules! ranges {
        ($($of:tt)*) => {
            |x, y| Ok((x.slice(s![$($of)*]).to_owned().into_dyn(), y.slices(s![$($of)*])?))
        };
    }
    let all: [Ranges; 8] = [
        ranges![1..-1, ..;2, ..],
        ranges![.., -1, 2..],
        ranges![3.., 0..4;3, NewAxis, 0],
        ranges![..;-1, 1..5;-2, ..],
        ranges![2..2, .., 1],
        ranges![6, 4, 2],
        ranges![-3..-1, ..-2, -2..],
        ranges![NewAxis, .., .., ..;-3],
    ];
    for at in [shard(0), shard(1), replicate(), shard(0).sizes([1, 0, 6])] {
        let done = Launch::new(3).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(3)?;
            let y = mesh.from_fn([7, 5, 3], at.clone(), |i| {
                (100 * i[0] + 10 * i[1] + i[2]) as f64
            })?;
            let x = y.to_array::<f64>()?;
            for ranges in all {
                let (expected, found) = ranges(&x, &y)?;
                assert_eq!(found.to_array::<f64>()?, expected);
            }
            // Dims behind are whole, and ends beyond are cut off, as in PyTorch.
            assert_eq!(y.slices(s![-1])?.shape(), [5, 3]);
            assert_eq!(y.slices(s![-9..3, 2..90, 8..9])?.shape(), [3, 3, 0]);
            for wrong in [
                y.slices(s![7]),
                y.slices(s![-8]),
                y.slices(s![.., .., .., 0]),
            ] {
                assert!(wrong.unwrap_err().to_string().contains("slices"));
            }
            // All at once: no more moves than what crosses boundaries.
            let before = ctx.ledger().snapshot();
            let grad = y.requires_grad()?;
            let part = grad.slices(s![1.., ..;2, 0])?;
            assert!(ctx.ledger().since(&before).rounds <= 2);
            let grads = part.sum_all()?.backward()?;
            let grads = grads.get(&grad)?.unwrap().to_array::<f64>()?;
            assert_eq!(grads.sum(), 18.0);
            assert_eq!((grads[[1, 2, 0]], grads[[0, 2, 0]]), (1.0, 0.0));
            Ok(())
        });
        done.unwrap();
    }
}

#[test]
fn several_dims_roll_at_once() {
    let made = same_on_all_layouts(|x, _, _, _| x.roll([0, 1, -2], [2, -1, isize::MAX - 7]));
    // isize::MAX - 7 leaves 0 of 9, as 2^63 - 8 does.
    let shift = (isize::MAX - 7) as usize % 9 + 2;
    for i in 0..9 {
        for j in 0..4 {
            assert_eq!(made[0][[(i + shift) % 9, (j + 3) % 4]], number(&[i, j]));
        }
    }
    let error = Launch::new(2).run(|ctx| {
        let x = ctx.mesh_of(2)?.arange(4, [shard(0)])?;
        let before = ctx.ledger().snapshot();
        x.roll([0, 0], [1, -1])?;
        assert_eq!(ctx.ledger().since(&before).bytes, 0);
        Ok(x.roll([0, 0], [1]).unwrap_err().to_string())
    });
    assert!(error.unwrap()[0].contains("as many shifts"));
}

/// What PyTorch gives of numbers, which are lists of one element to it, and of indices that are numbers.
#[test]
fn numbers_are_lists_of_one_element() {
    let found = Launch::new(2).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let whole = |i: &[i64]| mesh.distribute(&Array1::from(i.to_vec()), replicate());
        let (zero, list, twice) = (whole(&[0])?.squeeze(0)?, whole(&[0])?, whole(&[0, 0])?);
        let x = mesh.full((), 5.0, replicate())?.requires_grad()?;
        let two = mesh.full((), 2.0, replicate())?;
        let pair = mesh.distribute(&array![2.0, 3.0], shard(0))?;
        let row = mesh.distribute(&array![1.0, 2.0], shard(0))?;
        let last = whole(&[1])?.squeeze(0)?;
        for (i, (y, shape, expected)) in [
            (x.gather(0, &zero)?, &[][..], &[5.0][..]),
            (x.gather(-1, &twice)?, &[2], &[5.0, 5.0]),
            (row.gather(0, &last)?, &[], &[2.0]),
            (x.index_select(0, &zero)?, &[], &[5.0]),
            (x.index_select(-1, &list)?, &[], &[5.0]),
            (x.scatter(0, &zero, &two)?, &[], &[2.0]),
            (x.scatter(-1, &list, &two.unsqueeze(0)?)?, &[], &[2.0]),
            (x.scatter_value(0, &zero, 3.0)?, &[], &[3.0]),
            (x.scatter_add(0, &zero, &two)?, &[], &[7.0]),
            (x.scatter_add(0, &twice, &pair)?, &[], &[10.0]),
            (row.scatter_add(0, &last, &two)?, &[2], &[1.0, 4.0]),
            (
                x.scatter_reduce(0, &zero, &two, ScatterReduce::Mean, true)?,
                &[],
                &[3.5],
            ),
            (x.index_add(0, &zero, &two)?, &[], &[7.0]),
            (x.index_copy(0, &zero, &two)?, &[], &[2.0]),
            (x.index_fill(0, &zero, 1.0)?, &[], &[1.0]),
            (x.transpose(0, -1)?, &[], &[5.0]),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(y.shape(), shape, "{i}");
            let got: Vec<f64> = y.to_array::<f64>()?.iter().copied().collect();
            assert_eq!(got, expected, "{i}");
        }
        let twofold = x.gather(0, &twice)?.square()?.sum_all()?.backward()?;
        assert_eq!(twofold.get(&x)?.unwrap().item()?, 20.0);
        let refused = [
            x.index_select(0, &twice),
            x.gather(1, &zero),
            x.transpose(0, 1),
            x.scatter(0, &twice.unsqueeze(0)?, &two),
            mesh.ones([2, 2], shard(0))?.gather(0, &zero),
        ];
        for (i, refused) in refused.into_iter().enumerate() {
            assert!(refused.is_err(), "{i}");
        }
        Ok(())
    });
    found.unwrap();
}

#[test]
fn a_number_is_put_where_an_index_says() {
    let filled = same_on_all_layouts(|x, index, _, _| x.index_fill(0, &index.select(1, 1)?, -7.0));
    let scattered = same_on_all_layouts(|x, index, _, _| x.scatter_value(0, index, 4.0));
    let index = Array2::from_shape_fn((7, 3), |(a, b)| (5 * a + 7 * b * a) % 9);
    for (a, b) in (0..9).flat_map(|a| (0..4).map(move |b| (a, b))) {
        let own = number(&[a, b]);
        let is_filled = index.column(1).iter().any(|&i| i == a);
        assert_eq!(filled[0][[a, b]], if is_filled { -7.0 } else { own });
        let is_put = b < 3 && index.column(b).iter().any(|&i| i == a);
        assert_eq!(scattered[0][[a, b]], if is_put { 4.0 } else { own });
        // What was replaced has no gradient, and what stays has its weight.
        assert_eq!(filled[1][[a, b]] == 0.0, is_filled);
        assert_eq!(scattered[1][[a, b]] == 0.0, is_put);
    }
}

/// Numbers of PyTorch 2.
#[test]
fn rows_are_combined_in_bags() {
    let rows = |numbers: &[f64]| Array1::from(numbers.to_vec());
    let sums: &[f64] = &[
        0.14112000806,
        -0.756802495308,
        -0.958924274663,
        0.0,
        0.0,
        0.0,
        0.836655638536,
        0.832619675517,
        0.063077022651,
        0.370872341958,
        0.369083282054,
        0.027960754744,
    ];
    let means: &[f64] = &[
        0.14112000806,
        -0.756802495308,
        -0.958924274663,
        0.0,
        0.0,
        0.0,
        0.418327819268,
        0.416309837759,
        0.031538511325,
        0.185436170979,
        0.184541641027,
        0.013980377372,
    ];
    let largest: &[f64] = &[
        0.14112000806,
        -0.756802495308,
        -0.958924274663,
        0.0,
        0.0,
        0.0,
        0.836655638536,
        0.841470984808,
        0.909297426826,
        0.650287840157,
        0.656986598719,
        0.989358246623,
    ];
    let expected = [
        (
            BagReduce::Sum,
            sums,
            [21.0, 3.0, 30.0, 0.0, 0.0, 30.0, 0.0, 21.0],
        ),
        (
            BagReduce::Mean,
            means,
            [10.5, 3.0, 15.0, 0.0, 0.0, 15.0, 0.0, 10.5],
        ),
        (
            BagReduce::Max,
            largest,
            [15.0, 3.0, 21.0, 0.0, 0.0, 9.0, 0.0, 6.0],
        ),
    ];
    let padded: [&[f64]; 3] = [
        &[
            0.14112000806,
            -0.756802495308,
            -0.958924274663,
            0.0,
            0.841470984808,
            0.909297426826,
            0.557240140337,
            0.648135289428,
            0.143137842448,
        ],
        &[
            0.14112000806,
            -0.756802495308,
            -0.958924274663,
            0.0,
            0.841470984808,
            0.909297426826,
            0.278620070169,
            0.324067644714,
            0.071568921224,
        ],
        &[
            0.14112000806,
            -0.756802495308,
            -0.958924274663,
            0.0,
            0.841470984808,
            0.909297426826,
            0.836655638536,
            0.656986598719,
            0.989358246623,
        ],
    ];
    let close = |got: &ShardTensor, expected: &[f64], what: &str| -> Result<()> {
        let got = Array1::from_iter(got.to_array::<f64>()?);
        let far = (&got - &rows(expected))
            .mapv(f64::abs)
            .into_iter()
            .fold(0.0, f64::max);
        assert!(far < 1e-6, "{what}: {got}");
        Ok(())
    };
    let layouts: [[Placements; 3]; 4] = [
        [replicate().into(), replicate().into(), replicate().into()],
        [
            shard(0).into(),
            shard(0).sizes([2, 0, 5]).into(),
            replicate().into(),
        ],
        [shard(1).into(), shard(0).into(), shard(0).into()],
        [
            shard(0).sizes([0, 7, 1]).into(),
            replicate().into(),
            shard(0).into(),
        ],
    ];
    for (ranks, [table, list, begins]) in [1, 3, 3, 3].into_iter().zip(layouts) {
        let found = Launch::new(ranks).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of(ranks)?;
            let wave = |i: &[usize]| ((3 * i[0] + i[1]) as f64).sin();
            let table = mesh.from_fn([8, 3], &table, wave)?.requires_grad()?;
            let words = mesh.distribute(&array![1_i64, 4, 4, 0, 7, 2, 5], &list)?;
            let begins = mesh.distribute(&array![0_i64, 3, 3, 5], &begins)?;
            for ((how, values, gradients), padded) in expected.into_iter().zip(padded) {
                let y = table.embedding_bag(&words, Some(&begins), how, None, Some(4))?;
                close(&y, values, &format!("{how:?}"))?;
                let by = mesh.from_fn([4, 3], replicate(), |i| (3 * i[0] + i[1]) as f64)?;
                let gradient = y.mul(&by)?.sum_all()?.backward()?.get(&table)?.unwrap();
                close(
                    &gradient.sum(1, false)?,
                    &gradients,
                    &format!("{how:?} gradient"),
                )?;
                let pairs = words.narrow(0, 0..6)?.reshape([3, 2])?;
                let y = table.embedding_bag(&pairs, None, how, None, Some(4))?;
                close(&y, padded, &format!("{how:?} of pairs"))?;
                let none = words.reshape([7, 1])?.narrow(1, 0..0)?;
                let y = table.embedding_bag(&none, None, how, None, None)?;
                assert_eq!((y.shape(), y.abs()?.sum_all()?.item()?), (&[7, 3][..], 0.0));
            }
            let factors = mesh.arange(7, &list)?;
            let sums = (Some(&begins), BagReduce::Sum, Some(&factors));
            let y = table.embedding_bag(&words, sums.0, sums.1, sums.2, None)?;
            let weighted = [
                -1.609718754001,
                1.26050111048,
                2.971822067085,
                0.0,
                0.0,
                0.0,
                3.346622554144,
                2.489007717262,
                -0.656989336224,
                2.504649549948,
                1.557513093604,
                -0.82159371816,
            ];
            close(&y, &weighted, "weighted")?;
            let wrong = |numbers: &[i64]| -> Result<bool> {
                let begins = mesh.distribute(&Array1::from(numbers.to_vec()), replicate())?;
                Ok(table
                    .embedding_bag(&words, Some(&begins), BagReduce::Sum, None, None)
                    .is_err())
            };
            for numbers in [&[1_i64, 3][..], &[0, 3, 2], &[0, 8], &[0, -1, 2], &[]] {
                assert!(wrong(numbers)?, "{numbers:?}");
            }
            assert!(!wrong(&[0, 7])?);
            let refused = [
                table.embedding_bag(&words, None, BagReduce::Sum, None, None),
                table.embedding_bag(&words, Some(&begins), BagReduce::Max, Some(&factors), None),
                table.embedding_bag(&words, Some(&begins), BagReduce::Sum, None, Some(8)),
                table.embedding_bag(&words, Some(&factors), BagReduce::Sum, None, None),
            ];
            for (i, refused) in refused.into_iter().enumerate() {
                assert!(refused.is_err(), "{i}");
            }
            Ok(())
        });
        found.unwrap();
    }
}

#[test]
fn ranges_of_several_dims_are_replaced_wherever_both_lie() {
    let source = |a: usize, b: usize| number(&[a + 3, b + 1]);
    // Forwards behind the first of both dims; every second column backwards; and all of the first column.
    type From = fn([usize; 2]) -> Option<[usize; 2]>;
    let cases: [(Program, From); 3] = [
        (
            |x, _, src, _| x.slices_assign(s![-8..-1, 1..], src),
            |[a, b]| ((1..8).contains(&a) && b > 0).then(|| [a - 1, b - 1]),
        ),
        (
            |x, _, src, _| x.slices_assign(s![2..;-1, 1..;-2], &src.narrow(1, 1..=2)?),
            |[a, b]| (a > 1 && b % 2 == 1).then(|| [8 - a, if b == 1 { 2 } else { 1 }]),
        ),
        (
            |x, _, src, _| x.slices_assign(s![.., 0], &src.slices(s![2, 1])?),
            |[_, b]| (b == 0).then_some([2, 1]),
        ),
    ];
    for (i, (assign, from)) in cases.into_iter().enumerate() {
        let found = same_on_all_layouts(assign);
        let expected = Array2::from_shape_fn((9, 4), |(a, b)| {
            from([a, b]).map_or(number(&[a, b]), |[k, l]| source(k, l))
        });
        assert_eq!(found[0], expected.into_dyn(), "{i}");
        assert_eq!(found.len(), 3);
        let mut slopes = found[1].indexed_iter();
        assert!(slopes.all(|(at, &x)| (x != 0.0) == from([at[0], at[1]]).is_none()));
    }
    // A number is put in the type of the table.
    let found = same_on_all_layouts(|x, _, _, _| x.slices_assign(s![1..;3, -2..], -7));
    let is_put = |at: [usize; 2]| at[0] % 3 == 1 && at[1] > 1;
    for (at, &x) in found[0].indexed_iter() {
        let own = number(&[at[0], at[1]]);
        let expected = if is_put([at[0], at[1]]) { -7.0 } else { own };
        assert_eq!(x, expected, "{at:?}");
    }
    let mut slopes = found[1].indexed_iter();
    assert!(slopes.all(|(at, &x)| (x == 0.0) == is_put([at[0], at[1]])));
    let refused = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4, 2], shard(0))?;
        let whole = x.to(DType::I64)?;
        assert!(whole.slices_assign(s![0, ..], 0.5).is_err());
        let other = mesh.with_dtype(DType::F64).zeros([2], shard(0))?;
        for (i, wrong) in [
            x.slices_assign(s![.., ..], &other),
            x.slices_assign(s![.., .., ..], &x),
            x.slices_assign(s![1..3], &mesh.ones([3, 2], shard(0))?),
            x.slices_assign(s![4], &x.select(0, 0)?),
            x.slices_assign(s![..;0], &x),
        ]
        .into_iter()
        .enumerate()
        {
            let text = wrong.unwrap_err().to_string();
            assert!(i == 0 || text.starts_with("slices_assign: "), "{i}: {text}");
        }
        let one = x.sum_all()?.slices_assign(s![..;0], &x);
        assert!(one.is_err());
        let none: [SliceInfoElem; 0] = [];
        let replaced = x.sum_all()?.slices_assign(none, &x.mean_all()?)?;
        assert_eq!((replaced.ndim(), replaced.item()?), (0, 1.0));
        let all = x.slices_assign(s![.., ..], &x.narrow(0, ..=0)?.mul_scalar(3.0)?)?;
        assert_eq!(all.sum_all()?.item()?, 24.0);
        Ok(())
    });
    refused.unwrap();
}

#[test]
fn a_slice_is_replaced_wherever_both_lie() {
    let source = |a: usize, b: usize| number(&[a + 3, b + 1]);
    for (start, step) in [(1_usize, 1_isize), (8, -1)] {
        let found = match step {
            1 => same_on_all_layouts(|x, _, src, _| x.narrow(1, 0..3)?.slice_assign(0, 1, 1, src)),
            _ => {
                same_on_all_layouts(|x, _, src, _| x.narrow(1, 1..4)?.slice_assign(-2, 8, -1, src))
            }
        };
        let first = usize::from(step < 0);
        let expected = Array2::from_shape_fn((9, 3), |(a, b)| {
            let from = (0..7).find(|&k| start as isize + k * step == a as isize);
            from.map_or(number(&[a, b + first]), |k| source(k as usize, b))
        });
        assert_eq!(found[0], expected.into_dyn());
        // Both have gradients: the source all, the table of what stays.
        assert_eq!(found.len(), 3);
        assert!(found[2].iter().all(|&x| x != 0.0));
        assert_eq!(found[1].iter().filter(|&&x| x != 0.0).count(), 2 * 3);
    }
    let refused = Launch::new(2).run(|ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, two) = (mesh.ones([4, 2], shard(0))?, mesh.zeros([2, 2], shard(1))?);
        let empty = x.slice_assign(0, 4, 1, &two.narrow(0, 0..0)?)?;
        assert_eq!(empty.sum_all()?.item()?, 8.0);
        for (i, wrong) in [
            x.slice_assign(0, 3, 1, &two),
            x.slice_assign(0, 0, -1, &two),
            x.slice_assign(0, 1, 0, &two),
            x.slice_assign(0, usize::MAX, isize::MIN, &two),
            x.slice_assign(1, 0, 1, &two),
            x.slice_assign(2, 0, 1, &two),
            x.slice_assign(0, 0, 1, &two.select(0, 0)?),
        ]
        .into_iter()
        .enumerate()
        {
            assert!(wrong.is_err(), "{i}");
        }
        Ok(())
    });
    refused.unwrap();
}

/// As in PyTorch: -1 is a mark for no word in many data sets, and the last row would stand in its place.
#[test]
fn a_table_of_words_has_no_row_from_the_end() {
    let told = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let words = mesh.distribute(&array![0_i64, 4, -1], shard(0))?;
        let mut told = Vec::new();
        for rows in [shard(0), replicate()] {
            let table = mesh.randn([5, 2], rows)?.requires_grad()?;
            for words in [&words, &words.redistribute(replicate())?] {
                told.push(table.embedding(words, None).unwrap_err().to_string());
                told.push(table.embedding(words, Some(4)).unwrap_err().to_string());
            }
            // What is picked from any array counts from the end.
            let last = table.index_select(0, &words)?.narrow(0, 2..)?;
            assert!(last.allclose(&table.narrow(0, 4..)?, 0.0, 0.0, false)?);
        }
        Ok(told)
    });
    for told in told.unwrap().concat() {
        assert!(told.contains("embedding") && told.contains("-1"), "{told}");
    }
}

/// Of every type, of lists of any shape, and with what is equal to nothing; nothing is as large as all pairs.
#[test]
fn elements_are_found_among_others() {
    let (values, list) = (
        [3.0, f64::NAN, -0.0, 1.0, 300.0, 3.0, 0.5],
        [[0.0, 3.0], [f64::NAN, 7.0]],
    );
    let types = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::U8,
        DType::Bool,
    ];
    for dtype in types {
        let is_float = matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
        let expected: Vec<bool> = match dtype {
            // Numbers are cut to whole ones, NaN and one half to 0, and 300 to the largest; all but zeros are true.
            DType::Bool => vec![true; 7],
            _ if is_float => [3.0, -0.0, 3.0]
                .map(|v| values.map(|x| x == v))
                .into_iter()
                .fold(vec![false; 7], |all, more| {
                    all.iter().zip(more).map(|(a, b)| *a || b).collect()
                }),
            _ => vec![true, true, true, false, false, true, true],
        };
        for (left, right) in [
            (shard(0), shard(0)),
            (shard(0).sizes([4, 0, 3]), replicate()),
            (replicate(), shard(1)),
        ] {
            let found = Launch::new(3).dtype(DType::F64).run(|ctx| {
                let mesh = ctx.mesh_of(3)?;
                let x = mesh.from_fn(7, left.clone(), |i| values[i[0]])?.to(dtype)?;
                let of = |i: &[usize]| list[i[0]][i[1]];
                let among = mesh.from_fn([2, 2], replicate(), of)?.to(dtype)?;
                let among = among.redistribute(right.clone())?;
                let none = x.isin(&among.narrow(0, 0..0)?)?;
                assert_eq!(none.count_nonzero(.., false)?.item()?, 0.0);
                let number = x.narrow(0, 0..1)?.squeeze(0)?.isin(&among)?;
                assert_eq!((number.shape(), number.item()?), (&[][..], 1.0));
                let found = x.isin(&among)?;
                assert_eq!(found.layout(), x.layout());
                found.to_array::<Bool>()
            });
            for rank in found.unwrap() {
                let found: Vec<bool> = rank.iter().map(|b| b.get()).collect();
                assert_eq!(found, expected, "{dtype} {left:?} {right:?}");
            }
        }
    }
    let told = launch(1, |ctx| {
        let x = ctx.mesh_of(1)?.ones([2], replicate())?;
        Ok(x.isin(&x.to(DType::I64)?).unwrap_err().to_string())
    });
    let told = told.unwrap().remove(0);
    assert!(
        told.starts_with("isin: operand 1 is i64, expected f32"),
        "{told}"
    );
}

#[test]
fn a_scalar_is_found_by_an_index_of_no_dims() -> Result<()> {
    launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        for (number, found) in [(3.0, 1), (0.0, 0)] {
            let x = mesh.full((), number, replicate())?;
            assert_eq!(x.nonzero()?.shape(), [found, 0]);
            let picked = x.masked_select(&x.ne_scalar(0.0)?)?.to_array::<f32>()?;
            assert!(picked.len() == found && picked.iter().all(|&x| x == 3.0));
        }
        Ok(())
    })?;
    Ok(())
}

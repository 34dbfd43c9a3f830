//! Integers and truth values as elements, and what is chosen by them.

use ndarray::{Array2, ArrayD, IxDyn, arr1, arr2};
use shard_tensor::{
    Bool, DType, Element, ErrorClass, GradCheck, Launch, Mesh, Placements, Result, ShardTensor,
    checkpoint, launch, partial, replicate, shard,
};

/// The shape of a mesh, and placements on it.
type OnMesh = (Vec<usize>, fn() -> Placements);

/// Meshes and layouts of a table of 7 rows: one rank, parts that are empty, more ranks than rows, two axes on one dim and on two.
fn layouts() -> Vec<OnMesh> {
    vec![
        (vec![1], || [shard(0)].into()),
        (vec![3], || [shard(0).sizes([4, 0, 3])].into()),
        (vec![9], || [shard(0)].into()),
        (vec![2, 2], || [shard(0), shard(0)].into()),
        (vec![2, 3], || [shard(1), shard(0).sizes([1, 6, 0])].into()),
        (vec![2, 2], || [replicate(), shard(1)].into()),
    ]
}

/// The same program under all of them; what every rank gave, which is the same.
fn on_all<T: Send + PartialEq + std::fmt::Debug>(
    expected: &T,
    program: impl Fn(&Mesh, Placements) -> Result<T> + Sync,
) {
    for (shape, placements) in layouts() {
        let ranks = shape.iter().product();
        let found =
            Launch::new(ranks).run(|ctx| program(&ctx.mesh_of(shape.clone())?, placements()));
        for (rank, found) in found.unwrap().iter().enumerate() {
            assert_eq!(found, expected, "rank {rank} of {shape:?}");
        }
    }
}

fn table<T: Element>(f: impl Fn(usize, usize) -> T) -> ArrayD<T> {
    ArrayD::from_shape_fn(IxDyn(&[7, 3]), |i| f(i[0], i[1]))
}

macro_rules! wrapping {
    ($name:ident, $type:ty) => {
        #[test]
        fn $name() {
            type T = $type;
            let ends = [T::MIN, T::MAX, 1, 2, T::MAX / 3];
            let a = table(|i, j| ends[(3 * i + j) % 5]);
            let b = table(|i, j| [3, T::MAX, 2][(i + 2 * j) % 3]);
            type Map = fn(&ShardTensor, &ShardTensor) -> Result<ShardTensor>;
            let maps: [(Map, fn(T, T) -> T); 8] = [
                (ShardTensor::add, T::wrapping_add),
                (ShardTensor::sub, T::wrapping_sub),
                (ShardTensor::mul, T::wrapping_mul),
                (ShardTensor::floor_div, T::div_euclid),
                (ShardTensor::remainder, T::rem_euclid),
                (ShardTensor::maximum, |a, b| a.max(b)),
                (ShardTensor::bitwise_xor, |a, b| a ^ b),
                (ShardTensor::shift_right, |a, b| {
                    let (a, b) = (i128::from(a), i128::from(b));
                    let shifted = if b < i128::from(T::BITS) {
                        a >> b
                    } else {
                        a >> 100
                    };
                    shifted as T
                }),
            ];
            let expected: Vec<ArrayD<T>> = maps
                .iter()
                .map(|(_, exact)| table(|i, j| exact(a[[i, j]], b[[i, j]])))
                .chain([a.mapv(T::wrapping_neg), a.mapv(|x| x.wrapping_mul(x))])
                .collect();
            on_all(&expected, |mesh, placements| {
                let x = mesh.distribute(&a, placements)?;
                // Misaligned, as often as not.
                let y = mesh.distribute(&b, Placements::replicated())?;
                assert_eq!(x.dtype(), T::DTYPE);
                let mut all = Vec::new();
                for (map, _) in &maps {
                    all.push(map(&x, &y)?.to_array::<T>()?);
                }
                all.push((-&x).to_array()?);
                all.push(x.square()?.to_array()?);
                Ok(all)
            });
        }
    };
}

wrapping!(arithmetic_of_i64_wraps_under_every_layout, i64);
wrapping!(arithmetic_of_i32_wraps_under_every_layout, i32);
wrapping!(arithmetic_of_u8_wraps_under_every_layout, u8);

#[test]
fn sums_of_narrow_types_are_wide_and_wait_as_partial_sums() {
    let bytes = table(|i, j| (50 * i + j) as u8);
    let truths = table(|i, j| Bool::new((i + j) % 3 == 0));
    let ints = table(|i, j| i32::MAX - (i * 3 + j) as i32);
    let sum = |f: &dyn Fn(usize, usize) -> i64| (0..21).map(|k| f(k / 3, k % 3)).sum::<i64>();
    let expected = (
        sum(&|i, j| i64::from(bytes[[i, j]])),
        sum(&|i, j| i64::from(truths[[i, j]].get())),
        sum(&|i, j| i64::from(ints[[i, j]])),
        [i32::MAX - 20, i32::MAX],
        arr1(&[true, true, true].map(Bool::from)).into_dyn(),
        arr1(&[0, 1, 2].map(|j| (0..7).map(|i| i64::from(bytes[[i, j]])).product::<i64>()))
            .into_dyn(),
    );
    on_all(&expected, |mesh, placements| {
        let x = mesh.distribute(&bytes, placements.clone())?;
        let t = mesh.distribute(&truths, placements.clone())?;
        let i = mesh.distribute(&ints, placements)?;
        let number = |x: ShardTensor| -> Result<i64> { Ok(x.to_array::<i64>()?.sum()) };
        let (least, most) = (i.amin([0, 1], false)?, i.amax([0, 1], false)?);
        assert_eq!(
            (least.dtype(), x.amax(0, true)?.dtype()),
            (DType::I32, DType::U8)
        );
        if x.layout()
            .sharding(0)
            .is_some_and(|s| s.partition.parts() > 1)
        {
            assert!(x.sum_all()?.layout().to_string().contains("P(sum)"));
            assert!(most.layout().to_string().contains("P(max)"));
        }
        let ends = [least, most].map(|x| x.to_array::<i32>().map(|x| x.sum()));
        let [least, most] = ends;
        Ok((
            number(x.sum_all()?)?,
            number(t.sum([0, 1], true)?)?,
            number(i.sum([0, 1], false)?)?,
            [least?, most?],
            // Moved while it is terms, to where it is divided.
            t.any(0, false)?
                .redistribute(vec![shard(0); mesh.mesh().ndim()])?
                .to_array()?,
            x.prod(0, false)?
                .redistribute(vec![shard(0); mesh.mesh().ndim()])?
                .to_array()?,
        ))
    });
}

#[test]
fn ten_lines_of_a_user_read_well() {
    let expected = (
        0.625,
        arr1(&[1_i64, 2, 0, 5]).into_dyn(),
        arr1(&[0.0_f32, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 7.0]).into_dyn(),
        3.0,
    );
    on_all(&expected, |mesh, _| {
        let first = vec![shard(0); mesh.mesh().ndim()];
        // How many of the guesses are right.
        let labels = mesh.distribute(&arr1(&[0_i64, 1, 2, 0, 1, 2, 0, 1]), first.clone())?;
        let guesses = mesh.distribute(&arr1(&[0_i64, 1, 2, 2, 1, 0, 1, 1]), first.clone())?;
        let accuracy = guesses.eq(&labels)?.to(DType::F32)?.mean_all()?.item()?;
        // How many edges of a graph end at each node.
        let ends = mesh.distribute(&arr1(&[3_i64, 1, 3, 0, 1, 3, 3, 3]), first.clone())?;
        let degrees = ends.one_hot(4)?.sum(0, false)?.to_array::<i64>()?;
        // Numbers above 2 that are no multiples of 5 or 6.
        let x = mesh.arange(8, first)?;
        let kept = x.gt_scalar(2.0)?;
        let kept = kept.logical_and(
            &x.remainder(&mesh.full((), 5, Placements::replicated())?)?
                .ne_scalar(0.0)?,
        )?;
        let sixes = x.eq_scalar(6.0)?;
        let chosen = kept.where_(&x, 0)?.masked_fill(&sixes, 0.0)?;
        let count = chosen.count_nonzero(0, false)?.item()?;
        Ok((accuracy, degrees, chosen.to_array::<f32>()?, count))
    });
}

#[test]
fn comparisons_logic_and_bits_of_every_type() {
    let [f, t] = [Bool::FALSE, Bool::TRUE];
    let expected = (
        vec![t, f, t, f, f, t, f],
        vec![f, f, f, t, t, f, t],
        vec![t, f, f, f, f, t, t],
    );
    on_all(&expected, |mesh, _| {
        let first = vec![shard(0); mesh.mesh().ndim()];
        let all = |x: ShardTensor| -> Result<Vec<Bool>> {
            Ok(x.to_array::<Bool>()?.into_iter().collect())
        };
        for dtype in [DType::F64, DType::F32, DType::I64, DType::I32, DType::U8] {
            let of = |x: [u8; 7]| -> Result<ShardTensor> {
                mesh.distribute(&arr1(&x), first.clone())?.to(dtype)
            };
            let (a, b) = (of([0, 1, 2, 3, 0, 9, 7])?, of([0, 2, 1, 3, 9, 0, 7])?);
            assert_eq!(all(a.ge(&b)?)?, [t, f, t, t, f, t, t], "{dtype}");
            assert_eq!(all(a.lt(&b)?)?, [f, t, f, f, t, f, f], "{dtype}");
            assert_eq!(all(a.logical_xor(&b)?)?, [f, f, f, f, t, t, f], "{dtype}");
            assert_eq!(all(a.logical_not()?)?, [t, f, f, f, t, f, f], "{dtype}");
        }
        let x = mesh.distribute(&arr1(&[f, t, f, t, t, f, t]), first.clone())?;
        let y = mesh.distribute(&arr1(&[f, f, f, t, t, f, t]), first.clone())?;
        let both = all(x.bitwise_and(&y)?)?;
        assert_eq!(all(x.mul(&y)?)?, both);
        assert_eq!(all(x.add(&y)?)?, all(x.logical_or(&y)?)?);
        Ok((
            all(x.bitwise_not()?)?,
            both,
            all(x
                .eq(&y)?
                .bitwise_xor(&mesh.distribute(&arr1(&[f, f, t, t, t, f, f]), first)?)?)?,
        ))
    });
}

#[test]
fn conversions_go_to_the_nearest_number_that_there_is() {
    let checked = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?.with_dtype(DType::F64);
        let x = [-3.9, 0.5, 300.0, f64::NAN, 1e30];
        let x = mesh.distribute(&arr1(&x), shard(0))?;
        let whole = |x: ShardTensor| -> Result<Vec<i64>> {
            Ok(x.to(DType::I64)?.to_array::<i64>()?.into_iter().collect())
        };
        assert_eq!(whole(x.clone())?, [-3, 0, 300, 0, i64::MAX]);
        assert_eq!(
            whole(x.to(DType::I32)?)?,
            [-3, 0, 300, 0, i64::from(i32::MAX)]
        );
        assert_eq!(whole(x.to(DType::U8)?)?, [0, 0, 255, 0, 255]);
        assert_eq!(whole(x.to(DType::Bool)?)?, [1, 1, 1, 1, 1]);
        // Not by way of a type that lacks the number.
        let odd = mesh
            .with_dtype(DType::I64)
            .full(1, (1_i64 << 60) + 1, replicate())?;
        assert_eq!(odd.to_array::<i64>()?[0], (1 << 60) + 1);
        assert_eq!(
            odd.to(DType::F32)?.to_array::<f32>()?[0],
            (1_u64 << 60) as f32
        );
        assert_eq!(
            odd.to(DType::U8)?.to(DType::BF16)?.to(DType::I32)?.item()?,
            255.0
        );
        // A sum is converted as a whole: of terms 0.5 and 0.5, not of each.
        let half = mesh.full(2, 0.5, shard(0))?.sum_all()?;
        assert_eq!(half.layout().to_string(), "P(sum)");
        assert_eq!(half.to(DType::I64)?.item()?, 1.0);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn tensors_of_every_type_come_from_nothing_and_from_files() {
    let path = std::env::temp_dir().join(format!("shard-tensor-types-{}", std::process::id()));
    let types = [DType::I64, DType::I32, DType::U8, DType::Bool];
    let saved = Launch::new(4).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let mut all = Vec::new();
        for dtype in types {
            let mesh = mesh.with_dtype(dtype);
            let ones = mesh.ones([3, 2], [shard(0), shard(1)])?;
            assert_eq!(ones.sum_all()?.item()?, 6.0);
            assert_eq!(
                mesh.eye([3, 2], [shard(0), shard(0)])?
                    .count_nonzero([0, 1], false)?
                    .item()?,
                2.0
            );
            assert_eq!(
                mesh.zeros(3, [shard(0), replicate()])?
                    .any(0, false)?
                    .item()?,
                0.0
            );
            all.push((dtype.to_string(), ones));
        }
        let long = mesh.with_dtype(DType::I32);
        let count: Vec<i32> = long
            .arange(5, [shard(0), shard(0)])?
            .to_array()?
            .into_iter()
            .collect();
        assert_eq!(count, [0, 1, 2, 3, 4]);
        // PyTorch's: counted from either end, and cut.
        let line: Vec<i32> = long
            .linspace(-2.0, 5.0, 4, [shard(0), replicate()])?
            .to_array()?
            .into_iter()
            .collect();
        assert_eq!(line, [-2, 0, 2, 5]);
        assert_eq!(
            mesh.linspace(3.0, 9.0, 1, [replicate(), replicate()])?
                .item()?,
            3.0
        );
        checkpoint::save(&path, &all)?;
        long.full(2, 3, Placements::replicated())?
            .sub_scalar(5.0)?
            .to_array::<i32>()
    });
    assert_eq!(saved.unwrap()[3], arr1(&[-2, -2]).into_dyn());
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for dtype in types {
        let tensor = file.tensor(&dtype.to_string()).unwrap();
        assert_eq!(
            (tensor.shape(), tensor.data().len()),
            (&[3, 2][..], 6 * dtype.size())
        );
        assert!(tensor.data().chunks(dtype.size()).all(|one| one[0] == 1));
    }
    // On other ranks, in another layout, of the type that the file tells.
    let loaded = Launch::new(3).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let missing = checkpoint::read(&path, "f32", &mesh, shard(0)).unwrap_err();
        assert_eq!(missing.class(), ErrorClass::Agreed);
        let missing = missing.to_string();
        let sums = types.map(|dtype| {
            let x = checkpoint::read(&path, dtype.name(), &mesh, shard(1).sizes([1, 0, 1]))?;
            assert_eq!((x.dtype(), x.shape()), (dtype, &[3, 2][..]));
            x.sum_all()?.item()
        });
        Ok((missing, sums.into_iter().collect::<Result<Vec<f64>>>()?))
    });
    for (missing, sums) in loaded.unwrap() {
        assert!(missing.contains("no tensor \"f32\""), "{missing}");
        assert_eq!(sums, [6.0; 4]);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_user_who_errs_is_told_what_to_write() {
    let texts = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let ints = mesh.with_dtype(DType::I64).arange(4, shard(0))?;
        let (floats, bytes) = (ints.to(DType::F32)?, ints.to(DType::U8)?);
        let truths = ints.gt_scalar(1.0)?;
        let uniform = [
            ("mixed", ints.add(&floats)),
            ("compared", ints.eq(&bytes)),
            ("shifted", floats.shift_left(&floats)),
            ("bits", floats.bitwise_and(&floats)),
            ("minus", truths.neg()),
            ("difference", truths.sub(&truths)),
            ("mean", ints.mean_all()),
            ("exp", ints.exp()),
            ("logarithms", ints.logcumsumexp(0)),
            ("mask", floats.masked_fill(&ints, 0.0)),
            ("condition", ints.where_(&floats, &floats)),
            ("branches", truths.where_(&floats, &ints)),
            ("classes", floats.one_hot(4)),
        ];
        let mut texts = Vec::new();
        for (what, result) in uniform {
            let error = result.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform, "{what}");
            assert!(error.to_string().contains(".to()"), "{what}: {error}");
            texts.push(error.to_string());
        }
        for (what, result) in [
            ("fraction", ints.add_scalar(0.5)),
            ("too large", bytes.mul_scalar(256.0)),
            ("below", bytes.lt_scalar(-1.0)),
            ("fill", ints.masked_fill(&truths, 0.5)),
            ("shape", floats.tril(0)),
            ("twice", floats.diagonal(0, 0, 0)),
            ("dim", ints.cumsum(1)),
            ("numbers", truths.where_(1.0, 2.0)),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Uniform, "{what}: {error}");
            texts.push(error.to_string());
        }
        // What one rank alone sees, all are told.
        let error = ints.one_hot(3).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Agreed);
        assert!(error.to_string().contains("from 0 to 3"), "{error}");
        texts.push(error.to_string());
        // And the group goes on.
        assert_eq!(ints.one_hot(4)?.sum_all()?.item()?, 4.0);
        Ok(texts)
    });
    let texts = texts.unwrap();
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn gradients_go_by_floats_alone() {
    let slopes = Launch::new(3).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh
            .arange(5, [shard(0).sizes([1, 0, 4])])?
            .requires_grad()?;
        // The comparison is a constant: its gradient is none, and that of the product is the mask.
        let mask = x.ge_scalar(2.0)?;
        assert!(!mask.is_tracked() && !x.to(DType::I64)?.to(DType::F64)?.is_tracked());
        let loss = x.mul(&mask.to(DType::F64)?)?.sum_all()?;
        let slope = loss.backward()?.get(&x)?.expect("the loss depends on x");
        assert_eq!(slope.layout(), x.layout());
        slope.to_array::<f64>()
    });
    assert_eq!(
        slopes.unwrap()[1],
        arr1(&[0.0, 0.0, 1.0, 1.0, 1.0]).into_dyn()
    );
}

#[test]
fn choices_and_triangles_have_the_slopes_of_differences() {
    let checked = Launch::new(4).dtype(DType::F64).run(|ctx| {
        let mesh = ctx.mesh_of([2, 2])?;
        let x = mesh.randn([5, 4], [shard(0).sizes([4, 1]), shard(1)])?;
        let y = mesh.randn([4], [replicate(), shard(0)])?;
        type Function<'a> = &'a dyn Fn(&ShardTensor, &ShardTensor) -> Result<ShardTensor>;
        let functions: [Function<'_>; 8] = [
            &|x, y| x.gt(y)?.where_(&x.square()?, y),
            &|x, y| x.gt(y)?.where_(3.0, y),
            &|x, y| x.mul(y)?.masked_fill(&y.gt_scalar(0.0)?, 0.0),
            &|x, y| x.mul(y)?.masked_fill(&x.lt(y)?, 7.0),
            &|x, y| x.mul(y)?.tril(-1)?.square(),
            &|x, y| x.mul(y)?.triu(1)?.square(),
            &|x, y| x.mul(y)?.diagonal(-1, 0, 1)?.square(),
            &|x, y| x.mul(y)?.remainder(&x.square()?.add_scalar(1.0)?),
        ];
        for (i, f) in functions.iter().enumerate() {
            let f = |v: &[ShardTensor]| Ok(vec![f(&v[0], &v[1])?]);
            let report = ctx.gradcheck(f, &[&x, &y], GradCheck::default())?;
            assert_eq!(report.compared, 24, "{i}");
        }
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn triangles_and_diagonals_are_of_the_whole() {
    let expected = (
        arr2(&[[0.0_f32, 0.0, 0.0], [4.0, 0.0, 0.0], [7.0, 8.0, 0.0]]).into_dyn(),
        vec![2.0_f32, 6.0],
        vec![4.0_f32, 8.0, 12.0],
    );
    on_all(&expected, |mesh, placements| {
        let x = mesh.from_fn([7, 3], placements, |i| (3 * i[0] + i[1] + 1) as f64)?;
        let all =
            |x: ShardTensor| -> Result<Vec<f32>> { Ok(x.to_array::<f32>()?.into_iter().collect()) };
        let lower = x.tril(-1)?;
        assert_eq!(lower.layout(), x.layout());
        assert_eq!(
            lower.add(&x.triu(0)?)?.to_array::<f32>()?,
            x.to_array::<f32>()?
        );
        Ok((
            lower.narrow(0, 0..3)?.to_array()?,
            all(x.diagonal(1, 0, 1)?)?,
            all(x.transpose(0, 1)?.diagonal(1, -2, -1)?)?,
        ))
    });
}

#[test]
fn partial_integers_are_what_they_sum_to() {
    let read = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?.with_dtype(DType::I32);
        let ones = mesh.ones([2, 3], shard(1))?.to(DType::I64)?;
        let terms = ones.sum(1, false)?;
        assert_eq!(terms.layout().to_string(), "P(sum)");
        // Products with a number keep it waiting, comparisons do not.
        let twice = terms.mul_scalar(2.0)?;
        assert_eq!(twice.layout().to_string(), "P(sum)");
        assert_eq!(
            terms
                .masked_fill(&mesh.zeros(2, replicate())?.eq_scalar(1.0)?, 0.0)?
                .layout()
                .to_string(),
            "P(sum)"
        );
        let six = twice.eq_scalar(6.0)?;
        assert_eq!(six.layout().to_string(), "R");
        assert_eq!(six.all(0, false)?.item()?, 1.0);
        let refused = ones
            .redistribute(partial(shard_tensor::ReduceOp::Sum))
            .unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Uniform);
        terms.cumsum(0)?.to_array::<i64>()
    });
    assert_eq!(read.unwrap()[2], arr1(&[3, 6]).into_dyn());
}

/// Operands whose products wrap in 32 bits and in 8, and their sums too.
fn wrapping<T: Element>(narrow: fn(i64) -> T) -> [ArrayD<T>; 2] {
    let a = Array2::from_shape_fn((3, 4), |(i, j)| {
        narrow((4 * i + j) as i64 * 7919 * 100_003 + 1)
    });
    let b = Array2::from_shape_fn((4, 2), |(i, j)| {
        narrow(((2 * i + j) as i64 - 3) * 104_729 * 7)
    });
    [a.into_dyn(), b.into_dyn()]
}

/// What `torch` gives for these on a CPU: `a @ b`, `a @ b @ a[:2]` and `linear(a, b.T, b[0])`.
fn integers_are_multiplied<T: Element>(narrow: fn(i64) -> T, torch: [&[i64]; 3]) {
    let layouts: [[Placements; 2]; 6] = [
        [shard(1).into(), shard(0).into()],
        [[shard(1).sizes([1, 0, 3])].into(), replicate().into()],
        [shard(0).into(), replicate().into()],
        [replicate().into(), shard(1).into()],
        [shard(0).into(), shard(0).into()],
        [[shard(1).striped()].into(), [shard(0).zigzag()].into()],
    ];
    let torch = torch.map(|of| of.iter().map(|&x| narrow(x)).collect::<Vec<T>>());
    for of in layouts {
        let done = launch(3, |ctx| {
            let mesh = ctx.mesh_of(3)?;
            let [a, b] = wrapping(narrow);
            let [whole, columns] = [&a, &b].map(|x| mesh.distribute(x, replicate()));
            let (rows, bias) = (whole?.narrow(0, 0..2)?, columns?.select(0, 0)?);
            let (a, b) = (
                mesh.distribute(&a, of[0].clone())?,
                mesh.distribute(&b, of[1].clone())?,
            );
            let y = a.matmul(&b)?;
            let z = y.matmul(&rows)?;
            // Terms of a sum are multiplied as they are.
            assert!(z.layout().is_partial() || !y.layout().is_partial());
            let l = a.linear(&b.transpose(0, 1)?, Some(&bias))?;
            let m = bias.addmm(&a, &b, 1.0, 1.0)?;
            assert_eq!(m.to_array::<T>()?, l.to_array::<T>()?);
            for (found, expected) in [&y, &z, &l].into_iter().zip(&torch) {
                assert_eq!(found.dtype(), T::DTYPE);
                let found = found.to_array::<T>()?;
                assert_eq!(found.as_slice(), Some(&expected[..]), "{of:?}");
            }
            let turned = ShardTensor::einsum("ij,jk->ki", &[&a, &b])?;
            let same = turned.transpose(0, 1)?.to_array::<T>()?;
            assert_eq!(same, y.to_array::<T>()?);
            let (x, y) = (a.select(0, 1)?, b.select(1, 1)?);
            assert_eq!(x.dot(&y)?.to_array::<T>()?[[]], torch[0][3]);
            let batch = a.unsqueeze(0)?.matmul(&y)?.to_array::<T>()?;
            assert_eq!(batch[[0, 2]], torch[0][5]);
            Ok(())
        });
        done.unwrap();
    }
}

/// Letters that are summed by themselves wrap as those of a product do; the sum of a diagonal is a sum, and wide.
#[test]
fn sums_of_an_equation_wrap_and_traces_are_wide() {
    fn check<T: Element>(narrow: fn(i64) -> T, wide: fn(T) -> i64) {
        let numbers = [1, 2, 3, 5, 250, 251, (1 << 31) - 7, (1 << 31) - 1];
        let a = Array2::from_shape_fn((4, 4), |(i, j)| narrow(numbers[(3 * i + j) % 8]));
        let total = |x: &mut dyn Iterator<Item = T>| x.fold(0, |sum, x| sum + wide(x));
        let rows: Vec<T> = (0..4)
            .map(|i| narrow(total(&mut a.row(i).iter().copied())))
            .collect();
        let product = narrow(total(&mut rows.iter().map(|&r| narrow(wide(r) * 3))));
        let trace = total(&mut a.diag().iter().copied());
        for (placements, columns) in [
            (shard(0), shard(0)),
            (shard(1), shard(0)),
            (replicate(), replicate()),
        ] {
            let done = launch(3, |ctx| {
                let mesh = ctx.mesh_of(3)?;
                let x = mesh.distribute(&a.clone().into_dyn(), placements.clone())?;
                let sums = ShardTensor::einsum("ij->i", &[&x])?;
                assert_eq!(sums.to_array::<T>()?.as_slice(), Some(&rows[..]));
                let threes = arr1(&[narrow(3); 4]).into_dyn();
                let threes = mesh.distribute(&threes, columns.clone())?;
                // Rows are summed before they meet the other operand.
                let met = ShardTensor::einsum("ij,i->", &[&x, &threes])?;
                assert_eq!(met.to_array::<T>()?[[]], product);
                assert_eq!(x.trace()?.to_array::<i64>()?[[]], trace);
                Ok(())
            });
            done.unwrap();
        }
    }
    check::<u8>(|x| x as u8, i64::from);
    check::<i32>(|x| x as i32, i64::from);
    check::<i64>(|x| x, |x| x);
}

#[test]
fn products_of_integers_are_pytorchs() {
    integers_are_multiplied(
        |x| x,
        [
            &[
                5_805_616_820_279_710,
                9_288_986_915_379_948,
                5_805_616_820_279_710,
                18_577_973_827_827_484,
                5_805_616_820_279_710,
                27_866_960_740_275_020,
            ],
            &[
                -491_034_489_679_797_638,
                7_948_810_446_466_455_228,
                -2_058_088_691_096_843_522,
                6_381_756_245_049_409_344,
                -997_163_583_095_254_934,
                2_702_140_814_541_633_820,
                6_401_445_212_178_522_574,
                -8_345_994_463_894_140_288,
                -1_503_292_676_510_712_230,
                -2_544_528_817_383_187_588,
                -3_585_764_958_255_662_946,
                -4_627_001_099_128_138_304,
            ],
            &[
                5_805_616_818_080_401,
                9_288_986_913_913_742,
                5_805_616_818_080_401,
                18_577_973_826_361_278,
                5_805_616_818_080_401,
                27_866_960_738_808_814,
            ],
        ],
    );
    integers_are_multiplied(
        |x| x as i32,
        [
            &[
                -2_142_873_186,
                -848_684_308,
                -2_142_873_186,
                -1_700_301_028,
                -2_142_873_186,
                1_743_049_548,
            ],
            &[
                -1_238_654_342,
                -2_004_085_060,
                1_525_451_518,
                760_020_800,
                514_248_810,
                399_948_060,
                285_647_310,
                171_346_560,
                -2_027_815_334,
                -1_490_986_116,
                -954_156_898,
                -417_327_680,
            ],
            &[
                -2_145_072_495,
                -850_150_514,
                -2_145_072_495,
                -1_701_767_234,
                -2_145_072_495,
                1_741_583_342,
            ],
        ],
    );
    integers_are_multiplied(
        |x| x as u8,
        [
            &[158, 236, 158, 28, 158, 76],
            &[122, 188, 254, 64, 106, 28, 206, 128, 90, 124, 158, 192],
            &[145, 142, 145, 190, 145, 238],
        ],
    );
    // As PyTorch refuses them.
    let refused = launch(2, |ctx| {
        let truths = ctx.mesh_of(2)?.ones([2, 2], shard(0))?.to(DType::Bool)?;
        let told = truths
            .matmul(&truths)
            .map(|_| ())
            .map_err(|e| e.to_string());
        Ok(told)
    });
    let told = &refused.unwrap()[0];
    assert!(
        told.as_ref().unwrap_err().contains("an integer"),
        "{told:?}"
    );
}

//! Regions that cast by themselves against programs that cast by hand, and what a training in 16 bits costs and gives.

use shard_tensor::distributions::{Normal, Reparametrized};
use shard_tensor::nn::{Conv, GroupNorm, Linear, ModelExt, Module};
use shard_tensor::optim::{AdamW, LossScale, Optimizer, Sgd};
use shard_tensor::{
    Context, ConvOptions, DType, DeviceKind, Error, ErrorClass, Launch, Mesh, ResampleMode, Result,
    Sampling, ShardTensor, launch, replicate, shard, tree,
};

/// A convolution, a norm, an interpolation, and a product per element.
struct Net {
    first: Conv,
    norm: GroupNorm,
    second: Conv,
    head: Linear,
}

tree!(Net {
    first,
    norm,
    second,
    head
});

impl Net {
    fn new(mesh: &Mesh) -> Result<Self> {
        Ok(Self {
            first: Conv::new(mesh, 2, 8, [3, 3], ConvOptions::new().padding(1).stride(2))?,
            norm: GroupNorm::new(mesh, 2, 8)?,
            second: Conv::new(mesh, 8, 8, [3, 3], ConvOptions::new().padding(1))?.without_bias(),
            head: Linear::new(mesh, 8, 3)?,
        })
    }

    /// As a program without a region writes it; `to` is the type of products.
    fn by_hand(&self, x: &ShardTensor, to: DType) -> Result<ShardTensor> {
        let parameter = |model: &dyn Fn() -> Vec<(String, ShardTensor)>, name: &str| {
            let found = model().into_iter().find(|(n, _)| n == name);
            found.unwrap().1.to(to)
        };
        let first = || self.first.parameters();
        let norm = || self.norm.parameters();
        let second = || self.second.parameters();
        let head = || self.head.parameters();
        let options = ConvOptions::new().padding(1);
        let (w, b) = (parameter(&first, "weight")?, parameter(&first, "bias")?);
        let y = x
            .to(to)?
            .conv(&w, Some(&b), ConvOptions::new().padding(1).stride(2))?;
        let (w, b) = (parameter(&norm, "weight")?, parameter(&norm, "bias")?);
        let y = y.group_norm(2, Some(&w), Some(&b), 1e-5)?.gelu()?;
        let y = y.conv(&parameter(&second, "weight")?, None, options)?;
        let y = y.interpolate(&x.shape()[2..], ResampleMode::Linear)?;
        let (w, b) = (parameter(&head, "weight")?, parameter(&head, "bias")?);
        let y = y.permute([0, 2, 3, 1])?.linear(&w, Some(&b))?;
        y.to(DType::F32)?.log_softmax(3)
    }
}

impl Module for Net {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let y = self.first.forward(x)?;
        let y = self.norm.forward(&y)?.gelu()?;
        let y = self.second.forward(&y)?;
        let y = y.interpolate(&x.shape()[2..], ResampleMode::Linear)?;
        self.head.forward(&y.permute([0, 2, 3, 1])?)?.log_softmax(3)
    }
}

fn bits(tensor: &ShardTensor) -> Result<Vec<u64>> {
    let numbers = tensor.to(DType::F64)?.to_array::<f64>()?;
    Ok(numbers.iter().map(|x| x.to_bits()).collect())
}

/// An image with an edge along each of its dims that ranks divide unevenly.
fn image(mesh: &Mesh) -> Result<ShardTensor> {
    mesh.randn([2, 2, 17, 10], [shard(2).sizes([9, 5, 3])])
}

#[test]
fn a_region_is_what_casts_by_hand_make_to_the_bit() {
    for device in [DeviceKind::Host, DeviceKind::Test] {
        for to in [DType::BF16, DType::F16] {
            Launch::new(3)
                .device(device)
                .run(|ctx| {
                    let mesh = ctx.mesh_of(3)?;
                    let (net, x) = (Net::new(&mesh)?, image(&mesh)?);
                    let by_region = ctx.autocast(to, || net.forward(&x))?;
                    let by_hand = net.by_hand(&x, to)?;
                    assert_eq!(by_region.dtype(), DType::F32);
                    assert_eq!(bits(&by_region)?, bits(&by_hand)?);
                    let gradients = |y: &ShardTensor| y.square()?.mean_all()?.backward();
                    let (a, b) = (gradients(&by_region)?, gradients(&by_hand)?);
                    for (name, parameter) in net.parameters() {
                        let of = |g: &shard_tensor::Gradients| {
                            Ok::<_, Error>(g.get(&parameter)?.unwrap())
                        };
                        let (a, b) = (of(&a)?, of(&b)?);
                        assert_eq!(a.dtype(), DType::F32, "{name}");
                        assert_eq!(bits(&a)?, bits(&b)?, "{name}");
                    }
                    Ok(())
                })
                .unwrap();
        }
    }
}

#[test]
fn a_parameter_is_cast_once_in_a_region() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.randn([4, 4], replicate())?.requires_grad()?;
        let x = mesh.randn([6, 4], shard(0))?;
        let casts = |f: &dyn Fn() -> Result<ShardTensor>| {
            let (y, why) = ctx.explain(|| ctx.autocast(DType::BF16, f))?;
            let casts = why.steps.iter().filter(|step| step.op == "cast").count();
            Ok::<_, Error>((y, casts))
        };
        let twice = || x.linear(&w, None)?.linear(&w, None);
        let (y, made) = casts(&twice)?;
        assert_eq!((y.dtype(), made), (DType::BF16, 2));
        // Without a tape the region has one of its own, which has no gradient.
        let (y, made) = casts(&|| {
            let plain = ctx.no_grad(twice)?;
            assert!(!plain.is_tracked());
            twice()
        })?;
        assert_eq!((y.is_tracked(), made), (true, 4));
        // Casts of a function that runs again are its own.
        let plain = y.square()?.sum_all()?.backward()?.get(&w)?.unwrap();
        let y = ctx.autocast(DType::BF16, || {
            x.linear(&w, None)?; // The outer region knows the parameter.
            let kept = w.clone();
            let mut y = ctx.recompute(&[&x], move |xs| {
                Ok(vec![xs[0].linear(&kept, None)?.linear(&kept, None)?])
            })?;
            Ok(y.remove(0))
        })?;
        let again = y.square()?.sum_all()?.backward()?.get(&w)?.unwrap();
        assert_eq!(bits(&again)?, bits(&plain)?);
        // Nor is anything cast outside, or in a region of `f32`.
        assert_eq!(x.matmul(&w)?.dtype(), DType::F32);
        let y = ctx.autocast(DType::BF16, || ctx.autocast(DType::F32, || x.matmul(&w)))?;
        assert_eq!(y.dtype(), DType::F32);
        Ok(())
    })
    .unwrap();
}

#[test]
fn every_list_gives_its_type() {
    launch(1, |ctx| {
        let mesh = ctx.mesh_of(1)?;
        let (full, narrow) = (
            mesh.ones([4, 4], replicate())?,
            mesh.ones([4, 4], replicate())?,
        );
        let narrow = narrow.to(DType::BF16)?;
        let wide = mesh.ones([4, 4], replicate())?.to(DType::F64)?;
        let type_of = |f: &dyn Fn() -> Result<ShardTensor>| {
            Ok::<_, Error>(ctx.autocast(DType::BF16, f)?.dtype())
        };
        use DType::{BF16, F32, F64};
        let rows = mesh.arange(4, replicate())?.to(DType::I64)?;
        let places = rows.unsqueeze(1)?.expand([4, 4])?;
        let planes = |of: &ShardTensor| of.reshape([1, 1, 4, 4]);
        let grid = mesh.zeros([1, 2, 2, 2], replicate())?;
        let cases: [(DType, &dyn Fn() -> Result<ShardTensor>); 21] = [
            (BF16, &|| full.matmul(&full)),
            (BF16, &|| narrow.matmul(&full)),
            (F64, &|| wide.matmul(&wide)),
            (F32, &|| narrow.softmax(1)),
            (F32, &|| narrow.exp()),
            (F32, &|| narrow.sum_all()),
            (F32, &|| narrow.cumsum(0)),
            (F32, &|| narrow.linear_recurrence(&narrow, None, 0, true)),
            (F32, &|| narrow.mse_loss(&narrow)),
            (F32, &|| narrow.add(&full)),
            (F32, &|| full.scatter_add(0, &places, &narrow)),
            (F32, &|| narrow.index_copy(0, &rows, &full)),
            (F32, &|| full.slice_assign(0, 0, 1, &narrow)),
            (F32, &|| narrow.masked_scatter(&full.gt_scalar(0.0)?, &full)),
            (F32, &|| {
                planes(&narrow)?.grid_sample(&grid, Sampling::default())
            }),
            (DType::Bool, &|| narrow.isin(&full)),
            (F32, &|| Normal::new(&narrow, &full)?.rsample([])),
            (BF16, &|| narrow.scatter_add(0, &places, &narrow)),
            (BF16, &|| narrow.add(&narrow)),
            (BF16, &|| narrow.relu()),
            (BF16, &|| {
                narrow.layer_norm(1, Some(&full.select(0, 0)?), None, 1e-5)
            }),
        ];
        for (i, (expected, f)) in cases.into_iter().enumerate() {
            assert_eq!(type_of(f)?, expected, "case {i}");
        }
        // Outside a region types do not mix.
        assert_eq!(narrow.add(&full).unwrap_err().class(), ErrorClass::Uniform);
        assert!(full.scatter_add(0, &places, &narrow).is_err());
        assert!(Normal::new(&narrow, &full).is_err());
        assert!(ctx.autocast(DType::I64, || Ok(())).is_err());
        Ok(())
    })
    .unwrap();
}

/// Kernels that compute in `f32` get blocks of operands of 16 bits, whether these are parts of the result or terms of it, and leave results
/// of 16 bits: beside operands and result a few MiB are held, where copies of the operands alone would be 16 MiB each.
#[test]
fn operands_of_16_bits_are_copied_in_blocks() {
    launch(1, |ctx| {
        let mesh = ctx.mesh_of(1)?;
        let narrow = |shape: &[usize]| mesh.randn(shape.to_vec(), replicate())?.to(DType::BF16);
        let (x, y) = (narrow(&[2048, 2048])?, narrow(&[2048, 2048])?);
        let image = narrow(&[1, 64, 256, 256])?;
        let weight = narrow(&[8, 64, 3, 3])?;
        let window = ConvOptions::new().padding(1);
        const MIB: usize = 1 << 20;
        type Case<'a> = (&'a str, usize, &'a dyn Fn() -> Result<ShardTensor>);
        let cases: [Case<'_>; 9] = [
            ("add", 1, &|| x.add(&y)),
            ("gelu", 1, &|| x.gelu()),
            ("softmax", 1, &|| x.softmax(1)),
            ("sum of all", 1, &|| x.sum_all()),
            ("sum of rows", 1, &|| x.sum([0], false)),
            ("mean of all", 1, &|| x.mean_all()),
            ("mean of rows", 1, &|| x.mean([1], true)),
            ("matmul", 4, &|| x.matmul(&y)),
            ("conv", 4, &|| image.conv(&weight, None, window.clone())),
        ];
        for (name, mib, op) in cases {
            let held = || ctx.device().memory();
            let before = held().live;
            ctx.device().reset_peak();
            let result = op()?;
            let beside = held().peak - held().live;
            assert!(
                held().live >= before && beside <= mib * MIB + MIB / 4,
                "{name}: {beside} bytes"
            );
            assert_eq!(result.dtype(), DType::BF16, "{name}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn ranks_in_and_out_of_a_region_find_it_out() {
    let heard = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let (x, w) = (
            mesh.ones([6, 4], shard(0))?,
            mesh.ones([4, 4], replicate())?,
        );
        let to = if ctx.rank() == 0 {
            DType::BF16
        } else {
            DType::F32
        };
        let met = ctx.autocast(to, || x.matmul(&w)?.sum_all()?.item());
        Ok(met.unwrap_err().to_string())
    })
    .unwrap();
    assert_eq!(heard[0], heard[1]);
    assert!(heard[0].contains("rank 0 called cast"), "{}", heard[0]);
}

#[test]
fn f16_trains_with_a_loss_scale() {
    let trained = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let w = mesh.full([4, 1], 0.5, replicate())?.requires_grad()?;
        let x = mesh.randn([32, 4], shard(0))?;
        let y = x.matmul(&mesh.from_fn([4, 1], replicate(), |i| i[0] as f64 - 1.0)?)?;
        let mut sgd = Sgd::new(vec![("w".to_owned(), w.clone())], 0.1)?;
        let (mut scale, mut skipped, mut losses) = (LossScale::new(), 0, Vec::new());
        // In `f16` gradients of so small a loss vanish, and with too large a scale they overflow.
        for _ in 0..60 {
            let loss = ctx.autocast(DType::F16, || x.matmul(&w)?.mse_loss(&y))?;
            let small = loss.mul_scalar(1e-3)?;
            let mut gradients = scale.scaled(&small)?.mul_scalar(1e3)?.backward()?;
            match scale.unscale(&mut gradients)? {
                true => sgd.step(&gradients)?,
                false => skipped += 1,
            }
            losses.push(loss.item()?);
        }
        Ok((losses, skipped, scale.factor()))
    })
    .unwrap();
    let (losses, skipped, factor) = &trained[0];
    assert_eq!(trained[0], trained[1]);
    assert!(
        *skipped > 0 && *factor == 65_536.0 * 0.5f64.powi(*skipped),
        "{skipped} {factor}"
    );
    assert!(losses[59] < 1e-3 * losses[0], "{losses:?}");
}

/// What a training gave: losses, bytes of activations, bytes received in a forward pass. The statistics of norms are among the last, three
/// numbers of 64 bits per group whatever the image.
struct Run {
    losses: Vec<f64>,
    kept: usize,
    moved: u64,
}

/// Trains the net on `ranks` ranks, products in a type.
fn train(ranks: usize, to: DType, steps: usize) -> Run {
    let forward = |net: &Net, x: &ShardTensor| {
        let mut y = net.first.forward(x)?;
        for _ in 0..6 {
            y = net.norm.forward(&net.second.forward(&y)?)?.gelu()?;
        }
        y.mean(1, false)
    };
    let program = |ctx: &Context| {
        let mesh = ctx.mesh_of(ranks)?;
        let net = Net::new(&mesh)?;
        let x = mesh.randn([2, 2, 48, 64], shard(2))?;
        let y = mesh.rand([2, 24, 32], shard(1))?;
        let mut adam = AdamW::new(net.parameters(), 1e-2)?;
        let (mut losses, mut kept, mut moved) = (Vec::new(), 0, 0);
        for _ in 0..steps {
            // Another value, as the next batch would be: of the same one the halo has stayed.
            let x = x.mul_scalar(1.0)?;
            let before = (ctx.device().memory().live, ctx.ledger().snapshot());
            let (out, loss) = ctx.autocast(to, || {
                let out = forward(&net, &x)?;
                let loss = out.mse_loss(&y)?;
                Ok((out, loss))
            })?;
            drop(out);
            ctx.device().synchronize().map_err(Error::custom)?;
            kept = ctx.device().memory().live - before.0;
            moved = ctx.ledger().since(&before.1).bytes;
            adam.step(&loss.backward()?)?;
            losses.push(loss.item()?);
        }
        Ok((losses, kept, moved))
    };
    let mut ranks = launch(ranks, program).unwrap();
    let moved = ranks.iter().map(|(_, _, moved)| moved).sum();
    let kept = ranks
        .iter()
        .map(|(_, kept, _)| kept)
        .max()
        .copied()
        .unwrap();
    Run {
        losses: ranks.swap_remove(0).0,
        kept,
        moved,
    }
}

/// The distance of numbers from 1 in units of their size, at most.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    let each = a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs());
    each.fold(0.0, f64::max)
}

#[test]
fn a_training_in_bf16_takes_half_and_gives_the_same() {
    let (full, narrow) = (train(3, DType::F32, 20), train(3, DType::BF16, 20));
    assert!(full.losses[19] < 0.9 * full.losses[0]);
    let error = apart(&narrow.losses, &full.losses);
    assert!(error < 0.02, "{error}");
    let memory = narrow.kept as f64 / full.kept as f64;
    let bytes = narrow.moved as f64 / full.moved as f64;
    println!("error {error:.4}, memory {memory:.3}, bytes {bytes:.3}");
    assert!(
        memory < 0.55 && bytes < 0.55,
        "memory {memory}, bytes {bytes}"
    );
    let alone = train(1, DType::BF16, 20);
    let error = apart(&narrow.losses, &alone.losses);
    println!("ranks {error:.5}");
    assert!(error < 0.004, "{error}");
}

/// Terms of a sum over ranks that are rounded to 16 bits before they are added give the sum in `f32`, rounded, within half a unit in the
/// last place of each term; and half the bytes move.
#[test]
fn narrow_sums_are_f32_sums_within_the_rounding_of_terms() {
    // Half a unit in the last place, relative to the number: bf16 has eight bits.
    const UNIT: f64 = 1.0 / 256.0;
    let told = Launch::new(4).seed(7).run(|ctx| {
        let mesh = ctx.mesh_of(4)?;
        let [x, w] = [
            mesh.randn([8, 64], shard(1))?.to(DType::BF16)?,
            mesh.randn([64, 8], shard(0))?.to(DType::BF16)?,
        ];
        let product = |narrow: bool| -> Result<(Vec<f64>, u64)> {
            let before = ctx.ledger().snapshot();
            let was = ctx.engine().set_narrow_sums(narrow);
            let sum = x.matmul(&w)?.reduced()?;
            ctx.engine().set_narrow_sums(was);
            let bytes = ctx.ledger().since(&before).bytes;
            let sum = sum.to(DType::F64)?.to_array::<f64>()?;
            Ok((sum.into_iter().collect(), bytes))
        };
        let (narrow, half) = product(true)?;
        let (wide, whole) = product(false)?;
        assert_eq!(2 * half, whole);
        let local = |x: &ShardTensor| x.to(DType::F64)?.to_local_array::<f64>();
        let (x, w) = (local(&x)?, local(&w)?);
        let mut term = Vec::with_capacity(64);
        for i in 0..8 {
            for j in 0..8 {
                term.push((0..16).map(|k| x[[i, k]] * w[[k, j]]).sum::<f64>());
            }
        }
        Ok((narrow, wide, term))
    });
    let told = told.unwrap();
    let mut differ = 0;
    for at in 0..64 {
        let terms = told.iter().map(|(_, _, term)| term[at]);
        let (sum, all) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
        for (narrow, wide, _) in &told {
            // What f32 itself rounds is far less.
            let slack = 1e-5 * all;
            assert!((wide[at] - sum).abs() <= UNIT * sum.abs() + slack);
            let bound = UNIT * all + UNIT * (sum.abs() + UNIT * all) + slack;
            assert!(
                (narrow[at] - sum).abs() <= bound,
                "{} {sum} {bound}",
                narrow[at]
            );
            differ += usize::from(narrow[at] != wide[at]);
        }
    }
    assert!(differ > 0, "the terms were rounded");
}

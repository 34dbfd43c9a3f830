//! Convolutions with displaced taps, against torchvision's numbers in `f64`.

use crate::common::{on, read};
use shard_tensor::{
    Context, ConvOptions, DType, DeviceKind, EdgeMap, ErrorClass, Launch, Mesh, Placements, Result,
    SampleEdge, SampleMode, Sampling, ShardTensor, replicate, shard,
};

/// An element of what the numbers were made of.
fn wave(i: &[usize]) -> f64 {
    let sum: f64 = i.iter().zip(1..).map(|(&i, k)| (k * i) as f64).sum();
    sum.sin()
}

/// The sum of all elements, each times its number from 1 on, is as torchvision's.
fn check(what: &str, x: &ShardTensor, known: f64) -> Result<()> {
    let found: f64 = read(x)?
        .iter()
        .zip(1..)
        .map(|(x, k)| x * f64::from(k))
        .sum();
    assert!(
        (found - known).abs() < 1e-9 * known.abs().max(1.0),
        "{what}: {found} is not {known}"
    );
    Ok(())
}

/// Displacements of 0, which is what they are at first: taps are on elements, whose slopes lead to the next ones, as torchvision's do.
fn undisplaced(mesh: &Mesh, at: &Placements) -> Result<()> {
    let x = mesh.from_fn([2, 3, 6, 7], at, wave)?.requires_grad()?;
    let offset = mesh.zeros([2, 18, 6, 7], at)?.requires_grad()?;
    let mask = mesh
        .from_fn([2, 9, 6, 7], at, wave)?
        .sigmoid()?
        .requires_grad()?;
    let weight = mesh.from_fn([4, 3, 3, 3], replicate(), wave)?;
    let options = ConvOptions::new().padding(1);
    let y = x.deform_conv(&offset, &weight, Some(&mask), None, options)?;
    check("undisplaced", &y, 1570.5315591477765)?;
    let weights = mesh.from_fn([2, 4, 6, 7], replicate(), wave)?;
    let found = y.mul(&weights)?.sum_all()?.backward()?;
    for (what, of, known) in [
        ("the gradient of the plane", &x, 953.6496442586878),
        ("that of displacements", &offset, -136179.45143064292),
        ("that of the mask", &mask, 34446.90335208349),
    ] {
        let found = found.get(of)?.expect("a gradient");
        assert_eq!(found.layout(), of.layout(), "{what}");
        check(what, &found, known)?;
    }
    Ok(())
}

#[test]
fn displaced_taps_read_as_in_torchvision() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        undisplaced(&mesh, &replicate().into())?;
        for at in [shard(2).sizes([4, 0, 2]), shard(3), shard(0), shard(1)] {
            undisplaced(&mesh, &at.into())?;
        }
        // Far away, and between elements.
        let x = mesh.from_fn([2, 3, 6, 7], shard(2), wave)?;
        let offset = mesh.from_fn([2, 18, 6, 7], shard(2).sizes([1, 4, 1]), wave)? * 0.8;
        let weight = mesh.from_fn([4, 3, 3, 3], shard(1), wave)?;
        let options = ConvOptions::new().padding(1);
        let y = x.deform_conv(&offset, &weight, None, None, options.clone())?;
        check("plain", &y, -1889.604291675384)?;
        let mask = mesh.from_fn([2, 9, 6, 7], shard(3), wave)?.sigmoid()?;
        check(
            "with a mask",
            &x.deform_conv(&offset, &weight, Some(&mask), None, options)?,
            -2985.2324652565944,
        )
    });
    on(4, |ctx| {
        let mesh = ctx.mesh([("rows", 2), ("columns", 2)])?;
        undisplaced(&mesh, &[shard(2), shard(3).sizes([6, 1])].into())
    });
    on(8, |ctx| undisplaced(&ctx.mesh_of(8)?, &shard(2).into()));
}

#[test]
fn groups_of_displacements_and_strides_are_torchvisions() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.from_fn([2, 4, 6, 7], shard(3), wave)?;
        let offset = mesh.from_fn([2, 36, 3, 4], shard(2).sizes([2, 1, 0]), wave)?;
        let mask = mesh.from_fn([2, 18, 3, 4], shard(1), wave)?.sigmoid()?;
        let weight = mesh.from_fn([4, 4, 3, 3], replicate(), wave)?;
        let options = ConvOptions::new().padding(1).stride(2);
        let y = x.deform_conv(&offset, &weight, Some(&mask), None, options)?;
        check("groups", &y, 395.8159478092233)
    });
}

/// The gradient by each operand of the squares of gradients, against differences of these squares, and in pieces as whole.
fn twice(
    mesh: &Mesh,
    operands: &[ShardTensor],
    of: &dyn Fn(&[ShardTensor]) -> Result<ShardTensor>,
) -> Result<Vec<ShardTensor>> {
    let squares = |operands: &[ShardTensor], create: bool| {
        let out = of(operands)?;
        let seed = mesh.from_fn(out.shape(), replicate(), wave)?;
        let operands: Vec<&ShardTensor> = operands.iter().collect();
        let mut sum = mesh.zeros((), replicate())?;
        for gradient in out.grad_with(&seed, &operands, create)?.iter().flatten() {
            sum = sum.add(&gradient.square()?.sum_all()?)?;
        }
        Ok::<_, shard_tensor::Error>(sum)
    };
    let tracked: Vec<ShardTensor> = (operands.iter())
        .map(|x| x.detach().requires_grad())
        .collect::<Result<_>>()?;
    let wanted: Vec<&ShardTensor> = tracked.iter().collect();
    let found: Vec<ShardTensor> = (squares(&tracked, true)?.grad(&wanted, false)?)
        .into_iter()
        .map(|g| g.expect("squares depend on every operand"))
        .collect();
    // Along a direction of each operand.
    for (i, (x, found)) in operands.iter().zip(&found).enumerate() {
        let way = mesh.from_fn(x.shape(), replicate(), |at| (wave(at) * 7.0).cos())?;
        let moved = |step: f64| {
            let mut moved = operands.to_vec();
            moved[i] = x.add_scaled(&way, step)?;
            let moved: Vec<ShardTensor> = (moved.iter())
                .map(|x| x.detach().requires_grad())
                .collect::<Result<_>>()?;
            squares(&moved, false)?.item()
        };
        let difference = (moved(1e-5)? - moved(-1e-5)?) / 2e-5;
        let known = found.mul(&way)?.sum_all()?.item()?;
        assert!(
            (difference - known).abs() < 1e-6 * known.abs().max(1.0),
            "operand {i}: {known} is not {difference}"
        );
    }
    Ok(found)
}

/// Gradients by planes, displacements and masks have gradients by all of them, and so have samples of every kind.
#[test]
fn gradients_of_what_taps_read_have_gradients() {
    for device in [DeviceKind::Host, DeviceKind::Test, DeviceKind::EmulatedCuda] {
        let program = |ctx: &Context| {
            let mesh = ctx.mesh_of(3)?;
            let layouts: [[Placements; 2]; 4] = [
                [replicate().into(), replicate().into()],
                [shard(2).sizes([3, 0, 1]).into(), shard(2).into()],
                [shard(3).into(), shard(3).sizes([0, 3, 1]).into()],
                [shard(1).into(), shard(1).into()],
            ];
            let mut first: Option<Vec<ShardTensor>> = None;
            for [of_plane, at] in &layouts {
                let x = mesh.from_fn([1, 2, 4, 5], of_plane, wave)?;
                // Between elements, where what is read has slopes.
                let offset = mesh.from_fn([1, 16, 3, 4], at, |i| 0.37 + 0.1 * wave(i))?;
                let mask = mesh.from_fn([1, 8, 3, 4], at, |i| 1.0 + 0.5 * wave(i))?;
                let weight = mesh.from_fn([3, 2, 2, 2], replicate(), wave)?;
                let found = twice(&mesh, &[x, offset, mask, weight], &|x| {
                    x[0].deform_conv(&x[1], &x[3], Some(&x[2]), None, ConvOptions::new())
                })?;
                for (found, first) in found.iter().zip(first.get_or_insert(found.clone())) {
                    assert!(found.allclose(first, 1e-9, 1e-9, false)?, "{at:?}");
                }
            }
            for (mode, edge, aligned) in [
                (SampleMode::Linear, SampleEdge::Zeros, false),
                (SampleMode::Linear, SampleEdge::Reflection, true),
                (SampleMode::Cubic, SampleEdge::Border, false),
                (SampleMode::Cubic, SampleEdge::Zeros, true),
            ] {
                let sampling = Sampling {
                    mode,
                    edge,
                    aligned,
                };
                let x = mesh.from_fn([2, 1, 4, 3, 3], shard(2), wave)?;
                let grid = mesh.from_fn([2, 2, 1, 3, 3], shard(1), |i| 1.1 * wave(i))?;
                twice(&mesh, &[x, grid], &|x| x[0].grid_sample(&x[1], sampling))?;
            }
            Ok(())
        };
        let launch = Launch::new(3).dtype(DType::F64).device(device);
        launch.run(program).unwrap();
    }
}

#[test]
fn who_gives_what_does_not_fit_is_told() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let zeros = |shape: &[usize]| mesh.zeros(shape, shard(0));
        let (x, weight) = (zeros(&[1, 2, 5, 5])?, zeros(&[3, 2, 3, 3])?);
        let plain = ConvOptions::new;
        let refused = |offset: &[usize], mask: Option<&[usize]>, options: ConvOptions| {
            let mask = mask.map(&zeros).transpose()?;
            let found = x.deform_conv(&zeros(offset)?, &weight, mask.as_ref(), None, options);
            assert_eq!(
                found.map_err(|e| e.class()).err(),
                Some(ErrorClass::Uniform),
                "{offset:?}"
            );
            Ok::<_, shard_tensor::Error>(())
        };
        refused(&[1, 18, 5, 5], None, plain())?; // outputs are 3 by 3
        refused(&[1, 17, 3, 3], None, plain())?;
        refused(&[1, 0, 3, 3], None, plain())?;
        refused(&[1, 54, 3, 3], None, plain())?; // three groups of two channels
        refused(&[18, 3, 3], None, plain())?;
        refused(&[1, 18, 3, 3], Some(&[1, 18, 3, 3]), plain())?;
        refused(
            &[1, 18, 5, 5],
            None,
            plain().padding(1).edge(EdgeMap::Reflect),
        )?;
        refused(&[1, 18, 3, 3], None, plain().groups(2))?;
        let offset = zeros(&[1, 18, 3, 3])?;
        let bias = zeros(&[4])?;
        let told = x
            .deform_conv(&offset, &weight, None, Some(&bias), plain())
            .unwrap_err()
            .to_string();
        assert!(
            told.contains("deform_conv") && told.contains("bias"),
            "{told}"
        );
        // What is nowhere reads zeros.
        let nan = offset.full_like(f64::NAN)?;
        let ones = mesh.ones([1, 2, 5, 5], shard(2))?;
        let read = ones.deform_conv(
            &nan,
            &mesh.ones([3, 2, 3, 3], replicate())?,
            None,
            None,
            plain(),
        )?;
        assert_eq!(read.abs()?.sum_all()?.item()?, 0.0);
        assert_eq!(
            zeros(&[0, 2, 5, 5])?
                .deform_conv(&zeros(&[0, 18, 3, 3])?, &weight, None, None, plain())?
                .shape(),
            [0, 3, 3, 3]
        );
        Ok(())
    });
}

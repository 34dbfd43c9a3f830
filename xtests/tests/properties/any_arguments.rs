//! Calls with random arguments, most of them senseless: the outcome on any mesh and layout is the outcome on one
//! rank, be it a value or the text of an error, and nothing panics or hangs.

use proptest::prelude::*;
use shard_spec::DeviceMesh;
use shard_tensor::{
    Context, ConvOptions, ConvTransposeOptions, DType, EdgeMap, ErrorClass, Mesh, PoolOptions,
    ResampleMode, Result, SampleEdge, SampleMode, Sampling, ShardTensor, UnfoldOptions, replicate,
    shard,
};
use xtests::harness::{On, on_mesh};
use xtests::properties;
use xtests::properties::Property;
use xtests::strategies::{config, fits};

pub(super) const ALL: &[Property] = properties![any_call_on_any_mesh_ends_as_on_one_rank,];

/// One call: which, on operands of which shapes, with which numbers.
#[derive(Clone, Debug)]
struct Call {
    kind: usize,
    x: Vec<usize>,
    y: Vec<usize>,
    numbers: Vec<usize>,
    edge: usize,
    flag: bool,
}

const KINDS: usize = 38;

/// Makes an operand of a shape on a mesh; the number tells the operands apart.
type Place<'a> = &'a dyn Fn(&Mesh, &[usize], usize) -> Result<ShardTensor>;

/// The call on operands placed by `place`; its results in full.
fn apply(call: &Call, mesh: &Mesh, place: Place<'_>) -> Result<Vec<f64>> {
    let x = place(mesh, &call.x, 0)?.requires_grad()?;
    let y = place(mesh, &call.y, 1)?;
    let n = |k: usize| call.numbers[k % call.numbers.len()];
    let edge = [
        EdgeMap::Zeros,
        EdgeMap::Replicate,
        EdgeMap::Reflect,
        EdgeMap::Circular,
    ][call.edge % 4];
    let mode = [
        ResampleMode::Nearest,
        ResampleMode::NearestExact,
        ResampleMode::Linear,
        ResampleMode::LinearAligned,
        ResampleMode::Cubic,
        ResampleMode::Area,
        ResampleMode::LinearAntialias,
        ResampleMode::CubicAlignedAntialias,
    ][(call.edge + 4 * usize::from(call.flag)) % 8];
    let windows = || {
        UnfoldOptions::new(n(0))
            .stride(n(1))
            .padding(n(2))
            .dilation(n(3))
    };
    let sampling = Sampling {
        mode: [SampleMode::Nearest, SampleMode::Linear, SampleMode::Cubic][n(0) % 3],
        edge: [
            SampleEdge::Zeros,
            SampleEdge::Border,
            SampleEdge::Reflection,
        ][call.edge % 3],
        aligned: call.flag,
    };
    let signed = |k: usize| n(k) as isize - 2;
    let out = match call.kind {
        0 => x.add(&y)?,
        1 => x.mul(&y)?,
        2 => x.matmul(&y)?,
        3 => x.linear(&y, None)?,
        4 => x.conv(
            &y,
            None,
            ConvOptions::new()
                .padding(n(0))
                .stride(n(1))
                .dilation(n(2))
                .edge(edge),
        )?,
        5 => x.conv(
            &y,
            None,
            ConvOptions::new()
                .padding_each([(n(0), n(1)), (n(2), n(3))])
                .groups(n(4)),
        )?,
        6 => x.conv_transpose(
            &y,
            None,
            ConvTransposeOptions::new()
                .stride(n(0))
                .padding(n(1))
                .output_padding(n(2)),
        )?,
        7 => x.max_pool(
            PoolOptions::new(n(0))
                .stride(n(1))
                .padding(n(2))
                .ceil_mode(call.flag),
        )?,
        8 => x.avg_pool(
            PoolOptions::new(n(0))
                .stride(n(1))
                .padding(n(2))
                .count_include_pad(call.flag),
        )?,
        9 => x.interpolate([n(0), n(1)], mode)?,
        10 => x.interpolate_by(&[n(0) as f64 * 0.7], mode)?,
        11 => x.group_norm(n(0), None, None, 1e-5)?,
        12 => x.layer_norm(n(0), None, None, 1e-5)?,
        13 => x.pad(&[(signed(0), signed(1)), (signed(2), signed(3))], edge, 0.5)?,
        14 => ShardTensor::cat(&[&x, &y], n(0))?,
        15 => ShardTensor::stack(&[&x, &y], n(0))?,
        16 => x.slice(n(0), n(1), signed(2), n(3))?,
        17 => x.flip(n(0))?,
        18 => x.roll(n(0), signed(1))?,
        19 => x.repeat(n(0), n(1))?,
        20 => x.permute([n(0), n(1)])?,
        21 => x.reshape([n(0), n(1)])?,
        22 => x.expand([n(0), n(1)])?,
        23 => x.sum([n(0), n(1)], call.flag)?,
        24 => x.amax([n(0)], call.flag)?,
        25 => x.adaptive_avg_pool([n(0), n(1)])?,
        26 => x.adaptive_max_pool([n(0), n(1)])?,
        27 => x
            .square()?
            .add_scalar(1.0)?
            .lp_pool(n(0) as f64, PoolOptions::new(n(1)).stride(n(2)))?,
        28 => x.unfold(windows())?,
        29 => x.fold([n(2), n(1)], windows())?,
        30 => x.sliding(n(0), n(1), n(2))?,
        31 => x.pixel_shuffle(n(0))?,
        32 => x.pixel_unshuffle(n(0))?,
        33 => x.grid_sample(&y.mul_scalar(0.2309)?, sampling)?,
        34 => x.affine_grid([n(0), n(1)], call.flag)?,
        35 => {
            let statistics = (n(1) > 1).then_some((&y, &y));
            let step = n(0) as f64 * 0.1;
            x.batch_norm(statistics, [None, None], call.flag, step, 1e-2)?
                .0
        }
        36 => x.rms_norm(n(0), None, Some(1e-2))?,
        _ => x.squeeze(n(0))?,
    };
    let mut all = out.to_array::<f64>()?.into_raw_vec_and_offset().0;
    let dx = out.square()?.sum_all()?.backward()?.get(&x)?;
    if let Some(dx) = dx {
        assert_eq!(dx.layout(), &x.layout().with_partial_reduced());
        all.extend(dx.to_array::<f64>()?.into_raw_vec_and_offset().0);
    }
    Ok(all)
}

fn value(index: &[usize], salt: usize) -> f64 {
    let h = index.iter().fold(salt + 3, |h, &i| (h * 31 + i + 1) % 1009);
    (h % 13) as f64 - 6.0
}

/// Operands in pieces: which dim each mesh axis shards, if any, is drawn from the call.
fn in_pieces(seed: usize) -> impl Fn(&Mesh, &[usize], usize) -> Result<ShardTensor> {
    move |mesh, shape, salt| {
        let axes = mesh.shape().iter().enumerate().map(|(a, _)| {
            let pick = (seed / 5_usize.pow((2 * a + salt) as u32)) % 5;
            if pick < shape.len() {
                shard(pick)
            } else {
                replicate()
            }
        });
        let placements: Vec<_> = axes.collect();
        mesh.from_fn(shape.to_vec(), placements, move |i| value(i, salt))
    }
}

/// What every rank of a mesh gets: values, or the text of a uniform error.
fn outcome(
    call: &Call,
    mesh_shape: &[usize],
    seed: Option<usize>,
) -> Vec<Result<Vec<f64>, String>> {
    let all = DeviceMesh::new(&[mesh_shape.iter().product()]).unwrap();
    let told = on_mesh(&all, On::Host, |cx| {
        let run = || -> Result<_> {
            let ctx = Context::new(cx.world().clone(), 0, DType::F64);
            let mesh = ctx.mesh_of(mesh_shape)?;
            let whole = |mesh: &Mesh, shape: &[usize], salt: usize| {
                mesh.from_fn(
                    shape.to_vec(),
                    vec![replicate(); mesh.shape().len()],
                    move |i| value(i, salt),
                )
            };
            let result = match seed {
                Some(seed) => apply(call, &mesh, &in_pieces(seed)),
                None => apply(call, &mesh, &whole),
            };
            // As bits: numbers may be infinite.
            let result = result.map(|v| v.into_iter().map(f64::to_bits).collect::<Vec<_>>());
            let told = result.map_err(|e| {
                assert_eq!(e.class(), ErrorClass::Uniform, "{e}");
                e.to_string()
            });
            // The group goes on.
            let along_first: Vec<_> = (0..mesh.shape().len())
                .map(|a| if a == 0 { shard(0) } else { replicate() })
                .collect();
            assert_eq!(mesh.ones([5], along_first)?.sum_all()?.item()?, 5.0);
            Ok(told)
        };
        run().unwrap_or_else(|e| panic!("{call:?} on {mesh_shape:?}, {seed:?}: {e}"))
    });
    let numbers = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits).collect();
    told.into_iter().map(|told| told.map(numbers)).collect()
}

fn calls() -> impl Strategy<Value = Call> {
    let shape = || {
        prop_oneof![
            prop::collection::vec(0_usize..5, 0..5),
            (0_usize..3, 1_usize..5, 0_usize..8, 1_usize..7)
                .prop_map(|(n, c, h, w)| vec![n, c, h, w]),
        ]
    };
    (
        0..KINDS,
        shape(),
        shape(),
        prop::collection::vec(0_usize..5, 5),
        0_usize..4,
        any::<bool>(),
    )
        .prop_map(|(kind, x, y, numbers, edge, flag)| Call {
            kind,
            x,
            y,
            numbers,
            edge,
            flag,
        })
        .prop_map(fitting)
}

fn meshes() -> impl Strategy<Value = Vec<usize>> {
    let mut meshes = vec![vec![2], vec![3], vec![2, 2], vec![5]];
    meshes.retain(|mesh| fits(mesh));
    prop::sample::select(meshes)
}

/// Makes half of the calls sensible, by giving the second operand a shape that may fit.
fn fitting(mut call: Call) -> Call {
    if !call.flag {
        return call;
    }
    match (call.kind, &call.x[..]) {
        (2, &[.., k]) => call.y = vec![k, call.numbers[0]],
        (3, &[.., k]) => call.y = vec![call.numbers[0], k],
        (4, &[_, c, _, _]) => call.y = vec![2, c, call.numbers[3], 3],
        (5, &[_, c, _, _]) => call.y = vec![2 * call.numbers[4], c / call.numbers[4].max(1), 2, 3],
        (6, &[_, c, _, _]) => call.y = vec![c, 2, 3, call.numbers[4]],
        (0 | 1 | 15, _) => call.y = call.x.clone(),
        (33, &[n, _, _, _]) => call.y = vec![n, 1 + call.numbers[1], 3, 2],
        (35, &[_, c, ..]) => call.y = vec![c],
        (14, _) => {
            call.y = call.x.clone();
            if let Some(n) = call.y.get_mut(call.numbers[0]) {
                *n += 1;
            }
        }
        _ => {}
    }
    call
}

proptest! {
    #![proptest_config(config(600))]

    fn any_call_on_any_mesh_ends_as_on_one_rank(
        call in calls(),
        mesh in meshes(),
        seed in 0_usize..625,
    ) {
        let single = outcome(&call, &[1], None).remove(0);
        for (rank, got) in outcome(&call, &mesh, Some(seed)).into_iter().enumerate() {
            match (&single, got) {
                (Ok(want), Ok(got)) => {
                    prop_assert_eq!(want.len(), got.len());
                    let scale = want.iter().fold(1.0_f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
                    for (w, g) in want.iter().zip(got) {
                        let same = (w - g).abs() <= 1e-9 * scale || (w.is_nan() && g.is_nan()) || *w == g;
                        prop_assert!(same, "rank {}: {} is not {}", rank, g, w);
                    }
                }
                (Err(want), Err(got)) => prop_assert_eq!(want, &got),
                (want, got) => prop_assert!(false, "rank {rank}: one rank has {want:?}, this one {got:?}"),
            }
        }
    }
}

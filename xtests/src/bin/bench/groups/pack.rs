//! What one device moves: strided pieces beside a plain copy of the same bytes, and elements to and from the host.

use crate::case::{Bench, Limit, Work};
use crate::suite::Suite;
use shard_comm::{Buffer, DType, DeviceRef, Host, Strided};
use shard_tensor::{Context, Result};

/// Pieces of one buffer that go to pieces of another, in one call.
#[derive(Clone)]
struct Case {
    name: String,
    /// Elements of the source and of the destination.
    lens: [usize; 2],
    pieces: Vec<(Strided, Strided)>,
}

/// The view of a box of a row-major array.
fn part(shape: &[usize], start: &[usize], extents: &[usize]) -> Strided {
    let mut step = 1;
    let mut strides = vec![0; shape.len()];
    let mut offset = 0;
    for d in (0..shape.len()).rev() {
        strides[d] = step as isize;
        offset += start[d] * step;
        step *= shape[d];
    }
    Strided::new(offset, extents.into(), strides[..].into())
}

impl Case {
    /// One box of an array, side by side afterwards.
    fn boxed(name: &str, shape: &[usize], start: &[usize], extents: &[usize]) -> Self {
        let whole: usize = shape.iter().product();
        let here: usize = extents.iter().product();
        Self {
            name: format!("pack/{name}"),
            lens: [whole, here],
            pieces: vec![(part(shape, start, extents), Strided::contiguous(extents))],
        }
    }

    fn bytes(&self) -> usize {
        let numel = |view: &Strided| view.shape.iter().product::<usize>();
        4 * self.pieces.iter().map(|(s, _)| numel(s)).sum::<usize>()
    }

    fn run(&self, device: &DeviceRef, from: &Buffer) -> Result<Buffer> {
        let mut to = device.alloc(DType::F32, self.lens[1])?;
        let pieces: Vec<_> = (self.pieces.iter())
            .map(|(s, d)| (from, s.clone(), d.clone()))
            .collect();
        device.copy_pieces(&pieces, &mut to)?;
        Ok(to.freeze())
    }

    fn build(&self, ctx: &Context) -> Result<Bench> {
        let values: Vec<f32> = (0..self.lens[0]).map(|i| (i % 65_521) as f32).collect();
        let (case, device) = (self.clone(), ctx.device().clone());
        let from = device.upload_slice(&values)?;
        let bench = {
            let (case, device, from) = (case.clone(), device.clone(), from.clone());
            Bench::new(move || case.run(&device, &from))
        };
        let bench = bench
            .work(Work::Bytes(2.0 * self.bytes() as f64))
            .limit(Limit::device_copy(&device, self.bytes())?);
        Ok(bench.check(move || {
            let host: DeviceRef = Host::new();
            let right = case
                .run(&host, &host.upload_slice(&values)?)?
                .to_vec::<f32>()?;
            let got = case.run(&device, &from)?.to_vec::<f32>()?;
            let wrong = got.iter().zip(&right).filter(|(g, r)| g != r).count();
            Ok(Some(wrong as f64 / right.len() as f64))
        }))
    }
}

pub(super) fn add(suite: &mut Suite<'_>) {
    let side = suite.size(4096, 128);
    let [deep, wide] = [suite.size(1000, 50), suite.size(777, 77)];
    let half = side / 2;
    let tile = side / 8;
    let transposed = {
        let steps = [1, side as isize];
        let across = Strided::new(0, [side, side][..].into(), steps[..].into());
        (across, Strided::contiguous(&[side, side]))
    };
    let tiles = (0..64).map(|k| {
        let at = [k / 8 * tile, k % 8 * tile];
        let back = [(7 - k / 8) * tile, (7 - k % 8) * tile];
        let view = |at: &[usize]| part(&[side, side], at, &[tile, tile]);
        (view(&at), view(&back))
    });
    let cases = [
        Case::boxed(
            &format!("{side}x{side} rows"),
            &[side, side],
            &[half, 0],
            &[half, side],
        ),
        Case::boxed(
            &format!("{side}x{side} columns"),
            &[side, side],
            &[0, half],
            &[side, half],
        ),
        Case::boxed(
            &format!("{side}x{side} columns, unaligned"),
            &[side, side],
            &[0, half + 1],
            &[side, half - 1],
        ),
        Case::boxed(
            &format!("{deep}x{wide}x13 halves of 13"),
            &[deep, wide, 13],
            &[0, 0, 6],
            &[deep, wide, 7],
        ),
        Case::boxed(
            &format!("32x{side}x{side} halo of 1 column"),
            &[32, side, side],
            &[0, 0, side - 1],
            &[32, side, 1],
        ),
        Case {
            name: format!("pack/{side}x{side} transposed"),
            lens: [side * side; 2],
            pieces: vec![transposed],
        },
        Case {
            name: format!("pack/{side}x{side} 64 tiles"),
            lens: [side * side; 2],
            pieces: tiles.collect(),
        },
    ];
    for case in cases {
        suite.add(case.name.clone(), 1, move |ctx| case.build(ctx));
    }
    for kilobytes in [4, 1024, 65_536] {
        if suite.options.quick && kilobytes > 1024 {
            continue;
        }
        let values = vec![1_u8; kilobytes << 10];
        let bytes = values.len() as f64;
        suite.add(format!("pack/upload {kilobytes} KiB"), 1, move |ctx| {
            let (device, values) = (ctx.device().clone(), values.clone());
            Ok(Bench::new(move || Ok(device.upload(DType::U8, &values)?)).work(Work::Bytes(bytes)))
        });
        suite.add(format!("pack/download {kilobytes} KiB"), 1, move |ctx| {
            let device = ctx.device().clone();
            let buffer = device.upload(DType::U8, &vec![1; bytes as usize])?;
            Ok(Bench::new(move || Ok(device.download(&buffer)?)).work(Work::Bytes(bytes)))
        });
        let name = format!("pack/download into memory at hand {kilobytes} KiB");
        suite.add(name, 1, move |ctx| {
            let device = ctx.device().clone();
            let buffer = device.upload(DType::U8, &vec![1; bytes as usize])?;
            let mut to = vec![0; bytes as usize];
            Ok(
                Bench::new(move || Ok(device.download_into(&buffer, &mut to)?))
                    .work(Work::Bytes(bytes)),
            )
        });
    }
}

//! How fast arrays move between ranks of one process, beside plain copies of the same bytes in the same run.
//!
//! `cargo run --release -p shard-redistribute --example moving -- [--quick] [--check] [--only TEXT]`
//! `cargo run --release -p shard-redistribute --example moving -- --latency [--ranks N]`
//!
//! A move is timed from a barrier until the last rank has its piece, into memory that each rank's pool holds already.
//! In turns with it the same threads run the *limit*, on private warm buffers, with nothing to find out and no one to
//! wait for. All bytes of all pieces are divided evenly among the threads and copied densely. Where runs are shorter
//! than a cache line, they are copied in runs of that length, as far apart; where terms are summed, in one pass over
//! as many terms, read in runs as long and as far apart; an all-reduce is such a sum of a share, followed by a copy of
//! the whole. What is printed are medians; `--check` fails if a move takes more than 1.5 times its limit.

mod latency;
mod limit;

use limit::{Kind, Limit};
use shard_comm::{Buffer, Communicator, DType, local};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::error::Error;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How much slower than its limit a move may be.
const BAR: f64 = 1.5;
/// Sizes of uneven parts, in hundredths.
const UNEVEN: [&[usize]; 2] = [&[62, 38], &[37, 13, 31, 19]];

struct Case {
    shape: &'static [usize],
    mesh: &'static [usize],
    from: String,
    to: String,
}

struct Options {
    repetitions: usize,
    check: bool,
    only: Option<String>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    let after = |flag: &str| {
        let at = arguments.iter().position(|a| a == flag)?;
        arguments.get(at + 1).map(String::as_str)
    };
    if has("--latency") {
        let ranks = after("--ranks").map(str::parse).transpose()?;
        return latency::report(ranks);
    }
    let options = Options {
        repetitions: if has("--quick") { 5 } else { 21 },
        check: has("--check"),
        only: after("--only").map(str::to_owned),
    };
    println!(
        "{:<12} {:>5}  {:<36} {:<9} {:>7} {:>9} {:>9} {:>6}",
        "shape", "ranks", "move", "limit", "MB", "ms", "limit ms", "ratio"
    );
    let mut slow = 0;
    for case in cases() {
        let name = format!("{} -> {}", case.from, case.to);
        if options
            .only
            .as_ref()
            .is_some_and(|o| !name.contains(o.as_str()))
        {
            continue;
        }
        let row = measure(&case, options.repetitions)?;
        slow += usize::from(row.ratio() > BAR);
        println!(
            "{:<12} {:>5}  {name:<36} {:<9} {:>7.1} {:>9.3} {:>9.3} {:>6.2}{}",
            join(case.shape),
            case.mesh.iter().product::<usize>(),
            row.kind.name(),
            row.bytes as f64 / 1e6,
            1e3 * row.time.as_secs_f64(),
            1e3 * row.limit.as_secs_f64(),
            row.ratio(),
            if row.ratio() > BAR { " over" } else { "" },
        );
    }
    if options.check && slow > 0 {
        return Err(format!("{slow} moves take more than {BAR} times their limit").into());
    }
    Ok(())
}

fn join(extents: &[usize]) -> String {
    let texts: Vec<String> = extents.iter().map(ToString::to_string).collect();
    texts.join("x")
}

/// The moves: between every two kinds of placement, of a large even matrix and of an uneven volume with short rows.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |shape, mesh, from: &str, to: &str| {
        let (from, to) = (from.to_owned(), to.to_owned());
        all.push(Case {
            shape,
            mesh,
            from,
            to,
        });
    };
    for mesh in [&[2][..], &[4]] {
        let even = &[4096, 4096][..];
        for (from, to) in [
            ("S(0)", "S(1)"),
            ("S(1)", "S(0)"),
            ("S(0)", "R"),
            ("S(1)", "R"),
            ("R", "S(0)"),
            ("R", "S(1)"),
            ("P(sum)", "R"),
            ("P(sum)", "S(0)"),
            ("P(sum)", "S(1)"),
        ] {
            add(even, mesh, from, to);
        }
        let uneven = &[1000, 777, 13][..];
        let s = |dim: usize| format!("S({dim}){}", parts(uneven[dim], mesh[0]));
        add(even, mesh, &format!("S(0){}", parts(4096, mesh[0])), "S(0)");
        for (from, to) in [
            (s(0), s(1)),
            (s(1), s(0)),
            (s(0), s(2)),
            (s(2), s(0)),
            (s(1), s(2)),
            (s(0), "R".to_owned()),
            (s(1), "R".to_owned()),
            (s(2), "R".to_owned()),
            ("R".to_owned(), s(0)),
            ("R".to_owned(), s(1)),
            ("R".to_owned(), s(2)),
            ("P(sum)".to_owned(), "R".to_owned()),
            ("P(sum)".to_owned(), s(0)),
            ("P(sum)".to_owned(), s(1)),
            ("P(sum)".to_owned(), s(2)),
            (s(0), "S(0)".to_owned()),
            (s(1), "S(1)".to_owned()),
        ] {
            add(uneven, mesh, &from, &to);
        }
    }
    for shape in [&[4096, 4096][..], &[1000, 777, 13]] {
        for (from, to) in [
            ("S(0) S(1)", "S(1) S(0)"),
            ("S(0) S(0)", "S(1) S(1)"),
            ("R S(0)", "S(0) R"),
            ("S(0) P(sum)", "S(0) S(1)"),
            ("S(1) P(sum)", "R S(0)"),
        ] {
            add(shape, &[2, 2], from, to);
        }
    }
    all
}

/// Uneven sizes of the parts of a dim, as text.
fn parts(extent: usize, ranks: usize) -> String {
    let shares = UNEVEN[usize::from(ranks == 4)];
    let mut sizes: Vec<usize> = shares.iter().map(|s| extent * s / 100).collect();
    let rest = extent - sizes.iter().sum::<usize>();
    sizes[0] += rest;
    let texts: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    format!("[{}]", texts.join(","))
}

struct Row {
    kind: Kind,
    /// Bytes of all destinations together.
    bytes: usize,
    time: Duration,
    limit: Duration,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.time.as_secs_f64() / self.limit.as_secs_f64()
    }
}

/// When one rank began and ended one repetition.
type Span = (Instant, Instant);

/// What one rank reports.
struct Report {
    kind: Kind,
    bytes: usize,
    moves: Vec<Span>,
    limits: Vec<Span>,
}

fn measure(case: &Case, repetitions: usize) -> Result<Row, Box<dyn Error>> {
    let mesh = DeviceMesh::new(case.mesh)?;
    let from = Layout::parse(&mesh, case.shape, &case.from)?;
    let to = Layout::parse(&mesh, case.shape, &case.to)?;
    // One rank at a time: filling and checking would otherwise take longer than moving.
    let turn = Mutex::new(());
    let reports = local::run(mesh.size(), |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        run_rank(&world, &from, &to, repetitions, &turn).map_err(|e| e.to_string())
    })?;
    let reports: Vec<Report> = reports.into_iter().collect::<Result<_, _>>()?;
    Ok(Row {
        kind: reports[0].kind,
        bytes: reports.iter().map(|r| r.bytes).sum(),
        time: median(&reports, |r| &r.moves),
        limit: median(&reports, |r| &r.limits),
    })
}

/// The median over repetitions of (latest end - earliest start).
fn median(reports: &[Report], of: impl Fn(&Report) -> &[Span]) -> Duration {
    let mut times: Vec<Duration> = (0..of(&reports[0]).len())
        .filter_map(|k| {
            let start = reports.iter().map(|r| of(r)[k].0).min()?;
            let end = reports.iter().map(|r| of(r)[k].1).max()?;
            Some(end - start)
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn run_rank(
    world: &Rc<dyn Communicator>,
    from: &Layout,
    to: &Layout,
    repetitions: usize,
    turn: &Mutex<()>,
) -> Result<Report, Box<dyn Error>> {
    let cx = MeshComm::new(world, from.mesh())?;
    let source = {
        let _alone = turn.lock();
        source(&cx, from)?
    };
    let mut limit = Limit::new(from, to, cx.rank())?;
    let moved = source.redistribute(to)?;
    let bytes = moved.buffer().map_or(0, Buffer::bytes);
    {
        let _alone = turn.lock();
        check(&moved, from)?;
    }
    drop(moved);
    let (mut moves, mut limits) = (Vec::new(), Vec::new());
    // The first two rounds warm up.
    for round in 0..repetitions + 2 {
        world.barrier()?;
        let start = Instant::now();
        let moved = source.redistribute(to)?;
        let end = Instant::now();
        drop(moved);
        world.barrier()?;
        let limit_start = Instant::now();
        limit.run();
        let limit_end = Instant::now();
        if round >= 2 {
            moves.push((start, end));
            limits.push((limit_start, limit_end));
        }
    }
    Ok(Report {
        kind: limit.kind(),
        bytes,
        moves,
        limits,
    })
}

/// The element at a global position, small enough that sums of a few are exact.
fn value(position: usize) -> f32 {
    (position % 65_521) as f32
}

/// An array whose elements are [`value`], times 1, 2, ... from term to term of a partial sum.
fn source(cx: &Rc<MeshComm>, layout: &Layout) -> Result<Array, Box<dyn Error>> {
    let coords = cx.coords().ok_or("not on the mesh")?;
    let term = cx.mesh().part_at(layout.partial_axes(), coords) + 1;
    let mut local = Vec::new();
    for_each_position(cx, layout, |at| local.push(value(at) * term as f32))?;
    let buffer = cx.device().upload_slice(&local)?;
    Ok(Array::from_parts(cx, layout, Some(buffer), DType::F32)?)
}

fn check(moved: &Array, from: &Layout) -> Result<(), Box<dyn Error>> {
    let terms: usize = (from.partial_axes().iter())
        .map(|&a| from.mesh().shape()[a])
        .product();
    let factor = (terms * (terms + 1) / 2) as f32;
    let local = moved.buffer().ok_or("no data")?.as_slice::<f32>()?;
    let (mut seen, mut wrong) = (0, 0usize);
    for_each_position(moved.cx(), moved.layout(), |at| {
        wrong += usize::from(local[seen] != value(at) * factor);
        seen += 1;
    })?;
    if wrong > 0 || seen != local.len() {
        return Err(format!("{wrong} of {} elements are wrong", local.len()).into());
    }
    Ok(())
}

/// Visits the row-major global positions of this rank's elements, in its order.
fn for_each_position(
    cx: &MeshComm,
    layout: &Layout,
    mut visit: impl FnMut(usize),
) -> Result<(), Box<dyn Error>> {
    let bounds = layout.local_box(cx.rank()).ok_or("not on the mesh")?;
    let rows = bounds.interval(0);
    let shape = layout.shape();
    for i in rows {
        for j in bounds.interval(1) {
            // Two dims or three: a matrix has one plane.
            let plane = if shape.len() > 2 {
                bounds.interval(2)
            } else {
                0..1
            };
            let extent = shape.get(2).copied().unwrap_or(1);
            for k in plane {
                visit((i * shape[1] + j) * extent + k);
            }
        }
    }
    Ok(())
}

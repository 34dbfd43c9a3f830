//! Communicators without layouts.

use super::redistribute::limit;
use crate::case::{Bench, Limit, Work};
use crate::suite::Suite;
use shard_comm::{Buffer, DType, ExchangePlan, Monoid, Piece, Pieces};
use shard_tensor::{Context, DeviceMesh, Layout, Result};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) fn add(suite: &mut Suite<'_>) {
    let side = suite.size(4096, 256);
    let several: Vec<usize> = suite
        .options
        .ranks
        .iter()
        .copied()
        .filter(|&r| r > 1)
        .collect();
    for &ranks in &several {
        latencies(suite, ranks);
    }
    if !several.is_empty() && !several.contains(&CROWD) {
        latencies(suite, CROWD);
    }
    for &ranks in &several {
        for bytes in [8, 1024, 1 << 16, 1 << 20, 1 << 24, 1 << 26] {
            if suite.options.quick && bytes > 1 << 20 {
                continue;
            }
            suite.add(
                format!("comm/pingpong round trip {bytes} B"),
                ranks,
                move |ctx| ping_pong(ctx, bytes),
            );
        }
        for bytes in [1024, 1 << 20, 1 << 24] {
            suite.add(
                format!("comm/ring sendrecv {bytes} B per rank"),
                ranks,
                move |ctx| ring(ctx, bytes),
            );
        }
        for what in ["alltoall", "allgather", "allreduce", "reduce_scatter"] {
            suite.add(
                format!("comm/{what} of {side}x{side} f32"),
                ranks,
                move |ctx| collective(ctx, what, side),
            );
        }
    }
}

/// More ranks than cores: what it costs that they take turns.
const CROWD: usize = 64;

/// The least that ranks do to meet: each counts itself in and lets others run until all have. Nothing is compared or moved.
struct Meeting {
    ranks: usize,
    come: AtomicUsize,
    held: AtomicUsize,
}

impl Meeting {
    fn of(ranks: usize) -> Arc<Self> {
        Arc::new(Self {
            ranks,
            come: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        })
    }

    fn meet(&self) {
        let before = self.held.load(Ordering::Acquire);
        if self.come.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            self.come.store(0, Ordering::Relaxed);
            self.held.store(before + 1, Ordering::Release);
        }
        while self.held.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
    }

    fn limit(self: &Arc<Self>) -> Limit {
        let this = Arc::clone(self);
        Limit::new("meeting", move || {
            this.meet();
            Ok(())
        })
    }
}

/// Memory that two ranks write in turns: what it costs that one core reads what another wrote, which a call of two ranks waits
/// for a few times. It is the machine's, and a virtual one may change it while it runs: 110 and 560 ns there and back were seen
/// minutes apart, and calls that took three times as long.
struct Line {
    /// How often each of the two has written.
    written: [Apart; 2],
}

/// In cache lines of its own.
#[repr(align(128))]
struct Apart(AtomicUsize);

impl Line {
    fn new() -> Arc<Self> {
        let written = [(); 2].map(|()| Apart(AtomicUsize::new(0)));
        Arc::new(Self { written })
    }

    /// Rank 0 writes its part, and rank 1 its own when it has seen that; what rank 0 waits for.
    fn there_and_back(&self, rank: usize, turn: usize) {
        let [mine, other] = [rank, 1 - rank].map(|r| &self.written[r].0);
        if rank == 0 {
            mine.store(turn, Ordering::Release);
        }
        let mut looks = 0;
        while other.load(Ordering::Acquire) < turn {
            looks += 1;
            // Should both share a core, the other has to have its turn.
            if looks % 4096 == 0 {
                std::thread::yield_now();
            }
        }
        if rank == 1 {
            mine.store(turn, Ordering::Release);
        }
    }
}

/// What is paid for a call however little moves.
fn latencies(suite: &mut Suite<'_>, ranks: usize) {
    if ranks == 2 {
        let line = Line::new();
        suite.add("comm/cache line there and back", ranks, move |ctx| {
            let (line, rank, mut turn) = (Arc::clone(&line), ctx.rank(), 0);
            Ok(Bench::new(move || {
                turn += 1;
                line.there_and_back(rank, turn);
                Ok(())
            }))
        });
    }
    let [one, two, three] = [(); 3].map(|()| Meeting::of(ranks));
    suite.add("comm/barrier", ranks, move |ctx| {
        let world = ctx.world().clone();
        Ok(Bench::new(move || Ok(world.barrier()?)).limit(one.limit()))
    });
    suite.add("comm/allreduce 1 f32", ranks, move |ctx| {
        let meeting = two.limit();
        let (world, one) = (ctx.world().clone(), ones(ctx, 1)?);
        Ok(Bench::new(move || Ok(world.all_reduce(&one, Monoid::SUM).map(drop)?)).limit(meeting))
    });
    suite.add(
        "comm/exchange 1 f32 with the next rank",
        ranks,
        move |ctx| {
            let (world, one) = (ctx.world().clone(), ones(ctx, 1)?);
            let (me, n) = (world.rank(), world.size());
            let (recv, send) = ((me + 1) % n, (me + n - 1) % n);
            let piece = |peer| Pieces::from([Piece::run(peer, 0, 1, 0, 0)]);
            // Any number that is equal on all ranks and stands for this plan alone.
            let plan = ExchangePlan::new("shift", 1, piece(recv), piece(send), None, None);
            let plan = Arc::new(plan);
            Ok(Bench::new(move || {
                let dst = world.device().alloc(DType::F32, 1)?;
                let sources = std::slice::from_ref(&one);
                Ok(world.exchange(&plan, sources, dst, Ok(())).map(drop)?)
            })
            .limit(three.limit()))
        },
    );
}

fn ones(ctx: &Context, len: usize) -> Result<Buffer> {
    Ok(ctx.device().upload_slice(&vec![1.0_f32; len])?)
}

/// The first two ranks send the same bytes there and back.
fn ping_pong(ctx: &Context, bytes: usize) -> Result<Bench> {
    let (world, len) = (ctx.world().clone(), bytes / 4);
    let mine = ones(ctx, len)?;
    let bench = Bench::new(move || {
        Ok(match world.rank() {
            0 => {
                world.send(1, &mine)?;
                Some(world.recv(1, DType::F32, len)?)
            }
            1 => {
                let got = world.recv(0, DType::F32, len)?;
                world.send(0, &mine)?;
                Some(got)
            }
            _ => None,
        })
    })
    .work(Work::Bytes((2 * bytes) as f64));
    Ok(if ctx.rank() < 2 {
        // There and back are one copy each, one after the other.
        let mut limit = Limit::memcpy(ctx, bytes)?;
        limit.scale = 2.0;
        bench.limit(limit)
    } else {
        let mut limit = Limit::new("memcpy", || Ok(()));
        limit.scale = 2.0;
        bench.limit(limit)
    })
}

/// Every rank sends to the next and receives from the one before.
fn ring(ctx: &Context, bytes: usize) -> Result<Bench> {
    let (world, len) = (ctx.world().clone(), bytes / 4);
    let mine = ones(ctx, len)?;
    let (me, n) = (world.rank(), world.size());
    Ok(Bench::new(move || {
        let sent = world.start_send((me + 1) % n, &mine)?;
        let got = world.recv((me + n - 1) % n, DType::F32, len)?;
        sent.wait_optional()?;
        Ok(got)
    })
    .work(Work::Bytes((n * bytes) as f64))
    .limit(Limit::memcpy(ctx, bytes)?))
}

/// A collective over a matrix: in equal shares, without packing.
fn collective(ctx: &Context, what: &'static str, side: usize) -> Result<Bench> {
    let (world, n) = (ctx.world().clone(), ctx.world_size());
    let mesh = DeviceMesh::new(&[n])?;
    let parse = |text| Layout::parse(&mesh, &[side, side], text);
    let (from, to) = match what {
        "alltoall" => ("S(0)", "S(1)"),
        "allgather" => ("S(0)", "R"),
        "allreduce" => ("P(sum)", "R"),
        _ => ("P(sum)", "S(0)"),
    };
    let (from, to) = (parse(from)?, parse(to)?);
    let counts: Vec<usize> = (0..n)
        .map(|r| (r + 1) * side / n - r * side / n)
        .map(|rows| rows * side)
        .collect();
    let (me, whole) = (world.rank(), side * side);
    let share = counts[me];
    let cut =
        |len: usize| -> Vec<usize> { (0..n).map(|r| (r + 1) * len / n - r * len / n).collect() };
    let mine = ones(
        ctx,
        if what == "alltoall" || what == "allgather" {
            share
        } else {
            whole
        },
    )?;
    let run: Rc<dyn Fn() -> shard_comm::Result<Buffer>> = match what {
        "alltoall" => {
            let sends = cut(share);
            let receives = counts.iter().map(|&c| cut(c)[me]).collect::<Vec<_>>();
            Rc::new(move || world.all_to_all_v(&mine, &sends, &receives))
        }
        "allgather" => Rc::new(move || world.all_gather_v(&mine, &counts)),
        "allreduce" => Rc::new(move || world.all_reduce(&mine, Monoid::SUM)),
        _ => Rc::new(move || world.reduce_scatter_v(&mine, &counts, Monoid::SUM)),
    };
    let terms = if what == "allreduce" || what == "reduce_scatter" {
        n as f32
    } else {
        1.0
    };
    let checked = run.clone();
    let limit = limit(ctx, &from, &to)?;
    Ok(Bench::new(move || Ok(run()?)).limit(limit).check(move || {
        let got = checked()?.to_vec::<f32>()?;
        let wrong = got.iter().filter(|&&v| v != terms).count();
        Ok(Some(wrong as f64 / got.len().max(1) as f64))
    }))
}

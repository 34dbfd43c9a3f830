//! Ranks that are played do what ranks do.

use shard_tensor::nn::{self, ModelExt, Module};
use shard_tensor::optim::{AdamW, Optimizer};
use shard_tensor::simulated::{LinkCost, Machine, Topology};
use shard_tensor::{
    Attention, Context, ConvOptions, DType, FoldBy, Launch, LedgerSnapshot, Mesh, Placements,
    PoolOptions, Result, ShardTensor, Simulation, replicate, shard,
};

/// A step of a program, and what it holds between steps.
struct Job {
    parts: Vec<Box<dyn Module>>,
    x: ShardTensor,
    adam: AdamW,
    way: FoldBy,
}

impl Job {
    fn new(ctx: &Context, way: FoldBy) -> Result<Self> {
        let mesh = ctx.mesh_of([2, ctx.world_size() / 2])?;
        let conv = |mesh: &Mesh, from, to| {
            nn::Conv::new(mesh, from, to, [3, 3], ConvOptions::new().padding(1))
        };
        let parts: Vec<Box<dyn Module>> = vec![
            Box::new(conv(&mesh, 3, 8)?),
            Box::new(nn::GroupNorm::new(&mesh, 4, 8)?),
            Box::new(conv(&mesh, 8, 4)?),
        ];
        let adam = AdamW::new(parts.parameters(), 1e-3)?;
        let x = mesh.randn([1, 3, 37, 22], [shard(2), shard(3)])?;
        Ok(Self {
            parts,
            x,
            adam,
            way,
        })
    }

    fn step(&mut self) -> Result<()> {
        let mut y = self.x.clone();
        for part in &self.parts {
            y = part.forward(&y)?.gelu()?;
        }
        y = y.max_pool(PoolOptions::new(2).ceil_mode(true))?;
        let shape = [1, 4, 19, 11];
        assert_eq!(y.shape(), shape);
        let options = Attention::new().fold_by(self.way);
        // Rows attend to rows, which lie on the first axis of the mesh.
        y = y.add(&y.attention(&y, &y, None, &options)?)?;
        let y = y.redistribute([shard(1), shard(2)])?;
        let loss = y.mul(&y)?.mean([0, 1, 2, 3], false)?;
        self.adam.step(&loss.backward()?)
    }
}

/// What a rank counts in the second step, and the most it holds.
fn counted(before: &LedgerSnapshot, ctx: &Context) -> (LedgerSnapshot, usize) {
    let mut moved = ctx.ledger().since(before);
    moved.ops.sort_unstable_by_key(|op| op.0);
    (moved, ctx.device().memory().peak)
}

#[test]
fn bytes_messages_rounds_and_memory_are_those_of_ranks() {
    for (ranks, way) in [
        (2, FoldBy::Ring),
        (4, FoldBy::Ring),
        (6, FoldBy::Gather),
        (4, FoldBy::Split),
    ] {
        let real = Launch::new(ranks).run(|ctx| {
            let mut job = Job::new(ctx, way)?;
            // Ways and plans are chosen by the same model.
            job.step()?;
            let before = ctx.ledger().snapshot();
            ctx.device().reset_peak();
            job.step()?;
            Ok(counted(&before, ctx))
        });
        let topology =
            Topology::shared_memory(ranks, Machine::new(50e9, 10e9), LinkCost::new(0.0, 10e9));
        let forecast = Simulation::new(&topology)
            .ranks((0..ranks).collect::<Vec<_>>())
            .run(|ctx| Job::new(ctx, way), |_, job| job.step())
            .unwrap();
        for (rank, ((moved, peak), played)) in
            real.unwrap().into_iter().zip(forecast.played).enumerate()
        {
            let mut seen = played.moved;
            seen.ops.sort_unstable_by_key(|op| op.0);
            assert_eq!(seen, moved, "{way:?}, rank {rank} of {ranks}");
            assert_eq!(played.peak, peak, "{way:?}, rank {rank} of {ranks}");
        }
    }
}

/// Where each of many ranks has little, keys and values pass through other ranks to all that need them, and do not go round a ring:
/// few messages, and few bytes from other nodes.
#[test]
fn what_many_ranks_have_is_gathered_in_stages() {
    let (near, far) = (LinkCost::new(5e-6, 300e9), LinkCost::new(10e-6, 40e9));
    let cluster = Topology::network(512, Machine::new(20e12, 2e12), near).nodes_of(8, far);
    let step = |way| {
        let x = |ctx: &Context| {
            ctx.mesh_of(512)?
                .randn([1, 4, 4096, 32], [shard(2)])?
                .requires_grad()
        };
        let options = Attention::new().fold_by(way);
        let step = |_: &Context, x: &mut ShardTensor| {
            let y = x.attention(x, x, None, &options)?;
            y.mul(&y)?.mean([0, 1, 2, 3], false)?.backward().map(drop)
        };
        let forecast = Simulation::new(&cluster)
            .ranks([9, 300])
            .run(x, step)
            .unwrap();
        let played = &forecast.played[0];
        (played.moved.messages, played.crossed, forecast.seconds())
    };
    let (ring, best) = (step(FoldBy::Ring), step(FoldBy::Auto));
    assert!(ring.0 == 6 * 511 && best.0 < 200, "{ring:?} {best:?}");
    assert!(
        best.1 < ring.1 / 4 && best.2 < ring.2 / 4.0,
        "{ring:?} {best:?}"
    );
}

/// What rehearsed ranks move is what ranks move, and the work between is done: it takes time, which the device tells of op by op.
#[test]
fn rehearsed_ranks_count_the_same_and_do_their_work() {
    let topology = Topology::shared_memory(4, Machine::new(1e30, 1e30), LinkCost::new(0.0, 1e30));
    let program = Simulation::new(&topology).ranks([0, 1, 2, 3]);
    let played = program
        .run(
            |ctx| Job::new(ctx, FoldBy::Ring),
            |_, job: &mut Job| job.step(),
        )
        .unwrap();
    for cores in [None, Some(2), Some(4)] {
        let program = cores.map_or(program.clone(), |cores| program.clone().cores(cores));
        let rehearsed = program
            .rehearse(|ctx| Job::new(ctx, FoldBy::Ring), |_, job| job.step())
            .unwrap();
        for (one, other) in rehearsed.played.iter().zip(&played.played) {
            assert_eq!(one.rank, other.rank);
            assert_eq!(one.moved, other.moved, "rank {}", one.rank);
            let total = one.total();
            assert_eq!(
                (total.calls, total.work),
                (other.total().calls, other.total().work)
            );
            // The program between the kernels takes time as well.
            assert!(total.computing > 0.0 && one.seconds > total.computing);
        }
        // Each core has the work of its ranks to do.
        let work: f64 = rehearsed.played.iter().map(|one| one.seconds).sum();
        let least = cores.map_or(0.0, |cores| 0.99 * work / cores as f64);
        assert!(rehearsed.seconds() >= least, "{cores:?}");
    }
}

/// Whether indices are in range is agreed on where no row moves, too.
#[test]
fn what_ranks_agree_on_is_played() {
    let table = |ctx: &Context| ctx.mesh_of(3)?.ones([5, 2], replicate());
    let look_up = |table: &ShardTensor| {
        let index = table.mesh().with_dtype(DType::I64).zeros([4], shard(0))?;
        table.index_select(0, &index)
    };
    let real = Launch::new(3).run(|ctx| {
        let table = table(ctx)?;
        let before = ctx.ledger().snapshot();
        look_up(&table)?;
        Ok(ctx.ledger().since(&before))
    });
    let (machine, link) = (Machine::new(50e9, 10e9), LinkCost::new(0.0, 10e9));
    let forecast = Simulation::new(&Topology::shared_memory(3, machine, link))
        .ranks([0, 1, 2])
        .run(table, |_, table| look_up(table).map(drop))
        .unwrap();
    for (moved, played) in real.unwrap().into_iter().zip(forecast.played) {
        assert_eq!((moved.rounds, moved.bytes), (1, 0));
        assert_eq!(played.moved, moved);
    }
}

#[test]
fn a_rehearsal_in_which_one_rank_fails_ends() {
    let topology = Topology::network(4, Machine::new(1e9, 1e9), LinkCost::new(1e-6, 1e9));
    let error = Simulation::new(&topology)
        .ranks([0, 1, 2, 3])
        .cores(4)
        .rehearse(
            |ctx| ctx.mesh_of(4)?.ones([100], [shard(0)]),
            |ctx, x| match ctx.rank() {
                2 => Err(shard_tensor::Error::custom("no such file")),
                _ => x.gelu().map(drop),
            },
        )
        .unwrap_err();
    assert_eq!(error.to_string(), "no such file");
}

#[test]
fn what_reads_values_says_so() {
    let topology = Topology::network(8, Machine::new(1e9, 1e9), LinkCost::new(1e-6, 1e9));
    let error = Simulation::new(&topology)
        .run(
            |ctx| ctx.mesh_of(8)?.ones([100], [shard(0)]),
            |_, x| x.sum([0], false)?.item().map(drop),
        )
        .unwrap_err();
    assert!(error.to_string().contains("no elements"), "{error}");
    // How many pairs there are, only data can say.
    let error = Simulation::new(&topology)
        .run(
            |ctx| ctx.mesh_of(8)?.rand([100, 3], [shard(0)]),
            |_, x| x.radius_search(x, 0.1).map(drop),
        )
        .unwrap_err();
    assert!(error.to_string().contains("no elements"), "{error}");
}

#[test]
fn a_thousand_ranks_take_less_each() {
    let seconds = |ranks: usize| {
        let machine = Machine::new(1e12, 1e11);
        let topology = Topology::network(ranks, machine, LinkCost::new(1e-6, 1e10));
        let forecast = Simulation::new(&topology).run(
            |ctx| {
                let mesh = ctx.mesh_of(ranks)?;
                let w = mesh.randn([16, 16, 3, 3], Placements::replicated())?;
                Ok((mesh.randn([1, 16, 4096, 4096], [shard(2)])?, w))
            },
            |_, (x, w)| x.conv2d(w, None, ConvOptions::new().padding(1)).map(drop),
        );
        let forecast = forecast.unwrap();
        (forecast.seconds(), forecast.peak())
    };
    let (one, thousand) = (seconds(1), seconds(1024));
    let speedup = one.0 / thousand.0;
    assert!(speedup > 300.0 && speedup < 1024.0, "{speedup}");
    assert!(thousand.1 < one.1 / 500);
}

/// Indices that nobody knows are played as if they were spread over all rows evenly; where they are, forecasts are what moves.
#[test]
fn rows_by_index_are_forecast_as_if_spread_evenly() {
    let setup = |ctx: &Context| {
        let mesh = ctx.mesh_of(4)?;
        let table = mesh.randn([1000, 16], [shard(0)])?;
        // Of every rank's 300 indices 75 are of each rank's rows, all different.
        let rows = ndarray::Array1::from_shape_fn(1200, |i| (i % 300 * 10 / 3) as i64);
        Ok((table, mesh.distribute(&rows, [shard(0)])?))
    };
    let step = |x: &ShardTensor, index: &ShardTensor| {
        let rows = x.index_select(0, index)?;
        x.index_add(0, index, &rows).map(drop)
    };
    let real = Launch::new(4).run(|ctx| {
        let (x, index) = setup(ctx)?;
        step(&x, &index)?;
        let before = ctx.ledger().snapshot();
        step(&x, &index)?;
        Ok(counted(&before, ctx).0)
    });
    let machine = Machine::new(50e9, 10e9);
    let topology = Topology::shared_memory(4, machine, LinkCost::new(0.0, 10e9));
    let forecast = Simulation::new(&topology)
        .ranks((0..4).collect::<Vec<_>>())
        .run(setup, |_, (x, index)| step(x, index))
        .unwrap();
    for (moved, played) in real.unwrap().into_iter().zip(forecast.played) {
        let mut seen = played.moved;
        seen.ops.sort_unstable_by_key(|op| op.0);
        assert_eq!(
            (seen.bytes, seen.messages, seen.rounds),
            (moved.bytes, moved.messages, moved.rounds)
        );
        // Rows of the three others, there and back.
        assert_eq!(seen.bytes, 2 * 3 * 75 * 16 * 4);
    }
}

/// A program of a few ops that a seed picks, of small tensors, whose terms, parts and moves cross.
struct Drawn {
    seed: u64,
    tensors: Vec<ShardTensor>,
}

impl Drawn {
    fn new(ctx: &Context, seed: u64) -> Result<Self> {
        let ranks = ctx.world_size();
        let mut drawn = Self {
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            tensors: Vec::new(),
        };
        let mesh = match ranks.is_multiple_of(2) && drawn.below(2) == 0 {
            true => ctx.mesh_of([2, ranks / 2])?,
            false => ctx.mesh_of(ranks)?,
        };
        let shape = [drawn.below(9) + 1, drawn.below(40) + 1, drawn.below(60) + 1];
        for _ in 0..2 {
            let places = drawn.places(&mesh);
            let x = mesh.randn(shape, places)?.requires_grad()?;
            drawn.tensors.push(x);
        }
        Ok(drawn)
    }

    fn below(&mut self, n: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % n as u64) as usize
    }

    fn places(&mut self, mesh: &Mesh) -> Placements {
        let one = |at: usize| if at == 3 { replicate() } else { shard(at) };
        let places: Vec<_> = (0..mesh.shape().len())
            .map(|_| one(self.below(4)))
            .collect();
        places.into()
    }

    /// Where the program is the same in every call: the seed is put back.
    fn step(&mut self) -> Result<()> {
        let seed = self.seed;
        let (mut x, other) = (self.tensors[0].clone(), self.tensors[1].clone());
        for _ in 0..5 {
            let dim = self.below(3);
            x = match self.below(11) {
                0 => x.gelu()?,
                1 => x.add(&other)?,
                2 => x.mul(&x.sum([dim], true)?)?,
                3 => x.softmax(dim)?,
                4 => x.redistribute(self.places(&x.mesh().clone()))?,
                5 => x.mul(&other.mean([dim], true)?)?,
                6 => x.flip(dim)?,
                7 => x.cumsum(dim)?,
                8 => x.matmul(&other.transpose(1, 2)?)?.matmul(&other)?,
                9 => x.roll(dim, 1)?,
                _ => x.sub(&x.amax([dim], true)?)?,
            };
        }
        let grads = x.mul(&x)?.sum([0, 1, 2], false)?.backward()?;
        if let Some(grad) = grads.get(&self.tensors[0])? {
            grad.redistribute(replicate())?;
        }
        self.seed = seed;
        Ok(())
    }
}

/// Ranks that share memory choose plans without a model, and so do those that are played.
#[test]
fn drawn_programs_move_what_is_forecast() {
    for seed in 0..60_u64 {
        let ranks = [2, 3, 4, 6, 1][seed as usize % 5];
        let real = Launch::new(ranks).run(|ctx| {
            let mut job = Drawn::new(ctx, seed)?;
            job.step()?;
            let before = ctx.ledger().snapshot();
            job.step()?;
            Ok(counted(&before, ctx).0)
        });
        let topology =
            Topology::shared_memory(ranks, Machine::new(50e9, 10e9), LinkCost::new(0.0, 10e9));
        let forecast = Simulation::new(&topology)
            .ranks((0..ranks).collect::<Vec<_>>())
            .run(|ctx| Drawn::new(ctx, seed), |_, job| job.step())
            .unwrap();
        for (rank, (moved, played)) in real.unwrap().into_iter().zip(forecast.played).enumerate() {
            let mut seen = played.moved;
            seen.ops.sort_unstable_by_key(|op| op.0);
            assert_eq!(seen, moved, "program {seed}, rank {rank} of {ranks}");
        }
    }
}

//! Profiles: times add up, what moved is what the ledger counted, and logs go where they went.

use serde_json::Value;
use shard_tensor::prelude::*;
use shard_tensor::{ConvOptions, Error, Profile};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A step whose pieces are uneven, with one of none, after the first of its kind.
fn step_of(ctx: &Context) -> Result<Profile> {
    let mesh = ctx.mesh_of(3)?;
    let x = mesh.randn([1, 2, 9, 5], shard(2).sizes([6, 0, 3]))?;
    let conv = nn::Conv::new(&mesh, 2, 4, [3, 3], ConvOptions::new().padding(1))?;
    let step = || {
        // What a convolution has fetched of a tensor stays with it.
        let y = conv.forward(&x.sin()?)?.gelu()?.redistribute(shard(1))?;
        // Sums over ranks are taken when somebody looks at a gradient.
        Ok(y.square()?.mean_all()?.backward()?.iter()?.count())
    };
    step()?;
    let before = ctx.ledger().snapshot();
    let (_, profile) = ctx.profile(step)?;
    let after = ctx.ledger().snapshot();
    assert_eq!(profile.received(), after.bytes - before.bytes);
    assert_eq!(profile.messages(), after.messages - before.messages);
    Ok(profile)
}

#[test]
fn times_add_up_and_bytes_are_the_ledgers() -> Result<()> {
    let profiles = launch(3, step_of)?;
    for profile in &profiles {
        let spent: Duration = profile.rows.iter().map(|row| row.own + row.waiting).sum();
        assert!(
            profile.time.abs_diff(spent) < Duration::from_micros(1),
            "{profile}"
        );
        assert!(
            profile
                .rows
                .iter()
                .all(|row| row.time >= row.own + row.waiting),
            "{profile}"
        );
        for (op, calls) in [
            ("conv", 1),
            ("vjp of conv", 1),
            ("gelu", 1),
            ("elsewhere", 0),
        ] {
            let found = profile
                .get(op)
                .unwrap_or_else(|| panic!("{op} in {profile}"));
            assert_eq!(found.calls, calls, "{profile}");
        }
        // Begun, and waited for.
        assert_eq!(
            profile.get("reduce_gradients").map(|row| row.calls),
            Some(2),
            "{profile}"
        );
        // The move that the program asked for, and the one of its cotangent; halos are the convolution's.
        assert_eq!(
            profile.get("redistribute").map(|row| row.calls),
            Some(2),
            "{profile}"
        );
        assert_eq!(profile.get("wait"), None);
        assert!(
            profile
                .get("elsewhere")
                .is_some_and(|rest| rest.waiting.is_zero()),
            "{profile}"
        );
        let lines = profile.to_string().lines().count();
        assert_eq!(lines, 2 + profile.rows.len());
    }
    assert!(
        profiles[0]
            .get("conv")
            .is_some_and(|conv| conv.received > 0)
    );
    assert!(
        profiles
            .iter()
            .any(|profile| profile.waiting() > Duration::ZERO)
    );
    Ok(())
}

/// What is in use is counted by op, and whoever measured it before goes on as if nobody had looked meanwhile.
#[test]
fn memory_adds_up_and_peaks_are_the_devices() -> Result<()> {
    const MIB: usize = 1 << 20;
    launch(2, |ctx| {
        let device = ctx.device();
        let x = ctx.mesh_of(2)?.randn([2, MIB], shard(0))?;
        let live = || device.memory().live as i64;
        device.reset_peak();
        drop(times(&x, 8)?);
        let before = (live(), device.memory().peak);
        assert!(before.1 >= 32 * MIB + live() as usize);
        let (kept, profile) = ctx.profile(|| {
            let all = x.exp()?;
            drop(x.abs()?);
            drop(times(&all.sin()?, 2)?);
            Ok(all)
        })?;
        assert_eq!(profile.kept(), live() - before.0);
        assert_eq!(profile.kept(), 4 * MIB as i64);
        let row = |name: &str| profile.get(name).map(|row| (row.kept, row.peak as i64));
        let mib = 4 * MIB as i64;
        assert_eq!(row("exp"), Some((mib, before.0 + mib)));
        assert_eq!(row("abs"), Some((mib, before.0 + 2 * mib)));
        assert_eq!(row("sin"), Some((mib, before.0 + 2 * mib)));
        assert_eq!(row("cat"), Some((2 * mib, before.0 + 4 * mib)));
        // What the program dropped.
        assert_eq!(row("elsewhere"), Some((-4 * mib, before.0 + 4 * mib)));
        assert_eq!(profile.peak as i64, before.0 + 4 * mib);
        assert_eq!(device.memory().peak, before.1);
        // Of a profile within another, and of what panics.
        device.reset_peak();
        let (inner, outer) = ctx.profile(|| {
            let (_, inner) = ctx.profile(|| times(&x, 4).map(drop))?;
            Ok(inner)
        })?;
        assert_eq!(inner.peak as i64, live() + 4 * mib);
        assert_eq!(outer.peak, inner.peak);
        assert_eq!(device.memory().peak as u64, inner.peak);
        device.reset_peak();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ctx.profile(|| -> Result<()> {
                drop(times(&x, 4));
                panic!("on purpose")
            })
        }));
        assert!(failed.is_err() && device.memory().peak as i64 == live() + 4 * mib);
        drop(kept);
        Ok(())
    })?;
    Ok(())
}

/// So many of a tensor, one behind the other.
fn times(x: &ShardTensor, n: usize) -> Result<ShardTensor> {
    ShardTensor::cat(&vec![x; n], 1)
}

#[test]
fn what_is_within_is_not_counted_twice() -> Result<()> {
    launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.randn([4, 4], shard(0))?;
        let inner = || ctx.profile(|| x.exp()).map(|(_, profile)| profile);
        let (inner, outer) = ctx.profile(|| {
            x.abs()?;
            inner()
        })?;
        assert!(outer.get("abs").is_some() && outer.get("exp").is_none());
        assert!(inner.get("exp").is_some() && inner.get("abs").is_none());
        let failed = ctx.profile(|| Err::<(), _>(Error::custom("no")));
        assert_eq!(failed.unwrap_err().to_string(), "no");
        // Nothing is heard of other stretches.
        let (_, empty) = ctx.profile(|| Ok(()))?;
        assert_eq!((empty.rows.len(), empty.received()), (1, 0));
        assert_eq!(empty.get("elsewhere").map(|all| all.time), Some(empty.time));
        Ok(())
    })?;
    Ok(())
}

#[test]
fn a_trace_has_all_ranks_and_what_is_within_what() -> Result<()> {
    let profiles = launch(3, |ctx| {
        let mine = step_of(ctx)?;
        ctx.gather(&mine)
    })?;
    assert_eq!(profiles[0], profiles[2]);
    let trace: Value = serde_json::from_str(&Profile::trace(&profiles[0])).map_err(Error::other)?;
    let events = trace["traceEvents"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let all = |rank: usize, name: &str| -> Vec<(f64, f64)> {
        let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or(-1.0);
        (events.iter())
            .filter(|event| event["pid"] == rank && event["name"] == name)
            .map(|event| {
                (
                    number(event, "ts"),
                    number(event, "ts") + number(event, "dur"),
                )
            })
            .collect()
    };
    for rank in 0..3 {
        let [(from, to)] = all(rank, "conv")[..] else {
            panic!("one convolution: {trace}");
        };
        assert!(0.0 <= from && from < to);
        assert!(all(rank, "vjp of conv")[0].0 >= to);
        // Its halo, and the move after it.
        for op in ["conv", "redistribute"] {
            let (from, to) = all(rank, op)[0];
            let is_within = |wait: &(f64, f64)| from <= wait.0 && wait.1 <= to + 1e-3;
            assert!(
                all(rank, "wait").iter().any(is_within),
                "{rank}, {op}: {trace}"
            );
        }
    }
    assert_eq!(Profile::trace(&[]), r#"{"traceEvents":[]}"#);
    Ok(())
}

#[test]
fn profiles_begin_and_end_while_others_are_made() -> Result<()> {
    let heard = |ctx: &Context| {
        let x = ctx.mesh_of(4)?.randn([4, 4], shard(0))?;
        // Nobody waits for another, so all are at another point. In all, ranks make equally many calls.
        (0..200).try_for_each(|turn| {
            let (_, profile) = ctx
                .profile(|| (0..(turn + ctx.rank()) % 5 + 1).try_for_each(|_| x.exp().map(drop)))?;
            let heard = profile.get("exp").map(|row| row.calls);
            assert_eq!(heard, Some(((turn + ctx.rank()) % 5 + 1) as u64));
            Ok(())
        })
    };
    launch(4, heard)?;
    Ok(())
}

/// Counts what programs log.
#[derive(Clone, Default)]
struct Log {
    events: Arc<AtomicUsize>,
    spans: Arc<AtomicUsize>,
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        self.spans.fetch_add(1, Ordering::Relaxed);
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn what_a_program_logs_goes_where_it_went() -> Result<()> {
    launch(2, |ctx| {
        let x = ctx.mesh_of(2)?.randn([4, 4], shard(0))?;
        let log = Log::default();
        let profile = tracing::subscriber::with_default(log.clone(), || {
            let (_, profile) = ctx.profile(|| {
                let _span = tracing::info_span!("of the program").entered();
                tracing::info!("half done");
                tracing::debug!("nobody hears this");
                x.sum([0], false)?.reduced()
            })?;
            tracing::info!("done");
            Ok::<_, Error>(profile)
        })?;
        assert_eq!(log.events.load(Ordering::Relaxed), 2);
        assert_eq!(log.spans.load(Ordering::Relaxed), 0);
        assert!(profile.get("sum").is_some() && profile.get("of the program").is_none());
        Ok(())
    })?;
    Ok(())
}

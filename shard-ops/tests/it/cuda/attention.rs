//! Attention and its gradient on GPUs, against the host's.

use crate::ranks::{gpus, on_device};
use shard_comm::{Bool, DType, DeviceKind, Element, dispatch_dtype};
use shard_ops::attention::{Attention, Causal, TokenSegments, attention, attention_by_segment};
use shard_ops::rng::Stream;
use shard_ops::{Engine, Exec, FoldBy, Op, Result, Saved, Value, Values, elementwise};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{Layout, Partition};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A number by its place.
fn drawn(i: &[usize], seed: usize) -> f64 {
    let mix = i.iter().fold(seed as u64 + 1, |mix, &i| {
        let mix = (mix ^ (i as u64 + 0x9e37_79b9)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mix ^ mix >> 29
    });
    (mix >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Keeps the last op and its outputs.
struct Keeping<'a>(&'a Engine, RefCell<Option<Applied>>);

type Applied = (Arc<dyn Op>, Vec<Value>);

impl Exec for Keeping<'_> {
    fn results(&self, op: Arc<dyn Op>, inputs: &[&Value]) -> Result<Values> {
        let outputs = self.0.results(op.clone(), inputs)?;
        *self.1.borrow_mut() = Some((op, outputs.clone().into_vec()));
        Ok(outputs)
    }

    fn redistribute(&self, value: &Value, to: &Layout) -> Result<Value> {
        self.0.redistribute(value, to)
    }
}

/// What is asked.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    batch: usize,
    kv_heads: usize,
    group: usize,
    queries: usize,
    keys: usize,
    dims: [usize; 2],
    mask: Option<(DType, [usize; 4])>,
    /// Of how many segments queries and keys are, if of any.
    segments: Option<usize>,
    options: Attention,
    /// Numbers are up to this; some of the keys and values are these instead.
    size: f64,
    odd: Vec<f64>,
}

impl Case {
    /// A problem that differs with `i`.
    fn of(i: usize, dtype: DType) -> Self {
        let at = |place: usize, n: usize| ((drawn(&[i, place], 3) + 1.0) / 2.0 * n as f64) as usize;
        let dims = [[16, 16], [8, 24], [33, 5], [1, 1], [64, 64]][at(0, 5)];
        let (queries, keys) = ([1, 9, 40, 70][at(1, 4)], [1, 7, 33, 80][at(2, 4)]);
        let mut options = Attention::new();
        match at(3, 5) {
            0 => options = options.causal(Causal::TopLeft),
            1 => options = options.causal(Causal::BottomRight),
            2 => options = options.window(at(4, 9), at(5, 9)),
            3 => options = options.causal(Causal::BottomRight).window(at(4, 9), 0),
            _ => {}
        }
        if at(6, 3) == 0 {
            options = options.dropout(0.3, Stream::new(7, i as u64));
        }
        if at(7, 2) == 0 {
            options = options.scale(0.2);
        }
        let (batch, heads) = (1 + at(8, 2), 1 + at(9, 2));
        let group = 1 + at(10, 2);
        let shape = [
            [batch, heads * group, queries, keys],
            [1, 1, queries, keys],
            [batch, 1, 1, keys],
        ][at(11, 3)];
        let mask = [None, None, Some(DType::Bool), Some(dtype)][at(12, 4)];
        Self {
            dtype,
            batch,
            kv_heads: heads,
            group,
            queries,
            keys,
            dims,
            mask: mask.map(|mask| (mask, shape)),
            segments: [None, None, Some(1 + at(14, 3))][at(13, 3)],
            options: options.fold_by(FoldBy::Ring),
            size: 2.0,
            odd: Vec::new(),
        }
    }

    fn inputs<T: Element>(&self, cx: &Rc<MeshComm>) -> Vec<Value> {
        let ranks = cx.mesh().size();
        let value = |heads, rows, width, seed: usize| {
            let shape = [self.batch, heads, rows, width];
            // The rows of a rank are not consecutive, so positions come as a list.
            let layout = Layout::builder(cx.mesh(), &shape)
                .shard(2, &[0], Partition::zigzag(rows, ranks))
                .build()
                .unwrap();
            let at = |i: &[usize]| {
                let place = i.iter().sum::<usize>();
                let odd = (!self.odd.is_empty() && seed > 0 && place % 11 == 5)
                    .then(|| self.odd[place % self.odd.len()]);
                T::from_f64(odd.unwrap_or(self.size * drawn(i, seed)))
            };
            Value::new(Array::from_fn(cx, &layout, at).unwrap())
        };
        let heads = self.kv_heads * self.group;
        let mut inputs = vec![
            value(heads, self.queries, self.dims[0], 0),
            value(self.kv_heads, self.keys, self.dims[0], 1),
            value(self.kv_heads, self.keys, self.dims[1], 2),
        ];
        if let Some((dtype, shape)) = self.mask {
            let layout = Layout::replicated(cx.mesh(), &shape);
            let mask = match dtype {
                DType::Bool => Array::from_fn(cx, &layout, |i| Bool::from(drawn(i, 4) > -0.3)),
                // Some are hidden, some as good as.
                _ => Array::from_fn(cx, &layout, |i| {
                    T::from_f64(match drawn(i, 4) {
                        x if x < -0.8 => f64::NEG_INFINITY,
                        x if x < -0.7 => -6e4,
                        x => x,
                    })
                }),
            };
            inputs.push(Value::new(mask.unwrap()));
        }
        let rows = [self.queries, self.keys].into_iter().zip(5..);
        for (rows, seed) in rows.filter(|_| self.segments.is_some()) {
            let layout = Layout::replicated(cx.mesh(), &[self.batch, rows]);
            let many = self.segments.unwrap_or(1) as f64;
            let at = |i: &[usize]| ((drawn(i, seed) + 1.0) / 2.0 * many) as i64;
            inputs.push(Value::new(Array::from_fn(cx, &layout, at).unwrap()));
        }
        inputs
    }

    /// The result and the gradients.
    fn run(&self, device: DeviceKind, ranks: usize) -> Vec<Vec<f64>> {
        let all = on_device(
            device,
            &[ranks],
            |cx, engine| dispatch_dtype!(self.dtype, T => self.on_rank::<T>(cx, engine)),
        );
        all.concat()
    }

    fn on_rank<T: Element>(&self, cx: &Rc<MeshComm>, engine: &Engine) -> Vec<Vec<f64>> {
        let inputs = self.inputs::<T>(cx);
        let kept = Keeping(engine, RefCell::default());
        let [q, k, v] = [0, 1, 2].map(|i| &inputs[i]);
        let mask = self.mask.map(|_| &inputs[3]);
        match &inputs[3 + usize::from(self.mask.is_some())..] {
            [queries, keys] => {
                let of = TokenSegments { queries, keys };
                attention_by_segment(&kept, [q, k, v], of, mask, &self.options).unwrap();
            }
            _ => {
                attention(&kept, q, k, v, mask, &self.options).unwrap();
            }
        }
        let (op, outputs) = kept.1.take().unwrap();
        let mut cotangents = vec![None; outputs.len()];
        let dout = elementwise::add_scalar(engine, &outputs[0], 0.5).unwrap();
        cotangents[0] = Some(dout);
        let saved = Saved {
            inputs: &inputs,
            outputs: &outputs,
            needs: &vec![true; inputs.len()],
            terms: None,
        };
        let grads = op.vjp(engine, &saved, &cotangents).unwrap();
        assert_eq!(cx.world().ledger().snapshot().fallbacks, 0);
        let all = outputs.iter().chain(grads.iter().flatten());
        let doubles = |x: &Value| elementwise::cast(engine, x, DType::F64).unwrap();
        all.map(|x| match doubles(x).array().buffer() {
            Some(buffer) => buffer.to_vec().unwrap(),
            None => Vec::new(),
        })
        .collect()
    }

    fn check(&self, ranks: usize) {
        let expected = self.run(DeviceKind::Host, ranks);
        // Both round to the type at the end, and the host on the way too.
        let error = match self.dtype {
            DType::F64 => 1e-12,
            DType::F32 => 5e-6,
            DType::F16 => 4e-3,
            _ => 3e-2,
        };
        for kind in gpus() {
            let found = self.run(kind, ranks);
            assert_eq!(found.len(), expected.len());
            for (o, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.len(), expected.len());
                let finite = expected.iter().filter(|x| x.is_finite());
                let size = finite.fold(self.size, |size, x| x.abs().max(size));
                for (i, (f, e)) in found.iter().zip(expected).enumerate() {
                    let same = f == e || f.is_nan() && e.is_nan();
                    assert!(
                        same || (f - e).abs() <= error * size,
                        "{kind} {ranks} output {o} at {i}: {f} for {e} (up to {size}) {self:?}"
                    );
                }
            }
        }
    }
}

const STORED: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];

#[test]
fn attention_is_the_hosts() {
    for i in 0..16 {
        Case::of(i, STORED[i % 4]).check(1 + i % 3);
    }
}

/// Numbers that have no parts, or no value, are what they are on the host: kernels of tiles leave them to others.
#[test]
fn numbers_without_parts_are_the_hosts() {
    let odd: [&[f64]; 3] = [&[1e12, -3e15], &[f64::NAN], &[1e17, 0.0]];
    for (i, odd) in odd.into_iter().enumerate() {
        for dtype in [DType::F32, DType::BF16] {
            let case = Case {
                odd: odd.to_vec(),
                dims: [16, 8],
                queries: 20,
                keys: 18,
                mask: None,
                segments: None,
                options: Attention::new().fold_by(FoldBy::Ring),
                ..Case::of(i, dtype)
            };
            case.check(1 + i % 2);
        }
    }
}

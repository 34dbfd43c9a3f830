//! Neighbourhood attention and its gradients on GPUs.

use super::{Backward, Forward, scale_of, sites};
use crate::cuda::kept::Lists;
use crate::cuda::view::define;
use crate::cuda::{AXES, CudaCall, CudaKernel, CudaView};
use crate::cuda_source;
use crate::host::partial_type;
use crate::{OpError, Result};
use bytemuck::{Pod, Zeroable};
use shard_comm::cuda::KernelSource;
use shard_spec::Window;
use std::ops::Range;

const SOURCE: KernelSource = cuda_source!("neighborhood", include_str!("neighborhood.cu"));
/// What tests compile its text for.
pub(crate) const TRIED: &[(KernelSource, &str)] = &[(
    SOURCE,
    "#define T bf16\n#define A f32\n#define DIM 64\n#define VDIM 64\n#define SITES 2\n",
)];

/// The most spatial dims: batch, heads and elements take the other axes of a view.
const SITES: usize = AXES - 3;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    q: CudaView,
    k: CudaView,
    v: CudaView,
    out: CudaView,
    dout: CudaView,
    lse: CudaView,
    delta: CudaView,
    dq: CudaView,
    dk: CudaView,
    dv: CudaView,
    near: [u64; SITES],
    step: [i64; SITES],
    scale: f64,
}

/// For each index along a dim, its neighbours: the first one, counted from the start of the range they are in, and their number.
type Near = Vec<[i64; 2]>;

/// The keys that each query sees, of those in `keys`.
fn seen(window: &Window, queries: &Range<usize>, keys: &Range<usize>) -> Near {
    let of = |query| {
        let all = window.neighbors(query).into_iter().flat_map(|n| n.keys());
        let mut held = all.filter(|key| keys.contains(key));
        let first = held.next().map(|key| key - keys.start);
        first.map_or([0, 0], |first| [first as i64, 1 + held.count() as i64])
    };
    queries.clone().map(of).collect()
}

/// The queries that see each key. These are `dilation` apart too, because windows begin no earlier from query to query.
fn seeing(window: &Window, queries: &Range<usize>, keys: &Range<usize>) -> Near {
    let mut near = vec![[0, 0]; keys.len()];
    for query in queries.clone() {
        for key in window.neighbors(query).into_iter().flat_map(|n| n.keys()) {
            if keys.contains(&key) {
                let [first, count] = &mut near[key - keys.start];
                if *count == 0 {
                    *first = (query - queries.start) as i64;
                }
                *count += 1;
            }
        }
    }
    near
}

/// A kernel's parameters; queries, keys and values are the first operands.
struct Problem {
    params: Params,
    defines: String,
    /// Lists that the parameters point to.
    _lists: Lists,
}

impl Problem {
    fn new(
        call: &CudaCall<'_>,
        forward: &Forward,
        near: impl Fn(&Window, &Range<usize>, &Range<usize>) -> Near,
    ) -> Result<Self> {
        let windows = &forward.windows;
        if windows.len() > SITES {
            return Err(OpError::Shape {
                op: call.op,
                problem: format!("its kernel on a GPU takes at most {SITES} spatial dims"),
                shapes: vec![call.cx.inputs[0].shape.to_vec()],
                fix: "let the engine fall back to the host",
            });
        }
        let mut lists = Lists::default();
        let mut params = Params {
            q: call.input(0)?,
            k: call.input(1)?,
            v: call.input(2)?,
            scale: scale_of(call.cx, forward.scale),
            ..Params::zeroed()
        };
        let [queries, keys] = [0, 1].map(|i| sites(&call.cx.inputs[i], windows.len()));
        for (d, window) in windows.iter().enumerate() {
            let near = near(window, &queries[d], &keys[d]);
            params.near[d] = lists.upload(call, near.as_flattened())?;
            params.step[d] = match window {
                Window::Neighborhood { dilation, .. } => *dilation as i64,
                _ => 1,
            };
        }
        let stored = call.inputs[0].dtype();
        let last = |view: &CudaView| view.shape[windows.len() + 2];
        let defines = format!(
            "{}#define DIM {}\n#define VDIM {}\n#define SITES {}\n",
            define(&[("T", stored), ("A", partial_type(stored))]),
            last(&params.q),
            last(&params.v),
            windows.len()
        );
        Ok(Self {
            params,
            defines,
            _lists: lists,
        })
    }

    /// Launches a kernel over all batch entries, sites and heads of queries or keys.
    fn each(&self, call: &CudaCall<'_>, name: &str, of: &CudaView) -> Result<()> {
        let rows = &of.shape[..of.ndim as usize - 1];
        let rows = rows.iter().product::<i64>() as usize;
        call.launch_own(&SOURCE, &self.defines, name, rows, &self.params)
    }
}

impl CudaKernel for Forward {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let mut problem = Problem::new(call, self, seen)?;
        (problem.params.out, problem.params.lse) = (call.output(0)?, call.output(1)?);
        problem.each(call, "attend", &problem.params.q)
    }
}

impl CudaKernel for Backward {
    fn run(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let near = if self.by_keys { seeing } else { seen };
        let mut problem = Problem::new(call, &self.forward, near)?;
        let params = &mut problem.params;
        params.dout = call.input(5)?;
        if self.by_keys {
            (params.lse, params.delta) = (call.input(3)?, call.input(4)?);
            (params.dk, params.dv) = (call.output(0)?, call.output(1)?);
            problem.each(call, "grad_keys", &problem.params.k)
        } else {
            (params.out, params.lse) = (call.input(3)?, call.input(4)?);
            (params.dq, params.delta) = (call.output(0)?, call.output(1)?);
            problem.each(call, "grad_queries", &problem.params.q)
        }
    }
}

//! Cases of ops that the reference files lack. Their references come from other ops, in double precision on one rank.
//!
//! Neighbourhood attention: dense attention of all sites under a mask that says which pairs see each other, from the
//! definition, dim by dim. Sums of products: `products`. Fourier transforms: `transforms`. Of integers and truth values, masks,
//! triangles and scans: `types`. Of softmax, losses and statistics: `stats`. Of other windows and norms: `windows`.

mod products;
pub mod stats;
mod transforms;
pub mod types;
mod windows;

use crate::case::{self, Attributes, Case};
use crate::differentiate::numbers;
use crate::dispatch::{self, ApplyError, Args};
use crate::trial::with_reference;
use serde_json::json;
use shard_comm::Bool;
use shard_ops::attention::{Attention, attention};
use shard_ops::shape::{permute, reshape};
use shard_ops::{Exec, OpError, Value};
use shard_redistribute::Array;
use shard_spec::Layout;

/// The cases of the project: those of [its folder](case::default_dir), and these.
///
/// # Errors
/// If the folder cannot be read.
pub fn project_cases() -> case::Result<Vec<case::Result<Case>>> {
    let mut all = case::load_dir(&case::default_dir())?;
    all.extend(cases().into_iter().map(Ok));
    Ok(all)
}

/// Cases whose references are made here.
pub fn cases() -> Vec<Case> {
    let mut all = neighborhoods();
    all.extend(types::cases());
    all.extend(stats::cases());
    all.extend(products::cases());
    all.extend(windows::cases());
    all.extend(transforms::cases());
    all
}

/// A case with what the op itself gives of it on one rank; `wants` are the inputs whose gradients are wanted.
fn as_on_one_rank(case: Case, wants: &[usize], seed: u64) -> Case {
    let apply = match dispatch::find(&case) {
        Ok(apply) => apply,
        Err(reason) => panic!("{}: {reason}", case.op),
    };
    with_reference(case, apply, wants, seed)
}

/// Cases of attention to neighbourhoods.
pub fn neighborhoods() -> Vec<Case> {
    let spec = |spatial: &[usize], kernel: &[usize], dilation: &[usize], causal: &[bool]| Windows {
        spatial: spatial.to_vec(),
        kernel: kernel.to_vec(),
        dilation: dilation.to_vec(),
        causal: causal.to_vec(),
    };
    [
        ("na1d", spec(&[11], &[3], &[1], &[false]), [2, 2, 1, 3, 3]),
        (
            "na1d_even_dilated",
            spec(&[13], &[4], &[3], &[false]),
            [1, 1, 2, 2, 5],
        ),
        (
            "na1d_whole",
            spec(&[5], &[5], &[1], &[false]),
            [1, 1, 1, 4, 1],
        ),
        (
            "na2d",
            spec(&[7, 5], &[5, 3], &[1, 1], &[false, false]),
            [1, 2, 1, 4, 4],
        ),
        (
            "na2d_causal",
            spec(&[6, 7], &[2, 3], &[3, 2], &[true, false]),
            [2, 1, 2, 3, 2],
        ),
        (
            "na3d",
            spec(&[4, 3, 5], &[3, 2, 3], &[1, 1, 1], &[false, false, true]),
            [1, 2, 1, 2, 3],
        ),
    ]
    .into_iter()
    .zip(1..)
    .map(|((name, windows, sizes), seed)| windows.case(name, sizes, seed))
    .collect()
}

/// The windows of neighbourhood attention on a grid.
#[derive(Clone, Debug)]
pub struct Windows {
    /// Extents of the grid.
    pub spatial: Vec<usize>,
    /// Keys of a window, per dim.
    pub kernel: Vec<usize>,
    /// From a key to the next, per dim.
    pub dilation: Vec<usize>,
    /// Whether only keys up to the query are seen, per dim.
    pub causal: Vec<bool>,
}

impl Windows {
    /// A case of these windows with `[batch, kv heads, heads per kv head, dim, value dim]`, its reference from dense attention.
    pub fn case(&self, name: &str, [b, h, g, d, dv]: [usize; 5], seed: u64) -> Case {
        let of = |heads: usize, last: usize| -> Vec<usize> {
            let lead = std::iter::once(b).chain(self.spatial.iter().copied());
            lead.chain([heads, last]).collect()
        };
        let inputs = [
            ("query", numbers(&of(h * g, d), seed)),
            ("key", numbers(&of(h, d), seed ^ 16)),
            ("value", numbers(&of(h, dv), seed ^ 32)),
        ];
        let causal: Vec<usize> = self.causal.iter().map(|&c| usize::from(c)).collect();
        let attributes = json!({
            "spatial": self.spatial,
            "kernel_size": self.kernel,
            "dilation": self.dilation,
            "is_causal": causal,
        });
        let inputs = inputs.map(|(n, t)| (n.to_owned(), t)).into();
        let note = "dense attention under a mask";
        let case =
            Case::without_reference(name, "neighborhood_attention", attributes, inputs, note);
        with_reference(case, dense, &[0, 1, 2], seed)
    }

    fn of(attributes: &Attributes) -> case::Result<Self> {
        let sizes = |name: &str| -> case::Result<Vec<usize>> {
            let given = attributes.ints(name)?.unwrap_or_default();
            Ok(given
                .into_iter()
                .map(|n| n.unsigned_abs() as usize)
                .collect())
        };
        Ok(Self {
            spatial: sizes("spatial")?,
            kernel: sizes("kernel_size")?,
            dilation: sizes("dilation")?,
            causal: sizes("is_causal")?.into_iter().map(|c| c > 0).collect(),
        })
    }

    /// The coordinates of a site.
    fn place(&self, mut site: usize) -> Vec<usize> {
        let mut at = vec![0; self.spatial.len()];
        for (at, &n) in at.iter_mut().zip(&self.spatial).rev() {
            *at = site % n;
            site /= n;
        }
        at
    }

    /// Whether a site sees another: along every dim its index sees the other's.
    pub fn sees(&self, query: usize, key: usize) -> bool {
        let (query, key) = (self.place(query), self.place(key));
        (0..self.spatial.len()).all(|d| self.sees_along(d, query[d], key[d]))
    }

    /// Whether an index sees another of its line, by the definition: among those a multiple of the dilation apart it sees `kernel`
    /// consecutive ones that have it in the middle or begin or end the line; or, causal, end with it.
    fn sees_along(&self, d: usize, query: usize, key: usize) -> bool {
        let (step, k) = (self.dilation[d], self.kernel[d]);
        if query % step != key % step {
            return false;
        }
        let (q, place) = (query / step, key / step);
        if self.causal[d] {
            return place <= q && q - place < k;
        }
        let length = (query % step..self.spatial[d]).step_by(step).count();
        let mut first = q.saturating_sub(k / 2);
        while first + k > length {
            first -= 1;
        }
        first <= place && place < first + k
    }

    /// `[sites, sites]`: 1 where the query, the first, sees the key.
    pub fn mask(&self) -> Vec<Bool> {
        let along = |(d, &n): (usize, &usize)| -> Vec<Vec<bool>> {
            let row = |q| (0..n).map(|k| self.sees_along(d, q, k)).collect();
            (0..n).map(row).collect()
        };
        // Each dim's rows, once for each row of the dims before it: a site is seen if both are.
        let whole = vec![vec![true]];
        let mask = self.spatial.iter().enumerate().map(along);
        let mask = mask.fold(whole, |before, dim| {
            let mut rows = Vec::with_capacity(before.len() * dim.len());
            for outer in &before {
                for inner in &dim {
                    let mut row = Vec::with_capacity(outer.len() * inner.len());
                    for &seen in outer {
                        match seen {
                            true => row.extend_from_slice(inner),
                            false => row.resize(row.len() + inner.len(), false),
                        }
                    }
                    rows.push(row);
                }
            }
            rows
        });
        mask.into_iter().flatten().map(Bool::from).collect()
    }
}

/// The op by dense attention.
fn dense(exec: &dyn Exec, case: &Case, values: &[Value]) -> Result<Vec<Value>, ApplyError> {
    let windows = Windows::of(&case.attributes)?;
    let args = Args::new(case, values);
    let q = args.need("query")?;
    let n: usize = windows.spatial.iter().product();
    // [batch, sites, heads, dim] to [batch, heads, sites, dim] and back.
    let flat = |x: &Value| -> Result<Value, OpError> {
        let [b, .., heads, dim] = *x.shape() else {
            unreachable!("cases have a batch, sites, heads and dim")
        };
        permute(exec, &reshape(exec, x, &[b, n, heads, dim])?, &[0, 2, 1, 3])
    };
    let cx = q.array().cx();
    let mask = windows.mask();
    let layout = Layout::replicated(cx.mesh(), &[n, n]);
    let mask = cx
        .device()
        .upload_slice(&mask)
        .map_err(shard_redistribute::RedistributeError::from)
        .and_then(|buffer| Array::from_parts(cx, &layout, Some(buffer), shard_comm::DType::Bool))
        .map_err(|source| OpError::Redistribute {
            op: "dense",
            source: Box::new(source),
        })?;
    let [k, v] = ["key", "value"].map(|name| args.need(name));
    let (q, k, v) = (flat(q)?, flat(k?)?, flat(v?)?);
    let out = attention(exec, &q, &k, &v, Some(&Value::new(mask)), &Attention::new())?;
    let out = permute(exec, &out, &[0, 2, 1, 3])?;
    let [b, _, heads, dim] = *out.shape() else {
        unreachable!("attention has four dims")
    };
    let lead = std::iter::once(b).chain(windows.spatial.iter().copied());
    let shape: Vec<usize> = lead.chain([heads, dim]).collect();
    Ok(vec![reshape(exec, &out, &shape)?])
}

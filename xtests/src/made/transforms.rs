//! Fourier transforms, from their definition: a product with the matrix of all powers of the root of unity, for each dim.

use crate::case::Case;
use crate::differentiate::numbers;
use crate::dispatch::{ApplyError, Args, norm_of};
use crate::trial::with_reference;
use serde_json::{Value as Json, json};
use shard_ops::einsum::einsum;
use shard_ops::elementwise::{add, mul, mul_scalar, sub};
use shard_ops::fft::FourierNorm;
use shard_ops::index::{cat, slice};
use shard_ops::reduce::sum;
use shard_ops::shape::reshape;
use shard_ops::{Exec, OpError, Value};
use shard_redistribute::Array;
use shard_spec::Layout;
use std::f64::consts::TAU;

/// Cases of all transforms: lengths that are even, odd, prime, 1, cut and padded; all norms; dims first, in the middle, last.
pub(super) fn cases() -> Vec<Case> {
    let made = [
        ("fft", "last", vec![3, 6, 2], json!({})),
        (
            "fft",
            "first",
            vec![7, 4, 2],
            json!({"dim": 0, "norm": "ortho"}),
        ),
        (
            "fft",
            "padded",
            vec![2, 5, 3, 2],
            json!({"dim": 1, "n": 8, "norm": "forward"}),
        ),
        ("fft", "cut", vec![6, 5, 2], json!({"dim": 0, "n": 4})),
        ("fft", "alone", vec![9, 2], json!({})),
        ("fft", "of_one", vec![4, 1, 2], json!({})),
        ("ifft", "last", vec![3, 5, 2], json!({})),
        (
            "ifft",
            "first",
            vec![6, 4, 2],
            json!({"dim": -2, "norm": "ortho"}),
        ),
        ("rfft", "even", vec![4, 8], json!({})),
        (
            "rfft",
            "odd",
            vec![7, 4],
            json!({"dim": 0, "norm": "forward"}),
        ),
        ("rfft", "padded", vec![3, 4, 2], json!({"dim": 1, "n": 7})),
        ("irfft", "even", vec![4, 5, 2], json!({})),
        ("irfft", "odd", vec![4, 5, 2], json!({"n": 9})),
        (
            "irfft",
            "padded",
            vec![3, 4, 2],
            json!({"dim": 0, "n": 8, "norm": "ortho"}),
        ),
        ("irfft", "cut", vec![6, 3, 2], json!({"dim": 0, "n": 6})),
        ("fft2", "both", vec![5, 6, 2], json!({})),
        ("ifft2", "both", vec![5, 4, 2], json!({})),
        (
            "fftn",
            "three",
            vec![3, 4, 5, 2],
            json!({"dim": [0, 2, 1], "norm": "ortho"}),
        ),
        (
            "ifftn",
            "two_of_three",
            vec![3, 4, 5, 2],
            json!({"dim": [0, 2], "s": [4, 3]}),
        ),
        ("rfft2", "both", vec![2, 5, 6], json!({})),
        ("rfftn", "three", vec![4, 3, 5], json!({})),
        (
            "irfft2",
            "both",
            vec![2, 6, 4, 2],
            json!({"norm": "forward"}),
        ),
        ("irfftn", "three", vec![4, 3, 3, 2], json!({"s": [3, 4, 5]})),
        ("fftshift", "both", vec![5, 6], json!({})),
        ("ifftshift", "one", vec![5, 7], json!({"dim": [0]})),
    ];
    let transforms = made
        .into_iter()
        .zip(700..)
        .map(|((op, name, shape, attributes), seed)| {
            let inputs = [("input", numbers(&shape, seed))];
            case(op, name, attributes, &inputs, seed)
        });
    let products = [
        ("same", [vec![3, 4, 2], vec![3, 4, 2]]),
        ("broadcast", [vec![3, 4, 2], vec![5, 1, 4, 2]]),
        ("numbers", [vec![2], vec![6, 2]]),
    ];
    let products = products
        .into_iter()
        .zip(800..)
        .map(|((name, [a, b]), seed)| {
            let inputs = [("a", numbers(&a, seed)), ("b", numbers(&b, seed + 50))];
            case("complex_mul", name, json!({}), &inputs, seed)
        });
    let sums = [
        (
            "product",
            "bik,iok->bok",
            vec![vec![2, 3, 4, 2], vec![3, 5, 4, 2]],
        ),
        (
            "three",
            "i,ij,j->",
            vec![vec![4, 2], vec![4, 3, 2], vec![3, 2]],
        ),
    ];
    let sums = sums
        .into_iter()
        .zip(900..)
        .map(|((name, equation, shapes), seed)| {
            let named = ["a", "b", "c"].into_iter().zip(&shapes);
            let inputs: Vec<_> = named
                .zip(seed..)
                .map(|((n, s), seed)| (n, numbers(s, seed)))
                .collect();
            let attributes = json!({"equation": equation});
            case("complex_einsum", name, attributes, &inputs, seed)
        });
    transforms.chain(products).chain(sums).collect()
}

fn case(
    op: &str,
    name: &str,
    attributes: Json,
    inputs: &[(&str, crate::case::Tensor)],
    seed: u64,
) -> Case {
    let wants: Vec<usize> = (0..inputs.len()).collect();
    let inputs = inputs.iter().map(|(n, t)| ((*n).to_owned(), t.clone()));
    let (name, note) = (format!("{op}_made_{name}"), "from the definition");
    let case = Case::without_reference(name, op, attributes, inputs.collect(), note);
    with_reference(case, by_definition, &wants, seed)
}

/// What is transformed into what.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Forward,
    Inverse,
    FromReal,
    ToReal,
}

fn by_definition(exec: &dyn Exec, case: &Case, values: &[Value]) -> Result<Vec<Value>, ApplyError> {
    let args = Args::new(case, values);
    if case.op == "complex_mul" {
        return Ok(vec![product(exec, args.need("a")?, args.need("b")?)?]);
    }
    if case.op == "complex_einsum" {
        return Ok(vec![sum_of_products(exec, values)?]);
    }
    let x = args.need("input")?;
    if case.op.ends_with("shift") {
        let mut y = x.clone();
        for dim in args.dims("dim", x.ndim())? {
            let n = y.shape()[dim];
            let first = if case.op == "fftshift" {
                n.div_ceil(2)
            } else {
                n / 2
            };
            let (a, b) = (
                slice(exec, &y, dim, 0, 1, first)?,
                slice(exec, &y, dim, first, 1, n - first)?,
            );
            y = cat(exec, &[&b, &a], dim)?;
        }
        return Ok(vec![y]);
    }
    let kind = match (
        case.op.starts_with('r'),
        case.op.starts_with("ir"),
        case.op.starts_with('i'),
    ) {
        (true, ..) => Kind::FromReal,
        (_, true, _) => Kind::ToReal,
        (.., true) => Kind::Inverse,
        _ => Kind::Forward,
    };
    let counted = x.ndim() - usize::from(kind != Kind::FromReal);
    let (dims, lengths) = if case.op.ends_with("fft") {
        let n = case.attributes.int("n", 0)?.unsigned_abs() as usize;
        (
            vec![args.index("dim", -1, counted)?],
            Some(vec![n]).filter(|_| n > 0),
        )
    } else {
        let lengths = case.attributes.ints("s")?;
        let lengths: Option<Vec<usize>> =
            lengths.map(|s| s.into_iter().map(|n| n.unsigned_abs() as usize).collect());
        let count = if case.op.ends_with('2') { 2 } else { counted };
        let dims = match case.attributes.ints("dim")? {
            Some(_) => args.dims("dim", counted)?,
            None => (counted - count..counted).collect(),
        };
        (dims, lengths)
    };
    let norm = norm_of(case)?;
    let last = dims.len() - 1;
    let mut y = x.clone();
    // All but the last dim are of complex numbers, which real ones are after the transform of the last.
    let mut order: Vec<usize> = (0..=last).collect();
    if kind == Kind::FromReal {
        order.reverse();
    }
    for i in order {
        let of_dim = match kind {
            Kind::FromReal if i != last => Kind::Forward,
            Kind::ToReal if i != last => Kind::Inverse,
            other => other,
        };
        let length = lengths.as_ref().map(|lengths| lengths[i]);
        y = line(exec, &y, dims[i], length, of_dim, norm)?;
    }
    Ok(vec![y])
}

/// A transform along a dim: the sum over its elements, and over real and imaginary parts.
fn line(
    exec: &dyn Exec,
    x: &Value,
    dim: usize,
    n: Option<usize>,
    kind: Kind,
    norm: FourierNorm,
) -> Result<Value, OpError> {
    let given = x.shape()[dim];
    let n = n.unwrap_or(if kind == Kind::ToReal {
        2 * (given - 1)
    } else {
        given
    });
    let rows = if kind == Kind::FromReal { n / 2 + 1 } else { n };
    let (reads, writes) = (kind != Kind::FromReal, kind != Kind::ToReal);
    let inverse = matches!(kind, Kind::Inverse | Kind::ToReal);
    let sign = if inverse { 1.0 } else { -1.0 };
    let scale = match (norm, inverse) {
        (FourierNorm::Ortho, _) => (n as f64).sqrt().recip(),
        (FourierNorm::Backward, true) | (FourierNorm::Forward, false) => 1.0 / n as f64,
        _ => 1.0,
    };
    // (j, part of x, k, part of y)
    let entry = |i: &[usize]| {
        let (j, c, k, e) = (i[0], i[1], i[2], i[3]);
        let weight = match kind {
            Kind::ToReal if j > n / 2 => 0.0,
            Kind::ToReal if j != 0 && 2 * j != n => 2.0,
            _ if j >= n => 0.0,
            _ => 1.0,
        };
        // A real result has no more imaginary parts than the mirror image leaves.
        if kind == Kind::ToReal && c == 1 && (j == 0 || 2 * j == n) {
            return 0.0;
        }
        let (sin, cos) = (sign * TAU * ((j * k) % n) as f64 / n as f64).sin_cos();
        let part = match (c, e) {
            (0, 0) | (1, 1) => cos,
            (0, _) => sin,
            _ => -sin,
        };
        scale * weight * part
    };
    let cx = x.array().cx();
    let parts = |complex: bool| if complex { 2 } else { 1 };
    let shape = [given, parts(reads), rows, parts(writes)];
    let matrix = Array::from_fn::<f64>(cx, &Layout::replicated(cx.mesh(), &shape), entry);
    let matrix = matrix.map_err(|source| OpError::Redistribute {
        op: "definition",
        source: Box::new(source),
    })?;
    let matrix = Value::new(matrix);
    // Letters: dims are a, b, ...; parts are y and z, the result's index x.
    let dims = x.ndim() - usize::from(reads);
    let letters: Vec<char> = ('a'..).take(dims).collect();
    let of: String = letters.iter().collect();
    let to: String = letters
        .iter()
        .map(|&l| if l == letters[dim] { 'x' } else { l })
        .collect();
    let part = |is: bool, letter: &str| if is { letter.to_owned() } else { String::new() };
    let (from_part, to_part) = (part(reads, "y"), part(writes, "z"));
    let matrix = {
        let mut shape = vec![given];
        shape.extend(reads.then_some(2));
        shape.push(rows);
        shape.extend(writes.then_some(2));
        shard_ops::shape::reshape(exec, &matrix, &shape)?
    };
    let along = letters[dim];
    let equation = format!("{of}{from_part},{along}{from_part}x{to_part}->{to}{to_part}");
    einsum(exec, &equation, &[x, &matrix])
}

/// The two sums of products above, by broadcasting.
fn sum_of_products(exec: &dyn Exec, values: &[Value]) -> Result<Value, OpError> {
    let reshaped = |i: usize, shape: &[usize]| reshape(exec, &values[i], shape);
    if values.len() == 3 {
        let first = product(exec, &reshaped(0, &[4, 1, 2])?, &values[1])?;
        return sum(exec, &product(exec, &first, &values[2])?, &[0, 1], false);
    }
    let (a, b) = (
        reshaped(0, &[2, 3, 1, 4, 2])?,
        reshaped(1, &[1, 3, 5, 4, 2])?,
    );
    sum(exec, &product(exec, &a, &b)?, &[1], false)
}

fn product(exec: &dyn Exec, a: &Value, b: &Value) -> Result<Value, OpError> {
    let part = |x: &Value, i: usize| slice(exec, x, x.ndim() - 1, i, 1, 1);
    let (ar, ai, br, bi) = (part(a, 0)?, part(a, 1)?, part(b, 0)?, part(b, 1)?);
    let re = sub(exec, &mul(exec, &ar, &br)?, &mul(exec, &ai, &bi)?)?;
    let im = add(exec, &mul(exec, &ar, &bi)?, &mul(exec, &ai, &br)?)?;
    cat(exec, &[&re, &mul_scalar(exec, &im, 1.0)?], re.ndim() - 1)
}

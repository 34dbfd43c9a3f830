//! Kernels of integers and truth values, against the host's.

use shard_comm::local::{self, LocalOptions};
use shard_comm::{Communicator, DType, DeviceKind, Element, dispatch_dtype};
use shard_ops::elementwise::{
    add, bitwise_and, bitwise_not, bitwise_or, bitwise_xor, cast, div, eq, floor_div, ge, gt, le,
    logical_and, logical_not, logical_or, logical_xor, lt, masked_fill, maximum, minimum, mul, ne,
    pow, remainder, shift_left, shift_right, sub, where_,
};
use shard_ops::reduce::{all, amax, amin, any, count_nonzero, prod, sum};
use shard_ops::scan::{cummax, cummin, cumprod, cumsum, linear_recurrence, logcumsumexp};
use shard_ops::statistics::{argmax, argmin, max, min};
use shard_ops::triangle::{diagonal, tril, triu};
use shard_ops::{Engine, EngineOptions, Exec, OpError, Result, Value};
use shard_redistribute::{Array, MeshComm};
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;

type Binary = fn(&dyn Exec, &Value, &Value) -> Result<Value>;
type Reduce = fn(&dyn Exec, &Value, &[usize], bool) -> Result<Value>;

const BINARIES: [Binary; 23] = [
    add,
    sub,
    mul,
    div,
    floor_div,
    remainder,
    pow,
    maximum,
    minimum,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    shift_left,
    shift_right,
    eq,
    ne,
    lt,
    le,
    gt,
    ge,
    logical_and,
    logical_or,
    logical_xor,
];
const REDUCTIONS: [Reduce; 7] = [sum, prod, amax, amin, any, all, count_nonzero];

/// What an op gave: its type and elements as doubles, and as integers where they are; or why it gave nothing.
#[derive(Debug)]
struct Found {
    op: String,
    result: std::result::Result<(DType, Vec<f64>, Vec<i64>), String>,
}

/// Elements whose sums and products wrap, with zeros and the ends of the type among them, or `small` ones; of floats, NaN is
/// among the former and zero is not among the latter.
fn number<T: Element>(i: usize, small: bool) -> T {
    let k: i64 = [3, 0, -2, 7, 1, -9, 200][i % 7];
    match (T::DTYPE.is_float(), small) {
        (true, false) if i == 4 => T::from_f64(f64::NAN),
        (true, true) => T::from_f64(k as f64 / 4.0 + 0.1),
        (true, false) => T::from_f64(k as f64 / 4.0),
        (false, true) => T::from_i64(k % 10),
        (false, false) if i % 5 == 1 => T::from_i64(if i.is_multiple_of(2) {
            i64::MIN
        } else {
            i64::MAX
        }),
        (false, false) => T::from_i64(k * (i64::MAX / 300)),
    }
}

/// Everything that is done to one type, on two ranks.
fn all_of(device: DeviceKind, dtype: DType) -> Vec<Vec<Found>> {
    let options = LocalOptions {
        device,
        ..LocalOptions::default()
    };
    local::run_with(2, &options, |comm| {
        let world: Rc<dyn Communicator> = Rc::new(comm);
        let mesh = DeviceMesh::new(&[2]).unwrap();
        let cx = MeshComm::new(&world, &mesh).unwrap();
        let engine = Engine::new(EngineOptions::default());
        let value = |text: &str, small: bool| {
            let layout = Layout::parse(&mesh, &[5, 6], text).unwrap();
            let array = dispatch_dtype!(dtype, T => {
                Array::from_fn(&cx, &layout, |i| number::<T>(6 * i[0] + i[1], small))
            });
            Value::new(array.unwrap())
        };
        let (a, b) = (value("S(0)[4,1]", false), value("S(1)[1,5]", true));
        let mut found = Vec::new();
        ops(&*engine, &a, &b, &mut |op, result| {
            found.push(read(&mesh, op, result));
        });
        assert_eq!(world.ledger().snapshot().fallbacks, 0);
        found
    })
    .unwrap()
}

fn ops(exec: &dyn Exec, a: &Value, b: &Value, tell: &mut dyn FnMut(String, Result<Value>)) {
    for (i, op) in BINARIES.iter().enumerate() {
        tell(format!("map {i}"), op(exec, a, b));
    }
    tell("not".into(), bitwise_not(exec, a));
    tell("logical not".into(), logical_not(exec, b));
    for to in DType::ALL {
        tell(format!("to {to}"), cast(exec, a, to));
    }
    for (i, op) in REDUCTIONS.iter().enumerate() {
        for dims in [&[0][..], &[1], &[0, 1], &[]] {
            tell(
                format!("reduction {i} over {dims:?}"),
                op(exec, a, dims, true),
            );
        }
    }
    for dims in [&[0][..], &[1], &[0, 1]] {
        tell(
            format!("argmax over {dims:?}"),
            argmax(exec, a, dims, false),
        );
        tell(format!("argmin over {dims:?}"), argmin(exec, a, dims, true));
    }
    tell("max".into(), max(exec, a, 0, true).map(|found| found.0));
    tell("min".into(), min(exec, b, 1, false).map(|found| found.0));
    let mask = logical_not(exec, b);
    if let Ok(mask) = mask {
        tell("where".into(), where_(exec, &mask, a, b));
        tell("masked fill".into(), masked_fill(exec, a, &mask, 1.0));
    }
    for offset in [-2, 0, 1] {
        tell(format!("tril {offset}"), tril(exec, a, offset));
        tell(format!("triu {offset}"), triu(exec, b, offset));
        tell(
            format!("diagonal {offset}"),
            diagonal(exec, b, offset, 0, 1),
        );
    }
    for dim in [0, 1] {
        tell(format!("cumsum {dim}"), cumsum(exec, a, dim));
        tell(format!("cumprod {dim}"), cumprod(exec, b, dim));
        tell(format!("logcumsumexp {dim}"), logcumsumexp(exec, b, dim));
        for backwards in [false, true] {
            let found = linear_recurrence(exec, a, b, None, dim, backwards);
            tell(format!("linear_recurrence {dim} {backwards}"), found);
        }
        for (name, found) in [("max", cummax(exec, a, dim)), ("min", cummin(exec, a, dim))] {
            let of = |pair: &(Value, Value), second: bool| match second {
                true => pair.1.clone(),
                false => pair.0.clone(),
            };
            for second in [false, true] {
                let one = found.clone().map(|pair| of(&pair, second));
                tell(format!("cum{name} {dim}"), one);
            }
        }
    }
}

fn read(mesh: &DeviceMesh, op: String, result: Result<Value, OpError>) -> Found {
    let result = result.map_err(|e| e.to_string()).map(|value| {
        let whole = Layout::replicated(mesh, value.shape());
        let array = value.array().redistribute(&whole).unwrap();
        let dtype = array.dtype();
        let (mut doubles, mut integers) = (Vec::new(), Vec::new());
        dispatch_dtype!(dtype, T => {
            for x in array.to_vec::<T>().unwrap() {
                doubles.push(x.to_f64());
                if let shard_comm::Scalar::I64(x) = x.to_scalar() {
                    integers.push(x);
                }
            }
        });
        (dtype, doubles, integers)
    });
    Found { op, result }
}

/// Of the types that no case of conformance has.
#[test]
fn narrow_types_have_the_hosts_results() {
    let kinds = crate::ranks::gpus();
    for dtype in [DType::I32, DType::U8, DType::Bool] {
        if kinds.is_empty() {
            return;
        }
        let expected = all_of(DeviceKind::Host, dtype);
        for &kind in &kinds {
            for (found, expected) in all_of(kind, dtype).iter().zip(&expected) {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(expected) {
                    same(dtype, found, expected);
                }
            }
        }
    }
}

fn same(of: DType, found: &Found, expected: &Found) {
    match (&found.result, &expected.result) {
        (Err(found), Err(expected)) => assert_eq!(found, expected),
        (Ok((dtype, doubles, integers)), Ok((other, exact, whole))) => {
            assert_eq!((dtype, integers), (other, whole), "{} of {of}", expected.op);
            for (i, (a, b)) in doubles.iter().zip(exact).enumerate() {
                let equal = a == b || a.is_nan() && b.is_nan();
                // Functions of floats may differ in the last digit.
                let near = dtype.is_float() && (a - b).abs() <= 1e-5 * b.abs();
                assert!(equal || near, "{} of {of}, {i}: {a}, not {b}", expected.op);
            }
        }
        _ => panic!("{of}: {found:?}, not {expected:?}"),
    }
}

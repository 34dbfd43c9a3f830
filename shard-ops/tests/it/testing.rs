//! The validator of rules finds what is wrong with an op, and nothing where nothing is.

use shard_comm::DType;
use shard_comm::by_tree;
use shard_ops::inside::Share;
use shard_ops::testing::Rng;
use shard_ops::testing::{Tensor, Validation, ValidationError, validate};
use shard_ops::{
    Access, Exec, HostCall, InOp, Keeps, Linearity, Meta, Op, OpError, Reduction, Rule, Saved,
    Value, key_of, reduce,
};
use shard_redistribute::Array;
use shard_spec::ReduceOp;
use std::sync::Arc;

/// `y[i] = slope * (i + 1) * x[i]`, with or without a mistake.
#[derive(Clone, Copy, Debug, Hash)]
struct Ramp {
    slope: i64,
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq)]
enum Mistake {
    None,
    /// The kernel takes its box for the whole.
    Box,
    /// It adds one, and says that it is linear.
    Linear,
    /// The vjp is twice what it should be.
    Slope,
    /// The vjp looks at an operand that it does not keep.
    Keeps,
    /// The kernel reads beyond its box.
    Panic,
}

fn ramp(mistake: Mistake) -> Ramp {
    Ramp { slope: 1, mistake }
}

impl Op for Ramp {
    fn name(&self) -> &'static str {
        "ramp"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule, OpError> {
        let mut rule = Rule::builder(self.name(), inputs);
        let x = &inputs[0];
        let i = rule.factor(x.shape[0]);
        rule.input(vec![Access::factor(i)])
            .output(vec![Access::factor(i)], x.shape.clone(), x.dtype)
            .linearity(Linearity::Each([0].into_iter().collect()))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let start = match self.mistake {
            Mistake::Box => 0,
            _ => call.cx.outputs[0].start[0],
        };
        let whole = call.cx.inputs[0].global[0];
        let x = call.input::<f64>(0);
        let mut y = call.output::<f64>(0);
        let added = f64::from(u8::from(self.mistake == Mistake::Linear));
        let last = match self.mistake {
            Mistake::Panic => whole,
            _ => y.len(),
        };
        for i in 0..last {
            let value = (self.slope * (start + i + 1) as i64) as f64 * x.get(&[i]) + added;
            y.set(&[i], value);
        }
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>, OpError> {
        if self.mistake == Mistake::Keeps {
            return Ok(vec![Some(
                exec.apply1(Arc::new(*self), &[&saved.inputs[0]])?,
            )]);
        }
        let slope = match self.mistake {
            Mistake::Slope => 2,
            _ => 1,
        };
        let back = Self {
            slope,
            mistake: Mistake::None,
        };
        saved.pull_back(cotangents, |dy, _| exec.apply1(Arc::new(back), &[dy]))
    }
}

#[test]
fn an_op_as_it_should_be_passes() {
    let tried = validate(ramp(Mistake::None), &[Tensor::drawn([11], 1)]).unwrap();
    // Per axis set: three cuts, chosen and forced, and one sum; of the op and of its derivative.
    assert_eq!(tried.layouts, 6 * 7 * 2);
    assert_eq!(tried.gradients, 6 * 4);
    assert_eq!(tried.slopes, 11);
}

fn fault(mistake: Mistake) -> ValidationError {
    validate(ramp(mistake), &[Tensor::drawn([11], 1)]).unwrap_err()
}

/// `y[i] = x[i] + by`, which is linear if that is 0, with a key that is that of all such ops.
#[derive(Clone, Copy, Debug)]
struct Plus {
    by: u8,
}

impl Op for Plus {
    fn name(&self) -> &'static str {
        "plus"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule, OpError> {
        let mut rule = Rule::builder(self.name(), inputs).any_order();
        let x = &inputs[0];
        let i = vec![Access::factor(rule.factor(x.shape[0]))];
        let linear = if self.by == 0 { &[0][..] } else { &[] };
        rule.input(i.clone())
            .output(i, x.shape.clone(), x.dtype)
            .linearity(Linearity::Each(linear.iter().copied().collect()))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0).to_vec();
        let mut y = call.output::<f64>(0);
        let added = x.into_iter().map(|x| x + f64::from(self.by));
        for (y, x) in y.data_mut().iter_mut().zip(added) {
            *y = x;
        }
    }

    fn keeps(&self) -> Keeps {
        Keeps::NOTHING
    }

    fn vjp(
        &self,
        _: &dyn Exec,
        _: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>, OpError> {
        Ok(cotangents.to_vec())
    }
}

#[test]
fn an_attribute_that_is_no_part_of_the_key_is_found() {
    let x = [Tensor::drawn([11], 1)];
    for _ in 0..2 {
        validate(Plus { by: 0 }, &x).unwrap();
    }
    let fault = validate(Plus { by: 3 }, &x).unwrap_err();
    assert!(matches!(fault, ValidationError::Key { .. }), "{fault}");
    let told = fault.to_string();
    assert!(told.contains("by: 3") && told.contains("by: 0"), "{told}");
}

#[test]
fn a_kernel_that_takes_its_box_for_the_whole_is_found() {
    let ValidationError::Differs { mesh, difference } = fault(Mistake::Box) else {
        panic!("found something else");
    };
    assert_eq!(mesh, [2]);
    assert_eq!(difference.layouts, ["S(0)"]);
    assert!(
        difference.what.starts_with("factor 0 over [0], Even"),
        "{difference}"
    );
    assert!(
        difference
            .problem
            .starts_with("output 0: the piece of rank 1: 5 of 5 elements differ"),
        "{difference}"
    );
}

/// Twice its operands added up, with a mistake in what it gives back.
#[derive(Clone, Copy, Debug, Hash)]
enum Back {
    /// No entries.
    Nothing,
    /// An entry more than there are operands.
    Longer,
    /// A gradient of whole numbers.
    Whole,
    /// A gradient of another shape.
    Flat,
    /// None.
    Absent,
    /// The kernel leaves its output as it was, and there is no derivative.
    Unwritten,
    /// It leaves one element.
    Element,
}

impl Op for Back {
    fn name(&self) -> &'static str {
        "back"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), self)
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule, OpError> {
        Rule::pointwise(self.name(), inputs, inputs[0].dtype, Linearity::None)
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0).to_vec();
        let mut y = call.output::<f64>(0);
        let first = y.offset();
        let count = match self {
            Self::Unwritten => 0,
            Self::Element => x.len().min(8),
            _ => x.len(),
        };
        for (y, x) in y.data_mut()[first..].iter_mut().zip(&x[..count]) {
            *y = 2.0 * x;
        }
    }

    fn vjp(
        &self,
        exec: &dyn Exec,
        saved: &Saved<'_>,
        cotangents: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>, OpError> {
        let right = saved.pull_back(cotangents, |dy, _| exec.apply1(Arc::new(*self), &[dy]))?;
        let x = &saved.inputs[0];
        Ok(match self {
            Self::Nothing => vec![],
            Self::Longer => vec![right[0].clone(), None, None],
            Self::Whole => {
                let cx = x.array().cx();
                let whole = Array::from_fn(cx, x.layout(), |_| 2_i64).in_op("back")?;
                vec![Some(Value::new(whole))]
            }
            Self::Absent => vec![None],
            Self::Flat => vec![Some(reduce::sum(exec, x, &[0], false)?)],
            Self::Unwritten | Self::Element => {
                return Err(OpError::NoVjp {
                    op: self.name(),
                    operand: 0,
                });
            }
        })
    }
}

/// Of which fault there is, in words.
fn told(back: Back) -> String {
    let run = || validate(back, &[Tensor::drawn([3, 3], 1)]);
    match std::panic::catch_unwind(run) {
        Ok(Err(fault)) => fault.to_string(),
        other => panic!("{back:?}: {other:?}"),
    }
}

#[test]
fn a_vjp_that_gives_no_list_of_gradients_is_found() {
    let said = [
        (
            Back::Nothing,
            "expected an entry for each of 1 operands, got 0",
        ),
        (
            Back::Longer,
            "expected an entry for each of 1 operands, got 3",
        ),
        (
            Back::Whole,
            "the gradient of operand 0 is i64 [3, 3], expected f64 [3, 3]",
        ),
        (
            Back::Flat,
            "the gradient of operand 0 is f64 [3], expected f64 [3, 3]",
        ),
        (
            Back::Absent,
            "there is no gradient of operand 0, where differences of values at [0, 0] say ",
        ),
    ];
    for (back, said) in said {
        let told = told(back);
        assert!(
            told.starts_with(&format!("the vjp of {back:?}: {said}")),
            "{told}"
        );
    }
}

#[test]
fn elements_that_a_kernel_does_not_write_are_found() {
    for (back, missing) in [(Back::Unwritten, 9), (Back::Element, 1)] {
        let told = told(back);
        let begin =
            format!("{back:?}: output 0 depends on what was in its memory before: {missing} of 9");
        assert!(told.starts_with(&begin), "{told}");
    }
}

/// Numbers that take their box for the whole, and the sum of the operand, of which ranks have terms.
#[derive(Debug)]
struct PlacesAndSum;

impl Op for PlacesAndSum {
    fn name(&self) -> &'static str {
        "places_and_sum"
    }

    fn key(&self) -> u128 {
        key_of(self.name(), &())
    }

    fn rule(&self, inputs: &[Meta]) -> Result<Rule, OpError> {
        let mut rule = Rule::builder(self.name(), inputs);
        let x = &inputs[0];
        let i = rule.factor(x.shape[0]);
        rule.input(vec![Access::factor(i)])
            .output(vec![Access::factor(i)], x.shape.clone(), x.dtype)
            .output(vec![], [][..].into(), x.dtype)
            .reduction(Reduction::Partial(ReduceOp::Sum))
            .build()
    }

    fn host(&self, call: &mut HostCall<'_, '_>) {
        let x = call.input::<f64>(0);
        let count = x.shape()[0];
        let mut places = call.output::<f64>(0);
        for i in 0..count {
            places.set(&[i], i as f64);
        }
        let sum = (0..count).map(|i| x.get(&[i])).sum();
        call.output::<f64>(1).set(&[], sum);
    }
}

/// The first rank finds nothing in its piece, and sums the terms of what comes next with one that did.
#[test]
fn what_one_rank_alone_finds_keeps_no_other_waiting() {
    let Err(ValidationError::Differs { difference, .. }) =
        validate(PlacesAndSum, &[Tensor::drawn([11], 1)])
    else {
        panic!("found something else");
    };
    let said = "output 0: the piece of rank 1: 5 of 5 elements differ";
    assert!(difference.problem.starts_with(said), "{difference}");
}

#[test]
fn a_linearity_that_is_none_is_found() {
    let ValidationError::Differs { difference, .. } = fault(Mistake::Linear) else {
        panic!("found something else");
    };
    assert_eq!(difference.layouts, ["P(sum)"]);
}

#[test]
fn a_derivative_of_another_function_is_found() {
    let ValidationError::Slope {
        index,
        expected,
        got,
        ..
    } = fault(Mistake::Slope)
    else {
        panic!("found something else");
    };
    assert_eq!(index, [0]);
    assert!((got - 2.0 * expected).abs() < 1e-6, "{expected} {got}");
}

#[test]
fn a_derivative_that_looks_at_what_is_not_kept_is_found() {
    let error = fault(Mistake::Keeps);
    assert!(
        matches!(&error, ValidationError::Alone(OpError::NoData { .. })),
        "{error}"
    );
}

#[test]
fn a_kernel_that_panics_is_found() {
    let error = fault(Mistake::Panic);
    assert!(
        matches!(&error, ValidationError::Launch { mesh, .. } if mesh == &[2]),
        "{error}"
    );
}

#[test]
fn a_type_the_op_does_not_take_is_an_error() {
    let validation = Validation {
        float: DType::F32,
        ..Validation::default()
    };
    let run =
        std::panic::catch_unwind(|| validation.run(ramp(Mistake::None), &[Tensor::drawn([4], 1)]));
    assert!(
        matches!(
            run,
            Ok(Err(
                ValidationError::Launch { .. } | ValidationError::Alone(_)
            ))
        ),
        "{run:?}"
    );
}

#[test]
fn streams_are_fixed_and_distinct() {
    // Published first output of SplitMix64 for state 1234567, which this seed gives.
    assert_eq!(
        Rng::new(1_234_567 ^ 0x9e37_79b9_7f4a_7c15, &[]).next_u64(),
        6_457_827_717_110_365_317
    );
    let first = |labels: &[&str]| Rng::new(7, labels).next_u64();
    assert_eq!(first(&["a", "b"]), first(&["a", "b"]));
    assert_ne!(first(&["a", "b"]), first(&["ab"]));
    assert_ne!(first(&["a"]), Rng::new(8, &["a"]).next_u64());
}

#[test]
fn shuffle_keeps_all() {
    let mut items: Vec<usize> = (0..50).collect();
    Rng::new(1, &[]).shuffle(&mut items);
    assert_ne!(items, (0..50).collect::<Vec<_>>());
    items.sort_unstable();
    assert_eq!(items, (0..50).collect::<Vec<_>>());
}

#[test]
fn terms_add_up_exactly() {
    for terms in 1..20 {
        for at in 0..4 {
            for value in [0.1, -3.7e300, 5e-324, 1.0 / 3.0] {
                let term = |index| Share { index, terms }.term(value, at);
                let sum = by_tree((0..terms).map(term), |a, b| a + b).unwrap();
                assert_eq!(
                    sum.to_bits(),
                    value.to_bits(),
                    "{terms} terms of {value} at {at}"
                );
            }
        }
    }
}

#[test]
fn terms_are_not_alike() {
    let term = |index, at| Share { index, terms: 3 }.term(1.0, at);
    assert_ne!(
        [term(0, 0), term(1, 0), term(2, 0)],
        [term(0, 1), term(1, 1), term(2, 1)]
    );
    assert_eq!(term(0, 0) + term(1, 0) + term(2, 0), 1.0);
}

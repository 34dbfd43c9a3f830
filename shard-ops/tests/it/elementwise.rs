//! Maps of two numbers: values and slopes.

use crate::applied::validated;
use shard_ops::elementwise::{atan2, copysign, fmod, hypot, leaky, logaddexp, logaddexp2, xlogy};
use shard_ops::testing::{Data, Tensor, Validated};
use shard_ops::{Exec, Result, Value};

type Map = fn(&dyn Exec, &Value, &Value) -> Result<Value>;

fn tried(name: &str, map: Map, operands: &[Tensor]) -> Validated {
    validated(name, operands, &|e, v| map(e, &v[0], &v[1]).map(drop))
}

#[test]
fn maps_of_two_numbers_are_one_ranks_under_all_layouts_and_have_their_slopes() {
    let maps: [(&str, Map); 5] = [
        ("atan2", atan2),
        ("hypot", hypot),
        ("logaddexp", logaddexp),
        ("logaddexp2", logaddexp2),
        ("prelu", leaky),
    ];
    for (name, map) in maps {
        let operands = [Tensor::drawn([5, 3], 1), Tensor::drawn([5, 1], 2)];
        assert_eq!(tried(name, map, &operands).slopes, 20, "{name}");
    }
    // Of the sign alone nothing has a slope.
    let operands = [Tensor::drawn([5, 3], 1), Tensor::drawn([5, 1], 2)];
    assert_eq!(tried("copysign", copysign, &operands).slopes, 15);
}

#[test]
fn logarithms_of_positive_numbers_have_their_slopes() {
    let positive: Vec<f64> = (0..6).map(|i| 0.4 + 0.3 * f64::from(i)).collect();
    let positive = Tensor::new([6], Data::F64(positive));
    let drawn = Tensor::drawn([6], 3);
    tried("xlogy", xlogy, &[drawn.clone(), positive.clone()]);
    tried("fmod", fmod, &[drawn, positive]);
}

use shard_kernels::powers::sum_of_powers;

/// Lengths on both sides of the lanes.
#[test]
fn sums_follow_their_definition() {
    for n in [0, 1, 15, 16, 17, 100] {
        let x: Vec<f32> = (0..n).map(|i| (i % 7) as f32 / 2.0 - 1.5).collect();
        for order in [0.5, 1.0, 2.0, 3.0, f64::INFINITY] {
            let sizes = x.iter().map(|x| f64::from(x.abs()));
            let wanted = match order {
                f64::INFINITY => sizes.fold(0.0, f64::max),
                p => sizes.map(|x| x.powf(p)).sum(),
            };
            let got = sum_of_powers(&x, order);
            assert!(
                (got - wanted).abs() <= 1e-13 * wanted,
                "{order}: {got} for {wanted}"
            );
        }
    }
}

#[test]
fn what_is_not_a_number_is_found_wherever_it_is() {
    for place in [0, 3, 15, 16, 39] {
        let mut x = [2.0f64; 40];
        x[place] = f64::NAN;
        for order in [1.0, 2.0, 2.5, f64::INFINITY] {
            assert!(sum_of_powers(&x, order).is_nan(), "{order} {place}");
        }
    }
}

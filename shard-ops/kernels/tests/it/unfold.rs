use crate::testing::{Rng, naive_index};
use shard_kernels::conv::Taps;
use shard_kernels::unfold::*;
use shard_kernels::{View, ViewMut};

/// Every element is the one its definition names, and folding is the adjoint.
#[test]
fn columns_match_their_definition() {
    let mut rng = Rng::new(1);
    for round in 0..200 {
        let nd = rng.within(1, 3);
        let lead: Vec<usize> = (0..rng.within(0, 2)).map(|_| rng.within(0, 2)).collect();
        let mut draw = |low, high| (0..nd).map(|_| rng.within(low, high)).collect::<Vec<_>>();
        let (size, kernel, output) = (draw(0, 6), draw(1, 3), draw(0, 4));
        let (stride, dilation, pad) = (draw(1, 3), draw(1, 2), draw(0, 2));
        let origin: Vec<isize> = pad.iter().map(|&p| -(p as isize)).collect();
        let window = Taps::new(&stride, &dilation, &origin);
        let xs = [&lead[..], &size].concat();
        let ys = [&lead[..], &kernel, &output].concat();
        let x = rng.vec::<f64>(xs.iter().product());
        let mut y = vec![f64::NAN; ys.iter().product()];
        let view = View::contiguous(&x, &xs);
        unfold(&view, &mut ViewMut::contiguous(&mut y, &ys), &window);
        for (at, found) in naive_index(&ys).iter().zip(&y) {
            let (k, o) = at[lead.len()..].split_at(nd);
            let inputs: Option<Vec<usize>> = (0..nd)
                .map(|d| {
                    let i = (o[d] * stride[d] + k[d] * dilation[d]).checked_sub(pad[d])?;
                    (i < size[d]).then_some(i)
                })
                .collect();
            let expected = inputs.map_or(0.0, |i| view.get(&[&at[..lead.len()], &i].concat()));
            assert_eq!(*found, expected, "round {round} at {at:?}");
        }
        let other = rng.vec::<f64>(y.len());
        let mut back = vec![f64::NAN; x.len()];
        let columns = View::contiguous(&other, &ys);
        fold(&columns, &mut ViewMut::contiguous(&mut back, &xs), &window);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert!((dot(&y, &other) - dot(&x, &back)).abs() < 1e-12);
    }
}

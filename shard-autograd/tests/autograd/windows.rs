//! Transposed convolutions whose output padding is not less than the stride: outputs that no input reaches.

use crate::common::{Bench, on_mesh, small};
use shard_ops::conv::{ConvTransposeOptions, conv_transpose};

/// Sizes of a transposed convolution of one dim.
#[derive(Clone, Copy, Debug)]
struct Case {
    inputs: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: (usize, usize),
    extra: usize,
}

/// Extents of batch, channels in and channels out.
const SIZES: [usize; 3] = [2, 2, 3];

impl Case {
    fn outputs(self) -> usize {
        let reach = self.stride * (self.inputs - 1) + self.dilation * (self.kernel - 1) + 1;
        reach + self.extra - self.pad.0 - self.pad.1
    }

    /// By hand: the result, and the gradients of its product with `small` with respect to input and weight.
    fn expected(self) -> [Vec<f64>; 3] {
        let ([n, c, o], outputs) = (SIZES, self.outputs());
        let mut y = vec![0.0; n * o * outputs];
        let mut dx = vec![0.0; n * c * self.inputs];
        let mut dw = vec![0.0; c * o * self.kernel];
        for (n, c, o) in
            (0..n).flat_map(|n| (0..c).flat_map(move |c| (0..o).map(move |o| (n, c, o))))
        {
            for (i, k) in (0..self.inputs).flat_map(|i| (0..self.kernel).map(move |k| (i, k))) {
                let at = (self.stride * i + self.dilation * k).checked_sub(self.pad.0);
                let Some(at) = at.filter(|&at| at < outputs) else {
                    continue;
                };
                let (x, w, g) = (small(&[n, c, i]), small(&[c, o, k]), small(&[n, o, at]));
                y[(n * SIZES[2] + o) * outputs + at] += x * w;
                dx[(n * SIZES[1] + c) * self.inputs + i] += w * g;
                dw[(c * SIZES[2] + o) * self.kernel + k] += x * g;
            }
        }
        [y, dx, dw]
    }

    /// The same on a mesh, in memory that others have written to.
    fn check(self, b: &Bench, at: &str) {
        let ([n, c, o], replicated) = (SIZES, "R");
        let [y_expected, dx, dw] = self.expected();
        let stale = (1..200).map(|n| b.value(&[n], replicated, |_| 777.0));
        drop(stale.collect::<Vec<_>>());
        let x = b.leaf(&[n, c, self.inputs], at, small);
        let w = b.leaf(&[c, o, self.kernel], replicated, small);
        let options = ConvTransposeOptions {
            stride: vec![self.stride],
            dilation: vec![self.dilation],
            padding: vec![self.pad],
            output_padding: vec![self.extra],
            groups: 1,
        };
        let y = conv_transpose(&b.rec, &x, &w, None, &options).unwrap();
        assert_eq!(b.full(&y), y_expected, "{self:?} {at}");
        let seed = b.value(y.shape(), replicated, small);
        let gradients = b.rec.backward(&y, Some(&seed)).unwrap();
        let of = |v| b.full(&gradients.get(v).unwrap().unwrap());
        assert_eq!([of(&x), of(&w)], [dx, dw], "{self:?} {at}");
    }
}

#[test]
fn outputs_that_no_input_reaches_are_zero_and_have_no_derivative() {
    let case = |inputs, kernel, [stride, dilation]: [usize; 2], pad, extra| Case {
        inputs,
        kernel,
        stride,
        dilation,
        pad,
        extra,
    };
    let cases = [
        case(4, 3, [1, 2], (0, 0), 1),
        // The padding crops what the output padding adds, wholly or partly.
        case(4, 3, [1, 3], (1, 2), 2),
        case(5, 2, [2, 4], (1, 1), 3),
        case(5, 2, [2, 3], (0, 1), 2),
        // The output consists of added elements only.
        case(1, 3, [1, 3], (8, 0), 2),
        // The output padding is less than the stride.
        case(4, 3, [2, 1], (1, 1), 1),
    ];
    for case in cases {
        for (ranks, x) in [(1, "R"), (2, "S(2)"), (3, "S(2)"), (3, "S(1)"), (3, "R")] {
            on_mesh(&[ranks], |b| case.check(b, x));
        }
    }
}

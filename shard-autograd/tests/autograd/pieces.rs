//! Gradients of pieces of one value, which are put together.

use crate::common::{Bench, Telling, close, on_mesh, small};
use shard_autograd::Recorder;
use shard_ops::elementwise::{add, mul};
use shard_ops::index::{chunk, slice, unbind};
use shard_ops::reduce::sum;
use shard_ops::{Exec, Value};

const SHAPE: [usize; 2] = [7, 6];

/// A piece along a dim: its start, its step and its length.
#[derive(Clone, Copy, Debug)]
struct Piece(usize, usize, isize, usize);

impl Piece {
    fn of(self, exec: &dyn Exec, x: &Value) -> Value {
        slice(exec, x, self.0, self.1, self.2, self.3).unwrap()
    }

    /// The index within the piece, of an index of the whole.
    fn at(self, i: [usize; 2]) -> Option<[usize; 2]> {
        let Self(dim, start, step, len) = self;
        (0..len)
            .find(|k| start as isize + *k as isize * step == i[dim] as isize)
            .map(|k| {
                let mut at = i;
                at[dim] = k;
                at
            })
    }
}

fn weight(number: usize, i: &[usize]) -> f64 {
    small(&[number, i[0], i[1]]) + 0.5
}

/// `Σ piece² w` over pieces of `x`, the weights being other numbers for each.
fn loss(b: &Bench, x: &Value, pieces: &[Piece]) -> Value {
    let everywhere = vec!["R"; b.cx.mesh().ndim()].join(" ");
    let terms = pieces.iter().enumerate().map(|(number, piece)| {
        let part = piece.of(&b.rec, x);
        let w = b.value(part.shape(), &everywhere, |i| weight(number, i));
        let squares = mul(&b.rec, &mul(&b.rec, &part, &part).unwrap(), &w).unwrap();
        sum(&b.rec, &squares, &[0, 1], false).unwrap()
    });
    terms.reduce(|a, b_| add(&b.rec, &a, &b_).unwrap()).unwrap()
}

/// What multiplies `x` in the gradient, or is the second derivative.
fn curvature(pieces: &[Piece]) -> Vec<f64> {
    let each = |i: usize| {
        let at = [i / SHAPE[1], i % SHAPE[1]];
        let terms = (pieces.iter().enumerate())
            .filter_map(|(number, piece)| Some(2.0 * weight(number, &piece.at(at)?)));
        terms.sum()
    };
    (0..SHAPE[0] * SHAPE[1]).map(each).collect()
}

fn cases() -> Vec<Vec<Piece>> {
    vec![
        // All of it, once.
        vec![Piece(1, 0, 1, 2), Piece(1, 2, 1, 2), Piece(1, 4, 1, 2)],
        // Gaps.
        vec![Piece(1, 5, 1, 1), Piece(1, 1, 1, 2)],
        // One inside the other, and one twice.
        vec![Piece(0, 0, 1, 6), Piece(0, 2, 1, 3), Piece(0, 2, 1, 3)],
        // Every second, forwards and backwards: side by side, and on top of each other.
        vec![Piece(0, 0, 2, 4), Piece(0, 5, -2, 3), Piece(0, 6, -3, 3)],
        // Of both dims, and the whole.
        vec![
            Piece(0, 3, 1, 2),
            Piece(1, 3, 1, 2),
            Piece(0, 0, 1, 7),
            Piece(1, 0, 5, 2),
        ],
        // Nothing.
        vec![Piece(0, 3, 1, 0), Piece(0, 3, 1, 2)],
        (0..7).map(|i| Piece(0, i, 1, 1)).collect(),
    ]
}

#[test]
fn pieces_give_the_sum_of_their_gradients() {
    for (mesh, layout) in [
        (&[1][..], "R"),
        (&[3], "R"),
        (&[3], "S(0)"),
        (&[3], "S(1)"),
        (&[2], "S(0)[0,7]"),
        (&[5], "S(1)[2,0,1,0,3]"),
        (&[9], "S(0)"),
        (&[2, 2], "R S(1)"),
        (&[2, 2], "S(0) S(0)"),
        (&[2, 3], "S(1)[6,0] S(0)"),
    ] {
        on_mesh(mesh, |b| {
            for pieces in cases() {
                let x = b.leaf(&SHAPE, layout, small);
                let values: Vec<f64> = b.full(&x);
                let slopes: Vec<f64> = (curvature(&pieces).iter().zip(&values))
                    .map(|(c, x)| c * x)
                    .collect();
                let y = loss(b, &x, &pieces);
                let gradients = b.rec.backward(&y, None).unwrap();
                let dx = gradients.get(&x).unwrap().unwrap();
                assert_eq!(dx.layout(), x.layout());
                assert!(close(&b.full(&dx), &slopes), "{layout} {pieces:?}");
                // The derivative of the gradient comes from the same rules.
                let y = loss(b, &x, &pieces);
                let dx = b.rec.grad(&[&y], &[&x], &[], true).unwrap();
                let dx = dx[0].as_ref().unwrap();
                let total = sum(&b.rec, dx, &[0, 1], false).unwrap();
                let gradients = b.rec.backward(&total, None).unwrap();
                let second = b.full(&gradients.get(&x).unwrap().unwrap());
                assert!(close(&second, &curvature(&pieces)), "{layout} {pieces:?}");
            }
        });
    }
}

#[test]
fn a_value_that_was_split_is_put_together_by_one_move() {
    on_mesh(&[2], |b| {
        let telling = Telling::new();
        let tape = Recorder::new(telling.clone());
        let moves = |f: &dyn Fn(&Value) -> Vec<Value>| {
            let x = b.value(&[70, 6], "S(1)", small);
            let x = tape.leaf(x.array().clone()).unwrap();
            let parts = f(&x);
            let all = parts.iter().map(|p| {
                let dims: Vec<usize> = (0..p.ndim()).collect();
                sum(&tape, &mul(&tape, p, p).unwrap(), &dims, false).unwrap()
            });
            let y = all.reduce(|a, b| add(&tape, &a, &b).unwrap()).unwrap();
            telling.names.borrow_mut().clear();
            let gradients = tape.backward(&y, None).unwrap();
            let twice: Vec<f64> = b.full(&x).iter().map(|x| 2.0 * x).collect();
            assert!(close(&b.full(&gradients.get(&x).unwrap().unwrap()), &twice));
            telling.count("move_adjoint")
        };
        assert_eq!(moves(&|x| chunk(&tape, x, 5, 0).unwrap()), 1);
        assert_eq!(
            moves(&|x| vec![
                slice(&tape, x, 0, 0, 2, 35).unwrap(),
                slice(&tape, x, 0, 1, 2, 35).unwrap()
            ]),
            1
        );
        // Of many pieces some are put together, and then those.
        assert_eq!(moves(&|x| unbind(&tape, x, 0).unwrap()), 10);
    });
}

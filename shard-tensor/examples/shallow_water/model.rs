//! Shallow water on a rotating plane, in tensors.
//!
//! Depth lies in the middle of cells, the flow across their eastern and northern edges (Arakawa's C grid), and opposite edges
//! of the plane meet. All differences and means are windows of 3 x 3 cells, so that a step is three convolutions with fixed
//! weights, each of which brings every rank a frame one cell wide from its neighbours, and products cell by cell. The scheme
//! is Sadourny's (1975): what leaves a cell enters the next, so the mass stays.

use ndarray::Array4;
use shard_tensor::{ConvOptions, EdgeMap, Mesh, Placements, Result, ShardTensor};

/// The size of a cell, in metres.
const CELL: f64 = 5_000.0;
/// In metres per square second.
const GRAVITY: f64 = 9.81;
/// How deep the water is, in metres.
pub(crate) const DEPTH: f64 = 100.0;
/// Twice the rotation about the vertical, per second.
const CORIOLIS: f64 = 1e-4;
/// In square metres per second.
const VISCOSITY: f64 = 500.0;
/// Seconds of a step: a wave crosses a fifth of a cell.
pub(crate) const STEP: f64 = 30.0;

/// A term of a stencil: input channel, rows north and columns east of the middle, coefficient.
type Term = (usize, isize, isize, f64);

/// Channels of the state.
const H: usize = 0;
const U: usize = 1;
const V: usize = 2;
/// Squares of the flow, which follow them.
const UU: usize = 3;
const VV: usize = 4;

/// The fixed weights of a step.
pub(crate) struct Water {
    slopes: ShardTensor,
    fluxes: ShardTensor,
    turns: ShardTensor,
}

impl Water {
    pub(crate) fn new(mesh: &Mesh) -> Result<Self> {
        let per = 1.0 / CELL;
        let spread = |c: usize| -> Vec<Term> {
            let nu = VISCOSITY * per * per;
            let around = [(0, 1), (0, -1), (1, 0), (-1, 0)].map(|(y, x)| (c, y, x, nu));
            [around.to_vec(), vec![(c, 0, 0, -4.0 * nu)]].concat()
        };
        // Of gravity and kinetic energy: g h + (mean of u u from west to east + mean of v v from south to north) / 2.
        let pressure = |north: isize, east: isize, sign: f64| -> Vec<Term> {
            let at = |c, y: isize, x: isize, by: f64| (c, north + y, east + x, by * sign * per);
            vec![
                at(H, 0, 0, GRAVITY),
                at(UU, 0, 0, 0.25),
                at(UU, 0, -1, 0.25),
                at(VV, 0, 0, 0.25),
                at(VV, -1, 0, 0.25),
            ]
        };
        let mean = |c, (y, x): (isize, isize)| vec![(c, 0, 0, 0.5), (c, y, x, 0.5)];
        let corner = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(y, x)| (H, y, x, 0.25));
        let spin = [
            (V, 0, 1, per),
            (V, 0, 0, -per),
            (U, 1, 0, -per),
            (U, 0, 0, per),
        ];
        let push = |c: usize, (y, x): (isize, isize)| {
            [pressure(0, 0, 1.0), pressure(y, x, -1.0), spread(c)].concat()
        };
        Ok(Self {
            slopes: stencils(
                mesh,
                5,
                &[
                    mean(H, (0, 1)),
                    mean(H, (1, 0)),
                    spin.to_vec(),
                    corner.to_vec(),
                    push(U, (0, 1)),
                    push(V, (1, 0)),
                ],
            )?,
            // Of the flow of mass to the east and to the north: what it leaves in a cell, and its means at corners.
            fluxes: stencils(
                mesh,
                2,
                &[
                    vec![
                        (0, 0, 0, -per),
                        (0, 0, -1, per),
                        (1, 0, 0, -per),
                        (1, -1, 0, per),
                    ],
                    mean(1, (0, 1)),
                    mean(0, (1, 0)),
                ],
            )?,
            turns: stencils(mesh, 2, &[mean(0, (-1, 0)), mean(1, (0, -1))])?,
        })
    }

    /// How depth and flow change per second.
    pub(crate) fn change(&self, state: &ShardTensor) -> Result<ShardTensor> {
        let edge = || ConvOptions::new().same().edge(EdgeMap::Circular);
        let channels = |x: &ShardTensor, from: usize, to: usize| x.narrow(1, from..to);
        let flow = channels(state, U, V + 1)?;
        let known = ShardTensor::cat(&[state, &flow.square()?], 1)?;
        let found = known.conv2d(&self.slopes, None, edge())?;
        let mass = flow.mul(&channels(&found, 0, 2)?)?;
        let spin = channels(&found, 2, 3)?.add_scalar(CORIOLIS)?;
        let vorticity = spin.div(&channels(&found, 3, 4)?)?;
        let moved = mass.conv2d(&self.fluxes, None, edge())?;
        let turned = channels(&moved, 1, 3)?.mul(&vorticity)?;
        let turned = turned.conv2d(&self.turns, None, edge())?;
        let [push_u, push_v] = [(4, 5), (5, 6)].map(|(a, b)| channels(&found, a, b));
        let u = push_u?.add(&channels(&turned, 0, 1)?)?;
        let v = push_v?.sub(&channels(&turned, 1, 2)?)?;
        ShardTensor::cat(&[&channels(&moved, 0, 1)?, &u, &v], 1)
    }

    /// The state a step later (Adams and Bashforth's second method, a little damped), and how it changed.
    pub(crate) fn step(
        &self,
        state: &ShardTensor,
        before: Option<&ShardTensor>,
    ) -> Result<(ShardTensor, ShardTensor)> {
        let change = self.change(state)?;
        let slope = match before {
            None => change.clone(),
            Some(before) => change.mul_scalar(1.6)?.sub(&before.mul_scalar(0.6)?)?,
        };
        Ok((state.add(&slope.mul_scalar(STEP)?)?, change))
    }
}

/// Water at rest with a hill and a hollow on it, of `rows` x `columns` cells.
pub(crate) fn rest(
    mesh: &Mesh,
    [rows, columns]: [usize; 2],
    placements: &Placements,
) -> Result<ShardTensor> {
    let bump = |at: &[usize], place: [f64; 2], height: f64| {
        let distance = |d: usize, extent: usize, from: f64| {
            let x = at[d] as f64 / extent as f64 - from;
            // In shares of the plane, of which the smaller extent is one; round the edge if that is nearer.
            (x - x.round()) * extent as f64 / rows.min(columns) as f64
        };
        let squared = distance(2, rows, place[0]).powi(2) + distance(3, columns, place[1]).powi(2);
        height * (-squared / 0.006).exp()
    };
    mesh.from_fn([1, 3, rows, columns], placements, |at| match at[1] {
        H => DEPTH + bump(at, [0.36, 0.3], 4.0) + bump(at, [0.7, 0.76], -3.0),
        _ => 0.0,
    })
}

/// The weights of a convolution that computes these stencils.
fn stencils(mesh: &Mesh, inputs: usize, outputs: &[Vec<Term>]) -> Result<ShardTensor> {
    let mut weights = Array4::<f64>::zeros((outputs.len(), inputs, 3, 3));
    for (output, terms) in outputs.iter().enumerate() {
        for &(input, north, east, by) in terms {
            let [y, x] = [north, east].map(|offset| (1 + offset) as usize);
            weights[[output, input, y, x]] += by;
        }
    }
    mesh.distribute(&weights, Placements::replicated())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shard_tensor::{DType, Launch};

    /// A wave as long as the plane, without rotation felt or flow: it turns over at the rate that theory gives.
    #[test]
    fn a_small_wave_has_the_frequency_of_theory() {
        let last = Launch::new(1).dtype(DType::F64).run(|ctx| {
            let mesh = ctx.mesh_of([1, 1])?;
            let water = Water::new(&mesh)?;
            let turn = 2.0 * std::f64::consts::PI / 32.0;
            let placed = Placements::replicated();
            let mut state = mesh.from_fn([1, 3, 1, 32], &placed, |at| match at[1] {
                H => DEPTH + 1e-3 * (turn * at[3] as f64).cos(),
                _ => 0.0,
            })?;
            let (mut change, mut crest) = (None, Vec::new());
            for _ in 0..400 {
                let (next, slope) = water.step(&state, change.as_ref())?;
                (state, change) = (next, Some(slope));
                crest.push(state.to_array::<f64>()?[[0, 0, 0, 0]] - DEPTH);
            }
            Ok(crest)
        });
        let crest = &last.unwrap()[0];
        let k = 2.0 / CELL * (std::f64::consts::PI / 32.0).sin();
        let omega = (GRAVITY * DEPTH * k * k + CORIOLIS * CORIOLIS).sqrt();
        // Rotation leaves a part of the hill standing; the rest swings about it.
        let still = 1e-3 * (CORIOLIS / omega).powi(2);
        for (n, x) in crest.iter().enumerate() {
            let expected = still + (1e-3 - still) * (omega * STEP * (n + 1) as f64).cos();
            assert!((x - expected).abs() < 1e-4, "{n}: {x}, {expected}");
        }
    }
}

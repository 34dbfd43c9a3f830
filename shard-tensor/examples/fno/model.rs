//! The operator: layers that act on frequencies and on points.

use shard_tensor::nn::{Conv, Module};
use shard_tensor::{Conv as Options, FourierNorm, Mesh, Placements, Result, ShardTensor, tree};

/// Channels lifted, three layers, channels brought back.
pub(crate) struct Operator {
    lift: Conv,
    layers: Vec<Layer>,
    project: Conv,
}

tree!(Operator {
    lift,
    layers,
    project
});

/// A product with the lowest frequencies, and a linear map of every point's channels.
struct Layer {
    spectral: Spectral,
    pointwise: Conv,
}

tree!(Layer {
    spectral,
    pointwise
});

/// Complex weights `[inputs, outputs, 2 modes, modes, 2]` of the lowest frequencies: rows of either sign, columns from 0 on.
struct Spectral {
    weight: ShardTensor,
    modes: usize,
}

tree!(Spectral { weight });

impl Operator {
    /// # Collective
    /// All ranks: the weights are random, the same on every mesh.
    pub(crate) fn new(
        mesh: &Mesh,
        [inputs, outputs]: [usize; 2],
        width: usize,
        modes: usize,
    ) -> Result<Self> {
        let points = |from, to| Conv::new(mesh, from, to, [1, 1], Options::new());
        let layer = |_| {
            Ok(Layer {
                spectral: Spectral::new(mesh, width, modes)?,
                pointwise: points(width, width)?,
            })
        };
        Ok(Self {
            lift: points(inputs, width)?,
            layers: (0..3).map(layer).collect::<Result<_>>()?,
            project: points(width, outputs)?,
        })
    }
}

impl Module for Operator {
    /// `[hours, inputs, rows, columns]` to as many outputs.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let mut h = self.lift.forward(x)?;
        for layer in &self.layers {
            h = layer.forward(&h)?;
        }
        self.project.forward(&h)
    }
}

impl Layer {
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let far = self.spectral.forward(x)?;
        far.add(&self.pointwise.forward(x)?)?.gelu()
    }
}

impl Spectral {
    fn new(mesh: &Mesh, width: usize, modes: usize) -> Result<Self> {
        let most = 1.0 / width as f64;
        let shape = [width, width, 2 * modes, modes, 2];
        let weight = mesh.uniform(shape, -most..most, Placements::replicated())?;
        Ok(Self {
            weight: weight.requires_grad()?,
            modes,
        })
    }

    /// To frequencies, of which few are kept as soon as they are known, and back. The result lies as `x` does.
    fn forward(&self, x: &ShardTensor) -> Result<ShardTensor> {
        let (rows, columns, m) = (x.shape()[2], x.shape()[3], self.modes);
        let low = x.rfft(None, 3, FourierNorm::Ortho)?.narrow(3, 0..m)?;
        let low = low.fft(None, 2, FourierNorm::Ortho)?;
        let kept = ShardTensor::cat(&[&low.narrow(2, 0..m)?, &low.narrow(2, rows - m..rows)?], 2)?;
        let made = ShardTensor::einsum("nirca,iorcab->norcb", &[&kept, &self.matrices()?])?;
        // Rows of negative frequencies are the last ones; columns that are not there are zero.
        let pad = |x: ShardTensor, before, after| {
            let none = (0, 0);
            let pads = [none, none, (before, after), none, none];
            x.pad(&pads, shard_tensor::EdgeMap::Zeros, 0.0)
        };
        let rest = (rows - m) as isize;
        let all =
            pad(made.narrow(2, 0..m)?, 0, rest)?.add(&pad(made.narrow(2, m..2 * m)?, rest, 0)?)?;
        let back = all.irfftn(Some(&[rows, columns]), [2, 3], FourierNorm::Ortho)?;
        back.redistribute(x.layout())
    }

    /// Each weight `a + bi` as the matrix `[[a, b], [-b, a]]`, which multiplies a row of real and imaginary part.
    fn matrices(&self) -> Result<ShardTensor> {
        let part = |i: usize| self.weight.narrow(4, i..i + 1);
        let turned = ShardTensor::cat(&[&part(1)?.neg()?, &part(0)?], 4)?;
        ShardTensor::stack(&[&self.weight, &turned], 4)
    }
}

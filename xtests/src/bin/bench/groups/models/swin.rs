//! Two blocks of a Swin transformer: attention within windows, and within windows that are shifted by half of their side. Windows
//! have no bias by position, and those over the edge no mask.

use super::{mean_square, train};
use crate::suite::Suite;
use shard_tensor::nn::{Module, TransformerEncoderLayer};
use shard_tensor::{Mesh, Result, ShardTensor, tree};

/// Sites along the side of a window.
const WINDOW: usize = 7;
const HEADS: usize = 3;

pub(super) fn add(suite: &mut Suite<'_>) {
    let (samples, side, width) = (suite.size(2, 2), suite.size(56, 14), suite.size(96, 12));
    train(
        suite,
        &format!("Swin blocks {samples}x{side}x{side}x{width}"),
        move |draw| {
            let fields = || draw.normal([samples, side, side, width]);
            Ok([fields()?, fields()?])
        },
        move |mesh| Swin::new(mesh, width),
        mean_square,
    );
}

/// A layer of attention in windows, and one in windows that are shifted.
struct Swin {
    straight: TransformerEncoderLayer,
    shifted: TransformerEncoderLayer,
}

tree!(Swin { straight, shifted });

impl Swin {
    fn new(mesh: &Mesh, width: usize) -> Result<Self> {
        let layer = || -> Result<_> {
            let layer = TransformerEncoderLayer::new(mesh, width, HEADS, 4 * width)?;
            let layer = layer.norm_first().dropout(0.0);
            Ok(layer.activation(ShardTensor::gelu))
        };
        Ok(Self {
            straight: layer()?,
            shifted: layer()?,
        })
    }
}

impl Module for Swin {
    /// Fields `[samples, rows, columns, features]` to as many features.
    fn forward(&self, fields: &ShardTensor) -> Result<ShardTensor> {
        let fields = in_windows(&self.straight, fields)?;
        let by = WINDOW as isize / 2;
        let shifted = fields.roll([1, 2], [-by, -by])?;
        in_windows(&self.shifted, &shifted)?.roll([1, 2], [by, by])
    }
}

/// A layer on the sites of each window.
fn in_windows(layer: &TransformerEncoderLayer, fields: &ShardTensor) -> Result<ShardTensor> {
    let [samples, rows, columns, width] = *fields.shape() else {
        unreachable!("fields are drawn with four dims");
    };
    let (down, across) = (rows / WINDOW, columns / WINDOW);
    let windows = fields
        .reshape([samples, down, WINDOW, across, WINDOW, width])?
        .permute([0, 1, 3, 2, 4, 5])?
        .reshape([samples * down * across, WINDOW * WINDOW, width])?;
    layer
        .forward(&windows)?
        .reshape([samples, down, across, WINDOW, WINDOW, width])?
        .permute([0, 1, 3, 2, 4, 5])?
        .reshape([samples, rows, columns, width])
}

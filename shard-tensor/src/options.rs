//! Options of convolutions and pools, written from left to right.

use crate::Shape;
use shard_ops::conv::{self, Padding};
use shard_ops::{pool, unfold};
use shard_spec::EdgeMap;

/// How a convolution runs. Numbers are per spatial dim, or one for all.
///
/// ```
/// use shard_tensor::{ConvOptions, EdgeMap};
/// let strided = ConvOptions::new().padding(1).stride(2);
/// let around_the_globe = ConvOptions::new().padding_each([(1, 1), (0, 0)]).edge(EdgeMap::Circular);
/// # let _ = (strided, around_the_globe);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ConvOptions(conv::ConvOptions);

impl ConvOptions {
    /// Stride and dilation 1, no padding, one group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Inputs from one output to the next.
    pub fn stride(mut self, stride: impl Into<Shape>) -> Self {
        self.0.stride = stride.into().to_vec();
        self
    }

    /// Inputs from one tap to the next.
    pub fn dilation(mut self, dilation: impl Into<Shape>) -> Self {
        self.0.dilation = dilation.into().to_vec();
        self
    }

    /// What is added on either side.
    pub fn padding(mut self, padding: impl Into<Shape>) -> Self {
        self.0.padding = Padding::Explicit(both_sides(&padding.into()));
        self
    }

    /// What is added (before, after), per spatial dim.
    pub fn padding_each(mut self, padding: impl Into<Vec<(usize, usize)>>) -> Self {
        self.0.padding = Padding::Explicit(padding.into());
        self
    }

    /// As much padding as makes the output as large as the input at stride 1.
    pub fn same(mut self) -> Self {
        self.0.padding = Padding::Same;
        self
    }

    /// Channels are cut in this many groups that do not mix.
    pub fn groups(mut self, groups: usize) -> Self {
        self.0.groups = groups;
        self
    }

    /// What the padding holds; zeros unless said otherwise.
    pub fn edge(mut self, edge: EdgeMap) -> Self {
        self.0.edge = edge;
        self
    }

    pub(crate) fn options(&self) -> &conv::ConvOptions {
        &self.0
    }
}

/// How a transposed convolution runs. Numbers are per spatial dim, or one for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ConvTransposeOptions(conv::ConvTransposeOptions);

impl ConvTransposeOptions {
    /// Stride and dilation 1, no padding, one group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Outputs from one input to the next.
    pub fn stride(mut self, stride: impl Into<Shape>) -> Self {
        self.0.stride = stride.into().to_vec();
        self
    }

    /// Outputs from one tap to the next.
    pub fn dilation(mut self, dilation: impl Into<Shape>) -> Self {
        self.0.dilation = dilation.into().to_vec();
        self
    }

    /// What is cropped on either side.
    pub fn padding(mut self, padding: impl Into<Shape>) -> Self {
        self.0.padding = both_sides(&padding.into());
        self
    }

    /// Outputs added behind.
    pub fn output_padding(mut self, padding: impl Into<Shape>) -> Self {
        self.0.output_padding = padding.into().to_vec();
        self
    }

    /// Channels are cut in this many groups that do not mix.
    pub fn groups(mut self, groups: usize) -> Self {
        self.0.groups = groups;
        self
    }

    pub(crate) fn options(&self) -> &conv::ConvTransposeOptions {
        &self.0
    }
}

/// How a pool runs. Numbers are per spatial dim, or one for all.
///
/// ```
/// let halve = shard_tensor::PoolOptions::new(2);
/// let smooth = shard_tensor::PoolOptions::new(3).stride(1).padding(1).count_include_pad(false);
/// # let _ = (halve, smooth);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct PoolOptions(pool::PoolOptions);

impl PoolOptions {
    /// Windows of this size side by side.
    pub fn new(kernel: impl Into<Shape>) -> Self {
        Self(pool::PoolOptions::new(kernel.into().to_vec()))
    }

    /// Inputs from one output to the next; the window's size unless said otherwise.
    pub fn stride(mut self, stride: impl Into<Shape>) -> Self {
        self.0.stride = stride.into().to_vec();
        self
    }

    /// What is added on either side, at most half of the window.
    pub fn padding(mut self, padding: impl Into<Shape>) -> Self {
        self.0.padding = padding.into().to_vec();
        self
    }

    /// Inputs from one tap to the next; for maxima only.
    pub fn dilation(mut self, dilation: impl Into<Shape>) -> Self {
        self.0.dilation = dilation.into().to_vec();
        self
    }

    /// Rounds the output extent up.
    pub fn ceil_mode(mut self, ceil: bool) -> Self {
        self.0.ceil_mode = ceil;
        self
    }

    /// Whether an average counts the padding; it does unless said otherwise.
    pub fn count_include_pad(mut self, count: bool) -> Self {
        self.0.count_include_pad = count;
        self
    }

    /// What an average divides by instead of the count.
    pub fn divisor(mut self, divisor: usize) -> Self {
        self.0.divisor = Some(divisor);
        self
    }

    pub(crate) fn options(&self) -> &pool::PoolOptions {
        &self.0
    }
}

/// Which windows are laid out as columns. Numbers are per spatial dim, or one for all.
///
/// ```
/// let patches = shard_tensor::UnfoldOptions::new(4).stride(4);
/// # let _ = patches;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct UnfoldOptions(unfold::UnfoldOptions);

impl UnfoldOptions {
    /// Windows of this size at every place where one fits.
    pub fn new(kernel: impl Into<Shape>) -> Self {
        Self(unfold::UnfoldOptions::new(kernel.into().to_vec()))
    }

    /// Inputs from one window to the next.
    pub fn stride(mut self, stride: impl Into<Shape>) -> Self {
        self.0.stride = stride.into().to_vec();
        self
    }

    /// Zeros added on either side.
    pub fn padding(mut self, padding: impl Into<Shape>) -> Self {
        self.0.padding = padding.into().to_vec();
        self
    }

    /// Inputs from one tap to the next.
    pub fn dilation(mut self, dilation: impl Into<Shape>) -> Self {
        self.0.dilation = dilation.into().to_vec();
        self
    }

    pub(crate) fn options(&self) -> &unfold::UnfoldOptions {
        &self.0
    }
}

fn both_sides(padding: &[usize]) -> Vec<(usize, usize)> {
    padding.iter().map(|&p| (p, p)).collect()
}

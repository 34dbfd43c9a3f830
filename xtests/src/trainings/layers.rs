//! Layers that models are drawn from.

use super::Samples;
use shard_ops::testing::Rng;
use shard_tensor::nn::{
    BatchNorm, Conv, ConvTranspose, DropPath, Dropout, GroupNorm, Gru, InstanceNorm, LayerNorm,
    Linear, Lstm, Map, MixtureOfExperts, Moved, MultiheadAttention, NeighborhoodAttention, PRelu,
    PositionEmbedding, RmsNorm, Rnn, SelectiveStateSpace, Sequential, SinCos, SpectralConv,
    TransformerEncoder, TransformerEncoderLayer, spectral_norm, weight_norm,
};
use shard_tensor::{
    Attention, Causal, ConvOptions, ConvTransposeOptions, Mesh, Neighborhood, PoolOptions,
    ResampleMode, Result, ShardTensor, replicate, shard,
};

/// A kind of layer.
pub struct LayerKind {
    pub(super) name: &'static str,
    make: fn(&mut Made<'_>) -> Result<Sequential>,
}

impl LayerKind {
    pub(super) fn make(&self, made: &mut Made<'_>) -> Result<Sequential> {
        (self.make)(made)
    }
}

/// A layer that is made: what it is given, and what it draws.
pub(super) struct Made<'a> {
    mesh: &'a Mesh,
    rng: Rng,
    /// Extents of what it is given, without the batch; then of what it gives.
    pub(super) shape: Vec<usize>,
}

impl<'a> Made<'a> {
    pub(super) fn new(mesh: &'a Mesh, shape: &[usize], name: &str, seed: u64) -> Self {
        Self {
            mesh,
            rng: Rng::new(seed, &["layer", name]),
            shape: shape.to_vec(),
        }
    }

    fn from(&mut self, least: usize, most: usize) -> usize {
        least + self.rng.below(most - least + 1)
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.rng.one_in(n)
    }

    /// Features: the last dim.
    fn width(&self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// Channels: the first dim behind the batch.
    fn channels(&self) -> usize {
        self.shape[0]
    }

    fn set_width(&mut self, width: usize) {
        let last = self.shape.len() - 1;
        self.shape[last] = width;
    }

    /// A number that divides another.
    fn divisor(&mut self, of: usize) -> usize {
        let all: Vec<usize> = (1..=of).filter(|&n| of.is_multiple_of(n)).collect();
        self.rng.pick(&all).unwrap_or(1)
    }

    fn share(&mut self) -> f64 {
        [0.0, 0.1, 0.5][self.rng.below(3)]
    }

    fn function(&mut self) -> fn(&ShardTensor) -> Result<ShardTensor> {
        let all: [fn(&ShardTensor) -> Result<ShardTensor>; 6] = [
            ShardTensor::gelu,
            ShardTensor::silu,
            ShardTensor::tanh,
            ShardTensor::relu,
            ShardTensor::sigmoid,
            |x| x.softmax(-1),
        ];
        all[self.rng.below(all.len())]
    }

    fn linear(&mut self) -> Result<Linear> {
        let (inputs, outputs) = (self.width(), self.from(1, 9));
        self.set_width(outputs);
        let linear = Linear::new(self.mesh, inputs, outputs)?;
        Ok(if self.one_in(3) {
            linear.without_bias()
        } else {
            linear
        })
    }

    fn heads(&mut self) -> usize {
        let width = self.width();
        self.divisor(width)
    }
}

/// Lists kinds of layers.
macro_rules! layers {
    ($($name:ident => $make:expr,)*) => { &[$(LayerKind { name: stringify!($name), make: $make }),*] };
}

/// The kinds of layers for samples.
pub(super) fn of(samples: Samples) -> Vec<&'static LayerKind> {
    let others = match samples {
        Samples::Words | Samples::Sequences => SEQUENCES,
        Samples::Fields => FIELDS,
    };
    ANY.iter().chain(others).collect()
}

fn one(layer: impl shard_tensor::nn::Module + Clone + 'static) -> Result<Sequential> {
    Ok(Sequential::new().then(layer))
}

const ANY: &[LayerKind] = layers! {
    linear => |m| one(m.linear()?),
    perceptron => |m| {
        let function = m.function();
        Ok(Sequential::new().then(m.linear()?).then(Map::new(function)).then(m.linear()?))
    },
    function => |m| one(Map::new(m.function())),
    layer_norm => |m| one(LayerNorm::new(m.mesh, [m.width()])?),
    rms_norm => |m| one(RmsNorm::new(m.mesh, [m.width()])?),
    group_norm => |m| {
        let channels = m.channels();
        let groups = m.divisor(channels);
        let norm = GroupNorm::new(m.mesh, groups, channels)?;
        one(if m.one_in(3) { norm.without_affine() } else { norm })
    },
    batch_norm => |m| {
        let norm = BatchNorm::new(m.mesh, m.channels())?;
        one(match m.from(0, 3) {
            0 => norm.without_affine(),
            1 => norm.without_running(),
            _ => norm,
        })
    },
    instance_norm => |m| {
        let norm = InstanceNorm::new().affine(m.mesh, m.channels())?;
        one(if m.one_in(2) { norm.running(m.mesh, m.channels())? } else { norm })
    },
    prelu => |m| {
        let slopes = if m.one_in(2) { 1 } else { m.channels() };
        one(PRelu::new(m.mesh, slopes)?)
    },
    dropout => |m| one(Dropout::new(m.share())),
    drop_path => |m| one(DropPath::new(m.share())),
    weight_norm => |m| one(weight_norm(m.linear()?)?),
    spectral_norm => |m| one(spectral_norm(m.linear()?)?),
    experts => |m| {
        let (width, hidden, experts) = (m.width(), m.from(1, 5), m.from(1, 5));
        let top = m.from(1, experts);
        let mut layer = MixtureOfExperts::new(m.mesh, width, hidden, experts, top)?;
        if m.one_in(2) {
            layer = layer.swiglu()?;
        }
        if m.one_in(2) {
            layer = layer.biased()?;
        }
        if m.one_in(2) {
            layer = layer.normalized();
        }
        one(if m.one_in(2) { layer.capacity(1.25)? } else { layer })
    },
    moved => |m| {
        let dim = m.from(0, m.shape.len());
        let layer = Moved::new(m.linear()?).input([("a", shard(dim))]);
        one(if m.one_in(2) { layer.output([("a", replicate())]) } else { layer })
    },
};

const SEQUENCES: &[LayerKind] = layers! {
    attention => |m| {
        let (width, heads) = (m.width(), m.heads());
        let mut layer = MultiheadAttention::new(m.mesh, width, heads)?;
        if m.one_in(2) {
            layer = layer.kv_heads(m.divisor(heads))?;
        }
        if m.one_in(3) {
            layer = layer.add_bias_kv()?;
        }
        if m.one_in(3) {
            layer = layer.add_zero_attn();
        }
        if m.one_in(3) {
            layer = layer.options(Attention::new().causal(Causal::TopLeft));
        }
        if m.one_in(3) {
            layer = layer.dropout(m.share());
        }
        one(if m.one_in(3) { layer.without_bias() } else { layer })
    },
    encoder_layer => |m| one(m.encoder_layer()?),
    encoder => |m| {
        let (width, seed) = (m.width(), m.rng.next_u64());
        let made = TransformerEncoder::new(2, || Made::new(m.mesh, &m.shape, "encoder", seed).encoder_layer())?;
        one(if m.one_in(2) { made.norm(LayerNorm::new(m.mesh, [width])?) } else { made })
    },
    rnn => |m| {
        let (inputs, hidden, layers) = (m.width(), m.from(1, 5), m.from(1, 2));
        m.set_width(hidden);
        one(Rnn::new(m.mesh, inputs, hidden, layers)?.dropout(m.share()))
    },
    gru => |m| {
        let (inputs, hidden) = (m.width(), m.from(1, 5));
        m.set_width(2 * hidden);
        one(Gru::bidirectional(m.mesh, inputs, hidden, 1)?)
    },
    lstm => |m| {
        let (inputs, hidden, layers) = (m.width(), m.from(2, 5), m.from(1, 2));
        let lstm = Lstm::new(m.mesh, inputs, hidden, layers)?;
        if m.one_in(2) {
            m.set_width(hidden);
            return one(lstm);
        }
        let outputs = m.from(1, hidden - 1);
        m.set_width(outputs);
        one(lstm.projected(outputs)?)
    },
    state_space => |m| one(SelectiveStateSpace::new(m.mesh, m.width())?),
    positions => |m| one(PositionEmbedding::new(m.mesh, [m.channels()], m.width())?),
    sines => |m| match m.width() % 2 {
        0 => one(SinCos::new(m.mesh, [m.channels()], m.width())?),
        _ => Ok(Sequential::new()),
    },
    convolution => |m| one(m.convolution()?),
    spectral => |m| m.spectral(),
    pool => |m| one(m.pool()),
    stretched => |m| {
        let width = m.from(1, 9);
        m.set_width(width);
        one(Map::new(move |x: &ShardTensor| x.interpolate([width], ResampleMode::Linear)))
    },
};

const FIELDS: &[LayerKind] = layers! {
    convolution => |m| one(m.convolution()?),
    depthwise => |m| {
        let channels = m.channels();
        let options = ConvOptions::new().same().groups(channels);
        one(Conv::new(m.mesh, channels, channels, [3, 3], options)?)
    },
    transposed => |m| {
        let (inputs, outputs, stride) = (m.channels(), m.from(1, 5), m.from(1, 2));
        let options = ConvTransposeOptions::new().stride([stride, stride]);
        m.shape = vec![outputs, (m.shape[1] - 1) * stride + 2, (m.shape[2] - 1) * stride + 2];
        one(ConvTranspose::new(m.mesh, inputs, outputs, [2, 2], options)?)
    },
    spectral => |m| m.spectral(),
    pool => |m| one(m.pool()),
    dropped_channels => |m| one(Dropout::by(ShardTensor::dropout2d, m.share())),
    neighbourhood => |m| {
        let heads = m.heads();
        let windows: Vec<usize> = m.shape[..2].iter().map(|&n| n.min(3)).collect();
        one(NeighborhoodAttention::new(m.mesh, m.width(), heads, Neighborhood::new(windows))?)
    },
    stretched => |m| {
        let (rows, columns) = (m.from(1, 6), m.from(1, 6));
        m.shape = vec![m.channels(), rows, columns];
        one(Map::new(move |x: &ShardTensor| x.interpolate([rows, columns], ResampleMode::Linear)))
    },
    turned => |m| {
        m.shape.swap(1, 2);
        one(Map::new(|x: &ShardTensor| x.transpose(2, 3)))
    },
};

impl Made<'_> {
    fn encoder_layer(&mut self) -> Result<TransformerEncoderLayer> {
        let (width, heads, hidden) = (self.width(), self.heads(), self.from(1, 7));
        let mut layer =
            TransformerEncoderLayer::new(self.mesh, width, heads, hidden)?.dropout(self.share());
        if self.one_in(2) {
            layer = layer.norm_first();
        }
        if self.one_in(2) {
            layer = layer.activation(ShardTensor::gelu);
        }
        Ok(layer)
    }

    fn convolution(&mut self) -> Result<Conv> {
        let (inputs, outputs) = (self.channels(), self.from(1, 5));
        self.shape[0] = outputs;
        let kernel: Vec<usize> = self.shape[1..].iter().map(|&n| n.min(3)).collect();
        let options = ConvOptions::new();
        if self.one_in(2) {
            return Conv::new(self.mesh, inputs, outputs, kernel, options.same());
        }
        for (extent, k) in self.shape[1..].iter_mut().zip(&kernel) {
            *extent = (*extent - k) / 2 + 1;
        }
        let stride = vec![2; kernel.len()];
        Conv::new(self.mesh, inputs, outputs, kernel, options.stride(stride))
    }

    /// A layer of few frequencies, for fields that have them.
    fn spectral(&mut self) -> Result<Sequential> {
        let last = self.shape.len() - 1;
        if self.shape[1..last].iter().any(|&n| n < 2) {
            return Ok(Sequential::new());
        }
        let (inputs, outputs) = (self.channels(), self.from(1, 4));
        let modes: Vec<usize> = (1..=last).map(|d| (self.shape[d] / 4).max(1)).collect();
        self.shape[0] = outputs;
        one(SpectralConv::new(self.mesh, inputs, outputs, modes)?)
    }

    fn pool(&mut self) -> Map<impl Fn(&ShardTensor) -> Result<ShardTensor> + Clone + use<>> {
        let kernel: Vec<usize> = self.shape[1..].iter().map(|&n| n.min(2)).collect();
        for (extent, k) in self.shape[1..].iter_mut().zip(&kernel) {
            *extent /= k;
        }
        let (most, options) = (self.one_in(2), PoolOptions::new(kernel));
        Map::new(move |x: &ShardTensor| match most {
            true => x.max_pool(options.clone()),
            false => x.avg_pool(options.clone()),
        })
    }
}

//! Layers of transformers, against numbers that PyTorch 2 gave.

use crate::common::close;
use crate::layers::wave;
use shard_tensor::nn::{
    LayerNorm, ModelExt, Module, ParallelPlan, Strict, TransformerDecoder, TransformerDecoderLayer,
    TransformerEncoder, TransformerEncoderLayer, Tree, load_state_with,
};
use shard_tensor::{
    Attention, Causal, DType, ErrorClass, Launch, Mesh, Placements, Result, ShardTensor, State,
    launch, replicate, shard,
};

const WIDTH: usize = 4;

/// PyTorch's names of the parameters of a layer, in its order, with their shapes.
fn names(prefix: &str, attentions: &[&str], norms: usize) -> Vec<(String, Vec<usize>)> {
    let of_attention = [
        ("in_proj_weight", vec![3 * WIDTH, WIDTH]),
        ("in_proj_bias", vec![3 * WIDTH]),
        ("out_proj.weight", vec![WIDTH, WIDTH]),
        ("out_proj.bias", vec![WIDTH]),
    ];
    let attentions = attentions.iter().flat_map(|attention| {
        let all = of_attention.iter();
        all.map(move |(name, shape)| (format!("{attention}.{name}"), shape.clone()))
    });
    let linear = [
        ("linear1.weight", vec![6, WIDTH]),
        ("linear1.bias", vec![6]),
        ("linear2.weight", vec![WIDTH, 6]),
        ("linear2.bias", vec![WIDTH]),
    ];
    let linear = linear.map(|(name, shape)| (name.to_owned(), shape));
    let norms = (1..=norms)
        .flat_map(|n| ["weight", "bias"].map(|what| (format!("norm{n}.{what}"), vec![WIDTH])));
    let all = attentions.chain(linear).chain(norms);
    all.map(|(name, shape)| (format!("{prefix}{name}"), shape))
        .collect()
}

/// Loads waves, `0.8 sin(0.37 n + p)` as the parameter number `p`.
fn load(mesh: &Mesh, model: &mut impl Tree, names: Vec<(String, Vec<usize>)>) -> Result<()> {
    let waves = names
        .into_iter()
        .enumerate()
        .map(|(p, (name, shape))| Ok((name, wave(mesh, &shape, p, replicate())?.mul_scalar(0.8)?)));
    let state = State {
        tensors: waves.collect::<Result<_>>()?,
        numbers: Vec::new(),
    };
    load_state_with(model, &state, Strict::Yes)?;
    Ok(())
}

/// A whole tensor, empty shards, uneven ones of tokens, and pieces of features.
fn everywhere(f: impl Fn(&Mesh, &Placements) -> Result<()> + Sync) {
    let layouts: [Placements; 4] = [
        replicate().into(),
        shard(0).into(),
        shard(1).sizes([2, 0, 1]).into(),
        shard(2).into(),
    ];
    for (ranks, at) in [(1, 0), (3, 1), (3, 2), (3, 3)] {
        let launch = Launch::new(ranks).dtype(DType::F64);
        launch
            .run(|ctx| f(&ctx.mesh_of(ranks)?, &layouts[at]))
            .unwrap();
    }
}

fn encoder_layer(mesh: &Mesh) -> Result<TransformerEncoderLayer> {
    let mut layer = TransformerEncoderLayer::new(mesh, WIDTH, 2, 6)?.dropout(0.0);
    load(mesh, &mut layer, names("", &["self_attn"], 2))?;
    Ok(layer)
}

/// What a layer gives, with padding too, and gradients of the sum of cubes: by a sample, by a row of the queries' projection and by
/// one of the second linear layer.
struct Encoded {
    y: [f64; 24],
    padded: [f64; 24],
    sample: [f64; 12],
    queries: [f64; 4],
    linear: [f64; 6],
}

fn check_encoder(layer: impl Fn(&Mesh) -> Result<TransformerEncoderLayer> + Sync, to: &Encoded) {
    everywhere(|mesh, at| {
        let layer = layer(mesh)?;
        let x = wave(mesh, &[2, 3, WIDTH], 9, at)?.requires_grad()?;
        let y = layer.forward(&x)?;
        close("y", &y, &to.y)?;
        let cubes = y.mul(&y)?.mul(&y)?.sum_all()?;
        let (queries, linear) = (&layer.self_attn.q_proj.weight, &layer.linear2.weight);
        let gradients = cubes.grad(&[&x, queries, linear], false)?;
        let of = |i: usize| gradients[i].as_ref().unwrap().select(0, 1);
        close("sample", &of(0)?, &to.sample)?;
        close("queries", &of(1)?, &to.queries)?;
        close("linear", &of(2)?, &to.linear)?;
        let there = mesh.from_fn([2, 1, 1, 3], replicate(), |i| {
            f64::from(i[0] == 1 || i[3] < 2)
        })?;
        let padded = layer.forward_masked(&x, &there.to(DType::Bool)?)?;
        close("padded", &padded, &to.padded)
    });
}

#[test]
fn a_layer_of_an_encoder_is_pytorchs() {
    check_encoder(
        encoder_layer,
        &Encoded {
            y: [
                -0.815613554148,
                -1.725412702143,
                -0.380821164959,
                0.664909029111,
                -0.277258129348,
                -1.544639111781,
                -1.132218181228,
                0.231792904087,
                -0.061904791338,
                -0.915694892835,
                -1.052944465024,
                -1.013672427625,
                -1.240725659316,
                -1.296359641883,
                0.525234196682,
                -0.014949123992,
                -1.397427910733,
                -0.890863418629,
                0.515831748855,
                -0.216088008933,
                -0.342215052284,
                -1.553904559408,
                -1.140315322768,
                0.370083037576,
            ],
            padded: [
                -0.630734205443,
                -1.697728850465,
                -0.745106557463,
                0.667418054814,
                -0.276481279319,
                -1.546336392914,
                -1.128986734102,
                0.229136267933,
                -0.101591941641,
                -0.72055593197,
                -1.075109401734,
                -1.157590496932,
                -1.240725659316,
                -1.296359641883,
                0.525234196682,
                -0.014949123992,
                -1.397427910733,
                -0.890863418629,
                0.515831748855,
                -0.216088008933,
                -0.342215052284,
                -1.553904559408,
                -1.140315322768,
                0.370083037576,
            ],
            sample: [
                1.117440100317,
                0.237277877494,
                0.420830904692,
                0.971335475426,
                0.077561593029,
                -0.127734219729,
                -0.501163578142,
                -0.021920220252,
                0.153560848904,
                -0.588649901916,
                0.134124660955,
                -0.347247704055,
            ],
            queries: [
                0.12842554063,
                0.006228369215,
                -0.116811782754,
                -0.224042007916,
            ],
            linear: [
                0.0,
                0.0,
                0.0,
                -1.789260901133,
                -1.371411854734,
                -0.129302380506,
            ],
        },
    );
}

#[test]
fn a_layer_that_normalises_first_is_pytorchs() {
    check_encoder(
        |mesh| {
            let layer = encoder_layer(mesh)?;
            Ok(layer.norm_first().activation(ShardTensor::gelu))
        },
        &Encoded {
            y: [
                1.938800879492,
                1.406720361959,
                -0.106061761523,
                1.323465010047,
                0.702261516993,
                0.521208044825,
                -0.853075318012,
                1.064442539125,
                1.034049439355,
                1.416936596801,
                0.182133898799,
                2.302249639491,
                2.484101672278,
                2.337728359743,
                0.950339578224,
                2.903156183003,
                2.295589741664,
                1.624597763591,
                0.165800763861,
                1.760900209571,
                0.965897464659,
                0.379481409151,
                -0.932935477622,
                1.143776720622,
            ],
            padded: [
                1.896632953661,
                1.326364593352,
                -0.087572955957,
                1.424115082523,
                0.612048104335,
                0.403464016424,
                -0.806287265469,
                1.218998793996,
                0.891215364738,
                1.259083756805,
                0.263552192891,
                2.504623840506,
                2.484101672278,
                2.337728359743,
                0.950339578224,
                2.903156183003,
                2.295589741664,
                1.624597763591,
                0.165800763861,
                1.760900209571,
                0.965897464659,
                0.379481409151,
                -0.932935477622,
                1.143776720622,
            ],
            sample: [
                19.326907281263,
                23.378869360508,
                5.071085996075,
                15.124725779177,
                13.682189097712,
                8.296646818738,
                1.002637167418,
                10.130455706718,
                2.458005641856,
                1.485365870414,
                2.8206671421,
                3.002634878136,
            ],
            queries: [
                -0.738757878959,
                -1.068658774262,
                0.231940185823,
                1.693479368566,
            ],
            linear: [
                40.678569235807,
                6.411642083543,
                -1.083683819356,
                -4.357082267045,
                63.180546802443,
                71.566900291897,
            ],
        },
    );
}

#[test]
fn an_encoder_is_pytorchs() {
    everywhere(|mesh, at| {
        let causal = Attention::new().causal(Causal::TopLeft);
        let layer = || {
            let layer = TransformerEncoderLayer::new(mesh, WIDTH, 2, 6)?.dropout(0.0);
            Ok(layer.norm_first().options(causal))
        };
        let mut encoder = TransformerEncoder::new(2, layer)?.norm(LayerNorm::new(mesh, WIDTH)?);
        let mut all = names("layers.0.", &["self_attn"], 2);
        all.extend(names("layers.1.", &["self_attn"], 2));
        all.extend(["norm.weight", "norm.bias"].map(|name| (name.to_owned(), vec![WIDTH])));
        load(mesh, &mut encoder, all)?;
        let x = wave(mesh, &[2, 3, WIDTH], 9, at)?;
        close(
            "y",
            &encoder.forward(&x)?,
            &[
                -0.124921530053,
                -0.164949100883,
                0.955750415457,
                0.645606304905,
                0.018454011405,
                -0.211456818609,
                0.933938580132,
                0.644832727839,
                0.118706589731,
                -0.251123763721,
                0.915239046011,
                0.644731916543,
                -0.000605326295,
                -0.305964404557,
                0.939759276932,
                0.648075935876,
                -0.162277970414,
                -0.165276694789,
                0.961240848715,
                0.646228903565,
                -0.058535503083,
                -0.15966668042,
                0.944406220354,
                0.644439491013,
            ],
        )
    });
}

/// What a layer of a decoder gives, and gradients of the sum of cubes: by a sample, and by a row of the projection of the memory's keys.
struct Decoded {
    y: [f64; 24],
    sample: [f64; 12],
    keys: [f64; 4],
}

fn check_decoder(norm_first: bool, to: &Decoded) {
    everywhere(|mesh, at| {
        let layer = TransformerDecoderLayer::new(mesh, WIDTH, 2, 6)?.dropout(0.0);
        let mut layer = layer.options(Attention::new().causal(Causal::TopLeft));
        if norm_first {
            layer = layer.norm_first();
        }
        load(
            mesh,
            &mut layer,
            names("", &["self_attn", "multihead_attn"], 3),
        )?;
        let x = wave(mesh, &[2, 3, WIDTH], 9, at)?.requires_grad()?;
        let memory = wave(mesh, &[2, 2, WIDTH], 7, shard(1))?;
        let y = layer.forward(&x, &memory)?;
        close("y", &y, &to.y)?;
        let cubes = y.mul(&y)?.mul(&y)?.sum_all()?;
        let gradients = cubes.grad(&[&x, &layer.multihead_attn.k_proj.weight], false)?;
        let of = |i: usize| gradients[i].as_ref().unwrap().select(0, 1);
        close("sample", &of(0)?, &to.sample)?;
        close("keys", &of(1)?, &to.keys)
    });
}

#[test]
fn a_layer_of_a_decoder_is_pytorchs() {
    check_decoder(
        false,
        &Decoded {
            y: [
                -0.804772570825,
                -1.111115993993,
                -1.319307416805,
                0.779594447392,
                -0.813771665669,
                -1.097945606577,
                -1.316442107933,
                0.785996504139,
                -0.818419229387,
                -1.093775284016,
                -1.31142795784,
                0.789463638873,
                -0.590467635583,
                -1.093364823641,
                -1.61930761537,
                0.361882895212,
                -0.579943045449,
                -1.10156862977,
                -1.615349799538,
                0.334456660926,
                -0.612535683299,
                -1.095355858699,
                -1.605285261194,
                0.424533365001,
            ],
            sample: [
                -0.01300464511,
                0.02365290053,
                0.029964617874,
                0.036299882884,
                0.030838998779,
                -0.022511822748,
                -0.044044357279,
                -0.014269970264,
                -0.016167785806,
                -0.015283809473,
                -0.011861586314,
                -0.000952401848,
            ],
            keys: [
                -0.020502093325,
                -0.016647598902,
                -0.010539930066,
                -0.00300573114,
            ],
        },
    );
    check_decoder(
        true,
        &Decoded {
            y: [
                0.185338961255,
                2.923531879534,
                -0.596165296272,
                -5.11823147387,
                -0.418323375318,
                1.879594641998,
                -1.921891515219,
                -5.402737586923,
                0.009589432348,
                2.627454334804,
                -0.947522852765,
                -4.130159624858,
                -2.440399452423,
                4.973824592654,
                3.773181513594,
                -4.711209552526,
                -2.579137135112,
                4.317738813204,
                2.897030063065,
                -5.728858662597,
                -4.054100049574,
                3.098955096275,
                1.985680874734,
                -6.490862607854,
            ],
            sample: [
                0.457893821179,
                4.533902441306,
                25.909777580442,
                170.479050401743,
                21.844017743152,
                64.010856011774,
                26.657462879565,
                87.009928114757,
                63.968030471043,
                45.046704022226,
                11.196381811063,
                96.129311188672,
            ],
            keys: [
                15.242213563727,
                -14.186220560592,
                -41.694616282604,
                -63.559841289052,
            ],
        },
    );
}

#[test]
fn a_decoder_is_pytorchs() {
    everywhere(|mesh, at| {
        let layer = || Ok(TransformerDecoderLayer::new(mesh, WIDTH, 2, 6)?.dropout(0.0));
        let mut decoder = TransformerDecoder::new(2, layer)?.norm(LayerNorm::new(mesh, WIDTH)?);
        let mut all = names("layers.0.", &["self_attn", "multihead_attn"], 3);
        all.extend(names("layers.1.", &["self_attn", "multihead_attn"], 3));
        all.extend(["norm.weight", "norm.bias"].map(|name| (name.to_owned(), vec![WIDTH])));
        load(mesh, &mut decoder, all)?;
        let x = wave(mesh, &[2, 3, WIDTH], 9, at)?;
        let memory = wave(mesh, &[2, 2, WIDTH], 7, shard(1))?;
        let there = mesh.from_fn([2, 1, 1, 2], replicate(), |i| {
            f64::from(i[0] == 1 || i[3] == 0)
        })?;
        let y = decoder.forward_masked(&x, &memory, [None, Some(&there.to(DType::Bool)?)])?;
        close(
            "y",
            &y,
            &[
                -1.098253570544,
                -0.059573464091,
                1.028135598288,
                -0.143064002232,
                -1.098916828152,
                -0.059231514099,
                1.02805472388,
                -0.142833221072,
                -1.099087976221,
                -0.059122420119,
                1.028024902127,
                -0.142779529166,
                -1.034342102966,
                -0.244324141057,
                1.090974894953,
                -0.115792343432,
                -1.033227533644,
                -0.245732757962,
                1.091315458923,
                -0.115841803175,
                -1.033667080778,
                -0.243137431673,
                1.090520187667,
                -0.116541009512,
            ],
        )
    });
}

#[test]
fn heads_and_hidden_features_are_divided_without_moving_tokens() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("tensor", 2)])?;
        let whole = encoder_layer(&mesh)?.norm_first();
        let plan = ParallelPlan::new()
            .colwise_by("self_attn.?_proj", "tensor", 2)
            .rowwise_by("self_attn.out_proj", "tensor", 2)
            .colwise("linear1", "tensor")
            .rowwise("linear2", "tensor");
        let divided = encoder_layer(&mesh)?.norm_first().distribute(&plan)?;
        let x = wave(&mesh, &[2, 3, WIDTH], 9, replicate())?;
        let before = ctx.ledger().snapshot();
        let y = divided.forward(&x)?;
        y.expect_layout(replicate())?;
        // No more than the sums behind attention and behind the linear layers: 2 x 3 tokens of 4 numbers each.
        let moved = ctx.ledger().since(&before).bytes;
        assert!(0 < moved && moved <= 2 * 24 * 4, "{moved}");
        assert!(y.allclose(&whole.forward(&x)?, 1e-4, 1e-5, false)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn one_plan_divides_all_layers_of_a_decoder() {
    launch(2, |ctx| {
        let mesh = ctx.mesh([("tensor", 2)])?;
        let layer = || Ok(TransformerDecoderLayer::new(&mesh, 4, 2, 6)?.dropout(0.0));
        let decoder = TransformerDecoder::new(2, layer)?;
        let (x, memory) = (
            wave(&mesh, &[2, 3, WIDTH], 9, replicate())?,
            wave(&mesh, &[2, 2, WIDTH], 7, replicate())?,
        );
        let whole = decoder.forward(&x, &memory)?;
        let plan = ParallelPlan::new()
            .colwise_by("*_attn.?_proj", "tensor", 2)
            .rowwise_by("*_attn.out_proj", "tensor", 2)
            .colwise("*linear1", "tensor")
            .rowwise("*linear2", "tensor");
        let divided = decoder.distribute(&plan)?;
        for (name, parameter) in divided.parameters() {
            let is_whole = name.contains("norm")
                || name.ends_with("out_proj.bias")
                || name.ends_with("linear2.bias");
            assert_eq!(parameter.layout().to_string() == "R", is_whole, "{name}");
        }
        assert!(
            divided
                .forward(&x, &memory)?
                .allclose(&whole, 1e-4, 1e-5, false)?
        );
        Ok(())
    })
    .unwrap();
}

#[test]
fn layers_of_transformers_drop_while_they_train() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let layer = TransformerDecoderLayer::new(&mesh, 8, 2, 16)?.dropout(0.5);
        let (x, memory) = (
            mesh.randn([2, 5, 8], shard(1))?,
            mesh.randn([2, 3, 8], shard(1))?,
        );
        let y = || layer.forward(&x, &memory)?.to_array::<f32>();
        assert_ne!(y()?, y()?);
        layer.eval();
        assert_eq!(y()?, y()?);
        // A tenth is dropped if nothing is said.
        let own = TransformerDecoderLayer::new(&mesh, 8, 2, 16)?;
        assert_ne!(own.forward(&x, &memory)?.to_array::<f32>()?, {
            own.eval();
            own.forward(&x, &memory)?.to_array::<f32>()?
        });
        let own = TransformerEncoderLayer::new(&mesh, 8, 2, 16)?;
        assert_ne!(own.forward(&x)?.to_array::<f32>()?, {
            own.eval();
            own.forward(&x)?.to_array::<f32>()?
        });
        let bare = layer.clone().without_bias();
        assert_eq!(bare.parameters().len(), 8 + 2 + 3);
        Ok(())
    })
    .unwrap();
}

#[test]
fn layers_of_transformers_say_what_they_cannot_do() {
    launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let refused = TransformerEncoderLayer::new(&mesh, 6, 4, 8).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Uniform);
        assert!(refused.to_string().contains("6 and 4 heads"), "{refused}");
        let layer = TransformerEncoderLayer::new(&mesh, 8, 2, 16)?;
        let mask = mesh.ones([2, 5], shard(0))?.to(DType::Bool)?;
        let refused = layer.forward_masked(&mesh.ones([2, 4, 8], shard(0))?, &mask);
        assert_eq!(refused.unwrap_err().class(), ErrorClass::Uniform);
        Ok(())
    })
    .unwrap();
}

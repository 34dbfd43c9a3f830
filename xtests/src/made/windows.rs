//! Windows and norms that the reference files have few of, or none: what one rank gives. That it is right on one rank is for the
//! tests of the kernels and of the methods to say.

use super::as_on_one_rank;
use crate::case::{Case, Data, Tensor};
use crate::differentiate::numbers;
use crate::strategies::integer;
use serde_json::{Value as Json, json};
use shard_spec::numel;
use std::sync::Arc;

/// An operand: its name, what it holds, and its shape.
type Operand = (&'static str, Kind, &'static [usize]);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Eighths of small whole numbers.
    Float,
    /// Numbers from 1/8 to 2 3/8.
    Positive,
    /// Coordinates from -1.3 to 1.3, none at a kink.
    Coordinate,
    /// Numbers from 0.1 to 0.9.
    Share,
    /// Whole numbers from 0 to 29, each once if there are as many.
    Place,
}

use Kind::{Coordinate, Float, Place, Positive, Share};

impl Kind {
    fn tensor(self, shape: &[usize], seed: u64) -> Tensor {
        let of = |f: &dyn Fn(f64) -> f64| {
            Data::F64((0..numel(shape)).map(|i| f(integer(seed, i))).collect())
        };
        let data = match self {
            Self::Float => return numbers(shape, seed),
            Self::Positive => of(&|n| (n + 10.0) / 8.0),
            Self::Share => of(&|n| 0.5 + n * 0.0423),
            Self::Coordinate => of(&|n| n * 0.1409 + 0.0173),
            Self::Place => Data::I64((0..numel(shape)).map(|i| (i * 7 % 30) as i64).collect()),
        };
        Tensor {
            shape: shape.to_vec(),
            data: Arc::new(data),
        }
    }
}

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |op: &str, attributes: Json, operands: &[Operand]| {
        let number = all.len() as u64;
        all.push(case(op, attributes, operands, number));
    };
    pools(&mut add);
    columns(&mut add);
    resampling(&mut add);
    coordinates(&mut add);
    norms(&mut add);
    all
}

type Add<'a> = &'a mut dyn FnMut(&str, Json, &[Operand]);

fn pools(add: Add<'_>) {
    let x = |shape: &'static [usize]| [("input", Float, shape)];
    add(
        "adaptive_max_pool1d",
        json!({"output_size": 4}),
        &x(&[2, 3, 11]),
    );
    add(
        "adaptive_max_pool3d",
        json!({"output_size": [2, null, 7]}),
        &x(&[1, 2, 5, 3, 4]),
    );
    add(
        "adaptive_avg_pool2d",
        json!({"output_size": [1, 4]}),
        &x(&[2, 2, 9, 7]),
    );
    let positive: &[Operand] = &[("input", Positive, &[2, 2, 9, 7])];
    add(
        "lp_pool2d",
        json!({"norm_type": 3.0, "kernel_size": [3, 2], "stride": 2, "ceil_mode": true}),
        positive,
    );
    add(
        "lp_pool1d",
        json!({"norm_type": 2.0, "kernel_size": 3}),
        &x(&[2, 2, 11]),
    );
    let planes: &[Operand] = &[
        ("input", Float, &[2, 3, 9, 7]),
        ("samples", Share, &[2, 3, 2]),
    ];
    add(
        "fractional_max_pool2d",
        json!({"kernel_size": [2, 3], "output_size": [5, 2]}),
        planes,
    );
    let cubes: &[Operand] = &[
        ("input", Float, &[2, 1, 5, 4, 6]),
        ("samples", Share, &[2, 1, 3]),
    ];
    add(
        "fractional_max_pool3d",
        json!({"kernel_size": 2, "output_size": [3, 1, 4]}),
        cubes,
    );
    let pooled: &[Operand] = &[
        ("input", Float, &[1, 2, 3, 4]),
        ("indices", Place, &[1, 2, 3, 4]),
    ];
    add(
        "max_unpool2d",
        json!({"kernel_size": 2, "output_size": [5, 6]}),
        pooled,
    );
    let lines: &[Operand] = &[("input", Float, &[1, 2, 5]), ("indices", Place, &[1, 2, 5])];
    add(
        "max_unpool1d",
        json!({"kernel_size": 2, "output_size": [30]}),
        lines,
    );
    let volumes: &[Operand] = &[
        ("input", Float, &[1, 2, 3, 2, 2]),
        ("indices", Place, &[1, 2, 3, 2, 2]),
    ];
    add(
        "max_unpool3d",
        json!({"kernel_size": 2, "output_size": [5, 3, 2]}),
        volumes,
    );
    add(
        "lp_pool3d",
        json!({"norm_type": 2.0, "kernel_size": 2}),
        &[("input", Positive, &[1, 2, 5, 4, 3])],
    );
    add(
        "local_response_norm",
        json!({"size": 4, "alpha": 0.5}),
        &x(&[2, 7, 3, 4]),
    );
    add(
        "local_response_norm",
        json!({"size": 3, "alpha": 0.5}),
        &x(&[1, 5, 2, 3, 2]),
    );
}

fn columns(add: Add<'_>) {
    let x = |shape: &'static [usize]| [("input", Float, shape)];
    add(
        "unfold1d",
        json!({"kernel_size": 3, "dilation": 2, "padding": 1}),
        &x(&[2, 2, 11]),
    );
    add(
        "unfold3d",
        json!({"kernel_size": [2, 1, 2], "stride": [2, 1, 1]}),
        &x(&[1, 2, 5, 3, 4]),
    );
    add(
        "fold2d",
        json!({"kernel_size": [2, 3], "stride": [2, 1], "padding": [1, 0], "output_size": [6, 5]}),
        &x(&[2, 12, 12]),
    );
    add(
        "fold1d",
        json!({"kernel_size": 3, "stride": 2, "output_size": [9]}),
        &x(&[2, 6, 4]),
    );
    add(
        "fold3d",
        json!({"kernel_size": 2, "stride": [2, 1, 1], "output_size": [4, 3, 3]}),
        &x(&[1, 16, 8]),
    );
    add(
        "fold",
        json!({"kernel_size": 2, "output_size": [4, 3]}),
        &x(&[1, 8, 6]),
    );
    add(
        "unfold",
        json!({"dim": 1, "size": 3, "step": 2}),
        &x(&[3, 11, 2]),
    );
    add(
        "pixel_unshuffle",
        json!({"downscale_factor": 2}),
        &x(&[1, 2, 6, 4]),
    );
    add("channel_shuffle", json!({"groups": 3}), &x(&[2, 6, 3]));
}

fn resampling(add: Add<'_>) {
    let x: &[Operand] = &[("input", Float, &[1, 2, 9, 7])];
    for (mode, aligned, antialias) in [
        ("bicubic", true, false),
        ("bilinear", false, true),
        ("bilinear", true, true),
        ("bicubic", false, true),
        ("bicubic", true, true),
    ] {
        let how = json!({"size": [4, 11], "mode": mode, "align_corners": aligned, "antialias": antialias});
        add("interpolate", how, x);
    }
    add(
        "interpolate",
        json!({"scale_factor": 1.7, "mode": "bicubic"}),
        x,
    );
    add(
        "interpolate",
        json!({"scale_factor": [0.5, 1.5], "mode": "area"}),
        x,
    );
}

fn coordinates(add: Add<'_>) {
    let plane: &[Operand] = &[
        ("input", Float, &[2, 3, 5, 4]),
        ("grid", Coordinate, &[2, 4, 3, 2]),
    ];
    for (mode, padding, aligned) in [
        ("bilinear", "zeros", false),
        ("bilinear", "border", true),
        ("nearest", "reflection", false),
        ("bicubic", "reflection", true),
    ] {
        let how = json!({"mode": mode, "padding_mode": padding, "align_corners": aligned});
        add("grid_sample", how, plane);
    }
    add(
        "grid_sample",
        json!({"mode": "bilinear", "padding_mode": "reflection"}),
        &[
            ("input", Float, &[1, 2, 3, 4, 2]),
            ("grid", Coordinate, &[1, 2, 3, 2, 3]),
        ],
    );
    add(
        "deform_conv1d",
        json!({"dilation": 2, "padding": 1}),
        &[
            ("input", Float, &[1, 4, 7]),
            ("offset", Float, &[1, 6, 5]),
            ("weight", Float, &[2, 4, 3]),
        ],
    );
    let size = json!({"size": [2, 1, 5, 4]});
    add("affine_grid", size, &[("theta", Float, &[2, 2, 3])]);
    let size = json!({"size": [1, 1, 2, 3, 4], "align_corners": true});
    add("affine_grid", size, &[("theta", Float, &[1, 3, 4])]);
}

fn norms(add: Add<'_>) {
    let operands: &[Operand] = &[
        ("input", Float, &[3, 4, 5]),
        ("running_mean", Float, &[4]),
        ("running_var", Positive, &[4]),
    ];
    for training in [false, true] {
        add(
            "instance_norm",
            json!({"use_input_stats": training, "momentum": 0.3}),
            operands,
        );
        add(
            "batch_norm",
            json!({"training": training, "momentum": 0.3}),
            operands,
        );
    }
    add(
        "batch_norm",
        json!({"training": true}),
        &[("input", Float, &[3, 4, 5])],
    );
    add(
        "rms_norm",
        json!({"normalized_shape": [4, 5]}),
        &[("input", Float, &[3, 4, 5])],
    );
}

fn case(op: &str, attributes: Json, operands: &[Operand], number: u64) -> Case {
    let seed = 0x71d0 + number;
    let tensor = |(i, &(name, kind, shape)): (usize, &Operand)| {
        (
            name.to_owned(),
            kind.tensor(shape, seed ^ ((i as u64) << 32)),
        )
    };
    let inputs: Vec<(String, Tensor)> = operands.iter().enumerate().map(tensor).collect();
    // Statistics, indices, and coordinates of the nearest have no derivative.
    let nearest = attributes["mode"] == "nearest";
    let wanted = |name: &str| {
        !name.starts_with("running") && name != "indices" && !(name == "grid" && nearest)
    };
    let wants: Vec<usize> = (0..inputs.len())
        .filter(|&i| wanted(&inputs[i].0))
        .collect();
    let (name, note) = (format!("windows_{op}_{number}"), "as on one rank");
    let case = Case::without_reference(name, op, attributes, inputs, note);
    as_on_one_rank(case, &wants, seed)
}

//! Softmax, losses and statistics with the arguments that the reference files lack: what one rank gives. That it is right on one rank
//! is for the tests of the ops to say.

use super::types::Kind::{Class, Float, Large, Odd, Once, Rising, Share, Small, Truth};
use super::types::{Add, case};
use crate::case::Case;
use serde_json::{Value as Json, json};

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |op: &str, attributes: Json, operands: &[super::types::Operand]| {
        let number = all.len() as u64;
        all.push(case("stats", op, attributes, operands, number));
    };
    softmaxes(&mut add);
    moments(&mut add);
    extremes(&mut add);
    norms(&mut add);
    losses(&mut add);
    classes(&mut add);
    margins(&mut add);
    labels_and_ends(&mut add);
    classes_apart(&mut add);
    together(&mut add);
    pieces(&mut add);
    all
}

fn softmaxes(add: Add<'_>) {
    for op in ["softmax", "log_softmax"] {
        add(op, json!({"dim": 1}), &[("input", Float, &[3, 0])]);
    }
    add("softmin", json!({"dim": -2}), &[("input", Float, &[2, 5])]);
    let attributes = json!({"dim": [0, -1], "keepdim": true});
    add("logsumexp", attributes, &[("input", Float, &[5, 2, 4])]);
    add("logsumexp", json!({"dim": 0}), &[("input", Float, &[0, 3])]);
}

fn moments(add: Add<'_>) {
    let attributes = json!({"dim": [0, -1], "correction": 2.5, "keepdim": true});
    for op in ["var_mean", "std_mean"] {
        add(op, attributes.clone(), &[("input", Float, &[7, 2, 3])]);
    }
    // A single element has no spread, and none has no mean.
    let attributes = json!({"dim": 1, "correction": 0});
    add("std", attributes.clone(), &[("input", Float, &[6, 1])]);
    add("var_mean", attributes, &[("input", Float, &[5, 0])]);
}

fn extremes(add: Add<'_>) {
    for kind in [Float, Small, Truth] {
        let attributes = json!({"dim": -1, "keepdim": true});
        add("argmax", attributes, &[("input", kind, &[3, 11])]);
        add("argmin", json!({}), &[("input", kind, &[4, 2, 5])]);
        add("max", json!({"dim": 1}), &[("input", kind, &[3, 9])]);
    }
    let attributes = json!({"dim": 0, "keepdim": true});
    add("min", attributes, &[("input", Float, &[9, 2])]);
    for (q, how) in [
        (json!([0.0, 0.3, 1.0]), "linear"),
        (json!(0.62), "midpoint"),
    ] {
        let attributes = json!({"q": q, "dim": 0, "interpolation": how});
        add("quantile", attributes, &[("input", Float, &[9, 2])]);
    }
}

fn norms(add: Add<'_>) {
    for order in [json!(0), json!(0.5), json!(1.5), json!("-inf")] {
        let attributes = json!({"ord": order, "dim": [0, 2], "keepdim": true});
        add("norm", attributes, &[("input", Float, &[5, 2, 3])]);
    }
    add(
        "norm",
        json!({"ord": 2, "dim": 0}),
        &[("input", Float, &[0, 3])],
    );
    add(
        "normalize",
        json!({"p": 3.0, "dim": 0}),
        &[("input", Odd, &[7, 3])],
    );
    let [a, b]: [&[usize]; 2] = [&[7, 3], &[7, 1]];
    for p in [json!(2.0), json!(1.0), json!(2.5), json!("inf"), json!(0.0)] {
        let pairs = [("x1", Odd, &[2, 7, 3][..]), ("x2", Float, &[5, 3][..])];
        add("cdist", json!({"p": p}), &pairs);
    }
    let vectors = [
        ("input", Float, &[7, 3, 2][..]),
        ("other", Float, &[3, 2][..]),
    ];
    add("cross", json!({"dim": 1}), &vectors);
    add(
        "cosine_similarity",
        json!({"dim": 0}),
        &[("x1", Odd, a), ("x2", Odd, b)],
    );
}

fn losses(add: Add<'_>) {
    let shape: &[usize] = &[7, 3];
    let weighted = [
        ("input", Share, &[7][..]),
        ("target", Share, &[7]),
        ("weight", Odd, &[1]),
    ];
    add(
        "binary_cross_entropy",
        json!({"reduction": "sum"}),
        &weighted,
    );
    let weighted = [
        ("input", Float, &[7][..]),
        ("target", Share, &[7]),
        ("pos_weight", Share, &[7]),
    ];
    add("binary_cross_entropy_with_logits", json!({}), &weighted);
    let pair = [("input", Float, shape), ("target", Share, shape)];
    let attributes = json!({"reduction": "none", "log_target": true});
    add("kl_div", attributes, &pair);
    let normal = [
        ("input", Float, &[7][..]),
        ("target", Float, &[7]),
        ("var", Share, &[7]),
    ];
    add("gaussian_nll_loss", json!({"full": true}), &normal);
    let attributes = json!({"full": true, "log_input": false});
    let counts = [("input", Share, &[9][..]), ("target", Odd, &[9])];
    add("poisson_nll_loss", attributes, &counts);
}

fn classes(add: Add<'_>) {
    let (x, target) = (("input", Float, &[6, 5][..]), ("target", Class, &[6][..]));
    let weight = ("weight", Share, &[5][..]);
    let smooth = json!({"label_smoothing": 0.2, "ignore_index": 1});
    add("cross_entropy", smooth, &[x, target, weight]);
    add(
        "nll_loss",
        json!({"reduction": "none", "ignore_index": 3}),
        &[x, target],
    );
    let shares = ("target", Share, x.2);
    add(
        "cross_entropy",
        json!({"label_smoothing": 0.1}),
        &[x, shares],
    );
    let one = [("input", Float, &[5][..]), ("target", Class, &[][..])];
    add("cross_entropy", json!({}), &one);
}

/// Targets are 1, -1, and other numbers, which PyTorch's losses know how to take.
fn margins(add: Add<'_>) {
    let shape: &[usize] = &[7, 3];
    let [a, b] = [("a", Odd, shape), ("b", Float, shape)];
    let ranks = ("target", Small, &[7, 1][..]);
    for reduction in ["mean", "none"] {
        let how = json!({"margin": 0.5, "reduction": reduction});
        add(
            "margin_ranking_loss",
            how.clone(),
            &[a, b, ("target", Odd, ranks.2)],
        );
        add(
            "hinge_embedding_loss",
            how.clone(),
            &[("input", Odd, shape), ranks],
        );
        add(
            "cosine_embedding_loss",
            how.clone(),
            &[a, b, ("target", Small, &[7])],
        );
        let three = [
            ("anchor", Odd, shape),
            ("positive", Float, shape),
            ("negative", Share, &[3][..]),
        ];
        add("triplet_margin_loss", how, &three);
        let swapped = json!({"margin": 2.0, "swap": true, "reduction": reduction});
        add("triplet_margin_loss", swapped, &three);
    }
}

fn labels_and_ends(add: Add<'_>) {
    let attributes = json!({"dim": [0, -1], "keepdim": true});
    add("aminmax", attributes, &[("input", Float, &[7, 2, 3])]);
    let operands = [
        ("log_probs", Float, &[6, 3, 5][..]),
        ("targets", Class, &[3, 2][..]),
        ("input_lengths", Class, &[3][..]),
        ("target_lengths", Once, &[3][..]),
    ];
    for reduction in ["mean", "sum", "none"] {
        let how = json!({"blank": 4, "zero_infinity": true, "reduction": reduction});
        add("ctc_loss", how, &operands);
    }
}

fn classes_apart(add: Add<'_>) {
    let (x, target) = (("input", Float, &[7, 5][..]), ("target", Class, &[7][..]));
    let weight = ("weight", Share, &[5][..]);
    for reduction in ["mean", "none"] {
        let how = json!({"reduction": reduction});
        add("soft_margin_loss", how.clone(), &[x, ("target", Odd, x.2)]);
        add(
            "multilabel_soft_margin_loss",
            how.clone(),
            &[x, ("target", Share, x.2), weight],
        );
        add("multi_margin_loss", how, &[x, target]);
        let squares = json!({"p": 2, "margin": 0.3, "reduction": reduction});
        add("multi_margin_loss", squares, &[x, target, weight]);
    }
    add(
        "multi_margin_loss",
        json!({}),
        &[("input", Float, &[5]), ("target", Class, &[])],
    );
    let pairs = [("x1", Odd, &[7, 3][..]), ("x2", Float, &[3][..])];
    for p in [json!(2.0), json!(1.0), json!("inf")] {
        add(
            "pairwise_distance",
            json!({"p": p, "keepdim": true}),
            &pairs,
        );
    }
    for p in [json!(2.0), json!(1.0)] {
        add("pdist", json!({"p": p}), &[("input", Odd, &[7, 3])]);
    }
}

fn together(add: Add<'_>) {
    let (x, much) = (("input", Odd, &[3, 7][..]), ("aweights", Share, &[7][..]));
    let often = ("fweights", Class, &[7][..]);
    add("cov", json!({}), &[x]);
    add("cov", json!({"correction": 0}), &[("input", Odd, &[8])]);
    add("cov", json!({}), &[x, often]);
    add("cov", json!({"correction": 0.5}), &[x, much]);
    add("cov", json!({"correction": 0}), &[x, often, much]);
    add("corrcoef", json!({}), &[x]);
    add(
        "renorm",
        json!({"p": 2.0, "dim": 0, "maxnorm": 2.5}),
        &[("input", Odd, &[7, 3, 2])],
    );
    add(
        "renorm",
        json!({"p": 1.0, "dim": -1, "maxnorm": 3.0}),
        &[("input", Odd, &[7, 3])],
    );
    for how in ["linear", "lower", "higher", "nearest", "midpoint"] {
        let attributes = json!({"q": [0.3, 1.0], "dim": 0, "interpolation": how});
        add("nanquantile", attributes, &[("input", Float, &[9, 2])]);
    }
    let y = ("y", Float, &[7, 3][..]);
    for op in ["trapezoid", "cumulative_trapezoid"] {
        add(op, json!({"dx": 0.5, "dim": 0}), &[y]);
        add(op, json!({"dim": 1}), &[y, ("x", Rising, &[3])]);
        add(op, json!({"dim": 0}), &[y, ("x", Odd, &[7, 1])]);
        add(op, json!({}), &[("y", Float, &[4, 1])]);
        add(op, json!({}), &[("y", Float, &[4, 0])]);
    }
}

fn pieces(add: Add<'_>) {
    add(
        "tensor_split",
        json!({"sections": 3, "dim": 0}),
        &[("input", Float, &[7, 2])],
    );
    add(
        "tensor_split",
        json!({"sections": 4, "dim": 1}),
        &[("input", Small, &[3, 2])],
    );
    for k in [1, 2, 3] {
        add(
            "rot90",
            json!({"k": k, "dims": [0, 2]}),
            &[("input", Float, &[5, 2, 3])],
        );
    }
    add(
        "rot90",
        json!({"k": -1, "dims": [1, 0]}),
        &[("input", Large, &[4, 7])],
    );
    let blocks = [
        ("a", Float, &[3, 2][..]),
        ("b", Float, &[4]),
        ("c", Float, &[]),
        ("d", Float, &[2, 0]),
    ];
    add("block_diag", json!({}), &blocks);
    for kind in [Float, Small] {
        add(
            "vander",
            json!({"n": 4, "increasing": true}),
            &[("input", kind, &[7])],
        );
        add("vander", json!({"n": 1}), &[("input", kind, &[3])]);
        add("vander", json!({"n": 0}), &[("input", kind, &[3])]);
    }
    add(
        "take",
        json!({}),
        &[("input", Float, &[4, 3]), ("index", Class, &[2, 5])],
    );
    add(
        "take",
        json!({}),
        &[("input", Large, &[5, 1]), ("index", Class, &[7])],
    );
    let window = ("window", Share, &[5][..]);
    add(
        "stft",
        json!({"n_fft": 6, "hop_length": 2}),
        &[("input", Float, &[2, 13]), window],
    );
    let whole =
        json!({"n_fft": 5, "hop_length": 3, "center": false, "onesided": false, "norm": "ortho"});
    add("stft", whole.clone(), &[("input", Float, &[17])]);
    let back = json!({"n_fft": 6, "hop_length": 2, "length": 11});
    add("istft", back, &[("input", Float, &[2, 4, 6, 2]), window]);
    add("istft", whole, &[("input", Float, &[5, 4, 2])]);
}

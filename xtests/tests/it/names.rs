//! One name means one thing: no two public types of the workspace share one by chance.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The sources of all crates that are published.
const SOURCES: [&str; 8] = [
    "shard-spec/src",
    "shard-comm/device/src",
    "shard-comm/src",
    "shard-redistribute/src",
    "shard-ops/kernels/src",
    "shard-ops/src",
    "shard-autograd/src",
    "shard-tensor/src",
];

/// Names of one thing at several levels: the kernel of an optimizer's step and the optimizer, what ops take or give as values and the
/// facade as tensors, and how numbers are drawn. The rest are two things that have one name everywhere: each crate's own result, a buffer of a
/// device and, as in PyTorch, of a model, and a schedule and, as in PyTorch, a distribution.
const SHARED: [&str; 26] = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Asgd",
    "Lion",
    "NAdam",
    "RAdam",
    "RmsProp",
    "Rprop",
    "Sgd",
    "Bins",
    "Clouds",
    "ConvOptions",
    "ConvTransposeOptions",
    "Distribution",
    "Fused",
    "Gradients",
    "PoolOptions",
    "RadiusPairs",
    "RadiusTable",
    "UnfoldOptions",
    "Unique",
    "Buffer",
    "Exponential",
    "Result",
];

#[test]
fn public_types_have_names_of_their_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut places = BTreeMap::<String, BTreeSet<String>>::new();
    for folder in SOURCES {
        note_types(&root.join(folder), &mut places);
    }
    assert!(places.len() > 500, "{} types are found", places.len());
    let twice: BTreeMap<_, _> = (places.iter())
        .filter(|(_, files)| files.len() > 1)
        .collect();
    let unplanned: Vec<_> = twice
        .iter()
        .filter(|(name, _)| !SHARED.contains(&name.as_str()))
        .collect();
    assert!(
        unplanned.is_empty(),
        "one name for two types: {unplanned:#?}"
    );
    let single: Vec<_> = SHARED
        .iter()
        .filter(|&&name| !twice.contains_key(&name.to_owned()))
        .collect();
    assert!(single.is_empty(), "no longer shared: {single:?}");
}

/// Notes the public types and traits of all sources below a folder, by name, with the files they are in.
fn note_types(folder: &Path, places: &mut BTreeMap<String, BTreeSet<String>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            note_types(&path, places);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for name in text.lines().filter_map(public_type) {
                let file = path.display().to_string();
                places.entry(name.to_owned()).or_default().insert(file);
            }
        }
    }
}

/// The name of the public type or trait that begins on a line.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    let name = rest
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()?;
    (!name.is_empty()).then_some(name)
}

//! Everything that reads text or bytes from outside, on any bytes: an error or a value, and a value survives being written
//! and read again. The bodies of the fuzz targets, and of a test that mutates good inputs.

use ndarray::{Array2, Array4, ArrayRef, Dimension, Ix1, Ix2, Ix4};
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shard_ops::testing::Rng;
use shard_redistribute::{CostModel, LinkCost, Plan};
use shard_spec::{DeviceMesh, DimMap, Layout, Partition, Window};
use shard_tensor::data::{Npy, npy_bytes};
use shard_tensor::half::f16;
use shard_tensor::{Bool, Element, Launch, Placements, checkpoint};
use std::fmt::Debug;

/// One reader: what it makes of any bytes, and bytes that it accepts.
#[derive(Clone, Copy)]
pub struct Parser {
    /// The name of the fuzz target.
    pub name: &'static str,
    /// Reads, and panics if what it read is not what it writes.
    pub read: fn(&[u8]),
    /// Good inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Parser {
    /// Now and then, as `seed` falls, puts a good input with a few things wrong with it in the place of `data`, and
    /// tells how long it is: a fuzzer that begins with nothing soon has inputs that are read.
    pub fn begin_anew(&self, data: &mut [u8], seed: u32) -> Option<usize> {
        let mut rng = Rng::new(u64::from(seed), &[self.name]);
        if rng.below(64) > 0 {
            return None;
        }
        let seeds = (self.seeds)();
        let input = mutated(&rng.pick(&seeds)?, &mut rng);
        data.get_mut(..input.len())?.copy_from_slice(&input);
        Some(input.len())
    }
}

/// All of them.
pub const ALL: [Parser; 5] = [LAYOUT_TEXT, SPECS, PLANS, SAFETENSORS, NPY];

/// The short form of layouts.
pub const LAYOUT_TEXT: Parser = Parser {
    name: "layout_text",
    read: layout_text,
    seeds: layout_seeds,
};

/// Serialised meshes, partitions, layouts, windows and index maps.
pub const SPECS: Parser = Parser {
    name: "specs",
    read: specs,
    seeds: spec_seeds,
};

/// Serialised plans.
pub const PLANS: Parser = Parser {
    name: "plans",
    read: plans,
    seeds: plan_seeds,
};

/// Checkpoints.
pub const SAFETENSORS: Parser = Parser {
    name: "safetensors",
    read: safetensors_file,
    seeds: safetensors_seeds,
};

/// Files of NumPy.
pub const NPY: Parser = Parser {
    name: "npy",
    read: npy_file,
    seeds: npy_seeds,
};

/// The short form of layouts. The first four bytes are the shapes of a mesh and of a tensor.
pub fn layout_text(data: &[u8]) {
    let Some((&[mesh, a, b, c], text)) = data.split_first_chunk() else {
        return;
    };
    let meshes: [&[usize]; 6] = [&[1], &[3], &[4], &[2, 2], &[2, 3], &[2, 1, 2]];
    let (Ok(mesh), Ok(text)) = (
        DeviceMesh::new(meshes[usize::from(mesh) % meshes.len()]),
        std::str::from_utf8(text),
    ) else {
        return;
    };
    let shape = [a, b, c].map(|n| usize::from(n % 32));
    if let Ok(layout) = Layout::parse(&mesh, &shape, text) {
        let written = layout.to_string();
        assert_eq!(
            Layout::parse(&mesh, &shape, &written).as_ref(),
            Ok(&layout),
            "{text:?} as {written:?}"
        );
        for &rank in mesh.ranks() {
            assert!(layout.local_shape(rank).is_some());
        }
    }
}

/// Serialised meshes, partitions, layouts, windows and index maps.
pub fn specs(data: &[u8]) {
    again::<DeviceMesh>(data);
    again::<Partition>(data);
    again::<Layout>(data);
    again::<Window>(data);
    again::<DimMap>(data);
}

/// Serialised plans.
pub fn plans(data: &[u8]) {
    if let Ok(plan) = serde_json::from_slice::<Plan>(data) {
        let written = serde_json::to_vec(&plan).expect("a plan is data");
        let read: Plan = serde_json::from_slice(&written).expect("what was written is read");
        assert_eq!(read.to_string(), plan.to_string());
    }
}

/// Checkpoints: the header of safetensors files, and where it says that elements are.
pub fn safetensors_file(data: &[u8]) {
    let name = format!(
        "shard-parsers-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    let path = std::env::temp_dir().join(name);
    if std::fs::write(&path, data).is_err() {
        return;
    }
    let read = Launch::new(1).run(|ctx| {
        let mesh = ctx.mesh_of(1)?;
        let zeros = mesh.zeros([2, 3], Placements::replicated())?;
        let x = zeros.requires_grad()?;
        // Whether it can be read is the file's affair; that it is told is ours.
        let loaded = checkpoint::load(&path, &[("x".to_owned(), x.clone())]);
        let seen = x.to_array::<f32>()?;
        Ok(loaded.is_ok() || seen.iter().all(|&v| v == 0.0))
    });
    std::fs::remove_file(&path).ok();
    assert_eq!(read.expect("reading a file fails no rank"), [true]);
}

/// Files of NumPy, as arrays of one, two and four dims, of numbers and truth values.
pub fn npy_file(data: &[u8]) {
    array_again::<f32, Ix1>(data);
    array_again::<f32, Ix2>(data);
    array_again::<f32, Ix4>(data);
    array_again::<f64, Ix2>(data);
    array_again::<f16, Ix2>(data);
    array_again::<i64, Ix2>(data);
    array_again::<i32, Ix2>(data);
    array_again::<u8, Ix2>(data);
    array_again::<Bool, Ix2>(data);
}

/// Reads, writes and reads again. What was read lay in the bytes.
fn array_again<T: Element, D: Dimension>(data: &[u8]) {
    let read = |data: &[u8]| Npy::from_bytes(data).and_then(|npy| npy.to_array::<T, D>());
    let Ok(array) = read(data) else {
        return;
    };
    assert!(array.len() < data.len());
    let written = npy_bytes(&array).expect("NumPy knows the type");
    let again = read(&written).expect("what was written is read");
    assert_eq!(again.shape(), array.shape());
    assert_eq!(npy_bytes(&again).expect("as before"), written);
}

/// Reads, writes and reads again.
fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(data) {
        let written = serde_json::to_vec(&value).expect("specs are data");
        let read: T = serde_json::from_slice(&written).expect("what was written is read");
        assert_eq!(read, value);
    }
}

fn layout_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "S(0)",
        "S(0)[3,1,0,2]",
        "R P(sum)",
        "S(0;1,0)[2,1,4,3] S(0)",
        "S(1)[0:2,1:4,2:2,3:1]",
        "S(0)[0:1,1:1,2:1]* R",
        "P(max) S(2) R",
    ];
    let meshes = [0_u8, 1, 2, 3, 4, 5];
    texts
        .iter()
        .flat_map(|text| meshes.map(|mesh| [&[mesh, 6, 9, 10], text.as_bytes()].concat()))
        .collect()
}

fn spec_seeds() -> Vec<Vec<u8>> {
    let json = |value: serde_json::Result<Vec<u8>>| value.expect("specs are data");
    let mesh = DeviceMesh::new(&[2, 2])
        .and_then(|m| m.with_names(&["a", "b"]))
        .expect("a mesh");
    let layout = |text| Layout::parse(&mesh, &[10, 7], text).expect("a layout");
    let window = Window::conv(3, 2, 1, 1, 1).expect("a window");
    vec![
        json(serde_json::to_vec(&mesh)),
        json(serde_json::to_vec(&Partition::zigzag(10, 2))),
        json(serde_json::to_vec(&Partition::chunk(10, 4))),
        json(serde_json::to_vec(&layout("S(0)[1,3,2,4] S(0)"))),
        json(serde_json::to_vec(&layout("R P(sum)"))),
        json(serde_json::to_vec(&window)),
        json(serde_json::to_vec(&DimMap::identity(12))),
    ]
}

fn plan_seeds() -> Vec<Vec<u8>> {
    let mesh = DeviceMesh::new(&[2, 2]).expect("a mesh");
    let layout = |text| Layout::parse(&mesh, &[10, 7], text).expect("a layout");
    let model = CostModel::network(LinkCost::new(1e-5, 1e9));
    let moves = [
        ("S(0) R", "R S(1)"),
        ("S(0) S(0)", "R R"),
        ("P(sum) R", "R R"),
        ("P(sum) S(1)", "S(0) S(1)"),
        ("S(0)[10,0] R", "R R"),
    ];
    let plan = |(from, to)| {
        let dtype = shard_comm::DType::F32;
        let plan = Plan::cheapest(&layout(from), &layout(to), 1, dtype, &model).expect("a plan");
        serde_json::to_vec(&plan).expect("a plan is data")
    };
    moves.into_iter().map(plan).collect()
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    let bytes = [0_u8; 48];
    let file = |dtype, shape: Vec<usize>, bytes| {
        let view = TensorView::new(dtype, shape, bytes).expect("a tensor");
        safetensors::serialize([("x", view)], None).expect("a file")
    };
    vec![
        file(Dtype::F32, vec![2, 3], &bytes[..24]),
        file(Dtype::F64, vec![2, 3], &bytes),
        file(Dtype::F32, vec![3, 2], &bytes[..24]),
    ]
}

fn npy_seeds() -> Vec<Vec<u8>> {
    fn bytes<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Vec<u8> {
        npy_bytes(array).expect("NumPy knows the type")
    }
    let rows = Array2::<f32>::from_elem((3, 5), 1.5);
    vec![
        bytes(&rows),
        bytes(&rows.t()),
        bytes(&Array2::<f64>::zeros((2, 2))),
        bytes(&Array2::<f32>::zeros((0, 7))),
        bytes(&Array2::<f16>::zeros((1, 7))),
        bytes(&Array2::<i64>::ones((3, 2))),
        bytes(&Array2::<i32>::ones((2, 3))),
        bytes(&Array2::<u8>::ones((1, 4))),
        bytes(&Array2::from_elem((2, 2), Bool::from(true))),
        bytes(&Array4::<f32>::zeros((2, 1, 3, 2))),
    ]
}

/// A good input with a few things wrong with it.
pub fn mutated(seed: &[u8], rng: &mut Rng) -> Vec<u8> {
    const WORDS: [&str; 14] = [
        "0",
        "-1",
        "1",
        "4",
        "18446744073709551615",
        "9223372036854775808",
        "1e9",
        "null",
        "[]",
        "{}",
        ",",
        "\"",
        "S(0)",
        "]*",
    ];
    let mut data = seed.to_vec();
    for _ in 0..=rng.below(3) {
        let at = rng.below(data.len() + 1);
        let end = (at + rng.below(9)).min(data.len());
        match rng.below(6) {
            0 if at < data.len() => data[at] ^= 1 << rng.below(8),
            1 => drop(data.drain(at..end)),
            2 => {
                let piece = data[at..end].to_vec();
                let to = rng.below(data.len() + 1);
                drop(data.splice(to..to, piece));
            }
            3 => data.truncate(at),
            4 => {
                let word = rng.pick(&WORDS).unwrap_or_default();
                drop(data.splice(at..at, word.bytes()));
            }
            _ => {
                // A number becomes another one.
                let digit = |b: &u8| b.is_ascii_digit();
                if let Some(from) = data[at..].iter().position(digit) {
                    let from = at + from;
                    let len = data[from..].iter().take_while(|b| digit(b)).count();
                    let word = WORDS[rng.below(7)];
                    drop(data.splice(from..from + len, word.bytes()));
                }
            }
        }
    }
    data
}

//! Reference cases: what an op is given, what it must give, and its gradients, from a pair of files.

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use shard_ops::testing::{Data, Tensor};

/// One reference case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The case's name, also the stem of its files.
    pub name: String,
    /// The op it is about.
    pub op: String,
    /// The op's attributes.
    pub attributes: Attributes,
    /// Inputs in argument order.
    pub inputs: Vec<(String, Tensor)>,
    /// Expected outputs.
    pub outputs: Vec<Tensor>,
    /// Cotangents of the differentiable outputs: (output, cotangent).
    pub cotangents: Vec<(usize, Tensor)>,
    /// Expected gradients: (input, gradient).
    pub gradients: Vec<(usize, Tensor)>,
    /// What is special about the case.
    pub note: String,
}

impl Case {
    /// A case of an op with these attributes, an object, that has no reference results yet.
    ///
    /// # Panics
    /// If the attributes are something else.
    pub(crate) fn without_reference(
        name: impl Into<String>,
        op: &str,
        attributes: Json,
        inputs: Vec<(String, Tensor)>,
        note: &str,
    ) -> Self {
        let Json::Object(attributes) = attributes else {
            unreachable!("attributes are written as objects")
        };
        Self {
            name: name.into(),
            op: op.to_owned(),
            attributes: Attributes(attributes),
            inputs,
            outputs: Vec::new(),
            cotangents: Vec::new(),
            gradients: Vec::new(),
            note: note.to_owned(),
        }
    }
}

/// Why a case could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A file or folder could not be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The description is not the JSON a case needs.
    #[error("{}: not a case description: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: serde_json::Error,
    },
    /// The tensor file is malformed.
    #[error("{}: not a safetensors file: {source}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: safetensors::SafeTensorError,
    },
    /// Description and tensors do not fit together.
    #[error("{}: {problem}", path.display())]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// An attribute the op needs is missing or of another kind.
    #[error("attribute `{name}`: expected {expected}, got {got}")]
    Attribute {
        /// The attribute.
        name: String,
        /// What the op needs.
        expected: &'static str,
        /// What the description says.
        got: String,
    },
}

/// Shorthand for results of this module.
pub type Result<T, E = CaseError> = std::result::Result<T, E>;

#[derive(Deserialize)]
struct Description {
    name: String,
    file: String,
    op: String,
    #[serde(default)]
    attributes: Map<String, Json>,
    inputs: Vec<String>,
    outputs: usize,
    #[serde(default)]
    differentiable_outputs: Vec<usize>,
    #[serde(default)]
    gradients: Vec<String>,
    #[serde(default)]
    shapes: BTreeMap<String, Vec<usize>>,
    #[serde(default)]
    note: String,
}

impl Case {
    /// Reads `<case>.json` and the tensor file beside it.
    ///
    /// # Errors
    /// [`CaseError`], naming the file and what is wrong with it; malformed files never panic.
    pub fn load(description: &Path) -> Result<Self> {
        let text = read(description)?;
        let d: Description = serde_json::from_slice(&text).map_err(|source| CaseError::Json {
            path: description.to_path_buf(),
            source,
        })?;
        let path = description.with_file_name(&d.file);
        let bytes = read(&path)?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|source| CaseError::Tensors {
            path: path.clone(),
            source,
        })?;
        let get = |key: &str| tensor(&tensors, &path, key, d.shapes.get(key));

        let inputs: Vec<(String, Tensor)> = d
            .inputs
            .iter()
            .map(|n| Ok((n.clone(), get(&format!("in.{n}"))?)))
            .collect::<Result<_>>()?;
        let outputs: Vec<Tensor> = (0..d.outputs)
            .map(|i| get(&format!("out.{i}")))
            .collect::<Result<_>>()?;
        let wrong = |problem: String| CaseError::Inconsistent {
            path: path.clone(),
            problem,
        };
        if outputs.is_empty() {
            return Err(wrong("there is no output".to_owned()));
        }
        let mut cotangents = Vec::new();
        for &i in &d.differentiable_outputs {
            let expected = outputs
                .get(i)
                .ok_or_else(|| wrong(format!("there is no output {i}")))?;
            let cotangent = get(&format!("cot.{i}"))?;
            check_same(&wrong, &format!("cot.{i}"), &cotangent, expected)?;
            cotangents.push((i, cotangent));
        }
        let mut gradients = Vec::new();
        for name in &d.gradients {
            let place = inputs.iter().position(|(n, _)| n == name);
            let place =
                place.ok_or_else(|| wrong(format!("gradient of `{name}`, which is no input")))?;
            let gradient = get(&format!("grad.{name}"))?;
            check_same(&wrong, &format!("grad.{name}"), &gradient, &inputs[place].1)?;
            gradients.push((place, gradient));
        }
        Ok(Self {
            name: d.name,
            op: d.op,
            attributes: Attributes(d.attributes),
            inputs,
            outputs,
            cotangents,
            gradients,
            note: d.note,
        })
    }
}

/// Reads all cases of a folder, in order of their names. A file that cannot be read as a case is returned as
/// an error beside the others.
///
/// # Errors
/// [`CaseError::Io`] if the folder itself cannot be read.
pub fn load_dir(dir: &Path) -> Result<Vec<Result<Case>>> {
    let io = |source| CaseError::Io {
        path: dir.to_path_buf(),
        source,
    };
    let mut paths = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let is_case = path.extension().is_some_and(|e| e == "json")
            && path.file_stem().is_some_and(|s| s != "index");
        if is_case {
            paths.insert(path);
        }
    }
    Ok(paths.iter().map(|p| Case::load(p)).collect())
}

/// The folder of cases that belongs to the project: where this was built, or if that is another machine, in the tree one is in.
pub fn default_dir() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/open");
    if built.is_dir() {
        built
    } else {
        PathBuf::from("xtests/data/open")
    }
}

/// An op's attributes, read with their kinds checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes(pub Map<String, Json>);

impl Attributes {
    /// Whether an attribute is given (and not null).
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An integer, or the default if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        self.read(name, default, "an integer", Json::as_i64)
    }

    /// A non-negative integer, or the default if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn size(&self, name: &str, default: usize) -> Result<usize> {
        self.read(name, default, "a size", |v| {
            v.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    /// A number, or the default if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn float(&self, name: &str, default: f64) -> Result<f64> {
        self.read(name, default, "a number", Json::as_f64)
    }

    /// A truth value, or the default if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn bool(&self, name: &str, default: bool) -> Result<bool> {
        self.read(name, default, "true or false", Json::as_bool)
    }

    /// A text, or the default if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn text(&self, name: &str, default: &str) -> Result<String> {
        self.read(name, default.to_owned(), "a text", |v| {
            v.as_str().map(str::to_owned)
        })
    }

    /// Integers: a list, or one standing for a list of one. `None` if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        self.read(name, None, "integers", |v| list(v, Json::as_i64).map(Some))
    }

    /// Numbers: a list, or one standing for a list of one. `None` if not given.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        self.read(name, None, "numbers", |v| list(v, Json::as_f64).map(Some))
    }

    /// One size per spatial dim: a list of that length, or one size for all, or the default.
    ///
    /// # Errors
    /// [`CaseError::Attribute`] if it is something else.
    pub fn spatial(&self, name: &str, dims: usize, default: usize) -> Result<Vec<usize>> {
        self.read(
            name,
            vec![default; dims],
            "one size, or one per spatial dim",
            |v| {
                let given = list(v, |n| n.as_u64().and_then(|n| usize::try_from(n).ok()))?;
                match given.len() {
                    1 => Some(vec![given[0]; dims]),
                    n if n == dims => Some(given),
                    _ => None,
                }
            },
        )
    }

    /// The attribute as it stands, `None` if not given or null.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    fn read<T>(
        &self,
        name: &str,
        default: T,
        expected: &'static str,
        as_kind: impl Fn(&Json) -> Option<T>,
    ) -> Result<T> {
        match self.get(name) {
            None => Ok(default),
            Some(v) => as_kind(v).ok_or_else(|| CaseError::Attribute {
                name: name.to_owned(),
                expected,
                got: v.to_string(),
            }),
        }
    }
}

fn list<T>(v: &Json, one: impl Fn(&Json) -> Option<T>) -> Option<Vec<T>> {
    match v {
        Json::Array(items) => items.iter().map(one).collect(),
        single => Some(vec![one(single)?]),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| CaseError::Io {
        path: path.to_path_buf(),
        source,
    })
}

fn tensor(
    file: &SafeTensors<'_>,
    path: &Path,
    key: &str,
    declared: Option<&Vec<usize>>,
) -> Result<Tensor> {
    let wrong = |problem: String| CaseError::Inconsistent {
        path: path.to_path_buf(),
        problem,
    };
    let view = file.tensor(key).map_err(|source| CaseError::Tensors {
        path: path.to_path_buf(),
        source,
    })?;
    let shape = view.shape().to_vec();
    if let Some(declared) = declared
        && declared != &shape
    {
        return Err(wrong(format!(
            "`{key}` has shape {shape:?}, its description says {declared:?}"
        )));
    }
    let bytes = view.data();
    let words = || {
        bytes
            .chunks_exact(8)
            .map(|c| std::array::from_fn::<u8, 8, _>(|i| c[i]))
    };
    let data = match view.dtype() {
        Dtype::F64 => Data::F64(words().map(f64::from_le_bytes).collect()),
        Dtype::I64 => Data::I64(words().map(i64::from_le_bytes).collect()),
        Dtype::BOOL => Data::Bool(bytes.iter().map(|&b| u8::from(b != 0)).collect()),
        other => {
            return Err(wrong(format!(
                "`{key}` is {other:?}; cases hold float64, int64 and bool"
            )));
        }
    };
    Ok(Tensor {
        shape,
        data: Arc::new(data),
    })
}

fn check_same(
    wrong: &dyn Fn(String) -> CaseError,
    key: &str,
    got: &Tensor,
    expected: &Tensor,
) -> Result<()> {
    if got.shape == expected.shape && got.data.dtype() == expected.data.dtype() {
        return Ok(());
    }
    Err(wrong(format!(
        "`{key}` is {} {:?}, but belongs to a tensor {} {:?}",
        got.data.dtype(),
        got.shape,
        expected.data.dtype(),
        expected.shape
    )))
}

//! The command line.

use crate::keep::Keep;
use clap::{Parser, ValueEnum};
use shard_tensor::{Backend, DType, DeviceKind};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Trains a small U-Net to sharpen a coarse weather field, domain-parallel over in-process ranks.
#[derive(Clone, Debug, Parser)]
#[command(name = "downscale")]
pub(crate) struct Args {
    /// Ranks along the rows and columns of the field, as 2x2, 3x2, 1x4; one number divides the rows alone
    #[arg(long, default_value = "2x2")]
    pub(crate) mesh: MeshShape,

    /// even, uneven (each part 38/62 of the one before), or sizes for each mesh axis, as 126,78/116,71
    #[arg(long, default_value = "uneven")]
    pub(crate) split: Split,

    /// Optimizer steps [default: 200, with --verify 20]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    steps: Option<u32>,

    /// Hours of the forecast that a step learns from [default: all but the last]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,

    #[command(flatten)]
    pub(crate) keep: Keep,

    /// Seed of the initial weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Element type of model and training [default: f32, with --verify f64]
    #[arg(long)]
    dtype: Option<Precision>,

    /// Casts by itself, products to this 16-bit type; parameters stay what they are [default: casts nothing]
    #[arg(long)]
    autocast: Option<Sixteen>,

    /// What every rank computes on: host, test, cuda or emulated-cuda; the last two need the feature of that name
    #[arg(long, default_value_t = DeviceKind::Host)]
    pub(crate) device: DeviceKind,

    /// What moves elements between ranks; nccl needs the feature of that name, and GPUs
    #[arg(long, value_enum, default_value_t = Mover::Own)]
    backend: Mover,

    /// Where the loss curve, the picture and the weights go
    #[arg(long, value_name = "DIR", default_value = "target/downscale")]
    pub(crate) out: PathBuf,

    /// Trains on one rank too, in f64 and f32, and fails unless the f64 weights and losses agree
    #[arg(long)]
    pub(crate) verify: bool,

    /// Fails unless the trained model beats bilinear interpolation clearly on every level
    #[arg(long)]
    pub(crate) check: bool,

    /// Measures the last step, op by op, and writes profile.json, which ui.perfetto.dev shows
    #[arg(long)]
    pub(crate) profile: bool,

    /// Where uk_hires_theta.npy and uk_hires_altitude.npy are
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data"))]
    pub(crate) data: PathBuf,
}

impl Args {
    /// How long to train.
    pub(crate) fn steps(&self) -> usize {
        self.steps.unwrap_or(if self.verify { 20 } else { 200 }) as usize
    }

    /// How many hours a step learns from, of so many.
    pub(crate) fn batch(&self, hours: usize) -> usize {
        self.batch.map_or(hours, |batch| hours.min(batch as usize))
    }

    /// By what.
    pub(crate) fn backend(&self) -> Backend {
        match self.backend {
            Mover::Own => Backend::Own,
            Mover::Nccl => Backend::Nccl,
        }
    }

    /// In which type products are, if the program casts by itself; `f32` if not.
    pub(crate) fn autocast(&self) -> DType {
        match self.autocast {
            Some(Sixteen::Bf16) => DType::BF16,
            Some(Sixteen::F16) => DType::F16,
            None => DType::F32,
        }
    }

    /// In which type.
    pub(crate) fn dtype(&self) -> DType {
        match (self.dtype, self.verify) {
            (Some(Precision::F64), _) | (None, true) => DType::F64,
            (Some(Precision::F32), _) | (None, false) => DType::F32,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mover {
    /// What joins ranks anyway: memory of threads, or MPI.
    Own,
    /// NVIDIA's NCCL.
    Nccl,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Precision {
    F32,
    F64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sixteen {
    Bf16,
    F16,
}

/// Ranks along the rows and, where there are two numbers, along the columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeshShape(pub(crate) Vec<usize>);

impl MeshShape {
    /// More threads than this are taken for a slip of the finger.
    const MOST: usize = 256;

    /// How many ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.0.iter().product()
    }
}

impl FromStr for MeshShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let axes: Option<Vec<usize>> = text.split('x').map(|n| n.parse().ok()).collect();
        match axes {
            Some(axes)
                if axes.len() <= 2
                    && axes.iter().all(|&n| (1..=Self::MOST).contains(&n))
                    && axes.iter().product::<usize>() <= Self::MOST =>
            {
                Ok(Self(axes))
            }
            _ => Err(format!(
                "expected one or two numbers from 1 on, at most {} ranks, as 4 or 2x2",
                Self::MOST
            )),
        }
    }
}

impl fmt::Display for MeshShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&axes.join("x"))
    }
}

/// How extents are divided over the axes of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// Sizes differ by at most one.
    Even,
    /// Each part is 38/62 as large as the one before: 62 % and 38 % for two.
    Uneven,
    /// These sizes along each axis.
    Sizes(Vec<Vec<usize>>),
}

impl Split {
    /// Why this cannot divide `extents` over a mesh, in words for a user; `None` if it can.
    pub(crate) fn objection(&self, mesh: &MeshShape, extents: [usize; 2]) -> Option<String> {
        let Self::Sizes(axes) = self else { return None };
        if axes.len() != mesh.0.len() {
            return Some(format!(
                "--split lists sizes for {} mesh axes, --mesh {mesh} has {}",
                axes.len(),
                mesh.0.len()
            ));
        }
        let dims = ["rows", "columns"].into_iter().zip(extents);
        for ((sizes, &ranks), (name, extent)) in axes.iter().zip(&mesh.0).zip(dims) {
            if sizes.len() != ranks {
                return Some(format!(
                    "--split gives {} parts of the {name}, --mesh {mesh} has {ranks} ranks along them",
                    sizes.len()
                ));
            }
            let sum = sizes.iter().try_fold(0usize, |a, &n| a.checked_add(n));
            if sum != Some(extent) {
                return Some(format!(
                    "--split divides {} {name}, the field has {extent}",
                    sum.map_or("too many".to_owned(), |n| n.to_string())
                ));
            }
        }
        None
    }
}

impl FromStr for Split {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "even" => return Ok(Self::Even),
            "uneven" => return Ok(Self::Uneven),
            _ => {}
        }
        let axis = |sizes: &str| sizes.split(',').map(|n| n.parse().ok()).collect();
        let axes: Option<Vec<Vec<usize>>> = text.split('/').map(axis).collect();
        axes.map(Self::Sizes)
            .ok_or_else(|| "expected even, uneven, or sizes as 126,78/116,71".to_owned())
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even => f.write_str("even"),
            Self::Uneven => f.write_str("uneven"),
            Self::Sizes(axes) => {
                let axes: Vec<String> = axes
                    .iter()
                    .map(|sizes| {
                        sizes
                            .iter()
                            .map(usize::to_string)
                            .collect::<Vec<_>>()
                            .join(",")
                    })
                    .collect();
                f.write_str(&axes.join("/"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::try_parse_from([&["downscale"], args].concat()).map_err(|e| e.to_string())
    }

    #[test]
    fn verification_changes_the_defaults_and_nothing_else() {
        let plain = parse(&[]).unwrap();
        assert_eq!((plain.steps(), plain.dtype()), (200, DType::F32));
        assert_eq!((plain.mesh.0, plain.split), (vec![2, 2], Split::Uneven));
        let verify = parse(&["--verify"]).unwrap();
        assert_eq!((verify.steps(), verify.dtype()), (20, DType::F64));
        let told = parse(&["--verify", "--steps", "3", "--dtype", "f32"]).unwrap();
        assert_eq!((told.steps(), told.dtype()), (3, DType::F32));
    }

    #[test]
    fn meshes_and_splits_print_as_they_are_written() {
        for text in ["4", "2x2", "3x2", "1x1"] {
            assert_eq!(text.parse::<MeshShape>().unwrap().to_string(), text);
        }
        for text in ["even", "uneven", "126,78/116,71", "204,0"] {
            assert_eq!(text.parse::<Split>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let bad: [&[&str]; 12] = [
            &["--verify", "--resume"],
            &["--batch", "0"],
            &["--device", "gpu"],
            &["--mesh", "0"],
            &["--mesh", "2x"],
            &["--mesh", "2x2x2"],
            &["--mesh", "1000"],
            &["--mesh", "99999999999999999999"],
            &["--split", "odd"],
            &["--split", "1,,2"],
            &["--steps", "0"],
            &["--dtype", "f16"],
        ];
        for args in bad {
            assert!(parse(args).is_err(), "{args:?} was accepted");
        }
    }

    #[test]
    fn explicit_sizes_must_fit_mesh_and_field() {
        let objection = |mesh: &str, split: &str| {
            let (mesh, split) = (mesh.parse().unwrap(), split.parse::<Split>().unwrap());
            split.objection(&mesh, [204, 187])
        };
        assert_eq!(objection("2x2", "126,78/116,71"), None);
        assert_eq!(objection("2", "204,0"), None);
        assert_eq!(objection("7x9", "uneven"), None);
        for (mesh, split, says) in [
            ("2x2", "126,78", "1 mesh axes"),
            ("3x2", "126,78/116,71", "3 ranks"),
            ("2x2", "126,77/116,71", "203 rows"),
            ("2x2", "126,78/116,72", "188 columns"),
            ("2", "18446744073709551615,205", "too many rows"),
        ] {
            let text = objection(mesh, split).unwrap();
            assert!(text.contains(says), "{text}");
        }
    }
}

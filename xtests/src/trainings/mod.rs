//! Trainings, drawn: models of any layers, placed anyhow, trained in all the ways there are, put down and taken up again on other
//! meshes, take the course of one rank.
//!
//! A [`TrainingRun`] is a model of [layers](LayerKind), whose parameters and buffers lie in any layouts or are fully sharded, a loader of
//! samples in any placements, optimizers, and what happens in turn: [steps](Event), of several parts of a batch or of one, with gradients
//! that are limited; parameters that are frozen and thawed; looks at what the model computes when it does not train. Between its
//! [stays](Stay) all is saved, and taken up on another mesh in other layouts. Losses, norms, weights, buffers and means are compared.

mod layers;
mod model;
mod optimizers;
mod run;

use crate::programs::{Computed, Slip};
use crate::strategies::mesh_shape;
use proptest::collection::vec;
use proptest::prelude::*;
use shard_redistribute::MeshComm;
use shard_tensor::Result;
use std::fmt;
use std::path::Path;
use std::rc::Rc;

pub use self::layers::LayerKind;

/// A model, and how it is trained.
#[derive(Clone, Debug)]
pub struct TrainingRun {
    /// What a sample is.
    pub samples: Samples,
    /// Layers, one behind the other.
    pub layers: Vec<Placed>,
    /// Where it trains, one after the other.
    pub stays: Vec<Stay>,
    /// Fixes sizes, data, options and which optimizer it is.
    pub seed: u64,
}

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Numbers of words, that an embedding has vectors of.
    Words,
    /// Vectors of features, one after the other.
    Sequences,
    /// Channels of images.
    Fields,
}

/// A layer of a model.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Which.
    pub layer: &'static LayerKind,
    /// Fixes its options.
    pub seed: u64,
    /// Whether it is added to what it is given, where both are of one shape.
    pub residual: bool,
    /// Whether the backward pass runs it again.
    pub again: bool,
}

/// A mesh on which a training stays for a while.
#[derive(Clone, Debug)]
pub struct Stay {
    /// Extents of the mesh.
    pub mesh: Vec<usize>,
    /// How the model lies there.
    pub lies: Lies,
    /// Fixes layouts, and how large messages are.
    pub seed: u64,
    /// What happens there.
    pub events: Vec<Event>,
}

/// How parameters lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// Each in a layout of its own.
    Anyhow,
    /// Over the first axis they are fully sharded, over others as they may.
    FullySharded,
    /// Every rank has all of them.
    Copied,
    /// Those of the first layers each in a layout of its own on the first half of the ranks, those of the rest on the others.
    Staged,
}

/// What happens in a training.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step: the gradients of so many batches, limited or not.
    Step(usize, u64),
    /// Some parameters are frozen, others thawed.
    Freeze(u64),
    /// The model computes without training, by its own weights and by their means.
    Look,
    /// It goes on with a copy of the model and of its optimizers.
    Copy,
}

impl fmt::Debug for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Trainings on meshes of at most so many ranks.
pub fn trainings(ranks: usize) -> impl Strategy<Value = TrainingRun> {
    let samples = prop_oneof![
        1 => Just(Samples::Words),
        2 => Just(Samples::Sequences),
        2 => Just(Samples::Fields),
    ];
    samples.prop_flat_map(move |samples| {
        let layer = (
            proptest::sample::select(layers::of(samples)),
            any::<u64>(),
            any::<bool>(),
            proptest::bool::weighted(0.2),
        );
        let layer = layer.prop_map(|(layer, seed, residual, again)| Placed {
            layer,
            seed,
            residual,
            again,
        });
        (vec(layer, 1..5), vec(stay(ranks), 1..4), any::<u64>()).prop_map(
            move |(layers, stays, seed)| TrainingRun {
                samples,
                layers,
                stays,
                seed,
            },
        )
    })
}

fn stay(ranks: usize) -> impl Strategy<Value = Stay> {
    let lies = prop_oneof![
        3 => Just(Lies::Anyhow),
        2 => Just(Lies::FullySharded),
        1 => Just(Lies::Copied),
        1 => Just(Lies::Staged),
    ];
    (mesh_shape(ranks), lies, any::<u64>(), vec(event(), 1..4)).prop_map(
        |(mesh, lies, seed, events)| Stay {
            mesh,
            lies,
            seed,
            events,
        },
    )
}

/// What trainings are made of.
pub fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_usize..4, any::<u64>()).prop_map(|(parts, seed)| Event::Step(parts, seed)),
        1 => any::<u64>().prop_map(Event::Freeze),
        1 => Just(Event::Look),
        1 => Just(Event::Copy),
    ]
}

impl TrainingRun {
    /// The same on one rank.
    pub fn alone(&self) -> Self {
        let mut alone = self.clone();
        for stay in &mut alone.stays {
            stay.mesh.fill(1);
        }
        alone
    }

    /// Runs one of its stays on this rank of the stay's mesh: takes up what is in the file, but in the first, and saves there.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// Of what a step does.
    pub fn run(&self, stay: usize, cx: &Rc<MeshComm>, file: &Path) -> Result<Computed> {
        self.run_with(stay, cx, file, None)
    }

    /// As [`run`](Self::run), where one rank may do something else, in one of what happens or, at the first step, before it.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Errors
    /// As [`run`](Self::run), and what ranks hear of the one that slips.
    pub fn run_with(
        &self,
        stay: usize,
        cx: &Rc<MeshComm>,
        file: &Path,
        slip: Option<&Slip<Event>>,
    ) -> Result<Computed> {
        run::stay(self, stay, cx, file, slip)
    }
}

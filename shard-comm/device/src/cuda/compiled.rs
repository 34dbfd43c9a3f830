//! Kernels that were compiled in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::KernelSource;
use super::driver::{Answer, Function};

/// Kernels by GPU, source, definitions and name, each with the context it was loaded into. A context ends when its last holder
/// lets go of it, and its kernels end with it. Programs keep their kernels, so a context with kernels is held here and never
/// ends.
#[derive(Debug)]
pub(super) struct Compiled<C>(Mutex<HashMap<Key, (Arc<C>, Function)>>);

type Key = (usize, &'static str, String, String);

impl<C> Default for Compiled<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C> Compiled<C> {
    /// The kernel of a GPU. The first request for it loads it into this context.
    pub(super) fn get(
        &self,
        (gpu, context): (usize, &Arc<C>),
        source: &KernelSource,
        defines: &str,
        name: &str,
        load: impl FnOnce() -> Answer<usize>,
    ) -> Answer<Function> {
        let key = (gpu, source.name, defines.to_owned(), name.to_owned());
        let mut compiled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, function)) = compiled.get(&key) {
            return Ok(*function);
        }
        let function = Function { handle: load()? };
        compiled.insert(key, (Arc::clone(context), function));
        Ok(function)
    }
}

//! Kernels that were compiled in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::KernelSource;
use super::driver::{Answer, Function};

/// Kernels by GPU, source, definitions and name, each with the context it was loaded into. A context ends when its last holder
/// lets go of it, and its kernels end with it. Programs keep their kernels, so a context with kernels is held here and never
/// ends.
///
/// A source with definitions in front is compiled once, for all of its kernels. Threads that ask for another one meanwhile do not
/// wait for it: compilers work side by side.
#[derive(Debug)]
pub(super) struct Compiled<C, M>(Mutex<HashMap<Source, Modules<C, M>>>);

/// A GPU, and the name of a source.
type Source = (usize, &'static str);
/// By what is defined in front of the source.
type Modules<C, M> = HashMap<String, Arc<Mutex<Module<C, M>>>>;

/// What a compiler made of a text.
#[derive(Debug)]
struct Module<C, M> {
    /// None before it was loaded, or if that failed.
    loaded: Option<(Arc<C>, M)>,
    functions: HashMap<String, Function>,
}

impl<C, M> Default for Compiled<C, M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C, M: Copy> Compiled<C, M> {
    /// The kernel of a GPU. The first request for one of the text's kernels loads all of them into this context.
    pub(super) fn get(
        &self,
        gpu: (usize, &Arc<C>),
        source: &KernelSource,
        defines: &str,
        name: &str,
        load: impl FnOnce() -> Answer<M>,
        find: impl FnOnce(M) -> Answer<usize>,
    ) -> Answer<Function> {
        let module = self.module((gpu.0, source.name), defines);
        let mut module = lock(&module);
        if let Some(function) = module.functions.get(name) {
            return Ok(*function);
        }
        let loaded = match &module.loaded {
            Some((_, loaded)) => *loaded,
            None => {
                let loaded = load()?;
                module.loaded = Some((Arc::clone(gpu.1), loaded));
                loaded
            }
        };
        let function = Function {
            handle: find(loaded)?,
        };
        module.functions.insert(name.to_owned(), function);
        Ok(function)
    }

    fn module(&self, source: Source, defines: &str) -> Arc<Mutex<Module<C, M>>> {
        let mut modules = lock(&self.0);
        let modules = modules.entry(source).or_default();
        if let Some(module) = modules.get(defines) {
            return Arc::clone(module);
        }
        let module = Arc::new(Mutex::new(Module {
            loaded: None,
            functions: HashMap::new(),
        }));
        modules.insert(defines.to_owned(), Arc::clone(&module));
        module
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Longer texts.

#[doc = include_str!("../docs/cluster.md")]
pub mod cluster {}

#[doc = include_str!("../docs/scaling.md")]
pub mod scaling {}

#[cfg(any(not(doctest), feature = "proptest"))]
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

/// Pages for readers of the repository, whose programs are run as tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/from-pytorch.md")]
    struct FromPyTorch;

    #[doc = include_str!("../docs/layouts.md")]
    struct Layouts;

    #[doc = include_str!("../docs/parallel.md")]
    struct Parallel;

    #[doc = include_str!("../docs/profiling.md")]
    struct Profiling;

    #[doc = include_str!("../docs/recipes.md")]
    struct Recipes;

    #[doc = include_str!("../docs/training.md")]
    struct Training;
}

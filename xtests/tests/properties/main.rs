//! What holds for any mesh, layout and rank count, on random ones, and what a rank receives and holds; the listed cases of the
//! anchors. `cargo test -p xtests --test properties`, and on processes as [`xtests::properties`](mod@xtests::properties) says.
//!
//! On processes all of them run, with every mesh that the processes are enough for. What tests say about larger ones, and about
//! memory the host cannot read ([`On::TestDevice`](xtests::harness::On)), is found on threads of the first process.

mod any_arguments;
mod attention_ways;
mod extreme_arguments;
mod folds;
mod graphs;
mod membership;
mod neighborhoods;
mod ops;
mod points;
mod programs;
mod redistribute;
mod rules;
mod sixteen_bits;
mod trainings;
mod way_costs;

fn main() -> std::process::ExitCode {
    xtests::properties::main(&[
        ("any_arguments", any_arguments::ALL),
        ("attention_ways", attention_ways::ALL),
        ("extreme_arguments", extreme_arguments::ALL),
        ("folds", folds::ALL),
        ("graphs", graphs::ALL),
        ("membership", membership::ALL),
        ("neighborhoods", neighborhoods::ALL),
        ("ops", ops::ALL),
        ("points", points::ALL),
        ("programs", programs::ALL),
        ("trainings", trainings::ALL),
        ("redistribute", redistribute::ALL),
        ("rules", rules::ALL),
        ("sixteen_bits", sixteen_bits::ALL),
        ("way_costs", way_costs::ALL),
    ])
}

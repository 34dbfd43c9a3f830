#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use xtests::parsers::NPY;

fuzz_target!(|data: &[u8]| (NPY.read)(data));
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let anew = NPY.begin_anew(&mut data[..max_size], seed);
    anew.unwrap_or_else(|| fuzzer_mutate(data, size, max_size))
});

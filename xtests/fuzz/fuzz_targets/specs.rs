#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xtests::parsers::specs(data));

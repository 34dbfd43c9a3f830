//! For which instruction sets loops are compiled.
//!
//! With the feature `x86-v4` each loop is compiled for AVX-512 too, which is a quarter of what there is to compile. In builds that are little
//! optimised, as tests are, nobody waits for those loops: processors with AVX-512 run the ones for AVX2 there. With the variable
//! `SHARD_X86_V4=always` they are compiled at any level, so that they can be tested; in builds that are little optimised in place of those for
//! AVX2, which a processor with AVX-512 would not run. The units for products of `bf16` that such processors may
//! have go with them: vectors of pairs (`pairs`), and tiles (`amx`) on the system that is known to grant them.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SHARD_X86_V4");
    println!("cargo::rustc-check-cfg=cfg(up_to_avx2)");
    println!("cargo::rustc-check-cfg=cfg(without_avx2)");
    println!("cargo::rustc-check-cfg=cfg(amx)");
    println!("cargo::rustc-check-cfg=cfg(pairs)");
    let little = var("OPT_LEVEL").is_ok_and(|level| matches!(&*level, "0" | "1"));
    let always = var("SHARD_X86_V4").is_ok_and(|value| value == "always");
    let has = |what: &str| var(what).is_ok();
    let both = has("CARGO_FEATURE_X86_V4")
        && var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if both && little && !always {
        println!("cargo::rustc-cfg=up_to_avx2");
    } else if both {
        if little {
            println!("cargo::rustc-cfg=without_avx2");
        }
        println!("cargo::rustc-cfg=pairs");
        if var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
            println!("cargo::rustc-cfg=amx");
        }
    }
}

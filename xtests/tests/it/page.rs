//! The page of ops is what the rules say.

use std::path::Path;
use xtests::page::page;

#[test]
fn the_page_of_ops_is_what_the_rules_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shard-tensor/docs/placements.md");
    let made = page();
    if std::env::var_os("SHARD_PAGES").is_some_and(|what| what == "write") {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    let differs = made.lines().zip(kept.lines()).find(|(a, b)| a != b);
    assert!(
        made == kept,
        "the page is not what the rules say, such as {differs:?}: `SHARD_PAGES=write cargo test -p xtests --test it page`"
    );
    let headings: Vec<Vec<&str>> = (made.lines())
        .filter_map(|line| line.strip_prefix("## "))
        .map(|names| names.split(", ").collect())
        .collect();
    // Other names of ops that are there, and such of the reference cases for several.
    let also = [
        "chunk_short",
        "flatten_all",
        "floor_divide",
        "norm0",
        "norm1",
        "norm2",
        "norm3",
        "reshape_merge",
        "reshape_split",
        "upsample",
        "vector_norm",
    ];
    let listed = |op: &&str| headings.iter().any(|names| names.contains(op));
    let is_word = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let missing: Vec<&str> = (xtests::dispatch::names())
        .filter(|op| is_word(op) && !also.contains(op) && !listed(op))
        .collect();
    assert!(missing.is_empty(), "no case applies {missing:?}");
    assert!(listed(&"softplus"));
}

//! Who owns what: layouts as pictures, nested shards, and the halo of a convolution.
//!
//! ```text
//! cargo run -p shard-spec --example who_owns_what
//! ```

use shard_spec::{DeviceMesh, DimMap, EdgeMap, Layout, Result, Window, overlaps};

fn main() -> Result<()> {
    let mesh = DeviceMesh::new(&[2, 2])?;
    let shape = [6, 16];
    println!(
        "6 rows and 16 columns on {mesh}. A letter is a rank; it is small where others hold copies.\n"
    );
    for text in [
        "S(0) S(1)",
        "S(0)[4,2] R",
        "S(0)[3,1,0,2] S(0)",
        "S(1;1,0) S(1)",
        "R S(1)[0:3,1:10,0:3]",
    ] {
        let layout = Layout::parse(&mesh, &shape, text)?;
        println!("{layout}");
        draw(&layout);
    }
    halo()
}

/// Writes the first rank that holds each element, in small letters where it is not the only one.
fn draw(layout: &Layout) {
    for row in 0..layout.shape()[0] {
        let line: String = (0..layout.shape()[1])
            .map(|column| letter(&holders(layout, [row, column])))
            .collect();
        println!("    {line}");
    }
    println!();
}

fn holders(layout: &Layout, index: [usize; 2]) -> Vec<usize> {
    let holds = |&rank: &usize| {
        let parts = layout.local_parts(rank).unwrap_or_default();
        parts
            .iter()
            .zip(index)
            .all(|(part, i)| part.position(i).is_some())
    };
    layout
        .mesh()
        .ranks()
        .iter()
        .copied()
        .filter(holds)
        .collect()
}

fn letter(ranks: &[usize]) -> char {
    match ranks {
        [] => ' ',
        [rank] => char::from(b'A' + *rank as u8),
        [first, ..] => char::from(b'a' + *first as u8),
    }
}

/// The rows that each rank needs for a convolution, and from whom they come.
fn halo() -> Result<()> {
    let mesh = DeviceMesh::new(&[4])?;
    let layout = Layout::parse(&mesh, &[10], "S(0)[5,1,0,4]")?;
    let Some(rows) = layout.sharding(0).map(|s| &s.partition) else {
        return Ok(());
    };
    // Five wide, padded by two on both sides, so that rows stay where they are.
    let window = Window::conv(5, 1, 1, 2, 2)?;
    let padded = DimMap::pad(10, 2, 2, EdgeMap::Zeros)?;
    println!("A convolution of width 5 over rows {rows}:");
    for (rank, own) in (0..4).filter_map(|rank| Some((rank, rows.part(rank).interval()?))) {
        if own.is_empty() {
            println!("    rank {rank} owns nothing and needs nothing");
            continue;
        }
        let needed = window.input_interval(10, own.clone());
        // In padded rows, of which the first two lie before the tensor.
        let span = (needed.start + 2) as usize..(needed.end + 2) as usize;
        let pieces = overlaps(rows, &padded, span);
        let from: Vec<String> = (pieces.iter())
            .map(|p| format!("{} of rank {}", p.len, p.src_part))
            .collect();
        println!(
            "    rank {rank} owns {own:?}, needs {needed:?}: {}",
            from.join(", ")
        );
    }
    Ok(())
}

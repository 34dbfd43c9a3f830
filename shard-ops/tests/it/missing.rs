//! What the busiest rank receives in a move, found without asking all ranks.

use proptest::prelude::*;
use shard_ops::inside::most_received;
use shard_spec::{DeviceMesh, Layout};

/// What the sum over all ranks says.
fn by_asking_all(from: &Layout, to: &Layout) -> usize {
    let mesh = from.mesh();
    let of = |index| {
        let coords = mesh.coords_at(index);
        let (mut wanted, mut owned) = (1, 1);
        for d in 0..to.ndim() {
            let want = to.part(d, mesh.part_at(to.axis_order(d), &coords));
            let have = from.part(d, mesh.part_at(from.axis_order(d), &coords));
            wanted *= want.len();
            owned *= want.common(&have);
        }
        wanted - owned
    };
    (0..mesh.size()).map(of).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn the_busiest_rank_is_found_without_asking_all(
        mesh in prop::collection::vec(1_usize..4, 1..4),
        shape in prop::collection::vec(0_usize..9, 1..4),
        picks in prop::collection::vec(0_usize..5, 8),
    ) {
        let mesh = DeviceMesh::new(&mesh).unwrap();
        let layout = |picks: &[usize]| {
            let placement = |a: usize| match picks[a] {
                d if d < shape.len() => format!("S({d})"),
                _ => "R".to_owned(),
            };
            let text: Vec<_> = (0..mesh.ndim()).map(placement).collect();
            Layout::parse(&mesh, &shape, &text.join(" ")).unwrap()
        };
        let (from, to) = (layout(&picks[..4]), layout(&picks[4..]));
        prop_assert_eq!(most_received(&from, &to), by_asking_all(&from, &to));
    }
}

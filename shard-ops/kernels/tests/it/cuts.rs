use shard_kernels::cuts::*;

/// Runs of these sorted numbers, cut by rounds of a few places, beside what counting finds.
fn check(runs: &[Vec<u64>], most: usize) {
    let all: usize = runs.iter().map(Vec::len).sum();
    let mut order: Vec<(u64, usize, usize)> = (runs.iter().enumerate())
        .flat_map(|(r, run)| run.iter().enumerate().map(move |(i, &x)| (x, r, i)))
        .collect();
    order.sort_unstable();
    for count in (0..=all).step_by((all / 37).max(1)).chain([all]) {
        let expected: Vec<usize> = (0..runs.len())
            .map(|r| order[..count].iter().filter(|e| e.1 == r).count())
            .collect();
        let mut brackets: Vec<Bracket> = runs.iter().map(|run| (0, run.len())).collect();
        for _ in 0..rounds(all, most) {
            let mut ranks = vec![u64::MAX; runs.len() * most];
            for (r, &bracket) in brackets.iter().enumerate() {
                for (to, at) in ranks[r * most..].iter_mut().zip(places(bracket, most)) {
                    *to = runs[r][at];
                }
            }
            narrow(&mut brackets, &ranks, most, count);
        }
        let found: Vec<Bracket> = expected.iter().map(|&n| (n, n)).collect();
        assert_eq!(brackets, found, "{count} of {all} in {} runs", runs.len());
    }
}

#[test]
fn as_many_rounds_as_are_promised_find_every_cut() {
    let run = |len: usize, of: &dyn Fn(usize) -> u64| {
        let mut run: Vec<u64> = (0..len).map(of).collect();
        run.sort_unstable();
        run
    };
    let mixed = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    for most in [6, 11, 31] {
        // Spread, all equal, in blocks one behind the other, in reverse, very uneven, with gaps of every size.
        check(
            &[
                run(1000, &mixed),
                run(1700, &|i| mixed(i + 5)),
                run(3, &mixed),
            ],
            most,
        );
        check(&[vec![5; 700], vec![], vec![5; 1], vec![5; 900]], most);
        check(&[vec![0; 9], vec![u64::MAX; 700], vec![u64::MAX; 20]], most);
        check(
            &(0..4)
                .map(|r| run(500, &|i| (500 * r + i) as u64))
                .collect::<Vec<_>>(),
            most,
        );
        check(
            &(0..4)
                .map(|r| run(500, &|i| (500 * (4 - r) + i) as u64))
                .collect::<Vec<_>>(),
            most,
        );
        check(
            &[
                run(4000, &mixed),
                run(1, &mixed),
                vec![],
                run(2, &|_| 1 << 40),
            ],
            most,
        );
        check(
            &[run(900, &|i| 1 << (i % 60)), run(1100, &|i| 3 << (i % 50))],
            most,
        );
        check(&[], most);
    }
}

#[test]
fn places_lie_within_their_bracket_and_leave_equal_gaps() {
    for len in 0..200 {
        for most in 1..40 {
            let at: Vec<usize> = places((7, 7 + len), most).collect();
            assert_eq!(at.len(), len.min(most));
            let ends = [6].into_iter().chain(at.iter().copied());
            let gaps = ends
                .zip(at.iter().copied().chain([7 + len]))
                .map(|(a, b)| b - a - 1);
            assert!(gaps.max().unwrap_or(0) <= len / (most + 1), "{len} {most}");
        }
    }
}

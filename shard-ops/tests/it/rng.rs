//! Random numbers that do not depend on which rank draws them.

use shard_comm::{Communicator, DType, local};
use shard_ops::random::{Distribution, random};
use shard_ops::rng::{Stream, philox4x32};
use shard_redistribute::MeshComm;
use shard_spec::{DeviceMesh, Layout};
use std::rc::Rc;

/// The known-answer vectors of Random123 (`kat_vectors`, philox 4 32 10).
#[test]
fn philox_gives_the_published_vectors() {
    assert_eq!(
        philox4x32([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox4x32([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    assert_eq!(
        philox4x32(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0]
        ),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn uniform_and_normal_have_their_moments() {
    let stream = Stream::new(7, 3);
    let n = 100_000u64;
    let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
    // The tolerance is five standard errors.
    assert!(
        (mean(&|i| stream.uniform_f64(i)) - 0.5).abs() < 5.0 * (1.0 / 12.0_f64 / n as f64).sqrt()
    );
    assert!(mean(&|i| stream.normal(i)).abs() < 5.0 / (n as f64).sqrt());
    assert!((mean(&|i| stream.normal(i).powi(2)) - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt());
    assert!((mean(&|i| stream.normal(i).powi(4)) - 3.0).abs() < 5.0 * (96.0 / n as f64).sqrt());
}

#[test]
fn single_precision_is_the_same_number_cut() {
    let stream = Stream::new(1, 2);
    for i in 0..1000 {
        let (wide, cut) = (stream.uniform_f64(i), f64::from(stream.uniform_f32(i)));
        assert!((0.0..1.0).contains(&wide) && cut <= wide && wide - cut < 1.0 / 16_777_216.0);
    }
}

#[test]
fn calls_seeds_and_indices_give_other_numbers() {
    let base = Stream::new(1, 1).uniform_f64(0);
    for other in [
        Stream::new(1, 1).uniform_f64(1),
        Stream::new(1, 2).uniform_f64(0),
        Stream::new(2, 1).uniform_f64(0),
    ] {
        assert_ne!(base, other);
    }
}

/// Pieces of arrays beside numbers drawn one by one: runs longer and shorter than what is drawn together, side by side and with gaps.
#[test]
fn arrays_are_made_of_the_numbers_of_their_stream() {
    let cases = [
        ([3, 1300], "R"),
        ([3, 1300], "S(1)[1299,1]"),
        ([5, 7], "S(0)"),
        ([5, 70], "S(1)[69,1]"),
        ([900, 2], "S(1)"),
    ];
    for (shape, placement) in cases {
        let done = local::run(2, |comm| {
            let mesh = DeviceMesh::new(&[2]).unwrap();
            let world: Rc<dyn Communicator> = Rc::new(comm);
            let cx = MeshComm::new(&world, &mesh).unwrap();
            let layout = Layout::parse(&mesh, &shape, placement).unwrap();
            let parts = layout.local_parts(cx.rank()).unwrap();
            let mut places = Vec::new();
            for i in 0..parts[0].len() {
                for j in 0..parts[1].len() {
                    places.push((parts[0].index(i) * shape[1] + parts[1].index(j)) as u64);
                }
            }
            let stream = Stream::new(7, 9);
            let draw = |dtype, how| random(&cx, &layout, dtype, &stream, how).unwrap();
            let range = Distribution::Uniform {
                start: -3.0,
                width: 50.0,
            };
            let units = draw(DType::F32, Distribution::Unit)
                .to_vec::<f32>()
                .unwrap();
            let wide = draw(DType::F64, Distribution::Unit)
                .to_vec::<f64>()
                .unwrap();
            let normal = draw(DType::F64, Distribution::Normal)
                .to_vec::<f64>()
                .unwrap();
            let whole = draw(DType::I32, range).to_vec::<i32>().unwrap();
            assert_eq!(units.len(), places.len());
            for (k, &at) in places.iter().enumerate() {
                assert_eq!(units[k], stream.uniform_f32(at));
                assert_eq!(wide[k], stream.uniform_f64(at));
                assert_eq!(normal[k], stream.normal(at));
                assert_eq!(whole[k], (50.0 * stream.uniform_f64(at)) as i32 - 3);
            }
        });
        assert_eq!(done.unwrap().len(), 2);
    }
}

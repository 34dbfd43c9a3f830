//! Serde round trips; what is read is validated like anything a user gives.

use crate::common::layout;
use proptest::prelude::*;
use shard_spec::{DeviceMesh, DimMap, EdgeMap, IndexBox, Layout, Partition, ResampleMode, Window};

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn layouts_round_trip(layout in layout()) {
        let text = serde_json::to_string(&layout)?;
        let back: Layout = serde_json::from_str(&text)?;
        prop_assert_eq!(back.hash128(), layout.hash128());
        prop_assert_eq!(back, layout);
    }
}

#[test]
fn the_rest_round_trips() {
    let mesh = DeviceMesh::with_ranks(&[2, 1], vec![5, 3])
        .unwrap()
        .with_names(&["a", "b"])
        .unwrap();
    let text = serde_json::to_string(&mesh).unwrap();
    assert_eq!(text, r#"{"shape":[2,1],"ranks":[5,3],"names":["a","b"]}"#);
    assert_eq!(serde_json::from_str::<DeviceMesh>(&text).unwrap(), mesh);
    let map = DimMap::pad(4, 6, 3, EdgeMap::Circular).unwrap();
    assert_eq!(
        serde_json::from_value::<DimMap>(serde_json::to_value(&map).unwrap()).unwrap(),
        map
    );
    let whole = IndexBox::whole(&[2, 3]);
    assert_eq!(
        serde_json::from_value::<IndexBox>(serde_json::to_value(&whole).unwrap()).unwrap(),
        whole
    );
    for window in [
        Window::conv(3, 2, 1, 1, 0).unwrap(),
        Window::pool(3, 2, 1, 1, true).unwrap(),
        Window::pool(3, 2, 1, 1, false).unwrap(),
        Window::transposed(4, 3, 1, 1, 2, 1).unwrap(),
        Window::resample_by(5, 1.7, ResampleMode::Linear).unwrap(),
        Window::neighborhood(9, 3, 2, true).unwrap(),
    ] {
        let value = serde_json::to_value(&window).unwrap();
        assert_eq!(serde_json::from_value::<Window>(value).unwrap(), window);
    }
}

#[test]
fn what_is_read_is_validated() {
    let refused = |text: &str, why: &str| match serde_json::from_str::<Partition>(text) {
        Err(err) => assert!(err.to_string().contains(why), "{err}"),
        Ok(p) => panic!("{text} gave {p}"),
    };
    refused(r#"{"offsets":[0,3,2]}"#, "breaks the order");
    refused(r#"{"offsets":[]}"#, "at least two entries");
    let twice = serde_json::from_str::<DeviceMesh>(r#"{"shape":[2],"ranks":[1,1]}"#).unwrap_err();
    assert!(twice.to_string().contains("positions 0 and 1"), "{twice}");
    let off = r#"{"src_extent":3,"dst_extent":3,"runs":[{"dst_start":1,"src_start":0,"len":3,"dst_step":1,"src_step":1}]}"#;
    assert!(serde_json::from_str::<DimMap>(off).is_err());
    let flat = r#"{"conv":{"kernel":0,"stride":1,"dilation":1,"pad_lo":0,"pad_hi":0}}"#;
    assert!(serde_json::from_str::<Window>(flat).is_err());
    let layout = r#"{"mesh":{"shape":[2],"ranks":[0,1]},"shape":[4],"dims":[{"axes":[0],"partition":{"offsets":[0,1,3]}}]}"#;
    let err = serde_json::from_str::<Layout>(layout).unwrap_err();
    assert!(err.to_string().contains("sum to 4, got 3"), "{err}");
    // Sixteen million parts of nothing are refused before they are made.
    let many = r#"{"mesh":{"shape":[2],"ranks":[0,1]},"shape":[4],"dims":[{"axes":[0],"partition":{"segments":{"extent":4,"parts":16777216,"tiles":[[0,4]]}}}]}"#;
    let err = serde_json::from_str::<Layout>(many).unwrap_err();
    assert!(
        err.to_string().contains("expected 2 parts, got 16777216"),
        "{err}"
    );
}

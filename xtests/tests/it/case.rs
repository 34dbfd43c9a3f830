//! Cases in files, and their attributes.

use xtests::case::{Attributes, Case, CaseError, default_dir, load_dir};

#[test]
fn every_case_of_the_project_loads() {
    let cases = load_dir(&default_dir()).unwrap();
    assert_eq!(cases.len(), 258);
    for case in cases {
        let case = case.unwrap();
        assert!(!case.outputs.is_empty(), "{}", case.name);
        assert_eq!(
            case.gradients.is_empty(),
            case.cotangents.is_empty(),
            "{}",
            case.name
        );
    }
}

#[test]
fn malformed_files_are_errors() {
    let dir = std::env::temp_dir().join(format!("xtests-case-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let good = std::fs::read(default_dir().join("act_relu.json")).unwrap();
    let tensors = std::fs::read(default_dir().join("act_relu.safetensors")).unwrap();
    let json = dir.join("act_relu.json");
    let data = dir.join("act_relu.safetensors");
    let mut seen = Vec::new();
    for cut in (0..tensors.len()).step_by(97) {
        std::fs::write(&json, &good).unwrap();
        std::fs::write(&data, &tensors[..cut]).unwrap();
        seen.push(Case::load(&json).unwrap_err());
    }
    assert!(
        seen.iter().all(|e| matches!(e, CaseError::Tensors { .. })),
        "{seen:?}"
    );
    std::fs::write(&data, &tensors).unwrap();
    std::fs::write(&json, &good[..good.len() / 2]).unwrap();
    assert!(matches!(Case::load(&json), Err(CaseError::Json { .. })));
    let text = String::from_utf8(good).unwrap().replace("13", "14");
    std::fs::write(&json, text).unwrap();
    assert!(matches!(
        Case::load(&json),
        Err(CaseError::Inconsistent { .. })
    ));
    std::fs::remove_file(&data).unwrap();
    assert!(matches!(Case::load(&json), Err(CaseError::Io { .. })));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn attributes_check_their_kinds() {
    let map = serde_json::from_str(r#"{"k": [2, 3], "s": 2, "p": "same", "x": null}"#).unwrap();
    let a = Attributes(map);
    assert_eq!(a.spatial("k", 2, 1).unwrap(), [2, 3]);
    assert_eq!(a.spatial("s", 3, 1).unwrap(), [2, 2, 2]);
    assert_eq!(a.spatial("none", 1, 7).unwrap(), [7]);
    assert!(a.spatial("k", 3, 1).is_err());
    assert!(a.spatial("p", 3, 1).is_err());
    assert!(!a.has("x"));
    assert_eq!(a.ints("s").unwrap(), Some(vec![2]));
}

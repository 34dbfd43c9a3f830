//! Tests of the reader and the writer on bytes.

use ndarray::{Array, Array2, ArrayD, Dimension, Ix1, Ix2, Ix3, array};
use shard_comm::half::f16;
use shard_comm::{Bool, Element};
use shard_spec::{DimPart, Partition};
use shard_tensor::data::{DataError, Npy, Source, npy_bytes};

fn read<T: Element, D: Dimension>(bytes: &[u8]) -> Result<Array<T, D>, String> {
    let read = Npy::from_bytes(bytes).and_then(|npy| npy.to_array::<T, D>());
    read.map_err(|e: DataError| e.to_string())
}

/// A file of version 1 with this header.
fn file(header: &str, elements: &[u8]) -> Vec<u8> {
    let len = u16::try_from(header.len() + 1).unwrap().to_le_bytes();
    [
        b"\x93NUMPY\x01\x00",
        &len[..],
        header.as_bytes(),
        b"\n",
        elements,
    ]
    .concat()
}

fn of_type(descr: &str, fortran: bool, shape: &str, elements: &[u8]) -> Vec<u8> {
    let order = if fortran { "True" } else { "False" };
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}");
    file(&header, elements)
}

#[test]
fn what_was_written_is_read() {
    let rows = array![[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]];
    for array in [rows.clone(), rows.reversed_axes()] {
        let bytes = npy_bytes(&array).unwrap();
        assert_eq!(read::<f32, Ix2>(&bytes).unwrap(), array);
        assert!(
            read::<f32, Ix3>(&bytes)
                .unwrap_err()
                .contains("2 dims, where 3")
        );
        assert!(read::<f64, Ix2>(&bytes).unwrap_err().contains("f64"));
        let short = &bytes[..bytes.len() - 1];
        assert!(read::<f32, Ix2>(short).unwrap_err().contains("23 bytes"));
    }
    let none: Array2<f32> = read(&of_type("<f4", false, "(0, 7)", &[])).unwrap();
    assert_eq!(none.dim(), (0, 7));
    let one: ArrayD<f32> = read(&of_type("<f4", true, "()", &2.5_f32.to_le_bytes())).unwrap();
    assert_eq!(one.shape(), [0; 0]);
}

/// Written and read again.
fn again<T: Element + PartialEq + std::fmt::Debug>(elements: [T; 2]) {
    let row = Array2::from(vec![elements]);
    assert_eq!(read::<T, Ix2>(&npy_bytes(&row).unwrap()).unwrap(), row);
}

#[test]
fn all_types_are_read_as_they_were_written() {
    again([1.5_f64, f64::MIN_POSITIVE]);
    again([1.5_f32, -0.0]);
    again([f16::from_f32(1.5), f16::MAX]);
    again([i64::MIN, 7]);
    again([i32::MIN, 7]);
    again([0_u8, 255]);
    again([Bool::from(true), Bool::from(false)]);
    assert!(npy_bytes(&array![shard_comm::half::bf16::ONE]).is_err());
    // As other writers have them: the other order of bytes, true as 2.
    let row = |descr: &str, bytes: &[u8]| of_type(descr, false, "(1,)", bytes);
    assert_eq!(
        read::<i64, Ix1>(&row(">i8", &(-3_i64).to_be_bytes())).unwrap(),
        array![-3]
    );
    assert_eq!(
        read::<f32, Ix1>(&row(">f4", &2.5_f32.to_be_bytes())).unwrap(),
        array![2.5]
    );
    let truth = read::<Bool, Ix1>(&row("|b1", &[2])).unwrap();
    assert_eq!(bytemuck::bytes_of(&truth[0]), [1]);
    // Widened.
    assert_eq!(read::<i32, Ix1>(&row("|i1", &[255])).unwrap(), array![-1]);
    assert_eq!(
        read::<i32, Ix1>(&row(">i2", &[255, 254])).unwrap(),
        array![-2]
    );
    assert_eq!(
        read::<i32, Ix1>(&row("<u2", &[255, 255])).unwrap(),
        array![65535]
    );
    assert_eq!(
        read::<i64, Ix1>(&row("<u4", &[255; 4])).unwrap(),
        array![4_294_967_295]
    );
    assert_eq!(
        read::<i64, Ix1>(&row("<u8", &7_u64.to_le_bytes())).unwrap(),
        array![7]
    );
    let large = read::<i64, Ix1>(&row("<u8", &u64::MAX.to_le_bytes())).unwrap_err();
    assert!(large.contains("more than i64"), "{large}");
    for descr in ["<c8", "|O", "<U4", "=f4", "|f4", "f4", "", "é4", "<f4 "] {
        let refused = read::<f32, Ix1>(&row(descr, &[0; 4])).unwrap_err();
        assert!(
            refused.contains("header") || refused.contains("type"),
            "{refused}"
        );
    }
}

#[test]
fn any_box_is_read_in_either_order_of_elements() {
    let cube = Array::from_shape_fn((4, 5, 3), |(i, j, k)| (100 * i + 10 * j + k) as i32);
    let turned = Array::from_shape_fn((3, 5, 4), |(k, j, i)| cube[[i, j, k]]);
    let fortran = turned.t();
    let big: Vec<u8> = fortran.t().iter().flat_map(|n| n.to_be_bytes()).collect();
    let narrow: Vec<u8> = fortran
        .t()
        .iter()
        .flat_map(|n| (*n as u16).to_le_bytes())
        .collect();
    let files = [
        npy_bytes(&cube).unwrap(),
        npy_bytes(&fortran).unwrap(),
        of_type(">i4", true, "(4, 5, 3)", &big),
        of_type("<u2", true, "(4, 5, 3)", &narrow),
    ];
    let zigzag = Partition::zigzag(4, 2).part(0);
    let boxes: [[DimPart; 3]; 4] = [
        [(0..4).into(), (0..5).into(), (0..3).into()],
        [(1..3).into(), (2..5).into(), (1..2).into()],
        [zigzag, (0..1).into(), (0..3).into()],
        [(1..1).into(), (2..5).into(), (0..3).into()],
    ];
    for (i, file) in files.iter().enumerate() {
        let npy = Npy::from_bytes(&file[..]).unwrap();
        for held in &boxes {
            let expected: Vec<i32> = held[0]
                .indices()
                .flat_map(|i| held[1].indices().map(move |j| (i, j)))
                .flat_map(|(i, j)| held[2].indices().map(move |k| (i, j, k)))
                .map(|at| cube[at])
                .collect();
            let mut found = vec![0; expected.len()];
            npy.read(held, bytemuck::cast_slice_mut(&mut found))
                .unwrap();
            assert_eq!(found, expected, "file {i}, {held:?}");
        }
    }
}

#[test]
fn extents_beyond_memory_are_refused() {
    for shape in [
        "(9223372036854775807, 3)",
        "(0, 9223372036854775807, 9223372036854775807)",
        "(9223372036854775807, 0)",
        "(18446744073709551616,)",
    ] {
        let file = of_type("<f4", false, shape, &[]);
        assert!(read::<f32, Ix2>(&file).is_err(), "{shape}");
    }
}

#[test]
fn headers_of_other_writers_are_read() {
    for header in [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
        "{\"shape\":(1,),\"fortran_order\":True,\"descr\":\"<f4\"}",
        " {\t'fortran_order' : False , 'shape' : ( 1 , ) , 'descr' : '<f4' } ",
    ] {
        let one = read::<f32, Ix1>(&file(header, &2.5_f32.to_le_bytes()));
        assert_eq!(one.unwrap(), array![2.5], "{header}");
    }
}

#[test]
fn headers_that_are_not_of_an_array_are_refused() {
    let entries = "'descr': '<f4', 'fortran_order': False, 'shape': (0,)";
    for header in [
        String::new(),
        "{}".to_owned(),
        format!("{{{entries}"),
        format!("{{{entries}}} {{"),
        format!("{{{entries}, 'shape': (0,)}}"),
        format!("{{{entries}, 'more': (0,)}}"),
        entries.to_owned(),
        "{'descr': '<f4', 'fortran_order': False}".to_owned(),
        "{'descr': '<f4', 'fortran_order': Falsely, 'shape': (0,)}".to_owned(),
        "{'descr': '<f4, 'fortran_order': False, 'shape': (0,)}".to_owned(),
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (0,)}".to_owned(),
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,)}".to_owned(),
        "[".repeat(60),
        "(".repeat(9000),
        "{".repeat(40),
    ] {
        let refused = read::<f32, Ix1>(&file(&header, &[]));
        let refused = refused.unwrap_err();
        assert!(
            refused.contains("of the header is not"),
            "{header}: {refused}"
        );
    }
    for shape in [
        "0", "(0)", "(,)", "(0,,)", "(-0,)", "(0 0)", "(0,", "(0x0,)",
    ] {
        let refused = read::<f32, Ix1>(&of_type("<f4", false, shape, &[])).unwrap_err();
        assert!(
            refused.contains("of the header is not"),
            "{shape}: {refused}"
        );
    }
}

#[test]
fn headers_longer_than_the_file_or_than_any_are_refused() {
    // 4 GiB of header.
    let announced = b"\x93NUMPY\x03\x00\xff\xff\xff\xff{}";
    let long = file(&" ".repeat(10_000), &[]);
    for bytes in [announced.as_slice(), &long, &long[..50]] {
        let refused = read::<f32, Ix2>(bytes);
        assert!(refused.unwrap_err().contains("a header of"));
    }
    let other = read::<f32, Ix2>(b"\x93NUMPY\x04\x00").unwrap_err();
    assert!(other.contains("not a NumPy file"), "{other}");
}

//! Calls of NVIDIA's libraries, or of what plays them, against loops.

use half::{bf16, f16};
use proptest::prelude::*;
use shard_device::cuda::{
    Availability, ConvCall, ConvKind, Cuda, FourierKind, Library, availability, libraries,
};
use shard_device::{
    Buffer, BufferMut, DType, DeviceKind, DeviceRef, Element, MatmulPrecision, Scalar, Strided,
};

/// The emulation, with both kinds of its streams, and a GPU, each where it is available.
fn devices() -> Vec<DeviceRef> {
    let mut devices = Vec::new();
    #[cfg(feature = "cuda-emulated")]
    {
        let emulated = Cuda::emulated().unwrap();
        devices.push(Cuda::of(&*emulated).unwrap().sibling().unwrap());
        devices.push(emulated);
    }
    if matches!(availability(), Availability::Ready { .. }) {
        devices.push(Cuda::new(0).unwrap());
    }
    devices
}

/// How a view lies in memory: the order of its dims, and a gap after each.
#[derive(Clone, Debug)]
struct Lie {
    order: Vec<usize>,
    gaps: Vec<usize>,
    offset: usize,
}

impl Lie {
    fn any(ndim: usize, orders: impl Strategy<Value = Vec<usize>>) -> impl Strategy<Value = Self> {
        let gaps = prop_oneof![2 => Just(0), 1 => 0..3_usize];
        (orders, prop::collection::vec(gaps, ndim), 0..3_usize).prop_map(|(order, gaps, offset)| {
            Self {
                order,
                gaps,
                offset,
            }
        })
    }

    fn view(&self, shape: &[usize]) -> Strided {
        let mut strides = vec![0; shape.len()];
        let mut step = 1;
        for &d in self.order.iter().rev() {
            strides[d] = step as isize;
            step *= shape[d] + self.gaps[d];
        }
        Strided::new(self.offset, shape.into(), strides.into_iter().collect())
    }
}

/// Ones, zeros and minus ones: every sum of their products here is exact in every type.
fn numbers(view: &Strided, seed: u64) -> Vec<f64> {
    let end = view.end().unwrap() as u64;
    let mixed = |i: u64| (i + 97 * seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (0..end).map(|i| (mixed(i) % 3) as f64 - 1.0).collect()
}

/// Whether the device must take everything that its libraries' manuals allow; a real library may refuse some of it.
fn is_emulated(device: &DeviceRef) -> bool {
    device.kind() == DeviceKind::EmulatedCuda
}

fn at(view: &Strided, index: &[usize]) -> usize {
    let steps = index
        .iter()
        .zip(&view.strides)
        .map(|(&i, &s)| i as isize * s);
    view.offset + steps.sum::<isize>() as usize
}

/// All indices of a box.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &extent| {
        let longer = |one: Vec<usize>| {
            (0..extent).map(move |i| one.iter().copied().chain([i]).collect::<Vec<_>>())
        };
        all.into_iter().flat_map(longer).collect()
    })
}

fn upload(device: &DeviceRef, dtype: DType, numbers: &[f64]) -> Buffer {
    let all = Strided::contiguous(&[numbers.len()]);
    let doubles = device.upload_slice(numbers).unwrap();
    let mut typed = device.alloc(dtype, numbers.len()).unwrap();
    device.copy(&doubles, &all, &mut typed, &all).unwrap();
    typed.freeze()
}

/// The contents of a view after a call, in memory that was full of sevens before, and whether the call did anything.
fn written(
    device: &DeviceRef,
    dtype: DType,
    view: &Strided,
    call: impl FnOnce(&Cuda, &mut BufferMut) -> bool,
) -> (bool, Vec<f64>) {
    let len = view.end().unwrap();
    let all = Strided::contiguous(&[len]);
    let mut typed = device.alloc(dtype, len).unwrap();
    device.fill(&mut typed, &all, Scalar::F64(7.0)).unwrap();
    let did = call(Cuda::of(&**device).unwrap(), &mut typed);
    let mut doubles = device.alloc(DType::F64, len).unwrap();
    device
        .copy(&typed.freeze(), &all, &mut doubles, &all)
        .unwrap();
    (did, doubles.freeze().to_vec().unwrap())
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

#[derive(Clone, Debug)]
struct Product {
    batch: Vec<usize>,
    mnk: [usize; 3],
    lies: [Lie; 3],
    /// For either operand, whether it repeats along all batches.
    repeats: [bool; 2],
    bias: bool,
    dtype: DType,
}

fn products() -> impl Strategy<Value = Product> {
    (0..3_usize).prop_flat_map(|batches| {
        let nd = batches + 2;
        let plain: Vec<usize> = (0..nd).collect();
        let turned: Vec<usize> = (0..batches).chain([nd - 1, nd - 2]).collect();
        let either = prop_oneof![Just(plain.clone()), Just(turned)];
        (
            prop::collection::vec(1..4_usize, batches),
            prop::array::uniform3(1..6_usize),
            (
                Lie::any(nd, either.clone()),
                Lie::any(nd, either),
                Lie::any(nd, Just(plain)),
            ),
            any::<[bool; 2]>(),
            any::<bool>(),
            prop::sample::select(&FLOATS[..]),
        )
            .prop_map(|(batch, mnk, lies, repeats, bias, dtype)| Product {
                batch,
                mnk,
                lies: [lies.0, lies.1, lies.2],
                repeats,
                bias,
                dtype,
            })
    })
}

impl Product {
    fn view(&self, of: usize) -> Strided {
        let [m, n, k] = self.mnk;
        let matrix = [[m, k], [k, n], [m, n]][of];
        let shape: Vec<usize> = self.batch.iter().copied().chain(matrix).collect();
        let mut lie = self.lies[of].clone();
        // The contiguous dim of a matrix must stay contiguous.
        lie.gaps[*lie.order.last().unwrap()] = lie.gaps[*lie.order.last().unwrap()].min(1);
        let mut view = lie.view(&shape);
        if of < 2 && self.repeats[of] {
            view.strides[..self.batch.len()].fill(0);
        }
        view
    }

    fn expected(&self, data: [&[f64]; 3], views: [&Strided; 3], into: &mut [f64]) {
        let nd = self.batch.len();
        for index in indices(&views[2].shape) {
            let mut sum = if self.bias {
                data[2][index[nd + 1]]
            } else {
                0.0
            };
            for k in 0..self.mnk[2] {
                let (mut a, mut b) = (index.clone(), index.clone());
                (a[nd + 1], b[nd]) = (k, k);
                sum += data[0][at(views[0], &a)] * data[1][at(views[1], &b)];
            }
            into[at(views[2], &index)] = sum;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn products_are_those_of_loops(product in products()) {
        let [a, b, y] = [0, 1, 2].map(|of| product.view(of));
        let bias_view = Strided::contiguous(&[product.mnk[1]]);
        let (da, db, dbias) = (numbers(&a, 1), numbers(&b, 2), numbers(&bias_view, 3));
        let mut expected = vec![7.0; y.end().unwrap()];
        product.expected([&da, &db, &dbias], [&a, &b, &y], &mut expected);
        for device in devices() {
            let [x, w, v] = [&da, &db, &dbias].map(|data| upload(&device, product.dtype, data));
            let bias = product.bias.then_some((&v, &bias_view));
            let (did, found) = written(&device, product.dtype, &y, |gpu, into| {
                let full = MatmulPrecision::Full;
                gpu.matmul((&x, &a), (&w, &b), bias, (into, &y), full).unwrap()
            });
            // With one batch dim, or dense ones, there is always a regular step.
            let regular = product.batch.len() < 2;
            prop_assert!(did || !regular || !is_emulated(&device), "not taken");
            if did {
                prop_assert_eq!(&found, &expected);
            } else {
                prop_assert!(found.iter().all(|&x| x == 7.0));
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Meets {
    kind: ConvKind,
    batch: usize,
    groups: usize,
    /// Channels of one group: of the input and of the output.
    channels: [usize; 2],
    /// Per spatial dim: inputs, taps, outputs, stride, dilation, origin.
    dims: Vec<([usize; 5], isize)>,
    lies: [Lie; 3],
    dtype: DType,
}

fn convolutions() -> impl Strategy<Value = Meets> {
    const KINDS: [ConvKind; 3] = [ConvKind::Forward, ConvKind::InputGrad, ConvKind::WeightGrad];
    (1..4_usize).prop_flat_map(|spatial| {
        let nd = spatial + 2;
        let plain: Vec<usize> = (0..nd).collect();
        let lie = move || Lie::any(nd, Just(plain.clone()));
        let dim = (
            (1..6_usize, 1..4_usize, 1..5_usize, 1..4_usize, 1..3_usize),
            -4..3_isize,
        );
        let dim = dim.prop_map(|((a, b, c, d, e), origin)| ([a, b, c, d, e], origin));
        (
            prop::sample::select(&KINDS[..]),
            1..3_usize,
            1..3_usize,
            prop::array::uniform2(1..3_usize),
            prop::collection::vec(dim, spatial),
            [lie(), lie(), lie()],
            prop::sample::select(&FLOATS[..]),
        )
            .prop_map(|(kind, batch, groups, channels, dims, lies, dtype)| Meets {
                kind,
                batch,
                groups,
                channels,
                dims,
                lies,
                dtype,
            })
    })
}

impl Meets {
    fn view(&self, of: usize) -> Strided {
        let [reads, makes] = self.channels;
        let lead = [
            [self.batch, reads * self.groups],
            [makes * self.groups, reads],
            [self.batch, makes * self.groups],
        ][of];
        let spatial = self.dims.iter().map(|(numbers, _)| numbers[of]);
        let shape: Vec<usize> = lead.into_iter().chain(spatial).collect();
        self.lies[of].view(&shape)
    }

    /// The third of x, w and y, computed from the other two.
    fn expected(&self, mut data: [Vec<f64>; 3], views: [&Strided; 3]) -> Vec<f64> {
        let written = self.written();
        for index in indices(&views[written].shape) {
            data[written][at(views[written], &index)] = 0.0;
        }
        let [reads, makes] = self.channels;
        for out in indices(&views[2].shape) {
            for tap in indices(&views[1].shape) {
                if tap[0] != out[1] {
                    continue;
                }
                let mut from = vec![out[0], out[1] / makes * reads + tap[1]];
                for (d, &([inputs, _, _, stride, dilation], origin)) in self.dims.iter().enumerate()
                {
                    let i = (out[2 + d] * stride + tap[2 + d] * dilation) as isize + origin;
                    if (0..inputs as isize).contains(&i) {
                        from.push(i as usize);
                    }
                }
                if from.len() < out.len() {
                    continue;
                }
                let places = [at(views[0], &from), at(views[1], &tap), at(views[2], &out)];
                let others = [0, 1, 2].into_iter().filter(|&of| of != written);
                let product: f64 = others.map(|of| data[of][places[of]]).product();
                data[written][places[written]] += product;
            }
        }
        data.into_iter().nth(written).unwrap()
    }

    fn written(&self) -> usize {
        match self.kind {
            ConvKind::Forward => 2,
            ConvKind::InputGrad => 0,
            ConvKind::WeightGrad => 1,
        }
    }

    /// Whether some output meets some input along every dim, and none begins behind the last input.
    fn meets(&self) -> bool {
        self.dims
            .iter()
            .all(|&([inputs, taps, outputs, stride, dilation], origin)| {
                let all = (outputs - 1) * stride + (taps - 1) * dilation + 1;
                origin < inputs as isize && all as isize + origin > 0
            })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn convolutions_are_those_of_loops(meets in convolutions()) {
        let views = [0, 1, 2].map(|of| meets.view(of));
        let [x, w, y] = &views;
        let mut data = [numbers(x, 1), numbers(w, 2), numbers(y, 3)];
        let written_one = meets.written();
        data[written_one].fill(7.0);
        let expected = meets.expected(data.clone(), [x, w, y]);
        let reads: Vec<usize> = match meets.kind {
            ConvKind::Forward => vec![0, 1],
            ConvKind::InputGrad => vec![2, 1],
            ConvKind::WeightGrad => vec![0, 2],
        };
        let of = |n: usize| meets.dims.iter().map(|(all, _)| all[n]).collect::<Vec<_>>();
        let (stride, dilation) = (of(3), of(4));
        let origin: Vec<isize> = meets.dims.iter().map(|&(_, origin)| origin).collect();
        let call = ConvCall {
            kind: meets.kind,
            stride: &stride,
            dilation: &dilation,
            origin: &origin,
            groups: meets.groups,
            precision: MatmulPrecision::Full,
        };
        for device in devices() {
            let buffers = [reads[0], reads[1]].map(|of| upload(&device, meets.dtype, &data[of]));
            let view = &views[written_one];
            let (did, found) = written(&device, meets.dtype, view, |gpu, into| {
                let reads = [(&buffers[0], &views[reads[0]]), (&buffers[1], &views[reads[1]])];
                gpu.convolve(&call, reads, (into, view)).unwrap()
            });
            if is_emulated(&device) {
                prop_assert_eq!(did, meets.meets());
            }
            if did {
                prop_assert_eq!(&found, &expected);
            } else {
                prop_assert!(found.iter().all(|&x| x == 7.0));
            }
        }
    }
}

/// The product of a row and a column of the same numbers.
fn square<T: Element>(device: &DeviceRef, numbers: &[T], precision: MatmulPrecision) -> T {
    let row = Strided::contiguous(&[1, numbers.len()]);
    let column = Strided::contiguous(&[numbers.len(), 1]);
    let one = Strided::contiguous(&[1, 1]);
    let x = device.upload_slice(numbers).unwrap();
    let mut y = device.alloc(T::DTYPE, 1).unwrap();
    let gpu = Cuda::of(&**device).unwrap();
    let did = gpu.matmul((&x, &row), (&x, &column), None, (&mut y, &one), precision);
    assert!(did.unwrap());
    y.freeze().to_vec().unwrap()[0]
}

#[test]
fn products_are_rounded_to_tf32_only_where_that_is_asked_for() {
    for device in devices() {
        // One more bit than TF32 has.
        let x = 1.0 + 2.0_f32.powi(-11);
        let full = square(&device, &[x; 4], MatmulPrecision::Full);
        assert_eq!(full, 4.0 * x * x);
        let doubles = square(&device, &[f64::from(x); 4], MatmulPrecision::Tf32);
        assert_eq!(doubles, 4.0 * f64::from(x) * f64::from(x));
        if is_emulated(&device) {
            let rounded = square(&device, &[x; 4], MatmulPrecision::Tf32);
            assert_eq!(rounded, 4.0 * (1.0 + 2.0_f32.powi(-10)).powi(2));
        }
    }
}

#[test]
fn sums_of_short_floats_are_taken_in_f32() {
    for device in devices() {
        let halves = square(&device, &[f16::ONE; 4096], MatmulPrecision::Full);
        assert_eq!(halves.to_f32(), 4096.0);
        let brains = square(&device, &[bf16::ONE; 1024], MatmulPrecision::Full);
        assert_eq!(brains.to_f32(), 1024.0);
    }
}

#[test]
fn what_the_library_does_not_describe_is_left_alone() {
    let dense = |shape: &[usize]| Strided::contiguous(shape);
    let apart = |of: [usize; 2]| Strided::new(0, of[..].into(), [20, 2].into_iter().collect());
    for device in devices() {
        let cases = [
            (DType::I64, dense(&[2, 3]), dense(&[3, 2]), dense(&[2, 2])),
            (DType::F64, apart([2, 3]), dense(&[3, 2]), dense(&[2, 2])),
            (DType::F64, dense(&[2, 3]), dense(&[3, 2]), apart([2, 2])),
            (DType::F64, dense(&[2, 0]), dense(&[0, 2]), dense(&[2, 2])),
        ];
        for (dtype, a, b, y) in cases {
            let x = upload(&device, dtype, &[1.0; 50]);
            let (did, found) = written(&device, dtype, &y, |gpu, into| {
                let full = MatmulPrecision::Full;
                gpu.matmul((&x, &a), (&x, &b), None, (into, &y), full)
                    .unwrap()
            });
            assert!(!did && found.iter().all(|&x| x == 7.0), "{dtype} {a:?}");
        }
        let gpu = Cuda::of(&*device).unwrap();
        let x = upload(&device, DType::F32, &[1.0; 8]);
        let mut y = device.alloc(DType::F32, 8).unwrap();
        let full = MatmulPrecision::Full;
        let (a, b) = (dense(&[2, 3]), dense(&[2, 3]));
        let wrong = gpu.matmul((&x, &a), (&x, &b), None, (&mut y, &dense(&[2, 3])), full);
        assert!(wrong.unwrap_err().to_string().contains("matmul"));
    }
}

#[test]
fn both_libraries_say_whether_they_are_there() {
    let found = libraries();
    for library in [&found.cublaslt, &found.cudnn] {
        match library {
            Library::Found { version } => assert!(*version >= 90_100),
            Library::Missing { cause } => assert!(!cause.is_empty()),
            other => panic!("{other}"),
        }
    }
    for device in devices() {
        let found = Cuda::of(&*device).unwrap().libraries();
        assert!(
            !is_emulated(&device) || matches!(found.cudnn, Library::Found { .. }),
            "{found}"
        );
    }
}

/// The transform of a line by the sum that defines it, from the library's numbers to the library's numbers.
fn expected(kind: FourierKind, n: usize, line: &[f64]) -> Vec<f64> {
    let number = |j: usize| match kind {
        FourierKind::FromReal => [line[j], 0.0],
        FourierKind::Complex { .. } => [line[2 * j], line[2 * j + 1]],
        // A frequency above the middle is the mirror image of one below; the lowest and the middle one are real.
        FourierKind::ToReal if j > n - j => [line[2 * (n - j)], -line[2 * (n - j) + 1]],
        FourierKind::ToReal if j == 0 || j == n - j => [line[2 * j], 0.0],
        FourierKind::ToReal => [line[2 * j], line[2 * j + 1]],
    };
    let backward = matches!(
        kind,
        FourierKind::ToReal | FourierKind::Complex { inverse: true }
    );
    let turn = if backward { 1.0 } else { -1.0 } * std::f64::consts::TAU / n as f64;
    let sum = |k: usize| {
        (0..n).fold([0.0; 2], |[re, im], j| {
            let ([a, b], (s, c)) = (number(j), (turn * (j * k) as f64).sin_cos());
            [re + a * c - b * s, im + a * s + b * c]
        })
    };
    match kind {
        FourierKind::ToReal => (0..n).map(|k| sum(k)[0]).collect(),
        FourierKind::FromReal => (0..=n / 2).flat_map(sum).collect(),
        FourierKind::Complex { .. } => (0..n).flat_map(sum).collect(),
    }
}

/// The numbers of type float in a line that is read, and in one that is written.
fn widths(kind: FourierKind, n: usize) -> [usize; 2] {
    let half = 2 * (n / 2 + 1);
    match kind {
        FourierKind::Complex { .. } => [2 * n; 2],
        FourierKind::FromReal => [n, half],
        FourierKind::ToReal => [half, n],
    }
}

const TRANSFORMS: [FourierKind; 4] = [
    FourierKind::Complex { inverse: false },
    FourierKind::Complex { inverse: true },
    FourierKind::FromReal,
    FourierKind::ToReal,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn transforms_equal_the_sums_that_define_them(
        kind in prop::sample::select(&TRANSFORMS[..]),
        n in prop_oneof![1..20_usize, Just(31), Just(64)],
        lines in 1..4_usize,
        dtype in prop::sample::select(&[DType::F64, DType::F32][..]),
    ) {
        let [read, _] = widths(kind, n);
        let [from, to] = widths(kind, n).map(|width| Strided::contiguous(&[width * lines]));
        let given = numbers(&from, 5);
        for device in devices() {
            let mut x = device.alloc(dtype, given.len()).unwrap();
            device.copy(&upload(&device, dtype, &given), &from, &mut x, &from).unwrap();
            let (did, found) = written(&device, dtype, &to, |cuda, y| {
                cuda.fourier(kind, (lines, n), &mut x, y).unwrap()
            });
            if !did {
                prop_assert!(!is_emulated(&device));
                continue;
            }
            let expected = given.chunks(read).flat_map(|line| expected(kind, n, line));
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 } * n as f64;
            for (found, expected) in found.iter().zip(expected) {
                prop_assert!((found - expected).abs() < tolerance, "{found} for {expected}");
            }
        }
    }
}

#[test]
fn transforms_refuse_buffers_that_do_not_fit_and_leave_what_is_empty() {
    for device in devices() {
        let cuda = Cuda::of(&*device).unwrap();
        let floats = |dtype, len| device.alloc(dtype, len).unwrap();
        let kind = FourierKind::FromReal;
        let (mut x, mut y) = (floats(DType::F32, 6), floats(DType::F32, 7));
        let short = cuda.fourier(kind, (1, 6), &mut x, &mut y).unwrap_err();
        assert!(
            short
                .to_string()
                .contains("1 lines of 6 in 6 and 7 elements"),
            "{short}"
        );
        let endless = cuda.fourier(kind, (usize::MAX, 6), &mut x, &mut y);
        endless.unwrap_err();
        cuda.fourier(kind, (1, 4), &mut floats(DType::F64, 6), &mut y)
            .unwrap_err();
        assert!(!cuda.fourier(kind, (0, 6), &mut x, &mut y).unwrap());
        assert!(!cuda.fourier(kind, (2, 0), &mut x, &mut y).unwrap());
        let (mut x, mut y) = (floats(DType::I32, 6), floats(DType::I32, 8));
        assert!(!cuda.fourier(kind, (1, 6), &mut x, &mut y).unwrap());
    }
}

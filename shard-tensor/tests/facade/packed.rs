//! Attention within segments: of documents that are packed one after the other.

use crate::common::{numbers, on};
use shard_tensor::{
    Attention, AxisPlacement, Causal, DType, Error, FoldBy, Mesh, Result, ShardTensor, replicate,
    shard,
};

fn tokens(mesh: &Mesh, seed: usize, placement: AxisPlacement) -> Result<ShardTensor> {
    let at = move |i: &[usize]| ((i[0] + 5 * i[1] + 3 * i[2] + 7 * i[3] + seed) as f64).sin();
    let wide = mesh.with_dtype(DType::F64);
    wide.from_fn([2, 2, 70, 4], placement, at)?.requires_grad()
}

fn close(found: &ShardTensor, expected: &ShardTensor, what: &str) -> Result<()> {
    for (a, b) in numbers(found)?.iter().zip(numbers(expected)?) {
        assert!(
            (a - b).abs() <= 1e-12 * b.abs().max(1.0),
            "{what}: {a}, not {b}"
        );
    }
    Ok(())
}

#[test]
fn queries_see_their_own_segment_as_under_a_mask_of_equal_numbers() {
    on(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        // Documents of 25, 1 and 44 tokens; and numbers in no order, of each entry of the batch its own.
        let document = |i: &[usize]| f64::from(i[0] >= 25) - 4.0 * f64::from(i[0] >= 26);
        let documents = mesh.from_fn([70], shard(0), document)?;
        let mixed = mesh.from_fn([2, 70], shard(1), |i| ((i[0] + 1) * i[1] * i[1] % 5) as f64)?;
        let options = [
            Attention::new(),
            Attention::new().causal(Causal::TopLeft).window(20, 0),
        ];
        for of in [documents.unsqueeze(0)?, mixed] {
            let same = of.unsqueeze(2)?.eq(&of.unsqueeze(1)?)?.unsqueeze(1)?;
            let of = of.to(DType::I32)?;
            for placement in [
                replicate(),
                shard(2),
                shard(2).zigzag(),
                shard(2).sizes([70, 0, 0]),
                shard(0),
            ] {
                let [q, k, v] = [
                    tokens(&mesh, 0, placement.clone())?,
                    tokens(&mesh, 5, shard(2))?,
                    tokens(&mesh, 9, placement)?,
                ];
                let slopes = |y: &ShardTensor| y.square()?.sum_all()?.grad(&[&q, &k, &v], false);
                for options in &options {
                    let found = q.attention_by_segment(&k, &v, [&of, &of], None, options)?;
                    let expected = q.attention(&k, &v, Some(&same), options)?;
                    close(&found, &expected, "results")?;
                    for pair in slopes(&found)?.iter().zip(&slopes(&expected)?) {
                        let (Some(found), Some(expected)) = pair else {
                            panic!("all operands are used");
                        };
                        close(found, expected, "gradients")?;
                    }
                }
            }
        }
        Ok(())
    });
}

/// However keys come to queries, or queries to keys, their numbers come with them.
#[test]
fn segments_go_where_their_tokens_go() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let [q, k] = [
            tokens(&mesh, 2, shard(2).sizes([50, 20]))?,
            tokens(&mesh, 8, shard(2))?,
        ];
        let of = mesh.from_fn([2, 70], shard(1), |i| (i[1] * i[1] % (3 + i[0])) as f64)?;
        let of = of.to(DType::I64)?;
        let by = |fold: FoldBy| {
            let options = Attention::new().causal(Causal::BottomRight).fold_by(fold);
            let y = q.attention_by_segment(&k, &k, [&of, &of], None, &options)?;
            Ok::<_, Error>([y.detach(), y.square()?.sum_all()?.grad1(&k, false)?])
        };
        let expected = by(FoldBy::Gather)?;
        for fold in [FoldBy::Ring, FoldBy::Split, FoldBy::Heads, FoldBy::Auto] {
            for (found, expected) in by(fold)?.iter().zip(&expected) {
                close(found, expected, &format!("{fold:?}"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn segments_come_beside_masks() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = tokens(&mesh, 3, shard(2))?;
        let of = mesh.from_fn([70], shard(0), |i| (i[0] / 20) as f64)?;
        let slope = |i: &[usize]| (i[1] as f64 - i[2] as f64) * 0.1 * (i[0] + 1) as f64;
        let bias = mesh
            .with_dtype(DType::F64)
            .from_fn([2, 70, 70], shard(1), slope)?;
        let (bias, all) = (bias.requires_grad()?, Attention::new());
        let apart = of.unsqueeze(1)?.ne(&of.unsqueeze(0)?)?;
        let of = of.to(DType::I64)?;
        let found = x.attention_by_segment(&x, &x, [&of, &of], Some(&bias), &all)?;
        let hidden = bias.masked_fill(&apart, f64::NEG_INFINITY)?;
        let expected = x.attention(&x, &x, Some(&hidden), &all)?;
        close(&found, &expected, "results")?;
        let slopes = |y: &ShardTensor| y.square()?.sum_all()?.grad1(&bias, false);
        close(
            &slopes(&found)?,
            &slopes(&expected)?,
            "gradients of the mask",
        )
    });
}

#[test]
fn segments_that_are_none_are_refused() {
    on(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.zeros([2, 2, 6, 4], shard(2))?;
        let whole = mesh.with_dtype(DType::I64);
        let zeros = |shape: &[usize]| whole.zeros(shape.to_vec(), replicate());
        let attend = |of: [&ShardTensor; 2]| {
            let found = x.attention_by_segment(&x, &x, of, None, &Attention::new());
            found.map(|y| y.shape().to_vec())
        };
        let fine = zeros(&[6])?;
        assert_eq!(attend([&fine, &zeros(&[2, 6])?])?, [2, 2, 6, 4]);
        assert_eq!(attend([&zeros(&[1, 6])?, &fine])?, [2, 2, 6, 4]);
        for shape in [&[][..], &[5], &[3, 6], &[6, 2], &[1, 2, 6]] {
            let text = attend([&fine, &zeros(shape)?]).unwrap_err().to_string();
            let says = text.contains("one segment each") && text.contains("[batch, tokens]");
            assert!(says, "{text}");
        }
        let floats = fine.to(DType::F64)?;
        let text = attend([&floats, &fine]).unwrap_err().to_string();
        assert!(text.contains("i64 or i32"), "{text}");
        Ok(())
    });
}

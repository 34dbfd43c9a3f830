//! Channels as positions, and positions as channels: reshapes around a permutation.

use super::misfit;
use crate::families::shape::{permute, reshape};
use crate::{Exec, Result, Value};

/// Channels as positions: (..., C r², H, W) to (..., C, H r, W r).
///
/// # Collective
/// All members of the mesh. No communication if other dims are sharded than channels in parts that are no multiples of r².
///
/// # Errors
/// Fewer than three dims; a factor of 0, or whose square does not divide the channels.
pub fn pixel_shuffle(exec: &dyn Exec, x: &Value, factor: usize) -> Result<Value> {
    let op = "pixel_shuffle";
    let r = factor;
    let Some((lead, &[c, h, w])) = x.shape().split_last_chunk::<3>() else {
        return Err(no_planes(op, x));
    };
    let (Some(square), Some(height), Some(width)) =
        (r.checked_mul(r), h.checked_mul(r), w.checked_mul(r))
    else {
        return Err(too_large(op, x, r));
    };
    if r == 0 || !c.is_multiple_of(square) {
        return Err(misfit(
            op,
            x,
            format!("{c} channels for a factor of {r}"),
            "give a factor whose square divides the channels",
        ));
    }
    let n = lead.len();
    let apart = [lead, &[c / square, r, r, h, w]].concat();
    let order: Vec<usize> = (0..n).chain([0, 3, 1, 4, 2].map(|d| n + d)).collect();
    let apart = permute(exec, &reshape(exec, x, &apart)?, &order)?;
    reshape(exec, &apart, &[lead, &[c / square, height, width]].concat())
}

/// Positions as channels: (..., C, H r, W r) to (..., C r², H, W).
///
/// # Collective
/// All members of the mesh. No communication if spatial dims are sharded in multiples of the factor, or not at all.
///
/// # Errors
/// Fewer than three dims; a factor of 0, or one that does not divide the spatial dims.
pub fn pixel_unshuffle(exec: &dyn Exec, x: &Value, factor: usize) -> Result<Value> {
    let op = "pixel_unshuffle";
    let r = factor;
    let Some((lead, &[c, h, w])) = x.shape().split_last_chunk::<3>() else {
        return Err(no_planes(op, x));
    };
    if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
        return Err(misfit(
            op,
            x,
            format!("a plane of {h} by {w} for a factor of {r}"),
            "give a factor that divides the spatial dims",
        ));
    }
    let Some(channels) = r.checked_mul(r).and_then(|square| c.checked_mul(square)) else {
        return Err(too_large(op, x, r));
    };
    let n = lead.len();
    let apart = [lead, &[c, h / r, r, w / r, r]].concat();
    let order: Vec<usize> = (0..n).chain([0, 2, 4, 1, 3].map(|d| n + d)).collect();
    let apart = permute(exec, &reshape(exec, x, &apart)?, &order)?;
    reshape(exec, &apart, &[lead, &[channels, h / r, w / r]].concat())
}

/// Interleaves groups of the channels of (N, C, ...): the first of each, then the second of each, and so on.
///
/// # Collective
/// All members of the mesh. No communication if channels are not sharded.
///
/// # Errors
/// Fewer than two dims; a number of groups that does not divide the channels.
pub fn channel_shuffle(exec: &dyn Exec, x: &Value, groups: usize) -> Result<Value> {
    let shape = x.shape();
    if shape.len() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) {
        return Err(misfit(
            "channel_shuffle",
            x,
            format!("{groups} groups do not divide the channels"),
            "give (N, C, ...) with groups dividing C",
        ));
    }
    let apart = [&[shape[0], groups, shape[1] / groups], &shape[2..]].concat();
    let mut order: Vec<usize> = (0..apart.len()).collect();
    order.swap(1, 2);
    let apart = permute(exec, &reshape(exec, x, &apart)?, &order)?;
    reshape(exec, &apart, shape)
}

fn no_planes(op: &'static str, x: &Value) -> crate::OpError {
    misfit(
        op,
        x,
        "there are no channels of planes".into(),
        "give (..., C, H, W)",
    )
}

fn too_large(op: &'static str, x: &Value, factor: usize) -> crate::OpError {
    misfit(
        op,
        x,
        format!("a factor of {factor} makes extents that cannot be counted"),
        "give a smaller factor",
    )
}

//! Products of matrices by a unit for tiles, where they lie so that one takes them.

#[cfg(amx)]
use super::amx::Amx;
#[cfg(pairs)]
use super::pairs::Pairs;
use super::parts::{Lines, Number};
use super::product::Product;
use super::tiles::{self, Results};
use super::unit::{Emulated, Panel, Rows, TERMS, Term, Unit};
use super::{Mat, MatMut};

/// A unit of the processor that this thread runs on.
#[derive(Debug)]
pub(crate) enum OfProcessor {
    #[cfg(amx)]
    Tiles(Amx),
    #[cfg(pairs)]
    Pairs(Pairs),
}

/// The unit of the processor that this thread runs on, if it has one that this crate is compiled for.
pub(crate) fn of_processor() -> Option<OfProcessor> {
    #[cfg(amx)]
    if let Some(unit) = Amx::get() {
        return Some(OfProcessor::Tiles(unit));
    }
    #[cfg(pairs)]
    if let Some(unit) = Pairs::get() {
        return Some(OfProcessor::Pairs(unit));
    }
    None
}

/// The [rate](Unit::rate) of the processor's unit: 1 where it has none.
pub(crate) fn rate() -> usize {
    #[cfg(amx)]
    if Amx::is_usable() {
        return Amx::RATE;
    }
    #[cfg(pairs)]
    if Pairs::is_usable() {
        return Pairs::RATE;
    }
    1
}

impl Unit for OfProcessor {
    fn rate(&self) -> usize {
        match *self {
            #[cfg(amx)]
            Self::Tiles(ref unit) => unit.rate(),
            #[cfg(pairs)]
            Self::Pairs(ref unit) => unit.rate(),
        }
    }

    #[cfg_attr(
        not(any(amx, pairs)),
        expect(unused_variables, reason = "there is no unit")
    )]
    fn multiply(
        &self,
        steps: usize,
        terms: &[Term],
        a: Panel<'_>,
        b: Panel<'_>,
        to: &mut Rows<'_>,
        add: bool,
    ) {
        match *self {
            #[cfg(amx)]
            Self::Tiles(ref unit) => unit.multiply(steps, terms, a, b, to, add),
            #[cfg(pairs)]
            Self::Pairs(ref unit) => unit.multiply(steps, terms, a, b, to, add),
        }
    }
}

/// Computes a product in single precision by the processor's unit if that pays, and tells whether it did.
pub(super) fn single(
    extent: [usize; 3],
    a: &Mat<'_, f32>,
    b: &Mat<'_, f32>,
    c: &mut MatMut<'_, f32>,
    accumulate: bool,
) -> bool {
    let rate = rate();
    if rate < TERMS || !tiles::may_pay(extent) {
        return false;
    }
    let parts = [columns(b).seem(extent[2]), rows(a).seem(extent[2])];
    tiles::pays(extent, parts, rate)
        && of_processor().is_some_and(|unit| single_by_unit(&unit, extent, a, b, c, accumulate))
}

fn rows<'a, T>(of: &Mat<'a, T>) -> Lines<'a, T> {
    Lines {
        data: of.data,
        offset: of.offset,
        line: of.row_step,
        step: of.col_step,
    }
}

fn columns<'a, T>(of: &Mat<'a, T>) -> Lines<'a, T> {
    Lines {
        data: of.data,
        offset: of.offset,
        line: of.col_step,
        step: of.row_step,
    }
}

/// Computes a product by a unit if its matrices lie as they must, and tells whether they do: `c` in columns without gaps, and the others in rows
/// or columns without. Parts with numbers that are not for it are computed by `other`.
pub(super) fn by_unit<E: Number>(
    unit: &impl Unit,
    [m, n, k]: [usize; 3],
    a: &Mat<'_, E>,
    b: &Mat<'_, E>,
    c: &mut MatMut<'_, f32>,
    accumulate: bool,
    mut other: impl FnMut([usize; 3], Mat<'_, E>, Mat<'_, E>, MatMut<'_, f32>, bool),
) -> bool {
    // Results are of rows there, so the product is the transposed one.
    let (left, right) = (columns(b), rows(a));
    if c.row_step != 1 || c.col_step < m as isize || !left.is_dense() || !right.is_dense() {
        return false;
    }
    let (offset, row_step, col_step) = (c.offset, c.row_step, c.col_step);
    let mut to = Results {
        data: c.data,
        offset,
        row: col_step as usize,
    };
    let mut part = |[column, row, number]: [usize; 3],
                    [columns, rows, numbers]: [usize; 3],
                    data: &mut [f32],
                    add: bool| {
        let steps = row as isize * row_step + column as isize * col_step;
        let c = MatMut {
            offset: offset.wrapping_add_signed(steps),
            data,
            row_step,
            col_step,
        };
        let (a, b) = (a.part(row, number), b.part(number, column));
        other([rows, columns, numbers], a, b, c, add);
    };
    tiles::product(unit, [n, m, k], left, right, &mut to, accumulate, &mut part);
    true
}

/// As [`by_unit`], of single precision, where the crate computes the other parts.
fn single_by_unit(
    unit: &impl Unit,
    extent: [usize; 3],
    a: &Mat<'_, f32>,
    b: &Mat<'_, f32>,
    c: &mut MatMut<'_, f32>,
    accumulate: bool,
) -> bool {
    by_unit(
        unit,
        extent,
        a,
        b,
        c,
        accumulate,
        |extent, a, b, mut c, add| {
            Product::single().forward(extent, &a, &b, &mut c, add);
        },
    )
}

/// What tests see of products by units.
#[doc(hidden)]
pub mod inside {
    use super::{Emulated, Mat, MatMut, Unit, of_processor, single_by_unit};

    /// As [`gemm`](crate::gemm::gemm) to rows without gaps, by a unit that is emulated, whether that pays or not. Tells whether matrices lie so that
    /// one takes them.
    pub fn emulated(
        unit: Emulated,
        extent: [usize; 3],
        a: Mat<'_, f32>,
        b: Mat<'_, f32>,
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) -> bool {
        to_rows(&unit, extent, a, b, c, accumulate)
    }

    /// The same by the processor's, if it has one that the crate is compiled for.
    pub fn by_processor(
        extent: [usize; 3],
        a: Mat<'_, f32>,
        b: Mat<'_, f32>,
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) -> Option<bool> {
        of_processor().map(|unit| to_rows(&unit, extent, a, b, c, accumulate))
    }

    fn to_rows(
        unit: &impl Unit,
        [m, n, k]: [usize; 3],
        a: Mat<'_, f32>,
        b: Mat<'_, f32>,
        c: MatMut<'_, f32>,
        accumulate: bool,
    ) -> bool {
        let mut c = c.transposed();
        let (a, b) = (b.transposed(), a.transposed());
        single_by_unit(unit, [n, m, k], &a, &b, &mut c, accumulate)
    }
}

//! What a processor's unit for products of tiles does: the trait, and a unit that computes number by number.
//!
//! A tile has 16 rows of 64 bytes. One instruction multiplies a tile of 16 rows of 32 numbers of `bf16` by one of 32 rows of 16 numbers, and
//! adds the products to a tile of 16 by 16 numbers of `f32`: 8192 products in 16 cycles, where the widest vectors of `f32` do 512. Rows of
//! the tile on the right lie in pairs: a row of memory has 16 times two numbers, which meet two numbers of a row on the left. Vectors that
//! multiply pairs take them as they lie for tiles, and are a unit too.

/// Terms of numbers in three parts: a unit that forms fewer products in the time of one of `f32` does not take those.
pub(super) const TERMS: usize = 6;

/// Rows of a tile.
pub(super) const SIDE: usize = 16;
/// Rows of results of which vectors of pairs form no fewer: 16 of their sums are in registers at a time, as many as it takes to wait for none.
pub(super) const ROWS: usize = 8;
/// Numbers of a row of a tile on the left, whose products are summed: those of a step.
pub(super) const DEPTH: usize = 32;
/// Rows and columns of the results of one call, which are two by two tiles.
pub(super) const BLOCK: usize = 2 * SIDE;
/// Words of one operand's two tiles, each of two numbers.
pub(crate) const TILES: usize = BLOCK * DEPTH / 2;

/// Two by two tiles that are multiplied in a step: where those of either operand begin, in numbers from where the step's do.
pub(crate) type Term = [usize; 2];

/// Two tiles of an operand, step after step. Distances are in numbers of `bf16`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel<'a> {
    /// Bits of numbers.
    pub(crate) numbers: &'a [u16],
    /// From a step to the next.
    pub(crate) step: usize,
    /// From the first tile to the second.
    pub(crate) tile: usize,
    /// From a row of a tile to the next.
    pub(crate) row: usize,
}

impl<'a> Panel<'a> {
    /// Tiles that are packed one after the other, row after row.
    pub(crate) fn packed(words: &'a [u32], step: usize) -> Self {
        Self {
            numbers: bytemuck::cast_slice(words),
            step: 2 * step,
            tile: SIDE * DEPTH,
            row: DEPTH,
        }
    }
}

/// Rows of [`BLOCK`] results each.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a mut [f32],
    /// From where a row begins to where the next does.
    pub(crate) apart: usize,
    /// How many rows and columns are wanted. The others may become anything: a unit forms whole tiles, or as much of them as it takes.
    pub(crate) wanted: [usize; 2],
}

impl<'a> Rows<'a> {
    /// All of which are wanted.
    pub(crate) fn whole(data: &'a mut [f32], apart: usize) -> Self {
        Self {
            data,
            apart,
            wanted: [BLOCK; 2],
        }
    }
}

/// Something that multiplies tiles.
pub(crate) trait Unit {
    /// How many products it forms in the time in which vectors of `f32` form one.
    fn rate(&self) -> usize;

    /// The sum of the products of all steps, of which each has these terms in this order: to be added to what the results are, or to
    /// take its place.
    ///
    /// # Panics
    /// When tiles or results reach beyond their memory.
    fn multiply(
        &self,
        steps: usize,
        terms: &[Term],
        a: Panel<'_>,
        b: Panel<'_>,
        to: &mut Rows<'_>,
        add: bool,
    );
}

/// Fails unless all tiles and results lie in their memory.
#[inline]
pub(super) fn check(steps: usize, terms: &[Term], a: Panel<'_>, b: Panel<'_>, to: &Rows<'_>) {
    let fits = |panel: Panel<'_>, at: usize| {
        let reach = |n: usize, apart: usize| (n - 1).checked_mul(apart);
        let end = (reach(steps, panel.step)).and_then(|steps| {
            let rows = reach(SIDE, panel.row)?.checked_add(DEPTH)?;
            (steps.checked_add(at)?.checked_add(panel.tile)?).checked_add(rows)
        });
        end.is_some_and(|end| end <= panel.numbers.len())
    };
    assert!(
        steps > 0 && !terms.is_empty() && terms.iter().all(|&[x, y]| fits(a, x) && fits(b, y)),
        "tiles: {steps} steps of {terms:?} in {} and {} numbers",
        a.numbers.len(),
        b.numbers.len()
    );
    let last = (BLOCK - 1).checked_mul(to.apart);
    let end = last.and_then(|last| last.checked_add(BLOCK));
    assert!(
        to.apart >= BLOCK && end.is_some_and(|end| end <= to.data.len()),
        "tiles: rows {} apart in {} results",
        to.apart,
        to.data.len()
    );
}

/// Computes what a unit does with the same bits, on any processor, to try what is given to it. Either takes what is below 2^-126 for zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulated {
    /// Tiles, where even and odd places of a row have sums of their own, which begin at zero (manual of Intel, volume 2, `TDPBF16PS`).
    Tiles,
    /// Vectors, where the odd place of a pair is added to the sum and then the even one (`VDPBF16PS`).
    Pairs,
}

impl Emulated {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Tiles, Self::Pairs];

    /// Whether this processor has such a unit, and this crate uses it.
    pub fn is_of_processor(self) -> bool {
        let own = match super::rate() {
            0..2 => None,
            2..TERMS => Some(Self::Pairs),
            _ => Some(Self::Tiles),
        };
        own == Some(self)
    }

    /// A result after a step, of which it meets a row on the left and a column on the right.
    fn step(self, sum: f32, x: &[f32; DEPTH], y: &[f32; DEPTH]) -> f32 {
        match self {
            Self::Tiles => {
                let mut sums = [0.0; 2];
                for even in (0..DEPTH).step_by(2) {
                    let odd = even + 1;
                    sums[0] = flushed(sums[0] + x[even] * y[even]);
                    sums[1] = flushed(sums[1] + x[odd] * y[odd]);
                }
                flushed(sum + flushed(sums[0] + sums[1]))
            }
            Self::Pairs => {
                let mut sum = flushed(sum);
                for even in (0..DEPTH).step_by(2) {
                    let odd = even + 1;
                    sum = flushed(x[odd].mul_add(y[odd], sum));
                    sum = flushed(x[even].mul_add(y[even], sum));
                }
                sum
            }
        }
    }
}

#[inline]
fn flushed(x: f32) -> f32 {
    match x.abs() < f32::MIN_POSITIVE {
        true => 0.0f32.copysign(x),
        false => x,
    }
}

/// The number of `bf16` with these bits.
#[inline]
fn widened(bits: u16) -> f32 {
    flushed(f32::from_bits(u32::from(bits) << 16))
}

impl Unit for Emulated {
    fn rate(&self) -> usize {
        match self {
            Self::Tiles => 12,
            Self::Pairs => 2,
        }
    }

    fn multiply(
        &self,
        steps: usize,
        terms: &[Term],
        a: Panel<'_>,
        b: Panel<'_>,
        to: &mut Rows<'_>,
        add: bool,
    ) {
        check(steps, terms, a, b, to);
        // Loops and arrays alone, which are fast with little optimisation too: tests have a unit multiply millions of numbers.
        let mut rows = [[0.0; DEPTH]; BLOCK];
        let mut columns = rows;
        let [wanted, columns_wanted] = to.wanted.map(|n| n.min(BLOCK));
        if !add {
            for i in 0..wanted {
                to.data[i * to.apart..][..columns_wanted].fill(0.0);
            }
        }
        for s in 0..steps {
            for &[x, y] in terms {
                for (i, (row, column)) in rows.iter_mut().zip(&mut columns).enumerate() {
                    let left = s * a.step + x + i / SIDE * a.tile + i % SIDE * a.row;
                    let right = s * b.step + y + i / SIDE * b.tile + i % SIDE * 2;
                    for (k, (x, y)) in row.iter_mut().zip(column).enumerate() {
                        *x = widened(a.numbers[left + k]);
                        *y = widened(b.numbers[right + k / 2 * b.row + k % 2]);
                    }
                }
                for (i, row) in rows.iter().enumerate().take(wanted) {
                    let results = &mut to.data[i * to.apart..][..columns_wanted];
                    for (result, column) in results.iter_mut().zip(&columns) {
                        *result = self.step(*result, row, column);
                    }
                }
            }
        }
    }
}

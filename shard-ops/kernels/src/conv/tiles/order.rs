//! In which order the numbers of a packed channel lie: image after image, or those of some images side by side at each column.
//!
//! Between rows of one image lie places whose sums are dropped: of 4 x 4 outputs that windows of 3 x 3 read, nine for sixteen. Where images lie
//! side by side a tile is a column of many of them, with none of those; and positions of the kernel that read nothing but zeros around
//! the input are left out, which is nearly a third of them there. Columns and images are exchanged for that, and blocks hold fewer rows.

use super::{DEPTH, SIDE};
use std::ops::Range;

/// Bytes of a packed block: a fourth of a second-level cache, as processors with such a unit have it.
const BUDGET: usize = 512 << 10;
/// What it takes to begin a row, in numbers.
const START: usize = 16;
/// The most images that lie side by side: as many as a tile has places. They are a multiple of [`FEWEST`].
const MOST: usize = SIDE;
/// As many as are exchanged with columns at a time.
pub(super) const FEWEST: usize = 8;

/// Places of outputs and of what they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Images of a block.
    pub(super) images: usize,
    /// Images that lie side by side.
    pub(super) inner: usize,
    /// Outputs of a block, of each of its images.
    pub(super) block: [usize; 3],
    /// Columns from one column, row, plane to the next, of one phase of a packed channel: those that a dim's outputs read, without zeros at
    /// its end that are those at the beginning of what comes next.
    pub(super) extent: [usize; 3],
}

/// What an order is chosen for.
pub(super) struct Sizes<'a> {
    pub(super) batch: usize,
    pub(super) outputs: [usize; 3],
    /// Places that outputs of a dim read beyond their number.
    pub(super) reach: [usize; 3],
    /// Zeros at the end of a whole dim that may be those at the beginning of what comes next.
    pub(super) shared: [usize; 3],
    /// The outputs that read the input at each of a dim's positions.
    pub(super) read: &'a [Vec<Range<usize>>; 3],
    /// Whether positions of the kernel are channels: two of them read different columns then.
    pub(super) is_folded: bool,
    /// Steps of the unit, and panels of output channels.
    pub(super) steps: usize,
    pub(super) panels: usize,
    /// Phases that are packed.
    pub(super) phases: usize,
    pub(super) rate: usize,
}

impl Order {
    /// The one that takes least time.
    pub(super) fn best(sizes: &Sizes<'_>) -> Self {
        let apart = Self::new(sizes, 1);
        let mut best = (apart.time(sizes), apart);
        for most in [MOST, MOST / 2, MOST / 4] {
            let inner = even(sizes.batch, most).next_multiple_of(FEWEST);
            // Images that there are not take as long as others.
            if sizes.is_folded || 4 * sizes.batch < 3 * inner {
                continue;
            }
            let order = Self::new(sizes, inner);
            let time = order.time(sizes);
            if time < best.0 {
                best = (time, order);
            }
        }
        best.1
    }

    /// With so many images side by side.
    fn new(sizes: &Sizes<'_>, inner: usize) -> Self {
        let &Sizes {
            batch,
            outputs,
            reach,
            shared,
            ..
        } = sizes;
        let per_place = sizes.steps * DEPTH * size_of::<u16>() * sizes.phases;
        let most = BUDGET / per_place.max(1) / inner;
        let block = block(outputs, reach, most);
        let extent: [usize; 3] = core::array::from_fn(|d| {
            let shared = match block[d] == outputs[d] {
                true => shared[d],
                false => 0,
            };
            block[d] + reach[d] - shared.min(reach[d])
        });
        let image: usize = extent.iter().product();
        let images = match (inner, block == outputs) {
            (1, true) => even(batch, batch.div_ceil((most / image).clamp(1, batch))),
            _ => inner,
        };
        Self {
            images,
            inner,
            block,
            extent,
        }
    }

    /// How long it takes about, in cycles: to multiply, and to pack.
    fn time(&self, sizes: &Sizes<'_>) -> f64 {
        let &Sizes {
            outputs,
            reach,
            steps,
            ..
        } = sizes;
        let count = |d: usize| outputs[d].div_ceil(self.block[d]);
        let images = sizes.batch.div_ceil(self.inner) * self.inner;
        // Those of all blocks, with what lies between them.
        let packed: usize = (0..2).map(|d| outputs[d] + count(d) * reach[d]).product();
        let [width, columns] = [self.block[2] + reach[2], outputs[2] + count(2) * reach[2]];
        let terms = sizes.read.each_ref().map(Vec::len);
        let (products, words) = if self.inner == 1 {
            let places: usize = (0..3)
                .map(|d| outputs[d] + count(d) * (self.extent[d] - self.block[d]))
                .product();
            // Half a cycle for a word, and twice that where it is not the next that is read.
            let word = if sizes.phases == 1 { 1 } else { 4 };
            let words = packed * (columns + columns / width * START) * word / 2;
            (places * terms.iter().product::<usize>(), words)
        } else {
            let used = |d: usize| -> usize { sizes.read[d].iter().map(Range::len).sum() };
            let row = self.block[2] * self.inner;
            let tiles = row
                .next_multiple_of(SIDE / 2)
                .min(self.extent[2] * self.inner);
            // Columns of fewer images share tiles, and so their terms.
            let last = match self.inner == SIDE {
                true => used(2),
                false => (count(2) * tiles).div_ceil(self.inner) * terms[2],
            };
            (used(0) * used(1) * last, 2 * packed * columns)
        };
        // As floats: they are large.
        let [products, words, steps, images] = [products, words, steps, images].map(|n| n as f64);
        let multiply = products * sizes.panels as f64 * (2 * DEPTH) as f64 / sizes.rate as f64;
        let pack = words * sizes.phases as f64 * (DEPTH / 2) as f64;
        images * steps * (multiply + pack)
    }

    /// The place of what has these indices in an image.
    pub(super) fn place(&self, image: usize, [d, h, w]: [usize; 3]) -> usize {
        let [outer, inner] = [image / self.inner, image % self.inner];
        let [depth, height, width] = self.extent;
        (((outer * depth + d) * height + h) * width + w) * self.inner + inner
    }
}

/// How large about so many parts of something are that are alike.
fn even(n: usize, parts: usize) -> usize {
    n.div_ceil(n.div_ceil(n.div_ceil(parts)))
}

/// The blocks of which least is packed, of those that have no more than `most` places, if there are such.
fn block(outputs: [usize; 3], reach: [usize; 3], most: usize) -> [usize; 3] {
    let cuts = |n: usize| {
        let parts = (0..usize::BITS)
            .map(|bit| 1 << bit)
            .take_while(move |parts| *parts < 2 * n);
        parts.map(move |parts| even(n, parts.min(n)))
    };
    let with = |size: [usize; 3]| -> [usize; 3] { core::array::from_fn(|d| size[d] + reach[d]) };
    let mut best = ([1; 3], (true, usize::MAX));
    for planes in cuts(outputs[0]) {
        for cols in cuts(outputs[2]) {
            let [depth, _, width] = with([planes, 1, cols]);
            let rows = (most / (depth * width)).saturating_sub(reach[1]);
            let rows = rows.clamp(1, outputs[1]);
            let size = [planes, even(outputs[1], outputs[1].div_ceil(rows)), cols];
            let [depth, height, width] = with(size);
            let count: usize = (0..3).map(|d| outputs[d].div_ceil(size[d])).product();
            let is_larger = depth * height * width > most;
            let packed = count * depth * height * (width + START);
            if (is_larger, packed) < best.1 {
                best = (size, (is_larger, packed));
            }
        }
    }
    best.0
}

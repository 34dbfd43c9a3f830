//! Numbers of images that lie side by side: columns and images are exchanged, four by four.
//!
//! All columns of some images follow one another, and then the next images: channels of images often lie powers of two apart, and more
//! than a few of them have no room in the nearest cache at a time.

use crate::arrays::{each, numbered};
use crate::turn::{SIDE, turned};
use bytemuck::Pod;

/// Up to four columns of a row, of so many images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Four {
    /// The place of the first column of the first image.
    pub(super) place: usize,
    /// Columns, at least one.
    pub(super) count: usize,
    pub(super) images: usize,
    /// Where that number lies, from where its channel of the first of all images begins.
    pub(super) from: isize,
}

/// How images lie side by side, and where they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images {
    /// Places from a column to the next.
    pub(super) inner: usize,
    /// From a column's number to the next.
    pub(super) jump: isize,
    /// From an image's number to the next.
    pub(super) apart: isize,
}

impl Images {
    /// Adds so many columns of so many images from a place on, four by four.
    pub(super) fn add(
        &self,
        place: usize,
        len: usize,
        images: usize,
        from: isize,
        to: &mut Vec<Four>,
    ) {
        to.extend((0..len).step_by(SIDE).map(|column| Four {
            place: place + column * self.inner,
            count: SIDE.min(len - column),
            images,
            from: from + column as isize * self.jump,
        }));
    }

    /// The numbers of an image, zeros where there are no more columns or images.
    #[inline(always)]
    fn read(&self, numbers: &[u16], start: usize, four: &Four, image: usize) -> [u32; SIDE] {
        if image >= four.images {
            return [0; SIDE];
        }
        let at = start.wrapping_add_signed(four.from + image as isize * self.apart);
        match (self.jump, four.count) {
            (1, SIDE) => {
                let numbers = &numbers[at..at + SIDE];
                numbered(
                    #[inline(always)]
                    |i| u32::from(numbers[i]),
                )
            }
            (2, SIDE) => {
                let numbers = &numbers[at..at + 2 * SIDE - 1];
                numbered(
                    #[inline(always)]
                    |i| u32::from(numbers[2 * i]),
                )
            }
            _ => {
                let mut read = [0; SIDE];
                for (i, to) in read[..four.count].iter_mut().enumerate() {
                    *to = u32::from(numbers[at.wrapping_add_signed(i as isize * self.jump)]);
                }
                read
            }
        }
    }

    /// Writes words of the numbers of two channels, which begin at some places, or of one and zeros.
    #[inline(always)]
    pub(super) fn pairs(
        &self,
        numbers: &[u16],
        [low, high]: [usize; 2],
        is_one: bool,
        fours: &[Four],
        to: &mut [u32],
    ) {
        for first in (0..self.inner).step_by(SIDE) {
            for four in fours.iter().filter(|four| first < four.images) {
                let rows: [[u32; SIDE]; SIDE] = numbered(
                    #[inline(always)]
                    |i| {
                        let low = self.read(numbers, low, four, first + i);
                        if is_one {
                            return low;
                        }
                        joined(low, self.read(numbers, high, four, first + i))
                    },
                );
                let columns = turned(rows);
                for (i, column) in columns[..four.count].iter().enumerate() {
                    to[four.place + i * self.inner + first..][..SIDE].copy_from_slice(column);
                }
            }
        }
    }

    /// Writes the numbers of a channel, which begin at some place.
    #[inline(always)]
    pub(super) fn channel(&self, numbers: &[u16], start: usize, fours: &[Four], to: &mut [u16]) {
        for first in (0..self.inner).step_by(2 * SIDE) {
            for four in fours.iter().filter(|four| first < four.images) {
                let rows: [[u32; SIDE]; SIDE] = numbered(
                    #[inline(always)]
                    |i| {
                        let image = first + 2 * i;
                        let low = self.read(numbers, start, four, image);
                        joined(low, self.read(numbers, start, four, image + 1))
                    },
                );
                let columns = turned(rows);
                for (i, column) in columns[..four.count].iter().enumerate() {
                    let to = &mut to[four.place + i * self.inner + first..][..2 * SIDE];
                    to.copy_from_slice(bytemuck::cast_slice(column));
                }
            }
        }
    }

    /// Puts numbers of two or four bytes, which lie as the places do, where those of the images lie.
    #[inline(always)]
    pub(super) fn put<T: Pod>(&self, numbers: &[T], start: usize, fours: &[Four], to: &mut [T]) {
        // Numbers of four words.
        let together = SIDE * size_of::<u32>() / size_of::<T>();
        for first in (0..self.inner).step_by(together) {
            for four in fours.iter().filter(|four| first < four.images) {
                let column = |i: usize| four.place + i.min(four.count - 1) * self.inner;
                let rows: [[u32; SIDE]; SIDE] = numbered(
                    #[inline(always)]
                    |i| {
                        let row = &numbers[column(i) + first..][..together];
                        bytemuck::pod_read_unaligned(bytemuck::cast_slice(row))
                    },
                );
                for (i, words) in turned(rows).into_iter().enumerate() {
                    if size_of::<T>() == size_of::<u32>() {
                        self.put_image(bytemuck::cast(words), start, four, first + i, to);
                        continue;
                    }
                    let halves: [[u16; SIDE]; 2] = [
                        each(words, |word| word as u16),
                        each(words, |word| (word >> 16) as u16),
                    ];
                    for (half, numbers) in halves.into_iter().enumerate() {
                        let image = first + 2 * i + half;
                        self.put_image(bytemuck::cast(numbers), start, four, image, to);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn put_image<T: Copy>(
        &self,
        numbers: [T; SIDE],
        start: usize,
        four: &Four,
        image: usize,
        to: &mut [T],
    ) {
        if image >= four.images {
            return;
        }
        let at = start.wrapping_add_signed(four.from + image as isize * self.apart);
        if self.jump == 1 && four.count == SIDE {
            to[at..at + SIDE].copy_from_slice(&numbers);
            return;
        }
        for (i, number) in numbers[..four.count].iter().enumerate() {
            to[at.wrapping_add_signed(i as isize * self.jump)] = *number;
        }
    }
}

/// Words of two numbers each.
#[inline(always)]
fn joined(low: [u32; SIDE], high: [u32; SIDE]) -> [u32; SIDE] {
    numbered(
        #[inline(always)]
        |i| low[i] | high[i] << 16,
    )
}

//! The unit of Intel's processors (AMX, since Sapphire Rapids), by instructions that Rust has no functions for yet.

use super::unit::{Panel, Rows, Term, Unit, check};
use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// The unit of the processor that this thread runs on, for as long as this or another one of this thread lives.
#[derive(Debug)]
pub(crate) struct Amx(PhantomData<*const ()>);

/// Which tiles there are: eight, of 16 rows of 64 bytes (manual of Intel, volume 1, "Tile configuration").
#[derive(Debug)]
#[repr(C, align(64))]
struct Tiles {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static EIGHT: Tiles = Tiles {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

thread_local! {
    /// How many units this thread has at hand: products may be formed while another's operands are kept, and tiles are left by the last.
    static AT_HAND: Cell<usize> = const { Cell::new(0) };
}

impl Amx {
    /// How many products it forms in the time in which vectors of `f32` form one, as measured on a Xeon.
    pub(super) const RATE: usize = 12;

    /// Whether the processor has one and the system lets programs use it.
    pub(super) fn is_usable() -> bool {
        static USABLE: OnceLock<bool> = OnceLock::new();
        *USABLE.get_or_init(|| exists() && is_granted())
    }

    /// The unit, where it is usable.
    pub(super) fn get() -> Option<Self> {
        if !Self::is_usable() {
            return None;
        }
        if AT_HAND.replace(AT_HAND.get() + 1) == 0 {
            // SAFETY: the processor has the instruction and the system keeps what it changes, as was just seen. It reads a valid
            // configuration of 64 bytes.
            unsafe {
                asm!("ldtilecfg [{}]", in(reg) &raw const EIGHT, options(nostack, readonly, preserves_flags));
            }
        }
        Some(Self(PhantomData))
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        AT_HAND.set(AT_HAND.get() - 1);
        if AT_HAND.get() == 0 {
            // SAFETY: there is no `Amx` where the processor lacks the instruction. Tiles that are not in use need not be kept when
            // threads take turns.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
}

/// Whether the processor says that it has tiles, and products of `bf16`.
fn exists() -> bool {
    let features = raw_cpuid::CpuId::new().get_extended_feature_info();
    features.is_some_and(|has| has.has_amx_tile() && has.has_amx_bf16())
}

/// Asks the system to keep this process's tiles when threads take turns, which it does for processes that ask alone (Linux,
/// "Using XSTATE features in user space applications").
fn is_granted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST: i32 = 0x1023;
    const TILE_DATA: i32 = 18;
    let answer: i64;
    // SAFETY: the call takes numbers alone, and systems that do not know it say so.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("edi") REQUEST,
            in("esi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

impl Unit for Amx {
    fn rate(&self) -> usize {
        Self::RATE
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
        const BYTES: usize = size_of::<u16>();
        // What registers have no room for.
        let mut frame = Frame {
            steps,
            end: size_of_val(terms),
            step: [a.step, b.step].map(|step| BYTES * step),
            tile: [a.tile, b.tile].map(|tile| BYTES * tile),
        };
        // SAFETY: tiles are configured while `self` lives, which does not leave its thread. `check` has shown that all tiles that are
        // read lie in their numbers, and all rows that are read and written in the results, which are borrowed mutably, as the frame is.
        unsafe {
            asm!(
                "test {term}, {term}",
                "jz 4f",
                "lea {x}, [8 * {apart}]",
                "lea {x}, [{to} + 2 * {x}]",
                "tileloadd tmm0, [{to} + {apart}]",
                "tileloadd tmm1, [{to} + {apart} + 64]",
                "tileloadd tmm2, [{x} + {apart}]",
                "tileloadd tmm3, [{x} + {apart} + 64]",
                "jmp 2f",
                "4:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                // For each step
                "2:",
                "xor {term:e}, {term:e}",
                "mov {kept}, -1",
                // and each of its terms, of which some have the tiles on the right in common:
                "3:",
                "mov {x}, [{terms} + {term}]",
                "mov {y}, [{terms} + {term} + 8]",
                "lea {x}, [{a} + 2 * {x}]",
                "tileloadd tmm4, [{x} + {a_row}]",
                "add {x}, [{frame} + 32]",
                "cmp {y}, {kept}",
                "je 5f",
                "mov {kept}, {y}",
                "lea {y}, [{b} + 2 * {y}]",
                "tileloadd tmm6, [{y} + {b_row}]",
                "add {y}, [{frame} + 40]",
                "tileloadd tmm7, [{y} + {b_row}]",
                "5:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{x} + {a_row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {term}, 16",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "cmp {term}, [{frame} + 8]",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "jne 3b",
                "add {a}, [{frame} + 16]",
                "add {b}, [{frame} + 24]",
                "dec qword ptr [{frame}]",
                "jnz 2b",
                "lea {x}, [8 * {apart}]",
                "lea {x}, [{to} + 2 * {x}]",
                "tilestored [{to} + {apart}], tmm0",
                "tilestored [{to} + {apart} + 64], tmm1",
                "tilestored [{x} + {apart}], tmm2",
                "tilestored [{x} + {apart} + 64], tmm3",
                term = inout(reg) usize::from(add) => _,
                terms = in(reg) terms.as_ptr(),
                a = inout(reg) a.numbers.as_ptr() => _,
                b = inout(reg) b.numbers.as_ptr() => _,
                a_row = in(reg) BYTES * a.row,
                b_row = in(reg) BYTES * b.row,
                x = out(reg) _,
                y = out(reg) _,
                kept = out(reg) _,
                to = in(reg) to.data.as_mut_ptr(),
                apart = in(reg) size_of::<f32>() * to.apart,
                frame = in(reg) &raw mut frame,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Numbers of a product's loop, in bytes but for the steps that are left.
#[derive(Debug)]
#[repr(C)]
struct Frame {
    steps: usize,
    /// Behind the last term.
    end: usize,
    /// From a step of either operand to the next.
    step: [usize; 2],
    /// From the first tile of either operand to the second.
    tile: [usize; 2],
}

//! Fingerprints of what ranks must agree on: two independent lanes of 64 bits. Programs differ by mistake, not by
//! malice, so one multiplication per word and lane is enough.

/// A fingerprint in the making.
#[derive(Debug)]
pub(crate) struct Fingerprint([u64; 2]);

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self([0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344])
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.0[0] = folded(self.0[0] ^ word, 0x9E37_79B9_7F4A_7C15).rotate_left(17);
        self.0[1] = folded(self.0[1].wrapping_add(word), 0xD6E8_FEB8_6659_FD93) ^ word;
    }

    #[cfg(feature = "mpi")]
    pub(crate) fn wide(&mut self, value: u128) {
        self.word(value as u64);
        self.word((value >> 64) as u64);
    }

    pub(crate) fn numbers(&mut self, numbers: &[usize]) {
        numbers.iter().for_each(|&n| self.word(n as u64));
    }

    #[cfg(feature = "mpi")]
    pub(crate) fn print(&mut self, print: [u64; 2]) {
        print.into_iter().for_each(|word| self.word(word));
    }

    #[cfg(any(test, feature = "mpi"))]
    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn done(&self) -> [u64; 2] {
        self.0
    }
}

/// Both halves of a product, folded: every bit of the result depends on every bit of the factors.
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_borders_count() {
        let of = |texts: &[&str]| {
            let mut print = Fingerprint::new();
            texts.iter().for_each(|t| print.text(t));
            print.done()
        };
        let all = [
            of(&["ab", "c"]),
            of(&["a", "bc"]),
            of(&["abc"]),
            of(&["c", "ab"]),
            of(&[]),
            of(&[""]),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a[0] != b[0] && a[1] != b[1]));
        }
    }
}

//! News of failures: messages that nobody asked for. A rank that gives up tells all others; each looks for such news
//! while it waits.

use super::raw::{Mail, World};
use super::tags::NEWS;
use crate::Result;

/// Bytes of a message; longer causes are cut.
const SIZE: usize = 2048;

/// What a rank has to say.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// It, or another one, cannot go on: who, and why.
    Failed { origin: usize, cause: String },
    /// It has ended and waits for the others to do so.
    Ended { rank: usize },
}

/// The ear for news, and what was said and has not been heard yet.
#[derive(Debug)]
pub(super) struct Letterbox {
    incoming: Mail,
    sent: Vec<Mail>,
}

impl Letterbox {
    pub(super) fn new(world: &World) -> Result<Self> {
        let mut incoming = Mail::of_bytes(vec![0; SIZE]);
        incoming.recv_bytes(world, None, NEWS, 0..SIZE)?;
        Ok(Self {
            incoming,
            sent: Vec::new(),
        })
    }

    /// Tells some processes.
    pub(super) fn tell(
        &mut self,
        world: &World,
        to: impl Iterator<Item = usize>,
        news: &News,
    ) -> Result<()> {
        let mut mail = Mail::of_bytes(news.to_bytes());
        for peer in to {
            mail.send_bytes(world, peer, NEWS, 0..SIZE)?;
        }
        // Small enough to be under way at once.
        mail.test()?;
        self.sent.push(mail);
        Ok(())
    }

    /// What has come.
    pub(super) fn look(&mut self, world: &World) -> Result<Option<News>> {
        if !self.incoming.test()? {
            return Ok(None);
        }
        let news = News::from_bytes(self.incoming.bytes());
        self.incoming.recv_bytes(world, None, NEWS, 0..SIZE)?;
        Ok(Some(news))
    }

    /// Closes it; whether everything that was said has left.
    pub(super) fn close(&mut self) -> bool {
        self.incoming.cancel();
        self.sent
            .retain_mut(|mail| !matches!(mail.test(), Ok(true)));
        self.sent.is_empty()
    }
}

impl News {
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, rank, text) = match self {
            Self::Failed { origin, cause } => (0, *origin, cause.as_str()),
            Self::Ended { rank } => (1, *rank, ""),
        };
        let mut bytes = vec![kind];
        bytes.extend((rank as u64).to_le_bytes());
        bytes.extend(text.bytes());
        bytes.resize(SIZE, 0);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[1..9]);
        let rank = u64::from_le_bytes(number) as usize;
        let text = String::from_utf8_lossy(&bytes[9..]);
        let text = text.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]);
        match bytes[0] {
            0 => Self::Failed {
                origin: rank,
                cause: text.to_owned(),
            },
            _ => Self::Ended { rank },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_arrives_as_it_was_sent_or_cut() {
        for cause in ["", "no such file", &"long ".repeat(1000)] {
            let sent = News::Failed {
                origin: 3,
                cause: cause.to_owned(),
            };
            let News::Failed { origin, cause: got } = News::from_bytes(&sent.to_bytes()) else {
                panic!("another kind");
            };
            assert_eq!(origin, 3);
            assert!(cause.starts_with(&got) && (got == cause || got.len() > 2000));
        }
        let ended = News::from_bytes(&News::Ended { rank: 7 }.to_bytes());
        assert!(matches!(ended, News::Ended { rank: 7 }));
    }
}

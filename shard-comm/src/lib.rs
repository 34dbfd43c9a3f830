//! Device memory and communicators: the exchange of pieces between ranks, in process and beyond.

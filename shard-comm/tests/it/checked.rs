//! Checks of what moves, where they cannot be made.

use std::rc::Rc;

use shard_comm::{Checks, CommError, DType, Result, checked, device_of, local, simulated};

/// A sender cannot read what it is to send for a checksum: its reader learns of it, and the group goes on.
#[test]
fn both_ends_hear_that_a_checksum_cannot_be_made() {
    let errors = local::run(2, |comm| -> Result<CommError> {
        let comm = checked(Rc::new(comm), Checks { checksums: true });
        let sent = if comm.rank() == 0 {
            let unreadable = device_of(simulated::PHANTOM, 0)?
                .alloc(DType::F32, 4)?
                .freeze();
            comm.send(1, &unreadable)
        } else {
            comm.recv(0, DType::F32, 4).map(drop)
        };
        comm.barrier()?;
        Ok(sent.expect_err("an error on both ranks"))
    });
    let errors = errors.expect("a launch");
    assert!(matches!(errors[0], Ok(CommError::Agreed(_))), "{errors:?}");
    assert_eq!(errors[0], errors[1]);
}

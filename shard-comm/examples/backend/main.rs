//! A communicator backend of your own, and whether it keeps the contract.
//!
//! The backend is `channels.rs`, made of what anybody can use. Here the programs of [`shard_comm::contract`] run over it, on
//! plain communicators and on checked ones, whose operations are numbered and whose elements are summed.
//!
//! ```text
//! cargo run -p shard-comm --features contract-tests --example backend
//! ```

mod channels;

use std::rc::Rc;
use std::time::Duration;

use shard_comm::{
    Checks, CommError, Communicator, DeviceRef, Host, LaunchError, TestDevice, checked, contract,
};

/// How long ranks wait for each other here.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<(), LaunchError> {
    for ranks in 1..=4 {
        for device in [|| Host::new() as DeviceRef, || TestDevice::new()] {
            let devices = || (0..ranks).map(|_| device()).collect::<Vec<_>>();
            channels::run(devices(), PATIENCE, |comm| contract::all(&comm))?;
            channels::run(devices(), PATIENCE, |comm| {
                let checks = Checks { checksums: true };
                contract::all(&*checked(Rc::new(comm), checks));
            })?;
        }
        println!("{ranks} ranks keep the contract, with and without a queue, plain and checked");
    }
    let causes = early_end()?;
    println!(
        "who waits for a rank that has ended hears of it: {}",
        causes[0]
    );
    Ok(())
}

/// What two ranks hear that wait for a third, which never comes.
fn early_end() -> Result<Vec<CommError>, LaunchError> {
    let devices = (0..3).map(|_| Host::new() as DeviceRef).collect();
    let heard = channels::run(devices, PATIENCE, |comm| {
        let world: &dyn Communicator = &comm;
        (world.rank() < 2).then(|| world.barrier())
    })?;
    let errors: Vec<_> = heard
        .into_iter()
        .flatten()
        .filter_map(Result::err)
        .collect();
    let from_rank_2 = |e: &CommError| matches!(e, CommError::PeerFailed { origin: 2, .. });
    assert!(
        errors.len() == 2 && errors.iter().all(from_rank_2),
        "{errors:?}"
    );
    Ok(errors)
}

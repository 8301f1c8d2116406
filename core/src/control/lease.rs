//! Leases: levels that clients raised for a time. A raised level must end with the client that
//! asked for it.

use std::collections::BTreeMap;

use crate::types::CommId;

/// The request of a client: one communicator, or all, and the level that it gets at least.
pub(super) type Lease = (Option<CommId>, u8);

/// The levels before the first lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Base {
    /// The level of everything without a level of its own, and of communicators made since.
    pub(super) process: u8,
    /// The levels of communicators.
    pub(super) comms: BTreeMap<CommId, u8>,
}

impl Base {
    /// The level in force for a communicator, or for the rest of the process.
    pub(super) fn under(&self, leases: &[Lease], comm: Option<CommId>) -> u8 {
        let own = comm.and_then(|id| self.comms.get(&id)).copied().unwrap_or(self.process);
        let covering = leases.iter().filter(|(of, _)| of.is_none() || *of == comm);
        covering.map(|&(_, level)| level).chain([own]).max().unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_lease_that_covers_a_communicator_holds_and_none_lowers_it() {
        let (a, b, later) = (Some(CommId(1)), Some(CommId(2)), Some(CommId(3)));
        let base = Base { process: 1, comms: BTreeMap::from([(CommId(1), 0), (CommId(2), 2)]) };
        let check = |leases: &[Lease], expect: [u8; 4]| {
            assert_eq!([None, a, b, later].map(|comm| base.under(leases, comm)), expect, "{leases:?}");
        };
        check(&[], [1, 0, 2, 1]);
        check(&[(None, 1)], [1, 1, 2, 1]);
        check(&[(a, 3)], [1, 3, 2, 1]);
        check(&[(a, 2), (None, 3), (b, 0)], [3, 3, 3, 3]);
    }
}

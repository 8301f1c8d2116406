//! One listener and the roots behind it. An id of its own has one root; a public address has one
//! root for each communicator that is created there. All connections share one lobby, and a process
//! that proves that it knows the secret is passed to the root of the communicator that it asks for.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::auth::{Key, Salt};
use super::lobby::Lobby;
use super::machine::{Io, Machine, StreamId};
use super::root::Root;
use crate::clock::Ns;
use crate::types::{CommId, JobId};

/// The roots of one listener, as a machine.
#[derive(Debug, Default)]
pub(crate) struct Door {
    lobby: Lobby,
    roots: BTreeMap<CommId, Root>,
}

impl Door {
    /// A door whose connectors stretch the secret with `salt`, if there is one.
    pub(crate) fn new(salt: Option<Salt>) -> Self {
        Self { lobby: Lobby::with_salt(salt), roots: BTreeMap::new() }
    }

    /// Admits the ranks of one more communicator.
    pub(crate) fn add(&mut self, root: Root) {
        self.roots.insert(root.comm(), root);
    }

    pub(crate) fn root(&self, comm: CommId) -> Option<&Root> {
        self.roots.get(&comm)
    }

    /// Calls the root of a communicator.
    pub(crate) fn with_root(&mut self, comm: CommId, call: impl FnOnce(&mut Root)) {
        if let Some(root) = self.roots.get_mut(&comm) {
            call(root);
        }
    }

    pub(crate) fn has_roots(&self) -> bool {
        !self.roots.is_empty()
    }

    /// Closes all connections that have not proven themselves, once every root has finished.
    pub(crate) fn clear_if_idle(&mut self, io: &mut Io<'_>) {
        if self.roots.values().all(|root| root.outcome().is_some()) {
            self.lobby.close_all(io);
        }
    }

    /// Passes what strangers did to every waiting root: it may be the reason for the wait.
    fn remember_strangers(&mut self) {
        if let Some(remarks) = self.lobby.new_remarks() {
            self.roots.values_mut().for_each(|root| root.strangers_did(&remarks));
        }
    }
}

impl Machine for Door {
    fn accepted(&mut self, stream: StreamId, from: SocketAddr, io: &mut Io<'_>) {
        self.lobby.accepted(stream, from, io);
        self.remember_strangers();
    }

    fn connected(&mut self, _: StreamId, _: &mut Io<'_>) {}

    fn bytes(&mut self, stream: StreamId, bytes: &[u8], io: &mut Io<'_>) {
        if !self.lobby.has(stream) {
            return self.roots.values_mut().for_each(|root| root.heard(stream, bytes, io));
        }
        let lookup = |job: JobId, comm: CommId| -> Option<Key> { self.roots.get(&comm)?.key_of(job) };
        let entered = self.lobby.bytes(stream, bytes, &lookup, io);
        self.remember_strangers();
        let Some(entered) = entered else { return };
        if let Some(root) = self.roots.get_mut(&entered.hello.comm) {
            root.entered(entered, io);
        }
    }

    fn closed(&mut self, stream: StreamId, why: &str, io: &mut Io<'_>) {
        self.lobby.closed(stream);
        self.remember_strangers();
        self.roots.values_mut().for_each(|root| root.closed(stream, why, io));
    }

    fn turn(&mut self, io: &mut Io<'_>) {
        self.lobby.turn(io);
        self.remember_strangers();
        self.roots.values_mut().for_each(|root| root.turn(io));
    }

    fn wake(&self) -> Option<Ns> {
        self.roots.values().filter_map(Root::wake).chain(self.lobby.wake()).min()
    }
}

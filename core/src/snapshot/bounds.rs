//! What is believed of a reading that others have written: no more than a recorder holds, and no text that does anything but
//! stand there. A file, and a process at the other end of a connection, may say anything.

use super::{
    CommSnapshot, LinkSnapshot, OpSnapshot, Overflow, PeerSnapshot, PhaseSnapshot, ProcessSnapshot,
    SocketSnapshot,
};
use crate::text::{harmless, is_harmful};

/// The most communicators of a process: what is said of more is not believed.
pub(crate) const MAX_COMMS: usize = 1 << 10;
/// The same of links, of sockets, and of peers.
pub(crate) const MAX_CELLS: usize = 1 << 14;
/// The same of rings.
pub(crate) const MAX_RINGS: usize = 1 << 10;
/// The most bytes of all texts of a process; those of a full recorder are a tenth of it.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// The most bytes of one text: of a name or a path. It may be repeated for each of a thousand rows.
const MAX_TEXT: usize = 4 << 10;

/// The memory of a row, about, beside its texts.
const ROW: usize = 200;

/// The length up to which a text may grow by being made harmless.
const MAX_ESCAPED: usize = 1 << 10;

impl ProcessSnapshot {
    /// Makes all texts fit to be printed, each on one line; whether a recorder could hold all that this tells.
    #[must_use]
    pub fn is_believed(&mut self) -> bool {
        let mut bytes = 0;
        self.each_text(&mut |text| {
            let told = text.len();
            if told > MAX_TEXT || text.contains(is_harmful) {
                // Escapes are longer than what they stand for; a text without end must not grow by them.
                *text = harmless(text, told.clamp(MAX_ESCAPED, MAX_TEXT)).into_owned();
            }
            bytes += told.max(text.len());
        });
        let [links, sockets, peers, phases] = self.rows();
        bytes <= MAX_TEXT_BYTES
            && self.comms.len() <= MAX_COMMS
            && self.rings.len().max(self.overflow.len()) <= MAX_RINGS
            && [links, sockets, peers, phases].iter().all(|count| *count <= MAX_CELLS)
    }

    /// How much memory this takes, about.
    #[must_use]
    pub fn weight(&mut self) -> usize {
        let mut bytes = 0;
        self.each_text(&mut |text| bytes += text.len());
        let rows = self.rows().iter().sum::<usize>() + self.rings.len() + self.overflow.len();
        bytes + ROW * rows + size_of::<CommSnapshot>() * self.comms.len()
    }

    /// The numbers of links, sockets, peers and phases.
    fn rows(&self) -> [usize; 4] {
        let mut rows = [0; 4];
        for comm in &self.comms {
            let sockets = comm.links.iter().map(|link| link.sockets.len()).sum();
            let of_it = [comm.links.len(), sockets, comm.peers.len(), comm.phases.len()];
            rows.iter_mut().zip(of_it).for_each(|(all, one)| *all += one);
        }
        rows
    }

    /// All texts. Whoever adds a field decides here whether it is one.
    fn each_text(&mut self, take: &mut dyn FnMut(&mut String)) {
        let Self {
            schema, host, host_id, boot_id, library, path, control, settings, comms, overflow, ..
        } = self;
        [schema, host, host_id, boot_id, library, path, control, settings].into_iter().for_each(&mut *take);
        overflow.iter_mut().for_each(|Overflow { table, .. }| take(table));
        for comm in comms {
            let CommSnapshot { name, op, p2p, links, phases, phase, peers, .. } = comm;
            take(name);
            for OpSnapshot { kind, tag, dtype, op, plan, error, .. } in std::iter::once(op).chain(p2p) {
                [kind, tag, dtype, op, plan, error].into_iter().for_each(&mut *take);
            }
            phases.iter_mut().chain(phase).for_each(|PhaseSnapshot { phase, .. }| take(phase));
            for PeerSnapshot { host, recorder, control, .. } in peers {
                [host, recorder, control].into_iter().for_each(&mut *take);
            }
            let sockets = links.iter_mut().flat_map(|LinkSnapshot { sockets, .. }| sockets);
            for SocketSnapshot { local, remote, .. } in sockets {
                [local, remote].into_iter().for_each(&mut *take);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_on_one_line_and_in_its_order() {
        let foreign = "a\nAWAITED rank 9\u{1b}[2J\u{202e}b";
        let shown = "a\\nAWAITED rank 9\\u{1b}[2J\\u{202e}b";
        let op = OpSnapshot { kind: foreign.into(), tag: foreign.into(), ..OpSnapshot::default() };
        let peer = PeerSnapshot { host: foreign.into(), ..PeerSnapshot::default() };
        let mut comm =
            CommSnapshot { name: foreign.into(), p2p: Some(op.clone()), op, ..CommSnapshot::default() };
        comm.peers.push(peer);
        let mut process =
            ProcessSnapshot { host: foreign.into(), comms: vec![comm], ..ProcessSnapshot::default() };
        assert!(process.is_believed());
        let comm = &process.comms[0];
        let p2p = comm.p2p.as_ref().unwrap();
        let texts = [&process.host, &comm.name, &comm.op.kind, &comm.op.tag, &p2p.tag, &comm.peers[0].host];
        assert!(texts.iter().all(|text| *text == shown), "{texts:?}");
    }

    #[test]
    fn a_name_without_end_is_cut_before_it_is_repeated() {
        let mut process = ProcessSnapshot { host: "x".repeat(8 << 20), ..ProcessSnapshot::default() };
        assert!(process.is_believed());
        assert!(process.host.len() <= MAX_TEXT && process.host.ends_with("..."));
    }

    #[test]
    fn more_than_a_recorder_holds_is_not_believed() {
        let check = |expect: bool, change: &dyn Fn(&mut ProcessSnapshot)| {
            let mut process = ProcessSnapshot::default();
            process.comms.resize(2, CommSnapshot::default());
            change(&mut process);
            assert_eq!(process.is_believed(), expect);
        };
        check(true, &|_| {});
        check(true, &|process| process.comms.resize(MAX_COMMS, CommSnapshot::default()));
        check(false, &|process| process.comms.resize(MAX_COMMS + 1, CommSnapshot::default()));
        check(false, &|process| {
            process
                .comms
                .iter_mut()
                .for_each(|comm| comm.links.resize(MAX_CELLS / 2 + 1, LinkSnapshot::default()));
        });
        check(false, &|process| process.comms[1].name = "x".repeat(MAX_TEXT_BYTES + 1));
    }
}

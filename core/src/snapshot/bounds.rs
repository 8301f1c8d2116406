//! The limits for readings that others have written: no more than a recorder holds, and only
//! harmless text. A file, or a process at the other end of a connection, may contain or send
//! anything.

use super::{
    Behind, BlockedOn, Called, CommSnapshot, Culprit, Failure, FailureSnapshot, History, InitSnapshot,
    KindTotals, LinkSnapshot, Missing, Next, NotJoined, OpSnapshot, Overflow, PastOp, PeerSnapshot,
    PhaseSnapshot, PortSnapshot, ProcessFacts, ProcessSnapshot, QueuePairSnapshot, RankSnapshot, Snapshot,
    SocketSnapshot, ThreadFacts, Verdict,
};
use std::collections::BTreeMap;

use crate::text::{harmless, is_harmless};
use crate::types::{CollKind, Rank};

/// The most communicators of a process; a reading with more is not believed.
pub(crate) const MAX_COMMS: usize = 1 << 10;
/// The same for links, for sockets, for queue pairs, and for peers.
pub(crate) const MAX_CELLS: usize = 1 << 14;
/// The same for histograms by kind.
pub(crate) const MAX_DURATIONS: usize = 1 << 12;
/// The same for rings.
pub(crate) const MAX_RINGS: usize = 1 << 10;
/// The same for ports.
pub(crate) const MAX_PORTS: usize = 64;
/// The most threads of a process that are described.
pub const MAX_THREADS: usize = 64;
/// The most bytes of all texts of a process; a full recorder's take a tenth of it.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// The most bytes of one text, such as a name or a path. It may be repeated for each of a thousand
/// rows.
const MAX_TEXT: usize = 4 << 10;

/// The most bytes of a text among facts: a path of a control group is the longest.
const MAX_FACT: usize = 1 << 10;
/// The most operations that a row of history holds.
pub(crate) const MAX_PAST_OPS: usize = 64;

/// The most ranges of absent ranks of an init.
const MAX_ABSENT_RUNS: usize = 3;
/// The most ranks in them: the most ranks of a communicator.
const MAX_ABSENT: u64 = 1 << 16;

/// The approximate memory of a row, without its texts.
const ROW: usize = 200;

/// The length up to which a text may grow by escaping.
const MAX_ESCAPED: usize = 1 << 10;

impl ProcessSnapshot {
    /// Makes all texts safe to print, each on one line; false if a recorder could not hold all of
    /// this.
    #[must_use]
    pub fn is_believed(&mut self) -> bool {
        let mut bytes = 0;
        self.each_text(&mut |text| bytes += make_harmless(text));
        let rows = self.rows();
        bytes <= MAX_TEXT_BYTES
            && self.comms.len() <= MAX_COMMS
            && self.comms.iter().all(CommSnapshot::is_believed)
            && self.facts.threads.len() <= MAX_THREADS
            && self.rings.len().max(self.overflow.len()) <= MAX_RINGS
            && self.ports.len() <= MAX_PORTS
            && rows.iter().all(|count| *count <= MAX_CELLS)
    }

    /// The approximate memory of this snapshot.
    #[must_use]
    pub fn weight(&mut self) -> usize {
        let mut bytes = 0;
        self.each_text(&mut |text| bytes += text.len());
        let rows =
            self.rows().iter().sum::<usize>() + self.rings.len() + self.overflow.len() + self.ports.len();
        let ops: usize = self.comms.iter().map(|comm| comm.history.ops.len()).sum();
        bytes + ROW * rows + size_of::<CommSnapshot>() * self.comms.len() + size_of::<PastOp>() * ops
    }

    /// The numbers of links, sockets, queue pairs, peers and phases.
    fn rows(&self) -> [usize; 5] {
        let mut rows = [0; 5];
        for comm in &self.comms {
            let sockets = comm.links.iter().map(|link| link.sockets.len()).sum();
            let pairs = comm.links.iter().map(|link| link.queue_pairs.len()).sum();
            let of_it = [
                comm.links.len(),
                sockets,
                pairs,
                comm.peers.len().max(comm.groups.len()),
                comm.phases.len(),
            ];
            rows.iter_mut().zip(of_it).for_each(|(all, one)| *all += one);
        }
        rows
    }

    /// Calls `take` for all texts. A new field that is a text must be added here.
    fn each_text(&mut self, take: &mut dyn FnMut(&mut String)) {
        let Self {
            schema,
            host,
            host_id,
            boot_id,
            library,
            path,
            control,
            settings,
            comms,
            ports,
            overflow,
            facts,
            ..
        } = self;
        [schema, host, host_id, boot_id, library, path, control, settings].into_iter().for_each(&mut *take);
        ports.iter_mut().for_each(|port| port.each_text(take));
        overflow.iter_mut().for_each(|Overflow { table, .. }| take(table));
        facts.each_text(take);
        comms.iter_mut().for_each(|comm| comm.each_text(take));
    }
}

impl Snapshot {
    /// Makes all texts safe to print, each on one line; false if no job tells all of this.
    ///
    /// Its length is not limited here: that of the file is.
    #[must_use]
    pub fn is_believed(&mut self) -> bool {
        for rank in &mut self.ranks {
            rank.facts.bound();
            rank.letter = rank.letter.filter(char::is_ascii_alphabetic);
        }
        self.each_text(&mut |text| {
            make_harmless(text);
        });
        let mut comms = self.ranks.iter().flat_map(|rank| &rank.comms);
        self.verdicts.len() <= MAX_COMMS
            && self.culprits_bytes() <= MAX_TEXT_BYTES
            && comms.all(CommSnapshot::is_believed)
    }

    /// The bytes of the hosts of all culprits, once [`renew_steps`](Self::renew_steps) has named
    /// each as its rank is. One that is no rank keeps its own.
    fn culprits_bytes(&self) -> usize {
        let hosts: BTreeMap<Rank, usize> = self.ranks.iter().map(|one| (one.rank, one.host.len())).collect();
        let culprits = self.verdicts.iter().flat_map(|verdict| &verdict.culprits);
        culprits.filter_map(|one| hosts.get(&one.rank)).sum()
    }

    /// Calls `take` for all texts. A new field that is a text must be added here.
    fn each_text(&mut self, take: &mut dyn FnMut(&mut String)) {
        let Self { schema, missing, ranks, blocked_on, failures, not_joined, verdicts, notes, .. } = self;
        std::iter::once(schema).chain(notes).for_each(&mut *take);
        for Missing { host, why, .. } in missing {
            [host, why].into_iter().for_each(&mut *take);
        }
        for RankSnapshot { host, host_id, recorder, boot_id, comms, ports, .. } in ranks {
            ports.iter_mut().for_each(|port| port.each_text(take));
            [host, host_id, recorder, boot_id].into_iter().for_each(&mut *take);
            comms.iter_mut().for_each(|comm| comm.each_text(take));
        }
        for BlockedOn { op, name, tag, culprits, waits_in, behind, .. } in blocked_on {
            [op, name, tag].into_iter().for_each(&mut *take);
            culprits.iter_mut().for_each(|Culprit { host, .. }| take(host));
            for Behind { name, op, .. } in waits_in.iter_mut().chain(behind) {
                [name, op].into_iter().for_each(&mut *take);
            }
        }
        for Failure { name, error, op, text, culprits, calls, .. } in failures {
            [name, error, op, text].into_iter().for_each(&mut *take);
            culprits.iter_mut().for_each(|Culprit { host, .. }| take(host));
            calls.iter_mut().for_each(|Called { call, .. }| take(call));
        }
        not_joined.iter_mut().for_each(|NotJoined { name, .. }| take(name));
        for Verdict { name, op, why, culprits, evidence, next, .. } in verdicts {
            [name, op, why].into_iter().chain(evidence).for_each(&mut *take);
            culprits.iter_mut().for_each(|Culprit { host, .. }| take(host));
            for Next { host, command, what } in next {
                [host, command, what].into_iter().for_each(&mut *take);
            }
        }
    }
}

impl CommSnapshot {
    /// Whether a row could hold its init and its history.
    fn is_believed(&self) -> bool {
        self.init.as_ref().is_none_or(InitSnapshot::is_believed) && self.history.is_believed()
    }

    fn each_text(&mut self, take: &mut dyn FnMut(&mut String)) {
        let Self { name, op, p2p, links, phases, phase, peers, failure, history, .. } = self;
        take(name);
        history.kinds.iter_mut().for_each(|KindTotals { kind, .. }| take(kind));
        if let Some(FailureSnapshot { error, text, .. }) = failure {
            [error, text].into_iter().for_each(&mut *take);
        }
        for OpSnapshot { kind, tag, dtype, op, plan, algorithm, topology, error, .. } in
            std::iter::once(op).chain(p2p)
        {
            [kind, tag, dtype, op, plan, algorithm, topology, error].into_iter().for_each(&mut *take);
        }
        phases.iter_mut().chain(phase).for_each(|PhaseSnapshot { phase, .. }| take(phase));
        for PeerSnapshot { host, recorder, control, .. } in peers {
            [host, recorder, control].into_iter().for_each(&mut *take);
        }
        for LinkSnapshot { sockets, queue_pairs, .. } in links {
            for SocketSnapshot { local, remote, .. } in sockets {
                [local, remote].into_iter().for_each(&mut *take);
            }
            for QueuePairSnapshot { device, address, peer_address, error, .. } in queue_pairs {
                [device, address, peer_address].into_iter().for_each(&mut *take);
                error.iter_mut().for_each(|error| take(&mut error.name));
            }
        }
    }
}

impl PortSnapshot {
    fn each_text(&mut self, take: &mut dyn FnMut(&mut String)) {
        let Self { device, address, event, .. } = self;
        [device, address].into_iter().for_each(&mut *take);
        event.iter_mut().for_each(|event| take(&mut event.name));
    }
}

/// Makes a text safe to print; gives how long it was or has become.
fn make_harmless(text: &mut String) -> usize {
    let told = text.len();
    if told > MAX_TEXT || !is_harmless(text) {
        // Escapes are longer than the characters they replace; a very long text must not grow by
        // them.
        *text = harmless(text, told.clamp(MAX_ESCAPED, MAX_TEXT)).into_owned();
    }
    told.max(text.len())
}

impl ProcessFacts {
    /// Makes all texts safe to print, each on one line, and leaves out threads beyond the bound.
    pub fn bound(&mut self) {
        self.threads.truncate(MAX_THREADS);
        self.each_text(&mut |text| {
            if text.len() > MAX_FACT || !is_harmless(text) {
                *text = harmless(text, MAX_FACT).into_owned();
            }
        });
        self.threads.iter_mut().for_each(|one| one.letter = one.letter.filter(char::is_ascii_alphabetic));
    }

    fn each_text(&mut self, take: &mut dyn FnMut(&mut String)) {
        take(&mut self.cgroup);
        self.stall.iter_mut().for_each(|told| take(&mut told.text));
        for ThreadFacts { name, wchan, syscall, .. } in &mut self.threads {
            [name, wchan, syscall].into_iter().for_each(&mut *take);
        }
    }
}

impl History {
    /// Whether a row could hold these operations, and a communicator these kinds.
    fn is_believed(&self) -> bool {
        let is_ascending = self.ops.windows(2).all(|two| two[0].seq < two[1].seq);
        let times = |op: &PastOp| op.called_ns <= op.ended_ns && op.waited_ns <= op.ended_ns - op.called_ns;
        self.ops.len() <= MAX_PAST_OPS
            && self.kinds.len() <= CollKind::ALL.len()
            && is_ascending
            && self.ops.iter().all(times)
    }
}

impl InitSnapshot {
    /// Whether a recorder could hold these ranges, which readers expand to ranks.
    fn is_believed(&self) -> bool {
        let mut ranks = 0;
        for (first, last) in &self.absent_runs {
            let Some(more) = last.0.checked_sub(first.0) else { return false };
            ranks += u64::from(more) + 1;
        }
        self.absent_runs.len() <= MAX_ABSENT_RUNS
            && ranks <= u64::from(self.absent.unwrap_or(0)).min(MAX_ABSENT)
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
    fn facts_are_cut_and_harmless() {
        let thread = ThreadFacts {
            name: "a\u{1b}[2J".into(),
            wchan: "x".repeat(1 << 20),
            letter: Some('\n'),
            ..ThreadFacts::default()
        };
        let mut facts = ProcessFacts { threads: vec![thread; MAX_THREADS + 9], ..ProcessFacts::default() };
        facts.bound();
        let first = &facts.threads[0];
        assert_eq!((facts.threads.len(), first.name.as_str(), first.letter), (64, "a\\u{1b}[2J", None));
        assert_eq!(first.wchan.len(), MAX_FACT);
    }

    #[test]
    fn a_name_without_end_is_cut_before_it_is_repeated() {
        let mut process = ProcessSnapshot { host: "x".repeat(8 << 20), ..ProcessSnapshot::default() };
        assert!(process.is_believed());
        assert!(process.host.len() <= MAX_TEXT && process.host.ends_with("..."));
    }

    /// A job with one of everything, each with its texts.
    fn one_of_everything() -> Snapshot {
        let text = || String::from("x");
        let op = OpSnapshot { algorithm: text(), topology: text(), error: text(), ..OpSnapshot::default() };
        let error = Some(crate::snapshot::WorkFailure::default());
        let pair = QueuePairSnapshot { error, ..QueuePairSnapshot::default() };
        let link = LinkSnapshot {
            sockets: vec![SocketSnapshot::default()],
            queue_pairs: vec![pair],
            ..LinkSnapshot::default()
        };
        let event = Some(crate::snapshot::PortEvent::default());
        let port = PortSnapshot { event, ..PortSnapshot::default() };
        let comm = CommSnapshot {
            p2p: Some(op.clone()),
            op,
            links: vec![link],
            phases: vec![PhaseSnapshot::default()],
            phase: Some(PhaseSnapshot::default()),
            peers: vec![PeerSnapshot::default()],
            failure: Some(FailureSnapshot::default()),
            history: History { ops: Vec::new(), kinds: vec![KindTotals::default()] },
            ..CommSnapshot::default()
        };
        let thread = ThreadFacts { wchan: text(), syscall: text(), ..ThreadFacts::default() };
        let stall = Some(crate::snapshot::StallTold::default());
        let facts = ProcessFacts { cgroup: text(), stall, threads: vec![thread], ..ProcessFacts::default() };
        let (culprits, behind) = (vec![Culprit::default()], vec![Behind::default()]);
        Snapshot {
            missing: vec![Missing::default()],
            ranks: vec![RankSnapshot {
                comms: vec![comm],
                facts,
                ports: vec![port],
                boot_id: text(),
                ..RankSnapshot::default()
            }],
            blocked_on: vec![BlockedOn {
                culprits: culprits.clone(),
                waits_in: behind.clone(),
                behind,
                ..BlockedOn::default()
            }],
            failures: vec![Failure {
                culprits: culprits.clone(),
                calls: vec![Called::default()],
                ..Failure::default()
            }],
            not_joined: vec![NotJoined::default()],
            verdicts: vec![Verdict {
                culprits,
                evidence: vec![text()],
                next: vec![Next::default()],
                ..Verdict::default()
            }],
            notes: vec![text()],
            ..Snapshot::default()
        }
    }

    #[test]
    fn each_text_of_a_job_is_harmless() {
        fn steer(value: &mut serde_json::Value) -> usize {
            use serde_json::Value;
            match value {
                Value::String(text) if text.is_empty() || text == "x" => {
                    *text = "\u{1b}[2J".into();
                    1
                }
                Value::Array(all) => all.iter_mut().map(steer).sum(),
                Value::Object(all) => all.values_mut().map(steer).sum(),
                _ => 0,
            }
        }
        let mut written = serde_json::to_value(one_of_everything()).unwrap();
        assert!(steer(&mut written) > 50, "{written}");
        let mut job: Snapshot = serde_json::from_value(written).unwrap();
        assert!(job.is_believed());
        let written = serde_json::to_string(&job).unwrap();
        assert!(!written.contains("\\u001b"), "{written}");
    }

    #[test]
    fn a_job_that_would_take_readers_for_ever_is_not_believed() {
        let mut job = one_of_everything();
        let runs = vec![(Rank(0), Rank(u32::MAX))];
        job.ranks[0].comms[0].init =
            Some(InitSnapshot { absent: Some(u32::MAX), absent_runs: runs, ..InitSnapshot::default() });
        assert!(!job.is_believed());
        let mut job = one_of_everything();
        job.verdicts.resize(MAX_COMMS + 1, Verdict::default());
        assert!(!job.is_believed());
    }

    #[test]
    fn a_long_host_is_not_repeated_for_many_culprits() {
        let check = |host: usize, rank: u32, culprits: usize, expect: bool| {
            let mut job = one_of_everything();
            job.ranks[0].host = "x".repeat(host);
            let culprit = Culprit { rank: Rank(rank), ..Culprit::default() };
            job.verdicts = vec![Verdict { culprits: vec![culprit; culprits], ..Verdict::default() }; 2];
            assert_eq!(job.is_believed(), expect, "{host} {rank} {culprits}");
        };
        let most = MAX_TEXT_BYTES / MAX_TEXT / 2;
        check(MAX_TEXT, 0, most, true);
        check(MAX_TEXT, 0, most + 1, false);
        check(64, 0, most + 1, true);
        // Those that have not joined are no ranks, and may be many.
        check(MAX_TEXT, 1, 1 << 16, true);
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
        check(true, &|process| process.facts.threads.resize(MAX_THREADS, ThreadFacts::default()));
        check(false, &|process| process.facts.threads.resize(MAX_THREADS + 1, ThreadFacts::default()));
        check(false, &|process| {
            process
                .comms
                .iter_mut()
                .for_each(|comm| comm.links.resize(MAX_CELLS / 2 + 1, LinkSnapshot::default()));
        });
        check(true, &|process| process.ports.resize(MAX_PORTS, PortSnapshot::default()));
        check(false, &|process| process.ports.resize(MAX_PORTS + 1, PortSnapshot::default()));
        check(false, &|process| {
            process.comms[0].links.resize(1, LinkSnapshot::default());
            process.comms[0].links[0].queue_pairs.resize(MAX_CELLS + 1, QueuePairSnapshot::default());
        });
        check(false, &|process| process.comms[1].name = "x".repeat(MAX_TEXT_BYTES + 1));
        let kept = |ops: &[(u64, u64, u64, u64)]| History {
            ops: ops
                .iter()
                .map(|(seq, called_ns, waited_ns, ended_ns)| PastOp {
                    seq: *seq,
                    called_ns: *called_ns,
                    waited_ns: *waited_ns,
                    ended_ns: *ended_ns,
                    ..PastOp::default()
                })
                .collect(),
            kinds: Vec::new(),
        };
        check(true, &|process| process.comms[1].history = kept(&[(1, 5, 2, 7), (2, 8, 0, 9)]));
        check(false, &|process| process.comms[1].history = kept(&[(2, 5, 2, 7), (1, 8, 0, 9)]));
        check(false, &|process| process.comms[1].history = kept(&[(1, 7, 0, 5)]));
        check(false, &|process| process.comms[1].history = kept(&[(1, 5, 3, 7)]));
        check(false, &|process| process.comms[1].history = kept(&vec![(1, 5, 2, 7); MAX_PAST_OPS + 1]));
        check(false, &|process| process.comms[1].history.kinds.resize(99, KindTotals::default()));
        // They are listed rank by rank.
        let lacks = |absent: u32, runs: &[(u32, u32)]| {
            let absent_runs = runs.iter().map(|(first, last)| (Rank(*first), Rank(*last))).collect();
            Some(InitSnapshot { absent: Some(absent), absent_runs, ..InitSnapshot::default() })
        };
        check(true, &|process| process.comms[1].init = lacks(5, &[(0, 1), (4, 4), (6, 7)]));
        check(false, &|process| process.comms[1].init = lacks(5, &[(0, 1), (4, 4), (6, 8)]));
        check(false, &|process| process.comms[1].init = lacks(9, &[(0, 0), (2, 2), (4, 4), (6, 6)]));
        check(false, &|process| process.comms[1].init = lacks(9, &[(2, 1)]));
        check(false, &|process| process.comms[1].init = lacks(u32::MAX, &[(0, u32::MAX - 1)]));
    }
}

//! Rounds of `kill -9`: the errors of the survivors, how soon they come, and what remains.

use std::fmt;
use std::time::Duration;

use ccl::event::Event;
use ccl::recorder::Reader;
use ccl::recorder::reader::Cursor;
use ccl::types::Phase;
use ccl::{CollKind, Rank, clock};
use rustix::process::Signal;

use crate::job::{Job, Line, Setting, Transport, Worker};
use crate::orders::Orders;
use ccl::seed::Seed;

/// How long survivors on the victim's host may take to report the error.
pub const ON_HOST: Duration = Duration::from_secs(1);
/// The same for survivors on other hosts.
pub const ACROSS: Duration = Duration::from_secs(2);

/// One death: which rank dies, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Death {
    /// The seed for the moment and the operation.
    pub seed: u64,
    /// Number of ranks.
    pub nranks: u32,
    /// How the ranks reach each other.
    pub transport: Transport,
    /// The rank that dies.
    pub victim: u32,
    /// Another rank that dies at the same moment.
    pub with: Option<u32>,
    /// Whether the victim leaves a child that it forked.
    pub has_child: bool,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, nranks, transport, victim, with, has_child } = self;
        write!(f, "seed {seed}: rank {victim} of {nranks} over {transport:?}")?;
        if let Some(with) = with {
            write!(f, ", with rank {with}")?;
        }
        if *has_child {
            f.write_str(", with a living child")?;
        }
        Ok(())
    }
}

/// The result of a round.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Shown {
    /// The time from the kill to the error, per survivor.
    pub latencies: Vec<Duration>,
    /// Everything that is not as it must be.
    pub wrong: Vec<String>,
}

impl Death {
    fn host(&self, rank: u32) -> bool {
        self.transport == Transport::Mixed && rank >= self.nranks / 2
    }

    fn dies(&self, rank: u32) -> bool {
        rank == self.victim || Some(rank) == self.with
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it could not be run.
    pub fn carry_out(&self) -> Result<Shown, String> {
        let (orders, mut seed) = self.orders();
        let mut job = Setting::new(self.nranks, self.transport, orders).start();
        job.works()?;
        clock::sleep(Duration::from_micros(seed.below(30_000)));
        self.kill_and_look(&mut job)
    }

    fn orders(&self) -> (Orders, Seed) {
        let mut seed = Seed(self.seed);
        let kinds = [
            CollKind::AllReduce,
            CollKind::AllGather,
            CollKind::ReduceScatter,
            CollKind::Barrier,
            CollKind::AllToAll,
            CollKind::Send,
        ];
        let orders = Orders {
            kind: seed.one_of(&kinds),
            count: seed.one_of(&[1, 1000, 100_000]),
            victim: self.victim,
            fork: self.has_child,
            stay: true,
            retry: true,
            ..Orders::default()
        };
        (orders, seed)
    }

    /// Kills a rank during init or soon after.
    ///
    /// If the victim dies before it has checked in, the error names it at the deadline; if it dies
    /// later, the error names it at once.
    ///
    /// # Errors
    /// A survivor reports nothing.
    pub fn carry_out_early(&self) -> Result<Shown, String> {
        const DEADLINE: Duration = Duration::from_secs(2);
        let (orders, mut seed) = self.orders();
        let mut setting = Setting::new(self.nranks, self.transport, Orders { fork: false, ..orders });
        setting.variables.push(("CCL_INIT_TIMEOUT".into(), DEADLINE.as_secs().to_string()));
        let job = setting.start();
        clock::sleep(Duration::from_micros(seed.below(60_000)));
        let killed = clock::now();
        job.workers[self.victim as usize].signal(Signal::KILL);
        let mut shown = Shown::default();
        for (rank, worker) in job.others(self.victim) {
            let error = error_of(worker)?;
            let Line::Error { at_ns, kind, text, .. } = &error else { continue };
            let took = clock::Ns(*at_ns).since(killed);
            let limit = if kind == "Timeout" { DEADLINE + ACROSS } else { ACROSS };
            // Rank 0 holds the bootstrap root.
            let is_named = text.contains(&format!("rank {}", self.victim))
                || self.victim == 0 && text.contains("the bootstrap root");
            if took > limit || !is_named {
                shown.wrong.push(format!("rank {rank} says after {took:?}: {text}"));
            }
            shown.latencies.push(took);
            shown.wrong.extend(left_over(worker)?.iter().map(|what| format!("rank {rank} has left {what}")));
        }
        // The next process in the folder removes what the victim left.
        ccl::control::server::sweep(&job.recorders());
        let sockets = job.files().into_iter().filter(|name| !name.ends_with(".rec"));
        shown.wrong.extend(sockets.map(|name| format!("{name} is left")));
        Ok(shown)
    }

    /// Kills in a job that works, and checks what follows.
    ///
    /// # Errors
    /// A survivor reports nothing.
    pub fn kill_and_look(&self, job: &mut Job) -> Result<Shown, String> {
        let mut shown = Shown::default();
        let killed = clock::now();
        for rank in (0..self.nranks).filter(|rank| self.dies(*rank)) {
            job.workers[rank as usize].signal(Signal::KILL);
        }
        for rank in (0..self.nranks).filter(|rank| !self.dies(*rank)) {
            let worker = &job.workers[rank as usize];
            let error = error_of(worker)?;
            let Line::Error { at_ns, .. } = &error else { continue };
            let took = clock::Ns(*at_ns).since(killed);
            let limit = if self.host(rank) == self.host(self.victim) { ON_HOST } else { ACROSS };
            if took > limit {
                shown.wrong.push(format!("rank {rank} spoke after {took:?}: {error:?}"));
            }
            shown.latencies.push(took);
            shown.wrong.extend(self.judge(rank, &error));
        }
        for rank in (0..self.nranks).filter(|rank| !self.dies(*rank)) {
            let worker = &mut job.workers[rank as usize];
            shown.wrong.extend(left_over(worker)?.iter().map(|what| format!("rank {rank} has left {what}")));
            worker.go();
            let status = worker.wait()?;
            if status.code() != Some(1) {
                shown.wrong.push(format!("rank {rank} ended with {status}"));
            }
            let again = Line::Note { text: "again: Err(Peer)".into() };
            if !worker.said().contains(&again) {
                shown.wrong.push(format!("rank {rank} was taken another call from: {:?}", worker.said()));
            }
        }
        job.kill();
        if self.with.is_some() {
            // The second victim may have outlived the survivors' last look: its socket is for the
            // next process.
            ccl::control::server::sweep(&job.recorders());
        }
        let files = job.files();
        let recorders = files.iter().filter(|name| name.ends_with(".rec")).count();
        if recorders != self.nranks as usize || files.len() != recorders {
            shown.wrong.push(format!("of {} failed processes there are {files:?}", self.nranks));
        }
        shown.wrong.extend(self.evidence(job)?);
        Ok(shown)
    }

    /// Checks that every survivor has recorded one loss of a dead rank.
    ///
    /// If two die at once, the second may have recorded one, too.
    fn evidence(&self, job: &Job) -> Result<Vec<String>, String> {
        let mut wrong = Vec::new();
        let mut told = 0;
        for name in job.files().iter().filter(|name| name.ends_with(".rec")) {
            let reader = Reader::open(job.recorders().join(name)).map_err(|e| e.to_string())?;
            let rings = reader.events(&mut Cursor::default()).map_err(|e| e.to_string())?;
            let events: Vec<_> = rings.iter().flat_map(|ring| &ring.events).collect();
            let made = events.iter().filter_map(|one| match one.event {
                Event::PhaseEnded { phase, .. } => Some((phase, one.raw)),
                _ => None,
            });
            let made: Vec<_> = made.collect();
            // Many operations may have followed: if the ring has lost the oldest events, the
            // communicator's row still has them.
            let lost: u64 = rings.iter().map(|ring| ring.lost).sum();
            let order = Phase::INIT.iter().copied().skip(Phase::INIT.len().saturating_sub(made.len()));
            let in_order = made.iter().map(|(phase, _)| *phase).eq(order);
            let all = lost > 0 || made.len() == Phase::INIT.len();
            if !in_order || !all || !made.is_sorted_by_key(|(_, raw)| *raw) {
                wrong.push(format!("{name} has lost {lost} events and says that it was made so: {made:?}"));
            }
            let snapshot = reader.snapshot().map_err(|e| e.to_string())?;
            for comm in &snapshot.comms {
                let shown = comm.phases.iter().map(|one| one.phase.clone());
                if !shown.eq(Phase::INIT.iter().map(ToString::to_string)) {
                    wrong.push(format!("{name} shows these phases: {:?}", comm.phases));
                }
            }
            let lost = events.iter().filter_map(|one| match one.event {
                Event::PeerLost { peer } => Some(peer),
                _ => None,
            });
            let lost: Vec<Rank> = lost.collect();
            told += usize::from(!lost.is_empty());
            if lost.len() > 1 || lost.iter().any(|peer| !self.dies(peer.0)) {
                wrong.push(format!("{name} says that these were lost: {lost:?}"));
            }
        }
        let survivors = (0..self.nranks).filter(|rank| !self.dies(*rank)).count();
        if told < survivors {
            wrong.push(format!("{told} of {survivors} survivors have recorded whom they lost"));
        }
        Ok(wrong)
    }

    /// An error must name one of the dead, the operation and the channel.
    fn judge(&self, rank: u32, error: &Line) -> Vec<String> {
        let Line::Error { kind, text, op, peer, channel, .. } = error else { return Vec::new() };
        let is_named = peer.is_some_and(|peer| self.dies(peer) && text.contains(&format!("rank {peer}")))
            && op.as_ref().is_some_and(|op| text.contains(op.as_str()))
            && channel.is_some()
            && text.contains("channel ");
        if kind == "Peer" && is_named {
            return Vec::new();
        }
        vec![format!("rank {rank} says {kind}, op {op:?}, peer {peer:?}, channel {channel:?}: {text}")]
    }
}

/// How a survivor's call failed.
fn error_of(worker: &Worker) -> Result<Line, String> {
    let is_error = |line: &Line| matches!(line, Line::Error { .. }).then(|| line.clone());
    Ok(worker.hear("its error", 1, is_error)?.remove(0))
}

/// What a survivor had not freed.
fn left_over(worker: &Worker) -> Result<Vec<String>, String> {
    let left = |line: &Line| match line {
        Line::Left { left_over } => Some(left_over.clone()),
        _ => None,
    };
    Ok(worker.hear("what is left", 1, left)?.remove(0))
}

/// The rounds of one size: over each transport, every rank dies in turn.
#[must_use]
pub fn rounds(seed: u64, count: u64) -> Vec<Death> {
    let transports = [Transport::Shm, Transport::Socket, Transport::Mixed];
    let mut deaths = Vec::new();
    for transport in transports {
        for round in 0..count {
            let seed = seed.wrapping_mul(1000).wrapping_add(round);
            let (nranks, victim) = (4, (round % 4) as u32);
            // Every fourth round with a child, every eighth with a second victim.
            let has_child = round % 4 == 1;
            let with = (round % 8 == 6).then_some((victim + 2) % nranks);
            deaths.push(Death { seed, nranks, transport, victim, with, has_child });
        }
    }
    deaths
}

//! Which claims are false, compared with the draw and with the ranks' own reports.
//!
//! A rank reports a step before it takes it, and may be descheduled in between: a call that is
//! claimed to be missing may have been announced up to `GRACE` ago. No claimed time may be longer
//! than the real one.

use std::time::Duration;

use ccl::clock::Ns;

use super::claim::{Call, Claim, End, How, Stand};
use super::draw::{Class, Draw};
use super::timeline::{Made, Timeline};
use super::verdict;
use crate::scripts::Network;

/// How long after its report a rank may begin a step, on a busy machine.
const GRACE: Duration = Duration::from_millis(500);
/// How much shorter than in reality a time may be claimed.
///
/// Waits are recorded anew while ranks arrive.
const SHORTER: Duration = Duration::from_millis(1_200);
/// The error of rounding a time.
const ROUNDING: Duration = Duration::from_millis(60);
/// The largest age of the last sign of life of a rank that ended.
const SIGN_OF_LIFE: Duration = Duration::from_millis(2_500);
/// Shorter waits are not reported.
const SHORT: Duration = Duration::from_millis(100);
/// How long it may take on a busy machine until the bootstrap root reports.
const STARTING: Duration = Duration::from_secs(5);
/// The seconds until init gives up.
const INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// How the job is inspected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum View {
    /// It runs, and answers.
    Live,
    /// Its service threads are stuck.
    Mapping,
    /// All its processes have ended.
    Files,
}

/// The time of an inspection, and the facts at that time.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// The draw.
    pub draw: &'a Draw,
    /// What each rank did, also later.
    pub lines: &'a [Timeline],
    /// The process of each rank.
    pub pids: &'a [u32],
    /// The host.
    pub host: &'a str,
    /// How it is inspected.
    pub view: View,
    /// The beginning of the inspection.
    pub from: Ns,
    /// The end of the inspection.
    pub to: Ns,
    /// When the first process was started.
    pub started: Ns,
    /// When the service threads were blocked.
    pub stuck: Option<Ns>,
    /// The offset from a time to nanoseconds since 1970.
    pub real_ns: u64,
    /// The time since which nothing happens; `None` if the job is at work.
    pub quiet: Option<Ns>,
}

/// `Err` gives the reason why a claim is false.
type Judged = Result<(), String>;

fn must(is_so: bool, why: impl FnOnce() -> String) -> Judged {
    if is_so { Ok(()) } else { Err(why()) }
}

const fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

impl Scene<'_> {
    /// Judges a claim.
    ///
    /// # Errors
    /// Why it is false.
    pub fn judge(&self, claim: &Claim) -> Judged {
        match claim {
            Claim::Verdict { class, reason, culprits, .. } => {
                verdict::judge(self.draw, self.view, (class, reason.as_deref()), culprits.as_deref())
            }
            Claim::NobodyWaits => self.nobody_waits(),
            Claim::NotCalled { ranks, call } => self.each(ranks, |rank| self.not_called(rank, call)),
            Claim::Inside { ranks, call } => self.each(ranks, |rank| self.is_inside(rank, call)),
            // A rank that was stopped before all died is known only by its silence.
            Claim::MayBe { ranks } if ranks.is_empty() && self.view == View::Files => {
                must(self.draw.class == Class::Stopped, || "it follows from what was read".into())
            }
            Claim::MayBe { ranks } => Err(format!("all ranks can be read, also {ranks:?}")),
            Claim::Wait { ranks, call, or_later, for_ns } => self.wait(ranks, call, *or_later, *for_ns),
            Claim::Tag { ranks, tag } => self.each(ranks, |rank| self.tag(rank, tag)),
            Claim::WaitsFor { rank, peer, for_ns, transport } => {
                self.waits_for(*rank, *peer, *for_ns, transport)
            }
            Claim::WaitedFor { rank, peer, for_ns } => self.waited_for(*rank, *peer, *for_ns),
            Claim::NotJoined { ranks, by, for_ns, gives_up_ns } => {
                self.not_joined(ranks, by, *for_ns, *gives_up_ns)
            }
            Claim::NobodyMissing => {
                let starting = self.to.since(self.started) < STARTING;
                must(starting || self.draw.class != Class::NeverJoined, || "one is missing".into())?;
                must(self.lines.iter().any(|line| line.ready.is_none_or(|ready| ready >= self.from)), || {
                    "all are out of init".into()
                })
            }
            Claim::Heard { ranks, of } => {
                let started = (0..self.draw.nranks).filter(|rank| self.is_started(*rank)).count();
                must((*ranks as usize, *of) == (started, self.draw.nranks), || {
                    format!("{started} have joined")
                })
            }
            Claim::Ended { rank, end } => self.ended(*rank, *end),
            Claim::Finishes { rank, calls } => {
                let after = self.line(*rank)?.finished_after();
                let is_so = after.is_some() && (calls.is_none() || *calls == after);
                must(is_so, || format!("rank {rank} finishes after {after:?}"))
            }
            Claim::HadNotCalled { ranks, call } => self.each(ranks, |rank| self.had_not_called(rank, call)),
            Claim::LivesOn { rank } => {
                let line = self.line(*rank)?;
                let is_so = line.gave_back.is_some_and(|at| at <= self.to) && !line.is_gone(self.from);
                must(is_so, || format!("rank {rank} has not left, or has ended: {line}"))
            }
            Claim::LastSign { rank, seconds } => self.last_sign(*rank, *seconds),
            Claim::SilentFirst { rank, before_ns } => self.silent_first(*rank, *before_ns),
            Claim::Blamed { ranks } => self.each(ranks, |rank| self.is_to_blame(rank)),
            Claim::Failed { ranks, call, error, ago_ns, lasted_ns } => {
                self.failed(ranks, call.as_ref(), error, *ago_ns, *lasted_ns)
            }
            Claim::Called { ranks, kind, seq, how } => {
                self.each(ranks, |rank| self.called(rank, kind, *seq, how.as_ref()))
            }
            Claim::Process { rank, pid, host, state } => {
                self.process(*rank, *pid, host.as_deref(), state.as_deref())
            }
            Claim::From { rank, source } => self.source(*rank, source),
            Claim::At { rank, call, stand, for_ns, tag } => {
                self.at(*rank, call.as_ref(), stand, *for_ns, tag)
            }
            Claim::InInit { rank } => {
                let line = self.line(*rank)?;
                let (from, _) = self.window(line);
                must(line.ready.is_none_or(|ready| ready >= from), || "it is out of init".into())
            }
            Claim::Counters { counters: [posted, moved, done], .. } => {
                must(posted >= moved && moved >= done, || {
                    "more was done than moved, or moved than posted".into()
                })
            }
            // Ranks learn from the root where the others are: before that, some are not found.
            Claim::NotRead { rank, why } => {
                let is_early = self.draw.class == Class::NeverJoined;
                must(is_early || !self.is_started(*rank), || "it could be read".into())?;
                must(!why.is_empty(), || "it does not say why".into())
            }
            Claim::Read { ranks, of } => {
                let started = (0..self.draw.nranks).filter(|rank| self.is_started(*rank)).count();
                let is_early = self.draw.class == Class::NeverJoined && *ranks < started;
                let all = self.draw.nranks as usize;
                must((is_early || *ranks == started) && *of == all, || {
                    format!("there are {started} of {all}")
                })
            }
            Claim::NoAnswer { pid } => {
                let rank = self.pids.iter().position(|one| one == pid);
                let line = rank.and_then(|rank| self.lines.get(rank)).ok_or("it is not of this job")?;
                must(!line.is_gone(self.from), || "it has ended".into())
            }
        }
    }

    /// The ranks that a claim blames, or reports to block others.
    #[must_use]
    pub fn named(claim: &Claim) -> &[u32] {
        match claim {
            Claim::NotCalled { ranks, .. }
            | Claim::Inside { ranks, .. }
            | Claim::NotJoined { ranks, .. }
            | Claim::Blamed { ranks } => ranks,
            Claim::SilentFirst { rank, .. } => std::slice::from_ref(rank),
            _ => &[],
        }
    }

    /// Judges whether a wait is long enough to be reported in the text.
    ///
    /// # Errors
    /// It is a short one.
    pub fn is_worth_saying(claim: &Claim) -> Judged {
        match claim {
            Claim::Wait { for_ns, .. } => {
                must(*for_ns == 0 || Duration::from_nanos(*for_ns) >= SHORT, || {
                    "it is too short to be said".into()
                })
            }
            _ => Ok(()),
        }
    }

    fn each(&self, ranks: &[u32], judge: impl Fn(u32) -> Judged) -> Judged {
        ranks.iter().try_for_each(|rank| judge(*rank).map_err(|why| format!("rank {rank}: {why}")))
    }

    fn line(&self, rank: u32) -> Result<&Timeline, String> {
        self.lines.get(rank as usize).ok_or_else(|| format!("there is no rank {rank}"))
    }

    fn is_started(&self, rank: u32) -> bool {
        self.draw.steps.get(rank as usize).is_some_and(|steps| !steps.is_empty())
    }

    /// When a rank fell silent: it ended, was stopped, or its service thread was stuck.
    fn silent(&self, line: &Timeline) -> Option<Ns> {
        [line.gone, line.stopped, self.stuck].into_iter().flatten().min()
    }

    /// The times that a statement on a rank may be about.
    ///
    /// Now, or the last sign of life if the rank has ended.
    fn window(&self, line: &Timeline) -> (Ns, Ns) {
        match line.gone.filter(|gone| *gone <= self.to) {
            Some(gone) => {
                let sign = self.silent(line).unwrap_or(gone).0;
                (Ns(sign.saturating_sub(SIGN_OF_LIFE.as_nanos() as u64)), gone)
            }
            None => (self.from, self.to),
        }
    }

    /// Whether the call was under way at some time of the window.
    fn is_under_way(made: &Made, (from, to): (Ns, Ns)) -> bool {
        made.from <= to && made.to.is_none_or(|ended| ended >= from)
    }

    fn nobody_waits(&self) -> Judged {
        // Every started rank was in init until the end.
        must(self.view != View::Files || self.draw.class != Class::NeverJoined, || {
            "all waited in init".into()
        })?;
        let Some(_) = self.quiet else { return Ok(()) };
        for (rank, line) in (0..).zip(self.lines) {
            let (from, to) = self.window(line);
            let from = if self.view == View::Files { to } else { from };
            let waits = line.made.last().filter(|made| made.to.is_none() && from.since(made.from) > GRACE);
            // Dead ranks wait for nothing while others are alive.
            if let Some(made) = waits.filter(|_| self.view == View::Files || !line.is_gone(self.from)) {
                return Err(format!(
                    "rank {rank} has been in {} for {} ms",
                    made.call,
                    ms(from.since(made.from).as_nanos() as u64)
                ));
            }
        }
        Ok(())
    }

    fn is_to_blame(&self, rank: u32) -> Judged {
        let culprits = &self.draw.culprits;
        must(culprits.contains(&rank), || format!("to blame are {culprits:?}"))
    }

    fn not_called(&self, rank: u32, call: &Call) -> Judged {
        let line = self.line(rank)?;
        let (from, _) = self.window(line);
        let other = match call.kind.as_str() {
            "Send" => Some("Recv"),
            "Recv" => Some("Send"),
            _ => None,
        };
        let is_it = |made: &&Made| match other {
            None => made.call.is(call),
            Some(other) => {
                let waiter = made.call.peer.and_then(|peer| self.lines.get(peer as usize));
                made.call.kind == other
                    && made.call.seq == call.seq
                    && waiter.is_some_and(|line| line.made.iter().any(|theirs| theirs.call.is(call)))
            }
        };
        if let Some(made) = line.made.iter().find(is_it) {
            must(made.from.after(GRACE) >= from, || {
                format!("it called that {} ms before", ms(from.since(made.from).as_nanos() as u64))
            })?;
        }
        if self.quiet.is_some() && self.draw.class != Class::Straggler {
            self.is_to_blame(rank)
        } else {
            Ok(())
        }
    }

    fn is_inside(&self, rank: u32, call: &Call) -> Judged {
        let line = self.line(rank)?;
        let window = self.window(line);
        let is_it =
            |made: &&Made| made.call.is(call) && made.error.is_none() && Self::is_under_way(made, window);
        must(line.made.iter().any(|made| is_it(&made)), || "it is not inside".into())?;
        if self.quiet.is_some() { self.is_to_blame(rank) } else { Ok(()) }
    }

    /// Whether a claimed duration is possible for something that began at `began`.
    fn lasted(&self, for_ns: u64, began: Ns, (from, to): (Ns, Ns)) -> Judged {
        let said = Duration::from_nanos(for_ns);
        let most = to.since(began) + ROUNDING;
        must(said <= most + said / 100, || format!("it began {most:?} ago, not {said:?}"))?;
        let Some(quiet) = self.quiet else { return Ok(()) };
        let least = from.since(began.max(quiet)).saturating_sub(SHORTER);
        must(said >= least, || format!("it began more than {least:?} ago, not {said:?}"))
    }

    fn wait(&self, ranks: &[u32], call: &Call, or_later: bool, for_ns: u64) -> Judged {
        let mut began: Option<(Ns, (Ns, Ns))> = None;
        for rank in ranks {
            let line = self.line(*rank)?;
            let window = self.window(line);
            must(self.view == View::Files || !line.is_gone(self.from), || format!("rank {rank} is dead"))?;
            let is_later = |made: &Made| or_later && made.call.peer.is_none() && made.call.seq > call.seq;
            let is_it =
                |made: &&Made| (made.call.is(call) || is_later(made)) && Self::is_under_way(made, window);
            let made =
                line.made.iter().find(is_it).ok_or_else(|| format!("rank {rank} is not in it: {line}"))?;
            let failed = made.error.is_some() && made.to.is_some_and(|ended| ended < window.0);
            must(!failed, || format!("rank {rank} has failed"))?;
            if began.is_none_or(|(first, _)| made.from < first) {
                began = Some((made.from, window));
            }
        }
        let Some((began, window)) = began else { return Err("nobody is said to wait".into()) };
        // For ranks that wait behind others, no time is given.
        if for_ns == 0 { Ok(()) } else { self.lasted(for_ns, began, window) }
    }

    fn tag(&self, rank: u32, tag: &str) -> Judged {
        let tagged = self.line(rank)?.tagged;
        must(tagged.is_some() && tag == "a step", || format!("its tag is not {tag}"))
    }

    fn waits_for(&self, rank: u32, peer: u32, for_ns: u64, transport: &str) -> Judged {
        let line = self.line(rank)?;
        let window = self.window(line);
        must(peer != rank && peer < self.draw.nranks, || format!("rank {rank} cannot wait for {peer}"))?;
        let half = |rank: u32| rank < self.draw.nranks / 2;
        let expected = match self.draw.network {
            Network::SharedMemory => "shm",
            Network::Sockets => "socket",
            Network::Namespaces if half(rank) == half(peer) => "shm",
            Network::Namespaces => "socket",
        };
        must([expected, "unknown"].contains(&transport), || {
            format!("{rank} reaches {peer} over {expected}")
        })?;
        // At the time of reading, which is not known exactly, it was in one of them.
        let made = line.made.iter().find(|made| Self::is_under_way(made, window));
        let made = made.ok_or_else(|| format!("rank {rank} is in no call: {line}"))?;
        self.lasted(for_ns, made.from, window)
    }

    fn waited_for(&self, rank: u32, peer: u32, for_ns: u64) -> Judged {
        let line = self.line(rank)?;
        must(peer != rank && peer < self.draw.nranks, || format!("rank {rank} cannot wait for {peer}"))?;
        must(line.failed.is_some() || line.is_gone(self.to), || format!("rank {rank} goes on"))?;
        let (_, to) = self.window(line);
        let lasted = line.made.iter().map(|made| made.to.unwrap_or(to).since(made.from)).max();
        let most = lasted.unwrap_or_default() + ROUNDING;
        let said = Duration::from_nanos(for_ns);
        must(said <= most + said / 100, || {
            format!("rank {rank} was in no call for longer than {most:?}: {line}")
        })
    }

    fn not_joined(&self, ranks: &[u32], by: &[u32], for_ns: u64, gives_up_ns: Option<u64>) -> Judged {
        must(self.draw.class == Class::NeverJoined, || "all have joined".into())?;
        self.each(ranks, |rank| self.is_to_blame(rank))?;
        self.each(by, |rank| must(self.is_started(rank), || "it was never started".into()))?;
        let said = Duration::from_nanos(for_ns);
        let most = self.to.since(self.started) + ROUNDING;
        must(said <= most, || format!("the first was started {most:?} ago"))?;
        let Some(until) = gives_up_ns.map(Duration::from_nanos) else { return Ok(()) };
        let left = |now: Ns| INIT_TIMEOUT.saturating_sub(now.since(self.started));
        let least = left(self.to).saturating_sub(Duration::from_secs(1));
        let most = left(self.from) + Duration::from_secs(5);
        must(until >= least && until <= most, || format!("it gives up in {least:?} to {most:?}"))
    }

    fn failed(
        &self,
        ranks: &[u32],
        call: Option<&Call>,
        error: &str,
        ago_ns: Option<u64>,
        lasted_ns: Option<u64>,
    ) -> Judged {
        let mut first: Option<Ns> = None;
        let mut some = call.is_none();
        for rank in ranks {
            let line = self.line(*rank)?;
            let (at, kind) =
                line.failed.clone().ok_or_else(|| format!("rank {rank} has not failed: {line}"))?;
            must(at <= self.to, || format!("rank {rank} had not failed yet"))?;
            must(kind == error, || format!("rank {rank} failed with {kind}"))?;
            first = Some(first.map_or(at, |first| first.min(at)));
            let made = line.made.iter().find(|made| made.error.is_some());
            if let (Some(made), Some(call)) = (made, call)
                && made.call.is(call)
            {
                some = true;
                let lasted = made.to.map_or(Duration::ZERO, |to| to.since(made.from)) + ROUNDING;
                let said = Duration::from_nanos(lasted_ns.unwrap_or(0));
                must(said <= lasted + said / 100, || format!("rank {rank} was in it for {lasted:?}"))?;
            }
        }
        must(some, || "it did not fail on any of them".into())?;
        let (Some(at), Some(ago)) = (first, ago_ns.map(Duration::from_nanos)) else { return Ok(()) };
        let most = self.to.since(at) + ROUNDING;
        must(ago <= most + ago / 100, || format!("it failed {most:?} ago"))
    }

    fn ended(&self, rank: u32, end: End) -> Judged {
        let line = self.line(rank)?;
        let is_so = match line.left {
            Some((at, left)) => left == end && at <= self.to,
            None => end == End::Lost && line.is_lost && line.is_gone(self.to),
        };
        must(is_so, || format!("rank {rank} did not end so: {line}"))
    }

    fn had_not_called(&self, rank: u32, call: &Call) -> Judged {
        let made = self.line(rank)?.made.iter().find(|made| made.call.is(call));
        let failed = self.lines.iter().filter_map(|line| line.failed.as_ref().map(|(at, _)| *at)).max();
        let (Some(made), Some(failed)) = (made, failed) else { return Ok(()) };
        must(made.from.after(GRACE) >= failed, || format!("rank {rank} called {call} before that failed"))
    }

    fn last_sign(&self, rank: u32, seconds: u64) -> Judged {
        let line = self.line(rank)?;
        let ends = [line.gone, line.gave_back].into_iter().flatten().filter(|at| *at <= self.to);
        let end = ends.min().ok_or_else(|| format!("rank {rank} lives"))?;
        let second = |at: Ns| (at.0 + self.real_ns) / 1_000_000_000;
        // A rank in `finish()` goes on until the others have finished.
        let (from, to) = (
            second(self.window(line).0.min(Ns(end.0.saturating_sub(SIGN_OF_LIFE.as_nanos() as u64)))),
            second(line.gone.filter(|gone| *gone <= self.to).unwrap_or(self.to)) + 1,
        );
        must(seconds >= from && seconds <= to, || format!("it was between {from} and {to}"))
    }

    fn silent_first(&self, rank: u32, before_ns: u64) -> Judged {
        // A rank inside a call gives signs of life itself, even if its service thread is stuck.
        let is_inside = |line: &Timeline| line.made.last().is_some_and(|made| made.to.is_none());
        let stuck = |line: &Timeline| self.stuck.filter(|_| !is_inside(line));
        let silent = |line: &Timeline| [line.gone, line.stopped, stuck(line)].into_iter().flatten().min();
        let of = |rank: u32| self.line(rank).map(|line| silent(line).unwrap_or(self.to));
        let silent = of(rank)?;
        let others = (0..self.draw.nranks).filter(|other| *other != rank && self.is_started(*other));
        let next = others.filter_map(|other| of(other).ok()).min().unwrap_or(silent);
        let most = next.since(silent) + ROUNDING;
        must(Duration::from_nanos(before_ns) <= most, || {
            format!("rank {rank} fell silent {most:?} before the next")
        })
    }

    fn called(&self, rank: u32, kind: &str, seq: Option<u64>, how: Option<&How>) -> Judged {
        let line = self.line(rank)?;
        let is_it = |made: &&Made| made.call.kind == kind && seq.is_none_or(|seq| made.call.seq == seq);
        let is_so = |made: &Made| how.is_none_or(|how| is_alike(kind, how, &made.how));
        must(line.made.iter().any(|made| is_it(&made) && is_so(made)), || {
            format!("it did not: {:?}", line.made.last())
        })
    }

    fn process(&self, rank: u32, pid: Option<u32>, host: Option<&str>, state: Option<&str>) -> Judged {
        let line = self.line(rank)?;
        let its = self.pids.get(rank as usize).copied();
        must(pid.is_none() || pid == its, || format!("rank {rank} is {its:?}"))?;
        must(host.is_none_or(|host| host == self.host), || format!("the host is {}", self.host))?;
        let Some(state) = state else { return Ok(()) };
        let mut right: Vec<&str> = Vec::new();
        if !line.is_gone(self.from) {
            let at = line.stopped.filter(|_| self.view != View::Files);
            right.extend(at.filter(|at| *at <= self.to).map(|_| "stopped"));
            right.extend(at.is_none_or(|at| at > self.from).then_some("running"));
        }
        if line.is_gone(self.to) {
            right.push("dead");
            if !line.is_lost || line.gave_back.is_some() {
                right.extend(["exited", "failed, then exited"]);
            }
        }
        if line.gave_back.is_some_and(|at| at <= self.to) {
            right.extend(["left", "failed, then left"]);
        }
        must(right.contains(&state), || format!("rank {rank} is {}: {line}", right.join(" or ")))
    }

    fn source(&self, rank: u32, source: &str) -> Judged {
        let line = self.line(rank)?;
        let mut right: Vec<&str> = Vec::new();
        if !line.is_gone(self.from) {
            // A process that does not answer in time is read from its mapping, and the output says
            // so.
            right.push("mapping");
            right.extend((self.view == View::Live && line.stopped.is_none()).then_some("socket"));
        }
        let is_closed = line.is_gone(self.to) || line.gave_back.is_some_and(|at| at <= self.to);
        right.extend(is_closed.then_some("file"));
        must(right.contains(&source), || format!("rank {rank} is read from {}", right.join(" or ")))
    }

    fn at(&self, rank: u32, call: Option<&Call>, stand: &Stand, for_ns: u64, tag: &str) -> Judged {
        let line = self.line(rank)?;
        // Ages of a rank that is gone count to now, where another one of its kernel lives.
        let (from, to) = self.window(line);
        let tagged = line.tagged.is_some() && tag == "a step";
        must(tag.is_empty() || tagged, || format!("its tag is not {tag}"))?;
        let Some(call) = call else {
            let early = line.made.iter().find(|made| made.from.after(GRACE) < from);
            return early.map_or(Ok(()), |made| Err(format!("rank {rank} called {}", made.call)));
        };
        let made = line.made.iter().rev().find(|made| made.call.is(call) && made.from <= to);
        let made = made.ok_or_else(|| format!("rank {rank} has not called {call}: {line}"))?;
        match stand {
            Stand::Running => {
                let is_so = made.error.is_none() || made.to.is_some_and(|ended| ended >= from);
                must(is_so, || format!("rank {rank} failed in it"))?;
                must(Self::is_under_way(made, (from, to)), || {
                    format!("rank {rank} has returned from {call}: {line}")
                })?;
                self.lasted(for_ns, made.from, (from, self.to))
            }
            Stand::Idle => {
                // A killed rank may have returned without a report.
                let may_have = line.is_gone(self.to) && self.quiet.is_none();
                must((made.to.is_some() || may_have) && made.error.is_none(), || {
                    format!("rank {rank} is inside {call}: {line}")
                })?;
                let is_next = |next: &&Made| {
                    next.call.peer.is_some() == call.peer.is_some()
                        && next.call.kind != "finish()"
                        && next.from > made.from
                        && next.from.after(GRACE) < from
                };
                let next = line.made.iter().find(|next| is_next(next));
                must(next.is_none(), || {
                    format!("rank {rank} called {} since", next.map_or(call, |next| &next.call))
                })?;
                let said = Duration::from_nanos(for_ns);
                let most = self.to.since(made.from) + ROUNDING;
                must(said <= most + said / 100, || format!("rank {rank} called it {most:?} ago"))
            }
            Stand::FailedAfter(error) => {
                let its = made.error.as_deref().unwrap_or("nothing");
                must(its == error, || format!("rank {rank} failed with {its}: {line}"))?;
                let most = made.to.map_or(Duration::ZERO, |ended| ended.since(made.from)) + ROUNDING;
                let said = Duration::from_nanos(for_ns);
                must(said <= most + said / 100, || format!("rank {rank} was in it for {most:?}"))
            }
            Stand::Failed(error) => {
                let its = made.error.as_deref().unwrap_or("nothing");
                must(its == error, || format!("rank {rank} failed with {its}: {line}"))?;
                let most = self.to.since(made.to.unwrap_or(made.from)) + ROUNDING;
                let said = Duration::from_nanos(for_ns);
                must(said <= most + said / 100, || format!("rank {rank} failed {most:?} ago"))
            }
        }
    }
}

/// Whether two calls agree in the arguments that matter for their kind.
fn is_alike(kind: &str, one: &How, other: &How) -> bool {
    let operator = !matches!(kind, "AllReduce" | "ReduceScatter" | "Reduce") || one.op == other.op;
    let root = !matches!(kind, "Broadcast" | "Reduce") || one.root == other.root;
    let counts = kind == "Barrier" || (one.count, &one.dtype) == (other.count, &other.dtype);
    operator && root && counts
}

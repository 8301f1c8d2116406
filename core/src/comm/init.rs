//! Making a communicator: rendezvous, bootstrap, this rank's memory and listeners, its peers, the ring's news.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use serde::{Deserialize, Serialize};

use crate::bootstrap::driver::{Bootstrap, Onlooker, RingStreams};
use crate::bootstrap::host::Identity as Process;
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::interfaces;
use crate::bootstrap::notice::{self, Level};
use crate::bootstrap::rendezvous;
use crate::bootstrap::root_task::Seat;
use crate::clock::{self, Ns};
use crate::collective::{Descriptor, Tally};
use crate::comm::Config;
use crate::comm::driver::{Driver, Inner, Shared, lock};
use crate::comm::exclusive::Exclusive;
use crate::comm::links::{Links, Peer};
use crate::comm::meet::{Candidate, Meeting, Met};
use crate::comm::phases::Phases;
use crate::config::{Key, Settings};
use crate::control::attendance::Attendance;
use crate::control::courier::{Courier, Owner, Watched};
use crate::control::edge::Dialling;
use crate::control::news::{News, Trouble, Verdict};
use crate::control::server::Abortable;
use crate::control::service::Service;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Topology;
use crate::recorder::{self, CommInfo, CommRow, EventRing};
use crate::sys;
use crate::sys::cpus::Allowed;
use crate::transport::shm::connect::{Listener as MemoryListener, Terms, draw_name};

use crate::transport::shm::local;
use crate::transport::shm::memory::{Identity, Layout, RankMemory};
use crate::transport::shm::wait::Waiter;
use crate::transport::socket::listen::{Inbox, Listener as DataListener, Scope};
use crate::types::{Algorithm, CommId, JobId, Phase, Rank};

/// What a communicator keeps running beside itself. Dropped, all of it ends.
pub(crate) struct Attended {
    _data: DataListener,
    /// Where this process is rank 0 of a public address: the address.
    seat: Option<Seat>,
    _abortable: Option<Abortable>,
    _attendance: Arc<Attendance>,
}

/// What each rank tells all others about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Card {
    process: Vec<u8>,
    /// Where its data listener is.
    data: SocketAddr,
    /// Where its memory listener is in the file system.
    local: Option<PathBuf>,
    /// The abstract name at which its memory listener is.
    name: Option<String>,
    recorder: String,
    control: String,
    /// Which processors it may use.
    allowed: Allowed,
}

/// Joins the job the environment describes.
pub(super) fn from_env(config: Config) -> Result<Arc<Inner>> {
    sys::not_forked()?;
    let settings = settings_of(&config)?;
    let mut phases = Phases::default();
    phases.begin(Phase::Rendezvous, None);
    // An observer may have forked: its child comes back here, too, and wherever a phase begins.
    sys::not_forked()?;
    let deadline = clock::now().after(settings.duration(Key::InitTimeout));
    let met = rendezvous::from_environment(&settings, deadline)?;
    phases.end(None);
    let inner = make(&met.id, (met.rank, met.nranks), config.name, settings, deadline, phases)?;
    if let (Some(root), Some(attended)) = (&met.root, &mut *lock(&inner.attended)) {
        attended.seat = root.seat();
    }
    drop(met);
    Ok(inner)
}

fn settings_of(config: &Config) -> Result<Settings> {
    match &config.settings {
        Some(settings) => Ok(settings.clone()),
        None => Settings::of_process(),
    }
}

/// Joins as `rank` of `nranks` around `id`.
pub(super) fn join(id: &UniqueId, rank: u32, nranks: u32, config: Config) -> Result<Arc<Inner>> {
    sys::not_forked()?;
    let settings = settings_of(&config)?;
    let deadline = clock::now().after(settings.duration(Key::InitTimeout));
    make(id, (Rank(rank), nranks), config.name, settings, deadline, Phases::default())
}

fn make(
    id: &UniqueId,
    place: (Rank, u32),
    name: String,
    settings: Settings,
    deadline: Ns,
    phases: Phases,
) -> Result<Arc<Inner>> {
    let name = if name.is_empty() { "world".to_string() } else { name };
    make_named(id, place, &name, settings, deadline, phases).map_err(|error| error.in_comm(name, place.0))
}

fn make_named(
    id: &UniqueId,
    (rank, nranks): (Rank, u32),
    name: &str,
    settings: Settings,
    deadline: Ns,
    mut phases: Phases,
) -> Result<Arc<Inner>> {
    if rank.0 >= nranks {
        return Err(Error::new(ErrorKind::Usage, format!("rank {rank} is not one of {nranks} ranks"))
            .hint("ranks count from 0"));
    }
    let (attendance, notes) = Attendance::of_process(&settings)?;
    let recorder = attendance.recorder();
    // The row is there before the bootstrap is: who hangs in it can be seen to.
    let info = CommInfo { id: id.comm(), job: id.shown_job(), name, rank, nranks, world: rank };
    let mut row = recorder.comm(info);
    row.begin_level(&settings);
    phases.show(&row);
    let interface = interfaces::choose(&settings, Some(id.root.ip()))?;
    let begins = &mut |phase| phases.begin(phase, Some(&row));
    let onlooker = Onlooker { cancelled: &|| false, begins };
    let mut bootstrap = Bootstrap::join_before(id, rank, nranks, &[], &settings, deadline, onlooker)?;
    phases.end(Some(&row));
    let (job, key) = (bootstrap.job(), bootstrap.key());
    let comm = CommId::of_job(job, id.instance);
    row.set_identity(comm, job);

    let identity = Identity { comm, rank };
    let base = Base { job, identity, ip: interface.ip, settings: &settings, attendance: &attendance };
    let gathered = match gather(&base, &row, &mut phases, &mut bootstrap, deadline) {
        Ok(gathered) => gathered,
        Err(error) => {
            if !sys::forked() {
                bootstrap.give_up(&error);
            }
            return Err(error);
        }
    };
    let Gathered {
        memory,
        shared,
        inbox,
        data,
        listeners,
        processes,
        hosts,
        allowed,
        peers,
        watched,
        events,
    } = gathered;
    let channels = settings.number(Key::Channels) as u16;
    let RingStreams { next, prev } = bootstrap.into_ring()?;

    let topology = Arc::new(Topology::new(&hosts, channels));
    let own_host = processes[rank.index()].host;
    let local = processes.iter().zip(&allowed).filter(|(process, _)| process.host == own_host);
    let local: Vec<_> = local.map(|(_, allowed)| allowed).collect();
    let crowded = allowed[rank.index()].is_crowded(&local);
    let bind = Some(SocketAddr::new(data.address().ip(), 0));
    let links = Links {
        me: rank,
        job,
        comm,
        key: key.clone(),
        memory: Arc::clone(&memory),
        next: topology.after(rank, 1),
        previous: topology.before(rank),
        peers,
        channels,
        streams: settings.number(Key::Streams) as u32,
        arrivals: inbox,
        bind,
        has_ring: false,
        has_wide: false,
        pairs: std::collections::BTreeSet::new(),
    };
    let engine = Engine::new(rank, Arc::clone(&topology), row, events);
    let owner = Owning {
        shared: Arc::clone(&shared),
        memory: Arc::clone(&memory),
        attendance: Arc::downgrade(&attendance),
    };
    let mut news = News::new(rank, nranks);
    for (stream, neighbour) in [(&next, rank.0 + 1), (&prev, rank.0 + nranks - 1)] {
        if stream.is_none() {
            news.lost(Rank(neighbour % nranks), clock::now());
        }
    }
    let dialling = Dialling { job, comm, key, me: rank, bind, listeners };
    let mending = (dialling, data.edges());
    let courier = Courier::start(&Service::get()?, news, [next, prev], watched, mending, Box::new(owner))?;
    let driver = Driver::new(engine, links, Waiter::new(memory, crowded));
    let inner = Arc::new(Inner {
        id: comm,
        job,
        name: name.to_string(),
        rank,
        nranks,
        forced: forced(&settings),
        timeout: settings.duration(Key::Timeout),
        topology,
        driver: Exclusive::new(driver, notice::wanted(&settings, Level::Warn)),
        shared,
        shortage: Arc::clone(data.shortage()),
        recorder,
        attended: Mutex::new(None),
        courier: Mutex::new(Some(courier)),
        settings: settings.clone(),
    });
    let abortable = attendance.abortable(comm, {
        let inner = Arc::downgrade(&inner);
        move |reason| {
            if let Some(inner) = inner.upgrade() {
                inner.abort(reason);
            }
        }
    });
    *lock(&inner.attended) =
        Some(Attended { _data: data, seat: None, _abortable: abortable, _attendance: attendance });
    notes.iter().for_each(|note| notice::say(&settings, Level::Warn, note));
    if rank == Rank(0) {
        announce(&inner, &settings);
    }
    Ok(inner)
}

/// What a communicator begins with.
struct Base<'a> {
    job: JobId,
    identity: Identity,
    ip: std::net::IpAddr,
    settings: &'a Settings,
    attendance: &'a Attendance,
}

/// What this rank has, and knows of the others, when all of them are ready.
struct Gathered {
    memory: Arc<RankMemory>,
    shared: Arc<Shared>,
    inbox: Inbox,
    data: DataListener,
    /// Those of all ranks.
    listeners: Vec<SocketAddr>,
    processes: Vec<Process>,
    /// The host of each rank, as the topology is to see it.
    hosts: Vec<u64>,
    /// Which processors each rank may use.
    allowed: Vec<Allowed>,
    peers: Vec<Peer>,
    watched: Vec<Watched>,
    events: EventRing,
}

/// Makes this rank's memory and doors, tells all others where they are, and meets those of this host. Returns when all have.
fn gather(
    base: &Base<'_>,
    row: &CommRow,
    phases: &mut Phases,
    bootstrap: &mut Bootstrap,
    deadline: Ns,
) -> Result<Gathered> {
    let Base { job, identity, ip, settings, attendance } = base;
    let Identity { comm, rank } = *identity;
    let nranks = bootstrap.nranks();
    let recorder = attendance.recorder();
    let channels = settings.number(Key::Channels) as u16;
    let memory = RankMemory::shared(*identity, Layout::new(nranks, channels)?, true)?;
    let shared = Arc::new(Shared {
        flag: AtomicBool::new(false),
        verdict: Mutex::new(None),
        finished: Mutex::new(Vec::new()),
        asked: Mutex::new(Vec::new()),
        wake: Box::new({
            let memory = Arc::clone(&memory);
            move || memory.wake_if_asleep()
        }),
    });
    let inbox = Inbox::default();
    let scope = Scope { job: *job, key: bootstrap.key(), comm, rank, nranks, channels };
    let data = DataListener::open(SocketAddr::new(*ip, 0), scope, Arc::clone(&inbox), wake_by(&shared))?;
    let terms = Terms { job: *job, key: bootstrap.key(), memory: Arc::clone(&memory) };
    let path = recorder.beside(&format!("{comm}-{rank}.link"));
    let door = MemoryListener::open(terms, path, draw_name()?)?;
    local::enter(*job, &memory);

    let card = Card {
        process: Process::own(settings)?.encode(),
        data: data.address(),
        local: door.path().map(PathBuf::from),
        name: door.name().map(String::from),
        recorder: recorder.path().map(|p| p.display().to_string()).unwrap_or_default(),
        control: attendance.control().map(|p| p.display().to_string()).unwrap_or_default(),
        allowed: Allowed::here(),
    };
    let (cards, processes) = exchange(bootstrap, &card)?;
    tell_peers(row, &cards, &processes);
    let allowed = cards.iter().map(|card| card.allowed.clone()).collect();

    let mut events = row.ring();
    phases.publish(&mut events);
    phases.begin(Phase::Connect, Some(row));
    sys::not_forked()?;
    let listeners = cards.iter().map(|card| card.data).collect();
    let locals = cards.into_iter().zip(&processes).map(|(card, process)| Candidate {
        process,
        data: card.data,
        path: card.local,
        name: card.name,
    });
    let meeting = Meeting {
        forced: settings.text(Key::Transport),
        identity: *identity,
        job: *job,
        door: &door,
        ranks: locals.collect(),
        deadline,
    };
    let tried = meeting.try_all(&mut || bootstrap.serve())?;
    phases.begin(Phase::Barrier, Some(row));
    sys::not_forked()?;
    phases.publish(&mut events);
    // Also the barrier: whoever has heard all of these knows that nobody connects to its door any more.
    let told = bootstrap.all_gather(&tried.report())?;
    let Met { peers, watched, hosts, note } = meeting.meet(tried, &told, &mut || bootstrap.serve())?;
    phases.end(Some(row));
    phases.publish(&mut events);
    drop(meeting);
    drop(door);
    if let Some(note) = note {
        notice::say(settings, Level::Warn, &note);
    }
    Ok(Gathered { memory, shared, inbox, data, listeners, processes, hosts, allowed, peers, watched, events })
}

/// What the news of a communicator reach.
struct Owning {
    shared: Arc<Shared>,
    memory: Arc<RankMemory>,
    // Weak: who leaves the process last takes it down.
    attendance: Weak<Attendance>,
}

impl Owner for Owning {
    fn called(&self) -> Vec<Descriptor> {
        self.memory.calls().filter_map(Descriptor::decode).collect()
    }
    fn finished(&self, rank: Rank, tally: &Tally) {
        self.shared.finished(rank, tally);
    }
    fn asked(&self, from: Rank, call: &Descriptor) {
        self.shared.asked(from, call);
    }
    fn decided(&self, verdict: &Verdict) {
        self.shared.decided(verdict);
        if let (Trouble::Died, Some(attendance)) = (verdict.trouble, self.attendance.upgrade()) {
            attendance.bereaved();
        }
    }
}

fn wake_by(shared: &Arc<Shared>) -> Arc<dyn Fn() + Send + Sync> {
    // Weak: the listener must not keep alive what keeps it.
    let shared: Weak<Shared> = Arc::downgrade(shared);
    Arc::new(move || {
        if let Some(shared) = shared.upgrade() {
            shared.call();
        }
    })
}

/// Gives every rank everybody's card, and where everybody runs.
fn exchange(bootstrap: &mut Bootstrap, card: &Card) -> Result<(Vec<Card>, Vec<Process>)> {
    let own = serde_json::to_vec(card)
        .map_err(|e| Error::new(ErrorKind::System, format!("writing a card: {e}")))?;
    let (mut cards, mut processes) = (Vec::new(), Vec::new());
    for (rank, bytes) in bootstrap.all_gather(&own)?.into_iter().enumerate() {
        let card: Option<Card> = serde_json::from_slice(&bytes).ok();
        let read = card.and_then(|card| Some((Process::decode(&card.process)?.0, card)));
        let Some((process, card)) = read else {
            let what = format!("what rank {rank} tells about itself cannot be read");
            let hint = "run the same version of ccl on all ranks";
            return Err(Error::new(ErrorKind::Mismatch, what).with_peer(Rank(rank as u32)).hint(hint));
        };
        cards.push(card);
        processes.push(process);
    }
    Ok((cards, processes))
}

fn tell_peers(row: &CommRow, cards: &[Card], processes: &[Process]) {
    let known = cards.iter().zip(processes).enumerate();
    let peers: Vec<recorder::Peer<'_>> = known
        .map(|(rank, (card, process))| recorder::Peer {
            rank: Rank(rank as u32),
            world: Rank(rank as u32),
            host: &process.host_name,
            pid: process.pid,
            recorder: &card.recorder,
            control: &card.control,
        })
        .collect();
    row.peers(&peers);
}

fn forced(settings: &Settings) -> Option<Algorithm> {
    match settings.text(Key::Algorithm) {
        "ring" | "Ring" => Some(Algorithm::Ring),
        "direct" => Some(Algorithm::Direct),
        _ => None,
    }
}

/// The line each job prints once: what runs, how ranks reach each other, and how to look at it.
#[expect(clippy::print_stderr, reason = "the line a user finds the inspector by")]
fn announce(inner: &Inner, settings: &Settings) {
    if settings.text(Key::Log) == "NONE" {
        return;
    }
    let transports = inner.driver().map(|driver| driver.links.transports()).unwrap_or_default();
    let recorder = inner.recorder_path().map_or_else(|| "none".into(), |path| path.display().to_string());
    let changed = settings.changed();
    let settings = if changed.is_empty() { String::new() } else { format!(", settings {changed}") };
    eprintln!(
        "ccl {}: job {} comm {} has {} ranks, transports {transports}, recorder {recorder}{settings}; look with: ccl-inspect attach {}",
        env!("CARGO_PKG_VERSION"),
        inner.job,
        inner.name,
        inner.nranks,
        std::process::id(),
    );
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;
    use crate::comm::Communicator;

    #[test]
    fn ranks_bound_to_a_processor_each_are_no_crowd_and_two_on_one_are() {
        let all = sched_getaffinity(None).unwrap();
        let mine: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
        let here = Allowed::here();
        if mine.len() < 2 {
            return println!(
                "skipped: ranks_bound_to_a_processor_each_are_no_crowd_and_two_on_one_are: needs two processors"
            );
        }
        let mut settings = Settings::default();
        for (key, value) in [(Key::Observe, "0"), (Key::Log, "NONE"), (Key::InitTimeout, "20")] {
            settings.set(key, value).unwrap();
        }
        let crowded = |processors: [usize; 2]| {
            let (id, root) = crate::bootstrap::root_task::create(&settings).unwrap();
            let join = |rank: usize| {
                let mut one = CpuSet::new();
                one.set(processors[rank]);
                sched_setaffinity(None, &one).unwrap();
                let config = Config { name: "test".into(), settings: Some(settings.clone()) };
                let comm = Communicator::init(&id, rank as u32, 2, config).unwrap();
                let waiter = format!("{:?}", comm.inner.driver().unwrap().waiter);
                comm.finish().unwrap();
                waiter.contains("crowded: true")
            };
            let crowded = std::thread::scope(|scope| {
                let join = &join;
                [0, 1].map(|rank| scope.spawn(move || join(rank))).map(|rank| rank.join().unwrap())
            });
            drop(root);
            crowded
        };
        // A quota of less than two processors makes a crowd of any two ranks.
        let is_short = here.is_crowded(&[&here, &here]);
        assert_eq!(crowded([mine[0], mine[1]]), [is_short; 2]);
        assert_eq!(crowded([mine[0]; 2]), [true; 2]);
    }
}

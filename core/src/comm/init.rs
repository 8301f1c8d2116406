//! Init of a communicator: rendezvous, bootstrap, this rank's memory and listeners, its peers, and
//! the gossip.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use crate::bootstrap::auth::Key as JobKey;
use crate::bootstrap::driver::{Bootstrap, JoinObserver, RingStreams};
use crate::bootstrap::host::Identity as Process;
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::interfaces;
use crate::bootstrap::rendezvous;
use crate::clock::{self, Ns};
use crate::collective::{Descriptor, Tally};
use crate::comm::Config;
use crate::comm::begun::Begun;
use crate::comm::cards::{Card, Door, Exchange, Known, Lives, exchange, pace, tell_peers};
use crate::comm::gathers;
use crate::comm::links::Links;
use crate::comm::phases::{Phases, Watch};
use crate::comm::report;
use crate::comm::services::ProcessServices;
use crate::comm::state::{Attended, Driver, Exclusive, Inner, Shared, lock};
use crate::comm::watched;
use crate::config::{Key, Settings};
use crate::control::gather::Member;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::failure::edge::Dialling;
use crate::failure::gossip::{Decision, Gossip, News, Trouble};
use crate::failure::lines::Post;
use crate::failure::task::{GossipTask, Owner, Ways};
use crate::notice::{self, Level};
use crate::plan::Topology;
use crate::proxy::Pool;
use crate::reactor::Service;
use crate::recorder::{CommRow, Events};
use crate::sys;
use crate::sys::cpus::Allowed;
use crate::transport::carrier::Carrier;
use crate::transport::ib;
use crate::transport::ib::carrier::VerbsCarrier;
use crate::transport::ib::port::Ports;
use crate::transport::meet::{Candidate, Meeting, Met, Peer, Reach};
use crate::transport::shm::arena::Arena;
use crate::transport::shm::carrier::MemoryCarrier;
use crate::transport::shm::connect::{Listener as MemoryListener, Terms, draw_name};

use crate::comm::wait::Waiter;
use crate::transport::shm::local;
use crate::transport::shm::memory::{Identity, Layout, RankMemory};
use crate::transport::shm::peer::PeerProcess;
use crate::transport::socket::arrivals::Arrivals;
use crate::transport::socket::carrier::{self, SocketCarrier};
use crate::transport::socket::listen::{Inbox, Listener as DataListener, Scope};
use crate::types::{Algorithm, CommId, JobId, Phase, Rank};

/// Joins the job the environment describes.
pub(super) fn from_env(config: Config) -> Result<Arc<Inner>> {
    sys::not_forked()?;
    let settings = settings_of(&config)?;
    report::remarks(&settings, None);
    let deadline = clock::now().after(settings.duration(Key::InitTimeout));
    let venue = rendezvous::Venue::of_environment(&settings)?;
    let phases = Phases::of(&settings);
    let mut begun = Begun::new(config.name, venue.place(), venue.shown(), (settings, deadline), phases)?;
    begun.phases.begin(Phase::Rendezvous, &begun.row);
    // An observer may have forked: its child also gets here, and wherever a phase begins.
    sys::not_forked()?;
    let met = venue.meet(&begun.settings, deadline).inspect_err(|error| leave_word(&begun.row, error));
    let met = met.map_err(|error| error.in_comm(&begun.name, begun.rank))?;
    begun.phases.end(&begun.row);
    let inner = make(&met.id, begun).inspect_err(|_| met.failed())?;
    if let (Some(root), Some(attended)) = (&met.root, &mut *lock(&inner.attended)) {
        attended.seat = root.seat();
    }
    drop(met);
    Ok(inner)
}

pub(super) fn settings_of(config: &Config) -> Result<Settings> {
    match &config.settings {
        Some(settings) => Ok(settings.clone()),
        None => Settings::of_process(),
    }
}

/// Joins as `rank` of `nranks` around `id`.
pub(super) fn join(
    id: &UniqueId,
    rank: u32,
    nranks: u32,
    config: Config,
    watch: Option<Arc<Watch>>,
) -> Result<Arc<Inner>> {
    sys::not_forked()?;
    let settings = settings_of(&config)?;
    report::remarks(&settings, Some(Rank(rank)));
    let deadline = clock::now().after(settings.duration(Key::InitTimeout));
    let phases = Phases::watched(&settings, watch);
    let ids = (id.shown_comm(), id.shown_job());
    let begun = Begun::new(config.name, (Rank(rank), nranks), ids, (settings, deadline), phases)?;
    make(id, begun)
}

fn make(id: &UniqueId, begun: Begun) -> Result<Arc<Inner>> {
    let (name, rank) = (begun.name.clone(), begun.rank);
    make_named(id, begun).map_err(|error| error.in_comm(name, rank))
}

fn make_named(id: &UniqueId, begun: Begun) -> Result<Arc<Inner>> {
    let Begun { name, rank, nranks, settings, deadline, services, notes, mut row, mut phases } = begun;
    let name = name.as_str();
    let interface = interfaces::choose(&settings, Some(id.root.ip()));
    let interface = interface.inspect_err(|error| leave_word(&row, error))?;
    let watch = phases.watch();
    let cancelled = &|| watch.as_ref().is_some_and(|watch| watch.is_cancelled());
    let begins = &mut |phase| phases.begin(phase, &row);
    let lacks = &mut |count, runs: &[_]| row.absent(count, runs);
    let observer = JoinObserver { cancelled, begins, lacks };
    let joined = Bootstrap::join_observed(id, rank, nranks, &[], &settings, deadline, observer);
    // What the program itself gave up did not fail.
    let failed = |error: &Error| _ = (!cancelled()).then(|| leave_word(&row, error));
    let mut bootstrap = joined.inspect_err(failed)?;
    row.absent(0, &[]);
    phases.end(&row);
    let (job, key) = (bootstrap.job(), bootstrap.key());
    let comm = CommId::of_job(job, id.instance);
    row.set_identity(comm, job);

    let worlds = (0..nranks).map(Rank).collect();
    let base = Base {
        name,
        job,
        key,
        identity: Identity { comm, rank },
        worlds,
        ip: interface.ip,
        settings: &settings,
        services: &services,
        gathers: None,
    };
    let mut gathered = match gather(&base, &row, &mut phases, &mut bootstrap, deadline) {
        Ok(gathered) => gathered,
        Err(error) => {
            if !sys::forked() {
                leave_word(&row, &error);
                bootstrap.give_up(&error);
            }
            return Err(error);
        }
    };
    let ring = bootstrap.into_ring().inspect_err(|error| leave_word(&row, error))?;
    phases.end(&row);
    phases.publish(&mut gathered.events);
    row.init_until(None);
    let inner = assemble(base, row, gathered, Some(ring))?;
    services.recorder().has_joined();
    notes.iter().for_each(|note| notice::say(&settings, Level::Warn, note));
    // Further communicators of the process are seen where the first one is.
    if rank == Rank(0) && services.is_unannounced() {
        report::announce(&inner, &settings);
    }
    report::made(&inner, &settings, &phases);
    Ok(inner)
}

/// Records why an init failed, for those who look when the process has ended.
fn leave_word(row: &CommRow, error: &Error) {
    row.never_made(error.kind as u8, error.at.peer, &error.what, clock::raw());
}

/// Puts the communicator together from what was gathered. `ring` is what a bootstrap left; without
/// one each rank connects to the next.
pub(super) fn assemble(
    base: Base<'_>,
    row: CommRow,
    gathered: Gathered,
    ring: Option<RingStreams>,
) -> Result<Arc<Inner>> {
    let Base { name, job, identity: Identity { comm, rank }, ip, settings, services, .. } = base;
    let nranks = base.worlds.len() as u32;
    let Gathered { own, cards, hosts, peers, events } = gathered;
    let Own { memory, shared, inbox, data, post, ports } = own;
    let is_carried = ports.are_software() && peers.iter().any(|peer| matches!(peer.reach, Reach::Verbs(_)));
    let pace = pace(rank, &cards, is_carried);
    let channels = settings.number(Key::Channels) as u16;
    let topology = Arc::new(Topology::new(&hosts, channels));
    row.groups(|rank| topology.group(rank).0);
    let bind = Some(SocketAddr::new(ip, 0));
    // Where all ranks share memory, the connections between their processes are enough.
    let listeners = cards.iter().map(|card| card.lives.data).collect();
    let dialling = Dialling { job, comm, key: base.key.clone(), me: rank, bind, listeners };
    let gathers = base.gathers.clone();
    let gathers = gathers.or_else(|| gathers::member((services, settings), &cards, &dialling, &data));
    let is_split = hosts.iter().any(|host| *host != hosts[0]);
    let mending = is_split.then(|| (dialling, Arc::clone(data.edges())));
    let neighbours = Neighbours { ring, locals: locals(&peers), post, mending };
    let owner = Owning {
        shared: Arc::clone(&shared),
        memory: Arc::clone(&memory),
        services: Arc::downgrade(services),
    };
    let gossip = start_gossip((rank, nranks), neighbours, owner)?;
    let no_ports = ports.why_none.clone();
    let carriers = carriers(&base, (&memory, &shared), &peers, (inbox, &data, ports))?;
    let links = Links::new(rank, Arc::clone(&memory), peers, carriers, no_ports);
    let watched = row.events();
    let mut engine = Engine::new(rank, Arc::clone(&topology), Pool::of_process(), row, events);
    if settings.number(Key::Checksum) == 1 {
        engine.use_checksums();
    }
    let driver = Driver::new(engine, links, Waiter::new(Arc::clone(&memory), pace));
    let inner = Arc::new(Inner {
        id: comm,
        job,
        key: base.key,
        ip,
        name: name.to_string(),
        rank,
        nranks,
        worlds: base.worlds,
        cards,
        hosts,
        children: AtomicU32::new(0),
        shrunk: Mutex::new(0),
        forced: forced(settings),
        timeout: settings.duration(Key::Timeout),
        topology,
        driver: Exclusive::new(driver, notice::wanted(settings, Level::Warn)),
        shared,
        memory,
        shortage: Arc::clone(data.shortage()),
        recorder: services.recorder(),
        attended: Mutex::new(None),
        gossip: Mutex::new(Some(gossip)),
        is_told: notice::wanted(settings, Level::Trace),
        settings: settings.clone(),
    });
    attend(&inner, services, (data, gathers), watched);
    Ok(inner)
}

/// What carries the messages of a rank.
fn carriers(
    base: &Base<'_>,
    (memory, shared): (&Arc<RankMemory>, &Arc<Shared>),
    peers: &[Peer],
    (inbox, data, ports): (Inbox, &DataListener, Ports),
) -> Result<Vec<Box<dyn Carrier>>> {
    let settings = base.settings;
    let lanes = ib::carrier::Lanes {
        me: base.identity.rank,
        job: base.job,
        comm: base.identity.comm,
        key: base.key.clone(),
        memory: Arc::clone(memory),
        bind: Some(SocketAddr::new(base.ip, 0)),
        limit: settings.duration(Key::Timeout),
        channels: settings.number(Key::Channels) as u16,
        ports: ports.used,
        terms: ib::setup::Terms::of(settings),
    };
    let verbs = VerbsCarrier::new(lanes, peers, (data.queue_pairs(), wake_by(shared)))?;
    let terms = carrier::Terms {
        me: base.identity.rank,
        job: base.job,
        comm: base.identity.comm,
        key: base.key.clone(),
        streams: settings.number(Key::Streams) as u32,
        bind: Some(SocketAddr::new(base.ip, 0)),
        limit: settings.duration(Key::Timeout),
    };
    Ok(vec![
        Box::new(MemoryCarrier::new(Arc::clone(memory), peers)),
        Box::new(verbs),
        Box::new(SocketCarrier::new(terms, peers, inbox, Arc::clone(data.shortage()))),
    ])
}

/// Keeps what a communicator needs beside itself until it closes.
fn attend(
    inner: &Arc<Inner>,
    services: &Arc<ProcessServices>,
    (data, gathers): (Arc<DataListener>, Option<Arc<Member>>),
    events: Events,
) {
    let abortable = services.abortable(inner.id, {
        let inner = Arc::downgrade(inner);
        move |reason| {
            if let Some(inner) = inner.upgrade() {
                inner.abort(reason);
            }
        }
    });
    let watched = watched::seat(inner, services, events);
    let services = Arc::clone(services);
    *lock(&inner.attended) = Some(Attended {
        gathers,
        _data: data,
        seat: None,
        _abortable: abortable,
        _watched: watched,
        _services: services,
    });
}

/// The ranks of this host in other processes.
fn locals(peers: &[Peer]) -> Vec<(Rank, Arc<PeerProcess>)> {
    let of_host = |(at, peer): (usize, &Peer)| match &peer.reach {
        Reach::Memory(memory) => Some((Rank(at as u32), Arc::clone(memory.peer()?))),
        Reach::Myself | Reach::Network(_) | Reach::Verbs(_) => None,
    };
    peers.iter().enumerate().filter_map(of_host).collect()
}

/// Whom the failure gossip of a rank reaches, and how.
struct Neighbours {
    /// What a bootstrap left of its ring.
    ring: Option<RingStreams>,
    locals: Vec<(Rank, Arc<PeerProcess>)>,
    post: Arc<Post>,
    mending: Option<(Dialling, Arc<Arrivals>)>,
}

fn start_gossip(
    (rank, nranks): (Rank, u32),
    Neighbours { ring, locals, post, mending }: Neighbours,
    owner: Owning,
) -> Result<Arc<GossipTask>> {
    let (ring, ended) = match ring {
        Some(RingStreams { next, prev }) => {
            let sides = [(&next, rank.0 + 1), (&prev, rank.0 + nranks - 1)];
            let ended = sides.into_iter().filter(|(stream, _)| stream.is_none());
            let ended = ended.map(|(_, neighbour)| Rank(neighbour % nranks)).collect();
            ([next, prev], ended)
        }
        None => ([None, None], Vec::new()),
    };
    let ways = Ways { locals, post, ring, ended, mending };
    let gossip = Gossip::new(rank, nranks);
    GossipTask::start(&Service::get()?, gossip, rank, ways, Box::new(owner))
}

/// What a communicator begins with.
pub(super) struct Base<'a> {
    pub(super) name: &'a str,
    pub(super) job: JobId,
    pub(super) key: JobKey,
    pub(super) identity: Identity,
    /// The rank in the job's root communicator of each rank.
    pub(super) worlds: Vec<Rank>,
    /// The address of the interface to use.
    pub(super) ip: IpAddr,
    pub(super) settings: &'a Settings,
    pub(super) services: &'a Arc<ProcessServices>,
    /// What gathers for another communicator, and serves this one too.
    pub(super) gathers: Option<Arc<Member>>,
}

/// What a rank of a communicator has of its own.
pub(super) struct Own {
    pub(super) memory: Arc<RankMemory>,
    shared: Arc<Shared>,
    inbox: Inbox,
    data: Arc<DataListener>,
    pub(super) post: Arc<Post>,
    /// Its ports for queue pairs.
    pub(super) ports: Ports,
}

/// This rank's resources and its knowledge of the others, once all of them are ready.
pub(super) struct Gathered {
    pub(super) own: Own,
    pub(super) cards: Vec<Arc<Known>>,
    /// The host of each rank, as the topology is to see it.
    pub(super) hosts: Vec<u64>,
    pub(super) peers: Vec<Peer>,
    pub(super) events: Events,
}

impl Own {
    /// Takes memory, and a place at the listener of this process.
    pub(super) fn take(base: &Base<'_>) -> Result<Self> {
        let Base { job, ref key, identity, ref worlds, ip, settings, .. } = *base;
        let Identity { comm, rank } = identity;
        let nranks = worlds.len() as u32;
        let channels = settings.number(Key::Channels) as u16;
        let arena = Arena::of_process()?;
        let memory = RankMemory::shared(identity, Layout::new(nranks, channels)?, &arena)?;
        let shared = shared(&memory);
        let inbox = Inbox::default();
        let scope = Scope { job, key: key.clone(), comm, rank, nranks, channels };
        let data = DataListener::open(ip, scope, Arc::clone(&inbox), wake_by(&shared))?;
        let post = Post::open(comm, rank)?;
        let ports = Ports::of(settings)?;
        local::enter(job, &memory);
        Ok(Self { memory, shared, inbox, data: Arc::new(data), post, ports })
    }
}

/// Takes this rank's resources, exchanges addresses, and meets the processes of this host.
///
/// Returns when all ranks have done so, in the phase [`Phase::Barrier`].
fn gather(
    base: &Base<'_>,
    row: &CommRow,
    phases: &mut Phases,
    ranks: &mut dyn Exchange,
    deadline: Ns,
) -> Result<Gathered> {
    let Base { job, key, identity, worlds, settings, services, .. } = base;
    let Identity { comm, rank } = *identity;
    let recorder = services.recorder();
    let own = Own::take(base)?;
    let process = Process::own(settings)?;
    let arena = Arena::of_process()?;
    let terms = Terms { job: *job, key: key.clone(), identity: *identity, process: process.process, arena };
    let path = recorder.beside(&format!("{comm}-{rank}.link"));
    let door = MemoryListener::open(terms, path, draw_name()?)?;

    let listens = Door {
        path: door.path().map(PathBuf::from),
        name: door.name().map(String::from),
        memory: own.memory.at().unwrap_or(0),
    };
    let lives = Lives {
        data: own.data.address(),
        recorder: recorder.path().map(|p| p.display().to_string()).unwrap_or_default(),
        control: services.control().map(|p| p.display().to_string()).unwrap_or_default(),
        allowed: Allowed::here(),
        verbs: own.ports.reachable(),
    };
    let (cards, doors): (Vec<_>, Vec<_>) =
        exchange(ranks, &Card::new(&process, listens, lives))?.into_iter().unzip();
    tell_peers(row, worlds, &cards);

    let mut events = row.events();
    phases.publish(&mut events);
    phases.begin(Phase::Connect, row);
    sys::not_forked()?;
    let meeting = Meeting {
        forced: settings.text(Key::Transport),
        no_ports: &own.ports.why_none,
        job: *job,
        own: &own.memory,
        door: &door,
        ranks: candidates(&cards, doors),
        deadline,
    };
    let known = meeting.known()?;
    let held = ranks.all_gather(&meeting.held(&known))?;
    let tried = meeting.try_all(known, &held, &mut || ranks.serve())?;
    phases.begin(Phase::Barrier, row);
    sys::not_forked()?;
    phases.publish(&mut events);
    // Also a barrier: a rank that has the reports of all others knows that none connects to its
    // listener any more.
    let told = ranks.all_gather(&tried.report())?;
    let Met { peers, hosts, note } = meeting.meet(tried, &told, &mut || ranks.serve())?;
    drop(meeting);
    drop(door);
    own.post.met();
    if let Some(note) = note {
        notice::say(settings, Level::Warn, &note);
    }
    Ok(Gathered { own, cards, hosts, peers, events })
}

/// Where each rank can be reached, from its card.
fn candidates(cards: &[Arc<Known>], doors: Vec<Door>) -> Vec<Candidate<'_>> {
    cards
        .iter()
        .zip(doors)
        .map(|(known, Door { path, name, memory })| Candidate {
            process: &known.process,
            data: known.lives.data,
            verbs: known.lives.verbs.as_ref(),
            path,
            name,
            memory,
        })
        .collect()
}

/// What the service thread may touch.
fn shared(memory: &Arc<RankMemory>) -> Arc<Shared> {
    let memory = Arc::clone(memory);
    Arc::new(Shared {
        flag: AtomicBool::new(false),
        decision: Mutex::new(None),
        finished: Mutex::new(Vec::new()),
        asked: Mutex::new(Vec::new()),
        late: AtomicU64::new(0),
        wake: Box::new(move || memory.wake_if_asleep()),
    })
}

/// Where the failure gossip of a communicator arrives.
struct Owning {
    shared: Arc<Shared>,
    memory: Arc<RankMemory>,
    // Weak: the last communicator of the process drops the services.
    services: Weak<ProcessServices>,
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
    fn heard(&self, news: News) {
        watched::heard(&self.services, news);
    }
    fn late(&self, now: Ns) {
        self.shared.late(now);
    }
    fn decided(&self, decision: &Decision) {
        self.shared.decided(decision);
        if let (Trouble::Died, Some(services)) = (decision.trouble, self.services.upgrade()) {
            services.on_peer_death();
        }
    }
}

fn wake_by(shared: &Arc<Shared>) -> Arc<dyn Fn() + Send + Sync> {
    // Weak: the listener must not keep its owner alive.
    let shared: Weak<Shared> = Arc::downgrade(shared);
    Arc::new(move || {
        if let Some(shared) = shared.upgrade() {
            shared.call();
        }
    })
}

fn forced(settings: &Settings) -> Option<Algorithm> {
    match settings.text(Key::Algorithm) {
        "ring" | "Ring" => Some(Algorithm::Ring),
        "direct" => Some(Algorithm::Direct),
        "tree" | "Tree" => Some(Algorithm::Tree),
        _ => None,
    }
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
                waiter.contains("pace: Yield")
            };
            let crowded = std::thread::scope(|scope| {
                let join = &join;
                [0, 1].map(|rank| scope.spawn(move || join(rank))).map(|rank| rank.join().unwrap())
            });
            drop(root);
            crowded
        };
        // With a quota of less than two processors any two ranks are crowded.
        let is_short = here.is_crowded(&[&here, &here]);
        assert_eq!(crowded([mine[0], mine[1]]), [is_short; 2]);
        assert_eq!(crowded([mine[0]; 2]), [true; 2]);
    }
}

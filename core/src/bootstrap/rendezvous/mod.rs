//! How the ranks of a job learn the unique id if the caller does not pass it: from the environment
//! that a launcher set.
//!
//! | found, in this order | result |
//! |---|---|
//! | none of the below, no `RANK`, no `WORLD_SIZE`, no other launcher | a job of one rank |
//! | `CCL_RENDEZVOUS_FILE` | rank 0 writes the id there |
//! | `CCL_COMM_ID` | rank 0 listens there; no id is passed around |
//! | `MASTER_ADDR`, `MASTER_PORT`, torchrun's agent listens there | the id goes through its store |
//! | `MASTER_ADDR`, `MASTER_PORT` otherwise | rank 0 listens there, as with `CCL_COMM_ID` |
//!
//! Ranks are numbered by `RANK` and `WORLD_SIZE`. A process may create several communicators from
//! one environment, all ranks in the same order: a counter distinguishes them.

mod comm_id;
mod file;
mod tcpstore;

pub(crate) use file::Published;

use std::net::{IpAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::auth::{HandshakeError, Hello, Purpose, Refusal, connect_blocking};
use super::id::{Address, JobSecret, UniqueId, job_secret};
use super::launch::Origin;
use super::root::{MAX_RANKS, Root};
use super::root_task::{RootHandle, create_knowing};
use crate::clock::{self, Ns};
use crate::config::{Key, Settings, Source, environment};
use crate::error::{Error, ErrorKind, Result};
use crate::notice::{Level, say};
use crate::types::{CommId, JobId, Rank};

/// The longest time that one probe of a root may take.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// How long a root with another secret is assumed to be one of an earlier run, which will end.
const DOUBT_FOR: Duration = Duration::from_secs(2);
/// The pause between two probes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks up a variable of the environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The information that a rank gets from its environment.
#[derive(Debug)]
pub struct Rendezvous {
    /// The id.
    pub id: UniqueId,
    /// This rank.
    pub rank: Rank,
    /// The number of ranks.
    pub nranks: u32,
    /// The root, if this process holds it. Keep it until all ranks have joined.
    pub root: Option<RootHandle>,
    /// The number of the call that met here, if one that tries again meets here, too.
    again: Option<u32>,
}

impl Rendezvous {
    /// Says that the ranks that met here did not join: a call that tries again is still the n-th of
    /// its process, as it is on ranks that have not come yet.
    pub fn failed(&self) {
        self.again.into_iter().for_each(give_back);
    }
}

/// Gives the number of a call back, unless another thread called meanwhile.
fn give_back(instance: u32) {
    let _ = MADE.compare_exchange(instance + 1, instance, Ordering::Relaxed, Ordering::Relaxed);
}

/// A rank and the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Assignment {
    rank: Rank,
    nranks: u32,
}

/// The ways for ranks to meet.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Way {
    Alone,
    File(String),
    Public(Address),
    Store { address: Address, key: String },
}

/// The number of communicators that were made from the environment, which is one per process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Where and as which rank this process meets the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Venue {
    place: Assignment,
    way: Way,
}

impl Venue {
    /// As the environment of this process says. Waits for nobody.
    ///
    /// # Errors
    /// `Usage` if variables contradict each other or are missing, `Unavailable` for unknown
    /// launchers.
    pub fn of_environment(settings: &Settings) -> Result<Self> {
        detect(&environment, settings)
    }

    /// The rank and the number of ranks.
    #[must_use]
    pub const fn place(&self) -> (Rank, u32) {
        (self.place.rank, self.place.nranks)
    }

    /// The communicator and the job that are shown until the ranks have joined: the same for all
    /// that meet there, on one kernel.
    #[must_use]
    pub fn shown(&self) -> (CommId, JobId) {
        let place = match &self.way {
            Way::Alone => std::process::id().to_string(),
            // Paths may be relative, or lie in a container.
            Way::File(path) => std::path::absolute(path)
                .ok()
                .and_then(|path| std::fs::metadata(path.parent()?).ok().map(|folder| (path, folder)))
                .map_or_else(
                    || path.clone(),
                    |(path, folder)| format!("{:?} in {} {}", path.file_name(), folder.dev(), folder.ino()),
                ),
            way => format!("{way:?}"),
        };
        let launch = Origin::own(&environment).launch;
        let seed = launch ^ u64::from(self.place.nranks);
        let job = JobId(xxhash_rust::xxh3::xxh3_64_with_seed(place.as_bytes(), seed));
        (CommId::of_job(job, MADE.load(Ordering::Relaxed)), job)
    }

    /// Meets the other ranks, before `deadline`. The n-th call of a process meets the n-th calls of
    /// the other ranks.
    ///
    /// # Errors
    /// `Timeout` if rank 0 does not come, `Usage` if another job meets there.
    pub fn meet(&self, settings: &Settings, deadline: Ns) -> Result<Rendezvous> {
        let instance = MADE.fetch_add(1, Ordering::Relaxed);
        let met = meet(self, &environment, settings, instance, deadline);
        if met.is_err() {
            give_back(instance);
        }
        met
    }
}

/// Meets the other ranks for the `instance`-th communicator.
fn meet(
    venue: &Venue,
    environment: Environment<'_>,
    settings: &Settings,
    instance: u32,
    deadline: Ns,
) -> Result<Rendezvous> {
    let place = venue.place;
    let Assignment { rank, nranks } = place;
    let (id, root) = match &venue.way {
        Way::Alone => {
            let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
            (UniqueId::fresh(nowhere)?, None)
        }
        Way::File(path) => {
            let (secret, origin) = (job_secret(settings)?, Origin::own(environment));
            file::meet(path, place, instance, origin, (settings, &secret), deadline)?
        }
        Way::Public(address) => comm_id::meet(address, place, instance, Origin::own(environment), settings)?,
        Way::Store { address, key } => {
            let key = format!("{key}/{instance}");
            let secret = job_secret(settings)?;
            if secret.key.is_none() && rank == Rank(0) {
                let text =
                    "this job is unauthenticated: whoever can read the store may join; set CCL_JOB_SECRET";
                say(settings, Level::Warn, text);
            }
            tcpstore::meet(address, &key, place, (settings, &secret), deadline)?
        }
    };
    // What rank 0 wrote into a store stays there: who tries again would read it.
    let again = Some(instance).filter(|_| !matches!(venue.way, Way::Store { .. }));
    Ok(Rendezvous { id, rank, nranks, root, again })
}

fn detect(environment: Environment<'_>, settings: &Settings) -> Result<Venue> {
    let given = |name: &str| environment(name).filter(|value| !value.is_empty());
    let missing = |what: &str, why: &str| {
        Err(Error::new(ErrorKind::Usage, format!("{what} not set, but {why}"))
            .hint("run under torchrun or ccl-inspect run, or set RANK, WORLD_SIZE and CCL_COMM_ID=host:port"))
    };
    let Some(nranks) = number(environment, "WORLD_SIZE")? else {
        refuse_other_launchers(environment)?;
        // A rank without its WORLD_SIZE is not alone: each rank of its job would compute by itself.
        let set = |key| settings.given(key).is_some() && settings.source(key) != Source::Alias;
        let left = ["RANK", "MASTER_ADDR"].into_iter().find(|name| given(name).is_some());
        let left = left.or_else(|| set(Key::CommId).then_some("CCL_COMM_ID"));
        return match left.or_else(|| set(Key::RendezvousFile).then_some("CCL_RENDEZVOUS_FILE")) {
            Some(name) => missing("WORLD_SIZE is", &format!("{name} is")),
            None => Ok(Venue { place: Assignment { rank: Rank(0), nranks: 1 }, way: Way::Alone }),
        };
    };
    let Some(rank) = number(environment, "RANK")? else { return missing("RANK is", "WORLD_SIZE is") };
    if rank >= nranks {
        return Err(Error::new(ErrorKind::Usage, format!("RANK={rank} is not below WORLD_SIZE={nranks}")));
    }
    if nranks > MAX_RANKS {
        let what = format!("WORLD_SIZE={nranks} is more than {MAX_RANKS} ranks");
        return Err(Error::new(ErrorKind::Usage, what));
    }
    let place = Assignment { rank: Rank(rank), nranks };
    let by = |way| Ok(Venue { place, way });
    if nranks == 1 {
        return by(Way::Alone);
    }
    if let Some(path) = settings.given(Key::RendezvousFile) {
        return by(Way::File(path.to_string()));
    }
    if let Some(text) = settings.given(Key::CommId) {
        return by(Way::Public(Address::parse("CCL_COMM_ID", text)?));
    }
    let (Some(host), Some(port)) = (given("MASTER_ADDR"), given("MASTER_PORT")) else {
        let lacks = |name: &&str| given(name).is_none();
        let names: Vec<&str> = ["MASTER_ADDR", "MASTER_PORT"].into_iter().filter(lacks).collect();
        let are = if names.len() == 1 { "is" } else { "are" };
        return missing(&format!("{} {are}", names.join(" and ")), "RANK and WORLD_SIZE are");
    };
    let text = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let address = Address::parse("MASTER_ADDR:MASTER_PORT", &text)?;
    if given("TORCHELASTIC_USE_AGENT_STORE").is_none_or(|says| says != "True") {
        return by(Way::Public(address));
    }
    // The agent's keys survive a restart, but ids of an earlier round must not be read. A round in
    // which agents joined keeps its restart count, but not its world size.
    let run = given("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let restart = given("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    by(Way::Store { address, key: format!("/ccl/{run}/{restart}/{nranks}") })
}

fn number(environment: Environment<'_>, name: &str) -> Result<Option<u32>> {
    let Some(text) = environment(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let wrong = |_| Error::new(ErrorKind::Usage, format!("{name}={text} is no number"));
    text.trim().parse().map(Some).map_err(wrong)
}

/// Rejects launchers whose ranks would each assume that they are alone.
fn refuse_other_launchers(environment: Environment<'_>) -> Result<()> {
    let has = |name: &str| environment(name).is_some();
    // Launchers nest, and mpirun inside a Slurm job leaks Slurm's variables: the order matters.
    let (launcher, rank, size) = if has("PMI_FD") || has("PMI_PORT") {
        ("MPICH or Intel MPI (PMI)", "PMI_RANK", "PMI_SIZE")
    } else if has("OMPI_COMM_WORLD_RANK") {
        ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    } else if has("SLURM_STEP_ID") && has("SLURM_PROCID") {
        ("Slurm", "SLURM_PROCID", "SLURM_NTASKS")
    } else {
        return Ok(());
    };
    let what =
        format!("this process was started by {launcher}, whose rendezvous this version does not speak");
    Err(Error::new(ErrorKind::Unavailable, what)
        .hint(format!("set RANK=${rank} WORLD_SIZE=${size} and CCL_COMM_ID=host:port of rank 0")))
}

/// The settings, and the secret that they name.
type Known<'a> = (&'a Settings, &'a JobSecret);

/// Creates an id for this job, and its root. Returns the id to publish and the id to join with.
fn make(
    nranks: u32,
    near: Option<IpAddr>,
    (settings, secret): Known<'_>,
    described: impl FnOnce(Root) -> Root,
) -> Result<(UniqueId, UniqueId, RootHandle)> {
    let described = |root: Root| described(root.of_ranks(nranks));
    let (mut out, mut own, root) = create_knowing(secret, near, settings, described)?;
    (out.nranks, own.nranks) = (nranks, nranks);
    Ok((out, own, root))
}

/// Whether a host name leads to the loopback, as a host's own name often does (by Debian's
/// default). As the root's address, it would make ranks of other hosts dial their own loopback.
fn means_this_host(address: &Address, found: IpAddr) -> bool {
    matches!(address, Address::Name(name, _) if name != "localhost") && found.is_loopback()
}

/// The state of repeated probes for a root: since when they fail because the secret differs.
#[derive(Debug, Default)]
struct Looks {
    doubts_since: Option<Ns>,
}

impl Looks {
    /// Whether a root listens for this id, with this rank's secret or another one.
    fn is_somebody_there(&mut self, id: &UniqueId, rank: Rank, deadline: Ns) -> bool {
        loop {
            match self.look(id, rank, deadline) {
                Ok(Ok(())) | Err(_) => return true,
                Ok(Err(_)) if self.doubts_since.is_none() => return false,
                Ok(Err(_)) => clock::sleep(LOOK_EVERY),
            }
        }
    }

    /// Probes whether the root of this id is alive and knows its secret: an id that was found may
    /// be of an earlier run. Returns the reason if the probe failed.
    ///
    /// # Errors
    /// `Unavailable`, which names the secret, if a root repeatedly answers that the secret differs.
    fn look(&mut self, id: &UniqueId, rank: Rank, deadline: Ns) -> Result<std::result::Result<(), String>> {
        let now = clock::now();
        let left = deadline.since(now).min(PROBE_WITHIN);
        let found = if left.is_zero() {
            Err(HandshakeError::Deadline)
        } else {
            let connected = TcpStream::connect_timeout(&id.root, left);
            connected.map_err(|e| HandshakeError::System(e.to_string())).and_then(|mut stream| {
                let hello = Hello::new(Purpose::Probe, id.asked(), id.comm(), rank, Rank(0));
                connect_blocking(&mut stream, &id.key, hello, clock::now().after(left))
            })
        };
        match found {
            Ok(()) => Ok(Ok(())),
            Err(error @ (HandshakeError::WrongProof | HandshakeError::Refused(Refusal::Proof))) => {
                let since = *self.doubts_since.get_or_insert(now);
                if now.since(since) >= DOUBT_FOR {
                    return Err(error.into_error(&format!("the bootstrap root at {}", id.root)));
                }
                Ok(Err(format!(
                    "the root it names, at {}, has another CCL_JOB_SECRET than this rank",
                    id.root
                )))
            }
            Err(_) => {
                self.doubts_since = None;
                Ok(Err(format!(
                    "the root it names, at {}, does not answer for it: it may be of an earlier run",
                    id.root
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::auth::Key as Secret;
    use crate::bootstrap::driver::Bootstrap;
    use crate::bootstrap::root_task::create_near;

    const NO_SECRET: JobSecret = JobSecret { key: Secret::NONE, is_weak: false };

    fn check(variables: &[(&str, &str)], expect: &str) {
        let look = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        let settings = Settings::read(&look, "").unwrap();
        let seen = match detect(&look, &settings) {
            Ok(Venue { place, way }) => format!("{} of {}: {way:?}", place.rank, place.nranks),
            Err(error) => format!("{:?}: {error}", error.kind),
        };
        assert!(seen.contains(expect), "{variables:?} gave {seen:?}, not {expect:?}");
    }

    const TORCHRUN: &[(&str, &str)] = &[
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node-1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "run7"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];

    #[test]
    fn launchers_and_settings_in_their_order() {
        check(&[], "0 of 1: Alone");
        check(&[("RANK", "0"), ("WORLD_SIZE", "1")], "0 of 1: Alone");
        check(TORCHRUN, "1 of 4: Store { address: Name(\"node-1\", 29500), key: \"/ccl/run7/2/4\" }");
        check(&TORCHRUN[..4], "1 of 4: Public(Name(\"node-1\", 29500))");
        let with = |more: (&'static str, &'static str)| [TORCHRUN, &[more]].concat();
        check(&with(("CCL_COMM_ID", "10.0.0.1:99")), "Public(Literal(10.0.0.1:99))");
        check(&with(("NCCL_COMM_ID", "10.0.0.1:99")), "Public(Literal(10.0.0.1:99))");
        check(&with(("CCL_RENDEZVOUS_FILE", "/x/y")), "File(\"/x/y\")");
        // Slurm's variables are inherited by every process that runs in the allocation.
        check(&with(("SLURM_PROCID", "0")), "Store");
        let v6 = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "fd00::1"), ("MASTER_PORT", "5")];
        check(&v6, "Public(Literal([fd00::1]:5))");
    }

    #[test]
    fn a_hosts_own_name_is_not_its_loopback() {
        let loopback: IpAddr = "127.0.1.1".parse().unwrap();
        assert!(means_this_host(&Address::Name("node-1".into(), 1), loopback));
        assert!(!means_this_host(&Address::Name("localhost".into(), 1), loopback));
        assert!(!means_this_host(&Address::Literal("127.0.0.1:1".parse().unwrap()), loopback));
        assert!(!means_this_host(&Address::Name("node-1".into(), 1), "10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        check(&[("WORLD_SIZE", "2")], "Usage: RANK is not set, but WORLD_SIZE is");
        for (name, value) in [
            ("RANK", "1"),
            ("RANK", "0"),
            ("MASTER_ADDR", "node-1"),
            ("CCL_COMM_ID", "10.0.0.1:99"),
            ("CCL_RENDEZVOUS_FILE", "/x"),
        ] {
            let expect = format!("Usage: WORLD_SIZE is not set, but {name} is");
            check(&[(name, value)], &expect);
        }
        // NCCL's own variable may be set for NCCL.
        check(&[("NCCL_COMM_ID", "10.0.0.1:99")], "0 of 1: Alone");
        check(&[("WORLD_SIZE", "two")], "Usage: WORLD_SIZE=two is no number");
        check(&[("WORLD_SIZE", "2"), ("RANK", "2")], "Usage: RANK=2 is not below WORLD_SIZE=2");
        check(&[("WORLD_SIZE", "70000"), ("RANK", "0")], "Usage: WORLD_SIZE=70000 is more than 65536 ranks");
        let job = [("WORLD_SIZE", "2"), ("RANK", "1")];
        check(&job, "Usage: MASTER_ADDR and MASTER_PORT are not set, but RANK and WORLD_SIZE are");
        for (given, lacks) in [("MASTER_ADDR", "MASTER_PORT"), ("MASTER_PORT", "MASTER_ADDR")] {
            let expect = format!("Usage: {lacks} is not set, but RANK and WORLD_SIZE are");
            check(&[job[0], job[1], (given, "1")], &expect);
        }
        let bad = [("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "b")];
        check(&bad, "Usage: MASTER_ADDR:MASTER_PORT=a:b is not an address");
        check(&[("PMI_FD", "5"), ("PMI_RANK", "1")], "Unavailable: this process was started by MPICH");
        check(&[("OMPI_COMM_WORLD_RANK", "1"), ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "0")], "by Open MPI");
        check(&[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0")], "RANK=$SLURM_PROCID");
        // A bare sbatch script is not a task of a step.
        check(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")], "0 of 1: Alone");
    }

    /// Lets three ranks on threads meet in one environment, twice, and then run a whole bootstrap.
    fn everybody_meets(variables: &[(&str, &str)]) {
        for instance in 0..2 {
            let deadline = clock::now().after(Duration::from_secs(20));
            std::thread::scope(|scope| {
                let rank = |rank: u32| {
                    let own = rank.to_string();
                    let look = |name: &str| match name {
                        "RANK" => Some(own.clone()),
                        "WORLD_SIZE" => Some("3".into()),
                        _ => variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()),
                    };
                    let settings = Settings::read(&look, "").unwrap();
                    let venue = detect(&look, &settings).unwrap();
                    let met = meet(&venue, &look, &settings, instance, deadline).unwrap();
                    assert_eq!((met.rank, met.nranks, met.root.is_some()), (Rank(rank), 3, rank == 0));
                    let bootstrap =
                        Bootstrap::join(&met.id, met.rank, 3, own.as_bytes(), &settings, deadline).unwrap();
                    assert_eq!(bootstrap.peers(), [b"0", b"1", b"2"]);
                    (bootstrap.job(), bootstrap.into_ring().unwrap(), met.root)
                };
                let ranks: Vec<_> = (0..3).map(|r| scope.spawn(move || rank(r))).collect();
                let jobs: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
                assert!(jobs.iter().all(|(job, ..)| *job == jobs[0].0));
            });
        }
    }

    fn free_port() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn ranks_meet_at_a_public_address_with_and_without_a_secret() {
        let address = format!("127.0.0.1:{}", free_port());
        everybody_meets(&[("CCL_COMM_ID", &address), ("CCL_JOB_SECRET", "sesame")]);
        let port = free_port().to_string();
        everybody_meets(&[("MASTER_ADDR", "localhost"), ("MASTER_PORT", &port)]);
    }

    #[test]
    fn a_root_that_ends_before_it_takes_a_rank_in_is_looked_for_again_without_haste() {
        use crate::bootstrap::auth::accept_blocking;
        let soon = |ms| clock::now().after(Duration::from_millis(ms));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let join = |rank: u32| {
            let own = rank.to_string();
            let look = |name: &str| match name {
                "RANK" => Some(own.clone()),
                "WORLD_SIZE" => Some("2".into()),
                "CCL_COMM_ID" => Some(address.clone()),
                _ => None,
            };
            let settings = Settings::read(&look, "").unwrap();
            let deadline = soon(15_000);
            let met = meet(&detect(&look, &settings).unwrap(), &look, &settings, 0, deadline).unwrap();
            let bootstrap = Bootstrap::join(&met.id, met.rank, 2, b"", &settings, deadline).unwrap();
            drop((bootstrap.into_ring().unwrap(), met.root));
        };
        let mut ended = 0;
        std::thread::scope(|scope| {
            let rank_1 = scope.spawn(|| join(1));
            // For half a second, every connection finds a root that ends at once.
            let until = soon(500);
            while clock::now() < until {
                let Ok((mut stream, _)) = listener.accept() else {
                    clock::sleep(Duration::from_millis(1));
                    continue;
                };
                let met = accept_blocking(&mut stream, &|_, _| Some(Secret::NONE), soon(1000));
                ended += u32::from(met.is_ok());
            }
            drop(listener);
            join(0);
            rank_1.join().unwrap();
        });
        assert!((1..50).contains(&ended), "{ended} times in half a second");
    }

    #[test]
    fn ranks_meet_through_a_file_though_an_earlier_one_lies_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        // An id whose root has ended, and whose port may belong to any process.
        let (stale, root) = create_near("127.0.0.1".parse().ok(), &Settings::default()).unwrap();
        drop(root);
        std::fs::write(&path, stale.to_hex()).unwrap();
        everybody_meets(&[("CCL_RENDEZVOUS_FILE", path.to_str().unwrap())]);
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_file_that_never_comes_or_stays_stale_is_a_timeout_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        let text = path.to_str().unwrap();
        let place = Assignment { rank: Rank(1), nranks: 2 };
        let look = |expect: &str| {
            let deadline = clock::now().after(Duration::from_millis(300));
            let error =
                file::meet(text, place, 0, Origin::default(), (&Settings::default(), &NO_SECRET), deadline)
                    .unwrap_err();
            assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(Rank(0))));
            assert!(error.what.contains(expect), "{error}");
        };
        look("No such file");
        std::fs::write(&path, "rubbish").unwrap();
        look("256 hexadecimal digits");
        let (stale, root) = create_near("127.0.0.1".parse().ok(), &Settings::default()).unwrap();
        drop(root);
        std::fs::write(&path, stale.to_hex()).unwrap();
        look("it may be of an earlier run");
    }
}

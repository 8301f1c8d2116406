//! The root in operation: its state machine on real sockets, in the service thread.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use socket2::Socket;

use super::auth::{Key, Salt, fill_random};
use super::door::Door;
use super::id::{JobSecret, UniqueId};
use super::interfaces;
use super::launch::{Launch, Origin};
use super::net::{Net, listen, local_address};
use super::rendezvous::Published;
use super::root::{OTHER_PORT, Outcome, Root};
use crate::clock::{self, Ns};
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::notice;
use crate::notice::{Level, say};
use crate::reactor::{Handle, Interest, Service, Task, Turn};
use crate::sys::process::raise_file_limit;
use crate::types::{CommId, Rank};

/// When the root first warns about missing ranks, and how often it repeats the warning.
const SAY_AFTER: Duration = Duration::from_secs(5);
const SAY_EVERY: Duration = Duration::from_secs(30);
/// How long dropping the handle waits for the root to have told all ranks.
const LEAVE_WITHIN: Duration = Duration::from_millis(300);
/// The part of that time during which a failed root waits for ranks that are just connecting.
const LATE_WITHIN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct Shared {
    leaving: AtomicBool,
    /// Nothing is left to do or to send.
    over: AtomicBool,
    standing: Mutex<String>,
}

/// A root in the service thread.
///
/// Dropping it ends the root, and ranks that still wait are told so. Keep it until this rank's
/// communicator exists.
#[derive(Debug)]
#[must_use = "dropped, it ends the root, and with it the init of the communicator"]
pub struct RootHandle {
    listening: Arc<Listening>,
    shared: Arc<Shared>,
    address: SocketAddr,
    /// A file that must not outlive the root.
    published: Option<Published>,
}

/// A root that is being served.
struct Guarded {
    comm: CommId,
    shared: Arc<Shared>,
    say_at: Option<Ns>,
    /// When its handle was dropped.
    left: Option<Ns>,
}

/// The task that serves one listener: one root, or all roots of a public address.
struct RootTask {
    net: Net,
    door: Door,
    guarded: Vec<Guarded>,
    new: New,
    settings: Settings,
    /// Whether it keeps running, and so keeps its address, when no root has work.
    stays: bool,
}

/// Roots that the task has not taken over yet.
type New = Arc<Mutex<Roots>>;

type Roots = Vec<(Root, Arc<Shared>)>;

/// A listener of this process and the roots behind it.
///
/// It is closed when the last reference is dropped.
#[derive(Debug)]
pub struct Listening {
    handle: Handle,
    new: New,
    address: SocketAddr,
    salt: Salt,
    instances: Mutex<BTreeSet<CommId>>,
    is_public: bool,
}

/// Keeps the address of a public rendezvous.
///
/// No other job can take the address as long as a communicator that was created there lives.
#[derive(Debug)]
pub struct Seat {
    _listening: Arc<Listening>,
}

/// Creates an id, and the root behind it, at the address that `settings` choose.
///
/// # Errors
/// `Unavailable` without a usable interface, `System` if a socket or the service thread cannot be
/// created.
pub fn create(settings: &Settings) -> Result<(UniqueId, RootHandle)> {
    create_near(None, settings)
}

/// Like [`create`], but prefers an address in the subnet of `near`.
///
/// # Errors
/// As [`create`].
pub fn create_near(near: Option<IpAddr>, settings: &Settings) -> Result<(UniqueId, RootHandle)> {
    let secret = JobSecret { key: Key::NONE, is_weak: false };
    create_knowing(&secret, near, settings, |root| root).map(|(id, _, root)| (id, root))
}

/// Like [`create_near`], for ranks that also know the job's secret. Returns the id to publish, the
/// id to join with, and the root, which `described` may configure further.
pub(crate) fn create_knowing(
    secret: &JobSecret,
    near: Option<IpAddr>,
    settings: &Settings,
    described: impl FnOnce(Root) -> Root,
) -> Result<(UniqueId, UniqueId, RootHandle)> {
    crate::sys::not_forked()?;
    let ip = interfaces::choose(settings, near)?.ip;
    let listener = listen(SocketAddr::new(ip, 0), false)?;
    let id = UniqueId::fresh(local_address(&listener)?)?;
    let mixed = id.clone().mixed_with(secret);
    let root = described(Root::new(mixed.key.clone(), mixed.asked(), mixed.comm(), mixed.magic, 0));
    let shared = Arc::new(Shared::default());
    // Behind the listener before anybody can connect: these ranks do not come again if they are
    // told that it is unknown.
    let listening = Arc::new(Listening::start(listener, false, settings, vec![(root, Arc::clone(&shared))])?);
    Ok((id, mixed, RootHandle { address: listening.address, listening, shared, published: None }))
}

/// Starts the root of a public id at `bind`, an address that the user or the launcher chose. One
/// listener of this process serves all communicators of the address.
pub(crate) fn serve_public(
    id: &UniqueId,
    nranks: u32,
    bind: SocketAddr,
    origin: Origin,
    settings: &Settings,
) -> Result<RootHandle> {
    crate::sys::not_forked()?;
    static LISTENING: Mutex<Vec<(SocketAddr, Weak<Listening>)>> = Mutex::new(Vec::new());
    let mut all = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, one)| one.strong_count() > 0);
    let known = all.iter().find(|(at, _)| *at == bind).and_then(|(_, one)| one.upgrade());
    let listening = match known {
        Some(listening) => listening,
        None => {
            let made = Arc::new(Listening::start(listen(bind, true)?, true, settings, Vec::new())?);
            all.push((bind, Arc::downgrade(&made)));
            made
        }
    };
    drop(all);
    let mut magic = [0; 8];
    fill_random(&mut magic)?;
    let key = if id.stretches { id.key.stretched(&listening.salt) } else { id.key.clone() };
    let root = Root::new(key, id.asked(), id.comm(), u64::from_le_bytes(magic), nranks);
    listening.serve(root.of_launch(Launch::of(origin)))
}

impl Listening {
    fn start(listener: Socket, stays: bool, settings: &Settings, first: Roots) -> Result<Self> {
        raise_file_limit();
        let address = local_address(&listener)?;
        let mut salt = Salt::default();
        fill_random(&mut salt)?;
        let instances = Mutex::new(first.iter().map(|(root, _)| root.comm()).collect());
        let new = New::new(Mutex::new(first));
        let task = RootTask {
            net: Net::new(Some(listener))?,
            door: Door::new(stays.then_some(salt)),
            guarded: Vec::new(),
            new: Arc::clone(&new),
            settings: settings.clone(),
            stays,
        };
        let handle = Service::get()?.add(task)?;
        Ok(Self { handle, new, address, salt, instances, is_public: stays })
    }

    fn serve(self: Arc<Self>, root: Root) -> Result<RootHandle> {
        if !self.instances.lock().unwrap_or_else(PoisonError::into_inner).insert(root.comm()) {
            let what = format!("this process is rank 0 of two jobs at {}", self.address);
            return Err(Error::new(ErrorKind::Usage, what).hint(OTHER_PORT));
        }
        let shared = Arc::new(Shared::default());
        self.new.lock().unwrap_or_else(PoisonError::into_inner).push((root, Arc::clone(&shared)));
        self.handle.nudge();
        let address = self.address;
        Ok(RootHandle { listening: self, shared, address, published: None })
    }
}

impl RootHandle {
    /// The address at which the root listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// "63/64 in, waiting for rank 37", as of about a second ago.
    #[must_use]
    pub fn standing(&self) -> String {
        self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether all ranks have seen the complete ring, or bootstrap failed and all ranks were told.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }

    /// A seat that keeps a public address after the root is gone.
    #[must_use]
    pub fn seat(&self) -> Option<Seat> {
        self.listening.is_public.then(|| Seat { _listening: Arc::clone(&self.listening) })
    }

    /// Has the file removed together with the root.
    pub(crate) fn publish(&mut self, published: Published) {
        self.published = Some(published);
    }
}

impl Drop for RootHandle {
    fn drop(&mut self) {
        if crate::sys::fds::forked() {
            // A copy in a forked child: the root and the file belong to the parent.
            return;
        }
        drop(self.published.take());
        self.shared.leaving.store(true, Ordering::Release);
        self.listening.handle.nudge();
        let until = clock::now().after(LEAVE_WITHIN);
        while !self.is_over() && clock::now() < until {
            clock::sleep(Duration::from_millis(1));
        }
    }
}

impl Guarded {
    /// Does what is due for its root; returns when it needs the next turn.
    fn turn(&mut self, net: &mut Net, door: &mut Door, settings: &Settings, now: Ns) -> Option<Ns> {
        let comm = self.comm;
        let leaving = self.shared.leaving.load(Ordering::Acquire);
        let has_more = door.root(comm).is_some_and(Root::has_more_to_tell);
        let late_until =
            leaving.then(|| self.left.get_or_insert(now).after(LATE_WITHIN)).filter(|_| has_more);
        let is_late = late_until.is_none_or(|until| until <= now);
        if leaving && is_late {
            net.with(door, |door, io| {
                door.with_root(comm, |root| root.abandon(io));
                door.clear_if_idle(io);
            });
        }
        let root = door.root(comm)?;
        self.speak(root, settings, now);
        *self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner) = root.standing();
        let over = match root.outcome() {
            Some(Outcome::Complete) => !root.has_visitors(),
            // A late rank still learns the reason, while the handle exists and a little longer.
            Some(Outcome::Failed(_)) => leaving && is_late && net.is_settled(),
            None => false,
        };
        if over {
            self.shared.over.store(true, Ordering::Release);
        }
        let say_at = self.say_at.filter(|_| notice::wanted(settings, Level::Warn));
        [say_at, late_until.filter(|until| *until > now)].into_iter().flatten().min()
    }

    /// Warns now and then about the ranks that block the others.
    fn speak(&mut self, root: &Root, settings: &Settings, now: Ns) {
        if !root.is_waiting() {
            self.say_at = None;
            return;
        }
        let at = *self.say_at.get_or_insert_with(|| now.after(SAY_AFTER));
        if at <= now {
            self.say_at = Some(now.after(SAY_EVERY));
            say(settings, Level::Warn, &format!("bootstrap: {}", root.standing()));
        }
    }

    fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }
}

impl Task for RootTask {
    fn interests(&self, out: &mut Vec<Interest>) {
        self.net.interests(out);
    }

    fn turn(&mut self, now: Ns) -> Turn {
        let new = std::mem::take(&mut *self.new.lock().unwrap_or_else(PoisonError::into_inner));
        for (root, shared) in new {
            self.guarded.push(Guarded { comm: root.comm(), shared, say_at: None, left: None });
            self.door.add(root);
        }
        self.net.turn(&mut self.door);
        if let Some((what, hint)) = self.net.shortage().to_say(Rank(0)) {
            say(&self.settings, Level::Warn, &format!("bootstrap root: {what}; {hint}"));
        }
        let Self { net, door, guarded, settings, .. } = self;
        let due = guarded.iter_mut().filter_map(|one| one.turn(net, door, settings, now)).min();
        guarded.retain(|one| {
            let stays = !one.is_over() || !one.shared.leaving.load(Ordering::Acquire);
            if !stays {
                door.with_root(one.comm, Root::retire);
            }
            stays
        });
        let idle = guarded.iter().all(Guarded::is_over);
        if !self.stays && idle && self.door.has_roots() && self.net.is_settled() {
            return Turn::Done;
        }
        Turn::Again([self.net.wake(&self.door), due].into_iter().flatten().min())
    }
}

impl Drop for RootTask {
    fn drop(&mut self) {
        self.guarded.iter().for_each(|one| one.shared.over.store(true, Ordering::Release));
    }
}

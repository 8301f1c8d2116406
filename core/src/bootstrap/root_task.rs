//! The root at work: its machine on real sockets, in the service thread.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use socket2::Socket;

use super::auth::{Key, Salt, fill_random};
use super::door::Door;
use super::id::{JobSecret, UniqueId};
use super::launch::{Launch, Origin};
use super::net::{Net, listen, local_address};
use super::notice::{Level, say};
use super::rendezvous::Published;
use super::root::{OTHER_PORT, Outcome, Root};
use super::{interfaces, notice};
use crate::clock::{self, Ns};
use crate::config::Settings;
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::process::raise_file_limit;
use crate::types::CommId;

/// When the root begins to say aloud whom it waits for, and how often it repeats that.
const SAY_AFTER: Duration = Duration::from_secs(5);
const SAY_EVERY: Duration = Duration::from_secs(30);
/// How long whoever drops the handle waits for the root to have told everybody.
const LEAVE_WITHIN: Duration = Duration::from_millis(300);
/// How much of that a root that failed waits for ranks that are only just coming.
const LATE_WITHIN: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct Shared {
    leaving: AtomicBool,
    /// Nothing is left to do or to say.
    over: AtomicBool,
    standing: Mutex<String>,
}

/// A root in the service thread. Dropping it ends the root: ranks that still wait are told so. Keep it until the communicator is
/// made on this rank.
#[derive(Debug)]
#[must_use = "dropped, it ends the root, and with it the making of the communicator"]
pub struct RootHandle {
    listening: Arc<Listening>,
    shared: Arc<Shared>,
    address: SocketAddr,
    /// A file that must not outlive the root.
    published: Option<Published>,
}

/// A root that is to be served.
struct Guarded {
    comm: CommId,
    shared: Arc<Shared>,
    say_at: Option<Ns>,
    /// Since when nobody holds it any more.
    left: Option<Ns>,
}

/// What serves one listener: one root, or those of a public address.
struct RootTask {
    net: Net,
    door: Door,
    guarded: Vec<Guarded>,
    new: New,
    settings: Settings,
    /// Whether it goes on when no root has work: the address is kept.
    stays: bool,
}

/// Roots on their way to the task.
type New = Arc<Mutex<Vec<(Root, Arc<Shared>)>>>;

/// A listener of this process with the roots behind it. Closed when nobody holds it any more.
#[derive(Debug)]
pub struct Listening {
    handle: Handle,
    new: New,
    address: SocketAddr,
    salt: Salt,
    instances: Mutex<BTreeSet<CommId>>,
    is_public: bool,
}

/// Keeps the address of a public rendezvous: as long as a communicator that was made there lives, no other job can take it.
#[derive(Debug)]
pub struct Seat {
    _listening: Arc<Listening>,
}

/// Makes an id, and the root behind it, at the address that `settings` choose.
///
/// # Errors
/// `Unavailable` without a usable interface, `System` if a socket or the service thread cannot be had.
pub fn create(settings: &Settings) -> Result<(UniqueId, RootHandle)> {
    create_near(None, settings)
}

/// As [`create`], and prefers an address of the subnet of `near`.
///
/// # Errors
/// As [`create`].
pub fn create_near(near: Option<IpAddr>, settings: &Settings) -> Result<(UniqueId, RootHandle)> {
    let secret = JobSecret { key: Key::NONE, is_weak: false };
    create_knowing(&secret, near, settings, |root| root).map(|(id, _, root)| (id, root))
}

/// As [`create_near`], for ranks that know the job's secret as well: the id to hand out, the one to join with, and the root, which
/// `described` may say more about.
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
    let listening = Arc::new(Listening::start(listener, false, settings)?);
    Ok((id, mixed, listening.serve(root)?))
}

/// Starts the root of a public id, at a port that somebody chose. One listener of this process serves all communicators of the address.
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
            let made = Arc::new(Listening::start(listen(bind, true)?, true, settings)?);
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
    fn start(listener: Socket, stays: bool, settings: &Settings) -> Result<Self> {
        raise_file_limit();
        let address = local_address(&listener)?;
        let mut salt = Salt::default();
        fill_random(&mut salt)?;
        let new = New::default();
        let task = RootTask {
            net: Net::new(Some(listener))?,
            door: Door::new(stays.then_some(salt)),
            guarded: Vec::new(),
            new: Arc::clone(&new),
            settings: settings.clone(),
            stays,
        };
        let handle = Service::get()?.add(task)?;
        Ok(Self { handle, new, address, salt, instances: Mutex::default(), is_public: stays })
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
    /// Where the root listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// "63/64 in, waiting for rank 37", as of about a second ago.
    #[must_use]
    pub fn standing(&self) -> String {
        self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether all ranks have seen the ring complete, or it failed and everybody was told.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire)
    }

    /// What keeps a public address when the root is gone.
    #[must_use]
    pub fn seat(&self) -> Option<Seat> {
        self.listening.is_public.then(|| Seat { _listening: Arc::clone(&self.listening) })
    }

    /// Has the file removed with the root.
    pub(crate) fn publish(&mut self, published: Published) {
        self.published = Some(published);
    }
}

impl Drop for RootHandle {
    fn drop(&mut self) {
        if crate::sys::fds::forked() {
            // A copy in a forked child: root and file are the parent's.
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
    /// Does what is due for its root; until when it needs no more.
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
            // Who comes late still hears why, as long as somebody holds the root and a little longer.
            Some(Outcome::Failed(_)) => leaving && is_late && net.is_settled(),
            None => false,
        };
        if over {
            self.shared.over.store(true, Ordering::Release);
        }
        let say_at = self.say_at.filter(|_| notice::wanted(settings, Level::Warn));
        [say_at, late_until.filter(|until| *until > now)].into_iter().flatten().min()
    }

    /// Says aloud, now and then, whom everybody waits for.
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

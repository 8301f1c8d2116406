//! The root at work: its machine on real sockets, in the service thread.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::Socket;

use super::auth::fill_random;
use super::id::UniqueId;
use super::net::{Net, listen, local_address, raise_file_limit};
use super::notice::{Level, say};
use super::root::{Outcome, Root};
use super::{interfaces, notice};
use crate::clock::{self, Ns};
use crate::config::Settings;
use crate::control::service::{Handle, Interest, Service, Task, Turn};
use crate::error::Result;

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
    /// `None` only while it is dropped.
    handle: Option<Handle>,
    shared: Arc<Shared>,
    address: SocketAddr,
    /// A file that must not outlive the root, with what it says while it is ours.
    published: Option<(PathBuf, String)>,
}

struct RootTask {
    net: Net,
    root: Root,
    shared: Arc<Shared>,
    settings: Settings,
    say_at: Option<Ns>,
    /// Since when nobody holds it any more.
    left: Option<Ns>,
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
    crate::sys::not_forked()?;
    let ip = interfaces::choose(settings, near)?.ip;
    let listener = listen(SocketAddr::new(ip, 0), false)?;
    let id = UniqueId::fresh(local_address(&listener)?)?;
    let root = Root::new(id.key.clone(), id.job(), id.comm(), id.magic, 0);
    Ok((id, start(listener, root, settings)?))
}

/// Starts the root of a public id, at a port that somebody chose.
pub(crate) fn serve_public(
    id: &UniqueId,
    nranks: u32,
    bind: SocketAddr,
    settings: &Settings,
) -> Result<RootHandle> {
    let listener = listen(bind, true)?;
    let mut magic = [0; 8];
    fill_random(&mut magic)?;
    let root = Root::new(id.key.clone(), id.job(), id.comm(), u64::from_le_bytes(magic), nranks);
    start(listener, root, settings)
}

fn start(listener: Socket, root: Root, settings: &Settings) -> Result<RootHandle> {
    raise_file_limit();
    let address = local_address(&listener)?;
    let shared = Arc::new(Shared::default());
    let task = RootTask {
        net: Net::new(Some(listener))?,
        root,
        shared: Arc::clone(&shared),
        settings: settings.clone(),
        say_at: None,
        left: None,
    };
    let handle = Service::get()?.add(task)?;
    Ok(RootHandle { handle: Some(handle), shared, address, published: None })
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

    /// Has the file removed with the root, unless somebody else has written it anew by then.
    pub(crate) fn publish(&mut self, path: PathBuf, content: String) {
        self.published = Some((path, content));
    }
}

impl Drop for RootHandle {
    fn drop(&mut self) {
        if crate::sys::fds::forked() {
            // A copy in a forked child: root and file are the parent's.
            return;
        }
        if let Some((path, content)) = &self.published
            && std::fs::read_to_string(path).is_ok_and(|found| found == *content)
        {
            // If it cannot be removed, whoever reads it finds nobody at its address.
            let _ = std::fs::remove_file(path);
        }
        self.shared.leaving.store(true, Ordering::Release);
        if let Some(handle) = &self.handle {
            handle.nudge();
        }
        let until = clock::now().after(LEAVE_WITHIN);
        while !self.is_over() && clock::now() < until {
            clock::sleep(Duration::from_millis(1));
        }
        self.handle = None;
    }
}

impl RootTask {
    /// Says aloud, now and then, whom everybody waits for.
    fn speak(&mut self, now: Ns) {
        if !self.root.is_waiting() {
            self.say_at = None;
            return;
        }
        let at = *self.say_at.get_or_insert_with(|| now.after(SAY_AFTER));
        if at <= now {
            self.say_at = Some(now.after(SAY_EVERY));
            say(&self.settings, Level::Warn, &format!("bootstrap: {}", self.root.standing()));
        }
    }
}

impl Task for RootTask {
    fn interests(&self, out: &mut Vec<Interest>) {
        self.net.interests(out);
    }

    fn turn(&mut self, now: Ns) -> Turn {
        self.net.turn(&mut self.root);
        let leaving = self.shared.leaving.load(Ordering::Acquire);
        let late_until = leaving
            .then(|| self.left.get_or_insert(now).after(LATE_WITHIN))
            .filter(|_| self.root.has_more_to_tell());
        if leaving && late_until.is_none_or(|until| until <= now) {
            self.net.with(&mut self.root, Root::abandon);
        }
        self.speak(now);
        let standing = self.root.standing();
        *self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
        let over = match self.root.outcome() {
            Some(Outcome::Complete) => self.net.is_empty(),
            // Who comes late still hears why, as long as somebody holds the root and a little longer.
            Some(Outcome::Failed(_)) => {
                leaving && self.net.is_empty() && late_until.is_none_or(|until| until <= now)
            }
            None => false,
        };
        if over {
            self.shared.over.store(true, Ordering::Release);
            return Turn::Done;
        }
        let say_at = self.say_at.filter(|_| notice::wanted(&self.settings, Level::Warn));
        Turn::Again([self.net.wake(&self.root), say_at, late_until].into_iter().flatten().min())
    }
}

impl Drop for RootTask {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
    }
}

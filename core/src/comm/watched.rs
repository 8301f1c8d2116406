//! The part of a communicator in the watchdog of its process (`control/watchdog`).

use std::sync::{Arc, Weak};

use crate::comm::services::ProcessServices;
use crate::comm::state::{Inner, lock};
use crate::control::watchdog::{Seat, Seated};
use crate::failure::gossip::News;
use crate::recorder::Events;

/// Lets the watchdog tell in a communicator, and abort it, as long as the result lives.
pub(super) fn seat(inner: &Arc<Inner>, services: &ProcessServices, events: Events) -> Option<Seated> {
    let watchdog = services.watchdog()?;
    // Weak: the watchdog must not keep a communicator. The service thread, which tells, must not be
    // the last to hold one: what closes it waits for that thread.
    let gossip = lock(&inner.gossip).as_ref().map(Arc::downgrade).unwrap_or_default();
    let aborting = Arc::downgrade(inner);
    let tell = Box::new(move |news: &News| {
        if let Some(gossip) = gossip.upgrade() {
            gossip.tell_news(news.clone());
        }
    });
    let abort = Arc::new(move |reason: &str| {
        if let Some(inner) = aborting.upgrade() {
            inner.abort(reason);
        }
    });
    Some(watchdog.seat(Seat { comm: inner.id, events, tell, abort }))
}

/// Hands the watchdog what another process told.
pub(super) fn heard(services: &Weak<ProcessServices>, news: News) {
    if let Some(services) = services.upgrade()
        && let Some(watchdog) = services.watchdog()
    {
        watchdog.heard(news);
    }
}

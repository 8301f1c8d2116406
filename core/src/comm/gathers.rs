//! The part of a communicator in gathering state across hosts (`control/gather`).

use std::sync::Arc;
use std::time::Duration;

use crate::comm::cards::Known;
use crate::comm::services::ProcessServices;
use crate::config::{Key, Settings};
use crate::control::gather::{HostTree, Member, Way};
use crate::failure::edge::Dialling;
use crate::transport::socket::listen::Listener;
use crate::types::Rank;

/// How long init waits for the edge to the parent. A communicator works without, and a parent that
/// does not answer must not make this rank late in its first collective: others would blame it.
const EDGE_WITHIN: Duration = Duration::from_millis(250);

/// Takes part in gathering, if the ranks are on several hosts and the process is observed.
pub(super) fn member(
    (services, settings): (&ProcessServices, &Settings),
    cards: &[Arc<Known>],
    dialling: &Dialling,
    listener: &Arc<Listener>,
) -> Option<Arc<Member>> {
    let is_observed = settings.number(Key::Observe) != 0;
    let tree = HostTree::new(&hosts(cards), dialling.me).filter(|_| is_observed)?;
    let way = Way { tree, dialling: dialling.clone(), listener: Arc::clone(listener) };
    Member::join(&services.recorder(), way, EDGE_WITHIN).ok()
}

/// Whether the ranks of a child of a communicator have the same leaders: then its edges serve both.
pub(super) fn same_leaders(cards: &[Arc<Known>], members: &[Rank]) -> bool {
    let leaders = |hosts: &[u64]| {
        let tree = HostTree::new(hosts, Rank(0));
        tree.map(|tree| tree.leaders()).unwrap_or_default()
    };
    let hosts = hosts(cards);
    let of_child: Vec<u64> = members.iter().map(|member| hosts[member.index()]).collect();
    let mut child: Vec<Rank> = leaders(&of_child).iter().map(|rank| members[rank.index()]).collect();
    child.sort_unstable();
    child == leaders(&hosts)
}

/// The host of each rank, whatever transport reaches it.
fn hosts(cards: &[Arc<Known>]) -> Vec<u64> {
    cards.iter().map(|known| known.process.host).collect()
}

//! The JSON of a snapshot, as claims.

use ccl::snapshot::{BlockedOn, CommSnapshot, Failure, OpSnapshot, OpState, RankSnapshot, Snapshot};
use ccl::types::Rank;

use super::claim::{Call, Claim, Stand};
use super::text::{failure_call, failure_sentence};

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

/// JSON also contains waits shorter than this: every healthy job has many of them.
const SHORT_NS: u64 = 100_000_000;

/// The claims of the JSON.
#[must_use]
pub fn claims(snapshot: &Snapshot) -> Vec<Claim> {
    let mut claims: Vec<Claim> = snapshot.blocked_on.iter().flat_map(blocked_on).collect();
    claims.extend(snapshot.failures.iter().flat_map(failure));
    claims.extend(snapshot.not_joined.iter().map(|one| Claim::NotJoined {
        ranks: numbers(&one.ranks),
        by: numbers(&one.by),
        for_ns: one.since_ns,
        gives_up_ns: Some(one.gives_up_ns).filter(|ns| *ns > 0),
    }));
    claims
        .extend(snapshot.missing.iter().map(|one| Claim::NotRead { rank: one.rank.0, why: one.why.clone() }));
    let of = snapshot.ranks.len() + snapshot.missing.len();
    claims.push(Claim::Read { ranks: snapshot.ranks.len(), of });
    claims.extend(snapshot.ranks.iter().flat_map(rank));
    claims.extend(silent_first(snapshot));
    claims.extend(super::verdict::claims(snapshot));
    claims
}

/// The rank whose last sign of life came long before the others, if all are gone.
fn silent_first(snapshot: &Snapshot) -> Option<Claim> {
    let mut signs: Vec<(u64, u32)> =
        snapshot.ranks.iter().map(|rank| (rank.to_real_ns, rank.rank.0)).collect();
    signs.sort_unstable();
    let [(first, rank), (next, _), ..] = signs[..] else { return None };
    // A sign comes once a second.
    let before_ns = (next - first).checked_sub(1_500_000_000)?;
    snapshot.ranks.iter().all(RankSnapshot::is_gone).then_some(Claim::SilentFirst { rank, before_ns })
}

fn blocked_on(one: &BlockedOn) -> Vec<Claim> {
    let call = Call { kind: one.op.clone(), seq: one.seq, peer: None };
    let mut claims = vec![Claim::Wait {
        ranks: numbers(&one.by),
        call: call.clone(),
        or_later: true,
        for_ns: one.since_ns,
    }];
    if !one.tag.is_empty() {
        claims.push(Claim::Tag { ranks: numbers(&one.by), tag: one.tag.clone() });
    }
    if one.since_ns < SHORT_NS || !one.is_long() {
        return claims;
    }
    if !one.missing.is_empty() {
        claims.push(Claim::NotCalled { ranks: numbers(&one.missing), call: call.clone() });
    }
    if !one.inside.is_empty() {
        claims.push(Claim::Inside { ranks: numbers(&one.inside), call });
    }
    if !one.unseen.is_empty() || (one.missing.is_empty() && one.inside.is_empty()) {
        claims.push(Claim::MayBe { ranks: numbers(&one.unseen) });
    }
    claims.extend(one.link.as_ref().map(|link| Claim::WaitsFor {
        rank: link.rank.0,
        peer: link.peer.0,
        for_ns: link.since_ns,
        transport: link.transport.word().into(),
    }));
    claims
}

fn failure(one: &Failure) -> Vec<Claim> {
    let call = (!one.op.is_empty()).then(|| Call { kind: one.op.clone(), seq: one.seq, peer: None });
    let mut claims = vec![Claim::Failed {
        ranks: numbers(&one.ranks),
        // If it took no time the ranks failed outside of it.
        call: call.clone().filter(|_| one.lasted_ns > 0),
        error: one.error.clone(),
        ago_ns: Some(one.since_ns),
        lasted_ns: Some(one.lasted_ns),
    }];
    if !one.blamed.is_empty() {
        claims.push(Claim::Blamed { ranks: numbers(&one.blamed) });
    }
    if let Some(call) = call.filter(|_| !one.missing.is_empty()) {
        claims.push(Claim::HadNotCalled { ranks: numbers(&one.missing), call });
    }
    claims.extend(one.calls.iter().filter_map(|called| failure_call(&numbers(&called.ranks), &called.call)));
    claims.extend(failure_sentence(&one.text).unwrap_or_default());
    claims
}

fn rank(one: &RankSnapshot) -> Vec<Claim> {
    let rank = one.rank.0;
    let mut claims = vec![
        Claim::Process {
            rank,
            pid: Some(one.pid),
            host: Some(one.host.clone()),
            state: Some(one.state.word().into()),
        },
        Claim::From { rank, source: one.source.word().into() },
    ];
    claims.extend(one.lives_on().then_some(Claim::LivesOn { rank }));
    claims.extend(one.comms.iter().flat_map(comm));
    claims
}

fn comm(comm: &CommSnapshot) -> Vec<Claim> {
    let rank = comm.rank.0;
    let mut claims: Vec<Claim> = comm.links.iter().map(|link| counters(rank, link)).collect();
    let waits = comm.links.iter().filter(|link| link.is_waiting());
    claims.extend(waits.filter_map(|link| {
        let peer = link.waits_for.or(link.peer)?.0;
        if comm.has_failed() {
            return Some(Claim::WaitedFor { rank, peer, for_ns: link.since_ns });
        }
        Some(Claim::WaitsFor { rank, peer, for_ns: link.since_ns, transport: link.transport.word().into() })
    }));
    if comm.phase.is_none() && !comm.op.kind.is_empty() {
        claims.push(at(rank, &comm.op, false));
    }
    claims.extend(comm.p2p.as_ref().map(|op| at(rank, op, true)));
    claims
}

fn counters(rank: u32, link: &ccl::snapshot::LinkSnapshot) -> Claim {
    Claim::Counters { rank, counters: [link.posted, link.moved, link.done] }
}

fn at(rank: u32, op: &OpSnapshot, is_pair: bool) -> Claim {
    let stand = match op.state {
        OpState::Running => Stand::Running,
        OpState::Failed => Stand::Failed(op.error.clone()),
        OpState::Idle | OpState::Unknown => Stand::Idle,
    };
    let peer = op.peer.filter(|_| is_pair).map(|peer| peer.0);
    let call = Some(Call { kind: op.kind.clone(), seq: op.seq, peer });
    Claim::At { rank, call, stand, for_ns: op.age_ns, tag: op.tag.clone() }
}

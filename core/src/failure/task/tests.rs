use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;

use super::*;
use crate::bootstrap::auth::Key;
use crate::failure::gossip::Attempt;
use crate::types::{CommId, JobId};

struct Silent;

impl Owner for Silent {
    fn called(&self) -> Vec<Descriptor> {
        Vec::new()
    }
    fn finished(&self, _: Rank, _: &Tally) {}
    fn asked(&self, _: Rank, _: &Descriptor) {}
    fn decided(&self, _: &Decision) {}
    fn heard(&self, _: News) {}
}

#[test]
fn the_ring_is_closed_past_several_ranks_that_went_without_a_word() {
    let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let there = TcpListener::bind(here(0)).unwrap();
    // Where ranks 1 and 2 were, nobody listens any more.
    let listeners = vec![here(3), here(1), here(2), there.local_addr().unwrap()];
    let (job, comm, me) = (JobId(0x2a), CommId(0xc0), Rank(0));
    let dialling = Dialling { job, comm, key: Key::from_secret("of this test"), me, bind: None, listeners };
    let ways = Ways {
        locals: Vec::new(),
        post: Post::open(comm, me).unwrap(),
        ring: [None, None],
        mending: Some((dialling, Arc::default())),
    };
    let service = Service::get().unwrap();
    let task = GossipTask::start(&service, Gossip::new(me, 4), me, ways, Box::new(Silent)).unwrap();
    let (tell, told) = mpsc::channel();
    let accepts = std::thread::spawn(move || tell.send(there.accept().is_ok()));

    let attempt = Attempt { nth: 0, without: vec![Rank(1), Rank(2)] };
    let share = Share { rank: me, attempt, round: 0, block: Vec::new() };
    let mut left = Duration::ZERO;
    let lacks = task.share(share, false, &mut left, &mut |_| ());
    assert!(matches!(lacks, Err(Unshared::Without(ranks)) if ranks == [Rank(3)]));
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(true));
    accepts.join().unwrap().unwrap();
}

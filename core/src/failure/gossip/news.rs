//! What watchdogs tell each other of stalls: one process finds out, all hear of it.
//!
//! Each process numbers what it tells. Of each process only the latest news count, so news that
//! arrive twice, late or by another communicator change nothing.

use serde::{Deserialize, Serialize};

use super::{Gossip, GossipMessage, Side, To};
use crate::snapshot::StallTold;
use crate::text::harmless;
use crate::types::Rank;

/// The most processes whose news a rank keeps apart: more than tell at one time.
const MAX_TELLERS: usize = 64;
/// The most bytes of a sentence; longer ones are cut where they are created.
pub const NEWS_TEXT: usize = 1 << 10;

/// News of a stall.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct News {
    /// The process that tells it: a number drawn at random.
    pub teller: u64,
    /// The number of the news among those of the process.
    pub number: u32,
    /// What stands; `None`: the stall that the process told before is over.
    pub stall: Option<Stall>,
}

/// A stall, as it is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stall {
    /// What is told.
    pub told: StallTold,
    /// The first rank of the job to blame.
    pub culprit: Option<Rank>,
    /// How long it had lasted when it was told, in nanoseconds.
    pub since_ns: u64,
}

impl News {
    /// Cuts its text and makes it harmless: it comes from another process.
    fn make_harmless(&mut self) {
        if let Some(stall) = &mut self.stall {
            stall.told.text = harmless(&stall.told.text, 2 * NEWS_TEXT).into_owned();
        }
    }
}

/// Keeps the latest news of each process; returns whether these are later than those known.
#[derive(Debug, Default)]
pub(crate) struct Latest(Vec<(u64, u32)>);

impl Latest {
    pub(crate) fn is_new(&mut self, news: &News) -> bool {
        match self.0.iter_mut().find(|(teller, _)| *teller == news.teller) {
            Some((_, number)) if *number >= news.number => return false,
            Some((_, number)) => *number = news.number,
            None => {
                self.0.truncate(MAX_TELLERS - 1);
                self.0.insert(0, (news.teller, news.number));
            }
        }
        true
    }
}

impl Gossip {
    /// Tells all ranks news of this process, or those that it heard in another communicator.
    pub(crate) fn tell_news(&mut self, news: News) {
        if self.news.is_new(&news) {
            self.flood(&GossipMessage::News(news));
        }
    }

    /// Passes news on that are new, and keeps them for the caller.
    pub(super) fn hear_news(&mut self, onward: &[Side], mut news: News) {
        if self.news.is_new(&news) {
            news.make_harmless();
            let message = GossipMessage::News(news.clone());
            self.send(onward, &message);
            self.out.push((To::Local, message));
            self.heard.push(news);
        }
    }

    /// Takes the news that have arrived since the last call.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Ns;

    fn news(teller: u64, number: u32, text: &str) -> News {
        let told = StallTold { text: text.into(), ..StallTold::default() };
        News { teller, number, stall: Some(Stall { told, culprit: Some(Rank(1)), since_ns: 3 }) }
    }

    #[test]
    fn news_go_round_once_and_only_the_latest_count() {
        let mut gossip: Vec<Gossip> = (0..5).map(|rank| Gossip::new(Rank(rank), 5)).collect();
        let spread = |gossip: &mut Vec<Gossip>, ring_only: bool| {
            let mut sent = 0;
            loop {
                let out: Vec<(usize, To, GossipMessage)> = (0..5)
                    .flat_map(|at| gossip[at].take_out().into_iter().map(move |(to, m)| (at, to, m)))
                    .collect();
                if out.is_empty() {
                    return sent;
                }
                for (at, to, message) in out {
                    sent += 1;
                    match to {
                        To::Ring(Side::Next) => {
                            gossip[(at + 1) % 5].received(Some(Side::Previous), message, Ns(0));
                        }
                        To::Ring(Side::Previous) => {
                            gossip[(at + 4) % 5].received(Some(Side::Next), message, Ns(0));
                        }
                        To::Local if ring_only => {}
                        To::Local => (0..5)
                            .filter(|other| *other != at)
                            .for_each(|other| gossip[other].received(None, message.clone(), Ns(0))),
                    }
                }
            }
        };
        for ring_only in [true, false] {
            let number = 1 + u32::from(ring_only);
            gossip[2].tell_news(news(9, 3 * number, "it is stopped\n"));
            assert!(spread(&mut gossip, ring_only) < 100);
            for (at, one) in gossip.iter_mut().enumerate() {
                let heard = one.take_news();
                assert_eq!(heard.len(), usize::from(at != 2), "{at}");
                assert!(heard.iter().all(|one| one.stall.as_ref().unwrap().told.text == "it is stopped\\n"));
            }
            // The same again, and older ones.
            gossip[4].tell_news(news(9, 3 * number, "again"));
            gossip[1].received(None, GossipMessage::News(news(9, number, "older")), Ns(0));
            assert_eq!(spread(&mut gossip, ring_only), 0);
            assert!(gossip.iter_mut().all(|one| one.take_news().is_empty()));
            gossip.iter_mut().for_each(|one| one.news = Latest::default());
        }
    }

    #[test]
    fn many_tellers_do_not_fill_the_memory() {
        let mut latest = Latest::default();
        assert!((0..1000).all(|teller| latest.is_new(&news(teller, 1, ""))));
        assert_eq!(latest.0.len(), MAX_TELLERS);
        assert!(!latest.is_new(&news(999, 1, "")) && latest.is_new(&news(999, 2, "")));
    }
}

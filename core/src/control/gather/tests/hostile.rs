//! Lines that hold anything, and messages in any order.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::super::answer::{GatheredRow, Lack};
use super::super::ask::WHOLE;
use super::super::message::{MAX_WITHOUT, WaveMessage};
use super::super::tree::HostTree;
use super::super::wave::{Action, Gather, Piece};
use crate::clock::Ns;
use crate::snapshot::{CommSnapshot, ProcessSnapshot};
use crate::text::is_harmful;
use crate::types::{CommId, Rank};

/// Messages of the right form with the wrong content.
fn message() -> impl Strategy<Value = WaveMessage> {
    let wave = || 0..3_u64;
    let text = || proptest::string::string_regex("[a-z\u{1b}\n\u{202e}]{0,12}").unwrap();
    let row = (text(), 0..8_u32, prop_oneof![9 => 0..3_usize, 1 => 1000..1100_usize], any::<Option<char>>());
    let row = row.prop_map(|(host, pid, comms, letter)| {
        let comms = vec![CommSnapshot::default(); comms];
        let process = ProcessSnapshot { host, pid, comms, ..ProcessSnapshot::default() };
        GatheredRow { process, letter, ..GatheredRow::default() }
    });
    let ranks = prop_oneof![9 => 0..4_usize, 1 => 65_000..66_000_usize];
    let lack =
        (text(), ranks).prop_map(|(why, ranks)| Lack { why, ranks: vec![Rank(7); ranks], comm: CommId(1) });
    let without = prop_oneof![9 => 0..4_usize, 1 => 1000..1100_usize];
    prop_oneof![
        (wave(), any::<u64>(), any::<u64>(), without).prop_map(|(wave, sent_ns, left_ms, count)| {
            WaveMessage::Ask { wave, sent_ns, left_ms, without: vec![Rank(1); count] }
        }),
        (wave(), prop_oneof![Just(1_000_000_000), any::<u64>()], any::<u64>())
            .prop_map(|(wave, asked_ns, at_ns)| WaveMessage::Heard { wave, asked_ns, at_ns }),
        wave().prop_map(|wave| WaveMessage::Seen { wave }),
        wave().prop_map(|wave| WaveMessage::Busy { wave }),
        (wave(), row).prop_map(|(wave, row)| WaveMessage::Row { wave, row: Box::new(row) }),
        (wave(), lack).prop_map(|(wave, lack)| WaveMessage::Lack { wave, lack }),
        wave().prop_map(|wave| WaveMessage::Done { wave }),
    ]
}

/// Lines of such messages, some of them damaged.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let damage = vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let damaged = (message(), damage).prop_map(|(message, damage)| {
        let mut line = message.encoded().unwrap_or_default();
        for (at, byte) in damage {
            let at = at.index(line.len().max(1));
            if let Some(place) = line.get_mut(at) {
                *place = byte;
            }
        }
        line
    });
    prop_oneof![4 => damaged, 1 => vec(any::<u8>(), 0..200)]
}

/// What is decoded is within bounds, and steers no terminal.
fn is_bounded(decoded: Option<WaveMessage>) -> Result<(), TestCaseError> {
    let harmless = |text: &str| !text.contains(is_harmful);
    let is_good = match decoded {
        None
        | Some(WaveMessage::Heard { .. } | WaveMessage::Seen { .. })
        | Some(WaveMessage::Busy { .. } | WaveMessage::Done { .. }) => true,
        Some(WaveMessage::Ask { without, .. }) => without.len() <= MAX_WITHOUT,
        Some(WaveMessage::Row { row, .. }) => {
            row.process.comms.len() <= 1024
                && harmless(&row.process.host)
                && row.letter.is_none_or(|letter| letter.is_ascii_alphabetic())
        }
        Some(WaveMessage::Lack { lack, .. }) => lack.ranks.len() <= 1 << 16 && harmless(&lack.why),
    };
    if is_good { Ok(()) } else { Err(TestCaseError::fail("out of bounds")) }
}

/// The same cases each time, or as many others as `PROPTEST_CASES` asks for.
fn runner(cases: u32) -> TestRunner {
    let default = Config { failure_persistence: None, ..Config::default() };
    if default.cases > cases {
        return TestRunner::new(default);
    }
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(Config { cases, ..default }, rng)
}

#[test]
fn any_line_is_refused_or_becomes_a_message_within_bounds() {
    runner(3000).run(&line(), |line| is_bounded(WaveMessage::decoded(&line))).unwrap();
    // The same test finds a decoder that forgets to check what it has parsed.
    assert!(runner(3000).run(&line(), |line| is_bounded(WaveMessage::parsed(&line))).is_err());
}

/// A process in the middle of a tree, with an edge up and one down, and a question of its own.
fn machine() -> (Gather, [u64; 2]) {
    let now = Ns(1_000_000_000);
    let mut gather = Gather::of(("home".into(), String::new()));
    let hosts: Vec<u64> = (0..12).collect();
    let seat = (CommId(1), Rank(1));
    gather.join(seat, HostTree::new(&hosts, Rank(1)).unwrap(), now);
    let parent = gather.take_out().into_iter().find_map(|action| match action {
        Action::Dial(edge, ..) => Some(edge),
        _ => None,
    });
    let parent = parent.unwrap();
    gather.opened(parent, now);
    let child = gather.accepted(seat, Rank(9), now).unwrap();
    assert!(gather.ask(0, now));
    (gather, [parent, child])
}

#[test]
fn any_messages_in_any_order_leave_a_process_that_answers_its_own_question_once() {
    // No message: the connection ends.
    let message = proptest::option::weighted(0.97, message());
    let steps = vec((0..2_usize, message, 0..400_u64), 0..60);
    let run = |steps: Vec<(usize, Option<WaveMessage>, u64)>| {
        let (mut gather, edges) = machine();
        let mut now = Ns(1_000_000_000);
        let (mut told, mut done, mut rows) = (0, 0, BTreeSet::new());
        let mut lost = BTreeSet::new();
        let mut take = |gather: &mut Gather, lost: &BTreeSet<u64>| {
            for action in gather.take_out() {
                match action {
                    Action::Tell(_, Piece::Done) => done += 1,
                    Action::Tell(_, Piece::Row(row)) => {
                        assert_eq!(done, 0, "after the end");
                        assert!(rows.insert(row.process.pid), "told twice");
                    }
                    Action::Tell(_, Piece::Lack(_)) => told += 1,
                    Action::Send(edge, message) => {
                        assert!(!lost.contains(&edge), "to a connection that has ended: {message:?}");
                        drop(message.encoded());
                    }
                    Action::Dial(..) | Action::Close(_) | Action::Read(_) => {}
                }
            }
            done
        };
        take(&mut gather, &lost);
        for (edge, message, ms) in steps {
            now = now.after(std::time::Duration::from_millis(ms));
            let edge = edges[edge];
            match message.map(|message| message.encoded().and_then(|line| WaveMessage::decoded(&line))) {
                Some(Some(message)) => gather.heard(edge, message, now),
                Some(None) => {}
                None => {
                    lost.insert(edge);
                    gather.lost(edge, "it ended", now);
                }
            }
            gather.tick(now);
            take(&mut gather, &lost);
        }
        gather.read(0, Vec::new(), Vec::new(), now);
        now = now.after(2 * WHOLE);
        gather.tick(now);
        assert_eq!(take(&mut gather, &lost), 1, "one end");
        now = now.after(2 * WHOLE);
        gather.tick(now);
        assert!(gather.is_idle());
        Ok(())
    };
    runner(400).run(&steps, run).unwrap();
}

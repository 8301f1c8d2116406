//! A job of several communicators: their screen, what it is narrowed to, and one row per rank.

use std::sync::Arc;

use ccl::diagnose::{Given, merge};
use ccl::snapshot::{CommSnapshot, OpSnapshot, OpState, OpWait, ProcessSnapshot, Snapshot, Source};
use ccl::types::{CommId, JobId, Rank};
use crossterm::event::KeyCode;

use super::super::app::{Input, Seen};
use super::super::history::Shot;
use super::super::log::{Entry, Origin};
use super::super::scene::Only;
use super::super::views::Screen;
use super::super::views::draw::Picture;
use super::screens::compare;
use super::{App, NOON, SECOND, app, drawn, jobs, press, see, type_keys};

/// The ranks of a group, by kind and number: tensor parallel neighbours, data parallel ranks, and
/// stages of pipelines, of eight ranks.
const GROUPS: [(&str, [[u32; 2]; 4]); 3] = [
    ("tensor", [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ("data", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ("pipeline", [[0, 4], [1, 5], [2, 6], [3, 7]]),
];

/// What a rank of `stuck` waits for: the kind of group, the rank of the job, and since when.
const WAITS: [Option<(&str, u32, u64)>; 8] = [
    Some(("tensor", 1, 9)),
    Some(("pipeline", 5, 11)),
    Some(("tensor", 3, 8)),
    Some(("pipeline", 7, 10)),
    Some(("tensor", 5, 10)),
    None,
    Some(("tensor", 7, 9)),
    Some(("data", 5, 12)),
];

fn comm(rank: u32, number: u64, name: &str, ranks: &[u32], waits: Option<(u32, u64)>) -> CommSnapshot {
    let own = |rank: u32| Rank(ranks.iter().position(|one| *one == rank).unwrap() as u32);
    let is_pair = name == "pipeline";
    // The ranks that wait are in step 8; the others have done 7, and are in user code since then.
    let (kind, state, seq) = match waits {
        Some(_) if is_pair => ("Recv", OpState::Running, 8),
        None if is_pair => ("Send", OpState::Idle, 7),
        Some(_) => ("AllReduce", OpState::Running, 8),
        None => ("AllReduce", OpState::Idle, if number == 0 { 1 } else { 7 }),
    };
    let wait = waits.map(|(peer, seconds)| OpWait {
        waits: ccl::snapshot::Waits::Peer,
        peer: own(peer),
        direction: ccl::snapshot::Direction::Recv,
        since_ns: seconds * SECOND,
        ..OpWait::default()
    });
    let op = OpSnapshot {
        kind: kind.into(),
        seq,
        state,
        age_ns: waits.map_or(13, |(_, seconds)| seconds) * SECOND,
        called: seq,
        started: seq,
        completed: seq - u64::from(state == OpState::Running),
        tag: "step 8".into(),
        peer: is_pair.then(|| own(ranks.iter().copied().find(|one| *one != rank).unwrap())),
        wait,
        ..OpSnapshot::default()
    };
    let none = OpSnapshot { state: OpState::Idle, ..OpSnapshot::default() };
    let (op, p2p) = if is_pair { (none, Some(op)) } else { (op, None) };
    CommSnapshot {
        id: CommId(0xc0 + number),
        name: name.into(),
        rank: own(rank),
        world: Rank(rank),
        nranks: ranks.len() as u32,
        job: JobId(0x10b),
        op,
        p2p,
        consistent: true,
        ..CommSnapshot::default()
    }
}

/// A job in which rank 5 has not called an operation of its data parallel group; in the end all
/// wait for it, in groups of each kind. Of each process, `unseen` communicators have no row.
fn stuck(unseen: u64) -> Snapshot {
    let given = |rank: u32| {
        let mut comms = vec![comm(rank, 0, "world", &[0, 1, 2, 3, 4, 5, 6, 7], None)];
        for (nth, (kind, groups)) in (0..).zip(&GROUPS) {
            let (at, ranks) = (0..).zip(groups).find(|(_, ranks)| ranks.contains(&rank)).unwrap();
            let waits = WAITS[rank as usize].filter(|(name, ..)| name == kind);
            let waits = waits.map(|(_, peer, seconds)| (peer, seconds));
            comms.push(comm(rank, 1 + 4 * nth + at, kind, ranks, waits));
        }
        let process = ProcessSnapshot {
            pid: 4250 + rank,
            host: "node1".into(),
            job: JobId(0x10b),
            path: format!("/run/ccl-0/{rank}.rec"),
            alive: true,
            comms,
            comms_without_row: unseen,
            ..ProcessSnapshot::default()
        };
        Given { process, source: Source::Socket, letter: Some('S'), ended: false }
    };
    merge(&(0..8).map(given).collect::<Vec<_>>(), &JobId(0x10b).into(), &[])
}

/// An app on the screen of communicators.
fn on_comms(job: Snapshot, size: (u16, u16)) -> App {
    let mut app = app(job, size);
    press(&mut app, KeyCode::Char('8'));
    assert_eq!(app.screen, Screen::Communicators);
    app
}

/// The ranks of the rows.
fn ranks(app: &App) -> Vec<u32> {
    Picture::of(app).unwrap().listing.rows.iter().flat_map(|row| row.ranks.clone()).collect()
}

#[test]
fn each_communicator_has_a_line_and_the_one_that_all_wait_for_is_first() {
    for (width, height) in [(80, 24), (200, 50)] {
        let mut app = on_comms(stuck(0), (width, height));
        let mut text = String::new();
        for screen in app.tabs() {
            app.screen = screen;
            text += &format!("=== {} {width}x{height}\n{}\n", screen.name(), drawn(&app).trim_end());
        }
        app.screen = Screen::Communicators;
        press(&mut app, KeyCode::Enter);
        text += &format!("=== Enter {width}x{height}\n{}\n", drawn(&app).trim_end());
        compare(&format!("groups_{width}x{height}.txt"), &text);
    }
}

#[test]
fn enter_narrows_all_screens_to_a_communicator_and_esc_shows_all_again() {
    let mut app = on_comms(stuck(0), (120, 40));
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.screen, ranks(&app)), (Screen::Overview, vec![5, 7]));
    let line = "ONLY data (ranks 5,7); Esc shows all 13 communicators";
    for (key, rows) in [('1', vec![5, 7]), ('2', vec![0, 1]), ('5', vec![0, 1])] {
        press(&mut app, KeyCode::Char(key));
        let picture = drawn(&app);
        // The culprit stands above, wherever one is.
        assert!(
            picture.contains(line) && picture.contains("✱ SUSPECT NOT_JOINED (application, certain): rank 5"),
            "{picture}"
        );
        assert_eq!(ranks(&app), rows, "{key}");
    }
    press(&mut app, KeyCode::Char('8'));
    assert_eq!(Picture::of(&app).unwrap().listing.rows.len(), 13, "from one to the next");
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.screen, &app.only), (Screen::Communicators, &None));
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.screen, ranks(&app)), (Screen::Overview, (0..8).collect()));
}

#[test]
fn the_jump_to_the_culprit_leads_out_of_another_communicator() {
    let mut app = on_comms(stuck(0), (120, 40));
    app.only = Some(Only::named("tensor".into()));
    press(&mut app, KeyCode::Char('1'));
    assert!(drawn(&app).contains("ONLY the 4 named tensor (ranks 0-7); Esc shows all 13"), "{}", drawn(&app));
    press(&mut app, KeyCode::Char('c'));
    assert_eq!(app.notice, "the culprit is in another communicator: all are shown again");
    let picture = Picture::of(&app).unwrap();
    assert_eq!((picture.listing.rows[picture.chosen].ranks.as_slice(), &app.only), (&[5][..], &None));
}

#[test]
fn a_rank_says_for_whom_it_waits_in_the_end() {
    let app = app(stuck(0), (160, 40));
    let picture = drawn(&app);
    let row = |rank: &str| picture.lines().skip(5).find(|line| line.starts_with(rank)).unwrap().to_string();
    for (rank, words) in [
        ("0 ", &["AllReduce #8", "◦ waits", "tensor", " 1 ", "5 in data"][..]),
        ("1 ", &["Recv #8", "◦ waits", "pipeline", " 5 ", "5 in data"]),
        ("5 ", &["AllReduce #7", "✱ BLOCKING", "data"]),
        ("7 ", &["AllReduce #8", "◦ waits", "data", " 5 ", "5 in data"]),
    ] {
        assert!(words.iter().all(|word| row(rank).contains(word)), "{rank}: {}", row(rank));
    }
}

#[test]
fn communicators_without_a_row_are_counted_in_the_first_line_and_explained_below() {
    let picture = drawn(&app(stuck(16), (160, 40)));
    assert!(picture.lines().next().unwrap().contains("up to 16 communicators unseen"), "{picture}");
    let words: Vec<&str> = picture.split_whitespace().collect();
    for sentence in [
        "rank 5 may itself wait in a communicator that has no row in its recorder",
        "note: 16 communicators of each process of ranks 0-7 have no row in its recorder",
    ] {
        assert!(words.join(" ").contains(sentence), "{picture}");
    }
    let mut quiet = jobs::running();
    quiet.ranks[0].comms_without_row = 1;
    assert!(drawn(&app(quiet, (160, 40))).contains("nobody waits in the communicators that were read"));
}

#[test]
fn a_job_of_one_communicator_has_no_list_of_them() {
    let mut app = app(jobs::hang(), (120, 40));
    let before = drawn(&app);
    assert!(!before.contains("Comms"));
    press(&mut app, KeyCode::Char('8'));
    assert_eq!(
        (app.screen, app.notice.as_str()),
        (Screen::Overview, "the job has no more than one communicator")
    );
    press(&mut app, KeyCode::BackTab);
    assert_eq!(app.screen, Screen::Log);
    // Asked for by its name, it is what is shown anyway.
    press(&mut app, KeyCode::Char('1'));
    app.only = Some(Only::named("world".into()));
    see(&mut app, jobs::hang(), NOON);
    assert!(drawn(&app).contains("ONLY world (ranks 0-3)"));
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.screen, drawn(&app)), (Screen::Overview, before));
}

#[test]
fn durations_and_lines_are_those_of_the_communicator() {
    let mut app = on_comms(stuck(0), (120, 40));
    press(&mut app, KeyCode::Char('6'));
    assert!(drawn(&app).contains("Barrier"), "of 00000000000000c0");
    let line = |rank, comm: &str, text: &str| Entry {
        number: 0,
        real_ns: NOON,
        rank,
        origin: if comm.is_empty() { Origin::Output } else { Origin::Event },
        comm: comm.into(),
        text: text.into(),
    };
    let events = vec![
        line(Some(5), "data", "ours"),
        line(Some(4), "data", "of the neighbours"),
        line(Some(5), "tensor", "of another kind"),
        line(Some(7), "", "what it prints"),
        line(None, "", "the launcher"),
    ];
    let shot = Arc::new(Shot { taken_ns: NOON, snapshot: stuck(0), ..Shot::default() });
    app.update(Input::Seen(Box::new(Seen { shot, ended: false, events })), NOON);
    type_keys(&mut app, "8");
    press(&mut app, KeyCode::Enter);
    type_keys(&mut app, "7");
    let picture = drawn(&app);
    for (text, is_shown) in [
        ("ours", true),
        ("of the neighbours", false),
        ("of another kind", false),
        ("what it prints", true),
        ("the launcher", true),
    ] {
        assert_eq!(picture.contains(text), is_shown, "{text}: {picture}");
    }
    see(&mut app, stuck(0), NOON + SECOND);
    type_keys(&mut app, "6");
    assert!(!drawn(&app).contains("Barrier"));
}

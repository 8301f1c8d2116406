//! Which waits are reported and coloured, and from which length: a healthy job has none, and a rank
//! that did nothing wrong is not blamed.

use ccl::snapshot::{Missing, OpSnapshot, OpState, OpWait, Snapshot, State};
use ccl::types::Rank;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::super::filter::Filter;
use super::super::views::Screen;
use super::super::views::draw::{Picture, draw};
use super::{App, SECOND, app, drawn, jobs};

/// A job in which rank 2 has blocked others for this long.
fn blocking_for(ns: u64) -> Snapshot {
    let mut job = jobs::hang();
    job.blocked_on.iter_mut().for_each(|one| one.since_ns = ns);
    for comm in job.ranks.iter_mut().flat_map(|rank| &mut rank.comms) {
        comm.op.age_ns = ns;
        comm.links.iter_mut().filter(|link| link.is_waiting()).for_each(|link| link.since_ns = ns);
    }
    job
}

/// Whether this colour appears on any screen.
fn has(app: &mut App, colour: Color) -> bool {
    Screen::ALL.iter().any(|screen| {
        app.screen = *screen;
        let mut terminal = Terminal::new(TestBackend::new(app.size.0, app.size.1)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        terminal.backend().buffer().content().iter().any(|cell| cell.fg == colour)
    })
}

#[test]
fn what_waits_is_said_from_a_tenth_of_a_second_on_and_coloured_later() {
    let check = |ms: u64, said: bool, yellow: bool, red: bool| {
        let mut app = app(blocking_for(ms * 1_000_000), (160, 40));
        app.stall_ns = 30 * SECOND;
        assert_eq!((has(&mut app, Color::Yellow), has(&mut app, Color::Red)), (yellow, red), "{ms} ms");
        for screen in [Screen::Overview, Screen::Matrix, Screen::Rings, Screen::Connections] {
            app.screen = screen;
            let picture = drawn(&app);
            // The paragraph below the list is printed by `snapshot` too and is not checked here.
            let own = picture.split(" why ").next().unwrap();
            let words = ["NOT_JOINED", "BLOCK", "NOT CALLED", "waits for rank", "◦ waits", "message of"];
            let found = words.iter().any(|word| own.contains(word));
            assert_eq!(found, said, "{ms} ms on {screen:?}:\n{own}");
        }
    };
    check(1, false, false, false);
    check(99, false, false, false);
    check(100, true, false, false);
    check(900, true, false, false);
    check(1_000, true, true, false);
    check(29_000, true, true, false);
    check(30_000, true, true, true);
}

#[test]
fn what_waits_is_said_before_it_is_a_verdict() {
    let second_line = |job: Snapshot| {
        let app = app(job, (100, 40));
        drawn(&app).lines().nth(1).unwrap_or_default().to_string()
    };
    let line = second_line(blocking_for(400_000_000));
    assert_eq!(line, "◦ waits for rank 2, not called: AllReduce #7 of world, 400.0 ms");
    let mut job = jobs::joining();
    job.not_joined[0].since_ns = 400_000_000;
    assert_eq!(second_line(job.clone()), "◦ waits for rank 3, not joined: init of world, 400.0 ms");
    assert!(drawn(&app(job, (20, 5))).contains("rank 3\nnot joined\n400.0 ms"));
}

#[test]
fn a_wait_for_a_link_that_is_not_there_yet_is_seen() {
    let mut job = jobs::running();
    let comm = &mut job.ranks[0].comms[0];
    comm.links.clear();
    (comm.op.state, comm.op.kind) = (OpState::Running, "Broadcast".into());
    comm.op.wait = Some(OpWait { peer: Rank(3), since_ns: 5 * SECOND, ..OpWait::default() });
    let picture = drawn(&app(job, (160, 40)));
    let row = picture.lines().find(|line| line.contains("Broadcast #6 ◦ waits")).unwrap();
    assert!(row.contains("12.5 s 3 "), "{row}");
}

#[test]
fn of_a_dead_one_it_is_said_at_once() {
    let mut job = jobs::dead();
    job.blocked_on.iter_mut().for_each(|one| one.since_ns = 1_000_000);
    let mut app = app(job, (160, 40));
    assert!(has(&mut app, Color::Red));
    app.screen = Screen::Overview;
    assert!(
        drawn(&app).contains("STALLED PEER_DEAD (machine, possible): rank 3 (pid 4253 on"),
        "{}",
        drawn(&app)
    );
}

#[test]
fn of_those_who_were_ended_together_no_short_wait_is_said() {
    let mut job = blocking_for(1_000_000);
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Dead);
    let picture = drawn(&app(job, (160, 40)));
    let said = "✱ STALLED PEER_DEAD (machine, possible): ranks 0-3 were killed; nobody had waited";
    assert!(picture.lines().nth(1).is_some_and(|line| line.starts_with(said)), "{picture}");
    assert!(!picture.contains("BLOCKED ON"), "{picture}");
}

#[test]
fn who_has_not_joined_is_named() {
    let mut app = app(jobs::joining(), (160, 40));
    for screen in [Screen::Overview, Screen::Bootstrap, Screen::Log] {
        app.screen = screen;
        let picture = drawn(&app);
        assert!(picture.contains("✱ SUSPECT NOT_JOINED"), "{picture}");
        // The sentence says how the missing rank is known.
        let words: Vec<_> = picture.split_whitespace().collect();
        let sentence = "NOT JOINED rank 3 of world: ranks 0-2 wait for it in init for 12.0 s, and the bootstrap root, which \
                        rank 0 opens, has heard of 3 of 4 ranks; init gives up in 108.0 s (CCL_INIT_TIMEOUT)";
        assert!(words.join(" ").contains(sentence), "{picture}");
        // The missing rank has a row on screens that list ranks, and `c` leads to that row.
        super::type_keys(&mut app, "c");
        assert_eq!(app.notice, "");
        let stays = if screen == Screen::Log { Screen::Overview } else { screen };
        assert!(app.screen == stays && drawn(&app).contains("? not joined"), "{picture}");
        let picture = Picture::of(&app).unwrap();
        assert_eq!(picture.listing.rows[picture.chosen].ranks, [3], "{stays:?}");
    }
    app.size = (20, 5);
    assert!(drawn(&app).contains("NOT_JOINED\nrank 3\n12.0 s"), "{}", drawn(&app));
}

#[test]
fn of_a_root_that_does_not_answer_nobody_says_that_its_rank_has_not_joined() {
    let mut job = jobs::joining();
    let mut one = job.not_joined.remove(0);
    (one.count, one.ranks) = (None, vec![Rank(0)]);
    job.not_joined.push(one);
    job.missing = vec![Missing { rank: Rank(0), ..Missing::default() }];
    job.ranks.remove(0);
    let mut app = app(job, (160, 40));
    for screen in [Screen::Overview, Screen::Bootstrap] {
        app.screen = screen;
        let picture = drawn(&app);
        assert!(picture.contains("? no answer") && !picture.contains("not joined"), "{picture}");
    }
}

#[test]
fn who_left_after_a_failure_did_not_leave_in_good_order() {
    let mut job = jobs::dead();
    job.ranks.iter_mut().for_each(|rank| rank.state = State::Exited);
    let app = app(job, (160, 40));
    let picture = drawn(&app);
    assert_eq!(picture.matches("✗ exited, failed").count(), 3, "{picture}");
    assert_eq!(picture.matches("✓ exited").count(), 1, "{picture}");
    assert!(picture.contains("1 exited, 3 exited after a failure"), "{picture}");
}

#[test]
fn durations_blame_nobody() {
    let mut app = app(jobs::hang(), (160, 40));
    app.screen = Screen::Latency;
    let picture = drawn(&app);
    assert!(picture.contains("ranks' means") && picture.contains("mean by rank, waiting included"));
    assert!(!picture.to_lowercase().contains("slow"), "{picture}");
}

#[test]
fn a_filter_takes_the_words_that_are_shown() {
    let check = |screen: Screen, filter: &str, shown: usize| {
        let mut app = app(jobs::hang(), (160, 40));
        app.screen = screen;
        app.filter = Filter::parse(filter).unwrap();
        let rows = Picture::of(&app).unwrap().listing.rows.len();
        assert_eq!(rows, shown, "{filter} on {screen:?}");
    };
    check(Screen::Overview, "state=BLOCKING", 1);
    check(Screen::Overview, "state=waits", 3);
    check(Screen::Overview, "state=running", 4);
    check(Screen::Matrix, "state=inside", 3);
    check(Screen::Matrix, "state=not", 1);
    check(Screen::Connections, "state=peer", 6);
    check(Screen::Rings, "state=waits", 6);
    check(Screen::Bootstrap, "state=made", 4);
}

#[test]
fn two_hosts_are_told_apart_at_80_columns() {
    let mut job = jobs::hang();
    for rank in &mut job.ranks {
        rank.host_id.clear();
        rank.host = format!("ip-10-0-3-{}.eu-west-1.compute.internal", 17 + rank.rank.0 / 2);
    }
    for (job, words) in [(job, ["17.eu", "18.eu"]), (jobs::hang(), ["host0", "host1"])] {
        let picture = drawn(&app(job, (80, 24)));
        assert!(words.iter().all(|word| picture.contains(word)), "{picture}");
    }
}

#[test]
fn how_to_leave_is_always_seen() {
    for width in [40, 80, 200] {
        let app = app(jobs::hang(), (width, 24));
        let picture = drawn(&app);
        let last = picture.lines().last().unwrap();
        assert!(last.contains("q quit"), "{width}: {last}");
    }
}

#[test]
fn who_lacks_an_earlier_call_is_awaited_in_that_one_and_who_called_none_has_no_age() {
    let shown = |op: OpSnapshot| {
        let mut job = jobs::hang();
        job.ranks[2].comms[0].op = op;
        drawn(&app(job, (140, 40)))
    };
    let (kind, seq) = ("AllReduce".to_string(), 3);
    let screen = shown(OpSnapshot { kind, seq, called: seq, state: OpState::Idle, ..OpSnapshot::default() });
    assert!(screen.contains("which has not called #4 of world"), "{screen}");
    let screen = shown(OpSnapshot { state: OpState::Idle, ..OpSnapshot::default() });
    assert!(screen.contains("which has not called #1 of world") && !screen.contains(" 0 ns"), "{screen}");
}

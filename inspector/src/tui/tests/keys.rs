//! What keys and the mouse do.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

use super::super::app::{App, Effect, Ended, Input, Leave, Seen};
use super::super::history::Shot;
use super::super::keys::{Action, KEYS};
use super::super::log::Origin;
use super::super::palette::Palette;
use super::super::views::Screen;
use super::super::views::draw::Picture;
use super::super::views::popup::Popup;
use super::{LOOK, NOON, SECOND, app, drawn, jobs, press, see, type_keys};

const SIZE: (u16, u16) = (80, 24);

/// An app on this screen, with the middle row of the list chosen.
///
/// It has seen three pictures of a hang, a second apart, and has lines in the log.
fn in_the_middle(screen: Screen) -> App {
    let mut app = App::new(LOOK, SIZE, false);
    for second in 0..3 {
        see(&mut app, jobs::many(64), NOON + second * SECOND);
    }
    for rank in 0..64 {
        app.update(Input::Said(format!("[{rank}] hello\n").into_bytes(), Origin::Output), app.now_ns);
    }
    app.screen = screen;
    press(&mut app, KeyCode::Char('g'));
    press(&mut app, KeyCode::PageDown);
    app
}

fn at(app: &App) -> usize {
    Picture::of(app).unwrap().chosen
}

fn rows(app: &App) -> usize {
    Picture::of(app).unwrap().listing.rows.len()
}

/// Checks the effect of each key of the table.
fn check(action: Action, screen: Screen, before: &App, after: &App, effect: Option<&Effect>) {
    let (was, is, last) = (at(before), at(after), rows(before).saturating_sub(1));
    let said = format!("{action:?} on {screen:?}: {was} -> {is} of {last}");
    let page = Picture::of(before).unwrap().page();
    let expected = match action {
        Action::Show(to) => after.screen == if before.tabs().contains(&to) { to } else { screen },
        Action::NextScreen => after.screen == screen.beside(1, &before.tabs()),
        Action::PreviousScreen => after.screen.beside(1, &before.tabs()) == screen,
        Action::Down => is == (was + 1).min(last),
        Action::Up => is == was.saturating_sub(1),
        Action::Top => is == 0,
        Action::Bottom => is == last,
        Action::PageDown => is == (was + page).min(last),
        Action::PageUp => is == was.saturating_sub(page),
        Action::Enter if screen == Screen::Overview => after.screen == Screen::Matrix && after.comm.is_some(),
        Action::Enter if screen == Screen::Communicators => {
            after.screen == Screen::Overview && after.only.as_ref().is_some_and(|only| only.comms.len() == 1)
        }
        Action::Enter => matches!(after.popup, Some(Popup::Text { .. })),
        Action::Back => after.screen == Screen::Overview,
        Action::Filter => after.typing.as_deref() == Some(""),
        Action::Sort => after.order().by == Some(0),
        Action::Invert => after.order().inverted,
        Action::Freeze => after.pinned.is_some() && drawn(after).contains("FROZEN"),
        Action::Older => after.shot().taken_ns == NOON + SECOND,
        Action::Newer => after.notice == "this is the newest picture",
        Action::Culprit => {
            let picture = Picture::of(after).unwrap();
            picture.listing.rows[picture.chosen].blocked_on
                && picture.listing.rows[picture.chosen].ranks.contains(&37)
        }
        Action::NextComm => after.scene().focus() != before.scene().focus(),
        Action::Copy => matches!(effect, Some(Effect::Copy(text)) if !text.is_empty()),
        Action::Json => matches!(&after.popup, Some(Popup::Text { lines, .. }) if lines[0] == "{"),
        Action::Palette => after.look.palette == Palette::ColourBlind,
        Action::Help => after.popup == Some(Popup::Help),
        Action::Quit => effect == Some(&Effect::Leave(Leave::Alone)),
    };
    assert!(expected, "{said}");
}

#[test]
fn every_key_does_what_the_table_says_on_every_screen() {
    let mut pressed = 0;
    for key in KEYS {
        // It has no queue pair.
        for screen in &Screen::of_job(true, false) {
            for code in key.codes {
                let (before, mut after) = (in_the_middle(*screen), in_the_middle(*screen));
                let effect = press(&mut after, *code);
                pressed += 1;
                if key.on.contains(screen) {
                    check(key.action, *screen, &before, &after, effect.as_ref());
                    assert!(matches!(key.action, Action::Copy | Action::Quit) || effect.is_none());
                } else {
                    assert_eq!(
                        (effect, drawn(&after)),
                        (None, drawn(&before)),
                        "{} on {screen:?}",
                        key.shown
                    );
                }
            }
        }
    }
    println!("cases: keys {pressed}");
}

#[test]
fn no_key_panics_on_any_screen_of_any_job_of_any_size() {
    let jobs = [jobs::hang(), jobs::running(), jobs::unread(), ccl::snapshot::Snapshot::default()];
    for job in jobs {
        for size in [SIZE, (20, 5), (1, 1), (40, 9)] {
            for screen in Screen::ALL {
                let mut app = app(job.clone(), size);
                app.screen = *screen;
                for key in KEYS.iter().chain(KEYS) {
                    press(&mut app, key.codes[0]);
                    drawn(&app);
                }
            }
        }
    }
}

#[test]
fn no_key_stands_twice_and_the_help_shows_them_all() {
    let codes: Vec<_> = KEYS.iter().flat_map(|key| key.codes).map(|code| format!("{code:?}")).collect();
    assert_eq!(codes.iter().collect::<BTreeSet<_>>().len(), codes.len());
    let mut app = app(jobs::hang(), (120, 60));
    press(&mut app, KeyCode::Char('?'));
    let screen = drawn(&app);
    for key in KEYS {
        assert!(screen.contains(&format!("{}  {}", key.shown, key.what)), "{}", key.shown);
    }
}

#[test]
fn a_filter_is_typed_applied_and_taken_away() {
    let mut app = app(jobs::many(64), SIZE);
    type_keys(&mut app, "/rank=36-38x");
    press(&mut app, KeyCode::Backspace);
    assert_eq!(app.typing.as_deref(), Some("rank=36-38"));
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.typing.clone(), rows(&app)), (None, 3), "each rank once");
    assert!(drawn(&app).contains("filter: rank=36-38"));
    type_keys(&mut app, "/pid=3");
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.notice, "pid= is no key; the keys are state= rank= host= comm= op=");
    assert_eq!(rows(&app), 3, "a wrong one changes nothing");
    type_keys(&mut app, "/abc");
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.typing.clone(), rows(&app)), (None, 3), "given up");
    press(&mut app, KeyCode::Esc);
    assert_eq!(rows(&app), 64);
    type_keys(&mut app, "/rank=3");
    press(&mut app, KeyCode::Enter);
    press(&mut app, KeyCode::Char('c'));
    assert_eq!(app.notice, "the filter hid the culprit and was taken away");
}

#[test]
fn a_frozen_picture_stays_while_data_goes_on_and_steps_both_ways() {
    let mut app = app(jobs::running(), SIZE);
    press(&mut app, KeyCode::Char(' '));
    for second in 1..=3 {
        see(&mut app, jobs::hang(), NOON + second * SECOND);
    }
    let screen = drawn(&app);
    assert!(
        screen.contains("FROZEN: this was 3.2 s ago, at 12:00:00Z") && screen.contains("nobody waits"),
        "{screen}"
    );
    press(&mut app, KeyCode::Char(']'));
    assert!(drawn(&app).contains("NOT_JOINED (application, certain): rank 2"), "one step on");
    press(&mut app, KeyCode::Char('['));
    press(&mut app, KeyCode::Char('['));
    assert_eq!(app.notice, "this is the oldest picture that is kept");
    for _ in 0..3 {
        press(&mut app, KeyCode::Char(']'));
    }
    assert!(app.pinned.is_none(), "beyond the last step is now");
    press(&mut app, KeyCode::Char(' '));
    press(&mut app, KeyCode::Esc);
    assert!(app.pinned.is_none());
}

#[test]
fn what_is_frozen_has_the_durations_and_the_lines_of_its_moment() {
    let mut app = app(jobs::running(), (120, 24));
    let say = |app: &mut App, text: &str, at| {
        app.update(Input::Said(format!("[1] {text}\n").into_bytes(), Origin::Output), at);
    };
    let see_times = |app: &mut App, times, at| {
        let mut histograms = jobs::histograms();
        histograms[0].buckets = vec![(Some(32_768), times)];
        histograms.truncate(1);
        let shot = Shot {
            taken_ns: at,
            snapshot: jobs::running(),
            histograms: Some(histograms.into()),
            ..Shot::default()
        };
        app.update(Input::Seen(Box::new(Seen { shot: Arc::new(shot), ..Seen::default() })), at);
    };
    say(&mut app, "before", NOON - SECOND);
    see_times(&mut app, 111, NOON + SECOND);
    press(&mut app, KeyCode::Char(' '));
    see_times(&mut app, 222, NOON + 3 * SECOND);
    say(&mut app, "afterwards", NOON + 3 * SECOND);
    let screen_of = |app: &mut App, key| {
        press(app, KeyCode::Char(key));
        drawn(app)
    };
    let (durations, log) = (screen_of(&mut app, '6'), screen_of(&mut app, '7'));
    assert!(durations.contains(" 111 ") && !durations.contains(" 222 "), "{durations}");
    assert!(log.contains("before") && !log.contains("afterwards"), "{log}");
    press(&mut app, KeyCode::Char(' '));
    let (durations, log) = (screen_of(&mut app, '6'), screen_of(&mut app, '7'));
    assert!(durations.contains(" 222 ") && log.contains("afterwards"), "{durations}{log}");
    // Stepping back shows the same.
    press(&mut app, KeyCode::Char('['));
    assert!(!drawn(&app).contains("afterwards"));
    assert!(screen_of(&mut app, '6').contains(" 111 "));
}

#[test]
fn a_choice_follows_its_row_when_the_job_changes() {
    let mut app = app(jobs::many(64), SIZE);
    press(&mut app, KeyCode::Char('c'));
    let chosen = app.chosen().key.clone();
    assert_eq!(chosen, "37");
    type_keys(&mut app, "ss");
    press(&mut app, KeyCode::Char('S'));
    let picture = Picture::of(&app).unwrap();
    assert_eq!(picture.listing.rows[picture.chosen].key, chosen);
}

#[test]
fn the_log_follows_until_one_looks_back() {
    let mut app = app(jobs::running(), SIZE);
    app.screen = Screen::Log;
    let say = |app: &mut App, lines: usize| {
        (0..lines).for_each(|_| _ = app.update(Input::Said(b"[1] x\n".to_vec(), Origin::Output), NOON));
    };
    say(&mut app, 50);
    assert_eq!(at(&app), 49);
    press(&mut app, KeyCode::Up);
    say(&mut app, 10);
    assert_eq!(at(&app), 48);
    press(&mut app, KeyCode::Char('G'));
    say(&mut app, 10);
    assert_eq!(at(&app), 69);
}

#[test]
fn what_is_open_is_scrolled_copied_and_closed() {
    let mut app = app(jobs::hang(), SIZE);
    press(&mut app, KeyCode::Char('J'));
    assert!(drawn(&app).contains("\"AllReduce\""));
    press(&mut app, KeyCode::Char('G'));
    press(&mut app, KeyCode::Char('j'));
    let last = drawn(&app);
    assert!(last.contains("}"));
    press(&mut app, KeyCode::Char('k'));
    assert_ne!(drawn(&app), last, "from the end, one line up is one line up");
    let Some(Effect::Copy(json)) = press(&mut app, KeyCode::Char('y')) else { panic!("nothing was copied") };
    let comm: ccl::snapshot::CommSnapshot = serde_json::from_str(&json).unwrap();
    assert_eq!(comm.op.seq, 7);
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.popup.clone(), app.screen), (None, Screen::Overview));
}

#[test]
fn control_c_quits_and_other_control_keys_do_nothing() {
    let control = |code| Input::Key(KeyEvent::new(code, KeyModifiers::CONTROL));
    let mut app = app(jobs::hang(), SIZE);
    assert_eq!(app.update(control(KeyCode::Char('c')), NOON), Some(Effect::Leave(Leave::Alone)));
    assert_eq!(app.update(control(KeyCode::Char('q')), NOON), None);
    type_keys(&mut app, "/ab");
    assert_eq!(app.update(control(KeyCode::Char('x')), NOON), None);
    assert_eq!(app.typing.as_deref(), Some("ab"));
    assert_eq!(app.update(control(KeyCode::Char('c')), NOON), Some(Effect::Leave(Leave::Alone)));
}

#[test]
fn in_the_question_how_to_leave_only_what_stands_there_counts_and_control_c_is_meant() {
    let control = |code| Input::Key(KeyEvent::new(code, KeyModifiers::CONTROL));
    let mut app = App::new(LOOK, SIZE, true);
    see(&mut app, jobs::hang(), NOON);
    assert_eq!(app.update(control(KeyCode::Char('c')), NOON), None);
    assert_eq!(app.popup, Some(Popup::Leave));
    for key in ['e', 'k', 'q'] {
        assert_eq!((app.update(control(KeyCode::Char(key)), NOON), &app.popup), (None, &Some(Popup::Leave)));
    }
    assert_eq!(app.update(control(KeyCode::Char('c')), NOON), Some(Effect::Leave(Leave::EndJob)));
}

#[test]
fn leaving_a_job_that_was_launched_here_is_a_question_until_it_is_over() {
    let mut app = App::new(LOOK, SIZE, true);
    see(&mut app, jobs::hang(), NOON);
    assert_eq!(press(&mut app, KeyCode::Char('q')), None);
    assert!(drawn(&app).contains("e    end it"));
    assert_eq!((press(&mut app, KeyCode::Esc), &app.popup), (None, &None));
    press(&mut app, KeyCode::Char('q'));
    assert_eq!(press(&mut app, KeyCode::Char('e')), Some(Effect::Leave(Leave::EndJob)));
    press(&mut app, KeyCode::Char('q'));
    assert_eq!(press(&mut app, KeyCode::Char('k')), Some(Effect::Leave(Leave::Alone)));
    app.update(Input::Over("with status 3".into()), NOON);
    assert!(drawn(&app).contains("the job has ended, with status 3; last state of 12:00:00Z"));
    assert_eq!(press(&mut app, KeyCode::Char('q')), Some(Effect::Leave(Leave::Alone)));
}

#[test]
fn a_job_that_is_over_is_said_and_its_last_state_stays() {
    let mut app = app(jobs::hang(), SIZE);
    let mut over = jobs::over();
    over.ranks[2].to_real_ns = NOON + SECOND;
    see(&mut app, over, NOON + 4 * SECOND);
    assert_eq!(app.ended, Ended::Gone);
    let screen = drawn(&app);
    assert!(
        screen.contains("the job has ended; last state of 12:00:01Z") && screen.contains("DEAD"),
        "{screen}"
    );
    see(&mut app, jobs::hang(), NOON + 5 * SECOND);
    assert_eq!(app.ended, Ended::No, "a new rank has appeared");
}

#[test]
fn the_mouse_chooses_tabs_and_rows_and_scrolls() {
    let mouse =
        |kind, column, row| Input::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    let click = |column, row| mouse(MouseEventKind::Down(MouseButton::Left), column, row);
    let mut app = app(jobs::many(64), SIZE);
    let screen = drawn(&app);
    let (line, tabs) = screen.lines().enumerate().find(|(_, line)| line.contains(" 1 Overview")).unwrap();
    let below = |line: usize, by: u16| u16::try_from(line).unwrap() + by;
    for (which, name) in
        Screen::ALL.iter().zip(["Overview", "Matrix", "Rings", "Links", "Init", "Latency", "Log", "Comms"])
    {
        let column = u16::try_from(tabs.find(name).unwrap()).unwrap();
        app.update(click(column, below(line, 0)), NOON);
        assert_eq!(app.screen, *which);
    }
    app.screen = Screen::Overview;
    app.update(click(5, below(line, 5)), NOON);
    assert_eq!(at(&app), 2, "the third line of the list");
    app.update(mouse(MouseEventKind::ScrollDown, 0, 0), NOON);
    assert_eq!(at(&app), 5);
    app.update(mouse(MouseEventKind::ScrollUp, 0, 0), NOON);
    assert_eq!(at(&app), 2);
    app.update(click(5, 23), NOON);
    app.update(click(79, 0), NOON);
    assert_eq!(at(&app), 2, "beside the list nothing is chosen");
}

#[test]
fn a_link_in_full_shows_every_stream_of_it() {
    let mut app = app(jobs::hang(), (80, 40));
    app.screen = Screen::Connections;
    let full = |app: &mut App| {
        press(app, KeyCode::Enter);
        let picture = drawn(app);
        press(app, KeyCode::Esc);
        picture
    };
    // The first link is within a host, the second comes from another host.
    assert!(!full(&mut app).contains("stream"));
    press(&mut app, KeyCode::Down);
    let picture = full(&mut app);
    for line in [
        "stream 0  10.0.0.1:40000 - 10.0.0.2:50003  ESTABLISHED, asked 500.0 ms ago",
        "  rtt 220.0 us +- 35.0 us, window 10, unacked 2, unsent 64.0 KiB, backoff 0",
        "  retransmits 4; in a row: 0 timeouts, 0 probes; heard 3.0 s, data 12.0 s ago",
    ] {
        assert!(picture.contains(line), "{line} is not in\n{picture}");
    }
}

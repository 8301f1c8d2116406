//! Every screen compared with a stored file. `BLESS=1 cargo test -p ccl-inspect` rewrites the
//! files.

use std::path::Path;

use ccl::snapshot::Snapshot;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::app::Input;
use super::super::listing::Look;
use super::super::log::Origin;
use super::super::palette::{Glyphs, Palette};
use super::super::views::Screen;
use super::super::views::draw::draw;
use super::{NOON, app, drawn, jobs};

pub(super) fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tui/tests/golden").join(name);
    if ccl::config::environment("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{} is not what is drawn now; BLESS=1 writes it anew:\n{text}", path.display());
}

fn check(name: &str, job: &Snapshot, culprit: &[&str]) {
    for (width, height) in [(80, 24), (200, 50)] {
        let mut app = app(job.clone(), (width, height));
        app.update(
            Input::Said(b"[0] step 812: loss 0.25\n[1] warning: slow\n".to_vec(), Origin::Output),
            NOON,
        );
        let mut text = String::new();
        for screen in app.tabs() {
            app.screen = screen;
            let picture = drawn(&app);
            for word in culprit {
                assert!(picture.contains(word), "{word} is not on {screen:?} of {name}:\n{picture}");
            }
            let lines = picture.lines().map(|line| format!("{line}\n")).collect::<String>();
            text += &format!("=== {} {width}x{height}\n{}\n", screen.name(), lines.trim_end());
        }
        compare(&format!("{name}_{width}x{height}.txt"), &text);
    }
}

#[test]
fn a_hang() {
    check("hang", &jobs::hang(), &["SUSPECT NOT_JOINED", "rank 2 (pid 4252 on", "next: ccl-inspect stack"]);
}

#[test]
fn a_job_over_queue_pairs() {
    check("queue_pairs", &jobs::over_queue_pairs(), &["rank 2 (pid 4252 on", "9 QPs"]);
}

#[test]
fn a_stopped_rank() {
    check(
        "stopped",
        &jobs::stopped(),
        &["STALLED STUCK_LOCAL", "rank 1 (pid 4251 on", "next: kill -CONT 4251"],
    );
}

#[test]
fn a_dead_rank() {
    check("dead", &jobs::dead(), &["STALLED PEER_DEAD", "rank 3 (pid 4253 on", "next: journalctl"]);
}

#[test]
fn a_running_job() {
    check("running", &jobs::running(), &["nobody waits"]);
}

#[test]
fn a_job_that_was_read_in_part() {
    check("unread", &jobs::unread(), &["AllReduce #7"]);
}

#[test]
fn a_rank_that_has_not_joined() {
    check(
        "joining",
        &jobs::joining(),
        &["NOT_JOINED", "rank 3 has not come to the init of", "next: ccl-inspect ps"],
    );
}

#[test]
fn many_ranks() {
    check("many", &jobs::many(64), &["NOT_JOINED", "rank 37 (pid 5037 on"]);
}

#[test]
fn no_job_yet() {
    check("empty", &Snapshot::default(), &["no rank has shown itself yet"]);
    let mut app = app(Snapshot::default(), (100, 24));
    app.update(Input::Over("with status 0".into()), NOON);
    let screen = drawn(&app);
    assert!(screen.contains("it was over before a rank was seen") && !screen.contains("yet"), "{screen}");
}

#[test]
fn where_there_is_no_room_the_culprit_is_said() {
    let app = app(jobs::hang(), (20, 5));
    compare("hang_20x5.txt", &drawn(&app));
}

#[test]
fn without_unicode_everything_is_ascii() {
    let mut app = app(jobs::stopped(), (100, 30));
    app.look = Look { palette: Palette::Mono, glyphs: Glyphs::ASCII };
    for screen in Screen::ALL {
        app.screen = *screen;
        let picture = drawn(&app);
        assert!(picture.is_ascii(), "{picture}");
    }
    type_help(&mut app);
    assert!(drawn(&app).is_ascii());
}

fn type_help(app: &mut super::App) {
    super::type_keys(app, "?");
}

#[test]
fn colours_say_nothing_that_words_do_not() {
    // The characters are the same in every palette; the mono palette has no colour at all.
    let mut app = app(jobs::stopped(), (100, 30));
    let plain = drawn(&app);
    for palette in [Palette::Default, Palette::ColourBlind, Palette::Mono] {
        app.look.palette = palette;
        assert_eq!(drawn(&app), plain);
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
        terminal.draw(|frame| draw(frame, &app)).unwrap();
        let colours =
            terminal.backend().buffer().content().iter().any(|cell| cell.fg != ratatui::style::Color::Reset);
        assert_eq!(colours, palette != Palette::Mono);
    }
}

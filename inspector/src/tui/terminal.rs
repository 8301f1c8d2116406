//! Takes the terminal and gives it back: on every way out, a panic included, it is restored.

use std::io::{self, IsTerminal, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::{cursor, execute, terminal};
use ratatui::backend::CrosstermBackend;
use rustix::process::{Pid, getpgid, getpgrp, getsid};

use crate::process;

/// The surface that is drawn on.
pub(crate) type Screen = ratatui::Terminal<CrosstermBackend<Stdout>>;

/// Whether there is a terminal to draw on and a keyboard to read.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The reason why a terminal can show no screens, if there is one.
///
/// Such a terminal would print cursor movements as text.
pub(crate) fn is_dumb(term: Option<String>) -> Option<String> {
    match term.unwrap_or_default() {
        none if none.is_empty() => Some("TERM is not set".into()),
        dumb if dumb == "dumb" => Some("TERM=dumb".into()),
        _ => None,
    }
}

/// Whether a shell would notice that this process stops, and could continue it.
///
/// The shell must be in our session and must have given us a process group. Without such a shell, a
/// stopped process stays stopped.
pub(crate) fn has_job_control() -> bool {
    let (ours, session) = (getpgrp(), getsid(None).ok());
    let mut pid = std::process::id();
    // A chain of parents is short; a loop could only come from a race in the kernel.
    for _ in 0..64 {
        let Some(parent) = process::stat(pid).map(|stat| stat.parent).filter(|parent| *parent > 0) else {
            return false;
        };
        let of = i32::try_from(parent).ok().and_then(Pid::from_raw);
        if getsid(of).ok() != session {
            return false;
        }
        if getpgid(of).is_ok_and(|group| group != ours) {
            return true;
        }
        pid = parent;
    }
    false
}

/// The terminal while this program owns it; dropping this value gives it back.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) screen: Screen,
    mouse: bool,
    ours: Arc<AtomicBool>,
}

impl Capture {
    /// Switches to the alternate screen, where keys arrive one by one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn take(mouse: bool) -> io::Result<Self> {
        let ours = Arc::new(AtomicBool::new(true));
        let before = std::panic::take_hook();
        let hooked = ours.clone();
        // A message on the alternate screen would vanish with it. After the terminal was given
        // back, the hook does nothing.
        std::panic::set_hook(Box::new(move |panic| {
            give_back(&hooked);
            before(panic);
        }));
        let taken = enter(mouse).and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(screen) => Ok(Self { screen, mouse, ours }),
            Err(why) => {
                give_back(&ours);
                Err(why)
            }
        }
    }

    /// Gives the terminal back while this process is stopped.
    pub(crate) fn lend(&mut self) {
        give_back(&self.ours);
    }

    /// Takes it again, whatever its settings are now; everything is redrawn.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn retake(&mut self) -> io::Result<()> {
        // A shell has changed the settings, so the known mode no longer holds.
        terminal::disable_raw_mode()?;
        self.ours.store(true, Ordering::SeqCst);
        enter(self.mouse)?;
        self.screen.clear()
    }
}

/// Switches to the alternate screen, where keys arrive one by one.
fn enter(mouse: bool) -> io::Result<()> {
    terminal::enable_raw_mode()?;
    execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
    if mouse { execute!(io::stdout(), EnableMouseCapture) } else { Ok(()) }
}

impl Drop for Capture {
    fn drop(&mut self) {
        give_back(&self.ours);
    }
}

/// Gives the terminal back, once.
fn give_back(ours: &AtomicBool) {
    if ours.swap(false, Ordering::SeqCst) {
        // A terminal that is gone needs nothing.
        let _ = execute!(io::stdout(), DisableMouseCapture, terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

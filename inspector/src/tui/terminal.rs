//! The terminal, taken and given back: on every way out, a panic included, it is as it was.

use std::io::{self, IsTerminal, Stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::{cursor, execute, terminal};
use ratatui::backend::CrosstermBackend;

/// What is drawn on.
pub(crate) type Screen = ratatui::Terminal<CrosstermBackend<Stdout>>;

/// Whether there is a terminal to draw on and a keyboard to read.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The terminal while it is ours; dropping this gives it back.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) screen: Screen,
    ours: Arc<AtomicBool>,
}

impl Taken {
    /// Goes to the alternate screen, where keys arrive one by one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn take(mouse: bool) -> io::Result<Self> {
        let ours = Arc::new(AtomicBool::new(true));
        let before = std::panic::take_hook();
        let hooked = ours.clone();
        // A message on the alternate screen would vanish with it. After this terminal was given back the hook does nothing.
        std::panic::set_hook(Box::new(move |panic| {
            give_back(&hooked);
            before(panic);
        }));
        terminal::enable_raw_mode()?;
        let taken = execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| if mouse { execute!(io::stdout(), EnableMouseCapture) } else { Ok(()) })
            .and_then(|()| ratatui::Terminal::new(CrosstermBackend::new(io::stdout())));
        match taken {
            Ok(screen) => Ok(Self { screen, ours }),
            Err(why) => {
                give_back(&ours);
                Err(why)
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back(&self.ours);
    }
}

/// Gives the terminal back, once.
fn give_back(ours: &AtomicBool) {
    if ours.swap(false, Ordering::SeqCst) {
        // A terminal that is gone needs nothing back.
        let _ = execute!(io::stdout(), DisableMouseCapture, terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

//! `ccl-inspect attach`: a job on the terminal, live. Who is stuck, on whom, why, since when.
//!
//! ```text
//! feed (a thread: looks at the job) --Seen--> app (state, update) --> views (functions of it) --> terminal
//! keyboard (a thread) ---------------Input--^
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `app` | the state, and what each input does to it; without I/O |
//! | `keys` | the table of keys |
//! | `views` | the screens |
//! | `listing`, `filter` | what all screens share: a table, its order, its filter |
//! | `scene`, `plan` | what views see, and the plan of an operation with everybody's place in it |
//! | `feed`, `events` | where snapshots, histograms and events come from |
//! | `history`, `log` | what was seen and said before, bounded |
//! | `palette` | colours and glyphs |
//! | `terminal`, `session` | the terminal, and the loop that ties all this together |
//! | `window` | the same over a job that `run` has launched |

mod app;
mod events;
mod feed;
mod filter;
mod history;
mod keys;
mod listing;
mod log;
mod palette;
mod plan;
mod scene;
mod session;
mod terminal;
mod views;
pub(crate) mod window;

#[cfg(test)]
mod tests;

use ccl::config::Settings;

use crate::choose::choose;
use crate::target::Target;
use crate::{discover, exit};

pub(crate) use app::Leave;
pub(crate) use log::Origin;

use feed::{Feed, Whom};
use listing::Look;
use palette::{Glyphs, Palette};
use session::{Ending, session};

/// Show a job on the terminal, live: who is stuck, on whom, why, since when
///
/// Attaching, leaving and attaching again do not disturb the job. Press ? for the keys.
#[derive(clap::Args, Debug)]
pub(crate) struct Attach {
    /// A process, one rank of a process, or a job; not needed where there is one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    #[command(flatten)]
    appearance: Appearance,
}

/// How the screen looks and listens.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Appearance {
    /// Leave the mouse to the terminal
    #[arg(long)]
    no_mouse: bool,
    /// Colours to begin with; else NO_COLOR decides between default and mono
    #[arg(long, value_enum)]
    palette: Option<Palette>,
}

impl Appearance {
    fn look(self) -> Look {
        Look {
            palette: self.palette.unwrap_or_else(Palette::of_environment),
            glyphs: Glyphs::of_environment(),
        }
    }
}

/// Refuses to begin where there is no terminal.
///
/// # Errors
/// The exit status, and what to do instead.
pub(crate) fn need_terminal(what: &str, instead: &str) -> Result<(), (u8, String)> {
    if terminal::is_there() {
        return Ok(());
    }
    Err((
        exit::USAGE,
        format!("{what} needs a terminal for its input and output, and here is none; {instead}"),
    ))
}

impl Attach {
    /// Shows the job until somebody leaves.
    ///
    /// # Errors
    /// The exit status and why there is nothing to show.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let instead = "`ccl-inspect snapshot [PID | JOB]` prints the same once, `ccl-inspect top` again and again, both with --json for programs";
        need_terminal("attach", instead)?;
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let job = choose(&discover::everything(&settings), self.target)?;
        let failed = |e: std::io::Error| (exit::ERROR, format!("showing the job: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let ending = runtime.block_on(async {
            // Before the terminal is taken, so that no signal can end this without giving it back.
            let mut signals = crate::run::Signals::new()?;
            let feed = Feed::start(Whom::Job(job), settings.clone())?;
            let (_said, inputs) = tokio::sync::mpsc::channel(1);
            session(self.appearance, false, feed, inputs, signals.next()).await
        });
        match ending.map_err(failed)? {
            Ending::Left(_) => Ok(exit::OK),
            Ending::Closed(signal) => Ok(u8::try_from(128 + signal.as_raw()).unwrap_or(exit::ERROR)),
        }
    }
}

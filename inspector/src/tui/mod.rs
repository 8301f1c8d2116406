//! `ccl-inspect attach`: a job on the terminal, live. It shows which rank is stuck, on which rank,
//! why and since when.
//!
//! ```text
//! feed (a thread: reads the job) --Seen--> app (state, update) --> views (pure) --> terminal
//! keyboard (a thread) ------------Input--^
//! ```
//!
//! | file | what it holds |
//! |---|---|
//! | `app` | the state, and what each input does to it; without I/O |
//! | `keys` | the table of keys |
//! | `views` | the screens |
//! | `listing`, `filter` | what all screens share: a table, its order, its filter |
//! | `scene`, `plan` | the input of views, and the plan of an operation with each rank's place |
//! | `feed`, `events` | the source of snapshots, histograms and events |
//! | `history`, `log` | earlier looks and log lines, bounded |
//! | `palette` | colours and glyphs |
//! | `terminal`, `session` | the terminal, and the main loop |
//! | `window` | the same screen for a job that `run` has launched |

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
use ccl::diagnose::comms_named;

use crate::choose::{find, no_comm};
use crate::target::Target;
use crate::{exit, look};

pub(crate) use app::Leave;
pub(crate) use log::Origin;

use feed::{Feed, Whom};
use listing::Look;
use palette::{Glyphs, Palette};
use session::{Begin, Ending, session};

/// Show a job on the terminal, live: which rank is stuck, on which rank, why and since when
///
/// Attaching, leaving and attaching again do not disturb the job. Press ? for the keys.
#[derive(clap::Args, Debug)]
pub(crate) struct Attach {
    /// A process, one rank of a process, or a job; not needed if there is only one job
    #[arg(value_name = "PID | PID:RANK | JOB")]
    target: Option<Target>,
    /// Show only the communicators of this name or id; Esc shows all
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    #[command(flatten)]
    appearance: Appearance,
}

/// How the screen looks, and whether it uses the mouse.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Appearance {
    /// Leave the mouse to the terminal
    #[arg(long)]
    no_mouse: bool,
    /// Colours to begin with; without it, NO_COLOR decides between default and mono
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

/// Refuses to begin without a terminal.
///
/// # Errors
/// The exit status, and a command to use instead.
pub(crate) fn need_terminal(what: &str, instead: &str) -> Result<(), (u8, String)> {
    if !terminal::is_there() {
        let why = format!("{what} needs a terminal for its input and output, and here is none; {instead}");
        return Err((exit::USAGE, why));
    }
    match terminal::is_dumb(ccl::config::environment("TERM")) {
        None => Ok(()),
        Some(why) => {
            Err((exit::USAGE, format!("{what}: this terminal cannot show screens ({why}); {instead}")))
        }
    }
}

impl Attach {
    /// Shows the job until the user leaves.
    ///
    /// # Errors
    /// The exit status and why there is nothing to show.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let instead = "`ccl-inspect snapshot [PID | PID:RANK | JOB]` prints the same once, `ccl-inspect top` again and again, both with --json for programs";
        need_terminal("attach", instead)?;
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let (findings, job) = find(&settings, self.target)?;
        if let Some(name) = &self.comm {
            let own = findings.found.iter().filter(|one| one.is_of(&job));
            let rows = own.flat_map(|one| job.rows(&one.given.process));
            comms_named(rows, name).map_err(|names| no_comm(name, &names))?;
        }
        let of_job = findings.found.iter().filter(|one| one.is_of(&job));
        let stall_ns = look::stall_ns_of(&settings, of_job);
        drop(findings);
        let failed = |e: std::io::Error| (exit::ERROR, format!("showing the job: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let ending = runtime.block_on(async {
            // Before the terminal is taken, so that no signal can end this without giving it back.
            let mut signals = crate::run::Signals::new()?;
            let feed = Feed::start(Whom::Job(job), settings.clone())?;
            let (_said, inputs) = tokio::sync::mpsc::channel(1);
            let begin = Begin { launched: false, stall_ns, only: self.comm.clone() };
            session(self.appearance, begin, feed, inputs, signals.next()).await
        });
        match ending.map_err(failed)? {
            Ending::Left(_) => Ok(exit::OK),
            Ending::Closed(signal) => Ok(u8::try_from(128 + signal.as_raw()).unwrap_or(exit::ERROR)),
        }
    }
}

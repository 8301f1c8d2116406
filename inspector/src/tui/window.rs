//! The screen for a job that `run` has launched, in a separate thread of the launcher.
//!
//! The output of the ranks goes to the log screen. When the screen is left, the kept part of it is
//! printed, and then new output as it arrives.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ccl::config::Settings;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::oneshot;

use super::Appearance;
use super::app::{Input, Leave};
use super::feed::{Feed, Whom};
use super::log::Origin;
use super::session::{Begin, Ending, session};
use crate::{look, words};

/// The most bytes of each stream that are printed after the screen was left.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Pieces of output that wait for the screen; if more come, their writer is held up as by a pipe.
const WAITING_MAX: usize = 64;

/// The screen, from the launcher's side.
#[derive(Debug)]
pub(crate) struct Window {
    to: Sender<Input>,
    from: oneshot::Receiver<Leave>,
    close: Option<oneshot::Sender<()>>,
    taps: Vec<Tap>,
    is_left: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl Window {
    /// Opens it for the descendants of this process.
    ///
    /// # Errors
    /// The system's, if it cannot create a thread.
    pub(crate) fn open(appearance: Appearance, settings: Settings) -> io::Result<Self> {
        let (to, said) = channel(WAITING_MAX);
        let (leave, from) = oneshot::channel();
        let (close, closed) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let taps = vec![
            Tap::new(Origin::Output, to.clone(), Box::new(io::stdout())),
            Tap::new(Origin::Error, to.clone(), Box::new(io::stderr())),
        ];
        let opened = Opened(taps.clone());
        let show = move || {
            let opened = opened;
            let ending = runtime.block_on(async {
                let stall_ns = look::stall_ns_of(&settings, std::iter::empty());
                let feed = Feed::start(Whom::DescendantsOf(std::process::id()), settings)?;
                let begin = Begin { launched: true, stall_ns, only: None };
                session(appearance, begin, feed, said, closed).await
            });
            drop(opened);
            let (how, result) = match ending {
                Ok(Ending::Left(how)) => (how, Ok(())),
                Ok(Ending::Closed(_)) => (Leave::Alone, Ok(())),
                Err(why) => (Leave::Alone, Err(why)),
            };
            // A launcher that no longer listens already knows.
            let _ = leave.send(how);
            result
        };
        let thread = std::thread::Builder::new().name("window".into()).spawn(show)?;
        Ok(Self { to, from, close: Some(close), taps, is_left: false, thread })
    }

    /// Where a stream's lines go: to the screen while it is open.
    pub(crate) fn tap(&self, origin: Origin) -> Option<Tap> {
        self.taps.iter().find(|tap| tap.gate().origin == origin).cloned()
    }

    /// Waits until the user leaves it; if that was reported before, it never returns.
    pub(crate) async fn left(&mut self) -> Leave {
        if self.is_left {
            return std::future::pending().await;
        }
        // A thread that ended without sending has panicked, and the panic was reported.
        let how = (&mut self.from).await.unwrap_or(Leave::Alone);
        self.is_left = true;
        how
    }

    /// Reports that the job has ended, and how.
    pub(crate) async fn over(&self, how: String) {
        // If this fails, the screen is gone.
        let _ = self.to.send(Input::Over(how)).await;
    }

    /// Closes it.
    pub(crate) fn close(&mut self) {
        if let Some(close) = self.close.take() {
            let _ = close.send(());
        }
    }

    /// Whether [`left`](Self::left) has reported that the user left.
    pub(crate) const fn is_left(&self) -> bool {
        self.is_left
    }

    /// Waits until the terminal is given back.
    ///
    /// # Errors
    /// Why it could not be shown.
    pub(crate) fn finish(self) -> io::Result<()> {
        // A panic of that thread was already reported.
        self.thread.join().unwrap_or(Ok(()))
    }
}

/// The taps of a visible screen; dropping this lets output through, also if the screen panics.
struct Opened(Vec<Tap>);

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.iter().for_each(Tap::pass);
    }
}

/// The end of a stream of labelled lines: shown and kept while the screen is open, then printed.
#[derive(Clone, Debug)]
pub(crate) struct Tap(Arc<Mutex<Gate>>);

struct Gate {
    origin: Origin,
    /// The screen, while it is open.
    to: Option<Sender<Input>>,
    kept: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that were dropped.
    lost: usize,
    real: Box<dyn Write + Send>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("origin", &self.origin)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Tap {
    fn new(origin: Origin, to: Sender<Input>, real: Box<dyn Write + Send>) -> Self {
        let (to, kept) = (Some(to), VecDeque::new());
        Self(Arc::new(Mutex::new(Gate { origin, to, kept, bytes: 0, lost: 0, real })))
    }

    fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The screen is gone: prints the kept output.
    fn pass(&self) {
        let mut gate = self.gate();
        gate.to = None;
        for lines in std::mem::take(&mut gate.kept) {
            // If standard output is closed, nothing is to be printed; the next line tells the
            // launcher.
            let _ = gate.real.write_all(&lines);
        }
        if gate.lost > 0 {
            // Printed after the kept lines: before them, it would have scrolled away.
            let (lost, size) = (gate.lost, words::bytes(KEPT_BYTES_MAX as f64));
            let stream = if gate.origin == Origin::Error { "standard error" } else { "standard output" };
            let line =
                format!("ccl-inspect: of {stream} only the last {size} were kept, not {lost} lines before\n");
            let _ = gate.real.write_all(line.as_bytes());
        }
        let _ = gate.real.flush();
    }
}

impl Write for Tap {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        // Held while it waits for the screen, so that later output keeps its order. The screen's
        // end closes the channel first.
        let mut gate = self.gate();
        let Some(to) = &gate.to else { return gate.real.write_all(lines).map(|()| lines.len()) };
        // Between leaving and `pass` there is no screen; the lines are kept all the same.
        let _ = to.blocking_send(Input::Said(lines.to_vec(), gate.origin));
        gate.bytes += lines.len();
        gate.kept.push_back(lines.to_vec());
        while gate.bytes > KEPT_BYTES_MAX {
            let Some(oldest) = gate.kept.pop_front() else { break };
            gate.bytes -= oldest.len();
            gate.lost += oldest.iter().filter(|byte| **byte == b'\n').count();
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.gate().real.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The printed output, to be examined.
    #[derive(Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_shown_then_printed_in_order() {
        let (to, mut shown) = channel(9);
        let printed = Printed::default();
        let mut tap = Tap::new(Origin::Output, to, Box::new(printed.clone()));
        let text = || String::from_utf8(printed.0.lock().unwrap().clone()).unwrap();
        tap.write_all(b"[0] a\n").unwrap();
        assert!(matches!(shown.try_recv(), Ok(Input::Said(lines, Origin::Output)) if lines == b"[0] a\n"));
        tap.write_all(b"[1] b\n").unwrap();
        assert_eq!(text(), "");
        tap.pass();
        tap.write_all(b"[0] c\n").unwrap();
        assert_eq!(text(), "[0] a\n[1] b\n[0] c\n");
    }

    #[test]
    fn of_what_is_kept_the_oldest_goes_and_that_is_said() {
        let (to, _shown) = channel(9);
        let printed = Printed::default();
        let mut tap = Tap::new(Origin::Output, to, Box::new(printed.clone()));
        for letter in *b"abcde" {
            let mut lines = vec![letter; KEPT_BYTES_MAX / 4];
            (lines[7], lines[KEPT_BYTES_MAX / 4 - 1]) = (b'\n', b'\n');
            tap.write_all(&lines).unwrap();
        }
        tap.pass();
        let printed = printed.0.lock().unwrap();
        let said = "ccl-inspect: of standard output only the last 4.0 MiB were kept, not 2 lines before\n";
        assert_eq!((printed[0], &printed[KEPT_BYTES_MAX..]), (b'b', said.as_bytes()));
    }

    #[test]
    fn a_screen_that_panics_lets_the_output_through() {
        let (to, shown) = channel(9);
        let printed = Printed::default();
        let mut tap = Tap::new(Origin::Output, to, Box::new(printed.clone()));
        let opened = Opened(vec![tap.clone()]);
        tap.write_all(b"[0] before\n").unwrap();
        let screen = std::thread::spawn(move || {
            let (_opened, _shown) = (opened, shown);
            panic!("a screen that panics, as it is meant to");
        });
        assert!(screen.join().is_err());
        tap.write_all(b"[0] after\n").unwrap();
        assert_eq!(printed.0.lock().unwrap().as_slice(), b"[0] before\n[0] after\n");
    }

    #[test]
    fn who_writes_more_than_the_screen_takes_is_held_up_until_it_is_left() {
        let (to, mut shown) = channel(2);
        let printed = Printed::default();
        let tap = Tap::new(Origin::Output, to, Box::new(printed.clone()));
        let mut writer = tap.clone();
        let writing = std::thread::spawn(move || (0..5).for_each(|_| writer.write_all(b"[0] y\n").unwrap()));
        // Two were taken and two wait: the fifth does not fit.
        (0..2).for_each(|_| assert!(shown.blocking_recv().is_some()));
        assert!(!writing.is_finished() && shown.len() <= 2);
        drop(shown);
        writing.join().unwrap();
        tap.pass();
        assert_eq!(printed.0.lock().unwrap().len(), 5 * 6);
    }
}

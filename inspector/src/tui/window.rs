//! The screen over a job that `run` has launched: in a thread of its own, beside the launcher. What the ranks print goes to the log
//! screen; when the screen is left, all of it that was kept is printed, and then what comes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ccl::config::Settings;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::Appearance;
use super::app::{Input, Leave};
use super::feed::{Feed, Whom};
use super::log::Origin;
use super::session::{Ending, session};

/// The most bytes of each stream that are printed after the screen was left.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// The screen, from the launcher's side.
#[derive(Debug)]
pub(crate) struct Window {
    to: UnboundedSender<Input>,
    from: UnboundedReceiver<Leave>,
    close: Option<oneshot::Sender<()>>,
    taps: Vec<Tap>,
    is_left: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl Window {
    /// Opens it over the descendants of this process.
    ///
    /// # Errors
    /// The system's, if it has no thread to give.
    pub(crate) fn open(appearance: Appearance, settings: Settings) -> io::Result<Self> {
        let (to, said) = unbounded_channel();
        let (leave, from) = unbounded_channel();
        let (close, closed) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let taps = vec![
            Tap::new(Origin::Output, to.clone(), Box::new(io::stdout())),
            Tap::new(Origin::Error, to.clone(), Box::new(io::stderr())),
        ];
        let opened = taps.clone();
        let show = move || {
            let ending = runtime.block_on(async {
                let feed = Feed::start(Whom::DescendantsOf(std::process::id()), settings)?;
                session(appearance, true, feed, said, closed).await
            });
            opened.iter().for_each(Tap::pass);
            let (how, result) = match ending {
                Ok(Ending::Left(how)) => (how, Ok(())),
                Ok(Ending::Closed(_)) => (Leave::Alone, Ok(())),
                Err(why) => (Leave::Alone, Err(why)),
            };
            // A launcher that does not listen knows already.
            let _ = leave.send(how);
            result
        };
        let thread = std::thread::Builder::new().name("window".into()).spawn(show)?;
        Ok(Self { to, from, close: Some(close), taps, is_left: false, thread })
    }

    /// Where a stream's lines go: to the screen while there is one.
    pub(crate) fn tap(&self, origin: Origin) -> Option<Tap> {
        self.taps.iter().find(|tap| tap.gate().origin == origin).cloned()
    }

    /// Waits until it is left; for ever, if that was said before.
    pub(crate) async fn left(&mut self) -> Leave {
        if self.is_left {
            return std::future::pending().await;
        }
        // A thread that ended without a word has panicked, and that has been reported.
        let how = self.from.recv().await.unwrap_or(Leave::Alone);
        self.is_left = true;
        how
    }

    /// Says that the job has ended, and how.
    pub(crate) fn over(&self, how: String) {
        // Nobody looks any more.
        let _ = self.to.send(Input::Over(how));
    }

    /// Closes it from outside.
    pub(crate) fn close(&mut self) {
        if let Some(close) = self.close.take() {
            let _ = close.send(());
        }
    }

    /// Whether [`left`](Self::left) has said so.
    pub(crate) const fn is_left(&self) -> bool {
        self.is_left
    }

    /// Waits until the terminal is given back.
    ///
    /// # Errors
    /// Why it could not be shown.
    pub(crate) fn finish(self) -> io::Result<()> {
        // A panic of that thread has been reported already.
        self.thread.join().unwrap_or(Ok(()))
    }
}

/// The end of a stream of labelled lines: shown and kept while there is a screen, printed afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Tap(Arc<Mutex<Gate>>);

struct Gate {
    origin: Origin,
    /// The screen, while there is one.
    to: Option<UnboundedSender<Input>>,
    kept: VecDeque<Vec<u8>>,
    bytes: usize,
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
    fn new(origin: Origin, to: UnboundedSender<Input>, real: Box<dyn Write + Send>) -> Self {
        let (to, kept) = (Some(to), VecDeque::new());
        Self(Arc::new(Mutex::new(Gate { origin, to, kept, bytes: 0, real })))
    }

    fn gate(&self) -> std::sync::MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is no screen any more: prints what was kept.
    fn pass(&self) {
        let mut gate = self.gate();
        gate.to = None;
        for lines in std::mem::take(&mut gate.kept) {
            // Whoever closed standard output wants nothing; the next line tells the launcher.
            let _ = gate.real.write_all(&lines);
        }
        let _ = gate.real.flush();
    }
}

impl Write for Tap {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut gate = self.gate();
        let Some(to) = &gate.to else { return gate.real.write_all(lines).map(|()| lines.len()) };
        // Between leaving and `pass` nobody looks; it is kept all the same.
        let _ = to.send(Input::Said(lines.to_vec(), gate.origin));
        gate.bytes += lines.len();
        gate.kept.push_back(lines.to_vec());
        while gate.bytes > KEPT_BYTES_MAX {
            let Some(oldest) = gate.kept.pop_front() else { break };
            gate.bytes -= oldest.len();
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

    /// What was printed, to be looked at.
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
        let (to, mut shown) = unbounded_channel();
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
    fn of_what_is_kept_the_oldest_goes() {
        let (to, _shown) = unbounded_channel();
        let printed = Printed::default();
        let mut tap = Tap::new(Origin::Output, to, Box::new(printed.clone()));
        for letter in *b"abcde" {
            tap.write_all(&vec![letter; KEPT_BYTES_MAX / 4]).unwrap();
        }
        tap.pass();
        let printed = printed.0.lock().unwrap();
        assert_eq!((printed.len(), printed.first()), (KEPT_BYTES_MAX, Some(&b'b')));
    }
}

//! The main loop: waits for keys, looks, time and the end, updates the app, and draws.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crossterm::clipboard::CopyToClipboard;
use crossterm::{event, execute};
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Appearance;
use super::app::{App, Effect, Input, Leave};
use super::feed::{Feed, Wants};
use super::scene::Only;
use super::terminal::{Capture, has_job_control};
use super::views::Screen;
use super::views::draw::draw;

/// How often the age of the picture is redrawn.
const TICK: Duration = Duration::from_secs(1);
/// How long the keyboard thread takes to notice that it is no longer needed.
const NOTICE: Duration = Duration::from_millis(50);
/// Inputs that are handled before the screen is drawn again.
///
/// Few, because each may be many lines of a rank that prints without end.
const AT_ONCE: usize = 16;

/// How a session begins.
#[derive(Clone, Debug)]
pub(super) struct Begin {
    /// Whether the job was launched here.
    pub(super) launched: bool,
    /// From when on a wait is called a stall.
    pub(super) stall_ns: u64,
    /// The communicators that are shown alone.
    pub(super) only: Option<String>,
}

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ending<T> {
    /// The user left.
    Left(Leave),
    /// `close` became ready.
    Closed(T),
}

/// Shows a job until the user leaves or `close` is ready; always gives the terminal back.
///
/// # Errors
/// The terminal's; or that the feed has ended, which should not happen.
pub(super) async fn session<T>(
    appearance: Appearance,
    begin: Begin,
    mut feed: Feed,
    mut said: Receiver<Input>,
    close: impl Future<Output = T>,
) -> io::Result<Ending<T>> {
    let look = appearance.look();
    let mut stops = signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?;
    let mut continues = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
    let mut taken = Capture::take(!appearance.no_mouse)?;
    let mut keyboard = Keyboard::start()?;
    let mut app = App::new(look, crossterm::terminal::size()?, begin.launched);
    app.only = begin.only.map(Only::named);
    app.stall_ns = begin.stall_ns;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    tokio::pin!(close);
    loop {
        taken.screen.draw(|frame| draw(frame, &app))?;
        let first = tokio::select! {
            closed = &mut close => return Ok(Ending::Closed(closed)),
            Some(input) = keyboard.inputs.recv() => input,
            seen = feed.next() => match seen {
                Some(seen) => Input::Seen(Box::new(seen)),
                None => return Err(io::Error::other("the thread that looks at the job has ended")),
            },
            Some(input) = said.recv() => input,
            _ = tick.tick() => Input::Tick,
            Some(()) = stops.recv() => {
                if has_job_control() {
                    taken.lend();
                    let _ = kill_process(getpid(), Signal::STOP);
                    // The signal may arrive a moment after it was sent; the continue signal marks
                    // its end.
                    continues.recv().await;
                    taken.retake()?;
                } else {
                    app.notice = "no shell would have this go on, so it does not stop".into();
                }
                Input::Tick
            }
            // After a stop by a signal that cannot be caught.
            Some(()) = continues.recv() => {
                taken.retake()?;
                Input::Tick
            }
        };
        let more = std::iter::from_fn(|| keyboard.inputs.try_recv().or_else(|_| said.try_recv()).ok());
        let inputs: Vec<Input> = std::iter::once(first).chain(more.take(AT_ONCE)).collect();
        for input in inputs {
            match app.update(input, ccl::clock::real_ns()) {
                None => {}
                Some(Effect::Copy(text)) => execute!(io::stdout(), CopyToClipboard::to_clipboard_from(text))?,
                // Does what the terminal does if it is not raw: stops all processes of its
                // foreground group.
                Some(Effect::Suspend) => kill_current_process_group(Signal::TSTP)?,
                Some(Effect::Leave(leave)) => return Ok(Ending::Left(leave)),
            }
        }
        // Asks the system instead of relying on the resize event: the drawing has the screen's
        // present size.
        let (width, height) = crossterm::terminal::size()?;
        if app.size != (width, height) {
            app.update(Input::Resize(width, height), app.now_ns);
        }
        feed.want(Wants { histograms: app.screen == Screen::Latency, events: app.screen == Screen::Log });
    }
}

/// The thread that reads the keyboard; it ends with this value.
struct Keyboard {
    inputs: UnboundedReceiver<Input>,
    stop: Arc<AtomicBool>,
    /// Disconnected when the thread ends.
    ended: mpsc::Receiver<()>,
}

impl Keyboard {
    fn start() -> io::Result<Self> {
        let (sender, inputs) = unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (running, ended) = mpsc::channel();
        let read = move || {
            let _running: mpsc::Sender<()> = running;
            while !stopped.load(Ordering::Relaxed) {
                match event::poll(NOTICE)
                    .and_then(|there| if there { event::read().map(Some) } else { Ok(None) })
                {
                    Ok(event) => event.into_iter().for_each(|event| pass_on(event, &sender)),
                    // The process went on after a stop.
                    Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                    // A terminal that is gone also sends SIGHUP.
                    Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("keyboard".into()).spawn(read)?;
        Ok(Self { inputs, stop, ended })
    }
}

fn pass_on(event: event::Event, to: &UnboundedSender<Input>) {
    let input = match event {
        event::Event::Key(key) => Input::Key(key),
        event::Event::Mouse(mouse) => Input::Mouse(mouse),
        event::Event::Resize(width, height) => Input::Resize(width, height),
        event::Event::FocusGained | event::Event::FocusLost | event::Event::Paste(_) => return,
    };
    // The receiver is gone: the thread is about to be stopped.
    let _ = to.send(input);
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Later key presses belong to the shell. If the terminal is gone, the read never returns,
        // and the thread ends with the process.
        let _ = self.ended.recv_timeout(10 * NOTICE);
    }
}

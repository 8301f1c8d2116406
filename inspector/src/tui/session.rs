//! The loop: waits for keys, looks at the job, time and the end, tells the app, draws.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crossterm::clipboard::CopyToClipboard;
use crossterm::{event, execute};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Appearance;
use super::app::{App, Effect, Input, Leave};
use super::feed::{Feed, Wants};
use super::terminal::Taken;
use super::views::Screen;
use super::views::draw::draw;

/// How often the age of the picture is drawn anew.
const TICK: Duration = Duration::from_millis(250);
/// How long the keyboard's thread takes to notice that it is not needed any more.
const NOTICE: Duration = Duration::from_millis(50);
/// Inputs that are taken before the screen is drawn again: few, as each may be many lines of a rank that prints without end.
const AT_ONCE: usize = 16;

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ending<T> {
    /// Somebody left.
    Left(Leave),
    /// `close` became ready.
    Closed(T),
}

/// Shows a job until somebody leaves or `close` is ready. The terminal is given back in any case.
///
/// # Errors
/// The terminal's; or that the feed has ended, which it never should.
pub(super) async fn session<T>(
    appearance: Appearance,
    launched: bool,
    mut feed: Feed,
    mut said: Receiver<Input>,
    close: impl Future<Output = T>,
) -> io::Result<Ending<T>> {
    let look = appearance.look();
    let mut taken = Taken::take(!appearance.no_mouse)?;
    let mut keyboard = Keyboard::start()?;
    let mut app = App::new(look, crossterm::terminal::size()?, launched);
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
        };
        let more = std::iter::from_fn(|| keyboard.inputs.try_recv().or_else(|_| said.try_recv()).ok());
        let inputs: Vec<Input> = std::iter::once(first).chain(more.take(AT_ONCE)).collect();
        for input in inputs {
            match app.update(input, ccl::clock::real_ns()) {
                None => {}
                Some(Effect::Copy(text)) => execute!(io::stdout(), CopyToClipboard::to_clipboard_from(text))?,
                Some(Effect::Leave(leave)) => return Ok(Ending::Left(leave)),
            }
        }
        // The system is asked, not the news of it: what is drawn has the size that the screen has now.
        let (width, height) = crossterm::terminal::size()?;
        if app.size != (width, height) {
            app.update(Input::Resize(width, height), app.now_ns);
        }
        feed.want(Wants { histograms: app.screen == Screen::Latency, events: app.screen == Screen::Log });
    }
}

/// The thread that reads the keyboard; it ends with this.
struct Keyboard {
    inputs: UnboundedReceiver<Input>,
    stop: Arc<AtomicBool>,
    /// Ends with the thread.
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
                    // A terminal that is gone sends SIGHUP, too.
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
    // Nobody listens any more: the thread is about to be stopped.
    let _ = to.send(input);
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What is typed next is for the shell. Of a terminal that is gone reading never ends: the thread goes with the process.
        let _ = self.ended.recv_timeout(10 * NOTICE);
    }
}

//! `ccl-inspect run`: starts the ranks of a job on this machine, as torchrun does, and leaves no
//! process behind.

mod environment;
pub(crate) mod helper;
mod hosts;
mod output;
mod program;
mod ranks;
mod sweep;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ccl::config::Settings;
use environment::Job;
use hosts::Hosts;
use output::{Closed, Sink, Writer};
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{Signal as Arrival, SignalKind, signal};

use self::ranks::Ranks;
use crate::exit;
use crate::tui::window::Window;
use crate::tui::{Appearance, Leave, Origin, need_terminal};

/// How long output may still arrive after every process that could write it has ended.
const DRAIN: Duration = Duration::from_secs(1);

/// Start the ranks of a job here, with torchrun's environment
///
/// Every line of output is labelled with its rank. When one rank fails, the others are ended (see
/// --keep-going). The exit status is the highest among the ranks that ended by themselves; a signal
/// counts as 128 + its number.
#[derive(clap::Args, Debug)]
#[command(mut_args(only_with_inspect))]
pub(crate) struct Run {
    /// Number of ranks
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: u32,
    /// Emulate this many hosts, by network namespaces if allowed, and divide the ranks among them
    #[arg(long, value_name = "H", value_parser = clap::value_parser!(u32).range(1..=4096))]
    hosts: Option<u32>,
    /// Seconds between asking a rank to end (SIGTERM) and ending it (SIGKILL)
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    grace: Duration,
    /// Let the other ranks go on when one fails, as a program needs that shrinks its communicators
    #[arg(long)]
    keep_going: bool,
    /// Digits of a label; default: those of the highest rank
    #[arg(long, value_name = "DIGITS", value_parser = clap::value_parser!(u8).range(0..=20))]
    label_width: Option<u8>,
    /// Show the job on the terminal, as `attach` does; its Log screen has the output of the ranks
    ///
    /// Leaving it either ends the job as Ctrl-C would, or keeps it running here and prints the
    /// output kept so far.
    #[arg(long)]
    inspect: bool,
    #[command(flatten)]
    appearance: Appearance,
    /// The program and its arguments; looked up on the PATH, then beside ccl-inspect
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// The options for the screen's appearance need a screen.
fn only_with_inspect(arg: clap::Arg) -> clap::Arg {
    if matches!(arg.get_id().as_str(), "no_mouse" | "palette") { arg.requires("inspect") } else { arg }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|e| e.to_string())?;
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err("from 0 to 86400".to_string());
    }
    Ok(Duration::from_secs_f64(seconds))
}

impl Run {
    /// Runs the job to its end; gives the exit status.
    ///
    /// # Errors
    /// The exit status and why the job did not start.
    pub(crate) fn run(&self) -> Result<u8, (u8, String)> {
        let nhosts = self.hosts.unwrap_or(1);
        if nhosts > self.ranks {
            return Err((
                exit::USAGE,
                format!("{nhosts} hosts cannot share {} ranks: each needs one", self.ranks),
            ));
        }
        let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(PathBuf::from));
        let path = ccl::config::environment("PATH").unwrap_or_default();
        let Some(program) = program::find(&self.command[0], &path, beside.as_deref()) else {
            let name = self.command[0].display();
            let mut why = format!("there is no program {name} on the PATH or beside ccl-inspect");
            if program::executable(&PathBuf::from(&self.command[0])) {
                why += &format!("; to run the one in this folder, say ./{name}");
            }
            return Err((exit::USAGE, why));
        };
        if self.inspect {
            need_terminal("run --inspect", "leave --inspect out, and look with `ccl-inspect snapshot`")?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| (exit::ERROR, format!("starting the launcher: {e}")))?;
        let mut window = self.window()?;
        let ((out, out_writer), (err, err_writer)) = sinks(window.as_ref());
        let closed = out_writer.closed.clone();
        let outputs = Outputs { out, err, closed: closed.clone() };
        let result = runtime.block_on(self.launch(program, nhosts, outputs, window.as_mut()));
        drop(runtime);
        out_writer.finish();
        err_writer.finish();
        let shown = window.map_or(Ok(()), Window::finish);
        let status = result.map_err(|why| (exit::ERROR, why))?;
        shown.map_err(|e| (exit::ERROR, format!("showing the job: {e}")))?;
        match &*closed.borrow() {
            Some(Closed::Failed(why)) => {
                Err((status.max(exit::ERROR), format!("writing the output of the ranks: {why}")))
            }
            _ => Ok(status),
        }
    }

    fn window(&self) -> Result<Option<Window>, (u8, String)> {
        if !self.inspect {
            return Ok(None);
        }
        let settings = Settings::of_process().map_err(|e| (exit::USAGE, e.to_string()))?;
        let window = Window::open(self.appearance, settings);
        window.map(Some).map_err(|e| (exit::ERROR, format!("showing the job: {e}")))
    }

    async fn launch(
        &self,
        program: PathBuf,
        nhosts: u32,
        mut outputs: Outputs,
        mut window: Option<&mut Window>,
    ) -> Result<u8, String> {
        // Listens before anything is started, so that no signal can end the launcher alone.
        let listening = |e| format!("listening for signals: {e}");
        let mut signals = Signals::new().map_err(listening)?;
        // Without a screen, the default action of this signal is right.
        let stops = window.as_ref().map(|_| signal(SignalKind::from_raw(Signal::TSTP.as_raw())));
        let mut stops = stops.transpose().map_err(listening)?;
        sweep::adopt_descendants();
        let hosts = self.emulate(nhosts, &outputs.err).await;
        let job = job(self.hosts.is_some(), hosts.is_some())?;
        let width = self.label_width.map_or_else(|| (self.ranks - 1).to_string().len(), usize::from);

        let mut ranks = Ranks::new(self.grace, self.keep_going);
        for place in environment::places(self.ranks, nhosts) {
            let entry = hosts.as_ref().map(|hosts| hosts.entry(place.host)).unwrap_or_default();
            let mut command = hosts::enter(&entry);
            command.arg(&program).args(&self.command[1..]).envs(environment::variables(&job, &place));
            if let Err(why) = ranks.start(place.rank, command, &outputs, width) {
                outputs.err.say(&format!("starting rank {}: {why}; ending the others", place.rank)).await;
                ranks.end(Signal::TERM);
                break;
            }
        }
        let status = loop {
            let time_is_over = ranks.time_is_over();
            tokio::select! {
                ended = ranks.next() => match ended {
                    None => break ranks.worst(),
                    Some(ended) => if let Some(news) = ranks.note(&ended) {
                        outputs.err.say(&news).await;
                    },
                },
                number = signals.next() => {
                    window.iter_mut().for_each(|window| window.close());
                    ranks.interrupt(number);
                }
                () = asked_to_stop(&mut stops) => if window.as_ref().is_none_or(|window| window.is_left()) {
                    let _ = kill_process(getpid(), Signal::STOP);
                },
                how = left(&mut window) => if how == Leave::EndJob {
                    ranks.interrupt(Signal::INT);
                },
                why = outputs.closed() => end_without_output(why, &mut ranks, &outputs.err).await,
                signal = time_is_over => if signal == Signal::KILL { ranks.kill() } else { ranks.end(signal) },
            }
        };
        if let Some(hosts) = hosts {
            hosts.close().await;
        }
        let left = sweep::sweep(self.grace).await;
        if !left.is_empty() {
            outputs.err.say(&format!("the kernel does not end these processes: {left:?}")).await;
        }
        ranks.drain(DRAIN).await;
        if let Some(window) = window {
            until_left(window, status, &mut signals).await;
        }
        Ok(status)
    }

    async fn emulate(&self, nhosts: u32, err: &Sink) -> Option<Hosts> {
        self.hosts?;
        match Hosts::new(nhosts).await {
            Ok(hosts) => Some(hosts),
            Err(why) => {
                let text = format!(
                    "network namespaces cannot be used here ({why}); the {nhosts} hosts share the loopback interface, \
                     told apart by CCL_HOSTID"
                );
                err.say(&text).await;
                None
            }
        }
    }
}

/// Shows the last state until the user leaves the window, or a signal ends it.
async fn until_left(window: &mut Window, status: u8, signals: &mut Signals) {
    window.over(format!("with status {status}; q leaves")).await;
    if !window.is_left() {
        tokio::select! {
            _ = window.left() => {}
            _ = signals.next() => window.close(),
        }
    }
}

/// Standard output and standard error, behind the window if there is one.
fn sinks(window: Option<&Window>) -> ((Sink, Writer), (Sink, Writer)) {
    let tap = |origin| window.and_then(|window| window.tap(origin));
    let out = tap(Origin::Output).map_or_else(|| output::sink(std::io::stdout()), output::sink);
    let err = tap(Origin::Error).map_or_else(|| output::sink(std::io::stderr()), output::sink);
    (out, err)
}

/// Returns when this process is asked to stop; never if it does not listen for that.
///
/// A visible screen stops the process itself after it has given the terminal back.
async fn asked_to_stop(stops: &mut Option<Arrival>) {
    match stops {
        Some(stops) => _ = stops.recv().await,
        None => std::future::pending().await,
    }
}

/// Returns once, when the user leaves the window; never without a window.
async fn left(window: &mut Option<&mut Window>) -> Leave {
    match window {
        Some(window) => window.left().await,
        None => std::future::pending().await,
    }
}

/// Draws the random values of this run.
fn job(names_hosts: bool, namespaces: bool) -> Result<Job, String> {
    let mut random = [0u8; 40];
    getrandom::fill(&mut random).map_err(|e| format!("drawing a secret: {e}"))?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let set = |names: &[&str]| {
        names.iter().any(|name| ccl::config::environment(name).is_some_and(|v| !v.is_empty()))
    };
    let has_secret = set(&["CCL_JOB_SECRET", "CCL_JOB_SECRET_FILE"]);
    let on_loopback = names_hosts && !namespaces && !set(&["CCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]);
    Ok(Job {
        run_id: hex(&random[32..]),
        secret: (!has_secret).then(|| hex(&random[..32])),
        master_address: if namespaces { hosts::address(0) } else { "127.0.0.1".to_string() },
        // In a network namespace of its own, every port is free.
        master_port: if namespaces { 29500 } else { free_port(random[38], random[39])? },
        names_hosts,
        interface: on_loopback.then(|| "lo".to_string()),
    })
}

/// A port without a listener, below those that the kernel gives to outgoing connections.
///
/// It stays free until rank 0 binds it, unless another launcher draws the same port.
fn free_port(high: u8, low: u8) -> Result<u16, String> {
    let (first, count) = (20_000, 12_000);
    let start = u16::from_be_bytes([high, low]) % count;
    (0..count)
        .map(|n| first + (start + n) % count)
        .find(|port| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok())
        .map_or_else(any_port, Ok)
}

/// A port of the kernel's choice: others hold all that would be better.
fn any_port() -> Result<u16, String> {
    let chosen = std::net::TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
    chosen.map(|address| address.port()).map_err(|e| format!("no free port: {e}"))
}

/// Ends the ranks, whose output cannot be written.
async fn end_without_output(why: Closed, ranks: &mut Ranks, err: &Sink) {
    match why {
        Closed::NoReader => ranks.interrupt(Signal::PIPE),
        Closed::Failed(_) => {
            err.say("ending the job, whose output cannot be written").await;
            ranks.end(Signal::TERM);
        }
    }
}

/// Where the ranks' output goes.
#[derive(Debug)]
struct Outputs {
    out: Sink,
    err: Sink,
    closed: tokio::sync::watch::Receiver<Option<Closed>>,
}

impl Outputs {
    /// Returns once, with the reason, when nothing more can be written to standard output.
    async fn closed(&mut self) -> Closed {
        match self.closed.changed().await {
            Ok(()) => self.closed.borrow().clone().unwrap_or(Closed::NoReader),
            Err(_) => std::future::pending().await,
        }
    }
}

/// The signals that end a job.
#[derive(Debug)]
pub(crate) struct Signals([(Signal, Arrival); 4]);

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self([
            (Signal::INT, signal(SignalKind::interrupt())?),
            (Signal::TERM, signal(SignalKind::terminate())?),
            (Signal::HUP, signal(SignalKind::hangup())?),
            (Signal::QUIT, signal(SignalKind::quit())?),
        ]))
    }

    /// The next signal that arrives.
    pub(crate) async fn next(&mut self) -> Signal {
        let [int, term, hup, quit] = &mut self.0;
        tokio::select! {
            _ = int.1.recv() => int.0,
            _ = term.1.recv() => term.0,
            _ = hup.1.recv() => hup.0,
            _ = quit.1.recv() => quit.0,
        }
    }
}

//! Trains on 4 ranks of two emulated hosts with a random straggler, and finds it from outside.
//! `make demo` runs it.
//!
//! Only the training program knows the straggler, from its environment; neither ccl nor
//! `ccl-inspect` reads it. The slowest rank is measured as any user would: by asking the running
//! job again and again which ranks are late. `make demo TUI=1` shows the job on the terminal
//! meanwhile; other output is held back until the screen is closed.
#![expect(clippy::print_stdout, reason = "a program that shows something")]

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl_examples::drawn::STRAGGLER;
use ccl_examples::readings::Readings;
use clap::Parser;

const RANKS: usize = 4;
const EPOCHS: &str = "7";
/// Milliseconds of every step, and the straggler's delay.
const STEP_MS: &str = "10";
const LATE_MS: u64 = 40;
/// Readings before a snapshot is shown.
const SHOWN_AFTER: u64 = 8;
const DEADLINE: Duration = Duration::from_secs(110);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[derive(Parser, Debug)]
struct Arguments {
    /// Show the job on the terminal while it trains.
    #[arg(long)]
    tui: bool,
}

fn main() -> ExitCode {
    match demo(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ccl_examples::complain(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

fn demo(arguments: &Arguments) -> Outcome<()> {
    let deadline = clock::now().after(DEADLINE);
    let mut random = [0];
    getrandom::fill(&mut random).map_err(|e| format!("no random numbers here: {e}"))?;
    let drawn = usize::from(random[0]) % RANKS;
    let programs = std::env::current_exe()?.parent().ok_or("this program lies in no folder")?.to_path_buf();
    let room = Room::make()?;

    println!("demo: 4 ranks train on handwritten digits, 2 + 2 on two emulated hosts.");
    println!("demo: one of them was drawn to be late at every step. Only its own program knows.\n");
    let tui = arguments.tui && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if arguments.tui && !tui {
        println!("demo: there is no terminal here, so the TUI is left out.\n");
    }
    let inspect = |verb: &[&str]| {
        let mut command = Command::new(programs.join("ccl-inspect"));
        command.args(verb).env("CCL_RUNTIME_DIR", &room.0).stdin(Stdio::null());
        command
    };
    let train = programs.join("train_digits");
    // If this program ends in any way, the launcher ends with it, and its ranks with the launcher.
    let mut job = Job(inspect(&["enter", "--parent", &std::process::id().to_string(), "--"])
        .arg(programs.join("ccl-inspect"))
        .args(["run", "-n", "4", "--hosts", "2", "--"])
        .arg(&train)
        .args(["--epochs", EPOCHS, "--step-delay", STEP_MS])
        .env(STRAGGLER, format!("{drawn}:{LATE_MS}"))
        .stdout(Stdio::piped())
        .stderr(if tui { Stdio::piped() } else { Stdio::inherit() })
        .spawn()
        .map_err(|e| format!("ccl-inspect, which must lie beside this program, does not start: {e}"))?);

    let voice = Voice::default();
    let mut screen = tui.then(Screen::default);
    let watched = watch(&mut job, &room, deadline, &inspect, &voice, screen.as_mut());
    let ended = watched.and_then(|watched| job.end(deadline).map(|()| watched));
    // The last state of the job can be viewed until the screen is closed.
    drop(screen);
    voice.release();
    let (readings, shown) = ended?;
    if !shown {
        return Err("the training was over before a snapshot could be shown".into());
    }

    let (slowest, times) = readings.slowest().ok_or("no reading showed anybody late")?;
    let taken = readings.taken;
    println!("\ndemo: bytes moved over shared memory: {}, over sockets: {}", readings.shm, readings.socket);
    println!("demo: the slowest as measured: rank {slowest}, late in {times} of {taken} readings");
    println!("demo: the straggler as drawn:  rank {drawn}, {LATE_MS} ms late at each step");
    if slowest != drawn as u64 {
        return Err("the slowest as measured is not the one drawn".into());
    }
    if readings.shm == 0 || readings.socket == 0 {
        return Err("nothing went over shared memory, or nothing over sockets".into());
    }
    println!("demo: it is the one.");
    Ok(())
}

/// Passes the job's output on, and reads the job's state from outside during the training. Also
/// returns whether a snapshot could be shown.
fn watch(
    job: &mut Job,
    room: &Room,
    deadline: Ns,
    inspect: &dyn Fn(&[&str]) -> Command,
    voice: &Voice,
    mut screen: Option<&mut Screen>,
) -> Outcome<(Readings, bool)> {
    let output = job.0.stdout.take().ok_or("the job's output is not there")?;
    let complaints = job.0.stderr.take();
    let (training, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut readings = Readings::default();
    let mut shown = false;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in lines(output) {
                voice.say(&line);
                training.fetch_or(line.contains("loss"), Ordering::Relaxed);
            }
            over.store(true, Ordering::Relaxed);
        });
        if let Some(complaints) = complaints {
            scope.spawn(|| lines(complaints).for_each(|line| voice.say(&line)));
        }
        while !over.load(Ordering::Relaxed) {
            if clock::now() > deadline {
                // The thread ends with the job, and the scope with the thread.
                job.kill();
                break;
            }
            clock::sleep(Duration::from_millis(40));
            // The first epoch's loss has been printed: all links are up and carry gradients.
            if !training.load(Ordering::Relaxed) {
                continue;
            }
            // Other jobs may run here: this job is named by the pid of one of its ranks.
            let Some(pid) = room.pid() else { continue };
            if let Some(screen) = &mut screen {
                screen.attend(|| inspect(&["attach", &pid]), voice);
            }
            if let Ok(read) = inspect(&["snapshot", "--json", &pid]).stderr(Stdio::null()).output() {
                // The last reading meets a job that is leaving.
                if read.status.success() {
                    readings.add(&read.stdout);
                }
            }
            if readings.taken >= SHOWN_AFTER
                && !shown
                && let Ok(text) = inspect(&["snapshot", &pid]).output()
            {
                shown = text.status.success();
                voice.say(&format!(
                    "\n$ ccl-inspect snapshot {pid}\n{}",
                    String::from_utf8_lossy(&text.stdout)
                ));
            }
        }
    });
    Ok((readings, shown))
}

fn lines(from: impl Read) -> impl Iterator<Item = String> {
    BufReader::new(from).lines().map_while(Result::ok)
}

/// Prints text at once, or holds it back while a screen is shown.
#[derive(Default)]
struct Voice(Mutex<Option<Vec<String>>>);

impl Voice {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<Vec<String>>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn say(&self, line: &str) {
        match &mut *self.held() {
            Some(held) => held.push(line.to_string()),
            None => println!("{line}"),
        }
    }

    fn hold(&self) {
        self.held().get_or_insert_default();
    }

    fn release(&self) {
        for line in self.held().take().unwrap_or_default() {
            println!("{line}");
        }
    }
}

/// The TUI: shown once, until the user closes it; dropping this waits for that.
#[derive(Default)]
struct Screen {
    shown: Option<Child>,
    is_left: bool,
}

impl Screen {
    /// Opens it if it has not been opened, and releases the voice once it was closed.
    fn attend(&mut self, attach: impl FnOnce() -> Command, voice: &Voice) {
        match &mut self.shown {
            _ if self.is_left => {}
            Some(shown) => {
                if !matches!(shown.try_wait(), Ok(None)) {
                    self.is_left = true;
                    voice.release();
                }
            }
            None => {
                voice.hold();
                match attach().stdin(Stdio::inherit()).spawn() {
                    Ok(shown) => self.shown = Some(shown),
                    Err(why) => {
                        self.is_left = true;
                        voice.release();
                        voice.say(&format!("demo: the TUI does not start: {why}"));
                    }
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(shown) = &mut self.shown {
            // It was closed earlier, or is closed now.
            let _ = shown.wait();
        }
    }
}

/// A separate folder in memory for recorders and sockets: other jobs of this machine are not
/// visible.
struct Room(PathBuf);

impl Room {
    fn make() -> Outcome<Self> {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let folder = parent.join(format!("ccl-demo-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The pid of one of the ranks that record here: the names of their files begin with it.
    fn pid(&self) -> Option<String> {
        let folders = std::fs::read_dir(&self.0).ok()?.flatten();
        let mut files =
            folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten();
        files.find_map(|file| {
            let name = file.file_name().into_string().ok()?;
            name.strip_suffix(".rec")?.split('-').next().map(String::from)
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // A leftover in a folder of temporary files is not a reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The launcher and its ranks; ended when the demo ends early.
struct Job(Child);

impl Job {
    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn end(&mut self, deadline: Ns) -> Outcome<()> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return if status.success() { Ok(()) } else { Err(format!("the training: {status}").into()) };
            }
            if clock::now() > deadline {
                return Err(format!("the training took longer than {} s", DEADLINE.as_secs()).into());
            }
            clock::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.kill();
    }
}

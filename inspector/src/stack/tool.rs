//! The tools that show stacks: py-spy and gdb, each in a session of its own with a time limit.
//!
//! Root has them run as the user of the process that they look at: what they read of it is that
//! user's. So they get no terminal and no open file of root's, whom that user could then act for.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use ccl::clock::{self, Ns};
use ccl::text::harmless;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{Seen, safe};
use crate::facts::threads;
use crate::process;

/// How long all tools together may take for a process.
const MOST: Duration = Duration::from_secs(5);
/// How long a tool has to let go of the process before it is killed.
const LETS_GO: Duration = Duration::from_millis(500);
/// How long a process must run before a tool counts as having let go of it.
const SETTLES: Duration = Duration::from_millis(50);
/// The most bytes of a tool's output.
const MOST_BYTES: u64 = 4 << 20;
/// The most lines of a stack, and bytes of each.
const MOST_LINES: usize = 5000;
const MOST_OF_LINE: usize = 400;

/// The tools that this user has.
#[derive(Debug)]
pub(super) struct Tools {
    py_spy: Option<PathBuf>,
    gdb: Option<PathBuf>,
    is_root: bool,
}

impl Tools {
    /// Those on the PATH.
    pub(super) fn of_path(path: &str) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let [py_spy, gdb] = ["py-spy", "gdb"].map(|name| safe::find(name, path, is_root));
        Self { py_spy, gdb, is_root }
    }

    /// The stack of a process by the first tool that has one.
    ///
    /// # Errors
    /// Why none has.
    pub(super) fn ask(&self, pid: u32) -> Result<Seen, Vec<String>> {
        // It cannot be held, and its memory may be locked: whoever looks into it may never end.
        if threads(pid).iter().any(|thread| thread.letter == Some('D')) {
            return Err(vec!["a thread is in state D, so no debugger was asked".into()]);
        }
        let end = clock::now().after(MOST);
        let letter = || process::stat(pid).map(|stat| stat.state);
        let was_stopped = matches!(letter(), Some('T' | 't'));
        let (mut notes, mut was_killed) = (Vec::new(), false);
        match letter() {
            Some('T') => notes.push("stopped: kill -CONT and its pid lets it go on".to_string()),
            Some('t') => notes.push(format!("another debugger holds it: grep TracerPid /proc/{pid}/status")),
            _ => {}
        }
        let mut ask = |by: &'static str, command: Result<Command, String>, begins: &[&str]| {
            let asked =
                command.map_err(Failed::from).and_then(|command| run(command, end)).and_then(|output| {
                    let lines = tidy(&output, begins);
                    if lines.is_empty() {
                        Err(Failed::from("it shows no stack".to_string()))
                    } else {
                        Ok(lines)
                    }
                });
            asked
                .map_err(|failed| {
                    was_killed |= failed.was_killed;
                    notes.push(format!("{by}: {}", failed.why));
                })
                .ok()
                .map(|lines| (by, lines))
        };
        let by_python = self.py_spy.as_deref().filter(|_| runs_python(pid)).and_then(|tool| {
            let words = ["dump".into(), "--pid".into(), pid.to_string(), "--nonblocking".into()];
            ask("py-spy", self.command(tool, pid, &words), &["Thread ", "    "])
        });
        let found = by_python.or_else(|| {
            let tool = self.gdb.as_deref()?;
            ask("gdb", self.command(tool, pid, &gdb_words(pid)), &["Thread ", "#"])
        });
        if was_killed && !was_stopped && !let_go_on(pid) {
            notes.push(format!("process {pid} is stopped now: kill -CONT {pid}"));
        }
        match found {
            Some((by, lines)) => Ok(Seen { by, lines, notes, ..Seen::default() }),
            None => {
                if self.gdb.is_none() {
                    let which = if self.is_root { " that only root can change" } else { "" };
                    notes.push(format!("no gdb{which} on the PATH, which would show the functions"));
                }
                Err(notes)
            }
        }
    }

    /// The command of a tool, run as the user of the process.
    fn command(&self, tool: &Path, pid: u32, words: &[String]) -> Result<Command, String> {
        let mut command = Command::new(tool);
        // Nothing of the caller's environment leads a tool elsewhere.
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").env("HOME", "/");
        command.current_dir("/");
        ccl::sys::alone(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if self.is_root {
            let user = process::user(pid).ok_or("the process has the rights of several users")?;
            let group = process::group(pid).ok_or("the process has the rights of several groups")?;
            if (user, group) != (0, 0) {
                command.uid(user).gid(group);
            }
        }
        Ok(command)
    }
}

/// Lets a process go on that a debugger which was killed has left stopped: the signal with which it
/// attached may arrive only then. Returns whether it runs.
fn let_go_on(pid: u32) -> bool {
    let letter = || process::stat(pid).map(|stat| stat.state);
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let end = clock::now().after(LETS_GO);
    let mut runs_since = None;
    loop {
        let now = clock::now();
        match letter() {
            Some('T') => {
                runs_since = None;
                // Who may not send it is told that the process is stopped.
                let _ = process.map(|process| kill_process(process, Signal::CONT));
            }
            Some('t') => runs_since = None,
            _ if now.since(*runs_since.get_or_insert(now)) >= SETTLES => return true,
            _ => {}
        }
        if now >= end {
            return !matches!(letter(), Some('T' | 't'));
        }
        clock::sleep(Duration::from_millis(5));
    }
}

/// What gdb is told: to read nothing that the process, or a file of its, would have it run.
fn gdb_words(pid: u32) -> Vec<String> {
    let mut words: Vec<String> = ["-nx", "-nh", "-batch"].map(String::from).to_vec();
    for setting in [
        "auto-load off",
        "auto-load safe-path /nowhere",
        "libthread-db-search-path /nowhere",
        "debuginfod enabled off",
        "index-cache enabled off",
        "confirm off",
        "pagination off",
        "width 0",
        "print frame-arguments none",
        "print address off",
    ] {
        words.extend(["-iex".to_string(), format!("set {setting}")]);
    }
    words.extend(["-p".to_string(), pid.to_string()]);
    words.extend(["-ex", "thread apply all -ascending bt 64", "-ex", "detach"].map(String::from));
    words
}

/// Whether a process runs Python.
fn runs_python(pid: u32) -> bool {
    let is_python = |name: &str| name.starts_with("python");
    let program = process::program(pid);
    let name = program.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    name.is_some_and(|name| is_python(&name)) || maps(pid).contains("/libpython")
}

/// The mappings of a process, the first MiB of their list.
fn maps(pid: u32) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(format!("/proc/{pid}/maps")) {
        // What could not be read is as good as absent.
        let _ = file.take(1 << 20).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why a tool has shown nothing.
#[derive(Debug)]
struct Failed {
    why: String,
    /// Whether it was ended while it may have held the process.
    was_killed: bool,
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self { why, was_killed: false }
    }
}

/// The output of a tool that ends in time.
fn run(mut command: Command, end: Ns) -> Result<String, Failed> {
    let (starts, started) = mpsc::channel();
    let (told, hears) = mpsc::channel();
    // The user of the process may stop the tool before it is what it is to become: then it never
    // starts, and who starts it waits for ever.
    std::thread::spawn(move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return starts.send(Err(format!("it cannot be started: {e}"))).unwrap_or_default(),
        };
        let stdout = child.stdout.take();
        if let Err(mpsc::SendError(Ok(mut late))) = starts.send(Ok(child)) {
            return close(&mut late);
        }
        if let Some(stdout) = stdout {
            let mut bytes = Vec::new();
            // What was read before an error is what it says.
            let _ = stdout.take(MOST_BYTES).read_to_end(&mut bytes);
            // Nobody listens after the time is over.
            let _ = told.send(bytes);
        }
    });
    let left = || Duration::from_nanos(end.0.saturating_sub(clock::now().0));
    let is_late =
        || format!("it did not answer within {} s: give this rank alone with --rank", MOST.as_secs());
    let mut child = started.recv_timeout(left()).map_err(|_| is_late())??;
    match hears.recv_timeout(left()) {
        Ok(bytes) => {
            close(&mut child);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(RecvTimeoutError::Disconnected) => {
            close(&mut child);
            Err(Failed::from("it says nothing".to_string()))
        }
        Err(RecvTimeoutError::Timeout) => {
            signal(&child, Signal::TERM);
            // Its output ends when it does.
            let _ = hears.recv_timeout(LETS_GO);
            close(&mut child);
            Err(Failed { why: is_late(), was_killed: true })
        }
    }
}

/// Ends what is left of a tool: the processes that it started, and itself.
fn close(child: &mut Child) {
    signal(child, Signal::KILL);
    // One that reads a file of the process may be kept by its file system. It ends when that
    // answers.
    let end = clock::now().after(LETS_GO);
    while matches!(child.try_wait(), Ok(None)) && clock::now() < end {
        clock::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to the group of a tool that has not been waited for.
fn signal(child: &Child, signal: Signal) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // A group that has ended receives none.
    let _ = group.map(|group| kill_process_group(group, signal));
}

/// The lines of an output from the first thread on that begin in one of these ways, safe to print.
///
/// What stands before is about the tool, and about the command line, in which ranks differ.
fn tidy(output: &str, begins: &[&str]) -> Vec<String> {
    let is_meant = |line: &&str| begins.iter().any(|begin| line.starts_with(begin));
    let threads = output.lines().skip_while(|line| !line.starts_with("Thread "));
    let lines = threads.filter(is_meant).take(MOST_LINES);
    lines.map(|line| harmless(line.trim_end(), MOST_OF_LINE).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).process_group(0).stdout(Stdio::piped());
        command
    }

    #[test]
    fn a_tool_that_hangs_is_ended_with_what_it_started() {
        let (reads, writes) = std::io::pipe().unwrap();
        let mut command = shell("sleep 600 & sleep 600");
        // Whoever of its group lives holds this end.
        command.stderr(writes);
        let begun = clock::now();
        let said = run(command, clock::now().after(Duration::from_millis(200)));
        let failed = said.unwrap_err();
        assert!(failed.was_killed && failed.why.contains("did not answer"), "{failed:?}");
        assert_eq!(std::io::Read::read(&mut &reads, &mut [0; 1]).unwrap(), 0);
        assert!(clock::now().since(begun) < Duration::from_secs(5));
    }

    #[test]
    fn a_process_that_a_tool_has_left_stopped_goes_on() {
        let mut child = Command::new("/bin/sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let state = || process::stat(child.id()).map(|stat| stat.state);
        kill_process(pid, Signal::STOP).unwrap();
        while state() != Some('T') {
            clock::sleep(Duration::from_millis(1));
        }
        assert!(let_go_on(child.id()));
        let state = state();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!matches!(state, Some('T' | 't')), "{state:?}");
    }

    #[test]
    fn the_output_of_a_tool_is_bounded_and_harmless() {
        let end = clock::now().after(Duration::from_secs(20));
        let said = run(shell("printf 'warning: x\\nThread 1\\n#0  a\\033[2J\\n'"), end).unwrap();
        assert_eq!(tidy(&said, &["Thread ", "#"]), ["Thread 1", "#0  a\\u{1b}[2J"]);
        let endless = run(
            shell("echo 'Thread 1'; while :; do echo '#0  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'; done"),
            end,
        );
        let endless = endless.unwrap();
        assert_eq!((endless.len() as u64, tidy(&endless, &["#"]).len()), (MOST_BYTES, MOST_LINES));
        assert_eq!(tidy("Threa", &["Thread "]), Vec::<String>::new());
        let python = "Process 7: python3 -c\n    x\nPython v3\n\nThread 7 (idle): \"w\"\n    f (a.py:3)\n";
        assert_eq!(tidy(python, &["Thread ", "    "]), ["Thread 7 (idle): \"w\"", "    f (a.py:3)"]);
    }
}

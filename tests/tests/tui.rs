//! `ccl-inspect attach` on a real terminal (tmux) with real jobs: what a user sees, screen by
//! screen.
//!
//! The screens are stored in `tests/tests/tui/`, with pids, ids and times masked; `BLESS=1`
//! rewrites them. The screens of a moving job differ from run to run, so only the necessary words
//! are asserted there.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccl::clock;
use ccl_tests::programs::{launcher, program, text};
use rustix::process::{Pid, Signal, kill_process};

/// How long anything that is waited for may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A terminal of its own; removed when dropped.
struct Terminal {
    /// The socket of its server.
    socket: String,
    folder: tempfile::TempDir,
}

impl Terminal {
    /// Runs a command on a terminal of this size; its exit status is printed after it.
    fn run(name: &str, (width, height): (u16, u16), folder: tempfile::TempDir, command: &str) -> Self {
        // Not among the user's: tmux leaves the sockets of servers that were killed.
        let socket = folder.path().join(format!("tmux-{name}")).display().to_string();
        let terminal = Self { socket, folder };
        // The shell stays, so that the final screen can be read.
        let script = format!(
            "trap : INT; {command}; echo \"ended with $?\"; stty -a | grep -o -- '-\\?icanon'; exec sleep 600"
        );
        let size = [width.to_string(), height.to_string()];
        let runtime = format!("CCL_RUNTIME_DIR={}", terminal.folder.path().display());
        terminal.tmux(&[
            "-u",
            "new-session",
            "-d",
            "-x",
            &size[0],
            "-y",
            &size[1],
            "-e",
            &runtime,
            "-e",
            "LC_ALL=C.UTF-8",
            "sh",
            "-c",
            &script,
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-S", &self.socket, "-f", "/dev/null"]).args(arguments).env_remove("TMUX");
        let output =
            command.stdin(Stdio::null()).output().expect("tmux, which `scripts/setup test` installs");
        assert!(output.status.success(), "tmux {arguments:?}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// The program that runs on it, as the shell's child.
    fn program(&self) -> Pid {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]);
        child_of(shell.trim().parse().ok().and_then(Pid::from_raw).expect("tmux has a shell"))
    }

    /// Waits until all of these words are on the screen; gives the screen.
    fn wait_for(&self, words: &[&str]) -> String {
        self.wait_until(&format!("{words:?}"), |screen| words.iter().all(|word| screen.contains(word)))
    }

    /// Waits until the screen is so; gives the screen.
    fn wait_until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let deadline = clock::now().after(DEADLINE);
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(clock::now() < deadline, "{what}: not within {DEADLINE:?} on\n{screen}");
            clock::sleep(Duration::from_millis(50));
        }
    }
}

/// The first child of a shell.
fn child_of(shell: Pid) -> Pid {
    let shell = shell.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    let child = children.expect("the shell runs").split(' ').next().and_then(|pid| pid.parse().ok());
    child.and_then(Pid::from_raw).expect("the shell has a child")
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        let _ = command.args(["-S", &self.socket, "kill-server"]).stderr(Stdio::null()).status();
    }
}

/// A launched job, ended when dropped.
struct Job(Child);

impl Job {
    fn start(runtime: &Path, arguments: &[&str]) -> Self {
        let mut command = launcher(runtime, arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the launcher starts"))
    }

    fn end(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // It may be ending at this moment.
            let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a folder on tmpfs")
}

/// A pid of the job whose recorders lie in this folder, once it reports a rank that blocks others.
fn attach_once_stuck(runtime: &Path) -> String {
    let deadline = clock::now().after(DEADLINE);
    loop {
        let files = std::fs::read_dir(runtime).into_iter().flatten().flatten();
        let files = files.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        if let Some(pid) =
            names.filter_map(|name| Some(name.strip_suffix(".rec")?.split('-').next()?.to_string())).next()
        {
            let mut snapshot = Command::new(program("ccl-inspect"));
            let said = snapshot.args(["snapshot", &pid]).output().expect("ccl-inspect starts");
            if text(&said).contains("BLOCKED ON rank 2") && text(&said).contains("4 of 4 ranks") {
                return pid;
            }
        }
        assert!(clock::now() < deadline, "the job did not get stuck");
        clock::sleep(Duration::from_millis(50));
    }
}

/// The screen without the parts that differ from run to run.
///
/// Those are every number with a unit or of four or more digits, pids (which a machine that counts
/// round makes small), ids, and the spacing that depends on their width.
fn masked(screen: &str) -> String {
    let mut out = String::new();
    for line in screen.lines() {
        let mut is_pid = false;
        let words = line.split(' ').map(|word| {
            let core = word.trim_matches(|c: char| !c.is_alphanumeric());
            let is_id = core.len() == 16 && core.bytes().all(|b| b.is_ascii_hexdigit());
            let is_number = !core.is_empty() && core.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            let is_long = core.len() >= 4 || core.contains('.') || is_pid;
            is_pid = core == "pid";
            if is_id {
                word.replace(core, "ID")
            } else if is_number && is_long {
                word.replace(core, "N")
            } else {
                word.to_string()
            }
        });
        let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
        let units = ["ns", "us", "ms", "s", "min"];
        let mut line: Vec<String> = Vec::new();
        for word in words {
            let unit = word.trim_end_matches([',', ';']);
            if units.contains(&unit)
                && line.last().is_some_and(|last| last == "N" || last.parse::<u64>().is_ok())
            {
                line.pop();
                line.push(format!("TIME{}", &word[unit.len()..]));
            } else {
                line.push(word);
            }
        }
        out.push_str(&line.join(" "));
        out.push('\n');
    }
    out
}

/// Stores a masked screen, or compares it with the stored one.
fn compare(name: &str, screen: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tui").join(name);
    if ccl::config::environment("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder");
        std::fs::write(&path, screen).expect("a file that can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == screen, "{} is not what is seen now; BLESS=1 writes it anew:\n{screen}", path.display());
}

/// The part that is the same in every run.
///
/// The first lines: job, verdict as far as names of any length leave room for it, next command,
/// tabs. For the overview also the list as far as its columns depend neither on rates nor on the
/// length of host names and pids, and the verdict with its evidence below it.
fn stable(screen: &str, is_overview: bool) -> String {
    let tabs = screen.lines().position(|line| line.starts_with(" 1 Overview")).expect("it has tabs");
    let head: Vec<&str> = screen.lines().take(tabs + 1).collect();
    let verdict = head[1..tabs - 1].iter().flat_map(|line| line.split_whitespace()).collect::<Vec<_>>();
    let verdict = verdict.join(" ").split(" of ").next().unwrap_or_default().to_string();
    let mut out = vec![head[0].to_string(), verdict, head[tabs - 1].to_string(), head[tabs].to_string()];
    if is_overview {
        let list: Vec<Vec<char>> =
            screen.lines().skip(tabs + 2).take(5).map(|line| line.chars().collect()).collect();
        let head: String = list[0].iter().collect();
        let width = head.find("ops/s").expect("a column of rates");
        out.extend(list.iter().map(|line| line.iter().take(width).collect()));
        let why = screen.lines().skip_while(|line| !line.starts_with(" why ")).skip(1);
        let why: Vec<&str> = why.flat_map(str::split_whitespace).collect();
        // What comes after it may have no room.
        out.push(why.join(" ").split(" BLOCKED ON ").next().unwrap_or_default().to_string());
    }
    out.join("\n")
}

/// The line without chance: among ranks that wait, which rank each waits for, and which of them
/// has waited longest.
fn without_chance(line: &str) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let line = line.replace(&format!("on {host}"), "on HOST");
    let mut words: Vec<&str> = line.split(' ').collect();
    if let Some(at) = words.windows(3).position(|three| three == ["◦", "waits", "TIME"]) {
        words[at + 3] = "R";
    }
    if let Some(at) = words.windows(4).position(|four| four[..2] == ["seen:", "rank"] && four[3] == "message")
    {
        words[at + 2] = "R:";
    }
    words.join(" ")
}

fn a_hang_is_named_on_every_screen(width: u16, height: u16) {
    let runtime = folder();
    let hang = program("hang").display().to_string();
    let mut job = Job::start(runtime.path(), &["-n", "4", "--", &hang, "--victim", "2", "--at", "5"]);
    let pid = attach_once_stuck(runtime.path());
    let attach = format!("{} attach {pid}", program("ccl-inspect").display());
    let terminal = Terminal::run(&format!("hang{width}"), (width, height), runtime, &attach);
    let mut kept = String::new();
    for (key, words) in [
        ("1", vec!["why", "rank  process", "SUSPECT NOT_JOINED", "is due since", "next: py-spy"]),
        ("2", vec!["NOT CALLED, at #4", "▸ inside", "waits for"]),
        ("3", vec!["ch0", "✱2", "waits for 2"]),
        ("4", vec!["shm", "same host", "peer of 2"]),
        ("5", vec!["CheckIn", "✓ made"]),
        ("6", vec!["64.0 KiB", "how long they took"]),
        ("7", vec!["AllReduce #4 completed", "event"]),
    ] {
        terminal.press(key);
        let mut all = words.clone();
        // The verdict stands above all of them, once the wait has lasted for a second.
        all.extend([
            "✱ SUSPECT NOT_JOINED (application, certain): rank 2 (pid ",
            "next: ccl-inspect stack ",
            "4 of 4 ranks up",
        ]);
        let screen = terminal.wait_for(&all);
        kept += &format!("=== {key}\n");
        for line in masked(&stable(&screen, key == "1")).lines() {
            kept += &(without_chance(line) + "\n");
        }
    }
    compare(&format!("hang_{width}x{height}.txt"), &kept);

    // c goes to the row of a rank that blocks others, on every screen that has one.
    for key in ["1", "2", "c", "Enter"] {
        terminal.press(key);
    }
    terminal.wait_for(&["the row in full", "NOT CALLED, at #4"]);
    terminal.press("Escape");

    // In a terminal that is too small, it says so and goes on.
    terminal.tmux(&["resize-window", "-x", "20", "-y", "5"]);
    terminal.wait_for(&["too small: 20x5", "rank 2", "AllReduce #5"]);
    terminal.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    terminal.wait_for(&["1 Overview", "waits for"]);

    // A stopped rank is shown as stopped, and as running when it continues.
    terminal.press("1");
    let rank = pid.parse().ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(rank, Signal::STOP).expect("the rank lives");
    terminal.wait_for(&["‖ STOPPED", "3 of 4 ranks up, 1 stopped"]);
    kill_process(rank, Signal::CONT).expect("the rank lives");
    terminal.wait_for(&["4 of 4 ranks up  age"]);

    // The end of the job is shown, and its last state stays.
    job.end();
    terminal.wait_for(&["the job has ended; last state of", "✗ DEAD"]);

    terminal.press("q");
    let left = terminal.wait_for(&["ended with 0"]);
    assert!(!left.contains("Overview"), "the terminal is as it was:\n{left}");
    terminal.wait_for(&["\nicanon"]);
}

#[test]
fn a_hang_is_named_on_every_screen_of_80x24() {
    a_hang_is_named_on_every_screen(80, 24);
}

#[test]
fn a_hang_is_named_on_every_screen_of_200x50() {
    a_hang_is_named_on_every_screen(200, 50);
}

#[test]
fn a_signal_gives_the_terminal_back_and_the_job_goes_on() {
    let runtime = folder();
    let hang = program("hang").display().to_string();
    let mut job = Job::start(runtime.path(), &["-n", "4", "--", &hang, "--victim", "2", "--at", "5"]);
    let pid = attach_once_stuck(runtime.path());
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let attach = format!("{} attach --no-mouse {pid}", program("ccl-inspect").display());
        let terminal = Terminal::run(&format!("signal{status}"), (80, 24), folder(), &attach);
        terminal.wait_for(&["SUSPECT NOT_JOINED"]);
        kill_process(terminal.program(), signal).expect("it runs");
        let left = terminal.wait_for(&[&format!("ended with {status}"), "\nicanon"]);
        assert!(!left.contains("Overview"), "{left}");
    }
    assert!(job.0.try_wait().expect("a child").is_none(), "the job was not disturbed");
    job.end();
}

#[test]
fn a_terminal_that_is_gone_takes_the_inspector_with_it() {
    let runtime = folder();
    let hang = program("hang").display().to_string();
    let mut job = Job::start(runtime.path(), &["-n", "4", "--", &hang, "--victim", "2", "--at", "5"]);
    let pid = attach_once_stuck(runtime.path());
    let attach = format!("{} attach {pid}", program("ccl-inspect").display());
    let terminal = Terminal::run("gone", (80, 24), folder(), &attach);
    terminal.wait_for(&["SUSPECT NOT_JOINED"]);
    let (attached, server) = (terminal.program(), terminal.tmux(&["display-message", "-p", "#{pid}"]));
    let server = server.trim().parse().ok().and_then(Pid::from_raw).expect("tmux has a server");
    kill_process(server, Signal::KILL).expect("it runs");
    let deadline = clock::now().after(DEADLINE);
    while kill_process(attached, Signal::CONT).is_ok() {
        assert!(clock::now() < deadline, "it lives on without a terminal");
        clock::sleep(Duration::from_millis(50));
    }
    job.end();
}

#[test]
fn a_job_launched_under_the_screen_prints_to_its_log_and_is_kept_or_ended() {
    let (inspect, straggler) = (program("ccl-inspect"), program("straggler"));
    let run = format!(
        "{} run --inspect -n 2 -- {} --straggler 1:20 --calls 100000",
        inspect.display(),
        straggler.display()
    );
    let terminal = Terminal::run("ended", (100, 30), folder(), &run);
    terminal.wait_for(&["2 of 2 ranks up", "AllReduce #", "ops/s", "all links", "iB/s"]);
    terminal.press("q");
    terminal.wait_for(&["end it: as Ctrl-C would", "keep it running"]);
    terminal.press("e");
    terminal.wait_for(&["ended with 130"]);

    let run = format!(
        "{} run --inspect -n 2 -- {} --calls 3 --victim 1 --at 2 --seconds 3600",
        inspect.display(),
        program("hang").display()
    );
    let terminal = Terminal::run("kept", (100, 30), folder(), &run);
    terminal.wait_for(&["SUSPECT NOT_JOINED", "rank 1 (pid ", "AllReduce #2"]);
    terminal.press("7");
    terminal.wait_for(&["rank 1 does not come to call 2", "out"]);
    terminal.press("q");
    terminal.press("k");
    // Output that had gone to the screen is printed now; and Ctrl-C ends the job as it ends every
    // other.
    let said = terminal.wait_for(&["[1] rank 1 does not come to call 2", "[0] rank 0 is process"]);
    assert!(!said.contains("ended with"), "{said}");
    terminal.press("C-c");
    terminal.wait_for(&["ended with 130"]);

    let run = format!("{} run --inspect -n 2 -- {} --calls 3", inspect.display(), program("hang").display());
    let terminal = Terminal::run("over", (100, 30), folder(), &run);
    terminal.wait_for(&["the job has ended, with status 0"]);
    terminal.press("q");
    terminal.wait_for(&["[0] rank 0: 3 calls", "ended with 0"]);
}

#[test]
fn it_stops_as_a_shell_expects_and_goes_on_with_the_screen_right() {
    let runtime = folder();
    let hang = program("hang").display().to_string();
    let mut job = Job::start(runtime.path(), &["-n", "4", "--", &hang, "--victim", "2", "--at", "5"]);
    let pid = attach_once_stuck(runtime.path());
    let attach = format!("{} attach {pid}", program("ccl-inspect").display());
    // A shell with job control, as on a user's terminal.
    let shell = "PS1='prompt> ' bash --norc --noprofile -i";
    let terminal = Terminal::run("suspend", (100, 30), runtime, shell);
    terminal.wait_for(&["prompt>"]);
    terminal.tmux(&["send-keys", "-l", &attach]);
    terminal.press("Enter");
    let right = ["1 Overview", "SUSPECT NOT_JOINED", "q quit"];
    terminal.wait_for(&right);
    let shell = terminal.program();
    for round in ["Ctrl-Z", "a signal from outside"] {
        if round == "Ctrl-Z" {
            terminal.press("C-z");
        } else {
            kill_process(child_of(shell), Signal::TSTP).expect("it runs");
        }
        let lent = terminal.wait_for(&["Stopped", "prompt>"]);
        assert!(!lent.contains("1 Overview"), "{round}: the terminal was given back:\n{lent}");
        // Typed text is echoed: the terminal is in the shell's mode.
        terminal.tmux(&["send-keys", "-l", "echo typed $((40 + 2))"]);
        terminal.press("Enter");
        terminal.wait_for(&["echo typed $((40 + 2))", "typed 42"]);
        terminal.tmux(&["send-keys", "-l", "clear; fg"]);
        terminal.press("Enter");
        let again = terminal.wait_for(&right);
        assert!(!again.contains("typed"), "{round}: all is drawn anew:\n{again}");
        // Keys arrive one by one again.
        terminal.press("2");
        terminal.wait_for(&["NOT CALLED, at #4"]);
        terminal.press("1");
        terminal.wait_for(&["why"]);
    }
    terminal.press("q");
    let left = terminal.wait_for(&["prompt>"]);
    assert!(!left.contains("1 Overview"), "{left}");
    job.end();
}

#[test]
fn where_no_shell_would_have_it_go_on_it_does_not_stop() {
    let runtime = folder();
    let hang = program("hang").display().to_string();
    let mut job = Job::start(runtime.path(), &["-n", "4", "--", &hang, "--victim", "2", "--at", "5"]);
    let pid = attach_once_stuck(runtime.path());
    let attach = format!("{} attach {pid}", program("ccl-inspect").display());
    let terminal = Terminal::run("alone", (100, 30), runtime, &attach);
    terminal.wait_for(&["SUSPECT NOT_JOINED"]);
    terminal.press("C-z");
    terminal.wait_for(&["no shell would have this go on", "1 Overview"]);
    terminal.press("q");
    terminal.wait_for(&["ended with 0"]);
    job.end();
}

#[test]
fn a_terminal_that_shows_no_screens_gets_no_escapes() {
    let attach = format!("{} attach", program("ccl-inspect").display());
    for (set, why) in [("TERM=dumb", "TERM=dumb"), ("env -u TERM", "TERM is not set")] {
        let terminal = Terminal::run("dumb", (200, 10), folder(), &format!("{set} {attach}"));
        let said = terminal.wait_for(&["ended with 2"]);
        let line = said.lines().next().unwrap_or_default();
        assert!(line.contains(&format!("attach: this terminal cannot show screens ({why})")), "{said}");
        assert!(said.contains("ccl-inspect snapshot") && said.contains("ccl-inspect top"), "{said}");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let inspect = |arguments: &[&str]| {
        let mut command = Command::new(program("ccl-inspect"));
        command.args(arguments).stdin(Stdio::null()).output().expect("ccl-inspect starts")
    };
    let output = inspect(&["attach", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("attach needs a terminal") && text(&output).contains("ccl-inspect snapshot")
    );
    let output = inspect(&["run", "--inspect", "-n", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("run --inspect needs a terminal"), "{}", text(&output));
}

#[test]
fn a_job_of_several_communicators_is_shown_whole_and_narrowed_to_one() {
    let runtime = folder();
    let grid = program("grid").display().to_string();
    let absent = ["--victim", "5", "--group", "data", "--at", "5", "--steps", "0"];
    let mut job = Job::start(runtime.path(), &[&["-n", "8", "--", &grid][..], &absent].concat());
    let deadline = clock::now().after(DEADLINE);
    // Named by its id: this user may have other jobs.
    let id = loop {
        let mut snapshot = Command::new(program("ccl-inspect"));
        let said = snapshot.arg("snapshot").env("CCL_RUNTIME_DIR", runtime.path()).output();
        let said = text(&said.expect("ccl-inspect starts"));
        let id = said.lines().find_map(|line| line.strip_prefix("job ")?.split(' ').next().map(String::from));
        if let (true, Some(id)) = (said.contains("BLOCKED ON rank 5"), id) {
            break id;
        }
        assert!(clock::now() < deadline, "nobody waits for rank 5: {said}");
        clock::sleep(Duration::from_millis(100));
    };
    let attach = format!("{} attach --comm tensor {id}", program("ccl-inspect").display());
    let terminal = Terminal::run("groups", (120, 30), runtime, &attach);
    let verdict = "NOT_JOINED (application, certain): rank 5 (pid ";
    terminal.wait_for(&[verdict, "ONLY the 4 named tensor (ranks 0-7); Esc shows all 13 communicators"]);
    // Out to the list, in which the culprit's communicator is first.
    terminal.press("Escape");
    let screen = terminal.wait_for(&[verdict, "13 communicators;", "✱ BLOCKED", "behind data"]);
    let first = screen.lines().skip_while(|line| !line.starts_with("comm ")).nth(1).unwrap_or_default();
    assert!(
        first.starts_with("data ") && first.contains("5,7") && first.contains("rank 5: not called"),
        "{screen}"
    );
    terminal.press("Enter");
    let screen = terminal.wait_for(&["ONLY data (ranks 5,7)", "✱ BLOCKING"]);
    assert!(!screen.lines().any(|line| line.starts_with("0 ")), "{screen}");
    // Each rank once, with the rank for which it waits in the end.
    terminal.press("Escape");
    // An escape at once before another key is that key with Alt.
    terminal.wait_for(&["13 communicators;"]);
    terminal.press("1");
    // One rank comes to wait after the other.
    terminal.wait_until("all seven wait for 5 in data", |screen| {
        screen.contains(verdict) && screen.matches("5 in data").count() == 7
    });
    terminal.press("q");
    terminal.wait_for(&["ended with 0"]);
    job.end();
}

//! Rotel, a third-party collector: a program in a Python package.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccl::clock;
use rustix::process::{Pid, Signal, kill_process};

use crate::job::PATIENCE;

/// The version that these tests were written with.
const VERSION: &str = "0.0.1a15";

/// A running collector, killed when dropped.
#[derive(Debug)]
pub struct Rotel {
    child: Child,
    http: u16,
}

/// The program, installed into `folder` if it is missing.
///
/// # Errors
/// Why it cannot be installed, and what to do.
pub fn install(folder: &Path) -> Result<PathBuf, String> {
    let home = folder.join(format!("rotel-{VERSION}"));
    // Tests run in parallel: one installs it, and the others wait.
    let door = std::fs::File::create(folder.join("rotel.lock")).map_err(|e| e.to_string())?;
    rustix::fs::flock(&door, rustix::fs::FlockOperation::LockExclusive).map_err(|e| e.to_string())?;
    let find = || {
        let versions = std::fs::read_dir(home.join("lib")).ok()?.flatten();
        let mut agents = versions.map(|python| python.path().join("site-packages/rotel/rotel-agent"));
        agents.find(|agent| agent.is_file())
    };
    // Written last: a partial installation is repeated.
    let complete = home.join("complete");
    if let (true, Some(agent)) = (complete.is_file(), find()) {
        return Ok(agent);
    }
    let run = |program: &Path, words: &[&str], advice: &str| {
        let output = Command::new(program).args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("{}: {e}; {advice}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{text}\n{advice}")) }
    };
    let place = home.to_string_lossy();
    run(
        Path::new("python3"),
        &["-m", "venv", "--clear", &place],
        "Python's venv is needed: apt-get install python3-venv",
    )?;
    run(
        &home.join("bin/python"),
        &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", &format!("rotel=={VERSION}")],
        &format!(
            "rotel {VERSION} could not be installed from PyPI. It is needed once: run this again with a network, or with \
             PIP_INDEX_URL set to a mirror"
        ),
    )?;
    let agent = find().ok_or_else(|| format!("rotel {VERSION} has no rotel-agent in {place}"))?;
    std::fs::write(complete, "").map_err(|e| format!("{place}: {e}"))?;
    Ok(agent)
}

/// A port that was free a moment ago.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_or(0, |a| a.port())
}

impl Rotel {
    /// Starts the program on port `http`; it forwards what it receives to `to`.
    ///
    /// Its files go to `folder`.
    ///
    /// # Errors
    /// Why it does not run.
    pub fn start(agent: &Path, http: u16, to: &str, folder: &Path) -> Result<Self, String> {
        let own = |port| format!("127.0.0.1:{port}");
        let file =
            |name: &str| folder.join(format!("{name}-{}", clock::now().0)).to_string_lossy().into_owned();
        let mut command = Command::new(agent);
        command.args([
            "start",
            "--otlp-http-endpoint",
            &own(http),
            "--otlp-grpc-endpoint",
            &own(free_port()),
        ]);
        command.args(["--exporter", "otlp", "--otlp-exporter-endpoint", to]);
        command.args(["--otlp-exporter-protocol", "http"]);
        command.args(["--batch-timeout", "50ms", "--pid-file", &file("pid"), "--log-file", &file("log")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("{}: {e}", agent.display()))?;
        let mut rotel = Self { child, http };
        let end = clock::now().after(PATIENCE);
        while TcpStream::connect(own(http)).is_err() {
            if let Ok(Some(status)) = rotel.child.try_wait() {
                return Err(format!("rotel ended with {status}: {command:?}"));
            }
            if clock::now() >= end {
                return Err(format!("rotel does not listen: {command:?}"));
            }
            clock::sleep(Duration::from_millis(20));
        }
        Ok(rotel)
    }

    /// Its address, as in `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Stops it: the kernel goes on accepting connections and bytes for it.
    pub fn stop(&self) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), Signal::STOP);
    }

    /// Kills it, with everything it holds.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

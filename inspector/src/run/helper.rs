//! Helper processes of the launcher, for work that must happen in the child before its program
//! begins: holding a namespace open, and entering one to execute a program there. These verbs are
//! not meant to be typed.
//!
//! A namespace has no name and no file: it exists while its holder or a rank lives. So nothing is
//! left behind, however the launcher ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use ccl::sys::namespace;
use rustix::process::{Pid, Signal};
use rustix::thread::{CapabilitySet, LinkNameSpaceType};

/// The exit status of a helper that failed, as a shell's for "cannot execute".
const CANNOT: u8 = 126;

/// Makes a network namespace, reports it in one line, and holds it until standard input ends.
#[derive(clap::Args, Debug)]
pub(crate) struct Hold {
    /// Make a user namespace too.
    #[arg(long, conflicts_with = "in_user_of")]
    new_user: bool,
    /// Join the user namespace of this process first.
    #[arg(long)]
    in_user_of: Option<u32>,
}

/// Enters the namespaces of a holder and becomes a program.
#[derive(clap::Args, Debug)]
pub(crate) struct Enter {
    /// The launcher; if it dies, this process ends too.
    #[arg(long)]
    parent: u32,
    /// The holder of the network namespace.
    #[arg(long)]
    of: Option<u32>,
    /// Join the holder's user namespace too.
    #[arg(long)]
    user: bool,
    /// Keep the right to configure the network in the program.
    #[arg(long)]
    administer: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

impl Hold {
    /// Holds the namespace.
    pub(crate) fn run(&self) -> u8 {
        let made = self.make();
        let answer = made.as_ref().map_or_else(|e| format!("{e}\n"), |()| "ready\n".to_string());
        // If the launcher is gone, there is no reader, and its end of standard input is closed.
        let _ = std::io::stdout().write_all(answer.as_bytes());
        if made.is_err() {
            return CANNOT;
        }
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        0
    }

    fn make(&self) -> Result<(), String> {
        if let Some(pid) = self.in_user_of {
            join(pid, "user", LinkNameSpaceType::User)?;
        }
        if !self.new_user {
            return namespace::leave_network().map_err(|e| e.to_string());
        }
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        namespace::leave_user_and_network().map_err(|e| e.to_string())?;
        let write = |file: &str, text: String| {
            std::fs::write(format!("/proc/self/{file}"), text).map_err(|e| format!("writing {file}: {e}"))
        };
        // The user stays the same: recorder files and control sockets are found by uid.
        write("setgroups", "deny".to_string())?;
        write("uid_map", format!("{uid} {uid} 1"))?;
        write("gid_map", format!("{gid} {gid} 1"))
    }
}

impl Enter {
    /// Becomes the program; returns only if it cannot.
    pub(crate) fn run(&self) -> u8 {
        let why = self.prepare().err().unwrap_or_else(|| {
            let error = Command::new(&self.command[0]).args(&self.command[1..]).exec();
            format!("running {}: {error}", self.command[0].display())
        });
        // If standard error is closed, nothing else can be done.
        let _ = writeln!(std::io::stderr(), "ccl-inspect: {why}");
        CANNOT
    }

    fn prepare(&self) -> Result<(), String> {
        if let Some(holder) = self.of {
            if self.user {
                join(holder, "user", LinkNameSpaceType::User)?;
            }
            join(holder, "net", LinkNameSpaceType::Network)?;
        }
        if self.administer {
            keep_network_administration()
                .map_err(|e| format!("keeping the right to configure the network: {e}"))?;
        }
        // After the namespaces: a change of credentials would clear it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|e| format!("binding this process to the launcher: {e}"))?;
        // The launcher may have died before this request.
        if rustix::process::getppid().map(Pid::as_raw_pid) == i32::try_from(self.parent).ok() {
            Ok(())
        } else {
            Err("the launcher is gone".to_string())
        }
    }
}

fn join(pid: u32, kind: &str, expect: LinkNameSpaceType) -> Result<(), String> {
    let path = format!("/proc/{pid}/ns/{kind}");
    let file = File::open(&path).map_err(|e| format!("opening {path}: {e}"))?;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(expect))
        .map_err(|e| format!("joining {path}: {e}"))
}

/// Keeps the capability to configure the network over an execution.
///
/// In a user namespace in which the process is not root, execution drops capabilities that are not
/// ambient.
fn keep_network_administration() -> rustix::io::Result<()> {
    let mut sets = rustix::thread::capabilities(None)?;
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)
}

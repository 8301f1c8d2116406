//! Ends the processes that ranks leave running.
//!
//! The launcher is the reaper of its descendants, so a process that lost its parent becomes its
//! child: no process can escape, whatever session or process group it moved to.

use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::process;

/// The time between two looks at the processes that are left.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the kernel may take to end a killed process.
const KILLED: Duration = Duration::from_secs(5);

/// Makes this process the reaper of all its descendants.
pub(super) fn adopt_descendants() {
    // No kernel since 3.4 refuses this; without it, a process that detached itself from its rank
    // stays.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Asks every child to end, kills it after `grace`, and reaps it; gives the pids that did not end.
///
/// Called when all known children are reaped.
pub(super) async fn sweep(grace: Duration) -> Vec<u32> {
    let mut asked = Vec::new();
    let mut waited = Duration::ZERO;
    loop {
        let left = children();
        if left.is_empty() || waited > grace + KILLED {
            return left.iter().map(|pid| pid.as_raw_pid().unsigned_abs()).collect();
        }
        for pid in left {
            if waited >= grace {
                signal(pid, Signal::KILL);
            } else if !asked.contains(&pid) {
                signal(pid, Signal::TERM);
                signal(pid, Signal::CONT);
                asked.push(pid);
            }
        }
        tokio::time::sleep(PAUSE).await;
        waited += PAUSE;
    }
}

/// The children that have not ended; the ended ones are reaped.
fn children() -> Vec<Pid> {
    let own = std::process::id();
    let of_mine =
        process::all().into_iter().filter(|pid| process::stat(*pid).is_some_and(|stat| stat.parent == own));
    of_mine
        .filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .filter(|pid| !matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(Some(_))))
        .collect()
}

fn signal(pid: Pid, signal: Signal) {
    // It may have ended meanwhile; it has not been reaped, so its pid cannot belong to another
    // process.
    let _ = kill_process(pid, signal);
}

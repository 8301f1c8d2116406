//! What ranks leave running when they end. The launcher is the reaper of its descendants, so whatever lost its parent has
//! become its child: nothing can slip away, whatever session or process group it moved to.

use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::process;

/// Between two looks at who is left.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the kernel may take to end what was killed.
const KILLED: Duration = Duration::from_secs(5);

/// Makes this process the reaper of all its descendants.
pub(super) fn adopt_descendants() {
    // Refused by no kernel since 3.4; without it, what detached itself from its rank stays.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Ends every child there is, politely for `grace`, and reaps it. Called when all known children are reaped.
/// Gives the pids that would not end.
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

/// The children that have not ended; those that have are reaped.
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
    // It may have ended meanwhile; it stays ours to reap, so its pid is nobody else's.
    let _ = kill_process(pid, signal);
}

//! A service thread that answers no request, as if it were stuck.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ccl::clock;
use ccl::config::environment;
use ccl::reactor::{Interest, Service, Task, Turn};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};

struct Blocked;

impl Task for Blocked {
    fn interests(&self, _: &mut Vec<Interest>) {}
    fn turn(&mut self, _: clock::Ns) -> Turn {
        loop {
            clock::sleep(Duration::from_secs(3600));
        }
    }
}

/// Blocks the service thread of this process for good.
pub fn block_service() {
    let task = Service::get().and_then(|service| service.add(Blocked));
    // Waiting for the blocked thread would take as long as it is blocked.
    std::mem::forget(task);
}

fn fifo(runtime: &Path) -> PathBuf {
    runtime.join("block")
}

/// Blocks the service thread of this process when [`block_all`] asks for it.
pub fn block_when_told() {
    let path = fifo(Path::new(&environment("CCL_RUNTIME_DIR").unwrap_or_default()));
    // The first process of the job creates it.
    let _ = mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0);
    std::thread::spawn(move || {
        // Returns when a process opens it for writing.
        if std::fs::File::open(path).is_ok() {
            block_service();
        }
    });
}

/// Blocks the service threads of all processes with this runtime folder that wait for the request.
pub fn block_all(runtime: &Path) {
    // If no process waits any more, all have ended.
    drop(open(fifo(runtime), OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()));
}

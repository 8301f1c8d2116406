//! Children that get nothing of this process but what they are given.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};

/// The most descriptors that are looked at where the kernel cannot close all at once.
const MOST: i32 = 1 << 20;

/// Gives a command a session of its own, without a terminal and without keys, and none of the
/// descriptors that this process has beside the three standard ones. It gains no rights by what it
/// runs, and gets SIGTERM when the thread ends that starts it.
///
/// A program that runs as another user could type into the terminal of who started it, and read
/// what that one has open or has keys for: whoever has that user's rights controls it.
pub fn alone(command: &mut Command) {
    let parent = i32::try_from(std::process::id()).ok();
    // The command has its user's rights by now, so the request is not lost by a change of them.
    let leave = move || {
        setsid()?;
        leave_keys()?;
        close_on_exec();
        rustix::thread::set_no_new_privs(true)?;
        // A debugger lets go of its process then.
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have ended before that.
        if getppid().map(Pid::as_raw_pid) == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec the closure only makes system calls: it allocates nothing and
    // takes no lock.
    unsafe {
        command.pre_exec(leave);
    }
}

/// Joins a new and empty session keyring.
fn leave_keys() -> io::Result<()> {
    // SAFETY: the call takes no address: without a name the keyring is a new one.
    let done = unsafe {
        libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
    match io::Error::last_os_error() {
        _ if done >= 0 => Ok(()),
        // The kernel has no keys, or they cannot be used here, so not by the command either.
        why if matches!(why.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        why => Err(why),
    }
}

/// Has all descriptors but the standard ones closed by the next `exec`.
fn close_on_exec() {
    // SAFETY: the call takes three numbers, and changes flags of descriptors of this process, which
    // is about to become another program.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return;
    }
    // Before Linux 5.11.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    for fd in 3..limit.map_or(MOST, |limit| i32::try_from(limit).unwrap_or(MOST).min(MOST)) {
        // SAFETY: as above; a number without a descriptor is an error without effect.
        unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_has_no_terminal_and_no_descriptor_of_its_parent() {
        let file = std::fs::File::open("/dev/null").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let inherited = format!("/proc/self/fd/{}", file.as_raw_fd());
        let ask = |is_alone: bool| {
            let mut command = Command::new("/bin/sh");
            command
                .args(["-c", &format!("test -e {inherited} && echo has; cut -d' ' -f1,6 /proc/self/stat")]);
            command.stdin(Stdio::null()).stderr(Stdio::null());
            if is_alone {
                alone(&mut command);
            }
            let child = command.stdout(Stdio::piped()).spawn().unwrap();
            let pid = child.id();
            (pid, String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        };
        assert!(ask(false).1.starts_with("has\n"));
        let (pid, said) = ask(true);
        assert!(said.ends_with(&format!(" {pid}\n")) && !said.starts_with("has"), "{pid}: {said}");
    }
}

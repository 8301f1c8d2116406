//! What the kernel's texts about a process say. Each function takes a text and gives its content;
//! a process chooses its own name, so any text may be odd.

/// The system call in which a thread is, by /proc/PID/task/TID/syscall.
pub(super) fn syscall(text: &str) -> String {
    match text.split_ascii_whitespace().next() {
        None => String::new(),
        // It sleeps in the kernel outside of a call, as in a page fault.
        Some("-1") => "none".into(),
        Some(word) => match word.parse::<i64>() {
            Ok(number) => CALLS
                .iter()
                .find(|(call, _)| *call == number)
                .map_or_else(|| number.to_string(), |(_, name)| (*name).to_string()),
            Err(_) => word.to_string(),
        },
    }
}

/// The calls in which the threads of a job are found.
const CALLS: &[(i64, &str)] = &[
    (libc::SYS_futex, "futex"),
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_close, "close"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_sched_yield, "sched_yield"),
    (libc::SYS_pselect6, "pselect6"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_restart_syscall, "restart_syscall"),
    (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_exit_group, "exit_group"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "poll"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, "select"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, "epoll_wait"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pause, "pause"),
];

/// The process that the kernel killed because memory ran out, and when, in microseconds since
/// boot, by a record of /dev/kmsg.
pub(super) fn killed(record: &str) -> Option<(u32, u64)> {
    let (prefix, message) = record.split_once(';')?;
    let mut fields = prefix.split(',');
    // Facility 0: the kernel itself. A program that may write there has another one.
    let priority: u32 = fields.next()?.parse().ok()?;
    let at_us = fields.nth(1)?.parse().ok()?;
    let is_of_memory = ["Out of memory", "Memory cgroup out of memory"];
    let is_it = priority < 8 && is_of_memory.iter().any(|begin| message.starts_with(begin));
    let (_, victim) = message.split_once(": Killed process ").filter(|_| is_it)?;
    let (pid, _) = victim.split_once(' ')?;
    Some((pid.parse().ok()?, at_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_name_and_an_unknown_one_its_number() {
        let check = |text: &str, expect: &str| assert_eq!(syscall(text), expect, "{text}");
        check(&format!("{} 0x7f 0x80 0x0\n", libc::SYS_futex), "futex");
        check(&format!("{} 0x7f\n", libc::SYS_ppoll), "ppoll");
        check("9999 0x0", "9999");
        check("running\n", "running");
        check("-1 0x7ffd 0x7f\n", "none");
        check("", "");
    }

    #[test]
    fn only_the_kernel_says_whom_it_killed() {
        let check = |record: &str, expect| assert_eq!(killed(record), expect, "{record}");
        let of_group = "3,912,5140900,-;Memory cgroup out of memory: Killed process 4711 (worker) total-vm:1kB\n SUBSYSTEM=x";
        check(of_group, Some((4711, 5_140_900)));
        check("3,9,77,-;Out of memory: Killed process 12 (a) b", Some((12, 77)));
        // A program wrote it.
        check("12,9,77,-;Out of memory: Killed process 12 (a) b", None);
        check("3,9,77,-;Killed process 12 (a)", None);
        // A process that calls itself so.
        check("6,9,77,-;Killed process [12]: segfault at 0", None);
        check("3,9,77,-;Out of memory: Killed process x (a) b", None);
        check("3,9;Out of memory: Killed process 12 (a)", None);
        check("garbage", None);
    }
}

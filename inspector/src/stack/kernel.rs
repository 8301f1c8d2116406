//! Stacks as the kernel tells them: where each thread sleeps, its system call, and for root its
//! stack in the kernel.

use ccl::sys::load::read;
use ccl::text::harmless;

use crate::facts::threads;

/// The most bytes of a line.
const LINE: usize = 256;
/// The most lines of a thread's stack.
const DEEPEST: usize = 64;

/// The threads of a process; a line each, and below it its stack in the kernel if that may be read.
pub(super) fn lines(pid: u32) -> Vec<String> {
    let mut lines = Vec::new();
    for thread in threads(pid) {
        let letter = thread.letter.unwrap_or('?');
        let place = |text: &str| if text.is_empty() { "-".to_string() } else { text.to_string() };
        let (syscall, wchan) = (place(&thread.syscall), place(&thread.wchan));
        lines.push(harmless(&format!("{:?} {letter} {syscall} {wchan}", thread.name), LINE).into_owned());
        let stack = read(&format!("/proc/{pid}/task/{}/stack", thread.tid)).unwrap_or_default();
        let frames = stack.lines().map(|line| line.trim().trim_start_matches("[<0>] "));
        lines.extend(frames.take(DEEPEST).map(|line| format!("  {}", harmless(line, LINE))));
    }
    if lines.is_empty() {
        lines.push("its threads may not be read".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_is_found_where_it_sleeps() {
        let (reads, writes) = std::io::pipe().unwrap();
        let sleeps = std::thread::Builder::new().name("sleeps-here".into());
        let thread = sleeps.spawn(move || std::io::Read::read(&mut &reads, &mut [0; 1]).unwrap()).unwrap();
        let end = ccl::clock::now().after(std::time::Duration::from_secs(20));
        let is_seen =
            || lines(std::process::id()).iter().any(|line| line.starts_with("\"sleeps-here\" S read "));
        while !is_seen() {
            assert!(ccl::clock::now() < end, "{:?}", lines(std::process::id()));
            std::thread::yield_now();
        }
        std::io::Write::write_all(&mut &writes, b"x").unwrap();
        assert_eq!(thread.join().unwrap(), 1);
        assert_eq!(lines(u32::MAX), ["its threads may not be read"]);
    }
}

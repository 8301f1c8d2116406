//! How a process ended, as its recorder says.

use super::*;
use crate::recorder::layout::{Ending, VERSION, header};
use crate::snapshot::{End, ProcessFacts};

fn said(recorder: &Arc<Recorder>) -> (End, Option<u8>) {
    let ProcessFacts { end, signal, .. } = recorder.reader().snapshot().unwrap().facts;
    (end, signal)
}

#[test]
fn the_first_word_about_the_end_counts() {
    let check = |does: &dyn Fn(&Arc<Recorder>), expect: (End, Option<u8>)| {
        let recorder = Recorder::heap();
        does(&recorder);
        assert_eq!(said(&recorder), expect);
    };
    check(&|_| {}, (End::Unknown, None));
    check(&|one| one.leave(), (End::Finished, None));
    let gives_up = |one: &Arc<Recorder>| {
        one.gave_up(false);
        one.leave();
    };
    check(&|one| one.gave_up(false), (End::Unknown, None));
    check(&gives_up, (End::Exited, None));
    let panics = |one: &Arc<Recorder>| {
        one.gave_up(true);
        one.leave();
    };
    check(&panics, (End::Panicked, None));
    let signalled = |one: &Arc<Recorder>| {
        one.ended_by_signal(15);
        one.leave();
    };
    check(&signalled, (End::Signalled, Some(15)));
}

#[test]
fn a_process_that_exits_says_so_while_it_has_a_communicator() {
    let check = |leaves: bool, nranks: u32, expect: End| {
        let recorder = Recorder::heap();
        let row = recorder.comm(CommInfo { nranks, ..INFO });
        let mut kept = Some(row);
        if leaves {
            kept = None;
        }
        recorder.say_exit();
        assert_eq!(said(&recorder).0, expect, "{leaves} {nranks}");
        drop(kept);
    };
    check(false, 4, End::Exited);
    check(true, 4, End::Unknown);
    // Nobody waits for it.
    check(false, 1, End::Unknown);
}

#[test]
fn a_panic_that_the_process_survives_is_taken_back() {
    let recorder = Recorder::heap();
    recorder.gave_up(true);
    for _ in 0..4 {
        recorder.sample_process(None);
        assert_eq!(said(&recorder).0, End::Panicked);
    }
    recorder.sample_process(None);
    assert_eq!(said(&recorder).0, End::Unknown);
    recorder.leave();
    recorder.sample_process(None);
    assert_eq!(said(&recorder).0, End::Exited);
}

#[test]
fn whatever_stands_in_the_header_is_read() {
    let check = |version: u32, end: u64, alive: bool, expect: (End, Option<u8>)| {
        let recorder = Recorder::heap();
        recorder.header(header::VERSION).store(u64::from(version), Ordering::Relaxed);
        recorder.header(header::END).store(end, Ordering::Relaxed);
        let (facts, _) = crate::recorder::ending::facts(recorder.memory.words(), alive);
        assert_eq!((facts.end, facts.signal), expect, "{version} {end:x} {alive}");
    };
    check(VERSION, 0, false, (End::Killed, None));
    check(VERSION, 0, true, (End::Unknown, None));
    // Earlier recorders say nothing in any case.
    check(8, 0, false, (End::Unknown, None));
    check(VERSION, Ending::Signalled as u64 | 9 << 32, false, (End::Signalled, Some(9)));
    check(VERSION, Ending::Signalled as u64 | 300 << 32, false, (End::Signalled, None));
    check(VERSION, Ending::Panicked as u64 | 3 << 32, false, (End::Panicked, None));
    check(VERSION, Ending::Killed as u64 | 9 << 32, false, (End::Killed, Some(9)));
    check(VERSION, 77, false, (End::Unknown, None));
    check(VERSION, u64::MAX, false, (End::Unknown, None));
}

#[test]
fn kills_for_want_of_memory_count_from_the_beginning() {
    let check = |first: u64, latest: u64, expect: (u64, Option<u64>)| {
        let recorder = Recorder::heap();
        recorder.header(header::OOM_FIRST).store(first, Ordering::Relaxed);
        recorder.header(header::OOM_LATEST).store(latest, Ordering::Relaxed);
        let process = recorder.reader().snapshot().unwrap();
        let seen = (process.facts.oom_kills, process.memory.map(|count| count.first));
        assert_eq!(seen, expect, "{first} {latest}");
    };
    check(0, 0, (0, None));
    check(1, 1, (0, Some(0)));
    check(4, 6, (2, Some(3)));
    check(4, 0, (0, Some(3)));
    check(0, 6, (0, None));
}

#[cfg(not(miri))]
#[test]
fn the_memory_group_of_the_process_is_recorded() {
    let Some(group) = crate::sys::cgroup::MemoryGroup::own() else {
        println!("skipped: the_memory_group_of_the_process_is_recorded: needs a memory control group");
        return;
    };
    let recorder = Recorder::heap();
    recorder.set_memory_group(&group);
    recorder.sample_process(Some(&group));
    let process = recorder.reader().snapshot().unwrap();
    assert_eq!(process.facts.cgroup, group.folder.to_string_lossy());
    assert_eq!(process.memory.map(|count| count.inode), Some(group.inode));
}

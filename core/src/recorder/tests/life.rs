//! The life cycle of a recorder's file, with real processes.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::sys::process::{fork, in_fork, kill, wait};

fn settings(folder: &Path) -> Settings {
    let mut settings = Settings::default();
    settings.set(Key::RuntimeDir, folder.to_str().unwrap()).unwrap();
    settings
}

fn made(folder: &Path, allocate: place::Allocate) -> Arc<Recorder> {
    Arc::new(Recorder::make(&settings(folder), allocate))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    place::files(&folder.join(format!("ccl-{}", rustix::process::geteuid())))
}

/// A child process that holds a recorder with an operation under way, and obeys commands.
struct Child {
    pid: i32,
    tell: OwnedFd,
    waited: bool,
}

impl Child {
    fn wait(&mut self) -> Option<i32> {
        self.waited = true;
        wait(self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A failed test leaves no child behind.
        if !self.waited {
            kill(self.pid);
            wait(self.pid);
        }
    }
}

fn child(folder: &Path, then: fn(Arc<Recorder>, CommRow) -> i32) -> Child {
    let (to_parent, from_child) = rustix::pipe::pipe().unwrap();
    let (to_child, tell) = rustix::pipe::pipe().unwrap();
    let pid = fork(|| {
        let recorder = made(folder, place::allocate);
        let row = recorder.comm(INFO);
        let cell = row.link(ChannelId(0), Some(Rank(0)), Direction::Recv, SHM);
        let mut events = row.events();
        events.take(Event::PeerLost { peer: Rank(3) });
        row.tag("step 12");
        row.called(&descriptor(CollKind::AllReduce, 7), None, ago(200));
        cell.set(4, 2, 2);
        cell.waits(WaitReason::Peer, Rank(0), ago(200));
        rustix::io::write(&from_child, b"x").unwrap();
        rustix::io::read(&to_child, &mut [0; 1]).unwrap();
        drop((cell, events));
        then(recorder, row)
    });
    rustix::io::read(&to_parent, &mut [0; 1]).unwrap();
    Child { pid, tell, waited: false }
}

#[test]
fn one_that_is_killed_tells_what_it_was_doing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = child(folder.path(), |_, _| 0);
    let files = files(folder.path());
    let [path] = files.as_slice() else { panic!("{files:?}") };
    let reader = Reader::open(path).unwrap();
    let pid = child.pid as u32;
    let check = |process: &ProcessSnapshot, alive: bool| {
        assert_eq!((process.alive, process.left), (alive, false));
        assert_eq!(process.pid, pid);
        let comm = &process.comms[0];
        assert!(comm.consistent);
        assert_eq!((comm.op.kind.as_str(), comm.op.seq, comm.op.state), ("AllReduce", 7, OpState::Running));
        assert_eq!((comm.op.tag.as_str(), comm.links[0].waits), ("step 12", Waits::Peer));
        assert!((150_000_000..30_000_000_000).contains(&comm.op.age_ns), "{}", comm.op.age_ns);
    };
    check(&reader.snapshot().unwrap(), true);
    // Found without a path, and through /proc, where names and mount namespaces do not matter.
    let found = Reader::of_pid(pid).unwrap();
    assert_eq!(found.len(), 1);
    check(&found[0].snapshot().unwrap(), true);
    kill(child.pid);
    assert_eq!(child.wait(), None);
    let dead = reader.snapshot().unwrap();
    check(&dead, false);
    // The ages of a dead process count from its last sign of life, whenever the file is read.
    clock::sleep(Duration::from_millis(30));
    let later = Reader::open(path).unwrap().snapshot().unwrap();
    assert_eq!((later.comms, later.to_real_ns), (dead.comms, dead.to_real_ns));
    let mut cursor = reader::Cursor::default();
    let events = reader.events(&mut cursor).unwrap();
    assert_eq!(events[0].events[0].event, Event::PeerLost { peer: Rank(3) });
    assert!(Reader::of_pid(pid).is_err());
    assert!(path.exists(), "it stays as evidence");
}

/// The file of a live process is truncated: the process goes on recording and ends normally.
#[test]
fn one_whose_file_is_truncated_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = child(folder.path(), |recorder, row| {
        for seq in 8..2000 {
            row.completed(&descriptor(CollKind::AllReduce, seq - 1), Times::between(ago(5), clock::raw()));
            row.called(&descriptor(CollKind::AllReduce, seq), None, clock::raw());
        }
        recorder.anchor();
        // Reads the part that is left.
        let _ = recorder.reader().snapshot();
        let mut events = row.events();
        events.take(Event::Aborted);
        drop((events, row));
        recorder.leave();
        0
    });
    let path = files(folder.path()).remove(0);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    rustix::io::write(&child.tell, b"x").unwrap();
    assert_eq!(child.wait(), Some(0), "its recorder ended it");
    assert!(Reader::open(&path).is_err());
}

#[test]
fn a_file_is_unlinked_in_good_order_and_stays_as_evidence() {
    let check = |then: fn(Arc<Recorder>, CommRow) -> i32, left: bool, stays: bool| {
        let folder = tempfile::tempdir().unwrap();
        let mut child = child(folder.path(), then);
        let path = files(folder.path()).remove(0);
        let reader = Reader::open(&path).unwrap();
        rustix::io::write(&child.tell, b"x").unwrap();
        assert_eq!(child.wait(), Some(0));
        let process = reader.snapshot().unwrap();
        assert_eq!((process.alive, process.left, path.exists()), (false, left, stays));
    };
    check(
        |recorder, row| {
            row.completed(&descriptor(CollKind::AllReduce, 7), Times::between(ago(5), clock::raw()));
            drop((recorder, row));
            0
        },
        true,
        false,
    );
    // An operation was under way.
    check(
        |recorder, row| {
            drop((recorder, row));
            0
        },
        true,
        true,
    );
    check(
        |recorder, row| {
            row.completed(&descriptor(CollKind::AllReduce, 7), Times::between(ago(5), clock::raw()));
            row.called(&descriptor(CollKind::AllReduce, 8), None, clock::raw());
            row.failed(&descriptor(CollKind::AllReduce, 8), 2, clock::raw());
            recorder.leave();
            0
        },
        true,
        true,
    );
    // The process ends by _exit, without leaving.
    check(
        |recorder, row| {
            row.completed(&descriptor(CollKind::AllReduce, 7), Times::between(ago(5), clock::raw()));
            std::mem::forget((recorder, row));
            0
        },
        false,
        true,
    );
}

#[test]
fn a_forked_child_neither_writes_nor_removes_its_parents_file() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = made(folder.path(), place::allocate);
    let row = recorder.comm(INFO);
    row.tag("parent");
    let path = recorder.path().unwrap().to_path_buf();
    let (of_child, row_of_child) = (Arc::clone(&recorder), &row);
    let status = in_fork(move || {
        row_of_child.tag("child");
        row_of_child.called(&descriptor(CollKind::Barrier, 1), None, clock::raw());
        row_of_child.events().take(Event::Aborted);
        of_child.leave();
        i32::from(Recorder::for_process(&Settings::default()).is_ok())
    });
    assert_eq!(status, Some(0));
    let process = read(&recorder);
    assert_eq!((process.comms[0].op.tag.as_str(), process.comms[0].op.called), ("parent", 0));
    assert!(path.exists() && !process.left);
    drop(row);
    drop(recorder);
    assert!(!path.exists());
}

#[test]
fn without_a_file_system_it_lies_in_a_memfd_and_with_observe_0_on_the_heap() {
    let folder = tempfile::tempdir().unwrap();
    let full: place::Allocate = |fd, home, bytes| match home {
        Home::File => Err(std::io::ErrorKind::StorageFull.into()),
        _ => place::allocate(fd, home, bytes),
    };
    let recorder = made(folder.path(), full);
    assert!(recorder.path().unwrap().starts_with("/proc"));
    assert!(recorder.notes().iter().any(|note| note.contains("/proc/")), "{:?}", recorder.notes());
    // Another process reads it as a live recorder.
    let path = recorder.path().unwrap().to_path_buf();
    let row = recorder.comm(INFO);
    row.tag("memfd");
    let status = in_fork(|| {
        // The path leads to the parent: its pid, its descriptor.
        let process = Reader::open(&path).and_then(|reader| reader.snapshot());
        i32::from(!process.is_ok_and(|p| p.alive && p.comms[0].op.tag == "memfd"))
    });
    assert_eq!(status, Some(0));

    let mut off = settings(folder.path());
    off.set(Key::Observe, "0").unwrap();
    let recorder = Arc::new(Recorder::make(&off, place::allocate));
    assert_eq!((recorder.path(), recorder.level()), (None, 0));
    let none: place::Allocate = |_, _, _| Err(std::io::ErrorKind::StorageFull.into());
    let recorder = made(folder.path(), none);
    assert_eq!((recorder.path(), recorder.level()), (None, 1));
    assert!(recorder.notes()[0].contains("disk") || recorder.notes()[0].contains("nothing is recorded"));
}

/// A file size limit is checked before a file is lengthened, which would otherwise end the process.
#[test]
fn a_limit_on_file_sizes_makes_the_recorder_smaller_or_none() {
    let within = |bytes: u64, home: Option<Home>| {
        let folder = tempfile::tempdir().unwrap();
        let status = in_fork(|| {
            crate::sys::process::limit_file_size(bytes);
            let recorder = made(folder.path(), place::allocate);
            let of = recorder.place.as_ref().map(Place::home);
            let said = recorder.notes().iter().any(|note| note.contains("ulimit -f"));
            i32::from(of != home || recorder.capacity == Capacity::FULL && home.is_some() || !said)
        });
        assert_eq!(status, Some(0), "{bytes}");
    };
    let total = |at: usize| Capacity::LADDER[at].total() as u64;
    within(total(0) - 1, Some(Home::File));
    within(total(Capacity::LADDER.len() - 1) - 1, None);
}

/// Runs a test in a separate process, where it has the process's recorder to itself.
fn alone(name: &str, test: impl FnOnce(&Path)) {
    leaves(name, 0, test);
}

/// The same, for a test that leaves `stay` files.
fn leaves(name: &str, stay: usize, test: impl FnOnce(&Path)) {
    const FOLDER: &str = "CCL_TEST_ALONE_IN";
    if let Some(folder) = crate::config::environment(FOLDER) {
        return test(folder.as_ref());
    }
    let folder = tempfile::tempdir().unwrap();
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("recorder::tests::life::{name}")])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{done:?}");
    let stayed = files(folder.path());
    assert_eq!(stayed.len(), stay, "{stayed:?}");
    for file in stayed {
        let process = Reader::open(&file).unwrap().snapshot().unwrap();
        assert_eq!((process.alive, process.left), (false, false));
    }
}

#[test]
fn a_process_that_exits_out_of_a_job_has_not_left_it() {
    leaves("a_process_that_exits_out_of_a_job_has_not_left_it", 1, |folder| {
        let recorder = Recorder::for_process(&settings(folder)).unwrap();
        std::mem::forget((recorder.comm(INFO), recorder));
    });
}

#[test]
fn a_process_that_exits_takes_leave() {
    alone("a_process_that_exits_takes_leave", |folder| {
        let recorder = Recorder::for_process(&settings(folder)).unwrap();
        let row = recorder.comm(CommInfo { rank: Rank(0), nranks: 1, ..INFO });
        row.tag("never dropped");
        assert!(!recorder.is_evidence() && files(folder).len() == 1);
        std::mem::forget((recorder, row));
    });
}

#[test]
fn the_recorder_of_the_process_is_one_and_borrowed() {
    alone("the_recorder_of_the_process_is_one_and_borrowed", |folder| {
        let first = Recorder::for_process(&settings(folder)).unwrap();
        let same = Recorder::for_process(&Settings::default()).unwrap();
        assert!(Arc::ptr_eq(&first, &same));
        let path = first.path().unwrap().to_path_buf();
        let row = first.comm(INFO);
        row.tag("own");
        for reader in [Reader::open(&path).unwrap(), Reader::of_process().unwrap()] {
            let process = reader.snapshot().unwrap();
            assert!(process.alive);
            assert_eq!(process.comms[0].op.tag, "own");
        }
        // If one of them had opened the file, the lock would be gone.
        let alive = in_fork(|| i32::from(!Reader::open(&path).is_ok_and(|reader| reader.alive())));
        assert_eq!(alive, Some(0));
        assert_eq!(Reader::of_pid(std::process::id()).unwrap().len(), 1);
        drop(row);
        first.leave();
        assert!(!path.exists());
        let next = Recorder::for_process(&settings(folder)).unwrap();
        assert!(!Arc::ptr_eq(&first, &next));
        drop((first, same));
        let path = next.path().unwrap().to_path_buf();
        assert!(path.exists());
        drop(next);
        assert!(!path.exists() && Reader::of_process().is_none());
    });
}

#[test]
fn followers_get_every_recorder_of_the_process_and_read_it_to_its_end() {
    alone("followers_get_every_recorder_of_the_process_and_read_it_to_its_end", |folder| {
        let given: Arc<Mutex<Vec<Reader>>> = Arc::default();
        let follow_into = |given: &Arc<Mutex<Vec<Reader>>>| {
            let given = Arc::clone(given);
            tail(move |reader| given.lock().unwrap().push(reader));
        };
        let take = |given: &Mutex<Vec<Reader>>| std::mem::take(&mut *given.lock().unwrap());
        follow_into(&given);
        assert!(take(&given).is_empty());
        let first = Recorder::for_process(&settings(folder)).unwrap();
        let mut readers = take(&given);
        let reader = readers.pop().unwrap();
        assert!(readers.is_empty());
        // A callback that comes later gets the current recorder.
        let later: Arc<Mutex<Vec<Reader>>> = Arc::default();
        follow_into(&later);
        assert_eq!(take(&later).len(), 1);
        // While it is used, no reader can have it alone, and no new one is made.
        let reader = reader.alone().unwrap_err();
        let row = first.comm(INFO);
        let mut events = row.events();
        events.take(Event::Aborted);
        drop((events, row, first));
        let again = Recorder::for_process(&settings(folder)).unwrap();
        assert!(take(&given).is_empty());
        drop(again);
        // The last events are there, with their owner; then the file is gone.
        let reader = reader.alone().unwrap();
        let path = reader.path().unwrap().to_path_buf();
        assert!(path.exists() && Reader::of_process().is_none());
        let readings = reader.events(&mut reader::Cursor::default()).unwrap();
        assert_eq!(readings[0].owner, Some((INFO.id, INFO.rank)));
        assert_eq!(readings[0].events[0].event, Event::Aborted);
        drop(reader);
        assert!(!path.exists());
        let next = Recorder::for_process(&settings(folder)).unwrap();
        assert_eq!((take(&given).len(), take(&later).len()), (1, 1));
        drop(next);
    });
}

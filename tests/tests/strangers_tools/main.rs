//! The inspector against hostile users: what another user makes root's inspector open, what lying
//! files make it read, and what lying processes can do.

mod lies;

use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ccl::config::{Key, Settings, environment};
use ccl::recorder::{CommInfo, Peer, Reader, Recorder};
use ccl::seed::Seed;
use ccl::sys::shared;
use ccl::types::{CommId, JobId, Rank};
use ccl_tests::measured::{self, Measured};
use ccl_tests::other_user::{OtherUser, UID};
use ccl_tests::programs::program;
use ccl_tests::size::is_long;
use rustix::fs::{CWD, FileType, Mode, inotify};

/// The most memory that reading any input may take.
const MOST_BYTES: u64 = 200 << 20;
const MOST_TIME: Duration = Duration::from_secs(5);
/// The job id of a test, which its other processes inherit.
///
/// Tests run in parallel, and if recorders of two users describe one job, root believes its own.
fn job() -> u64 {
    let of_test = || std::thread::current().name().unwrap_or_default().bytes().map(u64::from).sum::<u64>();
    environment("CCL_TEST_JOB").and_then(|job| job.parse().ok()).unwrap_or_else(of_test)
}

/// The pid in the recorders of this test: no process and no other test has it.
///
/// The inspector of another test may hold such a recorder open while this test looks.
fn nobody() -> u32 {
    5_000_000 + 2 * job() as u32
}

/// The word of a recorder's header with the pid of its process, as seen by itself and from outside.
fn written_by(pid: u32) -> u64 {
    u64::from(pid) | u64::from(pid) << 32
}

/// Makes a recorder describe another process.
fn retell(bytes: &mut [u8], from: u32, to: u32) {
    let place = (0..512).find(|at| word(bytes, *at) == written_by(from)).expect("in the header");
    set(bytes, place, written_by(to));
}

/// A folder in memory, as recorders should be.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    folder
}

/// The bytes of a recorder of a job of three ranks.
///
/// Its rank 0 names `peers` and a control socket.
fn recorder(runtime: &Path, name: &str, control: &Path, peers: [&Path; 2]) -> Vec<u8> {
    // A process has one recorder, and tests run in parallel.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut settings = Settings::default();
    settings.set(Key::RuntimeDir, &runtime.to_string_lossy()).expect("a folder");
    let recorder = Recorder::for_process(&settings).expect("a recorder");
    recorder.set_control(Some(control));
    let (me, job) = (Rank(0), JobId(job()));
    let row = recorder.comm(CommInfo { id: CommId(5), job, name, rank: me, nranks: 3, world: me });
    let paths = peers.map(|path| path.to_string_lossy().into_owned());
    let peer = |(rank, recorder)| Peer {
        rank: Rank(rank),
        world: Rank(rank),
        host: "h",
        pid: 70 + rank,
        recorder,
        control: "",
    };
    row.peers(&(1..).zip(paths.iter().map(String::as_str)).map(peer).collect::<Vec<_>>());
    row.tag("step\n7");
    let mut bytes = Reader::of_process().expect("there is one").capture().expect("it is ours").bytes;
    retell(&mut bytes, std::process::id(), nobody());
    bytes
}

/// Runs `ccl-inspect WORDS` in this runtime folder.
fn inspect(runtime: &Path, words: &[&str]) -> Measured {
    let mut command = Command::new(program("ccl-inspect"));
    measured::run(command.args(words).env("CCL_RUNTIME_DIR", runtime).current_dir(runtime))
}

/// The verbs that inspect a job and end by themselves.
fn all_verbs(job: &str, output: &str) -> Vec<Vec<String>> {
    let trace = format!("{output}.json");
    let dump = format!("{output}.tar.zst");
    let verbs = [
        "ps".to_string(),
        "ps --json".to_string(),
        format!("snapshot {job}"),
        format!("snapshot --json {job}"),
        format!("top {job} --count 2 --every 200ms"),
        format!("trace {job} --for 300ms -o {trace}"),
        format!("export {job} --for 300ms --otlp http://127.0.0.1:9"),
        format!("dump {job} -o {dump}"),
        format!("open {dump}"),
        "doctor".to_string(),
    ];
    verbs.iter().map(|verb| verb.split(' ').map(String::from).collect()).collect()
}

/// Runs `ccl-inspect attach` on a terminal for this time, then presses `q`.
///
/// Gives its output and its peak memory.
fn attach(runtime: &Path, job: &str, time: Duration) -> (String, u64) {
    let command = format!("stty cols 120 rows 40; exec {} attach {job}", program("ccl-inspect").display());
    let mut terminal = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("CCL_RUNTIME_DIR", runtime)
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("script, which every Debian has");
    let mut drawn = terminal.stdout.take().expect("piped");
    let reads = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = drawn.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let end = ccl::clock::now().after(time);
    let mut peak = 0;
    while ccl::clock::now() < end {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", terminal.id()));
        let child = children.unwrap_or_default().split(' ').next().map(String::from).unwrap_or_default();
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        let kib: u64 = line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        peak = peak.max(kib << 10);
        ccl::clock::sleep(Duration::from_millis(50));
    }
    let left = terminal.stdin.take().map(|mut keys| keys.write_all(b"q"));
    assert!(matches!(left, Some(Ok(()))), "it ended by itself");
    let asked = ccl::clock::now();
    let status = terminal.wait().expect("it ends");
    assert!(ccl::clock::now().since(asked) < MOST_TIME, "it does not hear its keys");
    let drawn = reads.join().expect("reads");
    assert!(status.success() && peak > 0, "{status}: {drawn}");
    (drawn, peak)
}

fn is_cheap(what: &str, took: &Measured) {
    assert!(took.status.is_some() && took.status != Some(101), "{what}: {took:?}");
    assert!(took.took < MOST_TIME, "{what} took {:?}", took.took);
    assert!(took.peak_bytes < MOST_BYTES, "{what} took {} MiB", took.peak_bytes >> 20);
}

/// The other user's process.
///
/// It has an honest recorder and its socket, a recorder that lies, and references to files that are
/// not its own.
///
/// The tests start this test program to be one, as that user.
#[test]
fn stand_in() {
    if environment("CCL_TEST_ROLE").as_deref() != Some("stranger") {
        return;
    }
    let at = |name: &str| PathBuf::from(environment(name).expect("it is set"));
    // The copy that lies claims this process as its own.
    let mut bytes = std::fs::read(at("HELD")).expect("its own");
    retell(&mut bytes, nobody(), std::process::id());
    let mut held = std::fs::File::options().read(true).write(true).open(at("HELD")).expect("its own");
    held.write_all(&bytes).expect("its own");
    shared::lock_alive(&held).expect("nobody has it");
    // Such references open nothing, and need no permission to read.
    let refers = |path: PathBuf| std::fs::File::options().read(true).custom_flags(libc::O_PATH).open(path);
    let baits = [refers(at("HELD_FIFO")), refers(at("HELD_SECRET"))].map(|bait| bait.expect("it is there"));
    let recorder = Recorder::for_process(&Settings::of_process().expect("right ones")).expect("a recorder");
    let (me, job) = (Rank(1), JobId(job()));
    let row = recorder.comm(CommInfo { id: CommId(5), job, name: "dp", rank: me, nranks: 3, world: me });
    let socket = recorder.beside("sock").expect("it has a folder");
    let listener = UnixListener::bind(&socket).expect("a socket of its own");
    recorder.set_control(Some(&socket));
    println!("@ ready");
    for stream in listener.incoming() {
        let who = ccl::sys::unix::peer_uid(stream.expect("a connection"));
        println!("@ connected {}", who.expect("the kernel says"));
    }
    drop((baits, row));
}

/// A FIFO that notices its reader, however short it reads.
struct Fifo {
    path: PathBuf,
    opened: Arc<AtomicBool>,
    waits: Option<std::thread::JoinHandle<()>>,
}

impl Fifo {
    fn at(path: PathBuf) -> Self {
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a FIFO");
        chown(&path, Some(UID), Some(UID)).expect("root gives files away");
        let opened = Arc::new(AtomicBool::new(false));
        let waits = std::thread::spawn({
            let (path, opened) = (path.clone(), Arc::clone(&opened));
            move || {
                // Returns when there is a reader.
                let writer = std::fs::File::options().write(true).open(path);
                opened.store(true, Ordering::SeqCst);
                drop(writer);
            }
        });
        Self { path, opened, waits: Some(waits) }
    }

    /// Whether a process has opened it for reading.
    fn was_opened(mut self) -> bool {
        let was = self.opened.load(Ordering::SeqCst);
        let flags = libc::O_NONBLOCK;
        let reader = std::fs::File::options().read(true).custom_flags(flags).open(&self.path);
        self.waits.take().expect("one").join().expect("it waits only");
        drop(reader);
        was
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn root_opens_nothing_outside_a_strangers_folder() {
    let Some(other) = OtherUser::for_test("root_opens_nothing_outside_a_strangers_folder") else { return };
    let (runtime, bait) = (folder(), folder());
    let give = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("root may");
        chown(path, Some(UID), Some(UID)).expect("root may");
    };
    let theirs = runtime.path().join(format!("ccl-{UID}"));
    std::fs::create_dir(&theirs).expect("a folder");
    // Files that must not be opened: FIFOs, files beside the folder, and files of root; sockets of
    // root and of the other user.
    let secret = |name: &str, owner: Option<u32>, bytes: &[u8]| {
        let path = bait.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
        chown(&path, owner, owner).expect("root may");
        path
    };
    // In a folder like root's own runtime folder.
    let root_folder = bait.path().join("ccl-0");
    std::fs::create_dir(&root_folder).expect("a folder");
    std::fs::set_permissions(&root_folder, PermissionsExt::from_mode(0o700)).expect("it is ours");
    let root_socket = root_folder.join("root.sock");
    let listener = UnixListener::bind(&root_socket).expect("a socket");
    listener.set_nonblocking(true).expect("it may");
    let fifos = ["named.rec", "held.rec"].map(|name| Fifo::at(bait.path().join(name)));
    let beside = secret("beside.rec", Some(UID), b"");
    let bytes = recorder(runtime.path(), "dp", &root_socket, [&fifos[0].path, &beside]);
    std::fs::write(&beside, &bytes).expect("ours");
    let roots = ["linked.rec", "held-secret.rec"].map(|name| secret(name, None, &bytes));
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("inotify");
    for path in roots.iter().chain([&beside]) {
        inotify::add_watch(&watch, path, inotify::WatchFlags::ACCESS).expect("it is there");
    }
    // The folder: two recorders that lie, one of them alive, a link to root's file and one to
    // root's socket, and a FIFO.
    for name in ["100-1-1.rec", "200-1-1.rec"] {
        std::fs::write(theirs.join(name), &bytes).expect("a file");
        give(&theirs.join(name), 0o600);
    }
    symlink(&roots[0], theirs.join("link.rec")).expect("a link");
    symlink(&root_socket, theirs.join("100-1-1.sock")).expect("a link");
    for name in ["link.rec", "100-1-1.sock"] {
        lchown(theirs.join(name), Some(UID), Some(UID)).expect("root may");
    }
    give(&theirs, 0o700);
    // And a living process that holds a recorder, with an honest socket beside it, and references
    // to files that are not its own.
    let copy = other.folder().join("stranger");
    std::fs::copy(std::env::current_exe().expect("a test"), &copy).expect("a copy");
    give(&copy, 0o755);
    let mut command = Command::new(&copy);
    command.args(["--exact", "stand_in", "--nocapture"]).env("CCL_TEST_ROLE", "stranger");
    command.env("HELD", theirs.join("200-1-1.rec")).env("CCL_TEST_JOB", job().to_string());
    command.env("CCL_RUNTIME_DIR", runtime.path());
    command.env("HELD_FIFO", &fifos[1].path).env("HELD_SECRET", &roots[1]);
    command.uid(UID).gid(UID).stdout(Stdio::piped());
    let mut stranger = Killed(command.spawn().expect("it starts"));
    let mut said = stranger.0.stdout.take().expect("piped");
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("@ ready") {
        let mut more = [0; 256];
        let count = said.read(&mut more).expect("it speaks");
        assert!(count > 0, "{}", String::from_utf8_lossy(&heard));
        heard.extend(&more[..count]);
    }
    // Created last: a process that makes a recorder also searches its own folder.
    let inside = Fifo::at(theirs.join("fifo.rec"));

    let job = format!("{:016x}", job());
    let output = runtime.path().join("out").to_string_lossy().into_owned();
    let mut texts = String::new();
    for words in all_verbs(&job, &output) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        texts += &inspect(runtime.path(), &words).text;
    }
    texts += &attach(runtime.path(), &job, Duration::from_secs(2)).0;
    for path in [theirs.clone(), theirs.join("link.rec"), theirs.join("fifo.rec")] {
        texts += &inspect(runtime.path(), &["open", &path.to_string_lossy()]).text;
    }
    let text = inspect(runtime.path(), &["ps"]).text;
    inspect(runtime.path(), &["ps", "--clean"]);

    drop(stranger);
    let _ = said.read_to_end(&mut heard);
    let heard = String::from_utf8_lossy(&heard).into_owned();
    let connected: Vec<&str> =
        heard.lines().filter_map(|line| line.split_once("@ connected ")).map(|(_, uid)| uid).collect();
    assert!(!connected.is_empty() && connected.iter().all(|uid| *uid == UID.to_string()), "{connected:?}");
    assert!(listener.accept().is_err(), "root's socket heard of root's inspector");
    let opened: Vec<String> = fifos
        .into_iter()
        .chain([inside])
        .filter_map(|fifo| {
            let path = fifo.path.display().to_string();
            fifo.was_opened().then_some(path)
        })
        .collect();
    assert!(opened.is_empty(), "{opened:?} were opened");
    let mut events = [0; 256];
    let read = rustix::io::read(&watch, &mut events);
    assert_eq!(read.err(), Some(rustix::io::Errno::AGAIN), "a file outside the folder was read");
    // A process of another test, which runs in parallel, may be seen as well.
    let folder = runtime.path().to_string_lossy();
    let rows = text.lines().filter(|line| line.contains(&job) && line.contains(&*folder)).count();
    assert_eq!(rows, 3, "what lies in the folder is read: {text}\n{texts}");
    assert!(!theirs.join("100-1-1.rec").exists() && theirs.join("200-1-1.rec").exists());
    assert!(root_socket.exists() && roots[0].exists());
    assert!(!texts.contains("step\n7"), "a tag made a line: {texts}");
}

#[test]
fn more_recorders_than_descriptors_are_read_one_after_the_other() {
    let (made, runtime) = (folder(), folder());
    let bytes = recorder(made.path(), "dp", Path::new(""), [Path::new("/a.rec"), Path::new("/b.rec")]);
    let own = runtime.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
    std::fs::create_dir(&own).expect("a folder");
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("it is ours");
    for n in 0..100 {
        std::fs::write(own.join(format!("{n}-1-1.rec")), &bytes).expect("a file");
    }
    let line = format!("ulimit -n 64; exec {} ps", program("ccl-inspect").display());
    let mut command = Command::new("sh");
    let took = measured::run(command.args(["-c", &line]).env("CCL_RUNTIME_DIR", runtime.path()));
    let folder = own.to_string_lossy();
    let rows = took.text.lines().filter(|line| line.contains(&*folder) && !line.contains("cannot be read"));
    assert_eq!(rows.count(), 100, "{}", took.text);
}

/// Root removes nothing for a user who may not remove the files in the folder.
#[test]
fn what_is_cleaned_is_removed_as_its_owner() {
    let Some(_other) = OtherUser::for_test("what_is_cleaned_is_removed_as_its_owner") else { return };
    let (made, runtime) = (folder(), folder());
    let theirs = runtime.path().join(format!("ccl-{UID}"));
    std::fs::create_dir(&theirs).expect("a folder");
    let bytes = recorder(made.path(), "dp", Path::new(""), [Path::new("/a.rec"), Path::new("/b.rec")]);
    let dead = theirs.join("1-1-1.rec");
    std::fs::write(&dead, &bytes).expect("a file");
    for path in [&dead, &theirs] {
        chown(path, Some(UID), Some(UID)).expect("root may");
    }
    let set = |mode| std::fs::set_permissions(&theirs, PermissionsExt::from_mode(mode)).expect("root may");
    set(0o500);
    let text = inspect(runtime.path(), &["ps", "--clean"]).text;
    assert!(text.contains("1-1-1.rec: kept: ") && dead.exists(), "{text}");
    set(0o700);
    let text = inspect(runtime.path(), &["ps", "--clean"]).text;
    assert!(text.contains("1-1-1.rec: removed") && !dead.exists(), "{text}");
}

#[test]
fn names_of_files_forge_no_lines_and_steer_no_terminal() {
    let runtime = folder();
    let own = runtime.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
    std::fs::create_dir(&own).expect("a folder");
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("it is ours");
    std::fs::write(own.join("1-1-1\nAWAITED rank 9\u{1b}[2J\u{202e}.rec"), b"none").expect("a file");
    let folder = own.to_string_lossy().into_owned();
    for words in [&["ps"][..], &["snapshot", "0000000000000099"], &["open", &folder]] {
        let text = inspect(runtime.path(), words).text;
        assert!(text.contains("1-1-1\\nAWAITED rank 9\\u{1b}[2J\\u{202e}.rec"), "{words:?}: {text}");
        assert!(!text.lines().any(|line| line.starts_with("BLOCKED ON")), "{words:?}: {text}");
    }
}

/// A recorder of another user that names a file in a folder of root.
#[test]
fn a_recorder_leads_to_none_of_another_user() {
    let Some(_other) = OtherUser::for_test("a_recorder_leads_to_none_of_another_user") else { return };
    let (made, runtime, bait) = (folder(), folder(), folder());
    let (theirs, roots) = (runtime.path().join(format!("ccl-{UID}")), bait.path().join("ccl-0"));
    for path in [&theirs, &roots] {
        std::fs::create_dir(path).expect("a folder");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).expect("it is ours");
    }
    let named = roots.join("70-1-1.rec");
    let bytes = recorder(made.path(), "dp", Path::new(""), [&named, Path::new("/none.rec")]);
    // The named file describes rank 1 of the same job.
    let mut other = bytes.clone();
    let at = (512..other.len() / 8).find(|at| word(&other, *at) == 3 << 32).expect("rank 0 of three");
    set(&mut other, at, 3 << 32 | 1);
    set(&mut other, at + 1, 1);
    std::fs::write(&named, &other).expect("a file");
    let liar = theirs.join("1-1-1.rec");
    std::fs::write(&liar, &bytes).expect("a file");
    for path in [&liar, &theirs] {
        chown(path, Some(UID), Some(UID)).expect("root may");
    }
    let text = inspect(runtime.path(), &["snapshot", &format!("{:016x}", job())]).text;
    assert!(text.contains("is of another user than who names it"), "{text}");
}

/// A recorder of another user that claims one more rank of root's job.
///
/// That rank would then block others.
#[test]
fn a_job_of_root_is_told_of_by_no_other_user() {
    let Some(_other) = OtherUser::for_test("a_job_of_root_is_told_of_by_no_other_user") else { return };
    let (made, runtime) = (folder(), folder());
    let [own, theirs] = [0, UID].map(|uid| runtime.path().join(format!("ccl-{uid}")));
    let bytes = recorder(made.path(), "dp", Path::new(""), [Path::new("/a.rec"), Path::new("/b.rec")]);
    let mut other = bytes.clone();
    retell(&mut other, nobody(), nobody() - 1);
    let at = (512..other.len() / 8).find(|at| word(&other, *at) == 3 << 32).expect("rank 0 of three");
    set(&mut other, at, 9 << 32 | 5);
    set(&mut other, at + 1, 5);
    for (folder, uid, bytes) in [(&own, 0, &bytes), (&theirs, UID, &other)] {
        std::fs::create_dir(folder).expect("a folder");
        std::fs::write(folder.join("1-1-1.rec"), bytes).expect("a file");
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).expect("root may");
        for path in [folder, &folder.join("1-1-1.rec")] {
            chown(path, Some(uid), Some(uid)).expect("root may");
        }
    }
    let job = format!("{:016x}", job());
    let text = inspect(runtime.path(), &["snapshot", &job]).text;
    assert!(text.contains("1 of 3 ranks read"), "{text}");
    let left_out = format!("1 recorder of user {UID} names this job too: left out");
    assert!(text.contains(&left_out), "{text}");
    // Both are listed, each with its user.
    let text = inspect(runtime.path(), &["ps"]).text;
    for (uid, folder) in [(0, &own), (UID, &theirs)] {
        let is_its = |line: &&str| {
            let user = line.split_whitespace().nth(3);
            user == Some(&uid.to_string()) && line.contains(&*folder.to_string_lossy())
        };
        assert_eq!(text.lines().filter(is_its).count(), 1, "{text}");
    }
}

/// Files of the largest size that is read, almost empty.
#[test]
fn very_many_large_files_of_another_user_are_not_read() {
    let Some(_other) = OtherUser::for_test("very_many_large_files_of_another_user_are_not_read") else {
        return;
    };
    let (made, runtime) = (folder(), folder());
    let theirs = runtime.path().join(format!("ccl-{UID}"));
    std::fs::create_dir(&theirs).expect("a folder");
    let bytes = recorder(made.path(), "dp", Path::new(""), [Path::new("/a.rec"), Path::new("/b.rec")]);
    for n in 0..1000 {
        let path = theirs.join(format!("{n}-1-1.rec"));
        let mut file = std::fs::File::create(&path).expect("a file");
        file.write_all(&bytes[..64 << 10]).and_then(|()| file.set_len(16 << 20)).expect("there is room");
        chown(&path, Some(UID), Some(UID)).expect("root may");
    }
    chown(&theirs, Some(UID), Some(UID)).expect("root may");
    std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o700)).expect("root may");
    for words in [&["ps"][..], &["snapshot"], &["dump", "-o", "out.tar.zst"]] {
        let took = inspect(runtime.path(), words);
        is_cheap(&words.join(" "), &took);
    }
    let text = inspect(runtime.path(), &["ps"]).text;
    assert_eq!(text.matches("are larger than 1024 MiB in all").count(), 1000 - 64, "{text}");
}

/// The number of repetitions: few in CI.
fn size() -> usize {
    if is_long() { 400 } else { 24 }
}

/// Sets the word at `at` of a recorder.
fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
}

#[test]
fn lying_recorders_and_dumps_cost_little_in_every_verb() {
    let (made, runtime) = (folder(), folder());
    let whole = recorder(made.path(), "dp", Path::new(""), [Path::new("/a.rec"), Path::new("/b.rec")]);
    let own = runtime.path().join(format!("ccl-{}", rustix::process::geteuid().as_raw()));
    std::fs::create_dir(&own).expect("a folder");
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("it is ours");
    let write = |name: &str, bytes: &[u8]| std::fs::write(own.join(name), bytes).expect("a file");
    // The largest number of ranks: the half word after rank 0, wherever it is three.
    let mut crowd = whole.clone();
    for at in 512..whole.len() / 8 {
        if word(&whole, at) == 3 << 32 {
            set(&mut crowd, at, u64::from(u32::MAX) << 32);
        }
    }
    assert_ne!(crowd, whole);
    write("1-1-1.rec", &crowd);
    let mut seed = Seed(7);
    for n in 0..size() {
        let mut bytes = whole.clone();
        for _ in 0..=seed.below(40) {
            // The header and the directory lead to everything; half of the changes are made there.
            let most = if seed.below(2) == 0 { 1024 } else { bytes.len() / 8 };
            let value = [0, u64::MAX, 1 << 32, seed.bits(), u64::from(u32::MAX)][seed.below(5) as usize];
            set(&mut bytes, 1 + seed.place(most - 1), value);
        }
        if seed.below(4) == 0 {
            bytes.truncate(seed.below(bytes.len() as u64) as usize);
        }
        write(&format!("{}-1-1.rec", n + 2), &bytes);
    }
    let job = format!("{:016x}", job());
    let output = runtime.path().join("out").to_string_lossy().into_owned();
    let mut worst = (Duration::ZERO, 0);
    let mut check = |words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let took = inspect(runtime.path(), &words);
        is_cheap(&words.join(" "), &took);
        worst = (worst.0.max(took.took), worst.1.max(took.peak_bytes));
    };
    all_verbs(&job, &output).iter().for_each(|words| check(words));
    let (_, peak) = attach(runtime.path(), &job, Duration::from_secs(3));
    assert!(peak < MOST_BYTES, "attach took {} MiB", peak >> 20);
    // Each file by itself, and as a changed dump.
    let dump = std::fs::read(format!("{output}.tar.zst")).expect("it was dumped");
    for n in 0..size() {
        check(&["open".into(), own.join(format!("{}-1-1.rec", n + 1)).to_string_lossy().into_owned()]);
        let mut bytes = dump.clone();
        for _ in 0..=seed.below(6) {
            let at = seed.place(bytes.len());
            bytes[at] = seed.bits() as u8;
        }
        let path = runtime.path().join("changed.tar.zst");
        std::fs::write(&path, &bytes).expect("a file");
        check(&["open".into(), path.to_string_lossy().into_owned()]);
    }
    println!("at most {:?} and {} MiB; attach {} MiB", worst.0, worst.1 >> 20, peak >> 20);
}

//! Clients of all kinds at the control socket: ours, `nc`, older ones, newer ones, slow ones and
//! other users'.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;

use serde_json::{Value, json};

use super::*;
use crate::clock;
use crate::control::wire::Client;
use crate::recorder::{CommInfo, CommRow};
use crate::sys::reference::Reference;
use crate::types::Rank;

mod bounds;
mod gather;

const PATIENT: Duration = Duration::from_secs(10);

struct Process {
    _folder: tempfile::TempDir,
    server: Server,
    recorder: Arc<Recorder>,
    row: CommRow,
}

fn row(recorder: &Arc<Recorder>, id: u64) -> CommRow {
    let info =
        CommInfo { id: CommId(id), job: JobId(0x2a), name: "dp", rank: Rank(1), nranks: 4, world: Rank(1) };
    recorder.comm(info)
}

fn process(settings: &Settings) -> Process {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::heap();
    let row = row(&recorder, 0xc0);
    let server = Server::open(&folder.path().join("1-2-3.sock"), &recorder, settings).unwrap();
    Process { _folder: folder, server, recorder, row }
}

impl Process {
    fn nc(&self) -> Nc {
        Nc::to(self.server.path())
    }
    fn client(&self) -> Client {
        Client::connect_within(self.server.path(), PATIENT).unwrap()
    }
}

/// A client like `nc -U`: lines in and out.
struct Nc(BufReader<UnixStream>);

impl Nc {
    fn to(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        Self(BufReader::new(stream))
    }
    fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }
    /// The next line; `None` at the end.
    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        let count = self.0.read_line(&mut line).unwrap();
        (count > 0).then(|| serde_json::from_str(&line).unwrap())
    }
    fn ask(&mut self, line: &str) -> Value {
        self.say(format!("{line}\n"));
        self.hear().unwrap()
    }
}

fn until(mut look: impl FnMut() -> bool) {
    let deadline = clock::now().after(PATIENT);
    while !look() {
        assert!(clock::now() < deadline, "it did not happen");
        clock::sleep(Duration::from_millis(1));
    }
}

#[test]
fn nc_hears_a_hello_and_gets_answers() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    let hello = nc.hear().unwrap();
    assert_eq!(hello["ccl"], "control/1");
    assert_eq!(hello["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&hello["pid"], &hello["job"]), (&json!(std::process::id()), &json!("000000000000002a")));
    assert_eq!(
        hello["capabilities"],
        json!(["hello", "snapshot", "histograms", "dump", "level", "subscribe", "gather"])
    );
    let answer = nc.ask(r#"{"request":"snapshot","id":7}"#);
    assert_eq!(answer["id"], 7);
    assert_eq!(answer["snapshot"]["comms"][0]["id"], "00000000000000c0");
    assert_eq!(answer["snapshot"]["comms"][0]["nranks"], 4);
    assert_eq!(nc.ask(r#"{"request":"hello"}"#)["hello"], hello);
    let dump = &nc.ask(r#"{"request":"dump","id":8}"#)["dump"];
    assert_eq!(dump["snapshot"]["comms"][0]["name"], "dp");
    assert!(dump["rings"].is_array() && dump["histograms"].is_array());
}

#[test]
fn lines_come_in_pieces_in_bunches_and_without_an_end() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    nc.hear();
    for piece in [r#"{"requ"#, r#"est":"hel"#, r#"lo","id":1}"#, "\n\n\r\n"] {
        nc.say(piece);
        clock::sleep(Duration::from_millis(2));
    }
    assert_eq!(nc.hear().unwrap()["id"], 1);
    let bunch: String = (2..102).map(|id| format!("{{\"request\":\"hello\",\"id\":{id}}}\n")).collect();
    nc.say(bunch);
    for id in 2..102 {
        assert_eq!(nc.hear().unwrap()["id"], id);
    }
    nc.say(r#"{"request":"hello","id":102}"#);
    nc.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(nc.hear().unwrap()["id"], 102);
    assert_eq!(nc.hear(), None);
}

#[test]
fn garbage_gets_an_error_and_the_conversation_goes_on() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    nc.hear();
    let check = |nc: &mut Nc, line: &[u8], kind: &str| {
        nc.say(line);
        nc.say("\n");
        assert_eq!(nc.hear().unwrap()["error"]["kind"], kind, "{}", line.escape_ascii());
    };
    check(&mut nc, b"GET / HTTP/1.1", "usage");
    check(&mut nc, b"\xff\xfe\0", "usage");
    check(&mut nc, b"7", "usage");
    check(&mut nc, b"{}", "usage");
    check(&mut nc, br#"{"request":7}"#, "usage");
    check(&mut nc, br#"{"request":"level","level":"high"}"#, "usage");
    check(&mut nc, br#"{"request":"level","level":4}"#, "usage");
    check(&mut nc, br#"{"request":"level","level":2,"comm":"0000000000000bad"}"#, "usage");
    check(&mut nc, br#"{"request":"level","level":2,"comm":"not hex"}"#, "usage");
    check(&mut nc, br#"{"request":"levitate"}"#, "unknown");
    check(&mut nc, "[".repeat(60_000).as_bytes(), "usage");
    assert_eq!(nc.ask(r#"{"request":"hello","id":1}"#)["id"], 1);
}

#[test]
fn a_line_without_end_is_cut_off() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    nc.hear();
    let longest = format!("{{\"request\":\"hello\",\"id\":1,\"pad\":\"{}\"}}", "x".repeat(MAX_REQUEST - 60));
    assert_eq!(nc.ask(&longest)["id"], 1);
    // More than is read: the server may close before all of it is taken.
    let _ = nc.0.get_mut().write_all(&vec![b'x'; MAX_REQUEST + 5000]);
    let mut rest = String::new();
    let _ = nc.0.read_to_string(&mut rest);
    assert!(rest.is_empty() || rest.contains("a request has at most 65536 bytes"), "{rest}");
}

#[test]
fn older_and_newer_sides_understand_each_other() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    nc.hear();
    let newer = r#"{"request":"snapshot","id":1,"depth":{"levels":[1,2]},"since":"yesterday"}"#;
    assert_eq!(nc.ask(newer)["id"], 1);
    // The fields of an answer that an older client knows.
    #[derive(serde::Deserialize)]
    struct Older {
        id: u64,
        snapshot: OlderSnapshot,
    }
    #[derive(serde::Deserialize)]
    struct OlderSnapshot {
        pid: u32,
    }
    nc.say("{\"request\":\"snapshot\",\"id\":2}\n");
    let mut line = String::new();
    nc.0.read_line(&mut line).unwrap();
    let older: Older = serde_json::from_str(&line).unwrap();
    assert_eq!((older.id, older.snapshot.pid), (2, std::process::id()));
    // This client with other servers: one that knows less, and one that knows more and sends it
    // unasked.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"ccl\":\"control/1\",\"mood\":\"new\",\"capabilities\":[\"sing\"]}\n").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        lines.next().unwrap().unwrap();
        let news =
            "{\"news\":\"a rank left\"}\n{\"id\":1,\"took_ns\":5,\"snapshot\":{\"pid\":71,\"colour\":3}}\n";
        stream.write_all(news.as_bytes()).unwrap();
        lines.next().unwrap().unwrap();
        stream
            .write_all(b"{\"id\":2,\"error\":{\"kind\":\"unknown\",\"what\":\"no level here\"}}\n")
            .unwrap();
    });
    let mut client = Client::connect_within(&path, PATIENT).unwrap();
    assert!(client.hello().can("sing") && !client.hello().can("level"));
    assert_eq!((client.hello().pid, client.snapshot().unwrap().pid), (0, 71));
    let error = client.level(None, 2).unwrap_err();
    assert_eq!(
        (error.kind, error.what.as_str()),
        (ErrorKind::Unavailable, "the process refused: no level here")
    );
    server.join().unwrap();
    assert_eq!(client.snapshot().unwrap_err().kind, ErrorKind::Unavailable);
}

#[test]
fn a_client_does_not_wait_for_the_silent_and_names_who_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sock");
    let refused = Client::connect(&path).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);
    assert!(refused.what.contains("x.sock"), "{refused}");
    let listener = UnixListener::bind(&path).unwrap();
    let began = clock::now();
    assert_eq!(Client::connect(&path).unwrap_err().kind, ErrorKind::Timeout);
    let waited = clock::now().since(began);
    assert!((Duration::from_millis(250)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
    drop(listener.accept().unwrap());
    let check = |said: &'static [u8], expect: &str| {
        let listener = listener.try_clone().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(said);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0; 8]);
        });
        let error = Client::connect_within(&path, PATIENT).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.what.contains(expect), "{error}");
        server.join().unwrap();
    };
    check(b"SSH-2.0-OpenSSH\r\n", "does not speak");
    check(b"{\"ccl\":\"control/2\"}\n", "does not speak");
    check(b"", "closed");
    check(b"{\"ccl\":", "closed");
    static ENDLESS: [u8; MAX_ANSWER + (64 << 10)] = [b' '; MAX_ANSWER + (64 << 10)];
    check(&ENDLESS, "without end");
}

#[test]
fn updates_that_add_up_to_more_than_a_recorder_holds_end_the_telling() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"ccl\":\"control/1\"}\n").unwrap();
        let mut asked = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut asked).unwrap();
        // Each is small enough, and no row of an earlier update is removed.
        for first in [0, 900] {
            let row = |id: u32| json!({"id": format!("{id:016x}")});
            let rows: Vec<Value> = (first..first + 900).map(row).collect();
            let line = json!({"id": 1, "update": {"process": {"comms": rows}}});
            stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        // Until the client has left.
        let _ = stream.read(&mut [0; 8]);
    });
    let client = Client::connect_within(&path, PATIENT).unwrap();
    let mut telling = client.subscribe(Duration::from_millis(50)).unwrap();
    assert_eq!(telling.process().comms.len(), 900);
    let error = telling.next(PATIENT).unwrap_err();
    assert!(error.what.contains("more than a recorder holds"), "{error}");
    drop(telling);
    server.join().unwrap();
}

#[test]
fn a_level_is_a_lease_that_ends_with_the_client() {
    let process = process(&Settings::default());
    let other = row(&process.recorder, 0xc1);
    let levels = || [process.recorder.level(), process.row.level(), other.level()];
    assert_eq!(levels(), [1, 1, 1]);
    let (mut a, mut b) = (process.client(), process.client());
    assert_eq!(a.level(None, 2).unwrap(), 2);
    assert_eq!(levels(), [2, 2, 2]);
    assert_eq!(b.level(Some(CommId(0xc1)), 3).unwrap(), 3);
    assert_eq!(levels(), [2, 2, 3]);
    // A lease lowers nothing; a communicator made meanwhile begins with the level for all.
    assert_eq!(b.level(Some(CommId(0xc0)), 0).unwrap(), 2);
    let later = row(&process.recorder, 0xc2);
    assert_eq!(later.level(), 2);
    assert_eq!(b.level(Some(CommId(0xbad)), 3).unwrap_err().kind, ErrorKind::Usage);
    drop(a);
    until(|| levels() == [1, 1, 3] && later.level() == 1);
    // Given back without leaving.
    let give = Request { request: "level".into(), comm: Some(CommId(0xc1)), ..Request::default() };
    assert_eq!(b.ask(give).unwrap().level, Some(1));
    assert_eq!(levels(), [1, 1, 1]);
    b.level(None, 3).unwrap();
    drop(process.server);
    assert_eq!([process.recorder.level(), process.row.level()], [1, 1]);
}

#[test]
fn abort_needs_the_jobs_consent() {
    let denied = process(&Settings::default());
    let error = denied.client().abort(None, "enough").unwrap_err();
    assert!(error.what.contains("CCL_ALLOW_CONTROL"), "{error}");
    let mut settings = Settings::default();
    settings.set(Key::AllowControl, "1").unwrap();
    let process = process(&settings);
    let (told, hears) = mpsc::channel();
    let guard = |id: u64| {
        let told = told.clone();
        process.server.abortable(CommId(id), move |reason| told.send((id, reason.to_string())).unwrap())
    };
    let (_first, second) = (guard(1), guard(2));
    let mut client = process.client();
    assert!(client.hello().can("abort"));
    assert_eq!(client.abort(Some(CommId(1)), "enough").unwrap(), 1);
    assert_eq!(hears.recv().unwrap(), (1, "an inspector asked for it: enough".into()));
    assert_eq!(client.abort(Some(CommId(9)), "").unwrap(), 0);
    drop(second);
    assert_eq!(client.abort(None, "").unwrap(), 1);
    assert_eq!(hears.recv().unwrap(), (1, "an inspector asked for it".into()));
}

#[test]
fn one_client_too_many_hears_so_and_a_place_that_is_left_is_free() {
    let process = process(&Settings::default());
    let mut clients: Vec<Client> = (0..MAX_CLIENTS).map(|_| process.client()).collect();
    let error = Client::connect_within(process.server.path(), PATIENT).unwrap_err();
    assert!(error.what.contains("16 clients are attached already"), "{error}");
    clients.pop();
    until(|| Client::connect_within(process.server.path(), PATIENT).is_ok());
    clients[0].snapshot().unwrap();
}

#[test]
fn other_users_are_turned_away() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: other_users_are_turned_away: needs root, to act as another user");
    }
    let process = process(&Settings::default());
    // The folder is opened to all, so that the second check is reached.
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(process.server.path().parent().unwrap(), 0o711);
    open(process.server.path(), 0o777);
    // `through` connects as the owner of the socket's file.
    let connect = |uid: u32| {
        std::os::unix::fs::chown(process.server.path(), Some(uid), None).unwrap();
        Client::through(&Reference::to_itself(process.server.path()).unwrap(), process.server.path())
    };
    let why = [(1000, "only the user of this process and root"), (65534, "cannot tell apart")];
    for (uid, why) in why {
        let error = connect(uid).unwrap_err();
        assert!(error.what.contains(why), "{error}");
    }
    connect(0).unwrap();
}

#[test]
fn a_long_path_is_no_obstacle_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join("1-2-3.sock");
    let recorder = Recorder::heap();
    let server = Server::open(&path, &recorder, &Settings::default()).unwrap();
    assert_eq!(recorder.reader().snapshot().unwrap().control, path.to_string_lossy());
    let mut client = Client::connect_within(&path, PATIENT).unwrap();
    client.snapshot().unwrap();
    drop(server);
    assert_eq!(client.snapshot().unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(std::fs::read_dir(&deep).unwrap().count(), 0);
    assert_eq!(recorder.reader().snapshot().unwrap().control, "");
    let nowhere = folder.path().join("no such folder").join("x.sock");
    let error = Server::open(&nowhere, &recorder, &Settings::default()).unwrap_err();
    assert!(error.what.contains("no such folder"), "{error}");
}

#[test]
fn sockets_that_lost_their_process_are_swept_away() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = |name: &str| std::fs::write(at(name), b"").unwrap();
    // A socket whose listener is gone, one whose recorder is not locked, and a file that is not a
    // socket.
    drop(UnixListener::bind(at("1-0-1.sock")).unwrap());
    let unlocked = UnixListener::bind(at("1-0-2.sock")).unwrap();
    make("1-0-2.rec");
    make("notes.txt");
    // A memory listener of ranks in init, and a socket whose process was killed before it got its
    // name.
    let met = UnixListener::bind(at("1-0-2.7-0.link")).unwrap();
    drop(UnixListener::bind(at("1-0-2.new")).unwrap());
    // Live sockets: a listener without a recorder file, one of this process, and one whose recorder
    // another process locks.
    let alone = UnixListener::bind(at("1-0-3.sock")).unwrap();
    let ours = format!("{}-0-4", std::process::id());
    let own = UnixListener::bind(at(&format!("{ours}.sock"))).unwrap();
    make(&format!("{ours}.rec"));
    let mine = std::fs::File::options().write(true).open(at(&format!("{ours}.rec"))).unwrap();
    shared::lock_alive(&mine).unwrap();
    make("1-0-5.rec");
    let locked = UnixListener::bind(at("1-0-5.sock")).unwrap();
    // These refuse to connect, as all do while they are being made.
    drop(UnixListener::bind(at("1-0-5.7-0.link")).unwrap());
    drop(UnixListener::bind(at("1-0-5.new")).unwrap());
    let (mut ready, mut signal) = UnixStream::pair().unwrap();
    let recorder = std::fs::File::options().write(true).open(at("1-0-5.rec")).unwrap();
    let owner = crate::sys::process::fork(|| {
        let held = shared::lock_alive(&recorder).is_ok();
        let _ = signal.write_all(&[u8::from(held)]);
        clock::sleep(Duration::from_secs(60));
        0
    });
    let mut held = [0];
    ready.read_exact(&mut held).unwrap();
    assert_eq!(held, [1]);
    // A child that another test forked just now may still have to close its copy of the first
    // listener.
    let mut swept = 0;
    until(|| {
        swept += sweep(folder.path());
        swept == 4
    });
    let mut left: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".rec") && !name.ends_with(".txt"))
        .collect();
    left.sort();
    let mut expect: Vec<_> =
        ["1-0-3.sock", "1-0-5.sock", "1-0-5.7-0.link", "1-0-5.new"].map(String::from).into();
    expect.push(format!("{ours}.sock"));
    expect.sort();
    assert_eq!(left, expect);
    crate::sys::process::kill(owner);
    crate::sys::process::wait(owner);
    assert_eq!(sweep(folder.path()), 3);
    // The sweep must not have released this process's own lock, which only another process can see.
    let sees = crate::sys::process::fork(|| {
        let recorder = std::fs::File::open(at(&format!("{ours}.rec"))).map(|file| shared::owner(&file));
        i32::from(!recorder.is_ok_and(|owner| owner.is_ok_and(|owner| owner != shared::Owner::None)))
    });
    assert_eq!(crate::sys::process::wait(sees), Some(0));
    drop((unlocked, alone, own, locked, met, mine));
}

#[test]
fn a_subscriber_hears_what_changed_and_only_that() {
    let process = process(&Settings::default());
    let mut nc = process.nc();
    assert_eq!(nc.hear().unwrap()["ccl"], PROTOCOL);
    let first = nc.ask(r#"{"request":"subscribe","id":8,"every_ms":50}"#);
    let rows = |update: &Value| update["update"]["process"]["comms"].as_array().unwrap().len();
    assert_eq!((&first["id"], rows(&first)), (&json!(8), 1));
    assert_eq!(rows(&nc.hear().unwrap()), 0);
    // With a second client, and a change.
    let mut ours = process.client().subscribe(Duration::from_millis(50)).unwrap();
    assert_eq!(ours.process().comms[0].op.called, 0);
    let called = crate::collective::Descriptor {
        kind: crate::types::CollKind::Barrier,
        dtype: crate::types::Datatype::U8,
        op: crate::types::ReduceOp::Sum,
        root: Rank(0),
        count: 0,
        seq: 7,
        plan: 0,
        uneven: false,
    };
    process.row.called(&called, None, clock::raw());
    until(|| ours.next(PATIENT).unwrap().comms[0].op.called == 7);
    until(|| rows(&nc.hear().unwrap()) == 1);
    assert_eq!(ours.skipped(), 0);
    // Other requests are answered in between, and an interval of 0 ends the subscription.
    nc.say("{\"request\":\"subscribe\",\"id\":9,\"every_ms\":0}\n{\"request\":\"hello\",\"id\":10}\n");
    until(|| nc.hear().unwrap()["id"] == 10);
    nc.say("{\"request\":\"hello\",\"id\":11}\n");
    assert_eq!(nc.hear().unwrap()["id"], 11);
    drop(process);
    assert!(ours.next(PATIENT).is_err());
}

#[test]
fn a_subscriber_who_does_not_take_its_updates_gets_fewer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _listener = UnixListener::bind(&path).unwrap();
    let here = unix::connect(Name::Path(&path)).unwrap();
    let ms = |n: u64| Ns(n * 1_000_000);
    let mut session = Session::new(here, b"hello\n".to_vec(), true, ms(0));
    let every = Duration::from_millis(50);
    session.subscribe(Some(Subscription::new(1, every, ProcessSnapshot::default(), ms(3))));
    assert!(session.takes_update(ms(49), true).is_none());
    // Its greeting is not taken yet.
    assert!(session.takes_update(ms(60), true).is_none());
    // All subscribers of a host get updates of the same times.
    assert_eq!(session.due(), Some(ms(100)));
    assert_eq!(session.turn(ms(70), &mut |_, _| Vec::new()), Fate::Stays);
    assert_eq!(session.takes_update(ms(100), true).unwrap().skipped, 1);
}

//! The bounds on clients: seats, time and turns. The test turns the task itself, at times of its
//! own.

use super::super::super::session::TAKE_WITHIN;
use super::super::super::share::AT_ONCE;
use super::*;

/// A task that the test turns itself, at times of its own, and the path of its socket.
fn turned() -> (Serve, tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sock");
    let shared = Shared {
        recorder: Recorder::heap(),
        may_abort: false,
        aborts: Mutex::default(),
        next_abort: AtomicU64::new(0),
        task: Mutex::default(),
    };
    let socket = unix::listen(Name::Path(&path)).unwrap();
    (Serve::new(socket, Arc::new(shared)), folder, path)
}

/// Turns it until it has done what it can at this time.
fn settle(serve: &mut Serve, now: Ns) {
    while matches!(serve.turn(now), Turn::Again(Some(at)) if at <= now) {}
}

#[test]
fn a_slow_reader_is_let_go_and_holds_up_nobody() {
    let (mut serve, _folder, path) = turned();
    let mut slow = UnixStream::connect(&path).unwrap();
    slow.set_nonblocking(true).unwrap();
    let mut now = Ns(1_000_000_000);
    // The client sends requests and reads nothing: soon the server stops reading from it.
    let mut asked = 0;
    loop {
        let more = slow.write(b"{\"request\":\"snapshot\"}\n");
        serve.turn(now);
        match more {
            Ok(_) => asked += 1,
            Err(_) => break,
        }
        assert!(asked < 100_000, "input is bounded");
    }
    assert!(serve.sessions[0].deadline() == Some(now.after(TAKE_WITHIN)));
    let mut other = Nc::to(&path);
    other.say("{\"request\":\"hello\",\"id\":5}\n");
    now = now.after(Duration::from_secs(3));
    settle(&mut serve, now);
    other.hear();
    assert_eq!(other.hear().unwrap()["id"], 5);
    // It takes a little, which extends its time.
    let mut taken = vec![0; 1 << 16];
    assert!(slow.read(&mut taken).unwrap() > 0);
    settle(&mut serve, now);
    now = now.after(Duration::from_secs(3));
    settle(&mut serve, now);
    assert_eq!(serve.sessions.len(), 2);
    now = now.after(Duration::from_secs(3));
    settle(&mut serve, now);
    assert_eq!(serve.sessions.len(), 1);
    slow.set_nonblocking(false).unwrap();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(rest.len() < 4 << 20);
}

#[test]
fn a_greedy_client_gets_its_share_of_a_turn_only() {
    let (mut serve, _folder, path) = turned();
    let mut greedy = Nc::to(&path);
    let bunch = "{\"request\":\"hello\"}\n".repeat(100);
    greedy.say(bunch);
    let now = Ns(1_000_000_000);
    assert_eq!(serve.turn(now), Turn::Again(Some(now)));
    let mut turns = 1;
    while serve.turn(now) == Turn::Again(Some(now)) {
        turns += 1;
    }
    assert!(turns > 5, "{turns}");
    assert!((0..101).all(|_| greedy.hear().is_some()));
}

#[test]
fn a_crowd_at_the_door_is_taken_in_turns() {
    let (mut serve, _folder, path) = turned();
    let mut crowd: Vec<UnixStream> =
        (0..ACCEPTS_PER_TURN + 5).map(|_| UnixStream::connect(&path).unwrap()).collect();
    crowd.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    let now = Ns(1_000_000_000);
    serve.turn(now);
    // A client that is not yet accepted gets nothing, not even a refusal.
    fn waits(client: &mut UnixStream) -> bool {
        client.read(&mut [0; 1]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    }
    assert!(crowd[ACCEPTS_PER_TURN..].iter_mut().all(waits));
    settle(&mut serve, now);
    assert!(!crowd[ACCEPTS_PER_TURN..].iter_mut().any(waits));
}

#[test]
fn who_asks_nothing_is_let_go_with_a_notice_and_who_waits_is_not() {
    let (mut serve, _folder, path) = turned();
    let mut now = Ns(1_000_000_000);
    let [mut idle, mut subscriber, mut holder] = [(); 3].map(|()| Nc::to(&path));
    subscriber.say("{\"request\":\"subscribe\",\"id\":1,\"every_ms\":60000}\n");
    holder.say("{\"request\":\"level\",\"level\":2}\n");
    // Not a request, however long it comes.
    idle.say("{\"request\":");
    settle(&mut serve, now);
    // The greeting, then an answer.
    for nc in [&mut idle, &mut subscriber, &mut holder] {
        nc.hear().unwrap();
    }
    for nc in [&mut subscriber, &mut holder] {
        nc.hear().unwrap();
    }
    now = now.after(ASK_WITHIN / 2);
    idle.say(" ");
    settle(&mut serve, now);
    assert_eq!(serve.sessions.len(), 3);
    now = now.after(ASK_WITHIN / 2);
    settle(&mut serve, now);
    assert_eq!(serve.sessions.len(), 2);
    let notice = idle.hear().unwrap();
    assert_eq!(notice["error"]["kind"], "idle");
    assert!(notice["error"]["what"].as_str().unwrap().contains("60 s"), "{notice}");
    assert!(idle.hear().is_none());
    now = now.after(10 * ASK_WITHIN);
    settle(&mut serve, now);
    assert_eq!(serve.sessions.len(), 2);
    // Without its lease it is like any other client.
    holder.say("{\"request\":\"level\"}\n");
    settle(&mut serve, now);
    holder.hear().unwrap();
    now = now.after(ASK_WITHIN);
    settle(&mut serve, now);
    assert_eq!(serve.sessions.len(), 1);
}

#[test]
fn clients_that_ask_without_end_have_their_share_of_a_processor_and_no_more() {
    let (mut serve, _folder, path) = turned();
    let mut clients: Vec<UnixStream> =
        (0..MAX_CLIENTS).map(|_| UnixStream::connect(&path).unwrap()).collect();
    clients.iter().for_each(|client| client.set_nonblocking(true).unwrap());
    let asks = "{\"request\":\"dump\"}\n".repeat(50);
    let mut taken = vec![0; 1 << 20];
    let (began, mut now) = (Ns(1_000_000_000), Ns(1_000_000_000));
    let mut used = Duration::ZERO;
    let seconds = |n: u64| Duration::from_secs(n);
    while now.since(began) < seconds(4) {
        for client in &mut clients {
            let _ = client.write(asks.as_bytes());
            while client.read(&mut taken).is_ok_and(|n| n > 0) {}
        }
        let before = clock::thread_time();
        let turn = serve.turn(now);
        used += clock::thread_time() - before;
        // Other tasks have a turn: no client is served twice before.
        assert!(clock::thread_time() - before < Duration::from_millis(200), "one turn took so long");
        now = match turn {
            Turn::Again(Some(at)) if at > now => at.min(now.after(Duration::from_millis(10))),
            _ => now.after(Duration::from_millis(1)),
        };
        let most = AT_ONCE + now.since(began) / 20 + Duration::from_millis(100);
        assert!(used <= most, "{used:?} in {:?}", now.since(began));
    }
    assert!(used > AT_ONCE, "they were served: {used:?}");
}

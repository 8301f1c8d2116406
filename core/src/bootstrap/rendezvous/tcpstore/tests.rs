//! A small TCPStore server that follows the same protocol as the client, and ranks that meet
//! through it. The server can imitate two behaviours in which real servers differ.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::*;
use crate::bootstrap::auth::Key;
use crate::bootstrap::id::JobSecret;
use crate::config::Settings;

const NO_SECRET: JobSecret = JobSecret { key: Key::NONE, is_weak: false };

/// How the server behaves where real servers differ.
#[derive(Clone, Copy, Default)]
struct Temper {
    /// It sends its answers byte by byte.
    dribbles: bool,
    /// The key arrives at the moment the wait is cancelled: the server answers 0, then 1.
    loses_race: bool,
}

type Keys = Arc<(Mutex<BTreeMap<String, Vec<u8>>>, Condvar)>;

struct Server {
    address: SocketAddr,
    keys: Keys,
}

impl Server {
    fn start(temper: Temper) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let keys = Keys::default();
        let shared = Arc::clone(&keys);
        // This thread ends with the test process; each connection's thread ends with its client.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let keys = Arc::clone(&shared);
                std::thread::spawn(move || drop(serve(stream.unwrap(), &keys, temper)));
            }
        });
        Self { address, keys }
    }
}

fn serve(mut stream: TcpStream, keys: &Keys, temper: Temper) -> std::io::Result<()> {
    // libuv's server expects the greeting in one piece, so this one does too.
    let mut greeting = [0; 64];
    let count = stream.peek(&mut greeting)?;
    assert!(count >= 5 && greeting[..5] == VALIDATE, "{:?}", &greeting[..count]);
    stream.read_exact(&mut greeting[..5])?;
    let mut waiting: Option<String> = None;
    loop {
        let mut op = [0];
        if let Some(key) = &waiting {
            // During a wait, either the key arrives or the client cancels.
            stream.set_read_timeout(Some(Duration::from_millis(5)))?;
            match stream.read(&mut op) {
                Ok(0) => return Ok(()),
                Ok(_) if op == [CANCEL_WAIT] => {
                    if temper.loses_race {
                        answer(&mut stream, &[0], temper)?;
                    }
                    answer(&mut stream, &[1], temper)?;
                    waiting = None;
                }
                Ok(_) => panic!("operation {op:?} during a wait"),
                Err(_) if keys.0.lock().unwrap().contains_key(key) => {
                    answer(&mut stream, &[0], temper)?;
                    waiting = None;
                }
                Err(_) => {}
            }
            stream.set_read_timeout(None)?;
            continue;
        }
        stream.read_exact(&mut op)?;
        match op[0] {
            SET => {
                let (key, value) = (text(&mut stream)?, text(&mut stream)?);
                keys.0.lock().unwrap().insert(key, value.into_bytes());
                keys.1.notify_all();
            }
            GET => {
                let key = text(&mut stream)?;
                let value = keys.0.lock().unwrap().get(&key).cloned().unwrap_or_default();
                answer(&mut stream, &[&(value.len() as u64).to_le_bytes()[..], &value].concat(), temper)?;
            }
            CHECK | WAIT => {
                assert_eq!(number(&mut stream)?, 1);
                let key = text(&mut stream)?;
                let there = keys.0.lock().unwrap().contains_key(&key);
                match (op[0], there) {
                    (CHECK, _) => answer(&mut stream, &[u8::from(!there)], temper)?,
                    (_, true) => answer(&mut stream, &[0], temper)?,
                    (_, false) => waiting = Some(key),
                }
            }
            other => panic!("operation {other}"),
        }
    }
}

fn number(stream: &mut TcpStream) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn text(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = vec![0; number(stream)? as usize];
    stream.read_exact(&mut bytes)?;
    Ok(String::from_utf8(bytes).unwrap())
}

fn answer(stream: &mut TcpStream, bytes: &[u8], temper: Temper) -> std::io::Result<()> {
    if !temper.dribbles {
        return stream.write_all(bytes);
    }
    stream.set_nodelay(true)?;
    for byte in bytes {
        stream.write_all(&[*byte])?;
        std::thread::yield_now();
    }
    Ok(())
}

fn soon(ms: u64) -> Ns {
    clock::now().after(Duration::from_millis(ms))
}

fn meet_as(server: &Server, rank: u32, deadline: Ns) -> Result<(UniqueId, Option<RootHandle>)> {
    let place = Assignment { rank: Rank(rank), nranks: 3 };
    meet(
        &Address::Literal(server.address),
        "/ccl/run/0/3/0",
        place,
        (&Settings::default(), &NO_SECRET),
        deadline,
    )
}

#[test]
fn an_id_goes_from_rank_0_to_the_others_though_an_old_one_is_there() {
    for dribbles in [false, true] {
        let server = Server::start(Temper { dribbles, ..Temper::default() });
        let known = (&Settings::default(), &NO_SECRET);
        let (stale, _, root) = make(3, "127.0.0.1".parse().ok(), known, |root| root).unwrap();
        drop(root);
        server.keys.0.lock().unwrap().insert("/ccl/run/0/3/0".into(), stale.to_hex().into_bytes());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| meet_as(&server, 2, soon(10_000)).unwrap().0);
            clock::sleep(Duration::from_millis(100));
            let (id, root) = meet_as(&server, 0, soon(10_000)).unwrap();
            assert_eq!(meet_as(&server, 1, soon(10_000)).unwrap().0, id);
            assert_eq!(late.join().unwrap(), id);
            assert_eq!((id.nranks, root.unwrap().address()), (3, id.root));
        });
    }
}

#[test]
fn a_key_that_never_comes_is_a_timeout_that_names_it_and_rank_0() {
    for loses_race in [false, true] {
        let server = Server::start(Temper { loses_race, ..Temper::default() });
        let error = meet_as(&server, 1, soon(200)).unwrap_err();
        if loses_race {
            // The store reports the key and then has no value: no id, and no time is left.
            assert!(matches!(error.kind, ErrorKind::Timeout), "{error}");
            continue;
        }
        assert_eq!((error.kind, error.at.peer), (ErrorKind::Timeout, Some(Rank(0))));
        assert!(error.what.contains("/ccl/run/0/3/0") && error.what.contains("nothing was there"), "{error}");
    }
}

#[test]
fn a_store_that_is_none_is_an_error_not_a_hang() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let closing = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let error = Store::connect(address, soon(500)).and_then(|mut store| store.wait("/ccl/x")).unwrap_err();
    closing.join().unwrap();
    assert!(error.what.contains(&address.to_string()), "{error}");
    let error = Store::connect(address, soon(100)).err().unwrap();
    assert!(error.what.contains("connecting to the TCPStore"), "{error}");
    // A value longer than an id is refused before it is read.
    let server = Server::start(Temper::default());
    server.keys.0.lock().unwrap().insert("/ccl/x".into(), vec![b'0'; 100_000]);
    let error = Store::connect(server.address, soon(1000)).unwrap().get("/ccl/x").unwrap_err();
    assert!(error.what.contains("100000 bytes"), "{error}");
}

#[test]
fn whoever_reads_the_store_but_does_not_know_the_secret_does_not_meet() {
    let server = Server::start(Temper::default());
    let port = server.address.port().to_string();
    let meet = |rank: &str, secret: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", port.as_str()),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("CCL_JOB_SECRET", secret),
        ];
        let given = variables.iter().filter(|(_, value)| !value.is_empty());
        let look = |name: &str| given.clone().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        let settings = Settings::read(&look, "").unwrap();
        let venue = crate::bootstrap::rendezvous::detect(&look, &settings).unwrap();
        crate::bootstrap::rendezvous::meet(&venue, &look, &settings, 0, soon(10_000))
    };
    let root = meet("0", "right").unwrap();
    for other in ["wrong", ""] {
        let error = meet("1", other).unwrap_err();
        assert!(error.to_string().contains("CCL_JOB_SECRET must be equal"), "{other:?}: {error}");
    }
    assert_eq!(meet("1", "right").unwrap().id, root.id);
}

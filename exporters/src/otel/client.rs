//! HTTP/1.1 over a socket, as much as OTLP needs: one connection that is kept, requests with a deadline, and the truth about each: whether
//! it was answered, never left, or is in doubt. OpenTelemetry's ready-made clients bring a runtime; this one blocks the thread it is on.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ccl::clock::{self, Ns};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};

/// The most bytes of an answer's head, and of its body.
const MOST_HEAD: usize = 64 << 10;
const MOST_BODY: usize = 4 << 20;

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The collector cannot have it: it did not leave here whole.
    NotSent(String),
    /// It left whole, and no answer came.
    InDoubt(String),
    /// It was answered.
    Answered {
        status: u16,
        /// When to come again.
        retry_after: Option<Duration>,
        body: Vec<u8>,
    },
}

#[derive(Debug)]
struct State {
    connection: Option<TcpStream>,
    deadline: Ns,
    outcome: Option<Outcome>,
}

/// The client: one request at a time.
#[derive(Debug)]
pub(super) struct Client {
    state: Mutex<State>,
}

impl Client {
    pub(super) const fn new() -> Self {
        Self { state: Mutex::new(State { connection: None, deadline: Ns(0), outcome: None }) }
    }

    /// Gives the next request until `deadline`.
    pub(super) fn allow(&self, deadline: Ns) {
        let mut state = self.lock();
        state.deadline = deadline;
        state.outcome = None;
    }

    /// What became of the request since; `None` if none was made.
    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.lock().outcome.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut state = self.lock();
        let outcome = state.send(&request);
        let answer = match &outcome {
            Outcome::NotSent(why) | Outcome::InDoubt(why) => Err(why.clone().into()),
            Outcome::Answered { status, body, .. } => {
                Response::builder().status(*status).body(Bytes::from(body.clone())).map_err(Into::into)
            }
        };
        state.outcome = Some(outcome);
        answer
    }
}

impl State {
    fn send(&mut self, request: &Request<Bytes>) -> Outcome {
        let sent = self.connect(request).and_then(|stream| self.write(stream, request));
        let stream = match sent {
            Ok(stream) => stream,
            Err(why) => return Outcome::NotSent(why),
        };
        match self.read(&stream) {
            Err(why) => Outcome::InDoubt(why),
            Ok(answer) => {
                self.connection = answer.keeps.then_some(stream);
                let Answer { status, retry_after, body, .. } = answer;
                Outcome::Answered { status, retry_after, body }
            }
        }
    }

    /// The connection that is there, if it is still good, or a new one.
    fn connect(&mut self, request: &Request<Bytes>) -> Result<TcpStream, String> {
        if let Some(stream) = self.connection.take().filter(is_open) {
            return Ok(stream);
        }
        let uri = request.uri();
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let port = uri.port_u16().unwrap_or(80);
        let refuse = |e: std::io::Error| format!("connecting to {host}:{port}: {e}");
        let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
        for address in (host, port).to_socket_addrs().map_err(refuse)? {
            match TcpStream::connect_timeout(&address, self.left()?) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(refuse)?;
                    return Ok(stream);
                }
                Err(e) => last = e,
            }
        }
        Err(refuse(last))
    }

    /// Hands all of a request to the kernel. Of one that is cut short the collector cannot make anything.
    fn write(&self, mut stream: TcpStream, request: &Request<Bytes>) -> Result<TcpStream, String> {
        let uri = request.uri();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let mut message = format!(
            "{} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n",
            request.method(),
            request.body().len()
        )
        .into_bytes();
        for (name, value) in request.headers() {
            message.extend_from_slice(name.as_str().as_bytes());
            message.extend_from_slice(b": ");
            message.extend_from_slice(value.as_bytes());
            message.extend_from_slice(b"\r\n");
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(request.body());
        let mut rest = message.as_slice();
        while !rest.is_empty() {
            let left = self.left()?;
            let written = stream.set_write_timeout(Some(left)).and_then(|()| stream.write(rest));
            match written {
                Ok(0) => return Err("sending: the connection takes no more".into()),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("sending: {}", late(e))),
            }
        }
        Ok(stream)
    }

    fn read(&self, stream: &TcpStream) -> Result<Answer, String> {
        let mut input = Input { stream, state: self, bytes: Vec::new() };
        let head = input.head()?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().splitn(3, ' ');
        let (version, status) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let status = status.parse().map_err(|_| format!("an answer that is no HTTP: {head:?}"))?;
        let header = |name: &str| {
            let found = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
            let mut found = found.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name));
            found.next().map(|(_, value)| value.trim().to_ascii_lowercase())
        };
        let length = header("content-length").map(|length| length.parse::<usize>());
        let chunked = header("transfer-encoding").is_some_and(|how| how.contains("chunked"));
        let mut keeps =
            version == "HTTP/1.1" && header("connection").is_none_or(|word| !word.contains("close"));
        let body = match length {
            _ if chunked => input.chunks()?,
            _ if status == 204 || status == 304 => Vec::new(),
            Some(Ok(length)) => input.exactly(length)?,
            Some(Err(_)) => return Err("an answer without a length".into()),
            None => {
                keeps = false;
                input.rest()?
            }
        };
        let retry_after = header("retry-after").and_then(|seconds| seconds.parse().ok());
        Ok(Answer { status, retry_after: retry_after.map(Duration::from_secs), body, keeps })
    }

    /// The time that is left.
    fn left(&self) -> Result<Duration, String> {
        let left = self.deadline.since(clock::now());
        if left.is_zero() { Err("it took too long".into()) } else { Ok(left) }
    }
}

/// An answer, and whether the connection can be used again.
struct Answer {
    status: u16,
    retry_after: Option<Duration>,
    body: Vec<u8>,
    keeps: bool,
}

/// What arrives, and was not used yet.
struct Input<'a> {
    stream: &'a TcpStream,
    state: &'a State,
    bytes: Vec<u8>,
}

impl Input<'_> {
    /// Reads some more; whether there was any.
    fn more(&mut self) -> Result<bool, String> {
        let mut some = [0; 4096];
        loop {
            self.stream.set_read_timeout(Some(self.state.left()?)).map_err(|e| e.to_string())?;
            let mut stream = self.stream;
            match stream.read(&mut some) {
                Ok(n) => {
                    self.bytes.extend_from_slice(&some[..n]);
                    return Ok(n > 0);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("waiting for the answer: {}", late(e))),
            }
        }
    }

    fn need(&mut self) -> Result<(), String> {
        if self.more()? { Ok(()) } else { Err("the connection ended before the answer did".into()) }
    }

    /// All up to `mark`, which is taken too.
    fn until(&mut self, mark: &[u8], most: usize) -> Result<String, String> {
        loop {
            if let Some(at) = self.bytes.windows(mark.len()).position(|window| window == mark) {
                let text = String::from_utf8_lossy(&self.bytes[..at]).into_owned();
                self.bytes.drain(..at + mark.len());
                return Ok(text);
            }
            if self.bytes.len() > most {
                return Err("an answer without an end".into());
            }
            self.need()?;
        }
    }

    fn head(&mut self) -> Result<String, String> {
        loop {
            let head = self.until(b"\r\n\r\n", MOST_HEAD)?;
            // An interim answer comes before the real one.
            if !head.split(' ').nth(1).is_some_and(|status| status.starts_with('1')) {
                return Ok(head);
            }
        }
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>, String> {
        if length > MOST_BODY {
            return Err(format!("an answer of {length} bytes"));
        }
        while self.bytes.len() < length {
            self.need()?;
        }
        Ok(self.bytes.drain(..length).collect())
    }

    fn chunks(&mut self) -> Result<Vec<u8>, String> {
        let mut body = Vec::new();
        loop {
            let line = self.until(b"\r\n", MOST_HEAD)?;
            let size = usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
            let size = size.map_err(|_| format!("a chunk of {line:?} bytes"))?;
            if size == 0 {
                // Trailers, and the empty line behind them.
                while !self.until(b"\r\n", MOST_HEAD)?.is_empty() {}
                return Ok(body);
            }
            if body.len() + size.min(MOST_BODY) > MOST_BODY {
                return Err("an answer without an end".into());
            }
            body.extend(self.exactly(size)?);
            self.exactly(2)?;
        }
    }

    fn rest(&mut self) -> Result<Vec<u8>, String> {
        while self.more()? {
            if self.bytes.len() > MOST_BODY {
                return Err("an answer without an end".into());
            }
        }
        Ok(std::mem::take(&mut self.bytes))
    }
}

/// Whether the other side has not closed a connection, and says nothing it was not asked.
fn is_open(stream: &TcpStream) -> bool {
    let quiet = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let is_quiet = matches!(quiet, Err(e) if e.kind() == ErrorKind::WouldBlock);
    is_quiet && stream.set_nonblocking(false).is_ok()
}

/// An error of a socket, in words: one whose time is over says something else.
fn late(e: std::io::Error) -> String {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it took too long".into(),
        _ => e.to_string(),
    }
}

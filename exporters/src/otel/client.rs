//! HTTP/1.1 over a socket, as much as OTLP needs: one connection that is kept, and requests with a
//! deadline, each with an exact outcome: answered, not sent, or in doubt. OpenTelemetry's
//! ready-made clients bring a runtime; this one blocks its thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use ccl::clock::{self, Ns};
use http::Uri;

/// The most bytes of an answer's head, and of its body.
const MOST_HEAD: usize = 64 << 10;
const MOST_BODY: usize = 4 << 20;

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The collector cannot have it: it was not sent completely.
    NotSent(String),
    /// It was sent completely, and no answer came.
    InDoubt(String),
    /// It was answered.
    Answered {
        status: u16,
        /// When to try again.
        retry_after: Option<Duration>,
        body: Vec<u8>,
    },
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    pub(super) uri: &'a Uri,
    /// Headers besides the host and the length of the body: `name: value` each.
    pub(super) headers: &'a [Vec<u8>],
    pub(super) body: &'a [u8],
}

/// The client: one request at a time.
#[derive(Debug)]
pub(super) struct Client {
    connection: Option<TcpStream>,
    deadline: Ns,
}

impl Client {
    pub(super) const fn new() -> Self {
        Self { connection: None, deadline: Ns(0) }
    }

    /// Posts a request, and waits for its answer until `deadline`.
    pub(super) fn post(&mut self, request: &Request<'_>, deadline: Ns) -> Outcome {
        self.deadline = deadline;
        let sent = self.connect(request.uri).and_then(|stream| self.write(stream, request));
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

    /// The open connection, if it is still usable, or a new one.
    fn connect(&mut self, uri: &Uri) -> Result<TcpStream, String> {
        if let Some(stream) = self.connection.take().filter(is_open) {
            return Ok(stream);
        }
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

    /// Hands all of a request to the kernel. A collector cannot use an incomplete request.
    fn write(&self, mut stream: TcpStream, request: &Request<'_>) -> Result<TcpStream, String> {
        let Request { uri, headers, body } = *request;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let mut message =
            format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n", body.len())
                .into_bytes();
        for header in headers {
            message.extend_from_slice(header);
            message.extend_from_slice(b"\r\n");
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(body);
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
        let mut input = Input { stream, client: self, bytes: Vec::new() };
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

    /// The time until the deadline.
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

/// Bytes that arrived and were not used yet.
struct Input<'a> {
    stream: &'a TcpStream,
    client: &'a Client,
    bytes: Vec<u8>,
}

impl Input<'_> {
    /// Reads some more; false at the end.
    fn more(&mut self) -> Result<bool, String> {
        let mut some = [0; 4096];
        loop {
            self.stream.set_read_timeout(Some(self.client.left()?)).map_err(|e| e.to_string())?;
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

    /// Takes all bytes up to `mark`, and the mark too.
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
                // Trailers, and the empty line after them.
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

/// Whether the other side has not closed a connection, and has sent nothing unasked.
fn is_open(stream: &TcpStream) -> bool {
    let quiet = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let is_quiet = matches!(quiet, Err(e) if e.kind() == ErrorKind::WouldBlock);
    is_quiet && stream.set_nonblocking(false).is_ok()
}

/// The text of a socket error, with another text for a timeout.
fn late(e: std::io::Error) -> String {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it took too long".into(),
        _ => e.to_string(),
    }
}

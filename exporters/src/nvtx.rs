//! NVTX: every call and every phase of init is a range of the calling thread, for Nsight Systems
//! and other tools loaded through `NVTX_INJECTION64_PATH`.
//!
//! All ranges lie in the domain `CCL`. The ranges of calls carry the bytes of the request as a
//! number, and a text: the kind, the sequence number, the rank and the communicator
//! (`AllReduce, seq = 17, rank = 3, comm = 00000000000000ab`), in the format of PyTorch; tools show
//! it as it is. The ranges of phases are named `init CheckIn`, and leaving is `finish`. The threads
//! of the service and of progress are named. Further facts about a call are in the recorder, under
//! the same times to a few microseconds.

use std::ffi::{CStr, CString};
use std::io::Write;

use ccl::config;
use ccl::observer::{Call, CallObserver, set_observer};
use ccl::types::{CollKind, CommId, Phase, Rank};
use nvtx::sys::{self, DomainHandle, MessageType, MessageValue, StringHandle};

/// The variable that names the tool to load. There is no other way to load one.
const TOOL: &str = "NVTX_INJECTION64_PATH";

/// Notifies the tool, if there is one. Without one no observer is set: a call has the cost of an
/// observer only if a tool listens, and the process's single place for an observer stays free.
pub(crate) fn init() {
    if config::environment(TOOL).is_some() {
        // An observer that the program has set stays.
        let _ = set_observer(Box::new(Ranges::new()));
    }
}

/// Pushes and pops. nvtx's own range guard ends the range where it is dropped, and is bound to its
/// scope. These ranges begin in one function and end in another, so they make the same calls as
/// that guard directly.
struct Ranges {
    domain: DomainHandle,
    phases: Vec<StringHandle>,
}

impl Ranges {
    fn new() -> Self {
        let domain = sys::domain_create_ascii(c"CCL");
        let register =
            |name: String| sys::domain_register_string_ascii(domain, &CString::new(name).unwrap_or_default());
        let name = |phase: &Phase| match phase {
            Phase::Finish => "finish".into(),
            phase => format!("init {phase}"),
        };
        let phases = Phase::ALL.iter().map(|phase| register(name(phase))).collect();
        Self { domain, phases }
    }
}

/// The longest text of a range, with the terminating zero.
const TEXT: usize = 128;

/// Formats a range's text, in memory of the calling thread: inline code does not allocate.
fn text(buffer: &mut [u8; TEXT], call: (CollKind, u64, Rank, CommId)) -> &CStr {
    let (kind, seq, rank, comm) = call;
    let mut rest = &mut buffer[..TEXT - 1];
    // A longer text would be cut; every text fits.
    let _ = write!(rest, "{kind}, seq = {seq}, rank = {rank}, comm = {comm}");
    let end = TEXT - 1 - rest.len();
    buffer[end] = 0;
    CStr::from_bytes_with_nul(&buffer[..=end]).unwrap_or(c"")
}

impl CallObserver for Ranges {
    fn begin(&self, call: &Call) {
        let plain = nvtx::EventAttributes::builder();
        let mut buffer = [0; TEXT];
        let (attributes, kind, message) = match call {
            Call::Operation { request, comm, rank, seq } => {
                let text = text(&mut buffer, (request.kind, *seq, *rank, *comm));
                let ascii = MessageValue { ascii: text.as_ptr() };
                (plain.payload(request.bytes()), MessageType::NVTX_MESSAGE_TYPE_ASCII, ascii)
            }
            Call::Phase(phase) => {
                let registered = MessageValue { registered: self.phases[*phase as usize].into() };
                (plain, MessageType::NVTX_MESSAGE_TYPE_REGISTERED, registered)
            }
        };
        let mut attributes = attributes.build().encode();
        attributes.messageType = kind.into();
        attributes.message = message;
        sys::domain_range_push_ex(self.domain, &attributes);
    }

    fn end(&self, _: &Call) {
        sys::domain_range_pop(self.domain);
    }

    fn thread(&self, name: &CStr, id: u32) {
        sys::name_os_thread_ascii(id, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_text_fits() {
        let call = (CollKind::ReduceScatter, u64::MAX, Rank(u32::MAX), CommId(u64::MAX));
        let text = format!("{:?}", text(&mut [0; TEXT], call));
        assert!(text.ends_with("comm = ffffffffffffffff\""), "{text}");
    }
}

//! NVTX: every call and every phase of making a communicator is a range of the calling thread, for Nsight Systems and whatever else is loaded through
//! `NVTX_INJECTION64_PATH`.
//!
//! All ranges lie in the domain `CCL`. Those of calls are named by their kind (`AllReduce`) and carry the bytes of the request as a number; those of phases
//! are named `init CheckIn`. Names are registered once, so that a range costs no text. What else is known of a call is in the recorder, under the
//! same times to a few microseconds.

use std::ffi::CString;

use ccl::config;
use ccl::observer::{Call, CallObserver, set_observer};
use ccl::types::{CollKind, Phase};
use nvtx::sys::{self, DomainHandle, MessageType, MessageValue, StringHandle};

/// Names the tool that wants to be told. There is no other way for one to get in.
const TOOL: &str = "NVTX_INJECTION64_PATH";

/// Tells the tool, if there is one. Without one nothing is set: a call pays for an observer only where somebody listens, and the process's one
/// place for an observer stays free.
pub(crate) fn init() {
    if config::environment(TOOL).is_some() {
        // An observer that the program has set itself stays.
        let _ = set_observer(Box::new(Ranges::new()));
    }
}

/// Pushes and pops. nvtx's own guard of a range ends it where it is dropped, and is bound to its scope; these begin in one function and end in
/// another, so they go by what that guard calls.
struct Ranges {
    domain: DomainHandle,
    kinds: Vec<StringHandle>,
    phases: Vec<StringHandle>,
}

impl Ranges {
    fn new() -> Self {
        let domain = sys::domain_create_ascii(c"CCL");
        let register =
            |name: String| sys::domain_register_string_ascii(domain, &CString::new(name).unwrap_or_default());
        let kinds = CollKind::ALL.iter().map(|kind| register(kind.to_string())).collect();
        let phases = Phase::ALL.iter().map(|phase| register(format!("init {phase}"))).collect();
        Self { domain, kinds, phases }
    }
}

impl CallObserver for Ranges {
    fn begin(&self, call: &Call) {
        let plain = nvtx::EventAttributes::builder();
        let (name, attributes) = match call {
            Call::Operation { request, .. } => {
                (self.kinds[request.kind as usize], plain.payload(request.bytes()))
            }
            Call::Phase(phase) => (self.phases[*phase as usize], plain),
        };
        let mut attributes = attributes.build().encode();
        attributes.messageType = MessageType::NVTX_MESSAGE_TYPE_REGISTERED.into();
        attributes.message = MessageValue { registered: name.into() };
        sys::domain_range_push_ex(self.domain, &attributes);
    }

    fn end(&self, _: &Call) {
        sys::domain_range_pop(self.domain);
    }
}

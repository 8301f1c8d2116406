//! What there is without the feature `verbs`: no device, so no value of these types.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{AsyncEvent, Completion, Depth, Limits, Local, Path, Patience, PortState, QpState, Write};
use crate::sys::shared::Mapping;

/// How many completions are taken at once.
pub const BATCH: usize = 16;

/// There are none.
///
/// # Errors
/// Always.
pub fn names() -> Result<Vec<String>, String> {
    Err("ccl was built without the feature \"verbs\"".into())
}

/// There are none.
///
/// # Errors
/// Always.
pub fn open(_: &str) -> io::Result<Context> {
    Err(io::ErrorKind::NotFound.into())
}

macro_rules! absent {
    ($($of:ident { $($name:ident($($argument:ty),*) -> $result:ty,)* })*) => { $(
        #[doc = concat!("There is no `", stringify!($of), "`.")]
        #[derive(Debug)]
        pub enum $of {}

        #[allow(missing_docs, clippy::missing_errors_doc, reason = "nobody can call them")]
        impl $of {
            $(pub fn $name(&self $(, _: $argument)*) -> $result {
                match *self {}
            })*
        }
    )* };
}

absent! {
    Context {
        name() -> &str,
        events() -> RawFd,
        limits() -> io::Result<Limits>,
        port(u8) -> io::Result<PortState>,
        gid(u8, u32) -> Option<[u8; 16]>,
        event() -> Option<AsyncEvent>,
    }
    Domain {
        context() -> &Arc<Context>,
    }
    Region {
        remote_key() -> u32,
        domain() -> &Arc<Domain>,
        base() -> NonNull<u8>,
    }
    Channel {
        fd() -> RawFd,
    }
    Cq {
        poll(&mut dyn FnMut(Completion)) -> io::Result<usize>,
        arm() -> io::Result<()>,
        heard() -> bool,
    }
    Qp {
        number() -> u32,
        to_init(Local) -> io::Result<()>,
        to_ready_to_receive(&Path) -> io::Result<()>,
        to_ready_to_send(u32, Patience) -> io::Result<()>,
        to_error() -> io::Result<()>,
        state() -> QpState,
        write(&[Write<'_>]) -> io::Result<()>,
        receive(u64) -> io::Result<()>,
    }
}

#[allow(missing_docs, clippy::missing_errors_doc, reason = "nobody can call them")]
mod makers {
    use super::{Arc, Channel, Context, Cq, Depth, Domain, Mapping, NonNull, Qp, Region, io};

    impl Domain {
        pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
            match **context {}
        }
    }
    impl Region {
        pub fn register(domain: &Arc<Domain>, _: &Arc<Mapping>, _: bool) -> io::Result<Arc<Self>> {
            match **domain {}
        }
        #[allow(clippy::missing_safety_doc, reason = "nobody can call it")]
        pub unsafe fn register_foreign(
            domain: &Arc<Domain>,
            _: (NonNull<u8>, usize),
            _: bool,
        ) -> io::Result<Self> {
            match **domain {}
        }
    }
    impl Channel {
        pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
            match **context {}
        }
    }
    impl Cq {
        pub fn new(channel: &Arc<Channel>, _: u32) -> io::Result<Arc<Self>> {
            match **channel {}
        }
    }
    impl Qp {
        pub fn new(domain: &Arc<Domain>, _: &Arc<Cq>, _: Depth, _: Arc<Region>) -> io::Result<Self> {
            match **domain {}
        }
    }
}

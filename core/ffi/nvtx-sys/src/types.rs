//! The types that are passed to a tool, with the layout of NVTX's headers.

#![expect(missing_debug_implementations, reason = "which field of a union is meant stands outside it")]

use std::ffi::{c_char, c_void};

/// A domain, as its tool identifies it; null if there is no tool.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type nvtxDomainHandle_t = *mut c_void;
/// A registered string.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type nvtxStringHandle_t = *mut c_void;
/// A named resource.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type nvtxResourceHandle_t = *mut c_void;
/// A user-defined synchronization object.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type nvtxSyncUser_t = *mut c_void;
/// Identifies a range of a process.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type nvtxRangeId_t = u64;

/// A character of a wide string, as `wchar_t` is here.
pub(crate) type Wide = u32;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $n:literal,)+ }) => {
        $(#[$doc])*
        #[expect(non_camel_case_types, reason = "the names in C")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        pub enum $name { $($(#[$vdoc])* $variant = $n,)+ }

        impl From<$name> for i32 {
            fn from(kind: $name) -> Self {
                kind as Self
            }
        }
    };
}

kinds! {
    /// The format of a colour.
    nvtxColorType_t {
        /// No colour.
        NVTX_COLOR_UNKNOWN = 0,
        /// Alpha, red, green, blue.
        NVTX_COLOR_ARGB = 1,
    }
}
kinds! {
    /// The format of a message.
    nvtxMessageType_t {
        /// No message.
        NVTX_MESSAGE_UNKNOWN = 0,
        /// A C string.
        NVTX_MESSAGE_TYPE_ASCII = 1,
        /// A wide string.
        NVTX_MESSAGE_TYPE_UNICODE = 2,
        /// A registered string.
        NVTX_MESSAGE_TYPE_REGISTERED = 3,
    }
}
kinds! {
    /// The number type of a payload.
    nvtxPayloadType_t {
        /// No payload.
        NVTX_PAYLOAD_UNKNOWN = 0,
        /// 64 bits, unsigned.
        NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1,
        /// 64 bits, signed.
        NVTX_PAYLOAD_TYPE_INT64 = 2,
        /// A double.
        NVTX_PAYLOAD_TYPE_DOUBLE = 3,
        /// 32 bits, unsigned.
        NVTX_PAYLOAD_TYPE_UNSIGNED_INT32 = 4,
        /// 32 bits, signed.
        NVTX_PAYLOAD_TYPE_INT32 = 5,
        /// A float.
        NVTX_PAYLOAD_TYPE_FLOAT = 6,
    }
}

/// A message. The field beside the union says which member is valid.
#[derive(Clone, Copy)]
#[repr(C)]
pub union nvtxMessageValue_t {
    /// A C string.
    pub ascii: *const c_char,
    /// A wide string.
    pub unicode: *const u32,
    /// A registered string.
    pub registered: nvtxStringHandle_t,
}

/// A payload. The field beside the union says which member is valid.
#[expect(non_snake_case, reason = "the names in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub union nvtxEventAttributes_v2_payload_t {
    /// 64 bits, unsigned.
    pub ullValue: u64,
    /// 64 bits, signed.
    pub llValue: i64,
    /// A double.
    pub dValue: f64,
    /// 32 bits, unsigned.
    pub uiValue: u32,
    /// 32 bits, signed.
    pub iValue: i32,
    /// A float.
    pub fValue: f32,
}

/// The attributes of a mark or a range.
#[expect(non_snake_case, reason = "the names in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvtxEventAttributes_t {
    /// [`NVTX_VERSION`](crate::NVTX_VERSION).
    pub version: u16,
    /// The size of this structure in bytes.
    pub size: u16,
    /// The category; 0 for none.
    pub category: u32,
    /// An [`nvtxColorType_t`].
    pub colorType: i32,
    /// The colour.
    pub color: u32,
    /// An [`nvtxPayloadType_t`].
    pub payloadType: i32,
    /// Always 0.
    pub reserved0: i32,
    /// The payload.
    pub payload: nvtxEventAttributes_v2_payload_t,
    /// An [`nvtxMessageType_t`].
    pub messageType: i32,
    /// The message.
    pub message: nvtxMessageValue_t,
}

/// The identifier of a resource. The field beside the union says which member is valid.
#[expect(non_snake_case, reason = "the names in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub union nvtxResourceAttributes_v0_identifier_t {
    /// A pointer.
    pub pValue: *const c_void,
    /// A handle.
    pub ullValue: u64,
}

/// The attributes of a resource: its identifier and its name.
#[expect(non_snake_case, reason = "the names in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvtxResourceAttributes_t {
    /// [`NVTX_VERSION`](crate::NVTX_VERSION).
    pub version: u16,
    /// The size of this structure in bytes.
    pub size: u16,
    /// One of [`resource_type`](crate::resource_type).
    pub identifierType: i32,
    /// The resource.
    pub identifier: nvtxResourceAttributes_v0_identifier_t,
    /// An [`nvtxMessageType_t`].
    pub messageType: i32,
    /// The name.
    pub message: nvtxMessageValue_t,
}

/// The attributes of a user-defined synchronization object: its name.
#[expect(non_snake_case, reason = "the names in C")]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvtxSyncUserAttributes_t {
    /// [`NVTX_VERSION`](crate::NVTX_VERSION).
    pub version: u16,
    /// The size of this structure in bytes.
    pub size: u16,
    /// An [`nvtxMessageType_t`].
    pub messageType: i32,
    /// The name.
    pub message: nvtxMessageValue_t,
}

// The layout of the headers on targets with 64-bit pointers.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<nvtxEventAttributes_t>() == 48);
    assert!(std::mem::offset_of!(nvtxEventAttributes_t, payloadType) == 16);
    assert!(std::mem::offset_of!(nvtxEventAttributes_t, payload) == 24);
    assert!(std::mem::offset_of!(nvtxEventAttributes_t, message) == 40);
    assert!(size_of::<nvtxResourceAttributes_t>() == 32);
    assert!(size_of::<nvtxSyncUserAttributes_t>() == 16);
};

//! (stub)
#![allow(missing_docs)]
use super::*;
pub fn select(t: &Topology, _r: &Request, f: Option<Algorithm>) -> Shape {
    let _ = t;
    Shape { algorithm: f.unwrap_or(Algorithm::Ring), channels: 1, chunk: 4096 }
}

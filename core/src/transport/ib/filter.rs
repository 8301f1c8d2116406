//! Which ports `CCL_IB_HCA` admits, in NCCL's syntax.
//!
//! ```text
//!   mlx5          every device whose name begins so
//!   =mlx5_0       exactly this device
//!   ^mlx5_2       every device but those
//!   =mlx5_0:1     port 1 of it; without a number, each port
//! ```
//!
//! Several names are separated by commas; `^`, `=` or `^=` stands once, at the front of the list.

use crate::error::{Error, ErrorKind, Result};

/// A list of devices and ports.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter {
    excludes: bool,
    is_exact: bool,
    names: Vec<(String, Option<u8>)>,
}

impl Filter {
    /// Reads a list; an empty one admits everything.
    ///
    /// # Errors
    /// `Usage` if a port is no number from 1 to 255, or a name is missing.
    pub fn parse(text: &str) -> Result<Self> {
        let (excludes, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (is_exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let name = |item: &str| match item.split_once(':') {
            None => Some((item.to_string(), None)),
            Some((name, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0)?;
                Some((name.to_string(), Some(port)))
            }
        };
        let names = if rest.is_empty() {
            Vec::new()
        } else {
            let items = rest.split(',').map(str::trim);
            let names: Option<Vec<_>> = items.map(|item| name(item).filter(|(n, _)| !n.is_empty())).collect();
            names.ok_or_else(|| {
                let what = format!("CCL_IB_HCA={text} is not valid");
                Error::new(ErrorKind::Usage, what)
                    .hint("it takes names of devices, each with :port where only that port is meant, such as =mlx5_0:1,mlx5_1")
            })?
        };
        Ok(Self { excludes, is_exact, names })
    }

    /// Whether it admits this port.
    #[must_use]
    pub fn admits(&self, device: &str, port: u8) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let is_meant = |(name, only): &(String, Option<u8>)| {
            let is_named = if self.is_exact { device == name } else { device.starts_with(name.as_str()) };
            is_named && only.is_none_or(|only| only == port)
        };
        self.names.iter().any(is_meant) != self.excludes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_mean_what_they_mean_to_nccl() {
        let check = |list: &str, device: &str, port: u8, expect: bool| {
            let admits = Filter::parse(list).unwrap().admits(device, port);
            assert_eq!(admits, expect, "{list:?} {device}:{port}");
        };
        check("", "mlx5_0", 1, true);
        check("mlx5", "mlx5_0", 1, true);
        check("mlx5", "rxe0", 1, false);
        check("mlx5_1", "mlx5_10", 1, true);
        check("=mlx5_1", "mlx5_10", 1, false);
        check("=mlx5_1,rxe0", "rxe0", 2, true);
        check("mlx5_1:1", "mlx5_1", 1, true);
        check("mlx5_1:1", "mlx5_1", 2, false);
        check("^mlx5_1:1", "mlx5_1", 1, false);
        check("^mlx5_1:1", "mlx5_1", 2, true);
        check("^=mlx5_1", "mlx5_10", 1, true);
        check("^=mlx5_1", "mlx5_1", 1, false);
        check("^", "mlx5_1", 1, true);
        check("rxe0, rxe1", "rxe1", 1, true);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_an_error() {
        for list in ["mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:256", ",", "a,,b", ":1"] {
            let error = Filter::parse(list).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{list}");
            assert!(error.what.contains(&format!("CCL_IB_HCA={list}")), "{error}");
        }
    }
}

//! The orders of a worker, as words `name=value`.

use ccl::CollKind;
use serde::{Deserialize, Serialize};

/// What the victim does instead of its call.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It calls, as all ranks do.
    #[default]
    Well,
    /// It sleeps for ever.
    Sleep,
    /// It calls while all other ranks wait until they are continued.
    Alone,
    /// It calls with one more element.
    Count,
    /// It calls a barrier.
    Kind,
    /// It calls an all-reduce with the maximum operator.
    Operator,
    /// It calls an all-reduce of another type.
    Datatype,
    /// It aborts the communicator.
    Abort,
    /// It drops the communicator without leaving.
    Drop,
    /// It leaves before the others.
    Finish,
}

/// The orders of one worker. All workers of a job get the same orders.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Orders {
    /// Iterations.
    pub calls: u64,
    /// The operation.
    pub kind: CollKind,
    /// The root, if the operation has one.
    pub root: u32,
    /// Elements per rank.
    pub count: usize,
    /// The iteration at which the victim goes wrong; 0 for none.
    pub at: u64,
    /// Elements per rank in that iteration.
    pub big: usize,
    /// The rank that goes wrong.
    pub victim: u32,
    /// What the victim does.
    pub how: How,
    /// Whether the service thread of the process is blocked.
    pub block: bool,
    /// Whether the victim has a forked child.
    pub fork: bool,
    /// Whether the process lives on after it has left.
    pub stay: bool,
    /// Whether it calls once more after an error.
    pub retry: bool,
    /// Whether the victim goes wrong only when the others have long been in that iteration: none of
    /// them is still in the operation before it.
    pub late: bool,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            calls: u64::MAX,
            kind: CollKind::AllReduce,
            root: 0,
            count: 1000,
            at: 0,
            big: 1000,
            victim: u32::MAX,
            how: How::Well,
            block: false,
            fork: false,
            stay: false,
            retry: false,
            late: false,
        }
    }
}

impl Orders {
    /// The orders as words of a command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let json = serde_json::to_value(self).expect("orders are plain data");
        let fields = json.as_object().expect("a struct is an object");
        fields
            .iter()
            .map(|(name, value)| match value {
                serde_json::Value::String(text) => format!("{name}={text}"),
                other => format!("{name}={other}"),
            })
            .collect()
    }

    /// Reads these words.
    ///
    /// # Errors
    /// The word that is not understood.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut fields = serde_json::Map::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word} is no name=value"))?;
            // Numbers and booleans are read as JSON; everything else is a word.
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            fields.insert(name.to_string(), value);
        }
        serde_json::from_value(fields.into()).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_command_line() {
        let orders = Orders {
            kind: CollKind::Broadcast,
            how: How::Alone,
            at: 7,
            victim: 2,
            block: true,
            ..Orders::default()
        };
        assert_eq!(Orders::parse(orders.words().into_iter()), Ok(orders));
        assert!(Orders::parse(["nonsense".to_string()].into_iter()).is_err());
    }
}

//! What the codes of failed work requests mean, and what probably caused them.

/// The name of a status, without verbs.h's prefix.
#[must_use]
pub fn status_name(status: u32) -> &'static str {
    const NAMES: [&str; 24] = [
        "SUCCESS",
        "LOC_LEN_ERR",
        "LOC_QP_OP_ERR",
        "LOC_EEC_OP_ERR",
        "LOC_PROT_ERR",
        "WR_FLUSH_ERR",
        "MW_BIND_ERR",
        "BAD_RESP_ERR",
        "LOC_ACCESS_ERR",
        "REM_INV_REQ_ERR",
        "REM_ACCESS_ERR",
        "REM_OP_ERR",
        "RETRY_EXC_ERR",
        "RNR_RETRY_EXC_ERR",
        "LOC_RDD_VIOL_ERR",
        "REM_INV_RD_REQ_ERR",
        "REM_ABORT_ERR",
        "INV_EECN_ERR",
        "INV_EEC_STATE_ERR",
        "FATAL_ERR",
        "RESP_TIMEOUT_ERR",
        "GENERAL_ERR",
        "TM_ERR",
        "TM_RNDV_INCOMPLETE",
    ];
    NAMES.get(status as usize).copied().unwrap_or("unknown")
}

/// What a status says has happened, in words, and what probably caused it.
#[must_use]
pub fn cause(status: u32) -> &'static str {
    match status {
        1 | 4 | 8 => {
            "the device could not use memory of its own side; this is a fault of ccl or of the driver"
        }
        2 => {
            "the first of these two ports or queue pairs cannot send: its link is down, or the device is gone"
        }
        5 => "the queue pair had failed before: by an error on either side, or because the port went down",
        7 => "the other side's answer was wrong: a fault of a device, a driver or a cable",
        9 | 11 | 15 | 16 => "the other side's device refused the request; its error is the cause",
        10 => {
            "the other side's device refused access to its memory: the two sides disagree about its address or key"
        }
        12 => {
            "the other side did not answer: a cable, switch or port is down, packets are dropped, or its process has ended"
        }
        13 => "the other side had no receive posted in time: its process does not run, or is too slow",
        19 | 21 => "the device failed: see the kernel's log",
        20 => "the other side did not complete the request in time",
        _ => "see the description of the status in the manual of ibv_poll_cq",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_name_and_a_cause() {
        assert_eq!((status_name(12), status_name(5)), ("RETRY_EXC_ERR", "WR_FLUSH_ERR"));
        assert_eq!((status_name(23), status_name(24)), ("TM_RNDV_INCOMPLETE", "unknown"));
        assert!(cause(12).contains("did not answer") && !cause(99).is_empty());
    }
}

//! The sampling of traces. The decision is a function of the trace's id alone, which all ranks
//! compute alike: a trace is sent by all of them or by none.

use opentelemetry::trace::{SpanKind, TraceId};
use opentelemetry_sdk::trace::{Sampler as Sdk, SamplingDecision, ShouldSample};

/// Which traces are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Sampler {
    All,
    None,
    /// This share of them.
    Share(f64),
}

impl Sampler {
    /// Whether a trace is sent: the same share that OpenTelemetry's own SDKs choose.
    pub(super) fn keeps(self, trace: TraceId) -> bool {
        let Self::Share(share) = self else { return self == Self::All };
        let sdk = Sdk::TraceIdRatioBased(share);
        let result = sdk.should_sample(None, trace, "", &SpanKind::Internal, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_traces_is_kept_and_always_the_same() {
        let ids = || {
            (1..=10_000u128).map(|n| TraceId::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)))
        };
        let kept = |share| ids().filter(|id| Sampler::Share(share).keeps(*id)).collect::<Vec<_>>();
        assert_eq!((kept(0.0).len(), kept(1.0).len()), (0, 10_000));
        let quarter = kept(0.25);
        assert!((2200..2800).contains(&quarter.len()), "{}", quarter.len());
        assert_eq!(quarter, kept(0.25));
        // A trace that is in a smaller share is in a larger one.
        let half = kept(0.5);
        assert!(quarter.iter().all(|id| half.contains(id)));
        assert!(ids().all(|id| Sampler::All.keeps(id) && !Sampler::None.keeps(id)));
    }
}

//! The environment of each rank: torchrun's variables, and its emulated host. Pure.

/// The place of one rank in its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RankSlot {
    pub(super) rank: u32,
    pub(super) nranks: u32,
    pub(super) host: u32,
    pub(super) nhosts: u32,
    pub(super) local_rank: u32,
    pub(super) local_nranks: u32,
}

/// What all ranks of a job share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Job {
    pub(super) run_id: String,
    pub(super) master_address: String,
    pub(super) master_port: u16,
    /// Drawn for this run; `None` if the user's environment already has a secret.
    pub(super) secret: Option<String>,
    /// Whether hosts are emulated, so that each rank gets the name of its host.
    pub(super) names_hosts: bool,
    /// The network interface to use, if it must be given.
    pub(super) interface: Option<String>,
}

/// Divides ranks among hosts in contiguous blocks of sizes as equal as possible.
pub(super) fn places(nranks: u32, nhosts: u32) -> Vec<RankSlot> {
    let begin =
        |host: u32| u32::try_from(u64::from(host) * u64::from(nranks) / u64::from(nhosts)).unwrap_or(nranks);
    (0..nhosts)
        .flat_map(|host| {
            let (first, end) = (begin(host), begin(host + 1));
            (first..end).map(move |rank| RankSlot {
                rank,
                nranks,
                host,
                nhosts,
                local_rank: rank - first,
                local_nranks: end - first,
            })
        })
        .collect()
}

/// The variables of one rank. No process listens at the master's port: rank 0 binds it.
pub(super) fn variables(job: &Job, place: &RankSlot) -> Vec<(&'static str, String)> {
    let mut variables = vec![
        ("RANK", place.rank.to_string()),
        ("WORLD_SIZE", place.nranks.to_string()),
        ("LOCAL_RANK", place.local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", place.local_nranks.to_string()),
        ("GROUP_RANK", place.host.to_string()),
        ("GROUP_WORLD_SIZE", place.nhosts.to_string()),
        ("ROLE_NAME", "default".to_string()),
        ("ROLE_RANK", place.rank.to_string()),
        ("ROLE_WORLD_SIZE", place.nranks.to_string()),
        ("MASTER_ADDR", job.master_address.clone()),
        ("MASTER_PORT", job.master_port.to_string()),
        ("TORCHELASTIC_RUN_ID", job.run_id.clone()),
        ("TORCHELASTIC_RESTART_COUNT", "0".to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", "0".to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "False".to_string()),
    ];
    if let Some(secret) = &job.secret {
        variables.push(("CCL_JOB_SECRET", secret.clone()));
    }
    if job.names_hosts {
        variables.push(("CCL_HOSTID", format!("host{}", place.host)));
    }
    if let Some(interface) = &job.interface {
        variables.push(("CCL_SOCKET_IFNAME", interface.clone()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_place_and_blocks_are_contiguous_and_even() {
        for nranks in 1..20 {
            for nhosts in 1..=nranks {
                let places = places(nranks, nhosts);
                assert_eq!(
                    places.iter().map(|p| p.rank).collect::<Vec<_>>(),
                    (0..nranks).collect::<Vec<_>>()
                );
                assert!(places.windows(2).all(|w| w[1].host == w[0].host || w[1].host == w[0].host + 1));
                let (low, high) = (nranks / nhosts, nranks.div_ceil(nhosts));
                assert!(places.iter().all(|p| (low..=high).contains(&p.local_nranks)));
                assert!(places.iter().all(|p| p.local_rank < p.local_nranks));
                assert_eq!(places.iter().filter(|p| p.local_rank == 0).count(), nhosts as usize);
            }
        }
    }

    #[test]
    fn a_rank_gets_torchruns_variables() {
        let job = Job {
            run_id: "r".into(),
            master_address: "10.231.0.1".into(),
            master_port: 29500,
            secret: Some("s".into()),
            names_hosts: true,
            interface: None,
        };
        let variables = variables(&job, &places(5, 2)[3]);
        let value = |name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
        for (name, expect) in [
            ("RANK", "3"),
            ("WORLD_SIZE", "5"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.231.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("CCL_HOSTID", "host1"),
        ] {
            assert_eq!(value(name), Some(expect), "{name}");
        }
        assert_eq!(value("CCL_SOCKET_IFNAME"), None);
    }
}

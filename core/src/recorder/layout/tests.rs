use super::*;

#[test]
fn the_layout_is_the_one_that_was_published() {
    let at = |table| Capacity::FULL.offset(table);
    assert_eq!(at(Table::Comms), 4096);
    assert_eq!(at(Table::Histograms), 102_400);
    assert_eq!([comm::COLL, comm::P2P, comm::TAG, comm::WORDS], [32, 64, 104, 128]);
    assert_eq!([op::LATCH, op::FACT, op::WAITS, op::WAITS_SINCE, op::WORDS], [7, 8, 24, 25, 32]);
    assert_eq!([socket::LATCH, socket::SAMPLE, socket::SAMPLE_HEARD, socket::WORDS], [7, 8, 5, 24]);
    assert_eq!([Table::Sockets, Table::Durations, Table::History].map(header::overflow), [33, 88, 89]);
    assert_eq!([Table::QueuePairs, Table::Ports].map(header::overflow), [90, 91]);
    assert_eq!(
        [queue_pair::NUMBERS, queue_pair::STATE, queue_pair::ERROR_AT, queue_pair::WORDS],
        [3, 8, 15, 16]
    );
    assert_eq!([port::ADDRESS, port::EVENT, port::COUNTS, port::WORDS], [2, 6, 9, 16]);
    assert_eq!([header::ANCHOR_LATCH, header::HOST, header::DIRECTORY_AT], [40, 56, 128]);
    assert_eq!([header::LAUNCH, header::LAUNCH_RANK, header::WITHOUT_ROW], [38, 39, 120]);
    let ending = [header::END, header::OOM_FIRST, header::OOM_LATEST, header::CGROUP, header::CGROUP_INODE];
    assert_eq!(ending, [121, 122, 123, 124, 125]);
    assert_eq!(header::LACKS, 126);
    assert_eq!([watch::LATCH, watch::TOLD, watch::TEXT, watch::WORDS], [256, 257, 4, 36]);
}

#[test]
fn tables_are_aligned_to_lines_and_fit_their_budget() {
    for capacity in Capacity::LADDER {
        for table in TABLES {
            assert_eq!(capacity.offset(table) % 64, 0, "{table:?}");
        }
        assert!(capacity.total() <= (2 << 20) + (96 << 10), "{} bytes", capacity.total());
        assert!(capacity.rings().all(usize::is_power_of_two));
    }
    const {
        assert!(header::DIRECTORY_AT * 8 + TABLES.len() * ENTRY_WORDS * 8 <= HEADER_BYTES);
        assert!(header::HOST_ID + header::TEXTS[2] <= header::DIRECTORY_AT);
        assert!(header::ANCHOR + 2 * header::ANCHOR_WORDS <= header::BOOT);
        assert!(header::HOST_ID + header::TEXTS[2] <= header::OVERFLOW_MORE);
        assert!(header::OVERFLOW_MORE + TABLES.len() - 10 < header::WITHOUT_ROW);
        assert!(header::LACKS < header::DIRECTORY_AT);
        assert!(header::DIRECTORY_AT + TABLES.len() * ENTRY_WORDS <= watch::LATCH);
        assert!((watch::TOLD + 2 * watch::WORDS) * 8 <= HEADER_BYTES);
        assert!(comm::COLL + op::WORDS <= comm::P2P && comm::P2P + op::WORDS <= comm::TAG_LATCH);
        // A message changes one line only.
        assert!(queue_pair::STATE == LINE && queue_pair::WORDS == 2 * LINE);
        assert!(port::COUNTS + port::COUNTS_COUNT <= port::WORDS);
        assert!(socket::SAMPLE + 2 * socket::SAMPLE_WORDS <= socket::WORDS);
        assert!(comm::TAG + 2 * comm::TAG_WORDS <= comm::WORDS);
        assert!(crate::types::Phase::ALL.len() <= comm::PHASES_WORDS);
        assert!(history::OPS_COUNT == crate::snapshot::bounds::MAX_PAST_OPS);
    }
}

#[test]
fn buckets_and_classes_contain_what_they_say() {
    for ns in [0, 1, 255, 256, 257, 511, 512, 1 << 20, (1 << 37) - 1, 1 << 37, u64::MAX] {
        let bucket = histogram::bucket(ns);
        assert!(histogram::bound_ns(bucket).is_none_or(|bound| ns < bound), "{ns} in {bucket}");
        assert!(bucket == 0 || histogram::bound_ns(bucket - 1).is_some_and(|bound| ns >= bound));
    }
    for bytes in [0, 1, 255, 256, 257, 4096, 4097, 1 << 20, 4 << 30, (4 << 30) + 1, u64::MAX] {
        let class = histogram::class(bytes);
        assert!(histogram::class_bytes(class).is_none_or(|most| bytes <= most), "{bytes} in {class}");
        assert!(class == 0 || histogram::class_bytes(class - 1).is_some_and(|most| bytes > most));
    }
}

#[test]
fn a_history_keeps_the_last_four_operations_of_each_number_of_zero_bits() {
    let kept_of = |last: u64| {
        let mut kept = [0; history::OPS_COUNT];
        (1..=last).for_each(|seq| kept[history::place(seq)] = seq);
        let mut kept: Vec<u64> = kept.into_iter().filter(|seq| *seq > 0).collect();
        kept.sort_unstable();
        kept
    };
    assert_eq!(kept_of(9), [2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(kept_of(20), [4, 6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
    assert_eq!(kept_of(1 << 20).len(), history::OPS_COUNT);
    for seq in [0, 1, 1 << 15, 1 << 16, 1 << 40, 1 << 63, u64::MAX] {
        assert!(history::place(seq) < history::OPS_COUNT, "{seq}");
    }
}

#[test]
fn texts_are_cut_at_characters_and_read_whatever_stands_there() {
    assert_eq!(decode_text(&encode_text::<3>("step 12")), "step 12");
    assert_eq!(decode_text(&encode_text::<2>("1234567ä")), "1234567");
    assert_eq!(decode_text(&encode_text::<2>("")), "");
    assert_eq!(decode_text(&[u64::MAX, 0x4141]), "AA\0\0\0\0\0\0");
    assert_eq!(decode_text(&[4, u64::MAX]), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
    assert_eq!(decode_text(&[]), "");
}

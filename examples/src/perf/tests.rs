//! Whole runs, whose ranks are threads of the test.

use clap::Parser;

use super::*;

/// The report of rank 0, which prints nothing.
fn run(line: &str) -> Outcome<Report> {
    let options = Options::parse_from(std::iter::once("ccl-perf").chain(line.split_whitespace()));
    options.verify(false).map_err(Usage)?;
    ranks::in_threads(options.nthreads, |comm| {
        let report = measure(&comm, &options, false);
        comm.finish()?;
        report
    })
}

#[test]
fn every_collective_type_and_operator_is_right() {
    let report = run("all -t 3 -d all -o all -b 1 -e 3K -f 9 -n 4 -w 1").unwrap();
    let types = datum::TYPES.len();
    let (sizes, reducing, copying) = ([1, 9, 81, 729].len(), 3 * ReduceOp::ALL.len(), 3);
    assert_eq!(report.rows().len(), sizes * types * (reducing + copying));
    assert_eq!(report.wrong(), 0);
    for row in report.rows() {
        let fine =
            |it: Figures| it.wrong == Some(0) && it.time_us > 0.0 && (it.busbw > 0.0) == (row.size > 0);
        assert!(figures(row).count() > 0 && figures(row).all(fine), "{}", row.line());
        assert_eq!(row.in_place.is_none(), row.name == "send_recv");
        assert_eq!(row.out_of_place.is_none(), row.name == "broadcast");
        assert!(row.size <= 729 && (row.root == Some(0)) == ["broadcast", "reduce"].contains(&row.name));
    }
}

#[test]
fn buffers_may_be_shifted_and_calls_be_in_flight_together() {
    assert_eq!(run("all -t 3 -d half -b 60 -e 6K -f 10 -n 2 -u 3 -r 2").unwrap().wrong(), 0);
    let report = run("all -t 3 -d int32 -b 60 -e 6K -f 10 -n 2 -m 5 -r 1").unwrap();
    assert_eq!((report.wrong(), report.rows().len()), (0, 18));
    let placed = report.rows().iter().map(|row| (row.out_of_place.is_some(), row.in_place.is_some()));
    assert!(placed.clone().all(|placed| placed != (true, true) && placed != (false, false)));
}

/// The check can fail: a bit that was flipped on purpose is found, whatever the collective.
#[test]
fn a_planted_fault_is_found() {
    for name in collectives::names() {
        for more in ["-d float", "-d f8e5m2 --family random", "-d uint64 -r 1", "-m 3"] {
            let report = run(&format!("{name} -t 3 -b 1K -e 2K -n 2 -w 0 --plant {more}")).unwrap();
            let wrong: Vec<u64> = report.rows().iter().flat_map(figures).filter_map(|it| it.wrong).collect();
            assert_eq!((report.wrong(), wrong[0]), (1, 1), "{name} {more}: {wrong:?}");
        }
    }
}

fn figures(row: &Row) -> impl Iterator<Item = Figures> {
    [row.out_of_place, row.in_place].into_iter().flatten()
}

#[test]
fn nothing_is_checked_if_that_is_asked_for() {
    let report = run("all -t 2 -b 8 -e 64 -n 2 -c 0 --plant").unwrap();
    assert!(report.rows().iter().flat_map(figures).all(|it| it.wrong.is_none()));
}

#[test]
fn one_rank_has_no_pairs() {
    assert!(run("all -b 8 -e 64 -n 2").unwrap().rows().iter().all(|row| row.name != "send_recv"));
    for (line, expect) in [
        ("send_recv", "send_recv needs 2 ranks"),
        ("broadcast -t 2 -r 2", "-r 2: there is no such rank among 2"),
        ("reduce -b 8 -e 4", "-b 8 is more than -e 4"),
    ] {
        let error = run(line).unwrap_err();
        assert!(error.is::<Usage>() && error.to_string() == expect, "{line}: {error}");
    }
}

/// The wrong elements that one call finds, in place or not, where `faulty` replaces the entry of
/// that name. Inputs of any bits are hardly ever right by chance.
fn wrong_of(name: &str, placement: Placement, faulty: fn(&mut Collective<i32>)) -> u64 {
    let options = Options::parse_from(["ccl-perf", name, "-n", "2", "-w", "0", "--family", "exact"]);
    let mut entry = collectives::table().into_iter().find(|entry| entry.name == name).expect("an entry");
    faulty(&mut entry);
    let measured = ranks::in_threads(3, |comm| {
        let caller = Caller { rank: comm.rank().0, nranks: 3, root: 1, op: ReduceOp::Sum, count: 100 };
        let case = Case { comm: &comm, options: &options, collective: &entry, caller };
        let measured = case.run(placement, &mut false)?;
        comm.finish()?;
        Ok(measured)
    });
    measured.unwrap().and_then(|measured| measured.wrong).expect("a call that is checked")
}

/// Both checked iterations of three ranks find what is wrong with each of 100 elements.
#[test]
fn faulty_calls_are_found() {
    let check = |name, placement, faulty, expect| {
        assert_eq!(wrong_of(name, placement, faulty), expect, "{name}");
    };
    check("all_reduce", Placement::OutOfPlace, |_| {}, 0);
    // Nothing is written.
    check("all_reduce", Placement::OutOfPlace, |it| it.out_of_place = Some(|_, _, _, _| Ok(())), 600);
    check("broadcast", Placement::InPlace, |it| it.in_place = Some(|_, _, _| Ok(())), 400);
    // One element of each rank is another.
    let swapped = |it: &mut Collective<i32>| {
        it.out_of_place = Some(|comm, input, output, _| {
            comm.all_gather(input, output)?;
            output.swap(0, 299);
            Ok(())
        });
    };
    check("all_gather", Placement::OutOfPlace, swapped, 12);
    // The result goes into the first block, whoever's it is.
    let elsewhere = |it: &mut Collective<i32>| {
        it.in_place = Some(|comm, buffer, at| {
            let all = buffer.to_vec();
            comm.reduce_scatter(&all, &mut buffer[..at.count], at.op)
        });
    };
    check("reduce_scatter", Placement::InPlace, elsewhere, 800);
    // Ranks that get no result have one.
    let all_get_it = |it: &mut Collective<i32>| {
        it.out_of_place = Some(|comm, input, output, at| comm.all_reduce(input, output, at.op));
    };
    check("reduce", Placement::OutOfPlace, all_get_it, 400);
}

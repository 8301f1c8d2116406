//! The questions for which this host is to be read: one reading at a time, which answers all that
//! were asked before it began. A question that is given up meanwhile is not read for.

#[derive(Default, Debug)]
pub(super) struct Readings {
    due: Vec<u64>,
    /// The questions that the reading under way answers.
    under_way: Option<Vec<u64>>,
}

impl Readings {
    /// This host is to be read for a question.
    pub(super) fn add(&mut self, wave: u64) {
        self.due.push(wave);
    }

    /// Whether a reading is to begin now, for all that is due. `waits` says of a question whether
    /// it still waits for one.
    pub(super) fn begin(&mut self, waits: impl Fn(u64) -> bool) -> bool {
        // Also while a reading is under way: clients may ask and leave as long as it lasts.
        self.due.retain(|wave| waits(*wave));
        if self.under_way.is_some() || self.due.is_empty() {
            return false;
        }
        self.under_way = Some(std::mem::take(&mut self.due));
        true
    }

    /// The reading has ended: the questions that it answers.
    pub(super) fn end(&mut self) -> Vec<u64> {
        self.under_way.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_read_for_who_has_left() {
        let mut readings = Readings::default();
        readings.add(0);
        assert!(readings.begin(|_| true));
        for wave in 1..1_000 {
            readings.add(wave);
            assert!(!readings.begin(|other| other == wave), "one at a time");
            assert_eq!(readings.due, [wave]);
        }
        assert_eq!(readings.end(), [0]);
        assert!(!readings.begin(|_| false));
        readings.add(7);
        assert!(readings.begin(|_| true));
    }

    #[test]
    fn one_reading_answers_all_that_waited_as_it_began() {
        let mut readings = Readings::default();
        (0..3).for_each(|wave| readings.add(wave));
        assert!(readings.begin(|wave| wave != 1));
        // A question is not answered by a reading that began before it.
        readings.add(3);
        assert_eq!(readings.end(), [0, 2]);
        assert!(readings.begin(|_| true));
        assert_eq!(readings.end(), [3]);
        assert!(!readings.begin(|_| true));
    }
}

//! Figures that only one table has, and their summary over the rounds of a row.

use std::collections::BTreeMap;

use serde_json::Value;

use super::meter::{Latencies, Sample};
use crate::report::Latency;
use crate::stats::median;

/// A figure of only one table. The variant determines its summary over rounds.
#[derive(Debug, Clone)]
pub enum Figure {
    /// The median of the rounds' values.
    Median(Vec<f64>),
    /// The sum of the first values, divided by the sum of the second.
    Ratio(f64, f64),
    Count(u64),
    Latency(Latencies),
}

impl Figure {
    pub fn median(value: f64) -> Self {
        Self::Median(vec![value])
    }

    fn add(&mut self, round: &Self) {
        match (self, round) {
            (Self::Median(all), Self::Median(more)) => all.extend(more),
            (Self::Ratio(sum, by), Self::Ratio(more, other)) => (*sum, *by) = (*sum + more, *by + other),
            (Self::Count(sum), Self::Count(more)) => *sum += more,
            (Self::Latency(all), Self::Latency(more)) => *all += more,
            _ => unreachable!("a figure is of one kind in all rounds"),
        }
    }

    /// `None` if there is no value.
    fn value(self) -> Option<Value> {
        match self {
            Self::Median(all) => Some(median(&all).into()),
            Self::Ratio(sum, by) => (by > 0.0).then(|| (sum / by).into()),
            Self::Count(count) => (count > 0).then(|| count.into()),
            Self::Latency(all) if all.is_empty() => None,
            Self::Latency(all) => serde_json::to_value(Latency::of(&all)).ok(),
        }
    }

    /// Returns the summaries over all rounds, by name.
    pub(super) fn sum(samples: &[Sample]) -> BTreeMap<String, Value> {
        let mut all: BTreeMap<&str, Self> = BTreeMap::new();
        for (name, figure) in samples.iter().flat_map(|sample| &sample.figures) {
            all.entry(name).and_modify(|sum| sum.add(figure)).or_insert_with(|| figure.clone());
        }
        all.into_iter().filter_map(|(name, sum)| Some((name.to_owned(), sum.value()?))).collect()
    }
}

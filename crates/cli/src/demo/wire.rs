//! What the demo and its workers say to each other: orders into a worker's standard input, one word a line, and news
//! out of its standard output, one JSON object a line.

use std::fmt;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::figures::Done;

/// To a worker. When its input ends, the demo is gone, and so goes the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Begin to work.
    Start,
    /// What is done from now on counts.
    Measure,
    /// Say what was done, and end.
    Finish,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Start => "start",
            Order::Measure => "measure",
            Order::Finish => "finish",
        })
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Order, String> {
        let all = [Order::Start, Order::Measure, Order::Finish];
        all.into_iter().find(|order| order.to_string() == text).ok_or_else(|| format!("{text:?} is no order"))
    }
}

/// What comes from a worker: each act has its own.
pub trait Tidings: DeserializeOwned + Send + 'static {
    /// Whether the worker has said its last, and may go.
    fn is_last(&self) -> bool;
}

/// From a worker that shares the GPU's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It has its context, its memory and its kernel, and waits for the order to start.
    Ready,
    /// Before it counts: what was done since the start. Latencies are those since the news before.
    Warming(Done),
    /// What was done since the order to measure. Latencies are those since the news before.
    Measuring(Done),
    /// The last of them, with all latencies since the order to measure.
    Finished(Done),
}

impl Tidings for News {
    fn is_last(&self) -> bool {
        matches!(self, News::Finished(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_news_arrive_as_they_were_sent() {
        for order in [Order::Start, Order::Measure, Order::Finish] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        assert!("stop".parse::<Order>().is_err());
        let done = Done { elapsed_ns: 7, units: 2, latencies_ns: vec![1, 2] };
        for news in [News::Ready, News::Warming(Done::default()), News::Measuring(done.clone()), News::Finished(done)] {
            let line = serde_json::to_string(&news).expect("JSON");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<News>(&line).expect("its own"), news);
        }
    }
}

//! The ballot: votes are counted in memory, and nobody can vote for doughnuts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use tonic::Status;

use crate::{api, emoji, grpc};

const NEVER: &str = "VoteDoughnut";

/// Votes by shortcode; it has one entry an emoji at most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Voting(Arc<Mutex<BTreeMap<String, i32>>>);

impl grpc::Unary for Voting {
    const NAME: &'static str = api::VOTING;

    fn call(&self, method: &str, _: Bytes) -> Result<Vec<u8>, Status> {
        match method {
            "Results" => Ok(self.standings().encode_to_vec()),
            NEVER => Err(Status::unknown("ERROR")),
            _ => {
                let shortcode =
                    emoji::voted_for(method).ok_or_else(|| Status::unimplemented(method))?;
                let mut votes = self.0.lock();
                let count = votes.entry(shortcode).or_default();
                *count = count.saturating_add(1);
                Ok(api::Empty {}.encode_to_vec())
            }
        }
    }
}

impl Voting {
    /// The most popular first.
    fn standings(&self) -> api::Standings {
        let votes = self.0.lock();
        let mut results: Vec<api::Standing> = votes
            .iter()
            .map(|(shortcode, votes)| api::Standing {
                shortcode: shortcode.clone(),
                votes: *votes,
            })
            .collect();
        results.sort_by_key(|standing| std::cmp::Reverse(standing.votes));
        api::Standings { results }
    }
}

#[cfg(test)]
mod tests {
    use grpc::Unary as _;
    use tonic::Code;

    use super::*;

    #[test]
    fn votes_are_counted_and_doughnuts_refused() {
        let voting = Voting::default();
        let vote = |method: &str| voting.call(method, Bytes::new()).map(drop);
        vote("VoteJoy").expect("counted");
        vote("VoteRocket").expect("counted");
        vote("VoteRocket").expect("counted");
        assert_eq!(
            vote("VoteDoughnut").expect_err("never").code(),
            Code::Unknown
        );
        assert_eq!(
            vote("VoteNothing").expect_err("no such emoji").code(),
            Code::Unimplemented
        );
        let results = voting.standings().results;
        let results: Vec<(&str, i32)> = results
            .iter()
            .map(|r| (r.shortcode.as_str(), r.votes))
            .collect();
        assert_eq!(results, [(":rocket:", 2), (":joy:", 1)]);
    }
}

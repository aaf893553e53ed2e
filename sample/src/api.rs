//! What the services say to each other over gRPC.

pub(crate) const EMOJI: &str = "emojivoto.v1.EmojiService";
pub(crate) const VOTING: &str = "emojivoto.v1.VotingService";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Emoji {
    #[prost(string, tag = "1")]
    pub(crate) unicode: String,
    #[prost(string, tag = "2")]
    pub(crate) shortcode: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EmojiList {
    #[prost(message, repeated, tag = "1")]
    pub(crate) list: Vec<Emoji>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Shortcode {
    #[prost(string, tag = "1")]
    pub(crate) shortcode: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Found {
    #[prost(message, optional, tag = "1")]
    pub(crate) emoji: Option<Emoji>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Standing {
    #[prost(string, tag = "1")]
    pub(crate) shortcode: String,
    #[prost(int32, tag = "2")]
    pub(crate) votes: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Standings {
    #[prost(message, repeated, tag = "1")]
    pub(crate) results: Vec<Standing>,
}

/// Each emoji has a method of its own, so that each has its own route and success rate:
/// `:man_dancing:` is voted for with `VoteManDancing`.
pub(crate) fn vote_method(shortcode: &str) -> String {
    let words = shortcode
        .trim_matches(':')
        .split(|c: char| !c.is_ascii_alphanumeric());
    let mut method = "Vote".to_owned();
    for word in words {
        let mut letters = word.chars();
        method.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        method.extend(letters);
    }
    method
}

#[cfg(test)]
mod tests {
    use super::vote_method;

    #[test]
    fn a_method_for_every_emoji() {
        for (shortcode, method) in [
            (":doughnut:", "VoteDoughnut"),
            (":man_dancing:", "VoteManDancing"),
            (":100:", "Vote100"),
            (":heart_eyes_cat:", "VoteHeartEyesCat"),
        ] {
            assert_eq!(vote_method(shortcode), method);
        }
    }
}

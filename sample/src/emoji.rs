//! The emoji there are.

use bytes::Bytes;
use prost::Message as _;
use tonic::Status;

use crate::{api, grpc};

/// The service; it has no state.
#[derive(Clone, Debug)]
pub(crate) struct Emoji;

impl grpc::Unary for Emoji {
    const NAME: &'static str = api::EMOJI;

    fn call(&self, method: &str, message: Bytes) -> Result<Vec<u8>, Status> {
        match method {
            "ListAll" => Ok(api::EmojiList { list: all() }.encode_to_vec()),
            "FindByShortcode" => {
                let asked = api::Shortcode::decode(message)
                    .map_err(|error| Status::invalid_argument(error.to_string()))?;
                let emoji = all()
                    .into_iter()
                    .find(|emoji| emoji.shortcode == asked.shortcode);
                Ok(api::Found { emoji }.encode_to_vec())
            }
            _ => Err(Status::unimplemented(method)),
        }
    }
}

fn all() -> Vec<api::Emoji> {
    let emoji = CATALOGUE.iter().map(|(unicode, name)| api::Emoji {
        unicode: (*unicode).to_owned(),
        shortcode: format!(":{name}:"),
    });
    emoji.collect()
}

/// The shortcode of the emoji that a method votes for.
pub(crate) fn voted_for(method: &str) -> Option<String> {
    let mut names = CATALOGUE.iter().map(|(_, name)| name);
    let name = names.find(|name| api::vote_method(name) == method)?;
    Some(format!(":{name}:"))
}

#[rustfmt::skip]
const CATALOGUE: &[(&str, &str)] = &[
    ("🍩", "doughnut"), ("👻", "ghost"), ("👽", "alien"), ("🤖", "robot"), ("💩", "poop"), ("💯", "100"),
    ("🎉", "tada"), ("👋", "wave"), ("👌", "ok_hand"), ("👍", "+1"), ("👏", "clap"), ("🙏", "pray"),
    ("💃", "dancer"), ("🕺", "man_dancing"), ("🚶", "walking"), ("🏃", "running"), ("🧗", "climbing_man"),
    ("🏊", "swimmer"), ("🚴", "bicyclist"), ("🐵", "monkey_face"), ("🙈", "see_no_evil"), ("🙉", "hear_no_evil"),
    ("🙊", "speak_no_evil"), ("🐶", "dog"), ("🐱", "cat2"), ("😻", "heart_eyes_cat"), ("😹", "joy_cat"),
    ("🦊", "fox_face"), ("🐷", "pig"), ("🐭", "mouse"), ("🐰", "rabbit"), ("🐻", "bear"), ("🐼", "panda_face"),
    ("🐔", "chicken"), ("🐸", "frog"), ("🐢", "turtle"), ("🐙", "octopus"), ("🐋", "whale"), ("🦀", "crab"),
    ("🌵", "cactus"), ("🌻", "sunflower"), ("🌈", "rainbow"), ("⭐", "star"), ("🔥", "fire"), ("⛵", "boat"),
    ("🚀", "rocket"), ("✈", "airplane"), ("🚂", "steam_locomotive"), ("🍕", "pizza"), ("🌮", "taco"),
    ("🌯", "burrito"), ("🍣", "sushi"), ("🍜", "ramen"), ("🥑", "avocado"), ("🍓", "strawberry"), ("🍺", "beer"),
    ("🍷", "wine_glass"), ("🍸", "cocktail"), ("☕", "coffee"), ("🏆", "trophy"), ("⚽", "soccer"),
    ("🎸", "guitar"), ("🎺", "trumpet"), ("🎃", "jack_o_lantern"), ("💡", "bulb"), ("📟", "pager"),
    ("💾", "floppy_disk"), ("🔒", "lock"), ("🛶", "canoe"), ("🗿", "moyai"), ("❤", "heart"), ("😂", "joy"),
    ("😎", "sunglasses"), ("🤔", "thinking"), ("😱", "scream"), ("🤠", "cowboy_hat_face"), ("🦄", "unicorn"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_emoji_has_a_method_of_its_own() {
        let methods: BTreeSet<String> = CATALOGUE
            .iter()
            .map(|(_, name)| api::vote_method(name))
            .collect();
        assert_eq!(methods.len(), CATALOGUE.len());
        assert_eq!(voted_for("VoteDoughnut").as_deref(), Some(":doughnut:"));
        assert_eq!(voted_for("VoteNothing"), None);
    }
}

//! The scanner against JSON's grammar and against what servers get wrong.

use super::*;

fn whole(text: &str) -> Result<(), Error> {
    let mut tokens = Tokens::new(text.as_bytes());
    while tokens.next()?.is_some() {}
    Ok(())
}

#[test]
fn the_grammar_is_json_s_and_nothing_more() {
    for good in [
        "null",
        " true ",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "0",
        "-0",
        "1.5e+3",
        "\"\\u00e9\\n\"",
        "[1,[2,{\"a\":[]}],3]",
        "{\"a\":{\"b\":1},\"c\":[]}",
        "\"\u{7f}\"",
    ] {
        assert_eq!(whole(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        " ",
        "[",
        "{",
        "]",
        "[1,]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "+1",
        "1.",
        ".5",
        "1e",
        "--1",
        "nul",
        "\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\t\"",
        "[1 2]",
        "{\"a\":1 \"b\":2}",
        "[}",
        "{]",
        "[1}",
        "'a'",
        "{,}",
        "[,]",
        "\u{feff}1",
        "\"\\u12",
    ] {
        assert!(matches!(whole(bad), Err(Error::Malformed(_))), "{bad}: {:?}", whole(bad));
    }
    for trailing in ["01", "1 2", "{} {}", "[] ,", "null,", "\"a\"]", "{}}"] {
        assert!(matches!(whole(trailing), Err(Error::Trailing(_))), "{trailing}: {:?}", whole(trailing));
    }
}

#[test]
fn ten_thousand_levels_are_data_and_one_more_is_refused() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(whole(&nested(MAX_DEPTH)), Ok(()));
    assert_eq!(whole(&nested(MAX_DEPTH + 1)), Err(Error::TooDeep));
}

#[test]
fn an_object_is_cut_into_members_as_they_were_written() {
    let cut = members(br#" { "a" : 1.50 , "\u0062":{"a":[1, 2]},"a":[ ] } "#).unwrap();
    let seen: Vec<_> = cut.iter().map(|m| (m.key.as_str(), str::from_utf8(m.value).unwrap())).collect();
    assert_eq!(seen, [("a", "1.50"), ("b", r#"{"a":[1, 2]}"#), ("a", "[ ]")]);
    assert_eq!(cut[1].written_key, br#""\u0062""#);
    assert_eq!(last(&cut, "a").unwrap().value, b"[ ]");
    assert_eq!(members(b"[1]"), Err(Error::Kind("an object")));
    assert!(matches!(members(b"[1"), Err(Error::Malformed(_))));
    assert!(matches!(members(b"{\"a\":1} x"), Err(Error::Trailing(_))));
    assert_eq!(members(b"{}").unwrap(), []);
}

#[test]
fn an_array_is_cut_into_items_as_they_were_written() {
    let cut = items(br#"[ {"a": [1,2]} , 3,[4 , 5] ,"x,y", null]"#).unwrap();
    let seen: Vec<_> = cut.iter().map(|item| str::from_utf8(item).unwrap()).collect();
    assert_eq!(seen, [r#"{"a": [1,2]}"#, "3", "[4 , 5]", r#""x,y""#, "null"]);
    assert_eq!(items(b"[]").unwrap(), Vec::<&[u8]>::new());
    assert_eq!(items(b"{}"), Err(Error::Kind("an array")));
}

#[test]
fn strings_decode_leniently_and_surrogates_pair_up() {
    assert_eq!(decode(br#""a\"\\\/\b\f\n\r\tz""#), "a\"\\/\u{8}\u{c}\n\r\tz");
    assert_eq!(decode(br#""\ud83d\ude00""#), "😀");
    assert_eq!(decode(br#""\ud800 \ud83dx \udc00\ud83d""#), "\u{fffd} \u{fffd}x \u{fffd}\u{fffd}");
    assert_eq!(decode(br#""\ud83d\ud83d\ude00""#), "\u{fffd}😀");
    assert_eq!(decode(b"\"\xff\xfe\xe4\xb8\""), "\u{fffd}\u{fffd}\u{fffd}\u{fffd}");
    assert_eq!(text(b" \"x\" "), Some("x".to_owned()));
    assert_eq!(text(b"1"), None);
}

#[test]
fn compact_text_keeps_everything_but_the_space_between() {
    let spaced = "\n{ \"b\" : [ 1.50 , -0 , \"a b\\u003c\" ] ,\t\"a\" : { } , \"b\": null}\n";
    assert_eq!(compact(spaced.as_bytes()).unwrap(), r#"{"b":[1.50,-0,"a b\u003c"],"a":{},"b":null}"#);
}

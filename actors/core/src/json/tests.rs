//! Tests of JSON text: its carrier, the boundary check, the sorted forms and the writers.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Holder {
    name: String,
    args: Json,
}

#[test]
fn a_field_keeps_its_text_byte_for_byte() {
    let text = r#"{"name":"n","args":{"b": 1.50, "a": [1e400, -0.0], "a": "\u003c"}}"#;
    let holder: Holder = serde_json::from_str(text).unwrap();
    assert_eq!(holder.args.as_str(), r#"{"b": 1.50, "a": [1e400, -0.0], "a": "\u003c"}"#);
    assert_eq!(serde_json::to_string(&holder).unwrap(), text);
}

#[test]
fn a_blank_text_is_written_null() {
    let holder = Holder { name: String::new(), args: Json::trusted(" \n") };
    assert!(holder.args.is_blank());
    assert_eq!(serde_json::to_string(&holder).unwrap(), r#"{"name":"","args":null}"#);
    assert!(!Json::empty_object().is_blank());
}

#[test]
fn deep_nesting_can_be_decoded() {
    let text = format!("{}1{}", "[".repeat(256), "]".repeat(256));
    let json = Json::checked(text.as_bytes()).unwrap();
    assert!(json.decode::<serde_json::Value>().unwrap().is_array());
}

#[test]
fn a_text_that_is_no_json_can_t_be_embedded() {
    let holder = Holder { name: String::new(), args: Json::trusted("{") };
    assert!(serde_json::to_string(&holder).is_err());
}

fn refusal(text: &str) -> String {
    check(text.as_bytes()).unwrap_err().to_string()
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn nesting_is_counted_before_anything_else_and_outside_strings() {
    assert_eq!(check(nested(256).as_bytes()), Ok(()));
    assert_eq!(check(nested(257).as_bytes()), Err(CheckError::TooDeep));
    assert_eq!(check("[".repeat(257).as_bytes()), Err(CheckError::TooDeep));
    assert_eq!(check([b"\xff".as_slice(), &[b'{'; 257]].concat().as_slice()), Err(CheckError::TooDeep));
    assert_eq!(check(format!(r#"["\"{}"]"#, "[".repeat(500)).as_bytes()), Ok(()));
    assert!(matches!(check("]".repeat(500).as_bytes()), Err(CheckError::Malformed { at: 0 })));
    assert_eq!(refusal(&nested(300)), "nested deeper than 256 levels");
    let siblings = format!("[{}[]]", "[],".repeat(1000));
    assert_eq!(check(siblings.as_bytes()), Ok(()));
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_before_their_form_is() {
    assert_eq!(check(b"\"\xff\""), Err(CheckError::NotUtf8));
    assert_eq!(check(b"{ \xed\xa0\x80"), Err(CheckError::NotUtf8));
}

#[test]
fn anything_but_one_value_is_refused() {
    for text in [
        "",
        " \n",
        "1 2",
        "{}{}",
        "[1,]",
        "{\"a\":1,}",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{1:1}",
        "[1 2]",
        "[}",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "nul",
        "truex",
        "'a'",
        "\"a",
        "\"\u{1}\"",
        "\"\n\"",
        r#""\x""#,
        r#""\u12g4""#,
        r#""\u123""#,
        "\u{feff}1",
        "\u{a0}1",
        "{",
        "[",
        "]",
        ",",
        ":",
        "\"\\",
    ] {
        assert!(matches!(check(text.as_bytes()), Err(CheckError::Malformed { .. })), "{text:?}");
    }
    assert_eq!(refusal("[1, 2"), "not one well-formed JSON value (byte 5)");
}

#[test]
fn white_space_around_and_inside_a_value_passes() {
    assert_eq!(check(b" \t\r\n{ \"a\" : [ 1 , true , null , \"\x7f/\" ] } \n"), Ok(()));
    for scalar in
        ["0", "-0", "-0.0e-0", "1E+2", "true", "false", "null", r#""""#, r#""\/\b\f\n\r\t\"\\\u0000""#]
    {
        assert_eq!(check(scalar.as_bytes()), Ok(()), "{scalar}");
    }
}

#[test]
fn an_escaped_surrogate_outside_a_pair_is_refused() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\udc00\ud800""#,
        r#""\ud800\ud800\udc00""#,
        r#""\ud83d\\ude00""#,
        r#""\ud83dx\ude00""#,
        r#""\uD83D \uDE00""#,
        r#"{"\udfff":1}"#,
    ] {
        assert!(matches!(check(text.as_bytes()), Err(CheckError::UnpairedSurrogate { .. })), "{text}");
    }
    for text in [
        r#""\ud83d\ude00""#,
        r#""\uD83D\uDE00\u0041""#,
        r#""\\ud800""#,
        r#""\\\\udc00""#,
        r#""\ud7ff\ue000""#,
    ] {
        assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
    }
    assert_eq!(refusal(r#"["\ud83d\ude00","x\uD800y"]"#), r"unpaired surrogate \uD800");
}

#[test]
fn a_repeated_key_is_refused_by_what_it_says() {
    assert_eq!(refusal(r#"{"a":1,"b":2,"a":3}"#), r#"duplicate key "a""#);
    assert_eq!(refusal(r#"{"a":1,"\u0061":2}"#), r#"duplicate key "a""#);
    assert_eq!(refusal(r#"[{"x":{"":1,"":2}}]"#), r#"duplicate key """#);
    assert_eq!(refusal("{\"\u{1f600}\":1,\"\\ud83d\\ude00\":2}"), "duplicate key \"\u{1f600}\"");
    assert_eq!(check(br#"{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}],"A":1,"a ":1}"#), Ok(()));
    let long = "k".repeat(5000);
    assert!(refusal(&format!(r#"{{"{long}":1,"{long}":1}}"#)).len() < 200);
}

#[test]
fn the_repeated_key_named_is_the_first_in_the_document() {
    assert_eq!(refusal(r#"{"z":1,"a":1,"z":2,"a":2}"#), r#"duplicate key "z""#);
    assert_eq!(refusal(r#"{"a":{"b":1,"b":2},"a":3}"#), r#"duplicate key "b""#);
    assert_eq!(refusal(r#"{"a":1,"a":{"b":1,"b":2}}"#), r#"duplicate key "a""#);
    assert!(refusal(r#"{"a":1e400,"a":2}"#).contains("64-bit float"));
    assert_eq!(refusal(r#"{"a":1,"a":1e400}"#), r#"duplicate key "a""#);
}

#[test]
fn a_number_beyond_a_float_is_refused_inside_a_container_only() {
    for text in ["1e400", "-1e400", "1e10000", "1.8e308", "0.18e309"] {
        assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        assert!(refusal(&format!("[{text}]")).contains("is beyond the range"), "{text}");
        assert!(refusal(&format!(r#"{{"a":{text}}}"#)).contains("is beyond the range"), "{text}");
    }
    let long = format!("[{}]", "9".repeat(309));
    assert!(refusal(&long).contains("is beyond the range"));
    assert_eq!(check(format!("[{}]", "9".repeat(308)).as_bytes()), Ok(()));
    assert_eq!(check(b"[1e-400,-1e-10000,1.7976931348623157e308]"), Ok(()));
    assert!(refusal("[1.7976931348623159e308]").contains("1.7976931348623159e308"));
}

#[test]
fn a_number_s_written_length_and_exponent_are_bounded() {
    assert_eq!(check(format!("0.{}", "1".repeat(9_998)).as_bytes()), Ok(()));
    assert!(refusal(&format!("0.{}", "1".repeat(9_999))).contains("longer than 10000 bytes"));
    for text in ["1e10000", "1E-10000", "1e+00010000", "0e10000"] {
        assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
    }
    for text in ["1e10001", "1E-10001", "1e+00010001", "0e10001", "1e99999999999999999999"] {
        assert!(refusal(text).contains("exponent beyond ±10000"), "{text}");
    }
    assert!(refusal(r#"{"a":[1e-10001]}"#).contains("exponent"));
}

#[test]
fn the_first_rule_broken_names_the_refusal() {
    assert!(matches!(check(br#"{"a":1,"a":"\ud800""#), Err(CheckError::Malformed { .. })));
    assert!(refusal(r#"{"a":1,"a":1e400,"b":"\ud800"}"#).contains("surrogate"));
    assert!(refusal(r#"{"n":1e-20000,"a":1,"a":1}"#).contains("duplicate"));
}

#[test]
fn the_tolerant_form_takes_what_the_check_refuses() {
    assert_eq!(canonical_trusted(""), "null");
    assert_eq!(canonical_trusted(" \t\r\n"), "null");
    assert_eq!(
        canonical_trusted(r#"{"b":1,"a":1,"b":{"d":1,"c":2,"c":3}} trailing"#),
        r#"{"a":1,"b":{"c":3,"d":1}}"#
    );
    assert_eq!(canonical_trusted(r#"{"a":1,"\u0061":2}"#), r#"{"a":2}"#);
    assert_eq!(canonical_trusted(r#"["\ud800\ud800\udc00\udc00x"]"#), "[\"\u{fffd}\u{10000}\u{fffd}x\"]");
    assert_eq!(canonical_trusted("{broken"), "{broken");
    assert_eq!(canonical_trusted(&nested(3000)), nested(3000));
    assert!(canonical(r#"{"a":1,"a":2}"#).is_err());
    assert!(policy_form("").is_err());
}

#[test]
fn keys_are_sorted_by_their_bytes_after_unescaping() {
    let text = r#"{"\ufb01":1,"\ud83d\ude00":2,"b":{"z":[{"y":1,"x":2}],"a":0},"\u0061":3,"":4,"B":5}"#;
    assert_eq!(
        canonical(text).unwrap(),
        "{\"\":4,\"B\":5,\"a\":3,\"b\":{\"a\":0,\"z\":[{\"x\":2,\"y\":1}]},\"ﬁ\":1,\"😀\":2}"
    );
}

#[test]
fn a_writer_keeps_the_order_it_is_given_and_a_sorted_one_does_not() {
    let fill = |writer: &mut ObjectWriter| {
        writer.str("b", "x").int("a", -1).bool("c", true).null("B");
    };
    let mut plain = ObjectWriter::new();
    fill(&mut plain);
    assert_eq!(plain.finish(), r#"{"b":"x","a":-1,"c":true,"B":null}"#);
    let mut sorted = ObjectWriter::sorted();
    fill(&mut sorted);
    sorted.sorted_object("aa", |inner| fill(inner)).object("ab", |inner| fill(inner));
    assert_eq!(
        sorted.finish(),
        concat!(
            r#"{"B":null,"a":-1,"aa":{"B":null,"a":-1,"b":"x","c":true},"#,
            r#""ab":{"b":"x","a":-1,"c":true,"B":null},"b":"x","c":true}"#
        )
    );
}

#[test]
fn empty_members_can_be_left_out() {
    let mut writer = ObjectWriter::new();
    writer.omit_empty_str("s", "").omit_empty_int("i", 0).omit_empty_bool("b", false).omit_empty_raw("r", "");
    assert_eq!(writer.finish(), "{}");
    let mut writer = ObjectWriter::new();
    writer
        .omit_empty_str("s", "x")
        .omit_empty_int("i", 1)
        .omit_empty_bool("b", true)
        .omit_empty_raw("r", "{ }");
    assert_eq!(writer.finish_json().as_str(), r#"{"s":"x","i":1,"b":true,"r":{}}"#);
}

#[test]
fn arrays_and_objects_nest() {
    let mut writer = ObjectWriter::new();
    writer.array("list", |list| {
        list.str("<").int(2).raw(" [ 1 ] ").raw("").array(|_| {}).object(|inner| {
            inner.object("o", |_| {});
        });
        list.sorted_object(|inner| {
            inner.int("b", 1).int("a", 2);
        });
    });
    assert_eq!(writer.finish(), r#"{"list":["\u003c",2,[1],null,[],{"o":{}},{"a":2,"b":1}]}"#);
}

#[test]
fn strings_are_escaped_like_the_reference_s() {
    let mut writer = ObjectWriter::new();
    writer.str("<k>", "\"\\/\u{8}\u{c}\n\r\t\0\u{1f}\u{7f}<>&\u{2028}\u{2029}\u{2027}é😀");
    assert_eq!(
        writer.finish(),
        concat!(
            r#"{"\u003ck\u003e":"\"\\/\b\f\n\r\t\u0000\u001f"#,
            "\u{7f}",
            r"\u003c\u003e\u0026\u2028\u2029",
            "\u{2027}é😀\"}"
        )
    );
}

#[test]
fn plain_text_escapes_only_what_json_and_the_separators_need() {
    let fill = |writer: &mut ObjectWriter| {
        writer.str("s", "<&>\u{2028}\"").raw("raw", "{ \"a\": \"\\u003c<\u{2028}\" }");
        writer.array("list", |list| {
            list.str("<").object(|inner| {
                inner.str("t", "&");
            });
        });
    };
    let mut plain = ObjectWriter::plain();
    fill(&mut plain);
    let expected =
        "{\"s\":\"<&>\\u2028\\\"\",\"raw\":{\"a\":\"\\u003c<\u{2028}\"},\"list\":[\"<\",{\"t\":\"&\"}]}";
    assert_eq!(plain.finish(), expected);
    assert_eq!(compact("[ 1 , \" < \" ]\n"), "[1,\" < \"]");
}

#[test]
fn embedded_json_is_compacted_and_escaped_and_otherwise_kept() {
    assert_eq!(
        compact_escaped(
            " { \"b\" : 1.50 ,\r\n\t\"a\" : [ \"< \\\" > \\\\\" , \"\\/\\u0041\\u003C\" , \"\u{2028}é\" ] } "
        ),
        "{\"b\":1.50,\"a\":[\"\\u003c \\\" \\u003e \\\\\",\"\\/\\u0041\\u003C\",\"\\u2028é\"]}"
    );
}

#[test]
fn the_three_escapings_differ_in_what_they_add() {
    let quoted = |escapes| {
        let mut out = String::new();
        push_quoted(&mut out, "<\u{2028}\n", escapes);
        out
    };
    assert_eq!(quoted(Escapes::Html), r#""\u003c\u2028\n""#);
    assert_eq!(quoted(Escapes::Separators), r#""<\u2028\n""#);
    assert_eq!(quoted(Escapes::Minimal), "\"<\u{2028}\\n\"");
}

/// Documents of all kinds, in a spelling of their own: white space, escapes, key order, numbers as text.
fn document() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        r"-?(0|[1-9][0-9]{0,4})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        string(),
    ];
    let space = || prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\n\t")];
    scalar.prop_recursive(5, 60, 6, move |inner| {
        let element = (space(), inner.clone(), space()).prop_map(|(a, v, b)| format!("{a}{v}{b}"));
        let member = (space(), string(), space(), inner, space())
            .prop_map(|(a, k, b, v, c)| format!("{a}{k}{b}:{v}{c}"));
        prop_oneof![
            prop::collection::vec(element, 0..6).prop_map(|all| format!("[{}]", all.join(","))),
            prop::collection::vec(member, 0..6).prop_map(|all| format!("{{{}}}", all.join(","))),
        ]
    })
}

/// Strings, quoted, with escapes of every kind; some with unpaired surrogates.
fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[a-c<>&/ \u{7f}é\u{2028}\u{2029}😀]",
        2 => Just(r#"\""#.to_owned()),
        1 => r"\\[bfnrt/\\]",
        2 => r"\\u00[0-7][0-9a-fA-F]",
        1 => Just(r"\u2028".to_owned()),
        1 => Just(r"\ud83d\ude00".to_owned()),
        1 => Just(r"\udc00".to_owned()),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

/// Makes the same tree in the other way: serde_json's, with the last of each repeated key.
fn tree(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

proptest! {
    #[test]
    fn the_check_agrees_with_serde_json_on_what_is_well_formed(
        text in prop_oneof![r#"[\[\]{},:"\\ueE0-9.+\-a-ftrln \n]{0,12}"#, document()],
        cut in 0_usize..400,
    ) {
        for text in [text.as_str(), text.get(..cut).unwrap_or(&text)] {
            let well_formed = serde_json::from_str::<&RawValue>(text).is_ok();
            let malformed = matches!(check(text.as_bytes()), Err(CheckError::Malformed { .. }));
            prop_assert_eq!(well_formed, !malformed, "{}", text);
        }
    }

    #[test]
    fn the_canonical_form_is_its_own(text in document()) {
        let form = canonical_trusted(&text);
        prop_assert_eq!(canonical_trusted(&form), form.clone());
        prop_assert_eq!(compact_escaped(&form), form.clone());
        if check(text.as_bytes()).is_ok() {
            prop_assert_eq!(canonical(&form).unwrap(), form);
        }
    }

    #[test]
    fn the_canonical_form_says_what_the_document_says(text in document()) {
        prop_assume!(!text.contains(r"\udc00"));
        prop_assert_eq!(tree(&canonical_trusted(&text)), tree(&text));
        prop_assert_eq!(tree(&policy_form_trusted(&text)), tree(&text));
        prop_assert_eq!(tree(&compact_escaped(&text)), tree(&text));
    }

    #[test]
    fn the_policy_form_follows_from_the_canonical_form(text in document()) {
        prop_assert_eq!(policy_form_trusted(&canonical_trusted(&text)), policy_form_trusted(&text));
        prop_assert_eq!(policy_form_trusted(&compact_escaped(&text)), policy_form_trusted(&text));
        prop_assert_eq!(canonical_trusted(&policy_form_trusted(&text)), canonical_trusted(&text));
    }

    #[test]
    fn what_a_writer_wrote_reads_back(key: String, text: String, number: i64, embedded in document()) {
        prop_assume!(!embedded.contains(r"\udc00"));
        let mut writer = ObjectWriter::sorted();
        writer.object("inner", |inner| {
            inner.str(&key, &text).int("number", number);
        });
        writer.raw("embedded", &embedded);
        let written = tree(&writer.finish());
        prop_assert_eq!(&written["inner"][&key], &Value::from(text));
        prop_assert_eq!(&written["inner"]["number"], &Value::from(number));
        prop_assert_eq!(&written["embedded"], &tree(&embedded));
    }

    #[test]
    fn anything_may_be_checked_without_a_panic(bytes: Vec<u8>) {
        let _verdict = check(&bytes);
        let _form = canonical_trusted(&String::from_utf8_lossy(&bytes));
    }
}

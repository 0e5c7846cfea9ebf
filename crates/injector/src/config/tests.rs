use super::*;

#[test]
fn an_empty_file_is_the_default() {
    for text in ["", "\n", "# nothing\n", "{}"] {
        assert_eq!(Config::parse(text), Ok(Config::default()), "{text:?}");
    }
}

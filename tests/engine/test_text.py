"""Incremental text equals the text of the whole, character by character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlite.engine.text import TextStream


class Bytes:
    """Ids are UTF-8 bytes; id 256 is special and silent."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Incomplete characters show as U+FFFD."""
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class Words:
    """As SentencePiece does: every piece opens with a space, which the first one of a text loses."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """One word an id."""
        return "".join(f" w{i}" for i in ids)[1:]


@given(st.text(st.sampled_from("aé€😀 "), max_size=12), st.integers(0, 12))
def test_bytes_come_out_as_whole_characters(text: str, special: int) -> None:
    stream, ids = TextStream(Bytes()), list(text.encode())
    ids.insert(min(special, len(ids)), 256)
    pieces = [stream.push(i) for i in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + stream.flush() == bytes(i for i in ids if i < 256).decode()


def test_an_unfinished_character_is_held_back_until_the_end() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(i) for i in b"a\xf0\x9f"] == ["a", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


@given(st.lists(st.integers(0, 30), max_size=12))
def test_spaces_between_words_are_kept(ids: list[int]) -> None:
    stream = TextStream(Words())
    assert "".join(stream.push(i) for i in ids) + stream.flush() == Words().decode(ids)


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None)
    assert (stream.push(3), stream.flush()) == ("", "")

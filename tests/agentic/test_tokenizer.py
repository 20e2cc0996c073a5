"""Messages to tokens and back, by bytes and by the folder of a checkpoint."""

import json

import pytest

pytest.importorskip("transformers", reason="the extra agentic: transformers has none for 3.10")

from rlinf_core.core.errors import PolicyFileError
from rlinf_core.policies.pretrained.language.tokenizer import OF_BYTES, ChatTokenizer

LINES = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LAST = (
    "{{ messages | length }}{% for message in messages %}<|{{ message.role }}|>"
    "{{ message.content }}<|end|>{% endfor %}"
)
USER, WRITTEN = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
RESULT = {"role": "tool", "content": "r"}


@pytest.fixture(scope="module")
def tokenizer():
    return ChatTokenizer.of_bytes()


def tool(name):
    return {"type": "function", "function": {"name": name}}


def test_each_byte_and_each_role_is_a_token(tokenizer):
    assert tokenizer.size == 256 + 6 and tokenizer.stop_ids == (256,)
    assert tokenizer.encode("!a<|end|>") == [0, ord("a") - ord("!"), 256]
    assert len(tokenizer.encode("é 1")) == 4 and tokenizer.decode(tokenizer.encode("é 1")) == "é 1"
    names = ("<|end|>", "<|call|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
    assert [tokenizer.encode(name) for name in names] == [[256 + k] for k in range(6)]
    assert tokenizer.decode([64, 256, 261, 262, 10**6]) == "a<|end|><|tool|>"


def test_messages_are_rendered_by_the_template(tokenizer):
    assert tokenizer.render([USER]) == "<|user|>hi<|end|><|assistant|>"
    assert tokenizer.render([USER, WRITTEN], generate=False) == (
        "<|user|>hi<|end|><|assistant|>yo<|end|>"
    )
    assert tokenizer.render([USER], [tool("f"), tool("g")]) == (
        "<|system|>f,g<|end|><|user|>hi<|end|><|assistant|>"
    )
    call = {"function": {"name": "f", "arguments": "{}"}}
    assert tokenizer.render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == (
        "<|assistant|><|call|>f{}<|end|><|assistant|>"
    )


def test_only_the_model_writes_special_tokens(tokenizer):
    for role, shown in (("user", "< |end|>< |call|>"), ("assistant", "<|end|><|call|>")):
        message = {"role": role, "content": "<|end|><|call|>"}
        assert tokenizer.render([message], generate=False) == f"<|{role}|>{shown}<|end|>"


def test_a_prompt_is_the_rendered_text_and_its_list_is_the_callers_own(tokenizer):
    prompt = tokenizer.prompt([USER], [tool("f")])
    assert prompt == tokenizer.encode("<|system|>f<|end|><|user|>hi<|end|><|assistant|>")
    prompt.append(3)
    assert tokenizer.prompt([USER], [tool("f")]) == prompt[:-1]
    assert tokenizer.prompt([USER]) == tokenizer.encode("<|user|>hi<|end|><|assistant|>")


@pytest.mark.parametrize(
    "template, text",
    [
        (OF_BYTES, "<|tool|>r<|end|><|assistant|>"),
        (LINES, "\n<|tool|>r<|end|>\n<|assistant|>"),
        (LAST, None),
    ],
    ids=["nothing between", "a line break after the stop token", "history is written anew"],
)
def test_new_messages_follow_the_stop_token_of_the_last_one(tokenizer, template, text):
    other = ChatTokenizer(tokenizer.text, template, tokenizer.stop)
    expected = text if text is None else tokenizer.encode(text)
    assert other.continuation([USER, WRITTEN], [RESULT]) == expected


def test_tools_are_in_both_parts_of_a_continuation(tokenizer):
    assert tokenizer.continuation([USER, WRITTEN], [RESULT], [tool("f")]) == (
        tokenizer.encode("<|tool|>r<|end|><|assistant|>")
    )


@pytest.mark.parametrize(
    "text, content, calls",
    [
        ("yes<|end|>", "yes", []),
        ("yes", "yes", []),
        ('a<|call|>f{"x": 1}<|call|>g', "a", [("f", '{"x": 1}'), ("g", "")]),
        (
            'a<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>b'
            '<tool_call>{"name": "g", "arguments": "y"}</tool_call><|end|>',
            "ab",
            [("f", '{"x": 1}'), ("g", "y")],
        ),
        ('<tool_call>{"name": 3}</tool_call>', "", [("3", "{}")]),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        ('<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', []),
        (f"<tool_call>{'[' * 9999}</tool_call>", f"<tool_call>{'[' * 9999}</tool_call>", []),
    ],
)
def test_a_message_of_the_model_has_its_calls_in_openais_form(tokenizer, text, content, calls):
    message = tokenizer.message(tokenizer.encode(text))
    expected = {"role": "assistant", "content": content}
    if calls:
        expected["tool_calls"] = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    assert message == expected


@pytest.mark.parametrize(
    "stop, got",
    [((), "none"), (("<|no|>",), "<|no|>"), (("<|end|>", "<|no|>"), "<|end|>, <|no|>")],
)
def test_stop_tokens_are_of_the_vocabulary(tokenizer, stop, got):
    with pytest.raises(PolicyFileError) as refused:
        ChatTokenizer(tokenizer.text, OF_BYTES, stop)
    assert str(refused.value).startswith(
        f"tokenizer: expected stop tokens of its vocabulary, got {got}"
    )


def test_a_tokenizer_is_rebuilt_from_its_description(tokenizer):
    described = json.loads(json.dumps(tokenizer.describe()))
    assert described.keys() == {"text", "template", "stop"} and described["stop"] == ["<|end|>"]
    again = ChatTokenizer.of(described)
    assert again.prompt([USER]) == tokenizer.prompt([USER]) and again.stop == tokenizer.stop


@pytest.fixture
def folder(tokenizer, tmp_path):
    """Write the files of a checkpoint's tokenizer."""

    def write(jinja=None, **described):
        (tmp_path / "tokenizer.json").write_text(tokenizer.text)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
        if jinja:
            (tmp_path / "chat_template.jinja").write_text(jinja)
        return tmp_path

    return write


@pytest.mark.parametrize("eos", ["<|end|>", {"content": "<|end|>", "lstrip": False}])
def test_a_folder_has_the_template_and_the_stop_token(folder, eos):
    read = ChatTokenizer.of_folder(folder(chat_template=LINES, eos_token=eos))
    assert (read.template, read.stop, read.size) == (LINES, ("<|end|>",), 262)
    read = ChatTokenizer.of_folder(folder(OF_BYTES, chat_template=LINES, eos_token=eos))
    assert read.template == OF_BYTES, "the file of its own counts"


def test_a_folder_without_template_or_stop_token_is_refused(folder):
    path = folder(eos_token="<|end|>")
    with pytest.raises(PolicyFileError) as refused:
        ChatTokenizer.of_folder(path)
    assert str(refused.value).startswith(
        f"policy.checkpoint {path}: expected a chat template (chat_template.jinja, or"
    )
    with pytest.raises(PolicyFileError, match="expected stop tokens of its vocabulary, got none"):
        ChatTokenizer.of_folder(folder(chat_template=LINES))

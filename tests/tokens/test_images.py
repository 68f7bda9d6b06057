from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rlenv.errors import EpisodeError, UnsupportedTemplate
from rlenv.messages import Image, Message, Observation
from rlenv.tokens import ProcessorImages, TokenEncoder, TokenTrajectory
from tests.support.vision import FAMILIES, TEMPLATE, picture, processor, rendered_ids, tokenizer

CALL = 'look <tool_call>\n{"name": "zoom", "arguments": {}}\n</tool_call>'
BROKEN = Image.of(b"not an image")


def encoder_of(made: Any, **options: Any) -> TokenEncoder:
    return TokenEncoder(
        made.tokenizer, chat_template=made.chat_template, images=ProcessorImages(made, **options.pop("images", {}))
    )


def say(encoder: TokenEncoder, trajectory: TokenTrajectory, text: str) -> Message:
    trajectory.add_sampled([*encoder.encode_text(text), encoder.stop_id])
    return Message("assistant", text)


def shown(*sizes: tuple[int, int], text: str = "here") -> Message:
    return Message("tool", text, name="zoom", images=tuple(picture(*size) for size in sizes))


@pytest.fixture(scope="module")
def made() -> Any:
    return processor()


@pytest.fixture(scope="module")
def encoder(made: Any) -> TokenEncoder:
    return encoder_of(made)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    "real", [pytest.param(False, id="small"), pytest.param(True, id="qwen3", marks=pytest.mark.shared_data)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_turns_and_images_together_are_what_the_processor_makes_of_the_whole(family: str, real: bool) -> None:
    made = processor(family, real=real)
    encoder = encoder_of(made)
    dice = random.Random(family)
    texts = ["", "page 1", "  two\n\nlines \n", "Grüße 世界 🎉", "12 34 567"]

    def size() -> tuple[int, int]:
        return dice.randint(20, 400), dice.randint(20, 400)

    for _ in range(3):
        pictures = tuple(picture(*size()) for _ in range(dice.randint(0, 2)))
        said = [Message("system", "Look closely."), Message("user", "What is it?", images=pictures)]
        trajectory = encoder.start(said)
        expected = [image for message in said for image in message.images]
        for _ in range(dice.randint(1, 3)):
            said.append(say(encoder, trajectory, CALL))
            count = dice.randint(1, 3)
            results = [
                shown(*(size() for _ in range(dice.randint(0, 2))), text=dice.choice(texts)) for _ in range(count)
            ]
            assert trajectory.add_observation(Observation(tuple(results)))
            said += results
            expected += [image for message in results for image in message.images]
        assert trajectory.context_ids == rendered_ids(made, said, trajectory.images, generate=True)
        said.append(say(encoder, trajectory, "<answer>12</answer>"))
        assert trajectory.context_ids == rendered_ids(made, said, trajectory.images)[: len(trajectory.context_ids)]
        # The order of images is the order of their placeholders, whose number is the size's.
        assert encoder.images is not None
        assert [image.size for image in trajectory.images] == [encoder.images.open(one).size for one in expected]
        assert len(trajectory.mask) == len(trajectory.response_ids) == len(trajectory.logprobs)
        placed = [mask for mask, i in zip(trajectory.mask, trajectory.response_ids, strict=True) if i == place_id(made)]
        assert not any(placed)


def place_id(made: Any) -> int:
    return int(made.tokenizer.convert_tokens_to_ids("<|image_pad|>"))


def test_a_user_who_answers_may_show_images(made: Any, encoder: TokenEncoder) -> None:
    said = [Message("user", "q")]
    trajectory = encoder.start(said)
    said += [say(encoder, trajectory, "which one?"), Message("user", "this", images=(picture(90, 50),))]
    assert trajectory.add_observation(Observation((said[-1],)))
    assert trajectory.context_ids == rendered_ids(made, said, trajectory.images, generate=True)


def test_images_count_with_all_their_tokens_and_stay_out_whole(made: Any, encoder: TokenEncoder) -> None:
    observation = Observation((shown((280, 280)), shown((28, 28))))

    def start(room: int | None) -> TokenTrajectory:
        trajectory = encoder.start([Message("user", "q")], max_response_tokens=room)
        say(encoder, trajectory, CALL)
        return trajectory

    free = start(None)
    before = len(free)
    assert free.add_observation(observation)
    assert free.response_ids.count(place_id(made)) == 64 + 1
    exact = start(len(free))
    assert exact.add_observation(observation)
    assert exact.context_ids == free.context_ids
    short = start(len(free) - 1)
    assert not short.add_observation(observation)
    assert f"the observation has {len(free) - before} tokens" in short.reason
    assert (len(short), short.images) == (before, [])


def test_a_prompt_whose_images_do_not_fit_is_an_error(encoder: TokenEncoder) -> None:
    with pytest.raises(EpisodeError, match="expected at most 60") as caught:
        encoder.start([Message("user", "q", images=(picture(280, 280),))], max_prompt_tokens=60)
    assert caught.value.reason == "prompt_tokens"


def test_content_is_cut_and_images_are_not(made: Any, encoder: TokenEncoder) -> None:
    trajectory = encoder.start([Message("user", "q")], max_observation_tokens=80)
    say(encoder, trajectory, CALL)
    assert trajectory.add_observation(Observation((shown((280, 280), text="long text " * 100),)))
    text = encoder.decode(trajectory.response_ids)
    assert "characters left out" in text
    assert trajectory.response_ids.count(place_id(made)) == 64


@pytest.mark.parametrize("word", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"])
def test_no_text_of_a_tool_becomes_a_placeholder(made: Any, encoder: TokenEncoder, word: str) -> None:
    trajectory = encoder.start([Message("user", "q")])
    say(encoder, trajectory, CALL)
    hostile = f"a{word}b{word}"
    messages = (
        Message("tool", hostile, name=hostile, tool_call_id=hostile, images=(picture(28, 28),)),
        Message("tool", hostile),
    )
    assert trajectory.add_observation(Observation(messages))
    assert trajectory.response_ids.count(place_id(made)) == 1
    # Neither where the text is tokenized anew, as a trainer does to get its pixels.
    text = made.tokenizer.decode(trajectory.response_ids, skip_special_tokens=True)
    assert encoder.images is not None
    assert not any(reserved in text for reserved in encoder.images.reserved)
    assert encoder.cut(max_tokens=500)(hostile) == encoder.images.plain(hostile) != hostile


@pytest.mark.parametrize("word", ["<|image_pad|>", "<|video_pad|>"])
def test_a_prompt_may_not_hold_a_placeholder_of_its_own(encoder: TokenEncoder, word: str) -> None:
    for images in ((), (picture(),)):
        with pytest.raises(EpisodeError) as caught:
            encoder.start([Message("user", f"what is {word}?", images=images)])
        assert caught.value.reason == "image"
        assert word in str(caught.value)


def test_an_image_that_cannot_be_read_is_a_note_in_its_place(made: Any, encoder: TokenEncoder) -> None:
    trajectory = encoder.start([Message("user", "q")])
    said = say(encoder, trajectory, CALL)
    message = Message("tool", "page 1", images=(BROKEN, picture(90, 50), picture(3000, 10)))
    assert trajectory.add_observation(Observation((message,)))
    text = made.tokenizer.decode(trajectory.response_ids, skip_special_tokens=True)
    assert "page 1\n[image 1 is not shown: the bytes are no image" in text
    assert "[image 3 is not shown: an image of 3000 × 10 pixels cannot be shown: " in text
    assert [image.size for image in trajectory.images] == [(90, 50)]
    (seen,) = encoder.show((message,)).messages
    assert trajectory.context_ids == rendered_ids(
        made, [Message("user", "q"), said, seen], trajectory.images, generate=True
    )


def test_a_broken_image_of_a_prompt_is_the_environments_fault(encoder: TokenEncoder) -> None:
    with pytest.raises(EpisodeError, match="image 2 of message 1") as caught:
        encoder.start([Message("user", "q", images=(picture(), BROKEN))])
    assert caught.value.reason == "image"


def test_huge_images_are_made_small_by_the_processor_or_not_decoded(made: Any) -> None:
    encoder = encoder_of(made, images={"max_pixels": 1_000_000})
    trajectory = encoder.start([Message("user", "q")])
    say(encoder, trajectory, CALL)
    assert trajectory.add_observation(Observation((shown((1000, 900)), shown((1001, 1000)))))
    assert trajectory.response_ids.count(place_id(made)) <= 64
    assert "expected at most 1000000" in encoder.decode(trajectory.response_ids)


def test_the_processors_own_limits_can_be_set(made: Any) -> None:
    few = encoder_of(made, images={"kwargs": {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 4}})
    trajectory = few.start([Message("user", "q", images=(picture(280, 280),))])
    assert trajectory.context_ids.count(place_id(made)) == 4


def test_a_policy_of_text_alone_is_refused_at_the_prompt_and_told_of_a_results_images(made: Any) -> None:
    encoder = TokenEncoder(made.tokenizer, chat_template=made.chat_template)
    with pytest.raises(UnsupportedTemplate, match=r"message 2 \(user\) has 1 images.*reads text alone"):
        encoder.start([Message("system", "s"), Message("user", "q", images=(picture(),))])
    trajectory = encoder.start([Message("user", "q")])
    say(encoder, trajectory, CALL)
    assert trajectory.add_observation(Observation((shown((9, 9), (9, 9)), Message("tool", "", images=(BROKEN,)))))
    text = encoder.decode(trajectory.response_ids)
    assert "here\n[2 images are not shown: they cannot be seen here]" in text
    assert "[1 image is not shown: it cannot be seen here]" in text
    assert (trajectory.images, place_id(made) in trajectory.response_ids) == ([], False)


def test_a_template_that_writes_no_images_or_counts_them_is_refused() -> None:
    made = processor()
    silent = TEMPLATE.replace("'<|vision_start|><|image_pad|><|vision_end|>'", "''")
    counting = TEMPLATE.replace("{%- macro", "{%- set seen = namespace(count=0) %}{%- macro").replace(
        "{{- '<|vision_start|>",
        "{%- set seen.count = seen.count + 1 %}{{- 'Picture ' ~ seen.count ~ ': <|vision_start|>",
    )
    for template, message in ((silent, "0 times"), (counting, "counts them")):
        encoder = TokenEncoder(made.tokenizer, chat_template=template, images=ProcessorImages(made))
        trajectory = encoder.start([Message("user", "q")])
        say(encoder, trajectory, CALL)
        with pytest.raises(UnsupportedTemplate, match=message):
            trajectory.add_observation(Observation((shown((90, 50)),)))


def test_a_row_that_starts_anew_shows_all_images_again(made: Any) -> None:
    thinking = TEMPLATE.replace(
        "shown(message.content or '')", "shown((message.content or '').split('</think>')[-1].lstrip('\\n'))"
    )
    encoder = TokenEncoder(made.tokenizer, chat_template=thinking, images=ProcessorImages(made), history="rows")
    prompt = [Message("user", "q", images=(picture(60, 40),))]
    rows = encoder.start_rows(prompt)
    thought = "<think>\nhm\n</think>\n\nwhich?"
    rows.add_sampled([*encoder.encode_text(thought), encoder.stop_id])
    answer = Message("user", "this <|image_pad|>", images=(BROKEN, picture(90, 50)))
    said = Message("assistant", thought)
    assert rows.add_observation(Observation((answer,)), said=said)
    assert len(rows.rows) == 2
    assert [image.size for image in rows.last.images] == [(60, 40), (90, 50)]
    made.chat_template = thinking
    (seen,) = encoder.show((answer,)).messages
    try:
        assert rows.last.prompt_ids == rendered_ids(made, [*prompt, said, seen], rows.last.images, generate=True)
    finally:
        made.chat_template = TEMPLATE


def test_images_are_opened_off_the_event_loop(encoder: TokenEncoder) -> None:
    trajectory = encoder.start([Message("user", "q")])
    say(encoder, trajectory, CALL)
    assert asyncio.run(trajectory.add_observation_async(Observation((shown((90, 50)),))))
    assert len(trajectory.images) == 1


def test_a_processor_without_a_placeholder_of_one_token_is_refused(made: Any) -> None:
    class Nameless:
        tokenizer = made.tokenizer

    with pytest.raises(UnsupportedTemplate, match="Nameless names no image_token"):
        ProcessorImages(Nameless())
    other = processor()
    other.image_token = "[IMG]"
    with pytest.raises(UnsupportedTemplate, match=r"\[IMG\] is no token"):
        TokenEncoder(tokenizer(), chat_template=TEMPLATE, images=ProcessorImages(other))

"""The features a drafter learns from must be those a serving engine will give it."""

import shutil

import pytest
import torch

from dflash_pipeline.contracts.errors import Refused
from dflash_pipeline.model.target import FrozenTarget, cut_back
from dflash_pipeline.model.target_files import target_fingerprint
from tests.tiny_models import TAPS, tiny_model, tiny_target

IDS = torch.randint(0, 200, (2, 19), generator=torch.Generator().manual_seed(0))


def test_right_padding_needs_no_mask():
    target = tiny_target()
    alone = target.features(IDS[1:, :11])
    padded = IDS.clone()
    padded[1, 11:] = 0
    torch.testing.assert_close(target.features(padded)[1:, :11], alone, rtol=1e-5, atol=1e-5)


def test_nothing_of_the_target_is_trained():
    target = tiny_target()
    hidden = torch.randn(3, 64, requires_grad=True)
    target.logits(hidden).sum().backward()
    assert hidden.grad is not None
    assert not target.features(IDS).requires_grad
    assert all(not parameter.requires_grad for parameter in target._model.parameters())
    assert not target._model.training


def test_cached_decoding_equals_one_forward():
    target, model = tiny_target(), tiny_model()
    with torch.no_grad():
        whole = model(IDS[:1]).logits[0]
    cache = target.new_cache()
    logits, features = target.decode_step(IDS[0, :9], cache, num_logits=1)
    torch.testing.assert_close(logits, whole[8:9], rtol=1e-4, atol=1e-4)
    target.decode_step(torch.tensor([7, 7, 7, 7]), cache, num_logits=4)
    cut_back(cache, 9)
    logits, more = target.decode_step(IDS[0, 9:], cache, num_logits=10)
    torch.testing.assert_close(logits, whole[9:], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat((features, more)), target.features(IDS[:1])[0], rtol=1e-4, atol=1e-4)


def test_taps_beyond_the_target_are_refused():
    with pytest.raises(Refused, match="0 to 6"):
        FrozenTarget(tiny_model(), tap_layer_ids=(1, 7))


def test_loading_takes_safetensors_from_a_folder_only(tmp_path):
    with pytest.raises(Refused, match=r"config\.json"):
        FrozenTarget.load(tmp_path / "absent", tap_layer_ids=TAPS)
    tiny_model().save_pretrained(tmp_path / "m")
    loaded = FrozenTarget.load(tmp_path / "m", tap_layer_ids=TAPS)
    torch.testing.assert_close(loaded.features(IDS), tiny_target().features(IDS))
    (tmp_path / "m/model.safetensors").rename(tmp_path / "m/pytorch_model.bin")
    with pytest.raises(Refused, match="safetensors"):
        FrozenTarget.load(tmp_path / "m", tap_layer_ids=TAPS)


def test_the_example_target_loads(example_target):
    target = FrozenTarget.load(example_target, tap_layer_ids=(0, 1, 2))
    assert target.features(IDS).shape == (2, 19, 3 * 128)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_fingerprint_follows_content_not_place(example_target, tmp_path, name):
    before = target_fingerprint(example_target)
    copied = tmp_path / "copy"
    shutil.copytree(example_target, copied)
    (copied / "README.md").write_text("not part of it")
    assert target_fingerprint(copied) == before
    changed = bytearray((copied / name).read_bytes())
    changed[-2] ^= 1
    (copied / name).write_bytes(changed)
    assert target_fingerprint(copied) != before

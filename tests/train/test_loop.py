"""One update: its gradient, its learning rate, its loss; and what a loss that is no number does."""

import math

import pytest
import torch

from regard.errors import TrainError
from regard.train.batches import IGNORED, Batches, DataPosition, Example, padded
from regard.train.build import Objective, build_model
from regard.train.distributed import World
from regard.train.loop import Training, learning_rate
from regard.train.settings import Settings
from regard.train.vocabulary import train_tokenizer

TEXTS = [" ".join(str(number) for number in range(23))]


class Fixed:
    """Two dozen examples of different lengths."""

    def __len__(self):
        return 24

    def get(self, epoch, index):
        source = [7 + (index * 5 + place) % 17 for place in range(3 + index % 5)]
        target = [*source[::-1], 2]
        return Example(source, [1, *target[:-1]], target)


def training_of(**given):
    settings = Settings.of("reverse", {"hidden_dim": 13, "embed_dim": 11, "dropout": 0.0, **given})
    tokenizer = train_tokenizer("word", TEXTS, end=True)
    objective = Objective(build_model(settings, tokenizer), settings.label_smoothing)
    batches = Batches(Fixed(), settings.batch_tokens, settings.seed, pad=0)
    return Training(objective, batches, settings, World(), torch.device("cpu"))


@pytest.mark.parametrize("model", ["seq2seq", "t5"])
def test_the_loss_is_the_mean_over_real_tokens(model):
    """Against log-softmax summed by hand over the labels of each row alone, without padding."""
    settings = Settings.of("reverse", {"model": model, "model_dim": 12, "n_head": 3, "hidden_dim": 13})
    tokenizer = train_tokenizer("word", TEXTS, end=True)
    objective = Objective(build_model(settings, tokenizer)).eval()
    examples = [Fixed().get(0, index) for index in range(7)]
    batch = padded(examples, 0)
    together = objective(batch.source, batch.source_key_mask, batch.inputs, batch.labels)
    alone = 0.0
    for each in examples:
        source, inputs = torch.tensor([each.source]), torch.tensor([each.inputs])
        chances = objective.model(source, inputs).logits[0].log_softmax(-1).detach()
        alone -= sum(float(chances[place, label]) for place, label in enumerate(each.labels))
    assert float(together.detach()) == pytest.approx(alone, rel=1e-5)  # float32, some hundred terms
    assert batch.n_label == sum(len(each.labels) for each in examples)
    assert int((batch.labels == IGNORED).sum()) > 0


def test_accumulated_batches_are_one_large_batch():
    """Three batches for one update give the gradient of all their examples at once."""
    small = training_of(batch_tokens=24 * 8 // 3, accumulate=5, clip=0.0)
    place, examples = DataPosition(), []
    for _ in range(5):
        batch, place = small.batches.at(place)
        examples += [
            Example(
                s[s != 0].tolist(), i[: int((lab != IGNORED).sum())].tolist(), lab[lab != IGNORED].tolist()
            )
            for s, i, lab in zip(batch.source, batch.inputs, batch.labels, strict=True)
        ]
    one = padded(examples, 0)
    whole = training_of(clip=0.0)
    loss = whole.objective(one.source, one.source_key_mask, one.inputs, one.labels) / one.n_label
    loss.backward()
    measured = small.update()
    any_order = one.n_label * torch.finfo(torch.float32).eps  # one rounding for each term of the sum
    assert measured["loss"] == pytest.approx(float(loss.detach()), rel=any_order)
    for mine, other in zip(small.objective.parameters(), whole.objective.parameters(), strict=True):
        torch.testing.assert_close(
            mine.grad, other.grad, rtol=1e-4, atol=1e-6
        )  # float32, sums in other orders


def test_an_update_is_adamw_with_clipping():
    """The weights after an update, against AdamW's formula worked out in float64."""
    training = training_of(clip=0.05, warmup=0, schedule="constant", lr=0.01, weight_decay=0.3)
    before = {name: each.detach().double() for name, each in training.objective.named_parameters()}
    measured = training.update()
    shrunk = min(1.0, 0.05 / (measured["gradient"] + 1e-6))
    assert measured["gradient"] > 0.05
    for name, parameter in training.objective.named_parameters():
        gradient = parameter.grad.double()  # clipped in place
        decay = 0.3 if parameter.dim() >= 2 else 0.0
        # After one step both moments, corrected for their start, are the gradient and its square.
        wanted = before[name] * (1 - 0.01 * decay) - 0.01 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(parameter.detach().double(), wanted, rtol=1e-5, atol=1e-6)
    total = math.sqrt(sum(float(p.grad.double().square().sum()) for p in training.objective.parameters()))
    assert total == pytest.approx(measured["gradient"] * shrunk, rel=1e-4)


@pytest.mark.parametrize(
    ("schedule", "step", "wanted"),
    [
        ("cosine", 5, 0.5),
        ("cosine", 10, 1.0),
        ("cosine", 60, 0.2 + 0.8 * 0.5),
        ("cosine", 110, 0.2),
        ("inverse_sqrt", 5, 0.5),
        ("inverse_sqrt", 40, 0.5),
        ("inverse_sqrt", 90, 1 / 3),
        ("constant", 77, 1.0),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule, step, wanted):
    """Values worked by hand: a straight rise, then half a cosine, or one over the root of the step."""
    settings = Settings.of(
        "dates", {"schedule": schedule, "lr": 1.0, "warmup": 10, "steps": 110, "min_lr": 0.2}
    )
    assert learning_rate(step, settings) == pytest.approx(wanted)


def test_label_smoothing_mixes_in_every_word():
    """The smoothed loss is (1 - s) of the plain one and s of the mean over the vocabulary."""
    training = training_of(label_smoothing=0.3)
    batch, _ = training.batches.at(DataPosition())
    logits = training.objective.model(batch.source, batch.inputs, key_mask=batch.source_key_mask).logits
    chances = logits.log_softmax(-1)[batch.labels != IGNORED]
    labels = batch.labels[batch.labels != IGNORED]
    wanted = -0.7 * chances.gather(1, labels[:, None]).sum() - 0.3 * chances.mean(-1).sum()
    found = training.objective(batch.source, batch.source_key_mask, batch.inputs, batch.labels)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


def test_a_loss_that_is_no_number_stops_before_it_harms():
    """NaN in one weight: the error names the step, and no weight is changed."""
    training = training_of()
    training.update()
    next(training.objective.parameters()).data[9, 2] = math.nan
    before = [each.detach().clone() for each in training.objective.parameters()]
    with pytest.raises(TrainError, match=r"the loss of step 2 is nan.*lower lr"):
        training.update()
    for one, other in zip(before, training.objective.parameters(), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    assert training.progress.step == 1


def test_half_precision_trains():
    """bf16 autocast lowers the loss as float32 does, with weights kept in float32."""
    training = training_of(precision="bf16", lr=0.01, warmup=1)
    losses = [training.update()["loss"] for _ in range(31)]
    assert losses[-1] < 0.8 * losses[0]
    assert all(each.dtype == torch.float32 for each in training.objective.parameters())
